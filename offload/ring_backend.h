/* offload/ring_backend.h - the interface between ring.c and the back ends that do the I/O.
 *
 * Private to ring*.c. A back end starts attempts and returns them with the kernel's result; it
 * never judges a result: short counts, errno classes and the watchdog are ring.c's. */
#ifndef OFFLOAD_RING_BACKEND_H
#define OFFLOAD_RING_BACKEND_H

#include "offload/ring.h"

/* One attempt: one system call of an io. Owned by ring.c until the back end is closed, because a
 * result may arrive long after the watchdog gave up the io. */
struct ring_op {
    int fd;
    int file_slot; // 2 * file + (1 direct, 0 buffered): index for registered files
    int write;
    int direct;
    int64_t offset;
    int64_t n_bytes;     // at most RING_ATTEMPT_BYTES_MAX
    int64_t align_bytes; // of offset and length on this fd
    void *buf;
    int64_t result;     // bytes moved, or -errno
    uint64_t seq;       // of the io
    int attempt;        // of the io, from 0
    struct ring_io *io; // NULL while free, or given up by the watchdog
    int in_flight;      // at the back end
    int64_t start_ns;   // on ring.c's watchdog clock
    struct ring_op *next;
};

/* The kernel cuts one call at 2 GiB - 4 KiB; 1 GiB keeps every alignment. */
#define RING_ATTEMPT_BYTES_MAX ((int64_t)1 << 30)

struct ring_backend {
    const struct ring_backend_calls *calls;
};

struct ring_backend_calls {
    const char *name;
    /* Cannot fail: errors are results of the op, or of reap. */
    void (*start)(struct ring_backend *b, struct ring_op *op);
    /* Waits up to wait_ns (0: not at all) for a completion, a wake or a signal; returns how many
     * ops it put into done[max], or -errno when the back end is dead. */
    int (*reap)(struct ring_backend *b, struct ring_op **done, int max, int64_t wait_ns);
    void (*wake)(struct ring_backend *b); // any thread
    void (*file_set)(struct ring_backend *b, int file_slot, int fd);
    void (*close)(struct ring_backend *b); // ops still in flight are abandoned, not waited for
};

/* *depth is lowered when the kernel has no memory for more. ERR_USAGE: refused, with the cause; *b
 * stays NULL. */
enum err ring_uring_open(struct ring_backend **b, const struct ring_config *config, int *depth);
enum err ring_pool_open(struct ring_backend **b, int n_threads);

#endif
