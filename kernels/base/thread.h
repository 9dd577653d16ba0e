/* kernels/base/thread.h - starting a thread whose stack does not depend on `ulimit -s`.
 *
 * Owns: the size of that stack, and the time slices of threads. Refuses: joining, binding and
 * everything else of pthread. */
#ifndef KERNELS_BASE_THREAD_H
#define KERNELS_BASE_THREAD_H

#include <pthread.h>

#include "kernels/base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define THREAD_STACK_BYTES (8 << 20) // address space; only what is touched is taken

/* Runs fn(arg) on a new thread, to be joined. 0, or an errno: EAGAIN where no more threads may be
 * had (ulimit -u, pids.max of the cgroup). */
int thread_start(pthread_t *thread, void *(*fn)(void *), void *arg);
/* The same of one that nothing goes on without: "WHO: cannot start its WHAT: ...". ERR_FIT. */
enum err thread_need(pthread_t *thread, void *(*fn)(void *), void *arg, const char *who,
                     const char *what);

/* Of the calling thread, which works in bursts that others wait for: where all cores are busy it
 * runs soon after it wakes (a time slice of 0.1 ms; Linux 6.12 and later, no privilege needed).
 * Where that cannot be had nothing changes. */
void thread_short_slice(void);

#ifdef __cplusplus
}
#endif

#endif
