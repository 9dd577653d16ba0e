/* engine/line/layer_ffn.c - the MLP of a decoder layer, or its experts: layer_impl.h. */
#include "engine/line/layer_impl.h"

int layer_is_apart(const struct shape *s)
{
    return s->branch_scale != 1 || s->mlp_scale != 1 || s->norm_place == NORM_OF_BRANCH ||
           s->norm_place == NORM_AROUND;
}

void layer_join(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                enum tensor_role post, float scale, float *x, float *branch, int m)
{
    const struct shape *s = w->shape;
    if (!layer_is_apart(s))
        return;
    if (model_has(l, post))
        layer_norm(w, l, weights, post, N_ROLES, branch, branch, m);
    layer_mix(w, x, branch, 1, scale, s->dim, m);
}

void layer_gate(struct layer_work *w, const float *up, int64_t stride, int n, int m)
{
    const struct shape *s = w->shape;
    const float *alpha = s->layer_alpha[w->layer];
    struct gate_mul_args args = {.gate = w->gate,
                                 .up = s->act == ACT_XIELU ? NULL : up,
                                 .alpha = {alpha[0], alpha[1]},
                                 .m = m,
                                 .n = n,
                                 .gate_stride = n,
                                 .up_stride = stride,
                                 .act = s->act,
                                 .limit = s->act_limit};
    ops_run_gate_mul(&w->ops, &args);
}

/* The experts of each of the tile's tokens. */
static struct route route_tile(struct layer_work *w, const struct model_layer *l,
                               const uint8_t *weights, const float *in, int m)
{
    const struct shape *s = w->shape;
    const struct projection logits = {ROLE_ROUTER, ROLE_ROUTER_B, w->router, ACT_NONE, 0, 0};
    layer_project(w, l, weights, &logits, 1, in, m);
    struct route_args args = {
        .logits = w->router,
        .logits_stride = s->n_experts,
        .to = route_at(w->route, w->plan->tile_tokens, s->n_experts, s->n_experts_used),
        .m = m,
        .bias = model_vector(l, ROLE_CHOICE_B, weights),
        .scales = model_vector(l, ROLE_ROUTE_SCALE, weights),
        .alone = s->route_alone,
        .logistic = s->route_logistic,
        .n_groups = s->n_groups,
        .n_groups_used = s->n_groups_used,
        .group_best = s->group_best,
        .near = s->route_near,
        .scale = s->route_scale};
    ops_run_route(&w->ops, &args);
    return args.to;
}

/* An MLP that all tokens use: its matrices and its inner width. */
struct mlp {
    enum tensor_role gate, gate_bias, up, up_bias, down, down_bias;
    int n;
};

/* The matrices from an MLP's input to w->gate, and w->up; returns how many. */
static int inner_projections(struct layer_work *w, const struct mlp *mlp, struct projection out[2])
{
    const struct shape *s = w->shape;
    const int act = shape_act_apart(s) ? ACT_NONE : s->act;
    const int n = s->gated ? 2 : 1;
    out[0] = (struct projection){mlp->gate, mlp->gate_bias, w->gate, ACT_NONE, 0, 0};
    float *up = s->gated ? w->up : w->gate;
    out[n - 1] = (struct projection){mlp->up, mlp->up_bias, up, act, 0, 0};
    return n;
}

/* y = mlp(in), or y += mlp(in). */
static void mlp_tile(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                     const struct mlp *mlp, const float *in, float *y, int add, int m)
{
    const struct shape *s = w->shape;
    const struct projection down = {mlp->down, mlp->down_bias, y, ACT_NONE, add, 0};
    struct projection inner[2];
    const int n = inner_projections(w, mlp, inner);
    layer_project(w, l, weights, inner, n, in, m);
    if (shape_act_apart(s))
        layer_gate(w, w->up, mlp->n, mlp->n, m);
    layer_project(w, l, weights, &down, 1, w->gate, m);
}

/* The shared expert: its output to w->shared_out, its weight per token to w->shares. */
static void shared_tile(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                        const float *in, int m)
{
    const struct shape *s = w->shape;
    const struct mlp shared = {ROLE_SHARED_GATE, N_ROLES, ROLE_SHARED_UP, N_ROLES,
                               ROLE_SHARED_DOWN, N_ROLES, s->shared_dim};
    const struct projection shares = {ROLE_SHARE, N_ROLES, w->shares, ACT_NONE, 0, 0};
    mlp_tile(w, l, weights, &shared, in, w->shared_out, 0, m);
    if (s->shared_gate)
        layer_project(w, l, weights, &shares, 1, in, m);
}

/* With norms of their own (expert_norms): the shared expert's output is normed, and w->normed gets
 * what the router reads of x. */
static void norm_before(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                        const float *x, int m)
{
    layer_norm(w, l, weights, ROLE_SHARED_POST_W, N_ROLES, w->shared_out, w->shared_out, m);
    layer_norm(w, l, weights, ROLE_ROUTER_NORM_W, N_ROLES, x, w->normed, m);
}

/* Then the experts' sum in w->normed is normed, and the shared expert's output added. */
static void norm_after(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                       int m)
{
    layer_norm(w, l, weights, ROLE_EXPERT_POST_W, N_ROLES, w->normed, w->normed, m);
    layer_mix(w, w->normed, w->shared_out, 1, 1, w->shape->dim, m);
}

/* What experts read: `in`, or (expert_dim) what a matrix makes of it. That lies where their outputs
 * will be, which are written once it has been read. */
static const float *narrow_before(struct layer_work *w, const struct model_layer *l,
                                  const uint8_t *weights, const float *in, int m)
{
    const struct projection to = {ROLE_EXPERT_IN, N_ROLES, w->expert_out, ACT_NONE, 0, 0};
    if (w->shape->expert_dim == 0)
        return in;
    layer_project(w, l, weights, &to, 1, in, m);
    return w->expert_out;
}

/* x += the experts' sum in w->normed, as wide as x again, and the shared expert's output. */
static void narrow_after(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                         float *x, int m)
{
    const struct projection back = {ROLE_EXPERT_OUT, N_ROLES, x, ACT_NONE, 1, 0};
    layer_project(w, l, weights, &back, 1, w->normed, m);
    if (w->shape->shared_dim > 0)
        layer_mix(w, x, w->shared_out, 1, 1, w->shape->dim, m);
}

/* The experts of each token: added to x, or written beside x (layer_is_apart). */
static void experts_tile(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                         const struct mlp *mlp, const float *in, float *x, int m)
{
    const struct shape *s = w->shape;
    const int pairs = m * s->n_experts_used, norms = s->expert_norms, narrow = s->expert_dim > 0;
    const int apart = layer_is_apart(s) || narrow;
    const struct projection down = {ROLE_DOWN, ROLE_DOWN_B, w->expert_out, ACT_NONE, 0, 0};
    struct projection inner[2];
    const int n_inner = inner_projections(w, mlp, inner);
    if (s->shared_dim > 0)
        shared_tile(w, l, weights, in, m);
    if (norms)
        norm_before(w, l, weights, x, m);
    const struct route route = route_tile(w, l, weights, norms ? w->normed : in, m);
    if (norms)
        layer_norm(w, l, weights, ROLE_EXPERT_NORM_W, N_ROLES, x, w->normed, m);
    if (w->bring && w->err == OK)
        w->err = w->bring(w->bring_ctx, w->layer + 1, &route);
    if (w->err != OK)
        return; // the experts' weights are missing
    in = narrow_before(w, l, weights, norms ? w->normed : in, m);
    layer_project_experts(w, l, weights, inner, n_inner, in, m, &route);
    if (shape_act_apart(s))
        layer_gate(w, w->up, s->ffn_dim, s->ffn_dim, pairs);
    layer_project_experts(w, l, weights, &down, 1, NULL, m, &route);
    struct expert_sum_args sum = {.x = apart ? w->normed : x,
                                  .y = w->expert_out,
                                  .shared =
                                      s->shared_dim > 0 && !norms && !narrow ? w->shared_out : NULL,
                                  .shares = s->shared_gate ? w->shares : NULL,
                                  .route = route,
                                  .m = m,
                                  .n = shape_expert_dim(s),
                                  .x_stride = shape_expert_dim(s),
                                  .y_stride = shape_expert_dim(s),
                                  .add = !apart};
    ops_run_expert_sum(&w->ops, &sum);
    if (norms)
        norm_after(w, l, weights, m);
    if (narrow)
        narrow_after(w, l, weights, x, m);
}

void layer_ffn(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
               const float *in, float *x, int m)
{
    const struct shape *s = w->shape;
    const struct mlp plain = {ROLE_GATE,
                              ROLE_GATE_B,
                              ROLE_UP,
                              ROLE_UP_B,
                              ROLE_DOWN,
                              ROLE_DOWN_B,
                              shape_ffn_dim(s, w->layer)};
    const struct mlp dense = {ROLE_DENSE_GATE, N_ROLES, ROLE_DENSE_UP, N_ROLES,
                              ROLE_DENSE_DOWN, N_ROLES, s->dense_dim};
    const struct mlp *mlp = model_has(l, ROLE_DENSE_UP) ? &dense : &plain;
    if (model_has(l, ROLE_ROUTER))
        experts_tile(w, l, weights, &plain, in, x, m);
    else
        mlp_tile(w, l, weights, mlp, in, layer_is_apart(s) ? w->normed : x, !layer_is_apart(s), m);
    layer_join(w, l, weights, ROLE_POST2_W, s->mlp_scale, x, w->normed, m);
}
