/* engine/line/layer_embed.c - line layer 0 of layer.h. */
#include "engine/line/layer_impl.h"

#include <math.h>

/* The inputs of all layers: rows of their own, and what a matrix makes of the scaled embedding,
 * normed layer by layer; each has half of the sum's variance. The matrix's factor 1 / sqrt(dim)
 * before the norm is a factor on its eps. */
static void add_inputs(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                       const float *x, float *inputs, int n_tokens)
{
    const struct shape *s = w->shape;
    const int n = (int)shape_part(s, PART_INPUTS);
    const struct projection other = {ROLE_INPUTS_PROJ, N_ROLES, w->gate, ACT_NONE, 0, 0};
    for (int i = 0; i < n_tokens; i += w->plan->tile_tokens) {
        const int m = (int)min_i64(w->plan->tile_tokens, n_tokens - i);
        const struct norm_args norm = {.x = w->gate,
                                       .y = w->gate,
                                       .weight = model_vector(l, ROLE_INPUTS_NORM_W, weights),
                                       .m = m * s->n_layers,
                                       .dim = s->layer_input,
                                       .x_stride = s->layer_input,
                                       .y_stride = s->layer_input,
                                       .kind = NORM_RMS,
                                       .eps = s->norm_eps * (float)s->dim};
        layer_project(w, l, weights, &other, 1, x + (int64_t)i * s->dim, m);
        ops_run_norm(&w->ops, &norm);
        layer_mix(w, inputs + (int64_t)i * n, w->gate, sqrtf((float)s->layer_input / 2),
                  sqrtf(0.5f), n, m);
    }
}

enum err layer_embed(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                     struct gather *g, struct batch *batch, int64_t step, float *hidden)
{
    const struct shape *s = w->shape;
    float *inputs = hidden + batch->n_tokens * shape_before_part(s, PART_INPUTS);
    if (batch->n_tokens == 0)
        return OK;
    if (!model_has(l, ROLE_PROJ_IN)) {
        TRY(gather_tokens(g, batch, step, &(struct gathered){hidden, inputs}));
    } else {
        /* Gather all rows, then project tile by tile from the front. Narrow rows are at the end of
         * the output buffer and wide rows at its start, so that no tile overwrites rows that are
         * still to be read. Wide rows need more room than hidden states (plan_hidden_bytes()). */
        int64_t skip = max_i64(0, s->dim - s->embed_dim);
        float *rows = hidden + (int64_t)batch->n_tokens * skip;
        TRY(gather_tokens(g, batch, step, &(struct gathered){.embed = rows}));
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
    if (s->layer_input > 0)
        add_inputs(w, l, weights, hidden, inputs, batch->n_tokens);
    if (s->position == POSITION_LEARNED)
        gather_positions(g, batch, hidden, w->scratch);
    return OK;
}
