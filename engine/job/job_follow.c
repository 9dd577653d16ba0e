/* engine/job/job_follow.c - see job.h: a pipeline's job on the ranks that have no files.
 *
 * Rank 0 opens the job; what it found in its journal goes to the others, which then have the same
 * rows, in the same states, with the same tokens of an earlier run, in the same order. */
#include "engine/job/job_impl.h"

#include <stdlib.h>
#include <string.h>

void job_tell(const struct job *job, struct out *to)
{
    out_bytes(to, (const char *)&job->n_rows, sizeof job->n_rows);
    for (int64_t k = 0; k < job->n_rows; k++) {
        const char waits = !job->complete && job->rows[k].state == ROW_WAITING;
        out_bytes(to, &waits, 1);
    }
    for (int64_t i = 0; i < job->n_resumed; i++) {
        const struct resumed *t = &job->resumed[i];
        const int64_t front[2] = {t->row, t->n};
        if (job->rows[t->row].state != ROW_WAITING || !t->ids)
            continue;
        out_bytes(to, (const char *)front, sizeof front);
        out_bytes(to, (const char *)t->ids, front[1] * (int64_t)sizeof *t->ids);
    }
}

static enum err bad_told(const struct job *job)
{
    return fail(ERR_INPUT, "%.512s: differs from the input of rank 0", job->config.in_path);
}

enum err follow_told(struct job *job)
{
    const char *at = job->config.told, *end = at + job->config.n_told;
    int64_t n_rows, front[2];
    if (end - at < (int64_t)sizeof n_rows)
        return bad_told(job);
    memcpy(&n_rows, at, sizeof n_rows);
    at += sizeof n_rows;
    if (n_rows != job->n_rows || end - at < n_rows)
        return bad_told(job);
    job->n_waiting = 0;
    for (int64_t k = 0; k < n_rows; k++) {
        const int waits = *at++;
        if (job->rows[k].state == ROW_WAITING && !waits) {
            job->rows[k].state = ROW_OK;
            job->counts.done++;
        }
        job->n_waiting += job->rows[k].state == ROW_WAITING;
    }
    while (end - at >= (int64_t)sizeof front) {
        memcpy(front, at, sizeof front);
        at += sizeof front;
        struct journal_entry e = {.kind = JOURNAL_TOKENS, .index = front[0], .n = front[1]};
        if (front[0] < 0 || front[0] >= n_rows || front[1] < 0 ||
            front[1] > (end - at) / (int64_t)sizeof *e.ids)
            return bad_told(job);
        int32_t *ids = malloc((size_t)front[1] * sizeof *ids + 1);
        if (!ids)
            return fail(ERR_FIT, "no memory for %lld tokens", (long long)front[1]);
        memcpy(ids, at, (size_t)front[1] * sizeof *ids);
        e.ids = ids;
        at += front[1] * (int64_t)sizeof *ids;
        enum err err = files_tokens(job, &e);
        free(ids);
        TRY(err);
    }
    return OK;
}
