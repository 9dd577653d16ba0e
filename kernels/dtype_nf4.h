/* kernels/dtype_nf4.h - panels of nf4_s8: nf4 whose scales are 8-bit codes.
 *
 * Owns: the byte layout of such a panel, and the table of scale codes. Refuses: nf4 with f32 scales
 * (kernels/dtype_columns.h), argument checks (dtype.c).
 * 64 numbers share a scale: table[code] * factor + offset. bitsandbytes has one factor per 16,384
 * numbers and one offset per matrix; here each 256 numbers of a row keep a factor, which costs 3
 * percent, and each row of a panel an offset.
 *   row     blocks of 256 numbers: f32 factor, f32 offset (the same in all blocks), u8 codes of
 *           scales [4], codes [4][32] as in nf4
 *   panel   f32 offsets [32], then columns of 256 numbers: f32 factors [32], u8 codes of scales
 *           [4][32], and four times the codes of a column of nf4 */
#ifndef KERNELS_DTYPE_NF4_H
#define KERNELS_DTYPE_NF4_H

#include "kernels/dtype_columns.h"

#include <math.h>

#define NF4_BLOCK        256
#define NF4_PART         64 // numbers that share a scale
#define NF4_PARTS        (NF4_BLOCK / NF4_PART)
#define NF4_HEAD_BYTES   (PANEL_ROWS * 4)
#define NF4_SCALES_BYTES (PANEL_ROWS * (4 + NF4_PARTS))
#define NF4_CODES_BYTES  (NF4_PART * PANEL_ROWS / 2) // of a part
#define NF4_COLUMN_BYTES (NF4_SCALES_BYTES + NF4_PARTS * NF4_CODES_BYTES)

/* Boundary j of 2^e + 1 equidistant ones between 0.1 and 1, as torch.linspace() rounds them. */
static inline float nf4_boundary(int e, int j)
{
    const int n = 1 << e;
    const float step = (1.0f - 0.1f) / (float)n;
    return j < (n + 1) / 2 ? fmaf(step, (float)j, 0.1f) : fmaf(-step, (float)(n - j), 1.0f);
}

/* The number of a scale code, as bitsandbytes defines it: 127 is 0, 255 is 1, the others are
 * symmetric: for e = 0 .. 6 the 2^e midpoints between boundaries, times 10^(e - 6). */
static inline float nf4_scale_number(uint8_t code)
{
    const int i = code < 127 ? 126 - code : code - 128; // -1: 0
    const int e = i < 1 ? 0 : i < 3 ? 1 : i < 7 ? 2 : i < 15 ? 3 : i < 31 ? 4 : i < 63 ? 5 : 6;
    const float tens = e == 0   ? 1e-6f
                       : e == 1 ? 1e-5f
                       : e == 2 ? 1e-4f
                       : e == 3 ? 1e-3f
                       : e == 4 ? 1e-2f
                       : e == 5 ? 1e-1f
                                : 1.0f;
    const int j = i + 1 - (1 << e);
    const float number = tens * ((nf4_boundary(e, j) + nf4_boundary(e, j + 1)) / 2);
    return i < 0 ? 0.0f : code == 255 ? 1.0f : code < 127 ? -number : number;
}

/* Rounds twice, as bitsandbytes does. */
static inline float nf4_scale(uint8_t code, float factor, float offset)
{
    const float product = nf4_scale_number(code) * factor;
    return product + offset;
}

int64_t nf4_panel_bytes(int64_t k);
void nf4_panel_pack(const void *const rows[PANEL_ROWS], int64_t k, uint8_t *panel);
/* Writes the 64 numbers from column k0 on as one column of plain nf4. */
#define NF4_PLAIN_BYTES (PANEL_ROWS * 4 + NF4_CODES_BYTES)
void nf4_plain_column(const uint8_t *panel, int64_t k0, uint8_t column[NF4_PLAIN_BYTES]);

#endif
