/* tests/simt/cudart/cuda_runtime.h - the calls of the CUDA runtime that kernels/cuda/device.cu
 * makes, for a machine without CUDA: names and numbers are those of the runtime, tests/simt/cudart
 * does the work.
 *
 * Owns: names. A call that is not here is one that nobody has tested. */
#ifndef TESTS_SIMT_CUDART_CUDA_RUNTIME_H
#define TESTS_SIMT_CUDART_CUDA_RUNTIME_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorDevicesUnavailable = 46,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorHostMemoryAlreadyRegistered = 712,
    cudaErrorHostMemoryNotRegistered = 713,
    cudaErrorUnknown = 999
} cudaError_t;

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef void (*cudaHostFn_t)(void *ctx);

struct cudaDeviceProp {
    char name[256];
    int major, minor;
};
struct cudaFuncAttributes {
    int maxThreadsPerBlock;
};
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaDeviceAttr { cudaDevAttrCanUseHostPointerForRegisteredMem = 91 };

#define cudaStreamNonBlocking    0x01
#define cudaEventBlockingSync    0x01
#define cudaEventDisableTiming   0x02
#define cudaHostRegisterPortable 0x01
#define cudaHostRegisterMapped   0x02

cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaDeviceGetPCIBusId(char *id, int cap, int device);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *kernel);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t e);

cudaError_t cudaMalloc(void **p, size_t n_bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaMemGetInfo(size_t *n_free, size_t *n_all);
cudaError_t cudaHostRegister(void *p, size_t n_bytes, unsigned flags);
cudaError_t cudaHostUnregister(void *p);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s);
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *ctx);
cudaError_t cudaMemsetAsync(void *to, int byte, size_t n_bytes, cudaStream_t s);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);

#ifdef __cplusplus
}
#endif

#endif
