/* bench/peak_avx2.c - see peak.h. AVX2 has no bf16 instruction: both formats are fused
 * multiply-adds. */
#include "bench/peak.h"

#ifdef __AVX2__
#include <immintrin.h>

#define CHAINS 12 // of 16 registers

int64_t peak_avx2(enum compute compute, int64_t rounds)
{
    (void)compute;
    __m256 sum[CHAINS], x = _mm256_set1_ps(0x1p-20f);
#pragma GCC unroll 16
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm256_set1_ps((float)i); // the compiler would merge equal chains
    for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++)
            sum[i] = _mm256_fmadd_ps(x, x, sum[i]);
#pragma GCC unroll 16
    for (int i = 1; i < CHAINS; i++)
        sum[0] = _mm256_add_ps(sum[0], sum[i]);
    volatile float sink = sum[0][0];
    (void)sink;
    return rounds * CHAINS * 16;
}
#else
int64_t peak_avx2(enum compute compute, int64_t rounds)
{
    return peak_portable(compute, rounds);
}
#endif
