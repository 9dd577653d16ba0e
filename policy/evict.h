/* policy/evict.h - the list of eviction policies. A policy is a rule (policy/evict_rule.h); the
 * mechanism is shared.
 *
 * Every slot has a score. The first `sink` and the last `recent` positions are protected; the
 * unprotected slot with the lowest rank is evicted first, of equal ranks the oldest position.
 * Usable from C and CUDA: plain inline functions on numbers. Rules: policy/README.md, "Eviction".
 * Sources: H2O (Zhang et al. 2023, arXiv 2306.14048), StreamingLLM (Xiao et al. 2023, arXiv
 * 2309.17453). */
#ifndef POLICY_EVICT_H
#define POLICY_EVICT_H

#include <stddef.h>
#include <stdint.h>

#include "policy/evict_row.h"
#include "policy/evict_rule.h"
#include "policy/kv_kinds.h"

#include "policy/evict_ema.h"
#include "policy/evict_fixed.h"
#include "policy/evict_fixed_h2o.h"
#include "policy/evict_h2o.h"
#include "policy/evict_h2o_hf.h"
#include "policy/evict_h2o_mean.h"
#include "policy/evict_qhitter.h"
#include "policy/evict_scissorhands.h"
#include "policy/evict_snapkv.h"
#include "policy/evict_streaming.h"
#include "policy/evict_strided.h"
#include "policy/evict_strided_h2o.h"
#include "policy/evict_tova.h"
#include "policy/evict_vlen.h"
#include "policy/evict_window.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What keys are rotated by under decode's rule: their positions, or their ranks among the slots of
 * their head (0: the oldest), so that no position exceeds the budget, however long the row. */
enum evict_positions { EVICT_POSITIONS_TRUE, EVICT_POSITIONS_SLOT };

/* The list of policies. To add one: write policy/evict_x.h (see policy/evict_rule.h), include it
 * above, add its row here. */
#define EVICT_POLICIES(X)                                                                          \
    EVICT_RULE_WINDOW(X)                                                                           \
    EVICT_RULE_STREAMING(X)                                                                        \
    EVICT_RULE_H2O(X)                                                                              \
    EVICT_RULE_H2O_MEAN(X)                                                                         \
    EVICT_RULE_H2O_HF(X)                                                                           \
    EVICT_RULE_EMA(X)                                                                              \
    EVICT_RULE_TOVA(X)                                                                             \
    EVICT_RULE_SNAPKV(X)                                                                           \
    EVICT_RULE_SCISSORHANDS(X)                                                                     \
    EVICT_RULE_VLEN(X)                                                                             \
    EVICT_RULE_QHITTER(X)                                                                          \
    EVICT_RULE_STRIDED(X)                                                                          \
    EVICT_RULE_STRIDED_H2O(X)                                                                      \
    EVICT_RULE_FIXED(X)                                                                            \
    EVICT_RULE_FIXED_H2O(X)

enum evict_policy {
#define EVICT_ENUM(NAME, ...) EVICT_##NAME,
    EVICT_POLICIES(EVICT_ENUM)
#undef EVICT_ENUM
        N_EVICT_POLICIES
};

/* "full|window|...", for help and errors. */
#define EVICT_BAR_NAME(NAME, name, ...) "|" name
#define EVICT_NAMES                     (&(EVICT_POLICIES(EVICT_BAR_NAME))[1])

/* What the user asked for, one for the whole run. */
struct evict {
    int policy;    // enum evict_policy
    int scope;     // enum evict_scope
    int simulate;  // 1: keep everything, mask what would be evicted
    int positions; // enum evict_positions
    double budget; // slots when >= 1 and budget_is_fraction is 0
    int budget_is_fraction;
    int budget_of_prompt; // 1: a fraction of the prompt; 0: of prompt + max_tokens
    double recent;        // slots, or a fraction of the row's budget
    int recent_is_fraction;
    int sink;                     // slots; -1: the policy's default
    int recent_set;               // 0: the policy's default
    const struct kv_kinds *kinds; // borrowed: kinds of the model's layers; NULL: all alike
};

/* Resolves budget, recent and sink for a row of n_prompt + n_max tokens (rule 3 in
 * policy/README.md) in layers of kind KV_MOST. Returns 0; -1: sink + recent exceed the budget, and
 * the budget does not hold the whole row. */
int evict_row_init(const struct evict *e, int64_t n_prompt, int64_t n_max, struct evict_row *row);
const char *evict_policy_name(int policy);
const char *evict_policy_goes(int policy);  // what it evicts first, in words
int evict_policy_by_name(const char *name); // N_EVICT_POLICIES when unknown
/* The most slots that a row can hold in a layer of a kind. */
int64_t evict_slots_max(const struct evict *e, int kind, int64_t n_prompt, int64_t n_max);
/* The longest row for a model with context `context`. Where positions are ranks: as long as the
 * budget stays within the context, so any length for a fixed number of slots within it. */
#define EVICT_TOKENS_MAX (1 << 27)
int64_t evict_tokens_max(const struct evict *e, int64_t context);

/* The number of kinds of layers; a kind; the kind of a layer (from 0). */
static inline int evict_kinds(const struct evict *e)
{
    return e->kinds ? e->kinds->n : 1;
}
static inline struct kv_kind evict_kind(const struct evict *e, int kind)
{
    const struct kv_kind alike = {0, 1, 0, 0};
    return e->kinds ? e->kinds->of[kind] : alike;
}
static inline int evict_layer_kind(const struct evict *e, int layer)
{
    return e->kinds ? e->kinds->layer[layer] : KV_MOST;
}

static inline struct evict_rule evict_rule_of(int policy)
{
    switch (policy) {
#define EVICT_RULE(NAME, name, goes, rank, source, last, keep, frozen, pool, trait, sink, recent,  \
                   scope)                                                                          \
    case EVICT_##NAME: {                                                                           \
        const struct evict_rule of = {                                                             \
            source, last, keep, frozen, pool, trait, sink, recent, EVICT_SCOPE_##scope};           \
        return of;                                                                                 \
    }
#define EVICT_RULE_ROW(...) EVICT_RULE(__VA_ARGS__)
        EVICT_POLICIES(EVICT_RULE_ROW)
#undef EVICT_RULE_ROW
#undef EVICT_RULE
    }
    const struct evict_rule none = {EVICT_SCORE_NONE, 0, EVICT_REST, EVICT_SCOPE_HEAD};
    return none;
}

/* 1: the policy ranks by scores, which slots then carry. */
static inline int evict_policy_scores(int policy)
{
    return evict_rule_of(policy).source != EVICT_NO_SCORE;
}

/* 1: scores count the weights of a prompt's queries. */
static inline int evict_prompt_scores(int policy)
{
    const int source = evict_rule_of(policy).source;
    return source == EVICT_WEIGHTS || source == EVICT_GAPPED || source == EVICT_EACH;
}

/* 1: scores also count the weights of every token under decode's rule. */
static inline int evict_decode_scores(int policy)
{
    return evict_prompt_scores(policy) && !evict_rule_of(policy).frozen;
}

/* enum evict_trait: what slots carry besides their score. */
static inline int evict_policy_trait(int policy)
{
    return evict_rule_of(policy).trait;
}

/* The score of a slot after a token at position `now`, whose weight on the slot, summed over the
 * `group` query heads of the KV head, is `weight`. */
static inline float evict_score_next(const struct evict_rule *r, float score, float weight,
                                     int group, int now)
{
    if (r->source == EVICT_EACH)
        return evict_scissorhands_next(score, weight, group, now);
    return fmaf(score, r->keep, weight);
}

/* The value of a slot, of which (alone or summed over KV heads) its rank is computed. */
static inline float evict_score_value(const struct evict_rule *r, float score, float trait)
{
    if (r->source == EVICT_EACH)
        return evict_scissorhands_count(score);
    return r->trait ? score * trait : score;
}

/* Rank of a slot for the query at position `now`: the lowest is evicted first. */
static inline float evict_rank(int policy, const struct evict_row *row, float score, int pos,
                               int now)
{
    switch (policy) {
#define EVICT_RANK(NAME, name, goes, rank, ...)                                                    \
    case EVICT_##NAME:                                                                             \
        return rank(row, score, pos, now);
        EVICT_POLICIES(EVICT_RANK)
#undef EVICT_RANK
    }
    return 0;
}

/* The rank of a new token at position `now`: the slots that its head keeps. */
static inline int evict_rank_new(const struct evict_row *row, int now)
{
    return now < row->budget ? now : row->budget;
}

/* 1 when the position must stay while the newest position is `now`. */
static inline int evict_protected(const struct evict_row *row, int pos, int now)
{
    return pos < row->sink || pos > now - row->recent;
}

/* A position that the token at `now` does not see although its head keeps it; -1: none. */
static inline int evict_hidden(const struct evict_rule *r, const struct evict_row *row, int now)
{
    const int gap = r->source == EVICT_GAPPED && row->recent > 0 && now > row->budget;
    return gap ? now - row->recent : -1;
}

/* KV format mixed: how many of the row's newest tokens are in its ring. They count as slots, and
 * all are protected. */
#define EVICT_RING_MAX 64
static inline int evict_ring_slots(const struct evict_row *row)
{
    int n = row->recent < EVICT_RING_MAX ? row->recent : EVICT_RING_MAX;
    n = n < row->budget - row->sink ? n : row->budget - row->sink;
    return n > 0 ? n : 0;
}

/* The limits by which a row's prompt is cut. With frozen scores (made of the prompt alone) `recent`
 * is what decode keeps of its own tokens, which have no score; of the prompt only as many tokens
 * are protected as there are queries in the scores, or slots in the ring. */
static inline struct evict_row evict_behind_prompt(int policy, const struct evict_row *row,
                                                   int ring_slots)
{
    const struct evict_rule rule = evict_rule_of(policy);
    const int least = rule.last > ring_slots ? rule.last : ring_slots;
    struct evict_row limits = *row;
    if (rule.frozen && limits.recent > least)
        limits.recent = least;
    return limits;
}

/* Ring slots in use after n tokens. */
static inline int evict_ring_used(int ring_slots, int n)
{
    return n < ring_slots ? n : ring_slots;
}

/* Page slots in use after n more tokens of a row that had n_done: what the budget holds, minus the
 * ring. */
static inline int evict_slots_after(const struct evict *e, const struct evict_row *row,
                                    int ring_slots, int n_slots, int n_done, int n)
{
    int64_t slots = (int64_t)n_slots + evict_ring_used(ring_slots, n_done) + n;
    if (!e->simulate && slots > row->budget)
        slots = row->budget;
    return (int)slots - evict_ring_used(ring_slots, n_done + n);
}

/* Scales a row's budget by `share`. Protected slots stay and the share applies to the rest; a
 * policy whose slots are all protected (recent is all but the sink) scales `recent`. Rounded down,
 * so that layers together hold no more than asked. */
static inline void evict_share(struct evict_row *row, double share)
{
    const int all_recent = row->sink + row->recent == row->budget;
    const int kept = row->sink + (all_recent ? 0 : row->recent);
    if (row->budget == INT32_MAX || row->budget < kept)
        return;
    const double budget = kept + share * (row->budget - kept) + 1e-6; // shares are rounded, too
    row->budget = budget < 1 ? 1 : budget < INT32_MAX ? (int)budget : INT32_MAX;
    row->recent = all_recent ? row->budget - row->sink : row->recent;
}

/* The rule of layers of a kind, for a row from evict_row_init(). A layer with an attention window
 * of W tokens always evicts by age: it keeps its newest W - 1 slots (or the run's budget if that is
 * smaller), and a new token sees these and itself. A row state is not evicted from. */
static inline void evict_in_kind(const struct evict *e, const struct evict_row *row, int kind,
                                 struct evict *kind_e, struct evict_row *kind_row)
{
    const struct kv_kind of = evict_kind(e, kind);
    *kind_e = *e;
    kind_e->kinds = NULL; // all layers of a kind are alike
    *kind_row = *row;
    evict_share(kind_row, of.share / evict_kind(e, KV_MOST).share);
    if (of.state > 0)
        kind_e->policy = EVICT_FULL;
    if (of.window <= 0)
        return;
    kind_e->policy = EVICT_WINDOW;
    kind_row->budget = kind_row->budget < of.window - 1 ? kind_row->budget : of.window - 1;
    kind_row->recent = kind_row->budget;
    kind_row->sink = 0;
}

/* 1: rows in a layer of this kind evict by age alone, so they overwrite their slots in turn. */
static inline int evict_in_turn(const struct evict *e, int kind)
{
    int by_age =
        e->policy == EVICT_FULL || e->policy == EVICT_WINDOW || e->policy == EVICT_STREAMING;
    return evict_kind(e, kind).window > 0 || by_age;
}

/* For a row that evicts in turn, with `slots` page slots: the slot that its token at position pos
 * overwrites. The first one is just after the sink, also after a prompt longer than the budget.
 * n_prompt: tokens of its prompt. */
static inline int evict_turn(const struct evict_row *row, int slots, int n_prompt, int pos)
{
    int first = n_prompt > row->budget ? n_prompt : row->budget;
    return row->sink + (pos - first) % (slots - row->sink);
}

/* Of the first `full` pages of such a row, those that n tokens from position pos on overwrite. */
static inline int evict_turn_pages(const struct evict_row *row, int slots, int n_prompt, int pos,
                                   int n, int full)
{
    int skip = row->budget - pos > 0 ? row->budget - pos : 0; // these tokens need no victim
    int cycle = slots - row->sink, pages = 0;
    if (n <= skip || cycle <= 0)
        return 0;
    int start = evict_turn(row, slots, n_prompt, pos + skip);
    for (int page = row->sink / 32; page < full; page++) {
        int first = page * 32 > row->sink ? page * 32 : row->sink;
        int behind = (first - start + cycle) % cycle; // tokens until this page is reached
        pages += behind < n - skip || behind + page * 32 + 32 - first > cycle;
    }
    return pages;
}

/* 1 when slot (rank_a, pos_a) is evicted before slot (rank_b, pos_b). A NaN rank is first. */
static inline int evict_before(float rank_a, int pos_a, float rank_b, int pos_b)
{
    if (rank_a != rank_a || rank_b != rank_b)
        return rank_b == rank_b || (rank_a != rank_a && pos_a < pos_b);
    return rank_a < rank_b || (rank_a == rank_b && pos_a < pos_b);
}

#ifdef __cplusplus
}
#endif

#endif
