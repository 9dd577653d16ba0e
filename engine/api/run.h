/* engine/api/run.h - from flags to an opened model, a job, a plan and a run.
 *
 * Owns: the order in which the parts of a run are opened and closed; the automatic choices, each
 * printed once. Refuses: the work itself, and exit(). */
#ifndef ENGINE_API_RUN_H
#define ENGINE_API_RUN_H

#include "engine/api/config.h"
#include "engine/line/engine.h"
#include "engine/model/pack.h"
#include "engine/text/template.h"
#include "engine/text/token.h"
#include "offload/machine.h"
#include "policy/cost.h"
#include "policy/pace.h"
#include "policy/search.h"

/* A model with its tokenizer and chat template, ready to run. */
struct opened {
    struct model model;
    struct tokenizer *tokenizer; // owned; NULL: token ids only
    struct template *tmpl;       // owned; NULL: no chat template
    char pack_path[4096];
    char name[256]; // of the model that the user named; its pack may come from an identical copy
};

struct pack_progress {
    int bar, lines; // bar 1: draw on the terminal; lines 1: print a line now and then
    int all_lines;  // 1: print the last line too (--progress lines)
    const atomic_int *interrupted; // borrowed
    int64_t last_ns;
};
/* The mode from --progress, --quiet and the terminal: never PROGRESS_AUTO. */
enum config_progress progress_of(const struct config *c);

struct pack_progress pack_progress_begin(const struct config *c);
/* The progress callback of pack.h; ctx is a struct pack_progress. ERR_STOPPED: interrupted. */
enum err pack_progress_show(void *ctx, int64_t done_bytes, int64_t total_bytes);

/* Opens MODEL. A pack is opened directly; any other model is packed into the cache first, once,
 * with a message. For a model config only the directory is packed: run_walk makes the layers. */
enum err opened_open(struct opened *o, const struct config *c);
void opened_close(struct opened *o);
/* Packs `model` according to `request` (path, weights), with progress unless quiet. */
enum err opened_pack(const char *model, struct pack_request *request, const struct config *c);

/* What run_plan prints: one line (and details under -v); nothing; only details under -v. */
enum plan_told { PLAN_LINE, PLAN_BY_COMMAND, PLAN_DETAILS };

/* What run_prepare() opens once. All jobs, and the plans of variant.h, share it. */
struct session {
    struct opened opened;
    struct machine_info info;
    struct pool *pool;     // owned
    struct device *device; // owned: runs the ops; the CPU when `plan` is for another machine
    enum ring_kind io;
    char offload_dir[4096];
    char matmul[32];        // the matmul code: "own", or a library and its version
    char fingerprint[4096]; // lines for OUT.job.json: what determines the bytes of every job
};

/* The result of run_choose(): a value without references to the run. */
struct decision {
    struct plan_wish wish; // fields that flags and the plan file fixed
    struct plan plan;
    struct plan_bytes bytes;
    struct plan_time time;
};

/* What the ranks of a pipeline have in common: how many they are, and the plan's numbers that
 * decide which rows enter a pass and which tokens they take. */
struct ranks {
    int n;                                     // 0: no pipeline
    int64_t batch, prefill_tokens, no_sharing; // batch 0: not agreed yet
};

/* A session, one job at a time, and its decision. From run_prepare() to run_close(). */
struct run {
    const struct config *config; // borrowed
    struct session *session;     // owned; borrowed by the copies that variant.c makes

    /* The inputs of a decision; a variant changes its own copies. */
    const struct model *model; // borrowed: the session's, or the same model in another format
    struct machine machine;    // rates, as probed
    struct ops ops;
    struct evict evict;
    struct kv_kinds kinds[2]; // of layers: the model's kinds and the budget shares
    enum kv_format kv_format;
    struct budget budget;
    struct budget room; // free memory here when measured; -1: not measured
    struct plan_costs costs;
    struct pace pace;     // measured / predicted time of earlier runs; costs.pace points to it
    char pace_path[4200]; // the file of `pace`; "": none
    int keeps_rates;      // 1: rates measured by an earlier job of this run are used for later jobs
    int elsewhere;        // 1: `plan --machine`: threads and capacities are those of the file
    int plans_device;     // 1: the plan is for a device with separate memory
    double int8_speed;    // int8 matmul speed / bf16 matmul speed; 0: not measured (advise_int8)
    struct pack_codec_sample codec_sample; // of the weights; share 0: not measured

    struct decision decision;
    struct weights_info *weights;   // owned
    void *search;                   // owned: memory of plan_search, then of replan
    int64_t search_bytes, watch_at; // offset in bytes where replan's part begins
    struct plan_ranking *ranking;   // borrowed: the plans that the search compared; or NULL
    enum plan_told plan_told;
    int hidden_moves; // 1: the user asked for no hidden states near the ops
    int compared;     // 1: the plan is only compared and never runs (plan_wish.brief)
    int keep_rows;    // 1: all rows must fit into a plan; 0: run_plan may leave some out

    struct job *job; // owned
    struct work work;
    struct work part; // of `work`: what this worker may expect to do, if there are config.workers
    struct claims *claims;     // borrowed: of --work-dir; NULL: this process does all rows
    int make_out;              // see job.h
    struct pipeline *pipeline; // owned: of --pipeline, or NULL
    struct ranks ranks;        // of the pipeline that this run plans a part of
    char fingerprint[8192];    // session.fingerprint, plus what determines the bytes of this job
    int64_t n_left_out;        // rows that run_plan left out because of long prompts
    struct pack_codec codec;   // owned: of the pack; opened by run_walk
    struct replan *replan;     // owned; NULL: the plan never changes
    struct engine engine;
    int engine_opened;
    /* Called about once a second; left_s below 0: unknown. NULL: not wanted. */
    void (*progress)(void *ctx, const struct job_counts *counts, double elapsed_s, double left_s);
    void *progress_ctx;
    void (*tick)(void *ctx); // called every step; or NULL
    void *tick_ctx;
    int64_t start_ns;
    double startup_s;
};

/* Reads --kv-policy and its related flags. ERR_USAGE. */
enum err run_read_evict(struct evict *e, const struct config *c);
/* Sets r->kinds from the policy and the open model. Call again after the policy changed. */
void run_set_kinds(struct run *r);
/* Checks that the opened model supports the policy's --kv-positions. ERR_USAGE. */
enum err run_check_positions(const struct run *r, const struct evict *e);
/* --kv-format. ERR_USAGE. */
enum err run_read_kv_format(enum kv_format *format, const struct config *c);
/* The most frequent format among the model's weights. */
enum dtype run_weights(const struct run *r);
/* Prepares model, machine, threads and policy; no job yet. */
enum err run_prepare(struct run *r, const struct config *c);
/* Requires r->work: searches (or reads) a plan, verifies the plan and prints it with the flags that
 * repeat it. Rows whose prompts fit no plan within the budgets, under any placement, leave the work
 * and become error rows (see job.h). */
enum err run_plan(struct run *r);
/* The two halves of run_plan: run_rates reads budgets and rates of the machine, measuring missing
 * ones; run_choose finds the plan. */
enum err run_rates(struct run *r);
/* Longest input line in bytes that fits into the RAM budget. */
int64_t run_line_max(struct run *r);
enum err run_choose(struct run *r);
/* The weights in RAM that this worker shares with others. */
struct plan_shared run_shared(const struct run *r);
/* The inputs of the plan search; the result points into r. */
struct setting run_setting(const struct run *r);
/* The wish without placement flags, so the candidates include the plan with the least memory. */
struct plan_wish run_any_placement(const struct plan_wish *wish);
/* Reads or writes n figures in the cache folder (offload/probe_cache.h), named by `key`, CPU,
 * threads and instruction set. 0: there are none. Without a cache folder nothing is stored. */
int run_figures_read(const struct run *r, const char *what, const char *key, double *x, int n);
void run_figures_write(const struct run *r, const char *what, const char *key, double *x, int n);
/* Stores measured / predicted time of a finished run, for the predictions of later runs. */
void run_keep_pace(const struct run *r);
/* RAM for rows, names and tables outside of any layout. */
int64_t run_text_bytes(const struct run *r);
/* Derives the rates of the model's matmuls from the rates of the machine. */
void run_rates_derive(struct run *r);
/* KV bytes per second that attention reads in r's format, from the machine's rates; 0: unknown. */
double run_attend_rate(const struct run *r);
enum err run_walk(struct run *r); // engine_open + engine_run
/* Closes a job and its plan, so that another job can be planned and walked. Keeps model, threads
 * and device. */
enum err run_again(struct run *r);
/* Closes everything; live tokens of the job become durable. Accepts a half-built run. */
enum err run_close(struct run *r);

#endif
