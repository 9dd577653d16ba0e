/* policy/admit.h - which rows enter a pass, how many tokens a row takes in it, and when a batch has
 * too few KV pages.
 *
 * The engine (engine/line/batch.c) and simulate(), which plays the same job with numbers alone,
 * share this rule. It affects speed, never a byte of output. */
#ifndef POLICY_ADMIT_H
#define POLICY_ADMIT_H

#include "policy/evict.h"
#include "kernels/base/num.h"
#include "policy/plan.h"

/* Limit on prompt and forced tokens of one pass over all batches, and tokens admitted so far. */
struct gate {
    int prefill, admitted;
};

/* Tokens that a live row takes, of `wanted` known tokens that are not done. The first token is
 * always free; if a row takes more, all count as admitted. */
static inline int admit_live(struct gate *g, int wanted)
{
    if (wanted <= 1)
        return wanted;
    int left = g->prefill - g->admitted;
    int take = (int)min_i64(wanted, left > 1 ? left : 1);
    g->admitted += take > 1 ? take : 0;
    return take;
}

/* Tokens that a waiting row takes on entering, of `wanted` known tokens; 0: not in this pass. A
 * prompt enters whole; a prompt longer than the limit enters alone. */
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

/* Pages of a row with n_cap tokens, its greatest length. */
static inline int admit_pages_max(const struct evict *e, const struct evict_row *row,
                                  int ring_slots, int n_cap)
{
    int slots = e->simulate ? n_cap : (int)min_i64(n_cap, row->budget);
    return admit_pages(slots - evict_ring_used(ring_slots, n_cap));
}

/* 1 when a row may enter a batch with n_free pages. known: pages for all tokens that the row knows:
 * one that was sent back takes its tokens over many passes, and would be sent back again while it
 * does. Each row that may still grow keeps a page in reserve. */
static inline int admit_room(int n_free, int known, int growing, int live)
{
    return live == 0 || n_free >= known + growing;
}

#endif
