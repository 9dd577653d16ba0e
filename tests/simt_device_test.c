/* tests/simt_device_test.c - kernels/cuda/device.cu over the CUDA runtime of tests/simt/cudart: the
 * contract of kernels/device.h, whichever call or command fails. */
#include "kernels/device.h"
#include "tests/ops_help.h"
#include "tests/rig.h"
#include "tests/simt/cudart/cudart.h"
#include "tests/simt/simt.h"

#include <pthread.h>

enum err sluice_device_open(int version, const char *arg, struct device **d);
enum err sluice_device_count(int version, struct device_place places[DEVICES_MAX], int *n);

#define N_SEEDS 8

static const struct cudart_machine machine = {
    .n_devices = 1, .sm = 80, .memory_bytes = 64 << 20, .pin_bytes = 64 << 20};

static struct device *device_make(struct cudart_machine m, const char *arg)
{
    struct device *d = NULL;
    cudart_open(&m);
    if (sluice_device_open(DEVICE_VERSION, arg, &d) != OK)
        fail_msg("%s", err_text());
    return d;
}

static struct device *device_seeded(uint64_t seed)
{
    struct cudart_machine m = machine;
    m.seed = seed;
    return device_make(m, "");
}

static void device_done(struct device *d)
{
    if (simt_error())
        fail_msg("%s", simt_error());
    assert_int_equal(cudart_held(), 0);
    device_close(d);
}

/* ---- opening ---- */

static void refused(struct cudart_machine m, int version, const char *arg, enum err want,
                    const char *words)
{
    struct device *d = NULL;
    cudart_open(&m);
    if (strcmp(words, "without kernels") == 0) // the fifth call asks for one
        cudart_fail_call(5, cudaErrorNoKernelImageForDevice, 0);
    enum err e = sluice_device_open(version, arg, &d);
    if (e != want || d || !strstr(err_text(), words))
        fail_msg("'%s': %d, %s; not '%s'", arg, (int)e, err_text(), words);
}

static void test_what_cannot_be_opened_says_why(void **state)
{
    (void)state;
    struct cudart_machine m = machine;
    refused(m, DEVICE_VERSION + 1, "", ERR_DEVICE, "another version");
    refused(m, DEVICE_VERSION, "x", ERR_USAGE, "cuda:x");
    refused(m, DEVICE_VERSION, "-1", ERR_USAGE, "cuda:-1");
    refused(m, DEVICE_VERSION, "0 ", ERR_USAGE, "cuda:0 ");
    refused(m, DEVICE_VERSION, "1", ERR_DEVICE, "cuda:1: no such card");
    refused(m, DEVICE_VERSION, "", ERR_DEVICE, "without kernels");
    m.sm = 70;
    refused(m, DEVICE_VERSION, "", ERR_DEVICE, "sm_70, sluice needs sm_75");
    m = machine;
    m.hides_ram = 1;
    refused(m, DEVICE_VERSION, "", ERR_DEVICE, "cannot read pinned RAM");
    m = machine;
    m.n_devices = 0;
    refused(m, DEVICE_VERSION, "", ERR_DEVICE, "no CUDA-capable device is detected");
    m.no_device = cudaErrorInsufficientDriver;
    refused(m, DEVICE_VERSION, "", ERR_DEVICE, "no NVIDIA driver here");
    m.driver = 11000;
    refused(m, DEVICE_VERSION, "", ERR_DEVICE, "driver version is insufficient");
}

static void test_devices_are_counted_and_have_a_place(void **state)
{
    (void)state;
    struct device_place places[DEVICES_MAX];
    struct cudart_machine m = machine;
    int n = 0;
    m.n_devices = 3;
    cudart_open(&m);
    assert_int_equal(sluice_device_count(DEVICE_VERSION, places, &n), OK);
    assert_int_equal(n, 3);
    assert_string_equal(places[2].pci, "0000:03:00.0");
    cudart_fail_call(3, cudaErrorUnknown, 0); // the second address
    assert_int_equal(sluice_device_count(DEVICE_VERSION, places, &n), OK);
    assert_string_equal(places[1].pci, "");
    assert_int_equal(sluice_device_count(DEVICE_VERSION + 1, places, &n), ERR_DEVICE);
    m.n_devices = 0;
    cudart_open(&m);
    assert_int_equal(sluice_device_count(DEVICE_VERSION, places, &n), ERR_DEVICE);
    assert_non_null(strstr(err_text(), "no CUDA-capable device"));
}

static void test_what_it_says_of_itself(void **state)
{
    (void)state;
    struct cudart_machine m = machine;
    struct device_info info;
    m.n_devices = 3;
    m.sm = 89;
    struct device *d = device_make(m, "2");
    assert_int_equal(d->api->info(d, &info), OK);
    assert_string_equal(info.model, "Shim 2, sm_89");
    assert_int_equal(info.memory_bytes, m.memory_bytes);
    assert_int_equal(info.free_bytes, m.memory_bytes);
    assert_false(d->api->unified);
    assert_string_equal(d->api->name, "cuda");
    device_done(d);
}

/* ---- memory ---- */

/* What was refused before is not taken for an error of this launch. */
static void launch_is_well(struct device *d, void *mem)
{
    struct stream *s;
    struct event *e;
    assert_int_equal(d->api->stream_open(d, &s), OK);
    assert_int_equal(d->api->event_open(d, &e), OK);
    const struct ops ops = {.stream = s};
    d->api->fill(s, mem, 0, 64);
    ops_run_gate_mul(&ops, &(struct gate_mul_args){.gate = mem, .up = mem, .m = 1, .n = 16});
    d->api->record(s, e);
    if (d->api->event_wait(s, e) != OK)
        fail_msg("%s", err_text());
    d->api->stream_close(s);
    d->api->event_close(e);
}

static void test_memory(void **state)
{
    (void)state;
    struct device *d = device_seeded(0);
    void *p[3], *none = p;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(d->api->alloc(d, 4096 * (i + 1), &p[i]), OK);
        assert_int_equal((uintptr_t)p[i] % 4096, 0);
    }
    assert_int_equal(d->api->alloc(d, machine.memory_bytes, &none), ERR_FIT);
    assert_null(none);
    assert_non_null(strstr(err_text(), "--mem-device"));
    launch_is_well(d, p[0]);
    d->api->release(d, p[1], 8192);
    d->api->release(d, NULL, 0);
    assert_int_equal(d->api->alloc(d, 4096, &p[1]), OK); // what did not fit is no loss
    for (int i = 0; i < 3; i++)
        d->api->release(d, p[i], 0);
    device_done(d);
}

static void test_what_cannot_be_pinned(void **state)
{
    (void)state;
    static uint8_t ram[2][4096];
    struct cudart_machine m = machine;
    void *mem;
    m.pin_bytes = 4096;
    struct device *d = device_make(m, "");
    assert_int_equal(d->api->pin(d, ram[0], 4096), OK);
    assert_int_equal(d->api->pin(d, ram[1], 4096), ERR_DEVICE);
    assert_non_null(strstr(err_text(), "cannot be pinned: out of memory"));
    assert_non_null(strstr(err_text(), "ulimit -l"));
    assert_int_equal(d->api->alloc(d, 4096, &mem), OK);
    launch_is_well(d, mem);
    d->api->release(d, mem, 4096);
    d->api->unpin(d, ram[0], 4096);
    assert_int_equal(d->api->pin(d, ram[1], 4096), OK);
    d->api->unpin(d, ram[1], 4096);
    device_done(d);
}

/* ---- ops ---- */

/* y [m, n] = x . W^T: x, W's panels and zeros copied in on one stream, W made what the device
 * reads, multiplied on another, copied out on a third, ordered by events alone. */
static void multiply_on(struct device *d, enum compute compute, const struct weight *w,
                        const float *x, int m, float *y)
{
    const struct device_api *api = d->api;
    const struct weight_form form = api->reads(d, compute, w->dtype);
    const int64_t x_bytes = (int64_t)m * w->k * 4, y_bytes = (int64_t)m * w->n * 4;
    const int64_t w_bytes = dtype_panels_bytes(w->dtype, w->n, w->k);
    const struct ops asks = {.compute = compute};
    const int64_t sizes[5] = {x_bytes, w_bytes, y_bytes, api->scratch->matmul(&asks, m, w->n, w->k),
                              weight_bytes(form.layout, form.dtype, w->n, w->k)};
    struct stream *s[3];
    struct event *e[3];
    void *mem[5];
    float *ram = take(x_bytes);
    for (int i = 0; i < 5; i++)
        assert_int_equal(api->alloc(d, max_i64(sizes[i], 1), &mem[i]), OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(api->stream_open(d, &s[i]), OK);
        assert_int_equal(api->event_open(d, &e[i]), OK);
    }
    memcpy(ram, x, (size_t)x_bytes);
    assert_int_equal(api->pin(d, ram, x_bytes), OK);
    assert_int_equal(api->pin(d, (void *)(uintptr_t)w->panels, w_bytes), OK);
    assert_int_equal(api->pin(d, y, y_bytes), OK);
    api->copy(s[0], mem[0], ram, x_bytes);
    api->copy(s[0], mem[1], w->panels, w_bytes);
    api->fill(s[0], mem[2], 0xff, y_bytes);
    api->record(s[0], e[0]);
    api->stream_wait(s[1], e[0]);
    const struct ops ops = {.compute = compute, .stream = s[1]};
    struct weight seen = {form.dtype, w->n, w->k, mem[1], form.layout};
    if (form.layout == WEIGHT_ROWS) {
        struct weight stored = *w;
        stored.panels = mem[1];
        seen.panels = mem[4];
        ops_run_decode(&ops, &(struct decode_args){stored, form.dtype, mem[4], form.layout});
    }
    struct matmul_args args = {.x = mem[0],
                               .m = m,
                               .x_stride = w->k,
                               .parts = {{.w = seen, .y = mem[2], .y_stride = w->n}},
                               .n_parts = 1,
                               .scratch = mem[3]};
    ops_run_matmul(&ops, &args);
    args = (struct matmul_args){0}; // launch has read them
    api->record(s[1], e[1]);
    api->stream_wait(s[2], e[1]);
    api->copy(s[2], y, mem[2], y_bytes);
    api->record(s[2], e[2]);
    enum err err = api->event_wait(s[2], e[2]);
    if (err != OK)
        fail_msg("%s", err_text());
    for (int i = 0; i < 3; i++) {
        api->stream_close(s[i]);
        api->event_close(e[i]);
    }
    api->unpin(d, ram, x_bytes);
    api->unpin(d, (void *)(uintptr_t)w->panels, w_bytes);
    api->unpin(d, y, y_bytes);
    for (int i = 0; i < 5; i++)
        api->release(d, mem[i], 0);
    free(ram);
}

/* What the device says that its matmuls read is what they read, for every format that is stored. */
static void test_weights_in_the_form_it_reads(void **state)
{
    (void)state;
    enum { M = 3, N = 40, K = 256 };
    static const int sms[] = {75, 80, 90};
    float *x = noise_array(1, M * K, 1);
    for (int i = 0; i < N_DTYPES * N_COMPUTES; i++) {
        const enum dtype t = (enum dtype)(i / N_COMPUTES);
        const struct ops exact = {.isa = ISA_EXACT, .compute = (enum compute)(i % N_COMPUTES)};
        float want[M * N], got[M * N];
        uint8_t *rows = take(N * dtype_row_bytes(t, K));
        if (t == DTYPE_BF12)
            for (int r = 0; r < N * K; r++)
                ((uint16_t *)(void *)rows)[r] = f32_to_bf16(noise(3, r));
        for (int r = 0; r < N && t != DTYPE_BF12; r++)
            fill_row(t, (uint64_t)r, K, rows + r * dtype_row_bytes(t, K));
        struct weight w = weight_pack(t, N, K, rows);
        struct matmul_args args = {.x = x,
                                   .m = M,
                                   .x_stride = K,
                                   .parts = {{.w = w, .y = want, .y_stride = N}},
                                   .n_parts = 1};
        args.scratch = take(matmul_scratch_bytes(&exact, M, N, K));
        ops_run_matmul(&exact, &args);
        struct cudart_machine m = machine;
        simt_arch_set(sms[i % 3]);
        m.sm = simt_arch(); // PTX is of one architecture
        struct device *d = device_make(m, "");
        multiply_on(d, exact.compute, &w, x, M, got);
        const struct weight_form form = d->api->reads(d, exact.compute, t);
        const int narrow = dtype_info(t)->block > 1 || t == DTYPE_BF12;
        assert_int_equal(form.layout == WEIGHT_PANELS, exact.compute == COMPUTE_F32 || narrow);
        assert_true(form.layout == WEIGHT_ROWS || form.dtype == t);
        assert_int_equal(form.as_f16 && form.layout == WEIGHT_PANELS,
                         m.sm == 75 && exact.compute != COMPUTE_F32 && narrow &&
                             !(exact.compute == COMPUTE_INT8 && (t == DTYPE_Q8 || t == DTYPE_Q4)));
        if (exact.compute == COMPUTE_F32 ||
            (exact.compute == COMPUTE_INT8 && (t == DTYPE_Q8 || t == DTYPE_Q4)))
            assert_same_bits(got, want, sizeof want, dtype_info(t)->name);
        else
            assert_close(got, want, M * N, 0.2, dtype_info(t)->name);
        device_done(d);
        free(args.scratch);
        free((void *)(uintptr_t)w.panels);
    }
    free(x);
}

static void test_streams_and_events(void **state)
{
    (void)state;
    enum { M = 3, N = 32, K = 8 };
    float want[M * N], got[M * N], *x = noise_array(1, M * K, 1);
    uint8_t *rows = (uint8_t *)noise_array(2, N * K, 1);
    struct weight w = weight_pack(DTYPE_F32, N, K, rows);
    for (int r = 0; r < M; r++)
        for (int o = 0; o < N; o++) {
            float sum = 0;
            for (int k = 0; k < K; k++)
                sum = fmaf(x[r * K + k],
                           ((const float *)w.panels)[o / 32 * 32 * K + k * 32 + o % 32], sum);
            want[r * N + o] = sum;
        }
    for (uint64_t seed = 0; seed < 4 * N_SEEDS; seed++) {
        struct device *d = device_seeded(seed);
        memset(got, 0xff, sizeof got);
        multiply_on(d, COMPUTE_F32, &w, x, M, got);
        assert_same_bits(got, want, sizeof want, "y");
        device_done(d);
    }
    free(x);
    free((void *)(uintptr_t)w.panels);
}

/* Copies between ops: any size and alignment, RAM to device to device to RAM; small ones are made
 * by a kernel. */
static void test_copies_between_ops(void **state)
{
    (void)state;
    enum { ROOM = 1 << 17 };
    static const int sizes[] = {1, 3, 4, 12, 16, 64, 4096, 4100, 65532, 65535, 65536, 70000};
    static _Alignas(64) uint8_t ram[ROOM], back[ROOM];
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
        struct device *d = device_seeded(seed);
        struct stream *s;
        struct event *e;
        void *mem[2];
        for (int i = 0; i < 2; i++)
            assert_int_equal(d->api->alloc(d, ROOM, &mem[i]), OK);
        assert_int_equal(d->api->pin(d, ram, ROOM), OK);
        assert_int_equal(d->api->pin(d, back, ROOM), OK);
        assert_int_equal(d->api->stream_open(d, &s), OK);
        assert_int_equal(d->api->event_open(d, &e), OK);
        const struct ops ops = {.stream = s};
        struct gate_mul_args args = {.gate = mem[0], .up = mem[0], .m = 1, .n = 16};
        ops_fill(&ops, mem[0], 0, ROOM);
        ops_run_gate_mul(&ops, &args);
        for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes); i++) {
            const int n = sizes[i], at = i * 4 % 48 + (n % 4 ? 1 : 0);
            for (int j = 0; j < ROOM; j++)
                ram[j] = (uint8_t)mix64((uint64_t)(i * ROOM + j));
            memset(back, 7, ROOM);
            ops_copy(&ops, (uint8_t *)mem[0] + at, ram + 32, n);
            ops_copy(&ops, mem[1], (uint8_t *)mem[0] + at, n);
            ops_copy(&ops, back + 64, mem[1], n);
            d->api->record(s, e);
            if (d->api->event_wait(s, e) != OK)
                fail_msg("%d bytes: %s", n, err_text());
            assert_memory_equal(back + 64, ram + 32, (size_t)n);
            assert_int_equal(back[63] + back[64 + n], 14);
        }
        assert_int_equal(cudart_small_copies(), 0);
        d->api->stream_close(s);
        d->api->event_close(e);
        d->api->unpin(d, ram, ROOM);
        d->api->unpin(d, back, ROOM);
        for (int i = 0; i < 2; i++)
            d->api->release(d, mem[i], ROOM);
        device_done(d);
    }
}

/* ---- order, and being told ---- */

struct told {
    pthread_mutex_t lock;
    int n, n_lost;
    int out_of_order;
    pthread_t here;
    int told_here;
};

struct note {
    struct told *told;
    int number;
};

static void tell(void *ctx, enum err err)
{
    const struct note *note = ctx;
    struct told *t = note->told;
    pthread_mutex_lock(&t->lock);
    t->out_of_order += t->n != note->number;
    t->n++;
    t->n_lost += err == ERR_DEVICE;
    t->told_here += pthread_equal(pthread_self(), t->here) != 0;
    pthread_mutex_unlock(&t->lock);
}

#define NOTES 12
#define BYTES 8192

struct scene {
    struct told told;
    struct note notes[NOTES];
    int n_asked;
    uint8_t ram[BYTES], back[BYTES];
};

/* Memory, streams, copies there and back, notes and a wait. OK, or the first error; everything that
 * was had is given back. */
static enum err scene_play(struct scene *scene, struct device *d)
{
    const struct device_api *api = d->api;
    struct stream *s[2] = {NULL, NULL};
    struct event *event[2] = {NULL, NULL};
    void *mem = NULL;
    int pinned = 0;
    *scene = (struct scene){.told = {.lock = PTHREAD_MUTEX_INITIALIZER, .here = pthread_self()}};
    memset(scene->ram, 7, sizeof scene->ram);
    enum err e = api->alloc(d, BYTES, &mem);
    if (e == OK)
        e = api->pin(d, scene, sizeof *scene);
    pinned = e == OK;
    for (int i = 0; i < 2 && e == OK; i++)
        e = api->stream_open(d, &s[i]);
    for (int i = 0; i < 2 && e == OK; i++)
        e = api->event_open(d, &event[i]);
    for (int i = 0; i < NOTES && e == OK; i++) {
        const struct ops ops = {.stream = s[0]};
        struct gate_mul_args args = {.gate = mem, .up = mem, .m = 1, .n = BYTES / 4};
        api->copy(s[0], mem, scene->ram, BYTES);
        if (i % 3 == 2)
            ops_run_gate_mul(&ops, &args);
        api->fill(s[0], mem, i, BYTES);
        api->record(s[0], event[0]);
        api->stream_wait(s[1], event[0]);
        api->copy(s[1], scene->back, mem, BYTES);
        api->record(s[1], event[1]);
        api->stream_wait(s[0], event[1]);
        scene->notes[i] = (struct note){&scene->told, scene->n_asked++};
        api->notify(s[1], tell, &scene->notes[i]);
        if (i % 4 == 3)
            e = api->event_wait(s[1], event[1]);
        if (e == OK && i % 4 == 3)
            assert_in_range(api->between_ns(event[0], event[1]), 0, 60000000000);
        if (e == OK && i % 4 == 3)
            for (int j = 0; j < BYTES; j++)
                assert_int_equal(scene->back[j], i);
    }
    for (int i = 0; i < 2; i++) {
        api->stream_close(s[i]);
        api->event_close(event[i]);
    }
    if (pinned)
        api->unpin(d, scene, sizeof *scene);
    api->release(d, mem, BYTES);
    assert_int_equal(scene->told.n, scene->n_asked);
    assert_int_equal(scene->told.out_of_order, 0);
    assert_int_equal(scene->told.told_here, 0); // who asks may hold what fn needs
    return e;
}

static _Alignas(1 << 16) struct scene scene; // in one chunk of pinned RAM

static void test_notes_are_told_in_order(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
        struct device *d = device_seeded(seed);
        enum err e = scene_play(&scene, d);
        if (e != OK)
            fail_msg("%s", err_text());
        assert_int_equal(scene.told.n_lost, 0);
        device_done(d);
    }
}

struct filling {
    struct stream *stream;
    void *mem;
};

static void *fill_main(void *arg)
{
    const struct filling *f = arg;
    f->stream->device->api->fill(f->stream, f->mem, 0, 64);
    return NULL;
}

/* Of every device there may be, calls of any thread mean that one. */
static void test_another_device(void **state)
{
    (void)state;
    struct cudart_machine m = machine;
    struct device *d[2] = {NULL, NULL};
    pthread_t thread;
    m.n_devices = 2;
    d[0] = device_make(m, "0");
    assert_int_equal(sluice_device_open(DEVICE_VERSION, "1", &d[1]), OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(scene_play(&scene, d[i % 2]), OK);
    for (int i = 0; i < 2; i++) {
        struct filling f;
        struct event *e;
        assert_int_equal(d[i]->api->alloc(d[i], 4096, &f.mem), OK);
        assert_int_equal(d[i]->api->stream_open(d[i], &f.stream), OK);
        assert_int_equal(d[i]->api->event_open(d[i], &e), OK);
        assert_int_equal(pthread_create(&thread, NULL, fill_main, &f), 0);
        pthread_join(thread, NULL);
        d[i]->api->record(f.stream, e);
        assert_int_equal(d[i]->api->event_wait(f.stream, e), OK);
        d[i]->api->stream_close(f.stream);
        d[i]->api->event_close(e);
        d[i]->api->release(d[i], f.mem, 4096);
    }
    device_close(d[1]);
    device_done(d[0]);
}

/* Without an event late streams read before the copy came. */
static void test_lateness_shows(void **state)
{
    (void)state;
    int wrong = 0;
    for (uint64_t seed = 0; seed < 32; seed++) {
        struct device *d = device_seeded(seed);
        const struct device_api *api = d->api;
        struct stream *in, *out;
        struct event *done;
        void *mem;
        static uint8_t from[64], to[64];
        memset(from, 7, sizeof from);
        memset(to, 0, sizeof to);
        assert_int_equal(api->alloc(d, 4096, &mem), OK);
        assert_int_equal(api->pin(d, from, sizeof from), OK);
        assert_int_equal(api->pin(d, to, sizeof to), OK);
        assert_int_equal(api->stream_open(d, &in), OK);
        assert_int_equal(api->stream_open(d, &out), OK);
        assert_int_equal(api->event_open(d, &done), OK);
        assert_int_equal(api->event_wait(in, done), OK); // never recorded: nothing to wait for
        api->stream_wait(out, done);
        api->copy(in, mem, from, sizeof from);
        api->copy(out, to, mem, sizeof to); // no event in between
        api->record(out, done);
        assert_int_equal(api->event_wait(out, done), OK);
        wrong += to[0] != 7;
        api->stream_close(in);
        api->stream_close(out);
        api->event_close(done);
        api->unpin(d, from, sizeof from);
        api->unpin(d, to, sizeof to);
        api->release(d, mem, 4096);
        device_done(d);
    }
    assert_true(wrong > 0);
}

/* ---- loss ---- */

/* A lost device says so whatever is asked, in the words of what lost it, and closes. */
static void is_lost(struct device *d, const char *words)
{
    struct device_info info;
    struct stream *s = NULL;
    void *p = NULL;
    assert_int_equal(d->api->alloc(d, 4096, &p), ERR_DEVICE);
    assert_int_equal(d->api->info(d, &info), ERR_DEVICE);
    assert_int_equal(d->api->stream_open(d, &s), ERR_DEVICE);
    assert_int_equal(d->api->pin(d, scene.ram, 64), ERR_DEVICE);
    if (strncmp(err_text(), "cuda: ", 6) != 0 || !strstr(err_text(), words))
        fail_msg("'%s', not '%s'", err_text(), words);
    assert_null(s);
    assert_null(p);
}

static void test_any_call_may_fail(void **state)
{
    (void)state;
    struct device *d = device_seeded(2);
    const int64_t opened = cudart_calls();
    assert_int_equal(scene_play(&scene, d), OK);
    const int64_t n_calls = cudart_calls() - opened;
    device_done(d);
    assert_in_range(n_calls, 100, 1000);
    int n_lost = 0, n_pins = 0;
    for (int64_t n = 1; n <= n_calls; n++)
        for (int lost = 0; lost < 2; lost++) {
            const cudaError_t with = lost ? cudaErrorIllegalAddress : cudaErrorInvalidValue;
            d = device_seeded((uint64_t)n % N_SEEDS);
            cudart_fail_call(n, with, lost);
            const int64_t before = cudart_calls();
            enum err e = scene_play(&scene, d);
            if (cudart_calls() < before + n) { // events of notes serve again, now and then
                device_done(d);
                continue;
            }
            const int pins = e == ERR_DEVICE && strstr(err_text(), "cannot be pinned") != NULL;
            n_lost += e != OK;
            n_pins += pins;
            if (e != OK) {
                assert_int_equal(e, ERR_DEVICE);
                assert_true(strncmp(err_text(), "cuda: ", 6) == 0);
            }
            if (lost || !pins)
                is_lost(d, lost ? "an illegal memory access" : "some error");
            device_close(d);
        }
    assert_int_equal(n_pins, 2);
    assert_in_range(n_lost, n_calls / 2, 2 * n_calls);
}

static void test_any_command_may_fail(void **state)
{
    (void)state;
    struct device *d = device_seeded(0);
    assert_int_equal(scene_play(&scene, d), OK);
    const int64_t n_commands = cudart_commands();
    device_done(d);
    for (int64_t n = 1; n <= n_commands; n++) {
        d = device_seeded((uint64_t)n % N_SEEDS);
        cudart_fail_command(n);
        enum err e = scene_play(&scene, d);
        if (n <= n_commands - 2) { // the last two stand behind the last wait
            assert_int_equal(e, ERR_DEVICE);
            assert_true(scene.told.n_lost > 0);
        }
        is_lost(d, "an illegal memory access");
        device_close(d);
    }
}

/* What a kernel does wrong is met as CUDA's errors are. */
static void test_a_kernel_may_fail(void **state)
{
    (void)state;
    struct device *d = device_seeded(0);
    const struct ops exact = {.isa = ISA_EXACT};
    struct stream *s;
    struct event *e;
    void *mem;
    assert_int_equal(d->api->alloc(d, 4096, &mem), OK);
    assert_int_equal(d->api->stream_open(d, &s), OK);
    assert_int_equal(d->api->event_open(d, &e), OK);
    struct ops ops = exact;
    ops.stream = s;
    ops_run_gate_mul(&ops, &(struct gate_mul_args){.gate = mem, .up = mem, .m = 1, .n = 16});
    d->api->record(s, e);
    assert_int_equal(d->api->event_wait(s, e), ERR_DEVICE);
    assert_non_null(strstr(err_text(), "which nobody has written"));
    d->api->stream_close(s);
    d->api->event_close(e);
    d->api->release(d, mem, 4096);
    device_close(d);
}

/* ---- under the mover ---- */

#define PIECES     4
#define BLOCK      (PIECE_BYTES + 4096) // a transfer of two pieces
#define FILE_BYTES (PIECES * BLOCK)

/* File -> device -> RAM, all blocks in flight together. */
static int carry_blocks(struct rig *r)
{
    static struct segment segments[PIECES][2];
    static struct ticket t[PIECES][2];
    static uint32_t crc[PIECES][2];
    int n_failed = 0;
    memset(t, 0, sizeof t);
    for (int i = 0; i < PIECES; i++)
        for (int k = 0; k < 2; k++) {
            const int64_t at = (int64_t)i * BLOCK, part = k * (int64_t)PIECE_BYTES;
            crc[i][k] = crc32c(0, r->model + at + part, min_i64(PIECE_BYTES, BLOCK - part));
            segments[i][k] = (struct segment){.offset = at,
                                              .n_bytes = BLOCK,
                                              .buf = r->memory.base + at,
                                              .crc = k ? NULL : crc[i]};
            t[i][k] = (struct ticket){.place = k,
                                      .write = k,
                                      .on_device = 1,
                                      .segments = &segments[i][k],
                                      .n_segments = 1,
                                      .after = k ? &t[i][0] : NULL};
        }
    for (int i = 0; i < 2 * PIECES; i++)
        mover_submit(r->mover, &t[i / 2][i % 2]);
    for (int i = 0; i < 2 * PIECES; i++)
        n_failed += mover_wait(r->mover, &t[i / 2][i % 2]) != OK;
    return n_failed;
}

/* On a machine that pins the mover's own buffers and, of odd seeds, hardly more. */
static struct device *device_of_mover(uint64_t seed)
{
    struct cudart_machine m = machine;
    m.seed = seed;
    m.pin_bytes = seed % 2 ? 5 * PIECE_BYTES : m.pin_bytes;
    return device_make(m, "");
}

static void test_the_mover_carries(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
        struct rig r;
        rig_open(&r, device_of_mover(seed), RING_THREADS, FILE_BYTES);
        assert_int_equal(carry_blocks(&r), 0);
        assert_memory_equal(r.ram.base, r.model, FILE_BYTES);
        assert_int_equal(cudart_host_calls() > 0, seed % 2);
        rig_close(&r);
        device_close(r.device);
        assert_int_equal(cudart_held(), 0);
    }
}

/* Whatever loses the device, each transfer ends. */
static void test_the_mover_is_told(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= 40; n++) {
        struct rig r;
        rig_open(&r, device_of_mover((uint64_t)n / 2 % N_SEEDS), RING_THREADS, FILE_BYTES);
        if (n % 2)
            cudart_fail_command(n / 2);
        else
            cudart_fail_call(n, cudaErrorIllegalAddress, 1);
        const int n_failed = carry_blocks(&r);
        assert_true(n_failed > 0 || n == 1);
        assert_int_equal(mover_failed(r.mover), n_failed > 0 ? ERR_DEVICE : OK);
        rig_close(&r);
        device_close(r.device);
    }
}

static int setup(void **state)
{
    log_level_max = LOG_ERROR; // losses are many
    return ring_setup(state) == 0 && trace_open(&trace, 0) == OK ? 0 : -1;
}

static int teardown(void **state)
{
    trace_close(&trace);
    return temp_dir_teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_cannot_be_opened_says_why),
        cmocka_unit_test(test_devices_are_counted_and_have_a_place),
        cmocka_unit_test(test_what_it_says_of_itself),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_what_cannot_be_pinned),
        cmocka_unit_test(test_weights_in_the_form_it_reads),
        cmocka_unit_test(test_streams_and_events),
        cmocka_unit_test(test_copies_between_ops),
        cmocka_unit_test(test_notes_are_told_in_order),
        cmocka_unit_test(test_another_device),
        cmocka_unit_test(test_lateness_shows),
        cmocka_unit_test(test_any_call_may_fail),
        cmocka_unit_test(test_any_command_may_fail),
        cmocka_unit_test(test_a_kernel_may_fail),
        cmocka_unit_test(test_the_mover_carries),
        cmocka_unit_test(test_the_mover_is_told),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
