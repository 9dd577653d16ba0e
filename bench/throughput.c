/* bench/throughput.c - `bench throughput`: synthetic rows through the real engine, under one plan
 * or, with --compare, under several.
 *
 * Owns: the synthetic job and the form of its result. Refuses: its own loop: plan, engine, job and
 * report are those of `run`. Note: token ids are pseudo-random and end-of-text is ignored, so every
 * row has exactly prompt-len + gen-len tokens. */
#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/plan_file.h"
#include "engine/api/report.h"
#include "engine/cli/commands.h"

#define PROMPT_TOKENS 128 // default of --prompt-len
#define ROWS_MAX      (1 << 22)

/* The result of one run. */
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
    const int context = r->model->shape.context;
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

/* Makes a greedy request with ids from (seed, row, position). */
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
        request_free(&rows->requests[i]); // rows that the job took over are zeroed
    free(rows->requests);
}

static enum err open_job(struct run *r, const struct config *c, struct rows *rows)
{
    struct lengths l;
    const struct shape *shape = &r->model->shape;
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
                                .tokenizer = r->session->opened.tokenizer,
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

/* Runs once, from opening the model to closing it. */
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
        o->plan = r.decision.plan;
        o->predicted_s = r.decision.time.job_s;
        o->predicted_bound = r.decision.time.bound;
        o->dummy = r.model->dummy;
        o->kv = plan_kv_json(&r);
        snprintf(o->model, sizeof o->model, "%s", r.model->name);
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

/* Adds the settings that figures depend on and that tables are sorted by: one key each. */
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
    json_object_set_new(row, "share_prefixes",
                        json_string(c->share_prefixes == CONFIG_OFF ? "off" : "on"));
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

/* ---- plans side by side ---- */

#define COMPARE_MAX 16
#define WORDS_MAX   64

/* One of the plans: the flags of the command line, plus some more. */
struct contender {
    char *flags; // owned: as typed
    char *words; // owned: the same, split into the words that `config` points to
    struct config config;
};

struct contenders {
    struct contender all[COMPARE_MAX]; // the first is the automatic plan
    int n;
};

/* Reads n bytes of text. contenders_free() frees its memory, also after an error. */
static enum err contender_read(struct contender *p, const struct config *c, const char *text,
                               size_t n)
{
    char *argv[WORDS_MAX];
    int argc = 0;
    struct config *with = &p->config;
    *with = *c;
    with->quiet = 1; // the row has all figures
    p->flags = strndup(text, n);
    p->words = strndup(text, n);
    if (!p->flags || !p->words)
        return fail(ERR_FIT, "memory: --compare");
    for (char *save = NULL, *word = strtok_r(p->words, " ", &save); word;
         word = strtok_r(NULL, " ", &save)) {
        if (argc == WORDS_MAX)
            return fail(ERR_USAGE, "--compare: more than %d words: %.64s", WORDS_MAX, p->flags);
        argv[argc++] = word;
    }
    if (config_words(with, CMD_BENCH_THROUGHPUT, argc, argv) != OK) {
        char why[512];
        snprintf(why, sizeof why, "%s", err_text());
        return fail(ERR_USAGE, "--compare: %s", why);
    }
    if (with->n_args != c->n_args || with->compare != c->compare || with->out != c->out ||
        with->summary != c->summary || with->csv != c->csv || with->json != c->json)
        return fail(ERR_USAGE,
                    "--compare: '%.128s' has other than flags of the plan (expected auto or, for "
                    "example, --batch 4)",
                    p->flags);
    return OK;
}

/* Reads "FLAGS;FLAGS;auto" completely before the first run. auto is always the first. */
static enum err contenders_read(struct contenders *list, const struct config *c)
{
    TRY(contender_read(&list->all[list->n++], c, "", 0));
    for (const char *at = c->compare, *end; *at; at = *end ? end + 1 : end) {
        end = at + strcspn(at, ";");
        at += strspn(at, " ");
        size_t n = end > at ? (size_t)(end - at) : 0;
        while (n > 0 && at[n - 1] == ' ')
            n--;
        if (n == 0 || (n == 4 && strncmp(at, "auto", 4) == 0))
            continue;
        if (list->n == COMPARE_MAX)
            return fail(ERR_USAGE, "--compare: more than %d plans", COMPARE_MAX - 1);
        TRY(contender_read(&list->all[list->n++], c, at, n));
    }
    return OK;
}

static void contenders_free(struct contenders *list)
{
    for (int i = 0; i < list->n; i++) {
        free(list->all[i].flags);
        free(list->all[i].words);
    }
    free(list);
}

static json_t *rate_or_null(double x)
{
    return x > 0 ? json_real(x) : json_null();
}

static json_t *count_or_null(int64_t n)
{
    return n > 0 ? json_integer(n) : json_null();
}

/* auto_rate 0: unknown. why: what did not fit, "" if the plan ran. */
static json_t *contender_json(const struct contender *p, const struct outcome *o, double auto_rate,
                              const char *why)
{
    const struct report_figures *f = &o->figures;
    const double tokens = (double)f->counts.output_tokens;
    json_t *row = json_object();
    json_object_set_new(row, "batch", count_or_null(o->plan.batch));
    json_object_set_new(row, "batches", count_or_null(o->plan.batches));
    json_object_set_new(row, "predicted_tok_s",
                        rate_or_null(o->predicted_s > 0 ? tokens / o->predicted_s : 0));
    json_object_set_new(row, "measured_tok_s", rate_or_null(f->output_per_s));
    json_object_set_new(row, "error_percent",
                        o->predicted_s > 0 && f->elapsed_s > 0
                            ? json_real(100 * (f->elapsed_s / o->predicted_s - 1))
                            : json_null());
    json_object_set_new(row, "times_auto",
                        rate_or_null(auto_rate > 0 ? f->output_per_s / auto_rate : 0));
    json_object_set_new(row, "peak_ram_bytes", count_or_null(f->peak_ram_bytes));
    json_object_set_new(row, "bound", json_string(f->bound ? f->bound : ""));
    json_object_set_new(row, "flags", json_string(p->flags[0] ? p->flags : "auto"));
    json_object_set_new(row, "why", json_string(why));
    return row;
}

/* A plan that does not fit gets a row as well. */
static enum err run_contender(struct bench_table *t, const struct contenders *list, int i,
                              double *auto_rate)
{
    const struct contender *p = &list->all[i];
    struct outcome o;
    char why[1024] = "";
    enum log_level level = log_level_max;
    log_level_max = LOG_ERROR;
    enum err err = run_once(&p->config, &o);
    log_level_max = level;
    json_decref(o.kv);
    if (err == ERR_FIT) {
        snprintf(why, sizeof why, "%s", err_text());
        o = (struct outcome){0};
        err = OK;
    }
    TRY(err);
    if (i == 0) {
        *auto_rate = o.figures.output_per_s;
        bench_table_note(t, "model", json_string(o.model));
    }
    char rate[48] = "does not fit";
    if (!why[0])
        snprintf(rate, sizeof rate, "%.4g output tokens/s", o.figures.output_per_s);
    log_line(LOG_INFO, "compare: %d of %d: %s: %s", i + 1, list->n, p->flags[0] ? p->flags : "auto",
             rate);
    return bench_row(t, contender_json(p, &o, *auto_rate, why));
}

static enum err compare(const struct config *c)
{
    double auto_rate = 0;
    struct bench_table t;
    struct contenders *list = calloc(1, sizeof *list);
    if (!list)
        return fail(ERR_FIT, "memory: --compare");
    enum err err = contenders_read(list, c);
    if (err == OK) {
        bench_table_open(&t, c);
        for (int i = 0; i < list->n && err == OK; i++)
            err = *c->interrupted ? fail(ERR_STOPPED, "interrupted")
                                  : run_contender(&t, list, i, &auto_rate);
        enum err closed = bench_table_close(&t);
        err = err != OK ? err : closed;
    }
    contenders_free(list);
    return err;
}

enum err bench_throughput(const struct config *c)
{
    struct outcome o;
    if (c->compare)
        return compare(c);
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
