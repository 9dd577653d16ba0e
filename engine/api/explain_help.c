/* engine/api/explain_help.c - of explain.h: finds what would make a job faster by planning the job
 * again with one change (variant.h).
 *
 * Owns: the list of changes. Refuses: measuring and printing. Note: a search takes a second for
 * models with many layers, so changes that cannot help are skipped. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/explain.h"

#define WORTH 0.05 // of tokens/s: below the error of the rates
#define BUSY  0.20 // of a pass: a lane with less work never delays a pass
#define FULL  0.75 // of a budget: below it more memory would not be used

/* The options that change answers, tried one at a time; int8 needs weights of its formats. */
static const struct lossy {
    enum pack_weights weights;
    enum compute compute;
    enum kv_format kv_format;
    const char *policy, *budget;
} lossy[] = {
    {PACK_AUTO, COMPUTE_INT8, N_KV_FORMATS, NULL, NULL},
    {PACK_Q8, COMPUTE_INT8, N_KV_FORMATS, NULL, NULL},
    {PACK_Q8, N_COMPUTES, N_KV_FORMATS, NULL, NULL},
    {PACK_Q4, N_COMPUTES, N_KV_FORMATS, NULL, NULL},
    {PACK_AUTO, N_COMPUTES, KV_Q8, NULL, NULL},
    {PACK_AUTO, N_COMPUTES, KV_MIXED, NULL, NULL},
    {PACK_AUTO, N_COMPUTES, N_KV_FORMATS, "h2o", "0.2"},
};

struct look {
    struct run *r;
    struct explain *e;
    double least_s; // seconds of the job's matmuls
};

/* A memory budget that could be larger. */
struct store {
    const char *flag, *what;
    int64_t budget, used;
    enum tier_kind tier;
};

/* Plans with the variant; h->gain is 0 if it does not fit or conflicts with the flags. */
static enum err plan_again(struct look *l, const struct variant *v, struct variant_plan *p,
                           struct explain_help *h)
{
    h->gain = 0;
    enum err err = variant_plan(l->r, v, p);
    if (err == ERR_FIT || err == ERR_USAGE)
        return OK;
    TRY(err);
    h->job_s = p->time.job_s;
    h->gain = h->job_s > 0 ? l->r->decision.time.job_s / h->job_s - 1 : 0;
    return OK;
}

/* Inserts h, sorted by gain, if the gain is large enough for the list. */
static void offer(struct explain *e, const struct explain_help *h)
{
    int i = e->n_helps;
    if (h->gain < WORTH || (i == EXPLAIN_HELPS && e->helps[i - 1].gain >= h->gain))
        return;
    i = i < EXPLAIN_HELPS ? e->n_helps++ : EXPLAIN_HELPS - 1;
    for (; i > 0 && e->helps[i - 1].gain < h->gain; i--)
        e->helps[i] = e->helps[i - 1];
    e->helps[i] = *h;
}

/* ---- lossless ---- */

/* Rounds up to a size that people would name: whole GiB, or fractions for small sizes. */
static int64_t readable(int64_t n_bytes)
{
    const int64_t mib = 1 << 20;
    return round_up(n_bytes, n_bytes >= 4096 * mib   ? 1024 * mib
                             : n_bytes >= 1024 * mib ? 512 * mib
                             : n_bytes >= 64 * mib   ? 8 * mib
                                                     : mib);
}

/* Plans with `more` bytes of a budget. *used: bytes of that tier in the new plan. */
static enum err try_memory(struct look *l, const struct store *m, int64_t more,
                           struct explain_help *h, int64_t *used)
{
    const double mib = 1 << 20;
    int64_t all = (m->budget + more) >> 20; // in MiB
    struct budget budget = l->r->budget;
    struct variant v = variant_none();
    struct variant_plan p = {0};
    *(m->tier == TIER_DEVICE ? &budget.device : &budget.ram) = all << 20;
    v.budget = &budget;
    *h = (struct explain_help){.more = more};
    snprintf(h->what, sizeof h->what, more >= 1 << 30 ? "+%.4g GiB %s" : "+%.4g MiB %s",
             (double)more / (more >= 1 << 30 ? 1024 * mib : mib), m->what);
    snprintf(h->flags, sizeof h->flags, all % 1024 == 0 ? "--%s %lldG" : "--%s %lldM", m->flag,
             (long long)(all % 1024 == 0 ? all / 1024 : all));
    TRY(plan_again(l, &v, &p, h));
    *used = m->tier == TIER_DEVICE ? p.bytes.device : p.bytes.ram;
    return OK;
}

/* Offers twice the memory, or as much as helps; also a quarter more, if that helps. */
static enum err more_memory(struct look *l, const struct store *m)
{
    struct explain_help most, some;
    int64_t used, unused;
    if (m->budget <= 0 || (double)m->used < FULL * (double)m->budget)
        return OK;
    TRY(try_memory(l, m, readable(m->budget), &most, &used));
    if (most.gain < WORTH)
        return OK;
    int64_t enough = readable(max_i64(used - m->budget, 1)), quarter = readable(m->budget / 4);
    if ((double)enough < 0.8 * (double)most.more) {
        TRY(try_memory(l, m, enough, &some, &unused));
        most = some.gain >= most.gain - WORTH / 2 ? some : most;
    }
    if (quarter >= most.more) {
        offer(l->e, &most);
        return OK;
    }
    TRY(try_memory(l, m, quarter, &some, &unused));
    offer(l->e, &some);
    if (most.gain >= some.gain + WORTH)
        offer(l->e, &most);
    return OK;
}

/* Plans with doubled disk rates. */
static enum err faster_disk(struct look *l)
{
    const struct plan_time *t = &l->r->decision.time;
    struct explain_help h = {.what = "a disk twice as fast"};
    struct machine m = l->r->machine;
    struct variant v = variant_none();
    struct variant_plan p;
    if (t->read_s + t->write_s < BUSY * t->pass_s)
        return OK;
    struct rate *rates[] = {&m.nvme_read, &m.nvme_write, &m.nvme_mixed, &m.nvme_read_burst,
                            &m.nvme_write_burst};
    for (int i = 0; i < (int)(sizeof rates / sizeof *rates); i++)
        rates[i]->value *= 2;
    v.machine = &m;
    TRY(plan_again(l, &v, &p, &h));
    offer(l->e, &h);
    return OK;
}

/* Plans with attention moved to the CPU or to the device. Both round differently, so --attn auto
 * never chooses between them by speed. */
static enum err attend_elsewhere(struct look *l)
{
    struct explain_help h = {.rounds = 1};
    struct variant v = variant_none();
    struct variant_plan p;
    v.attn = l->r->decision.plan.attn_cpu ? ATTN_DEVICE : ATTN_CPU;
    variant_flags(&v, h.flags, sizeof h.flags);
    TRY(plan_again(l, &v, &p, &h));
    offer(l->e, &h);
    return OK;
}

/* ---- lossy ---- */

static int for_int8(enum dtype t)
{
    return t == DTYPE_Q8 || t == DTYPE_Q4;
}

/* 1 if the option is a change, its rates are known, and it may help. */
static int matters(const struct look *l, const struct lossy *o)
{
    const struct run *r = l->r;
    enum dtype now = run_weights(r), then = o->weights == PACK_Q4 ? DTYPE_Q4 : DTYPE_Q8;
    int matmuls_change = o->compute == COMPUTE_INT8 || o->weights != PACK_AUTO;
    if (o->compute == COMPUTE_INT8)
        return !r->decision.plan.device && r->ops.compute == COMPUTE_BF16 &&
               for_int8(now) == (o->weights == PACK_AUTO) &&
               (r->config->machine || r->int8_speed > 0);
    if (!(matmuls_change && !r->decision.plan.device) &&
        r->decision.time.job_s < l->least_s * (1 + WORTH))
        return 0; // matmuls alone take that long
    if (o->weights != PACK_AUTO)
        return dtype_row_bytes(then, 4096) < dtype_row_bytes(now, 4096);
    if (o->kv_format != N_KV_FORMATS)
        return r->kv_format == KV_BF16 || r->kv_format == KV_F32;
    return r->evict.policy == EVICT_FULL;
}

static enum err try_lossy(struct look *l, const struct lossy *o)
{
    struct explain_help h = {0};
    struct variant v = variant_none();
    struct variant_plan p;
    struct evict evict;
    if (!matters(l, o))
        return OK;
    v.weights = o->weights;
    v.compute = o->compute;
    v.kv_format = o->kv_format;
    if (o->policy) {
        struct config with = *l->r->config;
        with.kv_policy = o->policy;
        with.kv_budget = o->budget;
        if (run_read_evict(&evict, &with) != OK)
            return OK; // conflicts with the flags
        v.evict = &evict;
        v.budget_text = o->budget;
    }
    variant_flags(&v, h.flags, sizeof h.flags);
    h.n_quality = variant_quality(l->r, &v, h.quality);
    variant_quality_text(h.quality, h.n_quality, h.quality_text, sizeof h.quality_text);
    if (o->weights != PACK_AUTO && model_is_pack(l->r->config->model))
        snprintf(h.what, sizeof h.what, "packed again");
    TRY(plan_again(l, &v, &p, &h));
    offer(l->e, &h);
    return OK;
}

/* ---- all changes ---- */

/* Least seconds of the job's matmuls under any placement: at the fastest rate for any number of
 * rows, and each shared prefix once. */
static double matmul_s(const struct run *r)
{
    const struct work *w = &r->work;
    const struct shape *s = &r->model->shape;
    double shared = 0, best = INFINITY;
    for (int64_t i = 0; w->rows && !r->decision.plan.no_sharing && i < w->n_lengths; i++)
        shared += (double)w->rows[i].shared * w->stride;
    double generated = (double)(w->output_tokens - w->n_rows); // a row's last token is not fed back
    double tokens = fmax((double)w->prompt_tokens - shared, 0) + fmax(generated, 0);
    if (r->decision.plan.device) {
        double flops = (double)(r->weights->flops_per_token - 2 * (int64_t)s->vocab * s->embed_dim);
        return tokens * flops / r->machine.device_flops.value;
    }
    for (int state = 0; state < N_WEIGHT_STATES; state++)
        for (int i = 0; i < N_MATMUL_ROWS; i++)
            best = fmin(best, r->costs.rates.layer_s[state][i] / matmul_rows[i]);
    return tokens * best * s->n_layers;
}

enum err explain_find_helps(struct explain *e, struct run *r)
{
    struct look l = {.r = r, .e = e, .least_s = matmul_s(r)};
    const struct store ram = {"mem-ram", "RAM", r->budget.ram, r->decision.bytes.ram, TIER_RAM};
    const struct store device = {"mem-device", "device", r->budget.device, r->decision.bytes.device,
                                 TIER_DEVICE};
    e->matmul_share = r->decision.time.job_s > 0 ? l.least_s / r->decision.time.job_s : 0;
    if (r->decision.time.job_s >= l.least_s * (1 + WORTH)) {
        TRY(more_memory(&l, &ram));
        if (r->decision.plan.device) {
            TRY(more_memory(&l, &device));
            if (shape_attends_apart(&r->model->shape))
                TRY(attend_elsewhere(&l));
        }
        TRY(faster_disk(&l));
    }
    for (int i = 0; i < (int)(sizeof lossy / sizeof *lossy); i++)
        TRY(try_lossy(&l, &lossy[i]));
    return OK;
}
