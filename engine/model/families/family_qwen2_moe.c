/* engine/model/families/family_qwen2_moe.c - qwen2_moe: qwen2 with experts in all or some layers,
 * and a shared expert beside them.
 *
 * Owns: qwen2_moe's tensor names. Note: without a list of layers, windows are in the even layers
 * among the first max_window_layers. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

#include <limits.h>

#define LAYER                                                                                      \
    HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_INPUT_NORM, HF_SECOND_NORM, HF_ATTENTION, HF_DENSE_MLP,   \
        HF_ROUTER, [ROLE_SHARED_GATE] = "mlp.shared_expert.gate_proj.weight",                      \
                   [ROLE_SHARED_UP] = "mlp.shared_expert.up_proj.weight",                          \
                   [ROLE_SHARED_DOWN] = "mlp.shared_expert.down_proj.weight",                      \
                   [ROLE_SHARE] = "mlp.shared_expert_gate.weight"
#define LAYER_GGUF                                                                                 \
    GGUF_ENDS, GGUF_NORMS, GGUF_QKV, GGUF_O, GGUF_ROUTER,                                          \
        GGUF_SHARED, [ROLE_SHARE] = "ffn_gate_inp_shexp.weight"

static const struct family_names names = {"layers.", {LAYER, HF_EXPERTS}};
static const struct family_names names_all = {"layers.", {LAYER, HF_ALL_EXPERTS}};
static const struct family_names names_gguf = {"blk.", {LAYER_GGUF, GGUF_EXPERTS}};
static const struct family_names names_gguf_all = {"blk.", {LAYER_GGUF, GGUF_ALL_EXPERTS}};

static enum err read_windows(const struct source *s, struct shape *shape)
{
    const char *types[SHAPE_LAYERS_MAX];
    int64_t n = 0, until = 28;
    int listed = 0, found = 0;
    TRY(source_str_list(s, "layer_types", types, SHAPE_LAYERS_MAX, &n, &listed));
    TRY(source_int(s, "max_window_layers", 0, INT_MAX, &until, &found));
    for (int i = 0; i < shape->n_layers && !listed; i++)
        if (i % 2 != 0 || i >= until)
            shape->layer_window[i] = 0;
    return OK;
}

enum err family_qwen2_moe_read(struct family_model *m, const struct source *s, const char *name)
{
    int biases = 1;
    if (s->kind == SOURCE_HF)
        TRY(family_flag(s, name, "qkv_bias", &biases));
    m->shape.gated = 1;
    m->shape.shared_gate = 1;
    TRY(family_read_dialect(
        m, s, name,
        &(struct family_dialect){
            .hf = &names,
            .gguf = &names_gguf,
            .hf_experts = &names_all,
            .gguf_experts = &names_gguf_all,
            .experts_key = "num_experts",
            .expert_ffn_key = "moe_intermediate_size",
            .shared_ffn_key = "shared_expert_intermediate_size",
            .sparse_layers = 1,
            .route_all = 1,
            .biases = biases ? ROLE_BIT(ROLE_Q_B) | ROLE_BIT(ROLE_K_B) | ROLE_BIT(ROLE_V_B) : 0,
            .tied = 0,
            .unpaired = 1,
            .windows = WINDOWS_HAVE | WINDOWS_ASKED | WINDOWS_LISTED,
            .window = FAMILY_WINDOW}));
    return s->kind == SOURCE_HF ? read_windows(s, &m->shape) : OK;
}
