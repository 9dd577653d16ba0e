/* engine/cli/spool.c - see spool.h.
 *
 * Note: the file appears by rename, complete; a run killed while reading leaves OUT.input
 * unchanged. */
#include "engine/cli/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/api/outputs.h"
#include "engine/job/job.h"
#include "kernels/base/whole.h"

#define SPOOL_PATH_BYTES 4096
#define COPY_BYTES       65536

static enum err write_block(int fd, const char *path, const char *data, ssize_t n)
{
    for (ssize_t done = 0; done < n;) {
        ssize_t put = write(fd, data + done, (size_t)(n - done));
        if (put < 0 && errno != EINTR)
            return fail(ERR_IO, "%.512s: write: %s", path, strerror(errno));
        done += put > 0 ? put : 0;
    }
    return OK;
}

static enum err copy_stdin(const struct config *c, int fd, const char *path, int64_t *n_bytes)
{
    static char block[COPY_BYTES]; // too large for a small stack
    *n_bytes = 0;
    for (;;) {
        ssize_t n = read(STDIN_FILENO, block, sizeof block);
        if (n == 0)
            return OK;
        if (*c->interrupted)
            return fail(ERR_STOPPED, "stdin: interrupted; the same command reads it again");
        if (n < 0 && errno != EINTR)
            return fail(ERR_USAGE, "stdin: %s", strerror(errno));
        if (n > 0)
            TRY(write_block(fd, path, block, n));
        *n_bytes += n > 0 ? n : 0;
    }
}

/* 1 if the file `fd` begins with all of the file `old`. */
static int begins_with(int fd, int old)
{
    static char a[COPY_BYTES], b[COPY_BYTES];
    for (off_t at = 0;;) {
        ssize_t n = pread(old, a, sizeof a, at);
        if (n <= 0)
            return n == 0;
        if (pread(fd, b, (size_t)n, at) != n || memcmp(a, b, (size_t)n) != 0)
            return 0;
        at += n;
    }
}

static enum err take_place(struct whole_file *w, int64_t n_bytes, int overwrite)
{
    const int fd = fileno(w->f);
    const char *path = w->path;
    int old = open(path, O_RDONLY | WHOLE_OPEN);
    int keep = old >= 0 && n_bytes == 0, fits = old < 0 || overwrite || begins_with(fd, old);
    if (old >= 0)
        close(old);
    if (keep) {
        log_line(LOG_INFO, "stdin: is empty, the rows of %s again", path);
        return OK; // the caller removes the new file
    }
    if (!fits)
        return fail(ERR_JOB,
                    "%.512s: holds other rows than stdin (-i %.512s resumes them, --overwrite "
                    "drops them)",
                    path, path);
    return whole_end(w);
}

enum err spool_job(const struct config *c, char *path, int cap, int *made)
{
    struct whole_file w;
    int64_t n_bytes;
    if (snprintf(path, (size_t)cap, "%s%s", c->out, job_suffixes[JOB_INPUT]) >= cap)
        return fail(ERR_USAGE, "%.512s: path too long", c->out);
    TRY(whole_open(&w, path));
    enum err err = copy_stdin(c, fileno(w.f), path, &n_bytes);
    if (err == OK)
        err = take_place(&w, n_bytes, c->overwrite);
    *made = err == OK && !w.was.there;
    whole_drop(&w);
    return err;
}

enum err spool_look(const struct config *c, char *path, int cap)
{
    const char *dir = getenv("TMPDIR");
    int64_t n_bytes;
    snprintf(path, (size_t)cap, "%s/sluice-stdin-XXXXXX", dir && *dir ? dir : "/tmp");
    int fd = mkstemp(path);
    if (fd < 0)
        return fail(ERR_IO, "%.512s: %s (TMPDIR)", path, strerror(errno));
    unlink(path);
    enum err err = copy_stdin(c, fd, path, &n_bytes);
    snprintf(path, (size_t)cap, "/proc/self/fd/%d", fd); // kept open: owned by the process
    return err;
}

/* ---- -o - ---- */

static char work_dir[SPOOL_PATH_BYTES], out_path[SPOOL_PATH_BYTES + 16];

enum err spool_out_begin(struct config *c)
{
    const char *temp = getenv("TMPDIR");
    if (!c->to_stdout)
        return OK;
    if ((fcntl(STDOUT_FILENO, F_GETFL) & O_ACCMODE) == O_RDONLY) // see keep_standard_files()
        return fail(ERR_IO, "stdout: is closed (-o FILE, or open stdout)");
    int n = c->work_dir ? snprintf(work_dir, sizeof work_dir, "%s", c->work_dir)
                        : snprintf(work_dir, sizeof work_dir, "%s/sluice-rows-XXXXXX",
                                   temp && *temp ? temp : "/tmp");
    if (n >= (int)sizeof work_dir)
        return fail(ERR_USAGE, "%.512s: --work-dir: path too long", work_dir);
    if (!c->work_dir && !mkdtemp(work_dir))
        return fail(ERR_IO, "%.512s: %s (--work-dir DIR, or TMPDIR)", work_dir, strerror(errno));
    if (c->work_dir && mkdir(work_dir, 0777) != 0 && errno != EEXIST)
        return fail(ERR_USAGE, "%.512s: --work-dir: %s", work_dir, strerror(errno));
    if (!c->work_dir)
        log_line(LOG_INFO,
                 "-o -: the job's files are in %s until its rows are on stdout "
                 "(--work-dir DIR takes another folder)",
                 work_dir);
    snprintf(out_path, sizeof out_path, "%s/%s", work_dir, SPOOL_OUT);
    c->out = out_path;
    return OK;
}

static enum err stdout_failed(int interrupted, int why)
{
    if (interrupted)
        return fail(ERR_STOPPED, "stdout: interrupted; the rows are in %.300s", out_path);
    return fail(ERR_IO, "stdout: %s; the rows are in %.300s", strerror(why), out_path);
}

static enum err copy_out(const struct config *c)
{
    static char block[COPY_BYTES];
    const int before = *c->interrupted; // a signal after the job's end
    int fd = open(out_path, O_RDONLY | WHOLE_OPEN);
    enum err err = fd < 0 ? fail(ERR_IO, "%.512s: %s", out_path, strerror(errno)) : OK;
    for (ssize_t n = 0; err == OK && (n = read(fd, block, sizeof block)) != 0;) {
        if (n < 0)
            err = fail(ERR_IO, "%.512s: %s", out_path, strerror(errno));
        for (ssize_t done = 0, put; err == OK && done<n; done += put> 0 ? put : 0) {
            put = write(STDOUT_FILENO, block + done, (size_t)(n - done));
            if (*c->interrupted != before || (put < 0 && errno != EINTR))
                err = stdout_failed(*c->interrupted != before, errno);
        }
    }
    if (fd >= 0)
        close(fd);
    return err;
}

/* Removes a folder created by sluice, after its rows were copied to stdout. */
static void remove_folder(void)
{
    char path[sizeof out_path + 16];
    unlink(out_path);
    for (int i = 0; i < N_JOB_COMPANIONS; i++) {
        snprintf(path, sizeof path, "%s%s", out_path, job_suffixes[i]);
        unlink(path);
    }
}

enum err spool_out_end(const struct config *c, enum err err)
{
    char text[512];
    if (!c->to_stdout)
        return err;
    enum err copied = err == OK || err == ERR_ROWS ? copy_out(c) : err;
    err = copied == OK ? err : copied;
    if (copied == OK && !c->work_dir)
        remove_folder();
    if (c->work_dir || rmdir(work_dir) == 0)
        return err;
    snprintf(text, sizeof text, "%s", err_text()); // the folder still contains rows
    return fail(err, "%s; the job is kept: the same command with --work-dir %.300s goes on", text,
                work_dir);
}
