/* kernels/base/thread.c - see thread.h.
 *
 * By default pthread takes the stack size from `ulimit -s`: 64 KiB is less than two path
 * buffers. */
#include "kernels/base/thread.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLICE_NS 100000 // the minimum that Linux accepts

/* struct sched_attr of sched(7), version 0. Some C libraries lack it or have another size. */
struct scheduling {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns; // runtime_ns is the slice under SCHED_OTHER
};

struct start {
    void *(*fn)(void *);
    void *arg;
    enum log_level level;
};

static void *start_main(void *of)
{
    const struct start s = *(struct start *)of;
    free(of);
    log_level_max = s.level;
    return s.fn(s.arg);
}

int thread_start(pthread_t *thread, void *(*fn)(void *), void *arg)
{
    pthread_attr_t attr;
    struct start *s = malloc(sizeof *s);
    if (!s)
        return ENOMEM;
    *s = (struct start){fn, arg, log_level_max};
    int code = pthread_attr_init(&attr);
    if (!code) {
        code = pthread_attr_setstacksize(&attr, THREAD_STACK_BYTES);
        if (!code)
            code = pthread_create(thread, &attr, start_main, s);
        pthread_attr_destroy(&attr);
    }
    if (code)
        free(s);
    return code;
}

enum err thread_need(pthread_t *thread, void *(*fn)(void *), void *arg, const char *who,
                     const char *what)
{
    int code = thread_start(thread, fn, arg);
    if (code == 0)
        return OK;
    return fail(ERR_FIT, "%s: cannot start its %s: %s (raise ulimit -u or the cgroup's pids.max)",
                who, what, strerror(code));
}

void thread_short_slice(void)
{
    struct scheduling s = {.size = sizeof s};
    if (syscall(SYS_sched_getattr, 0, &s, sizeof s, 0) != 0 || s.policy != SCHED_OTHER)
        return;
    s.runtime_ns = SLICE_NS;
    (void)syscall(SYS_sched_setattr, 0, &s, 0);
}
