/* offload/ring.c - see ring.h.
 *
 * Owns: files, the steps of an io (attempts, retries, fallbacks, watchdog), the counters. Refuses:
 * system calls that move data; those are the back ends' (ring_backend.h).
 * Note: an io is a loop of attempts, and each attempt chooses its descriptor. So the unaligned rest
 * of a short O_DIRECT read goes through the page cache, and so does everything after a refusal. */
#include "offload/ring.h"
#include "offload/ring_backend.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CANCELED_MAX     12 // retries without a worker thread: the kernel has one soon, or never
#define FRUITLESS_MAX    64 // attempts without a byte moved; with the backoff below about 5 s
#define BACKOFF_FIRST_NS 16000
#define BACKOFF_MAX_NS   100000000
#define REAP_BATCH       64

struct ring_file {
    char name[120];  // for messages: the path, or "..." and its end
    int fd_direct;   // owned; -1 when the file system refuses O_DIRECT
    int fd_buffered; // owned
    int direct; // 1: fd_direct is in use. After a refusal it stays open, because queued attempts
                // name its number
    int64_t align_bytes; // of offset and length; 1 when not direct
    int64_t align_buf_bytes;
    int n_stripes; // 0: a file; else the number of files that its bytes are divided over
    int stripes[RING_STRIPES_MAX];
};

struct ring {
    struct ring_backend *backend; // owned
    struct ring_op *ops;          // owned [depth]
    struct ring_op *free_ops;
    int depth;
    int n_ios;                           // submitted, not yet returned
    struct ring_io *retry;               // waiting for due_ns, unordered
    struct ring_io *ready, **ready_tail; // completed, first in first out
    struct ring_file files[RING_FILES_MAX];
    int n_files;
    uint64_t n_submitted;
    /* The watchdog's clock advances by a bounded step in each call: transfers of a stopped process
     * (SIGSTOP, suspend) must not all be "lost" when it continues. */
    int64_t watchdog_ns, watch_ns, watch_last_ns, watch_scan_ns;
    char lost_text[256]; // why ring_submit refuses; "" while all is well
    atomic_int woken;
};

/* ---- open, files, close ---- */

static enum err backend_open(struct ring *r, const struct ring_config *config)
{
    int depth = config->depth;
    int n_threads = config->n_threads ? config->n_threads : (int)min_i64(depth, 16);
    if (config->kind != RING_THREADS) {
        enum err e = ring_uring_open(&r->backend, config, &depth);
        if (e != OK && config->kind == RING_URING)
            return e;
        static atomic_int warned; // one warning: a run opens many rings
        if (e != OK && !atomic_exchange(&warned, 1))
            log_line(LOG_WARN, "io: %s; using threads instead", err_text());
    }
    if (!r->backend)
        TRY(ring_pool_open(&r->backend, n_threads));
    r->depth = depth;
    return OK;
}

enum err ring_open(struct ring **ring, const struct ring_config *config)
{
    *ring = NULL;
    if (config->depth < 1 || config->depth > RING_DEPTH_MAX)
        return fail(ERR_USAGE, "io: depth %d is out of range (1 to %d)", config->depth,
                    RING_DEPTH_MAX);
    if (config->n_threads < 0 || config->n_threads > RING_DEPTH_MAX)
        return fail(ERR_USAGE, "io: %d threads are out of range (0 to %d)", config->n_threads,
                    RING_DEPTH_MAX);
    struct ring *r = calloc(1, sizeof *r);
    if (!r)
        return fail(ERR_FIT, "io: no memory");
    r->ready_tail = &r->ready;
    r->watchdog_ns = (config->watchdog_ms > 0 ? config->watchdog_ms : 60000) * (int64_t)1000000;
    enum err e = backend_open(r, config);
    if (e == OK) {
        r->ops = calloc((size_t)r->depth, sizeof *r->ops);
        if (!r->ops)
            e = fail(ERR_FIT, "io: no memory");
    }
    if (e != OK) {
        ring_close(r);
        return e;
    }
    for (int i = r->depth - 1; i >= 0; i--) {
        r->ops[i].next = r->free_ops;
        r->free_ops = &r->ops[i];
    }
    r->watch_last_ns = clock_ns();
    *ring = r;
    return OK;
}

/* Opens the O_DIRECT descriptor and finds its alignment. Kernels before 6.1 do not say: 4096 suits
 * every drive, and a later EINVAL falls back to the page cache. offset_align 0: none. */
static void file_direct_open(struct ring_file *f, int flags)
{
    f->fd_direct = -1;
    f->direct = 0;
    f->align_bytes = 1;
    f->align_buf_bytes = 1;
    int64_t align = 4096, align_buf = 4096;
#ifdef STATX_DIOALIGN
    struct statx sx;
    if (statx(f->fd_buffered, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) == 0 &&
        (sx.stx_mask & STATX_DIOALIGN)) {
        if (sx.stx_dio_offset_align == 0)
            return;
        align = sx.stx_dio_offset_align;
        align_buf = max_i64(sx.stx_dio_mem_align, 1);
    }
#endif
    /* Through /proc this is the same inode, even if the path was renamed or unlinked. */
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", f->fd_buffered);
    f->fd_direct = open(path, (flags & O_ACCMODE) | O_DIRECT | O_CLOEXEC);
    if (f->fd_direct < 0) {
        log_line(LOG_DEBUG, "io: %s: no direct I/O: %s", f->name, strerror(errno));
        return;
    }
    f->direct = 1;
    f->align_bytes = align;
    f->align_buf_bytes = align_buf;
}

static void file_name_set(struct ring_file *f, const char *path)
{
    size_t n = strlen(path);
    if (n < sizeof f->name)
        memcpy(f->name, path, n + 1);
    else
        snprintf(f->name, sizeof f->name, "...%s", path + n - (sizeof f->name - 4));
}

/* The next file, with a name and no descriptors; it counts once n_files does. */
static enum err file_next(struct ring *r, const char *path, struct ring_file **file)
{
    if (r->n_files == RING_FILES_MAX)
        return fail(ERR_USAGE, "%s: more than %d files in one run", path, RING_FILES_MAX);
    *file = &r->files[r->n_files];
    **file = (struct ring_file){.fd_direct = -1, .fd_buffered = -1};
    file_name_set(*file, path);
    return OK;
}

enum err ring_file_add(struct ring *r, const char *path, int fd, int flags, int *file)
{
    enum err e_open = (flags & O_ACCMODE) == O_RDONLY ? ERR_INPUT : ERR_IO;
    struct ring_file *f;
    TRY(file_next(r, path, &f));
    /* O_NONBLOCK keeps open() from hanging on a FIFO. It is cleared below, because io_uring would
     * return EAGAIN instead of waiting. */
    f->fd_buffered =
        fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : open(path, flags | O_CLOEXEC | O_NONBLOCK, 0600);
    if (f->fd_buffered < 0 && (errno == EMFILE || errno == ENFILE))
        return fail(ERR_FIT, "%s: open: %s (raise ulimit -n)", path, strerror(errno));
    if (f->fd_buffered < 0)
        return fail(e_open, "%s: open: %s", path, strerror(errno));
    struct stat st;
    if (fstat(f->fd_buffered, &st) != 0 || (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))) {
        close(f->fd_buffered);
        return fail(e_open, "%s: not a regular file", path);
    }
    if (fd < 0)
        fcntl(f->fd_buffered, F_SETFL, fcntl(f->fd_buffered, F_GETFL) & ~O_NONBLOCK);
    file_direct_open(f, flags);
    *file = r->n_files++;
    r->backend->calls->file_set(r->backend, 2 * *file, f->fd_buffered);
    if (f->fd_direct >= 0)
        r->backend->calls->file_set(r->backend, 2 * *file + 1, f->fd_direct);
    return OK;
}

enum err ring_stripe_add(struct ring *r, const char *path, const int *files, int n, int *file)
{
    struct ring_file *f;
    CHECK(n >= 1 && n <= RING_STRIPES_MAX);
    *file = files[0];
    if (n == 1)
        return OK;
    TRY(file_next(r, path, &f));
    f->n_stripes = n;
    for (int i = 0; i < n; i++) {
        CHECK(files[i] >= 0 && files[i] < r->n_files && r->files[files[i]].n_stripes == 0);
        f->stripes[i] = files[i];
    }
    *file = r->n_files++;
    return OK;
}

/* Turns byte *offset of a file into that of the file that has it, which is returned, and limits *n
 * to the bytes that follow it there. */
static int stripe_find(const struct ring *r, int file, int64_t *offset, int64_t *n)
{
    const struct ring_file *f = &r->files[file];
    if (f->n_stripes == 0)
        return file;
    const int64_t stripe = *offset / RING_STRIPE_BYTES, in = *offset % RING_STRIPE_BYTES;
    *offset = stripe / f->n_stripes * RING_STRIPE_BYTES + in;
    *n = min_i64(*n, RING_STRIPE_BYTES - in);
    return f->stripes[stripe % f->n_stripes];
}

int64_t ring_file_align_bytes(const struct ring *r, int file)
{
    CHECK(file >= 0 && file < r->n_files);
    const struct ring_file *f = &r->files[file];
    int64_t most = max_i64(f->align_bytes, f->align_buf_bytes);
    for (int i = 0; i < f->n_stripes; i++) {
        const int64_t one = ring_file_align_bytes(r, f->stripes[i]);
        if (one == 1)
            return 1;
        most = max_i64(most, one);
    }
    return most;
}

int ring_file_fd(const struct ring *r, int file)
{
    CHECK(file >= 0 && file < r->n_files);
    return r->files[file].fd_buffered;
}

void ring_close(struct ring *r)
{
    if (!r)
        return;
    struct ring_io *done[REAP_BATCH];
    while (r->n_ios > 0)
        ring_reap(r, done, REAP_BATCH, RING_WAIT);
    if (r->backend)
        r->backend->calls->close(r->backend);
    /* A hung thread may still use its descriptor, so the number must not be reused. */
    for (int i = 0; i < r->n_files && !r->lost_text[0]; i++) {
        if (r->files[i].fd_buffered >= 0)
            close(r->files[i].fd_buffered);
        if (r->files[i].fd_direct >= 0)
            close(r->files[i].fd_direct);
    }
    free(r->ops);
    free(r);
}

/* ---- one io ---- */

static const char *verb(const struct ring_io *io)
{
    return io->write ? "write" : "read";
}

static void io_finish(struct ring *r, struct ring_io *io, enum err e)
{
    io->err = e;
    io->next = NULL;
    *r->ready_tail = io;
    r->ready_tail = &io->next;
}

static int64_t watch_tick_ns(const struct ring *r)
{
    return max_i64(r->watchdog_ns / 8, 1000000);
}

static void watch_advance(struct ring *r)
{
    int64_t now = clock_ns();
    r->watch_ns += min_i64(now - r->watch_last_ns, 2 * watch_tick_ns(r));
    r->watch_last_ns = now;
}

/* The file of an attempt; for a striped io, the one that has its bytes. */
static struct ring_file *op_file(struct ring *r, const struct ring_op *op)
{
    return &r->files[op->file_slot / 2];
}

static void io_attempt(struct ring *r, struct ring_io *io)
{
    struct ring_op *op = r->free_ops;
    CHECK(op); // there are as many ops as ios (`depth`); a lost io keeps its op
    r->free_ops = op->next;
    int64_t offset = io->offset + io->done_bytes;
    int64_t n = min_i64(io->n_bytes - io->done_bytes, RING_ATTEMPT_BYTES_MAX);
    const int file = stripe_find(r, io->file, &offset, &n);
    struct ring_file *f = &r->files[file];
    char *buf = (char *)io->buf + io->done_bytes;
    int direct = f->direct && offset % f->align_bytes == 0 && n % f->align_bytes == 0 &&
                 (uintptr_t)buf % (uintptr_t)f->align_buf_bytes == 0;
    *op = (struct ring_op){
        .fd = direct ? f->fd_direct : f->fd_buffered,
        .file_slot = 2 * file + direct,
        .write = io->write,
        .direct = direct,
        .offset = offset,
        .n_bytes = n,
        .align_bytes = direct ? f->align_bytes : 1,
        .buf = buf,
        .seq = io->seq,
        .attempt = io->n_attempts++,
        .io = io,
        .in_flight = 1,
        .start_ns = r->watch_ns,
    };
    r->backend->calls->start(r->backend, op);
}

/* Retries after a pause that doubles, `most` times; then the io fails with `what` and `err`. */
static void io_again(struct ring *r, struct ring_io *io, const char *what, enum err err, int most)
{
    if (++io->n_fruitless > most) {
        snprintf(io->err_text, sizeof io->err_text, "%s: %s of %lld bytes at %lld: %s, %d times",
                 r->files[io->file].name, verb(io), (long long)io->n_bytes, (long long)io->offset,
                 what, most + 1);
        io_finish(r, io, err);
        return;
    }
    int doublings = (int)min_i64(io->n_fruitless - 1, 20);
    io->due_ns = clock_ns() + min_i64((int64_t)BACKOFF_FIRST_NS << doublings, BACKOFF_MAX_NS);
    io->next = r->retry;
    r->retry = io;
}

static const char *errno_hint(int e)
{
    switch (e) {
    case ENOSPC:
        return " (the disk is full: free some, or lower --mem-disk; the same command resumes)";
    case EDQUOT:
        return " (quota reached; the same command resumes)";
    case EFBIG:
        return " (file size limit: raise ulimit -f; the same command resumes)";
    case EROFS:
        return " (mounted read-only; the same command resumes)";
    default:
        return "";
    }
}

/* Classifies by operation and errno: EINVAL of a direct attempt means that direct I/O is not
 * possible, of a buffered one it is final. */
static void io_refused(struct ring *r, const struct ring_op *op, struct ring_io *io, int e)
{
    struct ring_file *f = op_file(r, op);
    switch (e) {
    case EINTR:
    case EAGAIN:
    case EBUSY:
    case ENOMEM: // io_uring had no memory for the request: temporary
        io_again(r, io, strerror(e), ERR_IO, FRUITLESS_MAX);
        return;
    case ECANCELED: // the kernel could start no worker
        io_again(r, io, "io_uring has no thread (raise ulimit -u, or --io threads)", ERR_FIT,
                 CANCELED_MAX);
        return;
    case EINVAL:
    case EOPNOTSUPP:
        if (!op->direct)
            break;
        if (f->direct) {
            log_line(LOG_WARN, "io: %s: direct I/O refused (%s), using the page cache", f->name,
                     strerror(e));
            f->direct = 0;
            f->align_bytes = f->align_buf_bytes = 1;
        }
        io_attempt(r, io);
        return;
    case EIO:
        if (io->write || io->n_eio++)
            break;
        io_attempt(r, io); // drives often recover on the second read
        return;
    default:
        break;
    }
    snprintf(io->err_text, sizeof io->err_text, "%s: %s of %lld bytes at %lld: %s%s", f->name,
             verb(io), (long long)op->n_bytes, (long long)op->offset, strerror(e), errno_hint(e));
    io_finish(r, io, e == EBADF || e == EFAULT ? ERR_INTERNAL : ERR_IO);
}

/* No bytes and no error. A read: the end of the file, unless its size says otherwise. */
static void io_nothing(struct ring *r, const struct ring_op *op, struct ring_io *io)
{
    struct ring_file *f = op_file(r, op);
    struct stat st;
    int sized = fstat(f->fd_buffered, &st) == 0 && S_ISREG(st.st_mode);
    if (io->write || (sized && st.st_size > op->offset)) {
        io_again(r, io, "no bytes were transferred", ERR_IO, FRUITLESS_MAX);
        return;
    }
    snprintf(io->err_text, sizeof io->err_text,
             "%s: read at %lld: needs %lld bytes, file ends at %lld (truncated, or changed while "
             "reading)",
             f->name, (long long)io->offset, (long long)io->n_bytes,
             (long long)(sized ? st.st_size : op->offset));
    io_finish(r, io, ERR_CORRUPT);
}

static void op_complete(struct ring *r, struct ring_op *op)
{
    struct ring_op was = *op;
    struct ring_io *io = op->io;
    op->in_flight = 0;
    op->io = NULL;
    op->next = r->free_ops;
    r->free_ops = op;
    if (!io)
        return; // the watchdog gave the io up
    if (was.result < 0) {
        io_refused(r, &was, io, (int)-was.result);
        return;
    }
    if (was.result == 0) {
        io_nothing(r, &was, io);
        return;
    }
    CHECK(was.result <= was.n_bytes);
    io->done_bytes += was.result;
    io->n_fruitless = 0;
    if (!was.direct && !was.write) // weights would push useful pages out of the cache
        posix_fadvise(was.fd, was.offset, was.result, POSIX_FADV_DONTNEED);
    if (io->done_bytes == io->n_bytes)
        io_finish(r, io, OK);
    else
        io_attempt(r, io);
}

enum err ring_submit(struct ring *r, struct ring_io *io)
{
    CHECK(io->file >= 0 && io->file < r->n_files && (io->write == 0 || io->write == 1));
    int64_t end;
    CHECK(io->offset >= 0 && io->n_bytes >= 0 &&
          !__builtin_add_overflow(io->offset, io->n_bytes, &end));
    if (r->lost_text[0])
        return fail(ERR_IO, "%s", r->lost_text);
    if (r->n_ios >= r->depth)
        return ERR_BUSY;
    io->err = OK;
    io->err_text[0] = 0;
    io->done_bytes = 0;
    io->n_attempts = io->n_fruitless = io->n_eio = 0;
    io->seq = r->n_submitted++;
    r->n_ios++;
    watch_advance(r);
    if (io->n_bytes == 0)
        io_finish(r, io, OK);
    else
        io_attempt(r, io);
    return OK;
}

/* ---- reap ---- */

/* Gives up an attempt: its io completes with ERR_IO, the op stays with the back end. */
static void op_give_up(struct ring *r, struct ring_op *op, const char *what)
{
    struct ring_io *io = op->io;
    op->io = NULL;
    snprintf(io->err_text, sizeof io->err_text, "%s: %s of %lld bytes at %lld: %s",
             r->files[io->file].name, verb(io), (long long)op->n_bytes, (long long)op->offset,
             what);
    if (!r->lost_text[0])
        memcpy(r->lost_text, io->err_text, sizeof r->lost_text);
    io_finish(r, io, ERR_IO);
}

static void attempts_give_up(struct ring *r, int64_t older_than_ns, const char *what)
{
    for (int i = 0; i < r->depth; i++) {
        struct ring_op *op = &r->ops[i];
        if (op->in_flight && op->io && r->watch_ns - op->start_ns >= older_than_ns)
            op_give_up(r, op, what);
    }
}

/* Gives up attempts older than the watchdog; to be called after the back end was reaped. */
static void watch_scan(struct ring *r)
{
    if (r->watch_ns - r->watch_scan_ns < watch_tick_ns(r))
        return;
    r->watch_scan_ns = r->watch_ns;
    char what[64];
    snprintf(what, sizeof what, "no completion for %lld s",
             (long long)ceil_div(r->watchdog_ns, 1000000000));
    attempts_give_up(r, r->watchdog_ns, what);
}

/* Starts due retries. Returns ns until the next is due, at most `wait_ns`. */
static int64_t retries_start(struct ring *r, int64_t wait_ns)
{
    if (!r->retry)
        return wait_ns;
    int64_t now = clock_ns();
    struct ring_io **at = &r->retry;
    while (*at) {
        struct ring_io *io = *at;
        if (io->due_ns > now) {
            wait_ns = min_i64(wait_ns, io->due_ns - now);
            at = &io->next;
            continue;
        }
        *at = io->next;
        io_attempt(r, io);
    }
    return wait_ns;
}

static int ready_take(struct ring *r, struct ring_io **done, int max)
{
    int n = 0;
    while (n < max && r->ready) {
        done[n++] = r->ready;
        r->ready = r->ready->next;
        if (!r->ready)
            r->ready_tail = &r->ready;
    }
    r->n_ios -= n;
    return n;
}

static void backend_reap(struct ring *r, int64_t wait_ns)
{
    struct ring_op *ops[REAP_BATCH];
    int n = r->backend->calls->reap(r->backend, ops, REAP_BATCH, wait_ns);
    for (int i = 0; i < n; i++)
        op_complete(r, ops[i]);
    if (n < 0)
        attempts_give_up(r, 0, strerror(-n));
}

int ring_reap(struct ring *r, struct ring_io **done, int max, enum ring_wait wait)
{
    CHECK(max > 0);
    for (;;) {
        watch_advance(r);
        int may_sleep = !r->ready && (wait == RING_IDLE || (wait == RING_WAIT && r->n_ios > 0));
        if (may_sleep && atomic_exchange(&r->woken, 0))
            may_sleep = 0, wait = RING_POLL;
        int64_t wait_ns = retries_start(r, watch_tick_ns(r));
        backend_reap(r, may_sleep ? wait_ns : 0);
        watch_advance(r);
        watch_scan(r);
        int n = ready_take(r, done, max);
        if (n > 0 || !may_sleep)
            return n;
    }
}

void ring_wake(struct ring *r)
{
    atomic_store(&r->woken, 1); // before the back end's signal, so that the woken thread sees it
    r->backend->calls->wake(r->backend);
}

const char *ring_name(const struct ring *r)
{
    return r->backend->calls->name;
}

int ring_depth(const struct ring *r)
{
    return r->depth;
}

int ring_in_flight(const struct ring *r)
{
    return r->n_ios;
}

int ring_lost(const struct ring *r)
{
    return r->lost_text[0] != 0;
}
