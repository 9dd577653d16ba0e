/* engine/model/containers/quantized_nf4.c - matrices of bitsandbytes: their tensors and their
 * scales.
 *
 * Owns: quant_state, a JSON text in a tensor, and scales that are 8-bit codes. Refuses: fp4, other
 * block sizes, tables other than nf4's. */
#include "engine/model/containers/quantized_impl.h"
#include "kernels/dtype_nf4.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATE_TAIL      ".quant_state.bitsandbytes__nf4"
#define STATE_BYTES_MAX (64 << 10)
#define NESTED_BLOCK    256 // scales that share a scale

static const float nf4_numbers[16] = {COLUMN_NF4_NUMBERS};

/* The tensor NAME + tail, which must have this format and n numbers in any shape. */
static enum err need(const struct quantized *q, const char *name, const char *tail,
                     const char *format, int64_t n, const struct source_tensor **out)
{
    char full[600];
    snprintf(full, sizeof full, "%.500s%s", name, tail);
    const struct source_tensor *t = *out = safetensors_find(&q->hf->weights, full);
    if (!t)
        return quantized_fail(q, name, "%s is missing", tail);
    if (strcmp(safetensors_format(&q->hf->weights, t), format) != 0)
        return quantized_fail(q, full, "is %s, expected %s", safetensors_format(&q->hf->weights, t),
                              format);
    int64_t has = 1;
    for (int i = 0; i < t->n_dims; i++)
        has *= t->dims[i]; // fits: the file holds as many bytes
    if (n >= 0 && has != n)
        return quantized_fail(q, full, "has %lld numbers, expected %lld", (long long)has,
                              (long long)n);
    return OK;
}

struct state {
    int64_t dims[2], n_dims;
    double offset;
    int nested;
};

static enum err state_get(const struct values *v, struct state *s)
{
    const char *type;
    int64_t n, block = 64, nested_block = NESTED_BLOCK;
    int found;
    TRY(values_str(v, "quant_type", &type, &n, &found));
    if (found && strcmp(type, "nf4") != 0)
        return fail(ERR_INPUT, "%s: quant_type: unsupported: %.40s (supported: nf4)", v->file,
                    type);
    TRY(values_int(v, "blocksize", 1, 1 << 20, &block, &found));
    if (block != 64)
        return fail(ERR_INPUT, "%s: blocksize: unsupported: %lld (supported: 64)", v->file,
                    (long long)block);
    TRY(values_int(v, "nested_blocksize", 1, 1 << 20, &nested_block, &s->nested));
    if (nested_block != NESTED_BLOCK)
        return fail(ERR_INPUT, "%s: nested_blocksize: unsupported: %lld (supported: %d)", v->file,
                    (long long)nested_block, NESTED_BLOCK);
    TRY(values_float(v, "nested_offset", &s->offset, &found));
    if (s->nested && !found)
        return fail(ERR_INPUT, "%s: nested_offset: missing", v->file);
    TRY(values_int_list(v, "shape", 1, INT32_MAX, s->dims, 2, &s->n_dims, &found));
    if (s->n_dims != 2)
        return fail(ERR_INPUT, "%s: shape: expected [rows, columns]", v->file);
    return OK;
}

static enum err state_read(const struct quantized *q, const char *name, struct state *s)
{
    const struct source_tensor *t;
    struct values v = {0};
    char where[1200];
    TRY(need(q, name, STATE_TAIL, "U8", -1, &t));
    if (t->n_bytes > STATE_BYTES_MAX)
        return quantized_fail(q, t->name, "%lld bytes are too many", (long long)t->n_bytes);
    char *text = malloc((size_t)t->n_bytes + 1);
    if (!text)
        return fail(ERR_FIT, "no memory for %s", t->name);
    snprintf(where, sizeof where, "%.500s: tensor %.600s", q->hf->dir, t->name);
    enum err e = safetensors_read(&q->hf->weights, t, 0, t->n_bytes, text);
    if (e == OK)
        e = values_read(&v, text, t->n_bytes, where);
    if (e == OK)
        e = state_get(&v, s);
    values_close(&v);
    free(text);
    return e;
}

static int map_is_known(const float map[256])
{
    float known[256];
    for (int i = 0; i < 256; i++)
        known[i] = nf4_scale_number((uint8_t)i);
    return memcmp(map, known, sizeof known) == 0;
}

/* bitsandbytes computes the table of scales anew for every file. If a bit differs from the known
 * table, the file's is used and scales become f32, as for rows not a multiple of 256. */
static enum err map_take(const struct quantized *q, const struct source_tensor *t,
                         struct quantized_tensor *as)
{
    float map[256];
    TRY(safetensors_read(&q->hf->weights, t, 0, sizeof map, map));
    if (map_is_known(map)) {
        if (as->t.dims[1] % NF4_BLOCK == 0)
            as->t.dtype = DTYPE_NF4_S8;
        return OK;
    }
    as->map = malloc(sizeof map);
    if (!as->map)
        return fail(ERR_FIT, "no memory for %s", t->name);
    memcpy(as->map, map, sizeof map);
    return OK;
}

enum err quantized_nf4_add(struct quantized *q, const struct source_tensor *codes)
{
    char name[600];
    const struct source_tensor *state, *map;
    float numbers[16];
    struct state s = {0};
    snprintf(name, sizeof name, "%.500s%s", codes->name, STATE_TAIL);
    state = safetensors_find(&q->hf->weights, name);
    snprintf(name, sizeof name, "%.500s.absmax", codes->name);
    if (!state && !safetensors_find(&q->hf->weights, name))
        return OK;
    TRY(state_read(q, codes->name, &s));
    const int64_t n = s.dims[0], k = s.dims[1], n_scales = n * k / 64; // fits: both are below 2^31
    struct quantized_tensor as = {.method = METHOD_NF4,
                                  .codes = codes,
                                  .scale_n = 1,
                                  .scale_k = 64,
                                  .t = {.dtype = DTYPE_NF4, .n_dims = 2, .dims = {n, k}}};
    if (k % 64 != 0)
        return quantized_fail(q, codes->name,
                              "unsupported: rows of %lld numbers (supported: multiples of 64)",
                              (long long)k);
    TRY(need(q, codes->name, "", "U8", n * k / 2, &as.codes));
    TRY(need(q, codes->name, ".quant_map", "F32", 16, &map));
    TRY(safetensors_read(&q->hf->weights, map, 0, sizeof numbers, numbers));
    if (memcmp(numbers, nf4_numbers, sizeof numbers) != 0)
        return quantized_fail(q, map->name, "unsupported: this is not the nf4 table");
    TRY(need(q, codes->name, ".absmax", s.nested ? "U8" : "F32", n_scales, &as.scales));
    if (s.nested) {
        as.offset = (float)s.offset;
        TRY(need(q, codes->name, ".nested_absmax", "F32", ceil_div(n_scales, NESTED_BLOCK),
                 &as.nested));
        TRY(need(q, codes->name, ".nested_quant_map", "F32", 256, &map));
        TRY(map_take(q, map, &as));
    }
    enum err e = quantized_keep(q, as, codes->name, "");
    if (e != OK)
        free(as.map);
    return e;
}

enum err quantized_nf4_scales(const struct quantized *q, const struct quantized_tensor *t,
                              int64_t first, int64_t n, float *out)
{
    uint8_t codes[64];
    float scale = 0;
    CHECK(n <= 64);
    if (!t->nested)
        return safetensors_read(&q->hf->weights, t->scales, 4 * first, 4 * n, out);
    TRY(safetensors_read(&q->hf->weights, t->scales, first, n, codes));
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = first + i;
        if (i == 0 || at % NESTED_BLOCK == 0)
            TRY(safetensors_read(&q->hf->weights, t->nested, at / NESTED_BLOCK * 4, 4, &scale));
        const float number = t->map ? t->map[codes[i]] : nf4_scale_number(codes[i]);
        const float product = number * scale;
        out[i] = product + t->offset;
    }
    return OK;
}

enum err quantized_nf4_head(const struct quantized *q, const struct quantized_tensor *t,
                            int64_t first, uint8_t out[12])
{
    TRY(safetensors_read(&q->hf->weights, t->nested, first / NESTED_BLOCK * 4, 4, out));
    memcpy(out + 4, &t->offset, 4);
    return safetensors_read(&q->hf->weights, t->scales, first, NF4_PARTS, out + 8);
}
