/* kernels/base/whole.h - a new file gets its name when it is complete, and takes no foreign file's
 * name.
 *
 * Owns: the temporary name beside the final one, and the last rename. Refuses: to follow a symbolic
 * link, to open anything but a new regular file, and to replace a file that appeared under the name
 * while the new one was written. Which paths a flag may name: engine/api/outputs.h. */
#ifndef KERNELS_BASE_WHOLE_H
#define KERNELS_BASE_WHOLE_H

#include <stdio.h>
#include <sys/types.h>

#include "kernels/base/base.h"

#define WHOLE_PATH_BYTES 4200

/* Flags of open(2) for every file that sluice writes: a symbolic link is refused, and opening a
 * FIFO does not wait for its other end. */
#define WHOLE_OPEN (O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)
/* Flags for a file that must not be there yet. */
#define WHOLE_NEW (WHOLE_OPEN | O_CREAT | O_EXCL)

/* What has a path: nothing (there 0), or a file known by its inode. */
struct standing {
    int there, regular;
    dev_t dev;
    ino_t ino;
};

/* Does not follow a symbolic link: a link is there, and not regular. */
void standing_look(struct standing *s, const char *path);
/* Renames `temp` to `path` if nothing stands at `path`, or still the file that `was` says. ERR_JOB:
 * another file stands there now; that file and `temp` stay as they are. */
enum err standing_replace(const struct standing *was, const char *temp, const char *path);

struct whole_file {
    FILE *f;     // owned; NULL: closed
    int unnamed; // 1: the file has no name before whole_end()
    struct standing was;
    char path[WHOLE_PATH_BYTES], temp[WHOLE_PATH_BYTES];
};

/* Makes a file without a name, or, where the file system has none, PATH.PID-N.tmp. ERR_IO;
 * ERR_USAGE: PATH is too long, or is there and not a regular file. */
enum err whole_open(struct whole_file *w, const char *path);
/* Writes all to the disk and renames. ERR_IO: nothing is left; ERR_JOB: see standing_replace().
 * Accepts a closed or zeroed one. */
enum err whole_end(struct whole_file *w);
/* Removes the temporary file; what stands at PATH stays. Accepts a closed or zeroed one. */
void whole_drop(struct whole_file *w);

/* Opens a file for reading, if the path is a regular file: reading a FIFO would wait for a writer.
 * NULL: errno (EINVAL: not regular), and the reason in words. */
FILE *regular_open(const char *path, const char **why);

#endif
