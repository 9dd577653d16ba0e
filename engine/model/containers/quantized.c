/* engine/model/containers/quantized.c - see quantized.h: the list of matrices.
 *
 * Owns: which tensors belong together, and all checks between their shapes. Refuses: numbers
 * (quantized_rows.c). Note: names and formats of the tensors tell what is quantised, not lists of
 * modules in the configuration; an unquantised module has a NAME.weight of plain numbers. */
#include "engine/model/containers/quantized_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum err no_memory(void)
{
    return fail(ERR_FIT, "no memory for the list of quantised tensors");
}

enum err quantized_fail(const struct quantized *q, const char *name, const char *fmt, ...)
{
    char what[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return fail(ERR_INPUT, "%.512s: tensor %.200s: %s", q->hf->dir, name, what);
}

/* ---- tensors that belong together ---- */

int quantized_is(const struct quantized *q, const struct source_tensor *t, const char *format)
{
    return strcmp(safetensors_format(&q->hf->weights, t), format) == 0;
}

const char *quantized_stem(const struct source_tensor *t, const char *tail,
                           char stem[QUANTIZED_NAME_BYTES])
{
    const size_t n = strlen(t->name), n_tail = strlen(tail);
    if (n <= n_tail || n - n_tail >= QUANTIZED_NAME_BYTES ||
        strcmp(t->name + n - n_tail, tail) != 0)
        return NULL;
    memcpy(stem, t->name, n - n_tail);
    stem[n - n_tail] = 0;
    return stem;
}

const struct source_tensor *quantized_beside(const struct quantized *q, const char *stem,
                                             const char *tail)
{
    char name[QUANTIZED_NAME_BYTES + 64];
    snprintf(name, sizeof name, "%s%s", stem, tail);
    return safetensors_find(&q->hf->weights, name);
}

enum err quantized_need(const struct quantized *q, const char *stem, const char *tail,
                        const char *format, int64_t n, int64_t k, const struct source_tensor **out)
{
    const struct source_tensor *t = *out = quantized_beside(q, stem, tail);
    if (!t)
        return quantized_fail(q, stem, "%s is missing", tail);
    if (*format ? !quantized_is(q, t, format) : t->dtype == N_DTYPES)
        return quantized_fail(q, t->name, "is %s, expected %s",
                              safetensors_format(&q->hf->weights, t), *format ? format : "numbers");
    if (t->n_dims != 2 || t->dims[0] != n || t->dims[1] != k)
        return quantized_fail(q, t->name, "expected [%lld, %lld]", (long long)n, (long long)k);
    return OK;
}

static enum err tensors_room(struct quantized *q)
{
    if (q->n_tensors < q->tensors_cap)
        return OK;
    const int64_t cap = max_i64(64, 2 * q->tensors_cap);
    struct quantized_tensor *grown = realloc(q->tensors, (size_t)cap * sizeof *grown);
    if (!grown)
        return no_memory();
    q->tensors = grown;
    q->tensors_cap = cap;
    return OK;
}

enum err quantized_keep(struct quantized *q, struct quantized_tensor as, const char *stem,
                        const char *tail)
{
    char name[QUANTIZED_NAME_BYTES + 64];
    struct source_tensor *t = &as.t;
    snprintf(name, sizeof name, "%s%s", stem, tail);
    t->file = -1;
    t->n_bytes = dtype_row_bytes(t->dtype, t->dims[t->n_dims - 1]);
    for (int i = 0; i < t->n_dims - 1; i++)
        if (t->n_bytes < 0 || __builtin_mul_overflow(t->n_bytes, t->dims[i], &t->n_bytes))
            return quantized_fail(q, name, "size overflows");
    TRY(tensors_room(q));
    t->name = strdup(name);
    if (!t->name)
        return no_memory();
    q->tensors[q->n_tensors++] = as;
    return OK;
}

/* ---- the methods ---- */

enum dtype quantized_with_zeros(int bits, int64_t group)
{
    if (bits == 8)
        return group % 128 == 0 ? DTYPE_I8_128 : group % 32 == 0 ? DTYPE_I8_32 : N_DTYPES;
    return group % 128 == 0  ? DTYPE_G4_128
           : group % 64 == 0 ? DTYPE_G4_64
           : group % 32 == 0 ? DTYPE_G4_32
                             : N_DTYPES;
}

enum err quantized_order(const struct quantized *q, const char *stem, const char *tail, int64_t k,
                         int64_t group, const struct source_tensor **order)
{
    const struct source_tensor *t = quantized_beside(q, stem, tail);
    int32_t index[1024];
    *order = NULL;
    if (!t)
        return OK;
    if (t->n_dims != 1 || t->dims[0] != k || !quantized_is(q, t, "I32"))
        return quantized_fail(q, t->name, "expected [%lld] I32", (long long)k);
    for (int64_t i = 0; i < k; i++) {
        const int64_t n = min_i64(1024, k - i);
        if (i % 1024 == 0)
            TRY(safetensors_read(&q->hf->weights, t, 4 * i, 4 * n, index));
        const int32_t is = index[i % 1024];
        if (is < 0 || is >= k / group)
            return quantized_fail(q, t->name, "number %lld is %d, there are %lld groups",
                                  (long long)i, (int)is, (long long)(k / group));
        if (is != i / group)
            *order = t;
    }
    return OK;
}

static enum err groups_add(struct quantized *q, const struct source_tensor *codes)
{
    char stem[QUANTIZED_NAME_BYTES];
    if (!quantized_stem(codes, ".qweight", stem))
        return OK;
    if (!quantized_is(q, codes, "I32") || codes->n_dims != 2 || codes->n_bytes == 0)
        return quantized_fail(q, codes->name, "expected I32 of two dimensions");
    const int by_k = q->method == METHOD_GPTQ; // a word's codes are along k, or in as many rows
    const int64_t in_word = 32 / q->bits;
    const int64_t k = codes->dims[0] * (by_k ? in_word : 1);
    const int64_t n = codes->dims[1] * (by_k ? 1 : in_word);
    const struct source_tensor *scales = quantized_beside(q, stem, ".scales");
    const int64_t n_groups = scales && scales->n_dims == 2 ? scales->dims[0] : 0;
    if (n_groups == 0 || k % n_groups != 0 || n % in_word != 0)
        return quantized_fail(q, codes->name, "%lld numbers of %lld rows do not match %s.scales",
                              (long long)k, (long long)n, stem);
    struct quantized_tensor as = {
        .method = q->method,
        .codes = codes,
        .scale_n = 1,
        .scale_k = k / n_groups,
        .t = {.dtype = quantized_with_zeros(q->bits, k / n_groups), .n_dims = 2, .dims = {n, k}}};
    TRY(quantized_need(q, stem, ".scales", "", n_groups, n, &as.scales));
    TRY(quantized_need(q, stem, ".qzeros", "I32", n_groups, n / in_word, &as.zeros));
    if (as.t.dtype == N_DTYPES)
        return quantized_fail(q, codes->name,
                              "unsupported: groups of %lld (supported: multiples of 32)",
                              (long long)as.scale_k);
    if (by_k)
        TRY(quantized_order(q, stem, ".g_idx", k, as.scale_k, &as.order));
    if (as.order) {
        as.coded = as.t.dtype;
        as.t.dtype = DTYPE_F32;
    }
    return quantized_keep(q, as, stem, ".weight");
}

enum err quantized_fp8_add(struct quantized *q, const struct source_tensor *codes)
{
    if (!quantized_is(q, codes, "F8_E4M3"))
        return OK;
    if (codes->n_dims != 2 || codes->n_bytes == 0)
        return quantized_fail(q, codes->name, "expected two dimensions");
    const int64_t n = codes->dims[0], k = codes->dims[1];
    const struct source_tensor *inv = quantized_beside(q, codes->name, "_scale_inv");
    const struct source_tensor *s = inv ? inv : quantized_beside(q, codes->name, "_scale");
    if (!s || s->dtype == N_DTYPES)
        return quantized_fail(q, codes->name, "%s",
                              s ? "the scales are not numbers" : "_scale or _scale_inv is missing");
    struct quantized_tensor as = {.method = METHOD_FP8,
                                  .codes = codes,
                                  .scales = s,
                                  .scale_n = n,
                                  .scale_k = k,
                                  .t = {.n_dims = 2, .dims = {n, k}}};
    const int64_t rows = s->n_dims > 0 ? s->dims[0] : 1, columns = s->n_dims > 1 ? s->dims[1] : 1;
    const int64_t blocks_n = ceil_div(n, q->block_n), blocks_k = ceil_div(k, q->block_k);
    if (s->n_dims == 2 && rows == blocks_n && columns == blocks_k) {
        as.scale_n = q->block_n;
        as.scale_k = q->block_k;
    } else if (s->n_dims <= 2 && columns == 1 && rows == n) {
        as.scale_n = 1;
    } else if (s->n_dims > 2 || rows != 1 || columns != 1) {
        return quantized_fail(q, s->name,
                              "expected one scale, [%lld, 1], or [%lld, %lld] in blocks of %lld x "
                              "%lld",
                              (long long)n, (long long)blocks_n, (long long)blocks_k,
                              (long long)q->block_n, (long long)q->block_k);
    }
    const int64_t group = min_i64(as.scale_k, k); // along k
    as.t.dtype = k % 128 == 0 && group % 128 == 0 ? DTYPE_F8_128 : DTYPE_F8_32;
    if (k % 32 != 0)
        return quantized_fail(q, codes->name,
                              "unsupported: rows of %lld numbers (supported: multiples "
                              "of 32)",
                              (long long)k);
    return quantized_keep(q, as, codes->name, "");
}

static enum err mxfp4_add(struct quantized *q, const struct source_tensor *codes)
{
    char stem[QUANTIZED_NAME_BYTES];
    if (!quantized_stem(codes, "_blocks", stem))
        return OK;
    const int n_dims = codes->n_dims;
    const struct source_tensor *scales = quantized_beside(q, stem, "_scales");
    int same = scales && quantized_is(q, scales, "U8") && quantized_is(q, codes, "U8") &&
               n_dims >= 3 && scales->n_dims == n_dims - 1 && codes->dims[n_dims - 1] == 16 &&
               codes->n_bytes > 0;
    struct quantized_tensor as = {.method = q->method,
                                  .codes = codes,
                                  .scales = scales,
                                  .scale_n = 1,
                                  .scale_k = 32,
                                  .t = {.dtype = DTYPE_MXFP4, .n_dims = n_dims - 1}};
    for (int i = 0; i < n_dims - 1 && same; i++) {
        as.t.dims[i] = codes->dims[i];
        same = scales->dims[i] == codes->dims[i];
    }
    if (!same)
        return quantized_fail(q, codes->name,
                              "expected U8 [.., 16], and a scale of each block in %s_scales", stem);
    as.t.dims[n_dims - 2] *= 32; // fits: the file holds half as many bytes
    return quantized_keep(q, as, stem, "");
}

/* ---- the list ---- */

static enum err tensor_add(struct quantized *q, const struct source_tensor *t)
{
    switch (q->method) {
    case METHOD_FP8:
        return quantized_fp8_add(q, t);
    case METHOD_COMPRESSED:
        return quantized_compressed_add(q, t);
    case METHOD_NF4:
        return quantized_nf4_add(q, t);
    case METHOD_MXFP4:
        return mxfp4_add(q, t);
    default:
        return groups_add(q, t);
    }
}

static int by_name(const void *a, const void *b)
{
    const struct quantized_tensor *x = a, *y = b;
    return strcmp(x->t.name, y->t.name);
}

static enum err list(struct quantized *q)
{
    const struct safetensors *st = &q->hf->weights;
    for (int64_t i = 0; i < st->n_tensors; i++)
        TRY(tensor_add(q, &st->tensors[i]));
    if (q->n_tensors > 0)
        qsort(q->tensors, (size_t)q->n_tensors, sizeof *q->tensors, by_name);
    for (int64_t i = 0; i < q->n_tensors; i++) {
        const char *name = q->tensors[i].t.name;
        const struct source_tensor *plain = safetensors_find(st, name);
        if (plain && plain != q->tensors[i].codes)
            return quantized_fail(q, name, "stored both quantised and unquantised");
    }
    return OK;
}

/* Whether any bias beside a GPTQ matrix is not 0: some writers add zero biases everywhere. */
static enum err biases_look(struct quantized *q)
{
    const struct safetensors *st = &q->hf->weights;
    char stem[QUANTIZED_NAME_BYTES];
    for (int64_t i = 0; i < q->n_tensors && !q->biases_count; i++) {
        const struct source_tensor *t = quantized_stem(&q->tensors[i].t, ".weight", stem)
                                            ? quantized_beside(q, stem, ".bias")
                                            : NULL;
        uint8_t bytes[4096];
        for (int64_t at = 0; t && at < t->n_bytes; at += (int64_t)sizeof bytes) {
            const int64_t n = min_i64((int64_t)sizeof bytes, t->n_bytes - at);
            TRY(safetensors_read(st, t, at, n, bytes));
            for (int64_t j = 0; j < n; j++)
                q->biases_count |= bytes[j] != 0;
        }
    }
    return OK;
}

int quantized_is_part(const struct quantized *q, const char *name)
{
    static const struct {
        const char *tail, *of;
    } parts[] = {{".qweight", ".weight"},
                 {".qzeros", ".weight"},
                 {".scales", ".weight"},
                 {".g_idx", ".weight"},
                 {".weight_scale", ".weight"},
                 {".weight_scale_inv", ".weight"},
                 {".weight_packed", ".weight"},
                 {".weight_shape", ".weight"},
                 {".weight_zero_point", ".weight"},
                 {".weight_g_idx", ".weight"},
                 {".weight_global_scale", ".weight"},
                 {".weight_scale_2", ".weight"},
                 {".input_global_scale", ".weight"},
                 {".input_zero_point", ".weight"},
                 {".input_scale", ".weight"},
                 {"k_proj.k_scale", "k_proj.weight"},
                 {"v_proj.v_scale", "v_proj.weight"},
                 {"self_attn.k_scale", "self_attn.k_proj.weight"},
                 {"self_attn.v_scale", "self_attn.v_proj.weight"},
                 {".absmax", ""},
                 {".quant_map", ""},
                 {".nested_absmax", ""},
                 {".nested_quant_map", ""},
                 {".quant_state.bitsandbytes__nf4", ""},
                 {"_blocks", ""},
                 {"_scales", ""},
                 {".bias", ".weight"}};
    enum { N = sizeof parts / sizeof *parts };
    const struct source_tensor t = {.name = name};
    char matrix[QUANTIZED_NAME_BYTES + 64], stem[QUANTIZED_NAME_BYTES];
    for (int i = 0; i < N && q; i++) {
        const int is_bias = i == N - 1;
        if ((is_bias && (q->method != METHOD_GPTQ || q->biases_count)) ||
            !quantized_stem(&t, parts[i].tail, stem))
            continue;
        snprintf(matrix, sizeof matrix, "%s%s", stem, parts[i].of);
        if (quantized_find(q, matrix))
            return 1;
    }
    return 0;
}

enum err quantized_open(struct quantized **out, const struct hf *hf)
{
    const struct {
        const struct values *config;
        const char *section;
    } places[] = {{&hf->config, "quantization_config"},
                  {&hf->config, "text_config.quantization_config"}, // of several models in one
                  {&hf->quant, "quantization"}};                    // modelopt's own file
    enum { N = sizeof places / sizeof *places };
    int64_t n_members;
    int found = 0, at = -1;
    *out = NULL;
    while (!found && ++at < N)
        TRY(values_count(places[at].config, places[at].section, &n_members, &found));
    if (!found)
        return OK;
    struct quantized *q = calloc(1, sizeof *q);
    if (!q)
        return no_memory();
    q->hf = hf;
    q->config = places[at].config;
    q->section = places[at].section;
    enum err e = quantized_config(q);
    if (e == OK)
        e = list(q);
    if (e == OK && q->method == METHOD_GPTQ)
        e = biases_look(q);
    if (e != OK) {
        quantized_close(q);
        return e;
    }
    *out = q;
    return OK;
}

void quantized_close(struct quantized *q)
{
    if (!q)
        return;
    for (int64_t i = 0; i < q->n_tensors; i++) {
        free((void *)(uintptr_t)q->tensors[i].t.name);
        free(q->tensors[i].map);
    }
    free(q->tensors);
    free(q->band.rows);
    free(q->band.order);
    free(q);
}

const struct source_tensor *quantized_find(const struct quantized *q, const char *name)
{
    if (!q || q->n_tensors == 0)
        return NULL;
    const struct quantized_tensor key = {.t.name = name};
    return bsearch(&key, q->tensors, (size_t)q->n_tensors, sizeof key, by_name);
}

int quantized_has(const struct source_tensor *t)
{
    return t->file < 0;
}

enum err quantized_read(struct quantized *q, const struct source_tensor *t, int64_t offset,
                        int64_t n_bytes, void *buf)
{
    const int64_t row_bytes = dtype_row_bytes(t->dtype, t->dims[t->n_dims - 1]);
    CHECK(offset >= 0 && n_bytes >= 0 && offset <= t->n_bytes && n_bytes <= t->n_bytes - offset);
    CHECK(offset % row_bytes == 0 && n_bytes % row_bytes == 0);
    return quantized_rows(q, (const struct quantized_tensor *)(const void *)t, offset / row_bytes,
                          n_bytes / row_bytes, buf);
}
