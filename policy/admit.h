/* policy/admit.h - who enters a pass, which tokens a row takes in it, and when pages are too few.
 *
 * One rule, asked by the engine, which keeps requests and pages (engine/line/batch.c), and by
 * simulate(), which plays the same job with numbers alone. It changes speed and never a byte. */
#ifndef POLICY_ADMIT_H
#define POLICY_ADMIT_H

#include "policy/evict.h"
#include "kernels/base/num.h"
#include "policy/plan.h"

/* Prompt and forced tokens of one pass, all batches: how many it admits, how many came in. */
struct gate {
    int prefill, admitted;
};

/* Tokens that a live row takes, of `wanted` that are known and not done. One token of its own is
 * always free; more count as admitted. */
static inline int admit_live(struct gate *g, int wanted)
{
    if (wanted <= 1)
        return wanted;
    int left = g->prefill - g->admitted;
    int take = (int)min_i64(wanted, left > 1 ? left : 1);
    g->admitted += take > 1 ? take : 0;
    return take;
}

/* Tokens that a waiting row would take on entering, of `wanted` known ones; 0: not in this pass. A
 * prompt enters whole; one longer than what a pass admits enters alone. */
static inline int admit_entry(const struct gate *g, int n_prompt, int wanted)
{
    int left = g->prefill - g->admitted;
    if (n_prompt > left && g->admitted > 0)
        return 0;
    return (int)min_i64(wanted, max_i64(n_prompt, left));
}

static inline int admit_pages(int slots)
{
    return (int)ceil_div(slots, PAGE_SLOTS);
}

/* Pages of a row of n_cap tokens at its longest. */
static inline int admit_pages_max(const struct evict *e, const struct evict_row *row,
                                  int ring_slots, int n_cap)
{
    int slots = e->simulate ? n_cap : (int)min_i64(n_cap, row->budget);
    return admit_pages(slots - evict_ring_used(ring_slots, n_cap));
}

/* 1 when a row that needs so many pages may enter a batch that has n_free: a page is kept for each
 * of its rows that may still grow, or the newcomer would soon send one back to the queue. */
static inline int admit_room(int n_free, int need, int growing, int live)
{
    return live == 0 || n_free >= need + growing;
}

#endif
