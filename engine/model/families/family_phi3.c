/* engine/model/families/family_phi3.c - phi3 and phi4: llama with q, k and v in one tensor, gate
 * and up in another, and longrope.
 *
 * Owns: the cuts of these tensors. Note: rope types "su" and "yarn" mean longrope here. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

static const struct family_names names_hf = {
    "layers.",
    {HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_INPUT_NORM,
     HF_SECOND_NORM, [ROLE_Q] = "self_attn.qkv_proj.weight", [ROLE_K] = "self_attn.qkv_proj.weight",
     [ROLE_V] = "self_attn.qkv_proj.weight", [ROLE_O] = "self_attn.o_proj.weight",
     [ROLE_GATE] = "mlp.gate_up_proj.weight", [ROLE_UP] = "mlp.gate_up_proj.weight",
     [ROLE_DOWN] = "mlp.down_proj.weight"}};
static const struct family_names names_gguf = {
    "blk.",
    {GGUF_ENDS, GGUF_NORMS, GGUF_FUSED_QKV, GGUF_O, [ROLE_GATE] = "ffn_up.weight",
     [ROLE_UP] = "ffn_up.weight", [ROLE_DOWN] = "ffn_down.weight"}};

enum err family_phi3_read(struct family_model *m, const struct source *s, const char *name)
{
    m->shape.gated = 1;
    m->shape.norm_eps = 1e-5f;
    TRY(family_read_dialect(m, s, name,
                            &(struct family_dialect){.hf = &names_hf,
                                                     .gguf = &names_gguf,
                                                     .tied = s->kind == SOURCE_HF ? 0 : -1,
                                                     .unpaired = 1,
                                                     .yarn_is_long = 1,
                                                     .windows = WINDOWS_HAVE}));
    const int64_t ffn = m->shape.ffn_dim;
    family_cut_qkv(m);
    m->cut[ROLE_GATE] = (struct family_cut){2 * ffn, 0, ffn, ffn};
    m->cut[ROLE_UP] = (struct family_cut){2 * ffn, ffn, ffn, ffn};
    return OK;
}
