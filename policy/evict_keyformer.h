/* policy/evict_keyformer.h - summed attention under noise (Keyformer, Adnan et al. 2024, arXiv
 * 2403.09054): a token under decode's rule adds softmax((logit + g) / tau) to the scores, g Gumbel
 * noise, so that who has gone out of sight for a while is not the first to go; tau grows by 0.01 a
 * token from 1 to 2. What it adds is made of its attention weights a, since
 * softmax((logit + g) / tau) is exp((log a + g) / tau) made to sum up to 1 over the slots and the
 * token itself (without a sink of the model's, which no slot has). Differences:
 * - where query heads share a KV head, a is what they give a slot together, and the sum is their
 *   number: the paper's noise comes to the logits of each, before the group is added up. A slot
 *   is evicted for the whole group, so it is the group's score that the noise is to spread, at the
 *   price of one query head;
 * - a prompt's queries add their weights as they are: noise would need a sum of its own for each;
 * - the noise is a function of the two positions and the KV head (kernels/score.h), so that a run
 *   may be repeated, resumed and placed at will; layers and rows share it;
 * - tau ends at 2, where the paper's generation ends. */
#ifndef POLICY_EVICT_KEYFORMER_H
#define POLICY_EVICT_KEYFORMER_H

#include "policy/evict_row.h"

#define EVICT_KEYFORMER_SCORE EVICT_NOISY, INT32_MAX, 1, 0, 0, EVICT_NO_TRAIT
#define EVICT_KEYFORMER_STEPS 100 // until tau has grown to 2

/* 1 / tau of the step-th token behind a prompt, from 0. */
static inline float evict_keyformer_sharpness(int step)
{
    const int steps = step < EVICT_KEYFORMER_STEPS ? step : EVICT_KEYFORMER_STEPS;
    return 1.0f / (1.0f + 0.01f * (float)steps);
}

static inline float evict_keyformer_rank(const struct evict_row *row, float score, int pos, int now)
{
    (void)row;
    (void)pos;
    (void)now;
    return score;
}

#endif
