/* tests/experts_test.c - route, expert_matmul and expert_sum: against kernels/ref, and every row as
 * if it stood alone. */
#include "tests/experts_bed.h"

/* Logits with ties, and with what no router should say. */
static float *logits_make(int m, int n_experts)
{
    float *x = noise_array(5, (int64_t)m * (n_experts + 2), 4);
    for (int i = 0; i < m * (n_experts + 2); i++)
        x[i] = i % 3 ? x[i] : rintf(x[i]);
    for (int e = 0; e < n_experts; e++) {
        x[e] = 1;                                           // all alike
        x[n_experts + 2 + e] = e == 1 ? NAN : -(float)e;    // one that is no number
        x[2 * (n_experts + 2) + e] = e % 2 ? -INFINITY : 3; // half of them out of reach
        x[3 * (n_experts + 2) + e] = NAN;
    }
    return x;
}

static void same_route(const struct route *a, const struct route *b, int m)
{
    assert_same_bits(a->first, b->first, (a->n_experts + 1) * 4, "first");
    assert_same_bits(a->pairs, b->pairs, m * a->n_used * 4, "pairs");
    assert_same_bits(a->places, b->places, m * a->n_used * 4, "places");
    for (int i = 0; i < m * a->n_used; i++)
        assert_true(fabsf(a->weights[i] - b->weights[i]) < 1e-6f ||
                    (isnan(a->weights[i]) && isnan(b->weights[i])));
}

static void routes_equal_ref(void **state)
{
    (void)state;
    static const int sizes[][3] = {{1, 2, 1},     {4, 8, 2},  {TOKENS, EXPERTS, USED},
                                   {300, 128, 8}, {65, 4, 4}, {9, 1024, 64},
                                   {40, 256, 8},  {40, 32, 4}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (uint64_t way = 0; way < ROUTE_WAYS; way++)
            for (int threads = 0; threads <= 3; threads++) {
                const int m = sizes[i][0], n = sizes[i][1], used = sizes[i][2];
                struct pool *pool = threads ? pool_of(threads) : NULL;
                struct route want = route_make(m, n, used), got = route_make(m, n, used);
                float *logits = m > 3 ? logits_make(m, n) : noise_array(6, m * (n + 2), 1);
                float *bias = noise_array(8, n, 0.3f);
                struct route_args a = route_way(way, logits, n + 2, bias, want, m);
                ops_run_route(&(struct ops){.isa = ISA_REF}, &a);
                a.to = got;
                ops_run_route(&(struct ops){.isa = isa_best(), .pool = pool}, &a);
                free(bias);
                same_route(&got, &want, m);
                for (int e = 0; e < n; e++) // an expert's tokens ascend
                    for (int p = got.first[e] + 1; p < got.first[e + 1]; p++)
                        assert_true(got.pairs[p] / used > got.pairs[p - 1] / used);
                pool_close(pool);
                free(want.first);
                free(got.first);
                free(logits);
            }
}

/* Weights of a token add up to 1 where they are made of its experts alone, else to less; and it is
 * not a neighbour's business. */
static void weights_are_shares(void **state)
{
    (void)state;
    float *logits = noise_array(9, TOKENS * EXPERTS, 3);
    struct route all = route_make(TOKENS, EXPERTS, USED), one = route_make(1, EXPERTS, USED);
    for (int alone = 0; alone < 2; alone++) {
        struct route_args a = {
            .logits = logits, .logits_stride = EXPERTS, .to = all, .m = TOKENS, .scale = 1};
        a.alone = alone;
        ops_run_route(&(struct ops){.isa = isa_best()}, &a);
        for (int row = 0; row < TOKENS; row++) {
            float sum = 0;
            a.to = one;
            a.m = 1;
            a.logits = logits + row * EXPERTS;
            ops_run_route(&(struct ops){.isa = isa_best()}, &a);
            assert_same_bits(one.weights, all.weights + row * USED, USED * 4, "weights");
            for (int j = 0; j < USED; j++)
                sum += one.weights[j];
            assert_true(alone ? fabsf(sum - 1) < 1e-6f : sum < 0.999f);
            for (int e = 0, at = 0; e < EXPERTS; e++) // the same experts
                for (; at < one.first[e + 1]; at++) {
                    int place = all.places[row * USED + one.pairs[at]];
                    assert_true(place >= all.first[e] && place < all.first[e + 1]);
                }
        }
    }
    free(all.first);
    free(one.first);
    free(logits);
}

/* [TOKENS * USED][n] of gate and, behind it, of up; then [TOKENS * USED][k] of down of gate. */
static float *bed_run(const struct bed *b, const struct ops *ops)
{
    const int64_t pairs = TOKENS * USED;
    float *y = take(pairs * (2 * b->n + b->k) * 4);
    void *scratch = take(
        expert_matmul_scratch_bytes(ops, TOKENS, USED, max_i64(b->n, b->k), max_i64(b->n, b->k)));
    struct expert_matmul_args a = {
        .matmul =
            {.x = b->x,
             .m = TOKENS,
             .x_stride = b->k + 3,
             .parts = {{.w = b->gate, .y = y, .y_stride = b->n, .bias = b->bias},
                       {.w = b->up, .y = y + pairs * b->n, .y_stride = b->n, .act = ACT_SILU}},
             .n_parts = 2,
             .scratch = scratch},
        .route = b->route,
        .by_token = 1};
    ops_run_expert_matmul(ops, &a);
    a.by_token = 0;
    a.matmul.x = y;
    a.matmul.x_stride = b->n;
    a.matmul.n_parts = 1;
    a.matmul.parts[0] =
        (struct matmul_part){.w = b->down, .y = y + 2 * pairs * b->n, .y_stride = b->k};
    ops_run_expert_matmul(ops, &a);
    free(scratch);
    return y;
}

/* Row by row what a matmul of one row makes of that expert's own matrix. */
static void rows_stand_alone(const struct bed *b, const struct ops *ops, const float *y)
{
    float *own = take(b->n * 4);
    void *scratch = take(matmul_scratch_bytes(ops, 1, b->n, b->k));
    for (int e = 0; e < EXPERTS; e++)
        for (int i = b->route.first[e]; i < b->route.first[e + 1]; i++) {
            struct weight w = b->gate;
            w.n = b->n;
            w.panels = (const uint8_t *)w.panels + e * dtype_panels_bytes(w.dtype, b->n, b->k);
            struct matmul_args a = {
                .x = b->x + b->route.pairs[i] / USED * (b->k + 3),
                .m = 1,
                .x_stride = b->k,
                .parts = {{.w = w, .y = own, .y_stride = b->n, .bias = b->bias + e * b->n}},
                .n_parts = 1,
                .scratch = scratch};
            ops_run_matmul(ops, &a);
            assert_same_bits(own, y + (int64_t)i * b->n, b->n * 4, "a row of an expert");
        }
    free(scratch);
    free(own);
}

static void experts_equal_ref(void **state)
{
    (void)state;
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_Q8, DTYPE_Q4, DTYPE_Q4_0};
    struct pool *pool = pool_of(3);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        struct bed b;
        bed_open(&b, types[t], 96, 128);
        const int64_t n = TOKENS * USED * (int64_t)(2 * b.n + b.k);
        for (int compute = 0; compute < N_COMPUTES; compute++) {
            struct ops ops = {.isa = ISA_REF, .compute = (enum compute)compute};
            if (compute == COMPUTE_INT8 && types[t] != DTYPE_Q8 && types[t] != DTYPE_Q4)
                continue;
            float *want = bed_run(&b, &ops);
            FOR_EACH_ISA(isa)
            {
                ops.isa = isa;
                ops.pool = isa & 1 ? pool : NULL;
                float *y = bed_run(&b, &ops);
                assert_close(y, want, TOKENS * USED * 2 * b.n, 3e-3, "gate and up");
                assert_close(y, want, n, 0.5, "down");
                rows_stand_alone(&b, &ops, y);
                free(y);
            }
            free(want);
        }
        bed_close(&b);
    }
    pool_close(pool);
}

static void sums_equal_ref(void **state)
{
    (void)state;
    struct bed b;
    struct pool *pool = pool_of(3);
    bed_open(&b, DTYPE_BF16, 32, 64);
    for (int dim = 1; dim < 200; dim += 33)
        for (int kind = 0; kind < 6; kind++) {
            const int add = kind % 2, shared = kind / 2; // none, counted by 1, by its logistic
            float *y = noise_array(21, (int64_t)TOKENS * (USED + 1) * (dim + 1), 1), *first = NULL;
            float *x = noise_array(22, (int64_t)TOKENS * (dim + 2), 1);
            float *shares = noise_array(23, TOKENS, 6);
            const int64_t n = (int64_t)TOKENS * (dim + 2);
            shares[1] = -INFINITY;
            shares[2] = INFINITY;
            struct expert_sum_args a = {.y = y,
                                        .shared =
                                            shared ? y + (int64_t)TOKENS * USED * (dim + 1) : NULL,
                                        .shares = shared == 2 ? shares : NULL,
                                        .route = b.route,
                                        .m = TOKENS,
                                        .n = dim,
                                        .x_stride = dim + 2,
                                        .y_stride = dim + 1,
                                        .add = add};
            float *want = copy_of(x, n * 4);
            a.x = want;
            ops_run_expert_sum(&(struct ops){.isa = ISA_REF}, &a);
            for (enum isa isa = ISA_EXACT; isa < N_ISAS; isa++) {
                if (!isa_here(isa))
                    continue;
                float *got = a.x = copy_of(x, n * 4);
                ops_run_expert_sum(&(struct ops){.isa = isa, .pool = isa & 1 ? pool : NULL}, &a);
                assert_close(got, want, n, 1e-5, "sum");
                if (first)
                    assert_same_bits(got, first, n * 4, "sum over sets");
                free(first);
                first = got;
            }
            free(first);
            free(want);
            free(shares);
            free(x);
            free(y);
        }
    bed_close(&b);
    pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routes_equal_ref),
        cmocka_unit_test(weights_are_shares),
        cmocka_unit_test(experts_equal_ref),
        cmocka_unit_test(sums_equal_ref),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
