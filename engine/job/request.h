/* engine/job/request.h - one prompt and what to generate: the numbers that the line needs, and the
 * text that only the job needs.
 *
 * Owns: the parsed row. request_parse() checks every field of a row; an unknown field makes an
 * error row, never an abort. */
#ifndef ENGINE_JOB_REQUEST_H
#define ENGINE_JOB_REQUEST_H

#include "engine/job/ignore.h"
#include "engine/text/template.h"
#include "engine/text/token.h"
#include "kernels/ops.h"

enum request_kind { REQUEST_GENERATE, REQUEST_SCORE };
/* Bytes with a length. They may contain NULs, and one more NUL follows them. */
struct text {
    char *p;
    int64_t n;
};
enum request_form { FORM_BATCH_CHAT, FORM_BATCH_COMPLETION, FORM_PLAIN, FORM_SCORE };

/* How a token is chosen. Penalties and logit_bias act first, ties go to the lowest id. */
struct sampling {
    double temperature;  // 0: greedy
    double top_p, min_p; // 1 and 0: off
    int top_k;           // 0: off; at most HEAD_SAMPLE_MAX act
    uint64_t seed;
    double presence_penalty, frequency_penalty, repetition_penalty; // 0, 0, 1: off
    int n_bias;                                                     // logit_bias entries
    struct logit_edit *bias; // owned by the request; sorted by id, repeat = 1
    int min_tokens;          // stops are banned before this many
};

struct request {
    int64_t index;   // row of the input, from 0
    int64_t line;    // its line, from 1
    int kind;        // enum request_kind
    int form;        // enum request_form
    uint64_t hash;   // of (row number, custom_id, body): id and request_id
    char *custom_id; // owned; [n_custom_id]; "row-N", N its line, when the row has none
    int64_t n_custom_id;
    int has_custom_id;

    int32_t *tokens; // owned; [n_cap] prompt, then known or generated tokens
    int n_prompt;    // one prompt span
    int n_tokens;    // known so far; > n_prompt at the start for score and for resumed rows
    int n_cap;       // n_prompt + most tokens to generate (score: + continuation)

    struct sampling sampling;
    int ignore_eos;
    int n_stops;        // stop strings
    struct text *stops; // owned, as are the texts
    int n_stop_ids;
    int32_t *stop_ids; // owned
    int logprobs;      // 1: log-probability of every output token
    int top_logprobs;  // alternatives per token
    int echo;          // the prompt is part of the text (and of the logprobs)
    uint32_t ignored;  // bit i: the row has the field request_defaults.ignore.names[i]
};

/* Values for fields that a row does not have. */
struct request_defaults {
    int max_tokens;     // 0: by form (completions 16, chat and plain 512)
    double temperature; // < 0: 1
    double top_p, min_p;
    int top_k;
    double repetition_penalty;
    int has_seed;
    uint64_t seed;
    int n_stops;
    char **stops; // borrowed
    int ignore_eos;
    struct ignore_list ignore; // fields that are ignored although sluice lacks them
    int context;    // the model's: max_tokens is cut so that the row fits it; a longer prompt is an
                    // error row
    int tokens_max; // of a row, where that may be more than the context (--kv-positions slot); else
                    // 0
    int vocab;      // token ids must be below
    int64_t epoch;  // the clock of chat templates and of `created`: SOURCE_DATE_EPOCH, or 0
};

/* Codes that, if all rows have them, mean a wrong file or model (scan_wrong_file). */
#define ROW_NO_JSON      "invalid_json"
#define ROW_NO_TOKENIZER "no_tokenizer"

#define REQUEST_STOPS_MAX  64                  // stop strings, and stop_token_ids
#define REQUEST_STOP_BYTES 1024                // of one stop string
#define REQUEST_BIAS_MAX   1024                // logit_bias entries
#define REQUEST_ID_BYTES   (64 << 10)          // of a custom_id
#define REQUEST_NODES_MAX  65536               // JSON values in messages, tools and their kin
#define REQUEST_FIELDS_MAX 256                 // in one object
#ifndef REQUEST_TEXT_BYTES                     // `make fuzz` asks for less
#define REQUEST_TEXT_BYTES ((int64_t)16 << 20) // of rendered messages
#endif

/* Parses one line of `run` (or `score`) input. ERR_ROW: *error says why, and r has what an error
 * row shows (index, line, form, hash, custom_id). ERR_FIT: no memory. Call request_free() in any
 * case. tokenizer and tmpl may be NULL (ids only). Special tokens: of a chat those that the model's
 * template writes (request_chat.h), of a prompt those that the tokenizer adds, of a score row none.
 * An empty prompt or context becomes the BOS token, if the model has one. A temperature below
 * 0.0001 is greedy. */
enum err request_parse(struct request *r, enum request_kind kind, const char *line, int64_t n_bytes,
                       int64_t index, int64_t line_number, const struct request_defaults *defaults,
                       struct tokenizer *tokenizer, const struct template *tmpl,
                       struct row_error *error);
/* Only the custom_id of a line, also of a bad row: its bytes are owned by the caller, "row-N" if
 * the row has none. ERR_FIT. */
enum err request_read_id(const char *line, int64_t n_bytes, int64_t line_number,
                         struct text *custom_id);
/* A greedy request from token ids (copied): n_prompt of prompt, then n_tokens - n_prompt known
 * ones; room for n_cap. ERR_FIT. */
enum err request_from_ids(struct request *r, enum request_kind kind, int64_t index,
                          const int32_t *ids, int n_prompt, int n_tokens, int n_cap);
/* Frees what the request owns and zeroes it; accepts a zeroed one. */
void request_free(struct request *r);

#endif
