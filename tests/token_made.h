/* tests/token_made.h - small tokenizer.json files and what tests ask of them. Include after
 * cmocka.h.
 */
#ifndef TESTS_TOKEN_MADE_H
#define TESTS_TOKEN_MADE_H

#include "tests/temp_dir.h"

#define MIB        (1 << 20)
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define SPLIT(p)                                                                                   \
    "{\"type\":\"Split\",\"pattern\":" p ",\"behavior\":\"Isolated\",\"invert\":false}"
#define BOTH(p)    "{\"type\":\"Sequence\",\"pretokenizers\":[" p "," BYTE_LEVEL "]}"

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

static inline void json_put(const char *s)
{
    size_t n = strlen(s);
    assert_true(n_json + (int64_t)n < (int64_t)sizeof json_text);
    memcpy(json_text + n_json, s, n + 1);
    n_json += (int64_t)n;
}

/* The character that stands for a byte, as JSON. */
static inline void json_put_byte(int b)
{
    int printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    int others = 0;
    for (int k = 0; k < b; k++)
        others += !((k >= 33 && k <= 126) || (k >= 161 && k <= 172) || k >= 174);
    char text[16];
    snprintf(text, sizeof text, "\\u%04x", (unsigned)(printable ? b : 256 + others));
    json_put(text);
}

static inline const char *or_else(const char *s, const char *otherwise)
{
    return s ? s : otherwise;
}

/* ids 0..255 are the bytes; he 256, ll 257, hell 258, hello 259. */
static inline void json_make(const struct made *m)
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

static inline enum err json_build(void **blob, int64_t *n_bytes)
{
    temp_write("tokenizer.json", json_text, n_json);
    return token_build_dir(temp_dir, blob, n_bytes);
}

static inline struct tokenizer *tokenizer_make(const struct made *m)
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
static inline void refused(const struct made *m, const char *what)
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

static inline void expect_ids(struct tokenizer *tok, const char *text, int add_special, int n, ...)
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

static inline void expect_text(const struct tokenizer *tok, const int32_t *ids, int64_t n, int skip,
                               const char *text)
{
    char out[4096];
    int64_t n_out;
    assert_int_equal(tokenizer_decode(tok, ids, n, skip, out, sizeof out - 1, &n_out), OK);
    out[n_out] = '\0';
    assert_string_equal(out, text);
}

/* ---- damage ---- */

/* 1: a blob that may be damaged was opened, and used as a sound one is; 0: it was refused. */
static inline int blob_opens(const void *blob, int64_t n, void (*use)(struct tokenizer *))
{
    struct tokenizer *tok;
    enum err e = tokenizer_open(&tok, blob, n, "bad.pack");
    assert_true(e == OK || e == ERR_CORRUPT);
    if (e == OK)
        use(tok);
    tokenizer_close(tok);
    return e == OK;
}

/* 1: the build that gave `e` made a blob, which was opened, used and freed; 0: it was refused. */
static inline int build_opens(enum err e, void *blob, int64_t n, void (*use)(struct tokenizer *))
{
    assert_true(e == OK || e == ERR_INPUT);
    if (e != OK)
        return 0;
    assert_true(blob_opens(blob, n, use));
    free(blob);
    return 1;
}

#endif
