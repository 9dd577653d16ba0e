/* tests/simt_arrays.h - arrays of a test of ops on the SIMT shim.
 *
 * A launch that goes to the shim copies every array that its args point to into device memory of
 * its own, which ends where the array ends, and what came out of it back. The includer allocates by
 * array_alloc() and frees by array_free(); prompts and their K and V are launched here. */
#ifndef TESTS_SIMT_ARRAYS_H
#define TESTS_SIMT_ARRAYS_H

#include "kernels/cuda/cuda.h"
#include "kernels/device.h"
#include "tests/simt/simt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

/* From an address the array that it is of is found. */
static struct array {
    uint8_t *host, *device;
    int64_t bytes;
} arrays[128];

static inline void *array_alloc(size_t align, size_t bytes)
{
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        if (!arrays[i].host) {
            arrays[i] = (struct array){aligned_alloc(align, bytes), NULL, (int64_t)bytes};
            return arrays[i].host;
        }
    abort();
}

static inline void array_free(void *p)
{
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays && p; i++)
        if (arrays[i].host == p)
            arrays[i].host = NULL;
    free(p);
}

static inline void *on_device(const void *host)
{
    const uint8_t *p = host;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays && p; i++) {
        struct array *a = &arrays[i];
        if (!a->host || p < a->host || p >= a->host + a->bytes)
            continue;
        a->device = a->device ? a->device : simt_of(a->host, a->bytes);
        return a->device + (p - a->host);
    }
    assert_null(host);
    return NULL;
}

#define TO_DEVICE(field) ((field) = on_device(field))

static inline void arrays_back(const char *what)
{
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays && !simt_error(); i++)
        if (arrays[i].device)
            simt_get(arrays[i].host, arrays[i].device, arrays[i].bytes);
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        arrays[i].device = NULL;
    if (simt_error())
        fail_msg("%s: %s", what, simt_error());
    simt_free_all();
}

static inline void store_on_shim(const struct ops *ops, struct kv_store_args a)
{
    TO_DEVICE(a.pages);
    TO_DEVICE(a.k);
    TO_DEVICE(a.v);
    cuda_kv_store(NULL, ops, &a);
    arrays_back("kv_store");
}

static inline void prompt_on_shim(const struct ops *ops, struct attend_prompt_args a)
{
    const struct prompt_span *spans = a.spans;
    TO_DEVICE(a.pages);
    TO_DEVICE(a.q);
    TO_DEVICE(a.out);
    TO_DEVICE(a.scores);
    TO_DEVICE(a.sinks);
    a.spans = simt_of(spans, a.n_spans * (int64_t)sizeof *spans);
    for (int i = 0; i < a.n_spans; i++)
        for (int64_t t = spans[i].token; t < spans[i].token + spans[i].n; t++)
            simt_forget(a.out + t * a.out_stride, (int64_t)a.n_heads * a.layout.head_dim * 4);
    a.scratch = simt_alloc(cuda_attend_prompt_scratch_bytes(
        ops, a.end_max, a.n_heads, a.layout.n_kv_heads, a.layout.head_dim));
    cuda_attend_prompt(NULL, ops, &a);
    arrays_back("attend_prompt");
}

#endif
