/* kernels/cpu/route.c - which experts tokens go to.
 *
 * Owns: the choice, and the sorting of pairs. Refuses: instruction sets: a token has a hundred
 * logits. A newcomer would miss: threads choose for tokens of their own, then one counts and sorts,
 * which is a few thousand additions. */
#include "kernels/cpu/cpu.h"
#include "kernels/math.h"

#include <math.h>
#include <string.h>

#define CHOICES_MAX SHAPE_EXPERTS_USED_MAX

/* Comes before the choice that stands there: greater, or equal with a smaller number. A NaN never
 * does. */
static int is_better(float logit, int expert, float than, int other)
{
    return logit > than || (isnan(than) && !isnan(logit)) || (logit == than && expert < other);
}

/* Experts of one token, best first. */
static void choose(const float *logits, int n_experts, int n_used, int32_t *chosen)
{
    int n = 0;
    for (int e = 0; e < n_experts; e++) {
        int at = n < n_used ? n++ : n_used;
        for (; at > 0 && is_better(logits[e], e, logits[chosen[at - 1]], chosen[at - 1]); at--)
            if (at < n_used)
                chosen[at] = chosen[at - 1];
        if (at < n_used)
            chosen[at] = e;
    }
}

static void weigh(const float *logits, const struct route_args *a, const int32_t *chosen,
                  float *weights)
{
    const struct route *r = &a->to;
    const float max = logits[chosen[0]];
    float sum = 0;
    for (int j = 0; j < r->n_used; j++)
        weights[j] = math_exp(logits[chosen[j]] - max);
    if (a->alone)
        for (int j = 0; j < r->n_used; j++)
            sum += weights[j];
    else
        for (int e = 0; e < r->n_experts; e++)
            sum += math_exp(logits[e] - max);
    for (int j = 0; j < r->n_used; j++)
        weights[j] /= sum;
}

static void choose_part(void *ctx, int thread, int n_threads)
{
    const struct route_args *a = ctx;
    const int used = a->to.n_used;
    int64_t first, last;
    pool_split(a->m, thread, n_threads, &first, &last);
    for (int64_t i = first; i < last; i++) {
        const float *logits = a->logits + i * a->logits_stride;
        int32_t *chosen = a->to.places + i * used; // until they are sorted
        choose(logits, a->to.n_experts, used, chosen);
        weigh(logits, a, chosen, a->to.weights + i * used);
    }
}

void cpu_route(const struct ops *ops, const struct route_args *a)
{
    const struct route *r = &a->to;
    const int64_t n = (int64_t)a->m * r->n_used;
    CHECK(r->n_used <= CHOICES_MAX && r->n_used <= r->n_experts);
    pool_run(ops->pool, choose_part, (void *)(uintptr_t)a);
    memset(r->first, 0, (size_t)(r->n_experts + 1) * sizeof *r->first);
    for (int64_t i = 0; i < n; i++)
        r->first[r->places[i] + 1]++;
    for (int e = 0; e < r->n_experts; e++)
        r->first[e + 1] += r->first[e];
    for (int64_t i = 0; i < n; i++) {
        const int32_t expert = r->places[i];
        r->places[i] = r->first[expert]++;
        r->pairs[r->places[i]] = (int32_t)i;
    }
    for (int e = r->n_experts; e > 0; e--) // each stands where the next one begins
        r->first[e] = r->first[e - 1];
    r->first[0] = 0;
}
