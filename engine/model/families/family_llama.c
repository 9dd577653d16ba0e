/* engine/model/families/family_llama.c - llama and similar families: RMSNorm, RoPE, grouped KV
 * heads, gated SiLU MLP; and the parts shared by all families that use llama's keys.
 *
 * Owns: those keys in config.json and GGUF, llama's tensor names. Serves llama, mistral (window),
 * qwen2 (biases on q, k and v) and mixtral in GGUF files that call it llama.
 *
 * Note: GGUF files of "llama" order rows of q and k differently from "qwen2" and Hugging Face
 * (family_source_row undoes it) and store llama3's RoPE scaling as a tensor of divisors. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"
#include "engine/model/families/rope.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define CONTEXT_MAX (1 << 27)
#define LATE_LAYER  28 // default of max_window_layers
#define FIELD(f)    offsetof(struct shape, f)

static const struct family_names names_hf = {
    "layers.",
    {HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_INPUT_NORM, HF_SECOND_NORM, HF_ATTENTION, HF_GATED_MLP}};
static const struct family_names names_gguf = {
    "blk.", {GGUF_ENDS, GGUF_NORMS, GGUF_QKV, GGUF_O, GGUF_GATE, GGUF_MLP}};
static const struct family_names names_gguf_experts = {
    "blk.", {GGUF_ENDS, GGUF_NORMS, GGUF_QKV, GGUF_O, GGUF_ROUTER, GGUF_EXPERTS}};
static const struct family_names names_gguf_all_experts = {
    "blk.", {GGUF_ENDS, GGUF_NORMS, GGUF_QKV, GGUF_O, GGUF_ROUTER, GGUF_ALL_EXPERTS}};

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
    {".attention.key_length", SHAPE_DIM_MAX, KEY_OPTIONAL, FIELD(head_dim)},
    {".vocab_size", SHAPE_VOCAB_MAX, KEY_OPTIONAL, FIELD(vocab)},
    {".context_length", CONTEXT_MAX, KEY_REQUIRED, FIELD(context)},
    {".rope.dimension_count", SHAPE_DIM_MAX, KEY_OPTIONAL, FIELD(rope_dim)},
    {".attention.head_count_kv", SHAPE_DIM_MAX, KEY_OPTIONAL, FIELD(n_kv_heads)}, // last
};

/* The window in tokens; 0: none. A missing key leaves *window unchanged, null means none. */
static enum err read_window(const struct source *s, const char *key, int64_t *window)
{
    int found = 0;
    TRY(source_int(s, key, 0, INT32_MAX, window, &found));
    *window = source_null(s, key) ? 0 : *window;
    return *window == 1 ? family_fail(s, "", key, "1 is out of range") : OK;
}

/* layer_types as flags: 1 for a layer with a window. *n = 0: no list. */
static enum err read_layer_types(const struct source *s, const struct shape *shape,
                                 int has[SHAPE_LAYERS_MAX], int64_t *n, int *any)
{
    const char *types[SHAPE_LAYERS_MAX];
    int found = 0;
    TRY(source_str_list(s, "layer_types", types, SHAPE_LAYERS_MAX, n, &found));
    if (found && *n != shape->n_layers)
        return family_fail(s, "", "layer_types", "has %lld entries, expected %d", (long long)*n,
                           shape->n_layers);
    for (int i = 0; i < *n; i++) {
        has[i] = strcmp(types[i], "sliding_attention") == 0;
        *any |= has[i];
        if (!has[i] && strcmp(types[i], "full_attention") != 0)
            return family_fail(s, "", "layer_types", "unsupported: %s in layer %d", types[i], i);
    }
    return OK;
}

/* Note: transformers' class for llama reads none of these keys, so a llama model always attends its
 * whole context. The classes for mistral, mixtral, phi3 and qwen3_moe ignore layer_types. Those for
 * qwen2, qwen3, qwen2_moe and smollm3 fail if layer_types has a window but use_sliding_window is
 * false. */
static enum err read_window_hf(const struct source *s, const struct family_dialect *d,
                               struct shape *shape)
{
    int has[SHAPE_LAYERS_MAX], used = !(d->windows & WINDOWS_ASKED), found = 0, any = 0;
    int64_t n = 0, window = d->window, from = d->windows & WINDOWS_LATE ? LATE_LAYER : 0;
    int64_t every = d->every;
    if (!(d->windows & WINDOWS_HAVE))
        return OK;
    if (!used)
        TRY(family_flag(s, "", "use_sliding_window", &used));
    if (d->windows & WINDOWS_LISTED)
        TRY(read_layer_types(s, shape, has, &n, &any));
    if (!used && any)
        return family_fail(s, "", "use_sliding_window",
                           "is not true, but layer_types has sliding_attention");
    if (!used)
        return OK;
    TRY(read_window(s, "sliding_window", &window));
    if (any && window == 0)
        return family_fail(s, "", "sliding_window", "missing");
    if (d->windows & WINDOWS_LATE)
        TRY(source_int(s, "max_window_layers", 0, INT32_MAX, &from, &found));
    if (n == 0 && (d->windows & WINDOWS_EVERY)) // beside a list it may be anything
        TRY(source_int(s, "sliding_window_pattern", 1, INT32_MAX, &every, &found));
    family_windows(shape, (int)window, (int)every);
    for (int i = 0; i < shape->n_layers; i++)
        if (n > 0)
            shape->layer_window[i] = has[i] ? (int)window : 0;
        else if (i < from)
            shape->layer_window[i] = 0;
    return OK;
}

/* GGUF's keys: the length; each how-many-th layer has none, or a flag per layer. */
static enum err read_window_gguf(const struct source *s, const char *name,
                                 const struct family_dialect *d, struct shape *shape)
{
    int64_t has[SHAPE_LAYERS_MAX], n = 0, window = d->windows & WINDOWS_SURE ? d->window : 0;
    char key[100];
    int found = 0;
    snprintf(key, sizeof key, "%s.attention.sliding_window", name);
    TRY(read_window(s, key, &window));
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", name);
    TRY(source_int_list(s, key, 0, INT32_MAX, has, SHAPE_LAYERS_MAX, &n, &found));
    if (n > 1 && n != shape->n_layers)
        return family_fail(s, "", key, "has %lld entries, expected %d", (long long)n,
                           shape->n_layers);
    family_windows(shape, (int)window, n == 1 ? (int)has[0] : d->every);
    for (int i = 0; i < n && n > 1; i++)
        shape->layer_window[i] = has[i] ? (int)window : 0;
    return OK;
}

/* Number of experts. Old and new config.json files use two keys; GGUF files of dense models may say
 * 0, those of families with experts may not. */
static enum err count_experts(const struct source *s, const char *name,
                              const struct family_dialect *d, struct shape *shape)
{
    const int gguf = s->kind == SOURCE_GGUF;
    const char *keys[] = {gguf ? ".expert_count" : d->experts_key, "num_local_experts"};
    int64_t n = 0, said = 0;
    for (int i = 0; i < (gguf ? 1 : 2); i++) {
        int found = 0;
        TRY(family_one_int(s, name, keys[i], !gguf, SHAPE_EXPERTS_MAX, &said, &found));
        n = found ? said : n;
    }
    shape->n_experts = (int)n;
    return n > 0 || (gguf && !d->experts_key) ? OK : family_fail(s, name, keys[0], "missing");
}

/* Of layer_dense[]: some layer must have experts. The key is for the message. */
static enum err end_dense(const struct source *s, const char *key, struct shape *shape,
                          int dense_dim)
{
    int n_dense = 0;
    for (int i = 0; i < shape->n_layers; i++)
        n_dense += shape->layer_dense[i];
    if (n_dense == shape->n_layers)
        return family_fail(s, "", key, "unsupported: no layer has experts");
    shape->dense_dim = n_dense > 0 ? dense_dim : 0;
    return OK;
}

/* Layers without experts: those listed in config.json, and all but every n-th. */
static enum err read_dense_layers(const struct source *s, struct shape *shape, int dense_dim)
{
    int64_t listed[SHAPE_LAYERS_MAX], n = 0, step = 1;
    int found = 0;
    TRY(source_int_list(s, "mlp_only_layers", 0, shape->n_layers - 1, listed, SHAPE_LAYERS_MAX, &n,
                        &found));
    TRY(source_int(s, "decoder_sparse_step", 1, INT32_MAX, &step, &found));
    for (int i = 0; i < shape->n_layers; i++)
        shape->layer_dense[i] = (i + 1) % step != 0;
    for (int64_t i = 0; i < n; i++)
        shape->layer_dense[listed[i]] = 1;
    return end_dense(s, n > 0 ? "mlp_only_layers" : "decoder_sparse_step", shape, dense_dim);
}

/* Layers without experts as listed by name; without a list the first one. */
static enum err read_mlp_types(const struct source *s, struct shape *shape, int dense_dim)
{
    const char *const key = "mlp_layer_types", *types[SHAPE_LAYERS_MAX];
    int64_t n = 0;
    int found = 0;
    TRY(source_str_list(s, key, types, SHAPE_LAYERS_MAX, &n, &found));
    if (found && n != shape->n_layers)
        return family_fail(s, "", key, "has %lld entries, expected %d", (long long)n,
                           shape->n_layers);
    for (int i = 0; i < shape->n_layers; i++) {
        shape->layer_dense[i] = found ? strcmp(types[i], "dense") == 0 : i == 0;
        if (found && !shape->layer_dense[i] && strcmp(types[i], "sparse") != 0)
            return family_fail(s, "", key, "unsupported: %s in layer %d", types[i], i);
    }
    return end_dense(s, key, shape, dense_dim);
}

/* Layers without experts are the first ones. GGUF files may say so of any family. */
static enum err read_first_dense(const struct source *s, const char *name,
                                 const struct family_dialect *d, struct shape *shape, int dense_dim)
{
    char key[100];
    int64_t n = 0;
    int found = 0;
    snprintf(key, sizeof key, "%s%s", s->kind == SOURCE_GGUF ? name : d->first_dense_key,
             s->kind == SOURCE_GGUF ? ".leading_dense_block_count" : "");
    TRY(source_int(s, key, 0, shape->n_layers - 1, &n, &found));
    memset(shape->layer_dense, 1, (size_t)n);
    shape->dense_dim = n > 0 ? dense_dim : 0;
    return OK;
}

/* Several shared experts are one of their widths' sum. */
static enum err read_shared_count(const struct source *s, const char *name,
                                  const struct family_dialect *d, struct shape *shape)
{
    char key[100];
    int64_t n = 0;
    int found = 0;
    snprintf(key, sizeof key, "%s%s", s->kind == SOURCE_GGUF ? name : d->shared_count_key,
             s->kind == SOURCE_GGUF ? ".expert_shared_count" : "");
    TRY(source_int(s, key, 0, SHAPE_DIM_MAX / shape->ffn_dim, &n, &found));
    shape->shared_dim = (int)n * shape->ffn_dim;
    return OK;
}

/* Width of the shared expert; in GGUF the MLP's, if not given. */
static enum err read_shared(const struct source *s, const char *name,
                            const struct family_dialect *d, struct shape *shape, int dense_dim)
{
    const int gguf = s->kind == SOURCE_GGUF;
    if (d->shared_count_key)
        return read_shared_count(s, name, d, shape);
    const struct family_int key = {gguf ? ".expert_shared_feed_forward_length" : d->shared_ffn_key,
                                   SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(shared_dim)};
    shape->shared_dim = gguf ? dense_dim : 0;
    return family_ints(s, name, &key, 1, shape);
}

/* How experts are chosen. */
static enum err read_router(const struct source *s, const char *name,
                            const struct family_dialect *d, struct shape *shape)
{
    const int gguf = s->kind == SOURCE_GGUF, logistic = (d->router & ROUTER_LOGISTIC) != 0;
    const struct family_int groups[] = {
        {gguf ? ".expert_group_count" : "n_group", SHAPE_GROUPS_MAX, KEY_OPTIONAL, FIELD(n_groups)},
        {gguf ? ".expert_group_used_count" : "topk_group", SHAPE_GROUPS_MAX, KEY_OPTIONAL,
         FIELD(n_groups_used)}};
    char key[100];
    double scale = shape->route_scale;
    int64_t gating = logistic + 1;
    int found = 0;
    shape->route_alone = gguf ? !d->route_all : d->route_alone;
    shape->route_logistic = logistic;
    shape->route_bias = (d->router & ROUTER_BIAS) != 0;
    if (!gguf && (!shape->route_alone || (d->router & ROUTER_KEYS)))
        TRY(family_flag(s, "", "norm_topk_prob", &shape->route_alone));
    if (!d->router)
        return OK;
    snprintf(key, sizeof key, "%s.expert_gating_func", name);
    TRY(gguf ? source_int(s, key, 1, 2, &gating, &found) : OK); // 1: softmax, 2: logistic
    if (gating != logistic + 1)
        return family_fail(s, name, ".expert_gating_func", "%lld is unsupported in %s models",
                           (long long)gating, shape->family);
    if (!(d->router & ROUTER_KEYS))
        return OK;
    if (gguf)
        TRY(family_flag(s, name, ".expert_weights_norm", &shape->route_alone));
    TRY(family_float(s, name, gguf ? ".expert_weights_scale" : "routed_scaling_factor", 1e-6, 1e6,
                     &scale));
    TRY(family_ints(s, name, groups, 2, shape));
    if (shape->n_groups == 1) // all experts
        shape->n_groups = shape->n_groups_used = 0;
    shape->route_scale = (float)scale;
    return OK;
}

/* Number and size of experts and how many a token uses, if the file or the family has experts. */
static enum err read_experts(const struct source *s, const char *name,
                             const struct family_dialect *d, struct shape *shape)
{
    const int gguf = s->kind == SOURCE_GGUF, dense_dim = shape->ffn_dim;
    const char *ffn = gguf ? ".expert_feed_forward_length" : d->expert_ffn_key;
    const char *used = d->used_key ? d->used_key : "num_experts_per_tok";
    const struct family_int keys[] = {{gguf ? ".expert_used_count" : used, SHAPE_EXPERTS_USED_MAX,
                                       KEY_REQUIRED, FIELD(n_experts_used)},
                                      {ffn, SHAPE_DIM_MAX, KEY_OPTIONAL, FIELD(ffn_dim)}};
    if (!gguf && !d->experts_key)
        return OK;
    TRY(count_experts(s, name, d, shape));
    if (shape->n_experts == 0)
        return OK;
    TRY(family_ints(s, name, keys, ffn ? 2 : 1, shape));
    if (shape->n_experts_used > shape->n_experts)
        return family_fail(s, name, keys[0].key, "%d exceeds the %d experts", shape->n_experts_used,
                           shape->n_experts);
    if (d->shared_ffn_key || d->shared_count_key)
        TRY(read_shared(s, name, d, shape, dense_dim));
    if (!gguf && d->sparse_layers)
        TRY(read_dense_layers(s, shape, dense_dim));
    if (!gguf && d->mlp_types)
        TRY(read_mlp_types(s, shape, dense_dim));
    else if (d->first_dense_key)
        TRY(read_first_dense(s, name, d, shape, dense_dim));
    return read_router(s, name, d, shape);
}

/* Chooses names: a tensor per expert, or one tensor of all, by the first one found. GGUF files of
 * the second kind have gate and up apart, or gate above up. */
static void choose_names(struct family_model *m, const struct source *s,
                         const struct family_names *of_all)
{
    const struct family_names *each = m->names;
    const int first = shape_first_layer(&m->shape, 1);
    if (!of_all)
        return;
    m->names = of_all;
    if (!family_tensor(m, s, ROLE_DOWN, first)) {
        m->names = each;
        return;
    }
    m->fused = s->kind == SOURCE_GGUF && m->shape.gated;
    m->fused = m->fused && family_tensor(m, s, ROLE_GATE, first);
    if (m->fused || s->kind == SOURCE_HF)
        family_cut_experts(m);
}

/* Biases as stated by config.json; in other files, by presence. */
static enum err read_biases(role_set *biases, const struct source *s,
                            const struct family_dialect *d)
{
    int attention = d->attention_bias, mlp = 0, out = 0;
    *biases = d->biases;
    TRY(family_flag(s, "", "attention_bias", &attention));
    TRY(family_flag(s, "", "mlp_bias", &mlp));
    if (d->out_bias_key)
        TRY(family_flag(s, "", d->out_bias_key, &out));
    if (attention)
        *biases |= ROLE_BIT(ROLE_Q_B) | ROLE_BIT(ROLE_K_B) | ROLE_BIT(ROLE_V_B);
    if (d->out_bias_key ? out : attention)
        *biases |= ROLE_BIT(ROLE_O_B);
    if (mlp)
        *biases |= ROLE_BIT(ROLE_GATE_B) | ROLE_BIT(ROLE_UP_B) | ROLE_BIT(ROLE_DOWN_B);
    return OK;
}

/* RoPE of config.json, or of its class if the file describes none. */
static enum err read_rope_hf(struct rope *rope, const struct source *s,
                             const struct family_dialect *d)
{
    double ignored;
    int old = 0, new = 0;
    source_weigh(s, "rope_scaling", &ignored, &old);
    source_weigh(s, "rope_parameters", &ignored, &new);
    if (d->rope && !old && !new) {
        *rope = *d->rope;
        return OK;
    }
    *rope = rope_plain(d->theta > 0 ? d->theta : 10000);
    rope->partial = d->partial > 0 ? d->partial : 1;
    TRY(rope_read_hf(rope, s, d->theta_key ? d->theta_key : "rope_theta",
                     d->partial_key ? d->partial_key : "partial_rotary_factor"));
    if (d->yarn_is_long && rope->kind == ROPE_YARN)
        rope->kind = ROPE_LONG;
    if (!d->alpha)
        rope->alpha = 0;
    return OK;
}

/* Sets the number of rotated dimensions of a head. */
static enum err rotated_dims(const struct source *s, struct shape *shape, const struct rope *rope)
{
    const double turned = rope->kind == ROPE_PROPORTIONAL ? 1 : rope->partial;
    shape->rope_dim = (int)(shape->head_dim * turned);
    if (shape->rope_dim < 2 || shape->rope_dim % 2 != 0)
        return family_fail(s, "", "head_dim", "%d of %d numbers cannot be rotated in pairs",
                           shape->rope_dim, shape->head_dim);
    return OK;
}

static enum err read_hf(struct family_model *m, const struct source *s,
                        const struct family_dialect *d)
{
    static const char *const llama_prefixes[] = {"model.", ""};
    const char *act_key = d->act_key ? d->act_key : "hidden_act";
    struct shape *shape = &m->shape;
    struct rope rope;
    char act[32];
    int tied = d->tied;
    double eps = shape->norm_eps;
    role_set biases;
    TRY(family_ints(s, "", ints_hf, sizeof ints_hf / sizeof *ints_hf, shape));
    if (d->n_layers > 0)
        shape->n_layers = d->n_layers;
    TRY(read_experts(s, "", d, shape));
    if (d->latent)
        TRY(latent_sizes(s, "", shape));
    TRY(family_heads(s, "", shape, "hidden_size", "num_attention_heads", "num_key_value_heads",
                     "head_dim"));
    TRY(family_float(s, "", d->eps_key ? d->eps_key : "rms_norm_eps", 0, 0.1, &eps));
    snprintf(act, sizeof act, "%s", d->act ? d->act : "silu");
    TRY(family_str(s, "", act_key, act, sizeof act));
    TRY(family_act(s, "", act_key, act, &shape->act));
    TRY(read_rope_hf(&rope, s, d));
    TRY(read_window_hf(s, d, shape));
    TRY(read_biases(&biases, s, d));
    TRY(family_flag(s, "", "tie_word_embeddings", &tied));
    shape->norm_eps = (float)eps;
    shape->embed_dim = shape->dim;
    if (!d->latent)
        TRY(rotated_dims(s, shape, &rope));
    TRY(rope_fill(&rope, s, shape));
    m->names = d->hf ? d->hf : &names_hf;
    TRY(family_prefix(m, s, d->prefixes[0] ? d->prefixes : llama_prefixes, 2));
    choose_names(m, s, d->hf_experts);
    for (int role = 0; role < N_ROLES; role++) // attention_bias may mean q, k and v alone
        biases &= m->names->roles[role] ? ~(role_set)0 : ~ROLE_BIT(role);
    m->roles = family_roles(shape, biases);
    if (d->latent)
        TRY(latent_order(m, s, &rope));
    family_tie(m, s, tied);
    return OK;
}

enum err family_one_int(const struct source *s, const char *name, const char *key, int64_t min,
                        int64_t max, int64_t *out, int *found)
{
    char full[100];
    int64_t list[FAMILY_LIST_MAX], n = 0;
    double number = 0;
    snprintf(full, sizeof full, "%s%s", key[0] == '.' ? name : "", key);
    source_weigh(s, full, &number, found);
    if (!isnan(number))
        return source_int(s, full, min, max, out, found);
    TRY(source_int_list(s, full, min, max, list, FAMILY_LIST_MAX, &n, found));
    for (int64_t i = 1; i < n; i++)
        if (list[i] != list[0])
            return family_fail(s, name, key, "unsupported: %lld in layer %lld, but %lld in layer 0",
                               (long long)list[i], (long long)i, (long long)list[0]);
    *out = n > 0 ? list[0] : *out;
    *found = n > 0;
    return OK;
}

enum err family_int_list(const struct source *s, const char *name, const char *key, int n,
                         int may_repeat, int64_t numbers[FAMILY_LIST_MAX])
{
    char full[100];
    int64_t has = 0;
    int found = 0;
    snprintf(full, sizeof full, "%s%s", name, key);
    TRY(source_int_list(s, full, 0, SHAPE_DIM_MAX, numbers, FAMILY_LIST_MAX, &has, &found));
    if (has != n && !(may_repeat && has == 1))
        return family_fail(s, name, key, "has %lld entries, expected %d", (long long)has, n);
    for (int64_t i = has; i < n; i++)
        numbers[i] = numbers[0];
    return OK;
}

static enum err read_gguf_heads(struct shape *shape, const struct source *s, const char *name)
{
    int64_t n = 0;
    int found = 0;
    char key[100];
    TRY(family_heads(s, name, shape, ".embedding_length", ".attention.head_count",
                     ".attention.head_count_kv", ".attention.key_length"));
    snprintf(key, sizeof key, "%s.attention.value_length", name);
    TRY(source_int(s, key, 1, SHAPE_DIM_MAX, &n, &found));
    if (found && n != shape->head_dim && shape->latent_key == 0 && shape->wide_head_dim == 0)
        return family_fail(s, name, ".attention.value_length", "%lld, but keys have %d",
                           (long long)n, shape->head_dim);
    if (shape->rope_dim == 0)
        shape->rope_dim = shape->head_dim;
    if (shape->rope_dim > shape->head_dim || shape->rope_dim % 2 != 0)
        return family_fail(s, name, ".rope.dimension_count", "%d is odd or above the head's %d",
                           shape->rope_dim, shape->head_dim);
    return OK;
}

/* GGUF files count layers that predict further tokens (MTP); they are the last ones. */
static enum err leave_out_mtp(const struct source *s, const char *name, struct shape *shape)
{
    char key[100];
    int64_t n = 0;
    int found = 0;
    snprintf(key, sizeof key, "%s.nextn_predict_layers", name);
    TRY(source_int(s, key, 0, shape->n_layers - 1, &n, &found));
    shape->n_layers -= (int)n;
    return OK;
}

/* 1: the family has read the key itself. */
static int is_own(const struct family_dialect *d, const char *key)
{
    return d->own_keys && family_has_word(d->own_keys, key);
}

static enum err read_gguf(struct family_model *m, const struct source *s, const char *name,
                          const struct family_dialect *d)
{
    static const char *const prefixes[] = {""};
    struct shape *shape = &m->shape;
    struct rope rope = rope_plain(d->theta > 0 ? d->theta : 10000);
    double eps = shape->norm_eps;
    const int n_ints = (int)(sizeof ints_gguf / sizeof *ints_gguf);
    for (int i = 0; i < (d->states ? n_ints - 1 : n_ints); i++)
        if (!is_own(d, ints_gguf[i].key))
            TRY(family_ints(s, name, &ints_gguf[i], 1, shape));
    if (d->states)
        TRY(state_layers_gguf(s, name, shape));
    if (!is_own(d, ".block_count"))
        TRY(leave_out_mtp(s, name, shape));
    TRY(read_experts(s, name, d, shape));
    TRY(d->latent ? latent_sizes(s, name, shape) : OK);
    TRY(read_gguf_heads(shape, s, name));
    TRY(read_window_gguf(s, name, d, shape));
    rope.truncate = !d->yarn_smooth;
    TRY(rope_read_gguf(&rope, s, name, shape->rope_dim));
    if (d->latent)
        latent_rope_gguf(&rope);
    /* Files have either, whatever the norm: nemotron_h the first, phimoe the second. */
    TRY(family_float(s, name, ".attention.layer_norm_epsilon", 0, 0.1, &eps));
    TRY(family_float(s, name, ".attention.layer_norm_rms_epsilon", 0, 0.1, &eps));
    TRY(family_act(s, "", "", d->act ? d->act : "silu", &shape->act)); // files have no key for it
    shape->norm_eps = (float)eps;
    shape->embed_dim = shape->dim;
    TRY(rope_fill(&rope, s, shape));
    TRY(rope_divide(s, shape));
    m->names = d->gguf ? d->gguf : shape->n_experts > 0 ? &names_gguf_experts : &names_gguf;
    m->paired_rows = !d->unpaired;
    m->plus_one = 0; // the writer of the file has added 1
    TRY(family_prefix(m, s, prefixes, 1));
    if (shape->n_experts > 0)
        choose_names(m, s, d->gguf_experts ? d->gguf_experts : &names_gguf_all_experts);
    if (shape->vocab == 0) { // only the embedding tells; family_read checks its range
        const struct source_tensor *t = family_tensor(m, s, ROLE_EMBED, 0);
        shape->vocab = (int)min_i64(t->dims[0], INT32_MAX);
    }
    family_roles_by_presence(m, s);
    family_tie(m, s, -1);
    return d->latent ? latent_order(m, s, &rope) : OK;
}

enum err family_read_dialect(struct family_model *m, const struct source *s, const char *name,
                             const struct family_dialect *d)
{
    m->shape.position = POSITION_ROPE;
    if (m->shape.norm_eps == 0)
        m->shape.norm_eps = 1e-6f;
    m->shape.final_norm = 1;
    return s->kind == SOURCE_GGUF ? read_gguf(m, s, name, d) : read_hf(m, s, d);
}

enum err family_llama_read(struct family_model *m, const struct source *s, const char *name)
{
    const int qwen = strcmp(name, "qwen2") == 0, mistral = strcmp(name, "mistral") == 0;
    const unsigned qwen_windows = WINDOWS_HAVE | WINDOWS_ASKED | WINDOWS_LISTED | WINDOWS_LATE;
    const role_set qkv = ROLE_BIT(ROLE_Q_B) | ROLE_BIT(ROLE_K_B) | ROLE_BIT(ROLE_V_B);
    m->shape.gated = 1;
    return family_read_dialect(m, s, name,
                               &(struct family_dialect){.biases = qwen ? qkv : 0,
                                                        .tied = -1,
                                                        .unpaired = qwen,
                                                        .windows = qwen      ? qwen_windows
                                                                   : mistral ? WINDOWS_HAVE
                                                                             : 0,
                                                        .window = FAMILY_WINDOW});
}
