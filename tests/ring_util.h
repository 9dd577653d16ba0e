/* tests/ring_util.h - what the tests of offload/ring share: files with a model in memory, and
 * running ios from start to end, on both back ends where the kernel has both. For one test binary
 * each: it defines its variables. */
#ifndef TESTS_RING_UTIL_H
#define TESTS_RING_UTIL_H

#include "offload/ring.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/ring_fault.h"
#include "tests/skip.h"
#include "tests/temp_dir.h"

static const enum ring_kind KINDS[] = {RING_URING, RING_THREADS};
static int have_uring;
static char uring_refused[256]; // why there is none
static uint64_t random_state;

static inline uint64_t random_next(void)
{
    return mix64(random_state++);
}

static inline int64_t random_below(int64_t n)
{
    return (int64_t)(random_next() % (uint64_t)n);
}

static inline void *pages(int64_t n_bytes)
{
    void *p = aligned_alloc(4096, (size_t)round_up(n_bytes, 4096));
    assert_non_null(p);
    return p;
}

/* A file of n_bytes pseudo-random bytes, and its model in memory. */
static inline uint8_t *file_make(const char *name, char *path, int64_t n_bytes)
{
    snprintf(path, 128, "%s/%s", temp_dir, name);
    uint8_t *model = pages(n_bytes);
    for (int64_t i = 0; i < n_bytes; i++)
        model[i] = (uint8_t)random_next();
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(model, 1, (size_t)n_bytes, f), n_bytes);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, 0666), 0);
    return model;
}

static inline void file_check(const char *path, const uint8_t *model, int64_t n_bytes)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    uint8_t *bytes = pages(n_bytes + 1);
    assert_int_equal(fread(bytes, 1, (size_t)n_bytes + 1, f), n_bytes);
    assert_memory_equal(bytes, model, (size_t)n_bytes);
    free(bytes);
    fclose(f);
}

static inline struct ring *ring_make(enum ring_kind kind, int depth, const char *faults)
{
    struct ring *r;
    struct ring_config config = {.kind = kind, .depth = depth, .n_threads = 4};
    ring_faults = faults;
    enum err e = ring_open(&r, &config);
    if (e != OK)
        print_error("%s\n", err_text());
    assert_int_equal(e, OK);
    return r;
}

static inline int file_add(struct ring *r, const char *path, int flags)
{
    int file = -1;
    enum err e = ring_file_add(r, path, -1, flags, &file);
    if (e != OK)
        print_error("%s\n", err_text());
    assert_int_equal(e, OK);
    return file;
}

/* Submits all, reaps all; every io must come back exactly once. Returns how many failed. */
static inline int ios_run(struct ring *r, struct ring_io *ios, int n)
{
    int n_sent = 0, n_back = 0, n_failed = 0;
    struct ring_io *done[16];
    for (int i = 0; i < n; i++)
        ios[i].user = NULL;
    while (n_back < n) {
        while (n_sent < n) {
            enum err e = ring_submit(r, &ios[n_sent]);
            if (e == ERR_BUSY)
                break;
            assert_int_equal(e, OK);
            n_sent++;
        }
        int n_done = ring_reap(r, done, 16, RING_WAIT);
        assert_true(n_done > 0);
        for (int i = 0; i < n_done; i++) {
            assert_null(done[i]->user);
            done[i]->user = done[i];
            n_failed += done[i]->err != OK;
            assert_true((done[i]->err == OK) == (done[i]->err_text[0] == 0));
        }
        n_back += n_done;
    }
    assert_int_equal(ring_in_flight(r), 0);
    return n_failed;
}

/* One io, start to end. */
static inline enum err io_run(struct ring *r, struct ring_io *io)
{
    ios_run(r, io, 1);
    return io->err;
}

static inline int ring_setup(void **state)
{
    (void)state;
    temp_dir_make();
    if (chmod(temp_dir, 0755) != 0) // another user reads there
        return -1;
    struct ring *r;
    struct ring_config config = {.kind = RING_URING, .depth = 4};
    have_uring = ring_open(&r, &config) == OK;
    if (have_uring)
        ring_close(r);
    else
        snprintf(uring_refused, sizeof uring_refused, "%s", err_text());
    return 0;
}

/* A test of its own in each group: without io_uring the others run on threads alone. */
static inline void both_back_ends_are_there(void **state)
{
    (void)state;
    if (!have_uring)
        skip_because("io_uring is refused: %s", uring_refused);
}

#endif
