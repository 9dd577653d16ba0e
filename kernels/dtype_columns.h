/* kernels/dtype_columns.h - panels of blocks, their rows side by side.
 *
 * Owns: where a number of such a panel stands. Refuses: the order inside GGUF's own blocks.
 * A panel is a sequence of columns, one per block along k; a column is that block of 32 rows, as
 * many bytes as the 32 blocks have, in these parts:
 *   scale   f16 [32]; f32 of f8_*, nf4; of mxfp4 the exponent, a byte
 *   min     f16 [32], of formats that have one; of g4_* the zero, a byte
 *   scales  the bytes of the block that hold its scales of parts, [bytes][32] (columns_part_scale)
 *   high    what a code has above its low bits: [slices][64] bytes, one bit per number, or uint16,
 *           two
 *   codes   [slices][64] uint32, eight times 4 bits, or uint16, eight times 2 bits; of 8 bits
 *           [slices][8][64] bytes
 * A slice is 16 numbers along k. Lane 2 r + p of its 64 holds those of row r and of parity p:
 * number 2 i + p is at bit 4 i (high and 2 bits: i, 2 i). So a vector of lanes decodes to pairs of
 * bf16 by shifts alone: no row is gathered, nothing is transposed. */
#ifndef KERNELS_DTYPE_COLUMNS_H
#define KERNELS_DTYPE_COLUMNS_H

#include "kernels/dtype.h"

/* What stands beside the codes, and what a code means. */
enum column_kind {
    COLUMN_PLAIN,   // d * (code - bias), + min
    COLUMN_K,       // q4_k, q5_k: scales and minima of 32 numbers, 6 bits
    COLUMN_NIBBLES, // q2_k: of 16 numbers, 4 bits
    COLUMN_INT8,    // q6_k: scales of 16 numbers, a byte
    COLUMN_SIX,     // q3_k: of 16 numbers, 6 bits less 32
    COLUMN_XS,      // iq4_xs: of 32 numbers, 6 bits less 32; codes as of iq4_nl
    COLUMN_NL,      // iq4_nl: codes are looked up
    COLUMN_E8M0,    // mxfp4: codes are looked up, scale 2^(byte - 128)
    COLUMN_ZERO,    // g4_*: d * (code - zero)
    COLUMN_E4M3,    // f8_*: a code is a number of 8 bits; f32 scale
    COLUMN_NF4,     // codes are looked up; f32 scale
};

/* THE list: X(NAME, name, block, bits of a code, what is subtracted from it, kind, and where the
 * parts start: min (0: none), scales (0: none), high (0: none), codes). */
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
    X(NF4, nf4, 64, 4, 0, COLUMN_NF4, 0, 0, 0, 128)

/* What codes of 4 bits stand for where they are looked up: of iq4, of mxfp4 (twice what they are),
 * of nf4. */
#define COLUMN_NL_NUMBERS -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113

#define COLUMN_MXFP4_NUMBERS 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12
#define COLUMN_NF4_NUMBERS                                                                         \
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,                      \
        -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,                 \
        0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,    \
        0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f

#define COLUMN_LANES (2 * PANEL_ROWS)
#define COLUMN_SLICE 16

/* How the bits of a code are split: those of `codes`, the others of `high`. */
static inline int columns_low_bits(int bits)
{
    return bits < 4 ? 2 : bits < 8 ? 4 : 8;
}

/* Kinds whose scale is no f16: what they decode to may be too small for a normal f32. */
static inline int columns_scale_is_wide(int kind)
{
    return kind == COLUMN_E8M0 || kind == COLUMN_E4M3 || kind == COLUMN_NF4;
}

static inline int columns_is_looked_up(int kind)
{
    return kind == COLUMN_XS || kind == COLUMN_NL || kind == COLUMN_E8M0 || kind == COLUMN_NF4;
}

/* Scale and minimum of the part that slice s (16 numbers) of a block lies in, from the bytes of the
 * block that hold them, which stand PANEL_ROWS apart. No minimum: 0. */
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
    case COLUMN_XS: // two bytes of upper bits, four of lower ones
        a = p[(2 + i / 2) * PANEL_ROWS] >> i % 2 * 4 & 15;
        *scale = (a | (p[i / 4 * PANEL_ROWS] >> i % 4 * 2 & 3) << 4) - 32;
        return;
    case COLUMN_K: // as kernels/dtype_blocks.c has them
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

/* 2^(e - 128), e = 0 and 1 as denormals: the scale of mxfp4, half of what its exponent says because
 * its numbers are doubled. */
static inline float e8m0_half(uint8_t e)
{
    union f32_bits x;
    x.u = e < 2 ? 0x200000u << e : (uint32_t)(e - 1) << 23;
    return x.f;
}

/* A number of 8 bits (1 sign, 4 exponent, 3 mantissa; no infinities, 0x7f is NaN) as the f16 that
 * is 256 times smaller. */
static inline uint16_t e4m3_f16(uint8_t b)
{
    const int rest = (b & 0x7f) << 7;
    return (uint16_t)((b & 0x80) << 8 | rest | (rest == 0x3f80 ? 0x4000 : 0));
}

static inline float e4m3_to_f32(uint8_t b)
{
    return f16_to_f32(e4m3_f16(b)) * 256.0f;
}

int columns_has(enum dtype t); // 1: panels of t are columns

/* panel_pack, panel_decode_f32 and panel_decode_bf16 of these formats; arguments were checked. */
void columns_pack(enum dtype t, const void *const rows[PANEL_ROWS], int64_t k, uint8_t *panel);
void columns_decode_f32(enum dtype t, const uint8_t *panel, int64_t k0, int64_t k1, float *out);
void columns_decode_bf16(enum dtype t, const uint8_t *panel, int64_t k0, int64_t k1, uint16_t *out);

#endif
