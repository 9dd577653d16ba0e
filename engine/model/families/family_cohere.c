/* engine/model/families/family_cohere.c - cohere and cohere2: llama with LayerNorm without biases,
 * attention and MLP in parallel with one norm, and scaled logits. Some cohere models have a norm
 * for each head of q and k; cohere2 has a window in all layers but each fourth, which has no RoPE.
 *
 * Owns: their keys and tensor names. Note: RoPE turns neighbours, in safetensors as in GGUF files,
 * so rows of q and k are read in another order (family_source_row). */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

#include <stdio.h>
#include <string.h>

#define LOGIT_SCALE 0.0625

static const struct family_names names_hf = {
    "layers.",
    {HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_INPUT_NORM, HF_ATTENTION, HF_QK_NORM, HF_GATED_MLP}};
static const struct family_names names_gguf = {"blk.",
                                               {GGUF_ENDS, GGUF_QKV, GGUF_O, GGUF_QK_NORM,
                                                GGUF_GATE,
                                                GGUF_MLP, [ROLE_NORM1_W] = "attn_norm.weight"}};

/* cohere2 computes with neither default nor null; files of other programs have both keys. */
static enum err check_keys(const struct source *s, const char *name, int second)
{
    const int gguf = s->kind == SOURCE_GGUF;
    char window[100] = "sliding_window", scale[100];
    double value = 0;
    int found = 0;
    snprintf(scale, sizeof scale, "%s.logit_scale", name);
    if (gguf) {
        snprintf(window, sizeof window, "%s.attention.sliding_window", name);
        source_weigh(s, scale, &value, &found);
        if (!found)
            return family_fail(s, "", scale, "missing");
        source_weigh(s, window, &value, &found);
    }
    if (second && (gguf ? !found : source_null(s, window)))
        return family_fail(s, "", window, "missing");
    return OK;
}

enum err family_cohere_read(struct family_model *m, const struct source *s, const char *name)
{
    struct shape *shape = &m->shape;
    const int gguf = s->kind == SOURCE_GGUF, second = strcmp(shape->family, "cohere2") == 0;
    int qk_norm = gguf && source_find(s, "blk.0.attn_q_norm.weight");
    double scale = LOGIT_SCALE;
    TRY(check_keys(s, name, second));
    if (!gguf && !second)
        TRY(family_flag(s, "", "use_qk_norm", &qk_norm));
    TRY(family_float(s, name, gguf ? ".logit_scale" : "logit_scale", 1e-6, 1e5, &scale));
    shape->gated = 1;
    shape->norm = NORM_LAYER;
    shape->bare_norm = 1;
    shape->norm_eps = 1e-5f;
    shape->qk_norm = qk_norm ? QK_NORM_OWN : QK_NORM_NONE;
    shape->branches = BRANCHES_SHARE_NORM;
    shape->logit_scale = (float)scale;
    TRY(family_read_dialect(
        m, s, name,
        &(struct family_dialect){.hf = &names_hf,
                                 .gguf = &names_gguf,
                                 .eps_key = "layer_norm_eps",
                                 .theta = second ? 0 : 500000,
                                 .tied = 1,
                                 .windows =
                                     second ? WINDOWS_HAVE | WINDOWS_LISTED | WINDOWS_EVERY : 0,
                                 .window = FAMILY_WINDOW,
                                 .every = second ? 4 : 0}));
    m->paired_rows = 1;
    for (int i = 0; i < shape->n_layers && second; i++)
        shape->layer_rope[i] = shape->layer_window[i] > 0 ? 0 : SHAPE_NO_ROPE;
    return OK;
}
