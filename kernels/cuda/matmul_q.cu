/* kernels/cuda/matmul_q.cu - matmul on tensor cores over panels of q8 and q4: decodes codes to the
 * cores' operand in registers.
 *
 * Refuses: other formats (matmul_panel.cu), the order of sums (mma_tile.cuh).
 * A number of W is the one that decode.cu would write (bf16; f16 on sm_75), and the steps of the
 * cores are those of matmul_mma.cu, so the bytes of an output are those of decode, then matmul. The
 * right operand of a step is 16 numbers along k of 8 outputs; a lane has numbers 2c, 2c + 1, 2c + 8
 * and 2c + 9 of one output, c = lane % 4. Columns may be assigned to outputs freely, so a column of
 * one operand is row r of a panel and the same column of the next is row r + 16: in q4 a byte has a
 * code of both.
 * Bounds. Up to 16 rows: HBM, 0.56 bytes per weight in q4. A number takes about 5 instructions of a
 * lane: an H100 issues those of 70e9 numbers in 12 ms, and reads them in 13 ms. A block keeps 18
 * KiB of W in flight in q4; a warp has 16 outputs, because the chain over k cannot be split. More
 * rows: instruction issue, and shared memory, from which a warp reads x once for its 16 or 32
 * outputs. */
#include "kernels/cuda/mma_tile.cuh"
#include "kernels/cuda/panel.cuh"
#include "kernels/cuda/tiles.h"

/* A block: BM rows of x, BN outputs, GROUPS groups of 64 numbers per stage. A warp: WM rows, WN
 * outputs. */
template <int Q4, int BM, int BN, int WM, int WN, int GROUPS> struct q_tile {
    static constexpr int PANELS = BN / PANEL_ROWS, ACROSS = BN / WN; // per block; warps across
    static constexpr int THREADS = BM / WM * ACROSS * WARP;
    static constexpr int HEAD_BYTES = Q4 ? Q4_HEAD_BYTES : Q8_HEAD_BYTES; // per group of a panel
    static constexpr int GROUP_BYTES = Q4 ? Q4_GROUP_BYTES : Q8_GROUP_BYTES;
    static constexpr int QUAD_BYTES = (GROUP_BYTES - HEAD_BYTES) / OWN_QUADS; // codes of 4 numbers
    // A stage: the stored groups of each panel; x [GROUPS][BM][64].
    static constexpr int RUN = GROUPS * GROUP_BYTES, X_AT = PANELS * RUN;
    static constexpr int STAGE = X_AT + GROUPS * BM * OWN_GROUP * 2;
    // 16-byte pieces of W: per stage, per thread.
    static constexpr int W_PIECES = X_AT / 16, N_W = (W_PIECES + THREADS - 1) / THREADS;
    static constexpr int N_X = GROUPS * BM * (OWN_GROUP / 8) / THREADS;
    static constexpr int N = WN / 8; // operands of W
    static_assert(THREADS * 16 % 2048 == 0, "a thread's pieces of W lie in rows of one parity");
};

/* Position of byte `at` of a stage's W. Rows of 128 bytes of q8 are permuted, so that the two quads
 * that a warp reads at a time are in different banks; those of q4 are anyway. */
template <int Q4> DEVICE int code_place(int at)
{
    return Q4 ? at : at ^ at / 128 % 2 * 32;
}

/* Sources of a thread's copies for every stage. Rows and panels beyond the end are replaced by the
 * block's first: their outputs are not stored. */
template <class T> struct q_source {
    const uint8_t *w[T::N_W];
    const uint16_t *x[T::N_X];
};

template <class T, int BM>
DEVICE void source_find(const struct mma_task *t, const struct product *p, int row0, int o0,
                        struct q_source<T> *s)
{
    const int panel0 = o0 / PANEL_ROWS, n_panels = (p->n + PANEL_ROWS - 1) / PANEL_ROWS;
#pragma unroll
    for (int i = 0; i < T::N_W; i++) {
        const int at = (i * T::THREADS + (int)threadIdx.x) * 16, panel = panel0 + at / T::RUN;
        s->w[i] = p->weights + (panel < n_panels ? panel : panel0) * p->panel_bytes + at % T::RUN;
    }
#pragma unroll
    for (int i = 0; i < T::N_X; i++) {
        const int piece = i * T::THREADS + (int)threadIdx.x, row = row0 + piece / 8 % BM;
        s->x[i] = t->x + (p->pair + (row < p->m ? row : row0)) * t->row +
                  piece / (8 * BM) * OWN_GROUP + piece % 8 * 8;
    }
}

/* Starts the copies of the next stage, of whose groups `left` (at least one) exist. */
template <int Q4, class T, int BM, int GROUPS>
DEVICE void stage_fetch(struct q_source<T> *s, int left, uint8_t *stage)
{
    const int me = (int)threadIdx.x, w_at = code_place<Q4>(me * 16);
#pragma unroll
    for (int i = 0; i < T::N_W; i++) {
        const int piece = i * T::THREADS + me, group = piece * 16 % T::RUN / T::GROUP_BYTES;
        if ((T::W_PIECES % T::THREADS == 0 || piece < T::W_PIECES) && (GROUPS == 1 || group < left))
            cp_async16(stage + w_at + i * T::THREADS * 16, s->w[i]);
        s->w[i] += T::RUN;
    }
#pragma unroll
    for (int i = 0; i < T::N_X; i++) {
        const int piece = i * T::THREADS + me;
        uint16_t *x = (uint16_t *)(stage + T::X_AT);
        if (GROUPS == 1 || piece / (8 * BM) < left)
            cp_async16(x + piece_at<OWN_GROUP>(piece / 8, piece % 8), s->x[i]);
        s->x[i] += GROUPS * OWN_GROUP;
    }
}

/* Two codes along k of a lane's output in `operand`, in the low 16 bits. The output is row first +
 * operand / 2 * 8 + operand % 2 * 16 + lane / 4 of the panel. */
template <int Q4, class T> DEVICE uint32_t codes_read(const uint8_t *codes, int at, int operand)
{
    const int place = Q4 ? at + operand / 2 * 32 : (at ^ operand / 2 * 32) + operand % 2 * 64;
    return *(const uint16_t *)(codes + place);
}

/* Floats whose last bit is worth 2^place: with a code's bits or-ed in at bit `place`, the float
 * grows by the code. `zero` is 0, but unknown to the compiler: a logical operation has room for one
 * constant, the mask. */
#define N_PLACES 4 // 0, 4, 8, 12
DEVICE void ones_make(uint32_t zero, uint32_t ones[N_PLACES])
{
#pragma unroll
    for (int i = 0; i < N_PLACES; i++)
        ones[i] = ((uint32_t)(150 - 4 * i) << 23) + zero;
}

/* A pair of numbers for the cores. */
template <int Q4, int KIND>
DEVICE uint32_t pair_decode(uint32_t codes, int operand, float scale, float min,
                            const uint32_t ones[N_PLACES])
{
    float number[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int place = 8 * i + (Q4 ? operand % 2 * 4 : 0), mask = Q4 ? 15 : 255;
        const float one = __uint_as_float((uint32_t)(150 - place) << 23);
        const float code = __uint_as_float((codes & (uint32_t)mask << place) | ones[place / 4]) -
                           (one + (Q4 ? 0 : Q8_BIAS));
        number[i] = Q4 ? fmaf(code, scale, min) : code * scale;
    }
    return KIND == DTYPE_F16 ? cvt_f16_pair(number[0], number[1])
                             : cvt_bf16_pair(number[0], number[1]);
}

/* Positions of a lane's numbers in a stage. */
struct q_lane {
    int code, head, x;
    uint32_t ones[N_PLACES];
};

/* `first`: the warp's first row of the panel that begins at byte `panel`. */
template <int Q4, class T>
DEVICE struct q_lane lane_find(const struct mma_task *t, int panel, int first, int row)
{
    const int lane = lane_id(), c = lane % 4, of_panel = first + lane / 4;
    struct q_lane at;
    at.code =
        code_place<Q4>(panel + T::HEAD_BYTES + c / 2 * T::QUAD_BYTES + of_panel * 4) + c % 2 * 2;
    at.head = code_place<Q4>(panel + of_panel * (Q4 ? 2 : 4));
    at.x = T::X_AT + 2 * piece_at<OWN_GROUP>(row + lane % 16, lane / 16);
    ones_make((uint32_t)t->row % OWN_GROUP, at.ones);
    return at;
}

/* Scale and minimum of a lane's output in each operand; `head`: position of the group's. */
template <int Q4, int N>
DEVICE void scales_read(const uint8_t *stage, int head, float scale[N], float min[N])
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        if (Q4) {
            const uint8_t *at = stage + head + (j / 2 * 8 + j % 2 * 16) * 2;
            scale[j] = cvt_f16(*(const uint16_t *)at);
            min[j] = cvt_f16(*(const uint16_t *)(at + 2 * PANEL_ROWS));
        } else {
            scale[j] = *(const float *)(stage + (head ^ j / 2 * 32) + j % 2 * 64);
            min[j] = 0;
        }
    }
}

/* Multiplies group g of the stage. Beyond a row's end W is finite but not zero, and x is zero. */
template <int Q4, class T, int BM, int WM, int KIND>
DEVICE void group_multiply(const uint8_t *stage, const struct q_lane *at, int g,
                           float d[T::N][WM / 16][1][4])
{
    const int turned = Q4 ? 0 : g % 2 * 32; // a group of q8 has 17 rows of 128 bytes
    const uint8_t *group = stage + g * T::GROUP_BYTES;
    const uint8_t *x = stage + g * BM * OWN_GROUP * 2;
    float scale[T::N], min[T::N];
    scales_read<Q4, T::N>(group, at->head ^ turned, scale, min);
#pragma unroll
    for (int step = 0; step < OWN_GROUP / 16; step++) {
        uint32_t a[WM / 16][4], b[T::N][2], codes[T::N][2];
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
            ldmatrix_x4(a[i], x + (at->x ^ step * 32) + i * 16 * OWN_GROUP * 2);
#pragma unroll
        for (int j = 0; j < 2 * T::N; j++) {
            const int quads = (step * 4 + j % 2 * 2) * T::QUAD_BYTES;
            codes[j / 2][j % 2] = Q4 && j / 2 % 2
                                      ? codes[j / 2 - 1][j % 2]
                                      : codes_read<Q4, T>(group + quads, at->code ^ turned, j / 2);
        }
#pragma unroll
        for (int j = 0; j < 2 * T::N; j++) {
            uint32_t *pair = &b[j / 2][j % 2];
            *pair = pair_decode<Q4, KIND>(codes[j / 2][j % 2], j / 2, scale[j / 2], min[j / 2],
                                          at->ones);
        }
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int j = 0; j < T::N; j++)
                multiply_step<KIND>(d[j][i][0], a[i], b[j]);
    }
}

template <int BM, int BN, int WM, int WN, int GROUPS, int STAGES, int Q4>
static __global__ void __launch_bounds__(q_tile<Q4, BM, BN, WM, WN, GROUPS>::THREADS,
                                         BN == 64 ? 3 : 1)
    matmul_q_tile(const __grid_constant__ struct mma_task t)
{
    typedef q_tile<Q4, BM, BN, WM, WN, GROUPS> tile;
    struct product p;
    struct taken taken = {};
    uint8_t *ring = take<uint8_t>(&taken, (ARCH < 80 ? 2 : STAGES) * tile::STAGE);
    if (!product_enter<BM, BN>(&t, &p))
        return; // the whole block
    const int row0 = tile_row(&p, BM), o0 = tile_column(&p, BM, BN);
    const int row = warp_id() / tile::ACROSS * WM, across = warp_id() % tile::ACROSS;
    const int panel = across * WN / PANEL_ROWS, first = WN == 16 ? across % 2 * 8 : 0;
    const struct q_lane at = lane_find<Q4, tile>(&t, panel * tile::RUN, first, row);
    struct q_source<tile> source;
    float d[tile::N][WM / 16][1][4] = {};
    source_find<tile, BM>(&t, &p, row0, o0, &source);
    groups_multiply<tile::STAGE, GROUPS, STAGES>(
        (p.k + OWN_GROUP - 1) / OWN_GROUP, ring,
        [&](int left, uint8_t *stage) { stage_fetch<Q4, tile, BM, GROUPS>(&source, left, stage); },
        [&](const uint8_t *stage, int g) {
            if (ARCH < 80)
                group_multiply<Q4, tile, BM, WM, DTYPE_F16>(stage, &at, g, d);
            else
                group_multiply<Q4, tile, BM, WM, DTYPE_BF16>(stage, &at, g, d);
        });
    __syncthreads(); // the stages are free
#pragma unroll
    for (int j = 0; j < tile::N; j++)
        sums_finish<WM, 8>(&p, row0 + row, o0 + panel * PANEL_ROWS + first + j / 2 * 8 + j % 2 * 16,
                           d[j], (float *)ring + warp_id() * strip_floats<8>());
}

template <int BM, int BN, int WM, int WN, int GROUPS, int STAGES, int Q4>
static void q_launch(cudaStream_t stream, struct mma_task t)
{
    typedef q_tile<Q4, BM, BN, WM, WN, GROUPS> tile;
    const int shared = take_bytes<uint8_t>((launch_arch() < 80 ? 2 : STAGES) * tile::STAGE);
    const int grid = mma_grid(&t, BM, BN);
    LAUNCH((matmul_q_tile<BM, BN, WM, WN, GROUPS, STAGES, Q4>), grid, tile::THREADS, shared, stream,
           t);
}

template <int Q4> static void q_choose(cudaStream_t stream, const struct mma_task *t)
{
    const int rows = product_rows_likely(&t->parts[0]);
#define TILE(MOST, BM, BN, WM, WN, GROUPS, STAGES_Q8, STAGES_Q4)                                   \
    if (rows <= MOST)                                                                              \
        return q_launch<BM, BN, WM, WN, GROUPS, (Q4 ? STAGES_Q4 : STAGES_Q8), Q4>(stream, *t);
    Q_TILES(TILE)
#undef TILE
}

int matmul_q_takes(const struct product *p)
{
    return p->panel_bytes > 0 && (p->dtype == DTYPE_Q8 || p->dtype == DTYPE_Q4);
}

void matmul_q(cudaStream_t stream, const struct product parts[], int n_parts, const void *scratch)
{
    const struct mma_task t = mma_task_of(parts, n_parts, scratch);
    if (parts[0].dtype == DTYPE_Q4)
        q_choose<1>(stream, &t);
    else
        q_choose<0>(stream, &t);
}
