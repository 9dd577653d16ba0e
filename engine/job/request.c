/* engine/job/request.c - see request.h. Owns the rules that involve several fields: prompt forms,
 * lengths, tokens.
 *
 * Note: text is parsed twice. The first pass stores only the position of each text, so that memory
 * holds a long prompt once. */
#include "engine/job/request.h"

#include "engine/job/request_chat.h"
#include "engine/job/request_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS_SPARE     16   // special tokens around a text
#define TEMPERATURE_LOW  1e-4 // below it the noise is lost in the rounding of logit / T
#define MAX_TOKENS_SHORT 16   // completions
#define MAX_TOKENS_LONG  512  // chat and plain

/* A growing list of ids. */
struct ids {
    int32_t *p; // owned
    int64_t n, cap;
};

void request_free(struct request *r)
{
    free(r->custom_id);
    free(r->tokens);
    free(r->sampling.bias);
    for (int i = 0; i < r->n_stops; i++)
        free(r->stops[i].p);
    free(r->stops);
    free(r->stop_ids);
    memset(r, 0, sizeof *r);
}

static enum err default_id(struct request *r)
{
    char text[32];
    snprintf(text, sizeof text, "row-%lld", (long long)r->line);
    r->custom_id = strdup(text);
    r->n_custom_id = (int64_t)strlen(text);
    return r->custom_id ? OK : fail(ERR_FIT, "no memory for custom_id");
}

/* ---- ids ---- */

static enum err ids_room(struct ids *ids, int64_t n)
{
    if (n <= ids->cap)
        return OK;
    int32_t *grown = realloc(ids->p, (size_t)n * sizeof *grown);
    if (!grown)
        return fail(ERR_FIT, "no memory for %lld tokens", (long long)n);
    ids->p = grown;
    ids->cap = n;
    return OK;
}

static enum err too_many(struct fields *f, const char *name, int64_t n)
{
    return row_fail(f->error, "context_length_exceeded",
                    "%s has %lld tokens, the model's context is %d", name, (long long)n,
                    f->defaults->context);
}

/* Most tokens of a row. */
static int64_t row_max(const struct fields *f)
{
    return max_i64(f->defaults->context, f->defaults->tokens_max);
}

/* Ids kept of one field: one more than a row may have proves the error. Bounds the memory. */
static int64_t ids_limit(const struct fields *f)
{
    return row_max(f) + 1;
}

static enum err ids_check(struct fields *f, const struct ids *ids, const char *name)
{
    for (int64_t i = 0; i < ids->n; i++)
        if (ids->p[i] < 0 || ids->p[i] >= f->defaults->vocab)
            return row_fail(f->error, "invalid_request",
                            "%s gives token %d, the model's vocabulary ends at %d", name,
                            (int)ids->p[i], f->defaults->vocab - 1);
    return OK;
}

static enum err no_tokenizer(struct fields *f, const char *name)
{
    return row_fail(f->error, ROW_NO_TOKENIZER,
                    "%s is text, and the model has no tokenizer (give token ids)", name);
}

/* Appends the tokens of a text. */
static enum err ids_encode(struct fields *f, struct tokenizer *tok, const char *name,
                           const char *text, int64_t n_bytes, int add_special, struct ids *ids)
{
    if (!tok)
        return no_tokenizer(f, name);
    int64_t cap = min_i64(n_bytes + TOKENS_SPARE, ids_limit(f)), n = 0;
    for (;;) {
        TRY(ids_room(ids, cap));
        enum err err = tokenizer_encode(tok, text, n_bytes, add_special, ids->p, cap, &n);
        if (err == OK)
            break;
        if (err != ERR_ROW)
            return err;
        if (n <= cap)
            return row_fail(f->error, "invalid_request", "%s: %s", name, err_text());
        if (n > ids_limit(f))
            return too_many(f, name, n);
        cap = n;
    }
    ids->n = n;
    return ids_check(f, ids, name);
}

/* OpenAI clients may send a list of prompts in one request; here a row has one prompt. */
static enum err many_prompts(struct fields *f, const char *name)
{
    return row_fail(f->error, "unsupported_field",
                    "%s is a list of prompts; a row has one (give each prompt a row of its own)",
                    name);
}

static enum err ids_list(struct fields *f, struct json *j, const char *name, struct ids *ids)
{
    int64_t n = 0;
    while (json_next(j) != JSON_ARRAY_END) {
        if (j->last == JSON_ERROR)
            return row_fail_json(f->error, j->err);
        if (n == 0 && (j->last == JSON_STR || j->last == JSON_ARRAY_BEGIN) &&
            strcmp(name, "prompt") == 0)
            return many_prompts(f, name);
        if (j->last != JSON_INT || j->big || j->i64 < 0 || j->i64 >= f->defaults->vocab)
            return row_fail(f->error, "invalid_request",
                            "%s[%lld] must be a token id: an integer from 0 to %d", name,
                            (long long)n, f->defaults->vocab - 1);
        if (n == ids->cap && n < ids_limit(f))
            TRY(ids_room(ids, min_i64(max_i64(64, 2 * n), ids_limit(f))));
        if (n < ids->cap)
            ids->p[n] = (int32_t)j->i64;
        n++;
    }
    if (n > ids_limit(f))
        return too_many(f, name, n);
    ids->n = n;
    return OK;
}

/* Ids of a field that is a text or a list of ids. */
static enum err ids_value(struct fields *f, struct tokenizer *tok, const char *name,
                          const struct span_bytes *span, int add_special, struct ids *ids)
{
    struct json j;
    fields_json(f, &j, span->at, span->n);
    enum json_kind kind = json_next(&j);
    enum err err;
    if (kind == JSON_STR)
        err = ids_encode(f, tok, name, j.str, j.n_str, add_special, ids);
    else if (kind == JSON_ARRAY_BEGIN)
        err = ids_list(f, &j, name, ids);
    else if (kind == JSON_ERROR)
        err = row_fail_json(f->error, j.err);
    else
        err = row_fail(f->error, "invalid_request",
                       "%s must be a string or a list of token ids, is %s", name,
                       json_kind_name(kind));
    json_close(&j);
    return err;
}

/* The same for a field that may only be one of the two. */
static enum err ids_field(struct fields *f, struct tokenizer *tok, const char *name,
                          const struct span_bytes *span, int is_list, struct ids *ids)
{
    int starts_list = f->line[span->at] == '[', starts_text = f->line[span->at] == '"';
    if (is_list ? starts_list : starts_text)
        return ids_value(f, tok, name, span, 0, ids);
    return row_fail(f->error, "invalid_request", "%s must be %s", name,
                    is_list ? "a list of token ids" : "a string");
}

/* ---- chat ---- */

/* Counts values before jansson builds trees of them, which cost about 100 bytes each. */
static enum err count_nodes(struct fields *f)
{
    const struct span_bytes *const spans[] = {&f->messages, &f->tools, &f->chat_template_kwargs};
    int64_t n = 0;
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++) {
        struct json j;
        if (!spans[i]->set)
            continue;
        fields_json(f, &j, spans[i]->at, spans[i]->n);
        while (json_next(&j) != JSON_END && j.last != JSON_ERROR && n <= REQUEST_NODES_MAX)
            n++;
        json_close(&j);
    }
    if (n > REQUEST_NODES_MAX)
        return row_fail(f->error, "invalid_request",
                        "messages, tools and chat_template_kwargs hold more than %d JSON values",
                        REQUEST_NODES_MAX);
    return OK;
}

/* *out: a new reference, or NULL when the field is not given. */
static enum err load_span(struct fields *f, const char *name, const struct span_bytes *span,
                          json_t **out)
{
    json_error_t why;
    *out = NULL;
    if (!span->set)
        return OK;
    *out = json_loadb(f->line + span->at, (size_t)span->n,
                      JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    return *out ? OK : row_fail(f->error, "invalid_request", "%s: %s", name, why.text);
}

static enum err ids_chat(struct fields *f, struct tokenizer *tok, const struct template *tmpl,
                         struct ids *ids)
{
    struct chat chat = {.tmpl = tmpl,
                        .tok = tok,
                        .epoch = f->defaults->epoch,
                        .ignore = &f->defaults->ignore,
                        .ignored = &f->r->ignored,
                        .error = f->error};
    char *text = NULL;
    int64_t n = 0;
    TRY(count_nodes(f));
    if (!tok)
        return no_tokenizer(f, "messages");
    enum err err = load_span(f, "messages", &f->messages, &chat.messages);
    if (err == OK)
        err = load_span(f, "tools", &f->tools, &chat.tools);
    if (err == OK)
        err = load_span(f, "chat_template_kwargs", &f->chat_template_kwargs, &chat.kwargs);
    if (err == OK)
        err = chat_render(&chat, &text, &n);
    if (err == OK)
        err = ids_encode(f, tok, "messages", text, n, 0, ids);
    free(text);
    json_decref(chat.messages);
    json_decref(chat.tools);
    json_decref(chat.kwargs);
    return err;
}

/* ---- rules over several fields ---- */

/* An empty prompt becomes the BOS token, if the model has one. */
static enum err need_tokens(struct fields *f, struct tokenizer *tok, const char *name,
                            struct ids *ids)
{
    if (ids->n > 0)
        return OK;
    int32_t bos = tok ? tokenizer_bos(tok) : -1;
    if (bos < 0 || bos >= f->defaults->vocab)
        return row_fail(f->error, "invalid_request",
                        "%s is empty, and the model has no token to begin with", name);
    TRY(ids_room(ids, 1));
    ids->p[0] = bos;
    ids->n = 1;
    return OK;
}

/* Moves the ids into the request, with room for n_cap. */
static enum err take_tokens(struct request *r, struct ids *ids, int n_prompt, int64_t n_cap)
{
    int32_t *tokens = realloc(ids->p, (size_t)n_cap * sizeof *tokens);
    if (!tokens)
        return fail(ERR_FIT, "no memory for %lld tokens", (long long)n_cap);
    r->tokens = tokens;
    r->n_prompt = n_prompt;
    r->n_tokens = (int)ids->n;
    r->n_cap = (int)n_cap;
    *ids = (struct ids){0};
    return OK;
}

static enum err prompt_tokens(struct fields *f, struct tokenizer *tok, const struct template *tmpl,
                              struct ids *ids)
{
    struct request *r = f->r;
    if (f->prompt.set + f->messages.set + f->prompt_token_ids.set != 1)
        return row_fail(f->error, "invalid_request", "%s",
                        r->form == FORM_BATCH_CHAT
                            ? "needs exactly one of messages, prompt_token_ids"
                        : r->form == FORM_BATCH_COMPLETION
                            ? "needs exactly one of prompt, prompt_token_ids"
                            : "needs exactly one of prompt, messages, prompt_token_ids");
    if (!f->messages.set && (f->tools.set || f->chat_template_kwargs.set))
        return row_fail(f->error, "invalid_request", "%s needs messages",
                        f->tools.set ? "tools" : "chat_template_kwargs");
    if (f->tools.set && f->no_tools)
        TRY(row_lacks(&f->defaults->ignore, &r->ignored, f->error, "tool_choice",
                      "tool_choice \"none\" is not supported beside tools, only \"auto\" is"));
    const char *name = f->messages.set ? "messages" : "prompt";
    if (f->messages.set)
        TRY(ids_chat(f, tok, tmpl, ids));
    else if (f->prompt.set)
        TRY(ids_value(f, tok, name, &f->prompt, 1, ids));
    else
        TRY(ids_field(f, tok, "prompt_token_ids", &f->prompt_token_ids, 1, ids));
    TRY(need_tokens(f, tok, name, ids));
    if (ids->n > f->defaults->context || ids->n >= row_max(f)) // nothing could be generated
        return too_many(f, name, ids->n);
    return OK;
}

static enum err copy_stops(struct request *r, const struct request_defaults *d)
{
    if (d->n_stops == 0)
        return OK;
    r->stops = calloc((size_t)d->n_stops, sizeof *r->stops);
    for (; r->stops && r->n_stops < d->n_stops; r->n_stops++) {
        struct text *stop = &r->stops[r->n_stops];
        stop->p = strdup(d->stops[r->n_stops]);
        if (!stop->p)
            break;
        stop->n = (int64_t)strlen(stop->p);
    }
    return r->n_stops == d->n_stops ? OK : fail(ERR_FIT, "no memory for stop strings");
}

static void take_sampling(struct fields *f)
{
    struct sampling *s = &f->r->sampling;
    s->temperature = f->temperature < TEMPERATURE_LOW ? 0 : f->temperature;
    s->top_p = f->top_p;
    s->min_p = f->min_p;
    s->top_k = f->top_k > 0 ? (int)f->top_k : 0;
    s->seed = (uint64_t)f->seed;
    s->presence_penalty = f->presence_penalty;
    s->frequency_penalty = f->frequency_penalty;
    s->repetition_penalty = f->repetition_penalty;
}

static enum err parse_generate(struct fields *f, struct tokenizer *tok, const struct template *tmpl,
                               struct ids *ids)
{
    struct request *r = f->r;
    if (f->max_tokens >= 0 && f->max_completion_tokens >= 0 &&
        f->max_tokens != f->max_completion_tokens)
        return row_fail(f->error, "invalid_request", "max_tokens and max_completion_tokens differ");
    int64_t max_tokens = max_i64(f->max_tokens, f->max_completion_tokens);
    if (max_tokens < 0)
        max_tokens = f->defaults->max_tokens;
    if (max_tokens <= 0)
        max_tokens = r->form == FORM_BATCH_COMPLETION ? MAX_TOKENS_SHORT : MAX_TOKENS_LONG;
    if (f->min_tokens > max_tokens)
        return row_fail(f->error, "invalid_request", "min_tokens is greater than max_tokens (%lld)",
                        (long long)max_tokens);
    if (f->top_logprobs >= 0 && !r->logprobs && f->top_logprobs > 0)
        return row_fail(f->error, "invalid_request", "top_logprobs needs logprobs");
    if (f->top_logprobs >= 0)
        r->top_logprobs = (int)f->top_logprobs;
    r->echo = (int)f->echo;
    if (r->echo && r->form == FORM_BATCH_CHAT)
        return row_fail(f->error, "invalid_request", "echo is for prompts, not for messages");
    r->ignore_eos = (int)f->ignore_eos;
    if (!f->stops_set)
        TRY(copy_stops(r, f->defaults));
    if (r->n_stops > 0 && !tok)
        return row_fail(f->error, "invalid_request", "stop needs a tokenizer, the model has none");
    take_sampling(f);
    TRY(prompt_tokens(f, tok, tmpl, ids));
    int64_t n_cap = min_i64(ids->n + max_tokens, row_max(f));
    r->sampling.min_tokens = (int)min_i64(max_i64(f->min_tokens, 0), n_cap - ids->n);
    return take_tokens(r, ids, (int)ids->n, n_cap);
}

static enum err score_part(struct fields *f, struct tokenizer *tok, const char *name,
                           const struct span_bytes *text, const struct span_bytes *list,
                           struct ids *ids)
{
    if (text->set + list->set != 1)
        return row_fail(f->error, "invalid_request", "needs exactly one of %s, %s_ids", name, name);
    char list_name[32];
    snprintf(list_name, sizeof list_name, "%s_ids", name);
    return text->set ? ids_field(f, tok, name, text, 0, ids)
                     : ids_field(f, tok, list_name, list, 1, ids);
}

static enum err parse_score(struct fields *f, struct tokenizer *tok, struct ids *ids,
                            struct ids *more)
{
    TRY(score_part(f, tok, "context", &f->context, &f->context_ids, ids));
    TRY(need_tokens(f, tok, "context", ids));
    TRY(score_part(f, tok, "continuation", &f->continuation, &f->continuation_ids, more));
    int n_prompt = (int)ids->n;
    int64_t n = ids->n + more->n;
    if (n - 1 > row_max(f)) // the last token is never computed on, only predicted
        return row_fail(f->error, "context_length_exceeded",
                        "context + continuation has %lld tokens, the model's context is %d (%s)",
                        (long long)n, f->defaults->context,
                        row_max(f) > f->defaults->context ? "a smaller --kv-budget goes further"
                                                          : "--kv-positions slot goes beyond it");
    if (n_prompt - (more->n == 0) > f->defaults->context)
        return too_many(f, "context", n_prompt);
    TRY(ids_room(ids, n));
    if (more->n > 0)
        memcpy(ids->p + n_prompt, more->p, (size_t)more->n * sizeof *ids->p);
    ids->n = n;
    f->r->sampling.repetition_penalty = 1;
    f->r->logprobs = 1;
    return take_tokens(f->r, ids, n_prompt, n);
}

/* ---- entry points ---- */

static void hash_row(struct fields *f)
{
    struct request *r = f->r;
    const char *body = f->body.set ? f->line + f->body.at : f->line;
    uint64_t hash = mix64((uint64_t)r->index + 1);
    hash = hash_bytes(r->custom_id, r->n_custom_id, hash);
    r->hash = hash_bytes(body, f->body.set ? f->body.n : f->n_bytes, hash);
}

static void fields_init(struct fields *f, struct request *r, const struct request_defaults *d,
                        struct row_error *error)
{
    *f = (struct fields){.r = r,
                         .defaults = d,
                         .error = error,
                         .max_tokens = -1,
                         .max_completion_tokens = -1,
                         .min_tokens = -1,
                         .top_logprobs = -1,
                         .top_k = d->top_k,
                         .seed = d->has_seed ? (int64_t)d->seed : 0,
                         .temperature = d->temperature < 0 ? 1 : d->temperature,
                         .top_p = d->top_p,
                         .min_p = d->min_p,
                         .repetition_penalty = d->repetition_penalty,
                         .ignore_eos = d->ignore_eos};
}

enum err request_parse(struct request *r, enum request_kind kind, const char *line, int64_t n_bytes,
                       int64_t index, int64_t line_number, const struct request_defaults *defaults,
                       struct tokenizer *tokenizer, const struct template *tmpl,
                       struct row_error *error)
{
    struct fields f;
    *r = (struct request){.index = index, .line = line_number, .kind = (int)kind};
    r->form = kind == REQUEST_SCORE ? FORM_SCORE : FORM_PLAIN;
    memset(error, 0, sizeof *error);
    fields_init(&f, r, defaults, error);
    f.line = line;
    f.n_bytes = n_bytes;
    snprintf(f.where, sizeof f.where, "line %lld", (long long)line_number);
    enum err err = fields_form(&f, kind);
    if (err == OK)
        err = fields_read(&f);
    if (!r->custom_id && err != ERR_FIT) {
        enum err named = default_id(r);
        err = named == OK ? err : named;
    }
    if (r->custom_id)
        hash_row(&f);
    struct ids ids = {0}, more = {0};
    if (err == OK)
        err = kind == REQUEST_SCORE ? parse_score(&f, tokenizer, &ids, &more)
                                    : parse_generate(&f, tokenizer, tmpl, &ids);
    free(ids.p);
    free(more.p);
    return err;
}

enum err request_read_id(const char *line, int64_t n_bytes, int64_t line_number,
                         struct text *custom_id)
{
    struct request r = {.line = line_number};
    struct row_error error;
    struct fields f = {.r = &r, .error = &error, .line = line, .n_bytes = n_bytes, .where = "line"};
    enum err err = fields_form(&f, REQUEST_GENERATE);
    if (err == ERR_ROW) // the id of a bad row counts, too
        err = OK;
    if (err == OK && !r.custom_id)
        err = default_id(&r);
    if (err == OK) {
        *custom_id = (struct text){r.custom_id, r.n_custom_id};
        r.custom_id = NULL;
    }
    request_free(&r);
    return err;
}

enum err request_from_ids(struct request *r, enum request_kind kind, int64_t index,
                          const int32_t *ids, int n_prompt, int n_tokens, int n_cap)
{
    CHECK(n_prompt > 0 && n_prompt <= n_tokens && n_tokens <= n_cap);
    *r = (struct request){.index = index,
                          .line = index + 1,
                          .kind = (int)kind,
                          .form = kind == REQUEST_SCORE ? FORM_SCORE : FORM_PLAIN,
                          .n_prompt = n_prompt,
                          .n_tokens = n_tokens,
                          .n_cap = n_cap,
                          .logprobs = kind == REQUEST_SCORE};
    r->sampling.top_p = r->sampling.repetition_penalty = 1;
    r->tokens = malloc((size_t)n_cap * sizeof *r->tokens);
    if (!r->tokens || default_id(r) != OK) {
        request_free(r);
        return fail(ERR_FIT, "no memory for %d tokens", n_cap);
    }
    memcpy(r->tokens, ids, (size_t)n_tokens * sizeof *ids);
    return OK;
}
