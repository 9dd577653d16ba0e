/* tests/scratch_test.c - offload/scratch: lists of folders, room, files. */
#include "offload/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cmocka.h>

#include "tests/temp_dir.h"

static char one[128], two[128], comma[128], list[512];

static int setup(void **state)
{
    if (temp_dir_setup(state) != 0)
        return -1;
    snprintf(one, sizeof one, "%s/one", temp_dir);
    snprintf(two, sizeof two, "%s/two", temp_dir);
    snprintf(comma, sizeof comma, "%s/a,b", temp_dir);
    return mkdir(one, 0700) || mkdir(two, 0700) || mkdir(comma, 0700);
}

static void test_lists(void **state)
{
    (void)state;
    assert_int_equal(scratch_count(one), 1);
    assert_int_equal(scratch_check(comma), OK); // a folder, not a list
    assert_int_equal(scratch_count(comma), 1);
    snprintf(list, sizeof list, "%s,%s", one, two);
    assert_int_equal(scratch_check(list), OK);
    assert_int_equal(scratch_count(list), 2);
    snprintf(list, sizeof list, "%s,%s/none", one, temp_dir);
    assert_int_equal(scratch_check(list), ERR_USAGE);
    assert_non_null(strstr(err_text(), "/none: offload directory: No such file"));
    snprintf(list, sizeof list, "%s,", one);
    assert_int_equal(scratch_check(list), ERR_USAGE);
    snprintf(list, sizeof list, "/,/,/,/,/,/,/,/,/");
    assert_int_equal(scratch_count(list), SCRATCH_MAX + 1);
    assert_int_equal(scratch_check(list), ERR_USAGE);
    assert_non_null(strstr(err_text(), "more than 8 folders"));
}

/* Two folders of one file system have its room once, and are other drives than one folder. */
static void test_room(void **state)
{
    (void)state;
    struct scratch_room alone, both, mixed;
    struct statvfs fs, proc;
    assert_int_equal(statvfs(one, &fs), 0);
    assert_int_equal(scratch_room(one, &alone), OK);
    const int64_t total = (int64_t)fs.f_blocks * (int64_t)fs.f_frsize;
    assert_int_equal(alone.total_bytes, total);
    assert_true(alone.free_bytes > 0 && alone.free_bytes <= total);
    snprintf(list, sizeof list, "%s,%s", one, two);
    assert_int_equal(scratch_room(list, &both), OK);
    assert_int_equal(both.total_bytes, total);
    assert_true(both.free_bytes < alone.free_bytes / 2 * 3);
    assert_true(both.id != alone.id);
    assert_int_equal(statvfs("/proc", &proc), 0);
    snprintf(list, sizeof list, "%s,/proc", one); // no room there: none in all
    assert_int_equal(scratch_room(list, &mixed), OK);
    assert_int_equal(mixed.free_bytes, 2 * (int64_t)proc.f_bavail * (int64_t)proc.f_frsize);
    assert_int_equal(scratch_room("/none", &mixed), ERR_IO);
}

static void test_files(void **state)
{
    (void)state;
    const int64_t bytes = 5 * RING_STRIPE_BYTES - 4096;
    struct scratch s;
    struct stat st;
    snprintf(list, sizeof list, "%s,%s", one, two);
    assert_int_equal(scratch_open(&s, list), OK);
    assert_int_equal(s.n, 2);
    assert_int_equal(scratch_reserve(&s, list, bytes), OK);
    for (int i = 0; i < 2; i++) { // five stripes: three in the first file, room for three in each
        assert_int_equal(fstat(s.fds[i], &st), 0);
        assert_int_equal(st.st_size, 3 * RING_STRIPE_BYTES);
        assert_int_equal(st.st_nlink, 0);
    }
    scratch_close(&s);
    scratch_close(&s);
    snprintf(list, sizeof list, "%s,%s/none", one, temp_dir);
    assert_int_equal(scratch_open(&s, list), ERR_IO);
    assert_int_equal(s.n, 0);
    assert_non_null(strstr(err_text(), "cannot create a scratch file"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lists), cmocka_unit_test(test_room),
                                       cmocka_unit_test(test_files)};
    return cmocka_run_group_tests(tests, setup, temp_dir_teardown);
}
