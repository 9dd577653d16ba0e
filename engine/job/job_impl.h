/* engine/job/job_impl.h - the inside of a job, for job*.c only.
 *
 *     job.c           live rows, what the engine calls
 *     job_queue.c     which row comes next; the reader, a thread that makes requests ahead
 *     job_live.c      one live row: its text, stop rules, log-probabilities
 *     job_scan.c      the input: index, first look at every row, double custom_ids
 *     job_files.c     OUT's companions: lock, resume
 *     job_follow.c    a pipeline's job on the ranks without files
 *     job_shared.c    a job of several workers: chunks, journals and lines of the others
 *     job_commit.c    commits; the writer, a thread that makes them durable
 *     job_out.c       OUT, made of lines that were verified
 *     job_manifest.c  OUT.job.json
 *
 * Threads. The walker owns everything except what it hands to the reader (row numbers) and the
 * writer (a commit). Of the rest these two read only what stays constant after job_begin().
 *
 * The barrier. The results of a pass are *staged*: lines of rows that ended are the last bytes of
 * OUT.partial (in `lines`, or written beyond the durable bytes), their records are in `staged`,
 * tokens of live rows in their requests after n_confirmed. OUT.journal never has staged results,
 * and a resumed run ignores bytes of OUT.partial without a record. job_pass_end() confirms: records
 * join the journal's group, tokens count, and the next commit writes them. job_drop_staged() drops
 * them. */
#ifndef ENGINE_JOB_JOB_IMPL_H
#define ENGINE_JOB_JOB_IMPL_H

#include <pthread.h>

#include "engine/job/job.h"
#include "engine/job/journal.h"
#include "engine/data/jsonl.h"
#include "kernels/base/whole.h"
#include "engine/job/result.h"

enum row_state {
    ROW_SKIPPED, // another shard's
    ROW_WAITING,
    ROW_LIVE, // held by the engine, or about to be
    ROW_OK,
    ROW_FAILED,
    ROW_LOST,      // done, but its line has changed: waits again once the journal is read
    ROW_ELSEWHERE, // in a chunk of another worker
};

/* One row of the input, in 32 bytes. */
struct job_row {
    int64_t offset;      // of its line in the input; -n: the line has n bytes, more than line_max
    uint64_t place : 44; // done: offset of its line in OUT.partial, or in that of worker `part`
    uint64_t part : 16;  // done: number of the worker (claims.h) that has its line; 0: this one
    uint64_t state : 4;  // enum row_state
    uint32_t n;          // done: bytes of that line. waiting: 1 + its index in resumed[], or 0
    uint32_t line;       // line number in the input
    uint32_t crc;        // done: CRC32C of that line
    uint32_t tokens;     // done: output tokens
};

/* Tokens that an earlier run sampled for a row that it did not finish. */
struct resumed {
    int64_t row;
    int32_t *ids; // owned
    int64_t n, cap;
    struct work_row lengths; // of the row if it is still to do; cap 0: it is not
};

/* A request in progress. `request` is the first member: the engine holds pointers to it. */
struct live {
    struct request request;
    struct live *next, *prev; // in job.live (live, peeked and requeued rows) or job.left
    struct live *next_requeued;
    int64_t row;               // in job.rows
    int n_journaled;           // tokens (prompt included) with a record in the journal
    int n_confirmed;           // tokens (prompt included) that a pass confirmed
    const char *finish_reason; // set once a stop rule holds
    struct detokenizer detok;
    struct out text;    // output so far
    int64_t text_first; // where generated text begins in it (echo)
    int64_t n_streamed;
    struct logprobs logprobs;
};

/* A bad row and its error. */
struct bad_row {
    struct request request; // as request_parse() left it
    struct row_error error;
};

/* A row between the input and the head of the queue, and what the reader made of it. */
struct ready {
    int64_t row;
    struct resumed *from; // borrowed: tokens of an earlier run, or NULL
    struct live *live;    // owned; NULL: the row is bad
    struct bad_row *bad;  // owned; NULL: the row is good
    int64_t n_bytes;
};

/* Limits of rows parsed ahead of the walker; the last of them may exceed QUEUE_BYTES. */
#define QUEUE_ROWS  1024
#define QUEUE_BYTES ((int64_t)1 << 20)
/* The same for a shared job: rows ahead are kept from other workers. */
#define SHARED_QUEUE_ROWS 4

struct reader {
    pthread_t thread;
    int started;
    pthread_mutex_t lock; // guards the fields below; ring entries from n_made on are the reader's
    pthread_cond_t work, made;
    int64_t n_asked, n_made, n_taken; // rows since the start
    int64_t n_bytes;                  // of rows made, not yet used
    int64_t most_rows, most_bytes;    // maxima of rows made, not yet used
    int stop;
    enum err err; // why reading ended at row n_made
    char text[1024];
    struct ready ring[QUEUE_ROWS];
};

/* Lines and records that become durable together. */
struct commit {
    struct out lines;             // owned
    int64_t at;                   // offset of these lines in OUT.partial
    int sync_lines;               // 1: OUT.partial has bytes to sync
    struct journal_group records; // owned
    int64_t n_rows;               // rows that this commit makes durable
    int64_t done_ns;
};

struct writer {
    pthread_t thread;
    int started;
    pthread_mutex_t lock; // guards the fields below
    pthread_cond_t changed;
    int busy; // 1: the writer uses job.commit
    int stop;
    enum err err; // of the last commit
    char text[1024];
};

/* Checksums of blocks of rows, to locate a changed line of the input. */
#define INPUT_MARKS 512
struct input_marks {
    int64_t every, n_rows; // rows in a block (the last may have fewer); rows in all
    uint32_t sums[INPUT_MARKS];
};

/* The input of the last run of this job, and how the present input differs. */
struct old_input {
    int64_t n_bytes; // -1: there was none
    struct input_marks marks;
    uint32_t sum;                            // of the current block
    int64_t block_line, first_bad, last_bad; // lines: the block's first; of the first bad block
};

struct job_paths {
    char *out, *partial, *journal, *manifest, *manifest_tmp, *tmp, *dir; // owned
};

/* What OUT.job.json says about the end of the job. */
struct manifest_end {
    int found; // 1: there is a manifest of this job, or (grown) of an earlier form of the job
    int grown; // 1: rows were added since then, or flags changed that only admit more rows
    uint64_t journal_id; // the id in the journal's header
    int complete;
    int64_t ok, failed, out_bytes;
    int64_t out_tokens, ended_unix_s;
    uint32_t out_crc; // CRC32C of OUT
    struct job_errors errors;
    int64_t prompt_cap; // of the run that planned first; 0: none; -1: none has planned
};

struct job {
    struct job_config config;
    struct job_callbacks callbacks;
    struct request *requests; // borrowed: of a job without files
    struct jsonl in;
    struct job_row *rows; // owned
    int64_t n_rows, rows_cap;

    int64_t next_row, next_resumed; // cursors of the queue
    int64_t rows_end;               // next_row stops here: the end of the input, or of a chunk
    int64_t next_chunk;             // shared: own chunks before this one are in the queue
    int all_claimed;                // shared: no chunk is left to claim
    int64_t n_looks;                // shared: of claims, when rows were last taken out
    int64_t n_waiting, n_live;      // rows in the queue; rows that the engine holds
    struct live *live;              // owned list
    struct live *peeked;            // the head of the queue, parsed
    struct live *requeued;
    struct resumed *resumed; // owned
    int64_t n_resumed, resumed_cap;

    int on_disk;  // there is an OUT
    int complete; // OUT was complete when the job was opened
    struct job_paths paths;
    struct standing out_was; // the file at OUT when the job was opened
    int fresh;               // this run began the job, and there was no OUT
    int refused;             // see job_refused()
    char *identity;          // owned: "key=value" lines, all that must be equal to resume
    uint64_t id;             // the journal's id: hash of the identity with which it was begun
    struct input_marks marks;
    struct old_input old;
    int64_t started_unix_s; // this run, by the wall clock
    int journal_fd, partial_fd;
    int part, part_fd; // lines of another worker that are open; part 0: none
    struct journal journal;
    int64_t partial_bytes;        // durable and verified bytes of OUT.partial
    int64_t written_bytes;        // partial_bytes, and bytes written or handed to the writer since
    struct out lines;             // to be written at written_bytes
    int64_t confirmed_bytes;      // confirmed bytes of OUT.partial and `lines`
    struct journal_entry *staged; // owned: records of rows that ended since the last confirmation
    int64_t n_staged, staged_cap;
    struct live *left;    // owned list: rows with staged records, until these are confirmed
    int dropped;          // job_drop_staged(): only job_close() may follow
    int64_t pending_rows; // rows confirmed, not yet durable
    int64_t commit_ns;    // when the last commit was begun
    int committing;       // `commit` was handed to the writer
    struct commit commit;
    struct writer writer;
    int begun; // job_begin()
    struct reader reader;
    int superseded;       // OUT.partial holds lines that are not part of OUT
    int broken;           // a write failed: nothing more is written
    double predicted_s;   // < 0: not known
    char plan_flags[512]; // "": not known
    int edits_max;
    struct work *by_prompt; // owned: [JOB_PROMPT_BINS] the work by prompt length
    int cap_fixed;          // config.prompt_cap is final
    struct lengths {
        struct work_row *rows; // owned: [n] as in struct work
        int64_t n, cap, n_seen;
        int64_t n_begun; // rows begun so far
        int stride;
        int n_before; // of before[]: the first tokens of the row scanned last
        int32_t before[PLAN_SHARED_TOKENS];
    } lengths;
    struct job_counts counts;
    struct job_errors errors;
};

#define JOB_PROMPT_BINS 1024

static inline struct live *live_of(struct request *r)
{
    return (struct live *)(void *)r;
}

/* ---- job.c ---- */
/* Adds a row to job->live. */
void job_live_link(struct job *job, struct live *l);
/* Fails a row: writes its error line, counts it. r: as request_parse() left it. */
enum err job_row_failed(struct job *job, int64_t row, const struct request *r,
                        const struct row_error *error);
/* Checks that need the job: prompt_cap, the eviction budget. ERR_ROW. */
enum err job_row_check(const struct job *job, const struct request *r, struct row_error *error);
/* Sets a finished row back to waiting, with a record in the journal. ERR_FIT. */
enum err job_row_again(struct job *job, int64_t row);

/* ---- job_queue.c ---- */
/* ERR_FIT: no thread. */
enum err reader_start(struct job *job);
/* Waits for its current row; frees rows that were not used. Nothing if it was not started. */
void reader_stop(struct job *job);

/* ---- job_live.c ---- */
/* A live row with the contents of *r. Known tokens are replayed; if they already end the row,
 * finish_reason is set. NULL: no memory. */
struct live *live_new(const struct job *job, struct request *r, int64_t row);
void live_free(struct live *l);
/* Appends the text of a token and applies the stop rules, which set finish_reason. ERR_FIT. */
enum err live_feed(const struct job *job, struct live *l, int32_t id);
/* Appends the rest of the text of a finished row. */
enum err live_end(const struct job *job, struct live *l);
/* Passes new text to the callback. last 1: holds nothing back. */
void live_stream(const struct job *job, struct live *l, int last);

/* ---- job_scan.c ---- */
/* Finds the rows of the input; job->in has the hash of its bytes. */
enum err scan_index(struct job *job);
/* ERR_INPUT if every row fails because it is not JSON, or is text and the model has no tokenizer: a
 * wrong file or model is reported before anything is written. Stops at the first other row. */
enum err scan_wrong_file(struct job *job);
/* Parses every row once; bad rows still to do become error rows. */
enum err scan_rows(struct job *job, struct work *work);
/* Adds a row to *work. ERR_FIT. */
enum err work_add(struct job *job, struct work *work, const struct request *r, int64_t line_bytes,
                  struct resumed *resumed); // NULL: no earlier run began it
void work_end(const struct job *job, struct work *work);
/* Parses row k of the input. ERR_ROW: *error. */
enum err scan_parse(struct job *job, int64_t k, struct request *r, struct row_error *error);

/* ---- job_files.c ---- */
/* Sets job->paths; checks OUT and the files beside it. */
enum err files_begin(struct job *job);
/* Opens and locks the journal, before the input is read; that of a worker, which no other process
 * writes, once it has joined. ERR_JOB: another process has the lock. */
enum err files_lock(struct job *job);
/* Reads this process's journal and opens its lines. *empty 1: there is no journal. */
enum err files_resume(struct job *job, int *empty);
/* Counts rows by state; rows whose lines have changed wait again. After files_resume(). */
enum err files_count(struct job *job);
/* Makes an empty journal and an empty file of lines. */
enum err files_create(struct job *job);
/* What a record says of a row whose line is in `part`. */
void files_row(struct job *job, const struct journal_entry *e, int part);
enum err files_tokens(struct job *job, const struct journal_entry *e);
int files_line_is_sound(int fd, const struct journal_entry *e);
/* ERR_JOB: OUT has changed since its job ended; `path` is there, and no manifest says whose it is.
 */
enum err files_out_changed(const struct job *job);
enum err files_foreign(const char *path, const char *out);
/* OUT is complete: counts as `end` says; nothing is left to do. */
enum err files_complete(struct job *job, const struct manifest_end *end);
/* Opens what exists: nothing, a job to resume, or a complete OUT. After scan_index(). */
enum err files_open(struct job *job);
/* Removes the companions of a complete OUT, the journal last: it is the lock. */
enum err files_remove(struct job *job);
enum err files_check_out(const struct job *job, const struct manifest_end *end);
/* Closes, unlocks; removes an empty journal. */
void files_close(struct job *job);
/* Makes a rename in OUT's directory durable. ERR_IO. */
enum err files_sync_dir(const struct job *job);

/* ---- job_commit.c ---- */
/* ERR_FIT: no thread. */
enum err writer_start(struct job *job);
/* Stops the writer after its current commit. Does nothing if it was not started. */
void writer_stop(struct job *job);
/* Commits lines, then records, each durable before the next; nothing may be staged. Waits for the
 * commit before and returns its error. wait 0: the writer commits, see files_commit_end(). */
enum err files_commit(struct job *job, int wait);
/* Waits for the commit under way, if any, and returns its error. wait 0: OK if it is not done. */
enum err files_commit_end(struct job *job, int wait);
/* Writes `lines` without records, to free their memory. ERR_IO. */
enum err files_spill(struct job *job);

/* ---- job_shared.c ---- */
/* Instead of files_open(): this worker's files, what the others have done, whose chunks are whose.
 */
enum err shared_open(struct job *job);
/* Sets next_row and rows_end to the next chunk of this worker. *found 0: there is none. ERR_IO. */
enum err shared_next(struct job *job, int *found);
/* The file with the lines of a worker; -1: errno says why. */
int shared_lines(struct job *job, int part);
/* Stores the limit of prompts for all workers, or takes theirs. ERR_FIT: theirs is too long for
 * this worker's memory. */
enum err shared_cap(struct job *job);
/* Lines of these rows (ROW_LOST) have changed: their chunks become this worker's, and the next one
 * that takes them over reads them again. */
enum err shared_give_up(struct job *job);
/* OUT is complete: removes the folder, and what workers that died while they made OUT left beside
 * it. */
enum err shared_remove(struct job *job);

/* ---- job_follow.c ---- */
/* Sets rows and tokens to what rank 0 told. After scan_index(). ERR_INPUT: another input. */
enum err follow_told(struct job *job);

/* ---- job_out.c ---- */
/* Makes OUT. ERR_CORRUPT: lines of OUT.partial have changed; their rows wait again. */
enum err out_complete(struct job *job);

/* ---- job_manifest.c ---- */
/* Sets job->old from an existing manifest. Before scan_index(). */
enum err manifest_old_input(struct job *job);
/* Sets job->identity and job->id. After scan_index(). ERR_FIT. */
enum err manifest_identity(struct job *job);
/* Hash of job->identity. */
uint64_t manifest_id(const struct job *job);
/* ERR_JOB names the first key that differs. No file: end->found is 0. */
enum err manifest_read(struct job *job, struct manifest_end *end);
/* Atomic, durable. end NULL: not complete. ERR_IO. */
enum err manifest_write(const struct job *job, const struct manifest_end *end);
/* Makes job.json of a shared job, unless it is there. */
enum err manifest_once(const struct job *job);

#endif
