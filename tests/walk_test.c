/* tests/walk_test.c - the line against plain nested loops, the walk against a plain loop over
 * steps, and the bounds on look-ahead. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/plan.h"

static void check_step(const struct order *o, struct step s, int64_t n, int64_t pass, int layer,
                       int part, int batch)
{
    const struct step both[] = {s, step_at(o, n)};
    for (int i = 0; i < 2; i++) {
        s = both[i];
        assert_int_equal(s.n, n);
        assert_int_equal(s.pass, pass);
        assert_int_equal(s.layer, layer);
        assert_int_equal(s.part, part);
        assert_int_equal(s.batch, batch);
        assert_int_equal(s.kind, layer == 0            ? STEP_EMBED
                                 : layer <= o->decoder ? STEP_DECODE
                                                       : STEP_SLICE);
        assert_int_equal(s.whole, s.kind != STEP_DECODE || part == o->parts - 1);
    }
}

static void test_one_part_is_the_zig_zag(void **state)
{
    (void)state;
    for (int batches = 1; batches <= 5; batches++)
        for (int decoder = 1; decoder <= 4; decoder++)
            for (int slices = 1; slices <= 3; slices++) {
                struct order o = {1 + decoder + slices, decoder, 1, batches, 0};
                struct step s = step_at(&o, 0);
                int64_t n = 0;
                for (int64_t pass = 0; pass < 3; pass++)
                    for (int layer = 0; layer < o.layers; layer++)
                        for (int b = 0; b < batches; b++, step_next(&o, &s))
                            check_step(&o, s, n++, pass, layer, 0, b);
                assert_int_equal(n, 3 * order_pass_steps(&o));
            }
}

/* Pass p of a pipeline has the steps of any pass, on the batches of group p % groups. */
static void test_groups_take_turns(void **state)
{
    (void)state;
    for (int parts = 1; parts <= 2; parts++)
        for (int batches = 1; batches <= 4; batches++)
            for (int groups = 2; groups <= 4; groups++) {
                const struct order one = {4, 3, parts, batches, 1},
                                   o = {4, 3, parts, batches, groups};
                const int64_t steps = order_pass_steps(&o);
                struct step s = step_at(&o, 0), in_one = step_at(&one, 0);
                assert_int_equal(steps, order_pass_steps(&one));
                for (int64_t n = 0; n < 9 * steps; n++) {
                    const int first = (int)(n / steps % groups) * batches;
                    assert_int_equal(order_first(&o, s.pass), first);
                    check_step(&o, s, n, n / steps, in_one.layer, in_one.part,
                               first + in_one.batch);
                    if (s.part == 1)
                        assert_int_equal(order_part0(&o, s), order_part0(&one, in_one));
                    step_next(&o, &s);
                    step_next(&one, &in_one);
                }
            }
}

/* Part 0 of batch b + 1 comes before part 1 of batch b; everything appears exactly once. */
static void test_two_parts_interleave(void **state)
{
    (void)state;
    for (int batches = 1; batches <= 6; batches++) {
        struct order o = {5, 3, 2, batches, 0};
        int64_t pass_steps = order_pass_steps(&o), least = INT64_MAX;
        int64_t at[5][2][6];
        struct step s = step_at(&o, 0);
        for (int64_t n = 0; n < pass_steps; n++, step_next(&o, &s)) {
            check_step(&o, s, n, 0, s.layer, s.part, s.batch);
            at[s.layer][s.part][s.batch] = n;
            assert_int_equal(step_at(&o, n + pass_steps).pass, 1);
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
                assert_int_equal(order_part0(&o, step_at(&o, at[layer][1][b])), at[layer][0][b]);
                assert_true(here <= ORDER_PARTS_APART);
            }
        assert_int_equal(order_hidden_distance(&o), least);
    }
}

static void test_hidden_states_of_one_part(void **state)
{
    (void)state;
    struct order o = {4, 2, 1, 3, 0};
    assert_int_equal(order_hidden_distance(&o), 3);
}

/* The next event of the walk is this one. */
static void expect(struct walk *w, enum walk_event event, int64_t n)
{
    struct step s;
    assert_int_equal(walk_next(w, &s), event);
    assert_int_equal(s.n, n);
}

/* 1: the weights of step n may be fetched in iteration m, when all steps before `retired` are. */
static int may_fetch(const struct plan *p, int64_t n, int64_t m, int64_t from, int64_t retired)
{
    const struct order o = plan_order(p);
    const struct step s = step_at(&o, n);
    int ahead = 0;
    for (int64_t i = (m < from ? from : m + 1); i <= n; i++)
        ahead += plan_layer_framed(p, step_at(&o, i).layer);
    if (n <= m)
        return 1;
    if (plan_layer_framed(p, s.layer) && ahead > p->ahead_weights)
        return 0;
    for (int64_t i = from; i < n && s.part == 0 && s.batch == 0; i++)
        if (step_at(&o, i).layer == s.layer && i >= retired)
            return 0; // of the pass before
    return 1;
}

/* Two passes and a half from step `from` on. */
static void check_walk(const struct plan *p, int64_t from)
{
    const struct order o = plan_order(p);
    const int64_t steps = order_pass_steps(&o);
    const int ahead[] = {p->ahead_weights, p->ahead_state, p->ahead_hidden};
    int64_t retired = from, fetched = from, m = from - (ahead[2] > ahead[1] ? ahead[2] : ahead[1]);
    struct walk w;
    struct step left;
    walk_begin(&w, p, from);
    for (; m < from + 5 * steps / 2; m++) {
        const struct step s = step_at(&o, m > from ? m : from);
        const int begins = m >= from && s.layer == 0;
        const int queued = begins && p->batches < p->window ? p->batches : p->window;
        for (; retired <= m - queued; retired++)
            expect(&w, WALK_RETIRE, retired);
        expect(&w, begins && s.batch == 0 && m > 0 ? WALK_PASS_END : WALK_GO_ON, s.n);
        assert_int_equal(w.n, m);
        for (; may_fetch(p, fetched, m, from, retired); fetched++) {
            const struct step f = step_at(&o, fetched);
            if (f.batch == 0 && f.part == 0)
                expect(&w, WALK_FETCH_WEIGHTS, fetched);
        }
        for (int i = 1; i < 3; i++) {
            const int64_t n = m + ahead[i];
            if (n < from)
                continue;
            const struct step f = step_at(&o, n);
            if (i == 1 ? f.layer > 0 && f.layer <= p->decoder && f.part == 0 : f.layer > 0)
                expect(&w, (enum walk_event)(WALK_FETCH_WEIGHTS + i), n);
        }
        if (m >= from)
            expect(&w, WALK_COMPUTE, m);
    }
    for (; walk_left(&w, &left); retired++)
        assert_int_equal(left.n, retired);
    assert_int_equal(retired, m);
}

static void test_the_walk_is_a_loop_over_steps(void **state)
{
    (void)state;
    for (int i = 0; i < 4 * 2 * 4 * 4 * 4 * 3; i++) {
        struct plan p = {.layers = 5, .decoder = 3, .batches = 1 + i % 4, .attn_cpu = i / 4 % 2};
        p.window = 1 + i / 8 % 4 * 2;
        p.ahead_weights = i / 32 % 4 * 3;
        p.ahead_state = i / 128 % 4 * 2;
        p.ahead_hidden = i / 512 % 3;
        p.resident = i % 5;
        p.decoded = i % 3 == 0 && p.resident > 0;
        const struct order o = plan_order(&p);
        check_walk(&p, 0);
        check_walk(&p, order_pass_steps(&o) - p.batches);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_part_is_the_zig_zag),
        cmocka_unit_test(test_groups_take_turns),
        cmocka_unit_test(test_two_parts_interleave),
        cmocka_unit_test(test_hidden_states_of_one_part),
        cmocka_unit_test(test_the_walk_is_a_loop_over_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
