/* offload/cgroup.h - limits of control groups (v1, v2, all ancestors) on this process.
 *
 * Owns: parsing /proc/self/cgroup, /proc/self/mountinfo and the files that they name. Refuses:
 * MemAvailable and the number of CPUs, which in a container are the host's. */
#ifndef OFFLOAD_CGROUP_H
#define OFFLOAD_CGROUP_H

#include "kernels/base/base.h"

struct cgroup_limits {
    int64_t memory_free_bytes;  // INT64_MAX: no limit. Else the least, over this group and its
                                // ancestors, of limit - (usage - page cache); at least 0
    int64_t memory_limit_bytes; // of the group that sets memory_free_bytes; INT64_MAX: no limit
    char memory_group[200];     // that group's directory, cut at the front; "" without a limit
    int64_t memory_soft_bytes;  // lowest soft limit (v1: soft_limit_in_bytes, often a mere
                                // reservation; v2: memory.high); INT64_MAX: none
    double cpus;                // the least quota / period; 0: no limit
};

/* Reads the limits. `root` is prepended to every path: "" on a real system, a fixture's directory
 * in tests. Cannot fail: a missing or unreadable file sets no limit. */
void cgroup_read(struct cgroup_limits *limits, const char *root);

#endif
