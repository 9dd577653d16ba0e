/* engine/model/dummy_numbers.c - see dummy_numbers.h.
 *
 * A hash of (key, row, group of four columns) gives four 16-bit indices into a table of quantiles.
 * The table of 128 KiB fits in L2, and four look-ups cost less than the hash. */
#include "engine/model/dummy_numbers.h"

#include <string.h>

#define GROUP        4 // columns per hash
#define SERIES_MAX   90
#define FIRST_BF16   (103u << 7) // 2^-24: below the smallest quantile
#define HALF         32768
#define INV_SQRT_2PI 0.39894228040143267794

/* Phi(x) - 1/2 for x in [0, 5], by its Taylor series: only +, * and /, which round the same on
 * every machine. Terms grow to 1e4 before they fall, so a double keeps a precision of 1e-12: enough
 * to place 32,768 quantiles. */
static double half_cdf(double x)
{
    double term = x, sum = x;
    for (int n = 1; n < SERIES_MAX; n++) {
        term *= -x * x / (2.0 * n);
        sum += term / (2 * n + 1);
    }
    return sum * INV_SQRT_2PI;
}

void dummy_numbers_init(struct dummy_numbers *d)
{
    int at = 0; // index in the upper half; the lower half mirrors it
    for (uint16_t bits = FIRST_BF16; at < HALF; bits++) {
        double here = (double)bf16_to_f32(bits), above = (double)bf16_to_f32((uint16_t)(bits + 1));
        double last =
            2 * HALF * half_cdf((here + above) / 2 / DUMMY_STD); // last one that rounds to `bits`
        for (; at < HALF && at + 0.5 <= last; at++) {
            d->normals[HALF + at] = bits;
            d->normals[HALF - 1 - at] = bits | 0x8000;
        }
    }
}

/* What to add to the bits of a normal number so that the squares of k numbers sum to [0.5, 2): a
 * power of two, in the exponent. */
static uint16_t row_shift(int64_t k)
{
    double sum = DUMMY_STD * DUMMY_STD * (double)k;
    int e = 0;
    for (; sum < 0.5; e++)
        sum *= 4;
    for (; sum >= 2; e--)
        sum /= 4;
    return (uint16_t)(e * 128);
}

static uint64_t row_place(uint64_t key, int64_t row, int64_t k)
{
    return key + (uint64_t)(row * ceil_div(k, GROUP));
}

void dummy_row(const struct dummy_numbers *d, uint64_t key, int64_t row, int64_t k, uint16_t *out)
{
    const uint16_t *normals = d->normals;
    const uint16_t shift = row_shift(k);
    uint64_t place = row_place(key, row, k), h;
    int64_t i = 0;
    for (; i + GROUP <= k; i += GROUP) {
        h = mix64(place++);
        out[i] = (uint16_t)(normals[h & 0xffff] + shift);
        out[i + 1] = (uint16_t)(normals[h >> 16 & 0xffff] + shift);
        out[i + 2] = (uint16_t)(normals[h >> 32 & 0xffff] + shift);
        out[i + 3] = (uint16_t)(normals[h >> 48] + shift);
    }
    h = mix64(place);
    for (; i < k; i++, h >>= 16)
        out[i] = (uint16_t)(normals[h & 0xffff] + shift);
}

/* Two bf16 numbers, the first one in the low half. */
static uint32_t pair_of(const uint16_t *normals, uint64_t h, uint16_t shift)
{
    return (uint16_t)(normals[h & 0xffff] + shift) |
           (uint32_t)(uint16_t)(normals[h >> 16 & 0xffff] + shift) << 16;
}

void dummy_panel(const struct dummy_numbers *d, uint64_t key, int64_t first, int n, int64_t k,
                 void *panel)
{
    const uint16_t *normals = d->normals;
    const uint64_t stride = (uint64_t)ceil_div(k, GROUP);
    const uint16_t shift = row_shift(k);
    uint32_t *out = panel; // [ceil(k / 2)][32] pairs, the even column in the low half
    CHECK(n >= 0 && n <= PANEL_ROWS);
    if (n < PANEL_ROWS)
        memset(out, 0, (size_t)ceil_div(k, 2) * PANEL_ROWS * sizeof *out);
    for (int64_t i = 0; i < k; i += GROUP, out += 2 * PANEL_ROWS) {
        uint64_t place = row_place(key, first, k) + (uint64_t)(i / GROUP);
        for (int r = 0; k - i >= GROUP && r < n; r++) {
            uint64_t h = mix64(place + (uint64_t)r * stride);
            out[r] = pair_of(normals, h, shift);
            out[PANEL_ROWS + r] = pair_of(normals, h >> 32, shift);
        }
        for (int r = 0; k - i < GROUP && r < n; r++) { // the last group, with fewer columns
            uint64_t h = mix64(place + (uint64_t)r * stride);
            for (int64_t j = i; j < k; j++, h >>= 16) {
                uint32_t *pair = out + (j - i) / 2 * PANEL_ROWS + r;
                uint32_t number = (uint16_t)(normals[h & 0xffff] + shift);
                *pair = j % 2 == 0 ? number : *pair | number << 16;
            }
        }
    }
}
