/* kernels/cuda/head.cu - head_reduce: a position's results from its logits, a block per row.
 *
 * Owns: log-sum-exp and argmax by tiles of 4,096, joined in order; the sampled id; the best n.
 * Refuses: keeping logits; splitting a row (slices of a row come one after the other). The best n
 * of HEAD_TOP and HEAD_FILTER are chosen by order alone: a key orders by greater logit, then lower
 * id, no two keys are equal, and a radix select finds the n-th. Note: HEAD_FILTER writes an
 * unordered set, which the host sorts. */
#include "kernels/cuda/simt.cuh"

#define HEAD_THREADS 512
#define HEAD_WARPS   (HEAD_THREADS / WARP)
#define TILES        2   // reduced at a time: one for each half of the first warp
#define CHUNK        8   // consecutive ids per thread, so that a thread seeks its edits once
#define BINS         256 // of a step of the radix select, 8 bits of the key

/* ---- tiles: max, argmax, sum of exps ---- */

/* The results of a tile of 4,096. */
struct tile {
    float max, sum; // greatest logit, NaN ignored; sum of exp(logit - max) in 16 lanes
    int32_t best;   // first index of max in the tile
    int bad;        // 1: the tile has a NaN or +inf
};

#define OWN         (HEAD_TILE / HEAD_THREADS) // numbers per thread of a tile
#define EXPS_STRIDE (HEAD_TILE + 16)           // the halves of a warp read different banks

/* Shared memory of the tiles in work. */
struct tile_work {
    struct tile *warps; // [TILES][HEAD_WARPS]: of each warp's numbers
    float *exps;        // [TILES][EXPS_STRIDE]
};

/* Joins over `lanes` lanes, half a warp or a whole one: all lanes get the result. */
DEVICE struct tile tile_join(struct tile t, int lanes)
{
    for (int by = lanes / 2; by > 0; by /= 2) {
        const float max = warp_xor(t.max, by);
        const int32_t best = warp_xor(t.best, by);
        t.bad |= warp_xor(t.bad, by);
        if (max > t.max || (max == t.max && best < t.best)) {
            t.max = max;
            t.best = best;
        }
    }
    return t;
}

/* Of this thread's numbers of a tile, in ascending order. Numbers beyond the tile are -inf. */
DEVICE struct tile tile_own(const float v[OWN])
{
    struct tile t = {-INFINITY, 0, INT32_MAX, 0};
#pragma unroll
    for (int j = 0; j < OWN; j++) {
        t.bad |= v[j] != v[j] || v[j] == INFINITY;
        if (v[j] > t.max) {
            t.max = v[j];
            t.best = (int)threadIdx.x + j * HEAD_THREADS;
        }
    }
    return t;
}

/* Reduces n numbers from x on, up to TILES tiles, into tiles[]: all threads find the maxima and
 * compute the exps; then each half of the first warp sums one tile. */
DEVICE void tiles_reduce(const float *x, int n, int score, struct tile_work w, struct tile *tiles)
{
    float v[TILES][OWN];
#pragma unroll
    for (int k = 0; k < TILES; k++)
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            const int i = k * HEAD_TILE + j * HEAD_THREADS + (int)threadIdx.x;
            v[k][j] = i < n ? x[i] : -INFINITY;
        }
    for (int k = 0; k < TILES; k++) {
        const struct tile t = tile_join(tile_own(v[k]), WARP);
        if (lane_id() == 0)
            w.warps[k * HEAD_WARPS + warp_id()] = t;
    }
    __syncthreads();
    static_assert(HEAD_WARPS == 16 && TILES == 2, "a half of a warp has the warps of a tile");
    struct tile mine = tile_join(w.warps[lane_id()], HEAD_WARPS); // lanes 0..15 have tile 0
#pragma unroll
    for (int k = 0; k < TILES; k++) {
        if (!score || k * HEAD_TILE >= n)
            continue;
        const float max = warp_shfl(mine.max, k * HEAD_WARPS);
#pragma unroll
        for (int j = 0; j < OWN; j++)
            w.exps[k * EXPS_STRIDE + j * HEAD_THREADS + (int)threadIdx.x] = math_exp(v[k][j] - max);
    }
    __syncthreads();
    if (warp_id() > 0)
        return;
    const int tile = lane_id() / 16, is_there = tile * HEAD_TILE < n;
    // Exps beyond the last number are 0, which changes no sum.
    mine.sum = warp_sum16(chain16(0, w.exps + tile * EXPS_STRIDE, score && is_there ? HEAD_TILE : 0,
                                  [](float sum, float e) { return sum + e; }));
    if (lane_id() % 16 == 0 && is_there)
        tiles[tile] = mine;
}

/* Joins tiles in ascending order into the row's result. */
DEVICE void tiles_join(const struct head_reduce_args *a, const struct head_request *q,
                       struct head_result *s, const struct tile *tiles, int n_tiles, const float *x)
{
    const int target = q->target - a->first;
    if ((q->want & HEAD_SCORE) && target >= 0 && target < a->n)
        s->target_logit = x[target];
    for (int i = 0; i < n_tiles; i++) {
        const struct tile t = tiles[i];
        if (t.bad)
            s->best_logit = __uint_as_float(0x7fc00000); // final: nothing is greater than NaN
        if (t.max > s->best_logit) {
            s->best_logit = t.max;
            s->best_id = a->first + i * HEAD_TILE + t.best;
        }
        if (!(q->want & HEAD_SCORE) || t.max == -INFINITY)
            continue;
        const float joined = s->max > t.max ? s->max : t.max;
        const float before = s->sum * math_exp(s->max - joined);
        s->sum = fmaf(t.sum, math_exp(t.max - joined), before);
        s->max = joined;
    }
}

/* ---- edits ---- */

/* Iterates over the edits while ids ascend. */
struct edits {
    const struct logit_edit *list; // [n], sorted by id
    int n, at;
};

DEVICE void edits_seek(struct edits *e, int32_t id)
{
    int low = 0, high = e->n;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (e->list[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    e->at = low;
}

/* The logit of an id as sampling sees it; ids ascend since edits_seek(). */
DEVICE float edits_apply(struct edits *e, float logit, int32_t id)
{
    if (e->at == e->n || e->list[e->at].id != id)
        return logit;
    const struct logit_edit edit = e->list[e->at++];
    return (logit > 0 ? logit / edit.repeat : logit * edit.repeat) + edit.add;
}

/* ---- sampling: the greatest logit / T + noise; of equal ones the lowest id ---- */

struct sampled {
    float value, raw;
    int32_t id;
};

DEVICE int is_better(float value, int32_t id, const struct sampled *than)
{
    return value > than->value || (value == than->value && id < than->id);
}

DEVICE struct sampled warp_best(struct sampled s)
{
    for (int by = WARP / 2; by > 0; by /= 2) {
        const struct sampled other = {warp_xor(s.value, by), warp_xor(s.raw, by),
                                      warp_xor(s.id, by)};
        if (is_better(other.value, other.id, &s))
            s = other;
    }
    return s;
}

/* The best among this thread's ids. */
DEVICE struct sampled sample_own(const struct head_request *q, const float *x, int n, int first,
                                 struct edits edits)
{
    struct sampled s = {-INFINITY, 0, INT32_MAX};
    for (int i0 = (int)threadIdx.x * CHUNK; i0 < n; i0 += HEAD_THREADS * CHUNK) {
        edits_seek(&edits, first + i0);
        for (int i = i0; i < n && i < i0 + CHUNK; i++) {
            float value = edits_apply(&edits, x[i], first + i);
            if (q->temperature > 0)
                value = value / q->temperature + math_gumbel(math_uniform(q->noise_key, first + i));
            if (value > s.value) {
                s.value = value;
                s.raw = x[i];
                s.id = first + i;
            }
        }
    }
    return s;
}

/* ---- the best n ---- */

/* Candidates of the select: those of earlier slices, then this slice's logits. */
struct pool_of {
    const struct head_candidate *old; // [n_old], shared memory
    int n_old;
    const float *x; // [n]
    int n, first;
    struct edits edits;
};
struct select {
    unsigned *bins;          // [BINS]
    unsigned long long *key; // [1]: candidates with this key or a greater one are chosen
    int *need, *done, *used; // [1] each: still to choose; 1: key is final; slots used
};

/* Orders by greater logit (-0 is 0), then lower id; 0 for NaN, which is never chosen. */
DEVICE unsigned long long key_of(float logit, int32_t id)
{
    const uint32_t u = __float_as_uint(logit + 0.0f);
    const uint32_t order = u >> 31 ? ~u : u | 0x80000000u;
    if (logit != logit)
        return 0;
    return (unsigned long long)order << 32 | (0xffffffffu - (uint32_t)id);
}

DEVICE void count_key(const struct select *s, unsigned long long key, int shift)
{
    const int same = shift == 56 || (key ^ *s->key) >> (shift + 8) == 0;
    if (key != 0 && same)
        atomicAdd(&s->bins[key >> shift & (BINS - 1)], 1u);
}

/* Counts the keys with the prefix *s->key by their 8 bits from `shift` on. */
DEVICE void select_count(const struct select *s, struct pool_of p, int shift)
{
    for (int i = (int)threadIdx.x; i < p.n_old; i += HEAD_THREADS)
        count_key(s, key_of(p.old[i].logit, p.old[i].id), shift);
    for (int i0 = (int)threadIdx.x * CHUNK; i0 < p.n; i0 += HEAD_THREADS * CHUNK) {
        edits_seek(&p.edits, p.first + i0);
        for (int i = i0; i < p.n && i < i0 + CHUNK; i++)
            count_key(s, key_of(edits_apply(&p.edits, p.x[i], p.first + i), p.first + i), shift);
    }
}

/* From the counts: the bin of the last chosen key. One thread. */
DEVICE void select_step(const struct select *s, int shift)
{
    int need = *s->need, bin = BINS - 1;
    while (bin > 0 && (int)s->bins[bin] < need)
        need -= (int)s->bins[bin--];
    *s->key |= (unsigned long long)bin << shift;
    *s->need = need;
    *s->done = (int)s->bins[bin] <= need; // the whole bin is chosen, or nothing is left
}

/* Sets *s->key to the least key of the best `want`, or to at most 1 if there are fewer. */
DEVICE void select_find(const struct select *s, const struct pool_of *p, int want)
{
    if (threadIdx.x == 0) {
        *s->key = 0;
        *s->need = want;
        *s->done = *s->used = 0;
    }
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (int i = (int)threadIdx.x; i < BINS; i += HEAD_THREADS)
            s->bins[i] = 0;
        __syncthreads();
        if (*s->done)
            break;
        select_count(s, *p, shift);
        __syncthreads();
        if (threadIdx.x == 0)
            select_step(s, shift);
        __syncthreads();
    }
}

DEVICE void put_chosen(const struct select *s, struct head_candidate c, struct head_candidate *to)
{
    const unsigned long long key = key_of(c.logit, c.id);
    if (key != 0 && key >= *s->key)
        to[atomicAdd(s->used, 1)] = c;
}

/* Writes all candidates with keys >= *s->key to to[], unordered; *s->used: their number. */
DEVICE void select_put(const struct select *s, struct pool_of p, struct head_candidate *to)
{
    for (int i = (int)threadIdx.x; i < p.n_old; i += HEAD_THREADS)
        put_chosen(s, p.old[i], to);
    for (int i0 = (int)threadIdx.x * CHUNK; i0 < p.n; i0 += HEAD_THREADS * CHUNK) {
        edits_seek(&p.edits, p.first + i0);
        for (int i = i0; i < p.n && i < i0 + CHUNK; i++) {
            const float logit = edits_apply(&p.edits, p.x[i], p.first + i);
            put_chosen(s, {logit, p.first + i, p.x[i]}, to);
        }
    }
    __syncthreads();
}

/* ---- a row ---- */

/* top[] descending: the index of each is the number of better candidates. */
DEVICE void top_reduce(struct select *s, struct pool_of *p, int n_top, struct head_candidate *old,
                       struct head_candidate *chosen, struct head_result *result)
{
    p->n_old = result->n_top;
    for (int i = (int)threadIdx.x; i < p->n_old; i += HEAD_THREADS)
        old[i] = result->top[i];
    __syncthreads();
    select_find(s, p, n_top);
    select_put(s, *p, chosen);
    const int n = *s->used;
    for (int i = (int)threadIdx.x; i < n; i += HEAD_THREADS) {
        int place = 0;
        for (int j = 0; j < n; j++)
            place += key_of(chosen[j].logit, chosen[j].id) > key_of(chosen[i].logit, chosen[i].id);
        result->top[place] = chosen[i];
    }
    if (threadIdx.x == 0)
        result->n_top = n;
    __syncthreads();
}

DEVICE void filter_reduce(struct select *s, struct pool_of *p, struct head_candidate *old,
                          struct head_candidate *candidates, struct head_result *result)
{
    p->n_old = result->n_filter;
    for (int i = (int)threadIdx.x; i < p->n_old; i += HEAD_THREADS)
        old[i] = candidates[i];
    __syncthreads();
    select_find(s, p, HEAD_SAMPLE_MAX);
    select_put(s, *p, candidates);
    if (threadIdx.x == 0)
        result->n_filter = *s->used;
}

DEVICE void sample_reduce(const struct head_request *q, const float *x, int n, int first,
                          struct edits edits, struct sampled *warps, struct head_result *result)
{
    struct sampled s = warp_best(sample_own(q, x, n, first, edits));
    if (lane_id() == 0)
        warps[warp_id()] = s;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int i = 1; i < HEAD_WARPS; i++)
        if (is_better(warps[i].value, warps[i].id, &s))
            s = warps[i];
    if (s.value > result->sample_value) {
        result->sample_value = s.value;
        result->sample_id = s.id;
        result->sample_logit = s.raw;
    }
}

// 1: else nvcc makes room for more blocks per SM, and spills.
__global__ void __launch_bounds__(HEAD_THREADS, 1) head_row(struct head_reduce_args a)
{
    const struct head_request *q = &a.requests[blockIdx.x];
    struct head_result *result = &a.results[blockIdx.x];
    const float *x = a.logits + blockIdx.x * a.stride;
    const int want = q->want, n_tiles = (int)ceil_div(a.n, HEAD_TILE);
    struct taken taken = {};
    struct tile *tiles = take<struct tile>(&taken, n_tiles);
    struct sampled *warps = take<struct sampled>(&taken, HEAD_WARPS);
    const struct tile_work work = {take<struct tile>(&taken, TILES * HEAD_WARPS),
                                   take<float>(&taken, TILES * EXPS_STRIDE)};
    for (int t0 = 0; t0 < n_tiles; t0 += TILES)
        tiles_reduce(x + (int64_t)t0 * HEAD_TILE, a.n - t0 * HEAD_TILE, (want & HEAD_SCORE) != 0,
                     work, tiles + t0);
    __syncthreads();
    if (threadIdx.x == 0)
        tiles_join(&a, q, result, tiles, n_tiles, x);
    const struct edits none = {NULL, 0, 0};
    const struct edits edits = {q->n_edits > 0 ? head_edits(&a, q) : NULL, q->n_edits, 0};
    if (want & HEAD_SAMPLE)
        sample_reduce(q, x, a.n, a.first, edits, warps, result);
    if (!(want & (HEAD_TOP | HEAD_FILTER)))
        return;
    struct head_candidate *old = take<struct head_candidate>(&taken, HEAD_SAMPLE_MAX);
    struct head_candidate *chosen = take<struct head_candidate>(&taken, HEAD_TOP_MAX);
    struct select s = {take<unsigned>(&taken, BINS), take<unsigned long long>(&taken, 1),
                       take<int>(&taken, 1), take<int>(&taken, 1), take<int>(&taken, 1)};
    struct pool_of pool = {old, 0, x, a.n, a.first, none};
    if ((want & HEAD_TOP) && q->n_top > 0)
        top_reduce(&s, &pool, q->n_top, old, chosen, result);
    pool.edits = edits;
    if (want & HEAD_FILTER)
        filter_reduce(&s, &pool, old, head_candidates(&a, q), result);
}

void cuda_head_reduce(cudaStream_t stream, const struct ops *ops, const struct head_reduce_args *a)
{
    (void)ops;
    const int bytes = take_bytes<struct tile>((int)ceil_div(a->n, HEAD_TILE)) +
                      take_bytes<struct sampled>(HEAD_WARPS) +
                      take_bytes<struct tile>(TILES * HEAD_WARPS) +
                      take_bytes<float>(TILES * EXPS_STRIDE) +
                      take_bytes<struct head_candidate>(HEAD_SAMPLE_MAX) +
                      take_bytes<struct head_candidate>(HEAD_TOP_MAX) + take_bytes<unsigned>(BINS) +
                      take_bytes<unsigned long long>(1) + 3 * take_bytes<int>(1);
    if (a->m > 0 && a->n > 0)
        LAUNCH(head_row, (unsigned)a->m, HEAD_THREADS, bytes, stream, *a);
}
