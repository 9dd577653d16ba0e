/* engine/line/dummy_layers.h - generates the weights of dummy models once a plan is known: streamed
 * layers into the pack, resident layers into memory.
 *
 * Owns: the choice of layers, and the threads that generate them. Refuses: the values
 * (engine/model/dummy_numbers.h) and the layout within a layer (engine/model/pack_write.c). */
#ifndef ENGINE_LINE_DUMMY_LAYERS_H
#define ENGINE_LINE_DUMMY_LAYERS_H

#include "engine/line/home.h"
#include "engine/model/pack.h"
#include "kernels/base/pool.h"

struct dummy_layers {
    struct model *model;      // borrowed; receives the checksums of generated layers
    const struct model *part; // borrowed: plans and homes are for this part of it; NULL: for all
    struct pool *pool;        // borrowed
    /* As in pack_request: called between layers, from the caller's thread; or NULL. */
    enum err (*progress)(void *ctx, int64_t done_bytes, int64_t total_bytes);
    void *ctx;
};

/* Adds the missing layers that the plan streams (and the embedding, if its rows are gathered) to an
 * on-demand pack. Existing layers are kept; other processes wait. Does nothing for other packs.
 * ERR_IO: the disk has too little room (checked first; the message says how much is needed) or
 * fails. ERR_INPUT: the pack's weights come from another generator. */
enum err dummy_layers_store(const struct dummy_layers *d, const struct plan *plan);
/* Generates the resident layers of an on-demand pack in memory. */
enum err dummy_layers_fill(const struct dummy_layers *d, struct home *home);

#endif
