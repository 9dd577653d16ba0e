/* tests/simt/cudart/lt.c - see lt.h.
 *
 * Note: as cuBLAS counts, all is by columns: A [n, k] is turned, B [k,
 * m], D [n, m]. */
#include "tests/simt/cudart/lt.h"

#include "kernels/base/base.h"
#include "kernels/dtype.h"
#include "tests/simt/cudart/cudart.h"
#include "tests/simt/cudart/dlfcn.h"
#include "tests/simt/simt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 16

struct cublasLtContext {
    int any;
};
struct cublaslt_desc {
    int32_t turned_a;
};
struct cublaslt_layout {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t stride;
};
struct cublaslt_preference {
    uint64_t workspace;
    uint32_t schemes, align[4];
};

/* What data[] of an algorithm is. */
enum { ALGO_MAGIC, ALGO_SPLITS, ALGO_SCHEME, ALGO_BACKWARDS };
#define MAGIC 0x1d4f

#define CALLS(X)                                                                                   \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtGetVersion)                                                                          \
    X(cublasLtGetStatusName)                                                                       \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulAlgoCheck)                                                                     \
    X(cublasLtMatmulAlgoConfigGetAttribute)                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)                                                                 \
    X(cublasLtMatrixLayoutSetAttribute)

/* A matmul that is queued. */
struct work {
    const uint16_t *a, *b;
    float *d;
    uint8_t *workspace;
    size_t workspace_bytes;
    struct cublaslt_layout a_layout, b_layout, d_layout;
    int splits, backwards;
};

static struct cublaslt_plant plant;
static int64_t n_calls, fail_call;
static cublasStatus_t fail_with;
static int n_held;

void cublaslt_open(const struct cublaslt_plant *p)
{
    plant = p ? *p : (struct cublaslt_plant){0};
    n_calls = fail_call = 0;
    n_held = 0;
}

void cublaslt_fail_call(int64_t n, cublasStatus_t e)
{
    fail_call = n > 0 ? n_calls + n : 0;
    fail_with = e;
}

int64_t cublaslt_calls(void)
{
    return n_calls;
}

int cublaslt_held(void)
{
    return n_held;
}

/* Of every call that may fail. */
static cublasStatus_t begin(void)
{
    return ++n_calls == fail_call ? fail_with : CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t make(void **object, size_t n_bytes)
{
    const cublasStatus_t e = begin();
    if (e == CUBLAS_STATUS_SUCCESS) {
        *object = calloc(1, n_bytes);
        CHECK(*object);
        n_held++;
    }
    return e;
}

static cublasStatus_t drop(void *object)
{
    CHECK(object);
    free(object);
    n_held--;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- the library ---- */

void *dlopen(const char *name, int flags)
{
    static const char by_path[] = "/site-packages/nvidia/cu13/lib/libcublasLt.so.13";
    const int plain = strcmp(name, "libcublasLt.so") == 0;
    const size_t n = strlen(name), end = sizeof by_path - 1;
    CHECK(flags == (RTLD_NOW | RTLD_LOCAL));
    if (name[0] == '/') { // only the planted one: what this machine has is no library of the shim
        if (!plant.folder || strncmp(name, plant.folder, strlen(plant.folder)) != 0 || n < end ||
            strcmp(name + n - end, by_path) != 0)
            return NULL;
    } else if ((!plain && strcmp(name, "libcublasLt.so.13") != 0) || plant.no_library > plain) {
        return NULL;
    }
    n_held++;
    return &plant;
}

void *dlsym(void *library, const char *name)
{
    static const struct {
        const char *name;
        void (*call)(void);
    } calls[] = {
#define CALL(name) {#name, (void (*)(void))name},
        CALLS(CALL)
#undef CALL
    };
    CHECK(library == &plant);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (strcmp(calls[i].name, name) == 0 &&
            (!plant.no_call || strcmp(plant.no_call, name) != 0))
            return (void *)(uintptr_t)calls[i].call;
    return NULL;
}

int dlclose(void *library)
{
    CHECK(library == &plant);
    n_held--;
    return 0;
}

size_t cublasLtGetVersion(void)
{
    return plant.version ? (size_t)plant.version : 130100;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_ALLOC_FAILED       ? "CUBLAS_STATUS_ALLOC_FAILED"
           : status == CUBLAS_STATUS_INVALID_VALUE    ? "CUBLAS_STATUS_INVALID_VALUE"
           : status == CUBLAS_STATUS_EXECUTION_FAILED ? "CUBLAS_STATUS_EXECUTION_FAILED"
           : status == CUBLAS_STATUS_NOT_SUPPORTED    ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                      : "CUBLAS_STATUS_SUCCESS";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    return make((void **)handle, sizeof **handle);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return drop(handle);
}

/* ---- descriptors ---- */

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    CHECK(compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F);
    return make((void **)desc, sizeof **desc);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return drop(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t n_bytes)
{
    const cublasStatus_t e = begin();
    CHECK(attribute == CUBLASLT_MATMUL_DESC_TRANSA && n_bytes == sizeof desc->turned_a);
    if (e == CUBLAS_STATUS_SUCCESS)
        memcpy(&desc->turned_a, value, n_bytes);
    return e;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t stride)
{
    const cublasStatus_t e = make((void **)layout, sizeof **layout);
    CHECK(stride >= (int64_t)rows);
    if (e == CUBLAS_STATUS_SUCCESS)
        **layout = (struct cublaslt_layout){type, rows, columns, stride};
    return e;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return drop(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t n_bytes)
{
    const cublasStatus_t e = begin();
    CHECK(attribute == CUBLASLT_MATRIX_LAYOUT_COLS && n_bytes == sizeof layout->columns);
    if (e == CUBLAS_STATUS_SUCCESS)
        memcpy(&layout->columns, value, n_bytes);
    return e;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    const cublasStatus_t e = make((void **)preference, sizeof **preference);
    if (e == CUBLAS_STATUS_SUCCESS)
        **preference = (struct cublaslt_preference){.schemes = 7, .align = {256, 256, 256, 256}};
    return e;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return drop(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t n_bytes)
{
    const cublasStatus_t e = begin();
    if (e != CUBLAS_STATUS_SUCCESS)
        return e;
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
        CHECK(n_bytes == sizeof preference->workspace);
        memcpy(&preference->workspace, value, n_bytes);
    } else if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) {
        CHECK(n_bytes == sizeof preference->schemes);
        memcpy(&preference->schemes, value, n_bytes);
    } else {
        const int side = (int)attribute - (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
        CHECK(side >= 0 && side < 4 && n_bytes == sizeof preference->align[0]);
        memcpy(&preference->align[side], value, n_bytes);
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- algorithms ---- */

static int fits(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d)
{
    return desc->turned_a == CUBLAS_OP_T && a->type == b->type &&
           (a->type == CUDA_R_16F || a->type == CUDA_R_16BF) && c == d && d->type == CUDA_R_32F &&
           a->rows == b->rows && a->columns == d->rows && b->columns == d->columns;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int n_asked,
                                              cublasLtMatmulHeuristicResult_t *results, int *n)
{
    const cublasStatus_t e = begin();
    CHECK(handle && n_asked > 1 && fits(desc, a, b, c, d));
    *n = 0;
    if (e != CUBLAS_STATUS_SUCCESS || plant.no_algorithm)
        return e != CUBLAS_STATUS_SUCCESS ? e : CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < 4; i++)
        CHECK(preference->align[i] <= ALIGN); // what stands in a layer is on no more
    if (plant.splits || plant.only_splits || preference->schemes)
        results[(*n)++].algo = (cublasLtMatmulAlgo_t){{MAGIC, 2, 1, 0}};
    if (!plant.only_splits)
        results[(*n)++].algo =
            (cublasLtMatmulAlgo_t){{MAGIC, 1, 0, plant.asked && b->columns != 256 ? 1 : 0}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    const cublasStatus_t e = begin();
    CHECK(handle && fits(desc, a, b, c, d) && algo->data[ALGO_MAGIC] == MAGIC);
    if (e != CUBLAS_STATUS_SUCCESS)
        return e;
    result->workspaceSize = (size_t)plant.workspace;
    return plant.rows_max && (int)b->columns > plant.rows_max ? CUBLAS_STATUS_NOT_SUPPORTED
                                                              : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void *value, size_t n_bytes, size_t *n_written)
{
    const uint32_t says =
        (uint32_t)
            algo->data[attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM ? ALGO_SPLITS : ALGO_SCHEME];
    const cublasStatus_t e = begin();
    CHECK(n_bytes == sizeof says && algo->data[ALGO_MAGIC] == MAGIC);
    if (e == CUBLAS_STATUS_SUCCESS) {
        memcpy(value, &says, sizeof says);
        *n_written = sizeof says;
    }
    return e;
}

/* ---- the matmul ---- */

/* A matrix of the device, all of it written, as f32. */
static float *numbers(const struct cublaslt_layout *l, const uint16_t *from)
{
    const int64_t n = (int64_t)l->columns * l->stride;
    uint16_t *half = malloc((size_t)n * sizeof *half);
    float *out = malloc((size_t)n * sizeof *out);
    CHECK(half && out);
    simt_get(half, from, n * (int64_t)sizeof *half);
    for (int64_t i = 0; i < n; i++)
        out[i] = l->type == CUDA_R_16F ? f16_to_f32(half[i]) : bf16_to_f32(half[i]);
    free(half);
    return out;
}

static float chain(const float *a, const float *b, int64_t from, int64_t to, int backwards)
{
    float sum = 0;
    for (int64_t i = from; i < to; i++) {
        const int64_t k = backwards ? to - 1 - (i - from) : i;
        sum = fmaf(a[k], b[k], sum);
    }
    return sum;
}

/* Both ends of the workspace, which no one else's bytes may be in. */
static void scribble(uint8_t *workspace, int64_t n_bytes)
{
    static uint8_t junk[4096];
    memset(junk, 0xff, sizeof junk);
    const int64_t n = n_bytes < (int64_t)sizeof junk ? n_bytes : (int64_t)sizeof junk;
    simt_put(workspace, junk, n);
    simt_put(workspace + n_bytes - n, junk, n);
}

static void multiply(const void *args)
{
    const struct work *w = args;
    const int64_t k = (int64_t)w->a_layout.rows, n = (int64_t)w->a_layout.columns;
    const int64_t m = (int64_t)w->b_layout.columns;
    float *a = numbers(&w->a_layout, w->a), *b = numbers(&w->b_layout, w->b);
    float *d = malloc((size_t)n * sizeof *d);
    CHECK(d);
    scribble(w->workspace, (int64_t)w->workspace_bytes);
    for (int64_t row = 0; row < m; row++) {
        const float *x = b + row * w->b_layout.stride;
        const int backwards = w->backwards || (plant.by_rows && m > plant.by_rows) ||
                              (plant.by_place && row == plant.by_place);
        for (int64_t o = 0; o < n; o++) {
            const float *weights = a + o * w->a_layout.stride;
            d[o] = w->splits > 1 ? chain(weights, x, 0, k / 2, 0) + chain(weights, x, k / 2, k, 0)
                                 : chain(weights, x, 0, k, backwards);
            if (plant.by_pad)
                d[o] += b[(m - 1) * w->b_layout.stride];
        }
        simt_put(w->d + row * w->d_layout.stride, d, n * (int64_t)sizeof *d);
    }
    free(a);
    free(b);
    free(d);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    const void *const places[] = {a, b, d, workspace};
    const cublasStatus_t e = begin();
    CHECK(handle && *(const float *)alpha == 1 && *(const float *)beta == 0 && c == d);
    CHECK(fits(desc, a_layout, b_layout, c_layout, d_layout) && algo->data[ALGO_MAGIC] == MAGIC);
    for (int i = 0; i < 4; i++)
        CHECK((uintptr_t)places[i] % ALIGN == 0);
    if (e != CUBLAS_STATUS_SUCCESS)
        return e;
    const struct work work = {a,
                              b,
                              d,
                              workspace,
                              workspace_bytes,
                              *a_layout,
                              *b_layout,
                              *d_layout,
                              (int)algo->data[ALGO_SPLITS],
                              (int)algo->data[ALGO_BACKWARDS]};
    return cudart_queue_call(stream, multiply, &work, sizeof work) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}
