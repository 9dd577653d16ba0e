/* tests/pool_test.c - the compute threads: each share is computed once, the caller sees what the
 * shares wrote, and an error names its cause. */
#include "tests/ops_help.h"

#include "kernels/base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

struct work {
    _Atomic int calls[64];
    _Atomic int n_wrong; // threads that were told nonsense: a thread may not fail a test by itself
    pthread_t caller;
    _Atomic int n_taken; // shares of other threads that the caller computed
    int n_threads;
    int64_t n;
    int32_t *items; // [n]
};

static void mark(void *ctx, int thread, int n_threads)
{
    struct work *w = ctx;
    int64_t first, last;
    if (thread < 0 || thread >= n_threads || n_threads != w->n_threads)
        atomic_fetch_add(&w->n_wrong, 1);
    atomic_fetch_add(&w->calls[thread], 1);
    if (thread < n_threads - 1 && pthread_equal(pthread_self(), w->caller))
        atomic_fetch_add(&w->n_taken, 1);
    pool_split(w->n, thread, n_threads, &first, &last);
    for (; first < last; first++)
        w->items[first]++; // plain: the split and the end of pool_run must be enough
}

static void splits_are_exact(void **state)
{
    (void)state;
    for (int n_threads = 1; n_threads <= 7; n_threads++)
        for (int64_t n = 0; n < 40; n++) {
            int64_t next = 0;
            for (int i = 0; i < n_threads; i++) {
                int64_t first, last;
                pool_split(n, i, n_threads, &first, &last);
                assert_true(first == next && last >= first);
                assert_true(last - first >= n / n_threads &&
                            last - first <= ceil_div(n, n_threads));
                next = last;
            }
            assert_true(next == n);
        }
}

static void every_share_runs_once(void **state)
{
    (void)state;
    int n_taken = 0;
    for (int n_threads = 1; n_threads <= 8; n_threads++) {
        struct pool *pool = pool_of(n_threads);
        struct work w = {
            .n_threads = n_threads, .n = 1000, .items = take(4000), .caller = pthread_self()};
        assert_int_equal(pool_threads(pool), n_threads);
        for (int round = 1; round <= 300; round++) {
            pool_run(pool, mark, &w);
            for (int i = 0; i < w.n; i++)
                assert_int_equal(w.items[i], round);
            if (round % 100 == 0) // long enough for the threads to fall asleep
                nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        }
        for (int i = 0; i < n_threads; i++)
            assert_int_equal(w.calls[i], 300);
        assert_int_equal(w.n_wrong, 0);
        n_taken += w.n_taken;
        pool_close(pool);
        free(w.items);
    }
    assert_true(n_taken > 0); // threads that sleep begin late
}

static void no_pool_is_one_thread(void **state)
{
    (void)state;
    struct work w = {.n_threads = 1, .n = 10, .items = take(40)};
    pool_run(NULL, mark, &w);
    assert_int_equal(w.calls[0], 1);
    assert_int_equal(w.items[9], 1);
    assert_int_equal(pool_threads(NULL), 1);
    pool_close(NULL);
    free(w.items);
}

static void threads_are_bound(void **state)
{
    (void)state;
    cpu_set_t before, now;
    sched_getaffinity(0, sizeof before, &before);
    int cpus[2] = {-1, -1};
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &before)) {
            cpus[1] = cpus[0] < 0 ? cpu : cpus[1];
            cpus[0] = cpu;
        }
    cpus[1] = cpus[1] < 0 ? cpus[0] : cpus[1];
    struct pool *pool;
    assert_int_equal(pool_open(&pool, 2, cpus), OK);
    sched_getaffinity(0, sizeof now, &now);
    assert_int_equal(CPU_COUNT(&now), 1);
    assert_true(CPU_ISSET(cpus[1], &now)); // the caller is the last thread
    struct work w = {.n_threads = 2, .n = 10, .items = take(40)};
    pool_run(pool, mark, &w);
    assert_int_equal(w.items[0] + w.items[9], 2);
    pool_close(pool);
    sched_getaffinity(0, sizeof now, &now);
    assert_true(CPU_EQUAL(&now, &before)); // and is set free again
    free(w.items);
}

static void a_missing_cpu_is_told(void **state)
{
    (void)state;
    int cpus[2] = {CPU_SETSIZE - 1, 0};
    struct pool *pool;
    assert_int_equal(pool_open(&pool, 2, cpus), ERR_INTERNAL);
    assert_null(pool);
    assert_non_null(strstr(err_text(), "1023"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_are_exact),      cmocka_unit_test(every_share_runs_once),
        cmocka_unit_test(no_pool_is_one_thread), cmocka_unit_test(threads_are_bound),
        cmocka_unit_test(a_missing_cpu_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
