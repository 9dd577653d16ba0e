/* offload/mover.h - carries bytes between where they live and where they are worked on, ahead of
 * need: files to and from RAM or a device's memory, RAM to and from a device's memory.
 *
 * Owns: the ring and the thread that drives it, a device's two copy streams, the queue of tickets,
 * the lanes of transfers, and the one check of stored bytes: whatever is read from a file is held
 * against its CRC32C before its ticket is done, every time, and read once more when it is wrong.
 * Refuses: choosing what to move (policy) or when (engine); knowing what the bytes mean.
 * Threads: mover_submit / mover_wait / mover_done from the walker; everything else happens on the
 * mover's own thread. The earliest due ticket goes first, in pieces of PIECE_BYTES; between a file
 * and a device each piece goes over a bounce buffer in RAM, where it is checked. */
#ifndef OFFLOAD_MOVER_H
#define OFFLOAD_MOVER_H

#include "kernels/device.h"
#include "kernels/base/trace.h"
#include "offload/codec.h"
#include "offload/ring.h"

#define MOVER_COPY_PIECE (8 << 20) // between RAM and a device, where nothing is checked
#define MOVER_PLACES_MAX 8

struct mover; // opaque: hides pthread and the ring

/* One contiguous run of a transfer. Neighbours in place and memory travel together. */
struct segment {
    int64_t offset, n_bytes; // in the place
    void *buf;               // RAM, or memory of the device
    uint32_t *crc; // CRC32C of each PIECE_BYTES of it, chained from `seed`. Reads of files:
                   // what they must be. Writes: where they are put, or NULL
    uint32_t seed;
    int32_t crc_from, crc_bytes; // reads: the bytes that `crc` is of; crc_bytes 0: all
    enum err
        err; // of a ticket that is done: ERR_CORRUPT (wrong twice), or what the ring gave up with
};

enum ticket_state { TICKET_IDLE, TICKET_QUEUED, TICKET_DONE };

/* One transfer. Owned by the caller; it and its segments must stay put until it is done. */
struct ticket {
    int place;                // index into mover_config.places
    int write;                // 0: place -> buf, 1: buf -> place
    int on_device;            // buf is memory of the device
    struct segment *segments; // borrowed; [n_segments], in any order
    int n_segments;
    int64_t due;          // step that needs it; the smallest goes first
    struct ticket *after; // starts when this one, as it was at submission, is done; or NULL
    const struct codec_piece *stored; // where each piece of segment 0, the only one, lies in the
                                      // place instead of at its offset (reads), or NULL
    const char *name; // static string for the trace: "weights", "kv", "hidden", "rows"
    int layer, batch; // for the trace; -1: none
    // written by the mover
    int state;    // enum ticket_state; read it through mover_done()
    enum err err; // of the first segment that failed
    char err_text[256];
    uint64_t seq, after_seq;
    int next_segment, in_flight;
    int64_t next_byte, n_bytes, start_ns;
    struct ticket *next;
};

/* What the checks found, in units of at most PIECE_BYTES. */
struct mover_repairs {
    int64_t repaired; // wrong at first, right when read again
    int64_t bad;      // could not be read, or wrong twice
};

struct mover_config {
    enum ring_kind kind;
    int depth; // pieces in flight
    struct mover_place {
        const char *path; // of a file, for messages; opened for reading when fd is -1; NULL and no
                          // base: there is no such place
        int fd;           // >= 0: an open file for both directions (scratch); stays the caller's
        const char *hint; // what helps when its bytes are wrong, for messages; or NULL
        void *base;       // not NULL: RAM instead of a file, for buffers on the device
    } places[MOVER_PLACES_MAX];
    int n_places;
    struct device *device; // borrowed; of the buffers on it, NULL without any
    void *bounce;          // [depth][PIECE_BYTES] pinned, with a device
    void *base;            // memory to register with the kernel: the arena
    int64_t n_bytes;
    void *staging;       // [depth][PIECE_BYTES] for stored pieces, NULL without any
    struct trace *trace; // borrowed; lanes nvme-* and h2d, d2h
};

/* Starts the thread; returns once the ring stands or failed. */
enum err mover_open(struct mover **m, const struct mover_config *config);
/* Queues an idle ticket. n_segments 0 is done at once. */
void mover_submit(struct mover *m, struct ticket *t);
const char *mover_io_name(const struct mover *m); // of the ring's back end: see ring_name
/* 1 when the ticket is done (or was never submitted). */
int mover_done(struct mover *m, const struct ticket *t);
/* Waits until it is done, makes it idle, returns its error (sentence recorded for this thread). */
enum err mover_wait(struct mover *m, struct ticket *t);
/* OK, or why the run must end, whichever ticket it was: a write failed, so that bytes are lost
 * which nobody has asked for yet, or the ring gave up a transfer that may still touch its buffer.
 * Costs a load. */
enum err mover_failed(struct mover *m);
void mover_repairs(struct mover *m, struct mover_repairs *repairs);
/* Stops the thread after what is in flight; queued tickets are dropped. Accepts NULL. */
void mover_close(struct mover *m);

#endif
