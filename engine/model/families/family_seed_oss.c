/* engine/model/families/family_seed_oss.c - seed_oss: llama with biases on q, k and v, and maybe on
 * attention's output.
 *
 * Owns: the keys of these biases. Note: GGUF files call the MLP's norm as others call one of
 * attention's output. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

static const struct family_names names_gguf = {
    "blk.",
    {GGUF_ENDS, GGUF_QKV, GGUF_O, GGUF_GATE,
     GGUF_MLP, [ROLE_NORM1_W] = "attn_norm.weight", [ROLE_NORM2_W] = "post_attention_norm.weight"}};

enum err family_seed_oss_read(struct family_model *m, const struct source *s, const char *name)
{
    m->shape.gated = 1;
    return family_read_dialect(m, s, name,
                               &(struct family_dialect){.gguf = &names_gguf,
                                                        .attention_bias = 1,
                                                        .out_bias_key = "attention_out_bias",
                                                        .unpaired = 1});
}
