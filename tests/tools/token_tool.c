/* tests/tools/token_tool.c - drives the tokenizer from a script.
 *
 *     token_tool MODEL [--special] [--decode] < rows
 *
 * MODEL: a Hugging Face directory, or a GGUF file. A row is one JSON line: a string, answered by
 * its ids as a JSON list ("error TEXT" where encode refuses), or under --decode a list of ids,
 * answered by the text as a JSON string, once from tokenizer_decode and once, after a tab, from the
 * streaming detokenizer. --special: encode adds what the tokenizer adds by itself; decode skips
 * special tokens. --info: no rows; one JSON object with what is known about the vocabulary. */
#include "engine/text/token.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct buffer {
    void *p;
    int64_t cap;
};

static void *room(struct buffer *b, int64_t n)
{
    if (n > b->cap) {
        b->p = realloc(b->p, (size_t)n);
        b->cap = n;
        CHECK(b->p);
    }
    return b->p;
}

static void row_encode(struct tokenizer *tok, const json_t *row, int special, struct buffer *ids)
{
    const char *text = json_string_value(row);
    int64_t n = (int64_t)json_string_length(row), n_ids;
    enum err e = tokenizer_encode(tok, text, n, special, ids->p, ids->cap / 4, &n_ids);
    if (e == ERR_ROW && n_ids > ids->cap / 4) // there was no room for all of them
        e = tokenizer_encode(tok, text, n, special, room(ids, n_ids * 4), n_ids, &n_ids);
    if (e != OK) {
        printf("error %s\n", err_text());
        return;
    }
    const int32_t *out = ids->p;
    putchar('[');
    for (int64_t i = 0; i < n_ids; i++)
        printf(i ? ",%d" : "%d", out[i]);
    puts("]");
}

static void text_print(const char *text, int64_t n)
{
    json_t *s = json_stringn(text, (size_t)n);
    CHECK(s); // what decode returns is always UTF-8
    json_dumpf(s, stdout, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    json_decref(s);
}

static int64_t row_stream(struct tokenizer *tok, const int32_t *ids, int64_t n, int special,
                          char *out, int64_t cap)
{
    struct detokenizer d;
    int64_t n_out = 0, n_more;
    detokenizer_init(&d, tok, special);
    for (int64_t i = 0; i < n; i++) {
        CHECK(detokenizer_feed(&d, ids[i], out + n_out, cap - n_out, &n_more) == OK);
        n_out += n_more;
    }
    CHECK(detokenizer_flush(&d, out + n_out, cap - n_out, &n_more) == OK);
    return n_out + n_more;
}

static void row_decode(struct tokenizer *tok, const json_t *row, int special, struct buffer *ids,
                       struct buffer *text)
{
    int64_t n = (int64_t)json_array_size(row), n_text;
    int32_t *in = room(ids, (n + 1) * 4);
    for (int64_t i = 0; i < n; i++)
        in[i] = (int32_t)json_integer_value(json_array_get(row, (size_t)i));
    CHECK(tokenizer_decode(tok, in, n, special, NULL, 0, &n_text) == OK || n_text > 0);
    int64_t cap = n_text + 3;
    char *out = room(text, cap);
    CHECK(tokenizer_decode(tok, in, n, special, out, cap, &n_text) == OK);
    text_print(out, n_text);
    putchar('\t');
    text_print(out, row_stream(tok, in, n, special, out, cap));
    putchar('\n');
}

static void info_print(struct tokenizer *tok, int64_t blob_bytes)
{
    int n_stops;
    int64_t n_template, n_bos, n_eos;
    const int32_t *stops = tokenizer_stops(tok, &n_stops);
    const char *chat_template = tokenizer_template(tok, &n_template);
    const char *bos = tokenizer_bos_text(tok, &n_bos), *eos = tokenizer_eos_text(tok, &n_eos);
    json_t *list = json_array();
    for (int i = 0; i < n_stops; i++)
        json_array_append_new(list, json_integer(stops[i]));
    json_t *o =
        json_pack("{s:i,s:i,s:i,s:b,s:o,s:o,s:o,s:o,s:I,s:I}", "vocab", tokenizer_vocab(tok), "bos",
                  tokenizer_bos(tok), "eos", tokenizer_eos(tok), "adds_bos",
                  tokenizer_adds_bos(tok), "stops", list, "template",
                  chat_template ? json_stringn(chat_template, (size_t)n_template) : json_null(),
                  "bos_text", bos ? json_stringn(bos, (size_t)n_bos) : json_null(), "eos_text",
                  eos ? json_stringn(eos, (size_t)n_eos) : json_null(), "bytes",
                  (json_int_t)tokenizer_bytes(tok), "blob_bytes", (json_int_t)blob_bytes);
    CHECK(o);
    json_dumpf(o, stdout, 0);
    putchar('\n');
    json_decref(o);
}

static enum err blob_build(const char *path, void **blob, int64_t *n_bytes)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) // a tokenizer without weights will do
        return token_build_dir(path, blob, n_bytes);
    struct source s;
    TRY(source_open(&s, path));
    enum err e = token_build(&s, blob, n_bytes);
    source_close(&s);
    return e;
}

int main(int argc, char **argv)
{
    int special = 0, decode = 0, info = 0;
    if (argc < 2)
        return 2;
    for (int i = 2; i < argc; i++) {
        special |= !strcmp(argv[i], "--special");
        decode |= !strcmp(argv[i], "--decode");
        info |= !strcmp(argv[i], "--info");
    }
    void *blob = NULL;
    int64_t n_bytes = 0;
    struct tokenizer *tok = NULL;
    enum err e = blob_build(argv[1], &blob, &n_bytes);
    if (e == OK)
        e = tokenizer_open(&tok, blob, n_bytes, argv[1]);
    free(blob);
    if (e != OK) {
        fprintf(stderr, "%s\n", err_text());
        return (int)e;
    }
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    struct buffer ids = {0}, text = {0};
    while (!info && (n = getline(&line, &cap, stdin)) > 0) {
        json_t *row = json_loadb(line, (size_t)n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        if (decode && json_is_array(row))
            row_decode(tok, row, special, &ids, &text);
        else if (!decode && json_is_string(row))
            row_encode(tok, row, special, &ids);
        else
            puts("error bad row");
        json_decref(row);
    }
    if (info)
        info_print(tok, n_bytes);
    free(line);
    free(ids.p);
    free(text.p);
    tokenizer_close(tok);
    return 0;
}
