/* offload/ring.h - asynchronous reads and writes of files, for one owner thread.
 *
 * Owns: the file descriptors of its files, the back end (io_uring, or a pool of pread threads), and
 * what happens when an attempt is short, refused or lost. Refuses: choosing what to read and when
 * (mover), splitting large transfers, checksums, fsync.
 * Threads: ring_open and ring_file_add may run on any thread until the first ring_submit or
 * ring_reap; the thread that makes that call is the owner, and everything but ring_wake is its
 * alone from then on. Pool threads inherit the affinity of the thread that calls ring_open. The
 * process must ignore SIGXFSZ, or a file size limit kills it instead of failing the write. */
#ifndef OFFLOAD_RING_H
#define OFFLOAD_RING_H

#include "kernels/base/base.h"

#define RING_FILES_MAX 256
#define RING_DEPTH_MAX 4096

enum ring_kind {
    RING_AUTO,    // io_uring, or where it is refused the threads, with one warning
    RING_URING,   // io_uring or an error
    RING_THREADS, // a pool of threads that call pread and pwrite
};

enum ring_wait {
    RING_POLL, // do not wait
    RING_WAIT, // wait for a completion; return at once when nothing is in flight
    RING_IDLE, // as RING_WAIT, but with nothing in flight sleep until ring_wake
};

struct ring; // opaque: hides liburing and pthread

/* A range of memory that transfers will use. Registered with the kernel once, so that a transfer
 * that lies inside one range costs no page pinning. Must be page aligned to be of use. */
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
        *buffers; // borrowed: during ring_open only; the memory until ring_close
    int n_buffers;
};

/* One read or write. Owned by the caller; it and its buffer stay put until ring_reap gives it back.
 */
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

struct ring_stats {
    int64_t read_bytes, write_bytes;     // of ios that completed OK
    int64_t n_reads, n_writes;           // ios that completed OK
    int64_t read_busy_ns, write_busy_ns; // time with at least one read (write) in flight
};

/* ERR_USAGE: bad config, or RING_URING where the kernel refuses it (the sentence
 * names the cause). ERR_FIT: no memory, or no thread can be started. */
enum err ring_open(struct ring **ring, const struct ring_config *config);

/* Adds a file. fd < 0: opens `path` with `flags` (open(2) flags; O_CREAT makes mode 0600).
 * fd >= 0: duplicates it (the caller keeps its own; it must not be O_NONBLOCK); `path` is then only
 * the name in messages, and `flags` says O_RDONLY or O_RDWR. The same file is opened a second time
 * with O_DIRECT when the file system takes it. ERR_INPUT (read only) or ERR_IO (written to): cannot
 * be opened, or is not a regular file or block device. ERR_FIT: out of descriptors. ERR_USAGE: more
 * than RING_FILES_MAX. */
enum err ring_file_add(struct ring *r, const char *path, int fd, int flags, int *file);
/* Offset, length and address of a transfer must be multiples of this to bypass the page cache
 * (others go through it, and are just as correct). 1 when the file has no direct I/O (any more). */
int64_t ring_file_align_bytes(const struct ring *r, int file);
int ring_file_fd(const struct ring *r, int file); // the buffered one, borrowed: fallocate, fstat

/* Starts an io. ERR_BUSY: `depth` are in flight, reap first. ERR_IO: the watchdog has struck
 * before. Every other trouble arrives with the io in ring_reap. */
enum err ring_submit(struct ring *r, struct ring_io *io);

/* Gives back completed ios, at most `max`: returns how many, in completion order, which is any
 * order. 0 under RING_WAIT or RING_IDLE: woken, or nothing in flight (RING_WAIT). An attempt
 * without an answer for watchdog_ms comes back as ERR_IO. The kernel may still write to its buffer:
 * do not reuse or unmap it, stop the job (ring_submit refuses from then on). */
int ring_reap(struct ring *r, struct ring_io **done, int max, enum ring_wait wait);

/* From any thread: the owner's running or next waiting ring_reap returns early. Never lost. */
void ring_wake(struct ring *r);

const char *ring_name(const struct ring *r); // "io_uring" or "threads"
int ring_depth(const struct ring *r);        // may be less than asked for when memory is short
int ring_in_flight(const struct ring *r);    // submitted and not yet given back
int ring_lost(const struct ring *r);         // the watchdog has struck: buffers may yet change
void ring_stats(const struct ring *r, struct ring_stats *stats);

/* Waits for what is in flight (bounded by the watchdog), then frees all; after the watchdog has
 * struck the descriptors stay open for whoever still hangs in them. Accepts NULL. */
void ring_close(struct ring *r);

#endif
