/* tests/token_hostile_test.c - the tokenizer's files and blobs, broken in every way.
 *
 * Each must give its code and one line that names the file and the place; the sanitizer build adds
 * that nothing leaks and nothing outside a buffer is touched. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/token.h" // before cmocka.h, whose macro fail() takes no arguments

#include <cmocka.h>

#include "tests/token_made.h"

#define METASPACE(scheme)                                                                          \
    "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":" scheme "}"
#define DECODERS(list) "{\"type\":\"Sequence\",\"decoders\":[" list "]}"
#define STRIP(content, start, stop)                                                                \
    "{\"type\":\"Strip\",\"content\":\"" content "\",\"start\":" start ",\"stop\":" stop "}"

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
    int at = 0;
    for (int i = 0; i < 40; i++)
        at += snprintf(bomb + at, sizeof bomb - (size_t)at, "%s",
                       i < 20 ? "{\"type\":\"Sequence\",\"pretokenizers\":[" : "]}");
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
    assert_non_null(strstr(err_text(), "missing key 'model'"));
    json_make(&(struct made){0});
    json_put("x");
    assert_int_equal(json_build(&blob, &n), ERR_INPUT);
}

static void test_unsupported(void **state) // T02, T09
{
    (void)state;
    static const struct {
        struct made m;
        const char *what;
    } cases[] = {
        {{.type = "WordPiece"}, "unsupported model type WordPiece"},
        {{.type = "Unigram"}, "expected array"},
        {{.model = ",\"byte_fallback\":true"}, "byte_fallback, with ByteLevel"},
        {{.model = ",\"dropout\":0.1"}, "dropout"},
        {{.model = ",\"end_of_word_suffix\":\"</w>\""}, "end_of_word_suffix"},
        {{.model = ",\"continuing_subword_prefix\":\"##\""}, "continuing_subword_prefix"},
        {{.model = ",\"unk_token\":\"nope\""}, "unk_token"},
        {{.model = ",\"unk_token\":3"}, "unk_token"},
        {{.normalizer = "{\"type\":\"Nmt\"}"}, "unsupported normalizer Nmt"},
        {{.normalizer = "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"!!\"}"},
         "precompiled_charsmap is not base64"},
        {{.normalizer = "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAAAA==\"}"},
         "a charsmap of 4 bytes with a trie of 0"},
        {{.normalizer = "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"CAAAAAAA\"}"},
         "a charsmap of 6 bytes with a trie of 8"},
        {{.normalizer = "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"CAAAAAAAAAAAAA==\"}"},
         "a charsmap of 10 bytes with a trie of 8"},
        {{.normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
                        "{\"type\":\"StripAccents\"}]}"},
         "unsupported normalizer StripAccents"},
        {{.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"^a\"},\"content\":\"\"}"},
         "unsupported pattern: an anchor"},
        {{.normalizer = "{\"type\":\"Replace\",\"content\":\"\"}"},
         "unsupported normalizer Replace"},
        {{.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"\"}"},
         "empty pattern"},
        {{.pre = "{\"type\":\"Metaspace\"}"}, "unsupported pre_tokenizer Metaspace"},
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

/* Pieces of characters: decoders and Metaspace have places and settings. */
static void test_unsupported_text(void **state) // T02, T09
{
    (void)state;
    static const struct {
        struct made m;
        const char *what;
    } cases[] = {
        {{.pre = METASPACE("\"odd\"")}, "unsupported prepend_scheme 'odd'"},
        {{.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[" METASPACE("\"first\"") "," METASPACE(
              "\"first\"") "]}"},
         "a second Metaspace"},
        {{.pre = "null"}, "unsupported decoder ByteLevel"},
        {{.pre = "null", .decoder = "null"}, "no decoder, and no ByteLevel"},
        {{.pre = "null", .decoder = "{\"type\":\"CTC\"}"}, "unsupported decoder CTC"},
        {{.pre = "null",
          .decoder = "{\"type\":\"Replace\",\"content\":\"a\",\"pattern\":{\"Regex\":"
                     "\"a\"}}"},
         "unsupported decoder Replace"},
        {{.pre = "null", .decoder = DECODERS("{\"type\":\"Fuse\"},{\"type\":\"ByteFallback\"}")},
         "unsupported decoder ByteFallback in this place"},
        {{.pre = "null", .decoder = DECODERS(STRIP(" ", "1", "0"))},
         "unsupported decoder Strip in this place"},
        {{.pre = "null", .decoder = DECODERS("{\"type\":\"Fuse\"}," STRIP(" ", "1", "1"))},
         "unsupported decoder Strip"},
        {{.pre = "null", .decoder = DECODERS("{\"type\":\"Fuse\"}," STRIP("x", "1", "0"))},
         "unsupported decoder Strip"},
        {{.pre = "null", .decoder = DECODERS("{\"type\":\"Fuse\"}," STRIP(" ", "9999", "0"))},
         "unsupported decoder Strip"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(&cases[i].m, cases[i].what);
}

static void test_patterns(void **state) // T07
{
    (void)state;
    static const char *const bad[] = {
        "\\\\w+",  "\\\\b",  "^a",           "[[:alpha:]]", "[a&&b]",  "[\\\\S]", "[]a]",
        "\\\\h",   "\\\\v",  "(?i)a",        "(?<n>a)",     "(*F)",    "(?#x)",   "a{,3}",
        "a{2,3}+", "a{",     "\\\\p{Emoji}", "\\\\pL",      "\\\\xff", "\\\\u12", "\\\\x{110000}",
        "(",       "[a",     "a)",           "[b-a]",       "\\\\",    "\\\\1",   "\\\\K",
        "\\\\C",   "\\\\R",  "\\\\X",        "\\\\G",       "\\\\A",   "\\\\z",   "\\\\Q",
        "(?R)",    "\\\\p{", "*a",
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
    static const char head[] = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"";
    static const char tail[] = "\"},\"behavior\":\"Isolated\",\"invert\":false}";
    size_t n = sizeof head - 1;
    memcpy(huge, head, n);
    memset(huge + n, 'a', MIB);
    memcpy(huge + n + MIB, tail, sizeof tail);
    refused(&(struct made){.pre = huge}, "1 to 65536");
    for (int i = 0; i < 30000; i++)
        memcpy(huge + n + i, i < 15000 ? "(" : ")", 1);
    memcpy(huge + n + 30000, tail, sizeof tail);
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
            "differs from the vocabulary's 259");
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
            "have the same text");
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
            n_opened += blob_opens(bad, n, use);
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
        blob_opens(bad, n, use);
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
        enum err e = json_build(&blob, &n);
        n_built += build_opens(e, blob, n, use);
    }
    print_message("mutated tokenizer.json: %d of 4000 built\n", n_built);
    assert_true(n_built > 100 && n_built < 3900);
}

/* ---- GGUF ---- */

enum { GGUF_U32 = 4, GGUF_I32 = 5, GGUF_F32 = 6, GGUF_BOOL = 7, GGUF_STR = 8, GGUF_ARRAY = 9 };

struct gguf_made {
    const char *model, *pre, *eos_key;
    int n_types, n_vocab, no_merges, eos, bos, adds_bos; // bos, adds_bos: -1 leaves the key out
    int token_kind, bad_merge;
    int n_scores;             // with types that SentencePiece's pieces have
    uint32_t score, unk_type; // of "b"; of "7", 0: as ever
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

/* Tokens: 0 "a", 1 "b", 2 "ab", 3 "<s>" (control), 4 "[u]" (user defined), 5 " " , 6 "7";
 * 7 " " and 8 two newlines as gemma4 has them. */
static void gguf_make(const struct gguf_made *m)
{
    static const char *const tokens[] = {"a",        "b", "ab",           "<s>", "[u]",
                                         "\xc4\xa0", "7", "\xe2\x96\x81", "\n\n"};
    static const uint32_t types[] = {1, 1, 1, 3, 4, 1, 1, 1, 1};
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
        gguf_put_u32(i == 6 && m->unk_type ? m->unk_type : types[i]);
    if (m->n_scores)
        gguf_put_array("tokenizer.ggml.scores", GGUF_F32, (uint64_t)m->n_scores);
    for (int i = 0; i < m->n_scores; i++)
        gguf_put_u32(i == 1 ? m->score : 0);
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

    m.model = "gemma4";
    m.n_vocab = m.n_types = 9;
    assert_int_equal(gguf_build(&m, &blob, &n), OK);
    assert_int_equal(tokenizer_open(&tok, blob, n, "test"), OK);
    free(blob);
    expect_ids(tok, "ab<s>[u] a\n\nb", 1, 8, 3, 2, 3, 4, 7, 0, 8, 1);
    tokenizer_close(tok);
    m = gguf_good;

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
    gguf_refused(BUT(m.model = "bert"), "tokenizer.ggml.model: unsupported 'bert'");
    gguf_refused(BUT(m.model = "llama"), "tokens, scores and token_type have different");
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

/* SentencePiece's scores, and no merges; U+2581 is not among the tokens. */
static void test_gguf_spm(void **state)
{
    (void)state;
    void *blob;
    int64_t n;
    struct tokenizer *tok;
    struct gguf_made good = gguf_good, m;
    good.model = "llama";
    good.n_scores = 7;
    good.unk_type = 2;
    good.no_merges = 1;
    if (gguf_build(&good, &blob, &n) != OK)
        fail_msg("%s", err_text());
    assert_int_equal(tokenizer_open(&tok, blob, n, "test"), OK);
    free(blob);
    expect_ids(tok, "ab<s>[u]b", 1, 7, 3, 6, 2, 3, 6, 4, 1); // a prefix that has no token, twice
    tokenizer_close(tok);
    good.model = "t5";
    assert_int_equal(gguf_build(&good, &blob, &n), OK);
    assert_int_equal(tokenizer_open(&tok, blob, n, "test"), OK);
    free(blob);
    expect_ids(tok, "ab<s>[u]b", 1, 4, 2, 3, 4, 1); // no prefix, no BOS
    tokenizer_close(tok);
    gguf_refused((m = good, m.score = 0x7fc00000, m), "token 1: its score is not a number");
    gguf_refused((m = good, m.score = 0xff800000, m), "token 1: its score is not a number");
    gguf_refused((m = good, m.unk_type = 7, m), "token 6: unsupported type 7");
    gguf_refused((m = good, m.unk_type = 6, m), "token 6 '7': not a byte <0xNN>");
    gguf_refused((m = good, m.n_scores = 6, m), "tokenizer.ggml.scores");
    gguf_refused((m = good, m.n_scores = 0, m), "tokens, scores and token_type have different");
    gguf_refused((m = good, m.bos = 7, m), "bos_token_id: token id 7");
    remove(temp_path("m.gguf"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_broken),
        cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_unsupported_text),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_catastrophic_pattern),
        cmocka_unit_test(test_vocabulary),
        cmocka_unit_test(test_added),
        cmocka_unit_test(test_blob_hostile),
        cmocka_unit_test(test_json_mutated),
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_gguf_spm),
    };
    return cmocka_run_group_tests(tests, temp_dir_setup, temp_dir_teardown);
}
