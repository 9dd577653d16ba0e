/* kernels/cuda/matmul_lt.cu - see matmul_lt.cuh.
 *
 * The library chooses an algorithm by size and may sum in another order for more rows. A row's
 * bytes must depend on the row alone, so: one algorithm per format, n and k, chosen once for
 * LT_ASKED rows whatever the job, without split-K; rows are zero-padded to a multiple of LT_ROWS;
 * and before the first launch every possible number of rows is tried, with rows at two places. The
 * library writes f32 to scratch, and a kernel of ours finishes the outputs.
 * In cuBLAS's column-major order: y [n, m] = W [k, n]^T . x [k, m]. */
#include "kernels/cuda/matmul_lt.cuh"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>

#define LT_ROWS      64  // m is padded to a multiple
#define LT_ASKED     256 // rows that the heuristic is asked for
#define LT_SHIFT     17  // distance in rows between a trial's two offsets
#define LT_PLACES    2
#define LT_FOUND     8         // most algorithms from the heuristic
#define LT_WORKSPACE (4 << 20) // bytes of the library's own scratch
#define LT_ALIGN     16        // alignment of x, y and W in bytes
#define LT_BLOCK     256
#define TEXT2(x)     #x
#define TEXT(x)      TEXT2(x)

/* ---- the library ---- */

static enum err lt_fail(const struct lt *lt, const char *call, cublasStatus_t status)
{
    return fail(ERR_DEVICE, "cuda: %s: %s (--matmul own)", call,
                lt->calls.cublasLtGetStatusName(status));
}

#define LT_TRY(lt, name, ...)                                                                      \
    do {                                                                                           \
        const cublasStatus_t status_ = (lt)->calls.name(__VA_ARGS__);                              \
        if (status_ != CUBLAS_STATUS_SUCCESS)                                                      \
            return lt_fail(lt, #name, status_);                                                    \
    } while (0)

/* Python packages (PyTorch, for one) install the library in folders that the loader does not
 * search: below /usr, /usr/local, ~/.local, /opt/conda, and the active environment. */
static void *library_of_python(const char *name)
{
    const char *home = getenv("HOME"), *venv = getenv("VIRTUAL_ENV"),
               *conda = getenv("CONDA_PREFIX");
    char pattern[2048];
    void *found = NULL;
    glob_t paths = {};
    const int n =
        snprintf(pattern, sizeof pattern,
                 "{%s,%s,/usr,/usr/local,%s/.local,/opt/conda}/lib/python3*/"
                 "{site,dist}-packages/nvidia/*/lib/%s",
                 venv ? venv : "", conda ? conda : "", home ? home : "", name);
    if (n > 0 && n < (int)sizeof pattern && glob(pattern, GLOB_BRACE, NULL, &paths) == 0)
        for (size_t i = 0; i < paths.gl_pathc && !found; i++)
            found = dlopen(paths.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
    globfree(&paths);
    return found;
}

static enum err library_find(struct lt *lt)
{
    static const char *const names[] = {"libcublasLt.so." TEXT(CUBLAS_VER_MAJOR), "libcublasLt.so"};
    for (int i = 0; i < 2 && !lt->library; i++)
        lt->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!lt->library)
        lt->library = library_of_python(names[0]);
    if (!lt->library)
        return fail(ERR_DEVICE, "cuda: %s not found (install it, or --matmul own)", names[0]);
#define LT_FIND(name)                                                                              \
    if (!(lt->calls.name = (decltype(lt->calls.name))dlsym(lt->library, #name)))                   \
        return fail(ERR_DEVICE, "cuda: libcublasLt.so has no %s (--matmul own)", #name);
    LT_CALLS(LT_FIND)
#undef LT_FIND
    const int version = (int)lt->calls.cublasLtGetVersion();
    if (version / 10000 != CUBLAS_VER_MAJOR)
        return fail(ERR_DEVICE,
                    "cuda: libcublasLt.so is version %d, sluice needs %d (--matmul own)",
                    version / 10000, CUBLAS_VER_MAJOR);
    return OK;
}

static enum err library_open(struct lt *lt)
{
    const int32_t turned = CUBLAS_OP_T;
    TRY(library_find(lt));
    LT_TRY(lt, cublasLtMatmulDescCreate, &lt->matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    LT_TRY(lt, cublasLtMatmulDescSetAttribute, lt->matmul, CUBLASLT_MATMUL_DESC_TRANSA, &turned,
           sizeof turned);
    LT_TRY(lt, cublasLtCreate, &lt->handle);
    return OK;
}

enum err lt_open(struct lt *lt)
{
    const enum err e = lt->handle ? OK : library_open(lt);
    if (e != OK)
        lt_close(lt);
    return e;
}

static void shape_free(const struct lt *lt, struct lt_shape *s)
{
    const cublasLtMatrixLayout_t layouts[] = {s->w, s->x, s->y};
    for (int i = 0; i < 3; i++)
        if (layouts[i])
            (void)lt->calls.cublasLtMatrixLayoutDestroy(layouts[i]);
    *s = {};
}

void lt_close(struct lt *lt)
{
    for (int i = 0; i < lt->n_shapes; i++)
        shape_free(lt, &lt->shapes[i]);
    lt->n_shapes = 0;
    if (lt->matmul)
        (void)lt->calls.cublasLtMatmulDescDestroy(lt->matmul);
    if (lt->handle)
        (void)lt->calls.cublasLtDestroy(lt->handle);
    if (lt->library)
        (void)dlclose(lt->library);
    lt->matmul = NULL;
    lt->handle = NULL;
    lt->library = NULL;
}

/* ---- sizes ---- */

static int lt_rows(int m)
{
    return (int)round_up(m, LT_ROWS);
}

/* Row stride of the library's y, in numbers. */
static int64_t y_stride(int n)
{
    return weight_row_numbers(n);
}

static int64_t y_bytes(int m, int n)
{
    return lt_rows(m) * y_stride(n) * (int64_t)sizeof(float);
}

/* Workspace, x and y. */
int64_t lt_scratch_bytes(int m, int n, int k)
{
    return LT_WORKSPACE + matmul_round_bytes(lt_rows(m), k) + y_bytes(m, n);
}

/* ---- one algorithm per format, n and k ---- */

static struct lt_shape *shape_of(struct lt *lt, const struct weight *w)
{
    for (int i = 0; i < lt->n_shapes; i++) {
        struct lt_shape *s = &lt->shapes[i];
        if (s->dtype == w->dtype && s->n == w->n && s->k == w->k)
            return s;
    }
    return NULL;
}

int lt_is_ready(const struct lt *lt, const struct weight *w, int m)
{
    const struct lt_shape *s = shape_of((struct lt *)lt, w);
    return s && lt_rows(m) <= s->m;
}

static enum err layouts_make(const struct lt *lt, struct lt_shape *s)
{
    const cudaDataType_t type = s->dtype == DTYPE_F16 ? CUDA_R_16F : CUDA_R_16BF;
    const uint64_t row = (uint64_t)weight_row_numbers(s->k), n = (uint64_t)s->n;
    LT_TRY(lt, cublasLtMatrixLayoutCreate, &s->w, type, row, n, (int64_t)row);
    LT_TRY(lt, cublasLtMatrixLayoutCreate, &s->x, type, row, LT_ASKED, (int64_t)row);
    LT_TRY(lt, cublasLtMatrixLayoutCreate, &s->y, CUDA_R_32F, n, LT_ASKED, y_stride(s->n));
    return OK;
}

static enum err preference_set(const struct lt *lt, cublasLtMatmulPreference_t preference)
{
    static const cublasLtMatmulPreferenceAttributes_t sides[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint64_t workspace = LT_WORKSPACE;
    const uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE, align = LT_ALIGN;
    LT_TRY(lt, cublasLtMatmulPreferenceSetAttribute, preference,
           CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    LT_TRY(lt, cublasLtMatmulPreferenceSetAttribute, preference,
           CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none, sizeof none);
    for (int i = 0; i < 4; i++)
        LT_TRY(lt, cublasLtMatmulPreferenceSetAttribute, preference, sides[i], &align,
               sizeof align);
    return OK;
}

/* 1: the algorithm does not split k, whatever was requested. */
static int is_whole(const struct lt *lt, const cublasLtMatmulAlgo_t *algo)
{
    int32_t parts = 0;
    uint32_t scheme = 0;
    size_t n = 0;
    return lt->calls.cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                                          &parts, sizeof parts,
                                                          &n) == CUBLAS_STATUS_SUCCESS &&
           lt->calls.cublasLtMatmulAlgoConfigGetAttribute(
               algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme, &n) ==
               CUBLAS_STATUS_SUCCESS &&
           parts <= 1 && scheme == CUBLASLT_REDUCTION_SCHEME_NONE;
}

static enum err algorithm_ask(const struct lt *lt, struct lt_shape *s,
                              cublasLtMatmulPreference_t preference)
{
    cublasLtMatmulHeuristicResult_t found[LT_FOUND] = {};
    int n = 0;
    TRY(preference_set(lt, preference));
    LT_TRY(lt, cublasLtMatmulAlgoGetHeuristic, lt->handle, lt->matmul, s->w, s->x, s->y, s->y,
           preference, LT_FOUND, found, &n);
    for (int i = 0; i < n; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS && is_whole(lt, &found[i].algo)) {
            s->algo = found[i].algo;
            return OK;
        }
    return fail(ERR_DEVICE,
                "cuda: cuBLASLt has no algorithm without split-K for n %d, k %d "
                "(--matmul own)",
                s->n, s->k);
}

static enum err shape_make(const struct lt *lt, struct lt_shape *s)
{
    cublasLtMatmulPreference_t preference = NULL;
    TRY(layouts_make(lt, s));
    LT_TRY(lt, cublasLtMatmulPreferenceCreate, &preference);
    const enum err e = algorithm_ask(lt, s, preference);
    (void)lt->calls.cublasLtMatmulPreferenceDestroy(preference);
    return e;
}

static cublasStatus_t rows_set(const struct lt *lt, const struct lt_shape *s, int rows)
{
    const uint64_t columns = (uint64_t)rows;
    const cublasStatus_t status = lt->calls.cublasLtMatrixLayoutSetAttribute(
        s->x, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof columns);
    return status != CUBLAS_STATUS_SUCCESS
               ? status
               : lt->calls.cublasLtMatrixLayoutSetAttribute(s->y, CUBLASLT_MATRIX_LAYOUT_COLS,
                                                            &columns, sizeof columns);
}

/* Checks that the algorithm supports every possible number of rows. */
static enum err rows_check(const struct lt *lt, const struct lt_shape *s, int m)
{
    for (int rows = LT_ROWS; rows <= lt_rows(m); rows += LT_ROWS) {
        cublasLtMatmulHeuristicResult_t result = {};
        cublasStatus_t status = rows_set(lt, s, rows);
        if (status == CUBLAS_STATUS_SUCCESS)
            status = lt->calls.cublasLtMatmulAlgoCheck(lt->handle, lt->matmul, s->w, s->x, s->y,
                                                       s->y, &s->algo, &result);
        if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > LT_WORKSPACE)
            return fail(ERR_DEVICE,
                        "cuda: cuBLASLt's algorithm for n %d, k %d does not take %d rows: %s "
                        "(--matmul own)",
                        s->n, s->k, rows,
                        status != CUBLAS_STATUS_SUCCESS ? lt->calls.cublasLtGetStatusName(status)
                                                        : "it needs more workspace");
    }
    return OK;
}

enum err lt_choose(struct lt *lt, const struct weight *w, int m)
{
    CHECK(w->layout == WEIGHT_ROWS && (w->dtype == DTYPE_BF16 || w->dtype == DTYPE_F16));
    if (!shape_of(lt, w)) {
        struct lt_shape s = {};
        s.dtype = w->dtype;
        s.n = w->n;
        s.k = w->k;
        if (lt->n_shapes == LT_SHAPES)
            return fail(ERR_DEVICE, "cuda: more than %d shapes of matrices (--matmul own)",
                        LT_SHAPES);
        const enum err e = shape_make(lt, &s);
        if (e != OK) {
            shape_free(lt, &s);
            return e;
        }
        lt->shapes[lt->n_shapes++] = s;
    }
    return rows_check(lt, shape_of(lt, w), m);
}

/* ---- multiplying ---- */

/* rows: a multiple of LT_ROWS; x [rows][row of k], y [rows][y_stride(n)]. */
static const char *multiply(struct lt *lt, cudaStream_t stream, const struct lt_shape *s, int rows,
                            const void *w, const void *x, float *y, void *workspace)
{
    static const float one = 1, zero = 0;
    pthread_mutex_lock(&lt->lock);
    cublasStatus_t status = rows_set(lt, s, rows);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->calls.cublasLtMatmul(lt->handle, lt->matmul, &one, w, s->w, x, s->x, &zero, y,
                                          s->y, y, s->y, &s->algo, workspace, LT_WORKSPACE, stream);
    pthread_mutex_unlock(&lt->lock);
    return status == CUBLAS_STATUS_SUCCESS ? NULL : lt->calls.cublasLtGetStatusName(status);
}

struct finish_task {
    struct product p;
    const float *sums; // [m][stride]
    int64_t stride;
    int n_blocks; // per row
};

static __global__ void __launch_bounds__(LT_BLOCK) lt_finish(struct finish_task t)
{
    const int row = (int)blockIdx.x / t.n_blocks;
    const int o = (int)blockIdx.x % t.n_blocks * LT_BLOCK + (int)threadIdx.x;
    if (o < t.p.n)
        product_finish(&t.p, row, o, t.sums[row * t.stride + o]);
}

/* Blocks of a grid; *n_blocks: blocks per row of n threads. */
static int grid_of(int64_t rows, int64_t n, int *n_blocks)
{
    *n_blocks = (int)ceil_div(n, LT_BLOCK);
    CHECK(rows * *n_blocks < INT32_MAX);
    return (int)(rows * *n_blocks);
}

static const char *multiply_part(struct lt *lt, cudaStream_t stream, const struct product *p,
                                 const struct weight *w, uint8_t *workspace)
{
    const int rows = lt_rows(p->m);
    uint8_t *x = workspace + LT_WORKSPACE;
    struct finish_task t = {};
    const struct lt_shape *s = shape_of(lt, w);
    CHECK(s && rows <= s->m); // it was prepared
    CHECK((uintptr_t)w->panels % LT_ALIGN == 0 && (uintptr_t)workspace % LT_ALIGN == 0);
    float *sums = (float *)(x + matmul_round_bytes(rows, p->k));
    const char *failed = multiply(lt, stream, s, rows, w->panels, x, sums, workspace);
    if (failed)
        return failed;
    t.p = *p;
    t.sums = sums;
    t.stride = y_stride(p->n);
    const int grid = grid_of(p->m, p->n, &t.n_blocks);
    LAUNCH(lt_finish, grid, LT_BLOCK, 0, stream, t);
    return NULL;
}

const char *lt_matmul(struct lt *lt, cudaStream_t stream, const struct matmul_args *args)
{
    uint8_t *workspace = (uint8_t *)args->scratch;
    const char *failed = NULL;
    int rounded = 0;
    CHECK(args->n_parts >= 1 && args->n_parts <= MATMUL_PARTS);
    for (int i = 0; i < args->n_parts && !failed; i++) {
        const struct matmul_part *part = &args->parts[i];
        const struct product p = product_of(args, part);
        CHECK(p.k == args->parts[0].w.k && p.dtype == (int)args->parts[0].w.dtype);
        if (p.m == 0 || p.n == 0)
            continue;
        if (!rounded)
            matmul_round(stream, &p, lt_rows(p.m), workspace + LT_WORKSPACE);
        rounded = 1;
        failed = multiply_part(lt, stream, &p, &part->w, workspace);
    }
    return failed;
}

/* ---- trials: every number of rows, at two places, compared with the most rows at place 0 ---- */

struct noise_task {
    uint32_t *out; // [rows][n_words], pairs
    uint64_t seed;
    int k, f16, n_words, n_blocks; // per row
};

DEVICE float noise_at(const struct noise_task *t, int64_t row, int k)
{
    const uint64_t bits = mix64(t->seed + (uint64_t)(row * t->n_words * 2 + k));
    return k < t->k ? (float)((int)(bits >> 40) - (1 << 23)) / (1 << 23) : 0;
}

/* Random numbers between -1 and 1; zeros beyond k. */
static __global__ void __launch_bounds__(LT_BLOCK) lt_noise(struct noise_task t)
{
    const int64_t row = (int)blockIdx.x / t.n_blocks;
    const int word = (int)blockIdx.x % t.n_blocks * LT_BLOCK + (int)threadIdx.x;
    if (word >= t.n_words)
        return;
    const float first = noise_at(&t, row, 2 * word), second = noise_at(&t, row, 2 * word + 1);
    t.out[row * t.n_words + word] = t.f16 ? f16_pair(first, second) : bf16_pair(first, second);
}

static void noise_make(cudaStream_t stream, const struct weight *w, int64_t rows, uint64_t seed,
                       void *out)
{
    struct noise_task t = {};
    t.out = (uint32_t *)out;
    t.seed = mix64(seed);
    t.k = w->k;
    t.f16 = w->dtype == DTYPE_F16;
    t.n_words = (int)weight_row_numbers(w->k) / 2;
    const int grid = grid_of(rows, t.n_words, &t.n_blocks);
    LAUNCH(lt_noise, grid, LT_BLOCK, 0, stream, t);
}

struct compare_task {
    const float *want, *got; // [rows][stride]
    int64_t stride;
    unsigned *count; // of differing numbers
    int n, n_blocks; // per row
};

static __global__ void __launch_bounds__(LT_BLOCK) lt_compare(struct compare_task t)
{
    const int64_t row = (int)blockIdx.x / t.n_blocks;
    const int o = (int)blockIdx.x % t.n_blocks * LT_BLOCK + (int)threadIdx.x;
    if (o < t.n &&
        __float_as_uint(t.want[row * t.stride + o]) != __float_as_uint(t.got[row * t.stride + o]))
        atomicAdd(t.count, 1u);
}

/* Parts of the trial's memory, contiguous. */
struct room {
    uint8_t *workspace, *x, *w;
    float *want, *got;
    unsigned *counts;
};

static int64_t room_make(const struct weight *w, int m, uint8_t *base, struct room *r)
{
    const int64_t sizes[] = {LT_WORKSPACE,
                             matmul_round_bytes(lt_rows(m) + LT_SHIFT, w->k),
                             matmul_round_bytes(w->n, w->k), // W has x's layout
                             y_bytes(m, w->n),
                             y_bytes(m, w->n),
                             LT_TRIALS * (int64_t)sizeof(unsigned)};
    int64_t at[7] = {0};
    for (int i = 0; i < 6; i++)
        at[i + 1] = at[i] + round_up(sizes[i], 256);
    *r = {base + at[0],
          base + at[1],
          base + at[2],
          (float *)(base + at[3]),
          (float *)(base + at[4]),
          (unsigned *)(base + at[5])};
    return at[6];
}

int64_t lt_room_bytes(const struct weight *w, int m)
{
    struct room r;
    return room_make(w, m, NULL, &r);
}

static int trial_of(int rows, int place)
{
    return (rows / LT_ROWS - 1) * LT_PLACES + place;
}

/* Multiplies `rows` rows from place * LT_SHIFT on; compares those also in the reference. */
static const char *trial_queue(struct lt *lt, cudaStream_t stream, const struct weight *w, int m,
                               const struct room *r, int rows, int place)
{
    const int first = place * LT_SHIFT;
    const int shared = rows < lt_rows(m) - first ? rows : lt_rows(m) - first;
    struct compare_task t = {};
    const char *failed = multiply(lt, stream, shape_of(lt, w), rows, r->w,
                                  r->x + matmul_round_bytes(first, w->k), r->got, r->workspace);
    if (failed)
        return failed;
    t.stride = y_stride(w->n);
    t.want = r->want + first * t.stride;
    t.got = r->got;
    t.count = r->counts + trial_of(rows, place);
    t.n = w->n;
    const int grid = grid_of(shared, w->n, &t.n_blocks);
    LAUNCH(lt_compare, grid, LT_BLOCK, 0, stream, t);
    return NULL;
}

enum err lt_try(struct lt *lt, cudaStream_t stream, const struct weight *w, int m, void *room,
                unsigned *counts)
{
    const int64_t counted = LT_TRIALS * (int64_t)sizeof *counts;
    struct room r;
    CHECK(trial_of(lt_rows(m), LT_PLACES - 1) < LT_TRIALS);
    (void)room_make(w, m, (uint8_t *)room, &r);
    noise_make(stream, w, w->n, 1, r.w);
    noise_make(stream, w, lt_rows(m) + LT_SHIFT, 2, r.x);
    cudaError_t e = cudaMemsetAsync(r.counts, 0, (size_t)counted, stream);
    const char *failed =
        multiply(lt, stream, shape_of(lt, w), lt_rows(m), r.w, r.x, r.want, r.workspace);
    for (int rows = LT_ROWS; rows <= lt_rows(m) && !failed; rows += LT_ROWS)
        for (int place = 0; place < LT_PLACES && !failed; place++)
            failed = trial_queue(lt, stream, w, m, &r, rows, place);
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(counts, r.counts, (size_t)counted, cudaMemcpyDefault, stream);
    if (!failed && e != cudaSuccess)
        failed = cudaGetErrorString(e);
    return failed ? fail(ERR_DEVICE, "cuda: cublasLtMatmul: n %d, k %d: %s (--matmul own)", w->n,
                         w->k, failed)
                  : OK;
}

enum err lt_tried(struct lt *lt, const struct weight *w, int m, const unsigned *counts)
{
    for (int rows = LT_ROWS; rows <= lt_rows(m); rows += LT_ROWS)
        for (int place = 0; place < LT_PLACES; place++)
            if (counts[trial_of(rows, place)] > 0)
                return fail(
                    ERR_DEVICE,
                    "cuda: cuBLASLt: n %d, k %d: %d rows%s give %u numbers other than the same "
                    "rows among %d: the batch size would change the answer (--matmul own)",
                    w->n, w->k, rows, place ? " at another address" : "",
                    counts[trial_of(rows, place)], lt_rows(m));
    shape_of(lt, w)->m = lt_rows(m);
    return OK;
}
