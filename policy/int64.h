/* policy/int64.h - arithmetic of sizes. */
#ifndef POLICY_INT64_H
#define POLICY_INT64_H

#include <stdint.h>

static inline int64_t ceil_div64(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* n, rounded up to a multiple. */
static inline int64_t align64(int64_t n, int64_t to)
{
    return ceil_div64(n, to) * to;
}

static inline int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

#endif
