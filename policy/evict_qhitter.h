/* policy/evict_qhitter.h - what is looked at much, and what survives few bits (Q-Hitter, Zhang et
 * al. 2024, MLSys 6, VITA-Group/Q-Hitter): rank = c / 2 + (1 - e) / 2, with c the summed attention
 * and e what codes of four bits lose of key and value, each as its share of the way from the
 * least of the head's slots to the greatest (struct evict_view). Differences:
 * - e is one number, the error of the key and that of the value, each relative to its own norm
 *   (kernels/score.h); the paper adds up two shares of absolute errors. Codes are those of this
 *   engine's q4, whatever the KV format is: a format changes no choice by itself;
 * - shares are of a KV head's own slots, where the paper's errors are held against all heads';
 * - half of the budget is recent by default, where the paper's code has none: who has just come
 *   would go, having been looked at once;
 * - no part of the budget is for the sums alone (7 % of the prompt there). */
#ifndef POLICY_EVICT_QHITTER_H
#define POLICY_EVICT_QHITTER_H

#include "policy/evict_row.h"

#define EVICT_QHITTER_SCORE EVICT_WEIGHTS, INT32_MAX, 1, 0, 0, EVICT_QUANT_ERROR

static inline float evict_qhitter_rank(const struct evict_row *row, float score, int pos, int now)
{
    (void)row;
    (void)pos;
    (void)now;
    return score;
}

#endif
