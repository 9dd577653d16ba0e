/* tests/state_test.c - conv and recur (kernels/ops.h) against kernels/ref, bit for bit on all
 * instruction sets, and however a row's tokens are cut into spans. */
#define CONV  ops_run_conv
#define RECUR ops_run_recur
#include "tests/state_problem.h"

static void check(const struct problem *p, int delta)
{
    const struct ops plain = {.isa = ISA_REF, .compute = COMPUTE_F32};
    struct pool *pool = pool_of(3);
    const int64_t x_bytes = TOKENS * p->stride * 4, out = TOKENS * p->v_heads * p->v_dim;
    struct made want = run(&plain, p, delta, TOKENS), first = {0};
    for (enum isa isa = ISA_EXACT; isa < N_ISAS; isa++) {
        if (isa != ISA_EXACT && !isa_here(isa))
            continue;
        static const int cuts[] = {TOKENS, 1, 5};
        for (int cut = 0; cut < 3; cut++) {
            const struct ops ops = {
                .isa = isa, .compute = COMPUTE_F32, .pool = cut == 1 ? pool : NULL};
            struct made m = run(&ops, p, delta, cuts[cut]);
            assert_close(m.out, want.out, out, 2e-4, "recur");
            assert_close((float *)(void *)m.states, (float *)(void *)want.states,
                         ROWS * p->state_bytes / 4, 2e-4, "states");
            if (first.x) {
                assert_same_bits(m.x, first.x, x_bytes, "conv");
                assert_same_bits(m.out, first.out, out * 4, "recur");
                assert_same_bits(m.states, first.states, ROWS * p->state_bytes, "states");
            } else {
                first = run(&ops, p, delta, TOKENS);
            }
            made_free(&m);
        }
    }
    made_free(&first);
    made_free(&want);
    pool_close(pool);
}

static void states_are_exact(void **state)
{
    (void)state;
    for (int i = 0; i < N_SHAPES; i++) {
        struct problem p = problem_make(shapes[i]);
        check(&p, 1);
        check(&p, 0);
        problem_free(&p);
    }
}

/* Moves `n` numbers of each head of v from its place beside those of its k head to the tiled one.
 */
static void tile(const struct problem *p, float *x, int n)
{
    const int each = p->v_heads / p->k_heads;
    float *old = copy_of(x, (int64_t)p->v_heads * n * 4);
    for (int h = 0; h < p->v_heads; h++)
        memcpy(x + (int64_t)(h % each * p->k_heads + h / each) * n, old + (int64_t)h * n,
               (size_t)n * 4);
    free(old);
}

/* The same heads in tiled order: the same bytes in that order. */
static void tiled_heads_are_the_same(void **state)
{
    const struct ops ops = {.isa = ISA_EXACT, .compute = COMPUTE_F32};
    (void)state;
    for (int i = 0; i < N_SHAPES; i++) {
        struct problem p = problem_make(shapes[i]);
        const int64_t keys = 2 * (int64_t)p.k_heads * p.k_dim, v = p.v_heads * p.v_dim;
        p.tiled = 0;
        struct made want = run(&ops, &p, 1, TOKENS);
        for (int t = 0; t < TOKENS; t++) {
            tile(&p, want.out + t * v, p.v_dim);
            tile(&p, p.x + t * p.stride + keys, p.v_dim);
            tile(&p, p.dt + t * p.v_heads, 1);
            tile(&p, p.beta + t * p.v_heads, 1);
        }
        tile(&p, p.a, 1);
        tile(&p, p.dt_bias, 1);
        tile(&p, p.weight + keys * p.taps, p.v_dim * p.taps);
        p.tiled = 1;
        struct made m = run(&ops, &p, 1, TOKENS);
        for (int row = 0; row < ROWS; row += 2) // row 1 goes on from a state as noise made it
            assert_same_bits(m.out + starts[row] * v, want.out + starts[row] * v,
                             (starts[row + 1] - starts[row]) * v * 4, "tiled");
        made_free(&m);
        made_free(&want);
        problem_free(&p);
    }
}

/* log1p(exp(x)) over all magnitudes, where it is 0, and where it is x. */
static void softplus_is_close(void **state)
{
    (void)state;
    for (float x = -120; x < 120; x += 0.0137f) {
        const double want = x > 40 ? (double)x : log1p(exp((double)x));
        assert_true(fabs(math_softplus(x) - want) <= 4e-7 * want + 2e-38);
    }
    assert_true(isnan(math_softplus(NAN)));
    assert_true(math_softplus(INFINITY) == INFINITY && math_softplus(-INFINITY) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_are_exact),
        cmocka_unit_test(tiled_heads_are_the_same),
        cmocka_unit_test(softplus_is_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
