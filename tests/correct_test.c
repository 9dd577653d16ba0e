/* tests/correct_test.c - policy/correct: which lanes a run is believed about, what that does to
 * rates, and whether a change of plan pays; policy/pace: what earlier runs say of a prediction. */
#include "policy/correct.h"

#include "policy/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const struct lane_seconds NONE[2];

/* Of 100 s: read and cpu busy, the others hardly. */
static void lanes(struct lane_seconds at[2], double read_s, double write_s, double cpu_s)
{
    at[0] = (struct lane_seconds){.s = {1, 2, 0, 0, 0, 3}, .wall_s = 7};
    at[1] =
        (struct lane_seconds){.s = {1 + read_s, 2 + write_s, 0, 0, 0, 3 + cpu_s}, .wall_s = 107};
}

static void lanes_that_say_little_stay(void **state)
{
    (void)state;
    struct lane_seconds told[2], was[2];
    double slower[N_WORK_LANES] = {1, 1, 1, 1, 1, 1};
    lanes(told, 20, 0.1, 90);
    lanes(was, 80, 25, 99);
    correct_lanes(told, was, slower);
    assert_true(slower[LANE_NVME_READ] > 3.99 && slower[LANE_NVME_READ] < 4.01);
    assert_true(slower[LANE_NVME_WRITE] == 1); // 250 times as long, but 25 s of 100
    assert_true(slower[LANE_CPU] > 1.09 && slower[LANE_CPU] < 1.11);
    assert_true(slower[LANE_GPU] == 1);
    double before[N_WORK_LANES] = {3, 3, 3, 3, 3, 3};
    correct_lanes(NONE, was, before); // nothing was foreseen
    for (int i = 0; i < N_WORK_LANES; i++)
        assert_true(before[i] == 3);
}

static void rates_follow_their_lanes(void **state)
{
    (void)state;
    struct machine m;
    struct plan_costs costs = {.attend_rate = 8, .codec_rate = 8};
    const double slower[N_WORK_LANES] = {2, 4, 8, 16, 32, 0.5};
    for (int i = 0; i < N_MACHINE_RATES; i++)
        m.rates[i] = (struct rate){.value = 64};
    for (int state_ = 0; state_ < N_WEIGHT_STATES; state_++)
        for (int i = 0; i < N_MATMUL_ROWS; i++)
            costs.rates.layer_s[state_][i] = costs.rates.head_s[state_][i] = 64;
    for (int i = 0; i < N_MATMUL_ROWS; i++)
        costs.rates.rows_s[i] = costs.rates.attend_s[i] = costs.rates.slot_s[i] = 64;
    costs.rates.prompt_s = costs.rates.prompt_token_s = costs.rates.pair_s = 64;
    correct_rates(&m, &costs, 1, slower);
    assert_true(m.nvme_read.value == 32 && m.nvme_read_burst.value == 32);
    assert_true(m.nvme_read_burst_bytes.value == 64); // bytes, not a rate
    assert_true(m.nvme_write.value == 16);
    assert_true(m.nvme_read_d1.value == 32 && m.ticket_s.value == 128 && m.gather_s.value == 128);
    assert_true(m.read_beside.value == 64 && m.matmul_beside.value == 64); // shares
    assert_true(m.h2d.value == 8 && m.duplex.value == 8 && m.d2h.value == 4);
    assert_true(m.device_flops.value == 2 && m.device_read.value == 2);
    assert_true(m.device_attend_flops.value == 2 && m.device_attend_read.value == 2);
    assert_true(m.matmul_flops.value == 128 && m.rows_read.value == 128);
    assert_true(m.step_s.value == 32 && m.launch_s.value == 64.0 * 32); // seconds
    assert_true(costs.attend_rate == 16 && costs.codec_rate == 16);
    assert_true(costs.rates.layer_s[1][2] == 32 && costs.rates.head_s[0][0] == 32);
    assert_true(costs.rates.rows_s[0] == 32 && costs.rates.attend_s[1] == 32 &&
                costs.rates.slot_s[4] == 32);
    assert_true(costs.rates.prompt_s == 32 && costs.rates.prompt_token_s == 32 &&
                costs.rates.pair_s == 32);
}

static void near(double value, double want)
{
    assert_true(value > want - 1e-9 && value < want + 1e-9);
}

/* ---- a change of plan ---- */

/* The plan that is under way was played to take 3.4 s more, the other 2.8 s; but the passes that
 * are left take 1.2 s as they were measured. */
static void what_is_left_is_measured(void **state)
{
    (void)state;
    struct change c = {.passes_left = 13, .pass_s = 0.0925, .stay_s = 3.4, .go_s = 2.8};
    near(change_stay_s(&c), 13 * 0.0925);
    near(change_go_s(&c), 2.8); // no faster than it was played
    c.open_s = 0.5;
    near(change_go_s(&c), 3.3);
}

/* Half of the time is stall that no lane has: what is left takes twice as long, under either plan.
 */
static void a_stall_bears_on_both_plans(void **state)
{
    (void)state;
    struct change c = {.passes_left = 100, .pass_s = 0.2, .stay_s = 10, .go_s = 4, .open_s = 1};
    near(change_stay_s(&c), 20);
    near(change_go_s(&c), 1 + 2 * 4);
    c.stay_s = 0; // nothing was played
    near(change_go_s(&c), 1 + 4);
}

/* ---- what earlier runs took ---- */

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
    const struct CMUnitTest tests[] = {cmocka_unit_test(lanes_that_say_little_stay),
                                       cmocka_unit_test(rates_follow_their_lanes),
                                       cmocka_unit_test(what_is_left_is_measured),
                                       cmocka_unit_test(a_stall_bears_on_both_plans),
                                       cmocka_unit_test(classes_do_not_mix),
                                       cmocka_unit_test(a_class_that_nobody_ran_is_like_the_others),
                                       cmocka_unit_test(a_few_runs_of_a_class_count)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
