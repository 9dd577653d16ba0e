/* engine/api/outputs.h - which paths a command may write.
 *
 * Owns: the rule for every flag that names an output file, checked once, before a command opens,
 * creates or spools anything. Refuses: opening files (kernels/base/whole.h). */
#ifndef ENGINE_API_OUTPUTS_H
#define ENGINE_API_OUTPUTS_H

#include "engine/api/config.h"

/* Name of OUT for `-o -`, in the folder of --work-dir. */
#define SPOOL_OUT "rows.jsonl"

/* ERR_USAGE, with flag and path, when a flag would write
 *     - through a symbolic link, or to a device, a FIFO, a socket, a directory or a read-only file;
 *     - to a file that the command reads (rows, a file of the model, a part of merge);
 *     - to OUT, to one of OUT's companions, or to another flag's file, even under another name;
 *     - over a file that sluice did not write, without --overwrite. (For an existing OUT the job
 *       checks whether it belongs to the job: ERR_JOB.)
 * `-o -` of plan, probe and bench selects stdout. For run and score it sets c->to_stdout, and
 * c->out is in --work-dir or NULL. */
enum err outputs_check(struct config *c, enum config_command command);

#endif
