/* policy/evict_rule.h - the contract of an eviction policy: a policy's rule, as data and a rank.
 *
 * policy/evict_x.h has the whole rule of policy x: EVICT_RULE_X(X), one row of X for the list in
 * policy/evict.h, and, where the row needs one of its own, a rank function. CPU and CUDA compile
 * the same file. A row is X(NAME, name, what goes first in words, rank function, source, sink,
 * recent, scope).
 *
 * Score: f32, of a slot and KV head. A query's weight on a slot is summed over the query heads of
 * the KV head. The score is the sum of these weights over queries: a prompt counts its last `last`
 * queries, and each query multiplies the score so far by `keep` (1: a sum; 0: the last query's
 * weight). Kept number: one f32 a slot, made of key and value when the token is stored, by which
 * the score is multiplied; no byte where the rule has none. Rank: made of the row's limits, score
 * times kept number (summed over KV heads under scope layer), position and newest position; the
 * lowest rank goes first. A policy reads nothing else. */
#ifndef POLICY_EVICT_RULE_H
#define POLICY_EVICT_RULE_H

#include <math.h>
#include <stdint.h>

#include "policy/evict_row.h"

enum evict_source {
    EVICT_NO_SCORE, // none: the rank is made of positions
    EVICT_WEIGHTS,  // attention weights
    EVICT_GAPPED,   // the same; a token does not see the token that has just left the recent ones
    EVICT_EACH      // the weights of each query by itself: evict_scissorhands.h
};

/* The kept number. */
enum evict_trait {
    EVICT_NO_TRAIT,
    EVICT_VALUE_NORM, // the norm of the value
    EVICT_CODES_LEFT  // the share of key and value that codes of four bits leave
};

enum evict_scope { EVICT_SCOPE_HEAD, EVICT_SCOPE_LAYER };

#define EVICT_REST INT32_MAX // recent: what the sink leaves of the budget

struct evict_rule {
    int source;    // enum evict_source
    int last;      // of a prompt so many of its last queries count
    float keep;    // what is left of a score when the next query's weight is added
    int frozen;    // 1: decode leaves scores as the prompt has made them
    int pool;      // behind a prompt a score is the greatest of so many neighbours' on either side
    int trait;     // enum evict_trait
    int sink;      // defaults: first positions protected,
    double recent; // last positions protected: below 1 a fraction of the budget, else slots, as
                   // many as the sink leaves
    int scope;     // enum evict_scope
};

/* Sources that more than one policy has: the first six numbers of a rule. */
#define EVICT_SCORE_NONE EVICT_NO_SCORE, 0, 1, 0, 0, EVICT_NO_TRAIT
#define EVICT_SCORE_SUM  EVICT_WEIGHTS, INT32_MAX, 1, 0, 0, EVICT_NO_TRAIT

/* Ranks that more than one policy has: the oldest goes first; the lowest score does. */
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

/* What the weights of a prompt's query are worth: keep to the power of the queries after it. */
static inline float evict_query_worth(const struct evict_rule *r, int query, int n_prompt)
{
    float worth = 1, power = r->keep;
    if (query < evict_first_query(r, n_prompt))
        return 0;
    for (int after = n_prompt - 1 - query; after > 0; after >>= 1, power *= power)
        worth *= after & 1 ? power : 1;
    return worth;
}

/* The score of a position behind its prompt. scores [n_prompt]: as the queries have made them. */
static inline float evict_score_pooled(const struct evict_rule *r, const float *scores, int pos,
                                       int n_prompt)
{
    float most = scores[pos];
    for (int i = pos > r->pool ? pos - r->pool : 0; i <= pos + r->pool && i < n_prompt; i++)
        most = scores[i] > most ? scores[i] : most;
    return most;
}

#endif
