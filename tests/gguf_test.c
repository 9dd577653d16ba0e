/* tests/gguf_test.c - the GGUF reader on good files, split files and a million names. */
#include <math.h>

#include "tests/gguf_make.h"

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

static void lists_check(const struct gguf *g)
{
    int64_t x[3], n;
    double f[3];
    int found;
    assert_int_equal(gguf_int_list(g, "v.flags", 0, 1, x, 3, &n, &found), OK);
    assert_true(n == 3 && x[0] == 0 && x[1] == 1 && x[2] == 1);
    assert_int_equal(gguf_int_list(g, "tokenizer.ggml.token_type", -1, 9, x, 3, &n, &found), OK);
    assert_true(n == 3 && x[0] == -1 && x[2] == 1);
    assert_int_equal(gguf_int_list(g, "tokenizer.ggml.token_type", 0, 9, x, 3, &n, &found),
                     ERR_INPUT);
    message_check("key \"tokenizer.ggml.token_type\": entry 0 is no integer in [0, 9]", "");
    assert_int_equal(gguf_int_list(g, "tokenizer.ggml.scores", 0, 9, x, 3, &n, &found), ERR_INPUT);
    message_check("key \"tokenizer.ggml.scores\": entry 1 is no integer in [0, 9]", "");
    assert_int_equal(gguf_float_list(g, "tokenizer.ggml.scores", f, 3, &n, &found), OK);
    assert_true(n == 3 && f[1] == 0.5);
    assert_int_equal(gguf_float_list(g, "tokenizer.ggml.scores", f, 2, &n, &found), ERR_INPUT);
    message_check("3 entries, at most 2 are supported", "");
    assert_int_equal(gguf_float_list(g, "v.f64", f, 3, &n, &found), OK); // a list of one
    assert_true(n == 1 && f[0] == 1e300);
    assert_int_equal(gguf_float_list(g, "tokenizer.ggml.tokens", f, 3, &n, &found), ERR_INPUT);
    message_check("key \"tokenizer.ggml.tokens\": expected numbers, is array of str", "");
    assert_int_equal(gguf_float_list(g, "absent", f, 3, &n, &found), OK);
    assert_true(n == 0 && found == 0);
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
        lists_check(g);
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

static const char *const names[] = {PART(1), PART(2), PART(3)};
static const struct part parts[] = {
    {0, 3, 2, "llama", NULL, 0}, {1, 3, 2, NULL, "b", 2.0f}, {2, 3, 2, NULL, "c", 3.0f}};

static void split_save(void)
{
    for (int i = 0; i < 3; i++)
        part_save(names[i], &parts[i]);
}

static void split_remove(void)
{
    static const char *const left[] = {PART(1), PART(2), PART(3), "m-00001-of-65535.gguf",
                                       "other.gguf"};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        char name[192];
        snprintf(name, sizeof name, "%s/%s", dir, left[i]);
        unlink(name); // teardown fails when a file is left
    }
}

static void test_split(void **state)
{
    (void)state;
    int64_t n;
    float values[8];
    part_save(PART(1), &parts[0]);
    split_open(PART(1), ERR_INPUT, "split: missing split file m-00002-of-00003.gguf (2 of 3 parts");
    split_save();
    struct gguf *g = split_open(PART(1), OK, "");
    gguf_tensors(g, &n);
    assert_int_equal(n, 2);
    const struct source_tensor *t = gguf_find(g, "c");
    assert_non_null(t);
    assert_int_equal(t->file, 2);
    assert_int_equal(gguf_read(g, t, 0, 32, values), OK);
    assert_true(values[7] == 3.0f);
    gguf_close(g);
    split_open(PART(2), ERR_INPUT, "this is part 2 of 3 (give ...-00001-of-00003.gguf)");
    split_remove();
}

static void test_split_bad(void **state) // G23
{
    (void)state;
    struct part p;
    split_save();
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

    split_remove();
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

/* Names are looked up in a table: to compare each one with all others would take hours, and
 * check.py ends such a test as failed. */
static void test_million_names(void **state) // G10
{
    (void)state;
    enum { N = 1000000 };
    struct gguf *g;
    many_save(N, -1);
    assert_int_equal(gguf_open(&g, path), OK);
    assert_non_null(gguf_find(g, "blk.999999.weight"));
    assert_null(gguf_find(g, "blk.1000000.weight"));
    gguf_close(g);
    many_save(N, 500000);
    expect_open(ERR_INPUT, "tensor \"blk.500000.weight\": duplicate name", "");
    many_save((1 << 20) + 1, -1);
    expect_open(ERR_INPUT, "header: claims 1048577 tensors, at most 1048576 are supported", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_file),     cmocka_unit_test(test_odd_values),
        cmocka_unit_test(test_split),         cmocka_unit_test(test_split_bad),
        cmocka_unit_test(test_million_names),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
