/* kernels/cuda/state.cu - conv and recur: ops on row states, in the order of kernels/ops.h.
 *
 * Owns: which thread has which column. A column of a state belongs to one thread, so that a sum
 * over rows of the state is one chain; states stay in global memory and its caches. */
#include "kernels/cuda/simt.cuh"

#define inline inline __host__ __device__
#include "kernels/state.h"
#undef inline

#define STATE_THREADS 128

/* ---- conv: a thread is a channel of a span ---- */

__global__ void __launch_bounds__(STATE_THREADS) conv_channels(struct conv_args a)
{
    const int c = (int)(blockIdx.x * STATE_THREADS + threadIdx.x), past = a.taps - 1;
    const struct state_span s = a.rows.spans[blockIdx.y];
    float w[STATE_TAPS_MAX], x[STATE_TAPS_MAX];
    if (c >= a.n)
        return;
    float *state = state_of(&a.rows, &s, a.offset) + c;
    const float bias = a.bias ? a.bias[c] : 0;
#pragma unroll
    for (int j = 0; j < STATE_TAPS_MAX; j++) {
        w[j] = j < a.taps ? a.weight[(int64_t)c * a.taps + j] : 0;
        x[j] = j < past && !s.fresh ? state[(int64_t)j * a.n] : 0;
    }
    for (int t = 0; t < s.n; t++) {
        float *at = a.x + (s.token + t) * a.x_stride + c;
        const float own = *at;
        float sum = bias;
#pragma unroll
        for (int j = 0; j < STATE_TAPS_MAX; j++) {
            x[j] = j == past ? own : x[j];
            sum = j < a.taps ? fmaf(w[j], x[j], sum) : sum;
        }
#pragma unroll
        for (int j = 0; j + 1 < STATE_TAPS_MAX; j++)
            x[j] = x[j + 1];
        *at = math_act(a.act, sum);
    }
    for (int j = 0; j < past; j++)
        state[(int64_t)j * a.n] = x[j];
}

void cuda_conv(cudaStream_t stream, const struct ops *ops, const struct conv_args *a)
{
    const dim3 grid((unsigned)ceil_div(a->n, STATE_THREADS), (unsigned)a->rows.n_spans);
    (void)ops;
    if (a->rows.n_spans > 0)
        LAUNCH(conv_channels, grid, STATE_THREADS, 0, stream, *a);
}

/* ---- recur: a block is some columns of a head of a span ---- */

/* Of a token. */
enum { OF_G, OF_B, OF_Q, OF_K, OF_KQ, N_OF }; // scales of q and k
struct recur_shared {
    float *q, *k; // [k_dim]
    float *of;    // [N_OF]
};
/* Loads a token: q and k, which are at `key` of it, scaled, and its numbers. All threads. */
DEVICE void recur_load(const struct recur_args *a, const struct recur_shared *m, int64_t token,
                       int h, int key)
{
    const int64_t at = token * a->qkv_stride + key;
    __syncthreads(); // the token before has been used
    for (int i = (int)threadIdx.x; i < a->k_dim; i += STATE_THREADS) {
        m->q[i] = a->q[at + i];
        m->k[i] = a->k[at + i];
    }
    if (threadIdx.x == STATE_THREADS - 1)
        recur_gates(a, token, h, &m->of[OF_G], &m->of[OF_B]);
    __syncthreads();
    if (warp_id() < 2) { // the first warp sums q, the second k
        const float *x = warp_id() == 0 ? m->q : m->k;
        float sum = 0;
        for (int i = lane_id() % 16; i < a->k_dim; i += 16)
            sum = fmaf(x[i], x[i], sum);
        const float unit = recur_unit(a, warp_sum16(sum));
        if (lane_id() == 0)
            m->of[warp_id() == 0 ? OF_Q : OF_K] = warp_id() == 0 ? unit * a->q_scale : unit;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < a->k_dim; i += STATE_THREADS) {
        m->q[i] = m->q[i] * m->of[OF_Q];
        m->k[i] = m->k[i] * m->of[OF_K];
    }
    __syncthreads();
    if (warp_id() == 0) {
        float sum = 0;
        for (int i = lane_id() % 16; i < a->k_dim; i += 16)
            sum = fmaf(m->k[i], m->q[i], sum);
        sum = warp_sum16(sum);
        if (lane_id() == 0)
            m->of[OF_KQ] = sum;
    }
    __syncthreads();
}

__global__ void __launch_bounds__(STATE_THREADS) recur_columns(struct recur_args a)
{
    struct taken taken = {};
    const struct recur_shared m = {take<float>(&taken, a.k_dim), take<float>(&taken, a.k_dim),
                                   take<float>(&taken, N_OF)};
    const int j = (int)(blockIdx.x * STATE_THREADS + threadIdx.x), h = (int)blockIdx.y;
    const struct state_span s = a.rows.spans[blockIdx.z];
    const int64_t v_dim = a.v_dim, at = (int64_t)h * v_dim + j;
    float *state = state_of(&a.rows, &s, 0) + (int64_t)h * a.k_dim * v_dim + j;
    const int mine = j < a.v_dim, key = recur_key_of(&a, h);
    for (int i = 0; i < a.k_dim && mine && s.fresh; i++)
        state[i * v_dim] = 0;
    for (int t = 0; t < s.n; t++) {
        const int64_t token = s.token + t;
        recur_load(&a, &m, token, h, key);
        if (!mine)
            continue;
        const float g = m.of[OF_G], v = a.v[token * a.qkv_stride + at];
        float p = 0, r = 0;
        for (int i = 0; i < a.k_dim; i++) {
            const float x = state[i * v_dim];
            p = fmaf(x, m.k[i], p);
            r = fmaf(x, m.q[i], r);
        }
        const float d = m.of[OF_B] * (a.corrects ? fmaf(-g, p, v) : v);
        const float out = fmaf(m.of[OF_KQ], d, g * r);
        a.out[token * a.out_stride + at] = a.skip ? fmaf(a.skip[h], v, out) : out;
        for (int i = 0; i < a.k_dim; i++)
            state[i * v_dim] = fmaf(m.k[i], d, g * state[i * v_dim]);
    }
}

void cuda_recur(cudaStream_t stream, const struct ops *ops, const struct recur_args *a)
{
    const dim3 grid((unsigned)ceil_div(a->v_dim, STATE_THREADS), (unsigned)a->v_heads,
                    (unsigned)a->rows.n_spans);
    (void)ops;
    if (a->rows.n_spans > 0)
        LAUNCH(recur_columns, grid, STATE_THREADS,
               2 * take_bytes<float>(a->k_dim) + take_bytes<float>(N_OF), stream, *a);
}
