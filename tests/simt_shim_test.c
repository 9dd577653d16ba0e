/* tests/simt_shim_test.c - the SIMT shim itself: each class of bug is met, with its line, and clean
 * kernels raise nothing; the tensor core rounds as MMA-Sim says.
 *
 * A planted bug of tests/simt/planted.cu is found by its name: the lines that it may be reported at
 * bear a comment BUG with that name. */
#include "tests/ops_help.h"
#include "tests/simt/planted.h"
#include "tests/simt/simt.h"

#define N 64

static const struct planted_case {
    const char *name;
    enum planted which;
    int n_blocks, n;
    const char *words; // of the error; "": the order of threads decides which it is
} cases[] = {
    {"missing_barrier", PLANTED_missing_barrier, 1, N, ""},
    {"missing_second_barrier", PLANTED_missing_second_barrier, 1, N, "race: "},
    {"divergent_barrier", PLANTED_divergent_barrier, 1, N, "barrier, which thread"},
    {"two_barriers", PLANTED_two_barriers, 1, N, "barrier, while thread"},
    {"wrong_mask", PLANTED_wrong_mask, 1, N, "is not in"},
    {"mask_in_a_branch", PLANTED_mask_in_a_branch, 1, N, "warp operation of mask ffffffff"},
    {"source_outside_mask", PLANTED_source_outside_mask, 1, N, "outside of mask 0000ffff"},
    {"missing_syncwarp", PLANTED_missing_syncwarp, 1, N, ""},
    {"missing_wait", PLANTED_missing_wait, 1, N, "in flight"},
    {"wait_for_too_few", PLANTED_wait_for_too_few, 1, N, "in flight"},
    {"wait_without_barrier", PLANTED_wait_without_barrier, 1, N, ""},
    {"never_waited", PLANTED_never_waited, 1, N, "never waited"},
    {"shared_overrun", PLANTED_shared_overrun, 1, N, "outside of shared memory"},
    {"device_overrun", PLANTED_device_overrun, 1, N, "0 behind 256 that were allocated"},
    {"negative_index", PLANTED_negative_index, 1, N, "before 256 that were allocated"},
    {"unaligned_vector", PLANTED_unaligned_vector, 1, N, "16 bytes"},
    {"unaligned_number", PLANTED_unaligned_number, 1, N, "4 bytes"},
    {"blocks_race", PLANTED_blocks_race, 3, N, "race between blocks"},
    {"blocks_read", PLANTED_blocks_read, 3, N, ""},
    {"atomic_and_plain", PLANTED_atomic_and_plain, 1, N, "race: "},
    {"unwritten_shared", PLANTED_unwritten_shared, 1, N, "nobody has written"},
    {"unwritten_device", PLANTED_unwritten_device, 1, N, "nobody has written"},
    {"taken_too_much", PLANTED_taken_too_much, 1, N, "that the launch asked for"},
    {"other_stack", PLANTED_other_stack, 1, N, "neither device nor shared"},
    {"shift_too_far", PLANTED_shift_too_far, 1, N, "undefined: a shift"},
    {"unaligned_ldmatrix", PLANTED_unaligned_ldmatrix, 1, 32, "16 bytes"},
    {"struct_overrun", PLANTED_struct_overrun, 1, N, "outside of device memory"},
    {"local_overrun", PLANTED_local_overrun, 1, N, "undefined: an index beyond"},
    {"warp_and_barrier", PLANTED_warp_and_barrier, 1, N, "wait for each other for ever"},
};

/* 1 when the error names the kernel, and a line of planted.cu that BUG name marks. */
static int is_there(const char *error, const char *name)
{
    char line[256], at[96], mark[80];
    FILE *f = fopen("tests/simt/planted.cu", "r");
    int found = 0;
    assert_non_null(f);
    snprintf(mark, sizeof mark, "// BUG %s\n", name);
    for (int n = 1; fgets(line, sizeof line, f); n++) {
        snprintf(at, sizeof at, "planted.cu:%d: %s ", n, name);
        found |= strstr(line, mark) && strncmp(error, at, strlen(at)) == 0;
    }
    fclose(f);
    return found;
}

static int *numbers(int n)
{
    int *x = take(n * 4);
    for (int i = 0; i < n; i++)
        x[i] = 3 * i + 1;
    return x;
}

/* What the shim says of a planted kernel; its outputs to got, when given. */
static const char *say(enum planted which, int n_blocks, int n, int *got)
{
    int *in = numbers(n);
    simt_clear();
    simt_free_all();
    int *on_device = simt_of(in, n * 4), *out = simt_alloc((int64_t)n_blocks * n * 4);
    const int shared_bytes = which == PLANTED_unaligned_ldmatrix ? 32 * n
                             : which == PLANTED_taken_too_much   ? 4 * n
                                                                 : 8 * n;
    planted_run(which, n_blocks, n, shared_bytes, out,
                which == PLANTED_host_pointer ? in : on_device);
    if (got && !simt_error())
        simt_get(got, out, (int64_t)n_blocks * n * 4);
    free(in);
    return simt_error();
}

static void bugs_are_met_with_their_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint64_t seed = 0; seed < 3; seed++) {
            const struct planted_case *c = &cases[i];
            simt_order(seed);
            const char *error = say(c->which, c->n_blocks, c->n, NULL);
            if (!error || !strstr(error, c->words) || !is_there(error, c->name))
                fail_msg("%s, seed %d: %s; not '%s', or not there", c->name, (int)seed,
                         error ? error : "nothing", c->words);
        }
    simt_order(0);
}

static void clean_kernels_raise_nothing(void **state)
{
    (void)state;
    int got[3 * N];
    for (uint64_t seed = 0; seed < 20; seed++) {
        simt_order(seed);
        const char *error = say(PLANTED_clean, 3, N, got);
        if (error)
            fail_msg("clean, seed %d: %s", (int)seed, error);
        for (int i = 0; i < 3 * N; i++) {
            int sum = 0;
            for (int j = 0; j < 32; j++)
                sum += 3 * ((i % N / 32 * 32 + j + 1) % N) + 1;
            assert_int_equal(got[i], sum);
        }
    }
    simt_order(0);
}

/* A warp that is cut short has no 32 lanes. */
static void masks_are_of_lanes_that_there_are(void **state)
{
    (void)state;
    const char *error = say(PLANTED_clean, 1, 48, NULL);
    assert_non_null(error);
    assert_non_null(strstr(error, "mask ffffffff, in a warp of lanes 0000ffff"));
}

static void outputs_have_to_be_written(void **state)
{
    (void)state;
    int got[N];
    const char *error = say(PLANTED_unwritten_output, 1, N, got);
    assert_non_null(error);
    assert_non_null(strstr(error, "byte 252 of 256 was never written"));
    assert_null(say(PLANTED_unwritten_output, 1, N, NULL));
}

static void the_host_keeps_out(void **state)
{
    (void)state;
    int x = 5;
    simt_clear();
    assert_int_equal(planted_entry(&x), 5);
    assert_null(simt_error());
    planted_entry(simt_of(&x, sizeof x));
    assert_non_null(strstr(simt_error(), "the host reads device memory"));
    const char *error = say(PLANTED_host_pointer, 1, N, NULL);
    assert_non_null(strstr(error, "neither device nor shared memory"));
}

static void launches_have_limits(void **state)
{
    (void)state;
    int *p = (simt_free_all(), simt_alloc(4));
    static const struct {
        int arch, n_blocks, n, shared_bytes;
        const char *words;
    } launches[] = {
        {80, 0, N, 0, "no block"},
        {80, 1, 1025, 0, "1 to 1024 threads"},
        {75, 1, N, (64 << 10) + 1, "more shared memory"},
        {86, 1, N, (99 << 10) + 1, "more shared memory"},
        {80, 1, N, (163 << 10) + 1, "more shared memory"},
        {90, 1, N, (227 << 10) + 1, "more shared memory"},
    };
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++) {
        simt_clear();
        simt_arch_set(launches[i].arch);
        planted_run(PLANTED_clean, launches[i].n_blocks, launches[i].n, launches[i].shared_bytes, p,
                    p);
        assert_non_null(simt_error());
        assert_non_null(strstr(simt_error(), launches[i].words));
    }
    simt_arch_set(80);
    simt_clear();
}

/* On sm_75 copies are done at once: what was not waited for does not show there. */
static void turing_copies_at_once(void **state)
{
    (void)state;
    int got[N];
    simt_arch_set(75);
    assert_null(say(PLANTED_missing_wait, 1, N, got));
    assert_int_equal(got[N - 1], 3 * (N - 1) + 1);
    assert_non_null(say(PLANTED_wait_without_barrier, 1, N, NULL));
    simt_arch_set(80);
}

/* ---- headers ---- */

static void headers_serve_the_device(void **state)
{
    (void)state;
    enum { M = 3000 };
    float *x = take(M * 4), *got = take(M * 16);
    for (int i = 0; i < M; i++) {
        uint32_t bits = (uint32_t)(mix64((uint64_t)i) >> 32);
        memcpy(&x[i], &bits, 4);
        x[i] = i % 2 ? x[i] : 90 * noise(5, i);
        x[i] = isnan(x[i]) ? 1 : x[i];
    }
    simt_clear();
    simt_free_all();
    float *in = simt_of(x, M * 4), *out = simt_alloc(M * 16);
    planted_functions(out, in, M);
    simt_get(got, out, M * 16);
    assert_null(simt_error());
    for (int i = 0; i < M; i++) {
        const float want[] = {math_exp(x[i]), math_gelu(x[i]), f16_to_f32(f32_to_f16(x[i])),
                              bf16_to_f32(f32_to_bf16(x[i]))};
        for (int j = 0; j < 4; j++)
            if (memcmp(&want[j], &got[4 * i + j], 4) != 0 && !isnan(want[j]))
                fail_msg("function %d of %a: %a, not %a", j, (double)x[i], (double)got[4 * i + j],
                         (double)want[j]);
    }
    free(x);
    free(got);
}

/* ---- tensor cores ---- */

static float mma_value(int f16, uint16_t x)
{
    return f16 ? f16_to_f32(x) : bf16_to_f32(x);
}

/* The model once more, in doubles: products are exact there, a cut is a trunc of a scaled number.
 */
static float mma_in_doubles(int arch, int f16, const uint16_t *a, const uint16_t *b, int k, float c)
{
    const int kept = arch >= 90 ? 25 : 24, each = arch >= 90 ? 16 : 8;
    const int least = f16 ? -14 : -126;
    for (int first = 0; first < k; first += each) {
        double term[17] = {0}, sum = 0;
        int exponent[17], greatest = -1000;
        for (int i = 0; i <= each; i++) {
            int ea = 0, eb = 0;
            float x = i < each ? mma_value(f16, a[first + i]) : c;
            float y = i < each ? mma_value(f16, b[first + i]) : 1;
            (void)frexpf(x, &ea);
            (void)frexpf(y, &eb);
            ea = i < each ? (ea - 1 > least ? ea - 1 : least) : ea - 1 > -126 ? ea - 1 : -126;
            eb = i < each ? (eb - 1 > least ? eb - 1 : least) : 0;
            term[i] = (double)x * y;
            exponent[i] = term[i] == 0 ? -126 : ea + eb;
            greatest = exponent[i] > greatest ? exponent[i] : greatest;
        }
        for (int i = 0; i <= each; i++)
            sum += trunc(ldexp(term[i], kept - greatest));
        sum = ldexp(sum, greatest - kept);
        c = (float)sum;
        if (fabs((double)c) > fabs(sum)) // cut, not rounded
            c = nextafterf(c, 0);
    }
    return c;
}

static uint16_t mma_number(int f16, uint64_t seed, int spread)
{
    float x = ldexpf(noise(seed, 1), (int)(mix64(seed) % (uint64_t)(2 * spread + 1)) - spread);
    return f16 ? f32_to_f16(x) : f32_to_bf16(x);
}

static void tensor_cores_cut(void **state)
{
    (void)state;
    static const int archs[] = {75, 80, 89, 90}, spreads[] = {0, 4, 12, 40};
    for (int i = 0; i < 40000; i++) {
        const int arch = archs[i % 4], f16 = arch == 75 || i / 4 % 2, k = arch == 75 ? 8 : 16;
        const int spread = f16 ? spreads[i / 8 % 3] : spreads[i / 8 % 4];
        uint16_t a[16], b[16];
        for (int j = 0; j < 16; j++) {
            a[j] = mma_number(f16, (uint64_t)(i * 64 + j), spread);
            b[j] = mma_number(f16, (uint64_t)(i * 64 + 16 + j), spread);
        }
        float c = i % 5 ? ldexpf(noise(9, i), i % 11 - 5) : 0;
        enum simt_mma kind = !f16 ? SIMT_MMA_BF16 : k == 8 ? SIMT_MMA_F16_K8 : SIMT_MMA_F16;
        float got = simt_mma_dot(arch, kind, a, b, c);
        float want = mma_in_doubles(arch, f16, a, b, k, c);
        if (memcmp(&got, &want, 4) != 0 && !(got == 0 && want == 0))
            fail_msg("vector %d, sm_%d, %s: %a, not %a", i, arch, f16 ? "f16" : "bf16", (double)got,
                     (double)want);
    }
    // 1 + 2^-24 + ...: the hardware drops what an f32 chain, and even a rounded sum, would keep
    uint16_t one[16] = {0}, small[16] = {0};
    for (int i = 0; i < 16; i++) {
        one[i] = f32_to_bf16(1);
        small[i] = f32_to_bf16(0x1p-25f);
    }
    assert_true(simt_mma_dot(80, SIMT_MMA_BF16, one, small, 1) == 1);
    assert_true(simt_mma_dot(90, SIMT_MMA_BF16, one, small, 1) == 1 + 0x1p-21f);
    const uint16_t infinite = f32_to_bf16(INFINITY);
    one[3] = infinite;
    assert_true(simt_mma_dot(80, SIMT_MMA_BF16, one, small, 1) == INFINITY);
    small[3] = 0;
    assert_true(isnan(simt_mma_dot(80, SIMT_MMA_BF16, one, small, 1)));
}

/* Fragments: where PTX says each number of a tile stands. */
static void fragments_stand_where_ptx_says(void **state)
{
    (void)state;
    static const int archs[] = {75, 80, 90};
    uint16_t a[256], b[128];
    float d0[128], got[128];
    for (int run = 0; run < 6; run++) {
        const int arch = archs[run / 2], f16 = arch == 75 || run % 2;
        simt_arch_set(arch);
        for (int i = 0; i < 256; i++)
            a[i] = mma_number(f16, (uint64_t)(run * 1000 + i), 2);
        for (int i = 0; i < 128; i++) {
            b[i] = mma_number(f16, (uint64_t)(run * 1000 + 500 + i), 2);
            d0[i] = noise(7, i);
        }
        simt_clear();
        simt_free_all();
        float *d = simt_of(d0, sizeof d0);
        planted_mma(f16 ? PLANTED_F16 : PLANTED_BF16, d, simt_of(a, sizeof a),
                    simt_of(b, sizeof b));
        simt_get(got, d, sizeof got);
        if (simt_error())
            fail_msg("sm_%d: %s", arch, simt_error());
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++) {
                float want = mma_in_doubles(arch, f16, a + i * 16, b + j * 16, 16, d0[i * 8 + j]);
                if (arch == 75) { // two of k 8
                    want = mma_in_doubles(arch, 1, a + i * 16, b + j * 16, 8, d0[i * 8 + j]);
                    want = mma_in_doubles(arch, 1, a + i * 16 + 8, b + j * 16 + 8, 8, want);
                }
                assert_true(got[i * 8 + j] == want);
            }
    }
    simt_arch_set(75);
    simt_clear();
    float *d = simt_of(d0, sizeof d0);
    planted_mma(PLANTED_BF16, d, simt_of(a, sizeof a), simt_of(b, sizeof b));
    assert_non_null(strstr(simt_error(), "sm_75 has no such mma"));
    simt_arch_set(80);
    uint16_t in[128];
    uint32_t out[128];
    for (int i = 0; i < 128; i++)
        in[i] = (uint16_t)i;
    simt_clear();
    uint32_t *to = simt_alloc(sizeof out);
    planted_transpose(to, simt_of(in, sizeof in));
    simt_get(out, to, sizeof out);
    assert_null(simt_error());
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t j = 0; j < 2; j++) {
            uint32_t row = lane / 4, column = lane % 4 * 2, base = 64 * j;
            assert_int_equal(out[lane * 4 + j],
                             (base + row * 8 + column) | (base + row * 8 + column + 1) << 16);
            assert_int_equal(out[lane * 4 + 2 + j],
                             (base + column * 8 + row) | (base + (column + 1) * 8 + row) << 16);
        }
}

/* The same of bytes: sums are exact, and wrap. */
static void bytes_multiply_exactly(void **state)
{
    (void)state;
    static const int archs[] = {75, 80, 90};
    for (int run = 0; run < 3; run++) {
        int8_t a[16][32], b[8][32];
        int32_t d0[16][8], got[16][8];
        simt_arch_set(archs[run]);
        for (int i = 0; i < 16 * 32; i++)
            a[i / 32][i % 32] = i < 32 ? -128 : (int8_t)mix64((uint64_t)(run * 1000 + i));
        for (int i = 0; i < 8 * 32; i++)
            b[i / 32][i % 32] = i < 32 ? -128 : (int8_t)mix64((uint64_t)(run * 1000 + 600 + i));
        for (int i = 0; i < 16 * 8; i++)
            d0[i / 8][i % 8] = i ? (int32_t)mix64((uint64_t)i) >> 8 : INT32_MAX;
        simt_clear();
        simt_free_all();
        int32_t *d = simt_of(d0, sizeof d0);
        planted_mma(PLANTED_S8, d, simt_of(a, sizeof a), simt_of(b, sizeof b));
        simt_get(got, d, sizeof got);
        assert_null(simt_error());
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++) {
                int64_t want = d0[i][j];
                for (int k = 0; k < 32; k++)
                    want += a[i][k] * b[j][k];
                assert_int_equal((uint32_t)got[i][j], (uint32_t)want);
            }
    }
    simt_arch_set(80);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bugs_are_met_with_their_line),
        cmocka_unit_test(clean_kernels_raise_nothing),
        cmocka_unit_test(masks_are_of_lanes_that_there_are),
        cmocka_unit_test(outputs_have_to_be_written),
        cmocka_unit_test(the_host_keeps_out),
        cmocka_unit_test(launches_have_limits),
        cmocka_unit_test(turing_copies_at_once),
        cmocka_unit_test(headers_serve_the_device),
        cmocka_unit_test(tensor_cores_cut),
        cmocka_unit_test(fragments_stand_where_ptx_says),
        cmocka_unit_test(bytes_multiply_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
