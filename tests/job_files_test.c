/* tests/job_files_test.c - OUT and its companions: wrong places, locks, other jobs, retries. */
#include "engine/job/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "tests/job_help.h"

static void expect_open(const struct job_config *c, enum err want, const char *words)
{
    struct job *job;
    struct work work;
    enum err err = job_open(&job, c, &work);
    if (err != want || (want != OK && !strstr(err_text(), words)))
        fail_msg("got %d: %s", (int)err, err_text());
    if (err == OK)
        job_close(job);
    else
        assert_null(job);
}

static void wrong_outputs(void **state) // J11, J15
{
    (void)state;
    temp_write_text("in", "{\"prompt\":\"a\",\"max_tokens\":2}\n");
    struct job_config c = config_for(kept_path("in"), kept_path("in"));
    expect_open(&c, ERR_USAGE, "this is the input");
    unlink(temp_path("link"));
    assert_int_equal(link(temp_path("in"), temp_path("link")), 0);
    c.out_path = kept_path("link");
    expect_open(&c, ERR_USAGE, "this is the input");
    unlink(temp_path("link"));
    assert_int_equal(symlink("in", temp_path("link")), 0);
    expect_open(&c, ERR_USAGE, "is a symbolic link");
    unlink(temp_path("link"));
    c.out_path = temp_dir;
    expect_open(&c, ERR_USAGE, "not a regular file");
    assert_int_equal(mkfifo(temp_path("pipe"), 0600), 0);
    c.out_path = kept_path("pipe");
    expect_open(&c, ERR_USAGE, "not a regular file");
    c.out_path = kept_path("no/such/dir");
    expect_open(&c, ERR_USAGE, "No such file");
    char text[64];
    snprintf(text, sizeof text, "%s", "old");
    temp_write_text("other", text);
    c.out_path = kept_path("other");
    expect_open(&c, ERR_JOB, "--overwrite");
    assert_false(file_is_there("other.journal"));
    c.in_path = kept_path("nothing");
    c.out_path = kept_path("out9");
    expect_open(&c, ERR_INPUT, "nothing");
    assert_false(file_is_there("out9.journal"));
    // somebody's, or left over beside a job; and a name with a newline (J18)
    temp_write_text("out\n8.tmp", "x");
    c.in_path = kept_path("in");
    c.out_path = kept_path("out\n8");
    expect_open(&c, ERR_JOB, "--overwrite");
    assert_false(file_is_there("out\n8.journal"));
    c.overwrite = 1;
    assert_int_equal(job_run(&c, NULL, NULL), OK);
    assert_false(file_is_there("out\n8.tmp"));
    assert_true(file_is_there("out\n8"));
}

static void locked(void **state) // J15
{
    (void)state;
    temp_write_text("in", "{\"prompt\":\"a\",\"max_tokens\":2}\n");
    struct job_config c = config_for(kept_path("in"), kept_path("lock"));
    struct job *job;
    struct work work;
    char words[64];
    assert_int_equal(job_open(&job, &c, &work), OK);
    snprintf(words, sizeof words, "locked by pid %d", (int)getpid());
    expect_open(&c, ERR_JOB, words);
    assert_int_equal(job_close(job), OK);
    expect_open(&c, OK, "");
}

static void other_jobs(void **state) // J12
{
    (void)state;
    temp_write_text("in", "{\"prompt\":\"a\",\"max_tokens\":2}\n");
    struct job_config c = config_for(kept_path("in"), kept_path("out3")), same = c;
    struct job_counts counts;
    assert_int_equal(job_run(&c, NULL, &counts), OK);
    assert_int_equal(job_run(&c, NULL, &counts), OK); // nothing to do
    assert_true(counts.rows == 1 && counts.ok == 1 && counts.done == 1 && counts.resumed == 1);
    c.fingerprint = "compute=f32\nmodel=fake\n";
    expect_open(&c, ERR_JOB, "out3.job.json: compute: was bf16, is f32 (use --overwrite");
    c.fingerprint = "compute=bf16\n";
    expect_open(&c, ERR_JOB, "model: was fake, is not there");
    c.fingerprint = "compute=bf16\nmodel=fake\nx=1\n";
    expect_open(&c, ERR_JOB, "x: was not there, is 1");
    c = same;
    c.version = "2";
    expect_open(&c, ERR_JOB, "version: was 1, is 2");
    c = same;
    c.limit = 1;
    expect_open(&c, ERR_JOB, "limit: was 0, is 1");
    c = same;
    temp_write_text("in", "{\"prompt\":\"b\",\"max_tokens\":2}\n");
    expect_open(&c, ERR_JOB, "line 1 has changed (rows may be added");
    assert_false(file_is_there("out3.journal"));
    c.overwrite = 1; // the old OUT stays until the new one is whole
    struct work work;
    struct job *job;
    assert_int_equal(job_open(&job, &c, &work), OK);
    assert_int_equal(job_set_plan(job, 1.5, "--batch 4"), OK);
    assert_int_equal(job_close(job), OK);
    int64_t n;
    char *text = file_text("out3.job.json", &n);
    assert_non_null(strstr(text, "\"predicted_elapsed_s\": 1.5"));
    assert_non_null(strstr(text, "\"plan_flags\": \"--batch 4\""));
    free(text);
    assert_true(file_is_there("out3"));
    temp_write_text("out3", "old\n");
    c.overwrite = 0; // only --overwrite gave the old OUT up; all rows are kept meanwhile
    assert_int_equal(job_run(&c, NULL, &counts), ERR_JOB);
    assert_non_null(strstr(err_text(), "did not write"));
    c.overwrite = 1;
    assert_int_equal(job_run(&c, NULL, &counts), OK); // and the same command resumes
    c.overwrite = 0;
    assert_int_equal(counts.ok, 1);
    temp_write_text("out3", "edited by hand\n");
    expect_open(&c, ERR_JOB, "has changed since its job ended");
    temp_write_text("out3.job.json", "{\"a\":");
    expect_open(&c, ERR_JOB, "not a job's manifest");
    c.overwrite = 1;
    assert_int_equal(job_run(&c, NULL, NULL), OK);
    unlink(temp_path("out3"));
    assert_int_equal(job_run(&c, NULL, NULL), OK); // made again
    assert_true(file_is_there("out3"));
}

static void retry_errors(void **state)
{
    (void)state;
    char *text = mixed_input(20);
    temp_write_text("in", text);
    struct job_config c = config_for(kept_path("in"), kept_path("out"));
    for (c.completion_order = 0; c.completion_order < 2; c.completion_order++) {
        int64_t n, want_n;
        char *want = bytes_of(&c, NULL, &want_n);
        struct job_counts counts;
        struct fake f = {.batch = 3, .nan_row = 7}; // fails now, not later
        char *first = bytes_of(&c, &f, &n);
        assert_string_not_equal(first, want);
        free(first);
        c.retry_errors = 1;
        f = (struct fake){.batch = 3, .nan_row = -1, .stop_after = 1};
        assert_int_equal(job_run(&c, &f, &counts), ERR_STOPPED); // killed while it retries
        assert_false(file_is_there("out"));
        assert_true(counts.resumed == 15 || c.completion_order);
        assert_int_equal(job_run(&c, NULL, &counts), OK);
        assert_int_equal(counts.rows, 20);
        char *got = file_text("out", &n);
        char *a = sorted_lines(got), *b = sorted_lines(want);
        assert_string_equal(a, b);
        if (!c.completion_order)
            assert_string_equal(got, want);
        assert_int_equal(job_run(&c, NULL, &counts), OK); // bad rows stay bad
        free(a);
        free(b);
        free(got);
        free(want);
        c.retry_errors = 0;
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_outputs),
        cmocka_unit_test(locked),
        cmocka_unit_test(other_jobs),
        cmocka_unit_test(retry_errors),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
