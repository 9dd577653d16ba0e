/* tests/simt_lt_test.c - kernels/cuda/matmul_lt.cu by way of the CUDA device, over the cuBLASLt of
 * tests/simt/cudart: the bytes of a known order, what it must refuse to run on, and failing calls.
 */
#include "kernels/device.h"
#include "kernels/ref/ref.h"
#include "tests/ops_help.h"
#include "tests/simt/cudart/cudart.h"
#include "tests/simt/cudart/lt.h"
#include "tests/simt/simt.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum err sluice_device_open(int version, const char *arg, struct device **d);

#define GUARD 4096 // bytes on either side of the scratch

static const struct ops ASKS = {.compute = COMPUTE_BF16, .matmul = MATMUL_CUBLASLT};

static struct device *device_make(int sm, const struct cublaslt_plant *plant)
{
    const struct cudart_machine machine = {
        .n_devices = 1, .sm = sm, .memory_bytes = 256 << 20, .pin_bytes = 64 << 20};
    struct device *d = NULL;
    cudart_open(&machine);
    cublaslt_open(plant);
    simt_races(0); // nothing here shares anything
    if (sluice_device_open(DEVICE_VERSION, "", &d) != OK)
        fail_msg("%s", err_text());
    return d;
}

static void device_done(struct device *d)
{
    if (simt_error())
        fail_msg("%s", simt_error());
    device_close(d);
    assert_int_equal(cudart_held(), 0);
    assert_int_equal(cublaslt_held(), 0);
}

/* Rows of W as the device reads them, [n][row] of bf16 or f16, zeros behind k. */
static struct weight rows_make(struct device *d, int n, int k, uint64_t seed)
{
    const struct weight_form form = d->api->reads(d, COMPUTE_BF16, DTYPE_BF16);
    const int64_t row = weight_row_numbers(k);
    uint16_t *out = take(n * row * 2);
    assert_int_equal(form.layout, WEIGHT_ROWS);
    for (int r = 0; r < n; r++)
        for (int i = 0; i < k; i++) {
            const float x = noise(seed, r * k + i);
            out[r * row + i] = form.dtype == DTYPE_F16 ? f32_to_f16(x) : f32_to_bf16(x);
        }
    return (struct weight){form.dtype, n, k, out, WEIGHT_ROWS};
}

static float rounded(enum dtype t, float x)
{
    return t == DTYPE_F16 ? f16_to_f32(f32_to_f16(x)) : bf16_to_f32(f32_to_bf16(x));
}

/* One chain of fused multiply-adds over k, ascending. */
static void chains(const struct matmul_args *a, const struct matmul_part *part, float *y)
{
    const struct weight *w = &part->w;
    const uint16_t *rows = w->panels;
    const int64_t row = weight_row_numbers(w->k);
    for (int r = 0; r < a->m; r++)
        for (int o = 0; o < w->n; o++) {
            float sum = 0, *at = &y[r * part->y_stride + o];
            for (int i = 0; i < w->k; i++) {
                const uint16_t code = rows[o * row + i];
                sum = fmaf(w->dtype == DTYPE_F16 ? f16_to_f32(code) : bf16_to_f32(code),
                           rounded(w->dtype, a->x[r * a->x_stride + i]), sum);
            }
            *at = exact_finish(part, sum, o, *at);
        }
}

/* What a run takes of the device. */
struct rig {
    struct device *device;
    struct stream *stream;
    void *blocks[16];
    int n_blocks;
    void *pins[16];
    int n_pins;
};

static void *rig_alloc(struct rig *r, int64_t n_bytes)
{
    void *p = NULL;
    if (r->device->api->alloc(r->device, n_bytes, &p) != OK)
        return NULL;
    r->blocks[r->n_blocks++] = p;
    return p;
}

/* A pinned copy of from; NULL: of zeros. */
static void *rig_pin(struct rig *r, const void *from, int64_t n_bytes)
{
    void *p = aligned_alloc(4096, (size_t)round_up(n_bytes, 4096));
    assert_non_null(p);
    memset(p, 0, (size_t)n_bytes);
    if (from)
        memcpy(p, from, (size_t)n_bytes);
    (void)r->device->api->pin(r->device, p, n_bytes); // what is lost shows at the next wait
    r->pins[r->n_pins++] = p;
    return p;
}

/* A copy on the device. */
static void *rig_put(struct rig *r, const void *from, int64_t n_bytes)
{
    void *ram = rig_pin(r, from, n_bytes), *p = rig_alloc(r, n_bytes);
    if (p)
        r->device->api->copy(r->stream, p, ram, n_bytes);
    return p;
}

static void rig_close(struct rig *r)
{
    r->device->api->stream_close(r->stream);
    for (int i = 0; i < r->n_blocks; i++)
        r->device->api->release(r->device, r->blocks[i], 0);
    for (int i = 0; i < r->n_pins; i++) {
        r->device->api->unpin(r->device, r->pins[i], 0);
        free(r->pins[i]);
    }
}

static enum err rig_wait(struct rig *r)
{
    struct event *e;
    if (r->device->api->event_open(r->device, &e) != OK)
        return ERR_DEVICE;
    r->device->api->record(r->stream, e);
    const enum err err = r->device->api->event_wait(r->stream, e);
    r->device->api->event_close(e);
    return err;
}

/* Opens the library and makes ready for up to m rows by n_parts weights. */
static enum err prepare(struct rig *r, const struct matmul_args *a, int m)
{
    const struct device_library *l = r->device->api->library;
    const int64_t room_bytes = 6 << 20;
    char name[32];
    TRY(l->open(r->device, name, sizeof name));
    void *room = rig_alloc(r, room_bytes);
    for (int i = 0; i < a->n_parts; i++)
        TRY(l->prepare(r->stream, &a->parts[i].w, m, room, room_bytes));
    return OK;
}

/* a, whose pointers are the host's, on the device; parts[].y come from and go to y[]. */
static enum err multiply(struct rig *r, struct matmul_args a, float *const *y)
{
    const struct device_api *api = r->device->api;
    const int64_t bytes[MATMUL_PARTS] = {a.m * a.parts[0].y_stride * 4,
                                         a.m * a.parts[1].y_stride * 4,
                                         a.m * a.parts[2].y_stride * 4};
    uint8_t same[GUARD], *back[MATMUL_PARTS], *guards[2];
    int n_max = 0;
    a.x = rig_put(r, a.x, ((a.m - 1) * a.x_stride + a.parts[0].w.k) * 4);
    for (int i = 0; i < a.n_parts; i++) {
        struct matmul_part *p = &a.parts[i];
        p->y = rig_put(r, y[i], bytes[i]);
        p->bias = p->bias ? rig_put(r, p->bias, p->w.n * 4) : NULL;
        p->w.panels =
            rig_put(r, p->w.panels, weight_bytes(p->w.layout, p->w.dtype, p->w.n, p->w.k));
        n_max = p->w.n > n_max ? p->w.n : n_max;
        back[i] = rig_pin(r, NULL, bytes[i]);
    }
    const int64_t scratch = api->scratch->matmul(&ASKS, a.m, n_max, a.parts[0].w.k);
    uint8_t *around = rig_alloc(r, scratch + 2 * GUARD);
    if (!around)
        return ERR_DEVICE;
    api->fill(r->stream, around, 0x5a, GUARD);
    api->fill(r->stream, around + GUARD + scratch, 0x5a, GUARD);
    a.scratch = around + GUARD;
    struct ops ops = ASKS;
    ops.stream = r->stream;
    ops_run_matmul(&ops, &a);
    for (int i = 0; i < a.n_parts; i++)
        api->copy(r->stream, back[i], a.parts[i].y, bytes[i]);
    for (int i = 0; i < 2; i++) {
        guards[i] = rig_pin(r, NULL, GUARD);
        api->copy(r->stream, guards[i], around + i * (GUARD + scratch), GUARD);
    }
    TRY(rig_wait(r));
    for (int i = 0; i < a.n_parts; i++)
        memcpy(y[i], back[i], (size_t)bytes[i]);
    memset(same, 0x5a, sizeof same);
    for (int i = 0; i < 2; i++)
        assert_memory_equal(guards[i], same, GUARD);
    return OK;
}

/* The three parts of one call, each of another size and end. */
struct call {
    struct matmul_args args;
    float *x, *bias, *y[MATMUL_PARTS], *want[MATMUL_PARTS];
};

static void call_make(struct call *c, struct device *d, int m, int k)
{
    *c = (struct call){.x = noise_array(2, (int64_t)m * (k + 3), 1), .bias = noise_array(4, 99, 1)};
    c->args = (struct matmul_args){.x = c->x, .m = m, .x_stride = k + 3, .n_parts = MATMUL_PARTS};
    for (int i = 0; i < MATMUL_PARTS; i++) {
        const int n = 33 + 20 * i, stride = n + 5;
        c->y[i] = noise_array((uint64_t)i + 5, (int64_t)m * stride, 1);
        c->want[i] = noise_array((uint64_t)i + 5, (int64_t)m * stride, 1);
        c->args.parts[i] = (struct matmul_part){.w = rows_make(d, n, k, (uint64_t)i + 9),
                                                .bias = i % 2 ? c->bias : NULL,
                                                .y_stride = stride,
                                                .add = i == 1,
                                                .act = i};
        chains(&c->args, &c->args.parts[i], c->want[i]);
    }
}

static void call_free(struct call *c)
{
    for (int i = 0; i < MATMUL_PARTS; i++) {
        free((void *)(uintptr_t)c->args.parts[i].w.panels);
        free(c->y[i]);
        free(c->want[i]);
    }
    free(c->x);
    free(c->bias);
}

/* From opening to the bytes. OK, or the first error; nothing is left. */
static enum err play(struct device *d, int m, int m_max, int k)
{
    struct rig r = {.device = d};
    struct call c;
    char text[1024] = "";
    call_make(&c, d, m, k);
    enum err e = d->api->stream_open(d, &r.stream);
    if (e == OK)
        e = prepare(&r, &c.args, m_max);
    if (e == OK)
        e = multiply(&r, c.args, c.y);
    for (int i = 0; e == OK && i < MATMUL_PARTS; i++)
        assert_same_bits(c.y[i], c.want[i], m * c.args.parts[i].y_stride * 4, "y");
    snprintf(text, sizeof text, "%s", err_text());
    rig_close(&r);
    call_free(&c);
    return e == OK ? OK : (fail)(e, "%s", text); // cmocka's fail() is a macro
}

static void played(const struct cublaslt_plant *plant, int sm, int m, int m_max, int k)
{
    struct device *d = device_make(sm, plant);
    if (play(d, m, m_max, k) != OK)
        fail_msg("m %d, k %d, sm_%d: %s", m, k, sm, err_text());
    device_done(d);
}

static void test_the_bytes_of_its_order(void **state)
{
    (void)state;
    static const int ms[] = {1, 63, 64, 65, 200, 256};
    for (int i = 0; i < 6; i++)
        played(NULL, i % 2 ? 75 : 80, ms[i], 256, i % 3 ? 100 : 64);
    played(NULL, 90, 5, 5, 1);
}

/* Whatever is offered, and whatever m it is made ready for: the same order. */
static void test_the_choice_is_not_the_job_s(void **state)
{
    (void)state;
    const struct cublaslt_plant splits = {.splits = 1}, asked = {.asked = 1};
    played(&splits, 80, 70, 128, 100);
    played(&asked, 80, 10, 64, 100);
    played(&asked, 80, 10, 256, 100);
}

static void refused(const struct cublaslt_plant *plant, const char *words)
{
    struct device *d = device_make(80, plant);
    const enum err e = play(d, 10, 256, 100);
    if (e != ERR_DEVICE || !strstr(err_text(), words) || !strstr(err_text(), "--matmul own"))
        fail_msg("%d: '%s', not '%s'", (int)e, err_text(), words);
    device_done(d);
}

/* Packages of Python put the library where the loader does not look. */
static void test_a_library_of_python(void **state)
{
    static const char at[] = "/lib/python3.11/site-packages/nvidia/cu13/lib/libcublasLt.so.13";
    char folder[] = "/tmp/sluice-lt-XXXXXX", path[256];
    (void)state;
    assert_non_null(mkdtemp(folder));
    for (const char *end = strchr(at + 1, '/'); end; end = strchr(end + 1, '/')) {
        snprintf(path, sizeof path, "%s%.*s", folder, (int)(end - at), at);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    snprintf(path, sizeof path, "%s%s", folder, at);
    FILE *f = fopen(path, "wx");
    assert_non_null(f);
    assert_int_equal(fclose(f), 0);
    const struct cublaslt_plant plant = {.folder = folder, .no_library = 2};
    refused(&plant, "libcublasLt.so.13 not found");
    assert_int_equal(setenv("VIRTUAL_ENV", folder, 1), 0);
    played(&plant, 80, 10, 64, 64);
    assert_int_equal(unsetenv("VIRTUAL_ENV"), 0);
    assert_int_equal(unlink(path), 0);
    for (char *end = strrchr(path, '/'); strlen(path) > strlen(folder); end = strrchr(path, '/')) {
        *end = 0;
        assert_int_equal(rmdir(path), 0);
    }
}

static void test_a_library_that_is_not_there(void **state)
{
    (void)state;
    const struct cublaslt_plant plain = {.no_library = 1};
    played(&plain, 80, 10, 64, 64);
    refused(&(struct cublaslt_plant){.no_library = 2}, "libcublasLt.so.13 not found");
    refused(&(struct cublaslt_plant){.version = 120800}, "is version 12, sluice needs 13");
    refused(&(struct cublaslt_plant){.no_call = "cublasLtMatmul"}, "has no cublasLtMatmul");
    const struct cublaslt_plant old = {.version = 120800};
    struct device *d = device_make(80, &old);
    char name[32];
    for (int i = 0; i < 2; i++) // asked for again, it is as it was
        assert_int_equal(d->api->library->open(d, name, sizeof name), ERR_DEVICE);
    cublaslt_open(NULL);
    for (int i = 0; i < 2; i++)
        assert_int_equal(d->api->library->open(d, name, sizeof name), OK);
    assert_string_equal(name, "cublaslt 13.1.0");
    // It reads nothing but rows; the device's own matmuls decode what is stored.
    assert_int_equal(d->api->reads(d, COMPUTE_BF16, DTYPE_Q4).layout, WEIGHT_ROWS);
    device_done(d);
}

static void test_no_algorithm(void **state)
{
    (void)state;
    refused(&(struct cublaslt_plant){.no_algorithm = 1},
            "cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_NOT_SUPPORTED");
    refused(&(struct cublaslt_plant){.only_splits = 1},
            "no algorithm without split-K for n 33, k 100");
    refused(&(struct cublaslt_plant){.rows_max = 128},
            "n 33, k 100 does not take 192 rows: CUBLAS_STATUS_NOT_SUPPORTED");
    refused(&(struct cublaslt_plant){.workspace = 64 << 20}, "it needs more workspace");
}

/* What would let a batch or a neighbour show in the answer. */
static void test_bytes_that_depend_on_other_rows(void **state)
{
    (void)state;
    refused(&(struct cublaslt_plant){.by_rows = 64}, "64 rows give ");
    refused(&(struct cublaslt_plant){.by_rows = 192}, "64 rows give ");
    refused(&(struct cublaslt_plant){.by_place = 40}, "64 rows at another address give ");
    refused(&(struct cublaslt_plant){.by_place = 230}, "256 rows at another address give ");
    refused(&(struct cublaslt_plant){.by_pad = 1}, "64 rows give ");
}

static void test_ready_is_ready(void **state)
{
    (void)state;
    struct device *d = device_make(80, NULL);
    struct rig r = {.device = d};
    struct weight w = rows_make(d, 40, 64, 3);
    const struct matmul_args args = {.parts = {{.w = w}}, .n_parts = 1};
    assert_int_equal(d->api->stream_open(d, &r.stream), OK);
    assert_int_equal(prepare(&r, &args, 100), OK);
    int64_t calls = cublaslt_calls();
    assert_int_equal(prepare(&r, &args, 128), OK); // as many, filled up
    assert_int_equal(cublaslt_calls(), calls);
    assert_int_equal(prepare(&r, &args, 129), OK);
    assert_true(cublaslt_calls() > calls);
    calls = cublaslt_calls();
    assert_int_equal(prepare(&r, &args, 1), OK);
    assert_int_equal(cublaslt_calls(), calls);
    w.n = 41;
    void *room = rig_alloc(&r, 4096);
    assert_int_equal(d->api->library->prepare(r.stream, &w, 1, room, 4096), ERR_FIT);
    assert_non_null(strstr(err_text(), "--matmul own"));
    rig_close(&r);
    free((void *)(uintptr_t)w.panels);
    device_done(d);
}

static void test_any_call_of_it_may_fail(void **state)
{
    (void)state;
    struct device *d = device_make(80, NULL);
    assert_int_equal(play(d, 3, 64, 64), OK);
    const int64_t n_calls = cublaslt_calls();
    device_done(d);
    assert_in_range(n_calls, 40, 200);
    for (int64_t n = 1; n <= n_calls; n += sweep(3, 1)) {
        d = device_make(80, NULL);
        cublaslt_fail_call(n, n % 2 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_ALLOC_FAILED);
        const enum err e = play(d, 3, 64, 64);
        if (e != ERR_DEVICE || strncmp(err_text(), "cuda: ", 6) != 0)
            fail_msg("call %d: %d, %s", (int)n, (int)e, err_text());
        device_close(d); // lost, or not
        assert_int_equal(cublaslt_held(), 0);
    }
}

static void test_any_loss_is_told(void **state)
{
    (void)state;
    struct device *d = device_make(80, NULL);
    const int64_t opened = cudart_calls();
    assert_int_equal(play(d, 3, 64, 64), OK);
    const int64_t n_calls = cudart_calls() - opened, n_commands = cudart_commands();
    device_done(d);
    for (int64_t n = 1; n <= n_calls + n_commands; n += sweep(3, 1)) {
        d = device_make(80, NULL);
        if (n <= n_calls)
            cudart_fail_call(n, cudaErrorIllegalAddress, 1);
        else
            cudart_fail_command(n - n_calls);
        const enum err e = play(d, 3, 64, 64);
        if (e != OK && (e != ERR_DEVICE || strncmp(err_text(), "cuda: ", 6) != 0))
            fail_msg("%d: %d, %s", (int)n, (int)e, err_text());
        assert_true(e != OK || n > n_calls - 60); // what is given back comes last
        device_close(d);
        assert_int_equal(cublaslt_held(), 0);
    }
}

static int setup(void **state)
{
    (void)state;
    log_level_max = LOG_ERROR; // losses are many
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_bytes_of_its_order),
        cmocka_unit_test(test_the_choice_is_not_the_job_s),
        cmocka_unit_test(test_a_library_of_python),
        cmocka_unit_test(test_a_library_that_is_not_there),
        cmocka_unit_test(test_no_algorithm),
        cmocka_unit_test(test_bytes_that_depend_on_other_rows),
        cmocka_unit_test(test_ready_is_ready),
        cmocka_unit_test(test_any_call_of_it_may_fail),
        cmocka_unit_test(test_any_loss_is_told),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
