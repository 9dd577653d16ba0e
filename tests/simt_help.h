/* tests/simt_help.h - what the tests of CUDA kernels share: operands in the shim's device memory.
 */
#ifndef TESTS_SIMT_HELP_H
#define TESTS_SIMT_HELP_H

#include "kernels/cuda/cuda.h"
#include "tests/ops_help.h"
#include "tests/simt/simt.h"

/* Starts anew: no device memory, no error, this order of threads (simt_order). */
static inline void device_begin(uint64_t seed)
{
    simt_clear();
    simt_free_all();
    simt_order(seed);
}

static inline void assert_no_error(const char *what)
{
    if (simt_error())
        fail_msg("%s: %s", what, simt_error());
}

/* n products of a weight against the references. What a tensor core of silicon makes of the last
 * bits is its own: within a bound, and the count of those that are as tests/simt/mma.c has them. */
static inline void assert_products(enum weight_layout layout, const float *got, const float *want,
                                   int64_t n, const char *what)
{
#ifdef TEST_ON_DEVICE
    if (layout == WEIGHT_ROWS) {
        int64_t n_same = 0;
        for (int64_t i = 0; i < n; i++)
            n_same += memcmp(&got[i], &want[i], 4) == 0;
        assert_close(got, want, n, 1e-3, what);
        if (n_same < n)
            print_message("%s: %lld of %lld have the bits of the model\n", what, (long long)n_same,
                          (long long)n);
        return;
    }
#endif
    (void)layout;
    assert_same_bits(got, want, n * 4, what);
}

/* What stands at p in device memory, which has to have been written. The caller frees it. */
static inline void *device_read(const void *p, int64_t bytes)
{
    void *to = take(bytes);
    simt_get(to, p, bytes);
    return to;
}

/* m rows of n numbers, each an output, in a copy of `from` [m, stride]: what stood there is not
 * one. */
static inline float *device_output(const float *from, int m, int n, int64_t stride)
{
    float *p = simt_of(from, m * stride * 4);
    for (int i = 0; i < m; i++)
        simt_forget(p + i * stride, (int64_t)n * 4);
    return p;
}

/* Compares numbers at p in device memory with what was wanted, which it frees, byte by byte: but a
 * NaN is as good as another, for devices make other ones than CPUs. */
static inline void assert_device(const float *p, float *want, int64_t bytes, const char *what)
{
    float *got = device_read(p, bytes);
    assert_no_error(what);
    for (int64_t i = 0; i < bytes / 4; i++)
        if (isnan(got[i]) && isnan(want[i]))
            got[i] = want[i];
    assert_same_bits(got, want, bytes, what);
    free(got);
    free(want);
}

#endif
