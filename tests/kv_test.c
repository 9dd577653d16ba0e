/* tests/kv_test.c - the layout of KV pages: sizes, addresses, what a slot holds. */
#include "tests/ops_help.h"

static void names_round_trip(void **state)
{
    (void)state;
    for (enum kv_format f = 0; f < N_KV_FORMATS; f++)
        assert_int_equal(kv_format_by_name(kv_format_name(f)), f);
    assert_int_equal(kv_format_by_name("q4"), N_KV_FORMATS);
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
    assert_true(l.page_bytes >= 10 * l.panel_bytes && l.page_bytes < 10 * l.panel_bytes + 4096);
}

static void slots_come_back(void **state)
{
    (void)state;
    static const int dims[] = {1, 2, 15, 32, 33, 64, 80, 96, 128};
    for (enum kv_format f = 0; f < N_KV_FORMATS; f++)
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
                for (int d = 0; d < n; d++) {
                    float wk = k[at * n + d], wv = v[at * n + d];
                    if (f == KV_BF16) {
                        wk = bf16_to_f32(f32_to_bf16(wk));
                        wv = bf16_to_f32(f32_to_bf16(wv));
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
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_round_trip),
        cmocka_unit_test(sizes_are_as_documented),
        cmocka_unit_test(slots_come_back),
        cmocka_unit_test(addresses_are_as_documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
