/* policy/shape.h - what a model is, in numbers. Families are data: variants are fields, read by
 * engine/line/layer*.c; there is one forward pass. */
#ifndef POLICY_SHAPE_H
#define POLICY_SHAPE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum norm_kind { NORM_RMS, NORM_LAYER };
enum act_kind { ACT_NONE, ACT_RELU, ACT_GELU, ACT_SILU_GATED };
enum position_kind { POSITION_ROPE, POSITION_LEARNED };

#define SHAPE_LAYERS_MAX 512
#define SHAPE_DIM_MAX    (1 << 17)
#define SHAPE_VOCAB_MAX  (1 << 21)
#define SHAPE_ROPE_MAX   256  // half of the largest head dimension
#define HEAD_TILE        4096 // vocabulary rows whose logits are reduced together (rule e)

struct shape {
    char family[16]; // "llama", "opt"
    int n_layers;    // decoder layers
    int dim;         // hidden size
    int n_heads;     // query heads
    int n_kv_heads;  // key/value heads, divides n_heads
    int head_dim;    // numbers per head
    int ffn_dim;     // inner size of the MLP
    int vocab;       // rows of the embedding
    int context;     // longest sequence the model was made for, tokens
    int embed_dim;   // width of the embedding rows; != dim only with project_in/out (opt-350m)
    int norm;        // enum norm_kind
    int norm_after;  // 1: post-norm (opt-350m): norms follow the residual sums; 0: pre-norm
    int final_norm;  // 1: a norm stands before the head
    float norm_eps;
    int act;             // enum act_kind
    int position;        // enum position_kind
    int position_offset; // added to a position before the learned table is read (opt: 2)
    int rope_dim;        // leading dimensions of a head that are rotated (even); 0 without RoPE
    float rope_inv_freq[SHAPE_ROPE_MAX]; // [rope_dim / 2] radians per position, scaling applied
};

/* Checks a shape that comes from outside. Returns NULL, or the name of the first bad field. */
const char *shape_check(const struct shape *s);

#ifdef __cplusplus
}
#endif

#endif
