/* bench/peak.h - multiply-add loops on registers, one per instruction set; each runs on one thread
 * in about `rounds` turns and returns its FLOPs. */
#ifndef BENCH_PEAK_H
#define BENCH_PEAK_H

#include "kernels/ops.h"

#define PEAK_CHAINS 16 // independent sums: more than latency x units of any CPU

int64_t peak_amx(enum compute compute, int64_t rounds);
int64_t peak_avx512(enum compute compute, int64_t rounds);
int64_t peak_avx2(enum compute compute, int64_t rounds);
int64_t peak_portable(enum compute compute, int64_t rounds);

#endif
