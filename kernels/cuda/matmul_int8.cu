/* kernels/cuda/matmul_int8.cu - matmul under COMPUTE_INT8 over panels of q8 and q4: quantises x,
 * and multiplies few rows.
 *
 * Owns: the codes of x; products of groups on plain cores, the chain over groups. Refuses: other
 * formats; more than INT8_ROWS rows (matmul_int8_mma.cu).
 * Sums within a group of 64 are exact integers in any order; only the chain over groups rounds, in
 * the order of ops.h: the bytes of the CPU. A block handles one panel and a tile of rows. Its warps
 * multiply one group each and write products to shared memory; after a barrier every thread adds 8
 * groups to its chains, in order. So 8 groups are in flight although an output is one chain. Bound:
 * HBM, 1.06 (q8) or 0.56 (q4) bytes per weight. */
#include "kernels/cuda/matmul_int8.cuh"

#define INT8_WARPS     8 // groups at a time
#define INT8_ROWS      4 // up to here, plain cores
#define QUANTISE_WARPS 8

int64_t matmul_quantise_bytes(int m, int k)
{
    return m * ceil_div(k, OWN_GROUP) * (OWN_GROUP + (int64_t)sizeof(struct int8_head));
}

static struct int8_task int8_task_of(const struct product *p, const void *scratch)
{
    struct int8_task t = {};
    t.p = *p;
    t.n_groups = (int)ceil_div(p->k, OWN_GROUP);
    t.rows = product_rows(p);
    t.codes = (int8_t *)scratch;
    t.heads = (struct int8_head *)(t.codes + (int64_t)t.rows * t.n_groups * OWN_GROUP);
    return t;
}

/* ---- x: one group per warp, two numbers per lane ---- */

/* The product is rounded, then rounded to a whole number (to nearest even). */
DEVICE int code_of(float x, float inverse)
{
    const int bits = __float_as_int(x * inverse + MATH_ROUND_MAGIC);
    return (int8_t)(bits & 255);
}

static __global__ void __launch_bounds__(QUANTISE_WARPS *WARP) quantise_x(struct int8_task t)
{
    const int group = (int)blockIdx.x * QUANTISE_WARPS + warp_id();
    const int64_t row = group / t.n_groups;
    const int k = group % t.n_groups * OWN_GROUP + 2 * lane_id();
    if (row >= t.rows)
        return; // the whole warp
    const float *x = t.p.x + x_row(&t.p, row) * t.p.x_stride;
    const float first = k < t.p.k ? x[k] : 0, second = k + 1 < t.p.k ? x[k + 1] : 0;
    // As integers, magnitudes order NaN above infinity.
    const uint32_t bits = warp_greatest(
        max(__float_as_uint(first) & 0x7fffffffu, __float_as_uint(second) & 0x7fffffffu));
    const float greatest = __uint_as_float(bits);
    const int finite = bits < 0x7f800000u, counts = finite && greatest >= 0x1p-100f;
    const float scale = counts ? greatest / 127.0f : finite ? 0.0f : NAN;
    const float inverse = counts ? 127.0f / greatest : 0;
    const int a = counts ? code_of(first, inverse) : 0, b = counts ? code_of(second, inverse) : 0;
    const int sum = warp_sum(a + b);
    uint16_t *codes = (uint16_t *)(t.codes + (int64_t)group * OWN_GROUP);
    codes[lane_id()] = (uint16_t)((a & 255) | (b & 255) << 8);
    if (lane_id() == 0)
        t.heads[(int64_t)(group % t.n_groups) * t.rows + row] = {scale, (float)sum * scale};
}

void matmul_quantise(cudaStream_t stream, const struct product *p, void *scratch)
{
    const struct int8_task t = int8_task_of(p, scratch);
    const int grid = (int)ceil_div((int64_t)t.rows * t.n_groups, QUANTISE_WARPS);
    CHECK((int64_t)t.rows * t.n_groups < INT32_MAX);
    if (grid > 0)
        LAUNCH(quantise_x, grid, QUANTISE_WARPS * WARP, 0, stream, t);
}

/* ---- products ---- */

/* One turn of INT8_WARPS groups, input of the block's chains, in shared memory. */
struct int8_turn {
    float *products;      // [INT8_WARPS][ROWS][32], times the scale of x
    float *scales, *mins; // [INT8_WARPS][32] of W
    float *sums;          // [INT8_WARPS][ROWS] of x, for q4
};
template <int ROWS> static inline __host__ __device__ constexpr int turn_floats(void)
{
    return INT8_WARPS * (ROWS * WARP + 2 * WARP + ROWS);
}
template <int ROWS> DEVICE struct int8_turn turn_at(float *floats)
{
    struct int8_turn turn;
    turn.products = floats;
    turn.scales = turn.products + INT8_WARPS * ROWS * WARP;
    turn.mins = turn.scales + INT8_WARPS * WARP;
    turn.sums = turn.mins + INT8_WARPS * WARP;
    return turn;
}

/* Four codes of the lane's output; q8 as int8 (panels store code + 128). */
template <int Q4> DEVICE int quad_of(const uint8_t *codes, int quad)
{
    const int r = lane_id();
    if (!Q4)
        return (int)(((const uint32_t *)codes)[quad * PANEL_ROWS + r] ^ 0x80808080u);
    return (int)(((const uint32_t *)codes)[quad * 16 + r % 16] >> r / 16 * 4 & 0x0f0f0f0fu);
}

/* Multiplies the warp's group of the turn with every row of the tile. */
template <int Q4, int ROWS>
DEVICE void group_multiply(const struct int8_task *t, const uint8_t *panel, int row0, int group,
                           const struct int8_turn *to)
{
    const uint8_t *from = panel + (int64_t)group * (Q4 ? Q4_GROUP_BYTES : Q8_GROUP_BYTES);
    const int r = lane_id(), w = warp_id();
    int quads[OWN_QUADS];
#pragma unroll
    for (int i = 0; i < OWN_QUADS; i++)
        quads[i] = quad_of<Q4>(from + (Q4 ? Q4_HEAD_BYTES : Q8_HEAD_BYTES), i);
    if (Q4) {
        const uint16_t *head = (const uint16_t *)from;
        to->scales[w * WARP + r] = f16_to_f32(head[r]);
        to->mins[w * WARP + r] = f16_to_f32(head[PANEL_ROWS + r]);
    } else {
        to->scales[w * WARP + r] = ((const float *)from)[r];
    }
#pragma unroll 1
    for (int row = 0; row < ROWS && row0 + row < t->p.m; row++) {
        const int64_t at = (int64_t)(row0 + row) * t->n_groups + group;
        const int4 *codes = (const int4 *)(t->codes + at * OWN_GROUP); // the same for all lanes
        const struct int8_head head = t->heads[(int64_t)group * t->rows + row0 + row];
        int sum = 0;
#pragma unroll
        for (int i = 0; i < OWN_QUADS / 4; i++) {
            const int4 four = codes[i];
            sum = __dp4a(four.x, quads[4 * i], sum);
            sum = __dp4a(four.y, quads[4 * i + 1], sum);
            sum = __dp4a(four.z, quads[4 * i + 2], sum);
            sum = __dp4a(four.w, quads[4 * i + 3], sum);
        }
        to->products[(w * ROWS + row) * WARP + r] = (float)sum * head.scale;
        if (Q4 && r == 0)
            to->sums[w * ROWS + row] = head.sum;
    }
}

/* A thread has output lane_id() of rows warp_id(), warp_id() + INT8_WARPS, ... */
template <int Q4, int ROWS>
DEVICE void chains_extend(const struct int8_turn *turn, int n_rows, int n_groups,
                          float chain[(ROWS + INT8_WARPS - 1) / INT8_WARPS])
{
    const int r = lane_id();
    for (int g = 0; g < n_groups; g++)
        for (int i = 0; i < (ROWS + INT8_WARPS - 1) / INT8_WARPS; i++) {
            const int row = warp_id() + i * INT8_WARPS;
            if (row >= n_rows)
                continue;
            chain[i] = fmaf(turn->scales[g * WARP + r], turn->products[(g * ROWS + row) * WARP + r],
                            chain[i]);
            if (Q4)
                chain[i] = fmaf(turn->mins[g * WARP + r], turn->sums[g * ROWS + row], chain[i]);
        }
}

template <int Q4, int ROWS>
static __global__ void __launch_bounds__(INT8_WARPS *WARP) matmul_int8_tile(struct int8_task t)
{
    constexpr int CHAINS = (ROWS + INT8_WARPS - 1) / INT8_WARPS;
    if (!expert_enter(&t.p, ROWS, PANEL_ROWS))
        return; // the whole block
    int8_enter(&t);
    const int row0 = tile_row(&t.p, ROWS), o0 = tile_column(&t.p, ROWS, PANEL_ROWS);
    const int n_rows = min(ROWS, t.p.m - row0);
    const uint8_t *panel = t.p.weights + o0 / PANEL_ROWS * t.p.panel_bytes;
    struct taken taken = {};
    float *turns = take<float>(&taken, 2 * turn_floats<ROWS>());
    float chain[CHAINS] = {};
    for (int g = 0, odd = 0; g < t.n_groups; g += INT8_WARPS, odd ^= 1) {
        const struct int8_turn turn = turn_at<ROWS>(turns + odd * turn_floats<ROWS>());
        if (g + warp_id() < t.n_groups)
            group_multiply<Q4, ROWS>(&t, panel, row0, g + warp_id(), &turn);
        __syncthreads(); // this turn is complete; the previous one has been read
        chains_extend<Q4, ROWS>(&turn, n_rows, min(INT8_WARPS, t.n_groups - g), chain);
    }
    for (int i = 0; i < CHAINS; i++) {
        const int row = warp_id() + i * INT8_WARPS;
        if (row < n_rows && o0 + lane_id() < t.p.n)
            product_finish(&t.p, row0 + row, o0 + lane_id(), chain[i]);
    }
}

template <int Q4> static void int8_launch(cudaStream_t stream, struct int8_task t)
{
    const int grid = tile_count(&t.p, INT8_ROWS, PANEL_ROWS);
    LAUNCH((matmul_int8_tile<Q4, INT8_ROWS>), grid, INT8_WARPS * WARP,
           take_bytes<float>(2 * turn_floats<INT8_ROWS>()), stream, t);
}

void matmul_int8(cudaStream_t stream, const struct product *p, const void *scratch)
{
    const struct int8_task t = int8_task_of(p, scratch);
    if (product_rows_likely(p) > INT8_ROWS)
        matmul_int8_mma(stream, &t);
    else if (p->dtype == DTYPE_Q4)
        int8_launch<1>(stream, t);
    else
        int8_launch<0>(stream, t);
}
