/* tests/ring_fault.c - the back end that lies: wraps a real one and injects faults, from a seed.
 *
 * Owns: the fault language, the decisions, the completions it holds back. Refuses: real I/O.
 * Neither LD_PRELOAD nor strace can alter what io_uring puts into its completion queue, so the
 * linker puts this file between ring.c and its back ends (--wrap in the Makefile): in tests that
 * set ring_faults, and in build/tests/sluice-faults, which reads $SLUICE_FAULT when a run opens its
 * home. A spec outside the language aborts. Note: a decision depends on (seed, number of the io,
 * attempt, kind) only, never on when something completed: the same ios in the same order meet the
 * same faults on every back end.
 *
 * The language: comma separated `key=value`, for example
 *     seed=7,read.eio=1/200,read.short=1/20,write.enospc=1/100,delay=1/10,again=1/10,flip=1/500
 * seed=N (default 1), or [read.|write.]KIND=P/Q: P of Q attempts. Kinds:
 *     eio enospc edquot efbig estale erofs einval again busy intr canceled nomem
 *              fail with that errno, einval only where the attempt is O_DIRECT
 *     short    move fewer bytes (a read's missing tail is overwritten, so nobody can trust it)
 *     delay    hold the completion back for 1 to 8 reaps
 *     reorder  hold the completion back until 1 to 8 later ones have overtaken it
 *     stuck    never complete
 *     kill     SIGKILL for the whole process, before the attempt
 * Kinds that lie about bytes while they say that all went well; a read's lie is told once, what a
 * write did to the file stays:
 *     flip     one bit of what was read is another
 *     zero     one 4 KiB block is zeros
 *     swap     two 4 KiB blocks have changed places (of one block: its halves)
 *     torn     only the first half is there
 *     foreign  read: the bytes of another place of the file. write: it went to another place
 *     lost     write: nothing was written
 *     stale    write: the next read of it brings what was there before
 */
#include "tests/ring_fault.h"

#include "offload/ring_backend.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOLD_MAX 8
#define HOLD_WAIT_NS                                                                               \
    50000 // while something is held the inner back end must not sleep for long,
          // and not at all when it has nothing to do
#define REAP_BATCH 64
#define DEPTH_MAX  256
#define STALE_MAX  16
#define BLOCK      4096

enum kind {
    KIND_EIO,
    KIND_ENOSPC,
    KIND_EDQUOT,
    KIND_EFBIG,
    KIND_ESTALE,
    KIND_EROFS,
    KIND_EINVAL,
    KIND_AGAIN,
    KIND_BUSY,
    KIND_INTR,
    KIND_CANCELED,
    KIND_NOMEM,
    KIND_SHORT,
    KIND_FLIP,
    KIND_ZERO,
    KIND_SWAP,
    KIND_TORN,
    KIND_FOREIGN,
    KIND_LOST,
    KIND_STALE,
    KIND_DELAY,
    KIND_REORDER,
    KIND_STUCK,
    KIND_KILL,
    N_KINDS
};

static const struct {
    const char *name;
    int errno_value; // 0: not an error
} KINDS[N_KINDS] = {
    [KIND_EIO] = {"eio", EIO},
    [KIND_ENOSPC] = {"enospc", ENOSPC},
    [KIND_EDQUOT] = {"edquot", EDQUOT},
    [KIND_EFBIG] = {"efbig", EFBIG},
    [KIND_ESTALE] = {"estale", ESTALE},
    [KIND_EROFS] = {"erofs", EROFS},
    [KIND_EINVAL] = {"einval", EINVAL},
    [KIND_AGAIN] = {"again", EAGAIN},
    [KIND_BUSY] = {"busy", EBUSY},
    [KIND_INTR] = {"intr", EINTR},
    [KIND_CANCELED] = {"canceled", ECANCELED},
    [KIND_NOMEM] = {"nomem", ENOMEM},
    [KIND_SHORT] = {"short", 0},
    [KIND_FLIP] = {"flip", 0},
    [KIND_ZERO] = {"zero", 0},
    [KIND_SWAP] = {"swap", 0},
    [KIND_TORN] = {"torn", 0},
    [KIND_FOREIGN] = {"foreign", 0},
    [KIND_LOST] = {"lost", 0},
    [KIND_STALE] = {"stale", 0},
    [KIND_DELAY] = {"delay", 0},
    [KIND_REORDER] = {"reorder", 0},
    [KIND_STUCK] = {"stuck", 0},
    [KIND_KILL] = {"kill", 0},
};

struct rate {
    uint64_t num, den; // den 0: never
};

struct held {
    struct ring_op *op;
    int n_reaps;  // left to wait
    int n_passes; // completions that must overtake it first
};

/* A write that does another thing than was asked; the op's own fields, until it completes. */
struct altered {
    struct ring_op *op; // NULL: free
    void *buf;
    int64_t offset, n_bytes;
    uint8_t *bytes; // owned: what is written instead, or NULL
};

/* What stood where a stale write went: shown once. */
struct stale {
    uint8_t *bytes; // owned; NULL: free
    int fd_slot;    // of the file
    int64_t offset, n_bytes;
};

struct fault {
    struct ring_backend backend;
    struct ring_backend_calls calls; // ours, under the inner one's name
    struct ring_backend *inner;      // owned
    uint64_t seed;
    struct rate rates[N_KINDS][2]; // [kind][read, write]
    struct held held[DEPTH_MAX];   // completions not yet given back
    int n_held;
    int n_inner; // attempts at the inner back end
    struct altered altered[DEPTH_MAX];
    struct stale stale[STALE_MAX];
    int next_stale;
};

/* ---- decisions ---- */

static uint64_t dice(const struct fault *f, const struct ring_op *op, enum kind kind, uint64_t salt)
{
    uint64_t h = mix64(f->seed ^ mix64(op->seq));
    h = mix64(h ^ mix64(((uint64_t)op->attempt << 16) + ((uint64_t)kind << 8) + salt));
    return h;
}

static int hit(const struct fault *f, const struct ring_op *op, enum kind kind)
{
    struct rate rate = f->rates[kind][op->write];
    return rate.den > 0 && dice(f, op, kind, 0) % rate.den < rate.num;
}

static int hold_length(const struct fault *f, const struct ring_op *op, enum kind kind)
{
    return hit(f, op, kind) ? 1 + (int)(dice(f, op, kind, 1) % HOLD_MAX) : 0;
}

static void hold(struct fault *f, struct ring_op *op)
{
    CHECK(f->n_held < DEPTH_MAX);
    f->held[f->n_held++] = (struct held){
        .op = op,
        .n_reaps = hold_length(f, op, KIND_DELAY),
        .n_passes = hold_length(f, op, KIND_REORDER),
    };
}

/* ---- lies about bytes ---- */

/* A number below n that depends on the attempt alone. */
static int64_t pick(const struct fault *f, const struct ring_op *op, enum kind kind, int64_t n)
{
    return n > 0 ? (int64_t)(dice(f, op, kind, 2) % (uint64_t)n) : 0;
}

/* Another place of the file for as many bytes; the same when there is none before it. */
static int64_t foreign_offset(const struct fault *f, const struct ring_op *op)
{
    int64_t at = pick(f, op, KIND_FOREIGN, op->offset / BLOCK) * BLOCK;
    return at + op->n_bytes <= op->offset ? at : at / 2 / BLOCK * BLOCK;
}

static void swap_blocks(const struct fault *f, const struct ring_op *op, uint8_t *bytes, int64_t n)
{
    int64_t size = n >= 2 * BLOCK ? BLOCK : n / 2;
    int64_t n_blocks = size > 0 ? n / size : 0;
    if (n_blocks < 2)
        return;
    int64_t one = pick(f, op, KIND_SWAP, n_blocks);
    int64_t other = (one + 1 + pick(f, op, KIND_STALE, n_blocks - 1)) % n_blocks;
    for (int64_t i = 0; i < size; i++) {
        uint8_t byte = bytes[one * size + i];
        bytes[one * size + i] = bytes[other * size + i];
        bytes[other * size + i] = byte;
    }
}

static void zero_block(const struct fault *f, const struct ring_op *op, uint8_t *bytes, int64_t n)
{
    int64_t at = pick(f, op, KIND_ZERO, ceil_div(n, BLOCK)) * BLOCK;
    memset(bytes + at, 0, (size_t)min_i64(BLOCK, n - at));
}

/* Memory that direct I/O takes; tests only, so that none is no error. */
static uint8_t *block_alloc(int64_t n_bytes)
{
    return aligned_alloc(BLOCK, (size_t)round_up(n_bytes, BLOCK));
}

static void read_foreign(const struct fault *f, struct ring_op *op)
{
    uint8_t *other = block_alloc(op->n_bytes);
    ssize_t n = other ? pread(op->fd, other, (size_t)op->n_bytes, (off_t)foreign_offset(f, op)) : 0;
    if (n > 0)
        memcpy(op->buf, other, (size_t)min_i64(n, op->result));
    free(other);
}

/* Keeps what a write is about to replace. */
static void stale_keep(struct fault *f, const struct ring_op *op)
{
    struct stale *s = &f->stale[f->next_stale++ % STALE_MAX];
    free(s->bytes);
    *s = (struct stale){block_alloc(op->n_bytes), op->file_slot / 2, op->offset, op->n_bytes};
    if (!s->bytes)
        return;
    memset(s->bytes, 0, (size_t)op->n_bytes);
    if (pread(op->fd, s->bytes, (size_t)op->n_bytes, (off_t)op->offset) < 0) {
        free(s->bytes);
        s->bytes = NULL;
    }
}

static void stale_show(struct fault *f, const struct ring_op *op)
{
    for (int i = 0; i < STALE_MAX; i++) {
        struct stale *s = &f->stale[i];
        int64_t from = max_i64(s->offset, op->offset);
        int64_t to = min_i64(s->offset + s->n_bytes, op->offset + op->result);
        if (!s->bytes || s->fd_slot != op->file_slot / 2 || from >= to)
            continue;
        memcpy((uint8_t *)op->buf + (from - op->offset), s->bytes + (from - s->offset),
               (size_t)(to - from));
        free(s->bytes);
        s->bytes = NULL;
    }
}

static void read_lies(struct fault *f, struct ring_op *op)
{
    uint8_t *buf = op->buf;
    if (hit(f, op, KIND_FLIP)) {
        uint64_t bit = dice(f, op, KIND_FLIP, 1) % (8 * (uint64_t)op->result);
        buf[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    if (hit(f, op, KIND_ZERO))
        zero_block(f, op, buf, op->result);
    if (hit(f, op, KIND_SWAP))
        swap_blocks(f, op, buf, op->result);
    if (hit(f, op, KIND_TORN))
        memset(buf + op->result / 2, 0xa5, (size_t)(op->result - op->result / 2));
    if (hit(f, op, KIND_FOREIGN))
        read_foreign(f, op);
    stale_show(f, op);
}

/* Turns a write into another one, until write_ends(). */
static void write_lies(struct fault *f, struct ring_op *op)
{
    int zero = hit(f, op, KIND_ZERO), swap = hit(f, op, KIND_SWAP), torn = hit(f, op, KIND_TORN);
    int foreign = hit(f, op, KIND_FOREIGN);
    if (hit(f, op, KIND_STALE))
        stale_keep(f, op);
    if (!zero && !swap && !torn && !foreign)
        return;
    struct altered *a = f->altered;
    while (a->op)
        a++;
    *a = (struct altered){op, op->buf, op->offset, op->n_bytes, NULL};
    if (zero || swap) {
        a->bytes = block_alloc(op->n_bytes);
        CHECK(a->bytes);
        memcpy(a->bytes, op->buf, (size_t)op->n_bytes);
        op->buf = a->bytes;
    }
    if (zero)
        zero_block(f, op, a->bytes, op->n_bytes);
    if (swap)
        swap_blocks(f, op, a->bytes, op->n_bytes);
    if (foreign)
        op->offset = foreign_offset(f, op);
    if (torn && op->n_bytes > op->align_bytes)
        op->n_bytes = ceil_div(op->n_bytes / 2, op->align_bytes) * op->align_bytes;
}

static void write_ends(struct fault *f, struct ring_op *op)
{
    for (int i = 0; i < DEPTH_MAX; i++) {
        struct altered *a = &f->altered[i];
        if (a->op != op)
            continue;
        if (op->result == op->n_bytes)
            op->result = a->n_bytes;
        op->buf = a->buf;
        op->offset = a->offset;
        op->n_bytes = a->n_bytes;
        free(a->bytes);
        a->op = NULL;
    }
}

/* ---- the back end ---- */

static void fault_start(struct ring_backend *b, struct ring_op *op)
{
    struct fault *f = (struct fault *)b;
    if (hit(f, op, KIND_STUCK))
        return;
    if (hit(f, op, KIND_KILL))
        raise(SIGKILL);
    for (int kind = 0; kind < N_KINDS; kind++) {
        if (!KINDS[kind].errno_value || !hit(f, op, (enum kind)kind))
            continue;
        if (kind == KIND_EINVAL && !op->direct)
            continue;
        op->result = -KINDS[kind].errno_value;
        hold(f, op);
        return;
    }
    if (op->write && hit(f, op, KIND_LOST)) {
        op->result = op->n_bytes;
        hold(f, op);
        return;
    }
    /* A short write really writes less. A direct one must stay aligned. */
    if (op->write && op->n_bytes > op->align_bytes && hit(f, op, KIND_SHORT)) {
        uint64_t n_units = (uint64_t)(op->n_bytes / op->align_bytes);
        uint64_t n = 1 + dice(f, op, KIND_SHORT, 1) % (n_units > 1 ? n_units - 1 : 1);
        op->n_bytes = (int64_t)n * op->align_bytes;
    }
    if (op->write)
        write_lies(f, op);
    f->n_inner++;
    f->inner->calls->start(f->inner, op);
}

static void completed(struct fault *f, struct ring_op *op)
{
    uint8_t *buf = op->buf;
    if (op->write)
        write_ends(f, op);
    if (!op->write && op->result > 1 && hit(f, op, KIND_SHORT)) {
        int64_t n = 1 + (int64_t)(dice(f, op, KIND_SHORT, 1) % (uint64_t)(op->result - 1));
        memset(buf + n, 0xa5, (size_t)(op->result - n));
        op->result = n;
    }
    if (!op->write && op->result > 0)
        read_lies(f, op);
    hold(f, op);
}

static int held_is_due(const struct fault *f, const struct held *h, int n_free)
{
    if (h->n_reaps > 0)
        return 0;
    return h->n_passes <= 0 ||
           (n_free == 0 && f->n_inner == 0); // or nothing is left to overtake it
}

/* Gives back what is due, oldest first; each one given back overtakes those that stay. */
static int held_release(struct fault *f, struct ring_op **done, int max)
{
    int n_free = 0; // held ones that will go by themselves
    for (int i = 0; i < f->n_held; i++) {
        f->held[i].n_reaps -= f->held[i].n_reaps > 0;
        n_free += f->held[i].n_passes <= 0;
    }
    int n = 0, n_kept = 0;
    for (int i = 0; i < f->n_held; i++) {
        if (n < max && held_is_due(f, &f->held[i], n_free))
            done[n++] = f->held[i].op;
        else
            f->held[n_kept++] = f->held[i];
    }
    f->n_held = n_kept;
    for (int i = 0; i < f->n_held; i++)
        f->held[i].n_passes -= n;
    return n;
}

static int fault_reap(struct ring_backend *b, struct ring_op **done, int max, int64_t wait_ns)
{
    struct fault *f = (struct fault *)b;
    struct ring_op *ops[REAP_BATCH];
    if (f->n_held > 0)
        wait_ns = f->n_inner > 0 ? min_i64(wait_ns, HOLD_WAIT_NS) : 0;
    int n = f->inner->calls->reap(f->inner, ops, REAP_BATCH, wait_ns);
    if (n < 0)
        return n;
    f->n_inner -= n;
    for (int i = 0; i < n; i++)
        completed(f, ops[i]);
    return held_release(f, done, max);
}

static void fault_wake(struct ring_backend *b)
{
    struct fault *f = (struct fault *)b;
    f->inner->calls->wake(f->inner);
}

static void fault_file_set(struct ring_backend *b, int file_slot, int fd)
{
    struct fault *f = (struct fault *)b;
    f->inner->calls->file_set(f->inner, file_slot, fd);
}

static void fault_close(struct ring_backend *b)
{
    struct fault *f = (struct fault *)b;
    f->inner->calls->close(f->inner);
    for (int i = 0; i < STALE_MAX; i++)
        free(f->stale[i].bytes);
    for (int i = 0; i < DEPTH_MAX; i++)
        if (f->altered[i].op)
            free(f->altered[i].bytes);
    free(f);
}

/* ---- the language ---- */

/* A decimal number up to 2^53 at *at, which moves behind it. Returns 0 when there is none. */
static int number_read(const char **at, uint64_t *value)
{
    const char *p = *at;
    uint64_t v = 0;
    for (; *p >= '0' && *p <= '9' && v < (uint64_t)1 << 53; p++)
        v = 10 * v + (uint64_t)(*p - '0');
    int ok = p > *at;
    *at = p;
    *value = v;
    return ok;
}

static int key_is(const char *key, size_t n, const char *name)
{
    return strlen(name) == n && memcmp(key, name, n) == 0;
}

/* One `key=value`; returns 0 when it is not in the language. */
static int clause_read(struct fault *f, const char *key, const char **end)
{
    const char *value = strchr(key, '=');
    if (!value)
        return 0;
    int first = 0, last = 1;
    size_t n = (size_t)(value - key);
    *end = value + 1;
    if (key_is(key, n, "seed"))
        return number_read(end, &f->seed);
    if (n > 5 && memcmp(key, "read.", 5) == 0)
        last = 0, key += 5, n -= 5;
    else if (n > 6 && memcmp(key, "write.", 6) == 0)
        first = 1, key += 6, n -= 6;
    struct rate rate;
    if (!number_read(end, &rate.num) || *(*end)++ != '/' || !number_read(end, &rate.den) ||
        rate.den == 0)
        return 0;
    for (int kind = 0; kind < N_KINDS; kind++) {
        if (!key_is(key, n, KINDS[kind].name))
            continue;
        for (int write = first; write <= last; write++)
            f->rates[kind][write] = rate;
        return 1;
    }
    return 0;
}

static void spec_read(struct fault *f, const char *spec)
{
    const char *at = spec;
    while (*at) {
        const char *end = at;
        if (!clause_read(f, at, &end) || (*end != ',' && *end != 0)) {
            fprintf(stderr, "faults: `%s` is not [read.|write.]KIND=P/Q or seed=N at `%s`\n", spec,
                    at);
            abort();
        }
        at = end + (*end == ',');
    }
}

/* ---- between ring.c and its back ends ---- */

const char *ring_faults;

/* Takes the back end over: closing the result closes it. */
static void inject(struct ring_backend **b)
{
    const char *spec = ring_faults;
    ring_faults = NULL;
    if (!spec || !*spec)
        return;
    struct fault *f = calloc(1, sizeof *f);
    CHECK(f);
    f->seed = 1;
    spec_read(f, spec);
    f->calls = (struct ring_backend_calls){
        .name = (*b)->calls->name,
        .start = fault_start,
        .reap = fault_reap,
        .wake = fault_wake,
        .file_set = fault_file_set,
        .close = fault_close,
    };
    f->backend.calls = &f->calls;
    f->inner = *b;
    *b = &f->backend;
    log_line(LOG_WARN, "io: injecting faults, seed=%llu: %s", (unsigned long long)f->seed, spec);
}

struct home;
struct home_config;
enum err __real_ring_uring_open(struct ring_backend **b, const struct ring_config *c, int *depth);
enum err __real_ring_pool_open(struct ring_backend **b, int n_threads);
enum err __real_home_open(struct home *h, const struct home_config *config);
enum err __wrap_ring_uring_open(struct ring_backend **b, const struct ring_config *c, int *depth);
enum err __wrap_ring_pool_open(struct ring_backend **b, int n_threads);
enum err __wrap_home_open(struct home *h, const struct home_config *config);

enum err __wrap_ring_uring_open(struct ring_backend **b, const struct ring_config *c, int *depth)
{
    TRY(__real_ring_uring_open(b, c, depth));
    inject(b);
    return OK;
}

enum err __wrap_ring_pool_open(struct ring_backend **b, int n_threads)
{
    TRY(__real_ring_pool_open(b, n_threads));
    inject(b);
    return OK;
}

/* Only the ring of a run: what probes measure is true. */
enum err __wrap_home_open(struct home *h, const struct home_config *config)
{
    ring_faults = getenv("SLUICE_FAULT");
    enum err e = __real_home_open(h, config);
    ring_faults = NULL;
    return e;
}
