/* tests/rates_test.c - what follows from rates: medians, matmuls that nobody measured, the seconds
 * of a model's matmuls at any number of tokens, and of a pass (policy/machine.h). Numbers only. */
#include "policy/cost.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
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
    assert_string_equal(machine_rates[RATE_nvme_read_d1 + 1].key, "nvme_read_d2");
    assert_string_equal(machine_rates[RATE_nvme_read_d1 + 2].key, "nvme_read_d4");
    struct machine m = {.duplex = {3, 2, 1}};
    assert_true(m.rates[RATE_duplex].value == 3 && m.rates[RATE_duplex].n == 1);
}

static double latency_rate(double most, int pieces) // of 0.15 ms a piece
{
    double one = (1 << 20) / ((1 << 20) / most + 1.5e-4);
    return pieces * one < most ? pieces * one : most;
}

/* What a disk gives to few pieces in flight: as measured and on straight lines between, else from
 * the latency of a common drive; never more than it gives to many. */
static void few_in_flight_get_less(void **state)
{
    (void)state;
    struct machine m = {.nvme_read = {.value = 7e9}};
    assert_true(near(machine_read_rate(&m, 1), latency_rate(7e9, 1)));
    assert_true(near(machine_read_rate(&m, 2), latency_rate(7e9, 2)));
    assert_true(machine_read_rate(&m, 1) < 3.6e9 && machine_read_rate(&m, 8) == 7e9);
    m.nvme_read_d1.value = 2e9;
    m.nvme_read_d2.value = 3e9;
    m.nvme_read_d4.value = 5e9;
    static const double want[] = {2e9, 3e9, 4e9, 5e9, 5.5e9, 6e9, 6.5e9, 7e9};
    for (int i = 0; i < 8; i++)
        assert_true(near(machine_read_rate(&m, i + 1), want[i]));
    assert_true(machine_read_rate(&m, 100) == 7e9);
    m.nvme_read_d4.value = 9e9; // disturbed
    assert_true(machine_read_rate(&m, 4) == 7e9);
    assert_true(machine_ticket_s(&m) == 1e-4 && machine_gather_s(&m) == 2e-5);
    m.ticket_s.value = 3e-4;
    m.gather_s.value = 4e-5;
    assert_true(machine_ticket_s(&m) == 3e-4 && machine_gather_s(&m) == 4e-5);
}

/* The mover keeps as few pieces in flight as nearly fill the disk, and never one alone. */
static void depth_is_the_least_that_fills_the_disk(void **state)
{
    (void)state;
    struct machine m = {.nvme_read = {.value = 4e9},
                        .nvme_read_d1 = {.value = 4e9},
                        .nvme_read_d2 = {.value = 4e9},
                        .nvme_read_d4 = {.value = 4e9}};
    assert_int_equal(machine_depth(&m), 2);
    m.nvme_read_d2.value = 3.7e9;
    assert_int_equal(machine_depth(&m), 4);
    m.nvme_read_d4.value = 3.7e9;
    assert_int_equal(machine_depth(&m), IO_DEPTH);
    m.nvme_read.value = 0; // not measured
    assert_int_equal(machine_depth(&m), IO_DEPTH);
}

/* Rows that attend: so much each, and so much a slot, at the number of rows that there are. */
static void rows_attend_in_time(void **state)
{
    (void)state;
    const struct model_rates r = {
        .rows_s = {1, 2, 3, 9, 30}, .attend_s = {1, 2, 6, 20, 80}, .slot_s = {8, 4, 2, 1, 1}};
    assert_true(near(model_rows_s(&r, 64), 9) && near(model_rows_s(&r, 256 + 16), 33));
    assert_true(model_attend_s(&r, 0, 0) == 0);
    assert_true(near(model_attend_s(&r, 1, 10), 1 + 80));
    assert_true(near(model_attend_s(&r, 4, 10), 2 + 40));
    assert_true(near(model_attend_s(&r, 10, 100), 4 + 300)); // half way from 4 to 16
    assert_true(near(model_attend_s(&r, 64, 100), 20 + 100));
    assert_true(near(model_attend_s(&r, 64 * 3 + 4, 100), 60 + 2 + 100));
}

static void prompts_attend_in_time(void **state)
{
    (void)state;
    const struct model_rates r = {.prompt_s = 100, .prompt_token_s = 10, .pair_s = 1};
    assert_true(near(model_prompts_s(&r, 2, 7, 16), 200 + 70 + 16));
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

static const struct model_rates RATES = {.layer_s = {{1, 1.5, 4, 12, 40}, {0.5, 1, 3.5, 11, 39}},
                                         .head_s = {{2, 3, 8, 24, 1e9}, {2, 3, 8, 24, 1e9}}};

/* At the points of the table, between them, beyond them. */
static void seconds_at_any_number_of_tokens(void **state)
{
    (void)state;
    for (int i = 0; i < N_MATMUL_ROWS; i++) {
        assert_true(near(model_layer_s(&RATES, WEIGHTS_STORED, matmul_rows[i]),
                         RATES.layer_s[WEIGHTS_STORED][i]));
        assert_true(near(model_layer_s(&RATES, WEIGHTS_TILES, matmul_rows[i]),
                         RATES.layer_s[WEIGHTS_TILES][i]));
    }
    assert_true(model_layer_s(&RATES, WEIGHTS_STORED, 0) == 0);
    assert_true(model_layer_s(&RATES, WEIGHTS_STORED, -1) == 0);
    assert_true(near(model_layer_s(&RATES, WEIGHTS_STORED, 0.5), 0.5));
    assert_true(near(model_layer_s(&RATES, WEIGHTS_STORED, 10), 2.75));
    assert_true(near(model_layer_s(&RATES, WEIGHTS_STORED, 256 * 3), 120));
    assert_true(near(model_layer_s(&RATES, WEIGHTS_STORED, 256 * 3 + 16), 124));
    assert_true(near(model_head_s(&RATES, WEIGHTS_TILES, 64), 24)); // 64 positions at once
    assert_true(near(model_head_s(&RATES, WEIGHTS_TILES, 256), 96));
    assert_true(near(model_head_s(&RATES, WEIGHTS_TILES, 64 * 5 + 10), 5 * 24 + 5.5));
}

static void seconds_grow_without_steps(void **state)
{
    (void)state;
    double layer = 0, head = 0;
    for (double t = 0; t < 1100; t += 0.125) {
        double l = model_layer_s(&RATES, WEIGHTS_STORED, t);
        double h = model_head_s(&RATES, WEIGHTS_STORED, t);
        assert_true(l >= layer && l - layer <= 0.125 * 1 + 1e-9); // steepest from 0 to 1
        assert_true(h >= head && h - head <= 0.125 * 2 + 1e-9);
        layer = l;
        head = h;
    }
}

static void disturbed_rates_ascend(void **state)
{
    (void)state;
    struct model_rates r = RATES;
    r.layer_s[0][1] = 7; // somebody else was busy
    r.head_s[1][0] = 20;
    model_rates_ascend(&r);
    assert_true(r.layer_s[0][0] == 1 && r.layer_s[0][1] == 4 && r.layer_s[0][2] == 4);
    assert_true(r.head_s[1][0] == 3 && r.head_s[1][1] == 3);
    struct model_rates same = RATES;
    model_rates_ascend(&same);
    assert_memory_equal(&same, &RATES, sizeof same);
}

/* Numbers of each format by its rate. */
static void a_model_elsewhere_is_derived(void **state)
{
    (void)state;
    struct machine m = {.ram_read = {.value = 4e10},
                        .matmul_flops = {.value = 4e11},
                        .matmul_q4_m64 = {.value = 1e11}};
    struct model_weights w = {
        .layer = {{[MATMUL_Q4] = 1e6, [MATMUL_BF16] = 3e6}, {[MATMUL_BF16] = 4e6}},
        .head = {{[MATMUL_BF16] = 5e6}, {[MATMUL_BF16] = 5e6}}};
    struct model_rates r;
    model_rates_derive(&r, &m, &w);
    assert_true(near(r.layer_s[WEIGHTS_STORED][3], 128e6 / 1e11 + 3 * 128e6 / 4e11));
    assert_true(near(r.layer_s[WEIGHTS_TILES][0], 4e6 * 2 / 4e10));
    assert_true(near(r.head_s[WEIGHTS_TILES][4], 5e6 * 512 / 4e11));
    for (int i = 1; i < N_MATMUL_ROWS; i++)
        assert_true(r.layer_s[0][i] >= r.layer_s[0][i - 1]);
}

/* A token meets two of eight experts, four tokens all of them once; 256 give each 64. */
static void experts_are_met_by_shares(void **state)
{
    (void)state;
    struct machine m = {.ram_read = {.value = 4e10}, .matmul_flops = {.value = 4e11}};
    struct model_weights dense = {.layer = {{[MATMUL_BF16] = 8e6}, {[MATMUL_BF16] = 8e6}}};
    struct model_weights w = {.layer = {{[MATMUL_BF16] = 1e6}, {[MATMUL_BF16] = 1e6}},
                              .experts = {{[MATMUL_BF16] = 8e6}, {[MATMUL_BF16] = 8e6}},
                              .n_experts = 8,
                              .n_used = 2};
    struct model_weights rest = w;
    struct model_rates all, r, beside;
    rest.n_experts = rest.n_used = 0;
    model_rates_derive(&all, &m, &dense);
    model_rates_derive(&r, &m, &w);
    model_rates_derive(&beside, &m, &rest);
    const double met[N_MATMUL_ROWS] = {all.layer_s[0][0] / 4, all.layer_s[0][0], all.layer_s[0][1],
                                       all.layer_s[0][2], all.layer_s[0][3]};
    for (int i = 0; i < N_MATMUL_ROWS; i++)
        assert_true(near(r.layer_s[0][i] - beside.layer_s[0][i], met[i]));
}

/* Layers and tiles of the head, as often as there are batches, by the rates of the model; what is
 * held as tiles by theirs. */
static void matmuls_of_a_pass(void **state)
{
    (void)state;
    static struct weights_info w = {.n_layers = 21, .n_decoder = 16};
    const struct machine m = {.step_s = {.value = 2e-5}, .threads = 2};
    const struct shape shape = {.n_layers = 16, .dim = 768, .vocab = 16000, .embed_dim = 768};
    const struct plan_costs costs = {.rates = RATES};
    static const struct evict full = {.policy = EVICT_FULL};
    /* One pass of a known token a row, which all reach the head. */
    const struct work work = {.n_rows = 64,
                              .scores = 1,
                              .prompt_tokens = 64,
                              .output_tokens = 64,
                              .prompt_max = 1,
                              .tokens_max = 2,
                              .slots_max = 2,
                              .slots_mean = 2};
    const struct setting set = {&w, &work, &shape, &full, &costs, &m};
    for (int i = 1; i < w.n_layers; i++)
        w.tile_bytes[i] = 2 * (w.layer_bytes[i] = 1 << 20);
    for (int batches = 1; batches <= 4; batches *= 2)
        for (int decoded = 0; decoded <= 20; decoded += 20) {
            struct plan_time t;
            struct plan p = {.layers = 21,
                             .decoder = 16,
                             .batch = 64 / batches,
                             .batches = batches,
                             .resident = 20,
                             .decoded = decoded,
                             .kv_near = PLAN_ALL,
                             .hidden_near = PLAN_ALL,
                             .prefill_tokens = 64,
                             .tile_tokens = PLAN_TILE_TOKENS,
                             .ahead_weights = 1};
            const enum weight_state form = decoded ? WEIGHTS_TILES : WEIGHTS_STORED;
            plan_derive(&p, &w, &work);
            assert_int_equal(p.decoded, decoded);
            struct order order = plan_order(&p);
            double each = 64.0 / batches;
            double s = 16 * model_layer_s(&RATES, form, each) +
                       4 * model_head_s(&RATES, form, each); // 16,000 rows of vocabulary
            s = s * batches + (double)order_pass_steps(&order) * m.step_s.value;
            void *memory = malloc((size_t)plan_cost_bytes(&p));
            assert_non_null(memory);
            assert_int_equal(plan_cost(&set, &p, memory, &t), 0);
            free(memory);
            assert_true(t.passes == 1 && near(t.compute_s, s));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(median_and_spread),
        cmocka_unit_test(the_table_stands_in_order),
        cmocka_unit_test(few_in_flight_get_less),
        cmocka_unit_test(depth_is_the_least_that_fills_the_disk),
        cmocka_unit_test(rows_attend_in_time),
        cmocka_unit_test(prompts_attend_in_time),
        cmocka_unit_test(matmuls_follow_from_two_rates),
        cmocka_unit_test(one_matmul_stands_for_all),
        cmocka_unit_test(seconds_at_any_number_of_tokens),
        cmocka_unit_test(seconds_grow_without_steps),
        cmocka_unit_test(disturbed_rates_ascend),
        cmocka_unit_test(a_model_elsewhere_is_derived),
        cmocka_unit_test(experts_are_met_by_shares),
        cmocka_unit_test(matmuls_of_a_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
