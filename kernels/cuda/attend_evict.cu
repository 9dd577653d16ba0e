/* kernels/cuda/attend_evict.cu - after a token's attention: its scores, and each split's first
 * victim.
 *
 * Owns: launches trait and score of attend.cu. Refuses: the meaning of a policy (policy/evict.h),
 * storing the token (attend_join.cu). */
#include "kernels/cuda/simt.cuh"

#include "kernels/cuda/attend.cuh"

/* Sum of this token's weights for a slot over the query heads: one chain. */
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
DEVICE float warp_trait(int trait, const float *k, const float *v, int n)
{
    if (trait == EVICT_VALUE_NORM)
        return warp_norm(v, n);
    const float of_key = warp_code_error(k, n);
    return score_codes_left(of_key, warp_code_error(v, n));
}

/* One warp per KV head and span. */
__global__ void __launch_bounds__(WARP) forced_trait(const __grid_constant__ struct forced f)
{
    const int head = (int)blockIdx.x, head_dim = f.a.kv.layout.head_dim;
    struct token t;
    if (!token_at(&f, (int)blockIdx.y, &t))
        return;
    const float *k = f.a.k + t.row * f.a.k_stride + (int64_t)head * head_dim;
    const float *v = f.a.v + t.row * f.a.v_stride + (int64_t)head * head_dim;
    const float trait = warp_trait(f.score.trait, k, v, head_dim);
    if (lane_id() == 0)
        f.own_trait[unit_of(&f, (int)blockIdx.y, head)] = trait;
}

/* ---- what a token adds to scores ---- */

/* Slots [at, at + n) of a head that a split covers, one per thread. */
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

/* Adds this token's weights to the score of a slot at `to`; returns the new score. */
DEVICE float score_add(const struct forced *f, const struct token *t, int64_t unit, int split,
                       int slot, float *to)
{
    const float score =
        evict_score_next(&f->score, *to, group_column(f, unit, split, slot), f->group, t->now);
    *to = score;
    return score;
}

/* ---- score ---- */

__global__ void __launch_bounds__(THREADS) forced_score(const __grid_constant__ struct forced f)
{
    const int split = (int)blockIdx.x, slot = (int)threadIdx.x;
    const int layer = f.a.evict.scope == EVICT_SCOPE_LAYER, first = (int)blockIdx.y;
    const int last = layer ? f.a.kv.layout.n_kv_heads : first + 1;
    struct token t;
    if (!token_at(&f, (int)blockIdx.z, &t) || split >= t.n_splits)
        return;
    const struct split_slots s = split_slots_at(&t, split);
    const int ring_slots = t.kv.ring_slots;
    const int64_t cap = t.kv.slots_cap;
    float score = 0.0f;
    for (int h = first; h < last && slot < s.n; h++) {
        const int64_t unit = unit_of(&f, (int)blockIdx.z, h), at = h * cap + s.at + slot;
        float own = t.kv.slot_score[at], trait = 0.0f;
        if (f.adds)
            own = score_add(&f, &t, unit, split, slot, &t.kv.slot_score[at]);
        if (f.score.trait)
            trait = t.kv.slot_trait[at];
        score = score + evict_score_value(&f.score, own, trait);
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
    struct taken taken = {};
    victim_of_block(&taken, key, (int)s.at + slot, score, pos >= 0,
                    &f.victims[unit_of(&f, (int)blockIdx.z, first) * f.n_splits + split]);
}

/* ---- host ---- */

void queue_score(cudaStream_t stream, const struct forced *f, int n_spans)
{
    const unsigned heads = (unsigned)f->a.kv.layout.n_kv_heads, spans = (unsigned)n_spans;
    const unsigned together = f->a.evict.scope == EVICT_SCOPE_LAYER ? 1 : heads;
    if (f->score.trait)
        LAUNCH(forced_trait, dim3(heads, spans), WARP, 0, stream, *f);
    LAUNCH(forced_score, dim3((unsigned)f->n_splits, together, spans), THREADS, victim_shared(),
           stream, *f);
}
