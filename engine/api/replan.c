/* engine/api/replan.c - see replan.h. */
#include "engine/api/replan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/left.h"
#include "engine/api/plan_file.h"
#include "offload/cpu_wait.h"
#include "policy/search.h"

#define GAIN         0.9 // of the time left: a smaller gain is within the error of predictions
#define MEMORY_S     0.5
#define SHOWS_S      2.0 // and SHOWS_PASSES passes: a shorter run is no guide for later ones
#define SHOWS_PASSES 4
#define TEXTS        16  // lines kept for the summary
#define ENDED_ROWS   8   // rows that stop before max_tokens until lengths are first looked at
#define OTHER        0.1 // of the plan's KV per row: check plans for lengths that differ by more
#define CODE_BYTES   ((int64_t)24 << 20)

/* SLUICE_REPLAN=N,SEED for tests: every N-th pass changes to a plan with rows and a budget drawn
 * from SEED. */
struct forced {
    long every;
    uint64_t seed;
};

struct replan {
    struct run *run;    // borrowed
    struct setting set; // for `pricing`
    struct pricing pricing;
    struct load *loads;    // in r->search
    double measured_s;     // all passes so far
    struct cpu_wait waits; // at the first step of the line
    int64_t open_ns;       // when opening the line began
    double open_s;         // from open_ns to the first step
    int64_t passes, memory_ns;
    int64_t gained;       // see gained(): at the start of the current plan
    int64_t tokens_next;  // sampled tokens at the next look at lengths: twice those of the last
    int64_t slots_mean;   // of a row, in the plan's KV
    int keeps;            // 1: the plan never changes
    struct budget budget; // of the current plan
    int64_t refused_ram;  // RAM for which no plan was found
    struct plan next;
    struct plan_bytes bytes;
    char why[160];
    char text[TEXTS][512];
    int n;
    struct forced forced;
    struct left left;
};

static double seconds_since(int64_t ns)
{
    return (double)(clock_ns() - ns) * 1e-9;
}

/* ---- the next plan ---- */

/* The remaining work, with expected lengths from the rows that have ended. */
static struct setting setting_now(struct replan *w, struct work *left)
{
    struct run *r = w->run;
    *left = r->work;
    job_work_left(r->job, left);
    left_learn(r, left);
    work_expect(left, &r->evict);
    struct setting set = run_setting(r);
    set.work = left;
    return set;
}

/* The wish for the next plan: the flags, and the current codec and sharing. */
static struct plan_wish wish_now(const struct replan *w)
{
    const struct run *r = w->run;
    struct plan_wish wish = r->decision.wish;
    wish.codec = r->decision.plan.codec;
    wish.no_sharing = r->decision.plan.no_sharing;
    return wish;
}

/* 1 if the file of encoded layers has all layers that this plan streams. */
static int is_stored(const struct run *r, const struct plan *plan)
{
    return plan->codec == PLAN_CODEC_NONE || pack_codec_covers(&r->codec, r->model, plan);
}

/* Finds the best plan within a budget. Drops the wish if nothing else fits. */
static int find_next(struct replan *w, const struct setting *set, const struct budget *budget,
                     struct plan_wish wish)
{
    struct run *r = w->run;
    char why[320];
    struct plan_wish any = run_any_placement(&wish);
    any.no_sharing = wish.no_sharing;
    int rc = plan_search(set, &wish, budget, r->search, &w->next, NULL, why, sizeof why);
    if (rc == 0 && !is_stored(r, &w->next)) {
        wish.codec = PLAN_CODEC_NONE;
        rc = plan_search(set, &wish, budget, r->search, &w->next, NULL, why, sizeof why);
    }
    if (rc != 0)
        rc = plan_search(set, &any, budget, r->search, &w->next, NULL, why, sizeof why);
    if (rc == 0)
        CHECK(plan_check(set, &w->next, budget, &w->bytes, why, sizeof why) == 0);
    return rc == 0;
}

/* Passes to prefill live rows again after a change of plan: the cost of leaving. */
static double again_passes(const struct run *r, const struct work *left)
{
    double tokens = 0, rows = (double)r->decision.plan.batch * r->decision.plan.batches;
    for (int64_t i = 0; i < left->n_lengths && (double)(i * left->stride) < rows; i++)
        if (left->rows[i].known > left->rows[i].prompt)
            tokens += (double)left->rows[i].known * left->stride;
    return ceil(tokens / fmax(r->decision.plan.prefill_tokens, 1));
}

/* 1 if another plan ends sooner, including its start and the prefill of live rows. */
static int is_worth_it(struct replan *w, const struct setting *set, const struct budget *budget)
{
    struct run *r = w->run;
    struct plan_time stay, go;
    if (!find_next(w, set, budget, wish_now(w)) ||
        memcmp(&w->next, &r->decision.plan, sizeof w->next) == 0 ||
        plan_cost(set, &r->decision.plan, r->search, &stay) != 0 ||
        plan_cost(set, &w->next, r->search, &go) != 0)
        return 0;
    double stay_s = stay.job_s - again_passes(r, set->work) * stay.pass_s,
           go_s = w->open_s + go.job_s;
    size_t n = strlen(w->why);
    log_line(LOG_DEBUG, "plan: %s: %.1f s to go on, %.1f s to change", w->why, stay_s, go_s);
    snprintf(w->why + n, sizeof w->why - n, ", %.1f s left instead of %.1f", go_s, stay_s);
    return go_s < GAIN * stay_s;
}

/* ---- memory ---- */

/* RAM that a plan may use now: the run's budget, less any lowered limit, less what other processes
 * need when the machine is short. */
static int64_t ram_now(const struct replan *w)
{
    const struct run *r = w->run;
    struct machine_info now = {0};
    machine_memory_read(&now, "");
    int64_t ram = r->budget.ram, was = r->session->info.cgroup.memory_limit_bytes;
    int64_t limit = now.cgroup.memory_limit_bytes;
    if (now.cgroup.memory_soft_bytes <
        r->session->info.cgroup.memory_soft_bytes) // lowered since the start
        limit = min_i64(limit, now.cgroup.memory_soft_bytes);
    if (limit < was) {
        int64_t others = was == INT64_MAX ? 0 : was - r->session->info.cgroup.memory_free_bytes;
        ram = min_i64(ram, limit - others - CODE_BYTES - limit / 32);
    }
    /* A cgroup may be filled by this run; a machine needs some free memory. */
    int64_t low = now.ram_bytes / 64;
    int machine_is_low =
        now.ram_free_bytes < low && now.ram_free_bytes < now.cgroup.memory_free_bytes;
    if (machine_is_low && r->session->info.ram_free_bytes > 2 * low)
        ram = min_i64(ram, r->decision.bytes.ram - (2 * low - now.ram_free_bytes));
    return ram;
}

static int is_short(struct replan *w)
{
    struct run *r = w->run;
    struct work left;
    if (seconds_since(w->memory_ns) < MEMORY_S)
        return 0;
    w->memory_ns = clock_ns();
    struct budget budget = w->budget;
    budget.ram = ram_now(w);
    if (budget.ram >= r->decision.bytes.ram || budget.ram == w->refused_ram) {
        if (budget.ram > w->budget.ram + w->budget.ram / 8) { // memory is free again
            w->budget.ram = budget.ram;
            snprintf(w->why, sizeof w->why, "%.1f MiB of RAM are free again",
                     (double)budget.ram / 1048576.0);
            const struct setting set = setting_now(w, &left);
            return is_worth_it(w, &set, &budget);
        }
        return 0;
    }
    const struct setting set = setting_now(w, &left);
    snprintf(w->why, sizeof w->why, "RAM runs short: %.1f MiB instead of %.1f",
             (double)budget.ram / 1048576.0, (double)r->decision.bytes.ram / 1048576.0);
    if (!find_next(w, &set, &budget, wish_now(w))) {
        log_line(LOG_WARN, "plan: %s, and no plan fits that", w->why);
        w->refused_ram = budget.ram;
        return 0;
    }
    w->budget = budget;
    return 1;
}

/* Rows stop before max_tokens: KV for their real lengths lets more of them run at once. A row that
 * needs more goes back to the queue, as under any plan. If later rows turn out to be longer, fewer
 * run at once again. */
static int rows_end_early(struct replan *w)
{
    const struct run *r = w->run;
    struct work left;
    struct job_counts counts;
    int64_t ended = 0, tokens = 0;
    job_counts(r->job, &counts);
    for (int i = 0; i < WORK_EIGHTHS; i++) {
        ended += counts.stopped[i];
        tokens += counts.sampled[i];
    }
    if (ended < ENDED_ROWS || tokens < w->tokens_next)
        return 0;
    w->tokens_next = 2 * tokens;
    const struct setting set = setting_now(w, &left);
    if (fabs((double)(left.slots_mean - w->slots_mean)) <= OTHER * (double)w->slots_mean)
        return 0;
    snprintf(w->why, sizeof w->why, "rows end with %lld tokens of KV instead of %lld",
             (long long)left.slots_mean, (long long)w->slots_mean);
    if (!is_worth_it(w, &set, &w->budget))
        return 0;
    w->slots_mean = left.slots_mean;
    return 1;
}

static int is_forced(struct replan *w, int64_t pass)
{
    struct forced *f = &w->forced;
    struct budget budget = w->run->budget;
    struct work left;
    if (f->every <= 0 || pass % f->every != 0)
        return 0;
    const struct setting set = setting_now(w, &left);
    struct plan_wish wish = wish_now(w);
    f->seed = mix64(f->seed + 1);
    double share = 0.4 + 0.6 * (double)(f->seed >> 40) / (double)(1 << 24);
    budget.ram = (int64_t)((double)budget.ram * share);
    wish.batch = 1 + (int)(f->seed % 7);
    wish.batches = wish.batches > 0 ? wish.batches : 1 + (int)(f->seed / 7 % 4);
    snprintf(w->why, sizeof w->why, "forced, %.1f MiB of RAM", (double)budget.ram / 1048576.0);
    return find_next(w, &set, &budget, wish) || find_next(w, &set, &w->run->budget, wish);
}

/* Tokens and finished rows, which a change of plan cannot lose; other progress of rows is repeated.
 * A line may be left only after a gain, else the run might never end. */
static int64_t gained(const struct run *r)
{
    struct job_counts counts;
    job_counts(r->job, &counts);
    return counts.output_tokens + counts.done;
}

/* Called between two passes: records the last pass; 1 to leave the line for another plan. */
static int leave(void *ctx, const struct engine *e)
{
    struct replan *w = ctx;
    int64_t pass = e->n / order_pass_steps(&e->order) - 1;
    double foreseen_s = w->pricing.sum.wall_s, measured_s = w->measured_s;
    pricing_pass(&w->pricing, pass, w->loads);
    w->measured_s = seconds_since(e->start_ns);
    left_pass(&w->left, w->run, w->measured_s - measured_s, w->pricing.sum.wall_s - foreseen_s);
    w->passes = pass;
    if (pass == 0 || w->keeps) // the first pass also reads the resident weights
        return 0;
    if (w->forced.every > 0)
        return gained(w->run) > w->gained && is_forced(w, pass);
    return is_short(w) || rows_end_early(w);
}

/* ---- the run's side ---- */

enum err replan_open(struct replan **out, struct run *r)
{
    *out = NULL;
    const char *forced = getenv("SLUICE_REPLAN");
    if (r->config->kv_dump || r->config->kv_trace)
        return OK;
    struct replan *w = calloc(1, sizeof *w);
    if (!w)
        return fail(ERR_FIT, "memory: the watch over a plan");
    w->run = r;
    w->keeps = r->config->replan == CONFIG_OFF;
    w->budget = r->budget;
    w->refused_ram = -1;
    w->slots_mean = r->work.slots_mean;
    unsigned long long seed = 0;
    if (forced && sscanf(forced, "%ld,%llu", &w->forced.every, &seed) < 1) {
        free(w);
        return fail(ERR_USAGE, "SLUICE_REPLAN: '%s' is not N,SEED", forced);
    }
    w->forced.seed = seed;
    *out = w;
    return OK;
}

enum err replan_watch(struct replan *w, struct engine_config *config)
{
    struct run *r = w->run;
    int64_t loads = r->decision.plan.batches * (int64_t)sizeof(struct load);
    CHECK(loads + pricing_bytes(&r->decision.plan, 0) <= r->search_bytes - r->watch_at);
    w->loads = (struct load *)(void *)((char *)r->search + r->watch_at);
    memset(w->loads, 0, (size_t)loads);
    w->set = run_setting(r);
    pricing_make(&w->pricing, &w->set, &r->decision.plan, 0, w->loads + r->decision.plan.batches);
    w->gained = gained(r);
    left_begin(&w->left, r, w->n > 0);
    w->open_ns = clock_ns();
    config->leave = leave;
    config->leave_ctx = w;
    config->loads = w->loads;
    return OK;
}

void replan_begin(struct replan *w)
{
    if (!w)
        return;
    w->open_s = seconds_since(w->open_ns);
    cpu_wait_read(&w->waits, NULL);
}

void replan_take(struct replan *w)
{
    struct run *r = w->run;
    char layers[160], *text = w->text[w->n < TEXTS ? w->n : TEXTS - 1];
    r->decision.plan = w->next;
    r->decision.bytes = w->bytes;
    plan_layers_text(r, layers, sizeof layers);
    snprintf(text, sizeof w->text[0],
             "pass %lld: %s: now %d x %d rows; weights: %s; KV %s; %d prompt tokens a pass; "
             "RAM %.1f MiB",
             (long long)r->engine.passes, w->why, r->decision.plan.batches, r->decision.plan.batch,
             layers, plan_kv_tiers(&r->decision.plan), r->decision.plan.prefill_tokens,
             (double)r->decision.bytes.ram / 1048576.0);
    log_line(LOG_INFO, "plan: %s", text);
    w->n++;
}

int replan_pace(const struct replan *w, double *times)
{
    struct cpu_wait now;
    if (!w || w->n > 0 || w->passes < SHOWS_PASSES || w->measured_s < SHOWS_S ||
        w->pricing.sum.wall_s <= 0)
        return 0;
    *times = w->measured_s / w->pricing.sum.wall_s;
    cpu_wait_read(&now, NULL);
    double share = cpu_wait_share(&w->waits, &now, pool_threads(w->run->session->pool));
    if (share > CPU_WAIT_STARVED)
        log_line(LOG_DEBUG,
                 "plan: later predictions do not follow this run: other processes had the cores "
                 "for %.0f %% of the time that its threads could have computed",
                 100 * share);
    else
        log_line(LOG_DEBUG, "plan: this run took %.2f x the predicted time: kept", *times);
    return share <= CPU_WAIT_STARVED;
}

double replan_left_s(const struct replan *w)
{
    return w ? left_seconds(&w->left, &w->run->engine) : -1;
}

int replan_count(const struct replan *w)
{
    return w ? w->n : 0;
}

const char *replan_text(const struct replan *w, int i)
{
    return w && i < w->n && i < TEXTS ? w->text[i] : NULL;
}

void replan_close(struct replan *w)
{
    free(w);
}
