/* engine/api/rows.c - see rows.h. */
#include "engine/api/rows.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/pipeline.h"
#include "engine/api/plan_file.h"
#include "engine/api/report.h"
#include "engine/api/text.h"
#include "engine/api/version.h"
#include "engine/data/out.h"
#include "engine/job/claims.h"
#include "engine/job/job_status.h"

#define STOPS_SHOWN_BYTES 1500 // stop strings in OUT.job.json

/* Variables in which launchers say which of how many processes this one is; a first number other
 * than 0, if they have one. Kubernetes sets only the index: the user sets JOB_COMPLETIONS, or gives
 * auto/N. */
static const struct {
    const char *index, *count, *first;
} launchers[] = {{"SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"},
                 {"SLURM_PROCID", "SLURM_NTASKS", NULL},
                 {"JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", NULL},
                 {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL},
                 {"PMI_RANK", "PMI_SIZE", NULL},
                 {"SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", NULL},
                 {"RANK", "WORLD_SIZE", NULL}};

/* --shard auto, auto/N: "i/N" from the launcher. With N given, i is the launcher's number itself.
 */
static enum err shard_of_launcher(const char *text, char *shard, size_t cap)
{
    const char *given = text[4] == '/' ? text + 5 : NULL;
    for (size_t k = 0; k < sizeof launchers / sizeof launchers[0]; k++) {
        const char *index = getenv(launchers[k].index), *count = getenv(launchers[k].count);
        const char *first = launchers[k].first && !given ? getenv(launchers[k].first) : NULL;
        if (!index || !(given || count))
            continue;
        long long from = first ? strtoll(first, NULL, 10) : 0;
        snprintf(shard, cap, "%lld/%s", strtoll(index, NULL, 10) - from, given ? given : count);
        return OK;
    }
    return fail(ERR_USAGE,
                "--shard %s: no launcher says which process this is (SLURM_ARRAY_TASK_ID, "
                "SLURM_PROCID, JOB_COMPLETION_INDEX, OMPI_COMM_WORLD_RANK, PMI_RANK, "
                "SKYPILOT_NODE_RANK, RANK and their counts)",
                text);
}

static enum err read_shard(const char *text, int *shard, int *n_shards)
{
    char found[64];
    if (!text)
        return OK;
    if (strcmp(text, "auto") == 0 || strncmp(text, "auto/", 5) == 0) {
        TRY(shard_of_launcher(text, found, sizeof found));
        text = found;
    }
    char *end;
    errno = 0;
    long i = strtol(text, &end, 10), n = *end == '/' ? strtol(end + 1, &end, 10) : 0;
    if (*end || errno || n < 1 || n > 1000000 || i < 0 || i >= n)
        return fail(ERR_USAGE, "--shard: '%s' is not i/N with 0 <= i < N", text);
    *shard = (int)i;
    *n_shards = (int)n;
    return OK;
}

void rows_defaults(const struct run *r, struct request_defaults *d)
{
    const struct config *c = r->config;
    const struct shape *s = &r->model->shape;
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
                                   .epoch = text_epoch()};
}

/* What determines the bytes of every row besides the row itself: the session's lines and the
 * request flags. The choice and order of rows are in the job's own identity. */
static enum err write_fingerprint(struct run *r)
{
    const struct config *c = r->config;
    uint64_t hash = 0;
    struct out stops = {0};
    for (int i = 0; i < c->n_stops; i++) {
        hash = hash_bytes(c->stops[i], (int64_t)strlen(c->stops[i]), hash + 1);
        out_text(&stops, i > 0 ? " " : "");
        out_string(&stops, c->stops[i], (int64_t)strlen(c->stops[i]));
    }
    if (stops.n > STOPS_SHOWN_BYTES) { // too long to be readable; the hash identifies them
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
    snprintf(r->fingerprint, sizeof r->fingerprint,
             "%smax_tokens=%s\ntemperature=%s\ntop_p=%.15g\ntop_k=%lld\nmin_p=%.15g\n"
             "repetition_penalty=%.15g\nseed=%s\nstop=%s\nignore_eos=%d\n",
             r->session->fingerprint, max_tokens, temperature, c->top_p, (long long)c->top_k,
             c->min_p, c->repetition_penalty, seed, stops.failed ? "" : stops.p, c->ignore_eos);
    enum err err = stops.failed ? fail(ERR_FIT, "memory: stop strings") : OK;
    out_free(&stops);
    return err;
}

enum err rows_open(struct run *r, enum request_kind kind, const char *out)
{
    const struct config *c = r->config;
    /* For tests: jobs shorter than the commit interval of 5 s. */
    const char *sync_s = getenv("SLUICE_SYNC_S");
    TRY(write_fingerprint(r));
    struct job_config job = {.kind = kind,
                             .in_path = c->in,
                             .out_path = out,
                             .tokenizer = r->session->opened.tokenizer,
                             .tmpl = r->session->opened.tmpl,
                             .model_name = r->model->name,
                             .dummy_weights = r->model->dummy,
                             .version = SLUICE_VERSION,
                             .fingerprint = r->fingerprint,
                             .evict = &r->evict,
                             .line_max = run_line_max(r),
                             .limit = c->limit,
                             .completion_order = c->order == ORDER_COMPLETION,
                             .retry_errors = c->retry_errors,
                             .overwrite = c->overwrite,
                             .sync_s = sync_s ? strtod(sync_s, NULL) : 0,
                             .max_errors = c->max_errors,
                             .claims = r->claims,
                             .make_out = r->make_out};
    TRY(read_shard(c->shard, &job.shard, &job.n_shards));
    rows_defaults(r, &job.defaults);
    TRY(ignore_parse(&job.defaults.ignore, c->ignore_fields));
    pipeline_follow(r, &job);
    return job_open(&r->job, &job, &r->work);
}

/* Ends --kv-dump, --kv-trace and --trace, also after a stop. A failed write is an error of the
 * command; the rows are in OUT all the same. */
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

/* Walks the line, ends the job and reports; returns the first error. */
static enum err walk_and_report(struct run *r, struct json_t **summary)
{
    struct report report;
    TRY(report_open(&report, r));
    report.summary = summary;
    r->tick = report_tick;
    r->tick_ctx = &report;
    enum err err = run_walk(r);
    if (err == OK && r->pipeline)
        err = pipeline_report(r);
    if (err == OK)
        err = job_complete(r->job);
    char text[1024];
    snprintf(text, sizeof text, "%s", err_text());
    if (err != OK)
        job_drop_staged(r->job); // so that the report matches what the next run finds
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

/* Prints the fields ignored by --ignore-fields, with the number of rows for each. */
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
    if (!job_live(r->job) && n->done < n->rows)
        return; // other workers have the rest
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

static enum err run_once(struct run *r, enum request_kind kind, struct json_t **summary)
{
    const struct config *c = r->config;
    TRY(r->pipeline ? pipeline_job(r, kind) : rows_open(r, kind, c->dry_run ? NULL : c->out));
    struct job_counts counts;
    job_counts(r->job, &counts);
    tell_rows(r, &counts);
    int live = job_live(r->job);
    if (live) {
        enum err planned = r->pipeline ? pipeline_plan(r) : run_plan(r);
        if (planned != OK)
            job_refused(r->job);
        TRY(planned);
    }
    if (live && !c->dry_run) {
        char flags[512];
        plan_freeze(r, flags, sizeof flags);
        TRY(job_set_plan(r->job, r->decision.time.job_s, flags));
        return walk_and_report(r, summary);
    }
    if (!c->quiet && (c->dry_run || counts.done == counts.rows))
        report_errors(job_errors(r->job), job_ignore(r->job), c->dry_run, stderr);
    if (!c->dry_run)
        TRY(job_complete(r->job));
    job_counts(r->job, &counts);
    const enum err err = counts.failed + r->n_left_out > 0 ? ERR_ROWS : OK;
    if (summary)
        *summary = report_summary_done(&counts, err, r);
    return err;
}

/* Takes the newer of two summaries; what it lacks (times, peaks) is that of the rows before. */
static void take_summary(struct json_t **summary, struct json_t *newer)
{
    if (!newer)
        return;
    json_object_update_missing(newer, *summary);
    json_decref(*summary);
    *summary = newer;
}

/* After an error: another worker may have made OUT, and removed the folder, under our hands. Keeps
 * the text of the error. */
static int ended_meanwhile(const struct config *c, enum err err)
{
    char text[1024];
    struct job_status s;
    snprintf(text, sizeof text, "%s", err_text());
    const int complete = job_status_read(&s, c->out) == OK && s.state == JOB_COMPLETE;
    job_status_free(&s);
    (void)fail(err, "%s", text);
    return complete;
}

/* Closes the job and waits until this worker has something to do. */
static enum err wait_for_work(struct run *r, int64_t start_ns)
{
    const struct config *c = r->config;
    TRY(run_again(r));
    claims_state(r->claims, WORKER_JOINED);
    const double spent_s = (double)(clock_ns() - start_ns) * 1e-9;
    const double limit_s = c->time_limit_s > 0 ? max_d(c->time_limit_s - spent_s, 1e-3) : 0;
    TRY(claims_wait(r->claims, c->interrupted, limit_s, &r->make_out));
    if (r->make_out)
        claims_state(r->claims, WORKER_WORKING);
    return OK;
}

/* Runs what this worker gets of a shared job, again and again until OUT is complete. *tokens gets
 * the output tokens of all its rows. */
static enum err run_chunks(struct run *r, enum request_kind kind, struct json_t **summary,
                           int64_t *tokens)
{
    const int64_t start_ns = clock_ns();
    for (int ended = 0;;) {
        struct json_t *newer = NULL;
        enum err err = run_once(r, kind, summary ? &newer : NULL);
        if (summary)
            take_summary(summary, newer);
        struct job_counts counts = {0};
        if (r->job)
            job_counts(r->job, &counts);
        *tokens += counts.output_tokens;
        const int ran = err == OK || err == ERR_ROWS;
        if (ran && job_is_complete(r->job))
            return err;
        if (ran)
            err = wait_for_work(r, start_ns);
        ended = err != OK && !ended && ended_meanwhile(r->config, err);
        if (err != OK && !ended)
            return err;
        if (ended)
            TRY(run_again(r));
    }
}

enum err rows_run(struct run *r, enum request_kind kind, struct json_t **summary)
{
    const struct config *c = r->config;
    const char *beat_s = getenv("SLUICE_BEAT_S"); // for tests
    char text[1024];
    if (!c->work_dir || c->to_stdout || c->dry_run)
        return run_once(r, kind, summary);
    TRY(claims_open(&r->claims, c->work_dir, beat_s ? strtod(beat_s, NULL) : 0));
    int64_t tokens = 0;
    enum err err = run_chunks(r, kind, summary, &tokens);
    snprintf(text, sizeof text, "%s", err_text());
    enum err closed = run_again(r); // the job uses the folder
    const int64_t rows = claims_counted(r->claims);
    log_line(LOG_INFO, "work-dir: this worker has done %lld rows", (long long)rows);
    if (summary) {
        *summary = *summary ? *summary : json_object();
        json_object_set_new(
            *summary, "worker",
            json_pack("{s:I,s:I}", "rows", (json_int_t)rows, "output_tokens", (json_int_t)tokens));
    }
    claims_close(r->claims);
    r->claims = NULL;
    if (err != OK)
        return fail(err, "%s", text);
    return closed;
}

enum err run_begin(struct run **out, const struct config *c)
{
    struct run *r = *out = calloc(1, sizeof *r);
    if (!r)
        return fail(ERR_FIT, "memory: run");
    r->config = c;
    return OK;
}

enum err run_end(struct run *r, enum err err)
{
    char text[1024];
    snprintf(text, sizeof text, "%s", err_text());
    err = pipeline_close(r, err);
    enum err closed = run_close(r);
    free(r);
    if (err != OK)
        return fail(err, "%s", text);
    return closed;
}

enum err rows_memory(struct run *r, enum request_kind kind, struct request *requests, int64_t n,
                     const struct job_callbacks *callbacks)
{
    struct job_config job = {.kind = kind,
                             .tokenizer = r->session->opened.tokenizer,
                             .evict = &r->evict,
                             .max_errors = -1};
    rows_defaults(r, &job.defaults);
    enum err err = job_open_memory(&r->job, &job, requests, n, callbacks, &r->work);
    for (int64_t i = 0; err != OK && i < n; i++)
        request_free(&requests[i]); // requests that no job has taken over
    TRY(err);
    err = job_live(r->job) ? run_plan(r) : OK;
    if (err == OK && job_live(r->job))
        err = run_walk(r);
    if (err == OK)
        err = job_complete(r->job);
    char text[1024];
    snprintf(text, sizeof text, "%s", err_text());
    enum err closed = job_close(r->job); // before the caller frees the requests
    r->job = NULL;
    return err != OK ? fail(err, "%s", text) : closed;
}

enum err rows_score(struct request *q, int64_t index, const char *name, const int32_t *ids,
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
