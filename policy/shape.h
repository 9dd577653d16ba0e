/* policy/shape.h - what a model is, in numbers. Families are data: variants are fields, read by
 * engine/line/layer*.c; there is one forward pass. */
#ifndef POLICY_SHAPE_H
#define POLICY_SHAPE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum norm_kind { NORM_RMS, NORM_LAYER };
/* ACT_GELU is the form by erf, ACT_GELU_TANH the one by tanh: they differ by up to 5e-4;
 * ACT_GELU_QUICK is x / (1 + exp(-1.702 x)), and by up to 0.02 another. */
enum act_kind { ACT_NONE, ACT_RELU, ACT_GELU, ACT_GELU_TANH, ACT_SILU, ACT_GELU_QUICK };
enum position_kind { POSITION_ROPE, POSITION_LEARNED };
/* Where the norms of a layer stand: before attention and MLP; behind the residual sums (opt-350m);
 * behind attention and MLP, before the sums (olmo2); both (gemma2). */
enum norm_place { NORM_BEFORE, NORM_AFTER_SUM, NORM_OF_BRANCH, NORM_AROUND };
/* Norms of q and k before they are rotated: of each head, by one weight [head_dim]; of each head,
 * by its own weight (stablelm: LayerNorm without bias); of the whole vector. */
enum qk_norm { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_OWN, QK_NORM_WHOLE };
/* x + attention(norm1 x), then x + mlp(norm2 x); both of the same x; both of the same norm1 x. */
enum branches { BRANCHES_SERIAL, BRANCHES_PARALLEL, BRANCHES_SHARE_NORM };

#define SHAPE_LAYERS_MAX       512
#define SHAPE_DIM_MAX          (1 << 17)
#define SHAPE_EXPERTS_MAX      1024
#define SHAPE_EXPERTS_USED_MAX 64
#define SHAPE_OUTPUTS_MAX      (1 << 24) // of all experts' matrices of one kind
#define SHAPE_VOCAB_MAX        (1 << 21)
#define SHAPE_ROPE_MAX         256 // half of the largest head dimension
#define SHAPE_ROPES            2   // tables of angles: for most rows and layers, for the others
#define SHAPE_NO_ROPE          SHAPE_ROPES
#define HEAD_TILE              4096 // vocabulary rows whose logits are reduced together (rule e)

/* Angles by position: pos * inv_freq[i], cosines and sines times `scale`. */
struct shape_rope {
    float inv_freq[SHAPE_ROPE_MAX]; // [rope_dim / 2] radians per position, scaling applied
    float scale;                    // 1 but for yarn and longrope
};

struct shape {
    char family[16]; // "llama", "opt"
    int n_layers;    // decoder layers
    int dim;         // hidden size
    int n_heads;     // query heads
    int n_kv_heads;  // key/value heads, divides n_heads
    int head_dim;    // numbers per head
    int ffn_dim;     // inner size of the MLP, or of each expert's
    int vocab;       // rows of the embedding
    int context;     // longest sequence the model was made for, tokens
    int embed_dim;   // width of the embedding rows; != dim only with project_in/out (opt-350m)
    int norm;        // enum norm_kind
    int norm_place;  // enum norm_place
    int final_norm;  // 1: a norm stands before the head
    float norm_eps;
    int act;             // enum act_kind
    int gated;           // 1: the MLP is act(gate x) * up x; 0: act(up x)
    float act_limit;     // 0: none; else gate x is cut at it, up x at both signs of it, and 1 added
    int n_experts;       // MLPs that a layer has for a router to choose from; 0: one, for all
    int n_experts_used;  // by a token
    int route_alone;     // 1: the router's softmax runs over these alone; 0: over all experts
    int dense_dim;       // inner size of the one MLP of layers without experts; 0: all have experts
    int shared_dim;      // of the expert that every token goes through besides; 0: none
    int shared_gate;     // 1: what that one adds counts by a logistic of its own; 0: as it is
    int qk_norm;         // enum qk_norm
    int branches;        // enum branches
    float embed_scale;   // factors: of embeddings,
    float branch_scale;  // of what attention and MLP add to x,
    float attn_scale;    // of q k^T (0: 1 / sqrt(head_dim)),
    float logit_scale;   // of logits
    float attn_softcap;  // caps c tanh(x / c) of what softmax sees of q k^T (0: none),
    float logit_softcap; // of logits, behind their factor (0: none)
    int sinks;           // 1: every layer has one logit more per query head, without a value
    int position;        // enum position_kind
    int position_offset; // added to a position before the learned table is read (opt: 2)
    int rope_dim;        // leading dimensions of a head that are rotated (even); 0 without RoPE
    struct shape_rope ropes[SHAPE_ROPES];
    int rope_long; // rows that may get longer turn by ropes[1] instead of ropes[0]; 0: none
    uint8_t layer_rope[SHAPE_LAYERS_MAX];   // of a layer: 0, 1 or SHAPE_NO_ROPE
    uint8_t layer_dense[SHAPE_LAYERS_MAX];  // 1: it has one MLP where others have experts
    int32_t layer_window[SHAPE_LAYERS_MAX]; // tokens that a query sees, itself included; 0: all
};

/* 1 / sqrt(head_dim), unless the model says otherwise. */
float shape_attn_scale(const struct shape *s);
/* Whether a layer has experts. */
static inline int shape_has_experts(const struct shape *s, int layer)
{
    return s->n_experts > 0 && !s->layer_dense[layer];
}
/* The first layer that has experts, or has none; -1: there is no such layer. */
int shape_first_layer(const struct shape *s, int experts);
/* MLPs that a layer has for a router to choose from, and those that a token goes through. */
static inline int shape_mlps(const struct shape *s)
{
    return s->n_experts > 0 ? s->n_experts : 1;
}
static inline int shape_mlps_used(const struct shape *s)
{
    return s->n_experts > 0 ? s->n_experts_used : 1;
}
/* Numbers of a token between the matrices of an MLP, in the layer that has most. */
int64_t shape_mlp_numbers(const struct shape *s);
/* The shortest window of a layer; 0: none has any. */
int shape_window(const struct shape *s);
/* How many of ropes[] a model has. */
int shape_ropes(const struct shape *s);

/* Checks a shape that comes from outside. Returns NULL, or the name of the first bad field. */
const char *shape_check(const struct shape *s);

#ifdef __cplusplus
}
#endif

#endif
