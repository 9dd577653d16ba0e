/* engine/line/engine.h - runs a job with a model under a plan.
 *
 * Owns: everything of one run, in dependency order. Refuses: decisions (policy) and parsing (job).
 * Use: engine_open -> engine_run -> engine_close; engine_close accepts a half-open engine. */
#ifndef ENGINE_LINE_ENGINE_H
#define ENGINE_LINE_ENGINE_H

#include <stdatomic.h>

#include "engine/job/job.h"
#include "engine/line/attend.h"
#include "engine/line/batch.h"
#include "engine/line/dump.h"
#include "engine/line/gather.h"
#include "engine/line/home.h"
#include "engine/line/layer.h"
#include "engine/line/pipe.h"
#include "engine/model/model.h"
#include "kernels/base/trace.h"
#include "offload/probe_model.h"

struct engine;

struct engine_config {
    struct plan plan;
    struct setting set; // what `plan` was checked for; borrowed, like all pointers below
    const struct model *model;
    const struct pack_codec *codec; // the model's encoded layers, or NULL
    struct job *job;
    struct peers *peers; // of a pipeline, or NULL
    struct ops ops;      // instruction set, compute format, pool (borrowed)
    enum kv_format kv_format;
    enum ring_kind io;
    int io_depth;
    struct device *device;
    int numa_node; // preferred NUMA node of RAM; -1: any
    int shared_fd; // as in struct home_config
    const char *offload_dir;
    const int32_t *stops;
    int n_stops;
    const char *dump_path, *kv_trace_path; // --kv-dump, --kv-trace, or NULL
    int64_t trace_events;                  // per lane; 0: totals only
    double time_limit_s;                   // 0: none
    const atomic_int *interrupted;         // set by a signal handler or another thread
    void (*tick)(void *ctx);               // called every step, for the progress display; or NULL
    void *tick_ctx;
    /* Called at the end of a pass, before rows enter the next one. Returns 1 to leave the plan;
     * engine_again() then continues under another one. NULL: never leave. */
    int (*leave)(void *ctx, const struct engine *e);
    void *leave_ctx;
    struct load *loads; // [plan.batches] borrowed: work of each batch in that pass; or NULL
};

struct engine {
    struct engine_config config;
    struct order order; // of the plan
    struct walk walk;
    struct home home;
    struct gather gather;
    struct batches batches;
    struct pipe pipe;
    struct layer_work work;
    struct attender attender; // open only if rows attend on the CPU beside a device
    struct trace trace;
    struct tables tables;   // of the current step
    struct slab dirty_back; // per step in flight on a device: bitmap of the pages that it wrote
    struct stream *stream;  // owned: runs the ops of the line, in order
    /* Owned events, indexed by step % (window + 1): the ops of a queued step began, are done. */
    struct event *begun[PLAN_WINDOW_MAX + 1], *done[PLAN_WINDOW_MAX + 1];
    int64_t brought_ns; // time that the current step waited for experts, or other ranks
    int64_t done_ns;    // end of the last step known to be done, on a device's clock
    struct dump dump;   // --kv-dump
    int64_t n;          // the current step
    int left;           // 1: a plan was left between two passes and the rows were requeued
    /* Totals over all plans of the run. */
    int64_t passes;               // passes with tokens
    int64_t start_ns, end_ns;     // start of step 0, end of the walk
    struct mover_repairs repairs; // set at the end of the walk
    int64_t rows_lost; // rows recomputed because their bytes on disk were unreadable or wrong
    int64_t peak_bytes[N_TIERS]; // most memory used, without text buffers
};

/* Opens memory, files and the mover. ERR_FIT, ERR_IO, ERR_INPUT. */
enum err engine_open(struct engine *e, const struct engine_config *config);
/* Runs until the job has no rows left or `leave` returned 1 (e->left is set). ERR_STOPPED:
 * interrupted or out of time; the job can be resumed. */
enum err engine_run(struct engine *e);
/* Changes the plan of a run that was left: engine_give_back() frees memory and files of the old
 * plan and keeps the counters; engine_again() continues the same job under config's plan. Formats,
 * policy and compute must be the same. Errors as engine_open. */
void engine_give_back(struct engine *e);
enum err engine_again(struct engine *e, const struct engine_config *config);
void engine_close(struct engine *e);

/* Bytes per number of copies between a device and the CPU that attends for it: 2 (bf16) where this
 * changes no result, else 4. q, k, v: 2 if attention rounds them anyway (k and v to the KV format;
 * q unless compute is f32), but 4 if q is still to be rotated or K and V are quantised. Attention
 * results: 2 if the next matmul rounds them to bf16 (not under f32, f16 or int8). */
struct cross_bytes engine_cross_bytes(struct device *device, enum compute compute,
                                      enum kv_format kv_format, const struct evict *evict);
/* plan_costs.measure: counts what engine_open() would take for a plan. */
void engine_measure(const struct setting *set, const struct plan *plan, struct plan_bytes *bytes);
/* Fills the fields of plan_costs that depend on the model and on the device or CPU that runs its
 * ops. */
void engine_costs(const struct model *model, struct device *device, const struct ops *ops,
                  enum kv_format kv_format, const struct work *work, const struct evict *evict,
                  struct plan_costs *costs);
/* The layout of prompt pages, in the compute format; `wide` as in model_kv_layout(). */
void engine_prompt_layout(const struct shape *s, int wide, enum compute compute,
                          struct kv_layout *prompt);
/* Bytes of one row's ring in one layer, and its layout; 0 unless the KV format has rings. */
int64_t engine_ring_layout(const struct shape *s, int wide, enum kv_format format,
                           struct kv_layout *ring);
/* The sizes of a model, as input of the plan. device and compute decide which tiles the matmuls
 * read. */
void engine_weights_info(const struct model *model, struct device *device, enum compute compute,
                         struct weights_info *w);
/* For the probe: the matrices of a layer of mean size and of the head's first tile, as stored and
 * as CPU tiles, and the other ops of a layer. */
void engine_model_ops(const struct model *model, enum compute compute, enum kv_format kv_format,
                      const struct evict *evict, struct probe_model *p);

#endif
