/* engine/line/cross.c - see cross.h. */
#include "engine/line/cross.h"

#include <string.h>

#include "policy/layout.h"

static enum err belt_open(struct belt *b, struct stream *fills, struct stream *empties,
                          const struct memory *memory, enum layout_id part)
{
    *b = (struct belt){.fills = fills, .empties = empties};
    for (int i = 0; i < 2; i++) {
        b->buffers[i] = memory_at(memory, part, i);
        TRY(fills->device->api->event_open(fills->device, &b->full[i]));
        TRY(fills->device->api->event_open(fills->device, &b->empty[i]));
    }
    return OK;
}

static void belt_close(struct belt *b)
{
    for (int i = 0; i < 2; i++) {
        if (b->full[i])
            b->full[i]->device->api->event_close(b->full[i]);
        if (b->empty[i])
            b->empty[i]->device->api->event_close(b->empty[i]);
    }
}

/* The next buffer: the stream that fills it waits until it was emptied. */
static uint8_t *belt_next(struct belt *b)
{
    const int i = (int)(b->n % 2);
    b->fills->device->api->stream_wait(b->fills, b->empty[i]);
    return b->buffers[i];
}

/* It is filled: the other stream may empty it. */
static void belt_filled(struct belt *b)
{
    const int i = (int)(b->n % 2);
    b->fills->device->api->record(b->fills, b->full[i]);
    b->empties->device->api->stream_wait(b->empties, b->full[i]);
}

static void belt_emptied(struct belt *b)
{
    b->empties->device->api->record(b->empties, b->empty[b->n % 2]);
    b->n++;
}

enum err cross_open(struct cross *c, const struct memory *memory, struct cross_bytes bytes,
                    struct stream *ops)
{
    const struct device_api *api = ops->device->api;
    *c = (struct cross){.bytes = bytes, .device = ops->device};
    TRY(api->stream_open(ops->device, &c->to_cpu));
    TRY(api->stream_open(ops->device, &c->to_device));
    TRY(belt_open(&c->out, ops, c->to_cpu, memory, LAYOUT_CROSS_OUT));
    return belt_open(&c->in, c->to_device, ops, memory, LAYOUT_CROSS_IN);
}

void cross_close(struct cross *c)
{
    if (!c->device)
        return;
    const struct device_api *api = c->device->api;
    api->stream_close(c->to_cpu);
    api->stream_close(c->to_device);
    belt_close(&c->out);
    belt_close(&c->in);
    memset(c, 0, sizeof *c);
}

void cross_narrow(const struct ops *ops, int bytes, void *to, const float *from, int64_t n)
{
    if (bytes == 4)
        ops_copy(ops, to, from, n * 4);
    else
        ops_run_cast(ops, &(struct cast_args){.from = from, .to = to, .n = n});
}

void cross_widen(const struct ops *ops, int bytes, float *to, const void *from, int64_t n)
{
    if (bytes == 4)
        ops_copy(ops, to, from, n * 4);
    else
        ops_run_cast(ops, &(struct cast_args){.from = from, .to = to, .n = n, .widens = 1});
}

void cross_out(struct cross *c, const struct ops *ops, const float *q, int64_t n, const float *k,
               const float *v, int64_t n_kv, uint8_t *to)
{
    const int bytes = c->bytes.in;
    const struct ops copies = {.stream = c->to_cpu};
    uint8_t *buffer = belt_next(&c->out);
    cross_narrow(ops, bytes, buffer, q, n);
    cross_narrow(ops, bytes, buffer + n * bytes, k, n_kv);
    cross_narrow(ops, bytes, buffer + (n + n_kv) * bytes, v, n_kv);
    belt_filled(&c->out);
    ops_copy(&copies, to, buffer, (n + 2 * n_kv) * bytes);
    belt_emptied(&c->out);
}

void cross_in(struct cross *c, const struct ops *ops, const uint8_t *from, int64_t n, float *attn)
{
    const struct ops copies = {.stream = c->to_device};
    uint8_t *buffer = belt_next(&c->in);
    ops_copy(&copies, buffer, from, n * c->bytes.out);
    belt_filled(&c->in);
    cross_widen(ops, c->bytes.out, attn, buffer, n);
    belt_emptied(&c->in);
}
