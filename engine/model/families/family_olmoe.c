/* engine/model/families/family_olmoe.c - olmoe: llama with experts, and RMS norms over all of q and
 * all of k.
 *
 * Owns: olmoe's tensor names. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

#define LAYER                                                                                      \
    HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_INPUT_NORM, HF_SECOND_NORM, HF_ATTENTION, HF_QK_NORM,     \
        HF_ROUTER

static const struct family_names names = {"layers.", {LAYER, HF_EXPERTS}};
static const struct family_names names_all = {"layers.", {LAYER, HF_ALL_EXPERTS}};
static const struct family_names names_gguf = {
    "blk.", {GGUF_ENDS, GGUF_NORMS, GGUF_QKV, GGUF_O, GGUF_QK_NORM, GGUF_ROUTER, GGUF_ALL_EXPERTS}};

enum err family_olmoe_read(struct family_model *m, const struct source *s, const char *name)
{
    m->shape.gated = 1;
    m->shape.qk_norm = QK_NORM_WHOLE;
    m->shape.norm_eps = 1e-5f;
    return family_read_dialect(m, s, name,
                               &(struct family_dialect){.hf = &names,
                                                        .gguf = &names_gguf,
                                                        .hf_experts = &names_all,
                                                        .gguf_experts = &names_gguf,
                                                        .experts_key = "num_experts",
                                                        .route_all = 1,
                                                        .tied = 0,
                                                        .unpaired = 1});
}
