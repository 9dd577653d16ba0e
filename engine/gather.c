/* engine/gather.c - see gather.h. */
#include "engine/gather.h"

#include <string.h>

#define DISK_BLOCK 4096

static void carve_set(struct gather_set *s, struct arena *arena, int64_t n, int64_t window_bytes)
{
    uint8_t *windows = arena_take(arena, n * window_bytes, DISK_BLOCK);
    struct segment *segments = ARENA_ARRAY(arena, struct segment, n);
    if (arena->base)
        *s = (struct gather_set){.windows = windows, .segments = segments};
}

void gather_carve(struct gather *g, struct arena *arena, const struct plan *plan,
                  const struct model *model)
{
    const struct model_layer *l = &model->layers[0];
    const struct model_tensor *t = &l->tensors[ROLE_EMBED];
    g->model = model;
    g->ahead = NULL;
    if (plan->embed_resident)
        return;
    g->window_bytes = round_up(dtype_row_bytes(t->dtype, t->k), DISK_BLOCK) + DISK_BLOCK;
    g->chunk_cap = plan->gather_windows / 2;
    g->ahead = ARENA_ARRAY(arena, struct gather_set, plan->batches);
    for (int i = 0; i < plan->batches; i++) {
        struct gather_set none, *s = arena->base ? &g->ahead[i] : &none;
        carve_set(s, arena, plan->batch, g->window_bytes);
    }
    for (int i = 0; i < 2; i++)
        carve_set(&g->chunk[i], arena, g->chunk_cap, g->window_bytes);
    g->rest_offset = gather_rest_offset(model);
    g->rest = arena_take(arena, l->n_bytes - g->rest_offset, DISK_BLOCK);
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
    struct segment segment = {l->offset + g->rest_offset, l->n_bytes - g->rest_offset, g->rest};
    struct ticket ticket = {.place = HOME_PACK,
                            .segments = &segment,
                            .n_segments = 1,
                            .crc = g->model->piece_crcs + l->piece + g->rest_offset / MOVER_PIECE,
                            .name = "weights",
                            .batch = -1};
    mover_submit(home->mover, &ticket);
    return mover_wait(home->mover, &ticket);
}

static struct segment window_of(const struct gather *g, int32_t token, uint8_t *window)
{
    int64_t offset, n_bytes;
    model_embed_row(g->model, token, &offset, &n_bytes);
    int64_t first = offset / DISK_BLOCK * DISK_BLOCK;
    return (struct segment){first, round_up(offset + n_bytes - first, DISK_BLOCK), window};
}

/* Decodes a row that was read; its checksum gets a second chance by a read of its own. */
static enum err decode_window(struct gather *g, int32_t token, uint8_t *window, float *x)
{
    const struct model_tensor *t = &g->model->layers[0].tensors[ROLE_EMBED];
    int64_t offset, n_bytes;
    model_embed_row(g->model, token, &offset, &n_bytes);
    const uint8_t *row = window + offset % DISK_BLOCK;
    if (crc32c(0, row, n_bytes) != g->model->row_crcs[token]) {
        struct segment segment = window_of(g, token, window);
        struct ticket again = {
            .place = HOME_PACK, .segments = &segment, .n_segments = 1, .name = "rows", .batch = -1};
        g->home->trace->rereads++;
        mover_submit(g->home->mover, &again);
        TRY(mover_wait(g->home->mover, &again));
        if (crc32c(0, row, n_bytes) != g->model->row_crcs[token])
            return fail(ERR_CORRUPT, "%s: embedding, row %d: checksum is wrong (pack it again)",
                        g->model->path, token);
    }
    dtype_decode_row(t->dtype, row, t->k, x);
    return OK;
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
    TRY(mover_wait(g->home->mover, &s->ticket));
    int n = 0;
    for (int r = 0; r < batch->n_rows; r++) {
        struct row *row = &batch->rows[r];
        row->ahead_token = -1;
        if (!row->request || row->request->kind != REQUEST_GENERATE ||
            row->n_done + row->n_take != row->request->n_tokens - 1)
            continue;
        row->ahead_token = row->request->tokens[row->request->n_tokens - 1];
        s->segments[n++] = window_of(g, row->ahead_token, s->windows + r * g->window_bytes);
    }
    submit_set(g, s, n, due, batch->index);
    return OK;
}

/* The k-th token of the batch's pass, and whether it was asked for ahead. */
struct token_at {
    int32_t token;
    int row, ahead;
};

static struct token_at token_find(const struct batch *batch, int *span, int i)
{
    while (i >= batch->spans[*span].first + batch->spans[*span].n)
        (*span)++;
    const struct span *s = &batch->spans[*span];
    const struct row *row = &batch->rows[s->row];
    struct token_at t = {.token = row->request->tokens[s->pos + i - s->first], .row = s->row};
    t.ahead = s->kind == SPAN_FORCED && s->n == 1 && row->ahead_token == t.token;
    return t;
}

/* Issues the reads of the next chunk's tokens from token i on; returns the first token after it. */
static int chunk_issue(struct gather *g, struct gather_set *s, const struct batch *batch, int i,
                       int64_t step)
{
    int n = 0, span = 0;
    for (; i < batch->n_tokens && n < g->chunk_cap; i++) {
        struct token_at t = token_find(batch, &span, i);
        if (!t.ahead) {
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
            dtype_decode_row(t->dtype, rows + token_find(batch, &span, i).token * row_bytes, dim,
                             x + (int64_t)i * dim);
        return OK;
    }
    struct gather_set *ahead = &g->ahead[batch->index];
    TRY(mover_wait(g->home->mover, &ahead->ticket));
    int first = 0, span = 0;
    int last = chunk_issue(g, &g->chunk[0], batch, 0, step);
    for (int k = 0; first < batch->n_tokens; k ^= 1) {
        int next = chunk_issue(g, &g->chunk[k ^ 1], batch, last, step);
        TRY(mover_wait(g->home->mover, &g->chunk[k].ticket));
        uint8_t *window = g->chunk[k].windows;
        for (int i = first; i < last; i++) {
            struct token_at a = token_find(batch, &span, i);
            uint8_t *from = a.ahead ? ahead->windows + a.row * g->window_bytes : window;
            TRY(decode_window(g, a.token, from, x + (int64_t)i * dim));
            window += a.ahead ? 0 : g->window_bytes;
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
