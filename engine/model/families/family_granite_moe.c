/* engine/model/families/family_granite_moe.c - granitemoe: granite with experts; granitemoeshared
 * also has a shared expert.
 *
 * Owns: granitemoe's tensor names. Note: published files and files written by transformers 5 both
 * hold all experts in one tensor, gate above up, under different names. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

#include <stdio.h>

#define LAYER                                                                                      \
    HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_INPUT_NORM, HF_SECOND_NORM,                               \
        HF_ATTENTION, [ROLE_SHARED_GATE] = "shared_mlp.input_linear.weight",                       \
                      [ROLE_SHARED_UP] = "shared_mlp.input_linear.weight",                         \
                      [ROLE_SHARED_DOWN] = "shared_mlp.output_linear.weight"

static const struct family_names names = {
    "layers.",
    {LAYER, [ROLE_ROUTER] = "block_sparse_moe.router.layer.weight",
     [ROLE_GATE] = "block_sparse_moe.input_linear.weight",
     [ROLE_UP] = "block_sparse_moe.input_linear.weight",
     [ROLE_DOWN] = "block_sparse_moe.output_linear.weight"}};
static const struct family_names names_own = {
    "layers.",
    {LAYER, [ROLE_ROUTER] = "block_sparse_moe.router.weight",
     [ROLE_GATE] = "block_sparse_moe.experts.gate_up_proj",
     [ROLE_UP] = "block_sparse_moe.experts.gate_up_proj",
     [ROLE_DOWN] = "block_sparse_moe.experts.down_proj"}};
static const struct family_names names_gguf = {
    "blk.", {GGUF_ENDS, GGUF_NORMS, GGUF_QKV, GGUF_O, GGUF_ROUTER, GGUF_ALL_EXPERTS, GGUF_SHARED}};

enum err family_granite_moe_read(struct family_model *m, const struct source *s, const char *name)
{
    const int gguf = s->kind == SOURCE_GGUF;
    char key[100] = "shared_intermediate_size";
    int64_t shared = 0;
    int found = 0;
    if (gguf)
        snprintf(key, sizeof key, "%s.expert_shared_feed_forward_length", name);
    TRY(source_int(s, key, 0, SHAPE_DIM_MAX, &shared, &found));
    m->shape.gated = 1;
    m->shape.shared_dim = (int)shared;
    TRY(family_granite_factors(m, s, name));
    TRY(family_read_dialect(m, s, name,
                            &(struct family_dialect){.hf = &names,
                                                     .gguf = &names_gguf,
                                                     .hf_experts = &names_own,
                                                     .gguf_experts = &names_gguf,
                                                     .experts_key = "num_local_experts",
                                                     .route_alone = 1,
                                                     .tied = -1}));
    if (!gguf) {
        family_cut_experts(m);
        family_cut_shared(m);
    }
    return OK;
}
