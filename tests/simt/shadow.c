/* tests/simt/shadow.c - see simt.h: device and shared memory, and who touched each byte of it.
 *
 * Owns: the allocator, what -fsanitize=thread calls for every load and store. Refuses: ordering
 * blocks of one launch: whatever two of them share, they may only read, or touch by atomics.
 * A byte is outside, unwritten, written, or in flight. Of four bytes the last write, the last
 * atomic and the reads of two threads are kept; an access that is not ordered behind them - by an
 * earlier launch, a barrier since, the same thread, a __syncwarp since - is a race. */
#include "tests/simt/impl.h"

#include "kernels/base/base.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define DEVICE_BYTES ((int64_t)256 << 20)
#define SHARED_BYTES ((int64_t)256 << 10)
#define ALIGN        256
#define REDZONE      64 // around pieces of shared memory
#define PIECES_MAX   64
#define ALLOCS_MAX   4096

enum state { OUTSIDE, UNWRITTEN, WRITTEN, IN_FLIGHT };

/* One access: of which block, since how many barriers, at which time of its lane. serial 0: none.
 */
struct touch {
    const void *pc;
    uint32_t serial, epoch, clock;
    uint16_t thread;
    uint8_t bytes; // of the four
};

struct cell {
    struct touch write, atomic, reads[2];
};

struct space {
    const char *name;
    int64_t bytes;
    uint8_t *base;
    uint8_t *state;     // [bytes]
    struct cell *cells; // [bytes / 4]
};
static struct space device = {.name = "device", .bytes = DEVICE_BYTES};
static struct space shared = {.name = "shared", .bytes = SHARED_BYTES};

static struct {
    int64_t at, bytes;
} allocs[ALLOCS_MAX];
static int n_allocs;
static int64_t device_used = ALIGN;

static struct {
    int at, bytes;
} pieces[PIECES_MAX];
static int n_pieces;
static int64_t shared_used;
static int races = 1;

void simt_races(int on)
{
    races = on;
}

static void *reserve(int64_t bytes)
{
    void *p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

static void space_open(struct space *s)
{
    if (s->base)
        return;
    s->base = reserve(s->bytes);
    s->state = reserve(s->bytes);
    s->cells = reserve(s->bytes / 4 * (int64_t)sizeof *s->cells);
}

static int space_has(const struct space *s, const void *p)
{
    return s->base && (uintptr_t)p - (uintptr_t)s->base < (uintptr_t)s->bytes;
}

/* ---- device memory, from the host ---- */

void *simt_alloc(int64_t bytes)
{
    space_open(&device);
    const int64_t at = device_used;
    CHECK(bytes >= 0 && n_allocs < ALLOCS_MAX && at + bytes + 2 * ALIGN <= device.bytes);
    allocs[n_allocs].at = at;
    allocs[n_allocs++].bytes = bytes;
    device_used = round_up(at + bytes, ALIGN) + ALIGN;
    memset(device.state + at, UNWRITTEN, (size_t)bytes);
    memset(device.base + at, 0xa5, (size_t)bytes);
    return device.base + at;
}

void simt_free_all(void)
{
    if (device.base) {
        madvise(device.base, (size_t)device_used, MADV_DONTNEED);
        madvise(device.state, (size_t)device_used, MADV_DONTNEED);
        madvise(device.cells, (size_t)device_used / 4 * sizeof *device.cells, MADV_DONTNEED);
    }
    n_allocs = 0;
    device_used = ALIGN;
}

static uint8_t *device_state(const void *p)
{
    CHECK(space_has(&device, p));
    return device.state + ((const uint8_t *)p - device.base);
}

void simt_put(void *to, const void *from, int64_t bytes)
{
    uint8_t *state = device_state(to);
    for (int64_t i = 0; i < bytes; i++)
        CHECK(state[i] != OUTSIDE);
    memset(state, WRITTEN, (size_t)bytes);
    memcpy(to, from, (size_t)bytes);
}

void *simt_of(const void *from, int64_t bytes)
{
    if (!from)
        return NULL;
    void *to = simt_alloc(bytes);
    if (bytes > 0)
        simt_put(to, from, bytes);
    return to;
}

void simt_forget(void *p, int64_t bytes)
{
    uint8_t *state = device_state(p);
    for (int64_t i = 0; i < bytes; i++)
        CHECK(state[i] != OUTSIDE);
    memset(state, UNWRITTEN, (size_t)bytes);
}

void simt_move(void *to, const void *from, int64_t bytes)
{
    uint8_t *state = device_state(to);
    const uint8_t *from_state = device_state(from);
    for (int64_t i = 0; i < bytes; i++)
        CHECK(state[i] != OUTSIDE && from_state[i] != OUTSIDE);
    memmove(state, from_state, (size_t)bytes);
    memmove(to, from, (size_t)bytes);
}

void simt_get(void *to, const void *from, int64_t bytes)
{
    const uint8_t *state = device_state(from);
    memcpy(to, from, (size_t)bytes);
    for (int64_t i = 0; i < bytes; i++)
        if (state[i] != WRITTEN) {
            simt_fail(NULL, (struct simt_site){0}, "byte %lld of %lld was never written",
                      (long long)i, (long long)bytes);
            return;
        }
}

/* ---- shared memory ---- */

void shadow_block_begin(void)
{
    space_open(&shared);
    memset(shared.state, OUTSIDE, (size_t)shared_used);
    n_pieces = 0;
    shared_used = 0;
}

void *simt_take(int piece, int at, int bytes)
{
    const struct simt_site nowhere = {0};
    const void *pc = __builtin_return_address(0);
    const int64_t from = at + (int64_t)REDZONE * (piece + 1);
    if (piece >= PIECES_MAX || bytes < 0)
        simt_fail(pc, nowhere, "piece %d of shared memory, of %d bytes", piece, bytes);
    if (round_up(at + bytes, 16) > simt_now.shared_bytes)
        simt_fail(pc, nowhere, "shared memory up to byte %d, of %lld that the launch asked for",
                  at + bytes, (long long)simt_now.shared_bytes);
    if (piece < n_pieces && (pieces[piece].at != at || pieces[piece].bytes != bytes))
        simt_fail(pc, nowhere,
                  "piece %d of shared memory is of %d bytes, and of %d in other threads", piece,
                  bytes, pieces[piece].bytes);
    if (piece >= n_pieces) {
        pieces[piece].at = at;
        pieces[piece].bytes = bytes;
        n_pieces = piece + 1;
        memset(shared.state + from, UNWRITTEN, (size_t)bytes);
        shared_used = from + bytes;
    }
    return shared.base + from;
}

/* ---- who touched what ---- */

static const char *const kinds[] = {"reads", "writes", "changes"};

/* 1 when the running thread comes after it. */
static int is_before(const struct touch *w, int in_shared)
{
    const struct thread *t = simt_now.now;
    if (w->serial < simt_now.launch)
        return 1;
    if (w->serial != simt_now.serial)
        return in_shared;
    if (w->epoch < simt_now.epoch || w->thread == t->index)
        return 1;
    return w->thread / LANES == t->index / LANES && t->clock[w->thread % LANES] >= w->clock;
}

static void race(const struct space *s, const struct touch *w, enum access kind, const char *did,
                 int64_t at, const void *pc)
{
    char place[256];
    if (w->serial != simt_now.serial)
        simt_fail(pc, (struct simt_site){0},
                  "race between blocks: %s byte %lld of device memory, which thread %d of another "
                  "block %s at %s",
                  kinds[kind], (long long)at, w->thread, did, simt_place(w->pc, place));
    simt_fail(pc, (struct simt_site){0},
              "race: %s byte %lld of %s memory, which thread %d %s at %s, with no barrier between",
              kinds[kind], (long long)at, s->name, w->thread, did, simt_place(w->pc, place));
}

static inline void hold(const struct space *s, const struct touch *w, int bytes, enum access kind,
                        const char *did, int64_t at, const void *pc)
{
    if ((w->bytes & bytes) && !is_before(w, s == &shared))
        race(s, w, kind, did, at, pc);
}

static void cell_touch(const struct space *s, struct cell *c, int bytes, enum access kind,
                       int64_t at, const void *pc)
{
    const struct thread *t = simt_now.now;
    const struct touch now = {pc,
                              simt_now.serial,
                              simt_now.epoch,
                              t->clock[t->index % LANES],
                              (uint16_t)t->index,
                              (uint8_t)bytes};
    hold(s, &c->write, bytes, kind, "wrote", at, pc);
    if (kind != ACCESS_ATOMIC)
        hold(s, &c->atomic, bytes, kind, "changed", at, pc);
    if (kind == ACCESS_READ) {
        for (int i = 0; i < 2; i++)
            if (is_before(&c->reads[i], s == &shared)) {
                c->reads[i] = now;
                return;
            }
        return;
    }
    for (int i = 0; i < 2; i++)
        hold(s, &c->reads[i], bytes, kind, "read", at, pc);
    *(kind == ACCESS_ATOMIC ? &c->atomic : &c->write) = now;
}

/* The allocation nearest to a device address, in words. */
static void neighbour(int64_t at, char *to, size_t n)
{
    int64_t nearest = INT64_MAX;
    *to = 0;
    for (int i = 0; i < n_allocs; i++) {
        const int behind = at >= allocs[i].at;
        const int64_t far = behind ? at - allocs[i].at - allocs[i].bytes : allocs[i].at - at;
        if (far >= nearest)
            continue;
        nearest = far;
        snprintf(to, n, ", %lld %s %lld that were allocated", (long long)far,
                 behind ? "behind" : "before", (long long)allocs[i].bytes);
    }
}

static void state_wrong(const struct space *s, enum state state, int64_t bytes, enum access kind,
                        int64_t at, const void *pc)
{
    char where[128] = "";
    const struct simt_site nowhere = {0};
    if (s == &device)
        neighbour(at, where, sizeof where);
    if (state == OUTSIDE)
        simt_fail(pc, nowhere, "%s %lld bytes outside of %s memory%s", kinds[kind],
                  (long long)bytes, s->name, where);
    if (state == UNWRITTEN)
        simt_fail(pc, nowhere, "%s byte %lld of %s memory, which nobody has written", kinds[kind],
                  (long long)at, s->name);
    simt_fail(pc, nowhere,
              "%s byte %lld of %s memory, to which a copy is in flight: its thread has not waited",
              kinds[kind], (long long)at, s->name);
}

static void space_touch(struct space *s, int64_t at, int64_t bytes, enum access kind,
                        enum state after, const void *pc)
{
    const uint32_t four = WRITTEN * 0x01010101u;
    const int all = bytes == 4 && at + 4 <= s->bytes && memcmp(s->state + at, &four, 4) == 0;
    for (int64_t i = at; i < at + bytes && !all; i++) {
        const enum state state = i < s->bytes ? (enum state)s->state[i] : OUTSIDE;
        if (state != WRITTEN && !(state == UNWRITTEN && kind == ACCESS_WRITE))
            state_wrong(s, state, bytes, kind, i, pc);
    }
    for (int64_t cell = at / 4; cell <= (at + bytes - 1) / 4 && races; cell++) {
        int mask = 0xf;
        if (cell * 4 < at)
            mask &= 0xf << (at - cell * 4);
        if (cell * 4 + 4 > at + bytes)
            mask &= 0xf >> (cell * 4 + 4 - at - bytes);
        cell_touch(s, &s->cells[cell], mask, kind, max_i64(at, cell * 4), pc);
    }
    if (kind == ACCESS_WRITE && (!all || after != WRITTEN))
        memset(s->state + at, (int)after, (size_t)bytes);
}

void shadow_access(const void *p, int64_t bytes, enum access kind, const void *pc)
{
    const struct thread *t = simt_thread();
    const uintptr_t at = (uintptr_t)p;
    if (!t) { // an entry
        if (space_has(&device, p) || space_has(&shared, p))
            simt_fail(pc, (struct simt_site){0}, "the host %s device memory", kinds[kind]);
        return;
    }
    if (at - (uintptr_t)t->stack < STACK_BYTES || bytes == 0)
        return;
    if (space_has(&shared, p))
        space_touch(&shared, (const uint8_t *)p - shared.base, bytes, kind, WRITTEN, pc);
    else if (space_has(&device, p))
        space_touch(&device, (const uint8_t *)p - device.base, bytes, kind, WRITTEN, pc);
    else if (kind == ACCESS_READ && at - (uintptr_t)simt_now.args < (uintptr_t)simt_now.args_bytes)
        ;
    else if (kind == ACCESS_ATOMIC || !simt_may_touch ||
             !simt_may_touch(simt_now.name, p, bytes, kind == ACCESS_WRITE))
        simt_fail(pc, (struct simt_site){0},
                  "%s %lld bytes that are neither device nor shared memory nor its own",
                  kinds[kind], (long long)bytes);
}

void shadow_fly(const void *p, int64_t bytes, const void *pc)
{
    if (!space_has(&shared, p))
        simt_fail(pc, (struct simt_site){0}, "asynchronous copy to what is not shared memory");
    space_touch(&shared, (const uint8_t *)p - shared.base, bytes, ACCESS_WRITE, IN_FLIGHT, pc);
}

void shadow_land(const void *p, int64_t bytes, const void *pc)
{
    const int64_t at = (const uint8_t *)p - shared.base;
    memset(shared.state + at, UNWRITTEN, (size_t)bytes);
    space_touch(&shared, at, bytes, ACCESS_WRITE, WRITTEN, pc);
}

/* ---- what instrumented code calls ---- */

static void plain(const void *p, int bytes, enum access kind, const void *pc)
{
    if ((uintptr_t)p % (unsigned)bytes && simt_thread())
        simt_fail(pc, (struct simt_site){0}, "%s %d bytes that are not on a multiple of %d",
                  kinds[kind], bytes, bytes);
    shadow_access(p, bytes, kind, pc);
}

#define PLAIN(n)                                                                                   \
    void __tsan_read##n(void *p);                                                                  \
    void __tsan_read##n(void *p)                                                                   \
    {                                                                                              \
        plain(p, n, ACCESS_READ, __builtin_return_address(0));                                     \
    }                                                                                              \
    void __tsan_write##n(void *p);                                                                 \
    void __tsan_write##n(void *p)                                                                  \
    {                                                                                              \
        plain(p, n, ACCESS_WRITE, __builtin_return_address(0));                                    \
    }
#define UNALIGNED(n)                                                                               \
    void __tsan_unaligned_read##n(void *p);                                                        \
    void __tsan_unaligned_read##n(void *p)                                                         \
    {                                                                                              \
        shadow_access(p, n, ACCESS_READ, __builtin_return_address(0));                             \
    }                                                                                              \
    void __tsan_unaligned_write##n(void *p);                                                       \
    void __tsan_unaligned_write##n(void *p)                                                        \
    {                                                                                              \
        shadow_access(p, n, ACCESS_WRITE, __builtin_return_address(0));                            \
    }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)
UNALIGNED(2)
UNALIGNED(4)
UNALIGNED(8)
UNALIGNED(16)

void __tsan_read_range(void *p, uint64_t bytes);
void __tsan_read_range(void *p, uint64_t bytes)
{
    shadow_access(p, (int64_t)bytes, ACCESS_READ, __builtin_return_address(0));
}

void __tsan_write_range(void *p, uint64_t bytes);
void __tsan_write_range(void *p, uint64_t bytes)
{
    shadow_access(p, (int64_t)bytes, ACCESS_WRITE, __builtin_return_address(0));
}

void __tsan_init(void);
void __tsan_init(void)
{
}

void *simt_memcpy(void *to, const void *from, uint64_t bytes)
{
    const void *pc = __builtin_return_address(0);
    shadow_access(from, (int64_t)bytes, ACCESS_READ, pc);
    shadow_access(to, (int64_t)bytes, ACCESS_WRITE, pc);
    return memcpy(to, from, bytes);
}

void *simt_memset(void *to, int byte, uint64_t bytes)
{
    shadow_access(to, (int64_t)bytes, ACCESS_WRITE, __builtin_return_address(0));
    return memset(to, byte, bytes);
}

/* The number after op; both as wide as `bytes`, signed where the op says so. */
static uint64_t atomic_result(enum simt_atomic op, uint64_t old, uint64_t v, uint64_t expected)
{
    switch (op) {
    case SIMT_ADD:
        return old + v;
    case SIMT_MIN:
        return v < old ? v : old;
    case SIMT_MAX:
        return v > old ? v : old;
    case SIMT_MIN_SIGNED:
        return (int32_t)v < (int32_t)old ? v : old;
    case SIMT_MAX_SIGNED:
        return (int32_t)v > (int32_t)old ? v : old;
    case SIMT_OR:
        return old | v;
    case SIMT_AND:
        return old & v;
    case SIMT_EXCH:
        return v;
    case SIMT_CAS:
        return old == expected ? v : old;
    }
    return old;
}

uint64_t simt_atomic(enum simt_atomic op, void *p, int bytes, uint64_t value, uint64_t expected)
{
    return simt_atomic_at(op, p, bytes, value, expected, __builtin_return_address(0));
}

uint64_t simt_atomic_at(enum simt_atomic op, void *p, int bytes, uint64_t value, uint64_t expected,
                        const void *pc)
{
    const uint64_t mask = bytes == 8 ? UINT64_MAX : UINT32_MAX;
    uint64_t old = 0;
    plain(p, bytes, ACCESS_ATOMIC, pc);
    memcpy(&old, p, (size_t)bytes);
    const uint64_t after = atomic_result(op, old, value & mask, expected & mask);
    memcpy(p, &after, (size_t)bytes);
    return old;
}
