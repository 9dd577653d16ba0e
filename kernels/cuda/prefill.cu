/* kernels/cuda/prefill.cu - kv_store and attend_prompt: stores a prompt's K and V in the workspace
 * and attends its queries.
 *
 * Owns: the order of a prompt's sums (rules b and d). Refuses: choosing kept slots (slots.cu).
 * Note: exps use the query's final maximum, not a running one, because the sum of an output is one
 * chain over all keys that must not be rescaled: q.k is computed twice, once for the maximum and
 * once for the weights. Scores need final sums, so they are a launch of their own, key-stationary,
 * which computes q.k a third time: a third more FLOPs (2 d of 6 d per pair of query and key) and no
 * bytes but q once more per page of keys; no atomics. A warp handles 4 queries (2 above 256
 * dimensions), a lane one key or several dimensions. */
#include "kernels/cuda/simt.cuh"

#include "kernels/cuda/prefill.cuh"

#define THREADS 256
#define WARPS   (THREADS / WARP)
/* Most (query, query head) pairs per launch: further spans follow in later launches, so that
 * scratch does not grow with them. */
#define QUERIES 8192

/* ---- kv_store ---- */

struct store_source {
    const struct kv_store_args *a;
    int64_t token0; // index of slot 0 from the call's first token
    int head;
    __device__ int by_slot(int) const
    {
        return 0;
    }
    __device__ float operator()(int of_v, int slot, int d) const
    {
        const int64_t token = token0 + slot, at = (int64_t)head * a->layout.head_dim + d;
        return of_v ? a->v[token * a->v_stride + at] : a->k[token * a->k_stride + at];
    }
};

/* One block per page and KV head. */
__global__ void __launch_bounds__(THREADS)
    store_page(const __grid_constant__ struct kv_store_args a)
{
    const int page = a.first / PAGE_SLOTS + (int)blockIdx.x, token0 = page * PAGE_SLOTS;
    const int from = a.first - token0, to = a.first + a.n - token0;
    struct taken taken = {};
    float *tile = take<float>(&taken, KV_TILE_FLOATS);
    struct store_source source = {&a, token0 - a.first, (int)blockIdx.y};
    kv_put_slots(&a.layout, (uint8_t *)a.pages + page * a.layout.page_bytes, (int)blockIdx.y,
                 from > 0 ? from : 0, to < PAGE_SLOTS ? to : PAGE_SLOTS, from, source, tile);
}

void cuda_kv_store(cudaStream_t stream, const struct ops *ops, const struct kv_store_args *args)
{
    (void)ops;
    if (args->n <= 0)
        return;
    const int64_t pages = ceil_div(args->first + args->n, PAGE_SLOTS) - args->first / PAGE_SLOTS;
    LAUNCH(store_page, dim3((unsigned)pages, (unsigned)args->layout.n_kv_heads), THREADS,
           take_bytes<float>(KV_TILE_FLOATS), stream, *args);
}

/* ---- attend_prompt ---- */

/* x [rows, dim_pad], in shared memory: queries of a block; row r is the query and head given by
 * row_at(r), zeros if none. All threads; a barrier must follow. */
template <class RowAt>
DEVICE void load_queries(const struct prompt *f, const struct prompt_span *s, int rows,
                         const RowAt &row_at, float *x)
{
    const struct kv_layout *l = &f->a.layout;
    for (int i = (int)threadIdx.x; i < rows * l->dim_pad; i += THREADS) {
        const int d = i % l->dim_pad;
        int query, head;
        float q = 0.0f;
        if (row_at(i / l->dim_pad, &query, &head) && d < l->head_dim)
            q = f->a.q[(s->token + query - s->first) * f->a.q_stride + (int64_t)head * l->head_dim +
                       d];
        x[i] = f->round_q ? bf16_to_f32(f32_to_bf16(q)) : q;
    }
}

/* sum[r] = q[r] . K of this lane's slot: one chain over dimensions. */
template <int BF16, int ROWS>
DEVICE void key_chains(const uint8_t *panel, const float *q, int dim_pad, float sum[ROWS])
{
    const int slot = lane_id();
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        sum[r] = 0.0f;
#pragma unroll 2
    for (int d = 0; d < dim_pad; d += 4) {
        float k[4];
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            if (BF16) {
                const uint32_t pair = ((const uint32_t *)panel)[(d + j) / 2 * PAGE_SLOTS + slot];
                k[j] = __uint_as_float(pair << 16);
                k[j + 1] = __uint_as_float(pair & 0xffff0000u);
            } else {
                k[j] = ((const float *)panel)[(d + j) * PAGE_SLOTS + slot];
                k[j + 1] = ((const float *)panel)[(d + j + 1) * PAGE_SLOTS + slot];
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float4 x = *(const float4 *)(q + r * dim_pad + d);
            sum[r] = fmaf(x.x, k[0], sum[r]);
            sum[r] = fmaf(x.y, k[1], sum[r]);
            sum[r] = fmaf(x.z, k[2], sum[r]);
            sum[r] = fmaf(x.w, k[3], sum[r]);
        }
    }
}

/* Rows of a block are queries of one head. */
struct queries_of_head {
    int query0, end, head; // queries [query0, end)
    __device__ int operator()(int row, int *query, int *of) const
    {
        *query = query0 + row;
        *of = head;
        return *query < end;
    }
};

DEVICE float prompt_logit(const struct prompt *f, float chain)
{
    return math_softcap(chain * f->a.scale, f->a.cap);
}

/* Greatest logit of each row over the keys that the row sees; last: the last row's query. */
template <int BF16, int ROWS>
DEVICE void row_maxima(const struct prompt *f, const uint8_t *pages, int kv_head, const float *q,
                       int query0, int last, float max[ROWS])
{
    const struct kv_layout *l = &f->a.layout;
    const int n_pages = last / PAGE_SLOTS + 1;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        max[r] = -INFINITY;
    for (int page = prompt_low(&f->a, query0) / PAGE_SLOTS; page < n_pages; page++) {
        const int key = page * PAGE_SLOTS + lane_id();
        float x[ROWS];
        if (key > last)
            continue;
        key_chains<BF16, ROWS>(kv_panel(l, pages + page * l->page_bytes, kv_head, 0), q, l->dim_pad,
                               x);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float logit = prompt_logit(f, x[r]);
            const int sees = key <= query0 + r && key >= prompt_low(&f->a, query0 + r);
            max[r] = sees && logit > max[r] ? logit : max[r];
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        max[r] = warp_max(max[r]);
}

/* out += p . V over the first n keys of a page, as far as each row sees them; p [32][ROWS]. */
template <int BF16, int ROWS, int DIMS>
DEVICE void page_outputs(const struct kv_layout *l, const uint8_t *panel, const float *p, int n,
                         int n_first, float out[ROWS][DIMS])
{
    for (int key = 0; key < n; key++) {
        float e[ROWS], v[DIMS];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            e[r] = p[key * ROWS + r];
#pragma unroll
        for (int j = 0; j < DIMS; j++) {
            const int d = lane_id() + j * WARP;
            v[j] = 0.0f;
            if (d < l->head_dim)
                v[j] =
                    BF16 ? bf16_to_f32(
                               ((const uint16_t *)panel)[(key / 2 * l->dim_pad + d) * 2 + key % 2])
                         : ((const float *)panel)[key * l->dim_pad + d];
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (key >= n_first + r) // the row does not see this key
                continue;
#pragma unroll
            for (int j = 0; j < DIMS; j++)
                out[r][j] = fmaf(e[r], v[j], out[r][j]);
        }
    }
}

template <int ROWS> static int rows_shared(const struct kv_layout *l)
{
    return take_bytes<float>(WARPS * ROWS * l->dim_pad) +
           take_bytes<float>(WARPS * ROWS * PAGE_SLOTS);
}

/* A block has WARPS * ROWS queries of a head; up to 32 * DIMS dimensions. */
template <int BF16, int ROWS, int DIMS>
__global__ void __launch_bounds__(THREADS, 2) prompt_rows(const __grid_constant__ struct prompt f)
{
    const struct kv_layout *l = &f.a.layout;
    const struct prompt_span s = f.a.spans[f.first_span + (int)blockIdx.z];
    const int head = (int)blockIdx.y, kv_head = head / (f.a.n_heads / l->n_kv_heads);
    const int block0 = s.first + (int)blockIdx.x * WARPS * ROWS, end = s.first + s.n;
    if (block0 >= end)
        return;
    struct taken taken = {};
    float *q = take<float>(&taken, WARPS * ROWS * l->dim_pad);
    float *p = take<float>(&taken, WARPS * ROWS * PAGE_SLOTS);
    const struct queries_of_head row_at = {block0, end, head};
    load_queries(&f, &s, WARPS * ROWS, row_at, q);
    __syncthreads();
    const int query0 = block0 + warp_id() * ROWS, left = end - query0;
    if (left <= 0)
        return;
    const uint8_t *pages = prompt_span_pages(&f.a, &s);
    float max[ROWS], sum[ROWS] = {}, out[ROWS][DIMS] = {};
    q += warp_id() * ROWS * l->dim_pad;
    p += warp_id() * ROWS * PAGE_SLOTS;
    const int last = query0 + (left < ROWS ? left : ROWS) - 1; // keys beyond are not stored
    row_maxima<BF16, ROWS>(&f, pages, kv_head, q, query0, last, max);
    const int page0 = prompt_low(&f.a, query0) / PAGE_SLOTS;
    for (int page = page0; page <= last / PAGE_SLOTS; page++) {
        const uint8_t *at = pages + page * l->page_bytes;
        const int key0 = page * PAGE_SLOTS, key = key0 + lane_id();
        float x[ROWS] = {};
        if (key <= last)
            key_chains<BF16, ROWS>(kv_panel(l, at, kv_head, 0), q, l->dim_pad, x);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float e = math_exp(prompt_logit(&f, x[r]) - (max[r] == -INFINITY ? 0.0f : max[r]));
            const int sees = key <= query0 + r && key >= prompt_low(&f.a, query0 + r);
            e = sees && key <= last ? e : 0.0f;
            sum[r] = sum[r] + e; // lanes 0 to 15: number i to lane i mod 16, in order
            sum[r] = sum[r] + warp_down(e, 16);
            p[lane_id() * ROWS + r] = e;
        }
        __syncwarp();
        const int n = last - key0 + 1;
        page_outputs<BF16, ROWS, DIMS>(l, kv_panel(l, at, kv_head, 1), p,
                                       n < PAGE_SLOTS ? n : PAGE_SLOTS, query0 + 1 - key0, out);
        __syncwarp();
    }
    for (int r = 0; r < ROWS; r++) {
        const int64_t query = query0 + r - s.first;
        const float all = warp_shfl(warp_sum16(sum[r]), 0);
        const float inverse = 1.0f / (all + math_sink(f.a.sinks, head, max[r]));
        if (r >= left)
            continue;
        float *to = f.a.out + (s.token + query) * f.a.out_stride + (int64_t)head * l->head_dim;
#pragma unroll
        for (int j = 0; j < DIMS; j++)
            if (lane_id() + j * WARP < l->head_dim)
                to[lane_id() + j * WARP] = out[r][j] * inverse;
        if (f.a.scores && lane_id() == 0) {
            const int64_t i = ((int64_t)blockIdx.z * f.a.n_max + query) * f.a.n_heads + head;
            f.max[i] = max[r];
            f.inverse[i] = inverse;
        }
    }
}

/* ---- scores ---- */

/* Rows of a block are (query, query head of a KV head), queries outermost, from row0 of a tile. */
struct rows_of_tile {
    int query0, end, head0, group, row0;
    __device__ int operator()(int row, int *query, int *head) const
    {
        *query = query0 + (row0 + row) / group;
        *head = head0 + (row0 + row) % group;
        return *query < end;
    }
};

template <int ROWS> static int scores_shared(const struct kv_layout *l)
{
    return rows_shared<ROWS>(l) + take_bytes<float>(WARPS * ROWS);
}

/* A block handles 32 keys of a KV head and the tiles of queries that see them, ascending. The first
 * warp sums a tile's weights in one chain over (query, head). */
template <int BF16, int ROWS>
__global__ void __launch_bounds__(THREADS, 3) prompt_scores(const __grid_constant__ struct prompt f)
{
    const struct kv_layout *l = &f.a.layout;
    const struct prompt_span s = f.a.spans[f.first_span + (int)blockIdx.z];
    const int page = (int)blockIdx.x, kv_head = (int)blockIdx.y, end = s.first + s.n;
    const int group = f.a.n_heads / l->n_kv_heads, key = page * PAGE_SLOTS + lane_id();
    if (page * PAGE_SLOTS >= end)
        return;
    struct taken taken = {};
    float *q = take<float>(&taken, WARPS * ROWS * l->dim_pad);
    float *p = take<float>(&taken, WARPS * ROWS * PAGE_SLOTS);
    float *inverse = take<float>(&taken, WARPS * ROWS);
    const uint8_t *panel =
        kv_panel(l, prompt_span_pages(&f.a, &s) + page * l->page_bytes, kv_head, 0);
    float *score = prompt_span_scores(&f.a, &s) + kv_head * round_up(s.n_prompt, PAGE_SLOTS) + key;
    float total = warp_id() == 0 && key < end ? *score : 0.0f;
    const struct evict_rule mode = evict_rule_of(f.a.policy);
    const int hits = mode.source == EVICT_EACH;
    const int tile0 = max_int(prompt_first_tile(&f.a, &s), s.first / PAGE_SLOTS);
    const int last = last_query(&f.a, page, end);
    for (int tile = max_int(page, tile0); tile * PAGE_SLOTS < last; tile++) {
        const int query0 = tile * PAGE_SLOTS, next = query0 + PAGE_SLOTS;
        const int n_rows = ((next < end ? next : end) - query0) * group;
        float column = 0.0f;
        for (int row0 = 0; row0 < n_rows; row0 += WARPS * ROWS) {
            const struct rows_of_tile row_at = {query0, end, kv_head * group, group, row0};
            load_queries(&f, &s, WARPS * ROWS, row_at, q);
            __syncthreads();
            float x[ROWS] = {};
            const int warp0 = warp_id() * ROWS;
            if (key < end)
                key_chains<BF16, ROWS>(panel, q + warp0 * l->dim_pad, l->dim_pad, x);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                int query, head;
                float e = 0.0f, inv = 0.0f;
                if (row_at(warp0 + r, &query, &head)) {
                    const int64_t i =
                        ((int64_t)blockIdx.z * f.a.n_max + query - s.first) * f.a.n_heads + head;
                    const float max = f.max[i];
                    inv = f.inverse[i] * evict_query_worth(&mode, query, s.n_prompt);
                    e = math_exp(prompt_logit(&f, x[r]) - (max == -INFINITY ? 0.0f : max));
                    e = key <= query && key >= prompt_low(&f.a, query) ? e : 0.0f;
                }
                p[(warp0 + r) * PAGE_SLOTS + lane_id()] = e;
                if (lane_id() == 0)
                    inverse[warp0 + r] = inv;
            }
            __syncthreads();
            const int n = n_rows - row0 < WARPS * ROWS ? n_rows - row0 : WARPS * ROWS;
            for (int r = 0; r < n && warp_id() == 0; r++) {
                if (fabsf(inverse[r]) < INFINITY) // else the weights are not finite
                    column = fmaf(p[r * PAGE_SLOTS + lane_id()], inverse[r], column);
                if (!hits || (row0 + r + 1) % group != 0)
                    continue;
                total = evict_score_next(&mode, total, column, group, query0 + (row0 + r) / group);
                column = 0.0f;
            }
        }
        total = hits ? total : total + column;
    }
    if (warp_id() == 0 && key < end)
        *score = total;
}

/* ---- host ---- */

static int64_t stats_bytes(int64_t n_queries, int n_heads)
{
    return round_up(n_queries * n_heads * 4, 64);
}

int64_t cuda_attend_prompt_scratch_bytes(const struct ops *ops, int n_prompt_max, int n_heads,
                                         int n_kv_heads, int head_dim)
{
    (void)ops;
    (void)n_kv_heads;
    (void)head_dim;
    return 2 * stats_bytes(max_i64(QUERIES, n_prompt_max), n_heads);
}

template <int BF16, int ROWS, int DIMS>
static void prompt_launch(cudaStream_t stream, const struct prompt *f, int n_spans)
{
    const struct kv_layout *l = &f->a.layout;
    const unsigned blocks = (unsigned)ceil_div(f->a.n_max, WARPS * ROWS), spans = (unsigned)n_spans;
    LAUNCH((prompt_rows<BF16, ROWS, DIMS>), dim3(blocks, (unsigned)f->a.n_heads, spans), THREADS,
           rows_shared<ROWS>(l), stream, *f);
    const unsigned pages = (unsigned)ceil_div(f->a.end_max, PAGE_SLOTS);
    if (f->a.scores)
        LAUNCH((prompt_scores<BF16, ROWS>), dim3(pages, (unsigned)l->n_kv_heads, spans), THREADS,
               scores_shared<ROWS>(l), stream, *f);
}

template <int BF16>
static void prompt_by_dims(cudaStream_t stream, const struct prompt *f, int n_spans)
{
    if (f->a.layout.head_dim <= 2 * WARP)
        prompt_launch<BF16, 4, 2>(stream, f, n_spans);
    else if (f->a.layout.head_dim <= 4 * WARP)
        prompt_launch<BF16, 4, 4>(stream, f, n_spans);
    else if (f->a.layout.head_dim <= 8 * WARP)
        prompt_launch<BF16, 4, 8>(stream, f, n_spans);
    else if (f->a.layout.head_dim <= 16 * WARP)
        prompt_launch<BF16, 2, 16>(stream, f, n_spans);
    else
        prompt_launch<BF16, 2, SHAPE_HEAD_MAX / WARP>(stream, f, n_spans);
}

void cuda_attend_prompt(cudaStream_t stream, const struct ops *ops,
                        const struct attend_prompt_args *args)
{
    struct prompt f = {};
    const int bf16 = args->layout.format == KV_BF16;
    if (args->n_max <= 0)
        return;
    f.a = *args;
    f.round_q = ops->compute != COMPUTE_F32 && bf16;
    const int64_t n_queries = max_i64(QUERIES, args->n_max);
    const int at_once = (int)(n_queries / args->n_max);
    f.max = (float *)args->scratch;
    f.inverse = (float *)((uint8_t *)args->scratch + stats_bytes(n_queries, args->n_heads));
    for (f.first_span = 0; f.first_span < args->n_spans; f.first_span += at_once) {
        const int n_spans = (int)min_i64(at_once, args->n_spans - f.first_span);
        if (prompt_mma_takes(&f))
            prompt_mma(stream, &f, n_spans);
        else if (bf16)
            prompt_by_dims<1>(stream, &f, n_spans);
        else
            prompt_by_dims<0>(stream, &f, n_spans);
    }
}
