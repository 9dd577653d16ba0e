/* policy/evict_snapkv.h - keeps what the prompt's last 16 queries attend to (SnapKV, Li et al.
 * 2024, arXiv 2404.14469): a slot's score is the greatest sum of their weights among the slot and
 * three positions on either side. The paper's window is 32 to 64 queries; 16 found a passage that
 * the prompt's end asks for more often (SmolLM2-135M). Three differences:
 * - scores are per KV head, not per query head, so that a group shares its slots;
 * - pooling covers the whole prompt, including the window's own positions, which stay anyway;
 * - decode keeps the budget, where the paper's cache grows: scores stay as they are, and `recent`
 * (half of the budget) of the newest tokens, which have no score, replace the prompt's lowest
 * slots. When the prompt is cut, only its last 16 are protected, as in the paper. */
#ifndef POLICY_EVICT_SNAPKV_H
#define POLICY_EVICT_SNAPKV_H

#include "policy/evict_rule.h"

#define EVICT_SNAPKV_WINDOW 16

#define EVICT_RULE_SNAPKV(X)                                                                       \
    X(SNAPKV, "snapkv", "generated tokens, then what the prompt's last queries attend to least",   \
      evict_rank_score, EVICT_WEIGHTS, EVICT_SNAPKV_WINDOW, 1, 1, 3, EVICT_NO_TRAIT, 0, 0.5, HEAD)

#endif
