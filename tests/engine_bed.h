/* tests/engine_bed.h - whole runs in one process: models made of a line of text, a job in memory,
 * an engine under a plan that the test writes down. */
#ifndef TESTS_ENGINE_BED_H
#define TESTS_ENGINE_BED_H

#include "engine/line/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#undef fail // ours, from base.h

#include "engine/model/dummy.h"
#include "engine/model/pack.h"
#include "tests/sweep.h"
#include "tests/temp_dir.h"

#ifndef N_REQUESTS
#define N_REQUESTS 12
#endif

enum { LLAMA, GQA, OPT, LENT, TINY, N_MODELS };

static const char *const CONFIGS[N_MODELS] = {
    "family = llama\ndim = 256\nlayers = 5\nheads = 8\nffn = 640\nvocab = 9000\ncontext = 1024\n",
    "family = mixtral\ndim = 128\nlayers = 9\nheads = 8\nkv_heads = 2\nffn = 128\nexperts = 5\n"
    "experts_used = 2\nvocab = 5000\ncontext = 1024\ntied = 0\n",
    "family = opt\ndim = 192\nlayers = 4\nheads = 6\nffn = 768\nvocab = 4096\ncontext = 1024\n",
    "family = gemma4\ndim = 64\nlayers = 10\nheads = 2\nkv_heads = 1\nhead_dim = 32\n"
    "wide_head_dim = 64\nffn = 48\nlate_ffn = 96\nkv_own_layers = 6\nlayer_input = 24\n"
    "vocab = 4200\ncontext = 1024\n",
    "family = llama\ndim = 64\nlayers = 2\nheads = 2\nffn = 96\nvocab = 4200\ncontext = 256\n",
};

static struct model models[N_MODELS];

/* Sinks of a dummy model: no two alike, about bed_sink. */
static float bed_sink;
static enum err (*bed_dummy_vector)(void *impl, enum tensor_role role, int layer, int n,
                                    float *out);

static enum err bed_vector(void *impl, enum tensor_role role, int layer, int n, float *out)
{
    if (role != ROLE_SINKS)
        return bed_dummy_vector(impl, role, layer, n, out);
    for (int i = 0; i < n; i++)
        out[i] = bed_sink + (float)((layer * 5 + i * 3) % 16) / 8;
    return OK;
}

static void bed_add_sinks(struct pack_provider *p)
{
    p->shape.sinks = 1;
    p->shape.attn_softcap = 3;
    p->roles |= ROLE_BIT(ROLE_SINKS);
    bed_dummy_vector = p->vector;
    p->vector = bed_vector;
}

/* Of all layers, of the others but one in three, of one of two, of narrow ones; none. */
static void bed_add_windows(struct shape *s, int model)
{
    for (int i = 0; i < s->n_layers; i++)
        if (model == OPT || (model == GQA && i % 3 < 2) || (model == TINY && i == 1) ||
            (model == LENT && !s->layer_wide[i]))
            s->layer_window[i] = model == TINY ? 35 : 50;
}

__attribute__((unused)) static int setup(void **state)
{
    (void)state;
    temp_dir_make();
    for (int i = 0; i < N_MODELS; i++) {
        struct pack_provider p;
        char name[32], path[64];
        snprintf(name, sizeof name, "model-%d.cfg", i);
        temp_write_text(name, CONFIGS[i]);
        assert_int_equal(dummy_open(&p, temp_path(name)), OK);
        if (i == GQA)
            bed_add_sinks(&p);
        bed_add_windows(&p.shape, i);
        snprintf(path, sizeof path, "%.40s/%d.pack", temp_dir, i);
        struct pack_request r = {.provider = &p, .weights = PACK_AUTO, .path = path};
        assert_int_equal(pack_write(&r), OK);
        dummy_close(&p);
        assert_int_equal(model_open(&models[i], path), OK);
    }
    return 0;
}

__attribute__((unused)) static int teardown(void **state)
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
    int logprobs;                       // of every token
};

static int64_t bed_trace_events; // of each lane

/* Where seed is not 0: jobs of n requests, whose lengths are random up to those expected, and which
 * bring up to `known` tokens of their output. */
static struct {
    uint64_t seed;
    int n, known;
    int shared; // first tokens that all prompts have, fewer than the shortest
} bed_random;

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
    struct plan_bytes bytes;
    struct ops ops;
    struct evict evict;
    struct kv_kinds kinds;
    enum kv_format format;
    const char *fault; // NULL: none
    struct device *device;
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
    int output = x->output, more = 0;
    if (bed_random.seed) {
        uint64_t random = mix64(bed_random.seed << 16 | (uint64_t)index);
        n_prompt = x->prompt_min + (int)(random % (uint64_t)(span + 1));
        output = 1 + (int)((random >> 20) % (uint64_t)x->output);
        more =
            (int)min_i64((int64_t)((random >> 40) % (uint64_t)(bed_random.known + 1)), output - 1);
    }
    int n = n_prompt + output, known = x->kind == REQUEST_SCORE ? n : n_prompt + more;
    static int32_t ids[8192];
    assert_in_range(n, 1, sizeof ids / sizeof *ids);
    for (int i = 0; i < n; i++)
        ids[i] = i < bed_random.shared
                     ? i
                     : (int32_t)(mix64((uint64_t)index << 32 | (uint64_t)i) % 4096);
    if (bed_random.shared > 0) // no two go on alike
        ids[bed_random.shared] = index;
    assert_int_equal(
        request_from_ids(r, (enum request_kind)x->kind, index, ids, n_prompt, known, n), OK);
    r->ignore_eos = 1;
    if (x->logprobs)
        r->logprobs = 1;
    if (x->filters) {
        r->sampling.temperature = 0.9;
        r->sampling.top_k = 50;
    }
    if (x->penalties)
        r->sampling.repetition_penalty = 1.2;
}

__attribute__((unused)) static const struct evict FULL = {.policy = EVICT_FULL};
__attribute__((unused)) static const struct evict H2O = {
    .policy = EVICT_H2O, .budget = 96, .sink = -1};
__attribute__((unused)) static const struct evict RINGS = {
    .policy = EVICT_H2O, .budget = 96, .sink = -1}; // KV format mixed

__attribute__((unused)) static const struct evict BY_SLOT = {
    .policy = EVICT_H2O, .budget = 40, .sink = -1, .positions = EVICT_POSITIONS_SLOT};
__attribute__((unused)) static const struct evict QHITTER = {
    .policy = EVICT_QHITTER, .budget = 48, .sink = -1};
__attribute__((unused)) static const struct evict MEAN = {.policy = EVICT_H2O_MEAN,
                                                          .budget = 0.4,
                                                          .budget_is_fraction = 1,
                                                          .sink = -1,
                                                          .scope = EVICT_SCOPE_LAYER};
/* Layers share these budgets as a pyramid. */
__attribute__((unused)) static const struct evict UNEVEN = {
    .policy = EVICT_H2O, .budget = 80, .sink = -1};
__attribute__((unused)) static const struct evict UNEVEN_TURNS = {
    .policy = EVICT_STREAMING, .budget = 60, .sink = -1};

/* A token does not see the one that has just left the window. */
__attribute__((unused)) static const struct evict GAPPED = {
    .policy = EVICT_H2O_HF, .budget = 33, .sink = -1};

static void bed_open(struct bed *b, const struct model *model, const struct evict *evict,
                     enum compute compute, const struct expect *x)
{
    static const struct job_callbacks none = {.finished = finished};
    memset(b, 0, sizeof *b);
    b->evict = *evict;
    const struct shape *s = &model->shape;
    double share[SHAPE_LAYERS_MAX];
    const int pyramid = evict == &UNEVEN || evict == &UNEVEN_TURNS;
    kv_pyramid(share, s->n_layers, pyramid ? 4 : 1);
    assert_int_equal(
        kv_kinds_make(&b->kinds, s->layer_window, s->layer_wide, share, NULL, 0, s->n_layers), 0);
    b->evict.kinds = &b->kinds;
    b->format = evict == &RINGS ? KV_MIXED : compute == COMPUTE_F32 ? KV_F32 : KV_BF16;
    b->ops = (struct ops){.isa = isa_best(), .compute = compute};
    b->device = device_cpu();
    int n = bed_random.n > 0 ? bed_random.n : N_REQUESTS;
    for (int i = 0; i < n; i++)
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
    assert_int_equal(job_open_memory(&b->job, &config, b->requests, n, &callbacks, &b->work), OK);
}

static const char *bed_drives; // folders of scratch files; NULL: temp_dir

static void bed_start(struct bed *b, const struct model *model, struct plan *plan)
{
    static const struct budget none = {-1, -1, -1};
    char why[256];
    engine_weights_info(model, b->device, b->ops.compute, &b->weights);
    engine_costs(model, b->device, &b->ops, b->format, &b->work, &b->evict, &b->costs);
    b->costs.bounce_bytes = 4 * PIECE_BYTES;
    b->costs.copies_weights = bed_drives != NULL;
    plan_derive(plan, &b->weights, &b->work);
    const struct setting set = {&b->weights, &b->work, &model->shape, &b->evict, &b->costs, NULL};
    if (plan_check(&set, plan, &none, &b->bytes, why, sizeof why) != 0) {
        print_error("plan_check: %s\n", why);
        assert_true(0);
    }
    struct engine_config config = {.plan = *plan,
                                   .set = set,
                                   .model = model,
                                   .job = b->job,
                                   .ops = b->ops,
                                   .kv_format = b->format,
                                   .io = RING_THREADS,
                                   .io_depth = 4,
                                   .device = b->device,
                                   .numa_node = -1,
                                   .offload_dir = bed_drives ? bed_drives : temp_dir,
                                   .trace_events = bed_trace_events};
    if (b->fault)
        setenv("SLUICE_FAULT", b->fault, 1);
    else
        unsetenv("SLUICE_FAULT");
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

#endif
