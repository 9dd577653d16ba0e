/* tests/pack_hash_test.c - by what the pack of a model is found: the bytes of its files. */
#include "engine/model/pack.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "tests/temp_dir.h"

static void write_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

/* Both hashes of a model; another `look` where only its times differ. */
static struct hashes {
    uint64_t look, content;
} hashes_of(const char *model)
{
    struct hashes h;
    assert_int_equal(pack_source_look(model, &h.look), OK);
    assert_int_equal(pack_source_content(model, NULL, NULL, &h.content), OK);
    return h;
}

static void test_source_hashes(void **state)
{
    (void)state;
    char model[128], copy[128], dir[128], moved[128], file[160];
    uint64_t none;
    snprintf(model, sizeof model, "%s/h.gguf", temp_dir);
    snprintf(copy, sizeof copy, "%s/copy.gguf", temp_dir);
    write_file(model, "abc", 3);
    write_file(copy, "abc", 3);
    struct hashes a = hashes_of(model), b = hashes_of(copy);
    assert_true(a.look != b.look && a.content == b.content);
    const struct timespec was[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    assert_int_equal(utimensat(AT_FDCWD, model, was, 0), 0);
    b = hashes_of(model);
    assert_true(a.look != b.look && a.content == b.content);
    write_file(model, "abd", 3);
    assert_true(hashes_of(model).content != a.content);
    assert_int_equal(pack_source_look("/nowhere/m", &none), ERR_INPUT);

    // one byte that no sample holds
    static char large[1 << 20];
    write_file(model, large, sizeof large);
    a = hashes_of(model);
    large[5000] = 1;
    write_file(model, large, sizeof large);
    assert_true(hashes_of(model).content != a.content);

    // a folder: what lies in it counts, under which name too, where it lies does not
    snprintf(dir, sizeof dir, "%s/hf", temp_dir);
    snprintf(moved, sizeof moved, "%s/hf-moved", temp_dir);
    snprintf(file, sizeof file, "%s/config.json", dir);
    assert_int_equal(mkdir(dir, 0755), 0);
    write_file(file, "{}", 2);
    a = hashes_of(dir);
    assert_int_equal(rename(dir, moved), 0);
    b = hashes_of(moved);
    assert_true(a.look == b.look && a.content == b.content);
    snprintf(file, sizeof file, "%s/model.safetensors", moved);
    write_file(file, "x", 1);
    b = hashes_of(moved);
    assert_true(a.content != b.content);

    // shards of one GGUF: the second counts too
    char one[128], two[128];
    snprintf(one, sizeof one, "%s/s-00001-of-00002.gguf", temp_dir);
    snprintf(two, sizeof two, "%s/s-00002-of-00002.gguf", temp_dir);
    write_file(one, "1", 1);
    write_file(two, "2", 1);
    a = hashes_of(one);
    write_file(two, "22", 2);
    assert_true(hashes_of(one).content != a.content);
}

/* Hashes of a thread's file: 0 when one of them differs from the first. */
static void *hash_often(void *path)
{
    uint64_t first = hashes_of(path).content, same = 1;
    for (int i = 0; i < 50; i++)
        same &= hashes_of(path).content == first;
    return (void *)(uintptr_t)same;
}

static void test_threads_hash_at_the_same_time(void **state)
{
    (void)state;
    static char large[3 << 20];
    char paths[2][128];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/t%d.gguf", temp_dir, i);
        memset(large, 'a' + i, sizeof large);
        write_file(paths[i], large, sizeof large);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, hash_often, paths[i]), 0);
    for (int i = 0; i < 2; i++) {
        void *same;
        assert_int_equal(pthread_join(threads[i], &same), 0);
        assert_non_null(same);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_source_hashes),
                                       cmocka_unit_test(test_threads_hash_at_the_same_time)};
    return cmocka_run_group_tests(tests, temp_dir_setup, temp_dir_teardown);
}
