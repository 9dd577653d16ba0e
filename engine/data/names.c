/* engine/data/names.c - see names.h. Open addressing, at most half full, so a probe ends soon. */
#include "engine/data/names.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static const char *name_at(const struct names *t, int64_t index)
{
    return *(const char *const *)((const char *)t->items + index * t->stride);
}

/* The hash entry of `name`, or the free entry for it. */
static uint64_t slot_of(const struct names *t, const char *name)
{
    uint64_t slot = hash_bytes(name, (int64_t)strlen(name), t->seed) & t->mask;
    while (t->slots[slot] && strcmp(name_at(t, t->slots[slot] - 1), name) != 0)
        slot = (slot + 1) & t->mask;
    return slot;
}

enum err names_open(struct names *t, const void *items, int64_t stride, int64_t n, const char *what)
{
    CHECK(n >= 0 && n < 1 << 30);
    uint64_t n_slots = 16;
    while (n_slots < 2 * (uint64_t)n)
        n_slots *= 2;
    *t = (struct names){.items = items, .stride = stride, .mask = n_slots - 1};
    if (getrandom(&t->seed, sizeof t->seed, GRND_NONBLOCK) != (ssize_t)sizeof t->seed)
        t->seed = (uint64_t)clock_ns(); // before the system has entropy: hard enough to guess
    t->slots = calloc(n_slots, sizeof *t->slots);
    if (!t->slots)
        return fail(ERR_FIT, "%s: names: no memory for %lld slots", what, (long long)n_slots);
    return OK;
}

int64_t names_add(struct names *t, int64_t index)
{
    const uint64_t slot = slot_of(t, name_at(t, index));
    if (t->slots[slot])
        return t->slots[slot] - 1;
    t->slots[slot] = (uint32_t)index + 1;
    return -1;
}

int64_t names_find(const struct names *t, const char *name)
{
    return t->slots ? (int64_t)t->slots[slot_of(t, name)] - 1 : -1;
}

void names_close(struct names *t)
{
    free(t->slots);
    *t = (struct names){0};
}
