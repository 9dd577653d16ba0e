/* engine/model/families/family_granite.c - granite: llama with four factors.
 *
 * Owns: the factors' keys. Note: logits are divided by their factor. */
#include "engine/model/families/family.h"

enum err family_granite_factors(struct family_model *m, const struct source *s, const char *name)
{
    const int gguf = s->kind == SOURCE_GGUF;
    double embed = 1, branch = 1, attn = gguf ? 0 : 1, logits = 1;
    TRY(family_float(s, name, gguf ? ".embedding_scale" : "embedding_multiplier", 1e-6, 1e5,
                     &embed));
    TRY(family_float(s, name, gguf ? ".residual_scale" : "residual_multiplier", 1e-6, 1e5,
                     &branch));
    TRY(family_float(s, name, gguf ? ".attention.scale" : "attention_multiplier", 0, 1e5, &attn));
    TRY(family_float(s, name, gguf ? ".logit_scale" : "logits_scaling", 1e-5, 1e5, &logits));
    m->shape.embed_scale = (float)embed;
    m->shape.branch_scale = m->shape.mlp_scale = (float)branch;
    m->shape.attn_scale = (float)attn;
    m->shape.logit_scale = (float)(1 / logits);
    return OK;
}

enum err family_granite_read(struct family_model *m, const struct source *s, const char *name)
{
    m->shape.gated = 1;
    TRY(family_granite_factors(m, s, name));
    return family_read_dialect(m, s, name, &(struct family_dialect){.tied = -1});
}
