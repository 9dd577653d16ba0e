/* engine/job/request_fields.c - see request_fields.h. To add a field: a member of struct fields and
 * one row of the table.
 *
 * Note: null is "not given" for every field but custom_id, because clients write unset options as
 * null. */
#include "engine/job/request_fields.h"

#include "engine/data/near.h"
#include "engine/job/result.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum err row_fail(struct row_error *e, const char *code, const char *fmt, ...)
{
    va_list args;
    snprintf(e->code, sizeof e->code, "%s", code);
    va_start(args, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, args);
    va_end(args);
    return ERR_ROW;
}

/* Cuts the line number off the parser's message: error rows and reports have it already. */
enum err row_fail_json(struct row_error *e, enum err err)
{
    const char *text = err_text(), *where = strstr(text, ": ");
    return err == ERR_INPUT ? row_fail(e, ROW_NO_JSON, "%s", where ? where + 2 : text) : err;
}

void fields_json(const struct fields *f, struct json *j, int64_t at, int64_t n)
{
    json_init(j, f->line + at, n, f->where, JSON_DEPTH_MAX);
}

/* ---- one value ---- */

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

enum field_form { BATCH = 1, CHAT = 2, COMPLETION = 4, PLAIN = 8, SCORE = 16 };
#define GENERATED (CHAT | COMPLETION | PLAIN)

enum field_kind { FIELD_INT, FIELD_NUMBER, FIELD_BOOL, FIELD_SPAN, FIELD_CALL };

struct field {
    const char *name;
    int forms;
    enum field_kind kind;
    size_t at; // in struct fields
    double min, max;
    enum err (*call)(struct fields *f, struct json *j);
};

static enum err bad_value(struct fields *f, const struct field *field, const struct json *j)
{
    if (field->kind == FIELD_INT)
        return row_fail(f->error, "invalid_request", "%s must be an integer from %lld to %lld",
                        field->name, (long long)field->min, (long long)field->max);
    if (field->kind == FIELD_NUMBER) {
        char min[NUMBER_TEXT_BYTES], max[NUMBER_TEXT_BYTES];
        number_text(min, field->min);
        number_text(max, field->max);
        return row_fail(f->error, "invalid_request", "%s must be a number from %s to %s",
                        field->name, min, max);
    }
    return row_fail(f->error, "invalid_request", "%s must be true or false, is %s", field->name,
                    json_kind_name(j->last));
}

/* Skips the rest of j's current value. */
static enum err skip_value(struct fields *f, struct json *j)
{
    enum err err = json_skip(j);
    return err == OK ? OK : row_fail_json(f->error, err);
}

/* Stores the position of j's current value, to be parsed later. */
static enum err span_take(struct fields *f, const struct field *field, struct json *j)
{
    struct span_bytes *span = (void *)((char *)f + field->at);
    int64_t first = j->offset, base = j->buf - f->line;
    TRY(skip_value(f, j));
    *span = (struct span_bytes){.at = base + first, .n = j->pos - first, .set = 1};
    return OK;
}

static enum err field_read(struct fields *f, const struct field *field, struct json *j)
{
    enum json_kind kind = json_next(j); // the first token of the value
    char *at = (char *)f + field->at;
    if (kind == JSON_ERROR)
        return row_fail_json(f->error, j->err);
    if (kind == JSON_NIL)
        return OK;
    int is_int = kind == JSON_INT && !j->big;
    int in_range = j->f64 >= field->min && j->f64 <= field->max;
    switch (field->kind) {
    case FIELD_INT:
        if (!is_int || (double)j->i64 < field->min || (double)j->i64 > field->max)
            return bad_value(f, field, j);
        memcpy(at, &j->i64, sizeof j->i64);
        return OK;
    case FIELD_NUMBER:
        if ((kind != JSON_INT && kind != JSON_FLOAT) || !in_range)
            return bad_value(f, field, j);
        memcpy(at, &j->f64, sizeof j->f64);
        return OK;
    case FIELD_BOOL:
        if (kind != JSON_BOOL)
            return bad_value(f, field, j);
        memcpy(at, &j->i64, sizeof j->i64);
        return OK;
    case FIELD_SPAN:
        return span_take(f, field, j);
    case FIELD_CALL:
        return field->call(f, j);
    }
    return OK;
}

/* A copy of n bytes, followed by a NUL. NULL: no memory. */
static char *bytes_copy(const char *p, int64_t n)
{
    char *copy = malloc((size_t)n + 1);
    if (copy) {
        memcpy(copy, p, (size_t)n);
        copy[n] = 0;
    }
    return copy;
}

/* A copy of j's current string. */
static enum err string_copy(struct fields *f, const struct json *j, const char *name,
                            int64_t max_bytes, struct text *out)
{
    if (j->last != JSON_STR)
        return row_fail(f->error, "invalid_request", "%s must be a string, is %s", name,
                        json_kind_name(j->last));
    if (j->n_str > max_bytes)
        return row_fail(f->error, "invalid_request", "%s has %lld bytes, at most %lld are allowed",
                        name, (long long)j->n_str, (long long)max_bytes);
    *out = (struct text){bytes_copy(j->str, j->n_str), j->n_str};
    return out->p ? OK : fail(ERR_FIT, "no memory for %s", name);
}

/* Checks the type only: id_early() has the value. */
static enum err read_custom_id(struct fields *f, struct json *j)
{
    if (j->last == JSON_INT && !j->big)
        return OK;
    if (j->last != JSON_STR)
        return row_fail(f->error, "invalid_request",
                        "custom_id must be a string (or an integer), is %s",
                        json_kind_name(j->last));
    if (j->n_str > REQUEST_ID_BYTES)
        return row_fail(f->error, "invalid_request",
                        "custom_id has %lld bytes, at most %lld are allowed", (long long)j->n_str,
                        (long long)REQUEST_ID_BYTES);
    return OK;
}

/* {"type": "text"} is the only format that sluice can give. */
static enum err read_response_format(struct fields *f, struct json *j)
{
    char type[64] = "";
    if (j->last != JSON_OBJECT_BEGIN)
        return row_fail(f->error, "invalid_request", "response_format must be an object");
    while (json_next(j) == JSON_KEY) {
        int is_type = json_is(j, "type");
        if (is_type && json_next(j) == JSON_STR) {
            snprintf(type, sizeof type, "%s", j->str);
        } else if (is_type || json_skip(j) != OK) {
            return j->last == JSON_ERROR ? row_fail_json(f->error, j->err)
                                         : row_fail(f->error, "invalid_request",
                                                    "response_format.type must be a string");
        }
    }
    if (j->last == JSON_ERROR)
        return row_fail_json(f->error, j->err);
    if (strcmp(type, "text") == 0)
        return OK;
    return row_lacks(&f->defaults->ignore, &f->r->ignored, f->error, "response_format",
                     "response_format \"%s\" is not supported, only \"text\" is", type);
}

/* "auto" lets the model decide, as sluice does; "none" is checked together with tools later. */
static enum err read_tool_choice(struct fields *f, struct json *j)
{
    f->no_tools = j->last == JSON_STR && json_is(j, "none");
    if (f->no_tools || (j->last == JSON_STR && json_is(j, "auto")))
        return OK;
    TRY(row_lacks(&f->defaults->ignore, &f->r->ignored, f->error, "tool_choice",
                  "tool_choice %s%.40s%s is not supported, only \"auto\" is",
                  j->last == JSON_STR ? "\"" : "", j->last == JSON_STR ? j->str : "of a function",
                  j->last == JSON_STR ? "\"" : ""));
    return skip_value(f, j);
}

static enum err read_method(struct fields *f, struct json *j)
{
    f->has_method = 1;
    if (j->last != JSON_STR || !json_is(j, "POST"))
        return row_fail(f->error, "invalid_request", "method must be \"POST\"");
    return OK;
}

static enum err read_url(struct fields *f, struct json *j)
{
    if (j->last != JSON_STR)
        return row_fail(f->error, "invalid_request", "url must be a string, is %s",
                        json_kind_name(j->last));
    f->has_url = 1;
    if (json_is(j, "/v1/chat/completions"))
        f->r->form = FORM_BATCH_CHAT;
    else if (json_is(j, "/v1/completions"))
        f->r->form = FORM_BATCH_COMPLETION;
    else
        return row_fail(f->error, "unsupported_endpoint",
                        "url %.200s is not /v1/chat/completions or /v1/completions", j->str);
    return OK;
}

static enum err add_stop(struct fields *f, const struct json *j)
{
    struct request *r = f->r;
    if (r->n_stops == REQUEST_STOPS_MAX)
        return row_fail(f->error, "invalid_request", "stop has more than %d strings",
                        REQUEST_STOPS_MAX);
    if (!r->stops) {
        r->stops = calloc(REQUEST_STOPS_MAX, sizeof *r->stops);
        if (!r->stops)
            return fail(ERR_FIT, "no memory for stop strings");
    }
    if (j->last == JSON_STR && j->n_str == 0)
        return row_fail(f->error, "invalid_request", "stop must not be an empty string");
    TRY(string_copy(f, j, "stop", REQUEST_STOP_BYTES, &r->stops[r->n_stops]));
    r->n_stops++;
    return OK;
}

static enum err read_stop(struct fields *f, struct json *j)
{
    f->stops_set = 1;
    if (j->last != JSON_ARRAY_BEGIN)
        return add_stop(f, j);
    while (json_next(j) != JSON_ARRAY_END) {
        if (j->last == JSON_ERROR)
            return row_fail_json(f->error, j->err);
        TRY(add_stop(f, j));
    }
    return OK;
}

static enum err check_id(struct fields *f, const struct json *j, const char *name, int64_t at)
{
    if (j->last != JSON_INT || j->big || j->i64 < 0 || j->i64 >= f->defaults->vocab)
        return row_fail(f->error, "invalid_request",
                        "%s[%lld] must be a token id: an integer from 0 to %d", name, (long long)at,
                        f->defaults->vocab - 1);
    return OK;
}

static enum err read_stop_ids(struct fields *f, struct json *j)
{
    struct request *r = f->r;
    if (j->last != JSON_ARRAY_BEGIN)
        return row_fail(f->error, "invalid_request", "stop_token_ids must be a list of token ids");
    r->stop_ids = calloc(REQUEST_STOPS_MAX, sizeof *r->stop_ids);
    if (!r->stop_ids)
        return fail(ERR_FIT, "no memory for stop ids");
    while (json_next(j) != JSON_ARRAY_END) {
        if (j->last == JSON_ERROR)
            return row_fail_json(f->error, j->err);
        if (r->n_stop_ids == REQUEST_STOPS_MAX)
            return row_fail(f->error, "invalid_request", "stop_token_ids has more than %d ids",
                            REQUEST_STOPS_MAX);
        TRY(check_id(f, j, "stop_token_ids", r->n_stop_ids));
        r->stop_ids[r->n_stop_ids++] = (int32_t)j->i64;
    }
    return OK;
}

/* Keys are ids in decimal, as they were printed: no sign, no leading zero. */
static int64_t bias_id(const struct json *j)
{
    int64_t id = 0;
    if (j->n_str == 0 || j->n_str > 9 || (j->str[0] == '0' && j->n_str > 1))
        return -1;
    for (int64_t i = 0; i < j->n_str; i++) {
        if (j->str[i] < '0' || j->str[i] > '9')
            return -1;
        id = id * 10 + (j->str[i] - '0');
    }
    return id;
}

/* Keeps the list sorted; 0 when the id is there already. */
static int bias_insert(struct sampling *s, int32_t id, float add)
{
    int at = s->n_bias;
    while (at > 0 && s->bias[at - 1].id >= id)
        at--;
    if (at < s->n_bias && s->bias[at].id == id)
        return 0;
    memmove(s->bias + at + 1, s->bias + at, (size_t)(s->n_bias - at) * sizeof *s->bias);
    s->bias[at] = (struct logit_edit){.id = id, .repeat = 1, .add = add};
    s->n_bias++;
    return 1;
}

static enum err read_bias(struct fields *f, struct json *j)
{
    struct sampling *s = &f->r->sampling;
    if (j->last != JSON_OBJECT_BEGIN)
        return row_fail(f->error, "invalid_request", "logit_bias must be an object");
    s->bias = calloc(REQUEST_BIAS_MAX, sizeof *s->bias);
    if (!s->bias)
        return fail(ERR_FIT, "no memory for logit_bias");
    while (json_next(j) == JSON_KEY) {
        int64_t id = bias_id(j);
        if (id < 0 || id >= f->defaults->vocab)
            return row_fail(f->error, "invalid_request",
                            "logit_bias key \"%.40s\" is not a token id (0 to %d)", j->str,
                            f->defaults->vocab - 1);
        if (s->n_bias == REQUEST_BIAS_MAX)
            return row_fail(f->error, "invalid_request", "logit_bias has more than %d entries",
                            REQUEST_BIAS_MAX);
        enum json_kind kind = json_next(j);
        if (kind == JSON_ERROR)
            return row_fail_json(f->error, j->err);
        if ((kind != JSON_INT && kind != JSON_FLOAT) || !(fabs(j->f64) <= 100))
            return row_fail(f->error, "invalid_request",
                            "logit_bias of %lld must be a number from -100 to 100", (long long)id);
        if (!bias_insert(s, (int32_t)id, (float)j->f64))
            return row_fail(f->error, "invalid_request", "logit_bias names %lld twice",
                            (long long)id);
    }
    return j->last == JSON_ERROR ? row_fail_json(f->error, j->err) : OK;
}

/* true, or the completions form: how many alternatives. */
static enum err read_logprobs(struct fields *f, struct json *j)
{
    f->logprobs_set = 1;
    if (j->last == JSON_BOOL) {
        f->r->logprobs = (int)j->i64;
        return OK;
    }
    if (j->last != JSON_INT || j->big || j->i64 < 0 || j->i64 > HEAD_TOP_MAX)
        return row_fail(f->error, "invalid_request",
                        "logprobs must be true, false or an integer from 0 to %d", HEAD_TOP_MAX);
    f->r->logprobs = 1;
    f->r->top_logprobs = (int)j->i64;
    return OK;
}

static enum err read_seed(struct fields *f, struct json *j)
{
    if (j->last != JSON_INT || j->big)
        return row_fail(f->error, "invalid_request", "seed must be an integer of 64 bits");
    f->seed = j->i64;
    f->has_seed = 1;
    return OK;
}

/* ---- THE table ---- */

#define AT(member) offsetof(struct fields, member)
#define INT_MAX_D  2147483647.0

static const struct field fields_table[] = {
    {"custom_id", BATCH | PLAIN | SCORE, FIELD_CALL, 0, 0, 0, read_custom_id},
    {"method", BATCH, FIELD_CALL, 0, 0, 0, read_method},
    {"url", BATCH, FIELD_CALL, 0, 0, 0, read_url},
    {"body", BATCH, FIELD_SPAN, AT(body), 0, 0, NULL},
    {"prompt", COMPLETION | PLAIN, FIELD_SPAN, AT(prompt), 0, 0, NULL},
    {"messages", CHAT | PLAIN, FIELD_SPAN, AT(messages), 0, 0, NULL},
    {"tools", CHAT | PLAIN, FIELD_SPAN, AT(tools), 0, 0, NULL},
    {"chat_template_kwargs", CHAT | PLAIN, FIELD_SPAN, AT(chat_template_kwargs), 0, 0, NULL},
    {"prompt_token_ids", GENERATED, FIELD_SPAN, AT(prompt_token_ids), 0, 0, NULL},
    {"context", SCORE, FIELD_SPAN, AT(context), 0, 0, NULL},
    {"context_ids", SCORE, FIELD_SPAN, AT(context_ids), 0, 0, NULL},
    {"continuation", SCORE, FIELD_SPAN, AT(continuation), 0, 0, NULL},
    {"continuation_ids", SCORE, FIELD_SPAN, AT(continuation_ids), 0, 0, NULL},
    {"max_tokens", GENERATED, FIELD_INT, AT(max_tokens), 1, INT_MAX_D, NULL},
    {"max_completion_tokens", GENERATED, FIELD_INT, AT(max_completion_tokens), 1, INT_MAX_D, NULL},
    {"min_tokens", GENERATED, FIELD_INT, AT(min_tokens), 0, INT_MAX_D, NULL},
    {"temperature", GENERATED, FIELD_NUMBER, AT(temperature), 0, 100, NULL},
    {"top_p", GENERATED, FIELD_NUMBER, AT(top_p), 1e-9, 1, NULL},
    {"top_k", GENERATED, FIELD_INT, AT(top_k), -1, INT_MAX_D, NULL},
    {"min_p", GENERATED, FIELD_NUMBER, AT(min_p), 0, 1, NULL},
    {"seed", GENERATED, FIELD_CALL, 0, 0, 0, read_seed},
    {"stop", GENERATED, FIELD_CALL, 0, 0, 0, read_stop},
    {"stop_token_ids", GENERATED, FIELD_CALL, 0, 0, 0, read_stop_ids},
    {"ignore_eos", GENERATED, FIELD_BOOL, AT(ignore_eos), 0, 0, NULL},
    {"presence_penalty", GENERATED, FIELD_NUMBER, AT(presence_penalty), -2, 2, NULL},
    {"frequency_penalty", GENERATED, FIELD_NUMBER, AT(frequency_penalty), -2, 2, NULL},
    {"repetition_penalty", GENERATED, FIELD_NUMBER, AT(repetition_penalty), 0.01, 100, NULL},
    {"logit_bias", GENERATED, FIELD_CALL, 0, 0, 0, read_bias},
    {"logprobs", GENERATED, FIELD_CALL, 0, 0, 0, read_logprobs},
    {"top_logprobs", GENERATED, FIELD_INT, AT(top_logprobs), 0, HEAD_TOP_MAX, NULL},
    {"echo", GENERATED, FIELD_BOOL, AT(echo), 0, 0, NULL},
    {"response_format", GENERATED, FIELD_CALL, 0, 0, 0, read_response_format},
    {"tool_choice", GENERATED, FIELD_CALL, 0, 0, 0, read_tool_choice},
};

/* Fields that clients write and that change no answer here. */
static const char *const harmless[] = {"model",
                                       "user",
                                       "metadata",
                                       "store",
                                       "service_tier",
                                       "prediction",
                                       "safety_identifier",
                                       "parallel_tool_calls",
                                       "stream_options",
                                       "prompt_cache_key",
                                       "prompt_cache_retention"};

/* Fields that sluice lacks, with the values that ask for nothing: compact JSON, separated by
 * spaces. */
static const struct lacked {
    const char *name, *plain;
} lacked[] = {{"n", "1"},
              {"best_of", "1"},
              {"stream", "false"},
              {"functions", "[]"},
              {"function_call", "\"auto\" \"none\""},
              {"modalities", "[\"text\"]"},
              {"verbosity", "\"medium\""},
              {"suffix", "\"\""},
              {"reasoning_effort", ""},
              {"audio", ""},
              {"web_search_options", ""}};

/* Other names that --ignore-fields may have: fields of the table above whose value decides whether
 * sluice honours them, members of messages, and types of their parts. */
static const char *const partly[] = {
    "tools", "tool_choice", "response_format", "tool_calls", "image_url", "input_audio", "file"};

static const struct field *field_find(const struct json *j, int form)
{
    for (size_t i = 0; i < COUNT(fields_table); i++)
        if ((fields_table[i].forms & form) && json_is(j, fields_table[i].name))
            return &fields_table[i];
    return NULL;
}

static int is_one_of(const struct json *j, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (json_is(j, names[i]))
            return 1;
    return 0;
}

static const struct lacked *lacked_find(const struct json *j)
{
    for (size_t i = 0; i < COUNT(lacked); i++)
        if (json_is(j, lacked[i].name))
            return &lacked[i];
    return NULL;
}

/* j's current value as compact JSON; "" if it does not fit in cap bytes. */
static enum err value_text(struct fields *f, struct json *j, char *text, size_t cap)
{
    size_t n = 0;
    int64_t first = j->offset;
    int scalar = j->last != JSON_OBJECT_BEGIN && j->last != JSON_ARRAY_BEGIN;
    TRY(skip_value(f, j));
    for (int64_t at = first; at < j->pos; at++)
        if ((scalar || !strchr(" \t\r\n", j->buf[at])) && n < cap)
            text[n++] = j->buf[at];
    text[n < cap ? n : 0] = 0;
    return OK;
}

/* `word` in "a b c". */
static int is_word_of(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = words; n > 0 && (at = strstr(at, word)); at++)
        if ((at == words || at[-1] == ' ') && (at[n] == ' ' || !at[n]))
            return 1;
    return 0;
}

/* A field that sluice lacks, or a name that no table has. null is "not given" for them, too. */
static enum err field_lacked(struct fields *f, struct json *j)
{
    char name[104], value[48], hint[100] = "";
    const struct lacked *known = lacked_find(j);
    int is_known, honoured;
    snprintf(name, sizeof name, "%.100s", j->str);
    enum json_kind kind = json_next(j);
    if (kind == JSON_ERROR)
        return row_fail_json(f->error, j->err);
    TRY(value_text(f, j, value, sizeof value));
    if (kind == JSON_NIL || (known && is_word_of(known->plain, value)))
        return OK;
    if (known) {
        int shown = kind == JSON_STR || kind == JSON_INT || kind == JSON_BOOL;
        return row_lacks(&f->defaults->ignore, &f->r->ignored, f->error, name,
                         "%s%s%s is not supported%s%.*s%s", name, shown && value[0] ? " " : "",
                         shown ? value : "", known->plain[0] ? ", only " : "",
                         (int)strcspn(known->plain, " "), known->plain,
                         known->plain[0] ? " is" : "");
    }
    const char *near = field_near(name, &is_known, &honoured);
    if (near)
        snprintf(hint, sizeof hint, " (did you mean %s?)", near);
    else if (is_known)
        snprintf(hint, sizeof hint, " here");
    enum err err = row_lacks(&f->defaults->ignore, &f->r->ignored, f->error, name,
                             "field \"%s\" is not supported%s", name, hint);
    if (near || honoured) // a misspelled field: --ignore-fields is no advice
        f->error->field[0] = 0;
    return err;
}

/* Reads one member of an object; j's current token is its name. */
static enum err field_any(struct fields *f, struct json *j, int form)
{
    const struct field *field = field_find(j, form);
    if (field)
        return field_read(f, field, j);
    if (!is_one_of(j, harmless, COUNT(harmless)))
        return field_lacked(f, j);
    enum err err = json_skip(j);
    return err == OK ? OK : row_fail_json(f->error, err);
}

/* The i-th name of all tables together; NULL after the last. */
static const char *name_at(size_t i, int *honoured)
{
    *honoured = 0;
    if (i < COUNT(partly))
        return partly[i];
    i -= COUNT(partly);
    if (i < COUNT(harmless))
        return harmless[i];
    i -= COUNT(harmless);
    if (i < COUNT(lacked))
        return lacked[i].name;
    i -= COUNT(lacked);
    *honoured = 1;
    return i < COUNT(fields_table) ? fields_table[i].name : NULL;
}

const char *field_near(const char *name, int *known, int *honoured)
{
    const char *near = NULL, *other;
    int least = 0, is_honoured;
    *known = *honoured = 0;
    for (size_t i = 0; (other = name_at(i, &is_honoured)); i++) {
        *known = strcmp(name, other) == 0;
        if (*known || is_near(name, other, &least)) {
            near = other;
            *honoured = is_honoured;
        }
        if (*known)
            return NULL;
    }
    return near;
}

static enum err object_fields(struct fields *f, struct json *j, struct json_keys *keys, int form)
{
    if (json_next(j) != JSON_OBJECT_BEGIN)
        return row_fail(f->error, "invalid_request", "body must be an object");
    while (json_next(j) == JSON_KEY) {
        if (keys->n_keys == REQUEST_FIELDS_MAX)
            return row_fail(f->error, "invalid_request", "more than %d fields", REQUEST_FIELDS_MAX);
        enum err err = json_keys_add(keys, j);
        if (err != OK)
            return row_fail_json(f->error, err);
        TRY(field_any(f, j, form));
    }
    return j->last == JSON_ERROR ? row_fail_json(f->error, j->err) : OK;
}

/* One object of the line. */
static enum err object_read(struct fields *f, int64_t at, int64_t n, int form)
{
    struct json j;
    struct json_keys keys;
    fields_json(f, &j, at, n);
    json_keys_init(&keys);
    enum err err = object_fields(f, &j, &keys, form);
    json_keys_close(&keys);
    json_close(&j);
    return err;
}

/* Reads custom_id before anything can fail, so that error rows have it; read_custom_id() checks it.
 */
static enum err id_early(struct fields *f, struct json *j)
{
    char digits[24];
    struct text id = {digits, 0};
    json_next(j);
    if (j->last == JSON_STR)
        id = (struct text){(char *)(uintptr_t)j->str, j->n_str};
    else if (j->last == JSON_INT && !j->big) // a client's counter, kept as it is written
        id.n = snprintf(digits, sizeof digits, "%lld", (long long)j->i64);
    else
        return json_skip(j);
    if (id.n > REQUEST_ID_BYTES)
        return OK;
    char *copy = bytes_copy(id.p, id.n);
    if (!copy)
        return fail(ERR_FIT, "no memory for custom_id");
    free(f->r->custom_id);
    f->r->custom_id = copy;
    f->r->n_custom_id = id.n;
    f->r->has_custom_id = 1;
    return OK;
}

static enum err form_scan(struct fields *f, struct json *j, int *batch)
{
    if (json_next(j) != JSON_OBJECT_BEGIN)
        return j->last == JSON_ERROR ? row_fail_json(f->error, j->err)
                                     : row_fail(f->error, ROW_NO_JSON, "expected an object, is %s",
                                                json_kind_name(j->last));
    while (json_next(j) == JSON_KEY) {
        *batch |= json_is(j, "body") || json_is(j, "url") || json_is(j, "method");
        enum err err = json_is(j, "custom_id") ? id_early(f, j) : json_skip(j);
        if (err != OK)
            return row_fail_json(f->error, err);
    }
    if (j->last != JSON_ERROR)
        json_next(j); // nothing may follow
    return j->last == JSON_ERROR ? row_fail_json(f->error, j->err) : OK;
}

enum err fields_form(struct fields *f, enum request_kind kind)
{
    struct json j;
    int batch = 0;
    fields_json(f, &j, 0, f->n_bytes);
    enum err err = form_scan(f, &j, &batch);
    json_close(&j);
    f->r->form = kind == REQUEST_SCORE ? FORM_SCORE : batch ? FORM_BATCH_COMPLETION : FORM_PLAIN;
    return err;
}

enum err fields_read(struct fields *f)
{
    if (f->r->form == FORM_SCORE)
        return object_read(f, 0, f->n_bytes, SCORE);
    if (f->r->form == FORM_PLAIN)
        return object_read(f, 0, f->n_bytes, PLAIN);
    TRY(object_read(f, 0, f->n_bytes, BATCH));
    if (!f->has_url || !f->body.set)
        return row_fail(f->error, "invalid_request", "%s is missing", f->has_url ? "body" : "url");
    return object_read(f, f->body.at, f->body.n, f->r->form == FORM_BATCH_CHAT ? CHAT : COMPLETION);
}
