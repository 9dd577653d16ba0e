/* kernels/cuda/pins.cuh - which RAM is pinned.
 *
 * Owns: the ranges that were to be pinned, chunk by chunk, and the threads that pin them. Refuses:
 * copies, and what a refused chunk means (device.cu).
 * Note: each chunk is registered by a call of its own. One call for all of RAM takes minutes on one
 * thread and fails as a whole. The price: to the driver each chunk is an allocation of its own, and
 * a copy by the copy engine must not cross from one chunk into the next. Kernels may. */
#ifndef KERNELS_CUDA_PINS_CUH
#define KERNELS_CUDA_PINS_CUH

#include <cuda_runtime.h>
#include <pthread.h>
#include <stdint.h>

/* Chunks are cut at addresses that are multiples of this power of two. Tests make it smaller. */
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

/* One device's; zeros but for the lock: nothing is pinned. */
struct pins {
    pthread_mutex_t lock; // of the list; a range in it does not change
    struct pin_range *ranges;
};

/* Notes a range and pins its chunks, on several threads. Returns the bytes that are pinned: where
 * they are fewer than n_bytes, no further chunk was tried after the refusal *why. The calling
 * thread's device is `device`. */
int64_t pins_add(struct pins *p, int device, void *base, int64_t n_bytes, cudaError_t *why);
/* Forgets the ranges that begin in [base, base + n_bytes) or at base. Their chunks are unpinned,
 * unless the device is lost. */
cudaError_t pins_drop(struct pins *p, int device, const void *base, int64_t n_bytes, int lost);
/* How many of the n_bytes at `at` one chunk holds; *loose: the chunk is not pinned. An address in
 * no range is memory of the device: n_bytes. */
int64_t pins_run(struct pins *p, const void *at, int64_t n_bytes, int *loose);
/* 1: some chunk of some range is not pinned. */
int pins_any_loose(struct pins *p);

#endif
