/* engine/model/containers/quantized_config.c - quantization_config: the method of a checkpoint, and
 * what of it is supported.
 *
 * Refuses: lists of modules. The tensors tell what is quantised (quantized.c). */
#include "engine/model/containers/quantized_impl.h"

#include <stdio.h>
#include <string.h>

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

/* have: "a, b". */
static int is_one_of(const char *value, const char *have)
{
    const size_t n = strlen(value);
    for (const char *at = have; n > 0 && (at = strstr(at, value)); at += n)
        if ((at == have || at[-1] == ' ') && (at[n] == 0 || at[n] == ','))
            return 1;
    return 0;
}

/* An optional string; must be one of `have`. */
static enum err config_is(const struct hf *hf, const char *key, const char *have, const char **out)
{
    TRY(config_str(hf, key, out));
    return **out == 0 || is_one_of(*out, have) ? OK : config_fail(hf, key, *out, have);
}

/* An optional integer, likewise. */
static enum err config_number(const struct hf *hf, const char *key, const char *have)
{
    char full[100], value[32];
    int64_t i;
    int found;
    full_key(full, key);
    TRY(values_int(&hf->config, full, INT32_MIN, INT32_MAX, &i, &found));
    snprintf(value, sizeof value, "%lld", (long long)i);
    return !found || is_one_of(value, have) ? OK : config_fail(hf, key, value, have);
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
    TRY(config_number(q->hf, "bits", "4"));
    TRY(config_is(q->hf, "checkpoint_format", "gptq, gptq_v2", &form));
    q->zero_add = strcmp(form, "gptq_v2") != 0;
    return OK;
}

static enum err awq_config(const struct hf *hf)
{
    const char *version;
    TRY(config_number(hf, "bits", "4"));
    TRY(config_number(hf, "w_bit", "4"));
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

/* compressed-tensors. Groups of modules may differ; the tensors tell which one a matrix is of. */
static enum err compressed_config(struct quantized *q)
{
    static const char formats[] = "float-quantized, pack-quantized, mixed-precision";
    const char *s;
    char key[100];
    int64_t n;
    int found = 0;
    TRY(config_is(q->hf, "format", formats, &s));
    TRY(config_is(q->hf, "quantization_status", "compressed", &s));
    TRY(config_is(q->hf, "sparsity_config.format", "dense", &s));
    for (int i = 0; i < 16; i++) {
        snprintf(key, sizeof key, "config_groups.group_%d.format", i);
        TRY(config_is(q->hf, key, formats, &s));
        snprintf(key, sizeof key, "config_groups.group_%d.weights.num_bits", i);
        TRY(config_number(q->hf, key, "4, 8"));
        snprintf(key, sizeof key, "config_groups.group_%d.weights.type", i);
        TRY(config_is(q->hf, key, "float, int", &s));
        snprintf(key, sizeof key, "config_groups.group_%d.weights.strategy", i);
        TRY(config_is(q->hf, key, "tensor, channel, group, block", &s));
    }
    full_key(key, "transform_config.config_groups"); // rotations of what goes into a matrix
    if (!values_null(&q->hf->config, "quantization_config.transform_config"))
        TRY(values_count(&q->hf->config, key, &n, &found));
    return found && n > 0 ? config_fail(q->hf, "transform_config", "present", "none") : OK;
}

static enum err bnb_config(const struct hf *hf)
{
    const char *s;
    TRY(config_flag(hf, "load_in_8bit", 0));
    TRY(config_flag(hf, "load_in_4bit", 1));
    TRY(config_is(hf, "bnb_4bit_quant_type", "nf4", &s));
    return config_is(hf, "bnb_4bit_quant_storage", "uint8", &s);
}

enum err quantized_config(struct quantized *q)
{
    const char *method;
    static const struct {
        const char *name;
        enum quantized_method method;
    } methods[] = {{"gptq", METHOD_GPTQ},
                   {"awq", METHOD_AWQ},
                   {"fp8", METHOD_FP8},
                   {"fbgemm_fp8", METHOD_FP8},
                   {"bitsandbytes", METHOD_NF4},
                   {"mxfp4", METHOD_MXFP4},
                   {"compressed-tensors", METHOD_COMPRESSED}};
    enum { N = sizeof methods / sizeof *methods };
    int i = 0;
    TRY(config_str(q->hf, "quant_method", &method));
    while (i < N && strcmp(methods[i].name, method) != 0)
        i++;
    if (i == N)
        return config_fail(q->hf, "quant_method", *method ? method : "missing",
                           "gptq, awq, fp8, fbgemm_fp8, compressed-tensors, bitsandbytes, mxfp4");
    q->method = methods[i].method;
    q->block_n = q->block_k = 128;
    return q->method == METHOD_GPTQ         ? gptq_config(q)
           : q->method == METHOD_AWQ        ? awq_config(q->hf)
           : q->method == METHOD_FP8        ? fp8_config(q)
           : q->method == METHOD_NF4        ? bnb_config(q->hf)
           : q->method == METHOD_COMPRESSED ? compressed_config(q)
                                            : OK;
}
