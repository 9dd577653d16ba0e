/* tests/order_test.c - the line against the naive nested loops, and the bounds on look-ahead. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/order.h"

static void check_step(const struct order *o, int64_t n, int64_t pass, int layer, int part,
                       int batch)
{
    struct step s = order_at(o, n);
    assert_int_equal(s.pass, pass);
    assert_int_equal(s.layer, layer);
    assert_int_equal(s.part, part);
    assert_int_equal(s.batch, batch);
}

static void test_one_part_is_the_zig_zag(void **state)
{
    (void)state;
    for (int batches = 1; batches <= 5; batches++)
        for (int decoder = 1; decoder <= 4; decoder++)
            for (int slices = 1; slices <= 3; slices++) {
                struct order o = {1 + decoder + slices, decoder, 1, batches};
                int64_t n = 0;
                for (int64_t pass = 0; pass < 3; pass++)
                    for (int layer = 0; layer < o.layers; layer++)
                        for (int b = 0; b < batches; b++)
                            check_step(&o, n++, pass, layer, 0, b);
                assert_int_equal(n, 3 * order_pass_steps(&o));
            }
}

/* Part 0 of batch b + 1 stands before part 1 of batch b; everything appears exactly once. */
static void test_two_parts_interleave(void **state)
{
    (void)state;
    for (int batches = 1; batches <= 6; batches++) {
        struct order o = {5, 3, 2, batches};
        int64_t pass_steps = order_pass_steps(&o), least = INT64_MAX;
        int64_t at[5][2][6];
        for (int64_t n = 0; n < pass_steps; n++) {
            struct step s = order_at(&o, n);
            at[s.layer][s.part][s.batch] = n;
            assert_int_equal(order_at(&o, n + pass_steps).pass, 1);
        }
        for (int layer = 1; layer <= 3; layer++)
            for (int b = 0; b < batches; b++) {
                assert_true(at[layer][0][b] < at[layer][1][b]);
                if (b + 1 < batches)
                    assert_true(at[layer][0][b + 1] < at[layer][1][b]);
                int64_t next = layer < 3 ? at[layer + 1][0][b] : at[4][0][b];
                int64_t here = at[layer][1][b] - at[layer][0][b], on = next - at[layer][1][b];
                least = here < least ? here : least;
                least = on < least ? on : least;
                assert_int_equal(order_part0(&o, order_at(&o, at[layer][1][b])), at[layer][0][b]);
                assert_true(here <= ORDER_PARTS_APART);
            }
        assert_int_equal(order_hidden_distance(&o), least);
    }
}

static void test_off_the_line(void **state)
{
    (void)state;
    struct order o = {4, 2, 1, 3};
    assert_int_equal(order_at(&o, -1).pass, -1);
    assert_int_equal(order_hidden_distance(&o), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_part_is_the_zig_zag),
        cmocka_unit_test(test_two_parts_interleave),
        cmocka_unit_test(test_off_the_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
