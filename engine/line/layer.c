/* engine/line/layer.c - see layer.h: the workspace, and the ops that layers share. */
#include "engine/line/layer_impl.h"

#include <math.h>
#include <string.h>

int64_t layer_rows_bytes(const struct device_scratch *of, const struct ops *ops,
                         const struct model *model, int n_rows, int64_t slots_cap,
                         const struct evict *evict)
{
    const struct shape *s = &model->shape;
    return of->attend_forced(ops, n_rows, (int)slots_cap, s->n_heads, s->n_kv_heads, s->head_dim,
                             evict_decode_scores(evict->policy));
}

/* The same for attention of one row. */
static int64_t attend_bytes(const struct device_scratch *of, const struct ops *ops,
                            const struct model *model, int64_t prompt_max, int64_t slots_cap,
                            const struct evict *evict)
{
    const struct shape *s = &model->shape;
    int heads = s->n_heads, kv = s->n_kv_heads, dim = s->head_dim;
    int64_t most = of->attend_prompt(ops, (int)prompt_max, heads, kv, dim);
    most = max_i64(most, layer_rows_bytes(of, ops, model, 1, slots_cap, evict));
    return max_i64(most, of->prompt_keep(ops, (int)prompt_max, kv, dim));
}

int64_t layer_scratch_bytes(const struct device_scratch *of, const struct ops *ops,
                            const struct model *model, int tile_tokens, int64_t prompt_max,
                            int64_t slots_cap, const struct evict *evict)
{
    const struct shape *s = &model->shape;
    int heads = s->n_heads * s->head_dim;
    int mlp = (int)max_i64(s->ffn_dim, max_i64(s->dense_dim, s->shared_dim));
    int wide = (int)max_i64(max_i64(s->dim, mlp), max_i64(heads, s->embed_dim));
    int64_t most = attend_bytes(of, ops, model, prompt_max, slots_cap, evict);
    most = max_i64(most, of->matmul(ops, tile_tokens, (int)max_i64(wide, HEAD_TILE), wide));
    if (s->n_experts > 0) {
        struct ops exact = *ops;
        exact.compute = COMPUTE_F32; // the router, and the shared expert's weight
        most = max_i64(most, of->matmul(&exact, tile_tokens, s->n_experts, s->dim));
        most = max_i64(most, of->expert_matmul(ops, tile_tokens, s->n_experts_used, wide, wide));
    }
    return max_i64(most, of->gather(ops, s->dim));
}

static void place_attention(struct layer_work *w)
{
    const struct memory *m = w->memory;
    const struct plan *plan = w->plan;
    w->prompt_page_cap = (int)layout_prompt_pages(plan);
    w->prompt_pages = memory_at(m, LAYOUT_PROMPT_PAGES, 0);
    w->shared_pages = memory_at(m, LAYOUT_SHARED_PAGES, 0);
    w->prompt_scores = memory_at(m, LAYOUT_PROMPT_SCORES, 0);
    w->events = memory_at(m, LAYOUT_EVENTS, 0);
    w->rows.page_ids_stride = plan->slots_cap / PAGE_SLOTS;
    w->rows.dirty_stride = (int)ceil_div(w->rows.page_ids_stride, 64);
    w->rows.slot_stride = m->layout->parts[LAYOUT_SLOT_POS].stride / 4;
    w->rows.ring_stride = m->layout->parts[LAYOUT_RINGS].stride;
}

void layer_place(struct layer_work *w, const struct memory *m, const struct plan *plan,
                 const struct model *model, const struct evict *evict, int64_t rope_rows)
{
    w->plan = plan;
    w->memory = m;
    w->model = model;
    w->shape = &model->shape;
    w->evict = evict;
    w->rope_rows = rope_rows;
    w->normed = memory_at(m, LAYOUT_NORMED, 0);
    w->q = memory_at(m, LAYOUT_Q, 0);
    w->attn = memory_at(m, LAYOUT_ATTN, 0);
    w->k = memory_at(m, LAYOUT_K, 0);
    w->v = memory_at(m, LAYOUT_V, 0);
    w->gate = memory_at(m, LAYOUT_GATE, 0);
    w->up = memory_at(m, LAYOUT_UP, 0);
    w->router = memory_at(m, LAYOUT_ROUTER, 0);
    w->route = memory_at(m, LAYOUT_ROUTE, 0);
    w->expert_out = memory_at(m, LAYOUT_EXPERT_OUT, 0);
    w->shared_out = memory_at(m, LAYOUT_SHARED_OUT, 0);
    w->shares = memory_at(m, LAYOUT_SHARES, 0);
    w->cos = memory_at(m, LAYOUT_ROPE_COS, 0);
    w->sin = memory_at(m, LAYOUT_ROPE_SIN, 0);
    const int by_rank = evict->positions == EVICT_POSITIONS_SLOT;
    w->slot_cos = by_rank ? w->cos : NULL;
    w->slot_sin = by_rank ? w->sin : NULL;
    w->cuts = memory_at(m, LAYOUT_CUTS, 0);
    place_attention(w);
    w->logits = memory_at(m, LAYOUT_LOGITS, 0);
    w->head_in = memory_at(m, LAYOUT_HEAD_IN, 0);
    w->head_narrow = memory_at(m, LAYOUT_HEAD_NARROW, 0);
    w->scratch = memory_at(m, LAYOUT_SCRATCH, 0);
}

/* Cosines or sines of one position; `row` counts over all tables. */
static void rope_row(const struct layer_work *w, int64_t row, int sines, float *to)
{
    const struct shape_rope *rope = &w->shape->ropes[row / w->rope_rows];
    const int64_t pos = row % w->rope_rows;
    for (int i = 0; i < w->shape->rope_dim / 2; i++) {
        /* The angle is an f32 product, as in training; its cosine is computed in double, so that
         * all math libraries give the same rounded result. */
        double angle = (double)((float)pos * rope->inv_freq[i]);
        to[i] = (float)(sines ? sin(angle) : cos(angle)) * rope->scale;
    }
}

void layer_place_apart(struct layer_work *w)
{
    const int64_t half = w->shape->rope_dim / 2, all = shape_ropes(w->shape) * w->rope_rows;
    w->slot_cos = memory_at(w->memory, LAYOUT_SLOT_COS, 0);
    w->slot_sin = memory_at(w->memory, LAYOUT_SLOT_SIN, 0);
    w->cuts = memory_at(w->memory, LAYOUT_ATTEND_CUTS, 0);
    w->scratch = memory_at(w->memory, LAYOUT_ATTEND_SCRATCH, 0);
    for (int64_t row = 0; w->slot_cos && row < all; row++) {
        rope_row(w, row, 0, w->slot_cos + row * half);
        rope_row(w, row, 1, w->slot_sin + row * half);
    }
}

enum err layer_open(struct layer_work *w, struct event *done)
{
    int64_t row_bytes = w->shape->rope_dim / 2 * (int64_t)sizeof(float);
    int64_t all = shape_ropes(w->shape) * w->rope_rows;
    int64_t rows =
        row_bytes ? w->memory->layout->parts[LAYOUT_TABLES].n_bytes / 64 * 64 / row_bytes : 0;
    for (int sines = 0; sines < 2 && rows > 0; sines++)
        for (int64_t pos = 0; pos < all; pos += rows) {
            int64_t n = min_i64(rows, all - pos);
            tables_turn(w->tables, 0);
            uint8_t *part = tables_take(w->tables, n * row_bytes);
            for (int64_t i = 0; i < n; i++)
                rope_row(w, pos + i, sines, (float *)(void *)(part + i * row_bytes));
            ops_copy(&w->ops, (uint8_t *)(sines ? w->sin : w->cos) + pos * row_bytes, part,
                     n * row_bytes);
            const struct device_api *device = w->ops.stream->device->api;
            device->record(w->ops.stream, done);
            TRY(device->event_wait(w->ops.stream, done)); // before the staging slot is reused
        }
    return OK;
}

/* NULL: the role, or this model, has no bias. */
static const float *bias_vector(const struct model_layer *l, enum tensor_role bias,
                                const uint8_t *weights)
{
    return bias == N_ROLES ? NULL : model_vector(l, bias, weights);
}

/* The args of a matmul over model weights; experts = 1: y has one expert's width. */
static struct matmul_args matmul_of(const struct layer_work *w, const struct model_layer *l,
                                    const uint8_t *weights, const struct projection *projections,
                                    int n, int experts)
{
    struct matmul_args args = {.n_parts = n, .scratch = w->scratch};
    CHECK(n <= MATMUL_PARTS);
    for (int i = 0; i < n; i++) {
        const struct projection *p = &projections[i];
        const struct weight weight = model_weight(l, p->role, weights);
        args.x_stride = weight.k;
        args.parts[i] = (struct matmul_part){.w = weight,
                                             .y = p->y,
                                             .bias = bias_vector(l, p->bias, weights),
                                             .y_stride = weight.n / experts,
                                             .add = p->add,
                                             .act = p->act};
    }
    return args;
}

void layer_project(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                   const struct projection *projections, int n, const float *x, int m)
{
    struct matmul_args args = matmul_of(w, l, weights, projections, n, 1);
    struct ops ops = w->ops;
    args.x = x;
    args.m = m;
    if (role_is_choice(projections[0].role)) { // the choice is the same in every compute format
        ops.compute = model_compute(projections[0].role, ops.compute);
        ops.matmul = MATMUL_OWN;
    }
    ops_run_matmul(&ops, &args);
}

void layer_project_experts(struct layer_work *w, const struct model_layer *l,
                           const uint8_t *weights, const struct projection *projections, int n,
                           const float *x, int m, const struct route *route)
{
    struct expert_matmul_args args = {
        .matmul = matmul_of(w, l, weights, projections, n, route->n_experts),
        .route = *route,
        .by_token = x != NULL};
    args.matmul.x = x ? x : w->gate;
    args.matmul.m = m;
    ops_run_expert_matmul(&w->ops, &args);
}

void layer_norm(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                enum tensor_role role, enum tensor_role bias, const float *x, float *y, int m)
{
    int dim = w->shape->dim;
    struct norm_args args = {.x = x,
                             .y = y,
                             .weight = model_vector(l, role, weights),
                             .bias = bias_vector(l, bias, weights),
                             .m = m,
                             .dim = dim,
                             .x_stride = dim,
                             .y_stride = dim,
                             .kind = w->shape->norm,
                             .eps = w->shape->norm_eps};
    ops_run_norm(&w->ops, &args);
}

void layer_mix(struct layer_work *w, float *x, const float *y, float a, float b, int n, int m)
{
    struct mix_args args = {
        .x = x, .y = y, .m = m, .n = n, .x_stride = n, .y_stride = n, .a = a, .b = b};
    ops_run_mix(&w->ops, &args);
}

void layer_tiles(const struct layer_work *w, const struct model_layer *stored,
                 const uint8_t *weights, const struct model_layer *tiles, uint8_t *to)
{
    for (int role = 0; role < N_ROLES; role++) {
        const struct model_tensor *t = &tiles->tensors[role];
        if (t->n == 0 || role_kind(role) == ROLE_IS_ROWS)
            continue;
        const struct model_tensor *from = &stored->tensors[role];
        if (t->dtype == from->dtype && t->layout == from->layout) {
            ops_copy(&w->ops, to + t->offset, weights + from->offset,
                     role_bytes(role, t->dtype, t->n, t->k));
            continue;
        }
        struct decode_args args = {.w = model_weight(stored, role, weights),
                                   .to = t->dtype,
                                   .panels = to + t->offset,
                                   .layout = t->layout};
        ops_run_decode(&w->ops, &args);
    }
}
