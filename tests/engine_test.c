/* tests/engine_test.c - what the plan counted against what the engine lays out, and whole runs in
 * one process.
 *
 * The fact a newcomer would miss: the plan proves a budget without asking the engine, so only this
 * comparison keeps policy/plan.c and the layout code (home, batch, layer, gather) from drifting. */
#include "engine/line/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#undef fail // ours, from base.h

#include "engine/pack/dummy.h"
#include "engine/pack/pack.h"
#include "tests/sweep.h"
#include "tests/temp_dir.h"

#define N_REQUESTS 12

enum { LLAMA, GQA, OPT, TINY, N_MODELS };

static const char *const CONFIGS[N_MODELS] = {
    "family = llama\ndim = 256\nlayers = 5\nheads = 8\nffn = 640\nvocab = 9000\ncontext = 1024\n",
    "family = llama\ndim = 128\nlayers = 9\nheads = 8\nkv_heads = 2\nffn = 448\nvocab = 5000\n"
    "context = 1024\ntied = 0\n",
    "family = opt\ndim = 192\nlayers = 4\nheads = 6\nffn = 768\nvocab = 4096\ncontext = 1024\n",
    "family = llama\ndim = 64\nlayers = 2\nheads = 2\nffn = 96\nvocab = 4200\ncontext = 256\n",
};

static struct model models[N_MODELS];

static int setup(void **state)
{
    (void)state;
    temp_dir_make();
    for (int i = 0; i < N_MODELS; i++) {
        struct pack_provider p;
        char name[32], path[64];
        snprintf(name, sizeof name, "model-%d.cfg", i);
        temp_write_text(name, CONFIGS[i]);
        assert_int_equal(dummy_open(&p, temp_path(name)), OK);
        snprintf(path, sizeof path, "%.40s/%d.pack", temp_dir, i);
        struct pack_request r = {.provider = &p, .weights = PACK_AUTO, .path = path};
        assert_int_equal(pack_write(&r), OK);
        dummy_close(&p);
        assert_int_equal(model_open(&models[i], path), OK);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++)
        model_close(&models[i]);
    temp_dir_remove();
    return 0;
}

/* ---- one run ---- */

struct expect {
    int prompt_min, prompt_max, output; // tokens: lengths run from min to max over the requests
    int kind;                           // enum request_kind
    int filters, penalties;             // rows that need candidates, edits
};

struct outcome {
    int64_t n_finished, n_tokens;
    uint64_t hash; // of every finished row's tokens and log-probabilities, whatever the order
};

struct bed {
    struct engine engine;
    struct job *job;
    struct request requests[N_REQUESTS]; // the array outlives the job
    struct work work;
    struct weights_info weights;
    struct plan_costs costs;
    struct layout layout;
    struct plan_bytes bytes;
    struct ops ops;
    struct evict evict;
    enum kv_format format;
    const char *fault; // NULL: none
    struct outcome outcome;
};

static enum err finished(void *ctx, const struct job_result *result)
{
    struct outcome *o = ctx;
    const struct request *r = result->request;
    assert_null(result->error);
    o->n_finished++;
    o->n_tokens += r->n_tokens;
    uint64_t h =
        hash_bytes(r->tokens, (int64_t)sizeof *r->tokens * r->n_tokens, (uint64_t)r->index);
    if (result->token_logprobs)
        h = hash_bytes(result->token_logprobs, (int64_t)sizeof(float) * result->n_token_logprobs,
                       h);
    o->hash += h;
    return OK;
}

static void request_make(struct request *r, int index, const struct expect *x)
{
    int span = x->prompt_max - x->prompt_min;
    int n_prompt = x->prompt_min + span * index / (N_REQUESTS - 1);
    int n = n_prompt + x->output, known = x->kind == REQUEST_SCORE ? n : n_prompt;
    int32_t ids[2048];
    assert_in_range(n, 1, 2048);
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)(mix64((uint64_t)index << 32 | (uint64_t)i) % 4096);
    assert_int_equal(
        request_from_ids(r, (enum request_kind)x->kind, index, ids, n_prompt, known, n), OK);
    r->ignore_eos = 1;
    if (x->filters) {
        r->sampling.temperature = 0.9;
        r->sampling.top_k = 50;
    }
    if (x->penalties)
        r->sampling.repetition_penalty = 1.2;
}

static const struct evict FULL = {.policy = EVICT_FULL};
static const struct evict H2O = {.policy = EVICT_H2O, .budget = 96, .sink = -1};
static const struct evict RINGS = {
    .policy = EVICT_H2O, .budget = 96, .sink = -1}; // KV format mixed

static void bed_open(struct bed *b, const struct model *model, const struct evict *evict,
                     enum compute compute, const struct expect *x)
{
    static const struct job_callbacks none = {.finished = finished};
    memset(b, 0, sizeof *b);
    b->evict = *evict;
    b->format = evict == &RINGS ? KV_MIXED : compute == COMPUTE_F32 ? KV_F32 : KV_BF16;
    b->ops = (struct ops){.isa = isa_best(), .compute = compute};
    for (int i = 0; i < N_REQUESTS; i++)
        request_make(&b->requests[i], i, x);
    struct job_callbacks callbacks = none;
    callbacks.ctx = &b->outcome;
    struct job_config config = {.kind = (enum request_kind)x->kind,
                                .evict = &b->evict,
                                .max_errors = -1,
                                .defaults = {.context = model->shape.context,
                                             .vocab = model->shape.vocab,
                                             .top_p = 1,
                                             .repetition_penalty = 1}};
    assert_int_equal(
        job_open_memory(&b->job, &config, b->requests, N_REQUESTS, &callbacks, &b->work), OK);
    engine_weights_info(model, b->ops.compute, &b->weights);
    engine_costs(model, &b->ops, b->format, &b->work, &b->evict, &b->costs);
}

static void bed_start(struct bed *b, const struct model *model, struct plan *plan)
{
    static const struct budget none = {-1, -1, -1};
    char why[256];
    plan_derive(plan, &b->weights, &b->work);
    if (plan_check(plan, &b->weights, &b->work, &model->shape, &b->evict, &b->costs, &none,
                   &b->layout, &b->bytes, why, sizeof why) != 0) {
        print_error("plan_check: %s\n", why);
        assert_true(0);
    }
    struct engine_config config = {.plan = *plan,
                                   .layout = &b->layout,
                                   .model = model,
                                   .job = b->job,
                                   .evict = b->evict,
                                   .ops = b->ops,
                                   .kv_format = b->format,
                                   .io = RING_THREADS,
                                   .io_depth = 4,
                                   .device = device_cpu(),
                                   .numa_node = -1,
                                   .offload_dir = temp_dir,
                                   .fault = b->fault,
                                   .tokens_max = b->work.tokens_max,
                                   .edits_max = job_edits_max(b->job)};
    enum err err = engine_open(&b->engine, &config);
    if (err != OK)
        print_error("%s\n", err_text());
    assert_int_equal(err, OK);
}

static void bed_close(struct bed *b)
{
    engine_close(&b->engine);
    assert_int_equal(job_close(b->job), OK);
}

/* ---- bytes ---- */

static const struct evict MEAN = {.policy = EVICT_H2O_MEAN,
                                  .budget = 0.4,
                                  .budget_is_fraction = 1,
                                  .sink = -1,
                                  .scope = EVICT_SCOPE_LAYER};

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
     {10, 200, 20, 0, 0, 0},
     {.batch = 8, .batches = 1, .resident = 99, .prefill_tokens = 256}},
    {"held as tiles",
     LLAMA,
     &FULL,
     COMPUTE_F32,
     {10, 200, 20, 0, 0, 0},
     {.batch = 8, .batches = 1, .resident = 4, .decoded = 2, .prefill_tokens = 256}},
    {"weights stream",
     LLAMA,
     &FULL,
     COMPUTE_BF16,
     {10, 200, 20, 0, 0, 0},
     {.batch = 4, .batches = 3, .prefill_tokens = 128, .ahead_weights = 3}},
    {"far ahead",
     GQA,
     &FULL,
     COMPUTE_BF16,
     {10, 60, 20, 0, 0, 0},
     {.batch = 4, .batches = 2, .resident = 4, .prefill_tokens = 64, .ahead_weights = 9}},
    {"KV on disk",
     GQA,
     &FULL,
     COMPUTE_BF16,
     {10, 400, 100, 0, 0, 0},
     {.batch = 4,
      .batches = 3,
      .resident = 4,
      .kv_home = TIER_NVME,
      .hidden_home = TIER_RAM,
      .prefill_tokens = 256,
      .ahead_weights = 3,
      .ahead_state = 2}},
    {"hidden states on disk",
     LLAMA,
     &FULL,
     COMPUTE_BF16,
     {10, 300, 10, 0, 0, 0},
     {.batch = 3,
      .batches = 4,
      .kv_home = TIER_RAM,
      .hidden_home = TIER_NVME,
      .prefill_tokens = 300,
      .ahead_weights = 4,
      .ahead_state = 3}},
    {"all on disk",
     OPT,
     &FULL,
     COMPUTE_BF16,
     {5, 300, 30, 0, 0, 0},
     {.batch = 3,
      .batches = 3,
      .kv_home = TIER_NVME,
      .hidden_home = TIER_NVME,
      .prefill_tokens = 100,
      .ahead_weights = 3,
      .ahead_state = 1}},
    {"h2o",
     GQA,
     &H2O,
     COMPUTE_BF16,
     {10, 500, 40, 0, 0, 0},
     {.batch = 6, .batches = 2, .resident = 99, .prefill_tokens = 256}},
    {"h2o on disk",
     LLAMA,
     &H2O,
     COMPUTE_BF16,
     {10, 500, 40, 0, 0, 0},
     {.batch = 6,
      .batches = 2,
      .resident = 2,
      .kv_home = TIER_NVME,
      .hidden_home = TIER_RAM,
      .prefill_tokens = 256,
      .ahead_weights = 2,
      .ahead_state = 1}},
    {"h2o-mean of a layer, f32",
     OPT,
     &MEAN,
     COMPUTE_F32,
     {20, 300, 200, 0, 0, 0},
     {.batch = 12, .batches = 1, .resident = 99, .prefill_tokens = 500}},
    {"f32",
     LLAMA,
     &FULL,
     COMPUTE_F32,
     {10, 700, 20, 0, 0, 0},
     {.batch = 2, .batches = 2, .resident = 3, .prefill_tokens = 64, .ahead_weights = 2}},
    {"filters",
     LLAMA,
     &FULL,
     COMPUTE_BF16,
     {10, 50, 40, 0, 1, 0},
     {.batch = 64, .batches = 2, .resident = 99, .prefill_tokens = 256}},
    {"penalties",
     GQA,
     &FULL,
     COMPUTE_BF16,
     {10, 900, 100, 0, 0, 1},
     {.batch = 64, .batches = 4, .resident = 99, .prefill_tokens = 256}},
    {"scores",
     LLAMA,
     &FULL,
     COMPUTE_BF16,
     {30, 60, 400, REQUEST_SCORE, 0, 0},
     {.batch = 4, .batches = 2, .resident = 99, .prefill_tokens = 1024}},
    {"scores under h2o, all on disk",
     GQA,
     &H2O,
     COMPUTE_BF16,
     {30, 60, 400, REQUEST_SCORE, 0, 0},
     {.batch = 4,
      .batches = 2,
      .kv_home = TIER_NVME,
      .hidden_home = TIER_NVME,
      .prefill_tokens = 1024,
      .ahead_weights = 2}},
    {"one long prompt",
     GQA,
     &FULL,
     COMPUTE_BF16,
     {900, 1000, 5, 0, 0, 0},
     {.batch = 1, .batches = 1, .resident = 99, .prefill_tokens = 32}},
    {"rings, on disk",
     GQA,
     &RINGS,
     COMPUTE_BF16,
     {10, 300, 40, 0, 0, 0},
     {.batch = 5,
      .batches = 3,
      .resident = 4,
      .kv_home = TIER_NVME,
      .prefill_tokens = 256,
      .ahead_weights = 3,
      .ahead_state = 7}},
    {"many short rows",
     OPT,
     &FULL,
     COMPUTE_BF16,
     {1, 8, 4, 0, 0, 0},
     {.batch = 512, .batches = 2, .resident = 99, .prefill_tokens = 256}},
};
#define N_CASES (int)(sizeof CASES / sizeof CASES[0])

/* A zeroed home means RAM here; enum tier_kind starts with the device. */
static struct plan case_plan(int i)
{
    struct plan p = CASES[i].plan;
    if (p.kv_home != TIER_NVME)
        p.kv_home = TIER_RAM;
    if (p.hidden_home != TIER_NVME)
        p.hidden_home = TIER_RAM;
    int n = models[CASES[i].model].n_layers - 1;
    if (p.resident > n)
        p.resident = n;
    return p;
}

/* Pieces follow each other, aligned, without overlaps, to the end; what an owner may touch beyond
 * them AddressSanitizer tells (LAYOUT_GAP). */
static void test_the_layout_is_whole(void **state)
{
    (void)state;
    static struct bed b;
    for (int i = 0; i < N_CASES; i++) {
        const struct model *model = &models[CASES[i].model];
        struct plan plan = case_plan(i);
        bed_open(&b, model, CASES[i].evict, CASES[i].compute, &CASES[i].expect);
        bed_start(&b, model, &plan);
        const struct layout *l = &b.layout;
        int64_t end = 0;
        for (int id = 0; id < N_LAYOUT_IDS; id++) {
            const struct layout_part *p = &l->parts[id];
            if (p->n == 0)
                continue;
            assert_true(p->offset >= end && p->offset % 64 == 0 && p->stride % 64 == 0);
            assert_true(p->n_bytes > 0 && p->n_bytes + LAYOUT_GAP <= p->stride);
            end = p->offset + (p->n - 1) * p->stride + p->n_bytes;
        }
        assert_true(end <= l->n_bytes && l->busy_bytes <= l->n_bytes);
        assert_int_equal(b.bytes.arena, l->n_bytes);
        assert_int_equal(b.engine.home.tiers[TIER_RAM].n_bytes, round_up(l->n_bytes, 4096));
        assert_int_equal(b.bytes.disk, b.engine.home.tiers[TIER_NVME].n_bytes);
        bed_close(&b);
    }
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
         .kv_home = TIER_NVME,
         .hidden_home = TIER_NVME,
         .prefill_tokens = 90,
         .ahead_weights = 30,
         .ahead_state = 9},
        {.batch = 5, .batches = 2, .kv_home = TIER_NVME, .prefill_tokens = 40, .ahead_state = 1},
        {.batch = 12, .batches = 1, .resident = 99, .decoded = 99, .prefill_tokens = 999},
        {.batch = 4, .batches = 2, .resident = 3, .decoded = 1, .prefill_tokens = 99},
    };
    static const struct evict *const policies[] = {&FULL, &H2O, &MEAN};
    static const struct expect jobs[] = {{1, 150, 12, REQUEST_GENERATE, 1, 1},
                                         {20, 90, 40, REQUEST_SCORE, 0, 0}};
    int n_decoded = 0;
    for (int k = 0; k < TINY * 2; k++) { // each model under a policy of its own
        const struct model *model = &models[k % TINY];
        struct outcome first = {0};
        for (int i = 0; i < (int)(sizeof plans / sizeof plans[0]);
             i += i ? SWEEP_STEP : 1 + k % SWEEP_STEP) {
            struct plan plan = plans[i];
            plan.kv_home = plan.kv_home == TIER_NVME ? TIER_NVME : TIER_RAM;
            plan.hidden_home = plan.hidden_home == TIER_NVME ? TIER_NVME : TIER_RAM;
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
    static const struct expect job = {1, 40, 4, 0, 0, 0};
    const struct model *model = &models[TINY];
    const int residents[] = {0, 2, model->n_layers - 2};
    uint64_t hash = 0;
    for (int batches = 1; batches <= 3; batches++) {
        int steps = batches * model->n_layers;
        for (int i = 0; i < 3 * (3 * steps + 1); i += SWEEP_STEP == 1 ? 1 : 7) {
            struct plan plan = {.batch = 2,
                                .batches = batches,
                                .resident = residents[i % 3],
                                .kv_home = TIER_RAM,
                                .hidden_home = TIER_RAM,
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
    static const struct expect job = {1, 1, 1, 0, 0, 0};
    int n_stopped = 0;
    for (int seed = 1; seed <= 100; seed++) {
        char fault[64];
        struct plan plan = {.batch = N_REQUESTS,
                            .batches = 1,
                            .kv_home = TIER_RAM,
                            .hidden_home = TIER_RAM,
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_layout_is_whole),
        cmocka_unit_test(test_plans_answer_alike),
        cmocka_unit_test(test_any_look_ahead_of_weights),
        cmocka_unit_test(test_a_bad_piece_behind_the_end),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
