/* engine/app/explain_help.c - of explain.h: what would make a job faster, found by planning it
 * again with one thing changed.
 *
 * Owns: the list of such things, and what is known of the quality that lossy ones cost. Refuses: to
 * measure or to print. A newcomer would miss: a change is the flags that one would type, set in a
 * copy of the run, so that `plan` with them gives the same figures. What cannot matter is not
 * searched: a search takes a third of a second where the model has many layers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/app/commands.h"
#include "engine/app/explain.h"

#define WORTH 0.05 // of tokens/s: less than rates are known by
#define BUSY  0.20 // of a pass: a lane that has less to do never holds it up
#define FULL  0.75 // of a budget: more is left only where more would not be used

/* The options that change answers. Figures are from bench/results/quality-*.csv, but int8's, which
 * was measured when it was made; a change is measured on that model alone. */
static const struct lossy {
    const char *flags, *brief, *quality;
} lossy[] = {
    {"--compute int8", "lossy: SmolLM2 ppl +0.7 %",
     "0.7 % more perplexity: SmolLM2-135M-Instruct, q8 weights"},
    {"--compute int8 --weights q8", "lossy: SmolLM2 ppl +0.7 %",
     "0.7 % more perplexity: SmolLM2-135M-Instruct, q8 weights"},
    {"--weights q8", "lossy: not measured", "not measured"},
    {"--weights q4", "lossy: not measured", "not measured"},
    {"--kv-format q8", "lossy: not measured", "not measured"},
    {"--kv-format mixed", "lossy: not measured", "not measured"},
    {"--kv-policy h2o --kv-budget 0.2", "lossy: SmolLM2 ppl +25.5 % at 0.125",
     "25.5 % more perplexity: SmolLM2-135M-Instruct Q4_1, 64 windows of WikiText-2, 128 slots of "
     "1,024"},
};

/* A run in which something is changed, made anew for each change. */
struct look {
    const struct run *base;
    struct explain *e;
    double least_s; // that the job's matmuls take
    struct run *v;  // owned, but for what `base` owns
    struct config config;
    char words[160];              // of flags, that config points into
    struct weights_info *weights; // owned
    struct model_layer *layers;   // owned
};

/* What a plan could have more of. */
struct store {
    const char *flag, *what;
    int64_t budget, used;
    enum tier_kind tier;
};

static void begin(struct look *l)
{
    l->config = *l->base->config;
    *l->v = *l->base;
    l->v->config = &l->config;
    l->v->weights = l->weights;
    l->v->ranking = NULL;
    l->v->variant_of = l->base;
    l->v->keep_rows = 1;
}

/* The most slots of rows under v's policy, from their lengths. */
static void count_slots(struct run *v)
{
    struct work *w = &v->work;
    int64_t most = 0, sum = 0, n = 0;
    for (int64_t i = 0; w->rows && i < w->n_lengths; i++) {
        const struct work_row *row = &w->rows[i];
        if (row->prompt > w->prompt_max)
            continue; // left out of the plan
        int64_t slots = evict_slots_max(&v->evict, row->prompt, row->cap - row->prompt);
        most = max_i64(most, slots);
        sum += slots;
        n++;
    }
    if (n == 0)
        most = sum = n = evict_slots_max(&v->evict, w->prompt_max, w->tokens_max - w->prompt_max);
    w->slots_max = most;
    w->slots_mean = w->rows ? ceil_div(sum, n) : most;
}

/* What the flags of a changed config mean, as run_prepare would read them. */
static enum err read_flags(struct look *l)
{
    const struct config *c = &l->config;
    struct run *v = l->v;
    v->kv_format = kv_format_by_name(c->kv_format);
    v->ops.compute = compute_by_name(c->compute);
    if (strcmp(c->kv_policy, l->base->config->kv_policy) != 0) {
        TRY(run_read_evict(&v->evict, c));
        count_slots(v);
    }
    if (strcmp(c->weights, l->base->config->weights) == 0)
        return OK;
    command_convert(&l->base->opened.model, strcmp(c->weights, "q4") == 0 ? DTYPE_Q4 : DTYPE_Q8,
                    l->layers);
    v->opened.model.layers = l->layers;
    l->config.weights_codec = "none"; // what encoding them would give nobody has measured
    return OK;
}

/* Sets "--flag value --flag value" in the copy. */
static enum err set_flags(struct look *l, const char *flags)
{
    CHECK(snprintf(l->words, sizeof l->words, "%s", flags) < (int)sizeof l->words);
    for (char *save = NULL, *flag = strtok_r(l->words, " ", &save); flag;
         flag = strtok_r(NULL, " ", &save)) {
        const char *value = strtok_r(NULL, " ", &save);
        CHECK(value && strncmp(flag, "--", 2) == 0);
        TRY(config_set(&l->config, CMD_PLAN, flag + 2, value));
    }
    return read_flags(l);
}

/* Plans what was changed. h: gain 0 where it does not fit. */
static enum err plan_again(struct look *l, struct explain_help *h)
{
    h->gain = 0;
    enum err err = run_plan(l->v);
    if (err == ERR_FIT)
        return OK;
    TRY(err);
    h->job_s = l->v->time.job_s;
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
    begin(l);
    TRY(set_flags(l, h->flags));
    TRY(plan_again(l, h));
    return OK;
}

/* Twice as much, or what of it makes a difference; and a quarter more, if it has a part in it. */
static enum err more_memory(struct look *l, const struct store *m)
{
    struct explain_help most, some;
    if (m->budget <= 0 || (double)m->used < FULL * (double)m->budget)
        return OK;
    TRY(try_memory(l, m, readable(m->budget), &most));
    const struct plan_bytes *takes = &l->v->bytes;
    int64_t used = m->tier == TIER_DEVICE ? takes->device : takes->ram;
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
    begin(l);
    struct machine *m = &l->v->machine;
    struct rate *rates[] = {&m->nvme_read, &m->nvme_write, &m->nvme_mixed, &m->nvme_read_burst,
                            &m->nvme_write_burst};
    for (int i = 0; i < (int)(sizeof rates / sizeof *rates); i++)
        rates[i]->value *= 2;
    TRY(plan_again(l, &h));
    offer(l->e, &h);
    return OK;
}

/* ---- lossy ---- */

static int64_t layers_bytes(const struct model_layer *layers, int n)
{
    int64_t sum = 0;
    for (int i = 1; i < n; i++)
        sum += layers[i].n_bytes;
    return sum;
}

/* 1: the change is one, its rates are known, and it may help. */
static int matters(const struct look *l)
{
    const struct run *base = l->base, *v = l->v;
    int n = base->opened.model.n_layers;
    enum dtype weights = run_weights(v);
    int int8 = v->ops.compute == COMPUTE_INT8;
    int weights_change = v->opened.model.layers != base->opened.model.layers;
    if (int8) // over weights of its formats, which stay where they are of one
        return !base->plan.device && base->ops.compute == COMPUTE_BF16 &&
               (weights == DTYPE_Q8 || weights == DTYPE_Q4) &&
               !(weights_change &&
                 (run_weights(base) == DTYPE_Q8 || run_weights(base) == DTYPE_Q4)) &&
               (base->config->machine || base->int8_speed > 0);
    if (weights_change)
        return layers_bytes(v->opened.model.layers, n) < layers_bytes(base->opened.model.layers, n);
    if (v->kv_format != base->kv_format)
        return base->kv_format == KV_BF16 || base->kv_format == KV_F32;
    return base->evict.policy == EVICT_FULL;
}

static enum err try_lossy(struct look *l, const struct lossy *o)
{
    struct explain_help h = {.quality = o->quality, .brief = o->brief};
    snprintf(h.flags, sizeof h.flags, "%s", o->flags);
    begin(l);
    if (set_flags(l, o->flags) != OK)
        return OK; // does not go with the flags that were given
    int others = l->v->opened.model.layers == l->layers; // weights
    int cpu_matmuls =
        !l->base->plan.device && (others || l->v->ops.compute != l->base->ops.compute);
    if ((strstr(o->flags, "--weights") && !others) || !matters(l) ||
        (!cpu_matmuls && l->base->time.job_s < l->least_s * (1 + WORTH)))
        return OK;
    if (others && model_is_pack(l->base->config->model))
        snprintf(h.what, sizeof h.what, "packed again");
    TRY(plan_again(l, &h));
    offer(l->e, &h);
    return OK;
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
    for (int i = 0; i < (int)(sizeof lossy / sizeof *lossy); i++)
        TRY(try_lossy(l, &lossy[i]));
    return OK;
}

enum err explain_find_helps(struct explain *e, const struct run *r)
{
    struct look l = {.base = r, .e = e, .least_s = matmul_s(r)};
    e->matmul_share = r->time.job_s > 0 ? l.least_s / r->time.job_s : 0;
    l.v = malloc(sizeof *l.v);
    l.weights = malloc(sizeof *l.weights);
    l.layers = calloc((size_t)r->opened.model.n_layers, sizeof *l.layers);
    enum log_level level = log_level_max;
    log_level_max = LOG_ERROR;
    enum err err = l.v && l.weights && l.layers ? find(&l) : fail(ERR_FIT, "memory: plan tables");
    log_level_max = level;
    free(l.layers);
    free(l.weights);
    free(l.v);
    return err;
}
