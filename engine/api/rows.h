/* engine/api/rows.h - rows through a prepared run: jobs on files, jobs in memory, plans of work.
 *
 * Owns: the order job, plan, walk, report. Refuses: standard input and output (engine/cli/). */
#ifndef ENGINE_API_ROWS_H
#define ENGINE_API_ROWS_H

#include "engine/api/explain.h"
#include "engine/api/run.h"

/* A run to fill with run_prepare(); run_end() takes it down, whatever became of it. ERR_FIT. */
enum err run_begin(struct run **run, const struct config *c);
/* Takes a run down and frees it; keeps the sentence of `err` over the closing. */
enum err run_end(struct run *r, enum err err);

/* What holds for rows that do not say otherwise. */
void rows_defaults(const struct run *r, struct request_defaults *d);
/* Opens the job of -i; out NULL: reads the rows only. r->work is known after. */
enum err rows_open(struct run *r, enum request_kind kind, const char *out);
/* Opens the job of -i and -o, plans it, walks it and reports. ERR_ROWS: done, some rows have
 * failed. *summary: what --summary writes, or what is known where no row was to do; owned by the
 * caller. summary NULL: not wanted. */
enum err rows_run(struct run *r, enum request_kind kind, struct json_t **summary);
/* A job in memory: plan and walk without files or report. What is in requests becomes the job's;
 * the array stays the caller's. */
enum err rows_memory(struct run *r, enum request_kind kind, struct request *requests, int64_t n,
                     const struct job_callbacks *callbacks);
/* One row of n tokens to score: a prompt of n_prompt tokens, and those behind it. */
enum err rows_score(struct request *q, int64_t index, const char *name, const int32_t *ids,
                    int64_t n, int64_t n_prompt);

/* The work that `plan` plans for: the rows of -i, or made-up ones; again after r->evict has
 * changed. */
enum err plan_work(struct run *r);
/* The plan of that work, and what explains it. */
enum err plan_work_explained(struct run *r, struct explain *e);

#endif
