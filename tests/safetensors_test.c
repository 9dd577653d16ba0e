/* tests/safetensors_test.c - good files as other programs write them, and one hostile file per
 * check: the code, a piece of the message, and no byte read outside the file (run it under ASan
 * too). */
#include "engine/model/containers/safetensors.h"

#include <errno.h>
#include <sys/stat.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "tests/temp_dir.h"

/* length, header, n_data bytes 0, 1, 2, ... */
static void st_write_n(const char *name, uint64_t length, const char *header, int64_t n_header,
                       int64_t n_data)
{
    char *bytes = malloc((size_t)(8 + n_header + n_data));
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)(length >> (8 * i));
    memcpy(bytes + 8, header, (size_t)n_header);
    for (int64_t i = 0; i < n_data; i++)
        bytes[8 + n_header + i] = (char)i;
    temp_write(name, bytes, 8 + n_header + n_data);
    free(bytes);
}

static void st_write(const char *name, const char *header, int64_t n_data)
{
    int64_t n = (int64_t)strlen(header);
    st_write_n(name, (uint64_t)n, header, n, n_data);
}

static void refuses_path(const char *path, enum err code, const char *message)
{
    struct safetensors st;
    safetensors_init(&st);
    enum err e = safetensors_add(&st, path);
    safetensors_close(&st);
    if (e != code || !strstr(err_text(), message))
        fail_msg("code %d, '%s'; expected %d, '%s'", e, e ? err_text() : "", code, message);
    if (code == ERR_INPUT && strlen(path) < 512 && !strstr(err_text(), path))
        fail_msg("'%s' does not name the file", err_text());
}

static void refuses_file(const char *message)
{
    refuses_path(temp_path("t"), ERR_INPUT, message);
}

static void refuses(const char *header, int64_t n_data, const char *message)
{
    st_write("t", header, n_data);
    refuses_file(message);
}

static void takes(const char *header, int64_t n_data, int64_t n_tensors)
{
    struct safetensors st;
    safetensors_init(&st);
    st_write("t", header, n_data);
    if (safetensors_add(&st, temp_path("t")) != OK)
        fail_msg("refused %s: %s", header, err_text());
    assert_int_equal(st.n_tensors, n_tensors);
    safetensors_close(&st);
}

static void test_reads(void **state)
{
    (void)state;
    const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\",\"x\":\"\"},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
        "\"a\":{\"shape\":[1],\"data_offsets\":[0,4],\"dtype\":\"F32\"},"
        "\"\\u00e9\":{\"dtype\":\"F8_E4M3\",\"shape\":[1,1,1,1,1,2],\"data_offsets\":[16,18]},"
        "\"h\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[18,20],\"extra\":[{}]}}   ";
    struct safetensors st;
    safetensors_init(&st);
    assert_null(safetensors_find(&st, "a"));
    st_write("t", header, 20);
    assert_int_equal(safetensors_add(&st, temp_path("t")), OK);
    assert_int_equal(st.n_tensors, 4);
    const struct source_tensor *b = safetensors_find(&st, "b");
    assert_non_null(b);
    assert_string_equal(b->name, "b");
    assert_int_equal(b->dtype, DTYPE_BF16);
    assert_int_equal(b->n_dims, 2);
    assert_true(b->dims[0] == 2 && b->dims[1] == 3 && b->n_bytes == 12 && b->file == 0);
    assert_int_equal(b->offset, 8 + (int64_t)sizeof header - 1 + 4);
    assert_string_equal(safetensors_format(&st, b), "BF16");
    unsigned char got[5];
    assert_int_equal(safetensors_read(&st, b, 7, 5, got), OK);
    for (int i = 0; i < 5; i++)
        assert_int_equal(got[i], 4 + 7 + i);
    const struct source_tensor *f8 = safetensors_find(&st, "\xc3\xa9");
    assert_non_null(f8);
    assert_int_equal(f8->dtype, N_DTYPES);
    assert_string_equal(safetensors_format(&st, f8), "F8_E4M3");
    assert_int_equal(f8->n_dims, 4);
    assert_int_equal(f8->dims[3], 2);
    const struct source_tensor *h = safetensors_find(&st, "h");
    assert_true(h && h->dtype == DTYPE_F16 && h->n_dims == 0 && h->n_bytes == 2);
    assert_null(safetensors_find(&st, "__metadata__"));
    assert_null(safetensors_find(&st, "c"));
    safetensors_close(&st);
}

static void test_takes(void **state)
{
    (void)state;
    takes("{}", 0, 0);
    takes(" \n\t\r{ } \n", 0, 0);
    takes("{\"__metadata__\":{}}", 0, 0);
    // Unaligned, as MLX writes: an f32 at byte 1.
    takes("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
          "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[1,5]}}",
          5, 2);
    // Empty tensors share an offset with others, or lie at the very end.
    takes("{\"a\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[0,0]},"
          "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
          "\"c\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[4,4]}}",
          4, 3);
    takes("{\"a\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, 1);
    // Of more dimensions than are kept, those in front are one, also where only a 0 makes them fit.
    takes("{\"a\":{\"dtype\":\"F32\",\"shape\":[1099511627776,0,1099511627776,1,1,1],"
          "\"data_offsets\":[0,0]}}",
          0, 1);
    takes("{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]}}", 3, 1);
}

static void test_length(void **state)
{
    (void)state;
    for (int n = 0; n < 8; n++) {
        char message[64];
        temp_write("t", "\x02\0\0\0\0\0\0", n);
        snprintf(message, sizeof message, "header length needs 8 bytes, file has %d", n);
        refuses_file(message);
    }
    static const uint64_t lengths[] = {0, 100000001, 1ull << 63, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char message[64];
        st_write_n("t", lengths[i], "{}", 2, 0);
        snprintf(message, sizeof message, "header length %llu out of range (max 100000000)",
                 (unsigned long long)lengths[i]);
        refuses_file(message);
    }
    st_write_n("t", 3, "{}", 2, 0);
    refuses_file("header needs 3 bytes, 2 remain; truncated download?");
    st_write_n("t", 100000000, "{}", 2, 0);
    refuses_file("header needs 100000000 bytes, 2 remain; truncated download?");
}

static void test_not_json(void **state)
{
    (void)state;
    refuses("\xef\xbb\xbf{}", 0, "header is not UTF-8 JSON (byte 0)");
    refuses("\xff{}", 0, "header is not UTF-8 JSON (byte 0)");
    refuses(" []", 0, "header is not UTF-8 JSON (byte 1)");
    refuses("   ", 0, "header is not UTF-8 JSON (byte 3)");
    refuses("<x/>", 0, "header is not UTF-8 JSON (byte 0)");
    st_write_n("t", 4, "{\0}\0", 4, 0);
    refuses_file("invalid JSON at byte 1");
    st_write_n("t", 2, "\0{", 2, 0);
    refuses_file("header is not UTF-8 JSON (byte 0)");
    refuses("{", 0, "invalid JSON: ends too early at byte 1");
    refuses("{}x", 0, "more text after the end at byte 2");
    refuses("{\"a\":}", 0, "invalid JSON at byte 5");
    refuses("{a:1}", 0, "invalid JSON at byte 1");
    refuses("{\"\xff\":1}", 0, "not UTF-8) at byte 2");
    st_write_n("t", 2, "{}\0\0", 4, 0); // data behind an empty header
    refuses_file("2 bytes not covered");
}

#define TENSOR_A "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}"

static void test_structure(void **state)
{
    (void)state;
    refuses("{" TENSOR_A "," TENSOR_A "}", 4, "duplicate key \"a\"");
    refuses("{" TENSOR_A ",\"\\u0061\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
            8, "duplicate key \"a\"");
    refuses("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate key \"__metadata__\"");
    refuses("{\"__metadata__\":{\"a\":\"1\",\"\\u0061\":\"2\"}}", 0, "duplicate key \"a\"");
    refuses("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
            "tensor a: duplicate key \"dtype\"");
    refuses("{\"a\":{\"x\":1,\"x\":1,\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
            "duplicate key \"x\"");
    refuses("{\"a\":{\"shape\":[1],\"shape\":[1]}}", 0, "duplicate key \"shape\"");
    refuses("{\"a\":{\"data_offsets\":[0,4],\"data_offsets\":[0,4]}}", 4, "duplicate key");
    char deep[100001];
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    deep[100000] = 0;
    refuses(deep, 0, "tensor a: expected object");
    memcpy(deep, "{\"a\":{\"x\":", 10);
    refuses(deep, 0, "nesting deeper than 4 at byte 12");
    refuses("{\"__metadata__\":{\"a\":1}}", 0, "metadata values must be strings");
    refuses("{\"__metadata__\":{\"a\":{}}}", 0, "metadata values must be strings");
    refuses("{\"__metadata__\":{\"a\":[\"\"]}}", 0, "metadata values must be strings");
    refuses("{\"__metadata__\":{\"a\":null}}", 0, "metadata values must be strings");
    refuses("{\"__metadata__\":[]}", 0, "__metadata__: expected object");
    refuses("{\"a\":1}", 0, "tensor a: expected object");
    refuses("{\"a\":null}", 0, "tensor a: expected object");
    refuses("{\"\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
            "bad tensor name");
    refuses("{\"a\\u0000b\":{}}", 0, "bad tensor name");
}

/* A header of one tensor x with these members. */
static const char *one(const char *dtype, const char *shape, const char *offsets)
{
    static char header[512];
    snprintf(header, sizeof header, "{\"x\":{\"dtype\":%s,\"shape\":%s,\"data_offsets\":%s}}",
             dtype, shape, offsets);
    return header;
}

static void test_dtypes(void **state)
{
    (void)state;
    static const char *const bad[] = {"\"f16\"", "\"F128\"",       "5",   "null",
                                      "\"\"",    "\"F32\\u0000\"", "true"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuses(one(bad[i], "[1]", "[0,4]"), 4, "tensor x: unsupported dtype");
    refuses(one("[\"F32\"]", "[1]", "[0,4]"), 4, "tensor x: unsupported dtype array");
    refuses("{\"x\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unsupported dtype: missing");
    refuses(one("\"F4\"", "[3]", "[0,2]"), 2, "unsupported dtype F4: not whole bytes");
    refuses(one("\"F6_E3M2\"", "[3]", "[0,3]"), 3, "unsupported dtype F6_E3M2: not whole bytes");
}

static void test_shapes(void **state)
{
    (void)state;
    static const char *const bad[] = {"[-1]",
                                      "[1.5]",
                                      "[1e3]",
                                      "[\"4\"]",
                                      "[18446744073709551616]",
                                      "[9223372036854775808]",
                                      "[1,1,1,1,1,1,1,1,1]",
                                      "[[1]]",
                                      "[null]",
                                      "[true]",
                                      "1",
                                      "\"1\"",
                                      "{}",
                                      "null"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuses(one("\"F32\"", bad[i], "[0,4]"), 4, "tensor x: bad dimension");
    refuses(one("\"F32\"", "[007]", "[0,4]"), 4, "invalid JSON at byte");
    refuses("{\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4,
            "bad dimension: shape is missing");
    static const char *const large[] = {
        "[2,9223372036854775807]", "[4294967296,4294967296]", "[4194305,4194305,211106198978564]",
        "[9223372036854775807]",   "[2305843009213693952]",   "[4294967296,4294967296,0]"};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        refuses(one("\"I32\"", large[i], "[0,4]"), 4, "tensor x: size overflows");
    refuses(one("\"F32\"", "[2,18446744073709551614]", "[0,4]"), 4, "bad dimension");
}

static void test_offsets(void **state)
{
    (void)state;
    refuses(one("\"F32\"", "[1]", "[0,8]"), 8, "tensor x: shape needs 4 bytes, offsets give 8");
    refuses(one("\"F32\"", "[3]", "[0,8]"), 8, "tensor x: shape needs 12 bytes, offsets give 8");
    static const char *const bad[] = {
        "[4,0]",     "[-4,0]", "[0,4,8]", "[0]",     "[]",  "[0.0,4.0]", "[0,18446744073709551615]",
        "[0,\"4\"]", "4",      "{}",      "[[0,4]]", "null"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuses(one("\"F32\"", "[1]", bad[i]), 4, "tensor x: bad data_offsets");
    refuses("{\"x\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "bad data_offsets: missing");
    const char *header = one("\"F32\"", "[2]", "[0,8]");
    char message[128];
    for (int n = 0; n < 8; n++) {
        int at = 8 + (int)strlen(header);
        snprintf(message, sizeof message, "ends at %d, file has %d: incomplete download?", at + 8,
                 at + n);
        refuses(header, n, message);
    }
    refuses(one("\"U8\"", "[0]", "[5,5]"), 4, "incomplete download?"); // empty, but outside
    refuses(one("\"U8\"", "[1]", "[9223372036854775806,9223372036854775807]"), 4,
            "ends at 9223372036854775807, file has");
}

#define U8_TENSOR(name, begin, end, n)                                                             \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" #n "],\"data_offsets\":[" #begin "," #end "]}"

static void test_tiling(void **state)
{
    (void)state;
    refuses("{" U8_TENSOR("x", 0, 4, 4) "," U8_TENSOR("y", 3, 6, 3) "}", 6,
            "tensor y overlaps tensor x");
    refuses("{" U8_TENSOR("y", 3, 6, 3) "," U8_TENSOR("x", 0, 4, 4) "}", 6,
            "tensor y overlaps tensor x");
    refuses("{" U8_TENSOR("x", 0, 4, 4) "," U8_TENSOR("y", 0, 4, 4) "}", 4, "overlaps tensor");
    refuses(
        "{" U8_TENSOR("x", 0, 9, 9) "," U8_TENSOR("y", 2, 4, 2) "," U8_TENSOR("z", 9, 10, 1) "}",
        10, "tensor y overlaps tensor x");
    refuses("{" U8_TENSOR("x", 0, 2, 2) "," U8_TENSOR("y", 5, 6, 1) "}", 6,
            "3 bytes not covered, before tensor y");
    refuses("{" U8_TENSOR("x", 1, 2, 1) "}", 2, "1 bytes not covered, before tensor x");
    refuses("{" U8_TENSOR("x", 0, 2, 2) "}", 7, "5 bytes not covered, after the last tensor");
    refuses("{" U8_TENSOR("x", 0, 0, 0) "}", 7, "7 bytes not covered");
    takes("{" U8_TENSOR("z", 5, 6, 1) "," U8_TENSOR("x", 0, 2, 2) "," U8_TENSOR("y", 2, 5, 3) "}",
          6, 3);
    char *header = malloc(100000 * 90);
    int64_t n = 1;
    header[0] = '{';
    for (int i = 0; i < 100000; i++)
        n += snprintf(header + n, 90,
                      "\"t%d\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},", i);
    header[n - 1] = '}';
    st_write_n("t", (uint64_t)n, header, n, 4);
    refuses_file("overlaps tensor");
    free(header);
}

static void test_every_prefix(void **state)
{
    (void)state;
    const char header[] = "{\"__metadata__\":{\"format\":\"pt\"}," TENSOR_A "}";
    int64_t n = (int64_t)sizeof header - 1;
    for (int64_t i = 0; i < n; i++) {
        st_write_n("t", (uint64_t)n, header, i, 0); // the file was cut
        refuses_file(" remain; truncated download?");
        if (i > 0) {
            st_write_n("t", (uint64_t)i, header, n, 4); // the length is wrong
            refuses_file("");
        }
    }
}

static void test_other_files(void **state)
{
    (void)state;
    temp_write_text("t", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
    refuses_file("this is a Git-LFS pointer, not safetensors");
    temp_write_text("t", "<!DOCTYPE html><html></html>");
    refuses_file("this is HTML or XML, not safetensors");
    temp_write("t", "PK\x03\x04\0\0\x08\x08\0\0\0\0", 12);
    refuses_file("this is a zip archive (pickle), not safetensors");
    temp_write("t", "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20", 10);
    refuses_file("this is a pickle, not safetensors");
    temp_write("t", "GGUF\x03\0\0\0\0\0\0\0", 12);
    refuses_file("this is a GGUF file, not safetensors");
    // A header of 60 bytes begins with '<' and is fine all the same.
    char header[61];
    memset(header, ' ', 60);
    header[60] = 0;
    header[0] = '{';
    header[59] = '}';
    takes(header, 0, 0);
}

static void test_paths(void **state)
{
    (void)state;
    refuses_path(temp_dir, ERR_INPUT, "not a regular file");
    refuses_path("/dev/zero", ERR_INPUT, "not a regular file");
    refuses_path(temp_path("absent"), ERR_INPUT, "No such file");
    assert_int_equal(mkfifo(temp_path("fifo"), 0600), 0);
    refuses_path(temp_path("fifo"), ERR_INPUT, "not a regular file");
    assert_int_equal(symlink(temp_path("loop"), temp_path("loop")), 0);
    refuses_path(temp_path("loop"), ERR_INPUT, strerror(ELOOP));
    char name[4200];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = 0;
    refuses_path(name, ERR_INPUT, strerror(ENAMETOOLONG));
    if (geteuid() != 0) {
        temp_write_text("secret", "x");
        chmod(temp_path("secret"), 0);
        refuses_path(temp_path("secret"), ERR_INPUT, strerror(EACCES));
    }
}

static void test_changed(void **state)
{
    (void)state;
    struct safetensors st;
    char buf[4];
    safetensors_init(&st);
    st_write("t", "{" TENSOR_A "}", 4);
    assert_int_equal(safetensors_add(&st, temp_path("t")), OK);
    const struct source_tensor *a = safetensors_find(&st, "a");
    assert_int_equal(safetensors_read(&st, a, 0, 4, buf), OK);
    assert_int_equal(truncate(temp_path("t"), a->offset + 3), 0);
    assert_int_equal(safetensors_read(&st, a, 0, 4, buf), ERR_CORRUPT);
    assert_non_null(strstr(err_text(), "changed while reading"));
    safetensors_close(&st);

    safetensors_init(&st); // replaced by a rename: the opened file is still whole
    st_write("t", "{" TENSOR_A "}", 4);
    assert_int_equal(safetensors_add(&st, temp_path("t")), OK);
    temp_write_text("new", "x");
    assert_int_equal(rename(temp_path("new"), temp_path("t")), 0);
    a = safetensors_find(&st, "a");
    assert_int_equal(safetensors_read(&st, a, 0, 4, buf), OK);
    assert_memory_equal(buf, "\0\1\2\3", 4);
    safetensors_close(&st);

    safetensors_init(&st); // overwritten in place, same size
    st_write("t", "{" TENSOR_A "}", 4);
    assert_int_equal(safetensors_add(&st, temp_path("t")), OK);
    a = safetensors_find(&st, "a");
    struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    assert_int_equal(utimensat(0, temp_path("t"), times, 0), 0);
    assert_int_equal(safetensors_read(&st, a, 0, 4, buf), ERR_CORRUPT);
    safetensors_close(&st);
}

static void test_two_files(void **state)
{
    (void)state;
    struct safetensors st;
    safetensors_init(&st);
    st_write("t1", "{" U8_TENSOR("x", 0, 2, 2) "}", 2);
    st_write("t2", "{" U8_TENSOR("y", 0, 3, 3) "}", 3);
    st_write("t3", "{" U8_TENSOR("x", 0, 1, 1) "}", 1);
    assert_int_equal(safetensors_add(&st, temp_path("t1")), OK);
    assert_int_equal(safetensors_add(&st, temp_path("t2")), OK);
    assert_int_equal(st.n_tensors, 2);
    assert_int_equal(safetensors_find(&st, "y")->file, 1);
    assert_int_equal(safetensors_add(&st, temp_path("t3")), ERR_INPUT);
    assert_non_null(strstr(err_text(), "t3: header: tensor x is also in"));
    assert_non_null(strstr(err_text(), "t1"));
    safetensors_close(&st);
}

/* A header of n one-byte tensors, the last one first (the order of the data is not the header's).
 */
static void many_write(int n)
{
    char *header = malloc((size_t)n * 90 + 2);
    int64_t used = 1;
    header[0] = '{';
    for (int i = n - 1; i >= 0; i--)
        used += snprintf(header + used, 90,
                         "\"w.%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]},", i,
                         i, i + 1);
    header[used - 1] = '}';
    st_write_n("t", (uint64_t)used, header, used, n);
    free(header);
}

static void test_many(void **state)
{
    (void)state;
    struct safetensors st;
    safetensors_init(&st);
    many_write(SAFETENSORS_TENSORS_MAX);
    int64_t start_ns = clock_ns();
    assert_int_equal(safetensors_add(&st, temp_path("t")), OK);
    print_message("1 M tensors: %.3f s\n", (double)(clock_ns() - start_ns) * 1e-9);
    assert_int_equal(st.n_tensors, SAFETENSORS_TENSORS_MAX);
    uint8_t byte;
    for (int i = 0; i < SAFETENSORS_TENSORS_MAX; i += 99991) {
        char name[32];
        snprintf(name, sizeof name, "w.%d", i);
        const struct source_tensor *t = safetensors_find(&st, name);
        assert_non_null(t);
        assert_int_equal(safetensors_read(&st, t, 0, 1, &byte), OK);
        assert_int_equal(byte, (uint8_t)i);
    }
    safetensors_close(&st);
    many_write(SAFETENSORS_TENSORS_MAX + 1);
    refuses_file("more than 1000000 tensors");
}

/* Any byte of a good file may be any other byte: no crash, and what is taken stays inside the file.
 */
static void test_mutations(void **state)
{
    (void)state;
    const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                          "\"a\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
                          "\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[8,14]}}";
    int64_t n = (int64_t)sizeof header - 1, n_taken = 0;
    uint64_t rng = 7;
    static const char alphabet[] = "{}[]:,\"0123456789-eF\\ ";
    for (int round = 0; round < 3000; round++) {
        char copy[sizeof header];
        memcpy(copy, header, sizeof header);
        for (int edit = 0; edit < 1 + round % 2; edit++) {
            rng = mix64(rng);
            copy[(rng >> 32) % (uint64_t)n] = alphabet[(rng & 0xffff) % (sizeof alphabet - 1)];
        }
        st_write_n("t", (uint64_t)n, copy, n, 14);
        struct safetensors st;
        safetensors_init(&st);
        if (safetensors_add(&st, temp_path("t")) == OK) {
            n_taken++;
            char buf[14];
            for (int64_t i = 0; i < st.n_tensors; i++) {
                assert_true(st.tensors[i].n_bytes <= 14);
                assert_int_equal(
                    safetensors_read(&st, &st.tensors[i], 0, st.tensors[i].n_bytes, buf), OK);
            }
        }
        safetensors_close(&st);
    }
    assert_true(n_taken > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),       cmocka_unit_test(test_takes),
        cmocka_unit_test(test_length),      cmocka_unit_test(test_not_json),
        cmocka_unit_test(test_structure),   cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_shapes),      cmocka_unit_test(test_offsets),
        cmocka_unit_test(test_tiling),      cmocka_unit_test(test_every_prefix),
        cmocka_unit_test(test_other_files), cmocka_unit_test(test_paths),
        cmocka_unit_test(test_changed),     cmocka_unit_test(test_two_files),
        cmocka_unit_test(test_many),        cmocka_unit_test(test_mutations),
    };
    return cmocka_run_group_tests_name("safetensors", tests, temp_dir_setup, temp_dir_teardown);
}
