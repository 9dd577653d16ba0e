/* tests/simt_line_test.c - the line on a CUDA device without a GPU: kernels/cuda/device.cu over the
 * CUDA runtime of tests/simt/cudart, every kernel under the SIMT shim. Any placement gives, in f32,
 * the CPU's bytes. */
#include "kernels/device.h"
#include "tests/engine_bed.h"
#include "tests/simt/cudart/cudart.h"
#include "tests/simt/cudart/lt.h"
#include "tests/simt/simt.h"

enum err sluice_device_open(int version, const char *arg, struct device **d);

static const struct evict H2O_40 = {.policy = EVICT_H2O, .budget = 40, .sink = -1};
static const struct expect JOBS[] = {{1, 55, 2, REQUEST_GENERATE, 1, 1, 1},
                                     {2, 50, 1, REQUEST_SCORE, 0, 0, 0}};
static const struct evict *const POLICIES[] = {&FULL,    &H2O_40,  &MEAN,  &RINGS,
                                               &BY_SLOT, &QHITTER, &GAPPED};
#define N_POLICIES ((int)(sizeof POLICIES / sizeof *POLICIES))

static struct device *device_pinning(uint64_t seed, int sm, int64_t pin_bytes)
{
    struct device *d = NULL;
    const struct cudart_machine machine = {
        .n_devices = 1, .sm = sm, .memory_bytes = 128 << 20, .pin_bytes = pin_bytes, .seed = seed};
    cudart_open(&machine);
    cublaslt_open(NULL);
    simt_races(0); // the ops' own tests look for them
    if (sluice_device_open(DEVICE_VERSION, "", &d) != OK)
        print_error("%s\n", err_text());
    assert_non_null(d);
    return d;
}

static struct device *device_make(uint64_t seed, int sm)
{
    return device_pinning(seed, sm, 64 << 20);
}

static int line_model = TINY; // of the next runs

/* What a seed makes of a plan. */
static struct plan random_plan(uint64_t seed, int attn_cpu)
{
    uint64_t r = mix64(seed);
    int n = models[line_model].n_layers - 1;
    struct plan p = {.device = 1, .attn_cpu = attn_cpu};
#define PICK(n) (int)((r = mix64(r)) % (uint64_t)(n))
    p.window = 1 + PICK(4);
    p.batch = 6 + PICK(N_REQUESTS - 5);
    p.batches = 1 + PICK(2);
    p.resident = PICK(3) == 0 ? n : PICK(n + 1);
    p.weights_ram = PICK(n + 1);
    int extents = models[line_model].shape.n_layers * p.batches + 1;
    p.kv_near = PICK(3) == 0 ? PLAN_ALL : PICK(extents);
    p.kv_ram = PICK(2) == 0 ? PLAN_ALL : PICK(extents);
    p.hidden_near = PICK(p.batches + 1);
    p.hidden_ram = PICK(2) == 0 ? PLAN_ALL : PICK(p.batches + 1);
    p.prefill_tokens = 200 + PICK(400);
    p.ahead_weights = PICK(5);
    p.ahead_state = PICK(8);
    p.no_sharing = PICK(2);
    p.tile_tokens = PAGE_SLOTS * PICK(3); // 0: as on the CPU
#undef PICK
    return p;
}

/* COMPUTE_BF16 by matmuls of cuBLASLt. */
#define BY_CUBLASLT N_COMPUTES

static int64_t busy_bytes; // of pinned RAM: what every pass of the last run used

static enum err run(enum compute compute, const struct evict *evict, const struct expect *job,
                    struct plan plan, struct device *device, struct outcome *outcome)
{
    static struct bed b;
    const struct model *model = &models[line_model];
    const int library = compute == BY_CUBLASLT;
    char name[32];
    bed_open(&b, model, evict, library ? COMPUTE_BF16 : compute, job);
    b.device = device;
    b.ops.matmul = library ? MATMUL_CUBLASLT : MATMUL_OWN;
    if (library)
        assert_int_equal(device->api->library->open(device, name, sizeof name), OK);
    bed_start(&b, model, &plan);
    const int64_t few = plan.device ? cudart_small_copies() : 0; // of trials of cuBLASLt
    enum err err = engine_run(&b.engine);
    *outcome = b.outcome;
    busy_bytes = b.engine.home.ring_bytes;
    if (plan.device) // no op waits for the copy engine with a small table
        assert_int_equal(cudart_small_copies(), few);
    if (plan.device) // what the plan proved is what was taken, and a page to align it
        assert_int_equal(cudart_peak_bytes(), round_up(b.bytes.device, 4096) + 4096);
    bed_close(&b);
    return err;
}

static struct outcome answer(const struct evict *evict, const struct expect *job)
{
    struct outcome o;
    struct plan plan = {.batch = N_REQUESTS,
                        .batches = 1,
                        .resident = models[line_model].n_layers - 1,
                        .kv_near = PLAN_ALL,
                        .hidden_near = PLAN_ALL,
                        .prefill_tokens = 999};
    assert_int_equal(run(COMPUTE_F32, evict, job, plan, device_cpu(), &o), OK);
    assert_int_equal(o.n_finished, N_REQUESTS);
    return o;
}

/* On tensor cores, and by a library, the bytes are the device's own: no placement, no batch
 * and no neighbour changes them. */
static void test_any_placement_gives_the_same_bytes(void **state)
{
    (void)state;
    static const struct {
        enum compute compute;
        int sm;
        const struct evict *evict;
        const struct expect *job;
        int attn_cpu;
    } kinds[] = {{COMPUTE_BF16, 80, &H2O_40, &JOBS[0], 0}, {COMPUTE_BF16, 75, &RINGS, &JOBS[1], 0},
                 {COMPUTE_BF16, 80, &GAPPED, &JOBS[0], 1}, {COMPUTE_BF16, 90, &MEAN, &JOBS[1], 0},
                 {COMPUTE_BF16, 75, &FULL, &JOBS[0], 1},   {BY_CUBLASLT, 80, &MEAN, &JOBS[1], 0},
                 {BY_CUBLASLT, 75, &H2O_40, &JOBS[0], 0}};
    for (int i = 0; i < 7; i += sweep(2, 1)) {
        struct outcome first = {0}, got;
        for (uint64_t seed = 0; seed < 2; seed++) {
            struct device *d = device_make(seed, kinds[i].sm);
            enum err err = run(kinds[i].compute, kinds[i].evict, kinds[i].job,
                               random_plan((uint64_t)(100 * i) + seed, kinds[i].attn_cpu), d, &got);
            if (err != OK)
                print_error("%d, seed %d: %s\n", i, (int)seed, err_text());
            assert_int_equal(err, OK);
            assert_int_equal(got.n_finished, N_REQUESTS);
            if (seed == 0)
                first = got;
            assert_int_equal(got.n_tokens, first.n_tokens);
            assert_int_equal(got.hash, first.hash);
            device_close(d);
        }
    }
}

/* Whatever call or command loses the device, the run ends and says why. */
static void test_a_lost_device_ends_the_run(void **state)
{
    (void)state;
    const struct expect job = {2, 9, 2, REQUEST_GENERATE, 0, 0, 0};
    struct outcome got;
    log_level_max = LOG_ERROR;
    for (uint64_t seed = 0; seed < (uint64_t)sweep(4, 12); seed++) {
        const struct plan plan = random_plan(seed, seed % 3 == 2);
        struct device *d = device_make(seed, 75);
        if (seed % 2)
            cudart_fail_command(30 + (int64_t)(mix64(seed) % 100));
        else
            cudart_fail_call(160 + (int64_t)(mix64(seed) % 200), cudaErrorIllegalAddress, 1);
        assert_int_equal(run(COMPUTE_F32, &H2O_40, &job, plan, d, &got), ERR_DEVICE);
        if (!strstr(err_text(), "an illegal memory access") && !strstr(err_text(), "device: "))
            print_error("seed %d: %s\n", (int)seed, err_text());
        assert_true(strstr(err_text(), "cuda: ") || strstr(err_text(), "device: "));
        device_close(d);
    }
}

static void test_any_placement_gives_the_bytes_of_the_cpu(void **state)
{
    (void)state;
    int first = 0, n = N_POLICIES;
    const char *range = getenv("LINE_SEEDS"); // FIRST,N
    if (range)
        assert_int_equal(sscanf(range, "%d,%d", &first, &n), 2);
    for (int seed = first; seed < first + n; seed += sweep(4, 1)) {
        const int kind = seed % N_POLICIES;
        line_model = seed % 8 == 4 ? LENT : TINY;
        const struct evict *evict = POLICIES[kind];
        const struct expect *job = &JOBS[(kind % 3 == 1) ^ (seed / N_POLICIES % 2)];
        const struct outcome want = answer(evict, job);
        struct outcome got;
        struct device *d = device_make((uint64_t)seed, seed % 3 == 0 ? 90 : 80);
        enum err err =
            run(COMPUTE_F32, evict, job,
                random_plan((uint64_t)seed, seed % 3 == 2 && line_model == TINY), d, &got);
        if (err != OK || got.hash != want.hash)
            print_error("seed %d: %s\n", seed, err != OK ? err_text() : "other bytes");
        assert_int_equal(err, OK);
        assert_int_equal(got.n_finished, N_REQUESTS);
        assert_int_equal(got.n_tokens, want.n_tokens);
        assert_int_equal(got.hash, want.hash);
        assert_int_equal(cudart_held(), 0);
        device_close(d);
    }
    line_model = TINY;
}

/* Of what stays in RAM all is pinned, some, or none: the same bytes. */
static void test_ram_that_is_not_pinned(void **state)
{
    (void)state;
    static const int64_t more[] = {64 << 20, 1 << 20, 64 << 10};
    const struct plan plan = {.device = 1,
                              .window = 2,
                              .batch = 8,
                              .batches = 2,
                              .weights_ram = models[line_model].n_layers - 1,
                              .kv_ram = PLAN_ALL,
                              .hidden_ram = PLAN_ALL,
                              .prefill_tokens = 300,
                              .ahead_weights = 2,
                              .ahead_state = 1};
    const struct outcome want = answer(&H2O_40, &JOBS[0]);
    log_level_max = LOG_ERROR;
    for (int i = 0; i < 3; i++) { // the first run tells how much every pass uses
        struct outcome got;
        struct device *d = device_pinning((uint64_t)i, 80, round_up(busy_bytes, 4096) + more[i]);
        assert_int_equal(run(COMPUTE_F32, &H2O_40, &JOBS[0], plan, d, &got), OK);
        assert_int_equal(got.hash, want.hash);
        assert_int_equal(cudart_host_calls() > 0, i > 0);
        assert_int_equal(cudart_held(), 0);
        device_close(d);
    }
    log_level_max = LOG_WARN;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ram_that_is_not_pinned),
        cmocka_unit_test(test_any_placement_gives_the_bytes_of_the_cpu),
        cmocka_unit_test(test_any_placement_gives_the_same_bytes),
        cmocka_unit_test(test_a_lost_device_ends_the_run),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
