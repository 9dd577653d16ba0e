/* policy/evict_fixed_h2o.h - fixed with heavy hitters, as in evict_strided_h2o.h. */
#ifndef POLICY_EVICT_FIXED_H2O_H
#define POLICY_EVICT_FIXED_H2O_H

#include "policy/evict_fixed.h"

static inline float evict_fixed_h2o_rank(const struct evict_row *row, float score, int pos, int now)
{
    const int n_slots = (row->budget - row->recent - row->sink) / 2;
    return evict_fixed_has(row, n_slots, pos, now) ? INFINITY : score;
}

#define EVICT_RULE_FIXED_H2O(X)                                                                    \
    X(FIXED_H2O, "fixed-h2o", "the least summed attention, but the ends of blocks stay",           \
      evict_fixed_h2o_rank, EVICT_SCORE_SUM, 0, 0.5, HEAD)

#endif
