/* tests/simt/mma.c - what a tensor core makes of k products and a sum.
 *
 * Owns: the rounding. Source: MMA-Sim (Xie et al. 2025, arXiv 2511.10909), which reports it equal
 * to the hardware bit by bit: of each step every product (exact, its significand not normalised)
 * and c are cut towards zero 24 bits (25 from sm_90 on) below the greatest exponent, summed exactly
 * and cut to f32. A step has 8 products up to sm_89, 16 from sm_90 on; a NaN is 0x7fffffff. */
#include "tests/simt/impl.h"

#include <math.h>
#include <string.h>

struct term {
    int64_t significand; // with `fraction` bits behind the point
    int exponent, fraction;
};

/* bits: of the significand, without the hidden one. exponent_max: all ones of the field. */
static struct term number(uint32_t u, int bits, int exponent_bits)
{
    const int field_max = (1 << exponent_bits) - 1, bias = field_max / 2;
    const int field = (int)(u >> bits) & field_max, negative = (int)(u >> (bits + exponent_bits));
    int64_t s = u & ((1u << bits) - 1);
    s |= field ? (int64_t)1 << bits : 0;
    return (struct term){negative ? -s : s, (field ? field : 1) - bias, bits};
}

static float as_float(enum simt_mma kind, uint16_t u)
{
    const struct term t = kind == SIMT_MMA_BF16 ? number(u, 7, 8) : number(u, 10, 5);
    const int special = kind == SIMT_MMA_BF16 ? (u & 0x7f80) == 0x7f80 : (u & 0x7c00) == 0x7c00;
    const uint32_t payload = kind == SIMT_MMA_BF16 ? u & 0x7fu : u & 0x3ffu;
    if (special)
        return payload ? NAN : u >> 15 ? -INFINITY : INFINITY;
    return ldexpf((float)t.significand, t.exponent - t.fraction);
}

/* Infinities and NaNs, as a sum of floats has them; 0 when there are none. */
static int special(enum simt_mma kind, const uint16_t *a, const uint16_t *b, int k, float c,
                   float *to)
{
    float sum = c - c; // 0 or NaN
    int any = !isfinite(c);
    sum = any ? c : 0;
    for (int i = 0; i < k; i++) {
        const float x = as_float(kind, a[i]), y = as_float(kind, b[i]);
        if (isfinite(x) && isfinite(y))
            continue;
        any = 1;
        sum += x * y;
    }
    const uint32_t nan = 0x7fffffff;
    *to = sum;
    if (sum != sum)
        memcpy(to, &nan, sizeof nan);
    return any;
}

/* The term in units of 2^(greatest - kept), cut towards zero. */
static int64_t aligned(struct term t, int greatest, int kept)
{
    const int up = t.exponent - greatest + kept - t.fraction;
    const int64_t s = t.significand < 0 ? -t.significand : t.significand;
    const int64_t cut = up >= 0 ? s << up : up > -63 ? s >> -up : 0;
    return t.significand < 0 ? -cut : cut;
}

/* sum * 2^exponent, cut to f32. */
static float cut_to_f32(int64_t sum, int exponent)
{
    uint64_t s = (uint64_t)(sum < 0 ? -sum : sum);
    const int bits = s ? 64 - __builtin_clzll(s) : 0;
    int lost = bits - 24 > -149 - exponent ? bits - 24 : -149 - exponent;
    if (lost > 0) {
        s = lost < 63 ? s >> lost << lost : 0;
    }
    const float x = (float)ldexp((double)s, exponent);
    return sum < 0 ? -x : x;
}

static float step(int arch, enum simt_mma kind, const uint16_t *a, const uint16_t *b, int k,
                  float c)
{
    const int kept = arch >= 90 ? 25 : 24;
    const uint16_t all_ones = kind == SIMT_MMA_BF16 ? 0x7f80 : 0x7c00;
    struct term terms[17];
    uint32_t bits;
    float out;
    int any_special = !isfinite(c), any = 0;
    for (int i = 0; i < k; i++) {
        any_special |= (a[i] & all_ones) == all_ones || (b[i] & all_ones) == all_ones;
        any |= (a[i] & 0x7fff) && (b[i] & 0x7fff);
    }
    if (any_special && special(kind, a, b, k, c, &out))
        return out;
    if (!any) // rows that are not there
        return c + 0.0f;
    memcpy(&bits, &c, sizeof bits);
    terms[k] = number(bits, 23, 8);
    for (int i = 0; i < k; i++) {
        const struct term x = kind == SIMT_MMA_BF16 ? number(a[i], 7, 8) : number(a[i], 10, 5);
        const struct term y = kind == SIMT_MMA_BF16 ? number(b[i], 7, 8) : number(b[i], 10, 5);
        terms[i] = (struct term){x.significand * y.significand, x.exponent + y.exponent,
                                 x.fraction + y.fraction};
    }
    int greatest = INT32_MIN;
    for (int i = 0; i <= k; i++) {
        if (terms[i].significand == 0)
            terms[i].exponent = -126;
        greatest = terms[i].exponent > greatest ? terms[i].exponent : greatest;
    }
    int64_t sum = 0;
    for (int i = 0; i <= k; i++)
        sum += aligned(terms[i], greatest, kept);
    return cut_to_f32(sum, greatest - kept);
}

float simt_mma_dot(int arch, enum simt_mma kind, const uint16_t *a, const uint16_t *b, float c)
{
    const int k = kind == SIMT_MMA_F16_K8 ? 8 : 16, each = arch >= 90 && k == 16 ? 16 : 8;
    for (int i = 0; i < k; i += each)
        c = step(arch, kind, a + i, b + i, each, c);
    return c;
}
