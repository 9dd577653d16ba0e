/* engine/job/job_status.c - see job_status.h.
 *
 * Note: a job runs when the kernel says that a process holds the lock on its journal. Trying the
 * lock would hold it for a moment, and a run that starts in that moment would give up. */
#include "engine/job/job_status.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "engine/data/file.h"
#include "engine/job/claims.h"
#include "engine/job/journal.h"

#define MANIFEST_BYTES_MAX (1 << 20)

enum { ROW_NEW, ROW_BEGUN, ROW_GOOD, ROW_BAD };

/* The rows found in the journal. */
struct told {
    struct told_row {
        uint32_t state, tokens;
        int part;          // whose journal says so
        int64_t offset, n; // of its line in that OUT.partial, when the row is done
    } * rows;              // owned
    int64_t cap;
    int part; // of the journal that is read
};

const char *job_state_name(enum job_state state)
{
    static const char *const names[] = {"stopped", "running", "complete"};
    return names[state];
}

static enum err tell(void *ctx, const struct journal_entry *e)
{
    struct told *t = ctx;
    if (e->index >= t->cap) {
        int64_t cap = max_i64(1024, 2 * (e->index + 1));
        struct told_row *grown = realloc(t->rows, (size_t)cap * sizeof *grown);
        if (!grown)
            return fail(ERR_FIT, "no memory for %lld rows", (long long)cap);
        memset(grown + t->cap, 0, (size_t)(cap - t->cap) * sizeof *grown);
        t->rows = grown;
        t->cap = cap;
    }
    struct told_row *row = &t->rows[e->index];
    if (row->part != t->part && row->state >= ROW_GOOD)
        return OK; // another worker has done it
    if (e->kind == JOURNAL_ROW) {
        *row =
            (struct told_row){e->failed ? ROW_BAD : ROW_GOOD, e->tokens, t->part, e->offset, e->n};
        return OK;
    }
    if (row->state != ROW_BEGUN || row->part != t->part)
        *row = (struct told_row){.state = e->n > 0 ? ROW_BEGUN : ROW_NEW, .part = t->part};
    row->tokens += (uint32_t)e->n;
    return OK;
}

static void count(struct job_status *s, const struct told *t)
{
    for (int64_t k = 0; k < t->cap; k++) {
        const struct told_row *row = &t->rows[k];
        s->ok += row->state == ROW_GOOD;
        s->failed += row->state == ROW_BAD;
        s->live += row->state == ROW_BEGUN;
        *(row->state == ROW_BEGUN ? &s->live_tokens : &s->output_tokens) += row->tokens;
    }
}

/* Reads the errors of failed rows from OUT.partial; a missing file is no error. */
static enum err read_errors(struct job_status *s, const struct told *t, const char *partial)
{
    int fd = open(partial, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    enum err err = OK;
    for (int64_t k = 0; fd >= 0 && err == OK && k < t->cap; k++)
        if (t->rows[k].state == ROW_BAD && t->rows[k].part == t->part)
            err = errors_add_row(&s->errors, fd, t->rows[k].offset, t->rows[k].n);
    if (fd >= 0)
        close(fd);
    return err;
}

/* The process that holds the lock of the file, by /proc/locks; 0: none. `hint`, the pid in the
 * journal, identifies the file where /proc/locks has another device number (overlays). */
static int64_t lock_holder(const struct stat *file, int64_t hint)
{
    char line[256];
    int64_t found = 0;
    FILE *f = fopen("/proc/locks", "r");
    while (f && !found && fgets(line, sizeof line, f)) {
        long long pid, inode;
        unsigned major, minor;
        char kind[16];
        if (sscanf(line, "%*s %15s %*s %*s %lld %x:%x:%lld", kind, &pid, &major, &minor, &inode) !=
            5)
            continue;
        int same_device = major == major(file->st_dev) && minor == minor(file->st_dev);
        if (strcmp(kind, "FLOCK") == 0 && inode == (long long)file->st_ino &&
            (same_device || pid == hint))
            found = pid;
    }
    if (f)
        fclose(f);
    return found;
}

/* What OUT.job.json says. *found 0: there is none. */
static enum err read_manifest(struct job_status *s, const char *path, int *found)
{
    char *text;
    int64_t n;
    json_error_t why;
    TRY(file_load(path, MANIFEST_BYTES_MAX, &text, &n, found));
    if (!*found)
        return OK;
    json_t *root = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &why);
    free(text);
    const json_t *identity = json_object_get(root, "identity");
    const char *job = json_string_value(json_object_get(identity, "job"));
    const char *input = json_string_value(json_object_get(root, "input"));
    const json_t *predicted = json_object_get(root, "predicted_elapsed_s");
    if (!job) {
        json_decref(root);
        return fail(ERR_INPUT, "%.512s: not a job's manifest", path);
    }
    snprintf(s->job, sizeof s->job, "%s", job);
    snprintf(s->input, sizeof s->input, "%s", input ? input : "");
    if (ignore_parse(&s->ignore, json_string_value(json_object_get(identity, "ignore_fields"))) !=
        OK)
        s->ignore = (struct ignore_list){0}; // a file of another version: not worth an error here
    s->rows = json_integer_value(json_object_get(root, "rows"));
    s->started_unix_s = json_integer_value(json_object_get(root, "started_unix_s"));
    s->predicted_s = json_is_number(predicted) ? json_number_value(predicted) : -1;
    if (json_is_true(json_object_get(root, "complete"))) {
        s->state = JOB_COMPLETE;
        s->ok = json_integer_value(json_object_get(root, "ok"));
        s->failed = json_integer_value(json_object_get(root, "failed"));
        s->output_tokens = json_integer_value(json_object_get(root, "output_tokens"));
        s->last_unix_s = json_integer_value(json_object_get(root, "ended_unix_s"));
        errors_take(&s->errors, root);
    }
    json_decref(root);
    return OK;
}

/* Reads the journal of a job that is not complete. */
static enum err read_journal(struct job_status *s, int fd, const char *path, const char *partial)
{
    struct told told = {0};
    struct journal_look look;
    struct journal_reader reader = {.entry = tell, .ctx = &told};
    struct stat file;
    if (fstat(fd, &file) != 0)
        return fail(ERR_IO, "%.512s: %s", path, strerror(errno));
    enum err err = journal_look(fd, path, 0, &reader, &look);
    if (err == OK)
        count(s, &told);
    if (err == OK)
        err = read_errors(s, &told, partial);
    free(told.rows);
    s->journal_bytes = look.bytes;
    s->pid = lock_holder(&file, look.pid);
    s->state = s->pid > 0 ? JOB_RUNNING : JOB_STOPPED;
    s->last_unix_s = (int64_t)file.st_mtim.tv_sec;
    return err;
}

/* ---- a shared job ---- */

/* Adds the worker whose file is DIR/NAME.worker. */
static enum err add_worker(struct job_status *s, const char *path, const char *name, int n_name)
{
    char text[512] = "";
    struct stat file;
    struct job_worker *grown = realloc(s->workers, (size_t)(s->n_workers + 1) * sizeof *s->workers);
    if (!grown)
        return fail(ERR_FIT, "no memory for %d workers", s->n_workers + 1);
    s->workers = grown;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return OK; // it has just left
    if (pread(fd, text, sizeof text - 1, 0) < 0 || fstat(fd, &file) != 0)
        memset(&file, 0, sizeof file);
    close(fd);
    struct job_worker *w = &s->workers[s->n_workers++];
    *w = (struct job_worker){.rows = worker_rows_of(text),
                             .beat_age_s = max_i64(time(NULL) - file.st_mtim.tv_sec, 0)};
    snprintf(w->name, sizeof w->name, "%.*s", n_name, name);
    enum worker_state state = worker_state_of(text);
    const int silent = (double)w->beat_age_s > CLAIMS_BEAT_S * CLAIMS_BEATS_LOST;
    w->state = silent && state != WORKER_LEFT ? "silent" : worker_state_name(state);
    if (state != WORKER_LEFT && !silent)
        s->state = JOB_RUNNING;
    s->last_unix_s = max_i64(s->last_unix_s, file.st_mtim.tv_sec);
    return OK;
}

static enum err read_workers(struct job_status *s, const char *dir, struct told *t)
{
    char path[CLAIMS_PATH_BYTES], partial[CLAIMS_PATH_BYTES];
    struct journal_look look;
    struct journal_reader reader = {.entry = tell, .ctx = t};
    DIR *d = opendir(dir);
    enum err err = d ? OK : fail(ERR_INPUT, "%.512s: %s", dir, strerror(errno));
    for (struct dirent *e; err == OK && (e = readdir(d));) {
        const char *end = strstr(e->d_name, CLAIMS_WORKER);
        if (!end || end[strlen(CLAIMS_WORKER)])
            continue;
        const int n = (int)(end - e->d_name);
        snprintf(path, sizeof path, "%.3800s/%.*s" CLAIMS_WORKER, dir, n, e->d_name);
        err = add_worker(s, path, e->d_name, n);
        snprintf(path, sizeof path, "%.3800s/%.*s.journal", dir, n, e->d_name);
        snprintf(partial, sizeof partial, "%.3800s/%.*s.partial", dir, n, e->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0)
            continue; // it has not begun
        t->part++;
        if (err == OK)
            err = journal_look(fd, path, 0, &reader, &look);
        if (err == OK)
            err = read_errors(s, t, partial);
        close(fd);
    }
    if (d)
        closedir(d);
    return err;
}

static int64_t count_claims(const char *dir)
{
    char path[CLAIMS_PATH_BYTES];
    int64_t n = 0;
    snprintf(path, sizeof path, "%.3800s/" CLAIMS_DIR, dir);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        n += !strchr(e->d_name, '.');
    if (d)
        closedir(d);
    return n;
}

enum err job_status_shared(struct job_status *s, const char *dir)
{
    char path[CLAIMS_PATH_BYTES];
    struct told told = {0};
    int found;
    *s = (struct job_status){.predicted_s = -1};
    snprintf(path, sizeof path, "%.3800s/" CLAIMS_JOB, dir);
    TRY(read_manifest(s, path, &found));
    if (!found)
        return fail(ERR_INPUT, "%.512s: no job found (give the -o or the --work-dir of a run)",
                    dir);
    enum err err = read_workers(s, dir, &told);
    if (err == OK)
        count(s, &told);
    free(told.rows);
    s->chunks = claims_cut(s->rows);
    s->claimed = min_i64(count_claims(dir), s->chunks);
    s->left = max_i64(s->rows - s->ok - s->failed, 0);
    s->elapsed_s = (double)max_i64(s->last_unix_s - s->started_unix_s, 0);
    return err;
}

void job_status_free(struct job_status *s)
{
    free(s->workers);
    s->workers = NULL;
}

static enum err read_both(struct job_status *s, const char *out, const char *manifest,
                          const char *journal, const char *partial)
{
    int found;
    int fd = open(journal, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    enum err err = read_manifest(s, manifest, &found);
    if (err == OK && !found && fd < 0)
        err = fail(ERR_INPUT,
                   "%.512s: no job found: %.512s and its journal are missing (give the -o of a "
                   "run, or its --work-dir)",
                   out, manifest);
    if (err == OK && fd >= 0 && s->state != JOB_COMPLETE)
        err = read_journal(s, fd, journal, partial);
    if (fd >= 0)
        close(fd);
    return err;
}

enum err job_status_read(struct job_status *s, const char *out)
{
    char manifest[4200], journal[4200], partial[4200];
    snprintf(manifest, sizeof manifest, "%.4096s.job.json", out);
    snprintf(journal, sizeof journal, "%.4096s.journal", out);
    snprintf(partial, sizeof partial, "%.4096s.partial", out);
    for (int again = 0; again < 2; again++) {
        *s = (struct job_status){.predicted_s = -1};
        TRY(read_both(s, out, manifest, journal, partial));
        if (s->journal_bytes > 0 || s->state == JOB_COMPLETE)
            break; // else the job may just have ended between the two looks
    }
    s->left = max_i64(s->rows - s->ok - s->failed, 0);
    int64_t end = s->state == JOB_RUNNING ? (int64_t)time(NULL) : s->last_unix_s;
    s->elapsed_s = s->started_unix_s > 0 ? (double)max_i64(end - s->started_unix_s, 0) : 0;
    return OK;
}
