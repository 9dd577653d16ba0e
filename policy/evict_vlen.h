/* policy/evict_vlen.h - summed attention times the norm of the slot's value: what a slot has added
 * to outputs (VATP, Guo et al. 2024, arXiv 2406.12335, with the l1 norm; h2o-vlen of
 * awslabs/keys_values with the l2 norm, as here). A token with much attention but almost no value,
 * such as a text's first tokens, would be cheap to lose by this score, so the sink is protected.
 * The norm is of the value before the KV format rounds it. Under scope layer the products are
 * summed. */
#ifndef POLICY_EVICT_VLEN_H
#define POLICY_EVICT_VLEN_H

#include "policy/evict_rule.h"

#define EVICT_RULE_VLEN(X)                                                                         \
    X(VLEN, "vlen", "the least summed attention times the norm of the value", evict_rank_score,    \
      EVICT_WEIGHTS, INT32_MAX, 1, 0, 0, EVICT_VALUE_NORM, 4, 0.5, HEAD)

#endif
