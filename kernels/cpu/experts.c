/* kernels/cpu/experts.c - the matmul of experts: each expert multiplies the rows of its pairs.
 *
 * Owns: which thread computes which expert. Refuses: the matmul itself, which is passed in.
 * An expert has few rows, so threads that share each expert would mostly wait at its end. With
 * several experts per thread, each thread computes whole experts and waits once. The bytes of a row
 * are the same either way. */
#include "kernels/cpu/cpu.h"

#include <string.h>

#define EXPERTS_EACH 4 // experts with rows per thread, from which a thread computes whole experts

struct experts_task {
    const struct ops *ops; // for one expert
    const struct expert_matmul_args *args;
    cpu_matmul_fn matmul;
    float *together; // [m * n_used][k]: rows of tokens in the order of pairs
    uint8_t *scratch;
    int64_t scratch_bytes; // per thread; 0: all threads share one
    int64_t cost;          // of all experts
};

static int n_rows(const struct route *r, int e)
{
    return r->first[e + 1] - r->first[e];
}

/* The cost of expert e's panels, as matmul_panel_cost(). */
static int64_t cost_of(const struct expert_matmul_args *a, int e)
{
    struct matmul_args own = a->matmul;
    int64_t cost = 0;
    own.m = n_rows(&a->route, e);
    for (int i = 0; i < own.n_parts && own.m > 0; i++)
        cost += own.parts[i].w.n / PANEL_ROWS * matmul_panel_cost(&own, &own.parts[i].w);
    return cost;
}

static void multiply(const struct experts_task *t, int e, int thread)
{
    const struct expert_matmul_args *a = t->args;
    const struct route *r = &a->route;
    const int first = r->first[e], k = a->matmul.parts[0].w.k;
    struct matmul_args own = a->matmul;
    own.m = n_rows(r, e);
    own.scratch = t->scratch + thread * t->scratch_bytes;
    own.x += first * own.x_stride;
    if (a->by_token) {
        float *x = t->together + (int64_t)first * k;
        for (int i = 0; i < own.m; i++)
            memcpy(x + (int64_t)i * k,
                   a->matmul.x + r->pairs[first + i] / r->n_used * a->matmul.x_stride,
                   (size_t)k * sizeof *x);
        own.x = x;
        own.x_stride = k;
    }
    for (int p = 0; p < own.n_parts; p++) {
        CHECK(own.parts[p].w.n % (r->n_experts * PANEL_ROWS) == 0);
        own.parts[p] = expert_part(&a->matmul.parts[p], r->n_experts, e, first);
    }
    if (own.m > 0)
        t->matmul(t->ops, &own);
}

/* Computes the experts whose middle falls in this thread's share of the total cost. */
static void multiply_own(void *ctx, int thread, int n_threads)
{
    const struct experts_task *t = ctx;
    int64_t before = 0;
    for (int e = 0; e < t->args->route.n_experts; e++) {
        const int64_t cost = cost_of(t->args, e);
        if (cost > 0 && (before + cost / 2) * n_threads / t->cost == thread)
            multiply(t, e, thread);
        before += cost;
    }
}

static int64_t together_bytes(int m, int n_used, int k)
{
    return round_up((int64_t)m * n_used * k * 4, 64);
}

static struct ops alone(const struct ops *ops)
{
    struct ops one = *ops;
    one.pool = NULL;
    return one;
}

int64_t expert_matmul_scratch_bytes(const struct ops *ops, int m, int n_used, int n, int k)
{
    const struct ops one = alone(ops);
    const int64_t each = round_up(matmul_scratch_bytes(&one, m, n, k), 64);
    return together_bytes(m, n_used, k) +
           max_i64(matmul_scratch_bytes(ops, m, n, k), each * pool_threads(ops->pool));
}

void cpu_expert_matmul(const struct ops *ops, const struct expert_matmul_args *a,
                       cpu_matmul_fn matmul)
{
    const struct ops one = alone(ops);
    const struct weight *w = &a->matmul.parts[0].w;
    const int n_threads = pool_threads(ops->pool), n_experts = a->route.n_experts;
    struct experts_task t = {.ops = ops, .args = a, .matmul = matmul};
    int busy = 0, n = 0;
    t.together = a->matmul.scratch;
    t.scratch = (uint8_t *)a->matmul.scratch + together_bytes(a->matmul.m, a->route.n_used, w->k);
    for (int i = 0; i < a->matmul.n_parts; i++)
        n = (int)max_i64(n, a->matmul.parts[i].w.n / n_experts);
    for (int e = 0; e < n_experts; e++) {
        t.cost += cost_of(a, e);
        busy += n_rows(&a->route, e) > 0;
    }
    if (n_threads > 1 && busy >= EXPERTS_EACH * n_threads) {
        t.ops = &one;
        t.scratch_bytes = round_up(matmul_scratch_bytes(&one, a->matmul.m, n, w->k), 64);
        pool_run(ops->pool, multiply_own, &t);
        return;
    }
    for (int e = 0; e < n_experts; e++)
        multiply(&t, e, 0);
}
