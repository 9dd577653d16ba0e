/* engine/api/variant.c - see variant.h. */
#include "engine/api/variant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/frontier_file.h"
#include "engine/api/rows.h"

/* From bench/results/quality-*.csv; int8: compared with bf16, with q8 weights. */
#define ON_KV "SmolLM2-135M (q4_1), WikiText-2, 128 of 1,024 slots"
static const struct quality measured[] = {
    {"h2o", 25.4, ON_KV},     {"h2o-mean", 22.4, ON_KV},          {"streaming", 51.0, ON_KV},
    {"window", 234.7, ON_KV}, {"int8", 0.4, "SmolLM2-135M (q8)"},
};

/* A copy of a run with the changes of a variant. */
struct what_if {
    struct run run;     // shares the session of the original run
    struct model model; // the model in another weight format; run.model points here
};

struct variant variant_none(void)
{
    return (struct variant){.weights = PACK_AUTO, .compute = N_COMPUTES, .kv_format = N_KV_FORMATS};
}

/* The slots of rows depend on the policy, so the job's rows are counted again. */
static enum err change_evict(struct run *r, const struct evict *evict)
{
    r->evict = *evict;
    run_set_kinds(r);
    r->job = NULL; // keeps the run's own job open
    return plan_work(r);
}

/* Scales measured rates of the run's matmuls by (variant / run) of the machine's rates. Machine
 * rates measured in bf16 lack int8; then int8_speed is used. */
static void scale_rates(double *to, const double *known, const double *derived, int n,
                        double int8_speed)
{
    for (int i = 0; i < n; i++) {
        double now = int8_speed > 0 ? derived[i] / int8_speed : to[i];
        to[i] = known[i] == derived[i] ? now : known[i] * (now / derived[i]);
    }
}

static void derive_rates(struct run *r, const struct model_rates *known,
                         const struct model_rates *derived, int to_int8)
{
    struct model_rates *to = &r->costs.rates;
    double int8_speed = to_int8 ? r->int8_speed : 0;
    run_rates_derive(r);
    memcpy(to->rows_s, known->rows_s, sizeof to->rows_s); // not matmuls: unchanged
    memcpy(to->attend_s, known->attend_s, sizeof to->attend_s);
    memcpy(to->slot_s, known->slot_s, sizeof to->slot_s);
    to->prompt_s = known->prompt_s;
    to->prompt_token_s = known->prompt_token_s;
    to->pair_s = known->pair_s;
    for (int state = 0; state < N_WEIGHT_STATES; state++) {
        scale_rates(to->layer_s[state], known->layer_s[state], derived->layer_s[state],
                    N_MATMUL_ROWS, int8_speed);
        scale_rates(to->head_s[state], known->head_s[state], derived->head_s[state], N_MATMUL_ROWS,
                    int8_speed);
    }
}

/* Seconds to attend over one page, by the machine's rates; 0: unknown. */
static double page_s(const struct run *r)
{
    struct kv_layout kv;
    const int wide = evict_kind(&r->evict, KV_MOST).wide;
    double bytes_per_s = run_attend_rate(r);
    model_kv_layout(&r->model->shape, wide, kv_page_format(r->kv_format), &kv);
    return bytes_per_s > 0 ? (double)kv.page_bytes / bytes_per_s : 0;
}

static enum err change(struct what_if *w, const struct variant *v)
{
    struct run *r = &w->run;
    const double page = page_s(r);
    int other_rates = v->weights != PACK_AUTO || v->compute != N_COMPUTES;
    int to_int8 = v->compute == COMPUTE_INT8 && r->ops.compute != COMPUTE_INT8;
    const struct model_rates known = r->costs.rates;
    run_rates_derive(r);
    const struct model_rates derived = r->costs.rates;
    r->costs.rates = known;
    if (v->evict)
        TRY(change_evict(r, v->evict));
    if (v->kv_format != N_KV_FORMATS)
        r->kv_format = v->kv_format;
    run_set_kinds(r); // a state takes as many pages as its bytes need
    r->work.kinds = r->evict.kinds;
    if (v->compute != N_COMPUTES)
        r->ops.compute = v->compute;
    if (v->weights != PACK_AUTO) {
        TRY(pack_model_as(r->model, v->weights, &w->model));
        r->model = &w->model;
    }
    if (v->machine)
        r->machine = *v->machine;
    if (v->machine || other_rates)
        derive_rates(r, &known, &derived, to_int8);
    double now = page_s(r);
    for (int i = 0; i < N_MATMUL_ROWS && v->kv_format != N_KV_FORMATS && page > 0 && now > 0; i++)
        r->costs.rates.slot_s[i] *= now / page;
    if (v->budget)
        r->budget = *v->budget;
    return OK;
}

/* A copy of r for another decision, sharing r's session. NULL: no memory. */
static struct what_if *decide_anew(const struct run *r)
{
    struct what_if *w = malloc(sizeof *w);
    if (!w)
        return NULL;
    CHECK(!r->engine_opened);
    w->run = *r;
    w->run.costs.pace = r->costs.pace ? &w->run.pace : NULL;
    w->run.weights = NULL;
    w->run.search = NULL;
    w->run.search_bytes = 0;
    w->run.ranking = NULL;
    w->run.plan_told = PLAN_BY_COMMAND;
    w->run.compared = w->run.keep_rows = 1;
    return w;
}

/* Frees what belongs to the variant alone. */
static enum err drop(struct what_if *w, const struct run *r)
{
    enum err closed = w->run.job != r->job ? job_close(w->run.job) : OK;
    if (w->run.model == &w->model)
        free(w->model.layers);
    free(w->run.weights);
    free(w->run.search);
    free(w);
    return closed;
}

enum err variant_plan(const struct run *r, const struct variant *v, struct variant_plan *out)
{
    const enum log_level level = log_level_max;
    struct config with = *r->config;
    struct what_if *w = decide_anew(r);
    if (!w)
        return fail(ERR_FIT, "no memory for the plan of a variant");
    if (v->attn != ATTN_AUTO)
        with.attn = v->attn;
    w->run.config = &with;
    log_level_max = LOG_ERROR;
    enum err err = change(w, v);
    if (err == OK)
        err = run_choose(&w->run);
    if (err == OK)
        *out = (struct variant_plan){.plan = w->run.decision.plan,
                                     .bytes = w->run.decision.bytes,
                                     .time = w->run.decision.time,
                                     .output_tokens = w->run.work.output_tokens};
    log_level_max = level;
    char why[1024];
    snprintf(why, sizeof why, "%s", err_text());
    enum err closed = drop(w, r);
    return err != OK ? fail(err, "%s", why) : closed;
}

void variant_flags(const struct variant *v, char *buf, int cap)
{
    char weights[32] = "", compute[32] = "", policy[96] = "", format[32] = "", attn[32] = "";
    if (v->weights != PACK_AUTO)
        snprintf(weights, sizeof weights, " --weights %s", pack_weights_name(v->weights));
    if (v->compute != N_COMPUTES)
        snprintf(compute, sizeof compute, " --compute %s", compute_name(v->compute));
    if (v->evict)
        snprintf(policy, sizeof policy, " --kv-policy %s --kv-budget %.32s",
                 evict_policy_name(v->evict->policy), v->budget_text);
    if (v->kv_format != N_KV_FORMATS)
        snprintf(format, sizeof format, " --kv-format %s", kv_format_name(v->kv_format));
    if (v->attn != ATTN_AUTO)
        snprintf(attn, sizeof attn, " --attn %s", v->attn == ATTN_CPU ? "cpu" : "device");
    char all[256];
    snprintf(all, sizeof all, "%s%s%s%s%s", weights, compute, policy, format, attn);
    snprintf(buf, (size_t)cap, "%s", all[0] ? all + 1 : "");
}

struct quality quality_of(const char *what)
{
    for (int i = 0; i < (int)(sizeof measured / sizeof *measured); i++)
        if (strcmp(measured[i].what, what) == 0)
            return measured[i];
    struct quality q = {.more = -1};
    snprintf(q.what, sizeof q.what, "%s", what);
    return q;
}

/* The measured cost of a policy and a format on the run's own model; at least 0. */
static struct quality from_frontier(const struct run *r, const char *what, const struct evict *e,
                                    enum kv_format format)
{
    char path[4200];
    struct frontier_row like = {0}, row;
    struct quality q = quality_of(what);
    struct evict evict = *e;
    evict.kinds = &r->kinds[e->policy != EVICT_FULL];
    frontier_kv(&evict, like.kv);
    snprintf(like.format, sizeof like.format, "%s", kv_format_name(format));
    if (frontier_path(r->model->fingerprint, path, sizeof path) != OK ||
        !frontier_find(path, &like, &row))
        return q;
    q.more = fmax(row.more, 0);
    snprintf(q.on, sizeof q.on, "this model: %s, %lld windows of %lld + %lld tokens", row.text,
             (long long)row.windows, (long long)row.prefix, (long long)(row.window - row.prefix));
    return q;
}

int variant_quality(const struct run *r, const struct variant *v, struct quality q[VARIANT_CHANGES])
{
    static const char *const formats[N_KV_FORMATS] = {
        [KV_Q8] = "kv-q8", [KV_Q4] = "kv-q4", [KV_MIXED] = "mixed"};
    const struct evict full = {.policy = EVICT_FULL};
    const char *policy =
        v->evict && v->evict->policy != EVICT_FULL ? evict_policy_name(v->evict->policy) : NULL;
    const char *format = v->kv_format != N_KV_FORMATS ? formats[v->kv_format] : NULL;
    int n = 0;
    if (v->weights != PACK_AUTO)
        q[n++] = quality_of(pack_weights_name(v->weights));
    if (v->compute == COMPUTE_INT8)
        q[n++] = quality_of("int8");
    if (policy && format) { // the costs of two changes are not additive
        char both[sizeof q->what];
        snprintf(both, sizeof both, "%.20s + %.10s", policy, format);
        q[n] = from_frontier(r, both, v->evict, v->kv_format);
        if (q[n].more >= 0)
            return n + 1;
    }
    if (policy)
        q[n++] = from_frontier(r, policy, v->evict, KV_BF16);
    if (format)
        q[n++] = from_frontier(r, format, &full, v->kv_format);
    return n;
}

void variant_quality_text(const struct quality *q, int n, char *buf, int cap)
{
    int at = 0;
    buf[0] = 0;
    for (int i = 0; i < n && at < cap; i++) {
        const char *comma = i ? ", " : "";
        if (q[i].more < 0)
            at += snprintf(buf + at, (size_t)(cap - at), "%s%s not measured", comma, q[i].what);
        else
            at += snprintf(buf + at, (size_t)(cap - at), "%s%s +%.1f %%", comma, q[i].what,
                           q[i].more);
    }
}
