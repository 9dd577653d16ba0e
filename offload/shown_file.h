/* offload/shown_file.h - what runs of a model showed of the machine's rates, kept in the cache
 * folder.
 *
 * Owns: the file, one for each (machine, model, format): its name, its text, its checksum. Refuses:
 * to judge a run (policy/correct.h). What was probed stays what it is: this stands beside it. */
#ifndef OFFLOAD_SHOWN_FILE_H
#define OFFLOAD_SHOWN_FILE_H

#include "offload/probe_model.h"
#include "policy/correct.h"

/* DIR/probe-shown-HASH.cfg: of this machine (CPU, threads, instruction set, compute format, disk,
 * device) and this model's ops. ERR_USAGE: too long. */
enum err shown_file_path(const struct probe_model *p, const struct probe_config *c,
                         const char *cache_dir, char *path, int cap);
/* No runs where there is no file, or an old or damaged one. */
void shown_file_read(struct shown *s, const char *path);
/* One run more. Of two that end at once one is lost; a file that cannot be written costs no more
 * than what it would have said. */
void shown_file_add(const char *path, const struct shown_run *run);

#endif
