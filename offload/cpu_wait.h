/* offload/cpu_wait.h - how long threads of this process waited for a core.
 *
 * Owns: reading the kernel's counters, the share of time lost to others. Refuses: conclusions
 * (engine/api/replan.c, probe_cache.c). Note: the kernel counts per thread, also in containers, the
 * time in which the thread was ready to run and another thread had the core; waits for a cgroup's
 * CPU quota count, too. Load average and /proc/stat include this process and, in a container, the
 * whole host. */
#ifndef OFFLOAD_CPU_WAIT_H
#define OFFLOAD_CPU_WAIT_H

#include "kernels/base/base.h"

#define CPU_WAIT_TASKS 256 // threads that are read, at most
/* Share of the threads' time. Rates measured while threads waited longer do not describe this
 * machine. The kernel's own work counts as waiting, too: an idle machine with 2 cores that reads
 * 2.5 GB/s waits 7 %. */
#define CPU_WAIT_STARVED 0.15

/* The threads of this process at one moment. */
struct cpu_wait {
    int n; // threads in task[]; 0: the kernel has no counters
    int64_t ns;
    struct {
        long id;
        double ran_s, waited_s;
    } task[CPU_WAIT_TASKS];
};

/* folder NULL: /proc/self/task. Tests have a folder of their own. */
void cpu_wait_read(struct cpu_wait *w, const char *folder);
/* Share, 0 .. 1, of `threads` x the time between the two moments in which compute threads waited
 * for a core that another process had; -1: unknown. Compute threads are the `threads` that ran
 * most. The run time of the process's other threads is subtracted: waiting for these is no loss. */
double cpu_wait_share(const struct cpu_wait *from, const struct cpu_wait *to, int threads);

#endif
