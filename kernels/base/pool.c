/* kernels/base/pool.c - see pool.h.
 *
 * Owns: the worker threads and the hand-over of one task at a time. Refuses: queues, nesting.
 * Ops follow each other closely within a step, so a waiting thread spins for some tens of
 * microseconds before it sleeps; while all threads spin, the mutex is unused. A thread that goes to
 * sleep first announces it (n_sleeping, caller_sleeps), then checks once more. A thread that wakes
 * others first changes the state, then checks for sleepers. All these atomics are sequentially
 * consistent, so at least one of the two sees the other.
 * After a wait for the disk the workers sleep, and to wake one takes longer than many ops: the
 * caller computes the shares that no worker has begun when its own is done. */
#include "kernels/base/pool.h"
#include "kernels/base/arena.h"
#include "kernels/base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#define SPIN_NS     50000 // a worker's wait for the next op
#define FINISH_NS   20000 // the caller's wait for the workers; longer means a missing CPU
#define SPIN_CHECKS 64    // polls between two reads of the clock
#define LINE        64    // cache line size: keeps data of different cores apart

struct worker {
    struct pool *pool; // borrowed
    int thread;
    _Alignas(LINE) _Atomic uint64_t taken; // the newest round whose share `thread` was taken
};

struct pool {
    struct arena arena; // owned; holds the pool itself
    int n_threads;
    int n_started;
    int may_spin; // 0: more threads than CPUs, a spinning thread would hold up a working one
    pool_fn fn;   // written between rounds, when all shares are done
    void *ctx;
    _Atomic int stop;
    _Alignas(LINE) _Atomic uint64_t round; // a new number starts the workers
    _Alignas(LINE) _Atomic int n_left;     // shares that are not done, the caller's own excepted
    _Alignas(LINE) _Atomic int n_sleeping; // workers that may be waiting for `work`
    _Atomic int caller_sleeps;             // waiting for `done`
    pthread_mutex_t lock;                  // only to sleep and wake
    pthread_cond_t work;                   // a new round
    pthread_cond_t done;                   // n_left fell to 0
    int caller_bound;
    cpu_set_t caller_cpus;  // affinity that pool_close() restores
    pthread_t *threads;     // [n_threads - 1]
    struct worker *workers; // [n_threads - 1]
};

static void spin_pause(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

/* No round newer than `seen` has started. */
static int idle(struct pool *p, uint64_t seen)
{
    return atomic_load(&p->round) == seen;
}

static int running(struct pool *p, uint64_t unused)
{
    (void)unused;
    return atomic_load(&p->n_left) != 0;
}

/* Polls until `busy` is false, for at most `ns`. */
static void spin(struct pool *p, int (*busy)(struct pool *p, uint64_t seen), uint64_t seen,
                 int64_t ns)
{
    if (!p->may_spin || !busy(p, seen))
        return;
    const int64_t end_ns = clock_ns() + ns;
    do {
        for (int i = 0; i < SPIN_CHECKS; i++) {
            if (!busy(p, seen))
                return;
            spin_pause();
        }
    } while (clock_ns() < end_ns);
}

/* Waits for a round newer than `seen` and returns its number. */
static uint64_t next_round(struct pool *p, uint64_t seen)
{
    spin(p, idle, seen, SPIN_NS);
    if (idle(p, seen)) {
        pthread_mutex_lock(&p->lock);
        atomic_fetch_add(&p->n_sleeping, 1);
        while (idle(p, seen))
            pthread_cond_wait(&p->work, &p->lock);
        atomic_fetch_sub(&p->n_sleeping, 1);
        pthread_mutex_unlock(&p->lock);
    }
    return atomic_load(&p->round);
}

/* 1: the share of w in this round is the calling thread's. 0: it was taken before; the round may
 * have ended. */
static int take(struct worker *w, uint64_t round)
{
    uint64_t before = round - 1; // every share of every round is taken once
    return atomic_compare_exchange_strong(&w->taken, &before, round);
}

/* Computes a share that was taken: until then its round cannot end. */
static void run_share(const struct worker *w)
{
    struct pool *p = w->pool;
    p->fn(p->ctx, w->thread, p->n_threads);
    if (atomic_fetch_sub(&p->n_left, 1) == 1 && atomic_load(&p->caller_sleeps)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_signal(&p->done);
        pthread_mutex_unlock(&p->lock);
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    for (uint64_t round = next_round(p, 0); !atomic_load(&p->stop); round = next_round(p, round))
        if (take(w, round))
            run_share(w);
    return NULL;
}

static void start_round(struct pool *p)
{
    atomic_fetch_add(&p->round, 1);
    if (atomic_load(&p->n_sleeping)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->work);
        pthread_mutex_unlock(&p->lock);
    }
}

static enum err bind_failed(int cpu, int code)
{
    return fail(ERR_INTERNAL, "threads: cannot bind a compute thread to CPU %d: %s", cpu,
                strerror(code));
}

static enum err start_workers(struct pool *p, const int *cpus)
{
    for (int i = 0; i < p->n_threads - 1; i++) {
        p->workers[i] = (struct worker){.pool = p, .thread = i};
        int code = thread_start(&p->threads[i], worker_main, &p->workers[i]);
        if (code)
            return fail(ERR_FIT,
                        "threads: started %d of %d compute threads: %s (raise ulimit -u or the "
                        "cgroup's pids.max, or --threads %d)",
                        i, p->n_threads - 1, strerror(code), i + 1);
        p->n_started++;
        if (!cpus)
            continue;
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpus[i], &set);
        code = pthread_setaffinity_np(p->threads[i], sizeof set, &set);
        if (code)
            return bind_failed(cpus[i], code);
    }
    return OK;
}

static enum err bind_caller(struct pool *p, int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    int code = pthread_getaffinity_np(pthread_self(), sizeof p->caller_cpus, &p->caller_cpus);
    if (!code)
        code = pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    if (code)
        return bind_failed(cpu, code);
    p->caller_bound = 1;
    return OK;
}

static struct pool *lay_out(struct arena *a, int n_threads)
{
    struct pool *p = ARENA_ARRAY(a, struct pool, 1);
    pthread_t *threads = ARENA_ARRAY(a, pthread_t, n_threads);
    struct worker *workers = ARENA_ARRAY(a, struct worker, n_threads);
    if (p) {
        p->threads = threads;
        p->workers = workers;
    }
    return p;
}

enum err pool_open(struct pool **pool, int n_threads, const int *cpus)
{
    *pool = NULL;
    CHECK(n_threads >= 1);
    for (int i = 0; cpus && i < n_threads; i++)
        CHECK(cpus[i] >= 0 && cpus[i] < CPU_SETSIZE);
    struct arena a;
    arena_init(&a);
    lay_out(&a, n_threads);
    TRY(arena_open(&a, a.used));
    struct pool *p = lay_out(&a, n_threads);
    p->arena = a;
    p->n_threads = n_threads;
    cpu_set_t set;
    p->may_spin = sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) >= n_threads;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    enum err e = start_workers(p, cpus);
    if (e == OK && cpus)
        e = bind_caller(p, cpus[n_threads - 1]);
    if (e != OK) {
        pool_close(p);
        return e;
    }
    *pool = p;
    return OK;
}

int pool_threads(const struct pool *pool)
{
    return pool ? pool->n_threads : 1;
}

void pool_run(struct pool *pool, pool_fn fn, void *ctx)
{
    if (!pool || pool->n_threads == 1) {
        fn(ctx, 0, 1);
        return;
    }
    CHECK(!running(pool, 0)); // a task must not call pool_run
    const int last = pool->n_threads - 1;
    pool->fn = fn;
    pool->ctx = ctx;
    atomic_store(&pool->n_left, last);
    start_round(pool);

    fn(ctx, last, pool->n_threads);

    const uint64_t round = atomic_load(&pool->round);
    for (int i = 0; i < last; i++)
        if (take(&pool->workers[i], round))
            run_share(&pool->workers[i]);
    spin(pool, running, 0, FINISH_NS);
    if (!running(pool, 0))
        return;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->caller_sleeps, 1);
    while (running(pool, 0))
        pthread_cond_wait(&pool->done, &pool->lock);
    atomic_store(&pool->caller_sleeps, 0);
    pthread_mutex_unlock(&pool->lock);
}

void pool_close(struct pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->stop, 1);
    start_round(pool);
    for (int i = 0; i < pool->n_started; i++)
        pthread_join(pool->threads[i], NULL);
    if (pool->caller_bound)
        pthread_setaffinity_np(pthread_self(), sizeof pool->caller_cpus, &pool->caller_cpus);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    struct arena a = pool->arena; // copied: closing the arena frees the pool
    arena_close(&a);
}
