/* engine/model/families/role.h - the roles of a model's tensors.
 *
 * Owns: the roles, how each is stored, which of them a model of a given shape has, and their sizes.
 * Refuses: tensor names in files (family.h) and offsets (source.h, model.h). */
#ifndef ENGINE_MODEL_FAMILIES_ROLE_H
#define ENGINE_MODEL_FAMILIES_ROLE_H

#include "kernels/dtype.h"
#include "policy/shape.h"

/* The role of a tensor. Pack files contain these numbers: append only. */
enum tensor_role {
    ROLE_EMBED,        // [vocab, embed_dim] rows
    ROLE_POS,          // [context + position_offset, dim] rows (opt)
    ROLE_PROJ_IN,      // [dim, embed_dim] (opt-350m)
    ROLE_NORM1_W,      // [dim] norm of the attention
    ROLE_NORM1_B,      // [dim]
    ROLE_Q,            // [n_heads * shape_query_dim(), dim or latent_query]
    ROLE_Q_B,          // [n_heads * head_dim]
    ROLE_K,            // [n_kv_heads * head_dim, dim]
    ROLE_K_B,          // [n_kv_heads * head_dim]
    ROLE_V,            // [n_kv_heads * head_dim, dim]
    ROLE_V_B,          // [n_kv_heads * head_dim]
    ROLE_O,            // [dim, n_heads * shape_output_dim()]
    ROLE_O_B,          // [dim]
    ROLE_NORM2_W,      // [dim] norm of the MLP
    ROLE_NORM2_B,      // [dim]
    ROLE_GATE,         // [ffn_dim, dim] of gated MLPs; with experts: all of them, stacked
    ROLE_GATE_B,       // [ffn_dim]
    ROLE_UP,           // [ffn_dim, dim] (opt: fc1)
    ROLE_UP_B,         // [ffn_dim]
    ROLE_DOWN,         // [dim, ffn_dim] (opt: fc2)
    ROLE_DOWN_B,       // [dim]
    ROLE_FINAL_NORM_W, // [dim]
    ROLE_FINAL_NORM_B, // [dim]
    ROLE_PROJ_OUT,     // [embed_dim, dim] (opt-350m), after the final norm
    ROLE_HEAD,         // [vocab, embed_dim], cut into slices
    ROLE_POST1_W,      // [dim] norm of the attention's output
    ROLE_POST2_W,      // [dim] norm of the MLP's output
    ROLE_Q_NORM_W,     // [head_dim], or [n_heads * head_dim], see enum qk_norm; [latent_query]
    ROLE_K_NORM_W,     // [head_dim], or [n_kv_heads * head_dim]; [latent]
    ROLE_SINKS,        // [n_heads] extra logits of the softmax, without a value
    ROLE_ROUTER,       // [n_experts, dim]
    ROLE_ROUTER_B,     // [n_experts]
    ROLE_DENSE_GATE,   // [dense_dim, dim] of layers without experts, in models with experts
    ROLE_DENSE_UP,     // [dense_dim, dim]
    ROLE_DENSE_DOWN,   // [dim, dense_dim]
    ROLE_SHARED_GATE,  // [shared_dim, dim] of the shared expert
    ROLE_SHARED_UP,    // [shared_dim, dim]
    ROLE_SHARED_DOWN,  // [dim, shared_dim]
    ROLE_SHARE,        // [1, dim] gate of the shared expert
    ROLE_CHOICE_B,     // [n_experts] added to the experts' scores where they are chosen
    ROLE_Q_GATE,       // [n_heads * head_dim, dim] gate of attention's output
    ROLE_STATE_Q,      // [state_k_heads * state_k_dim, dim] of layers with a state
    ROLE_STATE_K,      // [state_k_heads * state_k_dim, dim]; of STATE_CONV: b, as wide as v
    ROLE_STATE_V,      // [state_v_heads * state_v_dim, dim]
    ROLE_STATE_Z,      // [state_v_heads * state_v_dim, dim] gate of the state's output
    ROLE_STATE_BETA,   // [state_v_heads, dim] of STATE_DELTA
    ROLE_STATE_DT,     // [state_v_heads, dim] the time step
    ROLE_STATE_CONV,   // [rows of q, k and v, state_taps] weights of the convolution
    ROLE_STATE_A,      // [state_v_heads] decay per time step, below 0
    ROLE_STATE_DT_B,   // [state_v_heads]
    ROLE_STATE_NORM_W, // norm of the state's output: [state_v_dim] of each head, or (STATE_MAMBA)
                       // [state_v_heads * state_v_dim], each k head's share by itself; with
                       // beside_scale some models have none
    ROLE_STATE_O,      // [dim, state_v_heads * state_v_dim]
    ROLE_Q_A,          // [latent_query, dim] of latent attention: what queries are made of
    ROLE_LATENT_K, // [n_heads * latent, latent_key] of each head: query to latent (the numbers of
                   // a key after rope_dim)
    ROLE_LATENT_V, // [n_heads * latent_value, latent] of each head: latent to output
    ROLE_STATE_CONV_B,  // [rows of q, k and v]
    ROLE_STATE_SKIP,    // [state_v_heads] factor on v that the state's output gets added
    ROLE_ROUTE_SCALE,   // [n_experts] factors on the experts' weights
    ROLE_ROUTER_NORM_W, // [dim] norm of what the router reads; with expert_norms, as the next three
    ROLE_EXPERT_NORM_W, // [dim] norm of what experts read
    ROLE_EXPERT_POST_W, // [dim] norm of the experts' sum
    ROLE_SHARED_POST_W, // [dim] norm of the shared expert's output
    ROLE_INPUTS_EMBED,  // [vocab, n_layers * layer_input] rows, each beside the token's in
                        // ROLE_EMBED
    ROLE_INPUTS_PROJ,   // [n_layers * layer_input, dim] of the embedding: the other summand
    ROLE_INPUTS_NORM_W, // [layer_input] norm of that summand, of each layer's share by itself
    ROLE_INPUT_GATE,    // [layer_input, dim] of the layer's output: factors on its input
    ROLE_INPUT_OUT,     // [dim, layer_input] what the layer's output gets added,
    ROLE_INPUT_POST_W,  // [dim] after this norm
    ROLE_HEAD_B,        // [vocab]; each slice has all of it, for it is small beside the slice
    ROLE_EXPERT_IN,     // [expert_dim, dim] what experts read,
    ROLE_EXPERT_OUT,    // [dim, expert_dim] and what their sum becomes
    N_ROLES
};
__extension__ typedef unsigned __int128 role_set; // of ROLE_BIT()s
#define ROLE_BIT(role) ((role_set)1 << (role))

/* How a role is stored: single rows to be gathered, panels for matmuls, or an f32 vector. */
enum role_kind { ROLE_IS_ROWS, ROLE_IS_PANELS, ROLE_IS_VECTOR };
/* The line layers that hold a role. */
enum role_place { ROLE_IN_EMBEDDING, ROLE_IN_DECODER, ROLE_IN_SLICE };
enum role_need { ROLE_ABSENT, ROLE_OPTIONAL, ROLE_REQUIRED };

const char *role_name(enum tensor_role role); // "attn_q"
enum role_kind role_kind(enum tensor_role role);
enum role_place role_place(enum tensor_role role);
/* Whether a model of this shape has the tensor; biases of matmuls are optional. */
enum role_need role_need(const struct shape *s, enum tensor_role role);
/* 0: layers have two kinds, and decoder layer `layer` (from 0) is of the kind without this role. */
int role_in_layer(const struct shape *s, enum tensor_role role, int layer);
/* 1: the logits of this matrix choose or weigh experts. Such a matrix is stored as in the file and
 * always multiplied in f32, because a wrong choice is no small error. */
int role_is_choice(enum tensor_role role);
/* 1: the role makes keys or values, biases and norms included. */
int role_is_kv(enum tensor_role role);
/* 1: of layers with a row state. */
int role_is_state(enum tensor_role role);
/* 1: the role is of a layer's MLP, its norm included. */
int role_is_mlp(enum tensor_role role);
/* 1: the role holds a matrix per head, one after the other in one matrix. */
int role_is_heads(enum tensor_role role);
/* 1: the role holds all experts, one after the other in one matrix or vector. */
int role_is_experts(const struct shape *s, enum tensor_role role);
/* Dimensions of the whole tensor: n outputs (rows, or vector elements), k inputs (vector: 1).
 * `layer` (from 0) matters for decoder roles only. */
void role_dims(const struct shape *s, enum tensor_role role, int layer, int *n, int *k);
/* Bytes of n x k numbers in format t, stored as this role is; -1: k does not fit the block. */
int64_t role_bytes(enum tensor_role role, enum dtype t, int n, int k);

#endif
