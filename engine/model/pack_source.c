/* engine/model/pack_source.c - the provider for a model file: rows by role, in sluice's row order.
 *
 * Owns: the result of family_read. Refuses: conversion (the writer). Note: rows of q and k of a
 * GGUF llama, whose file has another order, and rows of fused matrices are read one by one
 * (family_source_row); rows of several tensors (experts) form one role. */
#include "engine/model/families/family.h"
#include "engine/model/pack.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct file_provider {
    struct family_model family;
    const struct source *source; // borrowed
    char name[NAME_MAX + 1];
    /* Cache of the last transposed matrix, whole. */
    const struct source_tensor *held_of; // NULL: none
    int64_t held_at;
    uint8_t *held; // owned
};

static const struct source_tensor *tensor_of(const struct file_provider *f, enum tensor_role role,
                                             int layer)
{
    const struct source_tensor *t = family_tensor(&f->family, f->source, role, layer);
    CHECK(t != NULL); // checked by family_read
    return t;
}

static enum dtype file_dtype(void *impl, enum tensor_role role, int layer)
{
    return tensor_of(impl, role, layer)->dtype;
}

/* The tensor of the role that has row *row. Sets *row to the row in that tensor and *left to the
 * rows from there on. */
static const struct source_tensor *part_of(const struct file_provider *f, enum tensor_role role,
                                           int layer, int *row, int *left)
{
    const int parts = family_parts(&f->family, role);
    int n, k;
    family_file_dims(&f->family, role, layer, &n, &k);
    const struct source_tensor *t =
        family_part(&f->family, f->source, role, layer, *row / (n / parts));
    CHECK(t != NULL);
    *row %= n / parts;
    *left = n / parts - *row;
    return t;
}

/* Reads a matrix of a tensor of several, from byte `at` on, into f->held. */
static enum err hold(struct file_provider *f, const struct source_tensor *t, int64_t at,
                     int64_t n_bytes)
{
    if (f->held_of == t && f->held_at == at)
        return OK;
    free(f->held);
    f->held_of = NULL;
    f->held = malloc((size_t)n_bytes);
    if (!f->held)
        return fail(ERR_FIT, "no memory for %s", t->name);
    TRY(source_read(f->source, t, at, n_bytes, f->held));
    f->held_of = t;
    f->held_at = at;
    return OK;
}

/* Inputs of a matrix that is stored as [inputs, outputs]. */
static int64_t inputs_of(const struct family_model *m, enum tensor_role role,
                         const struct source_tensor *t)
{
    return family_cuts_inputs(m, role) ? m->cut[role].group : t->dims[t->n_dims - 2];
}

/* Output `row` of matrices stored as [inputs, outputs]. */
static enum err read_column(struct file_provider *f, enum tensor_role role,
                            const struct source_tensor *t, int64_t row, uint8_t *out)
{
    const struct family_cut *c = &f->family.cut[role];
    const int64_t k = inputs_of(&f->family, role, t), n = t->dims[t->n_dims - 1];
    const int64_t size = dtype_row_bytes(t->dtype, 1), matrix = row / n;
    const int64_t first =
        family_cuts_inputs(&f->family, role) ? c->first + matrix * c->stride : matrix * k;
    TRY(hold(f, t, first * n * size, k * n * size));
    for (int64_t i = 0; i < k; i++)
        memcpy(out + i * size, f->held + (i * n + row % n) * size, (size_t)size);
    return OK;
}

/* Rows of one tensor; rows contiguous in the file are read together. */
static enum err tensor_rows(struct file_provider *f, enum tensor_role role,
                            const struct source_tensor *t, int first, int n, uint8_t *out)
{
    const struct family_model *m = &f->family;
    const int turned = (m->transposed & ROLE_BIT(role)) != 0;
    const int64_t k = turned ? inputs_of(m, role, t) : t->dims[t->n_dims - 1];
    const int64_t row_bytes = dtype_row_bytes(t->dtype, k);
    for (int i = 0, run; i < n; i += run) {
        const int64_t row = family_source_row(m, role, first + i);
        for (run = 1; i + run < n && !turned; run++)
            if (family_source_row(m, role, first + i + run) != row + run)
                break;
        uint8_t *to = out + i * row_bytes;
        CHECK(row >= 0 && (row + run) * row_bytes <= t->n_bytes);
        TRY(turned ? read_column(f, role, t, row, to)
                   : source_read(f->source, t, row * row_bytes, run * row_bytes, to));
    }
    return OK;
}

/* Rows [first, first + n) of family_file_dims(). */
static enum err whole_rows(struct file_provider *f, enum tensor_role role, int layer, int first,
                           int n, uint8_t *out)
{
    int k, all;
    family_file_dims(&f->family, role, layer, &all, &k);
    for (int done = 0, some; done < n; done += some) {
        int row = first + done;
        const struct source_tensor *t = part_of(f, role, layer, &row, &some);
        some = (int)min_i64(some, n - done);
        TRY(tensor_rows(f, role, t, row, some, out + done * dtype_row_bytes(t->dtype, k)));
    }
    return OK;
}

/* Adds the zeros of experts that are narrower in the file. */
static enum err file_rows(void *impl, enum tensor_role role, int layer, int first, int n, void *out)
{
    struct file_provider *f = impl;
    int k, file_k, all;
    role_dims(&f->family.shape, role, layer, &all, &k);
    family_file_dims(&f->family, role, layer, &all, &file_k);
    const int64_t row_bytes = dtype_row_bytes(file_dtype(f, role, layer), k);
    for (int done = 0, some; done < n; done += some) {
        const int row = family_file_row(&f->family, role, first + done);
        uint8_t *to = (uint8_t *)out + done * row_bytes;
        for (some = 1; done + some < n && file_k == k && row >= 0; some++)
            if (family_file_row(&f->family, role, first + done + some) != row + some)
                break;
        if (row < 0 || file_k < k)
            memset(to, 0, (size_t)row_bytes);
        if (row >= 0)
            TRY(whole_rows(f, role, layer, row, some, to));
    }
    return OK;
}

/* A tensor of numbers in any shape. */
static enum err read_numbers(const struct file_provider *f, const struct source_tensor *t,
                             float *numbers)
{
    int64_t n = 1; // family_read has checked the dimensions
    for (int i = 0; i < t->n_dims; i++)
        n *= t->dims[i];
    uint8_t *raw = malloc((size_t)t->n_bytes);
    enum err e = raw ? source_read(f->source, t, 0, t->n_bytes, raw)
                     : fail(ERR_FIT, "no memory for %s", t->name);
    if (e == OK)
        dtype_decode_row(t->dtype, raw, n, numbers);
    free(raw);
    return e;
}

/* The factor on number i of a vector. */
static float factor_of(const struct family_model *m, enum tensor_role role, int i)
{
    const struct shape *s = &m->shape;
    int q, k, v;
    shape_state_at(s, &q, &k, &v);
    if (role == ROLE_STATE_CONV) { // of a channel of q, k or v; k is between the others
        const int channel = i / s->state_taps;
        const enum tensor_role ends[] = {q < v ? ROLE_STATE_Q : ROLE_STATE_V,
                                         q < v ? ROLE_STATE_V : ROLE_STATE_Q};
        role = channel < k ? ends[0] : channel < max_i64(q, v) ? ROLE_STATE_K : ends[1];
    }
    return m->factor[role] > 0 ? m->factor[role] : 1;
}

static enum err file_vector(void *impl, enum tensor_role role, int layer, int n, float *out)
{
    const struct file_provider *f = impl;
    const struct family_model *m = &f->family;
    const int parts = family_parts(m, role);
    int file_n, k;
    family_file_dims(m, role, layer, &file_n, &k);
    const int64_t all = m->cut[role].rows > 0 ? m->cut[role].rows : file_n;
    float *numbers = malloc((size_t)all * sizeof *numbers);
    enum err e = numbers ? OK : fail(ERR_FIT, "no memory for %s", role_name(role));
    for (int part = 0; part < parts && e == OK; part++)
        e = read_numbers(f, family_part(m, f->source, role, layer, part),
                         numbers + part * (all / parts));
    for (int i = 0; i < n && e == OK; i++) {
        const int row = family_file_row(m, role, i);
        const float plus = (m->plus_one & ROLE_BIT(role)) ? 1.0f : 0.0f;
        out[i] = row < 0 ? 0 : numbers[family_source_row(m, role, row)] + plus;
        out[i] *= factor_of(m, role, i);
        if (m->logs & ROLE_BIT(role)) // in double: all math libraries round alike
            out[i] = (float)-exp((double)out[i]);
    }
    free(numbers);
    return e;
}

void pack_source_name(const char *path, char *name, int64_t name_bytes)
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
        return fail(ERR_FIT, "no memory for %s", source->path);
    f->source = source;
    enum err e = family_read(&f->family, source);
    if (e != OK) {
        free(f);
        return e;
    }
    pack_source_name(source->path, f->name, sizeof f->name);
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
    struct file_provider *f = p->impl;
    if (f)
        free(f->held);
    free(f);
    *p = (struct pack_provider){0};
}
