/* engine/home_frames.c - the traffic of home.h: frames taken, tickets issued, waits counted.
 *
 * Order of bytes: every read or write of an extent names the extent's last write as its `after`, so
 * it starts only when that is done. policy/plan.c proves that nothing waits for a step still to
 * come. */
#include "engine/home.h"

#include <stdio.h>
#include <string.h>

/* Waits for a ticket; time lost goes to the stall lane under the ticket's name. */
static enum err wait_ticket(struct home *h, struct ticket *t, int64_t step)
{
    if (mover_done(h->mover, t))
        return mover_wait(h->mover, t);
    int64_t start_ns = clock_ns();
    enum err e = mover_wait(h->mover, t);
    trace_add(h->trace, LANE_STALL,
              (struct trace_event){.name = t->name,
                                   .start_ns = start_ns,
                                   .end_ns = clock_ns(),
                                   .step = step,
                                   .bytes = -1,
                                   .layer = t->layer,
                                   .batch = t->batch});
    return e;
}

/* Waits for a read of KV or hidden states: what could not be had stands in its segments, `bad`
 * tells that there is such a one. Errors are those that end the run. */
static enum err wait_read(struct home *h, struct ticket *t, int64_t step, int *bad)
{
    enum err e = wait_ticket(h, t, step);
    if (e != ERR_CORRUPT && e != ERR_IO)
        return e;
    *bad = 1;
    char text[256];
    snprintf(text, sizeof text, "%s", err_text());
    TRY(mover_failed(h->mover)); // a write's failure is no read's
    fail(e, "%s", text);         // for whoever asks which
    return OK;
}

/* The ticket to wait for before an extent is touched again; NULL when its last write is done. A
 * done ticket must not be named: its frame may serve this very transfer, which would wait for
 * itself. */
static struct ticket *last_ticket(struct home *h, const struct last_write *last)
{
    struct ticket *t = last->ticket;
    return t && t->seq == last->seq && !mover_done(h->mover, t) ? t : NULL;
}

/* ---- weights ---- */

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
        TRY(wait_ticket(h, &w->ticket, step));
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

/* ---- KV ---- */

static int64_t kv_extent(const struct home *h, int layer, int batch)
{
    const struct plan *p = h->plan;
    return ((int64_t)layer * p->batches + batch) * p->pages_batch;
}

static struct kv_frame *kv_frame_of(const struct home *h, int64_t step)
{
    for (int i = 0; i < h->plan->kv_frames; i++)
        if (h->kv_frames[i].step == step)
            return &h->kv_frames[i];
    return NULL;
}

/* A free frame: one whose last write is done; else the oldest write is waited for. */
static enum err kv_frame_take(struct home *h, int64_t step, struct kv_frame **out)
{
    struct kv_frame *oldest = NULL;
    for (int i = 0; i < h->plan->kv_frames; i++) {
        struct kv_frame *f = &h->kv_frames[i];
        if (f->step >= 0)
            continue;
        if (!oldest || f->write.seq < oldest->write.seq)
            oldest = f;
    }
    CHECK(oldest);
    TRY(wait_ticket(h, &oldest->write, step));
    oldest->step = step;
    oldest->n_write = oldest->bad = 0;
    memset(oldest->fetched, 0, (size_t)ceil_div(h->plan->pages_batch, 64) * 8);
    *out = oldest;
    return OK;
}

/* Who wrote which page, and when: what its checksums are chained from. */
static uint32_t page_seed(const struct home *h, int64_t extent, int page, int64_t row)
{
    uint64_t identity[4] = {h->run_number, (uint64_t)row, (uint64_t)(extent + page),
                            h->kv_generation[extent + page]};
    return crc32c(0, identity, sizeof identity);
}

static struct segment page_segment(const struct home *h, const struct kv_frame *f, int64_t extent,
                                   int page, uint32_t seed)
{
    int64_t size = h->kv.page_bytes;
    return (struct segment){.offset = (extent + page) * size,
                            .n_bytes = size,
                            .buf = f->base + page * size,
                            .crc = h->kv_crc + (extent + page) * h->kv_units,
                            .seed = seed};
}

enum err home_kv_fetch(struct home *h, int64_t step, int layer, int batch, const int32_t *pages,
                       const int64_t *rows, int n_pages)
{
    if (h->plan->kv_home != TIER_NVME || n_pages == 0)
        return OK;
    struct kv_frame *f;
    TRY(kv_frame_take(h, step, &f));
    int64_t extent = kv_extent(h, layer, batch);
    for (int i = 0; i < n_pages; i++) {
        f->fetched[pages[i] >> 6] |= 1ull << (pages[i] & 63);
        h->kv_seeds[pages[i]] = page_seed(h, extent, pages[i], rows[i]);
    }
    int n = 0;
    for (int page = 0; page < h->plan->pages_batch; page++) // ascending: neighbours travel together
        if (f->fetched[page >> 6] >> (page & 63) & 1)
            f->segments[n++] = page_segment(h, f, extent, page, h->kv_seeds[page]);
    f->read =
        (struct ticket){.place = HOME_SCRATCH,
                        .segments = f->segments,
                        .n_segments = n,
                        .due = step,
                        .after = last_ticket(h, &h->kv_last[layer * h->plan->batches + batch]),
                        .name = "kv",
                        .layer = layer + 1,
                        .batch = batch};
    mover_submit(h->mover, &f->read);
    return OK;
}

enum err home_kv_get(struct home *h, int64_t step, int layer, int batch, uint8_t **base)
{
    if (h->plan->kv_home != TIER_NVME) {
        *base = h->kv_pool + kv_extent(h, layer, batch) * h->kv.page_bytes;
        return OK;
    }
    struct kv_frame *f = kv_frame_of(h, step);
    if (!f)
        TRY(kv_frame_take(h, step, &f));
    else
        TRY(wait_read(h, &f->read, step, &f->bad));
    *base = f->base;
    return OK;
}

enum err home_kv_page(const struct home *h, int64_t step, int page)
{
    const struct kv_frame *f = kv_frame_of(h, step);
    CHECK(f && (f->fetched[page >> 6] >> (page & 63) & 1));
    if (!f->bad)
        return OK;
    int n = 0; // segments stand in the order of pages
    for (int word = 0; word < page >> 6; word++)
        n += __builtin_popcountll(f->fetched[word]);
    n += __builtin_popcountll(f->fetched[page >> 6] & ((1ull << (page & 63)) - 1));
    return f->segments[n].err;
}

void home_kv_dirty(struct home *h, int64_t step, int layer, int batch, int page, int64_t row)
{
    if (h->plan->kv_home != TIER_NVME)
        return;
    struct kv_frame *f = kv_frame_of(h, step);
    CHECK(f);
    int64_t extent = kv_extent(h, layer, batch);
    h->kv_generation[extent + page]++;
    uint32_t seed = page_seed(h, extent, page, row);
    f->segments[f->n_write++] = page_segment(h, f, extent, page, seed);
}

enum err home_kv_store(struct home *h, int64_t step, int layer, int batch)
{
    if (h->plan->kv_home != TIER_NVME)
        return OK;
    struct kv_frame *f = kv_frame_of(h, step);
    if (!f)
        return OK; // an empty step
    TRY(wait_read(h, &f->read, step, &f->bad));
    if (f->n_write > 0) {
        struct last_write *last = &h->kv_last[layer * h->plan->batches + batch];
        f->write = (struct ticket){.place = HOME_SCRATCH,
                                   .write = 1,
                                   .segments = f->segments,
                                   .n_segments = f->n_write,
                                   .due = step,
                                   .after = last_ticket(h, last),
                                   .name = "kv",
                                   .layer = layer + 1,
                                   .batch = batch};
        mover_submit(h->mover, &f->write);
        *last = (struct last_write){&f->write, f->write.seq};
    }
    f->step = -1;
    return OK;
}

uint8_t *home_kv_tail(struct home *h, int layer, int batch, int row)
{
    const struct plan *p = h->plan;
    int64_t at = ((int64_t)batch * p->batch + row) * p->decoder + layer;
    return h->kv_tails + at * h->kv.page_bytes;
}

/* ---- hidden states ---- */

static struct hidden_frame *hidden_frame_of(const struct home *h, int64_t step)
{
    for (int i = 0; i < h->plan->hidden_frames; i++)
        if (h->hidden_frames[i].step == step)
            return &h->hidden_frames[i];
    return NULL;
}

static enum err hidden_frame_take(struct home *h, int64_t step, struct hidden_frame **out)
{
    struct hidden_frame *oldest = NULL;
    for (int i = 0; i < h->plan->hidden_frames; i++) {
        struct hidden_frame *f = &h->hidden_frames[i];
        if (f->step < 0 && (!oldest || f->write.seq < oldest->write.seq))
            oldest = f;
    }
    CHECK(oldest);
    TRY(wait_ticket(h, &oldest->write, step));
    oldest->step = step;
    oldest->bad = 0;
    *out = oldest;
    return OK;
}

/* Cuts the states of n_tokens into segments, so that a bad one costs no more rows than it holds. */
static int hidden_segments(const struct home *h, struct hidden_frame *f, int batch,
                           int64_t n_tokens)
{
    int64_t n_bytes = round_up(n_tokens * h->model->shape.dim * 4, 4096);
    uint64_t identity[3] = {h->run_number, (uint64_t)batch, h->hidden_generation[batch]};
    uint32_t seed = crc32c(0, identity, sizeof identity);
    int n = 0;
    for (int64_t at = 0; at < n_bytes; at += MOVER_PIECE, n++)
        f->segments[n] = (struct segment){
            .offset = h->hidden_scratch_offset + batch * h->hidden_frame_bytes + at,
            .n_bytes = min_i64(MOVER_PIECE, n_bytes - at),
            .buf = f->base + at,
            .crc = h->hidden_crc + (int64_t)batch * h->hidden_units + n,
            .seed = seed};
    return n;
}

enum err home_hidden_fetch(struct home *h, int64_t step, int batch, int64_t n_tokens)
{
    if (h->plan->hidden_home != TIER_NVME || n_tokens == 0)
        return OK;
    struct hidden_frame *f;
    TRY(hidden_frame_take(h, step, &f));
    f->read = (struct ticket){.place = HOME_SCRATCH,
                              .segments = f->segments,
                              .n_segments = hidden_segments(h, f, batch, n_tokens),
                              .due = step,
                              .after = last_ticket(h, &h->hidden_last[batch]),
                              .name = "hidden",
                              .layer = -1,
                              .batch = batch};
    mover_submit(h->mover, &f->read);
    return OK;
}

enum err home_hidden_get(struct home *h, int64_t step, int64_t first_token, float **x)
{
    if (h->plan->hidden_home != TIER_NVME) {
        *x = (float *)(void *)h->hidden + first_token * h->model->shape.dim;
        return OK;
    }
    struct hidden_frame *f = hidden_frame_of(h, step);
    if (!f)
        TRY(hidden_frame_take(h, step, &f));
    else
        TRY(wait_read(h, &f->read, step, &f->bad));
    for (int i = 0; f->bad && i < f->read.n_segments; i++)
        if (f->segments[i].err != OK)
            memset(f->segments[i].buf, 0, (size_t)f->segments[i].n_bytes);
    *x = (float *)(void *)f->base;
    return OK;
}

enum err home_hidden_token(const struct home *h, int64_t step, int64_t token)
{
    const struct hidden_frame *f =
        h->plan->hidden_home == TIER_NVME ? hidden_frame_of(h, step) : NULL;
    if (!f || !f->bad)
        return OK;
    int64_t size = (int64_t)h->model->shape.dim * 4;
    enum err err = OK;
    for (int64_t i = token * size / MOVER_PIECE; i * MOVER_PIECE < (token + 1) * size; i++)
        err = err == OK ? f->segments[i].err : err;
    return err;
}

enum err home_hidden_put(struct home *h, int64_t step, int batch, int64_t n_tokens, int write)
{
    if (h->plan->hidden_home != TIER_NVME)
        return OK;
    struct hidden_frame *f = hidden_frame_of(h, step);
    if (!f)
        return OK;
    TRY(wait_read(h, &f->read, step, &f->bad));
    if (write && n_tokens > 0) {
        struct last_write *last = &h->hidden_last[batch];
        h->hidden_generation[batch]++;
        f->write = (struct ticket){.place = HOME_SCRATCH,
                                   .write = 1,
                                   .segments = f->segments,
                                   .n_segments = hidden_segments(h, f, batch, n_tokens),
                                   .due = step,
                                   .after = last_ticket(h, last),
                                   .name = "hidden",
                                   .layer = -1,
                                   .batch = batch};
        mover_submit(h->mover, &f->write);
        *last = (struct last_write){&f->write, f->write.seq};
    }
    f->step = -1;
    return OK;
}

void home_drain(struct home *h)
{
    for (int layer = 0; layer < h->plan->layers; layer++)
        if (h->weights[layer].asked) {
            h->weights[layer].asked = 0;
            mover_wait(h->mover, &h->weights[layer].ticket);
        }
    for (int i = 0; i < h->plan->kv_frames; i++) {
        mover_wait(h->mover, &h->kv_frames[i].read);
        mover_wait(h->mover, &h->kv_frames[i].write);
    }
    for (int i = 0; i < h->plan->hidden_frames; i++) {
        mover_wait(h->mover, &h->hidden_frames[i].read);
        mover_wait(h->mover, &h->hidden_frames[i].write);
    }
}
