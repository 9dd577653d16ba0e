/* tests/simt_decode_test.c - the decode op of CUDA under the shim, against the CPU's bit by bit:
 * every format, panels and rows, whole and broken chunks, random bytes. */
#include "tests/simt_help.h"

static const struct ops f32_ops = {.isa = ISA_EXACT, .compute = COMPUTE_F32};

/* Equal, or both NaN. */
static int same_f32(uint32_t a, uint32_t b)
{
    int nan_a = (a & 0x7fffffff) > 0x7f800000, nan_b = (b & 0x7fffffff) > 0x7f800000;
    return a == b || (nan_a && nan_b);
}

/* A number of either size as bits of f32. */
static uint32_t number_of(enum dtype t, const void *from, int64_t i)
{
    uint32_t u;
    float f;
    if (t == DTYPE_F32) {
        memcpy(&u, (const uint8_t *)from + 4 * i, 4);
        return u;
    }
    uint16_t h;
    memcpy(&h, (const uint8_t *)from + 2 * i, 2);
    f = t == DTYPE_F16 ? f16_to_f32(h) : bf16_to_f32(h);
    memcpy(&u, &f, 4);
    return u;
}

static void number_put(enum dtype t, float x, void *to, int64_t i)
{
    const uint16_t h = t == DTYPE_F16 ? f32_to_f16(x) : f32_to_bf16(x);
    if (t == DTYPE_F32)
        memcpy((uint8_t *)to + 4 * i, &x, 4);
    else
        memcpy((uint8_t *)to + 2 * i, &h, 2);
}

/* What the op has to give: the reference's panels, or their numbers by rows. */
static void *wanted(const struct weight *w, enum dtype to, enum weight_layout layout)
{
    void *out = take(weight_bytes(layout, to, w->n, w->k));
    if (layout == WEIGHT_PANELS) {
        ops_run_decode(&f32_ops, &(struct decode_args){.w = *w, .to = to, .panels = out});
        return out;
    }
    float *f32 = take(dtype_panels_bytes(DTYPE_F32, w->n, w->k));
    const int64_t panel = (int64_t)w->k * PANEL_ROWS;
    ops_run_decode(&f32_ops, &(struct decode_args){.w = *w, .to = DTYPE_F32, .panels = f32});
    for (int r = 0; r < w->n; r++)
        for (int i = 0; i < w->k; i++)
            number_put(to, f32[r / PANEL_ROWS * panel + i * PANEL_ROWS + r % PANEL_ROWS], out,
                       r * weight_row_numbers(w->k) + i);
    free(f32);
    return out;
}

static void check(struct weight w, enum dtype to, enum weight_layout layout, uint64_t seed)
{
    const int64_t bytes = weight_bytes(layout, to, w.n, w.k);
    const struct ops ops = {.compute = COMPUTE_BF16};
    void *want = wanted(&w, to, layout), *got = take(bytes);
    char what[96];
    snprintf(what, sizeof what, "%s to %s as %s, n %d k %d", dtype_info(w.dtype)->name,
             dtype_info(to)->name, layout == WEIGHT_ROWS ? "rows" : "panels", w.n, w.k);
    device_begin(seed);
    struct decode_args args = {.w = w, .to = to, .layout = layout};
    args.w.panels = simt_of(w.panels, dtype_panels_bytes(w.dtype, w.n, w.k));
    args.panels = simt_alloc(bytes);
    cuda_decode(NULL, &ops, &args);
    simt_get(got, args.panels, bytes); // every byte has been written
    assert_no_error(what);
    for (int64_t i = 0; i < bytes / (to == DTYPE_F32 ? 4 : 2); i++)
        if (!same_f32(number_of(to, got, i), number_of(to, want, i)))
            fail_msg("%s: number %lld is %08x, not %08x", what, (long long)i, number_of(to, got, i),
                     number_of(to, want, i));
    free(want);
    free(got);
}

static void check_all(struct weight w, uint64_t seed)
{
    check(w, DTYPE_F32, WEIGHT_PANELS, seed);
    check(w, DTYPE_BF16, WEIGHT_PANELS, seed);
    check(w, DTYPE_F32, WEIGHT_ROWS, seed);
    check(w, DTYPE_F16, WEIGHT_ROWS, seed);
    check(w, DTYPE_BF16, WEIGHT_ROWS, seed);
}

/* bf16 rows whose exponents reach further than bf12's 15: some need patches, of the last row and
 * column among them. */
static struct weight patched(int n, int k, uint64_t seed)
{
    uint16_t *rows = take((int64_t)n * k * 2);
    for (int64_t i = 0; i < (int64_t)n * k; i++) {
        const int rare = mix64(seed + (uint64_t)i) % 300 == 0 && k >= 31;
        rows[i] = f32_to_bf16(ldexpf(noise(seed, i), rare ? -40 - (int)(i % 30) : 0));
    }
    if (k >= 31)
        rows[(int64_t)n * k - 1] = 0x0001;
    return weight_pack(DTYPE_BF12, n, k, (uint8_t *)rows);
}

static void every_format_decodes_as_on_the_cpu(void **state)
{
    (void)state;
    static const int shapes[][2] = {{1, 1},   {33, 2},   {32, 31},  {31, 64},  {45, 96},
                                    {64, 65}, {40, 256}, {33, 777}, {34, 1024}};
    for (enum dtype t = 0; t < N_DTYPES; t++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            const int n = shapes[i][0], k = shapes[i][1];
            if (dtype_row_bytes(t, k) <= 0 || (k > 700 && t < DTYPE_Q4_K))
                continue;
            struct weight w = t == DTYPE_BF12 ? patched(n, k, 7 + i) : weight_make(t, n, k, 7 + i);
            check_all(w, i);
            free((void *)w.panels);
        }
}

/* Infinities, NaNs and denormals in every place that a format has for them. */
static void any_bytes_decode_as_on_the_cpu(void **state)
{
    (void)state;
    for (enum dtype t = 0; t < N_DTYPES; t++) {
        const int n = 38, k = t == DTYPE_Q8 || t == DTYPE_Q4 ? 97 : 256;
        const int64_t row_bytes = dtype_row_bytes(t, k);
        uint8_t *rows = take(row_bytes * n);
        for (int64_t i = 0; i < row_bytes * n && t != DTYPE_BF12; i++)
            rows[i] = (uint8_t)mix64(31 + mix64((uint64_t)i));
        struct weight w = weight_pack(t, n, k, rows);
        check_all(w, 0);
        free((void *)w.panels);
    }
}

/* A damaged panel may decode to anything, but only inside of what it is given. */
static void hostile_patches_stay_inside(void **state)
{
    (void)state;
    enum { N = 40, K = 130 };
    const int64_t bytes = dtype_panels_bytes(DTYPE_BF12, N, K),
                  out = weight_bytes(WEIGHT_ROWS, DTYPE_BF16, N, K);
    uint8_t *panels = take(bytes);
    const struct ops ops = {.compute = COMPUTE_BF16};
    for (uint64_t seed = 0; seed < 8; seed++) {
        for (int64_t i = 0; i < bytes; i++)
            panels[i] = (uint8_t)mix64(seed + mix64((uint64_t)i));
        device_begin(seed);
        struct decode_args args = {
            .w = {.dtype = DTYPE_BF12, .n = N, .k = K, .panels = simt_of(panels, bytes)},
            .to = DTYPE_BF16,
            .panels = simt_alloc(out),
            .layout = WEIGHT_ROWS};
        cuda_decode(NULL, &ops, &args);
        assert_no_error("a damaged panel");
    }
    free(panels);
}

/* What random bytes do not meet: ties, carries into infinity. */
static void numbers_round_to_nearest_even(void **state)
{
    (void)state;
    static const uint32_t bits[] = {0,          1,          0x7fffff,   0x800000,   0x7f8000,
                                    0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001, 0x7f7fffff,
                                    0x7f800000, 0x7f800001, 0xffffffff, 0x80000000, 0x8000ffff,
                                    0x477fefff, 0x477ff000, 0x33000000, 0x33000001, 0x38800fff,
                                    0x3f801000, 0x3f803000};
    enum { N = 32, K = sizeof bits / sizeof *bits };
    uint32_t *rows = take(N * K * 4);
    for (int i = 0; i < N * K; i++)
        rows[i] = bits[(i % K + i / K) % K];
    struct weight w = weight_pack(DTYPE_F32, N, K, (uint8_t *)rows);
    check_all(w, 0);
    free((void *)w.panels);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_decodes_as_on_the_cpu),
        cmocka_unit_test(any_bytes_decode_as_on_the_cpu),
        cmocka_unit_test(hostile_patches_stay_inside),
        cmocka_unit_test(numbers_round_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
