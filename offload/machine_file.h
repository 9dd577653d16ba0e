/* offload/machine_file.h - the text of a machine file, for the file itself and for the cache.
 *
 * A line is `key = value`, behind it for what was measured the spread and the number of samples:
 *     nvme_read = 2.8e+09 4.1e+07 18 # bytes per second, sustained
 * Owns: that text. Refuses: the table of rates (policy/machine.h) and files (probe.h has
 * machine_file_read and _write). */
#ifndef OFFLOAD_MACHINE_FILE_H
#define OFFLOAD_MACHINE_FILE_H

#include "kernels/base/base.h"
#include "policy/machine.h"

#define MACHINE_FILE_BYTES_MAX (64 << 10)
#define MACHINE_TEXT_BYTES     (8 << 10) // every key with what belongs to it, and a comment

/* Parses n_bytes at text (a NUL behind them is not needed); `path` opens every message. */
enum err machine_text_parse(struct machine *m, const char *text, int64_t n_bytes, const char *path);
/* Writes comment and keys that are known into text[cap], NUL-terminated; returns the length, -1
 * when cap is short.
 */
int machine_text_format(const struct machine *m, const char *comment, char *text, int cap);
/* A whole small file: *n_bytes of at most MACHINE_FILE_BYTES_MAX into text. ERR_INPUT. */
enum err machine_text_load(const char *path, char *text, int64_t *n_bytes);
/* Writes n_bytes by way of a temporary file beside `path`. ERR_IO. */
enum err machine_text_save(const char *path, const char *text, int64_t n_bytes);

#endif
