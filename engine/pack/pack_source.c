/* engine/pack/pack_source.c - the provider over a model file: rows by role, in the order we compute
 * in.
 *
 * Owns: the family's findings. Refuses: conversion (the writer does it).
 * A newcomer would miss: rows of q and k of a GGUF llama are read one by one, because the file
 * holds them in another order (family_source_row). */
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

static enum err file_rows(void *impl, enum tensor_role role, int layer, int first, int n, void *out)
{
    const struct file_provider *f = impl;
    const struct source_tensor *t = tensor_of(f, role, layer);
    int64_t row_bytes = dtype_row_bytes(t->dtype, t->dims[1]);
    CHECK(first >= 0 && n >= 0 && first + (int64_t)n <= t->dims[0]);
    if (family_source_row(&f->family, role, 1) == 1)
        return source_read(f->source, t, first * row_bytes, n * row_bytes, out);
    for (int i = 0; i < n; i++) {
        int64_t row = family_source_row(&f->family, role, first + i);
        TRY(source_read(f->source, t, row * row_bytes, row_bytes, (uint8_t *)out + i * row_bytes));
    }
    return OK;
}

static enum err file_vector(void *impl, enum tensor_role role, int layer, int n, float *out)
{
    const struct file_provider *f = impl;
    const struct source_tensor *t = tensor_of(f, role, layer);
    uint8_t *raw = malloc((size_t)t->n_bytes);
    float *numbers = malloc((size_t)n * sizeof *numbers);
    enum err e = raw && numbers ? source_read(f->source, t, 0, t->n_bytes, raw)
                                : fail(ERR_FIT, "memory: no room for %s", t->name);
    if (e == OK) {
        dtype_decode_row(t->dtype, raw, n, numbers);
        for (int i = 0; i < n; i++)
            out[i] = numbers[family_source_row(&f->family, role, i)];
    }
    free(raw);
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
