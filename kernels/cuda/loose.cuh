/* kernels/cuda/loose.cuh - copies of RAM that is not pinned, through pinned buffers.
 *
 * Owns: the buffers, one per stream that makes such copies, and the copies between RAM and a
 * buffer, by a host function in stream order. Refuses: pinning the buffers, and copies between a
 * buffer and the device (device.cu).
 *
 * Note: CUDA would copy such RAM too, but not in stream order: it reads and writes during the
 * call. */
#ifndef KERNELS_CUDA_LOOSE_CUH
#define KERNELS_CUDA_LOOSE_CUH

#include "kernels/cuda/pins.cuh"

#define LOOSE_BUFFERS      8
#define LOOSE_BUFFER_BYTES (CUDA_PIN_CHUNK / 512) // 2 MiB; none crosses a border of pinned chunks

/* The buffers of a device. */
struct loose {
    pthread_mutex_t lock;
    uint8_t *base; // borrowed; [LOOSE_BUFFERS][LOOSE_BUFFER_BYTES]
    int taken[LOOSE_BUFFERS];
};

struct carry; // a copy by a host function

/* The state of a stream. */
struct loose_stream {
    struct loose *all; // borrowed
    int buffer;        // index of the stream's buffer; -1: none yet
    pthread_mutex_t lock; // protects the fields below
    struct carry *first, **last, *spare; // in order; free list
};

void loose_stream_open(struct loose_stream *s, struct loose *all);
/* Call when all queued work has run or never will. */
void loose_stream_close(struct loose_stream *s);
/* The stream's buffer. NULL: too many streams have one. */
uint8_t *loose_buffer(struct loose_stream *s);
/* Queues a copy from RAM to RAM, on stream `cuda`. */
cudaError_t loose_carry(struct loose_stream *s, cudaStream_t cuda, void *to, const void *from,
                        int64_t n_bytes);

#endif
