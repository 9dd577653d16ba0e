/* policy/cost.c - see cost.h. */
#include "policy/cost.h"

#include "kernels/base/num.h"
#include "policy/pace.h"
#include "policy/rates.h"

#include <math.h>
#include <string.h>

#define PLAYED_ROWS 4096 // longer jobs are played with every second, third ... row
#define PLAYED_FILL 6    // but with at least this many times the rows of all batches
#define QUICK_ROWS  768  // the same for plan_cost_quick
#define QUICK_FILL  3

static const char *slowest(const struct plan_time *t)
{
    const struct {
        const char *name;
        double s;
    } lanes[] = {{t->read_s >= t->write_s ? "nvme-read" : "nvme-write", t->read_s + t->write_s},
                 {"h2d", t->h2d_s},
                 {"d2h", t->d2h_s},
                 {"gpu", t->gpu_s},
                 {"cpu", t->compute_s}};
    int most = 0;
    for (int i = 1; i < (int)(sizeof lanes / sizeof *lanes); i++)
        if (lanes[i].s >= lanes[most].s)
            most = i;
    return lanes[most].name;
}

/* Converts sums over priced passes to a mean pass, and scales the job by the plan's pace
 * (policy/pace.h). */
static void mean_pass(struct plan_time *t, const struct setting *set, const struct plan *plan,
                      const struct lanes *sum, double priced)
{
    t->pace = pace_of(set->costs->pace, plan);
    t->job_s *= t->pace.value;
    t->first_s *= t->pace.value;
    t->read_s = sum->s[LANE_NVME_READ] / priced;
    t->write_s = sum->s[LANE_NVME_WRITE] / priced;
    t->h2d_s = sum->s[LANE_H2D] / priced;
    t->d2h_s = sum->s[LANE_D2H] / priced;
    t->gpu_s = sum->s[LANE_GPU] / priced;
    t->compute_s = sum->s[LANE_CPU] / priced;
    t->pass_s = t->job_s / t->passes;
    t->bound = slowest(t);
}

/* ---- played ---- */

/* Every how-manieth row is played. */
static int every(const struct plan *plan, const struct work *work, int quick)
{
    int64_t rows = (int64_t)plan->batch * plan->batches,
            n = work->rows ? work->n_lengths : work->n_rows;
    int64_t most =
        quick ? max_i64(QUICK_ROWS, QUICK_FILL * rows) : max_i64(PLAYED_ROWS, PLAYED_FILL * rows);
    return (int)max_i64(n / most, 1);
}

double plan_cost_passes(const struct plan *plan, const struct work *work, int quick,
                        const struct plan_time *t)
{
    return t->passes / every(plan, work, quick);
}

int64_t plan_cost_bytes(const struct plan *plan)
{
    return simulate_bytes(plan) + pricing_bytes(plan, 0);
}

static int cost(const struct setting *set, const struct plan *plan, void *memory, int quick,
                const struct under_way *now, struct plan_time *t)
{
    struct pricing pricing;
    struct played played;
    uint8_t *at = memory;
    pricing_make(&pricing, set, plan, quick, at + simulate_bytes(plan));
    const struct simulation s = {.plan = plan,
                                 .work = set->work,
                                 .evict = set->evict,
                                 .ring = set->costs->kv_ring_bytes > 0,
                                 .every = every(plan, set->work, quick),
                                 .live = now ? now->live : NULL,
                                 .live_ctx = now ? now->ctx : NULL,
                                 .price = pricing_pass,
                                 .ctx = &pricing};
    *t = (struct plan_time){.bound = "cpu"};
    if (simulate(&s, memory, &played) != 0)
        return -1;
    if (played.passes == 0)
        return 0;
    moves_end(&pricing.moves, pricing.last, pricing.sum.bytes);
    /* Rows that were left out cost what rows cost while all places were filled. */
    double left_out = (double)(set->work->n_rows - played.rows);
    double filled = (double)(played.filled_to.rows - played.filled_from.rows);
    t->job_s = played.job_s;
    t->passes = (double)played.passes;
    if (left_out > 0 && filled > 0) {
        t->job_s += left_out / filled * (played.filled_to.job_s - played.filled_from.job_s);
        t->passes +=
            left_out / filled * (double)(played.filled_to.passes - played.filled_from.passes);
    } else if (left_out > 0) {
        double seen = max_d((double)(played.live + played.rows), 1);
        t->job_s *= (seen + left_out) / seen;
        t->passes *= (seen + left_out) / seen;
    }
    t->first_s = pricing.first_s;
    double scale = t->passes / (double)played.passes;
    for (int i = 0; i < N_WORK_LANES; i++)
        t->bytes[i] = pricing.sum.bytes[i] * scale;
    t->requeued = (double)played.requeued * scale;
    mean_pass(t, set, plan, &pricing.sum, (double)played.passes);
    return 0;
}

int plan_cost(const struct setting *set, const struct plan *plan, void *memory, struct plan_time *t)
{
    return cost(set, plan, memory, 0, NULL, t);
}

int plan_cost_left(const struct setting *set, const struct plan *plan, void *memory,
                   const struct under_way *now, struct plan_time *t)
{
    return cost(set, plan, memory, 0, now, t);
}

int plan_cost_quick(const struct setting *set, const struct plan *plan, void *memory,
                    struct plan_time *t)
{
    return cost(set, plan, memory, 1, NULL, t);
}

/* ---- estimated ---- */

/* The mean load of a batch in a pass where `live` rows decode and `prompt` tokens enter, both
 * summed over all batches. */
static struct load typical(const struct setting *set, const struct plan *plan, double live,
                           double prompt)
{
    const struct work *work = set->work;
    double rows = max_d((double)work->n_rows, 1);
    double mean = (double)work->prompt_tokens / rows, out = (double)work->output_tokens / rows;
    double each = live / plan->batches, in = prompt / plan->batches;
    struct load l = {.rows = (int)ceil(each),
                     .prompts = (int)ceil(in / max_d(mean, 1)),
                     .prompt_tokens = (int64_t)in,
                     .forced_tokens = (int64_t)ceil(each),
                     .positions = (int64_t)ceil(each + in / max_d(mean, 1))};
    for (int kind = KV_MOST; kind < evict_kinds(set->evict); kind++) {
        double most = (double)work->slots_mean;
        if (kind != KV_MOST)
            most = min_d(most, (double)work->slots_kind[kind]);
        double held = min_d(mean + out / 2, most);
        int evicts = most < mean + out - 1;
        double pairs = (double)load_pairs(set->evict, kind, (int64_t)mean) / max_d(mean, 1);
        double turns = evicts && evict_in_turn(set->evict, kind) ? each : 0;
        l.kv[kind] = (struct kv_load){
            .evicting = evicts ? (int)each : 0,
            .pages_over = (int64_t)turns,
            .prompt_pairs = (int64_t)(in * pairs),
            .slots = (int64_t)(each * (held + 1)),
            .pages_read = (int64_t)(each * held / PAGE_SLOTS),
            .pages_kept = (int64_t)(each * held / PAGE_SLOTS),
            .pages_filled = (int64_t)((evicts ? 0 : each / PAGE_SLOTS) +
                                      min_d(in, in * held / max_d(mean, 1)) / PAGE_SLOTS)};
    }
    return l;
}

static double price_typical(struct pricing *p, int64_t pass, struct load load)
{
    for (int b = 0; b < p->plan->batches; b++)
        p->typical[b] = load;
    return pricing_pass(p, pass, p->typical);
}

void plan_estimate(const struct setting *set, const struct plan *plan, void *memory,
                   struct plan_time *t)
{
    const struct work *work = set->work;
    struct pricing p;
    uint8_t *at = memory;
    pricing_make(&p, set, plan, 1, at + simulate_bytes(plan));
    double n = max_d((double)work->n_rows, 1), prompt = (double)work->prompt_tokens / n;
    double out = (double)work->output_tokens / n;
    double rows = min_d((double)plan->batch * plan->batches, n);
    double all = (double)work->prompt_tokens + (work->scores ? (double)work->output_tokens : 0);
    /* A prompt enters whole: a gate of 600 uses 500 with prompts of 500. */
    double fits = max_d(floor(plan->prefill_tokens / max_d(prompt, 1)), 1) * max_d(prompt, 1);
    double gate = work->scores ? plan->prefill_tokens : min_d(fits, all);
    double entering = max_d(ceil(all / max_d(gate, 1)), 1);
    double waves = ceil(n / max_d(rows, 1));
    double passes = work->scores ? max_d(waves, entering) : max_d(waves * out, entering + out);
    double live = work->scores ? 0 : (double)work->output_tokens / passes;
    double admit_s = price_typical(&p, 1, typical(set, plan, live, all / entering));
    double decode_s = price_typical(&p, 2, typical(set, plan, live, 0));
    double share = min_d(entering / passes, 1);
    *t = (struct plan_time){.passes = passes,
                            .job_s = passes * (share * admit_s + (1 - share) * decode_s)};
    mean_pass(t, set, plan, &p.sum, 2);
}
