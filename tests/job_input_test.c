/* tests/job_input_test.c - an input that changes, shrinks or cannot be read between the look for
 * its lines and the look into them.
 *
 * A newcomer would miss: the test's own fdatasync() stands in for libc's. The first one of a job is
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(changed_at_row_0)};
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
