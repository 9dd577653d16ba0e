/* engine/app/spool.h - standard input as a file: a job reads its rows twice, and again when it
 * resumes.
 *
 * Owns: `-i -`. Refuses: to read rows; what was fed before is compared byte for byte. */
#ifndef ENGINE_APP_SPOOL_H
#define ENGINE_APP_SPOOL_H

#include "kernels/base.h"

/* Standard input into OUT.input, which stays beside OUT; *path names it. Where OUT.input is there
 * already: no input at all means that file again, input that begins with it takes its place (rows
 * were appended), other input is ERR_JOB unless `overwrite`. *made 1: OUT.input was not there.
 * ERR_IO, ERR_STOPPED. */
enum err spool_job(const char *out, int overwrite, char *path, int cap, int *made);

/* Standard input into a file without a name, for a look; *path opens it until the process ends. */
enum err spool_look(char *path, int cap);

#endif
