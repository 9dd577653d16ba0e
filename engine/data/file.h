/* engine/data/file.h - reads regular files that somebody else wrote, by position.
 *
 * Owns: the descriptor, and the size and time that the file had when it was opened. Refuses:
 * writing, mmap, files that are not regular (a FIFO would block, /dev/zero never ends). */
#ifndef ENGINE_DATA_FILE_H
#define ENGINE_DATA_FILE_H

#include "kernels/base/base.h"

struct file {
    char *path; // owned; as it was given, for messages
    int fd;     // -1: closed
    int64_t n_bytes;
    int64_t mtime_ns; // to detect a rewrite while the file is read
};

/* The error code of a failed open, by errno: ERR_FIT (memory or descriptors ran out), ERR_IO
 * (disk), else ERR_INPUT. */
enum err file_open_code(void);

/* As file_open_code(); ERR_INPUT also for "PATH: not a regular file". On error nothing is left to
 * close. */
enum err file_open(struct file *f, const char *path);
/* Accepts a zeroed or closed file. */
void file_close(struct file *f);

/* Reads exactly n_bytes at offset; the range must lie inside the file (else a CHECK fails).
 * ERR_CORRUPT "changed while reading": the file shrank or was rewritten since file_open; ERR_IO. */
enum err file_read(const struct file *f, int64_t offset, int64_t n_bytes, void *buf);

/* The whole of a small file into *buf (owned by the caller: free), followed by a NUL that *n_bytes
 * does not count. More than max_bytes is ERR_INPUT. *found = 0 and OK when there is no such file.
 */
enum err file_load(const char *path, int64_t max_bytes, char **buf, int64_t *n_bytes, int *found);

/* May a flag write to `path`: does nothing exist there, or a regular file that is not read-only, in
 * a writable folder? Does not follow a symbolic link. ERR_USAGE names path and flag. */
enum err file_output_check(const char *flag, const char *path);

#endif
