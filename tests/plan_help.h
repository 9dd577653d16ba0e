/* tests/plan_help.h - a made-up model, job and machine, for tests of plans and of what they cost.
 */
#ifndef TESTS_PLAN_HELP_H
#define TESTS_PLAN_HELP_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail // ours, from base.h

#include "engine/line/engine.h"
#include "kernels/base/base.h"
#include "policy/search.h"

#define MIB 1048576

static struct weights_info weights;
static struct shape shape;
static struct work work;
static struct plan_costs costs;
static struct evict evict;
static const struct machine MACHINE = {.nvme_read = {.value = 2e9},
                                       .nvme_write = {.value = 1e9},
                                       .ram_read = {.value = 2e10},
                                       .matmul_flops = {.value = 1e11},
                                       .step_s = {.value = 2e-5},
                                       .h2d = {.value = 1e10},
                                       .d2h = {.value = 8e9},
                                       .device_read = {.value = 2e11},
                                       .device_flops = {.value = 1e13},
                                       .threads = 2};
__attribute__((unused)) static const struct budget NO_BUDGET = {-1, -1, -1};
__attribute__((unused)) static const struct plan_wish AUTO = {.resident = -1,
                                                              .weights_ram = -1,
                                                              .decoded = -1,
                                                              .kv_near = -1,
                                                              .kv_ram = -1,
                                                              .hidden_near = -1,
                                                              .hidden_ram = -1,
                                                              .percent = {-1, -1, -1, -1, -1, -1},
                                                              .ahead_weights = -1,
                                                              .ahead_state = -1};

#define ROWS 3000
static struct work_row lengths[ROWS];

/* Of every 100 rows one has 500 tokens, the others 197, some 196: 20,000; 100 more to come. */
static void make_lengths(void)
{
    for (int i = 0; i < ROWS; i++) {
        int prompt = i % 100 == 50 ? 500 : i % 100 < 3 ? 196 : 197;
        lengths[i] = (struct work_row){.prompt = prompt, .known = prompt, .cap = prompt + 100};
    }
}

/* 16 layers of 12 MiB, 4 slices of 6 MiB, an embedding of 30 MiB, 100 rows of up to 600 tokens. */
__attribute__((unused)) static int setup(void **state)
{
    (void)state;
    memset(&weights, 0, sizeof weights);
    weights.n_layers = 21;
    weights.n_decoder = 16;
    weights.n_params = 130000000;
    weights.flops_per_token = 2 * weights.n_params;
    weights.embed_row_bytes = 1536;
    weights.embed_rest_bytes = 4096;
    weights.layer_bytes[0] = 30 * MIB;
    for (int i = 1; i < 21; i++)
        weights.layer_bytes[i] = (i <= 16 ? 12 : 6) * MIB;
    shape = (struct shape){.n_layers = 16,
                           .dim = 768,
                           .n_heads = 12,
                           .n_kv_heads = 4,
                           .head_dim = 64,
                           .ffn_dim = 2048,
                           .vocab = 16000,
                           .context = 2048,
                           .embed_dim = 768,
                           .rope_dim = 64};
    make_lengths();
    work = (struct work){.n_rows = 100,
                         .rows = lengths,
                         .n_lengths = 100,
                         .stride = 1,
                         .prompt_tokens = 20000,
                         .output_tokens = 10000,
                         .prompt_max = 500,
                         .tokens_max = 600,
                         .slots_max = 600,
                         .slots_mean = 300,
                         .line_bytes_max = 4000};
    costs = (struct plan_costs){.measure = engine_measure,
                                .tile_bytes = layer_tile_bytes,
                                .kv_page_bytes = 32768,
                                .prompt_page_bytes = 32768,
                                .cross = {4, 4},
                                .text_bytes = 12 * MIB,
                                .io_bytes = MIB,
                                .row_token_bytes = 16,
                                .scratch_bytes = {3 * MIB, 6 * MIB, 12 * MIB, 24 * MIB}};
    const struct model_weights numbers = {
        .layer = {{[MATMUL_BF16] = 6291456}, {[MATMUL_BF16] = 6291456}},
        .head = {{[MATMUL_BF16] = HEAD_TILE * 768}, {[MATMUL_BF16] = HEAD_TILE * 768}}};
    model_rates_derive(&costs.rates, &MACHINE, &numbers);
    evict = (struct evict){.policy = EVICT_FULL};
    return 0;
}

__attribute__((unused)) static struct plan derived(struct plan p)
{
    plan_derive(&p, &weights, &work);
    return p;
}

static struct setting setting_of(const struct machine *machine)
{
    return (struct setting){&weights, &work, &shape, &evict, &costs, machine};
}

__attribute__((unused)) static int check(const struct plan *p, const struct budget *budget,
                                         struct plan_bytes *b, char *why, int why_cap)
{
    const struct setting set = setting_of(&MACHINE);
    return plan_check(&set, p, budget, b, why, why_cap);
}

__attribute__((unused)) static int search_on(const struct machine *machine,
                                             const struct plan_wish *wish,
                                             const struct budget *budget, struct plan *p, char *why,
                                             int why_cap)
{
    const struct setting set = setting_of(machine);
    void *memory = malloc((size_t)plan_search_bytes(wish, &work, weights.n_layers));
    assert_non_null(memory);
    int rc = plan_search(&set, wish, budget, memory, p, NULL, why, why_cap);
    free(memory);
    return rc;
}

__attribute__((unused)) static int search(const struct plan_wish *wish, const struct budget *budget,
                                          struct plan *p, char *why, int why_cap)
{
    return search_on(&MACHINE, wish, budget, p, why, why_cap);
}

__attribute__((unused)) static struct plan_time time_on(const struct machine *machine,
                                                        const struct plan *p)
{
    struct plan_time t;
    const struct setting set = setting_of(machine);
    void *memory = malloc((size_t)plan_cost_bytes(p));
    assert_non_null(memory);
    assert_int_equal(plan_cost(&set, p, memory, &t), 0);
    free(memory);
    return t;
}

#endif
