/* kernels/cuda/kv.cuh - slots of KV pages on the device, with the bytes of kernels/kv.c.
 *
 * Owns: the position of a number in a panel, and the encoding of slots by all threads of a block.
 * Refuses: choosing slots and pages (attend.cu, slots.cu).
 *
 * Note: up to four slots share a word of V. One block writes all slots of a word that a launch
 * writes, and keeps the neighbours' bits; bits of unused slots are set to ones (NaN), so that no
 * uninitialised word is ever read. Among a group's equal numbers (zeros of two signs) the one with
 * the lowest dimension is its minimum and maximum, as in kernels/kv.c. */
#ifndef KERNELS_CUDA_KV_CUH
#define KERNELS_CUDA_KV_CUH

#include "kernels/cuda/simt.cuh"

#define KV_TILE_STRIDE (KV_GROUP + 1) // neighbouring slots are in neighbouring banks
#define KV_TILE_FLOATS (PAGE_SLOTS * KV_TILE_STRIDE)

DEVICE const uint8_t *kv_panel(const struct kv_layout *l, const uint8_t *page, int head, int v)
{
    return in_device_memory(page + l->panel_bytes * head + (v ? l->v_offset : 0));
}

/* ---- victims: the slot with the lesser key is evicted first, as in evict_before() ---- */

/* Orders as ranks do; NaN precedes all. Never all ones. */
DEVICE uint32_t rank_key(float rank)
{
    uint32_t bits = __float_as_uint(rank + 0.0f); // -0 is 0
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return rank != rank ? 0 : bits;
}
DEVICE uint64_t victim_key(float rank, int pos)
{
    return (uint64_t)rank_key(rank) << 32 | (uint32_t)pos;
}

/* ---- numbers of a page ---- */

/* Numbers per word: 32-bit words in f32 and bf16, 16-bit words in q8 and q4. */
DEVICE int kv_per_word(int format)
{
    return format == KV_F32 ? 1 : format == KV_Q4 ? 4 : 2;
}

/* f16 scale of a slot's group `group`; its minimum has index l->groups + group. */
DEVICE uint16_t *kv_scale_at(const struct kv_layout *l, const uint8_t *panel, int group, int slot)
{
    return (uint16_t *)(panel + l->scales_at) + group * PAGE_SLOTS + slot;
}

/* Index of the word (1 << shift numbers) with number d of a slot in a panel of K (v 0) or V. */
DEVICE int64_t kv_word_at(const struct kv_layout *l, int v, int slot, int d, int shift)
{
    return v && l->v_offset > 0 ? (int64_t)(slot >> shift) * l->dim_pad + d
                                : (d >> shift) * PAGE_SLOTS + slot;
}

/* Number d of a slot of K (v 0) or V, in f32 or bf16: one load for both. */
DEVICE float kv_plain_number(const struct kv_layout *l, const uint8_t *panel, int v, int slot,
                             int d)
{
    const int pairs = l->format == KV_BF16, odd = (v && l->v_offset > 0 ? slot : d) % 2;
    union math_bits x = {.u = ((const uint32_t *)panel)[kv_word_at(l, v, slot, d, pairs)]};
    if (pairs)
        x.u = odd ? x.u & 0xffff0000 : x.u << 16;
    return x.f;
}

/* Number d of a slot of K (v 0) or V, in any format. */
DEVICE float kv_number(const struct kv_layout *l, const uint8_t *panel, int v, int slot, int d)
{
    if (l->format == KV_F32 || l->format == KV_BF16)
        return kv_plain_number(l, panel, v, slot, d);
    const int shift = l->format == KV_Q4 ? 2 : 1, bits = 16 >> shift, group = d / KV_GROUP;
    const uint16_t word = ((const uint16_t *)panel)[kv_word_at(l, v, slot, d, shift)];
    const int at = v && l->v_offset > 0 ? slot : d;
    const int code = word >> at % (1 << shift) * bits & ((1 << bits) - 1);
    float scale = f16_to_f32(*kv_scale_at(l, panel, group, slot));
    float minimum = f16_to_f32(*kv_scale_at(l, panel, l->groups + group, slot));
    return (float)code * scale + minimum;
}

/* ---- q8 and q4: a group of up to 64 numbers, by a warp ---- */

struct kv_group {
    uint16_t scale16, min16;
    float scale, minimum, inverse;
    int fits;
};

/* a, b: numbers lane and lane + 32 of the group; number 0 beyond the group's end. */
DEVICE struct kv_group kv_group_measure(float a, float b, int n, int max_code)
{
    const int lane = lane_id();
    int a_at = lane < n ? lane : 0, b_at = lane + WARP < n ? lane + WARP : 0;
    int fits = fabsf(a) <= 65504.0f && fabsf(b) <= 65504.0f;
    float lo = b < a || (b == a && b_at < a_at) ? b : a;
    float hi = b > a || (b == a && b_at < a_at) ? b : a;
    int lo_at = b < a || (b == a && b_at < a_at) ? b_at : a_at;
    int hi_at = b > a || (b == a && b_at < a_at) ? b_at : a_at;
    for (int by = WARP / 2; by > 0; by /= 2) {
        float low = warp_xor(lo, by), high = warp_xor(hi, by);
        int low_at = warp_xor(lo_at, by), high_at = warp_xor(hi_at, by);
        int lower = low < lo || (low == lo && low_at < lo_at);
        int higher = high > hi || (high == hi && high_at < hi_at);
        lo = lower ? low : lo;
        lo_at = lower ? low_at : lo_at;
        hi = higher ? high : hi;
        hi_at = higher ? high_at : hi_at;
    }
    struct kv_group g;
    g.fits = warp_least(fits);
    g.min16 = f32_to_f16(g.fits ? lo : NAN);
    g.minimum = f16_to_f32(g.min16);
    g.scale16 = f32_to_f16(g.fits ? (hi - g.minimum) / (float)max_code : NAN);
    g.scale = f16_to_f32(g.scale16);
    g.inverse = g.scale > 0 ? 1.0f / g.scale : 0.0f;
    return g;
}

DEVICE float kv_group_code(const struct kv_group *g, float x, int max_code)
{
    float t = g->fits ? (x - g->minimum) * g->inverse + 0.5f : 0.0f;
    t = t > 0.0f ? t : 0.0f;
    return (float)(int)(t < (float)max_code ? t : (float)max_code);
}

/* to [head_dim], shared: x [head_dim] after encoding and decoding. All threads; a barrier must
 * follow. */
DEVICE void kv_round_row(const struct kv_layout *l, const float *x, float *to)
{
    const int max_code = l->format == KV_Q8 ? 255 : 15, n_warps = (int)blockDim.x / WARP;
    for (int d = (int)threadIdx.x; d < l->head_dim && l->groups == 0; d += (int)blockDim.x)
        to[d] = l->format == KV_BF16 ? bf16_to_f32(f32_to_bf16(x[d])) : x[d];
    for (int group = warp_id(); group < l->groups; group += n_warps) {
        const int first = group * KV_GROUP, left = l->head_dim - first;
        const int n = left < KV_GROUP ? left : KV_GROUP, lane = lane_id();
        float a = x[first + (lane < n ? lane : 0)];
        float b = x[first + (lane + WARP < n ? lane + WARP : 0)];
        struct kv_group g = kv_group_measure(a, b, n, max_code);
        if (lane < n)
            to[first + lane] = kv_group_code(&g, a, max_code) * g.scale + g.minimum;
        if (lane + WARP < n)
            to[first + lane + WARP] = kv_group_code(&g, b, max_code) * g.scale + g.minimum;
    }
}

/* ---- slots into a page, 64 dimensions at a time, by a block ---- */

/* A part of a panel: dimensions [d0, d0 + n_pad) of slots [first, last). */
struct kv_part {
    int v, d0, n, n_pad; // n of them are numbers, the rest is padding
    int first, last;
    int used; // used slots of the page before this write
};

/* Replaces the numbers of the tile [slot][dimension] by codes; writes scales and minima to the
 * panel. */
DEVICE void kv_tile_encode(const struct kv_layout *l, uint8_t *panel, const struct kv_part *p,
                           float *tile)
{
    const int max_code = l->format == KV_Q8 ? 255 : 15, n_warps = (int)blockDim.x / WARP;
    const int lane = lane_id(), group = p->d0 / KV_GROUP;
    for (int slot = p->first + warp_id(); slot < p->last; slot += n_warps) {
        float *x = tile + slot * KV_TILE_STRIDE;
        float a = x[lane < p->n ? lane : 0], b = x[lane + WARP < p->n ? lane + WARP : 0];
        struct kv_group g = kv_group_measure(a, b, p->n, max_code);
        __syncwarp(); // number 0 has been read
        if (lane < p->n)
            x[lane] = kv_group_code(&g, a, max_code);
        if (lane + WARP < p->n)
            x[lane + WARP] = kv_group_code(&g, b, max_code);
        if (lane == 0) {
            *kv_scale_at(l, panel, group, slot) = g.scale16;
            *kv_scale_at(l, panel, l->groups + group, slot) = g.min16;
        }
    }
}

/* A number of the tile as bits of a word. */
DEVICE uint32_t kv_tile_bits(const struct kv_layout *l, float x)
{
    return l->format == KV_BF16 ? f32_to_bf16(x) : (uint32_t)(int)x;
}

/* Writes words of the panel: a word of K belongs to one slot, a word of V to several. */
DEVICE void kv_tile_words(const struct kv_layout *l, uint8_t *panel, const struct kv_part *p,
                          const float *tile)
{
    const int per = kv_per_word(l->format), bits = (l->format == KV_BF16 ? 32 : 16) / per;
    const int fast = p->v ? p->n_pad : p->last - p->first;
    const int slow0 = p->v ? p->first / per : p->d0 / per;
    const int slow1 = p->v ? (p->last - 1) / per + 1 : (p->d0 + p->n_pad) / per;
    for (int i = (int)threadIdx.x; i < fast * (slow1 - slow0); i += (int)blockDim.x) {
        const int slow = slow0 + i / fast, at = i % fast;
        uint32_t word = 0, mask = 0;
        for (int j = 0; j < per; j++) {
            int slot = p->v ? slow * per + j : p->first + at,
                d = p->v ? at : slow * per + j - p->d0;
            const int put = slot >= p->first && slot < p->last;
            const uint32_t ones = (1u << bits) - 1;
            if (put || slot >= p->used) {
                word |= (put ? kv_tile_bits(l, tile[slot * KV_TILE_STRIDE + d]) : ones) << j * bits;
                mask |= ones << j * bits;
            }
        }
        int64_t index =
            p->v ? (int64_t)slow * l->dim_pad + p->d0 + at : slow * PAGE_SLOTS + p->first + at;
        const uint32_t whole = l->format == KV_BF16 ? 0xffffffffu : 0xffffu;
        if (l->format == KV_BF16) {
            uint32_t *to = (uint32_t *)panel + index;
            *to = mask == whole ? word : (*to & ~mask) | word;
        } else {
            uint16_t *to = (uint16_t *)panel + index;
            *to = (uint16_t)(mask == whole ? word : (*to & ~mask) | word);
        }
    }
}

DEVICE void kv_tile_floats(const struct kv_layout *l, uint8_t *panel, const struct kv_part *p,
                           const float *tile)
{
    const int n_slots = p->last - p->first;
    for (int i = (int)threadIdx.x; i < n_slots * p->n_pad; i += (int)blockDim.x) {
        const int slot = p->first + (p->v ? i / p->n_pad : i % n_slots);
        const int d = p->v ? i % p->n_pad : i / n_slots;
        const int64_t at = p->v ? (int64_t)slot * l->dim_pad + p->d0 + d
                                : (int64_t)(p->d0 + d) * PAGE_SLOTS + slot;
        ((float *)panel)[at] = tile[slot * KV_TILE_STRIDE + d];
    }
}

/* Writes slots [first, last) of one head into a page whose first `used` slots were in use.
 * source(v, slot, d) is number d of K (v 0) or V; source.by_slot(v): reads of neighbouring slots,
 * not dimensions, are contiguous. All threads of the block; tile [KV_TILE_FLOATS]: unused shared
 * memory. */
template <class Source>
DEVICE void kv_put_slots(const struct kv_layout *l, uint8_t *page, int head, int first, int last,
                         int used, const Source &source, float *tile)
{
    for (int v = 0; v < (l->v_offset > 0 ? 2 : 1); v++) {
        uint8_t *panel = (uint8_t *)kv_panel(l, page, head, v);
        for (int d0 = 0; d0 < l->dim_pad; d0 += KV_GROUP) {
            const int left = l->head_dim - d0, left_pad = l->dim_pad - d0, n_slots = last - first;
            struct kv_part p = {v,
                                d0,
                                left < KV_GROUP ? left : KV_GROUP,
                                left_pad < KV_GROUP ? left_pad : KV_GROUP,
                                first,
                                last,
                                used};
            for (int i = (int)threadIdx.x; i < n_slots * p.n_pad; i += (int)blockDim.x) {
                const int slot = first + (source.by_slot(v) ? i % n_slots : i / p.n_pad);
                const int d = source.by_slot(v) ? i / n_slots : i % p.n_pad;
                tile[slot * KV_TILE_STRIDE + d] = d < p.n ? source(v, slot, d0 + d) : 0.0f;
            }
            __syncthreads();
            if (l->groups > 0) {
                kv_tile_encode(l, panel, &p, tile);
                __syncthreads();
            }
            if (l->format == KV_F32)
                kv_tile_floats(l, panel, &p, tile);
            else
                kv_tile_words(l, panel, &p, tile);
            __syncthreads(); // the tile is free
        }
    }
}

#endif
