/* policy/evict_h2o.h - H2O's rule: rank = accumulated attention score (arXiv 2306.14048, eq. 3). */
#ifndef POLICY_EVICT_H2O_H
#define POLICY_EVICT_H2O_H

#include "policy/evict_rule.h"

#define EVICT_RULE_H2O(X)                                                                          \
    X(H2O, "h2o", "the least summed attention", evict_rank_score, EVICT_SCORE_SUM, 0, 0.5, HEAD)   \
    X(HEAVY, "heavy", "the least summed attention; the newest token stays", evict_rank_score,      \
      EVICT_SCORE_SUM, 0, 1, HEAD)

#endif
