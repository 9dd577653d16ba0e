/* bench/gpu/step.c - see step.h. */
#include "bench/gpu/step.h"

#include "engine/line/layer.h"
#include "offload/probe_impl.h"
#include "policy/evict.h"

#define RATES_TOKENS 1024 // tokens of the tile, slots of a row and prompt tokens in step_rates()
#define RATES_ROWS   64
#define HEAD_COPIES  4 // per batch: input of compact, requests, results in both directions

struct making {
    const struct card_job *job;
    const struct shape *shape;
    const struct gpu_card *card;
    struct ops ops;
    struct modelled *to;
    int tile;     // tokens of a tile, as planned for the card
    int m;        // tokens of the current tile
    double times; // number of repetitions in a step
};

static void add(const struct making *mk, enum spent spent, enum op op, const void *args)
{
    const struct gpu_cost c = gpu_op(mk->card, op, &mk->ops, args);
    mk->to->s[spent] += mk->times * c.s;
    mk->to->flops += mk->times * c.flops;
    mk->to->commands += (int)(mk->times * c.n_launches);
}

static struct weight weight_of(const struct making *mk, int64_t n, int64_t k)
{
    const struct weight_form form =
        gpu_weight_form(mk->card, mk->ops.compute, mk->job->stored);
    return (struct weight){.dtype = form.dtype, .n = (int)n, .k = (int)k, .layout = form.layout};
}

/* Adds one matmul with parts of n[i] outputs. */
static void matmul(const struct making *mk, enum spent spent, int64_t k, int n_parts,
                   const int64_t *n)
{
    struct matmul_args a = {.m = mk->m, .n_parts = n_parts};
    for (int i = 0; i < n_parts; i++)
        a.parts[i].w = weight_of(mk, n[i], k);
    add(mk, spent, OP_matmul, &a);
}

/* Adds n_slices of the head, HEAD_TILE outputs each, with the same x. */
static void multiply_slices(struct making *mk, int64_t k, int64_t n_slices)
{
    struct matmul_args a = {.m = mk->m, .n_parts = 1};
    const double times = mk->times;
    a.parts[0].w = weight_of(mk, HEAD_TILE, k);
    add(mk, SPENT_HEAD, OP_matmul, &a);
    a.same_x = 1;
    mk->times = times * (double)(n_slices - 1);
    add(mk, SPENT_HEAD, OP_matmul, &a);
    mk->times = times;
}

static void norm(const struct making *mk, enum spent spent)
{
    const struct norm_args a = {.m = mk->m, .dim = mk->shape->dim, .kind = mk->shape->norm};
    add(mk, spent, OP_norm, &a);
}

static void experts(const struct making *mk)
{
    const struct shape *s = mk->shape;
    struct expert_matmul_args a = {.matmul = {.m = mk->m, .n_parts = 2},
                                   .route = {.n_experts = s->n_experts,
                                             .n_used = s->n_experts_used}};
    const struct route_args route = {.m = mk->m, .to = a.route};
    const struct gate_mul_args gate = {.m = mk->m * s->n_experts_used, .n = s->ffn_dim};
    const struct expert_sum_args sum = {.m = mk->m, .n = s->dim, .route = a.route};
    const int64_t choices = s->n_experts;
    matmul(mk, SPENT_MATMUL, s->dim, 1, &choices);
    add(mk, SPENT_ROWS, OP_route, &route);
    a.matmul.parts[0].w = a.matmul.parts[1].w =
        weight_of(mk, (int64_t)s->n_experts * s->ffn_dim, s->dim);
    add(mk, SPENT_MATMUL, OP_expert_matmul, &a);
    add(mk, SPENT_ROWS, OP_gate_mul, &gate);
    a.matmul.n_parts = 1;
    a.matmul.parts[0].w = weight_of(mk, (int64_t)s->n_experts * s->dim, s->ffn_dim);
    add(mk, SPENT_MATMUL, OP_expert_matmul, &a);
    add(mk, SPENT_ROWS, OP_expert_sum, &sum);
}

static void mlp(const struct making *mk)
{
    const struct shape *s = mk->shape;
    const int64_t in[2] = {s->ffn_dim, s->ffn_dim}, out = s->dim;
    const struct gate_mul_args gate = {.m = mk->m, .n = s->ffn_dim};
    matmul(mk, SPENT_MATMUL, s->dim, s->gated ? 2 : 1, in);
    if (s->gated)
        add(mk, SPENT_ROWS, OP_gate_mul, &gate);
    matmul(mk, SPENT_MATMUL, s->ffn_dim, 1, &out);
}

/* Adds a layer without attention. */
static void layer(const struct making *mk)
{
    const struct shape *s = mk->shape;
    const int64_t heads = (int64_t)s->n_heads * s->head_dim;
    const int64_t kv = (int64_t)s->n_kv_heads * s->head_dim;
    const int64_t qkv[3] = {heads, kv, kv}, out = s->dim;
    struct rope_args rope = {.m = mk->m, .n_heads = s->n_heads, .rope_dim = s->rope_dim};
    norm(mk, SPENT_ROWS);
    matmul(mk, SPENT_MATMUL, s->dim, 3, qkv);
    if (s->position == POSITION_ROPE) {
        add(mk, SPENT_ROWS, OP_rope, &rope);
        rope.n_heads = s->n_kv_heads;
        add(mk, SPENT_ROWS, OP_rope, &rope);
    }
    matmul(mk, SPENT_MATMUL, heads, 1, &out);
    norm(mk, SPENT_ROWS);
    if (s->n_experts > 0)
        experts(mk);
    else
        mlp(mk);
}

static int slots_of(const struct card_job *job)
{
    return job->kv_share < 1 ? (int)(job->kv_share * (job->prompt + job->new))
                             : job->prompt + job->new / 2;
}

static void attend_rows(const struct making *mk)
{
    const struct shape *s = mk->shape;
    struct forced_span spans[1024];
    struct attend_forced_args a = {.n_spans = mk->m, .n_heads = s->n_heads, .n_max = 1};
    CHECK(mk->m <= 1024);
    kv_layout_init(&a.kv.layout, KV_BF16, s->n_kv_heads, s->head_dim);
    a.evict.policy = mk->job->kv_share < 1 ? EVICT_H2O : EVICT_FULL;
    a.slots_max = slots_of(mk->job);
    for (int i = 0; i < mk->m; i++)
        spans[i] = (struct forced_span){.n_slots = a.slots_max, .n = 1};
    a.spans = spans;
    add(mk, SPENT_ATTENTION, OP_attend_forced, &a);
}

/* Adds the prompts of a batch, one tile at a time. */
static void attend_prompts(struct making *mk)
{
    const struct shape *s = mk->shape;
    struct prompt_span span = {.n_prompt = mk->job->prompt};
    struct attend_prompt_args a = {.spans = &span, .n_spans = 1, .n_heads = s->n_heads};
    const int tile = (int)min_i64(mk->tile, mk->job->prompt);
    kv_layout_init(&a.layout, KV_BF16, s->n_kv_heads, s->head_dim);
    float scores;
    a.scores = mk->job->kv_share < 1 ? &scores : NULL; // only checked for NULL
    for (span.first = 0; span.first < mk->job->prompt; span.first += tile) {
        span.n = (int)min_i64(tile, mk->job->prompt - span.first);
        a.n_max = span.n;
        a.end_max = span.first + span.n;
        add(mk, SPENT_ATTENTION, OP_attend_prompt, &a);
    }
}

static void head(struct making *mk, int positions)
{
    const struct shape *s = mk->shape;
    const double times = mk->times;
    for (int at = 0; at < positions; at += PLAN_DEVICE_POSITIONS) {
        mk->m = (int)min_i64(PLAN_DEVICE_POSITIONS, positions - at);
        norm(mk, SPENT_HEAD);
        const int64_t n_slices = ceil_div(s->vocab, HEAD_TILE);
        const struct head_reduce_args reduce = {.m = mk->m, .n = HEAD_TILE};
        multiply_slices(mk, s->dim, n_slices);
        mk->times = times * (double)n_slices;
        add(mk, SPENT_HEAD, OP_head_reduce, &reduce);
        mk->times = times;
    }
}

/* The tile of a plan. Scratch of the kernels: inputs of matmuls, 2 bytes per number. */
static int tile_of(const struct card_job *job, const struct shape *s, const struct gpu_card *card)
{
    struct plan_costs costs = {.tile_bytes = layer_tile_bytes};
    const int64_t mlp = (int64_t)shape_mlps_used(s) * s->ffn_dim;
    const int64_t wide = max_i64(max_i64(s->dim, mlp), (int64_t)s->n_heads * s->head_dim);
    for (int i = 0; i < PLAN_TILES; i++)
        costs.scratch_bytes[i] = ((int64_t)PLAN_TILE_TOKENS << i) * wide * 2;
    return plan_tile_tokens(&(struct setting){.shape = s, .costs = &costs},
                            job->device_memory > 0 ? job->device_memory : card->memory_bytes);
}

/* Adds the tables of `times` steps of the line. A kernel copies them (ops_copy, kernels/device.h),
 * so they wait for no copy on another stream. */
static void tables(const struct making *mk, double times)
{
    mk->to->s[SPENT_COPIES] += times * (mk->card->launch_s + gpu_copy_s(mk->card, GPU_H2D, 4096));
    mk->to->commands += (int)times;
}

/* Before the layers: rows of tokens and of learned positions, each with a table of offsets. After
 * the layers: compacts the rows that the head needs. */
static void embed_and_compact(const struct making *mk)
{
    const int learned = mk->shape->position == POSITION_LEARNED;
    const struct gather_args gather = {.n = mk->m, .k = mk->shape->dim};
    const struct compact_args compact = {.n = mk->m, .dim = mk->shape->dim};
    for (int i = 0; i <= learned; i++)
        add(mk, SPENT_ROWS, OP_gather, &gather);
    add(mk, SPENT_ROWS, OP_compact, &compact);
    tables(mk, mk->times * (1 + learned + HEAD_COPIES));
}

/* Numbers in the matrices of a layer. */
static double layer_numbers(const struct shape *s)
{
    const double heads = (double)s->n_heads * s->head_dim, kv = (double)s->n_kv_heads * s->head_dim;
    const double mlps = s->n_experts > 0 ? s->n_experts : 1;
    return (2 * heads + 2 * kv) * s->dim + mlps * (s->gated ? 3.0 : 2.0) * s->ffn_dim * s->dim;
}

/* Weights in a format that matmuls cannot read are decoded to rows in every pass. */
static void decode_weights(const struct making *mk)
{
    const struct weight_form form =
        gpu_weight_form(mk->card, mk->ops.compute, mk->job->stored);
    if (form.dtype == mk->job->stored)
        return;
    struct decode_args a = {.to = form.dtype, .layout = form.layout};
    a.w = (struct weight){.dtype = mk->job->stored, .k = mk->shape->dim};
    a.w.n = (int)(layer_numbers(mk->shape) / a.w.k);
    add(mk, SPENT_DECODE, OP_decode, &a);
}

/* Seconds of the link per pass: streamed weights and KV; back: each row's new token. */
static double link_s(const struct making *mk, double weights)
{
    const struct card_job *job = mk->job;
    const struct shape *s = mk->shape;
    const double slot = 4.0 * s->n_kv_heads * s->head_dim * s->n_layers;
    const double kv = (double)job->rows * slots_of(job) * slot;
    if (job->device_memory == 0)
        return 0;
    const double frames = 3.0 * weights / s->n_layers; // in flight and in use
    const double stays = (double)job->device_memory - frames;
    const double moved = weights - (stays > 0 ? stays : 0);
    return (moved + kv) / mk->card->h2d;
}

void step_price(struct modelled *to, const struct card_job *job, const struct shape *shape,
                const struct gpu_card *card)
{
    struct modelled prompts = {0};
    struct making mk = {.job = job, .shape = shape, .card = card, .to = to,
                        .tile = tile_of(job, shape, card),
                        .ops = {.isa = ISA_EXACT, .compute = COMPUTE_BF16}};
    const int batch = (int)ceil_div(job->rows, job->batches);
    const double tokens = (double)job->rows * job->prompt;
    *to = (struct modelled){0};
    to->weight_bytes = layer_numbers(shape) * shape->n_layers *
                       (double)dtype_row_bytes(job->stored, 1 << 16) / (1 << 16);
    to->link_s = link_s(&mk, to->weight_bytes);
    mk.m = batch;
    mk.times = (double)shape->n_layers * job->batches;
    layer(&mk);
    attend_rows(&mk);
    tables(&mk, mk.times);
    mk.times = shape->n_layers;
    decode_weights(&mk);
    mk.times = job->batches;
    embed_and_compact(&mk);
    head(&mk, batch);
    /* The pass of prompts: tiles of tokens, then one position of each row. */
    mk.to = &prompts;
    mk.times = (double)shape->n_layers * tokens / mk.tile;
    mk.m = mk.tile;
    layer(&mk);
    mk.times = (double)shape->n_layers * job->rows;
    attend_prompts(&mk);
    mk.times = shape->n_layers;
    decode_weights(&mk);
    mk.times = job->batches;
    head(&mk, batch);
    const double kv = to->link_s > 0 ? tokens * 4.0 * shape->n_kv_heads * shape->head_dim *
                                           shape->n_layers / card->d2h
                                     : 0;
    to->prompt_s = step_card_s(&prompts);
    to->prompt_s = to->prompt_s > to->link_s ? to->prompt_s : to->link_s;
    to->prompt_s = to->prompt_s > kv ? to->prompt_s : kv;
}

/* Measured like in the probe: a burst of matmuls of one row by 64 x 64, queued and run. */
static double launch_s(const struct making *mk)
{
    struct matmul_args a = {.m = 1, .n_parts = 1};
    a.parts[0].w = weight_of(mk, 64, 64);
    const struct gpu_cost c = gpu_op(mk->card, OP_matmul, &mk->ops, &a);
    const double queue_s = c.n_launches * mk->card->queue_s;
    return c.s > queue_s ? c.s : queue_s;
}

void step_rates(struct machine *to, const struct shape *shape, const struct gpu_card *card)
{
    const struct card_job job = {.kv_share = 1, .stored = DTYPE_BF16, .prompt = RATES_TOKENS};
    struct modelled tile = {0}, rows = {0}, prompt = {0};
    struct making mk = {.job = &job, .shape = shape, .card = card, .times = 1,
                        .tile = RATES_TOKENS,
                        .ops = {.isa = ISA_EXACT, .compute = COMPUTE_BF16}};
    const double slots = (double)RATES_ROWS * RATES_TOKENS;
    mk.to = &tile;
    mk.m = RATES_TOKENS;
    layer(&mk);
    mk.to = &rows;
    mk.m = RATES_ROWS;
    layer(&mk);
    attend_rows(&mk);
    mk.to = &prompt;
    attend_prompts(&mk);
    *to = (struct machine){.h2d = {.value = card->h2d}, .d2h = {.value = card->d2h}};
    to->device_read.value = layer_numbers(shape) * 2 / rows.s[SPENT_MATMUL];
    to->device_flops.value = tile.flops / tile.s[SPENT_MATMUL];
    to->device_attend_read.value =
        slots * 4 * shape->n_kv_heads * shape->head_dim / rows.s[SPENT_ATTENTION];
    to->device_attend_flops.value = prompt.flops / prompt.s[SPENT_ATTENTION];
    to->launch_s.value = launch_s(&mk);
    probe_device_step(to);
}
