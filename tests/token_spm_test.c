/* tests/token_spm_test.c - SentencePiece and tiktoken vocabularies made here: the order of merges,
 * prefix rules, bytes and streams, what stays bounded, and files broken in every way.
 *
 * Ids of real vocabularies are compared with the libraries in token_spm_live.py. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/token.h" // before cmocka.h, whose macro fail() takes no arguments

#include <cmocka.h>

#include "tests/token_made.h"

#define SPACE "\xe2\x96\x81"
#define BAD   "\xef\xbf\xbd"

/* ---- making tokenizer.model ---- */

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };
enum { UNIGRAM = 1, BPE = 2 };

struct piece {
    const char *text;
    float score;
    int type;
};

struct spm_made {
    const struct piece *pieces; // the last has no text; NULL: `usual`
    int model, no_bytes, no_prefix, trim;
    int says_bytes; // byte_fallback without the bytes
    const char *charsmap;
    int n_charsmap;
};

static const struct piece usual[] = {
    {"<unk>", 0, UNKNOWN},      {"<s>", 0, CONTROL},     {"</s>", 0, CONTROL},
    {"<|x|>", 0, USER_DEFINED}, {SPACE, -1, NORMAL},     {"a", -2, NORMAL},
    {"b", -3, NORMAL},          {"ab", -4, NORMAL},      {"ba", -4, NORMAL},
    {"aba", -5, NORMAL},        {"aa", -6, NORMAL},      {"abb", -5, NORMAL},
    {"bb", -4, NORMAL},         {SPACE "a", -7, NORMAL}, {0}};
#define FIRST_BYTE 14 // <0x00>

static uint8_t model[1 << 16];
static int64_t n_model;

static void put(const void *p, int64_t n)
{
    assert_true(n_model + n <= (int64_t)sizeof model);
    if (n > 0)
        memcpy(model + n_model, p, (size_t)n);
    n_model += n;
}

static void put_varint(uint64_t x)
{
    for (; x > 127; x >>= 7)
        put(&(uint8_t){(uint8_t)(x | 128)}, 1);
    put(&(uint8_t){(uint8_t)x}, 1);
}

static void put_int(int field, uint64_t x)
{
    put_varint((uint64_t)field << 3);
    put_varint(x);
}

static void put_bytes(int field, const void *p, int64_t n)
{
    put_varint((uint64_t)field << 3 | 2);
    put_varint((uint64_t)n);
    put(p, n);
}

static void put_piece(const char *text, float score, int type)
{
    int64_t n = (int64_t)strlen(text);
    put_varint(1 << 3 | 2);
    put_varint((uint64_t)(2 + (n > 127) + n + 5 + 2));
    put_bytes(1, text, n);
    put_varint(2 << 3 | 5);
    put(&score, 4);
    put_int(3, (uint64_t)type);
}

static void spm_make(const struct spm_made *m)
{
    n_model = 0;
    for (const struct piece *p = m->pieces ? m->pieces : usual; p->text; p++)
        put_piece(p->text, p->score, p->type);
    for (int b = 0; b < 256 && !m->no_bytes; b++) {
        char text[16];
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)b);
        put_piece(text, 0, BYTE);
    }
    put_varint(2 << 3 | 2);
    put_varint(5);
    put_int(3, (uint64_t)(m->model ? m->model : BPE));
    put_int(35, (uint64_t)(!m->no_bytes || m->says_bytes));
    put_varint(3 << 3 | 2);
    put_varint((uint64_t)(4 + (m->n_charsmap ? m->n_charsmap + 3 : 0)));
    put_int(3, (uint64_t)!m->no_prefix);
    put_int(4, (uint64_t)m->trim);
    if (m->n_charsmap)
        put_bytes(2, m->charsmap, m->n_charsmap);
}

static enum err model_build(void **blob, int64_t *n)
{
    remove(temp_path("tokenizer.json"));
    temp_write("tokenizer.model", model, n_model);
    return token_build_dir(temp_dir, blob, n);
}

static struct tokenizer *spm_open(const struct spm_made *m)
{
    void *blob;
    int64_t n;
    struct tokenizer *tok;
    spm_make(m);
    if (model_build(&blob, &n) != OK)
        fail_msg("%s", err_text());
    assert_int_equal(tokenizer_open(&tok, blob, n, "test"), OK);
    free(blob);
    return tok;
}

static void model_refused(const char *what)
{
    void *blob = &blob;
    int64_t n = 1;
    enum err e = model_build(&blob, &n);
    if (e != ERR_INPUT || !strstr(err_text(), what) || !strstr(err_text(), "tokenizer.model"))
        fail_msg("expected '%s', got %d '%s'", what, (int)e, e ? err_text() : "");
    assert_null(blob);
}

/* ---- what works ---- */

/* Merged as if by hand: always the best score, the leftmost first. */
static void test_merge_order(void **state)
{
    (void)state;
    struct tokenizer *tok = spm_open(&(struct spm_made){.no_prefix = 1});
    static const int merges[][4] = {// left, right, result, rank
                                    {5, 6, 7, 0}, {6, 5, 8, 0},  {6, 6, 12, 0},  {7, 5, 9, 1},
                                    {5, 8, 9, 1}, {7, 6, 11, 1}, {5, 12, 11, 1}, {5, 5, 10, 2}};
    uint64_t seed = 7;
    for (int round = 0; round < 4000; round++) {
        char text[64];
        int32_t want[64], got[64];
        int64_t n_got;
        int n = 1 + (int)((seed = mix64(seed)) % 63), n_want = n;
        for (int i = 0; i < n; i++) {
            text[i] = (seed = mix64(seed)) % 3 ? 'a' : 'b';
            want[i] = text[i] == 'a' ? 5 : 6;
        }
        for (int rank = 0; rank < 3; rank++) {
            for (int i = 0, hit = -1; i + 1 < n_want && hit < 0; i++) {
                for (int k = 0; k < 8; k++)
                    if (merges[k][3] == rank && want[i] == merges[k][0] &&
                        want[i + 1] == merges[k][1])
                        hit = k;
                if (hit < 0)
                    continue;
                want[i] = merges[hit][2];
                memmove(want + i + 1, want + i + 2, (size_t)(n_want - i - 2) * sizeof *want);
                n_want--;
                rank = -1;
            }
        }
        assert_int_equal(tokenizer_encode(tok, text, n, 0, got, 64, &n_got), OK);
        assert_int_equal(n_got, n_want);
        assert_memory_equal(got, want, (size_t)n_want * sizeof *want);
    }
    tokenizer_close(tok);
}

static void test_encode(void **state)
{
    (void)state;
    struct tokenizer *tok = spm_open(&(struct spm_made){0});
    expect_ids(tok, "", 1, 1, 1);
    expect_ids(tok, "a", 1, 2, 1, 13);
    expect_ids(tok, " a", 0, 2, 4, 13);
    expect_ids(tok, "a<|x|> a", 0, 3, 13, 3, 13);
    expect_ids(tok, "<s>", 0, 4, 4, FIRST_BYTE + '<', FIRST_BYTE + 's', FIRST_BYTE + '>'); // text
    expect_ids(tok, "\xc3\xa9", 0, 3, 4, FIRST_BYTE + 0xc3, FIRST_BYTE + 0xa9);
    assert_int_equal(tokenizer_bos(tok), 1);
    assert_int_equal(tokenizer_eos(tok), 2);
    int64_t n;
    assert_memory_equal(tokenizer_piece(tok, 13, &n), " a", 2);
    assert_int_equal(n, 2);
    assert_memory_equal(tokenizer_piece(tok, FIRST_BYTE + 10, &n), "\n", 1);
    assert_int_equal(n, 1);
    tokenizer_close(tok);
    tok = spm_open(&(struct spm_made){.no_bytes = 1, .trim = 1});
    expect_ids(tok, "  a  \xc3\xa9\xc3\xa9  b  ", 0, 5, 13, 4, 0, 4, 6);
    expect_ids(tok, "   ", 0, 0);
    tokenizer_close(tok);
    static const struct piece across[] = {{"<unk>", 0, UNKNOWN},   {SPACE, -9, NORMAL},
                                          {"a", -8, NORMAL},       {SPACE "a", -3, NORMAL},
                                          {"a" SPACE, -1, NORMAL}, {0}};
    tok = spm_open(&(struct spm_made){.pieces = across, .no_prefix = 1});
    expect_ids(tok, "a a", 0, 2, 4, 2); // a piece that goes on behind a space
    tokenizer_close(tok);
    static const struct piece dear[] = {
        {"<unk>", 0, UNKNOWN}, {SPACE, 0, NORMAL}, {"a", 5, NORMAL}, {"ab", -3, NORMAL}, {0}};
    tok = spm_open(&(struct spm_made){.pieces = dear, .model = UNIGRAM, .no_bytes = 1});
    expect_ids(tok, "ab", 0, 2, 1, 3); // an unknown character costs 10 more than the dearest piece
    tokenizer_close(tok);
    tok = spm_open(&(struct spm_made){.model = UNIGRAM});
    expect_ids(tok, "aba\xc3\xa9", 0, 4, 4, 9, FIRST_BYTE + 0xc3, FIRST_BYTE + 0xa9);
    tokenizer_close(tok);
}

/* Beside a config, its special tokens are parsed; "legacy" says where the prefix comes again. */
static void test_prefix_rules(void **state)
{
    (void)state;
    temp_write_text("added_tokens.json", "{\"<t>\":270}");
    for (int legacy = 0; legacy < 2; legacy++) {
        char config[300];
        snprintf(config, sizeof config,
                 "{\"added_tokens_decoder\":{\"270\":{\"content\":\"<t>\",\"rstrip\":true}},"
                 "\"legacy\":%s,\"add_bos_token\":false,\"add_eos_token\":true,\"unk_token\":{"
                 "\"content\":\"<unk>\"}}",
                 legacy ? "true" : "false");
        temp_write_text("tokenizer_config.json", config);
        struct tokenizer *tok = spm_open(&(struct spm_made){0});
        expect_ids(tok, "a<s>a<t>  b", 1, legacy ? 7 : 6, 13, 1, legacy ? 13 : 5, 270,
                   legacy ? 4 : 6, legacy ? 6 : 2, 2);
        assert_true(tokenizer_is_special(tok, 0) && !tokenizer_is_special(tok, 270));
        assert_int_equal(tokenizer_vocab(tok), 271);
        tokenizer_close(tok);
    }
    temp_write_text("tokenizer_config.json", "{\"add_prefix_space\":false,\"legacy\":null}");
    struct tokenizer *tok = spm_open(&(struct spm_made){0});
    expect_ids(tok, "a<s>b", 1, 4, 1, 5, 1, 6);
    expect_text(tok, (int32_t[]){13, 13}, 2, 1, " a a"); // nothing to take back
    tokenizer_close(tok);
    remove(temp_path("added_tokens.json"));
    remove(temp_path("tokenizer_config.json"));
}

static void test_decode(void **state)
{
    (void)state;
    const int B = FIRST_BYTE;
    struct tokenizer *tok = spm_open(&(struct spm_made){0});
    expect_text(tok, (int32_t[]){13, 13}, 2, 1, "a a");
    expect_text(tok, (int32_t[]){1, 4, 4, 5}, 4, 1, " a"); // one space goes
    expect_text(tok, (int32_t[]){1, 13}, 2, 0, "<s> a");
    expect_text(tok, (int32_t[]){5, 0, 6}, 3, 1, "a \xe2\x81\x87 b");
    expect_text(tok, (int32_t[]){B + 0xc3, B + 0xa9, 13}, 3, 1, "\xc3\xa9 a");
    expect_text(tok, (int32_t[]){B + 0xe2, B + 0x82, B + 'x', B + 0xc3, B + 0xa9}, 5, 1,
                BAD BAD "x\xc3\xa9");
    tokenizer_close(tok);
    tok = spm_open(&(struct spm_made){.trim = 1});
    expect_text(tok, (int32_t[]){4, 4, 13, 13}, 4, 1, "a a"); // all of them
    tokenizer_close(tok);
}

#define TEXT_DECODER                                                                               \
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"          \
    "\"\\u2581\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"             \
    "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}"
#define METASPACE                                                                                  \
    "{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"first\","            \
    "\"split\":false}"

/* 0 <unk>, 1 U+2581, 2 a, 3 b, 4 ab, then bytes 80 to ff. */
static struct tokenizer *text_open(const char *pre, const char *decoder)
{
    static char vocab[8192];
    int n = snprintf(vocab, sizeof vocab, "\"<unk>\":0,\"\\u2581\":1,\"a\":2,\"b\":3,\"ab\":4");
    for (int b = 128; b < 256; b++)
        n +=
            snprintf(vocab + n, sizeof vocab - (size_t)n, ",\"<0x%02X>\":%d", (unsigned)b, b - 123);
    return tokenizer_make(&(struct made){
        .no_bytes = 1,
        .vocab = vocab,
        .merges = "\"a b\"",
        .pre = pre,
        .decoder = decoder,
        .added = "{\"id\":133,\"content\":\"<e>\",\"special\":true}",
        .model = ",\"unk_token\":\"<unk>\",\"byte_fallback\":true,\"fuse_unk\":true"});
}

/* `tokenizers`: one bad byte spoils its whole run, and a text loses one space at its start. */
static void test_text_json(void **state)
{
    (void)state;
    struct tokenizer *tok = text_open(METASPACE, TEXT_DECODER);
    expect_ids(tok, "ab<e>ab <e>", 1, 6, 1, 4, 133, 4, 1, 133);
    expect_ids(tok, "a\xc3\xa9!?b", 0, 6, 1, 2, 0xc3 - 123, 0xa9 - 123, 0, 3);
    expect_text(tok, (int32_t[]){1, 1, 2, 1, 2}, 5, 1, " a a");
    expect_text(tok, (int32_t[]){133, 1, 2}, 3, 1, "a");
    expect_text(tok, (int32_t[]){133, 1, 2}, 3, 0, "<e> a");
    expect_text(tok, (int32_t[]){0xc3 - 123, 0xa9 - 123, 0xc3 - 123, 2, 0xc3 - 123, 0xa9 - 123}, 6,
                1, BAD BAD BAD "a\xc3\xa9");
    int32_t run[1001];
    char want[1001];
    for (int i = 0; i < 1001; i++) {
        want[i] = i & 1 ? '\xa9' : '\xc3';
        run[i] = (uint8_t)want[i] - 123;
    }
    want[1000] = '\0';
    expect_text(tok, run, 1000, 1, want); // longer than what is kept
    char out[4096];
    int64_t n;
    run[3] = 0xc3 - 123; // broken from the start
    assert_int_equal(tokenizer_decode(tok, run, 1001, 1, out, sizeof out, &n), OK);
    assert_int_equal(n, 3003);
    tokenizer_close(tok);
    tok = text_open(METASPACE, "{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\"}");
    expect_text(tok, (int32_t[]){1, 1, 2}, 3, 1, " a"); // the first token is bare
    expect_text(tok, (int32_t[]){5, 1, 2}, 3, 1, "<0x80> a");
    tokenizer_close(tok);
}

static void stream_equals(struct tokenizer *tok, int n_vocab)
{
    uint64_t seed = 1;
    int64_t max = tokenizer_feed_max(tok);
    char *all = malloc(1 << 20), *parts = malloc(1 << 20);
    for (int round = 0; round < 600; round++) {
        static int32_t ids[900];
        int64_t n_all, n_parts = 0, n;
        int n_ids = (int)((seed = mix64(seed)) % (round % 10 ? 40 : 900)), is_run = 0;
        for (int i = 0; i < n_ids; i++) {
            seed = mix64(seed);
            ids[i] = (int32_t)((seed >> 8) % (uint64_t)n_vocab);
            is_run = seed % 50 ? is_run : !is_run;
            if (is_run) // the last 128 are bytes from 80 on
                ids[i] = n_vocab - 128 + (i & 1 ? 0x29 : seed % 90 ? 0x43 : 0x29);
        }
        assert_int_equal(tokenizer_decode(tok, ids, n_ids, round & 1, all, 1 << 20, &n_all), OK);
        struct detokenizer d;
        detokenizer_init(&d, tok, round & 1);
        for (int i = 0; i < n_ids; i++) {
            assert_int_equal(detokenizer_feed(&d, ids[i], parts + n_parts, max, &n), OK);
            n_parts += n;
        }
        assert_int_equal(detokenizer_flush(&d, parts + n_parts, DETOKENIZER_PENDING_MAX * 3, &n),
                         OK);
        n_parts += n;
        assert_int_equal(n_parts, n_all);
        assert_memory_equal(parts, all, (size_t)n_all);
    }
    free(all);
    free(parts);
    tokenizer_close(tok);
}

static void test_stream_is_decode(void **state)
{
    (void)state;
    stream_equals(spm_open(&(struct spm_made){0}), FIRST_BYTE + 256);
    stream_equals(spm_open(&(struct spm_made){.model = UNIGRAM, .trim = 1}), FIRST_BYTE + 256);
    stream_equals(text_open(METASPACE, TEXT_DECODER), 133);
    stream_equals(text_open(METASPACE, "{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\"}"),
                  133);
}

/* ---- what stays bounded ---- */

/* The work grows with the length of the text, not with its square: that would take hours, and
 * check.py ends such a test as failed. */
static void long_runs(struct tokenizer *tok)
{
    static const char *const units[] = {"a",        "b",     "ab",   " ",  " a",
                                        "\xc3\xa9", "<|x|>", "<|x|", "\n", SPACE};
    char *text = malloc(MIB);
    int64_t held = tokenizer_bytes(tok), n_ids;
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        int64_t n_unit = (int64_t)strlen(units[u]), n = MIB / 3 / n_unit * n_unit;
        for (int64_t i = 0; i < n; i += n_unit)
            memcpy(text + i, units[u], (size_t)n_unit);
        enum err e = tokenizer_encode(tok, text, n, 0, NULL, 0, &n_ids);
        assert_int_equal(e, n_ids > 0 ? ERR_ROW : OK); // no room for the ids, that is all
        assert_true(n_ids > 0 || *units[u] == ' ' || !strcmp(units[u], SPACE));
    }
    assert_true(tokenizer_bytes(tok) - held <= TOKEN_SCRATCH_BYTES);
    free(text);
    tokenizer_close(tok);
}

static void test_long_runs(void **state) // T10
{
    (void)state;
    static struct piece same[40]; // a, aa, ... as good as each other: candidates come twice
    static char all[40];
    memset(all, 'a', sizeof all);
    same[0] = usual[0];
    for (int i = 1; i < 39; i++) {
        char *text = malloc((size_t)i + 1);
        memcpy(text, all, (size_t)i);
        text[i] = '\0';
        same[i] = (struct piece){text, -1, NORMAL};
    }
    long_runs(spm_open(&(struct spm_made){0}));
    long_runs(spm_open(&(struct spm_made){.no_prefix = 1, .trim = 1}));
    long_runs(spm_open(&(struct spm_made){.pieces = same}));
    long_runs(spm_open(&(struct spm_made){.pieces = same, .model = UNIGRAM}));
    long_runs(text_open(METASPACE, TEXT_DECODER));
    for (int i = 1; i < 39; i++)
        free((void *)(uintptr_t)same[i].text);
}

/* ---- what is refused ---- */

static void test_pieces_refused(void **state)
{
    (void)state;
    static char large[600];
    static const struct {
        struct piece pieces[8];
        int no_bytes;
        const char *what;
    } cases[] = {
        {{{"<unk>", 0, UNKNOWN}, {"a", 0, NORMAL}, {"a", 0, NORMAL}}, 0, "the same text"},
        {{{"<unk>", 0, UNKNOWN}, {"a", 0, 7}}, 0, "token 1: unsupported type 7"},
        {{{"<unk>", 0, UNKNOWN}, {"a", 0, 0}}, 0, "unsupported type 0"},
        {{{"<unk>", 0, UNKNOWN}, {"a", NAN, NORMAL}}, 0, "token 1: its score is not a number"},
        {{{"<unk>", 0, UNKNOWN}, {"a", INFINITY, NORMAL}}, 0, "its score is not a number"},
        {{{"a", 0, NORMAL}}, 0, "no unknown piece"},
        {{{"<unk>", 0, UNKNOWN}, {"u", 0, UNKNOWN}}, 0, "a second unknown piece"},
        {{{"<unk>", 0, UNKNOWN}, {"", 0, NORMAL}, {"a", 0, NORMAL}}, 0, "piece: byte"},
        {{{"<unk>", 0, UNKNOWN}, {"\xff", 0, NORMAL}}, 0, "token 1 is not UTF-8"},
        {{{"<unk>", 0, UNKNOWN}, {"a", 0, UNUSED}}, 0, "unsupported unused piece"},
        {{{"<unk>", 0, UNKNOWN}, {"<0x00>", 0, BYTE}}, 1, "without byte_fallback"},
        {{{"<unk>", 0, UNKNOWN}, {"<0xG0>", 0, BYTE}}, 0, "not a byte <0xNN>"},
        {{{"<unk>", 0, UNKNOWN}, {"ab", 0, NORMAL}}, 0, "no token is a single character"},
        {{{"<unk>", 0, UNKNOWN}, {large, 0, NORMAL}}, 0, "unsupported token 1: 599 bytes"},
    };
    memset(large, 'x', sizeof large - 1);
    spm_make(&(struct spm_made){.no_bytes = 1, .says_bytes = 1});
    model_refused("byte_fallback without a token <0x00>");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct spm_made m = {.pieces = cases[i].pieces, .no_bytes = cases[i].no_bytes};
        void *blob;
        int64_t n;
        spm_make(&m);
        enum err e = model_build(&blob, &n);
        if (e != ERR_INPUT || !strstr(err_text(), cases[i].what))
            fail_msg("case %zu: expected '%s', got %d '%s'", i, cases[i].what, (int)e,
                     e ? err_text() : "");
    }
}

static void test_protobuf_refused(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        int n;
        const char *what;
    } cases[] = {
        {"\x0a\x05xx", 4, "model: byte 2: a field is longer"},
        {"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, "a field is longer"},
        {"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 11, "more than 64 bits"},
        {"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12, "more than 64 bits"},
        {"\x0a\x80", 2, "ends inside a number"},
        {"\x02\x01x", 3, "a field number is out of range"},
        {"\x82\x80\x80\x80\x80\x01\x00", 7, "a field number is out of range"},
        {"\x0b\x0c", 2, "a field has an unknown type"},
        {"\x0f", 1, "a field has an unknown type"},
        {"\x08\x01", 2, "a field has another type"},
        {"\x0a\x02\x08\x01", 4, "piece: byte 4: a field has another type"},
        {"\x0a\x06\x0a\x01y\x10\x01\x00", 8, "piece: byte 7: a field has another type"},
        {"\x0a\x02\x15\x00", 4, "piece: byte 3: ends inside a number"},
        {"\x12\x02\x18\x03", 4, "unsupported model_type 3"},
        {"\x12\x02\x1a\x00", 4, "trainer_spec: byte 4: a field has another type"},
        {"\x1a\x02\x10\x00", 4, "normalizer_spec: byte 4: a field has another type"},
        {"\x2a\x03\x12\x01x", 5, "unsupported denormalizer"},
        {"", 0, "no unknown piece"},
        {"\x31x", 2, "ends inside a number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        n_model = 0;
        put(cases[i].bytes, cases[i].n);
        model_refused(cases[i].what);
    }
    spm_make(&(struct spm_made){0}); // unknown fields of each type are nothing
    put_int(77, 5);
    put_bytes(78, "abc", 3);
    put("\x31xxxxxxxx\x35xxxx", 14);
    void *blob;
    int64_t n;
    assert_int_equal(model_build(&blob, &n), OK);
    free(blob);
}

static void test_tiktoken_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *what;
    } cases[] = {
        {"YQ== 0\nYg==\n", "line 2: 'Yg==' is not base64 and a rank"},
        {"YQ== 0\nYg== x\n", "line 2"},
        {"YQ== 0\nY!== 1\n", "line 2"},
        {"YQ== 0\n 1\n", "line 2"},
        {"YQ== 0\n== 1\n", "line 2"},
        {"YQ== 0\nYg== -1\n", "line 2"},
        {"YQ== 0\nYg== 99999999999\n", "line 2"},
        {"YQ== 0\nYg== 9999999999\n", "token id 9999999999 is out of range"},
        {"YQ== 0\nYg== 1000000\n", "token id 1000000 is out of range"},
        {"YQ== 0\nYg== 0\n", "token id 0 is used twice"},
        {"YQ== 0\nYQ== 1\n", "the same text"},
        {"YWI= 0\n", "no token is a single byte"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        n_model = 0;
        put(cases[i].text, (int64_t)strlen(cases[i].text));
        void *blob;
        int64_t n;
        enum err e = model_build(&blob, &n);
        if (e != ERR_INPUT || !strstr(err_text(), cases[i].what))
            fail_msg("expected '%s', got %d '%s'", cases[i].what, (int)e, e ? err_text() : "");
    }
    n_model = 0;
    put("YQ== 0\r\nYg== 1\n\nYWI= 5\nYmJh 3\n", 30);
    void *blob;
    int64_t n;
    struct tokenizer *tok;
    if (model_build(&blob, &n) != OK)
        fail_msg("%s", err_text());
    assert_int_equal(tokenizer_open(&tok, blob, n, "test"), OK);
    free(blob);
    expect_ids(tok, "abab b bba", 0, 6, 5, 5, 1, 1, 1, 0); // a space has no token
    expect_ids(tok, "bba", 1, 1, 3);                       // whole, and nothing merges to it
    tokenizer_close(tok);
}

/* Whatever an opened tokenizer was made from, using it stays inside its bounds. */
static void use(struct tokenizer *tok)
{
    static const char text[] = "  ab<|x|>abba <s> aaaa \xc3\xa9 \xef\xac\x81 a\xcc\x81 !? ";
    int32_t ids[512];
    char out[8192];
    int64_t n, n_out;
    tokenizer_limit(tok, MIB);
    if (tokenizer_encode(tok, text, sizeof text - 1, 1, ids, 512, &n) == OK)
        tokenizer_decode(tok, ids, n, 1, out, sizeof out, &n_out);
    struct detokenizer d;
    detokenizer_init(&d, tok, 0);
    for (int32_t id = -1; id < 300; id++)
        detokenizer_feed(&d, id, out, sizeof out, &n_out);
    detokenizer_flush(&d, out, sizeof out, &n_out);
}

/* A table whose one rule is "a" -> "ab": the unit at 0 points to 'a' ^ 0x100, that to its value. */
static const char *table_make(int *n)
{
    static char table[4 + 0x400 * 4 + 16];
    uint32_t n_trie = 0x400 * 4, root = 0x100u << 10, leaf = 0x61u << 10 | 1 << 8 | 'a';
    uint32_t value = 1u << 31 | 1;
    memcpy(table, &n_trie, 4);
    memcpy(table + 4, &root, 4);
    memcpy(table + 4 + 4 * (0x100 ^ 'a'), &leaf, 4);
    memcpy(table + 4 + 4 * (0x100 ^ 'a' ^ 0x61), &value, 4);
    memcpy(table + 4 + n_trie, "\0ab\0", 4);
    *n = 4 + (int)n_trie + 4;
    return table;
}

static void hostile(struct spm_made m)
{
    void *blob;
    int64_t n;
    struct tokenizer *tok;
    spm_make(&m);
    int64_t n_whole = n_model;
    static uint8_t whole[sizeof model];
    memcpy(whole, model, (size_t)n_whole);
    for (int64_t cut = 0; cut < n_whole; cut += 1 + cut / 40) { // refused, or sound so far
        n_model = cut;
        if (model_build(&blob, &n) == OK) {
            assert_int_equal(tokenizer_open(&tok, blob, n, "cut"), OK);
            tokenizer_close(tok);
            free(blob);
        }
    }
    uint64_t seed = 5;
    int n_built = 0;
    for (int round = 0; round < 1500; round++) {
        memcpy(model, whole, (size_t)n_whole);
        n_model = n_whole;
        for (int k = 0; k < 1 + round % 3; k++) {
            seed = mix64(seed);
            model[(seed >> 8) % (uint64_t)(round % 2 ? n_whole : min_i64(n_whole, 200))] =
                (uint8_t)seed;
        }
        enum err e = model_build(&blob, &n);
        n_built += build_opens(e, blob, n, use);
    }
    memcpy(model, whole, (size_t)n_whole);
    n_model = n_whole;
    assert_int_equal(model_build(&blob, &n), OK);
    uint8_t *bad = malloc((size_t)n);
    int n_opened = 0;
    for (int round = 0; round < 6000; round++) {
        memcpy(bad, blob, (size_t)n);
        for (int k = 0; k < 1 + round % 2; k++) {
            seed = mix64(seed);
            bad[(seed >> 8) % (uint64_t)(round % 3 ? n : 160)] ^= (uint8_t)(seed | 1);
        }
        n_opened += blob_opens(bad, n, use);
    }
    print_message("%d of 1500 files built, %d of 6000 blobs open\n", n_built, n_opened);
    assert_true(n_built > 20 && n_opened > 100 && n_opened < 5900);
    free(bad);
    free(blob);
}

static void test_hostile(void **state)
{
    (void)state;
    int n;
    const char *table = table_make(&n);
    hostile((struct spm_made){0});
    hostile((struct spm_made){.model = UNIGRAM, .trim = 1, .charsmap = table, .n_charsmap = n});
    struct tokenizer *tok = spm_open(&(struct spm_made){.charsmap = table, .n_charsmap = n});
    expect_ids(tok, "ab<|x|>b", 0, 4, 4, 11, 3, 6);
    tokenizer_close(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merge_order),      cmocka_unit_test(test_encode),
        cmocka_unit_test(test_prefix_rules),     cmocka_unit_test(test_decode),
        cmocka_unit_test(test_text_json),        cmocka_unit_test(test_stream_is_decode),
        cmocka_unit_test(test_long_runs),        cmocka_unit_test(test_pieces_refused),
        cmocka_unit_test(test_protobuf_refused), cmocka_unit_test(test_tiktoken_refused),
        cmocka_unit_test(test_hostile),
    };
    return cmocka_run_group_tests(tests, temp_dir_setup, temp_dir_teardown);
}
