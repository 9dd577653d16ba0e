/* engine/cli/spool.h - standard input and output as files: a job reads its rows twice, and again
 * when it resumes; and its OUT appears complete, in input order.
 *
 * Owns: `-i -`, `-o -` and --work-dir. Refuses: parsing rows; compares input byte for byte. */
#ifndef ENGINE_CLI_SPOOL_H
#define ENGINE_CLI_SPOOL_H

#include "engine/api/config.h"

/* Copies standard input to OUT.input, which is kept beside OUT; *path names it. If OUT.input
 * exists: empty input means that file; input that begins with the file replaces it (rows were
 * appended); other input is ERR_JOB unless --overwrite. *made 1: it is new. ERR_IO, ERR_STOPPED. */
enum err spool_job(const struct config *c, char *path, int cap, int *made);

/* For `-o -`, sets c->out to a file in --work-dir (created if missing), or without --work-dir in a
 * new folder in $TMPDIR; else does nothing. ERR_IO (also: stdout is closed), ERR_USAGE. */
enum err spool_out_begin(struct config *c);
/* Ends a command that spool_out_begin() prepared; `err` is the error of the job. Copies a complete
 * OUT to stdout and removes a folder in $TMPDIR. If the rows are not on stdout, the folder is kept
 * and named in the error. Returns `err`, or ERR_IO or ERR_STOPPED of the copy. */
enum err spool_out_end(const struct config *c, enum err err);

/* Copies standard input to an unnamed file; *path opens it until the process ends. */
enum err spool_look(const struct config *c, char *path, int cap);

#endif
