/* engine/line/layer_decode.c - decoder layers of layer.h. */
#include "engine/line/layer_impl.h"

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
void tile_before(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                 const struct tile *t, const struct cut *cuts, int layer, const float *x)
{
    const struct shape *s = w->shape;
    const struct projection qkv[] = {{ROLE_Q, ROLE_Q_B, w->q, ACT_NONE, 0},
                                     {ROLE_K, ROLE_K_B, w->k, ACT_NONE, 0},
                                     {ROLE_V, ROLE_V_B, w->v, ACT_NONE, 0}};
    const float *in = branch_input(w, l, weights, ROLE_NORM1_W, ROLE_NORM1_B, x, t->n);
    if (s->latent_key > 0)
        latent_before(w, l, weights, in, t->n);
    else
        layer_project(w, l, weights, qkv, 3, in, t->n);
    if (s->qk_norm != QK_NORM_NONE) {
        qk_norm(w, l, weights, ROLE_Q_NORM_W, w->q, s->n_heads, t->n);
        qk_norm(w, l, weights, ROLE_K_NORM_W, w->k, s->n_kv_heads, t->n);
    }
    tile_rope(w, t, cuts, layer);
    if (!layer_by_rank(w, layer) || s->latent_key > 0) { // else attention turns stored keys
        layer_rotate(w, w->q, s->n_heads, t->n);
        layer_rotate(w, w->k, s->n_kv_heads, t->n);
    }
    if (s->latent_key == 0)
        layer_rotate(w, w->v, s->n_kv_heads, t->n);
}

/* The input of the matrix after attention. */
static const float *attended(struct layer_work *w, const struct model_layer *l,
                             const uint8_t *weights, int m)
{
    if (w->shape->latent_key == 0)
        return w->attn;
    latent_after(w, l, weights, m);
    return w->q;
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
    layer_project(w, l, weights, &out, 1, attended(w, l, weights, t->n), t->n);
}

/* The part of a layer after attention: w->attn into x. */
void tile_after(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                const struct tile *t, float *x)
{
    const struct shape *s = w->shape;
    const int apart = layer_is_apart(s);
    const struct projection out = {ROLE_O, ROLE_O_B, apart ? w->normed : x, ACT_NONE, !apart};
    if (s->branches != BRANCHES_SERIAL) {
        after_parallel(w, l, weights, t, x);
        return;
    }
    layer_project(w, l, weights, &out, 1, attended(w, l, weights, t->n), t->n);
    layer_join(w, l, weights, ROLE_POST1_W, x, w->normed, t->n);
    if (s->norm_place == NORM_AFTER_SUM)
        layer_norm(w, l, weights, ROLE_NORM1_W, ROLE_NORM1_B, x, x, t->n);
    const float *in = branch_input(w, l, weights, ROLE_NORM2_W, ROLE_NORM2_B, x, t->n);
    layer_ffn(w, l, weights, in, x, t->n);
    if (s->norm_place == NORM_AFTER_SUM)
        layer_norm(w, l, weights, ROLE_NORM2_W, ROLE_NORM2_B, x, x, t->n);
}

void layer_decode(struct layer_work *w, const struct model_layer *l, int layer,
                  const struct batch *batch, const uint8_t *weights, const struct layer_kv *kv,
                  float *hidden)
{
    struct tile t = {0};
    layer_begin(w, layer - 1);
    layer_set_rows(w, batch, kv);
    layer_tell_rope(w, batch, layer - 1);
    layer_tell_spans(w, batch, tile_next);
    tables_send(w->tables, &w->ops); // one copy for all tables of the step
    w->sinks = w->shape->sinks ? model_vector(l, ROLE_SINKS, weights) : NULL;
    while (tile_next(w, batch, &t, w->cuts)) {
        float *x = hidden + (int64_t)t.first * w->shape->dim;
        tile_before(w, l, weights, &t, w->cuts, layer - 1, x);
        tile_attend(w, &t, w->cuts, batch, layer - 1);
        tile_after(w, l, weights, &t, x);
    }
}
