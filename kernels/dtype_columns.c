/* kernels/dtype_columns.c - see dtype_columns.h: packing, and the portable decoder.
 *
 * Owns: where each code of a block goes. Refuses: vectors (kernels/cpu/decode*.c).
 * A format without a minimum adds -0, which changes no number, not even the sign of a zero. */
#include "kernels/dtype_columns.h"
#include "kernels/dtype_blocks.h"

#include <string.h>

#define BLOCK_MAX 256

struct column_format {
    int block, bits, bias, kind;
    int min_at, scales_at, high_at, codes_at;
};

static const struct column_format formats[N_DTYPES] = {
#define FORMAT(NAME, name, block, bits, bias, kind, min_at, scales_at, high_at, codes_at)          \
    [DTYPE_##NAME] = {block, bits, bias, kind, min_at, scales_at, high_at, codes_at},
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

/* n bytes: the low halves, then the high halves. */
static void halves(const uint8_t *p, int n, uint8_t *code)
{
    for (int j = 0; j < n; j++) {
        code[j] = p[j] & 15;
        code[n + j] = p[j] >> 4;
    }
}

/* 64 bytes of four 2-bit codes, 32 numbers apart: q2_k, q3_k, tq2_0. */
static void quarters(const uint8_t *p, uint8_t code[BLOCK_MAX])
{
    for (int j = 0; j < 256; j++)
        code[j] = p[j / 128 * 32 + j % 32] >> j / 32 % 4 * 2 & 3;
}

/* The codes of a block in ascending k (8-bit codes unchanged). */
static void block_codes(enum dtype t, const uint8_t *b, uint8_t code[BLOCK_MAX])
{
    const int block = dtype_info(t)->block;
    switch (t) {
    case DTYPE_Q5_0:
    case DTYPE_Q5_1:
        b += t == DTYPE_Q5_0 ? 2 : 4;
        halves(b + 4, 16, code);
        for (int j = 0; j < 32; j++)
            code[j] |= (uint8_t)((b[j / 8] >> j % 8 & 1) << 4);
        return;
    case DTYPE_Q2_K:
        quarters(b + 16, code);
        return;
    case DTYPE_Q3_K:
        quarters(b + 32, code);
        for (int j = 0; j < 256; j++)
            code[j] |= (uint8_t)((b[j % 32] >> j / 32 & 1) << 2);
        return;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        for (int s = 0; s < 4; s++)
            halves(b + (t == DTYPE_Q4_K ? 16 : 48) + 32 * s, 32, code + 64 * s);
        for (int j = 0; j < 256 && t == DTYPE_Q5_K; j++)
            code[j] |= (uint8_t)((b[16 + j % 32] >> j / 32 & 1) << 4);
        return;
    case DTYPE_Q6_K:
        for (int s = 0; s < 2; s++)
            halves(b + 64 * s, 64, code + 128 * s);
        for (int j = 0; j < 256; j++)
            code[j] |= (uint8_t)((b[128 + j / 128 * 32 + j % 32] >> 2 * (j / 32 % 4) & 3) << 4);
        return;
    case DTYPE_IQ4_XS:
        for (int s = 0; s < 8; s++)
            halves(b + 8 + 16 * s, 16, code + 32 * s);
        return;
    case DTYPE_TQ2_0:
        quarters(b, code);
        return;
    default: // codes are at the end of the block, as bytes or halves
        b += dtype_info(t)->block_bytes;
        if (formats[t].bits == 8)
            memcpy(code, b - block, (size_t)block);
        else
            halves(b - block / 2, block / 2, code);
    }
}

/* Copies the scale, the minimum and the scales of parts of one block; places[] has their
 * offsets. */
static void block_scales(enum dtype t, const struct column_format *f, const uint8_t *b, int row,
                         uint8_t *column)
{
    static const struct {
        int d, scales, n_scales;
    } places[N_DTYPES] = {
        [DTYPE_Q2_K] = {80, 0, 16}, [DTYPE_Q3_K] = {108, 96, 12},  [DTYPE_Q4_K] = {0, 4, 12},
        [DTYPE_Q5_K] = {0, 4, 12},  [DTYPE_Q6_K] = {208, 192, 16}, [DTYPE_IQ4_XS] = {0, 2, 6},
        [DTYPE_TQ2_0] = {64, 0, 0}, [DTYPE_NV4_64] = {0, 4, 4},    [DTYPE_NV4_256] = {0, 4, 16},
    };
    const uint8_t *d = b + places[t].d, *scales = b + places[t].scales;
    const int d_bytes = columns_scale_bytes(f->kind);
    memcpy(column + d_bytes * row, d, (size_t)d_bytes);
    if (columns_has_zero(f->kind))
        column[f->min_at + row] = d[d_bytes];
    else if (f->min_at)
        memcpy(column + f->min_at + 2 * row, d + 2, 2);
    for (int i = 0; i < places[t].n_scales; i++)
        column[f->scales_at + i * PANEL_ROWS + row] = scales[i];
}

static void lane_put(const struct column_format *f, const uint8_t *code, int slice, int lane,
                     uint8_t *column)
{
    const int at = slice * COLUMN_LANES + lane, low_bits = columns_low_bits(f->bits);
    const int high_bits = f->bits - low_bits;
    uint32_t low = 0, high = 0;
    for (int i = 0; i < 8; i++) {
        low |= (uint32_t)(code[2 * i] & ((1 << low_bits) - 1)) << low_bits * i;
        high |= (uint32_t)(code[2 * i] >> low_bits) << high_bits * i;
    }
    memcpy(column + f->codes_at + low_bits * at, &low, (size_t)low_bits); // bytes of 8 codes
    if (high_bits)
        memcpy(column + f->high_at + high_bits * at, &high, (size_t)high_bits);
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

static const float nl_numbers[16] = {COLUMN_NL_NUMBERS};
static const float mxfp4_numbers[16] = {COLUMN_MXFP4_NUMBERS};
static const float nf4_numbers[16] = {COLUMN_NF4_NUMBERS};
static const float e2m1_numbers[16] = {COLUMN_E2M1_NUMBERS};

static const float *numbers_of(int kind)
{
    if (!columns_is_looked_up(kind))
        return NULL;
    return kind == COLUMN_E8M0   ? mxfp4_numbers
           : kind == COLUMN_NF4  ? nf4_numbers
           : kind == COLUMN_E2M1 ? e2m1_numbers
                                 : nl_numbers;
}

/* The state of decoding a slice, lane by lane: number i = d * (code i - bias) + m; COLUMN_ZERO: d *
 * (code i - m), also COLUMN_BYTES; table: d * numbers[code i]. Lanes are in output order: for bf16
 * the two parities of a row are adjacent, as in the column; for f32 all rows of even numbers come
 * first, then those of odd. */
struct slice {
    int bits, bias, kind;
    const float *numbers;                     // NULL: codes are numbers
    int by_parity;                            // lane order for f32
    float scale[PANEL_ROWS], min[PANEL_ROWS]; // of the column
    float d[COLUMN_LANES], m[COLUMN_LANES];
    uint32_t low[COLUMN_LANES], high[COLUMN_LANES]; // 8 codes: low bits, bits above
    int8_t code[8][COLUMN_LANES];                   // 8-bit codes
};

static inline void lanes_set(struct slice *s, int row, float scale, float min)
{
    const int at = s->by_parity ? row : 2 * row, other = s->by_parity ? row + PANEL_ROWS : at + 1;
    s->d[at] = s->d[other] = scale;
    s->m[at] = s->m[other] = min;
}

static float column_scale(int kind, const uint8_t *column, int row)
{
    uint16_t h;
    float f;
    if (!columns_scale_is_wide(kind))
        return f16_at(column + 2 * row);
    if (kind == COLUMN_E8M0)
        return e8m0_half(column[row]);
    if (kind == COLUMN_BF16) {
        memcpy(&h, column + 2 * row, sizeof h);
        return bf16_to_f32(h);
    }
    memcpy(&f, column + 4 * row, sizeof f);
    return f;
}

/* Scales and minima of a column; without scales of parts they are those of every slice. */
static void column_scales(const struct column_format *f, const uint8_t *column, struct slice *s)
{
    for (int r = 0; r < PANEL_ROWS; r++) {
        s->scale[r] = column_scale(f->kind, column, r);
        if (columns_has_zero(f->kind))
            s->min[r] = column[f->min_at + r];
        else
            s->min[r] = f->min_at ? f16_at(column + f->min_at + 2 * r) : -0.0f;
        lanes_set(s, r, s->scale[r], s->min[r]);
    }
}

static void slice_scales(const struct column_format *f, const uint8_t *scales, int slice,
                         struct slice *s)
{
    for (int r = 0; r < PANEL_ROWS; r++) {
        int scale, min;
        if (f->kind == COLUMN_E2M1) {
            lanes_set(s, r, e4m3_scaled(scales[slice * PANEL_ROWS + r], s->scale[r]), -0.0f);
            continue;
        }
        columns_part_scale(f->kind, scales + r, slice, &scale, &min);
        lanes_set(s, r, s->scale[r] * (float)scale, f->min_at ? -(s->min[r] * (float)min) : -0.0f);
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

/* Reads words of 1, 2 or 4 bytes, one per lane. */
static inline void lanes_load(const uint8_t *p, int n_bytes, uint32_t lanes[COLUMN_LANES])
{
    if (n_bytes == 4)
        memcpy(lanes, p, COLUMN_LANES * sizeof *lanes);
    else
        for (int l = 0; l < COLUMN_LANES; l++)
            lanes[l] = n_bytes == 1 ? p[l] : p[2 * l] | (uint32_t)p[2 * l + 1] << 8;
}

static void slice_codes(const struct column_format *f, const uint8_t *column, int slice,
                        struct slice *s)
{
    const uint8_t *codes = column + f->codes_at, *high = column + f->high_at;
    const int low_bits = columns_low_bits(f->bits), high_bits = f->bits - low_bits;
    const int at = slice * COLUMN_LANES;
    uint32_t lanes[COLUMN_LANES];
    if (f->bits == 8) {
        bytes_order(codes + 8 * at, s->by_parity, s->code);
        return;
    }
    lanes_load(codes + low_bits * at, low_bits, lanes);
    lanes_order(lanes, s->by_parity, s->low);
    if (high_bits == 0)
        return;
    lanes_load(high + high_bits * at, high_bits, lanes);
    lanes_order(lanes, s->by_parity, s->high);
}

/* Number i of all lanes, for table codes, e4m3, COLUMN_ZERO and COLUMN_BYTES. */
DTYPE_CLONES static void lanes_decode(const struct slice *s, int i, float *restrict out)
{
    if (s->kind == COLUMN_BYTES)
        for (int l = 0; l < COLUMN_LANES; l++)
            out[l] = s->d[l] * ((float)(uint8_t)s->code[i][l] - s->m[l]);
    else if (s->bits == 8)
        for (int l = 0; l < COLUMN_LANES; l++)
            out[l] = s->d[l] * e4m3_to_f32((uint8_t)s->code[i][l]);
    else if (s->numbers)
        for (int l = 0; l < COLUMN_LANES; l++)
            out[l] = s->d[l] * s->numbers[s->low[l] >> 4 * i & 15];
    else
        for (int l = 0; l < COLUMN_LANES; l++)
            out[l] = s->d[l] * ((float)(int)(s->low[l] >> 4 * i & 15) - s->m[l]);
}

DTYPE_CLONES static void slice_decode(const struct slice *s, float *restrict out)
{
    const int low_bits = columns_low_bits(s->bits), low_mask = (1 << low_bits) - 1;
    const int high_bits = s->bits - low_bits, high_mask = (1 << high_bits) - 1;
    const int is_plain = !s->numbers && !columns_has_zero(s->kind) && s->kind != COLUMN_E4M3;
    for (int i = 0; i < 8; i++, out += COLUMN_LANES)
        if (!is_plain)
            lanes_decode(s, i, out);
        else if (s->bits == 8)
            for (int l = 0; l < COLUMN_LANES; l++)
                out[l] = s->d[l] * (float)s->code[i][l] + s->m[l];
        else if (high_bits == 0)
            for (int l = 0; l < COLUMN_LANES; l++) {
                const int code = (int)(s->low[l] >> low_bits * i) & low_mask;
                out[l] = s->d[l] * (float)(code - s->bias) + s->m[l];
            }
        else
            for (int l = 0; l < COLUMN_LANES; l++) {
                const int low = (int)(s->low[l] >> low_bits * i) & low_mask;
                const int high = (int)(s->high[l] >> high_bits * i) & high_mask;
                out[l] = s->d[l] * (float)((low | high << low_bits) - s->bias) + s->m[l];
            }
}

DTYPE_CLONES static void slice_round(const float *in, uint16_t *restrict out)
{
    for (int i = 0; i < COLUMN_SLICE * PANEL_ROWS; i++)
        out[i] = f32_to_bf16(in[i]);
}

/* Decodes to f32 or to bf16; the other is NULL. */
static void columns_decode(enum dtype t, const uint8_t *panel, int64_t k0, int64_t k1, float *f32,
                           uint16_t *bf16)
{
    const struct column_format *f = &formats[t];
    const int64_t column_bytes = (int64_t)PANEL_ROWS * dtype_info(t)->block_bytes;
    const uint8_t *column = panel + k0 / f->block * column_bytes;
    float exact[COLUMN_SLICE * PANEL_ROWS];
    struct slice slice = {.bits = f->bits,
                          .bias = f->bias,
                          .kind = f->kind,
                          .numbers = numbers_of(f->kind),
                          .by_parity = f32 != NULL};
    const int scales_every = f->kind == COLUMN_K || f->kind == COLUMN_XS ? 2 : 1; // slices
    for (int64_t k = k0; k < k1; k += f->block, column += column_bytes) {
        column_scales(f, column, &slice);
        for (int i = 0; i < f->block / COLUMN_SLICE; i++) {
            const int64_t at = (k - k0 + i * COLUMN_SLICE) * PANEL_ROWS;
            if (f->scales_at && i % scales_every == 0)
                slice_scales(f, column + f->scales_at, i, &slice);
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
