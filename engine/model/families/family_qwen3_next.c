/* engine/model/families/family_qwen3_next.c - qwen3_next, and the text of qwen3_5 and qwen3_5_moe
 * (Qwen3.5, 3.6): three of four layers are gated delta nets, the others attend with a gate on their
 * output; a dense MLP, or experts as in qwen2_moe.
 *
 * Owns: which layers have a state, its sizes, tensor names. Note: qwen3_next stores q, k, v and z
 * of a layer with a state in one tensor, head by head of k, and beta and the time step in another.
 * GGUF files of qwen3_5 and qwen3_5_moe have the heads of v in another order (state_tiled), so the
 * inputs of ssm_out, too: K-quants allow no other order of these, so the model keeps it.
 */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

#include <stdio.h>
#include <string.h>

#define EVERY 4 // default: every fourth layer attends
#define TEXT  "text_config"

#define LAYER                                                                                      \
    HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_INPUT_NORM, HF_SECOND_NORM, HF_QKV, HF_O, HF_QK_NORM,     \
        [ROLE_Q_GATE] = "self_attn.q_proj.weight",                                                 \
        [ROLE_STATE_CONV] = "linear_attn.conv1d.weight", [ROLE_STATE_A] = "linear_attn.A_log",     \
        [ROLE_STATE_DT_B] = "linear_attn.dt_bias",                                                 \
        [ROLE_STATE_NORM_W] = "linear_attn.norm.weight",                                           \
        [ROLE_STATE_O] = "linear_attn.out_proj.weight"
#define STATE_NEXT                                                                                 \
    [ROLE_STATE_Q] = "linear_attn.in_proj_qkvz.weight",                                            \
    [ROLE_STATE_K] = "linear_attn.in_proj_qkvz.weight",                                            \
    [ROLE_STATE_V] = "linear_attn.in_proj_qkvz.weight",                                            \
    [ROLE_STATE_Z] = "linear_attn.in_proj_qkvz.weight",                                            \
    [ROLE_STATE_BETA] = "linear_attn.in_proj_ba.weight",                                           \
    [ROLE_STATE_DT] = "linear_attn.in_proj_ba.weight"
#define STATE_3_5                                                                                  \
    [ROLE_STATE_Q] = "linear_attn.in_proj_qkv.weight",                                             \
    [ROLE_STATE_K] = "linear_attn.in_proj_qkv.weight",                                             \
    [ROLE_STATE_V] = "linear_attn.in_proj_qkv.weight",                                             \
    [ROLE_STATE_Z] = "linear_attn.in_proj_z.weight",                                               \
    [ROLE_STATE_BETA] = "linear_attn.in_proj_b.weight",                                            \
    [ROLE_STATE_DT] = "linear_attn.in_proj_a.weight"
#define SHARED                                                                                     \
    HF_DENSE_MLP, HF_ROUTER, [ROLE_SHARED_GATE] = "mlp.shared_expert.gate_proj.weight",            \
                             [ROLE_SHARED_UP] = "mlp.shared_expert.up_proj.weight",                \
                             [ROLE_SHARED_DOWN] = "mlp.shared_expert.down_proj.weight",            \
                             [ROLE_SHARE] = "mlp.shared_expert_gate.weight"

#define LAYER_GGUF                                                                                 \
    GGUF_ENDS, GGUF_QKV, GGUF_O, GGUF_QK_NORM,                                                     \
        [ROLE_NORM1_W] = "attn_norm.weight", [ROLE_NORM2_W] = "post_attention_norm.weight",        \
        [ROLE_Q_GATE] = "attn_q.weight", [ROLE_STATE_Q] = "attn_qkv.weight",                       \
        [ROLE_STATE_K] = "attn_qkv.weight", [ROLE_STATE_V] = "attn_qkv.weight",                    \
        [ROLE_STATE_Z] = "attn_gate.weight", [ROLE_STATE_CONV] = "ssm_conv1d.weight",              \
        [ROLE_STATE_A] = "ssm_a", [ROLE_STATE_DT_B] = "ssm_dt.bias",                               \
        [ROLE_STATE_NORM_W] = "ssm_norm.weight", [ROLE_STATE_O] = "ssm_out.weight"
#define GATES_NEXT_GGUF [ROLE_STATE_BETA] = "ssm_ba.weight", [ROLE_STATE_DT] = "ssm_ba.weight"
#define GATES_3_5_GGUF  [ROLE_STATE_BETA] = "ssm_beta.weight", [ROLE_STATE_DT] = "ssm_alpha.weight"
#define EXPERTS_GGUF                                                                               \
    GGUF_ROUTER, GGUF_SHARED, GGUF_ALL_EXPERTS, [ROLE_SHARE] = "ffn_gate_inp_shexp.weight"

static const struct family_names names_next = {"layers.", {LAYER, STATE_NEXT, SHARED, HF_EXPERTS}};
static const struct family_names names_next_all = {"layers.",
                                                   {LAYER, STATE_NEXT, SHARED, HF_ALL_EXPERTS}};
static const struct family_names names_dense = {"layers.", {LAYER, STATE_3_5, HF_GATED_MLP}};
static const struct family_names names_moe = {"layers.", {LAYER, STATE_3_5, SHARED, HF_EXPERTS}};
static const struct family_names names_moe_all = {"layers.",
                                                  {LAYER, STATE_3_5, SHARED, HF_ALL_EXPERTS}};

static const struct family_names names_next_gguf = {"blk.",
                                                    {LAYER_GGUF, GATES_NEXT_GGUF, EXPERTS_GGUF}};
static const struct family_names names_dense_gguf = {
    "blk.", {LAYER_GGUF, GATES_3_5_GGUF, GGUF_GATE, GGUF_MLP}};
static const struct family_names names_moe_gguf = {"blk.",
                                                   {LAYER_GGUF, GATES_3_5_GGUF, EXPERTS_GGUF}};

void family_qwen3_next_shape(struct shape *s)
{
    s->state = STATE_DELTA;
    s->query_gate = 1;
    s->state_k_heads = s->state_k_heads > 0 ? s->state_k_heads : 16;
    s->state_v_heads = s->state_v_heads > 0 ? s->state_v_heads : 32;
    s->state_k_dim = s->state_k_dim > 0 ? s->state_k_dim : 128;
    s->state_v_dim = s->state_v_dim > 0 ? s->state_v_dim : 128;
    s->state_taps = 4;
    for (int i = 0; i < s->n_layers; i++)
        s->layer_state[i] = (i + 1) % EVERY != 0;
}

/* Flags of a GGUF file's layers, those that predict further tokens included; found 0: none. */
static enum err read_flags(const struct source *s, const char *key, struct shape *shape, int *found)
{
    int64_t has[SHAPE_LAYERS_MAX], n = 0;
    TRY(source_int_list(s, key, 0, 1, has, SHAPE_LAYERS_MAX, &n, found));
    if (*found && n < shape->n_layers)
        return family_fail(s, "", key, "has %lld entries, expected %d", (long long)n,
                           shape->n_layers);
    for (int i = 0; i < shape->n_layers && *found; i++)
        shape->layer_state[i] = (uint8_t)has[i];
    return OK;
}

/* Which layers have a state: all but every fourth, or as listed. */
static enum err read_layers(const struct source *s, const char *name, struct shape *shape)
{
    int64_t every = EVERY;
    int listed = 0, found = 0;
    char key[100] = "full_attention_interval", list[100] = "layer_types";
    if (s->kind == SOURCE_GGUF) {
        snprintf(key, sizeof key, "%s.full_attention_interval", name);
        snprintf(list, sizeof list, "%s.attention.recurrent_layers", name);
        TRY(read_flags(s, list, shape, &listed));
    } else {
        TRY(state_layers(s, list, "linear_attention", "full_attention", shape, &listed));
    }
    if (!listed)
        TRY(source_int(s, key, 1, INT32_MAX, &every, &found));
    for (int i = 0; i < shape->n_layers && !listed; i++)
        shape->layer_state[i] = (i + 1) % every != 0;
    return state_layers_end(s, listed ? list : key, shape);
}

/* Where the rows of the fused tensors are. Per head of k qwen3_next has its q, its k, then v and z
 * of the heads of v that use them; in GGUF files only beta and the time step are like that. */
static void cut_state(struct family_model *m, int next, int gguf)
{
    const struct shape *s = &m->shape;
    const int64_t k = s->state_k_dim, keys = k * s->state_k_heads, values = shape_state_v(s);
    const int64_t each = s->state_v_heads / s->state_k_heads, v = each * s->state_v_dim;
    const int64_t head = 2 * k + 2 * v, all = head * s->state_k_heads;
    if (next) {
        m->cut[ROLE_STATE_BETA] = (struct family_cut){2 * s->state_v_heads, 0, each, 2 * each};
        m->cut[ROLE_STATE_DT] = (struct family_cut){2 * s->state_v_heads, each, each, 2 * each};
    }
    if (!next || gguf) {
        m->cut[ROLE_STATE_Q] = (struct family_cut){2 * keys + values, 0, keys, keys};
        m->cut[ROLE_STATE_K] = (struct family_cut){2 * keys + values, keys, keys, keys};
        m->cut[ROLE_STATE_V] = (struct family_cut){2 * keys + values, 2 * keys, values, values};
        return;
    }
    m->cut[ROLE_STATE_Q] = (struct family_cut){all, 0, k, head};
    m->cut[ROLE_STATE_K] = (struct family_cut){all, k, k, head};
    m->cut[ROLE_STATE_V] = (struct family_cut){all, 2 * k, v, head};
    m->cut[ROLE_STATE_Z] = (struct family_cut){all, 2 * k + v, v, head};
}

/* Each head's rows of q, then of its gate. */
static void cut_gate(struct family_model *m)
{
    const int64_t d = m->shape.head_dim, all = 2 * d * m->shape.n_heads;
    m->cut[ROLE_Q] = (struct family_cut){all, 0, d, 2 * d};
    m->cut[ROLE_Q_GATE] = (struct family_cut){all, d, d, 2 * d};
}

static enum err read_text(struct family_model *m, const struct source *s, const char *name,
                          const char *const prefixes[2])
{
    static const char *const keys[5] = {"linear_num_key_heads", "linear_num_value_heads",
                                        "linear_key_head_dim", "linear_value_head_dim",
                                        "linear_conv_kernel_dim"};
    struct shape *shape = &m->shape;
    const int next = strcmp(shape->family, "qwen3_next") == 0;
    const int dense = strcmp(shape->family, "qwen3_5") == 0;
    const int gguf = s->kind == SOURCE_GGUF;
    const struct family_names *of_gguf = dense  ? &names_dense_gguf
                                         : next ? &names_next_gguf
                                                : &names_moe_gguf;
    int biases = 0;
    TRY(family_flag(s, "", "attention_bias", &biases));
    if (biases)
        return family_fail(s, "", "attention_bias", "unsupported in %s models", shape->family);
    shape->gated = 1;
    shape->shared_gate = !dense;
    shape->qk_norm = QK_NORM_HEAD;
    shape->head_dim = 256;
    shape->norm_eps = 1e-6f;
    shape->ffn_dim = next || dense ? 0 : 1; // else its layers have no other MLP
    m->plus_one = ROLE_BIT(ROLE_NORM1_W) | ROLE_BIT(ROLE_NORM2_W) | ROLE_BIT(ROLE_Q_NORM_W) |
                  ROLE_BIT(ROLE_K_NORM_W) | ROLE_BIT(ROLE_FINAL_NORM_W);
    m->logs = gguf ? 0 : ROLE_BIT(ROLE_STATE_A);
    family_qwen3_next_shape(shape);
    TRY(gguf ? state_sizes_gguf(s, name, shape) : state_sizes(s, shape, keys));
    shape->state_tiled = gguf && !next;
    struct family_dialect d = {.hf = dense  ? &names_dense
                                     : next ? &names_next
                                            : &names_moe,
                               .hf_experts = next ? &names_next_all : &names_moe_all,
                               .gguf = of_gguf,
                               .gguf_experts = of_gguf,
                               .experts_key = "num_experts",
                               .expert_ffn_key = "moe_intermediate_size",
                               .shared_ffn_key = "shared_expert_intermediate_size",
                               .route_alone = 1,
                               .router = next ? ROUTER_KEYS : 0,
                               .sparse_layers = next,
                               .partial = 0.25,
                               .tied = 0,
                               .unpaired = 1,
                               .prefixes = {prefixes[0], prefixes[1]}};
    if (dense)
        d.hf_experts = NULL, d.experts_key = d.shared_ffn_key = NULL;
    TRY(family_read_dialect(m, s, name, &d));
    TRY(read_layers(s, name, shape));
    m->roles = family_roles(shape, 0);
    cut_state(m, next, gguf);
    cut_gate(m);
    return OK;
}

enum err family_qwen3_next_read(struct family_model *m, const struct source *s, const char *name)
{
    static const char *const prefixes[2] = {"model.", ""};
    return read_text(m, s, name, prefixes);
}

/* The text part of a model with vision; other keys are ignored. */
enum err family_qwen3_5_vision_read(struct family_model *m, const struct source *s,
                                    const char *name)
{
    static const char *const prefixes[2] = {"model.language_model.", "language_model.model."};
    struct source text = *s;
    char type[64] = "", expected[64];
    text.section = TEXT;
    snprintf(expected, sizeof expected, "%s_text", m->shape.family);
    TRY(family_str(&text, name, "model_type", type, sizeof type));
    if (type[0] && strcmp(type, expected) != 0)
        return family_fail(&text, name, "model_type", "unsupported: %s", type);
    TRY(family_check_keys(&text, m->shape.family, name));
    return read_text(m, &text, name, prefixes);
}
