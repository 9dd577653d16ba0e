/* engine/model/containers/quantized_compressed.c - matrices of compressed-tensors and modelopt:
 * their tensors.
 *
 * Owns: which of the formats a matrix has. Refuses: FP8 (quantized.c), numbers (quantized_rows.c).
 * Note: a checkpoint may have several formats side by side, and each tensor tells its own; the
 * lists of modules in the configuration (targets, ignore) say nothing more. */
#include "engine/model/containers/quantized_impl.h"

#include <math.h>
#include <string.h>

/* NAME.weight_shape is [n, k]. */
static enum err shape_read(const struct quantized *q, const char *stem, int64_t shape[2])
{
    const struct source_tensor *t = quantized_beside(q, stem, ".weight_shape");
    int32_t words[4];
    if (!t)
        return quantized_fail(q, stem, ".weight_shape is missing");
    const int is_long = quantized_is(q, t, "I64");
    if ((!is_long && !quantized_is(q, t, "I32")) || t->n_dims != 1 || t->dims[0] != 2)
        return quantized_fail(q, t->name, "expected [2] I64 or I32");
    TRY(safetensors_read(&q->hf->weights, t, 0, t->n_bytes, words));
    if (is_long)
        memcpy(shape, words, sizeof words);
    for (int i = 0; i < 2; i++) {
        shape[i] = is_long ? shape[i] : words[i];
        if (shape[i] < 1 || shape[i] > INT32_MAX)
            return quantized_fail(q, t->name, "%lld is no size", (long long)shape[i]);
    }
    return OK;
}

/* Codes less half their range (zeros: less a zero of each group): what holds scales of this
 * format. */
static enum dtype packed_dtype(const struct quantized_tensor *as, int bits)
{
    const int64_t group = as->scale_k;
    if (bits == 8)
        return quantized_with_zeros(8, group);
    if (group % 32 != 0)
        return N_DTYPES;
    if (!as->zeros && as->scales->dtype == DTYPE_BF16)
        return group % 128 == 0 ? DTYPE_B4_128 : DTYPE_B4_32;
    return !as->zeros && group % 64 != 0 ? DTYPE_Q4_0 : quantized_with_zeros(4, group);
}

/* Scales of groups or of rows [n, groups], or one of all numbers. */
static enum err packed_scales(const struct quantized *q, const char *stem, int bits,
                              struct quantized_tensor *as)
{
    const int64_t n = as->t.dims[0], k = as->t.dims[1];
    const struct source_tensor *t = quantized_beside(q, stem, ".weight_scale");
    if (!t)
        return quantized_fail(q, stem, ".weight_scale is missing");
    const int is_one = t->n_dims == 0 || (t->n_dims == 1 && t->dims[0] == 1);
    const int64_t groups = is_one ? 1 : t->n_dims == 2 ? t->dims[1] : 0;
    if (t->dtype == N_DTYPES || groups < 1 || k % groups != 0 || (!is_one && t->dims[0] != n))
        return quantized_fail(q, t->name, "expected numbers, [%lld, groups]", (long long)n);
    as->scales = t;
    as->scale_n = is_one ? n : 1;
    as->scale_k = k / groups;
    const int packed = quantized_is(q, as->codes, "I32");
    if (quantized_beside(q, stem, ".weight_zero_point"))
        TRY(quantized_need(q, stem, ".weight_zero_point", packed ? "I32" : "I8",
                           packed ? ceil_div(n, 32 / bits) : n, groups, &as->zeros));
    TRY(quantized_order(q, stem, ".weight_g_idx", k, as->scale_k, &t));
    return t ? quantized_fail(q, t->name,
                              "unsupported: groups in the order of activations "
                              "(actorder group)")
             : OK;
}

/* Integers: eight or four in an I32, or each an I8. */
static enum err packed_add(struct quantized *q, const char *stem, const struct source_tensor *codes)
{
    struct quantized_tensor as = {.method = METHOD_PACKED, .codes = codes, .t = {.n_dims = 2}};
    const int packed = quantized_is(q, codes, "I32");
    if (codes->n_dims != 2 || codes->n_bytes == 0)
        return quantized_fail(q, codes->name, "expected two dimensions");
    memcpy(as.t.dims, codes->dims, 2 * sizeof *codes->dims);
    if (packed)
        TRY(shape_read(q, stem, as.t.dims));
    const int64_t n = as.t.dims[0], k = as.t.dims[1];
    const int bits = packed && codes->dims[1] == ceil_div(k, 8) ? 4 : 8;
    if (packed && (codes->dims[0] != n || codes->dims[1] != ceil_div(k, 32 / bits)))
        return quantized_fail(q, codes->name,
                              "expected [%lld, %lld or %lld] I32, codes of 4 or 8 bits",
                              (long long)n, (long long)ceil_div(k, 8), (long long)ceil_div(k, 4));
    TRY(packed_scales(q, stem, bits, &as));
    as.t.dtype = packed_dtype(&as, bits);
    if (as.t.dtype == N_DTYPES)
        return quantized_fail(q, codes->name,
                              "unsupported: groups of %lld (supported: multiples of 32)",
                              (long long)as.scale_k);
    return quantized_keep(q, as, stem, ".weight");
}

/* The one number of STEM + tail. */
static enum err factor_read(const struct quantized *q, const char *stem, const char *tail,
                            float *factor)
{
    const struct source_tensor *t = quantized_beside(q, stem, tail);
    if (!t)
        return quantized_fail(q, stem, "%s is missing", tail);
    if (!quantized_is(q, t, "F32") || t->n_bytes != 4)
        return quantized_fail(q, t->name, "expected one number, F32");
    TRY(safetensors_read(&q->hf->weights, t, 0, 4, factor));
    return isnormal(*factor) && *factor > 0
               ? OK
               : quantized_fail(q, t->name, "%g is no factor", (double)*factor);
}

/* Two e2m1 codes a byte: NVFP4, or MXFP4 where scales are exponents. */
static enum err fp4_add(struct quantized *q, const char *stem, const struct source_tensor *codes)
{
    const struct source_tensor *scales = quantized_beside(q, stem, ".weight_scale");
    const int is_mx = scales && quantized_is(q, scales, "U8");
    const int divides = quantized_beside(q, stem, ".weight_global_scale") != NULL;
    struct quantized_tensor as = {.method = is_mx ? METHOD_MXFP4 : METHOD_NVFP4,
                                  .codes = codes,
                                  .scale_n = 1,
                                  .scale_k = is_mx ? 32 : 16,
                                  .t = {.n_dims = 2}};
    if (codes->n_dims != 2 || codes->n_bytes == 0 || !quantized_is(q, codes, "U8"))
        return quantized_fail(q, codes->name, "expected two dimensions of I32 or U8");
    const int64_t n = as.t.dims[0] = codes->dims[0];
    const int64_t k = as.t.dims[1] = 2 * codes->dims[1]; // fits: the file holds half as many bytes
    const int64_t multiple = is_mx ? 32 : 64;
    if (k % multiple != 0)
        return quantized_fail(q, codes->name,
                              "unsupported: rows of %lld numbers (supported: multiples of %lld)",
                              (long long)k, (long long)multiple);
    TRY(quantized_need(q, stem, ".weight_scale", is_mx ? "U8" : "F8_E4M3", n, k / as.scale_k,
                       &as.scales));
    as.t.dtype = is_mx ? DTYPE_MXFP4 : k % 256 == 0 ? DTYPE_NV4_256 : DTYPE_NV4_64;
    if (!is_mx)
        TRY(factor_read(q, stem, divides ? ".weight_global_scale" : ".weight_scale_2", &as.factor));
    if (divides)
        as.factor = -as.factor;
    return quantized_keep(q, as, stem, ".weight");
}

enum err quantized_compressed_add(struct quantized *q, const struct source_tensor *t)
{
    char stem[QUANTIZED_NAME_BYTES];
    if (quantized_stem(t, ".weight_packed", stem))
        return (quantized_is(q, t, "I32") ? packed_add : fp4_add)(q, stem, t);
    if (!quantized_stem(t, ".weight", stem))
        return OK;
    return quantized_is(q, t, "U8")   ? fp4_add(q, stem, t)
           : quantized_is(q, t, "I8") ? packed_add(q, stem, t)
                                      : quantized_fp8_add(q, t);
}
