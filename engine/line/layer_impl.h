/* engine/line/layer_impl.h - shared by the files of engine/line/layer.h only. */
#ifndef ENGINE_LINE_LAYER_IMPL_H
#define ENGINE_LINE_LAYER_IMPL_H

#include "engine/line/layer.h"

/* y = act(x W^T + b), or y += that; y [m, n]. bias N_ROLES: no bias in any model. */
struct projection {
    enum tensor_role role, bias;
    float *y;
    int act, add;
};
/* The same x [m, k] through n <= MATMUL_PARTS projections, as one op. */
void layer_project(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                   const struct projection *projections, int n, const float *x, int m);
/* The same for experts, for a tile of m tokens. x [m, k]: one row per token; NULL: w->gate, one row
 * per (token, expert) pair. y: one row per pair, in the route's order. */
void layer_project_experts(struct layer_work *w, const struct model_layer *l,
                           const uint8_t *weights, const struct projection *projections, int n,
                           const float *x, int m, const struct route *route);
/* y = norm(x) of m rows [dim]; bias N_ROLES: no bias in any model. */
void layer_norm(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                enum tensor_role role, enum tensor_role bias, const float *x, float *y, int m);
/* x = a x + b y of m rows [n]; y NULL: nothing is added. */
void layer_mix(struct layer_work *w, float *x, const float *y, float a, float b, int n, int m);
/* Rotates x [m][heads][head_dim] into the form in which the KV pages hold heads, or back
 * (kernels/kv.h); does nothing if they hold them as they are. */
void layer_rotate(struct layer_work *w, float *x, int heads, int m);
/* 1: a branch's output is written beside x, for a norm or a factor comes before the sum. */
int layer_is_apart(const struct shape *s);
/* Adds such a branch to x, after its norm or factor. */
void layer_join(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                enum tensor_role post, float *x, float *branch, int m);
/* Adds the output of the MLP, or of the tokens' experts, to x; `in` may be w->normed. In models
 * with both kinds of layers, the layer's matrices tell which. */
void layer_ffn(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
               const float *in, float *x, int m);

#endif
