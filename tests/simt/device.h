/* tests/simt/device.h - CUDA's names for a .cu that g++ compiles; comes before all of it.
 *
 * Owns: qualifiers, vector types, warp operations, atomics, bit tricks. Refuses: static __shared__
 * (take() of kernels/cuda/simt.cuh has redzones), float atomics, __activemask(): not there. */
#ifndef TESTS_SIMT_DEVICE_H
#define TESTS_SIMT_DEVICE_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <math.h>
#include <string.h>
#include <utility>

#include "tests/simt/simt.h"

#define SIMT
#define __global__
#define __device__
#define __host__
#define __constant__    static
#define __forceinline__ inline
#define __noinline__    __attribute__((noinline))
#define __align__(n)    __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__
#define threadIdx simt_thread_idx()
#define blockIdx  simt_block_idx()
#define blockDim  simt_block_dim()
#define gridDim   simt_grid_dim()
#define warpSize  32

// libc's would not be looked at.
#define memcpy(to, from, n) simt_memcpy(to, from, n)
#define memset(to, byte, n) simt_memset(to, byte, n)
#define memmove             there_is_no_memmove
#define __trap()            simt_trap(simt_site_here(__FILE__, __LINE__))

typedef struct CUstream_st *cudaStream_t;

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

#define SIMT_VECTORS(type, name, n2, n4)                                                           \
    struct alignas(n2) name##2                                                                     \
    {                                                                                              \
        type x, y;                                                                                 \
    };                                                                                             \
    struct alignas(n4) name##4                                                                     \
    {                                                                                              \
        type x, y, z, w;                                                                           \
    };                                                                                             \
    static inline name##2 make_##name##2(type x, type y)                                           \
    {                                                                                              \
        return {x, y};                                                                             \
    }                                                                                              \
    static inline name##4 make_##name##4(type x, type y, type z, type w)                           \
    {                                                                                              \
        return {x, y, z, w};                                                                       \
    }
SIMT_VECTORS(float, float, 8, 16)
SIMT_VECTORS(int, int, 8, 16)
SIMT_VECTORS(unsigned, uint, 8, 16)
SIMT_VECTORS(unsigned short, ushort, 4, 8)
SIMT_VECTORS(unsigned char, uchar, 2, 4)
#undef SIMT_VECTORS

static inline simt_site simt_site_here(const char *file, int line)
{
    return {file, line};
}
#define SIMT_SITE simt_site site = simt_site_here(__builtin_FILE(), __builtin_LINE())

static inline simt_dim simt_dim_of(dim3 d)
{
    return {d.x, d.y, d.z};
}

/* Where parameter n of a kernel stands; of the last plus one, their end. */
template <class... P> constexpr size_t simt_param_at(size_t n)
{
    const size_t bytes[] = {sizeof(P)...}, align[] = {alignof(P)...};
    size_t at = 0;
    for (size_t i = 0; i < n; i++)
        at = (at + align[i] - 1) / align[i] * align[i] + bytes[i];
    return n < sizeof...(P) ? (at + align[n] - 1) / align[n] * align[n] : at;
}

template <class... P, size_t... I>
static inline void simt_call(void (*kernel)(P...), const char *params, std::index_sequence<I...>)
{
    kernel(*(const P *)(params + simt_param_at<P...>(I))...);
}

template <class P> static inline void simt_pack(char *to, const P &param)
{
    __builtin_memcpy(to, &param, sizeof param);
}

template <class... P, size_t... I>
static inline void simt_launch_with(cudaStream_t stream, simt_site at, const char *name,
                                    void (*kernel)(P...), dim3 grid, dim3 block,
                                    int64_t shared_bytes, std::index_sequence<I...>,
                                    const P &...args)
{
    alignas(16) char params[simt_param_at<P...>(sizeof...(P))] = {};
    (simt_pack(params + simt_param_at<P...>(I), args), ...);
    const simt_kernel k = {name, (void (*)(void))kernel, [](void (*code)(void), const void *p) {
                               simt_call((void (*)(P...))code, (const char *)p,
                                         std::index_sequence_for<P...>());
                           }};
    const simt_work work = {at,           k,      simt_dim_of(grid), simt_dim_of(block),
                            shared_bytes, params, sizeof params};
    if (stream && simt_queue)
        simt_queue(stream, &work);
    else
        simt_run(&work);
}

template <class... P, class... A>
static inline void simt_launch(cudaStream_t stream, simt_site at, const char *name,
                               void (*kernel)(P...), dim3 grid, dim3 block, int64_t shared_bytes,
                               A... args)
{
    simt_launch_with(stream, at, name, kernel, grid, block, shared_bytes,
                     std::index_sequence_for<P...>(), static_cast<P>(args)...);
}

/* ---- barriers and warps ---- */

static inline void __syncthreads(SIMT_SITE)
{
    simt_barrier(site);
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, SIMT_SITE)
{
    simt_warp(SIMT_SYNCWARP, mask, 0, 0, 32, site);
}

template <class T>
static inline T simt_shuffle(simt_op op, unsigned mask, T v, int by, int width, simt_site site)
{
    static_assert(sizeof(T) <= 8, "a shuffle carries up to 8 bytes");
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &v, sizeof v);
    bits = simt_warp(op, mask, bits, by, width, site);
    __builtin_memcpy(&v, &bits, sizeof v);
    return v;
}
#define SIMT_SHUFFLE(name, op, type)                                                               \
    template <class T>                                                                             \
    static inline T name(unsigned mask, T v, type by, int width = 32, SIMT_SITE)                   \
    {                                                                                              \
        return simt_shuffle(op, mask, v, (int)by, width, site);                                    \
    }
SIMT_SHUFFLE(__shfl_sync, SIMT_SHFL, int)
SIMT_SHUFFLE(__shfl_up_sync, SIMT_SHFL_UP, unsigned)
SIMT_SHUFFLE(__shfl_down_sync, SIMT_SHFL_DOWN, unsigned)
SIMT_SHUFFLE(__shfl_xor_sync, SIMT_SHFL_XOR, int)
#undef SIMT_SHUFFLE

static inline unsigned __ballot_sync(unsigned mask, int p, SIMT_SITE)
{
    return (unsigned)simt_warp(SIMT_BALLOT, mask, p != 0, 0, 32, site);
}
static inline int __any_sync(unsigned mask, int p, SIMT_SITE)
{
    return simt_warp(SIMT_BALLOT, mask, p != 0, 0, 32, site) != 0;
}
static inline int __all_sync(unsigned mask, int p, SIMT_SITE)
{
    return (unsigned)simt_warp(SIMT_BALLOT, mask, p != 0, 0, 32, site) == mask;
}

/* ---- atomics of integers ---- */

#define SIMT_ATOMIC(name, T, op)                                                                   \
    static inline T name(T *p, T v)                                                                \
    {                                                                                              \
        return (T)simt_atomic(op, p, sizeof(T), (uint64_t)v, 0);                                   \
    }
#define SIMT_ATOMICS(T, least, greatest)                                                           \
    SIMT_ATOMIC(atomicAdd, T, SIMT_ADD)                                                            \
    SIMT_ATOMIC(atomicMin, T, least)                                                               \
    SIMT_ATOMIC(atomicMax, T, greatest)                                                            \
    SIMT_ATOMIC(atomicOr, T, SIMT_OR)                                                              \
    SIMT_ATOMIC(atomicAnd, T, SIMT_AND)                                                            \
    SIMT_ATOMIC(atomicExch, T, SIMT_EXCH)                                                          \
    static inline T atomicCAS(T *p, T expected, T v)                                               \
    {                                                                                              \
        return (T)simt_atomic(SIMT_CAS, p, sizeof(T), (uint64_t)v, (uint64_t)expected);            \
    }
SIMT_ATOMICS(int, SIMT_MIN_SIGNED, SIMT_MAX_SIGNED)
SIMT_ATOMICS(unsigned, SIMT_MIN, SIMT_MAX)
SIMT_ATOMICS(unsigned long long, SIMT_MIN, SIMT_MAX)
#undef SIMT_ATOMICS
#undef SIMT_ATOMIC

/* ---- bits and numbers ---- */

template <class To, class From> static inline To simt_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float x)
{
    return simt_bits<unsigned>(x);
}
static inline int __float_as_int(float x)
{
    return simt_bits<int>(x);
}
static inline float __uint_as_float(unsigned x)
{
    return simt_bits<float>(x);
}
static inline float __int_as_float(int x)
{
    return simt_bits<float>(x);
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __clzll(long long x)
{
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 4; i++)
        c += (int8_t)((unsigned)a >> 8 * i) * (int8_t)((unsigned)b >> 8 * i);
    return c;
}
template <class T> static inline T __ldg(const T *p)
{
    return *p;
}
template <class T> static inline T min(T a, T b)
{
    return b < a ? b : a;
}
template <class T> static inline T max(T a, T b)
{
    return a < b ? b : a;
}

#endif
