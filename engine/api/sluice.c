/* engine/api/sluice.c - see sluice.h: turns library calls into runs (engine/api/run.h).
 *
 * Owns: the handle: its flags, the opened model with its threads and device, the last sentence.
 * Refuses: standard input and output, signals and the terminal, which belong to the program. */
#include "engine/api/sluice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/outputs.h"
#include "engine/api/plan_file.h"
#include "engine/api/rows.h"
#include "engine/api/text.h"
#include "engine/api/version.h"

_Static_assert((int)SLUICE_FIT == (int)ERR_FIT && (int)SLUICE_DISK == (int)ERR_IO &&
                   (int)SLUICE_STOPPED == (int)ERR_STOPPED,
               "codes of the library are those of the program");

struct sluice {
    struct config config; // flags of every call
    struct run run;
    int open;        // 1: the model is open
    atomic_int stop; // set by sluice_stop()
    char **words;    // owned: the options as words of a command line, in one block
    int n_words;
    char *model;                 // owned
    struct json_t *summary;      // owned: of the last job; NULL: no job yet
    enum log_level caller_level; // log level of the calling thread, restored after a call
    int code;
    char sentence[1024];
};

/* ---- a call ---- */

static void enter(struct sluice *s)
{
    s->stop = 0;
    s->caller_level = log_level_max;
    log_level_max = s->config.verbose ? LOG_DEBUG : LOG_ERROR;
}

static int leave(struct sluice *s, enum err err)
{
    log_level_max = s->caller_level;
    s->code = err < 100 ? (int)err : (int)ERR_INTERNAL;
    snprintf(s->sentence, sizeof s->sentence, "%s",
             err == OK         ? ""
             : err == ERR_ROWS ? "some rows have failed"
                               : err_text());
    return s->code;
}

/* Ends a call: closes the call's job; keeps `err` and its sentence. */
static enum err end_job(struct sluice *s, enum err err)
{
    char text[1024];
    snprintf(text, sizeof text, "%s", err_text());
    enum err closed = run_again(&s->run);
    s->run.keeps_rates = s->run.costs.pace != NULL; // later jobs have the same flags
    s->run.config = &s->config;
    if (err != OK && err != ERR_ROWS)
        return fail(err, "%s", text);
    return closed != OK ? closed : err;
}

int sluice_code(const struct sluice *s)
{
    return s->code;
}

const char *sluice_error(const struct sluice *s)
{
    return s->sentence;
}

const char *sluice_version(void)
{
    return SLUICE_VERSION;
}

void sluice_stop(struct sluice *s)
{
    s->stop = 1;
}

/* ---- open, close ---- */

/* The options as words of a command line, in one block. */
static enum err make_words(struct sluice *s, const struct sluice_option *options, int n)
{
    size_t n_bytes = 0, n_words = 0;
    for (int i = 0; i < n; i++) {
        n_bytes += strlen("--") + strlen(options[i].name) + 1;
        n_bytes += options[i].value ? strlen(options[i].value) + 1 : 0;
        n_words += 1 + (options[i].value != NULL);
    }
    s->words = malloc(n_words * sizeof *s->words + n_bytes + 1);
    if (!s->words)
        return fail(ERR_FIT, "no memory for the options");
    char *at = (char *)(s->words + n_words), *end = at + n_bytes;
    for (int i = 0; i < n; i++) {
        s->words[s->n_words++] = at;
        at += snprintf(at, (size_t)(end - at), "--%s", options[i].name) + 1;
        if (!options[i].value)
            continue;
        s->words[s->n_words++] = at;
        at += snprintf(at, (size_t)(end - at), "%s", options[i].value) + 1;
    }
    return OK;
}

static enum err open_model(struct sluice *s, const char *model, const struct sluice_option *options,
                           int n)
{
    struct config *c = &s->config;
    TRY(make_words(s, options, n));
    TRY(config_parse(c, CMD_RUN, s->n_words, s->words));
    TRY(c->model || c->in || c->out
            ? fail(ERR_USAGE, "model, input, output: are arguments of calls, not options")
            : OK);
    TRY(c->devices ? fail(ERR_USAGE, "devices: a handle computes on one device (option device)")
                   : OK);
    c->model = model;
    c->quiet = !c->verbose;
    c->interrupted = &s->stop;
    if (!config_given(c, "progress"))
        c->progress = PROGRESS_NONE;
    log_level_max = c->verbose ? LOG_DEBUG : LOG_ERROR;
    s->open = 1; // run_close() accepts a half-built run
    return run_prepare(&s->run, c);
}

int sluice_open(struct sluice **out, const char *model, const struct sluice_option *options, int n)
{
    struct sluice *s = *out = calloc(1, sizeof *s);
    if (!s)
        return ERR_FIT;
    s->caller_level = log_level_max;
    const size_t n_model = strlen(model) + 1;
    s->model = malloc(n_model);
    if (!s->model)
        return leave(s, fail(ERR_FIT, "no memory for the model's name"));
    memcpy(s->model, model, n_model);
    return leave(s, open_model(s, s->model, options, n));
}

void sluice_close(struct sluice *s)
{
    if (!s)
        return;
    if (s->open)
        (void)run_close(&s->run);
    json_decref(s->summary);
    config_free(&s->config);
    free(s->model);
    free(s->words);
    free(s);
}

int sluice_model(struct sluice *s, struct sluice_model *model)
{
    const struct tokenizer *tok = s->run.session->opened.tokenizer;
    enter(s);
    *model = (struct sluice_model){.context = s->run.model->shape.context,
                                   .bos = tok ? tokenizer_bos(tok) : -1,
                                   .eos = tok ? tokenizer_eos(tok) : -1};
    return leave(s, OK);
}

/* ---- text ---- */

static enum err enter_text(struct sluice *s)
{
    enter(s);
    return s->run.session->opened.tokenizer ? OK
                                            : fail(ERR_INPUT, "%s: has no tokenizer", s->model);
}

/* An error of a row becomes SLUICE_USAGE. */
static int leave_text(struct sluice *s, enum err err)
{
    return leave(s, err == ERR_ROW ? fail(ERR_USAGE, "%s", err_text()) : err);
}

int sluice_encode(struct sluice *s, const char *text, int64_t n, int add_special, int32_t **ids,
                  int64_t *n_ids)
{
    *ids = NULL;
    enum err err = enter_text(s);
    if (err == OK)
        err = tokenizer_encode_all(s->run.session->opened.tokenizer, text, n, add_special, ids,
                                   n_ids);
    return leave_text(s, err);
}

int sluice_decode(struct sluice *s, const int32_t *ids, int64_t n, int skip_special, char **text,
                  int64_t *n_text)
{
    *text = NULL;
    enum err err = enter_text(s);
    if (err == OK)
        err = text_decode(&s->run.session->opened, ids, n, skip_special, text, n_text);
    return leave_text(s, err);
}

static enum err chat_prompt(struct sluice *s, const char *json, char **text, int64_t *n_text)
{
    json_error_t why;
    json_t *row = json_loads(json, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!row)
        return fail(ERR_ROW, "%s", why.text);
    enum err err = text_chat(&s->run.session->opened, row, text, n_text);
    json_decref(row);
    return err;
}

int sluice_chat_prompt(struct sluice *s, const char *json, char **text, int64_t *n_text)
{
    *text = NULL;
    enum err err = enter_text(s);
    if (err == OK)
        err = chat_prompt(s, json, text, n_text);
    return leave_text(s, err);
}

/* ---- in memory ---- */

struct answers {
    sluice_result_fn *result;
    void *ctx;
    int64_t failed;
};

static enum err tell(struct answers *b, const struct sluice_result *result)
{
    b->failed += result->error != NULL;
    return b->result(b->ctx, result) ? fail(ERR_STOPPED, "stopped by the caller's function") : OK;
}

static enum err tell_error(struct answers *b, int64_t index, const struct row_error *error)
{
    return tell(
        b, &(struct sluice_result){
               .index = index, .error_code = error->code, .error = error->message, .text = ""});
}

/* Passes a result of the job to the caller. */
static enum err finished(void *ctx, const struct job_result *r)
{
    struct answers *b = ctx;
    const struct request *q = r->request;
    if (r->error)
        return tell_error(b, q->index, r->error);
    char *text = malloc((size_t)r->n_text + 1);
    if (!text)
        return fail(ERR_FIT, "no memory for the text of a row");
    if (r->n_text > 0)
        memcpy(text, r->text, (size_t)r->n_text);
    text[r->n_text] = 0;
    struct sluice_result result = {.index = q->index,
                                   .text = text,
                                   .n_text = r->n_text,
                                   .tokens = q->tokens + q->n_prompt,
                                   .n_tokens = q->n_tokens - q->n_prompt,
                                   .n_prompt = q->n_prompt,
                                   .finish_reason = r->finish_reason,
                                   .logprobs = r->token_logprobs,
                                   .n_logprobs = r->n_token_logprobs,
                                   .logprob = r->logprob,
                                   .is_greedy = r->is_greedy};
    enum err err = tell(b, &result);
    free(text);
    return err;
}

/* Reports bad requests as results; the others are in parsed[*n_parsed]. */
static enum err parse(struct sluice *s, enum request_kind kind,
                      const struct sluice_request *requests, int n, struct answers *b,
                      struct request *parsed, int64_t *n_parsed)
{
    struct run *r = &s->run;
    struct request_defaults defaults;
    rows_defaults(r, &defaults);
    TRY(ignore_parse(&defaults.ignore, r->config->ignore_fields));
    for (int i = 0; i < n; i++) {
        struct row_error error = {0};
        const char *json = requests[i].json;
        enum err err =
            request_parse(&parsed[*n_parsed], kind, json, (int64_t)strlen(json), i, i + 1,
                          &defaults, r->session->opened.tokenizer, r->session->opened.tmpl, &error);
        if (err == OK) {
            ++*n_parsed;
            continue;
        }
        request_free(&parsed[*n_parsed]);
        TRY(err == ERR_ROW ? tell_error(b, i, &error) : err);
    }
    return OK;
}

static enum err run_batch(struct sluice *s, enum request_kind kind,
                          const struct sluice_request *requests, int n, struct answers *b)
{
    int64_t n_parsed = 0;
    if (n < 1)
        return OK;
    struct request *parsed = calloc((size_t)n, sizeof *parsed);
    if (!parsed)
        return fail(ERR_FIT, "no memory for %d requests", n);
    enum err err = parse(s, kind, requests, n, b, parsed, &n_parsed);
    const struct job_callbacks callbacks = {.finished = finished, .ctx = b};
    if (err == OK && n_parsed > 0)
        err = rows_memory(&s->run, kind, parsed, n_parsed, &callbacks);
    else
        for (int64_t i = 0; i < n_parsed; i++)
            request_free(&parsed[i]);
    free(parsed);
    return err == OK && b->failed > 0 ? ERR_ROWS : err;
}

static int batch(struct sluice *s, enum request_kind kind, const struct sluice_request *requests,
                 int n, sluice_result_fn *result, void *ctx)
{
    struct answers b = {.result = result, .ctx = ctx};
    enter(s);
    return leave(s, end_job(s, run_batch(s, kind, requests, n, &b)));
}

int sluice_batch(struct sluice *s, const struct sluice_request *requests, int n,
                 sluice_result_fn *result, void *ctx)
{
    return batch(s, REQUEST_GENERATE, requests, n, result, ctx);
}

int sluice_score_batch(struct sluice *s, const struct sluice_request *requests, int n,
                       sluice_result_fn *result, void *ctx)
{
    return batch(s, REQUEST_SCORE, requests, n, result, ctx);
}

static enum err scored(void *ctx, const struct job_result *r)
{
    if (r->error)
        return fail(ERR_INPUT, "%s", r->error->message);
    memcpy(ctx, r->token_logprobs, (size_t)r->n_token_logprobs * sizeof *r->token_logprobs);
    return OK;
}

static enum err score(struct sluice *s, const int32_t *ids, int n, int n_prompt, float *logprobs)
{
    const struct shape *shape = &s->run.model->shape;
    struct request q;
    if (n_prompt < 1 || n <= n_prompt || n > shape->context)
        return fail(ERR_USAGE, "need 1 <= n_prompt < n <= %d, the model's context", shape->context);
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= shape->vocab)
            return fail(ERR_USAGE, "ids[%d]: %d is no token (the model has %d)", i, ids[i],
                        shape->vocab);
    TRY(rows_score(&q, 0, "score", ids, n, n_prompt));
    const struct job_callbacks callbacks = {.finished = scored, .ctx = logprobs};
    return rows_memory(&s->run, REQUEST_SCORE, &q, 1, &callbacks);
}

int sluice_score(struct sluice *s, const int32_t *ids, int n, int n_prompt, float *logprobs)
{
    enter(s);
    return leave(s, end_job(s, score(s, ids, n, n_prompt, logprobs)));
}

/* ---- jobs on files ---- */

static void progress(void *ctx, const struct job_counts *counts, double elapsed_s, double left_s)
{
    const struct sluice_events *events = ctx;
    events->progress(events->ctx, &(struct sluice_progress){.rows = counts->rows,
                                                            .rows_done = counts->done,
                                                            .rows_failed = counts->failed,
                                                            .output_tokens = counts->output_tokens,
                                                            .elapsed_s = elapsed_s,
                                                            .left_s = left_s});
}

static int run_files(struct sluice *s, enum request_kind kind, const char *in, const char *out,
                     const struct sluice_events *events)
{
    struct config c = s->config;
    struct sluice_events of = events ? *events : (struct sluice_events){0};
    c.in = in;
    c.out = out;
    enum err err = OK;
    enter(s);
    if (strcmp(in, "-") == 0 || strcmp(out, "-") == 0)
        err = fail(ERR_USAGE, "-: a handle reads and writes files only");
    if (err == OK)
        err = outputs_check(&c, kind == REQUEST_SCORE ? CMD_SCORE : CMD_RUN);
    if (err == OK) {
        json_decref(s->summary);
        s->summary = NULL;
        s->run.config = &c;
        s->run.progress = of.progress ? progress : NULL;
        s->run.progress_ctx = &of;
        err = end_job(s, rows_run(&s->run, kind, &s->summary));
        s->run.progress = NULL;
    }
    return leave(s, err);
}

int sluice_run(struct sluice *s, const char *in, const char *out,
               const struct sluice_events *events)
{
    return run_files(s, REQUEST_GENERATE, in, out, events);
}

int sluice_score_run(struct sluice *s, const char *in, const char *out,
                     const struct sluice_events *events)
{
    return run_files(s, REQUEST_SCORE, in, out, events);
}

static enum err dump(const json_t *root, int digits, char **json)
{
    *json = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(digits));
    return *json ? OK : fail(ERR_FIT, "no memory for the JSON text");
}

int sluice_summary_json(struct sluice *s, char **json)
{
    *json = NULL;
    enter(s);
    return leave(s, s->summary ? dump(s->summary, 9, json)
                               : fail(ERR_USAGE, "no job has run on this handle"));
}

/* ---- plans ---- */

static enum err plan(struct sluice *s, const struct sluice_work *work, struct sluice_plan *plan,
                     char **json)
{
    struct run *r = &s->run;
    struct config c = s->config;
    struct explain e;
    c.in = work->in;
    c.num_prompts = work->n_rows;
    c.prompt_len = work->prompt_len;
    c.gen_len = work->gen_len;
    r->config = &c;
    r->elsewhere = c.machine != NULL;
    enum err err = plan_work_explained(r, &e);
    if (err == OK && json) {
        json_t *root = plan_json(r, &e);
        err = dump(root, 6, json);
        json_decref(root);
    }
    if (err == OK && plan)
        *plan = (struct sluice_plan){
            .rows_at_once = (int64_t)r->decision.plan.batch * r->decision.plan.batches,
            .layers = r->decision.plan.layers,
            .layers_resident = r->decision.plan.resident + r->decision.plan.weights_ram +
                               r->decision.plan.embed_resident,
            .device_bytes = r->decision.bytes.device,
            .ram_bytes = r->decision.bytes.ram,
            .disk_bytes = r->decision.bytes.disk,
            .seconds = r->decision.time.job_s,
            .tokens_per_s = explain_tokens_per_s(r, r->decision.time.job_s),
            .limited_by = r->decision.time.bound};
    r->elsewhere = 0;
    return end_job(s, err);
}

int sluice_plan(struct sluice *s, const struct sluice_work *work, struct sluice_plan *to)
{
    enter(s);
    return leave(s, plan(s, work, to, NULL));
}

int sluice_plan_json(struct sluice *s, const struct sluice_work *work, char **json)
{
    *json = NULL;
    enter(s);
    return leave(s, plan(s, work, NULL, json));
}
