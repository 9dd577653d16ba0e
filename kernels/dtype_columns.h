/* kernels/dtype_columns.h - panels of GGUF blocks, their rows side by side.
 *
 * Owns: where a number of such a panel stands. Refuses: the order inside GGUF's own blocks.
 * A panel is a sequence of columns, one per block along k; a column is that block of 32 rows, as
 * many bytes as the 32 blocks have, in these parts:
 *   scale   f16 [32]
 *   min     f16 [32], of formats that have one
 *   scales  of q4_k, q5_k: [12][32] bytes, each as in the block; of q6_k: [16][32] int8
 *   high    what a code has above 4 bits: [slices][64] bytes, one bit per number, or uint16, two
 *   codes   [slices][64] uint32, eight times 4 bits; of q8_0 [slices][8][64] int8
 * A slice is 16 numbers along k. Lane 2 r + p of its 64 holds those of row r and of parity p:
 * number 2 i + p is at bit 4 i (high: i, 2 i). So a vector of lanes decodes to pairs of bf16 by
 * shifts alone: no row is gathered, nothing is transposed. */
#ifndef KERNELS_DTYPE_COLUMNS_H
#define KERNELS_DTYPE_COLUMNS_H

#include "kernels/dtype.h"

/* THE list: X(NAME, name, block, bits of a code, what is subtracted from it, and where the parts
 * start: min (0: none), scales (0: none), high (0: none), codes). */
#define COLUMN_FORMATS(X)                                                                          \
    X(Q4_0, q4_0, 32, 4, 8, 0, 0, 0, 64)                                                           \
    X(Q4_1, q4_1, 32, 4, 0, 64, 0, 0, 128)                                                         \
    X(Q5_0, q5_0, 32, 5, 16, 0, 0, 64, 192)                                                        \
    X(Q5_1, q5_1, 32, 5, 0, 64, 0, 128, 256)                                                       \
    X(Q8_0, q8_0, 32, 8, 0, 0, 0, 0, 64)                                                           \
    X(Q4_K, q4_k, 256, 4, 0, 64, 128, 0, 512)                                                      \
    X(Q5_K, q5_k, 256, 5, 0, 64, 128, 512, 1536)                                                   \
    X(Q6_K, q6_k, 256, 6, 32, 0, 64, 576, 2624)

#define COLUMN_LANES (2 * PANEL_ROWS)
#define COLUMN_SLICE 16

/* The 6-bit scale and minimum of sub-block s, as dtype_blocks.c has them, from bytes that stand
 * PANEL_ROWS apart. */
static inline void columns_k_scale(const uint8_t *p, int s, int *scale, int *min)
{
    const int a = p[(s & 3) * PANEL_ROWS], b = p[(4 + (s & 3)) * PANEL_ROWS];
    const int c = p[(8 + (s & 3)) * PANEL_ROWS];
    *scale = s < 4 ? a & 63 : (c & 15) | (a >> 6) << 4;
    *min = s < 4 ? b & 63 : (c >> 4) | (b >> 6) << 4;
}

int columns_has(enum dtype t); // 1: panels of t are columns

/* panel_pack, panel_decode_f32 and panel_decode_bf16 of these formats; arguments were checked. */
void columns_pack(enum dtype t, const void *const rows[PANEL_ROWS], int64_t k, uint8_t *panel);
void columns_decode_f32(enum dtype t, const uint8_t *panel, int64_t k0, int64_t k1, float *out);
void columns_decode_bf16(enum dtype t, const uint8_t *panel, int64_t k0, int64_t k1, uint16_t *out);

#endif
