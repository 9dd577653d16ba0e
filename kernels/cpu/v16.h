/* kernels/cpu/v16.h - sixteen f32 lanes: one zmm, two ymm, or an array and fmaf.
 *
 * Owns: the same operations on three instruction sets, lane by lane the same bits, so that kernels
 * are written once. Refuses: anything whose rounding or order could differ between them.
 * The including file names its set first: #define CPU_ISA CPU_AVX512 (or CPU_AVX2, CPU_PORTABLE).
 * Compiler flags do not tell: with -march=native every file has all of them. */
#ifndef KERNELS_CPU_V16_H
#define KERNELS_CPU_V16_H

#include "kernels/math.h"

#include <string.h>

#define CPU_PORTABLE 0
#define CPU_AVX2     1
#define CPU_AVX512F  2 // AVX-512 without products of bf16 and of bytes
#define CPU_AVX512   3

#if CPU_ISA == CPU_AVX512
#define CPU_FN(name) cpu_##name##_avx512
#elif CPU_ISA == CPU_AVX512F
#define CPU_FN(name) cpu_##name##_avx512f
#elif CPU_ISA == CPU_AVX2
#define CPU_FN(name) cpu_##name##_avx2
#else
#define CPU_FN(name) cpu_##name##_portable
#endif

/* Sums stay in registers only if everything is inlined and loops over a tile's rows are unrolled.
 * Portable sums are in memory anyway, and plain calls there save minutes of compile time. */
#if CPU_ISA == CPU_PORTABLE
#define V16_FN static __attribute__((noinline, unused))
#define V16_UNROLL
#else
#define V16_FN     static inline __attribute__((always_inline, unused))
#define V16_UNROLL _Pragma("GCC unroll 14")
#endif

#if CPU_ISA >= CPU_AVX512F

#include <immintrin.h>

typedef __m512 v16;

V16_FN v16 v16_set1(float x)
{
    return _mm512_set1_ps(x);
}
V16_FN v16 v16_load(const void *p)
{
    return _mm512_loadu_ps(p);
}
V16_FN void v16_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a);
}
V16_FN v16 v16_load_n(const float *p, int n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
V16_FN void v16_store_n(float *p, v16 a, int n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a);
}
V16_FN v16 v16_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}
V16_FN v16 v16_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}
V16_FN v16 v16_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}
V16_FN v16 v16_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}
V16_FN v16 v16_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}
/* c - a * b */
V16_FN v16 v16_fnma(v16 a, v16 b, v16 c)
{
    return _mm512_fnmadd_ps(a, b, c);
}
/* Lane i gets lane i ^ 1, i ^ 2, i ^ 4, i ^ 8. */
V16_FN v16 v16_swap1(v16 a)
{
    return _mm512_permute_ps(a, 0xb1);
}
V16_FN v16 v16_swap2(v16 a)
{
    return _mm512_permute_ps(a, 0x4e);
}
V16_FN v16 v16_swap4(v16 a)
{
    return _mm512_shuffle_f32x4(a, a, 0xb1);
}
V16_FN v16 v16_swap8(v16 a)
{
    return _mm512_shuffle_f32x4(a, a, 0x4e);
}
/* a > b ? a : b, so b when either is NaN. */
V16_FN v16 v16_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}
/* a < b ? x : y; y when either is NaN. */
V16_FN v16 v16_select_less(v16 a, v16 b, v16 x, v16 y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
/* test is NaN ? test : y */
V16_FN v16 v16_keep_nan(v16 test, v16 y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(test, test, _CMP_UNORD_Q), y, test);
}
V16_FN int v16_any_above(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0;
}
/* 1 when some lane is not below b: NaN counts. */
V16_FN int v16_any_not_below(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ) != 0;
}
/* p * 2^n; n is in the low bits of t (see math_exp). */
V16_FN v16 v16_scale_low(v16 p, v16 t)
{
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
}
V16_FN void v16_log_split(v16 x, v16 *f, v16 *e)
{
    const __m512i base = _mm512_set1_epi32(MATH_SQRT_HALF_BITS);
    __m512i shifted = _mm512_sub_epi32(_mm512_castps_si512(x), base);
    *e = _mm512_cvtepi32_ps(_mm512_srai_epi32(shifted, 23));
    __m512i m = _mm512_add_epi32(_mm512_and_si512(shifted, _mm512_set1_epi32(0x7fffff)), base);
    *f = _mm512_sub_ps(_mm512_castsi512_ps(m), _mm512_set1_ps(1.0f));
}
/* 16 pairs of bf16 -> the first and the second of each pair. */
V16_FN void v16_bf16_pairs(const void *p, v16 *even, v16 *odd)
{
    __m512i w = _mm512_loadu_si512(p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000u)));
}
/* The bits `mask` of 16 words of 16 bits, from bit `shift` on, as numbers. */
V16_FN v16 v16_codes(const void *words, int shift, int mask)
{
    __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256(words));
    w = _mm512_srli_epi32(w, (unsigned)shift);
    return _mm512_cvtepi32_ps(_mm512_and_si512(w, _mm512_set1_epi32(mask)));
}
V16_FN v16 v16_f16(const void *halves)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(halves));
}

/* Stores 16 numbers, rounded to nearest even, as 16-bit integers. */
V16_FN void v16_store_i16(int16_t *p, v16 a)
{
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(a)));
}

/* Sixteen lanes of 32 bits: integers, or pairs of 16-bit integers. */
typedef __m512i w16;

V16_FN w16 w16_zero(void)
{
    return _mm512_setzero_si512();
}
V16_FN v16 v16_of_w16(w16 a)
{
    return _mm512_cvtepi32_ps(a);
}
/* sum += a.b of pairs; a is one pair for all lanes. */
V16_FN void w16_dot(w16 *sum, uint32_t a, w16 b)
{
#if CPU_ISA == CPU_AVX512
    *sum = _mm512_dpwssd_epi32(*sum, _mm512_set1_epi32((int)a), b);
#else
    *sum = _mm512_add_epi32(*sum, _mm512_madd_epi16(_mm512_set1_epi32((int)a), b));
#endif
}
/* 16 pairs of bytes. */
V16_FN w16 w16_bytes(const void *p)
{
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256(p));
}
/* 16 times four codes of 4 bits, the first lowest: the first two and the last two as pairs. */
V16_FN void w16_nibbles(const void *p, w16 pair[2])
{
    const __m512i both = _mm512_set_epi16(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8,
                                          8, 7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    const __m512i mask = _mm512_set1_epi16(15);
    __m512i w = _mm512_permutexvar_epi16(both, _mm512_castsi256_si512(_mm256_loadu_si256(p)));
    pair[0] = _mm512_and_si512(_mm512_srlv_epi16(w, _mm512_set1_epi32(0x40000)), mask);
    pair[1] = _mm512_and_si512(_mm512_srlv_epi16(w, _mm512_set1_epi32(0xc0008)), mask);
}

#elif CPU_ISA == CPU_AVX2

#include <immintrin.h>

typedef struct v16 {
    __m256 lo, hi;
} v16;

V16_FN v16 v16_set1(float x)
{
    return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
V16_FN v16 v16_load(const void *p)
{
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps((const float *)p + 8)};
}
V16_FN void v16_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
V16_FN v16 v16_load_n(const float *p, int n)
{
    float t[16] = {0};
    memcpy(t, p, (size_t)n * sizeof *t);
    return v16_load(t);
}
V16_FN void v16_store_n(float *p, v16 a, int n)
{
    float t[16];
    v16_store(t, a);
    memcpy(p, t, (size_t)n * sizeof *t);
}
V16_FN v16 v16_add(v16 a, v16 b)
{
    return (v16){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
V16_FN v16 v16_sub(v16 a, v16 b)
{
    return (v16){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
V16_FN v16 v16_mul(v16 a, v16 b)
{
    return (v16){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
V16_FN v16 v16_div(v16 a, v16 b)
{
    return (v16){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
V16_FN v16 v16_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
V16_FN v16 v16_fnma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
V16_FN v16 v16_swap1(v16 a)
{
    return (v16){_mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1)};
}
V16_FN v16 v16_swap2(v16 a)
{
    return (v16){_mm256_permute_ps(a.lo, 0x4e), _mm256_permute_ps(a.hi, 0x4e)};
}
V16_FN v16 v16_swap4(v16 a)
{
    return (v16){_mm256_permute2f128_ps(a.lo, a.lo, 1), _mm256_permute2f128_ps(a.hi, a.hi, 1)};
}
V16_FN v16 v16_swap8(v16 a)
{
    return (v16){a.hi, a.lo};
}
V16_FN v16 v16_max(v16 a, v16 b)
{
    return (v16){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
V16_FN v16 v16_select_less(v16 a, v16 b, v16 x, v16 y)
{
    return (v16){_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
                 _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
V16_FN v16 v16_keep_nan(v16 test, v16 y)
{
    return (v16){_mm256_blendv_ps(y.lo, test.lo, _mm256_cmp_ps(test.lo, test.lo, _CMP_UNORD_Q)),
                 _mm256_blendv_ps(y.hi, test.hi, _mm256_cmp_ps(test.hi, test.hi, _CMP_UNORD_Q))};
}
V16_FN int v16_any_above(v16 a, v16 b)
{
    return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ),
                                           _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ))) != 0;
}
V16_FN int v16_any_not_below(v16 a, v16 b)
{
    return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_NLT_UQ),
                                           _mm256_cmp_ps(a.hi, b.hi, _CMP_NLT_UQ))) != 0;
}
V16_FN __m256 v16_scale_low_half(__m256 p, __m256 t)
{
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
}
V16_FN v16 v16_scale_low(v16 p, v16 t)
{
    return (v16){v16_scale_low_half(p.lo, t.lo), v16_scale_low_half(p.hi, t.hi)};
}
V16_FN void v16_log_split_half(__m256 x, __m256 *f, __m256 *e)
{
    const __m256i base = _mm256_set1_epi32(MATH_SQRT_HALF_BITS);
    __m256i shifted = _mm256_sub_epi32(_mm256_castps_si256(x), base);
    *e = _mm256_cvtepi32_ps(_mm256_srai_epi32(shifted, 23));
    __m256i m = _mm256_add_epi32(_mm256_and_si256(shifted, _mm256_set1_epi32(0x7fffff)), base);
    *f = _mm256_sub_ps(_mm256_castsi256_ps(m), _mm256_set1_ps(1.0f));
}
V16_FN void v16_log_split(v16 x, v16 *f, v16 *e)
{
    v16_log_split_half(x.lo, &f->lo, &e->lo);
    v16_log_split_half(x.hi, &f->hi, &e->hi);
}
V16_FN void v16_bf16_pairs(const void *p, v16 *even, v16 *odd)
{
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    __m256i a = _mm256_loadu_si256(p), b = _mm256_loadu_si256((const __m256i *)p + 1);
    even->lo = _mm256_castsi256_ps(_mm256_slli_epi32(a, 16));
    even->hi = _mm256_castsi256_ps(_mm256_slli_epi32(b, 16));
    odd->lo = _mm256_castsi256_ps(_mm256_and_si256(a, high));
    odd->hi = _mm256_castsi256_ps(_mm256_and_si256(b, high));
}
V16_FN __m256 v16_codes_half(__m128i words, int shift, int mask)
{
    __m256i w = _mm256_srli_epi32(_mm256_cvtepu16_epi32(words), shift);
    return _mm256_cvtepi32_ps(_mm256_and_si256(w, _mm256_set1_epi32(mask)));
}
V16_FN v16 v16_codes(const void *words, int shift, int mask)
{
    return (v16){v16_codes_half(_mm_loadu_si128(words), shift, mask),
                 v16_codes_half(_mm_loadu_si128((const __m128i *)words + 1), shift, mask)};
}
V16_FN v16 v16_f16(const void *halves)
{
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128(halves)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)halves + 1))};
}

V16_FN void v16_store_i16(int16_t *p, v16 a)
{
    __m256i both = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
    _mm256_storeu_si256((void *)p, _mm256_permute4x64_epi64(both, 0xd8));
}

typedef struct w16 {
    __m256i lo, hi;
} w16;

V16_FN w16 w16_zero(void)
{
    return (w16){_mm256_setzero_si256(), _mm256_setzero_si256()};
}
V16_FN v16 v16_of_w16(w16 a)
{
    return (v16){_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
V16_FN void w16_dot(w16 *sum, uint32_t a, w16 b)
{
    const __m256i pair = _mm256_set1_epi32((int)a);
    sum->lo = _mm256_add_epi32(sum->lo, _mm256_madd_epi16(pair, b.lo));
    sum->hi = _mm256_add_epi32(sum->hi, _mm256_madd_epi16(pair, b.hi));
}
V16_FN w16 w16_bytes(const void *p)
{
    return (w16){_mm256_cvtepu8_epi16(_mm_loadu_si128(p)),
                 _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p + 1))};
}
V16_FN void w16_nibbles_half(__m128i codes, __m256i *first, __m256i *last)
{
    const __m256i mask = _mm256_set1_epi16(15);
    __m256i w = _mm256_cvtepu16_epi32(codes);
    __m256i high = _mm256_or_si256(_mm256_srli_epi32(w, 8), _mm256_slli_epi32(w, 4));
    *first = _mm256_and_si256(_mm256_or_si256(w, _mm256_slli_epi32(w, 12)), mask);
    *last = _mm256_and_si256(high, mask);
}
V16_FN void w16_nibbles(const void *p, w16 pair[2])
{
    w16_nibbles_half(_mm_loadu_si128(p), &pair[0].lo, &pair[1].lo);
    w16_nibbles_half(_mm_loadu_si128((const __m128i *)p + 1), &pair[0].hi, &pair[1].hi);
}

#else

#include "kernels/dtype.h"

typedef struct v16 {
    float f[16];
} v16;

#define V16_EACH(expr)                                                                             \
    v16 y;                                                                                         \
    for (int i = 0; i < 16; i++)                                                                   \
        y.f[i] = (expr);                                                                           \
    return y

V16_FN v16 v16_set1(float x)
{
    V16_EACH(x);
}
V16_FN v16 v16_load(const void *p)
{
    v16 y;
    memcpy(&y, p, sizeof y);
    return y;
}
V16_FN void v16_store(float *p, v16 a)
{
    memcpy(p, &a, sizeof a);
}
V16_FN v16 v16_load_n(const float *p, int n)
{
    v16 y = {{0}};
    memcpy(&y, p, (size_t)n * sizeof *p);
    return y;
}
V16_FN void v16_store_n(float *p, v16 a, int n)
{
    memcpy(p, &a, (size_t)n * sizeof *p);
}
V16_FN v16 v16_add(v16 a, v16 b)
{
    V16_EACH(a.f[i] + b.f[i]);
}
V16_FN v16 v16_sub(v16 a, v16 b)
{
    V16_EACH(a.f[i] - b.f[i]);
}
V16_FN v16 v16_mul(v16 a, v16 b)
{
    V16_EACH(a.f[i] * b.f[i]);
}
V16_FN v16 v16_div(v16 a, v16 b)
{
    V16_EACH(a.f[i] / b.f[i]);
}
V16_FN v16 v16_fma(v16 a, v16 b, v16 c)
{
    V16_EACH(fmaf(a.f[i], b.f[i], c.f[i]));
}
V16_FN v16 v16_fnma(v16 a, v16 b, v16 c)
{
    V16_EACH(fmaf(-a.f[i], b.f[i], c.f[i]));
}
V16_FN v16 v16_swap1(v16 a)
{
    V16_EACH(a.f[i ^ 1]);
}
V16_FN v16 v16_swap2(v16 a)
{
    V16_EACH(a.f[i ^ 2]);
}
V16_FN v16 v16_swap4(v16 a)
{
    V16_EACH(a.f[i ^ 4]);
}
V16_FN v16 v16_swap8(v16 a)
{
    V16_EACH(a.f[i ^ 8]);
}
V16_FN v16 v16_max(v16 a, v16 b)
{
    V16_EACH(a.f[i] > b.f[i] ? a.f[i] : b.f[i]);
}
V16_FN v16 v16_select_less(v16 a, v16 b, v16 x, v16 z)
{
    V16_EACH(a.f[i] < b.f[i] ? x.f[i] : z.f[i]);
}
V16_FN v16 v16_keep_nan(v16 test, v16 z)
{
    V16_EACH(test.f[i] != test.f[i] ? test.f[i] : z.f[i]);
}
V16_FN int v16_any_above(v16 a, v16 b)
{
    int any = 0;
    for (int i = 0; i < 16; i++)
        any |= a.f[i] > b.f[i];
    return any;
}
V16_FN int v16_any_not_below(v16 a, v16 b)
{
    int any = 0;
    for (int i = 0; i < 16; i++)
        any |= !(a.f[i] < b.f[i]);
    return any;
}
V16_FN v16 v16_scale_low(v16 p, v16 t)
{
    for (int i = 0; i < 16; i++) {
        union math_bits a = {.f = p.f[i]}, b = {.f = t.f[i]};
        a.u += b.u << 23;
        p.f[i] = a.f;
    }
    return p;
}
V16_FN void v16_log_split(v16 x, v16 *f, v16 *e)
{
    for (int i = 0; i < 16; i++)
        math_log_split(x.f[i], &f->f[i], &e->f[i]);
}
V16_FN void v16_bf16_pairs(const void *p, v16 *even, v16 *odd)
{
    uint32_t w[16];
    memcpy(w, p, sizeof w);
    for (int i = 0; i < 16; i++) {
        union math_bits a = {.u = w[i] << 16}, b = {.u = w[i] & 0xffff0000u};
        even->f[i] = a.f;
        odd->f[i] = b.f;
    }
}
V16_FN v16 v16_codes(const void *words, int shift, int mask)
{
    uint16_t w[16];
    memcpy(w, words, sizeof w);
    V16_EACH((float)(w[i] >> shift & mask));
}
V16_FN v16 v16_f16(const void *halves)
{
    uint16_t h[16];
    memcpy(h, halves, sizeof h);
    V16_EACH(f16_to_f32(h[i]));
}

/* Adding 1.5 * 2^23 rounds to an integer, which is then in the lowest bits. */
V16_FN void v16_store_i16(int16_t *p, v16 a)
{
    for (int i = 0; i < 16; i++) {
        union math_bits b = {.f = a.f[i] + MATH_ROUND_MAGIC};
        p[i] = (int16_t)(b.u & 0xffff);
    }
}

typedef struct w16 {
    int32_t i[16]; // pairs: the first in the low 16 bits
} w16;

V16_FN w16 w16_zero(void)
{
    return (w16){{0}};
}
V16_FN v16 v16_of_w16(w16 a)
{
    V16_EACH((float)a.i[i]);
}
V16_FN void w16_dot(w16 *sum, uint32_t a, w16 b)
{
    for (int i = 0; i < 16; i++)
        sum->i[i] += (int16_t)a * (b.i[i] & 0xffff) + (int16_t)(a >> 16) * (b.i[i] >> 16);
}
V16_FN w16 w16_bytes(const void *p)
{
    const uint8_t *byte = p;
    w16 y;
    for (int i = 0; i < 16; i++)
        y.i[i] = byte[2 * i] | byte[2 * i + 1] << 16;
    return y;
}
V16_FN void w16_nibbles(const void *p, w16 pair[2])
{
    uint16_t w[16];
    memcpy(w, p, sizeof w);
    for (int i = 0; i < 16; i++) {
        pair[0].i[i] = (w[i] & 15) | (w[i] >> 4 & 15) << 16;
        pair[1].i[i] = (w[i] >> 8 & 15) | w[i] >> 12 << 16;
    }
}

#endif

V16_FN v16 v16_zero(void)
{
    return v16_set1(0.0f);
}

/* Joins the lanes in the fixed tree. */
V16_FN float v16_sum(v16 a)
{
    float lanes[16];
    v16_store(lanes, a);
    return math_sum16(lanes);
}

V16_FN float v16_max_lane(v16 a)
{
    float lanes[16];
    v16_store(lanes, a);
    float m = lanes[0];
    for (int i = 1; i < 16; i++)
        m = m > lanes[i] ? m : lanes[i];
    return m;
}

/* The functions of kernels/math.h over lanes, operation by operation. */
V16_FN v16 v16_exp_in_range(v16 x)
{
    const v16 magic = v16_set1(MATH_ROUND_MAGIC);
    v16 t = v16_fma(x, v16_set1(MATH_LOG2E), magic);
    v16 n = v16_sub(t, magic);
    v16 r = v16_fnma(n, v16_set1(MATH_LN2_HI), x);
    r = v16_fnma(n, v16_set1(MATH_LN2_LO), r);
    v16 p = v16_fma(v16_set1(MATH_EXP_P5), r, v16_set1(MATH_EXP_P4));
    p = v16_fma(p, r, v16_set1(MATH_EXP_P3));
    p = v16_fma(p, r, v16_set1(MATH_EXP_P2));
    p = v16_fma(p, r, v16_set1(MATH_EXP_P1));
    p = v16_fma(p, r, v16_set1(MATH_EXP_P0));
    p = v16_fma(p, v16_mul(r, r), r);
    return v16_scale_low(v16_add(p, v16_set1(1.0f)), t);
}

V16_FN v16 v16_exp(v16 x)
{
    v16 y = v16_exp_in_range(x);
    y = v16_select_less(x, v16_set1(MATH_EXP_MIN), v16_zero(), y);
    y = v16_select_less(v16_set1(MATH_EXP_MAX), x, v16_set1(INFINITY), y);
    return v16_keep_nan(x, y);
}

/* v16_exp() for numbers up to MATH_EXP_MAX, and for NaN. */
V16_FN v16 v16_exp_below(v16 x)
{
    v16 y = v16_exp_in_range(x);
    return v16_keep_nan(x, v16_select_less(x, v16_set1(MATH_EXP_MIN), v16_zero(), y));
}

V16_FN v16 v16_log_sum(v16 f, v16 e)
{
    v16 p = v16_fma(v16_set1(MATH_LOG_P8), f, v16_set1(MATH_LOG_P7));
    p = v16_fma(p, f, v16_set1(MATH_LOG_P6));
    p = v16_fma(p, f, v16_set1(MATH_LOG_P5));
    p = v16_fma(p, f, v16_set1(MATH_LOG_P4));
    p = v16_fma(p, f, v16_set1(MATH_LOG_P3));
    p = v16_fma(p, f, v16_set1(MATH_LOG_P2));
    p = v16_fma(p, f, v16_set1(MATH_LOG_P1));
    p = v16_fma(p, f, v16_set1(MATH_LOG_P0));
    v16 f2 = v16_mul(f, f);
    v16 y = v16_fma(p, v16_mul(f2, f), v16_mul(e, v16_set1(MATH_LN2_LO)));
    y = v16_fma(v16_set1(-0.5f), f2, y);
    y = v16_add(y, f);
    return v16_fma(e, v16_set1(MATH_LN2_HI), y);
}

V16_FN v16 v16_gelu(v16 x)
{
    v16 magnitude = v16_max(x, v16_sub(v16_zero(), x));
    v16 z = v16_mul(magnitude, v16_set1(0.707106781f));
    v16 t = v16_div(v16_set1(1.0f), v16_fma(z, v16_set1(MATH_ERFC_T), v16_set1(1.0f)));
    v16 p = v16_fma(v16_set1(MATH_ERFC_P9), t, v16_set1(MATH_ERFC_P8));
    p = v16_fma(p, t, v16_set1(MATH_ERFC_P7));
    p = v16_fma(p, t, v16_set1(MATH_ERFC_P6));
    p = v16_fma(p, t, v16_set1(MATH_ERFC_P5));
    p = v16_fma(p, t, v16_set1(MATH_ERFC_P4));
    p = v16_fma(p, t, v16_set1(MATH_ERFC_P3));
    p = v16_fma(p, t, v16_set1(MATH_ERFC_P2));
    p = v16_fma(p, t, v16_set1(MATH_ERFC_P1));
    p = v16_fma(p, t, v16_set1(MATH_ERFC_P0));
    v16 gauss = v16_mul(v16_set1(0.5f), v16_exp(v16_sub(v16_zero(), v16_mul(z, z))));
    v16 tail = v16_mul(x, v16_mul(v16_mul(p, t), gauss));
    return v16_select_less(x, v16_zero(), tail, v16_sub(x, tail));
}

V16_FN v16 v16_gelu_tanh(v16 x)
{
    v16 u = v16_fma(v16_mul(x, x), v16_set1(MATH_GELU_TANH_3), v16_set1(MATH_GELU_TANH_1));
    return v16_div(x, v16_add(v16_set1(1.0f), v16_exp(v16_mul(x, u))));
}

V16_FN v16 v16_silu(v16 x)
{
    return v16_div(x, v16_add(v16_set1(1.0f), v16_exp(v16_sub(v16_zero(), x))));
}

V16_FN v16 v16_logistic(v16 x)
{
    const v16 one = v16_set1(1.0f);
    return v16_div(one, v16_add(one, v16_exp(v16_sub(v16_zero(), x))));
}

V16_FN v16 v16_gelu_quick(v16 x)
{
    return v16_div(x, v16_add(v16_set1(1.0f), v16_exp(v16_mul(v16_set1(MATH_GELU_QUICK), x))));
}

V16_FN v16 v16_tanh(v16 x)
{
    v16 x2 = v16_mul(x, x), magnitude = v16_max(x, v16_sub(v16_zero(), x));
    v16 p = v16_fma(v16_set1(MATH_TANH_P4), x2, v16_set1(MATH_TANH_P3));
    p = v16_fma(p, x2, v16_set1(MATH_TANH_P2));
    p = v16_fma(p, x2, v16_set1(MATH_TANH_P1));
    v16 small = v16_fma(p, v16_mul(x2, x), x);
    v16 below = v16_add(v16_exp(v16_mul(v16_set1(2.0f), magnitude)), v16_set1(1.0f));
    v16 large = v16_sub(v16_set1(1.0f), v16_div(v16_set1(2.0f), below));
    large = v16_select_less(x, v16_zero(), v16_sub(v16_zero(), large), large);
    return v16_select_less(magnitude, v16_set1(MATH_TANH_SMALL), small, large);
}

/* c > 0. */
V16_FN v16 v16_softcap(v16 x, v16 c)
{
    return v16_mul(c, v16_tanh(v16_div(x, c)));
}

V16_FN v16 v16_xielu(const float *alpha, v16 x)
{
    const v16 half = v16_mul(v16_set1(0.5f), x), one = v16_set1(1.0f);
    v16 p = v16_fma(v16_set1(MATH_XIELU_P9), x, v16_set1(MATH_XIELU_P8));
    p = v16_fma(p, x, v16_set1(MATH_XIELU_P7));
    p = v16_fma(p, x, v16_set1(MATH_XIELU_P6));
    p = v16_fma(p, x, v16_set1(MATH_XIELU_P5));
    p = v16_fma(p, x, v16_set1(MATH_XIELU_P4));
    p = v16_fma(p, x, v16_set1(MATH_XIELU_P3));
    p = v16_fma(p, x, v16_set1(MATH_XIELU_P2));
    p = v16_fma(p, x, v16_set1(MATH_XIELU_P1));
    p = v16_fma(p, x, v16_set1(MATH_XIELU_P0));
    v16 rest = v16_select_less(x, v16_set1(MATH_XIELU_SMALL), v16_sub(v16_sub(v16_exp(x), one), x),
                               v16_mul(p, v16_mul(x, x)));
    v16 above = v16_fma(v16_mul(v16_set1(alpha[0]), x), x, half);
    return v16_select_less(v16_zero(), x, above, v16_fma(v16_set1(alpha[1]), rest, half));
}

V16_FN v16 v16_act(int act, v16 x)
{
    switch (act) {
    case ACT_RELU:
        return v16_max(x, v16_zero());
    case ACT_RELU2:
        return v16_mul(v16_max(x, v16_zero()), v16_max(x, v16_zero()));
    case ACT_GELU:
        return v16_gelu(x);
    case ACT_GELU_TANH:
        return v16_gelu_tanh(x);
    case ACT_SILU:
        return v16_silu(x);
    case ACT_GELU_QUICK:
        return v16_gelu_quick(x);
    case ACT_LOGISTIC:
        return v16_logistic(x);
    default:
        return x;
    }
}

V16_FN v16 v16_gumbel(v16 v)
{
    const v16 direct = v16_set1(MATH_LOG1M_DIRECT);
    v16 f, e;
    v16_log_split(v16_max(v16_sub(v16_set1(1.0f), v), v16_set1(0x1p-25f)), &f, &e);
    f = v16_select_less(v, direct, v16_sub(v16_zero(), v), f);
    e = v16_select_less(v, direct, v16_zero(), e);
    v16_log_split(v16_sub(v16_zero(), v16_log_sum(f, e)), &f, &e);
    return v16_sub(v16_zero(), v16_log_sum(f, e));
}

#endif
