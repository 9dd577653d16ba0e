/* kernels/cuda/experts.cu - route and expert_sum: which experts tokens go to, and the sum of their
 * outputs.
 *
 * Owns: the sorting of pairs. Refuses: matmuls (matmul.cuh: there each expert has blocks of its
 * own). A tile has at most 2,048 tokens: a thread chooses for one token, and one block sorts the
 * pairs, which fit in caches. */
#include "kernels/cuda/simt.cuh"

#define inline inline __host__ __device__
#include "kernels/route.h"
#undef inline

#define TOKEN_THREADS  32
#define EXPERT_THREADS 256
#define EXPERT_WARPS   (EXPERT_THREADS / WARP)
#define SUM_THREADS    256

static __global__ void __launch_bounds__(TOKEN_THREADS) route_choose(struct route_args a)
{
    const int64_t token = (int64_t)blockIdx.x * TOKEN_THREADS + threadIdx.x;
    if (token < a.m)
        route_token(&a, token);
}

/* Among the lanes whose pairs go to the same expert: lanes before this one, and all. */
struct alike {
    int before, all;
};

DEVICE struct alike alike_of(int expert)
{
    struct alike n = {0, 0};
    for (int lane = 0; lane < WARP; lane++) {
        const int same = warp_shfl(expert, lane) == expert;
        n.before += same && lane < lane_id();
        n.all += same;
    }
    return n;
}

/* The warps of a block split the pairs into contiguous stretches. places: the expert of each pair,
 * replaced by the pair's index in the sorted order. */
static __global__ void __launch_bounds__(EXPERT_THREADS) route_count(struct route_args a)
{
    const struct route r = a.to;
    const int n_pairs = a.m * r.n_used, warp = (int)threadIdx.x / WARP;
    const int stretch = (int)ceil_div(n_pairs, EXPERT_THREADS) * WARP;
    const int from = warp * stretch, end = min(from + stretch, n_pairs);
    struct taken taken = {};
    int32_t *at = take<int32_t>(&taken, EXPERT_WARPS * r.n_experts); // [EXPERT_WARPS][n_experts]
    int32_t *mine = at + warp * r.n_experts;
    for (int e = (int)threadIdx.x; e < EXPERT_WARPS * r.n_experts; e += EXPERT_THREADS)
        at[e] = 0;
    __syncthreads();
    for (int i = from + lane_id(); i - lane_id() < end; i += WARP) {
        const int e = i < end ? r.places[i] : -1;
        const struct alike n = alike_of(e);
        if (e >= 0 && n.before == 0)
            mine[e] += n.all;
        __syncwarp();
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < r.n_experts; e += EXPERT_THREADS) {
        int sum = 0;
        for (int w = 0; w < EXPERT_WARPS; w++) {
            const int n = at[w * r.n_experts + e];
            at[w * r.n_experts + e] = sum;
            sum += n;
        }
        r.first[e + 1] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        r.first[0] = 0;
        for (int e = 0; e < r.n_experts; e++)
            r.first[e + 1] += r.first[e];
    }
    __syncthreads();
    for (int i = from + lane_id(); i - lane_id() < end; i += WARP) {
        const int e = i < end ? r.places[i] : -1;
        const struct alike n = alike_of(e);
        if (e >= 0) {
            const int place = r.first[e] + mine[e] + n.before;
            r.pairs[place] = i;
            r.places[i] = place;
        }
        __syncwarp();
        if (e >= 0 && n.before == 0)
            mine[e] += n.all;
        __syncwarp();
    }
}

void cuda_route(cudaStream_t stream, const struct ops *ops, const struct route_args *a)
{
    (void)ops;
    if (a->m > 0)
        LAUNCH(route_choose, (int)ceil_div(a->m, TOKEN_THREADS), TOKEN_THREADS, 0, stream, *a);
    LAUNCH(route_count, 1, EXPERT_THREADS, take_bytes<int32_t>(EXPERT_WARPS * a->to.n_experts),
           stream, *a);
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
