/* tests/job_out_test.c - OUT.partial that goes bad while the job runs: no byte of it reaches OUT,
 * and the rows are run again. And the barrier: what no pass confirmed is in no record. */
#include "engine/job/job.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/job/journal.h"
#include "tests/job_help.h"

static struct job_config config;

static void start_over(void)
{
    static const char *const names[] = {"out", "out.partial", "out.journal", "out.job.json"};
    for (size_t i = 0; i < 4; i++)
        unlink(temp_path(names[i]));
}

/* ---- OUT.partial ---- */

static void hurt_zeros(char *text, int64_t *n)
{
    memset(text + *n / 2, 0, (size_t)min_i64(64, *n / 2));
}

static void hurt_digit(char *text, int64_t *n)
{
    char *at = memmem(text, (size_t)*n, "[1", 2); // of token_ids
    (void)n;
    assert_non_null(at);
    at[1] = '2';
}

static void hurt_cut(char *text, int64_t *n)
{
    (void)text;
    *n = 100;
}

/* The first two rows in each other's place: every line is sound, none stands where it was. */
static void hurt_swap(char *text, int64_t *n)
{
    char *end = text + *n, *second = memchr(text, '\n', (size_t)*n) + 1;
    char *third = memchr(second, '\n', (size_t)(end - second)) + 1;
    int64_t a = second - text, b = third - second;
    char *copy = malloc((size_t)(a + b));
    memcpy(copy, second, (size_t)b);
    memcpy(copy + b, text, (size_t)a);
    memcpy(text, copy, (size_t)(a + b));
    free(copy);
}

static void hurt_append(char *text, int64_t *n)
{
    memcpy(text + *n, "{\"more\":1}\n", 11);
    *n += 11;
}

static void hurt_nothing(char *text, int64_t *n)
{
    (void)text;
    (void)n;
}

/* Bytes change in place: the job has the file open. */
static void hurt_partial(void (*hurt)(char *text, int64_t *n))
{
    int64_t n;
    char *text = file_text("out.partial", &n);
    text = realloc(text, (size_t)n + 64);
    hurt(text, &n);
    int fd = open(temp_path("out.partial"), O_RDWR);
    assert_int_equal(pwrite(fd, text, (size_t)n, 0), n);
    assert_int_equal(ftruncate(fd, n), 0);
    close(fd);
    free(text);
}

static void expect_rows(const char *want, int64_t n_want, const char *what)
{
    int64_t n;
    char *got = file_text("out", &n);
    assert_non_null(got);
    if (config.completion_order) {
        char *a = sorted_lines(got), *b = sorted_lines(want);
        assert_string_equal(a, b);
        free(a);
        free(b);
    } else if (n != n_want || memcmp(got, want, (size_t)n) != 0) {
        fail_msg("%s: %s", what, got);
    }
    free(got);
}

static void partial_goes_bad(void **state)
{
    static const struct {
        const char *name;
        void (*hurt)(char *text, int64_t *n);
        int harmless;
    } hurts[] = {{"nothing", hurt_nothing, 1}, {"zeros", hurt_zeros, 0},
                 {"digit", hurt_digit, 0},     {"cut", hurt_cut, 0},
                 {"swap", hurt_swap, 0},       {"append", hurt_append, 1}};
    (void)state;
    char *text = mixed_input(24);
    temp_write_text("in", text);
    for (config.completion_order = 0; config.completion_order < 2; config.completion_order++) {
        int64_t n_want;
        char *want = bytes_of(&config, NULL, &n_want);
        for (size_t i = 0; i < sizeof hurts / sizeof hurts[0]; i++) {
            struct fake f = {.batch = 3, .nan_row = -1, .force = 1};
            struct work work;
            struct job_counts counts;
            start_over();
            assert_int_equal(job_open(&f.job, &config, &work), OK);
            assert_int_equal(fake_run(&f), OK);
            hurt_partial(hurts[i].hurt);
            enum err err = job_complete(f.job);
            job_counts(f.job, &counts);
            if (err != (hurts[i].harmless ? OK : ERR_CORRUPT))
                fail_msg("%s: %d", hurts[i].name, (int)err);
            if (err != OK) {
                assert_non_null(strstr(err_text(), "runs these rows again"));
                assert_false(file_is_there("out"));
                assert_true(counts.done < 24 && counts.done == counts.ok + counts.failed);
            }
            assert_int_equal(job_close(f.job), OK);
            if (job_run(&config, NULL, NULL) != OK)
                fail_msg("%s: %s", hurts[i].name, err_text());
            expect_rows(want, n_want, hurts[i].name);
        }
        free(want);
    }
    config.completion_order = 0;
    free(text);
}

/* Bad again when the job resumes, sound in between: the record says that the row is to do. */
static void sound_again(void **state)
{
    (void)state;
    char *text = mixed_input(10);
    temp_write_text("in", text);
    int64_t n_want, n;
    char *want = bytes_of(&config, NULL, &n_want);
    struct fake f = {.batch = 3, .nan_row = -1, .force = 1};
    struct work work;
    start_over();
    assert_int_equal(job_open(&f.job, &config, &work), OK);
    assert_int_equal(fake_run(&f), OK);
    char *partial = file_text("out.partial", &n);
    hurt_partial(hurt_zeros);
    assert_int_equal(job_complete(f.job), ERR_CORRUPT);
    assert_int_equal(job_close(f.job), OK);
    temp_write("out.partial", partial, n);
    assert_int_equal(job_open(&f.job, &config, &work), OK);
    assert_true(work.n_rows >= 1);
    assert_int_equal(fake_run(&f), OK);
    assert_int_equal(job_complete(f.job), OK);
    assert_int_equal(job_close(f.job), OK);
    expect_rows(want, n_want, "sound again");
    free(partial);
    free(want);
    free(text);
}

/* ---- the barrier ---- */

struct told {
    int64_t rows, tokens;
};

static enum err count_entry(void *ctx, const struct journal_entry *e)
{
    struct told *t = ctx;
    t->rows += e->kind == JOURNAL_ROW;
    t->tokens += e->kind == JOURNAL_TOKENS ? e->n : 0;
    return OK;
}

/* What the journal says now, seen from outside. */
static struct told journal_says(void)
{
    struct told t = {0};
    struct journal_look look;
    int fd = open(temp_path("out.journal"), O_RDONLY);
    assert_true(fd >= 0);
    struct journal_reader reader = {.entry = count_entry, .ctx = &t};
    assert_int_equal(journal_look(fd, "out.journal", 0, &reader, &look), OK);
    assert_int_equal(look.pid, getpid());
    close(fd);
    return t;
}

/* n passes of one token each over the first `batch` rows, without their end. */
static void half_a_job(struct fake *f, struct fake_row *rows, int passes, int confirm)
{
    assert_int_equal(job_begin(f->job), OK);
    for (int p = 0; p < passes; p++) {
        for (int i = 0; i < f->batch; i++) {
            const struct request *next;
            if (!rows[i].r && job_peek(f->job, &next) == OK && next)
                rows[i] = (struct fake_row){.r = job_take(f->job)};
            if (rows[i].r)
                assert_int_equal(fake_row_pass(f, &rows[i]), OK);
        }
        if (confirm)
            assert_int_equal(job_pass_end(f->job, 1), OK);
    }
}

static void nothing_unconfirmed_is_durable(void **state)
{
    (void)state;
    struct script s = {0};
    for (int i = 0; i < 9; i++)
        script_add(&s, "{\"prompt\":\"p%d\",\"max_tokens\":%d,\"ignore_eos\":true,\"seed\":%d}\n",
                   i, 2 + i, i);
    temp_write_text("in", s.text);
    int64_t n_want;
    char *want = bytes_of(&config, NULL, &n_want);
    for (int explicit = 0; explicit < 2; explicit ++) {
        struct fake f = {.batch = 4, .nan_row = -1};
        struct fake_row rows[4] = {{0}};
        struct work work;
        struct job_counts counts;
        start_over();
        assert_int_equal(job_open(&f.job, &config, &work), OK);
        half_a_job(&f, rows, 2, 1); // row 0 is done after two tokens
        struct told before = journal_says();
        assert_int_equal(before.rows, 1);
        half_a_job(&f, rows, 3, 0); // rows 1 .. 3 end, row 4 begins: all of it staged
        job_counts(f.job, &counts);
        assert_true(counts.done >= 4);
        struct told staged = journal_says();
        assert_memory_equal(&staged, &before, sizeof before);
        if (explicit) {
            job_drop_staged(f.job);
            job_counts(f.job, &counts);
            assert_int_equal(counts.done, 1);
        }
        assert_int_equal(job_close(f.job), OK);
        struct told after = journal_says();
        assert_int_equal(after.rows, 1);
        assert_int_equal(after.tokens, before.tokens); // all were journaled by the forced commits
        // the next run does what was dropped again
        assert_int_equal(job_open(&f.job, &config, &work), OK);
        assert_int_equal(work.n_rows, 8);
        assert_int_equal(work.output_tokens, 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10);
        assert_int_equal(job_close(f.job), OK);
        assert_int_equal(job_run(&config, NULL, NULL), OK);
        expect_rows(want, n_want, "dropped");
    }
    free(want);
    free(s.text);
}

/* Confirmed, but not yet due for a commit: rows that ended since keep the tokens of passes before.
 */
static void confirmed_tokens_survive(void **state)
{
    (void)state;
    temp_write_text("in", "{\"prompt\":\"a\",\"max_tokens\":5,\"ignore_eos\":true}\n"
                          "{\"prompt\":\"b\",\"max_tokens\":9,\"ignore_eos\":true}\n");
    struct fake f = {.batch = 2, .nan_row = -1};
    struct fake_row rows[2] = {{0}};
    struct work work;
    start_over();
    assert_int_equal(job_open(&f.job, &config, &work), OK);
    for (int i = 0; i < 4; i++) {
        half_a_job(&f, rows, 1, 0);
        assert_int_equal(job_pass_end(f.job, 0), OK);
    }
    assert_int_equal(journal_says().tokens, 0); // not due
    half_a_job(&f, rows, 1, 0);                 // row 0 ends
    job_drop_staged(f.job);
    assert_int_equal(job_close(f.job), OK);
    struct told t = journal_says();
    assert_true(t.rows == 0 && t.tokens == 8);
    assert_int_equal(job_run(&config, NULL, NULL), OK);
}

/* More finished text than is held: it goes to OUT.partial, and no record vouches for it. */
static void spilled_is_not_durable(void **state)
{
    (void)state;
    struct script s = {0};
    for (int i = 0; i < 400; i++)
        script_add(&s,
                   "{\"prompt\":\"p%d\",\"max_tokens\":55,\"ignore_eos\":true,\"logprobs\":5,"
                   "\"echo\":true}\n",
                   i);
    temp_write_text("in", s.text);
    struct fake f = {.batch = 60, .nan_row = -1};
    struct fake_row rows[60] = {{0}};
    struct work work;
    int64_t n_want, n;
    char *want = bytes_of(&config, NULL, &n_want);
    start_over();
    assert_int_equal(job_open(&f.job, &config, &work), OK);
    half_a_job(&f, rows, 54 * 6 + 12, 0);
    char *partial = file_text("out.partial", &n);
    assert_true(n > 1 << 20);
    free(partial);
    assert_int_equal(journal_says().rows, 0);
    assert_int_equal(job_close(f.job), OK);
    assert_int_equal(journal_says().rows, 0);
    assert_int_equal(job_run(&config, NULL, NULL), OK);
    expect_rows(want, n_want, "spilled");
    free(want);
    free(s.text);
}

static int out_setup(void **state)
{
    group_setup(state);
    config = config_for(kept_path("in"), kept_path("out"));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(partial_goes_bad),
        cmocka_unit_test(sound_again),
        cmocka_unit_test(nothing_unconfirmed_is_durable),
        cmocka_unit_test(confirmed_tokens_survive),
        cmocka_unit_test(spilled_is_not_durable),
    };
    return cmocka_run_group_tests(tests, out_setup, group_teardown);
}
