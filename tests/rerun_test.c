/* tests/rerun_test.c - the same command on more rows, or with flags that only admit more of them:
 * what is done stays, and OUT is what a job that starts afresh would make of it. Everything else is
 * another job, and the difference is named. */
#include "engine/job/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/job_help.h"

static struct job_config config;

static void start_over(void)
{
    static const char *const names[] = {"out", "out.partial", "out.journal", "out.job.json"};
    for (size_t i = 0; i < 4; i++)
        unlink(temp_path(names[i]));
}

/* OUT is what `want_in` under the config gives to a job of its own. */
static void expect_as_fresh(const struct job_config *c)
{
    struct job_config other = *c;
    int64_t n, n_want;
    other.out_path = kept_path("fresh");
    other.retry_errors = 0;
    unlink(temp_path("fresh"));
    unlink(temp_path("fresh.job.json"));
    assert_int_equal(job_run(&other, NULL, NULL), OK);
    char *got = file_text("out", &n), *want = file_text("fresh", &n_want);
    assert_non_null(got);
    if (c->completion_order) {
        char *a = sorted_lines(got), *b = sorted_lines(want);
        assert_string_equal(a, b);
        free(a);
        free(b);
    } else {
        assert_string_equal(got, want);
    }
    free(got);
    free(want);
}

static void expect_refused(const struct job_config *c, const char *words)
{
    int64_t n, after;
    char *before = file_text("out", &n);
    enum err err = job_run(c, NULL, NULL);
    if (err != ERR_JOB || !strstr(err_text(), words))
        fail_msg("%d: %s", (int)err, err_text());
    char *text = file_text("out", &after);
    assert_true(n == after && (!before || strcmp(before, text) == 0));
    free(before);
    free(text);
}

/* Lines from .. to - 1 of a text. */
static char *lines_of(const char *text, int from, int to)
{
    const char *start = text, *end;
    for (int i = 0; i < from; i++)
        start = strchr(start, '\n') + 1;
    end = start;
    for (int i = from; i < to; i++)
        end = strchr(end, '\n') + 1;
    return strndup(start, (size_t)(end - start));
}

static void add_text(struct script *s, const char *text)
{
    for (; strlen(text) > 400; text += 400)
        script_add(s, "%.400s", text);
    script_add(s, "%s", text);
}

/* Rows that two runs did not do again: they were done when the second began. */
static int64_t done_at_open(const struct job_config *c)
{
    struct job *job;
    struct work work;
    struct job_counts counts;
    assert_int_equal(job_open(&job, c, &work), OK);
    job_counts(job, &counts);
    assert_int_equal(job_close(job), OK);
    return counts.done;
}

static void rows_are_added(void **state)
{
    (void)state;
    char *all = mixed_input(30), *some = lines_of(all, 0, 17);
    for (int completion = 0; completion < 2; completion++)
        for (int stop_after = 0; stop_after < 8; stop_after += 3) { // 0: the first run ends
            struct job_config c = config;
            struct fake f = {.batch = 3, .nan_row = -1, .force = 1, .stop_after = stop_after};
            struct job_counts counts;
            c.completion_order = completion;
            start_over();
            temp_write_text("in", some);
            assert_int_equal(job_run(&c, &f, &counts), stop_after ? ERR_STOPPED : OK);
            temp_write_text("in", all);
            int64_t done = done_at_open(&c);
            assert_true(done >= counts.done && (done < 30 || !stop_after));
            f = (struct fake){.batch = 3, .nan_row = -1, .stop_after = 2};
            assert_int_equal(job_run(&c, &f, NULL), ERR_STOPPED); // and killed once more
            assert_int_equal(job_run(&c, NULL, &counts), OK);
            assert_int_equal(counts.rows, 30);
            expect_as_fresh(&c);
        }
    // the last line had no end; blank lines behind the last
    char *cut = strndup(some, strlen(some) - 1);
    for (int i = 0; i < 2; i++) {
        start_over();
        temp_write_text("in", i == 0 ? cut : some);
        assert_int_equal(job_run(&config, NULL, NULL), OK);
        struct script more = {0};
        add_text(&more, i == 0 ? all : some);
        add_text(&more, i == 0 ? "" : "\n \n");
        temp_write_text("in", more.text);
        free(more.text);
        assert_int_equal(job_run(&config, NULL, NULL), OK);
        expect_as_fresh(&config);
    }
    // it goes on: another line than it was
    start_over();
    temp_write_text("in", cut);
    assert_int_equal(job_run(&config, NULL, NULL), OK);
    struct script longer = {0};
    add_text(&longer, cut);
    add_text(&longer, " ");
    temp_write_text("in", longer.text);
    expect_refused(&config, "input: ");
    assert_non_null(strstr(err_text(), "line 17 has changed"));
    free(longer.text);
    free(cut);
    free(some);
    free(all);
}

static void limit_grows(void **state)
{
    (void)state;
    char *all = mixed_input(20);
    temp_write_text("in", all);
    struct job_config c = config;
    start_over();
    static const int limits[] = {5, 11, 0};
    for (int i = 0; i < 3; i++) {
        c.limit = limits[i];
        assert_int_equal(job_run(&c, NULL, NULL), OK);
        expect_as_fresh(&c);
    }
    c.limit = 11;
    expect_refused(&c, "limit: was 0, is 11");
    free(all);
}

static void fields_are_admitted(void **state)
{
    (void)state;
    struct script s = {0};
    for (int i = 0; i < 12; i++)
        script_add(&s, "{\"prompt\":\"p%d\",\"max_tokens\":4,\"seed\":%d%s}\n", i, i,
                   i % 3 == 1 ? ",\"mirostat\":1" : "");
    temp_write_text("in", s.text);
    for (int stop_after = 0; stop_after < 3; stop_after++) {
        struct job_config c = config;
        struct fake f = {.batch = 2, .nan_row = -1, .force = 1, .stop_after = stop_after};
        struct job_counts counts;
        start_over();
        assert_int_equal(job_run(&c, NULL, &counts), OK);
        assert_int_equal(counts.failed, 4);
        assert_int_equal(ignore_parse(&c.defaults.ignore, "mirostat"), OK);
        expect_refused(&c, "was begun without --ignore-fields, not with --ignore-fields mirostat "
                           "(add --retry-errors");
        c.retry_errors = 1;
        assert_int_equal(job_run(&c, &f, &counts), stop_after ? ERR_STOPPED : OK);
        c.retry_errors = 0; // the failed rows wait: that is durable
        assert_int_equal(job_run(&c, NULL, &counts), OK);
        assert_int_equal(counts.failed, 0);
        expect_as_fresh(&c);
        c.retry_errors = 1; // a row that is done may hold such a field
        assert_int_equal(ignore_parse(&c.defaults.ignore, "tools"), OK);
        expect_refused(&c,
                       "with --ignore-fields mirostat (give --ignore-fields mirostat,tools again)");
        c.defaults.ignore.n = 0;
        expect_refused(&c, "(give --ignore-fields mirostat again)");
    }
    free(s.text);
}

static void differences_have_names(void **state)
{
    (void)state;
    struct script s = {0};
    for (int i = 0; i < 3000; i++)
        script_add(&s, "{\"prompt\":\"p%d\",\"max_tokens\":1}\n", i);
    char *some = lines_of(s.text, 0, 20), *fewer = lines_of(s.text, 0, 19);
    start_over();
    temp_write_text("in", some);
    assert_int_equal(job_run(&config, NULL, NULL), OK);
    char *at = strstr(some, "p6");
    at[1] = 'x';
    temp_write_text("in", some);
    expect_refused(&config, ": line 7 has changed (");
    temp_write_text("in", fewer);
    expect_refused(&config, "had 20 rows, has 19");
    at[1] = '6';
    char *moved = strdup(some); // the same rows and bytes, a blank line elsewhere
    snprintf(moved, strlen(some) + 1, "\n%.*s", (int)strlen(some) - 1, some);
    temp_write_text("in", moved);
    expect_refused(&config, "has as many bytes as before, but their content differs");
    free(moved);
    temp_write_text("in", some);
    FILE *out = fopen(temp_path("out"), "r+b"); // same size, other bytes: no part of an answer
    fputs("[", out);
    fclose(out);
    temp_write_text("in", s.text);
    expect_refused(&config, "has changed since its job ended");
    // 3,000 rows in blocks of 8
    start_over();
    temp_write_text("in", s.text);
    assert_int_equal(job_run(&config, &(struct fake){.batch = 60, .nan_row = -1}, NULL), OK);
    *strstr(s.text, "p1234\"") = 'x';
    temp_write_text("in", s.text);
    expect_refused(&config, ": a line of 1233 to 1240 has changed (");
    free(fewer);
    free(some);
    free(s.text);
}

static int rerun_setup(void **state)
{
    group_setup(state);
    config = config_for(kept_path("in"), kept_path("out"));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_added),
        cmocka_unit_test(limit_grows),
        cmocka_unit_test(fields_are_admitted),
        cmocka_unit_test(differences_have_names),
    };
    return cmocka_run_group_tests(tests, rerun_setup, group_teardown);
}
