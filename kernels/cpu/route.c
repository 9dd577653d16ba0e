/* kernels/cpu/route.c - chooses the experts of a tile's tokens.
 *
 * Owns: the sorting of pairs. Refuses: instruction sets: a token has about a hundred logits.
 * Threads choose for their own tokens; one thread then counts and sorts, a few thousand
 * additions. */
#include "kernels/cpu/cpu.h"
#include "kernels/route.h"

#include <string.h>

#define CHOICES_MAX SHAPE_EXPERTS_USED_MAX

static void choose_part(void *ctx, int thread, int n_threads)
{
    const struct route_args *a = ctx;
    int64_t first, last;
    pool_split(a->m, thread, n_threads, &first, &last);
    for (int64_t i = first; i < last; i++)
        route_token(a, i);
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
    for (int e = r->n_experts; e > 0; e--) // each is now at the start of the next expert
        r->first[e] = r->first[e - 1];
    r->first[0] = 0;
}
