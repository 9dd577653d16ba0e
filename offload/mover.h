/* offload/mover.h - moves bytes ahead of need between files, RAM and a device's memory.
 *
 * Owns: the ring and the thread that drives it, a device's two copy streams, the queue of tickets,
 * the transfer lanes, and the check of stored bytes: every byte read from a file is compared with
 * its CRC32C before its ticket is done; on a mismatch it is read once more. Refuses: choosing what
 * to move (policy) or when (engine); knowing what the bytes mean.
 * Threads: the walker calls mover_submit, mover_wait and mover_done; all else happens on the
 * mover's thread, but for the check of pieces that were read, which its checkers may do. The ticket
 * with the earliest due step goes first, in pieces of PIECE_BYTES. Between a file and a device each
 * piece passes through a bounce buffer in RAM, where it is checked. */
#ifndef OFFLOAD_MOVER_H
#define OFFLOAD_MOVER_H

#include "kernels/device.h"
#include "kernels/base/trace.h"
#include "offload/codec.h"
#include "offload/scratch.h"

#define MOVER_COPY_PIECE (8 << 20) // bytes per copy between RAM and a device
#define MOVER_PLACES_MAX 8
#define MOVER_CHECKERS   4 // most threads that check pieces beside the mover's

/* Threads that decode and check pieces in a run of so many threads. One thread compares checksums
 * at about 12 GB/s and decodes at 1 to 2 GB/s; where a drive brings more, there are cores for more.
 */
static inline int mover_checkers(int n_threads)
{
    return (int)min_i64(n_threads / 8, MOVER_CHECKERS);
}

struct mover; // opaque: hides pthread and the ring

/* A contiguous part of a transfer. Segments adjacent in file and memory share a piece. */
struct segment {
    int64_t offset, n_bytes; // in the file or RAM range
    void *buf;               // RAM, or device memory
    uint32_t *crc; // a CRC32C per PIECE_BYTES of the segment, seeded with `seed`. Reads of files:
                   // the expected ones. Writes: receives them, or NULL
    uint32_t seed;
    int32_t crc_from, crc_bytes; // reads: the bytes that `crc` covers; crc_bytes 0: all
    enum err err; // when the ticket is done: ERR_CORRUPT (wrong in two reads), or the ring's error
};

enum ticket_state { TICKET_IDLE, TICKET_QUEUED, TICKET_DONE };

/* One transfer. Owned by the caller; it and its segments must not move until it is done. */
struct ticket {
    int place;                // index into mover_config.places: a file or a range of RAM
    int write;                // 0: place -> buf, 1: buf -> place
    int on_device;            // 1: buf is device memory
    struct segment *segments; // borrowed; [n_segments], in any order
    int n_segments;
    int64_t due;          // step that needs it; the smallest goes first
    struct ticket *after; // starts when this ticket, as submitted at that time, is done; or NULL
    const struct codec_piece *stored; // reads of encoded pieces: where the file has each piece of
                                      // the only segment, instead of at its offset; or NULL
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

/* Results of the checks, in units of at most PIECE_BYTES. */
struct mover_repairs {
    int64_t repaired; // wrong at first, right when read again
    int64_t bad;      // could not be read, or wrong twice
};

struct mover_config {
    enum ring_kind kind;
    int depth;      // pieces in flight
    int n_checkers; // 0: the mover's thread checks
    struct mover_place {
        const char *path; // of a file, opened for reading; NULL and no base: an unused entry
        const struct scratch *scratch; // borrowed during mover_open; not NULL: these files
                                       // instead, for both directions; `path` names them
        const char *hint;              // advice in messages about wrong bytes; or NULL
        void *base; // not NULL: a range of RAM instead of a file, copied to and from the device
    } places[MOVER_PLACES_MAX];
    int n_places;
    struct device *device; // borrowed; NULL: no buffers on a device
    void *bounce;          // [depth][PIECE_BYTES] pinned, with a device
    void *base;            // memory to register with the kernel: the arena
    int64_t n_bytes;
    void *staging;       // [depth][PIECE_BYTES] for encoded pieces; NULL: there are none
    struct trace *trace; // borrowed; lanes nvme-* and h2d, d2h
};

/* Opens the ring and the places, and starts the thread. ERR_FIT, or the error of ring or device. */
enum err mover_open(struct mover **m, const struct mover_config *config);
/* Queues an idle ticket. A ticket without segments is done at once. */
void mover_submit(struct mover *m, struct ticket *t);
const char *mover_io_name(const struct mover *m); // of the back end: see ring_name
/* 1 when the ticket is done (or was never submitted). */
int mover_done(struct mover *m, const struct ticket *t);
/* Waits until the ticket is done and makes it idle. Returns its error; err_text() says why. */
enum err mover_wait(struct mover *m, struct ticket *t);
/* OK, or the error for which the run must end, whichever ticket had it: a write failed (its bytes
 * are lost), the device failed, or the ring gave up a transfer that may still touch its buffer.
 * Costs one atomic read. */
enum err mover_failed(struct mover *m);
void mover_repairs(struct mover *m, struct mover_repairs *repairs);
/* Waits for the pieces in flight, drops queued tickets, stops the thread. Accepts NULL. */
void mover_close(struct mover *m);

#endif
