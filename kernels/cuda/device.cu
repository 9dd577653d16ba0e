/* kernels/cuda/device.cu - a CUDA device behind kernels/device.h; sluice-cuda.so opens it.
 *
 * Owns: memory, streams and events of one GPU, and the detection of its loss. Refuses: what an op
 * computes (the other files here).
 *
 * Note: CUDA reports a failed kernel at some later call, of any thread, and every call after that
 * fails alike. So every call's result is checked at once, the first failure is kept, and later
 * requests are dropped. CUDA calls no host function once the device is lost: so each stream has a
 * thread that waits for an event after the queued work and then notifies. The current device is per
 * thread. */
#include "kernels/cuda/loose.cuh"
#include "kernels/cuda/matmul_lt.cuh"

#include "kernels/cuda/cards.cuh" // behind those, which make functions of base.h the device's, too

#include <cuda_runtime.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "kernels/device.h"
#include "kernels/base/thread.h"

#define SM_MIN     75
#define PAGE       4096 // alignment promised by device.h; CUDA's is 256
#define NOTE_FLAGS (cudaEventBlockingSync | cudaEventDisableTiming)

/* An allocation. */
struct block {
    struct block *next;
    void *base, *at; // CUDA's address, and the aligned address in it
};

struct gpu {
    struct device device;
    int index, sm; // sm: 75, 80, 90 ...
    char name[80];
    pthread_mutex_t lock; // protects the fields below
    int lost;
    char what[512]; // the first failure
    struct block *blocks;
    int told;     // 1: the warning about unpinned RAM was given
    struct lt lt; // open if requested
    // with locks of their own
    struct pins pins;
    struct loose loose; // owns pinned buffers; none: all RAM is pinned
};

/* A pending notification. */
struct note {
    struct note *next;
    cudaEvent_t event; // after the work queued before
    int recorded;
    void (*fn)(void *ctx, enum err err);
    void *ctx;
};

struct gpu_stream {
    struct stream stream;
    cudaStream_t cuda;
    pthread_t teller;
    struct loose_stream loose;
    pthread_mutex_t lock; // protects the fields below
    pthread_cond_t changed;
    struct note *first, **last, *spare; // in order; free list
    int stop;
};

struct gpu_event {
    struct event event;
    cudaEvent_t cuda;
};

static struct gpu *gpu_of(struct device *d)
{
    return (struct gpu *)d;
}

static struct gpu_stream *stream_of(struct stream *s)
{
    return (struct gpu_stream *)s;
}

/* ---- every call's result ---- */

static int is_lost(struct gpu *g)
{
    pthread_mutex_lock(&g->lock);
    const int lost = g->lost;
    pthread_mutex_unlock(&g->lock);
    return lost;
}

/* Marks the device as lost; the first call records `name` as the cause. */
static void lose(struct gpu *g, const char *name, const char *why)
{
    pthread_mutex_lock(&g->lock);
    const int first = !g->lost;
    if (first)
        snprintf(g->what, sizeof g->what, "cuda: %s: %s", name, why);
    g->lost = 1;
    pthread_mutex_unlock(&g->lock);
    if (first)
        log_line(LOG_WARN, "%s; the device is lost", g->what);
}

/* 1: success. Else marks the device as lost. */
static int done(struct gpu *g, cudaError_t e, const char *name)
{
    if (e == cudaSuccess)
        return 1;
    (void)cudaGetLastError(); // clears this thread's error before the next launch's check
    lose(g, name, cudaGetErrorString(e));
    return 0;
}
#define DONE(g, call, ...) done(g, call(__VA_ARGS__), #call)

/* Makes `index` the calling thread's current device. */
static cudaError_t device_set(int index)
{
    static __thread int current = -1;
    const cudaError_t e = current == index ? cudaSuccess : cudaSetDevice(index);
    current = e == cudaSuccess ? index : -1;
    return e;
}

/* The same for g. 0: the device is lost. */
static int enter(struct gpu *g)
{
    return !is_lost(g) && done(g, device_set(g->index), "cudaSetDevice");
}

/* OK, or why the device is lost. */
static enum err state_of(struct gpu *g)
{
    if (!is_lost(g))
        return OK;
    return fail(ERR_DEVICE, "%s", g->what); // written once, before `lost` is set
}

/* ---- memory ---- */

static enum err gpu_alloc(struct device *d, int64_t n_bytes, void **p)
{
    struct gpu *g = gpu_of(d);
    *p = NULL;
    struct block *b = (struct block *)calloc(1, sizeof *b);
    if (!b)
        return fail(ERR_FIT, "no memory to note a block of device memory");
    cudaError_t e = cudaErrorUnknown;
    if (enter(g))
        e = cudaMalloc(&b->base, (size_t)n_bytes + PAGE);
    if (e == cudaSuccess) {
        b->at = (void *)(((uintptr_t)b->base + PAGE - 1) / PAGE * PAGE);
        *p = b->at;
        pthread_mutex_lock(&g->lock);
        b->next = g->blocks;
        g->blocks = b;
        pthread_mutex_unlock(&g->lock);
        return OK;
    }
    free(b);
    if (e != cudaErrorMemoryAllocation) {
        (void)done(g, e, "cudaMalloc");
        return state_of(g);
    }
    (void)cudaGetLastError();
    size_t n_free = 0, n_all = 0;
    (void)DONE(g, cudaMemGetInfo, &n_free, &n_all);
    return fail(ERR_FIT,
                "device memory: %s refused %lld bytes, %lld of %lld are free (lower --mem-device)",
                g->name, (long long)n_bytes, (long long)n_free, (long long)n_all);
}

static void gpu_release(struct device *d, void *p, int64_t n_bytes)
{
    struct gpu *g = gpu_of(d);
    (void)n_bytes;
    if (!p)
        return;
    pthread_mutex_lock(&g->lock);
    struct block **at = &g->blocks;
    while (*at && (*at)->at != p)
        at = &(*at)->next;
    struct block *b = *at;
    CHECK(b);
    *at = b->next;
    pthread_mutex_unlock(&g->lock);
    if (enter(g))
        (void)DONE(g, cudaFree, b->base);
    free(b);
}

static void locked_limit(char *text, size_t cap)
{
    struct rlimit limit = {};
    snprintf(text, cap, "unlimited");
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        snprintf(text, cap, "%lld KiB", (long long)(limit.rlim_cur >> 10));
}

static void drop_pins(struct gpu *g, const void *p, int64_t n_bytes)
{
    const int lost = !enter(g);
    (void)done(g, pins_drop(&g->pins, g->index, p, n_bytes, lost), "cudaHostUnregister");
}

/* If the host has the memory, kernels read it as well: rows of an embedding. A failure to pin is no
 * loss of the device. */
static enum err gpu_pin(struct device *d, void *p, int64_t n_bytes)
{
    struct gpu *g = gpu_of(d);
    char locked[32];
    cudaError_t why;
    if (!enter(g))
        return state_of(g);
    if (pins_add(&g->pins, g->index, p, n_bytes, &why) == n_bytes)
        return OK;
    drop_pins(g, p, n_bytes);
    locked_limit(locked, sizeof locked);
    return fail(ERR_DEVICE,
                "cuda: %lld bytes of RAM cannot be pinned: %s (lower --mem-ram, or raise ulimit "
                "-l, now %s)",
                (long long)n_bytes, cudaGetErrorString(why), locked);
}

static enum err buffers_open(struct gpu *g)
{
    const int64_t n_bytes = LOOSE_BUFFERS * LOOSE_BUFFER_BYTES;
    if (g->loose.base)
        return OK;
    void *base = aligned_alloc((size_t)max_i64(PAGE, LOOSE_BUFFER_BYTES), (size_t)n_bytes);
    if (!base)
        return fail(ERR_FIT, "no memory for buffers of copies");
    const enum err e = gpu_pin(&g->device, base, n_bytes);
    if (e == OK)
        g->loose.base = (uint8_t *)base;
    else
        free(base);
    return e;
}

/* Buffers are needed only while some RAM is not pinned. */
static void buffers_close(struct gpu *g)
{
    if (!g->loose.base || pins_any_loose(&g->pins))
        return;
    drop_pins(g, g->loose.base, LOOSE_BUFFERS * LOOSE_BUFFER_BYTES);
    free(g->loose.base);
    g->loose.base = NULL;
}

/* Allocates the buffers first: once pinning hits a limit, there would be no room for them. */
static enum err gpu_pin_some(struct device *d, void *p, int64_t n_bytes)
{
    struct gpu *g = gpu_of(d);
    char locked[32];
    cudaError_t why;
    if (!enter(g))
        return state_of(g);
    TRY(buffers_open(g));
    const int64_t n_pinned = pins_add(&g->pins, g->index, p, n_bytes, &why);
    buffers_close(g);
    if (n_pinned == n_bytes || g->told)
        return OK;
    g->told = 1;
    locked_limit(locked, sizeof locked);
    log_line(LOG_WARN,
             "cuda: %.1f of %.1f MB of RAM are not pinned (%s): copies of them go over a buffer, "
             "at a fraction of the link's rate (raise ulimit -l, now %s, or lower --mem-ram)",
             (double)(n_bytes - n_pinned) * 1e-6, (double)n_bytes * 1e-6, cudaGetErrorString(why),
             locked);
    return OK;
}

static void gpu_unpin(struct device *d, void *p, int64_t n_bytes)
{
    struct gpu *g = gpu_of(d);
    drop_pins(g, p, n_bytes);
    buffers_close(g);
}

/* ---- notes ---- */

/* A free note with an event; NULL: the device is lost. The list grows to the greatest number of
 * notes pending at once. */
static struct note *note_take(struct gpu_stream *s)
{
    struct gpu *g = gpu_of(s->stream.device);
    pthread_mutex_lock(&s->lock);
    struct note *n = s->spare;
    if (n)
        s->spare = n->next;
    pthread_mutex_unlock(&s->lock);
    if (n)
        return n;
    n = (struct note *)calloc(1, sizeof *n);
    CHECK(n);
    if (enter(g) && !DONE(g, cudaEventCreateWithFlags, &n->event, NOTE_FLAGS))
        n->event = NULL;
    return n;
}

static void gpu_notify(struct stream *stream, void (*fn)(void *ctx, enum err err), void *ctx)
{
    struct gpu_stream *s = stream_of(stream);
    struct gpu *g = gpu_of(stream->device);
    struct note *n = note_take(s);
    n->fn = fn;
    n->ctx = ctx;
    n->recorded = n->event && enter(g) && DONE(g, cudaEventRecord, n->event, s->cuda);
    n->next = NULL;
    pthread_mutex_lock(&s->lock);
    *s->last = n;
    s->last = &n->next;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* The next note, in order; NULL: the stream is closing. */
static struct note *note_next(struct gpu_stream *s)
{
    pthread_mutex_lock(&s->lock);
    while (!s->first && !s->stop)
        pthread_cond_wait(&s->changed, &s->lock);
    struct note *n = s->first;
    if (n)
        s->first = n->next;
    if (!s->first)
        s->last = &s->first;
    pthread_mutex_unlock(&s->lock);
    return n;
}

static void *teller_main(void *arg)
{
    struct gpu_stream *s = (struct gpu_stream *)arg;
    struct gpu *g = gpu_of(s->stream.device);
    struct note *n;
    while ((n = note_next(s))) {
        if (n->recorded && enter(g))
            (void)DONE(g, cudaEventSynchronize, n->event);
        n->fn(n->ctx, state_of(g));
        pthread_mutex_lock(&s->lock);
        n->next = s->spare;
        s->spare = n;
        pthread_mutex_unlock(&s->lock);
    }
    return NULL;
}

/* ---- streams ---- */

static void stream_free(struct gpu_stream *s)
{
    struct gpu *g = gpu_of(s->stream.device);
    for (struct note *n = s->spare, *next; n; n = next) {
        next = n->next;
        if (n->event && enter(g))
            (void)DONE(g, cudaEventDestroy, n->event);
        free(n);
    }
    if (s->cuda && enter(g))
        (void)DONE(g, cudaStreamDestroy, s->cuda);
    loose_stream_close(&s->loose);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    free(s);
}

static enum err gpu_stream_open(struct device *d, struct stream **out)
{
    struct gpu *g = gpu_of(d);
    *out = NULL;
    struct gpu_stream *s = (struct gpu_stream *)calloc(1, sizeof *s);
    if (!s)
        return fail(ERR_FIT, "no memory for a stream");
    s->stream.device = d;
    s->last = &s->first;
    loose_stream_open(&s->loose, &g->loose);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    enum err e = ERR_DEVICE;
    if (enter(g) && DONE(g, cudaStreamCreateWithFlags, &s->cuda, cudaStreamNonBlocking))
        e = thread_need(&s->teller, teller_main, s, "cuda", "thread of a stream");
    else
        (void)state_of(g);
    if (e != OK) {
        stream_free(s);
        return e;
    }
    *out = &s->stream;
    return OK;
}

static void gpu_stream_close(struct stream *stream)
{
    struct gpu_stream *s = stream_of(stream);
    if (!s)
        return;
    struct gpu *g = gpu_of(stream->device);
    pthread_mutex_lock(&s->lock);
    s->stop = 1;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->teller, NULL); // all notifications are delivered
    if (enter(g))
        (void)DONE(g, cudaStreamSynchronize, s->cuda);
    stream_free(s);
}

/* ---- copies ---- */

/* Neither side crosses a border of pinned chunks. Small copies on streams of ops are done by a
 * kernel: up to 64 MiB of the mover's pieces may be queued on the copy engine. */
static void copy_pinned(struct gpu_stream *s, void *to, const void *from, int64_t n_bytes, int ops)
{
    struct gpu *g = gpu_of(s->stream.device);
    if (!enter(g))
        return;
    if (ops && n_bytes < CUDA_COPY_FEW) {
        cuda_copy(s->cuda, to, from, (int)n_bytes);
        (void)done(g, cudaGetLastError(), "launch of a copy");
    } else {
        (void)DONE(g, cudaMemcpyAsync, to, from, (size_t)n_bytes, cudaMemcpyDefault, s->cuda);
    }
}

static void carry(struct gpu_stream *s, void *to, const void *from, int64_t n_bytes)
{
    struct gpu *g = gpu_of(s->stream.device);
    if (enter(g))
        (void)done(g, loose_carry(&s->loose, s->cuda, to, from, n_bytes), "cudaLaunchHostFunc");
}

/* The order of the stream makes one buffer enough: the next part is read in after the previous part
 * was written out. */
static void copy_loose(struct gpu_stream *s, uint8_t *to, const uint8_t *from, int64_t n_bytes,
                       int to_loose, int from_loose, int ops)
{
    uint8_t *buffer = loose_buffer(&s->loose);
    if (!buffer)
        lose(gpu_of(s->stream.device), "copy", "too many streams copy RAM that is not pinned");
    for (int64_t at = 0, n; buffer && at < n_bytes; at += n) {
        n = min_i64(LOOSE_BUFFER_BYTES, n_bytes - at);
        if (from_loose)
            carry(s, buffer, from + at, n);
        else
            copy_pinned(s, buffer, from + at, n, ops);
        if (to_loose)
            carry(s, to + at, buffer, n);
        else
            copy_pinned(s, to + at, buffer, n, ops);
    }
}

/* Splits a copy where either side crosses a border of chunks. */
static void copy_runs(struct stream *stream, void *to, const void *from, int64_t n_bytes, int ops)
{
    struct gpu_stream *s = stream_of(stream);
    struct pins *pins = &gpu_of(stream->device)->pins;
    for (int64_t at = 0, n; at < n_bytes; at += n) {
        uint8_t *t = (uint8_t *)to + at;
        const uint8_t *f = (const uint8_t *)from + at;
        int to_loose, from_loose;
        n = pins_run(pins, t, n_bytes - at, &to_loose);
        n = pins_run(pins, f, n, &from_loose);
        if (to_loose || from_loose)
            copy_loose(s, t, f, n, to_loose, from_loose, ops);
        else
            copy_pinned(s, t, f, n, ops);
    }
}

static void gpu_copy(struct stream *s, void *to, const void *from, int64_t n_bytes)
{
    copy_runs(s, to, from, n_bytes, 0);
}

static void gpu_ops_copy(struct stream *s, void *to, const void *from, int64_t n_bytes)
{
    copy_runs(s, to, from, n_bytes, 1);
}

/* ---- ops ---- */

static void gpu_fill(struct stream *s, void *to, int byte, int64_t n_bytes)
{
    struct gpu *g = gpu_of(s->device);
    if (enter(g))
        (void)DONE(g, cudaMemsetAsync, to, byte, (size_t)n_bytes, stream_of(s)->cuda);
}

#define RUN(name)                                                                                  \
    static void run_##name(cudaStream_t stream, const struct ops *ops, const void *args)           \
    {                                                                                              \
        cuda_##name(stream, ops, (const struct name##_args *)args);                                \
    }
OPS(RUN)
#undef RUN

static void gpu_launch(struct stream *s, enum op op, const struct ops *ops, const void *args)
{
#define ENTRY(name) {run_##name, "launch of " #name},
    static const struct {
        void (*run)(cudaStream_t stream, const struct ops *ops, const void *args);
        const char *name;
    } entries[N_OPS] = {OPS(ENTRY)};
#undef ENTRY
    struct gpu *g = gpu_of(s->device);
    if (!enter(g))
        return;
    if (op == OP_matmul && ops->matmul == MATMUL_CUBLASLT) {
        const char *failed =
            lt_matmul(&g->lt, stream_of(s)->cuda, (const struct matmul_args *)args);
        if (failed)
            lose(g, "cublasLtMatmul", failed);
    } else {
        entries[op].run(stream_of(s)->cuda, ops, args);
    }
    (void)done(g, cudaGetLastError(), entries[op].name);
}

/* ---- matmuls of cuBLASLt ---- */

static enum err gpu_library_open(struct device *d, char *name, int cap)
{
    struct gpu *g = gpu_of(d);
    if (!enter(g))
        return state_of(g);
    TRY(lt_open(&g->lt));
    const int version = (int)g->lt.calls.cublasLtGetVersion();
    snprintf(name, (size_t)cap, "cublaslt %d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    return OK;
}

/* Runs the trials and reads their counts; counts is pinned. */
static enum err library_try(struct gpu_stream *s, const struct weight *w, int m, void *room,
                            unsigned *counts)
{
    struct gpu *g = gpu_of(s->stream.device);
    const enum err e = lt_try(&g->lt, s->cuda, w, m, room, counts);
    (void)DONE(g, cudaStreamSynchronize, s->cuda); // also waits for work queued before a failure
    TRY(e);
    TRY(state_of(g));
    return lt_tried(&g->lt, w, m, counts);
}

static enum err gpu_library_prepare(struct stream *stream, const struct weight *w, int m,
                                    void *room, int64_t room_bytes)
{
    struct device *d = stream->device;
    struct gpu *g = gpu_of(d);
    if (lt_is_ready(&g->lt, w, m))
        return OK;
    if (!enter(g))
        return state_of(g);
    if (room_bytes < lt_room_bytes(w, m))
        return fail(ERR_FIT, "device memory: checking cuBLASLt needs %lld bytes (--matmul own)",
                    (long long)lt_room_bytes(w, m));
    TRY(lt_choose(&g->lt, w, m));
    unsigned *counts = (unsigned *)aligned_alloc(PAGE, PAGE);
    if (!counts)
        return fail(ERR_FIT, "no memory for the device's counters");
    enum err e = gpu_pin(d, counts, PAGE);
    if (e == OK) {
        e = library_try(stream_of(stream), w, m, room, counts);
        gpu_unpin(d, counts, PAGE);
    }
    free(counts);
    return e;
}

/* ---- events ---- */

static enum err gpu_event_open(struct device *d, struct event **out)
{
    struct gpu *g = gpu_of(d);
    *out = NULL;
    struct gpu_event *e = (struct gpu_event *)calloc(1, sizeof *e);
    if (!e)
        return fail(ERR_FIT, "no memory for an event");
    e->event.device = d;
    if (!enter(g) || !DONE(g, cudaEventCreateWithFlags, &e->cuda, cudaEventBlockingSync)) {
        free(e);
        return state_of(g);
    }
    *out = &e->event;
    return OK;
}

static void gpu_event_close(struct event *event)
{
    struct gpu_event *e = (struct gpu_event *)event;
    if (e && enter(gpu_of(event->device)))
        (void)DONE(gpu_of(event->device), cudaEventDestroy, e->cuda);
    free(e);
}

static void gpu_record(struct stream *s, struct event *e)
{
    struct gpu *g = gpu_of(s->device);
    if (enter(g))
        (void)DONE(g, cudaEventRecord, ((struct gpu_event *)e)->cuda, stream_of(s)->cuda);
}

static void gpu_stream_wait(struct stream *s, struct event *e)
{
    struct gpu *g = gpu_of(s->device);
    if (enter(g))
        (void)DONE(g, cudaStreamWaitEvent, stream_of(s)->cuda, ((struct gpu_event *)e)->cuda, 0);
}

/* A device lost meanwhile is an error: work before the event may not have been queued. */
static enum err gpu_event_wait(struct stream *s, struct event *e)
{
    struct gpu *g = gpu_of(s->device);
    if (enter(g))
        (void)DONE(g, cudaEventSynchronize, ((struct gpu_event *)e)->cuda);
    return state_of(g);
}

static int64_t gpu_between_ns(struct event *from, struct event *to)
{
    struct gpu *g = gpu_of(from->device);
    float ms = 0;
    if (!enter(g) || !DONE(g, cudaEventElapsedTime, &ms, ((struct gpu_event *)from)->cuda,
                           ((struct gpu_event *)to)->cuda))
        return 0;
    return (int64_t)(ms * 1e6f);
}

/* ---- the device ---- */

static struct weight_form gpu_reads(struct device *d, enum compute compute, enum dtype stored)
{
    return device_cuda_reads(gpu_of(d)->sm, gpu_of(d)->lt.handle != NULL, compute, stored);
}

static int64_t no_scratch(const struct ops *ops, int k)
{
    (void)ops;
    (void)k;
    return 0;
}

static enum err gpu_info(struct device *d, struct device_info *info)
{
    struct gpu *g = gpu_of(d);
    size_t n_free = 0, n_all = 0;
    *info = {};
    snprintf(info->model, sizeof info->model, "%s, sm_%d", g->name, g->sm);
    if (enter(g) && DONE(g, cudaMemGetInfo, &n_free, &n_all)) {
        info->memory_bytes = (int64_t)n_all;
        info->free_bytes = (int64_t)n_free;
    }
    return state_of(g);
}

static void gpu_close(struct device *d)
{
    struct gpu *g = gpu_of(d);
    CHECK(!g->blocks && !g->pins.ranges); // all memory must be released and unpinned
    if (g->lt.handle)
        (void)enter(g);
    lt_close(&g->lt);
    pthread_mutex_destroy(&g->lt.lock);
    pthread_mutex_destroy(&g->pins.lock);
    pthread_mutex_destroy(&g->loose.lock);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static const struct device_api *gpu_api(void)
{
    static struct device_scratch scratch = {};
    static struct device_library library = {};
    static struct device_api api = {};
    library.open = gpu_library_open;
    library.prepare = gpu_library_prepare;
    scratch.matmul = cuda_matmul_scratch_bytes;
    scratch.expert_matmul = cuda_expert_matmul_scratch_bytes;
    scratch.gather = no_scratch;
    scratch.attend_prompt = cuda_attend_prompt_scratch_bytes;
    scratch.attend_forced = cuda_attend_forced_scratch_bytes;
    scratch.prompt_keep = cuda_prompt_keep_scratch_bytes;
    api.name = "cuda";
    api.scratch = &scratch;
    api.library = &library;
    api.reads = gpu_reads;
    api.info = gpu_info;
    api.close = gpu_close;
    api.alloc = gpu_alloc;
    api.release = gpu_release;
    api.pin = gpu_pin;
    api.pin_some = gpu_pin_some;
    api.unpin = gpu_unpin;
    api.stream_open = gpu_stream_open;
    api.stream_close = gpu_stream_close;
    api.copy = gpu_copy;
    api.ops_copy = gpu_ops_copy;
    api.fill = gpu_fill;
    api.launch = gpu_launch;
    api.notify = gpu_notify;
    api.event_open = gpu_event_open;
    api.event_close = gpu_event_close;
    api.record = gpu_record;
    api.stream_wait = gpu_stream_wait;
    api.event_wait = gpu_event_wait;
    api.between_ns = gpu_between_ns;
    return &api;
}

static __global__ void nothing(void)
{
}

/* Called once; errors as in cards_count(). */
static enum err gpu_find(struct gpu *g, const char *arg)
{
    int n = 0, sees_ram = 0;
    char *end = NULL;
    struct cudaDeviceProp properties;
    struct cudaFuncAttributes attributes;
    const long index = *arg ? strtol(arg, &end, 10) : 0;
    if (*arg && (*arg < '0' || *arg > '9' || *end || index > 1023))
        return fail(ERR_USAGE,
                    "--device: invalid value 'cuda:%s' (expected cuda, cuda:0, cuda:1, ...)", arg);
    TRY(cards_count(&n));
    if (index >= n)
        return fail(ERR_DEVICE, "cuda:%ld: no such card (this machine has cuda:0 to cuda:%d)",
                    index, n - 1);
    g->index = (int)index;
    cudaError_t e = cudaGetDeviceProperties(&properties, g->index);
    if (e == cudaSuccess)
        e = device_set(g->index);
    if (e != cudaSuccess)
        return fail(ERR_DEVICE, "cuda:%ld: %s (is it free? nvidia-smi)", index,
                    cudaGetErrorString(e));
    g->sm = properties.major * 10 + properties.minor;
    snprintf(g->name, sizeof g->name, "%.*s", (int)sizeof g->name - 1, properties.name);
    if (g->sm < SM_MIN)
        return fail(ERR_DEVICE, "cuda:%ld: %s is sm_%d, sluice needs sm_%d or newer (--device cpu)",
                    index, g->name, g->sm, SM_MIN);
    e = cudaDeviceGetAttribute(&sees_ram, cudaDevAttrCanUseHostPointerForRegisteredMem, g->index);
    if (e == cudaSuccess && !sees_ram)
        return fail(ERR_DEVICE, "cuda:%ld: %s: this card cannot read pinned RAM (--device cpu)",
                    index, g->name);
    if (e == cudaSuccess)
        e = cudaFuncGetAttributes(&attributes, (const void *)nothing);
    if (e != cudaSuccess)
        return fail(
            ERR_DEVICE,
            "cuda:%ld: %s: sluice was built without kernels for sm_%d: %s (make CUDA_ARCHS=%d)",
            index, g->name, g->sm, cudaGetErrorString(e), g->sm);
    return OK;
}

extern "C" __attribute__((visibility("default"))) enum err
sluice_device_open(int version, const char *arg, struct device **d)
{
    *d = NULL;
    TRY(cards_version(version));
    struct gpu *g = (struct gpu *)calloc(1, sizeof *g);
    if (!g)
        return fail(ERR_FIT, "no memory for the device");
    pthread_mutex_init(&g->lock, NULL);
    pthread_mutex_init(&g->lt.lock, NULL);
    pthread_mutex_init(&g->pins.lock, NULL);
    pthread_mutex_init(&g->loose.lock, NULL);
    g->device.api = gpu_api();
    enum err e = gpu_find(g, arg);
    if (e != OK) {
        (void)cudaGetLastError();
        gpu_close(&g->device);
        return e;
    }
    *d = &g->device;
    return OK;
}
