/* kernels/cpu/gather.c - gather, compact and cast: ops that move numbers.
 *
 * Owns: the loops. There are no sums, so one source serves all sets. Rows of compact overlap, so
 * threads split columns, not rows. */
#include "kernels/cpu/cpu.h"

#include <string.h>

int64_t gather_scratch_bytes(const struct ops *ops, int k)
{
    return round_up((int64_t)k * 4, 64) * pool_threads(ops->pool);
}

static void gather_part(void *ctx, int thread, int n_threads)
{
    const struct gather_args *a = ctx;
    float *row = (float *)a->scratch + round_up(a->k, 16) * thread;
    int64_t first, last;
    pool_split(a->n, thread, n_threads, &first, &last);
    for (int64_t i = first; i < last; i++) {
        const uint8_t *from = (const uint8_t *)a->rows + a->offsets[i];
        float *x = a->x + i * a->x_stride;
        dtype_decode_row(a->dtype, from, a->k, a->add ? row : x);
        for (int d = 0; d < a->k && a->add; d++)
            x[d] += row[d];
    }
}

void cpu_gather(const struct ops *ops, const struct gather_args *args)
{
    pool_run(ops->pool, gather_part, (void *)(uintptr_t)args);
}

static void compact_part(void *ctx, int thread, int n_threads)
{
    const struct compact_args *a = ctx;
    int64_t first, last; // columns, in cache lines
    pool_split(ceil_div(a->dim, 16), thread, n_threads, &first, &last);
    first *= 16;
    last = min_i64(last * 16, a->dim);
    for (int64_t i = 0; i < a->n && first < last; i++)
        if (a->from[i] != i)
            memcpy(a->x + i * a->dim + first, a->x + (int64_t)a->from[i] * a->dim + first,
                   (size_t)(last - first) * sizeof *a->x);
}

void cpu_compact(const struct ops *ops, const struct compact_args *args)
{
    for (int i = 0; i < args->n; i++)
        CHECK(args->from[i] >= i);
    pool_run(ops->pool, compact_part, (void *)(uintptr_t)args);
}

static void cast_part(void *ctx, int thread, int n_threads)
{
    const struct cast_args *a = ctx;
    int64_t first, last; // in cache lines of bf16
    pool_split(ceil_div(a->n, 32), thread, n_threads, &first, &last);
    last = min_i64(last * 32, a->n);
    if (a->widens) {
        const uint16_t *from = a->from;
        float *to = a->to;
        for (int64_t i = first * 32; i < last; i++)
            to[i] = bf16_to_f32(from[i]);
    } else {
        const float *from = a->from;
        uint16_t *to = a->to;
        for (int64_t i = first * 32; i < last; i++)
            to[i] = f32_to_bf16(from[i]);
    }
}

void cpu_cast(const struct ops *ops, const struct cast_args *args)
{
    pool_run(ops->pool, cast_part, (void *)(uintptr_t)args);
}
