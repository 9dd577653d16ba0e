/* policy/evict_h2o_hf.h - h2o as H2O's own simulation has it (h2o_hf/utils_hh of FMInference/H2O,
 * by masks over a full cache): a token does not see the one that has just left the window, at its
 * position - recent, and adds nothing to that one's score. It is masked for this step alone; the
 * step's choice of a victim knows it again. Of a budget of H + R slots with R recent a query sees H
 * heavy ones, R - 1 recent ones and itself. There budgets are int(ratio * prompt)
 * (--kv-budget-of prompt) and nothing is masked before a row has more tokens than them, as here.
 * Differences:
 * - who is gone is gone: there it stays a candidate with a score of 0, and may return where fewer
 *   than H scores are above that;
 * - with recent 0 nobody is hidden: there scores of all are kept, and a token does not see itself;
 * - a KV head has one score, the sum over its query heads: there each of these has its own choice
 *   (of models with a KV head for each, which are all that it knows, that is the same);
 * - scores are f32: there they are rounded to the model's format at every step. */
#ifndef POLICY_EVICT_H2O_HF_H
#define POLICY_EVICT_H2O_HF_H

#include "policy/evict_rule.h"

#define EVICT_RULE_H2O_HF(X)                                                                       \
    X(H2O_HF, "h2o-hf", "the least summed attention, as H2O's scripts count it", evict_rank_score, \
      EVICT_GAPPED, INT32_MAX, 1, 0, 0, EVICT_NO_TRAIT, 0, 0.5, HEAD)

#endif
