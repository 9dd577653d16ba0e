/* tests/gguf_make.h - makes GGUF files byte by byte in a folder of its own, for the reader's tests.
 *
 * One file at a time stands in made[0 .. n_made); start(), then keys, then tensors, then data(). */
#ifndef TESTS_GGUF_MAKE_H
#define TESTS_GGUF_MAKE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/model/containers/gguf.h" // before cmocka.h, whose macro fail() takes no arguments

#include <cmocka.h>

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARRAY, U64, I64, F64 };

static char dir[64];
static char path[128];
static uint8_t made[1 << 20]; // the file being made
static size_t n_made;

static inline int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/gguf_test.XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/model.gguf", dir);
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    return unlink(path) | rmdir(dir); // fails when a test has left a file
}

static inline void put(const void *p, size_t n)
{
    assert_true(n <= sizeof made - n_made);
    memcpy(made + n_made, p, n);
    n_made += n;
}

static inline void put_u8(uint8_t x)
{
    put(&x, 1);
}

static inline void put_u32(uint32_t x)
{
    put(&x, 4);
}

static inline void put_u64(uint64_t x)
{
    put(&x, 8);
}

static inline void put_str(const char *s)
{
    put_u64(strlen(s));
    put(s, strlen(s));
}

static inline void start(uint64_t n_tensors, uint64_t n_keys)
{
    n_made = 0;
    put("GGUF", 4);
    put_u32(3);
    put_u64(n_tensors);
    put_u64(n_keys);
}

static inline void key(const char *name, uint32_t type)
{
    put_str(name);
    put_u32(type);
}

static inline void key_u32(const char *name, uint32_t x)
{
    key(name, U32);
    put_u32(x);
}

static inline void key_u16(const char *name, uint16_t x)
{
    key(name, U16);
    put(&x, 2);
}

static inline void key_str(const char *name, const char *x)
{
    key(name, STR);
    put_str(x);
}

static inline void key_array(const char *name, uint32_t element, uint64_t n)
{
    key(name, ARRAY);
    put_u32(element);
    put_u64(n);
}

static inline void tensor(const char *name, uint64_t k, uint64_t n, uint32_t type, uint64_t offset)
{
    put_str(name);
    put_u32(n ? 2 : 1);
    put_u64(k);
    if (n)
        put_u64(n);
    put_u32(type);
    put_u64(offset);
}

static inline void data(size_t n_bytes)
{
    while (n_made % 32)
        put_u8(0);
    for (size_t i = 0; i < n_bytes; i++)
        put_u8((uint8_t)i);
}

static inline void save_as(const char *to, size_t n)
{
    FILE *f = fopen(to, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(made, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void message_check(const char *a, const char *b)
{
    const char *text = err_text();
    if (!strstr(text, a) || !strstr(text, b))
        fail_msg("message \"%s\" lacks \"%s\" or \"%s\"", text, a, b);
    assert_null(strchr(text, '\n'));
    assert_memory_equal(text, "/tmp/gguf_test.", 15); // the file comes first
}

static inline void expect_open(enum err want, const char *a, const char *b)
{
    struct gguf *g = (struct gguf *)(void *)made; // must be cleared
    assert_int_equal(gguf_open(&g, path), want);
    assert_null(g);
    message_check(a, b);
}

static inline void expect_bad(const char *a, const char *b)
{
    save_as(path, n_made);
    expect_open(ERR_INPUT, a, b);
}

static inline struct gguf *expect_ok(void)
{
    struct gguf *g;
    save_as(path, n_made);
    if (gguf_open(&g, path) != OK)
        fail_msg("%s", err_text());
    return g;
}

/* Every kind of value, an array of each of three kinds, three tensors. */
static inline void make_good(uint32_t version)
{
    start(3, 18);
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
    key_array("v.flags", BOOL, 3);
    for (uint8_t i = 0; i < 3; i++)
        put_u8(i);
    tensor("token_embd.weight", 32, 3, 3, 0); // q4_1: 3 rows of 20 bytes
    tensor("norm", 5, 0, 0, 64);
    tensor("last", 2, 1, 1, 128);
    while (n_made % 64)
        put_u8(0);
    data(128 + 4);
}

#endif
