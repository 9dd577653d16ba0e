/* engine/job/request_fields.h - the fields that a row may have, with their types and ranges.
 *
 * Owns: THE table of fields. Private to request*.c. Refuses: tokens; rules over several fields. */
#ifndef ENGINE_JOB_REQUEST_FIELDS_H
#define ENGINE_JOB_REQUEST_FIELDS_H

#include "engine/data/json.h"
#include "engine/job/request.h"

/* Position of a value in the line. */
struct span_bytes {
    int64_t at, n;
    int set;
};

/* The values read from a row; numbers hold the defaults until then. */
struct fields {
    struct request *r;
    const struct request_defaults *defaults;
    struct row_error *error;
    const char *line; // borrowed
    int64_t n_bytes;
    char where[32]; // "line 12", for messages of the parser
    struct span_bytes body, prompt, messages, tools, chat_template_kwargs, prompt_token_ids,
        context, context_ids, continuation, continuation_ids;
    int has_url, has_method;
    int64_t max_tokens, max_completion_tokens, min_tokens; // -1: not given
    int64_t top_k, seed, top_logprobs;
    int has_seed;
    double temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
    int64_t ignore_eos, echo;
    int stops_set, logprobs_set, no_tools; // no_tools: tool_choice is "none"
};

/* Records the row's error, returns ERR_ROW. */
enum err row_fail(struct row_error *e, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Looks a name up in the tables of fields. *known 1: it is there. Else returns the nearest known
 * name, or NULL. *honoured: sluice honours the field of that known name. */
const char *field_near(const char *name, int *known, int *honoured);
/* Turns ERR_INPUT of the JSON parser into an error of the row; other errors stay. */
enum err row_fail_json(struct row_error *e, enum err err);

/* A parser over part of the line. */
void fields_json(const struct fields *f, struct json *j, int64_t at, int64_t n);
/* Reads the form of the row: batch (with a url, then *form says which), plain or score. The whole
 * line is checked for syntax. */
enum err fields_form(struct fields *f, enum request_kind kind);
/* Reads every field of the row into f and f->r. */
enum err fields_read(struct fields *f);

#endif
