/* engine/job/job.h - the job: rows of the input in, rows of OUT out, nothing lost between.
 *
 * Owns: the input file and its index, the queue, OUT.partial, OUT.journal, OUT.job.json, the lock,
 * and the text side of live rows (detokenizer, stop strings, logprobs). Refuses: to know layers,
 * tiers or steps. One thread calls it, the walker's. From job_begin() on the job has two threads of
 * its own, so that the walker stops neither for text nor for a disk: one makes requests of lines
 * ahead of it, in the order of the queue and within bounds, one makes commits durable. Neither
 * changes a byte of OUT, the order of rows or an error.
 *
 * Two steps make a row durable. While a pass runs, everything that comes in (job_token, job_scored,
 * job_finish, job_fail) is *staged*: it is in no record of OUT.journal. job_pass_end() confirms it:
 * the caller says that all of it was computed from verified bytes. What is confirmed is committed
 * at most every JOB_SYNC_S: lines into OUT.partial (fdatasync), then records of rows and tokens
 * into OUT.journal (fdatasync), while the next passes run. What is staged and never confirmed is
 * lost with the pass: job_close() drops it, and the next run does these tokens again. OUT appears
 * complete, by rename, in input order, made of lines whose bytes were compared with the journal's
 * checksums. */
#ifndef ENGINE_JOB_JOB_H
#define ENGINE_JOB_JOB_H

#include "engine/job/request.h"
#include "policy/plan.h"

#define JOB_SYNC_S 5.0
/* A line of the input is held several times over while it is read: its bytes, its longest string,
 * the tree of its messages, these as rendered, their tokens. So a line may have one byte for this
 * many bytes of the RAM budget. */
#define JOB_LINE_SHARE 16

/* The files beside OUT, by what follows OUT in their names. */
enum job_companion {
    JOB_PARTIAL,
    JOB_JOURNAL,
    JOB_MANIFEST,
    JOB_MANIFEST_TMP,
    JOB_TMP,
    JOB_INPUT, // rows that came by stdin (engine/cli/spool.h)
    N_JOB_COMPANIONS
};
extern const char *const job_suffixes[N_JOB_COMPANIONS];

struct job; // opaque

/* Pointers are borrowed until job_close(). */
struct job_config {
    enum request_kind kind;
    const char *in_path, *out_path; // out_path NULL: look only, nothing is locked or written
    struct request_defaults defaults;
    struct tokenizer *tokenizer; // borrowed; NULL: ids only, text fields are empty
    const struct template *tmpl; // borrowed; NULL: rows with messages are error rows
    const char *model_name;      // for the response body
    int dummy_weights;           // 1: every row of OUT says so
    const char *version;         // of sluice; another version is another job. NULL: ""
    /* Of everything that changes the bytes of OUT besides the input: "key=value" lines, kept in
     * OUT.job.json; a difference is exit 8, naming the key. A value has less than 2,048 bytes. The
     * job itself adds version, job, input_bytes, input_hash, limit, shard, shards, order, epoch and
     * ignore_fields; lines with these keys are dropped. Three of them may change without starting
     * over, because what is done stays what it would be: rows behind the ones that were there
     * (input, limit), and more ignore_fields together with retry_errors (a row that did not fail
     * had no such field). */
    const char *fingerprint;
    const struct evict *evict; // borrowed: slots of each row
    int64_t line_max;          // bytes: a longer line is an error row; 0: JSONL_LINE_BYTES_MAX
    int64_t limit;             // rows; 0: all
    int shard, n_shards;       // rows with index % n_shards == shard; n_shards 0 or 1: all
    int completion_order;
    int retry_errors, overwrite;
    double sync_s; // what is confirmed is durable after this long; 0: JOB_SYNC_S (tests ask less)
    int64_t max_errors; // stop (ERR_ROWS) when more rows failed; -1: never
    int64_t prompt_cap; // longer prompts become error rows; 0: see job_cap_open()
};

/* May a job have this OUT? ERR_USAGE: OUT or a companion is the input, or no regular file; ERR_JOB:
 * a file stands there, and no OUT.job.json says from which job. */
enum err job_paths_check(const char *out, const char *in, int overwrite);

/* Opens, locks, scans the input (tokenizes every row once for its real lengths), reads the journal.
 * *work: the rows that are still to do. Rows that are bad become error rows here. ERR_JOB: locked,
 * or another job's OUT; ERR_USAGE: OUT is the input, or no regular file; ERR_INPUT, ERR_CORRUPT,
 * ERR_IO, ERR_ROWS (max_errors); on error *job is NULL and nothing is left behind that was not
 * there, but for what lets a job resume. OUT complete from the same job: OK and job_live() is 0
 * from the start. */
enum err job_open(struct job **job, const struct job_config *config, struct work *work);

/* What became of a request that came without files. Valid during the call. */
struct job_result {
    const struct request *request;
    const char *text; // [n_text] output text; not NUL-terminated
    int64_t n_text;
    const char *finish_reason; // "stop", "length"; NULL for scored and failed requests
    const float
        *token_logprobs; // [n_token_logprobs] or NULL: of the continuation, or of output tokens
    int n_token_logprobs;
    double logprob; // scored requests: their sum, and whether every token was the argmax
    int is_greedy;
    const struct row_error *error; // NULL: it went well
};
struct job_callbacks {
    enum err (*finished)(void *ctx, const struct job_result *result);
    /* Output text as it comes, in whole characters; text that may yet turn out to be (part of) a
     * stop string is held back. NULL: not wanted. */
    void (*text)(void *ctx, const struct request *request, const char *text, int64_t n_bytes);
    void *ctx;
};

/* A job without files: requests[n] (their contents become the job's, the array stays the caller's
 * and must outlive the job) are run in order; what they give goes to the callbacks. Of config only
 * kind, defaults, tokenizer, evict, max_errors and prompt_cap count. */
enum err job_open_memory(struct job **job, const struct job_config *config,
                         struct request *requests, int64_t n, const struct job_callbacks *callbacks,
                         struct work *work);

/* What is left of *work, the job's own: rows that began, with the tokens that they have, then those
 * behind them. Its greatest lengths stay what they were. The rows' lengths are the job's room,
 * valid until the next call. */
void job_work_left(struct job *job, struct work *work);
/* The same without the rows that the engine holds. */
void job_work_waiting(struct job *job, struct work *work);

/* Bytes of RAM that the job takes beside live rows: the index, the longest line, rows that are
 * ready ahead, buffers. */
int64_t job_text_bytes(const struct job *job, const struct work *work);
/* ---- prompts that no plan can hold ----
 * A prompt is never split, so memory may hold all rows but those with the longest prompts. Which
 * prompts become error rows is part of OUT: it is fixed once, by the first run that plans, stands
 * in OUT.job.json, and holds for every run that resumes (but for --retry-errors). */

/* 1: the job has an input file and nobody fixed its cap yet. */
int job_cap_open(const struct job *job);
/* The work that remains without the rows whose prompts are longest: those that remain have at most
 * work->prompt_max <= cap tokens, those left out have more. In steps of a 1,024th of the model's
 * context. */
void job_work_within(const struct job *job, int64_t cap, struct work *work);
/* Fixes the cap: 0: none; else rows above it become error rows `prompt_too_long_for_memory` when
 * their turn comes, and `work` is what remains. Durable with job_set_plan(). */
void job_cap_fix(struct job *job, int64_t cap, const struct work *work);

/* What the plan predicts and the flags that repeat the plan, into OUT.job.json. */
enum err job_set_plan(struct job *job, double elapsed_s, const char *flags);

/* The line is about to be walked: starts the job's threads; nothing when they run. ERR_FIT: no
 * thread can be had. */
enum err job_begin(struct job *job);

/* Greatest sample_edits_max() of the rows still to do. */
int job_edits_max(const struct job *job);
/* Rows still waiting or live. */
int job_live(const struct job *job);
/* Looks at the next waiting request without taking it: tokens it will bring (prompt and known) and
 * its slots; 0 when none waits. Bad rows met on the way become error rows. Waits until it is read.
 * ERR_CORRUPT, ERR_IO, ERR_FIT: of this very row. */
enum err job_peek(struct job *job, const struct request **next);
/* Takes it: the engine holds it until job_finish or job_requeue. */
struct request *job_take(struct job *job);
/* Back to the head of the queue, with all its tokens. */
void job_requeue(struct job *job, struct request *r);
/* All that are live, the one that was taken first at the head. */
void job_requeue_all(struct job *job);

/* A token was sampled for a live request (already known tokens do not come here): appends it to
 * r->tokens, runs the stop rules. *finished: 1 when the row is done (the caller then lets it leave
 * through job_finish). s: the head's result, for logprobs. id >= 0 (else the caller job_fails). */
enum err job_token(struct job *job, struct request *r, int32_t id, const struct head_result *s,
                   int *finished);
/* The log-probability of known token `pos + 1` (score, echo, resumed rows that want logprobs). A
 * row that came back from the queue scores its positions again: the same position overwrites. */
enum err job_scored(struct job *job, struct request *r, int pos, const struct head_result *s);
/* Writes the row's line and frees the request. */
enum err job_finish(struct job *job, struct request *r);
/* Turns a live or waiting request into an error row and frees it. */
enum err job_fail(struct job *job, struct request *r, const char *code, const char *message);

/* End of a pass, and of every doubt about it: confirms what is staged, so that it is durable
 * JOB_SYNC_S from now or at the end of the next pass (force: when it returns). Call it only when
 * every byte that the pass used was verified. ERR_IO: also of what was confirmed before. */
enum err job_pass_end(struct job *job, int force);
/* Bytes that were used turned out bad: forgets what is staged, so that a run that resumes starts
 * from the last confirmed state. Rows that ended since are not done any more (job_counts). Only
 * job_counts() and job_close() may follow. */
void job_drop_staged(struct job *job);
/* All rows done: confirms, commits, and makes OUT in input order: fsync, rename. Every line is read
 * again and compared with its checksum. ERR_CORRUPT: some have changed; OUT is not made, their rows
 * are not done any more (durably), and a run that resumes does them again. */
enum err job_complete(struct job *job);
/* No step was computed, because the plan failed: job_close() then removes the files of a job that
 * this run began. Accepts NULL. */
void job_refused(struct job *job);
/* Drops what is staged, makes durable what is confirmed, closes, unlocks; the job can be resumed.
 * Accepts NULL. */
enum err job_close(struct job *job);

struct job_counts {
    // rows of this shard; done = ok + failed, earlier runs' included; resumed: of them, those that
    // an earlier run had done or begun
    int64_t rows, done, ok, failed, resumed;
    int64_t prompt_tokens, output_tokens; // of rows done or live in this run
    /* Tokens that this run sampled and rows that stopped after one of them, by how much of its
     * allowed output the row had. Ends by length do not count. */
    int64_t sampled[WORK_EIGHTHS], stopped[WORK_EIGHTHS];
    int64_t first_finish_ns, queue_empty_ns; // clock_ns; 0: not yet
    int64_t output_tokens_at_first, output_tokens_at_empty;
    int64_t last_durable_ns;
    int64_t text_wait_ns, commit_wait_ns; // the walker stood for rows to be read; for a commit
    int64_t ahead_rows, ahead_bytes;      // most that were ready at once
    /* Rows that have a field which --ignore-fields names, by place in defaults.ignore: those that
     * were to do when the job was opened. */
    int64_t ignored[IGNORE_MAX];
};
void job_counts(const struct job *job, struct job_counts *counts);

/* Why rows failed, those of earlier runs included. Borrowed until job_close(). */
const struct job_errors *job_errors(const struct job *job);
/* The fields that the job ignores, borrowed likewise. */
const struct ignore_list *job_ignore(const struct job *job);

#endif
