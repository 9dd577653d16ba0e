/* policy/evict_fixed.h - keeps the last 4 positions of every block of 32, and the recent ones (the
 * fixed pattern of Sparse Transformers, Child et al. 2019, arXiv 1904.10509, where a block's last
 * columns summarise the block; there 8 to 32 columns of blocks of 128). The paper keeps the columns
 * of every block. Here they must fit the slots that are not recent: in a longer text only every
 * s-th block keeps its columns, s as the stride of evict_strided.h. */
#ifndef POLICY_EVICT_FIXED_H
#define POLICY_EVICT_FIXED_H

#include "policy/evict_strided.h"

#define EVICT_FIXED_BLOCK   32
#define EVICT_FIXED_COLUMNS 4

/* 1 when the position is one of at most n_slots of the pattern. */
static inline int evict_fixed_has(const struct evict_row *row, int n_slots, int pos, int now)
{
    const int newest = now - row->recent; // newest position that is not recent
    const int n_blocks = newest / EVICT_FIXED_BLOCK + 1, most = n_slots / EVICT_FIXED_COLUMNS;
    if (most <= 0 || newest < 0 ||
        pos % EVICT_FIXED_BLOCK < EVICT_FIXED_BLOCK - EVICT_FIXED_COLUMNS)
        return 0;
    return ((pos / EVICT_FIXED_BLOCK + 1) & evict_stride_mask(n_blocks / (most + 1))) == 0;
}

static inline float evict_fixed_rank(const struct evict_row *row, float score, int pos, int now)
{
    (void)score;
    return evict_fixed_has(row, row->budget - row->recent - row->sink, pos, now) ? INFINITY : 0;
}

#define EVICT_RULE_FIXED(X)                                                                        \
    X(FIXED, "fixed", "the oldest, but the ends of blocks stay", evict_fixed_rank,                 \
      EVICT_SCORE_NONE, 0, 0.5, HEAD)

#endif
