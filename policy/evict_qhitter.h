/* policy/evict_qhitter.h - what is looked at much, and what survives few bits (Q-Hitter, Zhang et
 * al. 2024, MLSys 6, VITA-Group/Q-Hitter): rank = c (1 - e), with c the summed attention and e what
 * codes of four bits lose: the mean of the errors of key and value, each relative to its norm
 * (kernels/score.h). Differences:
 * - the paper adds c and 1 - e, each as its share of the way from the least to the greatest of the
 *   cache, for which every step would look at all slots before it chooses; a product needs neither
 *   end and is the attention that the codes leave;
 * - codes are those of this engine's q4, whatever the KV format is: a format changes no choice by
 *   itself;
 * - half of the budget is recent by default, where the paper's code has none: who has just come
 *   would go, having been looked at once;
 * - no part of the budget is for the sums alone (7 % of the prompt there). */
#ifndef POLICY_EVICT_QHITTER_H
#define POLICY_EVICT_QHITTER_H

#include "policy/evict_rule.h"

#define EVICT_RULE_QHITTER(X)                                                                      \
    X(QHITTER, "qhitter", "little summed attention, and much lost when stored in 4 bits",          \
      evict_rank_score, EVICT_WEIGHTS, INT32_MAX, 1, 0, 0, EVICT_CODES_LEFT, 4, 0.5, HEAD)

#endif
