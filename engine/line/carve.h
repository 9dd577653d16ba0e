/* engine/line/carve.h - divides the memory of a run among its users.
 *
 * Owns: where each part begins, its alignment, and the account that its bytes are added to.
 * Refuses: to know what a part is for. Each user has a function x_place() that carves all parts of
 * that user. engine_measure() calls these functions without memory, so that plan_check() knows the
 * bytes of a plan; the engine calls them again with memory. So the bytes counted are the bytes
 * taken. */
#ifndef ENGINE_LINE_CARVE_H
#define ENGINE_LINE_CARVE_H

#include "kernels/base/base.h"
#include "kernels/base/limits.h"
#include "policy/plan.h"

/* Host tables; RAM that a device copies from and to; memory of the device; the scratch file. If ops
 * run in RAM, the first three are one arena, ARENA_HOST. */
enum carve_arena { ARENA_HOST, ARENA_PINNED, ARENA_DEVICE, ARENA_DISK, N_ARENAS };
/* For parts that attention reads: PINNED if rows attend on the CPU, else DEVICE. */
#define ARENA_ATTEND N_ARENAS

struct carve {
    const struct plan *plan;
    const struct setting *set;
    struct plan_bytes *bytes; // parts are added to its accounts
    uint8_t *base[N_ARENAS]; // NULL: the arena is measured only, and pointers to its parts are NULL
    int64_t end[N_ARENAS];   // bytes carved so far
    int64_t busy[N_ARENAS];  // of `end`, the first ones, which every pass uses; the rest stays
};

/* n pieces of n_bytes each. */
struct slab {
    uint8_t *base;           // of piece 0; NULL: there is none, or the arena is measured only
    int64_t offset;          // of piece 0 within its arena
    int64_t stride, n_bytes; // from one piece to the next; what the owner may touch
    int64_t n;
};

/* Piece i, or NULL. */
static inline void *slab_at(const struct slab *s, int64_t i)
{
    CHECK(!s->base || i < s->n);
    return s->base ? s->base + i * s->stride : NULL;
}

#define CARVE_ALIGN 64

/* Each piece is aligned. A slab without bytes has no pieces. */
struct slab carve_slab(struct carve *c, enum plan_account account, enum carve_arena arena,
                       int64_t n, int64_t n_bytes, int64_t align);

/* `account` goes without its prefix. CARVE: an array of n elements; p becomes its address.
 * CARVE_BLOCKS: pieces that a disk reads and writes, or large ones. Never call two of these in one
 * list of arguments: C leaves the order of such calls open, and the order is part of the count. */
#define CARVE(c, account, arena, p, n)                                                             \
    ((p) = (void *)CARVE_SLAB(c, account, arena, 1, (n) * (int64_t)sizeof *(p)).base)
#define CARVE_SLAB(c, account, arena, n, n_bytes)                                                  \
    carve_slab(c, PLAN_BYTES_##account, arena, n, n_bytes, CARVE_ALIGN)
#define CARVE_BLOCKS(c, account, arena, n, n_bytes)                                                \
    carve_slab(c, PLAN_BYTES_##account, arena, n, n_bytes, BLOCK_BYTES)

#endif
