/* engine/model/families/family_gpt_oss.c - gpt-oss: experts with biases and their own activation,
 * attention sinks, a window in every other layer, starting with the first.
 *
 * Owns: gpt-oss' tensor names. Note: rows of gate and up alternate in one tensor of all experts,
 * stored as [inputs, outputs] unless it is MXFP4; GGUF files have separate tensors. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

#define LIMIT  7 // default limit of the activation
#define WINDOW 128
#define EVERY  2
#define THETA  150000

static const struct family_names names_hf = {
    "layers.",
    {HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_INPUT_NORM, HF_SECOND_NORM,
     HF_ATTENTION, [ROLE_SINKS] = "self_attn.sinks", [ROLE_ROUTER] = "mlp.router.weight",
     [ROLE_ROUTER_B] = "mlp.router.bias",
     HF_ALL_EXPERTS, [ROLE_GATE_B] = "mlp.experts.gate_up_proj_bias",
     [ROLE_UP_B] = "mlp.experts.gate_up_proj_bias", [ROLE_DOWN_B] = "mlp.experts.down_proj_bias"}};
static const struct family_names names_gguf = {
    "blk.",
    {GGUF_ENDS, GGUF_QKV, GGUF_O, [ROLE_NORM1_W] = "attn_norm.weight",
     [ROLE_NORM2_W] = "post_attention_norm.weight", [ROLE_SINKS] = "attn_sinks.weight",
     GGUF_ROUTER, [ROLE_ROUTER_B] = "ffn_gate_inp.bias",
     GGUF_ALL_EXPERTS, [ROLE_GATE_B] = "ffn_gate_exps.bias", [ROLE_UP_B] = "ffn_up_exps.bias",
     [ROLE_DOWN_B] = "ffn_down_exps.bias"}};

void family_gpt_oss_shape(struct shape *shape)
{
    shape->gated = 1;
    shape->sinks = 1;
    shape->act = ACT_GELU_QUICK;
    shape->act_limit = LIMIT;
    family_windows(shape, WINDOW, EVERY);
}

/* The even rows of an expert are gate's, the odd ones up's. */
static void cut_experts(struct family_model *m, const struct source *s)
{
    const int64_t rows = 2 * (int64_t)m->shape.n_experts * m->shape.ffn_dim;
    const struct source_tensor *down = family_tensor(m, s, ROLE_DOWN, 0);
    m->cut[ROLE_GATE] = m->cut[ROLE_GATE_B] = (struct family_cut){rows, 0, 1, 2};
    m->cut[ROLE_UP] = m->cut[ROLE_UP_B] = (struct family_cut){rows, 1, 1, 2};
    if (down && down->dtype != DTYPE_MXFP4)
        m->transposed = ROLE_BIT(ROLE_GATE) | ROLE_BIT(ROLE_UP) | ROLE_BIT(ROLE_DOWN);
}

enum err family_gpt_oss_read(struct family_model *m, const struct source *s, const char *name)
{
    struct shape *shape = &m->shape;
    double limit = LIMIT;
    shape->gated = 1;
    shape->sinks = 1;
    shape->norm_eps = 1e-5f;
    TRY(family_read_dialect(
        m, s, name,
        &(struct family_dialect){.hf = &names_hf,
                                 .gguf = &names_gguf,
                                 .gguf_experts = &names_gguf,
                                 .experts_key = "num_local_experts",
                                 .route_alone = 1,
                                 .theta = THETA,
                                 .biases = ROLE_BIT(ROLE_GATE_B) | ROLE_BIT(ROLE_UP_B) |
                                           ROLE_BIT(ROLE_DOWN_B) | ROLE_BIT(ROLE_ROUTER_B),
                                 .attention_bias = 1,
                                 .tied = s->kind == SOURCE_HF ? 0 : -1,
                                 .unpaired = 1,
                                 .yarn_smooth = 1,
                                 .windows = WINDOWS_HAVE | WINDOWS_LISTED,
                                 .window = WINDOW,
                                 .every = EVERY}));
    if (s->kind == SOURCE_HF) {
        TRY(family_float(s, "", "swiglu_limit", 1e-3, 1e5, &limit));
        cut_experts(m, s);
    }
    shape->act = ACT_GELU_QUICK;
    shape->act_limit = (float)limit;
    return OK;
}
