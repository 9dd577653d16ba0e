/* engine/job/job.h - the job: reads rows of the input, writes rows of OUT, loses none in between.
 *
 * Owns: the input file and its index, the queue, OUT.partial, OUT.journal, OUT.job.json, the lock,
 * and the text side of live rows (detokenizer, stop strings, logprobs). Refuses: layers, tiers and
 * steps. Only the walker's thread calls it. After job_begin() the job has two threads of its own,
 * so that the walker waits neither for text nor for a disk: one parses lines into requests ahead of
 * the walker, in the order of the queue and within bounds; one makes commits durable. Neither
 * changes a byte of OUT, the order of rows or an error.
 *
 * A row becomes durable in two steps. The results of a pass (job_token, job_scored, job_finish,
 * job_fail) are *staged*: no record of OUT.journal has them. job_pass_end() confirms them: its
 * caller states that they were computed from verified bytes. Confirmed results are committed within
 * JOB_SYNC_S, while the next passes run: lines into OUT.partial (fdatasync), then records of rows
 * and tokens into OUT.journal (fdatasync). Staged results that are never confirmed are lost with
 * the pass: job_close() drops them, and the next run computes these tokens again. OUT appears
 * complete, by rename, in input order, from lines whose bytes match the journal's checksums. */
#ifndef ENGINE_JOB_JOB_H
#define ENGINE_JOB_JOB_H

#include "engine/job/claims.h"
#include "engine/job/request.h"
#include "policy/plan.h"

#define JOB_SYNC_S 5.0
/* Bytes of the RAM budget per byte of an input line. While a line is read, memory holds its bytes,
 * its longest string, the tree of its messages, the rendered messages and their tokens. */
#define JOB_LINE_SHARE 16

/* The files beside OUT; each is named OUT + suffix. */
enum job_companion {
    JOB_PARTIAL,
    JOB_JOURNAL,
    JOB_MANIFEST,
    JOB_MANIFEST_TMP,
    JOB_TMP,
    JOB_INPUT, // rows from stdin (engine/cli/spool.h)
    N_JOB_COMPANIONS
};
extern const char *const job_suffixes[N_JOB_COMPANIONS];

struct job; // opaque
struct out;

/* Pointers are borrowed until job_close(). */
struct job_config {
    enum request_kind kind;
    const char *in_path, *out_path; // out_path NULL: only checks, locks and writes nothing
    struct request_defaults defaults;
    struct tokenizer *tokenizer; // borrowed; NULL: ids only, text fields are empty
    const struct template *tmpl; // borrowed; NULL: rows with messages are error rows
    const char *model_name;      // for the response body
    int dummy_weights;           // 1: every row of OUT says so
    const char *version;         // of sluice; another version is another job. NULL: ""
    /* Everything besides the input that changes the bytes of OUT: "key=value" lines, values below
     * 2,048 bytes, stored in OUT.job.json. A difference is exit 8 and names the key. The job adds
     * version, job, input_bytes, input_hash, limit, shard, shards, order, epoch and ignore_fields;
     * lines with these keys are dropped. Two changes are allowed on resume, because finished rows
     * stay valid: rows added after the old ones (input, limit), and more ignore_fields together
     * with retry_errors. */
    const char *fingerprint;
    const struct evict *evict; // borrowed: the KV slots of each row
    int64_t line_max;          // bytes: a longer line is an error row; 0: JSONL_LINE_BYTES_MAX
    int64_t limit;             // rows; 0: all
    int shard, n_shards;       // rows with index % n_shards == shard; n_shards 0 or 1: all
    int completion_order;
    int retry_errors, overwrite;
    double sync_s; // seconds until confirmed results are durable; 0: JOB_SYNC_S (tests ask less)
    int64_t max_errors; // stop (ERR_ROWS) when more rows failed; -1: never
    int64_t prompt_cap; // longer prompts become error rows; 0: see job_cap_open()
    /* A job of several workers: its files are in the folder of `claims` until OUT is complete.
     * Borrowed; NULL: the files are beside OUT. */
    struct claims *claims;
    int make_out; // this worker makes OUT; it takes over what no worker has done
    /* On the other ranks of a pipeline (out_path NULL): what job_tell() wrote on rank 0. Read by
     * job_open() only. */
    const char *told;
    int64_t n_told;
};

/* May a job write this OUT? ERR_USAGE: OUT or a companion is the input, or not a regular file;
 * ERR_JOB: a file has this name, and no OUT.job.json names its job. */
enum err job_paths_check(const char *out, const char *in, int overwrite);

/* Opens, locks, scans the input (tokenizes every row once for its real length), reads the journal.
 * *work: the rows still to do. Bad rows become error rows. ERR_JOB: locked, or OUT of another job;
 * ERR_USAGE: OUT is the input, or not a regular file; ERR_INPUT, ERR_CORRUPT, ERR_IO, ERR_ROWS
 * (max_errors). On error *job is NULL, and only files that let the job resume remain. If OUT is
 * complete from the same job: OK, and job_live() is 0 from the start. */
enum err job_open(struct job **job, const struct job_config *config, struct work *work);

/* Appends what the other ranks of a pipeline need to have the same job: which rows wait, and their
 * tokens of an earlier run. Before job_begin(). */
void job_tell(const struct job *job, struct out *to);

/* The result of a request of a job without files. Valid during the call. */
struct job_result {
    const struct request *request;
    const char *text; // [n_text] output text; not NUL-terminated
    int64_t n_text;
    const char *finish_reason; // "stop", "length"; NULL for scored and failed requests
    const float
        *token_logprobs; // [n_token_logprobs] or NULL: of the continuation, or of output tokens
    int n_token_logprobs;
    double logprob; // scored requests: the sum of these; 1 if every token was the argmax
    int is_greedy;
    const struct row_error *error; // NULL: the request succeeded
};
struct job_callbacks {
    enum err (*finished)(void *ctx, const struct job_result *result);
    /* Output text as it is generated, in whole characters; text that may be the start of a stop
     * string is held back. NULL: not wanted. */
    void (*text)(void *ctx, const struct request *request, const char *text, int64_t n_bytes);
    void *ctx;
};

/* A job without files: runs requests[n] in order and passes the results to the callbacks. The
 * contents of the requests become the job's; the array stays the caller's and must outlive the job.
 * Of config only kind, defaults, tokenizer, evict, max_errors and prompt_cap are used. */
enum err job_open_memory(struct job **job, const struct job_config *config,
                         struct request *requests, int64_t n, const struct job_callbacks *callbacks,
                         struct work *work);

/* Reduces *work, as job_open() set it, to the rows that are not done: begun rows with the tokens
 * that they have, then the waiting rows. Maxima stay. work->rows belongs to the job and is valid
 * until the next call. */
void job_work_left(struct job *job, struct work *work);
/* The same for waiting rows only. */
void job_work_waiting(struct job *job, struct work *work);

/* Bytes of RAM that the job uses beside live rows: the index, the longest line, rows parsed ahead,
 * buffers. */
int64_t job_text_bytes(const struct job *job, const struct work *work);
/* ---- prompts that no plan can hold ----
 * A prompt is never split, so the longest prompts may not fit in memory. The limit changes OUT: the
 * first run that plans sets it, OUT.job.json stores it, and every resumed run keeps it (except
 * under --retry-errors). */

/* 1: the job has an input file, and no run has set its limit yet. */
int job_cap_open(const struct job *job);
/* The work without the rows whose prompts are longer than work->prompt_max, which is at most cap.
 * The limit moves in steps of a 1,024th of the model's context. */
void job_work_within(const struct job *job, int64_t cap, struct work *work);
/* Sets the limit in tokens (0: none): when their turn comes, longer prompts become error rows
 * `prompt_too_long_for_memory`. `work` is the rest. job_set_plan() makes the limit durable. */
void job_cap_fix(struct job *job, int64_t cap, const struct work *work);

/* Stores the predicted seconds and the flags that repeat the plan in OUT.job.json. */
enum err job_set_plan(struct job *job, double elapsed_s, const char *flags);

/* Starts the job's threads, unless they run. Call before job_peek(). ERR_FIT: no thread. */
enum err job_begin(struct job *job);

/* Greatest sample_edits_max() of the rows still to do. */
int job_edits_max(const struct job *job);
/* Rows still waiting or live. */
int job_live(const struct job *job);
/* *next: the request at the head of the queue, which stays there; NULL: none waits. Waits until the
 * row is parsed. Bad rows before it become error rows. ERR_CORRUPT, ERR_IO, ERR_FIT: of this row.
 */
enum err job_peek(struct job *job, const struct request **next);
/* Dequeues the head: the engine holds the request until job_finish, job_fail or job_requeue. */
struct request *job_take(struct job *job);
/* Returns a request to the head of the queue, with all its tokens. */
void job_requeue(struct job *job, struct request *r);
/* Requeues all live requests, the one that began first at the head. */
void job_requeue_all(struct job *job);

/* Appends a sampled token (not a known one) to r->tokens and applies the stop rules. *finished 1:
 * the row is done, call job_finish(). s: the head's result, for logprobs. id >= 0 (else call
 * job_fail()). */
enum err job_token(struct job *job, struct request *r, int32_t id, const struct head_result *s,
                   int *finished);
/* Stores the log-probability of known token `pos + 1` (score, echo, resumed rows with logprobs). A
 * requeued row scores its positions again, which overwrites them. */
enum err job_scored(struct job *job, struct request *r, int pos, const struct head_result *s);
/* Writes the row's line and frees the request. */
enum err job_finish(struct job *job, struct request *r);
/* Turns a live or waiting request into an error row and frees it. */
enum err job_fail(struct job *job, struct request *r, const char *code, const char *message);

/* Ends a pass and confirms what is staged: durable within JOB_SYNC_S or at the end of the next pass
 * (force: on return). Call it only when every byte that the pass used was verified. ERR_IO: also of
 * earlier commits. */
enum err job_pass_end(struct job *job, int force);
/* The pass used bytes that turned out bad: drops what is staged, so that a resumed run continues
 * from the last confirmed state. Rows that ended since then are not done any more (job_counts).
 * Only job_counts() and job_close() may follow. */
void job_drop_staged(struct job *job);
/* All rows are done: confirms, commits, and makes OUT in input order (fsync, rename). Every line is
 * read again and compared with its checksum. ERR_CORRUPT: some have changed; OUT is not made, and a
 * resumed run computes these rows again. With `claims` only the worker with make_out makes OUT, and
 * only if all rows of all workers are done. */
enum err job_complete(struct job *job);
/* 1: OUT is complete. */
int job_is_complete(const struct job *job);
/* No step was computed, because planning failed: job_close() then removes the files of a job that
 * this run began. Accepts NULL. */
void job_refused(struct job *job);
/* Drops what is staged, commits what is confirmed, closes, unlocks; the job can be resumed. Accepts
 * NULL. */
enum err job_close(struct job *job);

struct job_counts {
    // rows of this shard; done = ok + failed, over all runs; resumed: rows that an earlier run had
    // done or begun
    int64_t rows, done, ok, failed, resumed;
    int64_t prompt_tokens, output_tokens; // of rows done or live in this run
    /* Tokens sampled in this run, and rows that stopped after one of them, by the eighth of its
     * allowed output that the row had. Rows that end by length are not counted. */
    int64_t sampled[WORK_EIGHTHS], stopped[WORK_EIGHTHS];
    int64_t first_finish_ns, queue_empty_ns; // clock_ns; 0: not yet
    int64_t output_tokens_at_first, output_tokens_at_empty;
    int64_t last_durable_ns;
    int64_t text_wait_ns, commit_wait_ns; // the walker waited for rows to be read; for a commit
    int64_t ahead_rows, ahead_bytes;      // most that were parsed ahead at once
    /* Rows to do at job_open() with a field of --ignore-fields, by index in defaults.ignore. */
    int64_t ignored[IGNORE_MAX];
};
void job_counts(const struct job *job, struct job_counts *counts);

/* Why rows failed, those of earlier runs included. Borrowed until job_close(). */
const struct job_errors *job_errors(const struct job *job);
/* The fields that the job ignores, borrowed likewise. */
const struct ignore_list *job_ignore(const struct job *job);

#endif
