/* engine/cli/commands.h - the commands of the program, and what they and bench/ share.
 *
 * Owns: standard input and output, and words on them. A command gets its flags parsed and checked
 * (engine/api/config.h, outputs.h); its error is what the program exits with. */
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

/* A copy of c whose -i can be read again: standard input (`-`) becomes a file (engine/cli/spool.h),
 * kept beside OUT for a job. */
enum err command_input(struct config *with, const struct config *c, int job);

/* `--text` cut into windows of --window tokens, the first --prefix of each a prompt. ERR_USAGE. */
enum err command_window_check(const struct config *c);
/* The tokens of --text, none added; one window or more. The caller frees them. */
enum err command_text_ids(const struct run *r, int32_t **ids, int64_t *n);
/* How many windows n_ids tokens have; at most --limit. */
int64_t command_windows(const struct config *c, int64_t n_ids);
/* The windows as rows to score: the first --prefix tokens are prompt, the rest is forced. */
enum err command_window_rows(const struct config *c, const int32_t *ids, int64_t windows,
                             struct request *requests);

#endif
