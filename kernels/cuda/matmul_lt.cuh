/* kernels/cuda/matmul_lt.cuh - matmuls by cuBLASLt, over rows of bf16 or f16.
 *
 * Owns: the library, found when it is asked for, and the algorithm of each format, n and k.
 * Refuses: the device's loss, and waiting (device.cu). */
#ifndef KERNELS_CUDA_MATMUL_LT_CUH
#define KERNELS_CUDA_MATMUL_LT_CUH

#include "kernels/cuda/matmul.cuh"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <pthread.h>

#define LT_SHAPES 64 // formats, n and k of one model, at most
#define LT_TRIALS 64 // of one of them, at most

/* The calls that are made of it. */
#define LT_CALLS(X)                                                                                \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtGetVersion)                                                                          \
    X(cublasLtGetStatusName)                                                                       \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulAlgoCheck)                                                                     \
    X(cublasLtMatmulAlgoConfigGetAttribute)                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)                                                                 \
    X(cublasLtMatrixLayoutSetAttribute)

struct lt_calls {
#define LT_CALL(name) decltype(&::name) name;
    LT_CALLS(LT_CALL)
#undef LT_CALL
};

/* How rows are multiplied by weights [n, k]. */
struct lt_shape {
    int dtype, n, k;
    int m; // rows up to which it was seen to hold
    cublasLtMatmulAlgo_t algo;
    cublasLtMatrixLayout_t w, x, y; // owned; x and y: as many rows as the call at hand has
};

/* One device's; zeros: not open. */
struct lt {
    pthread_mutex_t lock; // of the layouts of x and y, for as long as a call reads them
    void *library;        // owned
    struct lt_calls calls;
    cublasLtHandle_t handle;     // owned; NULL: not open
    cublasLtMatmulDesc_t matmul; // owned
    struct lt_shape shapes[LT_SHAPES];
    int n_shapes;
};

/* On the current device, as are all calls below. ERR_DEVICE: it is not open. */
enum err lt_open(struct lt *lt);
void lt_close(struct lt *lt); // accepts one that is not open

/* The prepare of struct device_library: nothing is left to do when it is ready; else the algorithm
 * is chosen, trials are queued, and once they have run their counts say what holds. room: of
 * lt_room_bytes(); counts: pinned, [LT_TRIALS]. ERR_DEVICE. */
int lt_is_ready(const struct lt *lt, const struct weight *w, int m);
int64_t lt_room_bytes(const struct weight *w, int m);
enum err lt_choose(struct lt *lt, const struct weight *w, int m);
enum err lt_try(struct lt *lt, cudaStream_t stream, const struct weight *w, int m, void *room,
                unsigned *counts);
enum err lt_tried(struct lt *lt, const struct weight *w, int m, const unsigned *counts);

/* The op; NULL: queued, else what cublasLtMatmul says. */
const char *lt_matmul(struct lt *lt, cudaStream_t stream, const struct matmul_args *args);

#endif
