/* engine/job/job_impl.h - the inside of a job, for job*.c only.
 *
 *     job.c           live rows, what the engine calls
 *     job_queue.c     which row comes next; the reader, a thread that makes requests ahead
 *     job_live.c      one live row: its text, stop rules, log-probabilities
 *     job_scan.c      the input: index, first look at every row, double custom_ids
 *     job_files.c     OUT's companions: lock, resume
 *     job_commit.c    commits; the writer, a thread that makes them durable
 *     job_out.c       OUT, made of lines that were verified
 *     job_manifest.c  OUT.job.json
 *
 * Threads. All is the walker's, but for what the reader and the writer are handed: numbers of rows,
 * a commit. Of the rest they read only what stays as it is while the line is walked.
 *
 * The barrier. What a pass gives is *staged*: the lines of rows that ended stand at the end of
 * OUT.partial's bytes (in `lines`, or spilled behind what is durable), their records in `staged`,
 * the tokens of live rows in their requests behind n_confirmed. Nothing staged is ever in
 * OUT.journal, and bytes of OUT.partial that no record vouches for do not exist for a run that
 * resumes. job_pass_end() confirms: records go to the journal's group, tokens count; from then on a
 * commit writes them. job_drop_staged() forgets. */
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
    ROW_LIVE, // taken, or about to be
    ROW_OK,
    ROW_FAILED,
    ROW_LOST, // done, but its line is not what was written: waits again once the journal is read
};

/* 32 bytes for each row of the input, whatever the row holds. */
struct job_row {
    int64_t offset;      // of its line in the input; -n: the line has n bytes, more than line_max
    uint64_t place : 60; // done: offset of its line in OUT.partial
    uint64_t state : 4;  // enum row_state
    uint32_t n;          // done: bytes of that line. waiting: 1 + its place in resumed[], or 0
    uint32_t line;       // line number in the input
    uint32_t crc;        // done: CRC32C of that line
    uint32_t tokens;     // done: output tokens
};

/* Tokens that an earlier run sampled for a row that it did not finish. */
struct resumed {
    int64_t row;
    int32_t *ids; // owned
    int64_t n, cap;
    struct work_row lengths; // of the row, when it is still to do; cap 0: it is not
};

/* A request on its way. `request` comes first: the engine holds pointers to it. */
struct live {
    struct request request;
    struct live *next, *prev; // all that are live, peeked or requeued; or those that left
    struct live *next_requeued;
    int64_t row;               // in job.rows
    int n_journaled;           // tokens (prompt included) that the journal knows
    int n_confirmed;           // of those that a pass confirmed
    const char *finish_reason; // set once a stop rule holds
    struct detokenizer detok;
    struct out text;    // output so far
    int64_t text_first; // where generated text begins in it (echo)
    int64_t n_streamed;
    struct logprobs logprobs;
};

/* What an error row says. */
struct bad_row {
    struct request request; // as request_parse() left it
    struct row_error error;
};

/* A row on its way to the head of the queue, and what is made of it. */
struct ready {
    int64_t row;
    struct resumed *from; // borrowed: tokens of an earlier run, or NULL
    struct live *live;    // owned; NULL: the row is bad
    struct bad_row *bad;  // owned; NULL: it is not
    int64_t n_bytes;
};

/* What is ready ahead of the walker: at most QUEUE_ROWS rows, and QUEUE_BYTES with the one over. */
#define QUEUE_ROWS  1024
#define QUEUE_BYTES ((int64_t)1 << 20)

struct reader {
    pthread_t thread;
    int started;
    pthread_mutex_t lock; // guards what follows; slots from n_made on are the reader's
    pthread_cond_t work, made;
    int64_t n_asked, n_made, n_taken; // rows ever
    int64_t n_bytes;                  // of rows made and not taken
    int64_t most_rows, most_bytes;    // that were made and not taken
    int stop;
    enum err err; // reading ended at row n_made
    char text[1024];
    struct ready ring[QUEUE_ROWS];
};

/* What becomes durable together. */
struct commit {
    struct out lines;             // owned: they stand in OUT.partial from
    int64_t at;                   // on
    int sync_lines;               // there is something to sync in OUT.partial
    struct journal_group records; // owned
    int64_t n_rows;               // that are done with it
    int64_t done_ns;
};

struct writer {
    pthread_t thread;
    int started;
    pthread_mutex_t lock; // guards what follows
    pthread_cond_t changed;
    int busy; // job.commit is the writer's
    int stop;
    enum err err; // of the last commit
    char text[1024];
};

/* Sums over blocks of rows, so that a change of the input can be named by its line. */
#define INPUT_MARKS 512
struct input_marks {
    int64_t every, n_rows; // rows in a block (the last may have fewer); rows in all
    uint32_t sums[INPUT_MARKS];
};

/* The input as the last run of this job saw it, and what the scan finds of it. */
struct old_input {
    int64_t n_bytes; // -1: there was none
    struct input_marks marks;
    uint32_t sum;                            // of the block under way
    int64_t block_line, first_bad, last_bad; // lines: of its first row; of the first bad block
};

struct job_paths {
    char *out, *partial, *journal, *manifest, *manifest_tmp, *tmp, *dir; // owned
};

/* What OUT.job.json says about the end of the job. */
struct manifest_end {
    int found; // there is a manifest, and it is of this very job, or of one that became it:
    int grown; // rows were added, or flags changed that only admit more rows
    uint64_t journal_id; // of the journal
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
    int64_t n_waiting, n_live;      // rows neither taken nor done; rows taken
    struct live *live;              // owned list
    struct live *peeked;            // the head of the queue, parsed
    struct live *requeued;
    struct resumed *resumed; // owned
    int64_t n_resumed, resumed_cap;

    int on_disk;  // there is an OUT
    int complete; // OUT was complete when the job was opened
    struct job_paths paths;
    struct standing out_was; // what stood at OUT when the job was opened
    int fresh;               // this run began the job, and took nobody's place
    int refused;             // see job_refused()
    char *identity;          // owned: "key=value" lines, all that must be equal to resume
    uint64_t id;             // of the journal: hash of the identity under which it was begun
    struct input_marks marks;
    struct old_input old;
    int64_t started_unix_s; // this run, by the wall clock
    int journal_fd, partial_fd;
    struct journal journal;
    int64_t partial_bytes;        // durable, and verified
    int64_t written_bytes;        // with what was written or handed to the writer behind them
    struct out lines;             // to be written behind those
    int64_t confirmed_bytes;      // of OUT.partial with `lines` behind it
    struct journal_entry *staged; // owned: records of rows that ended since the last confirmation
    int64_t n_staged, staged_cap;
    struct live *left;    // owned list: of those rows, until their records are confirmed
    int dropped;          // job_drop_staged(): only job_close() may follow
    int64_t pending_rows; // confirmed, not yet durable
    int64_t commit_ns;    // when the last commit was begun
    int committing;       // `commit` was handed to the writer
    struct commit commit;
    struct writer writer;
    int begun; // job_begin()
    struct reader reader;
    int superseded;     // OUT.partial holds lines that are not part of OUT
    int broken;         // a write failed: nothing more is written
    double predicted_s;   // < 0: not known
    char plan_flags[512]; // "": not known
    int edits_max;
    struct work *by_prompt; // owned: [JOB_PROMPT_BINS] of the work, by length of the prompt
    int cap_fixed;          // config.prompt_cap is the job's for good
    struct lengths {
        struct work_row *rows; // owned: [n] as in struct work
        int64_t n, cap, n_seen;
        int64_t n_begun; // of the job's rows, by now
        int stride;
        int n_before; // of the row seen last: its first tokens
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
/* Into the list of those that are live. */
void job_live_link(struct job *job, struct live *l);
/* The row failed before it was live: error line, counts. r: as request_parse left it. */
enum err job_row_failed(struct job *job, int64_t row, const struct request *r,
                        const struct row_error *error);
/* Checks that need the job: prompt_cap, the eviction budget. ERR_ROW. */
enum err job_row_check(const struct job *job, const struct request *r, struct row_error *error);
/* A row that was done is to run again: its record, and its place in the queue. ERR_FIT. */
enum err job_row_again(struct job *job, int64_t row);

/* ---- job_queue.c ---- */
/* ERR_FIT: no thread. */
enum err reader_start(struct job *job);
/* Once the row at hand is made; frees what was not taken. Nothing when it was not started. */
void reader_stop(struct job *job);

/* ---- job_live.c ---- */
/* Takes the contents of *r over. Known tokens are replayed: a row that they already end has its
 * finish_reason set. NULL: no memory. */
struct live *live_new(const struct job *job, struct request *r, int64_t row);
void live_free(struct live *l);
/* A known token becomes text; stop rules. Sets finish_reason. ERR_FIT. */
enum err live_feed(const struct job *job, struct live *l, int32_t id);
/* The rest of the text, once finished. */
enum err live_end(const struct job *job, struct live *l);
/* Gives new text to the callback. last: nothing is held back. */
void live_stream(const struct job *job, struct live *l, int last);

/* ---- job_scan.c ---- */
/* Finds the rows of the input; the hash of its bytes stands in job->in. */
enum err scan_index(struct job *job);
/* An input whose rows all fail because they are no JSON, or because the model has no tokenizer, is
 * a wrong file or a wrong model: ERR_INPUT, before anything is written. The first other row ends
 * the look. */
enum err scan_wrong_file(struct job *job);
/* Looks at every row once; bad ones that are to do become error rows. */
enum err scan_rows(struct job *job, struct work *work);
/* Adds a row to what is to be done. ERR_FIT. */
enum err work_add(struct job *job, struct work *work, const struct request *r, int64_t line_bytes,
                  struct resumed *resumed); // NULL: no earlier run began it
void work_end(const struct job *job, struct work *work);
/* Parses row k of the input. ERR_ROW: *error. */
enum err scan_parse(struct job *job, int64_t k, struct request *r, struct row_error *error);

/* ---- job_files.c ---- */
/* Locks OUT's companions, before the input is read. */
enum err files_lock(struct job *job);
/* Finds out what is there: nothing, a job to resume, a complete OUT. After scan_index(). */
enum err files_open(struct job *job);
/* Leftovers of a job whose OUT is there go, the journal last: it is the lock. */
enum err files_remove(struct job *job);
enum err files_check_out(const struct job *job, const struct manifest_end *end);
/* Closes, unlocks; leaves no empty journal behind. */
void files_close(struct job *job);
/* Makes a rename in OUT's directory durable. ERR_IO. */
enum err files_sync_dir(const struct job *job);

/* ---- job_commit.c ---- */
/* ERR_FIT: no thread. */
enum err writer_start(struct job *job);
/* Once a commit under way is done. Nothing when it was not started. */
void writer_stop(struct job *job);
/* Lines, then records, each durable before the next. Nothing is staged. Waits for the commit before
 * it, whose error is returned. wait 0: the writer does it, and files_commit_end() tells the end. */
enum err files_commit(struct job *job, int wait);
/* The end of a commit under way, if there is one: its error. wait 0: unless it is not done yet. */
enum err files_commit_end(struct job *job, int wait);
/* Gives the memory of `lines` back: they are written, not vouched for. ERR_IO. */
enum err files_spill(struct job *job);

/* ---- job_out.c ---- */
/* All rows are done: OUT. ERR_CORRUPT: lines of OUT.partial have changed; their rows wait again. */
enum err out_complete(struct job *job);

/* ---- job_manifest.c ---- */
/* job->old, of the manifest that is there. Before scan_index(). */
enum err manifest_old_input(struct job *job);
/* job->identity and job->id. After scan_index(). ERR_FIT. */
enum err manifest_identity(struct job *job);
/* Hash of job->identity. */
uint64_t manifest_id(const struct job *job);
/* ERR_JOB names the first key that differs. No file: end->found is 0. */
enum err manifest_read(struct job *job, struct manifest_end *end);
/* Atomic, durable. end NULL: not complete. ERR_IO. */
enum err manifest_write(const struct job *job, const struct manifest_end *end);

#endif
