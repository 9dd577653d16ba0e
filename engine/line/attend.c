/* engine/line/attend.c - see attend.h. */
#include "engine/line/attend.h"

#include "kernels/base/thread.h"

#include <stdio.h>
#include <string.h>

static void attend(struct attender *a, int64_t n)
{
    struct attend_job *job = &a->jobs[n % ATTEND_JOBS];
    const struct device_api *device = a->cross.to_cpu->device->api;
    job->err = device->event_wait(a->cross.to_cpu, a->ready[n % ATTEND_JOBS]);
    if (job->err != OK) {
        snprintf(job->text, sizeof job->text, "%s", err_text());
        return;
    }
    int64_t start_ns = clock_ns();
    tables_turn(&a->tables, n);
    layer_attend(&a->work, job->layer, job->batch, &job->kv, &a->exchange[n % ATTEND_JOBS]);
    a->dirty[n % ATTEND_JOBS] = a->work.rows.dirty;
    trace_add(a->trace, LANE_CPU,
              (struct trace_event){.name = "attend",
                                   .start_ns = start_ns,
                                   .end_ns = clock_ns(),
                                   .step = job->step,
                                   .bytes = -1,
                                   .layer = job->layer,
                                   .batch = job->batch->index});
}

static void *attender_main(void *arg)
{
    struct attender *a = arg;
    pthread_mutex_lock(&a->lock);
    for (;;) {
        while (!a->stop && a->n_done == a->n_posted)
            pthread_cond_wait(&a->changed, &a->lock);
        if (a->stop)
            break;
        int64_t n = a->n_done;
        pthread_mutex_unlock(&a->lock);
        attend(a, n);
        pthread_mutex_lock(&a->lock);
        a->n_done++;
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

void attender_place(struct attender *a, struct carve *c, const struct layer_work *like)
{
    const struct shape *s = c->set->shape;
    const struct cross_bytes bytes = c->set->costs->cross;
    const int64_t step = c->plan->step_tokens, heads = (int64_t)s->n_heads * shape_head_most(s);
    a->work = *like;
    a->work.tables = &a->tables;
    for (int i = 0; i < ATTEND_JOBS; i++) {
        struct exchange *x = &a->exchange[i];
        x->bytes = bytes;
        x->in = CARVE_SLAB(c, workspace, ARENA_PINNED, 1,
                           step * (heads + shape_kv_numbers_most(s)) * bytes.in)
                    .base;
        x->out = CARVE_SLAB(c, workspace, ARENA_PINNED, 1, step * heads * bytes.out).base;
        CARVE(c, workspace, ARENA_PINNED, x->sinks, s->sinks * s->n_heads);
    }
    tables_place(&a->tables, c, ARENA_HOST, ATTEND_JOBS);
    layer_place_apart(&a->work, c);
    cross_place(&a->cross, c);
}

enum err attender_open(struct attender *a, struct stream *stream, struct trace *trace)
{
    a->trace = trace;
    TRY(device_cpu()->api->stream_open(device_cpu(), &a->cpu));
    a->work.ops.stream = a->cpu;
    layer_open_apart(&a->work);
    TRY(cross_open(&a->cross, stream));
    for (int i = 0; i < ATTEND_JOBS; i++)
        TRY(stream->device->api->event_open(stream->device, &a->ready[i]));
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    TRY(thread_need(&a->thread, attender_main, a, "attention", "thread"));
    a->started = 1;
    return OK;
}

void attender_stop(struct attender *a)
{
    if (!a->started)
        return;
    pthread_mutex_lock(&a->lock);
    a->stop = 1;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->changed);
    a->started = 0;
}

void attender_close(struct attender *a)
{
    CHECK(!a->started);
    cross_close(&a->cross);
    for (int i = 0; i < ATTEND_JOBS; i++)
        if (a->ready[i])
            a->ready[i]->device->api->event_close(a->ready[i]);
    device_cpu()->api->stream_close(a->cpu);
    memset(a, 0, sizeof *a);
}

const struct exchange *attender_exchange(const struct attender *a)
{
    CHECK(a->n_posted - a->n_waited < ATTEND_JOBS);
    return &a->exchange[a->n_posted % ATTEND_JOBS];
}

void attender_post(struct attender *a, const struct attend_job *job)
{
    int slot = (int)(a->n_posted % ATTEND_JOBS);
    CHECK(a->n_posted - a->n_waited < ATTEND_JOBS);
    a->cross.to_cpu->device->api->record(a->cross.to_cpu, a->ready[slot]);
    a->jobs[slot] = *job;
    pthread_mutex_lock(&a->lock);
    a->n_posted++;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

enum err attender_wait(struct attender *a, const struct exchange **x, const uint64_t **dirty)
{
    int slot = (int)(a->n_waited % ATTEND_JOBS);
    CHECK(a->n_waited < a->n_posted);
    pthread_mutex_lock(&a->lock);
    while (a->n_done == a->n_waited)
        pthread_cond_wait(&a->changed, &a->lock);
    pthread_mutex_unlock(&a->lock);
    a->n_waited++;
    *x = &a->exchange[slot];
    *dirty = a->dirty[slot];
    return a->jobs[slot].err == OK ? OK : fail(a->jobs[slot].err, "%s", a->jobs[slot].text);
}
