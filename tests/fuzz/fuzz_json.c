/* tests/fuzz/fuzz_json.c - a Hugging Face directory: config.json, generation_config.json and the
 * index of shards (three parts of the input; without the third the weights are one file), taken for
 * a model of a family. */
#include "engine/source/hf.h"
#include "engine/pack/pack.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS 2

/* Weights of a llama with dim 32, 2 heads of 16, ffn 48, vocab 40; all zeros. */
static char weights[8192];
static int64_t n_weights, weights_bytes;

static void tensor_add(char *text, size_t cap, int64_t *at, const char *name, int n, int k)
{
    const size_t used = strlen(text);
    const int64_t end = *at + 4 * (int64_t)n * max_i64(k, 1);
    char shape[32];
    snprintf(shape, sizeof shape, k ? "[%d,%d]" : "[%d]", n, k);
    CHECK(snprintf(text + used, cap - used,
                   "%s\"%s\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[%lld,%lld]}",
                   used > 1 ? "," : "", name, shape, (long long)*at,
                   (long long)end) < (int)(cap - used));
    *at = end;
}

static void weights_make(void)
{
    static const struct {
        const char *name;
        int n, k;
    } parts[] = {
        {"input_layernorm.weight", 32, 0},   {"post_attention_layernorm.weight", 32, 0},
        {"self_attn.q_proj.weight", 32, 32}, {"self_attn.k_proj.weight", 32, 32},
        {"self_attn.v_proj.weight", 32, 32}, {"self_attn.o_proj.weight", 32, 32},
        {"mlp.gate_proj.weight", 48, 32},    {"mlp.up_proj.weight", 48, 32},
        {"mlp.down_proj.weight", 32, 48},
    };
    char *text = weights + 8;
    const size_t cap = sizeof weights - 8;
    int64_t at = 0;
    snprintf(text, cap, "{");
    tensor_add(text, cap, &at, "model.embed_tokens.weight", 40, 32);
    tensor_add(text, cap, &at, "model.norm.weight", 32, 0);
    for (int layer = 0; layer < LAYERS; layer++)
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            char name[96];
            snprintf(name, sizeof name, "model.layers.%d.%s", layer, parts[i].name);
            tensor_add(text, cap, &at, name, parts[i].n, parts[i].k);
        }
    const size_t n = strlen(text);
    snprintf(text + n, cap - n, "}");
    const uint64_t n_header = n + 1;
    memcpy(weights, &n_header, 8);
    n_weights = (int64_t)n_header + 8;
    weights_bytes = n_weights + at;
}

static void lists_ask(const struct hf *hf)
{
    static const char *const keys[] = {"a",           "a.b",          "architectures",
                                       "layer_types", "eos_token_id", "rope_scaling.factor",
                                       "vocab_size"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int64_t x[8], n, n_bytes;
        const char *s[8];
        double d;
        int b, found;
        (void)values_int(&hf->config, keys[i], 0, 1 << 20, x, &found);
        (void)values_float(&hf->config, keys[i], &d, &found);
        (void)values_bool(&hf->config, keys[i], &b, &found);
        if (values_str(&hf->config, keys[i], s, &n_bytes, &found) == OK && found)
            CHECK((int64_t)strlen(s[0]) == n_bytes);
        if (hf_int_array(hf, keys[i], -5, 1 << 20, x, 8, &n, &found) == OK && found)
            CHECK(n >= 0 && n <= 8);
        if (hf_str_array(hf, keys[i], s, 8, &n, &found) == OK && found)
            for (int64_t k = 0; k < n; k++)
                CHECK(strlen(s[k]) < 1 << 20);
        (void)values_count(&hf->config, keys[i], &n, &found);
    }
}

static void one(const uint8_t *data, size_t n)
{
    const uint8_t *at = data, *end = data + n, *text;
    size_t n_text;
    struct source s;
    text = fuzz_part(&at, end, &n_text);
    fuzz_file("config.json", text, n_text);
    if (at < end) {
        text = fuzz_part(&at, end, &n_text);
        fuzz_file("generation_config.json", text, n_text);
    }
    fuzz_file_sparse(at < end ? "a.safetensors" : "model.safetensors", weights_bytes, weights,
                     n_weights, NULL, 0);
    if (at < end) {
        text = fuzz_part(&at, end, &n_text);
        fuzz_file("model.safetensors.index.json", text, n_text);
    }
    if (source_open(&s, FUZZ_DIR) == OK) {
        struct pack_provider p;
        int64_t ids[16], n_ids;
        lists_ask(s.impl);
        if (hf_eos_ids(s.impl, 40, ids, 16, &n_ids) == OK)
            for (int64_t i = 0; i < n_ids; i++)
                CHECK(ids[i] >= 0 && ids[i] < 40);
        if (pack_source_open(&p, &s) == OK) {
            CHECK(!shape_check(&p.shape));
            pack_source_close(&p);
        }
    }
    source_close(&s);
}

const struct fuzz_target fuzz_json = {.name = "json", .init = weights_make, .one = one};
