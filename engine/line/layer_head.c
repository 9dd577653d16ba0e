/* engine/line/layer_head.c - slices of the output head of layer.h. */
#include "engine/line/layer_impl.h"

void layer_compact(struct layer_work *w, const struct batch *batch, float *hidden)
{
    int32_t *from = tables_take(w->tables, batch->n_positions * (int64_t)sizeof *from);
    for (int i = 0; i < batch->n_positions; i++)
        from[i] = batch->positions[i].token;
    tables_send(w->tables, &w->ops);
    struct compact_args args = {.x = hidden,
                                .from = tables_seen(w->tables, from),
                                .n = batch->n_positions,
                                .dim = w->shape->dim};
    ops_run_compact(&w->ops, &args);
}

void layer_head_start(struct layer_work *w, const struct batches *b, const struct batch *batch)
{
    const struct head_tables *seen = &b->seen;
    if (seen->requests == b->heads[0].requests || batch->n_positions == 0)
        return;
    int64_t at = batch->first_position, n = batch->n_positions;
    ops_copy(&w->ops, seen->requests + at, batch->requests, n * (int64_t)sizeof *seen->requests);
    ops_copy(&w->ops, seen->results + at, batch->results, n * (int64_t)sizeof *seen->results);
    for (int i = 0; i < batch->n_positions; i++) {
        const struct head_request *q = &batch->requests[i];
        int64_t place = q->place * (int64_t)b->edits_max;
        if (q->n_edits > 0)
            ops_copy(&w->ops, seen->edits + place, b->heads[0].edits + place,
                     q->n_edits * (int64_t)sizeof *seen->edits);
    }
}

void layer_head_end(struct layer_work *w, const struct batches *b, const struct batch *batch)
{
    const struct head_tables *seen = &b->seen;
    if (seen->requests == b->heads[0].requests || batch->n_positions == 0)
        return;
    ops_copy(&w->ops, batch->results, seen->results + batch->first_position,
             batch->n_positions * (int64_t)sizeof *seen->results);
    for (int i = 0; i < batch->n_positions; i++) {
        const struct head_request *q = &batch->requests[i];
        int64_t place = q->place * (int64_t)HEAD_SAMPLE_MAX;
        if (q->want & HEAD_FILTER)
            ops_copy(&w->ops, b->heads[0].candidates + place, seen->candidates + place,
                     HEAD_SAMPLE_MAX * (int64_t)sizeof *seen->candidates);
    }
}

/* Positions [first, first + m) of the pass, x [m, embed_dim]. */
static void slice_tile(struct layer_work *w, const struct model_layer *l, const struct batches *b,
                       const uint8_t *weights, const float *x, int64_t first, int m)
{
    struct weight all = model_weight(l, ROLE_HEAD, weights);
    const float *bias = model_vector(l, ROLE_HEAD_B, weights);
    for (int row = 0; row < all.n; row += HEAD_TILE) {
        struct weight part = all;
        part.n = (int)min_i64(HEAD_TILE, all.n - row);
        part.panels = (const uint8_t *)all.panels + weight_bytes(all.layout, all.dtype, row, all.k);
        struct matmul_args args = {.x = x,
                                   .m = m,
                                   .x_stride = all.k,
                                   .parts = {{.w = part,
                                              .bias = bias ? bias + l->vocab_first + row : NULL,
                                              .y = w->logits,
                                              .y_stride = HEAD_TILE}},
                                   .n_parts = 1,
                                   .scratch = w->scratch,
                                   .same_x = row > 0};
        ops_run_matmul(&w->ops, &args);
        if (w->shape->logit_scale != 1 || w->shape->logit_softcap > 0) {
            struct mix_args scale = {.x = w->logits,
                                     .m = m,
                                     .n = part.n,
                                     .x_stride = HEAD_TILE,
                                     .a = w->shape->logit_scale,
                                     .cap = w->shape->logit_softcap};
            ops_run_mix(&w->ops, &scale);
        }
        struct head_reduce_args reduce = {.logits = w->logits,
                                          .stride = HEAD_TILE,
                                          .requests = b->seen.requests + first,
                                          .results = b->seen.results + first,
                                          .edits = b->seen.edits,
                                          .candidates = b->seen.candidates,
                                          .edits_stride = b->edits_max,
                                          .m = m,
                                          .n = part.n,
                                          .first = l->vocab_first + row};
        ops_run_head_reduce(&w->ops, &reduce);
    }
}

void layer_slice(struct layer_work *w, const struct model_layer *l, const struct batches *batches,
                 const struct batch *batch, const uint8_t *weights, const float *hidden)
{
    const struct shape *s = w->shape;
    for (int i = 0; i < batch->n_positions; i += w->plan->tile_positions) {
        int m = (int)min_i64(w->plan->tile_positions, batch->n_positions - i);
        const float *x = hidden + (int64_t)i * s->dim;
        if (s->final_norm) {
            layer_norm(w, l, weights, ROLE_FINAL_NORM_W, ROLE_FINAL_NORM_B, x, w->head_in, m);
            x = w->head_in;
        }
        if (model_has(l, ROLE_PROJ_OUT)) {
            const struct projection narrow = {ROLE_PROJ_OUT, N_ROLES, w->head_narrow,
                                              ACT_NONE,      0,       0};
            layer_project(w, l, weights, &narrow, 1, x, m);
            x = w->head_narrow;
        }
        slice_tile(w, l, batches, weights, x, batch->first_position + i, m);
    }
}
