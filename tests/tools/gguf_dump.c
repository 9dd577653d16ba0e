/* tests/tools/gguf_dump.c - what the GGUF reader sees, for scripts that compare.
 *
 *   gguf_dump FILE                    one line per tensor: NAME FORMAT DIM[xDIM...] FILE_INDEX
 * BYTES gguf_dump FILE data NAME          the tensor's bytes gguf_dump FILE f32 NAME           its
 * numbers, decoded row by row gguf_dump FILE int|float|bool|str|strs|i32s|f32s KEY    one line per
 * value; strings end with NUL Exit code: that of the error, with its line on stderr; 3 when there
 * is no such key or tensor. */
#include "engine/model/containers/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { ABSENT = 3 };

static void list(const struct gguf *g)
{
    int64_t n;
    const struct source_tensor *t = gguf_tensors(g, &n);
    for (int64_t i = 0; i < n; i++, t++) {
        printf("%s %s ", t->name, dtype_info(t->dtype)->name);
        for (int d = 0; d < t->n_dims; d++)
            printf("%s%" PRId64, d ? "x" : "", t->dims[d]);
        printf(" %d %" PRId64 "\n", t->file, t->n_bytes);
    }
}

static enum err tensor_put(const struct gguf *g, const char *name, int decode, int *found)
{
    const struct source_tensor *t = gguf_find(g, name);
    *found = t != NULL;
    if (!t)
        return OK;
    const int64_t k = t->dims[t->n_dims - 1], row_bytes = dtype_row_bytes(t->dtype, k);
    uint8_t *row = malloc((size_t)row_bytes);
    float *numbers = malloc((size_t)k * sizeof *numbers);
    enum err e = OK;
    CHECK(row && numbers);
    for (int64_t at = 0; at < t->n_bytes && e == OK; at += row_bytes) {
        e = gguf_read(g, t, at, row_bytes, row);
        if (e == OK && decode) {
            dtype_decode_row(t->dtype, row, k, numbers);
            fwrite(numbers, sizeof *numbers, (size_t)k, stdout);
        } else if (e == OK) {
            fwrite(row, 1, (size_t)row_bytes, stdout);
        }
    }
    free(row);
    free(numbers);
    return e;
}

static enum err scalar_put(const struct gguf *g, const char *what, const char *key, int *found)
{
    int64_t i = 0;
    double f = 0.0;
    int b = 0;
    const char *s = "";
    if (strcmp(what, "int") == 0) {
        TRY(gguf_int(g, key, INT64_MIN, INT64_MAX, &i, found));
        printf("%" PRId64 "\n", i);
    } else if (strcmp(what, "float") == 0) {
        TRY(gguf_float(g, key, &f, found));
        printf("%.17g\n", f);
    } else if (strcmp(what, "bool") == 0) {
        TRY(gguf_bool(g, key, &b, found));
        printf("%d\n", b);
    } else {
        TRY(gguf_str(g, key, &s, &i, found));
        fwrite(s, 1, (size_t)i + 1, stdout); // with its NUL
    }
    return OK;
}

static enum err array_put(const struct gguf *g, const char *what, const char *key, int *found)
{
    struct gguf_strings s = {0};
    struct gguf_numbers a = {0};
    const char *text;
    int64_t n;
    if (strcmp(what, "strs") == 0) {
        TRY(gguf_str_array(g, key, &s, found));
        while ((text = gguf_strings_next(&s, &n))) {
            fwrite(text, 1, (size_t)n, stdout);
            putchar(0);
        }
    } else if (strcmp(what, "i32s") == 0) {
        TRY(gguf_i32_array(g, key, &a, found));
        for (int64_t i = 0; i < a.n; i++)
            printf("%d\n", gguf_i32_at(&a, i));
    } else {
        TRY(gguf_f32_array(g, key, &a, found));
        for (int64_t i = 0; i < a.n; i++)
            printf("%.9g\n", (double)gguf_f32_at(&a, i));
    }
    return OK;
}

static enum err dump(const struct gguf *g, const char *what, const char *name, int *found)
{
    if (strcmp(what, "data") == 0 || strcmp(what, "f32") == 0)
        return tensor_put(g, name, what[0] == 'f', found);
    if (strcmp(what, "strs") == 0 || strcmp(what, "i32s") == 0 || strcmp(what, "f32s") == 0)
        return array_put(g, what, name, found);
    return scalar_put(g, what, name, found);
}

int main(int argc, char **argv)
{
    struct gguf *g;
    int found = 1;
    if (argc != 2 && argc != 4) {
        fprintf(stderr, "usage: gguf_dump FILE [WHAT NAME]\n");
        return ERR_USAGE;
    }
    enum err e = gguf_open(&g, argv[1]);
    if (e == OK && argc == 2)
        list(g);
    else if (e == OK)
        e = dump(g, argv[2], argv[3], &found);
    if (e != OK)
        fprintf(stderr, "%s\n", err_text());
    gguf_close(g);
    return e != OK ? (int)e : fflush(stdout) ? ERR_IO : found ? OK : ABSENT;
}
