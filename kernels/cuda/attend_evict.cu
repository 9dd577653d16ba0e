/* kernels/cuda/attend_evict.cu - after the sums of a token: scores, the victim, and where the token
 * is stored.
 *
 * Owns: launches noise, trait, view, score and place of attend.cu. Refuses: what a policy means
 * (policy/evict.h). Note: what a block of another head may be writing is read from
 * scratch, never from the row: under scope layer all heads' blocks find the same victim out of the
 * same numbers. */
#include "kernels/cuda/simt.cuh"

#include "kernels/cuda/attend.cuh"

#define PLACE_THREADS 128

/* ---- noise ---- */

/* What this token's query heads give a slot: one chain over them. */
DEVICE float group_column(const struct forced *f, int64_t unit, int split, int slot)
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

/* The same under noise in the place of the first query head's exps, for a split, by a warp; their
 * sum in the place of that of its exps. */
DEVICE void split_noise(const struct forced *f, const struct token *t, int head, int64_t unit,
                        int split, uint64_t key)
{
    const float sharpness = evict_keyformer_sharpness(t->now - t->s.n_prompt);
    const int in_pages = split < t->page_splits;
    const int n = in_pages ? t->kv.n_slots - split * SPLIT : t->n_ring;
    const int first = in_pages ? split * SPLIT : t->kv.slots_cap - t->kv.ring_slots;
    const int32_t *pos = t->kv.slot_pos + (int64_t)head * t->kv.slots_cap + first;
    const int64_t row0 = (unit * f->n_splits + split) * f->group;
    float sum = 0.0f;
    for (int slot = lane_id(); slot < SPLIT; slot += WARP) {
        float e = 0.0f;
        if (slot < n)
            e = score_noised(group_column(f, unit, split, slot), score_noise(key, pos[slot]),
                             sharpness);
        f->exps[row0 * SPLIT + slot] = e;
        sum = sum + e; // lanes 0 to 15, as in attend.cu's split_exps()
        sum = sum + warp_down(e, 16);
    }
    sum = warp_sum16(sum);
    if (lane_id() == 0)
        f->sum[row0] = sum;
}

/* A block for a KV head and a span, whose warps share the splits. Afterwards the first query head
 * has the weights of all. */
__global__ void __launch_bounds__(THREADS) forced_noise(const __grid_constant__ struct forced f)
{
    const int head = (int)blockIdx.x, group = f.group;
    struct token t;
    if (!token_at(&f, (int)blockIdx.y, &t))
        return;
    const int64_t unit = unit_of(&f, (int)blockIdx.y, head);
    const uint64_t key = score_noise_key(t.now, head);
    for (int split = warp_id(); split < t.n_splits; split += THREADS / WARP)
        split_noise(&f, &t, head, unit, split, key);
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    float own = 0.0f, sum = 0.0f;
    int n_queries = 0;
    for (int r = 0; r < group; r++) {
        own = own + f.own_weight[unit * group + r];
        n_queries += f.inverse[unit * group + r] != 0.0f;
    }
#pragma unroll 4
    for (int split = 0; split < t.n_splits; split++)
        sum = sum + f.sum[(unit * f.n_splits + split) * group];
    own =
        score_noised(own, score_noise(key, t.now), evict_keyformer_sharpness(t.now - t.s.n_prompt));
    const float scale = score_noised_scale(sum + own, n_queries);
    f.inverse[unit * group] = scale;
    f.own_score[unit] = evict_score_next(&f.score, 0.0f, own * scale, group, t.now);
}

/* ---- trait ---- */

/* score_code_error() of x [n]. */
DEVICE float warp_code_error(const float *x, int n)
{
    float errors = 0.0f, squares = 0.0f;
    for (int first = 0; first < n; first += KV_GROUP) {
        const int last = first + KV_GROUP < n ? first + KV_GROUP : n;
        float least = INFINITY, greatest = -INFINITY;
        for (int d = first + lane_id(); d < last; d += WARP) {
            least = x[d] < least ? x[d] : least;
            greatest = x[d] > greatest ? x[d] : greatest;
        }
        const struct code_steps steps = code_steps(-warp_max(-least), warp_max(greatest));
        for (int d = first + lane_id() % 16; d < last; d += 16) {
            const float error = code_error(&steps, x[d]);
            errors = fmaf(error, error, errors);
            squares = fmaf(x[d], x[d], squares);
        }
    }
    errors = warp_sum16(errors);
    return code_error_relative(errors, warp_sum16(squares));
}

/* score_trait() of a token, by a warp. */
DEVICE float warp_trait(int trait, const float *k, const float *v, int n, const float *anchor,
                        int n_tokens)
{
    if (trait == EVICT_VALUE_NORM)
        return warp_norm(v, n);
    if (trait == EVICT_KEY_ALIKE)
        return warp_alike(k, anchor, n);
    if (trait == EVICT_VALUE_APART)
        return warp_apart(v, anchor, n, n_tokens);
    const float of_key = warp_code_error(k, n);
    return of_key + warp_code_error(v, n);
}

/* A warp each for a KV head and a span. */
__global__ void __launch_bounds__(WARP) forced_trait(const __grid_constant__ struct forced f)
{
    const int head = (int)blockIdx.x, head_dim = f.a.kv.layout.head_dim;
    struct token t;
    if (!token_at(&f, (int)blockIdx.y, &t))
        return;
    const float *k = f.a.k + t.row * f.a.k_stride + (int64_t)head * head_dim;
    const float *v = f.a.v + t.row * f.a.v_stride + (int64_t)head * head_dim;
    float *anchor = anchor_at(&t.kv, head);
    if (anchor)
        warp_anchor_add(f.anchor, k, v, head_dim, t.now, anchor);
    const float trait = warp_trait(f.score.trait, k, v, head_dim, anchor, t.now + 1);
    if (lane_id() == 0)
        f.own_trait[unit_of(&f, (int)blockIdx.y, head)] = trait;
}

/* ---- score ---- */

/* What this token adds to a slot's score. */
DEVICE float score_column(const struct forced *f, int64_t unit, int split, int slot)
{
    const int64_t row0 = (unit * f->n_splits + split) * f->group;
    if (f->score.source == EVICT_NOISY)
        return f->exps[row0 * SPLIT + slot] * f->inverse[unit * f->group];
    return group_column(f, unit, split, slot);
}

/* Slots of a split: [at, at + n) of a head, of which a thread has one. */
struct split_slots {
    int in_pages, n;
    int64_t at;
};
DEVICE struct split_slots split_slots_at(const struct token *t, int split)
{
    if (split < t->page_splits)
        return {1, t->kv.n_slots - split * SPLIT, (int64_t)split * SPLIT};
    return {0, t->n_ring, (int64_t)t->kv.slots_cap - t->kv.ring_slots};
}

/* This token comes to the score of a slot at `to`. */
DEVICE float score_add(const struct forced *f, const struct token *t, int64_t unit, int split,
                       int slot, float *to)
{
    const float score =
        evict_score_next(&f->score, *to, score_column(f, unit, split, slot), f->group, t->now);
    *to = score;
    return score;
}

/* ---- view: scores first, where what a slot counts depends on all of its head ---- */

static int view_shared(void)
{
    return take_bytes<struct evict_view>(THREADS / WARP);
}

__global__ void __launch_bounds__(THREADS) forced_view(const __grid_constant__ struct forced f)
{
    const int split = (int)blockIdx.x, head = (int)blockIdx.y, slot = (int)threadIdx.x;
    struct token t;
    if (!token_at(&f, (int)blockIdx.z, &t) || split >= t.n_splits)
        return;
    struct taken taken = {};
    struct evict_view *of_warp = take<struct evict_view>(&taken, THREADS / WARP);
    struct evict_view view = evict_view_empty();
    const struct split_slots s = split_slots_at(&t, split);
    const int64_t unit = unit_of(&f, (int)blockIdx.z, head);
    const int64_t at = (int64_t)head * t.kv.slots_cap + s.at + slot;
    if (slot < s.n) {
        const float score = score_add(&f, &t, unit, split, slot, &t.kv.slot_score[at]);
        if (t.kv.slot_pos[at] >= 0)
            evict_view_add(&view, score, t.kv.slot_trait[at]);
    }
    view = block_view(&view, of_warp);
    if (threadIdx.x == 0)
        f.views[unit * f.n_splits + split] = view;
}

/* Of all splits and the new token; empty where the policy has none. */
DEVICE struct evict_view head_view(const struct forced *f, const struct token *t, int64_t unit)
{
    struct evict_view view = evict_view_empty();
    if (!evict_has_view(&f->score))
        return view;
    for (int i = 0; i < t->n_splits; i++)
        evict_view_join(&view, &f->views[unit * f->n_splits + i]);
    evict_view_add(&view, f->own_score[unit], f->own_trait[unit]);
    return view;
}

/* ---- victims of splits ---- */

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
    const struct split_slots s = split_slots_at(&t, split);
    const int ring_slots = t.kv.ring_slots, adds = f.adds && !evict_has_view(&f.score);
    const int64_t cap = t.kv.slots_cap;
    float score = 0.0f;
    for (int h = first; h < last && f.scores && slot < s.n; h++) {
        const int64_t unit = unit_of(&f, (int)blockIdx.z, h), at = h * cap + s.at + slot;
        float own = t.kv.slot_score[at], trait = 0.0f;
        if (adds)
            own = score_add(&f, &t, unit, split, slot, &t.kv.slot_score[at]);
        if (f.score.trait)
            trait = t.kv.slot_trait[at];
        const struct evict_view view = head_view(&f, &t, unit);
        score = score + evict_score_value(&f.score, &view, f.group, own, trait);
        if (!s.in_pages && t.now >= ring_slots && slot == t.now % ring_slots) {
            f.leaving[unit] = own;
            f.leaving_trait[unit] = trait;
        }
    }
    if (!s.in_pages)
        return;
    uint64_t key = ~(uint64_t)0;
    int pos = -1;
    if (slot < s.n)
        pos = t.kv.slot_pos[first * cap + s.at + slot];
    if (pos >= 0 && !evict_protected(&t.s.limits, pos, t.now))
        key = victim_key(evict_rank(f.a.evict.policy, &t.s.limits, score, pos, t.now), pos);
    victim_of_block(key, (int)s.at + slot, score, pos >= 0,
                    &f.victims[unit_of(&f, (int)blockIdx.z, first) * f.n_splits + split]);
}

/* ---- place ---- */

/* Where the token goes that asks for a page slot: the new one, or the one that leaves the ring. */
struct room {
    int slot;   // -1: nowhere
    int pos;    // what to write there
    int masked; // simulate: the slot whose token would have gone; -1
    int victim; // page slot of the token that goes; -1: nobody goes, or the one that asks
    struct evict_event event;
};

/* By one warp. in_pos -1: nobody asks. */
DEVICE struct room room_make(const struct forced *f, const struct token *t, int span, int head,
                             int in_pos)
{
    const int n_heads = f->a.kv.layout.n_kv_heads, layer = f->a.evict.scope == EVICT_SCOPE_LAYER;
    const int first = layer ? 0 : head, last = layer ? n_heads : head + 1;
    struct room room = {in_pos < 0 ? -1 : t->kv.n_slots, in_pos, -1, -1, {-1, 0.0f}};
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
    if (n_live < t->s.limits.budget && !evict_uneven(&t->s.limits))
        return room;
    float score = 0.0f;
    for (int h = first; h < last && f->scores; h++) {
        const int64_t unit = unit_of(f, span, h);
        const int leaves = t->kv.ring_slots > 0;
        const struct evict_view view = head_view(f, t, unit);
        float trait = 0.0f;
        if (f->score.trait)
            trait = leaves ? f->leaving_trait[unit] : f->own_trait[unit];
        score = score + evict_score_value(&f->score, &view, f->group,
                                          leaves ? f->leaving[unit] : f->own_score[unit], trait);
    }
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
    room.victim = parts[from].slot;
    room.masked = f->a.evict.simulate ? parts[from].slot : -1;
    room.slot = f->a.evict.simulate ? room.slot : parts[from].slot;
    return room;
}

/* Where positions are ranks: of the new token, and of the one that asks for a page slot. */
struct ranks {
    int own, in;
};

/* The victim leaves the ranks of a head: all that are younger move up. leaving: place of the one
 * that asks in the ring; -1: it is the new token. All threads. */
DEVICE struct ranks ranks_close(const struct token *t, int64_t meta, const struct room *room,
                                int64_t leaving)
{
    const int own = evict_rank_new(&t->s.limits, t->now), evicted = room->event.pos >= 0;
    int32_t *of = t->kv.slot_rank + meta, *ring = of + t->kv.slots_cap - t->kv.ring_slots;
    const int in = leaving < 0 ? own : t->kv.slot_rank[leaving];
    const int gone = !evicted ? INT32_MAX : room->victim < 0 ? in : of[room->victim];
    __syncthreads(); // all have read
    for (int i = (int)threadIdx.x; i < t->kv.n_slots && evicted; i += PLACE_THREADS)
        of[i] -= of[i] > gone;
    for (int i = (int)threadIdx.x; i < t->n_ring && evicted; i += PLACE_THREADS)
        ring[i] -= ring[i] > gone;
    __syncthreads(); // before new ones are written
    return {own - evicted, in - (in > gone)};
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
    const float own_trait = t.kv.slot_trait ? f.own_trait[unit_of(&f, span, head)] : 0.0f;
    float in_score = own_score, in_trait = own_trait;
    if (R > 0 && in_pos >= 0 && t.kv.slot_score)
        in_score = t.kv.slot_score[ring_meta];
    if (R > 0 && in_pos >= 0 && t.kv.slot_trait)
        in_trait = t.kv.slot_trait[ring_meta];
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
    struct ranks ranks = {0, 0};
    if (t.kv.slot_rank)
        ranks = ranks_close(&t, meta, room, R > 0 && in_pos >= 0 ? ring_meta : -1);
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
    if (R > 0 && t.kv.slot_rank)
        t.kv.slot_rank[ring_meta] = ranks.own;
    if (R > 0 && t.kv.slot_trait)
        t.kv.slot_trait[ring_meta] = own_trait;
    if (slot < 0)
        return;
    if (t.kv.slot_pos)
        t.kv.slot_pos[meta + slot] = room->pos;
    if (t.kv.slot_score)
        t.kv.slot_score[meta + slot] = in_score;
    if (t.kv.slot_rank)
        t.kv.slot_rank[meta + slot] = ranks.in;
    if (t.kv.slot_trait)
        t.kv.slot_trait[meta + slot] = in_trait;
    const int page = slot / KV_PAGE_SLOTS;
    atomicOr((unsigned long long *)&t.kv.dirty[page / 64], 1ull << page % 64);
}

/* ---- host ---- */

void forced_evict(cudaStream_t stream, const struct forced *f, int n_spans)
{
    const unsigned heads = (unsigned)f->a.kv.layout.n_kv_heads, spans = (unsigned)n_spans;
    const unsigned together = f->a.evict.scope == EVICT_SCOPE_LAYER ? 1 : heads;
    if (f->score.source == EVICT_NOISY)
        LAUNCH(forced_noise, dim3(heads, spans), THREADS, 0, stream, *f);
    if (f->score.trait)
        LAUNCH(forced_trait, dim3(heads, spans), WARP, 0, stream, *f);
    if (evict_has_view(&f->score))
        LAUNCH(forced_view, dim3((unsigned)f->n_splits, heads, spans), THREADS, view_shared(),
               stream, *f);
    if (f->a.evict.policy != EVICT_FULL)
        LAUNCH(forced_score, dim3((unsigned)f->n_splits, together, spans), THREADS, score_shared(),
               stream, *f);
    LAUNCH(forced_place, dim3(heads, spans), PLACE_THREADS, place_shared(&f->a.kv.layout), stream,
           *f);
}
