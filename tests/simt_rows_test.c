/* tests/simt_rows_test.c - kernels/cuda/rows.cu under the SIMT shim: the bytes of ISA_EXACT, over
 * odd shapes and strides, in several orders of threads. */
#include "tests/simt_help.h"

static const struct ops exact = {.isa = ISA_EXACT, .compute = COMPUTE_F32};
static const int dims[] = {1, 2, 15, 16, 17, 31, 64, 100, 127, 128, 129, 576, 1031};
#define N_DIMS ((int)(sizeof dims / sizeof *dims))

static void norm_case(int m, int dim, int kind, int with_bias, int in_place, uint64_t seed)
{
    const int stride = dim + 3, y_stride = in_place ? stride : dim + 5;
    float *x = noise_array(11, m * stride, 20), *weight = noise_array(12, dim, 1);
    float *bias = noise_array(13, dim, 1);
    float *y = in_place ? copy_of(x, m * stride * 4) : noise_array(14, m * y_stride, 1);
    struct norm_args a = {.x = x,
                          .weight = dim % 3 ? weight : NULL,
                          .bias = with_bias ? bias : NULL,
                          .m = m,
                          .dim = dim,
                          .x_stride = stride,
                          .y_stride = y_stride,
                          .kind = kind,
                          .eps = 1e-5f};
    device_begin(seed);
    struct norm_args on = a;
    on.x = simt_of(x, m * stride * 4);
    on.weight = simt_of(a.weight, dim * 4);
    on.bias = simt_of(a.bias, dim * 4);
    on.y = in_place ? (float *)(uintptr_t)on.x : device_output(y, m, dim, y_stride);
    cuda_norm(NULL, &exact, &on);
    a.x = in_place ? y : x;
    a.y = y;
    ops_run_norm(&exact, &a);
    char what[80];
    snprintf(what, sizeof what, "norm m %d dim %d kind %d bias %d in place %d", m, dim, kind,
             with_bias, in_place);
    assert_device(on.y, y, (int64_t)m * y_stride * 4, what);
    free(x);
    free(weight);
    free(bias);
}

static void norm_sums_in_lanes(void **state)
{
    (void)state;
    for (int i = 0; i < N_DIMS * 8; i++)
        norm_case(1 + i % 5, dims[i / 8], i & 1 ? NORM_LAYER : NORM_RMS, i & 2, i & 4,
                  (uint64_t)i % 4);
    norm_case(0, 16, NORM_RMS, 0, 0, 0);
    // Longer than what a block holds in shared memory: two parts, the second of one number; three.
    norm_case(1, 8193, NORM_LAYER, 1, 1, 0);
    norm_case(2, 16400, NORM_LAYER, 1, 0, 1);
    norm_case(2, 16400, NORM_RMS, 0, 1, 2);
}

static void rope_case(int m, int n_heads, int head_dim, int rope_dim, uint64_t seed)
{
    enum { POSITIONS = 9 };
    const int stride = n_heads * head_dim + 7, half = rope_dim / 2;
    float *x = noise_array(21, m * stride, 3), *cos = noise_array(22, POSITIONS * half, 1);
    float *sin = noise_array(23, POSITIONS * half, 1);
    float *factors = seed & 1 ? noise_array(24, POSITIONS, 2) : NULL;
    int32_t pos[8];
    for (int i = 0; i < m; i++)
        pos[i] = (i * 5 + 2) % POSITIONS;
    struct rope_args a = {.x = x,
                          .cos = cos,
                          .sin = sin,
                          .factors = factors,
                          .pos = pos,
                          .m = m,
                          .n_heads = n_heads,
                          .head_dim = head_dim,
                          .rope_dim = rope_dim,
                          .x_stride = stride};
    device_begin(seed);
    struct rope_args on = a;
    on.x = simt_of(x, m * stride * 4);
    on.cos = simt_of(cos, POSITIONS * half * 4);
    on.sin = simt_of(sin, POSITIONS * half * 4);
    on.factors = factors ? simt_of(factors, POSITIONS * 4) : NULL;
    on.pos = simt_of(pos, m * 4);
    cuda_rope(NULL, &exact, &on);
    ops_run_rope(&exact, &a);
    char what[80];
    snprintf(what, sizeof what, "rope m %d heads %d dim %d of %d", m, n_heads, rope_dim, head_dim);
    assert_device(on.x, x, (int64_t)m * stride * 4, what);
    free(cos);
    free(sin);
    free(factors);
}

static void rope_turns_pairs(void **state)
{
    (void)state;
    static const int shapes[][4] = {{1, 1, 2, 2},    {3, 5, 6, 4},     {2, 9, 64, 64},
                                    {4, 3, 80, 32},  {8, 2, 128, 128}, {1, 20, 33, 16},
                                    {2, 4, 130, 66}, {2, 3, 8, 0},     {1, 35, 64, 64}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        rope_case(shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], i % 4);
}

static void rotate_case(int m, int n, int block, uint64_t seed)
{
    const int stride = n + 7;
    float *x = noise_array(25, m * stride, 3);
    struct rotate_args a = {.x = x, .m = m, .n = n, .block = block, .x_stride = stride};
    device_begin(seed);
    struct rotate_args on = a;
    on.x = simt_of(x, m * stride * 4);
    cuda_rotate(NULL, &exact, &on);
    ops_run_rotate(&exact, &a);
    char what[80];
    snprintf(what, sizeof what, "rotate m %d n %d block %d", m, n, block);
    assert_device(on.x, x, (int64_t)m * stride * 4, what);
}

static void rotate_adds_in_stages(void **state)
{
    (void)state;
    static const int shapes[][3] = {{1, 8, 8},     {3, 40, 8},    {2, 48, 16},   {1, 288, 32},
                                    {4, 576, 64},  {8, 192, 64},  {2, 128, 128}, {1, 2560, 128},
                                    {1, 256, 256}, {2, 2304, 256}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        rotate_case(shapes[i][0], shapes[i][1], shapes[i][2], i % 4);
}

static void gate_mul_is_exact(void **state)
{
    (void)state;
    for (int i = 0; i < N_DIMS; i++) {
        const int m = 1 + i % 3, n = dims[i], stride = n + 2, up_stride = n + 6;
        float *gate = noise_array(31, m * stride, i % 4 ? 100 : 2);
        float *up = i % 3 ? noise_array(32, m * up_stride, 2) : NULL; // without: xIELU
        gate[0] = i % 2 ? -INFINITY : -0.0f;
        gate[m * stride - 3] = 1e-39f;
        struct gate_mul_args a = {.gate = gate,
                                  .up = up,
                                  .m = m,
                                  .n = n,
                                  .gate_stride = stride,
                                  .up_stride = up_stride,
                                  .act = ACT_RELU + i % 4,
                                  .alpha = {0.75f, 1.125f}},
                             on = a;
        device_begin((uint64_t)i % 4);
        on.gate = simt_of(gate, m * stride * 4);
        on.up = up ? simt_of(up, m * up_stride * 4) : NULL;
        cuda_gate_mul(NULL, &exact, &on);
        ops_run_gate_mul(&exact, &a);
        assert_device(on.gate, gate, m * stride * 4, "gate_mul");
        free(up);
    }
}

static void mix_is_exact(void **state)
{
    (void)state;
    for (int i = 0; i < N_DIMS; i++) {
        const int m = 1 + i % 3, n = dims[i], stride = n + 2, y_stride = n + 6;
        float *x = noise_array(33, m * stride, 100), *y = noise_array(34, m * y_stride, 2);
        x[0] = i % 2 ? -INFINITY : 0.2499999f;
        x[0] = i % 4 == 3 ? NAN : x[0];
        struct mix_args a = {.x = x,
                             .y = i % 4 ? y : NULL,
                             .m = m,
                             .n = n,
                             .x_stride = stride,
                             .y_stride = y_stride,
                             .a = i % 4 == 3 ? 0 : 0.22f, // then x is not read
                             .b = 1.1f,
                             .cap = i % 3 ? 0 : 30},
                        on = a;
        device_begin((uint64_t)i % 4);
        on.x = simt_of(x, m * stride * 4);
        on.y = i % 4 ? simt_of(y, m * y_stride * 4) : NULL;
        cuda_mix(NULL, &exact, &on);
        ops_run_mix(&exact, &a);
        assert_device(on.x, x, m * stride * 4, "mix");
        free(y);
    }
}

static void gather_case(enum dtype t, int k, int n, int add, uint64_t seed)
{
    enum { ROWS = 7 };
    const int stride = k + 4;
    const int64_t row_bytes = dtype_row_bytes(t, k);
    uint8_t *rows = take(ROWS * row_bytes + 1);
    int64_t offsets[16];
    float *x = noise_array(41, (int64_t)n * stride, 1);
    for (int i = 0; i < ROWS; i++)
        fill_row(dtype_of_rows(t), (uint64_t)(t * 100 + i), k, rows + 1 + i * row_bytes);
    for (int i = 0; i < n; i++)
        offsets[i] = (i * 3 + 1) % ROWS * row_bytes + 1; // rows need no alignment
    struct gather_args a = {.dtype = t,
                            .k = k,
                            .rows = rows,
                            .offsets = offsets,
                            .x = x,
                            .x_stride = stride,
                            .n = n,
                            .add = add};
    device_begin(seed);
    struct gather_args on = a;
    on.rows = simt_of(rows, ROWS * row_bytes + 1);
    on.offsets = simt_of(offsets, n * 8);
    on.x = add ? simt_of(x, (int64_t)n * stride * 4) : device_output(x, n, k, stride);
    cuda_gather(NULL, &exact, &on);
    a.scratch = take(gather_scratch_bytes(&exact, k));
    ops_run_gather(&exact, &a);
    char what[80];
    snprintf(what, sizeof what, "gather %s k %d n %d add %d", dtype_info(t)->name, k, n, add);
    assert_device(on.x, x, (int64_t)n * stride * 4, what);
    free(a.scratch);
    free(rows);
}

static void gather_decodes_every_format(void **state)
{
    (void)state;
    static const int widths[] = {1, 31, 64, 100, 256, 512, 768};
    for (enum dtype t = 0; t < N_DTYPES; t++)
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
            if (dtype_row_bytes(t, widths[i]) > 0)
                gather_case(t, widths[i], 1 + (int)i, (int)(i + (size_t)t) % 2, i % 4);
    gather_case(DTYPE_F32, 8, 0, 0, 0);
}

static void compact_keeps_the_order(void **state)
{
    (void)state;
    static const int32_t from[] = {0, 2, 2, 3, 6, 8, 9};
    for (int i = 0; i < N_DIMS * 3; i++) {
        const int n = i % 3 * 3 + 1, dim = dims[i / 3];
        float *x = noise_array(51, 10 * dim, 1);
        struct compact_args a = {.x = x, .from = from, .n = n, .dim = dim}, on = a;
        device_begin((uint64_t)i % 4);
        on.x = simt_of(x, 10 * dim * 4);
        on.from = simt_of(from, sizeof from);
        cuda_compact(NULL, &exact, &on);
        ops_run_compact(&exact, &a);
        assert_device(on.x, x, 10 * dim * 4, "compact");
    }
}

static void cast_is_exact(void **state)
{
    (void)state;
    static const int sizes[] = {1, 7, 8, 9, 256, 2048, 2049, 5000};
    for (int i = 0; i < 8 * 6; i++) {
        const int n = sizes[i / 6], widens = i % 2, off = i % 3; // bf16 that is not aligned, too
        const int64_t in = widens ? 2 : 4, out = widens ? 4 : 2;
        uint8_t *from = (void *)noise_array(61, n + 8, 1), *to = take((n + 8) * out);
        struct cast_args a = {from + off * in, to + off * out, n, widens}, on = a;
        device_begin((uint64_t)i % 4);
        uint8_t *there = simt_of(to, (n + 8) * out);
        on.from = (const uint8_t *)simt_of(from, (n + 8) * 4) + off * in;
        on.to = there + off * out;
        cuda_cast(NULL, &exact, &on);
        ops_run_cast(&exact, &a);
        assert_device((void *)there, (void *)to, (n + 8) * out, "cast");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_sums_in_lanes),
        cmocka_unit_test(rope_turns_pairs),
        cmocka_unit_test(rotate_adds_in_stages),
        cmocka_unit_test(gate_mul_is_exact),
        cmocka_unit_test(mix_is_exact),
        cmocka_unit_test(gather_decodes_every_format),
        cmocka_unit_test(compact_keeps_the_order),
        cmocka_unit_test(cast_is_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
