/* tests/source_test.c - which reader a path gets, and that both kinds answer through one door. */
#include "engine/model/containers/source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "tests/temp_dir.h"

static void refuses(const char *path, const char *message)
{
    struct source s;
    enum err e = source_open(&s, path);
    source_close(&s);
    if (e != ERR_INPUT || !strstr(err_text(), message) || !strstr(err_text(), path))
        fail_msg("code %d, '%s'; expected '%s'", e, e ? err_text() : "", message);
}

static void test_choice(void **state)
{
    (void)state;
    refuses(temp_path("absent"), "No such file");
    refuses(temp_dir, "config.json: not found");
    temp_write_text("notes.txt", "GGU");
    refuses(temp_path("notes.txt"), "neither a Hugging Face directory nor a GGUF file");
    temp_write_text("empty.txt", "");
    refuses(temp_path("empty.txt"), "neither a Hugging Face directory nor a GGUF file");
    refuses("/dev/null", "not a regular file");
    struct source s;
    temp_write_text("by-name.gguf", "FUGG");
    assert_int_equal(source_open(&s, temp_path("by-name.gguf")), ERR_INPUT);
    assert_null(strstr(err_text(), "neither"));
    temp_write_text("by-magic", "GGUF");
    assert_int_equal(source_open(&s, temp_path("by-magic")), ERR_INPUT);
    assert_null(strstr(err_text(), "neither"));
    source_close(&s);
}

static void test_hf(void **state)
{
    (void)state;
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                                 "\"b\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[8,12]}}";
    char bytes[8 + sizeof header - 1 + 12] = {(char)(sizeof header - 1)};
    memcpy(bytes + 8, header, sizeof header - 1);
    const float numbers[2] = {1.5f, -2.0f};
    memcpy(bytes + 8 + sizeof header - 1, numbers, 8);
    temp_write("model.safetensors", bytes, (int64_t)sizeof bytes);
    temp_write_text("config.json",
                    "{\"n\":3,\"r\":{\"f\":0.5},\"t\":true,\"s\":\"x\",\"l\":[4,5]}");
    struct source s;
    assert_int_equal(source_open(&s, temp_dir), OK);
    assert_int_equal(s.kind, SOURCE_HF);
    assert_int_equal(s.n_tensors, 2);
    const struct source_tensor *a = source_find(&s, "a"), *b = source_find(&s, "b");
    assert_true(a && b && !source_find(&s, "c"));
    float got;
    assert_int_equal(source_read(&s, a, 4, 4, &got), OK);
    assert_true(got == -2.0f);
    assert_string_equal(source_format(&s, a), "F32");
    assert_string_equal(source_format(&s, b), "I32");
    assert_int_equal(source_read(&s, b, 0, 4, &got), ERR_INPUT);
    assert_non_null(strstr(err_text(), "tensor b: format I32"));
    int64_t i, n;
    double f;
    int t, found;
    const char *str;
    assert_int_equal(source_int(&s, "n", 0, 9, &i, &found), OK);
    assert_true(found && i == 3);
    assert_int_equal(source_int(&s, "n", 0, 2, &i, &found), ERR_INPUT);
    assert_int_equal(source_float(&s, "r.f", &f, &found), OK);
    assert_true(found && f == 0.5);
    assert_int_equal(source_bool(&s, "t", &t, &found), OK);
    assert_true(found && t == 1);
    assert_int_equal(source_str(&s, "s", &str, &n, &found), OK);
    assert_true(found && n == 1 && strcmp(str, "x") == 0);
    assert_int_equal(source_int(&s, "none", 0, 9, &i, &found), OK);
    assert_false(found);
    source_close(&s);
}

/* The least GGUF v3 there is: no tensors and one key, x.count = 5u. */
static void test_gguf(void **state)
{
    (void)state;
    static const char bytes[64] = "GGUF\3\0\0\0"
                                  "\0\0\0\0\0\0\0\0"
                                  "\1\0\0\0\0\0\0\0"
                                  "\x7\0\0\0\0\0\0\0"
                                  "x.count"
                                  "\4\0\0\0"
                                  "\5\0\0\0";
    temp_write("m.gguf", bytes, 64);
    struct source s;
    enum err e = source_open(&s, temp_path("m.gguf"));
    if (e != OK)
        fail_msg("%s", err_text());
    assert_int_equal(s.kind, SOURCE_GGUF);
    assert_int_equal(s.n_tensors, 0);
    assert_null(source_find(&s, "a"));
    int64_t i;
    int found;
    assert_int_equal(source_int(&s, "x.count", 0, 9, &i, &found), OK);
    assert_true(found && i == 5);
    source_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_choice, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(test_hf, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(test_gguf, temp_dir_setup, temp_dir_teardown),
    };
    return cmocka_run_group_tests_name("source", tests, NULL, NULL);
}
