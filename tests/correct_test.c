/* tests/correct_test.c - policy/correct: which lanes a run is believed about, and what that does to
 * rates. */
#include "policy/correct.h"

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
    double slower[N_PLAN_LANES] = {1, 1, 1, 1, 1, 1};
    lanes(told, 20, 0.1, 90);
    lanes(was, 80, 4, 99);
    correct_lanes(told, was, slower);
    assert_true(slower[PLAN_NVME_READ] > 3.99 && slower[PLAN_NVME_READ] < 4.01);
    assert_true(slower[PLAN_NVME_WRITE] == 1); // 40 times as long, but 4 s of 100
    assert_true(slower[PLAN_CPU] > 1.09 && slower[PLAN_CPU] < 1.11);
    assert_true(slower[PLAN_GPU] == 1);
    double before[N_PLAN_LANES] = {3, 3, 3, 3, 3, 3};
    correct_lanes(NONE, was, before); // nothing was foreseen
    for (int i = 0; i < N_PLAN_LANES; i++)
        assert_true(before[i] == 3);
}

static void the_lane_that_bears_is_due(void **state)
{
    (void)state;
    struct lane_seconds was[2];
    const double one[N_PLAN_LANES] = {1, 1, 1, 1, 1, 1};
    double slower[N_PLAN_LANES] = {4, 1, 1, 1, 1, 1.3};
    lanes(was, 80, 4, 99);
    assert_int_equal(correct_due(was, slower, one), PLAN_NVME_READ);
    double known[N_PLAN_LANES] = {4.1, 1, 1, 1, 1, 1};
    assert_int_equal(correct_due(was, slower, known), PLAN_CPU); // told already
    known[PLAN_CPU] = 1.2;
    assert_int_equal(correct_due(was, slower, known), -1);
    /* Far off, but nobody waits for it: neither then nor as it was foretold. */
    lanes(was, 6, 4, 99);
    assert_int_equal(correct_due(was, slower, one), PLAN_CPU);
    /* Faster than told, so that little is left of what it was to take. */
    slower[PLAN_NVME_READ] = 0.1;
    lanes(was, 6, 4, 99);
    assert_int_equal(correct_due(was, slower, one), PLAN_NVME_READ);
}

static void rates_follow_their_lanes(void **state)
{
    (void)state;
    struct machine m;
    struct plan_costs costs = {.attend_rate = 8, .codec_rate = 8};
    const double slower[N_PLAN_LANES] = {2, 4, 8, 16, 32, 0.5};
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
    assert_true(m.matmul_flops.value == 128 && m.rows_read.value == 128);
    assert_true(m.step_s.value == 32 && m.launch_s.value == 64.0 * 32); // seconds
    assert_true(costs.attend_rate == 16 && costs.codec_rate == 16);
    assert_true(costs.rates.layer_s[1][2] == 32 && costs.rates.head_s[0][0] == 32);
    assert_true(costs.rates.rows_s[0] == 32 && costs.rates.attend_s[1] == 32 &&
                costs.rates.slot_s[4] == 32);
    assert_true(costs.rates.prompt_s == 32 && costs.rates.prompt_token_s == 32 &&
                costs.rates.pair_s == 32);
}

/* ---- what runs showed ---- */

static void lanes_that_made_the_time_are_kept(void **state)
{
    (void)state;
    struct lane_seconds told[2], was[2];
    double slower[N_PLAN_LANES];
    lanes(told, 40, 10, 60);
    lanes(was, 80, 20, 90); // reads as long as foreseen had they had the disk for themselves
    correct_shown(told, was, slower);
    assert_true(slower[PLAN_CPU] == 1.5 && slower[PLAN_NVME_READ] == 0);
    assert_true(slower[PLAN_NVME_WRITE] == 0 && slower[PLAN_GPU] == 0);
    lanes(was, 95, 20, 60);
    correct_shown(told, was, slower);
    assert_true(slower[PLAN_NVME_READ] == 95.0 / 40 && slower[PLAN_CPU] == 1);
    lanes(was, 95, 20, 40); // less than half of the time
    correct_shown(told, was, slower);
    assert_true(slower[PLAN_NVME_READ] == 95.0 / 40 && slower[PLAN_CPU] == 0);
}

static struct shown_run run_of(double slower, double reference)
{
    struct shown_run run = {{0}, {0}};
    run.slower[PLAN_CPU] = slower;
    for (int i = 0; i < N_PLAN_LANES; i++)
        run.reference[i] = reference;
    return run;
}

static void near(double value, double want)
{
    assert_true(value > want - 1e-9 && value < want + 1e-9);
}

static void runs_outvote_the_probe(void **state)
{
    (void)state;
    struct shown s = {0};
    struct rate by[N_PLAN_LANES];
    const double probed[N_PLAN_LANES] = {4, 4, 4, 4, 4, 4};
    shown_lanes(&s, probed, by);
    for (int i = 0; i < N_PLAN_LANES; i++)
        assert_true(by[i].value == 1 && by[i].n == 0);
    shown_add(&s, &(struct shown_run){{1.5, 0, 0, 0, 0, 1.2}, {4, 4, 4, 4, 4, 4}});
    shown_lanes(&s, probed, by);
    near(by[PLAN_CPU].value, 1.1); // one against one
    near(by[PLAN_NVME_READ].value, 1.25);
    assert_true(by[PLAN_CPU].n == 1 && by[PLAN_NVME_WRITE].n == 0 &&
                by[PLAN_NVME_WRITE].value == 1);
    struct shown_run again = run_of(1.3, 4);
    shown_add(&s, &again);
    shown_lanes(&s, probed, by);
    near(by[PLAN_CPU].value, 1.2); // the middle of 1, 1.2, 1.3
    near(by[PLAN_CPU].spread, 0.1);
    assert_true(by[PLAN_CPU].n == 2 && by[PLAN_NVME_READ].n == 1);
    /* The probe of another day was twice as fast: what runs took is what they take. */
    const double fast[N_PLAN_LANES] = {2, 2, 2, 2, 2, 2};
    shown_lanes(&s, fast, by);
    near(by[PLAN_CPU].value, 2.4);
}

static void old_runs_are_forgotten(void **state)
{
    (void)state;
    struct shown s = {0};
    struct rate by[N_PLAN_LANES];
    const double probed[N_PLAN_LANES] = {1, 1, 1, 1, 1, 1};
    for (int i = 0; i < SHOWN_RUNS; i++) {
        struct shown_run run = run_of(5, 1);
        shown_add(&s, &run);
    }
    for (int i = 0; i < SHOWN_RUNS; i++) {
        struct shown_run run = run_of(2 + i * 1e-3, 1);
        shown_add(&s, &run);
        assert_true(s.n == SHOWN_RUNS && s.runs[SHOWN_RUNS - 1].slower[PLAN_CPU] == 2 + i * 1e-3);
    }
    shown_lanes(&s, probed, by);
    assert_true(by[PLAN_CPU].value < 2.01 && by[PLAN_CPU].n == SHOWN_RUNS);
}

/* What was foreseen was corrected by what the runs before had shown. */
static void a_run_is_kept_by_what_was_probed(void **state)
{
    (void)state;
    const double slower[N_PLAN_LANES] = {1.1, 0, 0, 0, 0, 0.5},
                 probed[N_PLAN_LANES] = {1, 2, 3, 4, 5, 6};
    const struct rate lanes[N_PLAN_LANES] = {{2, 0, 1}, {1, 0, 0}, {1, 0, 0},
                                             {1, 0, 0}, {1, 0, 0}, {3, 0, 1}};
    const struct shown_run run = shown_of(slower, lanes, probed);
    near(run.slower[PLAN_NVME_READ], 2.2);
    near(run.slower[PLAN_CPU], 1.5);
    assert_true(run.slower[PLAN_NVME_WRITE] == 0 && run.reference[PLAN_CPU] == 6);
}

/* Of the table the layer at 64 tokens and the rest of it, so that another probe is another one. */
static void the_reference_is_what_was_probed(void **state)
{
    (void)state;
    struct machine m = {.nvme_read = {.value = 4}, .h2d = {.value = 8}};
    struct model_rates r = {.layer_s = {{1, 2, 3, 7, 9}}, .rows_s = {1, 1, 1, 2, 3}};
    double seconds[N_PLAN_LANES];
    correct_reference(&m, &r, seconds);
    assert_true(seconds[PLAN_NVME_READ] == 0.25 && seconds[PLAN_H2D] == 0.125);
    assert_true(seconds[PLAN_NVME_WRITE] == 0 && seconds[PLAN_CPU] == 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lanes_that_say_little_stay),
                                       cmocka_unit_test(the_lane_that_bears_is_due),
                                       cmocka_unit_test(rates_follow_their_lanes),
                                       cmocka_unit_test(lanes_that_made_the_time_are_kept),
                                       cmocka_unit_test(runs_outvote_the_probe),
                                       cmocka_unit_test(old_runs_are_forgotten),
                                       cmocka_unit_test(a_run_is_kept_by_what_was_probed),
                                       cmocka_unit_test(the_reference_is_what_was_probed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
