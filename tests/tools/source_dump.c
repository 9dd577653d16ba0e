/* tests/tools/source_dump.c - prints what source_open sees of a model, for comparison with other
 * readers: one line per tensor (name, format, dims, CRC32C of its bytes, "-" where it cannot be
 * read), tab-separated, then one line per KEY given: its value as the first getter that fits has
 * it.
 *
 *     source_dump MODEL [KEY...]      exit code: as sluice's
 *     source_dump MODEL --f32 NAME    the numbers of one tensor instead, a quantised matrix too */
#include "engine/model/containers/hf.h"
#include "engine/model/containers/source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum err tensor_crc(const struct source *s, const struct source_tensor *t, uint32_t *crc)
{
    static uint8_t piece[PIECE_BYTES];
    *crc = 0;
    for (int64_t at = 0; at < t->n_bytes; at += PIECE_BYTES) {
        int64_t n = min_i64(PIECE_BYTES, t->n_bytes - at);
        TRY(source_read(s, t, at, n, piece));
        *crc = crc32c(*crc, piece, n);
    }
    return OK;
}

static enum err tensor_print(const struct source *s, const struct source_tensor *t)
{
    printf("tensor\t%s\t%s\t[", t->name, source_format(s, t));
    for (int i = 0; i < t->n_dims; i++)
        printf("%s%" PRId64, i ? ", " : "", t->dims[i]);
    if (t->dtype == N_DTYPES) {
        printf("]\t-\n");
        return OK;
    }
    uint32_t crc;
    TRY(tensor_crc(s, t, &crc));
    printf("]\t%08" PRIx32 "\n", crc);
    return OK;
}

static enum err key_print(const struct source *s, const char *key)
{
    int64_t i = 0, n;
    double f;
    int b, found;
    const char *str;
    printf("value\t%s\t", key);
    if (source_int(s, key, INT64_MIN, INT64_MAX, &i, &found) == OK)
        return printf(found ? "int %" PRId64 "\n" : "absent\n", i) < 0 ? ERR_IO : OK;
    if (source_float(s, key, &f, &found) == OK)
        return printf("float %.17g\n", f) < 0 ? ERR_IO : OK;
    if (source_bool(s, key, &b, &found) == OK)
        return printf("bool %d\n", b) < 0 ? ERR_IO : OK;
    TRY(source_str(s, key, &str, &n, &found));
    return printf("str %s\n", str) < 0 ? ERR_IO : OK;
}

static enum err dump(const struct source *s, int n_keys, char **keys)
{
    for (int64_t i = 0; i < s->n_tensors; i++)
        TRY(tensor_print(s, &s->tensors[i]));
    for (int i = 0; i < n_keys; i++)
        TRY(key_print(s, keys[i]));
    return OK;
}

/* Rows, in runs of seven from the last one on: whoever keeps rows has to find the right ones. */
static enum err numbers_print(const struct source *s, const char *name)
{
    const struct source_tensor *t = source_find(s, name);
    if (!t)
        return fail(ERR_INPUT, "tensor %s: missing", name);
    const int64_t k = t->n_dims > 0 ? t->dims[t->n_dims - 1] : 1;
    const int64_t row_bytes = dtype_row_bytes(t->dtype, k), n = t->n_bytes / row_bytes;
    uint8_t *rows = malloc((size_t)(7 * row_bytes));
    float *numbers = malloc((size_t)(n * k) * sizeof *numbers);
    enum err e = rows && numbers ? OK : fail(ERR_FIT, "no memory");
    for (int64_t end = n; e == OK && end > 0; end -= 7) {
        const int64_t first = max_i64(end - 7, 0);
        e = source_read(s, t, first * row_bytes, (end - first) * row_bytes, rows);
        for (int64_t i = first; e == OK && i < end; i++)
            dtype_decode_row(t->dtype, rows + (i - first) * row_bytes, k, numbers + i * k);
    }
    if (e == OK)
        fwrite(numbers, sizeof *numbers, (size_t)(n * k), stdout);
    free(rows);
    free(numbers);
    return e;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "source_dump MODEL [KEY...]\n");
        return ERR_USAGE;
    }
    struct source s;
    enum err e = source_open(&s, argv[1]);
    if (e == OK && argc == 4 && strcmp(argv[2], "--f32") == 0)
        e = numbers_print(&s, argv[3]);
    else if (e == OK)
        e = dump(&s, argc - 2, argv + 2);
    if (e != OK)
        fprintf(stderr, "source_dump: error: %s\n", err_text());
    source_close(&s);
    return (int)e;
}
