/* tests/fuzz/memfile.c - see fuzz.h. Owns the wrapped calls; paths outside FUZZ_DIR and descriptors
 * that are not its own go to the C library. */
#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FD_FIRST    (1 << 20) // no real descriptor
#define WRITE_BYTES (1 << 20)

struct memfile {
    char path[64];
    int64_t n_bytes;
    const uint8_t *head, *tail; // borrowed
    int64_t n_head, n_tail;
    uint8_t *room; // of a writable file: its bytes
};

static struct memfile files[FUZZ_FILES_MAX];
static int n_files, n_open;
static uint8_t written[WRITE_BYTES];

int __real_open(const char *path, int flags, ...);
int __real_stat(const char *path, struct stat *s);
int __real_lstat(const char *path, struct stat *s);
int __real_fstat(int fd, struct stat *s);
int __real_close(int fd);
int __real_flock(int fd, int operation);
int __real_fdatasync(int fd);
int __real_ftruncate(int fd, off_t n);
off_t __real_lseek(int fd, off_t offset, int whence);
ssize_t __real_pread(int fd, void *buf, size_t n, off_t offset);
ssize_t __real_pwrite(int fd, const void *buf, size_t n, off_t offset);
FILE *__real_fopen(const char *path, const char *mode);

int __wrap_open(const char *path, int flags, ...);
int __wrap_stat(const char *path, struct stat *s);
int __wrap_lstat(const char *path, struct stat *s);
int __wrap_fstat(int fd, struct stat *s);
int __wrap_close(int fd);
int __wrap_flock(int fd, int operation);
int __wrap_fdatasync(int fd);
int __wrap_ftruncate(int fd, off_t n);
off_t __wrap_lseek(int fd, off_t offset, int whence);
ssize_t __wrap_pread(int fd, void *buf, size_t n, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *buf, size_t n, off_t offset);
FILE *__wrap_fopen(const char *path, const char *mode);

/* ---- which files there are ---- */

static struct memfile *file_new(const char *name)
{
    CHECK(n_files < FUZZ_FILES_MAX);
    struct memfile *f = &files[n_files++];
    *f = (struct memfile){.n_bytes = 0};
    CHECK(snprintf(f->path, sizeof f->path, "%s/%s", FUZZ_DIR, name) < (int)sizeof f->path);
    return f;
}

void fuzz_file_sparse(const char *name, int64_t n_bytes, const void *head, int64_t n_head,
                      const void *tail, int64_t n_tail)
{
    struct memfile *f = file_new(name);
    f->n_bytes = n_bytes;
    f->head = head;
    f->n_head = n_head;
    f->tail = tail;
    f->n_tail = n_tail;
}

void fuzz_file(const char *name, const void *data, size_t n)
{
    fuzz_file_sparse(name, (int64_t)n, data, (int64_t)n, NULL, 0);
}

void fuzz_file_writable(const char *name, const void *data, size_t n)
{
    CHECK(n + FUZZ_WRITE_ROOM <= sizeof written);
    fuzz_file(name, written, n);
    files[n_files - 1].room = written;
    memcpy(written, data, n);
}

void fuzz_files_clear(void)
{
    n_files = n_open = 0;
}

int fuzz_files_open(void)
{
    return n_open;
}

/* ---- the calls ---- */

static int is_ours(const char *path)
{
    return strncmp(path, FUZZ_DIR, sizeof FUZZ_DIR - 1) == 0;
}

static struct memfile *by_path(const char *path)
{
    for (int i = 0; i < n_files; i++)
        if (strcmp(files[i].path, path) == 0)
            return &files[i];
    errno = ENOENT;
    return NULL;
}

static struct memfile *by_fd(int fd)
{
    return fd >= FD_FIRST && fd < FD_FIRST + n_files ? &files[fd - FD_FIRST] : NULL;
}

static void stat_fill(const struct memfile *f, struct stat *s)
{
    *s = (struct stat){.st_mode = S_IFREG | 0600, .st_size = f->n_bytes, .st_nlink = 1};
}

int __wrap_open(const char *path, int flags, ...)
{
    if (!is_ours(path)) // nobody here makes files that are not in memory
        return __real_open(path, flags);
    struct memfile *f = by_path(path);
    if (!f)
        return -1;
    n_open++;
    return FD_FIRST + (int)(f - files);
}

int __wrap_stat(const char *path, struct stat *s)
{
    if (!is_ours(path))
        return __real_stat(path, s);
    if (strcmp(path, FUZZ_DIR) == 0) {
        *s = (struct stat){.st_mode = S_IFDIR | 0700};
        return 0;
    }
    const struct memfile *f = by_path(path);
    if (f)
        stat_fill(f, s);
    return f ? 0 : -1;
}

int __wrap_lstat(const char *path, struct stat *s)
{
    return is_ours(path) ? __wrap_stat(path, s) : __real_lstat(path, s);
}

int __wrap_fstat(int fd, struct stat *s)
{
    const struct memfile *f = by_fd(fd);
    if (!f)
        return __real_fstat(fd, s);
    stat_fill(f, s);
    return 0;
}

int __wrap_close(int fd)
{
    if (!by_fd(fd))
        return __real_close(fd);
    n_open--;
    return 0;
}

int __wrap_flock(int fd, int operation)
{
    return by_fd(fd) ? 0 : __real_flock(fd, operation);
}

int __wrap_fdatasync(int fd)
{
    return by_fd(fd) ? 0 : __real_fdatasync(fd);
}

int __wrap_ftruncate(int fd, off_t n)
{
    struct memfile *f = by_fd(fd);
    if (!f)
        return __real_ftruncate(fd, n);
    CHECK(f->room && n >= 0 && n <= f->n_bytes); // the product only cuts
    f->n_bytes = f->n_head = n;
    return 0;
}

off_t __wrap_lseek(int fd, off_t offset, int whence)
{
    const struct memfile *f = by_fd(fd);
    if (!f)
        return __real_lseek(fd, offset, whence);
    CHECK(whence == SEEK_END && offset == 0);
    return f->n_bytes;
}

/* Copies what of `from`, which stands at `at` of the file, lies in [offset, offset + n). */
static void copy_part(uint8_t *to, int64_t offset, int64_t n, const uint8_t *from, int64_t at,
                      int64_t n_from)
{
    const int64_t first = max_i64(offset, at), last = min_i64(offset + n, at + n_from);
    if (first < last)
        memcpy(to + (first - offset), from + (first - at), (size_t)(last - first));
}

ssize_t __wrap_pread(int fd, void *buf, size_t n, off_t offset)
{
    const struct memfile *f = by_fd(fd);
    if (!f)
        return __real_pread(fd, buf, n, offset);
    CHECK(offset >= 0);
    if (offset >= f->n_bytes)
        return 0;
    n = (size_t)min_i64((int64_t)n, f->n_bytes - offset);
    if (offset + (int64_t)n > f->n_head)
        memset(buf, 0, n);
    copy_part(buf, offset, (int64_t)n, f->head, 0, f->n_head);
    copy_part(buf, offset, (int64_t)n, f->tail, f->n_bytes - f->n_tail, f->n_tail);
    return (ssize_t)n;
}

ssize_t __wrap_pwrite(int fd, const void *buf, size_t n, off_t offset)
{
    struct memfile *f = by_fd(fd);
    if (!f)
        return __real_pwrite(fd, buf, n, offset);
    CHECK(f->room && offset >= 0 && offset <= f->n_bytes && n <= WRITE_BYTES - (size_t)offset);
    memcpy(f->room + offset, buf, n);
    f->n_bytes = f->n_head = max_i64(f->n_bytes, offset + (int64_t)n);
    return (ssize_t)n;
}

FILE *__wrap_fopen(const char *path, const char *mode)
{
    if (!is_ours(path))
        return __real_fopen(path, mode);
    const struct memfile *f = by_path(path);
    CHECK(mode[0] == 'r' && (!f || f->n_bytes == f->n_head));
    return f ? fmemopen((void *)(uintptr_t)f->head, (size_t)f->n_bytes, "r") : NULL;
}
