/* engine/line/layer_decode.c - decoder layers of layer.h.
 *
 * Note: a prompt that does not fit into the rest of a tile opens a new tile. So a prompt that
 * continues over several tiles is always the first of each tile, and its K and V always start at
 * the beginning of the workspace. */
#include "engine/line/layer_impl.h"

#include <string.h>

struct tile {
    int first, n;     // tokens of the batch: first, count
    int span, offset; // start of the next tile
    int n_cuts;
    int continued_page_end; // pages of the prompt that continues in the next tile, else 0
};

typedef int (*tiles_fn)(struct layer_work *w, const struct batch *b, struct tile *t,
                        struct cut *cuts);

/* Cuts of the next tile; 0 when the batch is done. */
static int tile_next(struct layer_work *w, const struct batch *b, struct tile *t, struct cut *cuts)
{
    int room = w->plan->tile_tokens, pages = t->continued_page_end;
    t->first += t->n;
    t->n = t->n_cuts = 0;
    t->continued_page_end = 0;
    while (t->span < b->n_spans && t->n < room) {
        const struct span *s = &b->spans[t->span];
        struct cut c = {.span = s, .offset = t->offset};
        c.n = (int)min_i64(s->n - t->offset, room - t->n);
        if (s->kind == SPAN_PROMPT) {
            int need = (int)ceil_div(s->pos + s->n, PAGE_SLOTS);
            if (t->offset == 0) {
                if (t->n > 0 && (s->n > room - t->n || pages + need > w->prompt_page_cap))
                    break;
                c.page = pages;
                pages += need;
            }
            if (c.n < s->n - t->offset)
                t->continued_page_end = need;
        }
        cuts[t->n_cuts++] = c;
        t->n += c.n;
        t->offset += c.n;
        if (t->offset == s->n) {
            t->span++;
            t->offset = 0;
        }
    }
    return t->n > 0;
}

/* The same without prompts, for rows that attend on the CPU: forced cuts are contiguous. */
static int tile_next_forced(struct layer_work *w, const struct batch *b, struct tile *t,
                            struct cut *cuts)
{
    const int more = tile_next(w, b, t, cuts), n = t->n_cuts;
    t->n_cuts = 0;
    for (int i = 0; i < n; i++)
        if (cuts[i].span->kind == SPAN_FORCED)
            cuts[t->n_cuts++] = cuts[i];
    return more;
}

/* 1: the layer stores keys before rotation, and attention rotates them by rank. */
static int by_rank(const struct layer_work *w, int layer)
{
    const struct shape *s = w->shape;
    return w->slot_cos && s->position == POSITION_ROPE && s->layer_rope[layer] != SHAPE_NO_ROPE;
}

/* The tables for that rotation; zeros if keys are stored rotated. */
static struct slot_rope slot_rope(const struct layer_work *w, int layer)
{
    const struct shape *s = w->shape;
    if (!by_rank(w, layer))
        return (struct slot_rope){0};
    const int64_t table = s->layer_rope[layer] * w->rope_rows, at = table * (s->rope_dim / 2);
    return (struct slot_rope){.cos = w->slot_cos + at,
                              .sin = w->slot_sin + at,
                              .factors = w->slot_factors ? w->slot_factors + table : NULL,
                              .rope_dim = s->rope_dim,
                              .scale = s->ropes[s->layer_rope[layer]].scale};
}

/* Values of q, and of k or v, per token. */
static int64_t q_numbers(const struct layer_work *w)
{
    return (int64_t)w->shape->n_heads * w->shape->head_dim;
}

static int64_t kv_numbers(const struct layer_work *w)
{
    return (int64_t)w->shape->n_kv_heads * w->shape->head_dim;
}

/* Rotates q and k of n tokens of the tile, from `first`; pos [n]: rows of the rope tables. */
static void rope_rows(struct layer_work *w, int first, int n, const int32_t *pos)
{
    const struct shape *s = w->shape;
    const int64_t heads = q_numbers(w), kv = kv_numbers(w);
    struct rope_args args = {.x = w->q + first * heads,
                             .cos = w->cos,
                             .sin = w->sin,
                             .factors = w->factors,
                             .pos = tables_seen(w->tables, pos),
                             .m = n,
                             .n_heads = s->n_heads,
                             .head_dim = s->head_dim,
                             .rope_dim = s->rope_dim,
                             .x_stride = heads};
    ops_run_rope(&w->ops, &args);
    args.x = w->k + first * kv;
    args.factors = NULL;
    args.n_heads = s->n_kv_heads;
    args.x_stride = kv;
    ops_run_rope(&w->ops, &args);
}

/* Writes the rope table's row of each token of the batch. */
static void tell_rope(struct layer_work *w, const struct batch *b, int layer)
{
    const struct shape *s = w->shape;
    w->told.pos = NULL;
    if (s->position != POSITION_ROPE || s->layer_rope[layer] == SHAPE_NO_ROPE)
        return;
    struct tile t = {0};
    int32_t *pos = w->told.pos = tables_take(w->tables, b->n_tokens * (int64_t)sizeof *pos);
    while (tile_next(w, b, &t, w->cuts))
        for (int i = 0; i < t.n_cuts; i++) {
            const struct cut *c = &w->cuts[i];
            int table = s->layer_rope[layer] || batch_turns_long(s, &b->rows[c->span->row]);
            for (int j = 0; j < c->n; j++)
                *pos++ = (int32_t)(table * w->rope_rows) + c->span->pos + c->offset + j;
        }
}

/* Where positions are ranks, rotates prompts only: attention rotates forced tokens. */
static void rope_tile(struct layer_work *w, const struct tile *t, const struct cut *cuts, int layer)
{
    const int32_t *pos = w->told.pos ? w->told.pos + t->first : NULL;
    if (!pos)
        return;
    if (!by_rank(w, layer)) {
        rope_rows(w, 0, t->n, pos);
        return;
    }
    int at = 0;
    for (int i = 0; i < t->n_cuts; at += cuts[i].n, i++)
        if (cuts[i].span->kind == SPAN_PROMPT)
            rope_rows(w, at, cuts[i].n, pos + at);
}

/* Copies the prefix that others share from the first prompt of the pass to shared_pages. */
static void share_pages(struct layer_work *w, const struct batch *b, const struct cut *c,
                        uint8_t *pages)
{
    int64_t end = min_i64(b->n_shared, c->span->pos + c->offset + c->n);
    if (c->span == &b->spans[b->first_prompt])
        ops_copy(&w->ops, w->shared_pages, pages, ceil_div(end, PAGE_SLOTS) * w->prompt.page_bytes);
}

static void take_shared_pages(struct layer_work *w, const struct cut *c, uint8_t *pages)
{
    if (c->offset == 0)
        ops_copy(&w->ops, pages, w->shared_pages,
                 ceil_div(c->span->pos, PAGE_SLOTS) * w->prompt.page_bytes);
}

/* For the current layer: the row's slot limits, and its page slots after n more tokens. */
static struct evict_row layer_limits(const struct layer_work *w, const struct row *row)
{
    struct evict rule;
    struct evict_row limits;
    evict_in_kind(w->evict, &row->evict, plan_kind(w->plan, w->layer), &rule, &limits);
    return limits;
}

static int layer_slots(const struct layer_work *w, const struct row *row, int n)
{
    return batch_kind_slots(w->evict, row, plan_kind(w->plan, w->layer), n);
}

static struct prompt_span prompt_span(const struct cut *c, int token)
{
    return (struct prompt_span){.n_prompt = c->span->pos + c->span->n,
                                .first = c->span->pos + c->offset,
                                .n = c->n,
                                .token = token,
                                .page = c->page};
}

static struct forced_span forced_span(const struct layer_work *w, const struct batch *b,
                                      const struct cut *c, int token)
{
    const struct row *row = &b->rows[c->span->row];
    const int pos = c->span->pos + c->offset;
    return (struct forced_span){.row = c->span->row,
                                .n_slots = layer_slots(w, row, pos - row->n_done),
                                .n = c->n,
                                .pos = pos,
                                .token = token,
                                .limits = layer_limits(w, row)};
}

/* Writes the spans of all tiles of the batch, tile by tile. */
static void tell_spans(struct layer_work *w, const struct batch *b, tiles_fn next)
{
    struct tile t = {0};
    int64_t n_prompts = 0, n_forced = 0;
    while (next(w, b, &t, w->cuts))
        for (int i = 0; i < t.n_cuts; i++)
            *(w->cuts[i].span->kind == SPAN_PROMPT ? &n_prompts : &n_forced) += 1;
    struct prompt_span *p = tables_take(w->tables, n_prompts * (int64_t)sizeof *p);
    struct forced_span *f = tables_take(w->tables, n_forced * (int64_t)sizeof *f);
    w->told.prompts = p;
    w->told.forced = f;
    t = (struct tile){0};
    while (next(w, b, &t, w->cuts))
        for (int i = 0, at = 0; i < t.n_cuts; at += w->cuts[i].n, i++)
            if (w->cuts[i].span->kind == SPAN_PROMPT)
                *p++ = prompt_span(&w->cuts[i], at);
            else
                *f++ = forced_span(w, b, &w->cuts[i], at);
}

static void attend_prompts(struct layer_work *w, const struct tile *t, const struct cut *cuts,
                           const struct batch *b, float scale)
{
    const struct shape *s = w->shape;
    int64_t heads = (int64_t)s->n_heads * s->head_dim, kv = (int64_t)s->n_kv_heads * s->head_dim;
    int n = 0, at = 0;
    const struct prompt_span *spans = w->told.prompts;
    struct attend_prompt_args args = {
        .layout = w->prompt,
        .q = w->q,
        .out = w->attn,
        .pages = w->prompt_pages,
        .scores = evict_prompt_scores(w->rule.policy) ? w->prompt_scores : NULL,
        .policy = w->rule.policy,
        .spans = tables_seen(w->tables, spans),
        .n_heads = s->n_heads,
        .scale = scale,
        .cap = s->attn_softcap,
        .sinks = w->sinks,
        .window = s->layer_window[w->layer],
        .q_stride = heads,
        .out_stride = heads,
        .scratch = w->scratch};
    for (int i = 0; i < t->n_cuts; at += cuts[i].n, i++) {
        const struct cut *c = &cuts[i];
        if (c->span->kind != SPAN_PROMPT)
            continue;
        const struct prompt_span *span = &spans[n++];
        uint8_t *pages = w->prompt_pages + c->page * w->prompt.page_bytes;
        struct kv_store_args store = {.layout = w->prompt,
                                      .pages = pages,
                                      .k = w->k + at * kv,
                                      .v = w->v + at * kv,
                                      .k_stride = kv,
                                      .v_stride = kv,
                                      .first = span->first,
                                      .n = c->n};
        take_shared_pages(w, c, pages);
        ops_run_kv_store(&w->ops, &store);
        share_pages(w, b, c, pages);
        args.n_max = (int)max_i64(args.n_max, c->n);
        args.end_max = (int)max_i64(args.end_max, span->first + c->n);
        if (args.scores && c->offset == 0)
            ops_fill(&w->ops, prompt_span_scores(&args, span), 0,
                     round_up(span->n_prompt, PAGE_SLOTS) * s->n_kv_heads * 4);
    }
    args.n_spans = n;
    w->told.prompts += n;
    if (n > 0)
        ops_run_attend_prompt(&w->ops, &args);
}

static int ends_prompt(const struct cut *c)
{
    return c->span->kind == SPAN_PROMPT && c->offset + c->n == c->span->n;
}

/* At the end of a prompt, stores its kept slots in the pages of row kept_row of w->rows. */
static void keep_prompt(struct layer_work *w, const struct cut *c, const struct batch *b, int layer,
                        int kept_row)
{
    const struct row *row = &b->rows[c->span->row];
    int n_prompt = c->span->pos + c->span->n;
    int64_t scores_at = (int64_t)c->page * PAGE_SLOTS * w->shape->n_kv_heads;
    const int scores = evict_prompt_scores(w->rule.policy);
    struct prompt_keep_args keep = {.from = w->prompt,
                                    .pages = w->prompt_pages + c->page * w->prompt.page_bytes,
                                    .scores = scores ? w->prompt_scores + scores_at : NULL,
                                    .rope = slot_rope(w, layer),
                                    .kv = w->rows,
                                    .evict = w->rule,
                                    .limits = layer_limits(w, row),
                                    .row = kept_row,
                                    .n_prompt = n_prompt,
                                    .scratch = w->scratch};
    ops_run_prompt_keep(&w->ops, &keep);
    if (!w->dump)
        return;
    struct kv_row kv = kv_row_at(&w->rows, kept_row, &keep.limits, layer_slots(w, row, n_prompt));
    w->dump(w->dump_ctx, row, layer, &kv, 0, n_prompt, NULL);
}

/* q, k, v and output of a tile's forced spans. */
struct heads {
    float *q, *k, *v, *out;
};

static void attend_forced(struct layer_work *w, const struct tile *t, const struct cut *cuts,
                          const struct batch *b, const struct heads *at)
{
    const struct shape *s = w->shape;
    int64_t heads = (int64_t)s->n_heads * s->head_dim, kv = (int64_t)s->n_kv_heads * s->head_dim;
    int n = 0, n_max = 0, slots_max = 0;
    const struct forced_span *spans = w->told.forced;
    for (int i = 0; i < t->n_cuts; i++) {
        const struct cut *c = &cuts[i];
        if (c->span->kind != SPAN_FORCED)
            continue;
        const struct row *row = &b->rows[c->span->row];
        int slots = layer_slots(w, row, spans[n++].pos + c->n - row->n_done);
        n_max = (int)max_i64(n_max, c->n);
        slots_max = (int)max_i64(slots_max, slots);
    }
    w->told.forced += n;
    if (n == 0)
        return;
    struct attend_forced_args args = {.kv = w->rows,
                                      .rope = slot_rope(w, w->layer),
                                      .evict = w->rule,
                                      .spans = tables_seen(w->tables, spans),
                                      .n_spans = n,
                                      .n_heads = s->n_heads,
                                      .n_max = n_max,
                                      .slots_max = slots_max,
                                      .scale = shape_attn_scale(s),
                                      .cap = s->attn_softcap,
                                      .sinks = w->sinks,
                                      .q = at->q,
                                      .k = at->k,
                                      .v = at->v,
                                      .out = at->out,
                                      .q_stride = heads,
                                      .k_stride = kv,
                                      .v_stride = kv,
                                      .out_stride = heads,
                                      .events = w->dump ? w->events : NULL,
                                      .scratch = w->scratch};
    ops_run_attend_forced(&w->ops, &args);
    for (int i = 0; w->dump && i < n; i++) {
        const struct forced_span *f = &spans[i];
        const struct row *row = &b->rows[f->row];
        int slots = layer_slots(w, row, f->pos + f->n - row->n_done);
        struct kv_row held = kv_row_at(&w->rows, f->row, &f->limits, slots);
        w->dump(w->dump_ctx, row, w->layer, &held, f->pos, f->n,
                w->events + (int64_t)f->token * s->n_kv_heads);
    }
}

/* Normalises q or k, x [m][heads][head_dim]: each head, or (QK_NORM_WHOLE) all heads as one. */
static void qk_norm(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                    enum tensor_role role, float *x, int heads, int m)
{
    const struct shape *s = w->shape;
    struct norm_args args = {.x = x,
                             .y = x,
                             .weight = model_vector(l, role, weights),
                             .m = m,
                             .dim = s->head_dim,
                             .x_stride = (int64_t)heads * s->head_dim,
                             .y_stride = (int64_t)heads * s->head_dim,
                             .kind = s->qk_norm == QK_NORM_OWN ? NORM_LAYER : NORM_RMS,
                             .eps = s->norm_eps};
    if (s->qk_norm == QK_NORM_WHOLE) {
        args.dim = heads * s->head_dim;
        ops_run_norm(&w->ops, &args);
        return;
    }
    if (s->qk_norm == QK_NORM_HEAD) {
        args.m = m * heads;
        args.x_stride = args.y_stride = s->head_dim;
        ops_run_norm(&w->ops, &args);
        return;
    }
    for (int h = 0; h < heads; h++) {
        ops_run_norm(&w->ops, &args);
        args.x += s->head_dim;
        args.y += s->head_dim;
        args.weight += s->head_dim;
    }
}

/* A branch's input: norm(x) in w->normed if the norm precedes the branch, else x. */
static const float *branch_input(struct layer_work *w, const struct model_layer *l,
                                 const uint8_t *weights, enum tensor_role role,
                                 enum tensor_role bias, const float *x, int m)
{
    const int place = w->shape->norm_place;
    if (place != NORM_BEFORE && place != NORM_AROUND)
        return x;
    layer_norm(w, l, weights, role, bias, x, w->normed, m);
    return w->normed;
}

/* The part of a layer before attention: x of the tile to w->q, w->k, w->v. */
static void before_tile(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                        const struct tile *t, const struct cut *cuts, int layer, const float *x)
{
    const struct shape *s = w->shape;
    const struct projection qkv[] = {{ROLE_Q, ROLE_Q_B, w->q, ACT_NONE, 0},
                                     {ROLE_K, ROLE_K_B, w->k, ACT_NONE, 0},
                                     {ROLE_V, ROLE_V_B, w->v, ACT_NONE, 0}};
    const float *in = branch_input(w, l, weights, ROLE_NORM1_W, ROLE_NORM1_B, x, t->n);
    layer_project(w, l, weights, qkv, 3, in, t->n);
    if (s->qk_norm != QK_NORM_NONE) {
        qk_norm(w, l, weights, ROLE_Q_NORM_W, w->q, s->n_heads, t->n);
        qk_norm(w, l, weights, ROLE_K_NORM_W, w->k, s->n_kv_heads, t->n);
    }
    rope_tile(w, t, cuts, layer);
    if (!by_rank(w, layer)) { // else attention applies RoPE to stored keys
        layer_rotate(w, w->q, s->n_heads, t->n);
        layer_rotate(w, w->k, s->n_kv_heads, t->n);
    }
    layer_rotate(w, w->v, s->n_kv_heads, t->n);
}

static void attend_tile(struct layer_work *w, const struct tile *t, const struct cut *cuts,
                        const struct batch *b, int layer)
{
    const struct heads at = {w->q, w->k, w->v, w->attn};
    attend_prompts(w, t, cuts, b, shape_attn_scale(w->shape));
    for (int i = 0; i < t->n_cuts; i++)
        if (ends_prompt(&cuts[i]))
            keep_prompt(w, &cuts[i], b, layer, cuts[i].span->row);
    attend_forced(w, t, cuts, b, &at);
    layer_rotate(w, w->attn, w->shape->n_heads, t->n);
}

/* Attention and MLP read the same x: the MLP runs first, before attention's output changes x. Its
 * input is normalised again, because part 0 may have run in another step. */
static void after_parallel(struct layer_work *w, const struct model_layer *l,
                           const uint8_t *weights, const struct tile *t, float *x)
{
    const int shared = w->shape->branches == BRANCHES_SHARE_NORM;
    const struct projection out = {ROLE_O, ROLE_O_B, x, ACT_NONE, 1};
    layer_norm(w, l, weights, shared ? ROLE_NORM1_W : ROLE_NORM2_W,
               shared ? ROLE_NORM1_B : ROLE_NORM2_B, x, w->normed, t->n);
    layer_ffn(w, l, weights, w->normed, x, t->n);
    layer_project(w, l, weights, &out, 1, w->attn, t->n);
}

/* The part of a layer after attention: w->attn into x. */
static void after_tile(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                       const struct tile *t, float *x)
{
    const struct shape *s = w->shape;
    const int apart = layer_is_apart(s);
    const struct projection out = {ROLE_O, ROLE_O_B, apart ? w->normed : x, ACT_NONE, !apart};
    if (s->branches != BRANCHES_SERIAL) {
        after_parallel(w, l, weights, t, x);
        return;
    }
    layer_project(w, l, weights, &out, 1, w->attn, t->n);
    layer_join(w, l, weights, ROLE_POST1_W, x, w->normed, t->n);
    if (s->norm_place == NORM_AFTER_SUM)
        layer_norm(w, l, weights, ROLE_NORM1_W, ROLE_NORM1_B, x, x, t->n);
    const float *in = branch_input(w, l, weights, ROLE_NORM2_W, ROLE_NORM2_B, x, t->n);
    layer_ffn(w, l, weights, in, x, t->n);
    if (s->norm_place == NORM_AFTER_SUM)
        layer_norm(w, l, weights, ROLE_NORM2_W, ROLE_NORM2_B, x, x, t->n);
}

/* If KV moves, full pages are in the frame and the page being filled is the row's tail. Returns the
 * index of the page that is a tail after this step; -1: none. */
static int tail_page(const struct layer_work *w, const struct kv_rows *rows, const struct row *row)
{
    const int n_after = layer_slots(w, row, row->n_take);
    return rows->tails && n_after % PAGE_SLOTS ? n_after / PAGE_SLOTS : -1;
}

/* Id of page i of row r in this step; ~r: its tail. */
static int32_t page_id(const struct layer_work *w, const struct batch *b, int r, int i, int tail)
{
    return i == tail ? ~r : batch_page_id(w->plan, b, w->layer, r, i);
}

/* Ids of all pages of row r; a tail that becomes full in this step is copied to the frame first. */
static void place_pages(struct layer_work *w, const struct batch *b, int r, int32_t *ids)
{
    const struct row *row = &b->rows[r];
    const int n_slots = layer_slots(w, row, 0), before = n_slots / PAGE_SLOTS;
    const int tail = tail_page(w, &w->rows, row), own = plan_own_pages(w->plan, w->layer);
    for (int i = 0; i < (own > 0 ? own : row->n_pages); i++)
        ids[i] = page_id(w, b, r, i, tail);
    if (w->rows.tails && n_slots % PAGE_SLOTS && before != tail)
        ops_copy(&w->ops, kv_page_of(&w->rows, ids[before]), kv_page_of(&w->rows, ~r),
                 w->rows.layout.page_bytes);
}

/* Sets the current decoder layer. */
static void begin_layer(struct layer_work *w, int layer)
{
    struct evict_row limits = {0};
    w->layer = layer;
    evict_in_kind(w->evict, &limits, plan_kind(w->plan, layer), &w->rule, &limits);
}

/* The batch's KV in the current layer, without page ids. */
static void place_state(const struct layer_work *w, const struct batch *b,
                        const struct layer_kv *kv, struct kv_rows *rows)
{
    int64_t first = (int64_t)b->index * w->plan->batch; // the batch's first row in the run
    const int ring = w->ring_bytes > 0 ? EVICT_RING_MAX : 0, layer = w->layer;
    const int64_t slots = w->shape->n_kv_heads * plan_kv_slots_before(w->plan, layer, ring);
    rows->slots_cap = plan_kv_slots(w->plan, layer) + ring;
    rows->pages = kv->pages;
    rows->tails = kv->tails;
    rows->tail_stride = kv->tail_stride;
    rows->slot_pos = NULL;
    rows->slot_score = NULL;
    rows->slot_rank = NULL;
    rows->slot_trait = NULL;
    rows->rings = slab_at(&w->rings, first);
    if (w->rule.policy != EVICT_FULL) {
        rows->slot_pos = (int32_t *)slab_at(&w->slot_pos, first) + slots;
        rows->slot_score = (float *)slab_at(&w->slot_score, first) + slots;
    }
    if (by_rank(w, layer))
        rows->slot_rank = (int32_t *)slab_at(&w->slot_rank, first) + slots;
    if (evict_policy_trait(w->rule.policy))
        rows->slot_trait = (float *)slab_at(&w->slot_trait, first) + slots;
    if (rows->rings)
        rows->rings += layer * w->ring_bytes;
}

/* Page ids, and a zeroed bitmap of written pages, for n rows. */
static int32_t *take_pages(struct layer_work *w, int n)
{
    struct kv_rows *rows = &w->rows;
    const int64_t dirty_bytes = (int64_t)n * rows->dirty_stride * 8;
    void *dirty = tables_take(w->tables, dirty_bytes);
    memset(dirty, 0, (size_t)dirty_bytes);
    rows->dirty = tables_seen(w->tables, dirty);
    int32_t *ids = tables_take(w->tables, n * (int64_t)sizeof *ids * rows->page_ids_stride);
    rows->page_ids = tables_seen(w->tables, ids);
    return ids;
}

/* The batch's KV in the current layer, with page ids. */
static void place_rows(struct layer_work *w, const struct batch *b, const struct layer_kv *kv)
{
    struct kv_rows *rows = &w->rows;
    place_state(w, b, kv, rows);
    int32_t *ids = take_pages(w, b->n_rows);
    for (int r = 0; r < b->n_rows; r++)
        if (b->rows[r].request)
            place_pages(w, b, r, ids + (int64_t)r * rows->page_ids_stride);
}

void layer_decode(struct layer_work *w, const struct model_layer *l, int layer,
                  const struct batch *batch, const uint8_t *weights, const struct layer_kv *kv,
                  float *hidden)
{
    struct tile t = {0};
    begin_layer(w, layer - 1);
    place_rows(w, batch, kv);
    tell_rope(w, batch, layer - 1);
    tell_spans(w, batch, tile_next);
    tables_send(w->tables, &w->ops); // one copy for all tables of the step
    w->sinks = w->shape->sinks ? model_vector(l, ROLE_SINKS, weights) : NULL;
    while (tile_next(w, batch, &t, w->cuts)) {
        float *x = hidden + (int64_t)t.first * w->shape->dim;
        before_tile(w, l, weights, &t, w->cuts, layer - 1, x);
        attend_tile(w, &t, w->cuts, batch, layer - 1);
        after_tile(w, l, weights, &t, x);
    }
}

/* ---- in two parts ---- */

/* The tile's next run of consecutive cuts of a kind: first token, count (0 after the last). */
struct run {
    int cut, at, first, n;
};

static int run_next(const struct tile *t, const struct cut *cuts, int kind, struct run *r)
{
    r->n = 0;
    for (; r->cut < t->n_cuts && (r->n == 0 || cuts[r->cut].span->kind == kind); r->cut++) {
        if (cuts[r->cut].span->kind == kind) {
            r->first = r->n == 0 ? r->at : r->first;
            r->n += cuts[r->cut].n;
        }
        r->at += cuts[r->cut].n;
    }
    return r->n > 0;
}

/* Tokens of a kind in the tile. */
static int64_t run_tokens(const struct tile *t, const struct cut *cuts, int kind)
{
    int64_t n = 0;
    for (int i = 0; i < t->n_cuts; i++)
        n += cuts[i].span->kind == kind ? cuts[i].n : 0;
    return n;
}

/* Appends `each` values of x per token of a kind. */
static void add_runs(struct layer_work *w, struct cross *cross, const struct tile *t, int kind,
                     int bytes, const float *x, int64_t each)
{
    struct run r = {0};
    while (run_next(t, w->cuts, kind, &r))
        cross_out_add(cross, &w->ops, bytes, x + r.first * each, r.n * each);
}

/* Sends q, k and v of the tile's forced spans to the CPU. The prompts' attention, computed here,
 * goes to x->out after the forced spans' share, where part 1 reads it. */
static void send_tile(struct layer_work *w, struct cross *cross, const struct exchange *x,
                      const struct tile *t)
{
    const int64_t heads = q_numbers(w), kv = kv_numbers(w);
    const int64_t forced = run_tokens(t, w->cuts, SPAN_FORCED), prompts = t->n - forced;
    const struct cross_bytes bytes = x->bytes;
    if (forced > 0) {
        cross_out_begin(cross);
        add_runs(w, cross, t, SPAN_FORCED, bytes.in, w->q, heads);
        add_runs(w, cross, t, SPAN_FORCED, bytes.in, w->k, kv);
        add_runs(w, cross, t, SPAN_FORCED, bytes.in, w->v, kv);
        cross_out_end(cross, x->in + t->first * (heads + 2 * kv) * bytes.in,
                      forced * (heads + 2 * kv) * bytes.in);
    }
    if (prompts > 0) {
        layer_rotate(w, w->attn, w->shape->n_heads, t->n);
        cross_out_begin(cross);
        add_runs(w, cross, t, SPAN_PROMPT, bytes.out, w->attn, heads);
        cross_out_end(cross, x->out + (t->first + forced) * heads * bytes.out,
                      prompts * heads * bytes.out);
    }
}

/* Points w->rows at one row: buffer `turn` of the kept pages, with home's strides. */
static void place_kept(struct layer_work *w, const struct kv_rows *home, const struct cross *cross,
                       int turn)
{
    const struct slab *slots = &cross->kept_slots;
    struct kv_rows *rows = &w->rows;
    rows->slots_cap = home->slots_cap;
    rows->pages = slab_at(&cross->kept.buffers, turn);
    rows->slot_pos = home->slot_pos ? slab_at(slots, 4 * turn) : NULL;
    rows->slot_score = home->slot_score ? slab_at(slots, 4 * turn + 1) : NULL;
    rows->slot_rank = home->slot_rank ? slab_at(slots, 4 * turn + 2) : NULL;
    rows->slot_trait = home->slot_trait ? slab_at(slots, 4 * turn + 3) : NULL;
    rows->rings = slab_at(&cross->kept_rings, turn);
}

/* Copies the kept slots of the prompt of row r (w->rows: one row) to row r of `home`. */
static void send_kept(const struct layer_work *w, const struct ops *copies, const struct batch *b,
                      const struct kv_rows *home, int r, int n_prompt)
{
    const struct kv_rows *rows = &w->rows;
    const struct row *row = &b->rows[r];
    const int tail = tail_page(w, home, row);
    const int64_t pages = ceil_div(layer_slots(w, row, n_prompt), PAGE_SLOTS);
    const int64_t at = r * home->slot_stride;
    const int64_t n_bytes = (int64_t)w->shape->n_kv_heads * home->slots_cap * 4;
    for (int i = 0; i < pages; i++)
        ops_copy(copies, kv_page_of(home, page_id(w, b, r, i, tail)), kv_page_of(rows, i),
                 rows->layout.page_bytes);
    if (home->slot_pos) {
        ops_copy(copies, home->slot_pos + at, rows->slot_pos, n_bytes);
        ops_copy(copies, home->slot_score + at, rows->slot_score, n_bytes);
    }
    if (home->slot_rank)
        ops_copy(copies, home->slot_rank + at, rows->slot_rank, n_bytes);
    if (home->slot_trait)
        ops_copy(copies, home->slot_trait + at, rows->slot_trait, n_bytes);
    if (home->rings)
        ops_copy(copies, home->rings + r * home->ring_stride, rows->rings, w->ring_bytes);
}

/* Evicts from prompts that end in the tile and copies their kept slots to their rows. */
static void send_prompts(struct layer_work *w, struct cross *cross, const struct kv_rows *home,
                         const struct tile *t, const struct batch *b)
{
    for (int i = 0; i < t->n_cuts; i++) {
        const struct cut *c = &w->cuts[i];
        if (!ends_prompt(c))
            continue;
        place_kept(w, home, cross, cross_kept_begin(cross));
        keep_prompt(w, c, b, w->layer, 0);
        const struct ops copies = cross_kept_filled(cross);
        send_kept(w, &copies, b, home, c->span->row, c->span->pos + c->span->n);
        cross_kept_end(cross);
    }
}

void layer_before(struct layer_work *w, const struct model_layer *l, int layer,
                  const struct batch *batch, const uint8_t *weights, const struct layer_kv *kv,
                  float *hidden, struct cross *cross, const struct exchange *x)
{
    struct tile t = {0};
    begin_layer(w, layer - 1);
    struct kv_rows home = w->rows;
    place_state(w, batch, kv, &home);
    int32_t *ids = take_pages(w, 1);
    for (int i = 0; i < w->rows.page_ids_stride; i++)
        ids[i] = i;
    tell_rope(w, batch, layer - 1);
    tell_spans(w, batch, tile_next);
    tables_send(w->tables, &w->ops);
    w->sinks = w->shape->sinks ? model_vector(l, ROLE_SINKS, weights) : NULL;
    if (w->sinks)
        ops_copy(&w->ops, x->sinks, w->sinks, w->shape->n_heads * 4);
    while (tile_next(w, batch, &t, w->cuts)) {
        before_tile(w, l, weights, &t, w->cuts, layer - 1,
                    hidden + (int64_t)t.first * w->shape->dim);
        attend_prompts(w, &t, w->cuts, batch, shape_attn_scale(w->shape));
        send_prompts(w, cross, &home, &t, batch);
        send_tile(w, cross, x, &t);
    }
}

/* q, k and v of n tokens, as received from a device; f32 is used in place. */
static struct heads take_crossed(struct layer_work *w, uint8_t *in, int bytes, int64_t n)
{
    const int64_t heads = n * q_numbers(w), kv = n * kv_numbers(w);
    uint8_t *k = in + heads * bytes, *v = k + kv * bytes;
    if (bytes == 4)
        return (struct heads){(float *)(void *)in, (float *)(void *)k, (float *)(void *)v, w->attn};
    cross_widen(&w->ops, bytes, w->q, in, heads);
    cross_widen(&w->ops, bytes, w->k, k, kv);
    cross_widen(&w->ops, bytes, w->v, v, kv);
    return (struct heads){w->q, w->k, w->v, w->attn};
}

/* Marks the pages of prompts, which were copied with the tiles, as written. */
static void mark_prompts(struct layer_work *w, const struct batch *b)
{
    for (int i = 0; i < b->n_spans; i++) {
        const struct span *s = &b->spans[i];
        if (s->kind != SPAN_PROMPT)
            continue;
        uint64_t *dirty = w->rows.dirty + (int64_t)s->row * w->rows.dirty_stride;
        const int slots = layer_slots(w, &b->rows[s->row], s->pos + s->n);
        for (int page = 0; page * PAGE_SLOTS < slots; page++)
            dirty[page >> 6] |= 1ull << (page & 63);
    }
}

void layer_attend(struct layer_work *w, int layer, const struct batch *batch,
                  const struct layer_kv *kv, const struct exchange *x)
{
    const int64_t heads = q_numbers(w), all = heads + 2 * kv_numbers(w);
    struct tile t = {0};
    begin_layer(w, layer - 1);
    place_rows(w, batch, kv);
    mark_prompts(w, batch);
    tell_spans(w, batch, tile_next_forced);
    tables_send(w->tables, &w->ops);
    w->sinks = w->shape->sinks ? x->sinks : NULL;
    while (tile_next_forced(w, batch, &t, w->cuts)) {
        const int64_t n = run_tokens(&t, w->cuts, SPAN_FORCED);
        uint8_t *out = x->out + t.first * heads * x->bytes.out;
        if (n == 0)
            continue;
        struct heads at = take_crossed(w, x->in + t.first * all * x->bytes.in, x->bytes.in, n);
        if (x->bytes.out == 4)
            at.out = (float *)(void *)out;
        attend_forced(w, &t, w->cuts, batch, &at);
        layer_rotate(w, at.out, w->shape->n_heads, (int)n);
        if (x->bytes.out != 4)
            cross_narrow(&w->ops, x->bytes.out, out, at.out, n * heads);
    }
}

void layer_after(struct layer_work *w, const struct model_layer *l, int layer,
                 const struct batch *batch, const uint8_t *weights, struct cross *cross,
                 const struct exchange *x, float *hidden)
{
    static const int kinds[] = {SPAN_FORCED, SPAN_PROMPT}; // the order in x->out
    const int64_t heads = q_numbers(w), bytes = heads * x->bytes.out;
    struct tile t = {0};
    begin_layer(w, layer - 1);
    while (tile_next(w, batch, &t, w->cuts)) {
        cross_in_begin(cross, x->out + t.first * bytes, t.n * bytes);
        for (int i = 0; i < 2; i++) {
            struct run r = {0};
            while (run_next(&t, w->cuts, kinds[i], &r))
                cross_in_take(cross, &w->ops, w->attn + r.first * heads, r.n * heads);
        }
        cross_in_end(cross);
        after_tile(w, l, weights, &t, hidden + (int64_t)t.first * w->shape->dim);
    }
}
