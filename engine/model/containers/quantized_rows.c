/* engine/model/containers/quantized_rows.c - rows of quantised matrices in the formats of
 * kernels/dtype.h.
 *
 * Owns: the order of codes in each method's files. Refuses: scales that the row's format cannot
 * hold exactly. Note: GPTQ and AWQ store columns, so one row touches the whole matrix; sluice makes
 * and caches a band of rows at a time, because the packer reads rows in order. */
#include "engine/model/containers/quantized_impl.h"

#include <stdlib.h>
#include <string.h>

#define BAND_BYTES (8 << 20)

static enum err no_memory(const struct quantized_tensor *t)
{
    return fail(ERR_FIT, "no memory for rows of %s", t->t.name);
}

static int64_t k_of(const struct quantized_tensor *t)
{
    return t->t.dims[t->t.n_dims - 1];
}

static int64_t row_bytes_of(const struct quantized_tensor *t)
{
    return dtype_row_bytes(t->t.dtype, k_of(t));
}

static enum err codes_read(const struct quantized *q, const struct source_tensor *t, int64_t at,
                           int64_t n_bytes, void *out)
{
    return safetensors_read(&q->hf->weights, t, at, n_bytes, out);
}

/* Numbers [first, first + n) of a tensor of plain numbers; n <= 64. */
static enum err numbers_read(const struct quantized *q, const struct source_tensor *t,
                             int64_t first, int n, float out[64])
{
    uint8_t raw[64 * 4];
    const int size = dtype_info(t->dtype)->block_bytes;
    CHECK(n <= 64);
    TRY(codes_read(q, t, first * size, (int64_t)n * size, raw));
    dtype_decode_row(t->dtype, raw, n, out);
    return OK;
}

/* Writes the scale of a group and, where the format has one, its zero: the head of a block. */
static enum err head_put(const struct quantized *q, const struct quantized_tensor *t, int64_t row,
                         float scale, int zero, uint8_t *block)
{
    const int is_bf16 = t->t.dtype == DTYPE_B4_32 || t->t.dtype == DTYPE_B4_128;
    const uint16_t h = is_bf16 ? f32_to_bf16(scale) : f32_to_f16(scale);
    if ((is_bf16 ? bf16_to_f32(h) : f16_to_f32(h)) != scale)
        return quantized_fail(q, t->scales->name,
                              "row %lld: unsupported: a scale of %g does not fit %s",
                              (long long)row, (double)scale, is_bf16 ? "bf16" : "f16");
    memcpy(block, &h, sizeof h);
    if (!is_bf16 && t->t.dtype != DTYPE_Q4_0)
        block[2] = (uint8_t)(zero & 15); // 16 wraps to 0, as in the libraries
    return OK;
}

/* Codes of a block: neighbours share a byte in the file, the one of `high` (0 or 1) in the upper
 * half; in a row the first half of the numbers is in the lower halves. */
static void halves_put(const uint8_t *codes, int block, int high, uint8_t *out)
{
    const uint8_t *second = codes + block / 4;
    for (int i = 0; i < block / 2; i++) {
        const int shift = i % 2 == high ? 4 : 0;
        out[i] = (uint8_t)((codes[i / 2] >> shift & 15) | (second[i / 2] >> shift & 15) << 4);
    }
}

/* ---- GPTQ and AWQ ---- */

/* Writes scale and zero of every group of the band's rows to the heads of their blocks. */
static enum err band_heads(struct quantized *q, const struct quantized_tensor *t)
{
    const int64_t row_bytes = row_bytes_of(t), n = t->t.dims[0], n_groups = k_of(t) / t->scale_k;
    const struct dtype_info *info = dtype_info(t->t.dtype);
    const int64_t blocks = t->scale_k / info->block;          // per group
    static const int awq_order[8] = {0, 4, 1, 5, 2, 6, 3, 7}; // position of number i of eight
    float scales[64];
    uint32_t zeros[8];
    for (int64_t g = 0; g < n_groups; g++)
        for (int64_t r = 0; r < q->band.n; r++) {
            const int64_t row = q->band.first + r;
            const int some = (int)min_i64(64, q->band.n - r), i = (int)(r % 64);
            if (i == 0) {
                TRY(numbers_read(q, t->scales, g * n + row, some, scales));
                TRY(codes_read(q, t->zeros, (g * n + row) / 2, some / 2, zeros));
            }
            const int nibble = q->method == METHOD_AWQ ? awq_order[i % 8] : i % 8;
            const int zero = (int)(zeros[i / 8] >> 4 * nibble & 15) + q->zero_add;
            uint8_t *block = q->band.rows + r * row_bytes + g * blocks * info->block_bytes;
            for (int64_t b = 0; b < blocks; b++, block += info->block_bytes)
                TRY(head_put(q, t, row, scales[i], zero, block));
        }
    return OK;
}

/* The byte of code `at` in a row; codes of a block's second half are in the upper halves of
 * bytes. */
static inline uint8_t *code_at(uint8_t *row, const struct dtype_info *info, int64_t at, int *shift)
{
    const int64_t in = at % info->block, half = info->block / 2;
    *shift = in >= half ? 4 : 0;
    return row + at / info->block * info->block_bytes + 3 + in % half;
}

/* GPTQ: a word holds eight numbers along k of one row. */
static void gptq_word(uint8_t *row, const struct dtype_info *info, int64_t at, uint32_t word)
{
    int shift;
    uint8_t *to = code_at(row, info, at, &shift); // halves are multiples of 8
    for (int i = 0; i < 8; i++, word >>= 4)
        to[i] |= (uint8_t)((word & 15) << shift);
}

/* AWQ: a word holds one number along k of eight rows, in the order 0, 2, 4, 6, 1, 3, 5, 7. */
static void awq_word(uint8_t *rows, int64_t row_bytes, const struct dtype_info *info, int64_t at,
                     uint32_t word)
{
    static const int row_of[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    for (int i = 0; i < 8; i++, word >>= 4) {
        int shift;
        uint8_t *to = code_at(rows + row_of[i] * row_bytes, info, at, &shift);
        *to |= (uint8_t)((word & 15) << shift);
    }
}

static enum err band_codes(struct quantized *q, const struct quantized_tensor *t, uint32_t *words)
{
    const int by_k = q->method == METHOD_GPTQ;
    const int64_t row_bytes = row_bytes_of(t), width = t->codes->dims[1]; // words per line
    const int64_t n_lines = t->codes->dims[0], n = by_k ? q->band.n : q->band.n / 8;
    const int64_t first = by_k ? q->band.first : q->band.first / 8;
    const struct dtype_info *info = dtype_info(t->t.dtype);
    for (int64_t line = 0; line < n_lines; line++) {
        TRY(codes_read(q, t->codes, (line * width + first) * 4, n * 4, words));
        for (int64_t i = 0; i < n; i++)
            if (by_k)
                gptq_word(q->band.rows + i * row_bytes, info, line * 8, words[i]);
            else
                awq_word(q->band.rows + i * 8 * row_bytes, row_bytes, info, line, words[i]);
    }
    return OK;
}

/* Makes the band that starts at the 32 rows around `row`. */
static enum err band_make(struct quantized *q, const struct quantized_tensor *t, int64_t row)
{
    const int64_t row_bytes = row_bytes_of(t), first = row / PANEL_ROWS * PANEL_ROWS;
    const int64_t most = max_i64(BAND_BYTES / row_bytes / PANEL_ROWS, 1) * PANEL_ROWS;
    const int64_t n = min_i64(most, t->t.dims[0] - first);
    free(q->band.rows);
    q->band.of = NULL;
    q->band.first = first;
    q->band.n = n;
    q->band.rows = calloc((size_t)n, (size_t)row_bytes);
    uint32_t *words = malloc((size_t)n * sizeof *words);
    enum err e = q->band.rows && words ? band_heads(q, t) : no_memory(t);
    if (e == OK)
        e = band_codes(q, t, words);
    free(words);
    if (e == OK)
        q->band.of = t;
    return e;
}

static enum err group_rows(struct quantized *q, const struct quantized_tensor *t, int64_t first,
                           int64_t n, uint8_t *out)
{
    const int64_t row_bytes = row_bytes_of(t);
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = first + i, at = row - q->band.first;
        if (q->band.of != t || at < 0 || at >= q->band.n)
            TRY(band_make(q, t, row));
        memcpy(out + i * row_bytes, q->band.rows + (row - q->band.first) * row_bytes,
               (size_t)row_bytes);
    }
    return OK;
}

/* ---- the others, whose files store rows ---- */

static enum err fp8_row(const struct quantized *q, const struct quantized_tensor *t, int64_t row,
                        const uint8_t *codes, uint8_t *out)
{
    const int64_t k = k_of(t), n_scales = ceil_div(k, t->scale_k);
    const int block = dtype_info(t->t.dtype)->block;
    float scales[64];
    for (int64_t i = 0; i < k; i += block, out += 4 + block) {
        const int64_t s = i / t->scale_k, from = s / 64 * 64;
        if (i == 0 || (s == from && i % t->scale_k == 0))
            TRY(numbers_read(q, t->scales, row / t->scale_n * n_scales + from,
                             (int)min_i64(64, n_scales - from), scales));
        memcpy(out, &scales[s - from], 4);
        memcpy(out + 4, codes + i, (size_t)block);
    }
    return OK;
}

static enum err nf4_row(const struct quantized *q, const struct quantized_tensor *t, int64_t row,
                        const uint8_t *codes, uint8_t *out)
{
    const int64_t n_blocks = k_of(t) / 64;
    const int in_bytes = t->t.dtype == DTYPE_NF4_S8;
    float scales[64];
    for (int64_t b = 0; b < n_blocks; b++, codes += 32, out += 32) {
        if (in_bytes && b % 4 == 0) {
            TRY(quantized_nf4_head(q, t, row * n_blocks + b, out));
            out += 12;
        } else if (!in_bytes && b % 64 == 0) {
            TRY(quantized_nf4_scales(q, t, row * n_blocks + b, min_i64(64, n_blocks - b), scales));
        }
        if (!in_bytes) {
            memcpy(out, &scales[b % 64], 4);
            out += 4;
        }
        halves_put(codes, 64, 0, out);
    }
    return OK;
}

static enum err mxfp4_row(const struct quantized *q, const struct quantized_tensor *t, int64_t row,
                          const uint8_t *codes, uint8_t *out)
{
    const int64_t n_blocks = k_of(t) / 32;
    uint8_t scales[64];
    for (int64_t b = 0; b < n_blocks; b++, codes += 16, out += 17) {
        const int64_t some = min_i64(64, n_blocks - b);
        if (b % 64 == 0)
            TRY(codes_read(q, t->scales, row * n_blocks + b, some, scales));
        if (scales[b % 64] == 255)
            return quantized_fail(q, t->scales->name, "row %lld: a scale is NaN (255)",
                                  (long long)row);
        out[0] = scales[b % 64];
        halves_put(codes, 32, 1, out + 1);
    }
    return OK;
}

static enum err nvfp4_row(const struct quantized *q, const struct quantized_tensor *t, int64_t row,
                          const uint8_t *codes, uint8_t *out)
{
    const int64_t k = k_of(t);
    const int block = dtype_info(t->t.dtype)->block, parts = block / 16;
    uint8_t scales[1024]; // of a multiple of all blocks
    for (int64_t i = 0; i < k; i += block, out += dtype_info(t->t.dtype)->block_bytes) {
        const int64_t at = i / 16 % (int64_t)sizeof scales;
        const int64_t some = min_i64((k - i) / 16, (int64_t)sizeof scales);
        if (at == 0)
            TRY(codes_read(q, t->scales, (row * k + i) / 16, some, scales));
        for (int64_t j = 0; at == 0 && j < some; j++)
            if ((scales[j] & 127) == 127)
                return quantized_fail(q, t->scales->name, "row %lld: a scale is NaN",
                                      (long long)row);
        memcpy(out, &t->factor, 4);
        memcpy(out + 4, scales + at, (size_t)parts);
        halves_put(codes + i / 2, block, 1, out + 4 + parts);
    }
    return OK;
}

static enum err packed_row(const struct quantized *q, const struct quantized_tensor *t, int64_t row,
                           const uint8_t *codes, uint8_t *out)
{
    const struct dtype_info *info = dtype_info(t->t.dtype);
    const int64_t k = k_of(t), n_groups = k / t->scale_k;
    const int head = info->block_bytes - info->block / 2;
    uint32_t zeros[64] = {0};
    float scales[64];
    for (int64_t i = 0; i < k; i += info->block, out += info->block_bytes) {
        const int64_t g = i / t->scale_k, from = g / 64 * 64, some = min_i64(64, n_groups - from);
        if (g == from && i % t->scale_k == 0) {
            TRY(numbers_read(q, t->scales, row / t->scale_n * n_groups + from, (int)some, scales));
            if (t->zeros)
                TRY(codes_read(q, t->zeros, (row / 8 * n_groups + from) * 4, some * 4, zeros));
        }
        const int zero = t->zeros ? zeros[g - from] >> row % 8 * 4 & 15 : 8;
        TRY(head_put(q, t, row, scales[g - from], zero, out));
        halves_put(codes + i / 2, info->block, 1, out + head);
    }
    return OK;
}

enum err quantized_rows(struct quantized *q, const struct quantized_tensor *t, int64_t first,
                        int64_t n, uint8_t *out)
{
    if (t->method == METHOD_GPTQ || t->method == METHOD_AWQ)
        return group_rows(q, t, first, n, out);
    const int64_t codes_bytes = t->method == METHOD_FP8 ? k_of(t) : k_of(t) / 2;
    uint8_t *codes = malloc((size_t)codes_bytes);
    enum err e = codes ? OK : no_memory(t);
    for (int64_t row = first; e == OK && row < first + n; row++, out += row_bytes_of(t)) {
        e = codes_read(q, t->codes, row * codes_bytes, codes_bytes, codes);
        if (e == OK)
            e = (t->method == METHOD_FP8      ? fp8_row
                 : t->method == METHOD_NF4    ? nf4_row
                 : t->method == METHOD_PACKED ? packed_row
                 : t->method == METHOD_NVFP4  ? nvfp4_row
                                              : mxfp4_row)(q, t, row, codes, out);
    }
    free(codes);
    return e;
}
