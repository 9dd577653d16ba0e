/* tests/experts_bed.h - a tile of tokens, and experts for them. */
#ifndef TESTS_EXPERTS_BED_H
#define TESTS_EXPERTS_BED_H

#include "tests/ops_help.h"

enum { EXPERTS = 13, USED = 3, TOKENS = 37 }; // twelve have rows: four for each of three threads

static inline struct route route_make(int m, int n_experts, int n_used)
{
    return route_at(take(route_bytes(m, n_experts, n_used)), m, n_experts, n_used);
}

/* Experts of two parts, gate and up, then of one. */
struct bed {
    struct route route;
    struct weight gate, up, down;
    float *x, *bias;
    int n, k;
};

/* The ways to choose experts: bits 0 and 1 are `alone` and `logistic`, bit 2 gives a bias, bit 3
 * groups of at least two experts, where the numbers allow them; a third of the ways take a group by
 * its best. The last two ways weigh among near experts. */
#define ROUTE_WAYS 18
static inline struct route_args route_way(uint64_t way, float *logits, int stride,
                                          const float *bias, struct route to, int m)
{
    const float near = way < 16 ? 0 : way == 16 ? 0.02f : 0.5f;
    way = way < 16 ? way : 0;
    const int n_groups = to.n_experts % 8 == 0 && to.n_experts > 8 ? to.n_experts / 8 : 0;
    const int used = (int)min_i64(n_groups, ceil_div(to.n_used, 8) + 1);
    return (struct route_args){.logits = logits,
                               .logits_stride = stride,
                               .bias = way & 4 ? bias : NULL,
                               .scales = way % 5 == 1 ? bias : NULL,
                               .to = to,
                               .m = m,
                               .alone = way & 1,
                               .logistic = way >> 1 & 1,
                               .n_groups = way & 8 && n_groups <= SHAPE_GROUPS_MAX ? n_groups : 0,
                               .n_groups_used = way & 8 && n_groups <= SHAPE_GROUPS_MAX ? used : 0,
                               .group_best = way % 3 == 0,
                               .near = near,
                               .scale = way & 8 ? 2.5f : 1};
}

static inline void bed_open(struct bed *b, enum dtype t, int n, int k)
{
    float *logits = noise_array(11, TOKENS * EXPERTS, 3);
    b->n = n;
    b->k = k;
    b->route = route_make(TOKENS, EXPERTS, USED);
    for (int i = 0; i < TOKENS; i++)
        logits[i * EXPERTS + 2] = -100; // an expert that nobody goes to
    ops_run_route(
        &(struct ops){.isa = isa_best()},
        &(struct route_args){
            .logits = logits, .logits_stride = EXPERTS, .to = b->route, .m = TOKENS, .scale = 1});
    assert_int_equal(b->route.first[2], b->route.first[3]);
    b->gate = weight_make(t, EXPERTS * n, k, 1);
    b->up = weight_make(DTYPE_BF16, EXPERTS * n, k, 2);
    b->down = weight_make(t, EXPERTS * k, n, 3);
    b->x = noise_array(12, TOKENS * (k + 3), 1);
    b->bias = noise_array(13, (int64_t)EXPERTS * n, 1);
    free(logits);
}

static inline void bed_close(struct bed *b)
{
    free(b->route.first);
    free((void *)(uintptr_t)b->gate.panels);
    free((void *)(uintptr_t)b->up.panels);
    free((void *)(uintptr_t)b->down.panels);
    free(b->x);
    free(b->bias);
}

#endif
