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
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lanes_that_say_little_stay),
                                       cmocka_unit_test(the_lane_that_bears_is_due),
                                       cmocka_unit_test(rates_follow_their_lanes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
