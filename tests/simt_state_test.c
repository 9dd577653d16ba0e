/* tests/simt_state_test.c - kernels/cuda/state.cu under the SIMT shim: the bytes of ISA_EXACT, in
 * several orders of threads, however a row's tokens are cut into spans. */
#include "tests/simt_arrays.h"

#define aligned_alloc array_alloc
#define free          array_free
#define CONV          conv_run
#define RECUR         recur_run
static void conv_run(const struct ops *ops, const struct conv_args *args);
static void recur_run(const struct ops *ops, const struct recur_args *args);
#include "tests/state_problem.h"

static int on_shim;
static uint64_t seed;

/* The spans are in an array of their own on the shim. */
static const struct state_span *spans_on_device(const struct state_rows *rows)
{
    return simt_of(rows->spans, rows->n_spans * (int64_t)sizeof *rows->spans);
}

static void conv_run(const struct ops *ops, const struct conv_args *args)
{
    struct conv_args a = *args;
    if (!on_shim) {
        ops_run_conv(ops, args);
        return;
    }
    simt_order(seed);
    TO_DEVICE(a.x);
    TO_DEVICE(a.weight);
    TO_DEVICE(a.bias);
    TO_DEVICE(a.rows.base);
    a.rows.spans = spans_on_device(&a.rows);
    cuda_conv(NULL, ops, &a);
    arrays_back("conv");
}

static void recur_run(const struct ops *ops, const struct recur_args *args)
{
    struct recur_args a = *args;
    if (!on_shim) {
        ops_run_recur(ops, args);
        return;
    }
    simt_order(seed);
    TO_DEVICE(a.q);
    TO_DEVICE(a.k);
    TO_DEVICE(a.v);
    TO_DEVICE(a.dt);
    TO_DEVICE(a.beta);
    TO_DEVICE(a.a);
    TO_DEVICE(a.dt_bias);
    TO_DEVICE(a.skip);
    TO_DEVICE(a.out);
    TO_DEVICE(a.rows.base);
    a.rows.spans = spans_on_device(&a.rows);
    cuda_recur(NULL, ops, &a);
    arrays_back("recur");
}

static void states_are_exact(void **state)
{
    static const struct ops exact = {.isa = ISA_EXACT, .compute = COMPUTE_F32};
    (void)state;
    for (int i = 0; i < 2 * N_SHAPES; i++) {
        struct problem p = problem_make(shapes[i / 2]);
        const int64_t out_bytes = TOKENS * p.v_heads * p.v_dim * 4;
        on_shim = 0;
        struct made want = run(&exact, &p, i % 2, TOKENS);
        on_shim = 1;
        seed = (uint64_t)i % 4;
        struct made m = run(&exact, &p, i % 2, i % 3 ? TOKENS : 6);
        assert_same_bits(m.x, want.x, TOKENS * p.stride * 4, "conv");
        assert_same_bits(m.out, want.out, out_bytes, "recur");
        assert_same_bits(m.states, want.states, ROWS * p.state_bytes, "states");
        made_free(&m);
        made_free(&want);
        problem_free(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(states_are_exact)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
