/* kernels/base/arena.c - see arena.h. */
#include "kernels/base/arena.h"

#include <sys/mman.h>

#define HUGE_PAGE ((int64_t)2 << 20)

enum err ram_take(int64_t n_bytes, void **p)
{
    size_t mapped = (size_t)(n_bytes + HUGE_PAGE);
    uint8_t *base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return fail(ERR_FIT, "memory: the system refused %lld bytes (lower --mem-ram)",
                    (long long)n_bytes);
    int64_t front = (int64_t)(-(uintptr_t)base & (uintptr_t)(HUGE_PAGE - 1));
    if (front > 0)
        munmap(base, (size_t)front);
    munmap(base + front + n_bytes, (size_t)(HUGE_PAGE - front));
    if (n_bytes >= 2 * HUGE_PAGE) // below that huge pages only waste memory
        madvise(base + front, (size_t)n_bytes, MADV_HUGEPAGE);
    *p = base + front;
    return OK;
}

enum err ram_share(int fd, int64_t n_bytes, void **p)
{
    void *base = mmap(NULL, (size_t)n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return fail(ERR_FIT, "memory: the system refused %lld bytes (lower --mem-ram)",
                    (long long)n_bytes);
    madvise(base, (size_t)n_bytes, MADV_HUGEPAGE);
    *p = base;
    return OK;
}

void ram_give(void *p, int64_t n_bytes)
{
    if (p)
        munmap(p, (size_t)n_bytes);
}

void arena_init(struct arena *a)
{
    *a = (struct arena){0};
}

enum err arena_open(struct arena *a, int64_t bytes)
{
    void *p;
    *a = (struct arena){0};
    bytes = round_up(max_i64(bytes, 1), 4096);
    TRY(ram_take(bytes, &p));
    *a = (struct arena){.base = p, .capacity = bytes};
    return OK;
}

struct populate {
    uint8_t *base;
    int64_t n_bytes;
};

/* Each thread gets whole huge pages, so that no two threads clear the same page. */
static void populate_task(void *ctx, int thread, int n_threads)
{
    const struct populate *p = ctx;
    int64_t first, last;
    pool_split(ceil_div(p->n_bytes, HUGE_PAGE), thread, n_threads, &first, &last);
    int64_t end = min_i64(last * HUGE_PAGE, p->n_bytes);
    if (first * HUGE_PAGE < end)
        madvise(p->base + first * HUGE_PAGE, (size_t)(end - first * HUGE_PAGE),
                MADV_POPULATE_WRITE);
}

void arena_populate(void *base, int64_t n_bytes, struct pool *pool)
{
    struct populate p = {base, round_up(n_bytes, 4096)};
    pool_run(pool, populate_task, &p);
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
    ram_give(a->base, a->capacity);
    *a = (struct arena){0};
}
