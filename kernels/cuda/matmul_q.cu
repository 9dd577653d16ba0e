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
 * Bounds. Up to 16 rows: HBM, 0.56 bytes per weight in q4. A number takes 5 to 6 instructions of a
 * lane: an H100 issues those of 70e9 numbers in 13 ms, and reads the numbers in 13 ms. A block
 * keeps 27 KiB of W in flight in q4. A chain over k cannot be split, so a warp has 8 outputs: a
 * product of 8,192 outputs then has two warps for each scheduler of an H100, and one warp alone
 * issues an instruction in 1.7 cycles at best. More rows: instruction issue, and shared memory,
 * from which a warp reads x once for its 16 or 32 outputs. */
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
    // 16-byte pieces per thread: N_W of one panel, TURN bytes apart; N_X of N_ROWS rows of x.
    static constexpr int TURN = THREADS / PANELS * 16, N_W = (RUN + TURN - 1) / TURN;
    static constexpr int X_GROUP = BM * (OWN_GROUP / 8), N_X = GROUPS * X_GROUP / THREADS;
    static constexpr int N_ROWS = X_GROUP > THREADS ? X_GROUP / THREADS : 1;
    static constexpr int N = WN / 8; // operands of W
    static_assert(TURN % 256 == 0, "a thread's pieces of W lie in rows of one parity");
};

/* Position of byte `at` of a stage's W. Rows of 128 bytes of q8 are permuted, so that the two quads
 * that a warp reads at a time are in different banks; those of q4 are anyway. */
template <int Q4> DEVICE int code_place(int at)
{
    return Q4 ? at : at ^ at / 128 % 2 * 32;
}

/* Sources of a thread's copies for every stage: one panel from byte `at` on, a piece every TURN
 * bytes, and rows of x. The places are positions in the stage. Rows and panels beyond the end are
 * replaced by the block's first: their outputs are not stored. */
template <class T> struct q_source {
    const uint8_t *w;
    const uint16_t *x[T::N_ROWS];
    int at, w_place, x_place;
};

template <int Q4, class T, int BM>
DEVICE void source_find(const struct mma_task *t, const struct product *p, int row0, int o0,
                        struct q_source<T> *s)
{
    const int panel0 = o0 / PANEL_ROWS, n_panels = (p->n + PANEL_ROWS - 1) / PANEL_ROWS;
    const int of_block = (int)threadIdx.x * 16 / T::TURN, panel = panel0 + of_block;
    s->at = (int)held(threadIdx.x * 16 % T::TURN);
    s->w = p->weights + (panel < n_panels ? panel : panel0) * p->panel_bytes + s->at;
    s->w_place = (int)held((uint32_t)code_place<Q4>(of_block * T::RUN + s->at));
    const int me = (int)threadIdx.x;
    s->x_place = (int)held(T::X_AT + 2 * (uint32_t)piece_at<OWN_GROUP>(me / 8, me % 8));
#pragma unroll
    for (int i = 0; i < T::N_ROWS; i++) {
        const int row = row0 + (i * T::THREADS + me) / 8 % BM;
        s->x[i] = t->x + (p->pair + (row < p->m ? row : row0)) * t->row +
                  me / T::X_GROUP * OWN_GROUP + me % 8 * 8;
    }
}

/* Starts the copies of n groups of the next stage; `whole`: n is GROUPS. */
template <class T>
DEVICE void groups_fetch(const struct q_source<T> *s, int whole, int n, uint8_t *stage)
{
#pragma unroll
    for (int i = 0; i < T::N_W; i++)
        if ((whole && (i + 1) * T::TURN <= T::RUN) || s->at + i * T::TURN < n * T::GROUP_BYTES)
            cp_async16(stage + s->w_place + i * T::TURN, s->w + i * T::TURN);
#pragma unroll
    for (int i = 0; i < T::N_X; i++)
        if (whole || (i * T::THREADS + (int)threadIdx.x) / T::X_GROUP < n)
            cp_async16(stage + s->x_place + i * T::THREADS * 16,
                       s->x[i % T::N_ROWS] + i * T::THREADS / T::X_GROUP * OWN_GROUP);
}

/* The last stage of rows that are no whole number of stages. tests/tools/sass.py leaves these
 * instructions out. */
template <class T> DEVICE void rest_fetch(const struct q_source<T> *s, int n, uint8_t *stage)
{
    groups_fetch<T>(s, 0, n, stage);
}

/* Starts the copies of the next stage, of whose groups `left` (at least one) exist. */
template <class T, int GROUPS>
DEVICE void stage_fetch(struct q_source<T> *s, int left, uint8_t *stage)
{
    if (left >= GROUPS)
        groups_fetch<T>(s, 1, GROUPS, stage);
    else
        rest_fetch<T>(s, left, stage);
    s->w += T::RUN;
#pragma unroll
    for (int i = 0; i < T::N_ROWS; i++)
        s->x[i] += GROUPS * OWN_GROUP;
}

/* Two codes along k of a lane's output in `operand`, in the low 16 bits. The output is row first +
 * operand / 2 * 8 + operand % 2 * 16 + lane / 4 of the panel. */
template <int Q4, class T> DEVICE uint32_t codes_read(const uint8_t *codes, int at, int operand)
{
    const int place = Q4 ? at + operand / 2 * 32 : (at ^ operand / 2 * 32) + operand % 2 * 64;
    return *(const uint16_t *)(codes + place);
}

/* How a code becomes a float: the code's bits or-ed into `one`, a float whose last bit is worth as
 * much as the code's last bit, are one + code. `less` is what to subtract: one and q8's bias. */
struct q_place {
    uint32_t mask, one;
    float less;
};

/* Of a code that begins at `bit`. `zero` is 0, but unknown to the compiler: a logical operation has
 * room for one constant, the mask. If a warp has 8 outputs, `bit` depends on the warp, and nothing
 * is a constant. */
template <int Q4, class T> DEVICE struct q_place place_of(int bit, uint32_t zero)
{
    const uint32_t one = (uint32_t)(150 - bit) << 23;
    struct q_place p = {(Q4 ? 15u : 255u) << bit, held(one - zero),
                        __uint_as_float(one) + (Q4 ? 0 : Q8_BIAS)};
    if (Q4 && T::N == 1) {
        p.mask = held(p.mask);
        p.less = __uint_as_float(held(__float_as_uint(p.less)));
    }
    return p;
}

/* A pair of numbers for the cores. */
template <int Q4, int KIND>
DEVICE uint32_t pair_decode(uint32_t codes, float scale, float min, const struct q_place place[2])
{
    float number[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float code = __uint_as_float((codes & place[i].mask) | place[i].one) - place[i].less;
        number[i] = Q4 ? fmaf(code, scale, min) : code * scale;
    }
    return KIND == DTYPE_F16 ? cvt_f16_pair(number[0], number[1])
                             : cvt_bf16_pair(number[0], number[1]);
}

/* Positions of a lane's numbers in a stage, and the places of the codes of even and odd operands.
 */
struct q_lane {
    int code, head, x;
    struct q_place places[2][2];
};

/* `first`: the warp's first row of the panel that begins at byte `panel`. */
template <int Q4, class T>
DEVICE struct q_lane lane_find(const struct mma_task *t, int panel, int first, int row)
{
    const int lane = lane_id(), c = lane % 4, of_panel = first + lane / 4;
    const int of_codes = Q4 ? of_panel % 16 : of_panel; // a byte of q4 has codes of two rows
    struct q_lane at;
    at.code =
        code_place<Q4>(panel + T::HEAD_BYTES + c / 2 * T::QUAD_BYTES + of_codes * 4) + c % 2 * 2;
    at.code = (int)held((uint32_t)at.code);
    at.head = (int)held((uint32_t)code_place<Q4>(panel + of_panel * (Q4 ? 2 : 4)));
    at.x = (int)held(T::X_AT + 2 * (uint32_t)piece_at<OWN_GROUP>(row + lane % 16, lane / 16));
#pragma unroll
    for (int i = 0; i < 4; i++)
        at.places[i / 2][i % 2] =
            place_of<Q4, T>(i % 2 * 8 + (Q4 ? (T::N == 1 ? of_panel / 16 : i / 2) * 4 : 0),
                            (uint32_t)t->row % OWN_GROUP);
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
            *pair = pair_decode<Q4, KIND>(codes[j / 2][j % 2], scale[j / 2], min[j / 2],
                                          at->places[j / 2 % 2]);
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
    // The first 8 outputs of a warp begin at this row of the panel, the next 8 at 16 rows further.
    const int panel = across * WN / PANEL_ROWS, first = across % (PANEL_ROWS / WN) * 8;
    const struct q_lane at = lane_find<Q4, tile>(&t, panel * tile::RUN, first, row);
    struct q_source<tile> source;
    float d[tile::N][WM / 16][1][4] = {};
    source_find<Q4, tile, BM>(&t, &p, row0, o0, &source);
    groups_multiply<tile::STAGE, GROUPS, STAGES>(
        (p.k + OWN_GROUP - 1) / OWN_GROUP, ring,
        [&](int left, uint8_t *stage) { stage_fetch<tile, GROUPS>(&source, left, stage); },
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
