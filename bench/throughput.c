/* bench/throughput.c - `bench throughput` and `bench sweep`: made-up rows through the real engine.
 *
 * Owns: the made-up job and the form of its result. Refuses: a loop of its own: plan, engine, job
 * and report are those of `run`. A newcomer would miss: token ids are pseudo-random and end-of-text
 * is ignored, so that a run takes exactly prompt-len + gen-len tokens a row, whatever the model
 * makes of them. */
#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/app/plan_file.h"
#include "engine/app/report.h"
#include "engine/app/run.h"

#define PROMPT_TOKENS 128 // when --prompt-len does not say
#define ROWS_MAX      (1 << 22)
#define SWEEP_MAX     256 // largest --batch of a sweep

/* What one run gave. */
struct outcome {
    struct report_figures figures;
    struct plan plan;
    double predicted_s;
    const char *predicted_bound;
    char model[256];
    int dummy;
    json_t *kv; // owned: plan_kv_json()
};

/* ---- the job ---- */

struct lengths {
    int64_t rows, prompt, gen;
};

static enum err lengths_read(struct lengths *l, const struct config *c, const struct run *r)
{
    const int context = r->opened.model.shape.context;
    const int64_t most = evict_tokens_max(&r->evict, context);
    *l = (struct lengths){c->num_prompts, c->prompt_len > 0 ? c->prompt_len : PROMPT_TOKENS,
                          c->gen_len};
    if (l->rows < 1 || l->rows > ROWS_MAX)
        return fail(ERR_USAGE, "--num-prompts: %lld is out of range (1..%d)", (long long)l->rows,
                    ROWS_MAX);
    if (l->gen < 1)
        return fail(ERR_USAGE, "--gen-len: %lld is out of range (at least 1)", (long long)l->gen);
    if (l->prompt > context || l->gen > most - l->prompt)
        return fail(ERR_USAGE,
                    "--prompt-len, --gen-len: %lld + %lld tokens exceed the model's context of %d",
                    (long long)l->prompt, (long long)l->gen, context);
    return OK;
}

/* Greedy, ids from (seed, row, position). */
static enum err request_make(struct request *q, int64_t row, const struct lengths *l, uint64_t seed,
                             int vocab)
{
    char name[32];
    int n = snprintf(name, sizeof name, "row-%lld", (long long)row);
    *q = (struct request){.index = row,
                          .line = row + 1,
                          .kind = REQUEST_GENERATE,
                          .form = FORM_PLAIN,
                          .hash = hash_bytes(name, n, seed),
                          .n_prompt = (int)l->prompt,
                          .n_tokens = (int)l->prompt,
                          .n_cap = (int)(l->prompt + l->gen),
                          .sampling = {.top_p = 1, .repetition_penalty = 1},
                          .ignore_eos = 1};
    q->custom_id = strdup(name);
    q->tokens = malloc((size_t)q->n_cap * sizeof *q->tokens);
    if (!q->custom_id || !q->tokens)
        return fail(ERR_FIT, "no memory for the rows of the benchmark");
    for (int i = 0; i < q->n_prompt; i++)
        q->tokens[i] =
            (int32_t)(mix64(mix64(seed + (uint64_t)row) + (uint64_t)i) % (uint64_t)vocab);
    return OK;
}

static enum err drop_result(void *ctx, const struct job_result *result)
{
    (void)ctx, (void)result;
    return OK;
}

/* The rows of a run; the job borrows the array until it is closed. */
struct rows {
    struct request *requests; // owned
    int64_t n;
};

static void rows_free(struct rows *rows)
{
    for (int64_t i = 0; rows->requests && i < rows->n; i++)
        request_free(&rows->requests[i]); // those that the job took are zeroed
    free(rows->requests);
}

static enum err open_job(struct run *r, const struct config *c, struct rows *rows)
{
    struct lengths l;
    const struct shape *shape = &r->opened.model.shape;
    TRY(lengths_read(&l, c, r));
    rows->requests = calloc((size_t)l.rows, sizeof *rows->requests);
    if (!rows->requests)
        return fail(ERR_FIT, "no memory for the rows of the benchmark");
    rows->n = l.rows;
    uint64_t seed = c->seed >= 0 ? (uint64_t)c->seed : 0;
    for (int64_t i = 0; i < l.rows; i++)
        TRY(request_make(&rows->requests[i], i, &l, seed, shape->vocab));
    struct job_config config = {.kind = REQUEST_GENERATE,
                                .defaults = {.context = shape->context, .vocab = shape->vocab},
                                .tokenizer = r->opened.tokenizer,
                                .evict = &r->evict,
                                .max_errors = -1};
    struct job_callbacks callbacks = {.finished = drop_result};
    return job_open_memory(&r->job, &config, rows->requests, l.rows, &callbacks, &r->work);
}

static enum err walk(struct run *r)
{
    struct report report;
    TRY(report_open(&report, r));
    r->tick = report_tick;
    r->tick_ctx = &report;
    enum err err = run_walk(r);
    if (err == OK)
        err = job_complete(r->job);
    return report_end(&report, err);
}

/* One whole run, from opening the model to closing it. */
static enum err run_once(const struct config *c, struct outcome *o)
{
    struct run r;
    struct rows rows = {0};
    *o = (struct outcome){0};
    enum err err = run_prepare(&r, c);
    if (err == OK)
        err = open_job(&r, c, &rows);
    if (err == OK)
        err = run_plan(&r);
    if (err == OK)
        err = walk(&r);
    if (err == OK) {
        struct job_counts counts;
        job_counts(r.job, &counts);
        report_measure(&o->figures, &r, &counts, 0);
        o->plan = r.plan;
        o->predicted_s = r.time.job_s;
        o->predicted_bound = r.time.bound;
        o->dummy = r.opened.model.dummy;
        o->kv = plan_kv_json(&r);
        snprintf(o->model, sizeof o->model, "%s", r.opened.model.name);
    }
    run_close(&r);
    rows_free(&rows);
    return err;
}

/* ---- the result ---- */

/* The keys of vLLM's throughput benchmark first, then ours. */
static json_t *outcome_json(const struct outcome *o)
{
    const struct report_figures *f = &o->figures;
    const struct job_counts *n = &f->counts;
    double s = f->elapsed_s > 0 ? f->elapsed_s : 1e-9;
    return json_pack("{sf sI sI sf sf sf sf sI sI sf sf ss ss si si si sI ss sb sf}",
                     "elapsed_time", s, "num_requests", (json_int_t)n->done, "total_num_tokens",
                     (json_int_t)(n->prompt_tokens + n->output_tokens), "requests_per_second",
                     (double)n->done / s, "tokens_per_second", f->total_per_s,
                     "output_tokens_per_second", f->output_per_s, "steady_output_tokens_per_second",
                     f->steady_per_s, "prompt_tokens", (json_int_t)n->prompt_tokens,
                     "output_tokens", (json_int_t)n->output_tokens, "predicted_elapsed_time",
                     o->predicted_s, "error_percent", report_error_percent(o->predicted_s, s),
                     "bound", f->bound, "predicted_bound",
                     o->predicted_bound ? o->predicted_bound : "", "batch", o->plan.batch,
                     "batches", o->plan.batches, "weights_resident", o->plan.resident,
                     "peak_ram_bytes", (json_int_t)f->peak_ram_bytes, "model", o->model,
                     "dummy_weights", o->dummy, "roofline_fraction", f->roofline);
}

/* What the figures depend on and a reader of a table wants to sort by: one key each. */
static void setup_put(json_t *row, const struct config *c, json_t *kv)
{
    static const char *const keys[] = {"policy", "budget", "slots", "format"};
    for (int i = 0; i < 4; i++) {
        char key[32];
        snprintf(key, sizeof key, "kv_%s", keys[i]);
        json_object_set(row, key, json_object_get(kv, keys[i]));
    }
    json_decref(kv);
    json_object_set_new(row, "compute", json_string(c->compute));
    json_object_set_new(row, "share_prefixes", json_string(c->share_prefixes));
    json_object_set_new(row, "mem_ram", c->mem_ram >= 0 ? json_integer(c->mem_ram) : json_null());
    json_object_set_new(row, "mem_disk",
                        c->mem_disk >= 0 ? json_integer(c->mem_disk) : json_null());
}

enum err bench_rate(const struct config *c, double *tokens_per_s)
{
    struct outcome o;
    enum err err = run_once(c, &o);
    *tokens_per_s = o.figures.output_per_s;
    json_decref(o.kv);
    return err;
}

enum err bench_throughput(const struct config *c)
{
    struct outcome o;
    TRY(run_once(c, &o));
    json_t *row = outcome_json(&o);
    if (!row)
        return fail(ERR_FIT, "no memory for the result");
    setup_put(row, c, o.kv);
    enum err err = OK;
    if (c->json) {
        if (json_dumpf(row, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) != 0)
            err = fail(ERR_IO, "stdout: cannot be written");
        putchar('\n');
        json_decref(row);
    } else if (c->csv) {
        struct bench_table t;
        bench_table_open(&t, c);
        err = bench_row(&t, row);
        enum err closed = bench_table_close(&t);
        err = err != OK ? err : closed;
    } else {
        printf("Throughput: %.2f requests/s, %.2f total tokens/s, %.2f output tokens/s%s\n",
               json_real_value(json_object_get(row, "requests_per_second")), o.figures.total_per_s,
               o.figures.output_per_s, o.dummy ? " (dummy weights)" : "");
        json_decref(row);
    }
    return err;
}

static json_t *sweep_json(const struct outcome *o)
{
    const struct report_figures *f = &o->figures;
    double predicted = o->predicted_s > 0 ? (double)f->counts.output_tokens / o->predicted_s : 0;
    return json_pack("{si si sf sf sf sf sf ss ss sI}", "batch", o->plan.batch, "batches",
                     o->plan.batches, "elapsed_s", f->elapsed_s, "predicted_s", o->predicted_s,
                     "output_tok_s", f->output_per_s, "predicted_tok_s", predicted, "error_percent",
                     report_error_percent(o->predicted_s, f->elapsed_s), "bound", f->bound,
                     "predicted_bound", o->predicted_bound ? o->predicted_bound : "",
                     "peak_ram_bytes", (json_int_t)f->peak_ram_bytes);
}

enum err bench_sweep(const struct config *c)
{
    struct bench_table t;
    bench_table_open(&t, c);
    enum err err = OK;
    int done = 0;
    for (int64_t batch = 1; batch <= SWEEP_MAX && batch <= c->num_prompts && err == OK;
         batch *= 2) {
        struct config one = *c;
        struct outcome o;
        one.batch = batch;
        err = run_once(&one, &o);
        if (err == ERR_FIT && done > 0) { // and no larger one will
            log_line(LOG_WARN, "bench sweep: --batch %lld: %s", (long long)batch, err_text());
            err = OK;
            break;
        }
        if (err == OK)
            err = bench_row(&t, sweep_json(&o));
        json_decref(o.kv);
        done++;
    }
    enum err closed = bench_table_close(&t);
    return err != OK ? err : closed;
}
