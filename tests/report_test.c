/* tests/report_test.c - the figures, the end report and the summary of a made-up run. */
#include "engine/api/plan_file.h"
#include "engine/api/report.h"
#include "engine/api/words.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/temp_dir.h"

#include <jansson.h>
#include <math.h>

static struct session session;
static struct run run;
static struct config config;
static struct weights_info weights;

#define SECOND 1000000000LL

/* 10 layers of 1 GB of which 4 stay in RAM, 20 passes in 40 s from a disk of 4 GB/s: 120 GB needed,
 * 30 s of 40. */
static void save_summary(const struct report_figures *f, const struct run *r, const char *path)
{
    json_t *root = report_summary_json(f, r);
    assert_int_equal(json_save(root, path, 9), OK);
    json_decref(root);
}

static int setup(void **state)
{
    (void)state;
    temp_dir_make();
    memset(&session, 0, sizeof session);
    memset(&run, 0, sizeof run);
    run.session = &session;
    run.model = &session.opened.model;
    memset(&config, 0, sizeof config);
    memset(&weights, 0, sizeof weights);
    config.progress = PROGRESS_NONE;
    config.quiet = 1;
    config.kv_budget_layers = "even";
    run.config = &config;
    run.weights = &weights;
    session.opened.model.name = "a model \"quoted\"";
    session.opened.model.dummy = 1;
    session.opened.model.shape = (struct shape){.n_layers = 9,
                                                .dim = 64,
                                                .n_heads = 4,
                                                .n_kv_heads = 2,
                                                .head_dim = 16,
                                                .vocab = 100,
                                                .embed_dim = 64};
    weights.n_layers = 11;
    weights.n_decoder = 9;
    for (int i = 0; i < 11; i++)
        weights.layer_bytes[i] = 1000000000;
    weights.flops_per_token = 2 * 1000000;
    session.device = device_cpu();
    run.decision.plan = (struct plan){.batch = 8,
                                      .batches = 2,
                                      .layers = 11,
                                      .decoder = 9,
                                      .resident = 4,
                                      .kv_near = 18,
                                      .hidden_near = 2,
                                      .prefill_tokens = 256};
    run.machine = (struct machine){.nvme_read = {.value = 4e9},
                                   .nvme_write = {.value = 2e9},
                                   .ram_read = {.value = 2e10},
                                   .matmul_flops = {.value = 1e12},
                                   .step_s = {.value = 2e-5},
                                   .threads = 2};
    run.work =
        (struct work){.n_rows = 10, .prompt_tokens = 1000, .output_tokens = 500, .slots_mean = 150};
    run.decision.time =
        (struct plan_time){.read_s = 1.5,
                           .write_s = 0.25,
                           .compute_s = 0.5,
                           .pass_s = 1.5,
                           .passes = 21,
                           .job_s = 31.5,
                           .bytes = {[LANE_NVME_READ] = 6e10, [LANE_NVME_WRITE] = 7e9},
                           .pace = {1.25, 0.125, 3},
                           .bound = "nvme-read"};
    run.budget.ram = 160 << 20;
    run.startup_s = 1.25;
    run.kv_format = KV_BF16;
    run.evict = (struct evict){.policy = EVICT_H2O, .budget = 0.2, .budget_is_fraction = 1};
    run.engine.start_ns = 100 * SECOND;
    run.engine.end_ns = 140 * SECOND;
    run.engine.passes = 20;
    run.engine.peak_bytes[TIER_NVME] = 12345678;
    run.engine.batches.evicted_slots = 777;
    struct lane_total *t = run.engine.trace.totals;
    t[LANE_NVME_READ] = (struct lane_total){36 * SECOND, 126000000000, 300};
    t[LANE_NVME_WRITE] = (struct lane_total){2 * SECOND, 6000000000, 30};
    t[LANE_CPU] = (struct lane_total){10 * SECOND, 0, 200};
    t[LANE_STALL] = (struct lane_total){29 * SECOND, 0, 100};
    return 0;
}

static struct job_counts counts_make(void)
{
    return (struct job_counts){.rows = 10,
                               .done = 10,
                               .ok = 9,
                               .failed = 1,
                               .prompt_tokens = 1000,
                               .output_tokens = 400,
                               .first_finish_ns = 110 * SECOND,
                               .queue_empty_ns = 130 * SECOND,
                               .output_tokens_at_first = 50,
                               .output_tokens_at_empty = 300,
                               .last_durable_ns = 141 * SECOND};
}

static void assert_near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-6 * fmax(1, fabs(b))))
        fail_msg("%.9g is not %.9g", a, b);
}

static void figures_follow_the_contract(void **state)
{
    (void)state;
    struct report_figures f;
    struct job_counts counts = counts_make();
    report_measure(&f, &run, &counts, 0);
    assert_near(f.elapsed_s, 41); // to the last durable row
    assert_near(f.walk_s, 40);
    assert_near(f.output_per_s, 400 / 41.0);
    assert_near(f.total_per_s, 1400 / 41.0);
    assert_near(f.steady_per_s, 250 / 20.0);
    assert_string_equal(f.bound, "nvme-read");
    assert_int_equal(f.rates_measured, 0);
    assert_near(f.roofline, 30.0 / 40);
    assert_int_equal(f.peak_disk_bytes, 12345678);
    assert_true(f.peak_ram_bytes > 1 << 20);

    report_measure(&f, &run, &counts, 3.5e9);
    assert_int_equal(f.rates_measured, 1);
    assert_near(f.roofline, 120 / 3.5 / 40);

    run.machine.matmul_flops.value = 5e7; // now the CPU is the roof
    report_measure(&f, &run, &counts, 3.5e9);
    double body = 2e6 - 2.0 * 100 * 64, attention = 4.0 * 4 * 16 * 9 * (1000 * 50.0 + 400 * 125.0);
    assert_near(f.roofline, (1400 * body + 400 * 2.0 * 100 * 64 + attention) / 5e7 / 40);

    counts.queue_empty_ns = 0; // the run stopped before the queue was empty
    counts.last_durable_ns = 120 * SECOND;
    report_measure(&f, &run, &counts, 0);
    assert_near(f.steady_per_s, 350 / 30.0);
    assert_near(f.elapsed_s, 40);
    counts.first_finish_ns = 139 * SECOND; // in the last pass: a burst, not a rate
    report_measure(&f, &run, &counts, 0);
    assert_near(f.steady_per_s, 0);
    counts.first_finish_ns = 0; // before any row was finished
    report_measure(&f, &run, &counts, 0);
    assert_near(f.steady_per_s, 0);
    counts = counts_make();
    counts.queue_empty_ns = 105 * SECOND; // all rows entered before the first one finished
    report_measure(&f, &run, &counts, 0);
    assert_near(f.steady_per_s, 0);
}

static void kv_on_nvme_counts_as_required(void **state)
{
    (void)state;
    struct report_figures f;
    struct job_counts counts = counts_make();
    run.decision.plan.kv_near = 0;
    run.costs.kv_page_bytes = 32 * 1000000;
    report_measure(&f, &run, &counts, 0);
    double kv = 10 * 150 * 0.75 * 1e6 * 9;
    assert_near(f.roofline, (6e9 + kv) * 20 / 4e9 / 40);
}

static void nothing_measured_divides_by_zero(void **state)
{
    (void)state;
    struct report_figures f;
    struct job_counts counts = {0};
    memset(&run.engine, 0, sizeof run.engine);
    memset(&run.machine, 0, sizeof run.machine);
    memset(&run.decision.time, 0, sizeof run.decision.time);
    memset(&run.work, 0, sizeof run.work);
    report_measure(&f, &run, &counts, 0);
    assert_true(f.elapsed_s == 0 && f.output_per_s == 0 && f.roofline == 0 && f.steady_per_s == 0);
    save_summary(&f, &run, temp_path("s.json"));
    json_t *root = json_load_file(temp_path("s.json"), 0, NULL);
    assert_non_null(root);
    json_decref(root);
    char line[400];
    struct report p = {.run = &run};
    assert_true(report_line(&p, &counts, 0, line, sizeof line) > 0);
    assert_null(strstr(line, "nan"));
    FILE *out = fopen(temp_path("out"), "w+");
    report_print(&f, &run, out);
    rewind(out);
    while (fgets(line, sizeof line, out))
        assert_true(!strstr(line, "nan") && !strstr(line, "inf"));
    fclose(out);
}

static json_t *at(json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    if (!value)
        fail_msg("no key '%s'", key);
    return value;
}

static void assert_numbers(json_t *object, const char *const *keys)
{
    for (; *keys; keys++)
        if (!json_is_number(at(object, *keys)))
            fail_msg("'%s' is not a number", *keys);
}

/* What was predicted, by how much that was corrected, and by how much it was wrong. */
static void assert_predicted(json_t *root)
{
    json_t *corrected = at(at(root, "plan"), "corrected");
    assert_near(json_number_value(at(root, "error_percent")), 100 * (31.5 - 41) / 41);
    assert_int_equal(json_object_size(corrected), 3);
    assert_true(json_number_value(at(corrected, "times")) == 1.25);
    assert_true(json_number_value(at(corrected, "spread")) == 0.125);
    assert_int_equal(json_integer_value(at(corrected, "runs")), 3);
}

static void summary_has_every_key_of_the_contract(void **state)
{
    (void)state;
    struct report_figures f;
    struct job_counts counts = counts_make();
    report_measure(&f, &run, &counts, 0);
    const char *path = temp_path("summary.json");
    save_summary(&f, &run, path);
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    static const char *const numbers[] = {"prompt_tokens",
                                          "output_tokens",
                                          "startup_s",
                                          "elapsed_s",
                                          "passes",
                                          "output_tokens_per_s",
                                          "total_tokens_per_s",
                                          "steady_output_tokens_per_s",
                                          "predicted_elapsed_s",
                                          "roofline_fraction",
                                          NULL};
    assert_numbers(root, numbers);
    assert_string_equal(json_string_value(at(root, "model")), "a model \"quoted\"");
    assert_true(json_is_true(at(root, "dummy_weights")));
    assert_string_equal(json_string_value(at(root, "device")), "cpu");
    assert_string_equal(json_string_value(at(root, "bound")), "nvme-read");
    assert_string_equal(json_string_value(at(root, "roofline_rates")), "probed");
    assert_true(json_is_string(at(root, "version")));
    assert_true(json_is_object(at(root, "machine")));

    json_t *plan = at(root, "plan");
    assert_int_equal(json_integer_value(at(plan, "batch")), 8);
    assert_int_equal(json_integer_value(at(plan, "batches")), 2);
    assert_true(json_is_object(at(plan, "tiers")) && json_is_object(at(plan, "kv")));
    assert_predicted(root);
    assert_string_equal(json_string_value(at(plan, "attn")), "cpu");
    static const char *const rows[] = {"total", "ok", "failed", NULL};
    assert_numbers(at(root, "rows"), rows);
    assert_int_equal(json_integer_value(at(at(root, "rows"), "ok")), 9);
    static const char *const peaks[] = {"device", "ram", "disk", NULL};
    assert_numbers(at(root, "peak_bytes"), peaks);

    json_t *kv = at(root, "kv");
    assert_string_equal(json_string_value(at(kv, "policy")), "h2o");
    assert_near(json_number_value(at(kv, "budget")), 0.2);
    assert_string_equal(json_string_value(at(kv, "format")), "bf16");
    assert_int_equal(json_integer_value(at(kv, "evicted_tokens")), 777);

    static const char *const lane_keys[] = {
        "busy_s",      "bytes",           "bytes_per_s", "probed_bytes_per_s",
        "predicted_s", "predicted_bytes", NULL};
    static const struct {
        const char *name;
        double values[6]; // in the order of lane_keys
    } wanted[] = {{"nvme-read", {36, 126e9, 3.5e9, 4e9, 31.5, 6e10}},
                  {"nvme-write", {2, 6e9, 3e9, 2e9, 5.25, 7e9}},
                  {"cpu", {10, 0, 0, 0, 10.5, 0}}};
    json_t *lanes = at(root, "lanes");
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        json_t *lane = json_array_get(lanes, i);
        assert_string_equal(json_string_value(at(lane, "name")), wanted[i].name);
        assert_numbers(lane, lane_keys);
        for (int k = 0; lane_keys[k]; k++)
            assert_near(json_number_value(at(lane, lane_keys[k])), wanted[i].values[k]);
    }
    json_decref(root);
}

static void end_report_names_what_matters(void **state)
{
    (void)state;
    struct report_figures f;
    struct job_counts counts = counts_make();
    report_measure(&f, &run, &counts, 0);
    FILE *out = fopen(temp_path("report"), "w+");
    report_print(&f, &run, out);
    char text[4096] = "";
    rewind(out);
    size_t n = fread(text, 1, sizeof text - 1, out);
    fclose(out);
    assert_true(n > 0 && n < sizeof text - 1);
    static const char *const wanted[] = {
        "done: 9 of 10 rows ok, 1 failed; 9.76 output tokens/s\n",
        "  1000 prompt + 400 output tokens in 41.0 s: 34.1 tokens/s; 12.5 output tokens/s between "
        "the first finished row and the last new one\n",
        "  NVMe reads                  1.50      1.80   90.0 %  117 GiB at 3.50 GB/s "
        "(probe: 4.00)\n",
        "  the CPU                    0.500     0.500   25.0 %\n",
        "  waits for transfers            -      1.45   72.5 %\n",
        "  a whole pass                1.50      2.00           20 passes (predicted: 21)\n",
        "  limited by NVMe reads; 0.75 of the speed that the probed rates allow\n",
        " of 160 MiB of RAM, 11.8 MiB of disk\n",
        "  job: predicted 31.5 s, measured 41.0 s (-23.2 %), after 1.25 s to start\n"};
    const char *last = text;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) { // in this order
        const char *found = strstr(last, wanted[i]);
        if (!found)
            fail_msg("no '%s' in:\n%s", wanted[i], last);
        last = found + strlen(wanted[i]);
    }
    assert_int_equal(*last, 0);
    assert_null(strstr(text, "device"));
}

/* What moved nothing, and was not said to move anything, has no row. */
static void idle_resources_have_no_row(void **state)
{
    (void)state;
    struct report_figures f;
    struct job_counts counts = counts_make();
    char text[4096] = "";
    run.decision.time.bytes[LANE_NVME_WRITE] = 0;
    run.decision.time.write_s = 0;
    run.engine.trace.totals[LANE_NVME_WRITE] = (struct lane_total){0};
    report_measure(&f, &run, &counts, 0);
    f.bound = "cpu"; // and the plan was wrong about what limits the run
    FILE *out = fopen(temp_path("report"), "w+");
    report_print(&f, &run, out);
    rewind(out);
    assert_true(fread(text, 1, sizeof text - 1, out) > 0);
    fclose(out);
    assert_non_null(strstr(text, "NVMe reads"));
    assert_null(strstr(text, "NVMe writes"));
    assert_non_null(strstr(text, "limited by the CPU (predicted: NVMe reads)"));
}

static void digits_and_durations(void **state)
{
    (void)state;
    char text[WORDS_BYTES];
    static const struct {
        double x;
        const char *digits, *clock, *about;
    } wanted[] = {{0, "0.00", "0s", "0.0 s"},          {0.01234, "0.0123", "0s", "0.0 s"},
                  {0.9996, "1.00", "1s", "1.0 s"},     {9.996, "10.0", "10s", "10 s"},
                  {99.96, "100", "1m39s", "2 min"},    {3041.9, "3042", "50m41s", "51 min"},
                  {36000, "36000", "10h00m", "10.0 h"}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        assert_string_equal(words_digits(wanted[i].x, text), wanted[i].digits);
        assert_string_equal(words_clock(wanted[i].x, text), wanted[i].clock);
        assert_string_equal(words_about(wanted[i].x, text), wanted[i].about);
    }
    assert_string_equal(words_clock(-1, text), "-");
    assert_string_equal(words_digits(-0.5, text), "-0.500");
    assert_true(fabs(report_error_percent(2, 4) + 50) < 1e-9); // took twice as long as predicted
    assert_true(report_error_percent(2, 0) == 0);
}

static void progress_line_says_what_matters_first(void **state)
{
    (void)state;
    struct report p = {.run = &run, .rejected = 1};
    struct job_counts counts = counts_make();
    char line[400];
    counts.done = 4;
    counts.output_tokens = 250;
    run.engine.start_ns = clock_ns() - 10 * SECOND;
    run.engine.trace.moved_bytes[LANE_NVME_READ] = 30000000000;
    int n = report_line(&p, &counts, 30, line, sizeof line);
    assert_int_equal(n, strlen(line));
    /* 10 s of 40 are over. */
    assert_non_null(strstr(line, " 25.0 %  rows 4/10 (1 rejected)  25.0 tok/s  ETA 30s  "
                                 "limited by NVMe reads  read 3.00 of 4.00 GB/s  mean 25.0"));
    for (int columns = 80; columns > 60; columns--) { // whole parts, or none of them
        int cut = report_line(&p, &counts, 30, line, columns);
        assert_true(cut == (int)strlen(line) && cut < columns);
        const char *end = strrchr(line, ' ') + 1;
        assert_true(strcmp(end, "30s") == 0 || strcmp(end, "reads") == 0 ||
                    strcmp(end, "tok/s") == 0);
    }
    run.engine.trace.moved_bytes[LANE_NVME_WRITE] = 30000000001;
    assert_true(report_line(&p, &counts, 30, line, sizeof line) > 0);
    assert_non_null(strstr(line, "limited by NVMe writes"));
    counts.failed = 3; // two of them in this run
    counts.rows = 100000;
    counts.done = 99999;
    run.engine.start_ns = clock_ns() - 35999 * SECOND;
    assert_true(report_line(&p, &counts, 35999, line, 81) <= 80);
    assert_non_null(strstr(line, "rows 99999/100000 (1 rejected, 2 failed)"));
    assert_non_null(strstr(line, "ETA 9h59m"));
    counts.output_tokens = 0; // prompts are computed
    assert_true(report_line(&p, &counts, -1, line, sizeof line) > 0);
    assert_non_null(strstr(line, "    - %  rows 99999/100000 (1 rejected, 2 failed)"));
    assert_non_null(strstr(line, "  - tok/s  ETA -"));
    assert_null(strstr(line, "mean"));
    assert_true(report_line(&p, &counts, 0, line, sizeof line) > 0);
    assert_non_null(strstr(line, "100.0 %"));
    char little[16];
    assert_int_equal(report_line(&p, &counts, 1, little, sizeof little), 15); // cut, not overrun
}

/* A stopped run: the summary is there, says so, and the sentence of the error survives. */
static void summary_of_an_interrupted_run(void **state)
{
    (void)state;
    struct report p;
    run.decision.plan.resident =
        run.decision.plan.layers - 1; // nothing streams: nothing is measured
    config.summary = temp_path("stopped.json");
    assert_int_equal(report_open(&p, &run), OK);
    (fail)(ERR_STOPPED, "interrupted by a test");
    assert_int_equal(report_end(&p, ERR_STOPPED), ERR_STOPPED);
    assert_string_equal(err_text(), "interrupted by a test");
    json_t *root = json_load_file(config.summary, 0, NULL);
    assert_non_null(root);
    assert_true(json_is_true(at(root, "interrupted")));
    assert_int_equal(json_integer_value(at(root, "exit_code")), 75);
    assert_true(json_is_null(at(root, "error_percent"))); // of a whole run only
    json_decref(root);

    temp_dir_remove(); // the summary cannot be written any more
    assert_int_equal(report_end(&p, OK), ERR_IO);
    (fail)(ERR_STOPPED, "interrupted by a test");
    assert_int_equal(report_end(&p, ERR_STOPPED), ERR_STOPPED);
    assert_string_equal(err_text(), "interrupted by a test");
    temp_dir_make();
}

/* With streamed weights the roofline's rate is that of the pack file itself. */
static void streamed_weights_are_measured(void **state)
{
    (void)state;
    struct report p;
    char *bytes = calloc(4, 1 << 20);
    temp_write("pack", bytes, 4 << 20);
    free(bytes);
    snprintf(session.opened.pack_path, sizeof session.opened.pack_path, "%s", temp_path("pack"));
    config.summary = temp_path("measured.json");
    assert_int_equal(report_open(&p, &run), OK);
    assert_true(p.read_before > 1e5);
    (fail)(ERR_STOPPED, "stopped"); // so that the end does not take five seconds more
    assert_int_equal(report_end(&p, ERR_STOPPED), ERR_STOPPED);
    json_t *root = json_load_file(config.summary, 0, NULL);
    assert_non_null(root);
    assert_string_equal(json_string_value(at(root, "roofline_rates")), "measured");
    json_decref(root);
}

int main(void)
{
    log_level_max = LOG_ERROR;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(figures_follow_the_contract, setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(kv_on_nvme_counts_as_required, setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(nothing_measured_divides_by_zero, setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(summary_has_every_key_of_the_contract, setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(end_report_names_what_matters, setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(idle_resources_have_no_row, setup, temp_dir_teardown),
        cmocka_unit_test(digits_and_durations),
        cmocka_unit_test_setup_teardown(progress_line_says_what_matters_first, setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(summary_of_an_interrupted_run, setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(streamed_weights_are_measured, setup, temp_dir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
