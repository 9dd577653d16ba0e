/* engine/model/containers/gguf.c - see gguf.h.
 *
 * Owns: the parts of a split model, the directory of all tensors, typed access to keys. Refuses:
 * parsing (gguf_header.c). Note: only the first part has the model's keys; the others have only
 * their index and the number of parts. A part may have no tensors. */
#include "engine/model/containers/gguf.h"
#include "engine/model/containers/gguf_header.h"
#include "engine/model/containers/gguf_nvfp4.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define GGUF_FILES_MAX UINT16_MAX // split.count is u16
#define GGUF_LIST_MAX  1024       // integers of a list
#define SCALE          ".scale"   // the factors' name, where the matrix has ".weight"

struct gguf {
    int n_files;                   // entries of files[] to close
    struct gguf_header *files;     // owned [n_files]
    struct source_tensor *tensors; // owned [n_tensors]; names borrowed from files[]
    int64_t n_tensors;
    struct names names;
};

static enum err key_fail(const struct gguf_header *h, const char *key, const char *wanted,
                         const struct gguf_value *v)
{
    char type[32];
    return fail(ERR_INPUT, "%s: key \"%.80s\": expected %s, is %s", h->label, key, wanted,
                gguf_type_text(v, type));
}

/* Value of any integer type; returns 0 if v is none. The sign is separate: u64 needs 64 bits. */
static int integer_of(const struct gguf_header *h, const struct gguf_value *v, uint64_t *magnitude,
                      int *negative)
{
    const uint8_t *p = h->bytes + v->at;
    int64_t x = 0;
    uint64_t u = 0;
    switch (v->type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64:
        memcpy(&u, p,
               v->type == GGUF_U8    ? 1
               : v->type == GGUF_U16 ? 2
               : v->type == GGUF_U32 ? 4
                                     : 8);
        break;
    case GGUF_I8:
        x = (int8_t)p[0];
        break;
    case GGUF_I16: {
        int16_t i;
        memcpy(&i, p, sizeof i);
        x = i;
        break;
    }
    case GGUF_I32: {
        int32_t i;
        memcpy(&i, p, sizeof i);
        x = i;
        break;
    }
    case GGUF_I64:
        memcpy(&x, p, sizeof x);
        break;
    default:
        return 0;
    }
    *negative = x < 0;
    *magnitude = x < 0 ? 0 - (uint64_t)x : u | (uint64_t)x; // one of u and x is zero
    return 1;
}

/* Number `i` of an array, or a single number; a flag is 0 or 1. Returns 0 if it is none. */
static int number_of(const struct gguf_header *h, const struct gguf_value *v, int64_t i,
                     double *out)
{
    struct gguf_value one = *v;
    float f;
    uint64_t magnitude;
    int negative;
    if (v->type == GGUF_ARRAY) {
        one.type = v->element;
        one.at = v->at + i * gguf_type_bytes(v->element);
    }
    if (one.type == GGUF_F32) {
        memcpy(&f, h->bytes + one.at, sizeof f);
        *out = (double)f;
    } else if (one.type == GGUF_F64) {
        memcpy(out, h->bytes + one.at, sizeof *out);
    } else if (one.type == GGUF_BOOL) {
        *out = h->bytes[one.at] != 0;
    } else if (integer_of(h, &one, &magnitude, &negative)) {
        *out = negative ? -(double)magnitude : (double)magnitude;
    } else {
        return 0;
    }
    return 1;
}

static enum err header_int(const struct gguf_header *h, const char *key, int64_t min, int64_t max,
                           int64_t *out, int *found)
{
    const struct gguf_value *v = gguf_header_find(h, key);
    uint64_t magnitude;
    int negative;
    *found = v != NULL;
    if (!v)
        return OK;
    if (!integer_of(h, v, &magnitude, &negative))
        return key_fail(h, key, "an integer", v);
    const int64_t x = (int64_t)(negative ? 0 - magnitude : magnitude);
    if ((!negative && magnitude > INT64_MAX) || x < min || x > max)
        return fail(ERR_INPUT, "%s: key \"%.80s\": %s%llu is out of range [%lld, %lld]", h->label,
                    key, negative ? "-" : "", (unsigned long long)magnitude, (long long)min,
                    (long long)max);
    *out = x;
    return OK;
}

enum err gguf_int(const struct gguf *g, const char *key, int64_t min, int64_t max, int64_t *out,
                  int *found)
{
    return header_int(&g->files[0], key, min, max, out, found);
}

enum err gguf_float(const struct gguf *g, const char *key, double *out, int *found)
{
    const struct gguf_header *h = &g->files[0];
    const struct gguf_value *v = gguf_header_find(h, key);
    double x;
    *found = v != NULL;
    if (!v)
        return OK;
    if (v->type == GGUF_ARRAY || v->type == GGUF_BOOL || !number_of(h, v, 0, &x))
        return key_fail(h, key, "a number", v);
    if (!isfinite(x))
        return fail(ERR_INPUT, "%s: key \"%.80s\": %f is not a finite number", h->label, key, x);
    *out = x;
    return OK;
}

enum err gguf_bool(const struct gguf *g, const char *key, int *out, int *found)
{
    const struct gguf_header *h = &g->files[0];
    const struct gguf_value *v = gguf_header_find(h, key);
    *found = v != NULL;
    if (!v)
        return OK;
    if (v->type != GGUF_BOOL)
        return key_fail(h, key, "bool", v);
    *out = h->bytes[v->at] != 0;
    return OK;
}

static enum err header_str(const struct gguf_header *h, const char *key, const char **out,
                           int64_t *n_bytes, int *found)
{
    const struct gguf_value *v = gguf_header_find(h, key);
    *found = v != NULL;
    if (!v)
        return OK;
    if (v->type != GGUF_STR)
        return key_fail(h, key, "str", v);
    *out = (const char *)h->bytes + v->at;
    *n_bytes = v->n;
    return OK;
}

enum err gguf_str(const struct gguf *g, const char *key, const char **out, int64_t *n_bytes,
                  int *found)
{
    return header_str(&g->files[0], key, out, n_bytes, found);
}

/* The array under `key`, NULL if there is none; its elements must have type a (or b). */
static enum err array_find(const struct gguf *g, const char *key, enum gguf_type a,
                           enum gguf_type b, const char *wanted, const struct gguf_value **out)
{
    const struct gguf_value *v = *out = gguf_header_find(&g->files[0], key);
    if (v && (v->type != GGUF_ARRAY || (v->element != a && v->element != b)))
        return key_fail(&g->files[0], key, wanted, v);
    return OK;
}

enum err gguf_str_array(const struct gguf *g, const char *key, struct gguf_strings *out, int *found)
{
    const struct gguf_value *v;
    TRY(array_find(g, key, GGUF_STR, GGUF_STR, "array of str", &v));
    *found = v != NULL;
    if (v)
        *out = (struct gguf_strings){v->n, v->n, g->files[0].bytes + v->at};
    return OK;
}

enum err gguf_i32_array(const struct gguf *g, const char *key, struct gguf_numbers *out, int *found)
{
    const struct gguf_value *v;
    TRY(array_find(g, key, GGUF_I32, GGUF_U32, "array of i32", &v));
    *found = v != NULL;
    if (!v)
        return OK;
    const struct gguf_numbers view = {v->n, g->files[0].bytes + v->at};
    for (int64_t i = 0; v->element == GGUF_U32 && i < v->n; i++)
        if (gguf_i32_at(&view, i) < 0)
            return fail(ERR_INPUT, "%s: key \"%.80s\": entry %lld is %u (max 2147483647)",
                        g->files[0].label, key, (long long)i, (uint32_t)gguf_i32_at(&view, i));
    *out = view;
    return OK;
}

enum err gguf_f32_array(const struct gguf *g, const char *key, struct gguf_numbers *out, int *found)
{
    const struct gguf_value *v;
    TRY(array_find(g, key, GGUF_F32, GGUF_F32, "array of f32", &v));
    *found = v != NULL;
    if (v)
        *out = (struct gguf_numbers){v->n, g->files[0].bytes + v->at};
    return OK;
}

enum err gguf_float_list(const struct gguf *g, const char *key, double *out, int64_t capacity,
                         int64_t *n, int *found)
{
    const struct gguf_header *h = &g->files[0];
    const struct gguf_value *v = gguf_header_find(h, key);
    *found = v != NULL;
    *n = !v ? 0 : v->type == GGUF_ARRAY ? v->n : 1;
    if (*n > capacity)
        return fail(ERR_INPUT, "%s: key \"%.80s\": %lld entries, at most %lld are supported",
                    h->label, key, (long long)*n, (long long)capacity);
    for (int64_t i = 0; i < *n; i++) {
        if (!number_of(h, v, i, &out[i]))
            return key_fail(h, key, "numbers", v);
        if (!isfinite(out[i]))
            return fail(ERR_INPUT, "%s: key \"%.80s\": entry %lld is not a finite number", h->label,
                        key, (long long)i);
    }
    return OK;
}

enum err gguf_int_list(const struct gguf *g, const char *key, int64_t min, int64_t max,
                       int64_t *out, int64_t capacity, int64_t *n, int *found)
{
    double numbers[GGUF_LIST_MAX];
    TRY(gguf_float_list(g, key, numbers, min_i64(capacity, GGUF_LIST_MAX), n, found));
    for (int64_t i = 0; i < *n; i++) {
        const double x = numbers[i];
        if (!(x >= (double)min && x <= (double)max) || x != (double)(int64_t)x)
            return fail(ERR_INPUT, "%s: key \"%.80s\": entry %lld is no integer in [%lld, %lld]",
                        g->files[0].label, key, (long long)i, (long long)min, (long long)max);
        out[i] = (int64_t)x;
    }
    return OK;
}

enum err gguf_byte_array(const struct gguf *g, const char *key, const void **out, int64_t *n,
                         int *found)
{
    const struct gguf_value *v;
    TRY(array_find(g, key, GGUF_U8, GGUF_I8, "array of u8 or i8", &v));
    *found = v != NULL;
    if (v) {
        *out = g->files[0].bytes + v->at;
        *n = v->n;
    }
    return OK;
}

const struct source_tensor *gguf_tensors(const struct gguf *g, int64_t *n_tensors)
{
    *n_tensors = g->n_tensors;
    return g->tensors;
}

const struct source_tensor *gguf_find(const struct gguf *g, const char *name)
{
    const int64_t i = names_find(&g->names, name);
    return i < 0 ? NULL : &g->tensors[i];
}

/* The tensor that has `tail` where t's name has `own`; NULL: none. */
static const struct source_tensor *beside(const struct gguf *g, const char *name, const char *own,
                                          const char *tail)
{
    char other[GGUF_NAME_BYTES_MAX + 20];
    const size_t n = strlen(name), n_own = strlen(own);
    if (n < n_own || strcmp(name + n - n_own, own) != 0)
        return NULL;
    snprintf(other, sizeof other, "%.*s%s", (int)(n - n_own), name, tail);
    return gguf_find(g, other);
}

int gguf_is_part(const struct gguf *g, const char *name)
{
    const struct source_tensor *of = beside(g, name, SCALE, ".weight");
    of = of ? of : beside(g, name, ".input_scale", ".weight");
    return of && gguf_is_nvfp4(of);
}

/* The factor of matrix i of an NVFP4 tensor; 1 without a tensor of factors. */
static enum err factor_read(const struct gguf *g, const struct source_tensor *t, int64_t i,
                            float *factor)
{
    const struct source_tensor *f = beside(g, t->name, ".weight", SCALE);
    *factor = 1;
    if (!f)
        return OK;
    TRY(gguf_header_read(&g->files[f->file], f->offset + 4 * i, 4, factor));
    return isnormal(*factor) && *factor > 0
               ? OK
               : fail(ERR_INPUT, "%s: tensor \"%s\": %g is no factor", g->files[f->file].label,
                      f->name, (double)*factor);
}

/* Matrices of a tensor, each with a factor. */
static int64_t matrices_of(const struct source_tensor *t)
{
    return t->n_dims > 2 ? t->dims[0] : 1;
}

/* Checks the factors of all NVFP4 tensors. */
static enum err factors_check(const struct gguf *g)
{
    for (int64_t i = 0; i < g->n_tensors; i++) {
        const struct source_tensor *t = &g->tensors[i], *f = beside(g, t->name, ".weight", SCALE);
        float factor;
        if (!f || !gguf_is_nvfp4(t))
            continue;
        if (f->dtype != DTYPE_F32 || f->n_dims != 1 || f->dims[0] != matrices_of(t))
            return fail(ERR_INPUT, "%s: tensor \"%s\": expected [%lld] f32, factors of \"%s\"",
                        g->files[f->file].label, f->name, (long long)matrices_of(t), t->name);
        for (int64_t m = 0; m < f->dims[0]; m++)
            TRY(factor_read(g, t, m, &factor));
    }
    return OK;
}

/* The file's blocks are fewer bytes than the rows: they go to the end of buf. */
static enum err nvfp4_read(const struct gguf *g, const struct source_tensor *t, int64_t offset,
                           int64_t n_bytes, uint8_t *buf)
{
    const int64_t row_bytes = dtype_row_bytes(t->dtype, t->dims[t->n_dims - 1]);
    const int64_t rows = t->n_bytes / row_bytes / matrices_of(t); // of a matrix
    const int64_t n_file = gguf_file_bytes(t, n_bytes), step = gguf_file_bytes(t, row_bytes);
    const uint8_t *blocks = buf + n_bytes - n_file;
    float factor = 1;
    CHECK(offset % row_bytes == 0 && n_bytes % row_bytes == 0);
    TRY(gguf_header_read(&g->files[t->file], t->offset + gguf_file_bytes(t, offset), n_file,
                         buf + n_bytes - n_file));
    for (int64_t i = 0, row = offset / row_bytes; i < n_bytes / row_bytes; i++, row++) {
        if (i == 0 || row % rows == 0)
            TRY(factor_read(g, t, row / rows, &factor));
        if (!gguf_nvfp4_row(t, factor, blocks + i * step, row_bytes, buf + i * row_bytes))
            return fail(ERR_INPUT, "%s: tensor \"%s\": row %lld: a scale is no number (0xff)",
                        g->files[t->file].label, t->name, (long long)row);
    }
    return OK;
}

enum err gguf_read(const struct gguf *g, const struct source_tensor *t, int64_t offset,
                   int64_t n_bytes, void *buf)
{
    CHECK(t->file >= 0 && t->file < g->n_files);
    CHECK(offset >= 0 && n_bytes >= 0 && offset <= t->n_bytes && n_bytes <= t->n_bytes - offset);
    if (gguf_is_nvfp4(t))
        return nvfp4_read(g, t, offset, n_bytes, buf);
    return gguf_header_read(&g->files[t->file], t->offset + offset, n_bytes, buf);
}

/* Name of part i (from 0) for PREFIX-00001-of-00003.gguf, malloced; NULL if the first file's name
 * has another form (or out of memory). */
static char *part_path(const char *first, int i, int n_parts)
{
    char end[40];
    const int n_end = snprintf(end, sizeof end, "-%05d-of-%05d.gguf", 1, n_parts);
    const size_t n = strlen(first);
    if (n < (size_t)n_end || strcmp(first + n - n_end, end) != 0)
        return NULL;
    char *path = strdup(first);
    if (path)
        snprintf(path + n - n_end, (size_t)n_end + 1, "-%05d-of-%05d.gguf", i + 1, n_parts);
    return path;
}

/* Lists all missing parts in one line. */
static enum err parts_missing(const struct gguf_header *first, int n_parts)
{
    int n_missing = 0;
    char *name = NULL;
    for (int i = 1; i < n_parts; i++) {
        struct stat st;
        char *path = part_path(first->path, i, n_parts);
        if (!path)
            break;
        if (stat(path, &st) == 0 || errno != ENOENT) {
            free(path);
        } else if (n_missing++ == 0) {
            name = path;
        } else {
            free(path);
        }
    }
    if (n_missing == 0)
        return OK;
    const char *base = strrchr(name, '/');
    fail(ERR_INPUT, "%s: split: missing split file %.200s (%d of %d parts are missing)",
         first->label, base ? base + 1 : name, n_missing, n_parts);
    free(name);
    return ERR_INPUT;
}

/* Checks that part i belongs to the first file. */
static enum err part_check(const struct gguf_header *first, const struct gguf_header *h, int i,
                           int n_parts)
{
    int64_t no = -1, count = -1, n_a = 0, n_b = 0;
    const char *a = NULL, *b = NULL;
    int found;
    TRY(header_int(h, "split.no", 0, UINT16_MAX, &no, &found));
    TRY(header_int(h, "split.count", 0, UINT16_MAX, &count, &found));
    if (no != i || count != n_parts)
        return fail(ERR_INPUT,
                    "%s: split: splits differ: expected part %d of %d, split.no is %lld, "
                    "split.count %lld",
                    h->label, i, n_parts, (long long)no, (long long)count);
    TRY(header_str(first, "general.architecture", &a, &n_a, &found));
    TRY(header_str(h, "general.architecture", &b, &n_b, &found));
    if (found && (!a || n_a != n_b || memcmp(a, b, (size_t)n_a) != 0))
        return fail(ERR_INPUT,
                    "%s: split: splits differ: architecture \"%.40s\", the first part has %.40s",
                    h->label, b, a ? a : "none");
    return OK;
}

/* Opens the first file and, if the model is split, the other parts. */
static enum err files_open(struct gguf *g, const char *path)
{
    int64_t count = 1, no = 0, total = 0;
    int found;
    g->files = calloc(1, sizeof *g->files);
    if (!g->files)
        return fail(ERR_FIT, "%s: open: no memory", path);
    g->n_files = 1;
    TRY(gguf_header_open(&g->files[0], path));
    TRY(header_int(&g->files[0], "split.count", 0, GGUF_FILES_MAX, &count, &found));
    TRY(header_int(&g->files[0], "split.no", 0, UINT16_MAX, &no, &found));
    if (count <= 1)
        return OK;
    const int n_parts = (int)count;
    const char *label = g->files[0].label;
    if (no != 0)
        return fail(ERR_INPUT, "%s: split: this is part %lld of %d (give ...-00001-of-%05d.gguf)",
                    label, (long long)no + 1, n_parts, n_parts);
    char *second = part_path(path, 1, n_parts);
    if (!second)
        return fail(ERR_INPUT,
                    "%s: split: the name of part 1 of %d must end in -00001-of-%05d.gguf", label,
                    n_parts, n_parts);
    free(second);
    TRY(parts_missing(&g->files[0], n_parts));
    struct gguf_header *files = realloc(g->files, (size_t)n_parts * sizeof *files);
    if (!files)
        return fail(ERR_FIT, "%s: open: no memory for %d parts", path, n_parts);
    g->files = files;
    int64_t n_tensors = files[0].n_tensors;
    for (int i = 1; i < n_parts; i++) {
        char *part = part_path(path, i, n_parts);
        if (!part)
            return fail(ERR_FIT, "%s: open: no memory", path);
        g->n_files = i + 1;
        const enum err e = gguf_header_open(&files[i], part);
        free(part);
        TRY(e);
        TRY(part_check(&files[0], &files[i], i, n_parts));
        n_tensors += files[i].n_tensors;
    }
    TRY(header_int(&files[0], "split.tensors.count", 0, INT32_MAX, &total, &found));
    if (found && total != n_tensors)
        return fail(
            ERR_INPUT,
            "%s: split: splits differ: %lld tensors in %d parts, split.tensors.count is %lld",
            files[0].label, (long long)n_tensors, n_parts, (long long)total);
    return OK;
}

/* Builds one directory over all files. */
static enum err tensors_join(struct gguf *g)
{
    int64_t n = 0;
    for (int f = 0; f < g->n_files; f++)
        n += g->files[f].n_tensors;
    if (n > GGUF_TENSORS_MAX)
        return fail(ERR_INPUT, "%s: split: %lld tensors, at most %d are supported",
                    g->files[0].label, (long long)n, GGUF_TENSORS_MAX);
    g->tensors = g->files[0].tensors;
    g->files[0].tensors = NULL;
    if (g->n_files > 1) {
        struct source_tensor *all = realloc(g->tensors, ((size_t)n + 1) * sizeof *all);
        if (!all)
            return fail(ERR_FIT, "%s: open: no memory for %lld tensors", g->files[0].label,
                        (long long)n);
        g->tensors = all;
    }
    g->n_tensors = g->files[0].n_tensors;
    for (int f = 1; f < g->n_files; f++) {
        struct gguf_header *h = &g->files[f];
        for (int64_t i = 0; i < h->n_tensors; i++) {
            g->tensors[g->n_tensors] = h->tensors[i];
            g->tensors[g->n_tensors++].file = f;
        }
        free(h->tensors);
        h->tensors = NULL;
    }
    TRY(names_open(&g->names, g->tensors, sizeof *g->tensors, n, g->files[0].label));
    for (int64_t i = 0; i < n; i++)
        if (names_add(&g->names, i) >= 0)
            return fail(ERR_INPUT, "%s: tensor \"%s\": duplicate name",
                        g->files[g->tensors[i].file].label, g->tensors[i].name);
    return OK;
}

static enum err length_check(const struct gguf *g, const char *key, int found, int64_t n,
                             int64_t expected)
{
    if (found && n != expected)
        return fail(ERR_INPUT,
                    "%s: key \"%s\": %lld entries, expected %lld (as tokenizer.ggml.tokens)",
                    g->files[0].label, key, (long long)n, (long long)expected);
    return OK;
}

/* Checks that arrays over the vocabulary agree with each other and with the embedding. */
static enum err vocab_check(const struct gguf *g)
{
    struct gguf_strings tokens = {0};
    struct gguf_numbers scores = {0}, kinds = {0};
    int found_tokens, found;
    TRY(gguf_str_array(g, "tokenizer.ggml.tokens", &tokens, &found_tokens));
    TRY(gguf_f32_array(g, "tokenizer.ggml.scores", &scores, &found));
    TRY(length_check(g, "tokenizer.ggml.scores", found, scores.n, tokens.n));
    TRY(gguf_i32_array(g, "tokenizer.ggml.token_type", &kinds, &found));
    TRY(length_check(g, "tokenizer.ggml.token_type", found, kinds.n, tokens.n));
    const struct source_tensor *t = gguf_find(g, "token_embd.weight");
    if (t && found_tokens && t->dims[0] != tokens.n)
        return fail(ERR_INPUT,
                    "%s: tensor \"token_embd.weight\": %lld rows, expected %lld (entries of "
                    "tokenizer.ggml.tokens)",
                    g->files[t->file].label, (long long)t->dims[0], (long long)tokens.n);
    return OK;
}

static enum err gguf_fill(struct gguf *g, const char *path)
{
    TRY(files_open(g, path));
    TRY(tensors_join(g));
    TRY(factors_check(g));
    return vocab_check(g);
}

enum err gguf_open(struct gguf **g, const char *path)
{
    *g = NULL;
    struct gguf *opened = calloc(1, sizeof *opened);
    if (!opened)
        return fail(ERR_FIT, "%s: open: no memory", path);
    const enum err e = gguf_fill(opened, path);
    if (e == OK)
        *g = opened;
    else
        gguf_close(opened);
    return e;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    names_close(&g->names);
    for (int f = 0; f < g->n_files; f++)
        gguf_header_close(&g->files[f]);
    free(g->files);
    free(g->tensors);
    free(g);
}
