/* engine/api/left.c - see left.h. */
#include "engine/api/left.h"

#define EVERY_S 0.25 // least seconds between two predictions,
#define SHARE   100  // and at least this many times the duration of one

/* For struct simulation. A token processed by the pass counts as done even while the sampled token
 * is still being copied from a device. */
int left_live_row(void *ctx, int batch, int seat, struct live_row *row)
{
    const struct batches *batches = ctx;
    const struct row *live = &batches->batch[batch].rows[seat];
    const struct request *q = live->request;
    if (!q)
        return 0;
    *row = (struct live_row){.row = {.prompt = q->n_prompt, .known = q->n_tokens, .cap = q->n_cap},
                             .done = live->n_done + live->n_take,
                             .entered = live->entered};
    return 1;
}

void left_learn(const struct run *r, struct work *work)
{
    struct job_counts n;
    job_counts(r->job, &n);
    work_learn(work, n.sampled, n.stopped);
}

/* Predicts the rest of the run again. begins: 1 if no row is live yet. */
static void look(struct left *l, struct run *r, int begins)
{
    int64_t start_ns = clock_ns();
    struct work work = r->work;
    struct plan_time t;
    struct setting set = run_setting(r);
    const struct under_way now = {.live = begins ? NULL : left_live_row, .ctx = &r->engine.batches};
    left_learn(r, &work);
    job_work_waiting(r->job, &work);
    l->costs = r->costs;
    l->costs.pace = NULL; // the factor of this run is measured
    set.work = &work;
    set.costs = &l->costs;
    if (plan_cost_left(&set, &r->decision.plan, r->search, &now, &t) == 0)
        eta_left(&l->eta, t.job_s, t.first_s);
    l->looked_ns = clock_ns();
    l->look_s = (double)(l->looked_ns - start_ns) * 1e-9;
}

void left_begin(struct left *l, struct run *r, int again)
{
    const double times = r->decision.time.pace.value;
    if (again)
        look(l, r, 1);
    else if (times > 0)
        eta_begin(&l->eta, r->decision.time.job_s / times, r->decision.time.first_s / times, times);
}

void left_pass(struct left *l, struct run *r, double measured_s, double predicted_s)
{
    double since_s = (double)(clock_ns() - l->looked_ns) * 1e-9;
    eta_pass(&l->eta, measured_s, predicted_s);
    if (r->tick && since_s >= EVERY_S && since_s >= SHARE * l->look_s)
        look(l, r, 0);
}

double left_seconds(const struct left *l, const struct engine *e)
{
    int64_t steps = order_pass_steps(&e->order) * plan_groups(&e->config.plan);
    double share = e->n > 0 && steps > 0 ? (double)(e->n % steps) / (double)steps : 0;
    return eta_seconds(&l->eta, share);
}
