/* kernels/dtype_own.h - the panels of sluice's own formats: q8, q4, bf12 (and nf4_s8, dtype_nf4.h).
 *
 * Owns: the byte layout of such a panel; kernels/cpu decodes and multiplies from it. Refuses: rows
 * (kernels/dtype_blocks.c; a row of bf12 is plain bf16), argument checks (dtype.c).
 *
 * q8, q4: groups of 64 along k. A group is a head and 16 quads (4 numbers along k) of 32 rows, the
 * order that an int8 dot product reads. A short last group keeps its size; the rest is zero.
 *   q8   f32 scale [32], then u8 [16][32][4]: code + 128, because int8 products read it unsigned
 *   q4   f16 scale [32], f16 minimum [32], then u8 [16][16][4]: rows 0..15 in the low halves of the
 *        bytes, rows 16..31 in the high halves
 * bf12: a head, then [ceil(k / 4)] units of two planes and their indices: u8 [2][64], u8 [64].
 *   head    u8 exponents [16] (the last one unused), u32 n_patches, u32 patches [...] padded to 64
 *           bytes; a patch is (place << 8 | exponent), place = k * 32 + row, ascending
 *   plane   sign and mantissa (bit 7 and bits 0..6) of the 2 x 32 numbers of one pair of k
 *   indices 4 bits into exponents: low halves of the bytes for the first plane, high halves for the
 *           second; 15 means exponent 0 until a patch replaces it
 * Interleaving a plane's bytes with the numbers' upper bytes, 8 at a time, gives bf16 pairs: see
 * bf12_place(). */
#ifndef KERNELS_DTYPE_OWN_H
#define KERNELS_DTYPE_OWN_H

#include "kernels/dtype.h"

#define OWN_GROUP      64               // numbers along k of a group of q8 and q4
#define OWN_QUADS      (OWN_GROUP / 4)  // quads of a group
#define Q8_HEAD_BYTES  (PANEL_ROWS * 4) // of a group of 32 rows
#define Q8_GROUP_BYTES (Q8_HEAD_BYTES + OWN_GROUP * PANEL_ROWS)
#define Q4_HEAD_BYTES  (PANEL_ROWS * 4)
#define Q4_GROUP_BYTES (Q4_HEAD_BYTES + OWN_GROUP * PANEL_ROWS / 2)
#define Q8_BIAS        128

#define BF12_PATCH 15  // index of a number whose exponent is in a patch
#define BF12_UNIT  192 // bytes of 4 x 32 numbers
#define BF12_FIXED 20  // bytes of the head before the patches
#define BF12_K_MAX ((1 << 24) / PANEL_ROWS - 2)

/* Room for one patch per 256 numbers keeps a panel below 0.76 of its bf16 size. */
static inline int64_t bf12_head_bytes(int64_t k)
{
    return round_up(BF12_FIXED + 4 * ceil_div(k * PANEL_ROWS, 256), 64);
}

static inline int64_t bf12_patches_max(int64_t k)
{
    return (bf12_head_bytes(k) - BF12_FIXED) / 4;
}

/* The position of number (row, odd) of a pair of k in its plane. Words of 16 rows are in four runs
 * of 8; the runs of rows 0..15 and 16..31 alternate, as byte interleaving needs them. */
static inline int bf12_place(int row, int odd)
{
    const int word = row % 16 * 2 + odd;
    return word / 8 * 16 + row / 16 * 8 + word % 8;
}

int dtype_is_own(enum dtype t);
/* As the functions in kernels/dtype.h without own_, for formats with dtype_is_own(). */
int64_t own_panel_bytes(enum dtype t, int64_t k);
void own_panel_pack(enum dtype t, const void *const rows[PANEL_ROWS], int64_t k, uint8_t *panel);
void own_decode_bf16(enum dtype t, const uint8_t *panel, int64_t k, int64_t k0, int64_t k1,
                     uint16_t *out);
void own_decode_f32(enum dtype t, const uint8_t *panel, int64_t k, int64_t k0, int64_t k1,
                    float *out);
/* Group g of a q8 panel to f32 [64][32]. */
void own_decode_q8_group(const uint8_t *group, float *out);

/* Applies the patches of columns [k0, k1) to pairs [..][32][2] decoded from k0 on. Patches out of
 * range, as in a damaged panel, are ignored. */
void bf12_patch(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, uint16_t *out);

#endif
