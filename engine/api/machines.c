/* engine/api/machines.c - see machines.h. */
#include "engine/api/machines.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BALANCED 1.005 // greatest ratio of the times of two machines that share rows
#define ROUNDS   12    // of balancing at most; three or four are usual

/* ---- the list ---- */

/* One FILE or FILE*N of n bytes. */
static enum err kind_read(struct machine_kind *k, const char *text, size_t n, int machines)
{
    char count[24];
    int64_t many = 1;
    const char *star = memchr(text, '*', n);
    size_t length = star ? (size_t)(star - text) : n;
    if (length == 0 || length >= sizeof k->path)
        return fail(ERR_USAGE, "--machines: '%.*s' names no file (a.cfg,b.cfg*3)", (int)n, text);
    snprintf(k->path, sizeof k->path, "%.*s", (int)length, text);
    if (star) {
        snprintf(count, sizeof count, "%.*s", (int)min_i64((int64_t)(n - length) - 1, 20),
                 star + 1);
        TRY(parse_count("machines", count, &many));
    }
    if (many < 1)
        return fail(ERR_USAGE, "--machines: '%.*s': at least one machine (%s*1)", (int)n, text,
                    k->path);
    if (many > MACHINES_MAX - machines)
        return fail(ERR_USAGE, "--machines: %lld machines up to '%.*s', at most %d (a smaller *N)",
                    (long long)(machines + many), (int)n, text, MACHINES_MAX);
    k->count = (int)many;
    return OK;
}

enum err machines_open(struct machines *m, const char *list)
{
    *m = (struct machines){.kinds = calloc(MACHINES_MAX, sizeof *m->kinds)};
    enum err err = m->kinds ? OK : fail(ERR_FIT, "no memory for the list of machines");
    for (const char *at = list; err == OK && at;) {
        size_t n = strcspn(at, ",");
        struct machine_kind *k = &m->kinds[min_i64(m->n_kinds, MACHINES_MAX - 1)];
        err = kind_read(k, at, n, m->n);
        m->n += k->count;
        m->n_kinds++;
        at = at[n] ? at + n + 1 : NULL;
    }
    if (err != OK)
        free(m->kinds);
    return err;
}

void machines_close(struct machines *m)
{
    for (int i = 0; i < m->n_kinds; i++)
        run_forget(&m->kinds[i].run);
    free(m->kinds);
}

const struct machine_kind *machines_kind(const struct machines *m, int i)
{
    const struct machine_kind *k = m->kinds;
    for (; i >= k->count; k++)
        i -= k->count;
    return k;
}

/* ---- the whole job on each ---- */

void run_copy(struct run *to, const struct run *from, const struct config *c)
{
    *to = *from;
    to->config = c;
    to->ops.pool = from->session->pool; // which every machine file with other threads replaces
    to->weights = NULL;
    to->search = NULL;
    to->search_bytes = 0;
    to->ranking = NULL;
    to->costs = (struct plan_costs){0};
    to->plan_told = PLAN_BY_COMMAND;
    to->elsewhere = 1;
    to->keep_rows = 1;
}

void run_forget(struct run *r)
{
    free(r->weights);
    free(r->search);
}

enum err machines_plan(struct machines *m, const struct run *r)
{
    for (int i = 0; i < m->n_kinds; i++) {
        struct machine_kind *k = &m->kinds[i];
        k->config = *r->config;
        k->config.machine = k->path;
        run_copy(&k->run, r, &k->config);
        TRY(run_rates(&k->run));
        const enum err err = run_choose(&k->run);
        if (err == ERR_FIT)
            snprintf(k->why, sizeof k->why, "%s", err_text());
        else
            TRY(err);
    }
    return OK;
}

/* ---- data parallel ---- */

/* Times a number of rows on a machine under the plan of the whole job, as a worker plans. `rows`
 * has room for the lengths of all rows. */
static void price_rows(const struct machine_kind *k, double n, struct work_row *rows,
                       struct plan_time *t)
{
    const struct work *all = &k->run.work;
    struct setting set = run_setting(&k->run);
    struct work work = *all;
    const double part = n / (double)all->n_rows;
    work.n_rows = (int64_t)round(n);
    work.prompt_tokens = (int64_t)(part * (double)all->prompt_tokens);
    work.output_tokens = (int64_t)(part * (double)all->output_tokens);
    if (all->rows) { // every so-many-th of them
        work.n_lengths = 0;
        for (int64_t i = 0; i < all->n_lengths; i++)
            if (floor((double)(i + 1) * part) > floor((double)i * part))
                rows[work.n_lengths++] = all->rows[i];
        work.rows = rows;
    }
    set.work = &work;
    *t = (struct plan_time){.bound = "cpu"};
    if (work.n_rows > 0 && (!all->rows || work.n_lengths > 0))
        CHECK(plan_cost(&set, &k->run.decision.plan, k->run.search, t) == 0); // all rows fit
}

/* Gives each machine rows by its pace in the last round. */
static void share_out(const struct machines *m, double n_rows, struct share *shares)
{
    double sum = 0;
    for (int i = 0; i < m->n_kinds; i++) {
        struct share *s = &shares[i];
        s->rows /= max_d(s->time.job_s, 1e-9);
        sum += s->rows * m->kinds[i].count;
    }
    for (int i = 0; i < m->n_kinds; i++)
        shares[i].rows *= n_rows / sum;
}

enum err machines_share(const struct machines *m, struct share *shares, double *job_s)
{
    const struct work *all = &m->kinds[0].run.work;
    struct work_row *rows = malloc((size_t)max_i64(all->n_lengths, 1) * sizeof *rows);
    if (!rows)
        return fail(ERR_FIT, "no memory for the lengths of rows");
    struct share now[MACHINES_MAX];
    for (int i = 0; i < m->n_kinds; i++)
        now[i] = (struct share){(double)all->n_rows, m->kinds[i].run.decision.time};
    double first = 0;
    *job_s = INFINITY;
    for (int round = 0; round<ROUNDS && * job_s> first * BALANCED; round++) {
        double last = 0;
        first = INFINITY;
        share_out(m, (double)all->n_rows, now);
        for (int i = 0; i < m->n_kinds; i++) {
            price_rows(&m->kinds[i], now[i].rows, rows, &now[i].time);
            last = max_d(last, now[i].time.job_s);
            first = min_d(first, now[i].time.job_s);
        }
        if (last >= *job_s)
            continue; // a few rows more may cost a whole wave of them
        *job_s = last;
        memcpy(shares, now, (size_t)m->n_kinds * sizeof *now);
    }
    free(rows);
    return OK;
}
