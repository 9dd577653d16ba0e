/* offload/machine.c - see machine.h; the only file that includes hwloc.
 *
 * Note: hwloc leaves out CPUs that a cpuset forbids, but not those that taskset removed, so cores
 * are also filtered by the affinity mask. */
#include "offload/machine.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <hwloc.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "offload/scratch.h"

#define CPUS_MAX     8192
#define NODE_UNKNOWN (-2)
#define DM_DEPTH_MAX 4 // stacked device-mapper and RAID devices

atomic_int machine_in_library;

/* ---- CPUs ---- */

/* One CPU per core, in hwloc's order (package, node, core): neighbours share caches. */
static void cores_from_hwloc(struct machine_info *info, hwloc_topology_t t, const cpu_set_t *mask,
                             size_t n_mask)
{
    int n = hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_CORE);
    for (int i = 0; i < n && info->n_cores < MACHINE_CORES_MAX; i++) {
        hwloc_obj_t core = hwloc_get_obj_by_type(t, HWLOC_OBJ_CORE, (unsigned)i);
        int cpu = -1;
        while ((cpu = hwloc_bitmap_next(core->cpuset, cpu)) >= 0)
            if (CPU_ISSET_S((size_t)cpu, n_mask, mask))
                break;
        if (cpu < 0)
            continue;
        int node = core->nodeset ? hwloc_bitmap_first(core->nodeset) : 0;
        info->core_nodes[info->n_cores] = node < 0 ? 0 : node;
        info->core_cpus[info->n_cores++] = cpu;
    }
}

/* Bytes of all last-level caches. */
static int64_t cache_bytes(hwloc_topology_t t)
{
    static const hwloc_obj_type_t levels[] = {HWLOC_OBJ_L4CACHE, HWLOC_OBJ_L3CACHE,
                                              HWLOC_OBJ_L2CACHE};
    int64_t bytes = 0;
    for (int level = 0; level < 3 && bytes == 0; level++)
        for (int i = 0; i < hwloc_get_nbobjs_by_type(t, levels[level]); i++)
            bytes +=
                (int64_t)hwloc_get_obj_by_type(t, levels[level], (unsigned)i)->attr->cache.size;
    return bytes;
}

static int topology_open(hwloc_topology_t *t)
{
    machine_in_library = 1;
    int code = hwloc_topology_init(t);
    if (code == 0 && (code = hwloc_topology_load(*t)) != 0)
        hwloc_topology_destroy(*t);
    machine_in_library = 0;
    return code;
}

static void hwloc_read(struct machine_info *info, const cpu_set_t *mask, size_t n_mask)
{
    hwloc_topology_t t;
    if (topology_open(&t) != 0)
        return;
    cores_from_hwloc(info, t, mask, n_mask);
    info->n_numa_nodes = hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_NUMANODE);
    info->cache_bytes = cache_bytes(t);
    hwloc_obj_t package = hwloc_get_obj_by_type(t, HWLOC_OBJ_PACKAGE, 0);
    const char *name = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    snprintf(info->cpu_name, sizeof info->cpu_name, "%s", name ? name : "");
    hwloc_topology_destroy(t);
}

/* 1 if this part may run on the core: one of its node (-1: of all), within `mask`. */
static int core_counts(hwloc_obj_t core, int node, hwloc_const_cpuset_t mask)
{
    return hwloc_bitmap_intersects(core->cpuset, mask) &&
           (node < 0 || hwloc_bitmap_isset(core->nodeset, (unsigned)node));
}

/* Number of cores of the node; the cores `from` to `to` - 1 among them are added to `set`. */
static int cores_of_node(hwloc_topology_t t, int node, hwloc_const_cpuset_t mask, int from, int to,
                         hwloc_cpuset_t set)
{
    int n = 0, n_all = hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_CORE);
    for (int i = 0; i < n_all; i++) {
        hwloc_obj_t core = hwloc_get_obj_by_type(t, HWLOC_OBJ_CORE, (unsigned)i);
        if (!core_counts(core, node, mask))
            continue;
        if (n >= from && n < to)
            hwloc_bitmap_or(set, set, core->cpuset);
        n++;
    }
    return n;
}

void machine_share_cpus(const int *nodes, int n_parts, int part)
{
    hwloc_topology_t t;
    if (topology_open(&t) != 0)
        return;
    hwloc_cpuset_t mask = hwloc_bitmap_alloc(), set = hwloc_bitmap_alloc();
    if (mask && set && hwloc_get_cpubind(t, mask, HWLOC_CPUBIND_PROCESS) == 0) {
        int node = nodes[part], before = 0, sharing = 0;
        if (node >= 0 && cores_of_node(t, node, mask, 0, 0, set) == 0)
            node = -1;
        for (int i = 0; i < n_parts; i++) {
            const int shares = node < 0 || nodes[i] == node;
            before += shares && i < part;
            sharing += shares;
        }
        const int cores = cores_of_node(t, node, mask, 0, 0, set);
        const int few = cores < sharing; // then the parts share all of them
        cores_of_node(t, node, mask, few ? 0 : before * cores / sharing,
                      few ? cores : (before + 1) * cores / sharing, set);
        hwloc_bitmap_and(set, set, mask);
        if (!hwloc_bitmap_iszero(set))
            (void)hwloc_set_cpubind(t, set, HWLOC_CPUBIND_PROCESS);
    }
    hwloc_bitmap_free(mask);
    hwloc_bitmap_free(set);
    hwloc_topology_destroy(t);
}

void machine_memory_bind(void *base, int64_t n_bytes, int node)
{
    hwloc_topology_t t;
    if (topology_open(&t) != 0)
        return;
    hwloc_obj_t at = hwloc_get_numanode_obj_by_os_index(t, (unsigned)node);
    if (at && hwloc_set_area_membind(t, base, (size_t)n_bytes, at->nodeset, HWLOC_MEMBIND_BIND,
                                     HWLOC_MEMBIND_BYNODESET) != 0)
        log_line(LOG_WARN, "memory cannot be bound to NUMA node %d: %s", node, strerror(errno));
    hwloc_topology_destroy(t);
}

static void cpus_read(struct machine_info *info)
{
    uint64_t storage[CPUS_MAX / 64];
    cpu_set_t *mask = (cpu_set_t *)storage;
    size_t n_mask = sizeof storage;
    CPU_ZERO_S(n_mask, mask);
    if (sched_getaffinity(0, n_mask, mask) != 0)
        CPU_SET_S(0, n_mask, mask);
    info->n_cpus = CPU_COUNT_S(n_mask, mask);
    hwloc_read(info, mask, n_mask);
    /* Without a topology every CPU counts as a core. */
    int have_cores = info->n_cores > 0;
    for (int cpu = 0; !have_cores && cpu < CPUS_MAX && info->n_cores < MACHINE_CORES_MAX; cpu++)
        if (CPU_ISSET_S((size_t)cpu, n_mask, mask))
            info->core_cpus[info->n_cores++] = cpu;
    info->n_numa_nodes = info->n_numa_nodes < 1 ? 1 : info->n_numa_nodes;
}

/* ---- memory ---- */

static FILE *file_open(const char *root, const char *path)
{
    char full[2 * PATH_MAX];
    int n = snprintf(full, sizeof full, "%s%s", root, path);
    return n < (int)sizeof full ? fopen(full, "re") : NULL;
}

/* `key: N kB` of a /proc file in bytes; -1: no such key. */
static int64_t proc_kib(const char *root, const char *path, const char *key)
{
    FILE *f = file_open(root, path);
    if (!f)
        return -1;
    char line[256];
    int64_t bytes = -1;
    size_t n = strlen(key);
    while (bytes < 0 && fgets(line, sizeof line, f)) {
        long long kib;
        if (strncmp(line, key, n) == 0 && line[n] == ':' &&
            sscanf(line + n + 1, "%lld", &kib) == 1 && kib >= 0 && kib <= INT64_MAX / 1024)
            bytes = kib * 1024;
    }
    fclose(f);
    return bytes;
}

void machine_memory_read(struct machine_info *info, const char *root)
{
    cgroup_read(&info->cgroup, root);
    info->ram_bytes = max_i64(proc_kib(root, "/proc/meminfo", "MemTotal"), 0);
    int64_t available = proc_kib(root, "/proc/meminfo", "MemAvailable");
    if (available < 0) // kernels before 3.14
        available = max_i64(proc_kib(root, "/proc/meminfo", "MemFree"), 0);
    info->ram_free_bytes = min_i64(available, info->cgroup.memory_free_bytes);
    info->cpu_quota = info->cgroup.cpus;
}

int64_t machine_peak_rss_bytes(void)
{
    return max_i64(proc_kib("", "/proc/self/status", "VmHWM"), 0);
}

/* ---- disk ---- */

/* The name of the first device below a device-mapper or RAID device; 0: it is neither. */
static int slave_find(const char *device, char *name, size_t n_name)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/slaves", device);
    DIR *d = opendir(path);
    int found = 0;
    for (struct dirent *e; d && !found && (e = readdir(d));)
        if (e->d_name[0] != '.')
            found = snprintf(name, n_name, "%s", e->d_name) < (int)n_name;
    if (d)
        closedir(d);
    return found;
}

/* The number in a numa_node file, -1 for no node; NODE_UNKNOWN: there is no such file. */
static int node_read(const char *root, const char *folder)
{
    char path[PATH_MAX + 16], line[32];
    snprintf(path, sizeof path, "%s/numa_node", folder);
    FILE *f = file_open(root, path);
    if (!f)
        return NODE_UNKNOWN;
    int node = fgets(line, sizeof line, f) ? (int)strtol(line, NULL, 10) : -1;
    fclose(f);
    return node;
}

int machine_pci_node(const char *root, const char *pci)
{
    char folder[64] = "/sys/bus/pci/devices/";
    size_t n = strlen(folder);
    for (const char *p = pci; *p && n + 1 < sizeof folder; p++) // names there are in lower case
        folder[n++] = (char)tolower((unsigned char)*p);
    folder[n] = 0;
    return *pci ? (int)max_i64(node_read(root, folder), -1) : -1;
}

int machine_device_node(const char *root, unsigned device_major, unsigned device_minor)
{
    char link[2 * PATH_MAX], device[PATH_MAX], name[NAME_MAX + 1];
    snprintf(link, sizeof link, "%s/sys/dev/block/%u:%u", root, device_major, device_minor);
    for (int i = 0; i < DM_DEPTH_MAX; i++) {
        if (!realpath(link, device))
            return -1;
        if (!slave_find(device, name, sizeof name))
            break;
        snprintf(link, sizeof link, "%s/sys/class/block/%s", root, name);
    }
    /* .../0000:01:00.0/nvme/nvme0/nvme0n1/nvme0n1p2: one of the parents has a numa_node file. */
    for (char *slash; (slash = strrchr(device, '/')) && slash != device; *slash = 0) {
        const int node = node_read("", device);
        if (node != NODE_UNKNOWN)
            return node;
    }
    return -1;
}

static enum err disk_read(struct machine_info *info, const char *offload_dir)
{
    info->disk_free_bytes = info->disk_bytes = -1;
    info->disk_node = -1;
    if (!offload_dir)
        return OK;
    struct scratch_room room;
    TRY(scratch_check(offload_dir));
    if (scratch_room(offload_dir, &room) != OK)
        return fail(ERR_USAGE, "%s: offload directory: no room known", offload_dir);
    info->disk_free_bytes = room.free_bytes;
    info->disk_bytes = room.total_bytes;
    info->disk_node = machine_device_node("", room.dev_major, room.dev_minor);
    return OK;
}

enum err machine_read(struct machine_info *info, const char *offload_dir)
{
    *info = (struct machine_info){0};
    cpus_read(info);
    machine_memory_read(info, "");
    info->n_threads = info->n_cores;
    if (info->cpu_quota > 0) // rounded up: two threads on 1.5 CPUs do more than one
        info->n_threads = (int)fmin(info->n_cores, fmax(1, ceil(info->cpu_quota - 0.01)));
    struct rlimit limit;
    int known = getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur <= INT64_MAX;
    info->memlock_bytes = known ? (int64_t)limit.rlim_cur : INT64_MAX;
    return disk_read(info, offload_dir);
}

void machine_room(const struct machine_info *info, int64_t *ram, int64_t *disk)
{
    /* Left for other processes: 256 MiB, or a quarter where little is free (small containers). */
    int64_t spare = min_i64((int64_t)256 << 20, info->ram_free_bytes / 4);
    int64_t margin = info->ram_free_bytes / 10 + spare;
    *ram = max_i64(info->ram_free_bytes - margin, 0);
    *disk = max_i64(info->disk_free_bytes - info->disk_free_bytes / 10, 0);
}
