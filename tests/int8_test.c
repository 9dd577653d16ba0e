/* tests/int8_test.c - matmul under --compute int8: whole numbers are exact, the rest is near
 * kernels/ref, and all instruction sets, threads, tiles and positions give the same bits. */
#include "tests/ops_help.h"

#include "kernels/cpu/int8.h"
#include "kernels/dtype_own.h"
#include "tests/skip.h"

/* W[n, k] from f32 rows [n][k], in panels. */
static struct weight weight_of(enum dtype t, int n, int k, const float *numbers)
{
    const int64_t row_bytes = dtype_row_bytes(t, k);
    uint8_t *rows = take(row_bytes * n);
    for (int i = 0; i < n; i++)
        dtype_encode_row(t, numbers + (int64_t)i * k, k, rows + i * row_bytes);
    return weight_pack(t, n, k, rows);
}

static void check(enum dtype t, int m, int n, int k, struct matmul_args a)
{
    float *w = noise_array(1, (int64_t)n * k, 1), *bias = noise_array(4, n, 1);
    a.parts[0].w = weight_of(t, n, k, w);
    a.m = m;
    a.x_stride = k + 3;
    a.parts[0].y_stride = n + 5;
    float *x = noise_array(2, m * a.x_stride, 1), *y0 = noise_array(3, m * a.parts[0].y_stride, 1);
    a.x = x;
    a.parts[0].bias = a.parts[0].bias ? bias : NULL;
    float *want = matmul_run(ISA_REF, COMPUTE_INT8, NULL, a, y0), *first = NULL;
    FOR_EACH_ISA(isa)
    {
        float *y = matmul_run(isa, COMPUTE_INT8, NULL, a, y0);
        char what[128];
        snprintf(what, sizeof what, "%s %s m %d n %d k %d", isa_name(isa), dtype_info(t)->name, m,
                 n, k);
        double steep = a.parts[0].act == ACT_RELU2 ? 100 : 1; // twice the largest x
        assert_close(y, want, m * a.parts[0].y_stride, 1e-6 * (1 + sqrt(k)) * steep, what);
        if (first) {
            assert_same_bits(y, first, m * a.parts[0].y_stride * 4, what);
            free(y);
        } else {
            first = y;
        }
    }
    free(first);
    free(want);
    free((void *)a.parts[0].w.panels);
    free(w);
    free(x);
    free(y0);
    free(bias);
}

static void equals_ref(void **state)
{
    (void)state;
    static const int shapes[][3] = {{1, 1, 1},    {2, 33, 31},  {5, 31, 64},   {15, 100, 80},
                                    {3, 64, 96},  {29, 40, 97}, {7, 65, 288},  {70, 33, 256},
                                    {4, 32, 512}, {13, 1, 257}, {8, 64, 1000}, {6, 33, 8200}};
    const float *some = (const float *)1; // replaced by a real bias
    for (enum dtype t = DTYPE_Q8; t <= DTYPE_Q4; t++) {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            check(t, shapes[s][0], shapes[s][1], shapes[s][2], (struct matmul_args){0});
        for (int act = ACT_NONE; act <= ACT_GELU; act++)
            for (int add = 0; add <= 1; add++)
                check(t, 9, 50, 130,
                      (struct matmul_args){
                          .parts[0].act = act, .parts[0].add = add, .parts[0].bias = some});
    }
}

/* With scales of 1 everything is a whole number: the largest codes of every sign and kind. */
static void whole_numbers_are_exact(void **state)
{
    (void)state;
    enum { M = 5, N = 40, K = 64 * 3 + 10 };
    for (enum dtype t = DTYPE_Q8; t <= DTYPE_Q4; t++)
        for (int kind = 0; kind < 4; kind++) {
            const int low = t == DTYPE_Q8 ? -127 : 0, high = t == DTYPE_Q8 ? 127 : 15;
            float *w = take(N * K * 4), *x = take(M * K * 4), *y0 = take(M * N * 4);
            for (int i = 0; i < N * K; i++) {
                const int any = low + (int)(mix64((uint64_t)i) % (uint64_t)(high - low + 1));
                w[i] = (float)(kind == 0   ? any
                               : kind == 1 ? high
                               : kind == 2 ? low
                               : i % 2     ? low
                                           : high);
            }
            for (int o = 0; o < N; o++) // every group has both ends, so that its scale is 1
                for (int i = 0; i + 1 < K; i += i % 64 == 0 ? 8 : 56) {
                    w[o * K + i] = (float)high;
                    w[o * K + i + 1] = (float)low;
                }
            for (int i = 0; i < M * K; i++)
                x[i] = kind == 0 ? (float)((int)(mix64(~(uint64_t)i) % 255) - 127)
                       : i % 3   ? 127.0f
                                 : -127.0f;
            for (int i = 0; i < M * K; i += i % K + 64 < K ? 64 : K - i % K)
                x[i] = i % 2 ? 127.0f : -127.0f; // scales of 1 for the inputs, too
            struct matmul_args a = {.parts[0].w = weight_of(t, N, K, w),
                                    .x = x,
                                    .m = M,
                                    .x_stride = K,
                                    .parts[0].y_stride = N};
            FOR_EACH_ISA(isa)
            {
                float *y = matmul_run(isa, COMPUTE_INT8, NULL, a, y0);
                for (int r = 0; r < M; r++)
                    for (int o = 0; o < N; o++) {
                        int64_t want = 0;
                        for (int i = 0; i < K; i++)
                            want += (int64_t)w[o * K + i] * (int64_t)x[r * K + i];
                        assert_true((double)y[r * N + o] == (double)want);
                    }
                free(y);
            }
            free((void *)a.parts[0].w.panels);
            free(w);
            free(x);
            free(y0);
        }
}

/* Every m, every position of a row, every number of threads: the same bits. */
static void rows_do_not_meet(void **state)
{
    (void)state;
    enum { M = 110, N = 72, K = 200 };
    for (enum dtype t = DTYPE_Q8; t <= DTYPE_Q4; t++) {
        float *w = noise_array(1, N * K, 1), *x = noise_array(5, M * K, 1);
        float *y0 = noise_array(6, M * N, 1);
        struct matmul_args a = {.parts[0].w = weight_of(t, N, K, w),
                                .x = x,
                                .m = M,
                                .x_stride = K,
                                .parts[0].y_stride = N,
                                .parts[0].add = 1};
        float *all = matmul_run(ISA_PORTABLE, COMPUTE_INT8, NULL, a, y0);
        FOR_EACH_ISA(isa)
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            struct pool *pool = pool_of(n_threads);
            for (a.m = 1; a.m <= M; a.m += n_threads == 1 ? 1 : 12) {
                int64_t first = (a.m * 7) % (M - a.m + 1);
                a.x = x + first * K;
                float *y = matmul_run(isa, COMPUTE_INT8, pool, a, y0 + first * N);
                assert_same_bits(y, all + first * N, (int64_t)a.m * N * 4, "int8 rows");
                free(y);
            }
            a.x = x;
            a.m = M;
            float *y = matmul_run(isa, COMPUTE_INT8, pool, a, y0);
            assert_same_bits(y, all, M * N * 4, "int8, all rows");
            free(y);
            pool_close(pool);
        }
        free(all);
        free((void *)a.parts[0].w.panels);
        free(w);
        free(x);
        free(y0);
    }
}

/* AVX2 without AVX-VNNI, on CPUs that have it, too. */
static void halves_equal_dot_products(void **state)
{
    (void)state;
    enum { M = 11, N = 72, K = 200 };
    if (!isa_here(ISA_AVX2))
        skip_because("this CPU has no %s", isa_name(ISA_AVX2));
    for (enum dtype t = DTYPE_Q8; t <= DTYPE_Q4; t++) {
        float *w = noise_array(1, N * K, 1), *x = noise_array(5, M * K, 1);
        float *y0 = noise_array(6, M * N, 1);
        const struct ops ops = {.isa = ISA_AVX2, .compute = COMPUTE_INT8};
        struct matmul_args a = {.parts[0].w = weight_of(t, N, K, w),
                                .x = x,
                                .m = M,
                                .x_stride = K,
                                .parts[0].y_stride = N,
                                .n_parts = 1};
        float *want = matmul_run(ISA_PORTABLE, COMPUTE_INT8, NULL, a, y0);
        float *y = a.parts[0].y = copy_of(y0, M * N * 4);
        a.scratch = take(matmul_scratch_bytes(&ops, M, N, K));
        cpu_matmul_int8_avx2(&ops, &a);
        assert_same_bits(y, want, M * N * 4, "int8 in halves");
        free(a.scratch);
        free(y);
        free(want);
        free((void *)a.parts[0].w.panels);
        free(w);
        free(x);
        free(y0);
    }
}

/* Rows that have no scale: not finite, zero, too small; the others do not notice. */
static void odd_rows(void **state)
{
    (void)state;
    enum { M = 9, N = 33, K = 70 };
    static const int others[] = {0, 3, 5, 8};
    for (enum dtype t = DTYPE_Q8; t <= DTYPE_Q4; t++) {
        float *w = noise_array(1, N * K, 1), *x = noise_array(5, M * K, 1), *y0 = take(M * N * 4);
        struct matmul_args a = {.parts[0].w = weight_of(t, N, K, w),
                                .x = x,
                                .m = M,
                                .x_stride = K,
                                .parts[0].y_stride = N};
        float *plain = matmul_run(ISA_REF, COMPUTE_INT8, NULL, a, y0);
        x[1 * K + 69] = NAN;
        x[2 * K + 3] = -INFINITY;
        memset(x + 4 * K, 0, K * 4);
        for (int i = 0; i < K; i++)
            x[6 * K + i] = 1e-42f * (float)i;
        for (int i = 0; i < K; i++)
            x[7 * K + i] *= 1e30f;
        FOR_EACH_ISA(isa)
        {
            float *y = matmul_run(isa, COMPUTE_INT8, NULL, a, y0);
            for (int o = 0; o < N; o++) {
                assert_true(isnan(y[1 * N + o]) && isnan(y[2 * N + o]));
                assert_true(y[4 * N + o] == 0 && y[6 * N + o] == 0);
                assert_true(!isnan(y[7 * N + o]));
                for (int i = 0; i < 4; i++) {
                    const int r = others[i];
                    assert_true(fabsf(y[r * N + o] - plain[r * N + o]) < 1e-4f);
                }
            }
            free(y);
        }
        free(plain);
        free((void *)a.parts[0].w.panels);
        free(w);
        free(x);
        free(y0);
    }
}

/* Weights of another format are multiplied as under bf16. */
static void other_formats_go_as_bf16(void **state)
{
    (void)state;
    enum { M = 3, N = 40, K = 96 };
    static const enum dtype formats[] = {DTYPE_BF16, DTYPE_F32};
    float *w = noise_array(1, N * K, 1), *x = noise_array(5, M * K, 1), *y0 = take(M * N * 4);
    for (int f = 0; f < 2; f++)
        FOR_EACH_ISA(isa)
        {
            struct matmul_args a = {.parts[0].w = weight_of(formats[f], N, K, w),
                                    .x = x,
                                    .m = M,
                                    .x_stride = K,
                                    .parts[0].y_stride = N};
            float *want = matmul_run(isa, COMPUTE_BF16, NULL, a, y0);
            float *got = matmul_run(isa, COMPUTE_INT8, NULL, a, y0);
            assert_same_bits(got, want, M * N * 4, "bf16 weights under int8");
            free(want);
            free(got);
            free((void *)a.parts[0].w.panels);
        }
    free(w);
    free(x);
    free(y0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_ref),       cmocka_unit_test(whole_numbers_are_exact),
        cmocka_unit_test(rows_do_not_meet), cmocka_unit_test(halves_equal_dot_products),
        cmocka_unit_test(odd_rows),         cmocka_unit_test(other_formats_go_as_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
