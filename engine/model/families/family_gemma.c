/* engine/model/families/family_gemma.c - gemma: llama with scaled embeddings, GELU, norms by 1 +
 * weight.
 *
 * Owns: the differences. Note: hidden_act "gelu" in config.json means the tanh form;
 * hidden_activation, if present, means what it says. GGUF files hold 1 + weight. */
#include "engine/model/families/family.h"

#include <math.h>
#include <string.h>

/* Sets *key to the key that names the activation. */
static enum err act_of(const struct source *s, const char **key)
{
    char act[32] = "";
    *key = "hidden_activation";
    TRY(family_str(s, "", "hidden_activation", act, sizeof act));
    if (act[0])
        return OK;
    TRY(family_str(s, "", "hidden_act", act, sizeof act));
    if (act[0] && strcmp(act, "gelu") != 0)
        *key = "hidden_act";
    return OK;
}

enum err family_gemma_read(struct family_model *m, const struct source *s, const char *name)
{
    struct family_dialect d = {.act = "gelu_pytorch_tanh", .tied = 1, .unpaired = 1};
    m->shape.gated = 1;
    m->plus_one = ROLE_BIT(ROLE_NORM1_W) | ROLE_BIT(ROLE_NORM2_W) | ROLE_BIT(ROLE_FINAL_NORM_W);
    if (s->kind == SOURCE_HF)
        TRY(act_of(s, &d.act_key));
    TRY(family_read_dialect(m, s, name, &d));
    m->shape.embed_scale = sqrtf((float)m->shape.dim);
    return OK;
}
