/* kernels/dtype_grid.h - GGUF's iq1_*, iq2_* and iq3_*: numbers that are points of a grid.
 *
 * Owns: the layout of their blocks and panels, what a code means. Refuses: the points
 * (kernels/dtype_grid_points.inc), vectors (kernels/cpu/decode_grid.inc).
 * A block is 256 numbers, in eights: an eight is one point of a grid with eight codes, or two
 * points with four, and has eight signs; 8 to 32 numbers share a scale of 3 or 4 bits. iq1_* have
 * no signs: the codes of an eight are -1, 0 and 1, and an eighth is added to all or taken from all.
 *   number = d * unit * (2 * scale + 1) * (level(code) + add) * sign
 * where all but d are small integers and a power of two: every product is exact in f32.
 * A panel holds the rows' blocks as 16-bit words, [words of a row][32].
 *
 * The including file may say what a word is. By default it is a number. For vectors of rows, or for
 * a device, which has grids of its own, it defines:
 *   GRID_WORD               uint32_t, or a vector of it
 *   GRID_FN                 of functions: static inline
 *   GRID_LOAD(p, stride)    a 16-bit word, the row's next word being `stride` bytes away
 *   GRID_AT(name, index)    point `index` of grid_NAME, in the lower 16 bits
 *   GRID_TABLE              if it defines the grids, too; else they are those of dtype_grid.c */
#ifndef KERNELS_DTYPE_GRID_H
#define KERNELS_DTYPE_GRID_H

#include "kernels/dtype.h"

/* THE list: X(NAME, name, bytes of a block, id in GGUF). */
#define GRID_FORMATS(X)                                                                            \
    X(IQ1_S, iq1_s, 50, 19)                                                                        \
    X(IQ1_M, iq1_m, 56, 29)                                                                        \
    X(IQ2_XXS, iq2_xxs, 66, 16)                                                                    \
    X(IQ2_XS, iq2_xs, 74, 17)                                                                      \
    X(IQ2_S, iq2_s, 82, 22)                                                                        \
    X(IQ3_XXS, iq3_xxs, 98, 18)                                                                    \
    X(IQ3_S, iq3_s, 110, 21)

#define GRID_BLOCK  256
#define GRID_EIGHTS (GRID_BLOCK / 8)
#define GRID_STRIDE (2 * PANEL_ROWS) // from word to word of a row in a panel

#ifndef GRID_WORD
#define GRID_WORD            uint32_t
#define GRID_FN              static inline
#define GRID_LOAD(p, stride) ((uint32_t)((p)[0] | (p)[1] << 8))
#define GRID_AT(name, index) grid_##name[index]
#endif

#ifndef GRID_TABLE
extern const uint16_t grid_iq1[], grid_iq2_xxs[], grid_iq2_xs[], grid_iq2_s[], grid_iq3_xxs[],
    grid_iq3_s[];
#endif

/* An eight of a block. */
struct grid_eight {
    GRID_WORD codes[2]; // points: see grid_code()
    GRID_WORD signs;    // bit i: number i is negative
    GRID_WORD scale;    // odd
    GRID_WORD add;      // iq1_*: 1 or -1, of the eighths that levels count there
};

GRID_FN int grid_has(enum dtype t) // 1: t is one of these formats
{
#define GRID_IS(NAME, ...) || t == DTYPE_##NAME
    return 0 GRID_FORMATS(GRID_IS);
#undef GRID_IS
}

GRID_FN int grid_is_iq1(enum dtype t)
{
    return t == DTYPE_IQ1_S || t == DTYPE_IQ1_M;
}

GRID_FN int grid_bits(enum dtype t) // of a code
{
    return t == DTYPE_IQ3_XXS || t == DTYPE_IQ3_S ? 4 : 2;
}

GRID_FN float grid_unit(enum dtype t)
{
    return t == DTYPE_IQ3_S ? 1.0f : t == DTYPE_IQ3_XXS ? 0.25f : 0.125f;
}

/* What a code means, as an integer of 32 bits. */
GRID_FN GRID_WORD grid_level(enum dtype t, GRID_WORD code)
{
    if (grid_is_iq1(t)) // -8, 0, 8
        return 8 * code - 8;
    if (t == DTYPE_IQ3_S) // 1, 3 .. 15
        return 2 * code + 1;
    if (t == DTYPE_IQ3_XXS) // 4, 12 .. 52, 62
        return 8 * code + 4 + 2 * ((code + 1) >> 3);
    return 17 * code + 8 + (code >> 1); // 8, 25, 43
}

/* Code i of 8; of its bits the lower ones count: 2, or the first 3 of 4. */
GRID_FN GRID_WORD grid_code(enum dtype t, const struct grid_eight *e, int i)
{
    return grid_bits(t) == 2 ? e->codes[0] >> 2 * i
                             : (i < 4 ? e->codes[0] : e->codes[1]) >> 4 * (i % 4);
}

GRID_FN GRID_WORD grid_word(const uint8_t *block, int stride, int i)
{
    return GRID_LOAD(block + i * stride, stride);
}

GRID_FN GRID_WORD grid_byte(const uint8_t *block, int stride, int i)
{
    return grid_word(block, stride, i / 2) >> i % 2 * 8 & 255;
}

/* Half i of the bytes from `at` on. */
GRID_FN GRID_WORD grid_half(const uint8_t *block, int stride, int at, int i)
{
    return grid_byte(block, stride, at + i / 2) >> i % 2 * 4 & 15;
}

/* Word pair i of the words from `at` on: the signs of four eights, 7 bits each, and a scale. */
GRID_FN GRID_WORD grid_pair(const uint8_t *block, int stride, int at, int i)
{
    return grid_word(block, stride, at + i) | grid_word(block, stride, at + i + 1) << 16;
}

/* Of eight signs seven are stored: the number of negative ones is even. */
GRID_FN GRID_WORD grid_signs(GRID_WORD seven)
{
    GRID_WORD odd = seven ^ seven >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return seven | (odd & 1) << 7;
}

/* d of a block, as the bits of an f16. */
GRID_FN GRID_WORD grid_d(enum dtype t, const uint8_t *block, int stride)
{
    if (t != DTYPE_IQ1_M)
        return grid_word(block, stride, 0);
    return grid_word(block, stride, 24) >> 12 | (grid_word(block, stride, 25) >> 8 & 0xf0) |
           (grid_word(block, stride, 26) >> 4 & 0xf00) | (grid_word(block, stride, 27) & 0xf000);
}

/* iq1_*: eight g of a block (0 .. GRID_EIGHTS - 1). */
GRID_FN void grid_eight_iq1(enum dtype t, const uint8_t *block, int stride, int g,
                            struct grid_eight *e)
{
    const int is_s = t == DTYPE_IQ1_S;
    GRID_WORD high, scale; // high: 3 bits of the index, the sign of what is added
    if (is_s) { // d, 32 bytes, then a word per 32 numbers: four times 3 bits, scale, sign
        const GRID_WORD word = grid_word(block, stride, 17 + g / 4);
        high = (word >> g % 4 * 3 & 7) | (word >> 15) << 3;
        scale = word >> 12 & 7;
    } else { // 32 bytes, 16 of halves per 8 numbers, four words: four scales, a quarter of d
        high = grid_half(block, stride, 32, g);
        scale = grid_word(block, stride, 24 + g / 8) >> g / 2 % 4 * 3 & 7;
    }
    e->codes[0] = GRID_AT(iq1, grid_byte(block, stride, (is_s ? 2 : 0) + g) | (high & 7) << 8);
    e->scale = 2 * scale + 1;
    e->add = 1 - 2 * (high >> 3);
}

GRID_FN void grid_eight_iq2(enum dtype t, const uint8_t *block, int stride, int g,
                            struct grid_eight *e)
{
    GRID_WORD word;
    if (t == DTYPE_IQ2_XXS) { // d, then per 32 numbers four bytes and a pair of words
        word = grid_pair(block, stride, 3, g / 4 * 4);
        e->codes[0] = GRID_AT(iq2_xxs, grid_byte(block, stride, 2 + g / 4 * 8 + g % 4));
        e->signs = grid_signs(word >> g % 4 * 7 & 127);
        e->scale = 2 * (word >> 28) + 1;
    } else if (t == DTYPE_IQ2_XS) { // d, 32 words: index and signs; 8 bytes of scales
        word = grid_word(block, stride, 1 + g);
        e->codes[0] = GRID_AT(iq2_xs, word & 511);
        e->signs = grid_signs(word >> 9);
        e->scale = 2 * grid_half(block, stride, 66, g / 2) + 1;
    } else { // d, 32 bytes, 32 bytes of signs, 8 bytes of high bits, 8 of scales
        word = grid_byte(block, stride, 66 + g / 4) >> g % 4 * 2 & 3;
        e->codes[0] = GRID_AT(iq2_s, grid_byte(block, stride, 2 + g) | word << 8);
        e->signs = grid_byte(block, stride, 34 + g);
        e->scale = 2 * grid_half(block, stride, 74, g / 2) + 1;
    }
}

GRID_FN void grid_eight_iq3(enum dtype t, const uint8_t *block, int stride, int g,
                            struct grid_eight *e)
{
    const GRID_WORD index = grid_word(block, stride, 1 + g); // a byte of either four
    GRID_WORD word;
    if (t == DTYPE_IQ3_XXS) { // d, 64 bytes, then per 32 numbers a pair of words
        word = grid_pair(block, stride, 33, g / 4 * 2);
        e->codes[0] = GRID_AT(iq3_xxs, index & 255);
        e->codes[1] = GRID_AT(iq3_xxs, index >> 8);
        e->signs = grid_signs(word >> g % 4 * 7 & 127);
        e->scale = 2 * (word >> 28) + 1;
    } else { // d, 64 bytes, 8 bytes of high bits, 32 bytes of signs, 4 of scales
        word = grid_byte(block, stride, 66 + g / 4) >> g % 4 * 2;
        e->codes[0] = GRID_AT(iq3_s, (index & 255) | (word & 1) << 8);
        e->codes[1] = GRID_AT(iq3_s, index >> 8 | (word >> 1 & 1) << 8);
        e->signs = grid_byte(block, stride, 74 + g);
        e->scale = 2 * grid_half(block, stride, 106, g / 4) + 1;
    }
}

GRID_FN void grid_eight(enum dtype t, const uint8_t *block, int stride, int g, struct grid_eight *e)
{
    if (grid_is_iq1(t))
        grid_eight_iq1(t, block, stride, g, e);
    else if (grid_bits(t) == 2)
        grid_eight_iq2(t, block, stride, g, e);
    else
        grid_eight_iq3(t, block, stride, g, e);
}

/* Level of number i of an eight, with what is added; the sign is not in it. */
GRID_FN GRID_WORD grid_level_of(enum dtype t, const struct grid_eight *e, int i)
{
    const GRID_WORD level = grid_level(t, grid_code(t, e, i) & (grid_bits(t) == 2 ? 3 : 7));
    return grid_is_iq1(t) ? level + e->add : level;
}

#endif
