/* kernels/arena.c - see arena.h. */
#include "kernels/arena.h"

#include "kernels/device.h"

void arena_init(struct arena *a)
{
    *a = (struct arena){0};
}

enum err arena_open(struct arena *a, int64_t bytes)
{
    struct device *cpu = device_cpu();
    void *p;
    *a = (struct arena){0};
    bytes = round_up(max_i64(bytes, 1), 4096);
    TRY(cpu->api->alloc(cpu, bytes, &p));
    arena_use(a, p, bytes);
    a->owned = 1;
    return OK;
}

void arena_use(struct arena *a, void *base, int64_t bytes)
{
    *a = (struct arena){.base = base, .capacity = bytes};
}

void *arena_take(struct arena *a, int64_t bytes, int64_t align)
{
    CHECK(bytes >= 0 && align > 0 && (align & (align - 1)) == 0);
    a->used = round_up(a->used, align);
    int64_t at = a->used;
    a->used += bytes;
    if (!a->base)
        return NULL;
    CHECK(a->used <= a->capacity);
    return a->base + at;
}

void arena_close(struct arena *a)
{
    if (a->owned)
        device_cpu()->api->release(device_cpu(), a->base, a->capacity);
    *a = (struct arena){0};
}
