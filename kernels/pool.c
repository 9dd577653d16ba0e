/* kernels/pool.c - see pool.h.
 *
 * Owns: the worker threads and the hand-over of one task at a time. Refuses: queues, nesting.
 * A newcomer would miss: a waiting thread spins for some ten microseconds before it sleeps, because
 * ops follow each other closely within a step; `round` and `n_running` are read without the lock
 * there, everything else belongs to the lock. */
#include "kernels/pool.h"
#include "kernels/arena.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#define SPINS_MAX 400 // x pause: about 10 us

struct worker {
    struct pool *pool; // borrowed
    int thread;
};

struct pool {
    struct arena arena; // owned: the pool itself lies in it
    int n_threads;
    int n_started;
    pthread_mutex_t lock;
    pthread_cond_t work; // a new round, or stop
    pthread_cond_t done; // n_running fell to 0
    _Atomic uint64_t round;
    _Atomic int n_running; // workers that have not finished this round
    int stop;
    pool_fn fn;
    void *ctx;
    int caller_bound;
    cpu_set_t caller_cpus;  // the caller's own set, put back by pool_close
    pthread_t *threads;     // [n_threads - 1]
    struct worker *workers; // [n_threads - 1]
};

static void spin_pause(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

/* Returns the number of the next round, or 0 to stop. */
static uint64_t next_round(struct pool *p, uint64_t seen)
{
    for (int i = 0; i < SPINS_MAX && atomic_load(&p->round) == seen; i++)
        spin_pause();
    pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->round) == seen && !p->stop)
        pthread_cond_wait(&p->work, &p->lock);
    uint64_t round = p->stop ? 0 : atomic_load(&p->round);
    pthread_mutex_unlock(&p->lock);
    return round;
}

static void *worker_main(void *arg)
{
    const struct worker *w = arg;
    struct pool *p = w->pool;
    uint64_t round = 0;
    while ((round = next_round(p, round)) != 0) {
        p->fn(p->ctx, w->thread, p->n_threads);
        if (atomic_fetch_sub(&p->n_running, 1) == 1) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->lock);
        }
    }
    return NULL;
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
        int code = pthread_create(&p->threads[i], NULL, worker_main, &p->workers[i]);
        if (code)
            return fail(ERR_INTERNAL,
                        "threads: started %d of %d compute threads: %s (see ulimit -u and the "
                        "cgroup's pids.max, or lower --threads)",
                        i, p->n_threads - 1, strerror(code));
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
    pthread_mutex_lock(&pool->lock);
    CHECK(atomic_load(&pool->n_running) == 0); // pool_run from inside a task
    pool->fn = fn;
    pool->ctx = ctx;
    atomic_store(&pool->n_running, pool->n_threads - 1);
    atomic_fetch_add(&pool->round, 1);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);

    fn(ctx, pool->n_threads - 1, pool->n_threads);

    for (int i = 0; i < SPINS_MAX && atomic_load(&pool->n_running); i++)
        spin_pause();
    if (atomic_load(&pool->n_running) == 0)
        return;
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->n_running))
        pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

void pool_close(struct pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = 1;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->n_started; i++)
        pthread_join(pool->threads[i], NULL);
    if (pool->caller_bound)
        pthread_setaffinity_np(pthread_self(), sizeof pool->caller_cpus, &pool->caller_cpus);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    struct arena a = pool->arena; // its memory holds the pool
    arena_close(&a);
}
