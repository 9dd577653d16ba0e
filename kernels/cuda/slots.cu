/* kernels/cuda/slots.cu - prompt_keep: which slots of a prompt stay, and their way into its row.
 *
 * Owns: the choice by selection: a radix select over rank keys finds the greatest key that goes and
 * how many of its equals go with it, the oldest. Refuses: ranks (policy/evict.h).
 * A newcomer would miss: a thread meets the same positions in every turn, so that keys in scratch
 * need no barrier; under scope layer every head makes the same choice for itself. */
#include "kernels/cuda/simt.cuh"

#include "kernels/cuda/kv.cuh"

#define SELECT_THREADS 512
#define WRITE_THREADS  256
#define RADIX          256

struct keep {
    struct prompt_keep_args a;
    int n_out;   // positions that do not fit the budget
    int n_slots; // in pages after
    int n_ring, ring_slots;
    int64_t n_pad;
    uint32_t *keys; // [n_kv_heads, n_pad] of ranks; all ones: protected
    int32_t *from;  // [n_kv_heads, n_pad] position of every page slot
};

/* ---- select ---- */

/* The score that a position has in its slot. */
DEVICE float kept_score(const struct prompt_keep_args *a, const struct evict_score *mode, int head,
                        int pos)
{
    const struct kv_layout *l = &a->from;
    if (mode->source != EVICT_KEYS)
        return prompt_kept_score(a, mode, head, pos);
    const uint8_t *page = (const uint8_t *)a->pages + pos / KV_PAGE_SLOTS * l->page_bytes;
    const uint8_t *panel = kv_panel(l, page, head, 0);
    float lanes[16] = {};
    for (int d0 = 0; d0 < l->head_dim; d0 += 16) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            if (d0 + i >= l->head_dim)
                break;
            const float k = kv_number(l, panel, 0, pos % KV_PAGE_SLOTS, d0 + i);
            lanes[i] = fmaf(k, k, lanes[i]);
        }
    }
    return -sqrtf(math_sum16(lanes));
}

DEVICE uint32_t keep_key(const struct keep *f, int head, int pos)
{
    const struct prompt_keep_args *a = &f->a;
    const struct evict_score mode = evict_score_of(a->evict.policy);
    const int layer = a->evict.scope == EVICT_SCOPE_LAYER, now = a->n_prompt - 1;
    const int first = layer ? 0 : head, last = layer ? a->from.n_kv_heads : head + 1;
    float score = 0.0f;
    if (evict_protected(&a->limits, pos, now))
        return 0xffffffffu;
    for (int h = first; h < last && mode.source != EVICT_NO_SCORE; h++)
        score = score + evict_score_value(&mode, kept_score(a, &mode, h, pos));
    return rank_key(evict_rank(a->evict.policy, &a->limits, score, pos, now));
}

/* What is gone: keys below `key`, and of its equals the first n. */
struct threshold {
    uint32_t key;
    int n;
};

/* Eight bits at a time, highest first. counts [RADIX], found [1]: shared memory. */
DEVICE struct threshold keep_threshold(const struct keep *f, const uint32_t *keys, unsigned *counts,
                                       struct threshold *found)
{
    struct threshold t = {0, f->n_out};
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

/* How many threads before this one say yes; *total: of the block. */
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

/* Positions, scores and where every slot comes from; a block has a KV head. */
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
    const struct evict_score mode = evict_score_of(f.a.evict.policy);
    struct threshold t = {0, 0};
    for (int pos = (int)threadIdx.x; pos < n && f.n_out > 0; pos += SELECT_THREADS)
        keys[pos] = keep_key(&f, head, pos);
    if (f.n_out > 0)
        t = keep_threshold(&f, keys, counts, found);
    int n_equal = 0, n_kept = 0, total;
    for (int first = 0; first < n; first += SELECT_THREADS) {
        const int pos = first + (int)threadIdx.x;
        const uint32_t key = pos < n && f.n_out > 0 ? keys[pos] : 0xffffffffu;
        const int equal = n_equal + block_rank(key == t.key && f.n_out > 0, ranks, &total);
        n_equal += total;
        const int gone = f.n_out > 0 && (key < t.key || (key == t.key && equal < t.n));
        const int stays = pos < first_in_ring && (!gone || f.a.evict.simulate);
        const int slot = n_kept + block_rank(stays, ranks, &total);
        n_kept += total;
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
            kv.slot_score[at] = kept_score(&f.a, &mode, head, pos);
    }
    const int n_pages = (f.n_slots + KV_PAGE_SLOTS - 1) / KV_PAGE_SLOTS;
    for (int page = (int)threadIdx.x; page < n_pages && head == 0; page += SELECT_THREADS)
        atomicOr((unsigned long long *)&kv.dirty[page / 64], 1ull << page % 64);
}

/* ---- write ---- */

/* Slots of a page, by the prompt's positions that they come from. */
struct kept_source {
    const struct kv_layout *from;
    const uint8_t *pages;
    const int *pos; // [KV_PAGE_SLOTS]
    int head;
    __device__ int by_slot(int of_v) const
    {
        return !of_v; // positions ascend with slots, and slots of K lie side by side
    }
    __device__ float operator()(int of_v, int slot, int d) const
    {
        const uint8_t *page = pages + pos[slot] / KV_PAGE_SLOTS * from->page_bytes;
        return kv_number(from, kv_panel(from, page, head, of_v), of_v, pos[slot] % KV_PAGE_SLOTS,
                         d);
    }
};

static int write_shared(void)
{
    return take_bytes<float>(KV_TILE_FLOATS) + take_bytes<int>(KV_PAGE_SLOTS);
}

/* A block has a page, of the row or of its ring, and a KV head. */
__global__ void __launch_bounds__(WRITE_THREADS, 3)
    keep_write(const __grid_constant__ struct keep f)
{
    const int head = (int)blockIdx.y, first_in_ring = f.a.n_prompt - f.n_ring;
    const int n_pages = (f.n_slots + KV_PAGE_SLOTS - 1) / KV_PAGE_SLOTS;
    const int in_pages = (int)blockIdx.x < n_pages;
    const int page = in_pages ? (int)blockIdx.x : (int)blockIdx.x - n_pages;
    const int left = (in_pages ? f.n_slots : f.n_ring) - page * KV_PAGE_SLOTS;
    const int n = left < KV_PAGE_SLOTS ? left : KV_PAGE_SLOTS, i = (int)threadIdx.x;
    const struct kv_row kv = kv_row_at(&f.a.kv, f.a.row, &f.a.limits, f.n_slots);
    struct taken taken = {};
    float *tile = take<float>(&taken, KV_TILE_FLOATS);
    int *pos = take<int>(&taken, KV_PAGE_SLOTS);
    if (i < n && in_pages)
        pos[i] = f.from[head * f.n_pad + page * KV_PAGE_SLOTS + i];
    if (i < n && !in_pages) { // the position whose remainder is the slot
        const int by = page * KV_PAGE_SLOTS + i - first_in_ring % f.ring_slots;
        pos[i] = first_in_ring + (by < 0 ? by + f.ring_slots : by);
    }
    __syncthreads();
    struct kept_source source = {&f.a.from, (const uint8_t *)f.a.pages, pos, head};
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
    return 2 * round_up(4 * n_kv_heads * round_up(n_prompt_max, KV_PAGE_SLOTS), 64);
}

void cuda_prompt_keep(cudaStream_t stream, const struct ops *ops,
                      const struct prompt_keep_args *args)
{
    struct keep f = {};
    const unsigned heads = (unsigned)args->from.n_kv_heads;
    f.a = *args;
    f.n_out = (int)max_i64(0, (int64_t)args->n_prompt - args->limits.budget);
    f.ring_slots = args->kv.rings ? evict_ring_slots(&args->limits) : 0;
    f.n_slots = evict_slots_after(&args->evict, &args->limits, f.ring_slots, 0, 0, args->n_prompt);
    f.n_ring = evict_ring_used(f.ring_slots, args->n_prompt);
    f.n_pad = round_up(args->n_prompt, KV_PAGE_SLOTS);
    f.keys = (uint32_t *)args->scratch;
    f.from = (int32_t *)((uint8_t *)args->scratch + round_up(4 * heads * f.n_pad, 64));
    const int64_t pages = ceil_div(f.n_slots, KV_PAGE_SLOTS) + ceil_div(f.n_ring, KV_PAGE_SLOTS);
    (void)ops;
    LAUNCH(keep_select, heads, SELECT_THREADS, select_shared(), stream, f);
    LAUNCH(keep_write, dim3((unsigned)pages, heads), WRITE_THREADS, write_shared(), stream, f);
}
