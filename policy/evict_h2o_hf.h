/* policy/evict_h2o_hf.h - h2o as in H2O's own simulation (h2o_hf/utils_hh of FMInference/H2O, which
 * masks a full cache). A token does not see the token that has just left the window, at its own
 * position - recent, and adds nothing to that token's score. The token is hidden for this step
 * only; the step's choice of a victim includes it again. With a budget of H + R slots, R of them
 * recent, a query sees H heavy slots, R - 1 recent ones and itself. As there, budgets are int(ratio
 * * prompt) with --kv-budget-of prompt, and nothing is masked until a row is longer than its
 * budget. Differences:
 * - an evicted token is gone; there it stays a candidate with score 0, and may return if fewer than
 * H scores are above 0;
 * - with recent 0 no token is hidden; there all scores are kept, and a token does not see itself;
 * - a KV head has one score, the sum over its query heads; there each query head chooses for itself
 * (the same for models with one KV head per query head, the only ones that it supports);
 * - scores are f32; there they are rounded to the model's format at every step. */
#ifndef POLICY_EVICT_H2O_HF_H
#define POLICY_EVICT_H2O_HF_H

#include "policy/evict_rule.h"

#define EVICT_RULE_H2O_HF(X)                                                                       \
    X(H2O_HF, "h2o-hf", "the least summed attention, as H2O's scripts count it", evict_rank_score, \
      EVICT_GAPPED, INT32_MAX, 1, 0, 0, EVICT_NO_TRAIT, 0, 0.5, HEAD)

#endif
