/* engine/line/home_weights.c - weights of home.h: at most one frame a layer. */
#include "engine/line/home.h"

/* From the pack, or the file of encoded layers, to `to`. */
static void read_layer(struct home *h, int layer, struct ticket *t, struct segment *segment,
                       uint8_t *to, int on_device, int64_t due)
{
    const struct model_layer *l = &h->model->layers[layer];
    *segment = (struct segment){.offset = l->offset,
                                .n_bytes = l->n_bytes,
                                .buf = to,
                                .crc = h->model->piece_crcs + l->piece};
    const struct codec_piece *stored = h->codec ? pack_codec_layer(h->codec, l) : NULL;
    *t = (struct ticket){.place = stored ? HOME_CODEC : HOME_PACK,
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

/* From RAM to a frame on the device; to RAM first, when it is not yet there. */
static void copy_layer(struct home *h, int layer, int64_t due)
{
    struct weight_home *w = &h->weights[layer];
    if (!w->loaded)
        read_layer(h, layer, &w->load, &w->load_segment, w->ram, 0, due);
    w->segment = (struct segment){.offset = w->ram - (uint8_t *)h->memory.base[ARENA_PINNED],
                                  .n_bytes = h->model->layers[layer].n_bytes,
                                  .buf = w->frame};
    w->ticket = (struct ticket){.place = HOME_RAM,
                                .on_device = 1,
                                .after = w->loaded ? NULL : &w->load,
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
    if (w->asked || w->frame || (w->resident && w->loaded))
        return OK;
    if (layer == 0 && !w->resident)
        return OK; // its rows are gathered
    uint8_t *to = w->decoded ? NULL : w->resident;
    if (!to) {
        CHECK(h->n_free_frames > 0); // plan_derive counted the frames of every layer in flight
        to = w->frame = h->free_frames[--h->n_free_frames];
    }
    w->asked = 1;
    w->pieces = NULL;
    if (few && home_experts_leave(h, layer, due))
        return OK;
    if (w->ram)
        copy_layer(h, layer, due);
    else
        read_layer(h, layer, &w->ticket, &w->segment, to, h->plan->device, due);
    return OK;
}

enum err home_weights_get(struct home *h, int layer, int64_t step, const uint8_t **base)
{
    struct weight_home *w = &h->weights[layer];
    if (w->asked) {
        w->asked = 0;
        if (w->ram && !w->loaded)
            TRY(frames_wait(h->mover, h->trace, &w->load, step));
        TRY(frames_wait(h->mover, h->trace, &w->ticket, step));
        w->loaded = w->ram || (w->resident && !w->decoded);
    }
    *base = w->resident && w->loaded ? w->resident : w->frame;
    CHECK(layer == 0 || *base);
    return OK;
}

uint8_t *home_weights_tiles(struct home *h, int layer, int first)
{
    const struct weight_home *w = &h->weights[layer];
    if (w->each_pass)
        return first ? h->tiles : NULL;
    return w->decoded && !w->loaded ? w->resident : NULL;
}

const uint8_t *home_weights_base(struct home *h, int layer, const uint8_t *got)
{
    struct weight_home *w = &h->weights[layer];
    if (w->each_pass)
        return h->tiles;
    if (!w->decoded)
        return got;
    w->layer = &w->tiles;
    w->loaded = 1;
    return w->resident;
}

void home_weights_put(struct home *h, int layer)
{
    struct weight_home *w = &h->weights[layer];
    if (!w->frame)
        return;
    CHECK(!w->asked);
    h->free_frames[h->n_free_frames++] = w->frame;
    w->frame = NULL;
}

uint8_t *home_weights_claim(struct home *h, int layer)
{
    struct weight_home *w = &h->weights[layer];
    CHECK(!w->asked);
    uint8_t *to = h->plan->device ? w->ram : w->resident;
    w->loaded = to != NULL;
    return to;
}
