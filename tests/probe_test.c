/* tests/probe_test.c - machine files, good and hostile; a small probe; its cache. */
#include "offload/disk_probe.h"
#include "offload/machine_file.h"
#include "offload/probe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/sim_device.h"
#include "tests/temp_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

/* ---- machine files ---- */

static void assert_same(const struct machine *a, const struct machine *b)
{
    const double *x = &a->nvme_read, *y = &b->nvme_read;
    for (int i = 0; i < 4; i++)
        assert_true(x[i] >= y[i] * 0.99999 && x[i] <= y[i] * 1.00001);
    assert_true(a->step_s >= b->step_s * 0.99999 && a->step_s <= b->step_s * 1.00001);
    assert_int_equal(a->threads, b->threads);
}

static void machine_file_round_trip(void **state)
{
    (void)state;
    struct machine m = {3.71e9, 1.25e9, 1.9876543e10, 2.1e12, 2.5e-5, 16, .disk = 1 << 30}, back;
    const char *path = temp_path("machine.cfg");
    assert_int_equal(machine_file_write(&m, path, "cpu: a # b\ndate: today"), OK);
    assert_int_equal(machine_file_read(&back, path), OK);
    assert_same(&back, &m);
    assert_true(back.ram == 0 && back.disk == 1 << 30 && back.device_memory == 0);
    static const char *const keys[] = {"nvme_read",    "nvme_write", "ram_read",
                                       "matmul_flops", "step_s",     "threads"};
    for (int i = 0; i < 6; i++) { // what is not known is not free of cost
        struct machine lacks = m;
        if (i < 5)
            (&lacks.nvme_read)[i] = 0;
        else
            lacks.threads = 0;
        assert_int_equal(machine_file_write(&lacks, path, NULL), OK);
        assert_int_equal(machine_file_read(&back, path), ERR_INPUT);
        assert_non_null(strstr(err_text(), keys[i]));
    }
    assert_int_equal(machine_file_write(&m, temp_path("no/such/dir.cfg"), NULL), ERR_IO);
    assert_int_equal(machine_file_read(&back, temp_path("missing.cfg")), ERR_INPUT);
    assert_int_equal(machine_file_read(&back, temp_dir), ERR_INPUT);
}

static void machine_text_takes_what_people_write(void **state)
{
    (void)state;
    struct machine m;
    const char *text =
        "\r\n  # a comment\r\n\tnvme_read=3.5e9# fast\nthreads =  8 \r\nstep_s = 0.00002";
    assert_int_equal(machine_text_parse(&m, text, (int64_t)strlen(text), "t"), OK);
    assert_true(m.nvme_read == 3.5e9 && m.threads == 8 && m.step_s == 0.00002);
    assert_true(m.nvme_write == 0 && m.ram_read == 0 && m.matmul_flops == 0);
}

static void machine_text_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "no key"},
        {"# only a comment\n", "no key"},
        {"nvme_read 3e9\n", "line 1: no '='"},
        {"threads = 2\nnvme_reed = 3e9\n", "line 2: unknown key 'nvme_reed'"},
        {"nvme_read = \n", "not a number"},
        {"nvme_read = fast\n", "not a number"},
        {"nvme_read = 0x10\n", "not a number"},
        {"nvme_read = inf\n", "not a number"},
        {"nvme_read = nan\n", "not a number"},
        {"nvme_read = 1e999\n", "not a number"},
        {"nvme_read = 3e9 3e9\n", "not a number"},
        {"nvme_read = 1.2.3\n", "not a number"},
        {"ram = -1\n", "line 1: ram: -1 is out of range"},
        {"disk = nan\n", "not a number"},
        {"nvme_read = -1\n", "line 1: nvme_read: -1 is out of range"},
        {"nvme_read = 1e16\n", "out of range"},
        {"step_s = 61\n", "out of range"},
        {"threads = 1.5\n", "out of range"},
        {"threads = 1e9\n", "out of range"},
        {"threads = 1\nthreads = 1\n", "line 2: threads stands there twice"},
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
    assert_non_null(strstr(err_text(), "line 1: too long"));
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
            assert_true(m.nvme_read >= 0 && m.nvme_read <= 1e15 && m.threads >= 0 &&
                        m.threads <= 4096);
    }
}

/* ---- measuring ---- */

static int files_in(const char *dir, const char *starts)
{
    DIR *d = opendir(dir);
    assert_non_null(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n += strncmp(e->d_name, starts, strlen(starts)) == 0;
    closedir(d);
    return n;
}

static void assert_measured(const struct machine *m)
{
    assert_true(m->nvme_read > 1e5 && m->nvme_read < 1e13);
    assert_true(m->nvme_write > 1e5 && m->nvme_write < 1e13);
    assert_true(m->ram_read > 1e7 && m->ram_read < 1e14);
    assert_true(m->matmul_flops > 1e7 && m->matmul_flops < 1e16);
    assert_true(m->step_s > 1e-8 && m->step_s < 1);
}

static int64_t status_kib(const char *key)
{
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    char line[256];
    long long kib = -1;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0)
            kib = atoll(line + strlen(key) + 1);
    fclose(f);
    return kib;
}

static void probe_measures_and_gives_memory_back(void **state)
{
    (void)state;
    struct ops ops = {.isa = isa_best(), .compute = COMPUTE_BF16};
    struct probe_config c = {.ops = &ops, .dir = temp_dir, .memory_bytes = 16 << 20};
    struct machine m;
    int64_t before_kib = status_kib("VmRSS:");
    int64_t start_ns = clock_ns();
    assert_int_equal(probe_run(&m, &c), OK);
    assert_true(clock_ns() - start_ns < 30 * (int64_t)1000000000); // two seconds when left alone
    assert_measured(&m);
    assert_int_equal(m.threads, 1);
    assert_int_equal(files_in(temp_dir, ".sluice-probe"), 0);
#ifndef __SANITIZE_ADDRESS__
    assert_true(status_kib("VmRSS:") - before_kib < 8 << 10);
    assert_true(status_kib("VmHWM:") - before_kib < (16 + 12) << 10);
#else
    (void)before_kib;
#endif
}

/* What a machine file says of a device, it may leave out; a plan for one asks for all of it. */
static void machine_file_of_a_device(void **state)
{
    (void)state;
    static const char *const keys[] = {"h2d", "d2h", "device_read", "device_flops"};
    struct machine back, m = {3e9, 1e9, 2e10, 2e12, 2e-5, .threads = 16};
    const char *path = temp_path("machine.cfg");
    double *rates = &m.h2d;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(machine_file_write(&m, path, NULL), OK);
        assert_int_equal(machine_file_read(&back, path), OK);
        assert_int_equal(machine_device_check(&back, path), ERR_INPUT);
        char says[64];
        snprintf(says, sizeof says, "machine.cfg: has no %s: ", keys[i]);
        assert_non_null(strstr(err_text(), says));
        rates[i] = 1.5e9 * (i + 1);
    }
    assert_int_equal(machine_file_write(&m, path, NULL), OK);
    assert_int_equal(machine_file_read(&back, path), OK);
    assert_int_equal(machine_device_check(&back, path), OK);
    assert_memory_equal(&back.h2d, &m.h2d, 4 * sizeof m.h2d);
}

/* Rates of a device whose matmuls read panels, and of one whose matmuls read rows; within the
 * memory that was allowed, all given back. */
static void probe_measures_a_device(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 2; seed++)
        for (int compute = 0; compute < N_COMPUTES; compute++) {
            struct ops ops = {.isa = isa_best(), .compute = (enum compute)compute};
            struct device *d = sim_device_open(seed, 20);
            struct probe_config c = {.ops = &ops,
                                     .dir = temp_dir,
                                     .memory_bytes = 4 << 20,
                                     .device = d,
                                     .device_bytes = 12 << 20};
            struct machine m = {0};
            assert_int_equal(probe_device(&m, &c), OK);
            assert_true(m.h2d > 1e5 && m.h2d < 1e13 && m.d2h > 1e5 && m.d2h < 1e13);
            assert_true(m.device_read > 1e5 && m.device_read < 1e13);
            assert_true(m.device_flops > 1e7 && m.device_flops < 1e16);
            assert_true(m.step_s > 1e-8 && m.step_s < 1);
            assert_true(sim_device_peak_bytes(d) <= 12 << 20);
            struct device_info info;
            assert_int_equal(d->api->info(d, &info), OK);
            assert_int_equal(info.free_bytes, info.memory_bytes);
            c.device_bytes = 4096;
            assert_int_equal(probe_device(&m, &c), ERR_FIT);
            sim_device_lose(d, 3);
            c.device_bytes = 0;
            assert_int_equal(probe_device(&m, &c), ERR_DEVICE);
            sim_device_close(d);
        }
}

static void probe_names_a_directory_it_cannot_write(void **state)
{
    (void)state;
    struct ops ops = {.isa = isa_best(), .compute = COMPUTE_BF16};
    struct machine m;
    struct probe_config c = {.ops = &ops, .dir = "/proc/self"};
    assert_int_equal(probe_run(&m, &c), ERR_IO);
    assert_non_null(strstr(err_text(), "/proc/self"));
    c.dir = temp_path("missing");
    assert_int_equal(probe_run(&m, &c), ERR_IO);
    assert_non_null(strstr(err_text(), c.dir));
}

static void disk_probe_reads_only_what_was_written(void **state)
{
    (void)state;
    struct disk_probe d;
    struct disk_load load = {
        .io = RING_AUTO, .block_bytes = 1 << 20, .depth = 4, .seconds_max = 0.05};
    double rate = -1;
    assert_int_equal(disk_probe_open_scratch(&d, temp_dir, 8 << 20), OK);
    assert_int_equal(disk_probe_rate(&d, &load, &rate), ERR_USAGE); // nothing there yet
    load.write = 1;
    load.seconds_max = 60;
    assert_int_equal(disk_probe_rate(&d, &load, &rate), OK);
    assert_true(rate > 0);
    assert_int_equal(d.file_bytes, 8 << 20); // stopped at the end, long before a minute
    load.write = 0;
    load.seconds_max = 0.05;
    static const enum ring_kind kinds[] = {RING_AUTO, RING_THREADS};
    for (int i = 0; i < 2; i++) {
        load.io = kinds[i];
        rate = -1;
        assert_int_equal(disk_probe_rate(&d, &load, &rate), OK);
        assert_true(rate > 0);
    }
    disk_probe_close(&d);
    disk_probe_close(&d);
    assert_int_equal(disk_probe_open_file(&d, temp_path("missing")), ERR_INPUT);
}

/* The one cache file in temp_dir/cache. */
static const char *cache_file(void)
{
    DIR *d = opendir(temp_path("cache"));
    assert_non_null(d);
    static char path[1024];
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.')
            snprintf(path, sizeof path, "%s/cache/%.200s", temp_dir, e->d_name);
    closedir(d);
    return path;
}

static void cache_is_used_until_it_is_old_or_damaged(void **state)
{
    (void)state;
    struct ops ops = {.isa = isa_best(), .compute = COMPUTE_BF16};
    struct probe_config c = {.ops = &ops, .dir = temp_dir, .memory_bytes = 16 << 20};
    assert_int_equal(mkdir(temp_path("cache"), 0700), 0);
    struct machine first, m;
    int measured = -1;
    assert_int_equal(probe_cached(&first, &c, temp_path("cache"), &measured), OK);
    assert_int_equal(measured, 1);
    assert_int_equal(probe_cached(&m, &c, temp_path("cache"), &measured), OK);
    assert_int_equal(measured, 0);
    assert_same(&m, &first);

    const char *path = cache_file();
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size - 25), 0); // the keys still parse
    assert_int_equal(probe_cached(&m, &c, temp_path("cache"), &measured), OK);
    assert_int_equal(measured, 1);

    int fd = open(path, O_RDWR); // one digit of a rate
    assert_true(fd >= 0);
    char text[4096];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    text[n] = 0;
    char *digit = strstr(text, "nvme_read = ") + 12;
    *digit = *digit == '9' ? '8' : '9';
    assert_int_equal(pwrite(fd, text, (size_t)n, 0), n);
    close(fd);
    assert_int_equal(probe_cached(&m, &c, temp_path("cache"), &measured), OK);
    assert_int_equal(measured, 1);

    struct timespec old[2] = {{.tv_sec = time(NULL) - 31 * 86400},
                              {.tv_sec = time(NULL) - 31 * 86400}};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    assert_int_equal(probe_cached(&m, &c, temp_path("cache"), &measured), OK);
    assert_int_equal(measured, 1);

    c.device = device_cpu(); // is no other
    assert_int_equal(probe_cached(&m, &c, temp_path("cache"), &measured), OK);
    assert_int_equal(measured, 0);
    c.device = sim_device_open(1, 0);
    for (int turn = 0; turn < 2; turn++) {
        assert_int_equal(probe_cached(&m, &c, temp_path("cache"), &measured), OK);
        assert_int_equal(measured, turn == 0);
        assert_int_equal(machine_device_check(&m, "the cache"), OK);
        assert_int_equal(files_in(temp_path("cache"), "probe-"), 2);
    }
    sim_device_close(c.device);
    c.device = NULL;

    ops.compute = COMPUTE_F32; // another machine, as far as speed goes
    assert_int_equal(probe_cached(&m, &c, temp_path("cache"), &measured), OK);
    assert_int_equal(measured, 1);
    assert_int_equal(files_in(temp_path("cache"), "probe-"), 3);
    assert_int_equal(probe_cached(&m, &c, temp_path("missing"), &measured), OK); // cannot be kept
    assert_int_equal(measured, 1);
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
        assert_true(m.nvme_read > 0 && m.matmul_flops > 0 && m.ram_read > 0 && m.threads > 0);
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
        cmocka_unit_test(machine_text_takes_what_people_write),
        cmocka_unit_test_setup_teardown(machine_file_of_a_device, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(machine_text_refuses, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test(machine_text_survives_noise),
        cmocka_unit_test_setup_teardown(probe_measures_and_gives_memory_back, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(probe_measures_a_device, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(probe_names_a_directory_it_cannot_write, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(disk_probe_reads_only_what_was_written, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(cache_is_used_until_it_is_old_or_damaged, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test(configs_are_good),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
