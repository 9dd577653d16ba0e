/* offload/machine_file.h - the text of a machine file, for the file itself and for the cache.
 *
 * A line is `key = value`; a measured value is followed by its spread and the number of samples:
 *     nvme_read = 2.8e+09 4.1e+07 18 # bytes per second, sustained
 * Owns: that text. Refuses: the table of rates (policy/machine.h); checks of whole machine files
 * (machine_file_read() in probe.h). */
#ifndef OFFLOAD_MACHINE_FILE_H
#define OFFLOAD_MACHINE_FILE_H

#include "kernels/base/base.h"
#include "policy/machine.h"

#define MACHINE_FILE_BYTES_MAX (64 << 10)
#define MACHINE_TEXT_BYTES     (8 << 10) // every key with its values and unit, and a comment

/* Parses n_bytes at text (no NUL needed at the end); `path` begins every message. ERR_INPUT. */
enum err machine_text_parse(struct machine *m, const char *text, int64_t n_bytes, const char *path);
/* Writes comment and known keys into text[cap], NUL-terminated. Returns the length, -1: cap is too
 * small. */
int machine_text_format(const struct machine *m, const char *comment, char *text, int cap);
/* Reads a whole file, at most MACHINE_FILE_BYTES_MAX bytes, into text. ERR_INPUT. */
enum err machine_text_load(const char *path, char *text, int64_t *n_bytes);
/* Writes n_bytes through a temporary file. ERR_IO; ERR_JOB: another file took the name. */
enum err machine_text_save(const char *path, const char *text, int64_t n_bytes);

#endif
