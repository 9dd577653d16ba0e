/* kernels/base/arena.h - measure, then carve. One layout function runs twice: with base NULL it
 * counts bytes, over the mapping it returns pointers.
 *
 * Owns: the mapping of each opened arena. Refuses: freeing parts, growing.
 * Use: arena_init(&a); lay_out(&a) -> a.used; arena_open(&a, bytes); lay_out(&a) again ->
 * pointers. */
#ifndef KERNELS_BASE_ARENA_H
#define KERNELS_BASE_ARENA_H

#include "kernels/base/base.h"
#include "kernels/base/pool.h"

/* Maps n_bytes of zeroed RAM at a 2 MiB boundary, so that huge pages can back all but the tail.
 * ERR_FIT: the system refuses. */
enum err ram_take(int64_t n_bytes, void **p);
/* Maps the first n_bytes of a memory file, for all processes that do so. ERR_FIT. */
enum err ram_share(int fd, int64_t n_bytes, void **p);
/* Unmaps; accepts NULL. */
void ram_give(void *p, int64_t n_bytes);

struct arena {
    uint8_t *base;    // NULL while measuring
    int64_t used;     // bytes carved (or counted) so far
    int64_t capacity; // bytes at base; 0 while measuring
};

/* Starts measuring: arena_take() counts and returns NULL. */
void arena_init(struct arena *a);
/* Maps `bytes`, as ram_take(). */
enum err arena_open(struct arena *a, int64_t bytes);
/* Faults in the whole range now, in huge pages, on every thread of the pool (NULL: the caller's):
 * clearing gigabytes page by page at first touch is several times slower. Does nothing before Linux
 * 5.14. base is aligned to 2 MiB. */
void arena_populate(void *base, int64_t n_bytes, struct pool *pool);
/* Carves `bytes` aligned to `align` (a power of two). NULL while measuring; CHECKs the capacity. */
void *arena_take(struct arena *a, int64_t bytes, int64_t align);
/* Unmaps; accepts an arena that was never opened. */
void arena_close(struct arena *a);

#define ARENA_ARRAY(a, type, n) ((type *)arena_take(a, (int64_t)sizeof(type) * (n), 64))

#endif
