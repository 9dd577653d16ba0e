/* kernels/cuda/forced.h - how many rows a launch of attend_forced handles, and their scratch.
 *
 * Owns: the sizes of scratch, shared by the kernels (attend.cuh) and the model of GPUs (bench/gpu).
 * Plain C, without CUDA's headers. */
#ifndef KERNELS_CUDA_FORCED_H
#define KERNELS_CUDA_FORCED_H

#include "kernels/ops.h"

#define SPLIT 256 // slots per block: rule b of kernels/ops.h

/* Limit of scratch, unless one row alone needs more. The next launch reads the scratch from L2, if
 * L2 is as large. 24 rows of 4,096 slots of OPT-6.7B under full need 8 MiB. */
#define FORCED_SCRATCH_MOST (24 << 20)

/* The first victim among the page slots of a split. */
struct victim {
    uint64_t key; // (rank, position); all ones: none
    int slot, n_live;
    float score;
};

/* Arrays of scratch, each over units: a unit is a (span, KV head, split). */
enum forced_array {
    FORCED_MAX,
    FORCED_SUM,
    FORCED_WEIGHT,
    FORCED_OUT,
    FORCED_EXPS,
    FORCED_INVERSE,
    FORCED_OWN_WEIGHT,
    FORCED_OWN_SCORE,
    FORCED_OWN_TRAIT,
    FORCED_LEAVING,
    FORCED_LEAVING_TRAIT,
    FORCED_VICTIMS,
    N_FORCED_ARRAYS
};

/* Bytes per unit of an array. group: query heads per KV head; scores: decode changes scores. */
static inline int64_t forced_unit_bytes(int array, int group, int head_dim, int scores)
{
    switch (array) {
    case FORCED_OUT:
        return (int64_t)group * head_dim * 4;
    case FORCED_EXPS:
        return scores ? group * SPLIT * 4 : 0;
    case FORCED_OWN_SCORE:
    case FORCED_OWN_TRAIT:
    case FORCED_LEAVING:
    case FORCED_LEAVING_TRAIT:
        return 4;
    case FORCED_VICTIMS:
        return (int64_t)sizeof(struct victim);
    default:
        return group * 4;
    }
}

/* Most splits of a row: those of slots_max page slots, plus its ring. */
static inline int forced_splits(int slots_max, int ring)
{
    return (int)max_i64(1, ceil_div(slots_max, SPLIT) + ring);
}

/* Units in scratch for up to n_spans rows of span_units each: those of all rows, or as many as
 * FORCED_SCRATCH_MOST holds, at least one row's. Never decreases with more or longer rows. */
static inline int64_t forced_units(int n_spans, int64_t span_units, int group, int head_dim,
                                   int scores)
{
    int64_t unit = 0, most = FORCED_SCRATCH_MOST - N_FORCED_ARRAYS * 64; // 64: alignment
    for (int i = 0; i < N_FORCED_ARRAYS; i++)
        unit += forced_unit_bytes(i, group, head_dim, scores);
    return max_i64(span_units, min_i64(n_spans * span_units, most / unit));
}

#endif
