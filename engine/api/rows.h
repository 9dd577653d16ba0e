/* engine/api/rows.h - runs rows with a prepared run: jobs on files, jobs in memory, plans.
 *
 * Owns: the order job, plan, walk, report. Refuses: standard input and output (engine/cli/). */
#ifndef ENGINE_API_ROWS_H
#define ENGINE_API_ROWS_H

#include "engine/api/explain.h"
#include "engine/api/run.h"

/* Allocates a run for run_prepare(); run_end() frees it, even if preparing failed. ERR_FIT. */
enum err run_begin(struct run **run, const struct config *c);
/* Closes and frees a run. Returns `err` with its sentence, even if closing fails too. */
enum err run_end(struct run *r, enum err err);

/* Defaults for fields that a row does not set. */
void rows_defaults(const struct run *r, struct request_defaults *d);
/* Opens the job of -i and sets r->work; out NULL: only reads the rows. */
enum err rows_open(struct run *r, enum request_kind kind, const char *out);
/* Opens the job of -i and -o, plans it, walks it and reports. ERR_ROWS: done, some rows have
 * failed. *summary: the content of --summary, without plan and times if no row was left to run;
 * of a worker of --work-dir also "worker", the rows and output tokens that it has done in all. NULL
 * before the call, and owned by the caller after it. summary NULL: not wanted. */
enum err rows_run(struct run *r, enum request_kind kind, struct json_t **summary);
/* A job in memory: plan and walk, without files and report. The job takes ownership of the contents
 * of `requests`; the array itself stays with the caller. */
enum err rows_memory(struct run *r, enum request_kind kind, struct request *requests, int64_t n,
                     const struct job_callbacks *callbacks);
/* One row of n tokens to score: n_prompt tokens of prompt, then the continuation. */
enum err rows_score(struct request *q, int64_t index, const char *name, const int32_t *ids,
                    int64_t n, int64_t n_prompt);

/* The work that `plan` plans for: the rows of -i, or synthetic rows. Call again after r->evict has
 * changed. */
enum err plan_work(struct run *r);
/* Plans that work and explains the plan. */
enum err plan_work_explained(struct run *r, struct explain *e);

#endif
