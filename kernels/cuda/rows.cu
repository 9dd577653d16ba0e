/* kernels/cuda/rows.cu - norm, rope, rotate, gate_mul, mix, gather, compact and cast: ops on single
 * rows.
 *
 * Owns: the order of a norm's sums: 16 lanes, as on the CPU, for the same bytes. Refuses: tiles.
 * Rows are blocks (grid.x is large enough), columns are threads. */
#include "kernels/cuda/panel.cuh"

#define ROW_THREADS  256
#define NORM_THREADS 256
#define NORM_AHEAD   8
#define NORM_STAGED  8192 // numbers of a row in shared memory at a time: 32 KiB

/* ---- norm ---- */

/* The part of a row in shared memory. Rows of up to NORM_STAGED numbers are read once; longer rows
 * are read part by part, once per pass over the row. */
struct staged {
    const float *x;
    float *part; // [min(dim, NORM_STAGED)]: x[from] on
    int dim, from;
};

/* Loads the part from x[from] on; returns its count. All threads. */
DEVICE int staged_part(struct staged *s, int from)
{
    const int n = s->dim - from < NORM_STAGED ? s->dim - from : NORM_STAGED;
    if (s->from == from)
        return n;
    s->from = from;
    __syncthreads(); // the previous part has been read
    for (int i = (int)threadIdx.x; i < n; i += NORM_THREADS)
        cp_async4(&s->part[i], &s->x[from + i]);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    return n;
}

/* The row's sum by link(sum, number), in 16 lanes, for the first warp, both halves alike. The
 * result of other threads is undefined. */
template <class Link> DEVICE float staged_sum(struct staged *s, Link link)
{
    float sum = 0;
    for (int from = 0; from < s->dim; from += NORM_STAGED) {
        const int n = staged_part(s, from);
        if (warp_id() == 0)
            sum = chain16(sum, s->part, n, link);
    }
    return warp_sum16(sum);
}

/* Outputs from .. from + n of a row. Reads weights NORM_AHEAD at a time: the compiler must assume
 * that y overlaps them and would not read the next before writing. */
DEVICE void norm_part(const struct norm_args *a, const float *part, float mean, float scale,
                      int from, int n, float *y)
{
    for (int first = (int)threadIdx.x; first < n; first += NORM_AHEAD * NORM_THREADS) {
        float weight[NORM_AHEAD], bias[NORM_AHEAD];
#pragma unroll
        for (int j = 0; j < NORM_AHEAD; j++) {
            const int i = first + j * NORM_THREADS;
            weight[j] = i < n && a->weight ? a->weight[from + i] : 1;
            bias[j] = i < n && a->bias ? a->bias[from + i] : 0;
        }
#pragma unroll
        for (int j = 0; j < NORM_AHEAD; j++) {
            const int i = first + j * NORM_THREADS;
            if (i >= n)
                continue;
            const float v = (part[i] - mean) * scale;
            y[from + i] = a->bias ? fmaf(v, weight[j], bias[j]) : v * weight[j];
        }
    }
}

/* A block is a row; y may be x. */
__global__ void __launch_bounds__(NORM_THREADS) norm_row(struct norm_args a)
{
    struct taken taken = {};
    float *shift_scale = take<float>(&taken, 2);
    struct staged row = {a.x + blockIdx.x * a.x_stride,
                         take<float>(&taken, a.dim < NORM_STAGED ? a.dim : NORM_STAGED), a.dim, -1};
    float *y = a.y + blockIdx.x * a.y_stride;
    float mean = 0;
    if (a.kind == NORM_LAYER)
        mean = staged_sum(&row, [](float sum, float v) { return sum + v; }) / (float)a.dim;
    const float squares =
        staged_sum(&row, [=](float sum, float v) { return fmaf(v - mean, v - mean, sum); });
    if (threadIdx.x == 0) {
        shift_scale[0] = mean;
        shift_scale[1] = math_norm_scale(squares, a.dim, a.eps);
    }
    __syncthreads();
    for (int from = 0; from < a.dim; from += NORM_STAGED) {
        const int n = staged_part(&row, from);
        norm_part(&a, row.part, shift_scale[0], shift_scale[1], from, n, y);
    }
}

void cuda_norm(cudaStream_t stream, const struct ops *ops, const struct norm_args *a)
{
    (void)ops;
    const int staged = a->dim < NORM_STAGED ? a->dim : NORM_STAGED;
    if (a->m > 0)
        LAUNCH(norm_row, (unsigned)a->m, NORM_THREADS,
               take_bytes<float>(2) + take_bytes<float>(staged), stream, *a);
}

/* ---- rope ---- */

/* A thread rotates pairs of one row, of any head. */
__global__ void __launch_bounds__(ROW_THREADS) rope_row(struct rope_args a)
{
    const int half = a.rope_dim / 2;
    const int64_t at = (int64_t)a.pos[blockIdx.x] * half;
    const float factor = a.factors ? a.factors[a.pos[blockIdx.x]] : 1.0f;
    float *row = a.x + blockIdx.x * a.x_stride;
    for (int pair = (int)threadIdx.x; pair < a.n_heads * half; pair += ROW_THREADS) {
        const int i = pair % half;
        float *x = row + (int64_t)(pair / half) * a.head_dim + i;
        const float c = a.cos[at + i], s = a.sin[at + i], x0 = x[0], x1 = x[half];
        x[0] = factor * fmaf(-x1, s, x0 * c);
        x[half] = factor * fmaf(x1, c, x0 * s);
    }
    if (!a.factors)
        return;
    const int rest = a.head_dim - a.rope_dim;
    for (int i = (int)threadIdx.x; i < a.n_heads * rest; i += ROW_THREADS)
        row[(int64_t)(i / rest) * a.head_dim + a.rope_dim + i % rest] *= factor;
}

void cuda_rope(cudaStream_t stream, const struct ops *ops, const struct rope_args *a)
{
    (void)ops;
    if (a->m > 0 && (a->rope_dim > 0 || a->factors))
        LAUNCH(rope_row, (unsigned)a->m, ROW_THREADS, 0, stream, *a);
}

/* ---- rotate ---- */

/* A block is a row. A warp rotates R * 32 numbers, whole blocks of the rotation: number i is in
 * lane i % 32. */
template <int R> __global__ void __launch_bounds__(ROW_THREADS) rotate_row(struct rotate_args a)
{
    const int lane = lane_id();
    const float scale = rotate_scale(a.block);
    float *row = a.x + blockIdx.x * a.x_stride;
    for (int at = warp_id() * R * WARP; at < a.n; at += ROW_THREADS * R) {
        float v[R];
#pragma unroll
        for (int r = 0; r < R; r++)
            v[r] = at + r * WARP + lane < a.n ? row[at + r * WARP + lane] : 0;
        for (int h = 1; h < WARP && h < a.block; h *= 2)
#pragma unroll
            for (int r = 0; r < R; r++) {
                const float other = warp_xor(v[r], h);
                v[r] = lane & h ? other - v[r] : v[r] + other;
            }
#pragma unroll
        for (int h = 1; h < R; h *= 2)
#pragma unroll
            for (int r = 0; r < R; r++)
                if (!(r & h)) {
                    const float first = v[r], second = v[r + h];
                    v[r] = first + second;
                    v[r + h] = first - second;
                }
#pragma unroll
        for (int r = 0; r < R; r++)
            if (at + r * WARP + lane < a.n)
                row[at + r * WARP + lane] = v[r] * scale;
    }
}

void cuda_rotate(cudaStream_t stream, const struct ops *ops, const struct rotate_args *a)
{
    (void)ops;
    if (a->m == 0)
        return;
    if (a->block == 8 * WARP)
        LAUNCH(rotate_row<8>, (unsigned)a->m, ROW_THREADS, 0, stream, *a);
    else if (a->block == 4 * WARP)
        LAUNCH(rotate_row<4>, (unsigned)a->m, ROW_THREADS, 0, stream, *a);
    else if (a->block == 2 * WARP)
        LAUNCH(rotate_row<2>, (unsigned)a->m, ROW_THREADS, 0, stream, *a);
    else
        LAUNCH(rotate_row<1>, (unsigned)a->m, ROW_THREADS, 0, stream, *a);
}

/* ---- gate_mul ---- */

__global__ void __launch_bounds__(ROW_THREADS) gate_mul_row(struct gate_mul_args a)
{
    float *gate = a.gate + blockIdx.x * a.gate_stride;
    const float *up = a.up ? a.up + blockIdx.x * a.up_stride : NULL;
    for (int i = (int)threadIdx.x; i < a.n; i += ROW_THREADS)
        gate[i] = up ? math_gate(a.act, a.limit, gate[i], up[i]) : math_xielu(a.alpha, gate[i]);
}

void cuda_gate_mul(cudaStream_t stream, const struct ops *ops, const struct gate_mul_args *a)
{
    (void)ops;
    if (a->m > 0)
        LAUNCH(gate_mul_row, (unsigned)a->m, ROW_THREADS, 0, stream, *a);
}

/* ---- mix ---- */

__global__ void __launch_bounds__(ROW_THREADS) mix_row(struct mix_args a)
{
    float *x = a.x + blockIdx.x * a.x_stride;
    const float *y = a.y ? a.y + blockIdx.x * a.y_stride : NULL;
    for (int i = (int)threadIdx.x; i < a.n; i += ROW_THREADS) {
        float v = a.a != 0 ? a.a * x[i] : 0.0f;
        v = y ? fmaf(a.b, y[i], v) : v;
        x[i] = math_softcap(v, a.cap);
    }
}

void cuda_mix(cudaStream_t stream, const struct ops *ops, const struct mix_args *a)
{
    (void)ops;
    if (a->m > 0)
        LAUNCH(mix_row, (unsigned)a->m, ROW_THREADS, 0, stream, *a);
}

/* ---- gather: a number of a stored row, as in kernels/dtype_blocks.c ----
 * Blocks are unaligned, so wider values are assembled from bytes. */

DEVICE uint16_t u16_at(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}
DEVICE float f16_at(const uint8_t *p)
{
    return f16_to_f32(u16_at(p));
}
DEVICE float f32_at(const uint8_t *p)
{
    return __uint_as_float(u16_at(p) | (uint32_t)u16_at(p + 2) << 16);
}
/* Half a byte: the low halves of n bytes precede the high halves. */
DEVICE int half_byte(const uint8_t *q, int i, int n)
{
    return i < n ? q[i] & 15 : q[i - n] >> 4;
}
/* Scale (min 0) or minimum (min 1) of sub-block s of q4_k and q5_k: 6 bits each. */
DEVICE int k_scale(const uint8_t *p, int s, int min)
{
    if (s < 4)
        return p[4 * min + s] & 63;
    const int low = min ? p[4 + s] >> 4 : p[4 + s] & 15;
    return low | (p[4 * min + s - 4] >> 6) << 4;
}
/* q4_k and q5_k: f16 d, f16 d_min, 12 bytes of scales, then the codes. */
DEVICE float k_number(const uint8_t *block, int i, int code)
{
    const float scale = f16_at(block) * (float)k_scale(block + 4, i / 32, 0);
    const float min = f16_at(block + 2) * (float)k_scale(block + 4, i / 32, 1);
    return scale * (float)code - min;
}
DEVICE float q6_k_number(const uint8_t *block, int i)
{
    const int half = i / 128, quarter = i % 128 / 32, j = i % 32;
    const int low = block[64 * half + quarter % 2 * 32 + j] >> quarter / 2 * 4 & 15;
    const int high = block[128 + 32 * half + j] >> quarter * 2 & 3;
    const int8_t scale = (int8_t)block[192 + 8 * half + i % 128 / 16];
    return f16_at(block + 208) * (float)scale * (float)((low | high << 4) - 32);
}

/* Number i of 256 in the 2-bit codes of q2_k, q3_k and tq2_0. */
DEVICE int two_bits(const uint8_t *q, int i)
{
    return q[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3;
}
DEVICE float q2_k_number(const uint8_t *block, int i)
{
    const float scale = f16_at(block + 80) * (float)(block[i / 16] & 15);
    const float min = f16_at(block + 82) * (float)(block[i / 16] >> 4);
    return scale * (float)two_bits(block + 16, i) - min;
}
/* A 6-bit scale, from its four low and two high bits. */
DEVICE float six_bit_scale(const uint8_t *d, int low, int high)
{
    return f16_at(d) * (float)(((low & 15) | (high & 3) << 4) - 32);
}
DEVICE float q3_k_number(const uint8_t *block, int i)
{
    const int part = i / 16, code = two_bits(block + 32, i) | (block[i % 32] >> i / 32 & 1) << 2;
    const uint8_t *scales = block + 96;
    return six_bit_scale(block + 108, scales[part % 8] >> part / 8 * 4,
                         scales[8 + part % 4] >> part / 4 * 2) *
           (float)(code - 4);
}
DEVICE float iq4_xs_number(const uint8_t *block, int i)
{
    const int part = i / 32;
    const float scale = six_bit_scale(block, block[4 + part / 2] >> part % 2 * 4,
                                      block[2 + part / 4] >> part % 4 * 2);
    return scale * number_of_code(COLUMN_XS, half_byte(block + 8 + 16 * part, i % 32, 16));
}
/* A base-3 digit of a byte; numbers 0..159, 160..239 and 240..255 are three runs of bytes. */
DEVICE float tq1_0_number(const uint8_t *block, int i)
{
    const int width = i < 160 ? 32 : i < 240 ? 16 : 4, from = i < 160 ? 0 : i < 240 ? 160 : 240;
    int byte = block[(i < 160 ? 0 : i < 240 ? 32 : 48) + (i - from) % width];
    for (int nth = (i - from) / width; nth > 0; nth--)
        byte = byte * 3 & 255;
    return f16_at(block + 52) * (float)((byte * 3 >> 8) - 1);
}
DEVICE float grid_row_number(enum dtype t, const uint8_t *block, int i)
{
    struct grid_eight e;
    grid_eight(t, block, 2, i / 8, &e);
    const float d = f16_to_f32((uint16_t)grid_d(t, block, 2)) * grid_unit(t);
    return __uint_as_float(grid_number(t, &e, i % 8, d));
}
/* Groups of n numbers: f16 scale, u8 zero, codes; bf16 scale, codes less 8; f32 scale, u8 zero,
 * bytes; f32 scale, e4m3. */
DEVICE float g4_number(const uint8_t *row, int i, int n)
{
    const uint8_t *p = row + (int64_t)(i / n) * (3 + n / 2);
    return f16_at(p) * (float)(half_byte(p + 3, i % n, n / 2) - p[2]);
}
DEVICE float b4_number(const uint8_t *row, int i, int n)
{
    const uint8_t *p = row + (int64_t)(i / n) * (2 + n / 2);
    return bf16_to_f32(u16_at(p)) * (float)(half_byte(p + 2, i % n, n / 2) - 8);
}
DEVICE float i8_number(const uint8_t *row, int i, int n)
{
    const uint8_t *p = row + (int64_t)(i / n) * (5 + n);
    return f32_at(p) * (float)(p[5 + i % n] - p[4]);
}
DEVICE float f8_number(const uint8_t *row, int i, int n)
{
    const uint8_t *p = row + (int64_t)(i / n) * (4 + n);
    return e4m3_to_f32(p[4 + i % n]) * f32_at(p);
}
/* Blocks of n: f32 factor, e4m3 per 16, codes. */
DEVICE float nv4_number(const uint8_t *row, int i, int n)
{
    const uint8_t *p = row + (int64_t)(i / n) * (4 + n / 16 + n / 2);
    return e4m3_scaled(p[4 + i % n / 16], f32_at(p)) *
           number_of_code(COLUMN_E2M1, half_byte(p + 4 + n / 16, i % n, n / 2));
}

/* Number i of a row in format t. */
DEVICE float row_number(enum dtype t, const uint8_t *row, int i)
{
    const int b32 = i / 32, j = i % 32, b64 = i / 64, j64 = i % 64, b256 = i / 256, j256 = i % 256;
    const uint8_t *p;
    switch (t) {
    case DTYPE_F32:
        return f32_at(row + 4 * (int64_t)i);
    case DTYPE_F16:
        return f16_at(row + 2 * (int64_t)i);
    case DTYPE_BF16:
    case DTYPE_BF12: // a row of bf12 is one of bf16
        return bf16_to_f32(u16_at(row + 2 * (int64_t)i));
    case DTYPE_Q4_0:
        p = row + b32 * 18;
        return f16_at(p) * (float)(half_byte(p + 2, j, 16) - 8);
    case DTYPE_Q4_1:
        p = row + b32 * 20;
        return f16_at(p) * (float)half_byte(p + 4, j, 16) + f16_at(p + 2);
    case DTYPE_Q5_0:
        p = row + b32 * 22;
        return f16_at(p) *
               (float)((half_byte(p + 6, j, 16) | (p[2 + j / 8] >> j % 8 & 1) << 4) - 16);
    case DTYPE_Q5_1:
        p = row + b32 * 24;
        return f16_at(p) * (float)(half_byte(p + 8, j, 16) | (p[4 + j / 8] >> j % 8 & 1) << 4) +
               f16_at(p + 2);
    case DTYPE_Q8_0:
        p = row + b32 * 34;
        return f16_at(p) * (float)(int8_t)p[2 + j];
    case DTYPE_IQ4_NL:
        p = row + b32 * 18;
        return f16_at(p) * number_of_code(COLUMN_NL, half_byte(p + 2, j, 16));
    case DTYPE_MXFP4:
        p = row + b32 * 17;
        return e8m0_half(p[0]) * number_of_code(COLUMN_E8M0, half_byte(p + 1, j, 16));
    case DTYPE_Q2_K:
        return q2_k_number(row + (int64_t)b256 * 84, j256);
    case DTYPE_Q3_K:
        return q3_k_number(row + (int64_t)b256 * 110, j256);
    case DTYPE_Q4_K:
        p = row + (int64_t)b256 * 144;
        return k_number(p, j256, half_byte(p + 16 + j256 / 64 * 32, j256 % 64, 32));
    case DTYPE_Q5_K:
        p = row + (int64_t)b256 * 176;
        return k_number(p, j256,
                        half_byte(p + 48 + j256 / 64 * 32, j256 % 64, 32) |
                            (p[16 + j256 % 32] >> j256 / 32 & 1) << 4);
    case DTYPE_Q6_K:
        return q6_k_number(row + (int64_t)b256 * 210, j256);
    case DTYPE_IQ4_XS:
        return iq4_xs_number(row + (int64_t)b256 * 136, j256);
    case DTYPE_TQ2_0:
        p = row + (int64_t)b256 * 66;
        return f16_at(p + 64) * (float)(two_bits(p, j256) - 1);
    case DTYPE_TQ1_0:
        return tq1_0_number(row + (int64_t)b256 * 54, j256);
#define GRID_CASE(NAME, name, bytes, ...)                                                          \
    case DTYPE_##NAME:                                                                             \
        return grid_row_number(DTYPE_##NAME, row + (int64_t)b256 * bytes, j256);
        GRID_FORMATS(GRID_CASE)
#undef GRID_CASE
    case DTYPE_G4_32:
        return g4_number(row, i, 32);
    case DTYPE_G4_64:
        return g4_number(row, i, 64);
    case DTYPE_G4_128:
        return g4_number(row, i, 128);
    case DTYPE_F8_32:
        return f8_number(row, i, 32);
    case DTYPE_F8_128:
        return f8_number(row, i, 128);
    case DTYPE_NF4:
        p = row + (int64_t)b64 * 36;
        return f32_at(p) * number_of_code(COLUMN_NF4, half_byte(p + 4, j64, 32));
    case DTYPE_NF4_S8:
        p = row + (int64_t)b256 * 140;
        return nf4_scale(p[8 + j256 / 64], f32_at(p), f32_at(p + 4)) *
               number_of_code(COLUMN_NF4, half_byte(p + 12 + j256 / 64 * 32, j64, 32));
    case DTYPE_B4_32:
        return b4_number(row, i, 32);
    case DTYPE_B4_128:
        return b4_number(row, i, 128);
    case DTYPE_NV4_64:
        return nv4_number(row, i, 64);
    case DTYPE_NV4_256:
        return nv4_number(row, i, 256);
    case DTYPE_I8_32:
        return i8_number(row, i, 32);
    case DTYPE_I8_128:
        return i8_number(row, i, 128);
    case DTYPE_Q8:
        p = row + b64 * 68;
        return (float)(int8_t)p[4 + j64] * f32_at(p);
    case DTYPE_Q4:
        p = row + b64 * 36;
        return (float)half_byte(p + 4, j64, 32) * f16_at(p) + f16_at(p + 2);
    case N_DTYPES:
        break;
    }
    return 0;
}

__global__ void __launch_bounds__(ROW_THREADS) gather_row(struct gather_args a)
{
    const uint8_t *from = (const uint8_t *)a.rows + a.offsets[blockIdx.x];
    float *x = a.x + blockIdx.x * a.x_stride;
    for (int i = (int)threadIdx.x; i < a.k; i += ROW_THREADS) {
        const float v = row_number(a.dtype, from, i);
        x[i] = a.add ? x[i] + v : v;
    }
}

void cuda_gather(cudaStream_t stream, const struct ops *ops, const struct gather_args *a)
{
    (void)ops;
    if (a->n > 0)
        LAUNCH(gather_row, (unsigned)a->n, ROW_THREADS, 0, stream, *a);
}

/* ---- compact ---- */

/* Rows overlap rows still to be read, so a thread moves one column, row by row. */
__global__ void __launch_bounds__(ROW_THREADS) compact_columns(struct compact_args a)
{
    const int column = (int)(blockIdx.x * ROW_THREADS + threadIdx.x);
    for (int i = 0; i < a.n && column < a.dim; i++)
        a.x[(int64_t)i * a.dim + column] = a.x[(int64_t)a.from[i] * a.dim + column];
}

void cuda_compact(cudaStream_t stream, const struct ops *ops, const struct compact_args *a)
{
    (void)ops;
    if (a->n > 0 && a->dim > 0)
        LAUNCH(compact_columns, (unsigned)ceil_div(a->dim, ROW_THREADS), ROW_THREADS, 0, stream,
               *a);
}

/* ---- cast ---- */

/* Eight numbers per thread: 16 bytes of bf16, if both sides are aligned. */
template <int WIDENS> __global__ void __launch_bounds__(ROW_THREADS) cast_eights(struct cast_args a)
{
    const int64_t i = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x;
    if (8 * i + 8 > a.n)
        return;
    if (WIDENS) {
        const uint4 x = ((const uint4 *)a.from)[i];
        uint4 *to = (uint4 *)a.to + 2 * i;
        to[0] = make_uint4(x.x << 16, x.x & 0xffff0000u, x.y << 16, x.y & 0xffff0000u);
        to[1] = make_uint4(x.z << 16, x.z & 0xffff0000u, x.w << 16, x.w & 0xffff0000u);
    } else {
        const float4 x = ((const float4 *)a.from)[2 * i], y = ((const float4 *)a.from)[2 * i + 1];
        ((uint4 *)a.to)[i] = make_uint4(bf16_pair(x.x, x.y), bf16_pair(x.z, x.w),
                                        bf16_pair(y.x, y.y), bf16_pair(y.z, y.w));
    }
}

/* From number `first` on, one per thread. */
template <int WIDENS>
__global__ void __launch_bounds__(ROW_THREADS) cast_ones(struct cast_args a, int64_t first)
{
    const int64_t i = first + (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x;
    if (i >= a.n)
        return;
    if (WIDENS)
        ((float *)a.to)[i] = bf16_to_f32(((const uint16_t *)a.from)[i]);
    else
        ((uint16_t *)a.to)[i] = f32_to_bf16(((const float *)a.from)[i]);
}

template <int WIDENS> static void cast_by(cudaStream_t stream, const struct cast_args *a)
{
    const int aligned = ((uintptr_t)a->to | (uintptr_t)a->from) % 16 == 0;
    const int64_t eights = aligned ? a->n / 8 : 0, ones = a->n - 8 * eights;
    if (eights > 0)
        LAUNCH(cast_eights<WIDENS>, (unsigned)ceil_div(eights, ROW_THREADS), ROW_THREADS, 0, stream,
               *a);
    if (ones > 0)
        LAUNCH(cast_ones<WIDENS>, (unsigned)ceil_div(ones, ROW_THREADS), ROW_THREADS, 0, stream, *a,
               8 * eights);
}

void cuda_cast(cudaStream_t stream, const struct ops *ops, const struct cast_args *a)
{
    (void)ops;
    if (a->widens)
        cast_by<1>(stream, a);
    else
        cast_by<0>(stream, a);
}
