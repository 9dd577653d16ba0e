/* engine/dummy.c - see dummy.h. Owns the parsing of model configs and the pseudo-random weights.
 *
 * A newcomer would miss: a number is the sum of four 16-bit uniforms out of one hash, not a true
 * normal: no libm, so the same bits everywhere, and a billion of them in seconds. */
#include "engine/dummy.h"

#include "engine/family.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DUMMY_STD   0.02f
#define SUM_MEAN    (2 * 65535) // of four uniforms of 0 .. 65535
#define SUM_STD     37837.23f   // 65536 / sqrt(3)
#define LINES_MAX   1000
#define CONTEXT_MAX (1 << 27)

struct dummy {
    struct shape shape;
    int tied;
    char name[NAME_MAX + 1];
};

/* What the file says; strings are checked at once. */
struct dummy_config {
    const char *path;
    int line;
    int has_family;
    int tied;
    double rope_theta, norm_eps;
    struct shape shape;
};

static const struct dummy_int {
    const char *key;
    int max, required;
    size_t field;
} ints[] = {
    {"dim", SHAPE_DIM_MAX, 1, offsetof(struct shape, dim)},
    {"layers", SHAPE_LAYERS_MAX, 1, offsetof(struct shape, n_layers)},
    {"heads", SHAPE_DIM_MAX, 1, offsetof(struct shape, n_heads)},
    {"kv_heads", SHAPE_DIM_MAX, 0, offsetof(struct shape, n_kv_heads)},
    {"head_dim", 2 * SHAPE_ROPE_MAX, 0, offsetof(struct shape, head_dim)},
    {"ffn", SHAPE_DIM_MAX, 1, offsetof(struct shape, ffn_dim)},
    {"vocab", SHAPE_VOCAB_MAX, 1, offsetof(struct shape, vocab)},
    {"context", CONTEXT_MAX, 1, offsetof(struct shape, context)},
};
#define N_INTS ((int)(sizeof ints / sizeof *ints))

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

static enum err set_value(struct dummy_config *c, const char *key, const char *value)
{
    double x = 0;
    if (strcmp(key, "family") == 0) {
        if (strcmp(value, "llama") != 0 && strcmp(value, "opt") != 0)
            return fail(ERR_INPUT, "%s:%d: family: unsupported: %s (have llama, opt)", c->path,
                        c->line, value);
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
    for (int i = 0; i < N_INTS; i++) {
        if (strcmp(key, ints[i].key) != 0)
            continue;
        TRY(set_number(c, key, value, 1, ints[i].max, &x));
        if (x != (double)(int)x)
            return line_fail(c, key, "expected an integer");
        *int_at(&c->shape, ints[i].field) = (int)x;
        return OK;
    }
    return line_fail(c, key, "unknown key");
}

/* Cuts blanks off both ends. */
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
            return line_fail(c, "line", "too long or too many: not a model config");
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
    for (int i = 0; i < N_INTS; i++)
        if (ints[i].required && *int_at(s, ints[i].field) == 0)
            return fail(ERR_INPUT, "%s: %s: missing", c->path, ints[i].key);
    int opt = strcmp(s->family, "opt") == 0;
    if (s->n_kv_heads == 0)
        s->n_kv_heads = s->n_heads;
    if (s->head_dim == 0 && s->dim % s->n_heads != 0)
        return fail(ERR_INPUT, "%s: dim: %d is not a multiple of heads, %d", c->path, s->dim,
                    s->n_heads);
    if (s->head_dim == 0)
        s->head_dim = s->dim / s->n_heads;
    if (!opt && (s->head_dim % 2 != 0 || s->head_dim > 2 * SHAPE_ROPE_MAX))
        return fail(ERR_INPUT, "%s: head_dim: %d is odd or above %d", c->path, s->head_dim,
                    2 * SHAPE_ROPE_MAX);
    s->embed_dim = s->dim;
    s->norm = opt ? NORM_LAYER : NORM_RMS;
    s->final_norm = 1;
    s->norm_eps = (float)c->norm_eps;
    s->act = opt ? ACT_RELU : ACT_SILU_GATED;
    s->position = opt ? POSITION_LEARNED : POSITION_ROPE;
    s->position_offset = opt ? 2 : 0;
    s->rope_dim = opt ? 0 : s->head_dim;
    family_inv_freq(s, c->rope_theta);
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

static enum err dummy_rows(void *impl, enum tensor_role role, int layer, int first, int n,
                           void *out)
{
    const struct dummy *d = impl;
    const char *name = role_name(role == ROLE_HEAD && d->tied ? ROLE_EMBED : role);
    uint64_t key = hash_bytes(name, (int64_t)strlen(name), (uint64_t)layer);
    uint16_t *to = out;
    int n_all, k;
    role_dims(&d->shape, role, &n_all, &k);
    uint64_t place = key + (uint64_t)first * (uint64_t)k;
    for (int64_t i = 0; i < (int64_t)n * k; i++) {
        uint64_t h = mix64(place + (uint64_t)i);
        int sum = (int)((h & 0xffff) + (h >> 16 & 0xffff) + (h >> 32 & 0xffff) + (h >> 48));
        to[i] = f32_to_bf16((float)(sum - SUM_MEAN) * (DUMMY_STD / SUM_STD));
    }
    return OK;
}

static enum err dummy_vector(void *impl, enum tensor_role role, int layer, int n, float *out)
{
    (void)impl;
    (void)layer;
    int weight = role == ROLE_NORM1_W || role == ROLE_NORM2_W || role == ROLE_FINAL_NORM_W;
    for (int i = 0; i < n; i++)
        out[i] = weight ? 1.0f : 0.0f;
    return OK;
}

static void name_of(const char *path, struct dummy *d)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    size_t n = strlen(base);
    n -= dummy_is_config(base) ? 4 : 0;
    snprintf(d->name, sizeof d->name, "%.*s", (int)n, base);
}

enum err dummy_open(struct pack_provider *p, const char *path)
{
    const uint32_t biases = ROLE_BIT(ROLE_Q_B) | ROLE_BIT(ROLE_K_B) | ROLE_BIT(ROLE_V_B) |
                            ROLE_BIT(ROLE_O_B) | ROLE_BIT(ROLE_UP_B) | ROLE_BIT(ROLE_DOWN_B);
    struct dummy_config c = {.path = path, .tied = 1, .rope_theta = 10000, .norm_eps = 1e-5};
    *p = (struct pack_provider){0};
    FILE *f = fopen(path, "re");
    if (!f)
        return fail(ERR_INPUT, "%s: open: %s", path, strerror(errno));
    enum err e = read_lines(&c, f);
    fclose(f);
    TRY(e);
    TRY(finish_shape(&c));
    struct dummy *d = calloc(1, sizeof *d);
    if (!d)
        return fail(ERR_FIT, "memory: no room for %s", path);
    d->shape = c.shape;
    d->tied = c.tied;
    name_of(path, d);
    uint32_t optional = strcmp(c.shape.family, "opt") == 0 ? biases : 0;
    *p = (struct pack_provider){
        .shape = c.shape,
        .roles = family_roles(&c.shape, optional),
        .tied = c.tied,
        .dummy = 1,
        .name = d->name,
        .impl = d,
        .dtype = dummy_dtype,
        .rows = dummy_rows,
        .vector = dummy_vector,
    };
    return OK;
}

void dummy_close(struct pack_provider *p)
{
    free(p->impl);
    *p = (struct pack_provider){0};
}
