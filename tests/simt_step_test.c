/* tests/simt_step_test.c - how many commands a decode step queues on a CUDA device: launches,
 * copies and fills, counted by the CUDA runtime of tests/simt/cudart, which runs none of them.
 *
 * Owns: the table of bounds. A bound is what the code queues today: one command more fails. After
 * a change that saves commands, make the bound tighter. Each command costs the host 2 to 3 us and
 * the card a gap of about 2 us (both are assumed). Models are as deep, and their heads as wide, as
 * the published ones; other matrices are narrow, as no count depends on their width. */
#include "kernels/device.h"

#include "bench/gpu/step.h"
#define N_REQUESTS 64
#include "tests/engine_bed.h"
#include "tests/simt/cudart/cudart.h"

enum err sluice_device_open(int version, const char *arg, struct device **d);

#define SLOTS 4096 // tokens of a row when the counted step comes

/* OPT_BF12: stored as `pack` chooses by itself; its matmuls decode panels on the way. */
enum { OPT_6_7B, LLAMA_8B, OPT_BF12, N_SHAPES };
#define OPT_CONFIG                                                                                 \
    "family = opt\ndim = 64\nlayers = 32\nheads = 32\nhead_dim = 128\nffn = 64\n"         \
    "vocab = 50272\ncontext = 4200\n"
static const struct {
    const char *config;
    enum pack_weights weights;
} SHAPES[N_SHAPES] = {
    {OPT_CONFIG, PACK_BF16},
    {"family = llama\ndim = 64\nlayers = 32\nheads = 32\nkv_heads = 8\nhead_dim = 128\nffn = 64\n"
     "vocab = 128256\ncontext = 4200\n",
     PACK_BF16},
    {OPT_CONFIG, PACK_BF12},
};
static struct model shapes[N_SHAPES];

static int shapes_make(void **state)
{
    (void)state;
    temp_dir_make();
    for (int i = 0; i < N_SHAPES; i++) {
        struct pack_provider p;
        char path[64];
        temp_write_text("shape.cfg", SHAPES[i].config);
        assert_int_equal(dummy_open(&p, temp_path("shape.cfg")), OK);
        snprintf(path, sizeof path, "%.40s/shape-%d.pack", temp_dir, i);
        struct pack_request r = {.provider = &p, .weights = SHAPES[i].weights, .path = path};
        assert_int_equal(pack_write(&r), OK);
        dummy_close(&p);
        assert_int_equal(model_open(&shapes[i], path), OK);
    }
    return 0;
}

static int shapes_close(void **state)
{
    (void)state;
    for (int i = 0; i < N_SHAPES; i++)
        model_close(&shapes[i]);
    temp_dir_remove();
    return 0;
}

static const char *const KERNELS[] = {
    "forced_split", "forced_join", "forced_score", "forced_place", "matmul_", "norm_row",
    "round_x",      "rope_row",    "gate_mul",     "copy_units",   "head_",   "gather_",
};
#define NORMS     5 // among them
#define N_KERNELS ((int)(sizeof KERNELS / sizeof *KERNELS))

struct counted {
    struct cudart_counts all;
    int64_t of[N_KERNELS];
};

/* Of a whole job of `rows` rows that bring SLOTS - output tokens and get `output` more. */
static struct counted counts_of(const struct model *model, const struct evict *evict, int rows,
                                 int output)
{
    static struct bed b;
    struct device *d = NULL;
    const struct cudart_machine machine = {.n_devices = 1,
                                           .sm = 90,
                                           .memory_bytes = (int64_t)1 << 40,
                                           .pin_bytes = (int64_t)1 << 33,
                                           .seed = 1,
                                           .idle = 1};
    const int n_prompt = SLOTS - 3;
    const struct expect job = {n_prompt, n_prompt, output, REQUEST_GENERATE, 0, 0, 0};
    struct plan plan = {.device = 1,
                        .batch = rows,
                        .batches = 1,
                        .window = 3,
                        .resident = model->n_layers - 1,
                        .decoded = model->n_layers - 1,
                        .kv_near = PLAN_ALL,
                        .hidden_near = PLAN_ALL,
                        .prefill_tokens = rows * SLOTS, // all rows begin in one pass
                        .ahead_weights = 1,
                        .ahead_state = 1};
    struct counted c;
    cudart_open(&machine);
    assert_int_equal(sluice_device_open(DEVICE_VERSION, "", &d), OK);
    bed_random.n = rows;
    bed_open(&b, model, evict, COMPUTE_BF16, &job);
    b.device = d;
    bed_start(&b, model, &plan);
    enum err err = engine_run(&b.engine);
    if (err != OK)
        print_error("%s\n", err_text());
    assert_int_equal(err, OK);
    assert_int_equal(b.outcome.n_finished, rows);
    c.all = cudart_queued();
    for (int i = 0; i < N_KERNELS; i++)
        c.of[i] = cudart_launched(KERNELS[i]);
    bed_close(&b);
    device_close(d);
    return c;
}

/* The model of cards counts the same, but for the head: the line may cut it into more layers, each
 * of which has a norm and rounds its input. */
static void assert_model_counts(const struct model *m, int rows, int has_scores, int commands,
                                int norms)
{
    const struct card_job job = {.kv_share = has_scores ? 0.2 : 1,
                                 .stored = DTYPE_BF16,
                                 .rows = rows,
                                 .batches = 1,
                                 .prompt = SLOTS - 3,
                                 .new = 3};
    const int layers = norms - 2 * m->shape.n_layers;
    struct modelled step;
    step_price(&step, &job, &m->shape, gpu_card_by_name("h100"));
    assert_int_equal(step.commands, commands - 2 * (layers - 1));
}

static void test_commands_of_a_decode_step(void **state)
{
    (void)state;
    static const struct evict H2O_FIFTH = {
        .policy = EVICT_H2O, .budget = 0.2, .budget_is_fraction = 1, .sink = -1};
    static const struct evict WINDOW = {
        .policy = EVICT_WINDOW, .budget = 0.2, .budget_is_fraction = 1, .sink = -1};
    static const struct {
        int shape, rows;
        const struct evict *evict;
        int commands; // at most
    } steps[] = {
        {OPT_6_7B, 24, &FULL, 459},      {OPT_6_7B, 24, &WINDOW, 459},
        {OPT_6_7B, 24, &H2O_FIFTH, 523}, {OPT_6_7B, 64, &H2O_FIFTH, 523},
        {OPT_BF12, 24, &FULL, 523},      {LLAMA_8B, 24, &FULL, 615},
        {LLAMA_8B, 64, &FULL, 615},      {LLAMA_8B, 64, &H2O_FIFTH, 679},
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        const struct model *m = &shapes[steps[i].shape];
        const struct counted less = counts_of(m, steps[i].evict, steps[i].rows, 2);
        const struct counted more = counts_of(m, steps[i].evict, steps[i].rows, 3);
        const int launches = (int)(more.all.launches - less.all.launches);
        const int copies = (int)(more.all.copies - less.all.copies);
        const int fills = (int)(more.all.fills - less.all.fills);
        print_message("%s, %d rows, %s: %d launches, %d copies, %d fills:", m->shape.family,
                      steps[i].rows, evict_policy_name(steps[i].evict->policy), launches, copies,
                      fills);
        for (int k = 0; k < N_KERNELS; k++)
            print_message(" %s %d", KERNELS[k], (int)(more.of[k] - less.of[k]));
        print_message("\n");
        assert_in_range(launches + copies + fills, 1, steps[i].commands);
        if (steps[i].shape != OPT_BF12 && steps[i].evict != &WINDOW) // the model has neither
            assert_model_counts(m, steps[i].rows, steps[i].evict == &H2O_FIFTH,
                                launches + copies + fills, (int)(more.of[NORMS] - less.of[NORMS]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_commands_of_a_decode_step)};
    return cmocka_run_group_tests(tests, shapes_make, shapes_close);
}
