/* policy/evict_ema.h - a decaying sum: c = d c + p for every query, prompts included, d = 0.98, so
 * that a weight counts half after 34 queries. h2o's sum (arXiv 2306.14048) never forgets the high
 * early weights of a prompt's first tokens and keeps them in a long answer; here the last hundred
 * queries decide. Not from a paper: ports of H2O have such an average with d to choose. With a
 * budget of 128, 0.9 forgets too fast and 0.995 too slowly (SmolLM2-135M). A query worth less than
 * 2^-59, 2,048 before the prompt's end, does not count. */
#ifndef POLICY_EVICT_EMA_H
#define POLICY_EVICT_EMA_H

#include "policy/evict_rule.h"

#define EVICT_RULE_EMA(X)                                                                          \
    X(EMA, "ema", "the least attention, recent queries counting most", evict_rank_score,           \
      EVICT_WEIGHTS, 2048, 0.98f, 0, 0, EVICT_NO_TRAIT, 4, 0.5, HEAD)

#endif
