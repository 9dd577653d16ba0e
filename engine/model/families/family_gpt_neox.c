/* engine/model/families/family_gpt_neox.c - gpt_neox (pythia): LayerNorm, biases, GELU, partial
 * RoPE, attention and MLP in parallel.
 *
 * Owns: gpt_neox's keys and tensor names. Note: safetensors interleave q, k and v head by head;
 * GGUF files have all of q, then k, then v. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

#define NAMES_HF                                                                                   \
    [ROLE_EMBED] = "embed_in.weight", [ROLE_NORM1_W] = "input_layernorm.weight",                   \
    [ROLE_NORM1_B] = "input_layernorm.bias", [ROLE_Q] = "attention.query_key_value.weight",        \
    [ROLE_Q_B] = "attention.query_key_value.bias", [ROLE_K] = "attention.query_key_value.weight",  \
    [ROLE_K_B] = "attention.query_key_value.bias", [ROLE_V] = "attention.query_key_value.weight",  \
    [ROLE_V_B] = "attention.query_key_value.bias", [ROLE_O] = "attention.dense.weight",            \
    [ROLE_O_B] = "attention.dense.bias", [ROLE_NORM2_W] = "post_attention_layernorm.weight",       \
    [ROLE_NORM2_B] = "post_attention_layernorm.bias", [ROLE_UP] = "mlp.dense_h_to_4h.weight",      \
    [ROLE_UP_B] = "mlp.dense_h_to_4h.bias", [ROLE_DOWN] = "mlp.dense_4h_to_h.weight",              \
    [ROLE_DOWN_B] = "mlp.dense_4h_to_h.bias", [ROLE_FINAL_NORM_W] = "final_layer_norm.weight",     \
    [ROLE_FINAL_NORM_B] = "final_layer_norm.bias"

/* The head's name in published files, and as transformers 5 writes it. */
static const struct family_names names_hf[] = {
    {"layers.", {NAMES_HF, [ROLE_HEAD] = "embed_out.weight"}},
    {"layers.", {NAMES_HF, [ROLE_HEAD] = "lm_head.weight"}}};
static const struct family_names names_gguf = {
    "blk.", {GGUF_ENDS, GGUF_NORMS, GGUF_NORM_BIASES, GGUF_FUSED_QKV, GGUF_O, GGUF_MLP}};

/* Cuts of a tensor [heads][q, k, v][head_dim]. */
static void cut_by_head(struct family_model *m)
{
    static const enum tensor_role roles[][2] = {
        {ROLE_Q, ROLE_Q_B}, {ROLE_K, ROLE_K_B}, {ROLE_V, ROLE_V_B}};
    const int64_t head = m->shape.head_dim;
    for (int i = 0; i < 3; i++)
        for (int bias = 0; bias < 2; bias++)
            m->cut[roles[i][bias]] =
                (struct family_cut){3 * head * m->shape.n_heads, i * head, head, 3 * head};
}

enum err family_gpt_neox_read(struct family_model *m, const struct source *s, const char *name)
{
    const int gguf = s->kind == SOURCE_GGUF;
    const role_set mlp = ROLE_BIT(ROLE_UP_B) | ROLE_BIT(ROLE_DOWN_B);
    const int renamed = !gguf && source_find(s, "lm_head.weight") != NULL;
    int parallel = 1;
    m->shape.norm = NORM_LAYER;
    m->shape.norm_eps = 1e-5f;
    TRY(family_flag(s, name, gguf ? ".use_parallel_residual" : "use_parallel_residual", &parallel));
    m->shape.branches = parallel ? BRANCHES_PARALLEL : BRANCHES_SERIAL;
    TRY(family_read_dialect(m, s, name,
                            &(struct family_dialect){.hf = &names_hf[renamed],
                                                     .gguf = &names_gguf,
                                                     .act = "gelu",
                                                     .eps_key = "layer_norm_eps",
                                                     .theta_key = "rotary_emb_base",
                                                     .partial_key = "rotary_pct",
                                                     .partial = 0.25,
                                                     .biases = mlp,
                                                     .attention_bias = 1,
                                                     .tied = gguf ? -1 : 0,
                                                     .unpaired = 1,
                                                     .prefixes = {"gpt_neox.", ""}}));
    if (gguf)
        family_cut_qkv(m);
    else
        cut_by_head(m);
    return OK;
}
