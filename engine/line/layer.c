/* engine/line/layer.c - see layer.h: the workspace, and the ops that layers share. */
#include "engine/line/layer_impl.h"

#include <math.h>
#include <string.h>

int64_t layer_rows_bytes(const struct device_scratch *of, const struct ops *ops,
                         const struct model *model, int n_rows, int64_t slots_cap,
                         const struct evict *evict)
{
    const struct shape *s = &model->shape;
    int64_t most = 0;
    for (int wide = 0; wide <= (s->wide_head_dim > 0); wide++)
        most =
            max_i64(most, of->attend_forced(ops, n_rows, (int)slots_cap, s->n_heads,
                                            shape_kv_heads_of(s, wide), shape_head_dim_of(s, wide),
                                            evict_decode_scores(evict->policy)));
    return most;
}

/* Numbers of a token in w->q and w->attn: of all heads, in the widest form. */
static int64_t layer_head_numbers(const struct shape *s)
{
    const int64_t widest = max_i64(shape_query_dim(s, 0), shape_output_dim(s, 0));
    return s->n_heads * max_i64(shape_head_most(s), widest);
}

/* The same for attention of one row. */
static int64_t attend_bytes(const struct device_scratch *of, const struct ops *ops,
                            const struct model *model, int64_t prompt_max, int64_t slots_cap,
                            const struct evict *evict)
{
    const struct shape *s = &model->shape;
    int64_t most = layer_rows_bytes(of, ops, model, 1, slots_cap, evict);
    for (int wide = 0; wide <= (s->wide_head_dim > 0); wide++) {
        const int kv = shape_kv_heads_of(s, wide), dim = shape_head_dim_of(s, wide);
        most = max_i64(most, of->attend_prompt(ops, (int)prompt_max, s->n_heads, kv, dim));
        most = max_i64(most, of->prompt_keep(ops, (int)prompt_max, kv, dim));
    }
    return most;
}

int64_t layer_scratch_bytes(const struct device_scratch *of, const struct ops *ops,
                            const struct model *model, int tile_tokens, int64_t prompt_max,
                            int64_t slots_cap, const struct evict *evict)
{
    const struct shape *s = &model->shape;
    int heads = (int)layer_head_numbers(s);
    int mlp =
        (int)max_i64(max_i64(s->ffn_dim, s->late_ffn_dim), max_i64(s->dense_dim, s->shared_dim));
    int rows = (int)max_i64(s->embed_dim, shape_part(s, PART_INPUTS));
    int wide = (int)max_i64(max_i64(s->dim, mlp), max_i64(heads, rows));
    int widest = (int)max_i64(wide, max_i64(shape_state_qkv(s), shape_state_v(s)));
    int64_t most = attend_bytes(of, ops, model, prompt_max, slots_cap, evict);
    most = max_i64(most, of->matmul(ops, tile_tokens, (int)max_i64(widest, HEAD_TILE), widest));
    if (s->n_experts > 0) {
        struct ops exact = *ops;
        exact.compute = COMPUTE_F32; // the router, and the shared expert's weight
        most = max_i64(most, of->matmul(&exact, tile_tokens, s->n_experts, s->dim));
        most = max_i64(most, of->expert_matmul(ops, tile_tokens, s->n_experts_used, wide, wide));
    }
    return max_i64(most, of->gather(ops, s->dim));
}

void layer_place_rows(struct layer_work *w, struct carve *c)
{
    const struct plan *p = c->plan;
    const struct evict *evict = c->set->evict;
    const int64_t n = (int64_t)p->batch * p->batches;
    w->ring_bytes = c->set->costs->kv_ring_bytes;
    if (plan_has_slots(c->set)) {
        const int ring = w->ring_bytes > 0 ? EVICT_RING_MAX : 0;
        const int64_t n_bytes = plan_kv_slots_before(p, c->set->shape, p->decoder, ring) * 4;
        w->slot_pos = CARVE_SLAB(c, kv_meta, ARENA_ATTEND, n, n_bytes);
        w->slot_score = CARVE_SLAB(c, kv_meta, ARENA_ATTEND, n, n_bytes);
        if (evict->positions == EVICT_POSITIONS_SLOT)
            w->slot_rank = CARVE_SLAB(c, kv_meta, ARENA_ATTEND, n, n_bytes);
        if (evict_policy_trait(evict->policy))
            w->slot_trait = CARVE_SLAB(c, kv_meta, ARENA_ATTEND, n, n_bytes);
    }
    w->rings = CARVE_SLAB(c, kv_rings, ARENA_ATTEND, n, p->decoder * w->ring_bytes);
    w->rows.page_ids_stride = plan_row_pages(p);
    w->rows.dirty_stride = (int)ceil_div(w->rows.page_ids_stride, 64);
    w->rows.slot_stride = w->slot_pos.stride / 4;
    w->rows.ring_stride = w->rings.stride;
}

/* Scratch and routes were counted for PLAN_TILES sizes: index of the smallest that is enough. */
static int tile_size(int tile_tokens)
{
    int i = 0;
    while (i < PLAN_TILES - 1 && PLAN_TILE_TOKENS << i < tile_tokens)
        i++;
    return i;
}

/* Cuts numbers from the room at `from`, on a cache line; measures without room. */
static float *cut_from(float *room, int64_t *from, int64_t n)
{
    float *at = room ? room + *from : NULL;
    *from += round_up(n, CARVE_ALIGN / (int64_t)sizeof *at);
    return at;
}

/* Numbers of a token in w->k, or in w->v. */
static int64_t layer_kv_most(const struct shape *s)
{
    return s->latent_key > 0 ? s->head_dim : shape_kv_numbers_most(s) / 2;
}

/* Inputs and outputs of attention, and, in the same place, those of layers with a state; returns
 * how many numbers they take. */
static int64_t cut_mixer(struct layer_work *w, const struct carve *c, float *room)
{
    const struct shape *s = c->set->shape;
    const int64_t tile = c->plan->tile_tokens, heads = tile * layer_head_numbers(s),
                  kv = tile * layer_kv_most(s), v = tile * shape_state_v(s);
    int64_t end = 0, state_end = 0;
    w->q = cut_from(room, &end, heads);
    w->attn = cut_from(room, &end, heads);
    w->k = cut_from(room, &end, kv);
    w->v = cut_from(room, &end, s->latent_key > 0 ? tile * s->latent_query : kv);
    w->q_gate = s->query_gate ? cut_from(room, &end, heads) : NULL;
    if (s->state == STATE_NONE)
        return end;
    w->state_qkv = cut_from(room, &state_end, tile * shape_state_qkv(s));
    w->state_out = cut_from(room, &state_end, v);
    w->state_z = cut_from(room, &state_end, v);
    w->state_beta = cut_from(room, &state_end, tile * s->state_v_heads);
    w->state_dt = cut_from(room, &state_end, tile * s->state_v_heads);
    return max_i64(end, state_end);
}

static void place_mixer(struct layer_work *w, struct carve *c)
{
    float *room;
    CARVE(c, workspace, ARENA_DEVICE, room, cut_mixer(w, c, NULL));
    cut_mixer(w, c, room);
}

/* Inputs and outputs of a tile's ops. */
static void place_tile(struct layer_work *w, struct carve *c)
{
    const struct shape *s = c->set->shape;
    const int64_t tile = c->plan->tile_tokens;
    CARVE(c, workspace, ARENA_DEVICE, w->normed, tile * max_i64(s->dim, s->embed_dim));
    place_mixer(w, c);
    CARVE(c, workspace, ARENA_DEVICE, w->gate, tile * shape_mlp_numbers(s));
    if (s->gated)
        CARVE(c, workspace, ARENA_DEVICE, w->up, tile * shape_mlp_numbers(s));
    if (s->n_experts == 0)
        return;
    const int64_t route_bytes = c->set->costs->route_bytes[tile_size((int)tile)];
    CARVE(c, workspace, ARENA_DEVICE, w->router, tile * s->n_experts);
    w->route = CARVE_SLAB(c, workspace, ARENA_DEVICE, 1, route_bytes).base;
    CARVE(c, workspace, ARENA_DEVICE, w->expert_out, tile * s->n_experts_used * s->dim);
    CARVE(c, workspace, ARENA_DEVICE, w->shared_out, s->shared_dim > 0 ? tile * s->dim : 0);
    CARVE(c, workspace, ARENA_DEVICE, w->shares, tile * s->shared_gate);
}

/* The rows of a batch attend side by side, up to the number that the device's kernels take. */
static void place_scratch(struct layer_work *w, struct carve *c)
{
    const struct plan *p = c->plan;
    const struct plan_costs *costs = c->set->costs;
    const int64_t rows = min_i64(p->batch * costs->attend_row_bytes, costs->attend_rows_bytes);
    const int64_t tile = costs->scratch_bytes[tile_size(p->tile_tokens)];
    w->scratch =
        CARVE_BLOCKS(c, workspace, ARENA_DEVICE, 1, max_i64(tile, p->attn_cpu ? 0 : rows)).base;
}

int64_t layer_tile_bytes(const struct setting *set, int tile_tokens)
{
    const struct plan plan = {.device = 1, .tile_tokens = tile_tokens};
    struct plan_bytes bytes = {0};
    struct carve c = {.plan = &plan, .set = set, .bytes = &bytes};
    struct layer_work w;
    place_tile(&w, &c);
    place_scratch(&w, &c);
    return c.end[ARENA_DEVICE];
}

/* Positions in a table of angles: those of the longest row. Where positions are ranks: those of the
 * longest prompt, or one per slot and one for the new token. */
static int64_t rope_rows(const struct setting *set)
{
    const struct work *work = set->work;
    if (set->evict->positions != EVICT_POSITIONS_SLOT)
        return work->tokens_max;
    return min_i64(work->tokens_max, max_i64(work->prompt_max, work->slots_max + 1));
}

static void place_angles(const struct layer_work *w, struct carve *c, enum carve_arena arena,
                         float **cosines, float **sines, float **factors)
{
    const struct shape *s = c->set->shape;
    const int tables = shape_ropes(s);
    int64_t n = 0;
    for (int t = 0; t < tables; t++)
        n += w->rope_rows * (shape_rope_width(s, t) / 2);
    CARVE(c, workspace, arena, *cosines, n);
    CARVE(c, workspace, arena, *sines, n);
    *factors = NULL;
    if (s->query_beta > 0)
        CARVE(c, workspace, arena, *factors, tables * w->rope_rows);
}

void layer_place(struct layer_work *w, struct carve *c)
{
    const struct plan *p = c->plan;
    const struct shape *s = c->set->shape;
    const int64_t page = c->set->costs->prompt_page_bytes;
    w->plan = p;
    w->shape = s;
    w->evict = c->set->evict;
    w->rope_rows = rope_rows(c->set);
    place_tile(w, c);
    place_angles(w, c, ARENA_DEVICE, &w->cos, &w->sin, &w->factors);
    const int by_rank = w->evict->positions == EVICT_POSITIONS_SLOT;
    w->slot_cos = by_rank ? w->cos : NULL;
    w->slot_sin = by_rank ? w->sin : NULL;
    w->slot_factors = by_rank ? w->factors : NULL;
    /* A prompt that continues over the end of a tile is kept whole; each later prompt begins on a
     * new page. */
    w->prompt_page_cap =
        (int)ceil_div(p->prompt_max, PAGE_SLOTS) + p->tile_tokens / PAGE_SLOTS + 16;
    w->prompt_pages = CARVE_BLOCKS(c, workspace, ARENA_DEVICE, 1, w->prompt_page_cap * page).base;
    w->shared_pages =
        CARVE_BLOCKS(c, workspace, ARENA_DEVICE, 1, ceil_div(p->shared_tokens, PAGE_SLOTS) * page)
            .base;
    CARVE(c, workspace, ARENA_DEVICE, w->prompt_scores,
          (int64_t)w->prompt_page_cap * PAGE_SLOTS * shape_kv_heads_most(s));
    CARVE(c, workspace, ARENA_HOST, w->cuts, 2 * p->batch);
    CARVE(c, workspace, ARENA_ATTEND, w->events, (int64_t)p->tile_tokens * shape_kv_heads_most(s));
}

void layer_place_apart(struct layer_work *w, struct carve *c)
{
    const struct shape *s = c->set->shape;
    const struct cross_bytes cross = c->set->costs->cross;
    const int64_t heads = (int64_t)c->plan->tile_tokens * s->n_heads * shape_head_most(s);
    float **const tile[] = {&w->q, &w->k, &w->v, &w->attn};
    if (w->evict->positions == EVICT_POSITIONS_SLOT)
        place_angles(w, c, ARENA_PINNED, &w->slot_cos, &w->slot_sin, &w->slot_factors);
    for (int i = 0; i < 4; i++) // numbers that cross as bf16 become f32 here
        CARVE(c, workspace, ARENA_HOST, *tile[i], cross.in < 4 || cross.out < 4 ? heads : 0);
    CARVE(c, workspace, ARENA_HOST, w->cuts, 2 * c->plan->batch);
    w->scratch = CARVE_BLOCKS(c, workspace, ARENA_HOST, 1, c->set->costs->attend_bytes).base;
}

void layer_place_head(struct layer_work *w, struct carve *c)
{
    const struct shape *s = c->set->shape;
    const int64_t n = c->plan->tile_positions;
    CARVE(c, head, ARENA_DEVICE, w->logits, n * HEAD_TILE);
    CARVE(c, head, ARENA_DEVICE, w->head_in, n * s->dim);
    CARVE(c, head, ARENA_DEVICE, w->head_narrow, s->embed_dim != s->dim ? n * s->embed_dim : 0);
    place_scratch(w, c);
}

/* Tables of a position: what RoPE and queries are multiplied by. */
enum angle_table { TABLE_COS, TABLE_SIN, TABLE_FACTORS, N_TABLES };

static int64_t table_width(const struct layer_work *w, int table, int of)
{
    return table == TABLE_FACTORS ? w->shape->query_beta > 0 : shape_rope_width(w->shape, of) / 2;
}

/* Where the table of ropes[of] begins. */
static int64_t table_at(const struct layer_work *w, int table, int of)
{
    return table == TABLE_FACTORS ? of * w->rope_rows : layer_angles_at(w, of);
}

/* Position `pos` in a table of ropes[of]. */
static void table_row(const struct layer_work *w, int table, int of, int64_t pos, float *to)
{
    const struct shape *s = w->shape;
    const struct shape_rope *rope = &s->ropes[of];
    const int64_t n = table_width(w, table, of);
    for (int i = 0; i < n && table != TABLE_FACTORS; i++) {
        /* The angle is an f32 product, as in training; its cosine is computed in double, so that
         * all math libraries give the same rounded result. */
        double angle = (double)((float)pos * rope->inv_freq[i]);
        to[i] = (float)(table == TABLE_SIN ? sin(angle) : cos(angle)) * rope->scale;
    }
    if (table == TABLE_FACTORS)
        to[0] = 1 + s->query_beta * (float)log1p((double)(pos / s->query_period));
}

void layer_open_apart(struct layer_work *w)
{
    float *const tables[N_TABLES] = {w->slot_cos, w->slot_sin, w->slot_factors};
    for (int i = 0; i < N_TABLES * shape_ropes(w->shape); i++) {
        const int t = i % N_TABLES, of = i / N_TABLES;
        for (int64_t pos = 0; tables[t] && pos < w->rope_rows; pos++)
            table_row(w, t, of, pos, tables[t] + table_at(w, t, of) + pos * table_width(w, t, of));
    }
}

/* Fills a table of ropes[of] through the staging slot. */
static enum err send_table(struct layer_work *w, int t, int of, float *to, struct event *done)
{
    const int64_t row_bytes = table_width(w, t, of) * (int64_t)sizeof(float);
    const int64_t rows =
        row_bytes ? w->tables->slots.n_bytes / CARVE_ALIGN * CARVE_ALIGN / row_bytes : 0;
    for (int64_t pos = 0; pos < w->rope_rows && rows > 0; pos += rows) {
        int64_t n = min_i64(rows, w->rope_rows - pos);
        tables_turn(w->tables, 0);
        uint8_t *part = tables_take(w->tables, n * row_bytes);
        for (int64_t i = 0; i < n; i++)
            table_row(w, t, of, pos + i, (float *)(void *)(part + i * row_bytes));
        ops_copy(&w->ops, (uint8_t *)to + pos * row_bytes, part, n * row_bytes);
        const struct device_api *device = w->ops.stream->device->api;
        device->record(w->ops.stream, done);
        TRY(device->event_wait(w->ops.stream, done)); // before the staging slot is reused
    }
    return OK;
}

enum err layer_open(struct layer_work *w, struct event *done)
{
    float *const tables[N_TABLES] = {w->cos, w->sin, w->factors};
    for (int i = 0; i < N_TABLES * shape_ropes(w->shape); i++) {
        const int t = i % N_TABLES, of = i / N_TABLES;
        if (tables[t])
            TRY(send_table(w, t, of, tables[t] + table_at(w, t, of), done));
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
        args.parts[i] =
            (struct matmul_part){.w = weight,
                                 .y = p->y,
                                 .bias = bias_vector(l, p->bias, weights),
                                 .y_stride = p->stride > 0 ? p->stride : weight.n / experts,
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

void layer_rotate(struct layer_work *w, float *x, int heads, int m)
{
    const struct shape *s = w->shape;
    const int still = s->latent_key > 0 && layer_by_rank(w, w->layer) ? s->rope_dim : 0;
    const int block = kv_rotation(&w->rows.layout),
              n = (still > 0 ? 1 : heads) * shape_head_dim(s, w->layer);
    const struct rotate_args args = {.x = x + still,
                                     .m = still > 0 ? m * heads : m,
                                     .n = n - still,
                                     .block = block,
                                     .x_stride = n};
    if (block > 0 && still % block == 0)
        ops_run_rotate(&w->ops, &args);
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
