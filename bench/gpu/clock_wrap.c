/* bench/gpu/clock_wrap.c - differences of the program `clock_sluice` from `sluice`, so that models
 * larger than this machine's RAM run with a device that reads no numbers: memory is reserved but
 * not touched, resident weights count as present from the start, and weights of a pack are holes of
 * its file, with the checksums of zeros. The linker wraps the calls.
 *
 * Note: holes are read faster than a disk, so only streamed layers are read. */
#include <sys/mman.h>

#include "engine/line/home.h"
#include "engine/model/pack.h"

#define BROUGHT_IN ((size_t)64 << 20) // most bytes that are still touched in advance

void *__real_mmap(void *at, size_t n_bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t n_bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t n_bytes, int protection, int flags, int fd, off_t offset)
{
    return __real_mmap(at, n_bytes, protection, flags | (flags & MAP_ANONYMOUS ? MAP_NORESERVE : 0),
                       fd, offset);
}

int __real_madvise(void *at, size_t n_bytes, int advice);
int __wrap_madvise(void *at, size_t n_bytes, int advice);
int __wrap_madvise(void *at, size_t n_bytes, int advice)
{
    if (advice == MADV_POPULATE_WRITE && n_bytes > BROUGHT_IN)
        return 0;
    return __real_madvise(at, n_bytes, advice);
}

enum err __real_pack_layer_make(const struct pack_provider *p, struct model *m, int layer, int fd,
                                void *to);
enum err __wrap_pack_layer_make(const struct pack_provider *p, struct model *m, int layer, int fd,
                                void *to);
enum err __wrap_pack_layer_make(const struct pack_provider *p, struct model *m, int layer, int fd,
                                void *to)
{
    static const uint8_t zeros[PIECE_BYTES];
    struct model_layer *l = &m->layers[layer];
    if (to)
        return OK;
    if (layer == 0) // rows of the embedding have their own checksums
        return __real_pack_layer_make(p, m, layer, fd, to);
    for (int64_t at = 0; at < l->n_bytes; at += PIECE_BYTES)
        m->piece_crcs[l->piece + at / PIECE_BYTES] =
            crc32c(0, zeros, min_i64(PIECE_BYTES, l->n_bytes - at));
    l->absent = 0;
    return OK;
}

int __wrap_plan_layer_made(const struct plan *plan, int layer);
int __wrap_plan_layer_made(const struct plan *plan, int layer)
{
    return plan_layer_home(plan, layer) != TIER_NVME;
}

uint8_t *__wrap_home_weights_claim(struct home *h, int layer);
uint8_t *__wrap_home_weights_claim(struct home *h, int layer)
{
    struct weight_home *w = &h->weights[layer];
    w->state = w->ram ? WEIGHTS_IN_RAM : WEIGHTS_STAY;
    return w->ram ? w->ram : w->resident;
}
