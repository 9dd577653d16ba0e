/* engine/cli/commands.c - `run`, `score` and `gen`. */
#include "engine/cli/commands.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/api/plan_file.h"
#include "engine/cli/devices.h"
#include "engine/cli/spool.h"
#include "engine/job/result.h"

static enum err run_rows(struct run *r, enum request_kind kind)
{
    struct ignore_list ignore; // finds a wrong name before the model opens
    TRY(ignore_parse(&ignore, r->config->ignore_fields));
    TRY(run_prepare(r, r->config));
    json_t *summary = NULL;
    enum err err = rows_run(r, kind, devices_is_worker() ? &summary : NULL);
    devices_tell(summary);
    return err;
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

/* Removes the OUT.input of a refused job. */
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
    int alone = 1;
    if (asked->devices)
        TRY(devices_run(&placed, kind == REQUEST_SCORE ? "score" : "run", &alone));
    if (!alone)
        return OK;
    if (!asked->dry_run)
        TRY(spool_out_begin(&placed));
    enum err err = command_input(&with, &placed, !asked->dry_run);
    if (err == OK)
        err = run_begin(&r, &with);
    if (err == OK)
        err = end_input(&with, run_end(r, run_rows(r, kind)));
    return asked->dry_run ? err : spool_out_end(&placed, err);
}

/* 1 if the command has an input and an output for rows. */
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

/* Parses the one row of gen like a row of `run`, so the same rules hold. */
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
    rows_defaults(r, &defaults);
    enum err err =
        request_parse(request, REQUEST_GENERATE, line, (int64_t)strlen(line), 0, 1, &defaults,
                      r->session->opened.tokenizer, r->session->opened.tmpl, &error);
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
    if (!r->session->opened.tokenizer)
        err = fail(ERR_INPUT, "%s: has no tokenizer (use run with prompt_token_ids)", c->model);
    if (err == OK)
        err = gen_request(r, text, n, &request);
    free(file);
    if (err != OK)
        request_free(&request);
    TRY(err);
    struct job_callbacks callbacks = {.finished = gen_finished, .text = print_text};
    r->plan_told = PLAN_DETAILS; // one prompt: only its text matters
    return rows_memory(r, REQUEST_GENERATE, &request, 1, &callbacks);
}

enum err command_gen(const struct config *c)
{
    if (!c->prompt == !c->prompt_file)
        return fail(ERR_USAGE, "gen: needs one of -p TEXT and -f FILE");
    struct run *r = NULL;
    TRY(run_begin(&r, c));
    return run_end(r, gen(r));
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
    if (!r->session->opened.tokenizer)
        return fail(ERR_INPUT, "%s: has no tokenizer", c->model);
    const int context = r->model->shape.context;
    if (c->prefix > context)
        return fail(ERR_USAGE, "--prefix: the model's context is %d tokens", context);
    if (c->window > evict_tokens_max(&r->evict, context))
        return fail(
            ERR_USAGE,
            "--window: the model's context is %d tokens (beyond it: --kv-positions slot with "
            "a --kv-policy and a --kv-budget within it)",
            context);
    TRY(read_all(c->text, TEXT_BYTES_MAX, &text, &n_bytes));
    enum err err = tokenizer_encode_all(r->session->opened.tokenizer, text, n_bytes, 0, ids, n);
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

enum err command_window_rows(const struct config *c, const int32_t *ids, int64_t windows,
                             struct request *requests)
{
    for (int64_t i = 0; i < windows; i++) {
        char name[32];
        snprintf(name, sizeof name, "window-%lld", (long long)i);
        TRY(rows_score(&requests[i], i, name, ids + i * c->window, c->window, c->prefix));
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
        err = rows_memory(r, REQUEST_SCORE, requests, n, &callbacks);
    free(requests);
    TRY(err);
    double nll = -p.logprob / (double)p.tokens;
    json_t *kv = plan_kv_json(r);
    json_object_set_new(kv, "evicted_tokens", json_integer(r->engine.batches.evicted_slots));
    char *kv_text = json_dumps(kv, JSON_COMPACT | JSON_REAL_PRECISION(9));
    printf("{\"ppl\":%.6g,\"nll\":%.9g,\"tokens\":%lld,\"windows\":%lld,\"kv\":%s%s}\n", exp(nll),
           nll, (long long)p.tokens, (long long)p.windows, kv_text ? kv_text : "null",
           r->model->dummy ? ",\"dummy_weights\":true" : "");
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
    TRY(run_begin(&r, asked));
    return run_end(r, score_text(r));
}
