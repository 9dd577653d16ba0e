/* engine/job/job_status.h - a job seen from outside: what its files say during and after a run.
 *
 * Owns: nothing. Reads OUT.job.json, OUT.journal, the failed rows of OUT.partial and /proc/locks,
 * or the folder of --work-dir (claims.h); takes no lock and changes no byte, so that a run is never
 * disturbed. Refuses: OUT's other lines. */
#ifndef ENGINE_JOB_JOB_STATUS_H
#define ENGINE_JOB_JOB_STATUS_H

#include "engine/job/ignore.h"

enum job_state { JOB_STOPPED, JOB_RUNNING, JOB_COMPLETE };

struct job_worker {
    char name[128];
    const char *state;  // "joined", "working", "left", or "silent": no beat lately
    int64_t rows;       // that it has made durable
    int64_t beat_age_s; // by this machine's clock and the file server's, which may differ
};

struct job_status {
    enum job_state state;
    int64_t pid;                          // of the run; 0: none runs
    int64_t rows, ok, failed, left, live; // of this shard; live: begun and not done
    int64_t output_tokens, live_tokens;   // durable: of rows done; of live rows
    int64_t started_unix_s, last_unix_s;  // the last run; its last commit, or its end
    double elapsed_s, predicted_s;        // of the last run; predicted < 0: not known
    int64_t journal_bytes;                // 0: there is none
    char job[16];                         // "run", "score"
    char input[4096];
    struct job_errors errors;   // of the rows that failed
    struct ignore_list ignore;  // --ignore-fields of the job
    struct job_worker *workers; // owned: [n_workers], of a shared job; NULL: there are none
    int n_workers;
    int64_t chunks, claimed;
};

const char *job_state_name(enum job_state state);
/* ERR_INPUT: no job wrote to that OUT; ERR_IO, ERR_FIT. */
enum err job_status_read(struct job_status *s, const char *out);
/* The same of a folder of --work-dir that a job is in. */
enum err job_status_shared(struct job_status *s, const char *dir);
void job_status_free(struct job_status *s);

#endif
