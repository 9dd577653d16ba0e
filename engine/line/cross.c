/* engine/line/cross.c - see cross.h. */
#include "engine/line/cross.h"

#include <string.h>

#include "kernels/base/num.h"

/* The pages and slots that a prompt keeps in a layer, in the layout of the layer with the most
 * slots. */
static void place_kept(struct cross *x, struct carve *c)
{
    const struct plan *p = c->plan;
    const struct plan_costs *costs = c->set->costs;
    const struct shape *s = c->set->shape;
    const int64_t pages = ceil_div(min_i64(p->slots_cap, p->prompt_max), PAGE_SLOTS);
    const int64_t slots = p->slots_cap + (costs->kv_ring_bytes > 0 ? EVICT_RING_MAX : 0);
    x->kept.buffers = CARVE_BLOCKS(c, workspace, ARENA_DEVICE, 2, pages * plan_page_most(p, costs));
    if (plan_has_slots(c->set))
        x->kept_slots =
            CARVE_SLAB(c, workspace, ARENA_DEVICE, 2 * 4, shape_kv_heads_most(s) * slots * 4);
    x->kept_rings = CARVE_BLOCKS(c, workspace, ARENA_DEVICE, 2, costs->kv_ring_bytes);
}

void cross_place(struct cross *x, struct carve *c)
{
    const struct shape *s = c->set->shape;
    const struct cross_bytes bytes = c->set->costs->cross;
    const int64_t heads = (int64_t)s->n_heads * shape_head_most(s);
    int64_t out = max_i64((heads + shape_kv_numbers_most(s)) * bytes.in, heads * bytes.out);
    int64_t tile = c->plan->tile_tokens;
    *x = (struct cross){.bytes = bytes};
    x->out.buffers = CARVE_SLAB(c, workspace, ARENA_DEVICE, 2, tile * out);
    x->in.buffers = CARVE_SLAB(c, workspace, ARENA_DEVICE, 2, tile * heads * bytes.out);
    place_kept(x, c);
}

static enum err belt_open(struct belt *b, struct stream *fills, struct stream *empties)
{
    b->fills = fills;
    b->empties = empties;
    for (int i = 0; i < 2; i++) {
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
    return slab_at(&b->buffers, i);
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
static void fill_kept(const struct cross *c, struct stream *s)
{
    const struct ops ops = {.stream = s};
    const struct slab *slabs[] = {&c->kept.buffers, &c->kept_slots, &c->kept_rings};
    for (int k = 0; k < 3; k++)
        for (int64_t i = 0; i < slabs[k]->n; i++)
            ops_fill(&ops, slab_at(slabs[k], i), 0, slabs[k]->n_bytes);
}

enum err cross_open(struct cross *c, struct stream *ops)
{
    const struct device_api *api = ops->device->api;
    c->device = ops->device;
    TRY(api->stream_open(ops->device, &c->to_cpu));
    TRY(api->stream_open(ops->device, &c->to_device));
    TRY(belt_open(&c->out, ops, c->to_cpu));
    TRY(belt_open(&c->kept, ops, c->to_cpu));
    fill_kept(c, ops);
    return belt_open(&c->in, c->to_device, ops);
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
