/* engine/line/frames.h - frames: buffers beside the compute, which a step holds while bytes of it
 * are there.
 *
 * Owns: who has which frame, its two tickets and the order of bytes: a read or write of an extent
 * names the extent's last write as its `after`, so it starts only when that is done. policy/plan.c
 * proves that nothing waits for a step still to come. Refuses: to know what the bytes are. */
#ifndef ENGINE_LINE_FRAMES_H
#define ENGINE_LINE_FRAMES_H

#include "offload/mover.h"

struct frame {
    int64_t step; // that it serves; -1: free once `write` is done
    uint8_t *base;
    struct ticket read, write;
    struct segment *segments; // of the read, then of the write
    int n_write;              // segments of the write so far
    int bad;                  // some of the read could not be had: their `err` tells which
    int32_t *pages;           // KV: [pages_batch] segment of `read` that brings the page; -1: none
};

/* The last write of an extent: done when the ticket is, or when it serves another transfer by now.
 */
struct last_write {
    struct ticket *ticket;
    uint64_t seq;
};

struct frames {
    const char *name;     // "kv", "hidden": of its tickets
    struct mover *mover;  // borrowed
    struct trace *trace;  // borrowed
    int on_device;        // its frames are memory of the device
    struct frame *frames; // [n]
    int n;
};

/* Whose bytes a transfer carries, for traces and messages. layer: of the line, or -1. */
struct frame_use {
    int64_t step;
    int place; // of the mover: where they live
    int layer, batch;
    struct last_write *last; // of the extent
};

/* Waits for a ticket; time lost goes to the stall lane under the ticket's name. */
enum err frames_wait(struct mover *mover, struct trace *trace, struct ticket *t, int64_t step);

/* The frame that a step holds, or NULL. */
struct frame *frames_of(const struct frames *f, int64_t step);
/* A free frame for a step: one whose write is done, else the oldest write is waited for. */
enum err frames_take(struct frames *f, int64_t step, struct frame **out);
/* Reads its first n segments. */
void frames_fetch(struct frames *f, struct frame *frame, int n, struct frame_use use);
/* Waits for that: what could not be had stands in the segments, frame->bad tells that there is
 * such a one. Errors are those that end the run. */
enum err frames_ready(struct frames *f, struct frame *frame);
/* Writes its first n segments (0: nothing) and gives the frame back. */
void frames_store(struct frames *f, struct frame *frame, int n, struct frame_use use);
/* Waits for all that is in flight, whatever comes of it. */
void frames_drain(struct frames *f);

#endif
