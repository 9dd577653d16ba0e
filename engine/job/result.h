/* engine/job/result.h - one line of OUT: a finished request, or why a row failed, as JSON.
 *
 * Owns: key order, escapes and the form of numbers, so that equal results are equal bytes (no
 * locale, no clock). Refuses: files; deciding when a request is finished. */
#ifndef ENGINE_JOB_RESULT_H
#define ENGINE_JOB_RESULT_H

#include "engine/data/out.h"
#include "engine/job/request.h"

struct token_logprob {
    float logprob;
    int32_t id;
};

/* Log-probabilities of known tokens, by position. */
struct logprobs {
    int first; // position of value[0]: 1 with echo, else n_prompt
    int n;     // values so far; those not yet scored are NAN
    int cap;
    int top_cap;               // alternatives kept per token
    float *value;              // owned [cap]
    uint8_t *greedy;           // owned [cap]: the token is the argmax
    uint8_t *n_top;            // owned [cap]
    struct token_logprob *top; // owned [cap, top_cap], descending
};

/* Stores the log-probability of the token at pos >= first, whose id and raw logit are given, from
 * the head's result at position pos - 1. Overwrites. ERR_FIT. */
enum err logprobs_put(struct logprobs *l, int pos, int32_t id, float logit,
                      const struct head_result *s);
void logprobs_free(struct logprobs *l);

/* A finished request. Pointers are borrowed. */
struct result {
    const struct request *r;
    const struct tokenizer *tokenizer; // names of tokens; NULL: "token_id:N"
    const char *text;                  // output text, the prompt's first under echo
    int64_t n_text;
    const char *finish_reason;       // "stop" or "length"; NULL for a scored row
    const struct logprobs *logprobs; // NULL: not asked for
    const char *model;               // named in responses
    int dummy_weights;               // 1: the row says so
    int64_t created;                 // for responses: seconds since 1970
};

/* Appends the line and its newline: a batch response, a plain row or a score. text_offset counts
 * Unicode characters. Tokens whose bytes are no UTF-8 by themselves are written "bytes:\xHH...". */
void result_line(struct out *o, const struct result *res);
/* Appends an error row. r: what request_parse could read of the row. */
void result_error_line(struct out *o, const struct request *r, const struct row_error *error);

/* Sum of the log-probabilities of a scored row, and whether each token was the argmax. */
double result_logprob(const struct result *res, int *is_greedy);

#endif
