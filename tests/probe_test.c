/* tests/probe_test.c - a small probe; its cache. */
#include "offload/cpu_wait.h"
#include "offload/machine_file.h"
#include "offload/pace_file.h"
#include "offload/probe_cache.h"
#include "offload/probe_impl.h"
#include "offload/probe_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/sim_device.h"
#include "tests/sweep.h"
#include "tests/temp_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <time.h>

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
        const int share = info->max == 1e3, difference = i == RATE_ticket_s;
        const double least = seconds ? 1e-8 : share ? 1e-3 : 1e5, most = seconds ? 1 : 1e16;
        const int fresh = i == RATE_ram_fresh; // where a run may have much
        if (burst || fresh || (info->part == MACHINE_DEVICE && !has_device))
            continue;
        if (!(r->value > least && r->value < (share ? 1e2 : most)) || r->n < 1 || r->spread < 0 ||
            (!difference && r->spread > 2 * r->value))
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
    assert_int_equal(probe_run(&m, &c), OK);
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

/* A run that may have gigabytes meets memory that nobody touched; of less all is brought in. */
static void fresh_memory_is_measured_where_there_is_much(void **state)
{
    (void)state;
    struct ops ops = {.isa = isa_best(), .compute = COMPUTE_BF16};
    struct probe_config c = {.ops = &ops, .dir = temp_dir, .share = 0.01};
    for (int much = 0; much < 2; much++) {
        struct machine m = {0};
        c.memory_bytes = ((int64_t)1 << 30) - !much;
        int64_t before_kib = status_kib("VmRSS:");
        assert_int_equal(probe_run_part(&m, &c, MACHINE_CPU), OK);
        assert_int_equal(m.ram_fresh.value > 0, much);
        assert_true(m.ram_fresh.value < 1e12 && m.ram_fresh.n <= 16);
#ifndef __SANITIZE_ADDRESS__
        assert_true(status_kib("VmRSS:") - before_kib < 8 << 10);
#else
        (void)before_kib;
#endif
    }
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
            assert_true(m.device_attend_read.value > 1e5 && m.device_attend_read.value < 1e13);
            assert_true(m.device_attend_flops.value > 1e6 && m.device_attend_flops.value < 1e16);
            assert_true(m.device_attend_read.n == 7 && m.device_attend_flops.n == 7);
            assert_true(m.launch_s.value > 1e-9 && m.step_s.value < 1);
            assert_float_equal(m.step_s.value / m.launch_s.value, 11, 1e-3);
            assert_true(sim_device_peak_bytes(d) <= 12 << 20);
            struct device_info info;
            assert_int_equal(d->api->info(d, &info), OK);
            assert_int_equal(info.free_bytes, info.memory_bytes);
            c.device_bytes = 4 << 20; // room for a prompt, not for 32 rows that attend
            m = (struct machine){0};
            assert_int_equal(probe_device(&m, &c), OK);
            assert_true(m.device_attend_read.value == 0 && m.device_attend_flops.value > 0);
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
        .ops = &ops, .dir = temp_dir, .memory_bytes = 16 << 20, .share = 0.1, .spread_most = 1e9};
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
/* ---- a device that is done at once ---- */

static int most_rows;

static void launch_nothing(struct stream *s, enum op op, const struct ops *ops, const void *args)
{
    (void)s, (void)ops;
    if (op == OP_matmul)
        most_rows = (int)max_i64(most_rows, ((const struct matmul_args *)args)->m);
}

static void copy_nothing(struct stream *s, void *to, const void *from, int64_t n_bytes)
{
    (void)s, (void)to, (void)from, (void)n_bytes;
}

static enum err info_large(struct device *d, struct device_info *info)
{
    (void)d;
    *info = (struct device_info){.memory_bytes = 16ll << 30, .free_bytes = 16ll << 30};
    return OK;
}

/* A fast device shows its rate with as many rows as the largest tile of a plan has. */
static void fast_devices_multiply_whole_tiles(void **state)
{
    (void)state;
    struct device_api api = *device_cpu()->api;
    struct device fast = {&api};
    const struct ops ops = {.isa = ISA_EXACT, .compute = COMPUTE_BF16};
    const struct probe_config c = {.ops = &ops, .device = &fast};
    struct machine m = {0};
    api.launch = launch_nothing;
    api.copy = copy_nothing;
    api.info = info_large;
    assert_int_equal(probe_device(&m, &c), OK);
    assert_int_equal(most_rows, PLAN_TILE_TOKENS << (PLAN_TILES - 1));
}

/* Memory, not caches, limits what the probe measures with. */
static const struct machine_info LARGE_CACHES = {.cache_bytes = 1 << 30};

static void cache_has_a_file_for_all_that_counts(void **state)
{
    (void)state;
    struct ops ops = {.isa = isa_best(), .compute = COMPUTE_BF16};
    struct probe_config c = {.ops = &ops,
                             .dir = temp_dir,
                             .info = &LARGE_CACHES,
                             .memory_bytes = 16 << 20,
                             .share = 0.02,
                             .spread_most = 1e9};
    const char *dir = temp_path("cache");
    assert_int_equal(mkdir(dir, 0700), 0);
    struct machine m;
    assert_string_equal(measures(&m, &c, dir), "disk cpu");
    c.memory_bytes = 31 << 20; // the same buffer
    assert_string_equal(measures(&m, &c, dir), "");
    c.memory_bytes = 33 << 20; // a larger one fits, the disk's as well
    assert_string_equal(measures(&m, &c, dir), "disk cpu");
    c.memory_bytes = 129 << 20; // the disk's does not grow
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
    assert_float_equal(m.step_s.value / m.launch_s.value, 11, 1e-3);
    assert_string_equal(measures(&m, &c, dir), "");
    assert_float_equal(m.step_s.value / m.launch_s.value, 11, 1e-3); // out of the cache, too
    sim_device_close(c.device);
    assert_int_equal(files_in(dir, "probe-disk-"), 3);
    assert_int_equal(files_in(dir, "probe-cpu-"), 5);
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
                                         .head = {DTYPE_BF16, DTYPE_BF16, 1000, 192, 0},
                                         .beside = {.dim = 192,
                                                    .n_heads = 6,
                                                    .n_kv_heads = 2,
                                                    .head_dim = 32,
                                                    .ffn_dim = 512,
                                                    .rope_dim = 32,
                                                    .gated = 1,
                                                    .kv_format = KV_BF16}};

static void model_is_measured_and_kept(void **state)
{
    (void)state;
    struct ops ops = {.isa = isa_best(), .compute = COMPUTE_BF16};
    struct probe_config c = {.ops = &ops,
                             .info = &LARGE_CACHES,
                             .memory_bytes = 16 << 20,
                             .share = 0.1,
                             .spread_most = 1e9};
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
            assert_float_equal(first.head_s[0][i] / first.head_s[1][i], 1, 1e-5); // tiles as stored
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
    other = MODEL;
    other.beside.kv_format = KV_Q8;
    assert_int_equal(probe_model_cached(&r, &m, &other, &c, dir, &measured), OK);
    assert_int_equal(measured, 1);
    assert_memory_equal(r.layer_s, first.layer_s, sizeof r.layer_s);
    other.beside.evict.policy = EVICT_H2O;
    assert_int_equal(probe_model_cached(&r, &m, &other, &c, dir, &measured), OK);
    assert_int_equal(measured, 1);
    c.memory_bytes = 32 << 20;
    assert_int_equal(probe_model_cached(&r, &m, &MODEL, &c, dir, &measured), OK);
    assert_int_equal(measured, 1);
    assert_int_equal(files_in(dir, "probe-model-"), 4); // whatever KV is
    assert_int_equal(files_in(dir, "probe-attend-"), 4);
}

/* Rows of every format under every policy, and a layer for which memory is too small. */
static void layers_of_every_kind_are_measured(void **state)
{
    (void)state;
    struct ops ops = {.isa = isa_best(), .compute = COMPUTE_BF16};
    struct probe_config c = {.ops = &ops, .memory_bytes = 8 << 20, .share = 0.02};
    for (int format = 0; format < N_KV_FORMATS; format++)
        for (int policy = sweep(format, 0); policy < N_EVICT_POLICIES;
             policy += sweep(N_KV_FORMATS, 1)) {
            struct model_rates r = {0};
            struct probe_layer l = MODEL.beside;
            l.kv_format = (enum kv_format)format;
            l.evict = (struct evict){.policy = policy, .scope = policy % 2};
            l.rope_dim = policy == 0 ? 0 : 32;
            l.gated = format == 0;
            assert_int_equal(probe_layer_rows(&r, &l, &c), OK);
            assert_int_equal(probe_layer_attend(&r, &l, &c), OK);
            for (int i = 0; i < N_MATMUL_ROWS; i++) {
                assert_true(r.rows_s[i] > 0 && r.rows_s[i] < 1);
                assert_true(r.attend_s[i] > 0 && r.attend_s[i] < 1);
                assert_true(r.slot_s[i] > 0 && r.slot_s[i] < 0.1);
            }
            assert_true(r.pair_s > 0 && r.pair_s < 1e-4 && r.prompt_token_s >= 0);
            assert_true(r.prompt_s >= 0 && r.prompt_s + 16 * r.prompt_token_s < 0.1);
        }
    struct model_rates r = {0};
    struct probe_layer wide = MODEL.beside;
    int64_t before_kib = status_kib("VmHWM:");
    wide.dim = 1 << 14;
    wide.ffn_dim = 1 << 15; // 256 tokens of it are 96 MiB
    assert_int_equal(probe_layer_rows(&r, &wide, &c), OK);
    assert_int_equal(probe_layer_attend(&r, &wide, &c), OK);
    assert_true(r.rows_s[N_MATMUL_ROWS - 1] > r.rows_s[0]);
#ifndef __SANITIZE_ADDRESS__
    assert_true(status_kib("VmHWM:") - before_kib < 12 << 10);
#else
    (void)before_kib;
#endif
}

/* What runs took is kept; nothing comes of a file that is damaged, old or of another form. */
static void runs_are_kept(void **state)
{
    (void)state;
    const char *path = temp_path("probe-pace.cfg");
    struct pace_runs s = {.n = 3};
    pace_file_read(&s, path);
    assert_int_equal(s.n, 0);
    for (int i = 0; i < PACE_RUNS + 2; i++) {
        struct pace_run run = {1234567, 1 + i / 8.0};
        pace_file_add(path, &run);
    }
    pace_file_read(&s, path);
    assert_int_equal(s.n, PACE_RUNS);
    for (int i = 0; i < PACE_RUNS; i++)
        assert_true(s.runs[i].class == 1234567 && s.runs[i].times == 1 + (i + 2) / 8.0);
    static char text[MACHINE_FILE_BYTES_MAX];
    int64_t n;
    assert_int_equal(machine_text_load(path, text, &n), OK);
    static const struct {
        int64_t age_s;
        int n;
    } ages[] = {{40 * 86400, 0}, {20 * 86400, PACE_RUNS}, {-30, PACE_RUNS}, {-86400, 0}};
    for (int i = 0; i < 4; i++) {
        const struct timespec then = {.tv_sec = time(NULL) - ages[i].age_s};
        assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[2]){then, then}, 0), 0);
        pace_file_read(&s, path);
        assert_int_equal(s.n, ages[i].n);
    }
    for (int64_t i = 0; i < n; i += 29) {
        text[i] ^= 1;
        assert_int_equal(machine_text_save(path, text, n), OK);
        text[i] ^= 1;
        pace_file_read(&s, path);
        assert_int_equal(s.n, 0);
    }
    static const char *const bad[] = {"# x\n1 2 3\n4\n", "# x\n1 -1\n", "# x\n1 0\n",
                                      "# x\n1 nan\n", "# x\n?\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(text, sizeof text, "%s", bad[i]);
        probe_cache_write(path, text, (int64_t)strlen(bad[i]), 0);
        pace_file_read(&s, path);
        assert_int_equal(s.n, 0);
    }
}

/* ---- who had the cores ---- */

static void task(const char *id, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", temp_path("tasks"), id);
    mkdir(path, 0755);
    snprintf(path + strlen(path), sizeof path - strlen(path), "/schedstat");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void threads_that_wait_are_seen(void **state)
{
    (void)state;
    static struct cpu_wait from, to;
    char tasks[256];
    snprintf(tasks, sizeof tasks, "%s", temp_path("tasks"));
    cpu_wait_read(&from, tasks);
    assert_int_equal(from.n, 0); // the kernel does not say
    assert_true(cpu_wait_share(&from, &from, 2) == -1);
    mkdir(tasks, 0755);
    task("11", "1000000000 500000000 3\n");
    task("12", "2000000000 0 3\n");
    task("x", "2000000000 9000000000 3\n");
    cpu_wait_read(&from, tasks);
    assert_int_equal(from.n, 2);
    /* Of 10 s: 11 and 12 compute, 13 is new and ran half a second in the place of one of them. */
    task("11", "9000000000 1500000000 3\n");
    task("12", "9000000000 1000000000 3\n");
    task("13", "500000000 4000000000 3\n");
    cpu_wait_read(&to, tasks);
    from.ns = 0, to.ns = 10000000000;
    double share = cpu_wait_share(&from, &to, 2);
    assert_true(share > 0.0749 && share < 0.0751); // (1 + 1 - 0.5) of 2 x 10
    task("13", "4000000000 4000000000 3\n");
    cpu_wait_read(&to, tasks);
    to.ns = 10000000000;
    assert_true(cpu_wait_share(&from, &to, 2) == 0); // all that was lost went to the run itself
    cpu_wait_read(&to, NULL);
    assert_true(to.n >= 0); // whatever this machine says, it is read
}

/* ---- what is forgotten ---- */

static void only_our_files_are_forgotten(void **state)
{
    (void)state;
    static const char *const ours[] = {"probe-cpu-0123456789abcdef.cfg",
                                       "probe-beside-kv-00000000000000ff.cfg"};
    static const char *const others[] = {"model.pack",
                                         "probe-cpu-0123456789abcdef.cfg.bak",
                                         "probe-cpu-0123456789abcdeg.cfg",
                                         "probe-cpu-0123456789abcdef0.cfg",
                                         "probe--0123456789abcde.cfg",
                                         "my-probe-cpu-0123456789abcdef.cfg"};
    static const char text[] = "1\n# check = 00000000\n"; // of a damaged file
    int64_t n, n_bytes;
    for (int i = 0; i < 2; i++)
        temp_write_text(ours[i], text);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        temp_write_text(others[i], text);
    temp_write_text("probe-cpu-1111111111111111.cfg", "threads = 2 # written by hand, no sum\n");
    temp_write_text("probe-cpu-2222222222222222.cfg", "short\n");
    assert_int_equal(symlink("model.pack", temp_path("probe-cpu-3333333333333333.cfg")), 0);
    assert_int_equal(probe_cache_reset(temp_dir, &n, &n_bytes), OK);
    assert_int_equal(n, 2);
    assert_int_equal(n_bytes, 2 * (int64_t)strlen(text));
    for (int i = 0; i < 2; i++)
        assert_int_equal(access(temp_path(ours[i]), F_OK), -1);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_int_equal(unlink(temp_path(others[i])), 0);
    for (int i = 1; i <= 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "probe-cpu-%016llx.cfg", 0x1111111111111111ull * (unsigned)i);
        assert_int_equal(unlink(temp_path(name)), 0);
    }
    assert_int_equal(probe_cache_reset(temp_path("nowhere"), &n, &n_bytes), OK);
    assert_int_equal(n, 0);
}

/* What was kept is what the writer went on with, digit for digit; what cannot be trusted is not
 * read.
 */
static void figures_are_kept(void **state)
{
    (void)state;
    const char *path = temp_path("probe-figures.cfg");
    double x[2] = {1 / 3.0, 2e9 / 7}, y[2] = {0, 0}, bad[2] = {1, 0};
    static char text[MACHINE_FILE_BYTES_MAX + 64];
    assert_false(probe_figures_read(path, y, 2));
    probe_figures_write(path, x, 2);
    assert_true(x[0] == 0.333333 && x[1] == 285714000);
    assert_true(probe_figures_read(path, y, 2));
    assert_memory_equal(x, y, sizeof x);
    assert_false(probe_figures_read(path, bad, PROBE_FIGURES_MAX));
    int64_t n = probe_cache_read(path, text);
    text[0] ^= 1; // under the old checksum
    assert_int_equal(machine_text_save(path, text, n + 19), OK);
    assert_false(probe_figures_read(path, y, 2));
    assert_memory_equal(x, y, sizeof x);
    probe_figures_write(temp_path("probe-none.cfg"), bad, 2); // 0 is no figure
    assert_int_equal(access(temp_path("probe-none.cfg"), F_OK), -1);
}

/* Gives a rate of a file in the cache another spread, and the file an age. */
static void spoil(const char *path, const char *key, double spread, int64_t age_s)
{
    static char text[MACHINE_FILE_BYTES_MAX + 64], rest[MACHINE_FILE_BYTES_MAX];
    int64_t n = probe_cache_read(path, text);
    assert_true(n > 0);
    text[n] = 0;
    double value;
    char *at = strstr(text, key);
    assert_non_null(at);
    at += strlen(key);
    assert_int_equal(sscanf(at, " = %lf", &value), 1);
    snprintf(rest, sizeof rest, "%s", at + strcspn(at, "\n"));
    int64_t kept = at - text;
    n = kept +
        snprintf(at, sizeof text - (size_t)kept - 32, " = %g %g 9%s", value, value * spread, rest);
    probe_cache_write(path, text, n, 0);
    struct timespec was[2] = {{.tv_sec = time(NULL) - age_s}, {.tv_sec = time(NULL) - age_s}};
    assert_int_equal(utimensat(AT_FDCWD, path, was, 0), 0);
}

/* Samples far apart: once more, when an hour has gone, and only that part; what was better stays.
 */
static void what_was_disturbed_is_measured_again(void **state)
{
    (void)state;
    struct ops ops = {.isa = isa_best(), .compute = COMPUTE_BF16};
    struct probe_config c = {.ops = &ops, .dir = temp_dir, .memory_bytes = 16 << 20, .share = 0.2};
    const char *dir = temp_path("cache");
    struct machine first, m;
    int measured = 0;
    c.spread_most = 40; // nothing that happens here by itself
    assert_int_equal(mkdir(dir, 0700), 0);
    assert_int_equal(probe_cached(&first, &c, dir, &measured), OK);
    spoil(cache_file("probe-disk-"), "\nnvme_read", 50, 600);
    assert_int_equal(probe_cached(&m, &c, dir, &measured), OK);
    assert_int_equal(measured, 0);
    assert_true(m.nvme_read.spread > 49 * m.nvme_read.value);
    spoil(cache_file("probe-disk-"), "\nnvme_read", 50, 4000);
    spoil(cache_file("probe-disk-"), "\nnvme_write", 0, 4000); // cannot be better
    spoil(cache_file("probe-cpu-"), "\ncrc", 50, 4000);        // no plan divides by it
    assert_int_equal(probe_cached(&m, &c, dir, &measured), OK);
    assert_int_equal(measured, 1);
    assert_true(m.nvme_read.spread < 40 * m.nvme_read.value);
    assert_true(m.nvme_write.value == first.nvme_write.value && m.nvme_write.n == 9);
    assert_true(m.crc.spread > 49 * m.crc.value);
    first = m;
    assert_int_equal(probe_cached(&m, &c, dir, &measured), OK);
    assert_int_equal(measured, 0);
    for (int i = 0; i < N_MACHINE_RATES; i++)
        assert_true(m.rates[i].value == first.rates[i].value);
}

static double others_had[8]; // of the time of each measurement
static int n_measured;

static double others(const struct cpu_wait *from, int threads)
{
    assert_true(from->ns > 0 && threads == 1);
    return others_had[n_measured++];
}

/* The only file of the cache folder with this beginning, as if it had been written so long before.
 */
static void older(const char *prefix, int64_t by_s)
{
    const char *path = cache_file(prefix);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    struct timespec was[2] = {{.tv_sec = st.st_mtime - by_s}, {.tv_sec = st.st_mtime - by_s}};
    assert_int_equal(utimensat(AT_FDCWD, path, was, 0), 0);
}

/* Rates that were measured while others had the cores are kept for two minutes, others for a month.
 */
static void what_others_disturbed_is_kept_for_minutes(void **state)
{
    (void)state;
    struct ops ops = {.isa = isa_best(), .compute = COMPUTE_BF16};
    struct probe_config c = {.ops = &ops,
                             .dir = temp_dir,
                             .memory_bytes = 16 << 20,
                             .share = 0.01,
                             .waited = others,
                             .spread_most = 1e9};
    const char *dir = temp_path("cache");
    const double busy_disk[8] = {0.4, 0.05, 0}, busy_model[8] = {0, 0.9, 0};
    struct machine m;
    struct model_rates rates;
    int measured = 0;
    assert_int_equal(mkdir(dir, 0700), 0);
    memcpy(others_had, busy_disk, sizeof others_had);
    n_measured = 0;
    assert_int_equal(probe_cached(&m, &c, dir, &measured), OK);
    assert_true(measured == 1 && m.nvme_read.value > 0 && m.matmul_flops.value > 0);
    assert_int_equal(n_measured, 2); // the disk, the CPU
    assert_int_equal(probe_cached(&m, &c, dir, &measured), OK);
    assert_true(measured == 0 && n_measured == 2);
    older("probe-disk-", 130);
    older("probe-cpu-", 130);
    assert_int_equal(probe_cached(&m, &c, dir, &measured), OK);
    assert_true(measured == 1 && n_measured == 3); // the disk
    older("probe-disk-", 130);
    assert_int_equal(probe_cached(&m, &c, dir, &measured), OK);
    assert_true(measured == 0 && n_measured == 3);
    memcpy(others_had, busy_model, sizeof others_had);
    n_measured = 0;
    assert_int_equal(probe_model_cached(&rates, &m, &MODEL, &c, dir, &measured), OK);
    assert_int_equal(n_measured, 2); // two parts
    older("probe-attend-", 130);
    older("probe-model-", 130);
    assert_int_equal(probe_model_cached(&rates, &m, &MODEL, &c, dir, &measured), OK);
    assert_int_equal(n_measured, 3);
}

/* Where a sweep is long a share of it is timed, and what memory there is is kept to. */
static void model_takes_a_share_of_a_large_layer(void **state)
{
    (void)state;
    struct ops ops = {.isa = isa_best(), .compute = COMPUTE_BF16};
    struct probe_config c = {.ops = &ops, .memory_bytes = 12 << 20, .share = 0.1};
    struct machine slow = {.matmul_flops = {.value = 1e9}},
                   fast = {.matmul_flops = {.value = 1e15}};
    struct probe_model model = {
        .layer = {{DTYPE_BF16, DTYPE_BF16, 4096, 512, 0}}, .n_layer = 1, .beside = MODEL.beside};
    struct model_rates whole, part;
    model.head = model.layer[0];
    double whole_s = INFINITY, part_s = INFINITY; // of 256 tokens, the least disturbed of some
    for (int turn = 0; turn < sweep(2, 4); turn++) {
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(probe_measures_and_gives_memory_back, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(fresh_memory_is_measured_where_there_is_much,
                                        temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(probe_measures_a_device, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(probe_names_a_directory_it_cannot_write, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(cache_is_used_until_it_is_old_or_damaged, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(cache_has_a_file_for_all_that_counts, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(model_is_measured_and_kept, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test(layers_of_every_kind_are_measured),
        cmocka_unit_test_setup_teardown(runs_are_kept, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(threads_that_wait_are_seen, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(only_our_files_are_forgotten, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(figures_are_kept, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(what_others_disturbed_is_kept_for_minutes, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(what_was_disturbed_is_measured_again, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test(model_takes_a_share_of_a_large_layer),
        cmocka_unit_test(fast_devices_multiply_whole_tiles), // the last: it takes memory
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
