/* policy/evict_knorm.h - the key of the greatest norm goes first: what attention looks at most has
 * small ones (Devoto et al. 2024, arXiv 2406.11430). The norm is of the key as it was computed,
 * before the KV format rounds it, so that a format changes no choice by itself; rotation by
 * position leaves it as it is. Needs no attention weight, so a prompt's prefix may be shared. Weak
 * in decode (SmolLM2-135M: no better than chance); the paper leaves the first two layers whole,
 * here no layer is. */
#ifndef POLICY_EVICT_KNORM_H
#define POLICY_EVICT_KNORM_H

#include "policy/evict_row.h"

#define EVICT_KNORM_SCORE EVICT_KEYS, 0, 0, 1, 0, EVICT_NO_TRAIT

static inline float evict_knorm_rank(const struct evict_row *row, float score, int pos, int now)
{
    (void)row;
    (void)pos;
    (void)now;
    return score;
}

#endif
