/* bench/peak_avx512.c - see peak.h: vdpbf16ps under bf16 and int8, fused multiply-adds under f32.
 */
#include "bench/peak.h"

#ifdef __AVX512F__
#include <immintrin.h>

int64_t peak_avx512(enum compute compute, int64_t rounds)
{
    __m512 sum[PEAK_CHAINS], x = _mm512_set1_ps(0x1p-20f);
    __m512bh b = (__m512bh)_mm512_set1_epi16(0x3000);
#pragma GCC unroll 16
    for (int i = 0; i < PEAK_CHAINS; i++)
        sum[i] = _mm512_set1_ps((float)i); // the compiler would merge equal chains
    if (compute != COMPUTE_F32)
        for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 16
            for (int i = 0; i < PEAK_CHAINS; i++)
                sum[i] = _mm512_dpbf16_ps(sum[i], b, b);
    else
        for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 16
            for (int i = 0; i < PEAK_CHAINS; i++)
                sum[i] = _mm512_fmadd_ps(x, x, sum[i]);
#pragma GCC unroll 16
    for (int i = 1; i < PEAK_CHAINS; i++)
        sum[0] = _mm512_add_ps(sum[0], sum[i]);
    volatile float sink = _mm512_reduce_add_ps(sum[0]);
    (void)sink;
    return rounds * PEAK_CHAINS * (compute != COMPUTE_F32 ? 64 : 32);
}
#else
int64_t peak_avx512(enum compute compute, int64_t rounds)
{
    return peak_portable(compute, rounds);
}
#endif
