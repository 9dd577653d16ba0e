/* engine/job/job_commit.c - see job_impl.h. Owns the writing of confirmed lines and records, and
 * the writer: the thread that makes them durable, so that the walker does not wait for fdatasync.
 *
 * Note: a commit is handed over whole (by swapping buffers), and the next one only after it is
 * done. So a record never reaches the journal before the line it vouches for, or before records of
 * an earlier commit, whichever thread writes them. */
#include "engine/job/job_impl.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/thread.h"

static enum err write_failed_before(const struct job *job)
{
    return fail(ERR_IO, "%.512s: an earlier write failed (the same command resumes)",
                job->paths.partial);
}

enum err files_spill(struct job *job)
{
    if (job->broken)
        return write_failed_before(job);
    job->broken =
        job->lines.n > 0 && write_all(job->partial_fd, job->paths.partial, job->written_bytes,
                                      job->lines.p, job->lines.n) != OK;
    if (job->broken)
        return ERR_IO;
    job->written_bytes += job->lines.n;
    job->lines.n = 0;
    return OK;
}

/* Writes lines, then records, each durable before the next. Reads only constants of the job. */
static enum err commit_write(const struct job *job, struct commit *c)
{
    TRY(write_all(job->partial_fd, job->paths.partial, c->at, c->lines.p, c->lines.n));
    if (c->sync_lines)
        TRY(sync_data(job->partial_fd, job->paths.partial));
    TRY(journal_write(&job->journal, &c->records));
    c->done_ns = clock_ns();
    return OK;
}

static void *writer_main(void *arg)
{
    struct job *job = arg;
    struct writer *w = &job->writer;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->stop && !w->busy)
            pthread_cond_wait(&w->changed, &w->lock);
        if (!w->busy)
            break;
        pthread_mutex_unlock(&w->lock);
        enum err err = commit_write(job, &job->commit);
        pthread_mutex_lock(&w->lock);
        w->err = err;
        snprintf(w->text, sizeof w->text, "%s", err == OK ? "" : err_text());
        w->busy = 0;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

enum err writer_start(struct job *job)
{
    struct writer *w = &job->writer;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    enum err err = thread_need(&w->thread, writer_main, job, "job", "writer");
    w->started = err == OK;
    if (err == OK)
        return OK;
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    return err;
}

void writer_stop(struct job *job)
{
    struct writer *w = &job->writer;
    if (!w->started)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = 1;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    w->started = 0;
}

/* Accounts for the commit that was handed over: durable, or failed (err). */
static enum err commit_end(struct job *job, enum err err)
{
    struct commit *c = &job->commit;
    job->committing = 0;
    job->broken = err != OK;
    if (err != OK)
        return err;
    job->partial_bytes = c->at + c->lines.n;
    if (job->config.claims)
        claims_count(job->config.claims, c->n_rows);
    if (c->n_rows > 0)
        job->counts.last_durable_ns = c->done_ns;
    return OK;
}

enum err files_commit_end(struct job *job, int wait)
{
    struct writer *w = &job->writer;
    if (!job->committing)
        return OK;
    pthread_mutex_lock(&w->lock);
    int64_t start_ns = w->busy && wait ? clock_ns() : 0;
    while (w->busy && wait)
        pthread_cond_wait(&w->changed, &w->lock);
    int busy = w->busy;
    enum err err = busy || w->err == OK ? OK : fail(w->err, "%s", w->text);
    pthread_mutex_unlock(&w->lock);
    if (start_ns)
        job->counts.commit_wait_ns += clock_ns() - start_ns;
    return busy ? OK : commit_end(job, err);
}

/* Moves what is confirmed into the commit; the job continues with the buffers of the last one. */
static void commit_take(struct job *job)
{
    struct commit *c = &job->commit;
    struct out room = c->lines;
    c->lines = job->lines;
    room.n = 0;
    job->lines = room;
    c->at = job->written_bytes;
    job->written_bytes += c->lines.n;
    c->sync_lines = job->written_bytes > job->partial_bytes;
    journal_take(&job->journal, &c->records);
    c->n_rows = job->pending_rows;
    job->pending_rows = 0;
    job->commit_ns = clock_ns();
}

enum err files_commit(struct job *job, int wait)
{
    struct writer *w = &job->writer;
    CHECK(job->n_staged == 0);
    if (job->broken)
        return write_failed_before(job);
    TRY(files_commit_end(job, 1));
    commit_take(job);
    if (wait || !w->started)
        return commit_end(job, commit_write(job, &job->commit));
    pthread_mutex_lock(&w->lock);
    w->busy = 1;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    job->committing = 1;
    return OK;
}
