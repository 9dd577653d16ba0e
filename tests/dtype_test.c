/* tests/dtype_test.c - number formats against one-element-at-a-time definitions.
 *
 * The definitions here are written from the formats' descriptions, element by element, and share no
 * code with the decoders; tests/gguf_formats.py compares with another implementation altogether. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/dtype_grid.h"
#include "kernels/dtype_nf4.h" // before cmocka.h, whose macro fail() takes no arguments

#include <cmocka.h>

static uint64_t random_state = 1;

static uint64_t random_next(void)
{
    return mix64(random_state++);
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float f32_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* The value of an f16 by its definition. */
static double f16_value(int h)
{
    const int exponent = h >> 10 & 31, mantissa = h & 1023;
    const double sign = h & 0x8000 ? -1.0 : 1.0;
    if (exponent == 31)
        return mantissa ? NAN : sign * INFINITY;
    return sign * (exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24));
}

static void test_f16_every_value(void **state)
{
    (void)state;
    for (int h = 0; h < 65536; h++) {
        const double want = f16_value(h);
        const float got = f16_to_f32((uint16_t)h);
        if (isnan(want)) {
            assert_true(isnan(got));
            assert_true(isnan(f16_to_f32(f32_to_f16(got))));
        } else {
            assert_int_equal(bits_of(got), bits_of((float)want));
            assert_int_equal(f32_to_f16(got), h);
        }
    }
}

/* Each f16, its neighbour, the middle between them, and one f32 step to either side of it. */
static void test_f16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (int h = 0; h < 0x7c00; h++) {
        const double low = f16_value(h), high = h == 0x7bff ? 65536.0 : f16_value(h + 1);
        const float middle = (float)((low + high) / 2); // exact: 12 bits
        for (int sign = 0; sign < 2; sign++) {
            const int s = sign << 15;
            const float f = sign ? -1.0f : 1.0f;
            assert_int_equal(f32_to_f16(f * nextafterf(middle, 0.0f)), s | h);
            assert_int_equal(f32_to_f16(f * middle), s | (h & 1 ? h + 1 : h));
            assert_int_equal(f32_to_f16(f * nextafterf(middle, INFINITY)), s | (h + 1));
        }
    }
    assert_int_equal(f32_to_f16(INFINITY), 0x7c00);
    assert_int_equal(f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(f32_to_f16(3e38f), 0x7c00);
    assert_int_equal(f32_to_f16(1e-44f), 0);
    assert_int_equal(f32_to_f16(-0.0f), 0x8000);
    assert_true(
        isnan(f16_to_f32(f32_to_f16(f32_of(0x7f800001))))); // a payload that f16 cannot hold
}

static void test_bf16(void **state)
{
    (void)state;
    for (uint32_t b = 0; b < 65536; b++) {
        const float f = bf16_to_f32((uint16_t)b);
        if (isnan(f)) {
            assert_true(isnan(bf16_to_f32(f32_to_bf16(f))));
            continue;
        }
        assert_int_equal(f32_to_bf16(f), b);
        if ((b & 0x7fff) == 0x7f80)
            continue;
        assert_int_equal(f32_to_bf16(f32_of(b << 16 | 0x7fff)), b);
        assert_int_equal(f32_to_bf16(f32_of(b << 16 | 0x8000)), b + (b & 1));
        assert_int_equal(f32_to_bf16(f32_of(b << 16 | 0x8001)), b + 1);
    }
}

/* Scale and minimum of sub-block s of q4_k, q5_k. */
static void k_scale_at(const uint8_t *p, int s, int *scale, int *min)
{
    *scale = s < 4 ? p[s] & 63 : (p[s + 4] & 15) | (p[s - 4] >> 6) << 4;
    *min = s < 4 ? p[s + 4] & 63 : (p[s + 4] >> 4) | (p[s] >> 6) << 4;
}

static float f16_at(const uint8_t *p)
{
    return (float)f16_value(p[0] | p[1] << 8);
}

static float nl_number(int code)
{
    static const int numbers[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                    1,    13,   25,  38,  53,  69,  89,  113};
    return (float)numbers[code];
}

/* Sign, 2 bits of exponent, 1 of mantissa; there is no -0. */
static double mxfp4_number(int code)
{
    const int e = code >> 1 & 3, m = code & 1;
    const double size = e ? ldexp(2 + m, e - 2) : m / 2.0;
    return code > 8 ? -size : size;
}

static float nf4_number(int code)
{
    static const double numbers[16] = {-1.0,
                                       -0.6961928009986877,
                                       -0.5250730514526367,
                                       -0.39491748809814453,
                                       -0.28444138169288635,
                                       -0.18477343022823334,
                                       -0.09105003625154495,
                                       0.0,
                                       0.07958029955625534,
                                       0.16093020141124725,
                                       0.24611230194568634,
                                       0.33791524171829224,
                                       0.44070982933044434,
                                       0.5626170039176941,
                                       0.7229568362236023,
                                       1.0};
    return (float)numbers[code];
}

/* 1 sign, 4 exponent, 3 mantissa. */
static float e4m3_value(int b)
{
    const int e = b >> 3 & 15, m = b & 7;
    const double size = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
    if ((b & 127) == 127)
        return NAN;
    return (float)(b & 128 ? -size : size);
}

/* Number j of 256 of 2 bits. */
static int two_bits(const uint8_t *p, int j)
{
    return p[j / 128 * 32 + j % 32] >> 2 * (j / 32 % 4) & 3;
}

/* Digit of number j of tq1_0: bytes are 256ths of five digits in base 3 (rounded up), the first
 * above. */
static int trit(const uint8_t *p, int j)
{
    const int width = j < 160   ? 32
                      : j < 240 ? 16
                                : 4,
              at = j < 160   ? j
                   : j < 240 ? j - 160
                             : j - 240;
    int rest = p[(j < 160 ? 0 : j < 240 ? 32 : 48) + at % width];
    for (int n = at / width; n > 0; n--)
        rest = rest * 3 % 256;
    return rest * 3 / 256;
}

static uint32_t u16_at(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8;
}

/* Size of number i of a point: GGUF lists them by these tables. */
static int grid_size(enum dtype t, const uint16_t *points, uint32_t index, int i)
{
    static const int two[] = {8, 25, 43}, three[] = {4, 12, 20, 28, 36, 44, 52, 62};
    if (t == DTYPE_IQ3_XXS)
        return three[points[index] >> 4 * (i % 4) & 15];
    if (t == DTYPE_IQ3_S)
        return 2 * (points[index] >> 4 * (i % 4) & 15) + 1;
    return two[points[index] >> 2 * i & 3];
}

/* Sign i of eight: seven are stored, an even number of the eight is negative. */
static int grid_negative(uint32_t seven, int i)
{
    return i < 7 ? seven >> i & 1 : __builtin_popcount(seven & 127) % 2;
}

static float element_iq1(enum dtype t, const uint8_t *b, int j)
{
    const int g = j / 8;
    uint32_t index, scale, negative, d = u16_at(b);
    if (t == DTYPE_IQ1_S) {
        const uint32_t h = u16_at(b + 34 + 2 * (g / 4));
        index = b[2 + g] + 256 * (h >> 3 * (g % 4) & 7);
        scale = h >> 12 & 7;
        negative = h >> 15;
    } else {
        const uint32_t h = b[32 + g / 2] >> 4 * (g % 2);
        index = b[g] + 256 * (h & 7);
        scale = u16_at(b + 48 + 2 * (j / 64)) >> 3 * (j / 16 % 4) & 7;
        negative = h >> 3 & 1;
        d = 0;
        for (int i = 0; i < 4; i++)
            d |= (u16_at(b + 48 + 2 * i) >> 12) << 4 * i;
    }
    const float f = (float)f16_value((int)d) * (float)(2 * scale + 1);
    const float number = (float)((grid_iq1[index] >> 2 * (j % 8) & 3) - 1);
    return f * (number + (negative ? -0.125f : 0.125f));
}

static float element_iq2(enum dtype t, const uint8_t *b, int j)
{
    const int g = j / 8, i = j % 8;
    int size, negative;
    uint32_t scale;
    if (t == DTYPE_IQ2_XXS) {
        const uint8_t *p = b + 2 + j / 32 * 8;
        const uint32_t rest = u16_at(p + 4) | u16_at(p + 6) << 16;
        size = grid_size(t, grid_iq2_xxs, p[g % 4], i);
        negative = grid_negative(rest >> 7 * (g % 4), i);
        scale = rest >> 28;
    } else if (t == DTYPE_IQ2_XS) {
        const uint32_t word = u16_at(b + 2 + 2 * g);
        size = grid_size(t, grid_iq2_xs, word % 512, i);
        negative = grid_negative(word / 512, i);
        scale = b[66 + j / 32] >> 4 * (j / 16 % 2) & 15;
    } else {
        const uint32_t high = b[66 + j / 32] >> 2 * (g % 4) & 3;
        size = grid_size(t, grid_iq2_s, b[2 + g] + 256 * high, i);
        negative = b[34 + g] >> i & 1;
        scale = b[74 + j / 32] >> 4 * (j / 16 % 2) & 15;
    }
    const float f = f16_at(b) * (0.5f + (float)scale) * 0.25f * (float)size;
    return negative ? -f : f;
}

static float element_iq3(enum dtype t, const uint8_t *b, int j)
{
    const int g = j / 8, i = j % 8;
    float f;
    int negative;
    if (t == DTYPE_IQ3_XXS) {
        const uint8_t *p = b + 66 + j / 32 * 4;
        const uint32_t rest = u16_at(p) | u16_at(p + 2) << 16;
        f = f16_at(b) * (0.5f + (float)(rest >> 28)) * 0.5f;
        f = f * (float)grid_size(t, grid_iq3_xxs, b[2 + j / 4], i);
        negative = grid_negative(rest >> 7 * (g % 4), i);
    } else {
        const uint32_t high = b[66 + j / 32] >> j / 4 % 8 & 1;
        f = f16_at(b) * (float)(1 + 2 * (b[106 + j / 64] >> 4 * (j / 32 % 2) & 15));
        f = f * (float)grid_size(t, grid_iq3_s, b[2 + j / 4] + 256 * high, i);
        negative = b[74 + g] >> i & 1;
    }
    return negative ? -f : f;
}

/* Number j of one block of the formats whose codes are no numbers in themselves, or not all. */
static float element_looked_up(enum dtype t, const uint8_t *b, int j)
{
    const int half = j / 16, low = j % 16, n = dtype_info(t)->block / 2;
    int scale;
    float f, offset;
    switch (t) {
    case DTYPE_IQ1_S:
    case DTYPE_IQ1_M:
        return element_iq1(t, b, j);
    case DTYPE_IQ2_XXS:
    case DTYPE_IQ2_XS:
    case DTYPE_IQ2_S:
        return element_iq2(t, b, j);
    case DTYPE_IQ3_XXS:
    case DTYPE_IQ3_S:
        return element_iq3(t, b, j);
    case DTYPE_IQ4_NL:
        return f16_at(b) * nl_number(b[2 + low] >> 4 * half & 15);
    case DTYPE_MXFP4:
        return (float)ldexp(mxfp4_number(b[1 + low] >> 4 * half & 15), b[0] - 127);
    case DTYPE_IQ4_XS:
        scale = b[4 + j / 64] >> 4 * (j / 32 % 2) & 15;
        scale += 16 * ((b[2] | b[3] << 8) >> 2 * (j / 32) & 3);
        f = f16_at(b) * (float)(scale - 32);
        return f * nl_number(b[8 + j / 32 * 16 + j % 16] >> 4 * (j / 16 % 2) & 15);
    case DTYPE_TQ2_0:
        return f16_at(b + 64) * (float)(two_bits(b, j) - 1);
    case DTYPE_TQ1_0:
        return f16_at(b + 52) * (float)(trit(b, j) - 1);
    case DTYPE_G4_32:
    case DTYPE_G4_64:
    case DTYPE_G4_128:
        return f16_at(b) * (float)((b[3 + j % n] >> 4 * (j / n) & 15) - b[2]);
    case DTYPE_B4_32:
    case DTYPE_B4_128:
        f = f32_of(u16_at(b) << 16);
        return f * (float)((b[2 + j % n] >> 4 * (j / n) & 15) - 8);
    case DTYPE_I8_32:
    case DTYPE_I8_128:
        memcpy(&f, b, 4);
        return f * (float)(b[5 + j] - b[4]);
    case DTYPE_NV4_64:
    case DTYPE_NV4_256:
        memcpy(&f, b, 4);
        offset = e4m3_value(b[4 + j / 16]);
        f = f < 0 ? offset / -f : offset * f;
        return f * (float)mxfp4_number(b[4 + n / 8 + j % n] >> 4 * (j / n) & 15);
    case DTYPE_F8_32:
    case DTYPE_F8_128:
        memcpy(&f, b, 4);
        return e4m3_value(b[4 + j]) * f;
    case DTYPE_NF4_S8:
        memcpy(&f, b, 4);
        memcpy(&offset, b + 4, 4);
        f = nf4_scale_number(b[8 + j / 64]) * f;
        f = f + offset;
        return nf4_number(b[12 + j / 64 * 32 + j % 32] >> 4 * (j / 32 % 2) & 15) * f;
    case DTYPE_NF4:
        memcpy(&f, b, 4);
        return nf4_number(b[4 + j % 32] >> 4 * (j / 32) & 15) * f;
    default:
        fail_msg("no definition of %s", dtype_info(t)->name);
    }
    return 0.0f;
}

/* Number j of one block, by the definition; every float operation is rounded to f32. */
static float element(enum dtype t, const uint8_t *b, int j)
{
    const int half = j / 16, low = j % 16; // of the formats with 32 numbers
    int scale, min, q;
    float f;
    switch (t) {
    case DTYPE_Q4_0:
        return f16_at(b) * (float)((b[2 + low] >> 4 * half & 15) - 8);
    case DTYPE_Q4_1:
        f = f16_at(b) * (float)(b[4 + low] >> 4 * half & 15);
        return f + f16_at(b + 2);
    case DTYPE_Q5_0:
        q = (b[6 + low] >> 4 * half & 15) + 16 * (b[2 + j / 8] >> j % 8 & 1);
        return f16_at(b) * (float)(q - 16);
    case DTYPE_Q5_1:
        q = (b[8 + low] >> 4 * half & 15) + 16 * (b[4 + j / 8] >> j % 8 & 1);
        f = f16_at(b) * (float)q;
        return f + f16_at(b + 2);
    case DTYPE_Q8_0:
        return f16_at(b) * (float)(int8_t)b[2 + j];
    case DTYPE_Q2_K:
        f = f16_at(b + 80) * (float)(b[j / 16] % 16);
        f = f * (float)two_bits(b + 16, j);
        return f - f16_at(b + 82) * (float)(b[j / 16] / 16);
    case DTYPE_Q3_K:
        scale = b[96 + j / 16 % 8] >> 4 * (j / 128) & 15;
        scale += 16 * (b[104 + j / 16 % 4] >> 2 * (j / 64) & 3);
        q = two_bits(b + 32, j) - (b[j % 32] >> j / 32 & 1 ? 0 : 4);
        f = f16_at(b + 108) * (float)(scale - 32);
        return f * (float)q;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        k_scale_at(b + 4, j / 32, &scale, &min);
        q = b[(t == DTYPE_Q4_K ? 16 : 48) + j / 64 * 32 + j % 32] >> 4 * (j / 32 % 2) & 15;
        if (t == DTYPE_Q5_K)
            q += 16 * (b[16 + j % 32] >> j / 32 & 1);
        f = f16_at(b) * (float)scale;
        f = f * (float)q;
        return f - f16_at(b + 2) * (float)min;
    case DTYPE_Q6_K:
        q = b[j / 128 * 64 + j % 64] >> 4 * (j / 64 % 2) & 15;
        q += 16 * (b[128 + j / 128 * 32 + j % 32] >> 2 * (j / 32 % 4) & 3);
        f = f16_at(b + 208) * (float)(int8_t)b[192 + j / 16];
        return f * (float)(q - 32);
    case DTYPE_Q8:
        memcpy(&f, b, 4);
        return (float)(int8_t)b[4 + j] * f;
    case DTYPE_Q4:
        f = (float)(b[4 + j % 32] >> 4 * (j / 32) & 15) * f16_at(b);
        return f + f16_at(b + 2);
    default:
        return element_looked_up(t, b, j);
    }
}

/* Random bytes as a row of k numbers; scales that are not finite are cleared, so that the sums stay
 * comparable bit by bit. */
static uint8_t *row_random(enum dtype t, int64_t k)
{
    static const struct {
        enum dtype t;
        int at[2]; // where the f16 scales of a block stand, -1: none
    } scales[] = {
        {DTYPE_Q4_0, {0, -1}},    {DTYPE_Q4_1, {0, 2}},     {DTYPE_Q5_0, {0, -1}},
        {DTYPE_Q5_1, {0, 2}},     {DTYPE_Q8_0, {0, -1}},    {DTYPE_Q4_K, {0, 2}},
        {DTYPE_Q5_K, {0, 2}},     {DTYPE_Q6_K, {208, -1}},  {DTYPE_Q4, {0, 2}},
        {DTYPE_F16, {0, -1}},     {DTYPE_BF16, {0, -1}},    {DTYPE_F32, {2, -1}},
        {DTYPE_Q8, {2, -1}},      {DTYPE_Q2_K, {80, 82}},   {DTYPE_Q3_K, {108, -1}},
        {DTYPE_IQ4_NL, {0, -1}},  {DTYPE_IQ4_XS, {0, -1}},  {DTYPE_TQ2_0, {64, -1}},
        {DTYPE_TQ1_0, {52, -1}},  {DTYPE_G4_32, {0, -1}},   {DTYPE_G4_64, {0, -1}},
        {DTYPE_G4_128, {0, -1}},  {DTYPE_F8_32, {2, -1}},   {DTYPE_F8_128, {2, -1}},
        {DTYPE_NF4, {2, -1}},     {DTYPE_NF4_S8, {2, 6}},   {DTYPE_IQ1_S, {0, -1}},
        {DTYPE_IQ1_M, {54, -1}},  {DTYPE_IQ2_XXS, {0, -1}}, {DTYPE_IQ2_XS, {0, -1}},
        {DTYPE_IQ2_S, {0, -1}},   {DTYPE_IQ3_XXS, {0, -1}}, {DTYPE_IQ3_S, {0, -1}},
        {DTYPE_B4_32, {0, -1}},   {DTYPE_B4_128, {0, -1}},  {DTYPE_NV4_64, {2, -1}},
        {DTYPE_NV4_256, {2, -1}}, {DTYPE_I8_32, {2, -1}},   {DTYPE_I8_128, {2, -1}},
    };
    const int64_t n_bytes = dtype_row_bytes(t, k);
    const int block_bytes = dtype_info(t)->block_bytes;
    uint8_t *row = malloc((size_t)n_bytes + 1);
    assert_non_null(row);
    for (int64_t i = 0; i < n_bytes; i++)
        row[i] = (uint8_t)random_next();
    for (size_t s = 0; s < sizeof scales / sizeof *scales; s++)
        for (int a = 0; a < 2 && scales[s].t == t && scales[s].at[a] >= 0; a++)
            for (int64_t i = scales[s].at[a] + 1; i < n_bytes; i += block_bytes)
                row[i] &= 0xbf; // the top bit of the exponent: below 2, infinities and NaN gone
    const int e4m3 =
        t == DTYPE_F8_32 || t == DTYPE_F8_128 || t == DTYPE_NV4_64 || t == DTYPE_NV4_256;
    for (int64_t i = 0; e4m3 && i < n_bytes; i++)
        row[i] -= (row[i] & 127) == 127; // NaN
    for (int64_t i = 3; (t == DTYPE_NV4_64 || t == DTYPE_NV4_256) && i < n_bytes; i += block_bytes)
        row[i] |= 0x20; // a scale divided by less than 2^-63 may be infinite
    for (int64_t i = block_bytes; t == DTYPE_NF4_S8 && i < n_bytes; i += block_bytes)
        memcpy(row + i + 4, row + 4, 4);                        // a row has one offset
    for (int64_t i = 1; t == DTYPE_BF12 && i < n_bytes; i += 2) // 8 exponents, and a rare other one
        row[i] = (uint8_t)((row[i] & 0x83) | (random_next() % 1024 ? 0x3c : 0x18));
    return row;
}

static void test_blocks_by_definition(void **state)
{
    (void)state;
    for (enum dtype t = DTYPE_Q4_0; t < N_DTYPES; t++) {
        if (t == DTYPE_BF12) // no blocks
            continue;
        const struct dtype_info *info = dtype_info(t);
        const int64_t k = 5 * 256 + (info->partial_block ? 37 : 0);
        for (int round = 0; round < 20; round++) {
            uint8_t *row = row_random(t, k);
            float *out = malloc((size_t)k * sizeof *out);
            dtype_decode_row(t, row, k, out);
            for (int64_t i = 0; i < k; i++) {
                const uint8_t *block = row + i / info->block * info->block_bytes;
                assert_int_equal(bits_of(out[i]),
                                 bits_of(element(t, block, (int)(i % info->block))));
            }
            free(out);
            free(row);
        }
    }
}

static void test_table(void **state)
{
    (void)state;
    assert_int_equal(dtype_by_name("q4_1"), DTYPE_Q4_1);
    assert_int_equal(dtype_by_name("q8"), DTYPE_Q8);
    assert_int_equal(dtype_by_name("bf12"), DTYPE_BF12);
    assert_int_equal(dtype_by_name(""), N_DTYPES);
    assert_int_equal(dtype_by_ggml_id(14), DTYPE_Q6_K);
    assert_int_equal(dtype_by_ggml_id(30), DTYPE_BF16);
    assert_int_equal(dtype_by_ggml_id(39), DTYPE_MXFP4);
    assert_int_equal(dtype_by_ggml_id(29), DTYPE_IQ1_M);
    assert_int_equal(dtype_by_ggml_id(-1), N_DTYPES);
    assert_int_equal(dtype_by_ggml_id(4), N_DTYPES);
    assert_int_equal(dtype_row_bytes(DTYPE_Q4_1, 576), 576 / 32 * 20);
    assert_int_equal(dtype_row_bytes(DTYPE_Q4_K, 128), -1);
    assert_int_equal(dtype_row_bytes(DTYPE_Q8, 65), 2 * 68);
    assert_int_equal(dtype_row_bytes(DTYPE_Q4, 0), 0);
    assert_int_equal(dtype_row_bytes(DTYPE_F32, -4), -1);
    assert_int_equal(dtype_row_bytes(DTYPE_F32, INT64_MAX), -1);
    assert_int_equal(dtype_row_bytes(DTYPE_BF12, 64), 128); // a row is plain bf16
    assert_int_equal(dtype_panel_bytes(DTYPE_BF12, INT64_MAX), -1);
    assert_int_equal(dtype_panel_bytes(DTYPE_BF12, 1 << 20), -1); // a patch has 24 bits for a place
    for (int k = 512; k <= 16384; k += 64)                        // what a tensor of bf12 may cost
        assert_true((double)dtype_panel_bytes(DTYPE_BF12, k) <=
                    0.76 * (double)dtype_panel_bytes(DTYPE_BF16, k));
    assert_int_equal(dtype_panel_bytes(DTYPE_BF16, 3), 4 * 64);
    assert_int_equal(dtype_panel_bytes(DTYPE_BF16, INT64_MAX), -1);
    assert_int_equal(dtype_panel_bytes(DTYPE_F32, INT64_MAX / 16), -1);
    assert_int_equal(dtype_panels_bytes(DTYPE_F32, 33, 2), 2 * 2 * 128);
    assert_int_equal(dtype_panels_bytes(DTYPE_Q4_K, 33, 255), -1);
    assert_int_equal(dtype_panels_bytes(DTYPE_F32, INT64_MAX, 1 << 20), -1);
    for (enum dtype t = 0; t < N_DTYPES; t++) {
        assert_int_equal(dtype_by_name(dtype_info(t)->name), t);
        assert_int_equal(dtype_panel_bytes(t, 256) % 64, 0);
        if (dtype_info(t)->block > 1)
            assert_int_equal(dtype_panel_bytes(t, dtype_info(t)->block) % 64, 0);
    }
}

/* Rows written and read again: plain formats to the bit, ours within half a step. */
static void test_encode(void **state)
{
    (void)state;
    enum { K = 64 * 3 + 9 };
    static const float sizes[] = {1e-42f, 1e-6f, 0.02f, 3.0f, 900.0f};
    float in[K], out[K], again[K];
    uint8_t row[4 * K + 256];
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int i = 0; i < K; i++)
            in[i] = ((float)(random_next() >> 40) / 8388608.0f - 1.0f) * sizes[s];
        dtype_encode_row(DTYPE_F32, in, K, row);
        dtype_decode_row(DTYPE_F32, row, K, out);
        assert_memory_equal(in, out, sizeof in);
        for (enum dtype t = DTYPE_F16; t <= DTYPE_BF16; t++) {
            dtype_encode_row(t, in, K, row);
            dtype_decode_row(t, row, K, out);
            for (int i = 0; i < K; i++)
                assert_int_equal(bits_of(out[i]),
                                 bits_of(t == DTYPE_F16 ? f16_to_f32(f32_to_f16(in[i]))
                                                        : bf16_to_f32(f32_to_bf16(in[i]))));
        }
        for (enum dtype t = DTYPE_Q8; t <= DTYPE_Q4; t++) {
            memset(row, 0xee, sizeof row);
            dtype_encode_row(t, in, K, row);
            assert_int_equal(row[dtype_row_bytes(t, K)], 0xee);
            dtype_decode_row(t, row, K, out);
            // q8: a subnormal scale is rounded to 1.4e-45, 127 times over;
            // q4: half a step of 2 / 15, and f16 rounds scale (15 times over) and minimum
            const double limit = t == DTYPE_Q8 ? 0.504 / 127 : 1.0 / 15 + 2.0 / 1024;
            for (int i = 0; i < K; i++)
                assert_true(fabs((double)out[i] - (double)in[i]) <=
                            limit * (double)sizes[s] + (t == DTYPE_Q8 ? 1e-43 : 1e-6));
            dtype_encode_row(t, out, K, row);
            dtype_decode_row(t, row, K, again);
            if (t == DTYPE_Q8 && sizes[s] > 1e-30f) // coding what was decoded changes nothing more
                for (int i = 0; i < K; i++)
                    assert_true(fabsf(again[i] - out[i]) <= 1e-6f * sizes[s]);
        }
    }
}

static void test_encode_bad_numbers(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    float in[128] = {0}, out[128];
    uint8_t row[2 * 68];
    for (int b = 0; b < 3; b++)
        for (enum dtype t = DTYPE_Q8; t <= DTYPE_Q4; t++)
            for (int at = 0; at < 64; at += 21) {
                for (int i = 0; i < 128; i++)
                    in[i] = (float)i;
                in[at] = bad[b];
                dtype_encode_row(t, in, 128, row);
                dtype_decode_row(t, row, 128, out);
                for (int i = 0; i < 64; i++)
                    assert_true(isnan(out[i]));
                for (int i = 64; i < 128; i++)
                    assert_true(fabsf(out[i] - in[i]) < 3.0f);
            }
    for (int i = 0; i < 128; i++) // a range that f32 cannot subtract, f16 not hold
        in[i] = i % 2 ? 3e38f : -3e38f;
    dtype_encode_row(DTYPE_Q4, in, 128, row);
    dtype_decode_row(DTYPE_Q4, row, 128, out);
    assert_true(isnan(out[0]));
}

static float panel_f32(enum dtype t, const void *const rows[PANEL_ROWS], int r, int64_t i)
{
    float f = 0.0f;
    if (!rows[r])
        return 0.0f;
    const int block = dtype_info(t)->block;
    const uint8_t *at = (const uint8_t *)rows[r] + i / block * dtype_info(t)->block_bytes;
    if (block > 1)
        return element(t, at, (int)(i % block));
    dtype_decode_row(t, at, 1, &f);
    return f;
}

static void panel_check(enum dtype t, const void *const rows[PANEL_ROWS], const uint8_t *panel,
                        int64_t k, int64_t k0, int64_t k1)
{
    const int64_t n = k1 - k0, n_pairs = (n + 1) / 2;
    float *f32 = malloc((size_t)n * PANEL_ROWS * 4 + 4);
    uint16_t *bf16 = malloc((size_t)n_pairs * PANEL_ROWS * 4 + 2);
    f32[n * PANEL_ROWS] = 77.0f; // nothing is written past the end
    bf16[n_pairs * PANEL_ROWS * 2] = 0x7777;
    panel_decode_f32(t, panel, k, k0, k1, f32);
    panel_decode_bf16(t, panel, k, k0, k1, bf16);
    for (int64_t i = 0; i < 2 * n_pairs; i++)
        for (int r = 0; r < PANEL_ROWS; r++) {
            const uint16_t b = bf16[(i / 2 * PANEL_ROWS + r) * 2 + i % 2];
            if (i == n) {
                assert_int_equal(b, 0);
                continue;
            }
            const float want = panel_f32(t, rows, r, k0 + i), got = f32[i * PANEL_ROWS + r];
            if (rows[r])
                assert_int_equal(bits_of(got), bits_of(want));
            assert_true(got == want); // missing rows: zero of either sign
            assert_int_equal(b, f32_to_bf16(got));
        }
    assert_true(f32[n * PANEL_ROWS] == 77.0f);
    assert_int_equal(bf16[n_pairs * PANEL_ROWS * 2], 0x7777);
    free(f32);
    free(bf16);
}

static void test_panels(void **state)
{
    (void)state;
    for (enum dtype t = 0; t < N_DTYPES; t++) {
        const int block = dtype_info(t)->block, step = block < 2 ? 2 : block;
        const int64_t k = block == 1 || dtype_info(t)->partial_block ? 777 : 768;
        const void *rows[PANEL_ROWS];
        uint8_t *bytes[PANEL_ROWS] = {NULL};
        for (int r = 0; r < PANEL_ROWS; r++) {
            if (r != 7 && r != 30) {
                uint8_t *row = row_random(t, k);
                bytes[r] = row;
                memmove(row + r % 2, row, (size_t)dtype_row_bytes(t, k)); // odd addresses too
            }
            rows[r] = bytes[r] ? bytes[r] + r % 2 : NULL;
        }
        uint8_t *panel = aligned_alloc(64, (size_t)dtype_panel_bytes(t, k));
        memset(panel, 0xee, (size_t)dtype_panel_bytes(t, k));
        panel_pack(t, rows, k, panel);
        panel_check(t, rows, panel, k, 0, k);
        panel_check(t, rows, panel, k, 0, step);
        panel_check(t, rows, panel, k, step, k);
        panel_check(t, rows, panel, k, k / step * step, k);
        panel_check(t, rows, panel, k, 256 / step * step, 512 / step * step);
        panel_check(t, rows, panel, k, step, step);
        for (int r = 0; r < PANEL_ROWS; r++)
            free(bytes[r]);
        free(panel);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16_every_value),
        cmocka_unit_test(test_f16_rounds_to_nearest_even),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_blocks_by_definition),
        cmocka_unit_test(test_encode),
        cmocka_unit_test(test_encode_bad_numbers),
        cmocka_unit_test(test_panels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
