/* offload/pace_file.h - measured / predicted seconds of a model's runs, in the cache folder.
 *
 * Owns: the file's text and checksum. Refuses: its name (engine/api/run_rates.c); judging a run, or
 * making a factor of many (policy/pace.h). */
#ifndef OFFLOAD_PACE_FILE_H
#define OFFLOAD_PACE_FILE_H

#include "policy/pace.h"

/* No runs if the file is missing, old or damaged. */
void pace_file_read(struct pace_runs *s, const char *path);
/* Adds a run. Of two that are added at once one is lost; a file that cannot be written only makes
 * predictions worse. */
void pace_file_add(const char *path, const struct pace_run *run);

#endif
