/* kernels/cuda/attend.cuh - shared by the launches of attend_forced: attend.cu (splits),
 * attend_join.cu (joins splits, stores the token), attend_evict.cu (scores).
 *
 * Owns: scratch between launches, and the mapping from a block to its span and token. */
#ifndef KERNELS_CUDA_ATTEND_CUH
#define KERNELS_CUDA_ATTEND_CUH

#include "kernels/cuda/kv.cuh"

#define SPLIT_PAGES (SPLIT / PAGE_SLOTS)
#define THREADS     SPLIT // one thread per slot, one warp per page

struct forced {
    struct attend_forced_args a;
    int round_q;
    int scores, adds; // 1: the policy ranks by scores; 1: this token's weights change them
    struct evict_rule score;
    int group, n_chunks; // query heads per KV head; blocks that share them
    int n_splits;        // most splits of a span, ring included
    int first_span, step;
    float *max, *sum;       // [span, KV head, split][group]
    float *weight;          // the same: exp(maximum of the split - maximum of all)
    float *out;             // [span, KV head, split][group, head_dim]
    float *exps;            // [span, KV head, split][group, SPLIT]; only where scores change
    float *inverse;         // [span, KV head][group]; 0: the weights are not finite
    float *own_weight;      // [span, KV head][group] of the new token
    float *own_score;       // [span, KV head]
    float *own_trait;       // the same
    float *leaving;         // [span, KV head] score of the token that leaves the ring
    float *leaving_trait;   // the same
    struct victim *victims; // [span, KV head, split]
};

/* One span's token of this launch. */
struct token {
    struct forced_span s;
    struct kv_row kv;
    int now, n_ring;
    int page_splits, n_splits;
    int64_t row; // of q, k, v, out and events
};

/* 0: the span has no token at this step. */
DEVICE int token_at(const struct forced *f, int span, struct token *t)
{
    t->s = f->a.spans[f->first_span + span];
    if (f->step >= t->s.n)
        return 0;
    int ring_slots = f->a.kv.rings ? evict_ring_slots(&t->s.limits) : 0;
    int n_slots =
        evict_slots_after(&f->a.evict, &t->s.limits, ring_slots, t->s.n_slots, t->s.pos, f->step);
    t->kv = kv_row_at(&f->a.kv, t->s.row, &t->s.limits, n_slots);
    t->now = t->s.pos + f->step;
    t->n_ring = kv_ring_used(&t->kv, t->now);
    t->page_splits = (n_slots + SPLIT - 1) / SPLIT;
    t->n_splits = t->page_splits + (t->n_ring > 0);
    t->row = t->s.token + f->step;
    return 1;
}

DEVICE int64_t unit_of(const struct forced *f, int span, int head)
{
    return (int64_t)span * f->a.kv.layout.n_kv_heads + head;
}

/* ---- positions by rank: see struct slot_rope ---- */

/* The dimension that dimension d < rope_dim is rotated with. */
DEVICE int turns_with(const struct slot_rope *rope, int d)
{
    const int half = rope->rope_dim / 2;
    return d < half ? d + half : d - half;
}
/* Number d < rope_dim after rotating x and its partner `with` by rank `rank`. */
DEVICE float turned(const struct slot_rope *rope, int rank, int d, float x, float with)
{
    const int half = rope->rope_dim / 2;
    const int64_t at = (int64_t)rank * half + (d < half ? d : d - half);
    const float c = rope->cos[at], s = rope->sin[at];
    return d < half ? math_turn_a(x, with, c, s) : math_turn_b(with, x, c, s);
}
/* Rotates x [head_dim], in shared memory, in place. All threads; barriers before and after. */
DEVICE void row_turn(const struct slot_rope *rope, int rank, float *x)
{
    const int half = rope->rope_dim / 2;
    for (int i = (int)threadIdx.x; i < half; i += (int)blockDim.x) {
        const float a = x[i], b = x[half + i];
        x[i] = turned(rope, rank, i, a, b);
        x[half + i] = turned(rope, rank, half + i, b, a);
    }
}

/* Number d of a query head; where positions are ranks, rotated by the rank of the new token. */
DEVICE float query_number(const struct forced *f, const struct token *t, int query_head, int d)
{
    const float *q =
        f->a.q + t->row * f->a.q_stride + (int64_t)query_head * f->a.kv.layout.head_dim;
    float x = q[d];
    if (f->a.rope.cos && d < f->a.rope.rope_dim)
        x = turned(&f->a.rope, evict_rank_new(&t->s.limits, t->now), d, x,
                   q[turns_with(&f->a.rope, d)]);
    if (f->a.rope.factors)
        x *= f->a.rope.factors[evict_rank_new(&t->s.limits, t->now)];
    return f->round_q ? bf16_to_f32(f32_to_bf16(x)) : x;
}

/* The Euclidean norm of x [n], by a warp. */
DEVICE float warp_norm(const float *x, int n)
{
    float square = 0.0f;
    for (int d = lane_id() % 16; d < n; d += 16)
        square = fmaf(x[d], x[d], square);
    return sqrtf(warp_sum16(square));
}

/* ---- scores and victims ---- */

/* The first victim of a block of THREADS. key: of each thread's slot, all ones for none; live: the
 * thread's live slots. A barrier must follow before `to` is read. */
DEVICE void victim_of_block(struct taken *taken, uint64_t key, int slot, float score, int live,
                            struct victim *to)
{
    uint64_t *keys = take<uint64_t>(taken, THREADS / WARP);
    int *n_live = take<int>(taken, THREADS / WARP), *winner = take<int>(taken, 1);
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
    if (*winner == warp_id() && key == least) { // one thread: positions differ
        to->slot = slot;
        to->score = score;
    }
}

static inline int victim_shared(void)
{
    return take_bytes<uint64_t>(THREADS / WARP) + take_bytes<int>(THREADS / WARP) +
           take_bytes<int>(1);
}

/* ---- launches of one token of n_spans spans ---- */

/* Joins splits to outputs. For policies without scores, the same launch stores the token. */
void queue_join(cudaStream_t stream, const struct forced *f, int n_spans);
/* For policies with scores: the launches after the join: scores, then storing the token. */
void queue_score(cudaStream_t stream, const struct forced *f, int n_spans);
void queue_place(cudaStream_t stream, const struct forced *f, int n_spans);

#endif
