/* tests/temp_dir.h - a directory of throw-away files for one test, in $TMPDIR or /tmp. Include
 * after cmocka.h. */
#ifndef TESTS_TEMP_DIR_H
#define TESTS_TEMP_DIR_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char temp_dir[64];

static inline void temp_dir_make(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(temp_dir, sizeof temp_dir, "%.40s/sluice-test-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(temp_dir));
}

/* For tests that sync thousands of times: in memory where that is possible. */
static inline void temp_dir_make_fast(void)
{
    strncpy(temp_dir, "/dev/shm/sluice-test-XXXXXX", sizeof temp_dir - 1);
    if (!mkdtemp(temp_dir))
        temp_dir_make();
}

/* DIR/name; valid until the eighth call after. */
static inline const char *temp_path(const char *name)
{
    static char paths[8][1024];
    static _Atomic unsigned turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", temp_dir, name);
    return path;
}

static inline void temp_write(const char *name, const void *bytes, int64_t n_bytes)
{
    FILE *f = fopen(temp_path(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, (size_t)n_bytes, f), (size_t)n_bytes);
    assert_int_equal(fclose(f), 0);
}

static inline void temp_write_text(const char *name, const char *text)
{
    temp_write(name, text, (int64_t)strlen(text));
}

static inline int temp_remove_one(const char *path, const struct stat *s, int kind, struct FTW *ftw)
{
    (void)s, (void)kind, (void)ftw;
    return remove(path);
}

static inline void temp_dir_remove(void)
{
    assert_int_equal(nftw(temp_dir, temp_remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

/* ---- fixtures of cmocka ---- */

static inline int temp_dir_setup(void **state)
{
    (void)state;
    temp_dir_make();
    return 0;
}

static inline int temp_dir_setup_fast(void **state)
{
    (void)state;
    temp_dir_make_fast();
    return 0;
}

static inline int temp_dir_teardown(void **state)
{
    (void)state;
    temp_dir_remove();
    return 0;
}

#endif
