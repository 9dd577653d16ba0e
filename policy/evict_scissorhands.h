/* policy/evict_scissorhands.h - how many of the last 32 queries gave the slot at least their mean
 * weight, 1/t for the t-th token (Scissorhands, Liu et al. 2023, arXiv 2305.17118, which counts how
 * often it was less in a window of up to 400). The 32 answers are the bits of the score, so that a
 * slot costs as much as under h2o. The paper judges each head and drops many slots at a time; here
 * a group of query heads gives one answer, for its mean weight, and each token evicts one slot. The
 * newest 32 stay by default, so that every judged slot has had all 32 queries. */
#ifndef POLICY_EVICT_SCISSORHANDS_H
#define POLICY_EVICT_SCISSORHANDS_H

#include "policy/evict_rule.h"

#define EVICT_SCISSORHANDS_WINDOW 32

/* The score's bits; the last query's is the lowest. */
static inline uint32_t evict_scissorhands_bits(float score)
{
    const union {
        float f;
        uint32_t u;
    } bits = {score};
    return bits.u;
}

/* The score after n more queries; later: their bits. */
static inline float evict_scissorhands_join(float score, float later, int n)
{
    union {
        float f;
        uint32_t u;
    } bits = {score};
    bits.u = (n < 32 ? bits.u << n : 0) | evict_scissorhands_bits(later);
    return bits.f;
}

/* The score after the query at position `now`, whose weight on the slot, summed over `group` query
 * heads, is `weight`. */
static inline float evict_scissorhands_next(float score, float weight, int group, int now)
{
    const union {
        uint32_t u;
        float f;
    } hit = {weight * (float)(now + 1) >= (float)group};
    return evict_scissorhands_join(score, hit.f, 1);
}

/* How many queries answered yes. */
static inline float evict_scissorhands_count(float score)
{
    uint32_t n = evict_scissorhands_bits(score);
    n -= n >> 1 & 0x55555555;
    n = (n & 0x33333333) + (n >> 2 & 0x33333333);
    n = (n + (n >> 4)) & 0x0f0f0f0f;
    return (float)(n * 0x01010101 >> 24);
}

#define EVICT_RULE_SCISSORHANDS(X)                                                                 \
    X(SCISSORHANDS, "scissorhands",                                                                \
      "what the fewest of the last 32 queries gave their mean attention", evict_rank_score,        \
      EVICT_EACH, EVICT_SCISSORHANDS_WINDOW, 1, 0, 0, EVICT_NO_TRAIT, 0,                           \
      EVICT_SCISSORHANDS_WINDOW, HEAD)

#endif
