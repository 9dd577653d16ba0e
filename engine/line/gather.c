/* engine/line/gather.c - see gather.h. */
#include "engine/line/gather.h"

#include <string.h>

#define DISK_BLOCK 4096

void gather_place(struct gather *g, const struct memory *memory, const struct plan *plan,
                  const struct model *model)
{
    const struct model_tensor *t = &model->layers[0].tensors[ROLE_EMBED];
    g->model = model;
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

enum err gather_open(struct gather *g, struct home *home)
{
    const struct model_layer *l = &g->model->layers[0];
    g->home = home;
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

static void decode_window(const struct gather *g, int32_t token, const uint8_t *window, float *x)
{
    const struct model_tensor *t = &g->model->layers[0].tensors[ROLE_EMBED];
    int64_t offset, n_bytes;
    model_embed_row(g->model, token, &offset, &n_bytes);
    dtype_decode_row(t->dtype, window + offset % DISK_BLOCK, t->k, x);
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

/* The k-th token of the batch's pass, and the window that came ahead with it; -1: none. */
struct token_at {
    int32_t token;
    int ahead;
};

static struct token_at token_find(const struct gather *g, const struct batch *batch, int *span,
                                  int i)
{
    while (i >= batch->spans[*span].first + batch->spans[*span].n)
        (*span)++;
    const struct span *s = &batch->spans[*span];
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
        for (int i = 0; i < batch->n_tokens; i++)
            dtype_decode_row(t->dtype, rows + token_find(g, batch, &span, i).token * row_bytes, dim,
                             x + (int64_t)i * dim);
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
        for (int i = first; i < last; i++) {
            struct token_at a = token_find(g, batch, &span, i);
            int came = a.ahead >= 0;
            const uint8_t *from = came ? ahead->windows + a.ahead * g->window_bytes : window;
            decode_window(g, a.token, from, x + (int64_t)i * dim);
            window += came ? 0 : g->window_bytes;
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

void gather_position(const struct gather *g, int position, float *out)
{
    const struct model_tensor *t = &g->model->layers[0].tensors[ROLE_POS];
    int64_t row = position + g->model->shape.position_offset;
    const uint8_t *rows = gather_base(g) + t->offset;
    dtype_decode_row(t->dtype, rows + row * dtype_row_bytes(t->dtype, t->k), t->k, out);
}
