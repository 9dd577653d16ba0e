/* tests/rates_test.c - what follows from rates: medians, matmuls that nobody measured
 * (policy/machine.h). Numbers only. */
#include "policy/machine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static int near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

static void median_and_spread(void **state)
{
    (void)state;
    double odd[] = {9, 1, 4, 100, 5}, even[] = {4, 1, 2, 8}, one[] = {7};
    struct rate r = rate_of_samples(odd, 5);
    assert_true(r.value == 5 && r.spread == 4 && r.n == 5); // 0 1 4 4 95
    r = rate_of_samples(even, 4);
    assert_true(r.value == 3 && r.spread == 1.5 && r.n == 4); // 1 1 2 5
    r = rate_of_samples(one, 1);
    assert_true(r.value == 7 && r.spread == 0 && r.n == 1);
}

/* The table and the ids that reach into it by arithmetic. */
static void the_table_stands_in_order(void **state)
{
    (void)state;
    static const char *const formats[] = {"f32", "bf16", "q8", "q4"};
    for (int f = 0; f < N_MATMUL_FORMATS; f++)
        for (int i = 0; i < N_MATMUL_ROWS; i++) {
            char key[32];
            enum machine_rate id = machine_matmul_rate((enum matmul_format)f, i);
            snprintf(key, sizeof key, "matmul_%s_m%d", formats[f], matmul_rows[i]);
            assert_string_equal(machine_rates[id].key, key);
            assert_true(i == 0 || matmul_rows[i] > matmul_rows[i - 1]);
        }
    assert_string_equal(machine_rates[RATE_nvme_read_burst + 1].key, "nvme_read_burst_bytes");
    assert_string_equal(machine_rates[RATE_nvme_write_burst + 1].key, "nvme_write_burst_bytes");
    assert_string_equal(machine_rates[RATE_attend_f32 + 4].key, "attend_mixed");
    struct machine m = {.duplex = {3, 2, 1}};
    assert_true(m.rates[RATE_duplex].value == 3 && m.rates[RATE_duplex].n == 1);
}

/* Memory bounds few rows, arithmetic many; what was measured is not asked twice. */
static void matmuls_follow_from_two_rates(void **state)
{
    (void)state;
    struct machine m = {.ram_read = {.value = 4e10}, .matmul_flops = {.value = 4e11}};
    assert_true(near(machine_matmul(&m, MATMUL_F32, 0), 2 * 4e10 / 4));
    assert_true(near(machine_matmul(&m, MATMUL_BF16, 0), 2 * 4e10 / 2));
    assert_true(near(machine_matmul(&m, MATMUL_BF16, 4), 4e11));
    assert_true(near(machine_matmul(&m, MATMUL_Q8, 3), 4e11 * 128 / (128 + 16)));
    assert_true(near(machine_matmul(&m, MATMUL_Q4, 0), 4e11 * 2 / (2 + 16)));
    m.matmul_flops.value = 4e12; // fast enough for q4 to wait for memory
    assert_true(near(machine_matmul(&m, MATMUL_Q4, 0), 2 * 4e10 / (36 / 64.0)));
    m.matmul_q4_m16.value = 123;
    assert_true(machine_matmul(&m, MATMUL_Q4, 2) == 123);
    assert_true(machine_matmul(&m, MATMUL_Q4, 1) != 123);
}

static void one_matmul_stands_for_all(void **state)
{
    (void)state;
    struct machine m = {.matmul_q4_m1 = {.value = 1}, .matmul_f32_m256 = {.value = 2}};
    machine_complete(&m);
    assert_true(m.matmul_flops.value == 2); // no bf16: the first format, what is nearest to M = 64
    m = (struct machine){.matmul_f32_m64 = {.value = 1},
                         .matmul_bf16_m1 = {.value = 2},
                         .matmul_bf16_m256 = {.value = 3}};
    machine_complete(&m);
    assert_true(m.matmul_flops.value == 3);
    m.matmul_bf16_m64.value = 9;
    machine_complete(&m);
    assert_true(m.matmul_flops.value == 3); // what is there stays
    m = (struct machine){0};
    machine_complete(&m);
    assert_true(m.matmul_flops.value == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(median_and_spread),
        cmocka_unit_test(the_table_stands_in_order),
        cmocka_unit_test(matmuls_follow_from_two_rates),
        cmocka_unit_test(one_matmul_stands_for_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
