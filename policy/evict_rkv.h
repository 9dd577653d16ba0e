/* policy/evict_rkv.h - what has been looked at of late, and whose key is unlike the others (R-KV,
 * Cai et al. 2025, arXiv 2505.24133): rank = 0.1 c + 0.9 (1 - r), with c the attention decayed by 7
 * / 8 with each query, about the paper's last eight, and r the cosine of the key with the sum of
 * all unit keys, each as its share of the way from the least of the head's slots to the greatest
 * (struct evict_view). Redundancy there is a key's mean cosine with all others, and a mean of
 * products is the product with the mean: no pair is ever compared, so that n tokens cost n, not
 * n^2. Differences:
 * - the paper sets cosines below a threshold to 0, spares of each group of alike keys the newest,
 * and has a softmax over what is left; here all cosines count as they are, the key's own with them,
 * and the newest are spared by `recent` (half of the budget) alone;
 * - a mean cosine is of all tokens up to the slot's arrival (of a prompt's, the whole prompt),
 * evicted ones too, made once and divided by how far these agree; there it is of the cache, anew
 * for every buffer of 128 tokens;
 * - scores are summed over a KV head's queries, and not pooled over neighbours. */
#ifndef POLICY_EVICT_RKV_H
#define POLICY_EVICT_RKV_H

#include "policy/evict_row.h"

#define EVICT_RKV_SCORE EVICT_WEIGHTS, INT32_MAX, 0.875f, 0, 0, EVICT_KEY_ALIKE

static inline float evict_rkv_rank(const struct evict_row *row, float score, int pos, int now)
{
    (void)row;
    (void)pos;
    (void)now;
    return score;
}

#endif
