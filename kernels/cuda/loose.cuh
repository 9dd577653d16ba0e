/* kernels/cuda/loose.cuh - what copies of RAM that is not pinned go over.
 *
 * Owns: the pinned buffers, one for each stream that makes such copies, and the copies between RAM
 * and a buffer, which a host function makes when the stream comes to them. Refuses: pinning the
 * buffers, and copies between a buffer and the device (device.cu).
 * Note: CUDA would copy such RAM as well, but not in the order of the stream: it reads when it is
 * called, and writes before it returns. */
#ifndef KERNELS_CUDA_LOOSE_CUH
#define KERNELS_CUDA_LOOSE_CUH

#include "kernels/cuda/pins.cuh"

#define LOOSE_BUFFERS      8
#define LOOSE_BUFFER_BYTES (CUDA_PIN_CHUNK / 512) // 2 MiB; none crosses into another pinned chunk

/* A device's buffers. */
struct loose {
    pthread_mutex_t lock;
    uint8_t *base; // borrowed; [LOOSE_BUFFERS][LOOSE_BUFFER_BYTES]
    int taken[LOOSE_BUFFERS];
};

struct carry; // a copy that a host function makes

/* A stream's. */
struct loose_stream {
    struct loose *all; // borrowed
    int buffer;        // which is this stream's; -1: none yet
    pthread_mutex_t lock; // of what follows
    struct carry *first, **last, *spare; // in order; and as many as were ever under way at once
};

void loose_stream_open(struct loose_stream *s, struct loose *all);
/* What was queued has run, or never will. */
void loose_stream_close(struct loose_stream *s);
/* NULL: too many streams have one. */
uint8_t *loose_buffer(struct loose_stream *s);
/* Queues a copy from RAM to RAM. */
cudaError_t loose_carry(struct loose_stream *s, cudaStream_t cuda, void *to, const void *from,
                        int64_t n_bytes);

#endif
