/* tests/tiles_test.c - how much a plan works on at once, in RAM and on a device. */
#include "tests/plan_help.h"

/* OPT-30B in bf16: kernels round what they read, four times as wide as the model, to 2 bytes. */
static void large_shape(void)
{
    shape = (struct shape){.n_layers = 48,
                           .dim = 7168,
                           .n_heads = 56,
                           .n_kv_heads = 56,
                           .head_dim = 128,
                           .ffn_dim = 28672,
                           .vocab = 50272,
                           .context = 2048,
                           .embed_dim = 7168};
    for (int i = 0; i < PLAN_TILES; i++)
        costs.scratch_bytes[i] = ((int64_t)PLAN_TILE_TOKENS << i) * 28672 * 2;
}

/* The largest tile that takes a 32nd of the device's memory, to the byte; at least that of RAM. */
static void test_tiles_grow_with_a_device(void **state)
{
    (void)state;
    const struct setting set = setting_of(&MACHINE);
    const int64_t gib = 1024 * (int64_t)MIB;
    assert_int_equal(plan_tile_tokens(&set, 64 * MIB), 256);
    assert_int_equal(plan_tile_tokens(&set, 16 * gib), 2048);
    assert_int_equal(plan_tile_tokens(&set, -1), 2048);
    for (int tile = 512; tile <= 2048; tile *= 2) {
        int64_t least = 32 * layer_tile_bytes(&set, tile);
        assert_int_equal(plan_tile_tokens(&set, least), tile);
        assert_int_equal(plan_tile_tokens(&set, least - 1), tile / 2);
    }
    large_shape();
    assert_int_equal(plan_tile_tokens(&set, 4 * gib), 256);
    assert_int_equal(plan_tile_tokens(&set, 16 * gib), 1024);
    assert_int_equal(plan_tile_tokens(&set, 80 * gib), 2048);
    const int64_t token = (5 * 7168 + 28672) * 4 + 28672 * 2; // what it is, q, k, v, attn; gate
    assert_in_range(layer_tile_bytes(&set, 1024), 1024 * token, 1024 * token + 16384);
}

/* What the head works on at once has its place, in RAM and on a device; a device's tile is no
 * larger than its steps. */
static void test_tiles_have_a_place(void **state)
{
    (void)state;
    struct plan_bytes b, more;
    char why[256];
    const struct {
        int device, tile, prefill, tokens, positions;
    } cases[] = {{0, 0, 3000, 256, 64},      {1, 0, 3000, 256, 256},     {1, 2048, 3000, 2048, 256},
                 {1, 2048, 1017, 2048, 256}, {1, 2048, 1016, 1024, 256}, {1, 96, 3000, 96, 256}};
    work.scored_positions = 1 << 20;
    for (int i = 0; i < 6; i++) {
        struct plan p = derived((struct plan){.batch = 8,
                                              .batches = 2,
                                              .device = cases[i].device,
                                              .window = 3,
                                              .tile_tokens = cases[i].tile,
                                              .prefill_tokens = cases[i].prefill});
        assert_int_equal(p.tile_tokens, cases[i].tokens);
        assert_int_equal(p.tile_positions, cases[i].positions);
        const enum tier_kind near = plan_near(&p);
        assert_int_equal(check(&p, &NO_BUDGET, &b, why, sizeof why), 0);
        p.tile_positions *= 2;
        assert_int_equal(check(&p, &NO_BUDGET, &more, why, sizeof why), 0);
        assert_int_equal(more.by[PLAN_BYTES_head][near] - b.by[PLAN_BYTES_head][near],
                         cases[i].positions * (HEAD_TILE + 768) * 4);
    }
    work.scored_positions = 0; // a position a row
    assert_int_equal(derived((struct plan){.batch = 8, .batches = 2, .device = 1}).tile_positions,
                     8);
}

/* A search takes the device's tile, unless nothing fits beside it; RAM has one size of tile. */
static void test_search_chooses_a_tile(void **state)
{
    (void)state;
    struct plan_wish wish = AUTO;
    struct plan p;
    struct plan_bytes b;
    char why[320];
    struct budget budget = {16384LL * MIB, 4096LL * MIB, 0};
    const struct setting set = setting_of(&MACHINE);
    wish.prefill_tokens = 8000;
    assert_int_equal(search(&wish, &NO_BUDGET, &p, why, sizeof why), 0);
    assert_int_equal(p.tile_tokens, PLAN_TILE_TOKENS);
    wish.device = 1;
    assert_int_equal(search(&wish, &budget, &p, why, sizeof why), 0);
    assert_int_equal(p.tile_tokens, 2048);
    wish.batch = p.batch;
    wish.batches = p.batches;
    wish.resident = p.resident;
    wish.decoded = p.decoded;
    wish.kv_near = p.kv_near;
    wish.hidden_near = p.hidden_near;
    assert_int_equal(check(&p, &NO_BUDGET, &b, why, sizeof why), 0);
    budget.device = b.device;
    assert_int_equal(plan_tile_tokens(&set, budget.device), 512);
    assert_int_equal(search(&wish, &budget, &p, why, sizeof why), 0);
    assert_int_equal(p.tile_tokens, 512);
    p.tile_tokens = PLAN_TILE_TOKENS;
    assert_int_equal(check(&p, &NO_BUDGET, &b, why, sizeof why), 0);
    budget.device = b.device;
    assert_int_equal(plan_tile_tokens(&set, budget.device), 512);
    assert_int_equal(search(&wish, &budget, &p, why, sizeof why), 0);
    assert_int_equal(p.tile_tokens, PLAN_TILE_TOKENS);
    budget.device--;
    assert_int_equal(search(&wish, &budget, &p, why, sizeof why), -1);
}

/* A device reads weights of layers again for each tile of tokens, weights of the head for each tile
 * of positions. */
static void test_tiles_cost_their_weights(void **state)
{
    (void)state;
    struct plan_time all, tokens, positions;
    struct plan p = derived((struct plan){.batch = 40,
                                          .batches = 1,
                                          .device = 1,
                                          .window = 3,
                                          .resident = PLAN_ALL,
                                          .kv_near = PLAN_ALL,
                                          .hidden_near = PLAN_ALL,
                                          .tile_tokens = 2048,
                                          .prefill_tokens = 20000});
    all = time_on(&MACHINE, &p);
    p.tile_tokens = 10; // of the 40 tokens and positions of a pass that reads no prompts
    tokens = time_on(&MACHINE, &p);
    p.tile_tokens = 2048;
    p.tile_positions = 10;
    positions = time_on(&MACHINE, &p);
    const double layers = 16 * 12.0 * MIB / 2e11, slices = 4 * 6.0 * MIB / 2e11;
    assert_true(tokens.gpu_s - all.gpu_s > 2.3 * layers); // 4, 4 and 2 tiles instead of one
    assert_true(positions.gpu_s - all.gpu_s > 2.3 * slices);
    assert_true(positions.gpu_s - all.gpu_s < 2.4 * slices);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_tiles_grow_with_a_device, setup),
        cmocka_unit_test_setup(test_tiles_have_a_place, setup),
        cmocka_unit_test_setup(test_search_chooses_a_tile, setup),
        cmocka_unit_test_setup(test_tiles_cost_their_weights, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
