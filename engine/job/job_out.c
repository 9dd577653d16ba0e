/* engine/job/job_out.c - see job_impl.h. Owns OUT: made of lines that match the journal's
 * checksums, byte for byte, or not made.
 *
 * Note: the bytes that are compared are the bytes that are written. OUT.partial was open during the
 * whole job, and may have been changed since the lines were committed. */
#include "engine/job/job_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define WINDOW_BYTES ((int64_t)1 << 20)

/* OUT while it is made. */
struct making {
    struct job *job;
    int fd;       // of the new file; -1: lines are only checked
    char *window; // owned: [WINDOW_BYTES] lines of `part` from byte `at` on
    int64_t at, n;
    int part;
    int64_t written;    // bytes of the new file, without job->lines
    int64_t n_lost;     // rows whose lines have changed
    uint32_t lost_line; // of the first of them
    uint32_t crc;       // of the bytes of OUT
    int read_errno;     // of a failed read of OUT.partial; 0: none failed
};

static enum err flush(struct making *m)
{
    struct out *lines = &m->job->lines; // empty while OUT is made: used as buffer
    if (lines->failed)
        return fail(ERR_FIT, "no memory to copy rows");
    TRY(write_all(m->fd, m->job->paths.tmp, m->written, lines->p, lines->n));
    m->crc = crc32c(m->crc, lines->p, lines->n);
    m->written += lines->n;
    lines->n = 0;
    return OK;
}

/* End of the contiguous lines in OUT.partial that begin with the line of row k. */
static int64_t run_end(const struct job *job, int64_t k)
{
    int64_t end = (int64_t)job->rows[k].place;
    const uint64_t part = job->rows[k].part;
    for (; k < job->n_rows; k++) {
        const struct job_row *row = &job->rows[k];
        if (row->state == ROW_SKIPPED)
            continue;
        if ((int64_t)row->place != end || row->part != part)
            break;
        end += row->n;
    }
    return end;
}

/* Sets *p to bytes of OUT.partial at `at` and returns how many there are, up to `end`. 0: none, or
 * a read error. */
static int64_t look(struct making *m, int part, int64_t at, int64_t end, const char **p)
{
    if (part != m->part || at < m->at || at >= m->at + m->n) {
        const int fd = shared_lines(m->job, part);
        ssize_t n;
        do
            n = pread(fd, m->window, (size_t)min_i64(WINDOW_BYTES, end - at), at);
        while (n < 0 && errno == EINTR);
        m->read_errno = n < 0 ? errno : m->read_errno;
        m->part = part;
        m->at = at;
        m->n = n > 0 ? n : 0;
    }
    *p = m->window + (at - m->at);
    return min_i64(m->at + m->n, end) - at;
}

/* Checks one line and copies it if there is a new file. *sound 0: the line has changed. */
static enum err make_row(struct making *m, const struct job_row *row, int64_t end, int *sound)
{
    uint32_t crc = 0;
    for (int64_t done = 0; done < row->n;) {
        const char *p;
        int64_t n =
            min_i64(look(m, (int)row->part, (int64_t)row->place + done, end, &p), row->n - done);
        *sound = n > 0;
        if (!*sound)
            return OK;
        crc = crc32c(crc, p, n);
        done += n;
        if (m->fd < 0)
            continue;
        out_bytes(&m->job->lines, p, n);
        if (m->job->lines.n > WINDOW_BYTES)
            TRY(flush(m));
    }
    *sound = crc == row->crc;
    return OK;
}

/* All rows, in input order. Rows whose lines have changed become ROW_LOST. */
static enum err make_rows(struct making *m)
{
    struct job *job = m->job;
    int64_t end = -1; // of the run under way
    for (int64_t k = 0; k < job->n_rows; k++) {
        struct job_row *row = &job->rows[k];
        int sound;
        if (row->state == ROW_SKIPPED)
            continue;
        if (end < 0 || (int)row->part != m->part || (int64_t)row->place + row->n > end ||
            (int64_t)row->place < m->at)
            end = run_end(job, k);
        TRY(make_row(m, row, end, &sound));
        if (sound)
            continue;
        if (m->n_lost++ == 0)
            m->lost_line = row->line;
        job->counts.ok -= row->state == ROW_OK;
        job->counts.failed -= row->state == ROW_FAILED;
        job->counts.done--;
        row->state = ROW_LOST;
    }
    return m->fd >= 0 ? flush(m) : OK;
}

/* Sets lost rows back to waiting, durably, and returns the error. */
static enum err give_up(const struct making *m)
{
    struct job *job = m->job;
    if (job->config.claims)
        TRY(shared_give_up(job));
    for (int64_t k = 0; k < job->n_rows && !job->config.claims; k++)
        if (job->rows[k].state == ROW_LOST) {
            TRY(job_row_again(job, k));
            job->n_waiting++;
        }
    TRY(files_commit(job, 1));
    if (m->read_errno)
        return fail(ERR_IO,
                    "%.512s: %lld lines cannot be read: %s; the first is that of line %lu of the "
                    "input (the same command runs these rows again)",
                    job->paths.partial, (long long)m->n_lost, strerror(m->read_errno),
                    (unsigned long)m->lost_line);
    return fail(ERR_CORRUPT,
                "%.512s: %lld lines have changed since they were written, the first is that of "
                "line %lu of the input (the same command runs these rows again)",
                job->paths.partial, (long long)m->n_lost, (unsigned long)m->lost_line);
}

/* Renames `from` to OUT. An existing OUT is replaced only if --overwrite gave it up at the start,
 * or if it has these same bytes (an earlier run was killed after its rename). */
static enum err take_name(const struct making *m, const char *from)
{
    const struct job *job = m->job;
    const struct manifest_end end = {.out_bytes = m->written, .out_crc = m->crc};
    struct standing was = job->out_was;
    if (!job->config.overwrite) {
        standing_look(&was, job->paths.out);
        if (was.there && (!was.regular || files_check_out(job, &end) != OK))
            was.there = 0;
    }
    enum err err = standing_replace(&was, from, job->paths.out);
    if (err != ERR_JOB)
        return err;
    return fail(ERR_JOB,
                "%.400s: a file stands here that this job did not write, and is left as it is; "
                "the rows are in %.400s (move the other file away, or use --overwrite: the same "
                "command then makes OUT)",
                job->paths.out, job->paths.partial);
}

static enum err new_file(struct making *m)
{
    const char *tmp = m->job->paths.tmp;
    m->fd = open(tmp, O_WRONLY | WHOLE_NEW, 0666);
    if (m->fd < 0)
        return fail(ERR_IO, "%.512s: %s", tmp, strerror(errno));
    enum err err = make_rows(m);
    if (err == OK && m->n_lost == 0 && fsync(m->fd) != 0)
        err = fail(ERR_IO, "%.512s: fsync: %s", tmp, strerror(errno));
    if (close(m->fd) != 0 && err == OK)
        err = fail(ERR_IO, "%.512s: %s", tmp, strerror(errno));
    m->job->lines.n = 0;
    if (err == OK && m->n_lost == 0)
        err = take_name(m, tmp);
    if (err != OK || m->n_lost > 0)
        unlink(tmp); // frees its space; all rows are in OUT.partial
    return err;
}

/* Is the file of that name still the one that this job has open? */
static int same_file(int fd, const char *path)
{
    struct stat ours, named;
    return fstat(fd, &ours) == 0 && stat(path, &named) == 0 && ours.st_ino == named.st_ino &&
           ours.st_dev == named.st_dev;
}

/* --order completion: renames OUT.partial to OUT, after its lines were checked and later bytes cut
 * off. */
static enum err rename_partial(struct making *m)
{
    const struct job_paths *p = &m->job->paths;
    TRY(make_rows(m));
    if (m->n_lost > 0)
        return OK;
    for (const char *bytes; m->written < m->job->partial_bytes;) {
        int64_t n = look(m, 0, m->written, m->job->partial_bytes, &bytes);
        if (n <= 0)
            return fail(ERR_IO, "%.512s: byte %lld: cannot be read", p->partial,
                        (long long)m->written);
        m->crc = crc32c(m->crc, bytes, n);
        m->written += n;
    }
    if (ftruncate(m->job->partial_fd, m->job->partial_bytes) != 0 || fsync(m->job->partial_fd) != 0)
        return fail(ERR_IO, "%.512s: %s", p->partial, strerror(errno));
    return take_name(m, p->partial);
}

enum err out_complete(struct job *job)
{
    struct making m = {.job = job, .fd = -1, .window = malloc((size_t)WINDOW_BYTES)};
    int as_it_is = job->config.completion_order && !job->superseded &&
                   same_file(job->partial_fd, job->paths.partial);
    if (!m.window)
        return fail(ERR_FIT, "no memory to copy rows");
    posix_fadvise(job->partial_fd, 0, 0, POSIX_FADV_DONTNEED); // compare the disk's bytes
    if (job->config.claims) // a file at OUT is this job's from now on
        TRY(manifest_write(job, NULL));
    enum err err = as_it_is ? rename_partial(&m) : new_file(&m);
    free(m.window);
    TRY(err);
    if (m.n_lost > 0)
        return give_up(&m);
    TRY(files_sync_dir(job));
    int64_t tokens = 0;
    for (int64_t k = 0; k < job->n_rows; k++)
        tokens += job->rows[k].state == ROW_SKIPPED ? 0 : job->rows[k].tokens;
    struct manifest_end end = {.complete = 1,
                               .out_tokens = tokens,
                               .ended_unix_s = (int64_t)time(NULL),
                               .ok = job->counts.ok,
                               .failed = job->counts.failed,
                               .out_bytes = m.written,
                               .out_crc = m.crc};
    TRY(manifest_write(job, &end));
    job->complete = 1;
    TRY(files_remove(job));
    return files_sync_dir(job);
}
