/* kernels/cuda/slots.cu - prompt_keep: chooses the kept slots of a prompt and copies them to its
 * row.
 *
 * Owns: the selection: a radix select over rank keys finds the greatest evicted key and how many
 * tokens of that key are evicted, the oldest first. Refuses: ranks (policy/evict.h).
 * Note: keys are computed in a launch of their own, so that the selection does not need the
 * registers of ranks and traits; under scope layer every head makes the same selection. */
#include "kernels/cuda/simt.cuh"

#include "kernels/cuda/kv.cuh"

#define SELECT_THREADS 512
#define WRITE_THREADS  256
#define RADIX          256

struct keep {
    struct prompt_keep_args a;
    int n_out;   // positions beyond the budget
    int n_slots; // in pages, after the selection
    int n_ring, ring_slots;
    int64_t n_pad;
    uint32_t *keys; // [n_kv_heads, n_pad] of ranks; all ones: protected
    int32_t *from;  // [n_kv_heads, n_pad] position of each page slot
};

/* ---- select ---- */

/* K (v 0) or V of a position in the workspace; where positions are ranks, K before rotation. */
struct kept_vector {
    const struct kv_layout *l;
    const struct slot_rope *rope;
    const uint8_t *panel;
    int v, pos;
    __device__ float operator()(int d) const
    {
        const int slot = pos % PAGE_SLOTS, half = rope->rope_dim / 2;
        const float x = kv_plain_number(l, panel, v, slot, d);
        if (v || !rope->cos || d >= rope->rope_dim)
            return x;
        const float with = kv_plain_number(l, panel, v, slot, d < half ? d + half : d - half);
        const int64_t at = (int64_t)pos * half + (d < half ? d : d - half);
        const float c = rope->cos[at], s = rope->sin[at];
        const float inverse = 1.0f / (rope->scale * rope->scale);
        return d < half ? math_back_a(x, with, c, s, inverse) : math_back_b(with, x, c, s, inverse);
    }
};

DEVICE struct kept_vector kept_vector_at(const struct prompt_keep_args *a, int head, int pos, int v)
{
    const uint8_t *page = (const uint8_t *)a->pages + pos / PAGE_SLOTS * a->from.page_bytes;
    return {&a->from, &a->rope, kv_panel(&a->from, page, head, v), v, pos};
}

/* Sum over n dimensions in 16 lanes, as in math_dot(): add(d, lane) is a lane's next sum. */
template <typename ADD> DEVICE float sum16(int n, const ADD &add)
{
    float lanes[16] = {};
    for (int d0 = 0; d0 < n; d0 += 16) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            if (d0 + i >= n)
                break;
            lanes[i] = add(d0 + i, lanes[i]);
        }
    }
    return math_sum16(lanes);
}

/* math_norm() of numbers x(d). */
template <typename X> DEVICE float norm16(int n, const X &x)
{
    return sqrtf(sum16(n, [&](int d, float lane) {
        const float number = x(d);
        return fmaf(number, number, lane);
    }));
}

/* score_code_error() of a vector. Four of the 16 lanes at a time, those that math_sum16() joins
 * first: there are not enough registers for all. */
DEVICE float vector_code_error(const struct kept_vector &x)
{
    float errors[2] = {}, squares[2] = {};
#pragma unroll 1
    for (int lane = 0; lane < 4; lane++) {
        float error[4] = {}, square[4] = {};
        for (int first = 0; first < x.l->head_dim; first += KV_GROUP) {
            const int left = x.l->head_dim - first, n = left < KV_GROUP ? left : KV_GROUP;
            float least = x(first), greatest = least;
            for (int d = first + 1; d < first + n; d++) {
                const float number = x(d);
                least = number < least ? number : least;
                greatest = number > greatest ? number : greatest;
            }
            const struct code_steps steps = code_steps(least, greatest);
            for (int d = lane; d < n; d += 16) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float number = d + 4 * i < n ? x(first + d + 4 * i) : steps.least;
                    const float lost = d + 4 * i < n ? code_error(&steps, number) : 0.0f;
                    error[i] = fmaf(lost, lost, error[i]);
                    square[i] = d + 4 * i < n ? fmaf(number, number, square[i]) : square[i];
                }
            }
        }
        const float lanes_error = (error[0] + error[2]) + (error[1] + error[3]);
        const float lanes_square = (square[0] + square[2]) + (square[1] + square[3]);
        errors[0] = lane % 2 ? errors[0] : errors[0] + lanes_error;
        errors[1] = lane % 2 ? errors[1] + lanes_error : errors[1];
        squares[0] = lane % 2 ? squares[0] : squares[0] + lanes_square;
        squares[1] = lane % 2 ? squares[1] + lanes_square : squares[1];
    }
    return code_error_relative(errors[0] + errors[1], squares[0] + squares[1]);
}

/* The trait that a position has in its slot. */
DEVICE float kept_trait(const struct prompt_keep_args *a, const struct evict_rule *mode, int head,
                        int pos)
{
    if (mode->trait == EVICT_VALUE_NORM)
        return norm16(a->from.head_dim, kept_vector_at(a, head, pos, 1));
    if (mode->trait == EVICT_CODES_LEFT)
        return score_codes_left(vector_code_error(kept_vector_at(a, head, pos, 0)),
                                vector_code_error(kept_vector_at(a, head, pos, 1)));
    return 0.0f;
}

DEVICE uint32_t keep_key(const struct keep *f, int head, int pos)
{
    const struct prompt_keep_args *a = &f->a;
    const struct evict_rule mode = evict_rule_of(a->evict.policy);
    const int layer = a->evict.scope == EVICT_SCOPE_LAYER, now = a->n_prompt - 1;
    const int first = layer ? 0 : head, last = layer ? a->from.n_kv_heads : head + 1;
    float score = 0.0f;
    if (prompt_kept_anyway(a, pos))
        return 0xffffffffu;
    for (int h = first; h < last && mode.source != EVICT_NO_SCORE; h++)
        score = score + evict_score_value(&mode, prompt_kept_score(a, &mode, h, pos),
                                          kept_trait(a, &mode, h, pos));
    return rank_key(evict_rank(a->evict.policy, &a->limits, score, pos, now));
}

__global__ void __launch_bounds__(SELECT_THREADS, 1)
    keep_rank(const __grid_constant__ struct keep f)
{
    const int head = (int)blockIdx.x;
    for (int pos = (int)threadIdx.x; pos < f.a.n_prompt; pos += SELECT_THREADS)
        f.keys[head * f.n_pad + pos] = keep_key(&f, head, pos);
}

/* Evicted: keys below `key`, and the first n equal to `key`. */
struct threshold {
    uint32_t key;
    int n;
};

/* Eight bits at a time, highest first. counts [RADIX], found [1]: in shared memory. */
DEVICE struct threshold keep_threshold(const struct keep *f, const uint32_t *keys, int n_out,
                                       unsigned *counts, struct threshold *found)
{
    struct threshold t = {0, n_out};
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = (int)threadIdx.x; i < RADIX; i += SELECT_THREADS)
            counts[i] = 0;
        __syncthreads();
        for (int pos = (int)threadIdx.x; pos < f->a.n_prompt; pos += SELECT_THREADS)
            if (shift == 24 || keys[pos] >> (shift + 8) == t.key)
                atomicAdd(&counts[keys[pos] >> shift & (RADIX - 1)], 1u);
        __syncthreads();
        if (threadIdx.x == 0) {
            int digit = 0;
            while (digit < RADIX - 1 && (int)counts[digit] < t.n)
                t.n -= (int)counts[digit++];
            found->key = t.key << 8 | (uint32_t)digit;
            found->n = t.n;
        }
        __syncthreads();
        t = *found;
    }
    return t;
}

/* Number of threads before this one with `yes`; *total: of the block. */
DEVICE int block_rank(int yes, int *counts, int *total)
{
    const unsigned bits = __ballot_sync(WARP_ALL, yes);
    int before = __popc(bits & ((1u << lane_id()) - 1));
    if (lane_id() == 0)
        counts[warp_id()] = __popc(bits);
    __syncthreads();
    *total = 0;
    for (int i = 0; i < SELECT_THREADS / WARP; i++) {
        before += i < warp_id() ? counts[i] : 0;
        *total += counts[i];
    }
    __syncthreads();
    return before;
}

static int select_shared(void)
{
    return take_bytes<unsigned>(RADIX) + take_bytes<struct threshold>(1) +
           take_bytes<int>(SELECT_THREADS / WARP);
}

/* Writes positions, scores and the source of every slot; one block per KV head. */
__global__ void __launch_bounds__(SELECT_THREADS, 2)
    keep_select(const __grid_constant__ struct keep f)
{
    const int head = (int)blockIdx.x, n = f.a.n_prompt, first_in_ring = n - f.n_ring;
    struct taken taken = {};
    unsigned *counts = take<unsigned>(&taken, RADIX);
    struct threshold *found = take<struct threshold>(&taken, 1);
    int *ranks = take<int>(&taken, SELECT_THREADS / WARP);
    uint32_t *keys = f.keys + head * f.n_pad;
    const struct kv_row kv = kv_row_at(&f.a.kv, f.a.row, &f.a.limits, f.n_slots);
    const int64_t meta = (int64_t)head * kv.slots_cap;
    const struct evict_rule mode = evict_rule_of(f.a.evict.policy);
    struct threshold t = {0, 0};
    const int n_out = f.n_out;
    if (n_out > 0)
        t = keep_threshold(&f, keys, n_out, counts, found);
    int n_equal = 0, n_kept = 0, n_live = 0, total;
    for (int first = 0; first < n; first += SELECT_THREADS) {
        const int pos = first + (int)threadIdx.x;
        const uint32_t key = pos < n && n_out > 0 ? keys[pos] : 0xffffffffu;
        const int equal = n_equal + block_rank(key == t.key && n_out > 0, ranks, &total);
        n_equal += total;
        const int gone = n_out > 0 && (key < t.key || (key == t.key && equal < t.n));
        const int stays = pos < first_in_ring && (!gone || f.a.evict.simulate);
        const int slot = n_kept + block_rank(stays, ranks, &total);
        n_kept += total;
        int rank = 0;
        if (kv.slot_rank) {
            rank = n_live + block_rank(pos < n && !gone, ranks, &total);
            n_live += total;
        }
        if (pos >= n || (!stays && pos < first_in_ring))
            continue;
        int64_t at = meta + slot;
        if (stays)
            f.from[head * f.n_pad + slot] = pos;
        else
            at = meta + kv.slots_cap - f.ring_slots + pos % f.ring_slots;
        if (kv.slot_pos)
            kv.slot_pos[at] = gone ? ~pos : pos;
        if (kv.slot_score)
            kv.slot_score[at] = prompt_kept_score(&f.a, &mode, head, pos);
        if (kv.slot_rank)
            kv.slot_rank[at] = rank;
        if (kv.slot_trait)
            kv.slot_trait[at] = kept_trait(&f.a, &mode, head, pos);
    }
    const int n_pages = (f.n_slots + PAGE_SLOTS - 1) / PAGE_SLOTS;
    for (int page = (int)threadIdx.x; page < n_pages && head == 0; page += SELECT_THREADS)
        atomicOr((unsigned long long *)&kv.dirty[page / 64], 1ull << page % 64);
}

/* ---- write ---- */

/* Slots of a page, read from the prompt's positions. */
struct kept_source {
    const struct prompt_keep_args *args;
    const int *pos; // [PAGE_SLOTS]
    int head;
    __device__ int by_slot(int of_v) const
    {
        return !of_v; // positions ascend with slots, and slots of K are contiguous
    }
    __device__ float operator()(int of_v, int slot, int d) const
    {
        return kept_vector_at(args, head, pos[slot], of_v)(d);
    }
};

static int write_shared(void)
{
    return take_bytes<float>(KV_TILE_FLOATS) + take_bytes<int>(PAGE_SLOTS);
}

/* One block per page, of the row or of its ring, and KV head. */
__global__ void __launch_bounds__(WRITE_THREADS, 3)
    keep_write(const __grid_constant__ struct keep f)
{
    const int head = (int)blockIdx.y, first_in_ring = f.a.n_prompt - f.n_ring;
    const int n_pages = (f.n_slots + PAGE_SLOTS - 1) / PAGE_SLOTS;
    const int in_pages = (int)blockIdx.x < n_pages;
    const int page = in_pages ? (int)blockIdx.x : (int)blockIdx.x - n_pages;
    const int left = (in_pages ? f.n_slots : f.n_ring) - page * PAGE_SLOTS;
    const int n = left < PAGE_SLOTS ? left : PAGE_SLOTS, i = (int)threadIdx.x;
    const struct kv_row kv = kv_row_at(&f.a.kv, f.a.row, &f.a.limits, f.n_slots);
    struct taken taken = {};
    float *tile = take<float>(&taken, KV_TILE_FLOATS);
    int *pos = take<int>(&taken, PAGE_SLOTS);
    if (i < n && in_pages)
        pos[i] = f.from[head * f.n_pad + page * PAGE_SLOTS + i];
    if (i < n && !in_pages) { // the position with that remainder
        const int by = page * PAGE_SLOTS + i - first_in_ring % f.ring_slots;
        pos[i] = first_in_ring + (by < 0 ? by + f.ring_slots : by);
    }
    __syncthreads();
    struct kept_source source = {&f.a, pos, head};
    if (in_pages)
        kv_put_slots(&f.a.kv.layout, kv_page_of(&f.a.kv, kv.page_ids[page]), head, 0, n, 0, source,
                     tile);
    else
        kv_put_slots(&f.a.kv.ring, kv.ring + page * f.a.kv.ring.page_bytes, head, 0, n, 0, source,
                     tile);
}

/* ---- host ---- */

int64_t cuda_prompt_keep_scratch_bytes(const struct ops *ops, int n_prompt_max, int n_kv_heads,
                                       int head_dim)
{
    (void)ops;
    (void)head_dim;
    return 2 * round_up(4 * n_kv_heads * round_up(n_prompt_max, PAGE_SLOTS), 64);
}

void cuda_prompt_keep(cudaStream_t stream, const struct ops *ops,
                      const struct prompt_keep_args *args)
{
    CHECK(args->from.format == KV_F32 || args->from.format == KV_BF16);
    struct keep f = {};
    const unsigned heads = (unsigned)args->from.n_kv_heads;
    f.a = *args;
    f.n_out = (int)max_i64(0, (int64_t)args->n_prompt - args->limits.budget);
    f.ring_slots = args->kv.rings ? evict_ring_slots(&args->limits) : 0;
    f.n_slots = evict_slots_after(&args->evict, &args->limits, f.ring_slots, 0, 0, args->n_prompt);
    f.n_ring = evict_ring_used(f.ring_slots, args->n_prompt);
    f.n_pad = round_up(args->n_prompt, PAGE_SLOTS);
    f.keys = (uint32_t *)args->scratch;
    const int64_t key_bytes = round_up(4 * heads * f.n_pad, 64);
    f.from = (int32_t *)((uint8_t *)args->scratch + key_bytes);
    const int64_t pages = ceil_div(f.n_slots, PAGE_SLOTS) + ceil_div(f.n_ring, PAGE_SLOTS);
    (void)ops;
    if (f.n_out > 0)
        LAUNCH(keep_rank, heads, SELECT_THREADS, 0, stream, f);
    LAUNCH(keep_select, heads, SELECT_THREADS, select_shared(), stream, f);
    LAUNCH(keep_write, dim3((unsigned)pages, heads), WRITE_THREADS, write_shared(), stream, f);
}
