/* tests/line_device_test.c - the line on a device whose memory the host cannot touch: any placement
 * of weights, KV and hidden states over device memory, RAM and NVMe gives the CPU's bytes, however
 * late the device is. On a real device (SLUICE_TEST_DEVICE): the CPU's bytes under --compute f32,
 * else its own, whatever the placement. */
#include "tests/device_help.h"
#include "tests/engine_bed.h"

#define DELAY_US 200

/* What a seed makes of a plan. Shares are of layers and batches, homes of enum tier_kind. */
static struct plan random_plan(const struct model *model, uint64_t seed)
{
    uint64_t r = mix64(seed);
    int n = model->n_layers - 1;
    const int apart = shape_attends_apart(&model->shape);
    struct plan p = {.device = 1, .attn_cpu = apart && (seed + seed / TINY) % 3 == 2};
#define PICK(n) (int)((r = mix64(r)) % (uint64_t)(n))
    p.window = 1 + PICK(4);
    p.batch = 1 + PICK(N_REQUESTS);
    p.batches = 1 + PICK(4);
    p.resident = PICK(3) == 0 ? n : PICK(n + 1);
    p.decoded = PICK(4) == 0 ? PICK(n + 1) : 0;
    p.weights_ram = PICK(n + 1);
    int extents = (model->shape.n_layers * p.batches) + 1;
    p.kv_near = PICK(3) == 0 ? PLAN_ALL : PICK(extents);
    p.kv_ram = PICK(2) == 0 ? PLAN_ALL : PICK(extents);
    p.hidden_near = PICK(p.batches + 1);
    p.hidden_ram = PICK(2) == 0 ? PLAN_ALL : PICK(p.batches + 1);
    p.prefill_tokens = 9 + PICK(200);
    p.ahead_weights = PICK(3) == 0 ? PICK(30) : PICK(5);
    p.ahead_state = PICK(3) == 0 ? 1000 : PICK(8); // as far as the order of bytes allows
    p.no_sharing = PICK(2);
    p.tile_tokens = PAGE_SLOTS * PICK(10); // 0: as on the CPU
#undef PICK
    return p;
}

static const struct evict *const POLICIES[] = {&FULL,   &H2O,     &MEAN,    &RINGS,
                                               &UNEVEN, &BY_SLOT, &QHITTER, &GAPPED};
#define N_POLICIES ((int)(sizeof POLICIES / sizeof *POLICIES))
static const struct expect JOBS[] = {{1, 150, 12, REQUEST_GENERATE, 1, 1, 1},
                                     {20, 90, 40, REQUEST_SCORE, 0, 0, 0}};
#define N_KINDS (TINY * N_POLICIES * 2)

/* Model, policy, arithmetic and job of a seed. The first 16 seeds already meet every policy, and
 * every model under both jobs and both arithmetics: 5 has no divisor in common with N_KINDS. */
static struct kind {
    const struct model *model;
    const struct evict *evict;
    enum compute compute;
    const struct expect *job;
} kind_of(int seed)
{
    int i = seed * 5 % N_KINDS;
    return (struct kind){&models[i % TINY], POLICIES[i / TINY % N_POLICIES],
                         (i / TINY + i / TINY / N_POLICIES) % 2 == 0 ? COMPUTE_F32 : COMPUTE_BF16,
                         &JOBS[i / TINY / N_POLICIES]};
}

/* One bit for the policy, one for the model and its job, one for the model and its arithmetic. */
#define ALL_BITS ((1u << (N_POLICIES + 4 * TINY)) - 1)
static unsigned kind_bits(struct kind k)
{
    int policy = 0, model = (int)(k.model - models);
    while (POLICIES[policy] != k.evict)
        policy++;
    return 1u << policy | 1u << (N_POLICIES + 2 * model + (k.job == &JOBS[1])) |
           1u << (N_POLICIES + 2 * TINY + 2 * model + (k.compute == COMPUTE_F32));
}

static enum err run(struct kind k, struct plan plan, struct device *device, struct outcome *outcome)
{
    static struct bed b;
    bed_open(&b, k.model, k.evict, k.compute, k.job);
    b.device = device;
    bed_start(&b, k.model, &plan);
    enum err err = engine_run(&b.engine);
    *outcome = b.outcome;
    if (err == OK) // bytes read too early are none: checksums would heal it in silence
        assert_int_equal(b.engine.rows_lost + b.engine.repairs.bad + b.engine.repairs.repaired, 0);
    if (plan.device && !real_device()) // what the plan proved is what was taken
        assert_int_equal(sim_device_peak_bytes(device), round_up(b.bytes.device, 4096));
    bed_close(&b);
    return err;
}

/* The answer of a job, on the CPU, in RAM; where a device rounds by its own rules, on the device.
 */
static struct outcome answer(struct kind k, struct device *device)
{
    struct outcome o;
    struct plan plan = {.device = device != device_cpu(),
                        .batch = N_REQUESTS,
                        .batches = 1,
                        .resident = k.model->n_layers - 1,
                        .kv_near = PLAN_ALL,
                        .hidden_near = PLAN_ALL,
                        .prefill_tokens = 999};
    assert_int_equal(run(k, plan, device, &o), OK);
    assert_int_equal(o.n_finished, N_REQUESTS);
    return o;
}

static void test_any_placement_answers_alike(void **state)
{
    (void)state;
    struct outcome want[N_KINDS] = {0};
    int first = 0, n = sweep(16, SANITIZED ? 24 : N_KINDS);
    unsigned met = 0;
    const char *range = getenv("LINE_SEEDS"); // FIRST,N
    if (range)
        assert_int_equal(sscanf(range, "%d,%d", &first, &n), 2);
    for (int seed = first; seed < first + n; seed++) {
        struct kind k = kind_of(seed);
        struct outcome got, *wanted = &want[seed % N_KINDS];
        struct device *d = test_device_open((uint64_t)seed, DELAY_US);
        if (wanted->n_finished == 0)
            *wanted = answer(k, real_device() && k.compute != COMPUTE_F32 ? d : device_cpu());
        enum err err = run(k, random_plan(k.model, (uint64_t)seed), d, &got);
        test_device_close(d);
        if (err != OK || got.hash != wanted->hash)
            print_error("seed %d: %s\n", seed, err != OK ? err_text() : "other bytes");
        assert_int_equal(err, OK);
        assert_int_equal(got.n_finished, N_REQUESTS);
        assert_int_equal(got.n_tokens, wanted->n_tokens);
        assert_int_equal(got.hash, wanted->hash);
        met |= kind_bits(k);
    }
    assert_true(range || met == ALL_BITS);
}

/* However much is worked on at once: a prompt goes over many tiles, or a tile has all of a step;
 * the head has more positions than it takes at once. */
static void test_any_tile_answers_alike(void **state)
{
    (void)state;
    static const int tiles[] = {32, 64, 96, 256, 1024};
    for (int model = 0; model < TINY; model++) {
        struct kind k = {&models[model], model ? &H2O : &FULL, COMPUTE_BF16, &JOBS[1]};
        struct device *d = test_device_open(7, 0);
        const struct outcome want = answer(k, real_device() ? d : device_cpu());
        for (int i = 0; i < 5; i += sweep(2, 1)) {
            struct outcome got;
            const struct plan plan = {.device = 1,
                                      .batch = N_REQUESTS,
                                      .batches = 1,
                                      .resident = k.model->n_layers - 1,
                                      .kv_near = PLAN_ALL,
                                      .hidden_near = PLAN_ALL,
                                      .tile_tokens = tiles[i],
                                      .prefill_tokens = 999};
            assert_int_equal(run(k, plan, d, &got), OK);
            assert_int_equal(got.n_finished, N_REQUESTS);
            if (got.hash != want.hash)
                print_error("model %d: tiles of %d tokens\n", model, tiles[i]);
            assert_int_equal(got.hash, want.hash);
        }
        test_device_close(d);
    }
}

/* Codes of q8 are made of numbers that no one has rounded, on the way to the CPU as well. */
static void test_codes_beside_a_device(void **state)
{
    (void)state;
    needs_simulator(); // another device's matmuls have their own bytes
    for (int i = 0; i < 2; i++) {
        const struct kind k = {&models[LLAMA], &RINGS, COMPUTE_BF16, &JOBS[i]};
        struct outcome got;
        struct device *d = test_device_open((uint64_t)i, DELAY_US);
        const struct outcome want = answer(k, device_cpu());
        struct plan plan = random_plan(k.model, (uint64_t)i);
        plan.attn_cpu = 1;
        assert_int_equal(run(k, plan, d, &got), OK);
        test_device_close(d);
        assert_int_equal(got.n_tokens, want.n_tokens);
        assert_int_equal(got.hash, want.hash);
    }
}

/* Where the CPU attends beside a device, prompts attend there: any tile that has some, beside spans
 * of rows that decode, or that came with tokens of their output, gives the CPU's bytes; prompts
 * share what they begin with. */
static void test_prompts_beside_spans(void **state)
{
    (void)state;
    needs_simulator(); // another device's prompts have their own bytes
    const struct expect job = {45, 150, 90, REQUEST_GENERATE, 0, 0, 1};
    for (int seed = 0; seed < sweep(N_POLICIES, 4 * N_POLICIES); seed++) {
        const struct kind k = {&models[seed % N_MODELS], POLICIES[seed * 5 % N_POLICIES],
                               seed % 4 == 3 ? COMPUTE_F32 : COMPUTE_BF16, &job};
        struct outcome got;
        struct device *d = test_device_open((uint64_t)seed, DELAY_US);
        bed_random.seed = (uint64_t)seed + 1;
        bed_random.known = 80;
        bed_random.shared = seed % 3 == 0 ? 0 : 20 * (seed % 3);
        const struct outcome want = answer(k, device_cpu());
        struct plan plan = random_plan(k.model, (uint64_t)seed);
        plan.attn_cpu = shape_attends_apart(&k.model->shape);
        plan.no_sharing = 0;
        assert_int_equal(run(k, plan, d, &got), OK);
        memset(&bed_random, 0, sizeof bed_random);
        test_device_close(d);
        if (got.hash != want.hash)
            print_error("seed %d: other bytes\n", seed);
        assert_int_equal(got.n_tokens, want.n_tokens);
        assert_int_equal(got.hash, want.hash);
    }
}

/* Whatever command loses the device, the run ends and says so; what was answered is right. */
static void test_a_lost_device_ends_the_run(void **state)
{
    (void)state;
    needs_simulator();
    struct outcome got;
    struct kind k = {&models[TINY], &H2O, COMPUTE_BF16, &JOBS[0]};
    struct outcome want = answer(k, device_cpu());
    for (uint64_t seed = 0; seed < 40; seed += (uint64_t)sweep_step(5)) {
        struct plan plan = random_plan(k.model, seed);
        struct device *d = sim_device_open(seed, 0);
        assert_int_equal(run(k, plan, d, &got), OK);
        assert_int_equal(got.hash, want.hash);
        int64_t n = sim_device_commands(d);
        sim_device_close(d);
        d = sim_device_open(seed, 0);
        sim_device_lose(d, 40 + (int64_t)(mix64(seed) % (uint64_t)(n - 60)));
        assert_int_equal(run(k, plan, d, &got), ERR_DEVICE);
        assert_non_null(strstr(err_text(), "device"));
        sim_device_close(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_placement_answers_alike),
        cmocka_unit_test(test_any_tile_answers_alike),
        cmocka_unit_test(test_codes_beside_a_device),
        cmocka_unit_test(test_prompts_beside_spans),
        cmocka_unit_test(test_a_lost_device_ends_the_run),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
