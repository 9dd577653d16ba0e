/* offload/scratch.c - see scratch.h.
 *
 * Note: the files have no names, so their space is freed even if the process is killed. */
#include "offload/scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* ---- the list ---- */

static int is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* The folder at *at, which moves behind it. 0: there is none. */
static int next_folder(const char **at, char folder[SCRATCH_PATH_BYTES])
{
    if (!*at)
        return 0;
    const char *comma = is_folder(*at) ? NULL : strchr(*at, ',');
    const size_t n = comma ? (size_t)(comma - *at) : strlen(*at);
    snprintf(folder, SCRATCH_PATH_BYTES, "%.*s", (int)min_i64((int64_t)n, SCRATCH_PATH_BYTES), *at);
    *at = comma ? comma + 1 : NULL;
    return 1;
}

int scratch_count(const char *list)
{
    char folder[SCRATCH_PATH_BYTES];
    int n = 0;
    for (const char *at = list; n <= SCRATCH_MAX && next_folder(&at, folder);)
        n++;
    return n;
}

enum err scratch_check(const char *list)
{
    char folder[SCRATCH_PATH_BYTES];
    dev_t devices[SCRATCH_MAX];
    int n = 0, shared = 0;
    for (const char *at = list; next_folder(&at, folder); n++) {
        struct stat st;
        if (n == SCRATCH_MAX)
            return fail(ERR_USAGE, "%s: offload directory: more than %d folders", list,
                        SCRATCH_MAX);
        if (stat(folder, &st) != 0)
            return fail(ERR_USAGE, "%s: offload directory: %s", folder, strerror(errno));
        if (!S_ISDIR(st.st_mode))
            return fail(ERR_USAGE, "%s: offload directory: not a directory", folder);
        for (int i = 0; i < n; i++)
            shared |= devices[i] == st.st_dev;
        devices[n] = st.st_dev;
    }
    if (shared)
        log_line(LOG_WARN,
                 "--offload-dir %s: two of these folders are on one file system: that is not "
                 "faster than one of them",
                 list);
    return OK;
}

/* ---- room ---- */

enum err scratch_room(const char *list, struct scratch_room *room)
{
    char folder[SCRATCH_PATH_BYTES];
    dev_t devices[SCRATCH_MAX];
    int64_t free_bytes[SCRATCH_MAX];
    int n = 0, sharing[SCRATCH_MAX] = {0};
    *room = (struct scratch_room){.free_bytes = -1};
    for (const char *at = list; n < SCRATCH_MAX && next_folder(&at, folder); n++) {
        struct stat st;
        struct statvfs fs;
        if (stat(folder, &st) != 0 || statvfs(folder, &fs) != 0)
            return fail(ERR_IO, "%s: %s", folder, strerror(errno));
        devices[n] = st.st_dev;
        free_bytes[n] = (int64_t)fs.f_bavail * (int64_t)fs.f_frsize;
        const uint64_t device = (uint64_t)st.st_dev;
        room->id = n == 0 ? device : mix64(room->id) ^ device;
        for (int i = 0; i <= n; i++)
            sharing[n] += devices[i] == st.st_dev;
        if (sharing[n] == 1)
            room->total_bytes += (int64_t)fs.f_blocks * (int64_t)fs.f_frsize;
        if (n == 0) {
            room->dev_major = major(st.st_dev);
            room->dev_minor = minor(st.st_dev);
        }
    }
    for (int i = 0; i < n; i++) {
        int of_device = 0;
        for (int k = 0; k < n; k++)
            of_device += devices[k] == devices[i];
        const int64_t all = free_bytes[i] / of_device * n;
        room->free_bytes = i == 0 ? all : min_i64(room->free_bytes, all);
    }
    return OK;
}

/* ---- files ---- */

static enum err file_open(const char *folder, int *fd)
{
    *fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (*fd >= 0)
        return OK;
    char name[SCRATCH_PATH_BYTES + 32]; // file systems without O_TMPFILE
    snprintf(name, sizeof name, "%s/sluice-scratch-XXXXXX", folder);
    *fd = mkostemp(name, O_CLOEXEC);
    if (*fd < 0)
        return fail(ERR_IO, "%s: cannot create a scratch file: %s (--offload-dir)", folder,
                    strerror(errno));
    unlink(name);
    return OK;
}

enum err scratch_open(struct scratch *s, const char *list)
{
    char folder[SCRATCH_PATH_BYTES];
    *s = (struct scratch){0};
    for (const char *at = list; s->n < SCRATCH_MAX && next_folder(&at, folder);) {
        enum err e = file_open(folder, &s->fds[s->n]);
        if (e != OK) {
            scratch_close(s);
            return e;
        }
        s->n++;
    }
    return OK;
}

enum err scratch_reserve(const struct scratch *s, const char *list, int64_t n_bytes)
{
    const int64_t each =
        s->n == 1 ? n_bytes
                  : ceil_div(ceil_div(n_bytes, RING_STRIPE_BYTES), s->n) * RING_STRIPE_BYTES;
    for (int i = 0; i < s->n; i++) {
        int e = posix_fallocate(s->fds[i], 0, each);
        if (e == EOPNOTSUPP || e == EINVAL)
            e = ftruncate(s->fds[i], each) == 0 ? 0 : errno;
        if (e != 0)
            return fail(ERR_IO,
                        "%s: cannot reserve %lld bytes of scratch: %s (--offload-dir, --mem-disk)",
                        list, (long long)n_bytes, strerror(e));
    }
    return OK;
}

enum err scratch_add(const struct scratch *s, struct ring *ring, const char *name, int *file)
{
    int files[SCRATCH_MAX];
    CHECK(s->n > 0);
    for (int i = 0; i < s->n; i++)
        TRY(ring_file_add(ring, name, s->fds[i], O_RDWR, &files[i]));
    return ring_stripe_add(ring, name, files, s->n, file);
}

void scratch_close(struct scratch *s)
{
    for (int i = 0; i < s->n; i++)
        close(s->fds[i]);
    s->n = 0;
}
