/* tests/sim_device.c - see sim_device.h.
 *
 * Note: device addresses are numbers that no memory has, on any machine;
 * a command's pointers are moved to real memory when it runs. In an op's args every word that looks
 * like an address of the device is one: no other number does. That args are flat shows here: an
 * address inside what they point to would be one that nobody can read. */
#include "tests/sim_device.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIM_MEMORY ((int64_t)1 << 30) // what it has, unless it is told
/* Of its memory: not canonical, so that reading them faults. Padding beside a number may hold the
 * high half of a stale address, so the low halves of the first 512 MiB of an allocation are numbers
 * that no op has: neither small nor, as f32, nearer to 0 than -3e19. */
#define ADDRESSES   0x00d00000e0000000u
#define BLOCKS_MAX  64
#define PINS_MAX    64
#define STREAMS_MAX 64
#define KINDS_MAX   64 // of matrices that were prepared
/* Of fresh memory: no number, a page id and a position far away. */
#define POISON   0xf7
#define ARGS_MAX 1024

enum command_kind { SIM_COPY, SIM_FILL, SIM_LAUNCH, SIM_NOTIFY, SIM_RECORD, SIM_WAIT };

struct sim_event {
    struct event event;
    int64_t recorded, happened; // counts of records queued and come to; under the device's lock
    int64_t happened_ns;        // when it came to the last of them
};

struct command {
    enum command_kind kind;
    void *to;
    const void *from;
    int64_t n_bytes;
    int byte;
    enum op op;
    struct ops ops;
    void (*fn)(void *ctx, enum err err);
    void *ctx;
    struct sim_event *event;
    int64_t record; // which record of the event
    struct command *next;
    uint64_t args[ARGS_MAX / 8];
};

struct sim_stream {
    struct stream stream;
    pthread_t thread;
    pthread_mutex_t lock; // guards what follows
    pthread_cond_t queued;
    struct command *first, **last, *spare;
    int stop;
    int index;    // among the device's streams, as they were opened
    uint64_t rng; // the thread's own
};

struct sim_device {
    struct device device;
    pthread_mutex_t lock; // guards what events and commands count
    pthread_cond_t changed;
    struct block {
        uint8_t *device, *host; // as the device's addresses; the memory it is
        int64_t n_bytes;
    } blocks[BLOCKS_MAX];
    struct pin {
        const uint8_t *base;
        int64_t n_bytes;
        int for_ops; // ops may read it
    } pins[PINS_MAX];
    uint64_t seed;
    int delay_us, n_streams, n_allocs;
    int64_t n_commands, lose_at; // commands run so far; the one that loses the device, 0: none
    int lost;
    int64_t n_copies[STREAMS_MAX]; // queued so far, by the stream's index
    int held;                      // index of the stream that goes on no more, -1: none
    struct kind {
        int n, k, m;
    } kinds[KINDS_MAX]; // of matrices, for matmuls of its library
    int n_kinds;
    int reads_f16;             // its matmuls do, as those of older cards
    int64_t memory_bytes;      // all there is
    int64_t bytes, peak_bytes; // taken
};

static struct sim_device *sim(struct device *d)
{
    return (struct sim_device *)(void *)d;
}

static enum err sim_alloc(struct device *d, int64_t n_bytes, void **p)
{
    struct sim_device *s = sim(d);
    if (s->bytes + n_bytes > s->memory_bytes)
        return fail(ERR_FIT, "device: %lld bytes are more than is free", (long long)n_bytes);
    for (int i = 0; i < BLOCKS_MAX; i++) {
        struct block *b = &s->blocks[i];
        if (b->device)
            continue;
        b->device = (uint8_t *)(uintptr_t)(ADDRESSES + ((uint64_t)++s->n_allocs << 36));
        b->host =
            mmap(NULL, (size_t)n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(b->host != MAP_FAILED);
        b->n_bytes = n_bytes;
        memset(b->host, POISON, (size_t)n_bytes);
        s->bytes += n_bytes;
        s->peak_bytes = max_i64(s->peak_bytes, s->bytes);
        *p = b->device;
        return OK;
    }
    return fail(ERR_FIT, "device: too many allocations");
}

static void sim_release(struct device *d, void *p, int64_t n_bytes)
{
    for (int i = 0; i < BLOCKS_MAX; i++) {
        struct block *b = &sim(d)->blocks[i];
        if (!p || b->device != p)
            continue;
        CHECK(b->n_bytes == n_bytes);
        sim(d)->bytes -= n_bytes;
        munmap(b->host, (size_t)n_bytes);
        *b = (struct block){0};
    }
}

/* An address as the device sees it; NULL when it is not the device's. */
static void *device_side(struct sim_device *s, const void *p)
{
    for (int i = 0; i < BLOCKS_MAX; i++) {
        const struct block *b = &s->blocks[i];
        if (b->device && (const uint8_t *)p >= b->device &&
            (const uint8_t *)p < b->device + b->n_bytes)
            return b->host + ((const uint8_t *)p - b->device);
    }
    return NULL;
}

/* Addresses of RAM stay as they are. */
static void *seen(struct sim_device *s, const void *p)
{
    void *at = device_side(s, p);
    return at ? at : (void *)(uintptr_t)p;
}

static int is_pinned(struct sim_device *s, const uint8_t *p, int64_t n_bytes, int for_ops)
{
    int pinned = 0;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < PINS_MAX; i++) {
        const struct pin *pin = &s->pins[i];
        pinned |= pin->base && p >= pin->base && p + n_bytes <= pin->base + pin->n_bytes &&
                  pin->for_ops >= for_ops;
    }
    pthread_mutex_unlock(&s->lock);
    return pinned;
}

/* One side of a copy: memory of the device to its end, or RAM that is pinned, all of it. */
static void *copy_side(struct sim_device *s, const void *p, int64_t n_bytes)
{
    uint8_t *at = device_side(s, p);
    if (at) {
        CHECK(device_side(s, (const uint8_t *)p + n_bytes - 1) == at + n_bytes - 1);
        return at;
    }
    CHECK(is_pinned(s, p, n_bytes, 0));
    return (void *)(uintptr_t)p;
}

static enum err add_pin(struct device *d, struct pin pin)
{
    int i = 0;
    pthread_mutex_lock(&sim(d)->lock);
    while (sim(d)->pins[i].base)
        CHECK(++i < PINS_MAX);
    sim(d)->pins[i] = pin;
    pthread_mutex_unlock(&sim(d)->lock);
    return OK;
}

static enum err sim_pin(struct device *d, void *p, int64_t n_bytes)
{
    return add_pin(d, (struct pin){p, n_bytes, 1});
}

/* As a device that could pin nothing more: copies work, ops see none of it. */
static enum err sim_pin_some(struct device *d, void *p, int64_t n_bytes)
{
    return add_pin(d, (struct pin){p, n_bytes, 0});
}

static void sim_unpin(struct device *d, void *p, int64_t n_bytes)
{
    int64_t n = 0;
    pthread_mutex_lock(&sim(d)->lock);
    for (int i = 0; i < PINS_MAX; i++) {
        struct pin *pin = &sim(d)->pins[i];
        if (!pin->base || pin->base < (uint8_t *)p || pin->base >= (uint8_t *)p + n_bytes)
            continue;
        n += pin->n_bytes;
        *pin = (struct pin){0};
    }
    CHECK(n == n_bytes);
    pthread_mutex_unlock(&sim(d)->lock);
}

/* The only operand that may stand in RAM, where it is pinned: rows of embeddings. */
static int may_be_ram(enum op op, int word)
{
    return op == OP_gather && word == (int)(offsetof(struct gather_args, rows) / 8);
}

/* An address of RAM: mapped here, above what sanitizers map for themselves. Numbers side by side
 * may look like one, or a small number, or a scale of scores (1/16 to 1 as f32), beside what half
 * of a stale address left in padding: those are let pass, and with them two addresses in a hundred.
 */
static int is_ram(uint64_t word)
{
    const uintptr_t page = 4096;
    unsigned char resident;
    const uint32_t low = (uint32_t)word;
    const int number =
        low < 1u << 24 || low >= 0xff000000u || (low >= 0x3d800000u && low <= 0x3f800000u);
    return word >= (1ull << 46) && word < (1ull << 47) && !number &&
           mincore((void *)(word / page * page), page, &resident) == 0;
}

static int is_prepared(const struct sim_device *s, int n, int k, int m)
{
    int found = 0;
    for (int i = 0; i < s->n_kinds; i++)
        found |= s->kinds[i].n == n && s->kinds[i].k == k && s->kinds[i].m >= m;
    return found;
}

static void run_launch(struct sim_device *s, struct command *c)
{
    const struct matmul_args *matmul = (const void *)c->args;
    for (int i = 0; c->op == OP_matmul && c->ops.matmul != MATMUL_OWN && i < matmul->n_parts; i++)
        CHECK(is_prepared(s, matmul->parts[i].w.n, matmul->parts[i].w.k, matmul->m));
    for (int i = 0; i < (int)ops_args_bytes(c->op) / 8; i++) {
        const uint8_t *p = (uint8_t *)(uintptr_t)c->args[i];
        CHECK(!is_ram(c->args[i]) || (may_be_ram(c->op, i) && is_pinned(s, p, 1, 1)));
        c->args[i] = (uint64_t)(uintptr_t)seen(s, p);
    }
    c->ops.stream = NULL;
    c->ops.pool = NULL;
    ops_here(c->op, &c->ops, c->args);
}

/* Runs one command; called without the lock. On a lost device nothing runs, but it is still told.
 */
static void command_run(struct sim_stream *st, struct command *c)
{
    struct sim_device *s = sim(st->stream.device);
    st->rng = mix64(st->rng);
    if (s->delay_us > 0 && st->rng % 8 == 0) // most come at once, some late
        usleep((unsigned)(st->rng / 8 % (uint64_t)(s->delay_us + 1)));
    pthread_mutex_lock(&s->lock);
    while (s->held == st->index)
        pthread_cond_wait(&s->changed, &s->lock);
    s->lost |= ++s->n_commands == s->lose_at;
    while (c->kind == SIM_WAIT && c->event->happened < c->record && !s->lost)
        pthread_cond_wait(&s->changed, &s->lock);
    int lost = s->lost;
    pthread_mutex_unlock(&s->lock);
    if (c->kind == SIM_NOTIFY)
        c->fn(c->ctx, lost ? ERR_DEVICE : OK);
    else if (lost)
        ;
    else if (c->kind == SIM_COPY)
        memcpy(copy_side(s, c->to, c->n_bytes), copy_side(s, c->from, c->n_bytes),
               (size_t)c->n_bytes);
    else if (c->kind == SIM_FILL)
        memset(copy_side(s, c->to, c->n_bytes), c->byte, (size_t)c->n_bytes);
    else if (c->kind == SIM_LAUNCH)
        run_launch(s, c);
    pthread_mutex_lock(&s->lock);
    if (c->kind == SIM_RECORD) {
        c->event->happened = c->record;
        c->event->happened_ns = clock_ns();
    }
    if (c->kind == SIM_RECORD || lost)
        pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void *stream_main(void *arg)
{
    struct sim_stream *st = arg;
    struct command *done = NULL;
    for (;;) {
        pthread_mutex_lock(&st->lock);
        if (done) {
            done->next = st->spare;
            st->spare = done;
        }
        while (!st->first && !st->stop)
            pthread_cond_wait(&st->queued, &st->lock);
        struct command *c = st->first;
        if (c) {
            st->first = c->next;
            if (!st->first)
                st->last = &st->first;
        }
        pthread_mutex_unlock(&st->lock);
        if (!c)
            return NULL;
        command_run(st, c);
        done = c;
    }
}

/* A command of a stream, to be filled in: all but its args is zero. Queueing is to cost the host
 * little, as it does on a device: what it costs is measured. */
static struct command *command_new(struct stream *stream, enum command_kind kind)
{
    struct sim_stream *st = (struct sim_stream *)(void *)stream;
    pthread_mutex_lock(&st->lock);
    struct command *c = st->spare;
    if (c)
        st->spare = c->next;
    pthread_mutex_unlock(&st->lock);
    if (!c)
        c = malloc(sizeof *c);
    CHECK(c);
    memset(c, 0, offsetof(struct command, args));
    c->kind = kind;
    return c;
}

static void queue(struct stream *stream, struct command *c)
{
    struct sim_stream *st = (struct sim_stream *)(void *)stream;
    struct sim_device *s = sim(stream->device);
    if (c->event) {
        pthread_mutex_lock(&s->lock);
        c->event->recorded += c->kind == SIM_RECORD;
        c->record = c->event->recorded;
        pthread_mutex_unlock(&s->lock);
    }
    pthread_mutex_lock(&st->lock);
    const int idle = !st->first;
    *st->last = c;
    st->last = &c->next;
    if (idle)
        pthread_cond_signal(&st->queued);
    pthread_mutex_unlock(&st->lock);
}

static enum err sim_stream_open(struct device *d, struct stream **out)
{
    struct sim_stream *st = calloc(1, sizeof *st);
    CHECK(st);
    st->stream.device = d;
    st->last = &st->first;
    pthread_mutex_init(&st->lock, NULL);
    pthread_cond_init(&st->queued, NULL);
    st->index = sim(d)->n_streams++;
    st->rng = mix64(sim(d)->seed * 64 + (uint64_t)st->index);
    *out = &st->stream;
    return pthread_create(&st->thread, NULL, stream_main, st) == 0 ? OK : ERR_DEVICE;
}

static void sim_stream_close(struct stream *stream)
{
    struct sim_stream *st = (struct sim_stream *)(void *)stream;
    if (!st)
        return;
    pthread_mutex_lock(&st->lock);
    st->stop = 1;
    pthread_cond_signal(&st->queued);
    pthread_mutex_unlock(&st->lock);
    pthread_join(st->thread, NULL);
    for (struct command *c = st->spare, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    pthread_mutex_destroy(&st->lock);
    pthread_cond_destroy(&st->queued);
    free(st);
}

static void sim_copy(struct stream *s, void *to, const void *from, int64_t n_bytes)
{
    struct sim_device *d = sim(s->device);
    struct command *c = command_new(s, SIM_COPY);
    pthread_mutex_lock(&d->lock);
    d->n_copies[((struct sim_stream *)(void *)s)->index % STREAMS_MAX]++;
    pthread_mutex_unlock(&d->lock);
    c->to = to;
    c->from = from;
    c->n_bytes = n_bytes;
    queue(s, c);
}

static void sim_fill(struct stream *s, void *to, int byte, int64_t n_bytes)
{
    struct command *c = command_new(s, SIM_FILL);
    c->to = to;
    c->byte = byte;
    c->n_bytes = n_bytes;
    queue(s, c);
}

static void sim_launch(struct stream *s, enum op op, const struct ops *ops, const void *args)
{
    struct command *c = command_new(s, SIM_LAUNCH);
    c->op = op;
    c->ops = *ops;
    CHECK(ops_args_bytes(op) <= ARGS_MAX && ops_args_bytes(op) % 8 == 0);
    memcpy(c->args, args, (size_t)ops_args_bytes(op));
    queue(s, c);
}

static void sim_notify(struct stream *s, void (*fn)(void *ctx, enum err err), void *ctx)
{
    struct command *c = command_new(s, SIM_NOTIFY);
    c->fn = fn;
    c->ctx = ctx;
    queue(s, c);
}

static enum err sim_event_open(struct device *d, struct event **e)
{
    struct sim_event *se = calloc(1, sizeof *se);
    CHECK(se);
    se->event.device = d;
    *e = &se->event;
    return OK;
}

static void sim_event_close(struct event *e)
{
    free(e);
}

static void sim_record(struct stream *s, struct event *e)
{
    struct command *c = command_new(s, SIM_RECORD);
    c->event = (struct sim_event *)(void *)e;
    queue(s, c);
}

static void sim_stream_wait(struct stream *s, struct event *e)
{
    struct command *c = command_new(s, SIM_WAIT);
    c->event = (struct sim_event *)(void *)e;
    queue(s, c);
}

static enum err sim_event_wait(struct stream *stream, struct event *event)
{
    struct sim_event *e = (struct sim_event *)(void *)event;
    struct sim_device *s = sim(stream->device);
    pthread_mutex_lock(&s->lock);
    while (e->happened < e->recorded && !s->lost)
        pthread_cond_wait(&s->changed, &s->lock);
    int lost = s->lost;
    pthread_mutex_unlock(&s->lock);
    return lost ? fail(ERR_DEVICE, "device: lost") : OK;
}

static int64_t sim_between_ns(struct event *from, struct event *to)
{
    const struct sim_event *a = (struct sim_event *)(void *)from;
    const struct sim_event *b = (struct sim_event *)(void *)to;
    pthread_mutex_lock(&sim(from->device)->lock);
    int64_t ns = b->happened_ns - a->happened_ns;
    CHECK(a->happened == a->recorded && b->happened == b->recorded);
    pthread_mutex_unlock(&sim(from->device)->lock);
    return ns;
}

/* A library of matmuls: the CPU's, for matrices that were prepared, up to so many rows. */
static enum err sim_library_open(struct device *d, char *name, int cap)
{
    (void)d;
    snprintf(name, (size_t)cap, "simulated 1");
    return OK;
}

static enum err sim_library_prepare(struct stream *stream, const struct weight *w, int m,
                                    void *room, int64_t room_bytes)
{
    struct sim_device *s = sim(stream->device);
    struct event *done;
    if (is_prepared(s, w->n, w->k, m))
        return OK;
    CHECK(s->n_kinds < KINDS_MAX);
    s->kinds[s->n_kinds++] = (struct kind){w->n, w->k, m};
    TRY(sim_event_open(stream->device, &done));
    sim_fill(stream, room, POISON, room_bytes);
    sim_record(stream, done);
    const enum err e = sim_event_wait(stream, done);
    sim_event_close(done);
    return e;
}

/* As the CPU's, whose kernels compute; with an odd seed nothing but what a matmul multiplies. */
static struct weight_form sim_reads(struct device *d, enum compute compute, enum dtype stored)
{
    struct weight_form form = device_cpu()->api->reads(device_cpu(), compute, stored);
    if (sim(d)->seed % 2 && (compute != COMPUTE_INT8 || (stored != DTYPE_Q8 && stored != DTYPE_Q4)))
        form.dtype = compute == COMPUTE_F32 ? DTYPE_F32 : DTYPE_BF16;
    if (sim(d)->reads_f16 && compute == COMPUTE_BF16)
        form = (struct weight_form){DTYPE_F16, form.layout, 1}; // nothing decodes to it: for plans
    return form;
}

static enum err sim_info(struct device *d, struct device_info *info)
{
    struct sim_device *s = sim(d);
    *info = (struct device_info){.model = "simulated",
                                 .memory_bytes = s->memory_bytes,
                                 .free_bytes = s->memory_bytes - s->bytes};
    return OK;
}

struct device *sim_device_open(uint64_t seed, int delay_us)
{
    static const struct device_library library = {sim_library_open, sim_library_prepare};
    static const struct device_api api = {.name = "simulated",
                                          .library = &library,
                                          .reads = sim_reads,
                                          .info = sim_info,
                                          .close = sim_device_close,
                                          .alloc = sim_alloc,
                                          .release = sim_release,
                                          .pin = sim_pin,
                                          .pin_some = sim_pin_some,
                                          .unpin = sim_unpin,
                                          .stream_open = sim_stream_open,
                                          .stream_close = sim_stream_close,
                                          .copy = sim_copy,
                                          .ops_copy = sim_copy,
                                          .fill = sim_fill,
                                          .launch = sim_launch,
                                          .notify = sim_notify,
                                          .event_open = sim_event_open,
                                          .event_close = sim_event_close,
                                          .record = sim_record,
                                          .stream_wait = sim_stream_wait,
                                          .event_wait = sim_event_wait,
                                          .between_ns = sim_between_ns};
    static struct device_api whole;
    struct sim_device *s = calloc(1, sizeof *s);
    CHECK(s);
    whole = api;
    whole.scratch = device_cpu()->api->scratch;
    s->device.api = &whole;
    s->held = -1;
    s->seed = seed;
    s->delay_us = delay_us;
    s->memory_bytes = SIM_MEMORY;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    return &s->device;
}

void sim_device_close(struct device *d)
{
    struct sim_device *s = sim(d);
    for (int i = 0; i < BLOCKS_MAX; i++)
        CHECK(!s->blocks[i].device); // whoever allocates releases
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    free(s);
}

enum err sluice_device_open(int version, const char *arg, struct device **d)
{
    long long seed = 0, delay_us = 0, lose_at = 0, memory_bytes = SIM_MEMORY, f16 = 0;
    if (version != DEVICE_VERSION)
        return fail(ERR_DEVICE, "simulated device: made for version %d of sluice's devices, not %d",
                    DEVICE_VERSION, version);
    if (*arg && sscanf(arg, "%lld,%lld,%lld,%lld,%lld", &seed, &delay_us, &lose_at, &memory_bytes,
                       &f16) < 1)
        return fail(ERR_DEVICE,
                    "simulated device: '%s' is not SEED,DELAY_US,LOSE_AT,MEMORY_BYTES,READS_F16",
                    arg);
    *d = sim_device_open((uint64_t)seed, (int)delay_us);
    sim(*d)->memory_bytes = memory_bytes;
    sim(*d)->reads_f16 = f16 != 0;
    const char *lose = getenv("SIM_LOSE");
    long long loses = -1, at = 0;
    if (lose && sscanf(lose, "%lld:%lld", &loses, &at) == 2 && loses == seed)
        lose_at = at;
    sim_device_lose(*d, lose_at);
    long long one, bytes;
    for (const char *m = getenv("SIM_MEMORY"); m && sscanf(m, "%lld:%lld", &one, &bytes) == 2;) {
        sim(*d)->memory_bytes = one == seed ? bytes : sim(*d)->memory_bytes;
        m = strchr(m, ',');
        m += m != NULL;
    }
    return OK;
}

enum err sluice_device_count(int version, struct device_place places[DEVICES_MAX], int *n)
{
    const char *count = getenv("SIM_DEVICES");
    if (version != DEVICE_VERSION)
        return fail(ERR_DEVICE, "simulated device: another version of sluice's devices");
    *n = count ? (int)strtol(count, NULL, 10) : 2;
    memset(places, 0, (size_t)*n * sizeof *places);
    return OK;
}

void *sim_device_peek(struct device *d, void *p)
{
    return seen(sim(d), p);
}

void sim_device_lose(struct device *d, int64_t n)
{
    struct sim_device *s = sim(d);
    pthread_mutex_lock(&s->lock);
    s->lose_at = n > 0 ? s->n_commands + n : 0;
    pthread_mutex_unlock(&s->lock);
}

void sim_device_hold(struct device *d, int stream)
{
    struct sim_device *s = sim(d);
    pthread_mutex_lock(&s->lock);
    s->held = stream;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

int64_t sim_device_copies(struct device *d, int stream)
{
    struct sim_device *s = sim(d);
    pthread_mutex_lock(&s->lock);
    const int64_t n = s->n_copies[stream];
    pthread_mutex_unlock(&s->lock);
    return n;
}

int64_t sim_device_commands(struct device *d)
{
    return sim(d)->n_commands;
}

int64_t sim_device_peak_bytes(struct device *d)
{
    return sim(d)->peak_bytes;
}
