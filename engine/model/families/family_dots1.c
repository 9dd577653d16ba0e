/* engine/model/families/family_dots1.c - dots1: qwen3 with DeepSeek's router, first layers without
 * experts, and a shared expert.
 *
 * Owns: dots1's tensor names. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

#define LAYER                                                                                      \
    HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_INPUT_NORM, HF_SECOND_NORM, HF_ATTENTION, HF_QK_NORM,     \
        HF_DENSE_MLP, HF_ROUTER, HF_CHOICE_BIAS, HF_SHARED_EXPERTS

static const struct family_names names = {"layers.", {LAYER, HF_EXPERTS}};
static const struct family_names names_all = {"layers.", {LAYER, HF_ALL_EXPERTS}};
static const struct family_names names_gguf = {"blk.",
                                               {GGUF_ENDS, GGUF_NORMS, GGUF_QKV, GGUF_O,
                                                GGUF_QK_NORM, GGUF_DENSE_MLP, GGUF_ROUTER,
                                                GGUF_CHOICE_BIAS, GGUF_SHARED, GGUF_ALL_EXPERTS}};

enum err family_dots1_read(struct family_model *m, const struct source *s, const char *name)
{
    m->shape.gated = 1;
    m->shape.qk_norm = QK_NORM_HEAD;
    return family_read_dialect(
        m, s, name,
        &(struct family_dialect){.hf = &names,
                                 .gguf = &names_gguf,
                                 .hf_experts = &names_all,
                                 .gguf_experts = &names_gguf,
                                 .experts_key = "n_routed_experts",
                                 .expert_ffn_key = "moe_intermediate_size",
                                 .shared_count_key = "n_shared_experts",
                                 .first_dense_key = "first_k_dense_replace",
                                 .router = ROUTER_LOGISTIC | ROUTER_BIAS | ROUTER_KEYS,
                                 .tied = 0,
                                 .unpaired = 1,
                                 .windows = WINDOWS_HAVE | WINDOWS_LISTED | WINDOWS_LATE,
                                 .window = FAMILY_WINDOW});
}
