/* policy/evict_window.h - no score: the oldest slot goes. */
#ifndef POLICY_EVICT_WINDOW_H
#define POLICY_EVICT_WINDOW_H

#include "policy/evict_row.h"

static inline float evict_window_rank(const struct evict_row *row, float score, int pos, int now)
{
    (void)row;
    (void)score;
    (void)pos;
    (void)now;
    return 0;
}

#endif
