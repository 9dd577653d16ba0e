/* policy/evict_row.h - a run's budget, resolved for one row. */
#ifndef POLICY_EVICT_ROW_H
#define POLICY_EVICT_ROW_H

#include <stdint.h>

struct evict_row {
    int budget; // slots the row may hold per layer and KV head; INT32_MAX: never evicts
    int recent; // last positions protected
    int sink;   // first positions protected
    int prompt; // heads share what a layer has: tokens of the row's prompt; 0: each has its own
    int sure;   // then: slots that each head has in any case
};

/* Heads of a layer that share their budgets (AdaKV, Feng et al. 2024, arXiv 2407.11550): behind a
 * prompt of more tokens than the budget B the K heads have K * B slots together, each the best
 * `sure`, the others whoever ranks highest; none more than this many times B. Pages hold all heads,
 * so a row then has room for as many slots as its greatest head may need; where a head has fewer
 * tokens the others stand empty, masked as a position that no token has. From then on a token makes
 * a victim in each head, which keeps as many as it has. */
#define EVICT_HEAD_MOST 2
#define EVICT_EMPTY     (~(1 << 30))

/* 1: heads of the row hold different numbers of tokens. */
static inline int evict_uneven(const struct evict_row *row)
{
    return row->prompt > row->budget && row->sure < row->budget;
}

/* Slots that a head may have, of its ring and pages. */
static inline int evict_row_slots(const struct evict_row *row)
{
    const int64_t most = (int64_t)EVICT_HEAD_MOST * row->budget;
    if (!evict_uneven(row))
        return row->budget;
    return row->prompt < most ? row->prompt : (int)most;
}

/* Slots of a head of an uneven row that has so many tokens which outrank all that the others do not
 * keep. */
static inline int evict_head_slots(const struct evict_row *row, int n)
{
    const int most = evict_row_slots(row);
    return n < row->sure ? row->sure : n > most ? most : n;
}

#endif
