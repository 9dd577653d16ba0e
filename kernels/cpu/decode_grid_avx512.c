/* kernels/cpu/decode_grid_avx512.c - see decode_grid.h: sixteen rows at a time. vcvtne2ps2bf16
 * flushes denormal f32, which no number is: the least d is 2^-24. */
#ifdef __AVX512BF16__
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

#define LANES 16
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef float floats __attribute__((vector_size(4 * LANES)));
#define LANE_NUMBERS ((words){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})

INLINE words words_load(const uint8_t *p)
{
    return (words)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
}
INLINE words points_at(const uint16_t *grid, words index)
{
    return (words)_mm512_i32gather_epi32((__m512i)index, grid, 2);
}
INLINE floats floats_of(words w)
{
    return (floats)_mm512_cvtepi32_ps((__m512i)w);
}
INLINE floats floats_of_f16(words w)
{
    return (floats)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)w));
}
INLINE floats pick(words index, floats from)
{
    return (floats)_mm512_permutexvar_ps((__m512i)index, (__m512)from);
}
/* The bf16 of the even numbers beside those of the odd ones. */
INLINE void pairs_store(uint8_t *out, floats even, floats odd)
{
    static const uint16_t order[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                       21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                       11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(_mm512_loadu_si512(order), halves));
}
#define PAIRS_STORE(out, even, odd) pairs_store(out, even, odd)

#define GRID_WORD            words
#define GRID_FN              INLINE
#define GRID_LOAD(p, stride) ((void)(stride), words_load(p))
#define GRID_AT(name, index) points_at(grid_##name, index)
#include "kernels/cpu/decode_grid.h"
#include "kernels/cpu/decode_grid.inc"

#define DECODERS(NAME, name, bytes, ...)                                                           \
    void decode_##name##_bf16_avx512(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1,      \
                                     uint16_t *out)                                                \
    {                                                                                              \
        (void)k;                                                                                   \
        grid_decode(DTYPE_##NAME, bytes, panel, k0, k1, DTYPE_BF16, (uint8_t *)out);               \
    }                                                                                              \
    void decode_##name##_f32_avx512(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1,       \
                                    float *out)                                                    \
    {                                                                                              \
        (void)k;                                                                                   \
        grid_decode(DTYPE_##NAME, bytes, panel, k0, k1, DTYPE_F32, (uint8_t *)out);                \
    }
GRID_FORMATS(DECODERS)
#endif
