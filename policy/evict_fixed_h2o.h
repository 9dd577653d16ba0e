/* policy/evict_fixed_h2o.h - fixed with heavy hitters, as evict_strided_h2o.h has them. */
#ifndef POLICY_EVICT_FIXED_H2O_H
#define POLICY_EVICT_FIXED_H2O_H

#include "policy/evict_fixed.h"

static inline float evict_fixed_h2o_rank(const struct evict_row *row, float score, int pos, int now)
{
    const int n_slots = (row->budget - row->recent - row->sink) / 2;
    return evict_fixed_has(row, n_slots, pos, now) ? INFINITY : score;
}

#endif
