/* tests/exact_test.c - the order rules of kernels/ops.h: every instruction set against the scalar
 * reference in contract order (kernels/ref/exact.c).
 *
 * Byte for byte under f32, on any number of threads; bf16 too where a set multiplies numbers one by
 * one, and int8 over q8 and q4. Where pairs of bf16 are multiplied, within a bound per op:
 *   a sum of n products in another order: Higham and Mary (2019) bound the error of either by
 *     lambda sqrt(links) 2^-24 sum |x w| but for a probability of 2 exp(-lambda^2 / 2); lambda is 6
 * here, and both sums err. A chain has n links; on AMX 16 + 1 for 32 products and one for each 32,
 * and there the bytes are those of exact_matmul_amx besides. Attention: weights are rounded to
 * bf16, by up to 2^-8 of themselves, so an output moves by up to 2^-8 sum(weight |v|) (with codes
 * 2^-8 sum(weight (v - minimum))), and by as much again where the sum of the weights is one of
 * rounded weights (prompts). */
#include "kernels/ref/ref.h"
#include "tests/attend_help.h"
#include "tests/skip.h"

#define ORDER_LAMBDA 6.0

static double order_bound(enum isa isa, int k, double magnitudes)
{
    double links = isa == ISA_AMX ? 17 + ceil(k / 32.0) : k;
    return ORDER_LAMBDA * (sqrt(k) + sqrt(links)) * 0x1p-24 * magnitudes;
}

static enum isa set_under_test(void **state)
{
    enum isa isa = *(enum isa *)*state;
    if (isa > isa_best()) {
        skip_because("this CPU has no %s", isa_name(isa));
    }
    return isa;
}

/* 1 when the set multiplies pairs of bf16. */
static int by_pairs(enum isa isa, enum compute compute)
{
    return isa >= ISA_AVX512 && compute != COMPUTE_F32;
}

/* ---- matmul ---- */

/* Sums of |x w| of every output: what the bound is made of. */
static float *magnitudes(struct matmul_args a, const float *y0)
{
    float *x = take(a.m * a.x_stride * 4),
          *panels = take(dtype_panels_bytes(DTYPE_F32, a.parts[0].w.n, a.parts[0].w.k));
    int64_t from = dtype_panel_bytes(a.parts[0].w.dtype, a.parts[0].w.k),
            n = dtype_panel_bytes(DTYPE_F32, a.parts[0].w.k) / 4;
    for (int64_t i = 0; i < a.m * a.x_stride; i++)
        x[i] = fabsf(a.x[i]);
    for (int i = 0; i < ceil_div(a.parts[0].w.n, PANEL_ROWS); i++)
        panel_decode_f32(a.parts[0].w.dtype, (const uint8_t *)a.parts[0].w.panels + i * from,
                         a.parts[0].w.k, 0, a.parts[0].w.k, panels + i * n);
    for (int64_t i = 0; i < n * ceil_div(a.parts[0].w.n, PANEL_ROWS); i++)
        panels[i] = fabsf(panels[i]);
    a.parts[0].w = (struct weight){
        .dtype = DTYPE_F32, .n = a.parts[0].w.n, .k = a.parts[0].w.k, .panels = panels};
    a.x = x;
    a.parts[0].bias = NULL;
    a.parts[0].act = a.parts[0].add = 0;
    float *sums = matmul_run(ISA_EXACT, COMPUTE_F32, NULL, a, y0);
    free(panels);
    free(x);
    return sums;
}

static void matmul_compare(enum isa isa, struct matmul_args a, const float *y0,
                           struct pool *const *pools)
{
    float *sums = magnitudes(a, y0);
    for (enum compute c = 0; c < N_COMPUTES; c++) {
        int codes =
            c == COMPUTE_INT8 && (a.parts[0].w.dtype == DTYPE_Q8 || a.parts[0].w.dtype == DTYPE_Q4);
        float *want = matmul_run(ISA_EXACT, c, NULL, a, y0);
        for (int i = 0; i < 2; i++) {
            float *y = matmul_run(isa, c, pools[i], a, y0);
            char what[128];
            snprintf(what, sizeof what, "%s %s m %d n %d k %d %s", isa_name(isa),
                     dtype_info(a.parts[0].w.dtype)->name, a.m, a.parts[0].w.n, a.parts[0].w.k,
                     compute_name(c));
            if (codes || !by_pairs(isa, c))
                assert_same_bits(y, want, a.m * a.parts[0].y_stride * 4, what);
            for (int64_t j = 0; j < a.m * a.parts[0].y_stride; j++) {
                double bound = order_bound(isa, a.parts[0].w.k, fabsf(sums[j]));
                if (a.parts[0].act == ACT_RELU2) // (x + d)^2 - x^2
                    bound *= 2 * sqrt(fabs(want[j] - (a.parts[0].add ? y0[j] : 0))) + bound;
                if (!(fabs((double)y[j] - want[j]) <= bound + 1e-6)) // bias, act and residual
                    fail_msg("%s: number %lld is %g, not %g", what, (long long)j, (double)y[j],
                             (double)want[j]);
            }
            free(y);
        }
        free(want);
    }
    free(sums);
}

static void matmul_is_one_chain(void **state)
{
    enum isa isa = set_under_test(state);
    static const int shapes[][3] = {{1, 1, 1},    {2, 33, 31},   {5, 31, 64},    {15, 100, 96},
                                    {7, 65, 288}, {29, 40, 512}, {3, 130, 2304}, {70, 33, 256}};
    struct pool *pools[] = {NULL, pool_of(3)};
    const size_t step = (size_t)sweep(3, 1);
    for (enum dtype t = 0; t < N_DTYPES; t++)
        for (size_t s = (size_t)t % step; s < sizeof shapes / sizeof *shapes; s += step) {
            const int m = shapes[s][0], n = shapes[s][1], k = shapes[s][2];
            if (dtype_row_bytes(t, k) <= 0)
                continue;
            float *x = noise_array(2, (int64_t)m * (k + 3), 1), *bias = noise_array(4, n, 1);
            float *y0 = noise_array(3, (int64_t)m * (n + 5), 1);
            struct matmul_args a = {.parts[0].w = weight_make(t, n, k, (uint64_t)(t * 1000 + k)),
                                    .x = x,
                                    .parts[0].bias = s % 2 ? bias : NULL,
                                    .m = m,
                                    .x_stride = k + 3,
                                    .parts[0].y_stride = n + 5,
                                    .parts[0].add = s % 3 == 1,
                                    .parts[0].act = (int)((s + (size_t)t) % 3)};
            matmul_compare(isa, a, y0, pools);
            free((void *)a.parts[0].w.panels);
            free(x);
            free(bias);
            free(y0);
        }
    pool_close(pools[1]);
}

/* ---- matmul, tiles ---- */

/* Rows of `a` in this order, from y0. */
static float *tiles_rule(struct matmul_args a, const float *y0)
{
    a.n_parts = 1;
    a.parts[0].y = copy_of(y0, a.m * a.parts[0].y_stride * 4);
    exact_matmul_amx(&(struct ops){.compute = COMPUTE_BF16}, &a);
    return a.parts[0].y;
}

/* The first m rows byte for byte against the rule; NaNs may differ in their payload. */
static void tiles_check(struct matmul_args a, int m, struct pool *const *pools, const float *y0,
                        const float *want)
{
    a.m = m;
    for (int i = 0; i < 2; i++) {
        float *y = matmul_run(ISA_AMX, COMPUTE_BF16, pools[i], a, y0);
        for (int64_t j = 0; j < m * a.parts[0].y_stride; j++)
            if (memcmp(&y[j], &want[j], 4) != 0 && !(isnan(y[j]) && isnan(want[j])))
                fail_msg("%s m %d n %d k %d, pool %d: number %lld of row %lld is %a, not %a",
                         dtype_info(a.parts[0].w.dtype)->name, m, a.parts[0].w.n, a.parts[0].w.k, i,
                         (long long)(j % a.parts[0].y_stride), (long long)(j / a.parts[0].y_stride),
                         (double)y[j], (double)want[j]);
        free(y);
    }
}

/* Numbers of all sizes: their products go below the least normal f32 and come near it, and some are
 * denormals themselves. */
static void spread(float *x, int64_t n, int least)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = ldexpf(x[i], least + (int)(mix64((uint64_t)i + 77) % 24));
}

/* Sums go to y at once in the first turn, by way of bias, act and residual in the second. */
static void tiles_of(enum dtype t, int n, int k, int least, struct pool *const *pools)
{
    static const int rows[] = {1, 2, 3, 15, 16, 17, 31, 32, 33, 47, 70, 140};
    const int m = k < 1000 && t == DTYPE_BF16 ? 140 : 47;
    float *x = noise_array(2, (int64_t)m * (k + 3), 1), *bias = noise_array(4, n, 1);
    float *y0 = noise_array(3, (int64_t)m * (n + 5), 1);
    struct matmul_args a = {.parts[0].w = weight_make(t, n, k, (uint64_t)(t * 1000 + k)),
                            .x = x,
                            .m = m,
                            .x_stride = k + 3,
                            .parts[0].y_stride = n + 5};
    if (least) {
        spread(x, (int64_t)m * (k + 3), least);
        uint16_t *numbers = (uint16_t *)(uintptr_t)a.parts[0].w.panels;
        for (int64_t i = 0; i < dtype_panels_bytes(t, n, k) / 2; i++)
            numbers[i] = f32_to_bf16(ldexpf(noise(9, i), (int)(mix64((uint64_t)i) % 40) - 30));
        for (int i = 0; i < 5; i++) {
            x[mix64((uint64_t)i) % (uint64_t)k] = i % 2 ? INFINITY : NAN;
            numbers[i * 31] = (uint16_t)(1 + i); // denormals
        }
    }
    for (int turn = 0; turn < 2 - !!least; turn++) {
        a.parts[0].bias = turn ? bias : NULL;
        a.parts[0].add = turn;
        a.parts[0].act = turn ? ACT_RELU : ACT_NONE;
        float *want = tiles_rule(a, y0);
        for (size_t i = 0; i < sizeof rows / sizeof *rows && rows[i] <= m; i++)
            tiles_check(a, rows[i], pools, y0, want);
        free(want);
    }
    free((void *)(uintptr_t)a.parts[0].w.panels);
    free(x);
    free(bias);
    free(y0);
}

/* Sums about the least normal number, which round to it or vanish: each link of a chain, the sum of
 * the chains, and that of two chunks. Fewer rows than a tile has must do as it does. */
static void denormals_vanish_alike(struct pool *const *pools)
{
    static const float products[][2][2] = {
        {{0x1p-63f, 0x1p-63f}, {0x1.8p-75f, -0x1p-76f}},  // 2^-126 (1 - 0.75 2^-24)
        {{0x1p-63f, 0x1p-63f}, {0x1p-75f, -0x1p-76f}},    // 2^-126 (1 - 0.5 2^-24)
        {{0x1p-63f, 0x1p-63f}, {0x1p-74f, -0x1.4p-76f}},  // 2^-126 (1 - 1.25 2^-24)
        {{-0x1p-63f, 0x1p-63f}, {0x1.cp-75f, 0x1p-76f}},  // and below 0
        {{0x1p-63f, 0x1.02p-63f}, {-0x1p-63f, 0x1p-63f}}, // 2^-133
    };
    enum { K = 64, M = 17, N = 33 };
    uint16_t rows[N][K] = {{0}};
    const void *at[PANEL_ROWS];
    float *x = take(M * K * 4), *y0 = take(M * N * 4);
    uint8_t *panels = take(dtype_panels_bytes(DTYPE_BF16, N, K));
    for (int o = 0; o < N; o++)
        for (int i = 0; i < 2; i++)
            rows[o][i * (o % 4 == 0   ? 2
                         : o % 4 == 1 ? 1
                         : o % 4 == 2 ? 32
                                      : 33)] = f32_to_bf16(products[o / 4 % 5][i][1]);
    for (int panel = 0; panel < 2; panel++) {
        for (int j = 0; j < PANEL_ROWS; j++)
            at[j] = panel * PANEL_ROWS + j < N ? rows[panel * PANEL_ROWS + j] : NULL;
        panel_pack(DTYPE_BF16, at, K, panels + panel * dtype_panel_bytes(DTYPE_BF16, K));
    }
    for (int row = 0; row < M; row++)
        for (int place = 0; place < K; place++)
            x[row * K + place] = products[row % 5][place != 0][0];
    struct matmul_args a = {.parts[0].w = {.dtype = DTYPE_BF16, .n = N, .k = K, .panels = panels},
                            .x = x,
                            .x_stride = K,
                            .parts[0].y_stride = N};
    a.m = M;
    float *want = tiles_rule(a, y0);
    for (int m = 1; m <= M; m++)
        tiles_check(a, m, pools, y0, want);
    for (int row = 0; row < M; row++) { // alone
        a.x = x + row * K;
        tiles_check(a, 1, pools, y0, want + row * N);
    }
    free(want);
    free(panels);
    free(x);
    free(y0);
}

/* Every number of rows about the height of a tile, whole and broken chunks of 32, one and several
 * blocks along k, one to many panels. */
static void tiles_add_32_products_a_link(void **state)
{
    (void)set_under_test(state);
    struct pool *pools[] = {NULL, pool_of(3)};
    for (enum dtype t = 0; t < N_DTYPES; t++) {
        static const int shapes[][2] = {{1, 1},   {33, 31},  {96, 64},
                                        {70, 97}, {65, 256}, {170, 288}};
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            if (dtype_row_bytes(t, shapes[s][1]) > 0)
                tiles_of(t, shapes[s][0], shapes[s][1], 0, pools);
        if (t == DTYPE_BF16 || t == DTYPE_Q8 || t == DTYPE_Q4_K)
            tiles_of(t, 130, 4608, 0, pools);
    }
    tiles_of(DTYPE_BF16, 40, 2305, 0, pools);
    for (int least = -150; least <= -90; least += 15)
        tiles_of(DTYPE_BF16, 40, 96, least, pools);
    denormals_vanish_alike(pools);
    pool_close(pools[1]);
}

/* ---- rows ---- */

static void rows_sum_in_lanes(void **state)
{
    enum isa isa = set_under_test(state);
    static const int dims[] = {1, 15, 16, 17, 31, 64, 100, 576, 1031};
    static const int32_t pos[] = {3, 0, 6, 1, 1, 5, 2};
    struct ops exact = {.isa = ISA_EXACT, .compute = COMPUTE_F32};
    struct ops fast = {.isa = isa, .compute = COMPUTE_F32, .pool = pool_of(3)};
    for (int i = 0; i < 9 * 4; i++) {
        const int n = dims[i / 4], m = 7, stride = n + 3, half = n / 2;
        float *x = noise_array(11, m * stride, 20), *w = noise_array(12, m * stride, 1);
        float *bias = noise_array(13, n, 1), *y[2];
        for (int j = 0; j < 2; j++) {
            const struct ops *ops = j ? &fast : &exact;
            y[j] = copy_of(x, m * stride * 4);
            struct norm_args norm = {.x = y[j],
                                     .y = y[j],
                                     .weight = i % 3 ? w : NULL,
                                     .bias = i & 1 ? bias : NULL,
                                     .m = m,
                                     .dim = n,
                                     .x_stride = stride,
                                     .y_stride = stride,
                                     .kind = i & 2 ? NORM_LAYER : NORM_RMS,
                                     .eps = 1e-5f};
            ops_run_norm(ops, &norm);
            ops_run_gate_mul(ops, &(struct gate_mul_args){.gate = y[j],
                                                          .up = i & 1 ? w : NULL,
                                                          .alpha = {0.6f, 1.4f},
                                                          .m = m,
                                                          .n = n,
                                                          .gate_stride = stride,
                                                          .up_stride = 1,
                                                          .act = ACT_RELU + i % 4});
            ops_run_mix(ops, &(struct mix_args){.x = y[j],
                                                .y = i & 4 ? w : NULL,
                                                .m = m,
                                                .n = n,
                                                .x_stride = stride,
                                                .y_stride = 1,
                                                .a = 0.3f,
                                                .b = 1.7f,
                                                .cap = i & 8 ? 5 : 0});
            ops_run_rope(ops, &(struct rope_args){.x = y[j],
                                                  .cos = w,
                                                  .sin = w + 5,
                                                  .factors = i & 2 ? w + 1 : NULL,
                                                  .pos = pos,
                                                  .m = m,
                                                  .n_heads = 1,
                                                  .head_dim = n,
                                                  .rope_dim = 2 * half,
                                                  .x_stride = stride});
        }
        assert_same_bits(y[1], y[0], m * stride * 4, "norm, gate_mul, mix, rope");
        free(x);
        free(w);
        free(bias);
        free(y[0]);
        free(y[1]);
    }
    pool_close(fast.pool);
}

/* ---- attention ---- */

static const struct model models[] = {
    {9, 3, 64, KV_F32, KV_F32}, {10, 2, 33, KV_F32, KV_BF16},  {8, 1, 80, KV_F32, KV_Q8},
    {4, 2, 128, KV_F32, KV_Q4}, {7, 1, 96, KV_F32, KV_MIXED},  {4, 2, 48, KV_BF16, KV_BF16},
    {6, 2, 130, KV_F32, KV_Q8}, {9, 3, 64, KV_BF16, KV_MIXED},
};
#define N_MODELS ((int)(sizeof models / sizeof *models))

/* A row of n_prompt tokens, and more in spans of 1 to 9; on an own pool when threads > 1. */
static struct row attend(enum isa isa, enum compute compute, int threads, const struct model *m,
                         const struct tokens *t, struct scenario c, int n_prompt)
{
    struct ops ops = {
        .isa = isa, .compute = compute, .pool = threads > 1 ? pool_of(threads) : NULL};
    struct row r = row_make(m, t, c.evict, c.limits, n_prompt), *rows[] = {&r};
    prompt_window = n_prompt == 64 ? 21 : n_prompt == 45 ? 40 : n_prompt > 64 ? 290 : 0;
    if (n_prompt > 0)
        row_prompt(&ops, m, t, &r, isa == ISA_EXACT ? n_prompt : 64);
    for (int at = n_prompt, step = 1; at < t->n; at += step, step = step % 9 + 1) {
        step = at + step < t->n ? step : t->n - at;
        rows_forced(&ops, m, &t, rows, 1, at, step);
    }
    if (ops.pool)
        pool_close(ops.pool);
    return r;
}

/* Answers in contract order, each computed once for all sets: they are most of the minutes. */
struct answer {
    struct model model;
    struct scenario scenario;
    int compute, n_prompt, n_tokens, seed;
    struct row row;
};
static struct answer answers[512];
static int n_answers;

/* seed: of t, or another number for what was made of it. The row stays this table's. */
static const struct row *exact_answer(const struct model *m, struct scenario c,
                                      enum compute compute, const struct tokens *t, int n_prompt,
                                      int seed)
{
    struct answer new = {.model = *m,
                         .scenario = c,
                         .compute = (int)compute,
                         .n_prompt = n_prompt,
                         .n_tokens = t->n,
                         .seed = seed};
    for (int i = 0; i < n_answers; i++)
        if (memcmp(&answers[i], &new, offsetof(struct answer, row)) == 0)
            return &answers[i].row;
    assert_true(n_answers < (int)(sizeof answers / sizeof *answers));
    new.row = attend(ISA_EXACT, compute, 1, m, t, c, n_prompt);
    answers[n_answers] = new;
    return &answers[n_answers++].row;
}

static int answers_free(void **state)
{
    (void)state;
    while (n_answers > 0)
        row_free(&answers[--n_answers].row);
    return 0;
}

static void attend_check(enum isa isa, const struct model *m, struct scenario c, int n_prompt,
                         int n)
{
    struct tokens t = tokens_make(m, n, 77);
    for (enum compute compute = 0; compute < N_COMPUTES; compute++) {
        const int pairs = m->kv == KV_BF16 || (m->work == KV_BF16 && n_prompt > 0);
        if ((pairs && by_pairs(isa, compute)) || compute == (n % 2 ? COMPUTE_INT8 : COMPUTE_BF16))
            continue; // pairs: bounds below; bf16 and int8 are one thing here, so by turns
        const int seed = 77 + (attend_cap > 0) + 2 * (attend_sinks != NULL);
        const struct row *want = exact_answer(m, c, compute, &t, n_prompt, seed);
        for (int threads = 1; threads <= 4; threads += 3) {
            struct row r = attend(isa, compute, threads, m, &t, c, n_prompt);
            char what[160];
            snprintf(what, sizeof what,
                     "%s %s, %d threads, %d/%d heads of %d, kv %s, %s%s%s, %d + %d", isa_name(isa),
                     compute_name(compute), threads, m->n_heads, m->n_kv_heads, m->head_dim,
                     kv_format_name(m->kv), evict_policy_name(c.evict.policy),
                     c.evict.scope ? " layer" : "", c.evict.simulate ? " simulate" : "", n_prompt,
                     n - n_prompt);
            rows_same(&r, want, what);
            row_free(&r);
        }
    }
    tokens_free(&t);
}

static void attention_has_one_order(void **state)
{
    enum isa isa = set_under_test(state);
    static const int prompts[] = {0, 1, 20, 33, 64, 45};
    for (int i = 0; i < N_SCENARIOS * 2; i += sweep(i % 4 ? 1 : 3, 1)) { // each scenario, by turns
        struct scenario c = scenarios[i / 2];
        c.evict.simulate = i % 2 && c.evict.policy != EVICT_FULL;
        for (int j = sweep(i / 2 % N_MODELS, i % 4); j < N_MODELS; j += sweep(N_MODELS, 4)) {
            int n_prompt = prompts[(i + j) % 6];
            attend_check(isa, &models[j], c, n_prompt, n_prompt + 42);
        }
    }
}

/* Several splits of 256 slots, and more than one round of prompt tiles. */
static void splits_are_joined_in_order(void **state)
{
    enum isa isa = set_under_test(state);
    static const struct scenario cases[] = {
        {{.policy = EVICT_FULL}, {INT32_MAX, INT32_MAX, 0}},
        {{.policy = EVICT_H2O}, {530, 100, 0}},
        {{.policy = EVICT_H2O_MEAN, .scope = EVICT_SCOPE_LAYER}, {290, 70, 4}},
        {{.policy = EVICT_EMA, .simulate = 1}, {300, 100, 0}},
        {{.policy = EVICT_QHITTER, .scope = EVICT_SCOPE_LAYER}, {290, 70, 4}},
        {{.policy = EVICT_VLEN}, {290, 70, 4}},
    };
    for (int i = 0; i < 6; i += sweep(3, 1)) {
        struct model m = {4, 2, 16, KV_F32, i % 2 ? KV_F32 : KV_MIXED};
        attend_check(isa, &m, cases[i], 590, 600);
        m.kv = i % 2 ? KV_Q4 : KV_BF16;
        attend_check(isa, &m, cases[i], 254, 262);
    }
}

/* A cap, sinks, and both: in prompts, splits, rings and own tokens. */
static void caps_and_sinks_have_one_order(void **state)
{
    enum isa isa = set_under_test(state);
    static const int prompts[] = {0, 33, 64, 254};
    float *sinks = noise_array(8, 10, 4);
    for (int i = 0; i < 3 * N_MODELS; i += sweep(5, 1)) {
        struct scenario c = scenarios[i % N_SCENARIOS];
        c.evict.simulate = i % 2 && c.evict.policy != EVICT_FULL;
        attend_cap = i % 3 == 1 ? 0 : 2;
        attend_sinks = i % 3 == 0 ? NULL : sinks;
        attend_check(isa, &models[i % N_MODELS], c, prompts[i % 4], prompts[i % 4] + 42);
    }
    attend_cap = 0;
    attend_sinks = NULL;
    free(sinks);
}

/* ---- pairs of bf16 ---- */

/* Outputs of `got` against those of the same tokens in contract order. magnitude: outputs in
 * contract order of |v|, that is sum(weight |v|). */
static void pairs_close(const struct row *got, const struct row *want, const struct row *magnitude,
                        int n_prompt, const char *what)
{
    const int64_t stride = got->out_bytes / 4 / got->n_tokens;
    double worst = 0;
    for (int64_t i = 0; i < got->out_bytes / 4; i++) {
        double sum = (i >= n_prompt * stride ? 1 : 2) * magnitude->out[i];
        double bound = 0x1p-8 * sum + 1e-4, error = fabs((double)got->out[i] - want->out[i]);
        worst = error / bound > worst ? error / bound : worst;
        if (!(error <= bound))
            fail_msg("%s: number %lld is %g off, bound %g", what, (long long)i, error, bound);
    }
    assert_true(worst > 0.05); // a bound that nothing comes near sees nothing
}

/* 1e-4 in the bounds: logits are below 20 and sums of up to 128 products, so that order moves them
 * by 2 * 6 * sqrt(128) * 2^-24 * 20 = 1.6e-4 at worst, 2e-5 with these numbers. */
static void pairs_stay_near(void **state)
{
    enum isa isa = set_under_test(state);
    const struct scenario full = scenarios[0];
    float *sinks = noise_array(8, 9, 4);
    for (int i = 0; i < 4 && by_pairs(isa, COMPUTE_BF16); i += sweep(i % 4 ? 1 : 3, 1)) {
        struct model m = {i % 2 ? 9 : 4, i % 2 ? 3 : 2, i % 2 ? 64 : 128, KV_BF16, KV_BF16};
        const int seed = i < 2 ? 99 : 100;
        attend_cap = i < 2 ? 0 : 2;
        attend_sinks = i < 2 ? NULL : sinks;
        for (enum compute c = 0; c < N_COMPUTES; c += 2) {
            const int n_prompt = 300;
            struct tokens t = tokens_make(&m, 340, 99), positive = tokens_make(&m, 340, 99);
            for (int64_t j = 0; j < 340 * t.kv_stride; j++)
                positive.v[j] = fabsf(t.v[j]);
            struct row got = attend(isa, c, 1, &m, &t, full, n_prompt);
            const struct row *want = exact_answer(&m, full, c, &t, n_prompt, seed);
            const struct row *sums = exact_answer(&m, full, c, &positive, n_prompt, -seed);
            pairs_close(&got, want, sums, n_prompt, kv_format_name(m.kv));
            row_free(&got);
            tokens_free(&t);
            tokens_free(&positive);
        }
    }
    attend_cap = 0;
    attend_sinks = NULL;
    free(sinks);
}

/* ---- head ---- */

static void head_run(enum isa isa, struct pool *pool, const float *logits, int vocab, int slice,
                     struct head_result *results, struct head_candidate *candidates)
{
    static const struct logit_edit edits[] = {{0, 1.5f, 0}, {6, 1, -3}, {4100, 1.2f, 2}};
    struct ops ops = {.isa = isa, .compute = COMPUTE_F32, .pool = pool};
    struct head_request requests[4];
    for (int row = 0; row < 4; row++) {
        requests[row] = (struct head_request){
            .want = HEAD_SCORE | HEAD_TOP | HEAD_SAMPLE | (row & 1 ? HEAD_FILTER : 0),
            .target = 5 + row * 700,
            .temperature = row == 2 ? 0 : 0.7f,
            .noise_key = mix64((uint64_t)row),
            .n_edits = row == 3 ? 0 : 3,
            .n_top = 20,
            .place = 3 - row,
        };
        head_start(&results[row]);
    }
    for (int first = 0; first < vocab; first += slice)
        ops_run_head_reduce(
            &ops, &(struct head_reduce_args){.logits = logits + first,
                                             .stride = vocab,
                                             .requests = requests,
                                             .results = results,
                                             .edits = edits,
                                             .candidates = candidates,
                                             .m = 4,
                                             .n = vocab - first < slice ? vocab - first : slice,
                                             .first = first});
    for (int row = 0; row < 4; row++) // the order of candidates[] is not part of the contract
        qsort(candidates + (3 - row) * HEAD_SAMPLE_MAX, (size_t)results[row].n_filter,
              sizeof *candidates, candidate_order);
}

static void head_goes_tile_by_tile(void **state)
{
    enum isa isa = set_under_test(state);
    static const int vocabs[] = {1, 7, 1500, 4096, 4097, 9001, 12288};
    const int64_t bytes = 4 * HEAD_SAMPLE_MAX * (int64_t)sizeof(struct head_candidate);
    struct head_candidate *want_c = take(bytes), *got_c = take(bytes);
    struct pool *pool = pool_of(3);
    for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++) {
        float *logits = noise_array(41 + v, 4 * vocabs[v], 8);
        for (int i = 0; i < 4 * vocabs[v]; i++) // many ties
            logits[i] = i % 3 ? logits[i] : rintf(logits[i]);
        struct head_result *want = take(4 * sizeof *want), *got = take(4 * sizeof *got);
        head_run(ISA_EXACT, NULL, logits, vocabs[v], HEAD_TILE, want, want_c);
        for (int tiles = 1; tiles <= 3; tiles++) {
            head_run(isa, tiles == 2 ? pool : NULL, logits, vocabs[v], tiles * HEAD_TILE, got,
                     got_c);
            assert_same_bits(got, want, 4 * (int64_t)sizeof *got, "head");
            assert_same_bits(got_c, want_c, bytes, "candidates");
        }
        free(got);
        free(want);
        free(logits);
    }
    pool_close(pool);
    free(want_c);
    free(got_c);
}

int main(void)
{
    static enum isa sets[] = {ISA_PORTABLE, ISA_AVX2, ISA_AVX512F, ISA_AVX512, ISA_AMX};
#define ON_SETS(test)                                                                              \
    {#test ", portable", test, NULL, NULL, &sets[0]},                                              \
        {#test ", avx2", test, NULL, NULL, &sets[1]},                                              \
        {#test ", avx512f", test, NULL, NULL, &sets[2]},                                           \
        {#test ", avx512", test, NULL, NULL, &sets[3]},                                            \
    {                                                                                              \
#test ", amx", test, NULL, NULL, &sets[4]                                                  \
    }
    const struct CMUnitTest tests[] = {
        ON_SETS(matmul_is_one_chain),
        ON_SETS(rows_sum_in_lanes),
        ON_SETS(attention_has_one_order),
        ON_SETS(splits_are_joined_in_order),
        ON_SETS(caps_and_sinks_have_one_order),
        {"pairs_stay_near, avx512", pairs_stay_near, NULL, NULL, &sets[3]},
        {"pairs_stay_near, amx", pairs_stay_near, NULL, NULL, &sets[4]},
        {"tiles_add_32_products_a_link, amx", tiles_add_32_products_a_link, NULL, NULL, &sets[4]},
        ON_SETS(head_goes_tile_by_tile),
    };
    return cmocka_run_group_tests(tests, NULL, answers_free);
}
