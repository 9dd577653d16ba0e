/* bench/peak.h - register-resident multiply-add loops, one per instruction set; each returns the
 * FLOPs that it did, on one thread, in about `rounds` turns. */
#ifndef BENCH_PEAK_H
#define BENCH_PEAK_H

#include "kernels/ops.h"

#define PEAK_CHAINS 16 // independent sums: more than latency x units of any CPU there is

int64_t peak_amx(enum compute compute, int64_t rounds);
int64_t peak_avx512(enum compute compute, int64_t rounds);
int64_t peak_avx2(enum compute compute, int64_t rounds);
int64_t peak_portable(enum compute compute, int64_t rounds);

#endif
