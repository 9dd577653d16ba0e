/* tests/simt/planted.h - the doors of planted.cu: kernels with a bug each, and clean ones. */
#ifndef TESTS_SIMT_PLANTED_H
#define TESTS_SIMT_PLANTED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PLANTED(X)                                                                                 \
    X(clean)                                                                                       \
    X(missing_barrier)                                                                             \
    X(missing_second_barrier)                                                                      \
    X(divergent_barrier)                                                                           \
    X(two_barriers)                                                                                \
    X(wrong_mask)                                                                                  \
    X(mask_in_a_branch)                                                                            \
    X(source_outside_mask)                                                                         \
    X(missing_syncwarp)                                                                            \
    X(missing_wait)                                                                                \
    X(wait_for_too_few)                                                                            \
    X(wait_without_barrier)                                                                        \
    X(never_waited)                                                                                \
    X(shared_overrun)                                                                              \
    X(device_overrun)                                                                              \
    X(negative_index)                                                                              \
    X(unaligned_vector)                                                                            \
    X(unaligned_number)                                                                            \
    X(unwritten_output)                                                                            \
    X(blocks_race)                                                                                 \
    X(blocks_read)                                                                                 \
    X(atomic_and_plain)                                                                            \
    X(unwritten_shared)                                                                            \
    X(unwritten_device)                                                                            \
    X(taken_too_much)                                                                              \
    X(host_pointer)                                                                                \
    X(other_stack)                                                                                 \
    X(shift_too_far)                                                                               \
    X(unaligned_ldmatrix)                                                                          \
    X(struct_overrun)                                                                              \
    X(local_overrun)                                                                               \
    X(warp_and_barrier)

enum planted {
#define PLANTED_ENUM(name) PLANTED_##name,
    PLANTED(PLANTED_ENUM)
#undef PLANTED_ENUM
        N_PLANTED
};

/* n threads; out [n_blocks * n], in [n]. */
void planted_run(enum planted which, int n_blocks, int n, int shared_bytes, int *out,
                 const int *in);
int planted_entry(const int *p);
/* d [16, 8] += a [16, 16] . b [8, 16]^T in f32; of S8 in int32, and twice as long. */
enum planted_kind { PLANTED_BF16, PLANTED_F16, PLANTED_S8 };
void planted_mma(enum planted_kind kind, void *d, const void *a, const void *b);
/* in [2][8, 8]; out [32][4]: each lane's two registers, plain, then transposed. */
void planted_transpose(uint32_t *out, const uint16_t *in);
/* out [n][4]: exp, gelu, through f16, through bf16. */
void planted_functions(float *out, const float *in, int n);

#ifdef __cplusplus
}
#endif

#endif
