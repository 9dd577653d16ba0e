/* engine/model/containers/gguf_nvfp4.c - see gguf_nvfp4.h. */
#include "engine/model/containers/gguf_nvfp4.h"

#include <string.h>

#define FILE_BLOCK       64
#define FILE_BLOCK_BYTES 36
#define BLOCK_MAX        256  // numbers of a row's block
#define NAN_SCALE        0x7f // which ggml reads as 0

enum dtype gguf_nvfp4_dtype(int64_t k)
{
    return k % 256 == 0 ? DTYPE_NV4_256 : DTYPE_NV4_64;
}

int gguf_is_nvfp4(const struct source_tensor *t)
{
    return t->dtype == DTYPE_NV4_256 || t->dtype == DTYPE_NV4_64;
}

int64_t gguf_file_bytes(const struct source_tensor *t, int64_t n_bytes)
{
    const struct dtype_info *info = dtype_info(t->dtype);
    return gguf_is_nvfp4(t)
               ? n_bytes / info->block_bytes * (info->block / FILE_BLOCK * FILE_BLOCK_BYTES)
               : n_bytes;
}

/* The code of number i of a row's block. */
static int code_of(const uint8_t *blocks, int i)
{
    const uint8_t *of = blocks + i / FILE_BLOCK * FILE_BLOCK_BYTES + 4;
    return of[i % FILE_BLOCK / 16 * 8 + i % 8] >> (i % 16 / 8 * 4) & 15;
}

int gguf_nvfp4_row(const struct source_tensor *t, float factor, const uint8_t *blocks,
                   int64_t n_bytes, uint8_t *row)
{
    const int block = dtype_info(t->dtype)->block, parts = block / 16, half = block / 2;
    const int step = block / FILE_BLOCK * FILE_BLOCK_BYTES;
    uint8_t of[BLOCK_MAX / FILE_BLOCK * FILE_BLOCK_BYTES];
    for (int64_t at = 0; at < n_bytes; at += dtype_info(t->dtype)->block_bytes, blocks += step) {
        memcpy(of, blocks, (size_t)step); // the row's block may overwrite it
        memcpy(row + at, &factor, sizeof factor);
        for (int i = 0; i < parts; i++) {
            const uint8_t scale = of[i / 4 * FILE_BLOCK_BYTES + i % 4];
            if (scale == 0xff)
                return 0;
            row[at + 4 + i] = scale == NAN_SCALE ? 0 : scale & 0x7f;
        }
        for (int i = 0; i < half; i++)
            row[at + 4 + parts + i] = (uint8_t)(code_of(of, i) | code_of(of, half + i) << 4);
    }
    return 1;
}
