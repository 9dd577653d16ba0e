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

/* The next buffer to fill; the filling stream first waits until the buffer is empty. */
static uint8_t *belt_next(struct belt *b)
{
    const int i = (int)(b->n % 2);
    b->fills->device->api->stream_wait(b->fills, b->empty[i]);
    return b->buffers[i];
}

/* Marks the buffer as filled: the other stream may empty it. */
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

/* Copies include the slots that a prompt leaves unused: zero them once. */
static void fill_kept(const struct memory *memory, struct stream *s)
{
    const struct ops ops = {.stream = s};
    for (int id = LAYOUT_KEPT_PAGES; id <= LAYOUT_KEPT_RING; id++) {
        const struct layout_part *p = &memory->layout->parts[id];
        if (p->n > 0)
            ops_fill(&ops, memory_at(memory, (enum layout_id)id, 0), 0,
                     (p->n - 1) * p->stride + p->n_bytes);
    }
}

enum err cross_open(struct cross *c, const struct memory *memory, struct cross_bytes bytes,
                    struct stream *ops)
{
    const struct device_api *api = ops->device->api;
    *c = (struct cross){.bytes = bytes, .device = ops->device};
    TRY(api->stream_open(ops->device, &c->to_cpu));
    TRY(api->stream_open(ops->device, &c->to_device));
    TRY(belt_open(&c->out, ops, c->to_cpu, memory, LAYOUT_CROSS_OUT));
    TRY(belt_open(&c->kept, ops, c->to_cpu, memory, LAYOUT_KEPT_PAGES));
    fill_kept(memory, ops);
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
    belt_close(&c->kept);
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

void cross_out_begin(struct cross *c)
{
    c->buffer = belt_next(&c->out);
}

void cross_out_add(struct cross *c, const struct ops *ops, int bytes, const float *from, int64_t n)
{
    cross_narrow(ops, bytes, c->buffer, from, n);
    c->buffer += n * bytes;
}

void cross_out_end(struct cross *c, uint8_t *to, int64_t n_bytes)
{
    const struct ops copies = {.stream = c->to_cpu};
    belt_filled(&c->out);
    ops_copy(&copies, to, c->buffer - n_bytes, n_bytes);
    belt_emptied(&c->out);
}

void cross_in_begin(struct cross *c, const uint8_t *from, int64_t n_bytes)
{
    const struct ops copies = {.stream = c->to_device};
    c->buffer = belt_next(&c->in);
    ops_copy(&copies, c->buffer, from, n_bytes);
    belt_filled(&c->in);
}

void cross_in_take(struct cross *c, const struct ops *ops, float *to, int64_t n)
{
    cross_widen(ops, c->bytes.out, to, c->buffer, n);
    c->buffer += n * c->bytes.out;
}

void cross_in_end(struct cross *c)
{
    belt_emptied(&c->in);
}

int cross_kept_begin(struct cross *c)
{
    belt_next(&c->kept);
    return (int)(c->kept.n % 2);
}

struct ops cross_kept_filled(struct cross *c)
{
    belt_filled(&c->kept);
    return (struct ops){.stream = c->to_cpu};
}

void cross_kept_end(struct cross *c)
{
    belt_emptied(&c->kept);
}
