/* kernels/cpu/decode_grid_avx2.c - see decode_grid.h: eight rows at a time, to f32. */
#ifdef __AVX2__
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

#define LANES 8
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef float floats __attribute__((vector_size(4 * LANES)));
#define LANE_NUMBERS ((words){0, 1, 2, 3, 4, 5, 6, 7})

INLINE words words_load(const uint8_t *p)
{
    return (words)_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
}
INLINE words points_at(const uint16_t *grid, words index)
{
    return (words)_mm256_i32gather_epi32((const void *)grid, (__m256i)index, 2);
}
INLINE floats floats_of(words w)
{
    return (floats)_mm256_cvtepi32_ps((__m256i)w);
}
INLINE floats floats_of_f16(words w)
{
    const __m256i packed = _mm256_packus_epi32((__m256i)w, (__m256i)w);
    return (floats)_mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 8)));
}
INLINE floats pick(words index, floats from)
{
    return (floats)_mm256_permutevar8x32_ps((__m256)from, (__m256i)index);
}
#define PAIRS_STORE(out, even, odd) ((void)0) // no row decodes to bf16: see decode_avx2.c

#define GRID_WORD            words
#define GRID_FN              INLINE
#define GRID_LOAD(p, stride) ((void)(stride), words_load(p))
#define GRID_AT(name, index) points_at(grid_##name, index)
#include "kernels/cpu/decode_grid.h"
#include "kernels/cpu/decode_grid.inc"

#define DECODER(NAME, name, bytes, ...)                                                            \
    void decode_##name##_f32_avx2(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1,         \
                                  float *out)                                                      \
    {                                                                                              \
        (void)k;                                                                                   \
        grid_decode(DTYPE_##NAME, bytes, panel, k0, k1, DTYPE_F32, (uint8_t *)out);                \
    }
GRID_FORMATS(DECODER)
#endif
