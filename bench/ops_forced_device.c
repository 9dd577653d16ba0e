/* bench/ops_forced_device.c - attend_forced of `bench ops --device`: decode attention over KV in
 * the device's memory, and the cost of scores there.
 *
 * Owns: the order of calls. Refuses: rows, pages and arguments (bench/ops_forced.c). Note: the
 * decode step of the column `step` is the matmuls of one layer for as many tokens, with weights on
 * the device, plus this attention. Under an evicting policy every call is the next token of its
 * rows and uses the next list of spans; after the last list, rows and slots are reset. */
#include <string.h>

#include "bench/device.h"
#include "bench/ops_forced.h"

#define POOL_BYTES  ((int64_t)256 << 20)
#define SPAN_TURNS  512 // tokens of a row before its reset
#define PAIRS       200 // of bursts, with scores and without
#define PAIRS_LEAST 3   // least number of pairs, if they take longer than
#define PAIRS_S     1.0 // seconds
#define BURST_S     1e-3
#define BURST_MAX   64
#define ROWS_MOST   256

struct forced_device {
    struct forced_bench b; // as the device reads it
    const struct forced_bench *image;
    struct bench_memory memory;
    int policy;
    int n_calls; // since the reset
};

/* Resets what calls change: positions and scores. */
static void begin_again(struct forced_device *f)
{
    const struct forced_bench *b = &f->b;
    const int64_t n = (int64_t)b->n_sets * b->rows * b->model->n_kv_heads * b->cap;
    ops_copy(b->ops, b->slot_pos, f->image->slot_pos, n * (int64_t)sizeof *b->slot_pos);
    ops_copy(b->ops, b->slot_score, f->image->slot_score, n * (int64_t)sizeof *b->slot_score);
    f->n_calls = 0;
}

/* Span list 0 is for rows that keep everything. */
static void forced_call(void *ctx)
{
    struct forced_device *f = ctx;
    struct attend_forced_args args;
    if (f->n_calls / f->b.n_sets >= SPAN_TURNS)
        begin_again(f);
    const int token = f->policy == EVICT_FULL ? 0 : 1 + f->n_calls / f->b.n_sets;
    forced_args(&f->b, f->policy, f->n_calls % f->b.n_sets, f->b.spans + (int64_t)token * f->b.rows,
                &args);
    f->n_calls++;
    ops_run_attend_forced(f->b.ops, &args);
}

static enum err policy_seconds(struct forced_device *f, int policy, double *seconds)
{
    f->policy = policy;
    begin_again(f);
    return bench_device_seconds(f->memory.device, forced_call, f, seconds);
}

static enum err burst_seconds(struct forced_device *f, int policy, int n, double *seconds)
{
    f->policy = policy;
    return bench_device_burst(f->memory.device, forced_call, f, n, seconds);
}

/* h2o minus window, which evicts as often but keeps no scores; they alternate in going first. */
static enum err measure_pairs(struct forced_device *f, double call_s, double *extra, int *n_pairs)
{
    const int n = (int)min_i64(max_i64((int64_t)(BURST_S / call_s), 1), BURST_MAX);
    const int64_t start_ns = clock_ns();
    int i = 0;
    for (; i < PAIRS; i++) {
        double s[2];
        if (i >= PAIRS_LEAST && (double)(clock_ns() - start_ns) > PAIRS_S * 1e9)
            break;
        if (f->n_calls / f->b.n_sets >= SPAN_TURNS / 2) // not within a burst
            begin_again(f);
        for (int j = 0; j < 2; j++) {
            const int scores = j ^ (i & 1);
            TRY(burst_seconds(f, scores ? EVICT_H2O : EVICT_WINDOW, n, &s[scores]));
        }
        extra[i] = s[1] - s[0];
    }
    *n_pairs = i;
    return OK;
}

static enum err measure(struct forced_device *f, double layer_s)
{
    double full_s, h2o_s, window_s, extra[PAIRS];
    int n_pairs;
    TRY(policy_seconds(f, EVICT_FULL, &full_s));
    TRY(policy_seconds(f, EVICT_H2O, &h2o_s));
    TRY(policy_seconds(f, EVICT_WINDOW, &window_s));
    begin_again(f);
    TRY(measure_pairs(f, window_s, extra, &n_pairs));
    TRY(forced_policy_row(&f->b, EVICT_FULL, full_s, layer_s + full_s));
    TRY(forced_policy_row(&f->b, EVICT_H2O, h2o_s, layer_s + h2o_s));
    return forced_scores_row(&f->b, extra, n_pairs, layer_s + window_s);
}

/* Fills the pages in the device's memory with copies of one page. */
static void fill_pages(struct forced_device *f, struct forced_bench *image, uint8_t *page)
{
    const int64_t n_bytes = forced_pool_bytes(image), ring_bytes = forced_rings_bytes(image);
    forced_fill_page(image, &image->layout, page);
    bench_memory_spread(&f->memory, f->b.pool, page, image->layout.page_bytes, n_bytes);
    if (ring_bytes == 0)
        return;
    page += image->layout.page_bytes;
    forced_fill_page(image, &image->ring, page);
    bench_memory_spread(&f->memory, f->b.rings, page, image->ring.page_bytes, ring_bytes);
}

static uint8_t *carve(struct forced_bench *b, struct arena *a)
{
    forced_carve(b, a);
    return arena_take(a, b->layout.page_bytes + b->ring.page_bytes, 4096);
}

/* Halves the rows of b until they fit; leaves the image measured. */
static void choose_rows(struct forced_bench *b, struct bench_memory *m)
{
    const int64_t room = m->device->room;
    for (;; b->rows /= 2) {
        forced_init(b, min_i64(POOL_BYTES, room / 4));
        arena_init(&m->host);
        carve(b, &m->host);
        m->more_bytes = forced_pool_bytes(b) + forced_rings_bytes(b);
        if (b->rows == 1 || m->host.used + m->more_bytes + 4096 <= room)
            return;
    }
}

static enum err run_rows(const struct bench_run *run, const struct forced_bench *asked,
                         double *layer_s)
{
    struct forced_bench image = *asked;
    struct forced_device f = {.image = &image, .memory = {.device = run->device}};
    choose_rows(&image, &f.memory);
    if (layer_s[image.rows] == 0)
        TRY(bench_device_layer(run->device, image.model, image.rows, &layer_s[image.rows]));
    enum err err = bench_memory_open(&f.memory, "attend_forced");
    if (err == OK) {
        uint8_t *page = carve(&image, &f.memory.host);
        forced_fill(&image);
        forced_fill_spans(&image, image.spans, EVICT_FULL, 0);
        for (int i = 0; i < SPAN_TURNS; i++)
            forced_fill_spans(&image, image.spans + (int64_t)(1 + i) * image.rows, EVICT_H2O,
                              image.slots + i);
        f.b = image;
        carve(&f.b, &f.memory.near);
        f.b.pool = f.memory.more;
        f.b.rings = f.memory.more + forced_pool_bytes(&image);
        fill_pages(&f, &image, page);
        err = bench_memory_send(&f.memory);
    }
    if (err == OK)
        err = measure(&f, layer_s[image.rows]);
    bench_memory_close(&f.memory);
    return err;
}

enum err bench_device_forced(const struct bench_run *run, const struct bench_model *model)
{
    if (run->only && strcmp(run->only, "attend_forced") != 0)
        return OK;
    static const enum kv_format kv_formats[] = {KV_BF16, KV_Q8, KV_Q4, KV_MIXED};
    static const struct {
        int rows, slots;
    } sizes[] = {{16, 2048}, {64, 640}, {64, 2048}, {ROWS_MOST, 640}};
    double layer_s[ROWS_MOST + 1] = {0}; // by rows: seconds of the layer's matmuls
    for (int f = 0; f < 4; f++)
        for (int i = 0; i < 4; i++) {
            struct forced_bench b = {.run = run,
                                     .model = model,
                                     .scratch_of = run->device->device->api->scratch,
                                     .ops = &run->device->ops,
                                     .format = kv_formats[f],
                                     .rows = sizes[i].rows,
                                     .slots = sizes[i].slots,
                                     .n_spans = 1 + SPAN_TURNS};
            TRY(run_rows(run, &b, layer_s));
        }
    return OK;
}
