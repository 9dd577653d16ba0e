/* engine/api/outputs.h - which paths a command may write.
 *
 * Owns: the rule for every flag that names a file to write, asked once, before a command opens,
 * makes or spools anything. Refuses: to open or change a file; kernels/base/whole.h does that. */
#ifndef ENGINE_API_OUTPUTS_H
#define ENGINE_API_OUTPUTS_H

#include "engine/api/config.h"

/* The OUT of `-o -` in the folder of --work-dir. */
#define SPOOL_OUT "rows.jsonl"

/* ERR_USAGE, with flag and path, when a flag would write
 * - through a symbolic link, or to a device, a FIFO, a socket, a directory or a read-only file;
 * - to a file that the command reads (rows, a file of the model, a part of merge);
 * - to OUT, to one of OUT's companions, or to another flag's file, under whatever name;
 * - over a file that sluice did not write, without --overwrite. (An OUT that is there belongs to a
 *   job or not: the job says so, ERR_JOB.)
 * `-o -` of plan, probe and bench becomes their output on stdout; of run and score c->to_stdout is
 * set, and c->out is in --work-dir or NULL. */
enum err outputs_check(struct config *c, enum config_command command);

#endif
