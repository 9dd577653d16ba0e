/* tests/ops_test.c - matmul, rows, head and the functions under them, against kernels/ref and bit
 * against bit over instruction sets, threads, tiles and positions. */
#include "tests/ops_help.h"

/* ---- exp, GELU, Gumbel ---- */

static double ulps(float got, double want)
{
    float nearest = (float)want;
    double ulp = nextafterf(fabsf(nearest), INFINITY) - fabsf(nearest);
    return fabs(got - want) / ulp;
}

static void exp_is_close_and_clean(void **state)
{
    (void)state;
    double worst = 0;
    for (int64_t i = 0; i < 400000; i++) {
        float x = -87.29f + (float)i * (176.0f / 400000);
        double error = ulps(op_exp(x), exp(x));
        worst = error > worst ? error : worst;
    }
    for (int64_t i = 0; i < 100000; i++) {
        float x = noise(1, i);
        double error = ulps(op_exp(x), exp(x));
        worst = error > worst ? error : worst;
    }
    assert_true(worst < 2);
    assert_true(op_exp(0.0f) == 1.0f && op_exp(-0.0f) == 1.0f);
    assert_true(op_exp(-INFINITY) == 0 && op_exp(-1e30f) == 0 && op_exp(-88.0f) == 0);
    assert_true(op_exp(INFINITY) == INFINITY && op_exp(100.0f) == INFINITY);
    assert_true(isfinite(op_exp(88.722f)) && isnormal(op_exp(-87.29f)));
    assert_true(isnan(op_exp(NAN)));
}

static void gelu_is_the_erf_form(void **state)
{
    (void)state;
    for (int i = -2000; i <= 2000; i++) {
        float x = (float)i * 0.01f;
        double want = 0.5 * x * (1 + erf(x / sqrt(2)));
        assert_true(fabs(math_gelu(x) - want) < 1e-6);
    }
    assert_true(math_gelu(1e30f) == 1e30f && math_gelu(-1e30f) == 0);
}

static void gumbel_has_its_moments(void **state)
{
    (void)state;
    enum { N = 200000 };
    double sum = 0, square = 0;
    for (int32_t id = 0; id < N; id++) {
        float v = math_uniform(77, id);
        double g = head_gumbel(77, id);
        assert_true(v > 0 && v <= 1 && isfinite(g));
        if (v < 0.99f)
            assert_true(fabs(g + log(-log1p(-(double)v))) < 2e-6 * (1 + fabs(g)));
        sum += g;
        square += g * g;
    }
    double mean = sum / N;
    assert_true(fabs(mean - 0.5772157) < 0.01);
    assert_true(fabs(square / N - mean * mean - 1.6449341) < 0.03);
    // mix64(77 + 5 * 0x9e3779b97f4a7c15) >> 32, computed apart
    assert_true(fabs(math_uniform(77, 5) - 0.4169423246) < 1e-7);
    assert_true(fabs(head_gumbel(77, 5) + log(-log1p(-0.4169423246))) < 2e-6);
    assert_true(head_gumbel(77, 5) != head_gumbel(78, 5));
    assert_true(isfinite(math_gumbel(1.0f)) && isfinite(math_gumbel(0x1p-33f)));
}

static void isa_names_round_trip(void **state)
{
    (void)state;
    for (enum isa isa = 0; isa < N_ISAS; isa++)
        assert_int_equal(isa_by_name(isa_name(isa)), isa);
    assert_int_equal(isa_by_name("mmx"), N_ISAS);
    assert_true(isa_best() >= ISA_PORTABLE && isa_best() < N_ISAS);
}

/* ---- matmul ---- */

static void matmul_check(enum dtype t, int m, int n, int k, struct matmul_args a)
{
    a.parts[0].w = weight_make(t, n, k, (uint64_t)(t * 1000 + n * 7 + k));
    a.m = m;
    a.x_stride = k + 3;
    a.parts[0].y_stride = n + 5;
    float *x = noise_array(2, m * a.x_stride, 1), *y0 = noise_array(3, m * a.parts[0].y_stride, 1);
    float *bias = noise_array(4, n, 1);
    a.x = x;
    if (a.parts[0].bias)
        a.parts[0].bias = bias;
    for (enum compute c = COMPUTE_BF16; c <= COMPUTE_F32; c++) {
        float *want = matmul_run(ISA_REF, c, NULL, a, y0), *first = NULL;
        FOR_EACH_ISA(isa)
        {
            float *y = matmul_run(isa, c, NULL, a, y0);
            char what[128];
            snprintf(what, sizeof what, "%s %s m %d n %d k %d compute %d", isa_name(isa),
                     dtype_info(t)->name, m, n, k, (int)c);
            assert_close(y, want, m * a.parts[0].y_stride, 1e-5 * (1 + sqrt(k)), what);
            if (first && (c == COMPUTE_F32 || isa < ISA_AVX512)) // the sets that make equal bits
                assert_same_bits(y, first, m * a.parts[0].y_stride * 4, what);
            if (first)
                free(y);
            else
                first = y;
        }
        free(first);
        free(want);
    }
    free((void *)a.parts[0].w.panels);
    free(x);
    free(y0);
    free(bias);
}

static void matmul_equals_ref(void **state)
{
    (void)state;
    static const enum dtype dtypes[] = {
        DTYPE_F32,   DTYPE_F16,   DTYPE_BF16,  DTYPE_Q4_0,   DTYPE_Q4_1,  DTYPE_Q5_0,
        DTYPE_Q5_1,  DTYPE_Q8_0,  DTYPE_Q4_K,  DTYPE_Q5_K,   DTYPE_Q6_K,  DTYPE_Q8,
        DTYPE_Q4,    DTYPE_Q2_K,  DTYPE_MXFP4, DTYPE_G4_64,  DTYPE_F8_32, DTYPE_IQ1_M,
        DTYPE_IQ2_S, DTYPE_IQ3_S, DTYPE_B4_32, DTYPE_NV4_64, DTYPE_I8_32};
    static const int shapes[][3] = {{1, 1, 1},    {2, 33, 31},  {5, 31, 64},  {15, 100, 80},
                                    {3, 64, 96},  {29, 40, 96}, {7, 65, 288}, {70, 33, 256},
                                    {4, 32, 512}, {13, 1, 257}};
    const size_t step = (size_t)sweep(3, 1);
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (size_t s = d % step; s < sizeof shapes / sizeof *shapes; s += step)
            if (dtype_row_bytes(dtypes[d], shapes[s][2]) > 0)
                matmul_check(dtypes[d], shapes[s][0], shapes[s][1], shapes[s][2],
                             (struct matmul_args){0});
}

static void matmul_finishes(void **state)
{
    (void)state;
    const float *some = (const float *)1; // replaced by a real bias
    for (int act = ACT_NONE; act <= ACT_SILU; act++)
        for (int add = 0; add <= 1; add++) {
            matmul_check(DTYPE_BF16, 6, 50, 40,
                         (struct matmul_args){.parts[0].act = act, .parts[0].add = add});
            matmul_check(DTYPE_F32, 17, 50, 41,
                         (struct matmul_args){
                             .parts[0].act = act, .parts[0].add = add, .parts[0].bias = some});
        }
}

/* Every m, every position of a row, every number of threads: the same bits. */
static void matmul_bits(enum dtype t, int m_max, int n, int k)
{
    struct weight w = weight_make(t, n, k, 9);
    float *x = noise_array(5, (int64_t)m_max * k, 1), *y0 = noise_array(6, (int64_t)m_max * n, 1);
    struct matmul_args a = {
        .parts[0].w = w, .x = x, .x_stride = k, .parts[0].y_stride = n, .parts[0].add = 1};
    FOR_EACH_ISA(isa)
    for (enum compute c = COMPUTE_BF16; c <= COMPUTE_F32; c++) {
        a.m = m_max;
        a.x = x;
        float *all = matmul_run(isa, c, NULL, a, y0);
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            struct pool *pool = pool_of(n_threads);
            for (a.m = 1; a.m <= m_max; a.m += n_threads == 1 ? sweep(5, 1) : 13) {
                int64_t first = (a.m * 7) % (m_max - a.m + 1);
                a.x = x + first * k;
                float *y = matmul_run(isa, c, pool, a, y0 + first * n);
                assert_same_bits(y, all + first * n, (int64_t)a.m * n * 4, "matmul rows");
                free(y);
            }
            pool_close(pool);
        }
        free(all);
    }
    free((void *)w.panels);
    free(x);
    free(y0);
}

static void matmul_rows_do_not_meet(void **state)
{
    (void)state;
    matmul_bits(DTYPE_BF16, 70, 72, 50);
    matmul_bits(DTYPE_Q8, 70, 40, 70);
    matmul_bits(DTYPE_F32, 110, 33, 33); // rows are split from 32 per thread
}

/* All formats, and every way to cut: few rows beside many panels, blocks of rows, blocks along k
 * whose sums wait, threads by panels and by rows. */
static void matmul_rows_do_not_meet_in_any_format(void **state)
{
    (void)state;
    static const int rows[] = {1, 2, 3, 4, 5, 6, 7, 14, 15, 16, 29, 64, 128, 200};
    enum { M = 256, K = 2304, N_MAX = 550 };
    float *x = noise_array(5, (int64_t)M * K, 1), *y0 = noise_array(6, (int64_t)M * N_MAX, 1);
    for (enum dtype t = 0; t < N_DTYPES; t++) {
        if (dtype_row_bytes(t, K) <= 0)
            continue;
        const int n = t == DTYPE_BF16 ? N_MAX : 170; // more panels than wait at a time, once
        struct matmul_args a = {
            .parts[0].w = weight_make(t, n, K, 9), .x_stride = K, .parts[0].y_stride = n};
        a.m = M;
        a.x = x;
        float *all = matmul_run(isa_best(), COMPUTE_BF16, NULL, a, y0);
        for (int n_threads = sweep(2, 1); n_threads <= 2; n_threads++) {
            struct pool *pool = pool_of(n_threads);
            a.m = M;
            a.x = x;
            float *same = matmul_run(isa_best(), COMPUTE_BF16, pool, a, y0);
            assert_same_bits(same, all, (int64_t)M * n * 4, dtype_info(t)->name);
            free(same);
            const size_t step = (size_t)sweep(3, 1);
            for (size_t i = (size_t)t % step; i < sizeof rows / sizeof *rows; i += step) {
                a.m = rows[i];
                int64_t first = (a.m * 7) % (M - a.m + 1);
                a.x = x + first * K;
                float *y = matmul_run(isa_best(), COMPUTE_BF16, pool, a, y0 + first * n);
                assert_same_bits(y, all + first * n, (int64_t)a.m * n * 4, dtype_info(t)->name);
                free(y);
            }
            pool_close(pool);
        }
        free(all);
        free((void *)a.parts[0].w.panels);
    }
    free(x);
    free(y0);
}

/* Several blocks along k: sums leave the registers and come back. */
static void matmul_long_chains(void **state)
{
    (void)state;
    matmul_check(DTYPE_BF16, 16, 33, 8704, (struct matmul_args){0});
    matmul_check(DTYPE_Q4, 3, 33, 8200, (struct matmul_args){.parts[0].add = 1});
    struct weight w = weight_make(DTYPE_BF16, 40, 8201, 9);
    float *x = noise_array(5, (int64_t)70 * w.k, 1), *y0 = take(70 * 40 * 4);
    struct matmul_args a = {
        .parts[0].w = w, .x = x, .m = 70, .x_stride = w.k, .parts[0].y_stride = 40};
    for (enum compute c = COMPUTE_BF16; c <= COMPUTE_F32; c++) {
        float *all = matmul_run(isa_best(), c, NULL, a, y0);
        struct pool *pool = pool_of(2);
        float *y = matmul_run(isa_best(), c, pool, a, y0);
        assert_same_bits(y, all, 70 * 40 * 4, "rows split, long k");
        free(y);
        a.m = 31;
        y = matmul_run(isa_best(), c, pool, a, y0);
        assert_same_bits(y, all, 31 * 40 * 4, "panels split, long k");
        free(y);
        a.m = 70;
        pool_close(pool);
        free(all);
    }
    free((void *)w.panels);
    free(x);
    free(y0);
}

/* ---- rows ---- */

/* What an op makes of x[n] in place: the plain loops' numbers within `most` in every set, and in
 * all of them the same bits. */
static void sets_check(const char *what, void (*run)(const struct ops *, float *x, void *args),
                       void *args, const float *x, int64_t n, struct pool *pool, double most)
{
    float *want = copy_of(x, n * 4), *first = NULL;
    run(&(struct ops){.isa = ISA_REF, .compute = COMPUTE_F32}, want, args);
    FOR_EACH_ISA(isa)
    {
        float *y = copy_of(x, n * 4);
        run(&(struct ops){.isa = isa, .compute = COMPUTE_F32, .pool = isa & 1 ? pool : NULL}, y,
            args);
        assert_close(y, want, n, most, what);
        if (first)
            assert_same_bits(y, first, n * 4, what);
        free(first);
        first = y;
    }
    free(first);
    free(want);
}

#define RUN(name, field)                                                                           \
    static void run_##name(const struct ops *ops, float *x, void *args)                            \
    {                                                                                              \
        struct name##_args *a = args;                                                              \
        a->field = x;                                                                              \
        ops_run_##name(ops, a);                                                                    \
    }
RUN(gate_mul, gate)
RUN(mix, x)
RUN(rotate, x)
RUN(rope, x)

static void rows_check(int m, int n, int kind)
{
    int stride = n + 3;
    float *x = noise_array(11, m * stride, 2), *w = noise_array(12, n, 1);
    float *bias = noise_array(13, n, 1), *first = NULL;
    struct pool *pool = pool_of(3);
    float *want = take(m * stride * 4);
    struct norm_args a = {.x = x,
                          .weight = w,
                          .bias = kind == NORM_LAYER ? bias : NULL,
                          .m = m,
                          .dim = n,
                          .x_stride = stride,
                          .y_stride = stride,
                          .kind = kind,
                          .eps = 1e-5f};
    a.y = want;
    ops_run_norm(&(struct ops){.isa = ISA_REF, .compute = COMPUTE_F32}, &a);
    FOR_EACH_ISA(isa)
    {
        float *y = copy_of(x, m * stride * 4);
        a.x = y; // in place
        a.y = y;
        ops_run_norm(
            &(struct ops){.isa = isa, .compute = COMPUTE_F32, .pool = isa & 1 ? pool : NULL}, &a);
        for (int row = 0; row < m; row++)
            assert_close(y + row * stride, want + row * stride, n, 2e-5, "norm");
        if (first)
            assert_same_bits(y, first, m * stride * 4, "norm over sets");
        free(first);
        first = y;
    }
    free(first);
    for (int i = 0; i < m * stride; i++)
        x[i] *= 20;
    for (int act = ACT_RELU; act <= ACT_GELU_QUICK; act++) // x is the gate; up is one row for all
        for (float limit = 0; limit < 1; limit += 0.7f) {
            struct gate_mul_args g = {
                .up = w, .m = m, .n = n, .gate_stride = stride, .act = act, .limit = limit};
            sets_check("gate_mul", run_gate_mul, &g, x, m * stride, pool,
                       act == ACT_RELU2 ? 1e-3 : 1e-5); // squares are up to 3600
        }
    struct gate_mul_args xielu = {.m = m, .n = n, .gate_stride = stride, .alpha = {0.007f, 0.12f}};
    sets_check("xielu", run_gate_mul, &xielu, x, m * stride, pool, 1e-5);
    for (int i = 0; i < 8; i++) {
        struct mix_args mix = {.y = i & 1 ? w : NULL,
                               .m = m,
                               .n = n,
                               .x_stride = stride,
                               .a = i & 2 ? 0.22f : 1,
                               .b = i & 2 ? 0.89f : 0.5f,
                               .cap = i & 4 ? 30 : 0};
        sets_check("mix", run_mix, &mix, x, m * stride, pool, 1e-5);
    }
    struct mix_args copy = {.y = w, .m = m, .n = n, .x_stride = stride, .b = 1};
    x[0] = NAN; // not read
    sets_check("copy", run_mix, &copy, x, m * stride, pool, 0);
    pool_close(pool);
    free(want);
    free(bias);
    free(w);
    free(x);
}

static void rows_equal_ref(void **state)
{
    (void)state;
    static const int dims[] = {1, 15, 16, 17, 64, 100, 576};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (int m = 1; m < 8; m += 3) {
            rows_check(m, dims[i], NORM_RMS);
            rows_check(m, dims[i], NORM_LAYER);
        }
}

/* Squares that overflow give NaN, which ends the row; the largest that do not give numbers. */
static void norms_overflow(void **state)
{
    (void)state;
    enum { DIM = 48 };
    for (int kind = NORM_RMS; kind <= NORM_LAYER; kind++)
        FOR_EACH_ISA(isa)
        {
            float x[2 * DIM], y[2 * DIM], w[DIM];
            for (int i = 0; i < DIM; i++) {
                w[i] = 1;
                x[i] = i % 2 ? 1e18f : -1e18f;
                x[DIM + i] = i % 2 ? 1e25f : -1e25f;
            }
            struct norm_args a = {.x = x,
                                  .y = y,
                                  .weight = isa & 1 ? w : NULL,
                                  .m = 2,
                                  .dim = DIM,
                                  .x_stride = DIM,
                                  .y_stride = DIM,
                                  .kind = kind,
                                  .eps = 1e-5f};
            ops_run_norm(&(struct ops){.isa = isa, .compute = COMPUTE_F32}, &a);
            for (int i = 0; i < DIM; i++)
                assert_true(fabsf(fabsf(y[i]) - 1) < 1e-5f && isnan(y[DIM + i]));
        }
}

static void rope_check(int m, int n_heads, int head_dim, int rope_dim)
{
    int stride = n_heads * head_dim + 7, half = rope_dim / 2;
    float *x = noise_array(21, m * stride, 1), *c = take(m * half * 4), *s = take(m * half * 4);
    for (int i = 0; i < m * half; i++) {
        c[i] = cosf((float)i * 0.37f);
        s[i] = sinf((float)i * 0.37f);
    }
    int32_t *pos = take(m * 4);
    for (int i = 0; i < m; i++)
        pos[i] = (i * 7 + 3) % m; // rows of a batch come in any order
    float *factors = noise_array(22, m, 3);
    struct rope_args a = {.cos = c,
                          .sin = s,
                          .pos = pos,
                          .m = m,
                          .n_heads = n_heads,
                          .head_dim = head_dim,
                          .rope_dim = rope_dim,
                          .x_stride = stride};
    sets_check("rope", run_rope, &a, x, m * stride, NULL, 1e-6);
    a.factors = factors;
    sets_check("rope and factors", run_rope, &a, x, m * stride, NULL, 1e-6);
    free(factors);
    free(pos);
    free(s);
    free(c);
    free(x);
}

static void rope_equals_ref(void **state)
{
    (void)state;
    rope_check(1, 1, 64, 64);
    rope_check(5, 3, 80, 32);
    rope_check(4, 9, 96, 96);
    rope_check(3, 2, 128, 20);
    rope_check(2, 2, 32, 0);
}

static void rotate_equals_ref(void **state)
{
    static const int n[] = {8, 40, 96, 576, 768}, block[] = {8, 8, 16, 64, 256};
    (void)state;
    for (int i = 0, m = 3; i < 5; i++) {
        float *x = noise_array(24, m * (n[i] + 7), 1);
        struct rotate_args a = {.m = m, .n = n[i], .block = block[i], .x_stride = n[i] + 7};
        sets_check("rotate", run_rotate, &a, x, m * (n[i] + 7), NULL, 1e-6);
        free(x);
    }
}

/* Rows of a matrix in any order, plain and added, in formats of all kinds. */
static void gather_equals_decoding(void **state)
{
    (void)state;
    enum { ROWS = 40, N = 23, K = 256 };
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_K};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        int64_t row_bytes = dtype_row_bytes(dtypes[d], K), offsets[N];
        uint8_t *rows = take(ROWS * row_bytes);
        float *x = noise_array(51, N * (K + 3), 1), *want = copy_of(x, N * (K + 3) * 4), row[K];
        for (int64_t i = 0; i < ROWS * row_bytes; i++)
            rows[i] = (uint8_t)(mix64((uint64_t)i) & 0x3b); // no exponent of a NaN in it
        for (int i = 0; i < N; i++)
            offsets[i] = (int64_t)(mix64((uint64_t)i) % ROWS) * row_bytes;
        struct gather_args a = {.dtype = dtypes[d],
                                .k = K,
                                .rows = rows,
                                .offsets = offsets,
                                .x_stride = K + 3,
                                .n = N};
        for (int add = 0; add <= 1; add++) {
            for (int i = 0; i < N; i++) {
                dtype_decode_row(dtypes[d], rows + offsets[i], K, row);
                for (int k = 0; k < K; k++)
                    want[i * (K + 3) + k] = add ? want[i * (K + 3) + k] + row[k] : row[k];
            }
            a.add = add;
            for (int threads = 1; threads <= 4; threads += 3) {
                struct ops ops = {.isa = threads > 1 ? isa_best() : ISA_REF,
                                  .pool = threads > 1 ? pool_of(threads) : NULL};
                a.x = copy_of(x, N * (K + 3) * 4);
                a.scratch = take(gather_scratch_bytes(&ops, K));
                ops_run_gather(&ops, &a);
                assert_same_bits(a.x, want, N * (K + 3) * 4, "gather");
                free(a.scratch);
                free(a.x);
                pool_close(ops.pool);
            }
            memcpy(x, want, N * (K + 3) * 4);
        }
        free(rows);
        free(want);
        free(x);
    }
}

static void compact_moves_rows_forward(void **state)
{
    (void)state;
    enum { M = 30, N = 11 };
    static const int32_t from[N] = {0, 1, 4, 5, 6, 9, 12, 13, 20, 28, 29};
    static const int dims[] = {1, 16, 100, 576};
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (int threads = 0; threads <= 4; threads++) {
            struct ops ops = {.isa = threads > 0 ? isa_best() : ISA_REF,
                              .pool = threads > 0 ? pool_of(threads) : NULL};
            int dim = dims[d];
            float *x = noise_array(52, M * dim, 1), *was = copy_of(x, M * dim * 4);
            ops_run_compact(&ops, &(struct compact_args){.x = x, .from = from, .n = N, .dim = dim});
            for (int i = 0; i < N; i++)
                assert_same_bits(x + i * dim, was + from[i] * dim, dim * 4, "compact");
            assert_same_bits(x + N * dim, was + N * dim, (M - N) * dim * 4, "behind");
            pool_close(ops.pool);
            free(was);
            free(x);
        }
}

static void cast_rounds_to_nearest_even(void **state)
{
    (void)state;
    static const struct {
        uint32_t f32;
        uint16_t bf16;
    } known[] = {{0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81},
                 {0xff7fffff, 0xff80}, {0x7f800001, 0x7fc0}, {0x80000000, 0x8000},
                 {0x00007fff, 0},      {0x00018000, 2},      {0xc0490fdb, 0xc049}};
    enum { N = 77, KNOWN = sizeof known / sizeof *known };
    for (int threads = 0; threads <= 4; threads++) {
        struct ops ops = {.isa = threads > 0 ? isa_best() : ISA_REF,
                          .pool = threads > 0 ? pool_of(threads) : NULL};
        uint32_t from[N], back[N + 1];
        uint16_t to[N + 1];
        to[N] = 7;
        back[N] = 7;
        for (int i = 0; i < N; i++)
            from[i] = known[i % KNOWN].f32;
        ops_run_cast(&ops, &(struct cast_args){.from = from, .to = to, .n = N});
        ops_run_cast(&ops, &(struct cast_args){.from = to, .to = back, .n = N, .widens = 1});
        for (int i = 0; i < N; i++) {
            assert_int_equal(to[i], known[i % KNOWN].bf16);
            assert_int_equal(back[i], (uint32_t)to[i] << 16);
        }
        assert_int_equal(to[N] + back[N], 14);
        pool_close(ops.pool);
    }
}

static void kv_store_check(enum kv_format format, int head_dim)
{
    struct kv_layout l;
    kv_layout_init(&l, format, 3, head_dim);
    enum { N = 100 };
    int stride = 3 * head_dim + 2;
    float *k = noise_array(31, N * stride, 1), *v = noise_array(32, N * stride, 1);
    static const float odd_ones[] = {NAN, INFINITY, 1e-40f, -1e-45f, 3.3e38f, -0.0f};
    for (int i = 0; i < 6; i++)
        k[i * 37] = v[i * 41] = odd_ones[i];
    uint8_t *want = take(4 * l.page_bytes), *pages = take(4 * l.page_bytes);
    struct kv_store_args a = {.layout = l,
                              .pages = want,
                              .k = k,
                              .v = v,
                              .k_stride = stride,
                              .v_stride = stride,
                              .first = 0,
                              .n = N};
    ops_run_kv_store(&(struct ops){.isa = ISA_REF, .compute = COMPUTE_F32, .pool = NULL}, &a);
    struct pool *pool = pool_of(3);
    a.pages = pages;
    for (int first = 0, n; first < N; first += n) {
        n = first + 45 < N ? 45 : N - first;
        a.first = first;
        a.n = n;
        a.k = k + first * stride;
        a.v = v + first * stride;
        ops_run_kv_store(&(struct ops){.isa = isa_best(), .compute = COMPUTE_F32, .pool = pool},
                         &a);
    }
    assert_same_bits(pages, want, 4 * l.page_bytes, "kv_store");
    pool_close(pool);
    free(pages);
    free(want);
    free(v);
    free(k);
}

static void kv_store_fills_pages(void **state)
{
    (void)state;
    for (enum kv_format format = KV_F32; format <= KV_BF16; format++) {
        kv_store_check(format, 80);
        kv_store_check(format, 33);
    }
}

/* ---- head ---- */

struct head_case {
    int want, n_top, n_edits;
    float temperature;
};

static void head_run(enum isa isa, const float *logits, int m, int vocab, struct head_case c,
                     const struct logit_edit *edits, struct pool *pool, int slice,
                     struct head_result *results, struct head_candidate *candidates)
{
    struct head_request requests[16];
    for (int row = 0; row < m; row++) {
        requests[row] = (struct head_request){
            .want = c.want,
            .target = 5 + row * 700,
            .temperature = c.temperature,
            .noise_key = mix64((uint64_t)row),
            .n_edits = c.n_edits,
            .n_top = c.n_top,
            .place = row,
        };
        head_start(&results[row]);
    }
    for (int first = 0; first < vocab; first += slice)
        ops_run_head_reduce(
            &(struct ops){.isa = isa, .compute = COMPUTE_F32, .pool = pool},
            &(struct head_reduce_args){.logits = logits + first,
                                       .stride = vocab,
                                       .requests = requests,
                                       .results = results,
                                       .edits = edits,
                                       .candidates = candidates,
                                       .m = m,
                                       .n = vocab - first < slice ? vocab - first : slice,
                                       .first = first});
}

static void head_compare(const struct head_result *a, const struct head_result *b,
                         struct head_candidate *ca, struct head_candidate *cb, double tolerance)
{
    assert_int_equal(a->best_id, b->best_id);
    assert_true(a->best_logit == b->best_logit);
    assert_true(a->max == b->max && a->target_logit == b->target_logit);
    assert_true(a->sum == b->sum || fabs(log(a->sum) - log(b->sum)) <= tolerance);
    assert_int_equal(a->n_top, b->n_top);
    for (int i = 0; i < a->n_top; i++) {
        assert_int_equal(a->top[i].id, b->top[i].id);
        assert_true(a->top[i].logit == b->top[i].logit);
    }
    assert_int_equal(a->sample_id, b->sample_id);
    assert_int_equal(a->n_filter, b->n_filter);
    qsort(ca, (size_t)a->n_filter, sizeof *ca, candidate_order);
    qsort(cb, (size_t)b->n_filter, sizeof *cb, candidate_order);
    for (int i = 0; i < a->n_filter; i++) {
        assert_int_equal(ca[i].id, cb[i].id);
        assert_true(ca[i].raw == cb[i].raw);
        assert_true(fabsf(ca[i].logit - cb[i].logit) <= 1e-6f * fabsf(cb[i].logit));
    }
}

static void head_equals_ref(void **state)
{
    (void)state;
    enum { M = 4 };
    static const int vocabs[] = {1, 7, 1024, 1500, 4096, 4097, 9000};
    static const struct head_case cases[] = {
        {HEAD_SCORE, 0, 0, 0},
        {HEAD_SCORE | HEAD_TOP | HEAD_SAMPLE, 20, 3, 0.7f},
        {HEAD_SAMPLE, 0, 3, 0},
        {HEAD_TOP | HEAD_FILTER, 3, 3, 1},
        {HEAD_SCORE | HEAD_SAMPLE | HEAD_FILTER, 0, 0, 1.3f},
    };
    static const struct logit_edit edits[] = {{0, 1.5f, 0}, {6, 1, -3}, {4100, 1.2f, 2}};
    struct pool *pool = pool_of(3);
    struct head_candidate *ca = take(M * HEAD_SAMPLE_MAX * (int64_t)sizeof *ca);
    struct head_candidate *cb = take(M * HEAD_SAMPLE_MAX * (int64_t)sizeof *cb);
    for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++) {
        float *logits = noise_array(41 + v, M * vocabs[v], 8);
        for (int i = 0; i < M * vocabs[v]; i++) // many ties
            logits[i] = i % 3 ? logits[i] : rintf(logits[i]);
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            struct head_result want[M], first[M], got[M];
            head_run(ISA_REF, logits, M, vocabs[v], cases[c], edits, NULL, HEAD_TILE, want, cb);
            FOR_EACH_ISA(isa)
            {
                head_run(isa, logits, M, vocabs[v], cases[c], edits, pool, HEAD_TILE, got, ca);
                if (isa == ISA_PORTABLE)
                    memcpy(first, got, sizeof got);
                for (int i = 0; i < M; i++) {
                    assert_true(got[i].sum == first[i].sum);
                    assert_true(got[i].sample_value == first[i].sample_value);
                    if (cases[c].want & HEAD_SAMPLE)
                        assert_true(got[i].sample_logit ==
                                    logits[i * vocabs[v] + got[i].sample_id]);
                    head_compare(&got[i], &want[i], ca + i * HEAD_SAMPLE_MAX,
                                 cb + i * HEAD_SAMPLE_MAX, 1e-5);
                }
                // slices of two tiles leave the same bits
                head_run(isa, logits, M, vocabs[v], cases[c], edits, NULL, 2 * HEAD_TILE, got, ca);
                for (int i = 0; i < M; i++)
                    assert_true(got[i].sum == first[i].sum && got[i].max == first[i].max &&
                                got[i].sample_value == first[i].sample_value);
            }
        }
        free(logits);
    }
    pool_close(pool);
    free(ca);
    free(cb);
}

static void head_survives_nan(void **state)
{
    (void)state;
    float logits[50];
    struct head_result s;
    struct head_candidate *c = take(HEAD_SAMPLE_MAX * (int64_t)sizeof *c);
    struct head_case all = {HEAD_SCORE | HEAD_TOP | HEAD_SAMPLE | HEAD_FILTER, 20, 0, 1};
    FOR_EACH_ISA(isa)
    for (int n_bad = 1; n_bad <= 50; n_bad += 49)
        for (int kind = 0; kind < 2; kind++) {
            for (int i = 0; i < 50; i++)
                logits[i] = i < 50 - n_bad ? noise(3, i) : kind ? INFINITY : NAN;
            head_run(isa, logits, 1, 50, all, NULL, NULL, HEAD_TILE, &s, c);
            assert_true(isnan(s.best_logit));
            assert_in_range(s.best_id, 0, 49);
            assert_in_range(s.sample_id, 0, 49);
        }
    for (int i = 0; i < 50; i++)
        logits[i] = i == 20 ? 1.0f : -INFINITY; // masked logits are no trouble
    head_run(isa_best(), logits, 1, 50, all, NULL, NULL, HEAD_TILE, &s, c);
    assert_int_equal(s.best_id, 20);
    assert_int_equal(s.sample_id, 20);
    assert_true(s.max == 1 && s.sum == 1);
    free(c);
}

/* The sampled id is that of every id's noise, looked at one by one, to the bit. */
static void sampling_skips_nothing(void **state)
{
    (void)state;
    enum { VOCAB = 9001, KEYS = 12 };
    static const float temperatures[] = {1e-6f, 0.01f, 0.3f, 1, 5, 100},
                       scales[] = {0, 0.1f, 8, 900};
    float *noises = take(VOCAB * 4);
    for (int key = 0; key < KEYS; key += sweep(5, 1)) // 5: each kind of masks, key % 3
        for (int scale = 0; scale < 4; scale++) {
            float *logits = noise_array((uint64_t)key, VOCAB, scales[scale]);
            logits[key * 7] = NAN;
            for (int i = 0; i < VOCAB && key % 3 == 2; i++)
                logits[i] = i % 50 == key ? logits[i] : -INFINITY;
            for (int32_t id = 0; id < VOCAB; id++)
                noises[id] = head_gumbel(mix64(0), id);
            for (int t = 0; t < 6; t++) {
                float best = -INFINITY;
                int32_t best_id = 0;
                for (int32_t id = 0; id < VOCAB; id++) {
                    float value = logits[id] / temperatures[t] + noises[id];
                    best_id = value > best ? id : best_id;
                    best = value > best ? value : best;
                }
                FOR_EACH_ISA(isa)
                {
                    struct head_result s;
                    struct head_case c = {HEAD_SAMPLE, 0, 0, temperatures[t]};
                    head_run(isa, logits, 1, VOCAB, c, NULL, NULL, HEAD_TILE, &s, NULL);
                    assert_int_equal(s.sample_id, best_id);
                    assert_same_bits(&s.sample_value, &best, 4, "value");
                    assert_same_bits(&s.sample_logit, &logits[best_id], 4, "logit");
                }
            }
            free(logits);
        }
    free(noises);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_close_and_clean),
        cmocka_unit_test(gelu_is_the_erf_form),
        cmocka_unit_test(gumbel_has_its_moments),
        cmocka_unit_test(isa_names_round_trip),
        cmocka_unit_test(matmul_equals_ref),
        cmocka_unit_test(matmul_finishes),
        cmocka_unit_test(matmul_rows_do_not_meet),
        cmocka_unit_test(matmul_long_chains),
        cmocka_unit_test(matmul_rows_do_not_meet_in_any_format),
        cmocka_unit_test(rows_equal_ref),
        cmocka_unit_test(norms_overflow),
        cmocka_unit_test(rope_equals_ref),
        cmocka_unit_test(rotate_equals_ref),
        cmocka_unit_test(gather_equals_decoding),
        cmocka_unit_test(compact_moves_rows_forward),
        cmocka_unit_test(cast_rounds_to_nearest_even),
        cmocka_unit_test(kv_store_fills_pages),
        cmocka_unit_test(head_equals_ref),
        cmocka_unit_test(head_survives_nan),
        cmocka_unit_test(sampling_skips_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
