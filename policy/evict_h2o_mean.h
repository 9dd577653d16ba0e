/* policy/evict_h2o_mean.h - accumulated score divided by the number of queries that could see the
 * slot, now - pos + 1, which takes away the head start of early tokens. */
#ifndef POLICY_EVICT_H2O_MEAN_H
#define POLICY_EVICT_H2O_MEAN_H

#include "policy/evict_row.h"

static inline float evict_h2o_mean_rank(const struct evict_row *row, float score, int pos, int now)
{
    (void)row;
    return score / (float)(now - pos + 1);
}

#endif
