/* engine/job/job_queue.c - see job_impl.h. Owns the order of rows, and the reader: the thread that
 * parses lines into requests ahead of the walker, so that the walker does not wait for text.
 *
 * Note: the queue has three parts, emptied in this order: rows requeued in this run, rows that an
 * earlier run had begun, the rest of the input. The reader decides nothing. The walker asks for
 * rows by number, the reader makes them in that order, and the consequences of a row (it failed, it
 * is already finished) happen on the walker when the row reaches the head. So bytes of OUT, order
 * and errors do not depend on how far ahead the reader is. */
#include "engine/job/job_impl.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/thread.h"

#define HEAP_BYTES 16 // overhead of the C library per block

int job_live(const struct job *job)
{
    return job->n_waiting + job->n_live > 0;
}

/* ---- which row comes next ---- */

/* The next waiting row that was not requeued; -1: none. */
static enum err next_row(struct job *job, int64_t *k)
{
    while (job->next_resumed < job->n_resumed) {
        *k = job->resumed[job->next_resumed++].row;
        if (job->rows[*k].state == ROW_WAITING)
            return OK;
    }
    for (int more = 1; more;) {
        while (job->next_row < job->rows_end) {
            *k = job->next_row++;
            if (job->rows[*k].state == ROW_WAITING)
                return OK;
        }
        more = job->config.claims != NULL;
        if (more)
            TRY(shared_next(job, &more));
    }
    *k = -1;
    return OK;
}

/* Takes the next waiting row. *found 0: none waits. */
static enum err ask_row(struct job *job, struct ready *q, int *found)
{
    int64_t k;
    TRY(next_row(job, &k));
    *found = k >= 0;
    if (!*found)
        return OK;
    struct job_row *row = &job->rows[k];
    *q = (struct ready){.row = k, .from = row->n > 0 ? &job->resumed[row->n - 1] : NULL};
    row->state = ROW_LIVE;
    row->n = 0;
    return OK;
}

/* ---- from a row's number to a request: reads only what stays constant after job_begin() ---- */

/* Appends the tokens of an earlier run. */
static enum err add_resumed(const struct job *job, struct request *r, const struct resumed *from)
{
    if (from->n > r->n_cap - r->n_tokens)
        return fail(ERR_CORRUPT, "%.512s: line %lu has %lld tokens, at most %d can be",
                    job->paths.journal, (unsigned long)job->rows[from->row].line,
                    (long long)from->n, r->n_cap - r->n_tokens);
    for (int64_t i = 0; i < from->n; i++) {
        if (from->ids[i] < 0 || from->ids[i] >= job->config.defaults.vocab)
            return fail(ERR_CORRUPT, "%.512s: line %lu: %d is not a token", job->paths.journal,
                        (unsigned long)job->rows[from->row].line, (int)from->ids[i]);
        r->tokens[r->n_tokens++] = from->ids[i];
    }
    return OK;
}

static int64_t request_bytes(const struct request *r)
{
    int64_t n = (int64_t)r->n_cap * (int64_t)sizeof *r->tokens + r->n_custom_id +
                r->n_stop_ids * (int64_t)sizeof *r->stop_ids +
                r->sampling.n_bias * (int64_t)sizeof *r->sampling.bias + 4 * HEAP_BYTES;
    for (int i = 0; i < r->n_stops; i++)
        n += r->stops[i].n + (int64_t)sizeof *r->stops + HEAP_BYTES;
    return n;
}

static enum err ready_bad(struct ready *q, struct request *r, const struct row_error *error)
{
    q->bad = malloc(sizeof *q->bad);
    if (!q->bad)
        return fail(ERR_FIT, "no memory for the error of line %lld", (long long)r->line);
    *q->bad = (struct bad_row){.request = *r, .error = *error};
    memset(r, 0, sizeof *r);
    q->n_bytes = (int64_t)sizeof *q->bad + request_bytes(&q->bad->request) + HEAP_BYTES;
    return OK;
}

/* Makes the row that q names: q->live, or q->bad. Any other error ends the job. */
static enum err ready_make(struct job *job, struct ready *q)
{
    struct request r = {0};
    struct row_error error;
    enum err err = OK;
    if (job->requests) {
        r = job->requests[q->row];
        memset(&job->requests[q->row], 0, sizeof r);
    } else {
        err = scan_parse(job, q->row, &r, &error);
    }
    if (err == OK)
        err = job_row_check(job, &r, &error);
    if (err == OK && q->from)
        err = add_resumed(job, &r, q->from);
    if (q->from) {
        free(q->from->ids);
        q->from->ids = NULL;
    }
    if (err == OK) {
        q->live = live_new(job, &r, q->row);
        if (!q->live)
            err = fail(ERR_FIT, "no memory for line %lu", (unsigned long)job->rows[q->row].line);
        else
            q->n_bytes = (int64_t)sizeof *q->live + request_bytes(&q->live->request) +
                         q->live->text.cap + HEAP_BYTES;
    } else if (err == ERR_ROW) {
        err = ready_bad(q, &r, &error);
    }
    request_free(&r);
    return err;
}

static void ready_free(struct ready *q)
{
    live_free(q->live);
    if (q->bad)
        request_free(&q->bad->request);
    free(q->bad);
}

/* ---- the reader ---- */

static struct ready *slot(struct reader *r, int64_t n)
{
    return &r->ring[n % QUEUE_ROWS];
}

static void *reader_main(void *arg)
{
    struct job *job = arg;
    struct reader *r = &job->reader;
    pthread_mutex_lock(&r->lock);
    while (r->err == OK) {
        while (!r->stop && (r->n_made == r->n_asked || r->n_bytes >= QUEUE_BYTES))
            pthread_cond_wait(&r->work, &r->lock);
        if (r->stop)
            break;
        struct ready *q = slot(r, r->n_made); // the reader's until n_made counts it
        pthread_mutex_unlock(&r->lock);
        enum err err = ready_make(job, q);
        pthread_mutex_lock(&r->lock);
        if (err == OK) {
            r->n_made++;
            r->n_bytes += q->n_bytes;
            r->most_rows = max_i64(r->most_rows, r->n_made - r->n_taken);
            r->most_bytes = max_i64(r->most_bytes, r->n_bytes);
        } else { // reported when the walker reaches this row
            snprintf(r->text, sizeof r->text, "%s", err_text());
            r->err = err;
        }
        pthread_cond_signal(&r->made);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* Asks for rows until the ring is full. The lock is held. */
static enum err ask_rows(struct job *job)
{
    struct reader *r = &job->reader;
    const int64_t most = job->config.claims ? SHARED_QUEUE_ROWS : QUEUE_ROWS;
    int found = 1;
    while (found && r->n_asked - r->n_taken < most) {
        TRY(ask_row(job, slot(r, r->n_asked), &found));
        r->n_asked += found;
    }
    pthread_cond_signal(&r->work);
    return OK;
}

enum err reader_start(struct job *job)
{
    struct reader *r = &job->reader;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work, NULL);
    pthread_cond_init(&r->made, NULL);
    enum err err = ask_rows(job);
    if (err == OK)
        err = thread_need(&r->thread, reader_main, job, "job", "reader");
    r->started = err == OK;
    if (err == OK)
        return OK;
    pthread_cond_destroy(&r->made);
    pthread_cond_destroy(&r->work);
    pthread_mutex_destroy(&r->lock);
    return err;
}

void reader_stop(struct job *job)
{
    struct reader *r = &job->reader;
    if (!r->started)
        return;
    pthread_mutex_lock(&r->lock);
    r->stop = 1;
    pthread_cond_signal(&r->work);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    for (int64_t n = r->n_taken; n < r->n_made; n++)
        ready_free(slot(r, n));
    pthread_cond_destroy(&r->made);
    pthread_cond_destroy(&r->work);
    pthread_mutex_destroy(&r->lock);
    r->started = 0;
}

/* Waits for the row at the head. *found 0: there is none. */
static enum err reader_take(struct job *job, struct ready *q, int *found)
{
    struct reader *r = &job->reader;
    pthread_mutex_lock(&r->lock);
    enum err err = ask_rows(job);
    *found = err == OK && r->n_asked > r->n_taken;
    if (*found && r->n_made == r->n_taken && r->err == OK) {
        int64_t start_ns = clock_ns();
        while (r->n_made == r->n_taken && r->err == OK)
            pthread_cond_wait(&r->made, &r->lock);
        job->counts.text_wait_ns += clock_ns() - start_ns;
    }
    if (*found && r->n_made == r->n_taken) {
        err = fail(r->err, "%s", r->text);
    } else if (*found) {
        *q = *slot(r, r->n_taken++);
        r->n_bytes -= q->n_bytes;
    }
    job->counts.ahead_rows = r->most_rows;
    job->counts.ahead_bytes = r->most_bytes;
    pthread_mutex_unlock(&r->lock);
    return err;
}

/* ---- what the walker does with a row ---- */

/* Makes a row the head of the queue, unless it is bad or already finished. */
static enum err queue_load(struct job *job, struct ready *q)
{
    job->n_waiting--;
    job->lengths.n_begun++;
    if (q->bad) {
        enum err err = job_row_failed(job, q->row, &q->bad->request, &q->bad->error);
        ready_free(q);
        return err;
    }
    struct live *l = q->live;
    job_live_link(job, l);
    job->n_live++;
    if (l->finish_reason)
        return job_finish(job, &l->request);
    job->n_live--; // waits again, parsed
    job->n_waiting++;
    job->peeked = l;
    return OK;
}

enum err job_peek(struct job *job, const struct request **next)
{
    CHECK(job->begun);
    *next = NULL;
    if (job->requeued) {
        *next = &job->requeued->request;
        return OK;
    }
    while (!job->peeked) {
        struct ready q;
        int found;
        if (job->reader.started) {
            TRY(reader_take(job, &q, &found));
        } else {
            TRY(ask_row(job, &q, &found));
            if (found)
                TRY(ready_make(job, &q));
        }
        if (!found)
            return OK;
        TRY(queue_load(job, &q));
    }
    *next = &job->peeked->request;
    return OK;
}

static void note_queue(struct job *job)
{
    if (job->n_waiting > 0 || job->counts.queue_empty_ns)
        return;
    job->counts.queue_empty_ns = clock_ns();
    job->counts.output_tokens_at_empty = job->counts.output_tokens;
}

struct request *job_take(struct job *job)
{
    struct live *l = job->requeued;
    if (l) {
        job->requeued = l->next_requeued;
    } else {
        l = job->peeked;
        CHECK(l);
        job->peeked = NULL;
        job->counts.prompt_tokens += l->request.n_prompt;
    }
    job->n_waiting--;
    job->n_live++;
    note_queue(job);
    return &l->request;
}

void job_requeue(struct job *job, struct request *r)
{
    struct live *l = live_of(r);
    l->next_requeued = job->requeued;
    job->requeued = l;
    job->n_live--;
    job->n_waiting++;
}

void job_requeue_all(struct job *job)
{
    job->requeued = NULL;
    for (struct live *l = job->live; l; l = l->next) { // newest first
        if (l == job->peeked)
            continue;
        l->next_requeued = job->requeued;
        job->requeued = l;
    }
    job->n_waiting += job->n_live;
    job->n_live = 0;
}
