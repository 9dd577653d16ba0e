/* kernels/ops.c - see ops.h: chooses the implementation of an op.
 *
 * Owns: one table per op, best instruction set first. Refuses: the ops themselves.
 * To add a faster kernel, add a row to the table of its op. */
#include "kernels/ops.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/int8.h"
#include "kernels/device.h"
#include "kernels/math.h"
#include "kernels/ref/ref.h"

#include <string.h>

#ifdef __x86_64__
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023 // as in <asm/prctl.h>, which older systems lack
#define XFEATURE_XTILEDATA  18
#endif

static const char *const isa_names[N_ISAS] = {"ref",     "exact",  "portable", "avx2",
                                              "avx512f", "avx512", "amx"};

const char *isa_name(enum isa isa)
{
    return isa_names[isa];
}

enum isa isa_by_name(const char *name)
{
    int isa = 0;
    while (isa < N_ISAS && strcmp(isa_names[isa], name) != 0)
        isa++;
    return (enum isa)isa;
}

static const char *const compute_names[N_COMPUTES] = {"bf16", "f32", "int8"};

const char *compute_name(enum compute compute)
{
    return compute_names[compute];
}

enum compute compute_by_name(const char *name)
{
    int compute = 0;
    while (compute < N_COMPUTES && strcmp(compute_names[compute], name) != 0)
        compute++;
    return (enum compute)compute;
}

#if defined __x86_64__ && !defined has_amx // tests/tiles.h has tiles in C
/* 1 when this CPU has tiles of bf16 and of bytes, and the kernel saves them. A process must request
 * them once, for all of its threads. */
static int has_amx(void)
{
    static _Atomic int asked; // 0: not yet, 1: refused, 2: granted
    if (asked == 0)
        asked = __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
                        __builtin_cpu_supports("amx-int8") &&
                        syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0
                    ? 2
                    : 1;
    return asked == 2;
}
#endif

enum isa isa_best(void)
{
#ifdef __x86_64__
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("f16c"))
        return ISA_PORTABLE;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return ISA_AVX2;
    if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vnni"))
        return ISA_AVX512F;
    return has_amx() ? ISA_AMX : ISA_AVX512;
#else
    return ISA_PORTABLE;
#endif
}

/* best_name: runs the best implementation whose set is not above ops->isa; ISA_REF, the lowest,
 * always exists. */
#define ROWS(name, args_type, ...)                                                                 \
    static void best_##name(const struct ops *ops, const args_type *args)                          \
    {                                                                                              \
        static const struct {                                                                      \
            enum isa isa;                                                                          \
            void (*run)(const struct ops *ops, const args_type *args);                             \
        } rows[] = {__VA_ARGS__, {ISA_REF, ref_##name}};                                           \
        int row = 0;                                                                               \
        while (rows[row].isa > ops->isa)                                                           \
            row++;                                                                                 \
        rows[row].run(ops, args);                                                                  \
    }
/* ops_run_name: queues the op on the stream, or runs it now. */
#define DOOR(name)                                                                                 \
    static void here_##name(const struct ops *ops, const void *args)                               \
    {                                                                                              \
        best_##name(ops, args);                                                                    \
    }                                                                                              \
    void ops_run_##name(const struct ops *ops, const struct name##_args *args)                     \
    {                                                                                              \
        if (ops->stream)                                                                           \
            ops->stream->device->api->launch(ops->stream, OP_##name, ops, args);                   \
        else                                                                                       \
            here_##name(ops, args);                                                                \
    }
#define TABLE(name, ...)                                                                           \
    ROWS(name, struct name##_args, __VA_ARGS__)                                                    \
    DOOR(name)

#define ref_matmul_float ref_matmul
ROWS(matmul_float, struct matmul_args, {ISA_AMX, cpu_matmul_amx}, {ISA_AVX512, cpu_matmul_avx512},
     {ISA_AVX512F, cpu_matmul_avx512f}, {ISA_AVX2, cpu_matmul_avx2},
     {ISA_PORTABLE, cpu_matmul_portable}, {ISA_EXACT, exact_matmul})
/* ISA_AVX2 with AVX-VNNI and ISA_AVX512F with VNNI where this CPU has it: the same bytes. */
static void matmul_int8_avx2(const struct ops *ops, const struct matmul_args *args)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avxvnni")) {
        cpu_matmul_int8_avxvnni(ops, args);
        return;
    }
#endif
    cpu_matmul_int8_avx2(ops, args);
}

static void matmul_int8_avx512f(const struct ops *ops, const struct matmul_args *args)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512vnni")) {
        cpu_matmul_int8_avx512(ops, args);
        return;
    }
#endif
    matmul_int8_avx2(ops, args);
}

ROWS(matmul_int8, struct matmul_args, {ISA_AMX, cpu_matmul_int8_amx},
     {ISA_AVX512, cpu_matmul_int8_avx512}, {ISA_AVX512F, matmul_int8_avx512f},
     {ISA_AVX2, matmul_int8_avx2}, {ISA_PORTABLE, cpu_matmul_int8_portable},
     {ISA_EXACT, exact_matmul_int8})

/* Under int8, parts that read x in the same form run together: as codes for q8, as codes for q4,
 * and as bf16 for formats without an int8 product. */
static void best_matmul_of_codes(const struct ops *ops, const struct matmul_args *args)
{
    static const enum dtype kinds[] = {DTYPE_Q8, DTYPE_Q4, N_DTYPES};
    struct ops as_bf16 = *ops;
    as_bf16.compute = COMPUTE_BF16;
    for (int kind = 0; kind < 3; kind++) {
        struct matmul_args some = *args;
        some.n_parts = 0;
        for (int i = 0; i < args->n_parts; i++) {
            const enum dtype t = args->parts[i].w.dtype;
            if ((int8_multiplies(t) ? t : N_DTYPES) == kinds[kind])
                some.parts[some.n_parts++] = args->parts[i];
        }
        if (some.n_parts > 0 && kinds[kind] != N_DTYPES)
            best_matmul_int8(ops, &some);
        else if (some.n_parts > 0)
            best_matmul_float(&as_bf16, &some);
    }
}

static void best_matmul(const struct ops *ops, const struct matmul_args *args)
{
    CHECK(args->n_parts >= 1 && args->n_parts <= MATMUL_PARTS);
    for (int i = 0; i < args->n_parts; i++) {
        CHECK(args->parts[i].w.k == args->parts[0].w.k);
        CHECK(args->parts[i].w.layout == WEIGHT_PANELS);
    }
    if (ops->compute == COMPUTE_INT8)
        best_matmul_of_codes(ops, args);
    else
        best_matmul_float(ops, args);
}
DOOR(matmul)

static void best_expert_matmul(const struct ops *ops, const struct expert_matmul_args *args)
{
    if (ops->isa == ISA_REF)
        ref_expert_matmul(ops, args);
    else
        cpu_expert_matmul(ops, args, best_matmul);
}
DOOR(expert_matmul)

TABLE(decode, {ISA_AVX512, cpu_decode_avx512}, {ISA_AVX2, cpu_decode_avx2},
      {ISA_PORTABLE, cpu_decode_portable})
TABLE(gather, {ISA_PORTABLE, cpu_gather})
TABLE(compact, {ISA_PORTABLE, cpu_compact})
TABLE(cast, {ISA_PORTABLE, cpu_cast})
TABLE(norm, {ISA_AVX512, cpu_norm_avx512}, {ISA_AVX2, cpu_norm_avx2},
      {ISA_PORTABLE, cpu_norm_portable}, {ISA_EXACT, exact_norm})
TABLE(rope, {ISA_AVX512, cpu_rope_avx512}, {ISA_AVX2, cpu_rope_avx2},
      {ISA_PORTABLE, cpu_rope_portable}, {ISA_EXACT, exact_rope})
TABLE(rotate, {ISA_AVX512, cpu_rotate_avx512}, {ISA_AVX2, cpu_rotate_avx2},
      {ISA_PORTABLE, cpu_rotate_portable}, {ISA_EXACT, exact_rotate})
TABLE(gate_mul, {ISA_AVX512, cpu_gate_mul_avx512}, {ISA_AVX2, cpu_gate_mul_avx2},
      {ISA_PORTABLE, cpu_gate_mul_portable}, {ISA_EXACT, exact_gate_mul})
TABLE(mix, {ISA_AVX512, cpu_mix_avx512}, {ISA_AVX2, cpu_mix_avx2}, {ISA_PORTABLE, cpu_mix_portable},
      {ISA_EXACT, exact_mix})
TABLE(conv, {ISA_AVX512, cpu_conv_avx512}, {ISA_AVX2, cpu_conv_avx2},
      {ISA_PORTABLE, cpu_conv_portable}, {ISA_EXACT, exact_conv})
TABLE(recur, {ISA_AVX512, cpu_recur_avx512}, {ISA_AVX2, cpu_recur_avx2},
      {ISA_PORTABLE, cpu_recur_portable}, {ISA_EXACT, exact_recur})
TABLE(route, {ISA_PORTABLE, cpu_route})
TABLE(expert_sum, {ISA_AVX512, cpu_expert_sum_avx512}, {ISA_AVX2, cpu_expert_sum_avx2},
      {ISA_PORTABLE, cpu_expert_sum_portable}, {ISA_EXACT, exact_expert_sum})
TABLE(kv_store, {ISA_AVX512, cpu_kv_store_avx512}, {ISA_PORTABLE, cpu_kv_store})
TABLE(attend_prompt, {ISA_AMX, cpu_attend_prompt_amx}, {ISA_AVX512, cpu_attend_prompt_avx512},
      {ISA_AVX512F, cpu_attend_prompt_avx512f}, {ISA_AVX2, cpu_attend_prompt_avx2},
      {ISA_PORTABLE, cpu_attend_prompt_portable}, {ISA_EXACT, exact_attend_prompt})
TABLE(attend_forced, {ISA_AVX512, cpu_attend_forced_avx512}, {ISA_AVX2, cpu_attend_forced_avx2},
      {ISA_PORTABLE, cpu_attend_forced_portable}, {ISA_EXACT, exact_attend_forced})
TABLE(prompt_keep, {ISA_PORTABLE, cpu_prompt_keep})
TABLE(head_reduce, {ISA_AVX512, cpu_head_reduce_avx512}, {ISA_AVX2, cpu_head_reduce_avx2},
      {ISA_PORTABLE, cpu_head_reduce_portable}, {ISA_EXACT, exact_head_reduce})

void ops_copy(const struct ops *ops, void *to, const void *from, int64_t n_bytes)
{
    if (n_bytes == 0)
        return;
    if (ops->stream)
        ops->stream->device->api->ops_copy(ops->stream, to, from, n_bytes);
    else
        memcpy(to, from, (size_t)n_bytes);
}

void ops_fill(const struct ops *ops, void *to, int byte, int64_t n_bytes)
{
    if (n_bytes == 0)
        return;
    if (ops->stream)
        ops->stream->device->api->fill(ops->stream, to, byte, n_bytes);
    else
        memset(to, byte, (size_t)n_bytes);
}

void ops_here(enum op op, const struct ops *ops, const void *args)
{
#define HERE(name) [OP_##name] = here_##name,
    static void (*const here[N_OPS])(const struct ops *ops, const void *args) = {OPS(HERE)};
#undef HERE
    here[op](ops, args);
}

int64_t ops_args_bytes(enum op op)
{
#define BYTES(name) [OP_##name] = (int64_t)sizeof(struct name##_args),
    static const int64_t bytes[N_OPS] = {OPS(BYTES)};
#undef BYTES
    return bytes[op];
}

int64_t matmul_scratch_bytes(const struct ops *ops, int m, int n, int k)
{
    (void)n; // panels are decoded one at a time
    int pairs = ops->isa >= ISA_AVX512 && ops->compute != COMPUTE_F32;
    int tiles = ops->isa >= ISA_AMX && pairs, n_threads = pool_threads(ops->pool);
    int64_t n_words = pairs ? ceil_div(k, 2) : k;
    struct matmul_cut cut = tiles ? matmul_cut_tiles() : matmul_cut_lanes();
    struct matmul_scratch s = matmul_scratch(&cut, m, round_up(n_words, cut.chunk), n_threads);
    int64_t bytes = s.packed_bytes + (s.decoded_bytes + s.sums_bytes) * n_threads;
    // Under int8 some weights may have a format that is multiplied as bf16.
    return ops->compute == COMPUTE_INT8
               ? max_i64(bytes, int8_scratch_bytes(ops->isa, m, k, n_threads))
               : bytes;
}

int64_t attend_prompt_scratch_bytes(const struct ops *ops, int n_prompt_max, int n_heads,
                                    int n_kv_heads, int head_dim)
{
    (void)n_heads;
    (void)n_kv_heads;
    return prompt_scratch(ops->isa, n_prompt_max, head_dim).bytes * pool_threads(ops->pool);
}

int64_t attend_forced_scratch_bytes(const struct ops *ops, int n_spans, int slots_max, int n_heads,
                                    int n_kv_heads, int head_dim, int scores)
{
    (void)n_spans; // scratch is per thread
    return attend_forced_thread_bytes(slots_max, n_heads / n_kv_heads, n_kv_heads, head_dim,
                                      scores) *
           pool_threads(ops->pool);
}

void head_start(struct head_result *r)
{
    // Ids start at 0, a token that exists, even if every logit is NaN.
    *r = (struct head_result){.max = -INFINITY,
                              .target_logit = -INFINITY,
                              .best_logit = -INFINITY,
                              .sample_value = -INFINITY,
                              .sample_logit = -INFINITY};
}

float head_gumbel(uint64_t key, int32_t id)
{
    return math_gumbel(math_uniform(key, id));
}

float op_exp(float x)
{
    return math_exp(x);
}
