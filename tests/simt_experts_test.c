/* tests/simt_experts_test.c - kernels/cuda/experts.cu and the matmuls of experts under the SIMT
 * shim: the bytes of ISA_EXACT in f32 and int8; on tensor cores those of a matmul of one row. */
#include "tests/experts_bed.h"
#include "tests/simt_help.h"

static const struct ops exact = {.isa = ISA_EXACT, .compute = COMPUTE_F32};

static struct route device_route(const struct route *r, int m, int fresh)
{
    const int64_t bytes = route_bytes(m, r->n_experts, r->n_used);
    void *p = fresh ? simt_alloc(bytes) : simt_of(r->first, bytes);
    return route_at(p, m, r->n_experts, r->n_used);
}

static void routes_are_the_cpus(void **state)
{
    (void)state;
    static const int sizes[][3] = {{1, 2, 1},
                                   {37, 7, 3},
                                   {256, 8, 2},
                                   {65, 300, 8},
                                   {519, 40, 3},
                                   {9, 512, 8},
                                   {9, SHAPE_EXPERTS_MAX, 8}};
    const uint64_t n_sizes = sizeof sizes / sizeof *sizes;
    for (uint64_t i = 0; i < n_sizes * ROUTE_WAYS; i++) {
        const int *size = sizes[i % n_sizes], m = size[0], n = size[1], used = size[2];
        const int64_t each = m * used * 4;
        struct route want = route_make(m, n, used);
        float *logits = noise_array(5, m * (n + 1), 3);
        for (int j = 0; j < m * (n + 1); j++)
            logits[j] = j % 31 == 7 ? NAN : j % 3 ? logits[j] : rintf(logits[j]);
        float *bias = noise_array(8, n, 0.3f), *raw = copy_of(logits, m * (n + 1) * 4);
        struct route_args a = route_way(i / n_sizes, logits, n + 1, bias, want, m);
        ops_run_route(&(struct ops){.isa = ISA_PORTABLE}, &a);
        device_begin(i);
        a.logits = simt_of(raw, m * (n + 1) * 4);
        a.bias = a.bias ? simt_of(bias, n * 4) : NULL;
        a.scales = a.scales ? simt_of(bias, n * 4) : NULL;
        a.to = device_route(&want, m, 1);
        cuda_route(NULL, &exact, &a);
        const int32_t *got[] = {a.to.first, a.to.pairs, a.to.places};
        const int32_t *made[] = {want.first, want.pairs, want.places};
        for (int j = 0; j < 3; j++) {
            const int64_t bytes = j ? each : (n + 1) * 4;
            int32_t *on = device_read(got[j], bytes);
            assert_no_error("route");
            assert_same_bits(on, made[j], bytes, "route");
            free(on);
        }
        assert_device(a.to.weights, copy_of(want.weights, each), each, "weights");
        free(want.first);
        free(logits);
        free(bias);
        free(raw);
    }
}

/* gate and up of a tile, or down of pairs; y of the device in place of the parts' y. */
static void device_matmul(const struct ops *ops, struct expert_matmul_args a, int64_t x_rows,
                          uint64_t seed)
{
    const struct matmul_args *host = &a.matmul;
    float *y[MATMUL_PARTS];
    device_begin(seed);
    a.route = device_route(&a.route, TOKENS, 0);
    a.matmul.x = simt_of(host->x, x_rows * host->x_stride * 4);
    for (int i = 0; i < host->n_parts; i++) {
        struct matmul_part *p = &a.matmul.parts[i];
        y[i] = p->y;
        p->y = device_output(y[i], TOKENS * USED, p->w.n / EXPERTS, p->y_stride);
        p->bias = simt_of(p->bias, p->w.n * 4);
        p->w.panels = simt_of(p->w.panels, weight_bytes(p->w.layout, p->w.dtype, p->w.n, p->w.k));
    }
    a.matmul.scratch = simt_alloc(cuda_expert_matmul_scratch_bytes(
        ops, TOKENS, USED, host->parts[0].w.n / EXPERTS, host->parts[0].w.k));
    cuda_expert_matmul(NULL, ops, &a);
    for (int i = 0; i < host->n_parts; i++)
        simt_get(y[i], a.matmul.parts[i].y, TOKENS * USED * a.matmul.parts[i].y_stride * 4);
    assert_no_error("expert_matmul");
}

static void panels_case(enum compute compute, enum dtype t, uint64_t seed)
{
    struct bed b;
    const int64_t pairs = TOKENS * USED;
    bed_open(&b, t, 64, 96);
    free((void *)(uintptr_t)b.up.panels);
    b.up = weight_make(t, EXPERTS * b.n, b.k, 7);
    const struct ops ops = {.isa = ISA_EXACT, .compute = compute};
    float *y = take(pairs * 2 * b.n * 4), *got = take(pairs * 2 * b.n * 4);
    struct expert_matmul_args a = {
        .matmul = {.x = b.x,
                   .m = TOKENS,
                   .x_stride = b.k + 3,
                   .parts = {{.w = b.gate, .y = y, .y_stride = b.n, .bias = b.bias},
                             {.w = b.up, .y = y + pairs * b.n, .y_stride = b.n}},
                   .n_parts = 2,
                   .scratch = take(expert_matmul_scratch_bytes(&ops, TOKENS, USED, b.n, b.k))},
        .route = b.route,
        .by_token = 1};
    ops_run_expert_matmul(&ops, &a);
    struct expert_matmul_args on = a;
    on.matmul.parts[0].y = got;
    on.matmul.parts[1].y = got + pairs * b.n;
    device_matmul(&ops, on, TOKENS, seed);
    assert_same_bits(got, y, pairs * 2 * b.n * 4, "experts of tokens");
    /* And back, from the order of pairs. */
    float *down = take(pairs * b.k * 4), *got_down = take(pairs * b.k * 4);
    a.by_token = on.by_token = 0;
    a.matmul.x = on.matmul.x = y;
    a.matmul.x_stride = on.matmul.x_stride = b.n;
    a.matmul.n_parts = on.matmul.n_parts = 1;
    a.matmul.parts[0] = on.matmul.parts[0] =
        (struct matmul_part){.w = b.down, .y = down, .y_stride = b.k};
    ops_run_expert_matmul(&ops, &a);
    on.matmul.parts[0].y = got_down;
    device_matmul(&ops, on, pairs, seed + 1);
    assert_same_bits(got_down, down, pairs * b.k * 4, "experts of pairs");
    free(a.matmul.scratch);
    free(down);
    free(got_down);
    free(y);
    free(got);
    bed_close(&b);
}

static void panels_are_the_cpus(void **state)
{
    (void)state;
    panels_case(COMPUTE_F32, DTYPE_F32, 0);
    panels_case(COMPUTE_F32, DTYPE_Q4_0, 1);
    panels_case(COMPUTE_INT8, DTYPE_Q8, 2);
    panels_case(COMPUTE_INT8, DTYPE_Q4, 3);
}

/* Rows as a card of this architecture, or of that of the PTX, reads them (sm_75: f16): each pair as
 * a matmul of one row by that expert's matrix makes it. */
static void rows_case(int arch)
{
    enum { N = 64, K = 96 };
    simt_arch_set(arch);
    const enum dtype t = simt_arch() < 80 ? DTYPE_F16 : DTYPE_BF16;
    struct bed b;
    const int64_t pairs = TOKENS * USED, row = weight_row_numbers(K);
    const struct ops ops = {.compute = COMPUTE_BF16};
    bed_open(&b, DTYPE_BF16, N, K);
    uint16_t *rows = take(EXPERTS * N * row * 2);
    for (int i = 0; i < EXPERTS * N; i++)
        for (int k = 0; k < K; k++)
            rows[i * row + k] = t == DTYPE_F16 ? f32_to_f16(noise(17, i * K + k))
                                               : f32_to_bf16(noise(17, i * K + k));
    struct weight w = {.dtype = t, .n = EXPERTS * N, .k = K, .panels = rows, .layout = WEIGHT_ROWS};
    float *got = take(pairs * N * 4), *own = take(N * 4);
    struct expert_matmul_args a = {
        .matmul = {.x = b.x,
                   .m = TOKENS,
                   .x_stride = K + 3,
                   .parts = {{.w = w, .y = got, .y_stride = N, .bias = b.bias}},
                   .n_parts = 1},
        .route = b.route,
        .by_token = 1};
    device_matmul(&ops, a, TOKENS, 5);
    for (int e = 0; e < EXPERTS; e++)
        for (int i = b.route.first[e]; i < b.route.first[e + 1]; i++) {
            device_begin(6);
            struct matmul_args one = {
                .x = simt_of(b.x + b.route.pairs[i] / USED * (K + 3), K * 4),
                .m = 1,
                .x_stride = K,
                .parts = {{.w = {.dtype = t,
                                 .n = N,
                                 .k = K,
                                 .panels = simt_of(rows + e * N * row, N * row * 2),
                                 .layout = WEIGHT_ROWS},
                           .y = device_output(own, 1, N, N),
                           .y_stride = N,
                           .bias = simt_of(b.bias + e * N, N * 4)}},
                .n_parts = 1,
                .scratch = simt_alloc(cuda_matmul_scratch_bytes(&ops, 1, N, K))};
            cuda_matmul(NULL, &ops, &one);
            simt_get(own, one.parts[0].y, N * 4);
            assert_same_bits(got + i * N, own, N * 4, "a row of an expert");
        }
    free(rows);
    free(got);
    free(own);
    bed_close(&b);
}

static void rows_stand_alone(void **state)
{
    (void)state;
    rows_case(75);
    rows_case(80);
}

static void sums_are_the_cpus(void **state)
{
    (void)state;
    struct bed b;
    bed_open(&b, DTYPE_BF16, 32, 64);
    for (uint64_t i = 0; i < 12; i++) {
        const int dim = 1 + 77 * (int)(i / 3), shared = i % 3;
        const int64_t pairs = (int64_t)TOKENS * USED * (dim + 1);
        float *y = noise_array(21, pairs + TOKENS * (dim + 1), 1);
        float *x = noise_array(22, (int64_t)TOKENS * (dim + 2), 1);
        float *shares = noise_array(23, TOKENS, 6);
        struct expert_sum_args a = {.x = x,
                                    .y = y,
                                    .shared = shared ? y + pairs : NULL,
                                    .shares = shared == 2 ? shares : NULL,
                                    .route = b.route,
                                    .m = TOKENS,
                                    .n = dim,
                                    .x_stride = dim + 2,
                                    .y_stride = dim + 1,
                                    .add = i & 1};
        device_begin(i);
        struct expert_sum_args on = a;
        on.x = simt_of(x, TOKENS * (dim + 2) * 4);
        on.y = simt_of(y, pairs * 4);
        on.shared = shared ? simt_of(a.shared, TOKENS * (dim + 1) * 4) : NULL;
        on.shares = a.shares ? simt_of(shares, TOKENS * 4) : NULL;
        on.route = device_route(&b.route, TOKENS, 0);
        cuda_expert_sum(NULL, &exact, &on);
        ops_run_expert_sum(&exact, &a);
        assert_device(on.x, x, TOKENS * (dim + 2) * 4, "expert_sum");
        free(shares);
        free(y);
    }
    bed_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routes_are_the_cpus),
        cmocka_unit_test(panels_are_the_cpus),
        cmocka_unit_test(rows_stand_alone),
        cmocka_unit_test(sums_are_the_cpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
