/* tests/job_input_test.c - an input that changes, shrinks or cannot be read between the look for
 * its lines and the look into them; and an input that is no list of rows at all.
 *
 * Note: the test's own fdatasync() stands in for libc's. The first one of a job is
 * the new journal's, after the lines were found and before the first of them is parsed. */
#include "engine/job/job.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/job_help.h"

#define N_ROWS 6000 // the input is larger than one window of 256 KiB

enum hurt { HURT_NOTHING, HURT_TOUCH, HURT_SHRINK, HURT_REWRITE };
static enum hurt hurt;

int fdatasync(int fd)
{
    struct timespec past[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    char line[64];
    int input = hurt == HURT_NOTHING ? -1 : open(temp_path("in"), O_RDWR);
    if (hurt == HURT_TOUCH)
        assert_int_equal(futimens(input, past), 0);
    if (hurt == HURT_SHRINK)
        assert_int_equal(ftruncate(input, 10), 0);
    memset(line, 'x', sizeof line);
    if (hurt == HURT_REWRITE)
        assert_int_equal(pwrite(input, line, sizeof line, 0), sizeof line);
    if (input >= 0)
        close(input);
    hurt = HURT_NOTHING;
    return (int)syscall(SYS_fdatasync, fd);
}

static void changed_at_row_0(void **state)
{
    (void)state;
    struct script s = {0};
    for (int i = 0; i < N_ROWS; i++)
        script_add(&s, "{\"prompt\":\"p%d p%d p%d p%d\",\"max_tokens\":1}\n", i, i, i, i);
    assert_true(s.n > 256 << 10);
    struct job_config c = config_for(kept_path("in"), kept_path("out"));
    for (enum hurt h = HURT_TOUCH; h <= HURT_REWRITE; h++) {
        struct job *job;
        struct work work;
        temp_write_text("in", s.text);
        unlink(temp_path("out.journal"));
        unlink(temp_path("out.job.json"));
        hurt = h;
        assert_int_equal(job_open(&job, &c, &work), ERR_CORRUPT);
        assert_null(job);
        assert_int_equal(hurt, HURT_NOTHING); // it was hurt
        assert_non_null(strstr(err_text(), "changed while reading"));
    }
    free(s.text);
}

/* An input that is no list of rows at all is refused before anything is written; one row that is
 * JSON makes the others error rows. */
static void wrong_files(void **state)
{
    (void)state;
    static const struct {
        enum request_kind kind;
        int text_only; // the model has no tokenizer
        const char *input, *words;
    } cases[] = {
        {REQUEST_GENERATE, 0, "id,prompt\n1,hi\n",
         "no row is JSON; the first: invalid JSON at byte 0 ("},
        {REQUEST_GENERATE, 0, "hello\n", "e.g. {\"prompt\":\"...\"})"},
        {REQUEST_SCORE, 0, "hello\n", "e.g. {\"context\":"},
        {REQUEST_GENERATE, 0, "{\n \"prompt\": \"a\"\n}\n", "no row is JSON"},
        {REQUEST_GENERATE, 0, "[{\"prompt\":\"a\"}]\n", "is one JSON list"},
        {REQUEST_GENERATE, 0, " [\n{\"prompt\":\"a\"},\n{\"prompt\":\"b\"}\n] \r\n\n",
         "is one JSON list"},
        {REQUEST_GENERATE, 1,
         "{\"prompt\":\"a\"}\n{\n{\"messages\":[{\"role\":\"u\",\"content\":\"\"}]}\n",
         "no tokenizer (give token ids: prompt_token_ids)"},
        {REQUEST_SCORE, 1, "{\"context\":\"a\",\"continuation\":\"b\"}\n", "context_ids"},
        {REQUEST_GENERATE, 1, "{\"prompt\":\"a\"}\n{\"prompt_token_ids\":[1]}\n", NULL},
        {REQUEST_GENERATE, 0, "[1,2]\nx\n{\"prompt\":\"a\"}\n", NULL},
        {REQUEST_GENERATE, 0, "x\n{\"nothing\":1}\n", NULL},
        {REQUEST_GENERATE, 0, "\n\n", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job_config c = config_for(kept_path("in"), kept_path("wrong"));
        struct job *job;
        struct work work;
        temp_write_text("in", cases[i].input);
        c.kind = cases[i].kind;
        c.tokenizer = cases[i].text_only ? NULL : tok;
        enum err err = job_open(&job, &c, &work);
        if (err != (cases[i].words ? ERR_INPUT : OK) ||
            (cases[i].words && !strstr(err_text(), cases[i].words)))
            fail_msg("case %zu: %d %s", i, (int)err, err_text());
        assert_int_equal(access(temp_path("wrong.job.json"), F_OK), cases[i].words ? -1 : 0);
        job_close(job);
        assert_int_equal(access(temp_path("wrong.journal"), F_OK), cases[i].words ? -1 : 0);
        unlink(temp_path("wrong.journal"));
        unlink(temp_path("wrong.partial"));
        unlink(temp_path("wrong.job.json"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(changed_at_row_0),
                                       cmocka_unit_test(wrong_files)};
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
