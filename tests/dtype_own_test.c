/* tests/dtype_own_test.c - panels of q8, q4 and bf12: rows come back from them to the bit, on every
 * instruction set, and damaged panels hurt nobody. */
#include "tests/ops_help.h"

#include "kernels/cpu/decode.h"
#include "kernels/dtype_own.h"

static const struct panel_decoder *table_of(enum isa isa)
{
    return isa >= ISA_AVX512 ? cpu_decoders_avx512
           : isa == ISA_AVX2 ? cpu_decoders_avx2
                             : cpu_decoders_portable;
}

/* A panel in memory that ends where it ends, so that sanitizers see a read past it. */
static uint8_t *panel_of(enum dtype t, const void *const rows[PANEL_ROWS], int64_t k)
{
    uint8_t *panel = take(dtype_panel_bytes(t, k));
    panel_pack(t, rows, k, panel);
    return panel;
}

/* Columns [k0, k1) of the panel on every set are those of rows, in both kinds of words. */
static void range_check(enum dtype t, const uint8_t *panel, const void *const rows[PANEL_ROWS],
                        int64_t k, int64_t k0, int64_t k1)
{
    float *row = take(k * 4), *f32 = take(k * PANEL_ROWS * 4);
    uint16_t *bf16 = take((k + 1) * PANEL_ROWS * 2);
    FOR_EACH_ISA(isa)
    {
        memset(bf16, 0xee, (size_t)((k + 1) * PANEL_ROWS * 2));
        cpu_decode_f32(table_of(isa), t, panel, k, k0, k1, f32);
        cpu_decode_bf16(table_of(isa), t, panel, k, k0, k1, bf16);
        for (int r = 0; r < PANEL_ROWS; r++) {
            memset(row, 0, (size_t)k * 4);
            if (rows[r])
                dtype_decode_row(t, rows[r], k, row);
            for (int64_t i = k0; i < k1; i++) {
                const int64_t at = i - k0;
                const uint16_t pair = bf16[(at / 2 * PANEL_ROWS + r) * 2 + at % 2];
                const uint16_t want = f32_to_bf16(row[i]);
                if (isnan(row[i]) ? !isnan(bf16_to_f32(pair)) : pair != want)
                    fail_msg("%s %s k %d: number %d of row %d is %04x, not %04x", isa_name(isa),
                             dtype_info(t)->name, (int)k, (int)i, r, pair, want);
                if (!isnan(row[i]))
                    assert_same_bits(&f32[at * PANEL_ROWS + r], &row[i], 4, "f32");
            }
            if ((k1 - k0) % 2 != 0)
                assert_int_equal(bf16[((k1 - k0) / 2 * PANEL_ROWS + r) * 2 + 1], 0);
        }
    }
    free(row);
    free(f32);
    free(bf16);
}

/* Groups whose scales are ordinary, zero, subnormal, near both ends, and not a number. */
static void groups_come_back(void **state)
{
    (void)state;
    enum { K = 64 * 12 + 37 };
    static const float sizes[] = {1.0f, 0.02f, 1e-42f, 1e-38f, 0.0f, 1e30f, 3e38f, 1e-30f};
    for (enum dtype t = DTYPE_Q8; t <= DTYPE_Q4; t++)
        for (int some = 0; some < 2; some++) {
            uint8_t *bytes = take(PANEL_ROWS * dtype_row_bytes(t, K));
            const void *rows[PANEL_ROWS];
            for (int r = 0; r < PANEL_ROWS; r++) {
                float *x = noise_array((uint64_t)r + 1, K, 1);
                for (int i = 0; i < K; i++) // plain groups (the fast way), and one odd row in some
                    x[i] *= i / 64 % 3 != 0 && (some == 0 || r == 9) ? sizes[i / 64 % 8] : 0.5f;
                if (r == 20)
                    x[64 * 6 + 5] = NAN;
                uint8_t *row = bytes + r * dtype_row_bytes(t, K);
                dtype_encode_row(t, x, K, row);
                rows[r] = some == 1 && r == 31 ? NULL : row;
                free(x);
            }
            uint8_t *panel = panel_of(t, rows, K);
            range_check(t, panel, rows, K, 0, K);
            range_check(t, panel, rows, K, 64 * 7, K);
            range_check(t, panel, rows, K, 128, 128 + 64);
            free(panel);
            free(bytes);
        }
}

/* Bits of a weight as models have them: about a normal distribution. */
static uint16_t weight_bits(uint64_t seed, int64_t i)
{
    float sum = 0;
    for (int j = 0; j < 6; j++)
        sum += noise(seed + (uint64_t)j * 977, i);
    return f32_to_bf16(sum * 0.02f);
}

static uint16_t *bf16_rows(uint64_t seed, int64_t k, const void *rows[PANEL_ROWS])
{
    uint16_t *bits = take(PANEL_ROWS * k * 2);
    for (int64_t i = 0; i < PANEL_ROWS * k; i++)
        bits[i] = weight_bits(seed, i);
    for (int r = 0; r < PANEL_ROWS; r++)
        rows[r] = bits + r * k;
    return bits;
}

/* What bf12 gives back, bit by bit: NaNs too, so not through f32. */
static void bits_check(const uint8_t *panel, const void *const rows[PANEL_ROWS], int64_t k)
{
    uint16_t *pairs = take((k + 1) * PANEL_ROWS * 2);
    FOR_EACH_ISA(isa)
    {
        cpu_decode_bf16(table_of(isa), DTYPE_BF12, panel, k, 0, k, pairs);
        for (int64_t i = 0; i < k; i++)
            for (int r = 0; r < PANEL_ROWS; r++) {
                const uint16_t want = rows[r] ? ((const uint16_t *)rows[r])[i] : 0;
                assert_int_equal(pairs[(i / 2 * PANEL_ROWS + r) * 2 + i % 2], want);
            }
    }
    free(pairs);
}

static void bf12_is_lossless(void **state)
{
    (void)state;
    static const uint16_t odd_ones[] = {0,      0x8000, 1,      0x807f, 0x7f80, 0xff80,
                                        0x7f81, 0xffff, 0x7fc0, 0x0080, 0x7f7f, 0x2000};
    static const int64_t lengths[] = {1, 2, 3, 4, 5, 62, 64, 191, 576, 1023};
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        const int64_t k = lengths[l];
        const void *rows[PANEL_ROWS];
        uint16_t *bits = bf16_rows(l + 1, k, rows);
        const int n_odd = (int)min_i64(bf12_patches_max(k) / 2, sizeof odd_ones / 2);
        for (int i = 0; i < n_odd; i++) // the first and the last number among them
            bits[i * (PANEL_ROWS * k - 1) / max_i64(n_odd - 1, 1)] = odd_ones[i];
        rows[3] = NULL;
        assert_true(bf12_fits(rows, k));
        uint8_t *panel = panel_of(DTYPE_BF12, rows, k);
        bits_check(panel, rows, k);
        range_check(DTYPE_BF12, panel, rows, k, 0, k);
        for (int64_t k0 = 2; k0 < min_i64(k, 12); k0 += 2) {
            range_check(DTYPE_BF12, panel, rows, k, k0, k);
            range_check(DTYPE_BF12, panel, rows, k, k0, min_i64(k0 + 2, k));
            range_check(DTYPE_BF12, panel, rows, k, 0, k0);
        }
        free(panel);
        free(bits);
    }
}

/* Exactly as many patches as there is room, then one more. */
static void bf12_knows_its_room(void **state)
{
    (void)state;
    enum { K = 128 };
    const void *rows[PANEL_ROWS];
    uint16_t *bits = take(PANEL_ROWS * K * 2);
    for (int r = 0; r < PANEL_ROWS; r++)
        rows[r] = bits + r * K;
    for (int i = 0; i < PANEL_ROWS * K; i++) // 15 common exponents
        bits[i] = (uint16_t)((100 + i % 15) << 7 | i % 128);
    const int room = (int)bf12_patches_max(K);
    assert_in_range(room, PANEL_ROWS * K / 256, PANEL_ROWS * K / 100);
    for (int i = 0; i < room; i++)
        bits[i * 67 + 5] = (uint16_t)((i % 90) << 7);
    assert_true(bf12_fits(rows, K));
    uint8_t *panel = panel_of(DTYPE_BF12, rows, K);
    bits_check(panel, rows, K);
    bits[room * 67 + 5] = 0;
    assert_false(bf12_fits(rows, K));
    assert_false(bf12_fits(rows, BF12_K_MAX + 1));
    free(panel);
    free(bits);
}

/* Any bytes: no set reads or writes out of bounds (sanitizers look), and all see the same. */
static void damaged_panels_stay_inside(void **state)
{
    (void)state;
    static const int64_t lengths[] = {2, 7, 64, 250};
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
        for (uint64_t seed = 0; seed < 64; seed++) {
            const int64_t k = lengths[l], n_bytes = dtype_panel_bytes(DTYPE_BF12, k);
            uint8_t *panel = take(n_bytes);
            uint16_t *want = take((k + 1) * PANEL_ROWS * 2), *got = take((k + 1) * PANEL_ROWS * 2);
            for (int64_t i = 0; i < n_bytes; i++)
                panel[i] = (uint8_t)mix64(seed * 7919 + (uint64_t)i);
            for (int64_t p = 0; p < bf12_patches_max(k); p++) // in any order, near the edges
                if (seed % 2 != 0) {
                    uint32_t place = (uint32_t)(mix64(seed + (uint64_t)p) % (uint64_t)(40 * k));
                    memcpy(panel + BF12_FIXED + 4 * p, &(uint32_t){place << 8 | 99}, 4);
                }
            panel_decode_bf16(DTYPE_BF12, panel, k, 0, k, want);
            FOR_EACH_ISA(isa)
            {
                cpu_decode_bf16(table_of(isa), DTYPE_BF12, panel, k, 0, k, got);
                assert_same_bits(got, want, round_up(k, 2) * PANEL_ROWS * 2, "damaged panel");
            }
            free(panel);
            free(want);
            free(got);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_come_back),
        cmocka_unit_test(bf12_is_lossless),
        cmocka_unit_test(bf12_knows_its_room),
        cmocka_unit_test(damaged_panels_stay_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
