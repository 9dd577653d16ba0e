/* engine/api/pipeline.c - see pipeline.h. */
#include "engine/api/pipeline.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/api/rows.h"
#include "engine/data/out.h"
#include "offload/peers.h"
#include "policy/cut.h"

struct pipeline {
    struct peers *peers;
    struct config config; // of this rank
    struct model part;
    /* Of rank 0, while the job is opened: what it told of its job, its longest line. */
    struct out told;
    int64_t line_max;
};

struct peers *pipeline_peers(const struct run *r)
{
    return r->pipeline ? r->pipeline->peers : NULL;
}

static int rank_of(const struct run *r)
{
    return peers_rank(r->pipeline->peers);
}

/* Where a rank runs. */
struct place {
    char host[64];
    cpu_set_t cpus;
};

/* Ranks on one machine share its memory, and its cores unless the launcher bound each to its own;
 * each takes a card of its own. */
static enum err share_machine(struct pipeline *p)
{
    static char device[32];
    struct place own = {{0}, {{0}}}, all[PEERS_MAX];
    const int n = peers_n(p->peers), rank = peers_rank(p->peers);
    (void)gethostname(own.host, sizeof own.host - 1);
    (void)sched_getaffinity(0, sizeof own.cpus, &own.cpus);
    TRY(peers_gather(p->peers, &own, sizeof own, all));
    TRY(peers_tell(p->peers, all, n * (int64_t)sizeof *all));
    int before = 0, here = 0, alike = 0;
    for (int i = 0; i < n; i++) {
        const int same = strcmp(all[i].host, own.host) == 0;
        before += same && i < rank;
        here += same;
        alike += same && CPU_EQUAL(&all[i].cpus, &own.cpus);
    }
    p->config.share_memory = here;
    p->config.share_cores = alike;
    if (strcmp(p->config.device, "cuda") == 0 ||
        (strcmp(p->config.device, "auto") == 0 && device_cuda_driver())) {
        snprintf(device, sizeof device, "cuda:%d", before);
        p->config.device = device;
    }
    return OK;
}

enum err pipeline_open(struct run *r)
{
    static const atomic_int never;
    struct pipeline *p = r->pipeline = calloc(1, sizeof *p);
    if (!p)
        return fail(ERR_FIT, "no memory for --pipeline");
    p->config = *r->config;
    TRY(peers_open(&p->peers));
    r->ranks.n = peers_n(p->peers);
    r->config = &p->config;
    TRY(share_machine(p));
    if (peers_rank(p->peers) == 0)
        return OK;
    log_level_max = min_i64(log_level_max, LOG_WARN);
    p->config.quiet = 1;
    p->config.progress = PROGRESS_NONE;
    p->config.summary = p->config.trace = NULL;
    p->config.time_limit_s = 0;
    p->config.interrupted = &never; // rank 0 stops all
    return OK;
}

enum err pipeline_turn_begin(const struct run *r)
{
    char turn = 0;
    return r->pipeline && rank_of(r) > 0 ? peers_tell(r->pipeline->peers, &turn, 1) : OK;
}

enum err pipeline_turn_end(const struct run *r)
{
    char turn = 0;
    return r->pipeline && rank_of(r) == 0 ? peers_tell(r->pipeline->peers, &turn, 1) : OK;
}

enum err pipeline_part(struct run *r, struct model *part, int from, int to)
{
    TRY(model_cut(part, r->model, from, to));
    for (int i = 0; i < 2; i++)
        memmove(r->kinds[i].layer, r->kinds[i].layer + from,
                (size_t)(to - from) * sizeof *r->kinds[i].layer);
    r->model = part;
    return OK;
}

void pipeline_layer_bytes(const struct model *model, double *n_bytes)
{
    const int layers = model->shape.n_layers;
    memset(n_bytes, 0, (size_t)layers * sizeof *n_bytes);
    for (int i = 1; i < model->n_layers; i++)
        n_bytes[min_i64(i, layers) - 1] += (double)model->layers[i].n_bytes;
}

enum err pipeline_cut(struct run *r)
{
    struct pipeline *p = r->pipeline;
    const int n = peers_n(p->peers), rank = rank_of(r), layers = r->model->shape.n_layers;
    int first[PEERS_MAX + 1];
    if (n > layers)
        return fail(ERR_USAGE, "--pipeline: %d ranks, and the model has %d layers", n, layers);
    double *cost = malloc((size_t)n * (size_t)layers * sizeof *cost);
    if (!cost)
        return fail(ERR_FIT, "no memory to cut %d layers", layers);
    for (int i = 0; i < n; i++)
        pipeline_layer_bytes(r->model, cost + (size_t)i * (size_t)layers);
    cut_layers(cost, n, layers, first);
    free(cost);
    TRY(pipeline_part(r, &p->part, first[rank], first[rank + 1]));
    log_line(LOG_INFO, "pipeline: %d ranks; rank %d has decoder layers %d to %d of %d", n, rank,
             first[rank], first[rank + 1] - 1, layers);
    return OK;
}

/* Bytes of any length from rank 0 to all; elsewhere *o receives them. */
static enum err tell_text(struct peers *p, struct out *o)
{
    int64_t n = o->n;
    TRY(peers_tell(p, &n, sizeof n));
    if (peers_rank(p) > 0) {
        if (!out_room(o, n))
            return fail(ERR_FIT, "no memory for %lld bytes of rank 0", (long long)n);
        o->n = n;
    }
    return n > 0 ? peers_tell(p, o->p, n) : OK;
}

/* ERR_JOB names the first line of rank 0's fingerprint that differs from this rank's. */
static enum err compare(const struct run *r, const char *first)
{
    const char *a = first, *b = r->fingerprint;
    char host[64] = "";
    while (*a && *a == *b)
        a++, b++;
    if (*a == *b)
        return OK;
    while (a > first && a[-1] != '\n')
        a--, b--;
    (void)gethostname(host, sizeof host - 1);
    return fail(ERR_JOB, "--pipeline: rank %d on %s has %.*s, rank 0 has %.*s", rank_of(r), host,
                (int)strcspn(b, "\n"), b, (int)strcspn(a, "\n"), a);
}

/* Rank 0 tells what its job is; the others compare, and open the same one without files. */
enum err pipeline_job(struct run *r, enum request_kind kind)
{
    struct pipeline *p = r->pipeline;
    struct out fingerprint = {0};
    if (rank_of(r) == 0) {
        TRY(rows_open(r, kind, r->config->out));
        job_tell(r->job, &p->told);
        out_bytes(&fingerprint, r->fingerprint, (int64_t)strlen(r->fingerprint) + 1);
        p->line_max = run_line_max(r);
        if (p->told.failed || fingerprint.failed)
            return fail(ERR_FIT, "no memory for what the other ranks need");
    }
    enum err err = tell_text(p->peers, &fingerprint);
    if (err == OK)
        err = peers_tell(p->peers, &p->line_max, sizeof p->line_max);
    if (err == OK)
        err = tell_text(p->peers, &p->told);
    if (err == OK && rank_of(r) > 0)
        err = rows_open(r, kind, NULL);
    if (err == OK)
        err = compare(r, fingerprint.p);
    out_free(&fingerprint);
    out_free(&p->told);
    return err;
}

void pipeline_follow(const struct run *r, struct job_config *job)
{
    if (!r->pipeline || rank_of(r) == 0)
        return;
    job->told = r->pipeline->told.p;
    job->n_told = r->pipeline->told.n;
    job->line_max = r->pipeline->line_max;
}

static void agree(struct ranks *all, const struct ranks *one)
{
    if (all->batch == 0) {
        *all = *one;
        return;
    }
    all->batch = min_i64(all->batch, one->batch);
    all->prefill_tokens = min_i64(all->prefill_tokens, one->prefill_tokens);
    all->no_sharing |= one->no_sharing;
}

void pipeline_agree(struct ranks *all, const struct plan *plan)
{
    agree(all, &(struct ranks){all->n, plan->batch, plan->prefill_tokens, plan->no_sharing});
}

enum err pipeline_wish(const struct run *r, struct plan_wish *wish)
{
    const struct ranks *ranks = &r->ranks;
    if (ranks->n == 0)
        return OK;
    const int groups = pipeline_groups(ranks->n);
    wish->groups = groups;
    if (wish->batches == 0)
        wish->batches = groups;
    if (wish->batches % groups != 0)
        return fail(ERR_USAGE, "--batches: %d is not a multiple of %d, the ranks and one",
                    wish->batches, groups);
    if (ranks->batch > 0) {
        wish->batch = (int)ranks->batch;
        wish->prefill_tokens = (int)ranks->prefill_tokens;
        wish->no_sharing = (int)ranks->no_sharing;
    }
    return OK;
}

/* The job takes as long as the rank with the most to do. */
static enum err slowest(struct run *r)
{
    struct plan_time *t = &r->decision.time;
    double all[PEERS_MAX];
    TRY(peers_gather(r->pipeline->peers, &t->job_s, sizeof t->job_s, all));
    for (int i = 1; i < peers_n(r->pipeline->peers) && rank_of(r) == 0; i++)
        if (all[i] > t->job_s) {
            t->pass_s *= all[i] / t->job_s;
            t->job_s = all[i];
        }
    return OK;
}

enum err pipeline_plan(struct run *r)
{
    struct pipeline *p = r->pipeline;
    const struct plan *plan = &r->decision.plan;
    struct ranks all[PEERS_MAX];
    r->keep_rows = 1; // which rows fit must not depend on the rank
    TRY(pipeline_turn_begin(r));
    TRY(run_rates(r));
    TRY(pipeline_turn_end(r));
    r->plan_told = PLAN_DETAILS;
    TRY(run_choose(r));
    pipeline_agree(&r->ranks, plan);
    TRY(peers_gather(p->peers, &r->ranks, sizeof r->ranks, all));
    for (int i = 1; i < r->ranks.n && rank_of(r) == 0; i++)
        agree(&r->ranks, &all[i]);
    TRY(peers_tell(p->peers, &r->ranks, sizeof r->ranks));
    r->plan_told = PLAN_LINE;
    TRY(run_choose(r));
    CHECK(plan->batch == r->ranks.batch && plan->prefill_tokens == r->ranks.prefill_tokens);
    TRY(slowest(r));
    if (job_cap_open(r->job))
        job_cap_fix(r->job, 0, &r->work);
    return OK;
}

struct rank_end {
    int from, to; // decoder layers
    double walk_s, waited_s;
    int64_t bytes, tokens;
};

enum err pipeline_report(struct run *r)
{
    const struct pipeline *p = r->pipeline;
    const struct engine *e = &r->engine;
    struct rank_end all[PEERS_MAX], own = {.from = p->part.first,
                                           .to = p->part.first + p->part.shape.n_layers,
                                           .walk_s = (double)(e->end_ns - e->start_ns) * 1e-9,
                                           .waited_s = (double)e->pipe.waited_ns * 1e-9,
                                           .bytes = e->pipe.in_bytes,
                                           .tokens = e->pipe.in_tokens};
    TRY(peers_gather(p->peers, &own, sizeof own, all));
    for (int i = 0; i < peers_n(p->peers) && rank_of(r) == 0; i++) {
        const struct rank_end *t = &all[i];
        log_line(LOG_INFO,
                 "pipeline: rank %d, layers %d to %d: waited for others %.1f %% of %.2f s; got "
                 "%.1f MiB, %.0f bytes a token",
                 i, t->from, t->to - 1, t->walk_s > 0 ? 100 * t->waited_s / t->walk_s : 0,
                 t->walk_s, (double)t->bytes / 1048576.0,
                 t->tokens > 0 ? (double)t->bytes / (double)t->tokens : 0);
    }
    return OK;
}

enum err pipeline_close(struct run *r, enum err err)
{
    struct pipeline *p = r->pipeline;
    if (!p)
        return err;
    const int done = r->job && !job_live(r->job) && (err == OK || err == ERR_ROWS);
    const int follows = p->peers && rank_of(r) > 0;
    if (p->peers && !done) // the sentence first: this process does not return
        fprintf(stderr, "sluice: error: rank %d: %s\n", rank_of(r), err_text());
    peers_close(p->peers, done ? 0 : (int)err);
    model_cut_close(&p->part);
    out_free(&p->told);
    free(p);
    r->pipeline = NULL;
    return follows && done ? OK : err;
}
