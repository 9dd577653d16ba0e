/* engine/job/job_scan.c - see job_impl.h. Owns the first look at the input: where its rows are,
 * which are bad, and how much work the others are.
 *
 * Note: the file is read twice. The first pass only finds lines and hashes bytes, so that the job
 * is identified before anything is written; the second pass parses. */
#include "engine/job/job_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/job/sample.h"

#define STAGED_MAX 4096 // records of bad rows that wait for a commit
#define LENGTHS_MAX                                                                                \
    (1 << 16) // lengths that are kept: of longer jobs those of every second, fourth ... row

/* ---- index ---- */

static enum err rows_room(struct job *job)
{
    if (job->n_rows < job->rows_cap)
        return OK;
    int64_t cap = max_i64(1024, job->rows_cap + job->rows_cap / 4);
    struct job_row *grown = realloc(job->rows, (size_t)cap * sizeof *grown);
    if (!grown)
        return fail(ERR_FIT, "%.512s: no memory for %lld rows", job->config.in_path,
                    (long long)cap);
    job->rows = grown;
    job->rows_cap = cap;
    return OK;
}

/* Frees the capacity that is not used. */
static void rows_trim(struct job *job)
{
    struct job_row *trimmed = realloc(job->rows, (size_t)max_i64(job->n_rows, 1) * sizeof *trimmed);
    if (trimmed) {
        job->rows = trimmed;
        job->rows_cap = max_i64(job->n_rows, 1);
    }
}

static uint32_t row_sum(int64_t row, uint32_t crc)
{
    return (uint32_t)mix64((uint64_t)row << 32 | crc);
}

/* Adds a row to its block. Blocks double in size when all INPUT_MARKS are in use. */
static void marks_add(struct input_marks *m, int64_t row, uint32_t crc)
{
    m->every = max_i64(m->every, 1);
    for (; row / m->every >= INPUT_MARKS; m->every *= 2)
        for (int i = 0; i < INPUT_MARKS; i++) {
            int from = 2 * i;
            m->sums[i] = from < INPUT_MARKS ? m->sums[from] + m->sums[from + 1] : 0;
        }
    m->sums[row / m->every] += row_sum(row, crc);
    m->n_rows = row + 1;
}

/* Compares a row with the input of the last run, block by block. */
static void compare_old(struct old_input *old, int64_t row, const struct jsonl_line *line)
{
    int64_t every = old->marks.every;
    if (old->n_bytes < 0 || row >= old->marks.n_rows)
        return;
    if (row % every == 0) {
        old->sum = 0;
        old->block_line = line->line;
    }
    old->sum += row_sum(row, line->crc);
    int ends = (row + 1) % every == 0 || row + 1 == old->marks.n_rows;
    if (ends && old->first_bad == 0 && old->sum != old->marks.sums[row / every]) {
        old->first_bad = old->block_line;
        old->last_bad = line->line;
    }
}

enum err scan_index(struct job *job)
{
    const struct job_config *c = &job->config;
    for (;;) {
        struct jsonl_line line;
        int found;
        TRY(jsonl_next(&job->in, &line, &found));
        if (!found) {
            rows_trim(job);
            job->rows_end = job->n_rows;
            return OK;
        }
        if (c->limit > 0 && job->n_rows >= c->limit)
            continue; // for the hash of the whole file
        if (line.line > JSONL_LINES_MAX)
            return fail(ERR_INPUT, "%.512s: more than %lld lines", c->in_path,
                        (long long)JSONL_LINES_MAX);
        TRY(rows_room(job));
        marks_add(&job->marks, job->n_rows, line.crc);
        compare_old(&job->old, job->n_rows, &line);
        int mine = c->n_shards <= 1 || job->n_rows % c->n_shards == c->shard;
        job->rows[job->n_rows++] =
            (struct job_row){.offset = line.too_long ? -line.n_bytes : line.offset,
                             .state = mine ? ROW_WAITING : ROW_SKIPPED,
                             .line = (uint32_t)line.line};
        job->n_waiting += mine;
        job->counts.rows += mine;
    }
}

static void line_too_long(const struct jsonl *in, int64_t n_bytes, struct row_error *error)
{
    const double mib = 1048576;
    if (n_bytes > JSONL_LINE_BYTES_MAX) {
        *error = (struct row_error){.code = "invalid_json", .message = "line > 64 MiB"};
        return;
    }
    *error = (struct row_error){.code = "line_too_long_for_memory"};
    snprintf(error->message, sizeof error->message,
             "line of %.2f MiB; within the memory budget of this run lines of at most %.2f MiB are "
             "read (--mem-ram %lldM reads this one)",
             (double)n_bytes / mib, (double)in->line_max / mib,
             (long long)ceil_div(n_bytes * JOB_LINE_SHARE, 1 << 20));
}

enum err scan_parse(struct job *job, int64_t k, struct request *r, struct row_error *error)
{
    const struct job_row *row = &job->rows[k];
    const struct job_config *c = &job->config;
    const char *text = "";
    int64_t n = 0;
    *r = (struct request){0}; // the caller frees it, whatever comes
    if (row->offset >= 0)
        TRY(jsonl_read(&job->in, row->offset, &text, &n));
    enum err err = request_parse(r, c->kind, text, n, k, row->line, &c->defaults, c->tokenizer,
                                 c->tmpl, error);
    if (row->offset < 0 && err == ERR_ROW)
        line_too_long(&job->in, -row->offset, error);
    return err;
}

/* ---- a wrong file ---- */

/* The name of the input that the user knows. */
static const char *input_name(const struct job *job)
{
    const char *path = job->config.in_path, *spooled = job_suffixes[JOB_INPUT];
    size_t n = strlen(path), n_spooled = strlen(spooled);
    int is_stdin = (n > n_spooled && strcmp(path + n - n_spooled, spooled) == 0) ||
                   strncmp(path, "/proc/self/fd/", 14) == 0;
    return is_stdin ? "stdin" : path;
}

static enum err not_rows(const struct job *job, const struct row_error *error)
{
    return fail(ERR_INPUT,
                "%.512s: no row is JSON; the first: %.200s (give one JSON object a line, e.g. %s)",
                input_name(job), error->message,
                job->config.kind == REQUEST_SCORE ? "{\"context\":\"...\",\"continuation\":\"...\"}"
                                                  : "{\"prompt\":\"...\"}");
}

static enum err no_tokenizer(const struct job *job)
{
    return fail(ERR_INPUT,
                "%.512s: all rows are text, and the model has no tokenizer (give token ids: %s)",
                input_name(job),
                job->config.kind == REQUEST_SCORE ? "context_ids and continuation_ids"
                                                  : "prompt_token_ids");
}

/* *byte: the first or last byte of row k that is not a space; 0: none, or the row is too long. */
static enum err edge_byte(struct job *job, int64_t k, int last, char *byte)
{
    const char *text;
    int64_t n, at = 0;
    *byte = 0;
    if (job->rows[k].offset < 0)
        return OK;
    TRY(jsonl_read(&job->in, job->rows[k].offset, &text, &n));
    while (at < n && strchr(" \t\r", text[last ? n - 1 - at : at]))
        at++;
    *byte = at < n ? text[last ? n - 1 - at : at] : 0;
    return OK;
}

/* Lines of a JSON list may be JSON: the first and last bracket of the file show the list. */
static enum err check_list(struct job *job)
{
    char first, last;
    TRY(edge_byte(job, 0, 0, &first));
    TRY(edge_byte(job, job->n_rows - 1, 1, &last));
    return first != '[' || last != ']'
               ? OK
               : fail(ERR_INPUT,
                      "%.512s: is one JSON list (give one JSON object a line; jq -c '.[]' makes "
                      "such lines of a list)",
                      input_name(job));
}

enum err scan_wrong_file(struct job *job)
{
    struct row_error first = {0};
    int has_text = 0;
    if (job->n_rows == 0)
        return OK;
    TRY(check_list(job));
    for (int64_t k = 0; k < job->n_rows; k++) {
        struct request r;
        struct row_error error;
        enum err err = scan_parse(job, k, &r, &error);
        request_free(&r);
        int is_text = err == ERR_ROW && strcmp(error.code, ROW_NO_TOKENIZER) == 0;
        int is_no_json = err == ERR_ROW && strcmp(error.code, ROW_NO_JSON) == 0;
        if ((!is_text && !is_no_json) || job->rows[k].offset < 0)
            return err == ERR_ROW ? OK : err;
        has_text |= is_text;
        if (k == 0)
            first = error;
    }
    return has_text ? no_tokenizer(job) : not_rows(job, &first);
}

/* ---- custom_ids ---- */

/* Hash table of row numbers by custom_id: 8 bytes per entry, at most three quarters full. Rows with
 * equal tags are read again and compared. The random seed prevents crafted collisions and does not
 * affect OUT. */
struct id_table {
    struct id_slot {
        uint32_t tag, row; // row + 1; 0: free
    } * slots;             // owned
    uint64_t cap, seed;
};

static enum err row_id(struct job *job, int64_t k, struct text *id)
{
    const struct job_row *row = &job->rows[k];
    const char *text = "";
    int64_t n = 0;
    if (row->offset >= 0)
        TRY(jsonl_read(&job->in, row->offset, &text, &n));
    return request_read_id(text, n, row->line, id);
}

/* Enters row k. *twin: the row that already has this custom_id, or -1. */
static enum err id_enter(struct job *job, struct id_table *t, int64_t k, struct text id,
                         int64_t *twin)
{
    uint64_t hash = hash_bytes(id.p, id.n, t->seed);
    uint64_t at = (uint64_t)(((unsigned __int128)hash * t->cap) >> 64);
    uint32_t tag = (uint32_t)hash;
    *twin = -1;
    for (; t->slots[at].row; at = at + 1 == t->cap ? 0 : at + 1) {
        if (t->slots[at].tag != tag)
            continue;
        struct text other = {0};
        TRY(row_id(job, (int64_t)t->slots[at].row - 1, &other));
        int same = id.n == other.n && memcmp(id.p, other.p, (size_t)id.n) == 0;
        free(other.p);
        if (same) {
            *twin = (int64_t)t->slots[at].row - 1;
            return OK;
        }
    }
    t->slots[at] = (struct id_slot){.tag = tag, .row = (uint32_t)k + 1};
    return OK;
}

/* ---- the rows ---- */

/* The bin of a prompt: ascending with its length. */
static int prompt_bin(const struct job *job, int64_t n_prompt)
{
    int64_t context = max_i64(job->config.defaults.context, JOB_PROMPT_BINS - 1);
    return (int)min_i64(n_prompt * JOB_PROMPT_BINS / (context + 1), JOB_PROMPT_BINS - 1);
}

static void work_merge(struct work *to, const struct work *from)
{
    to->n_rows += from->n_rows;
    to->prompt_tokens += from->prompt_tokens;
    to->output_tokens += from->output_tokens;
    to->prompt_max = max_i64(to->prompt_max, from->prompt_max);
    to->tokens_max = max_i64(to->tokens_max, from->tokens_max);
    to->slots_max = max_i64(to->slots_max, from->slots_max);
    to->kinds = from->kinds ? from->kinds : to->kinds;
    for (int kind = 0; kind < KV_KINDS_MAX; kind++)
        to->slots_kind[kind] = max_i64(to->slots_kind[kind], from->slots_kind[kind]);
    to->slots_mean += from->slots_mean; // a sum until work_end()
    to->forced_max = max_i64(to->forced_max, from->forced_max);
    to->line_bytes_max = max_i64(to->line_bytes_max, from->line_bytes_max);
    to->scores |= from->scores;
    to->scored_positions += from->scored_positions;
    to->scored_prompt_max = max_i64(to->scored_prompt_max, from->scored_prompt_max);
    to->filters |= from->filters;
    to->edits_max = (int)max_i64(to->edits_max, from->edits_max);
}

void job_work_within(const struct job *job, int64_t cap, struct work *work)
{
    *work = (struct work){0};
    for (int i = 0; job->by_prompt && i < JOB_PROMPT_BINS; i++)
        if (job->by_prompt[i].prompt_max <= cap)
            work_merge(work, &job->by_prompt[i]);
    work_end(job, work);
}

/* Number of leading prompt tokens that a row shares with the row scanned before it. */
static int shared_before(struct lengths *l, const struct request *r)
{
    int n = (int)min_i64(r->n_prompt, PLAN_SHARED_TOKENS), shared = 0;
    while (shared < n && shared < l->n_before && r->tokens[shared] == l->before[shared])
        shared++;
    memcpy(l->before, r->tokens, (size_t)n * sizeof *r->tokens);
    l->n_before = n;
    return shared;
}

/* Keeps the lengths of a waiting row that no earlier run began. */
static enum err lengths_add(struct job *job, const struct work_row *row)
{
    struct lengths *l = &job->lengths;
    if (l->n_seen++ % l->stride != 0)
        return OK;
    if (l->n == LENGTHS_MAX) {
        for (int64_t i = 0; i < l->n / 2; i++)
            l->rows[i] = l->rows[2 * i];
        l->n /= 2;
        l->stride *= 2;
    }
    if (l->n == l->cap) {
        int64_t cap = min_i64(max_i64(256, 2 * l->cap), LENGTHS_MAX);
        struct work_row *grown = realloc(l->rows, (size_t)cap * sizeof *grown);
        if (!grown)
            return fail(ERR_FIT, "no memory for the lengths of a job");
        l->rows = grown;
        l->cap = cap;
    }
    l->rows[l->n++] = *row;
    return OK;
}

/* Puts the lengths of rows that an earlier run began first. */
static enum err lengths_end(struct job *job)
{
    struct lengths *l = &job->lengths;
    int64_t n = 0, most = ceil_div(job->n_resumed, l->stride);
    struct work_row *all = most > 0 ? malloc((size_t)(most + l->n) * sizeof *all) : NULL;
    if (most == 0)
        return OK;
    if (!all)
        return fail(ERR_FIT, "no memory for the lengths of a job");
    for (int64_t i = 0; i < job->n_resumed; i += l->stride)
        if (job->resumed[i].lengths.cap > 0)
            all[n++] = job->resumed[i].lengths;
    if (l->n > 0)
        memcpy(all + n, l->rows, (size_t)l->n * sizeof *all);
    free(l->rows);
    l->rows = all;
    l->cap = most + l->n;
    l->n += n;
    return OK;
}

enum err work_add(struct job *job, struct work *work, const struct request *r, int64_t line_bytes,
                  struct resumed *resumed)
{
    int64_t n_out = r->n_cap - r->n_prompt;
    const struct evict *evict = job->config.evict;
    int64_t slots = evict ? evict_slots_max(evict, KV_MOST, r->n_prompt, n_out) : r->n_cap;
    int score = r->kind == REQUEST_SCORE, n_stops = 0;
    int64_t echoed = !score && r->logprobs && r->echo ? r->n_prompt : 0;
    if (job->config.tokenizer)
        tokenizer_stops(job->config.tokenizer, &n_stops);
    struct work row = {.n_rows = 1,
                       .prompt_tokens = r->n_prompt,
                       .output_tokens = n_out,
                       .prompt_max = r->n_prompt,
                       .tokens_max = r->n_cap,
                       .slots_max = slots,
                       .slots_mean = slots,
                       .kinds = evict ? evict->kinds : NULL,
                       .forced_max = r->n_tokens - r->n_prompt,
                       .line_bytes_max = line_bytes,
                       .scores = score,
                       .scored_positions = score || r->logprobs ? n_out + echoed : 0,
                       .scored_prompt_max = echoed,
                       .filters = sample_filters(r),
                       .edits_max = sample_edits_max(r, n_stops)};
    for (int kind = 0; evict && kind < evict_kinds(evict); kind++)
        row.slots_kind[kind] = evict_slots_max(evict, kind, r->n_prompt, n_out);
    if (!job->by_prompt)
        job->by_prompt = calloc(JOB_PROMPT_BINS, sizeof *job->by_prompt);
    if (!job->by_prompt)
        return fail(ERR_FIT, "no memory for the lengths of a job");
    work_merge(&job->by_prompt[prompt_bin(job, r->n_prompt)], &row);
    work_merge(work, &row);
    job->edits_max = work->edits_max;
    const struct work_row lengths = {r->n_prompt, r->n_tokens, r->n_cap,
                                     shared_before(&job->lengths, r)};
    if (resumed)
        resumed->lengths = lengths;
    return resumed ? OK : lengths_add(job, &lengths);
}

void work_end(const struct job *job, struct work *work)
{
    if (work->n_rows > 0)
        work->slots_mean = ceil_div(work->slots_mean, work->n_rows);
    work->rows = job->lengths.rows;
    work->n_lengths = job->lengths.n;
    work->stride = job->lengths.stride;
}

static struct work_row length_of(const struct live *l)
{
    const struct request *r = &l->request;
    return (struct work_row){r->n_prompt, r->n_tokens, r->n_cap, .shared = 0};
}

/* Index of the first length of a row that has not begun; those before it may be reused. */
static int64_t behind_begun(const struct lengths *l)
{
    return min_i64(ceil_div(l->n_begun, l->stride), l->n);
}

/* Sets the work to the lengths from `first` on. */
static void work_from(const struct lengths *l, int64_t first, struct work *work)
{
    work->rows = l->rows + first;
    work->n_lengths = l->n - first;
    work->prompt_tokens = work->output_tokens = 0;
    for (int64_t i = 0; i < work->n_lengths; i++) {
        const struct work_row *row = &work->rows[i];
        work->prompt_tokens += (int64_t)row->prompt * l->stride;
        work->output_tokens += (int64_t)(row->cap - row->known) * l->stride;
        work->forced_max = max_i64(work->forced_max, row->known - row->prompt);
    }
}

void job_work_left(struct job *job, struct work *work)
{
    struct lengths *l = &job->lengths;
    int64_t first = behind_begun(l), k = 0;
    for (const struct live *row = job->live; row; row = row->next, k++) // newest first
        if (k % l->stride == 0 && first > 0)
            l->rows[--first] = length_of(row);
    work->n_rows = job->n_waiting + job->n_live;
    work_from(l, first, work);
}

void job_work_waiting(struct job *job, struct work *work)
{
    struct lengths *l = &job->lengths;
    const int64_t behind = behind_begun(l);
    int64_t n = job->peeked != NULL, k = 0;
    for (const struct live *row = job->requeued; row; row = row->next_requeued)
        n++;
    const int64_t first = max_i64(behind - ceil_div(n, l->stride), 0);
    int64_t at = first;
    for (const struct live *row = job->requeued; row; row = row->next_requeued, k++)
        if (k % l->stride == 0 && at < behind)
            l->rows[at++] = length_of(row);
    if (job->peeked && k % l->stride == 0 && at < behind)
        l->rows[at] = length_of(job->peeked);
    work->n_rows = job->n_waiting;
    work_from(l, first, work);
}

/* Parses row k and adds it to the work, or makes it an error row. */
static enum err scan_row(struct job *job, struct id_table *ids, int64_t k, struct work *work)
{
    struct job_row *row = &job->rows[k];
    struct request r;
    struct row_error error;
    int64_t twin = -1, line_bytes = 0;
    enum err err = scan_parse(job, k, &r, &error);
    if (err == OK || err == ERR_ROW) {
        enum err entered = id_enter(job, ids, k, (struct text){r.custom_id, r.n_custom_id}, &twin);
        err = entered == OK ? err : entered;
    }
    if (err == OK && twin >= 0) {
        error = (struct row_error){.code = "duplicate_custom_id"};
        snprintf(error.message, sizeof error.message,
                 "lines %lu and %lu have the same custom_id: '%.200s'",
                 (unsigned long)job->rows[twin].line, (unsigned long)row->line, r.custom_id);
        err = ERR_ROW;
    }
    if (err == OK)
        err = job_row_check(job, &r, &error);
    for (int i = 0; err == OK && i < IGNORE_MAX; i++)
        job->counts.ignored[i] += r.ignored >> i & 1;
    if (err == OK) {
        struct resumed *resumed = row->n > 0 ? &job->resumed[row->n - 1] : NULL;
        if (resumed) // tokens of an earlier run are a forced span
            r.n_tokens = (int)min_i64(r.n_tokens + resumed->n, r.n_cap);
        const char *text;
        err = jsonl_read(&job->in, row->offset, &text, &line_bytes);
        if (err == OK)
            err = work_add(job, work, &r, line_bytes, resumed);
    } else if (err == ERR_ROW) {
        row->n = 0;
        job->n_waiting--;
        err = job_row_failed(job, k, &r, &error);
    }
    request_free(&r);
    return err;
}

static enum err scan_each(struct job *job, struct id_table *ids, struct work *work)
{
    for (int64_t k = 0; k < job->n_rows; k++) {
        if (job->n_staged >= STAGED_MAX)
            TRY(job_pass_end(job, 1));
        if (job->rows[k].state == ROW_WAITING) {
            TRY(scan_row(job, ids, k, work));
            continue;
        }
        struct text id = {0};
        int64_t twin;
        TRY(row_id(job, k, &id));
        enum err err = id_enter(job, ids, k, id, &twin);
        free(id.p);
        TRY(err);
    }
    return OK;
}

enum err scan_rows(struct job *job, struct work *work)
{
    struct id_table ids = {.cap = (uint64_t)(job->n_rows + job->n_rows / 3 + 16),
                           .seed = mix64((uint64_t)clock_ns() ^ (uint64_t)(uintptr_t)job)};
    ids.slots = calloc(ids.cap, sizeof *ids.slots);
    if (!ids.slots)
        return fail(ERR_FIT, "%.512s: no memory for %lld rows", job->config.in_path,
                    (long long)job->n_rows);
    enum err err = scan_each(job, &ids, work);
    free(ids.slots);
    if (err == OK)
        err = lengths_end(job);
    work_end(job, work);
    jsonl_trim(&job->in); // the plan counts the lines that are read again, not those that failed
    return err;
}
