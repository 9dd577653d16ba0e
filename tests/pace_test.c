/* tests/pace_test.c - policy/pace: what earlier runs say of a prediction. */
#include "policy/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void near(double value, double want)
{
    assert_true(value > want - 1e-9 && value < want + 1e-9);
}

/* Layers in RAM and on NVMe, KV and hidden states in RAM. */
static struct plan plan_of(int resident, int kv_near)
{
    return (struct plan){.batch = 8,
                         .batches = 2,
                         .layers = 11,
                         .decoder = 9,
                         .resident = resident,
                         .kv_near = kv_near,
                         .hidden_near = 2};
}

static void classes_do_not_mix(void **state)
{
    (void)state;
    const int setup = pace_setup(3, 1, 2, 64 << 20);
    const struct plan half = plan_of(4, 18), fewer = plan_of(3, 18), all = plan_of(10, 18),
                      kv = plan_of(4, 6);
    struct plan hidden = half;
    hidden.hidden_near = 0;
    const int class = pace_class(&half, setup);
    assert_int_equal(pace_class(&fewer, setup), class); // the same tiers
    assert_int_not_equal(pace_class(&all, setup), class);
    assert_int_not_equal(pace_class(&kv, setup), class);
    assert_int_not_equal(pace_class(&hidden, setup), class);
    assert_int_equal(pace_setup(3, 1, 2, 65 << 20), setup); // about as much RAM
    const int others[] = {pace_setup(4, 1, 2, 64 << 20), pace_setup(3, 2, 2, 64 << 20),
                          pace_setup(3, 1, 1, 64 << 20), pace_setup(3, 1, 2, 128 << 20)};
    for (int i = 0; i < 4; i++)
        assert_int_not_equal(pace_class(&half, others[i]), class);
    struct pace_runs runs = {0};
    pace_add(&runs, &(struct pace_run){class, 1.5});
    pace_add(&runs, &(struct pace_run){pace_class(&all, setup), 0.5});
    struct pace pace = {.setup = setup};
    pace_make(&pace, &runs);
    near(pace_of(&pace, &half).value, 1.5);
    near(pace_of(&pace, &all).value, 0.5);
    assert_int_equal(pace_of(&pace, &all).n, 1);
    assert_int_equal(pace_runs_known(&pace), 2);
}

/* One class is known: plans of the others keep their place beside it. */
static void a_class_that_nobody_ran_is_like_the_others(void **state)
{
    (void)state;
    const struct plan half = plan_of(4, 18), all = plan_of(10, 18), kv = plan_of(4, 6);
    struct pace_runs runs = {0};
    struct pace pace = {0};
    assert_true(pace_of(NULL, &half).value == 1);
    pace_make(&pace, &runs);
    assert_true(pace_of(&pace, &half).value == 1 && pace_of(&pace, &half).n == 0);
    pace_add(&runs, &(struct pace_run){pace_class(&half, 0), 2});
    pace_make(&pace, &runs);
    near(pace_of(&pace, &kv).value, pace_of(&pace, &half).value);
    assert_int_equal(pace_of(&pace, &kv).n, 0);
    pace_add(&runs, &(struct pace_run){pace_class(&all, 0), 0.5});
    pace_make(&pace, &runs);
    near(pace_of(&pace, &kv).value, 1); // the mean of twice and half
}

static void a_few_runs_of_a_class_count(void **state)
{
    (void)state;
    const struct plan half = plan_of(4, 18);
    const int class = pace_class(&half, 0);
    struct pace_runs runs = {0};
    struct pace pace = {0};
    static const double took[] = {1.1, 9, 1.2, 1.3};
    for (int i = 0; i < 4; i++)
        pace_add(&runs, &(struct pace_run){class, took[i]});
    pace_make(&pace, &runs);
    near(pace_of(&pace, &half).value, 1.25); // one that went wrong does not pull it
    near(pace_of(&pace, &half).spread, 0.1);
    pace_add(&runs, &(struct pace_run){class + 1, 7});
    for (int i = 0; i < PACE_RUNS; i++)
        pace_add(&runs, &(struct pace_run){class, 9});
    assert_int_equal(runs.n, PACE_RUNS + 1); // the old ones went, the other class's stayed
    assert_true(runs.runs[0].class == class + 1 && runs.runs[1].times == 9);
    pace_make(&pace, &runs);
    near(pace_of(&pace, &half).value, PACE_LIMIT);
    for (int i = 0; i < PACE_RUNS; i++)
        pace_add(&runs, &(struct pace_run){class, 0.01});
    pace_make(&pace, &runs);
    near(pace_of(&pace, &half).value, 1 / PACE_LIMIT);
    for (int i = 0; i < 2 * PACE_ALL; i++)
        pace_add(&runs, &(struct pace_run){class + 2 + i, 1});
    assert_true(runs.n == PACE_ALL && runs.runs[PACE_ALL - 1].class == class + 1 + 2 * PACE_ALL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(classes_do_not_mix),
                                       cmocka_unit_test(a_class_that_nobody_ran_is_like_the_others),
                                       cmocka_unit_test(a_few_runs_of_a_class_count)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
