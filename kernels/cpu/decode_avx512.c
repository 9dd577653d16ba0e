/* kernels/cpu/decode_avx512.c - see decode.h.
 *
 * Owns: the table of AVX-512 decoders, and the plain formats. */
#include "kernels/cpu/decode.h"

#ifdef __AVX512BF16__
#include <immintrin.h>

/* To nearest even in the upper halves; unlike vcvtneps2bf16 this keeps denormals. */
static inline __m512i round_high(__m512i x)
{
    const __m512i lowest = _mm512_and_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1));
    const __m512 f = _mm512_castsi512_ps(x);
    const __mmask16 nan = _mm512_cmp_ps_mask(f, f, _CMP_UNORD_Q);
    __m512i y = _mm512_add_epi32(x, _mm512_add_epi32(lowest, _mm512_set1_epi32(0x7fff)));
    return _mm512_mask_or_epi32(y, nan, x, _mm512_set1_epi32(0x400000));
}

static void f32_bf16(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, uint16_t *out)
{
    const __m512i high = _mm512_set1_epi32((int)0xffff0000u);
    (void)k;
    panel += k0 * PANEL_ROWS * 4;
    for (int64_t i = k0; i < k1; i += 2, panel += 2 * PANEL_ROWS * 4)
        for (int r = 0; r < PANEL_ROWS; r += 16, out += 32) {
            __m512i even = round_high(_mm512_loadu_si512(panel + 4 * r)), odd = {0};
            if (i + 1 < k1)
                odd = round_high(_mm512_loadu_si512(panel + 4 * (PANEL_ROWS + r)));
            _mm512_storeu_si512(
                out, _mm512_or_si512(_mm512_srli_epi32(even, 16), _mm512_and_si512(odd, high)));
        }
}

/* An f16 is never a denormal f32, so vcvtne2ps2bf16 rounds as it should. */
static void f16_bf16(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, uint16_t *out)
{
    static const uint16_t order[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                       21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                       11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i pairs = _mm512_loadu_si512(order);
    (void)k;
    panel += k0 * PANEL_ROWS * 2;
    for (int64_t i = k0; i < k1; i += 2, panel += 2 * PANEL_ROWS * 2)
        for (int r = 0; r < PANEL_ROWS; r += 16, out += 32) {
            const uint8_t *p = panel + 2 * r;
            __m512 even = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)), odd = {0};
            if (i + 1 < k1)
                odd = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(p + 2 * PANEL_ROWS)));
            __m512i halves = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
            _mm512_storeu_si512(out, _mm512_permutexvar_epi16(pairs, halves));
        }
}

static void f16_f32(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, float *out)
{
    (void)k;
    panel += k0 * PANEL_ROWS * 2;
    for (int64_t i = 0; i < (k1 - k0) * PANEL_ROWS; i += 16)
        _mm512_storeu_ps(out + i,
                         _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(panel + 2 * i))));
}

/* [k / 2][32][2] -> [k][32]: a bf16 is the upper half of its f32. */
static void bf16_f32(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, float *out)
{
    const __m512i high = _mm512_set1_epi32((int)0xffff0000u);
    (void)k;
    for (int64_t i = k0; i < k1; i += 2, out += 2 * PANEL_ROWS)
        for (int r = 0; r < PANEL_ROWS; r += 16) {
            __m512i w = _mm512_loadu_si512(panel + (i * PANEL_ROWS + 2 * r) * 2);
            _mm512_storeu_si512(out + r, _mm512_slli_epi32(w, 16));
            if (i + 1 < k1)
                _mm512_storeu_si512(out + PANEL_ROWS + r, _mm512_and_si512(w, high));
        }
}

const struct panel_decoder cpu_decoders_avx512[N_DTYPES] = {
    [DTYPE_F32] = {f32_bf16, NULL},
    [DTYPE_F16] = {f16_bf16, f16_f32},
    [DTYPE_BF16] = {NULL, bf16_f32},
};
#else
const struct panel_decoder cpu_decoders_avx512[N_DTYPES] = {{0}};
#endif
