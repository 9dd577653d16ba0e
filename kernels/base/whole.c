/* kernels/base/whole.c - see whole.h. */
#include "kernels/base/whole.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMP_NAMES 100 // tried in turn: killed processes with this pid may have left some

void standing_look(struct standing *s, const char *path)
{
    struct stat st;
    *s = (struct standing){0};
    if (lstat(path, &st) == 0)
        *s = (struct standing){1, S_ISREG(st.st_mode), st.st_dev, st.st_ino};
}

/* Falls back to link(2), which does not replace a file either. Without both, only the check just
 * before the rename protects `path`. */
static int rename_new(const char *temp, const char *path)
{
    if (renameat2(AT_FDCWD, temp, AT_FDCWD, path, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    if (link(temp, path) == 0)
        return unlink(temp);
    struct standing now;
    standing_look(&now, path);
    errno = EEXIST;
    return now.there ? -1 : rename(temp, path);
}

enum err standing_replace(const struct standing *was, const char *temp, const char *path)
{
    struct standing now;
    standing_look(&now, path);
    int same = now.regular && now.ino == was->ino && now.dev == was->dev, bad = -1;
    errno = EEXIST;
    if (!was->there || !now.there)
        bad = rename_new(temp, path);
    else if (same)
        bad = rename(temp, path);
    if (!bad)
        return OK;
    if (errno == EEXIST)
        return fail(ERR_JOB,
                    "%.400s: another program wrote this file meanwhile, sluice left it alone (move "
                    "it away; the new contents are in %.400s)",
                    path, temp);
    return fail(ERR_IO, "%.512s: rename: %s", path, strerror(errno));
}

/* Opens a file without a name in the folder of `path`, so that a killed process leaves nothing
 * behind. -1: the file system has no such files, or /proc, which is needed to name one, is
 * missing. */
static int open_unnamed(const char *path)
{
    char folder[WHOLE_PATH_BYTES];
    snprintf(folder, sizeof folder, "%s", path);
    return access("/proc/self/fd", X_OK) == 0
               ? open(dirname(folder), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666)
               : -1;
}

static void temp_name(struct whole_file *w, int i)
{
    snprintf(w->temp, sizeof w->temp, "%.4150s.%ld-%d.tmp", w->path, (long)getpid(), i);
}

/* Gives the unnamed file its temporary name. */
static int name_unnamed(struct whole_file *w)
{
    char of[40];
    int bad = -1;
    snprintf(of, sizeof of, "/proc/self/fd/%d", fileno(w->f));
    for (int i = 0; bad && i < TEMP_NAMES; i++) {
        temp_name(w, i);
        bad = linkat(AT_FDCWD, of, AT_FDCWD, w->temp, AT_SYMLINK_FOLLOW);
        if (bad && errno != EEXIST)
            break;
    }
    return bad;
}

enum err whole_open(struct whole_file *w, const char *path)
{
    *w = (struct whole_file){0};
    standing_look(&w->was, path);
    if (w->was.there && !w->was.regular)
        return fail(ERR_USAGE, "%.512s: is not a regular file", path);
    if (snprintf(w->path, sizeof w->path, "%s", path) >= (int)sizeof w->path - 40)
        return fail(ERR_USAGE, "%.512s: the path is too long", path);
    int fd = open_unnamed(w->path);
    w->unnamed = fd >= 0;
    for (int i = 0; fd < 0 && i < TEMP_NAMES; i++) {
        temp_name(w, i);
        fd = open(w->temp, O_RDWR | WHOLE_NEW, 0666);
        if (fd < 0 && errno != EEXIST)
            break;
    }
    w->f = fd >= 0 ? fdopen(fd, "w+") : NULL;
    if (w->f)
        return OK;
    int why = errno;
    if (fd >= 0)
        close(fd);
    if (fd >= 0 && !w->unnamed)
        unlink(w->temp);
    return fail(ERR_IO, "%.512s: %s", path, strerror(why));
}

enum err whole_end(struct whole_file *w)
{
    if (!w->f)
        return OK;
    errno = 0;
    int bad = ferror(w->f) | (fflush(w->f) != 0);
    bad = bad || (fsync(fileno(w->f)) != 0 && errno != EINVAL);
    bad = bad || (w->unnamed && name_unnamed(w) != 0);
    int named = !bad || !w->unnamed, why = errno;
    bad |= fclose(w->f) != 0;
    w->f = NULL;
    enum err err = bad ? fail(ERR_IO, "%.512s: cannot be written: %s", w->path,
                              why ? strerror(why) : "disk full?")
                       : standing_replace(&w->was, w->temp, w->path);
    if (err == ERR_IO && named)
        unlink(w->temp);
    return err;
}

void whole_drop(struct whole_file *w)
{
    if (!w->f)
        return;
    fclose(w->f);
    if (!w->unnamed)
        unlink(w->temp);
    w->f = NULL;
}

FILE *regular_open(const char *path, const char **why)
{
    struct stat st = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int regular = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    FILE *f = regular ? fdopen(fd, "r") : NULL;
    if (f)
        return f;
    if (fd >= 0)
        close(fd);
    if (fd >= 0 && !regular)
        errno = S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
    *why = errno == EINVAL ? "not a regular file" : strerror(errno);
    return NULL;
}
