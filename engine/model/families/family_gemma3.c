/* engine/model/families/family_gemma3.c - gemma3, text: gemma with norms around attention and MLP,
 * norms of q and k, and layers with a window and RoPE angles of their own.
 *
 * Owns: the choice of these layers; tensor names; where a model with a vision tower has its text
 * part. Note: GGUF files lack the layers with windows (all but every sixth) and the scale of scores
 * (the 27B has another than the others). */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"
#include "engine/model/families/rope.h"

#include <math.h>
#include <string.h>

#define EVERY       6 // default: every sixth layer has no window
#define LOCAL_THETA 10000
#define SCALAR      256 // default scale of scores, for config.json
#define LAYERS_27B  62
#define TEXT        "text_config" // in models with a vision tower

static const struct family_names names_hf = {"layers.",
                                             {HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_INPUT_NORM,
                                              HF_AROUND_NORMS, HF_ATTENTION, HF_QK_NORM,
                                              HF_GATED_MLP}};
static const struct family_names names_gguf = {
    "blk.",
    {GGUF_ENDS, GGUF_NORMS, GGUF_POST_NORMS, GGUF_QKV, GGUF_O, GGUF_QK_NORM, GGUF_GATE, GGUF_MLP}};

static enum err read_text(struct family_model *m, const struct source *s, const char *name,
                          const char *const prefixes[2])
{
    struct shape *shape = &m->shape;
    double scalar = s->kind == SOURCE_HF ? SCALAR : 0;
    shape->gated = 1;
    shape->norm_place = NORM_AROUND;
    shape->qk_norm = QK_NORM_HEAD;
    m->plus_one = ROLE_BIT(ROLE_NORM1_W) | ROLE_BIT(ROLE_NORM2_W) | ROLE_BIT(ROLE_POST1_W) |
                  ROLE_BIT(ROLE_POST2_W) | ROLE_BIT(ROLE_Q_NORM_W) | ROLE_BIT(ROLE_K_NORM_W) |
                  ROLE_BIT(ROLE_FINAL_NORM_W);
    TRY(family_read_dialect(
        m, s, name,
        &(struct family_dialect){.hf = &names_hf,
                                 .gguf = &names_gguf,
                                 .act_key = "hidden_activation",
                                 .act = "gelu_pytorch_tanh",
                                 .theta = 1e6,
                                 .tied = 1,
                                 .unpaired = 1,
                                 .windows = WINDOWS_HAVE | WINDOWS_LISTED | WINDOWS_EVERY,
                                 .window = FAMILY_WINDOW,
                                 .every = EVERY,
                                 .prefixes = {prefixes[0], prefixes[1]}}));
    TRY(rope_fill_windows(s, name, shape, LOCAL_THETA));
    if (s->kind == SOURCE_HF)
        TRY(family_float(s, "", "query_pre_attn_scalar", 1e-6, 1e6, &scalar));
    else if (shape->n_layers == LAYERS_27B)
        scalar = (double)shape->dim / shape->n_heads;
    shape->attn_scale = scalar > 0 ? (float)(1 / sqrt(scalar)) : 0;
    shape->embed_scale = sqrtf((float)shape->dim);
    return OK;
}

enum err family_gemma3_read(struct family_model *m, const struct source *s, const char *name)
{
    static const char *const prefixes[2] = {"model.", ""};
    return read_text(m, s, name, prefixes);
}

/* The text part of a model with vision; other keys are ignored. Published files omit the class's
 * defaults. */
enum err family_gemma3_vision_read(struct family_model *m, const struct source *s, const char *name)
{
    static const char *const prefixes[2] = {"language_model.model.", "model.language_model."};
    struct source text = *s;
    char type[64] = "";
    int64_t window = 0;
    int found = 0;
    text.section = TEXT;
    TRY(family_str(&text, name, "model_type", type, sizeof type));
    if (type[0] && strcmp(type, "gemma3_text") != 0)
        return family_fail(&text, name, "model_type", "unsupported: %s", type);
    TRY(source_int(&text, "sliding_window", 1, INT32_MAX, &window, &found));
    if (!found)
        return family_fail(&text, name, "sliding_window", "missing");
    TRY(family_check_keys(&text, name, name));
    m->shape.n_heads = 8;
    m->shape.n_kv_heads = 4;
    m->shape.head_dim = 256;
    m->shape.vocab = 262208;
    m->shape.context = 131072;
    return read_text(m, &text, name, prefixes);
}
