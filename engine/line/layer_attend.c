/* engine/line/layer_attend.c - see layer_impl.h: attention of a tile. */
#include "engine/line/layer_impl.h"

/* 1: the layer stores keys before rotation, and attention rotates them by rank. */
int layer_by_rank(const struct layer_work *w, int layer)
{
    const struct shape *s = w->shape;
    return w->slot_cos && s->position == POSITION_ROPE && s->layer_rope[layer] != SHAPE_NO_ROPE;
}

/* The tables for that rotation; zeros if keys are stored rotated. */
static struct slot_rope slot_rope(const struct layer_work *w, int layer)
{
    const struct shape *s = w->shape;
    if (!layer_by_rank(w, layer))
        return (struct slot_rope){0};
    const int table = s->layer_rope[layer];
    const int64_t at = layer_angles_at(w, table), first = table * w->rope_rows;
    return (struct slot_rope){.cos = w->slot_cos + at,
                              .sin = w->slot_sin + at,
                              .factors = w->slot_factors ? w->slot_factors + first : NULL,
                              .rope_dim = shape_rope_dim(s, layer),
                              .scale = s->ropes[table].scale};
}

/* Rotates q, and k of the layer's own, of n tokens of the tile, from `first`; pos [n]: rows of the
 * rope tables. */
static void rope_rows(struct layer_work *w, int first, int n, const int32_t *pos)
{
    const struct shape *s = w->shape;
    const int64_t heads = layer_q_numbers(w), kv = layer_kv_numbers(w);
    const int table = s->layer_rope[w->layer];
    const int64_t at = layer_angles_at(w, table);
    struct rope_args args = {.x = w->q + first * heads,
                             .cos = w->cos + at,
                             .sin = w->sin + at,
                             .factors = w->factors ? w->factors + table * w->rope_rows : NULL,
                             .pos = tables_seen(w->tables, pos),
                             .m = n,
                             .n_heads = s->n_heads,
                             .head_dim = shape_head_dim(s, w->layer),
                             .rope_dim = shape_rope_dim(s, w->layer),
                             .x_stride = heads};
    ops_run_rope(&w->ops, &args);
    if (shape_borrows_kv(s, w->layer))
        return;
    args.x = w->k + first * kv;
    args.factors = NULL;
    args.n_heads = shape_kv_heads(s, w->layer);
    args.x_stride = kv;
    ops_run_rope(&w->ops, &args);
}

/* Where positions are ranks, rotates prompts only: attention rotates forced tokens. */
void tile_rope(struct layer_work *w, const struct tile *t, const struct cut *cuts, int layer)
{
    const int32_t *pos = w->told.pos ? w->told.pos + t->first : NULL;
    if (!pos)
        return;
    if (!layer_by_rank(w, layer)) {
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

void tile_prompts(struct layer_work *w, const struct tile *t, const struct cut *cuts,
                  const struct batch *b, float scale)
{
    const struct shape *s = w->shape;
    const int64_t heads = layer_q_numbers(w), kv = layer_kv_numbers(w);
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
                                      .v = layer_values(w) + at * kv,
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
                     round_up(span->n_prompt, PAGE_SLOTS) * w->prompt.n_kv_heads * 4);
    }
    args.n_spans = n;
    w->told.prompts += n;
    if (n > 0)
        ops_run_attend_prompt(&w->ops, &args);
}

/* At the end of a prompt, stores its kept slots in the pages of row kept_row of w->rows. */
void tile_keep(struct layer_work *w, const struct cut *c, const struct batch *b, int layer,
               int kept_row)
{
    const struct row *row = &b->rows[c->span->row];
    int n_prompt = c->span->pos + c->span->n;
    int64_t scores_at = (int64_t)c->page * PAGE_SLOTS * w->prompt.n_kv_heads;
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

void tile_forced(struct layer_work *w, const struct tile *t, const struct cut *cuts,
                 const struct batch *b, const struct heads *at)
{
    const struct shape *s = w->shape;
    const int64_t heads = layer_q_numbers(w), kv = layer_kv_numbers(w);
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
                w->events + (int64_t)f->token * w->rows.layout.n_kv_heads);
    }
}

void tile_attend(struct layer_work *w, const struct tile *t, const struct cut *cuts,
                 const struct batch *b, int layer)
{
    const struct heads at = {w->q, w->k, layer_values(w), w->attn};
    tile_prompts(w, t, cuts, b, shape_attn_scale(w->shape));
    for (int i = 0; i < t->n_cuts; i++)
        if (cut_ends_prompt(&cuts[i]))
            tile_keep(w, &cuts[i], b, layer, cuts[i].span->row);
    tile_forced(w, t, cuts, b, &at);
    layer_rotate(w, w->attn, w->shape->n_heads, t->n);
}
