/* tests/fuzz/fuzz_gguf.c - a GGUF file: opened, asked for every kind of value, taken for a model of
 * a family, its tokenizer built. */
#include "engine/model/containers/gguf.h"
#include "engine/model/pack.h"
#include "engine/text/token.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

#define PATH FUZZ_DIR "/m.gguf"

static void values_ask(const struct gguf *g)
{
    static const char *const keys[] = {"a", "general.architecture", "tokenizer.ggml.tokens",
                                       "tokenizer.ggml.scores", "tokenizer.ggml.token_type"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int64_t x, n;
        double d;
        int b, found;
        const char *s;
        struct gguf_strings strings;
        struct gguf_numbers numbers;
        (void)gguf_int(g, keys[i], INT64_MIN, INT64_MAX, &x, &found);
        (void)gguf_float(g, keys[i], &d, &found);
        if (gguf_bool(g, keys[i], &b, &found) == OK && found)
            CHECK(b == 0 || b == 1);
        if (gguf_str(g, keys[i], &s, &n, &found) == OK && found)
            CHECK(s[n] == 0);
        if (gguf_str_array(g, keys[i], &strings, &found) == OK && found)
            while ((s = gguf_strings_next(&strings, &n)))
                fuzz_touch(s, n);
        if (gguf_i32_array(g, keys[i], &numbers, &found) == OK && found)
            fuzz_touch(numbers.bytes, 4 * numbers.n);
        if (gguf_f32_array(g, keys[i], &numbers, &found) == OK && found)
            fuzz_touch(numbers.bytes, 4 * numbers.n);
    }
}

static void tensors_read(const struct source *s)
{
    for (int64_t i = 0; i < s->n_tensors && i < 64; i++) {
        const struct source_tensor *t = &s->tensors[i];
        const int64_t row_bytes = dtype_row_bytes(t->dtype, t->dims[t->n_dims - 1]);
        const int may_fail = t->dtype == DTYPE_NV4_64 || t->dtype == DTYPE_NV4_256; // its scales
        uint8_t *row = malloc((size_t)row_bytes); // no more than the file has, but for those
        CHECK(source_find(s, t->name) == t && row);
        const enum err e = source_read(s, t, t->n_bytes - row_bytes, row_bytes, row);
        CHECK(e == OK || (may_fail && e == ERR_INPUT));
        free(row);
    }
}

static void one(const uint8_t *data, size_t n)
{
    struct source s;
    struct pack_provider p;
    void *blob;
    int64_t n_blob;
    fuzz_file("m.gguf", data, n);
    if (source_open(&s, PATH) != OK) {
        source_close(&s);
        return;
    }
    values_ask(s.impl);
    tensors_read(&s);
    if (pack_source_open(&p, &s) == OK) {
        fuzz_provider_use(&p);
        pack_source_close(&p);
    }
    if (token_build(&s, &blob, &n_blob) == OK) {
        struct tokenizer *tok;
        CHECK(tokenizer_open(&tok, blob, n_blob, "blob") == OK);
        fuzz_tokenizer_use(tok, "a b<|end|>", 10);
        tokenizer_close(tok);
        free(blob);
    }
    source_close(&s);
}

const struct fuzz_target fuzz_gguf = {.name = "gguf", .one = one};
