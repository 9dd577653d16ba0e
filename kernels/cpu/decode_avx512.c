/* kernels/cpu/decode_avx512.c - see decode.h.
 *
 * Owns: the table of AVX-512 decoders, with those of plain formats and of columns
 * (dtype_columns.h).
 * In formats with minima, scale * code is exact in f32, so a fused multiply-add rounds like the
 * definition's product and sum. vcvtne2ps2bf16 flushes denormal f32, so columns whose wide scales
 * may give one are decoded portably. Codes of up to 4 bits are not converted but looked up: vpermps
 * reads only the low 4 bits of its index, so higher bits need no mask (shorter codes repeat in the
 * table). */
#include "kernels/cpu/decode.h"
#include "kernels/cpu/decode_grid.h"
#include "kernels/cpu/decode_own.h"
#include "kernels/dtype_nf4.h"

#include <string.h>

#ifdef __AVX512BF16__
#include <immintrin.h>

/* Rounds to nearest even in the upper halves; keeps denormals, unlike vcvtneps2bf16. */
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

/* An f16 is never a denormal f32, so vcvtne2ps2bf16 rounds correctly. */
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

/* ---- columns ---- */

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

/* Scales and minima (or zeros) of the lanes: 8 rows per vector, each row twice. */
struct lane_scales {
    __m512 d[4], m[4];
};

INLINE __m512 lanes_f16(const uint8_t *p)
{
    const __m128i h = _mm_loadu_si128((const void *)p);
    return _mm512_cvtph_ps(_mm256_set_m128i(_mm_unpackhi_epi16(h, h), _mm_unpacklo_epi16(h, h)));
}

/* 16 numbers of bf16 as f32. */
INLINE __m512 bf16_widen(__m256i h)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

INLINE __m512 lanes_bf16(const uint8_t *p)
{
    const __m128i h = _mm_loadu_si128((const void *)p);
    return bf16_widen(_mm256_set_m128i(_mm_unpackhi_epi16(h, h), _mm_unpacklo_epi16(h, h)));
}

INLINE __m512 lanes_f32(const uint8_t *p)
{
    const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    return _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps((const void *)p)));
}

INLINE __m128i lanes_u8(const uint8_t *p)
{
    const __m128i b = _mm_loadl_epi64((const void *)p);
    return _mm_unpacklo_epi8(b, b);
}

/* 2^(e - 128) for e > 1. */
INLINE __m512 lanes_e8m0(const uint8_t *p)
{
    const __m512i e = _mm512_cvtepu8_epi32(lanes_u8(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23));
}

/* Reads scales and minima of a column. e4m3 codes are decoded divided by 256, so scales are *
 * 256. */
INLINE void column_scales(int kind, const uint8_t *column, int min_at, struct lane_scales *s)
{
    UNROLL
    for (int g = 0; g < 4; g++) {
        s->m[g] = _mm512_setzero_ps();
        if (kind == COLUMN_E8M0)
            s->d[g] = lanes_e8m0(column + 8 * g);
        else if (kind == COLUMN_BF16)
            s->d[g] = lanes_bf16(column + 16 * g);
        else if (columns_scale_is_wide(kind))
            s->d[g] = lanes_f32(column + 32 * g);
        else
            s->d[g] = lanes_f16(column + 16 * g);
        if (kind == COLUMN_E4M3)
            s->d[g] = _mm512_mul_ps(s->d[g], _mm512_set1_ps(256));
        if (columns_has_zero(kind))
            s->m[g] = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(lanes_u8(column + min_at + 8 * g)));
        else if (min_at)
            s->m[g] = lanes_f16(column + min_at + 16 * g);
    }
}

/* 1: no number of a column with wide scales is a denormal f32, and no scale is too large for this
 * arithmetic. The least nonzero factors are 1 (mxfp4, b4, i8), 2^-9 (e4m3), 2^-10
 * (nv4), 0.07 (nf4). */
INLINE int scales_are_plain(int kind, const uint8_t *column)
{
    if (kind == COLUMN_E8M0) {
        const __m256i e = _mm256_loadu_si256((const void *)column);
        const __m256i least = _mm256_max_epu8(e, _mm256_set1_epi8(2));
        return _mm256_movemask_epi8(_mm256_cmpeq_epi8(e, least)) == -1;
    }
    unsigned plain = 0xffff;
    for (int half = 0; half < 2; half++) {
        const __m512 all = kind == COLUMN_BF16
                               ? bf16_widen(_mm256_loadu_si256((const void *)(column + 32 * half)))
                               : _mm512_loadu_ps(column + 64 * half);
        const __m512 d = _mm512_abs_ps(all);
        const unsigned inside = _mm512_cmp_ps_mask(d, _mm512_set1_ps(0x1p-100f), _CMP_GE_OQ) &
                                _mm512_cmp_ps_mask(d, _mm512_set1_ps(0x1p100f), _CMP_LE_OQ);
        plain &= inside | _mm512_cmp_ps_mask(d, _mm512_setzero_ps(), _CMP_EQ_OQ);
    }
    return plain == 0xffff;
}

/* 16 numbers of e4m3, divided by 256. */
INLINE __m512 e4m3_to_f32_16(__m128i b)
{
    const __m256i w = _mm256_cvtepi8_epi16(b), most = _mm256_set1_epi16(0x3f80);
    const __m256i rest = _mm256_and_si256(_mm256_slli_epi16(w, 7), most);
    const __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(rest, most), _mm256_set1_epi16(0x4000));
    const __m256i sign = _mm256_and_si256(w, _mm256_set1_epi16((short)0x8000));
    return _mm512_cvtph_ps(_mm256_or_si256(_mm256_or_si256(rest, nan), sign));
}

/* e4m3_scaled() for the 16 lanes of 8 rows. */
INLINE __m512 lanes_e4m3_scaled(const uint8_t *p, __m512 factor)
{
    const __m512 scale = _mm512_mul_ps(e4m3_to_f32_16(lanes_u8(p)), _mm512_set1_ps(256));
    const __mmask16 divides = _mm512_cmp_ps_mask(factor, _mm512_setzero_ps(), _CMP_LT_OQ);
    const __m512 d = _mm512_mul_ps(scale, factor);
    return divides
               ? _mm512_mask_div_ps(d, divides, scale, _mm512_sub_ps(_mm512_setzero_ps(), factor))
               : d;
}

/* n <= 8 bits of each of 32 bytes, from bit `at` on. */
INLINE __m256i bits_of_bytes(const uint8_t *p, int at, int n)
{
    const __m256i b = _mm256_loadu_si256((const void *)p);
    return _mm256_and_si256(_mm256_srl_epi16(b, _mm_cvtsi32_si128(at)),
                            _mm256_set1_epi8((char)((1 << n) - 1)));
}

/* low | high << n. */
INLINE __m256i bits_join(__m256i low, __m256i high, int n)
{
    return _mm256_or_si256(low, _mm256_slli_epi16(high, n));
}

/* columns_part_scale() for 32 rows. */
INLINE void part_scales(int kind, const uint8_t *p, int s, __m256i *scale, __m256i *min)
{
    const int i = s / 2;
    const uint8_t *a = p + (i & 3) * PANEL_ROWS, *b = a + 4 * PANEL_ROWS, *c = b + 4 * PANEL_ROWS;
    *min = _mm256_setzero_si256();
    if (kind == COLUMN_NIBBLES) {
        *scale = bits_of_bytes(p + s * PANEL_ROWS, 0, 4);
        *min = bits_of_bytes(p + s * PANEL_ROWS, 4, 4);
    } else if (kind == COLUMN_SIX) {
        *scale = bits_join(bits_of_bytes(p + (s & 7) * PANEL_ROWS, s / 8 * 4, 4),
                           bits_of_bytes(p + (8 + (s & 3)) * PANEL_ROWS, s / 4 * 2, 2), 4);
        *scale = _mm256_sub_epi8(*scale, _mm256_set1_epi8(32));
    } else if (kind == COLUMN_XS) {
        *scale = bits_join(bits_of_bytes(p + (2 + i / 2) * PANEL_ROWS, i % 2 * 4, 4),
                           bits_of_bytes(p + i / 4 * PANEL_ROWS, i % 4 * 2, 2), 4);
        *scale = _mm256_sub_epi8(*scale, _mm256_set1_epi8(32));
    } else if (kind == COLUMN_K && i < 4) {
        *scale = bits_of_bytes(a, 0, 6);
        *min = bits_of_bytes(b, 0, 6);
    } else if (kind == COLUMN_K) {
        *scale = bits_join(bits_of_bytes(c, 0, 4), bits_of_bytes(a, 6, 2), 4);
        *min = bits_join(bits_of_bytes(c, 4, 4), bits_of_bytes(b, 6, 2), 4);
    } else { // q6_k
        *scale = _mm256_loadu_si256((const void *)(p + s * PANEL_ROWS));
    }
}

/* Scales and minima of slice i; minima are negated. */
INLINE void slice_scales(int kind, int has_min, const uint8_t *scales, int i,
                         const struct lane_scales *all, struct lane_scales *s)
{
    const __m512i sign = _mm512_set1_epi32((int)0x80000000u);
    uint8_t bytes[2][PANEL_ROWS];
    __m256i scale, min;
    if (kind == COLUMN_E2M1) {
        UNROLL
        for (int g = 0; g < 4; g++)
            s->d[g] = lanes_e4m3_scaled(scales + i * PANEL_ROWS + 8 * g, all->d[g]);
        return;
    }
    part_scales(kind, scales, i, &scale, &min);
    _mm256_storeu_si256((void *)bytes[0], scale);
    _mm256_storeu_si256((void *)bytes[1], min);
    UNROLL
    for (int g = 0; g < 4; g++) {
        const __m512i d = _mm512_cvtepi8_epi32(lanes_u8(bytes[0] + 8 * g));
        const __m512i m = _mm512_cvtepu8_epi32(lanes_u8(bytes[1] + 8 * g));
        s->d[g] = _mm512_mul_ps(all->d[g], _mm512_cvtepi32_ps(d));
        if (has_min) // -(min * m): -0 for a min of +0
            s->m[g] = _mm512_castsi512_ps(_mm512_xor_si512(
                sign, _mm512_castps_si512(_mm512_mul_ps(all->m[g], _mm512_cvtepi32_ps(m)))));
    }
}

/* Codes of 16 lanes in one slice: eight low parts of 2 or 4 bits, and the bits above them. */
struct lane_codes {
    __m512i low, high;
    const uint8_t *bytes; // 8-bit codes
};

/* n bytes (1, 2 or 4) per lane, widened to 32 bits. */
INLINE __m512i words_at(const uint8_t *p, int n)
{
    return n == 4   ? _mm512_loadu_si512(p)
           : n == 2 ? _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p))
                    : _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
}

INLINE struct lane_codes codes_at(int bits, const uint8_t *codes, const uint8_t *high, int group)
{
    const int low_bits = columns_low_bits(bits), high_bits = bits - low_bits;
    struct lane_codes c = {.bytes = codes + 16 * group};
    if (bits < 8)
        c.low = words_at(codes + 16 * low_bits * group, low_bits);
    if (high_bits)
        c.high = words_at(high + 16 * high_bits * group, high_bits);
    return c;
}

/* a where the mask is set, else b. */
INLINE __m512i bits_select(__m512i mask, __m512i a, __m512i b)
{
    return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
}

/* Shifts bit `at`, which may be negative, to bit 0. */
INLINE __m512i shift_right(__m512i x, int at)
{
    return at >= 0 ? _mm512_srli_epi32(x, (unsigned)at) : _mm512_slli_epi32(x, (unsigned)-at);
}

/* The numbers of codes of up to 4 bits; for 5 bits the numbers of codes below 16. */
INLINE __m512 table_of(int bits, int bias, int kind)
{
    if (kind == COLUMN_XS || kind == COLUMN_NL)
        return _mm512_loadu_ps((const float[16]){COLUMN_NL_NUMBERS});
    if (kind == COLUMN_E8M0)
        return _mm512_loadu_ps((const float[16]){COLUMN_MXFP4_NUMBERS});
    if (kind == COLUMN_NF4)
        return _mm512_loadu_ps((const float[16]){COLUMN_NF4_NUMBERS});
    if (kind == COLUMN_E2M1)
        return _mm512_loadu_ps((const float[16]){COLUMN_E2M1_NUMBERS});
    const __m512i number = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i code = _mm512_and_si512(number, _mm512_set1_epi32((1 << min_i64(bits, 4)) - 1));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(code, _mm512_set1_epi32(bias)));
}

/* 16 bytes of 8-bit codes: int8, bytes, or e4m3 divided by 256. */
INLINE __m512 bytes_to_f32(int kind, const uint8_t *p)
{
    const __m128i b = _mm_loadu_si128((const void *)p);
    if (kind == COLUMN_E4M3)
        return e4m3_to_f32_16(b);
    return _mm512_cvtepi32_ps(kind == COLUMN_BYTES ? _mm512_cvtepu8_epi32(b)
                                                   : _mm512_cvtepi8_epi32(b));
}

/* Number i of 8 of each lane. */
INLINE __m512 lane_numbers(int bits, int bias, int kind, int has_min, const struct lane_codes *c,
                           int i, __m512 d, __m512 m)
{
    const __m512 table = table_of(bits, bias, kind);
    const __m512i low4 = _mm512_set1_epi32(15), low2 = _mm512_set1_epi32(3);
    const __m512i low = bits < 8 ? shift_right(c->low, columns_low_bits(bits) * i) : low4;
    __m512 x;
    if (bits == 2 || bits == 4) {
        x = _mm512_permutexvar_ps(low, table);
    } else if (bits == 3) {
        x = _mm512_permutexvar_ps(bits_select(low2, low, shift_right(c->high, i - 2)), table);
    } else if (bits == 5) {
        x = _mm512_permutex2var_ps(table, bits_select(low4, low, shift_right(c->high, i - 4)),
                                   _mm512_add_ps(table, _mm512_set1_ps(16)));
    } else if (bits == 6) {
        const __m512i code = bits_select(low4, low, shift_right(c->high, 2 * i - 4));
        // 2^23 + code, then minus 2^23 and bias: exact, and 0 is +0
        const __m512i sum = _mm512_ternarylogic_epi32(code, _mm512_set1_epi32(63),
                                                      _mm512_set1_epi32(0x4b000000), 0xea);
        x = _mm512_sub_ps(_mm512_castsi512_ps(sum), _mm512_set1_ps(0x1p23f + (float)bias));
    } else {
        x = bytes_to_f32(kind, c->bytes + i * COLUMN_LANES);
    }
    if (columns_has_zero(kind))
        return _mm512_mul_ps(_mm512_sub_ps(x, m), d);
    return has_min ? _mm512_fmadd_ps(x, d, m) : _mm512_mul_ps(x, d);
}

/* Decodes a slice, 16 numbers of 32 rows, to pairs of bf16 or columns of f32. */
INLINE void slice_decode(int bits, int bias, int kind, int has_min, const uint8_t *codes,
                         const uint8_t *high, const struct lane_scales *s, enum dtype to, void *out)
{
    const __m512i even =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    UNROLL
    for (int c = 0; c < 2; c++) { // 16 rows
        const struct lane_codes a = codes_at(bits, codes, high, 2 * c);
        const struct lane_codes b = codes_at(bits, codes, high, 2 * c + 1);
        UNROLL
        for (int i = 0; i < 8; i++) {
            __m512 x = lane_numbers(bits, bias, kind, has_min, &a, i, s->d[2 * c], s->m[2 * c]);
            __m512 y =
                lane_numbers(bits, bias, kind, has_min, &b, i, s->d[2 * c + 1], s->m[2 * c + 1]);
            if (to == DTYPE_BF16) {
                _mm512_storeu_si512((uint16_t *)out + i * COLUMN_LANES + 32 * c,
                                    (__m512i)_mm512_cvtne2ps_pbh(y, x));
            } else {
                float *at = (float *)out + i * COLUMN_LANES + 16 * c;
                _mm512_storeu_ps(at, _mm512_permutex2var_ps(x, even, y));
                _mm512_storeu_ps(at + PANEL_ROWS, _mm512_permutex2var_ps(x, odd, y));
            }
        }
    }
}

/* Decodes one column to bf16 or f32; all arguments but pointers are compile-time constants. */
INLINE void column_decode(int block, int bits, int bias, int kind, int min_at, int scales_at,
                          int high_at, int codes_start, const uint8_t *column, enum dtype to,
                          uint8_t *out)
{
    const int scales_every = kind == COLUMN_K || kind == COLUMN_XS ? 2 : 1;      // slices
    const int low_bytes = columns_low_bits(bits), high_bytes = bits - low_bytes; // of a lane
    struct lane_scales all, s;
    column_scales(kind, column, min_at, &all);
    s = all;
    for (int i = 0; i < block / COLUMN_SLICE; i++) {
        const int at = i * COLUMN_LANES;
        if (scales_at && i % scales_every == 0)
            slice_scales(kind, min_at != 0, column + scales_at, i, &all, &s);
        slice_decode(bits, bias, kind, min_at != 0, column + codes_start + at * low_bytes,
                     column + high_at + at * high_bytes, &s, to,
                     out + i * COLUMN_SLICE * PANEL_ROWS * (to == DTYPE_BF16 ? 2 : 4));
    }
}

#define COLUMN_DECODERS(NAME, name, block, bits, bias, kind, min_at, scales_at, high_at, codes_at) \
    static void name##_bf16(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1,               \
                            uint16_t *out)                                                         \
    {                                                                                              \
        const int64_t bytes = codes_at + block / 2 * COLUMN_LANES * columns_low_bits(bits) / 8;    \
        const uint8_t *column = panel + k0 / block * bytes;                                        \
        for (; k0 < k1; k0 += block, column += bytes, out += block * PANEL_ROWS)                   \
            if (columns_scale_is_wide(kind) && !scales_are_plain(kind, column))                    \
                panel_decode_bf16(DTYPE_##NAME, panel, k, k0, k0 + block, out);                    \
            else                                                                                   \
                column_decode(block, bits, bias, kind, min_at, scales_at, high_at, codes_at,       \
                              column, DTYPE_BF16, (uint8_t *)out);                                 \
    }                                                                                              \
    static void name##_f32(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, float *out)    \
    {                                                                                              \
        const int64_t bytes = codes_at + block / 2 * COLUMN_LANES * columns_low_bits(bits) / 8;    \
        const uint8_t *column = panel + k0 / block * bytes;                                        \
        for (; k0 < k1; k0 += block, column += bytes, out += block * PANEL_ROWS)                   \
            if (columns_scale_is_wide(kind) && !scales_are_plain(kind, column))                    \
                panel_decode_f32(DTYPE_##NAME, panel, k, k0, k0 + block, out);                     \
            else                                                                                   \
                column_decode(block, bits, bias, kind, min_at, scales_at, high_at, codes_at,       \
                              column, DTYPE_F32, (uint8_t *)out);                                  \
    }
COLUMN_FORMATS(COLUMN_DECODERS)

static void nf4_s8_bf16(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, uint16_t *out)
{
    uint8_t column[NF4_PLAIN_BYTES] __attribute__((aligned(64)));
    (void)k;
    for (; k0 < k1; k0 += NF4_PART, out += NF4_PART * PANEL_ROWS) {
        nf4_plain_column(panel, k0, column);
        nf4_bf16(column, NF4_PART, 0, NF4_PART, out);
    }
}

static void nf4_s8_f32(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, float *out)
{
    uint8_t column[NF4_PLAIN_BYTES] __attribute__((aligned(64)));
    (void)k;
    for (; k0 < k1; k0 += NF4_PART, out += NF4_PART * PANEL_ROWS) {
        nf4_plain_column(panel, k0, column);
        nf4_f32(column, NF4_PART, 0, NF4_PART, out);
    }
}

#define GRID_ROW(NAME, name, ...)                                                                  \
    [DTYPE_##NAME] = {decode_##name##_bf16_avx512, decode_##name##_f32_avx512},
#define COLUMN_ROW(NAME, name, ...) [DTYPE_##NAME] = {name##_bf16, name##_f32},
const struct panel_decoder cpu_decoders_avx512[N_DTYPES] = {
    [DTYPE_F32] = {f32_bf16, NULL},
    [DTYPE_F16] = {f16_bf16, f16_f32},
    [DTYPE_BF16] = {NULL, bf16_f32},
    [DTYPE_Q8] = {decode_q8_bf16_avx512, decode_q8_f32_avx2},
    [DTYPE_Q4] = {decode_q4_bf16_avx512, decode_q4_f32_avx2},
    [DTYPE_BF12] = {decode_bf12_bf16_avx512, decode_bf12_f32_avx2},
    [DTYPE_NF4_S8] = {nf4_s8_bf16, nf4_s8_f32},
    COLUMN_FORMATS(COLUMN_ROW) GRID_FORMATS(GRID_ROW)};
#else
const struct panel_decoder cpu_decoders_avx512[N_DTYPES] = {{0}};
#endif
