/* engine/model/families/family_granite_hybrid.c - granitemoehybrid (Granite 4.0 H): granite with
 * Mamba-2 instead of attention in most layers; experts and a shared expert, or an MLP alone.
 *
 * Owns: tensor names. Note: the MLP of models without experts has the shared expert's names. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

#include <stdio.h>
#include <string.h>

#define LAYER                                                                                      \
    HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_INPUT_NORM, HF_SECOND_NORM, HF_ATTENTION, HF_MAMBA("mamba")
#define EXPERT_LAYER                                                                               \
    LAYER, [ROLE_SHARED_GATE] = "shared_mlp.input_linear.weight",                                  \
           [ROLE_SHARED_UP] = "shared_mlp.input_linear.weight",                                    \
           [ROLE_SHARED_DOWN] = "shared_mlp.output_linear.weight"

static const struct family_names names = {
    "layers.",
    {EXPERT_LAYER, [ROLE_ROUTER] = "block_sparse_moe.router.layer.weight",
     [ROLE_GATE] = "block_sparse_moe.input_linear.weight",
     [ROLE_UP] = "block_sparse_moe.input_linear.weight",
     [ROLE_DOWN] = "block_sparse_moe.output_linear.weight"}};
static const struct family_names names_own = {
    "layers.",
    {EXPERT_LAYER, [ROLE_ROUTER] = "block_sparse_moe.router.weight",
     [ROLE_GATE] = "block_sparse_moe.experts.gate_up_proj",
     [ROLE_UP] = "block_sparse_moe.experts.gate_up_proj",
     [ROLE_DOWN] = "block_sparse_moe.experts.down_proj"}};
static const struct family_names names_dense = {
    "layers.",
    {LAYER, [ROLE_GATE] = "shared_mlp.input_linear.weight",
     [ROLE_UP] = "shared_mlp.input_linear.weight",
     [ROLE_DOWN] = "shared_mlp.output_linear.weight"}};

static const struct family_names names_gguf = {"blk.",
                                               {GGUF_ENDS, GGUF_NORMS, GGUF_QKV, GGUF_O, GGUF_MAMBA,
                                                GGUF_ROUTER, GGUF_ALL_EXPERTS, GGUF_SHARED}};
static const struct family_names names_gguf_dense = {
    "blk.", {GGUF_ENDS, GGUF_NORMS, GGUF_QKV, GGUF_O, GGUF_MAMBA, GGUF_GATE, GGUF_MLP}};

static enum err read_state(const struct source *s, struct shape *shape)
{
    static const char *const keys[5] = {"mamba_n_groups", "mamba_n_heads", "mamba_d_state",
                                        "mamba_d_head", "mamba_d_conv"};
    char positions[32] = "";
    int listed = 0;
    shape->state_k_heads = 1;
    shape->state_v_heads = 128;
    shape->state_k_dim = 256;
    shape->state_taps = 4;
    TRY(state_sizes(s, shape, keys));
    TRY(state_layers(s, "layer_types", "mamba linear_attention", "attention full_attention", shape,
                     &listed));
    TRY(state_layers_end(s, "layer_types", shape));
    TRY(family_str(s, "", "position_embedding_type", positions, sizeof positions));
    if (strcmp(positions, "rope") != 0)
        memset(shape->layer_rope, SHAPE_NO_ROPE, sizeof shape->layer_rope);
    return OK;
}

static enum err read_state_gguf(const struct source *s, const char *name, struct shape *shape)
{
    int turns = 1;
    TRY(state_sizes_gguf(s, name, shape));
    TRY(family_flag(s, name, ".rope.scaling.finetuned", &turns));
    if (!turns)
        memset(shape->layer_rope, SHAPE_NO_ROPE, sizeof shape->layer_rope);
    return OK;
}

enum err family_granite_hybrid_read(struct family_model *m, const struct source *s,
                                    const char *name)
{
    struct shape *shape = &m->shape;
    const int gguf = s->kind == SOURCE_GGUF;
    int64_t experts = gguf ? 0 : 8, width = gguf ? 0 : 1024;
    int bias = 1, found = 0;
    char counts[100] = "num_local_experts", widths[100] = "shared_intermediate_size";
    if (gguf) {
        snprintf(counts, sizeof counts, "%s.expert_count", name);
        snprintf(widths, sizeof widths, "%s.expert_shared_feed_forward_length", name);
    }
    TRY(source_int(s, counts, 0, SHAPE_EXPERTS_MAX, &experts, &found));
    TRY(source_int(s, widths, 1, SHAPE_DIM_MAX, &width, &found));
    TRY(family_flag(s, "", "mamba_conv_bias", &bias));
    shape->gated = 1;
    shape->state = STATE_MAMBA;
    if (gguf)
        TRY(read_state_gguf(s, name, shape));
    shape->shared_dim = experts > 0 ? (int)width : 0;
    TRY(family_granite_factors(m, s, name));
    TRY(family_read_dialect(
        m, s, name,
        &(struct family_dialect){.hf = experts > 0 ? &names : &names_dense,
                                 .gguf = experts > 0 ? &names_gguf : &names_gguf_dense,
                                 .hf_experts = experts > 0 ? &names_own : NULL,
                                 .gguf_experts = experts > 0 ? &names_gguf : NULL,
                                 .states = 1,
                                 .experts_key = experts > 0 ? "num_local_experts" : NULL,
                                 .route_alone = 1,
                                 .tied = -1}));
    if (gguf) {
        state_cut_mamba(m, 0);
        if (experts == 0 && width > 0)
            shape->ffn_dim = (int)width;
        return OK;
    }
    TRY(read_state(s, shape));
    m->roles = family_roles(shape, (bias ? ROLE_BIT(ROLE_STATE_CONV_B) : 0) |
                                       (m->roles & (ROLE_BIT(ROLE_Q_B) | ROLE_BIT(ROLE_K_B) |
                                                    ROLE_BIT(ROLE_V_B) | ROLE_BIT(ROLE_O_B))));
    state_cut_mamba(m, 1);
    if (experts > 0) {
        family_cut_experts(m);
        family_cut_shared(m);
        return OK;
    }
    shape->ffn_dim = (int)width;
    m->cut[ROLE_GATE] = (struct family_cut){2 * width, 0, width, width};
    m->cut[ROLE_UP] = (struct family_cut){2 * width, width, width, width};
    return OK;
}
