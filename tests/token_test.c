/* tests/token_test.c - the tokenizer on small vocabularies made here, and on hostile ones.
 *
 * Ids of real vocabularies are compared with the library in token_live.py; this file is about what
 * must be refused, what must stay bounded, and the blob. The sanitizer build adds that nothing
 * leaks and nothing outside a buffer is touched. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/token.h" // before cmocka.h, whose macro fail() takes no arguments

#include <cmocka.h>

#include "tests/temp_dir.h"

#define MIB        (1 << 20)
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"

/* ---- making tokenizer.json ---- */

struct made { // NULL: the default
    const char *added, *normalizer, *pre, *post, *decoder;
    const char *vocab;  // after the 256 bytes, e.g. ",\"he\":256"
    const char *merges; // inside the brackets
    const char *model;  // further members of the model, e.g. ",\"unk_token\":\"a\""
    const char *type;
    int no_bytes; // leave the 256 bytes out
};

static char json_text[4 * MIB];
static int64_t n_json;

static void json_put(const char *s)
{
    size_t n = strlen(s);
    assert_true(n_json + (int64_t)n < (int64_t)sizeof json_text);
    memcpy(json_text + n_json, s, n + 1);
    n_json += (int64_t)n;
}

/* The character that stands for a byte, as JSON. */
static void json_put_byte(int b)
{
    int printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    int others = 0;
    for (int k = 0; k < b; k++)
        others += !((k >= 33 && k <= 126) || (k >= 161 && k <= 172) || k >= 174);
    char text[16];
    snprintf(text, sizeof text, "\\u%04x", (unsigned)(printable ? b : 256 + others));
    json_put(text);
}

static const char *or_else(const char *s, const char *otherwise)
{
    return s ? s : otherwise;
}

/* ids 0..255 are the bytes; he 256, ll 257, hell 258, hello 259. */
static void json_make(const struct made *m)
{
    n_json = 0;
    json_put("{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    json_put(or_else(m->added, "{\"id\":260,\"content\":\"<|end|>\",\"single_word\":false,"
                               "\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
                               "\"special\":true}"));
    json_put("],\"normalizer\":");
    json_put(or_else(m->normalizer, "null"));
    json_put(",\"pre_tokenizer\":");
    json_put(or_else(m->pre, BYTE_LEVEL));
    json_put(",\"post_processor\":");
    json_put(or_else(m->post, "null"));
    json_put(",\"decoder\":");
    json_put(or_else(m->decoder, BYTE_LEVEL));
    json_put(",\"model\":{\"type\":\"");
    json_put(or_else(m->type, "BPE"));
    json_put("\"");
    json_put(or_else(m->model, ",\"dropout\":null,\"unk_token\":null,\"byte_fallback\":false"));
    json_put(",\"vocab\":{");
    for (int b = 0; b < 256 && !m->no_bytes; b++) {
        char id[16];
        json_put(b ? ",\"" : "\"");
        json_put_byte(b);
        snprintf(id, sizeof id, "\":%d", b);
        json_put(id);
    }
    json_put(or_else(m->vocab, ",\"he\":256,\"ll\":257,\"hell\":258,\"hello\":259"));
    json_put("},\"merges\":[");
    json_put(or_else(m->merges, "\"h e\",\"l l\",\"he ll\",[\"hell\",\"o\"]"));
    json_put("]}}");
}

static enum err json_build(void **blob, int64_t *n_bytes)
{
    temp_write("tokenizer.json", json_text, n_json);
    return token_build_dir(temp_dir, blob, n_bytes);
}

static struct tokenizer *tokenizer_make(const struct made *m)
{
    void *blob;
    int64_t n;
    struct tokenizer *tok;
    json_make(m);
    if (json_build(&blob, &n) != OK)
        fail_msg("%s", err_text());
    assert_int_equal(tokenizer_open(&tok, blob, n, "test"), OK);
    free(blob);
    return tok;
}

/* The build is refused with ERR_INPUT and a sentence that holds `what`. */
static void refused(const struct made *m, const char *what)
{
    void *blob = &blob;
    int64_t n = 1;
    json_make(m);
    enum err e = json_build(&blob, &n);
    if (e != ERR_INPUT || !strstr(err_text(), what))
        fail_msg("expected '%s', got %d '%s'", what, (int)e, e ? err_text() : "");
    assert_null(blob);
    assert_int_equal(n, 0);
}

static void expect_ids(struct tokenizer *tok, const char *text, int add_special, int n, ...)
{
    int32_t ids[256];
    int64_t n_ids;
    va_list args;
    assert_int_equal(
        tokenizer_encode(tok, text, (int64_t)strlen(text), add_special, ids, 256, &n_ids), OK);
    va_start(args, n);
    for (int i = 0; i < n && i < n_ids; i++)
        assert_int_equal(ids[i], va_arg(args, int));
    va_end(args);
    assert_int_equal(n_ids, n);
}

static void expect_text(const struct tokenizer *tok, const int32_t *ids, int64_t n, int skip,
                        const char *text)
{
    char out[256];
    int64_t n_out;
    assert_int_equal(tokenizer_decode(tok, ids, n, skip, out, sizeof out - 1, &n_out), OK);
    out[n_out] = '\0';
    assert_string_equal(out, text);
}

static int setup(void **state)
{
    (void)state;
    temp_dir_make();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    temp_dir_remove();
    return 0;
}

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
    assert_int_equal(tokenizer_encode(tok, "", TOKEN_TEXT_BYTES_MAX + 1, 0, ids, 8, &n), ERR_ROW);
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
    assert_non_null(strstr(err_text(), "SentencePiece"));
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

/* ---- what is refused ---- */

static void test_json_broken(void **state) // T01, T08
{
    (void)state;
    void *blob;
    int64_t n;
    json_make(&(struct made){0});
    int64_t whole = n_json;
    for (int64_t cut = 0; cut < whole; cut += 1 + cut / 100) {
        temp_write("tokenizer.json", json_text, cut);
        assert_int_equal(token_build_dir(temp_dir, &blob, &n), ERR_INPUT);
        assert_non_null(strstr(err_text(), "tokenizer.json"));
    }
    char bomb[4000] = "";
    for (int i = 0; i < 20; i++)
        strcat(bomb, "{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (int i = 0; i < 20; i++)
        strcat(bomb, "]}");
    refused(&(struct made){.pre = bomb}, "nested");
    memset(bomb, '[', sizeof bomb - 1);
    refused(&(struct made){.pre = bomb}, "tokenizer.json");
    refused(&(struct made){.vocab = ",\"\\ud800\":256"}, "tokenizer.json");
    refused(&(struct made){.vocab = ",\"\xc0\x80\":256"}, "tokenizer.json");
    refused(&(struct made){.vocab = ",\"x\x01\":256"}, "tokenizer.json");
    refused(&(struct made){.model = ",\"vocab\":{\"a\":0}"}, "one vocab");
    refused(&(struct made){.normalizer = "null,\"normalizer\":null"}, "duplicate key");
    refused(&(struct made){.pre = "5"}, "expected an object");
    temp_write_text("tokenizer.json", "{}");
    assert_int_equal(token_build_dir(temp_dir, &blob, &n), ERR_INPUT);
    assert_non_null(strstr(err_text(), "no model"));
    json_make(&(struct made){0});
    json_put("x");
    assert_int_equal(json_build(&blob, &n), ERR_INPUT);
}

static void test_unsupported(void **state) // T02, T09
{
    (void)state;
#define SPLIT(p) "{\"type\":\"Split\",\"pattern\":" p ",\"behavior\":\"Isolated\",\"invert\":false}"
#define BOTH(p)  "{\"type\":\"Sequence\",\"pretokenizers\":[" p "," BYTE_LEVEL "]}"
    static const struct {
        struct made m;
        const char *what;
    } cases[] = {
        {{.type = "WordPiece"}, "unsupported model type WordPiece"},
        {{.type = "Unigram"}, "unsupported model type Unigram"},
        {{.model = ",\"byte_fallback\":true"}, "byte_fallback"},
        {{.model = ",\"dropout\":0.1"}, "dropout"},
        {{.model = ",\"end_of_word_suffix\":\"</w>\""}, "end_of_word_suffix"},
        {{.model = ",\"continuing_subword_prefix\":\"##\""}, "continuing_subword_prefix"},
        {{.model = ",\"unk_token\":\"nope\""}, "unk_token"},
        {{.model = ",\"unk_token\":3"}, "unk_token"},
        {{.normalizer = "{\"type\":\"Nmt\"}"}, "unsupported normalizer Nmt"},
        {{.normalizer = "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"!!\"}"},
         "unsupported normalizer Precompiled"},
        {{.normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
                        "{\"type\":\"StripAccents\"}]}"},
         "unsupported normalizer StripAccents"},
        {{.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"\"}"},
         "unsupported normalizer Replace"},
        {{.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"\"}"},
         "empty pattern"},
        {{.pre = "{\"type\":\"Metaspace\"}"}, "unsupported pre_tokenizer Metaspace"},
        {{.pre = "null"}, "not a byte-level vocabulary"},
        {{.pre = BOTH(BYTE_LEVEL)}, "after ByteLevel"},
        {{.pre = BOTH("{\"type\":\"Whitespace\"}")}, "unsupported pre_tokenizer Whitespace"},
        {{.pre = BOTH("{\"type\":\"Split\"}")}, "unsupported pre_tokenizer Split"},
        {{.pre = BOTH("{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Odd\"}")},
         "unsupported behavior 'Odd'"},
        {{.pre = BOTH(SPLIT("{\"Glob\":\"*\"}"))}, "unsupported pattern {Glob}"},
        {{.pre = BOTH(SPLIT("{\"String\":\"\"}"))}, "empty pattern"},
        {{.pre = "{\"pretokenizers\":[]}"}, "unsupported pre_tokenizer"},
        {{.post = "{\"type\":\"BertProcessing\"}"}, "unsupported post_processor BertProcessing"},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[]}"}, "TemplateProcessing"},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"q\"}},"
                  "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{}}"},
         "'q' is not in its special_tokens"},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"q\"}},"
                  "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"q\":{\"ids\":[999]}}}"},
         "id 999"},
        {{.decoder = "{\"type\":\"WordPiece\"}"}, "unsupported decoder WordPiece"},
        {{.decoder = "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"}]}"},
         "unsupported decoder Fuse"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(&cases[i].m, cases[i].what);
}

static void test_patterns(void **state) // T07
{
    (void)state;
    static const char *const bad[] = {
        "\\\\w+",        "\\\\b",   "^a",     "a$",           "[[:alpha:]]", "[a&&b]",  "[\\\\S]",
        "[]a]",          "\\\\h",   "\\\\v",  "(?i)a",        "(?<n>a)",     "(*F)",    "(?#x)",
        "a{,3}",         "a{2,3}+", "a{",     "\\\\p{Emoji}", "\\\\pL",      "\\\\xff", "\\\\u12",
        "\\\\x{110000}", "(",       "[a",     "a)",           "[b-a]",       "\\\\",    "\\\\1",
        "\\\\K",         "\\\\C",   "\\\\R",  "\\\\X",        "\\\\G",       "\\\\A",   "\\\\z",
        "\\\\Q",         "(?R)",    "\\\\p{", "*a",
    };
    char pre[400];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(pre, sizeof pre,
                 "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":"
                 "{\"Regex\":\"%s\"},\"behavior\":\"Isolated\",\"invert\":false}," BYTE_LEVEL "]}",
                 bad[i]);
        refused(&(struct made){.pre = pre}, "unsupported pattern");
    }
    static char huge[MIB + 400];
    strcpy(huge, "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"");
    size_t n = strlen(huge);
    memset(huge + n, 'a', MIB);
    strcpy(huge + n + MIB, "\"},\"behavior\":\"Isolated\",\"invert\":false}");
    refused(&(struct made){.pre = huge}, "1 to 65536");
    for (int i = 0; i < 30000; i++)
        memcpy(huge + n + i, i < 15000 ? "(" : ")", 1);
    strcpy(huge + n + 30000, "\"},\"behavior\":\"Isolated\",\"invert\":false}");
    refused(&(struct made){.pre = huge}, "unsupported pattern");
}

static void test_catastrophic_pattern(void **state) // T07
{
    (void)state;
    struct tokenizer *tok = tokenizer_make(&(struct made){
        .pre =
            "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
            "\"(?:a+)+[bc]\"},\"behavior\":\"Isolated\",\"invert\":false}," BYTE_LEVEL "]}"});
    char text[4096];
    int64_t n;
    memset(text, 'a', sizeof text);
    assert_int_equal(tokenizer_encode(tok, text, sizeof text, 0, NULL, 0, &n), ERR_ROW);
    assert_non_null(strstr(err_text(), "pattern"));
    expect_ids(tok, "aab", 0, 3, 'a', 'a', 'b'); // it goes on with the next text
    tokenizer_close(tok);
}

static void test_vocabulary(void **state) // T03, T04, T05
{
    (void)state;
    refused(&(struct made){.vocab = ",\"x1\":-1"}, "token id -1");
    refused(&(struct made){.vocab = ",\"x1\":4000000000"}, "token id 4000000000");
    refused(&(struct made){.vocab = ",\"x1\":4000000"}, "token id 4000000");
    refused(&(struct made){.vocab = ",\"x1\":9223372036854775808"}, "tokenizer.json");
    refused(&(struct made){.vocab = ",\"x1\":1.5"}, "expected");
    refused(&(struct made){.vocab = ",\"x1\":255"}, "token id 255 is used twice");
    refused(&(struct made){.vocab = ",\"x1\":256,\"x1\":257"}, "the same text");
    refused(&(struct made){.vocab = "", .merges = "\"h e\""}, "merge 0: 'he'");
    refused(&(struct made){.merges = "\"he\""}, "merge 0");
    refused(&(struct made){.merges = "\"h e l\""}, "merge 0");
    refused(&(struct made){.merges = "\"h e\",\"zz l\""}, "merge 1: 'zz'");
    refused(&(struct made){.merges = "\" e\""}, "merge 0");
    refused(&(struct made){.merges = "[\"h\"]"}, "expected");
    refused(&(struct made){.merges = "[\"h\",\"e\",\"l\"]"}, "expected");
    refused(&(struct made){.merges = "[\"h\",5]"}, "expected");
    refused(&(struct made){.merges = "5"}, "merge 0");
    refused(&(struct made){.no_bytes = 1, .vocab = "\"xy\":1", .merges = ""}, "single byte");
    refused(&(struct made){.no_bytes = 1, .vocab = "", .merges = ""}, "vocabulary is empty");

    static char long_token[TOKEN_TEXT_BYTES_MAX > MIB ? 100000 : 1];
    snprintf(long_token, sizeof long_token, ",\"%070000d\":256", 0);
    refused(&(struct made){.vocab = long_token, .merges = ""}, "bytes (at most");

    // Gaps are fine, a byte without a token is dropped, a later equal merge counts.
    struct tokenizer *tok =
        tokenizer_make(&(struct made){.no_bytes = 1,
                                      .vocab = "\"a\":1,\"b\":5,\"c\":6,\"ab\":60000,\"bc\":7",
                                      .added = "",
                                      .merges = "\"a b\",\"b c\",\"a b\""});
    assert_int_equal(tokenizer_vocab(tok), 60001);
    expect_ids(tok, "abc", 0, 2, 1, 7);
    expect_ids(tok, "axb", 0, 1, 60000); // side by side, as in the library
    expect_ids(tok, "\x01\x02", 0, 0);
    tokenizer_close(tok);
    tok = tokenizer_make(&(struct made){.no_bytes = 1,
                                        .vocab = "\"a\":1,\"u\":2",
                                        .added = "",
                                        .merges = "",
                                        .model = ",\"unk_token\":\"u\""});
    expect_ids(tok, "azza", 0, 4, 1, 2, 2, 1);
    tokenizer_close(tok);
    tok = tokenizer_make(&(struct made){.no_bytes = 1,
                                        .vocab = "\"a\":1,\"u\":2",
                                        .added = "",
                                        .merges = "",
                                        .model = ",\"unk_token\":\"u\",\"fuse_unk\":true"});
    expect_ids(tok, "azzaz", 0, 4, 1, 2, 1, 2);
    tokenizer_close(tok);
}

static void test_added(void **state) // T06
{
    (void)state;
    static char long_one[100000];
    refused(&(struct made){.added = "{\"id\":259,\"content\":\"<x>\"}"}, "id 259 is used twice");
    refused(&(struct made){.added = "{\"id\":258,\"content\":\"hello\"}"},
            "the vocabulary says 259");
    refused(&(struct made){.added = "{\"id\":260,\"content\":\"\"}"}, "added token 0: 0 bytes");
    refused(&(struct made){.added = "{\"id\":260}"}, "added token 0: 0 bytes");
    refused(&(struct made){.added = "{\"content\":\"x y\"}"}, "out of range");
    refused(&(struct made){.added = "{\"id\":-1,\"content\":\"x y\"}"}, "out of range");
    refused(&(struct made){.added = "{\"id\":70000,\"content\":\"x y\"}"}, "out of range");
    refused(&(struct made){.added = "{\"id\":260,\"content\":\"x\",\"special\":1}"}, "expected");
    refused(&(struct made){.added = "7"}, "expected objects");
    snprintf(long_one, sizeof long_one, "{\"id\":260,\"content\":\"%065536d\"}", 0);
    refused(&(struct made){.added = long_one}, "65536 bytes");
    refused(&(struct made){.added = "{\"id\":260,\"content\":\"A!\",\"normalized\":true},"
                                    "{\"id\":261,\"content\":\"a!\",\"normalized\":true}",
                           .normalizer = "{\"type\":\"Lowercase\"}"},
            "look the same");
    struct tokenizer *tok = tokenizer_make(&(struct made){
        .added = "{\"id\":260,\"content\":\"<a>\"},{\"id\":261,\"content\":\"<a><b>\"},"
                 "{\"id\":262,\"content\":\"<b>\",\"lstrip\":true,\"rstrip\":true},"
                 "{\"id\":263,\"content\":\"zw\",\"single_word\":true},"
                 "{\"id\":260,\"content\":\"<a>\"}"});
    expect_ids(tok, "<a><a><b><a", 0, 4, 260, 261, '<', 'a'); // overlapping: leftmost, longest
    expect_ids(tok, "x \t<b>\xc2\xa0 y", 0, 3, 'x', 262, 'y');
    expect_ids(tok, "zw zwz-zw\xc3\xa9", 0, 10, 263, ' ', 'z', 'w', 'z', '-', 'z', 'w', 0xc3, 0xa9);
    expect_ids(tok, "zw-zw", 0, 3, 263, '-', 263);
    tokenizer_close(tok);
}

/* ---- what stays bounded ---- */

struct long_case {
    struct tokenizer *tok;
    const char *text;
    int64_t n;
    double seconds;
    enum err err;
    int64_t n_ids;
};

static void *long_run(void *arg)
{
    struct long_case *c = arg;
    struct timespec from, to;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    c->err = tokenizer_encode(c->tok, c->text, c->n, 0, NULL, 0, &c->n_ids);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    c->seconds = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    return NULL;
}

/* On a stack of 64 KiB, or as small as a sanitizer's thread can be. */
static double long_encode(struct tokenizer *tok, const char *text, int64_t n)
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
    return c.seconds;
}

/* Every way of pre-tokenizing, on 1 MiB of one thing: about linear, small stack. */
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
    char *text = malloc(MIB);
    double worst = 0;
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
            worst = fmax(worst, long_encode(tok, text, n));
        }
        assert_true(tokenizer_bytes(tok) - held <= TOKEN_SCRATCH_BYTES);
        tokenizer_close(tok);
    }
    print_message("1 MiB of one thing: at most %.2f s\n", worst);
    assert_true(worst < 20); // sanitizers; quadratic would be hours
    free(text);
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

/* ---- the blob ---- */

static const struct made rich = {
    .added = "{\"id\":260,\"content\":\"<|end|>\",\"special\":true},{\"id\":262,\"content\":\"Qq\","
             "\"normalized\":true,\"lstrip\":true},{\"id\":263,\"content\":\"<>\",\"rstrip\":true}",
    .normalizer =
        "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Replace\","
        "\"pattern\":{\"String\":\"qq\"},\"content\":\"hello\"}]}",
    .pre = BOTH(SPLIT(
        "{\"Regex\":\"\\\\p{N}{1,3}|\\\\s+(?!\\\\S)\"}") ","
                                                         "{\"type\":\"Digits\",\"individual_"
                                                         "digits\":false},"
                                                         "{\"type\":\"Punctuation\",\"behavior\":"
                                                         "\"MergedWithPrevious\"}"),
    .model = ",\"unk_token\":\"a\",\"ignore_merges\":true",
};

/* Whatever an opened tokenizer was made from, using it stays inside its bounds. */
static void use(struct tokenizer *tok)
{
    static const char text[] = "hello qqhell 12345 <|end|> Qq\xcc\x81 <>  \xc3\xa9!? hellohe\n\n x";
    int32_t ids[512];
    char out[4096];
    int64_t n, n_out;
    int n_stops;
    tokenizer_limit(tok, MIB);
    if (tokenizer_encode(tok, text, sizeof text - 1, 1, ids, 512, &n) == OK)
        tokenizer_decode(tok, ids, n, 1, out, sizeof out, &n_out);
    for (int32_t id = -1; id < 300; id++) {
        struct detokenizer d;
        detokenizer_init(&d, tok, 0);
        detokenizer_feed(&d, id, out, sizeof out, &n_out);
        detokenizer_flush(&d, out, sizeof out, &n_out);
    }
    tokenizer_stops(tok, &n_stops);
    tokenizer_template(tok, &n);
    tokenizer_bos_text(tok, &n);
}

static void test_blob_hostile(void **state)
{
    (void)state;
    void *blob;
    int64_t n;
    struct tokenizer *tok;
    json_make(&rich);
    temp_write_text("chat_template.jinja", "{{ messages }}");
    if (json_build(&blob, &n) != OK)
        fail_msg("%s", err_text());
    remove(temp_path("chat_template.jinja"));
    uint8_t *bad = malloc((size_t)n + 1);
    memcpy(bad, blob, (size_t)n);
    bad[n] = 0;
    for (int64_t cut = 0; cut <= n + 1; cut++) { // exact size, so that ASan sees any overrun
        uint8_t *exact = malloc((size_t)cut + !cut);
        memcpy(exact, bad, (size_t)cut);
        enum err e = tokenizer_open(&tok, exact, cut, "cut.pack");
        assert_int_equal(e, cut == n ? OK : ERR_CORRUPT);
        if (e != OK)
            assert_non_null(strstr(err_text(), "cut.pack: tokenizer"));
        tokenizer_close(tok);
        free(exact);
    }
    int n_opened = 0;
    for (int64_t at = 0; at < n; at++) {
        static const uint8_t flips[] = {1, 0x80, 0xff};
        for (size_t k = 0; k < sizeof flips; k++) {
            bad[at] ^= flips[k];
            enum err e = tokenizer_open(&tok, bad, n, "bad.pack");
            assert_true(e == OK || e == ERR_CORRUPT);
            if (e == OK) {
                n_opened++;
                use(tok);
            }
            tokenizer_close(tok);
            bad[at] ^= flips[k];
        }
    }
    uint64_t seed = 3;
    for (int round = 0; round < 3000; round++) { // several words at once
        memcpy(bad, blob, (size_t)n);
        for (int k = 0; k < 4; k++) {
            uint32_t word =
                (uint32_t)(seed = mix64(seed)) % 3 ? (uint32_t)(seed >> 40) % 300 : (uint32_t)seed;
            int64_t where = (int64_t)((seed = mix64(seed)) % (uint64_t)(round % 2 ? 120 : n - 4));
            memcpy(bad + where / 4 * 4, &word, 4);
        }
        if (tokenizer_open(&tok, bad, n, "bad.pack") == OK)
            use(tok);
        tokenizer_close(tok);
    }
    print_message("blob of %lld bytes: %d of %lld flips still open\n", (long long)n, n_opened,
                  (long long)n * 3);
    free(bad);
    free(blob);
}

/* Mutated tokenizer.json: refused or built, never anything else; what is built can be used. */
static void test_json_mutated(void **state)
{
    (void)state;
    json_make(&rich);
    static char original[sizeof json_text];
    int64_t n_original = n_json, n;
    memcpy(original, json_text, (size_t)n_json);
    uint64_t seed = 11;
    int n_built = 0;
    for (int round = 0; round < 4000; round++) {
        memcpy(json_text, original, (size_t)n_original);
        n_json = n_original;
        // Half of the hits fall on the settings, outside the vocabulary.
        int64_t vocab = strstr(original, "\"vocab\"") - original;
        for (int k = 0; k < 1 + round % 3; k++) {
            seed = mix64(seed);
            int64_t at = (int64_t)((seed >> 8) % (uint64_t)(round % 2 ? vocab : n_original));
            json_text[at] = "\"{}[]:,0129eu\\-Ga \xc3"[seed % 19];
        }
        void *blob;
        struct tokenizer *tok;
        enum err e = json_build(&blob, &n);
        assert_true(e == OK || e == ERR_INPUT);
        if (e != OK)
            continue;
        n_built++;
        assert_int_equal(tokenizer_open(&tok, blob, n, "test"), OK);
        use(tok);
        tokenizer_close(tok);
        free(blob);
    }
    print_message("mutated tokenizer.json: %d of 4000 built\n", n_built);
    assert_true(n_built > 100 && n_built < 3900);
}

/* ---- GGUF ---- */

enum { GGUF_U32 = 4, GGUF_I32 = 5, GGUF_BOOL = 7, GGUF_STR = 8, GGUF_ARRAY = 9 };

struct gguf_made {
    const char *model, *pre, *eos_key;
    int n_types, n_vocab, no_merges, eos, bos, adds_bos; // bos, adds_bos: -1 leaves the key out
    int token_kind, bad_merge;
};

static uint8_t gguf_bytes[1 << 16];
static int64_t n_gguf, n_keys;

static void gguf_put(const void *p, size_t n)
{
    assert_true(n_gguf + (int64_t)n <= (int64_t)sizeof gguf_bytes);
    memcpy(gguf_bytes + n_gguf, p, n);
    n_gguf += (int64_t)n;
}

static void gguf_put_u32(uint32_t x)
{
    gguf_put(&x, 4);
}

static void gguf_put_str(const char *s)
{
    uint64_t n = strlen(s);
    gguf_put(&n, 8);
    gguf_put(s, n);
}

static void gguf_put_key(const char *key, uint32_t type)
{
    gguf_put_str(key);
    gguf_put_u32(type);
    n_keys++;
}

static void gguf_put_array(const char *key, uint32_t type, uint64_t n)
{
    gguf_put_key(key, GGUF_ARRAY);
    gguf_put_u32(type);
    gguf_put(&n, 8);
}

/* Tokens: 0 "a", 1 "b", 2 "ab", 3 "<s>" (control), 4 "[u]" (user defined), 5 " " , 6 "7". */
static void gguf_make(const struct gguf_made *m)
{
    static const char *const tokens[] = {"a", "b", "ab", "<s>", "[u]", "\xc4\xa0", "7"};
    static const uint32_t types[] = {1, 1, 1, 3, 4, 1, 1};
    n_gguf = n_keys = 0;
    gguf_put("GGUF\3\0\0\0", 8);
    gguf_put(&(uint64_t){0}, 8);
    gguf_put(&(uint64_t){0}, 8);
    gguf_put_key("general.architecture", GGUF_STR);
    gguf_put_str("llama");
    if (m->model) {
        gguf_put_key("tokenizer.ggml.model", GGUF_STR);
        gguf_put_str(m->model);
    }
    if (m->pre) {
        gguf_put_key("tokenizer.ggml.pre", GGUF_STR);
        gguf_put_str(m->pre);
    }
    gguf_put_array("tokenizer.ggml.tokens", m->token_kind ? GGUF_U32 : GGUF_STR,
                   (uint64_t)m->n_vocab);
    for (int i = 0; i < m->n_vocab; i++)
        m->token_kind ? gguf_put_u32(0) : gguf_put_str(tokens[i]);
    gguf_put_array("tokenizer.ggml.token_type", GGUF_I32, (uint64_t)m->n_types);
    for (int i = 0; i < m->n_types; i++)
        gguf_put_u32(types[i]);
    if (!m->no_merges) {
        gguf_put_array("tokenizer.ggml.merges", GGUF_STR, 1);
        gguf_put_str(m->bad_merge ? "a c" : "a b");
    }
    gguf_put_key(m->eos_key, GGUF_U32);
    gguf_put_u32((uint32_t)m->eos);
    if (m->bos >= 0) {
        gguf_put_key("tokenizer.ggml.bos_token_id", GGUF_U32);
        gguf_put_u32((uint32_t)m->bos);
    }
    if (m->adds_bos >= 0) {
        gguf_put_key("tokenizer.ggml.add_bos_token", GGUF_BOOL);
        gguf_put(&(uint8_t){(uint8_t)m->adds_bos}, 1);
    }
    gguf_put_key("tokenizer.chat_template", GGUF_STR);
    gguf_put_str("{{ t }}");
    memcpy(gguf_bytes + 16, &(uint64_t){(uint64_t)n_keys}, 8);
}

static const struct gguf_made gguf_good = {.model = "gpt2",
                                           .pre = "smollm",
                                           .n_types = 7,
                                           .eos_key = "tokenizer.ggml.eos_token_id",
                                           .n_vocab = 7,
                                           .eos = 3,
                                           .bos = 3,
                                           .adds_bos = -1};

static enum err gguf_build(const struct gguf_made *m, void **blob, int64_t *n)
{
    *blob = NULL;
    gguf_make(m);
    temp_write("m.gguf", gguf_bytes, n_gguf);
    struct source s;
    TRY(source_open(&s, temp_path("m.gguf")));
    enum err e = token_build(&s, blob, n);
    source_close(&s);
    return e;
}

static void gguf_refused(struct gguf_made m, const char *what)
{
    void *blob;
    int64_t n;
    enum err e = gguf_build(&m, &blob, &n);
    if (e != ERR_INPUT || !strstr(err_text(), what) || !strstr(err_text(), "m.gguf"))
        fail_msg("expected '%s', got %d '%s'", what, (int)e, e ? err_text() : "");
    assert_null(blob);
}

static void test_gguf(void **state) // G19 to G21
{
    (void)state;
    void *blob;
    int64_t n;
    struct tokenizer *tok;
    struct gguf_made m = gguf_good;
    if (gguf_build(&m, &blob, &n) != OK)
        fail_msg("%s", err_text());
    assert_int_equal(tokenizer_open(&tok, blob, n, "test"), OK);
    free(blob);
    expect_ids(tok, "ab<s>[u] 77", 1, 6, 2, 3, 4, 5, 6, 6);
    assert_true(tokenizer_is_special(tok, 3) && !tokenizer_is_special(tok, 4));
    assert_memory_equal(tokenizer_template(tok, &n), "{{ t }}", 7);
    assert_memory_equal(tokenizer_bos_text(tok, &n), "<s>", 3);
    tokenizer_close(tok);

    m.pre = "llama-bpe"; // adds BOS unless the file says otherwise
    assert_int_equal(gguf_build(&m, &blob, &n), OK);
    assert_int_equal(tokenizer_open(&tok, blob, n, "test"), OK);
    free(blob);
    expect_ids(tok, "ab", 1, 2, 3, 2);
    tokenizer_close(tok);
    m.adds_bos = 0;
    assert_int_equal(gguf_build(&m, &blob, &n), OK);
    assert_int_equal(tokenizer_open(&tok, blob, n, "test"), OK);
    free(blob);
    expect_ids(tok, "ab", 1, 1, 2);
    tokenizer_close(tok);

#define BUT(...) ((m = gguf_good), __VA_ARGS__, m)
    gguf_refused(BUT(m.model = "llama"), "tokenizer.ggml.model: unsupported 'llama'");
    gguf_refused(BUT(m.model = NULL), "no tokenizer.ggml.model");
    gguf_refused(BUT(m.pre = "mystery"), "unsupported pre-tokenizer 'mystery'");
    gguf_refused(BUT(m.n_types = 6), "tokenizer.ggml.token_type");
    gguf_refused(BUT(m.n_vocab = 6), "tokenizer.ggml.token_type");
    gguf_refused(BUT(m.token_kind = 1), "tokenizer.ggml.tokens");
    gguf_refused(BUT(m.n_vocab = m.n_types = 0), "tokenizer.ggml.");
    gguf_refused(BUT(m.no_merges = 1), "no tokenizer.ggml.merges");
    gguf_refused(BUT(m.bad_merge = 1), "merge 0: 'c'");
    gguf_refused(BUT(m.eos = 7), "eos_token_id: token id 7");
    gguf_refused(BUT(m.eos = -1), "eos_token_id");
    gguf_refused(BUT(m.eos_key = "tokenizer.ggml.eot_token_id", m.eos = 9), "eot_token_id");
    gguf_refused(BUT(m.bos = 7), "bos_token_id: token id 7");
    gguf_refused(BUT(m.bos = -1, m.adds_bos = 1), "add_bos_token: token id -1");
    m = gguf_good;
    m.pre = NULL; // as gpt-2
    assert_int_equal(gguf_build(&m, &blob, &n), OK);
    free(blob);
    remove(temp_path("m.gguf"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode),
        cmocka_unit_test(test_side_files),
        cmocka_unit_test(test_vocab_json),
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_stream_is_decode),
        cmocka_unit_test(test_merge_order),
        cmocka_unit_test(test_json_broken),
        cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_catastrophic_pattern),
        cmocka_unit_test(test_vocabulary),
        cmocka_unit_test(test_added),
        cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_scratch_limit),
        cmocka_unit_test(test_blob_hostile),
        cmocka_unit_test(test_json_mutated),
        cmocka_unit_test(test_gguf),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
