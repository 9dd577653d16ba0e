/* policy/evict_qhitter.h - keeps tokens with much attention that survive 4-bit storage (Q-Hitter,
 * Zhang et al. 2024, MLSys 6, VITA-Group/Q-Hitter): rank = c (1 - e), c the summed attention, e the
 * error of 4-bit codes: the mean of the errors of key and value, each relative to its norm
 * (kernels/score.h). Differences:
 * - the paper adds c and 1 - e, each scaled to 0..1 between the least and greatest of the cache,
 * which needs a pass over all slots before each choice; a product needs no scaling, and is the
 * attention that the codes keep;
 * - codes are those of sluice's q4, whatever the KV format; q8, q4 and mixed all encode rotated
 * numbers (kernels/kv.h), f32 and bf16 numbers as they are;
 * - half of the budget is recent by default; the paper's code protects none, and a new token, seen
 * by one query, would go at once;
 * - no part of the budget is for the sums alone (7 % of the prompt there). */
#ifndef POLICY_EVICT_QHITTER_H
#define POLICY_EVICT_QHITTER_H

#include "policy/evict_rule.h"

#define EVICT_RULE_QHITTER(X)                                                                      \
    X(QHITTER, "qhitter", "little summed attention, and much lost when stored in 4 bits",          \
      evict_rank_score, EVICT_WEIGHTS, INT32_MAX, 1, 0, 0, EVICT_CODES_LEFT, 4, 0.5, HEAD)

#endif
