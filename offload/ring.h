/* offload/ring.h - asynchronous reads and writes of files, for one owner thread.
 *
 * Owns: the descriptors of its files, the back end (io_uring, or a pool of pread threads), and the
 * handling of short, refused and lost attempts. Refuses: choosing what to read and when (mover),
 * splitting large transfers, checksums, fsync.
 * Threads: ring_open and ring_file_add may run on any thread until the first ring_submit or
 * ring_reap. The thread of that call is the owner: from then on other threads may only call
 * ring_wake. Pool threads inherit the affinity of the thread that calls ring_open. The process must
 * ignore SIGXFSZ, or a file size limit kills it instead of failing the write. */
#ifndef OFFLOAD_RING_H
#define OFFLOAD_RING_H

#include "kernels/base/base.h"

#define RING_FILES_MAX    256
#define RING_DEPTH_MAX    4096
#define RING_STRIPES_MAX  8         // files that one striped file is divided over
#define RING_STRIPE_BYTES (1 << 20) // a striped file changes from one file to the next

enum ring_kind {
    RING_AUTO,    // io_uring or, if it is refused, threads, with one warning
    RING_URING,   // io_uring or an error
    RING_THREADS, // a pool of threads that call pread and pwrite
};

enum ring_wait {
    RING_POLL, // do not wait
    RING_WAIT, // wait for a completion; return at once when nothing is in flight
    RING_IDLE, // as RING_WAIT, but with nothing in flight sleep until ring_wake
};

struct ring; // opaque: hides liburing and pthread

/* A range of memory that transfers use, registered with the kernel once, so that a transfer inside
 * the range needs no page pinning. Without page alignment it has no effect. */
struct ring_buffer {
    void *base;
    int64_t n_bytes;
};

struct ring_config {
    enum ring_kind kind;
    int depth;       // ios in flight, 1..RING_DEPTH_MAX
    int n_threads;   // of the pool; 0: min(depth, 16)
    int watchdog_ms; // an attempt older than this is lost; 0: 60000
    const struct ring_buffer
        *buffers; // borrowed during ring_open; the memory itself until ring_close
    int n_buffers;
};

/* One read or write. Owned by the caller, who must not move or free the io or its buffer until
 * ring_reap returns the io. */
struct ring_io {
    int file;        // index from ring_file_add
    int write;       // 0 reads, 1 writes
    int64_t offset;  // bytes from the start of the file
    int64_t n_bytes; // 0 is allowed and completes at once
    void *buf;       // borrowed: the caller's
    void *user;      // the caller's, never looked at
    enum err err;    // set on completion: OK, ERR_IO, ERR_CORRUPT (file ends early), ERR_INTERNAL
    char err_text[256];   // the sentence when err != OK
    int64_t done_bytes;   // private from here on
    int64_t due_ns;       // when to try again
    uint64_t seq;         // number of the io since ring_open
    int n_attempts;       // attempts started
    int n_fruitless;      // attempts in a row without a byte moved
    int n_eio;            // EIO seen
    struct ring_io *next; // retry list, ready list
};

/* ERR_USAGE: bad config, or RING_URING where the kernel refuses it (the sentence
 * names the cause). ERR_FIT: no memory, or no thread can be started. */
enum err ring_open(struct ring **ring, const struct ring_config *config);

/* Adds a file. fd < 0: opens `path` with `flags` (open(2) flags; O_CREAT makes mode 0600). fd >= 0:
 * duplicates it (the caller keeps its own; it must not be O_NONBLOCK); `path` is then only the name
 * in messages, and `flags` says O_RDONLY or O_RDWR. The file is opened a second time with O_DIRECT
 * if the file system allows it. ERR_INPUT (read only) or ERR_IO (written to): cannot be opened, or
 * is not a regular file or block device. ERR_FIT: out of descriptors. ERR_USAGE: more than
 * RING_FILES_MAX. */
enum err ring_file_add(struct ring *r, const char *path, int fd, int flags, int *file);
/* Adds one file whose bytes are divided over files [n] that were added before: stripe s of
 * RING_STRIPE_BYTES is stripe s / n of files[s % n]. Files on several drives have the drives'
 * speeds together, if these are alike. An io may cross stripes: their parts move one after the
 * other. n: 1 (then *file is files[0]) to RING_STRIPES_MAX. ERR_USAGE: too many files. */
enum err ring_stripe_add(struct ring *r, const char *path, const int *files, int n, int *file);
/* Offset, length and address of a transfer must be multiples of this to bypass the page cache
 * (others go through it, and are just as correct). 1 when the file has no direct I/O (any more). */
int64_t ring_file_align_bytes(const struct ring *r, int file);
/* The buffered descriptor, borrowed: fallocate, fstat. -1: the file is striped. */
int ring_file_fd(const struct ring *r, int file);

/* Starts an io. ERR_BUSY: `depth` are in flight, reap first. ERR_IO: the watchdog gave up an
 * attempt before. All other errors are returned with the io by ring_reap. */
enum err ring_submit(struct ring *r, struct ring_io *io);

/* Returns the number of completed ios, at most `max`, in any order. 0 under RING_WAIT or RING_IDLE:
 * woken, or nothing in flight (RING_WAIT). An attempt without completion for watchdog_ms is given
 * up as ERR_IO. The kernel may still write to its buffer: do not reuse or unmap it, and end the job
 * (ring_submit refuses from then on). */
int ring_reap(struct ring *r, struct ring_io **done, int max, enum ring_wait wait);

/* From any thread: the owner's running or next waiting ring_reap returns early. Never lost. */
void ring_wake(struct ring *r);

const char *ring_name(const struct ring *r); // "io_uring" or "threads"
int ring_depth(const struct ring *r);        // less than configured when memory is short
int ring_in_flight(const struct ring *r);    // submitted, not yet returned
int ring_lost(const struct ring *r); // the watchdog gave up an attempt: its buffer may still change

/* Waits for the ios in flight (bounded by the watchdog), then frees all. If an attempt was given
 * up, the descriptors stay open, because a thread may still use them. Accepts NULL. */
void ring_close(struct ring *r);

#endif
