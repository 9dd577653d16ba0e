/* kernels/cuda/cuda.h - the entries of the CUDA kernels, one per op of kernels/ops.h.
 *
 * An entry chooses grid and block and queues its kernels on the stream. It reads the args struct
 * (and `ops`) before it returns; all pointers in args are device memory, which the entry never
 * accesses on the host. Entries neither wait nor allocate; a launch error stays with CUDA
 * (cudaGetLastError). ops->compute is obeyed; isa, pool and stream of `ops` are not read.
 *
 * Owns: the list. Refuses: streams, memory, copies (kernels/device.h). Plain C, without CUDA's
 * headers: tests call the entries on the host, where tests/simt runs them. */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; // a cudaStream_t points to one

#define CUDA_ENTRY(name)                                                                           \
    void cuda_##name(struct CUstream_st *stream, const struct ops *ops,                            \
                     const struct name##_args *args);
OPS(CUDA_ENTRY)
#undef CUDA_ENTRY

/* A copy of 0 < n_bytes < CUDA_COPY_FEW; either side is device memory or pinned RAM. */
#define CUDA_COPY_FEW (64 << 10)
void cuda_copy(struct CUstream_st *stream, void *to, const void *from, int n_bytes);

/* Scratch in device memory, as the functions of kernels/ops.h without cuda_. All other ops need
 * none and do not read args->scratch. */
int64_t cuda_matmul_scratch_bytes(const struct ops *ops, int m, int n, int k);
int64_t cuda_expert_matmul_scratch_bytes(const struct ops *ops, int m, int n_used, int n, int k);
int64_t cuda_attend_prompt_scratch_bytes(const struct ops *ops, int n_prompt_max, int n_heads,
                                         int n_kv_heads, int head_dim);
int64_t cuda_attend_forced_scratch_bytes(const struct ops *ops, int n_spans, int slots_max,
                                         int n_heads, int n_kv_heads, int head_dim, int scores);
int64_t cuda_prompt_keep_scratch_bytes(const struct ops *ops, int n_prompt_max, int n_kv_heads,
                                       int head_dim);

#ifdef __cplusplus
}
#endif

#endif
