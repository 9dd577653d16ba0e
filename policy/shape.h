/* policy/shape.h - a model in numbers. Families are data: variants are fields, which
 * engine/line/layer*.c reads; there is one forward pass. */
#ifndef POLICY_SHAPE_H
#define POLICY_SHAPE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum norm_kind { NORM_RMS, NORM_LAYER };
/* ACT_RELU2 is the square of ACT_RELU. ACT_GELU uses erf, ACT_GELU_TANH uses tanh (they differ by
 * up to 5e-4), ACT_GELU_QUICK is x / (1 + exp(-1.702 x)) (differs by up to 0.02). ACT_XIELU has two
 * learned numbers per layer. ACT_LOGISTIC, 1 / (1 + exp(-x)), is that of gates beside the MLP. */
enum act_kind {
    ACT_NONE,
    ACT_RELU,
    ACT_RELU2,
    ACT_GELU,
    ACT_GELU_TANH,
    ACT_SILU,
    ACT_GELU_QUICK,
    ACT_XIELU,
    ACT_LOGISTIC
};
enum position_kind { POSITION_ROPE, POSITION_LEARNED };
/* Where a layer's norms are: before attention and MLP; after the residual sums (opt-350m); after
 * attention and MLP, before the sums (olmo2); before and after attention and MLP (gemma2). */
enum norm_place { NORM_BEFORE, NORM_AFTER_SUM, NORM_OF_BRANCH, NORM_AROUND };
/* Norms of q and k before rotation: per head with one weight [head_dim]; per head with a weight of
 * its own (stablelm: LayerNorm without bias); over the whole vector. QK_NORM_TURNED is as
 * QK_NORM_HEAD, but after the rotation. */
enum qk_norm { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_OWN, QK_NORM_WHOLE, QK_NORM_TURNED };
/* x + attention(norm1 x), then x + mlp(norm2 x); both read the same x; both read norm1 x. */
enum branches { BRANCHES_SERIAL, BRANCHES_PARALLEL, BRANCHES_SHARE_NORM };

/* What layers without attention compute: the gated delta net; Mamba-2 (both: struct recur_args);
 * a convolution of b x, then c times its output (lfm2), where x, b and c take the places of v, k
 * and z. */
enum state_kind { STATE_NONE, STATE_DELTA, STATE_MAMBA, STATE_CONV };

#define SHAPE_LAYERS_MAX       512
#define SHAPE_DIM_MAX          (1 << 17)
#define SHAPE_EXPERTS_MAX      1024
#define SHAPE_EXPERTS_USED_MAX 64
#define SHAPE_GROUPS_MAX       64        // of experts
#define SHAPE_OUTPUTS_MAX      (1 << 24) // rows of all experts' matrices of one kind
#define SHAPE_VOCAB_MAX        (1 << 21)
#define SHAPE_TAPS_MAX         8   // of a layer's convolution
#define SHAPE_STATE_MAX        256 // largest dimension of a head's state
#define SHAPE_HEAD_MAX         576 // numbers of a head
#define SHAPE_ROPE_MAX         256 // pairs of them that are rotated
#define SHAPE_ROPES            2   // tables of angles: for most rows and layers, and for the others
#define SHAPE_NO_ROPE          SHAPE_ROPES
#define HEAD_TILE              4096 // vocabulary rows whose logits are reduced together (rule e)

/* Angles of position pos: pos * inv_freq[i]; cosines and sines are multiplied by `scale`. */
struct shape_rope {
    float inv_freq[SHAPE_ROPE_MAX]; // [rope_dim / 2] radians per position, scaling applied
    float scale;                    // 1 except for yarn and longrope
};

struct shape {
    char family[16];   // "llama", "opt"
    int n_layers;      // decoder layers
    int dim;           // hidden size
    int n_heads;       // query heads
    int n_kv_heads;    // key/value heads, divides n_heads; 1 in latent attention
    int head_dim;      // numbers per head
    int wide_head_dim; // the same in layers of layer_wide[]; 0: no such layers
    int wide_kv_heads; // key/value heads there, divides n_heads; 0 without such layers
    int tied_kv;       // 1: these have no matrix of values, which are made of the keys as they are
                       // before norm and rotation
    int value_norm;    // 1: each head of the values is divided by its root mean square
    int latent_key;    // latent attention (MLA): numbers of a query's head that are not rotated and
                    // that a matrix of the head maps to the rest of the key, after rope_dim, which
                    // is the value, too; 0: keys and values are apart
    int latent_value;  // numbers of a head's output that a matrix of the head makes of its value
    int latent_query;  // width of the vector that queries are made of, with a norm; 0: x itself
    int ffn_dim;       // inner size of the MLP, or of each expert
    int kv_own_layers; // layers from this one on have no keys and values of their own: they use
                       // those of the last layer before it whose heads are as wide; 0: all have
                       // their own
    int late_ffn_dim; // ffn_dim in these layers; 0 without such layers
    int layer_input;  // numbers of a token that each layer gets beside the hidden state, from the
                      // embedding; 0: none
    int vocab;        // rows of the embedding
    int context;      // longest sequence the model was made for, tokens
    int embed_dim;    // width of embedding rows; != dim only with project_in/out (opt-350m)
    int norm;         // enum norm_kind
    int bare_norm;    // 1: LayerNorms have no bias
    int norm_place;   // enum norm_place
    int final_norm;   // 1: a norm precedes the head
    float norm_eps;
    int act;         // enum act_kind
    int gated;       // 1: the MLP is act(gate x) * up x; 0: act(up x)
    float act_limit; // 0: none; else gate x is capped, up x clamped to +-limit, and 1 added to up
    int n_experts;   // experts per layer that a router chooses from; 0: one MLP
    int n_experts_used; // experts per token
    int route_alone;    // 1: weights of the chosen experts sum up to route_scale; 0: as scored
    int route_logistic; // 1: the router scores an expert by a logistic; 0: by a softmax over all
    int route_bias;     // 1: a number per expert is added to its score where experts are chosen
    float route_near;   // 0: none; else how near experts are weighed together (struct route_args)
    int route_scales;   // 1: the weight of an expert is multiplied by a number of its own
    int n_groups;       // groups of experts; 0: one
    int n_groups_used;  // groups that a token's experts are in
    int group_best;     // 1: a group counts by its greatest number; 0: by the sum of its two
    float route_scale;  // factor on the weights of experts
    int dense_dim;    // inner size of the MLP in layers without experts; 0: all layers have experts
    int shared_dim;   // inner size of the expert that every token uses in addition; 0: none
    int shared_gate;  // 1: its output is scaled by a logistic gate; 0: not scaled
    int expert_dim;   // width of what experts read and of their sum, between a matrix that makes it
                      // of what router and shared expert read, and one back; 0: dim
    int expert_norms; // 1: router and experts read norms of their own of what the layer's MLP norm
                      // reads; the outputs of experts and of the shared one have norms, too
    int qk_norm;      // enum qk_norm
    int branches;     // enum branches
    float embed_scale;   // factor on embeddings
    float branch_scale;  // factor on the outputs of attention
    float mlp_scale;     // factor on the outputs of MLPs and experts
    float attn_scale;    // factor on q k^T (0: 1 / sqrt(head_dim))
    float logit_scale;   // factor on logits
    float attn_softcap;  // cap c tanh(x / c) on q k^T before softmax (0: none)
    float logit_softcap; // the same on logits, after logit_scale (0: none)
    int query_gate;      // 1: attention's output is multiplied by the logistic of a projection
    int sinks;           // 1: each query head has one more logit without a value, in every layer
    int position;        // enum position_kind
    int position_offset; // added to a position before the learned table is read (opt: 2)
    int rope_dim; // leading dimensions of a head that are rotated (even); 0 without RoPE; in layers
                  // of layer_wide[] all are
    struct shape_rope ropes[SHAPE_ROPES];
    float query_beta; // q of position p is multiplied by 1 + query_beta ln(1 + floor(p /
                      // query_period)) in layers with RoPE (0: by 1)
    int query_period; // 0 without query_beta
    int rope_long; // rows that may get longer than this use ropes[1] instead of ropes[0]; 0: none
    /* Layers with a row state instead of attention, and its sizes (struct recur_args). */
    int state; // enum state_kind
    int state_k_heads, state_v_heads, state_k_dim, state_v_dim, state_taps;
    float state_dt_scale; // factor on the time step before its bias; 0: none
    float beside_scale; // 0: none; else layers go in pairs, a state without MLP and attention with
                        // one, that read the same x: the second adds both outputs, the state's
                        // times this factor
    int state_tiled; // 1: head h of v uses head h mod state_k_heads of q and k; 0: heads that use
                     // one lie side by side
    uint8_t layer_state[SHAPE_LAYERS_MAX];  // 1: the layer has a state
    uint8_t layer_bare[SHAPE_LAYERS_MAX];   // 1: the layer has no MLP
    uint8_t layer_wide[SHAPE_LAYERS_MAX];   // 1: heads are of wide_head_dim and wide_kv_heads
    uint8_t layer_rope[SHAPE_LAYERS_MAX];   // per layer: 0, 1 or SHAPE_NO_ROPE; with wide layers 0
                                            // for these and 1 for the others
    uint8_t layer_dense[SHAPE_LAYERS_MAX];  // 1: one MLP where other layers have experts
    int32_t layer_window[SHAPE_LAYERS_MAX]; // tokens that a query sees, itself included; 0: all
    float layer_alpha[SHAPE_LAYERS_MAX][2]; // of ACT_XIELU: above 0, below
    float layer_scale[SHAPE_LAYERS_MAX];    // factor on hidden states after the layer; 0: none
};

/* Heads of the layers of layer_wide[] (1) or of the others (0), and of a layer. */
static inline int shape_head_dim_of(const struct shape *s, int wide)
{
    return wide ? s->wide_head_dim : s->head_dim;
}
static inline int shape_kv_heads_of(const struct shape *s, int wide)
{
    return wide ? s->wide_kv_heads : s->n_kv_heads;
}
static inline int shape_head_dim(const struct shape *s, int layer)
{
    return shape_head_dim_of(s, s->layer_wide[layer]);
}
static inline int shape_kv_heads(const struct shape *s, int layer)
{
    return shape_kv_heads_of(s, s->layer_wide[layer]);
}
/* Numbers of a query's head before and of its output after the head's own matrices. */
static inline int shape_query_dim(const struct shape *s, int layer)
{
    return s->latent_key > 0 ? s->rope_dim + s->latent_key : shape_head_dim(s, layer);
}
static inline int shape_output_dim(const struct shape *s, int layer)
{
    return s->latent_key > 0 ? s->latent_value : shape_head_dim(s, layer);
}
/* 1: a matrix makes the values of a layer. */
static inline int shape_has_values(const struct shape *s, int layer)
{
    return s->latent_key == 0 && !(s->tied_kv && s->layer_wide[layer]);
}
/* Numbers of a token's keys and values in a layer. */
static inline int64_t shape_kv_numbers(const struct shape *s, int layer)
{
    return (s->latent_key > 0 ? 1 : 2) * (int64_t)shape_kv_heads(s, layer) *
           shape_head_dim(s, layer);
}
/* 1: the layer uses the keys and values of an earlier one. 1: such layers use those of this one. */
static inline int shape_borrows_kv(const struct shape *s, int layer)
{
    return s->kv_own_layers > 0 && layer >= s->kv_own_layers;
}
int shape_lends_kv(const struct shape *s, int layer);
/* 1: layers can attend apart from their other ops, which then only read what comes to the layer. */
static inline int shape_attends_apart(const struct shape *s)
{
    return s->state == STATE_NONE && s->kv_own_layers == 0;
}
/* What goes with a batch's tokens from layer to layer: for each part, one after the other,
 * [tokens][shape_part()] numbers. Keys and values are those that later layers use. */
enum hidden_part {
    PART_STATE,  // the hidden states
    PART_INPUTS, // of all layers
    PART_BESIDE, // the output of a state, for the next layer (beside_scale)
    PART_K,
    PART_V,
    PART_WIDE_K, // of layers of layer_wide[]
    PART_WIDE_V,
    N_PARTS
};
/* Numbers of a token in a part, and in all parts before it (N_PARTS: in all). */
int64_t shape_part(const struct shape *s, enum hidden_part part);
int64_t shape_before_part(const struct shape *s, enum hidden_part part);
static inline int shape_ffn_dim(const struct shape *s, int layer)
{
    return shape_borrows_kv(s, layer) ? s->late_ffn_dim : s->ffn_dim;
}
/* The most of any layer: numbers of a head, KV heads, numbers of a token's keys and values. */
int shape_head_most(const struct shape *s);
int shape_kv_heads_most(const struct shape *s);
int64_t shape_kv_numbers_most(const struct shape *s);
/* Rotated numbers of a head in a layer, and by the table of angles. */
static inline int shape_rope_width(const struct shape *s, int table)
{
    return table == 0 && s->wide_head_dim > 0 ? s->wide_head_dim : s->rope_dim;
}
static inline int shape_rope_dim(const struct shape *s, int layer)
{
    return shape_rope_width(s, s->layer_rope[layer]);
}
/* Numbers of a layer's matrices before and after attention, apart from those of the MLP. */
int64_t shape_before_numbers(const struct shape *s, int layer);
int64_t shape_after_numbers(const struct shape *s, int layer);
/* attn_scale, or 1 / sqrt(head_dim) if that is 0. */
float shape_attn_scale(const struct shape *s);
static inline int shape_has_experts(const struct shape *s, int layer)
{
    return s->n_experts > 0 && !s->layer_dense[layer] && !s->layer_bare[layer];
}
/* Numbers of a token in a layer with a state: of v; of k, and of q; of what the convolution reads:
 * q, k and v, in the order of shape_state_at(). */
static inline int shape_state_v(const struct shape *s)
{
    return s->state_v_heads * s->state_v_dim;
}
static inline int shape_state_k(const struct shape *s)
{
    return s->state_k_heads * s->state_k_dim;
}
static inline int shape_state_qkv(const struct shape *s)
{
    return 2 * shape_state_k(s) + shape_state_v(s);
}
/* Where q, k and v begin there: as files have the convolution's channels. */
static inline void shape_state_at(const struct shape *s, int *q, int *k, int *v)
{
    const int v_first = s->state == STATE_MAMBA, keys = shape_state_k(s);
    *v = v_first ? 0 : 2 * keys;
    *k = v_first ? shape_state_v(s) : keys;
    *q = v_first ? *k + keys : 0;
}
/* Bytes of a row's state in a layer: f32 [v_heads, k_dim, v_dim], then [taps - 1, qkv]. */
static inline int64_t shape_state_inputs_at(const struct shape *s)
{
    return (int64_t)shape_state_v(s) * s->state_k_dim * 4;
}
static inline int64_t shape_state_bytes(const struct shape *s)
{
    return shape_state_inputs_at(s) +
           (s->state ? (int64_t)(s->state_taps - 1) * shape_state_qkv(s) * 4 : 0);
}
/* 1: the activation of an MLP is an op by itself, not the last step of a matrix. */
static inline int shape_act_apart(const struct shape *s)
{
    return s->gated || s->act == ACT_XIELU;
}
/* Layers with a state. */
int shape_states(const struct shape *s);
/* The first layer with (1) or without (0) experts; -1: none. */
int shape_first_layer(const struct shape *s, int experts);
/* MLPs that a layer's router chooses from, and MLPs per token. */
static inline int shape_mlps(const struct shape *s)
{
    return s->n_experts > 0 ? s->n_experts : 1;
}
static inline int shape_mlps_used(const struct shape *s)
{
    return s->n_experts > 0 ? s->n_experts_used : 1;
}
/* Numbers of a token that an expert reads and writes. */
static inline int shape_expert_dim(const struct shape *s)
{
    return s->expert_dim > 0 ? s->expert_dim : s->dim;
}
/* Numbers of a token between the matrices of an MLP, in the widest layer, or, if these are more, of
 * all layers' inputs. */
int64_t shape_mlp_numbers(const struct shape *s);
/* The shortest window of a layer; 0: no layer has one. */
int shape_window(const struct shape *s);
/* How many of ropes[] the model uses. */
int shape_ropes(const struct shape *s);

/* Checks a shape from outside. Returns NULL, or the name of the first bad field. */
const char *shape_check(const struct shape *s);

#ifdef __cplusplus
}
#endif

#endif
