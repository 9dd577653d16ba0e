/* offload/ring_pool.c - the back end of plain threads: pread and pwrite, where io_uring is refused.
 *
 * Owns: the threads, the queues of waiting and of completed ops.
 * Refuses: order; any free thread starts the oldest op.
 * Note: a thread may hang in a read for ever (a dead NFS server). It works on its own copy of the
 * attempt, and the pool outlives ring_close until its last thread returns. */
#include "offload/ring_backend.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STACK_BYTES 262144 // a pread needs a page; sanitizers need the rest

struct pool_list { // first in, first out
    struct ring_op *head, **tail;
};

struct io_pool {
    struct ring_backend backend;
    pthread_mutex_t lock;
    pthread_cond_t todo_cond, done_cond;
    struct pool_list todo, done;
    int n_threads; // alive
    int n_busy;    // in a system call
    int woken;
    int closing;  // ops may be freed: do not touch them
    int orphaned; // ring_close has returned: the last thread frees the pool
};

static void list_init(struct pool_list *l)
{
    l->head = NULL;
    l->tail = &l->head;
}

static void list_push(struct pool_list *l, struct ring_op *op)
{
    op->next = NULL;
    *l->tail = op;
    l->tail = &op->next;
}

static struct ring_op *list_pop(struct pool_list *l)
{
    struct ring_op *op = l->head;
    if (!op)
        return NULL;
    l->head = op->next;
    if (!l->head)
        l->tail = &l->head;
    return op;
}

static void pool_free(struct io_pool *p)
{
    pthread_cond_destroy(&p->todo_cond);
    pthread_cond_destroy(&p->done_cond);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static int64_t attempt_run(const struct ring_op *op)
{
    size_t n = (size_t)op->n_bytes;
    ssize_t result = op->write ? pwrite(op->fd, op->buf, n, (off_t)op->offset)
                               : pread(op->fd, op->buf, n, (off_t)op->offset);
    return result < 0 ? -errno : result;
}

static void *thread_main(void *arg)
{
    struct io_pool *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->closing) {
        struct ring_op *op = list_pop(&p->todo);
        if (!op) {
            pthread_cond_wait(&p->todo_cond, &p->lock);
            continue;
        }
        struct ring_op copy = *op;
        p->n_busy++;
        pthread_mutex_unlock(&p->lock);
        int64_t result = attempt_run(&copy);
        pthread_mutex_lock(&p->lock);
        p->n_busy--;
        if (p->closing)
            break;
        op->result = result;
        list_push(&p->done, op);
        pthread_cond_signal(&p->done_cond);
    }
    int last = --p->n_threads == 0 && p->orphaned;
    pthread_cond_signal(&p->done_cond);
    pthread_mutex_unlock(&p->lock);
    if (last)
        pool_free(p);
    return NULL;
}

static void pool_start(struct ring_backend *b, struct ring_op *op)
{
    struct io_pool *p = (struct io_pool *)b;
    pthread_mutex_lock(&p->lock);
    list_push(&p->todo, op);
    pthread_cond_signal(&p->todo_cond);
    pthread_mutex_unlock(&p->lock);
}

static int pool_reap(struct ring_backend *b, struct ring_op **done, int max, int64_t wait_ns)
{
    struct io_pool *p = (struct io_pool *)b;
    int64_t until_ns = clock_ns() + wait_ns;
    struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    int n = 0, late = wait_ns == 0;
    pthread_mutex_lock(&p->lock);
    while (!p->done.head && !p->woken && !late)
        late = pthread_cond_timedwait(&p->done_cond, &p->lock, &until) == ETIMEDOUT;
    p->woken = 0;
    while (n < max && p->done.head)
        done[n++] = list_pop(&p->done);
    pthread_mutex_unlock(&p->lock);
    return n;
}

static void pool_wake(struct ring_backend *b)
{
    struct io_pool *p = (struct io_pool *)b;
    pthread_mutex_lock(&p->lock);
    p->woken = 1;
    pthread_cond_signal(&p->done_cond);
    pthread_mutex_unlock(&p->lock);
}

static void pool_file_set(struct ring_backend *b, int file_slot, int fd)
{
    (void)b, (void)file_slot, (void)fd; // attempts carry their descriptor
}

/* Waits for idle threads only: a thread in a system call has hung (see ring_close). */
static void pool_close(struct ring_backend *b)
{
    struct io_pool *p = (struct io_pool *)b;
    pthread_mutex_lock(&p->lock);
    p->closing = 1;
    pthread_cond_broadcast(&p->todo_cond);
    while (p->n_threads > p->n_busy)
        pthread_cond_wait(&p->done_cond, &p->lock);
    p->orphaned = p->n_threads > 0;
    int orphaned = p->orphaned;
    pthread_mutex_unlock(&p->lock);
    if (!orphaned)
        pool_free(p);
}

static const struct ring_backend_calls POOL_CALLS = {
    .name = "threads",
    .start = pool_start,
    .reap = pool_reap,
    .wake = pool_wake,
    .file_set = pool_file_set,
    .close = pool_close,
};

/* The pool blocks all signals: the main thread handles them. */
static int threads_start(struct io_pool *p, int n_threads)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int e = 0;
    pthread_mutex_lock(&p->lock);
    while (p->n_threads < n_threads && e == 0) {
        pthread_t thread;
        e = pthread_create(&thread, &attr, thread_main, p);
        p->n_threads += e == 0;
    }
    pthread_mutex_unlock(&p->lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return e;
}

enum err ring_pool_open(struct ring_backend **b, int n_threads)
{
    struct io_pool *p = calloc(1, sizeof *p);
    if (!p)
        return fail(ERR_FIT, "io: no memory");
    p->backend.calls = &POOL_CALLS;
    list_init(&p->todo);
    list_init(&p->done);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->todo_cond, NULL);
    pthread_condattr_t monotonic; // the wall clock may jump
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&p->done_cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int e = threads_start(p, n_threads);
    if (p->n_threads == 0) {
        pool_free(p);
        return fail(ERR_FIT, "io: no thread can be started: %s (raise ulimit -u)", strerror(e));
    }
    if (e != 0)
        log_line(LOG_WARN, "io: only %d of %d threads: %s (raise ulimit -u)", p->n_threads,
                 n_threads, strerror(e));
    *b = &p->backend;
    return OK;
}
