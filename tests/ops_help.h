/* tests/ops_help.h - what the tests of ops share: numbers, instruction sets, pools. */
#ifndef TESTS_OPS_HELP_H
#define TESTS_OPS_HELP_H

#include "kernels/math.h"
#include "kernels/ops.h"

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

/* The fast sets of this CPU, slowest first: for (isa = ISA_PORTABLE; isa <= isa_best(); isa++). */
#define FOR_EACH_ISA(isa) for (enum isa isa = ISA_PORTABLE; isa <= isa_best(); isa++)

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

#endif
