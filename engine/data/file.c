/* engine/data/file.c - see file.h. Owns open, pread and the check that the file does not change.
 *
 * Note: O_NONBLOCK keeps open() from waiting for the writer of a FIFO; it has no effect on regular
 * files. */
#include "engine/data/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_BYTES_MAX (1 << 30) // one pread moves at most 2 GiB - 4 KiB on Linux

static int64_t mtime_of(const struct stat *s)
{
    return (int64_t)s->st_mtim.tv_sec * 1000000000 + s->st_mtim.tv_nsec;
}

static enum err fd_check(struct file *f, const char *path)
{
    struct stat s;
    if (fstat(f->fd, &s) != 0)
        return fail(ERR_INPUT, "%.512s: %s", path, strerror(errno));
    if (!S_ISREG(s.st_mode))
        return fail(ERR_INPUT, "%.512s: not a regular file", path);
    f->n_bytes = s.st_size;
    f->mtime_ns = mtime_of(&s);
    f->path = strdup(path);
    return f->path ? OK : fail(ERR_FIT, "no memory for a path");
}

enum err file_open_code(void)
{
    if (errno == ENOMEM || errno == EMFILE || errno == ENFILE)
        return ERR_FIT;
    return errno == EIO ? ERR_IO : ERR_INPUT;
}

enum err file_open(struct file *f, const char *path)
{
    *f = (struct file){.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (f->fd < 0)
        return fail(file_open_code(), "%.512s: %s", path, strerror(errno));
    enum err e = fd_check(f, path);
    if (e != OK) {
        close(f->fd);
        f->fd = -1;
    }
    return e;
}

void file_close(struct file *f)
{
    if (f->path) // a zeroed struct does not own descriptor 0
        close(f->fd);
    free(f->path);
    *f = (struct file){.fd = -1};
}

enum err file_read(const struct file *f, int64_t offset, int64_t n_bytes, void *buf)
{
    CHECK(offset >= 0 && n_bytes >= 0 && offset <= f->n_bytes && n_bytes <= f->n_bytes - offset);
    struct stat s;
    for (int64_t done = 0; done < n_bytes;) {
        ssize_t got = pread(f->fd, (char *)buf + done,
                            (size_t)min_i64(n_bytes - done, READ_BYTES_MAX), offset + done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail(ERR_IO, "%.512s: byte %lld: %s", f->path, (long long)(offset + done),
                        strerror(errno));
        if (got == 0)
            return fail(ERR_CORRUPT, "%.512s: changed while reading: ends at byte %lld of %lld",
                        f->path, (long long)(offset + done), (long long)f->n_bytes);
        done += got;
    }
    if (fstat(f->fd, &s) != 0 || s.st_size != f->n_bytes || mtime_of(&s) != f->mtime_ns)
        return fail(ERR_CORRUPT, "%.512s: changed while reading", f->path);
    return OK;
}

static enum err load(const struct file *f, int64_t max_bytes, char **buf, int64_t *n_bytes)
{
    if (f->n_bytes > max_bytes)
        return fail(ERR_INPUT, "%.512s: %lld bytes, at most %lld are read", f->path,
                    (long long)f->n_bytes, (long long)max_bytes);
    char *text = malloc((size_t)f->n_bytes + 1);
    if (!text)
        return fail(ERR_FIT, "%.512s: no memory for %lld bytes", f->path, (long long)f->n_bytes);
    enum err e = file_read(f, 0, f->n_bytes, text);
    if (e != OK) {
        free(text);
        return e;
    }
    text[f->n_bytes] = 0;
    *buf = text;
    *n_bytes = f->n_bytes;
    return OK;
}

enum err file_load(const char *path, int64_t max_bytes, char **buf, int64_t *n_bytes, int *found)
{
    *buf = NULL;
    *n_bytes = 0;
    *found = 0;
    struct stat s;
    if (lstat(path, &s) != 0 && errno == ENOENT) // a dangling link is not an absent file
        return OK;
    struct file f;
    TRY(file_open(&f, path));
    enum err e = load(&f, max_bytes, buf, n_bytes);
    file_close(&f);
    *found = e == OK;
    return e;
}

enum err file_output_check(const char *flag, const char *path)
{
    char dir[4096];
    struct stat st;
    if (strcmp(path, "-") == 0)
        return fail(ERR_USAGE, "-: --%s: is written to a file, not to stdout (name a file)", flag);
    if (snprintf(dir, sizeof dir, "%s", path) >= (int)sizeof dir)
        return fail(ERR_USAGE, "%.512s: --%s: path too long", path, flag);
    int there = lstat(path, &st) == 0;
    const char *hint = strncmp(path, "/dev/", 5) == 0
                           ? "-o - is stdout, for run, score, plan, probe and bench"
                           : "name a regular file";
    if (there && S_ISLNK(st.st_mode))
        return fail(ERR_USAGE, "%s: --%s: is a symbolic link (%s)", path, flag, hint);
    if (there && !S_ISREG(st.st_mode))
        return fail(ERR_USAGE, "%s: --%s: is %s, not a regular file (%s)", path, flag,
                    S_ISDIR(st.st_mode) ? "a directory" : "a device, a FIFO or a socket", hint);
    if (there && (!(st.st_mode & 0222) || access(path, W_OK) != 0)) // root may write to all files
        return fail(ERR_USAGE, "%s: --%s: is read-only (another path)", path, flag);
    char *slash = strrchr(dir, '/');
    if (slash)
        slash[slash == dir] = 0;
    if (access(slash ? dir : ".", W_OK | X_OK) != 0)
        return fail(ERR_USAGE, "%s: --%s: its directory: %s", path, flag, strerror(errno));
    return OK;
}
