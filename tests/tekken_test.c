/* tests/tekken_test.c - tekken.json made here: where its ids are, what it leaves out, and files
 * that are not it. Ids of many strings are compared with a library in token_spm_live.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/token.h" // before cmocka.h, whose macro fail() takes no arguments

#include <cmocka.h>

#include "tests/token_made.h"

#define PATTERN "\"pattern\":\"\\\\p{L}+|\\\\s+|[^\\\\s\\\\p{L}]+\""
#define CONFIG(sizes, version)                                                                     \
    "\"config\":{" PATTERN "," sizes ",\"num_vocab_tokens\":7,\"version\":\"" version "\"}"
#define SIZES "\"default_vocab_size\":9,\"default_num_special_tokens\":4"
/* a, b, space, ab, bab; what comes after is not used */
#define VOCAB                                                                                      \
    "\"vocab\":[{\"rank\":0,\"token_bytes\":\"YQ==\",\"token_str\":\"a\"},"                        \
    "{\"rank\":1,\"token_bytes\":\"Yg==\",\"token_str\":\"b\"},"                                   \
    "{\"rank\":2,\"token_bytes\":\"IA==\",\"token_str\":null},"                                    \
    "{\"token_bytes\":\"YWI=\",\"rank\":3},{\"rank\":4,\"token_bytes\":\"YmFi\"},"                 \
    "{\"rank\":5,\"token_bytes\":\"YWFi\"},{\"rank\":6,\"token_bytes\":\"YmI=\"}]"
#define SPECIALS                                                                                   \
    "\"special_tokens\":[{\"rank\":0,\"token_str\":\"<s>\",\"is_control\":true},"                  \
    "{\"rank\":1,\"token_str\":\"<x>\"},{\"rank\":2,\"token_str\":\"</s>\"}]"

static enum err build(const char *text, void **blob, int64_t *n)
{
    temp_write_text("tekken.json", text);
    return token_build_dir(temp_dir, blob, n);
}

static struct tokenizer *opened(const char *text)
{
    void *blob;
    int64_t n;
    struct tokenizer *tok;
    if (build(text, &blob, &n) != OK)
        fail_msg("%s", err_text());
    assert_int_equal(tokenizer_open(&tok, blob, n, "test"), OK);
    free(blob);
    return tok;
}

static void test_ids(void **state)
{
    (void)state;
    int n_stops;
    struct tokenizer *tok = opened("{" CONFIG(SIZES, "v11") "," SPECIALS "," VOCAB "}");
    assert_int_equal(tokenizer_vocab(tok), 9);
    expect_ids(tok, "abab b", 0, 4, 7, 7, 6, 5);
    expect_ids(tok, "bab", 1, 2, 0, 8); // whole, behind <s>
    expect_ids(tok, "aab", 0, 2, 4, 7); // rank 5 is not used
    expect_ids(tok, "a<x>b<SPECIAL_3>", 0, 4, 4, 1, 5, 3);
    expect_text(tok, (int32_t[]){0, 7, 6, 3}, 4, 1, "ab ");
    assert_int_equal(tokenizer_stops(tok, &n_stops)[0], 2);
    tokenizer_close(tok);
    /* The same members in another order. */
    tok = opened("{\"type\":\"Tekken\"," VOCAB ",\"special_tokens\":null,"
                 "\"multimodal\":{\"image_token_id\":10}," CONFIG(SIZES, "v3") "}");
    expect_ids(tok, "ab", 1, 2, 1, 7);
    expect_ids(tok, "<unk></s>[INST]", 0, 3, 0, 2, 3);
    tokenizer_close(tok);
    /* Another file is asked first. */
    json_make(&(struct made){0});
    temp_write("tokenizer.json", json_text, n_json);
    tok = opened("{" CONFIG(SIZES, "v11") "," SPECIALS "," VOCAB "}");
    expect_ids(tok, "hello", 0, 1, 259);
    tokenizer_close(tok);
    assert_int_equal(remove(temp_path("tokenizer.json")), 0);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *what;
    } cases[] = {
        {"[]", "expected"},
        {"{" VOCAB "}", "config: pattern, default_vocab_size, default_num_special_tokens"},
        {"{" CONFIG("\"default_vocab_size\":9", "v3") ",\"vocab\":[]}",
         "vocab: 0 tokens, config says 9"},
        {"{" CONFIG("\"default_vocab_size\":4,\"default_num_special_tokens\":4", "v3") "," VOCAB
                                                                                       "}",
         "out of range"},
        {"{" CONFIG("\"default_vocab_size\":9,\"default_num_special_tokens\":-1", "v3") "," VOCAB
                                                                                        "}",
         "out of range"},
        {"{" CONFIG("\"default_vocab_size\":99,\"default_num_special_tokens\":4", "v3") "," VOCAB
                                                                                        "}",
         "vocab: 7 tokens, config says 95"},
        {"{" CONFIG("\"default_vocab_size\":999999,\"default_num_special_tokens\":900000",
                    "v3") "," VOCAB "}",
         "out of range"},
        {"{" CONFIG(SIZES, "v11") "," VOCAB "}", "special_tokens: missing (version 11)"},
        {"{" CONFIG(SIZES, "v3") ",\"vocab\":[7]}", "expected objects"},
        {"{" CONFIG(SIZES, "v3") ",\"vocab\":{}}", "expected a list"},
        {"{" CONFIG(SIZES, "v3") ",\"vocab\":[{\"rank\":0}]}", "expected {rank, token_bytes}"},
        {"{" CONFIG(SIZES, "v3") ",\"vocab\":[{\"token_bytes\":\"YQ==\"}]}", "expected {rank"},
        {"{" CONFIG(SIZES, "v3") ",\"vocab\":[{\"rank\":0,\"token_bytes\":\"Y!==\"}]}",
         "vocab: token 0 is not base64"},
        {"{" CONFIG(SIZES, "v3") "," VOCAB "," VOCAB "}", "vocab: 10 tokens"},
        {"{" CONFIG(SIZES, "v3") "," VOCAB
                                 ",\"special_tokens\":[{\"rank\":1,\"token_str\":\"<s>\"}]}",
         "rank 1, expected 0 of 4"},
        {"{" CONFIG(SIZES, "v3") "," VOCAB "," SPECIALS "," SPECIALS "}",
         "rank 0, expected 3 of 4"},
        {"{" CONFIG("\"default_vocab_size\":7,\"default_num_special_tokens\":2",
                    "v3") "," VOCAB "," SPECIALS "}",
         "rank 2, expected 2 of 2"},
        {"{" CONFIG(SIZES, "v3") "," VOCAB "} x", "byte"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        void *blob;
        int64_t n;
        enum err e = build(cases[i].text, &blob, &n);
        if (e != ERR_INPUT || !strstr(err_text(), cases[i].what))
            fail_msg("case %d: expected '%s', got %d '%s'", (int)i, cases[i].what, (int)e,
                     e ? err_text() : "");
        assert_null(blob);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, temp_dir_setup, temp_dir_teardown);
}
