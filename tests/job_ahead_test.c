/* tests/job_ahead_test.c - what the job does beside the walker: rows are read ahead of it, commits
 * become durable behind it, and nothing of OUT, of the order of rows or of an error says so.
 *
 * fdatasync() and pread() are its own: they wait, are late by a seed, or fail. The reference is the
 * same job without threads, on the walker alone. */
#include "engine/job/job_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/job_help.h"
#include "tests/sweep.h"

#define WAIT_S 20 // for what must happen at once on a machine that does anything at all

/* ---- a disk that is slow ---- */

static struct {
    atomic_int hold; // fdatasync waits for `go`
    sem_t held, go;
    atomic_int n_late; // it waited in vain
    atomic_ulong seed; // 0: not late by itself
    atomic_int n, fail_at;
    atomic_long bad_from; // reads of what stands there and behind fail; 0: none
    atomic_int n_reads;
} disk;
static _Thread_local int n_own_reads; // of disk.n_reads, those of this thread

static int sem_within(sem_t *s)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += WAIT_S;
    int failed;
    do
        failed = sem_timedwait(s, &end);
    while (failed && errno == EINTR);
    return failed == 0;
}

int fdatasync(int fd)
{
    int n = ++disk.n;
    if (disk.hold) {
        sem_post(&disk.held);
        disk.n_late += !sem_within(&disk.go);
    }
    if (disk.seed)
        usleep((useconds_t)(mix64(disk.seed + (uint64_t)n) % 1500));
    if (n == disk.fail_at) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fdatasync, fd);
}

ssize_t pread(int fd, void *buf, size_t n, off_t offset)
{
    disk.n_reads++;
    n_own_reads++;
    if (disk.bad_from > 0 && offset >= disk.bad_from) {
        errno = EIO;
        return -1;
    }
    return (ssize_t)syscall(SYS_pread64, fd, buf, n, offset);
}

static void disk_begin(void)
{
    disk.hold = disk.n_late = disk.n = disk.fail_at = 0;
    disk.seed = 0;
    sem_init(&disk.held, 0, 0);
    sem_init(&disk.go, 0, 0);
}

/* ---- rows that are slow to read ---- */

static struct template *slow_tmpl;
static const char *in_path, *out_path, *big_path;

static int slow_setup(void **state)
{
    static const char text[] = "{% for i in range(messages[0].content | length * 100) %}"
                               "{% set x = i * 3 %}{% endfor %}{{ messages[0].content }}";
    group_setup(state);
    in_path = kept_path("in");
    out_path = kept_path("out");
    big_path = kept_path("big");
    assert_int_equal(template_parse(&slow_tmpl, text, (int64_t)strlen(text), "slow"), OK);
    return 0;
}

static int slow_teardown(void **state)
{
    template_free(slow_tmpl);
    return group_teardown(state);
}

/* n rows of which each takes another time; `blanks` spaces stand before each. */
static void slow_rows(const char *name, int n, int scale, int blanks)
{
    struct script s = {0};
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < blanks; k += 400)
            script_add(&s, "%400s", "");
        script_add(&s,
                   "{\"messages\":[{\"role\":\"user\",\"content\":\"%.*s\"}],\"max_tokens\":%d,"
                   "\"seed\":%d,\"logprobs\":true}\n",
                   1 + (int)(mix64((uint64_t)i) % (uint64_t)scale),
                   "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz", 1 + i % 5, i);
    }
    temp_write_text(name, s.text);
    free(s.text);
}

/* The same job on the walker alone. */
static void begin_alone(struct job *job)
{
    job->begun = 1;
}

/* ---- the reader ---- */

/* A line is read where its text is made: in the reader's thread, or in the walker's when alone. */
static void walker_makes_no_text(void **state)
{
    (void)state;
    slow_rows("in", 60, 50, 10000); // more than one window of the reader
    struct job_config c = config_for(in_path, NULL);
    c.tmpl = slow_tmpl;
    for (int alone = 0; alone < 2; alone++) {
        struct job *job;
        struct work work;
        const struct request *next;
        assert_int_equal(job_open(&job, &c, &work), OK);
        int own = n_own_reads, all = disk.n_reads;
        if (alone)
            begin_alone(job);
        assert_int_equal(job_begin(job), OK);
        for (int i = 0; i < 60; i++) {
            assert_int_equal(job_peek(job, &next), OK);
            assert_non_null(next);
            assert_int_equal(next->index, i);
            assert_ptr_equal(job_take(job), next);
        }
        own = n_own_reads - own;
        all = disk.n_reads - all;
        assert_true(all > 0);
        assert_int_equal(own, alone ? all : 0);
        assert_int_equal(job_close(job), OK);
    }
}

/* Until the reader has nothing to do. */
static void until_it_rests(struct job *job)
{
    struct reader *r = &job->reader;
    for (int i = 0; i < WAIT_S * 1000; i++) {
        pthread_mutex_lock(&r->lock);
        int rests = r->n_made == r->n_asked || r->n_bytes >= QUEUE_BYTES;
        pthread_mutex_unlock(&r->lock);
        if (rests) {
            usleep(2000); // would it go on?
            return;
        }
        usleep(1000);
    }
    fail_msg("the reader does not rest");
}

static void the_queue_is_bounded(void **state)
{
    (void)state;
    enum { ROWS = 3000 };
    struct script s = {0};
    for (int i = 0; i < ROWS; i++)
        script_add(&s, "{\"prompt\":\"abc\",\"max_tokens\":9000}\n");
    temp_write_text("in", s.text);
    free(s.text);
    for (int context = 16; context <= 8192; context *= 512) {
        struct job_config c = config_for(in_path, NULL);
        c.defaults.context = context;
        struct job *job;
        struct work work;
        struct job_counts counts;
        const struct request *next;
        assert_int_equal(job_open(&job, &c, &work), OK);
        size_t before = mallinfo2().uordblks;
        assert_int_equal(job_begin(job), OK);
        until_it_rests(job);
        int64_t held = (int64_t)(mallinfo2().uordblks - before);
        int64_t row = (int64_t)sizeof(struct live) + 4 * (int64_t)context + 256;
        const struct reader *r = &job->reader;
        assert_true(context == 16 ? r->n_made == QUEUE_ROWS && r->n_bytes < QUEUE_BYTES
                                  : r->n_made < QUEUE_ROWS && r->n_bytes >= QUEUE_BYTES);
        assert_true(r->n_bytes < QUEUE_BYTES + row);
        if (before > 0) // not under a sanitizer, which has its own heap
            assert_in_range(held, r->n_bytes / 2, r->n_bytes + r->n_bytes / 8);
        struct job_config none = c;
        none.limit = 1; // of one row next to nothing is ready ahead
        struct job *small;
        struct work one;
        assert_int_equal(job_open(&small, &none, &one), OK);
        assert_true(job_text_bytes(job, &work) - job_text_bytes(small, &one) >=
                    r->n_bytes - row + (ROWS - 1) * (int64_t)sizeof(struct job_row));
        job_close(small);
        for (int i = 0; i < ROWS; i++) {
            assert_int_equal(job_peek(job, &next), OK);
            assert_int_equal(next->index, i);
            assert_int_equal(job_fail(job, job_take(job), "x", "y"), OK);
        }
        assert_int_equal(job_peek(job, &next), OK);
        assert_null(next);
        job_counts(job, &counts);
        assert_true(counts.ahead_rows <= QUEUE_ROWS && counts.ahead_bytes < QUEUE_BYTES + row);
        assert_int_equal(job_close(job), OK);
    }
}

/* Rows that are ready go with the job, whenever it ends. */
static void closed_at_any_moment(void **state)
{
    (void)state;
    slow_rows("in", 40, 9, 0);
    struct job_config c = config_for(in_path, out_path);
    c.tmpl = slow_tmpl;
    c.overwrite = 1;
    for (int i = 0; i < sweep(7, 20); i++) {
        struct job *job;
        struct work work;
        const struct request *next;
        assert_int_equal(job_open(&job, &c, &work), OK);
        assert_int_equal(job_begin(job), OK);
        assert_int_equal(job_begin(job), OK); // nothing more
        for (int k = 0; k < i % 5; k++) {
            assert_int_equal(job_peek(job, &next), OK);
            job_take(job);
        }
        usleep((useconds_t)(mix64((uint64_t)i) % 3000));
        assert_int_equal(job_close(job), OK);
    }
}

/* What a job came to, half of whose input cannot be read any more. */
struct ended {
    enum err err;
    int64_t taken;
    char text[512];
};

static struct ended run_bad(int alone)
{
    struct script s = {0};
    char *pad = malloc(40001);
    memset(pad, 'x', 40000);
    pad[40000] = 0;
    for (int i = 0; i < 30; i++) {
        for (int k = 0; k < 100; k++)
            script_add(&s, k ? "%.400s" : "{\"user\":\"%.400s", pad);
        script_add(&s, "\",\"prompt\":\"p%d\",\"max_tokens\":2}\n", i);
    }
    temp_write_text("big", s.text);
    struct job_config c = config_for(big_path, NULL);
    struct job *job;
    struct work work;
    struct ended got = {0};
    assert_int_equal(job_open(&job, &c, &work), OK);
    disk.bad_from = (int64_t)s.n / 2;
    if (alone)
        begin_alone(job);
    assert_int_equal(job_begin(job), OK);
    for (const struct request *next; got.err == OK; got.taken += got.err == OK) {
        got.err = job_peek(job, &next);
        if (got.err == OK) {
            assert_int_equal(next->index, got.taken);
            usleep(1000);
            job_take(job);
        }
    }
    snprintf(got.text, sizeof got.text, "%s", err_text());
    const struct request *again; // it stays what it is
    assert_true(alone || job_peek(job, &again) == got.err);
    disk.bad_from = 0;
    job_close(job);
    free(s.text);
    free(pad);
    return got;
}

static void an_error_stands_at_its_row(void **state)
{
    (void)state;
    struct ended want = run_bad(1), got = run_bad(0);
    print_message("after %d rows: %s\n", (int)want.taken, want.text);
    assert_true(want.err != OK && want.taken > 5 && want.taken < 29);
    assert_int_equal(got.err, want.err);
    assert_int_equal(got.taken, want.taken);
    assert_string_equal(got.text, want.text);
}

/* ---- both ---- */

/* Rows of every kind, and rows that are slow to read between them. */
static void all_rows(const char *name)
{
    struct script s = {0};
    char *mixed = mixed_input(28), *rest;
    for (char *line = strtok_r(mixed, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        int i = (int)s.n;
        script_add(&s, "%s\n", line);
        if (i % 3 == 0)
            script_add(&s,
                       "{\"messages\":[{\"role\":\"user\",\"content\":\"%.*s\"}],\"max_tokens\":4,"
                       "\"seed\":%d}\n",
                       1 + i % 17, "abcdefghijklmnopqrst", i);
    }
    temp_write_text(name, s.text);
    free(mixed);
    free(s.text);
}

/* One run of a job that is stopped after some passes, or at its end. */
static enum err run_once(const struct job_config *c, int alone, int64_t stop_after, int confirm)
{
    struct fake f = {.batch = 3, .nan_row = 9, .requeue_every = 3, .stop_after = stop_after};
    struct work work;
    assert_int_equal(job_open(&f.job, c, &work), OK);
    if (alone)
        begin_alone(f.job);
    enum err err = fake_run(&f);
    if (err == ERR_STOPPED && confirm)
        assert_int_equal(job_pass_end(f.job, 1), OK);
    if (err == OK)
        err = job_complete(f.job);
    assert_int_equal(job_close(f.job), OK);
    return err;
}

static void same_bytes_whatever_is_late(void **state)
{
    (void)state;
    char *want[2] = {NULL, NULL};
    all_rows("in");
    for (uint64_t seed = 0; seed < 10; seed += (uint64_t)sweep(3, 1))
        for (int completion = 0; completion < 2; completion++) {
            struct job_config c = config_for(in_path, out_path);
            int64_t stop_after = seed < 4 ? 0 : 2 + (int64_t)(seed % 5), n;
            c.tmpl = slow_tmpl;
            c.completion_order = completion;
            c.sync_s = seed % 2 ? 1e-6 : 4e-3;
            disk_begin();
            disk.seed = seed; // 0: the walker alone, and no disk is late
            int runs = 0;
            /* OUT of the job before this one stands there. The same command resumes, so every run
             * may replace that OUT. */
            c.overwrite = 1;
            enum err err;
            while ((err = run_once(&c, seed == 0, stop_after, runs % 2)) == ERR_STOPPED)
                assert_true(++runs < 200);
            assert_int_equal(err, OK);
            assert_true(stop_after == 0 || runs > 3);
            char *got = file_text("out", &n);
            if (seed == 0) {
                want[completion] = got;
                continue;
            }
            /* Of a job that was resumed the order of completion is another. */
            char *a = completion && runs > 0 ? sorted_lines(got) : strdup(got);
            char *b = completion && runs > 0 ? sorted_lines(want[1]) : strdup(want[completion]);
            assert_string_equal(a, b);
            free(a);
            free(b);
            free(got);
        }
    disk_begin();
    free(want[0]);
    free(want[1]);
}

/* ---- the writer ---- */

static void start_over(void)
{
    static const char *const names[] = {"out", "out.partial", "out.journal", "out.job.json"};
    for (int i = 0; i < 4; i++)
        unlink(temp_path(names[i]));
}

/* A pass over the rows that are live, `batch` of them, one token each. */
static void one_pass(struct fake *f, struct fake_row *rows)
{
    for (int i = 0; i < f->batch; i++) {
        const struct request *next;
        if (!rows[i].r && job_peek(f->job, &next) == OK && next)
            rows[i] = (struct fake_row){.r = job_take(f->job)};
        if (rows[i].r)
            assert_int_equal(fake_row_pass(f, &rows[i]), OK);
    }
}

static enum err count_tokens(void *ctx, const struct journal_entry *e)
{
    *(int64_t *)ctx += e->kind == JOURNAL_TOKENS ? e->n : e->tokens;
    return OK;
}

/* Tokens that stand in the journal, seen from outside. */
static int64_t journal_tokens(void)
{
    int64_t n = 0;
    struct journal_look look;
    struct journal_reader reader = {.entry = count_tokens, .ctx = &n};
    int fd = open(temp_path("out.journal"), O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(journal_look(fd, "out.journal", 0, &reader, &look), OK);
    close(fd);
    return n;
}

static struct job_config long_job(double sync_s)
{
    struct script s = {0};
    for (int i = 0; i < 4; i++)
        script_add(&s, "{\"prompt\":\"p%d\",\"max_tokens\":40,\"ignore_eos\":true,\"seed\":%d}\n",
                   i, i);
    temp_write_text("in", s.text);
    free(s.text);
    struct job_config c = config_for(in_path, out_path);
    c.sync_s = sync_s;
    return c;
}

static void *let_go(void *arg)
{
    (void)arg;
    usleep(50000);
    disk.hold = 0;
    for (int i = 0; i < 8; i++)
        sem_post(&disk.go);
    return NULL;
}

static void the_walker_does_not_wait_for_the_disk(void **state)
{
    (void)state;
    struct fake f = {.batch = 4, .nan_row = -1};
    struct fake_row rows[4] = {{0}};
    struct job_config c = long_job(30);
    struct work work;
    struct job_counts counts;
    pthread_t thread;
    start_over();
    disk_begin();
    assert_int_equal(job_open(&f.job, &c, &work), OK);
    assert_int_equal(job_begin(f.job), OK);
    one_pass(&f, rows);
    f.job->commit_ns -= (int64_t)15e9; // half of 30 s have gone by
    disk.hold = 1;
    assert_int_equal(job_pass_end(f.job, 0), OK);
    assert_true(sem_within(&disk.held)); // somebody waits for the disk
    for (int i = 0; i < 3; i++) {
        one_pass(&f, rows);
        assert_int_equal(job_pass_end(f.job, 0), OK);
    }
    job_counts(f.job, &counts);
    assert_int_equal(counts.commit_wait_ns, 0);
    assert_int_equal(f.job->partial_bytes, 0);
    /* The next one is due before this one is done: what is not durable does not grow older. */
    f.job->commit_ns -= (int64_t)15e9;
    assert_int_equal(pthread_create(&thread, NULL, let_go, NULL), 0);
    assert_int_equal(job_pass_end(f.job, 0), OK);
    assert_true(journal_tokens() >= 4);
    job_counts(f.job, &counts);
    assert_true(counts.commit_wait_ns > 0);
    pthread_join(thread, NULL);
    assert_int_equal(disk.n_late, 0);
    assert_int_equal(job_close(f.job), OK);
    assert_int_equal(journal_tokens(), 16); // all four passes
    disk_begin();
}

/* A disk that fails under a commit: the sentence and code of the walker's own. */
static char *failing_job(int alone, int fail_at, enum err *err)
{
    struct job_config c = long_job(1e-6);
    struct fake f = {.batch = 4, .nan_row = -1};
    struct work work;
    start_over();
    disk_begin();
    assert_int_equal(job_open(&f.job, &c, &work), OK);
    int opened = disk.n;
    disk.fail_at = opened + fail_at;
    if (alone)
        begin_alone(f.job);
    *err = fake_run(&f);
    if (*err == OK)
        *err = job_complete(f.job);
    char *text = strdup(err_text());
    if (*err != OK)
        assert_true(disk.n >= disk.fail_at);
    int n = disk.n;
    job_drop_staged(f.job);
    assert_int_equal(job_close(f.job), OK);
    assert_int_equal(disk.n, n); // nothing is written behind it
    disk_begin();
    return text;
}

static void a_disk_that_fails_behind_the_walker(void **state)
{
    (void)state;
    int n_partial = 0; // lines are synced, too
    for (int at = 1; at < 50; at++) {
        enum err want_err, err;
        char *want = failing_job(1, at, &want_err), *got = failing_job(0, at, &err);
        assert_int_equal(err, want_err);
        assert_true(at > 30 || err == ERR_IO);
        if (err != OK) {
            n_partial += strstr(got, "out.partial: ") != NULL;
            assert_string_equal(got, want);
            assert_non_null(
                strstr(got, "fdatasync: Input/output error (the same command resumes)"));
            struct job_config c = long_job(0);
            assert_int_equal(run_once(&c, 0, 0, 0), OK);
        }
        free(want);
        free(got);
    }
    assert_int_equal(n_partial, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(walker_makes_no_text),
        cmocka_unit_test(the_queue_is_bounded),
        cmocka_unit_test(closed_at_any_moment),
        cmocka_unit_test(an_error_stands_at_its_row),
        cmocka_unit_test(same_bytes_whatever_is_late),
        cmocka_unit_test(the_walker_does_not_wait_for_the_disk),
        cmocka_unit_test(a_disk_that_fails_behind_the_walker),
    };
    return cmocka_run_group_tests(tests, slow_setup, slow_teardown);
}
