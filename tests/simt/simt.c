/* tests/simt/simt.c - see simt.h: launches. Blocks run one after the other, their threads as fibers
 * that give way where they meet.
 *
 * Owns: fibers, barriers, warp operations, asynchronous copies. Refuses: who touched which byte
 * (shadow.c). Note: the last lane that comes to a warp operation computes it for
 * all, and a lane waits with its operation's source line: two lines never meet. */
#include "tests/simt/simt.h"
#include "kernels/base/base.h"
#include "tests/simt/impl.h"
#include "tests/simt/ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct run simt_now = {.arch = 80};
_Thread_local int simt_runs;
void (*simt_queue)(struct CUstream_st *stream, const struct simt_work *work);
int (*simt_may_touch)(const char *kernel, const void *p, int64_t bytes, int write);
static struct thread threads[THREADS_MAX];
static void *scheduler_sp;
static int given_up;
static struct simt_kernel entry;
static const struct ptx_kernel *interpreted; // in place of it
static uint64_t order_seed;
static int order[THREADS_MAX];

#define NOWHERE ((struct simt_site){0})

/* ---- fibers ---- */

/* Saves the registers that calls preserve, and goes on where `to` stopped. */
void simt_switch(void **from, void *to);
__asm__(".text\n"
        ".globl simt_switch\n"
        ".type simt_switch, @function\n"
        "simt_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size simt_switch, .-simt_switch\n");

static void stacks_open(void)
{
    const size_t guard = 4096, each = guard + STACK_BYTES;
    uint8_t *base = mmap(NULL, each * THREADS_MAX, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(base != MAP_FAILED);
    for (int i = 0; i < THREADS_MAX; i++) {
        CHECK(mprotect(base + each * (size_t)i, guard, PROT_NONE) == 0);
        threads[i].stack = base + each * (size_t)i + guard;
    }
}

static void give_way(void)
{
    struct thread *t = simt_now.now;
    simt_switch(&t->sp, scheduler_sp);
}

void simt_give_up(void)
{
    given_up = 1;
    give_way();
    abort();
}

static void thread_end(void);

static void thread_main(void)
{
    if (interpreted)
        ptx_thread(interpreted);
    else
        entry.call(entry.code, simt_now.args);
    thread_end();
    give_way();
    abort();
}

static void thread_begin(struct thread *t, int index)
{
    const struct simt_dim d = simt_now.block;
    void **top = (void **)(void *)(t->stack + STACK_BYTES);
    t->state = THREAD_READY;
    t->index = index;
    t->idx = (struct simt_dim){(unsigned)index % d.x, (unsigned)index / d.x % d.y,
                               (unsigned)index / (d.x * d.y)};
    memset(t->clock, 0, sizeof t->clock);
    t->clock[index % LANES] = 1;
    t->n_copies = t->group = 0;
    *--top = NULL; // as if thread_main had been called: the stack is 8 off 16
    *--top = (void *)thread_main;
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    t->sp = top;
}

/* ---- who runs when ---- */

void simt_order(uint64_t seed)
{
    order_seed = seed;
}

/* The place of i among n under the seed's order. */
static void order_draw(uint64_t salt, int n, int *to)
{
    for (int i = 0; i < n; i++)
        to[i] = order_seed == 1 ? n - 1 - i : i;
    for (int i = n - 1; i > 0 && order_seed > 1; i--) {
        int j = (int)(mix64(mix64(order_seed + salt) + (uint64_t)i) % (uint64_t)(i + 1));
        int other = to[i];
        to[i] = to[j];
        to[j] = other;
    }
}

/* Nobody can go on. */
static void deadlock(void)
{
    char text[512] = "";
    size_t at = 0;
    const struct thread *first = NULL;
    for (int i = 0; i < simt_now.n_threads; i++) {
        const struct thread *t = &threads[i];
        int same = i > 0 && t->state == t[-1].state && t->site.line == t[-1].site.line;
        if (t->state == THREAD_ENDED || (same && first))
            continue;
        first = first ? first : t;
        if (at < sizeof text - 64)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s thread %d at line %d (%s)",
                                   at ? "," : "", i, t->site.line,
                                   t->state == THREAD_BARRIER ? "barrier" : "warp");
    }
    simt_now.now = NULL;
    simt_fail(NULL, first->site,
              "%s block %u %u %u: threads wait for each other for ever: from%s; %d ended",
              simt_now.name, simt_now.block_at.x, simt_now.block_at.y, simt_now.block_at.z, text,
              simt_now.n_ended);
}

static void block_run(struct simt_dim at)
{
    simt_now.block_at = at;
    simt_now.epoch = 1;
    simt_now.n_waiting = simt_now.n_ended = 0;
    shadow_block_begin();
    for (int i = 0; i < simt_now.n_threads; i++)
        thread_begin(&threads[i], i);
    order_draw(simt_now.serial, simt_now.n_threads, order);
    while (simt_now.n_ended < simt_now.n_threads && !given_up) {
        int ran = 0;
        for (int i = 0; i < simt_now.n_threads && !given_up; i++) {
            struct thread *t = &threads[order[i]];
            if (t->state != THREAD_READY)
                continue;
            ran = 1;
            simt_now.now = t;
            simt_switch(&scheduler_sp, t->sp);
        }
        if (!ran) {
            deadlock();
            given_up = 1;
        }
    }
    simt_now.now = NULL;
}

static int64_t shared_max(int arch)
{
    return (arch >= 90 ? 227 : arch == 80 ? 163 : arch >= 86 ? 99 : 64) << 10;
}

static const char *launch_wrong(struct simt_dim grid, struct simt_dim block, int64_t shared_bytes)
{
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return "the grid has no block";
    if (grid.x > INT32_MAX || grid.y > 65535 || grid.z > 65535)
        return "the grid is too large";
    if (block.x == 0 || block.y == 0 || block.z == 0 ||
        (int64_t)block.x * block.y * block.z > THREADS_MAX)
        return "a block has 1 to 1024 threads";
    if (shared_bytes < 0 || shared_bytes > shared_max(simt_now.arch))
        return "more shared memory than a block can have";
    return NULL;
}

/* Every block of what `entry` or `interpreted` is. */
static void launch(struct simt_dim grid, struct simt_dim block, int64_t shared_bytes,
                   const void *params, int64_t bytes)
{
    if (!threads[0].stack)
        stacks_open();
    const int64_t n_blocks = (int64_t)grid.x * grid.y * grid.z;
    int *blocks = malloc((size_t)n_blocks * sizeof *blocks);
    CHECK(blocks && n_blocks <= 1 << 24);
    simt_now.grid = grid;
    simt_now.block = block;
    simt_now.n_threads = (int)(block.x * block.y * block.z);
    simt_now.shared_bytes = shared_bytes;
    simt_now.launch = simt_now.serial + 1;
    simt_now.args = params;
    simt_now.args_bytes = bytes;
    given_up = 0;
    simt_runs = 1;
    order_draw(simt_now.launch, (int)n_blocks, blocks);
    for (int64_t i = 0; i < n_blocks && !given_up; i++) {
        const unsigned b = (unsigned)blocks[i];
        simt_now.serial++;
        block_run((struct simt_dim){b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y});
    }
    simt_runs = 0;
    free(blocks);
    simt_now.args_bytes = 0;
}

void simt_run(const struct simt_work *work)
{
    const struct simt_dim grid = work->grid, block = work->block;
    if (simt_failed())
        return;
    simt_now.name = work->kernel.name;
    const char *wrong = launch_wrong(grid, block, work->shared_bytes);
    if (wrong)
        simt_fail(NULL, work->at, "%s: grid %u %u %u, block %u %u %u, %lld bytes shared", wrong,
                  grid.x, grid.y, grid.z, block.x, block.y, block.z, (long long)work->shared_bytes);
    if (wrong)
        return;
    entry = work->kernel;
    interpreted = NULL;
    if (ptx_on()) {
        struct ptx_kernel *k = ptx_find((const void *)entry.code, work->at);
        if (!k || !ptx_takes(k, work->bytes, (int)(block.x * block.y * block.z), work->at))
            return;
        interpreted = k;
    }
    launch(grid, block, work->shared_bytes, work->params, work->bytes);
}

void ptx_run(struct ptx_kernel *kernel, unsigned n_threads, int64_t shared_bytes,
             const void *params, int64_t bytes)
{
    const struct simt_dim one = {1, 1, 1}, block = {n_threads, 1, 1};
    simt_now.name = kernel->name;
    interpreted = kernel;
    if (ptx_takes(kernel, bytes, (int)n_threads, NOWHERE))
        launch(one, block, shared_bytes, params, bytes);
}

int simt_arch(void)
{
    (void)ptx_on();
    return simt_now.arch;
}

void simt_arch_set(int arch)
{
    if (!ptx_on())
        simt_now.arch = arch;
}

struct simt_dim simt_thread_idx(void)
{
    return simt_now.now->idx;
}

struct simt_dim simt_block_idx(void)
{
    return simt_now.block_at;
}

struct simt_dim simt_block_dim(void)
{
    return simt_now.block;
}

struct simt_dim simt_grid_dim(void)
{
    return simt_now.grid;
}

void simt_trap(struct simt_site at)
{
    simt_fail(NULL, at, "trap");
    abort();
}

/* ---- barriers ---- */

static const struct thread *waits, *ended; // some thread at the barrier, or that has ended

static int is_same_site(struct simt_site a, struct simt_site b)
{
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

void simt_barrier(struct simt_site at)
{
    struct thread *t = simt_now.now;
    const struct thread *other = simt_now.n_waiting > 0 ? waits : NULL;
    if (other && !is_same_site(other->site, at))
        simt_fail(NULL, at, "barrier, while thread %d waits at the one of %s:%d", other->index,
                  other->site.file, other->site.line);
    if (simt_now.n_ended > 0)
        simt_fail(NULL, at, "barrier, which thread %d never comes to: it has ended", ended->index);
    t->site = at;
    t->state = THREAD_BARRIER;
    waits = t;
    if (++simt_now.n_waiting == simt_now.n_threads) {
        simt_now.n_waiting = 0;
        simt_now.epoch++;
        for (int i = 0; i < simt_now.n_threads; i++)
            threads[i].state = THREAD_READY;
        return;
    }
    give_way();
}

static void thread_end(void)
{
    struct thread *t = simt_now.now;
    if (t->n_copies > 0)
        simt_fail(t->copies[0].pc, NOWHERE, "copy that its thread never waited for");
    if (simt_now.n_waiting > 0)
        simt_fail(NULL, waits->site, "barrier, which thread %d never comes to: it has ended",
                  t->index);
    const int lane = t->index % LANES;
    for (const struct thread *w = t - lane; w < t - lane + LANES && w < threads + THREADS_MAX; w++)
        if (w->index / LANES == t->index / LANES && w->state == THREAD_WARP &&
            (w->mask >> lane & 1))
            simt_fail(NULL, w->site, "warp operation of mask %08x, which lane %d never comes to",
                      w->mask, lane);
    t->state = THREAD_ENDED;
    ended = t;
    simt_now.n_ended++;
}

/* ---- warps ---- */

/* The lanes of t's warp that there are. */
static unsigned warp_lanes(const struct thread *t)
{
    int n = simt_now.n_threads - t->index / LANES * LANES;
    return n >= LANES ? 0xffffffffu : (1u << n) - 1;
}

/* 1 when all lanes of the mask wait in this very operation. Lanes that wait for t in another one
 * will never meet it. */
static int warp_is_there(const struct thread *t, const struct thread *warp)
{
    int all = 1;
    for (int lane = 0; lane < LANES; lane++) {
        const struct thread *w = &warp[lane];
        if (!(t->mask >> lane & 1))
            continue;
        if (w->state == THREAD_READY) // a later one looks at the rest
            return 0;
        if (w->state == THREAD_ENDED)
            simt_fail(NULL, t->site, "warp operation of mask %08x, but lane %d has ended", t->mask,
                      lane);
        int same = w->op == t->op && w->mask == t->mask && is_same_site(w->site, t->site);
        if (w->state == THREAD_WARP && !same && (w->mask >> t->index % LANES & 1))
            simt_fail(NULL, t->site,
                      "warp operation of mask %08x, while lane %d waits in the one of mask %08x of "
                      "%s:%d",
                      t->mask, lane, w->mask, w->site.file, w->site.line);
        all &= w->state == THREAD_WARP && same;
    }
    return all;
}

/* The lane whose value this one gets; itself where there is none in its segment. */
static int shuffle_source(const struct thread *t)
{
    const int lane = t->index % LANES, first = lane & ~(t->width - 1), last = first + t->width - 1;
    const int to = t->op == SIMT_SHFL        ? first + (t->by & (t->width - 1))
                   : t->op == SIMT_SHFL_UP   ? lane - t->by
                   : t->op == SIMT_SHFL_DOWN ? lane + t->by
                                             : lane ^ t->by;
    return to < first || to > last ? lane : to;
}

static void shuffle(struct thread *warp, unsigned mask)
{
    for (int lane = 0; lane < LANES; lane++) {
        struct thread *t = &warp[lane];
        if (!(mask >> lane & 1))
            continue;
        const int from = shuffle_source(t);
        if (!(mask >> from & 1))
            simt_fail(NULL, t->site, "shuffle: lane %d reads lane %d, outside of mask %08x", lane,
                      from, mask);
        t->result = warp[from].value;
    }
}

static void ballot(struct thread *warp, unsigned mask)
{
    unsigned all = 0;
    for (int lane = 0; lane < LANES; lane++)
        all |= (mask >> lane & 1) && warp[lane].value ? 1u << lane : 0;
    for (int lane = 0; lane < LANES; lane++)
        warp[lane].result = all;
}

/* Each knows what all of them knew; what it does from now on is new. */
static void syncwarp(struct thread *warp, unsigned mask)
{
    uint32_t clock[LANES] = {0};
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; i < LANES && (mask >> lane & 1); i++)
            clock[i] = warp[lane].clock[i] > clock[i] ? warp[lane].clock[i] : clock[i];
    for (int lane = 0; lane < LANES; lane++)
        if (mask >> lane & 1) {
            memcpy(warp[lane].clock, clock, sizeof clock);
            warp[lane].clock[lane]++;
        }
}

/* Matrix j: its rows stand where lanes 8 j .. 8 j + 7 say. A lane has two numbers of each, of row
 * lane / 4 from column lane % 4 * 2, or of that column. */
static void ldmatrix(struct thread *warp, int n, int transposed)
{
    for (int j = 0; j < n; j++)
        for (int lane = 0; lane < LANES; lane++) {
            uint32_t pair = 0;
            for (int i = 0; i < 2; i++) {
                int row = lane / 4, column = lane % 4 * 2 + i;
                const uint8_t *at = transposed
                                        ? (const uint8_t *)warp[8 * j + column].address + 2 * row
                                        : (const uint8_t *)warp[8 * j + row].address + 2 * column;
                uint16_t x;
                memcpy(&x, at, sizeof x);
                pair |= (uint32_t)x << 16 * i;
            }
            warp[lane].to[j] = pair;
        }
}

/* A row of A and a column of B as the fragments of all lanes hold them. */
static void mma(struct thread *warp, enum simt_mma kind)
{
    const int k = kind == SIMT_MMA_F16_K8 ? 8 : 16;
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 8; column++) {
            uint16_t a[16], b[16];
            for (int i = 0; i < k; i++) {
                const struct thread *ta = &warp[row % 8 * 4 + i % 8 / 2];
                const struct thread *tb = &warp[column * 4 + i % 8 / 2];
                a[i] = (uint16_t)(ta->a[i / 8 * 2 + row / 8] >> 16 * (i % 2));
                b[i] = (uint16_t)(tb->b[i / 8] >> 16 * (i % 2));
            }
            float *d = (float *)warp[row % 8 * 4 + column / 2].d + row / 8 * 2 + column % 2;
            *d = simt_mma_dot(simt_now.arch, kind, a, b, *d);
        }
}

/* The same of bytes: a register has four. */
static void mma_s8(struct thread *warp, enum simt_mma kind)
{
    const int k = kind == SIMT_MMA_S8 ? 32 : 16, n_rows = k / 2;
    for (int row = 0; row < n_rows; row++)
        for (int column = 0; column < 8; column++) {
            int32_t *d = (int32_t *)warp[row % 8 * 4 + column / 2].d + row / 8 * 2 + column % 2;
            uint32_t sum = (uint32_t)*d;
            for (int i = 0; i < k; i++) {
                const uint32_t a = warp[row % 8 * 4 + i % 16 / 4].a[i / 16 * 2 + row / 8];
                const uint32_t b = warp[column * 4 + i % 16 / 4].b[i / 16];
                sum += (uint32_t)((int8_t)(a >> 8 * (i % 4)) * (int8_t)(b >> 8 * (i % 4)));
            }
            *d = (int32_t)sum;
        }
}

static void warp_compute(const struct thread *t, struct thread *warp)
{
    if (t->op == SIMT_SYNCWARP)
        syncwarp(warp, t->mask);
    else if (t->op == SIMT_BALLOT)
        ballot(warp, t->mask);
    else if (t->op == SIMT_LDMATRIX)
        ldmatrix(warp, t->by, t->width);
    else if (t->op == SIMT_MMA && t->by >= SIMT_MMA_S8)
        mma_s8(warp, (enum simt_mma)t->by);
    else if (t->op == SIMT_MMA)
        mma(warp, (enum simt_mma)t->by);
    else
        shuffle(warp, t->mask);
    for (int lane = 0; lane < LANES; lane++)
        if (t->mask >> lane & 1)
            warp[lane].state = THREAD_READY;
}

uint64_t simt_warp(enum simt_op op, unsigned mask, uint64_t value, int by, int width,
                   struct simt_site at)
{
    struct thread *t = simt_now.now, *warp = t - t->index % LANES;
    t->op = op;
    t->mask = mask;
    t->value = value;
    t->by = by;
    t->width = width;
    t->site = at;
    t->state = THREAD_WARP;
    if (!(mask >> t->index % LANES & 1))
        simt_fail(NULL, at, "warp operation of mask %08x, which lane %d is not in", mask,
                  t->index % LANES);
    if (mask & ~warp_lanes(t))
        simt_fail(NULL, at, "warp operation of mask %08x, in a warp of lanes %08x", mask,
                  warp_lanes(t));
    if (warp_is_there(t, warp))
        warp_compute(t, warp);
    else
        give_way();
    return t->result;
}

void simt_ldmatrix(uint32_t *r, const void *row, int n, int transposed, struct simt_site at)
{
    simt_ldmatrix_at(r, row, n, transposed, at, __builtin_return_address(0));
}

void simt_ldmatrix_at(uint32_t *r, const void *row, int n, int transposed, struct simt_site at,
                      const void *pc)
{
    struct thread *t = simt_now.now;
    if (t->index % LANES < 8 * n) {
        if ((uintptr_t)row % 16)
            simt_fail(pc, at, "ldmatrix of a row that is not on 16 bytes");
        shadow_access(row, 16, ACCESS_READ, pc);
    }
    t->address = row;
    t->to = r;
    (void)simt_warp(SIMT_LDMATRIX, 0xffffffffu, 0, n, transposed, at);
}

void simt_mma(enum simt_mma kind, void *d, const uint32_t *a, const uint32_t *b,
              struct simt_site at)
{
    struct thread *t = simt_now.now;
    if (kind != SIMT_MMA_F16_K8 && kind != SIMT_MMA_S8_K16 && simt_now.arch < 80)
        simt_fail(NULL, at, "sm_%d has no such mma", simt_now.arch);
    t->d = d;
    t->a = a;
    t->b = b;
    (void)simt_warp(SIMT_MMA, 0xffffffffu, 0, kind, 0, at);
}

/* ---- asynchronous copies ---- */

static void copy_land(const struct copy *c)
{
    memcpy(c->to, c->from, (size_t)c->from_bytes);
    memset((uint8_t *)c->to + c->from_bytes, 0, (size_t)(c->bytes - c->from_bytes));
    shadow_land(c->to, c->bytes, c->pc);
}

void simt_cp_async(void *to, const void *from, int bytes, int from_bytes)
{
    simt_cp_async_at(to, from, bytes, from_bytes, __builtin_return_address(0));
}

void simt_cp_async_at(void *to, const void *from, int bytes, int from_bytes, const void *pc)
{
    struct thread *t = simt_now.now;
    struct copy c = {to, from, bytes, from_bytes, t->group, pc};
    if (from_bytes < 0 || from_bytes > bytes)
        simt_fail(c.pc, NOWHERE, "copy of %d bytes of %d", from_bytes, bytes);
    if ((uintptr_t)to % (unsigned)bytes || (uintptr_t)from % (unsigned)bytes)
        simt_fail(c.pc, NOWHERE, "copy of %d bytes that is not aligned to them", bytes);
    if (t->n_copies == COPIES_MAX)
        simt_fail(c.pc, NOWHERE, "more than %d copies under way", COPIES_MAX);
    if (from_bytes > 0)
        shadow_access(from, from_bytes, ACCESS_READ, c.pc);
    shadow_fly(to, bytes, c.pc);
    if (simt_now.arch < 80) // there it is an ordinary copy
        copy_land(&c);
    else
        t->copies[t->n_copies++] = c;
}

void simt_cp_commit(void)
{
    simt_now.now->group++;
}

void simt_cp_wait(int newest)
{
    struct thread *t = simt_now.now;
    int kept = 0;
    for (int i = 0; i < t->n_copies; i++) {
        if (t->copies[i].group < t->group - newest)
            copy_land(&t->copies[i]);
        else
            t->copies[kept++] = t->copies[i];
    }
    t->n_copies = kept;
}
