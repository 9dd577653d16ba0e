/* engine/line/home_kv.c - KV of home.h: pages through frames, or in RAM where they are. */
#include "engine/line/home.h"

#include <string.h>

static int64_t kv_extent(const struct home *h, int layer, int batch)
{
    const struct plan *p = h->plan;
    return ((int64_t)layer * p->batches + batch) * p->pages_batch;
}

/* Where the pages of (layer, batch) begin, within those of its tier. */
static int64_t home_bytes(const struct home *h, int layer, int batch)
{
    return h->kv_places[layer * h->plan->batches + batch];
}

static int moves(const struct home *h, struct plan_home home)
{
    return home.tier != plan_kv_near(h->plan);
}

/* Who wrote which page, and when: what its checksums are chained from. */
static uint32_t page_seed(const struct home *h, int64_t extent, int page, int64_t row)
{
    uint64_t identity[4] = {h->run_number, (uint64_t)row, (uint64_t)(extent + page),
                            h->kv_generation[extent + page]};
    return crc32c(0, identity, sizeof identity);
}

static struct segment page_segment(const struct home *h, const struct frame *f, enum tier_kind tier,
                                   int64_t extent, int page, uint32_t seed)
{
    int64_t size = h->kv.page_bytes, place = h->kv_places[extent / h->plan->pages_batch];
    return (struct segment){.offset = h->kv_offset[tier] + place + page * size,
                            .n_bytes = size,
                            .buf = f->base + page * size,
                            .crc = tier == TIER_NVME ? h->kv_crc + (extent + page) * h->kv_units
                                                     : NULL,
                            .seed = seed};
}

/* Which extent a step moves. */
static struct frame_use use_of(struct home *h, struct plan_home home, int64_t step, int layer,
                               int batch)
{
    return (struct frame_use){.step = step,
                              .place = home_place(home.tier),
                              .layer = layer + 1,
                              .batch = batch,
                              .last = &h->kv_last[layer * h->plan->batches + batch]};
}

static enum err take(struct home *h, int64_t step, struct frame **f)
{
    TRY(frames_take(&h->kv_frames, step, f));
    memset((*f)->pages, 0, (size_t)ceil_div(h->plan->pages_batch, 64) * 8);
    return OK;
}

enum err home_kv_fetch(struct home *h, int64_t step, int layer, int batch,
                       const struct page_list *pages)
{
    struct plan_home home = plan_kv_home(h->plan, layer, batch);
    if (!moves(h, home) || pages->n == 0)
        return OK;
    struct frame *f;
    TRY(take(h, step, &f));
    int64_t extent = kv_extent(h, layer, batch);
    for (int i = 0; i < pages->n; i++) {
        int page = pages->ids[i];
        f->pages[page >> 6] |= 1ull << (page & 63);
        h->kv_seeds[page] = page_seed(h, extent, page, pages->owners[i]);
    }
    int n = 0;
    for (int page = 0; page < h->plan->pages_batch; page++) // ascending: neighbours travel together
        if (f->pages[page >> 6] >> (page & 63) & 1)
            f->segments[n++] = page_segment(h, f, home.tier, extent, page, h->kv_seeds[page]);
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

/* What became of a page that was fetched: segments stand in the order of pages. */
static enum err page_error(const struct frame *f, int page)
{
    int n = 0;
    CHECK(f->pages[page >> 6] >> (page & 63) & 1);
    for (int word = 0; word < page >> 6; word++)
        n += __builtin_popcountll(f->pages[word]);
    n += __builtin_popcountll(f->pages[page >> 6] & ((1ull << (page & 63)) - 1));
    return f->segments[n].err;
}

enum err home_kv_lost(const struct home *h, int64_t step, struct page_list *pages)
{
    const struct frame *f = frames_of(&h->kv_frames, step);
    int n = pages->n;
    enum err last = OK;
    pages->n = 0;
    for (int i = 0; f && f->bad && i < n; i++) {
        enum err err = page_error(f, pages->ids[i]);
        if (err == OK)
            continue;
        pages->ids[pages->n] = pages->ids[i];
        pages->owners[pages->n++] = pages->owners[i];
        last = err;
    }
    return last;
}

void home_kv_dirty(struct home *h, int64_t step, int layer, int batch,
                   const struct page_list *pages)
{
    struct frame *f = frames_of(&h->kv_frames, step);
    CHECK(f);
    struct plan_home home = plan_kv_home(h->plan, layer, batch);
    int64_t extent = kv_extent(h, layer, batch);
    for (int i = 0; i < pages->n; i++) {
        int page = pages->ids[i];
        h->kv_generation[extent + page]++;
        uint32_t seed = page_seed(h, extent, page, pages->owners[i]);
        f->segments[f->n_write++] = page_segment(h, f, home.tier, extent, page, seed);
    }
}

enum err home_kv_put(struct home *h, int64_t step, int layer, int batch)
{
    struct plan_home home = plan_kv_home(h->plan, layer, batch);
    struct frame *f = moves(h, home) ? frames_of(&h->kv_frames, step) : NULL;
    if (!f)
        return OK; // beside the ops, or an empty step
    TRY(frames_ready(&h->kv_frames, f));
    frames_store(&h->kv_frames, f, f->n_write, use_of(h, home, step, layer, batch));
    return OK;
}

uint8_t *home_kv_tails(struct home *h, int layer, int batch)
{
    struct plan_home home = plan_kv_home(h->plan, layer, batch);
    if (!moves(h, home))
        return NULL;
    /* Those in RAM stand before those on NVMe. */
    int64_t at = home.rank + (home.tier == TIER_NVME ? h->plan->kv_ram : 0);
    return h->kv_tails + at * h->plan->batch * h->kv.page_bytes;
}
