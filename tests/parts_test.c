/* tests/parts_test.c - matmuls of several parts: x is worked on once, and every part has the bytes
 * of a call of its own, on every instruction set, in every compute format and on any number of
 * threads.
 */
#include "kernels/cpu/cpu.h"
#include "tests/ops_help.h"

#define K_MAX 2304

/* Parts that differ in all but k; what stands between the rows of y must stay. */
struct trial {
    enum dtype dtypes[MATMUL_PARTS];
    int n[MATMUL_PARTS];
    int n_parts, k, m_max;
    struct matmul_args args;
    float *y0[MATMUL_PARTS], *bias[MATMUL_PARTS];
};

static void trial_open(struct trial *t, const float *x)
{
    t->args = (struct matmul_args){.x = x, .x_stride = t->k + 3, .n_parts = t->n_parts};
    for (int i = 0; i < t->n_parts; i++) {
        const uint64_t seed = (uint64_t)(t->dtypes[i] * 100 + i);
        t->bias[i] = noise_array(seed + 40, t->n[i], 1);
        t->args.parts[i] = (struct matmul_part){.w = weight_make(t->dtypes[i], t->n[i], t->k, seed),
                                                .bias = (t->n[0] + i) % 3 == 1 ? NULL : t->bias[i],
                                                .y_stride = t->n[i] + i,
                                                .add = (t->n[0] + i) % 2,
                                                .act = (int)((t->n[0] + (unsigned)i) % 3)};
        t->y0[i] = noise_array(seed + 50, (int64_t)t->m_max * t->args.parts[i].y_stride, 1);
    }
}

static void trial_close(struct trial *t)
{
    for (int i = 0; i < t->n_parts; i++) {
        free((void *)(uintptr_t)t->args.parts[i].w.panels);
        free(t->bias[i]);
        free(t->y0[i]);
    }
}

static int64_t y_bytes(const struct trial *t, int part, int m)
{
    return m * t->args.parts[part].y_stride * 4;
}

/* Part by part, each in a call of its own; y[i] is the caller's to free. */
static void run_one_by_one(const struct trial *t, struct ops ops, int m, float *y[MATMUL_PARTS])
{
    ops.pool = NULL;
    for (int i = 0; i < t->n_parts; i++) {
        struct matmul_args one = t->args;
        one.parts[0] = t->args.parts[i];
        one.m = m;
        y[i] = matmul_run(ops.isa, ops.compute, NULL, one, t->y0[i]);
    }
}

/* All parts in one call, with the scratch of the widest one. */
static void run_together(const struct trial *t, struct ops ops, int m, float *y[MATMUL_PARTS])
{
    struct matmul_args all = t->args;
    int n = 0;
    all.m = m;
    for (int i = 0; i < t->n_parts; i++) {
        n = t->n[i] > n ? t->n[i] : n;
        all.parts[i].y = y[i] = copy_of(t->y0[i], y_bytes(t, i, m));
    }
    all.scratch = take(matmul_scratch_bytes(&ops, m, n, t->k));
    ops_run_matmul(&ops, &all);
    free(all.scratch);
}

static void compare(const struct trial *t, struct ops ops, struct pool *const *pools, int n_pools,
                    int m)
{
    float *want[MATMUL_PARTS], *y[MATMUL_PARTS];
    run_one_by_one(t, ops, m, want);
    for (int p = 0; p < n_pools; p++) {
        ops.pool = pools[p];
        run_together(t, ops, m, y);
        for (int i = 0; i < t->n_parts; i++) {
            char what[128];
            snprintf(what, sizeof what, "%s %s m %d k %d, %d threads, part %d of %d (%s, n %d)",
                     isa_name(ops.isa), compute_name(ops.compute), m, t->k, pool_threads(ops.pool),
                     i, t->n_parts, dtype_info(t->dtypes[i])->name, t->n[i]);
            assert_same_bits(y[i], want[i], y_bytes(t, i, m), what);
            free(y[i]);
        }
    }
    for (int i = 0; i < t->n_parts; i++)
        free(want[i]);
}

/* Rows up to one over a tile of every set, and enough for the threads to split them. */
static const int rows[] = {1, 2, 3, 7, 15, 33, 70, 130};
#define N_ROWS ((int)(sizeof rows / sizeof rows[0]))

static void parts_equal_one_by_one(void **state)
{
    (void)state;
    struct trial trials[] = {
        {{DTYPE_BF16, DTYPE_BF16, DTYPE_BF16}, {96, 33, 32}, 3, 256, 0, {0}, {0}, {0}},
        {{DTYPE_F32, DTYPE_F32}, {70, 40}, 2, 33, 0, {0}, {0}, {0}},
        {{DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q6_K}, {130, 31, 32}, 3, 256, 0, {0}, {0}, {0}},
        {{DTYPE_BF16, DTYPE_Q8, DTYPE_Q4}, {1, 65, 64}, 3, 192, 0, {0}, {0}, {0}},
        {{DTYPE_Q4, DTYPE_Q8, DTYPE_Q4}, {40, 33, 100}, 3, 130, 0, {0}, {0}, {0}},
        {{DTYPE_Q8, DTYPE_F32}, {64, 32}, 2, 97, 0, {0}, {0}, {0}},
    };
    struct pool *pools[] = {NULL, pool_of(2), pool_of(3), pool_of(64)};
    float *x = noise_array(2, (int64_t)rows[N_ROWS - 1] * (K_MAX + 3), 1);
    const int step = sweep(3, 1);
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
        struct trial *t = &trials[i];
        t->m_max = rows[N_ROWS - 1];
        trial_open(t, x);
        for (enum isa isa = ISA_REF; isa < N_ISAS; isa++)
            for (enum compute c = 0; c < N_COMPUTES && isa_here(isa); c++)
                for (int r = (int)i % step; r < N_ROWS && (isa > ISA_EXACT || rows[r] < 10);
                     r += step)
                    compare(t, (struct ops){.isa = isa, .compute = c}, pools, 4, rows[r]);
        trial_close(t);
    }
    free(x);
    for (int i = 1; i < 4; i++)
        pool_close(pools[i]);
}

/* Several blocks along k, whose sums wait; several blocks of rows; rows split over threads where
 * that takes the most of them. */
static void parts_go_by_blocks(void **state)
{
    (void)state;
    struct trial longer = {
        {DTYPE_BF16, DTYPE_Q6_K, DTYPE_Q8}, {600, 70, 33}, 3, K_MAX, 0, {0}, {0}, {0}};
    struct trial many = {{DTYPE_BF16, DTYPE_BF16}, {100, 40}, 2, 64, 0, {0}, {0}, {0}};
    struct pool *pools[] = {NULL, pool_of(2)};
    const int m_longer = 260, m_many = 1030;
    float *x = noise_array(2, (int64_t)m_longer * (K_MAX + 3), 1);
    longer.m_max = m_longer;
    many.m_max = m_many;
    trial_open(&longer, x);
    trial_open(&many, x);
    for (enum isa isa = ISA_AVX2; isa < N_ISAS; isa++)
        for (enum compute c = 0; c < N_COMPUTES && isa_here(isa); c++) {
            const struct ops ops = {.isa = isa, .compute = c};
            compare(&longer, ops, pools, 2, 5);
            compare(&longer, ops, pools, 2, 40);
            if (isa >= ISA_AVX512 && c == COMPUTE_BF16)
                compare(&longer, ops, pools, 2, m_longer);
            compare(&many, ops, pools, 2, m_many);
        }
    trial_close(&longer);
    trial_close(&many);
    free(x);
    pool_close(pools[1]);
}

/* ---- the list of panels ---- */

static int64_t share_cost(const struct matmul_args *a, const struct matmul_share *s)
{
    return (s->last - s->first) * matmul_panel_cost(a, &a->parts[s->part].w);
}

/* Every panel once, in order; no thread has more than its share and a panel. */
static void shares_check(const struct matmul_args *a, int n_threads)
{
    int64_t all = 0, most = 0, done[MATMUL_PARTS] = {0};
    for (int i = 0; i < a->n_parts; i++) {
        const int64_t cost = matmul_panel_cost(a, &a->parts[i].w);
        all += ceil_div(a->parts[i].w.n, PANEL_ROWS) * cost;
        most = max_i64(most, cost);
    }
    for (int thread = 0; thread < n_threads; thread++) {
        struct matmul_share shares[MATMUL_PARTS];
        const int n = matmul_shares(a, thread, n_threads, shares);
        int64_t cost = 0;
        for (int i = 0; i < n; i++) {
            const struct matmul_share *s = &shares[i];
            assert_true(s->first < s->last && s->first == done[s->part]);
            assert_true(i == 0 || s->part > shares[i - 1].part);
            done[s->part] = s->last;
            cost += share_cost(a, s);
        }
        assert_true(cost <= all / n_threads + most + 1);
    }
    for (int i = 0; i < a->n_parts; i++)
        assert_int_equal(done[i], ceil_div(a->parts[i].w.n, PANEL_ROWS));
}

static void threads_share_the_panels_of_all_parts(void **state)
{
    (void)state;
    static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_F32};
    for (uint64_t i = 0; i < 2000; i++) {
        struct matmul_args a = {.m = (int)(mix64(i) % 300 + 1), .n_parts = (int)(i % 3) + 1};
        for (int p = 0; p < a.n_parts; p++)
            a.parts[p].w = (struct weight){.dtype = dtypes[mix64(i * 3 + (uint64_t)p) % 4],
                                           .n = (int)(mix64(i * 5 + (uint64_t)p) % 3000) + 1,
                                           .k = 256};
        const int n_threads = (int)(mix64(i * 7) % 70) + 1;
        shares_check(&a, n_threads);
        struct matmul_share s[MATMUL_PARTS];
        a.n_parts = 1; // one part alone is split evenly
        for (int thread = 0; thread < n_threads; thread++) {
            int64_t first, last;
            pool_split(ceil_div(a.parts[0].w.n, PANEL_ROWS), thread, n_threads, &first, &last);
            assert_int_equal(matmul_shares(&a, thread, n_threads, s), first < last);
            assert_true(first == last || (s[0].first == first && s[0].last == last));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_equal_one_by_one),
        cmocka_unit_test(parts_go_by_blocks),
        cmocka_unit_test(threads_share_the_panels_of_all_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
