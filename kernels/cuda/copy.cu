/* kernels/cuda/copy.cu - small copies by a kernel, for the stream of the ops.
 *
 * Owns: copies of less than CUDA_COPY_FEW bytes; either side is device memory or pinned RAM, which
 * a kernel accesses at the host's address. Refuses: larger ones (kernels/cuda/device.cu).
 *
 * Note: a GPU has one copy engine per direction. On it, a table of 4 KiB, and the ops that read the
 * table, would wait for the 8 MiB pieces of weights queued before. */
#include "kernels/cuda/simt.cuh"

#define COPY_THREADS 256

/* One unit per thread: all loads of a copy are in flight at once. */
template <class T>
__global__ void __launch_bounds__(COPY_THREADS) copy_units(T *to, const T *from, int n)
{
    const int i = (int)(blockIdx.x * COPY_THREADS + threadIdx.x);
    if (i < n)
        to[i] = from[i];
}

template <class T> static void copy_by(cudaStream_t stream, void *to, const void *from, int n_bytes)
{
    const int n = n_bytes / (int)sizeof(T);
    LAUNCH(copy_units<T>, (unsigned)ceil_div(n, COPY_THREADS), COPY_THREADS, 0, stream, (T *)to,
           (const T *)from, n);
}

void cuda_copy(cudaStream_t stream, void *to, const void *from, int n_bytes)
{
    const uintptr_t all = (uintptr_t)to | (uintptr_t)from | (uintptr_t)n_bytes;
    if (all % 16 == 0)
        copy_by<uint4>(stream, to, from, n_bytes);
    else if (all % 4 == 0)
        copy_by<uint32_t>(stream, to, from, n_bytes);
    else
        copy_by<uint8_t>(stream, to, from, n_bytes);
}
