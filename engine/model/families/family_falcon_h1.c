/* engine/model/families/family_falcon_h1.c - falcon_h1 (Falcon-H1): in each layer attention and
 * Mamba-2 of the same input, then an MLP; factors on the inputs and outputs of all matrices.
 *
 * Owns: the factors, tensor names. Note: a layer of the file is a pair here (shape.beside_scale).
 * Factors on a matrix's output move, with the same results, to the next place that has a number
 * for them: a norm's weights before the matrix, the taps of the convolution or a factor of the
 * shape after it. GGUF files have all of them in their weights. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

#include <math.h>
#include <stdio.h>

#define FACTOR_MIN 1e-5
#define FACTOR_MAX 1e5

static const struct family_names names = {
    "layers.",
    {HF_EMBED, HF_HEAD, HF_INPUT_NORM, HF_MAMBA("mamba"), HF_O,
     [ROLE_FINAL_NORM_W] = "final_layernorm.weight", [ROLE_NORM2_W] = "pre_ff_layernorm.weight",
     [ROLE_Q] = "self_attn.q_proj.weight", [ROLE_K] = "self_attn.k_proj.weight",
     [ROLE_V] = "self_attn.v_proj.weight", [ROLE_GATE] = "feed_forward.gate_proj.weight",
     [ROLE_UP] = "feed_forward.up_proj.weight", [ROLE_DOWN] = "feed_forward.down_proj.weight"}};
static const struct family_names names_gguf = {
    "blk.",
    {GGUF_ENDS, GGUF_MAMBA, [ROLE_NORM1_W] = "attn_norm.weight", [ROLE_NORM2_W] = "ffn_norm",
     [ROLE_Q] = "attn_q.weight", [ROLE_K] = "attn_k.weight", [ROLE_V] = "attn_v.weight",
     [ROLE_O] = "attn_output.weight", [ROLE_GATE] = "ffn_gate.weight", [ROLE_UP] = "ffn_up.weight",
     [ROLE_DOWN] = "ffn_down.weight"}};

void family_falcon_h1_shape(struct shape *s)
{
    s->state = STATE_MAMBA;
    s->gated = 1;
    s->beside_scale = 1;
    s->state_k_heads = s->state_k_heads > 0 ? s->state_k_heads : 1;
    s->state_v_heads = s->state_v_heads > 0 ? s->state_v_heads : 24;
    s->state_k_dim = s->state_k_dim > 0 ? s->state_k_dim : 256;
    s->state_v_dim = s->state_v_dim > 0 ? s->state_v_dim : 128;
    s->state_taps = s->state_taps > 0 ? s->state_taps : 4;
    s->n_layers *= 2;
    for (int i = 0; i < s->n_layers && i < SHAPE_LAYERS_MAX; i++) {
        s->layer_state[i] = s->layer_bare[i] = i % 2 == 0;
        s->layer_rope[i] = i % 2 == 0 ? SHAPE_NO_ROPE : 0;
    }
}

/* Pairs of layers: one for each of the file. */
static enum err read_layers(struct family_model *m, const struct source *s, const char *key)
{
    int64_t n = 0;
    int found = 0;
    TRY(source_int(s, key, 1, SHAPE_LAYERS_MAX / 2, &n, &found));
    if (!found)
        return family_fail(s, "", key, "missing");
    m->n_file_layers = m->shape.n_layers = (int)n;
    family_falcon_h1_shape(&m->shape);
    for (int i = 0; i < m->shape.n_layers; i++)
        m->file_layer[i][0] = m->file_layer[i][1] = (int16_t)(i / 2);
    return OK;
}

/* n factors under one key; without it all stay. */
static enum err read_list(const struct source *s, const char *key, int n, double *factors)
{
    double list[5];
    int64_t has = 0;
    int found = 0;
    TRY(source_float_list(s, key, list, 5, &has, &found));
    if (found && has != n)
        return family_fail(s, "", key, "has %lld entries, expected %d", (long long)has, n);
    for (int i = 0; i < has; i++) {
        if (!(list[i] >= FACTOR_MIN && list[i] <= FACTOR_MAX))
            return family_fail(s, "", key, "%g is out of range [%g, %g]", list[i], FACTOR_MIN,
                               FACTOR_MAX);
        factors[i] = list[i];
    }
    return OK;
}

/* All factors are 1 unless the file has them. */
static enum err read_factors(struct family_model *m, const struct source *s)
{
    enum { EMBED, HEAD, KEY, ATTN_IN, ATTN_OUT, SSM_IN, SSM_OUT, N_FACTORS };
    static const char *const keys[N_FACTORS] = {
        "embedding_multiplier",    "lm_head_multiplier",       "key_multiplier",
        "attention_in_multiplier", "attention_out_multiplier", "ssm_in_multiplier",
        "ssm_out_multiplier"};
    struct shape *shape = &m->shape;
    double f[N_FACTORS] = {1, 1, 1, 1, 1, 1, 1}, mlp[2] = {1, 1}, ssm[5] = {1, 1, 1, 1, 1};
    for (int i = 0; i < N_FACTORS; i++)
        TRY(family_float(s, "", keys[i], FACTOR_MIN, FACTOR_MAX, &f[i]));
    TRY(read_list(s, "mlp_multipliers", 2, mlp)); // of gate, and of the output
    TRY(read_list(s, "ssm_multipliers", 5, ssm)); // of z, v, k, q and the time step
    /* The norms before z and gate have these two's factors; what else reads the norms is divided by
     * them. */
    const double z = f[SSM_IN] * ssm[0], attn = f[ATTN_IN] / z;
    m->factor[ROLE_NORM1_W] = (float)z;
    m->factor[ROLE_NORM2_W] = (float)mlp[0];
    m->factor[ROLE_STATE_V] = (float)(ssm[1] / ssm[0]);
    m->factor[ROLE_STATE_K] = (float)(ssm[2] / ssm[0]);
    m->factor[ROLE_STATE_Q] = (float)(ssm[3] / ssm[0]);
    shape->state_dt_scale = (float)(ssm[4] / ssm[0]);
    shape->beside_scale = (float)f[SSM_OUT];
    shape->attn_scale = (float)(f[KEY] * attn * attn / sqrt((double)shape->head_dim));
    shape->branch_scale = (float)(f[ATTN_OUT] * attn);
    shape->mlp_scale = (float)(mlp[1] / mlp[0]);
    shape->embed_scale = (float)f[EMBED];
    shape->logit_scale = (float)f[HEAD];
    return OK;
}

/* Sizes of states and which tensors there are; refuses a norm before the gate. */
static enum err read_state(struct family_model *m, const struct source *s)
{
    static const char *const keys[5] = {"mamba_n_groups", "mamba_n_heads", "mamba_d_state",
                                        "mamba_d_head", "mamba_d_conv"};
    struct shape *shape = &m->shape;
    int64_t width = 0;
    char act[32] = "silu"; // of the convolution, too
    int found = 0, bias = 1, norm = 0, norm_first = 1;
    TRY(family_str(s, "", "hidden_act", act, sizeof act));
    if (shape->act != ACT_SILU)
        return family_fail(s, "", "hidden_act", "unsupported: %s is not silu", act);
    shape->state_v_heads = 128;
    shape->state_v_dim = 0; // required
    TRY(state_sizes(s, shape, keys));
    TRY(source_int(s, "mamba_d_ssm", 1, SHAPE_DIM_MAX, &width, &found));
    if (found && width != shape_state_v(shape))
        return family_fail(s, "", "mamba_d_ssm", "%lld, but %d heads of %d numbers",
                           (long long)width, shape->state_v_heads, shape->state_v_dim);
    TRY(family_flag(s, "", "mamba_conv_bias", &bias));
    TRY(family_flag(s, "", "mamba_rms_norm", &norm));
    TRY(family_flag(s, "", "mamba_norm_before_gate", &norm_first));
    if (norm && norm_first)
        return family_fail(s, "", "mamba_norm_before_gate",
                           "true is unsupported with mamba_rms_norm");
    m->roles = family_roles(shape, (bias ? ROLE_BIT(ROLE_STATE_CONV_B) : 0) |
                                       (norm ? ROLE_BIT(ROLE_STATE_NORM_W) : 0));
    return OK;
}

enum err family_falcon_h1_read(struct family_model *m, const struct source *s, const char *name)
{
    const int gguf = s->kind == SOURCE_GGUF;
    char key[100] = "num_hidden_layers";
    if (gguf)
        snprintf(key, sizeof key, "%s.block_count", name);
    TRY(read_layers(m, s, key));
    if (gguf)
        TRY(state_sizes_gguf(s, name, &m->shape));
    m->shape.norm_eps = 1e-5f;
    TRY(family_read_dialect(m, s, name,
                            &(struct family_dialect){.hf = &names,
                                                     .gguf = &names_gguf,
                                                     .n_layers = m->shape.n_layers,
                                                     .own_keys = ".block_count",
                                                     .unpaired = 1}));
    if (!gguf) {
        TRY(read_state(m, s));
        TRY(read_factors(m, s));
    }
    state_cut_mamba(m, !gguf);
    return OK;
}
