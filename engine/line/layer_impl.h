/* engine/line/layer_impl.h - shared by the files of engine/line/layer.h only. */
#ifndef ENGINE_LINE_LAYER_IMPL_H
#define ENGINE_LINE_LAYER_IMPL_H

#include "engine/line/layer.h"

/* y = act(x W^T + b), or y += that; bias N_ROLES: the role never has one. y [m, n]. */
struct projection {
    enum tensor_role role, bias;
    float *y;
    int act, add;
};
/* The same x [m, k] through n <= MATMUL_PARTS of them, which is one op. */
void layer_project(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                   const struct projection *projections, int n, const float *x, int m);
/* The same of experts, for a tile of m tokens: x [m, k] of tokens, or, where it is NULL, w->gate of
 * pairs; y in the order of pairs. */
void layer_project_experts(struct layer_work *w, const struct model_layer *l,
                           const uint8_t *weights, const struct projection *projections, int n,
                           const float *x, int m, const struct route *route);
/* y = norm(x) of m rows [dim]; bias N_ROLES: it never has one. */
void layer_norm(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                enum tensor_role role, enum tensor_role bias, const float *x, float *y, int m);
/* x = a x + b y of m rows [n]; y NULL: nothing is added. */
void layer_mix(struct layer_work *w, float *x, const float *y, float a, float b, int n, int m);
/* 1: a branch writes what it adds to x beside x, because a norm or a factor comes first. */
int layer_is_apart(const struct shape *s);
/* Adds to x a branch that was written apart, after its norm or factor. */
void layer_join(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                enum tensor_role post, float *x, float *branch, int m);
/* What the MLP, or those of a token's experts, adds to x; `in` may be w->normed. A layer of two
 * kinds says by its matrices which it is. */
void layer_ffn(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
               const float *in, float *x, int m);

#endif
