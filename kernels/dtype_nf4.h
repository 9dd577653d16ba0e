/* kernels/dtype_nf4.h - panels of nf4 whose scales are codes of 8 bits themselves: nf4_s8.
 *
 * Owns: where every byte of such a panel stands, and the table of the scales' codes. Refuses: nf4
 * with scales of f32 (kernels/dtype_columns.h), argument checks (dtype.c).
 * 64 numbers share a scale: map(code) * factor + offset. bitsandbytes has a factor for 16,384
 * numbers and an offset for a matrix; here a factor is kept for 256 numbers of a row, which costs 3
 * percent, and the offset for a row of a panel.
 *   row     blocks of 256 numbers: f32 factor, f32 offset (the same in all of them), u8 codes of
 *           scales [4], codes [4][32] as in nf4
 *   panel   f32 offsets [32], then columns of 256 numbers: f32 factors [32], u8 codes of scales
 *           [4][32], and four times the codes of a column of nf4 */
#ifndef KERNELS_DTYPE_NF4_H
#define KERNELS_DTYPE_NF4_H

#include "kernels/dtype_columns.h"

#define NF4_BLOCK        256
#define NF4_PART         64 // numbers that share a scale
#define NF4_PARTS        (NF4_BLOCK / NF4_PART)
#define NF4_HEAD_BYTES   (PANEL_ROWS * 4)
#define NF4_SCALES_BYTES (PANEL_ROWS * (4 + NF4_PARTS))
#define NF4_CODES_BYTES  (NF4_PART * PANEL_ROWS / 2) // of a part
#define NF4_COLUMN_BYTES (NF4_SCALES_BYTES + NF4_PARTS * NF4_CODES_BYTES)

/* What a scale's code stands for: exponents of ten and ever finer fractions, symmetric but for 1.
 */
static inline float nf4_scale_number(uint8_t code)
{
    static const float numbers[129] = {
        0.0f,          5.5000004e-7f, 3.2500002e-6f, 7.75e-6f,      2.1249998e-5f,  4.375e-5f,
        6.625e-5f,     8.875e-5f,     1.5625001e-4f, 2.6875004e-4f, 3.8125002e-4f,  4.9375003e-4f,
        6.062501e-4f,  7.1875006e-4f, 8.3125e-4f,    9.437501e-4f,  1.2812499e-3f,  1.84375e-3f,
        2.40625e-3f,   2.96875e-3f,   3.5312497e-3f, 4.09375e-3f,   4.6562497e-3f,  5.2187503e-3f,
        5.78125e-3f,   6.34375e-3f,   6.90625e-3f,   7.46875e-3f,   8.03125e-3f,    8.59375e-3f,
        9.156249e-3f,  9.71875e-3f,   1.140625e-2f,  1.421875e-2f,  1.703125e-2f,   1.9843752e-2f,
        2.265625e-2f,  2.546875e-2f,  2.8281251e-2f, 3.109375e-2f,  3.390625e-2f,   3.6718752e-2f,
        3.953125e-2f,  4.2343747e-2f, 4.515625e-2f,  4.796875e-2f,  5.078125e-2f,   5.359375e-2f,
        5.640625e-2f,  5.9218753e-2f, 6.203125e-2f,  6.484375e-2f,  6.7656256e-2f,  7.0468746e-2f,
        7.328125e-2f,  7.609375e-2f,  7.890625e-2f,  8.171876e-2f,  8.453125e-2f,   8.734375e-2f,
        9.015625e-2f,  9.2968754e-2f, 9.578126e-2f,  9.859375e-2f,  1.07031256e-1f, 1.2109375e-1f,
        1.3515624e-1f, 1.4921875e-1f, 1.6328125e-1f, 1.7734376e-1f, 1.9140625e-1f,  2.0546874e-1f,
        2.1953125e-1f, 2.3359375e-1f, 2.4765624e-1f, 2.6171875e-1f, 2.7578127e-1f,  2.8984374e-1f,
        3.0390626e-1f, 3.1796873e-1f, 3.3203125e-1f, 3.4609374e-1f, 3.6015624e-1f,  3.7421876e-1f,
        3.8828123e-1f, 4.0234375e-1f, 4.1640624e-1f, 4.3046874e-1f, 4.4453126e-1f,  4.5859373e-1f,
        4.7265625e-1f, 4.867187e-1f,  5.0078124e-1f, 5.148437e-1f,  5.289062e-1f,   5.4296875e-1f,
        5.570313e-1f,  5.710938e-1f,  5.8515626e-1f, 5.992187e-1f,  6.1328125e-1f,  6.273438e-1f,
        6.414063e-1f,  6.5546876e-1f, 6.695312e-1f,  6.8359375e-1f, 6.976563e-1f,   7.117188e-1f,
        7.2578126e-1f, 7.398437e-1f,  7.5390625e-1f, 7.679688e-1f,  7.8203124e-1f,  7.9609376e-1f,
        8.101562e-1f,  8.2421875e-1f, 8.382813e-1f,  8.5234374e-1f, 8.6640626e-1f,  8.804687e-1f,
        8.9453125e-1f, 9.085938e-1f,  9.2265624e-1f, 9.3671876e-1f, 9.507812e-1f,   9.6484375e-1f,
        9.789063e-1f,  9.9296874e-1f, 1.0f};
    return code < 127 ? -numbers[127 - code] : numbers[code - 127];
}

/* Two roundings, as bitsandbytes has them. */
static inline float nf4_scale(uint8_t code, float factor, float offset)
{
    const float product = nf4_scale_number(code) * factor;
    return product + offset;
}

int64_t nf4_panel_bytes(int64_t k);
void nf4_panel_pack(const void *const rows[PANEL_ROWS], int64_t k, uint8_t *panel);
/* 64 numbers from column k0 on as a column of nf4 of its own. */
#define NF4_PLAIN_BYTES (PANEL_ROWS * 4 + NF4_CODES_BYTES)
void nf4_plain_column(const uint8_t *panel, int64_t k0, uint8_t column[NF4_PLAIN_BYTES]);

#endif
