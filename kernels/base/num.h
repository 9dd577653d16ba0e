/* kernels/base/num.h - integer and floating-point helpers for sizes and seconds. */
#ifndef KERNELS_BASE_NUM_H
#define KERNELS_BASE_NUM_H

#include <stdint.h>

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline int64_t round_up(int64_t a, int64_t b)
{
    return ceil_div(a, b) * b;
}

static inline int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline double max_d(double a, double b)
{
    return a > b ? a : b;
}

static inline double min_d(double a, double b)
{
    return a < b ? a : b;
}

#endif
