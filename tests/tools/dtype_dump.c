/* tests/tools/dtype_dump.c - decodes rows of a number format, for scripts that compare.
 *
 *   dtype_dump FORMAT K row    < rows > f32     one row after the other, dtype_decode_row
 *   dtype_dump FORMAT K f32    < rows > f32     through 32-row panels, panel_decode_f32
 *   dtype_dump FORMAT K bf16   < rows > bf16    through 32-row panels, panel_decode_bf16
 * Output is [n, K] in row order whatever the way. Panels are decoded in ranges of 512 numbers. */
#include "kernels/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANGE 512

static void panel_put(enum dtype t, const void *panel, int64_t k, int n_rows, int size, void *out)
{
    static union {
        float f32[RANGE * PANEL_ROWS];
        uint16_t bf16[RANGE * PANEL_ROWS];
    } part;
    for (int64_t k0 = 0; k0 < k; k0 += RANGE) {
        const int64_t n = min_i64(RANGE, k - k0);
        if (size == 4)
            panel_decode_f32(t, panel, k, k0, k0 + n, part.f32);
        else
            panel_decode_bf16(t, panel, k, k0, k0 + n, part.bf16);
        for (int r = 0; r < n_rows; r++)
            for (int64_t i = 0; i < n; i++) {
                const int64_t to = r * k + k0 + i;
                if (size == 4)
                    ((float *)out)[to] = part.f32[i * PANEL_ROWS + r];
                else
                    ((uint16_t *)out)[to] = part.bf16[(i / 2 * PANEL_ROWS + r) * 2 + i % 2];
            }
    }
}

int main(int argc, char **argv)
{
    const enum dtype t = argc == 4 ? dtype_by_name(argv[1]) : N_DTYPES;
    const int64_t k = argc == 4 ? atoll(argv[2]) : 0;
    const int64_t row_bytes = t == N_DTYPES || k <= 0 ? -1 : dtype_row_bytes(t, k);
    if (row_bytes <= 0) {
        fprintf(stderr, "usage: dtype_dump FORMAT K row|f32|bf16 < rows\n");
        return 2;
    }
    const int by_row = strcmp(argv[3], "row") == 0, size = strcmp(argv[3], "bf16") == 0 ? 2 : 4;
    uint8_t *rows = malloc((size_t)row_bytes * PANEL_ROWS);
    void *panel = aligned_alloc(64, (size_t)dtype_panel_bytes(t, k));
    uint8_t *out = malloc((size_t)(k * size * PANEL_ROWS));
    CHECK(rows && panel && out);
    size_t n;
    while ((n = fread(rows, (size_t)row_bytes, PANEL_ROWS, stdin)) > 0) {
        const void *row[PANEL_ROWS] = {NULL};
        for (size_t r = 0; r < n; r++)
            row[r] = rows + (int64_t)r * row_bytes;
        if (by_row) {
            for (size_t r = 0; r < n; r++)
                dtype_decode_row(t, row[r], k, (float *)(void *)out + (int64_t)r * k);
        } else {
            panel_pack(t, row, k, panel);
            panel_put(t, panel, k, (int)n, size, out);
        }
        fwrite(out, (size_t)(k * size), n, stdout);
    }
    free(rows);
    free(panel);
    free(out);
    return fflush(stdout) || ferror(stdin) || ferror(stdout);
}
