/* kernels/dtype.c - see dtype.h: the table of number formats, rows and panels.
 *
 * Owns: which decoder belongs to which format, and the order of numbers inside a panel.
 * Refuses: the insides of blocks (kernels/dtype_blocks.c), of panels of GGUF blocks
 * (kernels/dtype_columns.c) and of sluice's own panels (kernels/dtype_own.c).
 * Decoding part of a panel reads only the blocks of that part. All decoding goes through exact f32:
 * a bf16 panel is that value rounded once. */
#include "kernels/dtype.h"
#include "kernels/dtype_blocks.h"
#include "kernels/dtype_columns.h"
#include "kernels/dtype_grid.h"
#include "kernels/dtype_own.h"

#include <string.h>

typedef void (*decode_fn)(const uint8_t *blocks, int64_t n, float *restrict out);
typedef void (*encode_fn)(const float *in, int64_t n, uint8_t *blocks);

struct format {
    struct dtype_info info;
    decode_fn decode;
    encode_fn encode; // NULL: cannot be written
};

static void decode_f32(const uint8_t *in, int64_t n, float *restrict out)
{
    memcpy(out, in, (size_t)n * sizeof *out);
}

static void encode_f32(const float *in, int64_t n, uint8_t *out)
{
    memcpy(out, in, (size_t)n * sizeof *in);
}

static void decode_f16(const uint8_t *in, int64_t n, float *restrict out)
{
    uint16_t h[16];
    for (; n >= 16; n -= 16, in += sizeof h, out += 16) {
        memcpy(h, in, sizeof h);
        for (int i = 0; i < 16; i++)
            out[i] = f16_to_f32(h[i]);
    }
    memcpy(h, in, (size_t)n * 2);
    for (int64_t i = 0; i < n; i++)
        out[i] = f16_to_f32(h[i]);
}

static void encode_f16(const float *in, int64_t n, uint8_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        const uint16_t h = f32_to_f16(in[i]);
        memcpy(out + 2 * i, &h, sizeof h);
    }
}

static void decode_bf16(const uint8_t *in, int64_t n, float *restrict out)
{
    uint16_t b[16];
    for (; n >= 16; n -= 16, in += sizeof b, out += 16) {
        memcpy(b, in, sizeof b);
        for (int i = 0; i < 16; i++)
            out[i] = bf16_to_f32(b[i]);
    }
    memcpy(b, in, (size_t)n * 2);
    for (int64_t i = 0; i < n; i++)
        out[i] = bf16_to_f32(b[i]);
}

static void encode_bf16(const float *in, int64_t n, uint8_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        const uint16_t b = f32_to_bf16(in[i]);
        memcpy(out + 2 * i, &b, sizeof b);
    }
}

#define GRID_ROW(NAME, name, bytes, id)                                                            \
    [DTYPE_##NAME] = {{#name, GRID_BLOCK, bytes, 0, id}, blocks_decode_##name, NULL},

/* THE table: name, block, block_bytes, partial_block, ggml_id; decoder, encoder. */
static const struct format formats[N_DTYPES] = {
    [DTYPE_F32] = {{"f32", 1, 4, 0, 0}, decode_f32, encode_f32},
    [DTYPE_F16] = {{"f16", 1, 2, 0, 1}, decode_f16, encode_f16},
    [DTYPE_BF16] = {{"bf16", 1, 2, 0, 30}, decode_bf16, encode_bf16},
    [DTYPE_Q4_0] = {{"q4_0", 32, 18, 0, 2}, blocks_decode_q4_0, NULL},
    [DTYPE_Q4_1] = {{"q4_1", 32, 20, 0, 3}, blocks_decode_q4_1, NULL},
    [DTYPE_Q5_0] = {{"q5_0", 32, 22, 0, 6}, blocks_decode_q5_0, NULL},
    [DTYPE_Q5_1] = {{"q5_1", 32, 24, 0, 7}, blocks_decode_q5_1, NULL},
    [DTYPE_Q8_0] = {{"q8_0", 32, 34, 0, 8}, blocks_decode_q8_0, NULL},
    [DTYPE_IQ4_NL] = {{"iq4_nl", 32, 18, 0, 20}, blocks_decode_iq4_nl, NULL},
    [DTYPE_MXFP4] = {{"mxfp4", 32, 17, 0, 39}, blocks_decode_mxfp4, NULL},
    [DTYPE_Q2_K] = {{"q2_k", 256, 84, 0, 10}, blocks_decode_q2_k, NULL},
    [DTYPE_Q3_K] = {{"q3_k", 256, 110, 0, 11}, blocks_decode_q3_k, NULL},
    [DTYPE_Q4_K] = {{"q4_k", 256, 144, 0, 12}, blocks_decode_q4_k, NULL},
    [DTYPE_Q5_K] = {{"q5_k", 256, 176, 0, 13}, blocks_decode_q5_k, NULL},
    [DTYPE_Q6_K] = {{"q6_k", 256, 210, 0, 14}, blocks_decode_q6_k, NULL},
    [DTYPE_IQ4_XS] = {{"iq4_xs", 256, 136, 0, 23}, blocks_decode_iq4_xs, NULL},
    [DTYPE_TQ2_0] = {{"tq2_0", 256, 66, 0, 35}, blocks_decode_tq2_0, NULL},
    [DTYPE_TQ1_0] = {{"tq1_0", 256, 54, 0, 34}, blocks_decode_tq1_0, NULL},
    GRID_FORMATS(GRID_ROW)[DTYPE_G4_32] = {{"g4_32", 32, 19, 0, -1}, blocks_decode_g4_32, NULL},
    [DTYPE_G4_64] = {{"g4_64", 64, 35, 0, -1}, blocks_decode_g4_64, NULL},
    [DTYPE_G4_128] = {{"g4_128", 128, 67, 0, -1}, blocks_decode_g4_128, NULL},
    [DTYPE_F8_32] = {{"f8_32", 32, 36, 0, -1}, blocks_decode_f8_32, NULL},
    [DTYPE_F8_128] = {{"f8_128", 128, 132, 0, -1}, blocks_decode_f8_128, NULL},
    [DTYPE_NF4] = {{"nf4", 64, 36, 0, -1}, blocks_decode_nf4, NULL},
    [DTYPE_NF4_S8] = {{"nf4_s8", 256, 140, 0, -1}, blocks_decode_nf4_s8, NULL},
    [DTYPE_B4_32] = {{"b4_32", 32, 18, 0, -1}, blocks_decode_b4_32, NULL},
    [DTYPE_B4_128] = {{"b4_128", 128, 66, 0, -1}, blocks_decode_b4_128, NULL},
    [DTYPE_NV4_64] = {{"nv4_64", 64, 40, 0, -1}, blocks_decode_nv4_64, NULL},
    [DTYPE_NV4_256] = {{"nv4_256", 256, 148, 0, -1}, blocks_decode_nv4_256, NULL},
    [DTYPE_I8_32] = {{"i8_32", 32, 37, 0, -1}, blocks_decode_i8_32, NULL},
    [DTYPE_I8_128] = {{"i8_128", 128, 133, 0, -1}, blocks_decode_i8_128, NULL},
    [DTYPE_Q8] = {{"q8", DTYPE_GROUP, 68, 1, -1}, blocks_decode_q8, blocks_encode_q8},
    [DTYPE_Q4] = {{"q4", DTYPE_GROUP, 36, 1, -1}, blocks_decode_q4, blocks_encode_q4},
    [DTYPE_BF12] = {{"bf12", 1, 2, 0, -1}, decode_bf16, encode_bf16},
};

static const struct format *format_at(enum dtype t)
{
    CHECK((unsigned)t < N_DTYPES);
    return &formats[t];
}

const struct dtype_info *dtype_info(enum dtype t)
{
    return &format_at(t)->info;
}

enum dtype dtype_by_name(const char *name)
{
    for (int t = 0; t < N_DTYPES; t++)
        if (strcmp(formats[t].info.name, name) == 0)
            return (enum dtype)t;
    return N_DTYPES;
}

enum dtype dtype_by_ggml_id(int ggml_id)
{
    for (int t = 0; t < N_DTYPES; t++)
        if (ggml_id >= 0 && formats[t].info.ggml_id == ggml_id)
            return (enum dtype)t;
    return N_DTYPES;
}

int64_t dtype_row_bytes(enum dtype t, int64_t k)
{
    const struct format *f = format_at(t);
    int64_t bytes;
    if (k < 0 || (k % f->info.block != 0 && !f->info.partial_block))
        return -1;
    const int64_t n_blocks = k / f->info.block + (k % f->info.block != 0);
    return __builtin_mul_overflow(n_blocks, f->info.block_bytes, &bytes) ? -1 : bytes;
}

enum dtype dtype_of_rows(enum dtype t)
{
    return t == DTYPE_BF12 ? DTYPE_BF16 : t;
}

int64_t dtype_panel_bytes(enum dtype t, int64_t k)
{
    const int64_t row_bytes =
        dtype_row_bytes(t, t == DTYPE_BF16 && k < INT64_MAX ? k + (k & 1) : k);
    int64_t bytes;
    if (row_bytes < 0 || __builtin_mul_overflow(row_bytes, (int64_t)PANEL_ROWS, &bytes))
        return -1;
    if (dtype_is_own(t))
        return own_panel_bytes(t, k);
    return dtype_info(t)->block > 1 && bytes <= INT64_MAX - 64 ? round_up(bytes, 64) : bytes;
}

int64_t dtype_panels_bytes(enum dtype t, int64_t n, int64_t k)
{
    const int64_t panel_bytes = dtype_panel_bytes(t, k);
    int64_t bytes;
    if (n < 0 || panel_bytes < 0 ||
        __builtin_mul_overflow(n / PANEL_ROWS + (n % PANEL_ROWS != 0), panel_bytes, &bytes))
        return -1;
    return bytes;
}

void dtype_decode_row(enum dtype t, const void *row, int64_t k, float *out)
{
    CHECK(dtype_row_bytes(t, k) >= 0);
    formats[t].decode(row, k, out);
}

void dtype_encode_row(enum dtype t, const float *in, int64_t k, void *row)
{
    CHECK(dtype_row_bytes(t, k) >= 0 && formats[t].encode);
    formats[t].encode(in, k, row);
}

// Numbers of a row processed at a time: a multiple of every block; 32 such rows fit the L1 cache.
#define CHUNK 256

/* Copies one row into its column of [k][32]. size: bytes per number, 2 or 4; bf16: 4, a pair. */
static void column_put(const uint8_t *row, int64_t n, int size, uint8_t *panel)
{
    if (size == 4)
        for (int64_t i = 0; i < n; i++)
            memcpy(panel + i * 4 * PANEL_ROWS, row + i * 4, 4);
    else
        for (int64_t i = 0; i < n; i++)
            memcpy(panel + i * 2 * PANEL_ROWS, row + i * 2, 2);
}

void panel_pack(enum dtype t, const void *const rows[PANEL_ROWS], int64_t k, void *panel)
{
    const int64_t row_bytes = dtype_row_bytes(t, k), panel_bytes = dtype_panel_bytes(t, k);
    CHECK(panel_bytes >= 0);
    if (dtype_is_own(t)) {
        own_panel_pack(t, rows, k, panel);
        return;
    }
    memset(panel, 0, (size_t)panel_bytes);
    if (columns_has(t)) {
        columns_pack(t, rows, k, panel);
        return;
    }
    if (dtype_info(t)->block > 1 && !grid_has(t)) {
        for (int r = 0; r < PANEL_ROWS; r++)
            if (rows[r])
                memcpy((uint8_t *)panel + r * row_bytes, rows[r], (size_t)row_bytes);
        return;
    }
    const int size = t == DTYPE_F16 || grid_has(t) ? 2 : 4; // bf16 moves in pairs
    const int64_t n = row_bytes / size;
    for (int64_t i = 0; i < n; i += CHUNK)
        for (int r = 0; r < PANEL_ROWS; r++)
            if (rows[r])
                column_put((const uint8_t *)rows[r] + i * size, min_i64(CHUNK, n - i), size,
                           (uint8_t *)panel + (i * PANEL_ROWS + r) * size);
    if (t == DTYPE_BF16 && k % 2 != 0) // the odd last number is the low half of the last pair
        for (int r = 0; r < PANEL_ROWS; r++)
            if (rows[r])
                memcpy((uint8_t *)panel + (n * PANEL_ROWS + r) * 4,
                       (const uint8_t *)rows[r] + (k - 1) * 2, 2);
}

static void range_check(enum dtype t, int64_t k, int64_t k0, int64_t k1)
{
    const int block = dtype_info(t)->block;
    CHECK(dtype_row_bytes(t, k) >= 0 && k0 >= 0 && k0 <= k1 && k1 <= k);
    CHECK(k0 % 2 == 0 && k0 % block == 0);
    CHECK(k1 == k || (k1 % 2 == 0 && k1 % block == 0));
}

/* [n][32] f32 -> [ceil(n / 2)][32] pairs of bf16; a missing last number is zero. */
static void pairs_from_columns(const float *in, int64_t n, uint8_t *out)
{
    uint32_t pairs[PANEL_ROWS];
    for (int64_t i = 0; i < n; i += 2, in += 2 * PANEL_ROWS, out += sizeof pairs) {
        for (int r = 0; r < PANEL_ROWS; r++)
            pairs[r] = f32_to_bf16(in[r]);
        if (i + 1 < n)
            for (int r = 0; r < PANEL_ROWS; r++)
                pairs[r] |= (uint32_t)f32_to_bf16(in[PANEL_ROWS + r]) << 16;
        memcpy(out, pairs, sizeof pairs);
    }
}

/* Row r's blocks of a panel from column i on, as many as a chunk has. A panel of a
 * grid format interleaves the words of its rows: those of row r are copied to `words`. */
static const uint8_t *row_blocks(enum dtype t, const uint8_t *panel, int64_t k, int64_t i, int r,
                                 uint8_t words[CHUNK])
{
    const struct dtype_info *info = &formats[t].info;
    const int64_t at = i / info->block * info->block_bytes;
    if (!grid_has(t))
        return panel + at + r * dtype_row_bytes(t, k);
    for (int64_t j = 0; j < info->block_bytes; j += 2)
        memcpy(words + j, panel + (at + j) * PANEL_ROWS + 2 * r, 2);
    return words;
}

/* For panels of tq1_0 and of grid formats: decodes to columns. */
DTYPE_CLONES static void blocks_to_f32(enum dtype t, const uint8_t *panel, int64_t k, int64_t k0,
                                       int64_t k1, float *out)
{
    const struct format *f = &formats[t];
    uint8_t words[CHUNK];
    float row[CHUNK];
    for (int64_t i = k0; i < k1; i += CHUNK) {
        const int64_t n = min_i64(CHUNK, k1 - i);
        float *to = out + (i - k0) * PANEL_ROWS;
        for (int r = 0; r < PANEL_ROWS; r++) {
            f->decode(row_blocks(t, panel, k, i, r, words), n, row);
            for (int64_t j = 0; j < n; j++)
                to[j * PANEL_ROWS + r] = row[j];
        }
    }
}

DTYPE_CLONES static void blocks_to_bf16(enum dtype t, const uint8_t *panel, int64_t k, int64_t k0,
                                        int64_t k1, uint8_t *out)
{
    const struct format *f = &formats[t];
    uint8_t words[CHUNK];
    float row[CHUNK] = {0};
    uint32_t pairs[CHUNK / 2];
    for (int64_t i = k0; i < k1; i += CHUNK) {
        const int64_t n = min_i64(CHUNK, k1 - i), n_pairs = ceil_div(n, 2);
        uint8_t *to = out + (i - k0) * 2 * PANEL_ROWS;
        for (int r = 0; r < PANEL_ROWS; r++) {
            f->decode(row_blocks(t, panel, k, i, r, words), n, row);
            if (n < CHUNK) // the last chunk: an odd k is followed by a zero
                row[n] = 0.0f;
            for (int j = 0; j < CHUNK / 2; j++)
                pairs[j] = f32_to_bf16(row[2 * j]) | (uint32_t)f32_to_bf16(row[2 * j + 1]) << 16;
            for (int64_t j = 0; j < n_pairs; j++)
                memcpy(to + (j * PANEL_ROWS + r) * 4, &pairs[j], 4);
        }
    }
}

void panel_decode_bf16(enum dtype t, const void *panel, int64_t k, int64_t k0, int64_t k1,
                       uint16_t *out)
{
    const uint8_t *p = panel;
    uint8_t *pairs = (uint8_t *)out; // as bytes: pairs are written as 32-bit words, out is 16-bit
    range_check(t, k, k0, k1);
    if (columns_has(t)) {
        columns_decode_bf16(t, p, k0, k1, out);
    } else if (dtype_is_own(t)) {
        own_decode_bf16(t, p, k, k0, k1, out);
    } else if (dtype_info(t)->block > 1) {
        blocks_to_bf16(t, p, k, k0, k1, pairs);
    } else if (t == DTYPE_BF16) {
        memcpy(out, p + k0 * 2 * PANEL_ROWS, (size_t)(ceil_div(k1 - k0, 2) * 4 * PANEL_ROWS));
    } else { // f32, f16: already in columns
        float columns[16 * PANEL_ROWS];
        const int size = dtype_info(t)->block_bytes;
        for (int64_t i = k0; i < k1; i += 16) {
            const int64_t n = min_i64(16, k1 - i);
            formats[t].decode(p + i * PANEL_ROWS * size, n * PANEL_ROWS, columns);
            pairs_from_columns(columns, n, pairs + (i - k0) * 2 * PANEL_ROWS);
        }
    }
}

void panel_decode_f32(enum dtype t, const void *panel, int64_t k, int64_t k0, int64_t k1,
                      float *out)
{
    const uint8_t *p = panel;
    range_check(t, k, k0, k1);
    if (columns_has(t)) {
        columns_decode_f32(t, p, k0, k1, out);
    } else if (dtype_is_own(t)) {
        own_decode_f32(t, p, k, k0, k1, out);
    } else if (dtype_info(t)->block > 1) {
        blocks_to_f32(t, p, k, k0, k1, out);
    } else if (t == DTYPE_BF16) {
        const uint16_t *pairs = (const uint16_t *)(const void *)p;
        for (int64_t i = k0; i < k1; i++)
            for (int r = 0; r < PANEL_ROWS; r++)
                out[(i - k0) * PANEL_ROWS + r] =
                    bf16_to_f32(pairs[(i / 2 * PANEL_ROWS + r) * 2 + i % 2]);
    } else {
        const int size = dtype_info(t)->block_bytes;
        formats[t].decode(p + k0 * PANEL_ROWS * size, (k1 - k0) * PANEL_ROWS, out);
    }
}
