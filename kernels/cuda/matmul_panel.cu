/* kernels/cuda/matmul_panel.cu - matmul on tensor cores over panels of any format but q8 and q4
 * (matmul_q.cu), decoded on the way to the cores.
 *
 * Owns: filling a stage of W. Refuses: formats (panel.cuh), the order of sums (mma_tile.cuh).
 * A number of W is the one that decode.cu would write (bf16; f16 on sm_75) and the steps are those
 * of matmul_mma.cu, so the bytes of an output are those of decode, then matmul.
 * A turn covers BK numbers along k. While the cores multiply turn c, warps decode turn c + 1 into
 * the other of two stages of W; x and the stored bytes of the turns up to c + AHEAD are being
 * copied to shared memory. Stored bytes are copied in pieces: 64 numbers along k of each row of a
 * panel, or a block of the format if that is longer. Formats without such pieces (plain numbers,
 * bf12, nf4_s8, tq1_0) are decoded from global memory.
 * Bounds. Few rows: HBM; each block reads x, so blocks have 64 columns. Many: the cores; each tile
 * of 128 rows decodes W again. Decoding W to rows once would move 4.6 bytes per weight, the time of
 * multiplying 256 rows on an H100: it would pay from about 900 rows per call on, more than tiles of
 * tokens have. */
#include "kernels/cuda/mma_tile.cuh"
#include "kernels/cuda/panel.cuh"

#define PANEL_ROWS_FEW 16  // up to here, tiles of 16 rows
#define PANEL_ROWS_MID 128 // up to here, tiles of 64 rows
#define PANEL_WARPS    8
#define PANEL_THREADS  (PANEL_WARPS * WARP)

struct panel_task {
    struct product p;
    const uint16_t *x;             // [m][row]
    int64_t row;                   // numbers per row, a multiple of BK
    int piece_shift;               // log2 of a piece's numbers along k
    int piece_bytes, piece_stages; // per panel; 0: no pieces
};

/* A block's tile, and its shared memory. */
struct panel_tile {
    int row0, o0;
    uint16_t *stages; // x [AHEAD + 1][BM][BK], W [2][BN][BK]
    uint8_t *pieces;  // [piece_stages][BN / 32][piece_bytes]
};

template <int BM, int BN, int BK, int AHEAD>
static inline __host__ __device__ constexpr int panel_stage_numbers(void)
{
    return ((AHEAD + 1) * BM + 2 * BN) * BK;
}

/* Pieces in use at a time: those of turns c + 1 to c + AHEAD. */
template <int BK, int AHEAD>
static inline __host__ __device__ constexpr int panel_piece_stages(int shift)
{
    return (((AHEAD - 1) * BK + (1 << shift) - 1) >> shift) + 1;
}

/* Starts the copy of x for turn c; rows beyond the end become zeros. */
template <int BM, int BK, int AHEAD>
DEVICE void x_fetch(const struct panel_task *t, const struct panel_tile *tile, int c)
{
    constexpr int PIECES = BK / 8, TURNS = (BM * PIECES + PANEL_THREADS - 1) / PANEL_THREADS;
    uint16_t *to = tile->stages + c % (AHEAD + 1) * BM * BK;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int i = turn * PANEL_THREADS + (int)threadIdx.x;
        const int row = i / PIECES, piece = i % PIECES, there = tile->row0 + row < t->p.m;
        const uint16_t *from = t->x + (there ? tile->row0 + row : 0) * t->row + c * BK + piece * 8;
        if (BM * PIECES % PANEL_THREADS == 0 || i < BM * PIECES)
            cp_async16_zeros(to + piece_at<BK>(row, piece), from, there ? 16 : 0);
    }
}

/* Starts the copy of piece `at` of each panel; bytes beyond the last panel or beyond a panel's end
 * become zeros. */
template <int BN>
DEVICE void piece_fetch(const struct panel_task *t, const struct panel_tile *tile, int at)
{
    const int panel0 = tile->o0 / PANEL_ROWS, n_panels = (t->p.n + PANEL_ROWS - 1) / PANEL_ROWS;
    const int64_t begin = (int64_t)at * t->piece_bytes;
    const int bytes = (int)min_i64(t->piece_bytes, t->p.panel_bytes - begin);
#pragma unroll
    for (int panel = 0; panel < BN / PANEL_ROWS; panel++) {
        const int there = panel0 + panel < n_panels;
        const uint8_t *from =
            t->p.weights + (there ? panel0 + panel : 0) * t->p.panel_bytes + begin;
        uint8_t *to =
            tile->pieces + (at % t->piece_stages * (BN / PANEL_ROWS) + panel) * t->piece_bytes;
        for (int i = (int)threadIdx.x * 16; i < t->piece_bytes; i += PANEL_THREADS * 16) {
            const int copied = there && i < bytes;
            cp_async16_zeros(to + i, copied ? from + i : t->p.weights, copied ? 16 : 0);
        }
    }
}

template <int BM, int BN, int BK, int AHEAD>
DEVICE void turn_fetch(const struct panel_task *t, const struct panel_tile *tile, int c)
{
    if (c * BK < t->row) {
        x_fetch<BM, BK, AHEAD>(t, tile, c);
        if (t->piece_bytes > 0 && (c * BK & ((1 << t->piece_shift) - 1)) == 0)
            piece_fetch<BN>(t, tile, c * BK >> t->piece_shift);
    }
    cp_async_commit();
}

/* Two numbers of W for the cores. bf16 that is stored as bf16 needs no rounding. */
template <int KIND> DEVICE uint32_t pair_for_cores(int dtype, uint32_t first, uint32_t second)
{
    if (KIND == DTYPE_F16)
        return cvt_f16_pair(__uint_as_float(first), __uint_as_float(second));
    if (dtype == DTYPE_BF16 || dtype == DTYPE_BF12)
        return first >> 16 | (second & 0xffff0000u);
    return cvt_bf16_pair(__uint_as_float(first), __uint_as_float(second));
}

/* Decodes W of turn c into its stage, one slice of a panel per warp. */
template <int BM, int BN, int BK, int AHEAD, int KIND>
DEVICE void turn_decode(const struct panel_task *t, const struct panel_tile *tile, int c)
{
    constexpr int PANELS = BN / PANEL_ROWS, SLICES = PANELS * (BK / SLICE);
    const int dtype = t->p.dtype;
    uint16_t *to = tile->stages + ((AHEAD + 1) * BM + c % 2 * BN) * BK;
#pragma unroll
    for (int i = warp_id(); i < SLICES; i += PANEL_WARPS) {
        const int panel = i % PANELS, slice = i / PANELS, row = panel * PANEL_ROWS + lane_id();
        const int k = c * BK + slice * SLICE, at = k >> t->piece_shift;
        const int first = t->piece_bytes > 0 ? at << t->piece_shift : 0; // first number at `from`
        const uint8_t *from =
            t->piece_bytes > 0
                ? tile->pieces + (at % t->piece_stages * PANELS + panel) * t->piece_bytes
                : t->p.weights + (tile->o0 / PANEL_ROWS + panel) * t->p.panel_bytes;
        uint32_t bits[SLICE] = {};
        if (tile->o0 + panel * PANEL_ROWS < t->p.n && k < t->p.k)
            panel_slice(dtype, from, t->p.k - first, k - first, bits);
        uint32_t pairs[SLICE / 2];
        for (int j = 0; j < SLICE / 2; j++)
            pairs[j] = pair_for_cores<KIND>(dtype, bits[2 * j], bits[2 * j + 1]);
        for (int j = 0; j < 2; j++)
            *(uint4 *)(to + piece_at<BK>(row, slice * 2 + j)) =
                make_uint4(pairs[4 * j], pairs[4 * j + 1], pairs[4 * j + 2], pairs[4 * j + 3]);
    }
}

template <int BM, int BN, int BK, int WM, int WN, int AHEAD, int KIND>
DEVICE void tile_multiply(const struct panel_task *t, const struct panel_tile *tile)
{
    const int multiplies = warp_id() < BM / WM * (BN / WN), n_turns = (int)(t->row / BK);
    const int row = warp_id() / (BN / WN) * WM, o = warp_id() % (BN / WN) * WN;
    float d[WM / 16][WN / 8][4] = {};
    for (int c = 0; c < AHEAD; c++)
        turn_fetch<BM, BN, BK, AHEAD>(t, tile, c);
    cp_async_wait<AHEAD - 1>();
    __syncthreads(); // turn 0 has arrived
    turn_decode<BM, BN, BK, AHEAD, KIND>(t, tile, 0);
    for (int c = 0; c < n_turns; c++) {
        cp_async_wait<AHEAD - 2>();
        __syncthreads(); // turn c is decoded, c + 1 has arrived, the stages of c - 1 are free
        turn_fetch<BM, BN, BK, AHEAD>(t, tile, c + AHEAD);
        if (c + 1 < n_turns)
            turn_decode<BM, BN, BK, AHEAD, KIND>(t, tile, c + 1);
        const int x = c % (AHEAD + 1); // W's rows count from there
        if (multiplies)
            stage_multiply<BK, WM, WN, KIND>(tile->stages + x * BM * BK, row,
                                             (AHEAD + 1 - x) * BM + c % 2 * BN + o, d);
    }
    cp_async_wait<0>();
    __syncthreads(); // the stages are free
    if (multiplies)
        sums_finish<WM, WN>(&t->p, tile->row0 + row, tile->o0 + o, d,
                            (float *)tile->stages + warp_id() * strip_floats<WN>());
}

template <int BM, int BN, int BK, int WM, int WN, int AHEAD>
static __global__ void __launch_bounds__(PANEL_THREADS) matmul_panel_tile(struct panel_task t)
{
    struct taken taken = {};
    struct panel_tile tile;
    tile.stages = take<uint16_t>(&taken, panel_stage_numbers<BM, BN, BK, AHEAD>());
    tile.pieces = take<uint8_t>(&taken, t.piece_stages * (BN / PANEL_ROWS) * t.piece_bytes);
    if (!expert_enter(&t.p, BM, BN))
        return; // the whole block
    t.x += t.p.pair * t.row;
    tile.row0 = tile_row(&t.p, BM);
    tile.o0 = tile_column(&t.p, BM, BN);
    if (ARCH >= 80)
        tile_multiply<BM, BN, BK, WM, WN, AHEAD, DTYPE_BF16>(&t, &tile);
    else
        tile_multiply<BM, BN, BK, WM, WN, AHEAD, DTYPE_F16>(&t, &tile);
}

/* log2 of a piece's numbers along k; 0: the format has no pieces. */
static int piece_shift_of(int dtype)
{
    switch (dtype) {
#define COLUMN_CASE(NAME, name, block, ...)                                                        \
    case DTYPE_##NAME:                                                                             \
        return (block) == 256 ? 8 : (block) == 128 ? 7 : 6;
        COLUMN_FORMATS(COLUMN_CASE)
#undef COLUMN_CASE
#define GRID_CASE(NAME, ...) case DTYPE_##NAME:
        GRID_FORMATS(GRID_CASE)
#undef GRID_CASE
        return 8;
    default:
        return 0;
    }
}

template <int BM, int BN, int BK, int WM, int WN, int AHEAD>
static void panel_launch(cudaStream_t stream, struct panel_task t)
{
    const int grid = tile_count(&t.p, BM, BN);
    t.piece_stages = panel_piece_stages<BK, AHEAD>(t.piece_shift);
    const int shared = take_bytes<uint16_t>(panel_stage_numbers<BM, BN, BK, AHEAD>()) +
                       take_bytes<uint8_t>(t.piece_stages * (BN / PANEL_ROWS) * t.piece_bytes);
    LAUNCH((matmul_panel_tile<BM, BN, BK, WM, WN, AHEAD>), grid, PANEL_THREADS, shared, stream, t);
}

/* All variants use less than 64 KiB of shared memory, the limit of sm_75: longer pieces (6,720
 * bytes in q6_k) leave room for fewer turns ahead. */
static void panel_choose(cudaStream_t stream, const struct panel_task *t)
{
    const int rows = product_rows_likely(&t->p);
    if (rows <= PANEL_ROWS_FEW)
        panel_launch<16, 64, 64, 16, 16, 4>(stream, *t);
    else if (rows <= PANEL_ROWS_MID)
        panel_launch<64, 64, 32, 32, 16, 3>(stream, *t);
    else
        panel_launch<128, 64, 32, 32, 32, 2>(stream, *t);
}

void matmul_panel(cudaStream_t stream, const struct product *p, const void *scratch)
{
    struct panel_task t = {};
    t.p = *p;
    t.x = (const uint16_t *)scratch;
    t.row = weight_row_numbers(p->k);
    t.piece_shift = piece_shift_of(p->dtype);
    if (t.piece_shift > 0)
        t.piece_bytes =
            (int)dtype_row_bytes((enum dtype)p->dtype, (int64_t)1 << t.piece_shift) * PANEL_ROWS;
    panel_choose(stream, &t);
}
