/* engine/line/cross.h - copies between a device and the CPU that attends for it, on streams of
 * their own. Per tile: q, k and v to the CPU, attention results back. Per prompt: its kept pages to
 * the CPU.
 *
 * Owns: the two streams, and two alternating buffers of device memory for each kind of copy, so
 * that the device's ops continue with one buffer while the other is on the link. Refuses: memory on
 * the CPU's side, and waiting for the CPU (engine/line/attend.h). */
#ifndef ENGINE_LINE_CROSS_H
#define ENGINE_LINE_CROSS_H

#include "engine/line/carve.h"
#include "kernels/device.h"

/* One direction: one stream fills a buffer, another empties it. */
struct belt {
    struct stream *fills, *empties; // borrowed
    struct event *full[2], *empty[2];
    struct slab buffers; // two, of device memory
    int64_t n;           // buffers used so far
};

struct cross {
    struct cross_bytes bytes;          // per number: 2 as bf16, 4 as f32
    struct device *device;             // borrowed
    struct stream *to_cpu, *to_device; // owned
    struct belt out, in, kept;         // kept: its buffers hold the pages that a prompt keeps
    /* With these pages: positions, scores, ranks and traits, four pieces per buffer; a ring. */
    struct slab kept_slots, kept_rings;
    uint8_t *buffer; // next byte in the current tile's buffer
};

/* Carves the buffers. */
void cross_place(struct cross *x, struct carve *c);
/* Call after cross_place(). ops: the stream of the device's ops. ERR_FIT, ERR_DEVICE. */
enum err cross_open(struct cross *c, struct stream *ops);
/* Call after the stream of the ops is closed. Accepts a zeroed struct. */
void cross_close(struct cross *c);
/* Sends one tile to the CPU. cross_out_add() appends n f32 numbers, converted to `bytes` each;
 * cross_out_end() queues the copy of all n_bytes to `to` on c->to_cpu. */
void cross_out_begin(struct cross *c);
void cross_out_add(struct cross *c, const struct ops *ops, int bytes, const float *from, int64_t n);
void cross_out_end(struct cross *c, uint8_t *to, int64_t n_bytes);
/* Receives one tile, c->bytes.out per number: cross_in_begin() queues the copy of n_bytes from
 * `from`; cross_in_take() converts the next n numbers to f32 at `to`. */
void cross_in_begin(struct cross *c, const uint8_t *from, int64_t n_bytes);
void cross_in_take(struct cross *c, const struct ops *ops, float *to, int64_t n);
void cross_in_end(struct cross *c);
/* Pages and slots that a prompt keeps. cross_kept_begin() returns which of the two buffers (0 or 1)
 * the device's ops may fill; call cross_kept_filled() after these ops: it returns where to queue
 * the copies to the CPU; cross_kept_end() releases the buffer after the last copy. */
int cross_kept_begin(struct cross *c);
struct ops cross_kept_filled(struct cross *c);
void cross_kept_end(struct cross *c);
/* Converts f32 to the format that crosses (`bytes` per number), and back. */
void cross_narrow(const struct ops *ops, int bytes, void *to, const float *from, int64_t n);
void cross_widen(const struct ops *ops, int bytes, float *to, const void *from, int64_t n);

#endif
