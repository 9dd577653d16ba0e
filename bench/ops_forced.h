/* bench/ops_forced.h - operands of attend_forced for this CPU (bench/ops_forced.c) and for a device
 * (bench/ops_forced_device.c): rows whose KV comes from memory, not from caches. */
#ifndef BENCH_OPS_FORCED_H
#define BENCH_OPS_FORCED_H

#include "bench/bench.h"
#include "kernels/base/arena.h"
#include "kernels/device.h"

struct forced_bench {
    const struct bench_run *run;
    const struct bench_model *model;
    const struct device_scratch *scratch_of; // borrowed: of the device that runs the op
    const struct ops *ops;
    enum kv_format format;
    struct kv_layout layout, ring; // of the pages; of the rings (mixed)
    int rows, slots, cap, pages, n_sets, ring_slots;
    int n_spans;               // spans has n_spans lists of [rows]
    double roof;               // bytes per second of reading; 0: the run's
    float *x;                  // [4][rows, n_heads, head_dim] queries, outputs, keys, values
    uint8_t *pool;             // [n_sets * rows * pages][page_bytes]
    uint8_t *rings;            // [n_sets * rows * KV_RING_PAGES][ring.page_bytes]; mixed
    int32_t *page_ids;         // [n_sets][rows][pages], in random order
    int32_t *slot_pos;         // [n_sets][rows][n_kv_heads, cap]
    float *slot_score;         // same shape
    float *slot_trait;         // same shape
    uint64_t *dirty;           // [rows][FORCED_DIRTY] never read
    struct forced_span *spans; // [n_spans][rows]
    void *scratch;
};
#define FORCED_DIRTY 4 // words with a bit for every page of a row

/* Sets sizes from format, rows and slots; the sets together have more than pool_bytes. */
void forced_init(struct forced_bench *b, int64_t pool_bytes);
int64_t forced_pool_bytes(const struct forced_bench *b);
int64_t forced_rings_bytes(const struct forced_bench *b); // 0 without rings
/* Carves everything except pool and rings. */
void forced_carve(struct forced_bench *b, struct arena *a);
void forced_fill(struct forced_bench *b);
/* Fills a page with full slots, from the numbers in x. */
void forced_fill_page(const struct forced_bench *b, const struct kv_layout *l, uint8_t *page);
/* Spans of one token at position `pos`, or for EVICT_FULL at the row's last position. */
void forced_fill_spans(const struct forced_bench *b, struct forced_span *spans, int policy,
                       int pos);
void forced_args(const struct forced_bench *b, int policy, int set, const struct forced_span *spans,
                 struct attend_forced_args *args);
/* Prints the row of a policy; step_s as in struct bench_result. */
enum err forced_policy_row(const struct forced_bench *b, int policy, double s, double step_s);
/* Prints the cost of scores and of choosing victims: the median difference of paired calls; from
 * SPREAD_PAIRS pairs on also the quartiles. */
#define SPREAD_PAIRS 20
enum err forced_scores_row(const struct forced_bench *b, double *extra, int n, double step_s);

#endif
