/* policy/evict_scissorhands.h - how many of the last 32 queries gave the slot at least their mean,
 * 1/t for the t-th token (Scissorhands, Liu et al. 2023, arXiv 2305.17118, which counts how often
 * it was less in a window of up to 400). The 32 answers are the bits of the score, so that a slot
 * costs what it costs under h2o. The paper asks every head for itself and drops many slots at a
 * time; here a group of query heads has one answer, about their mean weight, and one slot goes a
 * token. The newest 32 stay by default: who is judged has been asked as often as the others. */
#ifndef POLICY_EVICT_SCISSORHANDS_H
#define POLICY_EVICT_SCISSORHANDS_H

#include "policy/evict_row.h"

#define EVICT_SCISSORHANDS_WINDOW 32
#define EVICT_SCISSORHANDS_SCORE  EVICT_HITS, EVICT_SCISSORHANDS_WINDOW, 1, 0, 0, EVICT_NO_TRAIT

static inline float evict_scissorhands_rank(const struct evict_row *row, float score, int pos,
                                            int now)
{
    (void)row;
    (void)pos;
    (void)now;
    return score;
}

#endif
