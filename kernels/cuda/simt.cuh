/* kernels/cuda/simt.cuh - the first include of every .cu: launches, shared memory, warps, copies
 * and tensor cores, under names that both nvcc and the tests' SIMT shim support.
 *
 * Owns: all PTX. Refuses: what an op computes. The shim (tests/simt, g++ -DSIMT) defines CUDA's own
 * names before this file; below, each piece has one definition for each.
 *
 * Rules for kernels: fused multiply-adds are explicit (-fmad=false); integer atomics only; blocks
 * never communicate; masks are constants; barriers are in uniform code, and no thread ends before
 * one; shuffles do not order memory (__syncwarp() does); shared memory comes from take(); every
 * tail is guarded, every output written. Inline functions of our C headers work on host and device;
 * functions of .c files do not exist on the device. */
#ifndef KERNELS_CUDA_SIMT_CUH
#define KERNELS_CUDA_SIMT_CUH

#ifndef SIMT
#include <cuda_runtime.h>
#endif
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// After the system headers: inline functions of our own headers are for host and device.
#define inline inline __host__ __device__
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/forced.h"
#include "kernels/dtype_columns.h"
#include "kernels/dtype_own.h"
#include "kernels/math.h"
#include "kernels/score.h"
#undef inline

#define DEVICE   static __device__ __forceinline__
#define WARP     32
#define WARP_ALL 0xffffffffu

/* The call site of a warp operation: the shim requires all lanes to be at the same one. Last
 * parameter of functions that end in `, SITE`; passed on as `, HERE`. */
#ifdef SIMT
#define SITE simt_site site = simt_site_here(__builtin_FILE(), __builtin_LINE())
#define HERE site
#else
struct no_site {
};
#define SITE no_site = no_site()
#endif

/* ---- launches ---- */

/* LAUNCH(kernel, grid, block, shared_bytes, stream, args...): grid is never empty. A template with
 * a comma needs parentheses. */
#ifdef SIMT
#define ARCH simt_arch()
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                     \
    simt_launch(stream, simt_site_here(__FILE__, __LINE__), #kernel, kernel, grid, block,          \
                shared_bytes, __VA_ARGS__)
static inline int launch_arch(void)
{
    return simt_arch();
}
#else
/* 75, 80, 90, ... of the code being compiled; in device code only. */
#ifdef __CUDA_ARCH__
#define ARCH (__CUDA_ARCH__ / 10)
#else
#define ARCH 0
#endif
// (clang-format takes <<<>>> for shifts)
// clang-format off
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                     \
    (launch_shared((const void *)(kernel), (shared_bytes)),                                        \
     (kernel)<<<(grid), (block), (size_t)(shared_bytes), (stream)>>>(__VA_ARGS__))
// clang-format on
/* More than 48 KiB must be requested. */
static inline void launch_shared(const void *kernel, int64_t bytes)
{
    if (bytes > 48 << 10)
        (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}
/* The same of the current device, for host code. */
static inline int launch_arch(void)
{
    int device = 0, major = 0, minor = 0;
    (void)cudaGetDevice(&device);
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    return major * 10 + minor;
}
#endif

/* ---- shared memory: contiguous parts, 16-byte aligned; all threads call take() alike ----
 *     struct taken taken = {};
 *     float *x = take<float>(&taken, n);
 * The launch passes the sum of take_bytes<T>(n). */
template <class T> static inline __host__ __device__ constexpr int take_bytes(int n)
{
    return (int)((n * sizeof(T) + 15) / 16 * 16);
}

struct taken {
    int bytes, pieces;
};
#ifdef SIMT
template <class T> static inline T *take(struct taken *t, int n)
{
    int at = t->bytes;
    t->bytes += take_bytes<T>(n);
    return (T *)simt_take(t->pieces++, at, (int)(n * sizeof(T)));
}
#else
extern __shared__ __align__(16) unsigned char shared_pool[];
template <class T> DEVICE T *take(struct taken *t, int n)
{
    T *p = (T *)(shared_pool + t->bytes);
    t->bytes += take_bytes<T>(n);
    return p;
}
#endif

/* Returns p, an address in device memory. The compiler cannot know that for addresses read from
 * shared memory, and would then keep loads behind stores to shared memory. */
template <class T> DEVICE T *in_device_memory(T *p)
{
#ifdef __CUDA_ARCH__
    __builtin_assume(__isGlobal(p));
#endif
    return p;
}

/* ---- warps: beside CUDA's own __shfl_sync() etc. ---- */

DEVICE int lane_id(void)
{
    return (int)(threadIdx.x % WARP); // blocks are one-dimensional
}
DEVICE int warp_id(void)
{
    return (int)(threadIdx.x / WARP);
}
#ifdef SIMT
#define SHFL(kind, v, by) __shfl_##kind(WARP_ALL, v, by, WARP, HERE)
#else
#define SHFL(kind, v, by) __shfl_##kind(WARP_ALL, v, by, WARP)
#endif
template <class T> DEVICE T warp_shfl(T v, int lane, SITE)
{
    return SHFL(sync, v, lane);
}
template <class T> DEVICE T warp_xor(T v, int lanes, SITE)
{
    return SHFL(xor_sync, v, lanes);
}
template <class T> DEVICE T warp_up(T v, int by, SITE)
{
    return SHFL(up_sync, v, by);
}
template <class T> DEVICE T warp_down(T v, int by, SITE)
{
    return SHFL(down_sync, v, by);
}
/* math_sum16's tree over each half of a warp, number i in lane i; all lanes get the sum. */
DEVICE float warp_sum16(float v, SITE)
{
    v = v + SHFL(xor_sync, v, 8);
    v = v + SHFL(xor_sync, v, 4);
    v = v + SHFL(xor_sync, v, 2);
    return v + SHFL(xor_sync, v, 1);
}
/* Continues the 16 chains of half a warp over v[0..n) in shared memory: lane l adds v[l], v[l + 16]
 * and so on; link(sum, number) is the chain's next sum. Links depend on one another, so
 * CHAIN16_AHEAD numbers are read before the first link. */
#define CHAIN16_AHEAD 16
template <class Link> DEVICE float chain16(float sum, const float *v, int n, Link link)
{
    int i = lane_id() % 16;
    for (; i + 16 * (CHAIN16_AHEAD - 1) < n; i += 16 * CHAIN16_AHEAD) {
        float next[CHAIN16_AHEAD];
#pragma unroll
        for (int j = 0; j < CHAIN16_AHEAD; j++)
            next[j] = v[i + 16 * j];
#pragma unroll
        for (int j = 0; j < CHAIN16_AHEAD; j++)
            sum = link(sum, next[j]);
    }
    for (; i < n; i += 16)
        sum = link(sum, v[i]);
    return sum;
}
/* Greatest of a warp, NaN ignored (-inf if all are NaN); all lanes get it. */
DEVICE float warp_max(float v, SITE)
{
    v = v == v ? v : -INFINITY;
    for (int by = WARP / 2; by > 0; by /= 2) {
        float other = SHFL(xor_sync, v, by);
        v = other > v ? other : v;
    }
    return v;
}
/* Sum, least and greatest of a warp; sum for integers, as its order is free. */
template <class T> DEVICE T warp_sum(T v, SITE)
{
    for (int by = WARP / 2; by > 0; by /= 2)
        v = v + SHFL(xor_sync, v, by);
    return v;
}
template <class T> DEVICE T warp_least(T v, SITE)
{
    for (int by = WARP / 2; by > 0; by /= 2) {
        T other = SHFL(xor_sync, v, by);
        v = other < v ? other : v;
    }
    return v;
}
template <class T> DEVICE T warp_greatest(T v, SITE)
{
    for (int by = WARP / 2; by > 0; by /= 2) {
        T other = SHFL(xor_sync, v, by);
        v = other > v ? other : v;
    }
    return v;
}

/* 16 bytes, or zeros if `bytes` is 0; `from` must be a device address in any case. */
DEVICE uint4 piece_of(const void *from, int bytes)
{
    return bytes ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
}

/* x in a register: the compiler does not compute x again in every turn of a loop. */
DEVICE uint32_t held(uint32_t x)
{
#ifndef SIMT
    asm volatile("" : "+r"(x));
#endif
    return x;
}

/* ---- asynchronous copies from device to shared memory; synchronous on sm_75 ----
 * Both sides are aligned to the size. Bytes may be read after the copying thread's
 * cp_async_wait<N>() (all but its newest N committed groups have arrived) and a barrier. */
#ifdef SIMT
#define cp_async16(to, from)              simt_cp_async(to, from, 16, 16)
#define cp_async16_zeros(to, from, bytes) simt_cp_async(to, from, 16, bytes)
#define cp_async8(to, from)               simt_cp_async(to, from, 8, 8)
#define cp_async4(to, from)               simt_cp_async(to, from, 4, 4)
#define cp_async4_zeros(to, from, bytes)  simt_cp_async(to, from, 4, bytes)
#define cp_async_commit()                 simt_cp_commit()
template <int N> static inline void cp_async_wait(void)
{
    simt_cp_wait(N);
}
#else
DEVICE unsigned shared_at(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}
DEVICE void cp_async16(void *to, const void *from)
{
#if ARCH >= 80
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_at(to)), "l"(from)
                 : "memory");
#else
    *(uint4 *)to = *(const uint4 *)from;
#endif
}
/* 16 bytes, or zeros if `bytes` is 0 (else 16): then nothing is read, but `from` must be a device
 * address in any case. */
DEVICE void cp_async16_zeros(void *to, const void *from, int bytes)
{
#if ARCH >= 80
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_at(to)), "l"(from),
                 "r"(bytes)
                 : "memory");
#else
    *(uint4 *)to = piece_of(from, bytes);
#endif
}
DEVICE void cp_async8(void *to, const void *from)
{
#if ARCH >= 80
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_at(to)), "l"(from)
                 : "memory");
#else
    *(uint2 *)to = *(const uint2 *)from;
#endif
}
DEVICE void cp_async4(void *to, const void *from)
{
#if ARCH >= 80
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_at(to)), "l"(from)
                 : "memory");
#else
    *(uint32_t *)to = *(const uint32_t *)from;
#endif
}
/* 4 bytes, or zeros if `bytes` is 0 (else 4). */
DEVICE void cp_async4_zeros(void *to, const void *from, int bytes)
{
#if ARCH >= 80
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_at(to)), "l"(from),
                 "r"(bytes)
                 : "memory");
#else
    *(uint32_t *)to = bytes ? *(const uint32_t *)from : 0;
#endif
}
DEVICE void cp_async_commit(void)
{
#if ARCH >= 80
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int N> DEVICE void cp_async_wait(void)
{
#if ARCH >= 80
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}
#endif

/* ---- tensor cores: fragments lane by lane, as in PTX ----
 * ldmatrix: lane i passes the address of row i % 8 (16 bytes of shared memory, aligned) of matrix i
 * / 8 (x2: lanes 0..15); r[j] is this lane's part of matrix j. _trans: of the transposed matrix.
 * mma: d [16, 8] += a [16, k] . b [k, 8], d in f32, b by columns. */
#ifdef SIMT
DEVICE void ldmatrix_x4(uint32_t r[4], const void *row, SITE)
{
    simt_ldmatrix(r, row, 4, 0, HERE);
}
DEVICE void ldmatrix_x2(uint32_t r[2], const void *row, SITE)
{
    simt_ldmatrix(r, row, 2, 0, HERE);
}
DEVICE void ldmatrix_x4_trans(uint32_t r[4], const void *row, SITE)
{
    simt_ldmatrix(r, row, 4, 1, HERE);
}
DEVICE void ldmatrix_x2_trans(uint32_t r[2], const void *row, SITE)
{
    simt_ldmatrix(r, row, 2, 1, HERE);
}
/* k 16, sm_80 and above. */
DEVICE void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], SITE)
{
    simt_mma(SIMT_MMA_BF16, d, a, b, HERE);
}
DEVICE void mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2], SITE)
{
    simt_mma(SIMT_MMA_F16, d, a, b, HERE);
}
/* k 8, all architectures. */
DEVICE void mma_f16_k8(float d[4], const uint32_t a[2], const uint32_t b[1], SITE)
{
    simt_mma(SIMT_MMA_F16_K8, d, a, b, HERE);
}
DEVICE void mma_s8_k32(int d[4], const uint32_t a[4], const uint32_t b[2], SITE)
{
    simt_mma(SIMT_MMA_S8, d, a, b, HERE);
}
DEVICE void mma_s8_k16(int d[2], const uint32_t a[1], const uint32_t b[1], SITE)
{
    simt_mma(SIMT_MMA_S8_K16, d, a, b, HERE);
}
#else
#define LDMATRIX_X4(r, row, how)                                                                   \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" how ".shared.b16 {%0, %1, %2, %3}, [%4];"         \
                 : "=r"((r)[0]), "=r"((r)[1]), "=r"((r)[2]), "=r"((r)[3])                          \
                 : "r"(shared_at(row))                                                             \
                 : "memory")
#define LDMATRIX_X2(r, row, how)                                                                   \
    asm volatile("ldmatrix.sync.aligned.m8n8.x2" how ".shared.b16 {%0, %1}, [%2];"                 \
                 : "=r"((r)[0]), "=r"((r)[1])                                                      \
                 : "r"(shared_at(row))                                                             \
                 : "memory")
DEVICE void ldmatrix_x4(uint32_t r[4], const void *row)
{
    LDMATRIX_X4(r, row, "");
}
DEVICE void ldmatrix_x2(uint32_t r[2], const void *row)
{
    LDMATRIX_X2(r, row, "");
}
DEVICE void ldmatrix_x4_trans(uint32_t r[4], const void *row)
{
    LDMATRIX_X4(r, row, ".trans");
}
DEVICE void ldmatrix_x2_trans(uint32_t r[2], const void *row)
{
    LDMATRIX_X2(r, row, ".trans");
}
#define MMA_K16(type, d, a, b)                                                                     \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                    \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                 \
                 : "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3])                          \
                 : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"((b)[0]), "r"((b)[1]))
/* k 16, sm_80 and above. */
DEVICE void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
#if ARCH >= 80
    MMA_K16("bf16", d, a, b);
#else
    __trap();
#endif
}
DEVICE void mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
#if ARCH >= 80
    MMA_K16("f16", d, a, b);
#else
    __trap();
#endif
}
/* k 8, all architectures. */
DEVICE void mma_f16_k8(float d[4], const uint32_t a[2], const uint32_t b[1])
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}
DEVICE void mma_s8_k32(int d[4], const uint32_t a[4], const uint32_t b[2])
{
#if ARCH >= 80
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    __trap();
#endif
}
DEVICE void mma_s8_k16(int d[2], const uint32_t a[1], const uint32_t b[1])
{
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 "
                 "{%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+r"(d[0]), "+r"(d[1])
                 : "r"(a[0]), "r"(b[0]));
}
#endif

/* d [16, 8] += a [16, 32] . b [32, 8], int8 in int32; sm_75 does a quarter at a time. */
DEVICE void mma_s8(int d[4], const uint32_t a[4], const uint32_t b[2])
{
    if (ARCH >= 80)
        mma_s8_k32(d, a, b);
    else
        for (int i = 0; i < 4; i++)
            mma_s8_k16(d + i % 2 * 2, a + i, b + i / 2);
}

/* Two numbers of a fragment, the first one in the low half. */
DEVICE uint32_t bf16_pair(float first, float second)
{
    return (uint32_t)f32_to_bf16(second) << 16 | f32_to_bf16(first);
}
DEVICE uint32_t f16_pair(float first, float second)
{
    return (uint32_t)f32_to_f16(second) << 16 | f32_to_f16(first);
}

/* 2^x by the device's table, error below 2^-22; 0 below 2^-126, NaN of NaN. */
DEVICE float exp2_fast(float x)
{
#ifdef SIMT
    return x < -126.0f ? 0.0f : exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* The same, and f16 to f32, by the device's conversions. Note: a NaN becomes 0x7fff (0x7fffffff)
 * whatever its payload: harmless for tensor core sums, but different in stored rows. */
#ifdef SIMT
DEVICE uint32_t cvt_bf16_pair(float first, float second)
{
    return (second == second ? (uint32_t)f32_to_bf16(second) : 0x7fffu) << 16 |
           (first == first ? f32_to_bf16(first) : 0x7fffu);
}
DEVICE uint32_t cvt_f16_pair(float first, float second)
{
    return (second == second ? (uint32_t)f32_to_f16(second) : 0x7fffu) << 16 |
           (first == first ? f32_to_f16(first) : 0x7fffu);
}
DEVICE float cvt_f16(uint16_t number)
{
    const float x = f16_to_f32(number);
    return x == x ? x : __uint_as_float(0x7fffffffu);
}
#else
DEVICE uint32_t cvt_bf16_pair(float first, float second)
{
#if ARCH >= 80
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
#else
    return bf16_pair(first, second);
#endif
}
DEVICE uint32_t cvt_f16_pair(float first, float second)
{
    uint16_t low, high;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(low) : "f"(first));
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(high) : "f"(second));
    return (uint32_t)high << 16 | low;
}
DEVICE float cvt_f16(uint16_t number)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(number));
    return x;
}
#endif

#endif
