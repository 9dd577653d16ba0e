/* tests/configs_test.c - the model shapes of configs/: each opens, with the parameters it claims;
 * its machines: each has every rate that a plan divides by.
 *
 * The counts are the published ones, so that a wrong digit in a shape shows here. */
#include "engine/model/dummy.h"
#include "offload/probe.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#undef fail // ours, from base.h

static const struct {
    const char *path, *family;
    double n_params; // in billions
} models[] = {
    {"configs/llama-1b.cfg", "llama", 1.074},
    {"configs/llama-3b.cfg", "llama", 2.970},
    {"configs/llama-8b.cfg", "llama", 8.030},
    {"configs/opt-6.7b.cfg", "opt", 6.658},
    {"configs/opt-13b.cfg", "opt", 12.853},
    {"configs/opt-30b.cfg", "opt", 29.975},
    {"configs/opt-6.7b-4k.cfg", "opt", 6.667},
    {"configs/opt-66b.cfg", "opt", 65.720},
    {"configs/opt-175b.cfg", "opt", 174.604},
    {"configs/llama-2-70b.cfg", "llama", 68.977},
    {"configs/llama-3-70b.cfg", "llama", 70.554},
    {"configs/qwen2.5-32b.cfg", "qwen2", 32.764},
    {"configs/phi4-14b.cfg", "phi3", 14.660},
    {"configs/gemma2-27b.cfg", "gemma2", 27.227},
    {"configs/phi4-14b.cfg", "phi3", 14.660},
    {"configs/mixtral-8x7b.cfg", "mixtral", 46.703},
    {"configs/qwen3-30b-a3b.cfg", "qwen3_moe", 30.532},
    {"configs/qwen2-57b-a14b.cfg", "qwen2_moe", 57.409},
    {"configs/glm-4.5-air.cfg", "glm4_moe", 106.852},
    {"configs/deepseek-v3.cfg", "deepseek_v3", 671.026},
    {"configs/glm-4.7-flash.cfg", "glm4_moe_lite", 29.943},
    {"configs/minimax-m2.cfg", "minimax_m2", 228.690},
    {"configs/gpt-oss-20b.cfg", "gpt_oss", 20.915},
    {"configs/gemma4-26b-a4b.cfg", "gemma4", 25.233},
    {"configs/gemma4-31b.cfg", "gemma4", 30.697},
    {"configs/gemma4-e2b.cfg", "gemma4", 4.629},
    {"configs/gemma4-e4b.cfg", "gemma4", 7.463},
};

/* Every matrix and vector of the shape, the tied head once. */
static double count_params(const struct pack_provider *p)
{
    double n_params = 0;
    for (int role = 0; role < N_ROLES; role++) {
        if (!(p->roles & ROLE_BIT(role)) || (role == ROLE_HEAD && p->tied))
            continue;
        for (int layer = 0; layer < pack_copies(p, (enum tensor_role)role); layer++) {
            int n, k;
            role_dims(&p->shape, (enum tensor_role)role, layer, &n, &k);
            n_params += pack_has(p, (enum tensor_role)role, layer) ? (double)n * k : 0;
        }
    }
    return n_params;
}

static void test_models(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct pack_provider p = {0};
        enum err err = dummy_open(&p, models[i].path);
        if (err != OK)
            print_error("%s\n", err_text());
        assert_int_equal(err, OK);
        assert_string_equal(p.shape.family, models[i].family);
        double billions = count_params(&p) * 1e-9;
        print_message("%s: %.4f billion parameters\n", models[i].path, billions);
        assert_true(fabs(billions - models[i].n_params) < 0.001);
        dummy_close(&p);
    }
}

static void test_machines(void **state)
{
    (void)state;
    static const char *const paths[] = {"laptop", "t4", "a10", "rtx4090", "a100", "h100", "h200"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct machine m = {0};
        char path[64];
        snprintf(path, sizeof path, "configs/machine-%s.cfg", paths[i]);
        enum err err = machine_file_read(&m, path);
        if (err == OK && m.device_memory > 0)
            err = machine_device_check(&m, path);
        if (err != OK)
            print_error("%s\n", err_text());
        assert_int_equal(err, OK);
        assert_true((m.device_memory > 0) == (i > 0) && m.ram > 0 && m.disk > 0);
        assert_true(m.h2d.value <= m.ram_read.value && m.h2d.value <= m.device_read.value);
        assert_true((m.device_attend_read.value > 0) == (i > 0));
        assert_true(m.device_attend_flops.value <= m.device_flops.value);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_models),
                                       cmocka_unit_test(test_machines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
