/* engine/line/layer_embed.c - line layer 0 of layer.h. */
#include "engine/line/layer_impl.h"

enum err layer_embed(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                     struct gather *g, struct batch *batch, int64_t step, float *hidden)
{
    const struct shape *s = w->shape;
    if (batch->n_tokens == 0)
        return OK;
    if (!model_has(l, ROLE_PROJ_IN)) {
        TRY(gather_tokens(g, batch, step, hidden));
    } else {
        /* Gather all rows, then project tile by tile from the front. Narrow rows are at the end of
         * the output buffer and wide rows at its start, so that no tile overwrites rows that are
         * still to be read. Wide rows need more room than hidden states (plan_hidden_bytes()). */
        int64_t skip = max_i64(0, s->dim - s->embed_dim);
        float *rows = hidden + (int64_t)batch->n_tokens * skip;
        TRY(gather_tokens(g, batch, step, rows));
        for (int i = 0; i < batch->n_tokens; i += w->plan->tile_tokens) {
            int m = (int)min_i64(w->plan->tile_tokens, batch->n_tokens - i);
            ops_copy(&w->ops, w->normed, rows + (int64_t)i * s->embed_dim,
                     (int64_t)m * s->embed_dim * (int64_t)sizeof(float));
            const struct projection wide = {ROLE_PROJ_IN, N_ROLES, hidden + (int64_t)i * s->dim,
                                            ACT_NONE,     0,       0};
            layer_project(w, l, weights, &wide, 1, w->normed, m);
        }
    }
    if (s->embed_scale != 1)
        layer_mix(w, hidden, NULL, s->embed_scale, 0, s->dim, batch->n_tokens);
    if (s->position == POSITION_LEARNED)
        gather_positions(g, batch, hidden, w->scratch);
    return OK;
}
