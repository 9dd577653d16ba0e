/* kernels/cpu/decode_avx512.c - see decode.h.
 *
 * Owns: the table of AVX-512 decoders, the plain formats and GGUF's blocks (dtype_columns.h).
 * A newcomer would miss: a scale times a code is exact in f32 for every GGUF format, so a fused
 * multiply-add rounds as the definition's product and sum do; and none of the results is a denormal
 * f32, which vcvtne2ps2bf16 would lose. A code of 4 bits is not converted but looked up: vpermps
 * reads only the low 4 bits of its index, so the codes above need no mask. */
#include "kernels/cpu/decode.h"
#include "kernels/cpu/decode_own.h"
#include "kernels/dtype_columns.h"

#include <string.h>

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

/* ---- GGUF's blocks ---- */

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

/* Scales and minima of the lanes: 8 rows per vector, each twice. */
struct lane_scales {
    __m512 d[4], m[4];
};

INLINE __m512 lanes_f16(const uint8_t *p)
{
    const __m128i h = _mm_loadu_si128((const void *)p);
    return _mm512_cvtph_ps(_mm256_set_m128i(_mm_unpackhi_epi16(h, h), _mm_unpacklo_epi16(h, h)));
}

INLINE __m128i lanes_u8(const uint8_t *p)
{
    const __m128i b = _mm_loadl_epi64((const void *)p);
    return _mm_unpacklo_epi8(b, b);
}

/* The f16 scales and minima of a column. */
INLINE void column_scales(const uint8_t *column, int min_at, struct lane_scales *s)
{
    UNROLL
    for (int g = 0; g < 4; g++) {
        s->d[g] = lanes_f16(column + 16 * g);
        s->m[g] = min_at ? lanes_f16(column + min_at + 16 * g) : _mm512_setzero_ps();
    }
}

/* q4_k, q5_k: those of sub-block i; the sign of the minimum is turned. */
INLINE void k_scales(const uint8_t *scales, int i, const struct lane_scales *all,
                     struct lane_scales *s)
{
    const __m256i low6 = _mm256_set1_epi8(63), low4 = _mm256_set1_epi8(15);
    const __m256i at4 = _mm256_set1_epi8(0x30);
    const uint8_t *p = scales + (i & 3) * PANEL_ROWS;
    const __m256i a = _mm256_loadu_si256((const void *)p);
    const __m256i b = _mm256_loadu_si256((const void *)(p + 4 * PANEL_ROWS));
    const __m256i c = _mm256_loadu_si256((const void *)(p + 8 * PANEL_ROWS));
    __m256i scale = _mm256_and_si256(a, low6), min = _mm256_and_si256(b, low6);
    if (i >= 4) {
        const __m256i a_up = _mm256_and_si256(_mm256_srli_epi16(a, 2), at4);
        const __m256i b_up = _mm256_and_si256(_mm256_srli_epi16(b, 2), at4);
        scale = _mm256_or_si256(_mm256_and_si256(c, low4), a_up);
        min = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(c, 4), low4), b_up);
    }
    uint8_t bytes[2][PANEL_ROWS];
    _mm256_storeu_si256((void *)bytes[0], scale);
    _mm256_storeu_si256((void *)bytes[1], min);
    UNROLL
    for (int g = 0; g < 4; g++) {
        const __m512i d = _mm512_cvtepu8_epi32(lanes_u8(bytes[0] + 8 * g));
        const __m512i m = _mm512_cvtepu8_epi32(lanes_u8(bytes[1] + 8 * g));
        s->d[g] = _mm512_mul_ps(all->d[g], _mm512_cvtepi32_ps(d));
        s->m[g] =
            _mm512_mul_ps(_mm512_sub_ps(_mm512_setzero_ps(), all->m[g]), _mm512_cvtepi32_ps(m));
    }
}

/* q6_k: those of slice i. */
INLINE void int8_scales(const uint8_t *scales, int i, const struct lane_scales *all,
                        struct lane_scales *s)
{
    UNROLL
    for (int g = 0; g < 4; g++) {
        const __m512i d = _mm512_cvtepi8_epi32(lanes_u8(scales + i * PANEL_ROWS + 8 * g));
        s->d[g] = _mm512_mul_ps(all->d[g], _mm512_cvtepi32_ps(d));
    }
}

/* Codes of 16 lanes in one slice: eight times 4 bits, and what stands above them. */
struct lane_codes {
    __m512i low, high;
    const uint8_t *bytes; // q8_0
};

INLINE struct lane_codes codes_at(int bits, const uint8_t *codes, const uint8_t *high, int group)
{
    struct lane_codes c = {.bytes = codes + 16 * group};
    if (bits < 8)
        c.low = _mm512_loadu_si512(codes + 64 * group);
    if (bits == 5)
        c.high = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(high + 16 * group)));
    if (bits == 6)
        c.high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(high + 32 * group)));
    return c;
}

/* a where the mask is set, else b. */
INLINE __m512i bits_select(__m512i mask, __m512i a, __m512i b)
{
    return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
}

/* Number i of 8 of each lane. */
INLINE __m512 lane_numbers(int bits, int bias, int has_min, const struct lane_codes *c, int i,
                           __m512 d, __m512 m)
{
    const __m512 table =
        _mm512_sub_ps(_mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                      _mm512_set1_ps((float)bias));
    const __m512i low4 = _mm512_set1_epi32(15);
    const __m512i low = bits < 8 ? _mm512_srli_epi32(c->low, 4 * (unsigned)i) : low4;
    __m512 x;
    if (bits == 4) {
        x = _mm512_permutexvar_ps(low, table);
    } else if (bits == 5) {
        const __m512i high = i <= 4 ? _mm512_slli_epi32(c->high, (unsigned)(4 - i))
                                    : _mm512_srli_epi32(c->high, (unsigned)(i - 4));
        x = _mm512_permutex2var_ps(table, bits_select(low4, low, high),
                                   _mm512_add_ps(table, _mm512_set1_ps(16)));
    } else if (bits == 6) {
        const __m512i high = i <= 2 ? _mm512_slli_epi32(c->high, (unsigned)(4 - 2 * i))
                                    : _mm512_srli_epi32(c->high, (unsigned)(2 * i - 4));
        const __m512i code = bits_select(low4, low, high);
        // 2^23 + code, then less 2^23 and the bias: exact, and 0 is +0
        const __m512i sum = _mm512_ternarylogic_epi32(code, _mm512_set1_epi32(63),
                                                      _mm512_set1_epi32(0x4b000000), 0xea);
        x = _mm512_sub_ps(_mm512_castsi512_ps(sum), _mm512_set1_ps(0x1p23f + (float)bias));
    } else {
        const __m128i b = _mm_loadu_si128((const void *)(c->bytes + i * COLUMN_LANES));
        x = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b));
    }
    return has_min ? _mm512_fmadd_ps(x, d, m) : _mm512_mul_ps(x, d);
}

/* A slice, 16 numbers of 32 rows, to pairs of bf16 or to columns of f32. */
INLINE void slice_decode(int bits, int bias, int has_min, const uint8_t *codes, const uint8_t *high,
                         const struct lane_scales *s, uint16_t *bf16, float *f32)
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
            __m512 x = lane_numbers(bits, bias, has_min, &a, i, s->d[2 * c], s->m[2 * c]);
            __m512 y = lane_numbers(bits, bias, has_min, &b, i, s->d[2 * c + 1], s->m[2 * c + 1]);
            if (bf16) {
                _mm512_storeu_si512(bf16 + i * COLUMN_LANES + 32 * c,
                                    (__m512i)_mm512_cvtne2ps_pbh(y, x));
            } else {
                float *to = f32 + i * COLUMN_LANES + 16 * c;
                _mm512_storeu_ps(to, _mm512_permutex2var_ps(x, even, y));
                _mm512_storeu_ps(to + PANEL_ROWS, _mm512_permutex2var_ps(x, odd, y));
            }
        }
    }
}

/* One of bf16, f32 is given; all but pointers and k0, k1 are constants where this is inlined. */
INLINE void columns(int block, int bits, int bias, int min_at, int scales_at, int high_at,
                    int codes_start, const uint8_t *column, int64_t k0, int64_t k1, uint16_t *bf16,
                    float *f32)
{
    const int n_slices = block / COLUMN_SLICE;
    const int64_t column_bytes =
        codes_start + (int64_t)n_slices * COLUMN_LANES * (bits == 8 ? 8 : 4);
    column += k0 / block * column_bytes;
    for (int64_t k = k0; k < k1; k += block, column += column_bytes) {
        struct lane_scales all, s;
        column_scales(column, min_at, &all);
        s = all;
        for (int i = 0; i < n_slices; i++) {
            const int at = i * COLUMN_LANES;
            if (bits == 6)
                int8_scales(column + scales_at, i, &all, &s);
            else if (scales_at && i % 2 == 0)
                k_scales(column + scales_at, i / 2, &all, &s);
            slice_decode(bits, bias, min_at != 0, column + codes_start + at * (bits == 8 ? 8 : 4),
                         column + high_at + at * (bits - 4 > 1 ? 2 : 1), &s, bf16, f32);
            if (bf16)
                bf16 += COLUMN_SLICE * PANEL_ROWS;
            else
                f32 += COLUMN_SLICE * PANEL_ROWS;
        }
    }
}

#define COLUMN_DECODERS(NAME, name, block, bits, bias, min_at, scales_at, high_at, codes_at)       \
    static void name##_bf16(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1,               \
                            uint16_t *out)                                                         \
    {                                                                                              \
        (void)k;                                                                                   \
        columns(block, bits, bias, min_at, scales_at, high_at, codes_at, panel, k0, k1, out,       \
                NULL);                                                                             \
    }                                                                                              \
    static void name##_f32(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, float *out)    \
    {                                                                                              \
        (void)k;                                                                                   \
        columns(block, bits, bias, min_at, scales_at, high_at, codes_at, panel, k0, k1, NULL,      \
                out);                                                                              \
    }
COLUMN_FORMATS(COLUMN_DECODERS)

#define COLUMN_ROW(NAME, name, ...) [DTYPE_##NAME] = {name##_bf16, name##_f32},
const struct panel_decoder cpu_decoders_avx512[N_DTYPES] = {
    [DTYPE_F32] = {f32_bf16, NULL},
    [DTYPE_F16] = {f16_bf16, f16_f32},
    [DTYPE_BF16] = {NULL, bf16_f32},
    [DTYPE_Q8] = {decode_q8_bf16_avx512, decode_q8_f32_avx2},
    [DTYPE_Q4] = {decode_q4_bf16_avx512, decode_q4_f32_avx2},
    [DTYPE_BF12] = {decode_bf12_bf16_avx512, decode_bf12_f32_avx2},
    COLUMN_FORMATS(COLUMN_ROW)};
#else
const struct panel_decoder cpu_decoders_avx512[N_DTYPES] = {{0}};
#endif
