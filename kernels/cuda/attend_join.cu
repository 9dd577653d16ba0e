/* kernels/cuda/attend_join.cu - the end of a token: joins splits to outputs, stores K and V.
 *
 * Owns: launches join and place of attend.cu. For policies without scores both are one launch, and
 * the victim follows from positions alone. Refuses: scores (attend_evict.cu), the meaning of a
 * policy (policy/evict.h).
 *
 * Note: blocks of other heads write their part of the row at the same time. So a block reads only
 * its own head's part of the row, and data of other heads from scratch. Under scope layer all heads
 * find the same victim, because scores, or positions, are the same in all of them. */
#include "kernels/cuda/simt.cuh"

#include "kernels/cuda/attend.cuh"

/* ---- join ---- */

/* Weights of the splits of one query head, by a warp. Returns their sum; *max: the greatest logit,
 * initially the own token's. */
DEVICE float join_splits(const struct forced *f, int n_splits, int64_t part0, int row, float *max)
{
    float most = *max, sum = 0.0f;
    for (int i = lane_id(); i < n_splits; i += WARP) {
        float m = f->max[(part0 + i) * f->group + row];
        most = m > most ? m : most;
    }
    *max = warp_max(most);
    for (int first = 0; first < n_splits; first += WARP) {
        const int i = first + lane_id(), n = n_splits - first < WARP ? n_splits - first : WARP;
        float weight = 0.0f, part = 0.0f;
        if (i < n_splits) {
            const int64_t at = (part0 + i) * f->group + row;
            weight = math_exp(f->max[at] - *max);
            part = f->sum[at];
            f->weight[at] = weight;
        }
        for (int j = 0; j < n; j++) // one chain over splits
            sum = fmaf(warp_shfl(weight, j), warp_shfl(part, j), sum);
    }
    return sum;
}

static int join_shared(const struct kv_layout *l, int group)
{
    return take_bytes<float>(l->head_dim) * 2 + take_bytes<float>(group) * 3;
}

/* Outputs of the query heads of a KV head. For policies with scores, their weights for the new
 * token go to scratch, and to weight [group] in shared memory. */
template <int SCORES>
DEVICE void join_token(const struct forced *f, const struct token *t, int span, int head,
                       struct taken *taken, float *weight)
{
    const int head_dim = f->a.kv.layout.head_dim, group = f->group;
    float *own_k = take<float>(taken, head_dim), *own_v = take<float>(taken, head_dim);
    float *own = take<float>(taken, group), *inverse = take<float>(taken, group);
    const struct kv_layout l = t->kv.ring_slots > 0 ? f->a.kv.ring : f->a.kv.layout;
    const int64_t unit = unit_of(f, span, head), part0 = unit * f->n_splits;
    kv_round_row(&l, f->a.k + t->row * f->a.k_stride + (int64_t)head * head_dim, own_k);
    kv_round_row(&l, f->a.v + t->row * f->a.v_stride + (int64_t)head * head_dim, own_v);
    __syncthreads();
    if (f->a.rope.cos) {
        row_turn(&f->a.rope, evict_rank_new(&t->s.limits, t->now), own_k);
        __syncthreads();
    }
    for (int r = warp_id(); r < group; r += THREADS / WARP) {
        float logit = 0.0f;
        for (int d = lane_id() % 16; d < head_dim; d += 16)
            logit = fmaf(query_number(f, t, head * group + r, d), own_k[d], logit);
        logit = math_softcap(warp_sum16(logit) * f->a.scale, f->a.cap);
        float max = logit, sum = join_splits(f, t->n_splits, part0, r, &max);
        float e = math_exp(logit - max);
        float inv = 1.0f / (sum + e + math_sink(f->a.sinks, head * group + r, max));
        const int finite = fabsf(inv) < INFINITY;
        if (lane_id() == 0) {
            own[r] = e;
            inverse[r] = inv;
            if (SCORES) {
                weight[r] = finite ? e * inv : 0.0f;
                f->own_weight[unit * group + r] = weight[r];
                f->inverse[unit * group + r] = finite ? inv : 0.0f;
            }
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < group * head_dim; i += THREADS) {
        const int r = i / head_dim, d = i % head_dim;
        float out = 0.0f;
#pragma unroll 4
        for (int split = 0; split < t->n_splits; split++) {
            const int64_t at = (part0 + split) * group + r;
            out = fmaf(f->weight[at], f->out[at * head_dim + d], out);
        }
        const int64_t to = t->row * f->a.out_stride + (int64_t)(head * group + r) * head_dim + d;
        f->a.out[to] = fmaf(own[r], own_v[d], out) * inverse[r];
    }
}

/* The score of the new token, from weights [group]. */
DEVICE void score_own(const struct forced *f, const struct token *t, int span, int head,
                      const float *weight)
{
    if (threadIdx.x != 0)
        return;
    float score = 0.0f;
    for (int r = 0; r < f->group && f->adds; r++)
        score = score + weight[r];
    f->own_score[unit_of(f, span, head)] =
        f->adds ? evict_score_next(&f->score, 0.0f, score, f->group, t->now) : 0.0f;
}

/* ---- place ---- */

/* The slot for a token that enters the pages: the new token, or the one leaving the ring. */
struct room {
    int slot;   // -1: the token is dropped
    int pos;    // position to write there
    int masked; // simulate: slot of the token that would be evicted; -1: none
    int victim; // page slot of the evicted token; -1: none, or the incoming token itself
    struct evict_event event;
};

/* The first victim among a head's page slots, from the splits' victims, by a warp. Under scope
 * layer the same in all heads. */
DEVICE struct victim victim_of_splits(const struct forced *f, const struct token *t, int span,
                                      int head)
{
    const int first = f->a.evict.scope == EVICT_SCOPE_LAYER ? 0 : head;
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
    n_live = warp_sum(n_live);
    struct victim victim = {least, -1, n_live, 0.0f};
    if (t->page_splits > 0) {
        victim.slot = parts[from].slot;
        victim.score = parts[from].score;
    }
    return victim;
}

/* The same for policies without scores, by a block: the victim follows from positions. Under scope
 * layer all heads have the same positions. victim: in shared memory; a barrier must follow. */
DEVICE void victim_of_head(const struct forced *f, const struct token *t, int64_t meta,
                           struct taken *taken, struct victim *victim)
{
    uint64_t least = ~(uint64_t)0;
    int least_slot = -1, n_live = 0;
    for (int slot = (int)threadIdx.x; slot < t->kv.n_slots; slot += THREADS) {
        const int pos = t->kv.slot_pos[meta + slot];
        n_live += pos >= 0;
        if (pos < 0 || evict_protected(&t->s.limits, pos, t->now))
            continue;
        const uint64_t key =
            victim_key(evict_rank(f->a.evict.policy, &t->s.limits, 0.0f, pos, t->now), pos);
        if (key < least) {
            least = key;
            least_slot = slot;
        }
    }
    victim_of_block(taken, least, least_slot, 0.0f, n_live, victim);
}

/* By one thread. in_pos: position of the incoming token, -1: none. victim: of the page slots. */
template <int SCORES>
DEVICE struct room room_make(const struct forced *f, const struct token *t, int span, int head,
                             int in_pos, const struct victim *victim)
{
    const int n_heads = f->a.kv.layout.n_kv_heads, layer = f->a.evict.scope == EVICT_SCOPE_LAYER;
    const int first = layer ? 0 : head, last = layer ? n_heads : head + 1;
    struct room room = {in_pos < 0 ? -1 : t->kv.n_slots, in_pos, -1, -1, {-1, 0.0f}};
    if (f->a.evict.policy == EVICT_FULL)
        return room;
    const int n_live = victim->n_live + t->n_ring;
    if (n_live < t->s.limits.budget)
        return room;
    float score = 0.0f;
    for (int h = first; h < last && SCORES; h++) {
        const int64_t unit = unit_of(f, span, h);
        const int leaves = t->kv.ring_slots > 0;
        float trait = 0.0f;
        if (f->score.trait)
            trait = leaves ? f->leaving_trait[unit] : f->own_trait[unit];
        score = score +
                evict_score_value(&f->score, leaves ? f->leaving[unit] : f->own_score[unit], trait);
    }
    int goes = in_pos >= 0 && !evict_protected(&t->s.limits, in_pos, t->now) &&
               victim_key(evict_rank(f->a.evict.policy, &t->s.limits, score, in_pos, t->now),
                          in_pos) < victim->key;
    if (goes) {
        room.event = {in_pos, score};
        room.pos = f->a.evict.simulate ? ~in_pos : in_pos;
        room.slot = f->a.evict.simulate ? room.slot : -1;
        return room;
    }
    room.event = {(int32_t)(uint32_t)victim->key, victim->score};
    room.victim = victim->slot;
    room.masked = f->a.evict.simulate ? victim->slot : -1;
    room.slot = f->a.evict.simulate ? room.slot : victim->slot;
    return room;
}

/* Where positions are ranks: rank of the new token, and of the token that needs a page slot. */
struct ranks {
    int own, in;
};

/* Removes the victim from the ranks of a head: all younger tokens move up by one. leaving: index of
 * the token that leaves the ring; -1: the incoming token is the new one. All threads. */
DEVICE struct ranks ranks_close(const struct token *t, int64_t meta, const struct room *room,
                                int64_t leaving)
{
    const int own = evict_rank_new(&t->s.limits, t->now), evicted = room->event.pos >= 0;
    int32_t *of = t->kv.slot_rank + meta, *ring = of + t->kv.slots_cap - t->kv.ring_slots;
    const int in = leaving < 0 ? own : t->kv.slot_rank[leaving];
    const int gone = !evicted ? INT32_MAX : room->victim < 0 ? in : of[room->victim];
    __syncthreads(); // all threads have read
    for (int i = (int)threadIdx.x; i < t->kv.n_slots && evicted; i += THREADS)
        of[i] -= of[i] > gone;
    for (int i = (int)threadIdx.x; i < t->n_ring && evicted; i += THREADS)
        ring[i] -= ring[i] > gone;
    __syncthreads(); // before new ranks are written
    return {own - evicted, in - (in > gone)};
}

/* What is stored beside a slot's K and V, as far as the policy has it. */
struct beside {
    int pos, rank;
    float score, trait;
};
DEVICE void beside_put(const struct kv_row *kv, int64_t at, struct beside b)
{
    if (kv->slot_pos)
        kv->slot_pos[at] = b.pos;
    if (kv->slot_score)
        kv->slot_score[at] = b.score;
    if (kv->slot_rank)
        kv->slot_rank[at] = b.rank;
    if (kv->slot_trait)
        kv->slot_trait[at] = b.trait;
}

/* K and V of one token as contiguous numbers. */
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
           take_bytes<struct room>(1) + take_bytes<struct victim>(1) + victim_shared();
}

/* Stores the new token of a head, or the token that leaves the ring, and reports the victim. All
 * threads. */
template <int SCORES>
DEVICE void place_token(const struct forced *f, const struct token *t, int span, int head,
                        struct taken *taken)
{
    const int head_dim = f->a.kv.layout.head_dim;
    float *tile = take<float>(taken, KV_TILE_FLOATS), *old = take<float>(taken, 2 * head_dim);
    struct room *room = take<struct room>(taken, 1);
    struct victim *victim = take<struct victim>(taken, 1);
    const int64_t meta = (int64_t)head * t->kv.slots_cap;
    const int R = t->kv.ring_slots, at = R > 0 ? t->now % R : 0;
    const int in_pos = R == 0 ? t->now : t->now >= R ? t->now - R : -1;
    const int64_t ring_meta = meta + t->kv.slots_cap - R + at;
    uint8_t *ring_page = R > 0 ? t->kv.ring + at / PAGE_SLOTS * f->a.kv.ring.page_bytes : NULL;
    const float own_score = SCORES ? f->own_score[unit_of(f, span, head)] : 0.0f;
    const float own_trait = t->kv.slot_trait ? f->own_trait[unit_of(f, span, head)] : 0.0f;
    float in_score = own_score, in_trait = own_trait;
    if (R > 0 && in_pos >= 0 && t->kv.slot_score)
        in_score = t->kv.slot_score[ring_meta];
    if (R > 0 && in_pos >= 0 && t->kv.slot_trait)
        in_trait = t->kv.slot_trait[ring_meta];
    if (SCORES && warp_id() == 0) {
        const struct victim first = victim_of_splits(f, t, span, head);
        if (lane_id() == 0)
            *victim = first;
    }
    if (!SCORES && f->a.evict.policy != EVICT_FULL)
        victim_of_head(f, t, meta, taken, victim);
    __syncthreads();
    if (threadIdx.x == 0)
        *room = room_make<SCORES>(f, t, span, head, in_pos, victim);
    for (int i = (int)threadIdx.x; i < 2 * head_dim && R > 0 && in_pos >= 0; i += THREADS) {
        const int v = i / head_dim;
        old[i] = kv_number(&f->a.kv.ring, kv_panel(&f->a.kv.ring, ring_page, head, v), v,
                           at % PAGE_SLOTS, i % head_dim);
    }
    __syncthreads();
    struct token_source source = {f->a.k + t->row * f->a.k_stride + (int64_t)head * head_dim,
                                  f->a.v + t->row * f->a.v_stride + (int64_t)head * head_dim};
    if (R > 0) {
        const int slot = at % PAGE_SLOTS;
        kv_put_slots(&f->a.kv.ring, ring_page, head, slot, slot + 1, t->n_ring - (at - slot),
                     source, tile);
        source = {old, old + head_dim};
    }
    struct ranks ranks = {0, 0};
    if (t->kv.slot_rank)
        ranks = ranks_close(t, meta, room, R > 0 && in_pos >= 0 ? ring_meta : -1);
    const int slot = room->slot;
    const int page = slot / PAGE_SLOTS, in_page = slot % PAGE_SLOTS;
    if (slot >= 0)
        kv_put_slots(&f->a.kv.layout, kv_page_of(&f->a.kv, t->kv.page_ids[page]), head, in_page,
                     in_page + 1, t->kv.n_slots - page * PAGE_SLOTS, source, tile);
    if (threadIdx.x != 0)
        return;
    if (f->a.events)
        f->a.events[t->row * f->a.kv.layout.n_kv_heads + head] = room->event;
    if (room->masked >= 0)
        t->kv.slot_pos[meta + room->masked] = ~room->event.pos;
    if (R > 0)
        beside_put(&t->kv, ring_meta, {t->now, ranks.own, own_score, own_trait});
    if (slot < 0)
        return;
    beside_put(&t->kv, meta + slot, {room->pos, ranks.in, in_score, in_trait});
    atomicOr((unsigned long long *)&t->kv.dirty[page / 64], 1ull << page % 64);
}

/* ---- one launch, or two ---- */

/* PLACES: the policy has no scores, and the block also stores its head's token. */
template <int PLACES>
__global__ void __launch_bounds__(THREADS, PLACES ? 2 : 4)
    forced_join(const __grid_constant__ struct forced f)
{
    const int head = (int)blockIdx.x, span = (int)blockIdx.y;
    struct token t;
    if (!token_at(&f, span, &t))
        return;
    struct taken taken = {};
    float *weight = take<float>(&taken, f.group);
    join_token<!PLACES>(&f, &t, span, head, &taken, weight);
    if (PLACES)
        place_token<0>(&f, &t, span, head, &taken);
    else
        score_own(&f, &t, span, head, weight);
}

__global__ void __launch_bounds__(THREADS, 2) forced_place(const __grid_constant__ struct forced f)
{
    struct token t;
    struct taken taken = {};
    if (token_at(&f, (int)blockIdx.y, &t))
        place_token<1>(&f, &t, (int)blockIdx.y, (int)blockIdx.x, &taken);
}

/* ---- host ---- */

void queue_join(cudaStream_t stream, const struct forced *f, int n_spans)
{
    const struct kv_layout *l = &f->a.kv.layout;
    const dim3 grid((unsigned)l->n_kv_heads, (unsigned)n_spans);
    const int shared = join_shared(l, f->group);
    if (f->scores)
        LAUNCH(forced_join<0>, grid, THREADS, shared, stream, *f);
    else
        LAUNCH(forced_join<1>, grid, THREADS, shared + place_shared(l), stream, *f);
}

void queue_place(cudaStream_t stream, const struct forced *f, int n_spans)
{
    const struct kv_layout *l = &f->a.kv.layout;
    LAUNCH(forced_place, dim3((unsigned)l->n_kv_heads, (unsigned)n_spans), THREADS, place_shared(l),
           stream, *f);
}
