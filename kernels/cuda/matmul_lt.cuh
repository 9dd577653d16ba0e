/* kernels/cuda/matmul_lt.cuh - matmuls with cuBLASLt, over rows of bf16 or f16.
 *
 * Owns: the library, opened on request, and the algorithm per format, n and k. Refuses: detecting a
 * lost device, and waiting (device.cu). */
#ifndef KERNELS_CUDA_MATMUL_LT_CUH
#define KERNELS_CUDA_MATMUL_LT_CUH

#include "kernels/cuda/matmul.cuh"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <pthread.h>

#define LT_SHAPES 64 // most combinations of format, n and k in a model
#define LT_TRIALS 64 // most trials per combination

/* The library's functions that sluice calls. */
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

/* The algorithm for weights [n, k]. */
struct lt_shape {
    int dtype, n, k;
    int m; // rows up to which the trials passed
    cublasLtMatmulAlgo_t algo;
    cublasLtMatrixLayout_t w, x, y; // owned; x and y have the rows of the current call
};

/* State of one device; zeros: not open. */
struct lt {
    pthread_mutex_t lock; // of the layouts of x and y while a call reads them
    void *library;        // owned
    struct lt_calls calls;
    cublasLtHandle_t handle;     // owned; NULL: not open
    cublasLtMatmulDesc_t matmul; // owned
    struct lt_shape shapes[LT_SHAPES];
    int n_shapes;
};

/* Opens the library on the current device, which all calls below need too. ERR_DEVICE. */
enum err lt_open(struct lt *lt);
void lt_close(struct lt *lt); // accepts a closed one

/* The prepare of struct device_library. lt_is_ready(): nothing to do. Else lt_choose() chooses the
 * algorithm, lt_try() queues the trials, and once they have run lt_tried() reads their counts.
 * room: lt_room_bytes() of device memory; counts: pinned, [LT_TRIALS]. ERR_DEVICE. */
int lt_is_ready(const struct lt *lt, const struct weight *w, int m);
int64_t lt_room_bytes(const struct weight *w, int m);
enum err lt_choose(struct lt *lt, const struct weight *w, int m);
enum err lt_try(struct lt *lt, cudaStream_t stream, const struct weight *w, int m, void *room,
                unsigned *counts);
enum err lt_tried(struct lt *lt, const struct weight *w, int m, const unsigned *counts);

/* Queues the op. Returns NULL, or cublasLtMatmul's error text. */
const char *lt_matmul(struct lt *lt, cudaStream_t stream, const struct matmul_args *args);

#endif
