/* bench/ops.c - `bench ops [OP] [-m MODEL]`: every op of OPS at the shapes of a model, compared
 * with the roof measured in the same process; on this CPU, or on the device of --device.
 *
 * Owns: the shapes, and the FLOPs and bytes of each op except matmul, decode (bench/ops_matmul.c,
 * bench/ops_device.c) and attend_forced (bench/ops_forced*.c). Refuses: checking results
 * (ops_test). Note: cases take turns (struct bench_turns), so rows are printed in the last turn.
 * `peak` is the share of the register-only rate. `roof` is the least time at the register-only rate
 * of FLOPs or the RAM rate of bytes, over the time taken; small operands come from caches and may
 * exceed 1. */
#include "bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/device.h"
#include "engine/cli/commands.h"
#include "offload/probe.h"

struct sizes {
    int tokens;    // rows of the row ops
    int prompt;    // tokens of attend_prompt's prompt; the last ones are queries
    int kept;      // slots kept by prompt_keep
    int head_rows; // rows of logits
};
static const struct sizes cpu_sizes = {256, 512, 128, 64}; // 256: a tile of the line
/* Large enough for the device's memory instead of its caches; halved until operands fit. */
static const struct sizes device_sizes = {2048, 2048, 512, 256};
#define TOKENS_LEAST 128 // the kept slots are then one page
/* Experts for models without experts, with few outputs, so that they need little device memory. */
#define EXPERTS      8
#define EXPERTS_USED 2
#define EXPERT_MOST  128 // outputs per expert
/* States of one head, of the size that published models have. */
#define STATE_DIM    128
#define STATE_QKV    (3 * STATE_DIM)
#define STATE_TAPS   4
#define STATE_TOKENS 16 // of the row ops per row that has a state

/* The models without -m. */
static const struct bench_model models[] = {
    {"smollm2-135m", 576, 9, 3, 64, 1536, HEAD_TILE, 64, 1, NORM_RMS},
    {"llama-1b", 2048, 32, 8, 64, 8192, HEAD_TILE, 64, 1, NORM_RMS},
    {"llama-3b", 3072, 24, 8, 128, 8192, HEAD_TILE, 128, 1, NORM_RMS},
};

/* Operands of the ops of one model, except weights. */
struct operands {
    const struct bench_model *model;
    const struct ops *ops;
    const struct operands
        *image; // filled by the host in RAM; this struct itself, except on a device
    struct bench_memory *memory; // borrowed
    struct sizes n;
    struct kv_layout layout;
    float *x, *y;                  // [tokens, widest]
    float *k, *v;                  // [tokens, n_kv_heads, head_dim]
    float *norm;                   // [dim] ones
    float *angles;                 // [tokens, head_dim / 2]
    float *logits;                 // [head_rows, HEAD_TILE]
    float *scores;                 // [n_kv_heads, prompt]
    uint8_t *prompt;               // [prompt / 32 pages]
    int32_t *positions;            // [tokens]
    int64_t *offsets;              // [tokens] of rows of bf16, in reverse order
    int32_t *from;                 // [tokens / 2] every other row
    struct prompt_span *span;      // the last `tokens` of the prompt
    struct kv_rows row;            // result of prompt_keep, with kept / 32 pages
    int32_t *page_ids;             // [kept / 32]
    struct head_request *requests; // [head_rows]
    struct head_result *results;   // [head_rows]
    void *scratch;
    int64_t width; // numbers of a row of x and y
    struct weight experts;
    struct route route; // of the tokens
    /* Of conv and recur: q, k and v, outputs, step and beta [tokens]; states; spans of one token of
     * each row, and of two times STATE_TOKENS tokens of every second one. */
    float *state_qkv, *state_out, *state_gates, *state_weights;
    uint8_t *states;
    struct state_span *decode, *prefill;
};

static int64_t state_stride(void)
{
    return round_up((STATE_DIM * STATE_DIM + (STATE_TAPS - 1) * STATE_QKV) * 4, 64);
}

static int64_t scratch_bytes(const struct operands *o)
{
    const struct bench_model *m = o->model;
    const struct bench_device *d = o->memory->device;
    const struct device_scratch *s = (d ? d->device : device_cpu())->api->scratch;
    int64_t a = s->attend_prompt(o->ops, o->n.prompt, m->n_heads, m->n_kv_heads, m->head_dim);
    int64_t b = s->prompt_keep(o->ops, o->n.prompt, m->n_kv_heads, m->head_dim);
    int64_t c = s->expert_matmul(o->ops, o->n.tokens, EXPERTS_USED, EXPERT_MOST, m->dim);
    return max_i64(max_i64(a, b), c) + 64;
}

static void experts_carve(struct operands *o, struct arena *a)
{
    const struct bench_device *d = o->memory->device;
    struct device *device = d ? d->device : device_cpu();
    const struct weight_form form = device->api->reads(device, o->ops->compute, DTYPE_BF16);
    const int n = (int)max_i64(min_i64(o->model->ffn / EXPERTS, EXPERT_MOST) / PANEL_ROWS, 1);
    struct weight *w = &o->experts;
    *w = (struct weight){.dtype = form.dtype,
                         .n = n * PANEL_ROWS * EXPERTS,
                         .k = o->model->dim,
                         .layout = form.layout};
    w->panels = arena_take(a, weight_bytes(w->layout, w->dtype, w->n, w->k), 64);
    void *route = arena_take(a, route_bytes(o->n.tokens, EXPERTS, EXPERTS_USED), 64);
    if (route)
        o->route = route_at(route, o->n.tokens, EXPERTS, EXPERTS_USED);
}

static void states_carve(struct operands *o, struct arena *a)
{
    const int64_t tokens = o->n.tokens, rows = tokens / STATE_TOKENS;
    o->state_qkv = ARENA_ARRAY(a, float, tokens *STATE_QKV);
    o->state_out = ARENA_ARRAY(a, float, tokens *STATE_DIM);
    o->state_gates = ARENA_ARRAY(a, float, tokens + 2);
    o->state_weights = ARENA_ARRAY(a, float, STATE_QKV *STATE_TAPS);
    o->states = arena_take(a, rows * state_stride(), 64);
    o->decode = ARENA_ARRAY(a, struct state_span, rows);
    o->prefill = ARENA_ARRAY(a, struct state_span, rows / 2);
}

static void operands_carve(struct operands *o, struct arena *a)
{
    const struct bench_model *m = o->model;
    const int pages = o->n.kept / PAGE_SLOTS;
    int64_t tokens = o->n.tokens, kv = (int64_t)m->n_kv_heads * m->head_dim;
    o->width = max_i64(max_i64(m->ffn, m->dim), (int64_t)m->n_heads * m->head_dim);
    o->x = ARENA_ARRAY(a, float, tokens * o->width);
    o->y = ARENA_ARRAY(a, float, tokens * o->width);
    o->k = ARENA_ARRAY(a, float, tokens *kv);
    o->v = ARENA_ARRAY(a, float, tokens *kv);
    o->norm = ARENA_ARRAY(a, float, m->dim);
    o->angles = ARENA_ARRAY(a, float, tokens *(m->head_dim / 2));
    o->logits = ARENA_ARRAY(a, float, o->n.head_rows *HEAD_TILE);
    o->scores = ARENA_ARRAY(a, float, m->n_kv_heads * o->n.prompt);
    o->prompt = arena_take(a, o->n.prompt / PAGE_SLOTS * o->layout.page_bytes, 4096);
    o->positions = ARENA_ARRAY(a, int32_t, tokens);
    o->page_ids = ARENA_ARRAY(a, int32_t, pages);
    o->row = (struct kv_rows){.layout = o->layout,
                              .pages = arena_take(a, pages * o->layout.page_bytes, 4096),
                              .page_ids = o->page_ids,
                              .slot_pos = ARENA_ARRAY(a, int32_t, m->n_kv_heads * o->n.kept),
                              .slot_score = ARENA_ARRAY(a, float, m->n_kv_heads * o->n.kept),
                              .dirty = ARENA_ARRAY(a, uint64_t, 1),
                              .slots_cap = o->n.kept};
    o->requests = ARENA_ARRAY(a, struct head_request, o->n.head_rows);
    o->results = ARENA_ARRAY(a, struct head_result, o->n.head_rows);
    o->offsets = ARENA_ARRAY(a, int64_t, tokens);
    o->from = ARENA_ARRAY(a, int32_t, tokens / 2);
    o->span = ARENA_ARRAY(a, struct prompt_span, 1);
    experts_carve(o, a);
    states_carve(o, a);
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

/* Taps that change nothing, so that x keeps its size; a decay, then a bias of the step. */
static void states_fill(struct operands *o)
{
    const int n = o->n.tokens, rows = n / STATE_TOKENS;
    fill(o->state_qkv, (int64_t)n * STATE_QKV);
    fill(o->state_gates, n);
    o->state_gates[n] = -0.1f;
    o->state_gates[n + 1] = 0.1f;
    for (int i = 0; i < STATE_QKV * STATE_TAPS; i++)
        o->state_weights[i] = i % STATE_TAPS == STATE_TAPS - 1;
    memset(o->states, 0, (size_t)(rows * state_stride()));
    for (int i = 0; i < rows; i++)
        o->decode[i] = (struct state_span){.row = i, .token = i, .n = 1};
    for (int i = 0; i < rows / 2; i++)
        o->prefill[i] =
            (struct state_span){.row = i, .token = i * 2 * STATE_TOKENS, .n = 2 * STATE_TOKENS};
}

static void operands_fill(struct operands *o)
{
    const struct bench_model *m = o->model;
    const int n = o->n.tokens;
    int64_t kv = (int64_t)m->n_kv_heads * m->head_dim;
    fill(o->x, n * o->width);
    fill(o->y, n * o->width);
    fill(o->k, n * kv);
    fill(o->v, n * kv);
    fill(o->norm, m->dim);
    for (int64_t i = 0; i < (int64_t)n * (m->head_dim / 2); i++)
        o->angles[i] = 0.70710678f; // cosine and sine: repeated rotation of x keeps its size
    fill(o->logits, o->n.head_rows * HEAD_TILE);
    fill(o->scores, m->n_kv_heads * o->n.prompt);
    for (int i = 0; i < o->n.prompt; i++)
        for (int h = 0; h < m->n_kv_heads; h++)
            kv_put(&o->layout, o->prompt + i / PAGE_SLOTS * o->layout.page_bytes, i % PAGE_SLOTS, h,
                   o->k, o->v);
    for (int i = 0; i < o->n.kept / PAGE_SLOTS; i++)
        o->page_ids[i] = i;
    for (int i = 0; i < n; i++) {
        o->positions[i] = i;
        o->offsets[i] = (int64_t)(n - 1 - i) * m->dim * 2;
    }
    for (int i = 0; i < n / 2; i++)
        o->from[i] = 2 * i;
    memset((void *)(uintptr_t)o->experts.panels, 0x3c, // about 0.01 in any float format
           (size_t)weight_bytes(o->experts.layout, o->experts.dtype, o->experts.n, o->experts.k));
    states_fill(o);
    *o->span = (struct prompt_span){.n_prompt = o->n.prompt, .first = o->n.prompt - n, .n = n};
}

/* ---- one case: an op with its arguments, FLOPs and bytes ---- */

struct bench_case {
    const char *op;
    char shape[64];
    double flops, bytes;
    void (*call)(struct operands *o, const void *args);
    const void *args;
};

struct case_call {
    struct operands *o;
    const struct bench_case *b;
};

static void case_call(void *ctx)
{
    const struct case_call *c = ctx;
    c->b->call(c->o, c->b->args);
}

/* Seconds per call: the mean of a window. */
static enum err case_seconds(struct operands *o, const struct bench_case *b, double *seconds)
{
    int n = 0;
    if (o->memory->device)
        return bench_device_seconds(o->memory->device, case_call, &(struct case_call){o, b},
                                    seconds);
    b->call(o, b->args);
    int64_t start_ns = clock_ns(), now_ns;
    do {
        b->call(o, b->args);
        n++;
        now_ns = clock_ns();
    } while ((double)(now_ns - start_ns) < BENCH_WINDOW_S * 1e9);
    *seconds = (double)(now_ns - start_ns) * 1e-9 / n;
    return OK;
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
                                  .bytes = b->bytes};
    TRY(case_seconds(o, b, &result.seconds));
    return bench_result(run, &result);
}

#define CALL(name)                                                                                 \
    static void call_##name(struct operands *o, const void *args)                                  \
    {                                                                                              \
        ops_run_##name(o->ops, args);                                                              \
    }
CALL(gather)
CALL(compact)
CALL(cast)
CALL(norm)
CALL(rope)
CALL(rotate)
CALL(gate_mul)
CALL(mix)
CALL(route)
CALL(expert_matmul)
CALL(expert_sum)
CALL(kv_store)
CALL(attend_prompt)
CALL(prompt_keep)
CALL(conv)
CALL(recur)
#undef CALL

/* On the CPU every call starts from nothing, like the first tile of a vocabulary; on a device a
 * call continues the last one, like other tiles. */
static void call_head_reduce(struct operands *o, const void *args)
{
    for (int i = 0; i < o->n.head_rows && o->image == o; i++)
        head_start(&o->results[i]);
    ops_run_head_reduce(o->ops, args);
}

/* Resets x and y before a case; on a device by a copy from the host. */
static enum err rows_fill(struct operands *o, int first)
{
    const struct operands *image = o->image;
    const int64_t n = (int64_t)o->n.tokens * o->model->ffn;
    for (int64_t i = 0; i < n && (first || image == o); i++) {
        image->x[i] = -0.5f - 0.5f * noise((uint64_t)i);
        image->y[i] = 1 + expf(-image->x[i]); // silu(x) * y = x: x never becomes denormal
    }
    return bench_memory_send(o->memory);
}

static enum err bench_rows(const struct bench_run *run, struct operands *o)
{
    const struct bench_model *m = o->model;
    const int n = o->n.tokens;
    int64_t heads = (int64_t)m->n_heads * m->head_dim, kv = (int64_t)m->n_kv_heads * m->head_dim;
    struct norm_args norm = {o->x,   o->y,   o->norm, NULL,         n,
                             m->dim, m->dim, m->dim,  m->norm_kind, 1e-5f};
    struct rope_args rope = {o->x, o->angles,  o->angles,   NULL,        o->positions,
                             n,    m->n_heads, m->head_dim, m->rope_dim, heads};
    struct kv_layout codes;
    kv_layout_init(&codes, KV_Q4, m->n_kv_heads, m->head_dim);
    struct rotate_args rotate = {o->x, n, (int)heads, kv_rotation(&codes), heads};
    struct mix_args mix = {o->x, o->y, n, m->dim, m->dim, m->dim, 0.5f, 0.25f, 0};
    struct gate_mul_args silu = {o->x, o->y, n, m->ffn, m->ffn, m->ffn, ACT_SILU, 0, {0}};
    struct kv_store_args store = {o->layout, o->prompt, o->k, o->v, kv, kv, 0, n};
    struct gather_args gather = {.dtype = DTYPE_BF16,
                                 .k = m->dim,
                                 .rows = o->y,
                                 .offsets = o->offsets,
                                 .x = o->x,
                                 .x_stride = m->dim,
                                 .n = n};
    struct compact_args compact = {.x = o->x, .from = o->from, .n = n / 2, .dim = m->dim};
    struct cast_args cast = {.from = o->x, .to = o->y, .n = (int64_t)n * m->dim};
    struct bench_case cases[] = {
        {.op = "gather", .bytes = 6.0 * n * m->dim, .call = call_gather, .args = &gather},
        {.op = "compact", .bytes = 4.0 * n * m->dim, .call = call_compact, .args = &compact},
        {.op = "cast", .bytes = 6.0 * n * m->dim, .call = call_cast, .args = &cast},
        {.op = "norm",
         .flops = 4.0 * n * m->dim,
         .bytes = 8.0 * n * m->dim,
         .call = call_norm,
         .args = &norm},
        {.op = "rope",
         .flops = 3.0 * n * m->n_heads * m->rope_dim,
         .bytes = 8.0 * n * m->n_heads * m->rope_dim,
         .call = call_rope,
         .args = &rope},
        {.op = "rotate",
         .flops = (log2(rotate.block) + 1) * n * rotate.n,
         .bytes = 8.0 * n * rotate.n,
         .call = call_rotate,
         .args = &rotate},
        {.op = "gate_mul",
         .flops = 12.0 * n * m->ffn,
         .bytes = 12.0 * n * m->ffn,
         .call = call_gate_mul,
         .args = &silu},
        {.op = "mix",
         .flops = 3.0 * n * m->dim,
         .bytes = 12.0 * n * m->dim,
         .call = call_mix,
         .args = &mix},
        {.op = "kv_store", .bytes = 12.0 * n * (double)kv, .call = call_kv_store, .args = &store},
    };
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        if ((cases[i].args == &rope && m->rope_dim == 0) ||
            (cases[i].args == &rotate && rotate.block == 0) ||
            (cases[i].args == &silu && !m->gated))
            continue; // the model lacks this op
        TRY(rows_fill(o, i == 0));
        snprintf(cases[i].shape, sizeof cases[i].shape, "%d tokens", n);
        TRY(case_run(run, o, &cases[i]));
    }
    return OK;
}

/* Ops of EXPERTS: the router, one matrix per expert, and their sum. */
static enum err bench_experts(const struct bench_run *run, struct operands *o)
{
    const struct bench_model *m = o->model;
    const struct weight *w = &o->experts;
    const int n = o->n.tokens, pairs = n * EXPERTS_USED, each = w->n / EXPERTS;
    const int sums = (int)min_i64(m->dim, o->width / EXPERTS_USED); // y holds EXPERTS_USED of them
    struct route_args route = {
        .logits = o->x, .logits_stride = m->dim, .to = o->route, .m = n, .alone = 1};
    struct expert_matmul_args matmul = {
        .matmul = {.x = o->x,
                   .m = n,
                   .x_stride = m->dim,
                   .parts = {{.w = *w, .y = o->y, .y_stride = each}},
                   .n_parts = 1,
                   .scratch = o->scratch},
        .route = o->route,
        .by_token = 1};
    struct expert_sum_args sum = {.x = o->x,
                                  .y = o->y,
                                  .route = o->route,
                                  .m = n,
                                  .n = sums,
                                  .x_stride = m->dim,
                                  .y_stride = sums};
    struct bench_case cases[] = {
        {.op = "route", .bytes = 4.0 * n * EXPERTS, .call = call_route, .args = &route},
        {.op = "expert_matmul",
         .flops = 2.0 * pairs * each * m->dim,
         .bytes = (double)weight_bytes(w->layout, w->dtype, w->n, w->k) + 4.0 * n * m->dim +
                  4.0 * pairs * each,
         .call = call_expert_matmul,
         .args = &matmul},
        {.op = "expert_sum",
         .flops = 2.0 * pairs * sums,
         .bytes = 4.0 * (n + pairs) * sums,
         .call = call_expert_sum,
         .args = &sum},
    };
    TRY(rows_fill(o, 1));
    ops_run_route(o->ops, &route);
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        snprintf(cases[i].shape, sizeof cases[i].shape, "%d tokens, %d of %d x %d", n, EXPERTS_USED,
                 EXPERTS, each);
        TRY(case_run(run, o, &cases[i]));
    }
    return OK;
}

/* Decode, which reads and writes a state per token, and prompts, which do so once a span. */
static enum err bench_states(const struct bench_run *run, struct operands *o)
{
    const int n = o->n.tokens, all = n / STATE_TOKENS;
    for (int prompts = 0; prompts < 2; prompts++) {
        const int rows = prompts ? all / 2 : all, each = prompts ? 2 * STATE_TOKENS : 1;
        const int tokens = rows * each;
        const double numbers = (double)tokens * STATE_QKV, state = STATE_DIM * STATE_DIM;
        const struct state_rows of = {.base = o->states,
                                      .stride = state_stride(),
                                      .spans = prompts ? o->prefill : o->decode,
                                      .n_spans = rows};
        struct conv_args conv = {.x = o->state_qkv,
                                 .weight = o->state_weights,
                                 .x_stride = STATE_QKV,
                                 .n = STATE_QKV,
                                 .taps = STATE_TAPS,
                                 .act = ACT_NONE,
                                 .rows = of,
                                 .offset = STATE_DIM * STATE_DIM * 4};
        struct recur_args recur = {.q = o->state_qkv,
                                   .k = o->state_qkv + STATE_DIM,
                                   .v = o->state_qkv + 2 * STATE_DIM,
                                   .dt = o->state_gates,
                                   .beta = o->state_gates,
                                   .a = o->state_gates + n,
                                   .dt_bias = o->state_gates + n + 1,
                                   .out = o->state_out,
                                   .qkv_stride = STATE_QKV,
                                   .dt_stride = 1,
                                   .beta_stride = 1,
                                   .out_stride = STATE_DIM,
                                   .k_heads = 1,
                                   .v_heads = 1,
                                   .k_dim = STATE_DIM,
                                   .v_dim = STATE_DIM,
                                   .corrects = 1,
                                   .unit_eps = 1e-6f,
                                   .q_scale = 0.088f,
                                   .rows = of};
        struct bench_case cases[] = {{.op = "conv",
                                      .flops = 2.0 * STATE_TAPS * numbers,
                                      .bytes = 8 * numbers,
                                      .call = call_conv,
                                      .args = &conv},
                                     {.op = "recur",
                                      .flops = 8.0 * tokens * state,
                                      .bytes = 8.0 * rows * state + 4 * numbers,
                                      .call = call_recur,
                                      .args = &recur}};
        for (int i = 0; i < 2; i++) {
            snprintf(cases[i].shape, sizeof cases[i].shape, "%d rows of %d, %d x %d", rows, each,
                     STATE_DIM, STATE_DIM);
            TRY(case_run(run, o, &cases[i]));
        }
    }
    return OK;
}

static enum err bench_attend_prompt(const struct bench_run *run, struct operands *o)
{
    const struct bench_model *m = o->model;
    const int n = o->n.tokens, n_prompt = o->n.prompt;
    int64_t heads = (int64_t)m->n_heads * m->head_dim;
    struct attend_prompt_args args = {.layout = o->layout,
                                      .q = o->x,
                                      .out = o->y,
                                      .pages = o->prompt,
                                      .spans = o->span,
                                      .n_spans = 1,
                                      .n_heads = m->n_heads,
                                      .n_max = n,
                                      .end_max = n_prompt,
                                      .scale = 0.125f,
                                      .q_stride = heads,
                                      .out_stride = heads,
                                      .scratch = o->scratch};
    double pairs = (double)n * (n_prompt - n / 2.0);
    for (int scores = 0; scores < 2; scores++) {
        args.scores = scores ? o->scores : NULL;
        args.policy = EVICT_H2O;
        struct bench_case b = {.op = "attend_prompt",
                               .flops = 4 * pairs * (double)heads,
                               .bytes = 8.0 * n * (double)heads,
                               .call = call_attend_prompt,
                               .args = &args};
        snprintf(b.shape, sizeof b.shape, "%d of %d%s", n, n_prompt, scores ? " scores" : "");
        TRY(case_run(run, o, &b));
    }
    return OK;
}

static enum err bench_attend_forced(const struct bench_run *run, const struct operands *o)
{
    const struct bench_model *m = o->model;
    if (run->device || (run->only && strcmp(run->only, "attend_forced") != 0))
        return OK; // on a device: bench_device_forced, with all of its memory
    return bench_forced(run, o->ops, m);
}

static enum err bench_keep_and_head(const struct bench_run *run, struct operands *o)
{
    const struct bench_model *m = o->model;
    const int kept = o->n.kept, rows = o->n.head_rows;
    struct prompt_keep_args keep = {.from = o->layout,
                                    .pages = o->prompt,
                                    .scores = o->scores,
                                    .kv = o->row,
                                    .evict = {.policy = EVICT_H2O},
                                    .limits = {.budget = kept, .recent = kept / 2},
                                    .n_prompt = o->n.prompt,
                                    .scratch = o->scratch};
    struct bench_case b = {.op = "prompt_keep", .call = call_prompt_keep, .args = &keep};
    b.bytes = 8.0 * kept * m->n_kv_heads * m->head_dim * (o->layout.format == KV_F32 ? 2 : 1);
    snprintf(b.shape, sizeof b.shape, "%d of %d", kept, o->n.prompt);
    TRY(case_run(run, o, &b));
    struct head_reduce_args head = {.logits = o->logits,
                                    .stride = HEAD_TILE,
                                    .requests = o->requests,
                                    .results = o->results,
                                    .m = rows,
                                    .n = HEAD_TILE};
    static const struct {
        const char *name;
        int want;
        float temperature;
    } wants[] = {{"greedy", HEAD_SAMPLE, 0}, {"sample", HEAD_SAMPLE, 1}, {"score", HEAD_SCORE, 0}};
    for (int w = 0; w < 3; w++) {
        for (int i = 0; i < rows; i++) {
            o->image->requests[i] = (struct head_request){
                .want = wants[w].want, .target = i, .temperature = wants[w].temperature};
            head_start(&o->image->results[i]);
        }
        TRY(bench_memory_send(o->memory));
        struct bench_case h = {.op = "head_reduce",
                               .bytes = 4.0 * rows * HEAD_TILE,
                               .call = call_head_reduce,
                               .args = &head};
        snprintf(h.shape, sizeof h.shape, "%d x %d %s", rows, HEAD_TILE, wants[w].name);
        TRY(case_run(run, o, &h));
    }
    return OK;
}

/* ---- models ---- */

/* All ops except those that read weights. */
static enum err operands_run(const struct bench_run *run, struct operands *image)
{
    struct operands o;
    operands_carve(image, &image->memory->host);
    operands_fill(image);
    o = *image;
    operands_carve(&o, &image->memory->near);
    o.image = run->device ? image : &o;
    TRY(bench_memory_send(o.memory));
    TRY(bench_rows(run, &o));
    TRY(bench_experts(run, &o));
    TRY(bench_states(run, &o));
    TRY(bench_attend_prompt(run, &o));
    TRY(bench_attend_forced(run, &o));
    return bench_keep_and_head(run, &o);
}

/* Measures the memory of the operands, and on a device their memory there. */
static int64_t operands_measure(struct operands *o)
{
    arena_init(&o->memory->host);
    operands_carve(o, &o->memory->host);
    return o->memory->host.used;
}

static enum err weights_run(const struct bench_run *run, const struct ops *ops,
                            const struct bench_model *model)
{
    if (run->device) {
        TRY(bench_device_launch(run, model));
        TRY(bench_device_matmuls(run, model));
        return bench_device_decode(run, model);
    }
    TRY(bench_matmuls(run, ops, model));
    return bench_decode(run, ops, model);
}

static enum err bench_model_run(const struct bench_run *run, const struct ops *ops,
                                const struct bench_model *model)
{
    struct bench_memory memory = {.device = run->device};
    struct operands image = {
        .model = model, .ops = ops, .memory = &memory, .n = run->device ? device_sizes : cpu_sizes};
    kv_layout_init(&image.layout, ops->compute == COMPUTE_F32 ? KV_F32 : KV_BF16, model->n_kv_heads,
                   model->head_dim);
    TRY(weights_run(run, ops, model));
    while (operands_measure(&image) > (run->device ? run->device->room / 2 : INT64_MAX) &&
           image.n.tokens > TOKENS_LEAST)
        image.n = (struct sizes){image.n.tokens / 2, image.n.prompt / 2, image.n.kept / 2,
                                 image.n.head_rows / 2};
    enum err err = bench_memory_open(&memory, model->name);
    if (err == OK)
        err = operands_run(run, &image);
    bench_memory_close(&memory);
    if (err == OK && run->device)
        err = bench_device_forced(run, model);
    return err;
}

static enum err check_only(const char *only, int device)
{
#define OP_NAME(name) #name,
    static const char *const names[] = {OPS(OP_NAME)};
#undef OP_NAME
    for (int i = 0; only && i < (int)(sizeof names / sizeof names[0]); i++)
        if (strcmp(only, names[i]) == 0)
            return OK;
    if (only && device && strcmp(only, "launch") == 0)
        return OK;
    return only ? fail(ERR_USAGE, "bench ops: unknown op '%s'", only) : OK;
}

/* Reads the shape of -m; the head has the size of one tile. */
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
                                  .gated = s->gated,
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
        log_line(LOG_INFO, "bench ops: round %d of %d", t->turn + 1, t->n_turns);
        t->at = 0;
        for (int i = 0; i < n; i++)
            TRY(bench_model_run(run, ops, &list[i]));
    }
    return OK;
}

static enum err turns_open(struct bench_turns *t, int n_turns)
{
    *t = (struct bench_turns){.n_turns = n_turns};
    t->figures = calloc((size_t)N_FIGURES * BENCH_CASES_MAX * (size_t)n_turns, sizeof *t->figures);
    return t->figures ? OK : fail(ERR_FIT, "no memory for the figures of the benchmark");
}

static void turns_close(struct bench_turns *t)
{
    free(t->figures);
}

/* Reads the machine, measures its roofs and adds them to the table's head. */
static enum err setup(struct compute_setup *s, struct bench_roof *roof, struct bench_table *t,
                      const struct config *c)
{
    TRY(compute_open(s, c, NULL));
    struct rate ram;
    TRY(probe_ram(s->ops.pool, 256 << 20, 0.5, &ram));
    roof->ram = ram.value;
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

/* The same for a device. */
static enum err setup_device(struct bench_device *d, struct device *device, struct bench_roof *roof,
                             struct bench_table *t, const struct config *c)
{
    struct compute_setup s;
    struct device_info info;
    int64_t room;
    TRY(compute_read(&s, c));
    TRY(device->api->info(device, &info));
    TRY(compute_device_room(device, &room));
    room = c->mem_device >= 0 ? min_i64(c->mem_device, info.free_bytes) : room;
    TRY(bench_device_open(d, device, &s.ops, room));
    TRY(bench_device_roofs(d, roof));
    log_line(LOG_INFO, "bench ops: %s; roof %.0f GFLOP/s, device memory %.1f GB/s", info.model,
             roof->flops * 1e-9, roof->ram * 1e-9);
    bench_table_note(t, "device", json_string(info.model));
    bench_table_note(t, "compute", json_string(c->compute));
    bench_table_note(t, "roof_gflop_s", json_real(roof->flops * 1e-9));
    bench_table_note(t, "roof_memory_gb_s", json_real(roof->ram * 1e-9));
    return OK;
}

static enum err ops_on(struct device *device, const struct config *c)
{
    const int away = !device->api->unified;
    struct compute_setup s = {0};
    struct bench_device d = {0};
    struct bench_turns turns = {0};
    struct bench_table t;
    struct bench_roof roof = {.memory = away ? "memory" : "ram"};
    struct bench_run run = {.table = &t,
                            .turns = &turns,
                            .roof = &roof,
                            .only = c->n_args > 1 ? c->args[1] : NULL,
                            .device = away ? &d : NULL};
    TRY(check_only(run.only, away));
    if (c->policies && away)
        return fail(
            ERR_USAGE,
            "--policies: bench ops measures KV policies on the CPU only (add --device cpu)");
    if (c->policies)
        TRY(bench_policies(c, run.policies, &run.n_policies));
    bench_table_open(&t, c); // before threads start, because they bind this one to a core
    enum err err = away ? setup_device(&d, device, &roof, &t, c) : setup(&s, &roof, &t, c);
    if (err == OK)
        err = turns_open(&turns, bench_runs(c));
    if (err == OK)
        err = run_models(&run, c, away ? &d.ops : &s.ops);
    turns_close(&turns);
    bench_device_close(&d);
    compute_close(&s);
    enum err closed = bench_table_close(&t);
    return err != OK ? err : closed;
}

/* Uses a device only if --device names it: else the table is for this machine's CPU. */
enum err bench_ops(const struct config *c)
{
    struct device *device;
    TRY(device_open(strcmp(c->device, "auto") == 0 ? "cpu" : c->device, &device));
    enum err err = ops_on(device, c);
    device_close(device);
    return err;
}
