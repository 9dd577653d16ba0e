/* kernels/cuda/attend.cu - attend_forced: attention of a row's next token over its slots.
 *
 * Owns: the order of the token's sums (rule b), its scores, its victim and the slot it is stored
 * in. Refuses: prompts (prefill.cu), the meaning of a policy (policy/evict.h).
 *
 * A token takes two launches in turn, and a span of n tokens n times that: the slots of a token
 * depend on where the token before was stored. Blocks of a launch share nothing.
 *   split  (split, KV head, span)  a split's greatest logit, sum of exps and exps . V
 *   join   (KV head, span)         splits in ascending order, the ring, the own token, the sink;
 *                                  for policies without scores also place, in the same block
 * For policies with scores, two more:
 *   score  (split, KV head, span)  adds weights to scores, finds each split's first victim
 *   place  (KV head, span)         chooses among the splits' victims; writes K and V to its slot
 * For some policies, between join and score:
 *   trait  (KV head, span)         the trait of the new token
 * Scope layer: one block of score handles all heads of a split, and every block of place finds the
 * same victim. Exps are kept only if decode changes scores.
 *
 * Where positions are ranks (struct slot_rope), split rotates each key as it reads the key, which
 * reads K twice, and place keeps the ranks.
 *
 * Rows: a launch handles as many rows as fit in FORCED_SCRATCH_MOST bytes of scratch (forced.h);
 * the other rows follow in further launches.
 *
 * Memory access of split: a warp handles a page of 32 slots, a lane one slot. A lane reads K of its
 * slot straight into registers; neighbouring lanes read neighbouring words. V goes to shared
 * memory: each thread copies 16 bytes of a chunk of 2 or 4 KiB; while one stage is multiplied, all
 * others (12 KiB, q4 14) are in flight. The first chunks of V are requested before K is read.
 *
 * The bound is memory: a slot of a KV head has 4 d bytes of K and V in bf16 and costs 4 G d FLOPs,
 * for G query heads of d dimensions: G FLOPs per byte, while an H100 does 20 in f32 per byte of
 * HBM. With 12 KiB of V in flight per block, an SM of an H100 has 48 KiB in flight at G = 1 (4
 * blocks) and 24 KiB at G = 8 (2 blocks). It needs 19 KiB per SM, at a latency of 0.75 us.
 *
 * Cost of scores, per slot and KV head: 4 G bytes of exps written and read again, which stay in L2
 * if scratch fits there, and 12 bytes of memory (score in and out, position in), beside 4 d bytes
 * of K and V (2.3 % of them at d = 128); 2 G FLOPs beside 4 G d. */
#include "kernels/cuda/simt.cuh"

#include "kernels/cuda/attend.cuh"

/* ---- split: up to 256 slots of pages, or the ring ---- */

#define VALUE_DIMS   128        // dimensions of V at a time: two groups of codes
#define STAGES_BYTES (16 << 10) // of shared memory for V

/* V of a format is fetched in chunks of slots of one page, 16 bytes per thread. */
template <int FORMAT> struct chunk {
    static constexpr int WORD = FORMAT == KV_F32 || FORMAT == KV_BF16 ? 4 : 2; // bytes per word
    static constexpr int PER = FORMAT == KV_F32 ? 1 : FORMAT == KV_Q4 ? 4 : 2; // slots per word
    static constexpr int ROW = VALUE_DIMS * WORD;
    static constexpr int MOST = THREADS * 16 / ROW * PER;
    static constexpr int SLOTS = MOST < PAGE_SLOTS ? MOST : PAGE_SLOTS;
    static constexpr int BYTES = SLOTS / PER * ROW; // 4 KiB; q4 2 KiB
    static constexpr int STAGES = STAGES_BYTES / BYTES;
};

/* State of a block. */
struct split {
    struct kv_layout l;
    int n;                 // number of slots
    int rank;              // of this thread's slot, where positions are ranks
    float scale, cap;      // of logits
    float *q;              // [R, dim_pad], zero-padded
    float *q_sums;         // [R, groups] for q8 and q4
    float *x;              // [R, SPLIT] logits, then exps
    float *scaled;         // [2][R, SPLIT] exps * scale of two groups
    float *minimum;        // [2][R, SPLIT_PAGES] sums of exps * minimum
    const uint8_t **pages; // [SPLIT_PAGES]
    unsigned *live;        // [SPLIT_PAGES] bitmap of attended slots
    uint8_t *stages;       // [STAGES_BYTES] chunks of V
};

template <int R> static int split_shared(const struct kv_layout *l)
{
    return take_bytes<float>(R * l->dim_pad) + take_bytes<float>(R * (l->groups + 1)) +
           take_bytes<float>(R * SPLIT) + take_bytes<float>(l->groups ? 2 * R * SPLIT : 1) +
           take_bytes<float>(2 * R * SPLIT_PAGES) + take_bytes<const uint8_t *>(SPLIT_PAGES) +
           take_bytes<unsigned>(SPLIT_PAGES) + take_bytes<uint8_t>(STAGES_BYTES);
}

template <int R> DEVICE void split_take(const struct kv_layout *l, struct split *s)
{
    struct taken taken = {};
    s->q = take<float>(&taken, R * l->dim_pad);
    s->q_sums = take<float>(&taken, R * (l->groups + 1));
    s->x = take<float>(&taken, R * SPLIT);
    s->scaled = take<float>(&taken, l->groups ? 2 * R * SPLIT : 1);
    s->minimum = take<float>(&taken, 2 * R * SPLIT_PAGES);
    s->pages = take<const uint8_t *>(&taken, SPLIT_PAGES);
    s->live = take<unsigned>(&taken, SPLIT_PAGES);
    s->stages = take<uint8_t>(&taken, STAGES_BYTES);
}

/* q [R, dim_pad] of the query heads of a KV head, from row0 on; zeros beyond the last head. */
template <int R>
DEVICE void split_queries(const struct forced *f, const struct token *t, int head, int row0,
                          const struct split *s)
{
    const int dim_pad = s->l.dim_pad;
    for (int i = (int)threadIdx.x; i < R * dim_pad; i += THREADS) {
        const int row = row0 + i / dim_pad, d = i % dim_pad;
        s->q[i] = row < f->group && d < s->l.head_dim ? query_number(f, t, head * f->group + row, d)
                                                      : 0.0f;
    }
    __syncthreads();
    for (int i = warp_id(); i < R * s->l.groups; i += THREADS / WARP) {
        const float *q = s->q + i / s->l.groups * dim_pad;
        const int first = i % s->l.groups * KV_GROUP;
        const int last = first + KV_GROUP < dim_pad ? first + KV_GROUP : dim_pad;
        float sum = 0.0f;
        for (int d = first + lane_id() % 16; d < last; d += 16)
            sum = sum + q[d];
        sum = warp_sum16(sum);
        if (lane_id() == 0)
            s->q_sums[i] = sum;
    }
    __syncthreads();
}

/* Four numbers or codes down a column of a panel, from row `row`, a multiple of 4: dimensions of K
 * (a column is a slot) or slots of V (a column is a dimension). `wanted` has one bit per number;
 * words of unwanted numbers are not read, because they may be uninitialised. */
template <int FORMAT>
DEVICE void column_numbers(const uint8_t *panel, int stride, int row, int column, unsigned wanted,
                           float x[4])
{
    if (FORMAT == KV_F32) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            x[j] = wanted >> j & 1 ? ((const float *)panel)[(row + j) * stride + column] : 0.0f;
    } else if (FORMAT == KV_Q4) {
        unsigned word = wanted ? ((const uint16_t *)panel)[row / 4 * stride + column] : 0;
#pragma unroll
        for (int j = 0; j < 4; j++)
            x[j] = (float)(word >> 4 * j & 15);
    } else {
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            const int at = (row + j) / 2 * stride + column;
            unsigned word = 0;
            if (wanted >> j & 3)
                word = FORMAT == KV_BF16 ? ((const uint32_t *)panel)[at]
                                         : ((const uint16_t *)panel)[at];
            x[j] = FORMAT == KV_BF16 ? __uint_as_float(word << 16) : (float)(word & 255);
            x[j + 1] = FORMAT == KV_BF16 ? __uint_as_float(word & 0xffff0000u) : (float)(word >> 8);
        }
    }
}

/* sum[r] = q[r] . K over dimensions [first, last): one chain each. */
template <int FORMAT, int R>
DEVICE void k_chains(const struct split *s, const uint8_t *panel, int first, int last, float sum[R])
{
#pragma unroll
    for (int r = 0; r < R; r++)
        sum[r] = 0.0f;
    constexpr int LOADS = FORMAT == KV_Q8 && R == 1 ? 8 : 16; // at a time: as registers allow
    constexpr int STEPS = LOADS / (FORMAT == KV_F32 ? 4 : FORMAT == KV_Q4 ? 1 : 2);
    (void)STEPS; // g++ ignores the pragma
#pragma unroll STEPS
    for (int d = first; d < last; d += 4) {
        float k[4];
        column_numbers<FORMAT>(panel, PAGE_SLOTS, d, lane_id(), 15, k);
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float4 q = *(const float4 *)(s->q + r * s->l.dim_pad + d);
            sum[r] = fmaf(q.x, k[0], sum[r]);
            sum[r] = fmaf(q.y, k[1], sum[r]);
            sum[r] = fmaf(q.z, k[2], sum[r]);
            sum[r] = fmaf(q.w, k[3], sum[r]);
        }
    }
}

/* Logits of this lane's slot of a page, in f32 and bf16. */
template <int FORMAT, int R>
DEVICE void page_logits(const struct split *s, const uint8_t *panel, float logit[R])
{
    k_chains<FORMAT, R>(s, panel, 0, s->l.dim_pad, logit);
#pragma unroll
    for (int r = 0; r < R; r++)
        logit[r] = math_softcap(logit[r] * s->scale, s->cap);
}

/* The same for codes: scales and minima are links of a chain over groups. */
template <int FORMAT, int R>
DEVICE void page_logits_codes(const struct split *s, const uint8_t *panel, float logit[R])
{
    const int dim_pad = s->l.dim_pad;
    float sum[R];
#pragma unroll
    for (int r = 0; r < R; r++)
        logit[r] = 0.0f;
    for (int g = 0; g < s->l.groups; g++) {
        const int last = (g + 1) * KV_GROUP < dim_pad ? (g + 1) * KV_GROUP : dim_pad;
        const uint16_t scale16 = *kv_scale_at(&s->l, panel, g, lane_id());
        const uint16_t low16 = *kv_scale_at(&s->l, panel, s->l.groups + g, lane_id());
        k_chains<FORMAT, R>(s, panel, g * KV_GROUP, last, sum);
        const float scale = f16_to_f32(scale16) * s->scale, low = f16_to_f32(low16) * s->scale;
#pragma unroll
        for (int r = 0; r < R; r++) {
            logit[r] = fmaf(scale, sum[r], logit[r]);
            logit[r] = fmaf(low, s->q_sums[r * s->l.groups + g], logit[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++)
        logit[r] = math_softcap(logit[r], s->cap);
}

/* The same for a key of any format that is first rotated by its rank. */
template <int R>
DEVICE void page_logits_turned(const struct slot_rope *rope, const struct split *s,
                               const uint8_t *panel, float logit[R])
{
#pragma unroll
    for (int r = 0; r < R; r++)
        logit[r] = 0.0f;
    for (int d = 0; d < s->l.head_dim; d++) {
        float k = kv_number(&s->l, panel, 0, lane_id(), d);
        if (d < rope->rope_dim)
            k = turned(rope, s->rank, d, k,
                       kv_number(&s->l, panel, 0, lane_id(), turns_with(rope, d)));
#pragma unroll
        for (int r = 0; r < R; r++)
            logit[r] = fmaf(s->q[r * s->l.dim_pad + d], k, logit[r]);
    }
#pragma unroll
    for (int r = 0; r < R; r++)
        logit[r] = math_softcap(logit[r] * s->scale, s->cap);
}

/* x = exp(x - maximum) of every row, one warp per row. Writes maximum and sum to scratch, and exps
 * if they will be added to scores. */
template <int R>
DEVICE void split_exps(const struct forced *f, const struct split *s, int64_t part, int row0)
{
    for (int r = warp_id(); r < R && row0 + r < f->group; r += THREADS / WARP) {
        const int64_t row = part * f->group + row0 + r;
        float *x = s->x + r * SPLIT, max = -INFINITY, sum = 0.0f;
        for (int i = lane_id(); i < SPLIT; i += WARP)
            max = x[i] > max ? x[i] : max;
        max = warp_max(max);
        for (int i = lane_id(); i < SPLIT; i += WARP) {
            float e = math_exp(x[i] - (max == -INFINITY ? 0.0f : max));
            x[i] = e;
            if (f->adds)
                f->exps[row * SPLIT + i] = e;
            sum = sum + e; // lanes 0 to 15: number i to lane i mod 16, then number i + 16
            sum = sum + warp_down(e, 16);
        }
        sum = warp_sum16(sum);
        if (lane_id() == 0) {
            f->max[row] = max;
            f->sum[row] = sum;
        }
    }
}

/* The 16 bytes that a thread copies of every chunk of dimensions [d0, d0 + VALUE_DIMS) of V. */
struct piece {
    int slot, to; // first slot of its words in the chunk; byte offset in the stage
    int from;     // byte offset in a page, for slot 0
};
template <int FORMAT> DEVICE struct piece piece_of(const struct split *s, int head, int d0)
{
    typedef chunk<FORMAT> C;
    const int left = s->l.dim_pad - d0, dims = left < VALUE_DIMS ? left : VALUE_DIMS;
    const int in_row = dims * C::WORD / 16;
    const int row = (int)threadIdx.x / in_row, at = (int)threadIdx.x % in_row * 16;
    return {row * C::PER, row * C::ROW + at,
            (int)(s->l.panel_bytes * head + s->l.v_offset) + d0 * C::WORD + at};
}

/* Starts the copy of chunk c to its stage. Words without a live slot are skipped: they may be
 * uninitialised. */
template <int FORMAT>
DEVICE void chunk_fetch(const struct split *s, const struct piece *piece, int c)
{
    typedef chunk<FORMAT> C;
    const int first = c * C::SLOTS + piece->slot, page = first / PAGE_SLOTS;
    const int slot = first % PAGE_SLOTS;
    if (piece->slot < C::SLOTS && first < s->n && s->live[page] >> slot & ((1 << C::PER) - 1))
        cp_async16(s->stages + c % C::STAGES * C::BYTES + piece->to,
                   s->pages[page] + piece->from + slot / C::PER * s->l.dim_pad * C::WORD);
    cp_async_commit();
}

/* Starts the first copies: all stages but one. */
template <int FORMAT> DEVICE void chunks_begin(const struct split *s, const struct piece *piece)
{
#pragma unroll
    for (int c = 0; c < chunk<FORMAT>::STAGES - 1; c++)
        chunk_fetch<FORMAT>(s, piece, c);
}

/* acc[r] += p[r] . V over the slots of a chunk whose `live` bits are set, ascending. p: rows of
 * SPLIT. ALL: every bit is set. */
template <int FORMAT, int ROWS, int ALL>
DEVICE void chunk_values(const uint8_t *stage, int d, unsigned live, const float *p,
                         float acc[ROWS])
{
#pragma unroll(ALL ? 8 : 1)
    for (int slot = 0; slot < chunk<FORMAT>::SLOTS; slot += 4) {
        const unsigned bits = ALL ? 15 : live >> slot & 15;
        float v[4];
        column_numbers<FORMAT>(stage, VALUE_DIMS, slot, d, bits, v);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float4 e = *(const float4 *)(p + r * SPLIT + slot);
            acc[r] = bits & 1 ? fmaf(e.x, v[0], acc[r]) : acc[r];
            acc[r] = bits & 2 ? fmaf(e.y, v[1], acc[r]) : acc[r];
            acc[r] = bits & 4 ? fmaf(e.z, v[2], acc[r]) : acc[r];
            acc[r] = bits & 8 ? fmaf(e.w, v[3], acc[r]) : acc[r];
        }
    }
}

/* Of groups g0 and g0 + 1: exps * scale, and per page the sums of exps * minimum. */
template <int R> DEVICE void split_scale(const struct split *s, int head, int g0)
{
    const int slot = (int)threadIdx.x, page = warp_id();
    const int live = s->live[page] >> lane_id() & 1;
    for (int g = 0; g < 2 && g0 + g < s->l.groups; g++) {
        float scale = 0.0f, low = 0.0f;
        if (live) {
            const uint8_t *panel = kv_panel(&s->l, s->pages[page], head, 1);
            scale = f16_to_f32(*kv_scale_at(&s->l, panel, g0 + g, lane_id()));
            low = f16_to_f32(*kv_scale_at(&s->l, panel, s->l.groups + g0 + g, lane_id()));
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float e = s->x[r * SPLIT + slot];
            s->scaled[(g * R + r) * SPLIT + slot] = live ? e * scale : 0.0f;
            float sum = 0.0f + (live ? e * low : 0.0f);
            sum = warp_sum16(sum + warp_down(sum, 16)); // lanes 0 to 15
            if (lane_id() == 0)
                s->minimum[(g * R + r) * SPLIT_PAGES + page] = sum;
        }
    }
}

/* exps . V of the split: one chain over its slots for every (row, dimension). A thread handles half
 * of the rows of a dimension. The first chunks of the first slice are already in flight. */
template <int FORMAT, int R>
DEVICE void split_values(const struct forced *f, const struct split *s, int64_t part, int head,
                         int row0)
{
    typedef chunk<FORMAT> C;
    constexpr int ROWS = R > 1 ? R / 2 : 1, CODES = FORMAT == KV_Q8 || FORMAT == KV_Q4;
    const int d = (int)threadIdx.x % VALUE_DIMS, r0 = (int)threadIdx.x / VALUE_DIMS * ROWS;
    const int g = d / KV_GROUP;
    const float *p = CODES ? s->scaled + (g * R + r0) * SPLIT : s->x + r0 * SPLIT;
    for (int d0 = 0; d0 < s->l.head_dim; d0 += VALUE_DIMS) {
        const struct piece piece = piece_of<FORMAT>(s, head, d0);
        if (d0 > 0) {
            __syncthreads(); // stages and scaled exps have been read
            chunks_begin<FORMAT>(s, &piece);
        }
        if (CODES) {
            split_scale<R>(s, head, d0 / KV_GROUP);
            __syncthreads();
        }
        const int takes_part = r0 < R && d0 + d < s->l.head_dim;
        float acc[ROWS] = {};
        for (int c = 0, slot = 0; slot < s->n; c++, slot += C::SLOTS) {
            const int page = slot / PAGE_SLOTS;
            const unsigned all = 0xffffffffu >> (PAGE_SLOTS - C::SLOTS);
            const unsigned live = s->live[page] >> slot % PAGE_SLOTS & all;
            const uint8_t *stage = s->stages + c % C::STAGES * C::BYTES;
            cp_async_wait<C::STAGES - 2>();
            __syncthreads(); // chunk c has arrived; the stage of c - 1 is free
            chunk_fetch<FORMAT>(s, &piece, c + C::STAGES - 1);
            if (!takes_part)
                continue;
#pragma unroll
            for (int r = 0; r < ROWS && CODES; r++)
                acc[r] = acc[r] + s->minimum[(g * R + r0 + r) * SPLIT_PAGES + page];
            if (live == all)
                chunk_values<FORMAT, ROWS, 1>(stage, d, live, p + slot, acc);
            else
                chunk_values<FORMAT, ROWS, 0>(stage, d, live, p + slot, acc);
        }
#pragma unroll
        for (int r = 0; r < ROWS && takes_part; r++)
            if (row0 + r0 + r < f->group)
                f->out[(part * f->group + row0 + r0 + r) * s->l.head_dim + d0 + d] = acc[r];
    }
}

/* The same over a page of keys only: a thread reads down the row of its dimension in the K panel.
 */
template <int FORMAT, int R>
DEVICE void split_values_of_keys(const struct forced *f, const struct split *s, int64_t part,
                                 int head, int row0)
{
    constexpr int ROWS = R > 1 ? R / 2 : 1, CODES = FORMAT == KV_Q8 || FORMAT == KV_Q4;
    const int d = (int)threadIdx.x % VALUE_DIMS, r0 = (int)threadIdx.x / VALUE_DIMS * ROWS;
    const int g = d / KV_GROUP;
    const float *p = CODES ? s->scaled + (g * R + r0) * SPLIT : s->x + r0 * SPLIT;
    for (int d0 = 0; d0 < s->l.head_dim; d0 += VALUE_DIMS) {
        if (CODES) {
            __syncthreads(); // scaled exps have been read
            split_scale<R>(s, head, d0 / KV_GROUP);
            __syncthreads();
        }
        if (r0 >= R || d0 + d >= s->l.head_dim)
            continue;
        float acc[ROWS] = {};
        for (int page = 0; page * PAGE_SLOTS < s->n; page++) {
            const uint8_t *panel = kv_panel(&s->l, s->pages[page], head, 0);
#pragma unroll
            for (int r = 0; r < ROWS && CODES; r++)
                acc[r] = acc[r] + s->minimum[(g * R + r0 + r) * SPLIT_PAGES + page];
            for (int slot = 0; slot < PAGE_SLOTS; slot++) {
                if (!(s->live[page] >> slot & 1))
                    continue;
                float v[4]; // the numbers down the slot's column, d0 + d among them
                column_numbers<FORMAT>(panel, PAGE_SLOTS, (d0 + d) / 4 * 4, slot, 15, v);
                const float x = d & 2 ? (d & 1 ? v[3] : v[2]) : (d & 1 ? v[1] : v[0]);
#pragma unroll
                for (int r = 0; r < ROWS; r++)
                    acc[r] = fmaf(p[r * SPLIT + page * PAGE_SLOTS + slot], x, acc[r]);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (row0 + r0 + r < f->group)
                f->out[(part * f->group + row0 + r0 + r) * s->l.head_dim + d0 + d] = acc[r];
    }
}

template <int FORMAT, int R, int KEYS>
DEVICE void split_run(const struct forced *f, const struct split *s, int64_t part, int head,
                      int row0)
{
    const int page = warp_id(), slot = (int)threadIdx.x;
    float logit[R];
    if constexpr (!KEYS) {
        const struct piece first = piece_of<FORMAT>(s, head, 0);
        chunks_begin<FORMAT>(s, &first);
    }
#pragma unroll
    for (int r = 0; r < R; r++)
        logit[r] = -INFINITY;
    if (s->live[page] >> lane_id() & 1) {
        const uint8_t *panel = kv_panel(&s->l, s->pages[page], head, 0);
        if (f->a.rope.cos)
            page_logits_turned<R>(&f->a.rope, s, panel, logit);
        else if constexpr (FORMAT == KV_Q8 || FORMAT == KV_Q4)
            page_logits_codes<FORMAT, R>(s, panel, logit);
        else
            page_logits<FORMAT, R>(s, panel, logit);
    }
#pragma unroll
    for (int r = 0; r < R; r++)
        s->x[r * SPLIT + slot] = logit[r];
    __syncthreads();
    split_exps<R>(f, s, part, row0);
    __syncthreads();
    if constexpr (KEYS)
        split_values_of_keys<FORMAT, R>(f, s, part, head, row0);
    else
        split_values<FORMAT, R>(f, s, part, head, row0);
}

/* R: query heads per block; KEYS: pages hold keys only. */
template <int R, int KEYS> DEVICE void split_block(const struct forced &f)
{
    const int split = (int)blockIdx.x, head = (int)blockIdx.y / f.n_chunks;
    const int row0 = (int)blockIdx.y % f.n_chunks * R, slot = (int)threadIdx.x;
    struct token t;
    if (!token_at(&f, (int)blockIdx.z, &t) || split >= t.n_splits)
        return;
    const int in_pages = split < t.page_splits, left = t.kv.n_slots - split * SPLIT;
    struct split s;
    s.l = in_pages ? f.a.kv.layout : f.a.kv.ring;
    s.n = !in_pages ? t.n_ring : left < SPLIT ? left : SPLIT;
    s.scale = f.a.scale;
    s.cap = f.a.cap;
    split_take<R>(&s.l, &s);
    if (slot < SPLIT_PAGES && slot * PAGE_SLOTS < s.n)
        s.pages[slot] = in_pages ? kv_page_of(&f.a.kv, t.kv.page_ids[split * SPLIT_PAGES + slot])
                                 : t.kv.ring + slot * s.l.page_bytes;
    const int hidden = evict_hidden(&f.score, &t.s.limits, t.now);
    const int64_t meta = (int64_t)head * t.kv.slots_cap + slot +
                         (in_pages ? split * SPLIT : t.kv.slots_cap - t.kv.ring_slots);
    int live = slot < s.n;
    if (live && t.kv.slot_pos && (in_pages || hidden >= 0)) {
        const int pos = t.kv.slot_pos[meta];
        live = pos >= 0 && pos != hidden;
    }
    s.rank = 0;
    if (live && t.kv.slot_rank)
        s.rank = t.kv.slot_rank[meta];
    const unsigned bits = __ballot_sync(WARP_ALL, live);
    if (lane_id() == 0)
        s.live[warp_id()] = bits;
    split_queries<R>(&f, &t, head, row0, &s);
    const int64_t part = unit_of(&f, (int)blockIdx.z, head) * f.n_splits + split;
    switch (s.l.format) {
    case KV_F32:
        split_run<KV_F32, R, KEYS>(&f, &s, part, head, row0);
        break;
    case KV_BF16:
        split_run<KV_BF16, R, KEYS>(&f, &s, part, head, row0);
        break;
    case KV_Q8:
        split_run<KV_Q8, R, KEYS>(&f, &s, part, head, row0);
        break;
    default:
        split_run<KV_Q4, R, KEYS>(&f, &s, part, head, row0);
    }
}

/* The minimum of blocks per SM leaves as many registers as a thread can use: without it ptxas
 * spills a few to fit one block more. */
template <int R>
__global__ void __launch_bounds__(THREADS, R == 1   ? 4
                                           : R == 2 ? 3
                                                    : 2)
    forced_split(const __grid_constant__ struct forced f)
{
    split_block<R, 0>(f);
}

template <int R>
__global__ void __launch_bounds__(THREADS, R <= 2 ? 2 : 1)
    forced_split_keys(const __grid_constant__ struct forced f)
{
    split_block<R, 1>(f);
}

/* ---- host ---- */

/* Bytes of scratch for n_units; f: receives the addresses of its arrays, or NULL. */
static int64_t forced_lay_out(struct forced *f, uint8_t *base, int64_t n_units, int group,
                              int head_dim, int scores)
{
    int64_t at[N_FORCED_ARRAYS + 1] = {0};
    for (int i = 0; i < N_FORCED_ARRAYS; i++)
        at[i + 1] = at[i] + round_up(n_units * forced_unit_bytes(i, group, head_dim, scores), 64);
    if (f) {
        f->max = (float *)(base + at[FORCED_MAX]);
        f->sum = (float *)(base + at[FORCED_SUM]);
        f->weight = (float *)(base + at[FORCED_WEIGHT]);
        f->out = (float *)(base + at[FORCED_OUT]);
        f->exps = (float *)(base + at[FORCED_EXPS]);
        f->inverse = (float *)(base + at[FORCED_INVERSE]);
        f->own_weight = (float *)(base + at[FORCED_OWN_WEIGHT]);
        f->own_score = (float *)(base + at[FORCED_OWN_SCORE]);
        f->own_trait = (float *)(base + at[FORCED_OWN_TRAIT]);
        f->leaving = (float *)(base + at[FORCED_LEAVING]);
        f->leaving_trait = (float *)(base + at[FORCED_LEAVING_TRAIT]);
        f->victims = (struct victim *)(base + at[FORCED_VICTIMS]);
    }
    return at[N_FORCED_ARRAYS];
}

int64_t cuda_attend_forced_scratch_bytes(const struct ops *ops, int n_spans, int slots_max,
                                         int n_heads, int n_kv_heads, int head_dim, int scores)
{
    (void)ops;
    const int group = n_heads / n_kv_heads;
    const int64_t span_units = (int64_t)n_kv_heads * forced_splits(slots_max, 1);
    return forced_lay_out(NULL, NULL, forced_units(n_spans, span_units, group, head_dim, scores),
                          group, head_dim, scores);
}

template <int R> static void split_launch(cudaStream_t stream, struct forced *f, int n_spans)
{
    const struct kv_layout *l = &f->a.kv.layout;
    f->n_chunks = (f->group + R - 1) / R;
    dim3 grid((unsigned)f->n_splits, (unsigned)(l->n_kv_heads * f->n_chunks), (unsigned)n_spans);
    if (l->v_offset > 0)
        LAUNCH(forced_split<R>, grid, THREADS, split_shared<R>(l), stream, *f);
    else
        LAUNCH(forced_split_keys<R>, grid, THREADS, split_shared<R>(l), stream, *f);
}

/* One token of n_spans spans. */
static void token_launch(cudaStream_t stream, struct forced *f, int n_spans)
{
    if (f->group == 1)
        split_launch<1>(stream, f, n_spans);
    else if (f->group == 2)
        split_launch<2>(stream, f, n_spans);
    else if (f->group <= 4)
        split_launch<4>(stream, f, n_spans);
    else
        split_launch<8>(stream, f, n_spans);
    queue_join(stream, f, n_spans);
    if (f->scores) {
        queue_score(stream, f, n_spans);
        queue_place(stream, f, n_spans);
    }
}

void cuda_attend_forced(cudaStream_t stream, const struct ops *ops,
                        const struct attend_forced_args *args)
{
    const int n_kv_heads = args->kv.layout.n_kv_heads;
    struct forced f = {};
    f.a = *args;
    f.round_q = ops->compute != COMPUTE_F32;
    f.scores = evict_policy_scores(args->evict.policy);
    f.adds = evict_decode_scores(args->evict.policy);
    f.score = evict_rule_of(args->evict.policy);
    f.group = args->n_heads / n_kv_heads;
    f.n_splits = forced_splits(args->slots_max, args->kv.rings != NULL);
    const int head_dim = args->kv.layout.head_dim;
    const int64_t span_units = (int64_t)n_kv_heads * f.n_splits;
    const int64_t n_units = forced_units(args->n_spans, span_units, f.group, head_dim, f.adds);
    const int at_once = (int)(n_units / span_units); // the other rows follow in further launches
    forced_lay_out(&f, (uint8_t *)args->scratch, n_units, f.group, head_dim, f.adds);
    for (f.first_span = 0; f.first_span < args->n_spans; f.first_span += at_once)
        for (f.step = 0; f.step < args->n_max; f.step++)
            token_launch(stream, &f, (int)min_i64(at_once, args->n_spans - f.first_span));
}
