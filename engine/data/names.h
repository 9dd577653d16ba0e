/* engine/data/names.h - looks up items of an array by name, for tables whose names come from a
 * file.
 *
 * Owns: the hash table. Refuses: the items; they are borrowed, must not move, and each begins with
 * a `const char *name`. The seed is random per table, so that a crafted file cannot cause
 * collisions. */
#ifndef ENGINE_DATA_NAMES_H
#define ENGINE_DATA_NAMES_H

#include "kernels/base/base.h"

struct names {
    const void *items; // borrowed
    int64_t stride;    // bytes of one item
    uint32_t *slots;   // owned: 0 is free, else index + 1
    uint64_t mask;     // slots - 1, a power of two less one
    uint64_t seed;
};

/* Makes an empty table for up to n items (n < 2^30). ERR_FIT when memory is short; `what` names the
 * table in that message. */
enum err names_open(struct names *t, const void *items, int64_t stride, int64_t n,
                    const char *what);
/* Adds items[index]; -1, or the index of the item that has this name already (then nothing is
 * added). */
int64_t names_add(struct names *t, int64_t index);
/* Index of the item, -1 when there is none (or the table was never opened). */
int64_t names_find(const struct names *t, const char *name);
void names_close(struct names *t); // accepts a zeroed table

#endif
