/* engine/model/families/family_qwen3.c - qwen3: llama with RMS norms of every head of q and k.
 *
 * Owns: qwen3's tensor names. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

static const struct family_names names_hf = {"layers.",
                                             {HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_INPUT_NORM,
                                              HF_SECOND_NORM, HF_ATTENTION, HF_QK_NORM,
                                              HF_GATED_MLP}};
static const struct family_names names_gguf = {
    "blk.", {GGUF_ENDS, GGUF_NORMS, GGUF_QKV, GGUF_O, GGUF_QK_NORM, GGUF_GATE, GGUF_MLP}};

enum err family_qwen3_read(struct family_model *m, const struct source *s, const char *name)
{
    m->shape.gated = 1;
    m->shape.qk_norm = QK_NORM_HEAD;
    return family_read_dialect(m, s, name,
                               &(struct family_dialect){.hf = &names_hf,
                                                        .gguf = &names_gguf,
                                                        .tied = -1,
                                                        .unpaired = 1,
                                                        .windows = WINDOWS_HAVE | WINDOWS_ASKED |
                                                                   WINDOWS_LISTED | WINDOWS_LATE,
                                                        .window = FAMILY_WINDOW});
}
