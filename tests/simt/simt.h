/* tests/simt/simt.h - CUDA kernels on the host: every thread a fiber, every access looked at.
 *
 * A .cu is compiled by g++ with tests/simt/device.h before it; its launches run here, one after the
 * other, done when the entry returns. What a GPU would let pass in silence is an error here, with
 * the source line: barriers and warp operations that do not meet, races (also between blocks),
 * reads of bytes that nobody wrote or whose asynchronous copy was not waited for, addresses outside
 * of what was allocated, unaligned vectors, undefined behaviour.
 *
 * Owns: device memory, launches, the first error (the rest is not run, as on a device that is
 * lost). Refuses: timing, memory order between blocks, spinning; streams, which tests/simt/cudart
 * has. Launches and calls of tests are for one thread at a time; entries may be called meanwhile.
 * Plain C; the second half is for tests/simt alone. */
#ifndef TESTS_SIMT_SIMT_H
#define TESTS_SIMT_SIMT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- for tests ---- */

/* Device memory on 256 bytes, unwritten, redzones around it. Freed all at once. */
void *simt_alloc(int64_t bytes);
void simt_free_all(void);
/* What a copy from RAM does: the bytes count as written. simt_of: into new memory; NULL stays NULL.
 */
void simt_put(void *to, const void *from, int64_t bytes);
void *simt_of(const void *from, int64_t bytes);
/* The bytes count as unwritten again: for outputs, whose old contents must not pass for new. */
void simt_forget(void *p, int64_t bytes);
/* A copy within device memory: what nobody has written stays so. */
void simt_move(void *to, const void *from, int64_t bytes);
/* What a copy to RAM does; unwritten bytes are an error. */
void simt_get(void *to, const void *from, int64_t bytes);

/* The first error since simt_clear(), NULL when there is none. Valid until then. */
const char *simt_error(void);
void simt_clear(void);

/* In which order the threads of a block and the blocks of a grid run: 0 ascending, 1 descending,
 * else drawn from the seed. */
void simt_order(uint64_t seed);
/* 0: races are not looked for: twice as fast. 1 at first. */
void simt_races(int on);
/* The architecture that kernels see (75, 80, 86, 89, 90), and with it the tensor core and the limit
 * of shared memory. 80 at first. Where PTX is interpreted (tests/simt/ptx.h) it is the PTX's, and
 * stays. */
void simt_arch_set(int arch);
int simt_arch(void);

/* One tensor core output: c + sum of a[i] * b[i], i < k: see tests/simt/mma.c. S8: of int8, which
 * is exact; the shapes are 16 x 8 x 32 and (K16) 8 x 8 x 16. */
enum simt_mma { SIMT_MMA_BF16, SIMT_MMA_F16, SIMT_MMA_F16_K8, SIMT_MMA_S8, SIMT_MMA_S8_K16 };
float simt_mma_dot(int arch, enum simt_mma kind, const uint16_t *a, const uint16_t *b, float c);

/* ---- for device.h ---- */

struct simt_dim {
    unsigned x, y, z;
};
struct simt_site {
    const char *file;
    int line;
};
enum simt_op {
    SIMT_SYNCWARP,
    SIMT_SHFL,
    SIMT_SHFL_UP,
    SIMT_SHFL_DOWN,
    SIMT_SHFL_XOR,
    SIMT_BALLOT,
    SIMT_LDMATRIX,
    SIMT_MMA
};
enum simt_atomic {
    SIMT_ADD,
    SIMT_MIN,
    SIMT_MAX,
    SIMT_MIN_SIGNED,
    SIMT_MAX_SIGNED,
    SIMT_OR,
    SIMT_AND,
    SIMT_EXCH,
    SIMT_CAS
};

/* A kernel as a function of this program, and what calls it. */
struct simt_kernel {
    const char *name;
    void (*code)(void);
    void (*call)(void (*code)(void), const void *params);
};
/* A launch: call(code, params) is run once per thread. params [bytes]: one behind the other, each
 * aligned as its type, as a device gets them; all may read them. */
struct simt_work {
    struct simt_site at;
    struct simt_kernel kernel;
    struct simt_dim grid, block;
    int64_t shared_bytes;
    const void *params;
    int64_t bytes;
};
void simt_run(const struct simt_work *work);
/* Where launches of a stream go instead; params are to be copied. NULL: nowhere. */
struct CUstream_st;
extern void (*simt_queue)(struct CUstream_st *stream, const struct simt_work *work);
/* Says whether the kernel of a name may read, or write, a range of RAM. NULL: none may. */
extern int (*simt_may_touch)(const char *kernel, const void *p, int64_t bytes, int write);

struct simt_dim simt_thread_idx(void) __attribute__((const));
struct simt_dim simt_block_idx(void) __attribute__((const));
struct simt_dim simt_block_dim(void) __attribute__((const));
struct simt_dim simt_grid_dim(void) __attribute__((const));

void *simt_take(int piece, int at, int bytes);
void simt_barrier(struct simt_site at);
/* value: of `bytes` bytes; by: source lane, or how far it is away. Returns the other lane's value
 * (SIMT_BALLOT: the mask). */
uint64_t simt_warp(enum simt_op op, unsigned mask, uint64_t value, int by, int width,
                   struct simt_site at);
void simt_ldmatrix(uint32_t *r, const void *row, int n, int transposed, struct simt_site at);
/* d: floats, or of S8 whole numbers. */
void simt_mma(enum simt_mma kind, void *d, const uint32_t *a, const uint32_t *b,
              struct simt_site at);
uint64_t simt_atomic(enum simt_atomic op, void *p, int bytes, uint64_t value, uint64_t expected);
void simt_cp_async(void *to, const void *from, int bytes, int from_bytes);
void simt_cp_commit(void);
void simt_cp_wait(int newest);
void *simt_memcpy(void *to, const void *from, uint64_t bytes);
void *simt_memset(void *to, int byte, uint64_t bytes);
void simt_trap(struct simt_site at) __attribute__((noreturn));

#ifdef __cplusplus
}
#endif

#endif
