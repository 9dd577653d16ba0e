/* kernels/thread.c - see thread.h.
 *
 * A newcomer would miss: pthread's own default is the limit of the process, so that `ulimit -s 64`
 * would give every thread 64 KiB, less than a path or two. */
#include "kernels/thread.h"

#include <string.h>

int thread_start(pthread_t *thread, void *(*fn)(void *), void *arg)
{
    pthread_attr_t attr;
    int code = pthread_attr_init(&attr);
    if (code)
        return code;
    code = pthread_attr_setstacksize(&attr, THREAD_STACK_BYTES);
    if (!code)
        code = pthread_create(thread, &attr, fn, arg);
    pthread_attr_destroy(&attr);
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
