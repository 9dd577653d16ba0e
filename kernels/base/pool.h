/* kernels/base/pool.h - the compute threads: one parallel-for with a static split.
 *
 * Owns: n_threads - 1 threads; the caller is the last. Refuses: a split that depends on time. Which
 * thread computes a share never shows in a result, because everything is indexed by the share. */
#ifndef KERNELS_BASE_POOL_H
#define KERNELS_BASE_POOL_H

#include "kernels/base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pool; // opaque: hides pthread

/* Called once for each share, `thread` in [0, n_threads): by thread `thread`, or by the caller if
 * that thread has not begun when the caller's own share is done. Two shares may run on one thread,
 * one after the other, so a share must not wait for another. */
typedef void (*pool_fn)(void *ctx, int thread, int n_threads);

/* Starts the threads. cpus[n_threads] binds thread i to CPU cpus[i]; NULL: no binding. ERR_FIT: a
 * thread cannot be started (the message names the limit). */
enum err pool_open(struct pool **pool, int n_threads, const int *cpus);
int pool_threads(const struct pool *pool); // 1 for NULL
/* Runs all shares and returns when they are done. NULL pool: calls fn(ctx, 0, 1). */
void pool_run(struct pool *pool, pool_fn fn, void *ctx);
void pool_close(struct pool *pool); // accepts NULL

/* Thread `thread`'s contiguous share [*first, *last) of n items; shares differ by at most 1. */
static inline void pool_split(int64_t n, int thread, int n_threads, int64_t *first, int64_t *last)
{
    *first = n * thread / n_threads;
    *last = n * (thread + 1) / n_threads;
}

#ifdef __cplusplus
}
#endif

#endif
