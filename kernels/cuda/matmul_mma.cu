/* kernels/cuda/matmul_mma.cu - matmul on tensor cores, over rows of bf16 (of f16 where tensor cores
 * know no bf16: sm_75).
 *
 * Owns: the rounding of x, tiles, the order of sums. Refuses: panels (decode.cu makes rows of
 * them).
 * An output is one chain of mma steps from 0: 16 numbers along k a step (f16: 8), ascending,
 * weight_row_numbers(k) in all, the last ones zeros. A tensor core's output sees its own row,
 * column and sum only; k is never split, tiles only say who computes what: so neither m nor
 * neighbours nor the grid can show in the result.
 * Roofs. Few rows (decode): W once from HBM, 2 bytes a weight, 8 stages of 64 columns in flight (32
 * KiB of W a block). Many: the cores; 128 x 128 has 64 FLOPs per byte of shared memory, and x is
 * read ceil(n / 128) times, W ceil(m / 128) times, mostly from L2. Every tile takes 48 KiB of
 * shared memory, which needs no asking for: as many stages as go in there. */
#include "kernels/cuda/mma_tile.cuh"

#define MMA_ROWS_FEW 16  // up to here a tile of 16 rows
#define MMA_ROWS_MID 128 // up to here one of 64
#define ROUND_BLOCK  256

struct mma_task {
    struct product p;
    const uint16_t *x; // [m][row]
    const uint16_t *w; // [n][row]
    int64_t row;       // numbers of a row: whole chunks
};

/* ---- x in the format of W, zeros after its k-th number and its m-th row ---- */

struct round_task {
    struct product p;
    uint32_t *out;         // [rows][n_words], pairs
    int n_words, n_blocks; // of a row
};

static __global__ void __launch_bounds__(ROUND_BLOCK) round_x(struct round_task t)
{
    const int64_t row = (int)blockIdx.x / t.n_blocks;
    const int word = (int)blockIdx.x % t.n_blocks * ROUND_BLOCK + (int)threadIdx.x, k = 2 * word;
    if (word >= t.n_words)
        return;
    const int n = row < t.p.m ? t.p.k : 0; // numbers that are there
    const float *x = t.p.x + (n > 0 ? x_row(&t.p, row) * t.p.x_stride : 0);
    const float first = k < n ? x[k] : 0, second = k + 1 < n ? x[k + 1] : 0;
    t.out[row * t.n_words + word] =
        t.p.dtype == DTYPE_F16 ? f16_pair(first, second) : bf16_pair(first, second);
}

int64_t matmul_round_bytes(int m, int k)
{
    return m * weight_row_numbers(k) * 2;
}

void matmul_round(cudaStream_t stream, const struct product *p, int rows, void *scratch)
{
    struct round_task t = {};
    t.p = *p;
    t.p.m = product_rows(p);
    t.out = (uint32_t *)scratch;
    t.n_words = (int)weight_row_numbers(p->k) / 2;
    t.n_blocks = (int)ceil_div(t.n_words, ROUND_BLOCK);
    CHECK((int64_t)rows * t.n_blocks < INT32_MAX);
    if (t.n_words > 0)
        LAUNCH(round_x, rows * t.n_blocks, ROUND_BLOCK, 0, stream, t);
}

/* One stage on its way: rows of x, then of W; zeros for rows that are not there. */
template <int BM, int BN, int BK, int THREADS>
DEVICE void stage_fetch(const struct mma_task *t, int row0, int o0, int k0, uint16_t *stage)
{
    constexpr int PIECES = BK / 8;
#pragma unroll
    for (int i = (int)threadIdx.x; i < (BM + BN) * PIECES; i += THREADS) {
        const int row = i / PIECES, piece = i % PIECES, of_x = row < BM;
        const int at = of_x ? row0 + row : o0 + row - BM, there = at < (of_x ? t->p.m : t->p.n);
        const uint16_t *from = (of_x ? t->x : t->w) + (there ? at : 0) * t->row + k0 + piece * 8;
        cp_async16_zeros(stage + piece_at<BK>(row, piece), from, there ? 16 : 0);
    }
}

template <int BM, int BN, int BK, int WM, int WN, int KIND>
static __global__ void __launch_bounds__(mma_tile<BM, BN, BK, WM, WN>::THREADS)
    matmul_mma_tile(struct mma_task t)
{
    typedef mma_tile<BM, BN, BK, WM, WN> tile;
    constexpr int AHEAD = tile::STAGES - 1;
    struct taken taken = {};
    uint16_t *stages = take<uint16_t>(&taken, tile::STAGES * tile::STAGE);
    if (!expert_enter(&t.p, BM, BN))
        return; // the block as one
    t.x += t.p.pair * t.row;
    t.w = (const uint16_t *)t.p.weights;
    const int row0 = tile_row(&t.p, BM), o0 = tile_column(&t.p, BM, BN);
    const int row = warp_id() / (BN / WN) * WM, o = warp_id() % (BN / WN) * WN;
    const int n_chunks = (int)(t.row / BK);
    float d[WM / 16][WN / 8][4] = {};
    for (int c = 0; c < AHEAD; c++) {
        if (c < n_chunks)
            stage_fetch<BM, BN, BK, tile::THREADS>(&t, row0, o0, c * BK, stages + c * tile::STAGE);
        cp_async_commit();
    }
    for (int c = 0; c < n_chunks; c++) {
        cp_async_wait<AHEAD - 1>();
        __syncthreads(); // chunk c is here, and nobody reads the stage of c - 1 any more
        if (c + AHEAD < n_chunks)
            stage_fetch<BM, BN, BK, tile::THREADS>(
                &t, row0, o0, (c + AHEAD) * BK, stages + (c + AHEAD) % tile::STAGES * tile::STAGE);
        cp_async_commit();
        stage_multiply<BK, WM, WN, KIND>(stages + c % tile::STAGES * tile::STAGE, row, BM + o, d);
    }
    cp_async_wait<0>();
    __syncthreads(); // the stages are free
    sums_finish<WM, WN>(&t.p, row0 + row, o0 + o, d,
                        (float *)stages + warp_id() * strip_floats<WN>());
}

template <int BM, int BN, int BK, int WM, int WN>
static void mma_launch(cudaStream_t stream, struct mma_task t)
{
    typedef mma_tile<BM, BN, BK, WM, WN> tile;
    const int grid = tile_count(&t.p, BM, BN);
    const int shared = take_bytes<uint16_t>(tile::STAGES * tile::STAGE);
    if (t.p.dtype == DTYPE_BF16)
        LAUNCH((matmul_mma_tile<BM, BN, BK, WM, WN, DTYPE_BF16>), grid, tile::THREADS, shared,
               stream, t);
    else
        LAUNCH((matmul_mma_tile<BM, BN, BK, WM, WN, DTYPE_F16>), grid, tile::THREADS, shared,
               stream, t);
}

void matmul_mma(cudaStream_t stream, const struct product *p, const void *scratch)
{
    struct mma_task t = {};
    t.p = *p;
    t.x = (const uint16_t *)scratch;
    t.row = weight_row_numbers(p->k);
    const int rows = product_rows_likely(p);
    if (rows <= MMA_ROWS_FEW)
        mma_launch<16, 32, 64, 16, 16>(stream, t);
    else if (rows <= MMA_ROWS_MID)
        mma_launch<64, 64, 64, 32, 32>(stream, t);
    else
        mma_launch<128, 128, 32, 64, 32>(stream, t);
}
