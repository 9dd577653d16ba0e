/* policy/evict_tova.h - the weight of the last query alone, summed over all heads (TOVA, Oren et
 * al. 2024, arXiv 2401.06104). The paper keeps one set per layer: scope layer is the default here.
 * The paper protects nothing; here the new token stays for a step (recent 1), since under scope
 * head a query may give itself little weight. */
#ifndef POLICY_EVICT_TOVA_H
#define POLICY_EVICT_TOVA_H

#include "policy/evict_rule.h"

#define EVICT_RULE_TOVA(X)                                                                         \
    X(TOVA, "tova", "the least attention of the last query", evict_rank_score, EVICT_WEIGHTS, 1,   \
      0, 0, 0, EVICT_NO_TRAIT, 0, 1, LAYER)

#endif
