/* engine/cli/spool.h - standard input and standard output as files: a job reads its rows twice, and
 * again when it resumes; and its OUT appears whole, in input order.
 *
 * Owns: `-i -`, `-o -` and --work-dir. Refuses: to read rows; what was fed before is compared byte
 * for byte. */
#ifndef ENGINE_CLI_SPOOL_H
#define ENGINE_CLI_SPOOL_H

#include "engine/api/config.h"

/* Standard input into OUT.input, which stays beside OUT; *path names it. Where OUT.input is there
 * already: no input at all means that file again, input that begins with it takes its place (rows
 * were appended), other input is ERR_JOB unless --overwrite. *made 1: OUT.input was not there.
 * ERR_IO, ERR_STOPPED. */
enum err spool_job(const struct config *c, char *path, int cap, int *made);

/* For `-o -` c->out becomes a file in --work-dir (a folder that is made if it is missing), or,
 * without --work-dir, in a new folder of $TMPDIR. With any other -o it does nothing. ERR_IO, also
 * when stdout is closed; ERR_USAGE. */
enum err spool_out_begin(struct config *c);
/* Ends a command that spool_out_begin() prepared; `err` is the error of the job. A complete OUT is
 * copied to stdout, and a folder of $TMPDIR is removed. A folder of $TMPDIR stays when its rows are
 * not on stdout; the error then names the folder. Returns `err`, or ERR_IO or ERR_STOPPED of the
 * copy. */
enum err spool_out_end(const struct config *c, enum err err);

/* Standard input into a file without a name, for a look; *path opens it until the process ends. */
enum err spool_look(const struct config *c, char *path, int cap);

#endif
