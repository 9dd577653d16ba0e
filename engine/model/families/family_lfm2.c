/* engine/model/families/family_lfm2.c - lfm2 and lfm2_moe: most layers have a short convolution
 * between two products instead of attention; an MLP, or experts with DeepSeek's router.
 *
 * Owns: tensor names, and the rule for the MLP's width. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

#include <string.h>

#define MOE "lfm2_moe"

#define LAYER                                                                                      \
    HF_EMBED, HF_HEAD, HF_QKV,                                                                     \
        [ROLE_FINAL_NORM_W] = "embedding_norm.weight", [ROLE_NORM1_W] = "operator_norm.weight",    \
        [ROLE_NORM2_W] = "ffn_norm.weight", [ROLE_O] = "self_attn.out_proj.weight",                \
        [ROLE_Q_NORM_W] = "self_attn.q_layernorm.weight",                                          \
        [ROLE_K_NORM_W] = "self_attn.k_layernorm.weight", [ROLE_STATE_K] = "conv.in_proj.weight",  \
        [ROLE_STATE_Z] = "conv.in_proj.weight", [ROLE_STATE_V] = "conv.in_proj.weight",            \
        [ROLE_STATE_CONV] = "conv.conv.weight", [ROLE_STATE_O] = "conv.out_proj.weight"
#define EXPERT_LAYER                                                                               \
    LAYER,                                                                                         \
        [ROLE_DENSE_GATE] = "feed_forward.w1.weight", [ROLE_DENSE_UP] = "feed_forward.w3.weight",  \
        [ROLE_DENSE_DOWN] = "feed_forward.w2.weight", [ROLE_ROUTER] = "feed_forward.gate.weight",  \
        [ROLE_CHOICE_B] = "feed_forward.expert_bias"

static const struct family_names names = {
    "layers.",
    {LAYER, [ROLE_GATE] = "feed_forward.w1.weight", [ROLE_UP] = "feed_forward.w3.weight",
     [ROLE_DOWN] = "feed_forward.w2.weight"}};
static const struct family_names names_moe = {
    "layers.",
    {EXPERT_LAYER, [ROLE_GATE] = "feed_forward.experts.%d.w1.weight",
     [ROLE_UP] = "feed_forward.experts.%d.w3.weight",
     [ROLE_DOWN] = "feed_forward.experts.%d.w2.weight"}};
static const struct family_names names_all = {
    "layers.",
    {EXPERT_LAYER, [ROLE_GATE] = "feed_forward.experts.gate_up_proj",
     [ROLE_UP] = "feed_forward.experts.gate_up_proj",
     [ROLE_DOWN] = "feed_forward.experts.down_proj"}};

#define GGUF_LAYER                                                                                 \
    [ROLE_EMBED] = "token_embd.weight", [ROLE_HEAD] = "output.weight",                             \
    [ROLE_FINAL_NORM_W] = "token_embd_norm.weight", GGUF_NORMS, GGUF_QKV, GGUF_O,                  \
    GGUF_QK_NORM, [ROLE_STATE_K] = "shortconv.in_proj.weight",                                     \
    [ROLE_STATE_Z] = "shortconv.in_proj.weight", [ROLE_STATE_V] = "shortconv.in_proj.weight",      \
    [ROLE_STATE_CONV] = "shortconv.conv.weight", [ROLE_STATE_O] = "shortconv.out_proj.weight"

static const struct family_names names_gguf = {"blk.", {GGUF_LAYER, GGUF_GATE, GGUF_MLP}};
static const struct family_names names_gguf_moe = {
    "blk.", {GGUF_LAYER, GGUF_DENSE_MLP, GGUF_ROUTER, GGUF_CHOICE_BIAS, GGUF_ALL_EXPERTS}};

/* The MLP's width: by default two thirds of the file's, times a factor, rounded up. */
static enum err read_width(const struct source *s, struct shape *shape)
{
    int64_t width = shape->ffn_dim, of = 256;
    double factor = 1;
    int adjust = 1, found = 0;
    TRY(source_int(s, "block_ff_dim", 1, SHAPE_DIM_MAX, &width, &found));
    TRY(source_int(s, "block_multiple_of", 1, SHAPE_DIM_MAX, &of, &found));
    TRY(family_float(s, "", "block_ffn_dim_multiplier", 1e-3, 1e3, &factor));
    TRY(family_flag(s, "", "block_auto_adjust_ff_dim", &adjust));
    if (adjust)
        width = round_up((int64_t)(factor * (double)(2 * width / 3)), of);
    if (width < 1 || width > SHAPE_DIM_MAX)
        return family_fail(s, "", "block_ffn_dim_multiplier", "makes an MLP of %lld numbers",
                           (long long)width);
    shape->ffn_dim = (int)width;
    return OK;
}

/* Layers with a state: all that do not attend, by name or by number. */
static enum err read_layers(const struct source *s, struct shape *shape)
{
    int64_t attend[SHAPE_LAYERS_MAX], n = 0;
    int named = 0, numbered = 0;
    TRY(state_layers(s, "layer_types", "conv", "full_attention", shape, &named));
    if (!named) {
        TRY(source_int_list(s, "full_attn_idxs", 0, shape->n_layers - 1, attend, SHAPE_LAYERS_MAX,
                            &n, &numbered));
        for (int i = 0; i < shape->n_layers; i++)
            shape->layer_state[i] = (uint8_t)numbered;
        for (int64_t i = 0; i < n; i++)
            shape->layer_state[attend[i]] = 0;
    }
    return state_layers_end(s, numbered ? "full_attn_idxs" : "layer_types", shape);
}

/* A convolution as wide as the hidden state. */
static enum err read_state(const struct source *s, const char *name, struct family_model *m)
{
    const int gguf = s->kind == SOURCE_GGUF;
    struct shape *shape = &m->shape;
    const int64_t dim = shape->dim;
    const struct family_int taps = {gguf ? ".shortconv.l_cache" : "conv_L_cache", SHAPE_TAPS_MAX,
                                    KEY_OPTIONAL, offsetof(struct shape, state_taps)};
    if (dim % 16 != 0)
        return family_fail(s, name, gguf ? ".embedding_length" : "hidden_size",
                           "unsupported: %d is not a multiple of 16", shape->dim);
    shape->state = STATE_CONV;
    shape->state_v_dim = 16;
    shape->state_v_heads = shape->dim / 16;
    shape->state_taps = 3;
    TRY(family_ints(s, name, &taps, 1, shape));
    if (!gguf)
        TRY(read_layers(s, shape));
    m->roles = family_roles(shape, 0);
    m->cut[ROLE_STATE_K] = (struct family_cut){3 * dim, 0, dim, dim};
    m->cut[ROLE_STATE_Z] = (struct family_cut){3 * dim, dim, dim, dim};
    m->cut[ROLE_STATE_V] = (struct family_cut){3 * dim, 2 * dim, dim, dim};
    return OK;
}

enum err family_lfm2_read(struct family_model *m, const struct source *s, const char *name)
{
    const int moe = strcmp(m->shape.family, MOE) == 0, gguf = s->kind == SOURCE_GGUF;
    int tied = 1, bias = 1;
    struct family_dialect d = {.hf = &names,
                               .gguf = &names_gguf,
                               .states = 1,
                               .unpaired = 1,
                               .eps_key = "norm_eps",
                               .theta = 1e6};
    TRY(family_flag(s, "", "tie_embedding", &tied));
    TRY(family_flag(s, "", "use_expert_bias", &bias));
    d.tied = tied;
    m->shape.gated = 1;
    m->shape.qk_norm = QK_NORM_HEAD;
    m->shape.norm_eps = 1e-5f;
    if (moe) {
        d.hf = &names_moe;
        d.hf_experts = &names_all;
        d.gguf = d.gguf_experts = &names_gguf_moe;
        d.experts_key = "num_experts";
        d.expert_ffn_key = "moe_intermediate_size";
        d.first_dense_key = "num_dense_layers";
        d.route_alone = 1;
        d.router = ROUTER_LOGISTIC | ROUTER_KEYS | (bias ? ROUTER_BIAS : 0);
    } else if (!gguf) {
        m->shape.ffn_dim = 12288;
    }
    TRY(family_read_dialect(m, s, name, &d));
    if (!moe && !gguf)
        TRY(read_width(s, &m->shape));
    return read_state(s, name, m);
}
