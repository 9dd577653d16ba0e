/* tests/fuzz/fuzz_json.c - a Hugging Face directory: config.json, generation_config.json, the index
 * of shards and the header of the weights (four parts of the input; without the third, or when it
 * is empty, the weights are one file, without the fourth those of a llama), taken for a model of a
 * family. */
#include "engine/model/containers/hf.h"
#include "engine/model/pack.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS          2
#define FUZZ_DATA_MAX   (1 << 20)
#define FUZZ_HEADER_MAX (1 << 15)

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

/* Where the data of a header end: the largest number before a bracket. What says more than
 * FUZZ_DATA_MAX finds its file cut off. */
static int64_t data_end(const uint8_t *text, size_t n)
{
    int64_t end = 0, number = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] >= '0' && text[i] <= '9')
            number = min_i64(10 * number + (text[i] - '0'), FUZZ_DATA_MAX + 1);
        else if (text[i] == ']' && number <= FUZZ_DATA_MAX)
            end = max_i64(end, number);
        if (text[i] < '0' || text[i] > '9')
            number = 0;
    }
    return end;
}

/* The weights as a file; their data are zeros. */
static void weights_file(const char *name, const uint8_t *header, size_t n_header)
{
    static uint8_t head[8 + FUZZ_HEADER_MAX];
    const uint64_t n = n_header;
    if (n_header == 0 || n_header > FUZZ_HEADER_MAX) {
        fuzz_file_sparse(name, weights_bytes, weights, n_weights, NULL, 0);
        return;
    }
    memcpy(head, &n, 8);
    memcpy(head + 8, header, n_header);
    const int64_t n_head = 8 + (int64_t)n_header;
    fuzz_file_sparse(name, n_head + data_end(header, n_header), head, n_head, NULL, 0);
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
    const uint8_t *at = data, *end = data + n, *parts[4];
    size_t sizes[4];
    struct source s;
    for (int i = 0; i < 4; i++)
        parts[i] = fuzz_part(&at, end, &sizes[i]);
    fuzz_file("config.json", parts[0], sizes[0]);
    if (sizes[1] > 0)
        fuzz_file("generation_config.json", parts[1], sizes[1]);
    if (sizes[2] > 0)
        fuzz_file("model.safetensors.index.json", parts[2], sizes[2]);
    weights_file(sizes[2] > 0 ? "a.safetensors" : "model.safetensors", parts[3], sizes[3]);
    if (source_open(&s, FUZZ_DIR) == OK) {
        struct pack_provider p;
        int64_t ids[HF_EOS_MAX], n_ids;
        lists_ask(s.impl);
        if (hf_eos_ids(s.impl, 40, ids, &n_ids) == OK)
            for (int64_t i = 0; i < n_ids; i++)
                CHECK(ids[i] >= 0 && ids[i] < 40);
        if (pack_source_open(&p, &s) == OK) {
            fuzz_provider_use(&p);
            pack_source_close(&p);
        }
    }
    source_close(&s);
}

const struct fuzz_target fuzz_json = {.name = "json", .init = weights_make, .one = one};
