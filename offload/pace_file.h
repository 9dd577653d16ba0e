/* offload/pace_file.h - how long runs of a model took by what was predicted, in the cache folder.
 *
 * Owns: the text of the file and its checksum. Refuses: its name (engine/api/run_rates.c); to judge
 * a run, or to draw a factor from many (policy/pace.h). */
#ifndef OFFLOAD_PACE_FILE_H
#define OFFLOAD_PACE_FILE_H

#include "policy/pace.h"

/* No runs where there is no file, or an old or damaged one. */
void pace_file_read(struct pace_runs *s, const char *path);
/* One run more. Of two that end at once one is lost; a file that cannot be written costs no more
 * than a worse prediction. */
void pace_file_add(const char *path, const struct pace_run *run);

#endif
