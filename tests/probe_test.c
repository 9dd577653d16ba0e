/* tests/probe_test.c - machine files, good and hostile; a small probe; its cache. */
#include "offload/disk_probe.h"
#include "offload/machine_file.h"
#include "offload/probe_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/sim_device.h"
#include "tests/temp_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <time.h>

/* ---- machine files ---- */

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
        {"nvme_read = 3e9 fast\n", "'fast' is not a number"},
        {"nvme_read = 3e9 1e8 5 6\n", "'6' is one too many"},
        {"nvme_read = 3e9 -1\n", "-1 is out of range"},
        {"nvme_read = 3e9 1e16\n", "1e+16 is out of range"},
        {"nvme_read = 3e9 1e8 2.5\n", "2.5 is out of range (0..1e+09 samples)"},
        {"nvme_read = 3e9 1e8 1e10\n", "1e+10 is out of range"},
        {"threads = 2 1\n", "threads: has one value"},
        {"ram = 2e9 1e8\n", "ram: has one value"},
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
            assert_true(m.nvme_read.value >= 0 && m.nvme_read.value <= 1e15 && m.threads >= 0 &&
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

/* Everything but bursts, which may not be there; a device's where there is one. */
static void assert_measured(const struct machine *m, int has_device)
{
    for (int i = 0; i < N_MACHINE_RATES; i++) {
        const struct machine_rate_info *info = &machine_rates[i];
        const struct rate *r = &m->rates[i];
        const int seconds = info->max == 60, burst = strstr(info->key, "burst") != NULL;
        if (burst || (info->part == MACHINE_DEVICE && !has_device))
            continue;
        if (!(r->value > (seconds ? 1e-8 : 1e5) && r->value < (seconds ? 1 : 1e16)) || r->n < 1 ||
            r->spread < 0 || r->spread > 2 * r->value)
            fail_msg("%s: %g, spread %g of %d", info->key, r->value, r->spread, r->n);
    }
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
    assert_int_equal(probe_reaches_ram(&c), 0);
    int64_t before_kib = status_kib("VmRSS:");
    int64_t start_ns = clock_ns();
    assert_int_equal(probe_run(&m, &c), OK);
    assert_true(clock_ns() - start_ns < 30 * (int64_t)1000000000); // five seconds when left alone
    assert_measured(&m, 0);
    assert_int_equal(m.threads, 1);
    assert_int_equal(files_in(temp_dir, ".sluice-probe"), 0);
#ifndef __SANITIZE_ADDRESS__
    assert_true(status_kib("VmRSS:") - before_kib < 8 << 10);
    assert_true(status_kib("VmHWM:") - before_kib < (16 + 12) << 10);
#else
    (void)before_kib;
#endif
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
        snprintf(says, sizeof says, "machine.cfg: has no %s: ", machine_rates[i].key);
        if (machine_rates[i].needed)
            assert_non_null(strstr(err_text(), says));
    }
    assert_int_equal(machine_file_write(&m, path, NULL), OK);
    assert_int_equal(machine_file_read(&back, path), OK);
    assert_int_equal(machine_device_check(&back, path), OK);
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
            for (int i = RATE_h2d; i <= RATE_device_read; i++)
                assert_true(m.rates[i].value > 1e5 && m.rates[i].value < 1e13);
            assert_true(m.device_flops.value > 1e7 && m.device_flops.value < 1e16);
            assert_true(m.launch_s.value > 1e-9 && m.step_s.value < 1);
            assert_true(near(m.step_s.value, 11 * m.launch_s.value));
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

/* A cache file of temp_dir/cache by how its name starts. */
static const char *cache_file(const char *starts)
{
    DIR *d = opendir(temp_path("cache"));
    assert_non_null(d);
    static char path[1024];
    for (struct dirent *e; (e = readdir(d));)
        if (strncmp(e->d_name, starts, strlen(starts)) == 0)
            snprintf(path, sizeof path, "%s/cache/%.200s", temp_dir, e->d_name);
    closedir(d);
    return path;
}

/* The parts that are measured, of a machine without a device: "disk cpu", "cpu", "". */
static const char *measures(struct machine *m, const struct probe_config *c, const char *dir)
{
    static char text[64];
    struct timespec was[2] = {{.tv_sec = time(NULL) - 86400}, {.tv_sec = time(NULL) - 86400}};
    static const char *const parts[] = {"disk", "cpu", "device"};
    int measured = -1;
    char before[3][1024];
    for (int i = 0; i < 3; i++) { // what is written again is younger
        snprintf(before[i], sizeof before[i], "probe-%s-", parts[i]);
        DIR *d = opendir(dir);
        for (struct dirent *e; d && (e = readdir(d));)
            if (strncmp(e->d_name, before[i], strlen(before[i])) == 0)
                utimensat(dirfd(d), e->d_name, was, 0);
        if (d)
            closedir(d);
    }
    assert_int_equal(probe_cached(m, c, dir, &measured), OK);
    *text = 0;
    for (int i = 0; i < 3; i++) {
        DIR *d = opendir(dir);
        struct stat st;
        for (struct dirent *e; d && (e = readdir(d));)
            if (strncmp(e->d_name, before[i], strlen(before[i])) == 0 &&
                fstatat(dirfd(d), e->d_name, &st, 0) == 0 && st.st_mtime > was[0].tv_sec + 3600)
                snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", *text ? " " : "",
                         parts[i]);
        if (d)
            closedir(d);
    }
    assert_int_equal(measured, *text != 0);
    return text;
}

static void cache_is_used_until_it_is_old_or_damaged(void **state)
{
    (void)state;
    struct ops ops = {.isa = isa_best(), .compute = COMPUTE_BF16};
    struct probe_config c = {
        .ops = &ops, .dir = temp_dir, .memory_bytes = 16 << 20, .time_share = 0.1};
    const char *dir = temp_path("cache");
    assert_int_equal(mkdir(dir, 0700), 0);
    struct machine first, m;
    assert_string_equal(measures(&first, &c, dir), "disk cpu");
    assert_string_equal(measures(&m, &c, dir), "");
    for (int i = 0; i < N_MACHINE_RATES; i++) // to the last digit: plans are the same
        assert_true(m.rates[i].value == first.rates[i].value &&
                    m.rates[i].spread == first.rates[i].spread && m.rates[i].n == first.rates[i].n);
    assert_measured(&m, 0);

    const char *path = cache_file("probe-disk-");
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size - 25), 0); // the keys still parse
    assert_string_equal(measures(&m, &c, dir), "disk");

    path = cache_file("probe-cpu-");
    int fd = open(path, O_RDWR); // one digit of a rate
    assert_true(fd >= 0);
    char text[8192];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    text[n] = 0;
    char *digit = strstr(text, "ram_read = ") + 11;
    *digit = *digit == '9' ? '8' : '9';
    assert_int_equal(pwrite(fd, text, (size_t)n, 0), n);
    close(fd);
    assert_string_equal(measures(&m, &c, dir), "cpu");

    struct timespec old[2] = {{.tv_sec = time(NULL) - 31 * 86400},
                              {.tv_sec = time(NULL) - 31 * 86400}};
    int measured = -1;
    assert_int_equal(utimensat(AT_FDCWD, cache_file("probe-cpu-"), old, 0), 0);
    assert_int_equal(probe_cached(&m, &c, dir, &measured), OK);
    assert_int_equal(measured, 1);
    assert_int_equal(probe_cached(&m, &c, temp_path("missing"), &measured), OK); // cannot be kept
    assert_int_equal(measured, 1);
}

/* Each part is another file where something is different that its rates depend on. */
static void cache_has_a_file_for_all_that_counts(void **state)
{
    (void)state;
    struct ops ops = {.isa = isa_best(), .compute = COMPUTE_BF16};
    struct probe_config c = {
        .ops = &ops, .dir = temp_dir, .memory_bytes = 16 << 20, .time_share = 0.05};
    const char *dir = temp_path("cache");
    assert_int_equal(mkdir(dir, 0700), 0);
    struct machine m;
    assert_string_equal(measures(&m, &c, dir), "disk cpu");
    c.memory_bytes = 31 << 20; // the same buffer
    assert_string_equal(measures(&m, &c, dir), "");
    c.memory_bytes = 33 << 20; // a larger one fits
    assert_string_equal(measures(&m, &c, dir), "cpu");
    c.memory_bytes = 16 << 20;
    ops.compute = COMPUTE_F32;
    assert_string_equal(measures(&m, &c, dir), "cpu");
    ops.isa = ISA_PORTABLE;
    assert_string_equal(measures(&m, &c, dir), "cpu");
    ops.isa = isa_best();
    c.io = RING_THREADS;
    assert_string_equal(measures(&m, &c, dir), "disk");
    c.device = device_cpu(); // is no other
    assert_string_equal(measures(&m, &c, dir), "");
    c.device = sim_device_open(1, 0);
    assert_string_equal(measures(&m, &c, dir), "device");
    assert_int_equal(machine_device_check(&m, "the cache"), OK);
    assert_true(near(m.step_s.value, 11 * m.launch_s.value));
    assert_string_equal(measures(&m, &c, dir), "");
    assert_true(near(m.step_s.value, 11 * m.launch_s.value)); // out of the cache, too
    sim_device_close(c.device);
    assert_int_equal(files_in(dir, "probe-disk-"), 2);
    assert_int_equal(files_in(dir, "probe-cpu-"), 4);
    assert_int_equal(files_in(dir, "probe-device-"), 1);
}

/* ---- a model's matmuls ---- */

static const struct probe_model MODEL = {.layer = {{DTYPE_Q4_1, DTYPE_BF16, 192, 192, 0},
                                                   {DTYPE_Q4_1, DTYPE_BF16, 64, 192, 1},
                                                   {DTYPE_Q4_1, DTYPE_BF16, 64, 192, 1},
                                                   {DTYPE_Q4_1, DTYPE_BF16, 192, 192, 0},
                                                   {DTYPE_Q4_1, DTYPE_BF16, 512, 192, 0},
                                                   {DTYPE_Q4_1, DTYPE_BF16, 512, 192, 1},
                                                   {DTYPE_BF12, DTYPE_BF16, 192, 512, 0}},
                                         .n_layer = 7,
                                         .head = {DTYPE_BF16, DTYPE_BF16, 1000, 192, 0}};

static void model_is_measured_and_kept(void **state)
{
    (void)state;
    struct ops ops = {.isa = isa_best(), .compute = COMPUTE_BF16};
    struct probe_config c = {.ops = &ops, .memory_bytes = 16 << 20, .time_share = 0.1};
    struct machine m = {.matmul_flops = {.value = 1e11}};
    struct model_rates first, r;
    const char *dir = temp_path("cache");
    int measured = 0;
    assert_int_equal(mkdir(dir, 0700), 0);
    assert_int_equal(probe_model_cached(&first, &m, &MODEL, &c, dir, &measured), OK);
    assert_int_equal(measured, 1);
    for (int state_at = 0; state_at < N_WEIGHT_STATES; state_at++)
        for (int i = 0; i < N_MATMUL_ROWS; i++) {
            assert_true(first.layer_s[state_at][i] > 0 && first.layer_s[state_at][i] < 1);
            assert_true(i == 0 || first.layer_s[state_at][i] >= first.layer_s[state_at][i - 1]);
            assert_true(near(first.head_s[0][i], first.head_s[1][i])); // stored as tiles are
        }
    assert_int_equal(probe_model_cached(&r, &m, &MODEL, &c, dir, &measured), OK);
    assert_int_equal(measured, 0);
    assert_memory_equal(&r, &first, sizeof r);
    struct probe_model other = MODEL;
    other.layer[6].stored = DTYPE_BF16;
    assert_int_equal(probe_model_cached(&r, &m, &other, &c, dir, &measured), OK);
    assert_int_equal(measured, 1);
    other = MODEL;
    other.head.n = 1032;
    assert_int_equal(probe_model_cached(&r, &m, &other, &c, dir, &measured), OK);
    assert_int_equal(measured, 1);
    c.memory_bytes = 32 << 20;
    assert_int_equal(probe_model_cached(&r, &m, &MODEL, &c, dir, &measured), OK);
    assert_int_equal(measured, 1);
    assert_int_equal(files_in(dir, "probe-model-"), 4);
}

/* Where a sweep is long a share of it is timed, and what memory there is is kept to. */
static void model_takes_a_share_of_a_large_layer(void **state)
{
    (void)state;
    struct ops ops = {.isa = isa_best(), .compute = COMPUTE_BF16};
    struct probe_config c = {.ops = &ops, .memory_bytes = 12 << 20, .time_share = 0.1};
    struct machine slow = {.matmul_flops = {.value = 1e9}},
                   fast = {.matmul_flops = {.value = 1e15}};
    struct probe_model model = {.layer = {{DTYPE_BF16, DTYPE_BF16, 4096, 512, 0}}, .n_layer = 1};
    struct model_rates whole, part;
    model.head = model.layer[0];
    double whole_s = INFINITY, part_s = INFINITY; // of 256 tokens, the least disturbed of some
    for (int turn = 0; turn < 4; turn++) {
        assert_int_equal(probe_model(&whole, &fast, &model, &c), OK);
        assert_int_equal(probe_model(&part, &slow, &model, &c), OK);
        whole_s = fmin(whole_s, whole.layer_s[0][N_MATMUL_ROWS - 1]);
        part_s = fmin(part_s, part.layer_s[0][N_MATMUL_ROWS - 1]);
    }
    assert_true(part_s > whole_s / 8 && part_s < whole_s * 8); // the share is a 32nd
    int64_t before_kib = status_kib("VmHWM:");
    model.layer[0].n = 1 << 16; // 64 MiB
    assert_int_equal(probe_model(&part, &fast, &model, &c), OK);
    model.layer[0].k = 1 << 15; // x alone is 32 MiB
    assert_int_equal(probe_model(&part, &fast, &model, &c), ERR_FIT);
#ifndef __SANITIZE_ADDRESS__
    assert_true(status_kib("VmHWM:") - before_kib < 16 << 10);
#else
    (void)before_kib;
#endif
}

/* ---- the disk over time ---- */

/* n windows of 50 ms at `from`, then `to`, each up to 8 % off. */
static struct disk_series series_make(int n_from, double from, int n, double to)
{
    struct disk_series s = {.n = n};
    for (int i = 0; i < n; i++) {
        double off = 1 + 0.08 * ((double)(mix64((uint64_t)i) % 2001) / 1000 - 1);
        s.bytes_per_s[i] = (i < n_from ? from : to) * off;
        s.seconds[i] = DISK_SERIES_S;
    }
    return s;
}

static void bursts_are_told_from_what_lasts(void **state)
{
    (void)state;
    struct disk_rates r;
    for (int n = 20; n <= 600; n += 29)
        for (int n_from = 3; n_from < n * 2 / 3 - 2; n_from += 1 + n / 9) {
            struct disk_series s = series_make(n_from, 2.4e9, n, 1.1e9);
            disk_series_rates(&s, &r);
            assert_true(r.lasting.value > 1.0e9 && r.lasting.value < 1.2e9);
            assert_true(r.burst.value > 2.2e9 && r.burst.value < 2.6e9);
            double windows = r.burst_bytes / 2.4e9 / DISK_SERIES_S;
            assert_true(windows > n_from - 1.5 && windows < n_from + 1.5);
            assert_true(r.lasting.n <= n - n_from + 1); // nothing of the burst
        }
    for (int n = 1; n <= 200; n++) { // no burst: even, and slow to wake up
        struct disk_series s = series_make(0, 0, n, 3e9);
        disk_series_rates(&s, &r);
        assert_true(r.burst.value == 0 && r.burst_bytes == 0 && r.lasting.n >= 1);
        assert_true(r.lasting.value > 2.7e9 && r.lasting.value < 3.3e9);
        s = series_make(n / 4, 5e8, n, 3e9);
        disk_series_rates(&s, &r);
        assert_true(r.burst.value == 0 && r.lasting.value > 2.7e9);
    }
    struct disk_series s = series_make(2, 9e9, 40, 3e9); // two windows are noise
    disk_series_rates(&s, &r);
    assert_true(r.burst.value == 0 && r.lasting.value < 3.3e9);
}

static void a_series_gets_steady(void **state)
{
    (void)state;
    struct disk_series s = series_make(0, 0, 99, 3e9); // 4.95 s
    assert_int_equal(disk_series_steady(&s), 0);
    s = series_make(0, 0, 120, 3e9);
    assert_int_equal(disk_series_steady(&s), 1);
    s = series_make(60, 6e9, 120, 3e9);
    assert_int_equal(disk_series_steady(&s), 0);
    s = series_make(60, 6e9, 400, 3e9);
    assert_int_equal(disk_series_steady(&s), 1);
    s = (struct disk_series){0};
    assert_int_equal(disk_series_steady(&s), 0);
}

/* Writes that wrap, both ways at once; windows add up to the time that it took. */
static void disk_series_are_measured(void **state)
{
    (void)state;
    struct disk_probe d;
    struct disk_series s;
    struct disk_load load = {
        .io = RING_AUTO, .block_bytes = 1 << 20, .depth = 4, .seconds_max = 0.4, .mixed = 1};
    assert_int_equal(disk_probe_open_scratch(&d, temp_dir, 8 << 20), OK);
    load.write = 1;
    assert_int_equal(disk_probe_series(&d, &load, &s), ERR_USAGE); // nothing there yet
    load.mixed = 0;
    load.wrap = 1;
    assert_int_equal(disk_probe_series(&d, &load, &s), OK);
    assert_int_equal(d.file_bytes, 8 << 20);
    for (int mixed = 0; mixed < 2; mixed++) {
        load.mixed = mixed;
        assert_int_equal(disk_probe_series(&d, &load, &s), OK);
        double took_s = 0;
        assert_true(s.n >= 1);
        for (int i = 0; i < s.n; i++) {
            assert_true(s.bytes_per_s[i] >= 0 && s.seconds[i] > 0.9 * DISK_SERIES_S);
            took_s += s.seconds[i];
        }
        assert_true(took_s < 0.5);
        assert_int_equal(d.file_bytes, 8 << 20);
    }
    disk_probe_close(&d);
    char *bytes = calloc(1, 4 << 20); // a file that cannot be written: reads pass, both do not
    temp_write("read_only", bytes, 4 << 20);
    free(bytes);
    assert_int_equal(disk_probe_open_file(&d, temp_path("read_only")), OK);
    assert_int_not_equal(disk_probe_series(&d, &load, &s), OK);
    load.write = load.mixed = 0;
    assert_int_equal(disk_probe_series(&d, &load, &s), OK);
    disk_probe_close(&d);
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
        cmocka_unit_test_setup_teardown(probe_measures_and_gives_memory_back, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(probe_measures_a_device, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(probe_names_a_directory_it_cannot_write, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(disk_probe_reads_only_what_was_written, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(cache_is_used_until_it_is_old_or_damaged, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(cache_has_a_file_for_all_that_counts, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(model_is_measured_and_kept, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test(model_takes_a_share_of_a_large_layer),
        cmocka_unit_test(bursts_are_told_from_what_lasts),
        cmocka_unit_test(a_series_gets_steady),
        cmocka_unit_test_setup_teardown(disk_series_are_measured, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test(configs_are_good),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
