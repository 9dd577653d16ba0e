/* engine/model/families/family_gemma4.c - gemma4, text: gemma3 with wider heads in the layers
 * without a window, whose values are made of the keys, norms of values, a factor on each layer's
 * output, and in some models experts beside the MLP, with norms of their own. In others (E2B, E4B)
 * each layer has an input of its own for each token, and the last layers use the keys and values of
 * earlier ones.
 *
 * Owns: which layers are wide; tensor names; where a model with other inputs has its text part.
 * Note: unlike those of earlier gemmas, norms are stored as they are. The MLP beside experts is
 * their shared expert here. A layer that uses the keys and values of another stores them in pages
 * of its own, because what a layer keeps depends on its own scores, and pages move and are fetched
 * layer by layer. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"
#include "engine/model/families/rope.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define EVERY        6 // default: every sixth layer has no window
#define WINDOW       512
#define WINDOW_DUMMY 1024 // of published models without inputs of layers
#define INPUT        256  // default: numbers of a layer's input
#define VOCAB        262144
#define GLOBAL_THETA 1e6
#define LOCAL_THETA  10000
#define TURNED       0.25 // of a wide head
#define WIDE         512  // numbers of a wide head
#define CAP          30
#define FIELD(f)     offsetof(struct shape, f)

#define LAYER                                                                                      \
    HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_INPUT_NORM, HF_AROUND_NORMS, HF_ATTENTION,                \
        HF_QK_NORM, [ROLE_INPUTS_EMBED] = "embed_tokens_per_layer.weight",                         \
                    [ROLE_INPUTS_PROJ] = "per_layer_model_projection.weight",                      \
                    [ROLE_INPUTS_NORM_W] = "per_layer_projection_norm.weight",                     \
                    [ROLE_INPUT_GATE] = "per_layer_input_gate.weight",                             \
                    [ROLE_INPUT_OUT] = "per_layer_projection.weight",                              \
                    [ROLE_INPUT_POST_W] = "post_per_layer_input_norm.weight"
static const struct family_names names = {"layers.", {LAYER, HF_GATED_MLP}};
static const struct family_names names_experts = {
    "layers.",
    {LAYER, [ROLE_SHARED_GATE] = "mlp.gate_proj.weight", [ROLE_SHARED_UP] = "mlp.up_proj.weight",
     [ROLE_SHARED_DOWN] = "mlp.down_proj.weight", [ROLE_ROUTER] = "router.proj.weight",
     [ROLE_ROUTER_NORM_W] = "router.scale", [ROLE_ROUTE_SCALE] = "router.per_expert_scale",
     [ROLE_GATE] = "experts.gate_up_proj", [ROLE_UP] = "experts.gate_up_proj",
     [ROLE_DOWN] = "experts.down_proj", [ROLE_EXPERT_NORM_W] = "pre_feedforward_layernorm_2.weight",
     [ROLE_EXPERT_POST_W] = "post_feedforward_layernorm_2.weight",
     [ROLE_SHARED_POST_W] = "post_feedforward_layernorm_1.weight"}};

#define GGUF_LAYER                                                                                 \
    GGUF_ENDS, GGUF_NORMS, GGUF_POST_NORMS, GGUF_QKV, GGUF_O,                                      \
        GGUF_QK_NORM, [ROLE_INPUTS_EMBED] = "per_layer_token_embd.weight",                         \
                      [ROLE_INPUTS_PROJ] = "per_layer_model_proj.weight",                          \
                      [ROLE_INPUTS_NORM_W] = "per_layer_proj_norm.weight",                         \
                      [ROLE_INPUT_GATE] = "inp_gate.weight", [ROLE_INPUT_OUT] = "proj.weight",     \
                      [ROLE_INPUT_POST_W] = "post_norm.weight"
#define GGUF_EXPERT_LAYER                                                                          \
    GGUF_LAYER, GGUF_ROUTER,                                                                       \
        [ROLE_SHARED_GATE] = "ffn_gate.weight", [ROLE_SHARED_UP] = "ffn_up.weight",                \
        [ROLE_SHARED_DOWN] = "ffn_down.weight", [ROLE_ROUTER_NORM_W] = "ffn_gate_inp.scale",       \
        [ROLE_ROUTE_SCALE] = "ffn_down_exps.scale",                                                \
        [ROLE_EXPERT_NORM_W] = "pre_ffw_norm_2.weight",                                            \
        [ROLE_EXPERT_POST_W] = "post_ffw_norm_2.weight",                                           \
        [ROLE_SHARED_POST_W] = "post_ffw_norm_1.weight"
static const struct family_names names_gguf = {"blk.", {GGUF_LAYER, GGUF_GATE, GGUF_MLP}};
static const struct family_names names_gguf_moe = {"blk.", {GGUF_EXPERT_LAYER, GGUF_ALL_EXPERTS}};

static void set_layers(struct shape *s)
{
    s->gated = 1;
    s->norm_place = NORM_AROUND;
    s->qk_norm = QK_NORM_HEAD;
    s->value_norm = 1;
    s->attn_scale = 1;
}

/* Layers without a window are wide and use the first table of angles. */
static void set_wide(struct shape *s)
{
    for (int i = 0; i < s->n_layers; i++) {
        s->layer_wide[i] = s->layer_window[i] == 0;
        s->layer_rope[i] = !s->layer_wide[i];
    }
}

/* Of models with inputs of layers, every fifth or sixth layer has no window: the last one is one of
 * them. */
void family_gemma4_shape(struct shape *s)
{
    const int inputs = s->layer_input > 0;
    set_layers(s);
    s->expert_norms = s->route_scales = s->n_experts > 0;
    s->act = ACT_GELU_TANH;
    s->embed_scale = sqrtf((float)s->dim);
    s->logit_softcap = CAP;
    s->tied_kv = !inputs;
    s->wide_head_dim = s->wide_head_dim > 0 ? s->wide_head_dim : WIDE;
    s->wide_kv_heads = s->wide_kv_heads > 0 ? s->wide_kv_heads : s->n_kv_heads;
    if (s->kv_own_layers > 0 && s->late_ffn_dim == 0)
        s->late_ffn_dim = s->ffn_dim;
    family_windows(s, inputs ? WINDOW : WINDOW_DUMMY,
                   inputs && s->n_layers % EVERY != 0 ? EVERY - 1 : EVERY);
    set_wide(s);
    rope_fill_plain(s, 1, LOCAL_THETA);
}

/* Refuses attention and angles of other kinds. */
static enum err check_kind(const struct source *s, const char *name)
{
    char attention[16] = "vision", rope[32] = "";
    int64_t window = WINDOW;
    double ignored = 0;
    int found = 0, old = 0, new = 0;
    TRY(source_int(s, "sliding_window", 2, INT32_MAX, &window, &found));
    TRY(family_str(s, name, "use_bidirectional_attention", attention, sizeof attention));
    if (strcmp(attention, "vision") != 0) // of images' tokens
        return family_fail(s, name, "use_bidirectional_attention", "unsupported: %s", attention);
    source_weigh(s, "rope_scaling", &ignored, &old);
    source_weigh(s, "rope_parameters", &ignored, &new);
    TRY(family_str(s, name, "rope_parameters.full_attention.rope_type", rope, sizeof rope));
    if ((old || new) && strcmp(rope, "proportional") != 0)
        return family_fail(s, name, "rope_parameters.full_attention.rope_type",
                           rope[0] ? "unsupported: %s" : "missing%s", rope);
    return OK;
}

static enum err read_experts(const struct source *s, const char *name, struct shape *shape,
                             struct family_dialect *d)
{
    const struct family_int key = {"moe_intermediate_size", SHAPE_DIM_MAX, KEY_REQUIRED,
                                   FIELD(ffn_dim)};
    int experts = 0, found = 0;
    int64_t n = 0;
    char full[100];
    if (s->kind == SOURCE_GGUF) {
        snprintf(full, sizeof full, "%s.expert_count", name);
        TRY(source_int(s, full, 0, SHAPE_EXPERTS_MAX, &n, &found));
        if (n > 0)
            d->gguf = &names_gguf_moe;
        d->gguf_experts = d->gguf;
        d->shared_ffn_key = "intermediate_size";
        const struct source_tensor *down = source_find(s, "blk.0.ffn_down_exps.weight");
        const int nvfp4 = down && (down->dtype == DTYPE_NV4_64 || down->dtype == DTYPE_NV4_256);
        shape->expert_norms = n > 0;
        shape->route_scales = n > 0 && !nvfp4; // there factors of the matrices hold them
        return OK;
    }
    TRY(family_flag(s, name, "enable_moe_block", &experts));
    shape->expert_norms = shape->route_scales = experts;
    if (!experts)
        return OK;
    TRY(family_ints(s, name, &key, 1, shape)); // else an expert is as wide as the MLP
    d->hf = d->hf_experts = &names_experts;
    d->experts_key = "num_experts";
    d->used_key = "top_k_experts";
    d->expert_ffn_key = key.key;
    d->shared_ffn_key = "intermediate_size";
    d->route_alone = 1;
    return OK;
}

/* Heads of wide layers. Only with tied_kv they have KV heads of their own number. */
static enum err read_wide(const struct source *s, const char *name, struct shape *shape)
{
    const struct family_int keys[] = {
        {"global_head_dim", 2 * SHAPE_ROPE_MAX, KEY_OPTIONAL, FIELD(wide_head_dim)},
        {"num_global_key_value_heads", SHAPE_DIM_MAX, KEY_OPTIONAL, FIELD(wide_kv_heads)}};
    shape->wide_head_dim = WIDE;
    TRY(family_flag(s, name, "attention_k_eq_v", &shape->tied_kv));
    TRY(family_ints(s, name, keys, 1 + shape->tied_kv, shape));
    return shape->wide_head_dim % 2 == 0
               ? OK
               : family_fail(s, name, keys[0].key, "%d is odd: heads are rotated in pairs",
                             shape->wide_head_dim);
}

/* The number under a key of a GGUF file, of wide heads or of the others. */
static enum err check_number(const struct source *s, const char *name, const char *key, int want)
{
    char full[100];
    int64_t n = want;
    int found = 0;
    snprintf(full, sizeof full, "%s%s", name, key);
    TRY(source_int(s, full, 1, SHAPE_DIM_MAX, &n, &found));
    return n == want ? OK
                     : family_fail(s, name, key, "unsupported: %lld, not %d", (long long)n, want);
}

/* KV heads, one number for all layers or a list in which those of a kind are alike. */
static enum err read_kv_gguf(const struct source *s, const char *name, struct shape *shape)
{
    const char *const key = ".attention.head_count_kv";
    const char *const pattern = ".attention.sliding_window_pattern";
    int64_t heads[FAMILY_LIST_MAX], windows[FAMILY_LIST_MAX];
    const int n = shape->n_layers;
    TRY(family_int_list(s, name, pattern, n, 0, windows));
    TRY(family_int_list(s, name, key, n, 1, heads));
    if (windows[n - 1] != 0)
        return family_fail(s, name, pattern, "unsupported: the last layer has a window");
    for (int i = 0; i < n; i++) {
        int *of = windows[i] ? &shape->n_kv_heads : &shape->wide_kv_heads;
        if (heads[i] < 1 || (*of != 0 && *of != heads[i]))
            return family_fail(s, name, key, "unsupported: %lld in layer %d", (long long)heads[i],
                               i);
        *of = (int)heads[i];
    }
    if (shape->n_kv_heads == 0) // there are wide layers only
        shape->n_kv_heads = shape->wide_kv_heads;
    return OK;
}

/* 1: wide layers have no matrix of values. Those with one have it in all layers. */
static enum err read_tied_gguf(const struct source *s, struct shape *shape)
{
    const int own = shape->kv_own_layers > 0 ? shape->kv_own_layers : shape->n_layers;
    int n_wide = 0, n_values = 0;
    for (int i = 0; i < own; i++) {
        char tensor[100];
        snprintf(tensor, sizeof tensor, "blk.%d.attn_v.weight", i);
        n_wide += shape->layer_window[i] == 0;
        n_values += shape->layer_window[i] == 0 && source_find(s, tensor);
    }
    shape->tied_kv = n_values == 0;
    return n_values == 0 || n_values == n_wide
               ? OK
               : fail(ERR_INPUT, "%s: tensor attn_v.weight: in %d of %d layers without a window",
                      s->path, n_values, n_wide);
}

/* The MLP's width in GGUF files: one number, or one for each layer, of which the layers that share
 * KV may have another. */
static enum err read_ffn_gguf(const struct source *s, const char *name, struct shape *shape,
                              int shared)
{
    const char *const key = ".feed_forward_length";
    const int n = shape->n_layers, own = n - shared;
    int64_t widths[FAMILY_LIST_MAX];
    TRY(family_int_list(s, name, key, n, 1, widths));
    for (int i = 0; i < n; i++)
        if (widths[i] < 1 || widths[i] != widths[i < own ? 0 : own])
            return family_fail(s, name, key, "unsupported: %lld in layer %d", (long long)widths[i],
                               i);
    shape->ffn_dim = (int)widths[0];
    shape->late_ffn_dim = shared > 0 ? (int)widths[n - 1] : 0;
    return OK;
}

/* How many of the last layers share KV. GGUF files say so before the other keys are read. */
static enum err read_shared(const struct source *s, const char *name, int n_layers, int *shared)
{
    const int gguf = s->kind == SOURCE_GGUF;
    char key[100];
    int64_t n = 0;
    int found = 0;
    snprintf(key, sizeof key, "%s%s", gguf ? name : "",
             gguf ? ".attention.shared_kv_layers" : "num_kv_shared_layers");
    TRY(source_int(s, key, 0, n_layers - 1, &n, &found));
    *shared = (int)n;
    return OK;
}

/* What a GGUF file says of heads: key_length is that of wide ones. */
static enum err read_wide_gguf(const struct source *s, const char *name, struct shape *shape)
{
    int64_t window = 0;
    int found = 0, shared = 0;
    char key[100];
    const struct family_int keys[] = {
        {".block_count", SHAPE_LAYERS_MAX, KEY_REQUIRED, FIELD(n_layers)},
        {".attention.key_length", 2 * SHAPE_ROPE_MAX, KEY_REQUIRED, FIELD(wide_head_dim)},
        {".attention.key_length_swa", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(head_dim)},
        {".rope.dimension_count_swa", SHAPE_DIM_MAX, KEY_OPTIONAL, FIELD(rope_dim)}};
    shape->head_dim = 0;
    TRY(family_ints(s, name, keys, 4, shape));
    if (shape->wide_head_dim % 2 != 0)
        return family_fail(s, name, keys[1].key, "%d is odd: heads are rotated in pairs",
                           shape->wide_head_dim);
    TRY(check_number(s, name, ".rope.dimension_count", shape->wide_head_dim));
    TRY(check_number(s, name, ".attention.value_length", shape->wide_head_dim));
    TRY(check_number(s, name, ".attention.value_length_swa", shape->head_dim));
    snprintf(key, sizeof key, "%s.attention.sliding_window", name);
    TRY(source_int(s, key, 2, INT32_MAX, &window, &found));
    if (!found)
        return family_fail(s, "", key, "missing");
    if (!source_find(s, "rope_freqs.weight"))
        return fail(ERR_INPUT, "%s: tensor rope_freqs.weight: missing", s->path);
    TRY(read_shared(s, name, shape->n_layers, &shared));
    TRY(read_ffn_gguf(s, name, shape, shared));
    return read_kv_gguf(s, name, shape);
}

static enum err end_wide(const struct source *s, const char *name, struct shape *shape)
{
    const int gguf = s->kind == SOURCE_GGUF;
    const char *const key = gguf ? ".attention.head_count_kv" : "num_global_key_value_heads";
    if (shape->wide_kv_heads == 0)
        shape->wide_kv_heads = shape->n_kv_heads;
    if (shape->n_heads % shape->wide_kv_heads != 0)
        return family_fail(s, name, key, "%d heads are not a multiple of %d", shape->n_heads,
                           shape->wide_kv_heads);
    if ((int64_t)shape->n_heads * shape->wide_head_dim > SHAPE_DIM_MAX)
        return family_fail(s, name, gguf ? ".attention.key_length" : "global_head_dim",
                           "%d heads of %d numbers are too large", shape->n_heads,
                           shape->wide_head_dim);
    shape->layer_window[shape->n_layers - 1] = 0; // whatever is listed
    set_wide(shape);
    return rope_fill_windows(s, name, shape, LOCAL_THETA);
}

/* Numbers of a layer's input; gemma4_unified has none. */
static enum err read_inputs(const struct source *s, const char *name, struct shape *shape)
{
    const int gguf = s->kind == SOURCE_GGUF;
    char key[100], type[40] = "gemma4_text";
    int64_t n = 0;
    int found = 0;
    snprintf(key, sizeof key, "%s%s", gguf ? name : "",
             gguf ? ".embedding_length_per_layer_input" : "hidden_size_per_layer_input");
    TRY(gguf ? OK : family_str(s, name, "model_type", type, sizeof type));
    if (!gguf && strcmp(type, "gemma4_unified_text") != 0 && !source_null(s, key))
        n = INPUT;
    TRY(source_int(s, key, 0, SHAPE_DIM_MAX, &n, &found));
    shape->layer_input = (int)n;
    return OK;
}

/* Layers that share KV, once windows are known: with the last layer of their kind before them. */
static enum err end_shared(const struct source *s, const char *name, struct shape *shape)
{
    const int gguf = s->kind == SOURCE_GGUF;
    const char *const key = gguf ? ".attention.shared_kv_layers" : "num_kv_shared_layers";
    int64_t vocab = VOCAB;
    int shared = 0, wider = 0, found = 0;
    TRY(read_shared(s, name, shape->n_layers, &shared));
    shape->kv_own_layers = shared > 0 ? shape->n_layers - shared : 0;
    if (shared > 0 && shape->n_experts > 0)
        return family_fail(s, name, key, "unsupported in models with experts");
    for (int i = shape->kv_own_layers; shared > 0 && i < shape->n_layers; i++)
        if (shape_part(shape, shape->layer_wide[i] ? PART_WIDE_K : PART_K) == 0)
            return family_fail(s, name, key, "no earlier layer is of the kind of layer %d", i);
    if (gguf)
        return OK;
    TRY(family_flag(s, name, "use_double_wide_mlp", &wider));
    if (shared > 0 && shape->ffn_dim > SHAPE_DIM_MAX / (1 + wider))
        return family_fail(s, name, "intermediate_size", "out of range");
    shape->late_ffn_dim = shared > 0 ? shape->ffn_dim * (1 + wider) : 0;
    TRY(source_int(s, "vocab_size_per_layer_input", 0, SHAPE_VOCAB_MAX, &vocab, &found));
    return shape->layer_input == 0 || vocab == shape->vocab
               ? OK
               : family_fail(s, name, "vocab_size_per_layer_input", "unsupported: %lld, not %d",
                             (long long)vocab, shape->vocab);
}

static enum err read_scalars(const struct family_model *m, const struct source *s,
                             struct shape *shape)
{
    for (int i = 0; i < shape->n_layers; i++) {
        char tensor[160];
        double factor = 0;
        snprintf(tensor, sizeof tensor, "%s%s%d.%s", m->prefix, m->names->layer, i,
                 s->kind == SOURCE_GGUF ? "layer_output_scale.weight" : "layer_scalar");
        TRY(family_number(s, tensor, &factor));
        if (!(factor > 0 && factor < 1e6))
            return fail(ERR_INPUT, "%s: tensor %s: missing or out of range", s->path, tensor);
        shape->layer_scale[i] = (float)factor;
    }
    return OK;
}

static enum err read_text(struct family_model *m, const struct source *s, const char *name,
                          const char *const prefixes[2])
{
    static const struct rope usual = {
        .kind = ROPE_PROPORTIONAL, .theta = GLOBAL_THETA, .partial = TURNED};
    struct shape *shape = &m->shape;
    const int gguf = s->kind == SOURCE_GGUF;
    double cap = 0;
    struct family_dialect d = {.hf = &names,
                               .gguf = &names_gguf,
                               .unpaired = 1,
                               .own_keys = ".attention.key_length .attention.head_count_kv "
                                           ".rope.dimension_count .feed_forward_length",
                               .theta = gguf ? GLOBAL_THETA : 0,
                               .act_key = "hidden_activation",
                               .act = "gelu_pytorch_tanh",
                               .rope = &usual,
                               .tied = 1,
                               .windows = WINDOWS_HAVE | WINDOWS_LISTED,
                               .window = WINDOW,
                               .every = EVERY,
                               .prefixes = {prefixes[0], prefixes[1]}};
    TRY(gguf ? OK : check_kind(s, name));
    shape->head_dim = 256;
    set_layers(shape);
    TRY(read_inputs(s, name, shape));
    TRY(read_experts(s, name, shape, &d));
    TRY(gguf ? read_wide_gguf(s, name, shape) : read_wide(s, name, shape));
    TRY(family_read_dialect(m, s, name, &d));
    TRY(end_wide(s, name, shape));
    TRY(end_shared(s, name, shape));
    TRY(gguf ? read_tied_gguf(s, shape) : OK);
    TRY(family_float(s, name, gguf ? ".final_logit_softcapping" : "final_logit_softcapping", 1e-3,
                     1e5, &cap));
    shape->logit_softcap = (float)cap;
    shape->embed_scale = sqrtf((float)shape->dim);
    m->factor[ROLE_ROUTER_NORM_W] = 1 / sqrtf((float)shape->dim);
    return read_scalars(m, s, shape);
}

enum err family_gemma4_read(struct family_model *m, const struct source *s, const char *name)
{
    static const char *const prefixes[2] = {"model.", ""};
    return read_text(m, s, name, prefixes);
}

/* The text part of a model with images and sound; other keys are ignored. */
enum err family_gemma4_vision_read(struct family_model *m, const struct source *s, const char *name)
{
    static const char *const prefixes[2] = {"model.language_model.", "language_model.model."};
    struct source text = *s;
    char type[64] = "";
    text.section = "text_config";
    TRY(family_str(&text, name, "model_type", type, sizeof type));
    if (strcmp(type, "gemma4_text") != 0 && strcmp(type, "gemma4_unified_text") != 0)
        return family_fail(&text, name, "model_type", type[0] ? "unsupported: %s" : "missing%s",
                           type);
    TRY(family_check_keys(&text, m->shape.family, name));
    return read_text(m, &text, name, prefixes);
}
