/* kernels/cuda/matmul_int8.cuh - shared by the matmuls over codes: x as codes.
 *
 * Owns: the layout of x's codes. Refuses: products (matmul_int8.cu: few rows; matmul_int8_mma.cu:
 * tensor cores). */
#ifndef KERNELS_CUDA_MATMUL_INT8_CUH
#define KERNELS_CUDA_MATMUL_INT8_CUH

#include "kernels/cuda/matmul.cuh"

/* A group of a row of x. */
struct int8_head {
    float scale, sum; // of the codes, times scale
};
struct int8_task {
    struct product p;
    int8_t *codes;           // [rows][n_groups][64]
    struct int8_head *heads; // [n_groups][rows]
    int n_groups, rows;      // all rows of x; p.m counts one expert's
};

/* For a block of an expert: its codes begin at its first pair. */
DEVICE void int8_enter(struct int8_task *t)
{
    t->codes += (int64_t)t->p.pair * t->n_groups * OWN_GROUP;
    t->heads += t->p.pair;
}

/* On tensor cores, for more than INT8_ROWS rows. */
void matmul_int8_mma(cudaStream_t stream, const struct int8_task *task);

#endif
