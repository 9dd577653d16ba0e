/* engine/model/containers/quantized_config.c - quantization_config: the method of a checkpoint, and
 * what of it is supported.
 *
 * Refuses: lists of modules. The tensors tell what is quantised (quantized.c). */
#include "engine/model/containers/quantized_impl.h"

#include <stdio.h>
#include <string.h>

static enum err config_fail(const struct quantized *q, const char *key, const char *value,
                            const char *have)
{
    return fail(ERR_INPUT, "%.600s: %s.%s: unsupported: %.100s (supported: %s)", q->config->file,
                q->section, key, value, have);
}

static void full_key(const struct quantized *q, char full[100], const char *key)
{
    snprintf(full, 100, "%s.%s", q->section, key);
}

/* "" if the key is absent. */
static enum err config_str(const struct quantized *q, const char *key, const char **out)
{
    char full[100];
    int64_t n;
    int found;
    full_key(q, full, key);
    *out = "";
    return values_str(q->config, full, out, &n, &found);
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
static enum err config_is(const struct quantized *q, const char *key, const char *have,
                          const char **out)
{
    TRY(config_str(q, key, out));
    return **out == 0 || is_one_of(*out, have) ? OK : config_fail(q, key, *out, have);
}

/* An optional integer, likewise. */
static enum err config_number(const struct quantized *q, const char *key, const char *have)
{
    char full[100], value[32];
    int64_t i;
    int found;
    full_key(q, full, key);
    TRY(values_int(q->config, full, INT32_MIN, INT32_MAX, &i, &found));
    snprintf(value, sizeof value, "%lld", (long long)i);
    return !found || is_one_of(value, have) ? OK : config_fail(q, key, value, have);
}

/* An optional flag; must be `want`. */
static enum err config_flag(const struct quantized *q, const char *key, int want)
{
    static const char *const names[] = {"false", "true"};
    char full[100];
    int b = want, found;
    full_key(q, full, key);
    TRY(values_bool(q->config, full, &b, &found));
    return b == want ? OK : config_fail(q, key, names[b], names[want]);
}

static enum err gptq_config(struct quantized *q)
{
    const char *form;
    char key[100];
    int64_t bits = 4;
    int found;
    full_key(q, key, "bits");
    TRY(config_number(q, "bits", "4, 8"));
    TRY(values_int(q->config, key, 4, 8, &bits, &found));
    q->bits = (int)bits;
    TRY(config_is(q, "checkpoint_format", "gptq, gptq_v2", &form));
    q->zero_add = strcmp(form, "gptq_v2") != 0;
    return OK;
}

static enum err awq_config(const struct quantized *q)
{
    const char *version;
    TRY(config_number(q, "bits", "4"));
    TRY(config_number(q, "w_bit", "4"));
    TRY(config_flag(q, "zero_point", 1));
    return config_is(q, "version", "gemm, GEMM", &version);
}

static enum err fp8_config(struct quantized *q)
{
    const char *fmt;
    int64_t block[2], n = 0;
    int found;
    TRY(config_is(q, "fmt", "e4m3", &fmt));
    char full[100];
    full_key(q, full, "weight_block_size");
    TRY(values_int_list(q->config, full, 1, 1 << 20, block, 2, &n, &found));
    if (found && (n != 2 || block[1] % 32 != 0))
        return fail(ERR_INPUT, "%.600s: %s: expected [rows, columns], columns a multiple of 32",
                    q->config->file, full);
    if (found) {
        q->block_n = block[0];
        q->block_k = block[1];
    }
    return OK;
}

/* compressed-tensors. Groups of modules may differ; the tensors tell which one a matrix is of. */
static enum err compressed_config(struct quantized *q)
{
    static const char formats[] = "float-quantized, int-quantized, naive-quantized, "
                                  "pack-quantized, nvfp4-pack-quantized, "
                                  "mxfp4-pack-quantized, mixed-precision";
    const char *s;
    char key[100];
    int64_t n;
    int found = 0;
    TRY(config_is(q, "format", formats, &s));
    TRY(config_is(q, "quantization_status", "compressed", &s));
    TRY(config_is(q, "sparsity_config.format", "dense", &s));
    for (int i = 0; i < 16; i++) {
        snprintf(key, sizeof key, "config_groups.group_%d.format", i);
        TRY(config_is(q, key, formats, &s));
        snprintf(key, sizeof key, "config_groups.group_%d.weights.num_bits", i);
        TRY(config_number(q, key, "4, 8"));
        snprintf(key, sizeof key, "config_groups.group_%d.weights.type", i);
        TRY(config_is(q, key, "float, int", &s));
        snprintf(key, sizeof key, "config_groups.group_%d.weights.strategy", i);
        TRY(config_is(q, key, "tensor, channel, group, block, tensor_group", &s));
    }
    full_key(q, key, "transform_config"); // rotations of what goes into a matrix
    if (!values_null(q->config, key)) {
        full_key(q, key, "transform_config.config_groups");
        TRY(values_count(q->config, key, &n, &found));
    }
    return found && n > 0 ? config_fail(q, "transform_config", "present", "none") : OK;
}

/* modelopt: the tensors tell the rest. Others of its algorithms scale what goes into a matrix. */
static enum err modelopt_config(struct quantized *q)
{
    const char *s;
    return config_is(q, "quant_algo",
                     "FP8, FP8_PER_CHANNEL_PER_TOKEN, NVFP4, W4A16_NVFP4, MIXED_PRECISION", &s);
}

static enum err bnb_config(const struct quantized *q)
{
    const char *s;
    TRY(config_flag(q, "load_in_8bit", 0));
    TRY(config_flag(q, "load_in_4bit", 1));
    TRY(config_is(q, "bnb_4bit_quant_type", "nf4", &s));
    return config_is(q, "bnb_4bit_quant_storage", "uint8", &s);
}

enum err quantized_config(struct quantized *q)
{
    const char *method, *algo;
    static const struct {
        const char *name;
        enum quantized_method method;
    } methods[] = {{"gptq", METHOD_GPTQ},
                   {"awq", METHOD_AWQ},
                   {"fp8", METHOD_FP8},
                   {"fbgemm_fp8", METHOD_FP8},
                   {"bitsandbytes", METHOD_NF4},
                   {"mxfp4", METHOD_MXFP4},
                   {"compressed-tensors", METHOD_COMPRESSED},
                   {"modelopt", METHOD_COMPRESSED}};
    enum { N = sizeof methods / sizeof *methods };
    int i = 0;
    TRY(config_str(q, "quant_method", &method));
    if (*method == 0) { // hf_quant_config.json, and config.json of older versions, have no such key
        TRY(config_str(q, "quant_algo", &algo));
        method = *algo ? "modelopt" : method;
    }
    while (i < N && strcmp(methods[i].name, method) != 0)
        i++;
    if (i == N)
        return config_fail(
            q, "quant_method", *method ? method : "missing",
            "gptq, awq, fp8, fbgemm_fp8, compressed-tensors, modelopt, bitsandbytes, "
            "mxfp4");
    q->method = methods[i].method;
    q->block_n = q->block_k = 128;
    q->bits = 4;
    if (i == N - 1)
        return modelopt_config(q);
    return q->method == METHOD_GPTQ         ? gptq_config(q)
           : q->method == METHOD_AWQ        ? awq_config(q)
           : q->method == METHOD_FP8        ? fp8_config(q)
           : q->method == METHOD_NF4        ? bnb_config(q)
           : q->method == METHOD_COMPRESSED ? compressed_config(q)
                                            : OK;
}
