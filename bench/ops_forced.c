/* bench/ops_forced.c - attend_forced of `bench ops`: one token of each of 64 rows against KV that
 * is far larger than the caches.
 *
 * Owns: a pool of pages in random order, of which every call reads pages that the calls before have
 * pushed out. Refuses: other ops (bench/ops.c), checking results (attend_test).
 * A newcomer would miss: `bytes` are those of the slots alone, so the scores and the choice of
 * victims under h2o show as a lower share of the roof. The roof is a read from end to end on as
 * many threads; pages in any order read slower than that (the row `read`, which computes nothing).
 * A row that keeps everything has room in its last page, as 31 tokens of 32 find it. */
#include "bench/bench.h"

#include <stdio.h>
#include <string.h>

#include "kernels/arena.h"

#define ROWS       64
#define POOL_BYTES ((int64_t)256 << 20)
#define DIRTY      4 // words that hold a bit for every page of a row
#define CALLS      5 // of each case per turn; the fastest counts

struct forced_bench {
    const struct bench_forced *c;
    enum kv_format format;
    struct kv_layout layout, ring; // of the pages; of the rings (mixed)
    int slots, cap, pages, n_sets, ring_slots;
    int set;                   // of the next call
    int in_line;               // reading goes from end to end
    double roof;               // bytes per second of doing so
    float *x;                  // [ROWS, n_heads, head_dim] queries, then outputs, keys, values
    uint8_t *pool;             // [n_sets * ROWS * pages][page_bytes]
    uint8_t *rings;            // [n_sets * ROWS * KV_RING_PAGES][ring.page_bytes]; mixed
    int32_t *page_ids;         // [n_sets][ROWS][pages], in random order
    int32_t *slot_pos;         // [n_sets][ROWS][n_kv_heads, cap]
    float *slot_score;         // likewise
    uint64_t *dirty;           // [DIRTY] nobody reads it
    struct forced_span *spans; // [ROWS]
    void *scratch;
};

static void lay_out(struct forced_bench *b, struct arena *a)
{
    const struct bench_forced *c = b->c;
    int64_t rows = (int64_t)b->n_sets * ROWS, heads = (int64_t)c->n_heads * c->head_dim;
    b->pool = arena_take(a, rows * b->pages * b->layout.page_bytes, 2 << 20);
    b->rings =
        arena_take(a, b->ring_slots > 0 ? rows * KV_RING_PAGES * b->ring.page_bytes : 0, 4096);
    b->x = ARENA_ARRAY(a, float, ROWS *heads * 4);
    b->page_ids = ARENA_ARRAY(a, int32_t, rows * b->pages);
    b->slot_pos = ARENA_ARRAY(a, int32_t, rows * c->n_kv_heads * b->cap);
    b->slot_score = ARENA_ARRAY(a, float, rows * c->n_kv_heads * b->cap);
    b->dirty = ARENA_ARRAY(a, uint64_t, DIRTY);
    b->spans = ARENA_ARRAY(a, struct forced_span, ROWS);
    int64_t plain =
        attend_forced_scratch_bytes(c->ops, b->cap, c->n_heads, c->n_kv_heads, c->head_dim, 0);
    int64_t scores = attend_forced_scratch_bytes(c->ops, b->cap, c->n_heads, c->n_kv_heads,
                                                 c->head_dim, 1); // of a short row the less
    b->scratch = arena_take(a, max_i64(plain, scores), 64);
}

static float number(int64_t i)
{
    return (float)(mix64((uint64_t)i) >> 40) * 0x1p-24f - 0.5f;
}

static void fill(struct forced_bench *b)
{
    const struct bench_forced *c = b->c;
    int64_t n = (int64_t)b->n_sets * ROWS * b->pages;
    for (int64_t i = 0; i < (int64_t)ROWS * c->n_heads * c->head_dim * 4; i++)
        b->x[i] = number(i);
    for (int slot = 0; slot < KV_PAGE_SLOTS; slot++)
        for (int h = 0; h < c->n_kv_heads; h++)
            kv_put(&b->layout, b->pool, slot, h, b->x + (slot + h) * c->head_dim,
                   b->x + (slot + 2 * h) * c->head_dim);
    for (int64_t i = 0; i < n; i++) {
        uint8_t *page = b->pool + i * b->layout.page_bytes;
        if (i > 0)
            memcpy(page, b->pool, (size_t)b->layout.page_bytes);
        int64_t at = (int64_t)(mix64((uint64_t)i) % (uint64_t)(i + 1)); // a shuffle as it grows
        b->page_ids[i] = b->page_ids[at];
        b->page_ids[at] = (int32_t)i;
    }
    for (int64_t i = 0; i < (int64_t)b->n_sets * ROWS * c->n_kv_heads * b->cap; i++) {
        b->slot_pos[i] = (int32_t)(i % b->cap);
        b->slot_score[i] = number(i) + 1;
    }
}

/* As fill, for the rings. */
static void fill_rings(struct forced_bench *b)
{
    const struct bench_forced *c = b->c;
    for (int slot = 0; slot < KV_PAGE_SLOTS; slot++)
        for (int h = 0; h < c->n_kv_heads; h++)
            kv_put(&b->ring, b->rings, slot, h, b->x + (slot + h) * c->head_dim,
                   b->x + (slot + 2 * h) * c->head_dim);
    for (int64_t i = 1; i < (int64_t)b->n_sets * ROWS * KV_RING_PAGES; i++)
        memcpy(b->rings + i * b->ring.page_bytes, b->rings, (size_t)b->ring.page_bytes);
}

typedef uint64_t line_t __attribute__((vector_size(64), may_alias)); // a cache line

/* A thread's part of a set's pages, summed. */
static void read_part(void *ctx, int thread, int n_threads)
{
    const struct forced_bench *b = ctx;
    int64_t first, last, lines = 2 * b->layout.v_offset / 128 * 2;
    pool_split((int64_t)ROWS * b->pages, thread, n_threads, &first, &last);
    line_t even = {0}, odd = {0};
    for (int64_t i = first; i < last; i++) {
        int64_t at = (int64_t)b->set * ROWS * b->pages + i;
        const void *in_line = b->pool + at * b->layout.page_bytes;
        const void *by_id = b->pool + b->page_ids[at] * b->layout.page_bytes;
        const line_t *page = b->in_line ? in_line : by_id;
        for (int64_t j = 0; j < lines; j += 2) {
            even += page[j];
            odd += page[j + 1];
        }
    }
    even += odd;
    __asm__ volatile("" ::"m"(even)); // the sums are wanted
}

/* Seconds to read the pages of as many rows and nothing else. */
static double read_seconds(struct forced_bench *b, int in_line)
{
    b->in_line = in_line;
    int64_t start_ns = clock_ns();
    pool_run(b->c->ops->pool, read_part, b);
    b->set = (b->set + 1) % b->n_sets;
    return (double)(clock_ns() - start_ns) * 1e-9;
}

/* Seconds of one call, at position `pos`, on rows that were not touched since the pool went round.
 */
static double call_seconds(struct forced_bench *b, int policy, int pos)
{
    const struct bench_forced *c = b->c;
    int64_t heads = (int64_t)c->n_heads * c->head_dim, kv = (int64_t)c->n_kv_heads * c->head_dim;
    int scores = policy != EVICT_FULL;
    float *q = b->x, *out = q + ROWS * heads, *k = out + ROWS * heads, *v = k + ROWS * heads;
    for (int r = 0; r < ROWS; r++)
        b->spans[r] = (struct forced_span){
            .row = r,
            .n_slots = b->slots - b->ring_slots - (scores ? 0 : 1),
            .n = 1,
            .pos = scores ? pos : b->slots - 1,
            .token = r,
            .limits = {.budget = scores ? b->slots : INT32_MAX, .recent = b->slots / 2}};
    int64_t first = (int64_t)b->set * ROWS, meta = (int64_t)c->n_kv_heads * b->cap;
    int64_t ring_bytes = KV_RING_PAGES * b->ring.page_bytes;
    struct kv_rows rows = {.layout = b->layout,
                           .ring = b->ring,
                           .pages = b->pool,
                           .page_ids = b->page_ids + first * b->pages,
                           .slot_pos = scores ? b->slot_pos + first * meta : NULL,
                           .slot_score = scores ? b->slot_score + first * meta : NULL,
                           .dirty = b->dirty,
                           .rings = b->ring_slots > 0 ? b->rings + first * ring_bytes : NULL,
                           .ring_stride = ring_bytes,
                           .slot_stride = meta,
                           .page_ids_stride = b->pages,
                           .slots_cap = b->cap};
    struct attend_forced_args args = {.kv = rows,
                                      .evict = {.policy = policy},
                                      .spans = b->spans,
                                      .n_spans = ROWS,
                                      .n_heads = c->n_heads,
                                      .n_max = 1,
                                      .slots_max = b->slots - b->ring_slots,
                                      .scale = 0.125f,
                                      .q = q,
                                      .k = k,
                                      .v = v,
                                      .out = out,
                                      .q_stride = heads,
                                      .k_stride = kv,
                                      .v_stride = kv,
                                      .out_stride = heads,
                                      .scratch = b->scratch};
    b->set = (b->set + 1) % b->n_sets;
    int64_t start_ns = clock_ns();
    ops_run_attend_forced(c->ops, &args);
    return (double)(clock_ns() - start_ns) * 1e-9;
}

static enum err case_row(const struct forced_bench *b, int policy, double s)
{
    const struct bench_forced *c = b->c;
    char shape[64];
    snprintf(shape, sizeof shape, "%d rows x %d %s %s", ROWS, b->slots, kv_format_name(b->format),
             evict_policy_name(policy));
    struct bench_result r = {
        .op = "attend_forced", .model = c->model, .shape = shape, .seconds = s, .ram = b->roof};
    r.flops = 4.0 * ROWS * b->slots * c->n_heads * c->head_dim;
    r.bytes = 2.0 * ROWS / KV_PAGE_SLOTS *
              ((b->slots - b->ring_slots) * (double)b->layout.v_offset +
               b->ring_slots * (double)b->ring.v_offset);
    return bench_result(c->run, &r);
}

/* What scores and the choice of victims take beside attention: the median difference of calls in
 * pairs. */
static enum err scores_row(const struct forced_bench *b, double *extra, int n)
{
    char shape[64];
    snprintf(shape, sizeof shape, "%d rows x %d %s scores", ROWS, b->slots,
             kv_format_name(b->format));
    return bench_result(b->c->run, &(struct bench_result){.op = "attend_forced",
                                                          .model = b->c->model,
                                                          .shape = shape,
                                                          .seconds = bench_median(extra, n),
                                                          .pairs = 1});
}

static double read_bytes(const struct forced_bench *b)
{
    return (double)ROWS * b->pages * (double)(2 * b->layout.v_offset);
}

/* What the pages allow. */
static enum err read_row(const struct forced_bench *b, double s)
{
    char shape[64];
    snprintf(shape, sizeof shape, "%d rows x %d %s read", ROWS, b->slots,
             kv_format_name(b->format));
    return bench_result(b->c->run, &(struct bench_result){.op = "attend_forced",
                                                          .model = b->c->model,
                                                          .shape = shape,
                                                          .bytes = read_bytes(b),
                                                          .seconds = s,
                                                          .ram = b->roof});
}

static enum err run_slots(const struct bench_forced *c, enum kv_format format, int slots)
{
    struct forced_bench b = {
        .c = c, .format = format, .slots = slots, .cap = slots + KV_PAGE_SLOTS};
    static const int policies[] = {EVICT_FULL, EVICT_H2O};
    struct arena arena;
    if (format == KV_MIXED)
        b.ring_slots = EVICT_RING_MAX;
    kv_layout_init(&b.ring, KV_Q8, c->n_kv_heads, c->head_dim);
    kv_layout_init(&b.layout, kv_page_format(format), c->n_kv_heads, c->head_dim);
    b.pages = b.cap / KV_PAGE_SLOTS;
    b.n_sets = (int)(1 + POOL_BYTES / (ROWS * b.pages * b.layout.page_bytes));
    arena_init(&arena);
    lay_out(&b, &arena);
    TRY(arena_open(&arena, arena.used));
    lay_out(&b, &arena);
    fill(&b);
    if (b.ring_slots > 0)
        fill_rings(&b);
    double best[2] = {1e9, 1e9}, best_read = 1e9, best_line = 1e9;
    double extra[CALLS] = {0};
    for (int i = 0; i < CALLS; i++) { // in turn, so that a slow moment hits all
        double line = read_seconds(&b, 1), read = read_seconds(&b, 0);
        best_line = line < best_line ? line : best_line;
        best_read = read < best_read ? read : best_read;
        for (int p = 0; p < 2; p++) {
            double s = call_seconds(&b, policies[p], slots + i);
            best[p] = s < best[p] ? s : best[p];
            extra[i] += p == 0 ? -s : s;
        }
    }
    b.roof = read_bytes(&b) / best_line;
    enum err err = read_row(&b, best_read);
    for (int p = 0; p < 2 && err == OK; p++)
        err = case_row(&b, policies[p], best[p]);
    if (err == OK)
        err = scores_row(&b, extra, CALLS);
    arena_close(&arena);
    return err;
}

enum err bench_forced(const struct bench_forced *c)
{
    static const int slots[] = {128, 640, 2048};
    for (int f = 0; f < N_KV_FORMATS; f++)
        for (int i = 0; i < 3; i++)
            TRY(run_slots(c, (enum kv_format)f, slots[i]));
    return OK;
}
