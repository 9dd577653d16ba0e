/* tests/engine_test.c - what the plan counted against what the engine lays out, and whole runs in
 * one process.
 *
 * Note: the plan proves a budget without asking the engine, so only this
 * comparison keeps policy/plan.c and the layout code (home, batch, layer, gather) from drifting. */
#include "tests/engine_bed.h"

#define ON_DISK (-1) // fewer than none are none

/* ---- bytes ---- */

static const struct {
    const char *name;
    int model;
    const struct evict *evict;
    enum compute compute;
    struct expect expect;
    struct plan plan;
} CASES[] = {
    {"all in RAM",
     LLAMA,
     &FULL,
     COMPUTE_BF16,
     {10, 200, 20, 0, 0, 0, 0},
     {.batch = 8, .batches = 1, .resident = 99, .prefill_tokens = 256}},
    {"held as tiles",
     LLAMA,
     &FULL,
     COMPUTE_F32,
     {10, 200, 20, 0, 0, 0, 0},
     {.batch = 8, .batches = 1, .resident = 4, .decoded = 2, .prefill_tokens = 256}},
    {"weights stream",
     LLAMA,
     &FULL,
     COMPUTE_BF16,
     {10, 200, 20, 0, 0, 0, 0},
     {.batch = 4, .batches = 3, .prefill_tokens = 128, .ahead_weights = 3}},
    {"far ahead",
     GQA,
     &FULL,
     COMPUTE_BF16,
     {10, 60, 20, 0, 0, 0, 0},
     {.batch = 4, .batches = 2, .resident = 4, .prefill_tokens = 64, .ahead_weights = 9}},
    {"KV on disk",
     GQA,
     &FULL,
     COMPUTE_BF16,
     {10, 400, 100, 0, 0, 0, 0},
     {.batch = 4,
      .batches = 3,
      .resident = 4,
      .kv_near = ON_DISK,
      .hidden_near = PLAN_ALL,
      .prefill_tokens = 256,
      .ahead_weights = 3,
      .ahead_state = 2}},
    {"hidden states on disk",
     LLAMA,
     &FULL,
     COMPUTE_BF16,
     {10, 300, 10, 0, 0, 0, 0},
     {.batch = 3,
      .batches = 4,
      .kv_near = PLAN_ALL,
      .hidden_near = ON_DISK,
      .prefill_tokens = 300,
      .ahead_weights = 4,
      .ahead_state = 3}},
    {"all on disk",
     OPT,
     &FULL,
     COMPUTE_BF16,
     {5, 300, 30, 0, 0, 0, 0},
     {.batch = 3,
      .batches = 3,
      .kv_near = ON_DISK,
      .hidden_near = ON_DISK,
      .prefill_tokens = 100,
      .ahead_weights = 3,
      .ahead_state = 1}},
    {"h2o",
     GQA,
     &H2O,
     COMPUTE_BF16,
     {10, 500, 40, 0, 0, 0, 0},
     {.batch = 6, .batches = 2, .resident = 99, .prefill_tokens = 256}},
    {"h2o on disk",
     LLAMA,
     &H2O,
     COMPUTE_BF16,
     {10, 500, 40, 0, 0, 0, 0},
     {.batch = 6,
      .batches = 2,
      .resident = 2,
      .kv_near = ON_DISK,
      .hidden_near = PLAN_ALL,
      .prefill_tokens = 256,
      .ahead_weights = 2,
      .ahead_state = 1}},
    {"h2o-mean of a layer, f32",
     OPT,
     &MEAN,
     COMPUTE_F32,
     {20, 300, 200, 0, 0, 0, 0},
     {.batch = 12, .batches = 1, .resident = 99, .prefill_tokens = 500}},
    {"f32",
     LLAMA,
     &FULL,
     COMPUTE_F32,
     {10, 700, 20, 0, 0, 0, 0},
     {.batch = 2, .batches = 2, .resident = 3, .prefill_tokens = 64, .ahead_weights = 2}},
    {"filters",
     LLAMA,
     &FULL,
     COMPUTE_BF16,
     {10, 50, 40, 0, 1, 0, 0},
     {.batch = 64, .batches = 2, .resident = 99, .prefill_tokens = 256}},
    {"penalties",
     GQA,
     &FULL,
     COMPUTE_BF16,
     {10, 900, 100, 0, 0, 1, 0},
     {.batch = 64, .batches = 4, .resident = 99, .prefill_tokens = 256}},
    {"scores",
     LLAMA,
     &FULL,
     COMPUTE_BF16,
     {30, 60, 400, REQUEST_SCORE, 0, 0, 0},
     {.batch = 4, .batches = 2, .resident = 99, .prefill_tokens = 1024}},
    {"scores under h2o, all on disk",
     GQA,
     &H2O,
     COMPUTE_BF16,
     {30, 60, 400, REQUEST_SCORE, 0, 0, 0},
     {.batch = 4,
      .batches = 2,
      .kv_near = ON_DISK,
      .hidden_near = ON_DISK,
      .prefill_tokens = 1024,
      .ahead_weights = 2}},
    {"one long prompt",
     GQA,
     &FULL,
     COMPUTE_BF16,
     {900, 1000, 5, 0, 0, 0, 0},
     {.batch = 1, .batches = 1, .resident = 99, .prefill_tokens = 32}},
    {"rings, on disk",
     GQA,
     &RINGS,
     COMPUTE_BF16,
     {10, 300, 40, 0, 0, 0, 0},
     {.batch = 5,
      .batches = 3,
      .resident = 4,
      .kv_near = ON_DISK,
      .prefill_tokens = 256,
      .ahead_weights = 3,
      .ahead_state = 7}},
    {"layers of other budgets, on disk",
     GQA,
     &UNEVEN,
     COMPUTE_BF16,
     {10, 300, 40, 0, 0, 0, 0},
     {.batch = 5,
      .batches = 3,
      .resident = 4,
      .kv_near = ON_DISK,
      .prefill_tokens = 256,
      .ahead_weights = 3,
      .ahead_state = 7}},
    {"by slot, on disk",
     GQA,
     &BY_SLOT,
     COMPUTE_BF16,
     {10, 300, 40, 0, 0, 0, 0},
     {.batch = 5,
      .batches = 3,
      .resident = 4,
      .kv_near = ON_DISK,
      .prefill_tokens = 256,
      .ahead_weights = 3,
      .ahead_state = 7}},
    {"scores by slot",
     LLAMA,
     &BY_SLOT,
     COMPUTE_F32,
     {30, 60, 400, REQUEST_SCORE, 0, 0, 0},
     {.batch = 4, .batches = 2, .resident = 99, .prefill_tokens = 1024}},
    {"many short rows",
     OPT,
     &FULL,
     COMPUTE_BF16,
     {1, 8, 4, 0, 0, 0, 0},
     {.batch = 512, .batches = 2, .resident = 99, .prefill_tokens = 256}},
};
#define N_CASES (int)(sizeof CASES / sizeof CASES[0])

/* What no case says lives in RAM. */
static struct plan homed(struct plan p)
{
    p.kv_near = p.kv_near == 0 ? PLAN_ALL : p.kv_near;
    p.hidden_near = p.hidden_near == 0 ? PLAN_ALL : p.hidden_near;
    return p;
}

static struct plan case_plan(int i)
{
    struct plan p = homed(CASES[i].plan);
    int n = models[CASES[i].model].n_layers - 1;
    if (p.resident > n)
        p.resident = n;
    return p;
}

/* Pieces follow each other, aligned, in the arenas that the plan has. What an owner may touch
 * AddressSanitizer tells. */
static void test_parts_do_not_overlap(void **state)
{
    (void)state;
    static uint8_t memory[N_ARENAS][1 << 16];
    for (int device = 0; device < 2; device++) {
        const struct plan plan = {.device = device};
        struct plan_bytes bytes = {0};
        struct carve c = {.plan = &plan, .bytes = &bytes};
        const uint8_t *end[N_ARENAS];
        for (int i = 0; i < N_ARENAS; i++)
            end[i] = c.base[i] = memory[i];
        for (int i = 0; i < 24; i++) {
            const enum carve_arena arena = (enum carve_arena)(i % N_ARENAS);
            const int in = device || arena == ARENA_DISK ? (int)arena : ARENA_HOST;
            const struct slab s = carve_slab(&c, PLAN_BYTES_head, arena, 1 + i % 3, 1 + 37 * i, 64);
            assert_true(s.n_bytes == 1 + 37 * i && s.stride >= s.n_bytes && s.stride % 64 == 0);
            assert_true(s.base >= end[in] && s.offset % 64 == 0 && s.base == memory[in] + s.offset);
            end[in] = (const uint8_t *)slab_at(&s, s.n - 1) + s.n_bytes;
            assert_true(end[in] <= memory[in] + c.end[in]);
        }
        assert_null(carve_slab(&c, PLAN_BYTES_head, ARENA_HOST, 3, 0, 64).base);
        assert_int_equal(bytes.by[PLAN_BYTES_head][TIER_RAM],
                         c.end[ARENA_HOST] + c.end[ARENA_PINNED]);
        assert_int_equal(bytes.by[PLAN_BYTES_head][TIER_DEVICE], c.end[ARENA_DEVICE]);
        assert_int_equal(bytes.by[PLAN_BYTES_head][TIER_NVME], c.end[ARENA_DISK]);
    }
}

/* What the plan counted is what the engine took. */
static void test_the_count_is_what_is_taken(void **state)
{
    (void)state;
    static struct bed b;
    for (int i = 0; i < N_CASES; i++) {
        const struct model *model = &models[CASES[i].model];
        struct plan plan = case_plan(i);
        bed_open(&b, model, CASES[i].evict, CASES[i].compute, &CASES[i].expect);
        bed_start(&b, model, &plan);
        const struct home *h = &b.engine.home;
        int64_t io = b.costs.io_bytes + (plan.codec != PLAN_CODEC_NONE ? b.costs.codec_bytes : 0);
        assert_int_equal(b.bytes.ram, b.bytes.arena + b.bytes.by[PLAN_BYTES_text][TIER_RAM] + io);
        assert_int_equal(h->tiers[TIER_RAM].n_bytes, round_up(b.bytes.arena, 4096));
        assert_int_equal(h->pinned.n_bytes + h->tiers[TIER_DEVICE].n_bytes + b.bytes.device, 0);
        assert_int_equal(b.bytes.disk, h->tiers[TIER_NVME].n_bytes);
        bed_close(&b);
    }
}

/* On several drives a streamed layer is read from its copy, which begins a stripe. */
static void test_copies(void **state)
{
    (void)state;
    static struct bed b;
    char drives[300];
    int n_copied = 0;
    snprintf(drives, sizeof drives, "%s,%s,%s", temp_dir, temp_dir, temp_dir);
    bed_drives = drives;
    for (int i = 0; i < N_CASES; i++) {
        const struct model *model = &models[CASES[i].model];
        struct plan plan = case_plan(i);
        plan.codec = PLAN_CODEC_NONE;
        bed_open(&b, model, CASES[i].evict, CASES[i].compute, &CASES[i].expect);
        bed_start(&b, model, &plan);
        assert_int_equal(b.bytes.disk, b.engine.home.tiers[TIER_NVME].n_bytes);
        for (int layer = 0; layer < plan.layers; layer++) {
            const struct weight_home *w = &b.engine.home.weights[layer];
            const int copied = layer > 0 && plan_layer_home(&plan, layer) == TIER_NVME;
            assert_int_equal(w->place, copied ? HOME_SCRATCH : HOME_PACK);
            assert_int_equal(w->at, copied ? w->copy : model->layers[layer].offset);
            assert_true(w->at % (copied ? RING_STRIPE_BYTES : BLOCK_BYTES) == 0);
            n_copied += copied;
        }
        bed_close(&b);
    }
    bed_drives = NULL;
    assert_true(n_copied > 20);
}

/* ---- answers ---- */

/* The same requests under every plan of one model and policy: one hash. */
static void test_plans_answer_alike(void **state)
{
    (void)state;
    static struct bed b;
    static const struct plan plans[] = {
        {.batch = 12, .batches = 1, .resident = 99, .prefill_tokens = 999},
        {.batch = 1, .batches = 1, .resident = 2, .prefill_tokens = 9},
        {.batch = 2, .batches = 5, .resident = 3, .prefill_tokens = 50, .ahead_weights = 5},
        {.batch = 2,
         .batches = 3,
         .kv_near = ON_DISK,
         .hidden_near = ON_DISK,
         .prefill_tokens = 90,
         .ahead_weights = 30,
         .ahead_state = 9},
        {.batch = 3,
         .batches = 4,
         .kv_near = 5,
         .hidden_near = 2,
         .prefill_tokens = 60,
         .ahead_weights = 3,
         .ahead_state = 2},
        {.batch = 5, .batches = 2, .kv_near = ON_DISK, .prefill_tokens = 40, .ahead_state = 1},
        {.batch = 12, .batches = 1, .resident = 99, .decoded = 99, .prefill_tokens = 999},
        {.batch = 4, .batches = 2, .resident = 3, .decoded = 1, .prefill_tokens = 99},
    };
    static const struct evict *const policies[TINY] = {&FULL, &H2O, &MEAN, &BY_SLOT};
    static const struct expect jobs[] = {{1, 150, 12, REQUEST_GENERATE, 1, 1, 0},
                                         {20, 90, 40, REQUEST_SCORE, 0, 0, 0}};
    int n_decoded = 0, step = sweep_step(6);
    for (int k = 0; k < TINY * 2; k++) { // each model under a policy of its own
        const struct model *model = &models[k % TINY];
        struct outcome first = {0};
        for (int i = 0; i < (int)(sizeof plans / sizeof plans[0]); i += i ? step : 1 + k % step) {
            struct plan plan = homed(plans[i]);
            plan.resident =
                plan.resident > model->n_layers - 1 ? model->n_layers - 1 : plan.resident;
            bed_open(&b, model, policies[k % TINY], k < TINY ? COMPUTE_BF16 : COMPUTE_F32,
                     &jobs[k / TINY]);
            bed_start(&b, model, &plan);
            assert_int_equal(engine_run(&b.engine), OK);
            assert_int_equal(b.outcome.n_finished, N_REQUESTS);
            if (i == 0)
                first = b.outcome;
            assert_int_equal(b.outcome.n_tokens, first.n_tokens);
            assert_int_equal(b.outcome.hash, first.hash);
            n_decoded += b.engine.config.plan.decoded;
            bed_close(&b);
        }
    }
    assert_true(n_decoded > 0);
}

/* Weights may be asked for at any distance: what reaches too far is lowered, and the frames that
 * the plan counts are enough. */
static void test_any_look_ahead_of_weights(void **state)
{
    (void)state;
    static struct bed b;
    static const struct expect job = {1, 40, 4, 0, 0, 0, 0};
    const struct model *model = &models[TINY];
    const int residents[] = {0, 2, model->n_layers - 2};
    uint64_t hash = 0;
    for (int batches = 1; batches <= 3; batches++) {
        int steps = batches * model->n_layers;
        for (int i = 0; i < 3 * (3 * steps + 1); i += sweep(7, SANITIZED ? 7 : 1)) {
            struct plan plan = {.batch = 2,
                                .batches = batches,
                                .resident = residents[i % 3],
                                .kv_near = PLAN_ALL,
                                .hidden_near = PLAN_ALL,
                                .prefill_tokens = 64,
                                .ahead_weights = i / 3};
            bed_open(&b, model, &FULL, COMPUTE_BF16, &job);
            bed_start(&b, model, &plan);
            assert_int_equal(plan.ahead_weights, min_i64(i / 3, steps - batches));
            assert_int_equal(engine_run(&b.engine), OK);
            assert_int_equal(b.outcome.n_finished, N_REQUESTS);
            hash = hash ? hash : b.outcome.hash;
            assert_int_equal(b.outcome.hash, hash);
            bed_close(&b);
        }
    }
}

/* Once every row is done, what was asked for ahead is nobody's: a bad piece of it fails nothing.
 * 4 of a run's 20 reads are such, so that about 7 of the 100 runs meet it. */
static void test_a_bad_piece_behind_the_end(void **state)
{
    (void)state;
    static struct bed b;
    static const struct expect job = {1, 1, 1, 0, 0, 0, 0};
    int n_stopped = 0;
    for (int seed = 1; seed <= 100; seed++) {
        char fault[64];
        struct plan plan = {.batch = N_REQUESTS,
                            .batches = 1,
                            .kv_near = PLAN_ALL,
                            .hidden_near = PLAN_ALL,
                            .prefill_tokens = 512,
                            .ahead_weights = 4};
        snprintf(fault, sizeof fault, "seed=%d,read.estale=1/30", seed);
        bed_open(&b, &models[TINY], &FULL, COMPUTE_BF16, &job);
        b.fault = fault;
        bed_start(&b, &models[TINY], &plan);
        enum err err = engine_run(&b.engine);
        int done = b.outcome.n_finished == N_REQUESTS;
        assert_int_equal(err == OK, done);
        n_stopped += !done;
        bed_close(&b);
    }
    assert_in_range(n_stopped, 20, 80);
}

/* Sinks reach attention: far below all logits they are as none, to the bit, and about them they are
 * not. */
static void test_sinks_take_their_share(void **state)
{
    (void)state;
    static struct bed b;
    static const struct expect job = {1, 60, 8, 0, 0, 0, 1};
    static const float sinks[] = {0, -1000, 0};
    uint64_t hash[3];
    for (int i = 0; i < 3; i++) {
        struct pack_provider p;
        struct model model;
        struct plan plan = {.batch = N_REQUESTS,
                            .batches = 1,
                            .kv_near = PLAN_ALL,
                            .hidden_near = PLAN_ALL,
                            .prefill_tokens = 512};
        char path[64];
        snprintf(path, sizeof path, "%.40s/sinks.pack", temp_dir);
        temp_write_text("sinks.cfg", CONFIGS[TINY]);
        assert_int_equal(dummy_open(&p, temp_path("sinks.cfg")), OK);
        bed_sink = sinks[i];
        bed_add_sinks(&p);
        p.shape.sinks = i > 0;
        p.roles &= i > 0 ? p.roles : ~ROLE_BIT(ROLE_SINKS);
        assert_int_equal(
            pack_write(&(struct pack_request){.provider = &p, .weights = PACK_AUTO, .path = path}),
            OK);
        dummy_close(&p);
        assert_int_equal(model_open(&model, path), OK);
        bed_open(&b, &model, &H2O, COMPUTE_BF16, &job);
        bed_start(&b, &model, &plan);
        assert_int_equal(engine_run(&b.engine), OK);
        hash[i] = b.outcome.hash;
        bed_close(&b);
        model_close(&model);
    }
    assert_int_equal(hash[0], hash[1]);
    assert_int_not_equal(hash[0], hash[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_do_not_overlap),
        cmocka_unit_test(test_the_count_is_what_is_taken),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_plans_answer_alike),
        cmocka_unit_test(test_any_look_ahead_of_weights),
        cmocka_unit_test(test_a_bad_piece_behind_the_end),
        cmocka_unit_test(test_sinks_take_their_share),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
