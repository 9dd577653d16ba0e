/* engine/cli/commands.h - the commands of the program, and functions that they share with bench/.
 *
 * Owns: standard input and output, and messages there. A command gets parsed and checked flags
 * (engine/api/config.h, outputs.h); its error becomes the exit code. */
#ifndef ENGINE_CLI_COMMANDS_H
#define ENGINE_CLI_COMMANDS_H

#include "engine/api/rows.h"

enum err command_run(const struct config *c);
enum err command_gen(const struct config *c);
enum err command_score(const struct config *c);
enum err command_plan(const struct config *c);
enum err command_pack(const struct config *c);
enum err command_inspect(const struct config *c);
enum err command_tokenize(const struct config *c);
enum err command_status(const struct config *c);
enum err command_merge(const struct config *c);
enum err command_probe(const struct config *c);
enum err command_cache(const struct config *c);
enum err command_bench(const struct config *c); // bench/

/* Of `plan`: predicts the job of a prepared run (run_prepare) on the machines, which are not
 * planned yet: sharing its rows and as a pipeline. Prints both and which is faster, as tables or
 * (--json) as JSON. ERR_INPUT: a machine file; ERR_FIT: the job fits neither way. */
struct machines;
enum err plan_machines(struct run *r, struct machines *m);

/* Copies c to *with and makes -i readable more than once: standard input (`-`) is stored in a file
 * (engine/cli/spool.h), for a job beside OUT. */
enum err command_input(struct config *with, const struct config *c, int job);

/* Checks --window, the tokens of a window of `--text`, and --prefix, its prompt. ERR_USAGE. */
enum err command_window_check(const struct config *c);
/* The tokens of --text, without added tokens; at least one window. The caller frees them. */
enum err command_text_ids(const struct run *r, int32_t **ids, int64_t *n);
/* The number of windows in n_ids tokens; at most --limit. */
int64_t command_windows(const struct config *c, int64_t n_ids);
/* The windows as rows to score: --prefix tokens of prompt, the rest is the continuation. */
enum err command_window_rows(const struct config *c, const int32_t *ids, int64_t windows,
                             struct request *requests);

#endif
