/* bench/frontier.c - `bench frontier`: cost and gain of KV policies, budgets and formats:
 * perplexity and pass keys found, against KV bytes and tokens per second.
 *
 * Owns: the combinations, the rows to score, which points are not beaten. Refuses: its own loop:
 * rows are scored as by `score`; speed comes from `plan`, or is measured as by `bench throughput`.
 * Note: quality is stored per model in the cache folder (engine/api/frontier_file.h), so a stopped
 * benchmark scores only missing points, and `plan` can show it; speed is always planned again. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/needle.h"
#include "engine/api/frontier_file.h"
#include "engine/api/version.h"
#include "engine/cli/commands.h"

#define SAME_SPEED 0.99 // speeds within 1 % count as equal

/* A policy, budget and format. */
struct point {
    struct evict evict;
    enum kv_format format;
    const char *budget;         // borrowed: as given by the user; NULL: all slots
    char kv[FRONTIER_KV];       // frontier_kv()
    char name[FRONTIER_KV + 8]; // kv and format
    double ppl, tokens_per_s;   // NAN: none
};

struct frontier {
    struct config config; // the flags, with a default job
    struct run *run;
    struct bench_list budgets, formats;
    struct point *points; // owned; all are compared with the first, full bf16
    int n_points;
    int32_t *ids; // owned: ids of the text
    int64_t n_windows, n_needles;
    struct needles needles;
    double *logprobs;         // owned: of each row of the current job, by index
    int64_t *tokens;          // owned: number of scored tokens
    struct frontier_row base; // of the first point
    int positions;            // --kv-positions of all points except full
    char path[4200], text[64], conditions[17], job[17];
    struct bench_table table;
};

/* ---- the combinations ---- */

/* The flags of a point. A point does not store them, because `config` has thousands of bytes. */
static struct config config_of(const struct frontier *f, const struct point *p)
{
    struct config c = f->config;
    c.kv_policy = evict_policy_name(p->evict.policy);
    c.kv_positions = p->evict.positions;
    c.kv_budget = p->budget ? p->budget : c.kv_budget;
    c.kv_format = kv_format_name(p->format);
    return c;
}

/* Checks that the budget holds the protected slots; a fraction depends on the row, and hours of
 * work would be lost later. */
static enum err check_rows(const struct config *c, const struct evict *e)
{
    struct evict_row row;
    if (evict_row_init(e, c->prefix, c->window - c->prefix, &row) == 0 &&
        evict_row_init(e, c->prompt_len, c->gen_len, &row) == 0)
        return OK;
    return fail(ERR_USAGE, "%s, budget %s: %d slots are fewer than sink %d + recent %d",
                c->kv_policy, c->kv_budget, row.budget, row.sink, row.recent);
}

static enum err add_point(struct frontier *f, int policy, const char *budget, const char *format)
{
    struct point *p = &f->points[f->n_points], *same = f->points;
    struct config c = f->config;
    *p = (struct point){.budget = budget};
    c.kv_policy = evict_policy_name(policy);
    c.kv_positions = policy == EVICT_FULL ? EVICT_POSITIONS_TRUE : f->positions;
    c.kv_budget = budget ? budget : c.kv_budget;
    c.kv_format = format;
    TRY(run_read_kv_format(&p->format, &c));
    if (run_read_evict(&p->evict, &c) != OK) {
        char why[256];
        snprintf(why, sizeof why, "%s", err_text());
        return fail(ERR_USAGE, "%s, budget %s: %s", c.kv_policy, c.kv_budget, why);
    }
    TRY(check_rows(&c, &p->evict));
    frontier_kv(&p->evict, p->kv);
    snprintf(p->name, sizeof p->name, "%s %s", p->kv, kv_format_name(p->format));
    while (strcmp(same->name, p->name) != 0)
        same++;
    f->n_points += same == p;
    return OK;
}

/* Full bf16 is always first; then by format, all slots before fewer. */
static enum err read_points(struct frontier *f)
{
    const struct config *c = &f->config;
    int policies[N_EVICT_POLICIES], n = 0;
    TRY(bench_policies(c, policies, &n));
    TRY(bench_list_read(&f->budgets, "budgets", c->budgets));
    TRY(bench_list_read(&f->formats, "kv-formats", c->kv_formats));
    size_t most = 2 + (size_t)f->formats.n * (size_t)(1 + n * f->budgets.n);
    f->points = calloc(most, sizeof *f->points);
    if (!f->points)
        return fail(ERR_FIT, "no memory for the points of the frontier");
    TRY(add_point(f, EVICT_FULL, NULL, "bf16"));
    for (int i = 0; i < f->formats.n; i++) {
        TRY(add_point(f, EVICT_FULL, NULL, f->formats.words[i]));
        for (int k = 0; k < n * f->budgets.n; k++)
            TRY(add_point(f, policies[k / f->budgets.n], f->budgets.words[k % f->budgets.n],
                          f->formats.words[i]));
    }
    return OK;
}

static void take_point(struct run *r, const struct point *p)
{
    r->evict = p->evict;
    r->kv_format = p->format;
    run_set_kinds(r);
}

/* Windows longer than the model's context need positions that are ranks: other points are left out,
 * and the first remaining point becomes the reference. */
static enum err fit_points(struct frontier *f)
{
    const struct config *c = &f->config;
    const int context = f->run->model->shape.context;
    int n = 0;
    for (int i = 0; i < f->n_points; i++)
        TRY(run_check_positions(f->run, &f->points[i].evict));
    if (c->window <= context)
        return OK;
    for (int i = 0; i < f->n_points; i++)
        if (evict_tokens_max(&f->points[i].evict, context) >= c->window)
            f->points[n++] = f->points[i];
    if (n > 0 && c->needles > 0)
        return fail(ERR_USAGE,
                    "--needles: a pass key needs a prompt of --window %lld tokens, the model's "
                    "context is %d (a smaller --window, or --needles 0)",
                    (long long)c->window, context);
    if (n > 0 && n < f->n_points)
        log_line(
            LOG_INFO,
            "frontier: left out %d points, which cannot go beyond the model's context of %d tokens",
            f->n_points - n, context);
    f->n_points = n > 0 ? n : f->n_points;
    take_point(f->run, &f->points[0]);
    return OK;
}

/* ---- what is scored ---- */

static void hash_text(uint64_t hash, char text[17])
{
    snprintf(text, 17, "%016" PRIx64, hash);
}

/* Hash of what is scored and how it is computed: the session's fingerprint without KV. */
static void hash_conditions(struct frontier *f)
{
    const char *computes = f->run->session->fingerprint, *kv = strstr(computes, "kv_policy=");
    const int64_t n[] = {f->config.prefix, f->config.window, f->n_windows, f->n_needles,
                         (int64_t)f->needles.seed};
    CHECK(kv);
    uint64_t hash =
        hash_bytes(f->ids, f->n_windows * f->config.window * (int64_t)sizeof *f->ids, 0);
    hash = hash_bytes(n, sizeof n, hash);
    hash = hash_bytes(SLUICE_VERSION, (int64_t)strlen(SLUICE_VERSION), hash);
    hash_text(hash_bytes(computes, kv - computes, hash), f->conditions);
}

/* Hash of what a measured rate depends on: the job, the machine, the placement flags. */
static void hash_job(struct frontier *f)
{
    static const char *const flags[] = {
        "prompt-len",     "gen-len",          "num-prompts",    "seed",          "mem-device",
        "mem-ram",        "mem-disk",         "device",         "threads",       "batch",
        "batches",        "weights-resident", "percent",        "attn",          "io",
        "matmul",         "weights-codec",    "share-prefixes", "ahead-weights", "ahead-state",
        "prefill-tokens", "offload-dir",      "machine"};
    const char *cpu = f->run->session->info.cpu_name;
    uint64_t hash = hash_bytes(cpu, (int64_t)strlen(cpu), 0);
    for (int i = 0; i < (int)(sizeof flags / sizeof *flags); i++) {
        char value[512];
        config_text(&f->config, flags[i], value, sizeof value);
        hash = hash_bytes(value, (int64_t)strlen(value), hash + 1);
    }
    hash_text(hash, f->job);
}

static enum err read_text(struct frontier *f)
{
    const struct config *c = &f->config;
    const char *slash = strrchr(c->text, '/');
    int64_t n_ids;
    TRY(command_text_ids(f->run, &f->ids, &n_ids));
    snprintf(f->text, sizeof f->text, "%.63s", slash ? slash + 1 : c->text);
    f->n_windows = command_windows(c, n_ids);
    if (c->needles > NEEDLE_MAX)
        return fail(ERR_USAGE, "--needles: %lld is out of range (at most %d)",
                    (long long)c->needles, NEEDLE_MAX);
    f->n_needles = c->needles * NEEDLE_DEPTHS;
    f->needles = (struct needles){.tokenizer = f->run->session->opened.tokenizer,
                                  .ids = f->ids,
                                  .windows = f->n_windows,
                                  .window = c->window,
                                  .seed = c->seed >= 0 ? (uint64_t)c->seed : 0};
    size_t rows = (size_t)(f->n_windows + 2 * f->n_needles);
    f->logprobs = malloc(rows * sizeof *f->logprobs);
    f->tokens = malloc(rows * sizeof *f->tokens);
    if (!f->logprobs || !f->tokens)
        return fail(ERR_FIT, "no memory for the rows to score");
    hash_conditions(f);
    hash_job(f);
    return OK;
}

static enum err row_scored(void *ctx, const struct job_result *result)
{
    struct frontier *f = ctx;
    int64_t i = result->request->index;
    if (result->error)
        return fail(ERR_INPUT, "row %lld: %s", (long long)i, result->error->message);
    f->logprobs[i] = result->logprob;
    f->tokens[i] = result->n_token_logprobs;
    return OK;
}

/* The windows, the pass keys in them and, with `lost`, the questions without a text. */
static enum err make_rows(struct frontier *f, int lost, struct request *rows, int64_t *n)
{
    *n = f->n_windows;
    TRY(command_window_rows(&f->config, f->ids, f->n_windows, rows));
    for (int64_t i = 0; i < f->n_needles * (1 + lost); i++, ++*n)
        TRY(needle_row(&f->needles, i % f->n_needles, i >= f->n_needles, *n, &rows[*n]));
    return OK;
}

/* Sums in row order, so the result does not depend on the order of completion. */
static double mean(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return n > 0 ? sum / (double)n : NAN;
}

static void read_scores(const struct frontier *f, int lost, struct frontier_row *row)
{
    int64_t tokens = 0;
    for (int64_t i = 0; i < f->n_windows; i++)
        tokens += f->tokens[i];
    double nll = -mean(f->logprobs, f->n_windows) * (double)f->n_windows / (double)tokens;
    row->ppl = exp(nll);
    row->needle = mean(f->logprobs + f->n_windows, f->n_needles);
    row->no_needle =
        lost ? mean(f->logprobs + f->n_windows + f->n_needles, f->n_needles) : f->base.no_needle;
    row->more = lost ? 0 : 100 * (row->ppl / f->base.ppl - 1);
}

/* Runs all rows as one job, printing errors only. */
static enum err score_point(struct frontier *f, const struct point *p, struct frontier_row *row)
{
    struct run *r = f->run;
    int lost = p == f->points;
    int64_t n = 0, most = f->n_windows + 2 * f->n_needles;
    enum log_level level = log_level_max;
    struct job_callbacks callbacks = {.finished = row_scored, .ctx = f};
    struct request *rows = calloc((size_t)most, sizeof *rows);
    if (!rows)
        return fail(ERR_FIT, "no memory for the rows to score");
    take_point(r, p);
    r->plan_told = PLAN_BY_COMMAND;
    log_level_max = lost ? level : LOG_ERROR;
    enum err err = make_rows(f, lost, rows, &n);
    for (int64_t i = 0; err != OK && i < most; i++)
        request_free(&rows[i]);
    if (err == OK)
        err = rows_memory(r, REQUEST_SCORE, rows, n, &callbacks);
    log_level_max = level;
    free(rows);
    TRY(err);
    TRY(run_again(r));
    read_scores(f, lost, row);
    return OK;
}

/* Finds the stored result, or scores the point and stores it. */
static enum err find_quality(struct frontier *f, const struct point *p, struct frontier_row *row)
{
    *row = (struct frontier_row){
        .prefix = f->config.prefix, .window = f->config.window, .windows = f->n_windows};
    snprintf(row->conditions, sizeof row->conditions, "%s", f->conditions);
    snprintf(row->text, sizeof row->text, "%s", f->text);
    snprintf(row->kv, sizeof row->kv, "%s", p->kv);
    snprintf(row->format, sizeof row->format, "%s", kv_format_name(p->format));
    struct frontier_row like = *row;
    if (f->config.measure) {
        snprintf(like.job, sizeof like.job, "%s", f->job);
        if (frontier_find(f->path, &like, row))
            return OK;
        like.job[0] = 0;
    }
    if (frontier_find(f->path, &like, row)) {
        row->job[0] = 0;
        row->tokens_per_s = 0;
        return OK;
    }
    log_line(LOG_INFO, "frontier: %s (%d of %d)", p->name, (int)(p - f->points) + 1, f->n_points);
    TRY(score_point(f, p, row));
    return frontier_add(f->path, row);
}

/* ---- speed ---- */

/* KV bytes of a finished row, all layers: pages, ring, positions, scores, ranks, traits. */
static int64_t row_bytes(const struct run *r)
{
    const struct shape *s = &r->model->shape;
    const struct config *c = r->config;
    const int tokens = (int)(c->prompt_len + c->gen_len);
    struct kv_layout pages, ring;
    struct evict_row row;
    int64_t bytes = 0;
    if (evict_row_init(&r->evict, c->prompt_len, c->gen_len, &row) != 0)
        return 0;
    for (int layer = 0; layer < s->n_layers; layer++) {
        struct evict rule;
        struct evict_row limits;
        model_kv_layout(s, s->layer_wide[layer], kv_page_format(r->kv_format), &pages);
        const int64_t ring_bytes = engine_ring_layout(s, s->layer_wide[layer], r->kv_format, &ring);
        evict_in_kind(&r->evict, &row, evict_layer_kind(&r->evict, layer), &rule, &limits);
        int in_ring = ring_bytes > 0 ? evict_ring_slots(&limits) : 0;
        int slots = evict_slots_after(&rule, &limits, in_ring, 0, 0, tokens);
        bytes += ceil_div(slots, PAGE_SLOTS) * pages.page_bytes + ring_bytes;
        if (rule.policy == EVICT_FULL)
            continue;
        const int by_rank = rule.positions == EVICT_POSITIONS_SLOT;
        const int numbers = 2 + by_rank + (evict_policy_trait(rule.policy) != EVICT_NO_TRAIT);
        const int64_t in_use = slots + evict_ring_used(in_ring, tokens);
        bytes += 4 * shape_kv_heads(s, layer) * in_use * numbers;
    }
    return bytes;
}

static enum err plan_rate(struct frontier *f, const struct point *p, double *tokens_per_s)
{
    struct run *r = f->run;
    enum log_level level = log_level_max;
    take_point(r, p);
    r->plan_told = PLAN_BY_COMMAND;
    r->keep_rows = 1;
    log_level_max = LOG_ERROR;
    enum err err = plan_work(r);
    if (err == OK)
        err = run_plan(r);
    log_level_max = level;
    *tokens_per_s = err == OK && r->decision.time.job_s > 0
                        ? (double)r->work.output_tokens / r->decision.time.job_s
                        : NAN;
    if (err == ERR_FIT) { // this point does not fit here, so it has no speed
        log_line(LOG_WARN, "frontier: %s: %s", p->name, err_text());
        err = OK;
    }
    TRY(err);
    return run_again(r);
}

static enum err find_rate(struct frontier *f, struct point *p, struct frontier_row *row)
{
    if (!f->config.measure)
        return plan_rate(f, p, &p->tokens_per_s);
    if (row->tokens_per_s == 0) {
        struct config c = config_of(f, p);
        enum log_level level = log_level_max;
        c.quiet = 1; // only the row is printed
        log_level_max = LOG_ERROR;
        enum err err = bench_rate(&c, &row->tokens_per_s);
        log_level_max = level;
        TRY(err);
        snprintf(row->job, sizeof row->job, "%s", f->job);
        TRY(frontier_add(f->path, row));
    }
    p->tokens_per_s = row->tokens_per_s;
    return OK;
}

/* ---- rows ---- */

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

/* 0: as without the text, 1: as with the whole text. */
static double retrieval(const struct frontier_row *base, const struct frontier_row *row)
{
    double all = base->needle - base->no_needle;
    return all > 0 ? (row->needle - base->no_needle) / all : NAN;
}

static enum err print_point(struct frontier *f, const struct point *p,
                            const struct frontier_row *row)
{
    struct run *r = f->run;
    take_point(r, p);
    int64_t bytes = row_bytes(r);
    double tokens = (double)(r->config->prompt_len + r->config->gen_len);
    return bench_row(&f->table,
                     json_pack("{ss ss ss sf sf so so sI sf so ss}", "kv_policy",
                               evict_policy_name(p->evict.policy), "kv_budget",
                               p->budget ? p->budget : "", "kv_format", kv_format_name(p->format),
                               "perplexity", row->ppl, "more_percent", row->more, "needle_logprob",
                               number(row->needle), "retrieval", number(retrieval(&f->base, row)),
                               "kv_row_bytes", (json_int_t)bytes, "kv_token_bytes",
                               (double)bytes / tokens, "output_tok_s", number(p->tokens_per_s),
                               "speed", f->config.measure ? "measured" : "planned"));
}

static enum err walk_points(struct frontier *f)
{
    for (struct point *p = f->points; p < f->points + f->n_points; p++) {
        struct frontier_row row;
        if (*f->config.interrupted)
            return fail(ERR_STOPPED, "interrupted; the same command resumes");
        TRY(find_quality(f, p, &row));
        TRY(find_rate(f, p, &row));
        if (p == f->points)
            f->base = row;
        p->ppl = row.ppl;
        TRY(print_point(f, p, &row));
    }
    return OK;
}

static int beats(const struct point *a, const struct point *b)
{
    return a->tokens_per_s >= b->tokens_per_s * SAME_SPEED && a->ppl <= b->ppl &&
           (a->tokens_per_s > b->tokens_per_s || a->ppl < b->ppl);
}

/* Prints the points that no other point beats: at least as fast and as good, and better in one. */
static void print_best(struct frontier *f)
{
    json_t *names = json_array();
    for (int i = 0; i < f->n_points; i++) {
        int best = isfinite(f->points[i].tokens_per_s);
        for (int k = 0; k < f->n_points; k++)
            best &= !beats(&f->points[k], &f->points[i]);
        if (best)
            json_array_append_new(names, json_string(f->points[i].name));
    }
    bench_table_foot(&f->table, "pareto", names);
}

/* ---- the command ---- */

static void open_table(struct frontier *f)
{
    const struct config *c = &f->config;
    struct bench_table *t = &f->table;
    bench_table_open(t, c);
    bench_table_note(t, "model", json_string(f->run->model->name));
    bench_table_note(t, "text", json_string(f->text));
    bench_table_note(t, "windows", json_integer(f->n_windows));
    bench_table_note(t, "prefix", json_integer(c->prefix));
    bench_table_note(t, "window", json_integer(c->window));
    bench_table_note(t, "needles", json_integer(f->n_needles));
    bench_table_note(t, "prompt_len", json_integer(c->prompt_len));
    bench_table_note(t, "gen_len", json_integer(c->gen_len));
    bench_table_note(t, "rows", json_integer(c->num_prompts));
}

static enum err frontier(struct frontier *f)
{
    TRY(read_points(f));
    TRY(run_begin(&f->run, &f->config));
    TRY(run_prepare(f->run, &f->config));
    TRY(fit_points(f));
    TRY(read_text(f));
    TRY(frontier_path(f->run->model->fingerprint, f->path, sizeof f->path));
    log_line(LOG_INFO, "frontier: %d points; finished scores are stored in %s", f->n_points,
             f->path);
    open_table(f);
    enum err err = walk_points(f);
    if (err == OK)
        print_best(f);
    enum err closed = bench_table_close(&f->table);
    return err != OK ? err : closed;
}

enum err bench_frontier(const struct config *c)
{
    if (!c->text)
        return fail(ERR_USAGE, "bench frontier: needs --text FILE");
    if (c->in)
        return fail(
            ERR_USAGE,
            "bench frontier: takes no -i, rows are generated (--prompt-len, --num-prompts)");
    TRY(command_window_check(c));
    struct frontier *f = calloc(1, sizeof *f);
    if (!f)
        return fail(ERR_FIT, "no memory for the frontier");
    f->config = *c;
    f->config.compares_policies = 1;
    f->positions = c->kv_positions;
    f->config.kv_positions =
        EVICT_POSITIONS_TRUE;           // of the run shared by all points, which keeps all slots
    if (!config_given(c, "prompt-len")) // the job's rows are then as long as the windows
        f->config.prompt_len = c->prefix;
    if (!config_given(c, "gen-len"))
        f->config.gen_len = c->window - c->prefix;
    enum err err = frontier(f);
    char why[1024];
    snprintf(why, sizeof why, "%s", err_text());
    if (f->run) {
        enum err closed = run_end(f->run, OK);
        err = err != OK ? err : closed;
    }
    free(f->points);
    free(f->ids);
    free(f->logprobs);
    free(f->tokens);
    free(f);
    return err != OK ? fail(err, "%s", why) : OK;
}
