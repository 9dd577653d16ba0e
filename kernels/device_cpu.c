/* kernels/device_cpu.c - the CPU as a device: see device.h.
 *
 * Owns: mappings of RAM. Streams have no queue: a command runs on the caller and its pool before
 * the call returns, so every event has already happened and waits do nothing. */
#include "kernels/device.h"

#include "kernels/base/arena.h"

#include <stdlib.h>
#include <string.h>

/* Matmuls decode panels themselves, in cache. */
static struct weight_form cpu_reads(struct device *d, enum compute compute, enum dtype stored)
{
    (void)d, (void)compute;
    return (struct weight_form){stored, WEIGHT_PANELS, 0};
}

static enum err cpu_info(struct device *d, struct device_info *info)
{
    (void)d;
    *info = (struct device_info){.model = "cpu"};
    return OK;
}

static void cpu_close(struct device *d)
{
    (void)d; // the CPU device is static
}

static enum err cpu_alloc(struct device *d, int64_t n_bytes, void **p)
{
    (void)d;
    return ram_take(n_bytes, p);
}

static void cpu_release(struct device *d, void *p, int64_t n_bytes)
{
    (void)d;
    ram_give(p, n_bytes);
}

static enum err cpu_pin(struct device *d, void *p, int64_t n_bytes)
{
    (void)d, (void)p, (void)n_bytes;
    return OK;
}

static void cpu_unpin(struct device *d, void *p, int64_t n_bytes)
{
    (void)d, (void)p, (void)n_bytes;
}

static enum err cpu_stream_open(struct device *d, struct stream **s)
{
    *s = malloc(sizeof **s);
    if (!*s)
        return fail(ERR_FIT, "no memory for a stream");
    (*s)->device = d;
    return OK;
}

static void cpu_stream_close(struct stream *s)
{
    free(s);
}

static void cpu_copy(struct stream *s, void *to, const void *from, int64_t n_bytes)
{
    (void)s;
    memcpy(to, from, (size_t)n_bytes);
}

static void cpu_fill(struct stream *s, void *to, int byte, int64_t n_bytes)
{
    (void)s;
    memset(to, byte, (size_t)n_bytes);
}

static void cpu_launch(struct stream *s, enum op op, const struct ops *ops, const void *args)
{
    (void)s;
    ops_here(op, ops, args);
}

static void cpu_notify(struct stream *s, void (*fn)(void *ctx, enum err err), void *ctx)
{
    (void)s;
    fn(ctx, OK);
}

static enum err cpu_event_open(struct device *d, struct event **e)
{
    *e = malloc(sizeof **e);
    if (!*e)
        return fail(ERR_FIT, "no memory for an event");
    (*e)->device = d;
    return OK;
}

static void cpu_event_close(struct event *e)
{
    free(e);
}

static void cpu_order(struct stream *s, struct event *e)
{
    (void)s, (void)e;
}

static enum err cpu_event_wait(struct stream *s, struct event *e)
{
    (void)s, (void)e;
    return OK;
}

/* Events record no time: callers time the CPU with the clock. */
static int64_t cpu_between_ns(struct event *from, struct event *to)
{
    (void)from, (void)to;
    return 0;
}

struct device *device_cpu(void)
{
    static const struct device_scratch scratch = {.matmul = matmul_scratch_bytes,
                                                  .expert_matmul = expert_matmul_scratch_bytes,
                                                  .gather = gather_scratch_bytes,
                                                  .attend_prompt = attend_prompt_scratch_bytes,
                                                  .attend_forced = attend_forced_scratch_bytes,
                                                  .prompt_keep = prompt_keep_scratch_bytes};
    static const struct device_api api = {.name = "cpu",
                                          .unified = 1,
                                          .scratch = &scratch,
                                          .reads = cpu_reads,
                                          .info = cpu_info,
                                          .close = cpu_close,
                                          .alloc = cpu_alloc,
                                          .release = cpu_release,
                                          .pin = cpu_pin,
                                          .pin_some = cpu_pin,
                                          .unpin = cpu_unpin,
                                          .stream_open = cpu_stream_open,
                                          .stream_close = cpu_stream_close,
                                          .copy = cpu_copy,
                                          .ops_copy = cpu_copy,
                                          .fill = cpu_fill,
                                          .launch = cpu_launch,
                                          .notify = cpu_notify,
                                          .event_open = cpu_event_open,
                                          .event_close = cpu_event_close,
                                          .record = cpu_order,
                                          .stream_wait = cpu_order,
                                          .event_wait = cpu_event_wait,
                                          .between_ns = cpu_between_ns};
    static struct device device = {&api};
    return &device;
}
