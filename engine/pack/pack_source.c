/* engine/pack/pack_source.c - the provider over a model file: rows by role, in the order we compute
 * in.
 *
 * Owns: the family's findings. Refuses: conversion (the writer does it).
 * A newcomer would miss: rows of q and k of a GGUF llama are read one by one, because the file
 * holds them in another order, and those of fused matrices from within one (family_source_row). */
#include "engine/source/family.h"
#include "engine/pack/pack.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct file_provider {
    struct family_model family;
    const struct source *source; // borrowed
    char name[NAME_MAX + 1];
};

static const struct source_tensor *tensor_of(const struct file_provider *f, enum tensor_role role,
                                             int layer)
{
    const struct source_tensor *t = family_tensor(&f->family, f->source, role, layer);
    CHECK(t != NULL); // family_read has seen them all
    return t;
}

static enum dtype file_dtype(void *impl, enum tensor_role role, int layer)
{
    return tensor_of(impl, role, layer)->dtype;
}

/* n outputs that follow each other in a matrix that stands as [inputs, outputs]. */
static enum err read_columns(const struct file_provider *f, const struct source_tensor *t,
                             int64_t first, int64_t n, uint8_t *out)
{
    const int64_t size = dtype_row_bytes(t->dtype, 1), row_bytes = size * t->dims[0];
    uint8_t *input = malloc((size_t)(n * size));
    enum err e = input ? OK : fail(ERR_FIT, "memory: no room for %s", t->name);
    for (int64_t k = 0; k < t->dims[0] && e == OK; k++) {
        e = source_read(f->source, t, (k * t->dims[1] + first) * size, n * size, input);
        for (int64_t i = 0; i < n && e == OK; i++)
            memcpy(out + i * row_bytes + k * size, input + i * size, (size_t)size);
    }
    free(input);
    return e;
}

/* Rows that follow each other in the file go together. */
static enum err file_rows(void *impl, enum tensor_role role, int layer, int first, int n, void *out)
{
    const struct file_provider *f = impl;
    const struct family_model *m = &f->family;
    const struct source_tensor *t = tensor_of(f, role, layer);
    const int turned = (m->transposed & ROLE_BIT(role)) != 0;
    const int64_t row_bytes = dtype_row_bytes(t->dtype, t->dims[!turned]);
    for (int i = 0, run; i < n; i += run) {
        const int64_t row = family_source_row(m, role, first + i);
        for (run = 1; i + run < n; run++)
            if (family_source_row(m, role, first + i + run) != row + run)
                break;
        uint8_t *to = (uint8_t *)out + i * row_bytes;
        CHECK(row >= 0 && row + run <= t->dims[turned]);
        TRY(turned ? read_columns(f, t, row, run, to)
                   : source_read(f->source, t, row * row_bytes, run * row_bytes, to));
    }
    return OK;
}

/* One tensor of numbers, whatever its dimensions. */
static enum err read_numbers(const struct file_provider *f, const struct source_tensor *t,
                             float *numbers)
{
    const int64_t n = t->n_dims == 2 ? t->dims[0] * t->dims[1] : t->dims[0];
    uint8_t *raw = malloc((size_t)t->n_bytes);
    enum err e = raw ? source_read(f->source, t, 0, t->n_bytes, raw)
                     : fail(ERR_FIT, "memory: no room for %s", t->name);
    if (e == OK)
        dtype_decode_row(t->dtype, raw, n, numbers);
    free(raw);
    return e;
}

static enum err file_vector(void *impl, enum tensor_role role, int layer, int n, float *out)
{
    const struct file_provider *f = impl;
    const struct family_model *m = &f->family;
    const int parts = family_parts(m, role);
    const int64_t all = m->cut[role].rows > 0 ? m->cut[role].rows : n;
    float *numbers = malloc((size_t)all * sizeof *numbers);
    enum err e = numbers ? OK : fail(ERR_FIT, "memory: no room for %s", role_name(role));
    for (int part = 0; part < parts && e == OK; part++)
        e = read_numbers(f, family_part(m, f->source, role, layer, part),
                         numbers + part * (all / parts));
    for (int i = 0; i < n && e == OK; i++)
        out[i] =
            numbers[family_source_row(m, role, i)] + ((m->plus_one & ROLE_BIT(role)) ? 1.0f : 0.0f);
    free(numbers);
    return e;
}

/* "a/b/model.gguf" -> "model". */
static void name_of(const char *path, char *name, int64_t name_bytes)
{
    int64_t end = (int64_t)strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    int64_t start = end;
    while (start > 0 && path[start - 1] != '/')
        start--;
    if (end - start > 5 && memcmp(path + end - 5, ".gguf", 5) == 0)
        end -= 5;
    int64_t n = min_i64(end - start, name_bytes - 1);
    memcpy(name, path + start, (size_t)n);
    name[n] = 0;
}

enum err pack_source_open(struct pack_provider *p, const struct source *source)
{
    *p = (struct pack_provider){0};
    struct file_provider *f = calloc(1, sizeof *f);
    if (!f)
        return fail(ERR_FIT, "memory: no room for %s", source->path);
    f->source = source;
    enum err e = family_read(&f->family, source);
    if (e != OK) {
        free(f);
        return e;
    }
    name_of(source->path, f->name, sizeof f->name);
    *p = (struct pack_provider){
        .shape = f->family.shape,
        .roles = f->family.roles,
        .tied = f->family.tied,
        .name = f->name,
        .impl = f,
        .dtype = file_dtype,
        .rows = file_rows,
        .vector = file_vector,
    };
    return OK;
}

void pack_source_close(struct pack_provider *p)
{
    free(p->impl);
    *p = (struct pack_provider){0};
}
