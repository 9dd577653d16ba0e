/* engine/app/commands.c - `run`, `score` and `gen`: a job, a plan, a walk, an answer (see run.h).
 */
#include "engine/app/commands.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/app/plan_file.h"
#include "engine/app/report.h"
#include "engine/job/result.h"
#include "engine/app/run.h"
#include "engine/app/spool.h"
#include "engine/app/version.h"

#define STOPS_SHOWN_BYTES 1500 // of stop strings in OUT.job.json

static enum err read_shard(const char *text, int *shard, int *n_shards)
{
    if (!text)
        return OK;
    char *end;
    errno = 0;
    long i = strtol(text, &end, 10), n = *end == '/' ? strtol(end + 1, &end, 10) : 0;
    if (*end || errno || n < 1 || n > 1000000 || i < 0 || i >= n)
        return fail(ERR_USAGE, "--shard: '%s' is not i/N with 0 <= i < N", text);
    *shard = (int)i;
    *n_shards = (int)n;
    return OK;
}

void command_defaults(const struct run *r, struct request_defaults *d)
{
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    const struct config *c = r->config;
    const struct shape *s = &r->opened.model.shape;
    *d = (struct request_defaults){.max_tokens = (int)min_i64(c->max_tokens, INT32_MAX),
                                   .temperature = c->temperature,
                                   .top_p = c->top_p,
                                   .min_p = c->min_p,
                                   .top_k = (int)min_i64(c->top_k, INT32_MAX),
                                   .repetition_penalty = c->repetition_penalty,
                                   .has_seed = c->seed >= 0,
                                   .seed = (uint64_t)c->seed,
                                   .n_stops = c->n_stops,
                                   .stops = (char **)(uintptr_t)c->stops,
                                   .ignore_eos = c->ignore_eos,
                                   .context = s->context,
                                   .tokens_max = (int)evict_tokens_max(&r->evict, s->context),
                                   .vocab = s->vocab,
                                   .epoch = epoch ? strtoll(epoch, NULL, 10) : 0};
}

/* Text that every row's bytes depend on besides the row itself. Which rows, and their order, the
 * job's own identity says: a key that stood twice would make OUT.job.json unreadable. */
static enum err extend_fingerprint(struct run *r)
{
    const struct config *c = r->config;
    size_t n = r->fingerprint_own, cap = sizeof r->fingerprint;
    uint64_t hash = 0;
    struct out stops = {0};
    for (int i = 0; i < c->n_stops; i++) {
        hash = hash_bytes(c->stops[i], (int64_t)strlen(c->stops[i]), hash + 1);
        out_text(&stops, i > 0 ? " " : "");
        out_string(&stops, c->stops[i], (int64_t)strlen(c->stops[i]));
    }
    if (stops.n > STOPS_SHOWN_BYTES) { // too long to be read; the hash tells them apart
        char digits[24];
        stops.n = 0;
        snprintf(digits, sizeof digits, "%016llx", (unsigned long long)hash);
        out_text(&stops, digits);
    }
    out_bytes(&stops, "", 1);
    char temperature[32] = "by row", seed[32] = "by row", max_tokens[32] = "by form";
    if (c->temperature >= 0)
        snprintf(temperature, sizeof temperature, "%.15g", c->temperature);
    if (c->seed >= 0)
        snprintf(seed, sizeof seed, "%lld", (long long)c->seed);
    if (c->max_tokens > 0)
        snprintf(max_tokens, sizeof max_tokens, "%lld", (long long)c->max_tokens);
    snprintf(r->fingerprint + n, cap - n,
             "max_tokens=%s\ntemperature=%s\ntop_p=%.15g\ntop_k=%lld\nmin_p=%.15g\n"
             "repetition_penalty=%.15g\nseed=%s\nstop=%s\nignore_eos=%d\n",
             max_tokens, temperature, c->top_p, (long long)c->top_k, c->min_p,
             c->repetition_penalty, seed, stops.failed ? "" : stops.p, c->ignore_eos);
    enum err err = stops.failed ? fail(ERR_FIT, "memory: stop strings") : OK;
    out_free(&stops);
    return err;
}

enum err command_open_job(struct run *r, enum request_kind kind, const char *out)
{
    const struct config *c = r->config;
    const char *sync_s = getenv("SLUICE_SYNC_S"); // for tests: jobs too short for a commit in 5 s
    TRY(extend_fingerprint(r));
    struct job_config job = {.kind = kind,
                             .in_path = c->in,
                             .out_path = out,
                             .tokenizer = r->opened.tokenizer,
                             .tmpl = r->opened.tmpl,
                             .model_name = r->opened.model.name,
                             .dummy_weights = r->opened.model.dummy,
                             .version = SLUICE_VERSION,
                             .fingerprint = r->fingerprint,
                             .evict = &r->evict,
                             .line_max = run_line_max(r),
                             .limit = c->limit,
                             .completion_order = strcmp(c->order, "completion") == 0,
                             .retry_errors = c->retry_errors,
                             .overwrite = c->overwrite,
                             .sync_s = sync_s ? strtod(sync_s, NULL) : 0,
                             .max_errors = c->max_errors};
    TRY(read_shard(c->shard, &job.shard, &job.n_shards));
    command_defaults(r, &job.defaults);
    TRY(ignore_parse(&job.defaults.ignore, c->ignore_fields));
    return job_open(&r->job, &job, &r->work);
}

/* --kv-dump, --kv-trace and --trace, also of a run that was stopped. A file that could not be
 * written is an error of the command; the rows are in OUT all the same. */
static enum err end_side_files(struct run *r)
{
    char text[1024];
    if (!r->engine_opened)
        return OK;
    enum err dumped = dump_close(&r->engine.dump);
    snprintf(text, sizeof text, "%s", err_text());
    TRY(r->config->trace ? trace_write(&r->engine.trace, r->config->trace) : OK);
    return dumped == OK ? OK : fail(dumped, "%s", text);
}

/* Walks the line, ends the job, reports; the error that counts is the first one. */
static enum err walk_and_report(struct run *r, struct json_t **summary)
{
    struct report report;
    TRY(report_open(&report, r));
    report.summary = summary;
    r->tick = report_tick;
    r->tick_ctx = &report;
    enum err err = run_walk(r);
    if (err == OK)
        err = job_complete(r->job);
    char text[1024];
    snprintf(text, sizeof text, "%s", err_text());
    if (err != OK)
        job_drop_staged(r->job); // the report counts what the next run will find
    struct job_counts counts;
    job_counts(r->job, &counts);
    enum err reported = report_end(&report, err);
    char why[1024];
    snprintf(why, sizeof why, "%s", err_text());
    enum err sides = end_side_files(r);
    if (err != OK && sides != OK)
        log_line(LOG_WARN, "%s", err_text());
    if (err != OK)
        return fail(err, "%s", text);
    if (reported != OK)
        return fail(reported, "%s", why);
    TRY(sides);
    return counts.failed > 0 ? ERR_ROWS : OK;
}

/* Fields that --ignore-fields names lose their meaning: how many rows lose what. */
static void tell_ignored(const struct job *job, const struct job_counts *counts)
{
    const struct ignore_list *ignore = job_ignore(job);
    for (int i = 0; i < ignore->n; i++)
        if (counts->ignored[i] > 0)
            log_line(LOG_WARN, "--ignore-fields: %lld row%s answered without \"%s\"",
                     (long long)counts->ignored[i], counts->ignored[i] == 1 ? " is" : "s are",
                     ignore->names[i]);
}

static void tell_rows(const struct run *r, const struct job_counts *n)
{
    const struct config *c = r->config;
    if (job_live(r->job) && n->resumed > 0)
        log_line(LOG_INFO, "resume: %lld of %lld rows are done, %lld partly done",
                 (long long)n->done, (long long)n->rows,
                 (long long)max_i64(n->resumed - n->done, 0));
    if (c->dry_run)
        log_line(LOG_INFO, "dry run: %lld of %lld rows are valid", (long long)(n->rows - n->failed),
                 (long long)n->rows);
    else if (!job_live(r->job) && n->rows == 0)
        log_line(LOG_INFO, "%s: has no rows", c->in);
    else if (!job_live(r->job) && n->failed == n->rows && n->resumed == 0)
        log_line(LOG_INFO, "no row can be run: all %lld rows failed", (long long)n->failed);
    else if (!job_live(r->job))
        log_line(LOG_INFO, "all %lld rows are done: %lld ok, %lld failed%s", (long long)n->rows,
                 (long long)n->ok, (long long)n->failed,
                 n->failed > 0 ? " (--retry-errors runs them again)" : "");
    tell_ignored(r->job, n);
}

enum err command_rows(struct run *r, enum request_kind kind, struct json_t **summary)
{
    const struct config *c = r->config;
    TRY(command_open_job(r, kind, c->dry_run ? NULL : c->out));
    struct job_counts counts;
    job_counts(r->job, &counts);
    tell_rows(r, &counts);
    int live = job_live(r->job);
    if (live) {
        enum err planned = run_plan(r);
        if (planned != OK)
            job_refused(r->job);
        TRY(planned);
    }
    if (live && !c->dry_run) {
        char flags[512];
        plan_freeze(r, flags, sizeof flags);
        TRY(job_set_plan(r->job, r->time.job_s, flags));
        return walk_and_report(r, summary);
    }
    if (!c->quiet)
        report_errors(job_errors(r->job), job_ignore(r->job), c->dry_run, stderr);
    if (!c->dry_run)
        TRY(job_complete(r->job));
    job_counts(r->job, &counts);
    return counts.failed + r->n_left_out > 0 ? ERR_ROWS : OK;
}

static enum err run_rows(struct run *r, enum request_kind kind)
{
    struct ignore_list ignore; // a wrong name is found before the model opens
    TRY(ignore_parse(&ignore, r->config->ignore_fields));
    TRY(run_prepare(r, r->config));
    return command_rows(r, kind, NULL);
}

enum err command_begin(struct run **out, const struct config *c)
{
    struct run *r = *out = calloc(1, sizeof *r);
    if (!r)
        return fail(ERR_FIT, "memory: run");
    r->config = c;
    return OK;
}

/* Takes a run down and keeps the sentence of `err` over the closing. */
enum err command_end(struct run *r, enum err err)
{
    char text[1024];
    snprintf(text, sizeof text, "%s", err_text());
    enum err closed = run_close(r);
    free(r);
    if (err != OK)
        return fail(err, "%s", text);
    return closed;
}

enum err command_input(struct config *with, const struct config *c, int job)
{
    static char path[4200];
    *with = *c;
    if (!c->in || strcmp(c->in, "-") != 0)
        return OK;
    with->in = path;
    return job ? spool_job(c, path, sizeof path, &with->made_input)
               : spool_look(c, path, sizeof path);
}

/* A job that was refused leaves no OUT.input behind. */
static enum err end_input(const struct config *c, enum err err)
{
    if (c->made_input && (err == ERR_USAGE || err == ERR_FIT || err == ERR_INPUT || err == ERR_JOB))
        unlink(c->in);
    return err;
}

/* `run` and `score` over rows: -i - and -o - become files first. */
static enum err run_job(const struct config *asked, enum request_kind kind)
{
    struct config placed = *asked, with;
    struct run *r = NULL;
    if (!asked->dry_run)
        TRY(spool_out_begin(&placed));
    enum err err = command_input(&with, &placed, !asked->dry_run);
    if (err == OK)
        err = command_begin(&r, &with);
    if (err == OK)
        err = end_input(&with, command_end(r, run_rows(r, kind)));
    return asked->dry_run ? err : spool_out_end(&placed, err);
}

/* Rows come from somewhere, and go somewhere. */
static int has_files(const struct config *c)
{
    return c->in && (c->out || c->to_stdout || c->dry_run);
}

enum err command_run(const struct config *asked)
{
    if (!has_files(asked))
        return fail(ERR_USAGE, "run: needs -m MODEL, -i IN.jsonl and -o OUT.jsonl");
    return run_job(asked, REQUEST_GENERATE);
}

enum err command_walk_memory(struct run *r, enum request_kind kind, struct request *requests,
                             int64_t n, const struct job_callbacks *callbacks)
{
    struct job_config job = {
        .kind = kind, .tokenizer = r->opened.tokenizer, .evict = &r->evict, .max_errors = -1};
    command_defaults(r, &job.defaults);
    enum err err = job_open_memory(&r->job, &job, requests, n, callbacks, &r->work);
    for (int64_t i = 0; err != OK && i < n; i++)
        request_free(&requests[i]); // those that no job took
    TRY(err);
    err = job_live(r->job) ? run_plan(r) : OK;
    if (err == OK && job_live(r->job))
        err = run_walk(r);
    if (err == OK)
        err = job_complete(r->job);
    char text[1024];
    snprintf(text, sizeof text, "%s", err_text());
    enum err closed = job_close(r->job); // before the caller's requests go
    r->job = NULL;
    return err != OK ? fail(err, "%s", text) : closed;
}

/* ---- gen ---- */

static void print_text(void *ctx, const struct request *request, const char *text, int64_t n_bytes)
{
    (void)ctx;
    (void)request;
    fwrite(text, 1, (size_t)n_bytes, stdout);
    fflush(stdout);
}

static enum err gen_finished(void *ctx, const struct job_result *result)
{
    (void)ctx;
    putchar('\n');
    return result->error ? fail(ERR_INPUT, "prompt: %s", result->error->message) : OK;
}

#define TEXT_BYTES_MAX ((int64_t)1 << 30) // of score --text

static enum err read_all(const char *path, int64_t most, char **text, int64_t *n_bytes)
{
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    if (!f)
        return fail(ERR_INPUT, "%s: %s", path, strerror(errno));
    const size_t limit = (size_t)most + 1;
    size_t cap = 1 << 16, n = 0, got;
    char *buf = malloc(cap);
    while (buf && (got = fread(buf + n, 1, cap - n, f)) > 0) {
        n += got;
        if (n == cap) {
            if (n == limit)
                break;
            cap = (size_t)min_i64(2 * (int64_t)cap, (int64_t)limit);
            char *more = realloc(buf, cap);
            if (!more)
                free(buf);
            buf = more;
        }
    }
    int bad = ferror(f);
    if (f != stdin)
        fclose(f);
    if (!buf || bad) {
        free(buf);
        return bad ? fail(ERR_USAGE, "%s: cannot be read", path)
                   : fail(ERR_FIT, "%s: no memory for the prompt", path);
    }
    if (n > (size_t)most) {
        free(buf);
        return fail(ERR_FIT, "%s: has more than the %.1f MiB that are read%s", path,
                    (double)most / 1048576.0,
                    most < TEXT_BYTES_MAX ? " (a larger --mem-ram reads more)" : "");
    }
    *text = buf;
    *n_bytes = (int64_t)n;
    return OK;
}

/* The one row of gen, as a row of `run` would spell it: the same parser, the same rules. */
static enum err gen_request(struct run *r, const char *text, int64_t n_bytes,
                            struct request *request)
{
    const struct config *c = r->config;
    json_t *row = c->chat
                      ? json_pack("{s[{sssO}]}", "messages", "role", "user", "content", json_null())
                      : json_object();
    errno = 0;
    json_t *value = json_stringn(text, (size_t)n_bytes); // NULL: not UTF-8, or no memory
    if (row && !value && errno != ENOMEM) {
        json_decref(row);
        return fail(ERR_USAGE, "prompt: is not UTF-8");
    }
    json_t *message = json_array_get(json_object_get(row, "messages"), 0);
    int failed =
        json_object_set_new(c->chat ? message : row, c->chat ? "content" : "prompt", value);
    if (c->temperature < 0)
        failed |= json_object_set_new(row, "temperature", json_integer(0));
    if (c->max_tokens == 0)
        failed |= json_object_set_new(row, "max_tokens", json_integer(64));
    char *line = failed ? NULL : json_dumps(row, JSON_COMPACT);
    json_decref(row);
    if (!line)
        return fail(ERR_FIT, "memory: prompt");
    struct request_defaults defaults;
    struct row_error error = {0};
    command_defaults(r, &defaults);
    enum err err = request_parse(request, REQUEST_GENERATE, line, (int64_t)strlen(line), 0, 1,
                                 &defaults, r->opened.tokenizer, r->opened.tmpl, &error);
    free(line);
    return err == ERR_ROW ? fail(ERR_INPUT, "prompt: %s: %s", error.code, error.message) : err;
}

static enum err gen(struct run *r)
{
    const struct config *c = r->config;
    char *file = NULL;
    const char *text = c->prompt;
    int64_t n = text ? (int64_t)strlen(text) : 0;
    const char *path = c->prompt_file ? c->prompt_file : strcmp(text, "-") == 0 ? text : NULL;
    TRY(run_prepare(r, c));
    if (path) {
        TRY(read_all(path, run_line_max(r), &file, &n));
        text = file;
    }
    enum err err = OK;
    struct request request = {0};
    if (!r->opened.tokenizer)
        err = fail(ERR_INPUT, "%s: has no tokenizer (use run with prompt_token_ids)", c->model);
    if (err == OK)
        err = gen_request(r, text, n, &request);
    free(file);
    if (err != OK)
        request_free(&request);
    TRY(err);
    struct job_callbacks callbacks = {.finished = gen_finished, .text = print_text};
    r->plan_told = PLAN_DETAILS; // one prompt: its text is what counts
    return command_walk_memory(r, REQUEST_GENERATE, &request, 1, &callbacks);
}

enum err command_gen(const struct config *c)
{
    if (!c->prompt == !c->prompt_file)
        return fail(ERR_USAGE, "gen: needs one of -p TEXT and -f FILE");
    struct run *r = NULL;
    TRY(command_begin(&r, c));
    return command_end(r, gen(r));
}

/* ---- score --text ---- */

struct perplexity {
    double logprob;
    int64_t tokens, windows;
};

static enum err text_finished(void *ctx, const struct job_result *result)
{
    struct perplexity *p = ctx;
    if (result->error)
        return fail(ERR_INPUT, "window %lld: %s", (long long)result->request->index,
                    result->error->message);
    p->logprob += result->logprob;
    p->tokens += result->n_token_logprobs;
    p->windows++;
    return OK;
}

enum err command_window_check(const struct config *c)
{
    if (c->prefix < 1 || c->window <= c->prefix || c->window > 1 << 20)
        return fail(ERR_USAGE, "--prefix, --window: need 1 <= prefix < window");
    return OK;
}

enum err command_text_ids(const struct run *r, int32_t **ids, int64_t *n)
{
    const struct config *c = r->config;
    char *text;
    int64_t n_bytes;
    if (!r->opened.tokenizer)
        return fail(ERR_INPUT, "%s: has no tokenizer", c->model);
    const int context = r->opened.model.shape.context;
    if (c->prefix > context)
        return fail(ERR_USAGE, "--prefix: the model's context is %d tokens", context);
    if (c->window > evict_tokens_max(&r->evict, context))
        return fail(
            ERR_USAGE,
            "--window: the model's context is %d tokens (beyond it: --kv-positions slot with "
            "a --kv-policy and a --kv-budget within it)",
            context);
    TRY(read_all(c->text, TEXT_BYTES_MAX, &text, &n_bytes));
    enum err err = tokenizer_encode_all(r->opened.tokenizer, text, n_bytes, 0, ids, n);
    free(text);
    if (err == ERR_ROW)
        return fail(ERR_INPUT, "%s: %s", c->text, err_text());
    if (err == OK && *n < c->window) {
        free(*ids);
        return fail(ERR_USAGE, "%s: has %lld tokens, one window needs %lld (--window)", c->text,
                    (long long)*n, (long long)c->window);
    }
    return err;
}

int64_t command_windows(const struct config *c, int64_t n_ids)
{
    int64_t windows = n_ids / c->window;
    return c->limit > 0 ? min_i64(windows, c->limit) : windows;
}

enum err command_score_row(struct request *q, int64_t index, const char *name, const int32_t *ids,
                           int64_t n, int64_t n_prompt)
{
    *q = (struct request){.index = index,
                          .line = index + 1,
                          .kind = REQUEST_SCORE,
                          .form = FORM_SCORE,
                          .logprobs = 1};
    q->tokens = malloc((size_t)n * sizeof *ids);
    q->custom_id = strdup(name);
    if (!q->tokens || !q->custom_id)
        return fail(ERR_FIT, "memory: rows to score");
    q->n_custom_id = (int64_t)strlen(name);
    memcpy(q->tokens, ids, (size_t)n * sizeof *ids);
    q->n_prompt = (int)n_prompt;
    q->n_tokens = q->n_cap = (int)n;
    return OK;
}

enum err command_window_rows(const struct config *c, const int32_t *ids, int64_t windows,
                             struct request *requests)
{
    for (int64_t i = 0; i < windows; i++) {
        char name[32];
        snprintf(name, sizeof name, "window-%lld", (long long)i);
        TRY(command_score_row(&requests[i], i, name, ids + i * c->window, c->window, c->prefix));
    }
    return OK;
}

static enum err score_text(struct run *r)
{
    const struct config *c = r->config;
    int32_t *ids;
    int64_t n_ids;
    TRY(command_window_check(c));
    TRY(run_prepare(r, c));
    TRY(command_text_ids(r, &ids, &n_ids));
    int64_t n = command_windows(c, n_ids);
    struct request *requests = calloc((size_t)n, sizeof *requests);
    enum err err =
        requests ? command_window_rows(c, ids, n, requests) : fail(ERR_FIT, "memory: windows");
    free(ids);
    struct perplexity p = {0};
    struct job_callbacks callbacks = {.finished = text_finished, .ctx = &p};
    if (err == OK)
        err = command_walk_memory(r, REQUEST_SCORE, requests, n, &callbacks);
    free(requests);
    TRY(err);
    double nll = -p.logprob / (double)p.tokens;
    json_t *kv = plan_kv_json(r);
    json_object_set_new(kv, "evicted_tokens", json_integer(r->engine.batches.evicted_slots));
    char *kv_text = json_dumps(kv, JSON_COMPACT | JSON_REAL_PRECISION(9));
    printf("{\"ppl\":%.6g,\"nll\":%.9g,\"tokens\":%lld,\"windows\":%lld,\"kv\":%s%s}\n", exp(nll),
           nll, (long long)p.tokens, (long long)p.windows, kv_text ? kv_text : "null",
           r->opened.model.dummy ? ",\"dummy_weights\":true" : "");
    free(kv_text);
    json_decref(kv);
    return OK;
}

enum err command_score(const struct config *asked)
{
    if (!asked->text && !has_files(asked))
        return fail(ERR_USAGE, "score: needs -i IN.jsonl and -o OUT.jsonl, or --text FILE");
    if (!asked->text)
        return run_job(asked, REQUEST_SCORE);
    struct run *r = NULL;
    TRY(command_begin(&r, asked));
    return command_end(r, score_text(r));
}
