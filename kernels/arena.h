/* kernels/arena.h - measure, then carve: the same layout code first sizes (base NULL), then places.
 *
 * Owns: one mapping per arena. Refuses: freeing single pieces, growing.
 * Use: arena_init(&a); lay_out(&a) -> a.used; arena_open(&a, bytes); lay_out(&a) again -> pointers.
 */
#ifndef KERNELS_ARENA_H
#define KERNELS_ARENA_H

#include "kernels/base.h"

struct arena {
    uint8_t *base;    // owned; NULL while measuring
    int64_t used;     // bytes carved (or counted) so far
    int64_t capacity; // bytes of the mapping; 0 while measuring
};

/* A measuring arena: arena_take returns NULL and counts. */
void arena_init(struct arena *a);
/* Maps `bytes` of zeroed memory (page aligned, huge pages advised). ERR_FIT when the system
 * refuses. */
enum err arena_open(struct arena *a, int64_t bytes);
/* Carves `bytes` aligned to `align` (power of two). NULL while measuring; overflow is a bug
 * (CHECK). */
void *arena_take(struct arena *a, int64_t bytes, int64_t align);
/* Unmaps; accepts a never-opened arena. */
void arena_close(struct arena *a);

#define ARENA_ARRAY(a, type, n) ((type *)arena_take(a, (int64_t)sizeof(type) * (n), 64))

#endif
