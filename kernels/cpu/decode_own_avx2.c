/* kernels/cpu/decode_own_avx2.c - q8, q4 and bf12 panels to f32 columns.
 *
 * Owns: three decoders, eight rows at a time. Refuses: bf16 pairs, which AVX2 does not multiply.
 * Products and sums are rounded separately, as the formats are defined. */
#include "kernels/cpu/decode_own.h"

#ifdef __AVX2__
#include <immintrin.h>
#include <string.h>

#define LANES 8

/* Byte j of every dword as f32, minus the bias. */
static inline __m256 byte_to_f32(__m256i quads, int j, int mask, int bias)
{
    __m256i code = _mm256_srlv_epi32(quads, _mm256_set1_epi32(8 * j));
    code = _mm256_and_si256(code, _mm256_set1_epi32(mask));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(code, _mm256_set1_epi32(bias)));
}

void decode_q8_f32_avx2(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, float *out)
{
    (void)k;
    for (int64_t i = k0; i < k1; i++, out += PANEL_ROWS) {
        const uint8_t *group = panel + i / OWN_GROUP * Q8_GROUP_BYTES;
        const uint8_t *codes = group + Q8_HEAD_BYTES + i % OWN_GROUP / 4 * PANEL_ROWS * 4;
        for (int r = 0; r < PANEL_ROWS; r += LANES) {
            const __m256i quads =
                _mm256_loadu_si256((const __m256i *)(const void *)(codes + r * 4));
            const __m256 scale = _mm256_loadu_ps((const float *)(const void *)(group + r * 4));
            _mm256_storeu_ps(out + r,
                             _mm256_mul_ps(byte_to_f32(quads, (int)(i % 4), 255, Q8_BIAS), scale));
        }
    }
}

static inline __m256 f16_at(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

void decode_q4_f32_avx2(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, float *out)
{
    (void)k;
    for (int64_t i = k0; i < k1; i++, out += PANEL_ROWS) {
        const uint8_t *group = panel + i / OWN_GROUP * Q4_GROUP_BYTES;
        const uint8_t *codes = group + Q4_HEAD_BYTES + i % OWN_GROUP / 4 * PANEL_ROWS * 2;
        for (int r = 0; r < PANEL_ROWS; r += LANES) {
            __m256i quads = _mm256_loadu_si256((const __m256i *)(const void *)(codes + r % 16 * 4));
            if (r >= 16)
                quads = _mm256_srli_epi32(quads, 4);
            const __m256 product =
                _mm256_mul_ps(byte_to_f32(quads, (int)(i % 4), 15, 0), f16_at(group + r * 2));
            _mm256_storeu_ps(out + r,
                             _mm256_add_ps(product, f16_at(group + PANEL_ROWS * 2 + r * 2)));
        }
    }
}

/* Decodes the two columns of one pair of k; 32 bytes of the plane are half of each 16 rows. */
static inline void bf12_columns(__m256i table_high, __m256i table_low, const uint8_t *plane,
                                const uint8_t *indices, int shift, uint16_t *pairs)
{
    const __m256i sign = _mm256_set1_epi8((char)0x80);
    for (int half = 0; half < 2; half++) {
        const __m256i rest = _mm256_loadu_si256((const __m256i *)(const void *)(plane + half * 32));
        __m256i at = _mm256_loadu_si256((const __m256i *)(const void *)(indices + half * 32));
        at =
            _mm256_and_si256(_mm256_srlv_epi32(at, _mm256_set1_epi32(shift)), _mm256_set1_epi8(15));
        const __m256i high =
            _mm256_or_si256(_mm256_shuffle_epi8(table_high, at), _mm256_and_si256(rest, sign));
        const __m256i low =
            _mm256_or_si256(_mm256_shuffle_epi8(table_low, at), _mm256_andnot_si256(sign, rest));
        uint16_t *to = pairs + half * 16;
        _mm256_storeu_si256((__m256i *)(void *)to, _mm256_unpacklo_epi8(low, high));
        _mm256_storeu_si256((__m256i *)(void *)(to + 32), _mm256_unpackhi_epi8(low, high));
    }
}

/* Decodes columns i .. i + n (n <= 4) to f32, patches included. */
static void bf12_quad(const uint8_t *panel, int64_t k, int64_t i, int64_t n, __m256i table_high,
                      __m256i table_low, float *out)
{
    uint16_t pairs[4 * PANEL_ROWS];
    const uint8_t *unit = panel + bf12_head_bytes(k) + i / 4 * BF12_UNIT;
    for (int64_t j = 0; j < n; j += 2) {
        const int second = (int)((i + j) / 2 % 2);
        bf12_columns(table_high, table_low, unit + second * 64, unit + 128, 4 * second,
                     pairs + j * PANEL_ROWS);
    }
    bf12_patch(panel, k, i, i + n, pairs);
    for (int64_t j = 0; j < n; j++)
        for (int r = 0; r < PANEL_ROWS; r += LANES) {
            const uint16_t *from = pairs + (j / 2 * PANEL_ROWS + r) * 2;
            const __m256i words = _mm256_loadu_si256((const __m256i *)(const void *)from);
            const __m256i bits = j % 2 != 0
                                     ? _mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000u))
                                     : _mm256_slli_epi32(words, 16);
            _mm256_storeu_ps(out + j * PANEL_ROWS + r, _mm256_castsi256_ps(bits));
        }
}

void decode_bf12_f32_avx2(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, float *out)
{
    uint8_t high[16] = {0}, low[16] = {0};
    if (k0 >= k1)
        return;
    for (int i = 0; i < BF12_PATCH; i++) {
        high[i] = panel[i] >> 1;
        low[i] = (uint8_t)(panel[i] << 7);
    }
    const __m256i table_high =
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)high));
    const __m256i table_low =
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)low));
    for (int64_t i = k0, next; i < k1; i = next) {
        next = min_i64(i / 4 * 4 + 4, k1);
        bf12_quad(panel, k, i, next - i, table_high, table_low, out + (i - k0) * PANEL_ROWS);
    }
}
#endif
