/* engine/api/plan_work.c - of rows.h: the work that `plan` plans for, and the explained plan. */
#include "engine/api/rows.h"

/* A synthetic job: --num-prompts rows of --prompt-len tokens that generate --gen-len tokens. */
static enum err made_up_work(struct run *r)
{
    const struct config *c = r->config;
    int64_t tokens = c->prompt_len + c->gen_len;
    if (c->prompt_len < 1 || c->gen_len < 1 || c->num_prompts < 1)
        return fail(ERR_USAGE,
                    "plan: needs -i IN.jsonl, or --prompt-len, --gen-len and --num-prompts");
    const int context = r->model->shape.context;
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

enum err plan_work(struct run *r)
{
    if (!r->config->in)
        return made_up_work(r);
    enum err closed = job_close(r->job);
    r->job = NULL;
    TRY(closed);
    return rows_open(r, REQUEST_GENERATE, NULL);
}

enum err plan_work_explained(struct run *r, struct explain *e)
{
    TRY(plan_work(r));
    r->plan_told = PLAN_BY_COMMAND; // print_plan prints it on stdout
    explain_begin(e, r);
    TRY(run_plan(r));
    if (!r->config->no_advice)
        return explain_plan(e, r);
    r->ranking = NULL;
    return OK;
}
