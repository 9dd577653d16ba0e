/* kernels/cpu/decode_own_avx512.c - q8, q4 and bf12 panels to bf16 pairs.
 *
 * Owns: three decoders that keep up with memory. A q8 group with a scale that is zero, negative,
 * tiny or huge is decoded portably: the conversion to bf16 flushes denormals, and the fused form
 * needs 128 * scale to be finite.
 * While numbers are f32, lanes hold four numbers (a quad) of one row, so that the conversion to
 * bf16 already puts pairs side by side; one permutation of dwords then sorts the pairs by k. */
#include "kernels/cpu/decode_own.h"

#ifdef __AVX512BF16__
#include <immintrin.h>
#include <string.h>

#define PAIR_ROW   (2 * PANEL_ROWS) // 16-bit words of one pair of k
#define GROUP_ROWS (OWN_GROUP / 2)

#define INLINE static inline __attribute__((always_inline))

struct chunk_scales {
    __m512 scale[8], add[8]; // rows 4c..4c+3, four times each, for chunk c of 16 codes
};

/* Spreads scale and add of 16 rows to four chunks from c on. */
INLINE void spread(struct chunk_scales *s, int c, __m512 scale, __m512 add)
{
    const __m512i four = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512i at = _mm512_add_epi32(four, _mm512_set1_epi32(4 * i));
        s->scale[c + i] = _mm512_permutexvar_ps(at, scale);
        s->add[c + i] = _mm512_permutexvar_ps(at, add);
    }
}

/* Writes four chunks of f32 (16 rows, one quad) as half of two rows of pairs. */
INLINE void put_quad(const __m512 x[4], uint16_t *out)
{
    const __m512i even =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    const __m512i a = (__m512i)_mm512_cvtne2ps_pbh(x[1], x[0]);
    const __m512i b = (__m512i)_mm512_cvtne2ps_pbh(x[3], x[2]);
    _mm512_storeu_si512(out, _mm512_permutex2var_epi32(a, even, b));
    _mm512_storeu_si512(out + PAIR_ROW, _mm512_permutex2var_epi32(a, odd, b));
}

INLINE __m512i codes_at(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* (code - 128) * scale as one fused step: 128 * scale is exact, so the result is rounded once, like
 * the product in the definition. */
static void q8_group(const uint8_t *group, uint16_t *out)
{
    struct chunk_scales s;
    const __m512 bias = _mm512_set1_ps(-Q8_BIAS);
    const __m512i low = _mm512_set1_epi32((127 - 100) << 23), high = _mm512_set1_epi32(227 << 23);
    unsigned plain = 0xffff;
    for (int half = 0; half < 2; half++) {
        const __m512 scale = _mm512_loadu_ps(group + half * 64);
        const __m512i bits = _mm512_castps_si512(scale);
        plain &= _mm512_cmpgt_epi32_mask(bits, low) & _mm512_cmplt_epi32_mask(bits, high);
        spread(&s, 4 * half, scale, _mm512_mul_ps(scale, bias));
    }
    if (plain != 0xffff) {
        float numbers[OWN_GROUP * PANEL_ROWS];
        own_decode_q8_group(group, numbers);
        for (int i = 0; i < OWN_GROUP; i++)
            for (int r = 0; r < PANEL_ROWS; r++)
                out[(i / 2 * PANEL_ROWS + r) * 2 + i % 2] =
                    f32_to_bf16(numbers[i * PANEL_ROWS + r]);
        return;
    }
    const uint8_t *codes = group + Q8_HEAD_BYTES;
    for (int quad = 0; quad < OWN_QUADS; quad++, codes += 128, out += 2 * PAIR_ROW)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            __m512 x[4];
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) {
                const __m512i u = codes_at(codes + half * 64 + c * 16);
                x[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(u), s.scale[4 * half + c],
                                       s.add[4 * half + c]);
            }
            put_quad(x, out + half * 32);
        }
}

/* code * scale is exact (4 and 11 bits), so the fused step rounds once, as in the definition.
 * vpermps reads only the lower four bits of its index, so codes need no mask. */
static void q4_group(const uint8_t *group, uint16_t *out)
{
    struct chunk_scales s;
    const __m512 number = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        const void *scale = group + half * 32, *min = group + PANEL_ROWS * 2 + half * 32;
        spread(&s, 4 * half, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)scale)),
               _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)min)));
    }
    const uint8_t *codes = group + Q4_HEAD_BYTES;
    for (int quad = 0; quad < OWN_QUADS; quad++, codes += 64, out += 2 * PAIR_ROW) {
        __m512 x[2][4];
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            const __m512i u = codes_at(codes + c * 16);
            x[0][c] = _mm512_fmadd_ps(_mm512_permutexvar_ps(u, number), s.scale[c], s.add[c]);
            x[1][c] = _mm512_fmadd_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(u, 4), number),
                                      s.scale[4 + c], s.add[4 + c]);
        }
        put_quad(x[0], out);
        put_quad(x[1], out + 32);
    }
}

typedef void group_fn(const uint8_t *group, uint16_t *out);

INLINE void decode_groups(group_fn *decode, int64_t group_bytes, const uint8_t *panel, int64_t k0,
                          int64_t k1, uint16_t *out)
{
    uint16_t whole[GROUP_ROWS * PAIR_ROW] __attribute__((aligned(64)));
    for (panel += k0 / OWN_GROUP * group_bytes; k0 + OWN_GROUP <= k1; k0 += OWN_GROUP) {
        decode(panel, out);
        panel += group_bytes;
        out += GROUP_ROWS * PAIR_ROW;
    }
    if (k0 == k1)
        return;
    decode(panel, whole);
    const int64_t n = k1 - k0, n_words = ceil_div(n, 2) * PAIR_ROW;
    for (int r = 0; r < PANEL_ROWS && n % 2 != 0; r++) // an odd k is followed by a zero
        whole[n_words - PAIR_ROW + 2 * r + 1] = 0;
    memcpy(out, whole, (size_t)n_words * sizeof *out);
}

void decode_q8_bf16_avx512(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, uint16_t *out)
{
    (void)k;
    decode_groups(q8_group, Q8_GROUP_BYTES, panel, k0, k1, out);
}

void decode_q4_bf16_avx512(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, uint16_t *out)
{
    (void)k;
    decode_groups(q4_group, Q4_GROUP_BYTES, panel, k0, k1, out);
}

struct bf12_tables {
    __m512i high, low; // of an exponent: its upper 7 bits; its last bit, as bit 7 of a byte
};

INLINE struct bf12_tables bf12_tables(const uint8_t *panel)
{
    uint8_t high[16] = {0}, low[16] = {0};
    for (int i = 0; i < BF12_PATCH; i++) {
        high[i] = panel[i] >> 1;
        low[i] = (uint8_t)(panel[i] << 7);
    }
    return (struct bf12_tables){
        _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)high)),
        _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)low))};
}

/* Decodes one plane with its indices (lower halves of bytes) to a row of pairs. */
INLINE void bf12_row(const struct bf12_tables *t, __m512i plane, __m512i indices, uint16_t *out)
{
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    indices = _mm512_and_si512(indices, _mm512_set1_epi8(15));
    // table | (plane & sign), table | (plane & ~sign)
    const __m512i high =
        _mm512_ternarylogic_epi32(_mm512_shuffle_epi8(t->high, indices), plane, sign, 0xf8);
    const __m512i low =
        _mm512_ternarylogic_epi32(_mm512_shuffle_epi8(t->low, indices), plane, sign, 0xf4);
    _mm512_storeu_si512(out, _mm512_unpacklo_epi8(low, high));
    _mm512_storeu_si512(out + 32, _mm512_unpackhi_epi8(low, high));
}

void decode_bf12_bf16_avx512(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, uint16_t *out)
{
    if (k0 >= k1)
        return;
    const struct bf12_tables t = bf12_tables(panel);
    const uint8_t *unit = panel + bf12_head_bytes(k) + k0 / 4 * BF12_UNIT;
    uint16_t *to = out;
    int64_t pair = k0 / 2, pair_end = ceil_div(k1, 2);
    if (pair % 2 != 0) {
        bf12_row(&t, _mm512_loadu_si512(unit + 64),
                 _mm512_srli_epi16(_mm512_loadu_si512(unit + 128), 4), to);
        unit += BF12_UNIT;
        to += PAIR_ROW;
        pair++;
    }
    for (; pair + 2 <= pair_end; pair += 2, unit += BF12_UNIT, to += 2 * PAIR_ROW) {
        const __m512i indices = _mm512_loadu_si512(unit + 128);
        bf12_row(&t, _mm512_loadu_si512(unit), indices, to);
        bf12_row(&t, _mm512_loadu_si512(unit + 64), _mm512_srli_epi16(indices, 4), to + PAIR_ROW);
    }
    if (pair < pair_end) {
        bf12_row(&t, _mm512_loadu_si512(unit), _mm512_loadu_si512(unit + 128), to);
        to += PAIR_ROW;
    }
    for (int r = 0; r < PANEL_ROWS && k1 % 2 != 0; r++) // an odd k is followed by a zero
        to[2 * r + 1 - PAIR_ROW] = 0;
    bf12_patch(panel, k, k0, k1, out);
}
#endif
