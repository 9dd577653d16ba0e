/* engine/api/explain.c - see explain.h.
 *
 * Note: alternatives come from the same search and are priced like the chosen plan, so a frozen
 * alternative has the same predicted time. One may be faster, within the error of the rates. */
#include "engine/api/explain.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/api/plan_file.h"
#include "engine/api/report.h"
#include "engine/api/words.h"

#define WITHIN 1.10 // times the chosen plan's time
#define ALIKE  0.05 // plans are similar if less than this share of layers or KV differs
#define ROWS   0.10 // same for rows

/* ---- alternatives ---- */

static int apart(double a, double b, double all)
{
    return fabs(a - b) > ALIKE * (all > 0 ? all : 1);
}

/* 1 if KV or hidden states must be fetched. */
static int moves(const struct plan *p)
{
    return plan_kv_count(p, plan_kv_near(p)) < (int64_t)p->decoder * p->batches ||
           plan_hidden_count(p, plan_near(p)) < p->batches;
}

/* 1 if the plans differ by more than a few prompt tokens a pass, or one layer. */
static int differ(const struct plan *a, const struct plan *b)
{
    double rows = (double)a->batch * a->batches, others = (double)b->batch * b->batches;
    double layers = a->layers - 1;
    if (a->batches != b->batches || fabs(rows - others) > ROWS * fmin(rows, others) ||
        a->codec != b->codec || a->window != b->window || a->ahead_weights != b->ahead_weights ||
        (a->ahead_state != b->ahead_state && moves(a)))
        return 1;
    for (int tier = 0; tier < N_TIERS; tier++)
        if (apart((double)plan_kv_count(a, (enum tier_kind)tier),
                  (double)plan_kv_count(b, (enum tier_kind)tier),
                  (double)a->decoder * a->batches) ||
            apart((double)plan_hidden_count(a, (enum tier_kind)tier),
                  (double)plan_hidden_count(b, (enum tier_kind)tier), a->batches))
            return 1;
    return apart(a->resident, b->resident, layers) || apart(a->weights_ram, b->weights_ram, layers);
}

static void fill_alternatives(struct explain *e, const struct run *r)
{
    for (int i = 0; i < e->ranking.n && e->n_alternatives < EXPLAIN_ALTERNATIVES; i++) {
        const struct plan_choice *c = &e->settled[i];
        struct explain_alternative *a = &e->alternatives[e->n_alternatives];
        double make_s = c->plan.codec != r->decision.plan.codec && c->plan.codec == PLAN_CODEC_ZSTD
                            ? r->costs.codec_make_s
                            : 0;
        int other = c->job_s + make_s <= r->decision.time.job_s * WITHIN &&
                    differ(&c->plan, &r->decision.plan);
        for (int k = 0; other && k < e->n_alternatives; k++)
            other = differ(&c->plan, &e->alternatives[k].plan);
        if (!other)
            continue;
        char why[320];
        *a = (struct explain_alternative){.plan = c->plan, .job_s = c->job_s, .make_s = make_s};
        const struct setting set = run_setting(r);
        if (plan_check(&set, &a->plan, &r->budget, &a->bytes, why, sizeof why) != 0)
            continue;
        plan_freeze_as(r, &a->plan, a->freeze, sizeof a->freeze);
        e->n_alternatives++;
    }
}

void explain_begin(struct explain *e, struct run *r)
{
    memset(e, 0, sizeof *e);
    e->ranking = (struct plan_ranking){.list = e->settled, .cap = EXPLAIN_SETTLED};
    r->ranking = &e->ranking;
}

enum err explain_plan(struct explain *e, struct run *r)
{
    r->ranking = NULL; // the searches below must not change it
    fill_alternatives(e, r);
    return explain_find_helps(e, r);
}

/* ---- as JSON ---- */

double explain_tokens_per_s(const struct run *r, double job_s)
{
    return job_s > 0 ? (double)r->work.output_tokens / job_s : 0;
}

static json_t *text_or_null(const char *text)
{
    return *text ? json_string(text) : json_null();
}

/* The cost of each change: null if no change affects answers, or nothing was measured. */
static json_t *quality_json(const struct quality *q, int n)
{
    json_t *all = n > 0 ? json_array() : json_null();
    for (; n > 0; n--, q++)
        json_array_append_new(all, json_pack("{ss so so}", "what", q->what, "more_perplexity",
                                             q->more < 0 ? json_null() : json_real(q->more / 100),
                                             "on", text_or_null(q->on)));
    return all;
}

/* The cost of lossy flags in the plan itself. int8 multiplies q8 and q4; others use bf16. */
static json_t *own_quality(const struct run *r)
{
    struct quality q[VARIANT_CHANGES];
    struct variant v = {.weights = pack_weights_by_name(r->config->weights),
                        .compute = r->ops.compute,
                        .kv_format = r->kv_format,
                        .evict = &r->evict};
    if (v.weights != PACK_Q8 && v.weights != PACK_Q4)
        v.weights = PACK_AUTO;
    if (model_tile_dtype(COMPUTE_INT8, run_weights(r)) == DTYPE_BF16)
        v.compute = COMPUTE_BF16;
    return quality_json(q, variant_quality(r, &v, q));
}

void explain_json(const struct explain *e, const struct run *r, json_t *root)
{
    json_t *lanes = json_array(), *alternatives = json_array(), *helps = json_array();
    for (enum lane lane = 0; lane < N_WORK_LANES; lane++)
        if (report_lane_shown(r, lane))
            json_array_append_new(lanes,
                                  json_pack("{ss sf sf sf sb}", "name", lane_name(lane), "busy_s",
                                            report_lane_predicted(r, lane), "utilisation",
                                            report_lane_share(r, lane), "bytes",
                                            floor(report_lane_predicted_bytes(r, lane)), "bound",
                                            report_lane_limits(r, lane)));
    for (int i = 0; i < e->n_alternatives; i++) {
        const struct explain_alternative *a = &e->alternatives[i];
        json_array_append_new(
            alternatives,
            json_pack("{sf sf sf sI sI sI ss so}", "job_s", a->job_s, "make_s", a->make_s,
                      "output_tokens_per_s", explain_tokens_per_s(r, a->job_s), "device_bytes",
                      (json_int_t)a->bytes.device, "ram_bytes", (json_int_t)a->bytes.ram,
                      "disk_bytes", (json_int_t)a->bytes.disk, "flags", a->freeze, "plan",
                      plan_fields_json(&a->plan)));
    }
    for (int i = 0; i < e->n_helps; i++) {
        const struct explain_help *h = &e->helps[i];
        json_array_append_new(
            helps, json_pack("{ss so sf sf sf sb sb so}", "what", h->what[0] ? h->what : h->flags,
                             "flags", text_or_null(h->flags), "job_s", h->job_s,
                             "output_tokens_per_s", explain_tokens_per_s(r, h->job_s), "gain",
                             h->gain, "same_answers", h->n_quality == 0 && !h->rounds, "lossless",
                             h->n_quality == 0, "quality", quality_json(h->quality, h->n_quality)));
    }
    json_object_set_new(root, "lanes", lanes);
    json_object_set_new(root, "quality", own_quality(r));
    json_object_set_new(root, "alternatives", alternatives);
    json_object_set_new(root, "would_help", helps);
}
