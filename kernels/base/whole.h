/* kernels/base/whole.h - writes files that appear under their name only when complete, and never
 * replace a file of another program.
 *
 * Owns: the temporary file beside PATH and the final rename. Refuses: symbolic links, anything but
 * a new regular file, and replacing a file that appeared at PATH meanwhile. Which paths a flag may
 * name: engine/api/outputs.h. */
#ifndef KERNELS_BASE_WHOLE_H
#define KERNELS_BASE_WHOLE_H

#include <stdio.h>
#include <sys/types.h>

#include "kernels/base/base.h"

#define WHOLE_PATH_BYTES 4200

/* Flags of open(2) for every file that sluice writes: refuses a symbolic link, and does not wait
 * for the other end of a FIFO. */
#define WHOLE_OPEN (O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)
/* Flags for a file that must not exist yet. */
#define WHOLE_NEW (WHOLE_OPEN | O_CREAT | O_EXCL)

/* What exists at a path: nothing (there 0), or a file identified by its inode. */
struct standing {
    int there, regular;
    dev_t dev;
    ino_t ino;
};

/* Does not follow symbolic links: a link is there 1, regular 0. */
void standing_look(struct standing *s, const char *path);
/* Renames `temp` to `path` if nothing is at `path`, or still the file in `was`. ERR_JOB: another
 * file is there now; that file and `temp` are left unchanged. */
enum err standing_replace(const struct standing *was, const char *temp, const char *path);

struct whole_file {
    FILE *f;     // owned; NULL: closed
    int unnamed; // 1: the file has no name before whole_end()
    struct standing was;
    char path[WHOLE_PATH_BYTES], temp[WHOLE_PATH_BYTES];
};

/* Opens a file without a name, or PATH.PID-N.tmp where the file system has no unnamed files.
 * ERR_IO; ERR_USAGE: PATH is too long, or exists and is not a regular file. */
enum err whole_open(struct whole_file *w, const char *path);
/* Syncs the file and renames it to PATH. ERR_IO: the temporary file is removed; ERR_JOB: as
 * standing_replace(). Accepts a closed or zeroed file. */
enum err whole_end(struct whole_file *w);
/* Removes the temporary file and leaves PATH unchanged. Accepts a closed or zeroed file. */
void whole_drop(struct whole_file *w);

/* Opens a regular file for reading; refuses a FIFO, which would wait for a writer. NULL: errno is
 * set (EINVAL: not a regular file) and *why says it in words. */
FILE *regular_open(const char *path, const char **why);

#endif
