/* kernels/dtype_columns.h - panels of block formats, with the 32 rows interleaved.
 *
 * Owns: the position of each number in such a panel. Refuses: the order inside GGUF's own blocks.
 * A panel is a sequence of columns, one per block along k. A column holds that block of all 32 rows
 * in as many bytes as the 32 blocks have, in these parts:
 *   scale   f16 [32]; b4_*: bf16; f8_*, nf4, nv4_*, i8_*: f32; mxfp4: the exponent, a byte
 *   min     f16 [32], where the format has one; g4_*, i8_*: the zero, a byte
 *   scales  the block's bytes that hold scales of parts, [bytes][32] (columns_part_scale)
 *   high    the bits of a code above its low bits: one per number in [slices][64] bytes, two per
 *           number in [slices][64] uint16
 *   codes   [slices][64] uint32 of eight 4-bit codes, or uint16 of eight 2-bit codes; 8-bit codes:
 *           [slices][8][64] bytes
 * A slice is 16 numbers along k in 64 lanes. Lane 2 r + p holds the numbers 2 i + p (i = 0..7) of
 * row r, number 2 i + p at bit 4 i (4-bit codes), 2 i (2 bits) or i (1 bit). So a vector of lanes
 * decodes to bf16 pairs by shifts alone, without gathers or transposes. */
#ifndef KERNELS_DTYPE_COLUMNS_H
#define KERNELS_DTYPE_COLUMNS_H

#include "kernels/dtype.h"

/* What is stored beside the codes, and what a code means. */
enum column_kind {
    COLUMN_PLAIN,   // d * (code - bias), + min where the format has one
    COLUMN_K,       // q4_k, q5_k: 6-bit scale and minimum per 32 numbers
    COLUMN_NIBBLES, // q2_k: 4-bit scale and minimum per 16 numbers
    COLUMN_INT8,    // q6_k: int8 scale per 16 numbers
    COLUMN_SIX,     // q3_k: 6-bit scale less 32 per 16 numbers
    COLUMN_XS,      // iq4_xs: 6-bit scale less 32 per 32 numbers; codes as iq4_nl
    COLUMN_NL,      // iq4_nl: table codes
    COLUMN_E8M0,    // mxfp4: table codes, scale 2^(byte - 128)
    COLUMN_ZERO,    // g4_*: d * (code - zero)
    COLUMN_E4M3,    // f8_*: a code is an e4m3 number; f32 scale
    COLUMN_NF4,     // table codes; f32 scale
    COLUMN_BF16,    // b4_*: as COLUMN_PLAIN; bf16 scale
    COLUMN_BYTES,   // i8_*: d * (byte - zero); f32 scale
    COLUMN_E2M1,    // nv4_*: table codes; f32 factor, e4m3 scale per 16 numbers
};

/* THE list: X(NAME, name, block, bits of a code, bias subtracted from a code, kind, and the byte
 * offsets in a column of min, scales, high (0: none) and codes). */
#define COLUMN_FORMATS(X)                                                                          \
    X(Q4_0, q4_0, 32, 4, 8, COLUMN_PLAIN, 0, 0, 0, 64)                                             \
    X(Q4_1, q4_1, 32, 4, 0, COLUMN_PLAIN, 64, 0, 0, 128)                                           \
    X(Q5_0, q5_0, 32, 5, 16, COLUMN_PLAIN, 0, 0, 64, 192)                                          \
    X(Q5_1, q5_1, 32, 5, 0, COLUMN_PLAIN, 64, 0, 128, 256)                                         \
    X(Q8_0, q8_0, 32, 8, 0, COLUMN_PLAIN, 0, 0, 0, 64)                                             \
    X(IQ4_NL, iq4_nl, 32, 4, 0, COLUMN_NL, 0, 0, 0, 64)                                            \
    X(MXFP4, mxfp4, 32, 4, 0, COLUMN_E8M0, 0, 0, 0, 32)                                            \
    X(Q2_K, q2_k, 256, 2, 0, COLUMN_NIBBLES, 64, 128, 0, 640)                                      \
    X(Q3_K, q3_k, 256, 3, 4, COLUMN_SIX, 0, 64, 448, 1472)                                         \
    X(Q4_K, q4_k, 256, 4, 0, COLUMN_K, 64, 128, 0, 512)                                            \
    X(Q5_K, q5_k, 256, 5, 0, COLUMN_K, 64, 128, 512, 1536)                                         \
    X(Q6_K, q6_k, 256, 6, 32, COLUMN_INT8, 0, 64, 576, 2624)                                       \
    X(IQ4_XS, iq4_xs, 256, 4, 0, COLUMN_XS, 0, 64, 0, 256)                                         \
    X(TQ2_0, tq2_0, 256, 2, 1, COLUMN_PLAIN, 0, 0, 0, 64)                                          \
    X(G4_32, g4_32, 32, 4, 0, COLUMN_ZERO, 64, 0, 0, 96)                                           \
    X(G4_64, g4_64, 64, 4, 0, COLUMN_ZERO, 64, 0, 0, 96)                                           \
    X(G4_128, g4_128, 128, 4, 0, COLUMN_ZERO, 64, 0, 0, 96)                                        \
    X(F8_32, f8_32, 32, 8, 0, COLUMN_E4M3, 0, 0, 0, 128)                                           \
    X(F8_128, f8_128, 128, 8, 0, COLUMN_E4M3, 0, 0, 0, 128)                                        \
    X(NF4, nf4, 64, 4, 0, COLUMN_NF4, 0, 0, 0, 128)                                                \
    X(B4_32, b4_32, 32, 4, 8, COLUMN_BF16, 0, 0, 0, 64)                                            \
    X(B4_128, b4_128, 128, 4, 8, COLUMN_BF16, 0, 0, 0, 64)                                         \
    X(NV4_64, nv4_64, 64, 4, 0, COLUMN_E2M1, 0, 128, 0, 256)                                       \
    X(NV4_256, nv4_256, 256, 4, 0, COLUMN_E2M1, 0, 128, 0, 640)                                    \
    X(I8_32, i8_32, 32, 8, 0, COLUMN_BYTES, 128, 0, 0, 160)                                        \
    X(I8_128, i8_128, 128, 8, 0, COLUMN_BYTES, 128, 0, 0, 160)

/* Tables of 4-bit codes: iq4_*, mxfp4 (doubled), nv4_* (there is no -0), nf4. */
#define COLUMN_NL_NUMBERS -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113

#define COLUMN_MXFP4_NUMBERS 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12
#define COLUMN_E2M1_NUMBERS  0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6
#define COLUMN_NF4_NUMBERS                                                                         \
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,                      \
        -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,                 \
        0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,    \
        0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f

#define COLUMN_LANES (2 * PANEL_ROWS)
#define COLUMN_SLICE 16

/* Bits of a code that are in `codes`; the others are in `high`. */
static inline int columns_low_bits(int bits)
{
    return bits < 4 ? 2 : bits < 8 ? 4 : 8;
}

/* Kinds whose scale is not f16: a decoded number may be too small for a normal f32. */
static inline int columns_scale_is_wide(int kind)
{
    return kind == COLUMN_E8M0 || kind == COLUMN_E4M3 || kind == COLUMN_NF4 ||
           kind == COLUMN_BF16 || kind == COLUMN_E2M1 || kind == COLUMN_BYTES;
}

/* Kinds with a zero, a byte, where others have a minimum. */
static inline int columns_has_zero(int kind)
{
    return kind == COLUMN_ZERO || kind == COLUMN_BYTES;
}

static inline int columns_scale_bytes(int kind)
{
    return kind == COLUMN_E8M0 ? 1 : !columns_scale_is_wide(kind) || kind == COLUMN_BF16 ? 2 : 4;
}

static inline int columns_is_looked_up(int kind)
{
    return kind == COLUMN_XS || kind == COLUMN_NL || kind == COLUMN_E8M0 || kind == COLUMN_NF4 ||
           kind == COLUMN_E2M1;
}

/* Scale and minimum (0: none) of slice s of a block, from the block's bytes `p` that hold them,
 * PANEL_ROWS apart. */
static inline void columns_part_scale(int kind, const uint8_t *p, int s, int *scale, int *min)
{
    const int i = s / 2; // of 32 numbers
    int a, b, c;
    *min = 0;
    switch (kind) {
    case COLUMN_NIBBLES:
        *scale = p[s * PANEL_ROWS] & 15;
        *min = p[s * PANEL_ROWS] >> 4;
        return;
    case COLUMN_SIX:
        a = p[(s & 7) * PANEL_ROWS] >> s / 8 * 4 & 15;
        *scale = (a | (p[(8 + (s & 3)) * PANEL_ROWS] >> s / 4 * 2 & 3) << 4) - 32;
        return;
    case COLUMN_XS: // two bytes of upper bits, four of lower bits
        a = p[(2 + i / 2) * PANEL_ROWS] >> i % 2 * 4 & 15;
        *scale = (a | (p[i / 4 * PANEL_ROWS] >> i % 4 * 2 & 3) << 4) - 32;
        return;
    case COLUMN_K: // as in kernels/dtype_blocks.c
        a = p[(i & 3) * PANEL_ROWS];
        b = p[(4 + (i & 3)) * PANEL_ROWS];
        c = p[(8 + (i & 3)) * PANEL_ROWS];
        *scale = i < 4 ? a & 63 : (c & 15) | (a >> 6) << 4;
        *min = i < 4 ? b & 63 : (c >> 4) | (b >> 6) << 4;
        return;
    default: // q6_k
        *scale = (int8_t)p[s * PANEL_ROWS];
    }
}

/* 2^(e - 128), a denormal for e = 0 and 1: half of mxfp4's scale, because the table is doubled. */
static inline float e8m0_half(uint8_t e)
{
    union f32_bits x;
    x.u = e < 2 ? 0x200000u << e : (uint32_t)(e - 1) << 23;
    return x.f;
}

/* An e4m3 number (1 sign, 4 exponent, 3 mantissa bits; no infinities, 0x7f is NaN) divided by 256,
 * as f16. */
static inline uint16_t e4m3_f16(uint8_t b)
{
    const int rest = (b & 0x7f) << 7;
    return (uint16_t)((b & 0x80) << 8 | rest | (rest == 0x3f80 ? 0x4000 : 0));
}

static inline float e4m3_to_f32(uint8_t b)
{
    return f16_to_f32(e4m3_f16(b)) * 256.0f;
}

/* A scale of nv4_*. Checkpoints either multiply by a factor or divide by one; one below 0 divides,
 * by its size. */
static inline float e4m3_scaled(uint8_t scale, float factor)
{
    const float f = e4m3_to_f32(scale);
    return factor < 0 ? f / -factor : f * factor;
}

int columns_has(enum dtype t); // 1: panels of t are columns

/* As panel_pack, panel_decode_f32 and panel_decode_bf16; the caller has checked the arguments. */
void columns_pack(enum dtype t, const void *const rows[PANEL_ROWS], int64_t k, uint8_t *panel);
void columns_decode_f32(enum dtype t, const uint8_t *panel, int64_t k0, int64_t k1, float *out);
void columns_decode_bf16(enum dtype t, const uint8_t *panel, int64_t k0, int64_t k1, uint16_t *out);

#endif
