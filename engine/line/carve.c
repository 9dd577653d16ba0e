/* engine/line/carve.c - see carve.h. */
#include "engine/line/carve.h"

#include "kernels/base/num.h"

/* Under AddressSanitizer there are gaps between pieces in RAM. home.c forbids access to the whole
 * arena, and carve_slab() allows access to the pieces, so that a user who touches more than the
 * user's own pieces is found. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define GAP_BYTES 64
#else
#define GAP_BYTES                                 0
#define __asan_unpoison_memory_region(p, n_bytes) ((void)(p), (void)(n_bytes))
#endif

static enum carve_arena arena_of(const struct carve *c, enum carve_arena arena)
{
    if (arena == ARENA_DISK)
        return arena;
    if (!c->plan->device)
        return ARENA_HOST;
    if (arena == ARENA_ATTEND)
        return c->plan->attn_cpu ? ARENA_PINNED : ARENA_DEVICE;
    return arena;
}

struct slab carve_slab(struct carve *c, enum plan_account account, enum carve_arena arena,
                       int64_t n, int64_t n_bytes, int64_t align)
{
    static const enum tier_kind tiers[N_ARENAS] = {TIER_RAM, TIER_RAM, TIER_DEVICE, TIER_NVME};
    if (n <= 0 || n_bytes <= 0)
        return (struct slab){0};
    arena = arena_of(c, arena);
    const int64_t gap = arena < ARENA_DEVICE ? GAP_BYTES : 0, before = c->end[arena];
    struct slab s = {.offset = round_up(before, align),
                     .stride = round_up(n_bytes + gap, align),
                     .n_bytes = n_bytes,
                     .n = n};
    const int64_t all = (n - 1) * s.stride + n_bytes;
    c->end[arena] = s.offset + round_up(all, CARVE_ALIGN) + gap;
    c->bytes->by[account][tiers[arena]] += c->end[arena] - before; // with what aligns it
    if (!c->base[arena])
        return s;
    s.base = c->base[arena] + s.offset;
    for (int64_t i = 0; gap > 0 && i < n; i++)
        __asan_unpoison_memory_region(slab_at(&s, i), (size_t)n_bytes);
    return s;
}
