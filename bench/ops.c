/* bench/ops.c - `bench ops [OP] [-m MODEL]`: every op of OPS at the shapes of a model, against the
 * roof that was measured in the same process.
 *
 * Owns: the shapes, and what each op but matmul, decode (bench/ops_matmul.c) and attend_forced
 * (bench/ops_forced.c) needs in FLOPs and bytes. Refuses: checking results (ops_test). A newcomer
 * would miss: cases take turns (struct bench_turns), so rows appear in the last one; `peak` is the
 * share of the register-only rate, `roof` is the least time that FLOPs at the register-only rate or
 * bytes at the RAM rate allow, over the time taken; small operands come from caches and may show
 * more than 1. */
#include "bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/app/run.h"
#include "kernels/arena.h"
#include "offload/probe.h"

#define TOKENS    256 // rows of the row ops: a tile of the line
#define PROMPT    512 // tokens of attend_prompt's prompt, of which the last TOKENS ask
#define KEPT      128 // slots that prompt_keep keeps
#define HEAD_ROWS 64
#define PAGES     (KEPT / KV_PAGE_SLOTS)

/* Without -m. */
static const struct bench_model models[] = {
    {"smollm2-135m", 576, 9, 3, 64, 1536, HEAD_TILE, 64, 1, NORM_RMS},
    {"llama-1b", 2048, 32, 8, 64, 8192, HEAD_TILE, 64, 1, NORM_RMS},
    {"llama-3b", 3072, 24, 8, 128, 8192, HEAD_TILE, 128, 1, NORM_RMS},
};

/* What the ops of one model work on; everything but the weights. */
struct operands {
    const struct bench_model *model;
    const struct ops *ops;
    struct kv_layout layout;
    float *x, *y;                  // [max(TOKENS, PROMPT), widest]
    float *k, *v;                  // [TOKENS, n_kv_heads, head_dim]
    float *norm;                   // [dim] ones
    float *angles;                 // [TOKENS, head_dim / 2]
    float *logits;                 // [HEAD_ROWS, HEAD_TILE]
    float *scores;                 // [n_kv_heads, PROMPT]
    uint8_t *prompt;               // [PROMPT / 32 pages]
    int32_t *positions;            // [TOKENS]
    struct kv_rows row;            // that prompt_keep leaves: one of PAGES pages
    int32_t *page_ids;             // [PAGES]
    struct head_request *requests; // [HEAD_ROWS]
    struct head_result *results;   // [HEAD_ROWS]
    void *scratch;
    int64_t width; // numbers of a row of x and y
};

static int64_t scratch_bytes(const struct operands *o)
{
    const struct bench_model *m = o->model;
    int64_t a = attend_prompt_scratch_bytes(o->ops, PROMPT, m->n_heads, m->n_kv_heads, m->head_dim);
    int64_t b = prompt_keep_scratch_bytes(o->ops, PROMPT, m->n_kv_heads, m->head_dim);
    return max_i64(a, b) + 64;
}

static void operands_carve(struct operands *o, struct arena *a)
{
    const struct bench_model *m = o->model;
    int64_t kv = (int64_t)m->n_kv_heads * m->head_dim;
    o->width = max_i64(max_i64(m->ffn, m->dim), (int64_t)m->n_heads * m->head_dim);
    o->x = ARENA_ARRAY(a, float, TOKENS * o->width);
    o->y = ARENA_ARRAY(a, float, TOKENS * o->width);
    o->k = ARENA_ARRAY(a, float, TOKENS *kv);
    o->v = ARENA_ARRAY(a, float, TOKENS *kv);
    o->norm = ARENA_ARRAY(a, float, m->dim);
    o->angles = ARENA_ARRAY(a, float, TOKENS *(m->head_dim / 2));
    o->logits = ARENA_ARRAY(a, float, HEAD_ROWS *HEAD_TILE);
    o->scores = ARENA_ARRAY(a, float, m->n_kv_heads *PROMPT);
    o->prompt = arena_take(a, PROMPT / KV_PAGE_SLOTS * o->layout.page_bytes, 4096);
    o->positions = ARENA_ARRAY(a, int32_t, TOKENS);
    o->page_ids = ARENA_ARRAY(a, int32_t, PAGES);
    o->row = (struct kv_rows){.layout = o->layout,
                              .pages = arena_take(a, PAGES * o->layout.page_bytes, 4096),
                              .page_ids = o->page_ids,
                              .slot_pos = ARENA_ARRAY(a, int32_t, m->n_kv_heads * KEPT),
                              .slot_score = ARENA_ARRAY(a, float, m->n_kv_heads *KEPT),
                              .dirty = ARENA_ARRAY(a, uint64_t, 1),
                              .slots_cap = KEPT};
    o->requests = ARENA_ARRAY(a, struct head_request, HEAD_ROWS);
    o->results = ARENA_ARRAY(a, struct head_result, HEAD_ROWS);
    o->scratch = arena_take(a, scratch_bytes(o), 64);
}

static float noise(uint64_t i)
{
    return (float)(mix64(i) >> 40) * 0x1p-24f - 0.5f;
}

static void fill(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = noise((uint64_t)i);
}

static void operands_fill(struct operands *o)
{
    const struct bench_model *m = o->model;
    int64_t kv = (int64_t)m->n_kv_heads * m->head_dim;
    fill(o->x, TOKENS * o->width);
    fill(o->y, TOKENS * o->width);
    fill(o->k, TOKENS * kv);
    fill(o->v, TOKENS * kv);
    fill(o->norm, m->dim);
    for (int64_t i = 0; i < TOKENS * (m->head_dim / 2); i++)
        o->angles[i] = 0.70710678f; // cosine and sine: x turns, call after call, and stays as large
    fill(o->logits, HEAD_ROWS * HEAD_TILE);
    fill(o->scores, m->n_kv_heads * PROMPT);
    for (int i = 0; i < PROMPT; i++)
        for (int h = 0; h < m->n_kv_heads; h++)
            kv_put(&o->layout, o->prompt + i / KV_PAGE_SLOTS * o->layout.page_bytes,
                   i % KV_PAGE_SLOTS, h, o->k, o->v);
    for (int i = 0; i < PAGES; i++)
        o->page_ids[i] = i;
    for (int i = 0; i < TOKENS; i++)
        o->positions[i] = i;
}

/* ---- one case: an op with its arguments, FLOPs and bytes ---- */

struct bench_case {
    const char *op;
    char shape[64];
    double flops, bytes;
    void (*call)(struct operands *o, const void *args);
    const void *args;
};

/* Seconds of one call: the mean of a window. */
static double case_seconds(struct operands *o, const struct bench_case *b)
{
    int n = 0;
    b->call(o, b->args);
    int64_t start_ns = clock_ns(), now_ns;
    do {
        b->call(o, b->args);
        n++;
        now_ns = clock_ns();
    } while ((double)(now_ns - start_ns) < BENCH_WINDOW_S * 1e9);
    return (double)(now_ns - start_ns) * 1e-9 / n;
}

static enum err case_run(const struct bench_run *run, struct operands *o,
                         const struct bench_case *b)
{
    if (run->only && strcmp(run->only, b->op) != 0)
        return OK;
    struct bench_result result = {.op = b->op,
                                  .model = o->model->name,
                                  .shape = b->shape,
                                  .flops = b->flops,
                                  .bytes = b->bytes,
                                  .seconds = case_seconds(o, b)};
    return bench_result(run, &result);
}

#define CALL(name)                                                                                 \
    static void call_##name(struct operands *o, const void *args)                                  \
    {                                                                                              \
        ops_run_##name(o->ops, args);                                                              \
    }
CALL(gather)
CALL(compact)
CALL(norm)
CALL(rope)
CALL(silu_mul)
CALL(kv_store)
CALL(attend_prompt)
CALL(prompt_keep)
#undef CALL

/* Every call starts from nothing, as the first tile of a vocabulary does. */
static void call_head_reduce(struct operands *o, const void *args)
{
    for (int i = 0; i < HEAD_ROWS; i++)
        head_start(&o->results[i]);
    ops_run_head_reduce(o->ops, args);
}

static enum err bench_rows(const struct bench_run *run, struct operands *o)
{
    const struct bench_model *m = o->model;
    int64_t heads = (int64_t)m->n_heads * m->head_dim, kv = (int64_t)m->n_kv_heads * m->head_dim;
    struct norm_args norm = {o->x,   o->y,   o->norm, NULL,         TOKENS,
                             m->dim, m->dim, m->dim,  m->norm_kind, 1e-5f};
    struct rope_args rope = {o->x,       o->angles,   o->angles,   o->positions, TOKENS,
                             m->n_heads, m->head_dim, m->rope_dim, heads};
    struct silu_mul_args silu = {o->x, o->y, TOKENS, m->ffn, m->ffn, m->ffn};
    struct kv_store_args store = {o->layout, o->prompt, o->k, o->v, kv, kv, 0, TOKENS};
    int64_t offsets[TOKENS]; // rows of bf16, from the last to the first
    int32_t from[TOKENS / 2];
    for (int i = 0; i < TOKENS; i++)
        offsets[i] = (int64_t)(TOKENS - 1 - i) * m->dim * 2;
    for (int i = 0; i < TOKENS / 2; i++)
        from[i] = 2 * i;
    struct gather_args gather = {.dtype = DTYPE_BF16,
                                 .k = m->dim,
                                 .rows = o->y,
                                 .offsets = offsets,
                                 .x = o->x,
                                 .x_stride = m->dim,
                                 .n = TOKENS};
    struct compact_args compact = {.x = o->x, .from = from, .n = TOKENS / 2, .dim = m->dim};
    struct bench_case cases[] = {
        {.op = "gather", .bytes = 6.0 * TOKENS * m->dim, .call = call_gather, .args = &gather},
        {.op = "compact", .bytes = 4.0 * TOKENS * m->dim, .call = call_compact, .args = &compact},
        {.op = "norm",
         .flops = 4.0 * TOKENS * m->dim,
         .bytes = 8.0 * TOKENS * m->dim,
         .call = call_norm,
         .args = &norm},
        {.op = "rope",
         .flops = 3.0 * TOKENS * m->n_heads * m->rope_dim,
         .bytes = 8.0 * TOKENS * m->n_heads * m->rope_dim,
         .call = call_rope,
         .args = &rope},
        {.op = "silu_mul",
         .flops = 12.0 * TOKENS * m->ffn,
         .bytes = 12.0 * TOKENS * m->ffn,
         .call = call_silu_mul,
         .args = &silu},
        {.op = "kv_store",
         .bytes = 12.0 * TOKENS * (double)kv,
         .call = call_kv_store,
         .args = &store},
    };
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        if ((cases[i].args == &rope && m->rope_dim == 0) || (cases[i].args == &silu && !m->gated))
            continue;                                   // the model has no such op
        for (int64_t j = 0; j < TOKENS * m->ffn; j++) { // silu(x) * y = x: it never gets denormal
            o->x[j] = -0.5f - 0.5f * noise((uint64_t)j);
            o->y[j] = 1 + expf(-o->x[j]);
        }
        snprintf(cases[i].shape, sizeof cases[i].shape, "%d tokens", TOKENS);
        TRY(case_run(run, o, &cases[i]));
    }
    return OK;
}

static enum err bench_attend_prompt(const struct bench_run *run, struct operands *o)
{
    const struct bench_model *m = o->model;
    int64_t heads = (int64_t)m->n_heads * m->head_dim;
    struct prompt_span span = {.n_prompt = PROMPT, .first = PROMPT - TOKENS, .n = TOKENS};
    struct attend_prompt_args args = {.layout = o->layout,
                                      .q = o->x,
                                      .out = o->y,
                                      .pages = o->prompt,
                                      .spans = &span,
                                      .n_spans = 1,
                                      .n_heads = m->n_heads,
                                      .n_max = TOKENS,
                                      .end_max = PROMPT,
                                      .scale = 0.125f,
                                      .q_stride = heads,
                                      .out_stride = heads,
                                      .scratch = o->scratch};
    double pairs = (double)TOKENS * (PROMPT - TOKENS / 2.0);
    for (int scores = 0; scores < 2; scores++) {
        args.scores = scores ? o->scores : NULL;
        struct bench_case b = {.op = "attend_prompt",
                               .flops = 4 * pairs * (double)heads,
                               .bytes = 8.0 * TOKENS * (double)heads,
                               .call = call_attend_prompt,
                               .args = &args};
        snprintf(b.shape, sizeof b.shape, "%d of %d%s", TOKENS, PROMPT, scores ? " scores" : "");
        TRY(case_run(run, o, &b));
    }
    return OK;
}

static enum err bench_attend_forced(const struct bench_run *run, const struct operands *o)
{
    const struct bench_model *m = o->model;
    if (run->only && strcmp(run->only, "attend_forced") != 0)
        return OK;
    return bench_forced(&(struct bench_forced){.run = run,
                                               .ops = o->ops,
                                               .model = m->name,
                                               .n_heads = m->n_heads,
                                               .n_kv_heads = m->n_kv_heads,
                                               .head_dim = m->head_dim});
}

static enum err bench_keep_and_head(const struct bench_run *run, struct operands *o)
{
    const struct bench_model *m = o->model;
    struct prompt_keep_args keep = {.from = o->layout,
                                    .pages = o->prompt,
                                    .scores = o->scores,
                                    .kv = o->row,
                                    .evict = {.policy = EVICT_H2O},
                                    .limits = {.budget = KEPT, .recent = KEPT / 2},
                                    .n_prompt = PROMPT,
                                    .scratch = o->scratch};
    struct bench_case b = {.op = "prompt_keep", .call = call_prompt_keep, .args = &keep};
    b.bytes = 8.0 * KEPT * m->n_kv_heads * m->head_dim * (o->layout.format == KV_F32 ? 2 : 1);
    snprintf(b.shape, sizeof b.shape, "%d of %d", KEPT, PROMPT);
    TRY(case_run(run, o, &b));
    struct head_reduce_args head = {.logits = o->logits,
                                    .stride = HEAD_TILE,
                                    .requests = o->requests,
                                    .results = o->results,
                                    .m = HEAD_ROWS,
                                    .n = HEAD_TILE};
    static const struct {
        const char *name;
        int want;
        float temperature;
    } wants[] = {{"greedy", HEAD_SAMPLE, 0}, {"sample", HEAD_SAMPLE, 1}, {"score", HEAD_SCORE, 0}};
    for (int w = 0; w < 3; w++) {
        for (int i = 0; i < HEAD_ROWS; i++)
            o->requests[i] = (struct head_request){
                .want = wants[w].want, .target = i, .temperature = wants[w].temperature};
        struct bench_case h = {.op = "head_reduce",
                               .bytes = 4.0 * HEAD_ROWS * HEAD_TILE,
                               .call = call_head_reduce,
                               .args = &head};
        snprintf(h.shape, sizeof h.shape, "%d x %d %s", HEAD_ROWS, HEAD_TILE, wants[w].name);
        TRY(case_run(run, o, &h));
    }
    return OK;
}

/* ---- models ---- */

static enum err bench_model_run(const struct bench_run *run, const struct ops *ops,
                                const struct bench_model *model)
{
    struct operands o = {.model = model, .ops = ops};
    struct arena arena;
    kv_layout_init(&o.layout, ops->compute == COMPUTE_F32 ? KV_F32 : KV_BF16, model->n_kv_heads,
                   model->head_dim);
    arena_init(&arena);
    operands_carve(&o, &arena);
    TRY(arena_open(&arena, arena.used));
    operands_carve(&o, &arena);
    operands_fill(&o);
    enum err err = bench_matmuls(run, ops, model);
    if (err == OK)
        err = bench_decode(run, ops, model);
    if (err == OK)
        err = bench_rows(run, &o);
    if (err == OK)
        err = bench_attend_prompt(run, &o);
    if (err == OK)
        err = bench_attend_forced(run, &o);
    if (err == OK)
        err = bench_keep_and_head(run, &o);
    arena_close(&arena);
    return err;
}

static enum err check_only(const char *only)
{
#define OP_NAME(name) #name,
    static const char *const names[] = {OPS(OP_NAME)};
#undef OP_NAME
    for (int i = 0; only && i < (int)(sizeof names / sizeof names[0]); i++)
        if (strcmp(only, names[i]) == 0)
            return OK;
    return only ? fail(ERR_USAGE, "bench ops: '%s' is no op", only) : OK;
}

/* The shape of -m; the head counts with one of its tiles. */
static enum err model_read(struct bench_model *m, const struct config *c)
{
    struct opened o;
    struct config any = *c;
    any.weights = "auto";
    enum err err = opened_open(&o, &any);
    if (err == OK) {
        const struct shape *s = &o.model.shape;
        *m = (struct bench_model){.dim = s->dim,
                                  .n_heads = s->n_heads,
                                  .n_kv_heads = s->n_kv_heads,
                                  .head_dim = s->head_dim,
                                  .ffn = s->ffn_dim,
                                  .head = (int)min_i64(s->vocab, HEAD_TILE),
                                  .rope_dim = s->rope_dim,
                                  .gated = s->act == ACT_SILU_GATED,
                                  .norm_kind = s->norm};
        snprintf(m->name, sizeof m->name, "%.*s", (int)sizeof m->name - 1, o.model.name);
    }
    opened_close(&o);
    return err;
}

static enum err run_models(const struct bench_run *run, const struct config *c,
                           const struct ops *ops)
{
    const struct bench_model *list = models;
    struct bench_turns *t = run->turns;
    struct bench_model one;
    int n = sizeof models / sizeof models[0];
    if (c->model) {
        TRY(model_read(&one, c));
        list = &one;
        n = 1;
    }
    for (t->turn = 0; t->turn < t->n_turns; t->turn++) {
        log_line(LOG_INFO, "bench ops: turn %d of %d", t->turn + 1, t->n_turns);
        t->at = 0;
        for (int i = 0; i < n; i++)
            TRY(bench_model_run(run, ops, &list[i]));
    }
    return OK;
}

static enum err turns_open(struct bench_turns *t, int n_turns)
{
    *t = (struct bench_turns){.n_turns = n_turns};
    t->seconds = calloc((size_t)BENCH_CASES_MAX * (size_t)n_turns, sizeof *t->seconds);
    t->least_s = calloc((size_t)BENCH_CASES_MAX * (size_t)n_turns, sizeof *t->least_s);
    return t->seconds && t->least_s ? OK : fail(ERR_FIT, "memory: figures of the benchmark");
}

static void turns_close(struct bench_turns *t)
{
    free(t->seconds);
    free(t->least_s);
}

/* Looks at the machine and measures its roofs; the head of the table tells. */
static enum err setup(struct compute_setup *s, struct bench_roof *roof, struct bench_table *t,
                      const struct config *c)
{
    TRY(compute_open(s, c, NULL));
    TRY(probe_ram(s->ops.pool, 256 << 20, 0.5, &roof->ram));
    roof->flops = bench_peak_flops(&s->ops, 0.5);
    log_line(LOG_INFO, "bench ops: %s, %d threads; roof %.0f GFLOP/s, RAM %.1f GB/s",
             isa_name(s->ops.isa), pool_threads(s->ops.pool), roof->flops * 1e-9, roof->ram * 1e-9);
    bench_table_note(t, "cpu", json_string(s->info.cpu_name));
    bench_table_note(t, "isa", json_string(isa_name(s->ops.isa)));
    bench_table_note(t, "threads", json_integer(pool_threads(s->ops.pool)));
    bench_table_note(t, "compute", json_string(c->compute));
    bench_table_note(t, "roof_gflop_s", json_real(roof->flops * 1e-9));
    bench_table_note(t, "roof_ram_gb_s", json_real(roof->ram * 1e-9));
    return OK;
}

enum err bench_ops(const struct config *c)
{
    struct compute_setup s = {0};
    struct bench_table t;
    struct bench_roof roof;
    const char *only = c->n_args > 1 ? c->args[1] : NULL;
    TRY(check_only(only));
    bench_table_open(&t, c); // before the threads, which bind this one to a core
    enum err err = setup(&s, &roof, &t, c);
    struct bench_turns turns = {0};
    struct bench_run run = {&t, &turns, &roof, only};
    if (err == OK)
        err = turns_open(&turns, bench_runs(c));
    if (err == OK)
        err = run_models(&run, c, &s.ops);
    turns_close(&turns);
    compute_close(&s);
    enum err closed = bench_table_close(&t);
    return err != OK ? err : closed;
}
