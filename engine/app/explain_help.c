/* engine/app/explain_help.c - of explain.h: what would make a job faster, found by planning it
 * again with one thing changed.
 *
 * Owns: the list of such things. Refuses: to measure or to print. A newcomer would miss: what
 * cannot matter is not searched: a search takes a third of a second where the model has many
 * layers. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/app/explain.h"
#include "engine/app/variant.h"

#define WORTH 0.05 // of tokens/s: less than rates are known by
#define BUSY  0.20 // of a pass: a lane that has less to do never holds it up
#define FULL  0.75 // of a budget: more is left only where more would not be used

/* What is looked for. */
struct look {
    struct run *base;
    struct explain *e;
    double least_s; // that the job's matmuls take
    struct variant_plan found;
};

/* What a plan could have more of. */
struct store {
    const char *flag, *what;
    int64_t budget, used;
    enum tier_kind tier;
};

/* Plans what was changed. h: gain 0 where it does not fit. */
static enum err plan_again(struct look *l, const struct variant *v, struct explain_help *h)
{
    h->gain = 0;
    enum err err = variant_plan(l->base, v, &l->found);
    if (err == ERR_FIT)
        return OK;
    TRY(err);
    h->job_s = l->found.time.job_s;
    h->gain = h->job_s > 0 ? l->base->time.job_s / h->job_s - 1 : 0;
    return OK;
}

/* Among the greatest gains, if it is one. */
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

/* Up to what one would say: whole GiB, or fractions of one where it is little. */
static int64_t readable(int64_t n_bytes)
{
    const int64_t mib = 1 << 20;
    return round_up(n_bytes, n_bytes >= 4096 * mib   ? 1024 * mib
                             : n_bytes >= 1024 * mib ? 512 * mib
                             : n_bytes >= 64 * mib   ? 8 * mib
                                                     : mib);
}

static enum err try_memory(struct look *l, const struct store *m, int64_t more,
                           struct explain_help *h)
{
    const double mib = 1 << 20;
    int64_t all = (m->budget + more) >> 20; // whole MiB
    *h = (struct explain_help){.more = more};
    snprintf(h->what, sizeof h->what, more >= 1 << 30 ? "+%.4g GiB %s" : "+%.4g MiB %s",
             (double)more / (more >= 1 << 30 ? 1024 * mib : mib), m->what);
    snprintf(h->flags, sizeof h->flags, all % 1024 == 0 ? "--%s %lldG" : "--%s %lldM", m->flag,
             (long long)(all % 1024 == 0 ? all / 1024 : all));
    struct budget budget = l->base->budget;
    *(m->tier == TIER_DEVICE ? &budget.device : &budget.ram) = all << 20;
    struct variant v = variant_none();
    v.budget = &budget;
    return plan_again(l, &v, h);
}

/* Twice as much, or what of it makes a difference; and a quarter more, if it has a part in it. */
static enum err more_memory(struct look *l, const struct store *m)
{
    struct explain_help most, some;
    if (m->budget <= 0 || (double)m->used < FULL * (double)m->budget)
        return OK;
    TRY(try_memory(l, m, readable(m->budget), &most));
    int64_t used = m->tier == TIER_DEVICE ? l->found.bytes.device : l->found.bytes.ram;
    int64_t enough = readable(max_i64(used - m->budget, 1));
    if (most.gain < WORTH)
        return OK;
    if ((double)enough < 0.8 * (double)most.more) {
        TRY(try_memory(l, m, enough, &some));
        most = some.gain >= most.gain - WORTH / 2 ? some : most;
    }
    int64_t quarter = readable(m->budget / 4);
    if (quarter >= most.more) {
        offer(l->e, &most);
        return OK;
    }
    TRY(try_memory(l, m, quarter, &some));
    offer(l->e, &some);
    if (most.gain >= some.gain + WORTH)
        offer(l->e, &most);
    return OK;
}

/* Rates of the disk, doubled. */
static enum err faster_disk(struct look *l)
{
    const struct plan_time *t = &l->base->time;
    struct explain_help h = {.what = "a disk twice as fast"};
    if (t->read_s + t->write_s < BUSY * t->pass_s)
        return OK;
    struct machine faster = l->base->machine, *m = &faster;
    struct rate *rates[] = {&m->nvme_read, &m->nvme_write, &m->nvme_mixed, &m->nvme_read_burst,
                            &m->nvme_write_burst};
    for (int i = 0; i < (int)(sizeof rates / sizeof *rates); i++)
        rates[i]->value *= 2;
    struct variant v = variant_none();
    v.machine = m;
    TRY(plan_again(l, &v, &h));
    offer(l->e, &h);
    return OK;
}

/* ---- lossy ---- */

static int is_8_or_4(enum dtype t)
{
    return t == DTYPE_Q8 || t == DTYPE_Q4;
}

/* Bits of a weight: fewer are a change that may help. */
static int bits(enum dtype t)
{
    return t == DTYPE_Q4 ? 4 : t == DTYPE_Q8 ? 8 : 12;
}

/* 1: the change is one, its rates are known, and it may help. */
static int matters(const struct look *l, const struct variant *v)
{
    const struct run *base = l->base;
    enum dtype now = run_weights(base);
    enum dtype then = v->weights == PACK_Q4 ? DTYPE_Q4 : v->weights == PACK_Q8 ? DTYPE_Q8 : now;
    int on_cpu = !base->plan.device && (v->weights != PACK_AUTO || v->compute != N_COMPUTES);
    if (!on_cpu && base->time.job_s < l->least_s * (1 + WORTH))
        return 0;                   // matmuls are all there is
    if (v->compute == COMPUTE_INT8) // over weights of its formats, which stay where they are of one
        return !base->plan.device && base->ops.compute == COMPUTE_BF16 && is_8_or_4(then) &&
               (v->weights == PACK_AUTO || !is_8_or_4(now)) &&
               (base->config->machine || base->int8_speed > 0);
    if (v->weights != PACK_AUTO)
        return bits(then) < bits(now);
    if (v->kv_format != N_KV_FORMATS)
        return base->kv_format == KV_BF16 || base->kv_format == KV_F32;
    return base->evict.policy == EVICT_FULL;
}

static enum err try_lossy(struct look *l, const struct variant *v)
{
    struct explain_help h = {0};
    if (!matters(l, v))
        return OK;
    variant_flags(v, h.flags, sizeof h.flags);
    variant_quality_text(v, h.quality, sizeof h.quality);
    if (v->weights != PACK_AUTO && model_is_pack(l->base->config->model))
        snprintf(h.what, sizeof h.what, "packed again");
    TRY(plan_again(l, v, &h));
    offer(l->e, &h);
    return OK;
}

static enum err lossy(struct look *l)
{
    static const struct {
        enum pack_weights weights;
        enum compute compute;
        enum kv_format kv_format;
    } formats[] = {{PACK_AUTO, COMPUTE_INT8, N_KV_FORMATS}, {PACK_Q8, COMPUTE_INT8, N_KV_FORMATS},
                   {PACK_Q8, N_COMPUTES, N_KV_FORMATS},     {PACK_Q4, N_COMPUTES, N_KV_FORMATS},
                   {PACK_AUTO, N_COMPUTES, KV_Q8},          {PACK_AUTO, N_COMPUTES, KV_MIXED}};
    for (int i = 0; i < (int)(sizeof formats / sizeof *formats); i++) {
        struct variant v = variant_none();
        v.weights = formats[i].weights;
        v.compute = formats[i].compute;
        v.kv_format = formats[i].kv_format;
        TRY(try_lossy(l, &v));
    }
    struct variant v = variant_none();
    struct config with = *l->base->config;
    struct evict evict;
    with.kv_policy = "h2o";
    with.kv_budget = "0.2";
    if (run_read_evict(&evict, &with) != OK)
        return OK; // does not go with the flags that were given
    v.evict = &evict;
    v.budget_text = with.kv_budget;
    return try_lossy(l, &v);
}

/* ---- all of it ---- */

/* Seconds that the matmuls of the job take wherever its bytes are: at the rate of the rows that are
 * fastest, each prefix that rows share once. */
static double matmul_s(const struct run *r)
{
    const struct work *w = &r->work;
    const struct shape *s = &r->opened.model.shape;
    double shared = 0, best = INFINITY;
    for (int64_t i = 0; w->rows && !r->plan.no_sharing && i < w->n_lengths; i++)
        shared += (double)w->rows[i].shared * w->stride;
    double generated = (double)(w->output_tokens - w->n_rows); // the last one is not computed
    double tokens = fmax((double)w->prompt_tokens - shared, 0) + fmax(generated, 0);
    if (r->plan.device) {
        double flops = (double)(r->weights->flops_per_token - 2 * (int64_t)s->vocab * s->embed_dim);
        return tokens * flops / r->machine.device_flops.value;
    }
    for (int state = 0; state < N_WEIGHT_STATES; state++)
        for (int i = 0; i < N_MATMUL_ROWS; i++)
            best = fmin(best, r->costs.rates.layer_s[state][i] / matmul_rows[i]);
    return tokens * best * s->n_layers;
}

static enum err find(struct look *l)
{
    const struct run *base = l->base;
    const struct store ram = {"mem-ram", "RAM", base->budget.ram, base->bytes.ram, TIER_RAM};
    const struct store device = {"mem-device", "device", base->budget.device, base->bytes.device,
                                 TIER_DEVICE};
    if (base->time.job_s >= l->least_s * (1 + WORTH)) {
        TRY(more_memory(l, &ram));
        if (base->plan.device)
            TRY(more_memory(l, &device));
        TRY(faster_disk(l));
    }
    return lossy(l);
}

enum err explain_find_helps(struct explain *e, struct run *r)
{
    struct look l = {.base = r, .e = e, .least_s = matmul_s(r)};
    e->matmul_share = r->time.job_s > 0 ? l.least_s / r->time.job_s : 0;
    return find(&l);
}
