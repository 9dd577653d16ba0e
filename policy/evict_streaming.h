/* policy/evict_streaming.h - no score: evicts the oldest unprotected slot; the sink and the recent
 * window are protected (arXiv 2309.17453). */
#ifndef POLICY_EVICT_STREAMING_H
#define POLICY_EVICT_STREAMING_H

#include "policy/evict_rule.h"

#define EVICT_RULE_STREAMING(X)                                                                    \
    X(STREAMING, "streaming", "the oldest after the first tokens", evict_rank_age,                 \
      EVICT_SCORE_NONE, 4, EVICT_REST, HEAD)

#endif
