/* engine/home.c - see home.h: the layout of the arena and of the scratch file.
 *
 * The same layout function measures (arena without memory) and places, so the two cannot differ.
 * What stays - resident layers, KV in RAM - lies at the end: it is written once and not registered
 * with the ring. A large one comes into memory as it is written, so that the first step need not
 * wait for it; a small one before, so that the first pass is like the others. */
#include "engine/home.h"

#define DISK_BLOCK 4096
#define SMALL      ((int64_t)1 << 30) // arenas that are brought in whole: a fraction of a second

static void lay_out_weight_frames(struct home *h, struct arena *a)
{
    const struct plan *p = h->plan;
    h->weights = ARENA_ARRAY(a, struct weight_home, p->layers);
    h->free_frames = ARENA_ARRAY(a, uint8_t *, p->weight_frames);
    for (int i = 0; i < p->weight_frames; i++) {
        uint8_t *at = arena_take(a, p->weight_frame_bytes, DISK_BLOCK);
        if (a->base)
            h->free_frames[i] = at;
    }
    h->n_free_frames = p->weight_frames;
}

static void lay_out_weights(struct home *h, struct arena *a, enum compute compute)
{
    const struct plan *p = h->plan;
    for (int layer = 0; layer < p->layers; layer++) {
        const struct model_layer *stored = &h->model->layers[layer];
        struct weight_home w = {.layer = stored, .decoded = plan_layer_decoded(p, layer)};
        int64_t n_bytes = stored->n_bytes;
        if (w.decoded) {
            model_layer_tiles(stored, compute, &w.tiles);
            n_bytes = w.tiles.n_bytes;
        }
        if (plan_layer_resident(p, layer))
            w.resident = arena_take(a, round_up(n_bytes, DISK_BLOCK), DISK_BLOCK);
        if (a->base)
            h->weights[layer] = w;
    }
}

static void lay_out_kv_frames(struct home *h, struct arena *a)
{
    const struct plan *p = h->plan;
    int words = (int)ceil_div(p->pages_batch, 64);
    h->kv_frames = ARENA_ARRAY(a, struct kv_frame, p->kv_frames);
    h->kv_last = ARENA_ARRAY(a, struct last_write, p->decoder * p->batches);
    int64_t pool = (int64_t)p->decoder * p->batches * p->pages_batch;
    h->kv_units = (int)ceil_div(h->kv.page_bytes, MOVER_PIECE);
    h->kv_crc = ARENA_ARRAY(a, uint32_t, pool * h->kv_units);
    h->kv_generation = ARENA_ARRAY(a, uint32_t, pool);
    h->kv_seeds = ARENA_ARRAY(a, uint32_t, p->pages_batch);
    int64_t rows = (int64_t)p->batches * p->batch;
    h->kv_tails = arena_take(a, rows * p->decoder * h->kv.page_bytes, DISK_BLOCK);
    for (int i = 0; i < p->kv_frames; i++) {
        struct kv_frame f = {.step = -1};
        f.base = arena_take(a, p->pages_batch * h->kv.page_bytes, DISK_BLOCK);
        f.segments = ARENA_ARRAY(a, struct segment, p->pages_batch);
        f.fetched = ARENA_ARRAY(a, uint64_t, words);
        if (a->base)
            h->kv_frames[i] = f;
    }
}

static void lay_out(struct home *h, struct arena *a, const struct home_config *config)
{
    const struct plan *p = h->plan;
    lay_out_weight_frames(h, a);
    if (p->codec != PLAN_CODEC_NONE)
        h->staging = arena_take(a, (int64_t)config->io_depth * MOVER_PIECE, DISK_BLOCK);
    if (p->kv_home == TIER_NVME)
        lay_out_kv_frames(h, a);
    int64_t token_bytes = plan_token_bytes(&h->model->shape);
    if (p->hidden_home == TIER_NVME) {
        h->hidden_frame_bytes = round_up(p->step_tokens * token_bytes, DISK_BLOCK);
        h->hidden_frames = ARENA_ARRAY(a, struct hidden_frame, p->hidden_frames);
        h->hidden_last = ARENA_ARRAY(a, struct last_write, p->batches);
        h->hidden_units = (int)ceil_div(h->hidden_frame_bytes, MOVER_PIECE);
        h->hidden_crc = ARENA_ARRAY(a, uint32_t, (int64_t)p->batches * h->hidden_units);
        h->hidden_generation = ARENA_ARRAY(a, uint32_t, p->batches);
        for (int i = 0; i < p->hidden_frames; i++) {
            struct hidden_frame f = {.step = -1};
            f.base = arena_take(a, h->hidden_frame_bytes, DISK_BLOCK);
            f.segments = ARENA_ARRAY(a, struct segment, h->hidden_units);
            if (a->base)
                h->hidden_frames[i] = f;
        }
    } else {
        h->hidden = arena_take(a, p->pass_tokens * token_bytes, DISK_BLOCK);
    }
    if (config->carve)
        config->carve(config->ctx, a);
    h->busy_bytes = a->used;
    lay_out_weights(h, a, config->compute);
    if (p->kv_home == TIER_RAM)
        h->kv_pool = arena_take(
            a, (int64_t)p->decoder * p->batches * p->pages_batch * h->kv.page_bytes, DISK_BLOCK);
}

/* Bytes of the run on disk: KV first, hidden states after it. */
static int64_t disk_bytes(struct home *h)
{
    const struct plan *p = h->plan;
    int64_t kv = (int64_t)p->decoder * p->batches * p->pages_batch * h->kv.page_bytes;
    h->hidden_scratch_offset = p->kv_home == TIER_NVME ? kv : 0;
    int64_t hidden = p->hidden_home == TIER_NVME ? p->batches * h->hidden_frame_bytes : 0;
    return h->hidden_scratch_offset + hidden;
}

static enum err open_tiers(struct home *h, const struct home_config *config, int64_t ram_bytes)
{
    const int64_t n_bytes[N_TIERS] = {[TIER_RAM] = ram_bytes, [TIER_NVME] = disk_bytes(h)};
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
    struct mover_config m = {.kind = config->io,
                             .depth = config->io_depth,
                             .fault = config->fault,
                             .n_places = HOME_CODEC + 1,
                             .base = h->arena.base,
                             .n_bytes = h->busy_bytes,
                             .trace = config->trace};
    m.places[HOME_PACK] =
        (struct mover_place){.path = h->model->path, .fd = -1, .hint = "pack it again"};
    m.places[HOME_SCRATCH] =
        (struct mover_place){.path = "scratch file", .fd = h->tiers[TIER_NVME].fd};
    if (h->tiers[TIER_NVME].n_bytes == 0)
        m.places[HOME_SCRATCH] = (struct mover_place){0};
    if (h->codec) {
        m.places[HOME_CODEC] = (struct mover_place){
            .path = h->codec->path, .fd = -1, .hint = "delete the file: it is made again"};
        m.staging = h->staging;
    }
    return mover_open(&h->mover, &m);
}

enum err home_open(struct home *h, const struct home_config *config)
{
    *h = (struct home){.plan = config->plan, .model = config->model, .trace = config->trace};
    h->run_number = mix64((uint64_t)clock_ns());
    h->codec = config->plan->codec != PLAN_CODEC_NONE ? config->codec : NULL;
    const struct shape *s = &config->model->shape;
    kv_layout_init(&h->kv, config->kv_format, s->n_kv_heads, s->head_dim);
    kv_layout_init(&h->prompt, config->prompt_format, s->n_kv_heads, s->head_dim);
    struct arena measure;
    arena_init(&measure);
    lay_out(h, &measure, config);
    TRY(open_tiers(h, config, measure.used));
    arena_use(&h->arena, h->tiers[TIER_RAM].base, h->tiers[TIER_RAM].n_bytes);
    arena_populate(&h->arena, measure.used <= SMALL ? measure.used : h->busy_bytes, config->pool);
    lay_out(h, &h->arena, config);
    return open_mover(h, config);
}

void home_close(struct home *h)
{
    mover_close(h->mover);
    h->mover = NULL;
    for (int kind = 0; kind < N_TIERS; kind++)
        tier_close(&h->tiers[kind]);
}
