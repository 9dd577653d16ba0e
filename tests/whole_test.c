/* tests/whole_test.c - new files: they appear whole or not at all, and take no foreign file's name.
 */
#include "kernels/base/whole.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/skip.h"
#include "tests/temp_dir.h"

static char path[1024];

static int setup(void **state)
{
    (void)state;
    temp_dir_make();
    snprintf(path, sizeof path, "%s", temp_path("file"));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    temp_dir_remove();
    return 0;
}

static void expect_text(const char *at, const char *want)
{
    char text[64] = "";
    FILE *f = fopen(at, "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    assert_string_equal(text, want);
}

static struct whole_file begun(void)
{
    struct whole_file w;
    assert_int_equal(whole_open(&w, path), OK);
    fputs("ours", w.f);
    return w;
}

static void appears_whole(void **state)
{
    (void)state;
    struct whole_file w = begun();
    assert_int_equal(access(path, F_OK), -1); // not before its end
    assert_int_equal(whole_end(&w), OK);
    expect_text(path, "ours");
    assert_int_equal(whole_end(&w), OK); // closed: nothing to do
    temp_write_text("file", "old");
    w = begun();
    expect_text(path, "old");
    whole_drop(&w);
    expect_text(path, "old");
    assert_int_equal(access(w.temp, F_OK), -1);
    w = begun();
    assert_int_equal(whole_end(&w), OK);
    expect_text(path, "ours");
}

/* A file that appeared, or took another's place, while ours was written. */
static void foreign_files_stay(void **state)
{
    (void)state;
    for (int before = 0; before < 2; before++) {
        unlink(path);
        if (before)
            temp_write_text("file", "old");
        struct whole_file w = begun();
        temp_write_text("new", "theirs");
        assert_int_equal(rename(temp_path("new"), path), 0);
        assert_int_equal(whole_end(&w), ERR_JOB);
        assert_non_null(strstr(err_text(), w.temp)); // says where ours is
        expect_text(path, "theirs");
        expect_text(w.temp, "ours");
        unlink(w.temp);
    }
    unlink(path);
    struct whole_file w = begun();
    assert_int_equal(symlink("nowhere", path), 0);
    assert_int_equal(whole_end(&w), ERR_JOB);
    assert_int_equal(unlink(path), 0);
    unlink(w.temp);
    temp_write_text("file", "old");
    w = begun();
    unlink(path);
    assert_int_equal(whole_end(&w), OK); // the old one is gone: nothing is replaced
    expect_text(path, "ours");
}

static void rename_replaces_nothing(void **state)
{
    (void)state;
    struct standing nothing = {0};
    unlink(path);
    temp_write_text("temp", "ours");
    temp_write_text("file", "theirs");
    assert_int_equal(standing_replace(&nothing, temp_path("temp"), path), ERR_JOB);
    expect_text(path, "theirs");
    assert_int_equal(standing_replace(&nothing, temp_path("temp"), temp_path("free")), OK);
    expect_text(temp_path("free"), "ours");
}

static void only_regular_files(void **state)
{
    (void)state;
    struct whole_file w;
    const char *why = NULL;
    assert_int_equal(mkfifo(temp_path("fifo"), 0600), 0);
    assert_int_equal(symlink("victim", temp_path("link")), 0);
    assert_int_equal(whole_open(&w, temp_path("fifo")), ERR_USAGE);
    assert_int_equal(whole_open(&w, temp_path("link")), ERR_USAGE);
    assert_int_equal(whole_open(&w, temp_dir), ERR_USAGE);
    assert_int_equal(whole_open(&w, temp_path("no/folder")), ERR_IO);
    assert_null(regular_open(temp_path("fifo"), &why)); // and does not wait for a writer
    assert_string_equal(why, "not a regular file");
    assert_null(regular_open(temp_path("none"), &why));
    assert_string_equal(why, "No such file or directory");
    assert_null(regular_open(temp_dir, &why));
    assert_string_equal(why, "Is a directory");
    FILE *f = regular_open(path, &why);
    assert_non_null(f);
    fclose(f);
}

/* The temporary name may be taken, by a link too: another one is. */
static void taken_names(void **state)
{
    (void)state;
    char taken[1100];
    struct stat st;
    temp_write_text("victim", "victim");
    snprintf(taken, sizeof taken, "%s.%ld-0.tmp", path, (long)getpid());
    assert_int_equal(symlink("victim", taken), 0);
    struct whole_file w = begun();
    assert_int_equal(whole_end(&w), OK);
    expect_text(temp_path("victim"), "victim");
    assert_int_equal(lstat(taken, &st), 0);
    expect_text(path, "ours");
}

/* A process that is killed while it writes leaves no file behind. */
static void killed_writers_leave_nothing(void **state)
{
    (void)state;
    struct whole_file w;
    int n = 0, fd = open(temp_dir, O_TMPFILE | O_RDWR, 0600);
    if (fd < 0)
        skip_because("no O_TMPFILE on this file system");
    close(fd);
    pid_t child = fork();
    if (child == 0) {
        w = begun();
        fflush(w.f);
        raise(SIGKILL);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    char ours[40];
    snprintf(ours, sizeof ours, ".%ld-", (long)child);
    DIR *dir = opendir(temp_dir);
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir));)
        n += strstr(e->d_name, ours) != NULL;
    closedir(dir);
    assert_int_equal(n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appears_whole),      cmocka_unit_test(foreign_files_stay),
        cmocka_unit_test(rename_replaces_nothing), cmocka_unit_test(only_regular_files),
        cmocka_unit_test(taken_names),
        cmocka_unit_test(killed_writers_leave_nothing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
