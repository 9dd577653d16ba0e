/* kernels/cuda/experts.cu - route and expert_sum: which experts tokens go to, and what comes back.
 *
 * Owns: the sorting of pairs. Refuses: matmuls (matmul.cuh: each expert has blocks of
 * its own there).
 * A tile has 2,048 tokens at most: a thread chooses for a token, a thread of one block collects for
 * an expert. Both read what caches hold; a tile's matmuls take a hundred times as long. */
#include "kernels/cuda/simt.cuh"

#define inline inline __host__ __device__
#include "kernels/route.h"
#undef inline

#define TOKEN_THREADS  32
#define EXPERT_THREADS 256
#define SUM_THREADS    256

static __global__ void __launch_bounds__(TOKEN_THREADS) route_choose(struct route_args a)
{
    const int64_t token = (int64_t)blockIdx.x * TOKEN_THREADS + threadIdx.x;
    if (token < a.m)
        route_token(&a, token);
}

/* Pairs of an expert, in order; a thread has experts threadIdx.x, + EXPERT_THREADS ... */
static __global__ void __launch_bounds__(EXPERT_THREADS) route_count(struct route_args a)
{
    const struct route r = a.to;
    const int n_pairs = a.m * r.n_used;
    for (int e = (int)threadIdx.x; e < r.n_experts; e += EXPERT_THREADS) {
        int n = 0;
        for (int i = 0; i < n_pairs; i++)
            n += r.places[i] == e;
        r.first[e + 1] = n;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        r.first[0] = 0;
        for (int e = 0; e < r.n_experts; e++)
            r.first[e + 1] += r.first[e];
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < r.n_experts; e += EXPERT_THREADS)
        for (int i = 0, at = r.first[e]; i < n_pairs; i++)
            if (r.places[i] == e)
                r.pairs[at++] = i;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n_pairs; i += EXPERT_THREADS)
        r.places[r.pairs[i]] = i;
}

void cuda_route(cudaStream_t stream, const struct ops *ops, const struct route_args *a)
{
    (void)ops;
    if (a->m > 0)
        LAUNCH(route_choose, (int)ceil_div(a->m, TOKEN_THREADS), TOKEN_THREADS, 0, stream, *a);
    LAUNCH(route_count, 1, EXPERT_THREADS, 0, stream, *a);
}

static __global__ void __launch_bounds__(SUM_THREADS) expert_sum_row(struct expert_sum_args a)
{
    const int64_t row = blockIdx.x;
    const int32_t *places = a.route.places + row * a.route.n_used;
    const float *weights = a.route.weights + row * a.route.n_used;
    const float share = a.shares ? math_logistic(a.shares[row]) : 1.0f;
    for (int i = (int)threadIdx.x; i < a.n; i += SUM_THREADS) {
        float *x = a.x + row * a.x_stride + i, sum = 0;
        for (int j = 0; j < a.route.n_used; j++)
            sum = fmaf(weights[j], a.y[places[j] * a.y_stride + i], sum);
        sum = a.shared ? fmaf(share, a.shared[row * a.y_stride + i], sum) : sum;
        *x = a.add ? *x + sum : sum;
    }
}

void cuda_expert_sum(cudaStream_t stream, const struct ops *ops, const struct expert_sum_args *a)
{
    (void)ops;
    if (a->m > 0)
        LAUNCH(expert_sum_row, (unsigned)a->m, SUM_THREADS, 0, stream, *a);
}
