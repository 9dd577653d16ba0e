/* engine/cli/commands_machines.c - `plan --machines`: a job on several machines. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/explain.h"
#include "engine/api/plan_file.h"
#include "engine/api/stages.h"
#include "engine/api/words.h"
#include "engine/cli/commands.h"

/* Sharing is taken if it is at most this much slower, because it survives the loss of a machine. */
#define TIE 1.05

/* Both ways. */
struct ways {
    const struct run *run;
    const struct machines *machines;
    struct share shares[MACHINES_MAX];
    double shared_s;        // of the job; 0: it does not fit every machine
    const char *shared_why; // why not
    struct stages pipeline;
};

static int takes_pipeline(const struct ways *w)
{
    return w->pipeline.n > 0 && (w->shared_s <= 0 || w->shared_s > w->pipeline.job_s * TIE);
}

/* ---- tables ---- */

static void print_way(const struct ways *w, const char *way, double job_s)
{
    char about[WORDS_BYTES], seconds[WORDS_BYTES];
    printf("%s %s s (%s), %.1f output tokens/s\n", way, words_digits(job_s, seconds),
           words_about(job_s, about), explain_tokens_per_s(w->run, job_s));
}

static void print_shared(const struct ways *w)
{
    const double n_rows = (double)w->run->work.n_rows;
    char hours[WORDS_BYTES];
    if (w->shared_s <= 0) {
        printf("shared   not possible: %s\n", w->shared_why);
        return;
    }
    print_way(w, "shared  ", w->shared_s);
    printf("              rows  of job     hours  limited by\n");
    for (int i = 0; i < w->machines->n; i++) {
        const struct machine_kind *k = machines_kind(w->machines, i);
        const struct share *s = &w->shares[k - w->machines->kinds];
        printf("  %2d %13.0f %5.1f %% %9s  %-24s %s\n", i + 1, s->rows, 100 * s->rows / n_rows,
               words_digits(s->time.job_s / 3600, hours), words_resource(s->time.bound), k->path);
    }
}

/* What limits a pipeline: "stage 2", "the network behind stage 2", "the way of a batch ...". */
static const char *pipeline_limit(const struct stages *p, char *text, size_t cap)
{
    if (p->bound < 0)
        snprintf(text, cap, "the way of a group through all stages");
    else
        snprintf(text, cap, "%sstage %d", p->bound_link ? "the link behind " : "", p->bound + 1);
    return text;
}

static void print_pipeline(const struct ways *w)
{
    const struct stages *p = &w->pipeline;
    const double gib = 1 << 30;
    char limit[64], seconds[WORDS_BYTES];
    if (p->n == 0) {
        printf("pipeline not possible: %s\n", p->why);
        return;
    }
    const struct plan *plan = &p->stages[0].plan;
    print_way(w, "pipeline", p->job_s);
    printf("  %lld rows at once: %d batches of %d, in %d groups; %d prompt tokens a pass; %s s a "
           "pass, limited by %s\n",
           (long long)plan->batch * plan->batches, plan->batches, plan->batch, p->groups,
           plan->prefill_tokens, words_digits(p->pass_s, seconds),
           pipeline_limit(p, limit, sizeof limit));
    printf("            layers    busy  link  GiB streamed  limited by\n");
    for (int i = 0; i < p->n; i++) {
        const struct stage *s = &p->stages[i];
        char layers[24];
        snprintf(layers, sizeof layers, "%d-%d", s->from, s->to - 1);
        printf("  %2d %13s %5.0f %% %3.0f %% %13.1f  %-24s %s\n", i + 1, layers,
               100 * s->time.pass_s / p->pass_s, 100 * s->hop_s / p->pass_s, s->streamed / gib,
               words_resource(s->time.bound), s->kind->path);
    }
}

static void print_faster(const struct ways *w)
{
    const struct run *r = w->run;
    const double shared_s = w->shared_s, pipeline_s = w->pipeline.job_s;
    const double times = takes_pipeline(w) ? shared_s / pipeline_s : pipeline_s / shared_s;
    printf("faster   %s", takes_pipeline(w) ? "pipeline" : "shared");
    if (shared_s > 0 && pipeline_s > 0 && times > TIE)
        printf(", %.2f times", times);
    else if (shared_s > 0 && pipeline_s > 0)
        printf(": about as fast, and it survives the loss of a machine");
    printf("\n");
    if (w->machines->n_kinds > 1 && (r->ops.compute != COMPUTE_F32 || r->kv_format != KV_F32))
        printf("note     they need the same GPU model or instruction set, which machine files do "
               "not say (on CPUs: or --compute f32 --kv-format f32)\n");
}

/* ---- JSON ---- */

static json_t *shared_json(const struct ways *w)
{
    json_t *list = json_array();
    if (w->shared_s <= 0)
        return json_pack("{ss so}", "why_not", w->shared_why, "machines", list);
    for (int i = 0; i < w->machines->n; i++) {
        const struct machine_kind *k = machines_kind(w->machines, i);
        const struct share *s = &w->shares[k - w->machines->kinds];
        json_array_append_new(
            list, json_pack("{ss sf sf sf ss so so}", "machine", k->path, "rows", s->rows, "share",
                            s->rows / (double)w->run->work.n_rows, "job_s", s->time.job_s, "bound",
                            s->time.bound, "predicted", plan_time_json(&s->time), "plan",
                            plan_fields_json(&k->run.decision.plan)));
    }
    return json_pack("{sf sf so}", "job_s", w->shared_s, "output_tokens_per_s",
                     explain_tokens_per_s(w->run, w->shared_s), "machines", list);
}

static json_t *pipeline_json(const struct ways *w)
{
    const struct stages *p = &w->pipeline;
    char limit[64];
    json_t *list = json_array();
    if (p->n == 0)
        return json_pack("{ss so}", "why_not", p->why, "stages", list);
    for (int i = 0; i < p->n; i++) {
        const struct stage *s = &p->stages[i];
        json_array_append_new(
            list, json_pack("{ss si si sf sf sf ss so so}", "machine", s->kind->path, "from",
                            s->from, "to", s->to, "pass_s", s->time.pass_s, "hop_s", s->hop_s,
                            "streamed_bytes", s->streamed, "bound", s->time.bound, "predicted",
                            plan_time_json(&s->time), "plan", plan_fields_json(&s->plan)));
    }
    return json_pack("{sf sf sf sf si ss so}", "job_s", p->job_s, "output_tokens_per_s",
                     explain_tokens_per_s(w->run, p->job_s), "pass_s", p->pass_s, "fill_s",
                     p->fill_s, "groups", p->groups, "bound",
                     pipeline_limit(p, limit, sizeof limit), "stages", list);
}

static enum err print_json(const struct ways *w)
{
    json_t *root = json_pack("{ss so so ss}", "model", w->run->model->name, "shared",
                             shared_json(w), "pipeline", pipeline_json(w), "faster",
                             takes_pipeline(w) ? "pipeline" : "shared");
    const int bad = json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) != 0;
    json_decref(root);
    putchar('\n');
    return bad ? fail(ERR_IO, "stdout: cannot write the plan") : OK;
}

/* ---- the command ---- */

static enum err find_ways(struct ways *w, struct run *r, struct machines *m)
{
    TRY(plan_work(r));
    TRY(machines_plan(m, r));
    for (int i = 0; i < m->n_kinds && !w->shared_why; i++)
        w->shared_why = m->kinds[i].why[0] ? m->kinds[i].why : NULL;
    if (!w->shared_why)
        TRY(machines_share(m, w->shares, &w->shared_s));
    TRY(stages_plan(&w->pipeline, m, r));
    return w->shared_why && w->pipeline.n == 0 ? fail(ERR_FIT, "%s", w->shared_why) : OK;
}

enum err plan_machines(struct run *r, struct machines *m)
{
    struct ways *w = calloc(1, sizeof *w);
    if (!w)
        return fail(ERR_FIT, "no memory for the plan of several machines");
    w->run = r;
    w->machines = m;
    enum err err = find_ways(w, r, m);
    if (err == OK && r->config->json) {
        err = print_json(w);
    } else if (err == OK) {
        print_shared(w);
        print_pipeline(w);
        print_faster(w);
    }
    free(w);
    return err;
}
