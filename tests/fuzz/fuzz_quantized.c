/* tests/fuzz/fuzz_quantized.c - a quantised checkpoint: config.json, the header of its safetensors
 * file (two parts of the input) and the data of the tensors; every matrix found, rows of it read.
 */
#include "engine/model/containers/quantized.h"
#include "engine/model/containers/source.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX (1 << 17)

/* First and last row of the matrix that a tensor may be a part of. */
static void rows_read(const struct source *s, const char *name)
{
    const struct source_tensor *t = source_find(s, name);
    if (!t || !quantized_has(t))
        return;
    int64_t n = 1;
    for (int i = 0; i < t->n_dims - 1; i++)
        n *= t->dims[i];
    const int64_t k = t->dims[t->n_dims - 1], row_bytes = dtype_row_bytes(t->dtype, k);
    CHECK(n > 0 && row_bytes > 0 && t->n_bytes == n * row_bytes);
    uint8_t *row = malloc((size_t)row_bytes);
    float *numbers = malloc((size_t)k * sizeof *numbers);
    CHECK(row && numbers);
    for (int64_t i = 0; i < n; i += max_i64(n - 1, 1))
        if (source_read(s, t, i * row_bytes, row_bytes, row) == OK) {
            dtype_decode_row(t->dtype, row, k, numbers);
            fuzz_touch(numbers, k * (int64_t)sizeof *numbers);
        }
    free(row);
    free(numbers);
}

static void matrix_find(const struct source *s, const char *name, const char *tail, const char *as)
{
    char matrix[256];
    const size_t n = strlen(name), n_tail = strlen(tail);
    if (n < n_tail || n > 200 || strcmp(name + n - n_tail, tail) != 0)
        return;
    snprintf(matrix, sizeof matrix, "%.*s%s", (int)(n - n_tail), name, as);
    rows_read(s, matrix);
}

static void one(const uint8_t *data, size_t n)
{
    static uint8_t file[FILE_MAX];
    const uint8_t *at = data, *end = data + n, *text;
    size_t n_text;
    struct source s;
    text = fuzz_part(&at, end, &n_text);
    fuzz_file("config.json", text, n_text);
    text = fuzz_part(&at, end, &n_text);
    const uint64_t n_header = n_text, n_data = (uint64_t)(end - at);
    if (8 + n_header + n_data > FILE_MAX)
        return;
    memcpy(file, &n_header, 8);
    memcpy(file + 8, text, n_text);
    memcpy(file + 8 + n_text, at, n_data);
    fuzz_file("model.safetensors", file, 8 + n_text + n_data);
    if (source_open(&s, FUZZ_DIR) == OK)
        for (int64_t i = 0; i < s.n_tensors; i++) {
            matrix_find(&s, s.tensors[i].name, "", "");
            matrix_find(&s, s.tensors[i].name, ".qweight", ".weight");
            matrix_find(&s, s.tensors[i].name, "_blocks", "");
        }
    source_close(&s);
}

const struct fuzz_target fuzz_quantized = {.name = "quantized", .one = one};
