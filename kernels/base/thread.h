/* kernels/base/thread.h - starts threads whose stack size does not depend on `ulimit -s`.
 *
 * Owns: the stack size and the time slices of threads. Refuses: joining, binding and the rest of
 * pthread. */
#ifndef KERNELS_BASE_THREAD_H
#define KERNELS_BASE_THREAD_H

#include <pthread.h>

#include "kernels/base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define THREAD_STACK_BYTES (8 << 20) // address space; only touched pages use memory

/* Runs fn(arg) on a new joinable thread. Returns 0 or an errno: EAGAIN at a limit on threads
 * (ulimit -u, pids.max of the cgroup). */
int thread_start(pthread_t *thread, void *(*fn)(void *), void *arg);
/* The same for a thread that is required. ERR_FIT: "WHO: cannot start its WHAT: ...". */
enum err thread_need(pthread_t *thread, void *(*fn)(void *), void *arg, const char *who,
                     const char *what);

/* Gives the calling thread a time slice of 0.1 ms, so that it runs soon after it wakes even if all
 * cores are busy: for threads that work in short bursts while others wait. Linux 6.12 and later,
 * without privilege; elsewhere it does nothing. */
void thread_short_slice(void);

#ifdef __cplusplus
}
#endif

#endif
