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

/* The format of the rows before an order is applied. */
static enum dtype coded_of(const struct quantized_tensor *t)
{
    return t->order ? t->coded : t->t.dtype;
}

static int64_t coded_bytes_of(const struct quantized_tensor *t)
{
    return dtype_row_bytes(coded_of(t), k_of(t));
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

static int is_bytes(const struct quantized_tensor *t) // a code is a byte in the file, too
{
    const enum dtype d = coded_of(t);
    return t->method == METHOD_FP8 || d == DTYPE_I8_32 || d == DTYPE_I8_128;
}

/* Writes the scale of a group and, where the format has one, its zero: the head of a block. */
static enum err head_put(const struct quantized *q, const struct quantized_tensor *t, int64_t row,
                         float scale, int zero, uint8_t *block)
{
    if (is_bytes(t)) {
        memcpy(block, &scale, sizeof scale);
        block[4] = (uint8_t)zero;
        return OK;
    }
    const enum dtype d = coded_of(t);
    const int is_bf16 = d == DTYPE_B4_32 || d == DTYPE_B4_128;
    const uint16_t h = is_bf16 ? f32_to_bf16(scale) : f32_to_f16(scale);
    if ((is_bf16 ? bf16_to_f32(h) : f16_to_f32(h)) != scale)
        return quantized_fail(q, t->scales->name,
                              "row %lld: unsupported: a scale of %g does not fit %s",
                              (long long)row, (double)scale, is_bf16 ? "bf16" : "f16");
    memcpy(block, &h, sizeof h);
    if (!is_bf16 && d != DTYPE_Q4_0)
        block[2] = (uint8_t)zero;
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
    const int64_t row_bytes = coded_bytes_of(t), n = t->t.dims[0], n_groups = k_of(t) / t->scale_k;
    const struct dtype_info *info = dtype_info(coded_of(t));
    const int64_t blocks = t->scale_k / info->block;          // per group
    static const int awq_order[8] = {0, 4, 1, 5, 2, 6, 3, 7}; // position of number i of eight
    float scales[64];
    const int bits = q->bits, in_word = 32 / bits;
    uint32_t zeros[16];
    for (int64_t g = 0; g < n_groups; g++)
        for (int64_t r = 0; r < q->band.n; r++) {
            const int64_t row = q->band.first + r;
            const int some = (int)min_i64(64, q->band.n - r), i = (int)(r % 64);
            if (i == 0) {
                TRY(numbers_read(q, t->scales, g * n + row, some, scales));
                TRY(codes_read(q, t->zeros, (g * n + row) / in_word * 4, some / in_word * 4,
                               zeros));
            }
            const int at = q->method == METHOD_AWQ ? awq_order[i % 8] : i % in_word;
            const uint32_t zero = (zeros[i / in_word] >> bits * at) + (uint32_t)q->zero_add;
            const uint32_t mask = (1u << bits) - 1; // 16 wraps to 0, as in the libraries
            uint8_t *block = q->band.rows + r * row_bytes + g * blocks * info->block_bytes;
            for (int64_t b = 0; b < blocks; b++, block += info->block_bytes)
                TRY(head_put(q, t, row, scales[i], (int)(zero & mask), block));
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

/* GPTQ: a word holds eight numbers along k of one row, or four bytes. */
static void gptq_word(uint8_t *row, const struct dtype_info *info, int bits, int64_t at,
                      uint32_t word)
{
    int shift;
    if (bits == 8) {
        memcpy(row + at / info->block * info->block_bytes + 5 + at % info->block, &word, 4);
        return;
    }
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
    const int64_t row_bytes = coded_bytes_of(t), width = t->codes->dims[1]; // words per line
    const int64_t n_lines = t->codes->dims[0], n = by_k ? q->band.n : q->band.n / 8;
    const int64_t first = by_k ? q->band.first : q->band.first / 8;
    const struct dtype_info *info = dtype_info(coded_of(t));
    for (int64_t line = 0; line < n_lines; line++) {
        TRY(codes_read(q, t->codes, (line * width + first) * 4, n * 4, words));
        for (int64_t i = 0; i < n; i++)
            if (by_k)
                gptq_word(q->band.rows + i * row_bytes, info, q->bits, line * 32 / q->bits,
                          words[i]);
            else
                awq_word(q->band.rows + i * 8 * row_bytes, row_bytes, info, line, words[i]);
    }
    return OK;
}

/* Once, where the first such rows are read. */
static void order_tell(struct quantized *q)
{
    int64_t file_bytes = 0, bytes = 0;
    for (int64_t i = 0; i < q->n_tensors && !q->order_told; i++) {
        const struct quantized_tensor *t = &q->tensors[i];
        bytes += t->order ? t->t.n_bytes : 0;
        file_bytes += t->order ? t->codes->n_bytes : 0;
    }
    q->order_told = 1;
    if (bytes > 0)
        log_line(LOG_WARN,
                 "%s: groups in the order of activations (desc_act): %.1f GiB of codes become %.1f "
                 "GiB of f32 in a pack; --weights bf16, q8 or q4 make it smaller",
                 q->hf->dir, (double)file_bytes / 0x1p30, (double)bytes / 0x1p30);
}

static enum err band_order(struct quantized *q, const struct quantized_tensor *t)
{
    const int64_t n_groups = k_of(t) / t->scale_k;
    order_tell(q);
    free(q->band.order);
    q->band.order = malloc((size_t)k_of(t) * sizeof *q->band.order);
    if (!q->band.order)
        return no_memory(t);
    TRY(codes_read(q, t->order, 0, t->order->n_bytes, q->band.order));
    for (int64_t i = 0; i < k_of(t); i++)
        if (q->band.order[i] < 0 || q->band.order[i] >= n_groups)
            return fail(ERR_CORRUPT, "%.512s: tensor %.200s: changed", q->hf->dir, t->order->name);
    return OK;
}

/* A row of the band, whose blocks have scale and zero of the groups in their order and codes in
 * that of k, to f32: of these numbers no shorter format holds all bits. */
static void ordered_row(const struct quantized *q, const struct quantized_tensor *t, uint8_t *row,
                        uint8_t *out)
{
    const struct dtype_info *info = dtype_info(coded_of(t));
    const int bytes = is_bytes(t), n_bytes = info->block / (bytes ? 1 : 2);
    for (int64_t i = 0; i < k_of(t); i++) {
        const uint8_t *head =
            row + q->band.order[i] * (t->scale_k / info->block) * info->block_bytes;
        uint16_t h;
        float d;
        int shift = 0;
        memcpy(&h, head, sizeof h);
        memcpy(&d, head, sizeof d);
        const int code = bytes ? row[i / info->block * info->block_bytes + 5 + i % info->block]
                               : *code_at(row, info, i, &shift);
        const int zero = head[info->block_bytes - n_bytes - 1];
        d = (bytes ? d : f16_to_f32(h)) * (float)((bytes ? code : code >> shift & 15) - zero);
        memcpy(out + 4 * i, &d, sizeof d);
    }
}

/* Makes the band that starts at the 32 rows around `row`. */
static enum err band_make(struct quantized *q, const struct quantized_tensor *t, int64_t row)
{
    const int64_t row_bytes = coded_bytes_of(t), first = row / PANEL_ROWS * PANEL_ROWS;
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
    if (e == OK && t->order)
        e = band_order(q, t);
    free(words);
    if (e == OK)
        q->band.of = t;
    return e;
}

static enum err group_rows(struct quantized *q, const struct quantized_tensor *t, int64_t first,
                           int64_t n, uint8_t *out)
{
    const int64_t row_bytes = row_bytes_of(t), coded_bytes = coded_bytes_of(t);
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = first + i, at = row - q->band.first;
        if (q->band.of != t || at < 0 || at >= q->band.n)
            TRY(band_make(q, t, row));
        uint8_t *from = q->band.rows + (row - q->band.first) * coded_bytes;
        if (t->order)
            ordered_row(q, t, from, out + i * row_bytes);
        else
            memcpy(out + i * row_bytes, from, (size_t)row_bytes);
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
    const int bytes = is_bytes(t), head = info->block_bytes - info->block / (bytes ? 1 : 2);
    const int signs = bytes && quantized_is(q, t->codes, "I8") ? 0x80 : 0; // int8: 128 less
    const int bits = bytes ? 8 : 4, in_word = signs ? 1 : 32 / bits; // rows of a word of zeros
    const int size = signs ? 1 : 4;
    uint8_t zeros[64 * 4];
    float scales[64];
    for (int64_t i = 0; i < k; i += info->block, out += info->block_bytes) {
        const int64_t g = i / t->scale_k, from = g / 64 * 64, some = min_i64(64, n_groups - from);
        if (g == from && i % t->scale_k == 0) {
            TRY(numbers_read(q, t->scales, row / t->scale_n * n_groups + from, (int)some, scales));
            if (t->zeros)
                TRY(codes_read(q, t->zeros, (row / in_word * n_groups + from) * size, some * size,
                               zeros));
        }
        const int64_t bit = row % in_word * bits;
        const int byte = zeros[(g - from) * size + bit / 8] >> bit % 8;
        const int zero = t->zeros ? (byte & ((1 << bits) - 1)) ^ signs : 1 << (bits - 1);
        TRY(head_put(q, t, row, scales[g - from], zero, out));
        if (!bytes)
            halves_put(codes + i / 2, info->block, 1, out + head);
        for (int j = 0; bytes && j < info->block; j++)
            out[head + j] = codes[i + j] ^ (uint8_t)signs;
    }
    return OK;
}

enum err quantized_rows(struct quantized *q, const struct quantized_tensor *t, int64_t first,
                        int64_t n, uint8_t *out)
{
    if (t->method == METHOD_GPTQ || t->method == METHOD_AWQ)
        return group_rows(q, t, first, n, out);
    const int64_t codes_bytes = is_bytes(t) ? k_of(t) : k_of(t) / 2;
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
