/* bench/peak.c - see bench.h and peak.h: the roof of compute, on all threads of the pool. */
#include "bench/peak.h"

#include <stdatomic.h>

#include "bench/bench.h"

#define LANES 4 // a plain 128-bit vector on any CPU

typedef float lanes_t __attribute__((vector_size(4 * LANES)));

/* The portable path multiplies and adds: without FMA in the baseline these are two instructions. */
int64_t peak_portable(enum compute compute, int64_t rounds)
{
    enum { CHAINS = 12 }; // of 16 registers
    (void)compute;
    lanes_t sum[CHAINS], x = {0.5f, 0.5f, 0.5f, 0.5f};
#pragma GCC unroll 16
    for (int i = 0; i < CHAINS; i++)
        sum[i] = x * (float)i; // the compiler would merge equal chains
    for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++)
            sum[i] = sum[i] * x + x;
#pragma GCC unroll 16
    for (int i = 1; i < CHAINS; i++)
        sum[0] += sum[i];
    volatile float sink = sum[0][0];
    (void)sink;
    return rounds * CHAINS * LANES * 2;
}

struct peak_run {
    const struct ops *ops;
    int64_t rounds;
    _Atomic int64_t flops;
};

static void peak_part(void *ctx, int thread, int n_threads)
{
    struct peak_run *p = ctx;
    (void)thread, (void)n_threads;
    int64_t flops = p->ops->isa == ISA_AMX       ? peak_amx(p->ops->compute, p->rounds)
                    : p->ops->isa == ISA_AVX512  ? peak_avx512(p->ops->compute, p->rounds)
                    : p->ops->isa == ISA_AVX512F ? peak_avx512(COMPUTE_F32, p->rounds)
                    : p->ops->isa == ISA_AVX2    ? peak_avx2(p->ops->compute, p->rounds)
                                                 : peak_portable(p->ops->compute, p->rounds);
    atomic_fetch_add(&p->flops, flops);
}

double bench_peak_flops(const struct ops *ops, double seconds)
{
    struct peak_run p = {.ops = ops, .rounds = 20000};
    double best = 0; // the best: interruptions only lower the rate
    int64_t start_ns = clock_ns(), before_ns = start_ns;
    pool_run(ops->pool, peak_part, &p);
    do {
        p.flops = 0;
        before_ns = clock_ns();
        pool_run(ops->pool, peak_part, &p);
        double rate = (double)p.flops / ((double)max_i64(clock_ns() - before_ns, 1) * 1e-9);
        best = rate > best ? rate : best;
    } while ((double)(clock_ns() - start_ns) < seconds * 1e9);
    return best;
}
