/* bench/ops_forced.c - attend_forced of `bench ops`: one token of each of 64 rows over KV that is
 * far larger than the caches.
 *
 * Owns: a pool of pages in random order, so that every call reads pages evicted from the caches by
 * earlier calls; the cost of policies side by side (--policies). Refuses: other ops (bench/ops.c),
 * a device's clock (bench/ops_forced_device.c), checking results (attend_test). Note: `bytes` are
 * those of the slots alone, so scores and the choice of victims under h2o lower the share of the
 * roof. The roof is a sequential read on as many threads; pages in random order read slower (the
 * row `read`, which computes nothing). A row that keeps everything has space in its last page, as
 * for 31 of 32 tokens. Scores are reset before every call: one policy's bits may be another's
 * denormals. */
#include "bench/ops_forced.h"

#include <stdio.h>
#include <string.h>

#define ROWS       64
#define POOL_BYTES ((int64_t)256 << 20)
#define CALLS      5 // per case and turn; the fastest counts

/* ---- rows, for any device ---- */

void forced_init(struct forced_bench *b, int64_t pool_bytes)
{
    const struct bench_model *m = b->model;
    b->cap = b->slots + PAGE_SLOTS;
    b->ring_slots = b->format == KV_MIXED ? EVICT_RING_MAX : 0;
    kv_layout_init(&b->ring, KV_Q8, m->n_kv_heads, m->head_dim);
    kv_layout_init(&b->layout, kv_page_format(b->format), m->n_kv_heads, m->head_dim);
    b->pages = b->cap / PAGE_SLOTS;
    b->n_sets = (int)(1 + pool_bytes / (b->rows * b->pages * b->layout.page_bytes));
}

int64_t forced_pool_bytes(const struct forced_bench *b)
{
    return (int64_t)b->n_sets * b->rows * b->pages * b->layout.page_bytes;
}

int64_t forced_rings_bytes(const struct forced_bench *b)
{
    return b->ring_slots > 0 ? (int64_t)b->n_sets * b->rows * KV_RING_PAGES * b->ring.page_bytes
                             : 0;
}

void forced_carve(struct forced_bench *b, struct arena *a)
{
    const struct bench_model *m = b->model;
    int64_t rows = (int64_t)b->n_sets * b->rows, heads = (int64_t)m->n_heads * m->head_dim;
    b->x = ARENA_ARRAY(a, float, b->rows *heads * 4);
    b->page_ids = ARENA_ARRAY(a, int32_t, rows * b->pages);
    b->slot_pos = ARENA_ARRAY(a, int32_t, rows * m->n_kv_heads * b->cap);
    b->slot_score = ARENA_ARRAY(a, float, rows * m->n_kv_heads * b->cap);
    b->slot_trait = ARENA_ARRAY(a, float, rows * m->n_kv_heads * b->cap);
    b->dirty = ARENA_ARRAY(a, uint64_t, b->rows * FORCED_DIRTY);
    b->spans = ARENA_ARRAY(a, struct forced_span, (int64_t)b->n_spans * b->rows);
    const int n = (int)b->rows;
    int64_t plain =
        b->scratch_of->attend_forced(b->ops, n, b->cap, m->n_heads, m->n_kv_heads, m->head_dim, 0);
    int64_t scores = b->scratch_of->attend_forced(b->ops, n, b->cap, m->n_heads, m->n_kv_heads,
                                                  m->head_dim, 1); // less for a short row
    b->scratch = arena_take(a, max_i64(plain, scores), 64);
}

static float number(int64_t i)
{
    return (float)(mix64((uint64_t)i) >> 40) * 0x1p-24f - 0.5f;
}

void forced_fill_page(const struct forced_bench *b, const struct kv_layout *l, uint8_t *page)
{
    const struct bench_model *m = b->model;
    for (int slot = 0; slot < PAGE_SLOTS; slot++)
        for (int h = 0; h < m->n_kv_heads; h++)
            kv_put(l, page, slot, h, b->x + (slot + h) * m->head_dim,
                   b->x + (slot + 2 * h) * m->head_dim);
}

static void fill_slots(struct forced_bench *b)
{
    const int64_t n = (int64_t)b->n_sets * b->rows * b->model->n_kv_heads * b->cap;
    for (int64_t i = 0; i < n; i++) {
        b->slot_pos[i] = (int32_t)(i % b->cap);
        b->slot_score[i] = b->slot_trait[i] = number(i) + 1;
    }
}

void forced_fill(struct forced_bench *b)
{
    const struct bench_model *m = b->model;
    int64_t rows = (int64_t)b->n_sets * b->rows;
    for (int64_t i = 0; i < (int64_t)b->rows * m->n_heads * m->head_dim * 4; i++)
        b->x[i] = number(i);
    for (int64_t i = 0; i < rows * b->pages; i++) {
        int64_t at = (int64_t)(mix64((uint64_t)i) % (uint64_t)(i + 1)); // inside-out shuffle
        b->page_ids[i] = b->page_ids[at];
        b->page_ids[at] = (int32_t)i;
    }
    fill_slots(b);
}

/* The settings of a run with this --kv-policy and a budget of the row's slots. */
static struct evict evict_of(const struct forced_bench *b, int policy)
{
    return (struct evict){
        .policy = policy, .scope = evict_rule_of(policy).scope, .budget = b->slots, .sink = -1};
}

static struct evict_row limits_of(const struct forced_bench *b, int policy)
{
    const struct evict evict = evict_of(b, policy);
    struct evict_row limits;
    evict_row_init(&evict, 2 * b->slots, b->slots,
                   &limits); // cannot fail: more slots than protected
    return limits;
}

static int ring_slots_of(const struct forced_bench *b, const struct evict_row *limits)
{
    return b->ring_slots > 0 ? evict_ring_slots(limits) : 0;
}

void forced_fill_spans(const struct forced_bench *b, struct forced_span *spans, int policy, int pos)
{
    const struct evict_row limits = limits_of(b, policy);
    const int evicts = policy != EVICT_FULL;
    for (int r = 0; r < b->rows; r++)
        spans[r] =
            (struct forced_span){.row = r,
                                 .n_slots = b->slots - ring_slots_of(b, &limits) - (evicts ? 0 : 1),
                                 .n = 1,
                                 .pos = evicts ? pos : b->slots - 1,
                                 .token = r,
                                 .limits = limits};
}

void forced_args(const struct forced_bench *b, int policy, int set, const struct forced_span *spans,
                 struct attend_forced_args *args)
{
    const struct bench_model *m = b->model;
    int64_t heads = (int64_t)m->n_heads * m->head_dim, kv = (int64_t)m->n_kv_heads * m->head_dim;
    int64_t first = (int64_t)set * b->rows, meta = (int64_t)m->n_kv_heads * b->cap;
    int64_t ring_bytes = KV_RING_PAGES * b->ring.page_bytes;
    int evicts = policy != EVICT_FULL;
    *args = (struct attend_forced_args){
        .kv = {.layout = b->layout,
               .ring = b->ring,
               .pages = b->pool,
               .page_ids = b->page_ids + first * b->pages,
               .slot_pos = evicts ? b->slot_pos + first * meta : NULL,
               .slot_score = evicts ? b->slot_score + first * meta : NULL,
               .slot_trait = evicts ? b->slot_trait + first * meta : NULL,
               .dirty = b->dirty,
               .rings = b->ring_slots > 0 ? b->rings + first * ring_bytes : NULL,
               .ring_stride = ring_bytes,
               .slot_stride = meta,
               .page_ids_stride = b->pages,
               .dirty_stride = FORCED_DIRTY,
               .slots_cap = b->cap},
        .evict = evict_of(b, policy),
        .spans = spans,
        .n_spans = b->rows,
        .n_heads = m->n_heads,
        .n_max = 1,
        .slots_max = b->slots,
        .scale = 0.125f,
        .q = b->x,
        .k = b->x + 2 * b->rows * heads,
        .v = b->x + 3 * b->rows * heads,
        .out = b->x + b->rows * heads,
        .q_stride = heads,
        .k_stride = kv,
        .v_stride = kv,
        .out_stride = heads,
        .scratch = b->scratch};
}

static void shape_text(const struct forced_bench *b, const char *what, char *shape, size_t cap)
{
    snprintf(shape, cap, "%d rows x %d %s %s", b->rows, b->slots, kv_format_name(b->format), what);
}

enum err forced_policy_row(const struct forced_bench *b, int policy, double s, double step_s)
{
    const struct bench_model *m = b->model;
    const struct evict_row limits = limits_of(b, policy);
    const int ring = ring_slots_of(b, &limits);
    char shape[64];
    shape_text(b, evict_policy_name(policy), shape, sizeof shape);
    struct bench_result r = {.op = "attend_forced",
                             .model = m->name,
                             .shape = shape,
                             .seconds = s,
                             .ram = b->roof,
                             .step_s = step_s};
    r.flops = 4.0 * b->rows * b->slots * m->n_heads * m->head_dim;
    r.bytes = 2.0 * b->rows / PAGE_SLOTS *
              ((b->slots - ring) * (double)b->layout.v_offset + ring * (double)b->ring.v_offset);
    return bench_result(b->run, &r);
}

enum err forced_scores_row(const struct forced_bench *b, double *extra, int n, double step_s)
{
    char shape[64];
    shape_text(b, "scores", shape, sizeof shape);
    const double median = bench_median(extra, n); // sorts `extra`
    const int many = n >= SPREAD_PAIRS;
    return bench_result(b->run, &(struct bench_result){.op = "attend_forced",
                                                       .model = b->model->name,
                                                       .shape = shape,
                                                       .seconds = median,
                                                       .low_s = many ? extra[n / 4] : 0,
                                                       .high_s = many ? extra[n - 1 - n / 4] : 0,
                                                       .step_s = step_s,
                                                       .kind = "pairs"});
}

/* ---- on this CPU ---- */

struct forced_cpu {
    struct forced_bench b;
    int set;     // set of the next call
    int in_line; // 1: read sequentially
};

static void lay_out(struct forced_bench *b, struct arena *a)
{
    b->pool = arena_take(a, forced_pool_bytes(b), 2 << 20);
    b->rings = arena_take(a, forced_rings_bytes(b), 4096);
    forced_carve(b, a);
}

/* Copies the first page to all pages. */
static void fill_pages(const struct forced_bench *b, const struct kv_layout *l, uint8_t *pages,
                       int64_t n_bytes)
{
    if (n_bytes > 0)
        forced_fill_page(b, l, pages);
    for (int64_t at = l->page_bytes; at < n_bytes; at += l->page_bytes)
        memcpy(pages + at, pages, (size_t)l->page_bytes);
}

typedef uint64_t line_t __attribute__((vector_size(64), may_alias)); // a cache line

/* Sums a thread's part of a set's pages. */
static void read_part(void *ctx, int thread, int n_threads)
{
    const struct forced_cpu *f = ctx;
    const struct forced_bench *b = &f->b;
    int64_t first, last, lines = 2 * b->layout.v_offset / 128 * 2;
    pool_split((int64_t)b->rows * b->pages, thread, n_threads, &first, &last);
    line_t even = {0}, odd = {0};
    for (int64_t i = first; i < last; i++) {
        int64_t at = (int64_t)f->set * b->rows * b->pages + i;
        const void *in_line = b->pool + at * b->layout.page_bytes;
        const void *by_id = b->pool + b->page_ids[at] * b->layout.page_bytes;
        const line_t *page = f->in_line ? in_line : by_id;
        for (int64_t j = 0; j < lines; j += 2) {
            even += page[j];
            odd += page[j + 1];
        }
    }
    even += odd;
    __asm__ volatile("" ::"m"(even)); // keeps the sums alive
}

/* Seconds to read the pages of as many rows, without computing. */
static double read_seconds(struct forced_cpu *f, int in_line)
{
    f->in_line = in_line;
    int64_t start_ns = clock_ns();
    pool_run(f->b.ops->pool, read_part, f);
    f->set = (f->set + 1) % f->b.n_sets;
    return (double)(clock_ns() - start_ns) * 1e-9;
}

/* Seconds of one call at position `pos`, with rows and scores that are not in caches: another set
 * is read first. */
static double call_seconds(struct forced_cpu *f, int policy, int pos)
{
    struct forced_bench *b = &f->b;
    struct attend_forced_args args;
    fill_slots(b);
    read_seconds(f, 0);
    forced_fill_spans(b, b->spans, policy, pos);
    forced_args(b, policy, f->set, b->spans, &args);
    f->set = (f->set + 1) % b->n_sets;
    int64_t start_ns = clock_ns();
    ops_run_attend_forced(b->ops, &args);
    return (double)(clock_ns() - start_ns) * 1e-9;
}

static double read_bytes(const struct forced_bench *b)
{
    return (double)b->rows * b->pages * (double)(2 * b->layout.v_offset);
}

/* Prints the rate of reading pages. */
static enum err read_row(const struct forced_bench *b, double s)
{
    char shape[64];
    shape_text(b, "read", shape, sizeof shape);
    return bench_result(b->run, &(struct bench_result){.op = "attend_forced",
                                                       .model = b->model->name,
                                                       .shape = shape,
                                                       .bytes = read_bytes(b),
                                                       .seconds = s,
                                                       .ram = b->roof});
}

/* Policies take turns, so that a slow moment affects all. */
static enum err measure(struct forced_cpu *f, const int *policies, int n)
{
    struct forced_bench *b = &f->b;
    double best[N_EVICT_POLICIES], best_read = 1e9, best_line = 1e9, extra[CALLS] = {0};
    for (int p = 0; p < n; p++)
        best[p] = 1e9;
    for (int i = 0; i < CALLS; i++) {
        double line = read_seconds(f, 1), read = read_seconds(f, 0);
        best_line = line < best_line ? line : best_line;
        best_read = read < best_read ? read : best_read;
        for (int p = 0; p < n; p++) {
            double s = call_seconds(f, policies[p], b->slots + i);
            best[p] = s < best[p] ? s : best[p];
            if (p < 2) // h2o minus full
                extra[i] += p == 0 ? -s : s;
        }
    }
    b->roof = read_bytes(b) / best_line;
    TRY(read_row(b, best_read));
    for (int p = 0; p < n; p++)
        TRY(forced_policy_row(b, policies[p], best[p], 0));
    return forced_scores_row(b, extra, CALLS, 0);
}

static enum err run_slots(const struct bench_run *run, const struct ops *ops,
                          const struct bench_model *model, enum kv_format format, int slots)
{
    struct forced_cpu f = {.b = {.run = run,
                                 .model = model,
                                 .scratch_of = device_cpu()->api->scratch,
                                 .ops = ops,
                                 .format = format,
                                 .rows = ROWS,
                                 .slots = slots,
                                 .n_spans = 1}};
    struct forced_bench *b = &f.b;
    int policies[N_EVICT_POLICIES] = {EVICT_FULL, EVICT_H2O}, n = 2;
    struct arena arena;
    forced_init(b, POOL_BYTES);
    arena_init(&arena);
    lay_out(b, &arena);
    TRY(arena_open(&arena, arena.used));
    lay_out(b, &arena);
    forced_fill(b);
    fill_pages(b, &b->layout, b->pool, forced_pool_bytes(b));
    fill_pages(b, &b->ring, b->rings, forced_rings_bytes(b));
    for (int i = 0; i < run->n_policies; i++)
        if (run->policies[i] != EVICT_H2O)
            policies[n++] = run->policies[i];
    enum err err = measure(&f, policies, n);
    arena_close(&arena);
    return err;
}

enum err bench_forced(const struct bench_run *run, const struct ops *ops,
                      const struct bench_model *model)
{
    static const int slots[] = {128, 640, 2048};
    for (int f = 0; f < N_KV_FORMATS; f++)
        for (int i = 0; i < 3; i++)
            TRY(run_slots(run, ops, model, (enum kv_format)f, slots[i]));
    return OK;
}
