/* engine/line/engine.h - the public boundary: a model, a job and a plan become a run.
 *
 * Owns: everything of one run, in dependency order. Refuses: deciding (policy) and parsing (job).
 * Use: engine_open -> engine_run -> engine_close; close accepts a half-open engine. */
#ifndef ENGINE_LINE_ENGINE_H
#define ENGINE_LINE_ENGINE_H

#include <signal.h>

#include "engine/job/job.h"
#include "engine/line/attend.h"
#include "engine/line/batch.h"
#include "engine/line/dump.h"
#include "engine/line/gather.h"
#include "engine/line/home.h"
#include "engine/line/layer.h"
#include "engine/model/model.h"
#include "kernels/base/trace.h"
#include "offload/probe_model.h"

struct engine;

struct engine_config {
    struct plan plan;
    const struct layout *layout; // of that plan; borrowed, as are the pointers below
    const struct model *model;
    const struct pack_codec *codec; // its encoded layers, or NULL
    struct job *job;
    struct evict evict;
    struct ops ops; // instruction set, compute format, pool (borrowed)
    enum kv_format kv_format;
    enum ring_kind io;
    int io_depth;
    struct device *device;
    int numa_node; // where RAM lies best; -1: anywhere
    const char *offload_dir;
    int64_t rope_rows; // layout_rope_rows() of the job
    int edits_max;     // of the job's rows: see engine/line/batch.h
    const int32_t *stops;
    int n_stops;
    const char *dump_path, *kv_trace_path;    // --kv-dump, --kv-trace, or NULL
    int64_t trace_events;                     // per lane; 0: totals only
    double time_limit_s;                      // 0: none
    const volatile sig_atomic_t *interrupted; // set by the signal handler
    void (*tick)(void *ctx); // called every step, for the progress display; or NULL
    void *tick_ctx;
    /* Called when a pass is over, before rows enter the next one: 1: the line is left here, and
     * engine_again() goes on under another plan. NULL: it is walked to its end. */
    int (*leave)(void *ctx, const struct engine *e);
    void *leave_ctx;
    struct load *loads; // [plan.batches] borrowed: what each batch did in that pass; or NULL
};

struct engine {
    struct engine_config config;
    struct order order; // of the plan
    struct walk walk;
    struct home home;
    struct gather gather;
    struct batches batches;
    struct layer_work work;
    struct attender attender; // when rows attend on the CPU beside a device
    struct trace trace;
    struct tables tables;  // of the step at hand
    struct stream *stream; // owned: the ops of the line, in order
    /* Of the steps that are queued, by step % (window + 1): owned events that their ops begin and
     * that they are done. */
    struct event *begun[PLAN_WINDOW_MAX + 1], *done[PLAN_WINDOW_MAX + 1];
    int64_t brought_ns; // that the step at hand has waited for experts
    int64_t done_ns;    // when the last step that is known to be done was, by a device's clock
    struct dump dump;   // --kv-dump
    int64_t n;          // the step being walked
    int left;           // 1: the line was left between two passes, and its rows went back
    /* Over all plans of the run. */
    int64_t passes;               // that had tokens
    int64_t start_ns, end_ns;     // of step 0 and of the end of the walk
    struct mover_repairs repairs; // once the walk has ended
    int64_t rows_lost; // rows computed again, because what stood on disk of them was wrong
    int64_t peak_bytes[N_TIERS]; // that the run took, but for text
};

/* Memory, files, the mover. ERR_FIT, ERR_IO, ERR_INPUT. */
enum err engine_open(struct engine *e, const struct engine_config *config);
/* Walks the line until the job has no rows left, or `leave` said so (e->left). ERR_STOPPED:
 * interrupted or out of time, resumable. */
enum err engine_run(struct engine *e);
/* After it was left: gives back what the plan carved; what the run has counted stays. Then the same
 * job goes on under this config's plan, its formats, policy and compute what they were. Errors as
 * engine_open. */
void engine_give_back(struct engine *e);
enum err engine_again(struct engine *e, const struct engine_config *config);
void engine_close(struct engine *e);

/* Bytes of a number that goes between a device and the CPU which attends beside it: 2, as bf16,
 * where that changes no result. q, k and v: attention rounds them anyway, k and v to the KV format
 * and q unless COMPUTE_F32; not where q is still to be rotated, or numbers become codes. What
 * attention gives: the next matmul rounds it, unless it multiplies f32, f16 or codes of int8. */
struct cross_bytes engine_cross_bytes(struct device *device, enum compute compute,
                                      enum kv_format kv_format, const struct evict *evict);
/* What the engine needs beyond the plan's own numbers: fills plan_costs as far as they depend on
 * the model and on what runs its ops. */
void engine_costs(const struct model *model, struct device *device, const struct ops *ops,
                  enum kv_format kv_format, const struct work *work, const struct evict *evict,
                  struct plan_costs *costs);
/* Pages of prompts stand in the compute format. */
enum kv_format engine_prompt_format(enum compute compute);
/* Bytes of one row's ring in one layer, and its layout; 0 unless the KV format has rings. */
int64_t engine_ring_layout(const struct shape *s, enum kv_format format, struct kv_layout *ring);
/* The sizes of a model, as the plan reads them; device and compute decide which tiles its matmuls
 * read. */
void engine_weights_info(const struct model *model, struct device *device, enum compute compute,
                         struct weights_info *w);
/* The matrices of its layer of mean size, and of the head's first tile, as they are stored and as
 * the CPU's tiles, and what else a layer does. */
void engine_model_ops(const struct model *model, enum compute compute, enum kv_format kv_format,
                      const struct evict *evict, struct probe_model *p);

#endif
