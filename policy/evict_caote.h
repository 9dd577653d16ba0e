/* policy/evict_caote.h - what the output of attention changes least without (CAOTE, Goel et al.
 * 2025, arXiv 2504.14051): without slot j, and its weight a shared out to the others, an output o
 * moves by a / (1 - a) times |o - v_j|, in closed form. The mean value stands in o's place, as in
 * the paper's FastCAOTE. Differences:
 * - a is no one query's: weights decay by 0.98 with each query, as ema's do, and their mean over
 * these and over a KV head's queries counts, so that one position speaks for its group; the paper
 * makes weights of another policy's scores by norming these over the cache;
 * - the mean value is of all tokens up to the slot's arrival (of a prompt's, the whole prompt),
 *   evicted ones too, and the distance is made once; there both are of the cache, anew at every
 * step;
 * - a counts as no more than 1 - 2^-10, beyond which nothing is left to share;
 * - a sink of four and half of the budget are protected by default.
 * Under scope layer what outputs lose is summed over KV heads. */
#ifndef POLICY_EVICT_CAOTE_H
#define POLICY_EVICT_CAOTE_H

#include "policy/evict_row.h"

#define EVICT_CAOTE_SCORE EVICT_WEIGHTS, INT32_MAX, 0.98f, 0, 0, EVICT_VALUE_APART

static inline float evict_caote_rank(const struct evict_row *row, float score, int pos, int now)
{
    (void)row;
    (void)pos;
    (void)now;
    return score;
}

#endif
