/* policy/evict_window.h - no score: the oldest slot goes. */
#ifndef POLICY_EVICT_WINDOW_H
#define POLICY_EVICT_WINDOW_H

static inline float evict_window_rank(float score, int pos, int now)
{
    (void)score;
    (void)pos;
    (void)now;
    return 0;
}

#endif
