/* policy/evict_tova.h - the weight of the last query alone, summed over all heads (TOVA, Oren et
 * al. 2024, arXiv 2401.06104). The paper's rule has one kept set per layer: scope layer is the
 * default here, head the user's to ask for. It protects nothing; here the new token stays for a
 * step (recent 1), since under scope head a query may well look away from itself. */
#ifndef POLICY_EVICT_TOVA_H
#define POLICY_EVICT_TOVA_H

#include "policy/evict_row.h"

#define EVICT_TOVA_SCORE EVICT_WEIGHTS, 1, 0, 0, 0, EVICT_NO_TRAIT

static inline float evict_tova_rank(const struct evict_row *row, float score, int pos, int now)
{
    (void)row;
    (void)pos;
    (void)now;
    return score;
}

#endif
