/* engine/line/home_kv.c - KV of home.h: pages in RAM near the compute, or through frames. */
#include "engine/line/home.h"

#include <string.h>

static int64_t kv_extent(const struct home *h, int layer, int batch)
{
    return ((int64_t)layer * h->plan->batches + batch) * plan_pool_pages(h->plan);
}

/* Offset of the pages of (layer, batch) within the KV of their tier. */
static int64_t home_bytes(const struct home *h, int layer, int batch)
{
    return h->kv_places[layer * h->plan->batches + batch];
}

int64_t home_kv_page_bytes(const struct home *h, int layer)
{
    return h->kv_page_bytes[h->model->shape.layer_wide[layer]];
}

static int moves(const struct home *h, struct plan_home home)
{
    return home.tier != plan_kv_near(h->plan);
}

/* A page's segment between home and frame. The CRCs are seeded with the row and the generation. */
static struct segment page_segment(const struct home *h, const struct frame *f, int layer,
                                   int batch, const struct row_page *p)
{
    const enum tier_kind tier = plan_kv_home(h->plan, layer, batch).tier;
    int64_t size = home_kv_page_bytes(h, layer), page = kv_extent(h, layer, batch) + p->id;
    uint64_t identity[4] = {h->run_number, (uint64_t)p->owner, (uint64_t)page,
                            h->kv_generation[page]};
    return (struct segment){.offset =
                                h->kv_offset[tier] + home_bytes(h, layer, batch) + p->id * size,
                            .n_bytes = size,
                            .buf = f->base + p->id * size,
                            .crc = tier == TIER_NVME ? h->kv_crc + page * h->kv_units : NULL,
                            .seed = crc32c(0, identity, sizeof identity)};
}

/* The extent that a step moves. */
static struct frame_use use_of(struct home *h, struct plan_home home, int64_t step, int layer,
                               int batch)
{
    return (struct frame_use){.step = step,
                              .place = mover_place_of(home.tier),
                              .layer = layer + 1,
                              .batch = batch,
                              .last = &h->kv_last[layer * h->plan->batches + batch]};
}

static enum err take(struct home *h, int64_t step, struct frame **f)
{
    TRY(frames_take(&h->kv_frames, step, f));
    memset((*f)->pages, -1, (size_t)plan_pool_pages(h->plan) * sizeof *(*f)->pages);
    return OK;
}

enum err home_kv_want(struct home *h, int64_t step, int layer, int batch, const struct row_page *p)
{
    struct frame *f = frames_of(&h->kv_frames, step);
    if (!f)
        TRY(take(h, step, &f));
    f->pages[p->id] = p->id;
    f->segments[p->id] = page_segment(h, f, layer, batch, p);
    return OK;
}

enum err home_kv_fetch(struct home *h, int64_t step, int layer, int batch)
{
    struct frame *f = frames_of(&h->kv_frames, step);
    const int64_t pages = plan_kv_pages(h->plan, layer);
    int n = 0;
    if (!f)
        return OK;                           // no page is wanted
    for (int page = 0; page < pages; page++) // ascending: merges adjacent pages
        if (f->pages[page] >= 0) {
            f->segments[n] = f->segments[page];
            f->pages[page] = n++;
        }
    struct plan_home home = plan_kv_home(h->plan, layer, batch);
    frames_fetch(&h->kv_frames, f, n, use_of(h, home, step, layer, batch));
    return OK;
}

enum err home_kv_get(struct home *h, int64_t step, int layer, int batch, uint8_t **base)
{
    struct plan_home home = plan_kv_home(h->plan, layer, batch);
    if (!moves(h, home)) {
        *base = h->kv_pool + home_bytes(h, layer, batch);
        return OK;
    }
    struct frame *f = frames_of(&h->kv_frames, step);
    if (!f)
        TRY(take(h, step, &f));
    else
        TRY(frames_ready(&h->kv_frames, f));
    *base = f->base;
    return OK;
}

enum err home_kv_page(const struct home *h, int64_t step, int32_t id)
{
    const struct frame *f = frames_of(&h->kv_frames, step);
    if (!f || !f->bad)
        return OK;
    CHECK(f->pages[id] >= 0);
    return f->segments[f->pages[id]].err;
}

void home_kv_dirty(struct home *h, int64_t step, int layer, int batch, const struct row_page *p)
{
    struct frame *f = frames_of(&h->kv_frames, step);
    CHECK(f);
    h->kv_generation[kv_extent(h, layer, batch) + p->id]++;
    f->segments[f->n_write++] = page_segment(h, f, layer, batch, p);
}

enum err home_kv_put(struct home *h, int64_t step, int layer, int batch)
{
    struct plan_home home = plan_kv_home(h->plan, layer, batch);
    struct frame *f = moves(h, home) ? frames_of(&h->kv_frames, step) : NULL;
    if (!f)
        return OK; // near the compute, or an empty step
    TRY(frames_ready(&h->kv_frames, f));
    frames_store(&h->kv_frames, f, f->n_write, use_of(h, home, step, layer, batch));
    return OK;
}

uint8_t *home_kv_tails(struct home *h, int layer, int batch)
{
    struct plan_home home = plan_kv_home(h->plan, layer, batch);
    if (!moves(h, home))
        return NULL;
    /* Tails in RAM precede those on NVMe. */
    int64_t at = home.rank + (home.tier == TIER_NVME ? h->plan->kv_ram : 0);
    return h->kv_tails + at * h->plan->batch * h->kv_tail_bytes;
}
