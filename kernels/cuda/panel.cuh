/* kernels/cuda/panel.cuh - decodes numbers of the pack's panels, by warps.
 *
 * Owns: the decoder of every format on a device. Refuses: the output (decode.cu, matmul.cu).
 * A panel has 32 rows and a warp 32 lanes: lane r decodes row r, COLUMN_SLICE numbers along k at a
 * time. In every format the lanes of a load are contiguous: 64 to 256 bytes at once.
 * kernels/dtype*.h define the numbers: the bits are those of panel_decode_f32(), apart from NaNs'
 * payloads. */
#ifndef KERNELS_CUDA_PANEL_CUH
#define KERNELS_CUDA_PANEL_CUH

#include "kernels/cuda/simt.cuh"

#define inline inline __host__ __device__
#include "kernels/dtype_columns.h"
#include "kernels/dtype_nf4.h"
#include "kernels/dtype_own.h"
#undef inline

#define SLICE COLUMN_SLICE

template <class T> DEVICE T load_as(const uint8_t *p)
{
    return *(const T *)p;
}

DEVICE float f16_load(const uint8_t *p)
{
    return cvt_f16(load_as<uint16_t>(p));
}

/* The code in the bits of `mask` (8 at most) at bit `at` of a word, less `bias`. The bits become
 * the last bits of the float 2^(23 - at) + code: one logical operation and one exact subtraction
 * instead of a conversion, which has a quarter of their rate. */
DEVICE float code_at(uint32_t word, int at, uint32_t mask, float bias)
{
    const int place = at % 16; // so that the code ends below the exponent
    const uint32_t one = (uint32_t)(150 - place) << 23;
    return __uint_as_float((word >> (at - place) & mask << place) | one) -
           (__uint_as_float(one) + bias);
}

/* Zeros beyond the end of a row. */
DEVICE void slice_end(int n, uint32_t bits[SLICE])
{
    if (n >= SLICE)
        return;
    for (int i = 0; i < SLICE; i++)
        bits[i] = i < n ? bits[i] : 0;
}

/* ---- plain numbers: [k][32], bf16 in pairs [k / 2][32][2]; n: numbers left in the row ---- */

DEVICE void slice_f32(const uint8_t *panel, int n, int k0, uint32_t bits[SLICE])
{
    const uint32_t *from = (const uint32_t *)panel + (int64_t)k0 * PANEL_ROWS + lane_id();
    for (int i = 0; i < SLICE; i++)
        bits[i] = i < n ? from[i * PANEL_ROWS] : 0;
}

DEVICE void slice_f16(const uint8_t *panel, int n, int k0, uint32_t bits[SLICE])
{
    const uint16_t *from = (const uint16_t *)panel + (int64_t)k0 * PANEL_ROWS + lane_id();
    for (int i = 0; i < SLICE; i++)
        bits[i] = i < n ? __float_as_uint(cvt_f16(from[i * PANEL_ROWS])) : 0;
}

DEVICE void slice_bf16(const uint8_t *panel, int n, int k0, uint32_t bits[SLICE])
{
    const uint32_t *from = (const uint32_t *)panel + (int64_t)(k0 / 2) * PANEL_ROWS + lane_id();
    for (int i = 0; i < SLICE; i += 2) {
        const uint32_t pair = i < n ? from[i / 2 * PANEL_ROWS] : 0;
        bits[i] = pair << 16;
        bits[i + 1] = i + 1 < n ? pair & 0xffff0000u : 0;
    }
}

/* ---- q8, q4, bf12 ---- */

DEVICE void slice_q8(const uint8_t *panel, int n, int k0, uint32_t bits[SLICE])
{
    const uint8_t *group = panel + (int64_t)(k0 / OWN_GROUP) * Q8_GROUP_BYTES;
    const float scale = load_as<float>(group + 4 * lane_id());
    const uint8_t *codes =
        group + Q8_HEAD_BYTES + (k0 % OWN_GROUP / 4 * PANEL_ROWS + lane_id()) * 4;
    for (int i = 0; i < SLICE; i++) {
        const uint32_t quad = load_as<uint32_t>(codes + i / 4 * PANEL_ROWS * 4);
        bits[i] = __float_as_uint(code_at(quad, 8 * (i % 4), 255, Q8_BIAS) * scale);
    }
    slice_end(n, bits);
}

/* Note: rows 16..31 use the upper halves of the bytes, i.e. codes 16 times as large: their scale is
 * 16 times smaller. A product of f16 and code is exact in f32, so that a fused addition gives the
 * same bits. */
DEVICE void slice_q4(const uint8_t *panel, int n, int k0, uint32_t bits[SLICE])
{
    const int r = lane_id();
    const uint8_t *group = panel + (int64_t)(k0 / OWN_GROUP) * Q4_GROUP_BYTES;
    const float scale = f16_load(group + 2 * r) * (r < 16 ? 1.0f : 0x1p-4f);
    const float min = f16_load(group + 2 * (PANEL_ROWS + r));
    const uint32_t mask = r < 16 ? 0x0f : 0xf0;
    const uint8_t *codes = group + Q4_HEAD_BYTES + (k0 % OWN_GROUP / 4 * 16 + r % 16) * 4;
    for (int i = 0; i < SLICE; i++) {
        const uint32_t quad = load_as<uint32_t>(codes + i / 4 * 16 * 4);
        bits[i] = __float_as_uint(fmaf(code_at(quad, 8 * (i % 4), mask, 0), scale, min));
    }
    slice_end(n, bits);
}

/* Index of the first patch at or after place `from`: 32 probes per round, so a panel of 4,096
 * columns takes two rounds. Terminates for damaged panels too. */
DEVICE int bf12_first_patch(const uint32_t *patches, int n, uint32_t from)
{
    int low = 0, high = n;
    while (low < high) {
        const int step = (high - low + WARP - 1) / WARP, at = low + lane_id() * step;
        const int before = __popc(__ballot_sync(WARP_ALL, at < high && patches[at] >> 8 < from));
        if (before == 0)
            return low;
        high = min(low + before * step, high);
        low += (before - 1) * step + 1;
    }
    return low;
}

DEVICE void bf12_patches(const uint8_t *panel, int k, int k0, uint32_t bits[SLICE])
{
    const uint32_t *patches = (const uint32_t *)(panel + BF12_FIXED);
    const int n = (int)min_i64(load_as<uint32_t>(panel + 16), bf12_patches_max(k));
    const uint32_t from = (uint32_t)k0 * PANEL_ROWS, end = from + SLICE * PANEL_ROWS;
    for (int i = bf12_first_patch(patches, n, from); i < n; i++) {
        const uint32_t patch = patches[i], place = patch >> 8;
        if (place < from || place >= end)
            return;
        for (int j = 0; j < SLICE; j++)
            if (place == from + j * PANEL_ROWS + lane_id())
                bits[j] = (bits[j] & 0x807fffffu) | (patch & 255) << 23;
    }
}

/* Sign and mantissa of a number, and its exponent. */
DEVICE uint32_t bf12_bits(uint32_t rest, uint32_t exponent)
{
    return (rest & 0x80) << 24 | exponent << 23 | (rest & 0x7f) << 16;
}

DEVICE void slice_bf12(const uint8_t *panel, int k, int n, int k0, uint32_t bits[SLICE])
{
    const uint8_t *unit = panel + bf12_head_bytes(k) + (int64_t)(k0 / 4) * BF12_UNIT;
    const int place = bf12_place(lane_id(), 0); // the odd number of a pair follows the even one
    const uint32_t exponents = lane_id() < BF12_PATCH ? panel[lane_id()] : 0; // one per lane
    for (int i = 0; i < SLICE; i += 4, unit += BF12_UNIT) {
        uint32_t first = 0, second = 0, index = 0;
        if (i < n) {
            first = load_as<uint16_t>(unit + place);
            second = load_as<uint16_t>(unit + 64 + place);
            index = load_as<uint16_t>(unit + 128 + place);
        }
        for (int odd = 0; odd < 2; odd++) {
            const int pair = (int)(index >> 8 * odd);
            bits[i + odd] = bf12_bits(first >> 8 * odd, warp_shfl(exponents, pair & 15));
            bits[i + 2 + odd] = bf12_bits(second >> 8 * odd, warp_shfl(exponents, pair >> 4 & 15));
        }
    }
    slice_end(n, bits);
    bf12_patches(panel, k, k0, bits);
}

/* ---- blocks: columns (kernels/dtype_columns.h, where the parameters are named) ---- */

/* The number of a 4-bit code. Selected in registers: a table would be in memory. */
DEVICE float number_of_code(int kind, int code)
{
    const float nl[16] = {COLUMN_NL_NUMBERS}, mxfp4[16] = {COLUMN_MXFP4_NUMBERS};
    const float nf4[16] = {COLUMN_NF4_NUMBERS};
    float x = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float number = kind == COLUMN_E8M0   ? mxfp4[i]
                             : kind == COLUMN_E2M1 ? 0.5f * mxfp4[i]
                             : kind == COLUMN_NF4  ? nf4[i]
                                                   : nl[i];
        x = code == i ? number : x;
    }
    return x;
}

/* Scale d and minimum (or zero) m of the lane's row in a slice. */
template <int KIND, int MIN, int SCALES>
DEVICE void slice_scales(const uint8_t *column, int slice, float *d, float *m)
{
    const int r = lane_id();
    *m = -0.0f;
    if (KIND == COLUMN_E8M0)
        *d = e8m0_half(column[r]);
    else if (KIND == COLUMN_BF16)
        *d = __uint_as_float((uint32_t)load_as<uint16_t>(column + 2 * r) << 16);
    else if (columns_scale_is_wide(KIND))
        *d = load_as<float>(column + 4 * r);
    else
        *d = f16_load(column + 2 * r);
    if (columns_has_zero(KIND))
        *m = (float)column[MIN + r];
    else if (MIN)
        *m = f16_load(column + MIN + 2 * r);
    if (KIND == COLUMN_E2M1) { // e4m3_scaled()
        const float scale =
            cvt_f16(e4m3_f16(column[SCALES + slice * PANEL_ROWS + r])) * 256.0f;
        *d = *d < 0 ? scale / -*d : scale * *d;
    } else if (SCALES) {
        int scale, min;
        columns_part_scale(KIND, column + SCALES + r, slice, &scale, &min);
        *d = *d * (float)scale;
        *m = MIN ? -(*m * (float)min) : -0.0f;
    }
}

/* The number of the byte at bit `at` of a pair. */
template <int KIND> DEVICE float byte_number(uint32_t pair, int at)
{
    return KIND == COLUMN_E4M3    ? cvt_f16(e4m3_f16((uint8_t)(pair >> at))) * 256.0f
           : KIND == COLUMN_BYTES ? code_at(pair, at, 255, 0)
                                  : code_at(pair ^ 0x8080, at, 255, 128);
}

/* Note: with a minimum, products of scale and code are exact in f32 (11 + 6 + 5 bits), so that a
 * fused addition gives the bits of two operations; -0 changes no product. */
template <int BLOCK, int BITS, int BIAS, int KIND, int MIN, int SCALES, int HIGH, int CODES>
DEVICE void slice_column(const uint8_t *panel, int k0, uint32_t bits[SLICE])
{
    constexpr int LOW_BITS = BITS < 4 ? 2 : BITS < 8 ? 4 : 8, HIGH_BITS = BITS - LOW_BITS;
    constexpr int BYTES = CODES + PANEL_ROWS * BLOCK * LOW_BITS / 8;
    const int slice = k0 % BLOCK / SLICE, at = slice * COLUMN_LANES + 2 * lane_id();
    const uint8_t *column = panel + (int64_t)(k0 / BLOCK) * BYTES;
    float d, m;
    slice_scales<KIND, MIN, SCALES>(column, slice, &d, &m);
    if (BITS == 8) {
        for (int i = 0; i < SLICE; i += 2) {
            const uint32_t pair = load_as<uint16_t>(
                column + CODES + (slice * 8 + i / 2) * COLUMN_LANES + 2 * lane_id());
            const float zero = columns_has_zero(KIND) ? m : 0;
            bits[i] = __float_as_uint(d * (byte_number<KIND>(pair, 0) - zero));
            bits[i + 1] = __float_as_uint(d * (byte_number<KIND>(pair, 8) - zero));
        }
        return;
    }
    uint2 low = {0, 0}; // codes of the even numbers, of the odd ones
    uint32_t high = 0;  // high bits of the even number, above them those of the odd one
    if (LOW_BITS == 4)
        low = load_as<uint2>(column + CODES + 4 * at);
    if (LOW_BITS == 2) {
        low.x = load_as<uint32_t>(column + CODES + 2 * at);
        low.y = low.x >> 16;
    }
    if (HIGH_BITS == 1)
        high = load_as<uint16_t>(column + HIGH + at);
    if (HIGH_BITS == 2)
        high = load_as<uint32_t>(column + HIGH + 2 * at);
    const float number = columns_is_looked_up(KIND) ? number_of_code(KIND, lane_id() & 15) : 0;
    for (int i = 0; i < SLICE; i++) {
        const uint32_t word = i % 2 ? low.y : low.x, mask = (1 << LOW_BITS) - 1;
        const int at = LOW_BITS * (i / 2);
        const uint32_t above = high >> HIGH_BITS * (8 * (i % 2) + i / 2) & ((1 << HIGH_BITS) - 1);
        if (columns_is_looked_up(KIND)) {
            const uint32_t looked_up =
                warp_shfl(__float_as_uint(number), (int)(word >> at & mask));
            bits[i] = __float_as_uint(d * __uint_as_float(looked_up));
        } else if (KIND == COLUMN_ZERO) {
            bits[i] = __float_as_uint(d * (code_at(word, at, mask, 0) - m));
        } else if (HIGH_BITS) {
            const uint32_t code = (word >> at & mask) | above << LOW_BITS;
            bits[i] = __float_as_uint(fmaf(d, code_at(code, 0, 255, BIAS), m));
        } else {
            bits[i] = __float_as_uint(fmaf(d, code_at(word, at, mask, BIAS), m));
        }
    }
}

/* nf4_s8: each 64 numbers have an 8-bit scale. */
DEVICE void slice_nf4_s8(const uint8_t *panel, int k0, uint32_t bits[SLICE])
{
    const int r = lane_id(), part = k0 % NF4_BLOCK / NF4_PART;
    const uint8_t *column = panel + NF4_HEAD_BYTES + (int64_t)(k0 / NF4_BLOCK) * NF4_COLUMN_BYTES;
    const float d = nf4_scale(column[PANEL_ROWS * (4 + part) + r], load_as<float>(column + 4 * r),
                              load_as<float>(panel + 4 * r));
    const uint8_t *codes = column + NF4_SCALES_BYTES + part * NF4_CODES_BYTES;
    const uint2 low = load_as<uint2>(codes + 4 * (k0 % NF4_PART / SLICE * COLUMN_LANES + 2 * r));
    const float number = number_of_code(COLUMN_NF4, lane_id() & 15); // number of code lane_id()
    for (int i = 0; i < SLICE; i++) {
        const uint32_t code = (i % 2 ? low.y : low.x) >> 4 * (i / 2) & 15;
        const uint32_t looked_up = warp_shfl(__float_as_uint(number), (int)code);
        bits[i] = __float_as_uint(d * __uint_as_float(looked_up));
    }
}

/* tq1_0: rows are contiguous; 16 numbers are one digit of 16 bytes each, the last 16 are four
 * digits of four bytes (kernels/dtype_blocks.c). */
DEVICE void slice_tq1_0(const uint8_t *panel, int k, int k0, uint32_t bits[SLICE])
{
    const uint8_t *block = panel + ((int64_t)(k / 256) * lane_id() + k0 / 256) * 54;
    const int s = k0 % 256 / SLICE, last = s == 15;
    const int from = last ? 48 : s < 10 ? s % 2 * 16 : 32;
    const float d = f16_load(block + 52);
    uint32_t power = 1;
    for (int i = 0; i < (last ? 0 : s < 10 ? s / 2 : s - 10); i++)
        power *= 3;
    for (int i = 0; i < SLICE; i++) {
        const uint32_t byte = block[from + (last ? i % 4 : i)] * power & 255;
        bits[i] = __float_as_uint(d * (float)((int)(byte * 3 >> 8) - 1));
        if (last && i % 4 == 3)
            power *= 3;
    }
}

/* ---- grids (kernels/dtype_grid.h, included with a device's words) ---- */

#define GRID_TABLE static __device__ const
#include "kernels/dtype_grid_points.inc"
#define GRID_WORD uint32_t
#define GRID_FN   DEVICE
// rows need no alignment, panels have it
#define GRID_LOAD(p, stride)                                                                       \
    ((stride) == 2 ? (uint32_t)((p)[0] | (p)[1] << 8) : (uint32_t)load_as<uint16_t>(p))
#define GRID_AT(name, index) grid_##name[index]
#include "kernels/dtype_grid.h"

/* Number i of an eight, as bits of f32. */
DEVICE uint32_t grid_number(enum dtype t, const struct grid_eight *e, int i, float d)
{
    const int bias = 16; // levels of iq1_* may be negative
    const float level = code_at(grid_level_of(t, e, i) + bias, 0, 255, bias);
    const uint32_t sign = grid_is_iq1(t) ? 0 : e->signs << (31 - i) & 0x80000000u;
    return __float_as_uint(d * code_at(e->scale, 0, 255, 0) * level) ^ sign;
}

template <enum dtype T, int BYTES>
DEVICE void slice_grid(const uint8_t *panel, int k0, uint32_t bits[SLICE])
{
    const uint8_t *block = panel + (int64_t)(k0 / GRID_BLOCK) * BYTES * PANEL_ROWS + 2 * lane_id();
    const float d = cvt_f16((uint16_t)grid_d(T, block, GRID_STRIDE)) * grid_unit(T);
    for (int eight = 0; eight < SLICE / 8; eight++) {
        struct grid_eight e;
        grid_eight(T, block, GRID_STRIDE, k0 % GRID_BLOCK / 8 + eight, &e);
        for (int i = 0; i < 8; i++)
            bits[8 * eight + i] = grid_number(T, &e, i, d);
    }
}

/* Numbers k0 .. k0 + 15 of row lane_id() of a panel, as bits of f32; zeros from k on. k0: a
 * multiple of SLICE below k. Whole warps only. */
DEVICE void panel_slice(int dtype, const uint8_t *panel, int k, int k0, uint32_t bits[SLICE])
{
    switch (dtype) {
    case DTYPE_F32:
        slice_f32(panel, k - k0, k0, bits);
        return;
    case DTYPE_F16:
        slice_f16(panel, k - k0, k0, bits);
        return;
    case DTYPE_BF16:
        slice_bf16(panel, k - k0, k0, bits);
        return;
    case DTYPE_Q8:
        slice_q8(panel, k - k0, k0, bits);
        return;
    case DTYPE_Q4:
        slice_q4(panel, k - k0, k0, bits);
        return;
    case DTYPE_NF4_S8:
        slice_nf4_s8(panel, k0, bits);
        return;
    case DTYPE_TQ1_0:
        slice_tq1_0(panel, k, k0, bits);
        return;
#define COLUMN_CASE(NAME, name, block, code_bits, bias, kind, min_at, scales_at, high_at,          \
                    codes_at)                                                                      \
    case DTYPE_##NAME:                                                                             \
        slice_column<block, code_bits, bias, kind, min_at, scales_at, high_at, codes_at>(          \
            panel, k0, bits);                                                                      \
        return;
        COLUMN_FORMATS(COLUMN_CASE)
#undef COLUMN_CASE
#define GRID_CASE(NAME, name, bytes, ...)                                                          \
    case DTYPE_##NAME:                                                                             \
        slice_grid<DTYPE_##NAME, bytes>(panel, k0, bits);                                          \
        return;
        GRID_FORMATS(GRID_CASE)
#undef GRID_CASE
    default: // bf12
        slice_bf12(panel, k, k - k0, k0, bits);
    }
}

#endif
