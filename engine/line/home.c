/* engine/line/home.c - see home.h: the memory that policy/layout.c laid out, and the scratch file.
 *
 * Data that stays in memory (resident layers, KV in RAM) is at the end of the memory: it is written
 * once and is not registered with the ring. If large, its pages are populated when written, so that
 * the first step starts at once; if small, beforehand, so that the first pass is as fast as the
 * others. */
#include "engine/line/home.h"

#include "kernels/base/arena.h"

#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

static void place_weights(struct home *h, struct device *device, enum compute compute)
{
    const struct plan *p = h->plan;
    const struct layout *l = h->memory.layout;
    h->weights = memory_at(&h->memory, LAYOUT_WEIGHT_HOMES, 0);
    for (int layer = 0; layer < p->layers; layer++) {
        struct weight_home *w = &h->weights[layer];
        *w = (struct weight_home){.layer = &h->model->layers[layer], .frame = -1};
        if (plan_layer_decoded(p, layer))
            w->tiling = TILES_ONCE;
        else if (model_must_decode(w->layer, device, compute))
            w->tiling = TILES_EACH_PASS;
        if (w->tiling != TILES_NONE)
            model_layer_tiles(w->layer, device, compute, &w->tiles);
        if (w->tiling == TILES_EACH_PASS)
            w->layer = &w->tiles;
        if (l->weight_bytes[layer] == 0)
            continue;
        uint8_t *at = (uint8_t *)h->memory.base[l->weight_arena[layer]] + l->weights[layer];
        if (plan_layer_home(p, layer) == plan_near(p))
            w->resident = at;
        else
            w->ram = at;
    }
    h->free_frames = memory_at(&h->memory, LAYOUT_FREE_FRAMES, 0);
    h->n_free_frames = p->weight_frames;
    for (int i = 0; i < p->weight_frames; i++)
        h->free_frames[i] = i;
    h->tiles = memory_at(&h->memory, LAYOUT_TILES, 0);
    h->staging = memory_at(&h->memory, LAYOUT_STAGING, 0);
}

/* The extents of a tier are in the order of the line. */
static void place_extents(struct home *h)
{
    const struct plan *p = h->plan;
    int64_t end[N_TIERS] = {0};
    h->kv_places = memory_at(&h->memory, LAYOUT_KV_PLACES, 0);
    for (int layer = 0; layer < p->decoder; layer++)
        for (int batch = 0; batch < p->batches; batch++) {
            int64_t *at = &end[plan_kv_home(p, layer, batch).tier];
            h->kv_places[layer * p->batches + batch] = *at;
            *at += plan_kv_pages(p, layer) * h->kv.page_bytes;
        }
}

static void place_kv(struct home *h)
{
    const struct memory *m = &h->memory;
    place_extents(h);
    h->kv_pool = memory_at(m, LAYOUT_KV, 0);
    h->kv_last = memory_at(m, LAYOUT_KV_LAST, 0);
    h->kv_units = (int)ceil_div(h->kv.page_bytes, PIECE_BYTES);
    h->kv_crc = memory_at(m, LAYOUT_KV_CRCS, 0);
    h->kv_generation = memory_at(m, LAYOUT_KV_GENERATIONS, 0);
    h->kv_tails = memory_at(m, LAYOUT_KV_TAILS, 0);
    h->kv_frames = (struct frames){
        .name = "kv", .frames = memory_at(m, LAYOUT_KV_FRAMES, 0), .n = h->plan->kv_frames};
    for (int i = 0; i < h->kv_frames.n; i++)
        h->kv_frames.frames[i] = (struct frame){.step = -1,
                                                .base = memory_at(m, LAYOUT_KV_FRAME_PAGES, i),
                                                .segments = memory_at(m, LAYOUT_KV_SEGMENTS, i),
                                                .pages = memory_at(m, LAYOUT_KV_FETCHED, i)};
}

static void place_hidden(struct home *h)
{
    const struct memory *m = &h->memory;
    h->hidden = memory_at(m, LAYOUT_HIDDEN, 0);
    h->hidden_last = memory_at(m, LAYOUT_HIDDEN_LAST, 0);
    h->hidden_units = (int)ceil_div(h->hidden_frame_bytes, PIECE_BYTES);
    h->hidden_crc = memory_at(m, LAYOUT_HIDDEN_CRCS, 0);
    h->hidden_generation = memory_at(m, LAYOUT_HIDDEN_GENERATIONS, 0);
    h->hidden_frames = (struct frames){.name = "hidden",
                                       .frames = memory_at(m, LAYOUT_HIDDEN_FRAMES, 0),
                                       .n = h->plan->hidden_frames};
    for (int i = 0; i < h->hidden_frames.n; i++)
        h->hidden_frames.frames[i] =
            (struct frame){.step = -1,
                           .base = memory_at(m, LAYOUT_HIDDEN_FRAME_TOKENS, i),
                           .segments = memory_at(m, LAYOUT_HIDDEN_SEGMENTS, i)};
}

/* Bytes of KV and of hidden states on disk; hidden states follow KV. */
static int64_t disk_kv_bytes(const struct home *h)
{
    int64_t pages[N_TIERS];
    plan_kv_pages_on(h->plan, pages);
    return pages[TIER_NVME] * h->kv.page_bytes;
}

static int64_t disk_bytes(const struct home *h)
{
    return disk_kv_bytes(h) + plan_hidden_count(h->plan, TIER_NVME) * h->hidden_frame_bytes;
}

/* Offsets of the homes of KV and hidden states that move through frames. */
static void place_homes(struct home *h)
{
    const struct layout_part *parts = h->memory.layout->parts;
    h->kv_offset[TIER_RAM] = parts[LAYOUT_KV_HOME].offset;
    h->hidden_offset[TIER_RAM] = parts[LAYOUT_HIDDEN_HOME].offset;
    h->hidden_offset[TIER_NVME] = disk_kv_bytes(h);
}

static enum err open_tiers(struct home *h, const struct home_config *config)
{
    const int64_t *arenas = config->layout->n_bytes;
    const int64_t n_bytes[N_TIERS] = {[TIER_DEVICE] = arenas[ARENA_DEVICE],
                                      [TIER_RAM] = arenas[ARENA_HOST],
                                      [TIER_NVME] = disk_bytes(h)};
    for (int kind = 0; kind < N_TIERS; kind++) {
        struct tier_config tier = {.device = config->device,
                                   .dir = config->offload_dir,
                                   .node = config->numa_node,
                                   .n_bytes = n_bytes[kind]};
        TRY(tier_open(&h->tiers[kind], (enum tier_kind)kind, &tier));
    }
    return OK;
}

static enum err open_mover(struct home *h, const struct home_config *config)
{
    /* Memory that the disk reads into: all of RAM's arena, or, with a device, the pinned part. */
    enum layout_arena ring = h->plan->device ? ARENA_PINNED : ARENA_HOST;
    struct mover_config m = {.kind = config->io,
                             .depth = config->io_depth,
                             .n_places = HOME_RAM + 1,
                             .base = h->memory.base[ring],
                             .n_bytes = h->memory.layout->busy_bytes[ring],
                             .trace = config->trace};
    m.places[HOME_PACK] =
        (struct mover_place){.path = h->model->path, .fd = -1, .hint = "pack it again"};
    m.places[HOME_SCRATCH] =
        (struct mover_place){.path = "scratch file", .fd = h->tiers[TIER_NVME].fd};
    if (h->tiers[TIER_NVME].n_bytes == 0)
        m.places[HOME_SCRATCH] = (struct mover_place){0};
    if (h->codec) {
        m.places[HOME_CODEC] = (struct mover_place){
            .path = h->codec->path, .fd = -1, .hint = "delete the file, sluice makes it again"};
        m.staging = h->staging;
    }
    if (h->plan->device) {
        m.places[HOME_RAM] = (struct mover_place){.base = h->memory.base[ARENA_PINNED], .fd = -1};
        m.device = config->device;
        m.bounce = memory_at(&h->memory, LAYOUT_BOUNCE, 0);
    }
    TRY(mover_open(&h->mover, &m));
    for (int i = 0; i < 2; i++) {
        struct frames *f = i ? &h->hidden_frames : &h->kv_frames;
        f->mover = h->mover;
        f->trace = h->trace;
        f->on_device = (i ? plan_near(h->plan) : plan_kv_near(h->plan)) == TIER_DEVICE;
    }
    return OK;
}

/* Under AddressSanitizer only the parts of the layout are accessible, not the gaps between them; on
 * = 0 makes everything accessible again. A device's memory is never accessible to the host. */
static void guard(struct home *h, int on)
{
#ifdef __SANITIZE_ADDRESS__
    const struct layout *l = h->memory.layout;
    if (!l) // never opened
        return;
    for (int arena = 0; arena < ARENA_DEVICE; arena++) {
        if (h->memory.base[arena] && on)
            __asan_poison_memory_region(h->memory.base[arena], (size_t)l->n_bytes[arena]);
        else if (h->memory.base[arena])
            __asan_unpoison_memory_region(h->memory.base[arena], (size_t)l->n_bytes[arena]);
    }
    for (int id = 0; id < N_LAYOUT_IDS; id++)
        for (int64_t i = 0; l->parts[id].arena != ARENA_DEVICE && i < l->parts[id].n; i++)
            __asan_unpoison_memory_region(memory_at(&h->memory, (enum layout_id)id, i),
                                          (size_t)l->parts[id].n_bytes);
    for (int layer = 0; layer < h->plan->layers; layer++)
        if (l->weight_bytes[layer] > 0 && l->weight_arena[layer] != ARENA_DEVICE)
            __asan_unpoison_memory_region((uint8_t *)h->memory.base[l->weight_arena[layer]] +
                                              l->weights[layer],
                                          (size_t)l->weight_bytes[layer]);
#else
    (void)h, (void)on;
#endif
}

/* RAM that a device copies from and to: populated by all threads, then pinned. Ops read embedding
 * rows in the part that every pass uses; data that stays is only copied. */
static enum err open_pinned(struct home *h, const struct home_config *config)
{
    const struct layout *l = h->memory.layout;
    struct tier_config tier = {
        .device = config->device, .node = config->numa_node, .n_bytes = l->n_bytes[ARENA_PINNED]};
    TRY(tier_open(&h->pinned, TIER_RAM, &tier));
    h->memory.base[ARENA_PINNED] = h->pinned.base;
    arena_populate(h->pinned.base, tier.n_bytes, config->ops->pool);
    return tier_pin(&h->pinned, l->busy_bytes[ARENA_PINNED]);
}

enum err home_open(struct home *h, const struct home_config *config)
{
    *h = (struct home){
        .plan = config->plan, .model = config->model, .trace = config->trace, .ops = config->ops};
    h->run_number = mix64((uint64_t)clock_ns());
    h->codec = config->plan->codec != PLAN_CODEC_NONE ? config->codec : NULL;
    const struct shape *s = &config->model->shape;
    kv_layout_init(&h->kv, config->kv_format, s->n_kv_heads, s->head_dim);
    kv_layout_init(&h->prompt, config->prompt_format, s->n_kv_heads, s->head_dim);
    h->hidden_frame_bytes = layout_hidden_frame_bytes(h->plan, s);
    TRY(open_tiers(h, config));
    const struct layout *l = config->layout;
    h->memory = (struct memory){l, {h->tiers[TIER_RAM].base, NULL, h->tiers[TIER_DEVICE].base}};
    int64_t all = l->n_bytes[ARENA_HOST], busy = l->busy_bytes[ARENA_HOST];
    int whole = all - busy <= LAYOUT_BROUGHT_IN;
    arena_populate(h->memory.base[ARENA_HOST], whole ? all : busy, config->ops->pool);
    TRY(open_pinned(h, config));
    guard(h, 1);
    place_weights(h, config->device, config->compute);
    place_kv(h);
    place_hidden(h);
    place_homes(h);
    return open_mover(h, config);
}

void home_close(struct home *h)
{
    mover_close(h->mover);
    h->mover = NULL;
    guard(h, 0);
    tier_close(&h->pinned);
    for (int kind = 0; kind < N_TIERS; kind++)
        tier_close(&h->tiers[kind]);
    memset(&h->memory, 0, sizeof h->memory);
}

void home_drain(struct home *h)
{
    for (int layer = 0; layer < h->plan->layers; layer++)
        if (h->weights[layer].state == WEIGHTS_COMING) {
            h->weights[layer].state = WEIGHTS_AWAY;
            mover_wait(h->mover, &h->weights[layer].load);
            mover_wait(h->mover, &h->weights[layer].ticket);
        }
    frames_drain(&h->kv_frames);
    frames_drain(&h->hidden_frames);
}
