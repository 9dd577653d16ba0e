/* tests/kv_test.c - the layout of KV pages: sizes, addresses, what a slot holds. */
#include "tests/ops_help.h"

static void names_round_trip(void **state)
{
    (void)state;
    for (enum kv_format f = 0; f < N_KV_FORMATS; f++)
        assert_int_equal(kv_format_by_name(kv_format_name(f)), f);
    assert_int_equal(kv_format_by_name("q5"), N_KV_FORMATS);
    assert_int_equal(kv_format_by_name(""), N_KV_FORMATS);
}

static void sizes_are_as_documented(void **state)
{
    (void)state;
    struct kv_layout l;
    kv_layout_init(&l, KV_BF16, 3, 64);
    assert_int_equal(l.dim_pad, 64);
    assert_int_equal(l.panel_bytes, 32 * 64 * 2);
    assert_int_equal(l.v_offset, 3 * l.panel_bytes);
    assert_int_equal(l.page_bytes, 6 * l.panel_bytes);
    kv_layout_init(&l, KV_F32, 5, 72);
    assert_int_equal(l.dim_pad, 80);
    assert_int_equal(l.panel_bytes, 32 * 80 * 4);
    assert_int_equal(l.page_bytes % 4096, 0);
    kv_layout_init(&l, KV_Q8, 8, 64);
    assert_int_equal(l.panel_bytes, 32 * (64 + 4));
    assert_int_equal(16 * l.page_bytes / 32, 18432); // a token of llama-1b; 17408 are no padding
    kv_layout_init(&l, KV_Q4, 8, 64);
    assert_int_equal(l.panel_bytes, 32 * (32 + 4));
    assert_int_equal(16 * l.page_bytes / 32, 10240); // of which 9216 are no padding
    kv_layout_init(&l, KV_Q4, 1, 80);
    assert_int_equal(l.panel_bytes, 32 * (40 + 8));
    kv_layout_init(&l, KV_F32, 5, 72);
    assert_true(l.page_bytes >= 10 * l.panel_bytes && l.page_bytes < 10 * l.panel_bytes + 4096);
}

static void slots_come_back(void **state)
{
    (void)state;
    static const int dims[] = {1, 2, 15, 32, 33, 64, 80, 96, 128};
    for (enum kv_format f = 0; f < N_KV_LAYOUTS; f++)
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
            struct kv_layout l;
            int n = dims[i], heads = 3;
            kv_layout_init(&l, f, heads, n);
            uint8_t *page = take(l.page_bytes + 64);
            memset(page, 0xab, (size_t)l.page_bytes + 64);
            float *k = noise_array(1, 32 * heads * n, 1), *v = noise_array(2, 32 * heads * n, 1);
            for (int at = 0; at < 32 * heads; at++) // slots in a mixed order
                kv_put(&l, page, at * 7 % 32, at / 32, k + at * n, v + at * n);
            for (int at = 0; at < 32 * heads; at++) {
                float got_k[128], got_v[128];
                kv_get(&l, page, at * 7 % 32, at / 32, got_k, got_v);
                float want_k[128], want_v[128];
                kv_round(&l, k + at * n, want_k);
                kv_round(&l, v + at * n, want_v);
                for (int d = 0; d < n; d++) {
                    float wk = k[at * n + d], wv = v[at * n + d];
                    if (f != KV_F32) {
                        wk = want_k[d];
                        wv = want_v[d];
                    }
                    assert_true(got_k[d] == wk && got_v[d] == wv);
                }
            }
            for (int64_t b = 2 * l.v_offset; b < l.page_bytes + 64; b++)
                assert_int_equal(page[b], 0xab); // nothing beyond the panels is touched
            free(page);
            free(k);
            free(v);
        }
}

/* Definition of q8 and q4, and that it is as near as its steps are. */
static void codes_are_as_documented(void **state)
{
    (void)state;
    static const int dims[] = {64, 1, 63, 80, 128};
    for (enum kv_format f = KV_Q8; f <= KV_Q4; f++)
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
            struct kv_layout l;
            int n = dims[i], top = f == KV_Q8 ? 255 : 15;
            kv_layout_init(&l, f, 1, n);
            float *x = noise_array(7 + i, n, 40), got[128];
            x[n / 2] += 100; // groups differ
            kv_round(&l, x, got);
            for (int first = 0; first < n; first += 64) {
                int last = first + 64 < n ? first + 64 : n;
                float lo = x[first], hi = x[first];
                for (int d = first; d < last; d++) {
                    lo = fminf(lo, x[d]);
                    hi = fmaxf(hi, x[d]);
                }
                lo = f16_to_f32(f32_to_f16(lo));
                float scale = f16_to_f32(f32_to_f16((hi - lo) / (float)top));
                for (int d = first; d < last; d++) {
                    float code = scale > 0 ? floorf((x[d] - lo) * (1 / scale) + 0.5f) : 0;
                    code = fminf(fmaxf(code, 0), (float)top);
                    assert_true(got[d] == code * scale + lo);
                    assert_true(fabsf(got[d] - x[d]) <= scale * 0.5f + fabsf(lo) * 0x1p-10f);
                }
            }
            free(x);
        }
}

static void odd_groups_are_kept(void **state)
{
    (void)state;
    struct kv_layout l;
    float x[64], got[64];
    for (enum kv_format f = KV_Q8; f <= KV_Q4; f++) {
        kv_layout_init(&l, f, 1, 64);
        for (int d = 0; d < 64; d++)
            x[d] = 0.5f; // no range
        kv_round(&l, x, got);
        for (int d = 0; d < 64; d++)
            assert_true(got[d] == 0.5f);
        static const float odd[] = {NAN, INFINITY, -INFINITY, 70000, -70000};
        for (int i = 0; i < 5; i++) { // no number in, no number out
            x[13] = odd[i];
            kv_round(&l, x, got);
            for (int d = 0; d < 64; d++)
                assert_true(isnan(got[d]));
        }
    }
}

/* The order that kernels read, spelled out: and zeros in the padding dimensions. */
static void addresses_are_as_documented(void **state)
{
    (void)state;
    float k[18], v[18];
    for (int d = 0; d < 18; d++) {
        k[d] = (float)(1 + d);
        v[d] = (float)(100 + d);
    }
    struct kv_layout l;
    kv_layout_init(&l, KV_BF16, 2, 18);
    uint16_t *page = take(l.page_bytes);
    memset(page, 0xff, (size_t)l.page_bytes);
    kv_put(&l, page, 5, 1, k, v);
    for (int d = 0; d < 32; d++) {
        uint16_t got_k = page[l.panel_bytes / 2 + (d / 2 * 32 + 5) * 2 + d % 2];
        uint16_t got_v = page[(l.v_offset + l.panel_bytes) / 2 + (5 / 2 * 32 + d) * 2 + 5 % 2];
        assert_true(bf16_to_f32(got_k) == (d < 18 ? k[d] : 0));
        assert_true(bf16_to_f32(got_v) == (d < 18 ? v[d] : 0));
    }
    free(page);
    kv_layout_init(&l, KV_F32, 2, 18);
    float *wide = take(l.page_bytes);
    memset(wide, 0xff, (size_t)l.page_bytes);
    kv_put(&l, wide, 5, 1, k, v);
    for (int d = 0; d < 32; d++) {
        assert_true(wide[l.panel_bytes / 4 + d * 32 + 5] == (d < 18 ? k[d] : 0));
        assert_true(wide[(l.v_offset + l.panel_bytes) / 4 + 5 * 32 + d] == (d < 18 ? v[d] : 0));
    }
    free(wide);
    kv_layout_init(&l, KV_Q4, 2, 18);
    page = take(l.page_bytes);
    float want_k[18], want_v[18];
    kv_round(&l, k, want_k);
    kv_round(&l, v, want_v);
    kv_put(&l, page, 5, 1, k, v);
    const uint16_t *k_panel = page + l.panel_bytes / 2, *v_panel = k_panel + l.v_offset / 2;
    const uint16_t *k_scale = k_panel + l.scales_at / 2, *v_scale = v_panel + l.scales_at / 2;
    for (int d = 0; d < 18; d++) {
        int k_code = k_panel[d / 4 * 32 + 5] >> d % 4 * 4 & 15;
        int v_code = v_panel[5 / 4 * 32 + d] >> 5 % 4 * 4 & 15;
        assert_true((float)k_code * f16_to_f32(k_scale[5]) + f16_to_f32(k_scale[32 + 5]) ==
                    want_k[d]);
        assert_true((float)v_code * f16_to_f32(v_scale[5]) + f16_to_f32(v_scale[32 + 5]) ==
                    want_v[d]);
    }
    free(page);
}

/* Which heads rotate, and by how much: 96 = 3 x 32, 80 = 5 x 16. */
static void rotation_fits_the_head(void **state)
{
    (void)state;
    static const int blocks[][2] = {{64, 64}, {96, 32},   {80, 16},  {8, 8},
                                    {20, 0},  {256, 256}, {512, 256}};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        for (int format = 0; format < N_KV_LAYOUTS; format++) {
            struct kv_layout l;
            kv_layout_init(&l, (enum kv_format)format, 1, blocks[i][0]);
            const int rotates = format == KV_Q8 || format == KV_Q4;
            assert_int_equal(kv_rotation(&l), rotates ? blocks[i][1] : 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_round_trip),
        cmocka_unit_test(rotation_fits_the_head),
        cmocka_unit_test(sizes_are_as_documented),
        cmocka_unit_test(slots_come_back),
        cmocka_unit_test(codes_are_as_documented),
        cmocka_unit_test(odd_groups_are_kept),
        cmocka_unit_test(addresses_are_as_documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
