/* engine/line/gather.c - see gather.h. */
#include "engine/line/gather.h"

#define DISK_BLOCK 4096

void gather_place(struct gather *g, const struct memory *memory, const struct plan *plan,
                  const struct model *model)
{
    const struct model_tensor *t = &model->layers[0].tensors[ROLE_EMBED];
    g->model = model;
    g->base = memory->base;
    g->offsets = memory_at(memory, LAYOUT_GATHER_OFFSETS, 0);
    g->offsets_cap = plan->tile_tokens;
    g->ahead = memory_at(memory, LAYOUT_GATHER_SETS, 0);
    if (!g->ahead)
        return;
    g->window_bytes = round_up(dtype_row_bytes(t->dtype, t->k), DISK_BLOCK) + DISK_BLOCK;
    g->chunk_cap = plan->gather_windows / 2;
    for (int i = 0; i < plan->batches; i++)
        g->ahead[i] = (struct gather_set){.windows = memory_at(memory, LAYOUT_AHEAD_WINDOWS, i),
                                          .segments = memory_at(memory, LAYOUT_AHEAD_SEGMENTS, i)};
    for (int i = 0; i < 2; i++)
        g->chunk[i] = (struct gather_set){.windows = memory_at(memory, LAYOUT_CHUNK_WINDOWS, i),
                                          .segments = memory_at(memory, LAYOUT_CHUNK_SEGMENTS, i)};
    g->rest_offset = gather_rest_offset(model);
    g->rest = memory_at(memory, LAYOUT_EMBED_REST, 0);
}

int64_t gather_rest_offset(const struct model *model)
{
    const struct model_layer *l = &model->layers[0];
    const struct model_tensor *t = &l->tensors[ROLE_EMBED];
    if (!model_has(l, ROLE_POS) && !model_has(l, ROLE_PROJ_IN))
        return l->n_bytes;
    return (t->offset + dtype_row_bytes(t->dtype, t->k) * t->n) / MOVER_PIECE * MOVER_PIECE;
}

enum err gather_open(struct gather *g, struct home *home, const struct ops *ops)
{
    const struct model_layer *l = &g->model->layers[0];
    g->home = home;
    g->ops = ops;
    if (!g->ahead || l->n_bytes == g->rest_offset)
        return OK;
    int64_t from = g->rest_offset;
    struct segment segment = {.offset = l->offset + from,
                              .n_bytes = l->n_bytes - from,
                              .buf = g->rest,
                              .crc = g->model->piece_crcs + l->piece + from / MOVER_PIECE};
    struct ticket ticket = {
        .place = HOME_PACK, .segments = &segment, .n_segments = 1, .name = "weights", .batch = -1};
    mover_submit(home->mover, &ticket);
    return mover_wait(home->mover, &ticket);
}

/* The blocks around a row, and the row's own checksum. */
static struct segment window_of(const struct gather *g, int32_t token, uint8_t *window)
{
    int64_t offset, n_bytes;
    model_embed_row(g->model, token, &offset, &n_bytes);
    int64_t first = offset / DISK_BLOCK * DISK_BLOCK;
    return (struct segment){.offset = first,
                            .n_bytes = round_up(offset + n_bytes - first, DISK_BLOCK),
                            .buf = window,
                            .crc = g->model->row_crcs + token,
                            .crc_from = (int32_t)(offset - first),
                            .crc_bytes = (int32_t)n_bytes};
}

/* Where a token's row lies in the run's memory, given its window. */
static int64_t window_row(const struct gather *g, int32_t token, const uint8_t *window)
{
    int64_t offset, n_bytes;
    model_embed_row(g->model, token, &offset, &n_bytes);
    return window + offset % DISK_BLOCK - g->base;
}

/* x [n, k] = the rows at offsets[0..n) behind `rows`. */
static void decode_rows(struct gather *g, const struct model_tensor *t, const uint8_t *rows, int n,
                        float *x)
{
    struct gather_args args = {.dtype = t->dtype,
                               .k = t->k,
                               .rows = rows,
                               .offsets = g->offsets,
                               .x = x,
                               .x_stride = t->k,
                               .n = n};
    ops_run_gather(g->ops, &args);
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
    mover_wait(g->home->mover, &s->ticket); // nobody has asked for these, when it is not done yet
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

/* The span of the batch's i-th token; *span: where to go on looking. */
static const struct span *span_find(const struct batch *batch, int *span, int i)
{
    while (i >= batch->spans[*span].first + batch->spans[*span].n)
        (*span)++;
    return &batch->spans[*span];
}

/* The k-th token of the batch's pass, and the window that came ahead with it; -1: none. */
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

/* Issues the reads of the next chunk's tokens from token i on; returns the first token after it. */
static int chunk_issue(struct gather *g, struct gather_set *s, const struct batch *batch, int i,
                       int64_t step)
{
    int n = 0, span = 0;
    for (; i < batch->n_tokens && n < g->chunk_cap; i++) {
        struct token_at t = token_find(g, batch, &span, i);
        if (t.ahead < 0) {
            s->segments[n] = window_of(g, t.token, s->windows + n * g->window_bytes);
            n++;
        }
    }
    submit_set(g, s, n, step, batch->index);
    return i;
}

enum err gather_tokens(struct gather *g, struct batch *batch, int64_t step, float *x)
{
    const struct model_tensor *t = &g->model->layers[0].tensors[ROLE_EMBED];
    int dim = t->k;
    if (!g->ahead) {
        int span = 0;
        const uint8_t *rows = g->home->weights[0].resident + t->offset;
        int64_t row_bytes = dtype_row_bytes(t->dtype, dim);
        for (int i = 0, n = 0; i < batch->n_tokens; i += n) {
            n = (int)min_i64(g->offsets_cap, batch->n_tokens - i);
            for (int j = 0; j < n; j++)
                g->offsets[j] = token_find(g, batch, &span, i + j).token * row_bytes;
            decode_rows(g, t, rows, n, x + (int64_t)i * dim);
        }
        return OK;
    }
    struct gather_set *ahead = &g->ahead[batch->index];
    mover_wait(g->home->mover, &ahead->ticket); // a row that did not come is read in its chunk
    int first = 0, span = 0;
    int last = chunk_issue(g, &g->chunk[0], batch, 0, step);
    for (int k = 0; first < batch->n_tokens; k ^= 1) {
        int next = chunk_issue(g, &g->chunk[k ^ 1], batch, last, step);
        TRY(mover_wait(g->home->mover, &g->chunk[k].ticket));
        uint8_t *window = g->chunk[k].windows;
        for (int i = first, n = 0; i < last; i++) {
            struct token_at a = token_find(g, batch, &span, i);
            int came = a.ahead >= 0;
            const uint8_t *from = came ? ahead->windows + a.ahead * g->window_bytes : window;
            g->offsets[n++] = window_row(g, a.token, from);
            window += came ? 0 : g->window_bytes;
            if (n == g->offsets_cap || i + 1 == last) {
                decode_rows(g, t, g->base, n, x + (int64_t)(i + 1 - n) * dim);
                n = 0;
            }
        }
        first = last;
        last = next;
    }
    TRY(mover_wait(g->home->mover, &g->chunk[0].ticket)); // the empty one issued behind the last
    return mover_wait(g->home->mover, &g->chunk[1].ticket);
}

const uint8_t *gather_base(const struct gather *g)
{
    return g->ahead ? g->rest - g->rest_offset : g->home->weights[0].resident;
}

void gather_positions(struct gather *g, const struct batch *batch, float *x, void *scratch)
{
    const struct model_tensor *t = &g->model->layers[0].tensors[ROLE_POS];
    struct gather_args args = {.dtype = t->dtype,
                               .k = t->k,
                               .rows = gather_base(g) + t->offset,
                               .offsets = g->offsets,
                               .x_stride = t->k,
                               .add = 1,
                               .scratch = scratch};
    int64_t row_bytes = dtype_row_bytes(t->dtype, t->k);
    int span = 0;
    for (int i = 0; i < batch->n_tokens; i += args.n) {
        args.n = (int)min_i64(g->offsets_cap, batch->n_tokens - i);
        args.x = x + (int64_t)i * t->k;
        for (int j = 0; j < args.n; j++) {
            const struct span *s = span_find(batch, &span, i + j);
            int64_t pos = s->pos + i + j - s->first + g->model->shape.position_offset;
            g->offsets[j] = pos * row_bytes;
        }
        ops_run_gather(g->ops, &args);
    }
}
