/* tests/machine_file_test.c - machine files good and hostile. */
#include "offload/machine_file.h"
#include "offload/probe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/temp_dir.h"

#include <dirent.h>
#include <math.h>

static int near(double a, double b)
{
    return a >= b * 0.99999 && a <= b * 1.00001;
}

static void assert_same(const struct machine *a, const struct machine *b)
{
    for (int i = 0; i < N_MACHINE_RATES; i++) {
        const struct rate *x = &a->rates[i], *y = &b->rates[i];
        if (!near(x->value, y->value) || x->n != y->n || x->spread < y->spread * 0.99 ||
            x->spread > y->spread * 1.01)
            fail_msg("%s: %g %g %d is not %g %g %d", machine_rates[i].key, x->value, x->spread,
                     x->n, y->value, y->spread, y->n);
    }
    assert_int_equal(a->threads, b->threads);
}

/* Every rate known, by its place in the table. */
static struct machine machine_make(void)
{
    struct machine m = {.threads = 16, .disk = 1 << 30};
    for (int i = 0; i < N_MACHINE_RATES; i++)
        m.rates[i] = (struct rate){(i + 1) * 0.987654321, (i % 3) * 0.0125, i % 3 ? i : 0};
    return m;
}

static void machine_file_round_trip(void **state)
{
    (void)state;
    struct machine m = machine_make(), back;
    const char *path = temp_path("machine.cfg");
    assert_int_equal(machine_file_write(&m, path, "cpu: a # b\ndate: today"), OK);
    assert_int_equal(machine_file_read(&back, path), OK);
    assert_same(&back, &m);
    assert_true(back.ram == 0 && back.disk == 1 << 30 && back.device_memory == 0);
    for (int i = 0; i < N_MACHINE_RATES; i++) { // what is not known is not free of cost
        struct machine lacks = m;
        const int other = i == RATE_matmul_flops || machine_rates[i].part == MACHINE_DEVICE;
        lacks.rates[i].value = 0;
        assert_int_equal(machine_file_write(&lacks, path, NULL), OK);
        enum err err = machine_file_read(&back, path);
        assert_int_equal(err, machine_rates[i].needed && !other ? ERR_INPUT : OK);
        if (err != OK)
            assert_non_null(strstr(err_text(), machine_rates[i].key));
    }
    m.threads = 0;
    assert_int_equal(machine_file_write(&m, path, NULL), OK);
    assert_int_equal(machine_file_read(&back, path), ERR_INPUT);
    assert_non_null(strstr(err_text(), "threads"));
    assert_int_equal(machine_file_write(&m, temp_path("no/such/dir.cfg"), NULL), ERR_IO);
    assert_int_equal(machine_file_read(&back, temp_path("missing.cfg")), ERR_INPUT);
    assert_int_equal(machine_file_read(&back, temp_dir), ERR_INPUT);
}

/* A file of the days when a rate was one number, and one that has a matmul but not that one. */
static void machine_files_of_before(void **state)
{
    (void)state;
    static const char rest[] =
        "nvme_read = 3e9 # bytes per second\nnvme_write = 1e9\nram_read = 2e10\n"
        "step_s = 2e-5\nthreads = 16\n";
    char text[400];
    struct machine m;
    int n = snprintf(text, sizeof text, "%smatmul_flops = 2e12\n", rest);
    temp_write("old.cfg", text, n);
    assert_int_equal(machine_file_read(&m, temp_path("old.cfg")), OK);
    assert_true(m.nvme_read.value == 3e9 && m.nvme_read.spread == 0 && m.nvme_read.n == 0);
    assert_true(m.matmul_flops.value == 2e12 && m.matmul_bf16_m64.value == 0);
    n = snprintf(text, sizeof text, "%smatmul_q8_m1 = 4e11\nmatmul_bf16_m16 = 7e11 1e9 3\n", rest);
    temp_write("new.cfg", text, n);
    assert_int_equal(machine_file_read(&m, temp_path("new.cfg")), OK);
    assert_true(m.matmul_flops.value == 7e11 && m.matmul_flops.n == 3);
    temp_write("none.cfg", rest, (int64_t)strlen(rest));
    assert_int_equal(machine_file_read(&m, temp_path("none.cfg")), ERR_INPUT);
    assert_non_null(strstr(err_text(), "matmul_flops"));
}

static void machine_text_takes_what_people_write(void **state)
{
    (void)state;
    struct machine m;
    const char *text =
        "\r\n  # a comment\r\n\tnvme_read=3.5e9# fast\nthreads =  8 \r\nstep_s = 0.00002";
    assert_int_equal(machine_text_parse(&m, text, (int64_t)strlen(text), "t"), OK);
    assert_true(m.nvme_read.value == 3.5e9 && m.threads == 8 && m.step_s.value == 0.00002);
    assert_true(m.nvme_write.value == 0 && m.ram_read.value == 0 && m.matmul_flops.value == 0);
    text = "nvme_read = 3e9 1.5e8\nram_read=2e10\t1e9   40  # busy";
    assert_int_equal(machine_text_parse(&m, text, (int64_t)strlen(text), "t"), OK);
    assert_true(m.nvme_read.value == 3e9 && m.nvme_read.spread == 1.5e8 && m.nvme_read.n == 0);
    assert_true(m.ram_read.value == 2e10 && m.ram_read.spread == 1e9 && m.ram_read.n == 40);
}

static void machine_text_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "not a machine file"},
        {"# only a comment\n", "not a machine file"},
        {"nvme_read 3e9\n", "line 1: expected key = value"},
        {"threads = 2\nnvme_reed = 3e9\n", "line 2: unknown key 'nvme_reed'"},
        {"nvme_read = \n", "not a number"},
        {"nvme_read = fast\n", "not a number"},
        {"nvme_read = 0x10\n", "not a number"},
        {"nvme_read = inf\n", "not a number"},
        {"nvme_read = nan\n", "not a number"},
        {"nvme_read = 1e999\n", "not a number"},
        {"nvme_read = 3e9 fast\n", "'fast' is not a number"},
        {"nvme_read = 3e9 1e8 5 6\n", "'6' is a fourth value"},
        {"nvme_read = 3e9 -1\n", "-1 is out of range"},
        {"nvme_read = 3e9 1e16\n", "1e+16 is out of range"},
        {"nvme_read = 3e9 1e8 2.5\n", "2.5 is out of range (0..1e+09 samples)"},
        {"nvme_read = 3e9 1e8 1e10\n", "1e+10 is out of range"},
        {"threads = 2 1\n", "threads: takes one value"},
        {"ram = 2e9 1e8\n", "ram: takes one value"},
        {"nvme_read = 1.2.3\n", "not a number"},
        {"ram = -1\n", "line 1: ram: -1 is out of range"},
        {"disk = nan\n", "not a number"},
        {"nvme_read = -1\n", "line 1: nvme_read: -1 is out of range"},
        {"nvme_read = 1e16\n", "out of range"},
        {"step_s = 61\n", "out of range"},
        {"threads = 1.5\n", "out of range"},
        {"threads = 1e9\n", "out of range"},
        {"threads = 1\nthreads = 1\n", "line 2: duplicate key 'threads'"},
        {"= 4\n", "unknown key ''"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct machine m = {.threads = 77};
        assert_int_equal(machine_text_parse(&m, bad[i].text, (int64_t)strlen(bad[i].text), "F.cfg"),
                         ERR_INPUT);
        if (!strstr(err_text(), bad[i].says) || strncmp(err_text(), "F.cfg: ", 7) != 0)
            fail_msg("'%s' gave '%s'", bad[i].text, err_text());
        assert_int_equal(m.threads, 77); // untouched
    }
    struct machine m;
    assert_int_equal(machine_text_parse(&m, "threads = 1\0\n", 13, "F.cfg"), ERR_INPUT);
    char longest[400];
    memset(longest, 'x', sizeof longest);
    assert_int_equal(machine_text_parse(&m, longest, sizeof longest, "F.cfg"), ERR_INPUT);
    assert_non_null(strstr(err_text(), "line 1: longer than 255"));
    char *big = malloc(MACHINE_FILE_BYTES_MAX + 1);
    memset(big, '\n', MACHINE_FILE_BYTES_MAX + 1);
    const char *keys = "nvme_read=1\nnvme_write=1\nram_read=1\nmatmul_flops=1\nstep_s=1\nthreads=1";
    memcpy(big, keys, strlen(keys));
    temp_write("big.cfg", big, MACHINE_FILE_BYTES_MAX + 1);
    assert_int_equal(machine_file_read(&m, temp_path("big.cfg")), ERR_INPUT);
    temp_write("fits.cfg", big, MACHINE_FILE_BYTES_MAX);
    assert_int_equal(machine_file_read(&m, temp_path("fits.cfg")), OK);
    free(big);
}

/* Any bytes at all: an answer, never a crash (the sanitizers look on). */
static void machine_text_survives_noise(void **state)
{
    (void)state;
    const char *good = "# x\nnvme_read = 3.5e9\nthreads = 8\nstep_s = 2e-5\nram_read = 1e10\n";
    int64_t n = (int64_t)strlen(good);
    for (uint64_t seed = 0; seed < 20000; seed++) {
        char text[128];
        memcpy(text, good, (size_t)n);
        for (int k = 0; k < 3; k++)
            text[mix64(seed * 8 + (uint64_t)k) % (uint64_t)n] =
                (char)mix64(seed * 16 + (uint64_t)k);
        struct machine m;
        enum err err = machine_text_parse(&m, text, (int64_t)(mix64(seed) % (uint64_t)n), "t");
        assert_true(err == OK || err == ERR_INPUT);
        if (err == OK)
            assert_true(m.nvme_read.value >= 0 && m.nvme_read.value <= 1e15 && m.threads >= 0 &&
                        m.threads <= 4096);
    }
}

/* What a machine file says of a device, it may leave out; a plan for one asks for what it divides
 * by. */
static void machine_file_of_a_device(void **state)
{
    (void)state;
    struct machine back, m = machine_make();
    const char *path = temp_path("machine.cfg");
    for (int i = RATE_h2d; i <= RATE_launch_s; i++) {
        struct machine lacks = m;
        lacks.rates[i].value = 0;
        assert_int_equal(machine_file_write(&lacks, path, NULL), OK);
        assert_int_equal(machine_file_read(&back, path), OK);
        assert_int_equal(machine_device_check(&back, path),
                         machine_rates[i].needed ? ERR_INPUT : OK);
        char says[64];
        snprintf(says, sizeof says, "machine.cfg: %s: missing or 0, ", machine_rates[i].key);
        if (machine_rates[i].needed)
            assert_non_null(strstr(err_text(), says));
    }
    assert_int_equal(machine_file_write(&m, path, NULL), OK);
    assert_int_equal(machine_file_read(&back, path), OK);
    assert_int_equal(machine_device_check(&back, path), OK);
}

static void configs_are_good(void **state)
{
    (void)state;
    DIR *d = opendir("configs");
    if (!d)
        fail_msg("start it from the top of the tree: no configs here");
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char path[300];
        struct machine m;
        if (strncmp(e->d_name, "machine-", 8) != 0)
            continue;
        snprintf(path, sizeof path, "configs/%.255s", e->d_name);
        if (machine_file_read(&m, path) != OK)
            fail_msg("%s", err_text());
        assert_true(m.nvme_read.value > 0 && m.matmul_flops.value > 0 && m.threads > 0);
        if (m.device_memory > 0 && machine_device_check(&m, path) != OK)
            fail_msg("%s", err_text());
        n++;
    }
    closedir(d);
    assert_true(n >= 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(machine_file_round_trip, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(machine_files_of_before, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test(machine_text_takes_what_people_write),
        cmocka_unit_test_setup_teardown(machine_file_of_a_device, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(machine_text_refuses, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test(machine_text_survives_noise),
        cmocka_unit_test(configs_are_good),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
