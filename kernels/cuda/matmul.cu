/* kernels/cuda/matmul.cu - the matmul op: chooses the kernel; the kernel for f32.
 *
 * Owns: the entry, and sums in rule a's order on plain cores. Refuses: tensor cores
 * (matmul_mma.cu), codes (matmul_int8.cu).
 * COMPUTE_F32 reads panels of any format and decodes them into shared memory: so a pass reads the
 * stored bytes (q4: 0.56 per weight) instead of 4. An output is one chain of fused multiply-adds
 * over k in one thread: the bytes of the CPU, for any tile. Bound: f32 units for many rows (64 x
 * 64: three shared wavefronts per 16 fused multiply-adds of a thread), HBM for few. */
#include "kernels/cuda/matmul.cuh"
#include "kernels/cuda/panel.cuh"

#define F32_CHUNK    64 // numbers along k in shared memory
#define F32_ROWS_FEW 16 // up to here, tiles of 16 rows

/* Copies columns k0.. of x, as [k][rows]: a warp copies 8 x 4 numbers, which are whole 32-byte
 * sectors in different banks. Rows from m on are zero; numbers beyond k are not read. */
template <int BM, int THREADS>
DEVICE void x_put(const struct product *p, int row0, int k0, float *x)
{
    for (int i = (int)threadIdx.x; i < BM * F32_CHUNK; i += THREADS) {
        const int k = i % 8 + i / 32 % 8 * 8, row = i / 8 % 4 + i / 256 * 4;
        const int there = row0 + row < p->m && k0 + k < p->k;
        x[k * (BM + 4) + row] = there ? p->x[x_row(p, row0 + row) * p->x_stride + k0 + k] : 0;
    }
}

/* The same for BN / 32 panels of W, as [k][outputs]; a warp decodes one slice at a time. */
template <int BN, int THREADS> DEVICE void w_put(const struct product *p, int o0, int k0, float *w)
{
    const int n_slices = BN / PANEL_ROWS * (F32_CHUNK / SLICE);
    for (int i = warp_id(); i < n_slices; i += THREADS / WARP) {
        const int panel = i % (BN / PANEL_ROWS), k = i / (BN / PANEL_ROWS) * SLICE;
        const int64_t at = o0 / PANEL_ROWS + panel;
        uint32_t bits[SLICE] = {};
        if (at * PANEL_ROWS < p->n && k0 + k < p->k)
            panel_slice(p->dtype, p->weights + at * p->panel_bytes, p->k, k0 + k, bits);
        for (int j = 0; j < SLICE; j++)
            w[(k + j) * BN + panel * PANEL_ROWS + lane_id()] = __uint_as_float(bits[j]);
    }
}

/* Loads 2 or 4 numbers at once. */
template <int N> DEVICE void floats_get(float to[N], const float *from)
{
    if (N == 4) {
        const float4 v = *(const float4 *)from;
        to[0] = v.x;
        to[1] = v.y;
        to[N - 2] = v.z;
        to[N - 1] = v.w;
    } else {
        const float2 v = *(const float2 *)from;
        to[0] = v.x;
        to[1] = v.y;
    }
}

/* A tile of BM rows and BN outputs; TM x TN per thread. */
template <int BM, int BN, int TM, int TN>
static __global__ void __launch_bounds__(BM / TM * (BN / TN)) matmul_f32_tile(struct product p)
{
    constexpr int THREADS = BM / TM * (BN / TN);
    struct taken taken = {};
    float *x = take<float>(&taken, F32_CHUNK * (BM + 4)), *w = take<float>(&taken, F32_CHUNK * BN);
    if (!expert_enter(&p, BM, BN))
        return; // the whole block
    const int row0 = tile_row(&p, BM), o0 = tile_column(&p, BM, BN);
    const int row = (int)threadIdx.x / (BN / TN) * TM, o = (int)threadIdx.x % (BN / TN) * TN;
    float sum[TM][TN] = {};
    for (int k0 = 0; k0 < p.k; k0 += F32_CHUNK) {
        x_put<BM, THREADS>(&p, row0, k0, x);
        w_put<BN, THREADS>(&p, o0, k0, w);
        __syncthreads();
        const int n = min(F32_CHUNK, p.k - k0); // no padding: adding 0 could change -0
#pragma unroll 4
        for (int k = 0; k < n; k++) {
            float a[TM], b[TN];
            floats_get<TM>(a, x + k * (BM + 4) + row);
            floats_get<TN>(b, w + k * BN + o);
            for (int i = 0; i < TM; i++)
                for (int j = 0; j < TN; j++)
                    sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
        }
        __syncthreads();
    }
    for (int i = 0; i < TM; i++)
        for (int j = 0; j < TN; j++)
            if (row0 + row + i < p.m && o0 + o + j < p.n)
                product_finish(&p, row0 + row + i, o0 + o + j, sum[i][j]);
}

template <int BM, int BN, int TM, int TN>
static void f32_launch(cudaStream_t stream, struct product p)
{
    const int shared = take_bytes<float>(F32_CHUNK * (BM + 4)) + take_bytes<float>(F32_CHUNK * BN);
    const int grid = tile_count(&p, BM, BN);
    LAUNCH((matmul_f32_tile<BM, BN, TM, TN>), grid, BM / TM * (BN / TN), shared, stream, p);
}

void matmul_f32(cudaStream_t stream, const struct product *p)
{
    if (product_rows_likely(p) <= F32_ROWS_FEW)
        f32_launch<16, 32, 2, 2>(stream, *p);
    else
        f32_launch<64, 64, 4, 4>(stream, *p);
}

struct product product_of(const struct matmul_args *a, const struct matmul_part *part)
{
    const struct weight *w = &part->w;
    struct product p = {};
    p.x = a->x;
    p.weights = (const uint8_t *)w->panels;
    p.bias = part->bias;
    p.y = part->y;
    p.x_stride = a->x_stride;
    p.y_stride = part->y_stride;
    p.panel_bytes = w->layout == WEIGHT_PANELS ? dtype_panel_bytes(w->dtype, w->k) : 0;
    p.dtype = w->dtype;
    p.m = a->m;
    p.n = w->n;
    p.k = w->k;
    p.add = part->add;
    p.act = part->act;
    return p;
}

/* The format of x in the scratch: parts with the same format share x. */
enum inputs { INPUTS_NONE, INPUTS_BF16, INPUTS_F16, INPUTS_CODES };

/* The format of x for a product: W's, or the one W is decoded to. */
static enum inputs inputs_of(const struct product *p, enum compute compute)
{
    if (compute == COMPUTE_INT8 && matmul_q_takes(p))
        return INPUTS_CODES;
    if (p->panel_bytes == 0)
        return p->dtype == DTYPE_F16 ? INPUTS_F16 : INPUTS_BF16;
    return launch_arch() < 80 ? INPUTS_F16 : INPUTS_BF16;
}

/* How many parts, from the first on, one launch multiplies: parts of one format and layout share
 * the rounded x and differ only in W. */
static int parts_alike(const struct product parts[], int n_parts, enum compute compute)
{
    const struct product *first = &parts[0];
    const int is_rounded = compute != COMPUTE_F32 && inputs_of(first, compute) != INPUTS_CODES;
    int n = 1;
    if (is_rounded && (first->panel_bytes == 0 || matmul_q_takes(first)))
        while (n < n_parts && (parts[n].panel_bytes == 0) == (first->panel_bytes == 0) &&
               parts[n].dtype == first->dtype)
            n++;
    return n;
}

static void multiply_parts(cudaStream_t stream, const struct product p[], int n_parts,
                           enum compute compute, void *scratch, enum inputs *there)
{
    const int in_rows = p->panel_bytes == 0;
    const enum inputs inputs = inputs_of(p, compute);
    struct product rounded = *p;
    rounded.dtype = inputs == INPUTS_F16 ? DTYPE_F16 : DTYPE_BF16;
    if (compute == COMPUTE_F32) {
        CHECK(!in_rows);
        matmul_f32(stream, p);
        return;
    }
    CHECK(!in_rows || (inputs != INPUTS_CODES && p->dtype == rounded.dtype));
    if (inputs != *there && inputs == INPUTS_CODES)
        matmul_quantise(stream, p, scratch);
    else if (inputs != *there)
        matmul_round(stream, &rounded, product_rows(p), scratch);
    *there = inputs;
    if (inputs == INPUTS_CODES)
        matmul_int8(stream, p, scratch);
    else if (matmul_q_takes(p))
        matmul_q(stream, p, n_parts, scratch);
    else if (!in_rows)
        matmul_panel(stream, p, scratch);
    else
        matmul_mma(stream, p, n_parts, scratch);
}

static void multiply_all(cudaStream_t stream, const struct product parts[], int n_parts,
                         enum compute compute, const struct matmul_args *a)
{
    enum inputs there = a->same_x && n_parts > 0 ? inputs_of(parts, compute) : INPUTS_NONE;
    for (int i = 0, n; i < n_parts; i += n) {
        n = parts_alike(parts + i, n_parts - i, compute);
        multiply_parts(stream, parts + i, n, compute, a->scratch, &there);
    }
}

/* Weights are panels of any format, or rows of bf16 or f16. COMPUTE_F32 accepts panels only, and
 * COMPUTE_INT8 accepts q8 and q4 as panels only. */
void cuda_matmul(cudaStream_t stream, const struct ops *ops, const struct matmul_args *args)
{
    struct product parts[MATMUL_PARTS];
    int n = 0;
    CHECK(ops->matmul == MATMUL_OWN); // other libraries depend on the device: device.cu
    CHECK(args->n_parts >= 1 && args->n_parts <= MATMUL_PARTS);
    for (int i = 0; i < args->n_parts; i++) {
        parts[n] = product_of(args, &args->parts[i]);
        CHECK(parts[n].k == args->parts[0].w.k);
        n += parts[n].m > 0 && parts[n].n > 0;
    }
    multiply_all(stream, parts, n, ops->compute, args);
}

void cuda_expert_matmul(cudaStream_t stream, const struct ops *ops,
                        const struct expert_matmul_args *args)
{
    struct product parts[MATMUL_PARTS];
    const struct route *r = &args->route;
    for (int i = 0; i < args->matmul.n_parts; i++) {
        struct product *p = &parts[i];
        *p = product_of(&args->matmul, &args->matmul.parts[i]);
        CHECK(p->n % (r->n_experts * PANEL_ROWS) == 0);
        p->n /= r->n_experts;
        p->first = r->first;
        p->pairs = args->by_token ? r->pairs : NULL;
        p->n_experts = r->n_experts;
        p->used = r->n_used;
        p->n_pairs = p->m * r->n_used;
    }
    if (args->matmul.m > 0)
        multiply_all(stream, parts, args->matmul.n_parts, ops->compute, &args->matmul);
}

/* Scratch for the rows of x of all pairs; experts always use our own matmul. */
int64_t cuda_expert_matmul_scratch_bytes(const struct ops *ops, int m, int n_used, int n, int k)
{
    struct ops own = *ops;
    own.matmul = MATMUL_OWN;
    return cuda_matmul_scratch_bytes(&own, m * n_used, n, k);
}

int64_t cuda_matmul_scratch_bytes(const struct ops *ops, int m, int n, int k)
{
    if (ops->matmul == MATMUL_CUBLASLT)
        return lt_scratch_bytes(m, n, k);
    if (ops->compute == COMPUTE_F32)
        return 0;
    const int64_t codes = ops->compute == COMPUTE_INT8 ? matmul_quantise_bytes(m, k) : 0;
    return max_i64(matmul_round_bytes(m, k), codes);
}
