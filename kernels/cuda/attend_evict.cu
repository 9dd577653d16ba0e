/* kernels/cuda/attend_evict.cu - after the sums of a token: scores, the victim, and where the token
 * is stored.
 *
 * Owns: launches score and place of attend.cu. Refuses: what a policy means (policy/evict.h).
 * A newcomer would miss: what a block of another head may be writing is read from scratch, never
 * from the row: under scope layer all heads' blocks find the same victim out of the same numbers.
 */
#include "kernels/cuda/simt.cuh"

#include "kernels/cuda/attend.cuh"

#define PLACE_THREADS 128

/* ---- score ---- */

/* What this token adds to a slot's score: one chain over query heads. */
DEVICE float score_column(const struct forced *f, int64_t unit, int split, int slot)
{
    const int64_t row0 = (unit * f->n_splits + split) * f->group;
    float column = 0.0f;
#pragma unroll 4
    for (int r = 0; r < f->group; r++) {
        const float inverse = f->inverse[unit * f->group + r];
        if (inverse != 0.0f)
            column =
                fmaf(f->exps[(row0 + r) * SPLIT + slot], f->weight[row0 + r] * inverse, column);
    }
    return column;
}

/* The first to go of a block: of every thread a key, all ones for none. */
DEVICE void victim_of_block(uint64_t key, int slot, float score, int live, struct victim *to)
{
    struct taken taken = {};
    uint64_t *keys = take<uint64_t>(&taken, THREADS / WARP);
    int *n_live = take<int>(&taken, THREADS / WARP), *winner = take<int>(&taken, 1);
    uint64_t least = warp_least(key);
    int sum = warp_sum(live);
    if (lane_id() == 0) {
        keys[warp_id()] = least;
        n_live[warp_id()] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        *winner = -1;
        to->key = ~(uint64_t)0;
        to->n_live = 0;
        to->slot = -1;
        to->score = 0.0f;
        for (int i = 0; i < THREADS / WARP; i++) {
            if (keys[i] < to->key) {
                to->key = keys[i];
                *winner = i;
            }
            to->n_live += n_live[i];
        }
    }
    __syncthreads();
    if (*winner == warp_id() && key == least) { // positions differ: one thread
        to->slot = slot;
        to->score = score;
    }
}

static int score_shared(void)
{
    return take_bytes<uint64_t>(THREADS / WARP) + take_bytes<int>(THREADS / WARP) +
           take_bytes<int>(1);
}

__global__ void __launch_bounds__(THREADS) forced_score(const __grid_constant__ struct forced f)
{
    const int split = (int)blockIdx.x, slot = (int)threadIdx.x;
    const int layer = f.a.evict.scope == EVICT_SCOPE_LAYER, first = (int)blockIdx.y;
    const int last = layer ? f.a.kv.layout.n_kv_heads : first + 1;
    struct token t;
    if (!token_at(&f, (int)blockIdx.z, &t) || split >= t.n_splits)
        return;
    const int in_pages = split < t.page_splits, left = t.kv.n_slots - split * SPLIT;
    const int n = in_pages ? left : t.n_ring, ring_slots = t.kv.ring_slots;
    const int64_t cap = t.kv.slots_cap, at = in_pages ? split * SPLIT : cap - ring_slots;
    float score = 0.0f;
    for (int h = first; h < last && f.scores && slot < n; h++) {
        const int64_t unit = unit_of(&f, (int)blockIdx.z, h);
        float *to = t.kv.slot_score + h * cap + at + slot;
        float own = *to;
        if (f.adds)
            own = evict_score_next(&f.score, own, score_column(&f, unit, split, slot), f.group,
                                   t.now);
        *to = own;
        score = score + evict_score_value(&f.score, own);
        if (!in_pages && t.now >= ring_slots && slot == t.now % ring_slots)
            f.leaving[unit] = own;
    }
    if (!in_pages)
        return;
    uint64_t key = ~(uint64_t)0;
    int pos = -1;
    if (slot < n)
        pos = t.kv.slot_pos[first * cap + at + slot];
    if (pos >= 0 && !evict_protected(&t.s.limits, pos, t.now))
        key = victim_key(evict_rank(f.a.evict.policy, &t.s.limits, score, pos, t.now), pos);
    victim_of_block(key, (int)at + slot, score, pos >= 0,
                    &f.victims[unit_of(&f, (int)blockIdx.z, first) * f.n_splits + split]);
}

/* ---- place ---- */

/* Where the token goes that asks for a page slot: the new one, or the one that leaves the ring. */
struct room {
    int slot;   // -1: nowhere
    int pos;    // what to write there
    int masked; // simulate: the slot whose token would have gone; -1
    struct evict_event event;
};

/* By one warp. in_pos -1: nobody asks. */
DEVICE struct room room_make(const struct forced *f, const struct token *t, int span, int head,
                             int in_pos)
{
    const int n_heads = f->a.kv.layout.n_kv_heads, layer = f->a.evict.scope == EVICT_SCOPE_LAYER;
    const int first = layer ? 0 : head, last = layer ? n_heads : head + 1;
    struct room room = {in_pos < 0 ? -1 : t->kv.n_slots, in_pos, -1, {-1, 0.0f}};
    if (f->a.evict.policy == EVICT_FULL)
        return room;
    const struct victim *parts = f->victims + unit_of(f, span, first) * f->n_splits;
    uint64_t key = ~(uint64_t)0;
    int from = 0, n_live = 0;
    for (int i = lane_id(); i < t->page_splits; i += WARP) {
        n_live += parts[i].n_live;
        if (parts[i].key < key) {
            key = parts[i].key;
            from = i;
        }
    }
    const uint64_t least = warp_least(key);
    from = warp_least(key == least ? from : INT32_MAX);
    n_live = warp_sum(n_live) + t->n_ring;
    if (n_live < t->s.limits.budget)
        return room;
    float score = 0.0f;
    for (int h = first; h < last && f->scores; h++)
        score = score + evict_score_value(&f->score, (t->kv.ring_slots > 0
                                                          ? f->leaving
                                                          : f->own_score)[unit_of(f, span, h)]);
    int goes = in_pos >= 0 && !evict_protected(&t->s.limits, in_pos, t->now) &&
               victim_key(evict_rank(f->a.evict.policy, &t->s.limits, score, in_pos, t->now),
                          in_pos) < least;
    if (goes) {
        room.event = {in_pos, score};
        room.pos = f->a.evict.simulate ? ~in_pos : in_pos;
        room.slot = f->a.evict.simulate ? room.slot : -1;
        return room;
    }
    room.event = {(int32_t)(uint32_t)least, parts[from].score};
    room.masked = f->a.evict.simulate ? parts[from].slot : -1;
    room.slot = f->a.evict.simulate ? room.slot : parts[from].slot;
    return room;
}

/* K and V of one token, one number after the other. */
struct token_source {
    const float *k, *v;
    __device__ int by_slot(int) const
    {
        return 0;
    }
    __device__ float operator()(int of_v, int, int d) const
    {
        return (of_v ? v : k)[d];
    }
};

static int place_shared(const struct kv_layout *l)
{
    return take_bytes<float>(KV_TILE_FLOATS) + take_bytes<float>(2 * l->head_dim) +
           take_bytes<struct room>(1);
}

__global__ void __launch_bounds__(PLACE_THREADS, 4)
    forced_place(const __grid_constant__ struct forced f)
{
    const int head = (int)blockIdx.x, span = (int)blockIdx.y, head_dim = f.a.kv.layout.head_dim;
    struct token t;
    if (!token_at(&f, span, &t))
        return;
    struct taken taken = {};
    float *tile = take<float>(&taken, KV_TILE_FLOATS), *old = take<float>(&taken, 2 * head_dim);
    struct room *room = take<struct room>(&taken, 1);
    const int64_t meta = (int64_t)head * t.kv.slots_cap;
    const int R = t.kv.ring_slots, at = R > 0 ? t.now % R : 0;
    const int in_pos = R == 0 ? t.now : t.now >= R ? t.now - R : -1;
    const int64_t ring_meta = meta + t.kv.slots_cap - R + at;
    uint8_t *ring_page = R > 0 ? t.kv.ring + at / KV_PAGE_SLOTS * f.a.kv.ring.page_bytes : NULL;
    const float own_score = f.own_score[unit_of(&f, span, head)];
    float in_score = own_score;
    if (R > 0 && in_pos >= 0 && t.kv.slot_score)
        in_score = t.kv.slot_score[ring_meta];
    if (warp_id() == 0) {
        struct room made = room_make(&f, &t, span, head, in_pos);
        if (lane_id() == 0)
            *room = made;
    }
    for (int i = (int)threadIdx.x; i < 2 * head_dim && R > 0 && in_pos >= 0; i += PLACE_THREADS) {
        const int v = i / head_dim;
        old[i] = kv_number(&f.a.kv.ring, kv_panel(&f.a.kv.ring, ring_page, head, v), v,
                           at % KV_PAGE_SLOTS, i % head_dim);
    }
    __syncthreads();
    struct token_source source = {f.a.k + t.row * f.a.k_stride + (int64_t)head * head_dim,
                                  f.a.v + t.row * f.a.v_stride + (int64_t)head * head_dim};
    if (R > 0) {
        const int slot = at % KV_PAGE_SLOTS;
        kv_put_slots(&f.a.kv.ring, ring_page, head, slot, slot + 1, t.n_ring - (at - slot), source,
                     tile);
        source = {old, old + head_dim};
    }
    const int slot = room->slot;
    if (slot >= 0)
        kv_put_slots(&f.a.kv.layout, kv_page_of(&f.a.kv, t.kv.page_ids[slot / KV_PAGE_SLOTS]), head,
                     slot % KV_PAGE_SLOTS, slot % KV_PAGE_SLOTS + 1,
                     t.kv.n_slots - slot / KV_PAGE_SLOTS * KV_PAGE_SLOTS, source, tile);
    if (threadIdx.x != 0)
        return;
    if (f.a.events)
        f.a.events[t.row * f.a.kv.layout.n_kv_heads + head] = room->event;
    if (room->masked >= 0)
        t.kv.slot_pos[meta + room->masked] = ~room->event.pos;
    if (R > 0 && t.kv.slot_pos)
        t.kv.slot_pos[ring_meta] = t.now;
    if (R > 0 && t.kv.slot_score)
        t.kv.slot_score[ring_meta] = own_score;
    if (slot < 0)
        return;
    if (t.kv.slot_pos)
        t.kv.slot_pos[meta + slot] = room->pos;
    if (t.kv.slot_score)
        t.kv.slot_score[meta + slot] = in_score;
    const int page = slot / KV_PAGE_SLOTS;
    atomicOr((unsigned long long *)&t.kv.dirty[page / 64], 1ull << page % 64);
}

/* ---- host ---- */

void forced_evict(cudaStream_t stream, const struct forced *f, int n_spans)
{
    const unsigned heads = (unsigned)f->a.kv.layout.n_kv_heads, spans = (unsigned)n_spans;
    const unsigned together = f->a.evict.scope == EVICT_SCOPE_LAYER ? 1 : heads;
    if (f->a.evict.policy != EVICT_FULL)
        LAUNCH(forced_score, dim3((unsigned)f->n_splits, together, spans), THREADS, score_shared(),
               stream, *f);
    LAUNCH(forced_place, dim3(heads, spans), PLACE_THREADS, place_shared(&f->a.kv.layout), stream,
           *f);
}
