/* kernels/dtype_nf4.c - see dtype_nf4.h: packing, and conversion to columns of plain nf4, which the
 * decoders of nf4 read. */
#include "kernels/dtype_nf4.h"

#include <string.h>

#define ROW_BLOCK_BYTES (8 + NF4_PARTS + NF4_BLOCK / 2)

int64_t nf4_panel_bytes(int64_t k)
{
    int64_t bytes;
    if (k < 0 || k % NF4_BLOCK != 0 ||
        __builtin_mul_overflow(k / NF4_BLOCK, (int64_t)NF4_COLUMN_BYTES, &bytes) ||
        __builtin_add_overflow(bytes, (int64_t)NF4_HEAD_BYTES, &bytes))
        return -1;
    return k > 0 ? bytes : 0;
}

void nf4_panel_pack(const void *const rows[PANEL_ROWS], int64_t k, uint8_t *panel)
{
    uint8_t block[PANEL_ROWS][4 + NF4_PART / 2], column[NF4_PLAIN_BYTES];
    const void *parts[PANEL_ROWS];
    memset(panel, 0, (size_t)nf4_panel_bytes(k));
    for (int r = 0; r < PANEL_ROWS; r++) {
        parts[r] = rows[r] ? block[r] : NULL;
        if (rows[r] && k > 0)
            memcpy(panel + 4 * r, (const uint8_t *)rows[r] + 4, 4);
    }
    for (int64_t b = 0; b < k / NF4_BLOCK; b++) {
        uint8_t *to = panel + NF4_HEAD_BYTES + b * NF4_COLUMN_BYTES;
        for (int part = 0; part < NF4_PARTS; part++) {
            for (int r = 0; r < PANEL_ROWS; r++) {
                const uint8_t *from = rows[r];
                if (!from)
                    continue;
                from += b * ROW_BLOCK_BYTES;
                memcpy(to + 4 * r, from, 4);
                to[PANEL_ROWS * (4 + part) + r] = from[8 + part];
                memset(block[r], 0, 4);
                memcpy(block[r] + 4, from + 8 + NF4_PARTS + part * NF4_PART / 2, NF4_PART / 2);
            }
            memset(column, 0, sizeof column);
            columns_pack(DTYPE_NF4, parts, NF4_PART, column);
            memcpy(to + NF4_SCALES_BYTES + part * NF4_CODES_BYTES, column + PANEL_ROWS * 4,
                   NF4_CODES_BYTES);
        }
    }
}

void nf4_plain_column(const uint8_t *panel, int64_t k0, uint8_t column[NF4_PLAIN_BYTES])
{
    const int part = (int)(k0 % NF4_BLOCK / NF4_PART);
    const uint8_t *from = panel + NF4_HEAD_BYTES + k0 / NF4_BLOCK * NF4_COLUMN_BYTES;
    float offsets[PANEL_ROWS], factors[PANEL_ROWS], scales[PANEL_ROWS];
    memcpy(offsets, panel, sizeof offsets);
    memcpy(factors, from, sizeof factors);
    for (int r = 0; r < PANEL_ROWS; r++)
        scales[r] = nf4_scale(from[PANEL_ROWS * (4 + part) + r], factors[r], offsets[r]);
    memcpy(column, scales, sizeof scales);
    memcpy(column + sizeof scales, from + NF4_SCALES_BYTES + part * NF4_CODES_BYTES,
           NF4_CODES_BYTES);
}
