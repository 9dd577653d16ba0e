/* tests/journal_foreign_test.c - J16 for the journal: records and pages that are sound in
 * themselves but stand where they do not belong: swapped, of another job, of an earlier life of
 * this one, or zeros. In a synced group that is damage, in the last one a torn tail; never a record
 * that nobody wrote there. */
#include "engine/job/journal.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/temp_dir.h"

#define ID      0x1234567890abcdefull
#define RECORD  64
#define GROUPS  3
#define EACH    100 // rows of a group: 6,400 bytes, so that each holds a whole page
#define N       (GROUPS * EACH)
#define PAGE    4096
#define N_BYTES (RECORD + N * RECORD)

static char made[2][N_BYTES]; // two journals of equal size

/* crc: what the rows say; the same in both journals for the same `first`. */
static void make(char *bytes, uint64_t id, int first)
{
    struct journal j;
    int fd = open(temp_path("made"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(journal_create(&j, fd, "made", id), OK);
    for (int i = 0; i < N; i++) {
        const struct journal_entry e = {.kind = JOURNAL_ROW,
                                        .index = first + i,
                                        .offset = 10 * i,
                                        .n = 10,
                                        .crc = 1000 + (uint32_t)(first + i)};
        assert_int_equal(journal_append(&j, &e), OK);
        if (i % EACH == EACH - 1)
            assert_int_equal(journal_commit(&j), OK);
    }
    journal_close(&j);
    assert_int_equal(pread(fd, bytes, N_BYTES, 0), N_BYTES);
    close(fd);
}

/* Entries must be the first journal's, in order. */
static enum err note(void *ctx, const struct journal_entry *e)
{
    int *n = ctx;
    assert_true(e->kind == JOURNAL_ROW && e->index == *n && e->offset == 10 * *n);
    assert_true(e->crc == 1000 + (uint32_t)*n);
    (*n)++;
    return OK;
}

static enum err load(const char *bytes, int *n)
{
    struct journal j;
    const struct journal_reader reader = {.entry = note, .ctx = n};
    int empty;
    *n = 0;
    temp_write("j", bytes, N_BYTES);
    int fd = open(temp_path("j"), O_RDWR);
    assert_true(fd >= 0);
    enum err e = journal_load(&j, fd, "j", ID, &reader, &empty);
    assert_false(empty);
    journal_close(&j);
    close(fd);
    return e;
}

/* `with` stands at `at` instead of what was written there. */
static void replaced(int64_t at, const char *with, int64_t n_with)
{
    static char bytes[N_BYTES];
    const int group = (int)((at - RECORD) / (EACH * RECORD)), first = (int)(at / RECORD) - 1;
    int n;
    memcpy(bytes, made[0], N_BYTES);
    memcpy(bytes + at, with, (size_t)n_with);
    const enum err e = load(bytes, &n);
    if (group < GROUPS - 1) {
        assert_int_equal(e, ERR_CORRUPT);
        assert_non_null(strstr(err_text(), "damaged record"));
    } else {
        assert_int_equal(e, OK);
    }
    assert_int_equal(n, first);
}

static void swapped(void **state)
{
    (void)state;
    for (int i = 0; i < N - 1; i += 7) {
        static char two[2 * RECORD];
        const int64_t at = RECORD + i * RECORD;
        memcpy(two, made[0] + at + RECORD, RECORD);
        memcpy(two + RECORD, made[0] + at, RECORD);
        replaced(at, two, sizeof two);
        replaced(at, made[0] + at + RECORD, RECORD); // the next one twice
    }
    replaced(PAGE, made[0] + 2 * PAGE, PAGE);
    replaced(2 * PAGE, made[0] + PAGE, PAGE);
}

static void zeroed(void **state)
{
    (void)state;
    static const char zeros[PAGE];
    for (int i = 0; i < N; i += 7)
        replaced(RECORD + i * RECORD, zeros, RECORD);
    for (int64_t at = PAGE; at + PAGE <= N_BYTES; at += PAGE)
        replaced(at, zeros, PAGE);
}

/* The same rows, journaled by another job at the same place. */
static void foreign(void **state)
{
    (void)state;
    make(made[1], ID + 1, 0);
    for (int i = 0; i < N; i += 7)
        replaced(RECORD + i * RECORD, made[1] + RECORD + i * RECORD, RECORD);
    for (int64_t at = PAGE; at + PAGE <= N_BYTES; at += PAGE)
        replaced(at, made[1] + at, PAGE);
}

/* This job, before --overwrite: other rows were done first. Only the chain tells, so the very first
 * record, which has none before it, is left to the next one, whose chain it breaks. */
static void stale(void **state)
{
    (void)state;
    make(made[1], ID, 1);
    for (int i = 1; i < N; i += 7)
        replaced(RECORD + i * RECORD, made[1] + RECORD + i * RECORD, RECORD);
    for (int64_t at = PAGE; at + PAGE <= N_BYTES; at += PAGE)
        replaced(at, made[1] + at, PAGE);
}

static int setup(void **state)
{
    int n;
    (void)state;
    temp_dir_make_fast();
    make(made[0], ID, 0);
    return load(made[0], &n) == OK && n == N ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(swapped),
        cmocka_unit_test(zeroed),
        cmocka_unit_test(foreign),
        cmocka_unit_test(stale),
    };
    return cmocka_run_group_tests(tests, setup, temp_dir_teardown);
}
