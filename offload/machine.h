/* offload/machine.h - what hardware this machine has, and how much of it this process may use.
 *
 * Owns: detection (hwloc, /proc, /sys, control groups). Refuses: measuring rates (probe), decisions
 * (policy). */
#ifndef OFFLOAD_MACHINE_H
#define OFFLOAD_MACHINE_H

#include <stdatomic.h>

#include "offload/cgroup.h"

#define MACHINE_CORES_MAX 1024

struct machine_info {
    char cpu_name[128]; // "" when unknown
    int n_cpus;         // logical CPUs that the affinity mask (taskset, cpuset) leaves this process
    int n_cores;        // physical cores among them
    double cpu_quota;   // CPUs by the control group's quota; 0: no quota
    int n_threads;      // compute threads worth starting: n_cores, less under a quota; at least 1
    int core_cpus[MACHINE_CORES_MAX];  // [n_cores] one usable CPU of each core, for pool_open
    int core_nodes[MACHINE_CORES_MAX]; // [n_cores] its NUMA node
    int n_numa_nodes;
    int64_t cache_bytes;    // last-level caches, all together; 0: unknown
    int64_t ram_bytes;      // of the machine
    int64_t ram_free_bytes; // available: the lesser of MemAvailable and cgroup.memory_free_bytes
    struct cgroup_limits cgroup;
    int64_t memlock_bytes;   // RLIMIT_MEMLOCK; INT64_MAX: no limit
    int64_t disk_free_bytes; // where offload_dir is, for this user; -1 without a directory
    int64_t disk_bytes;      // size of that file system; -1 without a directory
    int disk_node; // NUMA node of the drive below offload_dir; -1: unknown, or there is only one
};

/* 1 while hwloc reads the topology. hwloc 2.9 follows a null pointer when malloc fails there; the
 * signal handler reads this flag to report the cause. */
extern atomic_int machine_in_library;

/* Fills *info. offload_dir: folders (scratch.h), or NULL. ERR_USAGE: one does not exist; any other
 * failure leaves a field "unknown" (0 or -1). */
enum err machine_read(struct machine_info *info, const char *offload_dir);

/* Default budgets in bytes: free RAM less a tenth and 256 MiB for other processes, free disk less a
 * tenth. 0 where unknown. */
void machine_room(const struct machine_info *info, int64_t *ram, int64_t *disk);

/* Binds a range of RAM to a NUMA node, before the first touch. On failure it warns; the run is
 * slower, not wrong. */
void machine_memory_bind(void *base, int64_t n_bytes, int node);

/* Binds the calling process, which has one thread, to its part of the CPUs that it may use: whole
 * cores of NUMA node nodes[part], divided among the parts of that node. Node -1, or one without
 * such cores: the cores of all nodes, divided among all parts. Fewer cores than parts: all of them.
 * Does nothing where the topology is not known. */
void machine_share_cpus(const int *nodes, int n_parts, int part);

int64_t machine_peak_rss_bytes(void); // VmHWM; 0 without /proc

/* The part of machine_read() that reads memory. `root` as in cgroup_read(). */
void machine_memory_read(struct machine_info *info, const char *root);
/* NUMA node of the block device `major`:`minor`, -1 when unknown. `root` as in cgroup_read. */
int machine_device_node(const char *root, unsigned device_major, unsigned device_minor);
/* NUMA node of the card at this PCI address, "0000:C1:00.0"; -1 when unknown. */
int machine_pci_node(const char *root, const char *pci);

#endif
