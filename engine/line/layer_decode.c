/* engine/line/layer_decode.c - decoder layers of layer.h. */
#include "engine/line/layer_impl.h"

/* Normalises q or k, x [m][heads][head_dim]: each head, or (QK_NORM_WHOLE) all heads as one. */
static void qk_norm(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                    enum tensor_role role, float *x, int heads, int m)
{
    const struct shape *s = w->shape;
    const int dim = shape_head_dim(s, w->layer);
    struct norm_args args = {.x = x,
                             .y = x,
                             .weight = model_vector(l, role, weights),
                             .m = m,
                             .dim = dim,
                             .x_stride = (int64_t)heads * dim,
                             .y_stride = (int64_t)heads * dim,
                             .kind = s->qk_norm == QK_NORM_OWN ? NORM_LAYER : NORM_RMS,
                             .eps = s->norm_eps};
    if (s->qk_norm == QK_NORM_WHOLE) {
        args.dim = heads * dim;
        ops_run_norm(&w->ops, &args);
        return;
    }
    if (s->qk_norm != QK_NORM_OWN) {
        args.m = m * heads;
        args.x_stride = args.y_stride = dim;
        ops_run_norm(&w->ops, &args);
        return;
    }
    for (int h = 0; h < heads; h++) {
        ops_run_norm(&w->ops, &args);
        args.x += dim;
        args.y += dim;
        args.weight += dim;
    }
}

static void qk_norms(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                     int m)
{
    qk_norm(w, l, weights, ROLE_Q_NORM_W, w->q, w->shape->n_heads, m);
    if (!shape_borrows_kv(w->shape, w->layer))
        qk_norm(w, l, weights, ROLE_K_NORM_W, w->k, shape_kv_heads(w->shape, w->layer), m);
}

/* Divides each head of the values by its root mean square: those of the tile, or the keys' where
 * these are both, before their own norm. */
static void value_norm(struct layer_work *w, int kv_heads, int m)
{
    const int dim = shape_head_dim(w->shape, w->layer);
    const struct norm_args args = {.x = shape_has_values(w->shape, w->layer) ? w->v : w->k,
                                   .y = w->v,
                                   .m = m * kv_heads,
                                   .dim = dim,
                                   .x_stride = dim,
                                   .y_stride = dim,
                                   .kind = NORM_RMS,
                                   .eps = w->shape->norm_eps};
    ops_run_norm(&w->ops, &args);
}

const float *layer_branch_input(struct layer_work *w, const struct model_layer *l,
                                const uint8_t *weights, enum tensor_role role,
                                enum tensor_role bias, const float *x, int m)
{
    const int place = w->shape->norm_place;
    if (place != NORM_BEFORE && place != NORM_AROUND)
        return x;
    layer_norm(w, l, weights, role, bias, x, w->normed, m);
    return w->normed;
}

/* Keys and values that other layers use, or that this layer uses of another. */
static void lend_kv(struct layer_work *w, const struct tile *t)
{
    const int wide = w->shape->layer_wide[w->layer], borrows = shape_borrows_kv(w->shape, w->layer);
    const int64_t n_bytes = t->n * layer_kv_numbers(w) * (int64_t)sizeof(float);
    float *lent[] = {layer_part(w, t, wide ? PART_WIDE_K : PART_K),
                     layer_part(w, t, wide ? PART_WIDE_V : PART_V)};
    float *own[] = {w->k, w->v};
    for (int i = 0; i < 2; i++)
        ops_copy(&w->ops, borrows ? own[i] : lent[i], borrows ? lent[i] : own[i], n_bytes);
}

/* The part of a layer before attention: x of the tile to w->q, w->k, w->v. */
void tile_before(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                 const struct tile *t, const struct cut *cuts, int layer, const float *x)
{
    const struct shape *s = w->shape;
    const struct projection qkv[] = {{ROLE_Q, ROLE_Q_B, w->q, ACT_NONE, 0, 0},
                                     {ROLE_K, ROLE_K_B, w->k, ACT_NONE, 0, 0},
                                     {ROLE_V, ROLE_V_B, w->v, ACT_NONE, 0, 0}};
    const struct projection gate = {ROLE_Q_GATE, N_ROLES, w->q_gate, ACT_NONE, 0, 0};
    const int kv_heads = shape_kv_heads(s, layer), own = !shape_borrows_kv(s, layer);
    const float *in = layer_branch_input(w, l, weights, ROLE_NORM1_W, ROLE_NORM1_B, x, t->n);
    if (s->latent_key > 0)
        latent_before(w, l, weights, in, t->n);
    else
        layer_project(w, l, weights, qkv, !own ? 1 : shape_has_values(s, layer) ? 3 : 2, in, t->n);
    if (s->query_gate)
        layer_project(w, l, weights, &gate, 1, in, t->n);
    if (s->value_norm && own)
        value_norm(w, kv_heads, t->n);
    if (s->qk_norm != QK_NORM_NONE && s->qk_norm != QK_NORM_TURNED)
        qk_norms(w, l, weights, t->n);
    tile_rope(w, t, cuts, layer);
    if (s->qk_norm == QK_NORM_TURNED)
        qk_norms(w, l, weights, t->n);
    const int turn = !layer_by_rank(w, layer) || s->latent_key > 0; // else attention turns keys
    if (turn)
        layer_rotate(w, w->q, s->n_heads, t->n);
    if (turn && own)
        layer_rotate(w, w->k, kv_heads, t->n);
    if (s->latent_key == 0 && own)
        layer_rotate(w, w->v, kv_heads, t->n);
    if (!own || shape_lends_kv(s, layer))
        lend_kv(w, t);
}

/* Attention's output times the logistic of the gate, which takes its place. */
static void gate_output(struct layer_work *w, int n)
{
    const int heads = (int)layer_q_numbers(w);
    struct gate_mul_args args = {.gate = w->q_gate,
                                 .up = w->attn,
                                 .m = n,
                                 .n = heads,
                                 .gate_stride = heads,
                                 .up_stride = heads,
                                 .act = ACT_LOGISTIC};
    ops_run_gate_mul(&w->ops, &args);
}

/* The input of the matrix after attention, or after what is in its place. */
static const float *mixed(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                          int m)
{
    if (w->shape->latent_key > 0) {
        latent_after(w, l, weights, m);
        return w->q;
    }
    if (model_has(l, ROLE_STATE_O))
        return w->state_z;
    if (!w->shape->query_gate)
        return w->attn;
    gate_output(w, m);
    return w->q_gate;
}

/* Attention and MLP read the same x: the MLP runs first, before attention's output changes x. Its
 * input is normalised again, because part 0 may have run in another step. */
static void after_parallel(struct layer_work *w, const struct model_layer *l,
                           const uint8_t *weights, const struct tile *t, float *x)
{
    const int shared = w->shape->branches == BRANCHES_SHARE_NORM;
    const struct projection out = {ROLE_O, ROLE_O_B, x, ACT_NONE, 1, 0};
    layer_norm(w, l, weights, shared ? ROLE_NORM1_W : ROLE_NORM2_W,
               shared ? ROLE_NORM1_B : ROLE_NORM2_B, x, w->normed, t->n);
    layer_ffn(w, l, weights, w->normed, x, t->n);
    layer_project(w, l, weights, &out, 1, mixed(w, l, weights, t->n), t->n);
}

/* The layer's input, times factors made of x, through a matrix and a norm into x. */
static void add_input(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                      const struct tile *t, float *x)
{
    const struct shape *s = w->shape;
    const struct projection gate = {ROLE_INPUT_GATE, N_ROLES, w->gate, ACT_NONE, 0, 0};
    const struct projection out = {ROLE_INPUT_OUT, N_ROLES, w->normed, ACT_NONE, 0, 0};
    const float *input = layer_part(w, t, PART_INPUTS) + (int64_t)w->layer * s->layer_input;
    layer_project(w, l, weights, &gate, 1, x, t->n);
    layer_gate(w, input, shape_part(s, PART_INPUTS), s->layer_input, t->n);
    layer_project(w, l, weights, &out, 1, w->gate, t->n);
    layer_join(w, l, weights, ROLE_INPUT_POST_W, 1, x, w->normed, t->n);
}

/* The part of a layer after attention: w->attn into x. */
void tile_after(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                const struct tile *t, float *x)
{
    const struct shape *s = w->shape;
    const int apart = layer_is_apart(s), state = model_has(l, ROLE_STATE_O);
    const int pairs = s->beside_scale > 0, aside = pairs && state;
    float *beside = layer_part(w, t, PART_BESIDE), *y = aside ? beside : apart ? w->normed : x;
    const struct projection out = {
        state ? ROLE_STATE_O : ROLE_O, state ? N_ROLES : ROLE_O_B, y, ACT_NONE, y == x, 0};
    if (s->branches != BRANCHES_SERIAL) {
        after_parallel(w, l, weights, t, x);
        return;
    }
    layer_project(w, l, weights, &out, 1, mixed(w, l, weights, t->n), t->n);
    if (aside) // the next layer adds it
        return;
    layer_join(w, l, weights, ROLE_POST1_W, s->branch_scale, x, w->normed, t->n);
    if (pairs)
        layer_mix(w, x, beside, 1, s->beside_scale, s->dim, t->n);
    if (s->norm_place == NORM_AFTER_SUM)
        layer_norm(w, l, weights, ROLE_NORM1_W, ROLE_NORM1_B, x, x, t->n);
    if (s->layer_bare[w->layer])
        return;
    const float *in = layer_branch_input(w, l, weights, ROLE_NORM2_W, ROLE_NORM2_B, x, t->n);
    layer_ffn(w, l, weights, in, x, t->n);
    if (s->norm_place == NORM_AFTER_SUM)
        layer_norm(w, l, weights, ROLE_NORM2_W, ROLE_NORM2_B, x, x, t->n);
    if (s->layer_input > 0)
        add_input(w, l, weights, t, x);
    const float scale = s->layer_scale[w->layer];
    if (scale != 0 && scale != 1)
        layer_mix(w, x, NULL, scale, 0, s->dim, t->n);
}

void layer_decode(struct layer_work *w, const struct model_layer *l, int layer,
                  const struct batch *batch, const uint8_t *weights, const struct layer_kv *kv,
                  float *hidden)
{
    struct tile t = {0};
    layer_begin(w, layer - 1, batch, hidden);
    if (plan_has_state(w->plan, layer - 1)) {
        layer_state(w, l, batch, weights, kv, hidden);
        return;
    }
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
