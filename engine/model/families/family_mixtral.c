/* engine/model/families/family_mixtral.c - mixtral: llama with experts.
 *
 * Owns: mixtral's tensor names in safetensors. Note: GGUF files call the family "llama". */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

#define LAYER HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_INPUT_NORM, HF_SECOND_NORM, HF_ATTENTION

static const struct family_names names = {"layers.",
                                          {LAYER, [ROLE_ROUTER] = "block_sparse_moe.gate.weight",
                                           [ROLE_GATE] = "block_sparse_moe.experts.%d.w1.weight",
                                           [ROLE_UP] = "block_sparse_moe.experts.%d.w3.weight",
                                           [ROLE_DOWN] = "block_sparse_moe.experts.%d.w2.weight"}};
static const struct family_names names_all = {"layers.", {LAYER, HF_ROUTER, HF_ALL_EXPERTS}};

enum err family_mixtral_read(struct family_model *m, const struct source *s, const char *name)
{
    m->shape.gated = 1;
    m->shape.norm_eps = 1e-5f;
    return family_read_dialect(m, s, name,
                               &(struct family_dialect){.hf = &names,
                                                        .hf_experts = &names_all,
                                                        .experts_key = "num_local_experts",
                                                        .route_alone = 1,
                                                        .theta = 1e6,
                                                        .tied = 0,
                                                        .windows = WINDOWS_HAVE});
}
