/* tests/token_test.c - the tokenizer on small vocabularies made here: encode, decode, side files,
 * and what must stay bounded.
 *
 * Ids of real vocabularies are compared with the library in token_live.py; what must be refused is
 * in token_hostile_test.c. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/token.h" // before cmocka.h, whose macro fail() takes no arguments

#include <cmocka.h>

#include "tests/token_made.h"

/* ---- what works ---- */

static void test_encode(void **state)
{
    (void)state;
    struct tokenizer *tok = tokenizer_make(&(struct made){0});
    expect_ids(tok, "", 1, 0);
    expect_ids(tok, "hello", 1, 1, 259);
    expect_ids(tok, "hellhe", 1, 2, 258, 256);
    expect_ids(tok, "lll", 1, 2, 257, 'l');
    expect_ids(tok, " hello", 1, 2, ' ', 259);
    expect_ids(tok, "\xc3\xa9", 1, 2, 0xc3, 0xa9);
    expect_ids(tok, "he<|end|><|end|>ll<|end|", 1, 10, 256, 260, 260, 257, '<', '|', 'e', 'n', 'd',
               '|');
    int32_t ids[8];
    int64_t n;
    assert_int_equal(tokenizer_encode(tok, "abc", 3, 0, ids, 2, &n), ERR_ROW);
    assert_int_equal(n, 3);
    assert_int_equal(tokenizer_encode(tok, "abc", 3, 0, NULL, 0, &n), ERR_ROW);
    assert_int_equal(n, 3);
    assert_int_equal(tokenizer_encode(tok, "a\xff", 2, 0, ids, 8, &n), ERR_ROW);
    assert_non_null(strstr(err_text(), "byte 1"));
    assert_int_equal(tokenizer_encode(tok, "\xed\xa0\x80", 3, 0, ids, 8, &n), ERR_ROW);
    assert_int_equal(tokenizer_encode(tok, "\xe2\x82", 2, 0, ids, 8, &n), ERR_ROW);
    // T12: no length becomes negative, or small, on its way through an int
    static const int64_t lengths[] = {TOKEN_TEXT_BYTES_MAX + 1, (int64_t)INT32_MAX + 1,
                                      ((int64_t)1 << 32) + 2, INT64_MAX};
    for (int i = 0; i < 4; i++) {
        char words[64];
        snprintf(words, sizeof words, "text: %lld bytes (at most 67108864)", (long long)lengths[i]);
        assert_int_equal(tokenizer_encode(tok, "ab", lengths[i], 0, ids, 8, &n), ERR_ROW);
        assert_string_equal(err_text(), words);
        assert_int_equal(n, 0);
    }
    assert_int_equal(tokenizer_vocab(tok), 261);
    assert_true(tokenizer_is_special(tok, 260) && !tokenizer_is_special(tok, 259));
    assert_int_equal(tokenizer_bos(tok), -1);
    int64_t n_piece;
    assert_memory_equal(tokenizer_piece(tok, 258, &n_piece), "hell", 4);
    assert_int_equal(n_piece, 4);
    assert_null(tokenizer_piece(tok, 261, &n_piece));
    assert_null(tokenizer_piece(tok, -1, &n_piece));
    tokenizer_close(tok);
    tokenizer_close(NULL);
}

/* A list as long as it takes: here a byte becomes eight tokens. */
static void test_encode_all(void **state)
{
    (void)state;
    struct tokenizer *tok = tokenizer_make(&(struct made){
        .normalizer =
            "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"xyxyxyxy\"}"});
    int32_t *ids;
    int64_t n;
    assert_int_equal(tokenizer_encode_all(tok, "aaaaaaaaaa", 10, 0, &ids, &n), OK);
    assert_int_equal(n, 80);
    for (int i = 0; i < 80; i++)
        assert_int_equal(ids[i], 'x' + i % 2);
    free(ids);
    assert_int_equal(tokenizer_encode_all(tok, "a\xff", 2, 0, &ids, &n), ERR_ROW);
    assert_null(ids);
    assert_int_equal(tokenizer_encode_all(tok, "", 0, 0, &ids, &n), OK);
    assert_int_equal(n, 0);
    free(ids);
    tokenizer_close(tok);
}

static void test_side_files(void **state)
{
    (void)state;
    temp_write_text("tokenizer_config.json",
                    "{\"bos_token\":\"he\",\"eos_token\":{\"content\":\"<|end|>\"},"
                    "\"chat_template\":[{\"name\":\"tools\",\"template\":\"T\"},"
                    "{\"template\":\"D\\u00e9\",\"name\":\"default\"}]}");
    temp_write_text("generation_config.json", "{\"eos_token_id\":[260,257,260]}");
    struct tokenizer *tok = tokenizer_make(&(struct made){
        .post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"he\","
                "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":"
                "{\"id\":\"<|end|>\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"he\":"
                "{\"id\":\"he\",\"ids\":[256],\"tokens\":[\"he\"]},\"<|end|>\":{\"id\":\"<|end|>\","
                "\"ids\":[260],\"tokens\":[\"<|end|>\"]}}}"});
    expect_ids(tok, "ll", 1, 3, 256, 257, 260);
    expect_ids(tok, "", 1, 2, 256, 260);
    expect_ids(tok, "ll", 0, 1, 257);
    int n_stops;
    int64_t n;
    const int32_t *stops = tokenizer_stops(tok, &n_stops);
    assert_int_equal(n_stops, 2);
    assert_int_equal(stops[0], 257);
    assert_int_equal(stops[1], 260);
    assert_int_equal(tokenizer_bos(tok), 256);
    assert_int_equal(tokenizer_eos(tok), 260);
    assert_true(tokenizer_adds_bos(tok));
    assert_memory_equal(tokenizer_template(tok, &n), "D\xc3\xa9", 3);
    assert_int_equal(n, 3);
    assert_memory_equal(tokenizer_eos_text(tok, &n), "<|end|>", 7);
    tokenizer_close(tok);

    temp_write_text("chat_template.jinja", "{{ x }}");
    tok = tokenizer_make(&(struct made){0});
    assert_memory_equal(tokenizer_template(tok, &n), "{{ x }}", 7);
    tokenizer_close(tok);

    temp_write_text("generation_config.json", "{\"eos_token_id\":261}");
    refused(&(struct made){0}, "eos_token_id: token id 261");
    temp_write_text("generation_config.json", "{\"eos_token_id\":-1}");
    refused(&(struct made){0}, "generation_config.json");
    temp_write_text("generation_config.json", "{}");
    temp_write_text("config.json", "{\"eos_token_id\":5,\"bos_token_id\":null}");
    tok = tokenizer_make(&(struct made){0});
    stops = tokenizer_stops(tok, &n_stops);
    assert_int_equal(n_stops, 2);
    assert_int_equal(stops[0], 5);
    tokenizer_close(tok);
    temp_write_text("tokenizer_config.json", "{\"chat_template\":7}");
    remove(temp_path("chat_template.jinja"));
    refused(&(struct made){0}, "chat_template");
    remove(temp_path("tokenizer_config.json"));
    remove(temp_path("generation_config.json"));
    remove(temp_path("config.json"));
}

static void test_vocab_json(void **state)
{
    (void)state;
    void *blob;
    int64_t n;
    remove(temp_path("tokenizer.json"));
    temp_write_text("tokenizer.model", "x");
    assert_int_equal(token_build_dir(temp_dir, &blob, &n), ERR_INPUT);
    assert_non_null(strstr(err_text(), "tokenizer.model: model: byte 1: ends inside a number"));
    remove(temp_path("tokenizer.model"));
    assert_int_equal(token_build_dir(temp_dir, &blob, &n), ERR_INPUT);
    assert_non_null(strstr(err_text(), "no tokenizer.json"));
    temp_write_text("vocab.json", "{\"</s>\":2,\"a\":3,\"b\":4,\"ab\":5,\"\\u0120\":6}");
    assert_int_equal(token_build_dir(temp_dir, &blob, &n), ERR_INPUT);
    assert_non_null(strstr(err_text(), "merges.txt: no such file"));
    temp_write_text("merges.txt", "#version: 0.2\na b\n\n");
    temp_write_text("tokenizer_config.json", "{\"bos_token\":\"</s>\",\"add_bos_token\":true}");
    if (token_build_dir(temp_dir, &blob, &n) != OK)
        fail_msg("%s", err_text());
    struct tokenizer *tok;
    assert_int_equal(tokenizer_open(&tok, blob, n, "test"), OK);
    free(blob);
    expect_ids(tok, "ab ab</s>b\r", 1, 6, 2, 5, 6, 5, 2, 4); // \r has no token
    expect_ids(tok, "a", 0, 1, 3);
    expect_text(tok, (int32_t[]){2, 5, 0, 6, 1}, 5, 0, "</s>ab ");
    tokenizer_close(tok);
    temp_write_text("merges.txt", "a b\r\na  b\n");
    assert_int_equal(token_build_dir(temp_dir, &blob, &n), ERR_INPUT);
    assert_non_null(strstr(err_text(), "merges.txt: merge 1"));
    temp_write_text("merges.txt", "a b\nb");
    assert_int_equal(token_build_dir(temp_dir, &blob, &n), ERR_INPUT);
    temp_write_text("vocab.json", "{\"a\":1,\"b\":\"x\"}");
    assert_int_equal(token_build_dir(temp_dir, &blob, &n), ERR_INPUT);
    temp_write_text("vocab.json", "[]");
    assert_int_equal(token_build_dir(temp_dir, &blob, &n), ERR_INPUT);
    remove(temp_path("vocab.json"));
    remove(temp_path("merges.txt"));
    remove(temp_path("tokenizer_config.json"));
}

static void test_decode(void **state)
{
    (void)state;
    struct tokenizer *tok = tokenizer_make(
        &(struct made){.added = "{\"id\":260,\"content\":\"<|end|>\",\"special\":true},"
                                "{\"id\":300,\"content\":\"a b \\u00e9\",\"special\":false}"});
    assert_int_equal(tokenizer_vocab(tok), 301); // 261 to 299 are gaps
    expect_text(tok, (int32_t[]){259, 260, 300}, 3, 0, "hello<|end|>a b \xc3\xa9");
    expect_text(tok, (int32_t[]){259, 260, 300}, 3, 1, "helloa b \xc3\xa9");
    expect_text(tok, (int32_t[]){-1, 'a', 299, INT32_MIN, INT32_MAX, 301, 'b'}, 7, 0, "ab");
    expect_text(tok, (int32_t[]){0xe2, 0x82, 0xac, '!'}, 4, 0, "\xe2\x82\xac!");
    expect_text(tok, (int32_t[]){0xe2, 0x82, '!'}, 3, 0, "\xef\xbf\xbd!");
    expect_text(tok, (int32_t[]){0xe2, 0x82}, 2, 0, "\xef\xbf\xbd");
    expect_text(tok, (int32_t[]){0xf0, 0x9f, 0x98}, 3, 0, "\xef\xbf\xbd");
    expect_text(tok, (int32_t[]){0xed, 0xa0, 0x80, 0xc0, 0x80}, 5, 0,
                "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    expect_text(tok, NULL, 0, 0, "");
    char out[8];
    int64_t n;
    assert_int_equal(tokenizer_decode(tok, (int32_t[]){259, 259}, 2, 0, out, 8, &n), ERR_ROW);
    assert_int_equal(n, 10);

    struct detokenizer d;
    detokenizer_init(&d, tok, 0);
    assert_int_equal(detokenizer_feed(&d, 0xf0, out, 8, &n), OK);
    assert_int_equal(n, 0);
    assert_int_equal(detokenizer_feed(&d, 259, out, 4, &n), ERR_ROW); // and nothing is lost
    assert_int_equal(n, 8);
    assert_int_equal(detokenizer_feed(&d, 0x9f, out, 8, &n), OK);
    assert_int_equal(detokenizer_feed(&d, 0x98, out, 8, &n), OK);
    assert_int_equal(detokenizer_feed(&d, 0x80, out, 8, &n), OK);
    assert_int_equal(n, 4);
    assert_memory_equal(out, "\xf0\x9f\x98\x80", 4);
    assert_int_equal(detokenizer_flush(&d, out, 0, &n), OK);
    assert_int_equal(n, 0);
    tokenizer_close(tok);
}

/* What the feeds give, put together, is what decode gives; each feed fits tokenizer_feed_max. */
static void test_stream_is_decode(void **state)
{
    (void)state;
    struct tokenizer *tok = tokenizer_make(&(struct made){0});
    uint64_t seed = 1;
    int64_t max = tokenizer_feed_max(tok);
    for (int round = 0; round < 2000; round++) {
        int32_t ids[40];
        char all[2048], parts[2048];
        int64_t n_all, n_parts = 0, n;
        int n_ids = (int)((seed = mix64(seed)) % 40);
        for (int i = 0; i < n_ids; i++) {
            seed = mix64(seed);
            ids[i] = (int32_t)(seed >> 8) % (seed & 1 ? 263 : 256);
            if (seed & 6) // bytes that start and continue characters
                ids[i] = "\xe2\x82\xac\xf0\x9f\x98\x80\xc3\xa9\xed\xa0"[(seed >> 8) % 11] & 0xff;
        }
        assert_int_equal(tokenizer_decode(tok, ids, n_ids, round & 1, all, sizeof all, &n_all), OK);
        struct detokenizer d;
        detokenizer_init(&d, tok, round & 1);
        for (int i = 0; i < n_ids; i++) {
            assert_int_equal(detokenizer_feed(&d, ids[i], parts + n_parts, max, &n), OK);
            n_parts += n;
        }
        assert_int_equal(detokenizer_flush(&d, parts + n_parts, 3, &n), OK);
        n_parts += n;
        assert_int_equal(n_parts, n_all);
        assert_memory_equal(parts, all, (size_t)n_all);
    }
    tokenizer_close(tok);
}

/* A word is merged as if by hand: always the lowest rank, the leftmost first. */
static void test_merge_order(void **state)
{
    (void)state;
    struct tokenizer *tok = tokenizer_make(&(struct made){
        .pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}",
        .added = "",
        .vocab = ",\"ab\":256,\"ba\":257,\"aab\":258,\"abab\":259,\"aa\":260,\"bab\":261",
        .merges = "\"b a\",\"a a\",\"a b\",\"aa b\",\"ab ab\",\"ba b\""});
    static const struct {
        int left, right, result;
    } merges[] = {{'b', 'a', 257}, {'a', 'a', 260}, {'a', 'b', 256},
                  {260, 'b', 258}, {256, 256, 259}, {257, 'b', 261}};
    uint64_t seed = 7;
    for (int round = 0; round < 3000; round++) {
        char text[64];
        int32_t want[64], got[64];
        int64_t n_got;
        int n = 1 + (int)((seed = mix64(seed)) % 63), n_want = n;
        for (int i = 0; i < n; i++)
            want[i] = text[i] = (seed = mix64(seed)) % 3 ? 'a' : 'b';
        for (int rank = 0; rank < 6; rank++) {
            for (int i = 0; i + 1 < n_want; i++) {
                if (want[i] != merges[rank].left || want[i + 1] != merges[rank].right)
                    continue;
                want[i] = merges[rank].result;
                memmove(want + i + 1, want + i + 2, (size_t)(n_want - i - 2) * sizeof *want);
                n_want--;
                rank = -1;
                break;
            }
        }
        assert_int_equal(tokenizer_encode(tok, text, n, 0, got, 64, &n_got), OK);
        assert_int_equal(n_got, n_want);
        assert_memory_equal(got, want, (size_t)n_want * sizeof *want);
    }
    tokenizer_close(tok);
}

/* ---- what stays bounded ---- */

struct long_case {
    struct tokenizer *tok;
    const char *text;
    int64_t n;
    enum err err;
    int64_t n_ids;
};

static void *long_run(void *arg)
{
    struct long_case *c = arg;
    c->err = tokenizer_encode(c->tok, c->text, c->n, 0, NULL, 0, &c->n_ids);
    return NULL;
}

/* On a stack of 64 KiB, or as small as a sanitizer's thread can be. */
static void long_encode(struct tokenizer *tok, const char *text, int64_t n)
{
    struct long_case c = {.tok = tok, .text = text, .n = n};
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    if (pthread_attr_setstacksize(&attr, 64 << 10) != 0)
        pthread_attr_setstacksize(&attr, 256 << 10);
    assert_int_equal(pthread_create(&thread, &attr, long_run, &c), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
    if (c.err != ERR_ROW || c.n_ids == 0) // no room for the ids, that is all
        fail_msg("%.8s...: error %d, %lld ids", text, (int)c.err, (long long)c.n_ids);
}

/* Every way of pre-tokenizing, on 1 MiB of one thing, with a small stack. The work grows with the
 * length of the text, not with its square: that would take hours, and check.py ends such a test as
 * failed. */
static void test_long_runs(void **state) // T10
{
    (void)state;
    static const char *const steps[][2] = {
        {"null", BYTE_LEVEL},
        {"{\"type\":\"NFC\"}", BYTE_LEVEL},
        {"{\"type\":\"NFKD\"}",
         "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}"},
        {"null", BOTH("{\"type\":\"Digits\",\"individual_digits\":true}")},
        {"null",
         BOTH(SPLIT("{\"Regex\":\"(?i:'s|'t|'re)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|"
                    "\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|"
                    "\\\\s+(?!\\\\S)|\\\\s+\"}"))},
        {"null", BOTH(SPLIT("{\"Regex\":\"\\\\s+$\"}"))},
    };
    static const char *const units[] = {"a",
                                        "A",
                                        "^",
                                        " ",
                                        "\n",
                                        "7",
                                        "\t",
                                        "\r\n",
                                        " a",
                                        "\xcc\x81",
                                        "\xe4\xb8\x80",
                                        "ab",
                                        "<|end|>",
                                        "\xcc\x81\xcc\xa3",
                                        "\xf0\x9f\x91\x8d\xe2\x80\x8d",
                                        "<|end|",
                                        " \n",
                                        "'",
                                        "''s"};
    char *text = malloc(MIB + 1);
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        struct tokenizer *tok = tokenizer_make(&(struct made){
            .normalizer = steps[s][0],
            .pre = steps[s][1],
            .added = NULL,
            .vocab = ",\"aa\":256,\"aaaa\":257,\"aaaaaaaa\":258,\"ab\":259,\"ba\":261",
            .merges = "\"b a\",\"aaaa aaaa\",\"aa aa\",\"a a\",\"a b\""});
        int64_t held = tokenizer_bytes(tok);
        for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
            int64_t n_unit = (int64_t)strlen(units[u]), n = MIB / n_unit * n_unit;
            for (int64_t i = 0; i < n; i += n_unit)
                memcpy(text + i, units[u], (size_t)n_unit);
            text[n] = 'x';
            long_encode(tok, text, n + 1);
        }
        assert_true(tokenizer_bytes(tok) - held <= TOKEN_SCRATCH_BYTES);
        tokenizer_close(tok);
    }
    free(text);
}

/* A dollar is before each newline and at the end. */
static void test_line_ends(void **state)
{
    (void)state;
    struct tokenizer *tok = tokenizer_make(&(struct made){.added = "",
                                                          .pre = BOTH(SPLIT("{\"Regex\":\"b$\"}")),
                                                          .vocab = ",\"ab\":256",
                                                          .merges = "\"a b\""});
    expect_ids(tok, "abab\nab\n\nab", 0, 10, 256, 'a', 'b', '\n', 'a', 'b', '\n', '\n', 'a', 'b');
    tokenizer_close(tok);
}

static void test_scratch_limit(void **state)
{
    (void)state;
    struct tokenizer *tok = tokenizer_make(&(struct made){.normalizer = "{\"type\":\"NFC\"}"});
    char *text = malloc(MIB);
    int64_t n;
    memset(text, 'a', MIB);
    tokenizer_limit(tok, 1 << 20);
    int64_t before = tokenizer_bytes(tok);
    for (int n_text = 1 << 17, n_max = (1 << 19) / 16; n_text > 1000; n_text -= 999) {
        enum err e = tokenizer_encode(tok, text, n_text, 0, NULL, 0, &n); // shorter and shorter
        assert_int_equal(e, ERR_ROW);
        assert_int_equal(n, n_text > n_max ? 0 : n_text); // 0: refused, else only for the room
        assert_true(n || strstr(err_text(), "scratch"));
        assert_true(tokenizer_bytes(tok) - before <= 1 << 20);
    }
    memset(text, ' ', MIB);
    for (int i = 0; i < MIB; i += 8)
        text[i] = 'a';
    tokenizer_limit(tok, 8 * MIB); // short words: only the normalized text counts
    assert_int_equal(tokenizer_encode(tok, text, MIB, 0, NULL, 0, &n), ERR_ROW);
    assert_int_equal(n, MIB);
    assert_true(tokenizer_bytes(tok) - before <= MIB + MIB / 4);
    free(text);
    tokenizer_close(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode),        cmocka_unit_test(test_encode_all),
        cmocka_unit_test(test_side_files),    cmocka_unit_test(test_vocab_json),
        cmocka_unit_test(test_decode),        cmocka_unit_test(test_stream_is_decode),
        cmocka_unit_test(test_merge_order),   cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_scratch_limit), cmocka_unit_test(test_line_ends),
    };
    return cmocka_run_group_tests(tests, temp_dir_setup, temp_dir_teardown);
}
