/* offload/cpu_wait.h - whether the threads of this process got the cores that they wanted.
 *
 * Owns: the reading of the kernel's count, the share of a span that others took. Refuses: to draw a
 * conclusion (engine/api/replan.c, probe_cache.c). Note: the kernel counts for each thread the
 * time that it was ready to run and another thread had the core, in containers as well, and a
 * cgroup's limit of CPU counts as such a wait. Load and /proc/stat count other things: they include
 * this process, and in a container all of the host. */
#ifndef OFFLOAD_CPU_WAIT_H
#define OFFLOAD_CPU_WAIT_H

#include "kernels/base/base.h"

#define CPU_WAIT_TASKS 256 // threads that are looked at
/* Of the threads' time: times that were measured while they waited so long say nothing about this
 * machine. The kernel's own work counts as waiting, too: on an idle machine with 2 cores a run that
 * reads 2.5 GB/s was seen to wait 7 %. */
#define CPU_WAIT_STARVED 0.15

/* Of the threads of this process, at one moment. */
struct cpu_wait {
    int n; // 0: the kernel does not say
    int64_t ns;
    struct {
        long id;
        double ran_s, waited_s;
    } task[CPU_WAIT_TASKS];
};

/* NULL: /proc/self/task. A test has a folder of its own. */
void cpu_wait_read(struct cpu_wait *w, const char *folder);
/* Share, 0 .. 1, of `threads` x the time between the two moments in which compute threads waited
 * for a core that others had; -1: not known. Compute threads are the `threads` that ran most. The
 * other threads of the process run in their place now and then: what those ran is no loss. */
double cpu_wait_share(const struct cpu_wait *from, const struct cpu_wait *to, int threads);

#endif
