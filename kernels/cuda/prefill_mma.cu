/* kernels/cuda/prefill_mma.cu - attend_prompt on tensor cores: q, K, V and weights in bf16, sums in
 * f32, from sm_80 on.
 *
 * Owns: the order of sums of rule g (kernels/ops.h). Refuses, to prefill.cu: f32, sm_75 (its tensor
 * cores support f16 only, in which bf16 numbers overflow) and heads of more than 256 dimensions.
 *
 * A warp has MT tiles of 16 queries of one head and processes the pages of 32 keys that any of them
 * sees once, in ascending order. The maximum of a row (a query) is a running one; when a page
 * raises it, the row's sums are multiplied by the weight of the old maximum. A page in which a row
 * sees no key leaves the row's bits unchanged: all weights are 0, the sums are no -0, and the
 * maximum stays. So a row's bits depend on its own keys alone, not on its span or its block. (A
 * separate pass for maxima would cost half as many products again and promise no more.) The sum of
 * a row's weights is one more column of outputs, with values of 1: it sums the rounded weights that
 * V is multiplied by.
 * Note: a weight of 0 does not hide a value that is not finite (0 * NaN is NaN). If some row does
 * not see a whole page, such values are multiplied as 0, and the outputs of rows that do see them
 * are set to NaN; an output that is not finite is NaN in any case, so both ways agree.
 * Two words that a lane gives to one mma are adjacent in shared memory, and those of two mma are
 * loaded at once: see word_at(). Column c of mma j is therefore slot (dimension) 4 c + j of 32, and
 * a lane's columns of sums are slots 8 (lane % 4) to 8 (lane % 4) + 7.
 *
 * Bound: a pair of query and key costs 4 head_dim FLOPs; the queries of a block read a page's K and
 * V once, so tensor cores bound the kernel. A page of 32 keys and 32 queries of 128 dimensions is
 * 132 mma per warp and 32 exps per lane. */
#include "kernels/cuda/simt.cuh"

#include "kernels/cuda/prefill.cuh"

#define WARPS   4
#define THREADS (WARPS * WARP)
#define ONES    0x3f803f80 // two bf16 ones

/* From q.k to weights: unit * x is a logit, 2^(x * power - shift) a weight. */
struct logits {
    float scale, cap; // of q.k, if logits are capped
    float unit, power;
};

DEVICE struct logits logits_of(const struct attend_prompt_args *a)
{
    const float unit = a->cap > 0 ? 1.0f : a->scale;
    const struct logits x = {a->scale, a->cap, unit, unit * MATH_LOG2E};
    return x;
}

/* A row's maximum, or 0 if the row has seen no key. */
DEVICE float row_base(float max)
{
    return max == -INFINITY ? 0.0f : max;
}

/* NaN stays. */
DEVICE float weight_of(float x, float power, float shift)
{
    return exp2_fast(fmaf(x, power, -shift));
}

/* ---- shared memory ---- */

/* Pairs of K (of dimensions) or V (of slots) by columns. From lane c of four, mma uses two adjacent
 * pairs, so a row of shared memory has, per column, the two pairs of a step and a lane. Rows are
 * padded by 16 words, and half of them have groups of four words swapped: the 8 lanes that load 16
 * bytes at a time reach all banks. */
#define PAIR_STRIDE(columns)         (2 * (columns) + 16)
#define PAIR_WORDS(n_pairs, columns) ((n_pairs) / 2 * PAIR_STRIDE(columns))

/* Position of half (0 or 1) of column x in the row of a step and a lane. */
template <int COLUMNS> DEVICE int word_at(int step, int c, int half, int x)
{
    return (step * 4 + c) * PAIR_STRIDE(COLUMNS) + (2 * x ^ c / 2 * 4) + half;
}
/* Pair p of K: pairs c and c + 4 of 8, as ldmatrix gives those of q. */
DEVICE int k_word_at(int p, int slot)
{
    return word_at<PAGE_SLOTS>(p / 8, p % 4, p % 8 / 4, slot);
}
/* Pair p of V: a lane has the weights of four adjacent pairs, two per step. */
template <int DIMS> DEVICE int v_word_at(int p, int d)
{
    return word_at<DIMS>(p % 4 / 2, p / 4, p % 2, d);
}

template <int DIMS, int OF_V> DEVICE int pair_at(int p, int x)
{
    return OF_V ? v_word_at<DIMS>(p, x) : k_word_at(p, x);
}

/* Pairs of a page that is not full or whose rows are shorter, zero-padded. */
template <int DIMS, int OF_V>
DEVICE void fetch_part(const struct kv_layout *l, const uint32_t *from, int n, uint32_t *to)
{
    constexpr int PAIRS = OF_V ? PAGE_SLOTS / 2 : DIMS / 2;
    constexpr int COLUMNS = OF_V ? DIMS : PAGE_SLOTS;
    const int n_pairs = OF_V ? (n + 1) / 2 : l->dim_pad / 2, n_columns = OF_V ? l->dim_pad : n;
#pragma unroll 1
    for (int word = (int)threadIdx.x; word < PAIRS * COLUMNS; word += THREADS) {
        const int p = word / COLUMNS, x = word % COLUMNS, there = p < n_pairs && x < n_columns;
        const int source = there ? p * (OF_V ? l->dim_pad : PAGE_SLOTS) + x : 0;
        uint32_t *at = to + pair_at<DIMS, OF_V>(p, x);
        cp_async4_zeros(at, from + source, there ? 4 : 0);
    }
}

/* Starts the copy of a page with n used slots: K by pairs of dimensions or V by pairs of slots. */
template <int DIMS, int OF_V>
DEVICE void fetch_pairs(const struct kv_layout *l, const uint8_t *panel, int n, uint32_t *to)
{
    constexpr int PAIRS = OF_V ? PAGE_SLOTS / 2 : DIMS / 2;
    constexpr int COLUMNS = OF_V ? DIMS : PAGE_SLOTS, EACH = PAIRS * COLUMNS / THREADS;
    static_assert(EACH * THREADS == PAIRS * COLUMNS, "each thread copies as many words");
    const uint32_t *from = (const uint32_t *)panel;
    if (n >= PAGE_SLOTS && l->dim_pad == DIMS) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int word = (int)threadIdx.x + i * THREADS, p = word / COLUMNS, x = word % COLUMNS;
            uint32_t *at = to + pair_at<DIMS, OF_V>(p, x);
            cp_async4(at, from + word);
        }
    } else {
        fetch_part<DIMS, OF_V>(l, from, n, to);
    }
}

/* mma's operands of a step for 4 columns of this lane, of the 32 columns from `column` on. */
template <int COLUMNS>
DEVICE void load_columns(const uint32_t *from, int step, int column, uint32_t b[4][2])
{
    const int c = lane_id() % 4, x = column + lane_id() / 4 * 4;
    const uint4 b0 = *(const uint4 *)(from + word_at<COLUMNS>(step, c, 0, x));
    const uint4 b1 = *(const uint4 *)(from + word_at<COLUMNS>(step, c, 0, x + 2));
    b[0][0] = b0.x, b[0][1] = b0.y, b[1][0] = b0.z, b[1][1] = b0.w;
    b[2][0] = b1.x, b[2][1] = b1.y, b[3][0] = b1.z, b[3][1] = b1.w;
}

/* ---- a warp ---- */

/* A warp's sums. A lane has columns 2 (lane % 4) and the next one of rows lane / 4 and lane / 4 + 8
 * of each tile. */
template <int DIMS, int MT> struct prompt_sums {
    float out[MT][DIMS / 8][4];
    float sum[MT][4];
    float max[MT][2]; // of x = q.k, capped if there is a cap
};

/* The query of row `half` (0 or 1) of a lane in a tile; query0: the warp's first. */
DEVICE int lane_query(int query0, int tile, int half)
{
    return query0 + tile * 16 + half * 8 + lane_id() / 4;
}
DEVICE int query_sees(const struct attend_prompt_args *a, int query, int key)
{
    return key <= query && key >= prompt_low(a, query);
}

/* x = q . K of a page's slots: number 2 half + e of x[tile][j] belongs to slot 8 (lane % 4) + 4 e +
 * j. */
template <int DIMS, int MT>
DEVICE void page_chains(const uint16_t *q, const uint32_t *k, float x[MT][4][4])
{
    const int lane = lane_id();
    q += lane % 16 * (DIMS + 8) + lane / 16 * 8;
#pragma unroll
    for (int step = 0; step < DIMS / 16; step++) {
        uint32_t b[4][2];
        load_columns<PAGE_SLOTS>(k, step, 0, b);
#pragma unroll
        for (int tile = 0; tile < MT; tile++) {
            uint32_t of_q[4];
            ldmatrix_x4(of_q, q + tile * 16 * (DIMS + 8) + step * 16);
#pragma unroll
            for (int j = 0; j < 4; j++)
                mma_bf16(x[tile][j], of_q, b[j]);
        }
    }
}

template <int MT> DEVICE void page_cap(const struct logits *to, float x[MT][4][4])
{
#pragma unroll
    for (int i = 0; i < MT * 16; i++) {
        float *y = &x[i / 16][i / 4 % 4][i % 4];
        *y = math_softcap(*y * to->scale, to->cap);
    }
}

/* Sets x of keys that a row does not see to -inf. */
template <int MT>
DEVICE void part_mask(const struct attend_prompt_args *a, int query0, int key0, float x[MT][4][4])
{
#pragma unroll
    for (int tile = 0; tile < MT; tile++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (!query_sees(a, lane_query(query0, tile, i / 2),
                                key0 + lane_id() % 4 * 8 + i % 2 * 4 + j))
                    x[tile][j][i] = -INFINITY;
}

/* Multiplies a row's sums by the weight of its old maximum. Before the first key the sums are 0,
 * and weight_of() of -inf is 0. */
template <int DIMS, int MT>
DEVICE void sums_follow(const struct logits *to, const float old[2 * MT],
                        struct prompt_sums<DIMS, MT> *s)
{
#pragma unroll
    for (int row = 0; row < 2 * MT; row++) {
        const int tile = row / 2, half = row % 2;
        const float max = s->max[tile][half];
        const float by = max > old[row] ? weight_of(old[row], to->power, max * to->power) : 1.0f;
#pragma unroll
        for (int j = 0; j < DIMS / 8; j++) {
            s->out[tile][j][2 * half] *= by;
            s->out[tile][j][2 * half + 1] *= by;
        }
        s->sum[tile][2 * half] *= by;
        s->sum[tile][2 * half + 1] *= by;
    }
}

/* Updates the maxima of this lane's rows; if one rises, rescales the row's sums. */
template <int DIMS, int MT>
DEVICE void page_maxima(const struct logits *to, const float x[MT][4][4],
                        struct prompt_sums<DIMS, MT> *s)
{
    float before[2 * MT];
    int rises = 0;
#pragma unroll
    for (int row = 0; row < 2 * MT; row++) {
        const int tile = row / 2, half = row % 2;
        const float old = s->max[tile][half];
        float max = old;
#pragma unroll
        for (int j = 0; j < 4; j++)
            max = fmaxf(fmaxf(x[tile][j][2 * half], x[tile][j][2 * half + 1]), max);
        max = fmaxf(max, warp_xor(max, 1));
        max = fmaxf(max, warp_xor(max, 2));
        s->max[tile][half] = max;
        before[row] = old;
        rises |= max > old;
    }
    if (rises)
        sums_follow<DIMS, MT>(to, before, s);
    __syncwarp(); // mma needs all lanes converged
}

/* Weights of x for mma's two steps of 16 slots: step t has the slots of numbers e = t. */
template <int DIMS, int MT>
DEVICE void page_weights(const struct logits *to, const float x[MT][4][4],
                         const struct prompt_sums<DIMS, MT> *s, uint32_t p[MT][2][4])
{
#pragma unroll
    for (int row = 0; row < 2 * MT; row++) {
        const int tile = row / 2, half = row % 2;
        const float power = to->power, shift = row_base(s->max[tile][half]) * power;
#pragma unroll
        for (int i = 0; i < 4; i++) { // pairs of slots
            const int step = i / 2, j = i % 2 * 2, at = 2 * half + step;
            p[tile][step][i % 2 * 2 + half] =
                cvt_bf16_pair(weight_of(x[tile][j][at], power, shift),
                              weight_of(x[tile][j + 1][at], power, shift));
        }
    }
}

/* A pair with 0 in place of numbers that are not finite. */
DEVICE uint32_t finite_pair(uint32_t pair)
{
    pair = (pair & 0x7f80u) == 0x7f80u ? pair & 0xffff0000u : pair;
    return (pair & 0x7f800000u) == 0x7f800000u ? pair & 0xffffu : pair;
}

/* Adds a step of 16 slots to the outputs of 32 dimensions from column `at` * 32 on. */
template <int DIMS, int MT>
DEVICE void step_outputs(const uint32_t p[MT][2][4], int step, int at, const uint32_t b[4][2],
                         struct prompt_sums<DIMS, MT> *s)
{
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int tile = 0; tile < MT; tile++)
            mma_bf16(s->out[tile][at * 4 + j], p[tile][step], b[j]);
}

template <int DIMS, int MT>
DEVICE void page_sums(const uint32_t p[MT][2][4], struct prompt_sums<DIMS, MT> *s)
{
    const uint32_t ones[2] = {ONES, ONES};
#pragma unroll
    for (int step = 0; step < 2; step++)
#pragma unroll
        for (int tile = 0; tile < MT; tile++)
            mma_bf16(s->sum[tile], p[tile][step], ones);
}

template <int DIMS, int MT>
DEVICE void page_values(const uint32_t p[MT][2][4], const uint32_t *v,
                        struct prompt_sums<DIMS, MT> *s)
{
#pragma unroll
    for (int i = 0; i < 2 * DIMS / 32; i++) {
        uint32_t b[4][2];
        load_columns<DIMS>(v, i % 2, i / 2 * 32, b);
        step_outputs<DIMS, MT>(p, i % 2, i / 2, b, s);
    }
}

/* The same if some row does not see the whole page: values that are not finite are multiplied as 0.
 * Returns 1 if this lane had one. */
template <int DIMS, int MT>
DEVICE int part_values(const uint32_t p[MT][2][4], const uint32_t *v,
                       struct prompt_sums<DIMS, MT> *s)
{
    int odd = 0;
#pragma unroll
    for (int i = 0; i < 2 * DIMS / 32; i++) {
        uint32_t b[4][2];
        load_columns<DIMS>(v, i % 2, i / 2 * 32, b);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint32_t raw = b[j / 2][j % 2];
            b[j / 2][j % 2] = finite_pair(raw);
            odd |= b[j / 2][j % 2] != raw;
        }
        step_outputs<DIMS, MT>(p, i % 2, i / 2, b, s);
    }
    return odd;
}

/* Sets to NaN the outputs of rows that see a value that is not finite. */
template <int DIMS, int MT>
DEVICE void part_no_numbers(const struct attend_prompt_args *a, int query0, int key0,
                            const uint32_t *v, struct prompt_sums<DIMS, MT> *s)
{
#pragma unroll 1
    for (int slot = 0; slot < PAGE_SLOTS; slot++) {
#pragma unroll
        for (int i = 0; i < DIMS / 4; i++) { // column i % 2 of mma i / 2, of this lane
            const int d = i / 8 * 32 + lane_id() % 4 * 8 + i % 2 * 4 + i / 2 % 4;
            const uint32_t bits = v[v_word_at<DIMS>(slot / 2, d)] >> slot % 2 * 16;
            const float none = (bits & 0x7f80u) == 0x7f80u ? NAN : 0.0f;
#pragma unroll
            for (int at = 0; at < 2 * MT; at++)
                if (none != none && query_sees(a, lane_query(query0, at / 2, at % 2), key0 + slot))
                    s->out[at / 2][i / 2][at % 2 * 2 + i % 2] = none;
        }
    }
}

/* ---- a block ---- */

template <int DIMS, int MT> static int rows_mma_shared(void)
{
    return take_bytes<uint16_t>(WARPS * MT * 16 * (DIMS + 8)) +
           take_bytes<uint32_t>(PAIR_WORDS(DIMS / 2, PAGE_SLOTS)) +
           take_bytes<uint32_t>(PAIR_WORDS(PAGE_SLOTS / 2, DIMS));
}

/* q of ROWS queries from query0 on, by BY threads; zeros beyond the span and the dimensions. */
template <int DIMS, int ROWS, int BY>
DEVICE void fetch_q(const struct prompt *f, const struct prompt_span *s, int query0, int head,
                    uint16_t *q)
{
    const int head_dim = f->a.layout.head_dim, fours = (head_dim | (int)f->a.q_stride) % 4 == 0;
    const float *from =
        f->a.q + (s->token + query0 - s->first) * f->a.q_stride + (int64_t)head * head_dim;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < ROWS * DIMS / 4; i += BY) {
        const int row = i / (DIMS / 4), d = i % (DIMS / 4) * 4;
        const int n = query0 + row < s->first + s->n ? head_dim - d : 0;
        const float *at = from + row * f->a.q_stride + d;
        float4 x = make_float4(0, 0, 0, 0);
        if (n >= 4 && fours) {
            x = *(const float4 *)at;
        } else {
            x.x = n > 0 ? at[0] : 0.0f;
            x.y = n > 1 ? at[1] : 0.0f;
            x.z = n > 2 ? at[2] : 0.0f;
            x.w = n > 3 ? at[3] : 0.0f;
        }
        *(uint2 *)(q + row * (DIMS + 8) + d) =
            make_uint2(cvt_bf16_pair(x.x, x.y), cvt_bf16_pair(x.z, x.w));
    }
}

template <int DIMS, int MT>
DEVICE void rows_finish(const struct prompt *f, const struct prompt_span *span, int query0,
                        int head, const struct prompt_sums<DIMS, MT> *s)
{
    const struct logits to = logits_of(&f->a);
    const int head_dim = f->a.layout.head_dim;
#pragma unroll
    for (int row = 0; row < 2 * MT; row++) {
        const int tile = row / 2, half = row % 2, query = lane_query(query0, tile, half);
        const float max = s->max[tile][half];
        const float sink = math_sink(f->a.sinks, head, max * to.unit);
        const float inverse = 1.0f / (s->sum[tile][2 * half] + sink);
        if (query >= span->first + span->n)
            continue;
        const int64_t at = query - span->first;
        float *out = f->a.out + (span->token + at) * f->a.out_stride + (int64_t)head * head_dim;
#pragma unroll
        for (int i = 0; i < DIMS / 4; i++) {
            const int d = i / 8 * 32 + lane_id() % 4 * 8 + i % 8;
            const float y = s->out[tile][i / 8 * 4 + i % 4][2 * half + i / 4 % 2] * inverse;
            if (d < head_dim)
                out[d] = fabsf(y) < INFINITY ? y : NAN;
        }
        if (f->a.scores && lane_id() % 4 == 0) {
            const int64_t i = ((int64_t)blockIdx.z * f->a.n_max + at) * f->a.n_heads + head;
            f->max[i] = max;
            f->inverse[i] = inverse;
        }
    }
}

/* A block has WARPS * MT * 16 queries of a head. K of the next page is copied while V is
 * multiplied, and V while K is. The longest blocks start first. */
template <int DIMS, int MT>
__global__ void __launch_bounds__(THREADS, 2)
    prompt_rows_mma(const __grid_constant__ struct prompt f)
{
    constexpr int ROWS = WARPS * MT * 16;
    const struct kv_layout *l = &f.a.layout;
    const struct prompt_span span = f.a.spans[f.first_span + (int)blockIdx.z];
    const int head = (int)blockIdx.y, kv_head = head / (f.a.n_heads / l->n_kv_heads);
    const int end = span.first + span.n;
    const int block0 = span.first + (int)(gridDim.x - 1 - blockIdx.x) * ROWS;
    if (block0 >= end)
        return;
    struct taken taken = {};
    uint16_t *q = take<uint16_t>(&taken, ROWS * (DIMS + 8));
    uint32_t *k = take<uint32_t>(&taken, PAIR_WORDS(DIMS / 2, PAGE_SLOTS));
    uint32_t *v = take<uint32_t>(&taken, PAIR_WORDS(PAGE_SLOTS / 2, DIMS));
    const struct logits to = logits_of(&f.a);
    const int query0 = block0 + warp_id() * MT * 16, next = query0 + MT * 16;
    const int last = (next < end ? next : end) - 1, low = prompt_low(&f.a, query0);
    const int block_last = (block0 + ROWS < end ? block0 + ROWS : end) - 1;
    const int page0 = prompt_low(&f.a, block0) / PAGE_SLOTS, pages = block_last / PAGE_SLOTS;
    const uint8_t *at = prompt_span_pages(&f.a, &span) + page0 * l->page_bytes;
    struct prompt_sums<DIMS, MT> s = {
    };
    for (int row = 0; row < 2 * MT; row++)
        s.max[row / 2][row % 2] = -INFINITY;
    fetch_q<DIMS, ROWS, THREADS>(&f, &span, block0, head, q);
    fetch_pairs<DIMS, 0>(l, kv_panel(l, at, kv_head, 0), end - page0 * PAGE_SLOTS, k);
    cp_async_commit();
    q += warp_id() * MT * 16 * (DIMS + 8);
    for (int page = page0; page <= pages; page++, at += l->page_bytes) {
        const int key0 = page * PAGE_SLOTS, key1 = key0 + PAGE_SLOTS;
        const int some = key0 <= last && key1 > low;
        const int whole = key1 - 1 <= query0 && key0 >= prompt_low(&f.a, last);
        uint32_t p[MT][2][4];
        cp_async_wait<0>();
        __syncthreads(); // K has arrived; V's buffer is free
        fetch_pairs<DIMS, 1>(l, kv_panel(l, at, kv_head, 1), end - key0, v);
        cp_async_commit();
        if (some) {
            float x[MT][4][4] = {};
            page_chains<DIMS, MT>(q, k, x);
            if (to.cap > 0)
                page_cap<MT>(&to, x);
            if (!whole)
                part_mask<MT>(&f.a, query0, key0, x);
            page_maxima<DIMS, MT>(&to, x, &s);
            page_weights<DIMS, MT>(&to, x, &s, p);
        }
        cp_async_wait<0>();
        __syncthreads(); // V has arrived; K's buffer is free
        if (page < pages)
            fetch_pairs<DIMS, 0>(l, kv_panel(l, at + l->page_bytes, kv_head, 0), end - key1, k);
        cp_async_commit();
        if (some)
            page_sums<DIMS, MT>(p, &s);
        if (some && whole)
            page_values<DIMS, MT>(p, v, &s);
        else if (some && warp_greatest(part_values<DIMS, MT>(p, v, &s)))
            part_no_numbers<DIMS, MT>(&f.a, query0, key0, v, &s);
    }
    cp_async_wait<0>();
    rows_finish<DIMS, MT>(&f, &span, query0, head, &s);
}

/* ---- scores ---- */

#define SCORE_WARPS   4
#define SCORE_THREADS (SCORE_WARPS * WARP)

/* A tile of 32 queries of one head. */
template <int DIMS> struct score_stage {
    uint16_t q[PAGE_SLOTS * (DIMS + 8)];
    float shift[PAGE_SLOTS];
    float inverse[PAGE_SLOTS]; // times the query's weight in scores; 0: adds nothing
};

template <int DIMS>
DEVICE void fetch_stage(const struct prompt *f, const struct prompt_span *s,
                        const struct evict_rule *mode, int query0, int head,
                        struct score_stage<DIMS> *to)
{
    fetch_q<DIMS, PAGE_SLOTS, SCORE_THREADS>(f, s, query0, head, to->q);
    const int row = (int)threadIdx.x, query = query0 + row;
    if (row >= PAGE_SLOTS)
        return;
    float shift = 0, inverse = 0;
    if (query < s->first + s->n) {
        const int64_t i =
            ((int64_t)blockIdx.z * f->a.n_max + query - s->first) * f->a.n_heads + head;
        shift = row_base(f->max[i]) * logits_of(&f->a).power;
        inverse = f->inverse[i] * evict_query_worth(mode, query, s->n_prompt);
        inverse = fabsf(inverse) < INFINITY ? inverse : 0.0f; // else the weights are not finite
    }
    to->shift[row] = shift;
    to->inverse[row] = inverse;
}

/* A warp's MT * 16 keys. A lane has keys lane / 4 and lane / 4 + 8 of each 16. */
template <int DIMS, int MT> struct score_keys {
    uint32_t k[MT][DIMS / 16][4]; // mma's operands
    int key0;
    float total[MT][2];
};

/* K of slots [slot0, slot0 + MT * 16) of a page of which n are stored. */
template <int DIMS, int MT>
DEVICE void load_keys(const struct kv_layout *l, const uint8_t *panel, int slot0, int n,
                      uint32_t k[MT][DIMS / 16][4])
{
#pragma unroll
    for (int tile = 0; tile < MT; tile++)
#pragma unroll
        for (int step = 0; step < DIMS / 16; step++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int pair = step * 8 + i / 2 * 4 + lane_id() % 4;
                const int slot = slot0 + tile * 16 + i % 2 * 8 + lane_id() / 4;
                k[tile][step][i] = pair < l->dim_pad / 2 && slot < n
                                       ? ((const uint32_t *)panel)[pair * PAGE_SLOTS + slot]
                                       : 0;
            }
}

template <int MT> DEVICE void keys_cap(const struct logits *to, float x[MT][4])
{
#pragma unroll
    for (int i = 0; i < MT * 4; i++)
        x[i / 4][i % 4] = math_softcap(x[i / 4][i % 4] * to->scale, to->cap);
}

/* Weights of the warp's keys for 8 queries: column[tile][2 half + e] += weight of the lane's key
 * `half` for query 2 (lane % 4) + e. */
template <int DIMS, int MT>
DEVICE void add_weights(const struct prompt *f, const struct score_keys<DIMS, MT> *keys,
                        const struct score_stage<DIMS> *stage, int query0, int at,
                        float column[MT][4])
{
    const struct logits to = logits_of(&f->a);
    const int lane = lane_id(), row0 = at + lane % 4 * 2;
    float x[MT][4] = {};
#pragma unroll
    for (int step = 0; step < DIMS / 16; step += 2) {
        uint32_t b[4];
        ldmatrix_x4(b, stage->q + (at + lane % 8) * (DIMS + 8) + step * 16 + lane / 8 * 8);
#pragma unroll
        for (int tile = 0; tile < MT; tile++) {
            mma_bf16(x[tile], keys->k[tile][step], b);
            mma_bf16(x[tile], keys->k[tile][step + 1], b + 2);
        }
    }
    if (to.cap > 0)
        keys_cap<MT>(&to, x);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float shift = stage->shift[row0 + e], inverse = stage->inverse[row0 + e];
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            const int key = keys->key0 + i * 8 + lane / 4;
            const float weight = weight_of(x[i / 2][i % 2 * 2 + e], to.power, shift);
            const int sees = query_sees(&f->a, query0 + row0 + e, key) && inverse != 0.0f;
            float *sum = &column[i / 2][i % 2 * 2 + e];
            *sum = fmaf(sees ? weight : 0.0f, inverse, *sum);
        }
    }
}

/* Adds a tile's chains of four lanes to the scores. */
template <int DIMS, int MT>
DEVICE void tile_total(const float column[MT][4], struct score_keys<DIMS, MT> *keys)
{
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        float sum = column[i / 2][i % 2 * 2] + column[i / 2][i % 2 * 2 + 1];
        sum = sum + warp_xor(sum, 1);
        keys->total[i / 2][i % 2] += sum + warp_xor(sum, 2);
    }
}

/* The same if scores count queries: adds 8 queries one by one. */
template <int DIMS, int MT>
DEVICE void next_totals(const struct evict_rule *mode, const float column[MT][4], int group,
                        int query0, int end, struct score_keys<DIMS, MT> *keys)
{
    for (int query = query0; query < query0 + 8 && query < end; query++) {
        const int from = (lane_id() & ~3) + (query - query0) / 2, e = (query - query0) % 2;
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            const float *own = &column[i / 2][i % 2 * 2];
            const float sum = warp_shfl(e ? own[1] : own[0], from);
            float *total = &keys->total[i / 2][i % 2];
            *total = evict_score_next(mode, *total, sum, group, query);
        }
    }
}

/* A block handles SCORE_WARPS * MT * 16 keys of a KV head and the tiles of queries that see any of
 * them, ascending; a tile's heads follow one another. HITS: scores count queries, which needs the
 * sum over all heads. */
template <int DIMS, int MT, int HITS>
__global__ void __launch_bounds__(SCORE_THREADS, HITS ? 2 : 3)
    prompt_scores_mma(const __grid_constant__ struct prompt f)
{
    constexpr int KEYS = SCORE_WARPS * MT * 16, COLUMNS = HITS ? PAGE_SLOTS / 8 : 1;
    const struct kv_layout *l = &f.a.layout;
    const struct prompt_span span = f.a.spans[f.first_span + (int)blockIdx.z];
    const int kv_head = (int)blockIdx.y, group = f.a.n_heads / l->n_kv_heads;
    const int end = span.first + span.n, block0 = (int)blockIdx.x * KEYS;
    if (block0 >= end)
        return;
    struct taken taken = {};
    struct score_stage<DIMS> *stage = take<struct score_stage<DIMS>>(&taken, 1);
    struct score_keys<DIMS, MT> keys;
    keys.key0 = block0 + warp_id() * MT * 16;
    const int page = keys.key0 / PAGE_SLOTS, slot0 = keys.key0 % PAGE_SLOTS;
    const uint8_t *pages = prompt_span_pages(&f.a, &span);
    if (keys.key0 < end)
        load_keys<DIMS, MT>(l, kv_panel(l, pages + page * l->page_bytes, kv_head, 0), slot0,
                            end - page * PAGE_SLOTS, keys.k);
    float *scores = prompt_span_scores(&f.a, &span) +
                    (int64_t)kv_head * round_up(span.n_prompt, PAGE_SLOTS) + keys.key0;
    for (int i = 0; i < 2 * MT; i++) {
        const int key = i * 8 + lane_id() / 4, own = lane_id() % 4 == 0; // only its total counts
        keys.total[i / 2][i % 2] = own && keys.key0 + key < end ? scores[key] : 0.0f;
    }
    const struct evict_rule mode = evict_rule_of(f.a.policy);
    const int tile0 = max_int(prompt_first_tile(&f.a, &span), span.first / PAGE_SLOTS);
    const int last = last_query(&f.a, (block0 + KEYS - 1) / PAGE_SLOTS, end);
    for (int tile = max_int(block0 / PAGE_SLOTS, tile0); tile * PAGE_SLOTS < last; tile++) {
        const int query0 = tile * PAGE_SLOTS;
        const int some = page <= tile && query0 < last_query(&f.a, page, end);
        float column[COLUMNS][MT][4] = {};
        for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
            __syncthreads();
            fetch_stage<DIMS>(&f, &span, &mode, query0, head, stage);
            __syncthreads();
#pragma unroll
            for (int i = 0; some && i < PAGE_SLOTS / 8; i++)
                add_weights<DIMS, MT>(&f, &keys, stage, query0, i * 8, column[HITS ? i : 0]);
        }
        if (some && !HITS)
            tile_total<DIMS, MT>(column[0], &keys);
        for (int i = 0; some && HITS && i < COLUMNS; i++)
            next_totals<DIMS, MT>(&mode, column[i], group, query0 + i * 8, end, &keys);
    }
    for (int i = 0; i < 2 * MT; i++)
        if (lane_id() % 4 == 0 && keys.key0 + i * 8 + lane_id() / 4 < end)
            scores[i * 8 + lane_id() / 4] = keys.total[i / 2][i % 2];
}

/* ---- host ---- */

template <int DIMS, int MT, int SCORE_MT>
static void mma_launch(cudaStream_t stream, const struct prompt *f, int n_spans)
{
    const unsigned spans = (unsigned)n_spans, kv_heads = (unsigned)f->a.layout.n_kv_heads;
    const unsigned blocks = (unsigned)ceil_div(f->a.n_max, WARPS * MT * 16);
    const unsigned of_keys = (unsigned)ceil_div(f->a.end_max, SCORE_WARPS * SCORE_MT * 16);
    const int shared = take_bytes<struct score_stage<DIMS>>(1);
    LAUNCH((prompt_rows_mma<DIMS, MT>), dim3(blocks, (unsigned)f->a.n_heads, spans), THREADS,
           (rows_mma_shared<DIMS, MT>()), stream, *f);
    if (!f->a.scores)
        return;
    if (evict_rule_of(f->a.policy).source == EVICT_EACH)
        LAUNCH((prompt_scores_mma<DIMS, SCORE_MT, 1>), dim3(of_keys, kv_heads, spans),
               SCORE_THREADS, shared, stream, *f);
    else
        LAUNCH((prompt_scores_mma<DIMS, SCORE_MT, 0>), dim3(of_keys, kv_heads, spans),
               SCORE_THREADS, shared, stream, *f);
}

int prompt_mma_takes(const struct prompt *f)
{
    return f->round_q && f->a.layout.head_dim <= 256 && launch_arch() >= 80;
}

void prompt_mma(cudaStream_t stream, const struct prompt *f, int n_spans)
{
    const int head_dim = f->a.layout.head_dim;
    if (head_dim <= 64)
        mma_launch<64, 2, 2>(stream, f, n_spans);
    else if (head_dim <= 96)
        mma_launch<96, 2, 2>(stream, f, n_spans);
    else if (head_dim <= 128)
        mma_launch<128, 2, 2>(stream, f, n_spans);
    else
        mma_launch<256, 1, 1>(stream, f, n_spans);
}
