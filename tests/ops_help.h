/* tests/ops_help.h - what the tests of ops share: numbers, instruction sets, pools. */
#ifndef TESTS_OPS_HELP_H
#define TESTS_OPS_HELP_H

#include "kernels/math.h"
#include "kernels/ops.h"
#include "tests/skip.h"
#include "tests/sweep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Zeroed memory on a cache line; every test frees its own. */
static inline void *take(int64_t bytes)
{
    void *p = aligned_alloc(64, (size_t)round_up(max_i64(bytes, 1), 64));
    assert_non_null(p);
    memset(p, 0, (size_t)round_up(max_i64(bytes, 1), 64));
    return p;
}

/* Every number in it is NaN: an op that reads scratch before it writes it gives NaN, too. */
static inline void *take_scratch(int64_t bytes)
{
    return memset(take(bytes), 0xff, (size_t)bytes);
}

static inline void *copy_of(const void *from, int64_t bytes)
{
    return memcpy(take(bytes), from, (size_t)bytes);
}

/* Uniform in [-1, 1). */
static inline float noise(uint64_t seed, int64_t i)
{
    return (float)((int64_t)(mix64(seed * 0x10001 + mix64((uint64_t)i)) >> 40) - (1 << 23)) *
           0x1p-23f;
}

static inline float *noise_array(uint64_t seed, int64_t n, float scale)
{
    float *x = take(n * 4);
    for (int64_t i = 0; i < n; i++)
        x[i] = scale * noise(seed, i);
    return x;
}

/* 1 when this CPU has the set; the first time that it has not, check.py gets a line. */
static inline int isa_here(enum isa isa)
{
    static unsigned told;
    if (isa <= isa_best())
        return 1;
    if (!(told >> isa & 1))
        skip_line("this CPU has no %s: its kernels were not run", isa_name(isa));
    told |= 1u << isa;
    return 0;
}

/* The fast sets of this CPU, slowest first; each set that the CPU lacks is a named skip. */
#define FOR_EACH_ISA(isa)                                                                          \
    for (enum isa isa = ISA_PORTABLE; isa < N_ISAS; isa++)                                         \
        if (isa_here(isa))

static inline void assert_close(const float *a, const float *b, int64_t n, double tolerance,
                                const char *what)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)a[i] - b[i]) <= tolerance))
            fail_msg("%s: number %lld is %.9g, not %.9g", what, (long long)i, (double)a[i],
                     (double)b[i]);
}

static inline void assert_same_bits(const void *a, const void *b, int64_t bytes, const char *what)
{
    for (int64_t i = 0; i < bytes; i++)
        if (((const uint8_t *)a)[i] != ((const uint8_t *)b)[i])
            fail_msg("%s: byte %lld of %lld differs", what, (long long)i, (long long)bytes);
}

static inline struct pool *pool_of(int n_threads)
{
    struct pool *pool;
    assert_int_equal(pool_open(&pool, n_threads, NULL), OK);
    return pool;
}

/* Scales that are no f16 have a range that drawing would seldom meet. */
static inline void scale_tame(enum dtype t, uint8_t *block)
{
    if (t == DTYPE_MXFP4)
        block[0] = (uint8_t)(125 + block[0] % 4);
    else if (t == DTYPE_F8_32 || t == DTYPE_F8_128 || t == DTYPE_I8_32 || t == DTYPE_I8_128)
        block[3] = 0x3b; // 2^-9 and above
    else if (t == DTYPE_B4_32 || t == DTYPE_B4_128)
        block[1] = 0x3d;
    else if (t == DTYPE_NV4_64 || t == DTYPE_NV4_256)
        block[3] = block[3] & 0x80 ? 0xc0 : 0x3e; // divides by 2 to 8, or multiplies by 1/8 to 1/2
    else if (t == DTYPE_NF4)
        block[3] = 0x3f;
    else if (t == DTYPE_NF4_S8)
        block[3] = block[7] = 0x3f;
    for (int i = 0; (t == DTYPE_NV4_64 || t == DTYPE_NV4_256) && i < dtype_info(t)->block / 16; i++)
        block[4 + i] &= 0xbf;
}

/* Bytes of a block that decode to small numbers: encoded where the format has a coder, else drawn
 * until they do. */
static inline void fill_row(enum dtype t, uint64_t seed, int64_t k, uint8_t *row)
{
    float x[1024];
    const struct dtype_info *info = dtype_info(t);
    if (t == DTYPE_F32 || t == DTYPE_F16 || t == DTYPE_BF16 || t == DTYPE_Q8 || t == DTYPE_Q4) {
        float *full = noise_array(seed, k, 1);
        dtype_encode_row(t, full, k, row);
        free(full);
        return;
    }
    for (int64_t block = 0; block < k / info->block; block++)
        for (uint64_t try = 0;; try++) {
            uint8_t *at = row + block * info->block_bytes;
            for (int i = 0; i < info->block_bytes; i++)
                at[i] = (uint8_t)mix64(seed + mix64((uint64_t)block + mix64(try * 512 + i)));
            scale_tame(t, at);
            dtype_decode_row(t, at, info->block, x);
            float max = 0;
            for (int i = 0; i < info->block; i++)
                max = fabsf(x[i]) <= 4 ? fmaxf(max, fabsf(x[i])) : INFINITY;
            if (max > 0.1f && max < 4)
                break;
        }
}

/* W[n, k] of encoded rows, which it frees, in panels. */
static inline struct weight weight_pack(enum dtype t, int n, int k, uint8_t *rows)
{
    int64_t row_bytes = dtype_row_bytes(t, k), panel_bytes = dtype_panel_bytes(t, k);
    uint8_t *panels = take(dtype_panels_bytes(t, n, k));
    for (int i = 0; i < n; i += PANEL_ROWS) {
        const void *at[PANEL_ROWS];
        for (int j = 0; j < PANEL_ROWS; j++)
            at[j] = i + j < n ? rows + (i + j) * row_bytes : NULL;
        panel_pack(t, at, k, panels + i / PANEL_ROWS * panel_bytes);
    }
    free(rows);
    return (struct weight){.dtype = t, .n = n, .k = k, .panels = panels};
}

static inline struct weight weight_make(enum dtype t, int n, int k, uint64_t seed)
{
    int64_t row_bytes = dtype_row_bytes(t, k);
    uint8_t *rows = take(row_bytes * n);
    for (int i = 0; i < n; i++)
        fill_row(t, seed + mix64((uint64_t)i), k, rows + i * row_bytes);
    return weight_pack(t, n, k, rows);
}

/* Runs a matmul of one part on its own copy of y0 [m, y_stride], with exactly the scratch it asks
 * for. */
static inline float *matmul_run(enum isa isa, enum compute compute, struct pool *pool,
                                struct matmul_args a, const float *y0)
{
    struct ops ops = {.isa = isa, .compute = compute, .pool = pool};
    const struct weight *w = &a.parts[0].w;
    float *y = copy_of(y0, a.m * a.parts[0].y_stride * 4);
    a.parts[0].y = y;
    a.n_parts = 1;
    a.scratch = take(matmul_scratch_bytes(&ops, a.m, w->n, w->k));
    ops_run_matmul(&ops, &a);
    free(a.scratch);
    return y;
}

/* For qsort: descending, equal logits by ascending id. */
static inline int candidate_order(const void *a, const void *b)
{
    const struct head_candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

#endif
