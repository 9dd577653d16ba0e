/* kernels/cuda/matmul.cuh - what the matmuls of a device share: the product at hand, the end
 * of an output.
 *
 * Owns: that. Refuses: sums (matmul.cu, matmul_mma.cu, matmul_panel.cu, matmul_q.cu,
 * matmul_int8.cu, matmul_lt.cu). */
#ifndef KERNELS_CUDA_MATMUL_CUH
#define KERNELS_CUDA_MATMUL_CUH

#include "kernels/cuda/simt.cuh"

/* y[m, n] = act(x[m, k] . W^T + bias), or y += that; pointers are the device's. */
struct product {
    const float *x;
    const uint8_t *weights; // panels or rows
    const float *bias;
    float *y;
    int64_t x_stride, y_stride;
    int64_t panel_bytes; // 0: rows
    int dtype, m, n, k, add, act;
    /* Of experts (NULL: none): m is the most pairs of one, n the outputs of one; each has a grid of
     * `blocks` to itself. A block's own expert: expert_enter(). */
    const int32_t *first; // [n_experts + 1]
    const int32_t *pairs; // x has rows of tokens, pair i that of token pairs[i] / used; NULL: x has
                          // rows of pairs
    int n_experts, used, n_pairs, blocks;
    int pair;   // the expert's first one
    int block0; // of the grid: products that share x share a grid, each has blocks in a row
};
/* Rows of x in all, and those that a tile is likely to meet. */
static inline int product_rows(const struct product *p)
{
    return p->first ? p->n_pairs : p->m;
}
static inline int product_rows_likely(const struct product *p)
{
    return p->first ? (int)min_i64(2 * ceil_div(p->n_pairs, p->n_experts), p->m) : p->m;
}

/* Of a part of the op. */
struct product product_of(const struct matmul_args *a, const struct matmul_part *part);

/* Which row of x a block's row is. */
DEVICE int64_t x_row(const struct product *p, int64_t row)
{
    row += p->pair;
    return p->pairs ? p->pairs[row] / p->used : row;
}

/* Makes the product that of the block's expert. 0: this block has nothing to do. */
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

/* Tiles of a grid: those of one piece of W run side by side, so that it is read from HBM once. */
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
/* Blocks of the grid; of experts p->blocks follows. */
static inline int tile_count(struct product *p, int rows, int columns)
{
    const int64_t n_tiles = ceil_div(p->m, rows) * ceil_div(p->n, columns);
    const int64_t n_blocks = n_tiles * (p->first ? p->n_experts : 1);
    CHECK(n_blocks < INT32_MAX);
    p->blocks = (int)n_tiles;
    return (int)n_blocks;
}

/* The sum of output (row, o), both below m and n, is done. */
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
/* n_parts products over rows of bf16, or of f16, on tensor cores, in one launch: m, k, x and the
 * format are the same in all. scratch: the rows of x in that format, by matmul_round(); those from
 * the m-th on are zeros. */
int64_t matmul_round_bytes(int m, int k);
void matmul_round(cudaStream_t stream, const struct product *p, int rows, void *scratch);
void matmul_mma(cudaStream_t stream, const struct product parts[], int n_parts,
                const void *scratch);
/* The same bytes over panels, which are decoded on the way: of q8, or of q4, products in one
 * launch; of any other format one product. */
int matmul_q_takes(const struct product *p);
void matmul_q(cudaStream_t stream, const struct product parts[], int n_parts, const void *scratch);
void matmul_panel(cudaStream_t stream, const struct product *p, const void *scratch);
/* The same by cuBLASLt (matmul_lt.cuh). */
int64_t lt_scratch_bytes(int m, int n, int k);
/* Panels of q8 or q4; scratch: the codes of x, by matmul_quantise(). */
int64_t matmul_quantise_bytes(int m, int k);
void matmul_quantise(cudaStream_t stream, const struct product *p, void *scratch);
void matmul_int8(cudaStream_t stream, const struct product *p, const void *scratch);

#endif
