/* tests/kinds_test.c - kinds of layers (policy/kv_kinds.h): by window, share of the budget, state
 * and size of heads, and what eviction keeps in each. */
#include "policy/evict.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static int64_t layer_budget(const struct evict *e, int layer)
{
    return evict_slots_max(e, evict_layer_kind(e, layer), 100000, 10);
}

/* Layers of one model hold different numbers of slots, together no more than was asked for; what is
 * protected is in all of them. */
static void test_layers_share_a_budget(void **state)
{
    (void)state;
    enum { LAYERS = 30, MOST = 128, WINDOW = 32 };
    const int32_t none[SHAPE_LAYERS_MAX] = {0};
    double share[SHAPE_LAYERS_MAX];
    struct kv_kinds kinds;
    struct evict e = {.policy = EVICT_SNAPKV,
                      .budget = MOST + WINDOW,
                      .recent = WINDOW,
                      .recent_set = 1,
                      .sink = 0,
                      .kinds = &kinds};
    kv_pyramid(share, LAYERS, 20);
    /* As in Zefan-Cai/KVCache-Factory: least = 128 / 20, most = 2 x 128 - least, even steps. */
    assert_true(fabs(share[0] * MOST - 249.6) < 1e-9 &&
                fabs(share[LAYERS - 1] * MOST - 6.4) < 1e-9);
    assert_int_equal(kv_kinds_make(&kinds, none, NULL, share, NULL, 0, LAYERS), 0);
    assert_int_equal(kinds.n, KV_KINDS_SLOTS);
    int64_t sum = 0;
    for (int layer = 0; layer < LAYERS; layer++) {
        int64_t is = layer_budget(&e, layer), asked = WINDOW + (int64_t)(share[layer] * MOST);
        sum += is;
        assert_in_range(is, asked - 17, asked + 17); // a step is four layers
        assert_true(layer == 0 || is <= layer_budget(&e, layer - 1));
    }
    assert_in_range(sum, LAYERS * (MOST + WINDOW) - LAYERS, LAYERS * (MOST + WINDOW));
    kv_pyramid(share, 5, 20); // few enough: each layer its own
    assert_int_equal(kv_kinds_make(&kinds, none, NULL, share, NULL, 0, 5), 0);
    for (int layer = 0; layer < 5; layer++)
        assert_int_equal(layer_budget(&e, layer),
                         WINDOW + (int)(249 * (1.95 - layer * 0.475) / 1.95 + 1e-9));
    e = (struct evict){.policy = EVICT_STREAMING, .budget = 100, .sink = 4, .kinds = &kinds};
    struct evict rule;
    struct evict_row row, last;
    assert_int_equal(evict_row_init(&e, 1000, 10, &row), 0);
    evict_in_kind(&e, &row, 4, &rule, &last); // the sink stays, all else is recent
    assert_true(row.budget == 4 + 187 && row.recent == 187 && row.sink == 4);
    assert_true(last.budget == 4 + 4 && last.recent == 4 && last.sink == 4);
    kv_pyramid(share, 5, 1);
    assert_int_equal(kv_kinds_make(&kinds, none, NULL, share, NULL, 0, 5), 0);
    assert_int_equal(kinds.n, 1);
    assert_int_equal(layer_budget(&e, 3), 100);
}

/* Windows take kinds first, shares what they leave; a window's layer holds what its window lets it
 * and counts for none. */
static void test_windows_and_shares(void **state)
{
    (void)state;
    int32_t windows[SHAPE_LAYERS_MAX] = {0};
    double share[SHAPE_LAYERS_MAX];
    struct kv_kinds kinds;
    for (int layer = 0; layer < 24; layer++) {
        windows[layer] = layer % 2 ? 65 : 0;
        share[layer] = 1 + layer;
    }
    assert_int_equal(kv_kinds_make(&kinds, windows, NULL, share, NULL, 0, 24), 0);
    assert_int_equal(kinds.n, KV_KINDS_SLOTS);
    double mean = 0;
    for (int layer = 0; layer < 24; layer++) {
        const struct kv_kind *k = &kinds.of[kinds.layer[layer]];
        assert_int_equal(k->window, windows[layer]);
        assert_true(layer % 2 == 0 || k->share == 1);
        mean += layer % 2 ? 0 : k->share / 12;
    }
    assert_true(fabs(mean - 1) < 1e-12);
    assert_true(kinds.of[KV_MOST].share > kinds.of[1].share && kinds.of[7].window == 65);
    for (int layer = 0; layer < 9; layer++)
        windows[layer] = 10 + layer;
    assert_int_equal(kv_kinds_make(&kinds, windows, NULL, NULL, NULL, 0, 9), -1);
    assert_int_equal(kv_kinds_make(&kinds, windows, NULL, NULL, NULL, 0, 8), 0);
}

/* Layers with a state are one more kind, the last: with as many slots as the state takes, whatever
 * the budget, which the others share alone. */
static void test_states_are_a_kind(void **state)
{
    (void)state;
    static const int32_t windows[6] = {0, 0, 0, 65, 0, 0};
    static const uint8_t states[6] = {1, 1, 0, 0, 1, 0};
    static const double share[6] = {9, 9, 1, 1, 9, 3};
    struct kv_kinds kinds;
    const struct evict e = {.policy = EVICT_H2O, .budget = 100, .sink = -1, .kinds = &kinds};
    assert_int_equal(kv_kinds_make(&kinds, windows, NULL, share, states, 96, 6), 0);
    assert_true(kinds.n == 4 && kv_kinds_of_slots(&kinds) == 3 && kinds.of[3].state == 96);
    static const uint8_t expected[6] = {3, 3, 1, 2, 3, 0};
    assert_memory_equal(kinds.layer, expected, 6);
    assert_true(kinds.of[0].share == 1.5 && kinds.of[1].share == 0.5 && kinds.of[2].window == 65);
    assert_int_equal(evict_slots_max(&e, 3, 1000, 10), 96);
    assert_int_equal(evict_slots_max(&e, 3, 1, 1), 96);
    struct evict rule;
    struct evict_row row = {.budget = 100};
    evict_in_kind(&e, &row, 3, &rule, &row);
    assert_int_equal(rule.policy, EVICT_FULL);
}

/* Layers with heads of another size are kinds of their own, also under shares, of which there are
 * fewer steps then. */
static void test_sizes_of_heads_are_kinds(void **state)
{
    (void)state;
    static const int32_t windows[24] = {0, 0, 65, 65};
    static const uint8_t wide[24] = {1, 0, 0, 1, 0, 0, 1, 0, 1, 1};
    static const uint8_t expected[6] = {0, 1, 2, 3, 1, 1};
    double share[24];
    struct kv_kinds kinds;
    assert_int_equal(kv_kinds_make(&kinds, windows, wide, NULL, NULL, 0, 6), 0);
    assert_memory_equal(kinds.layer, expected, 6);
    assert_true(kinds.n == 4 && kinds.of[0].wide && !kinds.of[1].wide && !kinds.of[2].wide &&
                kinds.of[3].wide && kinds.of[3].window == 65);
    kv_pyramid(share, 24, 20);
    assert_int_equal(kv_kinds_make(&kinds, windows, wide, share, NULL, 0, 24), 0);
    assert_in_range(kinds.n, 5, KV_KINDS_SLOTS);
    double sum = 0;
    for (int layer = 0; layer < 24; layer++) {
        const struct kv_kind *k = &kinds.of[kinds.layer[layer]];
        assert_true(k->wide == wide[layer] && k->window == windows[layer]);
        assert_true(k->share <= kinds.of[KV_MOST].share);
        sum += k->window == 0 ? k->share : 0;
    }
    assert_true(fabs(sum / 22 - 1) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_share_a_budget),
        cmocka_unit_test(test_windows_and_shares),
        cmocka_unit_test(test_states_are_a_kind),
        cmocka_unit_test(test_sizes_of_heads_are_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
