/* engine/model/families/family_hunyuan.c - hunyuan_v1_dense and hunyuan_v1_moe: qwen3 whose norms
 * of q and k follow the rotation, and RoPE of a stretched base; with experts in all layers or in
 * none.
 *
 * Owns: their tensor names. Note: experts and the shared expert are as wide as intermediate_size
 * says. GGUF files have the stretched base. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

#include <string.h>

#define LAYER                                                                                      \
    HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_INPUT_NORM, HF_SECOND_NORM,                               \
        HF_ATTENTION, [ROLE_Q_NORM_W] = "self_attn.query_layernorm.weight",                        \
                      [ROLE_K_NORM_W] = "self_attn.key_layernorm.weight"
#define LAYER_MOE                                                                                  \
    LAYER, [ROLE_ROUTER] = "mlp.gate.wg.weight",                                                   \
           [ROLE_SHARED_GATE] = "mlp.shared_mlp.gate_proj.weight",                                 \
           [ROLE_SHARED_UP] = "mlp.shared_mlp.up_proj.weight",                                     \
           [ROLE_SHARED_DOWN] = "mlp.shared_mlp.down_proj.weight"
#define LAYER_GGUF GGUF_ENDS, GGUF_NORMS, GGUF_QKV, GGUF_O, GGUF_QK_NORM

static const struct family_names names_dense = {"layers.", {LAYER, HF_GATED_MLP}};
static const struct family_names names_dense_gguf = {"blk.", {LAYER_GGUF, GGUF_GATE, GGUF_MLP}};
static const struct family_names names = {"layers.", {LAYER_MOE, HF_EXPERTS}};
static const struct family_names names_all = {"layers.", {LAYER_MOE, HF_ALL_EXPERTS}};
static const struct family_names names_gguf = {
    "blk.", {LAYER_GGUF, GGUF_ROUTER, GGUF_SHARED, GGUF_ALL_EXPERTS}};

enum err family_hunyuan_read(struct family_model *m, const struct source *s, const char *name)
{
    const struct family_dialect dense = {.hf = &names_dense,
                                         .gguf = &names_dense_gguf,
                                         .tied = s->kind == SOURCE_HF ? 0 : -1,
                                         .alpha = 1,
                                         .unpaired = 1};
    struct family_dialect moe = dense;
    moe.hf = &names;
    moe.gguf = moe.gguf_experts = &names_gguf;
    moe.hf_experts = &names_all;
    moe.experts_key = "num_experts";
    moe.used_key = "moe_topk";
    moe.shared_ffn_key = "intermediate_size";
    moe.route_alone = 1;
    m->shape.gated = 1;
    m->shape.norm_eps = 1e-5f;
    m->shape.qk_norm = QK_NORM_TURNED;
    return family_read_dialect(m, s, name,
                               strcmp(m->shape.family, "hunyuan_moe") == 0 ? &moe : &dense);
}
