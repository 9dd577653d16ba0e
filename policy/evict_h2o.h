/* policy/evict_h2o.h - the paper's rule: rank = accumulated attention score (arXiv 2306.14048, eq.
 * 3). */
#ifndef POLICY_EVICT_H2O_H
#define POLICY_EVICT_H2O_H

#include "policy/evict_row.h"

static inline float evict_h2o_rank(const struct evict_row *row, float score, int pos, int now)
{
    (void)row;
    (void)pos;
    (void)now;
    return score;
}

#endif
