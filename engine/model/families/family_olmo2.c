/* engine/model/families/family_olmo2.c - olmo2: llama with norms after attention and MLP instead of
 * before, and RMS norms over all of q and all of k; olmo3: the same with a window in all layers but
 * each fourth, where alone RoPE is scaled.
 *
 * Owns: their tensor names, olmo3's angles. Note: GGUF files of both are "olmo2"; olmo3's tell a
 * window. Beside config.json's rope_theta, which is the full layers', the others' stays the
 * default. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"
#include "engine/model/families/rope.h"

#define THETA 500000

static const struct family_names names_hf = {
    "layers.",
    {HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_ATTENTION, HF_QK_NORM, HF_GATED_MLP, HF_POST_NORMS}};
static const struct family_names names_gguf = {
    "blk.", {GGUF_ENDS, GGUF_QKV, GGUF_O, GGUF_QK_NORM, GGUF_GATE, GGUF_MLP, GGUF_POST_NORMS}};

static enum err read_olmo(struct family_model *m, const struct source *s, const char *name,
                          unsigned windows, double theta)
{
    m->shape.gated = 1;
    m->shape.qk_norm = QK_NORM_WHOLE;
    m->shape.norm_place = NORM_OF_BRANCH;
    m->shape.norm_eps = 1e-5f;
    return family_read_dialect(m, s, name,
                               &(struct family_dialect){.hf = &names_hf,
                                                        .gguf = &names_gguf,
                                                        .theta = theta,
                                                        .tied = -1,
                                                        .unpaired = 1,
                                                        .windows = windows,
                                                        .window = FAMILY_WINDOW,
                                                        .every = 4});
}

enum err family_olmo2_read(struct family_model *m, const struct source *s, const char *name)
{
    double theta = 10000;
    TRY(read_olmo(m, s, name, 0, 0));
    if (shape_window(&m->shape) == 0)
        return OK;
    TRY(family_float(s, name, ".rope.freq_base", 1e-6, 1e12, &theta));
    return rope_fill_windows(s, name, &m->shape, theta);
}

enum err family_olmo3_read(struct family_model *m, const struct source *s, const char *name)
{
    TRY(read_olmo(m, s, name, WINDOWS_HAVE | WINDOWS_LISTED, THETA));
    return rope_fill_windows(s, name, &m->shape, THETA);
}
