/* engine/model/dummy.c - see dummy.h. Owns the parsing of model configs and the provider of their
 * weights.
 *
 * Note: the provider needs only shape and `tied` from the config, so a pack made from a config can
 * generate more of its own weights. */
#include "engine/model/dummy.h"

#include "engine/data/file.h"
#include "engine/model/dummy_numbers.h"
#include "engine/model/families/family.h"
#include "engine/model/families/rope.h"
#include "kernels/base/whole.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINES_MAX   1000
#define CONTEXT_MAX (1 << 27)

struct dummy {
    struct shape shape;
    int tied;
    char name[NAME_MAX + 1];
    struct dummy_numbers numbers;
};

/* Values of the file; strings are checked when read. */
struct dummy_config {
    const char *path;
    int line;
    int has_family;
    int tied;
    int dense_layers; // number of first layers without experts, in a model with experts
    double rope_theta, norm_eps;
    struct shape shape;
};

static const struct dummy_int {
    const char *key;
    int max, required;
    size_t field;
} ints[] = {
    {"dim", SHAPE_DIM_MAX, 1, offsetof(struct shape, dim)},
    {"layers", SHAPE_LAYERS_MAX, 0, offsetof(struct shape, n_layers)},
    {"heads", SHAPE_DIM_MAX, 1, offsetof(struct shape, n_heads)},
    {"kv_heads", SHAPE_DIM_MAX, 0, offsetof(struct shape, n_kv_heads)},
    {"head_dim", SHAPE_HEAD_MAX, 0, offsetof(struct shape, head_dim)},
    {"wide_head_dim", 2 * SHAPE_ROPE_MAX, 0, offsetof(struct shape, wide_head_dim)},
    {"wide_kv_heads", SHAPE_DIM_MAX, 0, offsetof(struct shape, wide_kv_heads)},
    {"rope_dim", 2 * SHAPE_ROPE_MAX, 0, offsetof(struct shape, rope_dim)},
    {"latent_key", SHAPE_DIM_MAX, 0, offsetof(struct shape, latent_key)},
    {"latent_value", SHAPE_DIM_MAX, 0, offsetof(struct shape, latent_value)},
    {"latent_query", SHAPE_DIM_MAX, 0, offsetof(struct shape, latent_query)},
    {"state_k_heads", SHAPE_DIM_MAX, 0, offsetof(struct shape, state_k_heads)},
    {"state_v_heads", SHAPE_DIM_MAX, 0, offsetof(struct shape, state_v_heads)},
    {"state_k_dim", SHAPE_STATE_MAX, 0, offsetof(struct shape, state_k_dim)},
    {"state_v_dim", SHAPE_STATE_MAX, 0, offsetof(struct shape, state_v_dim)},
    {"ffn", SHAPE_DIM_MAX, 1, offsetof(struct shape, ffn_dim)},
    {"kv_own_layers", SHAPE_LAYERS_MAX, 0, offsetof(struct shape, kv_own_layers)},
    {"late_ffn", SHAPE_DIM_MAX, 0, offsetof(struct shape, late_ffn_dim)},
    {"layer_input", SHAPE_DIM_MAX, 0, offsetof(struct shape, layer_input)},
    {"experts", SHAPE_EXPERTS_MAX, 0, offsetof(struct shape, n_experts)},
    {"experts_used", SHAPE_EXPERTS_USED_MAX, 0, offsetof(struct shape, n_experts_used)},
    {"expert_dim", SHAPE_DIM_MAX, 0, offsetof(struct shape, expert_dim)},
    {"shared_ffn", SHAPE_DIM_MAX, 0, offsetof(struct shape, shared_dim)},
    {"dense_ffn", SHAPE_DIM_MAX, 0, offsetof(struct shape, dense_dim)},
    {"vocab", SHAPE_VOCAB_MAX, 1, offsetof(struct shape, vocab)},
    {"context", CONTEXT_MAX, 1, offsetof(struct shape, context)},
};
#define N_INTS ((int)(sizeof ints / sizeof *ints))

#define QKV_BIASES (ROLE_BIT(ROLE_Q_B) | ROLE_BIT(ROLE_K_B) | ROLE_BIT(ROLE_V_B))
/* Families that a config may name, with their differences from llama. */
static const struct dummy_family {
    const char *name;
    role_set biases;
    int qk_norm;
    unsigned router;  // ROUTER_...
    int half_rotated; // 1: half of a head is rotated
} dummy_families[] = {
    {"llama", 0, QK_NORM_NONE, 0, 0},
    {"qwen2", QKV_BIASES, QK_NORM_NONE, 0, 0},
    {"qwen3", 0, QK_NORM_HEAD, 0, 0},
    {"mixtral", 0, QK_NORM_NONE, 0, 0},
    {"qwen2_moe", QKV_BIASES, QK_NORM_NONE, 0, 0},
    {"qwen3_moe", 0, QK_NORM_HEAD, 0, 0},
    {"glm4_moe", QKV_BIASES, QK_NORM_NONE, ROUTER_LOGISTIC | ROUTER_BIAS, 1},
    {"deepseek_v3", 0, QK_NORM_NONE, ROUTER_LOGISTIC | ROUTER_BIAS, 0},
    {"glm4_moe_lite", 0, QK_NORM_NONE, ROUTER_LOGISTIC | ROUTER_BIAS, 0},
    {"minimax_m2", 0, QK_NORM_WHOLE, ROUTER_LOGISTIC | ROUTER_BIAS, 1},
    {"qwen3_next", 0, QK_NORM_HEAD, 0, 0},
    {"qwen3_5", 0, QK_NORM_HEAD, 0, 0},
    {"qwen3_5_moe", 0, QK_NORM_HEAD, 0, 0},
    {"nemotron_h", 0, QK_NORM_NONE, ROUTER_LOGISTIC | ROUTER_BIAS, 0},
    {"falcon_h1", 0, QK_NORM_NONE, 0, 0},
    {"gpt_oss",
     QKV_BIASES | ROLE_BIT(ROLE_O_B) | ROLE_BIT(ROLE_GATE_B) | ROLE_BIT(ROLE_UP_B) |
         ROLE_BIT(ROLE_DOWN_B) | ROLE_BIT(ROLE_ROUTER_B),
     QK_NORM_NONE, 0, 0},
    {"phi3", 0, QK_NORM_NONE, 0, 0},
    {"gemma2", 0, QK_NORM_NONE, 0, 0},
    {"gemma4", 0, QK_NORM_HEAD, 0, 0},
    {"opt", QKV_BIASES | ROLE_BIT(ROLE_O_B) | ROLE_BIT(ROLE_UP_B) | ROLE_BIT(ROLE_DOWN_B),
     QK_NORM_NONE, 0, 0},
};

static const struct dummy_family *family_named(const char *name)
{
    for (size_t i = 0; i < sizeof dummy_families / sizeof *dummy_families; i++)
        if (strcmp(dummy_families[i].name, name) == 0)
            return &dummy_families[i];
    return NULL;
}

static int *int_at(struct shape *shape, size_t field)
{
    return (int *)(void *)((char *)shape + field);
}

static enum err line_fail(const struct dummy_config *c, const char *key, const char *what)
{
    return fail(ERR_INPUT, "%s:%d: %s: %s", c->path, c->line, key, what);
}

static enum err set_number(const struct dummy_config *c, const char *key, const char *value,
                           double min, double max, double *out)
{
    char *end;
    double x = strtod(value, &end);
    if (end == value || *end != 0)
        return line_fail(c, key, "expected a number");
    if (!(x >= min && x <= max))
        return fail(ERR_INPUT, "%s:%d: %s: %s is out of range [%g, %g]", c->path, c->line, key,
                    value, min, max);
    *out = x;
    return OK;
}

static enum err set_int(const struct dummy_config *c, const char *key, const char *value, int max,
                        int *out)
{
    double x = 0;
    TRY(set_number(c, key, value, 1, max, &x));
    if (x != (double)(int)x)
        return line_fail(c, key, "expected an integer");
    *out = (int)x;
    return OK;
}

static enum err set_pattern(struct dummy_config *c, const char *key, const char *value)
{
    int16_t file[SHAPE_LAYERS_MAX][2];
    c->shape.n_layers = family_nemotron_h_layers(&c->shape, value, file);
    return c->shape.n_layers > 0 ? OK : line_fail(c, key, "expected letters M, *, - and E");
}

static enum err set_value(struct dummy_config *c, const char *key, const char *value)
{
    double x = 0;
    if (strcmp(key, "family") == 0) {
        if (!family_named(value))
            return fail(ERR_INPUT,
                        "%s:%d: family: unsupported: %s (supported: llama, qwen2, qwen3, mixtral, "
                        "qwen2_moe, qwen3_moe, glm4_moe, deepseek_v3, glm4_moe_lite, minimax_m2, "
                        "qwen3_next, qwen3_5, qwen3_5_moe, nemotron_h, falcon_h1, gpt_oss, phi3, "
                        "gemma2, gemma4, opt)",
                        c->path, c->line, value);
        snprintf(c->shape.family, sizeof c->shape.family, "%s", value);
        c->has_family = 1;
        return OK;
    }
    if (strcmp(key, "rope_theta") == 0)
        return set_number(c, key, value, 1e-6, 1e12, &c->rope_theta);
    if (strcmp(key, "norm_eps") == 0)
        return set_number(c, key, value, 0, 0.1, &c->norm_eps);
    if (strcmp(key, "tied") == 0) {
        TRY(set_number(c, key, value, 0, 1, &x));
        c->tied = x != 0;
        return OK;
    }
    if (strcmp(key, "pattern") == 0)
        return set_pattern(c, key, value);
    if (strcmp(key, "dense_layers") == 0)
        return set_int(c, key, value, SHAPE_LAYERS_MAX, &c->dense_layers);
    for (int i = 0; i < N_INTS; i++)
        if (strcmp(key, ints[i].key) == 0)
            return set_int(c, key, value, ints[i].max, int_at(&c->shape, ints[i].field));
    return line_fail(c, key, "unknown key");
}

/* Removes blanks at both ends. */
static char *trim(char *s)
{
    char *end = s + strlen(s);
    while (end > s && strchr(" \t\r\n", end[-1]))
        *--end = 0;
    return s + strspn(s, " \t");
}

static enum err read_lines(struct dummy_config *c, FILE *f)
{
    char line[256];
    while (fgets(line, sizeof line, f)) {
        c->line++;
        if (c->line > LINES_MAX || (!strchr(line, '\n') && !feof(f)))
            return line_fail(c, "line",
                             "longer than 255 bytes, or too many lines: not a model config");
        line[strcspn(line, "#")] = 0;
        char *key = trim(line), *equals = strchr(key, '=');
        if (*key == 0)
            continue;
        if (!equals)
            return line_fail(c, key, "expected key = value");
        *equals = 0;
        TRY(set_value(c, trim(key), trim(equals + 1)));
    }
    return ferror(f) ? fail(ERR_IO, "%s: read: %s", c->path, strerror(errno)) : OK;
}

static enum err finish_shape(struct dummy_config *c)
{
    struct shape *s = &c->shape;
    if (!c->has_family)
        return fail(ERR_INPUT, "%s: family: missing", c->path);
    if (s->n_layers == 0)
        return fail(ERR_INPUT, "%s: layers: missing", c->path);
    for (int i = 0; i < N_INTS; i++)
        if (ints[i].required && *int_at(s, ints[i].field) == 0)
            return fail(ERR_INPUT, "%s: %s: missing", c->path, ints[i].key);
    const struct dummy_family *family = family_named(s->family);
    int opt = strcmp(s->family, "opt") == 0, gemma2 = strcmp(s->family, "gemma2") == 0;
    const int nemotron = strcmp(s->family, "nemotron_h") == 0;
    if (s->n_kv_heads == 0)
        s->n_kv_heads = s->n_heads;
    if (s->head_dim == 0 && s->dim % s->n_heads != 0)
        return fail(ERR_INPUT, "%s: dim: %d is not a multiple of heads, %d", c->path, s->dim,
                    s->n_heads);
    if (s->head_dim == 0)
        s->head_dim = s->dim / s->n_heads;
    const int most = s->latent_key > 0 ? SHAPE_HEAD_MAX : 2 * SHAPE_ROPE_MAX;
    if (!opt && (s->head_dim % 2 != 0 || s->head_dim > most))
        return fail(ERR_INPUT, "%s: head_dim: %d is odd or above %d", c->path, s->head_dim, most);
    s->embed_dim = s->dim;
    s->norm = opt ? NORM_LAYER : NORM_RMS;
    s->final_norm = 1;
    s->norm_eps = (float)c->norm_eps;
    s->act = opt ? ACT_RELU : gemma2 ? ACT_GELU_TANH : ACT_SILU;
    s->gated = !opt && !nemotron;
    s->route_alone = s->n_experts > 0 && strcmp(s->family, "qwen2_moe") != 0;
    const int states =
        strncmp(s->family, "qwen3_5", 7) == 0 || strcmp(s->family, "qwen3_next") == 0;
    s->shared_gate = s->shared_dim > 0 && (states || strcmp(s->family, "qwen2_moe") == 0);
    if (s->n_experts > 0) {
        s->route_logistic = (family->router & ROUTER_LOGISTIC) != 0;
        s->route_bias = (family->router & ROUTER_BIAS) != 0;
    }
    if (c->dense_layers > 0)
        memset(s->layer_dense, 1, (size_t)c->dense_layers);
    s->qk_norm = family->qk_norm;
    s->position = opt ? POSITION_LEARNED : POSITION_ROPE;
    s->position_offset = opt ? 2 : 0;
    if (opt || s->rope_dim == 0)
        s->rope_dim = opt ? 0 : s->head_dim / (1 + family->half_rotated);
    if (s->latent_key > 0)
        s->attn_scale = 1 / sqrtf((float)shape_query_dim(s, 0));
    family_defaults(s);
    if (gemma2)
        family_gemma2_shape(s);
    if (strcmp(s->family, "gpt_oss") == 0)
        family_gpt_oss_shape(s);
    if (strcmp(s->family, "gemma4") == 0)
        family_gemma4_shape(s);
    if (states)
        family_qwen3_next_shape(s);
    if (nemotron)
        family_nemotron_h_shape(s);
    if (strcmp(s->family, "falcon_h1") == 0)
        family_falcon_h1_shape(s);
    family_windows_end(s);
    rope_fill_plain(s, 0, c->rope_theta);
    const char *bad = shape_check(s);
    return bad ? fail(ERR_INPUT, "%s: %s: out of range", c->path, bad) : OK;
}

int dummy_is_config(const char *path)
{
    size_t n = strlen(path);
    return n > 4 && strcmp(path + n - 4, ".cfg") == 0;
}

static enum dtype dummy_dtype(void *impl, enum tensor_role role, int layer)
{
    (void)impl;
    (void)role;
    (void)layer;
    return DTYPE_BF16;
}

/* The generator's key of a tensor; a tied head has the embedding's. */
static uint64_t key_of(const struct dummy *d, enum tensor_role role, int layer)
{
    const char *name = role_name(role == ROLE_HEAD && d->tied ? ROLE_EMBED : role);
    return hash_bytes(name, (int64_t)strlen(name), (uint64_t)layer);
}

static enum err dummy_rows(void *impl, enum tensor_role role, int layer, int first, int n,
                           void *out)
{
    const struct dummy *d = impl;
    uint64_t key = key_of(d, role, layer);
    int n_all, k;
    role_dims(&d->shape, role, layer, &n_all, &k);
    for (int64_t i = 0; i < n; i++)
        dummy_row(&d->numbers, key, first + i, k, (uint16_t *)out + i * k);
    return OK;
}

static enum err dummy_panel_of(void *impl, enum tensor_role role, int layer, int first, int n,
                               void *panel)
{
    const struct dummy *d = impl;
    int n_all, k;
    role_dims(&d->shape, role, layer, &n_all, &k);
    dummy_panel(&d->numbers, key_of(d, role, layer), first, n, k, panel);
    return OK;
}

static enum err dummy_vector(void *impl, enum tensor_role role, int layer, int n, float *out)
{
    (void)impl;
    (void)layer;
    const role_set norms =
        ROLE_BIT(ROLE_NORM1_W) | ROLE_BIT(ROLE_NORM2_W) | ROLE_BIT(ROLE_FINAL_NORM_W) |
        ROLE_BIT(ROLE_POST1_W) | ROLE_BIT(ROLE_POST2_W) | ROLE_BIT(ROLE_Q_NORM_W) |
        ROLE_BIT(ROLE_K_NORM_W) | ROLE_BIT(ROLE_STATE_NORM_W) | ROLE_BIT(ROLE_ROUTER_NORM_W) |
        ROLE_BIT(ROLE_EXPERT_NORM_W) | ROLE_BIT(ROLE_EXPERT_POST_W) | ROLE_BIT(ROLE_SHARED_POST_W) |
        ROLE_BIT(ROLE_ROUTE_SCALE) | ROLE_BIT(ROLE_INPUTS_NORM_W) | ROLE_BIT(ROLE_INPUT_POST_W);
    const float x = norms & ROLE_BIT(role)    ? 1.0f
                    : role == ROLE_STATE_CONV ? 0.25f
                    : role == ROLE_STATE_A    ? -1.0f
                                              : 0.0f;
    for (int i = 0; i < n; i++)
        out[i] = x;
    return OK;
}

static void name_of(const char *path, struct dummy *d)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    size_t n = strlen(base);
    n -= dummy_is_config(base) ? 4 : 0;
    snprintf(d->name, sizeof d->name, "%.*s", (int)n, base);
}

static enum err provide(struct pack_provider *p, const struct shape *shape, int tied,
                        const char *path)
{
    const struct dummy_family *family = family_named(shape->family);
    if (!family)
        return fail(ERR_INPUT, "%s: family %s has no dummy weights", path, shape->family);
    struct dummy *d = calloc(1, sizeof *d);
    if (!d)
        return fail(ERR_FIT, "no memory for %s", path);
    d->shape = *shape;
    d->tied = tied;
    name_of(path, d);
    dummy_numbers_init(&d->numbers);
    *p = (struct pack_provider){
        .shape = *shape,
        .roles = family_roles(shape, family->biases),
        .tied = tied,
        .dummy = DUMMY_GENERATION,
        .name = d->name,
        .impl = d,
        .dtype = dummy_dtype,
        .rows = dummy_rows,
        .panel = dummy_panel_of,
        .vector = dummy_vector,
    };
    return OK;
}

enum err dummy_open(struct pack_provider *p, const char *path)
{
    struct dummy_config c = {.path = path, .tied = 1, .rope_theta = 10000, .norm_eps = 1e-5};
    *p = (struct pack_provider){0};
    const char *why;
    FILE *f = regular_open(path, &why);
    if (!f)
        return fail(file_open_code(), "%s: open: %s", path, why);
    enum err e = read_lines(&c, f);
    fclose(f);
    TRY(e);
    TRY(finish_shape(&c));
    return provide(p, &c.shape, c.tied, path);
}

enum err dummy_check(const struct model *m)
{
    if (m->dummy == DUMMY_GENERATION)
        return OK;
    return fail(ERR_INPUT, "%s: the dummy weights have another version (pack the model again)",
                m->path);
}

enum err dummy_of_model(struct pack_provider *p, const struct model *m)
{
    *p = (struct pack_provider){0};
    TRY(dummy_check(m));
    return provide(p, &m->shape, m->tied, m->name);
}

void dummy_close(struct pack_provider *p)
{
    free(p->impl);
    *p = (struct pack_provider){0};
}
