/* bench/gpu/clock_device.c - a device that computes nothing: each command takes the seconds of
 * bench/gpu/model.h, so that engine, mover and planner run as on a card that is not here.
 *
 *     --device build/bench/clock_device.so:CARD[,LOG[,SASS]]
 *
 * LOG: a line for each command, for bench/clock.py. SASS: a table of counts for the model.
 * Owns: two copy engines and the compute engine, each with its own time; an engine runs the command
 * that was ready first. Refuses: real results. Values that the host reads are made up: token ids,
 * choices of experts, pages that eviction wrote.
 *
 * Note: memory is reserved and not touched, because the models are larger than this machine. Only
 * small copies are made, those that ops queue with their launches: tables and results. One thread
 * handles all commands; a command that is handled late keeps its own time, so only a waiting thread
 * sees the delay of a wake, as on a card. */
#include "bench/gpu/model.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

#define ARGS_MAX  1024
#define REAL_COPY (1 << 20) // largest copy that is really made on a stream of ops
#define NEVER     INT64_MAX
/* Most tokens whose choices of experts the host may read. */
#define ROUTED_MAX 256

enum command_kind { CLOCK_COPY, CLOCK_FILL, CLOCK_LAUNCH, CLOCK_NOTIFY, CLOCK_RECORD, CLOCK_WAIT };
enum engine { ENGINE_H2D, ENGINE_D2H, ENGINE_COMPUTE, N_ENGINES };
static const char *const engine_names[N_ENGINES] = {"h2d", "d2h", "compute"};
#define OP_NAME(name) #name,
static const char *const op_names[N_OPS] = {OPS(OP_NAME)};
#undef OP_NAME

struct clock_event {
    struct event event;
    int64_t recorded, happened; // number of records queued and reached
    int64_t happened_ns;
};

struct command {
    struct command *next;
    enum command_kind kind;
    int64_t queued_ns, n_bytes, record;
    void *to;
    const void *from;
    int byte, is_small; // is_small: the copy is really made
    int by_kernel;      // a copy made by a kernel
    enum op op;
    struct ops ops;
    void (*fn)(void *ctx, enum err err);
    void *ctx;
    struct clock_event *event;
    uint64_t args[ARGS_MAX / 8];
};

struct clock_stream {
    struct stream stream;
    struct clock_stream *next_stream;
    struct command *first, **last;
    int64_t end_ns; // end of its last handled command
    int has_ops;    // ops were launched on it
};

struct block {
    struct block *next;
    uint8_t *base;
    int64_t n_bytes;
};

struct clock {
    struct device device;
    const struct gpu_card *card;
    pthread_t thread;
    pthread_mutex_t lock; // guards the fields below
    pthread_cond_t queued, happened;
    struct clock_stream *streams;
    struct command *spare;
    struct block *blocks;
    int64_t bytes, free_ns[N_ENGINES];
    int64_t n_commands;  // queued on streams of ops
    int launches[N_OPS]; // kernels of an op when last priced
    int stop;
    uint64_t rng;
    FILE *log;
};

static struct clock *clock_of(struct device *d)
{
    return (struct clock *)(void *)d;
}

static struct clock_stream *stream_of(struct stream *s)
{
    return (struct clock_stream *)(void *)s;
}

/* ---- memory ---- */

static enum err clock_alloc(struct device *d, int64_t n_bytes, void **p)
{
    struct clock *c = clock_of(d);
    if (c->bytes + n_bytes > c->card->memory_bytes)
        return fail(ERR_FIT, "clock device: %lld bytes are more than is free (lower --mem-device)",
                    (long long)n_bytes);
    struct block *b = calloc(1, sizeof *b);
    CHECK(b);
    b->base = mmap(NULL, (size_t)n_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(b->base != MAP_FAILED);
    b->n_bytes = n_bytes;
    pthread_mutex_lock(&c->lock);
    b->next = c->blocks;
    c->blocks = b;
    c->bytes += n_bytes;
    pthread_mutex_unlock(&c->lock);
    *p = b->base;
    return OK;
}

static void clock_release(struct device *d, void *p, int64_t n_bytes)
{
    struct clock *c = clock_of(d);
    if (!p)
        return;
    pthread_mutex_lock(&c->lock);
    struct block **at = &c->blocks;
    while ((*at)->base != p)
        at = &(*at)->next;
    struct block *b = *at;
    *at = b->next;
    c->bytes -= n_bytes;
    pthread_mutex_unlock(&c->lock);
    munmap(b->base, (size_t)b->n_bytes);
    free(b);
}

/* 1: p is memory of the device. Call with the lock. */
static int is_device(const struct clock *c, const void *p)
{
    for (const struct block *b = c->blocks; b; b = b->next)
        if ((const uint8_t *)p >= b->base && (const uint8_t *)p < b->base + b->n_bytes)
            return 1;
    return 0;
}

static enum err clock_pin(struct device *d, void *p, int64_t n_bytes)
{
    (void)d, (void)p, (void)n_bytes;
    return OK;
}

static void clock_unpin(struct device *d, void *p, int64_t n_bytes)
{
    (void)d, (void)p, (void)n_bytes;
}

/* ---- made-up results for the host ---- */

static uint64_t roll(struct clock *c)
{
    return c->rng = mix64(c->rng + 1);
}

/* Random choices of experts, only for the few tokens that the host reads, to save time. */
static void make_route(struct clock *c, const struct route_args *a)
{
    if (a->m > ROUTED_MAX)
        return;
    struct route_args own = *a;
    float *logits = (float *)(uintptr_t)a->logits;
    const struct ops ops = {.isa = ISA_PORTABLE, .compute = COMPUTE_F32};
    for (int i = 0; i < a->m; i++)
        for (int e = 0; e < a->to.n_experts; e++)
            logits[i * a->logits_stride + e] = (float)(roll(c) % 4096) / 1024;
    ops_here(OP_route, &ops, &own);
}

static void make_results(struct clock *c, const struct head_reduce_args *a)
{
    for (int i = 0; i < a->m && a->first == 0; i++) {
        struct head_result *r = &a->results[i];
        r->max = r->best_logit = r->sample_logit = r->sample_value = 0;
        r->sum = 1;
        r->best_id = r->sample_id = (int32_t)(roll(c) % (uint64_t)a->n);
    }
}

/* Sets the pages written by a new token and, if heads evict, by each head's victim. */
static void make_dirty(struct clock *c, const struct attend_forced_args *a)
{
    for (int i = 0; i < a->n_spans; i++) {
        const struct forced_span *s = &a->spans[i];
        uint64_t *bits = a->kv.dirty + (int64_t)s->row * a->kv.dirty_stride;
        const int pages = s->n_slots / PAGE_SLOTS;
        const int n = a->evict.policy == EVICT_FULL ? 0 : a->kv.layout.n_kv_heads;
        for (int j = 0; j <= n; j++) {
            const int page = j == 0 || pages == 0 ? pages : (int)(roll(c) % (uint64_t)pages);
            if (page / 64 < a->kv.dirty_stride)
                bits[page / 64] |= 1ull << page % 64;
        }
    }
}

static void make_up(struct clock *c, const struct command *m)
{
    if (m->kind == CLOCK_LAUNCH && m->op == OP_route)
        make_route(c, (const void *)m->args);
    else if (m->kind == CLOCK_LAUNCH && m->op == OP_head_reduce)
        make_results(c, (const void *)m->args);
    else if (m->kind == CLOCK_LAUNCH && m->op == OP_attend_forced)
        make_dirty(c, (const void *)m->args);
    else if (m->kind == CLOCK_COPY && m->is_small)
        memcpy(m->to, m->from, (size_t)m->n_bytes);
    else if (m->kind == CLOCK_FILL && m->is_small)
        memset(m->to, m->byte, (size_t)m->n_bytes);
}

/* ---- time ---- */

/* The engine of a command, and its seconds there. */
static enum engine engine_of(struct clock *c, const struct command *m, double *s)
{
    if (m->kind == CLOCK_LAUNCH) {
        const struct gpu_cost cost = gpu_op(c->card, m->op, &m->ops, m->args);
        c->launches[m->op] = cost.n_launches;
        *s = cost.s;
        return ENGINE_COMPUTE;
    }
    const int there = is_device(c, m->to);
    const int from = m->kind == CLOCK_FILL || is_device(c, m->from);
    const enum gpu_copy kind = there && from ? GPU_INSIDE : there ? GPU_H2D : GPU_D2H;
    *s = gpu_copy_s(c->card, kind, m->n_bytes);
    if (m->by_kernel && kind != GPU_INSIDE) { // a kernel that reads or writes RAM
        *s += c->card->launch_s;
        return ENGINE_COMPUTE;
    }
    return kind == GPU_INSIDE ? ENGINE_COMPUTE : kind == GPU_H2D ? ENGINE_H2D : ENGINE_D2H;
}

/* When the first command of a stream could start; NEVER: not known yet. */
static int64_t ready_ns(const struct clock_stream *s)
{
    const struct command *m = s->first;
    if (!m || (m->kind == CLOCK_WAIT && m->event->happened < m->record))
        return NEVER;
    int64_t at = max_i64(s->end_ns, m->queued_ns);
    return m->kind == CLOCK_WAIT ? max_i64(at, m->event->happened_ns) : at;
}

static void log_command(struct clock *c, enum engine engine, const struct command *m, int64_t start,
                        int64_t end)
{
    if (c->log)
        fprintf(c->log, "%s,%lld,%lld,%s,%lld\n", engine_names[engine], (long long)start,
                (long long)end, m->kind == CLOCK_LAUNCH ? op_names[m->op] : "copy",
                (long long)m->n_bytes);
}

/* Handles a stream's first command, ready since `ready`; called with the lock, which is released
 * while the host is notified. */
static void handle(struct clock *c, struct clock_stream *s, int64_t ready)
{
    struct command *m = s->first;
    s->first = m->next;
    if (!s->first)
        s->last = &s->first;
    s->end_ns = ready;
    if (m->kind == CLOCK_RECORD) {
        m->event->happened = m->record;
        m->event->happened_ns = ready;
        pthread_cond_broadcast(&c->happened);
    } else if (m->kind == CLOCK_NOTIFY) {
        pthread_mutex_unlock(&c->lock);
        m->fn(m->ctx, OK);
        pthread_mutex_lock(&c->lock);
    } else if (m->kind != CLOCK_WAIT) {
        double seconds;
        const enum engine engine = engine_of(c, m, &seconds);
        const int64_t start = max_i64(ready, c->free_ns[engine]);
        c->free_ns[engine] = s->end_ns = start + (int64_t)(seconds * 1e9);
        make_up(c, m);
        log_command(c, engine, m, start, s->end_ns);
    }
    m->next = c->spare;
    c->spare = m;
}

static void sleep_until(struct clock *c, int64_t ns)
{
    const struct timespec at = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    if (ns == NEVER)
        pthread_cond_wait(&c->queued, &c->lock);
    else
        pthread_cond_timedwait(&c->queued, &c->lock, &at);
}

/* Handles the command that was ready first, at its time. */
static void *clock_main(void *arg)
{
    struct clock *c = arg;
    prctl(PR_SET_TIMERSLACK, 1000); // lateness of sleeps in nanoseconds; 50,000 by default
    pthread_mutex_lock(&c->lock);
    for (;;) {
        struct clock_stream *next = NULL;
        int64_t at = NEVER;
        for (struct clock_stream *s = c->streams; s; s = s->next_stream)
            if (ready_ns(s) < at) {
                at = ready_ns(s);
                next = s;
            }
        if (next && at <= clock_ns())
            handle(c, next, at);
        else if (c->stop)
            break;
        else
            sleep_until(c, at);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- queueing ---- */

static struct command *command_new(struct clock *c, enum command_kind kind)
{
    pthread_mutex_lock(&c->lock);
    struct command *m = c->spare;
    if (m)
        c->spare = m->next;
    pthread_mutex_unlock(&c->lock);
    if (!m)
        m = malloc(sizeof *m);
    CHECK(m);
    memset(m, 0, offsetof(struct command, args));
    m->kind = kind;
    return m;
}

/* Spends the host's time to queue kernels, which the runtime of a card needs. */
static void spend(const struct clock *c, int64_t from_ns, int n_commands)
{
    const int64_t until = from_ns + (int64_t)(n_commands * c->card->queue_s * 1e9);
    while (clock_ns() < until)
        ;
}

/* Logs the CPU time of the queueing thread at each record: the host's cost of a step. */
static void log_host(struct clock *c)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    fprintf(c->log, "host,%lld,%lld,record,%lld\n", (long long)clock_ns(),
            (long long)t.tv_sec * 1000000000 + t.tv_nsec, (long long)c->n_commands);
}

static void queue(struct stream *stream, struct command *m)
{
    struct clock *c = clock_of(stream->device);
    struct clock_stream *s = stream_of(stream);
    const int64_t now = clock_ns();
    pthread_mutex_lock(&c->lock);
    m->queued_ns = now;
    s->has_ops |= m->kind == CLOCK_LAUNCH;
    m->is_small = m->n_bytes <= (s->has_ops ? REAL_COPY : GPU_SMALL_BYTES);
    if (m->event) {
        m->event->recorded += m->kind == CLOCK_RECORD;
        m->record = m->event->recorded;
    }
    const int n = m->kind == CLOCK_LAUNCH ? c->launches[m->op] : 1;
    const int idle = !s->first;
    c->n_commands += s->has_ops ? n : 0;
    *s->last = m;
    s->last = &m->next;
    if (c->log && s->has_ops && m->kind == CLOCK_RECORD)
        log_host(c);
    if (idle)
        pthread_cond_signal(&c->queued);
    pthread_mutex_unlock(&c->lock);
    spend(c, now, n);
}

static void copy(struct stream *s, void *to, const void *from, int64_t n_bytes, int by_kernel)
{
    struct command *m = command_new(clock_of(s->device), CLOCK_COPY);
    m->to = to;
    m->from = from;
    m->n_bytes = n_bytes;
    m->by_kernel = by_kernel;
    queue(s, m);
}

static void clock_copy(struct stream *s, void *to, const void *from, int64_t n_bytes)
{
    copy(s, to, from, n_bytes, 0);
}

static void clock_ops_copy(struct stream *s, void *to, const void *from, int64_t n_bytes)
{
    copy(s, to, from, n_bytes, n_bytes < GPU_SMALL_BYTES); // like kernels/cuda/device.cu
}

static void clock_fill(struct stream *s, void *to, int byte, int64_t n_bytes)
{
    struct command *m = command_new(clock_of(s->device), CLOCK_FILL);
    m->to = to;
    m->byte = byte;
    m->n_bytes = n_bytes;
    queue(s, m);
}

static void clock_launch(struct stream *s, enum op op, const struct ops *ops, const void *args)
{
    struct command *m = command_new(clock_of(s->device), CLOCK_LAUNCH);
    m->op = op;
    m->ops = *ops;
    CHECK(ops_args_bytes(op) <= ARGS_MAX);
    memcpy(m->args, args, (size_t)ops_args_bytes(op));
    queue(s, m);
}

static void clock_notify(struct stream *s, void (*fn)(void *ctx, enum err err), void *ctx)
{
    struct command *m = command_new(clock_of(s->device), CLOCK_NOTIFY);
    m->fn = fn;
    m->ctx = ctx;
    queue(s, m);
}

static void clock_record(struct stream *s, struct event *e)
{
    struct command *m = command_new(clock_of(s->device), CLOCK_RECORD);
    m->event = (struct clock_event *)(void *)e;
    queue(s, m);
}

static void clock_stream_wait(struct stream *s, struct event *e)
{
    struct command *m = command_new(clock_of(s->device), CLOCK_WAIT);
    m->event = (struct clock_event *)(void *)e;
    queue(s, m);
}

/* ---- streams and events ---- */

static enum err clock_stream_open(struct device *d, struct stream **out)
{
    struct clock *c = clock_of(d);
    struct clock_stream *s = calloc(1, sizeof *s);
    CHECK(s);
    s->stream.device = d;
    s->last = &s->first;
    pthread_mutex_lock(&c->lock);
    s->next_stream = c->streams;
    c->streams = s;
    pthread_mutex_unlock(&c->lock);
    *out = &s->stream;
    return OK;
}

static enum err clock_event_open(struct device *d, struct event **e)
{
    struct clock_event *ce = calloc(1, sizeof *ce);
    CHECK(ce);
    ce->event.device = d;
    *e = &ce->event;
    return OK;
}

static void clock_event_close(struct event *e)
{
    free(e);
}

static enum err clock_event_wait(struct stream *stream, struct event *event)
{
    struct clock *c = clock_of(stream->device);
    const struct clock_event *e = (struct clock_event *)(void *)event;
    pthread_mutex_lock(&c->lock);
    while (e->happened < e->recorded)
        pthread_cond_wait(&c->happened, &c->lock);
    pthread_mutex_unlock(&c->lock);
    return OK;
}

static void clock_stream_close(struct stream *stream)
{
    struct clock_stream *s = stream_of(stream);
    struct event *done;
    if (!s)
        return;
    struct clock *c = clock_of(stream->device);
    (void)clock_event_open(stream->device, &done);
    clock_record(stream, done);
    (void)clock_event_wait(stream, done);
    clock_event_close(done);
    pthread_mutex_lock(&c->lock);
    struct clock_stream **at = &c->streams;
    while (*at != s)
        at = &(*at)->next_stream;
    *at = s->next_stream;
    pthread_mutex_unlock(&c->lock);
    free(s);
}

static int64_t clock_between_ns(struct event *from, struct event *to)
{
    return ((struct clock_event *)(void *)to)->happened_ns -
           ((struct clock_event *)(void *)from)->happened_ns;
}

/* ---- the device ---- */

static struct weight_form clock_reads(struct device *d, enum compute compute, enum dtype stored)
{
    return gpu_weight_form(clock_of(d)->card, compute, stored);
}

static enum err clock_info(struct device *d, struct device_info *info)
{
    const struct clock *c = clock_of(d);
    *info = (struct device_info){.memory_bytes = c->card->memory_bytes,
                                 .free_bytes = c->card->memory_bytes - c->bytes};
    snprintf(info->model, sizeof info->model, "%s by the clock", c->card->name);
    return OK;
}

static void clock_close(struct device *d)
{
    struct clock *c = clock_of(d);
    pthread_mutex_lock(&c->lock);
    c->stop = 1;
    pthread_cond_signal(&c->queued);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    for (struct command *m = c->spare, *next; m; m = next) {
        next = m->next;
        free(m);
    }
    if (c->log)
        fclose(c->log);
    free(c);
}

static const struct device_api *clock_api(void)
{
    static struct device_api api = {.name = "clock",
                                    .reads = clock_reads,
                                    .info = clock_info,
                                    .close = clock_close,
                                    .alloc = clock_alloc,
                                    .release = clock_release,
                                    .pin = clock_pin,
                                    .pin_some = clock_pin,
                                    .unpin = clock_unpin,
                                    .stream_open = clock_stream_open,
                                    .stream_close = clock_stream_close,
                                    .copy = clock_copy,
                                    .ops_copy = clock_ops_copy,
                                    .fill = clock_fill,
                                    .launch = clock_launch,
                                    .notify = clock_notify,
                                    .event_open = clock_event_open,
                                    .event_close = clock_event_close,
                                    .record = clock_record,
                                    .stream_wait = clock_stream_wait,
                                    .event_wait = clock_event_wait,
                                    .between_ns = clock_between_ns};
    api.scratch = device_cpu()->api->scratch;
    return &api;
}

static enum err clock_start(struct clock *c)
{
    pthread_condattr_t monotonic; // the clock of clock_ns()
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->queued, &monotonic);
    pthread_cond_init(&c->happened, NULL);
    for (int op = 0; op < N_OPS; op++)
        c->launches[op] = 1;
    return pthread_create(&c->thread, NULL, clock_main, c) == 0
               ? OK
               : fail(ERR_DEVICE, "clock device: no thread");
}

enum err sluice_device_open(int version, const char *arg, struct device **d);
enum err sluice_device_open(int version, const char *arg, struct device **d)
{
    char words[3][1024] = {{0}};
    if (version != DEVICE_VERSION)
        return fail(ERR_DEVICE, "clock device: made for version %d of sluice's devices, not %d",
                    DEVICE_VERSION, version);
    sscanf(arg, "%1023[^,],%1023[^,],%1023[^,]", words[0], words[1], words[2]);
    const struct gpu_card *card = gpu_card_by_name(words[0]);
    if (!card)
        return fail(ERR_DEVICE, "clock device: no card '%s' (bench/gpu/cards.c)", words[0]);
    if (words[2][0])
        TRY(gpu_facts_read(words[2]));
    struct clock *c = calloc(1, sizeof *c);
    CHECK(c);
    c->device.api = clock_api();
    c->card = card;
    if (words[1][0] && !(c->log = fopen(words[1], "w")))
        return fail(ERR_DEVICE, "clock device: %s: %s", words[1], strerror(errno));
    *d = &c->device;
    return clock_start(c);
}
