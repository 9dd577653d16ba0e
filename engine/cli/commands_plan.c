/* engine/cli/commands_plan.c - `plan`: predicts a job here, or on another machine. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/api/machines.h"
#include "engine/api/plan_file.h"
#include "engine/api/report.h"
#include "engine/api/words.h"
#include "engine/cli/commands.h"

/* Prints a row of the table; with a device column if the plan uses a device. */
static void print_bytes(const struct run *r, const char *what, int64_t device, int64_t ram,
                        int64_t disk)
{
    printf("  %-10s", what);
    if (r->decision.plan.device)
        printf(" %10.1f", (double)device / 1048576.0);
    printf(" %10.1f %10.1f\n", (double)ram / 1048576.0, (double)disk / 1048576.0);
}

static void print_accounts(const struct run *r, const char *what, const enum plan_account *accounts)
{
    int64_t on[N_TIERS] = {0};
    for (; *accounts != N_PLAN_ACCOUNTS; accounts++)
        for (int tier = 0; tier < N_TIERS; tier++)
            on[tier] += r->decision.bytes.by[*accounts][tier];
    print_bytes(r, what, on[TIER_DEVICE], on[TIER_RAM], on[TIER_NVME]);
}

static void print_tiers(const struct run *r)
{
    static const struct {
        const char *what;
        enum plan_account accounts[6];
    } rows[] = {{"weights",
                 {PLAN_BYTES_weights_resident, PLAN_BYTES_weight_frames, PLAN_BYTES_weight_copies,
                  N_PLAN_ACCOUNTS}},
                {"kv",
                 {PLAN_BYTES_kv, PLAN_BYTES_kv_frames, PLAN_BYTES_kv_tails, PLAN_BYTES_kv_rings,
                  PLAN_BYTES_kv_meta, N_PLAN_ACCOUNTS}},
                {"hidden", {PLAN_BYTES_hidden, PLAN_BYTES_hidden_frames, N_PLAN_ACCOUNTS}},
                {"work", {PLAN_BYTES_workspace, PLAN_BYTES_head, N_PLAN_ACCOUNTS}},
                {"text, io", {PLAN_BYTES_text, PLAN_BYTES_io, N_PLAN_ACCOUNTS}}};
    printf("  %-10s%s %10s %10s  MiB\n", "", r->decision.plan.device ? "     device" : "", "RAM",
           "disk");
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++)
        print_accounts(r, rows[i].what, rows[i].accounts);
    print_bytes(r, "total", r->decision.bytes.device, r->decision.bytes.ram,
                r->decision.bytes.disk);
    if (r->budget.ram >= 0)
        print_bytes(r, "budget", r->budget.device, r->budget.ram, r->budget.disk);
}

static void print_lanes(const struct run *r)
{
    const double gib = 1 << 30;
    char s[WORDS_BYTES];
    printf("pass     %s s for one token of every row, limited by %s\n",
           words_digits(r->decision.time.pass_s, s), words_resource(r->decision.time.bound));
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
               words_digits(busy_s, s), 100 * report_lane_share(r, lane), bytes,
               report_lane_limits(r, lane) ? "  limits" : "");
    }
}

/* The end of a flag and its value: the next flag, or the end of the text. */
static const char *flag_end(const char *flag)
{
    const char *next = strstr(flag, " --");
    return next ? next : flag + strlen(flag);
}

/* The flags of `other` whose values differ from those of `freeze`. */
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
        printf("  %15.4g %9.2f  %s", explain_tokens_per_s(r, a->job_s), (double)a->bytes.ram / gib,
               flags);
        if (a->make_s > 0)
            printf(" (%.0f s more, once)", a->make_s);
        printf("\n");
    }
}

/* Prints the source of each perplexity, once. */
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

/* Prints alternatives and helps, as flags to add to those that repeat the plan. */
static void print_explained(const struct explain *e, const struct run *r)
{
    print_alternatives(e, r);
    if (e->n_helps == 0)
        printf("faster   with nothing that was tried, by 5 %% or more");
    if (e->n_helps == 0 && e->matmul_share > EXPLAIN_MOSTLY)
        printf(": matmuls alone are %.0f %% of the job", 100 * fmin(e->matmul_share, 1));
    printf(e->n_helps == 0 ? "\n" : "faster   tokens/s  at least  with\n");
    for (int i = 0; i < e->n_helps; i++) {
        const struct explain_help *h = &e->helps[i];
        char with[144];
        snprintf(with, sizeof with, "%s%s%s%s", h->what, h->flags[0] && h->what[0] ? " (" : "",
                 h->flags, h->flags[0] && h->what[0] ? ")" : "");
        printf("  %15.4g  %+5.0f %%  %-36s  %s%s\n", explain_tokens_per_s(r, h->job_s),
               100 * h->gain, with,
               h->n_quality > 0 ? "lossy: "
               : h->rounds      ? "other rounding, no loss of quality"
                                : "same answers",
               h->quality_text);
    }
    print_sources(e);
}

/* Prints tables of tiers and lanes, the prediction, the flags that repeat the plan, and why. */
static void print_plan(const struct run *r, const struct explain *e)
{
    const struct plan *p = &r->decision.plan;
    const struct plan_time *t = &r->decision.time;
    const struct model *m = r->model;
    char freeze[512], layers[160], kv[160], job[WORDS_BYTES], about[WORDS_BYTES];
    plan_freeze(r, freeze, sizeof freeze);
    plan_layers_text(r, layers, sizeof layers);
    plan_kv_text(r, kv, sizeof kv);
    printf("model    %s, %s, %.1f M parameters%s\n", m->name, m->shape.family,
           (double)m->n_params * 1e-6, m->dummy ? ", dummy weights" : "");
    printf("job      %lld rows, %lld prompt tokens (longest %lld), at most %lld to generate\n",
           (long long)r->work.n_rows, (long long)r->work.prompt_tokens,
           (long long)r->work.prompt_max, (long long)r->work.output_tokens);
    printf("rows     %lld at once: %d batch%s of %d; %d prompt tokens a pass; KV pages for %lld "
           "tokens a batch\n",
           (long long)p->batch * p->batches, p->batches, p->batches == 1 ? "" : "es", p->batch,
           p->prefill_tokens, (long long)p->pages_batch * PAGE_SLOTS);
    printf("weights  %s\n", layers);
    int slices = p->layers - 1 - p->decoder;
    printf("         the parts are %d layers and %d slice%s of the output matrix\n", p->decoder,
           slices, slices == 1 ? "" : "s");
    printf("kv       %s %s, hidden states %s\n", kv, plan_kv_tiers(p), plan_hidden_tiers(p));
    print_tiers(r);
    print_lanes(r);
    printf("job      about %.0f passes, %s s (%s), %.1f output tokens/s\n", t->passes,
           words_digits(t->job_s, job), words_about(t->job_s, about),
           explain_tokens_per_s(r, t->job_s));
    printf("repeat   %s\n", freeze);
    if (!r->config->no_advice)
        print_explained(e, r);
}

static enum err plan(struct run *r)
{
    const struct config *c = r->config;
    TRY(run_prepare(r, c));
    r->elsewhere = c->machine != NULL;
    struct explain e;
    TRY(plan_work_explained(r, &e));
    if (c->out)
        TRY(plan_file_write(r, &e, c->out));
    if (c->json)
        return plan_file_write(r, &e, NULL);
    print_plan(r, &e);
    return OK;
}

/* Plans for the machines of the list; for one it is `--machine`. */
static enum err plan_on(struct config *with, struct machines *machines)
{
    struct run *r = NULL;
    with->machine = machines->kinds[0].path;
    TRY(run_begin(&r, with));
    if (machines->n == 1)
        return run_end(r, plan(r));
    enum err err = run_prepare(r, with);
    return run_end(r, err == OK ? plan_machines(r, machines) : err);
}

static enum err plan_list(struct config *with)
{
    struct machines machines;
    if (with->machine || with->out)
        return fail(ERR_USAGE, "--machines: does not go with %s",
                    with->machine ? "--machine" : "-o");
    TRY(machines_open(&machines, with->machines));
    const enum err err = plan_on(with, &machines);
    machines_close(&machines);
    return err;
}

enum err command_plan(const struct config *asked)
{
    struct config with;
    TRY(command_input(&with, asked, 0));
    if (with.machines)
        return plan_list(&with);
    struct run *r = NULL;
    TRY(run_begin(&r, &with));
    return run_end(r, plan(r));
}
