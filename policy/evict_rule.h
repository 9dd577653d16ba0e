/* policy/evict_rule.h - the contract of an eviction policy: its rule as data and a rank function.
 *
 * policy/evict_x.h holds the whole rule of policy x: EVICT_RULE_X(X), a row of X for the list in
 * policy/evict.h, and a rank function if it needs its own. CPU and CUDA compile the same file. A
 * row is X(NAME, name, what it evicts first in words, rank function, source, sink, recent, scope);
 * "source" is the first six fields of struct evict_rule.
 *
 * Score: f32, per slot and KV head. A query's weight on a slot is summed over the query heads of
 * the KV head, and the score sums these weights over queries: a prompt counts its last `last`
 * queries, and each query first multiplies the score by `keep` (1: a sum; 0: the last query's
 * weight). Trait: one f32 per slot, computed from key and value when the token is stored, which
 * multiplies the score; no storage if the rule has none. Rank: computed from the row's limits,
 * score times trait (summed over KV heads under scope layer), position and newest position; the
 * slot with the lowest rank is evicted first. A policy reads nothing else. */
#ifndef POLICY_EVICT_RULE_H
#define POLICY_EVICT_RULE_H

#include <math.h>
#include <stdint.h>

#include "policy/evict_row.h"

enum evict_source {
    EVICT_NO_SCORE, // the rank depends on positions alone
    EVICT_WEIGHTS,  // attention weights
    EVICT_GAPPED,   // the same; a token does not see the token that has just left the recent window
    EVICT_EACH      // each query's weights by themselves: evict_scissorhands.h
};

/* What else a slot keeps. */
enum evict_trait {
    EVICT_NO_TRAIT,
    EVICT_VALUE_NORM, // the norm of the value
    EVICT_CODES_LEFT  // the share of key and value that 4-bit codes keep
};
/* Under q8, q4 and mixed the traits are those of rotated numbers (kernels/kv.h): a norm is the same
 * up to rounding, the codes' share is another. */

enum evict_scope { EVICT_SCOPE_HEAD, EVICT_SCOPE_LAYER };

#define EVICT_REST INT32_MAX // recent: all of the budget but the sink

struct evict_rule {
    int source; // enum evict_source
    int last;   // so many last queries of a prompt count
    float keep; // factor on a score before the next query's weight is added
    int frozen; // 1: decode leaves scores as the prompt made them
    int pool;   // after a prompt a score becomes the maximum over so many neighbours on either side
    int trait;  // enum evict_trait
    int sink;   // default: first positions protected
    double recent; // default: last positions protected: below 1 a fraction of the budget, else
                   // slots, as far as the sink leaves any
    int scope;     // enum evict_scope
};

/* Sources shared by several policies: the first six fields of a rule. */
#define EVICT_SCORE_NONE EVICT_NO_SCORE, 0, 1, 0, 0, EVICT_NO_TRAIT
#define EVICT_SCORE_SUM  EVICT_WEIGHTS, INT32_MAX, 1, 0, 0, EVICT_NO_TRAIT

/* Ranks shared by several policies: the oldest first; the lowest score first. */
static inline float evict_rank_age(const struct evict_row *row, float score, int pos, int now)
{
    (void)row;
    (void)score;
    (void)pos;
    (void)now;
    return 0;
}
static inline float evict_rank_score(const struct evict_row *row, float score, int pos, int now)
{
    (void)row;
    (void)pos;
    (void)now;
    return score;
}

/* The first query of a prompt that counts. */
static inline int evict_first_query(const struct evict_rule *r, int n_prompt)
{
    return n_prompt > r->last ? n_prompt - r->last : 0;
}

/* Factor on the weights of a prompt's query: keep to the power of the number of later queries. */
static inline float evict_query_worth(const struct evict_rule *r, int query, int n_prompt)
{
    float worth = 1, power = r->keep;
    if (query < evict_first_query(r, n_prompt))
        return 0;
    for (int after = n_prompt - 1 - query; after > 0; after >>= 1, power *= power)
        worth *= after & 1 ? power : 1;
    return worth;
}

/* The score of a position after its prompt. scores [n_prompt]: as the queries made them. */
static inline float evict_score_pooled(const struct evict_rule *r, const float *scores, int pos,
                                       int n_prompt)
{
    float most = scores[pos];
    for (int i = pos > r->pool ? pos - r->pool : 0; i <= pos + r->pool && i < n_prompt; i++)
        most = scores[i] > most ? scores[i] : most;
    return most;
}

#endif
