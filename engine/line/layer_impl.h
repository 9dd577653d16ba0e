/* engine/line/layer_impl.h - shared by the files of engine/line/layer.h only. */
#ifndef ENGINE_LINE_LAYER_IMPL_H
#define ENGINE_LINE_LAYER_IMPL_H

#include "engine/line/layer.h"

/* y = act(x W^T + b), or y += that; y [m, n]. bias N_ROLES: no bias in any model. */
struct projection {
    enum tensor_role role, bias;
    float *y;
    int act, add;
    int stride; // of y; 0: n
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
 * (kernels/kv.h); does nothing if they hold them as they are. Where positions are ranks, latent
 * keys keep the numbers that RoPE turns. */
void layer_rotate(struct layer_work *w, float *x, int heads, int m);
/* 1: a branch's output is written beside x, for a norm or a factor comes before the sum. */
int layer_is_apart(const struct shape *s);
/* Adds such a branch to x, after its norm and times `scale`. */
void layer_join(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                enum tensor_role post, float scale, float *x, float *branch, int m);
/* w->gate = act(w->gate) * up, of m rows [n], those of up `stride` numbers apart; xIELU(w->gate) if
 * that is the activation. */
void layer_gate(struct layer_work *w, const float *up, int64_t stride, int n, int m);
/* Adds the output of the MLP, or of the tokens' experts, to x; `in` may be w->normed. In models
 * with both kinds of layers, the layer's matrices tell which. */
void layer_ffn(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
               const float *in, float *x, int m);

/* ---- the tiles of a batch (layer_spans.c) ---- */

struct tile {
    int first, n;     // tokens of the batch: first, count
    int span, offset; // start of the next tile
    int n_cuts;
    int continued_page_end; // pages of the prompt that continues in the next tile, else 0
};

/* Cuts of the next tile; 0 when the batch is done. */
int tile_next(struct layer_work *w, const struct batch *b, struct tile *t, struct cut *cuts);
/* The same without prompts, for rows that attend on the CPU: forced cuts are contiguous. */
int tile_next_forced(struct layer_work *w, const struct batch *b, struct tile *t, struct cut *cuts);
typedef int (*tiles_fn)(struct layer_work *w, const struct batch *b, struct tile *t,
                        struct cut *cuts);
/* Writes each token's row in the layer's table of angles, and the spans of all tiles of the batch.
 */
void layer_tell_rope(struct layer_work *w, const struct batch *b, int layer);
void layer_tell_spans(struct layer_work *w, const struct batch *b, tiles_fn next);

/* ---- the KV of rows in a layer (layer_spans.c) ---- */

/* Sets the current decoder layer, and the hidden states of its batch (NULL: not read). */
void layer_begin(struct layer_work *w, int layer, const struct batch *b, float *hidden);
/* A part of what goes with the batch's tokens, from the tile's first token on. */
static inline float *layer_part(const struct layer_work *w, const struct tile *t,
                                enum hidden_part part)
{
    return w->hidden + w->tokens * shape_before_part(w->shape, part) +
           t->first * shape_part(w->shape, part);
}
/* For the current layer: the row's slot limits, and its page slots after n more tokens. */
struct evict_row layer_limits(const struct layer_work *w, const struct row *row);
int layer_slots(const struct layer_work *w, const struct row *row, int n);
/* If KV moves, full pages are in the frame and the page being filled is the row's tail. Index of
 * the page that is a tail after this step; -1: none. */
int layer_tail_page(const struct layer_work *w, const struct kv_rows *rows, const struct row *row);
/* Id of page i of row r in this step; ~r: its tail. */
int32_t layer_page_id(const struct layer_work *w, const struct batch *b, int r, int i, int tail);
/* The batch's KV in the current layer, without page ids; the same with them. */
void layer_set_kv(const struct layer_work *w, const struct batch *b, const struct layer_kv *kv,
                  struct kv_rows *rows);
void layer_set_rows(struct layer_work *w, const struct batch *b, const struct layer_kv *kv);
/* Page ids, and a zeroed bitmap of written pages, for n rows. */
int32_t *layer_take_ids(struct layer_work *w, int n);

/* ---- attention of a tile (layer_attend.c) ---- */

/* Numbers of q, and of k or v, per token. */
static inline int64_t layer_q_numbers(const struct layer_work *w)
{
    return (int64_t)w->shape->n_heads * shape_head_dim(w->shape, w->layer);
}
static inline int64_t layer_kv_numbers(const struct layer_work *w)
{
    return (int64_t)shape_kv_heads(w->shape, w->layer) * shape_head_dim(w->shape, w->layer);
}
/* Where the table of ropes[table] begins in w->cos and w->sin; in w->factors at its rows. */
static inline int64_t layer_angles_at(const struct layer_work *w, int table)
{
    return table * w->rope_rows * (shape_rope_width(w->shape, 0) / 2);
}

/* The tile's values: the keys, in latent attention. */
static inline float *layer_values(const struct layer_work *w)
{
    return w->shape->latent_key > 0 ? w->k : w->v;
}

/* q, k, v and output of a tile's forced spans. */
struct heads {
    float *q, *k, *v, *out;
};
/* 1: the layer stores keys before rotation, and attention rotates them by rank. */
int layer_by_rank(const struct layer_work *w, int layer);
/* Rotates q and k. Where positions are ranks, prompts only: attention rotates forced tokens. */
void tile_rope(struct layer_work *w, const struct tile *t, const struct cut *cuts, int layer);
void tile_prompts(struct layer_work *w, const struct tile *t, const struct cut *cuts,
                  const struct batch *b, float scale);
static inline int cut_ends_prompt(const struct cut *c)
{
    return c->span->kind == SPAN_PROMPT && c->offset + c->n == c->span->n;
}
/* At the end of a prompt, stores its kept slots in the pages of row kept_row of w->rows. */
void tile_keep(struct layer_work *w, const struct cut *c, const struct batch *b, int layer,
               int kept_row);
void tile_forced(struct layer_work *w, const struct tile *t, const struct cut *cuts,
                 const struct batch *b, const struct heads *at);
/* All of these: w->q, w->k and w->v to w->attn. */
void tile_attend(struct layer_work *w, const struct tile *t, const struct cut *cuts,
                 const struct batch *b, int layer);

/* ---- layers with a state instead of attention (layer_state.c) ---- */

/* The current layer: hidden in and out. */
void layer_state(struct layer_work *w, const struct model_layer *l, const struct batch *b,
                 const uint8_t *weights, const struct layer_kv *kv, float *hidden);

/* ---- the rest of a layer (layer_decode.c) ---- */

/* A branch's input: norm(x) in w->normed if the norm precedes the branch, else x. */
const float *layer_branch_input(struct layer_work *w, const struct model_layer *l,
                                const uint8_t *weights, enum tensor_role role,
                                enum tensor_role bias, const float *x, int m);

/* Before attention: x of the tile to w->q, w->k, w->v. After it: w->attn, or w->state_z, into x. */
void tile_before(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                 const struct tile *t, const struct cut *cuts, int layer, const float *x);
void tile_after(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                const struct tile *t, float *x);

/* ---- latent attention (layer_latent.c) ---- */

/* x [m][dim] to w->q, before RoPE, and w->k. */
void latent_before(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                   const float *x, int m);
/* w->attn to the heads' outputs in w->q. */
void latent_after(struct layer_work *w, const struct model_layer *l, const uint8_t *weights, int m);

#endif
