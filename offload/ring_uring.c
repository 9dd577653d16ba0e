/* offload/ring_uring.c - the io_uring back end; the only file that includes liburing.
 *
 * Owns: the ring, its registered buffers and files, the eventfd of ring_wake. Refuses: SQPOLL and
 * IOPOLL (both burn a core, and at 1 MiB a read interrupts cost nothing), kernels before 5.11.
 * Note: SINGLE_ISSUER binds the ring to a thread. It is therefore created disabled
 * and enabled by the first start or reap, so that any thread may open it and the mover may own it.
 */
#include "offload/ring_backend.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ENTRIES_SPARE 2                  // beside the ios: the poll of the eventfd, and one more
#define ENTRIES_MIN   32                 // fewer do not keep a drive busy: use threads instead
#define CHUNK_BYTES   ((int64_t)1 << 30) // the kernel's cap for one registered buffer
#define CHUNKS_MAX    1024               // of older kernels (UIO_MAXIOV); 1 TiB

struct uring {
    struct ring_backend backend;
    struct io_uring ring;
    int wake_fd;
    int enabled;
    int wake_armed;
    int dead;             // errno of a ring that cannot go on
    int files_fixed;      // the file table is registered
    int n_chunks;         // registered buffers; 0: none
    struct iovec *chunks; // owned [n_chunks]
};

/* ---- the owner's side ---- */

static void wake_arm(struct uring *u)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    CHECK(sqe);
    io_uring_prep_poll_add(sqe, u->wake_fd, POLLIN);
    io_uring_sqe_set_data(sqe, u);
    u->wake_armed = 1;
}

static void wake_drain(struct uring *u)
{
    uint64_t count;
    ssize_t n = read(u->wake_fd, &count, sizeof count);
    (void)n; // EAGAIN: nothing was there
}

/* Enables the ring on the owner's thread, once. */
static void enable(struct uring *u)
{
    if (u->enabled || u->dead)
        return;
    u->enabled = 1;
    /* By hand: liburing 2.3 declares io_uring_enable_rings, but its library does not export it. */
    if (syscall(SYS_io_uring_register, u->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0) < 0)
        u->dead = errno;
    else
        wake_arm(u);
}

/* After EAGAIN, EBUSY or EINTR entries stay queued and are submitted with the next call, neither
 * lost nor doubled. */
static void submit_result(struct uring *u, int e)
{
    if (e < 0 && e != -EAGAIN && e != -EBUSY && e != -EINTR && e != -ETIME)
        u->dead = -e;
}

static int chunk_find(const struct uring *u, const struct ring_op *op)
{
    for (int i = 0; i < u->n_chunks; i++) {
        const char *base = u->chunks[i].iov_base;
        const char *buf = op->buf;
        if (buf >= base && buf + op->n_bytes <= base + u->chunks[i].iov_len)
            return i;
    }
    return -1;
}

static void uring_start(struct ring_backend *b, struct ring_op *op)
{
    struct uring *u = (struct uring *)b;
    enable(u);
    if (u->dead)
        return; // the next reap returns the error
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    CHECK(sqe); // the queue has room for every op of the ring and the poll
    int chunk = chunk_find(u, op);
    int fd = u->files_fixed ? op->file_slot : op->fd;
    unsigned n = (unsigned)op->n_bytes;
    uint64_t offset = (uint64_t)op->offset;
    if (chunk >= 0 && op->write)
        io_uring_prep_write_fixed(sqe, fd, op->buf, n, offset, chunk);
    else if (chunk >= 0)
        io_uring_prep_read_fixed(sqe, fd, op->buf, n, offset, chunk);
    else if (op->write)
        io_uring_prep_write(sqe, fd, op->buf, n, offset);
    else
        io_uring_prep_read(sqe, fd, op->buf, n, offset);
    if (u->files_fixed)
        sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data(sqe, op);
    submit_result(u, io_uring_submit(&u->ring));
}

/* Drains the completion queue. */
static int completions_take(struct uring *u, struct ring_op **done, int max)
{
    int n = 0;
    unsigned n_seen = 0, head;
    struct io_uring_cqe *cqe;
    io_uring_for_each_cqe(&u->ring, head, cqe)
    {
        if (n == max)
            break;
        n_seen++;
        if (io_uring_cqe_get_data(cqe) == u) {
            wake_drain(u);
            u->wake_armed = 0;
            continue;
        }
        struct ring_op *op = io_uring_cqe_get_data(cqe);
        op->result = cqe->res;
        done[n++] = op;
    }
    io_uring_cq_advance(&u->ring, n_seen);
    if (!u->wake_armed)
        wake_arm(u);
    return n;
}

/* A dead ring still sleeps until it is woken, or its owner would spin. */
static int dead_reap(struct uring *u, int64_t wait_ns)
{
    struct pollfd p = {.fd = u->wake_fd, .events = POLLIN};
    poll(&p, 1, (int)(wait_ns / 1000000));
    wake_drain(u);
    return -u->dead;
}

static int uring_reap(struct ring_backend *b, struct ring_op **done, int max, int64_t wait_ns)
{
    struct uring *u = (struct uring *)b;
    enable(u);
    if (u->dead)
        return dead_reap(u, wait_ns);
    if (io_uring_cq_ready(&u->ring) > 0)
        wait_ns = 0;
    if (wait_ns > 0) {
        struct __kernel_timespec t = {.tv_sec = wait_ns / 1000000000,
                                      .tv_nsec = wait_ns % 1000000000};
        struct io_uring_cqe *cqe;
        submit_result(u, io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, &t, NULL));
    } else {
        submit_result(u, io_uring_submit_and_get_events(&u->ring));
    }
    int n = completions_take(u, done, max);
    return n == 0 && u->dead ? -u->dead : n;
}

static void uring_wake(struct ring_backend *b)
{
    struct uring *u = (struct uring *)b;
    uint64_t one = 1;
    ssize_t n = write(u->wake_fd, &one, sizeof one);
    (void)n; // EAGAIN: 2^64 wakes are waiting already
}

static void uring_file_set(struct ring_backend *b, int file_slot, int fd)
{
    struct uring *u = (struct uring *)b;
    if (!u->files_fixed)
        return;
    int e = io_uring_register_files_update(&u->ring, (unsigned)file_slot, &fd, 1);
    CHECK(e == 1); // cannot fail: the table has the entry, and this is the owner
}

static void uring_close(struct ring_backend *b)
{
    struct uring *u = (struct uring *)b;
    io_uring_queue_exit(&u->ring);
    close(u->wake_fd);
    free(u->chunks);
    free(u);
}

/* ---- open ---- */

static int64_t memlock_bytes(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur > INT64_MAX)
        return INT64_MAX;
    return (int64_t)limit.rlim_cur;
}

/* All or nothing: with half of the buffers registered, speed would be a matter of luck. */
static enum err buffers_register(struct uring *u, const struct ring_config *config)
{
    int64_t n_chunks = 0, n_bytes = 0;
    for (int i = 0; i < config->n_buffers; i++) {
        n_chunks += ceil_div(config->buffers[i].n_bytes, CHUNK_BYTES);
        n_bytes += config->buffers[i].n_bytes;
    }
    if (n_chunks == 0)
        return OK;
    if (n_chunks > CHUNKS_MAX) {
        log_line(LOG_WARN,
                 "io: %lld MiB of buffers are too many to register; continuing unregistered",
                 (long long)(n_bytes >> 20));
        return OK;
    }
    u->chunks = calloc((size_t)n_chunks, sizeof *u->chunks);
    if (!u->chunks)
        return fail(ERR_FIT, "io: no memory");
    int n = 0;
    for (int i = 0; i < config->n_buffers; i++) {
        char *base = config->buffers[i].base;
        int64_t left = config->buffers[i].n_bytes;
        for (; left > 0; left -= CHUNK_BYTES, base += CHUNK_BYTES)
            u->chunks[n++] = (struct iovec){base, (size_t)min_i64(left, CHUNK_BYTES)};
    }
    int e = io_uring_register_buffers(&u->ring, u->chunks, (unsigned)n);
    if (e == 0) {
        u->n_chunks = n;
    } else if (e == -ENOMEM) {
        log_line(LOG_WARN,
                 "io: %lld KiB of buffers cannot be registered: locked memory is limited to %lld "
                 "KiB (raise ulimit -l); continuing unregistered, answers stay the same",
                 (long long)(n_bytes >> 10), (long long)(memlock_bytes() >> 10));
    } else {
        log_line(LOG_WARN, "io: buffers cannot be registered: %s; continuing unregistered",
                 strerror(-e));
    }
    return OK;
}

/* An empty table, to be filled by ring_file_add. EMFILE (a small ulimit -n) costs a little speed.
 */
static int files_register(struct uring *u)
{
    int fds[2 * RING_FILES_MAX];
    for (int i = 0; i < 2 * RING_FILES_MAX; i++)
        fds[i] = -1;
    int e = io_uring_register_files(&u->ring, fds, 2 * RING_FILES_MAX);
    u->files_fixed = e == 0;
    if (e < 0)
        log_line(LOG_DEBUG, "io: files cannot be registered: %s", strerror(-e));
    return e;
}

static int queue_open(struct uring *u, unsigned entries)
{
    /* Best first: kernels from 6.1 accept the first, those from 5.11 the second. */
    static const unsigned flags[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, 0};
    int e = -EINVAL;
    for (int i = 0; i < 2 && e == -EINVAL; i++) {
        struct io_uring_params params = {.flags = flags[i] | IORING_SETUP_R_DISABLED |
                                                  IORING_SETUP_CLAMP};
        e = io_uring_queue_init_params(entries, &u->ring, &params);
    }
    unsigned need = IORING_FEAT_EXT_ARG | IORING_FEAT_NODROP;
    if (e == 0 && (u->ring.features & need) != need) {
        io_uring_queue_exit(&u->ring);
        e = -ENOSYS;
    }
    return e;
}

static const struct ring_backend_calls URING_CALLS = {
    .name = "io_uring",
    .start = uring_start,
    .reap = uring_reap,
    .wake = uring_wake,
    .file_set = uring_file_set,
    .close = uring_close,
};

static enum err refused(int e)
{
    return fail(ERR_USAGE, "io_uring cannot be used: %s%s", strerror(e),
                e == EPERM || e == ENOSYS ? " (refused by the kernel or a container's filter)"
                : e == ENOMEM             ? " (raise ulimit -l)"
                                          : "");
}

enum err ring_uring_open(struct ring_backend **b, const struct ring_config *config, int *depth)
{
    struct uring *u = calloc(1, sizeof *u);
    if (!u)
        return fail(ERR_FIT, "io: no memory");
    u->backend.calls = &URING_CALLS;
    unsigned entries = (unsigned)(*depth + ENTRIES_SPARE);
    int e = queue_open(u, entries);
    while (e == -ENOMEM && entries / 2 >= ENTRIES_MIN) {
        entries /= 2;
        e = queue_open(u, entries);
    }
    if (e < 0) {
        free(u);
        return refused(-e);
    }
    *depth = (int)min_i64(*depth, (int64_t)entries - ENTRIES_SPARE);
    e = files_register(u);
    u->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum err err = OK;
    if (e == -EPERM || e == -ENOSYS)
        err = refused(-e);
    else if (u->wake_fd < 0)
        err = fail(ERR_FIT, "io: eventfd: %s (raise ulimit -n)", strerror(errno));
    else
        err = buffers_register(u, config);
    if (err == OK) {
        *b = &u->backend;
        return OK;
    }
    if (u->wake_fd < 0)
        u->wake_fd = -1;
    uring_close(&u->backend);
    return err;
}
