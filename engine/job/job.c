/* engine/job/job.c - see job.h. Owns live and finished rows, and the calls of the engine; the
 * queue, files, text and the scan of the input are in job_*.c. */
#include "engine/job/job_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/job/sample.h"

#define LINES_BYTES_MAX ((int64_t)1 << 19) // of finished rows that wait for a commit

void job_live_link(struct job *job, struct live *l)
{
    l->prev = NULL;
    l->next = job->live;
    if (job->live)
        job->live->prev = l;
    job->live = l;
}

static void live_drop(struct job *job, struct live *l)
{
    if (l->prev)
        l->prev->next = l->next;
    else
        job->live = l->next;
    if (l->next)
        l->next->prev = l->prev;
    live_free(l);
}

/* Removes a row that ended. Its tokens are kept until its record is confirmed. */
static void live_leave(struct job *job, struct live *l)
{
    if (!job->on_disk) {
        live_drop(job, l);
        return;
    }
    if (l->prev)
        l->prev->next = l->next;
    else
        job->live = l->next;
    if (l->next)
        l->next->prev = l->prev;
    out_free(&l->text);
    logprobs_free(&l->logprobs);
    l->next = job->left;
    job->left = l;
}

/* ---- rows that are done ---- */

static enum err too_many_errors(struct job *job)
{
    if (job->config.max_errors < 0 || job->counts.failed <= job->config.max_errors)
        return OK;
    return fail(ERR_ROWS, "%s: %lld rows failed, more than --max-errors %lld",
                job->config.in_path ? job->config.in_path : "requests",
                (long long)job->counts.failed, (long long)job->config.max_errors);
}

/* Stages the record until the end of the pass. */
static enum err stage_row(struct job *job, const struct journal_entry *entry)
{
    if (job->n_staged == job->staged_cap) {
        int64_t cap = max_i64(64, 2 * job->staged_cap);
        struct journal_entry *grown = realloc(job->staged, (size_t)cap * sizeof *grown);
        if (!grown)
            return fail(ERR_FIT, "no memory for the records of %lld rows", (long long)cap);
        job->staged = grown;
        job->staged_cap = cap;
    }
    job->staged[job->n_staged++] = *entry;
    return OK;
}

/* Bookkeeping of a row whose line is the last in job->lines, from `start` on. tokens: of the row's
 * output; -1: an error row. */
static enum err row_done(struct job *job, int64_t row, int64_t start, int64_t tokens)
{
    struct job_row *k = &job->rows[row];
    int64_t n = job->lines.n - start;
    int failed = tokens < 0;
    if (job->on_disk) {
        if (job->lines.failed || n > UINT32_MAX) {
            job->broken = 1;
            return fail(ERR_FIT, "no memory for the output of line %lu", (unsigned long)k->line);
        }
        struct journal_entry entry = {.kind = JOURNAL_ROW,
                                      .index = row,
                                      .offset = job->written_bytes + start,
                                      .n = n,
                                      .crc = crc32c(0, job->lines.p + start, n),
                                      .failed = failed,
                                      .tokens = failed ? 0 : (uint32_t)tokens};
        TRY(stage_row(job, &entry));
        k->place = (uint64_t)entry.offset;
        k->part = 0;
        k->n = (uint32_t)n;
        k->crc = entry.crc;
        k->tokens = entry.tokens;
    }
    k->state = failed ? ROW_FAILED : ROW_OK;
    job->counts.ok += !failed;
    job->counts.failed += failed;
    job->counts.done++;
    if (job->on_disk && job->lines.n > LINES_BYTES_MAX)
        TRY(files_spill(job));
    return failed ? too_many_errors(job) : OK;
}

enum err job_row_again(struct job *job, int64_t row)
{
    struct job_row *k = &job->rows[row];
    k->state = ROW_WAITING;
    k->n = 0;
    job->superseded = 1;
    return journal_append(&job->journal,
                          &(struct journal_entry){.kind = JOURNAL_TOKENS, .index = row});
}

enum err job_row_failed(struct job *job, int64_t row, const struct request *r,
                        const struct row_error *error)
{
    int64_t start = job->lines.n;
    errors_add(&job->errors, error, r->line);
    if (job->on_disk)
        result_error_line(&job->lines, r, error);
    if (job->callbacks.finished)
        TRY(job->callbacks.finished(job->callbacks.ctx,
                                    &(struct job_result){.request = r, .error = error}));
    return row_done(job, row, start, -1);
}

enum err job_row_check(const struct job *job, const struct request *r, struct row_error *error)
{
    const struct job_config *c = &job->config;
    struct evict_row evict;
    if (c->prompt_cap > 0 && r->n_prompt > c->prompt_cap) {
        *error = (struct row_error){.code = "prompt_too_long_for_memory"};
        snprintf(
            error->message, sizeof error->message,
            "the prompt has %d tokens; within the memory budget of this job prompts of at most "
            "%lld can be held",
            r->n_prompt, (long long)c->prompt_cap);
        return ERR_ROW;
    }
    if (c->evict && evict_row_init(c->evict, r->n_prompt, r->n_cap - r->n_prompt, &evict) != 0) {
        *error = (struct row_error){.code = "invalid_kv_budget"};
        snprintf(error->message, sizeof error->message,
                 "sink %d + recent %d exceed the KV budget of %d slots for %d tokens", evict.sink,
                 evict.recent, evict.budget, r->n_cap);
        return ERR_ROW;
    }
    return OK;
}

/* ---- live rows ---- */

enum err job_token(struct job *job, struct request *r, int32_t id, const struct head_result *s,
                   int *finished)
{
    struct live *l = live_of(r);
    CHECK(id >= 0 && r->n_tokens < r->n_cap && !l->finish_reason);
    r->tokens[r->n_tokens++] = id;
    job->counts.output_tokens++;
    if (r->logprobs)
        TRY(logprobs_put(&l->logprobs, r->n_tokens - 1, id, s->sample_logit, s));
    TRY(live_feed(job, l, id));
    *finished = l->finish_reason != NULL;
    const int64_t had = r->n_tokens - 1 - r->n_prompt;
    const int eighth = work_eighth(had, r->n_cap - r->n_prompt);
    job->counts.sampled[eighth]++;
    job->counts.stopped[eighth] += *finished && r->n_tokens < r->n_cap;
    live_stream(job, l, 0);
    return OK;
}

enum err job_scored(struct job *job, struct request *r, int pos, const struct head_result *s)
{
    (void)job;
    struct live *l = live_of(r);
    CHECK(pos + 1 < r->n_tokens);
    return logprobs_put(&l->logprobs, pos + 1, r->tokens[pos + 1], s->target_logit, s);
}

/* 0: a NaN, because the model's logits were NaN. */
static int scores_are_numbers(const struct live *l)
{
    for (int i = 0; i < l->logprobs.n; i++)
        if (l->logprobs.value[i] != l->logprobs.value[i])
            return 0;
    return 1;
}

static void fill_result(const struct job *job, const struct live *l, struct result *res)
{
    const struct request *r = &l->request;
    *res = (struct result){.r = r,
                           .tokenizer = job->config.tokenizer,
                           .text = l->text.p ? l->text.p : "",
                           .n_text = l->text.n,
                           .finish_reason = l->finish_reason,
                           .logprobs = r->logprobs ? &l->logprobs : NULL,
                           .model = job->config.model_name,
                           .dummy_weights = job->config.dummy_weights,
                           .created = job->config.defaults.epoch};
}

static enum err tell_finished(struct job *job, struct live *l, const struct result *res)
{
    const struct request *r = &l->request;
    struct job_result told = {.request = r, .text = res->text, .n_text = res->n_text};
    int first = r->n_prompt - l->logprobs.first; // skips the prompt's under echo
    live_stream(job, l, 1);
    if (r->kind == REQUEST_SCORE)
        told.logprob = result_logprob(res, &told.is_greedy);
    else
        told.finish_reason = l->finish_reason;
    if (r->logprobs && l->logprobs.n > first) {
        told.token_logprobs = l->logprobs.value + first;
        told.n_token_logprobs = l->logprobs.n - first;
    }
    return job->callbacks.finished ? job->callbacks.finished(job->callbacks.ctx, &told) : OK;
}

static enum err fail_live(struct job *job, struct live *l, const char *code, const char *message)
{
    struct row_error error = {0};
    snprintf(error.code, sizeof error.code, "%s", code);
    snprintf(error.message, sizeof error.message, "%s", message);
    enum err err = job_row_failed(job, l->row, &l->request, &error);
    job->n_live--;
    live_leave(job, l);
    return err;
}

static enum err finish_live(struct job *job, struct live *l)
{
    struct result res;
    int64_t start = job->lines.n;
    int scored = l->request.kind == REQUEST_SCORE;
    if (!scores_are_numbers(l))
        return fail_live(job, l, "numeric_error", "the model's logits are not numbers");
    if (scored)
        job->counts.output_tokens += l->request.n_tokens - l->request.n_prompt;
    TRY(live_end(job, l));
    fill_result(job, l, &res);
    if (job->on_disk)
        result_line(&job->lines, &res);
    else
        TRY(tell_finished(job, l, &res));
    if (!job->counts.first_finish_ns) {
        job->counts.first_finish_ns = clock_ns();
        job->counts.output_tokens_at_first = job->counts.output_tokens;
    }
    int64_t row = l->row, tokens = l->request.n_tokens - l->request.n_prompt;
    job->n_live--;
    live_leave(job, l);
    return row_done(job, row, start, tokens);
}

enum err job_finish(struct job *job, struct request *r)
{
    return finish_live(job, live_of(r));
}

/* Removes the row from the queue. 0: it was not waiting. */
static int unqueue(struct job *job, const struct live *l)
{
    if (l == job->peeked) {
        job->peeked = NULL;
        return 1;
    }
    for (struct live **at = &job->requeued; *at; at = &(*at)->next_requeued)
        if (*at == l) {
            *at = l->next_requeued;
            return 1;
        }
    return 0;
}

enum err job_fail(struct job *job, struct request *r, const char *code, const char *message)
{
    struct live *l = live_of(r);
    if (unqueue(job, l)) {
        job->n_waiting--;
        job->n_live++;
    }
    return fail_live(job, l, code, message);
}

/* ---- commits ---- */

/* Appends records of the confirmed tokens that the journal lacks. */
static enum err journal_tokens(struct job *job)
{
    for (struct live *l = job->live; l; l = l->next) {
        struct request *r = &l->request;
        if (r->kind != REQUEST_GENERATE || l->n_confirmed <= l->n_journaled)
            continue;
        struct journal_entry entry = {.kind = JOURNAL_TOKENS,
                                      .index = l->row,
                                      .offset = l->n_journaled - r->n_prompt,
                                      .n = l->n_confirmed - l->n_journaled,
                                      .ids = r->tokens + l->n_journaled};
        TRY(journal_append(&job->journal, &entry));
        l->n_journaled = l->n_confirmed;
    }
    return OK;
}

/* Confirms what is staged: its records join the journal's next group. */
static enum err confirm(struct job *job)
{
    CHECK(!job->dropped);
    for (int64_t i = 0; i < job->n_staged; i++) {
        enum err err = journal_append(&job->journal, &job->staged[i]);
        if (err != OK) {
            job->broken = 1; // half of a pass must not be committed
            return err;
        }
    }
    job->pending_rows += job->n_staged;
    job->n_staged = 0;
    job->confirmed_bytes = job->written_bytes + job->lines.n;
    for (struct live *l = job->live; l; l = l->next)
        l->n_confirmed = l->request.n_tokens;
    while (job->left) {
        struct live *l = job->left;
        job->left = l->next;
        live_free(l);
    }
    return OK;
}

static enum err commit(struct job *job, int wait)
{
    TRY(journal_tokens(job));
    return files_commit(job, wait);
}

void job_drop_staged(struct job *job)
{
    job->dropped = 1;
    for (int64_t i = 0; i < job->n_staged; i++) {
        const struct journal_entry *entry = &job->staged[i];
        job->rows[entry->index].state = ROW_LIVE;
        job->counts.ok -= !entry->failed;
        job->counts.failed -= entry->failed;
        job->counts.done--;
    }
    job->n_staged = 0;
    while (job->left) { // live again, so that journal_tokens() records their confirmed tokens
        struct live *l = job->left;
        job->left = l->next;
        job_live_link(job, l);
    }
    /* Bytes spilled beyond the confirmed ones are overwritten, or cut off by the next run. */
    job->lines.n = max_i64(job->confirmed_bytes - job->written_bytes, 0);
    job->written_bytes = min_i64(job->written_bytes, job->confirmed_bytes);
}

enum err job_pass_end(struct job *job, int force)
{
    if (!job->on_disk || job->complete)
        return OK;
    TRY(confirm(job));
    TRY(files_commit_end(job, 0));
    int64_t now = clock_ns();
    double sync_s = job->config.sync_s > 0 ? job->config.sync_s : JOB_SYNC_S;
    /* A commit begins after half of sync_s and has the other half to become durable: the next one
     * waits for it. Many lines go sooner, or the walker would have to write them (files_spill). */
    int due = force || (double)(now - job->commit_ns) * 1e-9 >= sync_s / 2;
    int many = job->lines.n > LINES_BYTES_MAX / 2 && !job->committing;
    return due || many ? commit(job, force) : OK;
}

enum err job_complete(struct job *job)
{
    CHECK(!job_live(job));
    if (!job->on_disk || job->complete)
        return OK;
    TRY(confirm(job));
    TRY(files_commit(job, 1));
    if (job->config.claims && !(job->config.make_out && job->counts.done == job->counts.rows))
        return OK;
    return out_complete(job);
}

int job_is_complete(const struct job *job)
{
    return job->complete;
}

/* ---- open and close ---- */

static struct job *job_new(const struct job_config *config)
{
    struct job *job = calloc(1, sizeof *job);
    if (!job)
        return NULL;
    job->config = *config;
    job->in.file.fd = job->journal_fd = job->partial_fd = -1;
    job->commit_ns = clock_ns();
    job->predicted_s = -1;
    job->old.n_bytes = -1;
    job->lengths.stride = 1;
    job->started_unix_s = (int64_t)time(NULL);
    job->cap_fixed = config->prompt_cap > 0;
    return job;
}

static void job_free(struct job *job)
{
    reader_stop(job);
    writer_stop(job);
    while (job->left) {
        struct live *l = job->left;
        job->left = l->next;
        live_free(l);
    }
    while (job->live)
        live_drop(job, job->live);
    for (int64_t k = 0; job->requests && k < job->n_rows; k++)
        request_free(&job->requests[k]);
    for (int64_t i = 0; i < job->n_resumed; i++)
        free(job->resumed[i].ids);
    files_close(job);
    jsonl_close(&job->in);
    out_free(&job->lines);
    out_free(&job->commit.lines);
    free(job->commit.records.buf);
    free(job->staged);
    free(job->resumed);
    free(job->rows);
    free(job->by_prompt);
    free(job->lengths.rows);
    free(job->identity);
    free(job);
}

static enum err open_steps(struct job *job, struct work *work)
{
    if (job->on_disk)
        TRY(files_begin(job));
    if (job->on_disk && !job->config.claims)
        TRY(files_lock(job));
    if (job->on_disk)
        TRY(manifest_old_input(job));
    TRY(jsonl_open(&job->in, job->config.in_path));
    if (job->config.line_max > 0)
        job->in.line_max = min_i64(job->config.line_max, JSONL_LINE_BYTES_MAX);
    jsonl_mark(&job->in, job->old.n_bytes);
    TRY(scan_index(job));
    TRY(scan_wrong_file(job));
    if (job->on_disk) {
        TRY(manifest_identity(job));
        TRY(job->config.claims ? shared_open(job) : files_open(job));
        job->written_bytes = job->confirmed_bytes = job->partial_bytes;
    } else if (job->config.told) {
        TRY(follow_told(job));
    }
    if (job->complete)
        return OK;
    enum err err = scan_rows(job, work);
    if (!job->on_disk || (err != OK && err != ERR_ROWS))
        return err;
    char text[1024]; // error rows depend on no weights: confirm them at once
    snprintf(text, sizeof text, "%s", err_text());
    TRY(job_pass_end(job, 1));
    return err == OK ? OK : fail(err, "%s", text);
}

enum err job_open(struct job **out, const struct job_config *config, struct work *work)
{
    *out = NULL;
    memset(work, 0, sizeof *work);
    struct job *job = job_new(config);
    if (!job)
        return fail(ERR_FIT, "no memory for a job");
    job->on_disk = config->out_path != NULL;
    enum err err = open_steps(job, work);
    if (err != OK) {
        job_free(job);
        return err;
    }
    *out = job;
    return OK;
}

enum err job_open_memory(struct job **out, const struct job_config *config,
                         struct request *requests, int64_t n, const struct job_callbacks *callbacks,
                         struct work *work)
{
    *out = NULL;
    memset(work, 0, sizeof *work);
    struct job *job = job_new(config);
    if (job)
        job->rows = calloc((size_t)max_i64(n, 1), sizeof *job->rows);
    if (!job || !job->rows) {
        free(job);
        return fail(ERR_FIT, "no memory for %lld requests", (long long)n);
    }
    job->callbacks = *callbacks;
    job->requests = requests;
    job->n_rows = job->rows_end = job->counts.rows = job->n_waiting = n;
    for (int64_t k = 0; k < n; k++) {
        struct row_error error;
        job->rows[k] = (struct job_row){.state = ROW_WAITING, .line = (uint32_t)k + 1};
        enum err err = job_row_check(job, &requests[k], &error);
        if (err == OK)
            err = work_add(job, work, &requests[k], 0, NULL);
        if (err != OK && err != ERR_ROW) {
            job->requests = NULL; // they stay the caller's
            job_free(job);
            return err;
        }
    }
    work_end(job, work);
    *out = job;
    return OK;
}

enum err job_begin(struct job *job)
{
    if (job->begun)
        return OK;
    if (!job->requests)
        TRY(reader_start(job));
    if (job->on_disk && !job->complete)
        TRY(writer_start(job));
    job->begun = 1;
    return OK;
}

void job_refused(struct job *job)
{
    if (job && job->on_disk)
        job->refused = job->fresh;
}

enum err job_close(struct job *job)
{
    if (!job)
        return OK;
    enum err err = OK;
    if (job->on_disk && !job->complete && !job->broken && !job->refused) {
        job_drop_staged(job);
        err = commit(job, 1);
    }
    job_free(job);
    return err;
}

int job_cap_open(const struct job *job)
{
    return job->config.in_path && !job->cap_fixed && !job->complete;
}

void job_cap_fix(struct job *job, int64_t cap, const struct work *work)
{
    CHECK(job_cap_open(job) && cap >= 0 && !job->begun);
    job->config.prompt_cap = cap;
    job->cap_fixed = 1;
    job->edits_max = work->edits_max;
}

int job_edits_max(const struct job *job)
{
    return job->edits_max;
}

int64_t job_text_bytes(const struct job *job, const struct work *work)
{
    /* Rows parsed ahead, plus one: token ids by tokens_max, text by the longest line. */
    int64_t row = (int64_t)sizeof(struct live) + 4 * work->tokens_max + work->line_bytes_max;
    int64_t ahead = job->requests ? 0 : min_i64(QUEUE_BYTES + row, work->n_rows * row);
    /* 3 times the longest line: its bytes, its longest string, the rendered messages. 8 times
     * LINES_BYTES_MAX: lines and records of this commit and of the one under way. */
    return (int64_t)sizeof *job + job->n_rows * (int64_t)sizeof *job->rows +
           3 * work->line_bytes_max + ahead + 8 * LINES_BYTES_MAX +
           JOB_PROMPT_BINS * (int64_t)sizeof *job->by_prompt +
           job->lengths.cap * (int64_t)sizeof *job->lengths.rows;
}

enum err job_set_plan(struct job *job, double elapsed_s, const char *flags)
{
    job->predicted_s = elapsed_s;
    snprintf(job->plan_flags, sizeof job->plan_flags, "%s", flags);
    if (job->config.claims && !job->complete)
        return shared_cap(job);
    return job->on_disk && !job->complete ? manifest_write(job, NULL) : OK;
}

const struct job_errors *job_errors(const struct job *job)
{
    return &job->errors;
}

const struct ignore_list *job_ignore(const struct job *job)
{
    return &job->config.defaults.ignore;
}

void job_counts(const struct job *job, struct job_counts *counts)
{
    *counts = job->counts;
}
