/* kernels/base/arena.h - measure, then carve: the same layout code first sizes (base NULL), then
 * places.
 *
 * Owns: one mapping per arena that was opened. Refuses: freeing single pieces, growing.
 * Use: arena_init(&a); lay_out(&a) -> a.used; arena_open(&a, bytes); lay_out(&a) again -> pointers.
 */
#ifndef KERNELS_BASE_ARENA_H
#define KERNELS_BASE_ARENA_H

#include "kernels/base/base.h"
#include "kernels/base/pool.h"

/* Takes zeroed RAM that is aligned to a huge page, so that all but its end can be huge pages.
 * ERR_FIT when the system refuses. */
enum err ram_take(int64_t n_bytes, void **p);
/* Gives it back. Accepts NULL. */
void ram_give(void *p, int64_t n_bytes);

struct arena {
    uint8_t *base;    // NULL while measuring
    int64_t used;     // bytes carved (or counted) so far
    int64_t capacity; // bytes at base; 0 while measuring
};

/* A measuring arena: arena_take returns NULL and counts. */
void arena_init(struct arena *a);
/* Takes `bytes` of zeroed RAM (aligned to a huge page). ERR_FIT when the system refuses. */
enum err arena_open(struct arena *a, int64_t bytes);
/* Asks the system for memory at once, in huge pages, on every thread: clearing gigabytes page by
 * page, as they are first touched, is several times slower. Where the kernel cannot (before 5.14)
 * nothing happens. base: aligned to a huge page. pool NULL: the caller's thread. */
void arena_populate(void *base, int64_t n_bytes, struct pool *pool);
/* Carves `bytes` aligned to `align` (power of two). NULL while measuring; overflow is a bug
 * (CHECK). */
void *arena_take(struct arena *a, int64_t bytes, int64_t align);
/* Gives back what it owns; accepts a never-opened arena. */
void arena_close(struct arena *a);

#define ARENA_ARRAY(a, type, n) ((type *)arena_take(a, (int64_t)sizeof(type) * (n), 64))

#endif
