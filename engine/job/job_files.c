/* engine/job/job_files.c - see job_impl.h. Owns the files beside OUT, and the order of writes that
 * lets a job be killed at any moment.
 *
 * Note: OUT.journal is also the lock, from before the input is read until after OUT has its name.
 * When a job is killed: before the first commit no file counts; until the rename OUT.partial and
 * OUT.journal count; after it OUT counts, and companions that could not be removed agree with it.
 */
#include "engine/job/job_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define COPY_BYTES ((int64_t)1 << 20)

const char *const job_suffixes[] = {
    [JOB_PARTIAL] = ".partial",           [JOB_JOURNAL] = ".journal", [JOB_MANIFEST] = ".job.json",
    [JOB_MANIFEST_TMP] = ".job.json.tmp", [JOB_TMP] = ".tmp",         [JOB_INPUT] = ".input"};

/* ---- paths ---- */

static char *path_with(const char *path, const char *suffix)
{
    size_t n = strlen(path) + strlen(suffix) + 1;
    char *joined = malloc(n);
    if (joined)
        snprintf(joined, n, "%s%s", path, suffix);
    return joined;
}

static enum err paths_fill(struct job *job)
{
    struct job_paths *p = &job->paths;
    const struct claims *claims = job->config.claims;
    const char *out = job->config.out_path, *slash = strrchr(out, '/');
    char base[CLAIMS_PATH_BYTES], tail[CLAIMS_NAME_BYTES + 16] = "";
    snprintf(base, sizeof base, "%.4096s", out);
    if (claims) { // journal and lines in its folder; temporary names of its own
        claims_path(claims, 0, "", base);
        snprintf(tail, sizeof tail, ".%s", claims_name(claims));
    }
    p->out = path_with(out, "");
    p->partial = path_with(base, job_suffixes[JOB_PARTIAL]);
    p->journal = path_with(base, job_suffixes[JOB_JOURNAL]);
    p->manifest = path_with(out, job_suffixes[JOB_MANIFEST]);
    snprintf(base, sizeof base, "%s%s", job_suffixes[JOB_MANIFEST_TMP], tail);
    p->manifest_tmp = path_with(out, base);
    snprintf(base, sizeof base, "%s%s", job_suffixes[JOB_TMP], tail);
    p->tmp = path_with(out, base);
    p->dir = path_with(slash ? out : ".", "");
    if (!p->out || !p->partial || !p->journal || !p->manifest || !p->manifest_tmp || !p->tmp ||
        !p->dir)
        return fail(ERR_FIT, "no memory for paths");
    if (slash)
        p->dir[slash == out ? 1 : slash - out] = 0;
    if (strlen(p->manifest) > 4096)
        return fail(ERR_USAGE, "%.512s: the path is too long", out);
    return OK;
}

/* A path that cannot be used is ERR_USAGE; other errors are the disk's, ERR_IO. */
static enum err fail_open(const char *path)
{
    int usage = errno == ENOENT || errno == ENOTDIR || errno == EISDIR || errno == EACCES ||
                errno == EPERM || errno == ENAMETOOLONG || errno == ELOOP || errno == ENXIO;
    return fail(usage ? ERR_USAGE : ERR_IO, "%.512s: %s", path, strerror(errno));
}

enum err files_foreign(const char *path, const char *out)
{
    return fail(ERR_JOB,
                "%.400s: is there, and no %.400s%s says from which job (use --overwrite or another "
                "-o)",
                path, out, job_suffixes[JOB_MANIFEST]);
}

/* 1: OUT has a journal. A job creates it first, and it is empty if the job was killed at once. */
static int has_journal(const char *out)
{
    char path[4200];
    struct stat s;
    snprintf(path, sizeof path, "%.4096s%s", out, job_suffixes[JOB_JOURNAL]);
    int fd = open(path, O_RDONLY | WHOLE_OPEN);
    int is_one = fd >= 0 && fstat(fd, &s) == 0 && (s.st_size == 0 || journal_pid(fd) > 0);
    if (fd >= 0)
        close(fd);
    return is_one;
}

enum err job_paths_check(const char *out, const char *in, int overwrite)
{
    char path[4200];
    struct stat input, s;
    int has_in = stat(in, &input) == 0;
    snprintf(path, sizeof path, "%.4096s%s", out, job_suffixes[JOB_MANIFEST]);
    int no_job = !overwrite && access(path, F_OK) != 0 && !has_journal(out);
    for (int i = -1; i < JOB_INPUT; i++) { // -1: OUT
        snprintf(path, sizeof path, "%.4096s%s", out, i < 0 ? "" : job_suffixes[i]);
        TRY(file_output_check("output", path));
        if (stat(path, &s) != 0)
            continue;
        if (has_in && s.st_dev == input.st_dev && s.st_ino == input.st_ino)
            return fail(ERR_USAGE, "%.512s: --output: this is the input", path);
        if (no_job && (s.st_size > 0 || i < 0))
            return files_foreign(path, out);
    }
    return OK;
}

enum err files_sync_dir(const struct job *job)
{
    int fd = open(job->paths.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return fail(ERR_IO, "%.512s: %s", job->paths.dir, strerror(errno));
    int failed = fsync(fd);
    int why = errno;
    close(fd);
    if (failed && why != EINVAL) // a file system that cannot sync directories
        return fail(ERR_IO, "%.512s: fsync: %s", job->paths.dir, strerror(why));
    return OK;
}

/* ---- the lock ---- */

/* 1: the locked file still has its name. A job that just ended may have removed it; then the lock
 * is void. */
static int still_there(const struct job *job)
{
    struct stat mine, named;
    return fstat(job->journal_fd, &mine) == 0 && stat(job->paths.journal, &named) == 0 &&
           mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
}

enum err files_begin(struct job *job)
{
    TRY(paths_fill(job));
    return job_paths_check(job->config.out_path, job->config.in_path, job->config.overwrite);
}

/* Why flock() failed, told after the journal is closed. */
static enum err not_locked(struct job *job, int why)
{
    const char *path = job->paths.journal;
    int64_t pid = journal_pid(job->journal_fd);
    close(job->journal_fd);
    job->journal_fd = -1;
    if (why != EWOULDBLOCK)
        return fail(ERR_IO,
                    "%.512s: cannot be locked: %s (a file system with flock, as Lustre has with "
                    "mount -o flock, or --work-dir, which needs no lock)",
                    path, strerror(why));
    if (pid > 0)
        return fail(ERR_JOB, "%.512s: locked by pid %lld", path, (long long)pid);
    return fail(ERR_JOB, "%.512s: locked by another process", path);
}

enum err files_lock(struct job *job)
{
    for (;;) {
        job->journal_fd = open(job->paths.journal, O_RDWR | O_CREAT | WHOLE_OPEN, 0666);
        if (job->journal_fd < 0)
            return fail_open(job->paths.journal);
        if (!job->config.claims && flock(job->journal_fd, LOCK_EX | LOCK_NB) != 0)
            return not_locked(job, errno);
        if (still_there(job))
            break;
        close(job->journal_fd);
    }
    if (unlink(job->paths.tmp) != 0 && errno != ENOENT)
        return fail_open(job->paths.tmp);
    if (unlink(job->paths.manifest_tmp) != 0 && errno != ENOENT)
        return fail_open(job->paths.manifest_tmp);
    return OK;
}

void files_close(struct job *job)
{
    struct job_paths *p = &job->paths;
    struct stat s;
    journal_close(&job->journal);
    if (job->partial_fd >= 0)
        close(job->partial_fd);
    if (job->part > 0)
        close(job->part_fd);
    if (job->journal_fd >= 0) {
        if (job->refused) {
            unlink(p->manifest);
            unlink(p->partial);
        }
        if (job->refused || (fstat(job->journal_fd, &s) == 0 && s.st_size == 0))
            unlink(p->journal); // created for its lock, never written
        close(job->journal_fd);
    }
    free(p->out);
    free(p->partial);
    free(p->journal);
    free(p->manifest);
    free(p->manifest_tmp);
    free(p->tmp);
    free(p->dir);
}

/* ---- resume ---- */

static enum err corrupt(const char *path, int64_t at, const char *what)
{
    return fail(ERR_CORRUPT, "%.512s: byte %lld: %s (--overwrite starts over)", path, (long long)at,
                what);
}

/* 1: the line has the checksum of its record. An unreadable line has not. */
int files_line_is_sound(int fd, const struct journal_entry *e)
{
    static const int64_t chunk = 1 << 16;
    char buf[1 << 16];
    uint32_t crc = 0;
    for (int64_t done = 0; done < e->n;) {
        ssize_t n = pread(fd, buf, (size_t)min_i64(chunk, e->n - done), e->offset + done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return 0;
        crc = crc32c(crc, buf, n);
        done += n;
    }
    return crc == e->crc;
}

void files_row(struct job *job, const struct journal_entry *e, int part)
{
    struct job_row *row = &job->rows[e->index];
    if (row->state == ROW_WAITING && row->n > 0) {
        struct resumed *t = &job->resumed[row->n - 1];
        free(t->ids);
        *t = (struct resumed){.row = e->index};
    }
    row->state = e->failed ? ROW_FAILED : ROW_OK;
    row->place = (uint64_t)e->offset;
    row->part = (uint64_t)part;
    row->n = (uint32_t)e->n;
    row->crc = e->crc;
    row->tokens = e->tokens;
}

static enum err entry_row(struct job *job, const struct journal_entry *e)
{
    struct job_row *row = &job->rows[e->index];
    if (e->offset != job->partial_bytes || e->n <= 0 || e->n > UINT32_MAX)
        return corrupt(job->paths.journal, job->journal.end, "a line that cannot stand there");
    job->partial_bytes = e->offset + e->n;
    job->superseded |= row->state != ROW_WAITING;
    files_row(job, e, 0);
    if (!files_line_is_sound(job->partial_fd, e))
        row->state = ROW_LOST;
    return OK;
}

enum err files_tokens(struct job *job, const struct journal_entry *e)
{
    struct job_row *row = &job->rows[e->index];
    if (e->n == 0)
        return OK;
    if (row->n == 0) {
        if (job->n_resumed == job->resumed_cap) {
            int64_t cap = max_i64(64, 2 * job->resumed_cap);
            struct resumed *grown = realloc(job->resumed, (size_t)cap * sizeof *grown);
            if (!grown)
                return fail(ERR_FIT, "no memory for %lld rows under way", (long long)cap);
            job->resumed = grown;
            job->resumed_cap = cap;
        }
        job->resumed[job->n_resumed++] = (struct resumed){.row = e->index};
        row->n = (uint32_t)job->n_resumed;
    }
    struct resumed *t = &job->resumed[row->n - 1];
    /* Token i of a row is the same in every record that has it, so records may overlap. */
    const int64_t n_new = e->offset + e->n - t->n;
    if (e->offset > t->n)
        return corrupt(job->paths.journal, job->journal.end, "tokens of a row are missing");
    if (n_new <= 0)
        return OK;
    if (t->n + n_new > t->cap) {
        int64_t cap = max_i64(32, 2 * (t->n + n_new));
        int32_t *grown = realloc(t->ids, (size_t)cap * sizeof *grown);
        if (!grown)
            return fail(ERR_FIT, "no memory for %lld tokens", (long long)cap);
        t->ids = grown;
        t->cap = cap;
    }
    memcpy(t->ids + t->n, e->ids + (e->n - n_new), (size_t)n_new * sizeof *t->ids);
    t->n += n_new;
    return OK;
}

static enum err entry_tokens(struct job *job, const struct journal_entry *e)
{
    struct job_row *row = &job->rows[e->index];
    if (row->state != ROW_WAITING) { // the row was run again
        row->state = ROW_WAITING;
        row->n = 0;
        job->superseded = 1;
    }
    return files_tokens(job, e);
}

static enum err load_entry(void *ctx, const struct journal_entry *e)
{
    struct job *job = ctx;
    if (e->index >= job->n_rows || job->rows[e->index].state == ROW_SKIPPED)
        return corrupt(job->paths.journal, job->journal.end, "a row that the job does not have");
    return e->kind == JOURNAL_ROW ? entry_row(job, e) : entry_tokens(job, e);
}

/* Counts the rows of the journal. Rows whose lines have changed, and failed rows under
 * retry_errors, become waiting rows for good, whatever flags the next run has. */
enum err files_count(struct job *job)
{
    struct job_counts *c = &job->counts;
    int64_t n_lost = 0;
    uint32_t first = 0;
    job->n_waiting = 0;
    for (int64_t k = 0; k < job->n_rows; k++) {
        struct job_row *row = &job->rows[k];
        if (row->state == ROW_LOST && n_lost++ == 0)
            first = row->line;
        if (row->state == ROW_LOST || (row->state == ROW_FAILED && job->config.retry_errors))
            TRY(job_row_again(job, k));
        job->n_waiting += row->state == ROW_WAITING;
        c->ok += row->state == ROW_OK;
        c->failed += row->state == ROW_FAILED;
        c->resumed += row->state == ROW_OK || row->state == ROW_FAILED ||
                      (row->state == ROW_WAITING && row->n > 0);
    }
    c->done = c->ok + c->failed;
    if (n_lost > 0)
        log_line(LOG_WARN,
                 "resume: %lld lines of %s have changed on the disk; their rows are run again (the "
                 "first: line %lu)",
                 (long long)n_lost, job->paths.partial, (unsigned long)first);
    TRY(journal_commit(&job->journal));
    for (int64_t k = 0; k < job->n_rows; k++)
        if (job->rows[k].state == ROW_FAILED)
            TRY(errors_add_row(&job->errors, shared_lines(job, (int)job->rows[k].part),
                               (int64_t)job->rows[k].place, job->rows[k].n));
    return OK;
}

/* Opens OUT.partial. After an interrupted retry or rename, OUT is renamed back to OUT.partial. */
static enum err open_partial(struct job *job, int fresh)
{
    const struct job_paths *p = &job->paths;
    int flags = O_RDWR | (fresh ? WHOLE_NEW : WHOLE_OPEN);
    if (fresh && unlink(p->partial) != 0 && errno != ENOENT) // not truncated: it may have two names
        return fail_open(p->partial);
    job->partial_fd = open(p->partial, flags, 0666);
    if (job->partial_fd < 0 && errno == ENOENT && !job->config.claims &&
        rename(p->out, p->partial) == 0)
        job->partial_fd = open(p->partial, flags, 0666);
    if (job->partial_fd < 0 && errno == ENOENT) // nothing committed, or lost: the journal knows
        job->partial_fd = open(p->partial, flags | O_CREAT, 0666);
    return job->partial_fd < 0 ? fail_open(p->partial) : OK;
}

/* Resets what a partly read journal has set. */
static void forget_rows(struct job *job)
{
    journal_close(&job->journal);
    for (int64_t i = 0; i < job->n_resumed; i++)
        free(job->resumed[i].ids);
    job->n_resumed = job->partial_bytes = job->superseded = 0;
    for (int64_t k = 0; k < job->n_rows; k++)
        if (job->rows[k].state != ROW_SKIPPED) {
            job->rows[k].state = ROW_WAITING;
            job->rows[k].n = 0;
        }
    if (job->partial_fd >= 0)
        close(job->partial_fd);
}

static enum err start_fresh(struct job *job)
{
    forget_rows(job);
    job->fresh = !job->out_was.there;
    job->id = manifest_id(job);
    job->errors = (struct job_errors){0};
    if (ftruncate(job->journal_fd, 0) != 0)
        return fail(ERR_IO, "%.512s: %s", job->paths.journal, strerror(errno));
    TRY(manifest_write(job, NULL));
    return files_create(job);
}

enum err files_create(struct job *job)
{
    TRY(open_partial(job, 1));
    return journal_create(&job->journal, job->journal_fd, job->paths.journal, job->id);
}

/* Reads the committed state. *empty 1: there is none, not even a journal. */
enum err files_resume(struct job *job, int *empty)
{
    struct stat s;
    *empty = fstat(job->journal_fd, &s) == 0 && s.st_size == 0;
    if (*empty)
        return OK;
    TRY(open_partial(job, 0));
    /* Drop cached pages: after a failed fsync they may differ from the disk. */
    posix_fadvise(job->partial_fd, 0, 0, POSIX_FADV_DONTNEED);
    posix_fadvise(job->journal_fd, 0, 0, POSIX_FADV_DONTNEED);
    struct journal_reader reader = {.entry = load_entry, .ctx = job};
    TRY(journal_load(&job->journal, job->journal_fd, job->paths.journal, job->id, &reader, empty));
    if (*empty) {
        close(job->partial_fd);
        job->partial_fd = -1;
        return OK;
    }
    if (ftruncate(job->partial_fd, job->partial_bytes) != 0)
        return fail(ERR_IO, "%.512s: %s", job->paths.partial, strerror(errno));
    return sync_data(job->partial_fd, job->paths.partial);
}

/* ---- OUT that was complete, with rows to retry ---- */

/* 1: the line is an error row, of line *line of the input. Else: *tokens of output. */
static int is_error_row(const char *text, int64_t n, int64_t *line, uint32_t *tokens)
{
    json_error_t why;
    json_t *root = json_loadb(text, (size_t)n, JSON_ALLOW_NUL, &why);
    const json_t *error = json_object_get(root, "error");
    int is_error = json_is_object(error);
    *line = is_error ? json_integer_value(json_object_get(error, "line")) : 0;
    const json_t *body = json_object_get(json_object_get(root, "response"), "body");
    const json_t *usage = json_object_get(body ? body : root, "usage");
    const json_t *count =
        usage ? json_object_get(usage, "completion_tokens") : json_object_get(root, "num_tokens");
    *tokens = (uint32_t)min_i64(max_i64(json_integer_value(count), 0), UINT32_MAX);
    json_decref(root);
    return is_error;
}

static int64_t row_by_line(const struct job *job, int64_t line)
{
    int64_t low = 0, high = job->n_rows;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (job->rows[middle].line < line)
            low = middle + 1;
        else
            high = middle;
    }
    return low < job->n_rows && job->rows[low].line == line ? low : -1;
}

/* One pass over OUT. mark 1: marks the rows of error lines as failed. mark 0: appends a record for
 * every line; lines without error belong to the rows that are not marked, in order. */
static enum err reopen_pass(struct job *job, struct jsonl *find, struct jsonl *text, int mark)
{
    int64_t next = 0;
    for (;;) {
        struct jsonl_line at;
        const char *p;
        int64_t n, line, k;
        int found;
        uint32_t tokens;
        TRY(jsonl_next(find, &at, &found));
        if (!found)
            return OK;
        if (at.too_long)
            return fail(ERR_JOB, "%.512s: line %lld is longer than 64 MiB (use --overwrite)",
                        job->paths.out, (long long)at.line);
        TRY(jsonl_read(text, at.offset, &p, &n));
        int failed = is_error_row(p, n, &line, &tokens);
        if (mark && !failed)
            continue;
        while (!failed && next < job->n_rows && job->rows[next].state != ROW_WAITING)
            next++;
        k = failed ? row_by_line(job, line) : next++;
        if (k < 0 || k >= job->n_rows || job->rows[k].state == ROW_SKIPPED)
            return fail(ERR_JOB, "%.512s: line %lld is no row of this job (use --overwrite)",
                        job->paths.out, (long long)at.line);
        if (mark) {
            job->rows[k].state = ROW_FAILED;
            continue;
        }
        uint32_t crc = crc32c(crc32c(0, p, n), "\n", 1);
        TRY(journal_append(&job->journal, &(struct journal_entry){.kind = JOURNAL_ROW,
                                                                  .index = k,
                                                                  .offset = at.offset,
                                                                  .n = n + 1,
                                                                  .crc = crc,
                                                                  .failed = failed,
                                                                  .tokens = tokens}));
        if (job->journal.n_buf > COPY_BYTES)
            TRY(journal_commit(&job->journal));
    }
}

static enum err reopen_journal(struct job *job)
{
    enum err err = OK;
    for (int mark = 1; mark >= 0 && err == OK; mark--) {
        struct jsonl find, text;
        TRY(jsonl_open(&find, job->paths.out));
        err = jsonl_open(&text, job->paths.out);
        if (err == OK) {
            err = reopen_pass(job, &find, &text, mark);
            jsonl_close(&text);
        }
        jsonl_close(&find);
    }
    for (int64_t k = 0; k < job->n_rows; k++)
        if (job->rows[k].state == ROW_FAILED)
            job->rows[k].state = ROW_WAITING;
    return err;
}

/* Turns OUT into OUT.partial again, with a journal of its lines. */
static enum err reopen(struct job *job)
{
    int empty;
    job->id = manifest_id(job);
    if (unlink(job->paths.partial) != 0 && errno != ENOENT)
        return fail_open(job->paths.partial);
    TRY(journal_create(&job->journal, job->journal_fd, job->paths.journal, job->id));
    enum err err = reopen_journal(job);
    if (err == OK)
        err = journal_commit(&job->journal);
    if (err != OK) { // OUT and its manifest are unchanged
        if (ftruncate(job->journal_fd, 0) != 0)
            log_line(LOG_WARN, "%s: %s", job->paths.journal, strerror(errno));
        return err;
    }
    journal_close(&job->journal);
    TRY(manifest_write(job, NULL));
    TRY(files_resume(job, &empty)); // renames OUT
    CHECK(!empty);
    TRY(files_count(job));
    return files_sync_dir(job);
}

/* ---- what exists ---- */

enum err files_out_changed(const struct job *job)
{
    return fail(ERR_JOB, "%.512s: has changed since its job ended (use --overwrite or another -o)",
                job->paths.out);
}

enum err files_remove(struct job *job)
{
    if (job->config.claims)
        return shared_remove(job);
    if (unlink(job->paths.partial) != 0 && errno != ENOENT)
        return fail_open(job->paths.partial);
    if (ftruncate(job->journal_fd, 0) != 0)
        return fail(ERR_IO, "%.512s: %s", job->paths.journal, strerror(errno));
    return OK;
}

/* OUT is complete and of this job: nothing to do. */
enum err files_complete(struct job *job, const struct manifest_end *end)
{
    job->complete = 1;
    job->n_waiting = 0;
    job->counts.ok = end->ok;
    job->counts.failed = end->failed;
    job->counts.done = job->counts.resumed = end->ok + end->failed;
    job->errors = end->errors;
    return files_remove(job);
}

/* Keeps the prompt limit of the run that planned first. Under retry_errors it does not bind failed
 * rows: no other row depends on it. */
static void keep_cap(struct job *job, const struct manifest_end *end)
{
    if (!end->found || end->prompt_cap < 0 || job->cap_fixed || job->config.retry_errors)
        return;
    if (end->prompt_cap == 0 && end->grown)
        return; // no run has planned for the added prompts yet
    job->config.prompt_cap = end->prompt_cap;
    job->cap_fixed = 1;
    if (end->prompt_cap > 0)
        log_line(LOG_INFO,
                 "resume: prompts above %lld tokens are error rows, as the first run decided",
                 (long long)end->prompt_cap);
}

/* OK: OUT has the size and checksum of the manifest. */
enum err files_check_out(const struct job *job, const struct manifest_end *end)
{
    char buf[1 << 16];
    struct file f;
    uint32_t crc = 0;
    TRY(file_open(&f, job->paths.out));
    enum err err = OK;
    for (int64_t at = 0; err == OK && at < f.n_bytes; at += (int64_t)sizeof buf) {
        int64_t n = min_i64((int64_t)sizeof buf, f.n_bytes - at);
        err = file_read(&f, at, n, buf);
        crc = crc32c(crc, buf, n);
    }
    int same = crc == end->out_crc && f.n_bytes == end->out_bytes;
    file_close(&f);
    TRY(err);
    return same ? OK : files_out_changed(job);
}

/* OUT is complete, of this job or of this job before rows were added. */
static enum err open_complete(struct job *job, const struct manifest_end *end)
{
    int retry = job->config.retry_errors && end->failed > 0;
    keep_cap(job, end);
    if (!retry && job->counts.rows == end->ok + end->failed) {
        job->errors = end->errors;
        if (end->grown)
            TRY(manifest_write(job, end));
        return files_complete(job, end);
    }
    TRY(files_check_out(job, end)); // its lines are used again
    return reopen(job);
}

enum err files_open(struct job *job)
{
    struct manifest_end end;
    struct stat out;
    int has_out = stat(job->paths.out, &out) == 0, empty;
    standing_look(&job->out_was, job->paths.out);
    enum err err = manifest_read(job, &end);
    if (end.found)
        job->id = end.journal_id;
    if (err == OK && !end.found && has_out)
        err = files_foreign(job->paths.out, job->paths.out);
    if (err == OK && end.complete && has_out) {
        err = out.st_size == end.out_bytes ? open_complete(job, &end) : files_out_changed(job);
        if (err == OK || !job->config.overwrite)
            return err;
    }
    if (err == OK) {
        err = files_resume(job, &empty);
        if (err == OK && !empty)
            err = files_count(job);
        if (err == OK && !empty) {
            keep_cap(job, &end);
            return manifest_write(job, NULL);
        }
    }
    int over = (err == ERR_JOB || err == ERR_CORRUPT) && job->config.overwrite;
    return err == OK || over ? start_fresh(job) : err;
}
