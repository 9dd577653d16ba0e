/* engine/line/home_weights.c - weights of home.h: at most one frame per layer. */
#include "engine/line/home.h"

#include "engine/line/shared.h"

/* Reads a layer from the pack, or from the file of encoded layers, to `to`. */
static void read_layer(struct home *h, int layer, struct ticket *t, struct segment *segment,
                       uint8_t *to, int on_device, int64_t due)
{
    const struct model_layer *l = &h->model->layers[layer];
    const struct weight_home *w = &h->weights[layer];
    *segment = (struct segment){
        .offset = w->at, .n_bytes = l->n_bytes, .buf = to, .crc = h->model->piece_crcs + l->piece};
    const struct codec_piece *stored = h->codec ? pack_codec_layer(h->codec, l) : NULL;
    *t = (struct ticket){.place = stored ? HOME_CODEC : w->place,
                         .on_device = on_device,
                         .stored = stored,
                         .segments = segment,
                         .n_segments = 1,
                         .due = due,
                         .name = "weights",
                         .layer = layer,
                         .batch = -1};
    mover_submit(h->mover, t);
}

/* Copies a layer from RAM to a frame on the device; reads the layer into RAM first, if needed.
 * While another process does that, this pass takes the layer from the disk. */
static void copy_layer(struct home *h, int layer, int64_t due)
{
    struct weight_home *w = &h->weights[layer];
    const struct tier *ram = w->shared ? &h->shared : &h->pinned;
    const enum shared_turn turn = w->state == WEIGHTS_IN_RAM ? SHARED_READY
                                  : w->shared ? shared_begin(ram->base, h->shared_fd, layer)
                                              : SHARED_MINE;
    w->loads = turn == SHARED_MINE;
    if (turn == SHARED_BUSY) {
        read_layer(h, layer, &w->ticket, &w->segment, home_weights_frame(h, layer), 1, due);
        return;
    }
    if (w->loads)
        read_layer(h, layer, &w->load, &w->load_segment, w->ram, 0, due);
    w->segment = (struct segment){.offset = w->ram - ram->base,
                                  .n_bytes = h->model->layers[layer].n_bytes,
                                  .buf = home_weights_frame(h, layer)};
    w->ticket = (struct ticket){.place = w->shared ? HOME_SHARED : HOME_RAM,
                                .on_device = 1,
                                .after = w->loads ? &w->load : NULL,
                                .segments = &w->segment,
                                .n_segments = 1,
                                .due = due,
                                .name = "weights",
                                .layer = layer,
                                .batch = -1};
    mover_submit(h->mover, &w->ticket);
}

enum err home_weights_fetch(struct home *h, int layer, int few, int64_t due)
{
    struct weight_home *w = &h->weights[layer];
    if (w->state != WEIGHTS_AWAY && w->state != WEIGHTS_IN_RAM)
        return OK;
    if (layer == 0 && !w->resident)
        return OK; // its rows are gathered
    int stays = w->resident && w->tiling != TILES_ONCE;
    if (!stays) {
        CHECK(h->n_free_frames > 0); // plan_derive counted the frames of every layer in flight
        w->frame = h->free_frames[--h->n_free_frames];
    }
    w->pieces = NULL;
    if (w->ram)
        copy_layer(h, layer, due);
    else if (!few || !home_experts_leave(h, layer, due))
        read_layer(h, layer, &w->ticket, &w->segment,
                   stays ? w->resident : home_weights_frame(h, layer), h->plan->device, due);
    w->state = WEIGHTS_COMING;
    return OK;
}

enum err home_weights_get(struct home *h, int layer, int64_t step, const uint8_t **base)
{
    struct weight_home *w = &h->weights[layer];
    if (w->state == WEIGHTS_COMING) {
        w->state = w->frame < 0 ? WEIGHTS_STAY : WEIGHTS_HERE;
        const enum err loaded = frames_wait(h->mover, h->trace, &w->load, step);
        home_weights_loaded(h, layer, loaded == OK);
        TRY(loaded);
        TRY(frames_wait(h->mover, h->trace, &w->ticket, step));
    }
    *base = w->state == WEIGHTS_STAY ? w->resident : home_weights_frame(h, layer);
    CHECK(layer == 0 || *base);
    return OK;
}

uint8_t *home_weights_tiles(struct home *h, int layer, int first)
{
    const struct weight_home *w = &h->weights[layer];
    if (w->tiling == TILES_EACH_PASS)
        return first ? h->tiles : NULL;
    return w->tiling == TILES_ONCE && w->state == WEIGHTS_HERE ? w->resident : NULL;
}

void home_weights_decoded(struct home *h, int layer)
{
    struct weight_home *w = &h->weights[layer];
    w->layer = &w->tiles;
    if (w->tiling == TILES_ONCE)
        w->state = WEIGHTS_STAY;
}

const uint8_t *home_weights_base(const struct home *h, int layer, const uint8_t *got)
{
    const struct weight_home *w = &h->weights[layer];
    if (w->tiling == TILES_EACH_PASS)
        return h->tiles;
    return w->tiling == TILES_ONCE ? w->resident : got;
}

uint8_t *home_weights_frame(const struct home *h, int layer)
{
    int64_t frame = h->weights[layer].frame;
    return frame < 0 ? NULL : slab_at(&h->weight_frames, frame);
}

void home_weights_put(struct home *h, int layer)
{
    struct weight_home *w = &h->weights[layer];
    if (w->frame < 0)
        return;
    CHECK(w->state != WEIGHTS_COMING);
    h->free_frames[h->n_free_frames++] = w->frame;
    w->frame = -1;
    if (w->state == WEIGHTS_HERE)
        w->state = w->ram && !w->shared ? WEIGHTS_IN_RAM : WEIGHTS_AWAY;
}

void home_weights_loaded(struct home *h, int layer, int right)
{
    struct weight_home *w = &h->weights[layer];
    if (w->loads && w->shared)
        shared_end(h->shared.base, h->shared_fd, layer, right);
    w->loads = 0;
}

uint8_t *home_weights_claim(struct home *h, int layer)
{
    struct weight_home *w = &h->weights[layer];
    CHECK(w->state == WEIGHTS_AWAY);
    uint8_t *to = h->plan->device ? w->ram : w->resident;
    if (to)
        w->state = h->plan->device ? WEIGHTS_IN_RAM : WEIGHTS_STAY;
    return to;
}

/* ---- copies ---- */

static int next_copied(const struct home *h, int layer)
{
    do
        layer++;
    while (layer < h->plan->layers && h->weights[layer].copy < 0);
    return layer;
}

/* Reads the next layer while a layer is written, if there is a frame for both. */
enum err home_weights_copy(struct home *h, const _Atomic int *interrupted)
{
    const int n = h->plan->layers;
    int next = next_copied(h, 0);
    if (next < n)
        TRY(home_weights_fetch(h, next, 0, next));
    while (next < n) {
        const int layer = next;
        struct weight_home *w = &h->weights[layer];
        const uint8_t *base;
        TRY(home_weights_get(h, layer, layer, &base));
        struct segment segment = {.offset = w->copy,
                                  .n_bytes = h->model->layers[layer].n_bytes,
                                  .buf = home_weights_frame(h, layer)};
        struct ticket write = {.place = HOME_SCRATCH,
                               .write = 1,
                               .on_device = h->plan->device,
                               .segments = &segment,
                               .n_segments = 1,
                               .name = "weights",
                               .layer = layer,
                               .batch = -1};
        mover_submit(h->mover, &write);
        next = next_copied(h, layer);
        enum err ahead = OK;
        const int early = next < n && h->n_free_frames > 0;
        if (early)
            ahead = home_weights_fetch(h, next, 0, next);
        TRY(mover_wait(h->mover, &write)); // before `write` goes out of scope
        TRY(ahead);
        home_weights_put(h, layer);
        w->place = HOME_SCRATCH;
        w->at = w->copy;
        if (next < n && !early)
            TRY(home_weights_fetch(h, next, 0, next));
        if (interrupted && *interrupted)
            return fail(ERR_STOPPED, "interrupted; the same command resumes");
    }
    return OK;
}
