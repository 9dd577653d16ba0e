/* engine/model/families/family_ernie4_5_moe.c - ernie4_5_moe: llama with a softmax router that has
 * a bias for the choice, first layers without experts, and a shared expert.
 *
 * Owns: ernie4_5_moe's tensor names. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

#include <limits.h>

#define LAYER                                                                                      \
    HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_INPUT_NORM, HF_SECOND_NORM, HF_ATTENTION, HF_DENSE_MLP,   \
        HF_ROUTER, HF_SHARED_EXPERTS

static const struct family_names names = {
    "layers.", {LAYER, HF_EXPERTS, [ROLE_CHOICE_B] = "mlp.moe_statics.e_score_correction_bias"}};
static const struct family_names names_all = {
    "layers.",
    {LAYER, HF_ALL_EXPERTS, [ROLE_CHOICE_B] = "mlp.gate.moe_statics.e_score_correction_bias"}};
static const struct family_names names_gguf = {"blk.",
                                               {GGUF_ENDS, GGUF_NORMS, GGUF_QKV, GGUF_O,
                                                GGUF_DENSE_MLP, GGUF_ROUTER, GGUF_CHOICE_BIAS,
                                                GGUF_SHARED, GGUF_ALL_EXPERTS}};

enum err family_ernie4_5_moe_read(struct family_model *m, const struct source *s, const char *name)
{
    int64_t last = -1;
    int found = 0;
    m->shape.gated = 1;
    m->shape.norm_eps = 1e-5f;
    TRY(family_read_dialect(m, s, name,
                            &(struct family_dialect){.hf = &names,
                                                     .gguf = &names_gguf,
                                                     .hf_experts = &names_all,
                                                     .gguf_experts = &names_gguf,
                                                     .experts_key = "moe_num_experts",
                                                     .expert_ffn_key = "moe_intermediate_size",
                                                     .used_key = "moe_k",
                                                     .shared_count_key = "moe_num_shared_experts",
                                                     .first_dense_key = "moe_layer_start_index",
                                                     .route_alone = 1,
                                                     .router = ROUTER_BIAS,
                                                     .theta = 500000,
                                                     .tied = 1}));
    m->paired_rows = 1;
    if (s->kind == SOURCE_HF)
        TRY(source_int(s, "moe_layer_end_index", -1, INT_MAX, &last, &found));
    if (last >= 0 && last < m->shape.n_layers - 1)
        return family_fail(s, name, "moe_layer_end_index",
                           "unsupported: layers behind the last one with experts");
    return OK;
}
