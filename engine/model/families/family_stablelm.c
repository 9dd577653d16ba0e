/* engine/model/families/family_stablelm.c - stablelm: llama with LayerNorm and partial RoPE; some
 * models have a norm for each head of q and k, some attention and MLP in parallel with one norm.
 *
 * Owns: stablelm's keys and tensor names. Note: in safetensors each head's norm is a separate
 * tensor. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

static const struct family_names names_hf = {
    "layers.",
    {HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_INPUT_NORM, HF_SECOND_NORM, HF_ATTENTION,
     HF_GATED_MLP, [ROLE_FINAL_NORM_B] = "norm.bias", [ROLE_NORM1_B] = "input_layernorm.bias",
     [ROLE_NORM2_B] = "post_attention_layernorm.bias",
     [ROLE_Q_NORM_W] = "self_attn.q_layernorm.norms.%d.weight",
     [ROLE_K_NORM_W] = "self_attn.k_layernorm.norms.%d.weight"}};
static const struct family_names names_gguf = {
    "blk.",
    {GGUF_ENDS, GGUF_NORMS, GGUF_NORM_BIASES, GGUF_QKV, GGUF_O, GGUF_QK_NORM, GGUF_GATE, GGUF_MLP}};

enum err family_stablelm_read(struct family_model *m, const struct source *s, const char *name)
{
    const int gguf = s->kind == SOURCE_GGUF;
    const role_set qkv = ROLE_BIT(ROLE_Q_B) | ROLE_BIT(ROLE_K_B) | ROLE_BIT(ROLE_V_B);
    int parallel = 0, qk_norm = gguf && source_find(s, "blk.0.attn_q_norm.weight"), biases = 0;
    TRY(family_flag(s, name, gguf ? ".use_parallel_residual" : "use_parallel_residual", &parallel));
    if (!gguf) {
        TRY(family_flag(s, "", "qk_layernorm", &qk_norm));
        TRY(family_flag(s, "", "use_qkv_bias", &biases));
    }
    m->shape.gated = 1;
    m->shape.norm = NORM_LAYER;
    m->shape.norm_eps = 1e-5f;
    m->shape.qk_norm = qk_norm ? QK_NORM_OWN : QK_NORM_NONE;
    m->shape.branches = parallel ? BRANCHES_SHARE_NORM : BRANCHES_SERIAL;
    return family_read_dialect(m, s, name,
                               &(struct family_dialect){.hf = &names_hf,
                                                        .gguf = &names_gguf,
                                                        .eps_key = "layer_norm_eps",
                                                        .partial = 0.25,
                                                        .biases = biases ? qkv : 0,
                                                        .tied = gguf ? -1 : 0,
                                                        .unpaired = 1});
}
