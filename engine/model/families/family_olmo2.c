/* engine/model/families/family_olmo2.c - olmo2: llama with norms after attention and MLP instead of
 * before, and RMS norms over all of q and all of k.
 *
 * Owns: olmo2's tensor names. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

static const struct family_names names_hf = {
    "layers.",
    {HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_ATTENTION, HF_QK_NORM,
     HF_GATED_MLP, [ROLE_POST1_W] = "post_attention_layernorm.weight",
     [ROLE_POST2_W] = "post_feedforward_layernorm.weight"}};
static const struct family_names names_gguf = {
    "blk.",
    {GGUF_ENDS, GGUF_QKV, GGUF_O, GGUF_QK_NORM, GGUF_GATE, GGUF_MLP,
     [ROLE_POST1_W] = "post_attention_norm.weight", [ROLE_POST2_W] = "post_ffw_norm.weight"}};

enum err family_olmo2_read(struct family_model *m, const struct source *s, const char *name)
{
    m->shape.gated = 1;
    m->shape.qk_norm = QK_NORM_WHOLE;
    m->shape.norm_place = NORM_OF_BRANCH;
    m->shape.norm_eps = 1e-5f;
    return family_read_dialect(
        m, s, name,
        &(struct family_dialect){.hf = &names_hf, .gguf = &names_gguf, .tied = -1, .unpaired = 1});
}
