/* engine/line/dummy_layers.h - the weights of dummy models, made when a plan is known: streamed
 * layers into the pack, resident ones into memory.
 *
 * Owns: which layers are made, and all threads making them. Refuses: what the numbers are
 * (engine/model/dummy_numbers.h) and how they lie in a layer (engine/model/pack_write.c). */
#ifndef ENGINE_LINE_DUMMY_LAYERS_H
#define ENGINE_LINE_DUMMY_LAYERS_H

#include "engine/line/home.h"
#include "engine/model/pack.h"
#include "kernels/base/pool.h"

struct dummy_layers {
    struct model *model; // borrowed; written: checksums of the layers made
    struct pool *pool;   // borrowed
    /* As in pack_request, called between layers from the caller's thread; or NULL. */
    enum err (*progress)(void *ctx, int64_t done_bytes, int64_t total_bytes);
    void *ctx;
};

/* Adds to an on-demand pack the layers that the plan streams (the embedding, when its rows are
 * gathered) and that it lacks. What it has stays; other processes wait. Nothing to do for other
 * packs. ERR_IO: the disk has too little room (checked first, the message says how much is needed),
 * or fails; ERR_INPUT: numbers of another generator. */
enum err dummy_layers_store(const struct dummy_layers *d, const struct plan *plan);
/* Makes the resident layers of an on-demand pack's model in their places. */
enum err dummy_layers_fill(const struct dummy_layers *d, struct home *home);

#endif
