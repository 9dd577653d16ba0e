/* bench/peers/matmul_libs.c - our matmul beside oneDNN's (bf16) and OpenBLAS's (f32), the same
 * shapes, in one process. Prints rows lib,isa,threads,n,k,m,gflops.
 *
 * Not built by make. Needs Debian's libdnnl-dev (3.x: Debian 13 or later) and libopenblas-dev; at
 * the top of the tree, after `make build/libsluice.a`:
 *   gcc -std=c17 -O2 -D_GNU_SOURCE -I. -I/usr/include/x86_64-linux-gnu bench/peers/matmul_libs.c \
 *     build/libsluice.a -o build/matmul_libs -ldnnl -lopenblas -fopenmp -ljansson -lpcre2-8 \
 *     -lutf8proc -luring -lhwloc -lzstd -lisal -ldl -lm -pthread && build/matmul_libs [THREADS
 * [ROUNDS]]
 *
 * What is fair: every lib has its weights in the order it likes best, 128 MB of copies of them, and
 * takes turns with the others, with a pause in which their threads fall asleep. oneDNN gets its
 * inputs as bf16; ours rounds them from f32 within the time. With one thread the clock is the
 * thread's own, so that neighbours on the machine do not count. A lib that fails is a CHECK. */
#include <cblas.h>
#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/ops.h"

#define COPIES_BYTES (128 << 20)
#define WINDOW_NS    100000000
#define PAUSE_NS     60000000
#define CALLS_MAX    4000

/* One cell: a shape, and its operands in every form. */
struct cell {
    int n, k, m, threads;
    int n_copies;
    struct ops ops;
    float *x;       // [m, k]
    float *y;       // [m, n]
    void *x16;      // [m, k] bf16
    void *scratch;  // of ours
    uint8_t *bytes; // the copies
    int64_t copy_bytes;
    // oneDNN
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t primitive;
    dnnl_memory_t src, weights, dst;
};

static void *take(int64_t bytes)
{
    void *p = aligned_alloc(4096, (size_t)round_up(max_i64(bytes, 1), 4096));
    CHECK(p != NULL);
    return p;
}

/* Fills small numbers in any format of 2 or 4 bytes. */
static void fill(void *p, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++)
        ((uint8_t *)p)[i] = (uint8_t)(0x30 + mix64((uint64_t)i) % 12);
}

static void copies_make(struct cell *c, int64_t copy_bytes)
{
    c->copy_bytes = round_up(copy_bytes, 4096);
    c->n_copies = (int)max_i64(COPIES_BYTES / c->copy_bytes, 1);
    c->bytes = take(c->copy_bytes * c->n_copies);
    fill(c->bytes, c->copy_bytes * c->n_copies);
}

static void ours_call(struct cell *c, int copy)
{
    enum dtype t = c->ops.compute == COMPUTE_BF16 ? DTYPE_BF16 : DTYPE_F32;
    struct matmul_args a = {
        .x = c->x,
        .m = c->m,
        .x_stride = c->k,
        .parts =
            {{.w = {.dtype = t, .n = c->n, .k = c->k, .panels = c->bytes + copy * c->copy_bytes},
              .y = c->y,
              .y_stride = c->n}},
        .n_parts = 1,
        .scratch = c->scratch};
    ops_run_matmul(&c->ops, &a);
}

static void openblas_call(struct cell *c, int copy)
{
    const float *w = (const float *)(const void *)(c->bytes + copy * c->copy_bytes);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, c->m, c->n, c->k, 1, c->x, c->k, w, c->k,
                0, c->y, c->n);
}

static void dnnl_call(struct cell *c, int copy)
{
    dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, c->src}, {DNNL_ARG_WEIGHTS, c->weights}, {DNNL_ARG_DST, c->dst}};
    dnnl_memory_set_data_handle(c->weights, c->bytes + copy * c->copy_bytes);
    CHECK(dnnl_primitive_execute(c->primitive, c->stream, 3, args) == dnnl_success);
    dnnl_stream_wait(c->stream);
}

static int64_t now_ns(const struct cell *c)
{
    struct timespec t;
    clock_gettime(c->threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The GFLOP/s of the fastest tenth of calls. */
static double measure(struct cell *c, void (*call)(struct cell *c, int copy))
{
    static double times[CALLS_MAX];
    int n = 0;
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    call(c, 0);
    const int64_t start_ns = clock_ns();
    do {
        const int64_t before_ns = now_ns(c);
        call(c, (n + 1) % c->n_copies);
        times[n++] = (double)(now_ns(c) - before_ns);
    } while (n < CALLS_MAX && (n < 3 || clock_ns() - start_ns < WINDOW_NS));
    qsort(times, (size_t)n, sizeof *times, ascending);
    return 2.0 * c->m * c->n * c->k / times[n / 10];
}

/* Creates the primitive with its preferred order of weights, and copies in that order. */
static void dnnl_open(struct cell *c)
{
    dnnl_memory_desc_t src, any, dst;
    dnnl_primitive_desc_t pd;
    const dnnl_dims_t x = {c->m, c->k}, w = {c->k, c->n}, y = {c->m, c->n};
    CHECK(dnnl_engine_create(&c->engine, dnnl_cpu, 0) == dnnl_success);
    dnnl_stream_create(&c->stream, c->engine, dnnl_stream_default_flags);
    dnnl_memory_desc_create_with_tag(&src, 2, x, dnnl_bf16, dnnl_ab);
    dnnl_memory_desc_create_with_tag(&any, 2, w, dnnl_bf16, dnnl_format_tag_any);
    dnnl_memory_desc_create_with_tag(&dst, 2, y, dnnl_f32, dnnl_ab);
    CHECK(dnnl_matmul_primitive_desc_create(&pd, c->engine, src, any, NULL, dst, NULL) ==
          dnnl_success);
    const_dnnl_memory_desc_t best = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    dnnl_primitive_create(&c->primitive, pd);
    copies_make(c, (int64_t)dnnl_memory_desc_get_size(best));
    dnnl_memory_create(&c->src, src, c->engine, c->x16);
    dnnl_memory_create(&c->weights, best, c->engine, c->bytes);
    dnnl_memory_create(&c->dst, dst, c->engine, c->y);
    dnnl_memory_desc_destroy(src);
    dnnl_memory_desc_destroy(any);
    dnnl_memory_desc_destroy(dst);
    dnnl_primitive_desc_destroy(pd);
}

static void dnnl_close(struct cell *c)
{
    dnnl_memory_destroy(c->src);
    dnnl_memory_destroy(c->weights);
    dnnl_memory_destroy(c->dst);
    dnnl_primitive_destroy(c->primitive);
    dnnl_stream_destroy(c->stream);
    dnnl_engine_destroy(c->engine);
}

static void row(const struct cell *c, const char *lib, const char *isa, double gflops)
{
    printf("%s,%s,%d,%d,%d,%d,%.1f\n", lib, isa, c->threads, c->n, c->k, c->m, gflops);
    fflush(stdout);
}

static double best_of(double a, double b)
{
    return a > b ? a : b;
}

/* Compares bf16 with oneDNN, f32 with OpenBLAS; each pair takes turns. */
static void cell_run(struct cell *c, int rounds)
{
    char isa[64];
    snprintf(isa, sizeof isa, "%s", isa_name(c->ops.isa));
    double ours = 0, theirs = 0, ours_f32 = 0, theirs_f32 = 0;
    struct cell other = *c;
    dnnl_open(&other);
    c->ops.compute = COMPUTE_BF16;
    copies_make(c, dtype_panels_bytes(DTYPE_BF16, c->n, c->k));
    for (int i = 0; i < rounds; i++) {
        ours = best_of(ours, measure(c, ours_call));
        theirs = best_of(theirs, measure(&other, dnnl_call));
    }
    dnnl_close(&other);
    free(other.bytes);
    free(c->bytes);
    c->ops.compute = COMPUTE_F32;
    copies_make(c, dtype_panels_bytes(DTYPE_F32, c->n, c->k)); // OpenBLAS: the same bytes as rows
    for (int i = 0; i < rounds; i++) {
        ours_f32 = best_of(ours_f32, measure(c, ours_call));
        theirs_f32 = best_of(theirs_f32, measure(c, openblas_call));
    }
    free(c->bytes);
    row(c, "sluice bf16", isa, ours);
    snprintf(isa, sizeof isa, "0x%x", (unsigned)dnnl_get_effective_cpu_isa());
    row(c, "oneDNN bf16", isa, theirs);
    row(c, "sluice f32", isa_name(c->ops.isa), ours_f32);
    row(c, "OpenBLAS f32", openblas_get_corename(), theirs_f32);
}

int main(int argc, char **argv)
{
    static const int shapes[][2] = {{576, 576},   {1536, 576},  {576, 1536}, {3072, 3072},
                                    {8192, 3072}, {3072, 8192}, {49152, 576}};
    static const int rows[] = {1, 4, 16, 64, 256, 1024};
    const int threads = argc > 1 ? (int)strtol(argv[1], NULL, 10) : omp_get_num_procs();
    const int rounds = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 3;
    struct pool *pool;
    CHECK(threads > 0 && rounds > 0 && pool_open(&pool, threads, NULL) == OK);
    omp_set_num_threads(threads);
    openblas_set_num_threads(threads);
    printf("lib,isa,threads,n,k,m,gflops\n");
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            struct cell c = {.n = shapes[s][0],
                             .k = shapes[s][1],
                             .m = rows[r],
                             .threads = threads,
                             .ops = {.isa = isa_best(), .compute = COMPUTE_F32, .pool = pool}};
            c.x = take((int64_t)c.m * c.k * 4);
            c.x16 = take((int64_t)c.m * c.k * 2);
            c.y = take((int64_t)c.m * c.n * 4);
            c.scratch = take(matmul_scratch_bytes(&c.ops, c.m, c.n, c.k));
            fill(c.x, (int64_t)c.m * c.k * 4);
            fill(c.x16, (int64_t)c.m * c.k * 2);
            cell_run(&c, rounds);
            free(c.x);
            free(c.x16);
            free(c.y);
            free(c.scratch);
        }
    pool_close(pool);
    return 0;
}
