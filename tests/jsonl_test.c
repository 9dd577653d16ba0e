/* tests/jsonl_test.c - lines found, read again, and files that are no lines. */
#include "engine/data/jsonl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "tests/temp_dir.h"

#define LINES_MAX 100

struct found {
    int n;
    struct jsonl_line at[LINES_MAX];
    uint64_t hash;
};

static void find_all(struct jsonl *j, struct found *f)
{
    int found = 1;
    for (f->n = 0; found; f->n += found) {
        assert_true(f->n < LINES_MAX);
        assert_int_equal(jsonl_next(j, &f->at[f->n], &found), OK);
    }
    f->hash = j->hash;
}

/* Every line, found and read, in file order and against it. */
static void expect(const char *bytes, int64_t n_bytes, int n, ...)
{
    struct jsonl j;
    struct found f;
    temp_write("in", bytes, n_bytes);
    assert_int_equal(jsonl_open(&j, temp_path("in")), OK);
    find_all(&j, &f);
    assert_int_equal(f.n, n);
    for (int turn = 0; turn < 2; turn++) {
        va_list args;
        va_start(args, n);
        const char *texts[LINES_MAX];
        int lines[LINES_MAX];
        for (int i = 0; i < n; i++) {
            texts[i] = va_arg(args, const char *);
            lines[i] = va_arg(args, int);
        }
        va_end(args);
        for (int i = 0; i < n; i++) {
            int k = turn ? n - 1 - i : i;
            const char *text;
            int64_t got;
            assert_int_equal(jsonl_read(&j, f.at[k].offset, &text, &got), OK);
            assert_int_equal(got, f.at[k].n_bytes);
            assert_int_equal(got, (int64_t)strlen(texts[k]));
            assert_memory_equal(text, texts[k], (size_t)got);
            assert_int_equal(f.at[k].line, lines[k]);
        }
    }
    jsonl_close(&j);
    jsonl_close(&j);
}

static void small_files(void **state) // J01
{
    (void)state;
    expect("", 0, 0);
    expect("\n\n \t\r\n", 6, 0);
    expect("a\nb\n", 4, 2, "a", 1, "b", 2);
    expect("a\nb", 3, 2, "a", 1, "b", 2);
    expect("a\r\n\r\nbc\r\n", 9, 2, "a", 1, "bc", 3);
    expect("\xef\xbb\xbfx\ny", 6, 2, "x", 1, "y", 2);
    expect("\xef\xbb\xbf", 3, 0);
    expect("a\r", 2, 1, "a\r", 1); // not an end of line
}

static void strange_files(void **state) // J01
{
    (void)state;
    static const struct {
        const char *bytes;
        int64_t n;
        const char *words;
    } kinds[] = {
        {"\x1f\x8b\x08", 3, "looks like gzip"},  {"\x28\xb5\x2f\xfd!", 5, "looks like zstd"},
        {"\xff\xfe{\0", 4, "looks like UTF-16"}, {"\xfe\xff\0{", 4, "looks like UTF-16"},
        {"{\0\"\0", 4, "looks like UTF-16"},
    };
    struct jsonl j;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        temp_write("in", kinds[i].bytes, kinds[i].n);
        assert_int_equal(jsonl_open(&j, temp_path("in")), ERR_INPUT);
        assert_non_null(strstr(err_text(), kinds[i].words));
    }
    assert_int_equal(jsonl_open(&j, temp_path("not-there")), ERR_INPUT);
    assert_int_equal(jsonl_open(&j, temp_dir), ERR_INPUT);
    assert_int_equal(mkfifo(temp_path("fifo"), 0600), 0);
    assert_int_equal(jsonl_open(&j, temp_path("fifo")), ERR_INPUT);
    assert_int_equal(jsonl_open(&j, "/dev/zero"), ERR_INPUT);
}

/* Lines that end before, at and behind the borders of windows. */
static void borders(void **state)
{
    (void)state;
    int64_t window = 256 << 10, n = 4 * window;
    char *bytes = malloc((size_t)n);
    for (int64_t shift = -3; shift <= 3; shift++) {
        struct jsonl j;
        struct found f;
        memset(bytes, 'x', (size_t)n);
        bytes[window + shift] = '\n';
        bytes[window + shift - 1] = '\r';
        bytes[3 * window + shift] = '\n';
        temp_write("in", bytes, n);
        assert_int_equal(jsonl_open(&j, temp_path("in")), OK);
        find_all(&j, &f);
        assert_int_equal(f.n, 3);
        assert_int_equal(f.at[0].n_bytes, window + shift - 1);
        assert_int_equal(f.at[1].n_bytes, 2 * window - 1);
        for (int k = 2; k >= 0; k--) {
            const char *text;
            int64_t got;
            assert_int_equal(jsonl_read(&j, f.at[k].offset, &text, &got), OK);
            assert_int_equal(got, f.at[k].n_bytes);
            assert_memory_equal(text, bytes + f.at[k].offset, (size_t)got);
        }
        jsonl_close(&j);
    }
    free(bytes);
}

static void hash_is_of_bytes(void **state)
{
    (void)state;
    struct jsonl j;
    struct found f;
    char bytes[] = "{\"a\":1}\n{\"b\":2}\n";
    uint64_t seen[4];
    for (int i = 0; i < 4; i++) {
        bytes[5] = i == 2 ? '3' : '1';
        temp_write("in", bytes, i == 3 ? (int64_t)strlen(bytes) - 1 : (int64_t)strlen(bytes));
        assert_int_equal(jsonl_open(&j, temp_path("in")), OK);
        find_all(&j, &f);
        seen[i] = f.hash;
        jsonl_close(&j);
    }
    assert_true(seen[0] == seen[1] && seen[0] != seen[2] && seen[0] != seen[3]);
}

/* J04: a line of 65 MiB is passed over in constant memory. */
static void long_lines(void **state)
{
    (void)state;
    FILE *file = fopen(temp_path("in"), "wb");
    char *piece = malloc(1 << 20);
    memset(piece, 'y', 1 << 20);
    fputs("first\n", file);
    for (int i = 0; i < 65; i++)
        fwrite(piece, 1, 1 << 20, file);
    fputs("\nlast\n", file);
    for (int i = 0; i < 64; i++)
        fwrite(piece, 1, 1 << 20, file);
    fputs("\r\n", file); // 64 MiB exactly
    fclose(file);
    free(piece);
    struct jsonl j;
    struct found f;
    struct rusage before, after;
    assert_int_equal(jsonl_open(&j, temp_path("in")), OK);
    getrusage(RUSAGE_SELF, &before);
    find_all(&j, &f);
    getrusage(RUSAGE_SELF, &after);
    assert_true(after.ru_maxrss - before.ru_maxrss < 4 << 10); // KiB
    assert_int_equal(f.n, 4);
    assert_true(!f.at[0].too_long && f.at[1].too_long && !f.at[2].too_long && !f.at[3].too_long);
    assert_int_equal(f.at[2].line, 3);
    const char *text;
    int64_t n;
    assert_int_equal(jsonl_read(&j, f.at[2].offset, &text, &n), OK);
    assert_int_equal(n, 4);
    assert_int_equal(jsonl_read(&j, f.at[3].offset, &text, &n), OK);
    assert_int_equal(n, JSONL_LINE_BYTES_MAX);
    assert_true(text[0] == 'y' && text[n - 1] == 'y');
    jsonl_trim(&j);
    assert_true(j.buf_cap <= 1 << 20);
    assert_int_equal(jsonl_read(&j, f.at[2].offset, &text, &n), OK);
    assert_memory_equal(text, "last", 4);
    jsonl_close(&j);
    assert_int_equal(jsonl_open(&j, temp_path("in")), OK);
    j.line_max = 4; // of "first" 5 bytes
    find_all(&j, &f);
    assert_true(f.at[0].too_long && f.at[1].too_long && !f.at[2].too_long && f.at[3].too_long);
    jsonl_close(&j);
    remove(temp_path("in"));
}

static void changed_file(void **state) // F27
{
    (void)state;
    struct jsonl j;
    struct found f;
    const char *text;
    int64_t n;
    char *bytes = malloc(1 << 20);
    memset(bytes, 'z', 1 << 20);
    bytes[9] = '\n';
    temp_write("in", bytes, 1 << 20);
    assert_int_equal(jsonl_open(&j, temp_path("in")), OK);
    find_all(&j, &f);
    assert_int_equal(truncate(temp_path("in"), 1 << 19), 0);
    assert_int_equal(jsonl_read(&j, f.at[0].offset, &text, &n), ERR_CORRUPT);
    jsonl_close(&j);
    free(bytes);
}

/* The hash of a beginning is the hash of a file that ends there. */
static void marks(void **state)
{
    (void)state;
    enum { WINDOW = 256 << 10, BYTES = 2 * WINDOW + 1000 };
    static const int64_t ends[] = {0, 1, 999, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, BYTES};
    char *text = malloc(BYTES);
    for (int64_t i = 0; i < BYTES; i++)
        text[i] = i % 97 == 96 ? '\n' : (char)('a' + mix64((uint64_t)i) % 26);
    for (size_t k = 0; k < sizeof ends / sizeof ends[0]; k++) {
        uint64_t hash[2];
        for (int whole = 0; whole < 2; whole++) {
            struct jsonl j;
            struct jsonl_line line;
            int found = 1;
            temp_write("marked", text, whole ? BYTES : ends[k]);
            assert_int_equal(jsonl_open(&j, temp_path("marked")), OK);
            jsonl_mark(&j, ends[k]);
            while (found)
                assert_int_equal(jsonl_next(&j, &line, &found), OK);
            hash[whole] = whole ? j.mark_hash : j.hash;
            assert_true(whole || j.mark_hash == j.hash);
            jsonl_close(&j);
        }
        assert_true(hash[0] == hash[1]);
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marks),
        cmocka_unit_test(small_files),
        cmocka_unit_test(strange_files),
        cmocka_unit_test(borders),
        cmocka_unit_test(hash_is_of_bytes),
        cmocka_unit_test(long_lines),
        cmocka_unit_test(changed_file),
    };
    return cmocka_run_group_tests(tests, temp_dir_setup, temp_dir_teardown);
}
