/* tests/decode_test.c - every decoder of every instruction set against the portable one, bit by
 * bit: random bytes, bytes that are mostly 0, whole panels and ranges, odd k. */
#include "tests/ops_help.h"

#include "kernels/cpu/decode.h"

static const struct panel_decoder *table_of(enum isa isa)
{
    return isa >= ISA_AVX512 ? cpu_decoders_avx512
           : isa == ISA_AVX2 ? cpu_decoders_avx2
                             : cpu_decoders_portable;
}

/* Equal, or both NaN. */
static int same_f32(uint32_t a, uint32_t b)
{
    int nan_a = (a & 0x7fffffff) > 0x7f800000, nan_b = (b & 0x7fffffff) > 0x7f800000;
    return a == b || (nan_a && nan_b);
}

static void range_check(enum isa isa, enum dtype t, const uint8_t *panel, int64_t k, int64_t k0,
                        int64_t k1)
{
    const struct panel_decoder *table = table_of(isa);
    int64_t words = (k1 - k0 + 1) / 2 * PANEL_ROWS, numbers = (k1 - k0) * PANEL_ROWS;
    uint32_t *want = take(max_i64(words, numbers) * 4 + 64), *got = take(words * 4 + 64);
    panel_decode_bf16(t, panel, k, k0, k1, (uint16_t *)want);
    got[words] = 77; // nothing is written past the end
    cpu_decode_bf16(table, t, panel, k, k0, k1, (uint16_t *)got);
    for (int64_t i = 0; i < 2 * words; i++) {
        uint32_t a = ((uint16_t *)got)[i], b = ((uint16_t *)want)[i];
        if (!same_f32(a << 16, b << 16))
            fail_msg("%s %s [%d, %d) of %d: bf16 %d is %x, not %x", isa_name(isa),
                     dtype_info(t)->name, (int)k0, (int)k1, (int)k, (int)i, a, b);
    }
    assert_int_equal(got[words], 77);
    free(got);
    got = take(numbers * 4 + 64);
    panel_decode_f32(t, panel, k, k0, k1, (float *)want);
    got[numbers] = 77;
    cpu_decode_f32(table, t, panel, k, k0, k1, (float *)got);
    for (int64_t i = 0; i < numbers; i++)
        if (!same_f32(got[i], want[i]))
            fail_msg("%s %s [%d, %d) of %d: f32 %d is %x, not %x", isa_name(isa),
                     dtype_info(t)->name, (int)k0, (int)k1, (int)k, (int)i, got[i], want[i]);
    assert_int_equal(got[numbers], 77);
    free(got);
    free(want);
}

static void panel_check(enum dtype t, int64_t k, uint64_t seed)
{
    const int block = dtype_info(t)->block, step = block < 2 ? 2 : block;
    const int64_t row_bytes = dtype_row_bytes(t, k);
    if (row_bytes <= 0)
        return;
    uint8_t *rows = take(row_bytes * PANEL_ROWS), *panel = take(dtype_panel_bytes(t, k));
    const void *at[PANEL_ROWS];
    for (int64_t i = 0; i < row_bytes * PANEL_ROWS; i++)
        rows[i] = (uint8_t)mix64(seed + mix64((uint64_t)i));
    for (int64_t i = 0; seed == 0 && i < row_bytes * PANEL_ROWS; i++)
        if (mix64((uint64_t)i) >> 62) // most are 0: scales, minima and codes of 0 beside others
            rows[i] = 0;
    for (int64_t i = 0; seed >= 2 && i < row_bytes * PANEL_ROWS && block > 1;
         i += dtype_info(t)->block_bytes)
        scale_tame(t, rows + i); // else hardly a column has nothing but scales of middle size
    if (t == DTYPE_MXFP4 && seed == 4)
        rows[0] = 1; // the largest exponent of which denormals come
    for (int r = 0; r < PANEL_ROWS; r++)
        at[r] = seed < 3 && (r == 5 || r == 29) ? NULL : rows + r * row_bytes;
    if (t == DTYPE_BF12) // random rows do not fit; a random panel is a hostile one
        for (int64_t i = 0; i < dtype_panel_bytes(t, k); i++)
            panel[i] = (uint8_t)mix64(seed + mix64((uint64_t)i));
    else
        panel_pack(t, at, k, panel);
    FOR_EACH_ISA(isa)
    {
        range_check(isa, t, panel, k, 0, k);
        range_check(isa, t, panel, k, min_i64(step, k / step * step), k);
        range_check(isa, t, panel, k, k / step * step, k);
        range_check(isa, t, panel, k, 0, k / step * step);
    }
    free(panel);
    free(rows);
}

static void sets_decode_the_same_bits(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 2, 31, 64, 96, 256, 777, 1024};
    for (enum dtype t = 0; t < N_DTYPES; t++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (uint64_t seed = 0; seed < 5; seed++)
                panel_check(t, lengths[i], seed);
}

/* What random bytes do not meet: denormals, ties, carries into infinity. */
static void f32_rounds_to_nearest_even(void **state)
{
    (void)state;
    static const uint32_t bits[] = {0,          1,          0x7fffff,   0x800000,   0x7f8000,
                                    0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001, 0x7f7fffff,
                                    0x7f800000, 0x7f800001, 0xffffffff, 0x80000000, 0x8000ffff};
    enum { N = sizeof bits / sizeof *bits };
    uint32_t *panel = take(N * PANEL_ROWS * 4);
    for (int i = 0; i < N; i++)
        for (int r = 0; r < PANEL_ROWS; r++)
            panel[i * PANEL_ROWS + r] = bits[(i + r) % N];
    FOR_EACH_ISA(isa)
    range_check(isa, DTYPE_F32, (const uint8_t *)panel, N, 0, N);
    free(panel);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_decode_the_same_bits),
        cmocka_unit_test(f32_rounds_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
