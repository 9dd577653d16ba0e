/* engine/line/gather.c - see gather.h. */
#include "engine/line/gather.h"

/* n sets of `windows` windows each. */
static void place_sets(struct gather_set *sets, struct carve *c, int n, int64_t windows,
                       int64_t window_bytes)
{
    const struct slab bytes = CARVE_BLOCKS(c, workspace, ARENA_PINNED, n, windows * window_bytes);
    const struct slab segments =
        CARVE_SLAB(c, workspace, ARENA_HOST, n, windows * (int64_t)sizeof(struct segment));
    for (int i = 0; sets && i < n; i++)
        sets[i] =
            (struct gather_set){.windows = slab_at(&bytes, i), .segments = slab_at(&segments, i)};
}

void gather_place(struct gather *g, struct carve *c)
{
    const struct plan *p = c->plan;
    const struct weights_info *w = c->set->weights;
    *g = (struct gather){.base = c->base[p->device ? ARENA_PINNED : ARENA_HOST],
                         .rows_cap = p->tile_tokens};
    if (p->embed_resident)
        return;
    g->window_bytes = round_up(w->embed_row_bytes, BLOCK_BYTES) + BLOCK_BYTES;
    g->n_chunks = p->gather_sets;
    g->chunk_cap = p->gather_windows;
    CARVE(c, workspace, ARENA_HOST, g->ahead, p->batches + p->gather_sets);
    g->chunks = g->ahead ? g->ahead + p->batches : NULL;
    place_sets(g->ahead, c, p->batches, p->batch, g->window_bytes);
    place_sets(g->chunks, c, g->n_chunks, g->chunk_cap, g->window_bytes);
    g->rest = CARVE_BLOCKS(c, workspace, ARENA_DEVICE, 1, w->embed_rest_bytes).base;
}

int64_t gather_rest_offset(const struct model *model)
{
    const struct model_layer *l = &model->layers[0];
    const struct model_tensor *t = &l->tensors[ROLE_EMBED];
    if (!model_has(l, ROLE_POS) && !model_has(l, ROLE_PROJ_IN) && !model_has(l, ROLE_INPUTS_PROJ))
        return l->n_bytes;
    return (t->offset + model_record_bytes(l) * t->n) / PIECE_BYTES * PIECE_BYTES;
}

enum err gather_open(struct gather *g, struct home *home, const struct ops *ops,
                     struct tables *tables)
{
    const struct model_layer *l = &home->model->layers[0];
    g->home = home;
    g->model = home->model;
    g->rest_offset = gather_rest_offset(g->model);
    g->ops = ops;
    g->tables = tables;
    if (!g->ahead || l->n_bytes == g->rest_offset)
        return OK;
    int64_t from = g->rest_offset;
    struct segment segment = {.offset = l->offset + from,
                              .n_bytes = l->n_bytes - from,
                              .buf = g->rest,
                              .crc = g->model->piece_crcs + l->piece + from / PIECE_BYTES};
    struct ticket ticket = {.place = HOME_PACK,
                            .on_device = g->home->plan->device,
                            .segments = &segment,
                            .n_segments = 1,
                            .name = "weights",
                            .batch = -1};
    mover_submit(home->mover, &ticket);
    return mover_wait(home->mover, &ticket);
}

/* A read of the disk blocks around a row, checked by the row's own checksum. */
static struct segment window_of(const struct gather *g, int32_t token, uint8_t *window)
{
    int64_t offset, n_bytes;
    model_embed_row(g->model, token, &offset, &n_bytes);
    int64_t first = offset / BLOCK_BYTES * BLOCK_BYTES;
    return (struct segment){.offset = first,
                            .n_bytes = round_up(offset + n_bytes - first, BLOCK_BYTES),
                            .buf = window,
                            .crc = g->model->row_crcs + token,
                            .crc_from = (int32_t)(offset - first),
                            .crc_bytes = (int32_t)n_bytes};
}

/* Offset from g->base of a token's row in its window. */
static int64_t window_row(const struct gather *g, int32_t token, const uint8_t *window)
{
    int64_t offset, n_bytes;
    model_embed_row(g->model, token, &offset, &n_bytes);
    return window + offset % BLOCK_BYTES - g->base;
}

/* Rows [first, first + n) of `to` = those of the records at `rows` + offsets[0..n), decoded. */
static void decode_rows(struct gather *g, const uint8_t *rows, const int64_t *offsets, int first,
                        int n, const struct gathered *to)
{
    static const enum tensor_role roles[] = {ROLE_EMBED, ROLE_INPUTS_EMBED};
    const struct model_layer *l = &g->model->layers[0];
    float *const out[] = {to->embed, to->inputs};
    tables_send(g->tables, g->ops);
    for (int r = 0; r < 2 && model_has(l, roles[r]); r++) {
        const struct model_tensor *t = &l->tensors[roles[r]];
        struct gather_args args = {.dtype = t->dtype,
                                   .k = t->k,
                                   .rows = rows + model_record_at(l, roles[r]),
                                   .offsets = tables_seen(g->tables, offsets),
                                   .x = out[r] + (int64_t)first * t->k,
                                   .x_stride = t->k,
                                   .n = n};
        ops_run_gather(g->ops, &args);
    }
}

static void submit_set(struct gather *g, struct gather_set *s, int n, int64_t due, int batch)
{
    s->ticket = (struct ticket){.place = HOME_PACK,
                                .segments = s->segments,
                                .n_segments = n,
                                .due = due,
                                .name = "rows",
                                .layer = 0,
                                .batch = batch};
    mover_submit(g->home->mover, &s->ticket);
}

enum err gather_ahead(struct gather *g, struct batch *batch, int64_t due)
{
    if (!g->ahead)
        return OK;
    struct gather_set *s = &g->ahead[batch->index];
    mover_wait(g->home->mover, &s->ticket); // an unused prefetch may be in flight
    int n = 0;
    for (int r = 0; r < batch->n_rows; r++) {
        struct row *row = &batch->rows[r];
        row->ahead_token = -1;
        if (!row->request || row->request->kind != REQUEST_GENERATE ||
            row->n_done + row->n_take != row->request->n_tokens - 1)
            continue;
        row->ahead_token = row->request->tokens[row->request->n_tokens - 1];
        row->ahead_window = n;
        s->segments[n] = window_of(g, row->ahead_token, s->windows + n * g->window_bytes);
        n++;
    }
    submit_set(g, s, n, due, batch->index);
    return OK;
}

/* The span of the batch's i-th token; *span is the search's start and is advanced. */
static const struct span *span_find(const struct batch *batch, int *span, int i)
{
    while (i >= batch->spans[*span].first + batch->spans[*span].n)
        (*span)++;
    return &batch->spans[*span];
}

/* The batch's i-th token, and its prefetched window; -1: not prefetched. */
struct token_at {
    int32_t token;
    int ahead;
};

static struct token_at token_find(const struct gather *g, const struct batch *batch, int *span,
                                  int i)
{
    const struct span *s = span_find(batch, span, i);
    const struct row *row = &batch->rows[s->row];
    struct token_at t = {.token = row->request->tokens[s->pos + i - s->first], .ahead = -1};
    if (s->kind == SPAN_FORCED && s->n == 1 && row->ahead_token == t.token && g->ahead &&
        g->ahead[batch->index].segments[row->ahead_window].err == OK)
        t.ahead = row->ahead_window;
    return t;
}

/* Consecutive tokens of a pass, and the set that reads those which were not prefetched. */
struct chunk {
    struct gather_set *set; // NULL: all were prefetched
    int first, last;
};

/* Starts the reads of the tokens from `first` on, as many as the set has windows. */
static struct chunk chunk_issue(struct gather *g, const struct batch *batch, int first,
                                int64_t step)
{
    struct gather_set *s = &g->chunks[g->turn % g->n_chunks];
    struct chunk c = {.first = first, .last = first};
    int n = 0, span = 0;
    for (; c.last < batch->n_tokens && n < g->chunk_cap; c.last++) {
        struct token_at t = token_find(g, batch, &span, c.last);
        if (t.ahead < 0) {
            s->segments[n] = window_of(g, t.token, s->windows + n * g->window_bytes);
            n++;
        }
    }
    if (n == 0)
        return c;
    submit_set(g, s, n, step, batch->index);
    g->turn++;
    c.set = s;
    return c;
}

/* Decodes a chunk whose reads are done. */
static void chunk_decode(struct gather *g, const struct batch *batch, const struct chunk *c,
                         const struct gathered *to)
{
    const uint8_t *ahead = g->ahead[batch->index].windows,
                  *window = c->set ? c->set->windows : NULL;
    int span = 0;
    for (int i = c->first, n = 0; i < c->last; i += n) {
        n = (int)min_i64(g->rows_cap, c->last - i);
        int64_t *offsets = tables_take(g->tables, n * (int64_t)sizeof *offsets);
        for (int j = 0; j < n; j++) {
            struct token_at a = token_find(g, batch, &span, i + j);
            int came = a.ahead >= 0;
            offsets[j] = window_row(g, a.token, came ? ahead + a.ahead * g->window_bytes : window);
            window += came ? 0 : g->window_bytes;
        }
        decode_rows(g, g->base, offsets, i, n, to);
    }
}

enum err gather_tokens(struct gather *g, struct batch *batch, int64_t step,
                       const struct gathered *to)
{
    if (!g->ahead) {
        const struct model_layer *l = &g->model->layers[0];
        const uint8_t *rows = g->home->weights[0].resident + l->tensors[ROLE_EMBED].offset;
        const int64_t record_bytes = model_record_bytes(l);
        int span = 0;
        for (int i = 0, n = 0; i < batch->n_tokens; i += n) {
            n = (int)min_i64(g->rows_cap, batch->n_tokens - i);
            int64_t *offsets = tables_take(g->tables, n * (int64_t)sizeof *offsets);
            for (int j = 0; j < n; j++)
                offsets[j] = token_find(g, batch, &span, i + j).token * record_bytes;
            decode_rows(g, rows, offsets, i, n, to);
        }
        return OK;
    }
    /* A failed prefetch is no error: the row is read again in its chunk. */
    mover_wait(g->home->mover, &g->ahead[batch->index].ticket);
    struct chunk c = chunk_issue(g, batch, 0, step);
    while (c.first < batch->n_tokens) {
        struct chunk next = chunk_issue(g, batch, c.last, step);
        if (c.set)
            TRY(mover_wait(g->home->mover, &c.set->ticket));
        chunk_decode(g, batch, &c, to);
        c = next;
    }
    return OK;
}

const uint8_t *gather_base(const struct gather *g)
{
    if (!g->ahead)
        return g->home->weights[0].resident;
    return g->rest ? g->rest - g->rest_offset : NULL;
}

void gather_positions(struct gather *g, const struct batch *batch, float *x, void *scratch)
{
    const struct model_tensor *t = &g->model->layers[0].tensors[ROLE_POS];
    struct gather_args args = {.dtype = t->dtype,
                               .k = t->k,
                               .rows = gather_base(g) + t->offset,
                               .x_stride = t->k,
                               .add = 1,
                               .scratch = scratch};
    int64_t row_bytes = dtype_row_bytes(t->dtype, t->k);
    int span = 0;
    for (int i = 0; i < batch->n_tokens; i += args.n) {
        args.n = (int)min_i64(g->rows_cap, batch->n_tokens - i);
        args.x = x + (int64_t)i * t->k;
        int64_t *offsets = tables_take(g->tables, args.n * (int64_t)sizeof *offsets);
        args.offsets = tables_seen(g->tables, offsets);
        for (int j = 0; j < args.n; j++) {
            const struct span *s = span_find(batch, &span, i + j);
            int64_t pos = s->pos + i + j - s->first + g->model->shape.position_offset;
            offsets[j] = pos * row_bytes;
        }
        tables_send(g->tables, g->ops);
        ops_run_gather(g->ops, &args);
    }
}
