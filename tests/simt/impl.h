/* tests/simt/impl.h - what the files of the shim share.
 *
 * simt.c owns blocks, threads and their meetings; shadow.c memory and who touched it; mma.c the
 * tensor core; report.c the words of an error; ptx*.c threads that interpret PTX. */
#ifndef TESTS_SIMT_IMPL_H
#define TESTS_SIMT_IMPL_H

#include "tests/simt/simt.h"

#include <stddef.h>

#define THREADS_MAX 1024
#define LANES       32
#define STACK_BYTES (128 << 10)
#define COPIES_MAX  128 // asynchronous ones under way per thread

enum thread_state { THREAD_READY, THREAD_BARRIER, THREAD_WARP, THREAD_ENDED };

/* One that cp.async has begun. */
struct copy {
    void *to;
    const void *from;
    int bytes, from_bytes; // the rest becomes zero
    int group;
    const void *pc;
};

struct thread {
    void *sp;       // while it does not run
    uint8_t *stack; // STACK_BYTES
    enum thread_state state;
    int index; // in the block
    struct simt_dim idx;
    struct simt_site site; // where it waits
    // a warp operation: what it asks for, and what it got
    enum simt_op op;
    unsigned mask;
    int by, width;
    uint64_t value, result;
    const void *address;   // ldmatrix: its row
    uint32_t *to;          // ldmatrix: its registers
    void *d;               // mma
    const uint32_t *a, *b; // mma
    const void *pc;        // ldmatrix
    uint32_t clock[LANES]; // what it knows of the lanes of its warp; [lane]: its own time
    struct copy copies[COPIES_MAX];
    int n_copies, group;
};

/* What runs: one block of one launch at a time. */
struct run {
    struct thread *now; // NULL: none, between them
    const char *name;
    struct simt_dim grid, block, block_at;
    int n_threads, n_waiting, n_ended;
    uint32_t launch, serial, epoch; // serial of the launch's first block, of this one; barriers
    int64_t shared_bytes;
    const uint8_t *args;
    int64_t args_bytes;
    int arch;
};
extern struct run simt_now;
extern _Thread_local int simt_runs; // 1: on the thread that runs it

/* The one of the kernel whose code this is; NULL: the host's. */
static inline struct thread *simt_thread(void)
{
    return simt_runs ? simt_now.now : NULL;
}

/* ---- report.c: never returns inside a kernel: the launch is given up ---- */

/* pc: of an access (NULL: `at` says where). */
void simt_fail(const void *pc, struct simt_site at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* "file.cu:12" of an address of code; to: at least 200 bytes. Returns to. */
char *simt_place(const void *pc, char *to);
int simt_failed(void);

/* ---- simt.c ---- */

void simt_give_up(void) __attribute__((noreturn)); // the running launch

/* ---- shadow.c ---- */

enum access { ACCESS_READ, ACCESS_WRITE, ACCESS_ATOMIC };
/* An access of the running thread to anything. pc: of code, or an instruction of PTX. */
void shadow_access(const void *p, int64_t bytes, enum access kind, const void *pc);
void shadow_block_begin(void);
/* Bytes that will land later: as a write, and in flight until shadow_land(). */
void shadow_fly(const void *p, int64_t bytes, const void *pc);
void shadow_land(const void *p, int64_t bytes, const void *pc);

/* ---- what simt.h has, at a place that the caller names ---- */

uint64_t simt_atomic_at(enum simt_atomic op, void *p, int bytes, uint64_t value, uint64_t expected,
                        const void *pc);
void simt_cp_async_at(void *to, const void *from, int bytes, int from_bytes, const void *pc);
void simt_ldmatrix_at(uint32_t *r, const void *row, int n, int transposed, struct simt_site at,
                      const void *pc);

#endif
