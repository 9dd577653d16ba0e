/* engine/api/run.h - the commands: from flags to an opened model, a job, a plan and a run.
 *
 * Owns: the order in which the parts of a run come up and go down; the automatic choices, each
 * printed once. Refuses: the work itself. Only main.c exits. */
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

/* A model with its text side, ready to run. */
struct opened {
    struct model model;
    struct tokenizer *tokenizer; // owned; NULL: token ids only
    struct template *tmpl;       // owned; NULL: no chat template
    char pack_path[4096];
    char name[256]; // of the model that was named; its pack may be that of a copy
    int passing;    // 1: the pack was made for this look at the model only, and goes with it
};

struct pack_progress {
    int bar, lines;                // 1: draw on the terminal; 1: a line now and then
    int all_lines;                 // 1: also the last one (--progress lines)
    const atomic_int *interrupted; // borrowed
    int64_t last_ns;
};
/* What --progress, --quiet and the terminal make of it: never PROGRESS_AUTO. */
enum config_progress progress_of(const struct config *c);

struct pack_progress pack_progress_begin(const struct config *c);
/* The progress of pack.h, ctx a struct pack_progress. ERR_STOPPED: interrupted. */
enum err pack_progress_show(void *ctx, int64_t done_bytes, int64_t total_bytes);

/* Opens MODEL: a pack as it is; anything else is packed into the cache first, once, and says so. Of
 * a model config only the directory is packed: run_walk makes the layers. */
enum err opened_open(struct opened *o, const struct config *c);
void opened_close(struct opened *o);
/* Packs `model` as `request` says (path, weights), with progress unless quiet. */
enum err opened_pack(const char *model, struct pack_request *request, const struct config *c);

/* Who says what the plan is: run_plan, with details under -v; the command itself; run_plan, but the
 * details alone. */
enum plan_told { PLAN_LINE, PLAN_BY_COMMAND, PLAN_DETAILS };

/* What run_prepare() opens once. Jobs, and plans that are only compared (variant.h), share it. */
struct session {
    struct opened opened;
    struct machine_info info;
    struct pool *pool;     // owned
    struct device *device; // owned: what the ops run on; `plan` for another machine has the CPU
    enum ring_kind io;
    char offload_dir[4096];
    char matmul[32];        // whose matmuls run: "own", or a library and its version
    char fingerprint[4096]; // what fixes the bytes of every job, as lines for OUT.job.json
};

/* What run_choose() decides: a value, complete in itself. */
struct decision {
    struct plan_wish wish; // what the flags and the plan file fixed
    struct plan plan;
    struct plan_bytes bytes;
    struct plan_time time;
};

/* A session, one job at a time, and the decision for it; built by run_prepare(), taken down by
 * run_close(). */
struct run {
    const struct config *config; // borrowed
    struct session *session;     // owned; borrowed by the copies that variant.c makes

    /* What a decision is for; a variant changes its own copies of these. */
    const struct model *model; // borrowed: the session's, or what it would be in another format
    struct machine machine;    // rates, as probed
    struct ops ops;
    struct evict evict;
    struct kv_kinds kinds[2]; // of layers: as the model says, and as the budget is shared
    enum kv_format kv_format;
    struct budget budget;
    struct budget room; // free here when it was measured; -1: not measured
    struct plan_costs costs;
    struct pace pace;     // measured / predicted time of earlier runs; costs.pace points to it
    char pace_path[4200]; // the file of those times; "": none
    int keeps_rates;      // 1: rates of an earlier job of this run hold for all that follow
    int elsewhere;        // 1: `plan --machine`: threads and capacities are that machine's
    int plans_device;     // 1: the plan is for a device with memory of its own
    double int8_speed;    // matmuls in int8 over those in bf16; 0: not measured (advise_int8)
    struct pack_codec_sample codec_sample; // what encoding the weights gives; share 0: not measured

    struct decision decision;
    struct weights_info *weights;   // owned
    void *search;                   // owned: memory of plan_search, then of replan
    int64_t search_bytes, watch_at; // replan's part begins watch_at bytes in
    struct plan_ranking *ranking;   // borrowed: what the search chose among; or NULL
    enum plan_told plan_told;
    int hidden_moves; // 1: hidden states were asked to leave the ops
    int keep_rows;    // 1: a plan holds all rows, or does not fit; 0: run_plan may leave some out

    struct job *job; // owned
    struct work work;
    char fingerprint[8192];  // the session's, and what fixes the bytes of this job
    int64_t n_left_out;      // rows whose prompts run_plan found too long
    struct pack_codec codec; // owned: of the pack, once run_walk wants it
    struct replan *replan;   // owned; NULL: the plan stays
    struct engine engine;
    int engine_opened;
    /* About once a second, how far the job is; left_s below 0: unknown. NULL: not wanted. */
    void (*progress)(void *ctx, const struct job_counts *counts, double elapsed_s, double left_s);
    void *progress_ctx;
    void (*tick)(void *ctx); // called every step; or NULL
    void *tick_ctx;
    int64_t start_ns;
    double startup_s;
};

/* --kv-policy and what belongs to it. ERR_USAGE. */
enum err run_read_evict(struct evict *e, const struct config *c);
/* And what layers make of it, once the model is open: of another policy than the one before. */
void run_set_kinds(struct run *r);
/* Whether the opened model can be run with its positions. ERR_USAGE. */
enum err run_check_positions(const struct run *r, const struct evict *e);
/* --kv-format. ERR_USAGE. */
enum err run_read_kv_format(enum kv_format *format, const struct config *c);
/* The format that most of the model's weights have. */
enum dtype run_weights(const struct run *r);
/* Model, machine, threads, policy; no job yet. */
enum err run_prepare(struct run *r, const struct config *c);
/* Work is known: search (or take) a plan, prove it, print it with the flags that freeze it. Rows
 * whose prompts no plan within the budgets holds, whatever placement was asked for, leave the work
 * and become error rows (see job.h). */
enum err run_plan(struct run *r);
/* Its two halves: what the machine gives (budgets, rates; those not known yet are measured), and
 * the plan within that. */
enum err run_rates(struct run *r);
/* Bytes of the longest input line that the RAM budget has room for. */
int64_t run_line_max(struct run *r);
enum err run_choose(struct run *r);
/* What r's plans are for, and where; it points into r. */
struct setting run_setting(const struct run *r);
/* A placement that nobody chose: the leanest plan of all is among its candidates. */
struct plan_wish run_any_placement(const struct plan_wish *wish);
/* n figures of this machine that `key` names beside CPU, threads and instruction set, kept in the
 * cache folder (offload/probe_cache.h). 0: there are none. Without a folder none are kept. */
int run_figures_read(const struct run *r, const char *what, const char *key, double *x, int n);
void run_figures_write(const struct run *r, const char *what, const char *key, double *x, int n);
/* Keeps what a run that is over took by what was predicted, for the predictions of later runs. */
void run_keep_pace(const struct run *r);
/* RAM of rows, names and tables that no layout has in it. */
int64_t run_text_bytes(const struct run *r);
/* Of the rates those of the model's matmuls alone, from the machine's. */
void run_rates_derive(struct run *r);
/* KV bytes of r's format that are attended over in a second, by the machine's rates; 0: unknown. */
double run_attend_rate(const struct run *r);
enum err run_walk(struct run *r); // engine_open + engine_run
/* Takes down what a job brought up, so that another can be planned and walked: model, threads and
 * device stay. */
enum err run_again(struct run *r);
/* Takes everything down; live tokens of the job become durable. Accepts a half-built run. */
enum err run_close(struct run *r);

#endif
