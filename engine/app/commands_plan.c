/* engine/app/commands_plan.c - `plan`: what run would do here, or on another machine (see run.h).
 */
#include <stdio.h>
#include <string.h>

#include "engine/app/commands.h"
#include "engine/app/explain.h"
#include "engine/app/plan_file.h"
#include "engine/app/run.h"
#include "engine/app/words.h"

/* A row of the table; the device has a column where the plan has one. */
static void print_bytes(const struct run *r, const char *what, int64_t device, int64_t ram,
                        int64_t disk)
{
    printf("  %-10s", what);
    if (r->plan.device)
        printf(" %10.1f", (double)device / 1048576.0);
    printf(" %10.1f %10.1f\n", (double)ram / 1048576.0, (double)disk / 1048576.0);
}

static void print_accounts(const struct run *r, const char *what, const enum plan_account *accounts)
{
    int64_t on[N_TIERS] = {0};
    for (; *accounts != N_PLAN_ACCOUNTS; accounts++)
        for (int tier = 0; tier < N_TIERS; tier++)
            on[tier] += r->bytes.by[*accounts][tier];
    print_bytes(r, what, on[TIER_DEVICE], on[TIER_RAM], on[TIER_NVME]);
}

static void print_tiers(const struct run *r)
{
    static const struct {
        const char *what;
        enum plan_account accounts[6];
    } rows[] = {
        {"weights", {PLAN_BYTES_weights_resident, PLAN_BYTES_weight_frames, N_PLAN_ACCOUNTS}},
        {"kv",
         {PLAN_BYTES_kv, PLAN_BYTES_kv_frames, PLAN_BYTES_kv_tails, PLAN_BYTES_kv_rings,
          PLAN_BYTES_kv_meta, N_PLAN_ACCOUNTS}},
        {"hidden", {PLAN_BYTES_hidden, PLAN_BYTES_hidden_frames, N_PLAN_ACCOUNTS}},
        {"work", {PLAN_BYTES_workspace, PLAN_BYTES_head, N_PLAN_ACCOUNTS}},
        {"text, io", {PLAN_BYTES_text, PLAN_BYTES_io, N_PLAN_ACCOUNTS}}};
    printf("  %-10s%s %10s %10s  MiB\n", "", r->plan.device ? "     device" : "", "RAM", "disk");
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++)
        print_accounts(r, rows[i].what, rows[i].accounts);
    print_bytes(r, "total", r->bytes.device, r->bytes.ram, r->bytes.disk);
    if (r->budget.ram >= 0)
        print_bytes(r, "budget", r->budget.device, r->budget.ram, r->budget.disk);
}

/* The plan for people: tables of tiers and lanes, the prediction, the flags that repeat it, and
 * what explains it. */
static void print_plan(const struct run *r, const struct explain *e)
{
    const struct plan *p = &r->plan;
    const struct plan_time *t = &r->time;
    const struct model *m = &r->opened.model;
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
    explain_print_lanes(r);
    printf("job      about %.0f passes, %s s (%s), %.1f output tokens/s\n", t->passes,
           words_digits(t->job_s, job), words_about(t->job_s, about),
           t->job_s > 0 ? (double)r->work.output_tokens / t->job_s : 0.0);
    printf("repeat   %s\n", freeze);
    if (!r->config->no_advice)
        explain_print(e, r);
}

/* A made-up job: --num-prompts rows of --prompt-len tokens, --gen-len to generate. */
static enum err made_up_work(struct run *r)
{
    const struct config *c = r->config;
    int64_t tokens = c->prompt_len + c->gen_len;
    if (c->prompt_len < 1 || c->gen_len < 1 || c->num_prompts < 1)
        return fail(ERR_USAGE,
                    "plan: needs -i IN.jsonl, or --prompt-len, --gen-len and --num-prompts");
    const int context = r->opened.model.shape.context;
    if (c->prompt_len > context || tokens > evict_tokens_max(&r->evict, context))
        return fail(ERR_USAGE, "--prompt-len: %lld tokens a row, the model's context is %d",
                    (long long)tokens, context);
    int64_t slots = evict_slots_max(&r->evict, KV_MOST, c->prompt_len, c->gen_len);
    r->work = (struct work){.n_rows = c->num_prompts,
                            .prompt_tokens = c->num_prompts * c->prompt_len,
                            .output_tokens = c->num_prompts * c->gen_len,
                            .prompt_max = c->prompt_len,
                            .tokens_max = tokens,
                            .slots_max = slots,
                            .slots_mean = slots,
                            .kinds = r->evict.kinds};
    for (int kind = 0; kind < evict_kinds(&r->evict); kind++)
        r->work.slots_kind[kind] = evict_slots_max(&r->evict, kind, c->prompt_len, c->gen_len);
    return OK;
}

enum err command_plan_work(struct run *r)
{
    if (!r->config->in)
        return made_up_work(r);
    enum err closed = job_close(r->job);
    r->job = NULL;
    TRY(closed);
    return command_open_job(r, REQUEST_GENERATE, NULL);
}

enum err command_plan_make(struct run *r, struct explain *e)
{
    TRY(command_plan_work(r));
    r->plan_told = PLAN_BY_COMMAND; // print_plan says it on stdout
    explain_begin(e, r);
    TRY(run_plan(r));
    if (!r->config->no_advice)
        return explain_plan(e, r);
    r->ranking = NULL;
    return OK;
}

static enum err plan(struct run *r)
{
    const struct config *c = r->config;
    TRY(run_prepare(r, c));
    r->elsewhere = c->machine != NULL;
    struct explain e;
    TRY(command_plan_make(r, &e));
    if (c->out)
        TRY(plan_file_write(r, &e, c->out));
    if (c->json)
        return plan_file_write(r, &e, NULL);
    print_plan(r, &e);
    return OK;
}

enum err command_plan(const struct config *asked)
{
    struct config with;
    TRY(command_input(&with, asked, 0));
    struct run *r = NULL;
    TRY(command_begin(&r, &with));
    return command_end(r, plan(r));
}
