/* engine/model/families/family_exaone4.c - exaone4: llama with norms after attention and MLP
 * instead of before, and RMS norms of every head of q and k; large ones have a window in all layers
 * but each fourth, which has no RoPE.
 *
 * Owns: exaone4's tensor names, the choice of layers without RoPE. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

static const struct family_names names_hf = {
    "layers.",
    {HF_EMBED, HF_HEAD, HF_FINAL_NORM, HF_ATTENTION, HF_QK_NORM, HF_GATED_MLP, HF_POST_NORMS}};
static const struct family_names names_gguf = {
    "blk.", {GGUF_ENDS, GGUF_QKV, GGUF_O, GGUF_QK_NORM, GGUF_GATE, GGUF_MLP, GGUF_POST_NORMS}};

enum err family_exaone4_read(struct family_model *m, const struct source *s, const char *name)
{
    struct shape *shape = &m->shape;
    shape->gated = 1;
    shape->qk_norm = QK_NORM_HEAD;
    shape->norm_place = NORM_OF_BRANCH;
    shape->norm_eps = 1e-5f;
    TRY(family_read_dialect(
        m, s, name,
        &(struct family_dialect){.hf = &names_hf,
                                 .gguf = &names_gguf,
                                 .unpaired = 1,
                                 .windows = WINDOWS_HAVE | WINDOWS_LISTED | WINDOWS_EVERY,
                                 .window = FAMILY_WINDOW,
                                 .every = 4}));
    /* A window's length that no layer uses counts as well, but null does not. */
    const int mixed =
        s->kind == SOURCE_HF ? !source_null(s, "sliding_window") : shape_window(shape) > 0;
    for (int i = 0; i < shape->n_layers && mixed; i++)
        shape->layer_rope[i] = shape->layer_window[i] > 0 ? 0 : SHAPE_NO_ROPE;
    return OK;
}
