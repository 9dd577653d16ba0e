/* engine/model/families/family_qwen3_moe.c - qwen3_moe: qwen3 with experts in all or some layers.
 *
 * Owns: qwen3_moe's tensor names. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

#define LAYER                                                                                      \
    HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_INPUT_NORM, HF_SECOND_NORM, HF_ATTENTION, HF_QK_NORM,     \
        HF_DENSE_MLP, HF_ROUTER
#define LAYER_GGUF GGUF_ENDS, GGUF_NORMS, GGUF_QKV, GGUF_O, GGUF_QK_NORM, GGUF_ROUTER

static const struct family_names names = {"layers.", {LAYER, HF_EXPERTS}};
static const struct family_names names_all = {"layers.", {LAYER, HF_ALL_EXPERTS}};
static const struct family_names names_gguf = {"blk.", {LAYER_GGUF, GGUF_EXPERTS}};
static const struct family_names names_gguf_all = {"blk.", {LAYER_GGUF, GGUF_ALL_EXPERTS}};

enum err family_qwen3_moe_read(struct family_model *m, const struct source *s, const char *name)
{
    m->shape.gated = 1;
    m->shape.qk_norm = QK_NORM_HEAD;
    return family_read_dialect(m, s, name,
                               &(struct family_dialect){.hf = &names,
                                                        .gguf = &names_gguf,
                                                        .hf_experts = &names_all,
                                                        .gguf_experts = &names_gguf_all,
                                                        .experts_key = "num_experts",
                                                        .expert_ffn_key = "moe_intermediate_size",
                                                        .sparse_layers = 1,
                                                        .tied = 0,
                                                        .unpaired = 1,
                                                        .windows = WINDOWS_HAVE | WINDOWS_ASKED,
                                                        .window = FAMILY_WINDOW});
}
