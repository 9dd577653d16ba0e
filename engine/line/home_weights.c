/* engine/line/home_weights.c - weights of home.h: one ticket and at most one frame a layer. */
#include "engine/line/home.h"

enum err home_weights_fetch(struct home *h, int layer, int64_t due)
{
    struct weight_home *w = &h->weights[layer];
    if (w->asked || w->loaded || w->frame)
        return OK;
    if (layer == 0 && !w->resident)
        return OK; // its rows are gathered
    uint8_t *to = w->decoded ? NULL : w->resident;
    if (!to) {
        CHECK(h->n_free_frames > 0); // plan_derive counted the frames of every layer in flight
        to = w->frame = h->free_frames[--h->n_free_frames];
    }
    const struct model_layer *l = &h->model->layers[layer];
    w->segment = (struct segment){.offset = l->offset,
                                  .n_bytes = l->n_bytes,
                                  .buf = to,
                                  .crc = h->model->piece_crcs + l->piece};
    const struct codec_piece *stored = h->codec ? pack_codec_layer(h->codec, l) : NULL;
    w->ticket = (struct ticket){.place = stored ? HOME_CODEC : HOME_PACK,
                                .stored = stored,
                                .segments = &w->segment,
                                .n_segments = 1,
                                .due = due,
                                .name = "weights",
                                .layer = layer,
                                .batch = -1};
    w->asked = 1;
    mover_submit(h->mover, &w->ticket);
    return OK;
}

enum err home_weights_get(struct home *h, int layer, int64_t step, const uint8_t **base)
{
    struct weight_home *w = &h->weights[layer];
    if (w->asked) {
        w->asked = 0;
        TRY(frames_wait(h->mover, h->trace, &w->ticket, step));
        w->loaded = w->resident && !w->decoded;
    }
    *base = w->frame ? w->frame : w->resident;
    CHECK(layer == 0 || *base);
    return OK;
}

uint8_t *home_weights_tiles(struct home *h, int layer)
{
    struct weight_home *w = &h->weights[layer];
    return w->decoded && !w->loaded ? w->resident : NULL;
}

void home_weights_keep(struct home *h, int layer)
{
    struct weight_home *w = &h->weights[layer];
    w->layer = &w->tiles;
    w->loaded = 1;
    home_weights_put(h, layer);
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
    w->loaded = w->resident != NULL;
    return w->resident;
}
