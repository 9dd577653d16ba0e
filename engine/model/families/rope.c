/* engine/model/families/rope.c - see rope.h.
 *
 * Note: frequencies are computed in f32, in the order of the libraries that the models were made
 * with, because positions multiply any error in the last bit. */
#include "engine/model/families/rope.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/families/family.h"

#define PI    3.14159265358979323846
#define STILL 1e30f // divisors from here on mean that a pair does not turn

struct rope rope_plain(double theta)
{
    return (struct rope){
        .theta = theta, .partial = 1, .beta_fast = 32, .beta_slow = 1, .truncate = 1};
}

/* ---- config.json ---- */

static enum err kind_of(struct rope *r, const struct source *s, const char *key, const char *type)
{
    static const struct {
        const char *name;
        enum rope_kind kind;
    } kinds[] = {
        {"default", ROPE_PLAIN}, {"linear", ROPE_LINEAR}, {"dynamic", ROPE_DYNAMIC},
        {"llama3", ROPE_LLAMA3}, {"yarn", ROPE_YARN},     {"longrope", ROPE_LONG},
        {"su", ROPE_LONG},       {"none", ROPE_PLAIN},    {"proportional", ROPE_PROPORTIONAL}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(type, kinds[i].name) == 0) {
            r->kind = kinds[i].kind;
            return OK;
        }
    return family_fail(
        s, "", key, "unsupported: %s (supported: default, linear, dynamic, llama3, yarn, longrope)",
        type);
}

/* Reads divisors, one per pair. */
static enum err read_factors(struct rope *r, const struct source *s, const char *key, float *to)
{
    double factors[SHAPE_ROPE_MAX];
    int64_t n = 0;
    int found = 0;
    TRY(source_float_list(s, key, factors, SHAPE_ROPE_MAX, &n, &found));
    for (int i = 0; i < n; i++) {
        if (!(factors[i] > 0 && factors[i] < 1e6))
            return family_fail(s, "", key, "number %d is out of range", i);
        to[i] = (float)factors[i];
    }
    r->n_factors = found ? (int)n : r->n_factors;
    return OK;
}

/* Reads the members of one object. */
static enum err read_object(struct rope *r, const struct source *s, const char *object)
{
    const struct {
        const char *key;
        double *to;
    } numbers[] = {{"rope_theta", &r->theta},
                   {"partial_rotary_factor", &r->partial},
                   {"factor", &r->factor},
                   {"alpha", &r->alpha},
                   {"original_max_position_embeddings", &r->original},
                   {"attention_factor", &r->attention_factor},
                   {"low_freq_factor", &r->low_freq},
                   {"high_freq_factor", &r->high_freq},
                   {"beta_fast", &r->beta_fast},
                   {"beta_slow", &r->beta_slow},
                   {"mscale", &r->mscale},
                   {"mscale_all_dim", &r->mscale_all_dim}};
    char key[100], type[32] = "";
    static const char *const types[] = {"type", "rope_type"};
    for (int i = 0; i < 2; i++) {
        snprintf(key, sizeof key, "%s.%s", object, types[i]);
        TRY(family_str(s, "", key, type, sizeof type));
    }
    if (type[0])
        TRY(kind_of(r, s, key, type));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(key, sizeof key, "%s.%s", object, numbers[i].key);
        TRY(family_float(s, "", key, 0, 1e12, numbers[i].to));
    }
    snprintf(key, sizeof key, "%s.truncate", object);
    TRY(family_flag(s, "", key, &r->truncate));
    snprintf(key, sizeof key, "%s.short_factor", object);
    TRY(read_factors(r, s, key, r->short_factor));
    int n_short = r->n_factors;
    snprintf(key, sizeof key, "%s.long_factor", object);
    TRY(read_factors(r, s, key, r->long_factor));
    if (r->n_factors != n_short)
        return family_fail(s, "", key, "has %d numbers, short_factor %d", r->n_factors, n_short);
    return OK;
}

enum err rope_read_hf(struct rope *r, const struct source *s, const char *theta_key,
                      const char *partial_key)
{
    TRY(family_float(s, "", theta_key, 1e-6, 1e12, &r->theta));
    TRY(family_float(s, "", partial_key, 0, 1, &r->partial));
    TRY(family_float(s, "", "original_max_position_embeddings", 0, 1e12, &r->original));
    TRY(read_object(r, s, "rope_scaling"));
    TRY(read_object(r, s, "rope_parameters"));
    TRY(read_object(r, s, "rope_parameters.full_attention")); // gemma3 has two objects
    if (!(r->theta > 0) || !(r->partial > 0 && r->partial <= 1))
        return family_fail(s, "", r->theta > 0 ? partial_key : theta_key, "is out of range");
    return OK;
}

/* ---- GGUF ---- */

/* Reads a tensor of n positive f32. */
static enum err read_divisors(const struct source *s, const char *name, int n, float *to,
                              int *found)
{
    const struct source_tensor *t = source_find(s, name);
    *found = t != NULL;
    if (!t)
        return OK;
    if (t->dtype != DTYPE_F32 || t->n_dims != 1 || t->dims[0] != n)
        return fail(ERR_INPUT, "%s: tensor %s: expected [%d] f32, the file has [%lld] %s", s->path,
                    name, n, (long long)t->dims[0], dtype_info(t->dtype)->name);
    TRY(source_read(s, t, 0, (int64_t)sizeof(float) * n, to));
    for (int i = 0; i < n; i++)
        if (!isfinite(to[i]) || to[i] <= 0)
            return fail(ERR_INPUT, "%s: tensor %s: number %d is not positive", s->path, name, i);
    return OK;
}

enum err rope_read_gguf(struct rope *r, const struct source *s, const char *name, int rope_dim)
{
    char type[32] = "";
    double legacy = 1, attn_factor = 0;
    int n_long = 0, n_short = 0;
    TRY(family_float(s, name, ".rope.freq_base", 1e-6, 1e12, &r->theta));
    TRY(family_str(s, name, ".rope.scaling.type", type, sizeof type));
    TRY(family_float(s, name, ".rope.scaling.factor", 0, 1e12, &r->factor));
    TRY(family_float(s, name, ".rope.scale_linear", 0, 1e12, &legacy));
    TRY(family_float(s, name, ".rope.scaling.original_context_length", 0, 1e12, &r->original));
    TRY(family_float(s, name, ".rope.scaling.attn_factor", 0, 1e6, &attn_factor));
    TRY(family_float(s, name, ".rope.scaling.yarn_log_multiplier", 0, 1e6, &r->mscale_all_dim));
    TRY(family_float(s, name, ".rope.scaling.yarn_beta_fast", 0, 1e12, &r->beta_fast));
    TRY(family_float(s, name, ".rope.scaling.yarn_beta_slow", 0, 1e12, &r->beta_slow));
    if (type[0])
        TRY(kind_of(r, s, ".rope.scaling.type", type));
    else if (legacy > 0 && legacy != 1) { // files older than rope.scaling.*
        r->kind = ROPE_LINEAR;
        r->factor = legacy;
    }
    TRY(read_divisors(s, "rope_factors_short.weight", rope_dim / 2, r->short_factor, &n_short));
    TRY(read_divisors(s, "rope_factors_long.weight", rope_dim / 2, r->long_factor, &n_long));
    if (n_short && n_long) {
        r->kind = ROPE_LONG;
        r->n_factors = rope_dim / 2;
    }
    if (r->kind == ROPE_LONG)
        r->attention_factor = attn_factor;
    else if (attn_factor > 0 && r->kind == ROPE_YARN)
        r->mscale = attn_factor; // multiplies yarn_scale()'s own factor
    if (r->kind == ROPE_YARN)
        TRY(family_float(s, name, ".rope.scaling.yarn_attn_factor", 0, 1e6, &r->attention_factor));
    return OK;
}

enum err rope_divide(const struct source *s, struct shape *shape)
{
    float divisors[SHAPE_ROPE_MAX];
    int n = shape_rope_width(shape, 0) / 2, found = 0;
    TRY(read_divisors(s, "rope_freqs.weight", n, divisors, &found));
    for (int i = 0; i < n && found; i++)
        for (int r = 0; r < SHAPE_ROPES; r++) {
            float *inv_freq = &shape->ropes[r].inv_freq[i];
            *inv_freq = divisors[i] >= STILL ? 0 : *inv_freq / divisors[i];
        }
    return OK;
}

/* ---- angles ---- */

static float plain_freq(const struct rope *r, int i, int rope_dim)
{
    return 1.0f / powf((float)r->theta, (float)(2 * i) / (float)rope_dim);
}

/* As if the whole head turned, but its last pairs stand still. */
static float proportional_freq(const struct rope *r, int i, int dim)
{
    const int turned = (int)floor(r->partial * dim / 2);
    return i < turned ? plain_freq(r, i, dim) / (r->factor > 0 ? (float)r->factor : 1) : 0;
}

static float llama3_freq(const struct rope *r, float inv)
{
    const float two_pi = (float)(2 * PI), original = (float)r->original;
    const float factor = (float)r->factor, low = (float)r->low_freq;
    const float wavelen = two_pi / inv;
    const float wavelen_low = (float)(r->original / r->low_freq);
    const float wavelen_high = (float)(r->original / r->high_freq);
    float scaled = wavelen > wavelen_low ? inv / factor : inv;
    if (wavelen >= wavelen_high && wavelen <= wavelen_low) {
        float smooth = (original / wavelen - low) / (float)(r->high_freq - r->low_freq);
        scaled = (1 - smooth) * scaled / factor + smooth * scaled;
    }
    return scaled;
}

/* The pair that makes `turns` turns over the original context. */
static double yarn_pair(const struct rope *r, int dim, double turns)
{
    return dim * log(r->original / (turns * 2 * PI)) / (2 * log(r->theta));
}

static float yarn_freq(const struct rope *r, int i, int dim)
{
    double low = yarn_pair(r, dim, r->beta_fast), high = yarn_pair(r, dim, r->beta_slow);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, dim - 1);
    high = low == high ? high + 0.001 : high;
    float ramp = fminf(fmaxf(((float)i - (float)low) / (float)(high - low), 0), 1);
    float period = powf((float)r->theta, (float)(2 * i) / (float)dim), keep = 1 - ramp;
    return 1.0f / ((float)r->factor * period) * (1 - keep) + 1.0f / period * keep;
}

/* The factor of cosines and sines, which grows with the context (YaRN, equation 22). */
static double yarn_scale(const struct rope *r, int is_gguf)
{
    double grown = r->factor > 1 ? log(r->factor) * 0.1 : 0;
    if (r->attention_factor > 0)
        return r->attention_factor;
    if (is_gguf)
        return (grown + 1) * (r->mscale > 0 ? r->mscale : 1) / (r->mscale_all_dim * grown + 1);
    if (r->mscale > 0 && r->mscale_all_dim > 0)
        return (r->mscale * grown + 1) / (r->mscale_all_dim * grown + 1);
    return grown + 1;
}

static double long_scale(const struct rope *r)
{
    if (r->attention_factor > 0)
        return r->attention_factor;
    return r->factor > 1 ? sqrt(1 + log(r->factor) / log(r->original)) : 1;
}

/* Checks that the parameters required by the kind are present. */
static enum err check(const struct rope *r, const struct source *s, const struct shape *shape)
{
    const char *where = s->kind == SOURCE_HF ? "rope_scaling" : "rope.scaling";
    const int stretched = r->kind == ROPE_LINEAR || r->kind == ROPE_LLAMA3 || r->kind == ROPE_YARN;
    if (stretched && !(r->factor > 0))
        return family_fail(s, "", where, "factor: missing or 0");
    if (r->kind == ROPE_LLAMA3 && (!(r->original > 0) || !(r->low_freq > 0)))
        return family_fail(s, "", where, "%s: missing or 0",
                           r->original > 0 ? "low_freq_factor"
                                           : "original_max_position_embeddings");
    if (r->kind == ROPE_LLAMA3 && !(r->high_freq > r->low_freq))
        return family_fail(s, "", where, "high_freq_factor is not above low_freq_factor");
    if (r->kind == ROPE_YARN && !(r->theta > 1 && r->beta_fast > 0 && r->beta_slow > 0))
        return family_fail(s, "", where, "beta_fast, beta_slow: out of range");
    if (r->kind == ROPE_DYNAMIC && r->alpha > 0 && shape->rope_dim < 4)
        return family_fail(s, "", where, "alpha: a head of %d numbers is too small for it",
                           shape->rope_dim);
    if (r->kind == ROPE_LONG && r->n_factors != shape->rope_dim / 2)
        return family_fail(s, "", where, "long_factor has %d numbers, expected %d", r->n_factors,
                           shape->rope_dim / 2);
    return OK;
}

void rope_fill_plain(struct shape *shape, int table, double theta)
{
    const struct rope r = rope_plain(theta);
    shape->ropes[table].scale = 1;
    const int dim = shape_rope_width(shape, table);
    for (int i = 0; i < dim / 2; i++)
        shape->ropes[table].inv_freq[i] = plain_freq(&r, i, dim);
}

enum err rope_fill_windows(const struct source *s, const char *name, struct shape *shape,
                           double theta)
{
    const char *const object = "rope_parameters.sliding_attention";
    char type[32] = "default";
    if (shape->rope_long > 0)
        return family_fail(s, "", "rope_scaling", "unsupported: longrope, in %s models",
                           shape->family);
    if (s->kind == SOURCE_GGUF) {
        TRY(family_float(s, name, ".rope.freq_base_swa", 1e-6, 1e12, &theta));
    } else {
        TRY(family_float(s, "", "rope_local_base_freq", 1e-6, 1e12, &theta));
        TRY(family_float(s, "", "rope_parameters.sliding_attention.rope_theta", 1e-6, 1e12,
                         &theta));
        TRY(family_str(s, "", "rope_parameters.sliding_attention.rope_type", type, sizeof type));
    }
    if (strcmp(type, "default") != 0)
        return family_fail(s, "", object, "unsupported rope_type: %s", type);
    rope_fill_plain(shape, 1, theta);
    for (int i = 0; i < shape->n_layers; i++)
        shape->layer_rope[i] = shape->layer_window[i] > 0;
    return OK;
}

enum err rope_fill(const struct rope *from, const struct source *s, struct shape *shape)
{
    struct rope r = *from;
    TRY(check(&r, s, shape));
    if (r.kind == ROPE_DYNAMIC && r.alpha > 0)
        r.theta *= pow(r.alpha, shape->rope_dim / (shape->rope_dim - 2.0));
    if (!(r.original > 0))
        r.original = shape->context;
    if (r.kind == ROPE_LONG && !(r.factor > 0))
        r.factor = shape->context / r.original;
    for (int t = 0; t < SHAPE_ROPES; t++) {
        struct shape_rope *to = &shape->ropes[t];
        to->scale = 1;
        if (r.kind == ROPE_YARN)
            to->scale = (float)yarn_scale(&r, s->kind == SOURCE_GGUF);
        if (r.kind == ROPE_LONG)
            to->scale = (float)long_scale(&r);
        const int dim = shape_rope_width(shape, t);
        for (int i = 0; i < dim / 2; i++) {
            float inv = plain_freq(&r, i, dim);
            if (r.kind == ROPE_PROPORTIONAL)
                inv = proportional_freq(&r, i, dim);
            if (r.kind == ROPE_LINEAR)
                inv /= (float)r.factor;
            if (r.kind == ROPE_LLAMA3)
                inv = llama3_freq(&r, inv);
            if (r.kind == ROPE_YARN)
                inv = yarn_freq(&r, i, dim);
            if (r.kind == ROPE_LONG)
                inv = 1.0f / ((t ? r.long_factor : r.short_factor)[i] *
                              powf((float)r.theta, (float)(2 * i) / (float)dim));
            to->inv_freq[i] = inv;
        }
    }
    if (r.kind == ROPE_LONG && r.original < shape->context)
        shape->rope_long = (int)r.original;
    if (r.kind == ROPE_YARN) // max_position_embeddings often is the original context
        shape->context = (int)fmin(fmax(shape->context, r.factor * r.original), 1 << 27);
    return OK;
}
