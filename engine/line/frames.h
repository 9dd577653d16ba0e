/* engine/line/frames.h - frames: buffers near the compute, each held by one step at a time.
 *
 * Owns: which step holds which frame, the frame's read and write tickets, and the order of
 * transfers: every transfer names the last write of its extent as `after` and starts once that
 * write is done. policy/plan.c proves that no transfer waits for a later step. Refuses: knowledge
 * of what the bytes mean. */
#ifndef ENGINE_LINE_FRAMES_H
#define ENGINE_LINE_FRAMES_H

#include "offload/mover.h"

struct frame {
    int64_t step; // step that holds the frame; -1: free once `write` is done
    uint8_t *base;
    struct ticket read, write;
    struct segment *segments; // first of the read, then of the write
    int n_write;              // segments of the write so far
    int bad;                  // part of the read failed; see the segments' `err`
    int32_t *pages;           // KV: [plan_pool_pages] segment of `read` with the page; -1: not read
};

/* The last write of an extent. The write is done when the ticket is done or has been reused (other
 * seq). */
struct last_write {
    struct ticket *ticket;
    uint64_t seq;
};

struct frames {
    const char *name;     // "kv" or "hidden": name of the tickets
    struct mover *mover;  // borrowed
    struct trace *trace;  // borrowed
    int on_device;        // the frames are device memory
    struct frame *frames; // [n]
    int n;
};

/* The extent of a transfer; line layer (or -1) and batch are for traces and messages. */
struct frame_use {
    int64_t step;
    int place; // mover's place index of the extent
    int layer, batch;
    struct last_write *last; // last write of the extent
};

/* Waits for a ticket. Time spent waiting goes to the stall lane under the ticket's name. */
enum err frames_wait(struct mover *mover, struct trace *trace, struct ticket *t, int64_t step);

/* The frame that a step holds, or NULL. */
struct frame *frames_of(const struct frames *f, int64_t step);
/* Claims a free frame for a step; if all are being written, waits for the oldest write. */
enum err frames_take(struct frames *f, int64_t step, struct frame **out);
/* Starts the read of the frame's first n segments. */
void frames_fetch(struct frames *f, struct frame *frame, int n, struct frame_use use);
/* Waits for the read. Failed segments carry an `err` and set frame->bad; the function itself
 * returns only errors that end the run. */
enum err frames_ready(struct frames *f, struct frame *frame);
/* Starts the write of the frame's first n segments (0: none) and releases the frame. */
void frames_store(struct frames *f, struct frame *frame, int n, struct frame_use use);
/* Waits for all tickets in flight and ignores their errors. */
void frames_drain(struct frames *f);

#endif
