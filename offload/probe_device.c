/* offload/probe_device.c - of probe.h: the rates of a device with its own memory.
 *
 * Owns: a range of device memory and one of pinned RAM while it measures. Note: commands are
 * queued, so a rate is that of a burst of commands: the host reads its clock before the first is
 * queued and after an event that follows the last. */
#include "offload/probe_impl.h"

#include "kernels/base/arena.h"
#include "policy/plan.h"

#define MIB    ((int64_t)1 << 20)
#define PINNED (64 * MIB)
/* Device memory to measure in: a 32nd of all, within these limits. The upper one exceeds the
 * device's caches. */
#define STRETCH_MOST  (512 * MIB)
#define STRETCH_LEAST (32 * MIB)
#define ROOM_LEAST    (1 * MIB) // the smallest matmul fits
#define TURNS         7
#define BURST_S       0.02 // seconds of a burst
#define BURST_MAX     64
#define MATMUL_N      8192
#define MATMUL_K      2048
#define MATMUL_LEAST  64    // least N and K, for little memory
#define WIDE_S        0.002 // seconds of an op that is wide enough
#define HEADS_MAX     64
#define HEAD_DIM      128
#define HEAD_SCALE    0.088f
#define ROWS          32 // decoding rows
#define ROW_SLOTS     512
#define ROW_PAGES     (ROW_SLOTS / PAGE_SLOTS)
#define PROMPT        1024 // tokens
#define PROMPT_TILES  (PROMPT / PLAN_TILE_TOKENS)
#define ALIGN         4096
#define TABLE_BYTES   (2 * ALIGN)

struct bench {
    struct device *device;
    struct ops ops; // with a stream of its own
    struct event *done;
    struct stream *back; // copies to RAM while ops.stream copies to the device
    struct event *back_done;
    uint8_t *ram;    // [ram_bytes] pinned, filled with numbers
    uint8_t *tables; // [TABLE_BYTES] pinned, after `ram`: spans and page ids of attention
    uint8_t *base;   // [n_bytes] on the device
    int64_t ram_bytes, n_bytes;
    int pinned;
    struct matmul_args matmul;
    struct attend_forced_args rows;
    struct attend_prompt_args prompt;
};

static enum err no_room(int64_t n_bytes)
{
    return fail(ERR_FIT, "device: too little device memory to measure it (--mem-device %lldM)",
                (long long)ceil_div(n_bytes, MIB));
}

static void bench_close(struct bench *b)
{
    const struct device_api *api = b->device->api;
    api->stream_close(b->ops.stream);
    api->stream_close(b->back);
    api->event_close(b->done);
    api->event_close(b->back_done);
    api->release(b->device, b->base, b->n_bytes);
    if (b->pinned)
        api->unpin(b->device, b->ram, b->ram_bytes + TABLE_BYTES);
    device_cpu()->api->release(device_cpu(), b->ram, b->ram_bytes + TABLE_BYTES);
}

int64_t probe_pinned_bytes(const struct probe_config *c)
{
    int64_t bytes = PINNED;
    while (c->memory_bytes > 0 && bytes > c->memory_bytes)
        bytes /= 2;
    return bytes;
}

int64_t probe_device_bytes(const struct probe_config *c, const struct device_info *info)
{
    int64_t room = info->free_bytes, part = max_i64(info->memory_bytes / 32, STRETCH_LEAST);
    if (c->device_bytes > 0)
        room = min_i64(room, c->device_bytes);
    return min_i64(min_i64(part, STRETCH_MOST), room) / (2 * ALIGN) * (2 * ALIGN);
}

static enum err bench_open(struct bench *b, const struct probe_config *c)
{
    const struct device_api *api = c->device->api;
    struct device_info info;
    TRY(api->info(c->device, &info));
    *b = (struct bench){.device = c->device, .ops = *c->ops};
    b->n_bytes = probe_device_bytes(c, &info);
    b->ram_bytes =
        min_i64(probe_pinned_bytes(c) - TABLE_BYTES, b->n_bytes) / (2 * ALIGN) * (2 * ALIGN);
    if (b->ram_bytes < 2 * ALIGN || b->n_bytes < ROOM_LEAST)
        return no_room(ROOM_LEAST);
    void *ram, *base;
    TRY(device_cpu()->api->alloc(device_cpu(), b->ram_bytes + TABLE_BYTES, &ram)); // as a run's RAM
    b->ram = ram;
    b->tables = b->ram + b->ram_bytes;
    /* Small normal numbers as f32, f16 and bf16, and valid scales and quants. Zeros would need less
     * power than weights, and so be computed faster. */
    for (int64_t i = 0; i < b->ram_bytes; i++)
        b->ram[i] = (uint8_t)(0x30 + mix64((uint64_t)i) % 12);
    TRY(api->pin(c->device, b->ram, b->ram_bytes + TABLE_BYTES));
    b->pinned = 1;
    TRY(api->alloc(c->device, b->n_bytes, &base));
    b->base = base;
    TRY(api->stream_open(c->device, &b->ops.stream));
    TRY(api->stream_open(c->device, &b->back));
    TRY(api->event_open(c->device, &b->back_done));
    return api->event_open(c->device, &b->done);
}

/* Numbers all over the device memory: outputs of earlier ops, read as another type, may be NaN. */
static void queue_numbers(struct bench *b)
{
    for (int64_t at = 0; at < b->n_bytes; at += b->ram_bytes)
        b->device->api->copy(b->ops.stream, b->base + at, b->ram,
                             min_i64(b->ram_bytes, b->n_bytes - at));
}

static void queue_h2d(struct bench *b, int turn)
{
    int64_t places = b->n_bytes / b->ram_bytes;
    b->device->api->copy(b->ops.stream, b->base + turn % places * b->ram_bytes, b->ram,
                         b->ram_bytes);
}

static void queue_d2h(struct bench *b, int turn)
{
    int64_t places = b->n_bytes / b->ram_bytes;
    b->device->api->copy(b->ops.stream, b->ram, b->base + turn % places * b->ram_bytes,
                         b->ram_bytes);
}

/* Copies half of the RAM each way at once; measure() waits for both streams. */
static void queue_duplex(struct bench *b, int turn)
{
    int64_t half = b->ram_bytes / 2, at = turn % (b->n_bytes / b->ram_bytes) * b->ram_bytes;
    const struct device_api *api = b->device->api;
    api->copy(b->ops.stream, b->base + at, b->ram, half);
    api->copy(b->back, b->ram + half, b->base + at + half, half);
    api->record(b->back, b->back_done);
}

/* Every byte is read once and written once. */
static void queue_own(struct bench *b, int turn)
{
    int64_t half = b->n_bytes / 2;
    b->device->api->copy(b->ops.stream, b->base + (turn & 1 ? half : 0),
                         b->base + (turn & 1 ? 0 : half), half);
}

static void queue_matmul(struct bench *b, int turn)
{
    (void)turn;
    ops_run_matmul(&b->ops, &b->matmul);
}

/* Rate of `amount` per command, over TURNS bursts. One command before them warms up and sets the
 * number of commands in a burst. */
static enum err measure(struct bench *b, void (*queue)(struct bench *b, int turn), double amount,
                        struct rate *rate)
{
    const struct device_api *api = b->device->api;
    double rates[TURNS];
    for (int turn = -1, n = 1; turn < TURNS; turn++) {
        int64_t start_ns = clock_ns();
        for (int i = 0; i < n; i++)
            queue(b, i);
        if (queue == queue_duplex)
            api->stream_wait(b->ops.stream, b->back_done);
        api->record(b->ops.stream, b->done);
        TRY(api->event_wait(b->ops.stream, b->done));
        double s = (double)max_i64(clock_ns() - start_ns, 1) * 1e-9 / n;
        if (turn >= 0)
            rates[turn] = amount / s;
        else
            n = (int)min_i64(max_i64((int64_t)(BURST_S / s), 1), BURST_MAX);
    }
    *rate = rate_of_samples(rates, TURNS);
    return OK;
}

/* An op of variable width. place() lays it out in device memory and sets the amount of work of one
 * call; 0: it does not fit. */
struct wide_op {
    enum err (*place)(struct bench *b, int width, double *amount);
    void (*queue)(struct bench *b, int turn);
    int width_max;
};

/* Measures at widths 1, 2, 4, ... until one call takes WIDE_S: wide enough for the rate of a fast
 * device, short enough for a slow one. The rate stays 0 if not even width 1 fits. */
static enum err measure_wide(struct bench *b, const struct wide_op *op, struct rate *rate)
{
    double s = 0;
    for (int width = 1; width <= op->width_max && s < WIDE_S; width *= 2) {
        double amount = 0;
        TRY(op->place(b, width, &amount));
        if (amount == 0)
            break;
        TRY(measure(b, op->queue, amount, rate));
        s = amount / rate->value;
    }
    return OK;
}

/* ---- matmuls ---- */

/* Weights, x, y and scratch of a matmul [m, n, k] in the device's memory. 0: they do not fit. */
static int matmul_place(struct bench *b, int m, int n, int k)
{
    enum dtype stored = b->ops.compute == COMPUTE_INT8 ? DTYPE_Q8 : DTYPE_BF16;
    struct weight_form form = b->device->api->reads(b->device, b->ops.compute, stored);
    int64_t weights = round_up(weight_bytes(form.layout, form.dtype, n, k), ALIGN);
    int64_t x = round_up((int64_t)m * k * 4, ALIGN), y = round_up((int64_t)m * n * 4, ALIGN);
    int64_t scratch = b->device->api->scratch->matmul(&b->ops, m, n, k);
    if (weights + x + y + scratch > b->n_bytes)
        return 0;
    float *out = (float *)(void *)(b->base + weights + x);
    b->matmul = (struct matmul_args){
        .x = (float *)(void *)(b->base + weights),
        .m = m,
        .x_stride = k,
        .parts = {{.w = {form.dtype, n, k, b->base, form.layout}, .y = out, .y_stride = n}},
        .n_parts = 1,
        .scratch = b->base + weights + x + y};
    return 1;
}

/* Prepares the placed matmul for the library. The device memory holds numbers afterwards, too. */
static enum err matmul_ready(struct bench *b)
{
    if (b->ops.matmul == MATMUL_OWN)
        return OK;
    return b->device->api->library->prepare(b->ops.stream, &b->matmul.parts[0].w, b->matmul.m,
                                            b->base, b->n_bytes);
}

/* Width grows the outputs first, then the rows, up to the largest tile of a plan. */
static enum err matmul_wide(struct bench *b, int width, double *amount)
{
    const int most = MATMUL_N / MATMUL_LEAST;
    const int n = MATMUL_LEAST * (int)min_i64(width, most);
    const int m = PLAN_TILE_TOKENS * (int)max_i64(width / most, 1);
    int k = MATMUL_K;
    while (k > MATMUL_LEAST && !matmul_place(b, PLAN_TILE_TOKENS, MATMUL_LEAST, k))
        k /= 2;
    if (!matmul_place(b, m, n, k))
        return OK;
    *amount = 2.0 * m * n * k;
    return matmul_ready(b);
}

static enum err measure_matmuls(struct bench *b, struct machine *m)
{
    const struct wide_op wide = {matmul_wide, queue_matmul,
                                 (MATMUL_N / MATMUL_LEAST) << (PLAN_TILES - 1)};
    struct rate one = {0};
    TRY(measure_wide(b, &wide, &m->device_flops));
    if (m->device_flops.value == 0)
        return no_room(2 * b->n_bytes);
    CHECK(matmul_place(b, 1, MATMUL_LEAST, MATMUL_LEAST));
    TRY(matmul_ready(b));
    TRY(measure(b, queue_matmul, 1, &one));
    m->launch_s = (struct rate){1 / one.value, one.spread / (one.value * one.value), one.n};
    probe_device_step(m);
    return OK;
}

/* ---- attention: `width` heads, each with KV of its own ---- */

/* An arena that only counts bytes (used 0), or one over the device memory. */
static struct arena near_memory(const struct bench *b, int64_t used)
{
    struct arena a;
    arena_init(&a);
    if (used > 0)
        a = (struct arena){.base = b->base, .capacity = b->n_bytes};
    return a;
}

/* Fills the device memory with numbers, and copies the tables of the placed attention to it. */
static void send_tables(struct bench *b, const void *to, int64_t n_bytes)
{
    queue_numbers(b);
    b->device->api->copy(b->ops.stream, (void *)(uintptr_t)to, b->tables, n_bytes);
}

static void queue_rows(struct bench *b, int turn)
{
    (void)turn;
    ops_run_attend_forced(&b->ops, &b->rows);
}

/* Spans and page ids of the rows, whose pages are contiguous. */
struct rows_tables {
    struct forced_span spans[ROWS];
    int32_t page_ids[ROWS * ROW_PAGES];
};

static void rows_carve(struct bench *b, struct arena *a, int heads)
{
    const int64_t scratch =
        b->device->api->scratch->attend_forced(&b->ops, ROWS, ROW_SLOTS, heads, heads, HEAD_DIM, 0);
    const int64_t numbers = (int64_t)ROWS * heads * HEAD_DIM;
    struct attend_forced_args *r = &b->rows;
    r->kv.pages = arena_take(a, ROWS * ROW_PAGES * r->kv.layout.page_bytes, ALIGN);
    r->q = r->k = r->v = ARENA_ARRAY(a, float, numbers);
    r->out = ARENA_ARRAY(a, float, numbers);
    r->kv.dirty = ARENA_ARRAY(a, uint64_t, ROWS);
    r->spans = arena_take(a, (int64_t)sizeof(struct rows_tables), ALIGN);
    r->scratch = arena_take(a, scratch, ALIGN);
}

/* The last slot of every row is for its new token. */
static void rows_tables_make(struct rows_tables *t)
{
    for (int i = 0; i < ROWS; i++)
        t->spans[i] = (struct forced_span){.row = i,
                                           .n_slots = ROW_SLOTS - 1,
                                           .n = 1,
                                           .pos = ROW_SLOTS - 1,
                                           .token = i,
                                           .limits = {.budget = INT32_MAX}};
    for (int i = 0; i < ROWS * ROW_PAGES; i++)
        t->page_ids[i] = i;
}

static enum err rows_wide(struct bench *b, int heads, double *amount)
{
    const int stride = heads * HEAD_DIM;
    struct attend_forced_args *r = &b->rows;
    struct arena a = near_memory(b, 0);
    *r = (struct attend_forced_args){.n_spans = ROWS,
                                     .n_heads = heads,
                                     .n_max = 1,
                                     .slots_max = ROW_SLOTS,
                                     .scale = HEAD_SCALE,
                                     .q_stride = stride,
                                     .k_stride = stride,
                                     .v_stride = stride,
                                     .out_stride = stride};
    kv_layout_init(&r->kv.layout, KV_BF16, heads, HEAD_DIM);
    rows_carve(b, &a, heads);
    if (a.used > b->n_bytes)
        return OK;
    a = near_memory(b, a.used);
    rows_carve(b, &a, heads);
    const struct rows_tables *there = (const void *)r->spans;
    r->kv.page_ids = there->page_ids;
    r->kv.page_ids_stride = ROW_PAGES;
    r->kv.dirty_stride = 1;
    r->kv.slots_cap = ROW_SLOTS;
    rows_tables_make((void *)b->tables);
    send_tables(b, there, (int64_t)sizeof *there);
    *amount = 2.0 * 2 * ROWS * ROW_SLOTS * stride; // K and V
    return OK;
}

static void queue_prompt(struct bench *b, int turn)
{
    struct attend_prompt_args a = b->prompt;
    (void)turn;
    for (a.end_max = a.n_max; a.end_max <= PROMPT; a.end_max += a.n_max, a.spans++)
        ops_run_attend_prompt(&b->ops, &a);
}

static void prompt_carve(struct bench *b, struct arena *a, int heads)
{
    const int64_t numbers = (int64_t)PLAN_TILE_TOKENS * heads * HEAD_DIM;
    const int64_t scratch =
        b->device->api->scratch->attend_prompt(&b->ops, PROMPT, heads, heads, HEAD_DIM);
    struct attend_prompt_args *p = &b->prompt;
    p->pages = arena_take(a, PROMPT / PAGE_SLOTS * p->layout.page_bytes, ALIGN);
    p->q = ARENA_ARRAY(a, float, numbers);
    p->out = ARENA_ARRAY(a, float, numbers);
    p->spans = ARENA_ARRAY(a, struct prompt_span, PROMPT_TILES);
    p->scratch = arena_take(a, scratch, ALIGN);
}

/* A prompt, tile by tile, as a layer computes it. */
static enum err prompt_wide(struct bench *b, int heads, double *amount)
{
    const int stride = heads * HEAD_DIM;
    struct attend_prompt_args *p = &b->prompt;
    struct prompt_span *spans = (void *)b->tables;
    struct arena a = near_memory(b, 0);
    *p = (struct attend_prompt_args){.n_spans = 1,
                                     .n_heads = heads,
                                     .n_max = PLAN_TILE_TOKENS,
                                     .scale = HEAD_SCALE,
                                     .q_stride = stride,
                                     .out_stride = stride};
    kv_layout_init(&p->layout, b->ops.compute == COMPUTE_F32 ? KV_F32 : KV_BF16, heads, HEAD_DIM);
    prompt_carve(b, &a, heads);
    if (a.used > b->n_bytes)
        return OK;
    a = near_memory(b, a.used);
    prompt_carve(b, &a, heads);
    for (int i = 0; i < PROMPT_TILES; i++)
        spans[i] = (struct prompt_span){
            .n_prompt = PROMPT, .first = i * PLAN_TILE_TOKENS, .n = PLAN_TILE_TOKENS};
    send_tables(b, p->spans, PROMPT_TILES * (int64_t)sizeof *spans);
    *amount = 4.0 * stride * PROMPT * (PROMPT + 1) / 2;
    return OK;
}

static enum err measure_attention(struct bench *b, struct machine *m)
{
    CHECK(sizeof(struct rows_tables) <= TABLE_BYTES);
    const struct wide_op rows = {rows_wide, queue_rows, HEADS_MAX};
    const struct wide_op prompt = {prompt_wide, queue_prompt, HEADS_MAX};
    TRY(measure_wide(b, &rows, &m->device_attend_read));
    return measure_wide(b, &prompt, &m->device_attend_flops);
}

void probe_device_step(struct machine *m)
{
    if (m->launch_s.value > 0)
        m->step_s = (struct rate){PROBE_STEP_OPS * m->launch_s.value,
                                  PROBE_STEP_OPS * m->launch_s.spread, m->launch_s.n};
}

static enum err measure_all(struct bench *b, struct machine *m)
{
    queue_numbers(b);
    TRY(measure(b, queue_h2d, (double)b->ram_bytes, &m->h2d));
    TRY(measure(b, queue_d2h, (double)b->ram_bytes, &m->d2h));
    TRY(measure(b, queue_duplex, (double)b->ram_bytes, &m->duplex));
    /* Half of the stretch is read, half written. */
    TRY(measure(b, queue_own, (double)b->n_bytes, &m->device_read));
    TRY(measure_matmuls(b, m));
    return measure_attention(b, m);
}

enum err probe_device(struct machine *m, const struct probe_config *c)
{
    struct bench b = {.device = c->device};
    enum err err = bench_open(&b, c);
    if (err == OK)
        err = measure_all(&b, m);
    bench_close(&b);
    for (int i = RATE_h2d; i <= RATE_launch_s && err == OK; i++)
        probe_say(c, (enum machine_rate)i, &m->rates[i]);
    return err;
}
