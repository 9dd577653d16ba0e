/* engine/model/families/family_gemma2.c - gemma2: gemma with norms around attention and MLP, soft
 * caps of scores and logits, and a window in every other layer, starting with the first.
 *
 * Owns: gemma2's defaults. Note: without the keys for caps and window the numbers below apply; only
 * null means none. GGUF files lack the scale of scores (the 27B has another than the others). */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

#include <math.h>

#define ATTN_SOFTCAP  50
#define LOGIT_SOFTCAP 30
#define WINDOW        4096
#define EVERY         2
#define QUERY_SCALAR  256 // config.json
#define LAYERS_27B    46

static const struct family_names names_hf = {
    "layers.",
    {HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_INPUT_NORM, HF_AROUND_NORMS, HF_ATTENTION, HF_GATED_MLP}};
static const struct family_names names_gguf = {
    "blk.", {GGUF_ENDS, GGUF_NORMS, GGUF_POST_NORMS, GGUF_QKV, GGUF_O, GGUF_GATE, GGUF_MLP}};

static void defaults(struct shape *shape)
{
    shape->norm_place = NORM_AROUND;
    shape->attn_softcap = ATTN_SOFTCAP;
    shape->logit_softcap = LOGIT_SOFTCAP;
    shape->embed_scale = sqrtf((float)shape->dim);
    if (shape->n_layers == LAYERS_27B)
        shape->attn_scale = (float)(1 / sqrt((double)shape->dim / shape->n_heads));
}

void family_gemma2_shape(struct shape *shape)
{
    defaults(shape);
    family_windows(shape, WINDOW, EVERY);
}

static enum err read_cap(const struct source *s, const char *name, const char *key, float *cap)
{
    double value = source_null(s, key) ? 0 : (double)*cap;
    TRY(family_float(s, name, key, 1e-3, 1e5, &value));
    *cap = (float)value;
    return OK;
}

enum err family_gemma2_read(struct family_model *m, const struct source *s, const char *name)
{
    struct shape *shape = &m->shape;
    const int gguf = s->kind == SOURCE_GGUF;
    double scalar = QUERY_SCALAR;
    shape->gated = 1;
    shape->norm_place = NORM_AROUND;
    m->plus_one = ROLE_BIT(ROLE_NORM1_W) | ROLE_BIT(ROLE_NORM2_W) | ROLE_BIT(ROLE_POST1_W) |
                  ROLE_BIT(ROLE_POST2_W) | ROLE_BIT(ROLE_FINAL_NORM_W);
    TRY(family_read_dialect(
        m, s, name,
        &(struct family_dialect){.hf = &names_hf,
                                 .gguf = &names_gguf,
                                 .act_key = "hidden_activation",
                                 .act = "gelu_pytorch_tanh",
                                 .tied = 1,
                                 .unpaired = 1,
                                 .windows = WINDOWS_HAVE | WINDOWS_LISTED | WINDOWS_SURE,
                                 .window = WINDOW,
                                 .every = EVERY}));
    defaults(shape);
    TRY(read_cap(s, name, gguf ? ".attn_logit_softcapping" : "attn_logit_softcapping",
                 &shape->attn_softcap));
    TRY(read_cap(s, name, gguf ? ".final_logit_softcapping" : "final_logit_softcapping",
                 &shape->logit_softcap));
    if (gguf)
        return OK;
    TRY(family_float(s, "", "query_pre_attn_scalar", 1e-6, 1e6, &scalar));
    shape->attn_scale = (float)(1 / sqrt(scalar));
    return OK;
}
