/* engine/model/families/family_glm4_moe.c - glm4_moe (GLM-4.5 to 4.7) and solar_open: llama with
 * DeepSeek's router, first layers without experts, and a shared expert.
 *
 * Owns: their tensor names. Note: GGUF files name the second norm as if it followed attention. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

#include <string.h>

#define LAYER                                                                                      \
    HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_INPUT_NORM, HF_SECOND_NORM, HF_QKV, HF_O, HF_QK_NORM,     \
        HF_DENSE_MLP, HF_ROUTER, HF_CHOICE_BIAS, HF_SHARED_EXPERTS

static const struct family_names names = {"layers.", {LAYER, HF_EXPERTS}};
static const struct family_names names_all = {"layers.", {LAYER, HF_ALL_EXPERTS}};
static const struct family_names names_gguf = {
    "blk.",
    {GGUF_ENDS, [ROLE_NORM1_W] = "attn_norm.weight", [ROLE_NORM2_W] = "post_attention_norm.weight",
     GGUF_QKV, GGUF_O, GGUF_QK_NORM, GGUF_DENSE_MLP, GGUF_ROUTER, GGUF_CHOICE_BIAS, GGUF_SHARED,
     GGUF_ALL_EXPERTS}};

enum err family_glm4_moe_read(struct family_model *m, const struct source *s, const char *name)
{
    const int solar = strcmp(m->shape.family, "solar_open") == 0, gguf = s->kind == SOURCE_GGUF;
    int norms = gguf && source_find(s, "blk.0.attn_q_norm.weight");
    const struct family_dialect glm = {.hf = &names,
                                       .gguf = &names_gguf,
                                       .hf_experts = &names_all,
                                       .gguf_experts = &names_gguf,
                                       .experts_key = "n_routed_experts",
                                       .expert_ffn_key = "moe_intermediate_size",
                                       .shared_count_key = "n_shared_experts",
                                       .first_dense_key = solar ? NULL : "first_k_dense_replace",
                                       .route_alone = 1,
                                       .router = ROUTER_LOGISTIC | ROUTER_BIAS | ROUTER_KEYS,
                                       .theta = solar ? 1e6 : 0,
                                       .partial = solar ? 1 : 0.5,
                                       .tied = 0,
                                       .unpaired = 1};
    if (solar) // its layers have no other MLP
        m->shape.ffn_dim = 1;
    else if (!gguf)
        TRY(family_flag(s, name, "use_qk_norm", &norms));
    m->shape.gated = 1;
    m->shape.qk_norm = norms ? QK_NORM_HEAD : QK_NORM_NONE;
    m->shape.norm_eps = 1e-5f;
    return family_read_dialect(m, s, name, &glm);
}
