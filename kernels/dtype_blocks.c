/* kernels/dtype_blocks.c - decoders of the block formats, coders of our own q8 and q4.
 *
 * Owns: the byte layouts. Refuses: rows and panels (kernels/dtype.c).
 * Note: products and sums are rounded one by one (the build forbids contraction
 * into fused multiply-adds), so that the bits are those of the formats' definitions; and the inner
 * loops have constant counts because that is what gcc -O2 vectorises. */
#include "kernels/dtype_blocks.h"
#include "kernels/dtype_nf4.h"

#include <math.h>
#include <string.h>

static inline float f16_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return f16_to_f32(h);
}

static const float nl_numbers[16] = {COLUMN_NL_NUMBERS};
static const float mxfp4_numbers[16] = {COLUMN_MXFP4_NUMBERS};
static const float nf4_numbers[16] = {COLUMN_NF4_NUMBERS};
static const float e2m1_numbers[16] = {COLUMN_E2M1_NUMBERS};

/* Decodes n bytes to 2 n numbers: the low halves, then the high halves. */
static inline void looked_up(const float numbers[16], float d, const uint8_t *q, int n,
                             float *restrict out)
{
    for (int j = 0; j < n; j++)
        out[j] = d * numbers[q[j] & 15];
    for (int j = 0; j < n; j++)
        out[n + j] = d * numbers[q[j] >> 4];
}

/* f16 d; 16 bytes: numbers 0..15 in the low halves, 16..31 in the high halves. */
DTYPE_CLONES void blocks_decode_q4_0(const uint8_t *blocks, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i += 32, blocks += 18, out += 32) {
        const float d = f16_at(blocks);
        const uint8_t *q = blocks + 2;
        for (int j = 0; j < 16; j++)
            out[j] = d * (float)((q[j] & 15) - 8);
        for (int j = 0; j < 16; j++)
            out[16 + j] = d * (float)((q[j] >> 4) - 8);
    }
}

/* f16 d, f16 m; 16 bytes as in q4_0, with bias 0. */
DTYPE_CLONES void blocks_decode_q4_1(const uint8_t *blocks, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i += 32, blocks += 20, out += 32) {
        const float d = f16_at(blocks), m = f16_at(blocks + 2);
        const uint8_t *q = blocks + 4;
        for (int j = 0; j < 16; j++)
            out[j] = d * (float)(q[j] & 15) + m;
        for (int j = 0; j < 16; j++)
            out[16 + j] = d * (float)(q[j] >> 4) + m;
    }
}

/* The 5-bit codes of q5_0 and q5_1: 32 upper bits, then 16 bytes as in q4_0. A table of masks picks
 * the bits because SSE2 cannot shift each number by its own count. */
static inline void q5_codes(const uint8_t *p, uint8_t *restrict code)
{
    static const uint8_t masks[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8_t high[32];
    for (int i = 0; i < 4; i++)
        memset(high + 8 * i, p[i], 8);
    for (int j = 0; j < 16; j++)
        code[j] = (p[4 + j] & 15) | ((high[j] & masks[j]) ? 16 : 0);
    for (int j = 0; j < 16; j++)
        code[16 + j] = (p[4 + j] >> 4) | ((high[16 + j] & masks[j]) ? 16 : 0);
}

/* f16 d; codes. */
DTYPE_CLONES void blocks_decode_q5_0(const uint8_t *blocks, int64_t n, float *restrict out)
{
    uint8_t code[32];
    for (int64_t i = 0; i < n; i += 32, blocks += 22, out += 32) {
        const float d = f16_at(blocks);
        q5_codes(blocks + 2, code);
        for (int j = 0; j < 32; j++)
            out[j] = d * (float)(code[j] - 16);
    }
}

/* f16 d, f16 m; codes. */
DTYPE_CLONES void blocks_decode_q5_1(const uint8_t *blocks, int64_t n, float *restrict out)
{
    uint8_t code[32];
    for (int64_t i = 0; i < n; i += 32, blocks += 24, out += 32) {
        const float d = f16_at(blocks), m = f16_at(blocks + 2);
        q5_codes(blocks + 4, code);
        for (int j = 0; j < 32; j++)
            out[j] = d * (float)code[j] + m;
    }
}

/* f16 d; 32 int8. */
DTYPE_CLONES void blocks_decode_q8_0(const uint8_t *blocks, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i += 32, blocks += 34, out += 32) {
        const float d = f16_at(blocks);
        const int8_t *q = (const int8_t *)blocks + 2;
        for (int j = 0; j < 32; j++)
            out[j] = d * (float)q[j];
    }
}

/* The 6-bit scales and minima of the 8 sub-blocks of q4_k and q5_k, in 12 bytes: 4 with scales 0..3
 * in the low 6 bits, 4 with minima 0..3, and 4 whose halves are the low bits of scales and minima
 * 4..7, whose upper 2 bits are above scales and minima 0..3. */
static void k_scales(const uint8_t p[12], float d, float d_min, float scale[8], float min[8])
{
    for (int j = 0; j < 4; j++) {
        scale[j] = d * (float)(p[j] & 63);
        min[j] = d_min * (float)(p[4 + j] & 63);
        scale[4 + j] = d * (float)((p[8 + j] & 15) | (p[j] >> 6) << 4);
        min[4 + j] = d_min * (float)((p[8 + j] >> 4) | (p[4 + j] >> 6) << 4);
    }
}

/* f16 d, f16 d_min; scales[12]; 4 times 32 bytes: 32 numbers low, the next 32 high. */
DTYPE_CLONES void blocks_decode_q4_k(const uint8_t *blocks, int64_t n, float *restrict out)
{
    float scale[8], min[8];
    for (int64_t i = 0; i < n; i += 256, blocks += 144) {
        k_scales(blocks + 4, f16_at(blocks), f16_at(blocks + 2), scale, min);
        const uint8_t *q = blocks + 16;
        for (int s = 0; s < 8; s += 2, q += 32, out += 64) {
            const float d0 = scale[s], m0 = min[s], d1 = scale[s + 1], m1 = min[s + 1];
            for (int j = 0; j < 32; j++)
                out[j] = d0 * (float)(q[j] & 15) - m0;
            for (int j = 0; j < 32; j++)
                out[32 + j] = d1 * (float)(q[j] >> 4) - m1;
        }
    }
}

/* f16 d, f16 d_min; scales[12]; 32 bytes of fifth bits (bit s of byte j: number j of sub-block s);
 * 4 times 32 bytes as in q4_k. */
DTYPE_CLONES void blocks_decode_q5_k(const uint8_t *blocks, int64_t n, float *restrict out)
{
    float scale[8], min[8];
    for (int64_t i = 0; i < n; i += 256, blocks += 176) {
        k_scales(blocks + 4, f16_at(blocks), f16_at(blocks + 2), scale, min);
        const uint8_t *high = blocks + 16, *q = blocks + 48;
        for (int s = 0; s < 8; s += 2, q += 32, out += 64) {
            const float d0 = scale[s], m0 = min[s], d1 = scale[s + 1], m1 = min[s + 1];
            for (int j = 0; j < 32; j++)
                out[j] = d0 * (float)((q[j] & 15) | (high[j] >> s & 1) << 4) - m0;
            for (int j = 0; j < 32; j++)
                out[32 + j] = d1 * (float)((q[j] >> 4) | (high[j] >> (s + 1) & 1) << 4) - m1;
        }
    }
}

/* 2 x 64 bytes of low bits, 2 x 32 bytes of high bit pairs, 2 x 8 int8 scales (one per 16 numbers),
 * each for two halves of 128 numbers; then f16 d. */
DTYPE_CLONES void blocks_decode_q6_k(const uint8_t *blocks, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i += 256, blocks += 210) {
        const float d = f16_at(blocks + 208);
        for (int half = 0; half < 2; half++, out += 128) {
            const uint8_t *low = blocks + 64 * half, *high = blocks + 128 + 32 * half;
            const int8_t *scale = (const int8_t *)blocks + 192 + 8 * half;
            for (int part = 0; part < 8; part++) { // 16 numbers with one scale
                const int quarter = part / 2, from = part % 2 * 16;
                const uint8_t *l = low + quarter % 2 * 32 + from, *h = high + from;
                const int low_shift = quarter / 2 * 4, high_shift = quarter * 2;
                const float s = d * (float)scale[part];
                for (int j = 0; j < 16; j++) {
                    const int q = (l[j] >> low_shift & 15) | (h[j] >> high_shift & 3) << 4;
                    out[16 * part + j] = s * (float)(q - 32);
                }
            }
        }
    }
}

/* f16 d; table codes, in the order of q4_0. */
DTYPE_CLONES void blocks_decode_iq4_nl(const uint8_t *blocks, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i += 32, blocks += 18, out += 32)
        looked_up(nl_numbers, f16_at(blocks), blocks + 2, 16, out);
}

/* u8 exponent; table codes, in the order of q4_0. */
DTYPE_CLONES void blocks_decode_mxfp4(const uint8_t *blocks, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i += 32, blocks += 17, out += 32)
        looked_up(mxfp4_numbers, e8m0_half(blocks[0]), blocks + 1, 16, out);
}

/* 2-bit code i (0..255) of q2_k, q3_k, tq2_0: each 32 bytes hold 4 times 32 codes. */
static inline int two_bits(const uint8_t *q, int i)
{
    return q[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3;
}

/* 16 bytes with the scale of 16 numbers low, the minimum high; 64 bytes of codes; f16 d, f16
 * d_min. */
DTYPE_CLONES void blocks_decode_q2_k(const uint8_t *blocks, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i += 256, blocks += 84, out += 256) {
        const float d = f16_at(blocks + 80), d_min = f16_at(blocks + 82);
        for (int part = 0; part < 16; part++) {
            const float scale = d * (float)(blocks[part] & 15);
            const float min = d_min * (float)(blocks[part] >> 4);
            for (int j = 16 * part; j < 16 * part + 16; j++)
                out[j] = scale * (float)two_bits(blocks + 16, j) - min;
        }
    }
}

/* 32 bytes of third bits (bit s of byte j: number j of sub-block s; set: 0, clear: -4); 64 bytes of
 * codes; 12 bytes of scales; f16 d. */
DTYPE_CLONES void blocks_decode_q3_k(const uint8_t *blocks, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i += 256, blocks += 110, out += 256) {
        const uint8_t *scales = blocks + 96;
        const float d = f16_at(blocks + 108);
        for (int part = 0; part < 16; part++) {
            const int low = scales[part % 8] >> part / 8 * 4 & 15;
            const int high = scales[8 + part % 4] >> part / 4 * 2 & 3;
            const float scale = d * (float)((low | high << 4) - 32);
            for (int j = 16 * part; j < 16 * part + 16; j++) {
                const int third = blocks[j % 32] >> part / 2 & 1;
                out[j] = scale * (float)(two_bits(blocks + 32, j) + 4 * third - 4);
            }
        }
    }
}

/* f16 d; u16 of upper bits and 4 bytes of lower bits: 8 scales of 6 bits; 8 times 16 bytes as in
 * iq4_nl. */
DTYPE_CLONES void blocks_decode_iq4_xs(const uint8_t *blocks, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i += 256, blocks += 136)
        for (int part = 0; part < 8; part++, out += 32) {
            const int low = blocks[4 + part / 2] >> part % 2 * 4 & 15;
            const int high = blocks[2 + part / 4] >> part % 4 * 2 & 3;
            const float scale = f16_at(blocks) * (float)((low | high << 4) - 32);
            looked_up(nl_numbers, scale, blocks + 8 + 16 * part, 16, out);
        }
}

/* 64 bytes of codes with bias 1; f16 d. */
DTYPE_CLONES void blocks_decode_tq2_0(const uint8_t *blocks, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i += 256, blocks += 66, out += 256) {
        const float d = f16_at(blocks + 64);
        for (int j = 0; j < 256; j++)
            out[j] = d * (float)(two_bits(blocks, j) - 1);
    }
}

/* n numbers from n bytes: base-3 digit `nth` of each byte, a fraction of 256, less 1. */
static inline void trits(const uint8_t *q, int nth, int n, float d, float *restrict out)
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    for (int j = 0; j < n; j++)
        out[j] = d * (float)(((uint8_t)(q[j] * power[nth]) * 3 >> 8) - 1);
}

/* 48 bytes of 5 digits: 5 times 32 numbers, 5 times 16; 4 bytes of 4 digits: 4 times 4; f16 d. */
DTYPE_CLONES void blocks_decode_tq1_0(const uint8_t *blocks, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i += 256, blocks += 54, out += 256) {
        const float d = f16_at(blocks + 52);
        for (int nth = 0; nth < 5; nth++) {
            trits(blocks, nth, 32, d, out + 32 * nth);
            trits(blocks + 32, nth, 16, d, out + 160 + 16 * nth);
        }
        for (int nth = 0; nth < 4; nth++)
            trits(blocks + 48, nth, 4, d, out + 240 + 4 * nth);
    }
}

/* n bytes: d * (code - zero), the low halves, then the high halves. */
static inline void less_zero(float d, int zero, const uint8_t *q, int n, float *restrict out)
{
    for (int j = 0; j < n; j++)
        out[j] = d * (float)((q[j] & 15) - zero);
    for (int j = 0; j < n; j++)
        out[n + j] = d * (float)((q[j] >> 4) - zero);
}

static inline void decode_g4(const uint8_t *blocks, int64_t n, int group, float *restrict out)
{
    for (int64_t i = 0; i < n; i += group, blocks += 3 + group / 2, out += group)
        less_zero(f16_at(blocks), blocks[2], blocks + 3, group / 2, out);
}

DTYPE_CLONES void blocks_decode_g4_32(const uint8_t *blocks, int64_t n, float *restrict out)
{
    decode_g4(blocks, n, 32, out);
}

DTYPE_CLONES void blocks_decode_g4_64(const uint8_t *blocks, int64_t n, float *restrict out)
{
    decode_g4(blocks, n, 64, out);
}

DTYPE_CLONES void blocks_decode_g4_128(const uint8_t *blocks, int64_t n, float *restrict out)
{
    decode_g4(blocks, n, 128, out);
}

static inline void decode_b4(const uint8_t *blocks, int64_t n, int group, float *restrict out)
{
    uint16_t d;
    for (int64_t i = 0; i < n; i += group, blocks += 2 + group / 2, out += group) {
        memcpy(&d, blocks, sizeof d);
        less_zero(bf16_to_f32(d), 8, blocks + 2, group / 2, out);
    }
}

DTYPE_CLONES void blocks_decode_b4_32(const uint8_t *blocks, int64_t n, float *restrict out)
{
    decode_b4(blocks, n, 32, out);
}

DTYPE_CLONES void blocks_decode_b4_128(const uint8_t *blocks, int64_t n, float *restrict out)
{
    decode_b4(blocks, n, 128, out);
}

static inline void decode_f8(const uint8_t *blocks, int64_t n, int group, float *restrict out)
{
    float d;
    for (int64_t i = 0; i < n; i += group, blocks += 4 + group, out += group) {
        memcpy(&d, blocks, sizeof d);
        for (int j = 0; j < group; j++)
            out[j] = e4m3_to_f32(blocks[4 + j]) * d;
    }
}

DTYPE_CLONES void blocks_decode_f8_32(const uint8_t *blocks, int64_t n, float *restrict out)
{
    decode_f8(blocks, n, 32, out);
}

DTYPE_CLONES void blocks_decode_f8_128(const uint8_t *blocks, int64_t n, float *restrict out)
{
    decode_f8(blocks, n, 128, out);
}

DTYPE_CLONES void blocks_decode_nf4(const uint8_t *blocks, int64_t n, float *restrict out)
{
    float d;
    for (int64_t i = 0; i < n; i += 64, blocks += 36, out += 64) {
        memcpy(&d, blocks, sizeof d);
        looked_up(nf4_numbers, d, blocks + 4, 32, out);
    }
}

static inline void decode_nv4(const uint8_t *blocks, int64_t n, int block, float *restrict out)
{
    const int parts = block / 16;
    float factor;
    for (int64_t i = 0; i < n; i += block, blocks += 4 + parts + block / 2) {
        memcpy(&factor, blocks, sizeof factor);
        for (int part = 0; part < parts; part++, out += 16) {
            const uint8_t *q = blocks + 4 + parts + part % (parts / 2) * 16;
            const float d = e4m3_scaled(blocks[4 + part], factor);
            for (int j = 0; j < 16; j++)
                out[j] = d * e2m1_numbers[q[j] >> (part < parts / 2 ? 0 : 4) & 15];
        }
    }
}

DTYPE_CLONES void blocks_decode_nv4_64(const uint8_t *blocks, int64_t n, float *restrict out)
{
    decode_nv4(blocks, n, 64, out);
}

DTYPE_CLONES void blocks_decode_nv4_256(const uint8_t *blocks, int64_t n, float *restrict out)
{
    decode_nv4(blocks, n, 256, out);
}

static inline void decode_i8(const uint8_t *blocks, int64_t n, int group, float *restrict out)
{
    float d;
    for (int64_t i = 0; i < n; i += group, blocks += 5 + group, out += group) {
        memcpy(&d, blocks, sizeof d);
        const int zero = blocks[4];
        for (int j = 0; j < group; j++)
            out[j] = d * (float)(blocks[5 + j] - zero);
    }
}

DTYPE_CLONES void blocks_decode_i8_32(const uint8_t *blocks, int64_t n, float *restrict out)
{
    decode_i8(blocks, n, 32, out);
}

DTYPE_CLONES void blocks_decode_i8_128(const uint8_t *blocks, int64_t n, float *restrict out)
{
    decode_i8(blocks, n, 128, out);
}

/* As a row in dtype_nf4.h. */
DTYPE_CLONES void blocks_decode_nf4_s8(const uint8_t *blocks, int64_t n, float *restrict out)
{
    float head[2];
    for (int64_t i = 0; i < n; i += 256, blocks += 140) {
        memcpy(head, blocks, sizeof head);
        for (int part = 0; part < 4; part++, out += 64)
            looked_up(nf4_numbers, nf4_scale(blocks[8 + part], head[0], head[1]),
                      blocks + 12 + 32 * part, 32, out);
    }
}

static void group_decode_q8(const uint8_t *group, float *restrict out)
{
    const int8_t *q = (const int8_t *)group + 4;
    float scale;
    memcpy(&scale, group, sizeof scale);
    for (int j = 0; j < DTYPE_GROUP; j++)
        out[j] = (float)q[j] * scale;
}

static void group_decode_q4(const uint8_t *group, float *restrict out)
{
    const float scale = f16_at(group), min = f16_at(group + 2);
    const uint8_t *q = group + 4;
    for (int j = 0; j < DTYPE_GROUP / 2; j++)
        out[j] = (float)(q[j] & 15) * scale + min;
    for (int j = 0; j < DTYPE_GROUP / 2; j++)
        out[DTYPE_GROUP / 2 + j] = (float)(q[j] >> 4) * scale + min;
}

DTYPE_CLONES void blocks_decode_q8(const uint8_t *blocks, int64_t n, float *restrict out)
{
    float last[DTYPE_GROUP];
    for (; n >= DTYPE_GROUP; n -= DTYPE_GROUP, blocks += 68, out += DTYPE_GROUP)
        group_decode_q8(blocks, out);
    if (n > 0) {
        group_decode_q8(blocks, last);
        memcpy(out, last, (size_t)n * sizeof *out);
    }
}

DTYPE_CLONES void blocks_decode_q4(const uint8_t *blocks, int64_t n, float *restrict out)
{
    float last[DTYPE_GROUP];
    for (; n >= DTYPE_GROUP; n -= DTYPE_GROUP, blocks += 36, out += DTYPE_GROUP)
        group_decode_q4(blocks, out);
    if (n > 0) {
        group_decode_q4(blocks, last);
        memcpy(out, last, (size_t)n * sizeof *out);
    }
}

/* Rounds to the nearest integer, ties to even; |x| < 2^22. A libm call would not be vectorised. */
static inline float round_even(float x)
{
    return (x + 0x1.8p23f) - 0x1.8p23f;
}

static inline float clamp(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}

static void group_encode_q8(const float *in, int n, uint8_t *group)
{
    int8_t q[DTYPE_GROUP] = {0};
    float max = 0.0f, sum = 0.0f;
    for (int j = 0; j < n; j++) {
        max = fabsf(in[j]) > max ? fabsf(in[j]) : max;
        sum += in[j] * 0.0f; // NaN as soon as one number is not finite
    }
    const float scale = sum == 0.0f ? max / 127.0f : NAN;
    if (scale > 0.0f) // false for NaN, and when max / 127 underflows to zero
        for (int j = 0; j < n; j++)
            q[j] = (int8_t)round_even(clamp(in[j] / scale, -127.0f, 127.0f));
    memcpy(group, &scale, 4);
    memcpy(group + 4, q, sizeof q);
}

static void group_encode_q4(const float *in, int n, uint8_t *group)
{
    uint8_t q[DTYPE_GROUP] = {0};
    float low = in[0], high = in[0], sum = 0.0f;
    for (int j = 0; j < n; j++) {
        low = in[j] < low ? in[j] : low;
        high = in[j] > high ? in[j] : high;
        sum += in[j] * 0.0f;
    }
    // Codes are chosen for the rounded scale and minimum, which the decoder uses.
    uint16_t min16 = f32_to_f16(low);
    const float min = f16_to_f32(min16);
    uint16_t scale16 = f32_to_f16((high - min) / 15.0f);
    const float scale = f16_to_f32(scale16);
    if (!(sum == 0.0f) || !isfinite(min) || !isfinite(scale)) {
        scale16 = 0x7e00; // NaN
        min16 = 0;
    } else if (scale > 0.0f) { // false when the group is constant
        for (int j = 0; j < n; j++)
            q[j] = (uint8_t)round_even(clamp((in[j] - min) / scale, 0.0f, 15.0f));
    }
    memcpy(group, &scale16, 2);
    memcpy(group + 2, &min16, 2);
    for (int j = 0; j < DTYPE_GROUP / 2; j++)
        group[4 + j] = (uint8_t)(q[j] | q[DTYPE_GROUP / 2 + j] << 4);
}

void blocks_encode_q8(const float *in, int64_t n, uint8_t *blocks)
{
    for (; n > 0; n -= DTYPE_GROUP, in += DTYPE_GROUP, blocks += 68)
        group_encode_q8(in, (int)min_i64(n, DTYPE_GROUP), blocks);
}

void blocks_encode_q4(const float *in, int64_t n, uint8_t *blocks)
{
    for (; n > 0; n -= DTYPE_GROUP, in += DTYPE_GROUP, blocks += 36)
        group_encode_q4(in, (int)min_i64(n, DTYPE_GROUP), blocks);
}
