/* engine/line/home.c - see home.h: the memory of the run, its parts for weights, KV and hidden
 * states, and the scratch file.
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

/* Bytes of the largest layer that is decoded in each pass. Room for one layer is enough: the ops of
 * a layer end before those of the next layer begin. */
static int64_t tiles_bytes(const struct carve *c)
{
    const struct weights_info *w = c->set->weights;
    int64_t most = 0;
    for (int layer = 0; layer < c->plan->layers && w->must_decode; layer++)
        if (!plan_layer_decoded(c->plan, layer))
            most = max_i64(most, w->tile_bytes[layer]);
    return most;
}

static void place_weights(struct home *h, struct carve *c)
{
    const struct plan *p = c->plan;
    const struct plan_costs *costs = c->set->costs;
    const int n = p->weight_frames;
    CARVE(c, weight_frames, ARENA_HOST, h->weights, p->layers);
    CARVE(c, weight_frames, ARENA_HOST, h->free_frames, n);
    h->weight_frames = CARVE_BLOCKS(c, weight_frames, ARENA_DEVICE, n, p->weight_frame_bytes);
    if (p->experts_few > 0) {
        const int64_t pieces = ceil_div(p->weight_frame_bytes, PIECE_BYTES);
        h->weight_pieces = CARVE_SLAB(c, weight_frames, ARENA_HOST, n, ceil_div(pieces, 64) * 8);
        h->weight_segments =
            CARVE_SLAB(c, weight_frames, ARENA_HOST, n, pieces * (int64_t)sizeof(struct segment));
    }
    h->tiles = CARVE_BLOCKS(c, weight_frames, ARENA_DEVICE, 1, tiles_bytes(c)).base;
    if (p->codec != PLAN_CODEC_NONE)
        h->staging = CARVE_BLOCKS(c, io, ARENA_PINNED, 1, costs->staging_bytes).base;
    if (p->device)
        h->bounce = CARVE_BLOCKS(c, io, ARENA_PINNED, 1, costs->bounce_bytes).base;
    for (int i = 0; h->free_frames && i < n; i++)
        h->free_frames[i] = i;
}

/* pages: of KV frames; empty for others. */
static void place_frames(struct frames *f, const struct slab *bytes, const struct slab *segments,
                         const struct slab *pages)
{
    for (int i = 0; f->frames && i < f->n; i++)
        f->frames[i] = (struct frame){.step = -1,
                                      .base = slab_at(bytes, i),
                                      .segments = slab_at(segments, i),
                                      .pages = slab_at(pages, i)};
}

static void place_kv(struct home *h, struct carve *c)
{
    const struct plan *p = c->plan;
    const int64_t extents = (int64_t)p->decoder * p->batches, moving = extents - p->kv_near;
    const struct plan_costs *costs = c->set->costs;
    const int64_t page = plan_page_most(p, costs), n = p->kv_frames, pages = plan_pool_pages(p);
    h->kv_frames = (struct frames){.name = "kv", .n = p->kv_frames};
    CARVE(c, kv_meta, ARENA_HOST, h->kv_places, extents);
    if (moving == 0)
        return;
    h->kv_units = (int)ceil_div(page, PIECE_BYTES);
    h->kv_tail_bytes = page;
    CARVE(c, kv_meta, ARENA_HOST, h->kv_frames.frames, n);
    CARVE(c, kv_meta, ARENA_HOST, h->kv_last, extents);
    if (plan_kv_count(p, TIER_NVME) > 0) // pages in RAM are not checked
        CARVE(c, kv_meta, ARENA_HOST, h->kv_crc, extents * pages * h->kv_units);
    CARVE(c, kv_meta, ARENA_HOST, h->kv_generation, extents * pages);
    h->kv_tails = CARVE_BLOCKS(c, kv_tails, ARENA_ATTEND, 1, p->batch * moving * page).base;
    const struct slab bytes =
        CARVE_BLOCKS(c, kv_frames, ARENA_ATTEND, n, plan_pool_bytes(p, costs));
    const struct slab segments =
        CARVE_SLAB(c, kv_meta, ARENA_HOST, n, pages * (int64_t)sizeof(struct segment));
    const struct slab fetched = CARVE_SLAB(c, kv_meta, ARENA_HOST, n, pages * 4);
    place_frames(&h->kv_frames, &bytes, &segments, &fetched);
}

/* Bytes of the hidden states of one batch in a step. */
static int64_t frame_bytes(const struct carve *c)
{
    return round_up(c->plan->step_tokens * plan_token_bytes(c->set->shape), BLOCK_BYTES);
}

static void place_hidden(struct home *h, struct carve *c)
{
    const struct plan *p = c->plan;
    const int64_t n = p->hidden_frames, token = plan_token_bytes(c->set->shape);
    h->hidden_frames = (struct frames){.name = "hidden", .n = p->hidden_frames};
    h->hidden_frame_bytes = frame_bytes(c);
    h->hidden_units = (int)ceil_div(h->hidden_frame_bytes, PIECE_BYTES);
    h->hidden =
        CARVE_BLOCKS(c, hidden, ARENA_DEVICE, p->hidden_near > 0, p->pass_tokens * token).base;
    if (p->hidden_near == p->batches)
        return;
    CARVE(c, hidden_frames, ARENA_HOST, h->hidden_frames.frames, n);
    CARVE(c, hidden_frames, ARENA_HOST, h->hidden_last, p->batches);
    if (plan_hidden_count(p, TIER_NVME) > 0)
        CARVE(c, hidden_frames, ARENA_HOST, h->hidden_crc, (int64_t)p->batches * h->hidden_units);
    CARVE(c, hidden_frames, ARENA_HOST, h->hidden_generation, p->batches);
    const struct slab bytes =
        CARVE_BLOCKS(c, hidden_frames, ARENA_DEVICE, n, h->hidden_frame_bytes);
    const struct slab segments = CARVE_SLAB(c, hidden_frames, ARENA_HOST, n,
                                            h->hidden_units * (int64_t)sizeof(struct segment));
    place_frames(&h->hidden_frames, &bytes, &segments, &(struct slab){0});
}

void home_place(struct home *h, struct carve *c)
{
    place_weights(h, c);
    place_kv(h, c);
    place_hidden(h, c);
}

static void place_resident(struct home *h, struct carve *c)
{
    const struct plan *p = c->plan;
    int64_t shared_end = PLAN_SHARED_HEAD;
    for (int layer = 0; layer < p->layers; layer++) {
        const enum tier_kind tier = plan_layer_home(p, layer);
        const int near = tier == plan_near(p);
        const int64_t n_bytes = plan_resident_bytes(p, c->set->weights, layer);
        const int shared = plan_layer_shared(p, layer);
        struct slab s = {0};
        if (shared && tier == TIER_RAM)
            s.base = h->shared.base ? h->shared.base + shared_end : NULL;
        else if (tier != TIER_NVME)
            s = CARVE_BLOCKS(c, weights_resident, near ? ARENA_DEVICE : ARENA_PINNED, 1, n_bytes);
        if (h->weights)
            h->weights[layer] = (struct weight_home){.resident = near ? s.base : NULL,
                                                     .ram = near ? NULL : s.base,
                                                     .shared = shared && tier == TIER_RAM,
                                                     .frame = -1,
                                                     .copy = -1};
        shared_end += shared ? round_up(c->set->weights->layer_bytes[layer], BLOCK_BYTES) : 0;
    }
    CHECK(!h->shared.base || shared_end <= h->shared.n_bytes);
}

/* Room for copies of streamed layers; each begins a stripe, so that no piece crosses two drives. */
static void place_copies(struct home *h, struct carve *c)
{
    const struct plan *p = c->plan;
    for (int layer = 1; layer < p->layers && c->set->costs->copies_weights; layer++) {
        if (plan_layer_home(p, layer) != TIER_NVME)
            continue;
        const int64_t at = carve_slab(c, PLAN_BYTES_weight_copies, ARENA_DISK, 1,
                                      c->set->weights->layer_bytes[layer], RING_STRIPE_BYTES)
                               .offset;
        if (h->weights)
            h->weights[layer].copy = at;
    }
}

/* The extents of a tier are in the order of the line. */
static void place_extents(struct home *h, const struct carve *c)
{
    const struct plan *p = c->plan;
    int64_t end[N_TIERS] = {0};
    for (int layer = 0; layer < p->decoder && h->kv_places; layer++)
        for (int batch = 0; batch < p->batches; batch++) {
            int64_t *at = &end[plan_kv_home(p, layer, batch).tier];
            h->kv_places[layer * p->batches + batch] = *at;
            *at += plan_kv_pages(p, layer) * plan_page_bytes(c->set->costs, plan_kind(p, layer));
        }
}

void home_place_stays(struct home *h, struct carve *c)
{
    const struct plan *p = c->plan;
    const int64_t frame = frame_bytes(c);
    const int64_t hidden_disk = plan_hidden_count(p, TIER_NVME);
    int64_t kv[N_TIERS];
    plan_kv_bytes_on(p, c->set->costs, kv);
    place_resident(h, c);
    place_extents(h, c);
    h->kv_pool = CARVE_BLOCKS(c, kv, ARENA_ATTEND, 1, kv[plan_kv_near(p)]).base;
    if (plan_kv_near(p) != TIER_RAM)
        h->kv_offset[TIER_RAM] = CARVE_BLOCKS(c, kv, ARENA_PINNED, 1, kv[TIER_RAM]).offset;
    h->hidden_offset[TIER_RAM] =
        CARVE_BLOCKS(c, hidden, ARENA_PINNED, 1, p->hidden_ram * frame).offset;
    CARVE_BLOCKS(c, kv, ARENA_DISK, 1, kv[TIER_NVME]);
    h->hidden_offset[TIER_NVME] =
        CARVE_BLOCKS(c, hidden, ARENA_DISK, 1, hidden_disk * frame).offset;
    place_copies(h, c);
}

/* Whether a layer is decoded into tiles, and when. */
static void begin_weights(struct home *h, struct device *device, enum compute compute)
{
    for (int layer = 0; layer < h->plan->layers; layer++) {
        struct weight_home *w = &h->weights[layer];
        w->layer = &h->model->layers[layer];
        w->place = HOME_PACK;
        w->at = w->layer->offset;
        if (plan_layer_decoded(h->plan, layer))
            w->tiling = TILES_ONCE;
        else if (model_must_decode(w->layer, device, compute))
            w->tiling = TILES_EACH_PASS;
        if (w->tiling != TILES_NONE)
            model_layer_tiles(w->layer, device, compute, &w->tiles);
        if (w->tiling == TILES_EACH_PASS)
            w->layer = &w->tiles;
    }
    h->n_free_frames = h->plan->weight_frames;
}

static enum err open_mover(struct home *h, const struct home_config *config)
{
    struct mover_config m = {.kind = config->io,
                             .depth = config->io_depth,
                             .n_checkers = mover_checkers(pool_threads(config->ops->pool)),
                             .n_places = HOME_SHARED + 1,
                             .base = (h->plan->device ? &h->pinned : &h->tiers[TIER_RAM])->base,
                             .n_bytes = h->ring_bytes,
                             .trace = h->trace};
    m.places[HOME_PACK] = (struct mover_place){.path = h->model->path, .hint = "pack it again"};
    m.places[HOME_SCRATCH] =
        (struct mover_place){.path = "scratch file", .scratch = &h->tiers[TIER_NVME].scratch};
    if (h->tiers[TIER_NVME].n_bytes == 0)
        m.places[HOME_SCRATCH] = (struct mover_place){0};
    if (h->codec) {
        m.places[HOME_CODEC] = (struct mover_place){
            .path = h->codec->path, .hint = "delete the file, sluice makes it again"};
        m.staging = h->staging;
    }
    if (h->plan->device) {
        m.places[HOME_RAM] = (struct mover_place){.base = h->pinned.base};
        m.places[HOME_SHARED] = (struct mover_place){.base = h->shared.base};
        m.device = config->device;
        m.bounce = h->bounce;
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

/* Copies weights with a mover and a trace that are only for this: a job's measurements begin with
 * the first pass. */
static enum err copy_weights(struct home *h, const struct home_config *config, int64_t n_bytes)
{
    struct trace trace;
    log_line(LOG_INFO, "offload: copying %.1f GiB of streamed weights to %s",
             (double)n_bytes / (double)(1 << 30), config->offload_dir);
    TRY(trace_open(&trace, 0));
    h->trace = &trace;
    enum err e = open_mover(h, config);
    if (e == OK)
        e = home_weights_copy(h, config->interrupted);
    mover_close(h->mover);
    h->mover = NULL;
    h->trace = config->trace;
    trace_close(&trace);
    return e;
}

/* Under AddressSanitizer: on = 1 makes RAM inaccessible until it is carved; on = 0 makes everything
 * accessible again. */
static void guard(struct home *h, int on)
{
#ifdef __SANITIZE_ADDRESS__
    const struct tier *arenas[] = {&h->tiers[TIER_RAM], &h->pinned};
    for (int i = 0; i < 2; i++)
        if (arenas[i]->base && on)
            __asan_poison_memory_region(arenas[i]->base, (size_t)arenas[i]->n_bytes);
        else if (arenas[i]->base)
            __asan_unpoison_memory_region(arenas[i]->base, (size_t)arenas[i]->n_bytes);
#else
    (void)h, (void)on;
#endif
}

/* Weights that several processes share: populating changes no byte that another one wrote. */
static enum err take_shared(struct home *h, const struct home_config *config, int64_t n_bytes)
{
    struct tier_config tier = {
        .device = config->device, .shared_fd = config->shared_fd, .n_bytes = n_bytes};
    h->shared_fd = config->shared_fd;
    TRY(tier_open(&h->shared, TIER_RAM, &tier));
    arena_populate(h->shared.base, n_bytes, config->ops->pool);
    return tier_pin(&h->shared, 0);
}

enum err home_take(struct home *h, const struct home_config *config, struct carve *c)
{
    const int64_t *end = c->end, *busy = c->busy;
    struct tier_config tier = {
        .device = config->device, .dir = config->offload_dir, .node = config->numa_node};
    *h = (struct home){
        .plan = config->plan, .model = config->model, .trace = config->trace, .ops = config->ops};
    static const enum carve_arena arenas[N_TIERS] = {
        [TIER_DEVICE] = ARENA_DEVICE, [TIER_RAM] = ARENA_HOST, [TIER_NVME] = ARENA_DISK};
    for (int kind = 0; kind < N_TIERS; kind++) {
        tier.n_bytes = end[arenas[kind]];
        TRY(tier_open(&h->tiers[kind], (enum tier_kind)kind, &tier));
        c->base[arenas[kind]] = h->tiers[kind].base;
    }
    const int64_t stays = end[ARENA_HOST] - busy[ARENA_HOST];
    arena_populate(h->tiers[TIER_RAM].base,
                   stays <= PLAN_BROUGHT_IN ? end[ARENA_HOST] : busy[ARENA_HOST],
                   config->ops->pool);
    /* RAM that a device copies from and to: populated by all threads, then pinned. Ops read rows of
     * embeddings in the part that every pass uses; data that stays is only copied. */
    tier.n_bytes = end[ARENA_PINNED];
    TRY(tier_open(&h->pinned, TIER_RAM, &tier));
    c->base[ARENA_PINNED] = h->pinned.base;
    arena_populate(h->pinned.base, tier.n_bytes, config->ops->pool);
    TRY(tier_pin(&h->pinned, busy[ARENA_PINNED]));
    if (config->plan->shared)
        TRY(take_shared(h, config, config->plan->shared->n_bytes));
    h->ring_bytes = busy[config->plan->device ? ARENA_PINNED : ARENA_HOST];
    memset(c->end, 0, sizeof c->end);
    guard(h, 1);
    return OK;
}

enum err home_open(struct home *h, const struct home_config *config)
{
    const struct shape *s = &config->model->shape;
    h->run_number = mix64((uint64_t)clock_ns());
    h->codec = config->plan->codec != PLAN_CODEC_NONE ? config->codec : NULL;
    for (int wide = 0; wide <= (s->wide_head_dim > 0); wide++) {
        struct kv_layout pages;
        model_kv_layout(s, wide, config->kv_format, &pages);
        h->kv_page_bytes[wide] = pages.page_bytes;
    }
    begin_weights(h, config->device, config->compute);
    int64_t copied = 0;
    for (int layer = 0; layer < h->plan->layers; layer++)
        copied += h->weights[layer].copy >= 0 ? h->model->layers[layer].n_bytes : 0;
    if (copied > 0)
        TRY(copy_weights(h, config, copied));
    return open_mover(h, config);
}

void home_close(struct home *h)
{
    mover_close(h->mover);
    h->mover = NULL;
    guard(h, 0);
    tier_close(&h->shared);
    tier_close(&h->pinned);
    for (int kind = 0; kind < N_TIERS; kind++)
        tier_close(&h->tiers[kind]);
}

void home_drain(struct home *h)
{
    for (int layer = 0; layer < h->plan->layers; layer++)
        if (h->weights[layer].state == WEIGHTS_COMING) {
            h->weights[layer].state = WEIGHTS_AWAY;
            home_weights_loaded(h, layer, mover_wait(h->mover, &h->weights[layer].load) == OK);
            mover_wait(h->mover, &h->weights[layer].ticket);
        }
    frames_drain(&h->kv_frames);
    frames_drain(&h->hidden_frames);
}
