/* kernels/cuda/matmul_mma.cu - matmul on tensor cores, over rows of bf16 (f16 on sm_75, whose
 * tensor cores lack bf16).
 *
 * Owns: the rounding of x, tiles, the order of sums. Refuses: panels (decode.cu makes rows from
 * them).
 * An output is one chain of mma steps from 0: 16 numbers along k per step (f16: 8), ascending,
 * weight_row_numbers(k) in all, padded with zeros. An output of a tensor core depends on its own
 * row, column and sum only, and k is never split: so neither m nor neighbours nor the grid change a
 * result.
 * Bounds. Few rows (decode): W once from HBM, 2 bytes per weight. A block keeps 28 KiB of W in
 * flight (16 rows: 7 chunks of 32 outputs), 24 KiB (64 rows: 6 chunks) or 32 KiB (128 rows: 4
 * chunks of 64 outputs); an H100 needs about 18 KiB per SM. n = 4,096 gives 128 blocks; an H100 has
 * 132 SMs. Many rows: the cores; 128 x 128 has 64 FLOPs per byte of shared memory; x is read ceil(n
 * / 128) times and W ceil(m / 128) times, mostly from L2; 48 KiB of shared memory let two blocks
 * fit an SM of any GPU from sm_80 on. sm_75 lacks asynchronous copies: two stages, with registers
 * between. */
#include "kernels/cuda/mma_tile.cuh"
#include "kernels/cuda/tiles.h"

#define ROUND_BLOCK 256

/* ---- x in the format of W, zero-padded beyond k and m ---- */

struct round_task {
    struct product p;
    uint32_t *out;         // [rows][n_words], pairs
    int n_words, n_blocks; // per row
};

static __global__ void __launch_bounds__(ROUND_BLOCK) round_x(struct round_task t)
{
    const int64_t row = (int)blockIdx.x / t.n_blocks;
    const int word = (int)blockIdx.x % t.n_blocks * ROUND_BLOCK + (int)threadIdx.x, k = 2 * word;
    if (word >= t.n_words)
        return;
    const int n = row < t.p.m ? t.p.k : 0; // numbers of the row
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

template <int BM, int BN, int BK, int WM, int WN> struct mma_tile {
    static constexpr int THREADS = BM / WM * (BN / WN) * WARP;
    static constexpr int PIECES = BK / 8;        // 16-byte pieces per row of a stage
    static constexpr int STAGE = (BM + BN) * BK; // numbers
    static constexpr int STEP = THREADS / PIECES; // rows between two pieces of a thread
    static constexpr int N = (BM + BN) / STEP;    // pieces per thread
    static_assert(BM % STEP == 0 && BN % STEP == 0 && STEP % 8 == 0, "the places of a thread's "
                                                                     "pieces differ by constants");
};

/* Sources of a thread's copies for every stage: N pieces, of rows STEP apart, those of x first. A
 * row beyond the end has a valid row's address and is copied as zeros. */
template <int N> struct pieces {
    const uint16_t *from[N];
    unsigned there; // a bit per piece
    int to;         // position of the first piece in a stage
};

template <class Tile, int BM, int BK>
DEVICE void pieces_find(const struct mma_task *t, const struct product *p, int row0, int o0,
                        struct pieces<Tile::N> *s)
{
    const int row = (int)threadIdx.x / Tile::PIECES, piece = (int)threadIdx.x % Tile::PIECES;
    const uint16_t *x = t->x + p->pair * t->row, *w = (const uint16_t *)p->weights;
    s->there = 0;
    s->to = piece_at<BK>(row, piece);
#pragma unroll
    for (int i = 0; i < Tile::N; i++) {
        const int of_x = i * Tile::STEP < BM;
        const int at = of_x ? row0 + row + i * Tile::STEP : o0 + row + i * Tile::STEP - BM;
        const int there = at < (of_x ? p->m : p->n);
        s->from[i] = (of_x ? x : w) + (there ? at : 0) * t->row + piece * 8;
        s->there |= (unsigned)there << i;
    }
}

/* Starts the copies of the pieces at k0. */
template <class Tile, int BK>
DEVICE void pieces_fetch(const struct pieces<Tile::N> *s, int k0, uint16_t *stage)
{
#pragma unroll
    for (int i = 0; i < Tile::N; i++)
        cp_async16_zeros(stage + s->to + i * Tile::STEP * BK, s->from[i] + k0,
                         s->there >> i & 1 ? 16 : 0);
}

/* The same in two halves for GPUs without asynchronous copies: registers hold the pieces. */
template <class Tile>
DEVICE void pieces_read(const struct pieces<Tile::N> *s, int k0, uint4 held[Tile::N])
{
#pragma unroll
    for (int i = 0; i < Tile::N; i++)
        held[i] = piece_of(s->from[i] + k0, s->there >> i & 1);
}
template <class Tile, int BK>
DEVICE void pieces_put(const struct pieces<Tile::N> *s, const uint4 held[Tile::N], uint16_t *stage)
{
#pragma unroll
    for (int i = 0; i < Tile::N; i++)
        *(uint4 *)(stage + s->to + i * Tile::STEP * BK) = held[i];
}

/* ---- a block: its tile, its chunks ---- */

/* sm_80 and above: STAGES - 1 chunks are in flight while one is multiplied. */
template <class Tile, int BM, int BK, int WM, int WN, int STAGES, int KIND>
DEVICE void chunks_async(const struct pieces<Tile::N> *s, int n_chunks, int row, int o,
                         uint16_t *stages, float d[WM / 16][WN / 8][4])
{
    constexpr int AHEAD = STAGES - 1;
    int to = AHEAD * Tile::STAGE, from = 0;
    for (int c = 0; c < AHEAD; c++) {
        if (c < n_chunks)
            pieces_fetch<Tile, BK>(s, c * BK, stages + c * Tile::STAGE);
        cp_async_commit();
    }
    for (int c = 0; c < n_chunks; c++) {
        cp_async_wait<AHEAD - 1>();
        __syncthreads(); // chunk c has arrived; the stage of c - 1 is free
        if (c + AHEAD < n_chunks)
            pieces_fetch<Tile, BK>(s, (c + AHEAD) * BK, stages + to);
        cp_async_commit();
        stage_multiply<BK, WM, WN, KIND>(stages + from, row, BM + o, d);
        to = to == (STAGES - 1) * Tile::STAGE ? 0 : to + Tile::STAGE;
        from = from == (STAGES - 1) * Tile::STAGE ? 0 : from + Tile::STAGE;
    }
    cp_async_wait<0>();
}

/* sm_75: reads the next chunk into registers while one is multiplied; two stages alternate. */
template <class Tile, int BM, int BK, int WM, int WN, int KIND>
DEVICE void chunks_held(const struct pieces<Tile::N> *s, int n_chunks, int row, int o,
                        uint16_t *stages, float d[WM / 16][WN / 8][4])
{
    uint4 held[Tile::N];
    pieces_read<Tile>(s, 0, held);
    for (int c = 0; c < n_chunks; c++) {
        uint16_t *stage = stages + c % 2 * Tile::STAGE; // c - 2 was read before the barrier
        pieces_put<Tile, BK>(s, held, stage);
        __syncthreads(); // chunk c is visible to all warps
        if (c + 1 < n_chunks)
            pieces_read<Tile>(s, (c + 1) * BK, held);
        stage_multiply<BK, WM, WN, KIND>(stage, row, BM + o, d);
    }
}

template <int BM, int BN, int BK, int WM, int WN, int STAGES, int KIND>
static __global__ void __launch_bounds__(mma_tile<BM, BN, BK, WM, WN>::THREADS)
    matmul_mma_tile(const __grid_constant__ struct mma_task t)
{
    typedef mma_tile<BM, BN, BK, WM, WN> tile;
    struct product p;
    struct taken taken = {};
    struct pieces<tile::N> pieces;
    uint16_t *stages = take<uint16_t>(&taken, (ARCH < 80 ? 2 : STAGES) * tile::STAGE);
    if (!product_enter<BM, BN>(&t, &p))
        return; // the whole block
    const int row0 = tile_row(&p, BM), o0 = tile_column(&p, BM, BN);
    const int row = warp_id() / (BN / WN) * WM, o = warp_id() % (BN / WN) * WN;
    float d[WM / 16][WN / 8][4] = {};
    pieces_find<tile, BM, BK>(&t, &p, row0, o0, &pieces);
    if (ARCH < 80)
        chunks_held<tile, BM, BK, WM, WN, KIND>(&pieces, (int)(t.row / BK), row, o, stages, d);
    else
        chunks_async<tile, BM, BK, WM, WN, STAGES, KIND>(&pieces, (int)(t.row / BK), row, o, stages,
                                                         d);
    __syncthreads(); // the stages are free
    sums_finish<WM, WN>(&p, row0 + row, o0 + o, d,
                        (float *)stages + warp_id() * strip_floats<WN>());
}

/* ---- host ---- */

template <int BM, int BN, int BK, int WM, int WN, int STAGES>
static void mma_launch(cudaStream_t stream, struct mma_task t)
{
    typedef mma_tile<BM, BN, BK, WM, WN> tile;
    const int shared = take_bytes<uint16_t>((launch_arch() < 80 ? 2 : STAGES) * tile::STAGE);
    const int grid = mma_grid(&t, BM, BN);
    if (t.parts[0].dtype == DTYPE_BF16)
        LAUNCH((matmul_mma_tile<BM, BN, BK, WM, WN, STAGES, DTYPE_BF16>), grid, tile::THREADS,
               shared, stream, t);
    else
        LAUNCH((matmul_mma_tile<BM, BN, BK, WM, WN, STAGES, DTYPE_F16>), grid, tile::THREADS,
               shared, stream, t);
}

void matmul_mma(cudaStream_t stream, const struct product parts[], int n_parts, const void *scratch)
{
    const struct mma_task t = mma_task_of(parts, n_parts, scratch);
    const int rows = product_rows_likely(&parts[0]);
#define TILE(MOST, ...)                                                                            \
    if (rows <= MOST)                                                                              \
        return mma_launch<__VA_ARGS__>(stream, t);
    MMA_TILES(TILE)
#undef TILE
}
