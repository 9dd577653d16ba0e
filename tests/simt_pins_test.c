/* tests/simt_pins_test.c - pinned RAM of kernels/cuda/device.cu, in chunks (kernels/cuda/pins.cuh),
 * over the CUDA runtime of tests/simt/cudart, which pins no more than a limit. */
#include "kernels/device.h"
#include "tests/ops_help.h"
#include "tests/simt/cudart/cudart.h"
#include "tests/simt/simt.h"

#include <unistd.h>

enum err sluice_device_open(int version, const char *arg, struct device **d);

#define N_SEEDS 8
#define CHUNK   ((int64_t)256 << 10) // of pinned RAM, under the shim
#define BUFFERS 4096                 // of copies of RAM that is not pinned, all of them
#define RAM     (5 * CHUNK)

static struct device *device_make(uint64_t seed, int64_t pin_bytes)
{
    struct device *d = NULL;
    const struct cudart_machine machine = {
        .n_devices = 1, .sm = 80, .memory_bytes = 64 << 20, .pin_bytes = pin_bytes, .seed = seed};
    cudart_open(&machine);
    assert_int_equal(sluice_device_open(DEVICE_VERSION, "", &d), OK);
    return d;
}

static void device_done(struct device *d)
{
    if (simt_error())
        fail_msg("%s", simt_error());
    assert_int_equal(cudart_held(), 0);
    device_close(d);
}

static void test_what_is_pinned_in_part_is_not_kept(void **state)
{
    (void)state;
    uint8_t *ram = aligned_alloc(4096, RAM);
    assert_non_null(ram);
    struct device *d = device_make(0, 2 * CHUNK);
    assert_int_equal(d->api->pin(d, ram, RAM), ERR_DEVICE);
    assert_int_equal(cudart_held(), 0);
    assert_int_equal(d->api->pin(d, ram + 4096, 2 * CHUNK), OK);
    assert_int_equal(d->api->pin_some(d, ram, 4096), ERR_DEVICE); // no room for the buffers either
    assert_non_null(strstr(err_text(), "cannot be pinned"));
    d->api->unpin(d, ram, RAM);
    device_done(d);
    free(ram);
}

struct parts {
    uint8_t *ram, *want;
    uint8_t *mem; // of the device; of as many bytes
    struct stream *s[2];
    struct event *e;
};

static void noise_bytes(uint8_t *to, int64_t n_bytes, uint64_t seed)
{
    for (int64_t i = 0; i < n_bytes; i++)
        to[i] = (uint8_t)mix64((seed << 32) + (uint64_t)i);
}

/* RAM to the device; other bytes to where they came from, in the same stream; and these back to
 * the device: whatever came too early or too late shows. */
static void part_there_and_back(struct device *d, struct parts *p, int64_t at, int64_t n, int ops)
{
    const struct device_api *api = d->api;
    void (*copy)(struct stream *, void *, const void *, int64_t) = ops ? api->ops_copy : api->copy;
    struct stream *s = p->s[ops];
    const int64_t half = RAM / 2;
    api->copy(p->s[0], p->mem, p->ram, RAM); // both streams go on from here
    api->record(p->s[0], p->e);
    api->stream_wait(s, p->e);
    copy(s, p->mem + at, p->ram + half + at, n);
    copy(s, p->ram + half + at, p->mem + half + at + 1, n - 1);
    copy(s, p->mem + half + at, p->ram + half + at, n);
    api->record(s, p->e);
    assert_int_equal(api->event_wait(s, p->e), OK);
    memcpy(p->want + at, p->want + half + at, (size_t)n);
    memmove(p->want + half + at, p->want + half + at + 1, (size_t)n - 1);
    assert_memory_equal(p->ram + half, p->want + half, (size_t)half);
    api->copy(p->s[0], p->ram, p->mem, RAM);
    api->record(p->s[0], p->e);
    assert_int_equal(api->event_wait(p->s[0], p->e), OK);
    assert_memory_equal(p->ram, p->want, (size_t)RAM);
}

/* All of the RAM is pinned, some, or none: the same bytes, in the order of each stream. */
static void test_copies_of_ram_in_chunks(void **state)
{
    (void)state;
    static const int64_t limits[] = {RAM + BUFFERS, 3 * CHUNK, BUFFERS};
    static const struct {
        int64_t at, n;
    } parts[] = {{0, 4096},           {CHUNK - 100, 200}, {4096, CHUNK + 8192},
                 {0, 2 * CHUNK + 17}, {CHUNK - 1, 2},     {CHUNK / 3, 70000}};
    struct parts p = {.ram = aligned_alloc(4096, RAM), .want = malloc(RAM)};
    assert_non_null(p.ram);
    assert_non_null(p.want);
    for (int i = 0; i < 3 * N_SEEDS; i++) {
        struct device *d = device_make((uint64_t)i / 3, limits[i % 3]);
        void *mem;
        assert_int_equal(d->api->alloc(d, RAM, &mem), OK);
        p.mem = mem;
        for (int k = 0; k < 2; k++)
            assert_int_equal(d->api->stream_open(d, &p.s[k]), OK);
        assert_int_equal(d->api->event_open(d, &p.e), OK);
        assert_int_equal(d->api->pin_some(d, p.ram, RAM), OK);
        noise_bytes(p.ram, RAM, (uint64_t)i);
        memcpy(p.want, p.ram, RAM);
        for (int k = 0; k < 2 * (int)(sizeof parts / sizeof *parts); k++)
            part_there_and_back(d, &p, parts[k / 2].at, parts[k / 2].n, k % 2);
        assert_int_equal(cudart_host_calls() > 0, i % 3 > 0);
        for (int k = 0; k < 2; k++)
            d->api->stream_close(p.s[k]);
        d->api->event_close(p.e);
        d->api->unpin(d, p.ram, RAM);
        d->api->release(d, mem, RAM);
        device_done(d);
    }
    free(p.ram);
    free(p.want);
}

/* Two streams copy at once, each over a buffer of its own. */
static void test_streams_do_not_meet(void **state)
{
    (void)state;
    enum { N = 20000 };
    uint8_t *ram = aligned_alloc(4096, RAM);
    assert_non_null(ram);
    noise_bytes(ram, 2 * N, 1);
    for (uint64_t seed = 0; seed < 4 * N_SEEDS; seed++) {
        struct device *d = device_make(seed, BUFFERS);
        const struct device_api *api = d->api;
        struct stream *s[2];
        struct event *e[2];
        void *mem;
        assert_int_equal(api->alloc(d, 2 * N, &mem), OK);
        assert_int_equal(api->pin_some(d, ram, RAM), OK);
        memset(ram + 2 * N, 0, 2 * N);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(api->stream_open(d, &s[k]), OK);
            assert_int_equal(api->event_open(d, &e[k]), OK);
        }
        for (int k = 0; k < 2; k++)
            api->copy(s[k], (uint8_t *)mem + k * N, ram + k * N, N);
        for (int k = 0; k < 2; k++) {
            api->copy(s[k], ram + (2 + k) * N, (uint8_t *)mem + k * N, N);
            api->record(s[k], e[k]);
        }
        for (int k = 0; k < 2; k++)
            assert_int_equal(api->event_wait(s[k], e[k]), OK);
        assert_memory_equal(ram + 2 * N, ram, 2 * N);
        for (int k = 0; k < 2; k++) {
            api->stream_close(s[k]);
            api->event_close(e[k]);
        }
        api->unpin(d, ram, RAM);
        api->release(d, mem, 2 * N);
        device_done(d);
    }
    free(ram);
}

/* What is written to standard error while a range is pinned as far as it can be, twice. */
static void pin_and_read(struct device *d, uint8_t *ram, char *text, size_t cap)
{
    FILE *f = tmpfile();
    const int kept = dup(2);
    assert_non_null(f);
    dup2(fileno(f), 2);
    log_level_max = LOG_WARN;
    for (int i = 0; i < 2; i++) {
        const enum err e = d->api->pin_some(d, ram, RAM);
        d->api->unpin(d, ram, RAM);
        if (e != OK)
            break;
    }
    log_level_max = LOG_ERROR;
    dup2(kept, 2);
    close(kept);
    rewind(f);
    text[fread(text, 1, cap - 1, f)] = 0;
    fclose(f);
}

static void test_what_is_not_pinned_is_told_once(void **state)
{
    (void)state;
    uint8_t *ram = aligned_alloc((size_t)CHUNK, RAM);
    assert_non_null(ram);
    for (int n = 0; n <= 5; n++) { // chunks that may be pinned
        char text[1024], want[64];
        struct device *d = device_make(0, (n + 1) * CHUNK); // less than one is for the buffers
        pin_and_read(d, ram, text, sizeof text);
        snprintf(want, sizeof want, "cuda: %.1f of 1.3 MB of RAM are not pinned",
                 (double)((5 - n) * CHUNK) * 1e-6);
        const char *at = strstr(text, want);
        assert_int_equal(at != NULL, n < 5);
        assert_null(strstr(at ? at + strlen(want) : text, "not pinned"));
        assert_int_equal(strstr(text, "ulimit -l") && strstr(text, "--mem-ram"), n < 5);
        device_done(d);
    }
    free(ram);
}

static int setup(void **state)
{
    (void)state;
    log_level_max = LOG_ERROR;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_pinned_in_part_is_not_kept),
        cmocka_unit_test(test_copies_of_ram_in_chunks),
        cmocka_unit_test(test_streams_do_not_meet),
        cmocka_unit_test(test_what_is_not_pinned_is_told_once),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
