/* engine/job/job_shared.c - see job_impl.h. Owns what a worker knows of the others: rows that they
 * have done, tokens of rows that they have begun, chunks that are theirs.
 *
 * Note: every worker appends to files of its own and only reads those of the others. A row that
 * two workers have done has the same line twice, and either may go into OUT. */
#include "engine/job/job_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CAP_BYTES 64 // of the file with the limit of prompts

/* ---- the lines of a worker ---- */

int shared_lines(struct job *job, int part)
{
    char path[CLAIMS_PATH_BYTES];
    if (part == 0)
        return job->partial_fd;
    if (part == job->part)
        return job->part_fd;
    if (job->part > 0)
        close(job->part_fd);
    claims_path(job->config.claims, part, job_suffixes[JOB_PARTIAL], path);
    job->part_fd = open(path, O_RDONLY | WHOLE_OPEN);
    job->part = job->part_fd >= 0 ? part : 0;
    return job->part_fd;
}

/* ---- journals ---- */

struct part_reader {
    struct job *job;
    int part;
};

static enum err part_entry(void *ctx, const struct journal_entry *e)
{
    const struct part_reader *p = ctx;
    struct job *job = p->job;
    if (e->index >= job->n_rows)
        return fail(ERR_CORRUPT, "%.512s: a journal there has row %lld of %lld",
                    claims_dir(job->config.claims), (long long)e->index, (long long)job->n_rows);
    const struct claims *c = job->config.claims;
    const struct job_row *row = &job->rows[e->index];
    /* Who owns the chunk has read the lines of the owners before, or done the row again. */
    const int better = e->kind == JOURNAL_ROW && row->part > 0 &&
                       claims_owner(c, claims_chunk_of(c, e->index)) == p->part;
    if (row->state != ROW_WAITING && !better)
        return OK; // has been done; by us, or by a worker read before
    if (e->kind == JOURNAL_ROW) {
        if (e->n > 0 && e->n <= UINT32_MAX)
            files_row(job, e, p->part);
        return OK;
    }
    const int64_t have = row->n > 0 ? job->resumed[row->n - 1].n : 0;
    return e->n > 0 && e->offset <= have ? files_tokens(job, e) : OK;
}

static enum err part_load(struct job *job, int part)
{
    char path[CLAIMS_PATH_BYTES];
    struct part_reader ctx = {.job = job, .part = part};
    struct journal_reader reader = {.entry = part_entry, .ctx = &ctx};
    struct journal_look look;
    claims_path(job->config.claims, part, job_suffixes[JOB_JOURNAL], path);
    int fd = open(path, O_RDONLY | WHOLE_OPEN);
    if (fd < 0) // the worker has not begun, or left without a chunk
        return errno == ENOENT ? OK : fail(ERR_IO, "%.512s: %s", path, strerror(errno));
    enum err err = journal_look(fd, path, job->id, &reader, &look);
    close(fd);
    return err;
}

/* ---- chunks ---- */

/* Rows of a chunk that wait. check 1: reads the lines of the others; those that have changed wait.
 */
static int64_t rows_left(struct job *job, int64_t chunk, int check)
{
    int64_t from, to, n = 0;
    claims_range(job->config.claims, chunk, &from, &to);
    for (int64_t k = from; k < to; k++) {
        struct job_row *row = &job->rows[k];
        const struct journal_entry e = {
            .offset = (int64_t)row->place, .n = row->n, .crc = row->crc};
        int done = row->state == ROW_OK || row->state == ROW_FAILED;
        if (check && done && row->part > 0 &&
            !files_line_is_sound(shared_lines(job, (int)row->part), &e)) {
            row->state = ROW_WAITING;
            row->n = 0;
        }
        n += row->state == ROW_WAITING;
    }
    return n;
}

/* Takes the rows of another worker's chunk out of the queue. */
static int64_t leave_chunk(struct job *job, int64_t chunk)
{
    int64_t from, to, n = 0;
    claims_range(job->config.claims, chunk, &from, &to);
    for (int64_t k = from; k < to; k++)
        if (job->rows[k].state == ROW_WAITING) {
            job->rows[k].state = ROW_ELSEWHERE;
            n++;
        }
    return n;
}

/* Takes over the chunks of workers that are gone (make_out: of all), if rows of them are left. */
static enum err take_chunks(struct job *job)
{
    struct claims *c = job->config.claims;
    for (int64_t i = 0; i < claims_chunks(c); i++) {
        int owner = claims_owner(c, i), mine = owner == 0;
        if (owner < 0)
            continue;
        if (!mine && !job->config.make_out && !claims_gone(c, owner)) {
            leave_chunk(job, i);
            continue;
        }
        const int check = claims_turn(c, i) > 0; // the owner before may have given it up
        if (rows_left(job, i, check) == 0)
            continue;
        claims_state(c, WORKER_WORKING);
        if (!mine && !check)
            (void)rows_left(job, i, 1);
        if (!mine)
            TRY(claims_take_over(c, i, &mine));
        if (!mine)
            leave_chunk(job, i);
    }
    claims_settled(c);
    return OK;
}

enum err shared_next(struct job *job, int *found)
{
    struct claims *c = job->config.claims;
    int64_t chunk = -1;
    while (chunk < 0 && job->next_chunk < claims_chunks(c))
        if (claims_owner(c, job->next_chunk++) == 0)
            chunk = job->next_chunk - 1;
    *found = chunk >= 0;
    if (!*found && !job->all_claimed) {
        claims_state(c, WORKER_WORKING);
        TRY(claims_next(c, &chunk));
        *found = chunk >= 0;
        job->all_claimed = !*found;
        for (int64_t i = 0; job->n_looks != claims_looks(c) && i < claims_chunks(c); i++)
            if (claims_owner(c, i) > 0) {
                int64_t n = leave_chunk(job, i);
                job->n_waiting -= n;
                job->lengths.n_begun += n;
            }
        job->n_looks = claims_looks(c);
    }
    if (*found)
        claims_range(c, chunk, &job->next_row, &job->rows_end);
    return OK;
}

enum err shared_give_up(struct job *job)
{
    struct claims *c = job->config.claims;
    for (int64_t i = 0; i < claims_chunks(c); i++) {
        int64_t from, to;
        int lost = 0, mine;
        claims_range(c, i, &from, &to);
        for (int64_t k = from; k < to; k++)
            lost |= job->rows[k].state == ROW_LOST;
        if (lost)
            TRY(claims_take_over(c, i, &mine));
    }
    return OK;
}

/* ---- the limit of prompts ---- */

/* *cap -1: no worker has planned yet. */
static enum err cap_read(const struct job *job, int64_t *cap)
{
    char path[CLAIMS_PATH_BYTES], *text, *end;
    int64_t n;
    int found;
    *cap = -1;
    claims_path(job->config.claims, -1, CLAIMS_CAP, path);
    TRY(file_load(path, CAP_BYTES, &text, &n, &found));
    if (!found)
        return OK;
    *cap = strtoll(text, &end, 10);
    int right = end > text && *end == '\n' && *cap >= 0;
    free(text);
    return right ? OK : fail(ERR_CORRUPT, "%.512s: is not a number of tokens", path);
}

enum err shared_cap(struct job *job)
{
    char text[CAP_BYTES];
    int64_t cap;
    int64_t mine = job->config.prompt_cap;
    int n = snprintf(text, sizeof text, "%lld\n", (long long)mine);
    TRY(claims_once(job->config.claims, CLAIMS_CAP, text, n));
    TRY(cap_read(job, &cap));
    if (mine > 0 && (cap == 0 || cap > mine))
        return fail(ERR_FIT,
                    "%.512s: the workers of this job hold longer prompts than the %lld tokens that "
                    "this one can (a larger --mem-ram)",
                    claims_dir(job->config.claims), (long long)mine);
    job->config.prompt_cap = max_i64(cap, 0);
    return OK;
}

/* ---- open ---- */

/* Reads a manifest at another path than OUT.job.json. */
static enum err manifest_at(struct job *job, char *path, struct manifest_end *end)
{
    char *was = job->paths.manifest;
    job->paths.manifest = path;
    enum err err = manifest_old_input(job);
    if (err == OK)
        err = manifest_read(job, end);
    job->paths.manifest = was;
    return err;
}

enum err shared_remove(struct job *job)
{
    static const enum job_companion temps[] = {JOB_TMP, JOB_MANIFEST_TMP};
    struct claims *c = job->config.claims;
    char name[CLAIMS_PATH_BYTES], path[2 * CLAIMS_PATH_BYTES];
    struct manifest_end end;
    claims_path(c, -1, CLAIMS_JOB, name);
    if (manifest_at(job, name, &end) != OK || !end.found)
        return OK; // not this job's folder
    TRY(claims_look(c));
    for (int w = 1; w < claims_workers(c); w++)
        for (size_t i = 0; i < sizeof temps / sizeof temps[0]; i++) {
            claims_path(c, w, "", name);
            snprintf(path, sizeof path, "%s%s.%s", job->paths.out, job_suffixes[temps[i]],
                     strrchr(name, '/') + 1);
            unlink(path);
        }
    return claims_remove(c);
}

/* The workers must mean one OUT; their paths to it may differ. */
static enum err check_out_name(const struct job *job)
{
    const char *slash = strrchr(job->paths.out, '/'), *mine = slash ? slash + 1 : job->paths.out;
    char path[CLAIMS_PATH_BYTES], *text;
    int64_t n;
    int found;
    TRY(claims_once(job->config.claims, CLAIMS_OUT, mine, (int64_t)strlen(mine)));
    claims_path(job->config.claims, -1, CLAIMS_OUT, path);
    TRY(file_load(path, CLAIMS_PATH_BYTES, &text, &n, &found));
    enum err err = OK;
    if (found && (n != (int64_t)strlen(mine) || memcmp(text, mine, (size_t)n) != 0))
        err = fail(ERR_JOB,
                   "%.512s: the job of this folder writes %.*s (that -o, or another "
                   "--work-dir)",
                   claims_dir(job->config.claims), (int)min_i64(n, 256), text);
    free(text);
    return err;
}

/* Makes job.json, or compares this worker's job with it. */
static enum err join(struct job *job)
{
    char path[CLAIMS_PATH_BYTES];
    struct manifest_end end;
    claims_path(job->config.claims, -1, CLAIMS_JOB, path);
    TRY(manifest_once(job));
    TRY(manifest_at(job, path, &end));
    if (end.found && end.grown)
        return fail(ERR_JOB, "%.512s: was begun with fewer rows (another --work-dir)", path);
    return check_out_name(job);
}

/* *complete 1: OUT is there, of this job. */
static enum err look_at_out(struct job *job, int *complete)
{
    struct manifest_end end;
    struct stat out;
    const int has_out = stat(job->paths.out, &out) == 0;
    TRY(manifest_read(job, &end));
    if (!end.found && has_out)
        return files_foreign(job->paths.out, job->paths.out);
    *complete = end.complete && has_out;
    if (!*complete)
        return OK;
    if (out.st_size != end.out_bytes)
        return files_out_changed(job);
    if (end.grown || job->counts.rows != end.ok + end.failed)
        return fail(ERR_JOB,
                    "%.512s: is complete with fewer rows (without --work-dir the same command adds "
                    "the new ones)",
                    job->paths.out);
    return files_complete(job, &end);
}

static enum err own_files(struct job *job)
{
    int empty;
    TRY(files_lock(job));
    TRY(files_resume(job, &empty));
    return empty ? files_create(job) : OK;
}

enum err shared_open(struct job *job)
{
    struct claims *c = job->config.claims;
    int64_t cap;
    int complete;
    standing_look(&job->out_was, job->paths.out);
    TRY(claims_rows(c, job->n_rows));
    TRY(look_at_out(job, &complete));
    if (complete)
        return OK;
    TRY(join(job));
    TRY(look_at_out(job, &complete)); // it may have ended just before we made job.json again
    if (complete)
        return OK;
    TRY(cap_read(job, &cap));
    job->cap_fixed = cap >= 0;
    job->config.prompt_cap = max_i64(cap, 0);
    TRY(own_files(job));
    TRY(claims_look(c));
    for (int w = 1; w < claims_workers(c); w++)
        TRY(part_load(job, w));
    TRY(take_chunks(job));
    job->rows_end = 0; // the queue begins with the first chunk
    return files_count(job);
}
