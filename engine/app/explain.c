/* engine/app/explain.c - see explain.h.
 *
 * Note: alternatives are plans of the same search, priced like the chosen one, so
 * freezing one gives its figure again. One may even be faster, by less than rates are known. */
#include "engine/app/explain.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/app/plan_file.h"
#include "engine/app/report.h"
#include "engine/app/words.h"
#include "policy/layout.h"

#define WITHIN 1.10 // of the chosen plan's time
#define ALIKE  0.05 // of all there is: homes that differ by less are much the same
#define ROWS   0.10 // and rows
#define MOSTLY 0.80 // of a job

/* ---- alternatives ---- */

static int apart(double a, double b, double all)
{
    return fabs(a - b) > ALIKE * (all > 0 ? all : 1);
}

/* 1: state has to be fetched. */
static int moves(const struct plan *p)
{
    return plan_kv_count(p, plan_kv_near(p)) < (int64_t)p->decoder * p->batches ||
           plan_hidden_count(p, plan_near(p)) < p->batches;
}

/* 1: not the same plan with a few more prompt tokens a pass, or a layer more. */
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
        double make_s = c->plan.codec != r->plan.codec && c->plan.codec == PLAN_CODEC_ZSTD
                            ? r->costs.codec_make_s
                            : 0;
        int other = c->job_s + make_s <= r->time.job_s * WITHIN && differ(&c->plan, &r->plan);
        for (int k = 0; other && k < e->n_alternatives; k++)
            other = differ(&c->plan, &e->alternatives[k].plan);
        if (!other)
            continue;
        struct layout layout;
        char why[320];
        *a = (struct explain_alternative){.plan = c->plan, .job_s = c->job_s, .make_s = make_s};
        if (plan_check(&a->plan, r->weights, &r->work, &r->opened.model.shape, &r->evict, &r->costs,
                       &r->budget, &layout, &a->bytes, why, sizeof why) != 0)
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
    r->ranking = NULL; // what is searched from here on is other plans
    fill_alternatives(e, r);
    return explain_find_helps(e, r);
}

/* ---- as text ---- */

static double tokens_per_s(const struct run *r, double job_s)
{
    return job_s > 0 ? (double)r->work.output_tokens / job_s : 0;
}

/* Of a mean pass. */
static double share_of_pass(const struct run *r, enum lane lane)
{
    return r->time.pass_s > 0 ? report_lane_predicted(r, lane) / r->time.pass_s : 0;
}

static int bounds(const struct run *r, enum lane lane)
{
    return strcmp(lane_name(lane), r->time.bound) == 0;
}

void explain_print_lanes(const struct run *r)
{
    const double gib = 1 << 30;
    char s[WORDS_BYTES];
    printf("pass     %s s for one token of every row, limited by %s\n",
           words_digits(r->time.pass_s, s), words_resource(r->time.bound));
    printf("  %-22s %9s %9s %12s\n", "", "busy s", "of pass", "GiB of job");
    for (enum lane lane = 0; lane < N_WORK_LANES; lane++) {
        double busy_s = report_lane_predicted(r, lane);
        double n_bytes = report_lane_predicted_bytes(r, lane);
        char bytes[24] = "-";
        if (!report_lane_shown(r, lane) || (busy_s <= 0 && n_bytes <= 0))
            continue;
        if (n_bytes > 0)
            snprintf(bytes, sizeof bytes, "%.1f", n_bytes / gib);
        printf("  %-22s %9s %7.0f %% %12s%s\n", words_resource(lane_name(lane)),
               words_digits(busy_s, s), 100 * share_of_pass(r, lane), bytes,
               bounds(r, lane) ? "  limits" : "");
    }
}

/* Where a flag's words end: at the next flag. */
static const char *flag_end(const char *flag)
{
    const char *next = strstr(flag, " --");
    return next ? next : flag + strlen(flag);
}

/* The flags of `other` that `freeze` has with other values. */
static void other_flags(const char *freeze, const char *other, char *buf, size_t cap)
{
    size_t at = 0;
    buf[0] = 0;
    while (*other) {
        const char *end = flag_end(other);
        int n = (int)(end - other), same = 0;
        for (const char *own = freeze; *own && !same;) {
            const char *own_end = flag_end(own);
            same = own_end - own == n && strncmp(own, other, (size_t)n) == 0;
            own = *own_end ? own_end + 1 : own_end;
        }
        if (!same && at < cap)
            at += (size_t)snprintf(buf + at, cap - at, "%s%.*s", at ? " " : "", n, other);
        other = *end ? end + 1 : end;
    }
}

static void print_alternatives(const struct explain *e, const struct run *r)
{
    const double gib = 1 << 30;
    char freeze[512], flags[512];
    if (e->n_alternatives == 0)
        return;
    plan_freeze(r, freeze, sizeof freeze);
    printf("instead  tokens/s   RAM GiB  flags that differ\n");
    for (int i = 0; i < e->n_alternatives; i++) {
        const struct explain_alternative *a = &e->alternatives[i];
        other_flags(freeze, a->freeze, flags, sizeof flags);
        printf("  %15.4g %9.2f  %s", tokens_per_s(r, a->job_s), (double)a->bytes.ram / gib, flags);
        if (a->make_s > 0)
            printf(" (%.0f s more, once)", a->make_s);
        printf("\n");
    }
}

/* On what the perplexities were measured, each once. */
static void print_sources(const struct explain *e)
{
    const char *said[EXPLAIN_HELPS * VARIANT_CHANGES];
    int n = 0;
    for (int i = 0; i < e->n_helps; i++)
        for (int k = 0; k < e->helps[i].n_quality; k++) {
            const struct quality *q = &e->helps[i].quality[k];
            int again = q->more < 0;
            for (int j = 0; j < n; j++)
                again |= strcmp(said[j], q->on) == 0;
            if (again)
                continue;
            said[n++] = q->on;
            printf("  more perplexity: measured on %s\n", q->on);
        }
}

void explain_print(const struct explain *e, const struct run *r)
{
    print_alternatives(e, r);
    if (e->n_helps == 0)
        printf("faster   with nothing that was tried, by 5 %% or more");
    if (e->n_helps == 0 && e->matmul_share > MOSTLY)
        printf(": matmuls alone are %.0f %% of the job", 100 * fmin(e->matmul_share, 1));
    printf(e->n_helps == 0 ? "\n" : "faster   tokens/s          with\n");
    for (int i = 0; i < e->n_helps; i++) {
        const struct explain_help *h = &e->helps[i];
        char with[144];
        snprintf(with, sizeof with, "%s%s%s%s", h->what, h->flags[0] && h->what[0] ? " (" : "",
                 h->flags, h->flags[0] && h->what[0] ? ")" : "");
        printf("  %15.4g  %+5.0f %%  %-36s  %s%s\n", tokens_per_s(r, h->job_s), 100 * h->gain, with,
               h->n_quality > 0 ? "lossy: "
               : h->rounds      ? "other rounding, no loss of quality"
                                : "same answers",
               h->quality_text);
    }
    print_sources(e);
}

/* ---- as JSON ---- */

static json_t *text_or_null(const char *text)
{
    return *text ? json_string(text) : json_null();
}

/* What each change costs: null where nothing changes answers, or nothing was measured. */
static json_t *quality_json(const struct quality *q, int n)
{
    json_t *all = n > 0 ? json_array() : json_null();
    for (; n > 0; n--, q++)
        json_array_append_new(all, json_pack("{ss so so}", "what", q->what, "more_perplexity",
                                             q->more < 0 ? json_null() : json_real(q->more / 100),
                                             "on", text_or_null(q->on)));
    return all;
}

/* The lossy flags of the plan itself. int8 multiplies q8 and q4; over other weights it is bf16. */
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
            json_array_append_new(lanes, json_pack("{ss sf sf sf sb}", "name", lane_name(lane),
                                                   "busy_s", report_lane_predicted(r, lane),
                                                   "utilisation", share_of_pass(r, lane), "bytes",
                                                   floor(report_lane_predicted_bytes(r, lane)),
                                                   "bound", bounds(r, lane)));
    for (int i = 0; i < e->n_alternatives; i++) {
        const struct explain_alternative *a = &e->alternatives[i];
        json_array_append_new(alternatives,
                              json_pack("{sf sf sf sI sI sI ss so}", "job_s", a->job_s, "make_s",
                                        a->make_s, "output_tokens_per_s", tokens_per_s(r, a->job_s),
                                        "device_bytes", (json_int_t)a->bytes.device, "ram_bytes",
                                        (json_int_t)a->bytes.ram, "disk_bytes",
                                        (json_int_t)a->bytes.disk, "flags", a->freeze, "plan",
                                        plan_fields_json(&a->plan)));
    }
    for (int i = 0; i < e->n_helps; i++) {
        const struct explain_help *h = &e->helps[i];
        json_array_append_new(
            helps, json_pack("{ss so sf sf sf sb sb so}", "what", h->what[0] ? h->what : h->flags,
                             "flags", text_or_null(h->flags), "job_s", h->job_s,
                             "output_tokens_per_s", tokens_per_s(r, h->job_s), "gain", h->gain,
                             "same_answers", h->n_quality == 0 && !h->rounds, "lossless",
                             h->n_quality == 0, "quality",
                             quality_json(h->quality, h->n_quality)));
    }
    json_object_set_new(root, "lanes", lanes);
    json_object_set_new(root, "quality", own_quality(r));
    json_object_set_new(root, "alternatives", alternatives);
    json_object_set_new(root, "would_help", helps);
}
