/* kernels/cuda/pins.cu - see pins.cuh. */
#include "kernels/cuda/pins.cuh"

#include <stdlib.h>

#include "kernels/base/base.h"
#include "kernels/base/thread.h"

#define PIN_THREADS 8

/* Chunks of a range that threads pin or unpin in turn. */
struct chunks {
    struct pin_range *range;
    int device, unpins;
    pthread_mutex_t lock; // protects the fields below
    int next;
    cudaError_t error; // the first error; no chunk is started after it
};

/* Start of chunk i; i == n_chunks: end of the range. */
static uint8_t *chunk_at(const struct pin_range *r, int i)
{
    if (i == 0)
        return r->base;
    if (i == r->n_chunks)
        return r->base + r->n_bytes;
    return (uint8_t *)(((uintptr_t)r->base / CUDA_PIN_CHUNK + (uintptr_t)i) * CUDA_PIN_CHUNK);
}

static cudaError_t chunk_change(const struct chunks *c, int i)
{
    struct pin_range *r = c->range;
    uint8_t *at = chunk_at(r, i);
    if (c->unpins)
        return r->pinned[i] ? cudaHostUnregister(at) : cudaSuccess;
    const cudaError_t e = cudaHostRegister(at, (size_t)(chunk_at(r, i + 1) - at),
                                           cudaHostRegisterPortable | cudaHostRegisterMapped);
    r->pinned[i] = e == cudaSuccess;
    return e;
}

/* The next chunk for a thread whose last call returned e; n_chunks: none left. */
static int chunk_next(struct chunks *c, cudaError_t e)
{
    if (e != cudaSuccess)
        (void)cudaGetLastError(); // clears this thread's error before the next launch's check
    pthread_mutex_lock(&c->lock);
    if (c->error == cudaSuccess)
        c->error = e;
    const int i = c->error == cudaSuccess && c->next < c->range->n_chunks ? c->next++
                                                                           : c->range->n_chunks;
    pthread_mutex_unlock(&c->lock);
    return i;
}

static void chunks_work(struct chunks *c, cudaError_t e)
{
    for (int i = chunk_next(c, e); i < c->range->n_chunks; i = chunk_next(c, e))
        e = chunk_change(c, i);
}

static void *chunks_main(void *arg)
{
    struct chunks *c = (struct chunks *)arg;
    chunks_work(c, cudaSetDevice(c->device));
    return NULL;
}

/* On up to PIN_THREADS threads, the caller included; fewer if threads cannot be started. */
static cudaError_t chunks_change(struct pin_range *r, int device, int unpins)
{
    struct chunks c = {r, device, unpins, PTHREAD_MUTEX_INITIALIZER, 0, cudaSuccess};
    pthread_t threads[PIN_THREADS - 1];
    int n = 0;
    while (n + 1 < PIN_THREADS && n + 1 < r->n_chunks &&
           thread_start(&threads[n], chunks_main, &c) == 0)
        n++;
    chunks_work(&c, cudaSuccess);
    while (n > 0)
        pthread_join(threads[--n], NULL);
    pthread_mutex_destroy(&c.lock);
    return c.error;
}

int64_t pins_add(struct pins *p, int device, void *base, int64_t n_bytes, cudaError_t *why)
{
    const int64_t first = (int64_t)((uintptr_t)base / CUDA_PIN_CHUNK);
    const int64_t last = (int64_t)(((uintptr_t)base + (uintptr_t)n_bytes - 1) / CUDA_PIN_CHUNK);
    struct pin_range *r = (struct pin_range *)calloc(1, sizeof *r);
    CHECK(r);
    r->base = (uint8_t *)base;
    r->n_bytes = n_bytes;
    r->n_chunks = (int)(last - first + 1);
    r->pinned = (char *)calloc((size_t)r->n_chunks, 1);
    CHECK(r->pinned);
    *why = chunks_change(r, device, 0);
    int64_t n_pinned = 0;
    for (int i = 0; i < r->n_chunks; i++)
        n_pinned += r->pinned[i] ? chunk_at(r, i + 1) - chunk_at(r, i) : 0;
    pthread_mutex_lock(&p->lock);
    r->next = p->ranges;
    p->ranges = r;
    pthread_mutex_unlock(&p->lock);
    return n_pinned;
}

/* Removes the first range that begins there from the list; NULL: none. */
static struct pin_range *range_take(struct pins *p, const void *base, int64_t n_bytes)
{
    pthread_mutex_lock(&p->lock);
    struct pin_range **at = &p->ranges;
    while (*at && (*at)->base != base &&
           (uintptr_t)(*at)->base - (uintptr_t)base >= (uintptr_t)n_bytes)
        at = &(*at)->next;
    struct pin_range *r = *at;
    if (r)
        *at = r->next;
    pthread_mutex_unlock(&p->lock);
    return r;
}

cudaError_t pins_drop(struct pins *p, int device, const void *base, int64_t n_bytes, int lost)
{
    cudaError_t first = cudaSuccess;
    struct pin_range *r;
    while ((r = range_take(p, base, n_bytes))) {
        const cudaError_t e = lost ? cudaSuccess : chunks_change(r, device, 1);
        first = first == cudaSuccess ? e : first;
        free(r->pinned);
        free(r);
    }
    return first;
}

int64_t pins_run(struct pins *p, const void *at, int64_t n_bytes, int *loose)
{
    *loose = 0;
    pthread_mutex_lock(&p->lock);
    const struct pin_range *r = p->ranges;
    while (r && (uintptr_t)at - (uintptr_t)r->base >= (uintptr_t)r->n_bytes)
        r = r->next;
    if (r) {
        const int i = (int)((uintptr_t)at / CUDA_PIN_CHUNK - (uintptr_t)r->base / CUDA_PIN_CHUNK);
        n_bytes = min_i64(n_bytes, chunk_at(r, i + 1) - (const uint8_t *)at);
        *loose = !r->pinned[i];
    }
    pthread_mutex_unlock(&p->lock);
    return n_bytes;
}

int pins_any_loose(struct pins *p)
{
    int loose = 0;
    pthread_mutex_lock(&p->lock);
    for (const struct pin_range *r = p->ranges; r; r = r->next)
        for (int i = 0; i < r->n_chunks; i++)
            loose |= !r->pinned[i];
    pthread_mutex_unlock(&p->lock);
    return loose;
}
