/* engine/model/families/family_names.h - tensor names that several families share.
 *
 * Owns: the names of llama's layers, in parts. Used by family_*.c only. */
#ifndef ENGINE_MODEL_FAMILIES_FAMILY_NAMES_H
#define ENGINE_MODEL_FAMILIES_FAMILY_NAMES_H

#define HF_EMBED       [ROLE_EMBED] = "embed_tokens.weight"
#define HF_HEAD        [ROLE_HEAD] = "lm_head.weight"
#define HF_FINAL_NORM  [ROLE_FINAL_NORM_W] = "norm.weight"
#define HF_INPUT_NORM  [ROLE_NORM1_W] = "input_layernorm.weight"
#define HF_SECOND_NORM [ROLE_NORM2_W] = "post_attention_layernorm.weight"
/* Norms of what attention and MLP add; and around both. */
#define HF_POST_NORMS                                                                              \
    [ROLE_POST1_W] = "post_attention_layernorm.weight", [ROLE_POST2_W] =                           \
                                                            "post_feedforward_layernorm.weight"
#define HF_AROUND_NORMS HF_POST_NORMS, [ROLE_NORM2_W] = "pre_feedforward_layernorm.weight"
#define HF_QKV                                                                                     \
    [ROLE_Q] = "self_attn.q_proj.weight", [ROLE_Q_B] = "self_attn.q_proj.bias",                    \
    [ROLE_K] = "self_attn.k_proj.weight", [ROLE_K_B] = "self_attn.k_proj.bias",                    \
    [ROLE_V] = "self_attn.v_proj.weight", [ROLE_V_B] = "self_attn.v_proj.bias"
#define HF_O         [ROLE_O] = "self_attn.o_proj.weight"
#define HF_ATTENTION HF_QKV, HF_O, [ROLE_O_B] = "self_attn.o_proj.bias"
#define HF_QK_NORM                                                                                 \
    [ROLE_Q_NORM_W] = "self_attn.q_norm.weight", [ROLE_K_NORM_W] = "self_attn.k_norm.weight"
/* Latent attention; kv_b_proj holds two matrices of each head. */
#define HF_LATENT                                                                                  \
    [ROLE_K] = "self_attn.kv_a_proj_with_mqa.weight",                                              \
    [ROLE_K_NORM_W] = "self_attn.kv_a_layernorm.weight",                                           \
    [ROLE_LATENT_K] = "self_attn.kv_b_proj.weight", [ROLE_LATENT_V] = "self_attn.kv_b_proj.weight"
#define HF_LATENT_Q [ROLE_Q] = "self_attn.q_proj.weight"
#define HF_LATENT_Q_A                                                                              \
    [ROLE_Q_A] = "self_attn.q_a_proj.weight", [ROLE_Q] = "self_attn.q_b_proj.weight",              \
    [ROLE_Q_NORM_W] = "self_attn.q_a_layernorm.weight"
#define GGUF_LATENT                                                                                \
    [ROLE_K] = "attn_kv_a_mqa.weight", [ROLE_K_NORM_W] = "attn_kv_a_norm.weight",                  \
    [ROLE_O] = "attn_output.weight"
#define GGUF_LATENT_B    [ROLE_LATENT_K] = "attn_k_b.weight", [ROLE_LATENT_V] = "attn_v_b.weight"
#define GGUF_LATENT_KV_B /* of old files */                                                        \
    [ROLE_LATENT_K] = "attn_kv_b.weight", [ROLE_LATENT_V] = "attn_kv_b.weight"
#define GGUF_LATENT_Q [ROLE_Q] = "attn_q.weight"
#define GGUF_LATENT_Q_A                                                                            \
    [ROLE_Q_A] = "attn_q_a.weight", [ROLE_Q] = "attn_q_b.weight",                                  \
    [ROLE_Q_NORM_W] = "attn_q_a_norm.weight"
#define HF_GATED_MLP                                                                               \
    [ROLE_GATE] = "mlp.gate_proj.weight", [ROLE_GATE_B] = "mlp.gate_proj.bias",                    \
    [ROLE_UP] = "mlp.up_proj.weight", [ROLE_UP_B] = "mlp.up_proj.bias",                            \
    [ROLE_DOWN] = "mlp.down_proj.weight", [ROLE_DOWN_B] = "mlp.down_proj.bias"

/* Experts: as published today, in tensors of their own, and as libraries hold them, all in one. */
#define HF_ROUTER [ROLE_ROUTER] = "mlp.gate.weight"
#define HF_EXPERTS                                                                                 \
    [ROLE_GATE] = "mlp.experts.%d.gate_proj.weight", [ROLE_UP] = "mlp.experts.%d.up_proj.weight",  \
    [ROLE_DOWN] = "mlp.experts.%d.down_proj.weight"
#define HF_ALL_EXPERTS                                                                             \
    [ROLE_GATE] = "mlp.experts.gate_up_proj", [ROLE_UP] = "mlp.experts.gate_up_proj",              \
    [ROLE_DOWN] = "mlp.experts.down_proj"

#define HF_CHOICE_BIAS    [ROLE_CHOICE_B] = "mlp.gate.e_score_correction_bias"
#define HF_SHARED_EXPERTS /* several, as one */                                                    \
    [ROLE_SHARED_GATE] = "mlp.shared_experts.gate_proj.weight",                                    \
    [ROLE_SHARED_UP] = "mlp.shared_experts.up_proj.weight",                                        \
    [ROLE_SHARED_DOWN] = "mlp.shared_experts.down_proj.weight"

/* The MLP of layers without experts, in models with experts. */
#define HF_DENSE_MLP                                                                               \
    [ROLE_DENSE_GATE] = "mlp.gate_proj.weight", [ROLE_DENSE_UP] = "mlp.up_proj.weight",            \
    [ROLE_DENSE_DOWN] = "mlp.down_proj.weight"

/* Mamba-2; `at` is the name of its module. */
#define HF_MAMBA(at)                                                                               \
    [ROLE_STATE_Q] = at ".in_proj.weight", [ROLE_STATE_K] = at ".in_proj.weight",                  \
    [ROLE_STATE_V] = at ".in_proj.weight", [ROLE_STATE_Z] = at ".in_proj.weight",                  \
    [ROLE_STATE_DT] = at ".in_proj.weight", [ROLE_STATE_CONV] = at ".conv1d.weight",               \
    [ROLE_STATE_CONV_B] = at ".conv1d.bias", [ROLE_STATE_A] = at ".A_log",                         \
    [ROLE_STATE_DT_B] = at ".dt_bias", [ROLE_STATE_SKIP] = at ".D",                                \
    [ROLE_STATE_NORM_W] = at ".norm.weight", [ROLE_STATE_O] = at ".out_proj.weight"

#define GGUF_MAMBA                                                                                 \
    [ROLE_STATE_Q] = "ssm_in.weight", [ROLE_STATE_K] = "ssm_in.weight",                            \
    [ROLE_STATE_V] = "ssm_in.weight", [ROLE_STATE_Z] = "ssm_in.weight",                            \
    [ROLE_STATE_DT] = "ssm_in.weight", [ROLE_STATE_CONV] = "ssm_conv1d.weight",                    \
    [ROLE_STATE_CONV_B] = "ssm_conv1d.bias", [ROLE_STATE_A] = "ssm_a",                             \
    [ROLE_STATE_DT_B] = "ssm_dt.bias", [ROLE_STATE_SKIP] = "ssm_d",                                \
    [ROLE_STATE_NORM_W] = "ssm_norm.weight", [ROLE_STATE_O] = "ssm_out.weight"

#define GGUF_ENDS                                                                                  \
    [ROLE_EMBED] = "token_embd.weight", [ROLE_FINAL_NORM_W] = "output_norm.weight",                \
    [ROLE_HEAD] = "output.weight"
#define GGUF_NORMS [ROLE_NORM1_W] = "attn_norm.weight", [ROLE_NORM2_W] = "ffn_norm.weight"
#define GGUF_POST_NORMS                                                                            \
    [ROLE_POST1_W] = "post_attention_norm.weight", [ROLE_POST2_W] = "post_ffw_norm.weight"
/* Biases of LayerNorms. */
#define GGUF_NORM_BIASES                                                                           \
    [ROLE_NORM1_B] = "attn_norm.bias", [ROLE_NORM2_B] = "ffn_norm.bias",                           \
    [ROLE_FINAL_NORM_B] = "output_norm.bias"
#define GGUF_QKV                                                                                   \
    [ROLE_Q] = "attn_q.weight", [ROLE_Q_B] = "attn_q.bias", [ROLE_K] = "attn_k.weight",            \
    [ROLE_K_B] = "attn_k.bias", [ROLE_V] = "attn_v.weight", [ROLE_V_B] = "attn_v.bias"
#define GGUF_FUSED_QKV                                                                             \
    [ROLE_Q] = "attn_qkv.weight", [ROLE_Q_B] = "attn_qkv.bias", [ROLE_K] = "attn_qkv.weight",      \
    [ROLE_K_B] = "attn_qkv.bias", [ROLE_V] = "attn_qkv.weight", [ROLE_V_B] = "attn_qkv.bias"
#define GGUF_O       [ROLE_O] = "attn_output.weight", [ROLE_O_B] = "attn_output.bias"
#define GGUF_QK_NORM [ROLE_Q_NORM_W] = "attn_q_norm.weight", [ROLE_K_NORM_W] = "attn_k_norm.weight"
#define GGUF_GATE    [ROLE_GATE] = "ffn_gate.weight", [ROLE_GATE_B] = "ffn_gate.bias"
#define GGUF_MLP                                                                                   \
    [ROLE_UP] = "ffn_up.weight", [ROLE_UP_B] = "ffn_up.bias", [ROLE_DOWN] = "ffn_down.weight",     \
    [ROLE_DOWN_B] = "ffn_down.bias"

#define GGUF_ROUTER  [ROLE_ROUTER] = "ffn_gate_inp.weight"
#define GGUF_EXPERTS /* of old files */                                                            \
    [ROLE_GATE] = "ffn_gate.%d.weight", [ROLE_UP] = "ffn_up.%d.weight",                            \
    [ROLE_DOWN] = "ffn_down.%d.weight"
#define GGUF_SHARED /* of the shared expert */                                                     \
    [ROLE_SHARED_GATE] = "ffn_gate_shexp.weight", [ROLE_SHARED_UP] = "ffn_up_shexp.weight",        \
    [ROLE_SHARED_DOWN] = "ffn_down_shexp.weight"
#define GGUF_CHOICE_BIAS [ROLE_CHOICE_B] = "exp_probs_b.bias"
#define GGUF_DENSE_MLP                                                                             \
    [ROLE_DENSE_GATE] = "ffn_gate.weight", [ROLE_DENSE_UP] = "ffn_up.weight",                      \
    [ROLE_DENSE_DOWN] = "ffn_down.weight"
#define GGUF_ALL_EXPERTS                                                                           \
    [ROLE_GATE] = "ffn_gate_exps.weight", [ROLE_UP] = "ffn_up_exps.weight",                        \
    [ROLE_DOWN] = "ffn_down_exps.weight"

#endif
