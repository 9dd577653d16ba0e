/* kernels/dtype_own.c - see dtype_own.h: packing, and the portable decoders.
 *
 * Owns: the choice of bf12's exponents. Refuses: speed (kernels/cpu/decode_own_*.c).
 * All panels of a tensor have one size, so room for patches is fixed. bf12_fits() tests 32 rows
 * before packing; a tensor with one panel that does not fit stays bf16. */
#include "kernels/dtype_own.h"
#include "kernels/dtype_nf4.h"

#include <string.h>

int dtype_is_own(enum dtype t)
{
    return t == DTYPE_Q8 || t == DTYPE_Q4 || t == DTYPE_BF12 || t == DTYPE_NF4_S8;
}

int64_t own_panel_bytes(enum dtype t, int64_t k)
{
    if (t == DTYPE_NF4_S8)
        return nf4_panel_bytes(k);
    int64_t bytes,
        n = t == DTYPE_BF12 ? k / 4 + (k % 4 != 0) : k / OWN_GROUP + (k % OWN_GROUP != 0);
    if (k < 0 || (t == DTYPE_BF12 && k > BF12_K_MAX))
        return -1;
    if (t == DTYPE_BF12)
        return k > 0 ? bf12_head_bytes(k) + n * BF12_UNIT : 0;
    const int64_t group_bytes = t == DTYPE_Q8 ? Q8_GROUP_BYTES : Q4_GROUP_BYTES;
    return __builtin_mul_overflow(n, group_bytes, &bytes) ? -1 : bytes;
}

/* ---- q8 and q4 ---- */

/* Copies one block of a row (kernels/dtype_blocks.h) into its column of a group. */
static void put_q8(const uint8_t *block, int row, uint8_t *group)
{
    memcpy(group + row * 4, block, 4);
    uint8_t *to = group + Q8_HEAD_BYTES + row * 4;
    for (int i = 0; i < OWN_GROUP; i++)
        to[i / 4 * PANEL_ROWS * 4 + i % 4] = (uint8_t)(block[4 + i] + Q8_BIAS);
}

static void put_q4(const uint8_t *block, int row, uint8_t *group)
{
    memcpy(group + row * 2, block, 2);
    memcpy(group + PANEL_ROWS * 2 + row * 2, block + 2, 2);
    uint8_t *to = group + Q4_HEAD_BYTES + row % 16 * 4;
    for (int i = 0; i < OWN_GROUP; i++) {
        const int code = block[4 + i % 32] >> (i / 32 * 4) & 15;
        to[i / 4 * PANEL_ROWS * 2 + i % 4] |= (uint8_t)(code << (row / 16 * 4));
    }
}

static void pack_groups(enum dtype t, const void *const rows[PANEL_ROWS], int64_t k, uint8_t *panel)
{
    const int64_t block_bytes = dtype_info(t)->block_bytes, n = ceil_div(k, OWN_GROUP);
    const int64_t group_bytes = t == DTYPE_Q8 ? Q8_GROUP_BYTES : Q4_GROUP_BYTES;
    for (int64_t g = 0; g < n; g++, panel += group_bytes) {
        memset(panel, 0, (size_t)group_bytes);
        if (t == DTYPE_Q8)
            memset(panel + Q8_HEAD_BYTES, Q8_BIAS, Q8_GROUP_BYTES - Q8_HEAD_BYTES);
        for (int r = 0; r < PANEL_ROWS; r++) {
            const uint8_t *block = rows[r];
            if (block && t == DTYPE_Q8)
                put_q8(block + g * block_bytes, r, panel);
            else if (block)
                put_q4(block + g * block_bytes, r, panel);
        }
    }
}

void own_decode_q8_group(const uint8_t *group, float *out)
{
    float scales[PANEL_ROWS];
    memcpy(scales, group, sizeof scales);
    const uint8_t *codes = group + Q8_HEAD_BYTES;
    for (int i = 0; i < OWN_GROUP; i++)
        for (int r = 0; r < PANEL_ROWS; r++)
            out[i * PANEL_ROWS + r] =
                (float)(codes[(i / 4 * PANEL_ROWS + r) * 4 + i % 4] - Q8_BIAS) * scales[r];
}

static void decode_q4_group(const uint8_t *group, float *out)
{
    float scales[PANEL_ROWS], mins[PANEL_ROWS];
    uint16_t head[2 * PANEL_ROWS];
    memcpy(head, group, sizeof head);
    for (int r = 0; r < PANEL_ROWS; r++) {
        scales[r] = f16_to_f32(head[r]);
        mins[r] = f16_to_f32(head[PANEL_ROWS + r]);
    }
    const uint8_t *codes = group + Q4_HEAD_BYTES;
    for (int i = 0; i < OWN_GROUP; i++)
        for (int r = 0; r < PANEL_ROWS; r++) {
            const int byte = codes[(i / 4 * 16 + r % 16) * 4 + i % 4];
            const float scaled = (float)(byte >> (r / 16 * 4) & 15) * scales[r];
            out[i * PANEL_ROWS + r] = scaled + mins[r];
        }
}

/* ---- bf12 ---- */

/* Up to four numbers of a row from column i on, the first in the low bits; zeros past the end and
 * for a NULL row. */
static uint64_t bf16_four(const void *row, int64_t i, int64_t k)
{
    uint64_t four = 0;
    if (row && i + 4 <= k)
        memcpy(&four, (const uint8_t *)row + i * 2, 8);
    else if (row)
        memcpy(&four, (const uint8_t *)row + i * 2, (size_t)(k - i) * 2);
    return four;
}

static int exponent_of(uint64_t four, int n)
{
    return (int)(four >> (16 * n + 7) & 255);
}

/* Counts each exponent. */
static void count_exponents(const void *const rows[PANEL_ROWS], int64_t k, uint32_t counts[256])
{
    uint32_t apart[4][256] = {{0}}; // four tables, so that increments do not wait for each other
    const int64_t whole = k / 4 * 4;
    for (int r = 0; r < PANEL_ROWS; r++) {
        for (int64_t i = 0; i < whole; i += 4) {
            const uint64_t four = bf16_four(rows[r], i, k);
            apart[0][exponent_of(four, 0)]++;
            apart[1][exponent_of(four, 1)]++;
            apart[2][exponent_of(four, 2)]++;
            apart[3][exponent_of(four, 3)]++;
        }
        const uint64_t last = whole < k ? bf16_four(rows[r], whole, k) : 0;
        for (int n = 0; n < k - whole; n++)
            apart[n][exponent_of(last, n)]++;
    }
    for (int e = 0; e < 256; e++)
        counts[e] = apart[0][e] + apart[1][e] + apart[2][e] + apart[3][e];
}

/* The 15 most frequent exponents of the panel, ties: the smaller first; returns how many numbers
 * have another exponent. */
static int64_t choose_exponents(const void *const rows[PANEL_ROWS], int64_t k, uint8_t chosen[16])
{
    uint32_t counts[256];
    uint8_t there[256];
    int n_there = 0, n = 0;
    int64_t rest = k * PANEL_ROWS;
    count_exponents(rows, k, counts);
    for (int e = 0; e < 256; e++)
        if (counts[e] > 0)
            there[n_there++] = (uint8_t)e;
    memset(chosen, 0, 16);
    for (; n < BF12_PATCH && n < n_there; n++) {
        int best = n;
        for (int i = n + 1; i < n_there; i++)
            if (counts[there[i]] > counts[there[best]])
                best = i;
        const uint8_t e = there[best];
        memmove(there + n + 1, there + n, (size_t)(best - n)); // the others stay in order
        there[n] = chosen[n] = e;
        rest -= counts[e];
    }
    for (int e = 0; e < 256 && n < BF12_PATCH; e++) // fewer than 15: add unused ones
        if (counts[e] == 0)
            chosen[n++] = (uint8_t)e;
    return rest;
}

int bf12_fits(const void *const rows[PANEL_ROWS], int64_t k)
{
    uint8_t chosen[16];
    return k <= BF12_K_MAX && choose_exponents(rows, k, chosen) <= bf12_patches_max(k);
}

static void put_u32(uint8_t *at, uint32_t v)
{
    memcpy(at, &v, sizeof v);
}

static uint32_t get_u32(const uint8_t *at)
{
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

/* Writes patches for the numbers of a unit whose exponent has no index, in ascending place. */
static uint32_t patch_unit(const void *const rows[PANEL_ROWS], int64_t k, int64_t i,
                           const uint8_t index_of[256], uint32_t n_patches, uint8_t *panel)
{
    for (int n = 0; n < 4 && i + n < k; n++)
        for (int r = 0; r < PANEL_ROWS; r++) {
            const int exponent = exponent_of(bf16_four(rows[r], i, k), n);
            if (index_of[exponent] == BF12_PATCH)
                put_u32(panel + BF12_FIXED + 4 * n_patches++,
                        (uint32_t)((i + n) * PANEL_ROWS + r) << 8 | (uint32_t)exponent);
        }
    return n_patches;
}

/* Sign and mantissa of number n of four. */
static uint8_t rest_of(uint64_t four, int n)
{
    return (uint8_t)((four >> (16 * n + 8) & 0x80) | (four >> (16 * n) & 0x7f));
}

static void pack_bf12(const void *const rows[PANEL_ROWS], int64_t k, uint8_t *panel)
{
    uint8_t chosen[16], index_of[256];
    uint32_t n_patches = 0;
    if (k == 0)
        return;
    CHECK(choose_exponents(rows, k, chosen) <= bf12_patches_max(k));
    memset(panel, 0, (size_t)own_panel_bytes(DTYPE_BF12, k));
    memcpy(panel, chosen, BF12_PATCH);
    memset(index_of, BF12_PATCH, sizeof index_of);
    for (int n = BF12_PATCH - 1; n >= 0; n--)
        index_of[chosen[n]] = (uint8_t)n;
    for (int64_t i = 0; i < k; i += 4) {
        uint8_t *unit = panel + bf12_head_bytes(k) + i / 4 * BF12_UNIT;
        int patched = 0;
        for (int r = 0; r < PANEL_ROWS; r++) {
            const uint64_t four = bf16_four(rows[r], i, k);
            const int even = bf12_place(r, 0), odd = bf12_place(r, 1);
            uint8_t index[4] = {index_of[exponent_of(four, 0)], index_of[exponent_of(four, 1)],
                                index_of[exponent_of(four, 2)], index_of[exponent_of(four, 3)]};
            for (int n = (int)(k - i); n < 4; n++)
                index[n] = 0; // past the end
            unit[even] = rest_of(four, 0);
            unit[odd] = rest_of(four, 1);
            unit[64 + even] = rest_of(four, 2);
            unit[64 + odd] = rest_of(four, 3);
            unit[128 + even] = (uint8_t)(index[0] | index[2] << 4);
            unit[128 + odd] = (uint8_t)(index[1] | index[3] << 4);
            patched |= (index[0] == BF12_PATCH) | (index[1] == BF12_PATCH) |
                       (index[2] == BF12_PATCH) | (index[3] == BF12_PATCH);
        }
        if (patched)
            n_patches = patch_unit(rows, k, i, index_of, n_patches, panel);
    }
    put_u32(panel + 16, n_patches);
}

void bf12_patch(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, uint16_t *out)
{
    const uint8_t *patches = panel + BF12_FIXED;
    const int64_t n = min_i64(get_u32(panel + 16), bf12_patches_max(k));
    int64_t low = 0, high = n;
    while (low < high) { // the first patch at or after k0
        const int64_t middle = (low + high) / 2;
        if ((int64_t)(get_u32(patches + 4 * middle) >> 8) < k0 * PANEL_ROWS)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < n; low++) {
        const uint32_t patch = get_u32(patches + 4 * low);
        const int64_t place = patch >> 8, i = place / PANEL_ROWS, r = place % PANEL_ROWS;
        if (i < k0 || i >= k1)
            break;
        uint16_t *word = &out[((i - k0) / 2 * PANEL_ROWS + r) * 2 + i % 2];
        *word = (uint16_t)((*word & 0x807f) | (patch & 255) << 7);
    }
}

static void decode_bf12(const uint8_t *panel, int64_t k, int64_t k0, int64_t k1, uint16_t *out)
{
    const uint8_t *units = panel + bf12_head_bytes(k);
    uint8_t exponents[16];
    memcpy(exponents, panel, sizeof exponents);
    exponents[BF12_PATCH] = 0;
    for (int64_t i = k0; i < round_up(k1, 2); i++) {
        const uint8_t *unit = units + i / 4 * BF12_UNIT;
        const int second = (int)(i / 2 % 2);
        for (int r = 0; r < PANEL_ROWS; r++) {
            const int place = bf12_place(r, (int)(i % 2)), rest = unit[second * 64 + place];
            const int index = unit[128 + place] >> (4 * second) & 15;
            out[((i - k0) / 2 * PANEL_ROWS + r) * 2 + i % 2] =
                i < k1 ? (uint16_t)((rest & 0x80) << 8 | exponents[index] << 7 | (rest & 0x7f)) : 0;
        }
    }
    bf12_patch(panel, k, k0, k1, out);
}

/* ---- all ---- */

void own_panel_pack(enum dtype t, const void *const rows[PANEL_ROWS], int64_t k, uint8_t *panel)
{
    if (t == DTYPE_BF12)
        pack_bf12(rows, k, panel);
    else if (t == DTYPE_NF4_S8)
        nf4_panel_pack(rows, k, panel);
    else
        pack_groups(t, rows, k, panel);
}

#define GROUP_NUMBERS (OWN_GROUP * PANEL_ROWS)

/* Decodes the group of q8, q4 or nf4_s8 that starts at column i. */
static void decode_group(enum dtype t, const uint8_t *panel, int64_t i, float *out)
{
    uint8_t column[NF4_PLAIN_BYTES];
    if (t == DTYPE_NF4_S8) {
        nf4_plain_column(panel, i, column);
        columns_decode_f32(DTYPE_NF4, column, 0, NF4_PART, out);
    } else if (t == DTYPE_Q8) {
        own_decode_q8_group(panel + i / OWN_GROUP * Q8_GROUP_BYTES, out);
    } else {
        decode_q4_group(panel + i / OWN_GROUP * Q4_GROUP_BYTES, out);
    }
}

void own_decode_bf16(enum dtype t, const uint8_t *panel, int64_t k, int64_t k0, int64_t k1,
                     uint16_t *out)
{
    float numbers[GROUP_NUMBERS];
    if (t == DTYPE_BF12) {
        decode_bf12(panel, k, k0, k1, out);
        return;
    }
    for (int64_t i = k0; i < k1; i += OWN_GROUP) {
        const int64_t n = min_i64(OWN_GROUP, k1 - i);
        decode_group(t, panel, i, numbers);
        for (int64_t j = 0; j < round_up(n, 2); j++)
            for (int r = 0; r < PANEL_ROWS; r++)
                out[((i - k0 + j) / 2 * PANEL_ROWS + r) * 2 + j % 2] =
                    j < n ? f32_to_bf16(numbers[j * PANEL_ROWS + r]) : 0;
    }
}

void own_decode_f32(enum dtype t, const uint8_t *panel, int64_t k, int64_t k0, int64_t k1,
                    float *out)
{
    float numbers[GROUP_NUMBERS];
    uint16_t pairs[4 * PANEL_ROWS];
    if (t != DTYPE_BF12) {
        for (int64_t i = k0; i < k1; i += OWN_GROUP) {
            decode_group(t, panel, i, numbers);
            memcpy(out + (i - k0) * PANEL_ROWS, numbers,
                   (size_t)(min_i64(OWN_GROUP, k1 - i) * PANEL_ROWS) * sizeof *out);
        }
        return;
    }
    for (int64_t i = k0; i < k1; i += 4) {
        const int64_t end = min_i64(i + 4, k1);
        decode_bf12(panel, k, i, end, pairs);
        for (int64_t j = 0; j < end - i; j++)
            for (int r = 0; r < PANEL_ROWS; r++)
                out[(i - k0 + j) * PANEL_ROWS + r] =
                    bf16_to_f32(pairs[(j / 2 * PANEL_ROWS + r) * 2 + j % 2]);
    }
}
