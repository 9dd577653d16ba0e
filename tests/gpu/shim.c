/* tests/gpu/shim.c - what tests/simt gives the tests of CUDA kernels, on a device that is there:
 * simt_rows_test and its kin, linked with this, send every op to the device that
 * SLUICE_TEST_DEVICE names and compare the same numbers with the same references.
 *
 * Owns: memory of the device, one stream, the first error. Refuses: what only the shim sees
 * (compute-sanitizer looks for it) and its orders of threads. Memory is not written until a test
 * writes it: it holds numbers that no op gives, so that an output left out shows. */
#include "tests/device_help.h"

// Not to be seen by the library, which has entries of these names itself.
#pragma GCC visibility push(hidden)
#include "kernels/cuda/cuda.h"
#pragma GCC visibility pop

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define simt_mma_dot model_mma_dot
#include "tests/simt/mma.c"
#undef simt_mma_dot
float simt_mma_dot(int arch, enum simt_mma kind, const uint16_t *a, const uint16_t *b, float c);

#define BLOCKS_MAX   512
#define BOUNCE_BYTES (1 << 20)
#define UNWRITTEN    0xf7

static struct {
    struct device *device;
    struct stream *stream;
    struct event *event;
    uint8_t *bounce;
    struct {
        uint8_t *base;
        int64_t bytes;
    } blocks[BLOCKS_MAX];
    int n_blocks, arch;
    char error[512];
} gpu;

static const struct device_api *api(void)
{
    struct device_info info;
    if (gpu.device)
        return gpu.device->api;
    if (!real_device()) {
        print_error("SLUICE_TEST_DEVICE names no device\n");
        exit(2);
    }
    gpu.device = test_device_open(0, 0);
    const struct device_api *a = gpu.device->api;
    gpu.bounce = aligned_alloc(4096, BOUNCE_BYTES);
    assert_non_null(gpu.bounce);
    assert_int_equal(a->info(gpu.device, &info), OK);
    assert_int_equal(a->pin(gpu.device, gpu.bounce, BOUNCE_BYTES), OK);
    assert_int_equal(a->stream_open(gpu.device, &gpu.stream), OK);
    assert_int_equal(a->event_open(gpu.device, &gpu.event), OK);
    const char *sm = strstr(info.model, "sm_");
    gpu.arch = sm ? (int)strtol(sm + 3, NULL, 10) : 0;
    print_message("device: %s\n", info.model);
    return a;
}

static void settle(void)
{
    api()->record(gpu.stream, gpu.event);
    if (api()->event_wait(gpu.stream, gpu.event) != OK && !gpu.error[0])
        snprintf(gpu.error, sizeof gpu.error, "%s", err_text());
}

/* ---- simt.h ---- */

static int is_ours(const void *p)
{
    for (int i = 0; i < gpu.n_blocks; i++)
        if ((const uint8_t *)p >= gpu.blocks[i].base &&
            (const uint8_t *)p < gpu.blocks[i].base + gpu.blocks[i].bytes)
            return 1;
    return 0;
}

void *simt_alloc(int64_t bytes)
{
    void *p;
    bytes = bytes > 0 ? bytes : 1;
    assert_true(gpu.n_blocks < BLOCKS_MAX);
    if (api()->alloc(gpu.device, bytes, &p) != OK) {
        print_error("%s\n", err_text());
        assert_true(0);
    }
    gpu.blocks[gpu.n_blocks].base = p;
    gpu.blocks[gpu.n_blocks++].bytes = bytes;
    simt_forget(p, bytes);
    return p;
}

void simt_free_all(void)
{
    for (int i = 0; i < gpu.n_blocks; i++)
        api()->release(gpu.device, gpu.blocks[i].base, gpu.blocks[i].bytes);
    gpu.n_blocks = 0;
}

void simt_put(void *to, const void *from, int64_t bytes)
{
    for (int64_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < BOUNCE_BYTES ? bytes - at : BOUNCE_BYTES;
        memcpy(gpu.bounce, (const uint8_t *)from + at, (size_t)n);
        api()->copy(gpu.stream, (uint8_t *)to + at, gpu.bounce, n);
        settle();
    }
}

void *simt_of(const void *from, int64_t bytes)
{
    if (!from)
        return NULL;
    void *p = simt_alloc(bytes);
    simt_put(p, from, bytes);
    return p;
}

void simt_forget(void *p, int64_t bytes)
{
    if (bytes <= 0 || !is_ours(p))
        return;
    api()->fill(gpu.stream, p, UNWRITTEN, bytes);
    settle();
}

void simt_get(void *to, const void *from, int64_t bytes)
{
    for (int64_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < BOUNCE_BYTES ? bytes - at : BOUNCE_BYTES;
        api()->copy(gpu.stream, gpu.bounce, (const uint8_t *)from + at, n);
        settle();
        memcpy((uint8_t *)to + at, gpu.bounce, (size_t)n);
    }
}

const char *simt_error(void)
{
    return gpu.error[0] ? gpu.error : NULL;
}

/* A device that is lost stays so: its first error stands to the end. */
void simt_clear(void)
{
    api();
}

void simt_order(uint64_t seed)
{
    (void)seed;
}

void simt_arch_set(int arch)
{
    (void)arch;
}

int simt_arch(void)
{
    api();
    return gpu.arch;
}

/* The tensor core of the card, not the one that the test would like to see. */
float simt_mma_dot(int arch, enum simt_mma kind, const uint16_t *a, const uint16_t *b, float c)
{
    return model_mma_dot(gpu.arch > 0 ? gpu.arch : arch, kind, a, b, c);
}

/* ---- cuda.h ---- */

static struct ops there(const struct ops *ops)
{
    struct ops on = *ops;
    on.isa = ISA_EXACT; // a simulated device computes in contract order
    on.pool = NULL;
    on.stream = gpu.stream;
    return on;
}

#define ENTRY(name)                                                                                \
    void cuda_##name(struct CUstream_st *stream, const struct ops *ops,                            \
                     const struct name##_args *args)                                               \
    {                                                                                              \
        (void)stream;                                                                              \
        struct ops on = there(ops);                                                                \
        api()->launch(gpu.stream, OP_##name, &on, args);                                           \
        settle();                                                                                  \
    }
OPS(ENTRY)

static const struct device_scratch *scratch(void)
{
    assert_non_null(api()->scratch);
    return api()->scratch;
}

int64_t cuda_matmul_scratch_bytes(const struct ops *ops, int m, int n, int k)
{
    const struct ops on = there(ops);
    return scratch()->matmul(&on, m, n, k);
}

int64_t cuda_expert_matmul_scratch_bytes(const struct ops *ops, int m, int n_used, int n, int k)
{
    const struct ops on = there(ops);
    return scratch()->expert_matmul(&on, m, n_used, n, k);
}

int64_t cuda_attend_prompt_scratch_bytes(const struct ops *ops, int n_prompt_max, int n_heads,
                                         int n_kv_heads, int head_dim)
{
    const struct ops on = there(ops);
    return scratch()->attend_prompt(&on, n_prompt_max, n_heads, n_kv_heads, head_dim);
}

int64_t cuda_attend_forced_scratch_bytes(const struct ops *ops, int n_spans, int slots_max,
                                         int n_heads, int n_kv_heads, int head_dim, int scores)
{
    const struct ops on = there(ops);
    return scratch()->attend_forced(&on, n_spans, slots_max, n_heads, n_kv_heads, head_dim, scores);
}

int64_t cuda_prompt_keep_scratch_bytes(const struct ops *ops, int n_prompt_max, int n_kv_heads,
                                       int head_dim)
{
    const struct ops on = there(ops);
    return scratch()->prompt_keep(&on, n_prompt_max, n_kv_heads, head_dim);
}
