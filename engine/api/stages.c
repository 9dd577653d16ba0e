/* engine/api/stages.c - see stages.h. */
#include "engine/api/stages.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/pipeline.h"

#define ROUNDS       4 // of cutting by what the stages of the cut before took
#define BATCHES_MORE 3 // in a group; tried besides one batch

/* What all stages have in common. */
struct common {
    struct ranks ranks;
    int64_t batches; // of all groups
    int resident;    // 1: no stage streams
};

/* A run of the user's that plans a stage. */
struct stage_run {
    struct run run;
    struct model model;
    struct config config;
};

struct finder {
    const struct machines *machines;
    const struct run *run;       // the user's
    int first[MACHINES_MAX + 1]; // the cut
    double layer_bytes[SHAPE_LAYERS_MAX];
    double s_per_byte[MACHINES_MAX]; // of each stage, for the next cut
    double cost[MACHINES_MAX * SHAPE_LAYERS_MAX];
    struct stages now, resident; // the cut that is tried; so that no stage streams
};

/* ---- one stage ---- */

static enum err choose(struct stage_run *now, const struct stage *s)
{
    TRY(pipeline_part(&now->run, &now->model, s->from, s->to));
    run_set_kinds(&now->run);
    now->run.work.kinds = now->run.evict.kinds;
    TRY(run_rates(&now->run));
    return run_choose(&now->run);
}

/* Bytes of weights that the stage reads in a pass of all groups. */
static double streamed(const struct run *r)
{
    const struct plan *p = &r->decision.plan;
    double n_bytes = 0;
    for (int layer = 1; layer < p->layers; layer++)
        if (!plan_layer_resident(p, layer))
            n_bytes += (double)r->weights->layer_bytes[layer];
    return n_bytes * plan_groups(p);
}

/* Plans the layers of s on its machine, silently. ERR_FIT: they do not fit. */
static enum err stage_plan(const struct finder *f, const struct common *common, struct stage *s)
{
    const enum log_level level = log_level_max;
    char why[512];
    struct stage_run *now = calloc(1, sizeof *now);
    if (!now)
        return fail(ERR_FIT, "no memory for the plan of a stage");
    now->config = s->kind->config;
    if (now->config.batches == 0)
        now->config.batches = common->batches;
    if (common->resident)
        now->config.resident = "100%";
    run_copy(&now->run, f->run, &now->config);
    now->run.ranks = common->ranks;
    log_level_max = LOG_ERROR;
    const enum err err = choose(now, s);
    log_level_max = level;
    if (err == OK) {
        s->plan = now->run.decision.plan;
        s->bytes = now->run.decision.bytes;
        s->time = now->run.decision.time;
        s->streamed = streamed(&now->run);
    }
    snprintf(why, sizeof why, "%s", err_text());
    run_forget(&now->run);
    model_cut_close(&now->model);
    free(now);
    return err == OK ? OK : fail(err, "%s", why);
}

/* 1: the stages have equal machines and equal layers, so their plans are equal. */
static int alike(const struct finder *f, const struct stage *a, const struct stage *b)
{
    const struct run *r = f->run;
    const int n = r->model->shape.n_layers, layers = a->to - a->from;
    return a->kind == b->kind && layers == b->to - b->from && (a->from == 0) == (b->from == 0) &&
           (a->to == n) == (b->to == n) &&
           memcmp(&f->layer_bytes[a->from], &f->layer_bytes[b->from],
                  (size_t)layers * sizeof f->layer_bytes[0]) == 0 &&
           memcmp(&r->evict.kinds->layer[a->from], &r->evict.kinds->layer[b->from],
                  (size_t)layers) == 0;
}

/* ---- a cut ---- */

/* Plans every stage that does not have what all must have in common. */
static enum err plan_stages(const struct finder *f, const struct common *common, struct stages *p)
{
    for (int i = 0; i < p->n; i++) {
        struct stage *s = &p->stages[i];
        if (i > 0 && alike(f, s - 1, s)) {
            const struct stage own = *s;
            *s = s[-1];
            s->from = own.from;
            s->to = own.to;
            continue;
        }
        if (s->plan.batch == 0 || s->plan.batch != common->ranks.batch ||
            s->plan.prefill_tokens != common->ranks.prefill_tokens ||
            s->plan.no_sharing != common->ranks.no_sharing)
            TRY(stage_plan(f, common, s));
    }
    return OK;
}

/* Seconds that the link behind stage i is busy in a pass. */
static double hop_s(const struct finder *f, const struct stages *p, int i, double passes)
{
    const struct work *work = &f->run->work;
    const struct machine_kind *a = p->stages[i].kind, *b = p->stages[i + 1].kind;
    const double tokens = (double)(work->prompt_tokens + work->output_tokens) / passes;
    return tokens * f->run->model->shape.dim * sizeof(float) /
           machine_hop(&a->run.machine, &b->run.machine, a == b);
}

/* The time of the job from those of the stages. A group passes all stages and links before its rows
 * have their next token. */
static void time_job(const struct finder *f, struct stages *p)
{
    double passes = 0, way_s = 0, most_s = 0;
    for (int i = 0; i < p->n; i++)
        passes = max_d(passes, p->stages[i].time.passes);
    for (int i = 0; i < p->n; i++) {
        struct stage *s = &p->stages[i];
        const double pass_s = s->time.pass_s;
        s->hop_s = i + 1 < p->n ? hop_s(f, p, i, passes) : 0;
        way_s += (pass_s + s->hop_s) / p->groups;
        if (max_d(pass_s, s->hop_s) <= most_s)
            continue;
        most_s = max_d(pass_s, s->hop_s);
        p->bound = i;
        p->bound_link = s->hop_s > pass_s;
    }
    p->pass_s = max_d(most_s, way_s);
    if (way_s > most_s)
        p->bound = -1;
    p->fill_s = way_s - most_s / p->groups;
    p->job_s = passes * p->pass_s + p->fill_s;
}

/* Plans the cut with this many batches in a group: first each stage for itself, then all with the
 * least of what they took. */
static enum err plan_cut(const struct finder *f, int batches, int resident, struct stages *p)
{
    const int n = f->machines->n, groups = pipeline_groups(n);
    struct common common = {{.n = n}, (int64_t)groups * batches, resident};
    *p = (struct stages){.n = n, .groups = groups};
    for (int i = 0; i < n; i++)
        p->stages[i] = (struct stage){
            .kind = machines_kind(f->machines, i), .from = f->first[i], .to = f->first[i + 1]};
    TRY(plan_stages(f, &common, p));
    for (int i = 0; i < n; i++)
        pipeline_agree(&common.ranks, &p->stages[i].plan);
    /* The search may have grown a batch with less look-ahead than it tries for a batch that is
     * given; then fewer rows fit. */
    enum err err = plan_stages(f, &common, p);
    for (; err == ERR_FIT && common.ranks.batch > 1; err = plan_stages(f, &common, p))
        common.ranks.batch -= max_i64(common.ranks.batch / 8, 1);
    TRY(err);
    time_job(f, p);
    return OK;
}

/* Bytes of weights that can stay where a machine computes. */
static double room(const struct machine_kind *k)
{
    const struct run *r = &k->run;
    return (double)(r->plans_device ? r->budget.device : r->budget.ram);
}

static double bytes_of(const struct finder *f, int from, int to)
{
    double n_bytes = 0;
    for (int layer = from; layer < to; layer++)
        n_bytes += f->layer_bytes[layer];
    return n_bytes;
}

/* 1: the weights of every stage may stay on its machine. */
static int fits(const struct finder *f)
{
    for (int i = 0; i < f->machines->n; i++)
        if (bytes_of(f, f->first[i], f->first[i + 1]) > room(machines_kind(f->machines, i)))
            return 0;
    return 1;
}

/* Plans the cut into f->now; where stages stream, also so that none does, if that is faster. Keeps
 * the fastest pipeline of all in *best. */
static enum err try_cut(struct finder *f, int batches, struct stages *best)
{
    int streams = 0;
    TRY(plan_cut(f, batches, 0, &f->now));
    for (int i = 0; i < f->now.n; i++)
        streams |= f->now.stages[i].streamed > 0;
    if (streams && fits(f) && plan_cut(f, batches, 1, &f->resident) == OK &&
        f->resident.job_s < f->now.job_s)
        f->now = f->resident;
    if (best->n == 0 || f->now.job_s < best->job_s)
        *best = f->now;
    return OK;
}

/* ---- all cuts ---- */

/* The best cut by f->s_per_byte. Returns 1 if it is another than that of *best. */
static int cut(struct finder *f, const struct stages *best)
{
    const int n = f->machines->n, layers = f->run->model->shape.n_layers;
    int other = best->n == 0;
    for (int i = 0; i < n; i++)
        for (int layer = 0; layer < layers; layer++)
            f->cost[i * layers + layer] = f->s_per_byte[i] * f->layer_bytes[layer];
    cut_layers(f->cost, n, layers, f->first);
    for (int i = 0; i < n; i++)
        other |= f->first[i] != best->stages[i].from;
    return other;
}

/* Cuts, then cuts again by what the stages took, while that helps. */
static enum err find_cut(struct finder *f, struct stages *best)
{
    for (int round = 0; round < ROUNDS && cut(f, best); round++) {
        const double before = best->n > 0 ? best->job_s : INFINITY;
        TRY(try_cut(f, 1, best));
        if (best->job_s >= before)
            break;
        for (int i = 0; i < f->now.n; i++) {
            const struct stage *s = &f->now.stages[i];
            f->s_per_byte[i] = s->time.pass_s / bytes_of(f, s->from, s->to);
        }
    }
    return OK;
}

/* Unlike machines get layers by the speed of the whole job there, then by the memory that weights
 * can stay in; the cut goes on from both. Then more batches. */
static enum err find_stages(struct finder *f, struct stages *best)
{
    const struct config *c = f->run->config;
    const int n = f->machines->n;
    enum err err = OK;
    for (int by_memory = 0; by_memory < 2; by_memory++) {
        int known = 1;
        for (int i = 0; i < n; i++) {
            const struct machine_kind *k = machines_kind(f->machines, i);
            f->s_per_byte[i] = by_memory ? 1 / max_d(room(k), 1) : k->run.decision.time.job_s;
            known &= f->s_per_byte[i] > 0; // 0: the whole job does not fit there
        }
        if (by_memory && f->machines->n_kinds == 1 && best->n > 0)
            break; // for equal machines both begin alike
        if (known)
            err = find_cut(f, best);
        if (err != OK && err != ERR_FIT)
            return err;
    }
    if (best->n == 0)
        return err;
    for (int i = 0; i < n; i++)
        f->first[i] = best->stages[i].from;
    err = c->batches == 0 ? try_cut(f, BATCHES_MORE, best) : OK;
    return err == ERR_FIT ? OK : err;
}

enum err stages_plan(struct stages *p, const struct machines *m, const struct run *r)
{
    const struct model *model = r->model;
    const int layers = model->shape.n_layers;
    memset(p, 0, sizeof *p);
    if (m->n > layers) {
        snprintf(p->why, sizeof p->why, "%d machines are more than the %d layers", m->n, layers);
        return OK;
    }
    struct finder *f = calloc(1, sizeof *f);
    if (!f)
        return fail(ERR_FIT, "no memory to look for a pipeline");
    *f = (struct finder){.machines = m, .run = r};
    pipeline_layer_bytes(model, f->layer_bytes);
    enum err err = find_stages(f, p);
    free(f);
    if (err != ERR_FIT)
        return err;
    snprintf(p->why, sizeof p->why, "%s", err_text());
    return OK;
}
