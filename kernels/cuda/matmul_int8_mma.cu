/* kernels/cuda/matmul_int8_mma.cu - matmul under COMPUTE_INT8 on integer tensor cores.
 *
 * Owns: tiles, stages, the chain over groups. Refuses: the codes of x (matmul_int8.cu).
 * A step of the cores is 16 outputs x 8 rows x 32 numbers: a group of 64 is two steps, whose sum is
 * exact in any order. The chain over groups is that of ops.h, in registers: one thread owns an
 * output from the first group to the last. So neither tiles nor neighbours change the bytes, which
 * are those of matmul_int8.cu and of the CPU.
 * A warp handles 16 or 32 outputs: rows of a panel. Weights are the cores' left operand: a register
 * holds four codes of a row, as panels do; codes of q4 are masked, and in the upper half of a panel
 * shifted first. A sum starts at the bits of CODES_MAGIC. Adding an integer to these bits gives the
 * bits of CODES_MAGIC plus that integer, so one subtraction converts the sum to a float, faster
 * than a conversion.
 * Bounds. Few rows: HBM, 0.56 bytes per weight in q4. Many: instruction issue. A step of the cores
 * takes 12 to 16 instructions (16 rows: 27), of which 8 are links of chains in q4 and 6 in q8; an
 * SM of an H100 issues 4 per clock, so that 32 rows in q4 take as long as reading W. Each block
 * reads x from L2. */
#include "kernels/cuda/matmul_int8.cuh"
#include "kernels/cuda/mma_tile.cuh"
#include "kernels/cuda/tiles.h"

#define CODES_MAGIC 12582912.0f // 2^23 + 2^22; sums of a group are below 2^22
#define CODES_BITS  0x4b400000  // of CODES_MAGIC

/* A block: BM rows of x, BN outputs, GROUPS groups per stage. A warp: 16 x HALVES outputs, WM
 * rows. */
template <int Q4, int BM, int BN, int HALVES, int WM, int GROUPS> struct codes_tile {
    static constexpr int PANELS = BN / PANEL_ROWS, ACROSS = BN / (16 * HALVES); // per block
    static constexpr int THREADS = ACROSS * (BM / WM) * WARP;
    static constexpr int HEAD_BYTES = Q4 ? Q4_HEAD_BYTES : Q8_HEAD_BYTES; // per group of a panel
    static constexpr int GROUP_BYTES = Q4 ? Q4_GROUP_BYTES : Q8_GROUP_BYTES;
    static constexpr int CODES = GROUP_BYTES - HEAD_BYTES; // bytes of codes
    // A stage, each [GROUPS]: codes of W [PANELS], of x [BM], heads of W [PANELS], of x [BM].
    static constexpr int X_AT = GROUPS * PANELS * CODES;
    static constexpr int W_HEADS_AT = X_AT + GROUPS * BM * OWN_GROUP;
    static constexpr int X_HEADS_AT = W_HEADS_AT + GROUPS * PANELS * HEAD_BYTES;
    static constexpr int STAGE = X_HEADS_AT + GROUPS * BM * (int)sizeof(struct int8_head);
    // 16-byte pieces per thread; threads that copy one piece of the heads.
    static constexpr int N_W = X_AT / 16 / THREADS, N_X = (W_HEADS_AT - X_AT) / 16 / THREADS;
    static constexpr int W_HEADS = GROUPS * PANELS * HEAD_BYTES / 16, X_HEADS = GROUPS * BM;
    static constexpr int STRIP = 16 * (16 * HALVES + 4); // floats: 16 rows, in different banks
    static_assert(X_AT % (16 * THREADS) == 0 && (W_HEADS_AT - X_AT) % (16 * THREADS) == 0 &&
                      W_HEADS <= THREADS && X_HEADS <= THREADS,
                  "threads have whole pieces");
};

/* Position of byte `at` of a group's codes: rows of 128 bytes are permuted, so that the four quads
 * that a warp reads at a time are in different banks. */
template <int Q4> DEVICE int code_at(int at)
{
    return at ^ at / 128 % (Q4 ? 2 : 4) * 32;
}

/* Sources of a thread's copies for every stage. Rows and panels beyond the end are replaced by the
 * block's first: their outputs are not stored. */
template <class T> struct codes_source {
    const uint8_t *w[T::N_W], *x[T::N_X], *w_head;
    const struct int8_head *x_head;
};

/* Address of the n-th piece of W in the block's first stage, for pieces with `bytes` per group. */
template <class T>
DEVICE const uint8_t *w_piece(const struct int8_task *t, int panel0, int n, int bytes)
{
    const int group = n / (T::PANELS * bytes / 16), panel = panel0 + n / (bytes / 16) % T::PANELS;
    const int n_panels = (t->p.n + PANEL_ROWS - 1) / PANEL_ROWS;
    return t->p.weights + (panel < n_panels ? panel : panel0) * t->p.panel_bytes +
           group * T::GROUP_BYTES + n % (bytes / 16) * 16;
}

template <class T, int BM>
DEVICE void source_find(const struct int8_task *t, int row0, int o0, struct codes_source<T> *s)
{
    const int me = (int)threadIdx.x;
#pragma unroll
    for (int i = 0; i < T::N_W; i++)
        s->w[i] = w_piece<T>(t, o0 / PANEL_ROWS, i * T::THREADS + me, T::CODES) + T::HEAD_BYTES;
#pragma unroll
    for (int i = 0; i < T::N_X; i++) {
        const int piece = i * T::THREADS + me, row = row0 + piece / 4 % BM;
        s->x[i] = (const uint8_t *)t->codes + piece / (4 * BM) * OWN_GROUP + piece % 4 * 16 +
                  (row < t->p.m ? row : row0) * (int64_t)t->n_groups * OWN_GROUP;
    }
    const int row = row0 + me % BM;
    s->w_head = w_piece<T>(t, o0 / PANEL_ROWS, me, T::HEAD_BYTES);
    s->x_head = t->heads + (int64_t)(me / BM) * t->rows + (row < t->p.m ? row : row0);
}

/* Starts the copies of the next stage, of whose groups `left` (at least one) exist. */
template <int Q4, class T, int BM, int GROUPS>
DEVICE void stage_fetch(const struct int8_task *t, struct codes_source<T> *s, int left,
                        uint8_t *stage)
{
    const int me = (int)threadIdx.x;
#pragma unroll
    for (int i = 0; i < T::N_W; i++) {
        const int piece = i * T::THREADS + me, at = piece * 16, group = at / (T::PANELS * T::CODES);
        cp_async16_zeros(stage + at / T::CODES * T::CODES + code_at<Q4>(at % T::CODES), s->w[i],
                         GROUPS == 1 || group < left ? 16 : 0);
        s->w[i] += GROUPS * T::GROUP_BYTES;
    }
#pragma unroll
    for (int i = 0; i < T::N_X; i++) {
        const int piece = i * T::THREADS + me, group = piece / (4 * BM);
        uint16_t *x = (uint16_t *)(stage + T::X_AT);
        cp_async16_zeros(x + piece_at<OWN_GROUP / 2>(piece / 4, piece % 4), s->x[i],
                         GROUPS == 1 || group < left ? 16 : 0);
        s->x[i] += GROUPS * OWN_GROUP;
    }
    if (me < T::W_HEADS && (GROUPS == 1 || me * GROUPS / T::W_HEADS < left))
        cp_async16(stage + T::W_HEADS_AT + me * 16, s->w_head);
    if (me < T::X_HEADS && (GROUPS == 1 || me / BM < left))
        cp_async8(stage + T::X_HEADS_AT + me * 8, s->x_head);
    s->w_head += GROUPS * T::GROUP_BYTES;
    s->x_head += (int64_t)GROUPS * t->rows;
}

/* Positions of a lane's numbers in a stage; `first`: the warp's first output within a panel. */
struct codes_lane {
    int first, code, w_head, x, x_head;
};

template <int Q4, class T> DEVICE struct codes_lane lane_find(int row, int o)
{
    const int lane = lane_id(), of_8 = lane / 4, quad = lane % 4;
    struct codes_lane at;
    at.first = o % PANEL_ROWS;
    at.code = o / PANEL_ROWS * T::CODES +
              code_at<Q4>((Q4 ? quad * 64 : quad * 128 + at.first * 4) + of_8 * 4);
    at.w_head = T::W_HEADS_AT + o / PANEL_ROWS * T::HEAD_BYTES + (at.first + of_8) * (Q4 ? 2 : 4);
    at.x = T::X_AT + 2 * piece_at<OWN_GROUP / 2>(row + lane % 8, lane / 8);
    at.x_head = T::X_HEADS_AT + (row + quad * 2) * 8;
    return at;
}

/* A lane's codes, scales and minima of a group of its warp's outputs, per step of the cores. */
template <int HALVES> struct codes_of_w {
    uint32_t codes[2][HALVES][4];
    float scale[HALVES][2], min[HALVES][2];
};

/* Loads group g of the stage. */
template <int Q4, class T, int HALVES>
DEVICE void w_read(const uint8_t *stage, const struct codes_lane *at, int g,
                   struct codes_of_w<HALVES> *w)
{
    const uint8_t *codes = stage + g * T::PANELS * T::CODES;
    const uint8_t *head = stage + at->w_head + g * T::PANELS * T::HEAD_BYTES;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int further = i % 2 * 32, quads = i / 2 * (Q4 ? 256 : 512); // 8 rows, 4 quads each
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            const int code = (at->code ^ further ^ (Q4 ? 0 : h * 64)) + quads;
            const uint32_t four = *(const uint32_t *)(codes + code);
            w->codes[i / 4][h][i % 4] =
                Q4 ? four >> (at->first / 4 + h * 4) & 0x0f0f0f0fu : four ^ 0x80808080u;
        }
    }
#pragma unroll
    for (int i = 0; i < 2 * HALVES; i++) { // 8 rows per turn
        if (Q4) {
            w->scale[i / 2][i % 2] = cvt_f16(*(const uint16_t *)(head + 16 * i));
            w->min[i / 2][i % 2] = cvt_f16(*(const uint16_t *)(head + 2 * PANEL_ROWS + 16 * i));
        } else {
            w->scale[i / 2][i % 2] = *(const float *)(head + 32 * i);
        }
    }
}

/* Extends each of the warp's chains by group g of the stage. */
template <int Q4, class T, int BM, int HALVES, int WM>
DEVICE void group_multiply(const uint8_t *stage, const struct codes_lane *at, int g,
                           float chain[HALVES][WM / 8][4])
{
    struct codes_of_w<HALVES> w;
    w_read<Q4, T, HALVES>(stage, at, g, &w);
#pragma unroll
    for (int j = 0; j < WM / 8; j++) {
        uint32_t b[4];
        ldmatrix_x4(b, stage + at->x + (g * BM + j * 8) * OWN_GROUP);
        // Scales and sums of two rows.
        const float4 two = *(const float4 *)(stage + at->x_head + (g * BM + j * 8) * 8);
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            int d[4] = {CODES_BITS, CODES_BITS, CODES_BITS, CODES_BITS};
            mma_s8(d, w.codes[0][h], b);
            mma_s8(d, w.codes[1][h], b + 2);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float sum = __int_as_float(d[i]) - CODES_MAGIC;
                float *link = &chain[h][j][i];
                *link = fmaf(w.scale[h][i / 2], sum * (i % 2 ? two.z : two.x), *link);
                if (Q4)
                    *link = fmaf(w.min[h][i / 2], i % 2 ? two.w : two.y, *link);
            }
        }
    }
}

/* 16 rows at a time pass through shared memory, for coalesced writes of outputs. */
template <int HALVES, int WM>
DEVICE void chains_finish(const struct product *p, int row, int o, float chain[HALVES][WM / 8][4],
                          float *strip)
{
    constexpr int N = 16 * HALVES;
    const int lane = lane_id();
#pragma unroll
    for (int j = 0; j < WM / 8; j += 2, row += 16) {
#pragma unroll
        for (int i = 0; i < HALVES * 8; i++)
            strip[(i / 4 % 2 * 8 + lane % 4 * 2 + i % 2) * (N + 4) + i / 8 * 16 + i / 2 % 2 * 8 +
                  lane / 4] = chain[i / 8][j + i / 4 % 2][i % 4];
        __syncwarp();
#pragma unroll 1
        for (int at = lane; at < 16 * N; at += WARP)
            if (row + at / N < p->m && o + at % N < p->n)
                product_finish(p, row + at / N, o + at % N, strip[at / N * (N + 4) + at % N]);
        __syncwarp();
    }
}

template <int BM, int BN, int HALVES, int WM, int GROUPS, int STAGES, int Q4>
static __global__ void __launch_bounds__(codes_tile<Q4, BM, BN, HALVES, WM, GROUPS>::THREADS,
                                         HALVES == 2 ? 2 : 3)
    matmul_int8_mma_tile(const __grid_constant__ struct int8_task t)
{
    typedef codes_tile<Q4, BM, BN, HALVES, WM, GROUPS> tile;
    struct taken taken = {};
    uint8_t *ring = take<uint8_t>(&taken, (ARCH < 80 ? 2 : STAGES) * tile::STAGE);
    const int row = warp_id() / tile::ACROSS * WM, o = warp_id() % tile::ACROSS * 16 * HALVES;
    float chain[HALVES][WM / 8][4] = {};
    {
        struct int8_task own = t;
        struct codes_source<tile> source;
        if (!expert_enter(&own.p, BM, BN))
            return; // the whole block
        const int row0 = tile_row(&own.p, BM), o0 = tile_column(&own.p, BM, BN);
        const struct codes_lane at = lane_find<Q4, tile>(row, o);
        int8_enter(&own);
        source_find<tile, BM>(&own, row0, o0, &source);
        groups_multiply<tile::STAGE, GROUPS, STAGES>(
            t.n_groups, ring,
            [&](int left, uint8_t *stage) {
                stage_fetch<Q4, tile, BM, GROUPS>(&t, &source, left, stage);
            },
            [&](const uint8_t *stage, int g) {
                group_multiply<Q4, tile, BM, HALVES, WM>(stage, &at, g, chain);
            });
    }
    __syncthreads(); // the stages are free
    struct product p = t.p; // read again: its registers were used by the chains
    (void)expert_enter(&p, BM, BN);
    chains_finish<HALVES, WM>(&p, tile_row(&p, BM) + row, tile_column(&p, BM, BN) + o, chain,
                              (float *)ring + warp_id() * tile::STRIP);
}

template <int BM, int BN, int HALVES, int WM, int GROUPS, int STAGES, int Q4>
static void mma_launch(cudaStream_t stream, struct int8_task t)
{
    typedef codes_tile<Q4, BM, BN, HALVES, WM, GROUPS> tile;
    const int grid = tile_count(&t.p, BM, BN);
    const int shared = take_bytes<uint8_t>((launch_arch() < 80 ? 2 : STAGES) * tile::STAGE);
    static_assert(2 * tile::STAGE >= tile::THREADS / WARP * tile::STRIP * 4, "room for strips");
    LAUNCH((matmul_int8_mma_tile<BM, BN, HALVES, WM, GROUPS, STAGES, Q4>), grid, tile::THREADS,
           shared, stream, t);
}

template <int Q4> static void mma_choose(cudaStream_t stream, const struct int8_task *t)
{
    const int rows = product_rows_likely(&t->p);
#define TILE(MOST, BM, BN, HALVES, WM, GROUPS, STAGES_Q8, STAGES_Q4)                               \
    if (rows <= MOST)                                                                              \
        return mma_launch<BM, BN, HALVES, WM, GROUPS, (Q4 ? STAGES_Q4 : STAGES_Q8), Q4>(stream, *t);
    INT8_TILES(TILE)
#undef TILE
}

void matmul_int8_mma(cudaStream_t stream, const struct int8_task *task)
{
    if (task->p.dtype == DTYPE_Q4)
        mma_choose<1>(stream, task);
    else
        mma_choose<0>(stream, task);
}
