/* kernels/arena.c - see arena.h. */
#include "kernels/arena.h"

#include <sys/mman.h>

void arena_init(struct arena *a)
{
    *a = (struct arena){0};
}

enum err arena_open(struct arena *a, int64_t bytes)
{
    *a = (struct arena){0};
    bytes = round_up(max_i64(bytes, 1), 4096);
    void *p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return fail(ERR_FIT, "memory: the system refused %lld bytes (lower --mem-ram)",
                    (long long)bytes);
    a->base = p;
    a->capacity = bytes;
    return OK;
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
    if (a->base)
        munmap(a->base, (size_t)a->capacity);
    *a = (struct arena){0};
}
