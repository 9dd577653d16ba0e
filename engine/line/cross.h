/* engine/line/cross.h - what goes between a device and the CPU that attends beside it, tile by
 * tile: q, k and v one way, what attention gives the other, on streams of their own.
 *
 * Owns: the two streams, and two buffers of device memory for each way: the device's ops go on with
 * the next tile while this one is on the link. Refuses: memory on the CPU's side, and to know when
 * the CPU is done (engine/line/attend.h). */
#ifndef ENGINE_LINE_CROSS_H
#define ENGINE_LINE_CROSS_H

#include "kernels/device.h"
#include "policy/plan.h"

struct memory;

/* One way: a stream fills a buffer, another one empties it. */
struct belt {
    struct stream *fills, *empties; // borrowed
    struct event *full[2], *empty[2];
    uint8_t *buffers[2]; // borrowed; of device memory
    int64_t n;           // tiles so far
};

struct cross {
    struct cross_bytes bytes; // of a number: 2 as bf16, 4 as f32
    struct device *device;             // borrowed
    struct stream *to_cpu, *to_device; // owned
    struct belt out, in;
};

/* ops: the stream of the device's ops. ERR_FIT, ERR_DEVICE. */
enum err cross_open(struct cross *c, const struct memory *memory, struct cross_bytes bytes,
                    struct stream *ops);
/* Once the stream of the ops is closed. Accepts a zeroed one. */
void cross_close(struct cross *c);
/* Queues n numbers of q and n_kv of each of k and v, which the device has as f32, to `to`, one
 * behind the other; they are there when c->to_cpu comes to it. */
void cross_out(struct cross *c, const struct ops *ops, const float *q, int64_t n, const float *k,
               const float *v, int64_t n_kv, uint8_t *to);
/* Queues n numbers of attention from `from`; behind that ops find them at `attn` as f32. */
void cross_in(struct cross *c, const struct ops *ops, const uint8_t *from, int64_t n, float *attn);
/* Between numbers that cross, `bytes` each, and f32. */
void cross_narrow(const struct ops *ops, int bytes, void *to, const float *from, int64_t n);
void cross_widen(const struct ops *ops, int bytes, float *to, const void *from, int64_t n);

#endif
