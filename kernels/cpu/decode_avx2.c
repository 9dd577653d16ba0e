/* kernels/cpu/decode_avx2.c - see decode.h.
 *
 * Owns: the table of AVX2 decoders. AVX2 multiplies f32 only, so no row decodes to bf16. */
#include "kernels/cpu/decode.h"
#include "kernels/cpu/decode_grid.h"
#include "kernels/cpu/decode_own.h"

#ifdef __AVX2__
#include <immintrin.h>

/* [k / 2][32][2] -> [k][32]: a bf16 is the upper half of its f32. */
static void bf16_f32(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, float *out)
{
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    (void)k;
    for (int64_t i = k0; i < k1; i += 2, out += 2 * PANEL_ROWS)
        for (int r = 0; r < PANEL_ROWS; r += 8) {
            __m256i w = _mm256_loadu_si256((const void *)(panel + (i * PANEL_ROWS + 2 * r) * 2));
            _mm256_storeu_ps(out + r, _mm256_castsi256_ps(_mm256_slli_epi32(w, 16)));
            if (i + 1 < k1)
                _mm256_storeu_ps(out + PANEL_ROWS + r,
                                 _mm256_castsi256_ps(_mm256_and_si256(w, high)));
        }
}

static void f16_f32(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, float *out)
{
    (void)k;
    panel += k0 * PANEL_ROWS * 2;
    for (int64_t i = 0; i < (k1 - k0) * PANEL_ROWS; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(panel + 2 * i))));
}

#define GRID_ROW(NAME, name, ...) [DTYPE_##NAME] = {NULL, decode_##name##_f32_avx2},
const struct panel_decoder cpu_decoders_avx2[N_DTYPES] = {
    [DTYPE_F16] = {NULL, f16_f32},
    [DTYPE_BF16] = {NULL, bf16_f32},
    [DTYPE_Q8] = {NULL, decode_q8_f32_avx2},
    [DTYPE_Q4] = {NULL, decode_q4_f32_avx2},
    [DTYPE_BF12] = {NULL, decode_bf12_f32_avx2},
    GRID_FORMATS(GRID_ROW)};
#else
const struct panel_decoder cpu_decoders_avx2[N_DTYPES] = {{0}};
#endif
