/* kernels/cuda/loose.cu - see loose.cuh. */
#include "kernels/cuda/loose.cuh"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/base.h"

struct carry {
    struct carry *next;
    void *to;
    const void *from;
    size_t n_bytes;
};

void loose_stream_open(struct loose_stream *s, struct loose *all)
{
    s->all = all;
    s->buffer = -1;
    s->last = &s->first;
    pthread_mutex_init(&s->lock, NULL);
}

void loose_stream_close(struct loose_stream *s)
{
    *s->last = s->spare; // on a lost device some carries are never called
    for (struct carry *c = s->first, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    if (s->buffer >= 0) {
        pthread_mutex_lock(&s->all->lock);
        s->all->taken[s->buffer] = 0;
        pthread_mutex_unlock(&s->all->lock);
    }
    pthread_mutex_destroy(&s->lock);
}

uint8_t *loose_buffer(struct loose_stream *s)
{
    pthread_mutex_lock(&s->all->lock);
    for (int i = 0; i < LOOSE_BUFFERS && s->buffer < 0; i++)
        if (!s->all->taken[i]) {
            s->all->taken[i] = 1;
            s->buffer = i;
        }
    pthread_mutex_unlock(&s->all->lock);
    return s->buffer < 0 ? NULL : s->all->base + s->buffer * LOOSE_BUFFER_BYTES;
}

/* Runs on a thread of CUDA, which calls the carries of a stream in stream order. */
static void carry_now(void *arg)
{
    struct loose_stream *s = (struct loose_stream *)arg;
    pthread_mutex_lock(&s->lock);
    struct carry *c = s->first;
    s->first = c->next;
    if (!s->first)
        s->last = &s->first;
    pthread_mutex_unlock(&s->lock);
    memcpy(c->to, c->from, c->n_bytes);
    pthread_mutex_lock(&s->lock);
    c->next = s->spare;
    s->spare = c;
    pthread_mutex_unlock(&s->lock);
}

cudaError_t loose_carry(struct loose_stream *s, cudaStream_t cuda, void *to, const void *from,
                        int64_t n_bytes)
{
    pthread_mutex_lock(&s->lock);
    struct carry *c = s->spare;
    if (c)
        s->spare = c->next;
    else
        c = (struct carry *)malloc(sizeof *c);
    CHECK(c);
    *c = {NULL, to, from, (size_t)n_bytes};
    *s->last = c;
    s->last = &c->next;
    pthread_mutex_unlock(&s->lock);
    return cudaLaunchHostFunc(cuda, carry_now, s);
}
