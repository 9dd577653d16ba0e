/* tests/costs_test.c - what the engine tells the plan and the probe of a model's layers: of one
 * kind and of two, with experts and with one for all tokens. */
#include "engine/line/engine.h"
#include "engine/model/dummy.h"
#include "engine/model/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/temp_dir.h"

enum { DIM = 64, HEADS = 4, KV = 1, HEAD = 16, VOCAB = 300, EXPERTS = 6, USED = 2 };
enum { FFN = 32, SHARED = 48, DENSE = 80, LAYERS = 3 };

static const char base[] = "dim = 64\nlayers = 3\nheads = 4\nkv_heads = 1\nhead_dim = 16\n"
                           "ffn = 32\nvocab = 300\ncontext = 64\n";

static void model_make(struct model *m, const char *more)
{
    char text[600], path[1024];
    struct pack_provider p;
    struct pack_request r = {.provider = &p, .weights = PACK_BF16, .path = path, .on_demand = 1};
    snprintf(text, sizeof text, "%s%s", base, more);
    snprintf(path, sizeof path, "%s", temp_path("m.pack"));
    temp_write_text("m.cfg", text);
    assert_int_equal(dummy_open(&p, temp_path("m.cfg")), OK);
    assert_int_equal(pack_write(&r), OK);
    dummy_close(&p);
    assert_int_equal(model_open(m, path), OK);
}

static int64_t flops_of(const char *more)
{
    struct model m;
    static struct weights_info w;
    model_make(&m, more);
    engine_weights_info(&m, device_cpu(), COMPUTE_BF16, &w);
    assert_int_equal(w.n_decoder, LAYERS);
    model_close(&m);
    return w.flops_per_token;
}

static const char plain[] = "family = llama\n";
static const char all[] = "family = qwen3_moe\nexperts = 6\nexperts_used = 2\n";
static const char some[] = "family = qwen2_moe\nexperts = 6\nexperts_used = 2\nshared_ffn = 48\n"
                           "dense_ffn = 80\ndense_layers = 1\n";
static const char few[] = "family = qwen2_moe\nexperts = 6\nexperts_used = 2\nshared_ffn = 48\n"
                          "dense_ffn = 80\ndense_layers = 2\n";

static const char narrow[] = "family = qwen3_moe\nexperts = 6\nexperts_used = 2\nexpert_dim = 32\n";

/* Two for every number of the matrices that a token meets. */
static void test_flops(void **state)
{
    (void)state;
    const int64_t attention = 2 * DIM * HEADS * HEAD + 2 * DIM * KV * HEAD, head = VOCAB * DIM;
    const int64_t experts = 3 * USED * FFN * DIM + EXPERTS * DIM;
    const int64_t beside = 3 * SHARED * DIM + DIM, dense = 3 * DENSE * DIM;
    assert_int_equal(flops_of(plain), 2 * (LAYERS * (attention + 3 * FFN * DIM) + head));
    assert_int_equal(flops_of(all), 2 * (LAYERS * (attention + experts) + head));
    assert_int_equal(
        flops_of(narrow),
        2 * (LAYERS * (attention + 3 * USED * FFN * 32 + EXPERTS * DIM + 2 * DIM * 32) + head));
    assert_int_equal(flops_of(some),
                     2 * (LAYERS * attention + 2 * (experts + beside) + dense + head));
    assert_int_equal(flops_of(few), 2 * (LAYERS * attention + experts + beside + 2 * dense + head));
}

/* The probe's list: q, k and v, o; then the MLPs of the kind of layer that there is most of. */
static void expect_list(const char *more, const struct probe_tensor *want, int n, int ffn)
{
    struct model m;
    struct probe_model p;
    model_make(&m, more);
    engine_model_ops(&m, COMPUTE_BF16, KV_BF16, &(struct evict){.policy = EVICT_FULL}, &p);
    assert_int_equal(p.n_layer, 4 + n);
    assert_int_equal(p.beside.ffn_dim, ffn);
    for (int i = 0; i < n; i++) {
        const struct probe_tensor *t = &p.layer[4 + i];
        assert_true(t->n == want[i].n && t->k == want[i].k && t->joins == want[i].joins);
        assert_true(t->experts == want[i].experts && t->used == want[i].used);
    }
    model_close(&m);
}

static void test_probe_lists(void **state)
{
    (void)state;
    const struct probe_tensor one[] = {
        {.n = FFN, .k = DIM}, {.n = FFN, .k = DIM, .joins = 1}, {.n = DIM, .k = FFN}};
    const struct probe_tensor experts[] = {
        {.n = EXPERTS * FFN, .k = DIM, .experts = EXPERTS, .used = USED},
        {.n = EXPERTS * FFN, .k = DIM, .experts = EXPERTS, .used = USED, .joins = 1},
        {.n = EXPERTS * DIM, .k = FFN, .experts = EXPERTS, .used = USED},
        {.n = SHARED, .k = DIM},
        {.n = SHARED, .k = DIM, .joins = 1},
        {.n = DIM, .k = SHARED}};
    const struct probe_tensor latent[] = {
        {.n = EXPERTS * FFN, .k = 32, .experts = EXPERTS, .used = USED},
        {.n = EXPERTS * FFN, .k = 32, .experts = EXPERTS, .used = USED, .joins = 1},
        {.n = EXPERTS * 32, .k = FFN, .experts = EXPERTS, .used = USED},
        {.n = 32, .k = DIM},
        {.n = DIM, .k = 32}};
    const struct probe_tensor dense[] = {
        {.n = DENSE, .k = DIM}, {.n = DENSE, .k = DIM, .joins = 1}, {.n = DIM, .k = DENSE}};
    expect_list(plain, one, 3, FFN);
    expect_list(all, experts, 3, USED * FFN);
    expect_list(narrow, latent, 5, USED * FFN);
    expect_list(some, experts, 6, USED * FFN + SHARED);
    expect_list(few, dense, 3, DENSE);
}

/* Scratch and routes have room for every size of a tile. */
static void test_tiles(void **state)
{
    (void)state;
    struct model m;
    struct plan_costs costs;
    const struct ops ops = {.isa = ISA_PORTABLE, .compute = COMPUTE_BF16};
    const struct evict full = {.policy = EVICT_FULL};
    const struct work work = {.prompt_max = 40, .slots_max = 60};
    model_make(&m, some);
    engine_costs(&m, device_cpu(), &ops, KV_BF16, &work, &full, &costs);
    for (int i = 0, tile = 256; i < PLAN_TILES; i++, tile *= 2) {
        assert_int_equal(costs.route_bytes[i], route_bytes(tile, EXPERTS, USED));
        assert_int_equal(
            costs.scratch_bytes[i],
            layer_scratch_bytes(device_cpu()->api->scratch, &ops, &m, tile, 40, 64, &full));
        assert_true(costs.scratch_bytes[i] >= matmul_scratch_bytes(&ops, tile, DENSE, DENSE));
    }
    model_close(&m);
}

static struct weight_form reads_f16(struct device *d, enum compute compute, enum dtype stored)
{
    (void)d, (void)stored;
    return (struct weight_form){DTYPE_F16, WEIGHT_ROWS, compute != COMPUTE_F32};
}

/* What crosses to the CPU that attends is rounded where it is rounded anyway. */
static void test_what_crosses_is_as_wide_as_it_must_be(void **state)
{
    (void)state;
    const struct device_api api = {.reads = reads_f16};
    struct device old = {&api}, *cpu = device_cpu();
    const struct evict by_position = {0}, by_rank = {.positions = EVICT_POSITIONS_SLOT};
    const struct {
        struct device *device;
        enum compute compute;
        enum kv_format format;
        const struct evict *evict;
        struct cross_bytes want;
    } cases[] = {{cpu, COMPUTE_BF16, KV_BF16, &by_position, {2, 2}},
                 {cpu, COMPUTE_BF16, KV_BF16, &by_rank, {4, 2}},
                 {cpu, COMPUTE_BF16, KV_Q8, &by_position, {4, 2}},
                 {cpu, COMPUTE_BF16, KV_MIXED, &by_position, {4, 2}},
                 {cpu, COMPUTE_BF16, KV_F32, &by_position, {4, 2}},
                 {&old, COMPUTE_BF16, KV_BF16, &by_position, {2, 4}},
                 {cpu, COMPUTE_INT8, KV_BF16, &by_position, {2, 4}},
                 {cpu, COMPUTE_F32, KV_BF16, &by_position, {4, 4}}};
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        const struct cross_bytes got =
            engine_cross_bytes(cases[i].device, cases[i].compute, cases[i].format, cases[i].evict);
        assert_int_equal(got.in, cases[i].want.in);
        assert_int_equal(got.out, cases[i].want.out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flops),
        cmocka_unit_test(test_probe_lists),
        cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_what_crosses_is_as_wide_as_it_must_be),
    };
    return cmocka_run_group_tests(tests, temp_dir_setup, temp_dir_teardown);
}
