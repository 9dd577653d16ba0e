/* engine/line/cross.h - what goes between a device and the CPU that attends beside it, on streams
 * of their own: tile by tile q, k and v one way, what attention gives the other; prompt by prompt
 * the pages that it leaves.
 *
 * Owns: the two streams, and whose turn it is of two buffers of device memory for each kind: the
 * device's ops go on with the next one while this one is on the link. Refuses: memory on the CPU's
 * side, and to know when the CPU is done (engine/line/attend.h). */
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
    struct belt out, in, kept;         // kept: its buffers are the caller's, by its turns
    uint8_t *buffer;                   // of the tile at hand, from the number at hand on
};

/* ops: the stream of the device's ops. ERR_FIT, ERR_DEVICE. */
enum err cross_open(struct cross *c, const struct memory *memory, struct cross_bytes bytes,
                    struct stream *ops);
/* Once the stream of the ops is closed. Accepts a zeroed one. */
void cross_close(struct cross *c);
/* Numbers of a tile on their way to the CPU: cross_out_add() queues n, which the device has as f32,
 * as `bytes` each behind those before, cross_out_end() all n_bytes of them to `to`; they are there
 * when c->to_cpu comes to it. */
void cross_out_begin(struct cross *c);
void cross_out_add(struct cross *c, const struct ops *ops, int bytes, const float *from, int64_t n);
void cross_out_end(struct cross *c, uint8_t *to, int64_t n_bytes);
/* Back, of bytes.out each: all n_bytes of a tile come from `from`, and behind that ops find the
 * next n at `to` as f32. */
void cross_in_begin(struct cross *c, const uint8_t *from, int64_t n_bytes);
void cross_in_take(struct cross *c, const struct ops *ops, float *to, int64_t n);
void cross_in_end(struct cross *c);
/* The pages and slots that a prompt leaves. cross_kept_begin() returns which of the two buffers (0
 * or 1) the device's ops may fill next; after these ops cross_kept_filled() returns where to queue
 * the copies to the CPU; after the last copy cross_kept_end() gives the buffer back. */
int cross_kept_begin(struct cross *c);
struct ops cross_kept_filled(struct cross *c);
void cross_kept_end(struct cross *c);
/* Between numbers that cross, `bytes` each, and f32. */
void cross_narrow(const struct ops *ops, int bytes, void *to, const float *from, int64_t n);
void cross_widen(const struct ops *ops, int bytes, float *to, const void *from, int64_t n);

#endif
