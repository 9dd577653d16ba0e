/* engine/api/sluice.h - libsluice: generation and scoring of many rows with a language model that
 * is larger than memory.
 *
 *     struct sluice *s;
 *     const struct sluice_option options[] = {{"mem-ram", "2G"}, {"max-tokens", "64"}};
 *     if (sluice_open(&s, "SmolLM2-135M.Q4_1.gguf", options, 2) == SLUICE_OK)
 *         sluice_run(s, "in.jsonl", "out.jsonl", NULL);
 *     if (sluice_code(s) != SLUICE_OK)
 *         fprintf(stderr, "%s\n", sluice_error(s));
 *     sluice_close(s);
 *
 * A handle is a model opened on this machine with flags of the program. Every function that returns
 * int returns a sluice_code (the exit codes of the program) and stores a sentence in the handle.
 * Several handles may be open in one process; each has its own memory, threads and rings. A handle
 * may be used by one thread at a time, except sluice_stop(), which any thread, a signal handler,
 * and the callbacks for rows and progress may call. Callbacks may call nothing else on the handle.
 * Strings are UTF-8. A string without a length ends in NUL. */
#ifndef ENGINE_API_SLUICE_H
#define ENGINE_API_SLUICE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SLUICE_API __attribute__((visibility("default")))

enum sluice_code {
    SLUICE_OK = 0,
    SLUICE_INTERNAL = 1,
    SLUICE_USAGE = 2, // invalid option or call
    SLUICE_ROWS = 3,  // finished; some rows have failed
    SLUICE_FIT = 4, // does not fit into the memory; the sentence names the option and the size that
                    // would fit
    SLUICE_INPUT = 5,   // bad model or input file
    SLUICE_DEVICE = 6,  // the GPU failed
    SLUICE_CORRUPT = 7, // stored bytes differ from their checksums
    SLUICE_JOB = 8,     // OUT belongs to another job, or another process works on it
    SLUICE_DISK = 9,    // a disk failed or is full; the same call resumes
    SLUICE_STOPPED = 75 // by sluice_stop() or a time limit; the same call resumes
};

struct sluice;

/* A flag of `sluice run` without its dashes; value NULL: a switch. `sluice help run` lists them.
 * Unlike the program, a handle prints no messages and no progress unless the options "verbose" or
 * "progress" are set; these print to stderr. */
struct sluice_option {
    const char *name, *value;
};

/* Opens a model: a Hugging Face folder, a .gguf file, a pack or configs/NAME.cfg. The first time,
 * the model is packed into the cache, which takes minutes for a large model. *s is NULL only if the
 * handle could not be allocated; after any other error *s holds the sentence. Close *s. */
SLUICE_API int sluice_open(struct sluice **s, const char *model,
                           const struct sluice_option *options, int n);
/* Accepts NULL. */
SLUICE_API void sluice_close(struct sluice *s);

/* The code of the last call on the handle, and its sentence "FILE: WHERE: WHAT (hint)", which is ""
 * after SLUICE_OK. Valid until the next call. */
SLUICE_API int sluice_code(const struct sluice *s);
SLUICE_API const char *sluice_error(const struct sluice *s);
/* Makes the call in progress return SLUICE_STOPPED after its current step. Between two calls it has
 * no effect, so a caller that does not know whether a call has begun must repeat it.
 * Async-signal-safe. */
SLUICE_API void sluice_stop(struct sluice *s);

struct sluice_model {
    int context;      // tokens of the longest row
    int32_t bos, eos; // ids of the tokens that begin and end a text; -1: the model has none
};
SLUICE_API int sluice_model(struct sluice *s, struct sluice_model *model);

/* ---- text ---- */

/* These three need a model with a tokenizer: else SLUICE_INPUT. SLUICE_USAGE: a text is not UTF-8,
 * an id is not in the vocabulary, or the template rejects the conversation. */

/* Encodes n bytes of text; special tokens written in the text become their ids. add_special 1: adds
 * the tokens that the tokenizer puts around a prompt (often BOS). The caller frees *ids; NULL on
 * error. */
SLUICE_API int sluice_encode(struct sluice *s, const char *text, int64_t n, int add_special,
                             int32_t **ids, int64_t *n_ids);
/* Decodes n ids; skip_special 1: without special tokens. Bytes that are not UTF-8 become U+FFFD.
 * The caller frees *text: *n_text bytes, then NUL; NULL on error. */
SLUICE_API int sluice_decode(struct sluice *s, const int32_t *ids, int64_t n, int skip_special,
                             char **text, int64_t *n_text);
/* Renders the model's chat template for a row with "messages", and optionally "tools" and
 * "chat_template_kwargs", as in a line of the input of `sluice run`. The text contains the special
 * tokens: encode it without add_special. The caller frees *text, as above.
 *     {"messages": [{"role": "user", "content": "Hi"}],
 *      "chat_template_kwargs": {"add_generation_prompt": true}} */
SLUICE_API int sluice_chat_prompt(struct sluice *s, const char *json, char **text, int64_t *n_text);

/* ---- in memory ---- */

/* A JSON object like a line of the input of `sluice run` (prompt, messages or prompt_token_ids, and
 * fields such as max_tokens, temperature, logprobs) or of `sluice score` (context and continuation,
 * or context_ids and continuation_ids). */
struct sluice_request {
    const char *json;
};

/* The result of requests[index]. Pointers are valid during the call. */
struct sluice_result {
    int64_t index;
    const char *error_code, *error; // NULL: the row succeeded
    const char *text;               // n_text bytes, then NUL
    int64_t n_text;
    const int32_t *tokens; // output tokens; scored rows: the continuation
    int n_tokens;
    int n_prompt;              // tokens of the prompt
    const char *finish_reason; // "stop" or "length"; NULL for scored rows
    const float *logprobs; // [n_logprobs] natural logarithms, one per token; NULL: not requested
    int n_logprobs;
    double logprob; // scored rows: the sum of logprobs
    int is_greedy;  // scored rows: 1 if every token had the highest probability
};

/* Called when a row finishes. A value other than 0 stops the call with SLUICE_STOPPED. */
typedef int sluice_result_fn(void *ctx, const struct sluice_result *result);

/* Generates for n requests and calls `result` once for each. The requests are planned as one job:
 * many at once are far faster than one at a time. SLUICE_ROWS: some have failed; their results
 * contain the error. */
SLUICE_API int sluice_batch(struct sluice *s, const struct sluice_request *requests, int n,
                            sluice_result_fn *result, void *ctx);
/* Scores the continuations of n requests. */
SLUICE_API int sluice_score_batch(struct sluice *s, const struct sluice_request *requests, int n,
                                  sluice_result_fn *result, void *ctx);
/* Natural log-probabilities of ids[n_prompt], ..., ids[n - 1], each given all ids before it, into
 * logprobs[n - n_prompt]. */
SLUICE_API int sluice_score(struct sluice *s, const int32_t *ids, int n, int n_prompt,
                            float *logprobs);

/* ---- jobs on files ---- */

struct sluice_progress {
    int64_t rows, rows_done, rows_failed; // rows_done includes rows_failed
    int64_t output_tokens;                // generated by this call
    double elapsed_s, left_s;             // left_s < 0: unknown
};

struct sluice_events {
    void *ctx;
    void (*progress)(
        void *ctx, const struct sluice_progress *progress); // about once a second; NULL: not wanted
};

/* Generates for every row of `in` into `out`, as `sluice run` does: durable; after a stop, a kill
 * or a power cut the same call resumes. events may be NULL. Writes only `out` and its companions
 * (out.partial, .journal, .job.json, ...). */
SLUICE_API int sluice_run(struct sluice *s, const char *in, const char *out,
                          const struct sluice_events *events);
/* Scores every row of `in`, as `sluice score` does. */
SLUICE_API int sluice_score_run(struct sluice *s, const char *in, const char *out,
                                const struct sluice_events *events);
/* The summary of the last sluice_run() or sluice_score_run(), as JSON, as written by --summary of
 * the program; without plan and times if `out` was already complete. The caller frees *json.
 * SLUICE_USAGE: there was no such call. */
SLUICE_API int sluice_summary_json(struct sluice *s, char **json);

/* ---- plans ---- */

/* The rows of `in`; in NULL: n_rows rows of prompt_len tokens that generate gen_len tokens each. */
struct sluice_work {
    const char *in;
    int64_t n_rows, prompt_len, gen_len;
};

struct sluice_plan {
    int64_t rows_at_once;
    int layers, layers_resident; // all layers; layers whose weights stay in memory
    int64_t device_bytes, ram_bytes, disk_bytes;
    double seconds, tokens_per_s; // output tokens
    const char *limited_by;       // "cpu", "gpu", "nvme-read", ...
};

/* Predicts a job on this machine, or on the machine of the option "machine". Runs nothing. */
SLUICE_API int sluice_plan(struct sluice *s, const struct sluice_work *work,
                           struct sluice_plan *plan);
/* The output of `sluice plan --json`. The caller frees *json. */
SLUICE_API int sluice_plan_json(struct sluice *s, const struct sluice_work *work, char **json);

SLUICE_API const char *sluice_version(void);

#ifdef __cplusplus
}
#endif

#endif
