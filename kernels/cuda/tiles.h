/* kernels/cuda/tiles.h - which tile a matmul on tensor cores takes, by its rows.
 *
 * Owns: the sizes, which the kernels and the model of cards (bench/gpu) share. Plain C, without
 * CUDA's headers. A tile serves products of at most `most` rows; the first that does is taken. A
 * block has BM rows and BN outputs of it, a warp WM rows. */
#ifndef KERNELS_CUDA_TILES_H
#define KERNELS_CUDA_TILES_H

#include <limits.h>

/* matmul_mma.cu: X(most, BM, BN, BK, WM, outputs of a warp, stages). */
#define MMA_TILES(X)                                                                               \
    X(16, 16, 32, 64, 16, 16, 8)                                                                   \
    X(64, 64, 32, 64, 32, 16, 7)                                                                   \
    X(128, 64, 64, 64, 32, 32, 5)                                                                  \
    X(INT_MAX, 128, 128, 32, 64, 32, 3)
/* matmul_q.cu: X(most, BM, BN, WM, outputs of a warp, groups of a stage, stages of q8, of q4). */
#define Q_TILES(X)                                                                                 \
    X(16, 16, 64, 16, 8, 4, 3, 4)                                                                  \
    X(64, 64, 64, 64, 16, 1, 5, 5)                                                                 \
    X(128, 128, 64, 64, 32, 1, 4, 4)                                                               \
    X(INT_MAX, 128, 128, 64, 32, 1, 4, 4)
/* matmul_int8_mma.cu: X(most, BM, BN, outputs of a warp in units of 16, WM, groups of a stage,
 * stages of q8, of q4). */
#define INT8_TILES(X)                                                                              \
    X(16, 16, 64, 1, 16, 2, 4, 6)                                                                  \
    X(32, 32, 64, 1, 32, 2, 4, 6)                                                                  \
    X(128, 64, 64, 1, 64, 2, 4, 5)                                                                 \
    X(INT_MAX, 128, 128, 2, 64, 1, 3, 3)

#endif
