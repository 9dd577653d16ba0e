/* kernels/cuda/pins.cuh - which RAM is pinned.
 *
 * Owns: the ranges to pin, chunk by chunk, and the threads that pin them. Refuses: copies, and
 * handling a failure to pin (device.cu).
 *
 * Note: each chunk is registered by its own call. One call for all of RAM takes minutes on one
 * thread and fails as a whole. The price: the driver sees each chunk as a separate allocation, and
 * a copy by the copy engine must not cross a border of chunks. Kernels may. */
#ifndef KERNELS_CUDA_PINS_CUH
#define KERNELS_CUDA_PINS_CUH

#include <cuda_runtime.h>
#include <pthread.h>
#include <stdint.h>

/* Chunks end at multiples of this power of two. Tests make it smaller. */
#ifndef CUDA_PIN_CHUNK
#define CUDA_PIN_CHUNK ((int64_t)1 << 30)
#endif

struct pin_range {
    struct pin_range *next;
    uint8_t *base;
    int64_t n_bytes;
    int n_chunks;
    char *pinned; // owned; [n_chunks]
};

/* State of one device; zeros but for the lock: nothing is pinned. */
struct pins {
    pthread_mutex_t lock; // protects the list; a listed range is immutable
    struct pin_range *ranges;
};

/* Records a range and pins its chunks, on several threads. Returns the number of pinned bytes; if
 * fewer than n_bytes, pinning stopped at the error *why. The calling thread's current device must
 * be `device`. */
int64_t pins_add(struct pins *p, int device, void *base, int64_t n_bytes, cudaError_t *why);
/* Removes the ranges that begin in [base, base + n_bytes) or at base, and unpins their chunks
 * unless the device is lost. */
cudaError_t pins_drop(struct pins *p, int device, const void *base, int64_t n_bytes, int lost);
/* How many of the n_bytes at `at` are in one chunk; *loose: the chunk is not pinned. An address in
 * no range is device memory: n_bytes. */
int64_t pins_run(struct pins *p, const void *at, int64_t n_bytes, int *loose);
/* 1: some chunk of some range is not pinned. */
int pins_any_loose(struct pins *p);

#endif
