/* engine/home.c - see home.h: the layout of the arena and of the scratch file.
 *
 * The same layout function measures (arena without memory) and places, so the two cannot differ. */
#include "engine/home.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DISK_BLOCK 4096

static void lay_out_weights(struct home *h, struct arena *a)
{
    const struct plan *p = h->plan;
    int placed = a->base != NULL;
    h->weights = ARENA_ARRAY(a, struct weight_home, p->layers);
    h->free_frames = ARENA_ARRAY(a, uint8_t *, p->weight_frames);
    for (int layer = 0; layer < p->layers; layer++) {
        if (!plan_layer_resident(p, layer))
            continue;
        uint8_t *at =
            arena_take(a, round_up(h->model->layers[layer].n_bytes, DISK_BLOCK), DISK_BLOCK);
        if (placed)
            h->weights[layer].resident = at;
    }
    for (int i = 0; i < p->weight_frames; i++) {
        uint8_t *at = arena_take(a, p->weight_frame_bytes, DISK_BLOCK);
        if (placed)
            h->free_frames[i] = at;
    }
    h->n_free_frames = p->weight_frames;
}

static void lay_out_kv_frames(struct home *h, struct arena *a)
{
    const struct plan *p = h->plan;
    int words = (int)ceil_div(p->pages_batch, 64);
    h->kv_frames = ARENA_ARRAY(a, struct kv_frame, p->kv_frames);
    h->kv_last = ARENA_ARRAY(a, struct last_write, p->decoder * p->batches);
    h->kv_crc = ARENA_ARRAY(a, uint32_t, (int64_t)p->decoder * p->batches * p->pages_batch);
    int64_t rows = (int64_t)p->batches * p->batch;
    h->kv_tails = arena_take(a, rows * p->decoder * h->kv.page_bytes, DISK_BLOCK);
    for (int i = 0; i < p->kv_frames; i++) {
        struct kv_frame f = {.step = -1};
        f.base = arena_take(a, p->pages_batch * h->kv.page_bytes, DISK_BLOCK);
        f.read_segments = ARENA_ARRAY(a, struct segment, p->pages_batch);
        f.write_segments = ARENA_ARRAY(a, struct segment, p->pages_batch);
        f.fetched = ARENA_ARRAY(a, uint64_t, words);
        if (a->base)
            h->kv_frames[i] = f;
    }
}

static void lay_out(struct home *h, struct arena *a, const struct home_config *config)
{
    const struct plan *p = h->plan;
    lay_out_weights(h, a);
    if (p->kv_home == TIER_NVME)
        lay_out_kv_frames(h, a);
    else
        h->kv_pool = arena_take(
            a, (int64_t)p->decoder * p->batches * p->pages_batch * h->kv.page_bytes, DISK_BLOCK);
    int64_t token_bytes = (int64_t)h->model->shape.dim * 4;
    if (p->hidden_home == TIER_NVME) {
        h->hidden_frame_bytes = round_up(p->step_tokens * token_bytes, DISK_BLOCK);
        h->hidden_frames = ARENA_ARRAY(a, struct hidden_frame, p->hidden_frames);
        h->hidden_last = ARENA_ARRAY(a, struct last_write, p->batches);
        h->hidden_crc = ARENA_ARRAY(a, uint32_t, p->batches);
        for (int i = 0; i < p->hidden_frames; i++) {
            struct hidden_frame f = {.step = -1};
            f.base = arena_take(a, h->hidden_frame_bytes, DISK_BLOCK);
            if (a->base)
                h->hidden_frames[i] = f;
        }
    } else {
        h->hidden = arena_take(a, p->pass_tokens * token_bytes, DISK_BLOCK);
    }
    if (config->carve)
        config->carve(config->ctx, a);
}

/* The scratch file has no name: whatever happens to the process, the space comes back. */
static enum err open_scratch(struct home *h, const char *dir)
{
    const struct plan *p = h->plan;
    h->scratch_fd = -1;
    int64_t kv = p->kv_home == TIER_NVME
                     ? (int64_t)p->decoder * p->batches * p->pages_batch * h->kv.page_bytes
                     : 0;
    int64_t hidden = p->hidden_home == TIER_NVME ? p->batches * h->hidden_frame_bytes : 0;
    h->hidden_scratch_offset = kv;
    h->scratch_bytes = kv + hidden;
    if (h->scratch_bytes == 0)
        return OK;
    h->scratch_fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (h->scratch_fd < 0) {
        char name[4096];
        snprintf(name, sizeof name, "%s/sluice-scratch-XXXXXX", dir);
        h->scratch_fd = mkostemp(name, O_CLOEXEC);
        if (h->scratch_fd < 0)
            return fail(ERR_IO, "%s: cannot make a scratch file: %s (--offload-dir)", dir,
                        strerror(errno));
        unlink(name);
    }
    int e = posix_fallocate(h->scratch_fd, 0, h->scratch_bytes);
    if (e == EOPNOTSUPP || e == EINVAL)
        e = ftruncate(h->scratch_fd, h->scratch_bytes) == 0 ? 0 : errno;
    if (e != 0)
        return fail(ERR_IO,
                    "%s: cannot reserve %lld bytes of scratch: %s (--offload-dir, --mem-disk)", dir,
                    (long long)h->scratch_bytes, strerror(e));
    return OK;
}

static enum err open_mover(struct home *h, const struct home_config *config)
{
    struct mover_config m = {.kind = config->io,
                             .depth = config->io_depth,
                             .fault = config->fault,
                             .n_files = h->scratch_fd >= 0 ? 2 : 1,
                             .base = h->arena.base,
                             .n_bytes = h->arena.capacity,
                             .trace = config->trace};
    m.files[HOME_FILE_PACK] = (struct mover_file){h->model->path, -1, h->model->file_bytes};
    m.files[HOME_FILE_SCRATCH] = (struct mover_file){"scratch file", h->scratch_fd, 0};
    return mover_open(&h->mover, &m);
}

enum err home_open(struct home *h, const struct home_config *config)
{
    *h = (struct home){
        .plan = config->plan, .model = config->model, .trace = config->trace, .scratch_fd = -1};
    const struct shape *s = &config->model->shape;
    kv_layout_init(&h->kv, config->kv_format, s->n_kv_heads, s->head_dim);
    kv_layout_init(&h->prompt, config->prompt_format, s->n_kv_heads, s->head_dim);
    struct arena measure;
    arena_init(&measure);
    lay_out(h, &measure, config);
    TRY(arena_open(&h->arena, measure.used));
    lay_out(h, &h->arena, config);
    TRY(open_scratch(h, config->offload_dir));
    return open_mover(h, config);
}

void home_close(struct home *h)
{
    mover_close(h->mover);
    h->mover = NULL;
    arena_close(&h->arena);
    if (h->scratch_fd >= 0)
        close(h->scratch_fd);
    h->scratch_fd = -1;
}
