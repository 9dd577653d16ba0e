/* tests/simt_matmul_test.c - the matmuls of CUDA under the shim.
 *
 * In f32 every format, and in int8 q8 and q4, against the order reference byte for byte. On tensor
 * cores against one chain per output of the shim's tensor core, taken from outside in scalar steps.
 * Rows give the same bytes whatever m, their place and the order of threads and blocks. */
#include "kernels/ref/ref.h"
#include "tests/simt_help.h"

static const int ms[] = {1, 2, 7, 16, 17, 64, 100, 130};
#define N_MS  ((int)(sizeof ms / sizeof *ms))
#define M_MAX 130

/* A matmul on the device, of host pointers. Returns y's bytes in place of a.parts[].y. */
static void device_run(enum compute compute, struct matmul_args a, float *const *y, uint64_t seed,
                       const char *what)
{
    const struct ops ops = {.compute = compute};
    int n_max = 0;
    device_begin(seed);
    a.x = simt_of(a.x, ((a.m - 1) * a.x_stride + a.parts[0].w.k) * 4);
    for (int i = 0; i < a.n_parts; i++) {
        struct matmul_part *p = &a.parts[i];
        p->y = p->add ? simt_of(y[i], a.m * p->y_stride * 4)
                      : device_output(y[i], a.m, p->w.n, p->y_stride);
        p->bias = simt_of(p->bias, p->w.n * 4);
        p->w.panels = simt_of(p->w.panels, weight_bytes(p->w.layout, p->w.dtype, p->w.n, p->w.k));
        n_max = p->w.n > n_max ? p->w.n : n_max;
    }
    a.scratch = simt_alloc(cuda_matmul_scratch_bytes(&ops, a.m, n_max, a.parts[0].w.k));
    if (a.same_x) { // a call before has read x, which is gone now
        struct matmul_args before = a;
        before.same_x = 0;
        cuda_matmul(NULL, &ops, &before);
        simt_forget((void *)(uintptr_t)a.x, 4);
        for (int i = 0; i < a.n_parts; i++)
            simt_forget(a.parts[i].y, a.m * a.parts[i].y_stride * 4);
    }
    cuda_matmul(NULL, &ops, &a);
    for (int i = 0; i < a.n_parts; i++)
        simt_get(y[i], a.parts[i].y, a.m * a.parts[i].y_stride * 4);
    assert_no_error(what);
}

static float *device_y(enum compute compute, struct matmul_args a, const float *y0, uint64_t seed,
                       const char *what)
{
    float *y = copy_of(y0, a.m * a.parts[0].y_stride * 4);
    a.n_parts = 1;
    device_run(compute, a, &y, seed, what);
    return y;
}

/* W in rows of bf16 or f16, decoded by the reference. */
static struct weight in_rows(const struct weight *w, enum dtype to)
{
    const int64_t row = weight_row_numbers(w->k), panel = dtype_panel_bytes(DTYPE_F32, w->k) / 4;
    const struct ops ops = {.isa = ISA_EXACT, .compute = COMPUTE_F32};
    float *f32 = take(dtype_panels_bytes(DTYPE_F32, w->n, w->k));
    uint16_t *out = take(weight_bytes(WEIGHT_ROWS, to, w->n, w->k));
    ops_run_decode(&ops, &(struct decode_args){.w = *w, .to = DTYPE_F32, .panels = f32});
    for (int r = 0; r < w->n; r++)
        for (int i = 0; i < w->k; i++) {
            const float x = f32[r / PANEL_ROWS * panel + i * PANEL_ROWS + r % PANEL_ROWS];
            out[r * row + i] = to == DTYPE_F16 ? f32_to_f16(x) : f32_to_bf16(x);
        }
    free(f32);
    return (struct weight){.dtype = to, .n = w->n, .k = w->k, .panels = out, .layout = WEIGHT_ROWS};
}

/* What rows of W are of on a card of this architecture, or of that of the PTX: sm_75 has no bf16.
 */
static enum dtype rows_dtype(int arch)
{
    simt_arch_set(arch);
    return simt_arch() < 80 ? DTYPE_F16 : DTYPE_BF16;
}

/* What a tensor core has to give: from 0, 16 (f16: 8) numbers along k a step, up to a whole row. */
static float *chain_y(struct matmul_args a, const float *y0, int arch)
{
    const struct weight *w = &a.parts[0].w;
    const int f16 = w->dtype == DTYPE_F16, each = f16 ? 8 : 16;
    const int64_t row = weight_row_numbers(w->k);
    const uint16_t *rows = w->panels;
    uint16_t *x = take(row * 2);
    float *y = copy_of(y0, a.m * a.parts[0].y_stride * 4);
    for (int r = 0; r < a.m; r++) {
        for (int i = 0; i < w->k; i++) {
            const float number = a.x[r * a.x_stride + i];
            x[i] = f16 ? f32_to_f16(number) : f32_to_bf16(number);
        }
        for (int o = 0; o < w->n; o++) {
            float sum = 0, *at = &y[r * a.parts[0].y_stride + o];
            for (int64_t i = 0; i < row; i += each)
                sum = simt_mma_dot(arch, f16 ? SIMT_MMA_F16_K8 : SIMT_MMA_BF16, x + i,
                                   rows + o * row + i, sum);
            *at = exact_finish(&a.parts[0], sum, o, *at);
        }
    }
    free(x);
    return y;
}

struct arrays {
    float *x, *y0, *bias;
};

static struct arrays arrays_make(struct matmul_args *a, int m, int n, int k)
{
    struct arrays s = {noise_array(2, (int64_t)m * (k + 3), 1),
                       noise_array(3, (int64_t)m * (n + 5), 1), noise_array(4, n, 1)};
    a->x = s.x;
    a->m = m;
    a->x_stride = k + 3;
    a->parts[0].y_stride = n + 5;
    a->n_parts = 1;
    return s;
}

static void arrays_free(struct arrays *s)
{
    free(s->x);
    free(s->y0);
    free(s->bias);
}

/* One product against what it has to be; then every m of the table, from another row on, against
 * those rows. */
static void check(enum compute compute, struct weight w, int m, const int *m_list, int n_list,
                  int variant, int arch)
{
    struct matmul_args a = {.parts[0].w = w};
    struct arrays s = arrays_make(&a, m, w.n, w.k);
    a.parts[0].bias = variant % 2 ? s.bias : NULL;
    a.parts[0].add = variant / 2 % 2;
    a.parts[0].act = variant % 3;
    if (w.layout == WEIGHT_ROWS && w.dtype == DTYPE_BF16 && rows_dtype(arch) != DTYPE_BF16)
        return;
    char what[128];
    simt_arch_set(arch);
    arch = simt_arch(); // PTX is of one architecture
    snprintf(what, sizeof what, "%s %s m %d n %d k %d variant %d sm_%d", compute_name(compute),
             dtype_info(w.dtype)->name, m, w.n, w.k, variant, arch);
    float *want = w.layout == WEIGHT_ROWS ? chain_y(a, s.y0, arch)
                                          : matmul_run(ISA_EXACT, compute, NULL, a, s.y0);
    float *got = device_y(compute, a, s.y0, (uint64_t)variant, what);
    assert_products(w.layout, got, want, m * a.parts[0].y_stride, what);
    for (int i = 0; i < n_list; i++) {
        const int first = (m - m_list[i]) / 2 * (i % 3 != 0);
        a.m = m_list[i];
        a.x = s.x + first * a.x_stride;
        const int64_t at = first * a.parts[0].y_stride;
        float *y = device_y(compute, a, s.y0 + at, (uint64_t)i + 2, what);
        assert_same_bits(y, got + at, a.m * a.parts[0].y_stride * 4, what);
        free(y);
    }
    free(want);
    free(got);
    arrays_free(&s);
    simt_arch_set(80);
}

static void f32_gives_the_bytes_of_the_cpu(void **state)
{
    (void)state;
    static const int shapes[][3] = {{1, 1, 1},   {2, 33, 31},  {5, 31, 64},
                                    {7, 65, 96}, {17, 40, 97}, {18, 70, 256}};
    for (enum dtype t = 0; t < N_DTYPES; t++)
        for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++) {
            if (dtype_row_bytes(t, shapes[i][2]) <= 0)
                continue;
            struct weight w = weight_make(t, shapes[i][1], shapes[i][2], (uint64_t)(t * 10 + i));
            check(COMPUTE_F32, w, shapes[i][0], NULL, 0, i + (int)t, 80);
            free((void *)w.panels);
        }
}

static void f32_rows_do_not_meet(void **state)
{
    (void)state;
    static const enum dtype formats[] = {DTYPE_F32, DTYPE_BF12, DTYPE_Q4_0};
    for (int i = 0; i < 3; i++) {
        struct weight w = weight_make(formats[i], 70, 96, 5);
        check(COMPUTE_F32, w, M_MAX, ms, N_MS - 1, i, 80);
        free((void *)w.panels);
    }
}

/* Sums of -0 and of denormals stay what they are. */
static void f32_keeps_the_sign_of_zero(void **state)
{
    (void)state;
    enum { N = 40, K = 5 };
    float *rows = take(N * K * 4), x[2 * K], y0[2 * N] = {0};
    for (int i = 0; i < N * K; i++)
        rows[i] = i % 2 ? 1e-30f : -1e-30f;
    for (int i = 0; i < 2 * K; i++)
        x[i] = i < K ? 1e-30f : 1e-12f;
    struct weight w = weight_pack(DTYPE_F32, N, K, (uint8_t *)rows);
    struct matmul_args a = {
        .parts[0] = {.w = w, .y_stride = N}, .x = x, .m = 2, .x_stride = K, .n_parts = 1};
    float *want = matmul_run(ISA_EXACT, COMPUTE_F32, NULL, a, y0);
    float *got = device_y(COMPUTE_F32, a, y0, 0, "signs of zero");
    assert_same_bits(got, want, 2 * N * 4, "signs of zero");
    free(want);
    free(got);
    free((void *)w.panels);
}

static void tensor_cores_make_one_chain(void **state)
{
    (void)state;
    static const struct {
        int m, n, k, arch;
        enum dtype from;
    } cases[] = {{1, 1, 1, 80, DTYPE_BF16},     {2, 33, 31, 90, DTYPE_BF16},
                 {7, 31, 130, 80, DTYPE_F32},   {16, 40, 256, 89, DTYPE_Q4_K},
                 {17, 65, 96, 90, DTYPE_Q8},    {40, 70, 330, 80, DTYPE_BF12},
                 {130, 33, 200, 86, DTYPE_F16}, {131, 140, 65, 90, DTYPE_BF16},
                 {1, 33, 1100, 90, DTYPE_BF16}};
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        struct weight panels = weight_make(cases[i].from, cases[i].n, cases[i].k, 11);
        struct weight w = in_rows(&panels, rows_dtype(cases[i].arch));
        check(COMPUTE_BF16, w, cases[i].m, NULL, 0, 5 * i, cases[i].arch);
        free((void *)w.panels);
        free((void *)panels.panels);
    }
}

static void tensor_cores_do_not_mix_rows(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct weight panels = weight_make(DTYPE_BF16, 45, 150, 12);
        struct weight w = in_rows(&panels, rows_dtype(i ? 90 : 80));
        check(COMPUTE_BF16, w, M_MAX, ms, N_MS - 1, 4 + i, i ? 90 : 80);
        free((void *)w.panels);
        free((void *)panels.panels);
    }
}

/* sm_75: numbers of f16, 8 a step, copies at once; newer cards do the same with such rows. */
static void turing_multiplies_f16(void **state)
{
    (void)state;
    static const int archs[] = {75, 80, 90};
    struct weight panels = weight_make(DTYPE_F32, 45, 150, 13);
    struct weight w = in_rows(&panels, DTYPE_F16);
    for (int i = 0; i < 3; i++)
        check(COMPUTE_BF16, w, i ? 20 : M_MAX, ms, i ? 1 : N_MS - 1, 3 + i, archs[i]);
    free((void *)w.panels);
    free((void *)panels.panels);
}

/* Panels that are decoded on the way to the cores: the bytes of decode, then matmul. */
static void panels_check(enum dtype t, int m, int n, int k, int arch)
{
    struct weight panels = weight_make(t, n, k, (uint64_t)(t + m));
    struct weight rows = in_rows(&panels, rows_dtype(arch));
    struct matmul_args a = {.parts[0] = {.w = rows, .add = m % 2, .act = m % 3}};
    struct arrays s = arrays_make(&a, m, n, k);
    char what[128];
    snprintf(what, sizeof what, "panels of %s m %d n %d k %d sm_%d", dtype_info(t)->name, m, n, k,
             arch);
    simt_arch_set(arch);
    float *want = device_y(COMPUTE_BF16, a, s.y0, 1, what);
    a.parts[0].w = panels;
    float *got = device_y(COMPUTE_BF16, a, s.y0, (uint64_t)m, what);
    assert_same_bits(got, want, m * a.parts[0].y_stride * 4, what);
    free(want);
    free(got);
    arrays_free(&s);
    free((void *)rows.panels);
    free((void *)panels.panels);
    simt_arch_set(80);
}

static void panels_multiply_as_rows_do(void **state)
{
    (void)state;
    static const int archs[] = {75, 80, 90};
    for (enum dtype t = 0; t < N_DTYPES; t++) {
        const int block = dtype_info(t)->partial_block ? 1 : dtype_info(t)->block;
        for (int i = 0; i < 3; i++)
            panels_check(t, 1 + 20 * i, 65 + 8 * i, block == 1 ? 97 + 64 * i : (3 - i) * block,
                         archs[(i + (int)t) % 3]);
        panels_check(t, 130, 33, block == 1 ? 97 : block, archs[t % 3]);
    }
}

/* Long rows: every stage is used again. */
static void panels_of_long_rows(void **state)
{
    (void)state;
    static const enum dtype formats[] = {DTYPE_Q4,     DTYPE_Q8,   DTYPE_Q6_K,
                                         DTYPE_G4_128, DTYPE_BF12, DTYPE_IQ3_S};
    for (int i = 0; i < (int)(sizeof formats / sizeof *formats); i++)
        for (int arch = 75; arch <= 90; arch += 15) {
            panels_check(formats[i], 16, 70, 1024, arch);
            panels_check(formats[i], 33, 33, 1024, arch);
            panels_check(formats[i], 131, 130, 512, arch);
        }
    for (int i = 0; i < 2; i++) // the last stage of tiles of few rows is half full
        for (int arch = 75; arch <= 90; arch += 15) {
            panels_check(formats[i], 9, 64, 150, arch);
            panels_check(formats[i], 100, 70, 330, arch); // q8 and q4 alone have this tile
        }
}

static void int8_gives_the_bytes_of_the_cpu(void **state)
{
    (void)state;
    static const int shapes[][3] = {{1, 1, 1},   {2, 33, 31},   {5, 31, 64},  {4, 100, 80},
                                    {7, 65, 97}, {17, 40, 600}, {3, 33, 1100}};
    for (enum dtype t = DTYPE_Q8; t <= DTYPE_Q4; t++) {
        for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++) {
            struct weight w = weight_make(t, shapes[i][1], shapes[i][2], (uint64_t)i);
            check(COMPUTE_INT8, w, shapes[i][0], NULL, 0, i, 80);
            free((void *)w.panels);
        }
        struct weight w = weight_make(t, 40, 200, 3);
        check(COMPUTE_INT8, w, M_MAX, ms, N_MS - 1, 5, 75);
        check(COMPUTE_INT8, w, M_MAX, ms, N_MS - 1, 4, 90);
        free((void *)w.panels);
    }
}

/* Each tile of integer tensor cores: rings of stages that go round, an odd last group, a last group
 * of one number, rows and panels behind the last. */
static void int8_on_tensor_cores(void **state)
{
    (void)state;
    static const int shapes[][3] = {{5, 33, 65},     {16, 97, 1600},  {19, 70, 1601}, {32, 64, 832},
                                    {33, 130, 1217}, {64, 31, 1088},  {65, 65, 640},
                                    {129, 129, 449}, {140, 260, 130}, {200, 40, 705}};
    static const int archs[] = {75, 80, 90};
    for (enum dtype t = DTYPE_Q8; t <= DTYPE_Q4; t++)
        for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++) {
            struct weight w = weight_make(t, shapes[i][1], shapes[i][2], (uint64_t)i);
            check(COMPUTE_INT8, w, shapes[i][0], NULL, 0, i, archs[(i + (int)t) % 3]);
            free((void *)w.panels);
        }
}

/* m rows of x from row `first` on, against the reference; a NaN is as good as another. */
static void odd_rows_check(struct matmul_args a, int first, int m, const float *y0)
{
    const int n = a.parts[0].w.n;
    a.x += first * a.x_stride;
    a.m = m;
    float *want = matmul_run(ISA_EXACT, COMPUTE_INT8, NULL, a, y0);
    float *got = device_y(COMPUTE_INT8, a, y0, 0, "odd rows");
    for (int i = 0; i < m * n; i++)
        if (memcmp(&want[i], &got[i], 4) != 0 && !(isnan(want[i]) && isnan(got[i])))
            fail_msg("%d odd rows: number %d is %a, not %a", m, i, (double)got[i], (double)want[i]);
    free(want);
    free(got);
}

/* Rows of x that have no scale: not finite, zero, too small. On plain cores, then on tensor cores.
 */
static void int8_odd_rows(void **state)
{
    (void)state;
    enum { M = 6, N = 33, K = 70 };
    for (enum dtype t = DTYPE_Q8; t <= DTYPE_Q4; t++) {
        struct weight w = weight_make(t, N, K, 3);
        float *x = noise_array(5, M * K, 1), *y0 = take(M * N * 4);
        x[1 * K + 69] = NAN;
        x[2 * K + 3] = -INFINITY;
        memset(x + 3 * K, 0, K * 4);
        for (int i = 0; i < K; i++)
            x[4 * K + i] = 1e-42f * (float)i;
        for (int i = 0; i < K; i++)
            x[5 * K + i] *= 1e30f;
        const struct matmul_args a = {
            .parts[0] = {.w = w, .y_stride = N}, .x = x, .x_stride = K, .n_parts = 1};
        odd_rows_check(a, 1, 4, y0);
        odd_rows_check(a, 0, M, y0);
        free((void *)w.panels);
        free(x);
        free(y0);
    }
}

/* Parts of one call, each of another kind, give the bytes of calls of their own. */
static void parts_share_x_alone(void **state)
{
    (void)state;
    enum { M = 19, K = 130 };
    static const enum dtype kinds[][MATMUL_PARTS] = {{DTYPE_BF16, DTYPE_BF16, DTYPE_BF16},
                                                     {DTYPE_Q8, DTYPE_BF16, DTYPE_Q4},
                                                     {DTYPE_Q8, DTYPE_Q4, DTYPE_BF16}};
    float *x = noise_array(2, M * K, 1);
    for (int kind = 0; kind < 3; kind++) {
        struct matmul_args a = {.x = x, .m = M, .x_stride = K, .n_parts = MATMUL_PARTS};
        float *y[MATMUL_PARTS];
        struct weight w[MATMUL_PARTS];
        for (int i = 0; i < MATMUL_PARTS; i++) {
            const int n = 33 + 20 * i;
            w[i] = weight_make(kinds[kind][i], n, K, (uint64_t)i);
            a.parts[i] = (struct matmul_part){.w = w[i], .y_stride = n, .act = i};
            if (kinds[kind][i] == DTYPE_BF16)
                a.parts[i].w = in_rows(&w[i], rows_dtype(80));
            y[i] = take(M * n * 4);
        }
        device_run(COMPUTE_INT8, a, y, 3, "parts");
        for (int i = 0; i < MATMUL_PARTS; i++) {
            struct matmul_args one = a;
            float *zeros = take(M * w[i].n * 4);
            one.parts[0] = a.parts[i];
            float *alone = device_y(COMPUTE_INT8, one, zeros, 0, "a part alone");
            assert_same_bits(y[i], alone, M * w[i].n * 4, "parts");
            free(alone);
            free(zeros);
        }
        for (int i = 0; i < MATMUL_PARTS; i++) {
            if (a.parts[i].w.layout == WEIGHT_ROWS)
                free((void *)a.parts[i].w.panels);
            free((void *)w[i].panels);
            free(y[i]);
        }
    }
    free(x);
}

/* A call that reads the x of the call before finds it in scratch. */
static void calls_share_x(void **state)
{
    (void)state;
    enum { M = 19, N = 70, K = 130 };
    float *x = noise_array(2, M * K, 1), *zeros = take(M * N * 4);
    for (int i = 0; i < 3; i++) {
        struct weight w = weight_make(i == 2 ? DTYPE_Q8 : DTYPE_BF16, N, K, 7);
        struct weight rows = in_rows(&w, rows_dtype(80));
        struct matmul_args a = {.x = x, .m = M, .x_stride = K, .n_parts = 1};
        a.parts[0] = (struct matmul_part){.w = i == 0 ? rows : w, .y_stride = N};
        float *want = device_y(COMPUTE_INT8, a, zeros, 0, "alone");
        a.same_x = 1;
        float *got = device_y(COMPUTE_INT8, a, zeros, 0, "the same x");
        assert_same_bits(got, want, M * N * 4, "the same x");
        free((void *)rows.panels);
        free((void *)w.panels);
        free(want);
        free(got);
    }
    free(x);
    free(zeros);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_gives_the_bytes_of_the_cpu),
        cmocka_unit_test(f32_rows_do_not_meet),
        cmocka_unit_test(f32_keeps_the_sign_of_zero),
        cmocka_unit_test(tensor_cores_make_one_chain),
        cmocka_unit_test(tensor_cores_do_not_mix_rows),
        cmocka_unit_test(turing_multiplies_f16),
        cmocka_unit_test(panels_multiply_as_rows_do),
        cmocka_unit_test(panels_of_long_rows),
        cmocka_unit_test(int8_gives_the_bytes_of_the_cpu),
        cmocka_unit_test(int8_on_tensor_cores),
        cmocka_unit_test(int8_odd_rows),
        cmocka_unit_test(parts_share_x_alone),
        cmocka_unit_test(calls_share_x),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
