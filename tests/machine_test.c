/* tests/machine_test.c - offload/machine and offload/cgroup: fixtures for control groups, and this
 * machine looked at from two sides. */
#include "offload/machine.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/temp_dir.h"

#define MIB ((int64_t)1 << 20)
#define GIB ((int64_t)1 << 30)

static int n_roots;
static char root[96]; // of the fixture of the running test

/* Writes one file of the fixture, with the directories that lead to it. */
static void put(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(temp_dir) + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = 0;
        assert_true(mkdir(full, 0700) == 0 || errno == EEXIST);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int fixture(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "%s/%d", temp_dir, n_roots++);
    put("/proc/meminfo", "MemTotal:       65536000 kB\nMemFree:         1000000 kB\n"
                         "MemAvailable:   41943040 kB\n");
    return 0;
}

#define V2_MOUNT "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"

static void test_no_groups(void **state)
{
    (void)state;
    struct machine_info info = {0};
    machine_memory_read(&info, root);
    assert_int_equal(info.ram_bytes, 65536000ll * 1024);
    assert_int_equal(info.ram_free_bytes, 40 * GIB);
    assert_int_equal(info.cgroup.memory_free_bytes, INT64_MAX);
    assert_string_equal(info.cgroup.memory_group, "");
    assert_true(info.cpu_quota == 0);
    put("/proc/meminfo", "MemTotal: 1000 kB\nMemFree: 400 kB\n"); // an old kernel
    machine_memory_read(&info, root);
    assert_int_equal(info.ram_free_bytes, 400 * 1024);
}

/* 68.9 of 70 GiB are page cache: the group is nearly empty. */
static void test_v2_page_cache(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/job\n");
    put("/proc/self/mountinfo", V2_MOUNT);
    put("/sys/fs/cgroup/job/memory.max", "32212254720\n");     // 30 GiB
    put("/sys/fs/cgroup/job/memory.current", "31675383808\n"); // 29.5 GiB
    put("/sys/fs/cgroup/job/memory.stat", "anon 1073741824\nfile 30601641984\n"
                                          "inactive_file 21474836480\nactive_file 8589934592\n"
                                          "workingset_restore_file 7\n");
    put("/sys/fs/cgroup/job/cpu.max", "250000 100000\n");
    struct machine_info info = {0};
    machine_memory_read(&info, root);
    /* 30 - (29.5 - 28) */
    assert_int_equal(info.ram_free_bytes, 28 * GIB + GIB / 2);
    assert_int_equal(info.cgroup.memory_limit_bytes, 30 * GIB);
    assert_string_equal(info.cgroup.memory_group, "/sys/fs/cgroup/job");
    assert_true(info.cpu_quota == 2.5);
}

/* The parent is tighter than the child, the grandparent has no limit, "high" binds before "max". */
static void test_v2_ancestors(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/a.slice/b.slice/c.scope\n");
    put("/proc/self/mountinfo", V2_MOUNT);
    put("/sys/fs/cgroup/a.slice/memory.max", "max\n");
    put("/sys/fs/cgroup/a.slice/memory.current", "99999999999\n");
    put("/sys/fs/cgroup/a.slice/cpu.max", "150000 100000\n");
    put("/sys/fs/cgroup/a.slice/b.slice/memory.max", "8589934592\n");
    put("/sys/fs/cgroup/a.slice/b.slice/memory.high", "4294967296\n");
    put("/sys/fs/cgroup/a.slice/b.slice/memory.current", "3221225472\n");
    put("/sys/fs/cgroup/a.slice/b.slice/memory.stat", "inactive_file 0\nactive_file 0\n");
    put("/sys/fs/cgroup/a.slice/b.slice/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/a.slice/b.slice/c.scope/memory.max", "6442450944\n");
    put("/sys/fs/cgroup/a.slice/b.slice/c.scope/memory.current", "1048576\n");
    put("/sys/fs/cgroup/a.slice/b.slice/c.scope/cpu.max", "400000 100000\n");
    struct machine_info info = {0};
    machine_memory_read(&info, root);
    assert_int_equal(info.ram_free_bytes, GIB);
    assert_string_equal(info.cgroup.memory_group, "/sys/fs/cgroup/a.slice/b.slice");
    assert_true(info.cpu_quota == 1.5);
    put("/sys/fs/cgroup/a.slice/b.slice/memory.current", "9999999999\n"); // over its limit
    put("/sys/fs/cgroup/a.slice/b.slice/c.scope/cpu.max", "75000 100000\n");
    machine_memory_read(&info, root);
    assert_int_equal(info.ram_free_bytes, 0);
    assert_true(info.cpu_quota == 0.75);
}

/* v1, one hierarchy per controller, beside an empty v2; a mount point with a space. */
static void test_v1_nested(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "9:name=systemd:/\n4:memory:/outer/inner\n3:cpuset:/\n"
                             "2:cpu,cpuacct:/outer\n0::/\n");
    put("/proc/self/mountinfo",
        "30 22 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "31 22 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
        "32 22 0:29 / /sys/fs/my\\040group/memory rw,relatime - cgroup cgroup rw,memory\n"
        "33 22 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "34 22 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n");
#define GROUP "/sys/fs/my group/memory"
    put(GROUP "/memory.limit_in_bytes", "9223372036854771712\n");
    put(GROUP "/memory.usage_in_bytes", "50000000000\n");
    put(GROUP "/outer/memory.limit_in_bytes", "1073741824\n");
    put(GROUP "/outer/memory.usage_in_bytes", "1000000000\n");
    put(GROUP "/outer/memory.stat", "inactive_file 1\nactive_file 2\n"
                                    "total_inactive_file 600000000\ntotal_active_file 300000000\n");
    put(GROUP "/outer/inner/memory.limit_in_bytes", "2147483648\n");
    put(GROUP "/outer/inner/memory.usage_in_bytes", "500000000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/outer/cpu.cfs_quota_us", "50000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/outer/cpu.cfs_period_us", "100000\n");
    struct machine_info info = {0};
    machine_memory_read(&info, root);
    assert_int_equal(info.ram_free_bytes, GIB - 100000000);
    assert_string_equal(info.cgroup.memory_group, GROUP "/outer");
    assert_true(info.cpu_quota == 0.5);
}

/* What a run may take without flags: a tenth and 256 MiB of RAM stay, in a small container a tenth
 * and a quarter, and a tenth of the disk. */
static void test_room(void **state)
{
    (void)state;
    int64_t ram, disk;
    struct machine_info info = {.ram_free_bytes = 60 * MIB, .disk_free_bytes = -1};
    machine_room(&info, &ram, &disk);
    assert_int_equal(ram, 39 * MIB);
    assert_int_equal(disk, 0);
    info = (struct machine_info){.ram_free_bytes = 10 * GIB, .disk_free_bytes = 100 * GIB};
    machine_room(&info, &ram, &disk);
    assert_int_equal(ram, 9 * GIB - 256 * MIB);
    assert_int_equal(disk, 90 * GIB);
}

/* In a container without a namespace of its own the mount shows the group as its top, while
 * /proc/self/cgroup names it from the host's top; with one, both say "/". */
static void test_container(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "4:memory:/docker/0123abc\n");
    put("/proc/self/mountinfo",
        "32 22 0:29 /docker/0123abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "268435456\n");
    struct machine_info info = {0};
    machine_memory_read(&info, root);
    assert_int_equal(info.ram_free_bytes, 256 * MIB);
    put("/proc/self/cgroup", "4:memory:/docker/0123abcdef\n"); // another: only looks alike
    machine_memory_read(&info, root);
    assert_int_equal(info.ram_free_bytes, 256 * MIB);
    put("/proc/self/cgroup", "4:memory:/docker/0123abc/sub\n");
    put("/sys/fs/cgroup/memory/sub/memory.limit_in_bytes", "1048576\n");
    machine_memory_read(&info, root);
    assert_int_equal(info.ram_free_bytes, MIB);
    put("/proc/self/cgroup", "0::/\n");
    put("/proc/self/mountinfo", V2_MOUNT);
    put("/sys/fs/cgroup/memory.max", "104857600\n");
    machine_memory_read(&info, root);
    assert_int_equal(info.ram_free_bytes, 100 * MIB);
    put("/proc/self/cgroup", "0::/../outside\n");
    machine_memory_read(&info, root);
    assert_int_equal(info.ram_free_bytes, 100 * MIB);
}

static void test_damaged_files(void **state)
{
    (void)state;
    static const char *const GROUPS[] = {
        "", "\n", ":", "0:", "0::", "0::relative", "x::/job\n0::/job"};
    static const char *const MOUNTS[] = {"",
                                         "- cgroup2",
                                         " - cgroup2 x y\n",
                                         "1 2 3 - cgroup2 cgroup2 rw\n",
                                         "29 22 0:26 / /sys/fs/cgroup\\0 rw - cgroup2 cgroup2 rw\n",
                                         V2_MOUNT};
    static const char *const NUMBERS[] = {"", "max", "x", "-5", "99999999999999999999999", "7 8 9"};
    for (size_t g = 0; g < sizeof GROUPS / sizeof *GROUPS; g++)
        for (size_t m = 0; m < sizeof MOUNTS / sizeof *MOUNTS; m++)
            for (size_t n = 0; n < sizeof NUMBERS / sizeof *NUMBERS; n++) {
                put("/proc/self/cgroup", GROUPS[g]);
                put("/proc/self/mountinfo", MOUNTS[m]);
                put("/sys/fs/cgroup/memory.max", NUMBERS[n]);
                put("/sys/fs/cgroup/job/memory.max", NUMBERS[n]);
                put("/sys/fs/cgroup/job/memory.current", NUMBERS[n % 3 ? n : 3]);
                put("/sys/fs/cgroup/job/memory.stat", "inactive_file 9223372036854775807\n"
                                                      "active_file 9223372036854775807\nx\n");
                put("/sys/fs/cgroup/job/cpu.max", NUMBERS[n]);
                struct machine_info info = {0};
                machine_memory_read(&info, root);
                assert_true(info.ram_free_bytes == 40 * GIB || info.ram_free_bytes == 7);
                assert_true(info.cpu_quota == 0 || info.cpu_quota == 7.0 / 8);
            }
}

static void test_device_node(void **state)
{
    (void)state;
    char link[256];
    put("/sys/devices/pci0/0000:01:00.0/numa_node", "1\n");
    put("/sys/devices/pci0/0000:01:00.0/nvme/nvme0/nvme0n1/nvme0n1p2/dev", "259:2\n");
    put("/sys/devices/virtual/block/dm-0/slaves/.keep", "");
    put("/sys/dev/block/.keep", "");
    put("/sys/class/block/.keep", "");
    snprintf(link, sizeof link, "%s/sys/dev/block/259:2", root);
    assert_int_equal(symlink("../../devices/pci0/0000:01:00.0/nvme/nvme0/nvme0n1/nvme0n1p2", link),
                     0);
    assert_int_equal(machine_device_node(root, 259, 2), 1);
    assert_int_equal(machine_device_node(root, 259, 3), -1);
    snprintf(link, sizeof link, "%s/sys/dev/block/253:0", root);
    assert_int_equal(symlink("../../devices/virtual/block/dm-0", link), 0);
    assert_int_equal(machine_device_node(root, 253, 0), -1);
    snprintf(link, sizeof link, "%s/sys/class/block/nvme0n1p2", root);
    assert_int_equal(symlink("../../devices/pci0/0000:01:00.0/nvme/nvme0/nvme0n1/nvme0n1p2", link),
                     0);
    put("/sys/devices/virtual/block/dm-0/slaves/nvme0n1p2", "");
    assert_int_equal(machine_device_node(root, 253, 0), 1);
    /* A loop of devices must end. */
    snprintf(link, sizeof link, "%s/sys/class/block/dm-0", root);
    assert_int_equal(symlink("../../devices/virtual/block/dm-0", link), 0);
    put("/sys/devices/virtual/block/dm-0/slaves/dm-0", "");
    machine_device_node(root, 253, 0);
}

static void test_pci_node(void **state)
{
    (void)state;
    put("/sys/bus/pci/devices/0000:c1:00.0/numa_node", "3\n");
    put("/sys/bus/pci/devices/0000:c2:00.0/numa_node", "-1\n");
    assert_int_equal(machine_pci_node(root, "0000:C1:00.0"), 3);
    assert_int_equal(machine_pci_node(root, "0000:C2:00.0"), -1);
    assert_int_equal(machine_pci_node(root, "0000:C3:00.0"), -1);
    assert_int_equal(machine_pci_node(root, ""), -1);
}

static void test_this_machine(void **state)
{
    (void)state;
    struct machine_info info;
    assert_int_equal(machine_read(&info, temp_dir), OK);
    cpu_set_t mask;
    assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
    assert_int_equal(info.n_cpus, CPU_COUNT(&mask));
    assert_in_range(info.n_cores, 1, info.n_cpus);
    assert_in_range(info.n_threads, 1, info.n_cores);
    for (int i = 0; i < info.n_cores; i++) {
        assert_true(CPU_ISSET((size_t)info.core_cpus[i], &mask));
        for (int j = 0; j < i; j++)
            assert_int_not_equal(info.core_cpus[i], info.core_cpus[j]);
    }
    assert_true(info.n_numa_nodes >= 1);
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    long long l3_kib = 0;
    if (f && fscanf(f, "%lldK", &l3_kib) == 1)
        assert_true(info.cache_bytes >= l3_kib * 1024);
    if (f)
        fclose(f);
    assert_true(info.cache_bytes >= 0 && info.cache_bytes < info.ram_bytes);
    assert_int_equal(info.ram_bytes / 4096,
                     (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) / 4096);
    assert_in_range(info.ram_free_bytes, 1 << 20, info.ram_bytes);
    assert_in_range(info.disk_free_bytes, 1, info.disk_bytes);
    struct rlimit limit;
    getrlimit(RLIMIT_MEMLOCK, &limit);
    assert_true((uint64_t)info.memlock_bytes ==
                (limit.rlim_cur > INT64_MAX ? (uint64_t)INT64_MAX : (uint64_t)limit.rlim_cur));
    print_message(
        "%s: %d CPUs, %d cores, quota %.1f, %d nodes, %lld of %lld MiB free, disk %lld MiB "
        "on node %d, group `%s`\n",
        info.cpu_name, info.n_cpus, info.n_cores, info.cpu_quota, info.n_numa_nodes,
        (long long)(info.ram_free_bytes / MIB), (long long)(info.ram_bytes / MIB),
        (long long)(info.disk_free_bytes / MIB), info.disk_node, info.cgroup.memory_group);
}

static void test_offload_dir(void **state)
{
    (void)state;
    struct machine_info info;
    assert_int_equal(machine_read(&info, NULL), OK);
    assert_int_equal(info.disk_free_bytes, -1);
    char path[128];
    snprintf(path, sizeof path, "%s/none", temp_dir);
    assert_int_equal(machine_read(&info, path), ERR_USAGE);
    assert_non_null(strstr(err_text(), path));
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    assert_int_equal(machine_read(&info, path), ERR_USAGE);
    assert_non_null(strstr(err_text(), "not a directory"));
}

/* taskset to one CPU, in a child: hwloc alone would still count them all. */
static void test_affinity(void **state)
{
    (void)state;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        cpu_set_t mask;
        sched_getaffinity(0, sizeof mask, &mask);
        int last = -1;
        for (int i = 0; i < CPU_SETSIZE; i++)
            last = CPU_ISSET((size_t)i, &mask) ? i : last;
        CPU_ZERO(&mask);
        CPU_SET((size_t)last, &mask);
        struct machine_info info;
        if (sched_setaffinity(0, sizeof mask, &mask) != 0 || machine_read(&info, NULL) != OK)
            _exit(2);
        _exit(info.n_cpus == 1 && info.n_cores == 1 && info.n_threads == 1 &&
                      info.core_cpus[0] == last
                  ? 0
                  : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_peak_rss(void **state)
{
    (void)state;
    int64_t before = machine_peak_rss_bytes();
    assert_true(before > 0);
    const int64_t n = 64 * MIB;
    volatile char *p = malloc((size_t)n);
    assert_non_null((void *)p);
    for (int64_t i = 0; i < n; i += 4096)
        p[i] = 1;
    free((void *)p);
    int64_t after = machine_peak_rss_bytes();
    assert_in_range(after - before, n / 2, 4 * n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_no_groups, fixture),
        cmocka_unit_test_setup(test_v2_page_cache, fixture),
        cmocka_unit_test_setup(test_v2_ancestors, fixture),
        cmocka_unit_test_setup(test_v1_nested, fixture),
        cmocka_unit_test_setup(test_container, fixture),
        cmocka_unit_test_setup(test_damaged_files, fixture),
        cmocka_unit_test_setup(test_device_node, fixture),
        cmocka_unit_test_setup(test_pci_node, fixture),
        cmocka_unit_test(test_room),
        cmocka_unit_test_setup(test_this_machine, fixture),
        cmocka_unit_test_setup(test_offload_dir, fixture),
        cmocka_unit_test_setup(test_affinity, fixture),
        cmocka_unit_test_setup(test_peak_rss, fixture),
    };
    return cmocka_run_group_tests(tests, temp_dir_setup, temp_dir_teardown);
}
