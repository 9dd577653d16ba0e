/* kernels/route.h - chooses the experts of one token: one source for the CPU and CUDA.
 *
 * Owns: the choice and its weights. Refuses: tiles, threads, sorting of pairs. */
#ifndef KERNELS_ROUTE_H
#define KERNELS_ROUTE_H

#include "kernels/math.h"
#include "kernels/ops.h"

#include <math.h>

/* 1 when the expert ranks before `other`: a greater logit, or the same and a smaller number. A NaN
 * ranks last. */
static inline int route_is_better(float logit, int expert, float than, int other)
{
    return logit > than || (isnan(than) && !isnan(logit)) || (logit == than && expert < other);
}

/* Writes row `token` of struct route_args: expert numbers, best first, into `places` (until route
 * sorts them into places), and weights. */
static inline void route_token(const struct route_args *a, int64_t token)
{
    const int n_experts = a->to.n_experts, n_used = a->to.n_used;
    const float *logits = a->logits + token * a->logits_stride;
    int32_t *chosen = a->to.places + token * n_used; // expert numbers until they are sorted
    float *weights = a->to.weights + token * n_used;
    int n = 0;
    for (int e = 0; e < n_experts; e++) {
        int at = n < n_used ? n++ : n_used;
        for (; at > 0 && route_is_better(logits[e], e, logits[chosen[at - 1]], chosen[at - 1]);
             at--)
            if (at < n_used)
                chosen[at] = chosen[at - 1];
        if (at < n_used)
            chosen[at] = e;
    }
    const float max = logits[chosen[0]];
    float sum = 0;
    for (int j = 0; j < n_used; j++)
        weights[j] = math_exp(logits[chosen[j]] - max);
    if (a->alone)
        for (int j = 0; j < n_used; j++)
            sum += weights[j];
    else
        for (int e = 0; e < n_experts; e++)
            sum += math_exp(logits[e] - max);
    for (int j = 0; j < n_used; j++)
        weights[j] /= sum;
}

#endif
