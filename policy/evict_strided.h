/* policy/evict_strided.h - keeps every s-th position, and the recent ones (the strided pattern of
 * Sparse Transformers, Child et al. 2019, arXiv 1904.10509). The paper's pattern moves with the
 * query at a fixed stride: what one query skips, the next one reads. A cache of fixed size cannot
 * do that. Here the pattern is fixed, and the stride is the least power of two that fits the slots
 * that are not recent: when the text outgrows it, the stride doubles and every other slot goes, so
 * that the slots stay spread over the whole text. */
#ifndef POLICY_EVICT_STRIDED_H
#define POLICY_EVICT_STRIDED_H

#include <math.h>

#include "policy/evict_rule.h"

/* s - 1, s the least power of two above n >= 0. */
static inline int evict_stride_mask(int n)
{
    n |= n >> 1;
    n |= n >> 2;
    n |= n >> 4;
    n |= n >> 8;
    return n | n >> 16;
}

/* 1 when the position is one of at most n_slots of the pattern. */
static inline int evict_strided_has(const struct evict_row *row, int n_slots, int pos, int now)
{
    const int newest = now - row->recent; // newest position that is not recent
    return n_slots > 0 && newest >= 0 && (pos & evict_stride_mask(newest / n_slots)) == 0;
}

static inline float evict_strided_rank(const struct evict_row *row, float score, int pos, int now)
{
    (void)score;
    return evict_strided_has(row, row->budget - row->recent - row->sink, pos, now) ? INFINITY : 0;
}

#define EVICT_RULE_STRIDED(X)                                                                      \
    X(STRIDED, "strided", "the oldest, but every s-th token stays", evict_strided_rank,            \
      EVICT_SCORE_NONE, 0, 0.5, HEAD)

#endif
