/* engine/model/families/family_apertus.c - apertus: llama with norms of every head of q and k, and
 * an MLP without a gate whose activation, xIELU, has two learned numbers in each layer.
 *
 * Owns: apertus' tensor names, where files hold these numbers. Note: they are stored as softplus'
 * argument; files also have the class's constants beta and eps. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"
#include "engine/model/families/rope.h"

#include <math.h>
#include <stdio.h>

#define THETA 12e6
#define BETA  0.5
#define MOST  100 // of a stored number

static const struct family_names names_hf = {
    "layers.",
    {HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_ATTENTION, HF_QK_NORM,
     [ROLE_NORM1_W] = "attention_layernorm.weight", [ROLE_NORM2_W] = "feedforward_layernorm.weight",
     [ROLE_UP] = "mlp.up_proj.weight", [ROLE_DOWN] = "mlp.down_proj.weight"}};
static const struct family_names names_gguf = {
    "blk.", {GGUF_ENDS, GGUF_NORMS, GGUF_QKV, GGUF_O, GGUF_QK_NORM, GGUF_MLP}};

/* Without RoPE's parameters in config.json. */
static const struct rope usual_rope = {.kind = ROPE_LLAMA3,
                                       .theta = THETA,
                                       .partial = 1,
                                       .factor = 8,
                                       .original = 8192,
                                       .low_freq = 1,
                                       .high_freq = 4};

/* The numbers of xIELU, by their names in files. */
enum { ALPHA_P, ALPHA_N, BETA_OF, EPS, N_NUMBERS };
static const char *const numbers[N_NUMBERS] = {"alpha_p", "alpha_n", "beta", "eps"};
typedef double xielu_numbers[N_NUMBERS];

/* One number of all layers; NaN where a file has none. */
static enum err read_gguf_number(const struct source *s, int number, int n_layers,
                                 xielu_numbers *to)
{
    double list[SHAPE_LAYERS_MAX];
    char key[40];
    int64_t n = 0;
    int found = 0;
    snprintf(key, sizeof key, "xielu.%s", numbers[number]);
    TRY(source_float_list(s, key, list, SHAPE_LAYERS_MAX, &n, &found));
    if (n > 1 && n != n_layers)
        return family_fail(s, "", key, "has %lld entries, expected %d", (long long)n, n_layers);
    for (int i = 0; i < n_layers && n > 0; i++)
        to[i][number] = list[n > 1 ? i : 0];
    return OK;
}

static double softplus(double x)
{
    return log1p(exp(-fabs(x))) + (x > 0 ? x : 0);
}

/* What is missing is NaN and fails, except for the constants. */
static enum err set_alpha(const struct source *s, int layer, const double *of, float alpha[2])
{
    for (int i = 0; i <= ALPHA_N; i++)
        if (!(fabs(of[i]) <= MOST))
            return family_fail(s, "", "xielu", "%s of layer %d: missing or out of range",
                               numbers[i], layer);
    if (fabs(of[BETA_OF] - BETA) > 1e-6 || fabs(of[EPS]) > 1e-5)
        return family_fail(s, "", "xielu", "unsupported: beta %g, eps %g in layer %d", of[BETA_OF],
                           of[EPS], layer);
    alpha[0] = (float)softplus(of[ALPHA_P]);
    alpha[1] = (float)(BETA + softplus(of[ALPHA_N]));
    return OK;
}

static enum err read_alphas(const struct family_model *m, const struct source *s,
                            struct shape *shape)
{
    xielu_numbers of[SHAPE_LAYERS_MAX];
    char name[160];
    for (int i = 0; i < shape->n_layers; i++) {
        of[i][ALPHA_P] = of[i][ALPHA_N] = NAN;
        of[i][BETA_OF] = BETA;
        of[i][EPS] = 0;
    }
    for (int number = 0; number < N_NUMBERS; number++) {
        if (s->kind == SOURCE_GGUF)
            TRY(read_gguf_number(s, number, shape->n_layers, of));
        for (int i = 0; i < shape->n_layers && s->kind == SOURCE_HF; i++) {
            snprintf(name, sizeof name, "%slayers.%d.mlp.act_fn.%s", m->prefix, i, numbers[number]);
            TRY(family_number(s, name, &of[i][number]));
        }
    }
    for (int i = 0; i < shape->n_layers; i++)
        TRY(set_alpha(s, i, of[i], shape->layer_alpha[i]));
    return OK;
}

enum err family_apertus_read(struct family_model *m, const struct source *s, const char *name)
{
    m->shape.qk_norm = QK_NORM_HEAD;
    m->shape.norm_eps = 1e-5f;
    TRY(family_read_dialect(m, s, name,
                            &(struct family_dialect){.hf = &names_hf,
                                                     .gguf = &names_gguf,
                                                     .act = "xielu",
                                                     .theta = THETA,
                                                     .rope = &usual_rope,
                                                     .unpaired = 1}));
    return m->shape.act == ACT_XIELU ? read_alphas(m, s, &m->shape) : OK;
}
