/* kernels/cuda/decode.cu - the decode op: panels of a pack to plain numbers, as panels or as rows.
 *
 * Owns: the output layout. Refuses: formats (panel.cuh).
 * A warp handles 64 numbers of each row of a panel; rows pass through shared memory, so that 128
 * contiguous bytes (f32: 256) of a row are written at once. The bound is HBM: after the copy of a
 * streamed layer (HBM is far faster than the link), once for a resident layer. Bytes per weight
 * read and written: 2 (bf16, f16 out; f32 4) plus
 *   f32 4 · f16, bf16 2 · bf12 1.5 to 1.52 · i8_32 1.16 · f8_32 1.13 · q8, q8_0 1.06 ·
 *   i8_128 1.04 · f8_128 1.03 · q6_k 0.82 ·
 *   q5_1 0.75 · q5_0, q5_k 0.69 · q4_1, nv4_64 0.63 · g4_32 0.59 · nv4_256 0.58 ·
 *   q4, q4_0, q4_k, iq4_nl, nf4, b4_32 0.56 · g4_64 0.55 · iq4_xs, mxfp4 0.53 ·
 *   g4_128, b4_128, nf4_s8 0.52 · q3_k, iq3_s 0.43 · iq3_xxs 0.38 · q2_k 0.33 · iq2_s 0.32 ·
 *   iq2_xs 0.29 · iq2_xxs, tq2_0 0.26 · iq1_m 0.22 · tq1_0 0.21 · iq1_s 0.20 */
#include "kernels/cuda/panel.cuh"

#define DECODE_WARPS  4
#define DECODE_CHUNK  64 // numbers along k per warp; weight_row_numbers() rounds up to it
#define DECODE_SLICES (DECODE_CHUNK / SLICE)

struct decode_task {
    const uint8_t *panels;
    int64_t panel_bytes, out_bytes; // of a panel
    uint8_t *out;
    int dtype, n, k;
    int n_chunks; // of a panel
};

/* Index of the warp in the grid: chunk % n_chunks of panel chunk / n_chunks. */
DEVICE int decode_chunk(void)
{
    return (int)blockIdx.x * DECODE_WARPS + warp_id();
}

/* Two numbers as one word of a 16-bit format. bf16 that is stored as bf16 keeps its bits: rounding
 * would change NaNs. */
template <int TO> DEVICE uint32_t pair_of(int dtype, uint32_t first, uint32_t second)
{
    if (TO == DTYPE_F16)
        return f16_pair(__uint_as_float(first), __uint_as_float(second));
    if (dtype == DTYPE_BF16 || dtype == DTYPE_BF12)
        return first >> 16 | (second & 0xffff0000u);
    return bf16_pair(__uint_as_float(first), __uint_as_float(second));
}

template <int TO>
static __global__ void __launch_bounds__(DECODE_WARPS *WARP) decode_panels(struct decode_task t)
{
    const int64_t panel = decode_chunk() / t.n_chunks;
    const int k0 = decode_chunk() % t.n_chunks * DECODE_CHUNK;
    if (panel * PANEL_ROWS >= t.n)
        return; // the whole warp; no barrier follows
    const uint8_t *from = t.panels + panel * t.panel_bytes;
    uint32_t *out = (uint32_t *)(t.out + panel * t.out_bytes) + lane_id();
#pragma unroll 1
    for (int k = k0; k < k0 + DECODE_CHUNK && k < t.k; k += SLICE) {
        uint32_t bits[SLICE];
        panel_slice(t.dtype, from, t.k, k, bits);
        for (int i = 0; i < SLICE && TO == DTYPE_F32; i++)
            if (k + i < t.k)
                out[(int64_t)(k + i) * PANEL_ROWS] = bits[i];
        for (int i = 0; i < SLICE && TO != DTYPE_F32; i += 2)
            if (k + i < t.k) // an odd k is followed by a zero
                out[(int64_t)((k + i) / 2) * PANEL_ROWS] =
                    pair_of<TO>(t.dtype, bits[i], bits[i + 1]);
    }
}

/* Rows are padded by four words: the lanes of a phase store to different banks. */
template <int TO> static inline __host__ __device__ constexpr int row_words(void)
{
    return TO == DTYPE_F32 ? DECODE_CHUNK : DECODE_CHUNK / 2;
}
template <int TO> static inline __host__ __device__ constexpr int tile_words(void)
{
    return PANEL_ROWS * (row_words<TO>() + 4);
}

/* Writes a slice of the lane's row. */
template <int TO> DEVICE void slice_put(int dtype, const uint32_t bits[SLICE], uint32_t *to)
{
    for (int i = 0; i < SLICE; i += TO == DTYPE_F32 ? 4 : 8, to += 4) {
        uint4 four = make_uint4(bits[i], bits[i + 1], bits[i + 2], bits[i + 3]);
        if (TO != DTYPE_F32)
            four = make_uint4(pair_of<TO>(dtype, bits[i], bits[i + 1]),
                              pair_of<TO>(dtype, bits[i + 2], bits[i + 3]),
                              pair_of<TO>(dtype, bits[(i + 4) % SLICE], bits[(i + 5) % SLICE]),
                              pair_of<TO>(dtype, bits[(i + 6) % SLICE], bits[(i + 7) % SLICE]));
        *(uint4 *)to = four;
    }
}

template <int TO>
static __global__ void __launch_bounds__(DECODE_WARPS *WARP) decode_rows(struct decode_task t)
{
    constexpr int WORDS = row_words<TO>(), STRIDE = WORDS + 4, PIECES = WORDS / 4;
    struct taken taken = {};
    uint32_t *tile =
        take<uint32_t>(&taken, DECODE_WARPS * tile_words<TO>()) + warp_id() * tile_words<TO>();
    const int64_t panel = decode_chunk() / t.n_chunks;
    const int chunk = decode_chunk() % t.n_chunks;
    if (panel * PANEL_ROWS >= t.n)
        return; // the whole warp; no barrier follows
#pragma unroll 1
    for (int s = 0; s < DECODE_SLICES; s++) {
        const int k = chunk * DECODE_CHUNK + s * SLICE;
        uint32_t bits[SLICE] = {};
        if (k < t.k)
            panel_slice(t.dtype, t.panels + panel * t.panel_bytes, t.k, k, bits);
        slice_put<TO>(t.dtype, bits, tile + lane_id() * STRIDE + s * (WORDS / DECODE_SLICES));
    }
    __syncwarp();
    uint4 *out = (uint4 *)t.out;
    for (int i = lane_id(); i < PANEL_ROWS * PIECES; i += WARP) {
        const int64_t row = panel * PANEL_ROWS + i / PIECES;
        if (row < t.n)
            out[(row * t.n_chunks + chunk) * PIECES + i % PIECES] =
                *(const uint4 *)(tile + i / PIECES * STRIDE + i % PIECES * 4);
    }
}

template <int TO>
static void decode_launch(cudaStream_t stream, const struct decode_task *t, int layout)
{
    const int64_t n_warps = ceil_div(t->n, PANEL_ROWS) * t->n_chunks;
    const int grid = (int)ceil_div(n_warps, DECODE_WARPS);
    CHECK(n_warps < INT32_MAX);
    if (n_warps == 0)
        return;
    if constexpr (TO != DTYPE_F16) { // f16 is written as rows only
        if (layout == WEIGHT_PANELS) {
            LAUNCH(decode_panels<TO>, grid, DECODE_WARPS * WARP, 0, stream, *t);
            return;
        }
    }
    LAUNCH(decode_rows<TO>, grid, DECODE_WARPS * WARP,
           take_bytes<uint32_t>(DECODE_WARPS * tile_words<TO>()), stream, *t);
}

void cuda_decode(cudaStream_t stream, const struct ops *ops, const struct decode_args *args)
{
    (void)ops;
    const struct weight *w = &args->w;
    const int to_f16 = args->to == DTYPE_F16 && args->layout == WEIGHT_ROWS;
    CHECK(w->layout == WEIGHT_PANELS && (unsigned)w->dtype < N_DTYPES);
    CHECK(args->to == DTYPE_BF16 || args->to == DTYPE_F32 || to_f16);
    struct decode_task t = {};
    t.panels = (const uint8_t *)w->panels;
    t.panel_bytes = dtype_panel_bytes(w->dtype, w->k);
    t.out_bytes = dtype_panel_bytes(args->to, w->k);
    t.out = (uint8_t *)args->panels;
    t.dtype = w->dtype;
    t.n = w->n;
    t.k = w->k;
    t.n_chunks = (int)(weight_row_numbers(w->k) / DECODE_CHUNK);
    if (to_f16)
        decode_launch<DTYPE_F16>(stream, &t, args->layout);
    else if (args->to == DTYPE_BF16)
        decode_launch<DTYPE_BF16>(stream, &t, args->layout);
    else
        decode_launch<DTYPE_F32>(stream, &t, args->layout);
}
