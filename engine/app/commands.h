/* engine/app/commands.h - what the commands of the line share; private to engine/app/commands*.c,
 * variant.c and bench/. */
#ifndef ENGINE_APP_COMMANDS_H
#define ENGINE_APP_COMMANDS_H

#include "engine/app/explain.h"
#include "engine/app/run.h"

/* A run to fill; command_end takes it down, whatever became of it. */
enum err command_begin(struct run **run, const struct config *c);
/* Takes a run down and frees it; keeps the sentence of `err` over the closing. */
enum err command_end(struct run *r, enum err err);
/* A copy of c whose -i can be read again: standard input (`-`) becomes a file (engine/app/spool.h),
 * kept beside OUT for a job. */
enum err command_input(struct config *with, const struct config *c, int job);
/* What holds for rows that do not say otherwise. */
void command_defaults(const struct run *r, struct request_defaults *d);
/* Opens the job of -i and -o, plans it, walks it and reports. The run is prepared. ERR_ROWS: done,
 * some rows have failed. *summary: what --summary writes, owned by the caller; NULL when no row was
 * to do. summary NULL: not wanted. */
enum err command_rows(struct run *r, enum request_kind kind, struct json_t **summary);
/* Opens the job of -i; out NULL: look only. The run is prepared; its work is known after. */
enum err command_open_job(struct run *r, enum request_kind kind, const char *out);
/* A job in memory: plan and walk without files or report. What is in requests becomes the job's;
 * the array stays the caller's. */
enum err command_walk_memory(struct run *r, enum request_kind kind, struct request *requests,
                             int64_t n, const struct job_callbacks *callbacks);
/* --prefix and --window go together. */
enum err command_window_check(const struct config *c);
/* The tokens of --text, none added; one window or more. The caller frees them. */
enum err command_text_ids(const struct run *r, int32_t **ids, int64_t *n);
/* How many windows so many tokens have; at most --limit. */
int64_t command_windows(const struct config *c, int64_t n_ids);
/* They, as rows to score: the first --prefix tokens are prompt, the rest is forced. */
enum err command_window_rows(const struct config *c, const int32_t *ids, int64_t windows,
                             struct request *requests);
/* One row of n tokens, a prompt and what is scored behind it. */
enum err command_score_row(struct request *q, int64_t index, const char *name, const int32_t *ids,
                           int64_t n, int64_t n_prompt);
/* What `plan` plans for: the rows of -i, or made-up ones; again after r->evict has changed. */
enum err command_plan_work(struct run *r);
/* The plan of the work that r->config names, and what explains it. The run is prepared. */
enum err command_plan_make(struct run *r, struct explain *e);

#endif
