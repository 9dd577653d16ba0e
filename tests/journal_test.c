/* tests/journal_test.c - records in and out; every cut and every flipped byte of a small journal.
 */
#include "engine/job/journal.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/temp_dir.h"

#define ID 0x1234567890abcdefull
#define N  6 // records: 2 groups of 3

static int open_file(const char *name)
{
    int fd = open(temp_path(name), O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    return fd;
}

struct seen {
    int n, tokens;
    int64_t rows[16];
};

static enum err note(void *ctx, const struct journal_entry *e)
{
    struct seen *s = ctx;
    assert_true(s->n < 16);
    s->rows[s->n++] = e->index;
    if (e->kind == JOURNAL_TOKENS) {
        assert_true(e->n == 5 && e->offset == 2 && e->ids[0] == (int32_t)e->index);
        s->tokens++;
    } else {
        assert_true(e->crc == 100 + (uint32_t)e->index && e->failed == (e->index == 2));
    }
    return OK;
}

static enum err load(int fd, uint64_t id, struct seen *s, int *empty)
{
    struct journal j;
    struct journal_reader reader = {.entry = note, .ctx = s};
    *s = (struct seen){0};
    enum err err = journal_load(&j, fd, "t.journal", id, &reader, empty);
    journal_close(&j);
    return err;
}

/* Two groups: rows 0, 1, 2 (2 failed), then tokens of 3, 4, and row 5. */
static char *made(int64_t *n, int64_t *group)
{
    struct journal j;
    int fd = open_file("j");
    assert_int_equal(journal_create(&j, fd, "t.journal", ID), OK);
    for (int i = 0; i < N; i++) {
        int32_t ids[] = {i, 1, 2, 3, 4};
        int tokens = i == 3 || i == 4;
        struct journal_entry e = {.kind = tokens ? JOURNAL_TOKENS : JOURNAL_ROW,
                                  .index = i,
                                  .offset = tokens ? 2 : 10 * i,
                                  .n = tokens ? 5 : 10,
                                  .crc = 100 + (uint32_t)i,
                                  .failed = i == 2,
                                  .ids = ids};
        assert_int_equal(journal_append(&j, &e), OK);
        if (i == 2) {
            assert_int_equal(journal_commit(&j), OK);
            *group = j.end;
        }
    }
    assert_int_equal(journal_commit(&j), OK);
    *n = j.end;
    assert_int_equal(journal_pid(fd), getpid());
    journal_close(&j);
    char *bytes = malloc((size_t)*n);
    assert_int_equal(pread(fd, bytes, (size_t)*n, 0), *n);
    close(fd);
    return bytes;
}

static void round_trip(void **state)
{
    (void)state;
    int64_t n, group;
    struct seen s;
    int empty, fd;
    free(made(&n, &group));
    fd = open_file("j");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(load(fd, ID, &s, &empty), OK);
        assert_true(!empty && s.n == N && s.tokens == 2 && s.rows[5] == 5);
    }
    assert_int_equal(load(fd, ID + 1, &s, &empty), ERR_JOB);
    assert_int_equal(lseek(fd, 0, SEEK_END), n);
    close(fd);
}

/* J14: whatever was cut off, what is whole is read and the rest is gone; then it can go on. */
static void every_cut(void **state)
{
    (void)state;
    int64_t n, group;
    char *bytes = made(&n, &group);
    int before = 0;
    for (int64_t cut = 0; cut <= n; cut++) {
        struct seen s;
        int empty;
        temp_write("j", bytes, cut);
        int fd = open_file("j");
        assert_int_equal(load(fd, ID, &s, &empty), OK);
        assert_int_equal(empty, cut < 64);
        assert_true(s.n >= before || empty);
        before = s.n;
        if (!empty) {
            struct journal j;
            struct journal_reader reader = {.entry = note, .ctx = &s};
            int was = s.n;
            assert_int_equal(journal_load(&j, fd, "t", ID, &reader, &empty), OK);
            struct journal_entry e = {.kind = JOURNAL_ROW, .index = 9, .n = 1, .crc = 109};
            assert_int_equal(journal_append(&j, &e), OK);
            assert_int_equal(journal_commit(&j), OK);
            journal_close(&j);
            assert_int_equal(load(fd, ID, &s, &empty), OK);
            assert_int_equal(s.n, was + 1);
            assert_int_equal(s.rows[was], 9);
        }
        close(fd);
    }
    assert_int_equal(before, N);
    free(bytes);
}

/* A flipped byte in a synced group is damage; in the last group it is a torn tail. */
static void every_flip(void **state)
{
    (void)state;
    int64_t n, group;
    char *bytes = made(&n, &group);
    for (int64_t at = 0; at < n; at++) {
        struct seen s;
        int empty;
        bytes[at] ^= 0x10;
        temp_write("j", bytes, n);
        bytes[at] ^= 0x10;
        int fd = open_file("j");
        enum err err = load(fd, ID, &s, &empty);
        if (at >= 48 && at < 64) // the pid, and nothing
            assert_true(err == OK && s.n == N);
        else if (at < group)
            assert_int_equal(err, ERR_CORRUPT);
        else
            assert_true(err == OK && s.n >= 3 && s.n < N);
        close(fd);
    }
    free(bytes);
}

/* The tail of a group that was being written when the power went: zeros where pages are missing. */
static void torn_pages(void **state)
{
    (void)state;
    int64_t n, group;
    char *bytes = made(&n, &group);
    struct seen s;
    int empty;
    memset(bytes + group, 0, 70); // its first page is missing, later ones are there
    temp_write("j", bytes, n);
    int fd = open_file("j");
    assert_int_equal(load(fd, ID, &s, &empty), OK);
    assert_int_equal(s.n, 3);
    assert_int_equal(lseek(fd, 0, SEEK_END), group);
    close(fd);
    free(bytes);
}

static void no_journal(void **state)
{
    (void)state;
    struct seen s;
    int empty;
    char bytes[300];
    memset(bytes, 'x', sizeof bytes);
    temp_write("j", bytes, sizeof bytes);
    int fd = open_file("j");
    assert_int_equal(load(fd, ID, &s, &empty), ERR_CORRUPT);
    assert_int_equal(journal_pid(fd), 0);
    close(fd);
}

static void write_errors(void **state)
{
    (void)state;
    struct journal j;
    int fd = open("/dev/full", O_RDWR);
    struct journal_entry e = {.kind = JOURNAL_ROW, .index = 1, .n = 1};
    assert_true(fd >= 0);
    int file = open_file("k");
    assert_int_equal(journal_create(&j, file, "k", ID), OK);
    j.fd = fd;
    j.path = "/dev/full";
    assert_int_equal(journal_append(&j, &e), OK);
    assert_int_equal(journal_commit(&j), ERR_IO);
    assert_non_null(strstr(err_text(), "/dev/full"));
    j.fd = file; // final, whatever happens to the disk
    assert_int_equal(journal_commit(&j), ERR_IO);
    journal_close(&j);
    close(fd);
    close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip), cmocka_unit_test(every_cut),  cmocka_unit_test(every_flip),
        cmocka_unit_test(torn_pages), cmocka_unit_test(no_journal), cmocka_unit_test(write_errors),
    };
    return cmocka_run_group_tests(tests, temp_dir_setup_fast, temp_dir_teardown);
}
