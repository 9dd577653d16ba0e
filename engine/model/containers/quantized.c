/* engine/model/containers/quantized.c - see quantized.h: quantization_config, and the list of
 * matrices.
 *
 * Owns: which tensors belong together, and all checks between their shapes. Refuses: numbers
 * (quantized_rows.c). Note: names and formats of the tensors tell what is quantised, not lists of
 * modules in the configuration; an unquantised module has a NAME.weight of plain numbers. */
#include "engine/model/containers/quantized_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 512

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

/* ---- quantization_config ---- */

static enum err config_fail(const struct hf *hf, const char *key, const char *value,
                            const char *have)
{
    return fail(ERR_INPUT,
                "%.512s/config.json: quantization_config.%s: unsupported: %.100s (supported: %s)",
                hf->dir, key, value, have);
}

static void full_key(char full[100], const char *key)
{
    snprintf(full, 100, "quantization_config.%s", key);
}

/* "" if the key is absent. */
static enum err config_str(const struct hf *hf, const char *key, const char **out)
{
    char full[100];
    int64_t n;
    int found;
    full_key(full, key);
    *out = "";
    return values_str(&hf->config, full, out, &n, &found);
}

/* An optional string; must be one of `have`, "a, b". */
static enum err config_is(const struct hf *hf, const char *key, const char *have, const char **out)
{
    TRY(config_str(hf, key, out));
    const size_t n = strlen(*out);
    for (const char *at = have; n > 0 && (at = strstr(at, *out)); at += n)
        if ((at == have || at[-1] == ' ') && (at[n] == 0 || at[n] == ','))
            return OK;
    return n == 0 ? OK : config_fail(hf, key, *out, have);
}

/* An optional integer; must be `want`. */
static enum err config_number(const struct hf *hf, const char *key, int64_t want)
{
    char full[100], value[32], have[32];
    int64_t i = want;
    int found;
    full_key(full, key);
    TRY(values_int(&hf->config, full, INT32_MIN, INT32_MAX, &i, &found));
    snprintf(value, sizeof value, "%lld", (long long)i);
    snprintf(have, sizeof have, "%lld", (long long)want);
    return i == want ? OK : config_fail(hf, key, value, have);
}

/* An optional flag; must be `want`. */
static enum err config_flag(const struct hf *hf, const char *key, int want)
{
    static const char *const names[] = {"false", "true"};
    char full[100];
    int b = want, found;
    full_key(full, key);
    TRY(values_bool(&hf->config, full, &b, &found));
    return b == want ? OK : config_fail(hf, key, names[b], names[want]);
}

static enum err gptq_config(struct quantized *q)
{
    const char *form;
    TRY(config_number(q->hf, "bits", 4));
    TRY(config_is(q->hf, "checkpoint_format", "gptq, gptq_v2", &form));
    q->zero_add = strcmp(form, "gptq_v2") != 0;
    return OK;
}

static enum err awq_config(const struct hf *hf)
{
    const char *version;
    TRY(config_number(hf, "bits", 4));
    TRY(config_number(hf, "w_bit", 4));
    TRY(config_flag(hf, "zero_point", 1));
    return config_is(hf, "version", "gemm, GEMM", &version);
}

static enum err fp8_config(struct quantized *q)
{
    const char *fmt;
    int64_t block[2], n = 0;
    int found;
    TRY(config_is(q->hf, "fmt", "e4m3", &fmt));
    TRY(values_int_list(&q->hf->config, "quantization_config.weight_block_size", 1, 1 << 20, block,
                        2, &n, &found));
    if (found && (n != 2 || block[1] % 32 != 0))
        return fail(ERR_INPUT,
                    "%.512s/config.json: quantization_config.weight_block_size: expected [rows, "
                    "columns], columns a multiple of 32",
                    q->hf->dir);
    if (found) {
        q->block_n = block[0];
        q->block_k = block[1];
    }
    return OK;
}

/* compressed-tensors: one scheme for all groups, FP8 weights. */
static enum err compressed_config(struct quantized *q)
{
    const char *s;
    char key[64];
    TRY(config_is(q->hf, "format", "float-quantized", &s));
    TRY(config_is(q->hf, "quantization_status", "compressed", &s));
    TRY(config_is(q->hf, "sparsity_config.format", "dense", &s));
    for (int i = 0; i < 16; i++) {
        snprintf(key, sizeof key, "config_groups.group_%d.format", i);
        TRY(config_is(q->hf, key, "float-quantized", &s));
        snprintf(key, sizeof key, "config_groups.group_%d.weights.num_bits", i);
        TRY(config_number(q->hf, key, 8));
        snprintf(key, sizeof key, "config_groups.group_%d.weights.type", i);
        TRY(config_is(q->hf, key, "float", &s));
        snprintf(key, sizeof key, "config_groups.group_%d.weights.strategy", i);
        TRY(config_is(q->hf, key, "tensor, channel, block", &s));
    }
    return OK;
}

static enum err bnb_config(const struct hf *hf)
{
    const char *s;
    TRY(config_flag(hf, "load_in_8bit", 0));
    TRY(config_flag(hf, "load_in_4bit", 1));
    TRY(config_is(hf, "bnb_4bit_quant_type", "nf4", &s));
    return config_is(hf, "bnb_4bit_quant_storage", "uint8", &s);
}

static enum err method_config(struct quantized *q, const char *method)
{
    static const struct {
        const char *name;
        enum quantized_method method;
    } methods[] = {{"gptq", METHOD_GPTQ},
                   {"awq", METHOD_AWQ},
                   {"fp8", METHOD_FP8},
                   {"fbgemm_fp8", METHOD_FP8},
                   {"bitsandbytes", METHOD_NF4},
                   {"mxfp4", METHOD_MXFP4},
                   {"compressed-tensors", METHOD_FP8}};
    enum { N = sizeof methods / sizeof *methods };
    int i = 0;
    while (i < N && strcmp(methods[i].name, method) != 0)
        i++;
    if (i == N)
        return config_fail(q->hf, "quant_method", *method ? method : "missing",
                           "gptq, awq, fp8, fbgemm_fp8, compressed-tensors, bitsandbytes, mxfp4");
    q->method = methods[i].method;
    q->block_n = q->block_k = 128;
    if (i == N - 1)
        return compressed_config(q);
    return q->method == METHOD_GPTQ  ? gptq_config(q)
           : q->method == METHOD_AWQ ? awq_config(q->hf)
           : q->method == METHOD_FP8 ? fp8_config(q)
           : q->method == METHOD_NF4 ? bnb_config(q->hf)
                                     : OK;
}

/* ---- tensors that belong together ---- */

static int is_format(const struct quantized *q, const struct source_tensor *t, const char *format)
{
    return strcmp(safetensors_format(&q->hf->weights, t), format) == 0;
}

/* NAME without its tail; NULL: another tail, or too long. */
static const char *stem_of(const struct source_tensor *t, const char *tail, char stem[NAME_BYTES])
{
    const size_t n = strlen(t->name), n_tail = strlen(tail);
    if (n <= n_tail || n - n_tail >= NAME_BYTES || strcmp(t->name + n - n_tail, tail) != 0)
        return NULL;
    memcpy(stem, t->name, n - n_tail);
    stem[n - n_tail] = 0;
    return stem;
}

static const struct source_tensor *beside(const struct quantized *q, const char *stem,
                                          const char *tail)
{
    char name[NAME_BYTES + 64];
    snprintf(name, sizeof name, "%s%s", stem, tail);
    return safetensors_find(&q->hf->weights, name);
}

/* The tensor STEM + tail, which must have this format ("": any plain numbers) and shape. */
static enum err need(const struct quantized *q, const char *stem, const char *tail,
                     const char *format, int64_t n, int64_t k, const struct source_tensor **out)
{
    const struct source_tensor *t = *out = beside(q, stem, tail);
    if (!t)
        return quantized_fail(q, stem, "%s is missing", tail);
    if (*format ? !is_format(q, t, format) : t->dtype == N_DTYPES)
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
    char name[NAME_BYTES + 64];
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

/* The format for groups of this length along k: the largest whose groups divide them. */
static enum dtype dtype_of_groups(int64_t group)
{
    return group % 128 == 0  ? DTYPE_G4_128
           : group % 64 == 0 ? DTYPE_G4_64
           : group % 32 == 0 ? DTYPE_G4_32
                             : N_DTYPES;
}

/* g_idx gives the group of each number along k; desc_act permutes them. */
static enum err gptq_order_check(const struct quantized *q, const char *stem, int64_t k,
                                 int64_t group)
{
    const struct source_tensor *t = beside(q, stem, ".g_idx");
    int32_t index[1024];
    if (!t)
        return OK;
    if (t->n_dims != 1 || t->dims[0] != k || !is_format(q, t, "I32"))
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
            return quantized_fail(q, t->name,
                                  "unsupported: groups in the order of activations "
                                  "(quantization_config.desc_act true)");
    }
    return OK;
}

static enum err groups_add(struct quantized *q, const struct source_tensor *codes)
{
    char stem[NAME_BYTES];
    if (!stem_of(codes, ".qweight", stem))
        return OK;
    if (!is_format(q, codes, "I32") || codes->n_dims != 2 || codes->n_bytes == 0)
        return quantized_fail(q, codes->name, "expected I32 of two dimensions");
    const int by_k = q->method == METHOD_GPTQ; // a word's eight codes are along k, or in eight rows
    const int64_t k = codes->dims[0] * (by_k ? 8 : 1), n = codes->dims[1] * (by_k ? 1 : 8);
    const struct source_tensor *scales = beside(q, stem, ".scales");
    const int64_t n_groups = scales && scales->n_dims == 2 ? scales->dims[0] : 0;
    if (n_groups == 0 || k % n_groups != 0 || n % 8 != 0)
        return quantized_fail(q, codes->name, "%lld numbers of %lld rows do not match %s.scales",
                              (long long)k, (long long)n, stem);
    struct quantized_tensor as = {
        .method = q->method,
        .codes = codes,
        .scale_n = 1,
        .scale_k = k / n_groups,
        .t = {.dtype = dtype_of_groups(k / n_groups), .n_dims = 2, .dims = {n, k}}};
    TRY(need(q, stem, ".scales", "", n_groups, n, &as.scales));
    TRY(need(q, stem, ".qzeros", "I32", n_groups, n / 8, &as.zeros));
    if (as.t.dtype == N_DTYPES)
        return quantized_fail(q, codes->name,
                              "unsupported: groups of %lld (supported: multiples of 32)",
                              (long long)as.scale_k);
    if (by_k)
        TRY(gptq_order_check(q, stem, k, as.scale_k));
    return quantized_keep(q, as, stem, ".weight");
}

static enum err fp8_add(struct quantized *q, const struct source_tensor *codes)
{
    if (!is_format(q, codes, "F8_E4M3"))
        return OK;
    if (codes->n_dims != 2 || codes->n_bytes == 0)
        return quantized_fail(q, codes->name, "expected two dimensions");
    const int64_t n = codes->dims[0], k = codes->dims[1];
    const struct source_tensor *inv = beside(q, codes->name, "_scale_inv");
    const struct source_tensor *s = inv ? inv : beside(q, codes->name, "_scale");
    if (!s || s->dtype == N_DTYPES)
        return quantized_fail(q, codes->name, "%s",
                              s ? "the scales are not numbers" : "_scale or _scale_inv is missing");
    struct quantized_tensor as = {.method = q->method,
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
    char stem[NAME_BYTES];
    if (!stem_of(codes, "_blocks", stem))
        return OK;
    const int n_dims = codes->n_dims;
    const struct source_tensor *scales = beside(q, stem, "_scales");
    int same = scales && is_format(q, scales, "U8") && is_format(q, codes, "U8") && n_dims >= 3 &&
               scales->n_dims == n_dims - 1 && codes->dims[n_dims - 1] == 16 && codes->n_bytes > 0;
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
        return fp8_add(q, t);
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
    char stem[NAME_BYTES];
    for (int64_t i = 0; i < q->n_tensors && !q->biases_count; i++) {
        const struct source_tensor *t =
            stem_of(&q->tensors[i].t, ".weight", stem) ? beside(q, stem, ".bias") : NULL;
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
                 {".input_scale", ".weight"},
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
    char matrix[NAME_BYTES + 64], stem[NAME_BYTES];
    for (int i = 0; i < N && q; i++) {
        const int is_bias = i == N - 1;
        if ((is_bias && (q->method != METHOD_GPTQ || q->biases_count)) ||
            !stem_of(&t, parts[i].tail, stem))
            continue;
        snprintf(matrix, sizeof matrix, "%s%s", stem, parts[i].of);
        if (quantized_find(q, matrix))
            return 1;
    }
    return 0;
}

enum err quantized_open(struct quantized **out, const struct hf *hf)
{
    int64_t n_members;
    int found;
    const char *method;
    *out = NULL;
    TRY(values_count(&hf->config, "quantization_config", &n_members, &found));
    if (!found)
        return OK;
    struct quantized *q = calloc(1, sizeof *q);
    if (!q)
        return no_memory();
    q->hf = hf;
    enum err e = config_str(hf, "quant_method", &method);
    if (e == OK)
        e = method_config(q, method);
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
