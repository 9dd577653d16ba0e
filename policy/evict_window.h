/* policy/evict_window.h - no score: evicts the oldest slot. */
#ifndef POLICY_EVICT_WINDOW_H
#define POLICY_EVICT_WINDOW_H

#include "policy/evict_rule.h"

#define EVICT_RULE_WINDOW(X)                                                                       \
    X(FULL, "full", "nothing", evict_rank_age, EVICT_SCORE_NONE, 0, EVICT_REST, HEAD)              \
    X(WINDOW, "window", "the oldest", evict_rank_age, EVICT_SCORE_NONE, 0, EVICT_REST, HEAD)

#endif
