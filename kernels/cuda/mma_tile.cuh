/* kernels/cuda/mma_tile.cuh - shared by matmuls on tensor cores: tiles, stages in shared memory,
 * the order of sums, outputs.
 *
 * Owns: the grid of products that share x, and the position of a number in a stage and in a warp's
 * fragments. Refuses: filling a stage (e.g. matmul_mma.cu copies rows). */
#ifndef KERNELS_CUDA_MMA_TILE_CUH
#define KERNELS_CUDA_MMA_TILE_CUH

#include "kernels/cuda/matmul.cuh"

/* ---- a launch: products that share x, each a contiguous range of blocks ---- */

struct mma_task {
    struct product parts[MATMUL_PARTS];
    int n_parts;
    const uint16_t *x; // [m][row]
    int64_t row;       // numbers per row, a multiple of a chunk
};

static inline struct mma_task mma_task_of(const struct product parts[], int n_parts,
                                          const void *scratch)
{
    struct mma_task t = {};
    for (t.n_parts = 0; t.n_parts < n_parts; t.n_parts++)
        t.parts[t.n_parts] = parts[t.n_parts];
    t.x = (const uint16_t *)scratch;
    t.row = weight_row_numbers(parts[0].k);
    return t;
}

/* Blocks of the grid, for tiles of BM x BN. */
static inline int mma_grid(struct mma_task *t, int bm, int bn)
{
    int grid = 0;
    for (int i = 0; i < t->n_parts; i++) {
        t->parts[i].block0 = grid;
        grid += tile_count(&t->parts[i], bm, bn);
    }
    return grid;
}

/* Sets p to the block's product. 0: the block has no work. */
template <int BM, int BN> DEVICE int product_enter(const struct mma_task *t, struct product *p)
{
    int part = 0;
    while (part + 1 < t->n_parts && (int)blockIdx.x >= t->parts[part + 1].block0)
        part++;
    *p = t->parts[part];
    return expert_enter(p, BM, BN);
}

/* ---- tiles: BM rows of x and BN of W, BK columns per stage, WM x WN outputs per warp ---- */

/* Position of a piece of a row in a stage: pieces are permuted by row, so that the 8 rows of a
 * matrix, and a warp's copies, are in different banks. */
template <int BK> DEVICE int piece_at(int row, int piece)
{
    return row * BK + (piece ^ (BK == 64 ? row & 7 : row >> 1 & 3)) * 8;
}

/* d += a . b over 16 numbers along k. */
template <int KIND> DEVICE void multiply_step(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    if (KIND == DTYPE_BF16) {
        mma_bf16(d, a, b);
    } else {
        mma_f16_k8(d, a, b);
        mma_f16_k8(d, a + 2, b + 1);
    }
}

/* Multiplies a warp's share of a stage. */
template <int BK, int WM, int WN, int KIND>
DEVICE void stage_multiply(const uint16_t *stage, int row, int o, float d[WM / 16][WN / 8][4])
{
    const int lane = lane_id();
#pragma unroll
    for (int step = 0; step < BK / 16; step++) {
        uint32_t a[WM / 16][4], b[WN / 16][4]; // b: two columns of matrices, 2 registers each
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
            ldmatrix_x4(a[i], stage + piece_at<BK>(row + i * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
        for (int j = 0; j < WN / 16; j++)
            ldmatrix_x4(b[j], stage + piece_at<BK>(o + j * 16 + lane / 16 * 8 + lane % 8,
                                                   step * 2 + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int j = 0; j < WN / 8; j++)
                multiply_step<KIND>(d[i][j], a[i], b[j / 2] + j % 2 * 2);
    }
}

/* Processes all groups of 64 numbers through a ring of stages of STAGE bytes with GROUPS groups
 * each. While one stage is multiplied, all others are being copied (sm_75: two stages, and copies
 * are synchronous). fetch(left, stage) starts the copies of the next stage, of which `left` groups,
 * at least one, exist; multiply(stage, g) multiplies group g of a stage. */
template <int STAGE, int GROUPS, int STAGES, class Fetch, class Multiply>
DEVICE void groups_multiply(int n_groups, uint8_t *ring, Fetch fetch, Multiply multiply)
{
    const int ahead = ARCH < 80 ? 1 : STAGES - 1;
    uint8_t *const last = ring + ahead * STAGE, *stage = ring, *free = last;
    int left = n_groups;
    for (int c = 0; c < ahead; c++, left -= GROUPS) {
        if (left > 0)
            fetch(left, ring + c * STAGE);
        cp_async_commit();
    }
    for (int g0 = 0; g0 < n_groups; g0 += GROUPS, left -= GROUPS) {
        cp_async_wait<STAGES - 2>();
        __syncthreads(); // this stage has arrived, and all warps have read the previous one
        if (left > 0)
            fetch(left, free);
        cp_async_commit();
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            if (g == 0 || g0 + g < n_groups)
                multiply(stage, g);
        free = stage;
        stage = stage == last ? ring : stage + STAGE;
    }
    cp_async_wait<0>();
}

/* Strips of 16 rows pass through shared memory, so that neighbouring lanes write neighbouring
 * outputs. Rows are padded by 8 words: the lanes of a phase store to different banks. */
template <int WN> static inline __host__ __device__ constexpr int strip_floats(void)
{
    return 16 * (WN + 8);
}

/* d: sums in PTX's layout of 16 x 8. */
template <int WM, int WN>
DEVICE void sums_finish(const struct product *p, int row, int o, float d[WM / 16][WN / 8][4],
                        float *strip)
{
    const int lane = lane_id();
#pragma unroll
    for (int i = 0; i < WM / 16; i++, row += 16) {
#pragma unroll
        for (int j = 0; j < WN / 4; j++) // rows 0..7, rows 8..15
            *(float2 *)(strip + (lane / 4 + j % 2 * 8) * (WN + 8) + j / 2 * 8 + lane % 4 * 2) =
                make_float2(d[i][j / 2][j % 2 * 2], d[i][j / 2][j % 2 * 2 + 1]);
        __syncwarp();
#pragma unroll 1
        for (int at = lane; at < 16 * WN; at += WARP)
            if (row + at / WN < p->m && o + at % WN < p->n)
                product_finish(p, row + at / WN, o + at % WN, strip[at / WN * (WN + 8) + at % WN]);
        __syncwarp();
    }
}

#endif
