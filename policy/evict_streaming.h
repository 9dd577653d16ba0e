/* policy/evict_streaming.h - no score: the oldest unprotected slot goes; the sink and the recent
 * window are protected (arXiv 2309.17453). */
#ifndef POLICY_EVICT_STREAMING_H
#define POLICY_EVICT_STREAMING_H

#include "policy/evict_row.h"

static inline float evict_streaming_rank(const struct evict_row *row, float score, int pos, int now)
{
    (void)row;
    (void)score;
    (void)pos;
    (void)now;
    return 0;
}

#endif
