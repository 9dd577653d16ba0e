/* policy/evict_h2o_mean.h - accumulated score divided by the number of queries that could see the
 * slot, now - pos + 1, which removes the head start of early tokens. */
#ifndef POLICY_EVICT_H2O_MEAN_H
#define POLICY_EVICT_H2O_MEAN_H

#include "policy/evict_rule.h"

static inline float evict_h2o_mean_rank(const struct evict_row *row, float score, int pos, int now)
{
    (void)row;
    return score / (float)(now - pos + 1);
}

#define EVICT_RULE_H2O_MEAN(X)                                                                     \
    X(H2O_MEAN, "h2o-mean", "the least mean attention", evict_h2o_mean_rank, EVICT_SCORE_SUM, 4,   \
      0.5, HEAD)

#endif
