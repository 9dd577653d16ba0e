/* kernels/dtype_columns.c - see dtype_columns.h: packing, and the decoder that every CPU has.
 *
 * Owns: which code of a GGUF block goes where. Refuses: vectors (kernels/cpu/decode*.c).
 * A newcomer would miss: a format without a minimum adds -0, which leaves every number alone, zeros
 * and their signs included. */
#include "kernels/dtype_columns.h"
#include "kernels/dtype_blocks.h"

#include <string.h>

#define BLOCK_MAX 256

struct column_format {
    int block, bits, bias;
    int min_at, scales_at, high_at, codes_at;
};

static const struct column_format formats[N_DTYPES] = {
#define FORMAT(NAME, name, block, bits, bias, min_at, scales_at, high_at, codes_at)                \
    [DTYPE_##NAME] = {block, bits, bias, min_at, scales_at, high_at, codes_at},
    COLUMN_FORMATS(FORMAT)
#undef FORMAT
};

int columns_has(enum dtype t)
{
    return formats[t].block != 0;
}

static float f16_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return f16_to_f32(h);
}

/* ---- packing ---- */

/* n bytes: the low halves, then the high ones. */
static void halves(const uint8_t *p, int n, uint8_t *code)
{
    for (int j = 0; j < n; j++) {
        code[j] = p[j] & 15;
        code[n + j] = p[j] >> 4;
    }
}

/* The codes of a block, in ascending k (int8 as it is). */
static void block_codes(enum dtype t, const uint8_t *b, uint8_t code[BLOCK_MAX])
{
    switch (t) {
    case DTYPE_Q4_0:
        halves(b + 2, 16, code);
        return;
    case DTYPE_Q4_1:
        halves(b + 4, 16, code);
        return;
    case DTYPE_Q5_0:
    case DTYPE_Q5_1:
        b += t == DTYPE_Q5_0 ? 2 : 4;
        halves(b + 4, 16, code);
        for (int j = 0; j < 32; j++)
            code[j] |= (uint8_t)((b[j / 8] >> j % 8 & 1) << 4);
        return;
    case DTYPE_Q8_0:
        memcpy(code, b + 2, 32);
        return;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        for (int s = 0; s < 4; s++)
            halves(b + (t == DTYPE_Q4_K ? 16 : 48) + 32 * s, 32, code + 64 * s);
        for (int j = 0; j < 256 && t == DTYPE_Q5_K; j++)
            code[j] |= (uint8_t)((b[16 + j % 32] >> j / 32 & 1) << 4);
        return;
    default: // q6_k
        for (int s = 0; s < 2; s++)
            halves(b + 64 * s, 64, code + 128 * s);
        for (int j = 0; j < 256; j++)
            code[j] |= (uint8_t)((b[128 + j / 128 * 32 + j % 32] >> 2 * (j / 32 % 4) & 3) << 4);
    }
}

/* Where the f16 scale of a block stands, and its scales of parts. */
static void block_scales(enum dtype t, const struct column_format *f, const uint8_t *b, int row,
                         uint8_t *column)
{
    const int n_scales = t == DTYPE_Q6_K ? 16 : f->scales_at ? 12 : 0;
    const uint8_t *scales = t == DTYPE_Q6_K ? b + 192 : b + 4;
    memcpy(column + 2 * row, t == DTYPE_Q6_K ? b + 208 : b, 2);
    if (f->min_at)
        memcpy(column + f->min_at + 2 * row, b + 2, 2);
    for (int i = 0; i < n_scales; i++)
        column[f->scales_at + i * PANEL_ROWS + row] = scales[i];
}

static void lane_put(const struct column_format *f, const uint8_t *code, int slice, int lane,
                     uint8_t *column)
{
    const int at = slice * COLUMN_LANES + lane;
    uint32_t low = 0, high = 0;
    for (int i = 0; i < 8; i++) {
        low |= (uint32_t)(code[2 * i] & 15) << 4 * i;
        high |= (uint32_t)(code[2 * i] >> 4) << (f->bits - 4) * i;
    }
    memcpy(column + f->codes_at + 4 * at, &low, 4);
    if (f->bits == 5)
        column[f->high_at + at] = (uint8_t)high;
    else if (f->bits == 6)
        memcpy(column + f->high_at + 2 * at, &high, 2);
}

static void block_put(enum dtype t, const uint8_t *block, int row, uint8_t *column)
{
    const struct column_format *f = &formats[t];
    uint8_t code[BLOCK_MAX];
    block_scales(t, f, block, row, column);
    block_codes(t, block, code);
    if (f->bits == 8) {
        for (int j = 0; j < f->block; j++)
            column[f->codes_at + j / 2 * COLUMN_LANES + 2 * row + j % 2] = code[j];
        return;
    }
    for (int s = 0; s < f->block / COLUMN_SLICE; s++)
        for (int parity = 0; parity < 2; parity++)
            lane_put(f, code + COLUMN_SLICE * s + parity, s, 2 * row + parity, column);
}

void columns_pack(enum dtype t, const void *const rows[PANEL_ROWS], int64_t k, uint8_t *panel)
{
    const struct dtype_info *info = dtype_info(t);
    for (int64_t i = 0; i < k / info->block; i++, panel += (int64_t)PANEL_ROWS * info->block_bytes)
        for (int r = 0; r < PANEL_ROWS; r++)
            if (rows[r])
                block_put(t, (const uint8_t *)rows[r] + i * info->block_bytes, r, panel);
}

/* ---- decoding ---- */

/* What a slice decodes from, lane by lane: number i = d * (code i - bias) + m. Lanes stand in the
 * order of the output: for bf16 the parities of a row side by side, as in the column; for f32 all
 * rows of one parity, then of the other. */
struct slice {
    int bits, bias;
    int by_parity;                            // the order for f32
    float scale[PANEL_ROWS], min[PANEL_ROWS]; // of the column
    float d[COLUMN_LANES], m[COLUMN_LANES];
    uint32_t low[COLUMN_LANES], high[COLUMN_LANES]; // 8 codes: 4 bits each, and what is above them
    int8_t code[8][COLUMN_LANES];                   // or, of 8 bits, themselves
};

static inline void lanes_set(struct slice *s, int row, float scale, float min)
{
    const int at = s->by_parity ? row : 2 * row, other = s->by_parity ? row + PANEL_ROWS : at + 1;
    s->d[at] = s->d[other] = scale;
    s->m[at] = s->m[other] = min;
}

/* Those of a column; they hold for every slice of a format without further scales. */
static void column_scales(const struct column_format *f, const uint8_t *column, struct slice *s)
{
    for (int r = 0; r < PANEL_ROWS; r++) {
        s->scale[r] = f16_at(column + 2 * r);
        s->min[r] = f->min_at ? f16_at(column + f->min_at + 2 * r) : -0.0f;
        lanes_set(s, r, s->scale[r], s->min[r]);
    }
}

static void slice_scales(enum dtype t, const uint8_t *scales, int slice, struct slice *s)
{
    for (int r = 0; r < PANEL_ROWS; r++) {
        int scale = (int8_t)scales[slice * PANEL_ROWS + r], min = 0;
        if (t == DTYPE_Q6_K) {
            lanes_set(s, r, s->scale[r] * (float)scale, -0.0f);
            continue;
        }
        columns_k_scale(scales + r, slice / 2, &scale, &min);
        lanes_set(s, r, s->scale[r] * (float)scale, -(s->min[r] * (float)min));
    }
}

DTYPE_CLONES static void lanes_order(const uint32_t *restrict in, int by_parity,
                                     uint32_t *restrict out)
{
    if (!by_parity)
        memcpy(out, in, COLUMN_LANES * sizeof *out);
    else
        for (int r = 0; r < PANEL_ROWS; r++) {
            out[r] = in[2 * r];
            out[PANEL_ROWS + r] = in[2 * r + 1];
        }
}

DTYPE_CLONES static void bytes_order(const uint8_t *restrict in, int by_parity,
                                     int8_t out[restrict 8][COLUMN_LANES])
{
    for (int i = 0; i < 8; i++, in += COLUMN_LANES)
        for (int r = 0; r < PANEL_ROWS; r++) {
            out[i][by_parity ? r : 2 * r] = (int8_t)in[2 * r];
            out[i][by_parity ? PANEL_ROWS + r : 2 * r + 1] = (int8_t)in[2 * r + 1];
        }
}

static void slice_codes(const struct column_format *f, const uint8_t *column, int slice,
                        struct slice *s)
{
    const uint8_t *codes = column + f->codes_at, *high = column + f->high_at;
    uint32_t lanes[COLUMN_LANES];
    if (f->bits == 8) {
        bytes_order(codes + slice * (int)sizeof s->code, s->by_parity, s->code);
        return;
    }
    memcpy(lanes, codes + 4 * slice * COLUMN_LANES, sizeof lanes);
    lanes_order(lanes, s->by_parity, s->low);
    if (f->bits == 4)
        return;
    for (int l = 0; l < COLUMN_LANES; l++) {
        const uint8_t *at = high + (slice * COLUMN_LANES + l) * (f->bits - 4);
        lanes[l] = f->bits == 5 ? at[0] : at[0] | (uint32_t)at[1] << 8;
    }
    lanes_order(lanes, s->by_parity, s->high);
}

DTYPE_CLONES static void slice_decode(const struct slice *s, float *restrict out)
{
    const int high_bits = s->bits - 4, high_mask = (1 << high_bits) - 1;
    for (int i = 0; i < 8; i++, out += COLUMN_LANES)
        if (s->bits == 8)
            for (int l = 0; l < COLUMN_LANES; l++)
                out[l] = s->d[l] * (float)s->code[i][l] + s->m[l];
        else if (s->bits == 4)
            for (int l = 0; l < COLUMN_LANES; l++)
                out[l] = s->d[l] * (float)((int)(s->low[l] >> 4 * i & 15) - s->bias) + s->m[l];
        else
            for (int l = 0; l < COLUMN_LANES; l++) {
                const int low = (int)(s->low[l] >> 4 * i & 15);
                const int high = (int)(s->high[l] >> high_bits * i) & high_mask;
                out[l] = s->d[l] * (float)(low + high * 16 - s->bias) + s->m[l];
            }
}

DTYPE_CLONES static void slice_round(const float *in, uint16_t *restrict out)
{
    for (int i = 0; i < COLUMN_SLICE * PANEL_ROWS; i++)
        out[i] = f32_to_bf16(in[i]);
}

/* One of f32, bf16 is given. */
static void columns_decode(enum dtype t, const uint8_t *panel, int64_t k0, int64_t k1, float *f32,
                           uint16_t *bf16)
{
    const struct column_format *f = &formats[t];
    const int64_t column_bytes = (int64_t)PANEL_ROWS * dtype_info(t)->block_bytes;
    const uint8_t *column = panel + k0 / f->block * column_bytes;
    float exact[COLUMN_SLICE * PANEL_ROWS];
    struct slice slice = {.bits = f->bits, .bias = f->bias, .by_parity = f32 != NULL};
    for (int64_t k = k0; k < k1; k += f->block, column += column_bytes) {
        column_scales(f, column, &slice);
        for (int i = 0; i < f->block / COLUMN_SLICE; i++) {
            const int64_t at = (k - k0 + i * COLUMN_SLICE) * PANEL_ROWS;
            if (f->scales_at && (t == DTYPE_Q6_K || i % 2 == 0))
                slice_scales(t, column + f->scales_at, i, &slice);
            slice_codes(f, column, i, &slice);
            slice_decode(&slice, f32 ? f32 + at : exact);
            if (bf16)
                slice_round(exact, bf16 + at);
        }
    }
}

void columns_decode_f32(enum dtype t, const uint8_t *panel, int64_t k0, int64_t k1, float *out)
{
    columns_decode(t, panel, k0, k1, out, NULL);
}

void columns_decode_bf16(enum dtype t, const uint8_t *panel, int64_t k0, int64_t k1, uint16_t *out)
{
    columns_decode(t, panel, k0, k1, NULL, out);
}
