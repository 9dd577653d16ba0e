/* kernels/cuda/matmul.cuh - what the matmuls of a device share: the product at hand, the end
 * of an output.
 *
 * Owns: that. Refuses: sums (matmul.cu, matmul_mma.cu, matmul_int8.cu; matmul_lt.cu). */
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
};

/* Of a part of the op. */
struct product product_of(const struct matmul_args *a, const struct matmul_part *part);

/* Tiles of a grid: those of one piece of W run side by side, so that it is read from HBM once. */
DEVICE int tile_row(const struct product *p, int rows)
{
    return (int)blockIdx.x % ((p->m + rows - 1) / rows) * rows;
}
DEVICE int tile_column(const struct product *p, int rows, int columns)
{
    return (int)blockIdx.x / ((p->m + rows - 1) / rows) * columns;
}
static inline int tile_count(const struct product *p, int rows, int columns)
{
    const int64_t n_tiles = ceil_div(p->m, rows) * ceil_div(p->n, columns);
    CHECK(n_tiles < INT32_MAX);
    return (int)n_tiles;
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
/* Rows of bf16, or of f16, on tensor cores. scratch: the rows of x in that format, by
 * matmul_round(); those from the m-th on are zeros. */
int64_t matmul_round_bytes(int m, int k);
void matmul_round(cudaStream_t stream, const struct product *p, int rows, void *scratch);
void matmul_mma(cudaStream_t stream, const struct product *p, const void *scratch);
/* The same by cuBLASLt (matmul_lt.cuh). */
int64_t lt_scratch_bytes(int m, int n, int k);
/* Panels of q8 or q4; scratch: the codes of x, by matmul_quantise(). */
int64_t matmul_quantise_bytes(int m, int k);
void matmul_quantise(cudaStream_t stream, const struct product *p, void *scratch);
void matmul_int8(cudaStream_t stream, const struct product *p, const void *scratch);

#endif
