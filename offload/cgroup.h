/* offload/cgroup.h - what the control groups (v1, v2, and every ancestor) leave this process.
 *
 * Owns: reading /proc/self/cgroup, /proc/self/mountinfo and the files they lead to. Refuses:
 * trusting MemAvailable or the number of CPUs, which in a container are the host's. */
#ifndef OFFLOAD_CGROUP_H
#define OFFLOAD_CGROUP_H

#include "kernels/base/base.h"

struct cgroup_limits {
    int64_t memory_free_bytes;  // INT64_MAX: no limit. Else the least, over this group and its
                                // ancestors, of limit - (usage - page cache); never negative
    int64_t memory_limit_bytes; // of the group that sets memory_free_bytes; INT64_MAX: no limit
    char memory_group[200];     // that group's directory, cut at the front; "" without a limit
    int64_t memory_soft_bytes;  // least limit that is no wall (v1: soft_limit_in_bytes, v2:
                                // memory.high); INT64_MAX: none. v1's may be a mere reservation
    double cpus;                // the least quota over period; 0: no limit
};

/* `root` goes before every path that is read: "" on a real system, a fixture's directory in tests.
 * Cannot fail: what is missing or unreadable limits nothing. */
void cgroup_read(struct cgroup_limits *limits, const char *root);

#endif
