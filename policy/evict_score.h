/* policy/evict_score.h - what attention weights do to the score of a slot: a policy's score mode,
 * as data.
 *
 * A query's weight on a slot is summed over the query heads of a KV head. A prompt's score of a
 * slot is the sum of these over the queries that count, each times what it is worth; a token under
 * decode's rule then keeps `keep` of the score and adds its own weight. Both are one rule: with
 * keep 1 a sum, with less a decayed one, with 0 the last query's weight.
 * Others are no sums: of a query only whether its weight is at least its mean, a bit in the score
 * for each of the last 32.
 * A slot may have a trait beside its score: a number made once, of its key and its value. It is f32
 * where the policy has one, no byte where it has none, and goes wherever the score goes. */
#ifndef POLICY_EVICT_SCORE_H
#define POLICY_EVICT_SCORE_H

#include <math.h>
#include <stdint.h>

enum evict_source {
    EVICT_NO_SCORE, // ranks know positions alone
    EVICT_WEIGHTS,  // attention weights
    EVICT_GAPPED,   // the same, where a token does not see who has just left the window
    EVICT_HITS      // whether they are at least the query's mean: bits, the last query's lowest
};

enum evict_trait {
    EVICT_NO_TRAIT,
    EVICT_VALUE_NORM, // the norm of its value: a score counts times that
    EVICT_CODES_LEFT  // the share of key and value that codes of four bits leave: the same
};

struct evict_score {
    int source;
    int last;   // of a prompt so many of its last queries count
    float keep; // what is left of a score when the next query's weight is added
    int frozen; // 1: decode leaves scores as the prompt has made them
    int pool;   // behind a prompt a score is the greatest of so many neighbours' on either side
    int trait;  // enum evict_trait
};

/* Score modes that more than one policy may have. Others stand in their policy's header. */
#define EVICT_SCORE_NONE EVICT_NO_SCORE, 0, 0, 1, 0, EVICT_NO_TRAIT
#define EVICT_SCORE_SUM  EVICT_WEIGHTS, INT32_MAX, 1, 0, 0, EVICT_NO_TRAIT

/* The first query of a prompt that counts. */
static inline int evict_first_query(const struct evict_score *s, int n_prompt)
{
    return n_prompt > s->last ? n_prompt - s->last : 0;
}

/* What the weights of a prompt's query are worth: keep to the power of the queries after it. */
static inline float evict_query_worth(const struct evict_score *s, int query, int n_prompt)
{
    float worth = 1, power = s->keep;
    if (query < evict_first_query(s, n_prompt))
        return 0;
    for (int after = n_prompt - 1 - query; after > 0; after >>= 1, power *= power)
        worth *= after & 1 ? power : 1;
    return worth;
}

/* The score of a position behind its prompt. scores [n_prompt]: as the queries have made them. */
static inline float evict_score_pooled(const struct evict_score *s, const float *scores, int pos,
                                       int n_prompt)
{
    float most = scores[pos];
    for (int i = pos > s->pool ? pos - s->pool : 0; i <= pos + s->pool && i < n_prompt; i++)
        most = scores[i] > most ? scores[i] : most;
    return most;
}

/* Scores that are bits: `hits` older ones have come in behind those of `score`. */
static inline float evict_hits_shift(float score, int n, uint32_t hits)
{
    union {
        float f;
        uint32_t u;
    } bits = {score};
    bits.u = (n < 32 ? bits.u << n : 0) | hits;
    return bits.f;
}

static inline uint32_t evict_hits(float score)
{
    const union {
        float f;
        uint32_t u;
    } bits = {score};
    return bits.u;
}

/* The score of a slot, `score` so far, behind a token at position `now` whose weight on it, summed
 * over the `group` query heads of its KV head, is `weight`. */
static inline float evict_score_next(const struct evict_score *s, float score, float weight,
                                     int group, int now)
{
    if (s->source == EVICT_HITS)
        return evict_hits_shift(score, 1, weight * (float)(now + 1) >= (float)group);
    return fmaf(score, s->keep, weight);
}

/* What a slot counts, alone and summed over KV heads: its score; of bits how many there are; times
 * its trait, where it has one. */
static inline float evict_score_value(const struct evict_score *s, float score, float trait)
{
    uint32_t n = evict_hits(score);
    if (s->source != EVICT_HITS)
        return s->trait ? score * trait : score;
    n -= n >> 1 & 0x55555555;
    n = (n & 0x33333333) + (n >> 2 & 0x33333333);
    n = (n + (n >> 4)) & 0x0f0f0f0f;
    return (float)(n * 0x01010101 >> 24);
}

#endif
