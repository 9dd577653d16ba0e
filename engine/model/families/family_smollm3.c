/* engine/model/families/family_smollm3.c - smollm3: llama with some layers without RoPE.
 *
 * Owns: the choice of these layers; no_rope_layers is 1 for a layer with RoPE. */
#include "engine/model/families/family.h"

#define INTERVAL 4 // default: every fourth layer has no RoPE

enum err family_smollm3_read(struct family_model *m, const struct source *s, const char *name)
{
    const char *types[SHAPE_LAYERS_MAX];
    int64_t turns[SHAPE_LAYERS_MAX], n = 0, n_types = 0, interval = INTERVAL;
    int found = 0, listed = 0;
    m->shape.gated = 1;
    TRY(family_read_dialect(
        m, s, name,
        &(struct family_dialect){.tied = 1,
                                 .windows = WINDOWS_HAVE | WINDOWS_ASKED | WINDOWS_LISTED}));
    TRY(source_str_list(s, "layer_types", types, SHAPE_LAYERS_MAX, &n_types, &found));
    TRY(source_int_list(s, "no_rope_layers", 0, 1, turns, SHAPE_LAYERS_MAX, &n, &listed));
    TRY(source_int(s, "no_rope_layer_interval", 1, SHAPE_LAYERS_MAX, &interval, &found));
    if (listed && n != m->shape.n_layers)
        return family_fail(s, "", "no_rope_layers", "has %lld entries, expected %d", (long long)n,
                           m->shape.n_layers);
    for (int i = 0; i < m->shape.n_layers; i++) {
        int turned = listed ? turns[i] == 1 : (i + 1) % interval != 0;
        m->shape.layer_rope[i] = turned ? 0 : SHAPE_NO_ROPE;
        if (turned && n_types == 0) // without a list, only layers without RoPE have a window
            m->shape.layer_window[i] = 0;
    }
    return OK;
}
