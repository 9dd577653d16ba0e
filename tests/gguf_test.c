/* tests/gguf_test.c - the GGUF reader on files made here byte by byte, most of them hostile.
 *
 * Each bad file must give its code and one line that names the file, the place and the numbers; the
 * sanitizer build adds that nothing leaks and nothing outside a buffer is touched. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/gguf.h" // before cmocka.h, whose macro fail() takes no arguments

#include <cmocka.h>

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARRAY, U64, I64, F64 };

static char dir[64];
static char path[128];
static uint8_t made[1 << 20]; // the file being made
static size_t n_made;

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/gguf_test.XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/model.gguf", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return unlink(path) | rmdir(dir); // fails when a test has left a file
}

static void put(const void *p, size_t n)
{
    assert_true(n <= sizeof made - n_made);
    memcpy(made + n_made, p, n);
    n_made += n;
}

static void put_u8(uint8_t x)
{
    put(&x, 1);
}

static void put_u32(uint32_t x)
{
    put(&x, 4);
}

static void put_u64(uint64_t x)
{
    put(&x, 8);
}

static void put_str(const char *s)
{
    put_u64(strlen(s));
    put(s, strlen(s));
}

static void start(uint64_t n_tensors, uint64_t n_keys)
{
    n_made = 0;
    put("GGUF", 4);
    put_u32(3);
    put_u64(n_tensors);
    put_u64(n_keys);
}

static void key(const char *name, uint32_t type)
{
    put_str(name);
    put_u32(type);
}

static void key_u32(const char *name, uint32_t x)
{
    key(name, U32);
    put_u32(x);
}

static void key_u16(const char *name, uint16_t x)
{
    key(name, U16);
    put(&x, 2);
}

static void key_str(const char *name, const char *x)
{
    key(name, STR);
    put_str(x);
}

static void key_array(const char *name, uint32_t element, uint64_t n)
{
    key(name, ARRAY);
    put_u32(element);
    put_u64(n);
}

static void tensor(const char *name, uint64_t k, uint64_t n, uint32_t type, uint64_t offset)
{
    put_str(name);
    put_u32(n ? 2 : 1);
    put_u64(k);
    if (n)
        put_u64(n);
    put_u32(type);
    put_u64(offset);
}

static void data(size_t n_bytes)
{
    while (n_made % 32)
        put_u8(0);
    for (size_t i = 0; i < n_bytes; i++)
        put_u8((uint8_t)i);
}

static void save_as(const char *to, size_t n)
{
    FILE *f = fopen(to, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(made, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void message_check(const char *a, const char *b)
{
    const char *text = err_text();
    if (!strstr(text, a) || !strstr(text, b))
        fail_msg("message \"%s\" lacks \"%s\" or \"%s\"", text, a, b);
    assert_null(strchr(text, '\n'));
    assert_memory_equal(text, "/tmp/gguf_test.", 15); // the file comes first
}

static void expect_open(enum err want, const char *a, const char *b)
{
    struct gguf *g = (struct gguf *)(void *)made; // must be cleared
    assert_int_equal(gguf_open(&g, path), want);
    assert_null(g);
    message_check(a, b);
}

static void expect_bad(const char *a, const char *b)
{
    save_as(path, n_made);
    expect_open(ERR_INPUT, a, b);
}

static struct gguf *expect_ok(void)
{
    struct gguf *g;
    save_as(path, n_made);
    if (gguf_open(&g, path) != OK)
        fail_msg("%s", err_text());
    return g;
}

/* Every kind of value, an array of each of three kinds, three tensors. */
static void make_good(uint32_t version)
{
    start(3, 17);
    memcpy(made + 4, &version, 4);
    key_str("general.architecture", "llama");
    key_u32("general.alignment", 64);
    key("v.u8", U8);
    put_u8(200);
    key("v.i8", I8);
    put_u8((uint8_t)-3);
    key_u16("v.u16", 65535);
    key("v.i16", I16);
    put(&(int16_t){-300}, 2);
    key("v.i32", I32);
    put_u32((uint32_t)-70000);
    key("v.f32", F32);
    put(&(float){0.25f}, 4);
    key("v.bool", BOOL);
    put_u8(2); // any byte but 0 is true
    key("v.u64", U64);
    put_u64(UINT64_MAX);
    key("v.i64", I64);
    put_u64((uint64_t)INT64_MIN);
    key("v.f64", F64);
    put(&(double){1e300}, 8);
    key_str("v.empty", "");
    key_array("tokenizer.ggml.tokens", STR, 3);
    put_str("a");
    put_str("");
    put_str("ccc");
    key_array("tokenizer.ggml.scores", F32, 3);
    for (int i = 0; i < 3; i++)
        put(&(float){0.5f * (float)i}, 4);
    key_array("tokenizer.ggml.token_type", I32, 3);
    for (int i = 0; i < 3; i++)
        put_u32((uint32_t)(i - 1));
    key_array("v.none", U8, 0);
    tensor("token_embd.weight", 32, 3, 3, 0); // q4_1: 3 rows of 20 bytes
    tensor("norm", 5, 0, 0, 64);
    tensor("last", 2, 1, 1, 128);
    while (n_made % 64)
        put_u8(0);
    data(128 + 4);
}

static void scalars_check(const struct gguf *g)
{
    static const struct {
        const char *key;
        int64_t value;
    } ints[] = {{"v.u8", 200},     {"v.i8", -3},         {"v.u16", 65535},         {"v.i16", -300},
                {"v.i32", -70000}, {"v.i64", INT64_MIN}, {"general.alignment", 64}};
    int64_t x, n;
    int found, b;
    double f;
    const char *s;
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        assert_int_equal(gguf_int(g, ints[i].key, INT64_MIN, INT64_MAX, &x, &found), OK);
        assert_int_equal(found, 1);
        assert_int_equal(x, ints[i].value);
    }
    assert_int_equal(gguf_int(g, "v.u64", INT64_MIN, INT64_MAX, &x, &found), ERR_INPUT);
    message_check("key \"v.u64\": 18446744073709551615 is out of range", "");
    assert_int_equal(gguf_int(g, "v.i8", 0, 10, &x, &found), ERR_INPUT);
    message_check("key \"v.i8\": -3 is out of range [0, 10]", "");
    assert_int_equal(gguf_int(g, "general.architecture", 0, 9, &x, &found), ERR_INPUT);
    message_check("key \"general.architecture\": expected an integer, is str", "");
    assert_int_equal(gguf_int(g, "v.bool", 0, 9, &x, &found), ERR_INPUT);
    assert_int_equal(gguf_int(g, "v.f32", 0, 9, &x, &found), ERR_INPUT);
    assert_int_equal(gguf_int(g, "v.none", 0, 9, &x, &found), ERR_INPUT);
    message_check("key \"v.none\": expected an integer, is array of u8", "");
    x = 77;
    assert_int_equal(gguf_int(g, "absent", 0, 9, &x, &found), OK);
    assert_int_equal(found, 0);
    assert_int_equal(x, 77);
    assert_int_equal(gguf_float(g, "v.f32", &f, &found), OK);
    assert_true(f == 0.25);
    assert_int_equal(gguf_float(g, "v.f64", &f, &found), OK);
    assert_true(f == 1e300);
    assert_int_equal(gguf_float(g, "v.i16", &f, &found), OK);
    assert_true(f == -300.0);
    assert_int_equal(gguf_float(g, "v.bool", &f, &found), ERR_INPUT);
    message_check("key \"v.bool\": expected a number, is bool", "");
    assert_int_equal(gguf_bool(g, "v.bool", &b, &found), OK);
    assert_int_equal(b, 1);
    assert_int_equal(gguf_bool(g, "v.u8", &b, &found), ERR_INPUT);
    assert_int_equal(gguf_bool(g, "absent", &b, &found), OK);
    assert_int_equal(found, 0);
    assert_int_equal(gguf_str(g, "general.architecture", &s, &n, &found), OK);
    assert_string_equal(s, "llama");
    assert_int_equal(n, 5);
    assert_int_equal(gguf_str(g, "v.empty", &s, &n, &found), OK);
    assert_string_equal(s, "");
    assert_int_equal(n, 0);
    assert_int_equal(gguf_str(g, "v.u8", &s, &n, &found), ERR_INPUT);
    message_check("key \"v.u8\": expected str, is u8", "");
}

static void arrays_check(const struct gguf *g)
{
    struct gguf_strings s;
    struct gguf_numbers a;
    int64_t n;
    int found;
    assert_int_equal(gguf_str_array(g, "tokenizer.ggml.tokens", &s, &found), OK);
    assert_int_equal(found, 1);
    assert_int_equal(s.n, 3);
    assert_memory_equal(gguf_strings_next(&s, &n), "a", 1);
    assert_int_equal(n, 1);
    assert_non_null(gguf_strings_next(&s, &n));
    assert_int_equal(n, 0);
    assert_memory_equal(gguf_strings_next(&s, &n), "ccc", 3);
    assert_int_equal(n, 3);
    assert_null(gguf_strings_next(&s, &n));
    assert_int_equal(gguf_f32_array(g, "tokenizer.ggml.scores", &a, &found), OK);
    assert_int_equal(a.n, 3);
    assert_true(gguf_f32_at(&a, 2) == 1.0f);
    assert_int_equal(gguf_i32_array(g, "tokenizer.ggml.token_type", &a, &found), OK);
    assert_int_equal(gguf_i32_at(&a, 0), -1);
    assert_int_equal(gguf_i32_array(g, "tokenizer.ggml.scores", &a, &found), ERR_INPUT);
    message_check("key \"tokenizer.ggml.scores\": expected array of i32, is array of f32", "");
    assert_int_equal(gguf_str_array(g, "general.architecture", &s, &found), ERR_INPUT);
    message_check("expected array of str, is str", "");
    assert_int_equal(gguf_f32_array(g, "absent", &a, &found), OK);
    assert_int_equal(found, 0);
}

static void test_good_file(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        make_good(version);
        struct gguf *g = expect_ok();
        int64_t n;
        uint8_t bytes[60];
        scalars_check(g);
        arrays_check(g);
        assert_int_equal(gguf_n_files(g), 1);
        assert_string_equal(gguf_file_path(g, 0), path);
        const struct source_tensor *t = gguf_tensors(g, &n);
        assert_int_equal(n, 3);
        assert_string_equal(t->name, "token_embd.weight");
        assert_int_equal(t->dtype, DTYPE_Q4_1);
        assert_int_equal(t->n_dims, 2);
        assert_int_equal(t->dims[0], 3);
        assert_int_equal(t->dims[1], 32);
        assert_int_equal(t->n_bytes, 60);
        assert_int_equal(t->offset % 64, 0);
        assert_int_equal(t[1].offset - t[0].offset, 64);
        assert_int_equal(t[1].n_bytes, 20);
        assert_ptr_equal(gguf_find(g, "last"), &t[2]);
        assert_null(gguf_find(g, "lasT"));
        assert_int_equal(gguf_read(g, &t[0], 10, 50, bytes), OK);
        assert_int_equal(bytes[0], 10);
        assert_int_equal(bytes[49], 59);
        // the file becomes shorter under us
        assert_int_equal(truncate(path, t[0].offset + 20), 0);
        assert_int_equal(gguf_read(g, &t[0], 0, 20, bytes), OK);
        assert_int_equal(gguf_read(g, &t[0], 0, 60, bytes), ERR_CORRUPT);
        message_check("changed while reading", "");
        gguf_close(g);
    }
    gguf_close(NULL);
}

/* G01: every prefix is refused and says where it ends. */
static void test_every_prefix(void **state)
{
    (void)state;
    make_good(3);
    for (size_t n = 0; n < n_made; n++) {
        save_as(path, n);
        struct gguf *g;
        assert_int_equal(gguf_open(&g, path), ERR_INPUT);
        if (!strstr(err_text(), "truncated") && !strstr(err_text(), "incomplete download"))
            fail_msg("%zu bytes: %s", n, err_text());
    }
    save_as(path, 0);
    expect_open(ERR_INPUT, "header: truncated in magic: 4 bytes needed, 0 remain", "");
    save_as(path, 6);
    expect_open(ERR_INPUT, "header: truncated in version: 4 bytes needed, 2 remain", "");
}

/* Every byte of a good file set to several values: opened or refused, never worse. */
static void test_every_byte_changed(void **state)
{
    (void)state;
    static const uint8_t values[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
    make_good(3);
    const size_t n_header = n_made - 132;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, made, n_made), n_made);
    int n_opened = 0;
    for (size_t i = 0; i < n_header; i++)
        for (size_t v = 0; v <= sizeof values; v++) {
            const uint8_t byte = v < sizeof values ? values[v] : made[i];
            struct gguf *g;
            assert_int_equal(pwrite(fd, &byte, 1, (off_t)i), 1);
            const enum err e = gguf_open(&g, path);
            assert_true(e == OK || e == ERR_INPUT);
            assert_true((e == OK) == (g != NULL));
            n_opened += e == OK;
            gguf_close(g);
        }
    assert_true(n_opened > (int)n_header); // at least the unchanged ones
    close(fd);
}

static void test_not_gguf(void **state) // G02 and other files by the wrong name
{
    (void)state;
    static const struct {
        const char *start, *message;
        size_t n;
    } files[] = {
        {"FUGG\0\0\0\0", "not GGUF", 8},
        {"GGMLxxxx", "old ggml file, not GGUF", 8},
        {"tjgg\3\0\0\0", "old ggml file, not GGUF", 8},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:", "Git-LFS pointer", 54},
        {"\n <!DOCTYPE html><html>", "HTML", 23},
        {"<?xml version", "HTML or XML", 13},
        {"PK\3\4\24\0", "zip archive", 6},
        {"\x80\2}q\0", "pickle", 5},
        {"\x1f\x8b\x08\0", "gzip", 4},
        {"\x28\xb5\x2f\xfd\0", "zstd", 5},
        {"\x20\0\0\0\0\0\0\0{\"a\"", "safetensors", 12},
        {"hello", "not GGUF: the file starts with bytes 68 65 6c 6c", 5},
        {"GGUF\0\0\0\0", "version 0 unsupported", 8},
        {"GGUF\1\0\0\0", "version 1 unsupported (2 and 3 are)", 8},
        {"GGUF\4\0\0\0", "version 4 unsupported", 8},
        {"GGUF\0\0\0\3", "big-endian file", 8},
        {"    ", "not GGUF", 4},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        n_made = 0;
        put(files[i].start, files[i].n);
        expect_bad(files[i].message, "model.gguf: header: ");
    }
}

static void test_not_a_file(void **state)
{
    (void)state;
    struct gguf *g;
    char fifo[128];
    unlink(path);
    expect_open(ERR_INPUT, "open: No such file or directory", "");
    assert_int_equal(gguf_open(&g, dir), ERR_INPUT);
    message_check("not a regular file (a directory)", "");
    snprintf(fifo, sizeof fifo, "%s/fifo", dir);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(gguf_open(&g, fifo), ERR_INPUT);
    message_check("not a regular file (a FIFO)", "");
    unlink(fifo);
    assert_int_equal(gguf_open(&g, "/dev/zero"), ERR_INPUT);
    assert_non_null(strstr(err_text(), "/dev/zero: open: not a regular file"));
    static char longest[4200];
    memset(longest, 'x', sizeof longest - 1);
    assert_int_equal(gguf_open(&g, longest), ERR_INPUT);
    assert_non_null(strstr(err_text(), "File name too long"));
    save_as(path, n_made); // for teardown
}

static void test_counts(void **state) // G03
{
    (void)state;
    start(UINT64_MAX, 0);
    expect_bad("header: claims 18446744073709551615 tensors, the file can hold at most 0", "");
    start(1ull << 61, 0);
    expect_bad("claims 2305843009213693952 tensors", "");
    start(0, 1ull << 63);
    expect_bad("claims 9223372036854775808 keys, the file can hold at most 0", "");
    start(0, 500000000);
    expect_bad("claims 500000000 keys", "");
}

static void test_keys(void **state) // G04 to G07
{
    (void)state;
    start(0, 1);
    put_u64(UINT64_MAX);
    data(64);
    expect_bad("key #0: name: string of 18446744073709551615 bytes", "remain (max 64 MiB)");
    start(0, 1);
    key("k", STR);
    put_u64(65);
    data(0);
    expect_bad("key \"k\": value: string of 65 bytes", "(file truncated?)");
    start(0, 1);
    put_str("");
    data(64);
    expect_bad("key #0: bad key: it is empty", "");
    start(0, 1);
    put_u64(3);
    put("a\0b", 3);
    data(64);
    expect_bad("key #0: bad key: byte 1 is NUL", "");
    start(0, 1);
    put_u64(65536);
    data(65600);
    for (size_t i = 32; i < 65568; i++)
        made[i] = 'k';
    expect_bad("key #0: bad key: 65536 bytes (max 65535)", "");
    start(0, 2);
    key_u32("twice", 1);
    key_str("twice", "other");
    expect_bad("key \"twice\": duplicate key", "");
    start(0, 1);
    key("k", 13);
    data(64);
    expect_bad("key \"k\": bad value type 13", "");
    start(0, 1);
    key("k", UINT32_MAX);
    data(64);
    expect_bad("key \"k\": bad value type -1", "");
    start(0, 1);
    key_array("k", ARRAY, 1);
    data(64);
    expect_bad("key \"k\": bad value type 9 of array elements", "arrays of arrays");
    start(0, 1);
    key_array("k", 99, UINT64_MAX);
    data(64);
    expect_bad("key \"k\": bad value type 99 of array elements", "");
    static const uint64_t counts[] = {1ull << 63, UINT64_MAX, 1ull << 61, (1ull << 62) + 1, 17};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (uint32_t type = U8; type <= F64; type++) {
            if (type == ARRAY || (counts[i] == 17 && type != U64 && type != STR))
                continue;
            start(0, 1);
            key_array("k", type, counts[i]);
            while (n_made < 49 + 17 * 8 - 1)
                put_u8(0);
            char text[64];
            snprintf(text, sizeof text, "key \"k\": array of %llu ", (unsigned long long)counts[i]);
            expect_bad(text, " bytes remain");
        }
    start(0, 1);
    key_array("k", STR, 2);
    put_str("ok");
    put_u64(1ull << 40);
    data(64);
    expect_bad("key \"k\": array element: string of 1099511627776 bytes", "");
    start(0, 1);
    key("bell\a\n", 13); // what a hostile name puts into the message stays on the line
    data(32);
    expect_bad("key \"bell??\": bad value type", "");
}

static void test_large_strings(void **state) // G04: no memory for what is not there or too large
{
    (void)state;
    start(0, 1);
    key("k", STR);
    put_u64(1ull << 30);
    save_as(path, n_made);
    assert_int_equal(truncate(path, (2ll << 30)), 0);
    expect_open(ERR_INPUT, "key \"k\": value: string of 1073741824 bytes", "(max 64 MiB)");
    start(0, 1);
    key_array("k", U8, 600ull << 20);
    save_as(path, n_made);
    assert_int_equal(truncate(path, 2ll << 30), 0);
    expect_open(ERR_INPUT, "key \"k\": array: the header is larger than 512 MiB", "");
}

static void test_alignment(void **state) // G09
{
    (void)state;
    static const uint32_t bad_ones[] = {0, 3, 1u << 31, 1u << 21, UINT32_MAX};
    for (size_t i = 0; i < sizeof bad_ones / sizeof *bad_ones; i++) {
        start(0, 1);
        key_u32("general.alignment", bad_ones[i]);
        expect_bad("key \"general.alignment\": alignment must be a power of two <= 1 MiB, u32", "");
    }
    start(0, 1);
    key("general.alignment", I32);
    put_u32(32);
    expect_bad("alignment must be a power of two <= 1 MiB, u32, but is i32", "");
    start(0, 1);
    key_str("general.alignment", "32");
    expect_bad("but is str", "");
}

static void one_tensor(const char *name, uint64_t k, uint64_t n, uint32_t type, uint64_t offset)
{
    start(1, 0);
    tensor(name, k, n, type, offset);
    data(4096);
}

static void test_tensors(void **state) // G10 to G13
{
    (void)state;
    char name[65];
    memset(name, 'n', 64);
    name[64] = 0;
    one_tensor(name, 4, 0, 0, 0);
    expect_bad("tensor #0: bad name: 64 bytes (max 63)", "");
    one_tensor(name + 1, 4, 0, 0, 0);
    gguf_close(expect_ok());
    one_tensor("", 4, 0, 0, 0);
    expect_bad("tensor #0: bad name: it is empty", "");
    one_tensor("abc", 4, 0, 0, 0);
    made[24 + 8 + 1] = 0;
    expect_bad("tensor #0: bad name: byte 1 is NUL", "");
    start(2, 0);
    tensor("same", 8, 0, 0, 0);
    tensor("same", 8, 0, 0, 32);
    data(64);
    expect_bad("tensor \"same\": duplicate name", "");
    static const uint32_t n_dims[] = {0, 5, UINT32_MAX};
    for (int i = 0; i < 3; i++) {
        one_tensor("t", 4, 4, 0, 0);
        memcpy(made + 33, &n_dims[i], 4);
        expect_bad("tensor \"t\": bad dims: ", " of them (1 to 4)");
    }
    one_tensor("t", 0, 0, 0, 0);
    expect_bad("tensor \"t\": bad dims: dimension 0 is 0", "");
    one_tensor("t", 4, UINT64_MAX, 0, 0);
    expect_bad("tensor \"t\": bad dims: dimension 1 is -1", "");
    one_tensor("t", 1ull << 32, 1ull << 32, 0, 0);
    expect_bad("tensor \"t\": size overflows: more than 2^63 numbers", "");
    one_tensor("t", 1ull << 61, 3, 0, 0); // 2^63 bytes of f32 per row
    expect_bad("tensor \"t\": size overflows: more than 2^63 bytes", "");
    one_tensor("t", 32, 1ull << 58, 3, 0); // rows of 20 bytes, 5 << 60 bytes
    expect_bad("tensor \"t\": ", "overflows");
    one_tensor("t", 128, 4, 12, 0);
    expect_bad("tensor \"t\": row of 128 numbers is not a multiple of the block of q4_k, 256", "");
    static const uint32_t unknown[] = {4, 5, 255, UINT32_MAX};
    for (int i = 0; i < 4; i++) {
        one_tensor("t", 32, 1, unknown[i], 0);
        expect_bad("tensor \"t\": unknown tensor type ", i == 3 ? "-1" : "");
    }
    one_tensor("t", 1ull << 61, 0, 27, 0);
    expect_bad("tensor \"t\": tensor type i64 is not supported", "");
    one_tensor("t", 256, 1, 10, 0);
    expect_bad("tensor \"t\": tensor type q2_k is not supported", "");
}

static void two_tensors(uint64_t k, uint64_t first, uint64_t second)
{
    start(2, 0);
    tensor("a", k, 0, 0, first);
    tensor("b", k, 0, 0, second);
    data(64);
}

static void test_offsets(void **state) // G14, G15
{
    (void)state;
    two_tensors(8, 0, 33);
    expect_bad("tensor \"b\": offset 33 is not a multiple of the alignment 32", "");
    two_tensors(8, 32, 0);
    expect_bad("tensor \"a\": offset 32, expected 0", "");
    two_tensors(8, 0, 0);
    expect_bad("tensor \"b\": offset 0, expected 32", "");
    two_tensors(8, 0, 64);
    expect_bad("tensor \"b\": offset 64, expected 32", "");
    two_tensors(8, 0, UINT64_MAX - 31);
    expect_bad("tensor \"b\": offset 18446744073709551584 lies beyond", "");
    two_tensors(8, 0, 4096);
    expect_bad("tensor \"b\": offset 4096 lies beyond", "");
    two_tensors(0x7fffffffffffffc0 / 4, 0, 0x7fffffffffffffc0);
    expect_bad("tensor \"b\": offset 9223372036854775744 lies beyond", "");
    two_tensors(0x7fffffffffffffc0 / 4, 0, 0);
    expect_bad("tensor \"a\": data section overflows", "");
    two_tensors((1ull << 61) - 1, 0, 0);
    expect_bad("tensor \"a\": data section overflows", "");
    two_tensors(8, 0, 32);
    n_made--;
    expect_bad("tensor \"b\": offset 128: ends at 160, the file has 159 bytes: incomplete", "");
    n_made++;
    gguf_close(expect_ok());
    put("trailing bytes are nobody's", 20);
    gguf_close(expect_ok());
}

static void make_vocab(uint64_t n_scores, uint32_t score_type, uint64_t n_kinds, uint64_t n_rows)
{
    start(1, 3);
    key_array("tokenizer.ggml.tokens", STR, 2);
    put_str("x");
    put_str("y");
    key_array("tokenizer.ggml.scores", score_type, n_scores);
    for (uint64_t i = 0; i < n_scores * (score_type == U8 ? 1 : 4); i++)
        put_u8(0);
    key_array("tokenizer.ggml.token_type", I32, n_kinds);
    for (uint64_t i = 0; i < n_kinds; i++)
        put_u32(1);
    tensor("token_embd.weight", 8, n_rows, 0, 0);
    data(32 * n_rows);
}

static void test_vocab(void **state) // G19
{
    (void)state;
    make_vocab(2, F32, 2, 2);
    gguf_close(expect_ok());
    make_vocab(3, F32, 2, 2);
    expect_bad("key \"tokenizer.ggml.scores\": 3 entries, expected 2", "");
    make_vocab(2, U8, 2, 2);
    expect_bad("key \"tokenizer.ggml.scores\": expected array of f32, is array of u8", "");
    make_vocab(2, F32, 0, 2);
    expect_bad("key \"tokenizer.ggml.token_type\": 0 entries, expected 2", "");
    make_vocab(2, F32, 2, 3);
    expect_bad("tensor \"token_embd.weight\": 3 rows, expected 2", "");
    start(0, 1);
    key_u32("tokenizer.ggml.tokens", 5);
    expect_bad("key \"tokenizer.ggml.tokens\": expected array of str, is u32", "");
    start(0, 1);
    key_array("tokenizer.ggml.token_type", U32, 1);
    put_u32(UINT32_MAX);
    expect_bad("key \"tokenizer.ggml.token_type\": entry 0 is 4294967295 (max 2147483647)", "");
}

static void test_odd_values(void **state)
{
    (void)state;
    struct gguf *g;
    double f;
    int found;
    start(0, 2);
    key("nan", F32);
    put(&(float){NAN}, 4);
    key("inf", F64);
    put(&(double){-INFINITY}, 8);
    g = expect_ok();
    assert_int_equal(gguf_float(g, "nan", &f, &found), ERR_INPUT);
    message_check("key \"nan\": nan is not a finite number", "");
    assert_int_equal(gguf_float(g, "inf", &f, &found), ERR_INPUT);
    gguf_close(g);
    start(0, 0); // nothing in it: opened, and everything is absent
    g = expect_ok();
    assert_null(gguf_find(g, "x"));
    assert_int_equal(gguf_float(g, "x", &f, &found), OK);
    assert_int_equal(found, 0);
    gguf_close(g);
}

struct part {
    int no, count, total; // split.*; count < 0: no such keys
    const char *architecture;
    const char *tensor; // one, of 8 f32 that are all `value`
    float value;
};

static void part_save(const char *name, const struct part *p)
{
    start(p->tensor ? 1 : 0, (p->count >= 0 ? 3 : 0) + (p->architecture ? 1 : 0));
    if (p->count >= 0) {
        key_u16("split.no", (uint16_t)p->no);
        key_u16("split.count", (uint16_t)p->count);
        key("split.tensors.count", I32);
        put_u32((uint32_t)p->total);
    }
    if (p->architecture)
        key_str("general.architecture", p->architecture);
    if (p->tensor)
        tensor(p->tensor, 8, 0, 0, 0);
    data(0);
    for (int i = 0; i < 8 && p->tensor; i++)
        put(&p->value, 4);
    char to[192];
    snprintf(to, sizeof to, "%s/%s", dir, name);
    save_as(to, n_made);
}

/* Opens NAME of the folder and expects `want`; the message must hold `text`. */
static struct gguf *split_open(const char *name, enum err want, const char *text)
{
    struct gguf *g;
    char from[192];
    snprintf(from, sizeof from, "%s/%s", dir, name);
    const enum err e = gguf_open(&g, from);
    if (e != want)
        fail_msg("%s: %d, expected %d: %s", name, e, want, err_text());
    if (e != OK)
        message_check(text, "");
    return g;
}

#define PART(i) "m-0000" #i "-of-00003.gguf"

static void test_split(void **state) // G23
{
    (void)state;
    static const char *const names[] = {PART(1), PART(2), PART(3)};
    const struct part parts[] = {
        {0, 3, 2, "llama", NULL, 0}, {1, 3, 2, NULL, "b", 2.0f}, {2, 3, 2, NULL, "c", 3.0f}};
    struct part p;
    int64_t n;
    float values[8];
    part_save(PART(1), &parts[0]);
    split_open(PART(1), ERR_INPUT, "split: missing split file m-00002-of-00003.gguf (2 of 3 parts");
    for (int i = 0; i < 3; i++)
        part_save(names[i], &parts[i]);
    struct gguf *g = split_open(PART(1), OK, "");
    assert_int_equal(gguf_n_files(g), 3);
    assert_non_null(strstr(gguf_file_path(g, 2), PART(3)));
    gguf_tensors(g, &n);
    assert_int_equal(n, 2);
    const struct source_tensor *t = gguf_find(g, "c");
    assert_non_null(t);
    assert_int_equal(t->file, 2);
    assert_int_equal(gguf_read(g, t, 0, 32, values), OK);
    assert_true(values[7] == 3.0f);
    gguf_close(g);
    split_open(PART(2), ERR_INPUT, "this is part 2 of 3 (give ...-00001-of-00003.gguf)");

    p = parts[2];
    p.no = 1;
    part_save(PART(3), &p);
    split_open(PART(1), ERR_INPUT, "splits differ: expected part 2 of 3, split.no is 1");
    p = parts[2];
    p.count = -1;
    part_save(PART(3), &p);
    split_open(PART(1), ERR_INPUT, "splits differ: expected part 2 of 3, split.no is -1");
    p = parts[2];
    p.architecture = "opt";
    part_save(PART(3), &p);
    split_open(PART(1), ERR_INPUT, "splits differ: architecture \"opt\"");
    p = parts[2];
    p.tensor = "b";
    part_save(PART(3), &p);
    split_open(PART(1), ERR_INPUT, "m-00003-of-00003.gguf: tensor \"b\": duplicate name");
    p = parts[2];
    p.tensor = NULL;
    part_save(PART(3), &p);
    split_open(PART(1), ERR_INPUT, "splits differ: 1 tensors in 3 parts, split.tensors.count is 2");
    n_made = 4; // cut in its header
    char third[192];
    snprintf(third, sizeof third, "%s/%s", dir, PART(3));
    save_as(third, 4);
    split_open(PART(1), ERR_INPUT, "m-00003-of-00003.gguf: header: truncated in version");

    p = parts[0];
    p.count = 65535;
    part_save("m-00001-of-65535.gguf", &p);
    split_open("m-00001-of-65535.gguf", ERR_INPUT,
               "missing split file m-00002-of-65535.gguf (65534 of 65535 parts");
    part_save("other.gguf", &p);
    split_open("other.gguf", ERR_INPUT, "must end in -00001-of-65535.gguf");
    p.count = 1;
    p.total = 0;
    part_save("other.gguf", &p);
    gguf_close(split_open("other.gguf", OK, ""));

    static const char *const left[] = {PART(1), PART(2), PART(3), "m-00001-of-65535.gguf",
                                       "other.gguf"};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        char name[192];
        snprintf(name, sizeof name, "%s/%s", dir, left[i]);
        assert_int_equal(unlink(name), 0);
    }
}

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* n tensors of one f32; the last has the name of the one at `twin`, -1: its own. */
static void many_save(int n, int twin)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    start((uint64_t)n, 0);
    fwrite(made, 1, n_made, f);
    for (int i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "blk.%d.weight", i == n - 1 && twin >= 0 ? twin : i);
        n_made = 0;
        tensor(name, 1, 0, 0, 32 * (uint64_t)i);
        fwrite(made, 1, n_made, f);
    }
    const long end = ftell(f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(truncate(path, end + 64 + 32l * n), 0);
}

static void test_million_names(void **state) // G10
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    const double limit_s = 10.0;
#else
    const double limit_s = 1.0;
#endif
    enum { N = 1000000 };
    struct gguf *g;
    many_save(N, -1);
    const double from = cpu_s();
    assert_int_equal(gguf_open(&g, path), OK);
    const double open_s = cpu_s() - from;
    assert_non_null(gguf_find(g, "blk.999999.weight"));
    assert_null(gguf_find(g, "blk.1000000.weight"));
    gguf_close(g);
    print_message("1 M names: %.2f s\n", open_s);
    assert_true(open_s <= limit_s);
    many_save(N, 500000);
    expect_open(ERR_INPUT, "tensor \"blk.500000.weight\": duplicate name", "");
    many_save((1 << 20) + 1, -1);
    expect_open(ERR_INPUT, "header: claims 1048577 tensors, at most 1048576 are supported", "");
}

/* Runs last but for the million names: what the hostile files above have cost. */
static void test_memory_small(void **state)
{
    (void)state;
#ifndef __SANITIZE_ADDRESS__
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    assert_true(use.ru_maxrss < 64 * 1024); // KiB
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_file),
        cmocka_unit_test(test_every_prefix),
        cmocka_unit_test(test_every_byte_changed),
        cmocka_unit_test(test_not_gguf),
        cmocka_unit_test(test_not_a_file),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_large_strings),
        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_offsets),
        cmocka_unit_test(test_vocab),
        cmocka_unit_test(test_odd_values),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_memory_small),
        cmocka_unit_test(test_million_names),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
