/* kernels/cuda/matmul.cuh - shared by the matmuls of a device: the current product, the end of an
 * output.
 *
 * Refuses: sums (matmul.cu, matmul_mma.cu, matmul_panel.cu, matmul_q.cu, matmul_int8.cu,
 * matmul_lt.cu). */
#ifndef KERNELS_CUDA_MATMUL_CUH
#define KERNELS_CUDA_MATMUL_CUH

#include "kernels/cuda/simt.cuh"

/* y[m, n] = act(x[m, k] . W^T + bias), or y += that; all pointers are device memory. */
struct product {
    const float *x;
    const uint8_t *weights; // panels or rows
    const float *bias;
    float *y;
    int64_t x_stride, y_stride;
    int64_t panel_bytes; // 0: rows
    int dtype, m, n, k, add, act;
    /* Experts (first NULL: none): m is the most pairs of one expert, n its outputs; each expert has
     * `blocks` blocks of the grid. expert_enter() finds the expert of a block. */
    const int32_t *first; // [n_experts + 1]
    const int32_t *pairs; // x has a row per token: pair i reads row pairs[i] / used; NULL: per pair
    int n_experts, used, n_pairs, blocks;
    int pair;   // first pair of the block's expert
    int block0; // first block: products that share x share a grid, a range of blocks each
};
/* Rows of x in all; rows that one tile is likely to have. */
static inline int product_rows(const struct product *p)
{
    return p->first ? p->n_pairs : p->m;
}
static inline int product_rows_likely(const struct product *p)
{
    return p->first ? (int)min_i64(2 * ceil_div(p->n_pairs, p->n_experts), p->m) : p->m;
}

/* The product of one part of the op. */
struct product product_of(const struct matmul_args *a, const struct matmul_part *part);

/* Row of x of a block's row. */
DEVICE int64_t x_row(const struct product *p, int64_t row)
{
    row += p->pair;
    return p->pairs ? p->pairs[row] / p->used : row;
}

/* Narrows the product to the block's expert. 0: this block has no work. */
DEVICE int expert_enter(struct product *p, int rows, int columns)
{
    if (!p->first)
        return 1;
    const int e = ((int)blockIdx.x - p->block0) / p->blocks;
    const int64_t matrix_bytes = p->panel_bytes ? p->n / PANEL_ROWS * p->panel_bytes
                                                : p->n * (int64_t)((p->k + 63) / 64 * 128);
    p->pair = p->first[e];
    p->m = p->first[e + 1] - p->pair;
    p->weights += e * matrix_bytes;
    p->bias = p->bias ? p->bias + e * (int64_t)p->n : NULL;
    p->y += p->pair * p->y_stride;
    return ((int)blockIdx.x - p->block0) % p->blocks <
           (p->m + rows - 1) / rows * ((p->n + columns - 1) / columns);
}

/* Index of a tile: tiles of one piece of W run side by side, so W is read from HBM once. */
DEVICE int tile_of(const struct product *p)
{
    const int block = (int)blockIdx.x - p->block0;
    return p->first ? block % p->blocks : block;
}
DEVICE int tile_row(const struct product *p, int rows)
{
    return tile_of(p) % ((p->m + rows - 1) / rows) * rows;
}
DEVICE int tile_column(const struct product *p, int rows, int columns)
{
    return tile_of(p) / ((p->m + rows - 1) / rows) * columns;
}
/* Blocks of the grid; sets p->blocks. */
static inline int tile_count(struct product *p, int rows, int columns)
{
    const int64_t n_tiles = ceil_div(p->m, rows) * ceil_div(p->n, columns);
    const int64_t n_blocks = n_tiles * (p->first ? p->n_experts : 1);
    CHECK(n_blocks < INT32_MAX);
    p->blocks = (int)n_tiles;
    return (int)n_blocks;
}

/* Finishes the sum of output (row, o); row < m, o < n. */
DEVICE void product_finish(const struct product *p, int row, int o, float sum)
{
    float *y = p->y + row * p->y_stride + o;
    if (p->bias)
        sum = sum + p->bias[o];
    sum = math_act(p->act, sum);
    *y = p->add ? *y + sum : sum;
}

/* Panels of any format in f32, rule a's order. */
void matmul_f32(cudaStream_t stream, const struct product *p);
/* n_parts products over rows of bf16 or f16 on tensor cores in one launch; m, k, x and format must
 * be equal. scratch: the rows of x in that format, from matmul_round(); rows from m on are
 * zeros. */
int64_t matmul_round_bytes(int m, int k);
void matmul_round(cudaStream_t stream, const struct product *p, int rows, void *scratch);
void matmul_mma(cudaStream_t stream, const struct product parts[], int n_parts,
                const void *scratch);
/* The same bytes over panels, decoded on the way: of q8 or q4, several products in one launch; of
 * any other format, one product. */
int matmul_q_takes(const struct product *p);
void matmul_q(cudaStream_t stream, const struct product parts[], int n_parts, const void *scratch);
void matmul_panel(cudaStream_t stream, const struct product *p, const void *scratch);
/* The same with cuBLASLt (matmul_lt.cuh). */
int64_t lt_scratch_bytes(int m, int n, int k);
/* Panels of q8 or q4; scratch: the codes of x, from matmul_quantise(). */
int64_t matmul_quantise_bytes(int m, int k);
void matmul_quantise(cudaStream_t stream, const struct product *p, void *scratch);
void matmul_int8(cudaStream_t stream, const struct product *p, const void *scratch);

#endif
