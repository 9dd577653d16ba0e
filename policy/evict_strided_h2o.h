/* policy/evict_strided_h2o.h - strided with heavy hitters (H2O, Zhang et al. 2023, arXiv
 * 2306.14048, combines them with Sparse Transformers): half of the slots that are not recent are
 * for the pattern, the rest for the greatest sums of attention. */
#ifndef POLICY_EVICT_STRIDED_H2O_H
#define POLICY_EVICT_STRIDED_H2O_H

#include "policy/evict_strided.h"

static inline float evict_strided_h2o_rank(const struct evict_row *row, float score, int pos,
                                           int now)
{
    const int n_slots = (row->budget - row->recent - row->sink) / 2;
    return evict_strided_has(row, n_slots, pos, now) ? INFINITY : score;
}

#define EVICT_RULE_STRIDED_H2O(X)                                                                  \
    X(STRIDED_H2O, "strided-h2o", "the least summed attention, but every s-th token stays",        \
      evict_strided_h2o_rank, EVICT_SCORE_SUM, 0, 0.5, HEAD)

#endif
