/* tests/json_test.c - the pull parser against RFC 8259: what it must take, what it must refuse and
 * at which byte, and a differential run against jansson over mutated documents. */
#include "engine/data/json.h"
#include "tests/skip.h"
#include "tests/sweep.h"

#include <jansson.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* Parses from an exact-size heap copy, so that ASan sees one byte too many. Returns the final kind.
 */
static enum json_kind parse_all(const char *text, int64_t n, int depth_max, enum err *err)
{
    char *copy = malloc((size_t)max_i64(n, 1));
    assert_non_null(copy);
    memcpy(copy, text, (size_t)n);
    struct json j;
    json_init(&j, copy, n, "t.json", depth_max);
    enum json_kind k;
    do
        k = json_next(&j);
    while (k != JSON_END && k != JSON_ERROR);
    *err = j.err;
    assert_int_equal(json_next(&j), k); // the last answer stays
    json_close(&j);
    free(copy);
    return k;
}

static void takes(const char *text)
{
    enum err err;
    if (parse_all(text, (int64_t)strlen(text), 64, &err) != JSON_END)
        fail_msg("refused %s: %s", text, err_text());
}

static void refuses_n(const char *text, int64_t n, int depth_max, const char *message)
{
    enum err err;
    if (parse_all(text, n, depth_max, &err) != JSON_ERROR)
        fail_msg("took %s", text);
    assert_int_equal(err, ERR_INPUT);
    if (!strstr(err_text(), message))
        fail_msg("%s: message is '%s', expected '%s'", text, err_text(), message);
}

static void refuses(const char *text, const char *message)
{
    refuses_n(text, (int64_t)strlen(text), 64, message);
}

static void test_takes(void **state)
{
    (void)state;
    const char *const docs[] = {"0",
                                "-0",
                                "1.5e-3",
                                " \t\r\n[ ] \n",
                                "{}",
                                "{\"a\":{\"b\":[1,2]}}",
                                "\"\"",
                                "true",
                                "false",
                                "null",
                                "[1E+2,1e2,-0.0]",
                                "\"\\u0000\\b\\f\\n\\r\\t\\/\\\\\\\"\"",
                                "\"\x7f\"",
                                "{\"\":0}",
                                "\"\xf4\x8f\xbf\xbf\xef\xbf\xbf\xc2\x80\"",
                                "[[],{},[{}]]"};
    for (size_t i = 0; i < sizeof docs / sizeof *docs; i++)
        takes(docs[i]);
}

static void test_refuses_syntax(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } docs[] = {
        {"", "t.json: invalid JSON: ends too early at byte 0"},
        {"  ", "ends too early at byte 2"},
        {"{", "ends too early at byte 1"},
        {"{}x", "more text after the end at byte 2"},
        {"{} {}", "more text after the end at byte 3"},
        {"{\"a\":}", "invalid JSON at byte 5"},
        {"{a:1}", "invalid JSON at byte 1"},
        {"{\"a\" 1}", "invalid JSON at byte 5"},
        {"{\"a\":1,}", "invalid JSON at byte 7"},
        {"{,}", "invalid JSON at byte 1"},
        {"{1:2}", "invalid JSON at byte 1"},
        {"{\"a\":1 \"b\":2}", "invalid JSON at byte 7"},
        {"[1,]", "invalid JSON at byte 3"},
        {"[,1]", "invalid JSON at byte 1"},
        {"[1 2]", "invalid JSON at byte 3"},
        {"[1}", "invalid JSON at byte 2"},
        {"{\"a\":1]", "invalid JSON at byte 6"},
        {"]", "invalid JSON at byte 0"},
        {"[1", "ends too early at byte 2"},
        {"[1,", "ends too early at byte 3"},
        {"{\"a\"", "ends too early at byte 4"},
        {"{\"a\":1,", "ends too early at byte 7"},
        {"007", "invalid JSON at byte 0"},
        {"-", "ends too early at byte 1"},
        {"-a", "invalid JSON at byte 1"},
        {"+1", "invalid JSON at byte 0"},
        {".5", "invalid JSON at byte 0"},
        {"1.", "ends too early at byte 2"},
        {"1.e3", "invalid JSON at byte 2"},
        {"1e", "ends too early at byte 2"},
        {"1e+]", "invalid JSON at byte 3"},
        {"0x10", "more text after the end at byte 1"},
        {"NaN", "invalid JSON at byte 0"},
        {"[Infinity]", "invalid JSON at byte 1"},
        {"-Infinity", "invalid JSON at byte 1"},
        {"tru", "invalid JSON at byte 0"},
        {"nul\x01", "invalid JSON at byte 0"},
        {"True", "invalid JSON at byte 0"},
        {"'a'", "invalid JSON at byte 0"},
        {"// c\n1", "invalid JSON at byte 0"},
        {"\xef\xbb\xbf{}", "invalid JSON at byte 0"},
        {"[1e400]", "number too large at byte 1"},
        {"[\f1]", "invalid JSON at byte 1"},
    };
    for (size_t i = 0; i < sizeof docs / sizeof *docs; i++)
        refuses(docs[i].text, docs[i].message);
    refuses_n("{\0}", 3, 64, "invalid JSON at byte 1");
    refuses_n("{}\0", 3, 64, "more text after the end at byte 2");
}

static void test_refuses_strings(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } docs[] = {
        {"\"a", "string has no end at byte 0"},
        {"[\"a\\\"]", "string has no end at byte 1"},
        {"\"a\nb\"", "invalid string at byte 2"},
        {"\"\\x\"", "invalid string at byte 1"},
        {"\"\\u12\"", "invalid string at byte 1"},
        {"\"\\u12g4\"", "invalid string at byte 1"},
        {"\"\\u 123\"", "invalid string at byte 1"},
        {"\"\\ud800\"", "invalid string at byte 1"},
        {"\"ab\\udc00\"", "invalid string at byte 3"},
        {"\"\\ud800\\ud800\"", "invalid string at byte 1"},
        {"\"\\ud800x\"", "invalid string at byte 1"},
        {"\"\\ud800\\n12345\"", "invalid string at byte 1"},
        {"\"\xff\"", "invalid string (not UTF-8) at byte 1"},
        {"\"\xc0\x80\"", "not UTF-8) at byte 1"},
        {"\"\xc1\xbf\"", "not UTF-8) at byte 1"},
        {"\"\xe0\x9f\xbf\"", "not UTF-8) at byte 1"},
        {"\"\xed\xa0\x80\"", "not UTF-8) at byte 1"},
        {"\"\xf0\x8f\xbf\xbf\"", "not UTF-8) at byte 1"},
        {"\"\xf4\x90\x80\x80\"", "not UTF-8) at byte 1"},
        {"\"\xf5\x80\x80\x80\"", "not UTF-8) at byte 1"},
        {"\"\x80\"", "not UTF-8) at byte 1"},
        {"\"\xc3\"", "not UTF-8) at byte 1"},
        {"\"\xe2\x82", "not UTF-8) at byte 1"},
        {"\"\\", "invalid string at byte 1"},
        {"\"\\u", "invalid string at byte 1"},
        {"{\"\xff\":1}", "not UTF-8) at byte 2"},
    };
    for (size_t i = 0; i < sizeof docs / sizeof *docs; i++)
        refuses(docs[i].text, docs[i].message);
    refuses_n("\"\\\0\"", 4, 64, "invalid string at byte 1");
    refuses_n("\"\0\"", 3, 64, "invalid string at byte 1");
}

static void test_every_prefix(void **state)
{
    (void)state;
    const char doc[] =
        "{\"k\\u00e9\": [1.5e+3, -2, \"\xe2\x82\xac\\ud83d\\ude00\", true, null, {}]}";
    int64_t n = (int64_t)sizeof doc - 1;
    takes(doc);
    for (int64_t i = 0; i < n; i++)
        refuses_n(doc, i, 64, "byte ");
}

static void test_depth(void **state)
{
    (void)state;
    enum { N = 100000 };
    char *deep = malloc(N);
    memset(deep, '[', N);
    refuses_n(deep, N, 4, "nesting deeper than 4 at byte 4");
    refuses_n(deep, N, JSON_DEPTH_MAX, "nesting deeper than 1024 at byte 1024");
    refuses_n("[]", 2, 0, "nesting deeper than 0 at byte 0");
    enum err err;
    assert_int_equal(parse_all("[[[[]]],{}]", 11, 4, &err), JSON_END);
    assert_int_equal(parse_all("7", 1, 0, &err), JSON_END);
    free(deep);
}

static void next_is(struct json *j, enum json_kind kind, int64_t offset, int depth)
{
    assert_int_equal(json_next(j), kind);
    assert_int_equal(j->offset, offset);
    assert_int_equal(j->depth, depth);
}

static void test_tokens(void **state)
{
    (void)state;
    const char doc[] =
        "{\"a\" : [1, -9223372036854775808, 9223372036854775808 ,0.1,\"\\u0061\\u0000b\"],"
        " \"\\ud83d\\ude00\":false}";
    struct json j;
    json_init(&j, doc, (int64_t)sizeof doc - 1, "t.json", 8);
    next_is(&j, JSON_OBJECT_BEGIN, 0, 1);
    next_is(&j, JSON_KEY, 1, 1);
    assert_string_equal(j.str, "a");
    next_is(&j, JSON_ARRAY_BEGIN, 7, 2);
    next_is(&j, JSON_INT, 8, 2);
    assert_true(j.i64 == 1 && j.f64 == 1);
    next_is(&j, JSON_INT, 11, 2);
    assert_true(j.i64 == INT64_MIN && j.f64 == -0x1p63);
    next_is(&j, JSON_FLOAT, 33, 2);
    assert_true(j.big && j.f64 == 0x1p63);
    next_is(&j, JSON_FLOAT, 54, 2);
    assert_true(!j.big && j.f64 == 0.1);
    next_is(&j, JSON_STR, 58, 2);
    assert_int_equal(j.n_str, 3);
    assert_memory_equal(j.str, "a\0b", 4);
    next_is(&j, JSON_ARRAY_END, 73, 1);
    next_is(&j, JSON_KEY, 76, 1);
    assert_string_equal(j.str, "\xf0\x9f\x98\x80");
    next_is(&j, JSON_BOOL, 91, 1);
    assert_int_equal(j.i64, 0);
    next_is(&j, JSON_OBJECT_END, 96, 0);
    next_is(&j, JSON_END, 97, 0);
    json_close(&j);
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double value;
    } cases[] = {{"1e-6", 1e-6},
                 {"500000.0", 500000.0},
                 {"2.2250738585072011e-308", 2.2250738585072011e-308},
                 {"1e-400", 0.0},
                 {"123456789012345678901234567890", 123456789012345678901234567890.0},
                 {"9007199254740993", 9007199254740992.0},
                 {"-9223372036854775809", -0x1p63}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json j;
        json_init(&j, cases[i].text, (int64_t)strlen(cases[i].text), "n", 1);
        enum json_kind k = json_next(&j);
        assert_true(k == JSON_INT || k == JSON_FLOAT);
        assert_true(j.f64 == cases[i].value);
        json_close(&j);
    }
    char digits[2001];
    memset(digits, '1', 2000);
    refuses_n(digits, 2000, 1, "number of more than 1024 characters at byte 0");
}

static void test_locale(void **state)
{
    (void)state;
    const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE",
                                 "ru_RU.UTF-8"};
    int found = 0;
    for (size_t i = 0; !found && i < sizeof names / sizeof *names; i++)
        found = setlocale(LC_ALL, names[i]) != NULL;
    if (!found)
        skip_because("no locale with a decimal comma, and no localedef to make one");
    struct json j;
    json_init(&j, "1.25", 4, "n", 1);
    assert_int_equal(json_next(&j), JSON_FLOAT);
    assert_true(j.f64 == 1.25);
    json_close(&j);
    setlocale(LC_ALL, "C");
}

static void test_skip(void **state)
{
    (void)state;
    const char doc[] = "{\"a\":{\"x\":[1,[2,{}]]},\"b\":7,\"c\":[[],3],\"d\":\"s\"}";
    struct json j;
    json_init(&j, doc, (int64_t)sizeof doc - 1, "t", 8);
    assert_int_equal(json_expect(&j, JSON_OBJECT_BEGIN), OK);
    assert_int_equal(json_expect(&j, JSON_KEY), OK);
    assert_int_equal(json_skip(&j), OK);
    assert_int_equal(json_expect(&j, JSON_KEY), OK);
    assert_string_equal(j.str, "b");
    assert_int_equal(json_skip(&j), OK);
    assert_int_equal(json_skip(&j), OK); // after a scalar: nothing to pass
    assert_int_equal(json_expect(&j, JSON_KEY), OK);
    assert_int_equal(json_expect(&j, JSON_ARRAY_BEGIN), OK);
    assert_int_equal(json_skip(&j), OK);
    assert_int_equal(json_expect(&j, JSON_KEY), OK);
    assert_string_equal(j.str, "d");
    assert_int_equal(json_expect(&j, JSON_INT), ERR_INPUT);
    assert_string_equal(err_text(), "t: expected integer, is string at byte 43");
    assert_int_equal(json_next(&j), JSON_ERROR); // a refused document stays refused
    json_close(&j);

    json_init(&j, "[[1,x]]", 7, "t", 8);
    assert_int_equal(json_expect(&j, JSON_ARRAY_BEGIN), OK);
    assert_int_equal(json_skip(&j), ERR_INPUT);
    json_close(&j);
}

/* All members of one flat object into the set. */
static enum err keys_of(struct json_keys *keys, const char *doc)
{
    struct json j;
    json_init(&j, doc, (int64_t)strlen(doc), "t", 8);
    enum err e = json_expect(&j, JSON_OBJECT_BEGIN);
    while (e == OK && json_next(&j) == JSON_KEY) {
        e = json_keys_add(keys, &j);
        if (e == OK)
            e = json_skip(&j);
    }
    json_close(&j);
    return e;
}

static void test_keys(void **state)
{
    (void)state;
    struct json_keys keys;
    json_keys_init(&keys);
    assert_int_equal(keys_of(&keys, "{\"\":1}"), OK); // no text yet: nothing may be copied to it
    assert_int_equal(keys.n_keys, 1);
    json_keys_close(&keys);
    json_keys_init(&keys);
    assert_int_equal(keys_of(&keys, "{\"a\":1,\"\":2,\"ab\":{\"a\":1}}"), OK);
    assert_int_equal(keys.n_keys, 3);
    json_keys_clear(&keys);
    assert_int_equal(keys_of(&keys, "{\"a\":1,\"b\":2,\"\\u0061\":3}"), ERR_INPUT);
    assert_string_equal(err_text(), "t: duplicate key \"a\" at byte 13");
    json_keys_clear(&keys);
    assert_int_equal(keys_of(&keys, "{\"\":1,\"\":2}"), ERR_INPUT);
    for (int round = 0; round < 3; round++) { // growth, and rounds that reuse the table
        char doc[64];
        json_keys_clear(&keys);
        for (int i = 0; i < 20000; i++) {
            snprintf(doc, sizeof doc, "{\"key%d\":0}", i);
            assert_int_equal(keys_of(&keys, doc), OK);
        }
        snprintf(doc, sizeof doc, "{\"key%d\":0}", 7777);
        assert_int_equal(keys_of(&keys, doc), ERR_INPUT);
    }
    json_keys_close(&keys);
}

/* jansson is the judge: same verdict over mutated documents, but for the two things that it limits
 * and RFC 8259 does not (integers beyond 64 bits, NUL inside a key). */
static void test_differential(void **state)
{
    (void)state;
    static const char *const seeds[] = {
        "{\"hidden_size\": 576, \"rope\": {\"factor\": 8.0e0}, \"list\": [1, -2, 3.5], \"s\": "
        "\"x\\n\"}",
        "[\"\\ud83d\\ude00\", \"\xe2\x82\xac\xf0\x9f\x98\x80\", true, false, null, 0.5, -0, 12E+2]",
        "{\"a\":[[[{\"b\":\"\\\\\\\"/\"}]]],\"\":\"\",\"c\":[{},[]]}",
    };
    static const char alphabet[] = "{}[]:,\"\\u0d8eE+-.019tfn \n\x80\xc3\xed\xf0\xff\x01";
    uint64_t rng = 1;
    int64_t n_taken = 0, n_refused = 0;
    const int rounds = sweep(10000, 60000);
    for (int round = 0; round < rounds; round++) {
        char text[256];
        const char *seed = seeds[round % 3];
        int64_t n = (int64_t)strlen(seed);
        memcpy(text, seed, (size_t)n);
        int n_edits = 1 + round % 2;
        for (int e = 0; e < n_edits; e++) {
            rng = mix64(rng);
            int64_t at = (int64_t)(rng >> 32) % n;
            char c = alphabet[(rng & 0xffff) % (sizeof alphabet - 1)];
            if (rng & 0x10000) {
                text[at] = c;
            } else if (rng & 0x20000) {
                memmove(text + at + 1, text + at, (size_t)(n - at));
                text[at] = c;
                n++;
            } else {
                memmove(text + at, text + at + 1, (size_t)(n - at - 1));
                n--;
            }
        }
        json_error_t why;
        json_t *judge = json_loadb(text, (size_t)n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
        if (!judge && (strstr(why.text, "too big") || strstr(why.text, "NUL byte in object key")))
            continue;
        enum err err;
        enum json_kind kind = parse_all(text, n, 64, &err);
        if ((judge != NULL) != (kind == JSON_END))
            fail_msg("round %d: jansson %s, we %s: %.*s", round, judge ? "takes" : why.text,
                     kind == JSON_END ? "take" : err_text(), (int)n, text);
        judge ? n_taken++ : n_refused++;
        json_decref(judge);
    }
    assert_true(n_taken > rounds / 12 && n_refused > rounds / 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_takes),
        cmocka_unit_test(test_refuses_syntax),
        cmocka_unit_test(test_refuses_strings),
        cmocka_unit_test(test_every_prefix),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_locale),
        cmocka_unit_test(test_skip),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_differential),
    };
    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
