/* tests/family_test.c - metadata of good and bad model files, held in memory: good ones become the
 * right shape, bad ones an error that names the key or the tensor. */
#include "engine/model/families/family.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail // ours, from base.h

#include "tests/family_fake.h"

static void llama_hf(const char *type)
{
    static const struct line lines[] = {{"input_layernorm.weight", DIM, 0},
                                        {"self_attn.q_proj.weight", HEADS * HEAD_DIM, DIM},
                                        {"self_attn.k_proj.weight", KV_HEADS * HEAD_DIM, DIM},
                                        {"self_attn.v_proj.weight", KV_HEADS * HEAD_DIM, DIM},
                                        {"self_attn.o_proj.weight", DIM, HEADS * HEAD_DIM},
                                        {"post_attention_layernorm.weight", DIM, 0},
                                        {"mlp.gate_proj.weight", FFN, DIM},
                                        {"mlp.up_proj.weight", FFN, DIM},
                                        {"mlp.down_proj.weight", DIM, FFN}};
    start_hf(type);
    set_float("rms_norm_eps", 1e-5);
    set_str("hidden_act", "silu");
    add_layers("model.layers.", lines, 9);
}

static const struct line qkv_biases[] = {{"self_attn.q_proj.bias", HEADS *HEAD_DIM, 0},
                                         {"self_attn.k_proj.bias", KV_HEADS *HEAD_DIM, 0},
                                         {"self_attn.v_proj.bias", KV_HEADS *HEAD_DIM, 0}};

static void qwen2_hf(void)
{
    llama_hf("qwen2");
    add_layers("model.layers.", qkv_biases, 3);
}

static void llama_gguf(void)
{
    static const struct line lines[] = {{"attn_norm.weight", DIM, 0},
                                        {"attn_q.weight", HEADS * HEAD_DIM, DIM},
                                        {"attn_k.weight", KV_HEADS * HEAD_DIM, DIM},
                                        {"attn_v.weight", KV_HEADS * HEAD_DIM, DIM},
                                        {"attn_output.weight", DIM, HEADS * HEAD_DIM},
                                        {"ffn_norm.weight", DIM, 0},
                                        {"ffn_gate.weight", FFN, DIM},
                                        {"ffn_up.weight", FFN, DIM},
                                        {"ffn_down.weight", DIM, FFN}};
    start(SOURCE_GGUF);
    set_str("general.architecture", "llama");
    set_int("llama.block_count", N_LAYERS);
    set_int("llama.embedding_length", DIM);
    set_int("llama.feed_forward_length", FFN);
    set_int("llama.attention.head_count", HEADS);
    set_int("llama.attention.head_count_kv", KV_HEADS);
    set_int("llama.context_length", 4096);
    set_float("llama.attention.layer_norm_rms_epsilon", 1e-5);
    add_layers("blk.", lines, 9);
    add("token_embd.weight", 2, VOCAB, DIM);
    add("output_norm.weight", 1, DIM, 0);
}

static void opt_hf(const char *prefix)
{
    static const struct line lines[] = {{"self_attn.q_proj.weight", DIM, DIM},
                                        {"self_attn.q_proj.bias", DIM, 0},
                                        {"self_attn.k_proj.weight", DIM, DIM},
                                        {"self_attn.k_proj.bias", DIM, 0},
                                        {"self_attn.v_proj.weight", DIM, DIM},
                                        {"self_attn.v_proj.bias", DIM, 0},
                                        {"self_attn.out_proj.weight", DIM, DIM},
                                        {"self_attn.out_proj.bias", DIM, 0},
                                        {"self_attn_layer_norm.weight", DIM, 0},
                                        {"self_attn_layer_norm.bias", DIM, 0},
                                        {"final_layer_norm.weight", DIM, 0},
                                        {"final_layer_norm.bias", DIM, 0},
                                        {"fc1.weight", FFN, DIM},
                                        {"fc1.bias", FFN, 0},
                                        {"fc2.weight", DIM, FFN},
                                        {"fc2.bias", DIM, 0}};
    static const struct line ends[] = {{"embed_tokens.weight", VOCAB, DIM},
                                       {"embed_positions.weight", 102, DIM},
                                       {"final_layer_norm.weight", DIM, 0},
                                       {"final_layer_norm.bias", DIM, 0}};
    char name[80];
    start(SOURCE_HF);
    set_str("model_type", "opt");
    set_int("num_hidden_layers", N_LAYERS);
    set_int("hidden_size", DIM);
    set_int("ffn_dim", FFN);
    set_int("num_attention_heads", HEADS);
    set_int("vocab_size", VOCAB);
    set_int("max_position_embeddings", 100);
    set_int("word_embed_proj_dim", DIM);
    set_str("activation_function", "relu");
    snprintf(name, sizeof name, "%slayers.", prefix);
    add_layers(name, lines, 16);
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "%s%s", prefix, ends[i].name);
        add(name, ends[i].k ? 2 : 1, ends[i].n, ends[i].k);
    }
}

/* 1 / theta^(2i / 64) as transformers 5.23 computes it in f32 on a CPU, by
 * LlamaRotaryEmbedding(LlamaConfig(rope_parameters=...)).inv_freq: theta 10000; theta 100000 with
 * linear scaling by 2.5; theta 500000 with llama3 scaling, factor 32, low 1, high 4, original 8192.
 */
static const float inv_freq_default[32] = {
    0x1.000000p+0f,  0x1.7ff222p-1f,  0x1.1feb34p-1f,  0x1.afd136p-2f,  0x1.43d136p-2f,
    0x1.e5a846p-3f,  0x1.6c310ep-3f,  0x1.111aeep-3f,  0x1.99999ap-4f,  0x1.33281ap-4f,
    0x1.ccab84p-5f,  0x1.59742ap-5f,  0x1.030dc6p-5f,  0x1.84869ep-6f,  0x1.235a72p-6f,
    0x1.b4f7e4p-7f,  0x1.47ae14p-7f,  0x1.eb7360p-8f,  0x1.708938p-8f,  0x1.145ceep-8f,
    0x1.9e7c70p-9f,  0x1.36d21ap-9f,  0x1.d22a50p-10f, 0x1.5d931cp-10f, 0x1.0624dep-10f,
    0x1.892918p-11f, 0x1.26d42cp-11f, 0x1.ba2e4ap-12f, 0x1.4b96c0p-12f, 0x1.f1502ap-13f,
    0x1.74eea6p-13f, 0x1.17a8e4p-13f,
};
static const float inv_freq_linear[32] = {
    0x1.99999ap-2f,  0x1.1dd4d6p-2f,  0x1.8eec7ep-3f,  0x1.166198p-3f,  0x1.84869ep-4f,
    0x1.0f200ep-4f,  0x1.7a6624p-5f,  0x1.080ef0p-5f,  0x1.708936p-6f,  0x1.012cfcp-6f,
    0x1.66ee1cp-7f,  0x1.f4f1e4p-8f,  0x1.5d931cp-8f,  0x1.e7e344p-9f,  0x1.547688p-9f,
    0x1.db2bc6p-10f, 0x1.4b96c0p-10f, 0x1.cec924p-11f, 0x1.42f22cp-11f, 0x1.c2b924p-12f,
    0x1.3a8746p-12f, 0x1.b6f9a0p-13f, 0x1.32548cp-13f, 0x1.ab8884p-14f, 0x1.2a5884p-14f,
    0x1.a063bcp-15f, 0x1.2291c4p-15f, 0x1.958954p-16f, 0x1.1afeeap-16f, 0x1.8af756p-17f,
    0x1.139e94p-17f, 0x1.80abe2p-18f,
};
static const float inv_freq_llama3[32] = {
    0x1.000000p+0f,  0x1.53c38cp-1f,  0x1.c2ef78p-2f,  0x1.2b3dc6p-2f,  0x1.8d2760p-3f,
    0x1.078d40p-3f,  0x1.5dc95ap-4f,  0x1.d03ccep-5f,  0x1.341190p-5f,  0x1.98de92p-6f,
    0x1.0f5386p-6f,  0x1.681adap-7f,  0x1.ddee9ep-8f,  0x1.3d2804p-8f,  0x1.a4ee40p-9f,
    0x1.524f36p-10f, 0x1.c26c40p-12f, 0x1.9731eep-14f, 0x1.46831ap-16f, 0x1.b15902p-17f,
    0x1.1f91f0p-17f, 0x1.7da9e8p-18f, 0x1.fa8b86p-19f, 0x1.5024d6p-19f, 0x1.be2188p-20f,
    0x1.280d96p-20f, 0x1.88ec20p-21f, 0x1.04be68p-21f, 0x1.5a0f4ep-22f, 0x1.cb4a9ap-23f,
    0x1.30c94ep-23f, 0x1.948360p-24f,
};

/* powf of two libraries may differ in the last bit or two, nothing more. */
static void expect_inv_freq(const float *golden)
{
    assert_int_equal(model.shape.rope_dim, 64);
    for (int i = 0; i < 32; i++)
        assert_true(fabsf(model.shape.ropes[0].inv_freq[i] - golden[i]) <= 2.5e-7f * golden[i]);
}

static void test_llama_hf(void **state)
{
    (void)state;
    llama_hf("llama");
    expect_good();
    const struct shape *s = &model.shape;
    assert_string_equal(s->family, "llama");
    assert_int_equal(s->n_layers, N_LAYERS);
    assert_int_equal(s->dim, DIM);
    assert_int_equal(s->embed_dim, DIM);
    assert_int_equal(s->n_heads, HEADS);
    assert_int_equal(s->n_kv_heads, KV_HEADS);
    assert_int_equal(s->head_dim, HEAD_DIM);
    assert_int_equal(s->ffn_dim, FFN);
    assert_int_equal(s->vocab, VOCAB);
    assert_int_equal(s->context, 4096);
    assert_int_equal(s->norm, NORM_RMS);
    assert_int_equal(s->final_norm, 1);
    assert_int_equal(s->act, ACT_SILU);
    assert_int_equal(s->position, POSITION_ROPE);
    assert_true(s->norm_eps == 1e-5f);
    assert_int_equal(model.tied, 0);
    assert_int_equal(model.paired_rows, 0);
    assert_false(model.roles & ROLE_BIT(ROLE_Q_B));
    assert_string_equal(family_tensor(&model, &source, ROLE_Q, 1)->name,
                        "model.layers.1.self_attn.q_proj.weight");
    assert_string_equal(family_tensor(&model, &source, ROLE_HEAD, 0)->name, "lm_head.weight");
    expect_inv_freq(inv_freq_default);
    unset("model_type");
    fake.class_name = "LlamaForCausalLM";
    expect_good();
    fake.class_name = "BloomForCausalLM";
    expect_bad("unsupported architecture BloomForCausalLM (supported: llama, mistral, qwen2, ");
    fake.class_name = NULL;
    expect_bad("model_type: missing");
}

static void test_own_code(void **state) // C10: a model may bring code; it is never looked at
{
    (void)state;
    llama_hf("llama");
    set_str("auto_map.AutoModelForCausalLM", "modeling_x.X");
    set_flag("trust_remote_code", 1);
    expect_good();
    set_str("model_type", "x");
    expect_bad("model_type: unsupported architecture x (supported: llama, mistral, qwen2, qwen3, ");
    unset("model_type");
    fake.class_name = "XForCausalLM";
    expect_bad("unsupported architecture XForCausalLM (supported: llama, mistral, qwen2, qwen3, ");
}

static void test_llama_tied(void **state)
{
    (void)state;
    llama_hf("llama");
    set_flag("tie_word_embeddings", 1);
    expect_good();
    assert_int_equal(model.tied, 1);
    assert_string_equal(family_tensor(&model, &source, ROLE_HEAD, 0)->name,
                        "model.embed_tokens.weight");
    drop("lm_head.weight");
    expect_good();
    unset("tie_word_embeddings");
    expect_good();
    assert_int_equal(model.tied, 1);
    set_flag("tie_word_embeddings", 0); // says that a head is there: a shard is missing
    expect_bad("lm_head.weight: missing");
}

static void test_biases(void **state)
{
    (void)state;
    static const struct line rest[] = {{"self_attn.o_proj.bias", DIM, 0},
                                       {"mlp.gate_proj.bias", FFN, 0},
                                       {"mlp.up_proj.bias", FFN, 0},
                                       {"mlp.down_proj.bias", DIM, 0}};
    llama_hf("llama");
    set_flag("attention_bias", 1);
    expect_bad("model.layers.0.self_attn.q_proj.bias: missing");
    add_layers("model.layers.", qkv_biases, 3);
    expect_bad("self_attn.o_proj.bias: missing");
    unset("attention_bias");
    set_str("model_type", "qwen2"); // always has these three
    set_flag("use_sliding_window", 0);
    set_int("sliding_window", 128); // not used: does not matter
    expect_good();
    assert_string_equal(model.shape.family, "qwen2");
    assert_true(model.roles & ROLE_BIT(ROLE_V_B));
    assert_false(model.roles & ROLE_BIT(ROLE_O_B));
    set_str("model_type", "llama");
    set_flag("attention_bias", 1);
    set_flag("mlp_bias", 1);
    add_layers("model.layers.", rest, 4);
    expect_good();
    assert_true(model.roles & ROLE_BIT(ROLE_O_B));
    assert_true(model.roles & ROLE_BIT(ROLE_GATE_B));
    tensor("model.layers.1.self_attn.k_proj.bias")->dims[0] = 5;
    expect_bad("model.layers.1.self_attn.k_proj.bias: expected [128], the file has [5]");
}

static void test_windows(void **state)
{
    (void)state;
    llama_hf("mistral");
    expect_good();
    set_int("max_position_embeddings", 8192);
    expect_good();
    assert_int_equal(shape_window(&model.shape), 4096);
    set_int("max_position_embeddings", 4096);
    set_int("sliding_window", 4096);
    expect_good();
    assert_int_equal(shape_window(&model.shape), 0);
    set_int("sliding_window", 4095);
    fake.types[0] = fake.types[1] = "full_attention"; // mistral's class does not read it
    fake.n_types = 2;
    expect_good();
    assert_true(model.shape.layer_window[0] == 4095 && model.shape.layer_window[1] == 4095);
    set_null("sliding_window");
    expect_good();
    assert_int_equal(shape_window(&model.shape), 0);
    llama_hf("llama"); // its class reads none of these keys
    fake.types[0] = fake.types[1] = "sliding_attention";
    fake.n_types = 2;
    set_int("sliding_window", 64);
    set_flag("use_sliding_window", 1);
    expect_good();
    assert_int_equal(shape_window(&model.shape), 0);
    qwen2_hf();
    fake.types[0] = fake.types[1] = "full_attention";
    fake.n_types = 1;
    expect_bad("layer_types: has 1 entries, expected 2");
    fake.n_types = 2;
    expect_good();
    fake.types[1] = "sliding_attention";
    expect_bad("use_sliding_window: is not true, but layer_types has sliding_attention");
    set_flag("use_sliding_window", 1);
    expect_good(); // 4096, as long as the context
    assert_int_equal(shape_window(&model.shape), 0);
    set_null("sliding_window");
    expect_bad("sliding_window: missing");
    set_int("sliding_window", 64);
    expect_good();
    assert_true(model.shape.layer_window[0] == 0 && model.shape.layer_window[1] == 64);
    fake.types[1] = "chunked_attention";
    expect_bad("layer_types: unsupported: chunked_attention in layer 1");
    qwen2_hf();
    set_int("sliding_window", 64);
    set_flag("use_sliding_window", 1);
    expect_good(); // without the next key: layers from 28 on
    assert_int_equal(shape_window(&model.shape), 0);
    set_int("max_window_layers", 1); // layers before it see all
    expect_good();
    assert_true(model.shape.layer_window[0] == 0 && model.shape.layer_window[1] == 64);
    set_int("sliding_window", 1);
    expect_bad("sliding_window: 1 is out of range");
    llama_hf("smollm3"); // without a list, the layers without positions have the window
    set_int("no_rope_layer_interval", 2);
    set_int("sliding_window", 64);
    set_flag("use_sliding_window", 1);
    expect_good();
    assert_true(model.shape.layer_window[0] == 0 && model.shape.layer_window[1] == 64);
}

static void test_gguf_windows(void **state)
{
    (void)state;
    llama_gguf();
    set_int("llama.attention.sliding_window", 100);
    expect_good();
    assert_int_equal(model.shape.layer_window[1], 100);
    fake.ints_key = "llama.attention.sliding_window_pattern";
    fake.ints[0] = 2; // every second layer has none
    fake.n_ints = 1;
    expect_good();
    assert_true(model.shape.layer_window[0] == 100 && model.shape.layer_window[1] == 0);
    fake.ints[0] = 0; // a flag per layer
    fake.ints[1] = 1;
    fake.n_ints = 2;
    expect_good();
    assert_true(model.shape.layer_window[0] == 0 && model.shape.layer_window[1] == 100);
    fake.n_ints = 3;
    expect_bad("llama.attention.sliding_window_pattern: has 3 entries, expected 2");
}

/* What would be computed in another way than the model means is refused by its name. */
static void test_strangers(void **state)
{
    (void)state;
    llama_hf("llama");
    add("model.layers.0.self_attn.rotary_emb.inv_freq", 1, 32, 0); // a buffer
    add("model.layers.7.extra.weight", 1, DIM, 0);                 // beyond the last layer
    source.tensors = fake.tensors;
    source.n_tensors = fake.n_tensors;
    expect_good();
    add("model.layers.0.self_attn.q_norm.weight", 1, HEAD_DIM, 0);
    source.n_tensors = fake.n_tensors;
    expect_bad("model.layers.0.self_attn.q_norm.weight: unsupported: llama models have");
    static const struct {
        const char *key;
        double neutral, other;
    } keys[] = {{"embedding_multiplier", 1, 12},
                {"final_logit_softcapping", 0, 30},
                {"num_local_experts", 0, 8},
                {"logits_scaling", 1, 8},
                {"alibi", 0, 1},
                {"scale_attn_weights", 1, 0}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        llama_hf("llama");
        set_float(keys[i].key, keys[i].neutral);
        expect_good();
        set_float(keys[i].key, keys[i].other);
        expect_bad(keys[i].key);
    }
    llama_hf("llama");
    set_str("kv_lora_rank", "many");
    expect_bad("kv_lora_rank: unsupported in llama models");
    llama_gguf();
    set_float("llama.logit_scale", 0.5);
    expect_bad("llama.logit_scale: unsupported in llama models");
}

static void gemma3_vision(const char *prefix)
{
    static const struct line lines[] = {{"input_layernorm.weight", DIM, 0},
                                        {"self_attn.q_proj.weight", 8 * 256, DIM},
                                        {"self_attn.k_proj.weight", 4 * 256, DIM},
                                        {"self_attn.v_proj.weight", 4 * 256, DIM},
                                        {"self_attn.o_proj.weight", DIM, 8 * 256},
                                        {"self_attn.q_norm.weight", 256, 0},
                                        {"self_attn.k_norm.weight", 256, 0},
                                        {"post_attention_layernorm.weight", DIM, 0},
                                        {"pre_feedforward_layernorm.weight", DIM, 0},
                                        {"post_feedforward_layernorm.weight", DIM, 0},
                                        {"mlp.gate_proj.weight", FFN, DIM},
                                        {"mlp.up_proj.weight", FFN, DIM},
                                        {"mlp.down_proj.weight", DIM, FFN}};
    char name[80];
    start(SOURCE_HF);
    set_str("model_type", "gemma3");
    set_int("text_config.hidden_size", DIM);
    set_int("text_config.intermediate_size", FFN);
    set_int("text_config.num_hidden_layers", N_LAYERS);
    set_int("text_config.sliding_window", 1024);
    snprintf(name, sizeof name, "%slayers.", prefix);
    add_layers(name, lines, sizeof lines / sizeof *lines);
    snprintf(name, sizeof name, "%sembed_tokens.weight", prefix);
    add(name, 2, 262208, DIM);
    snprintf(name, sizeof name, "%snorm.weight", prefix);
    add(name, 1, DIM, 0);
}

/* A vision tower beside it: keys are those of a section, what it leaves out is as in the class. */
static void test_vision(void **state)
{
    (void)state;
    struct family_unused unused;
    gemma3_vision("model.language_model.");
    expect_good();
    gemma3_vision("language_model.model.");
    set_int("hidden_size", 7); // of something else
    expect_good();
    const struct shape *s = &model.shape;
    assert_true(s->n_heads == 8 && s->n_kv_heads == 4 && s->head_dim == 256);
    assert_true(s->vocab == 262208 && s->context == 131072 && s->dim == DIM);
    assert_true(s->attn_scale == 1 / 16.0f && s->layer_window[0] == 1024 && model.tied);
    set_str("text_config.model_type", "gemma3_text");
    set_float("text_config.query_pre_attn_scalar", 64);
    expect_good();
    assert_true(s->attn_scale == 1 / 8.0f);
    add("vision_tower.patch.weight", 2, 10, 4);
    add("multi_modal_projector.norm.weight", 1, 10, 0);
    add("vision_tower.probe", 1, 5, 0);
    source.tensors = fake.tensors;
    source.n_tensors = fake.n_tensors;
    expect_good();
    family_unused(&model, &source, &unused);
    assert_true(unused.n_tensors == 3 && unused.n_bytes == 2 * (40 + 10 + 5));
    assert_string_equal(unused.parts, "vision_tower multi_modal_projector");
    set_float("text_config.final_logit_softcapping", 30);
    expect_bad("text_config.final_logit_softcapping: unsupported in gemma3 models");
    unset("text_config.final_logit_softcapping");
    set_flag("text_config.use_bidirectional_attention", 1);
    expect_bad("text_config.use_bidirectional_attention");
    unset("text_config.use_bidirectional_attention");
    set_str("text_config.model_type", "llama");
    expect_bad("text_config.model_type: unsupported: llama");
    unset("text_config.model_type");
    unset("text_config.hidden_size");
    expect_bad("text_config.hidden_size: missing");
    unset("text_config.sliding_window");
    expect_bad("text_config.sliding_window: missing");
    llama_hf("mistral7");
    set_int("text_config.hidden_size", DIM);
    expect_bad("unsupported architecture mistral7 (supported: llama, mistral, qwen2, qwen3, ");
}

/* Fused tensors: which row of the file is whose. */
static void test_cuts(void **state)
{
    (void)state;
    struct family_model *m = &model;
    *m = (struct family_model){
        .shape = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 8, .rope_dim = 8}};
    family_cut_qkv(m);
    assert_int_equal(m->cut[ROLE_V].rows, 64);
    assert_int_equal(family_source_row(m, ROLE_Q, 31), 31);
    assert_int_equal(family_source_row(m, ROLE_K, 0), 32);
    assert_int_equal(family_source_row(m, ROLE_K_B, 15), 47);
    assert_int_equal(family_source_row(m, ROLE_V, 15), 63);
    m->paired_rows = 1; // both at once
    assert_int_equal(family_source_row(m, ROLE_K, 1), 34);
    assert_int_equal(family_source_row(m, ROLE_V, 1), 49);
    m->cut[ROLE_UP] = (struct family_cut){12, 1, 1, 2}; // every other row
    assert_int_equal(family_source_row(m, ROLE_UP, 5), 11);
}

/* Each number 0, negative, too large, of the wrong type, or missing: the error names its key. */
static void bad_numbers(const char *const *keys, int n, int missing_is_bad)
{
    static const double bad[] = {0, -1, 2147483648.0, 4294971392.0, 9.3e18};
    for (int i = 0; i < n; i++) {
        struct fake_value *v = value(keys[i]), saved;
        assert_non_null(v);
        saved = *v;
        for (size_t j = 0; j < sizeof bad / sizeof *bad; j++) {
            v->number = bad[j];
            expect_bad(keys[i]);
        }
        *v = saved;
        v->kind = FAKE_STR;
        v->str = "4096";
        expect_bad(keys[i]);
        v->key[0] = 0;
        if (missing_is_bad)
            expect_bad(keys[i]);
        *v = saved;
        expect_good();
    }
}

static void test_bad_numbers(void **state)
{
    (void)state;
    static const char *const hf[] = {"num_hidden_layers", "hidden_size",
                                     "intermediate_size", "num_attention_heads",
                                     "vocab_size",        "max_position_embeddings"};
    static const char *const gguf[] = {"llama.block_count", "llama.embedding_length",
                                       "llama.feed_forward_length", "llama.attention.head_count",
                                       "llama.context_length"};
    static const char *const opt[] = {"num_hidden_layers", "hidden_size",
                                      "ffn_dim",           "num_attention_heads",
                                      "vocab_size",        "max_position_embeddings"};
    static const char *const kv[] = {"num_key_value_heads"};
    llama_hf("llama");
    bad_numbers(hf, 6, 1);
    bad_numbers(kv, 1, 0);
    set_int("num_hidden_layers", 513);
    expect_bad("num_hidden_layers");
    llama_gguf();
    bad_numbers(gguf, 5, 1);
    set_int("llama.block_count", 513); // G16: 512 is the most that there may be
    expect_bad("llama.block_count");
    opt_hf("model.decoder.");
    bad_numbers(opt, 6, 1);
    set_int("num_hidden_layers", 513);
    expect_bad("num_hidden_layers");
}

static void test_heads(void **state)
{
    (void)state;
    llama_hf("llama");
    set_int("num_key_value_heads", 3);
    expect_bad("num_attention_heads: 8 is not a multiple of num_key_value_heads, 3");
    set_int("num_key_value_heads", 16);
    expect_bad("num_key_value_heads");
    llama_hf("llama");
    set_int("num_attention_heads", 6);
    expect_bad("hidden_size: 512 is not a multiple of num_attention_heads, 6");
    llama_hf("llama");
    set_int("head_dim", 63);
    expect_bad("head_dim: 63 is odd");
    set_int("head_dim", 1024);
    expect_bad("head_dim");
    set_int("head_dim", 64);
    expect_good();
    set_int("head_dim", 32); // the tensors say otherwise
    expect_bad("q_proj.weight: expected [256, 512], the file has [512, 512]");
    llama_gguf();
    set_int("llama.attention.value_length", 32);
    expect_bad("llama.attention.value_length");
    llama_gguf();
    set_int("llama.rope.dimension_count", 66);
    expect_bad("llama.rope.dimension_count");
    set_int("llama.rope.dimension_count", 31);
    expect_bad("llama.rope.dimension_count");
    set_int("llama.rope.dimension_count", 32);
    expect_good();
    assert_int_equal(model.shape.rope_dim, 32);
}

static void test_tensors(void **state)
{
    (void)state;
    llama_hf("llama");
    tensor("model.embed_tokens.weight")->dims[0] = VOCAB - 1;
    expect_bad("vocab_size is 1000, the file has 999 rows");
    llama_hf("llama");
    tensor("model.layers.1.mlp.down_proj.weight")->dims[0] = FFN;
    tensor("model.layers.1.mlp.down_proj.weight")->dims[1] = DIM; // transposed
    expect_bad("model.layers.1.mlp.down_proj.weight: expected [512, 640], the file has [640, 512]");
    llama_hf("llama");
    tensor("model.norm.weight")->n_dims = 2;
    expect_bad("model.norm.weight: expected [512], the file has [512, 0]");
    llama_hf("llama");
    tensor("model.norm.weight")->n_bytes = 4;
    expect_bad("model.norm.weight: 4 bytes");
    llama_hf("llama");
    tensor("model.layers.0.mlp.up_proj.weight")->dtype = N_DTYPES;
    expect_bad("model.layers.0.mlp.up_proj.weight: format not supported");
    llama_hf("llama");
    drop("model.layers.1.self_attn.k_proj.weight");
    expect_bad("model.layers.1.self_attn.k_proj.weight: missing");
    drop("model.embed_tokens.weight");
    expect_bad("model.embed_tokens.weight: missing");
    llama_hf("gpt_bigcode");
    expect_bad("model_type: unsupported architecture gpt_bigcode");
}

/* The spelling of transformers 4 (rope_scaling, rope_theta beside it) or 5 (rope_parameters). */
static const char *member(int v5, const char *name)
{
    static char key[80];
    snprintf(key, sizeof key, "%s.%s", v5 ? "rope_parameters" : "rope_scaling", name);
    return key;
}

static void test_scaling_hf(void **state)
{
    (void)state;
    for (int v5 = 0; v5 < 2; v5++) {
        llama_hf("llama");
        set_int(v5 ? member(v5, "rope_theta") : "rope_theta", 500000);
        set_str(member(v5, "rope_type"), "llama3");
        set_float(member(v5, "factor"), 32);
        set_float(member(v5, "low_freq_factor"), 1);
        set_float(member(v5, "high_freq_factor"), 4);
        expect_bad("original_max_position_embeddings: missing");
        set_int(member(v5, "original_max_position_embeddings"), 8192);
        expect_good();
        expect_inv_freq(inv_freq_llama3);
        set_float(member(v5, "high_freq_factor"), 1);
        expect_bad("high_freq_factor");
        set_float(member(v5, "factor"), 0);
        expect_bad("factor");
        llama_hf("llama");
        set_float(v5 ? member(v5, "rope_theta") : "rope_theta", 100000);
        set_str(member(v5, v5 ? "rope_type" : "type"), "linear");
        expect_bad("factor: missing");
        set_float(member(v5, "factor"), 2.5);
        expect_good();
        expect_inv_freq(inv_freq_linear);
        set_str(member(v5, v5 ? "rope_type" : "type"), "ntk");
        expect_bad("unsupported: ntk");
        llama_hf("llama");
        set_float(member(v5, "partial_rotary_factor"), 0.5);
        expect_good();
        assert_int_equal(model.shape.rope_dim, 32);
        set_float(member(v5, "partial_rotary_factor"), 0);
        expect_bad("partial_rotary_factor");
    }
    static const double bad_theta[] = {0, -1, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        llama_hf("llama");
        set_float("rope_theta", bad_theta[i]);
        expect_bad("rope_theta");
    }
    llama_hf("llama");
    set_float("rms_norm_eps", -1);
    expect_bad("rms_norm_eps");
    llama_hf("llama");
    set_str("hidden_act", "gelu");
    expect_good();
    assert_true(model.shape.gated && model.shape.act == ACT_GELU);
    set_str("hidden_act", "quick_gelu");
    expect_bad("hidden_act: unsupported: quick_gelu");
}

static void test_llama_gguf(void **state)
{
    (void)state;
    llama_gguf();
    expect_good();
    assert_int_equal(model.shape.vocab, VOCAB);
    assert_int_equal(model.tied, 1);
    assert_int_equal(model.paired_rows, 1);
    assert_string_equal(family_tensor(&model, &source, ROLE_DOWN, 1)->name,
                        "blk.1.ffn_down.weight");
    expect_inv_freq(inv_freq_default);
    add("output.weight", 2, VOCAB, DIM);
    expect_good();
    assert_int_equal(model.tied, 0);
    set_int("llama.vocab_size", VOCAB + 1);
    expect_bad("vocab_size is 1001, the file has 1000 rows");
    set_int("llama.vocab_size", VOCAB);
    set_int("llama.expert_count", 8);
    expect_bad("llama.expert_used_count: missing");
    set_int("llama.expert_count", 0);
    expect_good();
    set_str("general.architecture", "mistral"); // not a name that GGUF files use
    expect_bad("general.architecture: unsupported architecture mistral");
    unset("general.architecture");
    expect_bad("general.architecture: missing");
}

static void test_scaling_gguf(void **state)
{
    (void)state;
    float divisors[32];
    llama_gguf();
    set_float("llama.rope.freq_base", 100000);
    set_str("llama.rope.scaling.type", "linear");
    set_float("llama.rope.scaling.factor", 2.5);
    expect_good();
    expect_inv_freq(inv_freq_linear);
    set_float("llama.rope.scaling.factor", 0);
    expect_bad("rope.scaling: factor: missing");
    set_str("llama.rope.scaling.type", "ntk");
    expect_bad("rope.scaling.type: unsupported: ntk");
    unset("llama.rope.scaling.type");
    set_float("llama.rope.scale_linear", 2.5); // older files
    expect_good();
    expect_inv_freq(inv_freq_linear);
    unset("llama.rope.scale_linear");

    // llama3 in GGUF: the conversion has put its scaling into divisors
    set_float("llama.rope.freq_base", 500000);
    for (int i = 0; i < 32; i++)
        divisors[i] = (float)(pow(500000, -i / 32.0) / inv_freq_llama3[i]);
    fake.rope_freqs = divisors;
    struct source_tensor *t = add("rope_freqs.weight", 1, 32, 0);
    t->dtype = DTYPE_F32;
    t->n_bytes = 128;
    expect_good();
    expect_inv_freq(inv_freq_llama3);
    divisors[7] = 0;
    expect_bad("rope_freqs.weight: number 7");
    t->dims[0] = 33;
    expect_bad("rope_freqs.weight: expected [32]");
}

/* The order of rows against its definition: row 2i + p of a head in the file is our row
 * p * half + i. */
static void test_paired_rows(void **state)
{
    (void)state;
    llama_gguf();
    expect_good();
    for (int head = 0; head < HEADS; head++)
        for (int i = 0; i < HEAD_DIM / 2; i++)
            for (int p = 0; p < 2; p++) {
                int ours = head * HEAD_DIM + p * HEAD_DIM / 2 + i;
                int file = head * HEAD_DIM + 2 * i + p;
                assert_int_equal(family_source_row(&model, ROLE_Q, ours), file);
                assert_int_equal(family_source_row(&model, ROLE_K_B, ours), file);
                assert_int_equal(family_source_row(&model, ROLE_V, ours), ours);
                assert_int_equal(family_source_row(&model, ROLE_O, ours), ours);
            }
    set_int("llama.rope.dimension_count", 16); // the rest of the head stays where it is
    expect_good();
    assert_int_equal(family_source_row(&model, ROLE_Q, 64 + 8), 64 + 1);
    assert_int_equal(family_source_row(&model, ROLE_Q, 64 + 15), 64 + 15);
    assert_int_equal(family_source_row(&model, ROLE_Q, 64 + 16), 64 + 16);
}

static void test_opt(void **state)
{
    (void)state;
    opt_hf("decoder.");
    expect_good();
    opt_hf("model.decoder.");
    expect_good();
    const struct shape *s = &model.shape;
    assert_string_equal(s->family, "opt");
    assert_int_equal(s->norm, NORM_LAYER);
    assert_int_equal(s->norm_place, NORM_BEFORE);
    assert_int_equal(s->final_norm, 1);
    assert_int_equal(s->act, ACT_RELU);
    assert_int_equal(s->position, POSITION_LEARNED);
    assert_int_equal(s->position_offset, 2);
    assert_int_equal(s->rope_dim, 0);
    assert_int_equal(s->n_kv_heads, HEADS);
    assert_int_equal(model.tied, 1);
    assert_true(model.roles & ROLE_BIT(ROLE_O_B));
    assert_false(model.roles & ROLE_BIT(ROLE_GATE));
    assert_string_equal(family_tensor(&model, &source, ROLE_NORM2_B, 1)->name,
                        "model.decoder.layers.1.final_layer_norm.bias");
    set_str("activation_function", "gelu");
    expect_good();
    assert_int_equal(model.shape.act, ACT_GELU);
    set_str("activation_function", "gelu_new");
    expect_good();
    assert_int_equal(model.shape.act, ACT_GELU_TANH);
    set_str("activation_function", "tanh");
    expect_bad("activation_function: unsupported: tanh");
    set_str("activation_function", "relu");
    set_flag("enable_bias", 0);
    expect_good();
    assert_false(model.roles & ROLE_BIT(ROLE_O_B));
    assert_true(model.roles & ROLE_BIT(ROLE_NORM1_B));
    tensor("model.decoder.embed_positions.weight")->dims[0] = 100; // without the offset of 2
    expect_bad("embed_positions.weight: expected [102, 512], the file has [100, 512]");
    set_flag("layer_norm_elementwise_affine", 0);
    expect_bad("layer_norm_elementwise_affine");
}

static void test_opt_350m(void **state)
{
    (void)state;
    opt_hf("model.decoder.");
    set_flag("do_layer_norm_before", 0);
    set_int("word_embed_proj_dim", 128);
    drop("model.decoder.embed_tokens.weight");
    drop("model.decoder.final_layer_norm.weight");
    add("model.decoder.embed_tokens.weight", 2, VOCAB, 128);
    expect_bad("model.decoder.project_in.weight: missing");
    add("model.decoder.project_in.weight", 2, DIM, 128);
    add("model.decoder.project_out.weight", 2, 128, DIM);
    expect_good();
    assert_int_equal(model.shape.norm_place, NORM_AFTER_SUM);
    assert_int_equal(model.shape.final_norm, 0);
    assert_int_equal(model.shape.embed_dim, 128);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama_hf),    cmocka_unit_test(test_own_code),
        cmocka_unit_test(test_llama_tied),  cmocka_unit_test(test_biases),
        cmocka_unit_test(test_windows),     cmocka_unit_test(test_gguf_windows),
        cmocka_unit_test(test_strangers),   cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_bad_numbers), cmocka_unit_test(test_heads),
        cmocka_unit_test(test_tensors),     cmocka_unit_test(test_scaling_hf),
        cmocka_unit_test(test_llama_gguf),  cmocka_unit_test(test_scaling_gguf),
        cmocka_unit_test(test_paired_rows), cmocka_unit_test(test_opt),
        cmocka_unit_test(test_opt_350m),    cmocka_unit_test(test_vision),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
