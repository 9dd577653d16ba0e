/* engine/home_frames.c - the traffic of home.h: frames taken, tickets issued, waits counted.
 *
 * Order of bytes: every read or write of an extent names the extent's last write as its `after`, so
 * it starts only when that is done. policy/plan.c proves that nothing waits for a step still to
 * come. */
#include "engine/home.h"

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
    w->segment = (struct segment){l->offset, l->n_bytes, to};
    const struct codec_piece *stored = h->codec ? pack_codec_layer(h->codec, l) : NULL;
    w->ticket = (struct ticket){.place = stored ? HOME_CODEC : HOME_PACK,
                                .stored = stored,
                                .segments = &w->segment,
                                .n_segments = 1,
                                .due = due,
                                .crc = h->model->piece_crcs + l->piece,
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

static struct kv_frame *kv_frame_of(struct home *h, int64_t step)
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
    oldest->n_write = 0;
    memset(oldest->fetched, 0, (size_t)ceil_div(h->plan->pages_batch, 64) * 8);
    *out = oldest;
    return OK;
}

static void add_segment(struct segment *segments, int *n, int64_t offset, int64_t n_bytes,
                        void *buf)
{
    if (*n > 0) { // neighbours in file and memory travel together
        struct segment *last = &segments[*n - 1];
        if (last->offset + last->n_bytes == offset && (uint8_t *)last->buf + last->n_bytes == buf) {
            last->n_bytes += n_bytes;
            return;
        }
    }
    segments[(*n)++] = (struct segment){offset, n_bytes, buf};
}

enum err home_kv_fetch(struct home *h, int64_t step, int layer, int batch, const int32_t *pages,
                       int n_pages)
{
    if (h->plan->kv_home != TIER_NVME || n_pages == 0)
        return OK;
    struct kv_frame *f;
    TRY(kv_frame_take(h, step, &f));
    int64_t extent = kv_extent(h, layer, batch);
    int64_t size = h->kv.page_bytes;
    for (int i = 0; i < n_pages; i++)
        f->fetched[pages[i] >> 6] |= 1ull << (pages[i] & 63);
    int n = 0;
    for (int64_t page = 0; page < h->plan->pages_batch; page++) // ascending: neighbours merge
        if (f->fetched[page >> 6] >> (page & 63) & 1)
            add_segment(f->read_segments, &n, (extent + page) * size, size, f->base + page * size);
    f->read =
        (struct ticket){.place = HOME_SCRATCH,
                        .segments = f->read_segments,
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
        TRY(wait_ticket(h, &f->read, step));
    *base = f->base;
    return OK;
}

static uint32_t page_crc(const struct home *h, const uint8_t *page, int layer, int index,
                         uint64_t row)
{
    uint64_t identity[3] = {row, (uint64_t)layer, (uint64_t)index};
    return crc32c(crc32c(0, identity, sizeof identity), page, h->kv.page_bytes);
}

void home_kv_dirty(struct home *h, int64_t step, int layer, int batch, int page, uint64_t row)
{
    if (h->plan->kv_home != TIER_NVME)
        return;
    struct kv_frame *f = kv_frame_of(h, step);
    CHECK(f);
    int64_t extent = kv_extent(h, layer, batch);
    int64_t size = h->kv.page_bytes;
    uint8_t *at = f->base + page * size;
    h->kv_crc[extent + page] = page_crc(h, at, layer, page, row);
    add_segment(f->write_segments, &f->n_write, (extent + page) * size, size, at);
}

enum err home_kv_verify(struct home *h, int64_t step, int layer, int batch, int page, uint64_t row)
{
    struct kv_frame *f = kv_frame_of(h, step);
    CHECK(f && (f->fetched[page >> 6] >> (page & 63) & 1));
    int64_t extent = kv_extent(h, layer, batch);
    int64_t size = h->kv.page_bytes;
    uint8_t *at = f->base + page * size;
    if (page_crc(h, at, layer, page, row) == h->kv_crc[extent + page])
        return OK;
    f->read_segments[0] = (struct segment){(extent + page) * size, size, at};
    f->read.n_segments = 1;
    f->read.after = NULL;
    mover_submit(h->mover, &f->read);
    TRY(mover_wait(h->mover, &f->read));
    if (page_crc(h, at, layer, page, row) == h->kv_crc[extent + page])
        return OK;
    return fail(ERR_CORRUPT, "scratch file: layer %d, batch %d, page %d: checksum is wrong", layer,
                batch, page);
}

enum err home_kv_store(struct home *h, int64_t step, int layer, int batch)
{
    if (h->plan->kv_home != TIER_NVME)
        return OK;
    struct kv_frame *f = kv_frame_of(h, step);
    if (!f)
        return OK; // an empty step
    TRY(wait_ticket(h, &f->read, step));
    if (f->n_write > 0) {
        struct last_write *last = &h->kv_last[layer * h->plan->batches + batch];
        f->write = (struct ticket){.place = HOME_SCRATCH,
                                   .write = 1,
                                   .segments = f->write_segments,
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

static struct hidden_frame *hidden_frame_of(struct home *h, int64_t step)
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
    *out = oldest;
    return OK;
}

static int64_t hidden_bytes(const struct home *h, int64_t n_tokens)
{
    return round_up(n_tokens * h->model->shape.dim * 4, 4096);
}

enum err home_hidden_fetch(struct home *h, int64_t step, int batch, int64_t n_tokens)
{
    if (h->plan->hidden_home != TIER_NVME || n_tokens == 0)
        return OK;
    struct hidden_frame *f;
    TRY(hidden_frame_take(h, step, &f));
    f->read_segment = (struct segment){h->hidden_scratch_offset + batch * h->hidden_frame_bytes,
                                       hidden_bytes(h, n_tokens), f->base};
    f->read = (struct ticket){.place = HOME_SCRATCH,
                              .segments = &f->read_segment,
                              .n_segments = 1,
                              .due = step,
                              .after = last_ticket(h, &h->hidden_last[batch]),
                              .name = "hidden",
                              .layer = -1,
                              .batch = batch};
    mover_submit(h->mover, &f->read);
    return OK;
}

/* What was read is what was written last; else it is read once more. Not when the write failed: its
 * frame would tell only when it is taken again, after these states were used. */
static enum err hidden_verify(struct home *h, struct hidden_frame *f, int batch)
{
    const struct segment *s = &f->read_segment;
    const struct last_write *last = &h->hidden_last[batch];
    if (crc32c(0, s->buf, s->n_bytes) == h->hidden_crc[batch])
        return OK;
    if (last->ticket && last->ticket->seq == last->seq)
        TRY(mover_wait(h->mover, last->ticket));
    f->read.after = NULL;
    mover_submit(h->mover, &f->read);
    TRY(mover_wait(h->mover, &f->read));
    if (crc32c(0, s->buf, s->n_bytes) == h->hidden_crc[batch])
        return OK;
    return fail(
        ERR_CORRUPT,
        "scratch file: hidden states of batch %d: checksum is wrong (the same command resumes)",
        batch);
}

enum err home_hidden_get(struct home *h, int64_t step, int batch, int64_t first_token, float **x)
{
    if (h->plan->hidden_home != TIER_NVME) {
        *x = (float *)(void *)h->hidden + first_token * h->model->shape.dim;
        return OK;
    }
    struct hidden_frame *f = hidden_frame_of(h, step);
    if (!f)
        TRY(hidden_frame_take(h, step, &f));
    else {
        TRY(wait_ticket(h, &f->read, step));
        TRY(hidden_verify(h, f, batch));
    }
    *x = (float *)(void *)f->base;
    return OK;
}

enum err home_hidden_put(struct home *h, int64_t step, int batch, int64_t n_tokens, int write)
{
    if (h->plan->hidden_home != TIER_NVME)
        return OK;
    struct hidden_frame *f = hidden_frame_of(h, step);
    if (!f)
        return OK;
    TRY(wait_ticket(h, &f->read, step));
    if (write && n_tokens > 0) {
        struct last_write *last = &h->hidden_last[batch];
        f->write_segment =
            (struct segment){h->hidden_scratch_offset + batch * h->hidden_frame_bytes,
                             hidden_bytes(h, n_tokens), f->base};
        f->write = (struct ticket){.place = HOME_SCRATCH,
                                   .write = 1,
                                   .segments = &f->write_segment,
                                   .n_segments = 1,
                                   .due = step,
                                   .after = last_ticket(h, last),
                                   .name = "hidden",
                                   .layer = -1,
                                   .batch = batch};
        h->hidden_crc[batch] = crc32c(0, f->base, f->write_segment.n_bytes);
        mover_submit(h->mover, &f->write);
        *last = (struct last_write){&f->write, f->write.seq};
    }
    f->step = -1;
    return OK;
}

enum err home_drain(struct home *h)
{
    for (int layer = 0; layer < h->plan->layers; layer++)
        if (h->weights[layer].asked) {
            h->weights[layer].asked = 0;
            TRY(mover_wait(h->mover, &h->weights[layer].ticket));
        }
    for (int i = 0; i < h->plan->kv_frames; i++) {
        TRY(mover_wait(h->mover, &h->kv_frames[i].read));
        TRY(mover_wait(h->mover, &h->kv_frames[i].write));
    }
    for (int i = 0; i < h->plan->hidden_frames; i++) {
        TRY(mover_wait(h->mover, &h->hidden_frames[i].read));
        TRY(mover_wait(h->mover, &h->hidden_frames[i].write));
    }
    return OK;
}
