/* tests/simt/planted.cu - small kernels, each with one bug, and clean ones: what the shim must say.
 *
 * Owns: the bugs. tests/simt_shim_test.c runs each and looks for the line that a comment BUG marks.
 */
#include "kernels/cuda/simt.cuh"
#include "tests/simt/planted.h"

/* Every thread hands its number to a neighbour through shared memory. */
__global__ void clean(int *out, const int *in, int n)
{
    struct taken taken = {};
    int *x = take<int>(&taken, n);
    const int i = (int)threadIdx.x;
    x[i] = in[i];
    __syncthreads();
    int v = x[(i + 1) % n];
    v = warp_sum(v);
    __syncthreads();
    x[i] = v;
    __syncwarp();
    out[blockIdx.x * n + i] = x[i ^ 1];
}

__global__ void missing_barrier(int *out, const int *in, int n)
{
    struct taken taken = {};
    int *x = take<int>(&taken, n);
    const int i = (int)threadIdx.x;
    x[i] = in[i];
    out[i] = x[(i + 1) % n]; // BUG missing_barrier
}

__global__ void missing_second_barrier(int *out, const int *in, int n)
{
    struct taken taken = {};
    int *x = take<int>(&taken, n);
    const int i = (int)threadIdx.x;
    for (int turn = 0; turn < 2; turn++) {
        x[i] = in[i] + turn; // BUG missing_second_barrier
        __syncthreads();
        out[i] = x[(i + 1) % n]; // BUG missing_second_barrier
    }
}

__global__ void divergent_barrier(int *out, const int *in, int n)
{
    const int i = (int)threadIdx.x;
    if (i < n / 2)
        __syncthreads(); // BUG divergent_barrier
    out[i] = in[i];
}

__global__ void two_barriers(int *out, const int *in, int n)
{
    const int i = (int)threadIdx.x;
    if (i < n / 2)
        __syncthreads(); // BUG two_barriers
    else
        __syncthreads(); // BUG two_barriers
    out[i] = in[i];
}

__global__ void wrong_mask(int *out, const int *in, int n)
{
    const int i = (int)threadIdx.x;
    (void)n;
    out[i] = __shfl_xor_sync(0xffffu, in[i], 1); // BUG wrong_mask
}

__global__ void mask_in_a_branch(int *out, const int *in, int n)
{
    const int i = (int)threadIdx.x;
    int v = in[i];
    if (i < n / 4)
        v = __shfl_xor_sync(WARP_ALL, v, 1); // BUG mask_in_a_branch
    out[i] = v;
}

__global__ void source_outside_mask(int *out, const int *in, int n)
{
    const int i = (int)threadIdx.x;
    int v = in[i];
    (void)n;
    if (i < 16)
        v = __shfl_sync(0xffffu, v, 20); // BUG source_outside_mask
    out[i] = v;
}

__global__ void missing_syncwarp(int *out, const int *in, int n)
{
    struct taken taken = {};
    int *x = take<int>(&taken, n);
    const int i = (int)threadIdx.x;
    x[i] = in[i];
    (void)warp_shfl(0, 0); // orders nothing
    out[i] = x[i ^ 1];     // BUG missing_syncwarp
}

__global__ void missing_wait(int *out, const int *in, int n)
{
    struct taken taken = {};
    int *x = take<int>(&taken, n);
    const int i = (int)threadIdx.x;
    cp_async4(&x[i], &in[i]);
    cp_async_commit();
    __syncthreads();
    out[i] = x[i]; // BUG missing_wait
    cp_async_wait<0>();
}

__global__ void wait_for_too_few(int *out, const int *in, int n)
{
    struct taken taken = {};
    int *x = take<int>(&taken, 2 * n);
    const int i = (int)threadIdx.x;
    cp_async4(&x[i], &in[i]);
    cp_async_commit();
    cp_async4(&x[n + i], &in[i]);
    cp_async_commit();
    cp_async_wait<1>();
    out[i] = x[i];
    out[i] += x[n + i]; // BUG wait_for_too_few
    cp_async_wait<0>();
}

__global__ void wait_without_barrier(int *out, const int *in, int n)
{
    struct taken taken = {};
    int *x = take<int>(&taken, n);
    const int i = (int)threadIdx.x;
    cp_async4(&x[i], &in[i]);
    cp_async_commit();
    cp_async_wait<0>();
    out[i] = x[(i + 1) % n]; // BUG wait_without_barrier
}

__global__ void never_waited(int *out, const int *in, int n)
{
    struct taken taken = {};
    int *x = take<int>(&taken, n);
    const int i = (int)threadIdx.x;
    cp_async4(&x[i], &in[i]); // BUG never_waited
    cp_async_commit();
    out[i] = in[i];
}

__global__ void shared_overrun(int *out, const int *in, int n)
{
    struct taken taken = {};
    int *x = take<int>(&taken, n);
    const int i = (int)threadIdx.x;
    x[i + 1] = in[i]; // BUG shared_overrun
    __syncthreads();
    out[i] = x[i];
}

__global__ void device_overrun(int *out, const int *in, int n)
{
    const int i = (int)threadIdx.x;
    out[i] = i + 1 < n ? in[i] : in[i + 1]; // BUG device_overrun
}

__global__ void negative_index(int *out, const int *in, int n)
{
    const int i = (int)threadIdx.x;
    (void)n;
    out[i - 1] = in[i]; // BUG negative_index
}

__global__ void unaligned_vector(int *out, const int *in, int n)
{
    const int i = (int)threadIdx.x;
    (void)n;
    if (i < 4) {
        const int4 v = *(const int4 *)(in + 1 + 4 * i); // BUG unaligned_vector
        *(int4 *)(out + 4 * i) = v;
    }
}

__global__ void unaligned_number(int *out, const int *in, int n)
{
    const int i = (int)threadIdx.x;
    (void)n;
    out[i] = *(const int *)((const char *)in + i); // BUG unaligned_number
}

__global__ void unwritten_output(int *out, const int *in, int n)
{
    const int i = (int)threadIdx.x;
    if (i + 1 < n)
        out[i] = in[i];
}

__global__ void blocks_race(int *out, const int *in, int n)
{
    const int i = (int)threadIdx.x;
    out[(blockIdx.x * (n - 1) + i) % n] = in[i]; // BUG blocks_race
}

__global__ void blocks_read(int *out, const int *in, int n)
{
    const int i = (int)threadIdx.x;
    const int b = (int)blockIdx.x;
    out[b * n + i] = in[i]; // BUG blocks_read
    if (b > 0)
        out[b * n + i] += out[i]; // BUG blocks_read
}

__global__ void atomic_and_plain(int *out, const int *in, int n)
{
    const int i = (int)threadIdx.x;
    (void)n;
    out[i] = in[i];
    __syncthreads();
    atomicAdd(&out[0], 1); // BUG atomic_and_plain
    if (i == 5)
        out[0] = 0; // BUG atomic_and_plain
}

__global__ void unwritten_shared(int *out, const int *in, int n)
{
    struct taken taken = {};
    int *x = take<int>(&taken, n);
    const int i = (int)threadIdx.x;
    if (i + 1 < n)
        x[i] = in[i];
    __syncthreads();
    out[i] = x[i]; // BUG unwritten_shared
}

__global__ void unwritten_device(int *out, const int *in, int n)
{
    const int i = (int)threadIdx.x;
    (void)n;
    out[i] += in[i]; // BUG unwritten_device
}

__global__ void taken_too_much(int *out, const int *in, int n)
{
    struct taken taken = {};
    int *x = take<int>(&taken, n + 1); // BUG taken_too_much
    const int i = (int)threadIdx.x;
    x[i] = in[i];
    out[i] = x[i];
}

__global__ void host_pointer(int *out, const int *in, int n)
{
    const int i = (int)threadIdx.x;
    (void)n;
    out[i] = in[i]; // BUG host_pointer
}

__global__ void other_stack(int *out, const int *in, int n)
{
    struct taken taken = {};
    const int **x = take<const int *>(&taken, n);
    const int i = (int)threadIdx.x;
    int v = in[i];
    x[i] = &v;
    __syncthreads();
    out[i] = *x[(i + 1) % n]; // BUG other_stack
    __syncthreads();
}

__global__ void shift_too_far(int *out, const int *in, int n)
{
    const int i = (int)threadIdx.x;
    out[i] = in[i] << n; // BUG shift_too_far
}

__global__ void unaligned_ldmatrix(int *out, const int *in, int n)
{
    struct taken taken = {};
    int *x = take<int>(&taken, 8 * n);
    const int i = (int)threadIdx.x;
    for (int j = 0; j < 8; j++)
        x[j * n + i] = in[i];
    __syncthreads();
    uint32_t r[4];
    ldmatrix_x4(r, (const char *)x + 16 * i + 8); // BUG unaligned_ldmatrix
    out[i] = (int)r[0];
}

struct six {
    int v[6];
};
__global__ void struct_overrun(int *out, const int *in, int n)
{
    const int i = (int)threadIdx.x;
    if (i <= n / 6) {
        const struct six s = ((const struct six *)in)[i]; // BUG struct_overrun
        out[i] = s.v[i % 6];
    }
}

__global__ void local_overrun(int *out, const int *in, int n)
{
    const int i = (int)threadIdx.x;
    int v[4] = {n, n, n, n};
    v[in[i] & 7] = i; // BUG local_overrun
    out[i] = v[0] + v[1] + v[2] + v[3];
}

__global__ void warp_and_barrier(int *out, const int *in, int n)
{
    const int i = (int)threadIdx.x;
    int v = in[i];
    if (i % 32 < 16)
        v = __shfl_xor_sync(WARP_ALL, v, 1); // BUG warp_and_barrier
    else
        __syncthreads(); // BUG warp_and_barrier
    out[i] = v + n;
}

#define PLANTED_CASE(name)                                                                         \
    if (which == PLANTED_##name)                                                                   \
        LAUNCH(name, n_blocks, n, shared_bytes, (cudaStream_t)0, out, in, n);

void planted_run(enum planted which, int n_blocks, int n, int shared_bytes, int *out, const int *in)
{
    PLANTED(PLANTED_CASE)
}

/* An entry that looks at device memory itself. */
int planted_entry(const int *p)
{
    return *p;
}

/* One mma of fragments in memory, through ldmatrix: a [16, 16] by rows, b [8, 16] by columns, or
 * twice as many bytes. */
template <int KIND> __global__ void mma_tile(uint32_t *d, const uint16_t *a, const uint16_t *b)
{
    struct taken taken = {};
    uint16_t *sa = take<uint16_t>(&taken, 256), *sb = take<uint16_t>(&taken, 128);
    const int lane = lane_id();
    uint32_t fa[4], fb[2];
    float fd[4];
    int whole[4];
    for (int i = 0; i < 8; i++)
        sa[lane * 8 + i] = a[lane * 8 + i];
    for (int i = 0; i < 4; i++)
        sb[lane * 4 + i] = b[lane * 4 + i];
    __syncthreads();
    ldmatrix_x4(fa, sa + lane % 16 * 16 + lane / 16 * 8);
    ldmatrix_x2(fb, sb + lane % 8 * 16 + lane / 8 % 2 * 8);
    for (int i = 0; i < 4; i++) {
        whole[i] = (int)d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2];
        fd[i] = __int_as_float(whole[i]);
    }
    if (KIND == PLANTED_S8) {
        mma_s8(whole, fa, fb);
    } else if (KIND == PLANTED_F16 && ARCH < 80) {
        mma_f16_k8(fd, fa, fb);
        mma_f16_k8(fd, fa + 2, fb + 1);
    } else if (KIND == PLANTED_F16) {
        mma_f16(fd, fa, fb);
    } else {
        mma_bf16(fd, fa, fb);
    }
    for (int i = 0; i < 4; i++)
        d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] =
            KIND == PLANTED_S8 ? (uint32_t)whole[i] : __float_as_uint(fd[i]);
}

void planted_mma(enum planted_kind kind, void *d, const void *a, const void *b)
{
    const int bytes = take_bytes<uint16_t>(256) + take_bytes<uint16_t>(128);
    uint32_t *to = (uint32_t *)d;
    const uint16_t *pa = (const uint16_t *)a, *pb = (const uint16_t *)b;
    if (kind == PLANTED_S8)
        LAUNCH(mma_tile<PLANTED_S8>, 1, WARP, bytes, (cudaStream_t)0, to, pa, pb);
    else if (kind == PLANTED_F16)
        LAUNCH(mma_tile<PLANTED_F16>, 1, WARP, bytes, (cudaStream_t)0, to, pa, pb);
    else
        LAUNCH(mma_tile<PLANTED_BF16>, 1, WARP, bytes, (cudaStream_t)0, to, pa, pb);
}

/* Transposed and plain fragments of one 8 x 8 matrix. */
__global__ void transpose_tile(uint32_t *out, const uint16_t *in)
{
    struct taken taken = {};
    uint16_t *x = take<uint16_t>(&taken, 128);
    const int lane = lane_id();
    for (int i = 0; i < 4; i++)
        x[lane * 4 + i] = in[lane * 4 + i];
    __syncthreads();
    uint32_t r[2], t[2];
    ldmatrix_x2(r, x + lane % 16 * 8);
    ldmatrix_x2_trans(t, x + lane % 16 * 8);
    for (int i = 0; i < 2; i++) {
        out[lane * 4 + i] = r[i];
        out[lane * 4 + 2 + i] = t[i];
    }
}

void planted_transpose(uint32_t *out, const uint16_t *in)
{
    LAUNCH(transpose_tile, 1, WARP, take_bytes<uint16_t>(128), (cudaStream_t)0, out, in);
}

/* What op says of each of n numbers, for functions of our C headers. */
__global__ void header_functions(float *out, const float *in, int n)
{
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < n;
         i += (int)(gridDim.x * blockDim.x)) {
        out[4 * i] = math_exp(in[i]);
        out[4 * i + 1] = math_gelu(in[i]);
        out[4 * i + 2] = f16_to_f32(f32_to_f16(in[i]));
        out[4 * i + 3] = bf16_to_f32(f32_to_bf16(in[i]));
    }
}

void planted_functions(float *out, const float *in, int n)
{
    LAUNCH(header_functions, 2, 64, 0, (cudaStream_t)0, out, in, n);
}
