/* policy/evict.c - see evict.h: names, and the resolution of fractions for one row. */
#include "policy/evict.h"

#include "kernels/base/limits.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name, *goes;
} policies[] = {
#define EVICT_WORDS(NAME, name, goes, ...) {name, goes},
    EVICT_POLICIES(EVICT_WORDS)
#undef EVICT_WORDS
};

const char *evict_policy_name(int policy)
{
    return policies[policy].name;
}

const char *evict_policy_goes(int policy)
{
    return policies[policy].goes;
}

int evict_policy_by_name(const char *name)
{
    int policy = 0;
    while (policy < N_EVICT_POLICIES && strcmp(policies[policy].name, name) != 0)
        policy++;
    return policy;
}

/* The default of `recent`. */
static int default_recent(int policy, const struct evict_row *row)
{
    const double recent = evict_rule_of(policy).recent;
    int rest = row->budget - row->sink;
    if (recent < 1)
        return (int)floor(recent * row->budget);
    return recent < rest ? (int)recent : rest;
}

static int row_init(const struct evict *e, int64_t n_prompt, int64_t n_max, struct evict_row *row)
{
    if (e->policy == EVICT_FULL) {
        *row = (struct evict_row){.budget = INT32_MAX, .recent = INT32_MAX, .sink = 0};
        return 0;
    }
    const int64_t n_tokens = n_prompt + n_max, of = e->budget_of_prompt ? n_prompt : n_tokens;
    double budget = e->budget_is_fraction ? ceil(e->budget * (double)of) : e->budget;
    if (e->budget_is_fraction && budget < PAGE_SLOTS)
        budget = PAGE_SLOTS;
    if (budget > INT32_MAX)
        budget = INT32_MAX;
    row->budget = (int)budget;
    row->sink = e->sink >= 0 ? e->sink : evict_rule_of(e->policy).sink;
    if (!e->recent_set)
        row->recent = default_recent(e->policy, row);
    else if (e->recent_is_fraction)
        row->recent = (int)floor(e->recent * row->budget);
    else
        row->recent = (int)e->recent;
    if (row->recent < 0 || (int64_t)row->recent + row->sink > row->budget)
        return row->budget >= n_tokens ? 0 : -1;
    return 0;
}

int evict_row_init(const struct evict *e, int64_t n_prompt, int64_t n_max, struct evict_row *row)
{
    struct evict rule;
    const int bad = row_init(e, n_prompt, n_max, row);
    struct evict_row most = *row;
    evict_share(&most, evict_kind(e, KV_MOST).share);
    evict_in_kind(e, &most, KV_MOST, &rule, row);
    return bad;
}

int64_t evict_tokens_max(const struct evict *e, int64_t context)
{
    const double share = evict_kind(e, KV_MOST).share, budget = share * e->budget;
    const double slots = e->budget_is_fraction ? share * PAGE_SLOTS : budget;
    if (e->positions != EVICT_POSITIONS_SLOT || slots >= (double)context)
        return context;
    if (e->budget_is_fraction && e->budget_of_prompt) // a prompt is within the context
        return budget < 1 ? EVICT_TOKENS_MAX : context;
    if (!e->budget_is_fraction || budget * EVICT_TOKENS_MAX < (double)context - 1)
        return EVICT_TOKENS_MAX;
    const double n = floor(((double)context - 1) / budget);
    return (int64_t)n - (ceil(budget * n) >= (double)context); // products are rounded, too
}

int64_t evict_slots_max(const struct evict *e, int kind, int64_t n_prompt, int64_t n_max)
{
    int64_t n_tokens = n_prompt + n_max;
    struct evict rule;
    struct evict_row row;
    if (evict_kind(e, kind).state > 0)
        return evict_kind(e, kind).state;
    if (e->simulate || evict_row_init(e, n_prompt, n_max, &row) != 0)
        return n_tokens;
    evict_in_kind(e, &row, kind, &rule, &row);
    return row.budget < n_tokens ? row.budget : n_tokens;
}
