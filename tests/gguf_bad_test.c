/* tests/gguf_bad_test.c - the GGUF reader on hostile files.
 *
 * Each must give its code and one line that names the file, the place and the numbers; the
 * sanitizer build adds that nothing leaks and nothing outside a buffer is touched. Gnn: the
 * project's catalogue of bad inputs. */
#include <fcntl.h>
#include <math.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/gguf_make.h"

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
        {"FUGG\0\0\0\0", "byte-swapped GGUF", 8},
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
        {"GGUF\1\0\0\0", "version 1 unsupported (supported: 2 and 3)", 8},
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

static void test_keys(void **state) // G04 to G06
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
}

static void test_arrays(void **state) // G06, G07
{
    (void)state;
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

static void test_bools(void **state) // G08: any byte but 0 is true, and reads as 1
{
    (void)state;
    for (int byte = 0; byte < 256; byte++) {
        int b = 7, found = 0;
        start(0, 1);
        key("v", BOOL);
        put_u8((uint8_t)byte);
        struct gguf *g = expect_ok();
        assert_int_equal(gguf_bool(g, "v", &b, &found), OK);
        assert_true(found);
        assert_int_equal(b, byte != 0);
        gguf_close(g);
    }
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
    one_tensor("t", 32, 4, 29, 0);
    expect_bad("tensor \"t\": row of 32 numbers is not a multiple of the block of iq1_m, 256", "");
    one_tensor("t", 256, 1ull << 57, 21, 0); // rows of 110 bytes
    expect_bad("tensor \"t\": ", "overflows");
    static const uint32_t unknown[] = {4, 5, 255, UINT32_MAX};
    for (int i = 0; i < 4; i++) {
        one_tensor("t", 32, 1, unknown[i], 0);
        expect_bad("tensor \"t\": unknown tensor type ", i == 3 ? "-1" : "");
    }
    one_tensor("t", 1ull << 61, 0, 27, 0);
    expect_bad("tensor \"t\": tensor type i64 is not supported", "");
    one_tensor("t", 256, 1, 15, 0); // of activations: no file has it
    expect_bad("tensor \"t\": tensor type q8_k is not supported", "");
}

/* Two matrices of 3 rows of NVFP4 and their factors, of which the second is `second`. Of 16 numbers
 * the first 8 have code 2, the others 5; scales are 1, -1, NaN and 2, but the last one. */
static void nvfp4_tensors(uint64_t n_factors, uint32_t type, float second, uint8_t last_scale)
{
    const uint64_t bytes = 6 * 4 * 36;
    const float factors[2] = {0.5f, second};
    static const uint8_t scales[4] = {0x38, 0xb8, 0x7f, 0x40};
    start(2, 0);
    put_str("x.weight");
    put_u32(3);
    put_u64(256);
    put_u64(3);
    put_u64(2);
    put_u32(40);
    put_u64(0);
    tensor("x.scale", n_factors, 0, type, bytes);
    data(0);
    for (uint64_t i = 0; i < bytes; i++)
        put_u8(i == bytes - 36 + 3 ? last_scale : i % 36 < 4 ? scales[i % 36] : 0x52);
    put(factors, sizeof factors);
    data(64);
}

static void test_nvfp4(void **state)
{
    (void)state;
    uint8_t row[148];
    one_tensor("t", 96, 1, 40, 0);
    expect_bad("tensor \"t\": row of 96 numbers is not a multiple of the block of nv4_64, 64", "");
    one_tensor("t", 256, 29, 40, 0); // 4176 bytes
    expect_bad("tensor \"t\": offset 96: ends at 4272, the file has 4192", "incomplete download");
    static const float bad[] = {0, -1, NAN, INFINITY, 1e-40f};
    for (int i = 0; i < 5; i++) {
        nvfp4_tensors(2, 0, bad[i], 1);
        expect_bad("tensor \"x.scale\": ", " is no factor");
    }
    nvfp4_tensors(1, 0, 2, 1);
    expect_bad("tensor \"x.scale\": expected [2] f32, factors of \"x.weight\"", "");
    nvfp4_tensors(2, 1, 2, 1);
    expect_bad("tensor \"x.scale\": expected [2] f32", "");
    nvfp4_tensors(2, 0, 2, 0xff);
    struct gguf *g = expect_ok();
    const struct source_tensor *t = gguf_find(g, "x.weight");
    assert_true(t->dtype == DTYPE_NV4_256 && t->n_bytes == 6 * 148);
    assert_true(gguf_is_part(g, "x.scale") && gguf_is_part(g, "x.input_scale"));
    assert_false(gguf_is_part(g, "x.weight") || gguf_is_part(g, "y.scale"));
    for (int64_t i = 0; i < 5; i++) {
        const float d = i < 3 ? 0.5f : 2; // a scale of 1
        float numbers[256];
        assert_int_equal(gguf_read(g, t, i * 148, 148, row), OK);
        dtype_decode_row(t->dtype, row, 256, numbers);
        for (int j = 0; j < 256; j++) { // the sign of a scale is ignored, NaN is 0
            const float scale = j / 16 % 4 == 2 ? 0 : j / 16 % 4 == 3 ? 2 * d : d;
            assert_true(numbers[j] == scale * (j % 16 < 8 ? 1.0f : 3.0f));
        }
    }
    assert_int_equal(gguf_read(g, t, 5 * 148, 148, row), ERR_INPUT);
    message_check("tensor \"x.weight\": row 5: a scale is no number (0xff)", "");
    gguf_close(g);
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

/* Runs last: what the hostile files above have cost. */
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
        cmocka_unit_test(test_every_prefix), cmocka_unit_test(test_every_byte_changed),
        cmocka_unit_test(test_not_gguf),     cmocka_unit_test(test_not_a_file),
        cmocka_unit_test(test_counts),       cmocka_unit_test(test_keys),
        cmocka_unit_test(test_arrays),       cmocka_unit_test(test_large_strings),
        cmocka_unit_test(test_bools),        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_tensors),      cmocka_unit_test(test_nvfp4),
        cmocka_unit_test(test_offsets),      cmocka_unit_test(test_vocab),
        cmocka_unit_test(test_memory_small),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
