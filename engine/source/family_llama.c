/* engine/source/family_llama.c - llama and its likes: RMSNorm, RoPE, grouped KV heads, gated SiLU
 * MLP.
 *
 * Owns: their keys in config.json and GGUF, their tensor names, and RoPE frequencies with scaling.
 * Serves llama, mistral (without a window that bites) and qwen2 (biases on q, k and v).
 * Refuses by name: sliding windows, experts, RoPE scaling other than none, linear and llama3.
 * A newcomer would miss: GGUF files of "llama" hold the rows of q and k in another order than those
 * of "qwen2" and than Hugging Face (family_source_row undoes it), and they carry llama3's scaling
 * as a tensor of divisors, rope_freqs.weight. */
#include "engine/source/family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define CONTEXT_MAX (1 << 27)
#define FIELD(f)    offsetof(struct shape, f)

static const struct family_names names_hf = {
    "layers.",
    {
        [ROLE_EMBED] = "embed_tokens.weight",
        [ROLE_NORM1_W] = "input_layernorm.weight",
        [ROLE_Q] = "self_attn.q_proj.weight",
        [ROLE_Q_B] = "self_attn.q_proj.bias",
        [ROLE_K] = "self_attn.k_proj.weight",
        [ROLE_K_B] = "self_attn.k_proj.bias",
        [ROLE_V] = "self_attn.v_proj.weight",
        [ROLE_V_B] = "self_attn.v_proj.bias",
        [ROLE_O] = "self_attn.o_proj.weight",
        [ROLE_O_B] = "self_attn.o_proj.bias",
        [ROLE_NORM2_W] = "post_attention_layernorm.weight",
        [ROLE_GATE] = "mlp.gate_proj.weight",
        [ROLE_GATE_B] = "mlp.gate_proj.bias",
        [ROLE_UP] = "mlp.up_proj.weight",
        [ROLE_UP_B] = "mlp.up_proj.bias",
        [ROLE_DOWN] = "mlp.down_proj.weight",
        [ROLE_DOWN_B] = "mlp.down_proj.bias",
        [ROLE_FINAL_NORM_W] = "norm.weight",
        [ROLE_HEAD] = "lm_head.weight",
    },
};

static const struct family_names names_gguf = {
    "blk.",
    {
        [ROLE_EMBED] = "token_embd.weight", [ROLE_NORM1_W] = "attn_norm.weight",
        [ROLE_Q] = "attn_q.weight",         [ROLE_Q_B] = "attn_q.bias",
        [ROLE_K] = "attn_k.weight",         [ROLE_K_B] = "attn_k.bias",
        [ROLE_V] = "attn_v.weight",         [ROLE_V_B] = "attn_v.bias",
        [ROLE_O] = "attn_output.weight",    [ROLE_O_B] = "attn_output.bias",
        [ROLE_NORM2_W] = "ffn_norm.weight", [ROLE_GATE] = "ffn_gate.weight",
        [ROLE_GATE_B] = "ffn_gate.bias",    [ROLE_UP] = "ffn_up.weight",
        [ROLE_UP_B] = "ffn_up.bias",        [ROLE_DOWN] = "ffn_down.weight",
        [ROLE_DOWN_B] = "ffn_down.bias",    [ROLE_FINAL_NORM_W] = "output_norm.weight",
        [ROLE_HEAD] = "output.weight",
    },
};

static const struct family_int ints_hf[] = {
    {"num_hidden_layers", SHAPE_LAYERS_MAX, KEY_REQUIRED, FIELD(n_layers)},
    {"hidden_size", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(dim)},
    {"intermediate_size", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(ffn_dim)},
    {"num_attention_heads", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(n_heads)},
    {"num_key_value_heads", SHAPE_DIM_MAX, KEY_OPTIONAL, FIELD(n_kv_heads)},
    {"head_dim", SHAPE_DIM_MAX, KEY_OPTIONAL, FIELD(head_dim)},
    {"vocab_size", SHAPE_VOCAB_MAX, KEY_REQUIRED, FIELD(vocab)},
    {"max_position_embeddings", CONTEXT_MAX, KEY_REQUIRED, FIELD(context)},
};

static const struct family_int ints_gguf[] = {
    {".block_count", SHAPE_LAYERS_MAX, KEY_REQUIRED, FIELD(n_layers)},
    {".embedding_length", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(dim)},
    {".feed_forward_length", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(ffn_dim)},
    {".attention.head_count", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(n_heads)},
    {".attention.head_count_kv", SHAPE_DIM_MAX, KEY_OPTIONAL, FIELD(n_kv_heads)},
    {".attention.key_length", SHAPE_DIM_MAX, KEY_OPTIONAL, FIELD(head_dim)},
    {".vocab_size", SHAPE_VOCAB_MAX, KEY_OPTIONAL, FIELD(vocab)},
    {".context_length", CONTEXT_MAX, KEY_REQUIRED, FIELD(context)},
    {".rope.dimension_count", SHAPE_DIM_MAX, KEY_OPTIONAL, FIELD(rope_dim)},
};

struct rope {
    double theta;
    double linear; // divides every frequency
    int llama3;    // 1: the four below
    double factor, low_freq_factor, high_freq_factor, original_context;
};

/* transformers' arithmetic, in f32 and in its order: the last bit of a frequency is multiplied by
 * the position, so that position 100000 would show it. */
static void fill_inv_freq(struct shape *s, const struct rope *r)
{
    const float two_pi = (float)(2 * 3.14159265358979323846);
    float factor = (float)r->factor, low = (float)r->low_freq_factor;
    float span = (float)(r->high_freq_factor - r->low_freq_factor);
    float original = (float)r->original_context;
    float wavelen_low = (float)(r->original_context / r->low_freq_factor);
    float wavelen_high = (float)(r->original_context / r->high_freq_factor);
    for (int i = 0; i < s->rope_dim / 2; i++) {
        float inv = 1.0f / powf((float)r->theta, (float)(2 * i) / (float)s->rope_dim);
        if (r->linear != 1)
            inv /= (float)r->linear;
        if (r->llama3) {
            float wavelen = two_pi / inv;
            float scaled = wavelen > wavelen_low ? inv / factor : inv;
            if (wavelen >= wavelen_high && wavelen <= wavelen_low) {
                float smooth = (original / wavelen - low) / span;
                scaled = (1 - smooth) * scaled / factor + smooth * scaled;
            }
            inv = scaled;
        }
        s->rope_inv_freq[i] = inv;
    }
}

void family_inv_freq(struct shape *shape, double theta)
{
    fill_inv_freq(shape, &(struct rope){.theta = theta, .linear = 1});
}

/* The members of one object, "rope_scaling." (transformers 4) or "rope_parameters." (5). */
static enum err read_scaling_hf(const struct source *s, const char *object, struct rope *r)
{
    static const char *const members[] = {"rope_theta",
                                          "factor",
                                          "low_freq_factor",
                                          "high_freq_factor",
                                          "original_max_position_embeddings",
                                          "partial_rotary_factor"};
    char key[100], type[32] = "default";
    double values[6] = {r->theta, 0, 0, 0, 0, 1};
    snprintf(key, sizeof key, "%s.type", object);
    TRY(family_str(s, "", key, type, sizeof type));
    snprintf(key, sizeof key, "%s.rope_type", object);
    TRY(family_str(s, "", key, type, sizeof type));
    for (int i = 0; i < 6; i++) {
        snprintf(key, sizeof key, "%s.%s", object, members[i]);
        TRY(family_float(s, "", key, 1e-6, 1e12, &values[i]));
    }
    r->theta = values[0];
    snprintf(key, sizeof key, "%s.rope_type", object);
    if (values[5] != 1)
        return family_fail(s, "", object, "unsupported: partial_rotary_factor");
    if (strcmp(type, "default") == 0)
        return OK;
    int linear = strcmp(type, "linear") == 0;
    if (!linear && strcmp(type, "llama3") != 0)
        return family_fail(s, "", key, "unsupported: %s (have default, linear, llama3)", type);
    for (int i = 1; i < (linear ? 2 : 5); i++)
        if (values[i] == 0)
            return family_fail(s, "", object, "%s: missing", members[i]);
    if (linear) {
        r->linear = values[1];
        return OK;
    }
    if (values[3] <= values[2])
        return family_fail(s, "", object, "high_freq_factor is not above low_freq_factor");
    r->llama3 = 1;
    r->factor = values[1];
    r->low_freq_factor = values[2];
    r->high_freq_factor = values[3];
    r->original_context = values[4];
    return OK;
}

/* A window at least as long as the context masks nothing, so that the model is a plain one. */
static enum err check_window(const struct source *s, const char *name, const char *key, int context)
{
    int64_t window = 0;
    int found = 0;
    char full[100];
    snprintf(full, sizeof full, "%s%s", key[0] == '.' ? name : "", key);
    TRY(source_int(s, full, 0, INT32_MAX, &window, &found));
    if (found && window > 0 && window < context)
        return family_fail(s, name, key, "unsupported: sliding_window %lld below the context of %d",
                           (long long)window, context);
    return OK;
}

static enum err read_window_hf(const struct source *s, const char *name, const struct shape *shape)
{
    const char *types[SHAPE_LAYERS_MAX];
    int used = strcmp(name, "mistral") == 0, found = 0;
    int64_t n = 0;
    TRY(family_flag(s, "", "use_sliding_window", &used));
    if (used)
        TRY(check_window(s, "", "sliding_window", shape->context));
    TRY(source_str_list(s, "layer_types", types, SHAPE_LAYERS_MAX, &n, &found));
    if (found && n != shape->n_layers)
        return family_fail(s, "", "layer_types", "has %lld entries, expected %d", (long long)n,
                           shape->n_layers);
    for (int i = 0; i < n; i++)
        if (!used && strcmp(types[i], "full_attention") != 0)
            return family_fail(s, "", "layer_types", "unsupported: %s in layer %d", types[i], i);
    return OK;
}

static enum err read_hf(struct family_model *m, const struct source *s, const char *name)
{
    static const char *const prefixes[] = {"model.", ""};
    struct shape *shape = &m->shape;
    struct rope rope = {.theta = 10000, .linear = 1};
    char act[32] = "silu";
    int attention_bias = 0, mlp_bias = 0, tied = -1;
    double eps = 1e-6;
    TRY(family_ints(s, "", ints_hf, sizeof ints_hf / sizeof *ints_hf, shape));
    TRY(family_heads(s, "", shape, "hidden_size", "num_attention_heads", "num_key_value_heads",
                     "head_dim"));
    TRY(family_float(s, "", "rms_norm_eps", 0, 0.1, &eps));
    TRY(family_str(s, "", "hidden_act", act, sizeof act));
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return family_fail(s, "", "hidden_act", "unsupported: %s (have silu)", act);
    TRY(family_float(s, "", "rope_theta", 1e-6, 1e12, &rope.theta));
    TRY(read_scaling_hf(s, "rope_scaling", &rope));
    TRY(read_scaling_hf(s, "rope_parameters", &rope));
    TRY(read_window_hf(s, name, shape));
    TRY(family_flag(s, "", "attention_bias", &attention_bias));
    TRY(family_flag(s, "", "mlp_bias", &mlp_bias));
    TRY(family_flag(s, "", "tie_word_embeddings", &tied));
    shape->norm_eps = (float)eps;
    shape->embed_dim = shape->dim;
    shape->rope_dim = shape->head_dim;
    fill_inv_freq(shape, &rope);
    m->names = &names_hf;
    TRY(family_prefix(m, s, prefixes, 2));
    uint32_t optional = 0;
    if (attention_bias || strcmp(name, "qwen2") == 0)
        optional |= ROLE_BIT(ROLE_Q_B) | ROLE_BIT(ROLE_K_B) | ROLE_BIT(ROLE_V_B);
    if (attention_bias)
        optional |= ROLE_BIT(ROLE_O_B);
    if (mlp_bias)
        optional |= ROLE_BIT(ROLE_GATE_B) | ROLE_BIT(ROLE_UP_B) | ROLE_BIT(ROLE_DOWN_B);
    m->roles = family_roles(shape, optional);
    family_tie(m, s, tied);
    return OK;
}

static enum err read_scaling_gguf(const struct source *s, const char *name, struct rope *r)
{
    char type[32] = "";
    double factor = 1, legacy = 1;
    TRY(family_float(s, name, ".rope.freq_base", 1e-6, 1e12, &r->theta));
    TRY(family_str(s, name, ".rope.scaling.type", type, sizeof type));
    TRY(family_float(s, name, ".rope.scaling.factor", 0, 1e12, &factor));
    TRY(family_float(s, name, ".rope.scale_linear", 0, 1e12, &legacy));
    if (!type[0] && legacy > 0)
        r->linear = legacy; // files from before rope.scaling.*
    if (strcmp(type, "linear") == 0) {
        if (factor <= 0)
            return family_fail(s, name, ".rope.scaling.factor", "is 0");
        r->linear = factor;
    } else if (type[0] && strcmp(type, "none") != 0) {
        return family_fail(s, name, ".rope.scaling.type", "unsupported: %s (have none, linear)",
                           type);
    }
    return OK;
}

/* rope_freqs.weight: f32 divisors, one per pair. */
static enum err divide_inv_freq(const struct source *s, struct shape *shape)
{
    const struct source_tensor *t = source_find(s, "rope_freqs.weight");
    float divisors[SHAPE_ROPE_MAX];
    int n = shape->rope_dim / 2;
    if (!t)
        return OK;
    if (t->dtype != DTYPE_F32 || t->n_dims != 1 || t->dims[0] != n)
        return fail(ERR_INPUT,
                    "%s: tensor rope_freqs.weight: expected [%d] f32, the file has "
                    "[%lld] %s",
                    s->path, n, (long long)t->dims[0], dtype_info(t->dtype)->name);
    TRY(source_read(s, t, 0, (int64_t)sizeof(float) * n, divisors));
    for (int i = 0; i < n; i++) {
        if (!isfinite(divisors[i]) || divisors[i] <= 0)
            return fail(ERR_INPUT, "%s: tensor rope_freqs.weight: number %d is not positive",
                        s->path, i);
        shape->rope_inv_freq[i] /= divisors[i];
    }
    return OK;
}

static enum err read_gguf(struct family_model *m, const struct source *s, const char *name)
{
    static const char *const prefixes[] = {""};
    struct shape *shape = &m->shape;
    struct rope rope = {.theta = 10000, .linear = 1};
    double eps = 1e-6;
    int64_t n = 0;
    int found = 0;
    char key[100];
    TRY(family_ints(s, name, ints_gguf, sizeof ints_gguf / sizeof *ints_gguf, shape));
    TRY(family_heads(s, name, shape, ".embedding_length", ".attention.head_count",
                     ".attention.head_count_kv", ".attention.key_length"));
    snprintf(key, sizeof key, "%s.attention.value_length", name);
    TRY(source_int(s, key, 1, SHAPE_DIM_MAX, &n, &found));
    if (found && n != shape->head_dim)
        return family_fail(s, name, ".attention.value_length", "%lld, but keys have %d",
                           (long long)n, shape->head_dim);
    snprintf(key, sizeof key, "%s.expert_count", name);
    TRY(source_int(s, key, 0, INT32_MAX, &n, &found));
    if (found && n > 0)
        return family_fail(s, name, ".expert_count", "unsupported: %lld experts", (long long)n);
    if (shape->rope_dim == 0)
        shape->rope_dim = shape->head_dim;
    if (shape->rope_dim > shape->head_dim || shape->rope_dim % 2 != 0)
        return family_fail(s, name, ".rope.dimension_count", "%d is odd or above the head's %d",
                           shape->rope_dim, shape->head_dim);
    TRY(check_window(s, name, ".attention.sliding_window", shape->context));
    TRY(read_scaling_gguf(s, name, &rope));
    TRY(family_float(s, name, ".attention.layer_norm_rms_epsilon", 0, 0.1, &eps));
    shape->norm_eps = (float)eps;
    shape->embed_dim = shape->dim;
    fill_inv_freq(shape, &rope);
    TRY(divide_inv_freq(s, shape));
    m->names = &names_gguf;
    m->paired_rows = strcmp(name, "llama") == 0;
    TRY(family_prefix(m, s, prefixes, 1));
    if (shape->vocab == 0) { // only the embedding says; family_read checks its range
        const struct source_tensor *t = family_tensor(m, s, ROLE_EMBED, 0);
        shape->vocab = (int)min_i64(t->dims[0], INT32_MAX);
    }
    family_roles_by_presence(m, s);
    family_tie(m, s, -1);
    return OK;
}

enum err family_llama_read(struct family_model *m, const struct source *s, const char *name)
{
    m->shape.norm = NORM_RMS;
    m->shape.final_norm = 1;
    m->shape.act = ACT_SILU_GATED;
    m->shape.position = POSITION_ROPE;
    return s->kind == SOURCE_GGUF ? read_gguf(m, s, name) : read_hf(m, s, name);
}
