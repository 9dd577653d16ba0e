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

/* Replaces n logits by their scores. */
static inline void route_scores(float *logits, int n, int logistic)
{
    float max = logits[0], sum = 0;
    if (logistic) {
        for (int e = 0; e < n; e++)
            logits[e] = math_logistic(logits[e]);
        return;
    }
    for (int e = 1; e < n; e++)
        max = logits[e] > max ? logits[e] : max; // a NaN makes all scores NaN anyway
    for (int e = 0; e < n; e++)
        sum += logits[e] = math_exp(logits[e] - max);
    for (int e = 0; e < n; e++)
        logits[e] /= sum;
}

/* By what an expert is chosen. */
static inline float route_key(const struct route_args *a, const float *scores, int e)
{
    return a->bias ? scores[e] + a->bias[e] : scores[e];
}

/* Sum of the two greatest keys of a group, or the greatest; NaN if the group has no such
 * numbers. */
static inline float route_group_key(const struct route_args *a, const float *scores, int group)
{
    const int n = a->to.n_experts / a->n_groups;
    float first = NAN, second = NAN;
    for (int e = group * n; e < (group + 1) * n; e++) {
        const float key = route_key(a, scores, e);
        if (route_is_better(key, 1, first, 0)) {
            second = first;
            first = key;
        } else if (route_is_better(key, 1, second, 0)) {
            second = key;
        }
    }
    return a->group_best ? first : first + second;
}

/* The groups that a token's experts may be in, as bits. */
static inline uint64_t route_groups(const struct route_args *a, const float *scores)
{
    uint64_t used = 0;
    for (int i = 0; i < a->n_groups_used; i++) {
        int best = -1;
        float best_key = 0;
        for (int g = 0; g < a->n_groups; g++) {
            const float key = used >> g & 1 ? 0 : route_group_key(a, scores, g);
            if (used >> g & 1 || (best >= 0 && !route_is_better(key, g, best_key, best)))
                continue;
            best = g;
            best_key = key;
        }
        used |= (uint64_t)1 << best;
    }
    return used;
}

/* Expert numbers, best first. */
static inline void route_choose_of(const struct route_args *a, const float *scores, int32_t *chosen)
{
    const int n_experts = a->to.n_experts, n_used = a->to.n_used;
    const uint64_t groups = a->n_groups > 0 ? route_groups(a, scores) : 0;
    int n = 0;
    for (int e = 0; e < n_experts; e++) {
        if (a->n_groups > 0 && !(groups >> e / (n_experts / a->n_groups) & 1))
            continue;
        const float key = route_key(a, scores, e);
        int at = n < n_used ? n++ : n_used;
        for (; at > 0 &&
               route_is_better(key, e, route_key(a, scores, chosen[at - 1]), chosen[at - 1]);
             at--)
            if (at < n_used)
                chosen[at] = chosen[at - 1];
        if (at < n_used)
            chosen[at] = e;
    }
}

/* The weight of choice j among the experts near it, without the choices before it. */
static inline float route_near(const struct route_args *a, const float *logits,
                               const int32_t *chosen, int j)
{
    const float max = logits[chosen[j]];
    float sum = 0;
    for (int e = 0; e < a->to.n_experts; e++) {
        const float size = fabsf(logits[e]);
        int before = 0;
        for (int i = 0; i < j; i++)
            before |= chosen[i] == e;
        if (!before && !(max - logits[e] > a->near * (size > max ? size : max))) // a NaN is near
            sum += math_exp(logits[e] - max);
    }
    return 1 / sum;
}

/* Writes row `token` of struct route_args: expert numbers, best first, into `places` (until route
 * sorts them into places), and weights. */
static inline void route_token(const struct route_args *a, int64_t token)
{
    const int n_experts = a->to.n_experts, n_used = a->to.n_used;
    const int by_score = route_by_score(a);
    float *logits = a->logits + token * a->logits_stride;
    int32_t *chosen = a->to.places + token * n_used; // expert numbers until they are sorted
    float *weights = a->to.weights + token * n_used;
    if (by_score)
        route_scores(logits, n_experts, a->logistic);
    route_choose_of(a, logits, chosen);
    const float max = logits[chosen[0]];
    float sum = 0;
    for (int j = 0; j < n_used; j++) {
        weights[j] = by_score ? logits[chosen[j]] : math_exp(logits[chosen[j]] - max);
        if (a->near > 0)
            weights[j] = route_near(a, logits, chosen, j);
    }
    if (a->alone)
        for (int j = 0; j < n_used; j++)
            sum += weights[j];
    else if (by_score || a->near > 0)
        sum = 1;
    else
        for (int e = 0; e < n_experts; e++)
            sum += math_exp(logits[e] - max);
    sum = sum < ROUTE_SUM_MIN ? ROUTE_SUM_MIN : sum; // NaN stays
    for (int j = 0; j < n_used; j++)
        weights[j] = weights[j] / sum * a->scale * (a->scales ? a->scales[chosen[j]] : 1);
}

#endif
