/* tests/family_likes_test.c - metadata of families that differ little from llama: windows with
 * angles of their own, layers without RoPE, norms without biases, queries that grow, xIELU. */
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

#define Q  (HEADS * HEAD_DIM)
#define KV (KV_HEADS * HEAD_DIM)

static const struct line attention[] = {{"self_attn.q_proj.weight", Q, DIM},
                                        {"self_attn.k_proj.weight", KV, DIM},
                                        {"self_attn.v_proj.weight", KV, DIM},
                                        {"self_attn.o_proj.weight", DIM, Q}};
static const struct line mlp[] = {{"mlp.up_proj.weight", FFN, DIM},
                                  {"mlp.down_proj.weight", DIM, FFN},
                                  {"mlp.gate_proj.weight", FFN, DIM}}; // last: not all have it
static const struct line norms[] = {{"input_layernorm.weight", DIM, 0},
                                    {"post_attention_layernorm.weight", DIM, 0}};
static const struct line post_norms[] = {{"post_attention_layernorm.weight", DIM, 0},
                                         {"post_feedforward_layernorm.weight", DIM, 0}};

static void start_layers(const char *type, const struct line *layer_norms, int n_norms)
{
    start_hf(type);
    add_layers("model.layers.", attention, 4);
    add_layers("model.layers.", mlp, 3);
    add_layers("model.layers.", layer_norms, n_norms);
}

static void test_seed_oss(void **state)
{
    static const struct line biases[] = {{"self_attn.q_proj.bias", Q, 0},
                                         {"self_attn.k_proj.bias", KV, 0},
                                         {"self_attn.v_proj.bias", KV, 0}};
    static const struct line out[] = {{"self_attn.o_proj.bias", DIM, 0}};
    (void)state;
    start_layers("seed_oss", norms, 2);
    expect_bad("model.layers.0.self_attn.q_proj.bias: missing"); // by default
    add_layers("model.layers.", biases, 3);
    expect_good();
    assert_true(!(model.roles & ROLE_BIT(ROLE_O_B)) && (model.roles & ROLE_BIT(ROLE_V_B)));
    set_flag("attention_out_bias", 1);
    expect_bad("model.layers.0.self_attn.o_proj.bias: missing");
    add_layers("model.layers.", out, 1);
    set_flag("attention_bias", 0);
    source.tensors = fake.tensors;
    source.n_tensors = fake.n_tensors;
    expect_bad("q_proj.bias: unsupported: seed_oss models have no such tensor");
}

static void test_olmo3(void **state)
{
    static const struct line qk[] = {{"self_attn.q_norm.weight", Q, 0},
                                     {"self_attn.k_norm.weight", KV, 0}};
    (void)state;
    start_layers("olmo3", post_norms, 2);
    add_layers("model.layers.", qk, 2);
    set_int("sliding_window", 100);
    set_int("sliding_window_pattern", 2); // not of this class
    set_float("rope_theta", 10000);
    expect_good(); // each fourth layer has no window, so both have one
    assert_true(model.shape.layer_window[1] == 100 && model.shape.layer_rope[1] == 1);
    assert_true(model.shape.ropes[1].inv_freq[1] < 0.9f * model.shape.ropes[0].inv_freq[1]);
    fake.types[0] = "sliding_attention";
    fake.types[1] = "full_attention";
    fake.n_types = 2;
    set_str("rope_scaling.rope_type", "yarn");
    set_float("rope_scaling.factor", 4);
    set_int("rope_scaling.original_max_position_embeddings", 1024);
    expect_good(); // only the full layer is stretched
    assert_true(model.shape.layer_rope[0] == 1 && model.shape.layer_rope[1] == 0);
    assert_true(model.shape.ropes[0].scale > 1.1f && model.shape.ropes[1].scale == 1);
    set_str("rope_parameters.sliding_attention.rope_type", "yarn");
    expect_bad("rope_parameters.sliding_attention: unsupported rope_type: yarn");
    set_str("rope_parameters.sliding_attention.rope_type", "default");
    set_float("rope_parameters.sliding_attention.rope_theta", -1);
    expect_bad("rope_parameters.sliding_attention.rope_theta");
}

static void test_exaone4(void **state)
{
    static const struct line qk[] = {{"self_attn.q_norm.weight", HEAD_DIM, 0},
                                     {"self_attn.k_norm.weight", HEAD_DIM, 0}};
    (void)state;
    start_layers("exaone4", post_norms, 2);
    add_layers("model.layers.", qk, 2);
    set_int("sliding_window", 100);
    set_int("sliding_window_pattern", 2);
    expect_good();
    assert_true(model.shape.layer_window[0] == 100 && model.shape.layer_window[1] == 0);
    assert_true(model.shape.layer_rope[0] == 0 && model.shape.layer_rope[1] == SHAPE_NO_ROPE);
    set_int("sliding_window",
            5000); // longer than the context: it masks nothing, but its layer turns
    expect_good();
    assert_true(shape_window(&model.shape) == 0 && model.shape.layer_rope[0] == 0 &&
                model.shape.layer_rope[1] == SHAPE_NO_ROPE);
    set_int("sliding_window_pattern", 0);
    expect_bad("sliding_window_pattern");
    set_null("sliding_window");
    fake.types[0] = fake.types[1] = "full_attention";
    fake.n_types = 2;
    set_str("sliding_window_pattern", "LLLG"); // beside a list it is not read
    expect_good();
    assert_true(model.shape.layer_rope[0] == 0 && model.shape.layer_rope[1] == 0);
    fake.types[0] = "sliding_attention";
    expect_bad("sliding_window: missing");
}

static void test_cohere(void **state)
{
    static const struct line qk[] = {{"self_attn.q_norm.weight", HEADS, HEAD_DIM},
                                     {"self_attn.k_norm.weight", KV_HEADS, HEAD_DIM}};
    static const struct line bias[] = {{"input_layernorm.bias", DIM, 0}};
    (void)state;
    start_layers("cohere", norms, 1);
    expect_good();
    assert_true(model.tied && model.shape.logit_scale == 0.0625f && model.shape.bare_norm == 1);
    assert_int_equal(family_source_row(&model, ROLE_K, HEAD_DIM + 1), HEAD_DIM + 2);
    assert_int_equal(family_source_row(&model, ROLE_V, HEAD_DIM + 1), HEAD_DIM + 1);
    set_float("logit_scale", 0);
    expect_bad("logit_scale: 0 is out of range");
    set_float("logit_scale", 0.5);
    set_flag("use_qk_norm", 1);
    expect_bad("model.layers.0.self_attn.q_norm.weight: missing");
    add_layers("model.layers.", qk, 2);
    expect_good();
    assert_int_equal(family_source_row(&model, ROLE_Q_NORM_W, HEAD_DIM + 1), HEAD_DIM + 2);
    add_layers("model.layers.", bias, 1);
    source.tensors = fake.tensors;
    source.n_tensors = fake.n_tensors;
    expect_bad("input_layernorm.bias: unsupported: cohere models have no such tensor");
    start_layers("cohere2", norms, 1);
    set_int("sliding_window", 64);
    set_int("sliding_window_pattern", 2);
    expect_good();
    assert_true(model.shape.layer_rope[0] == 0 && model.shape.layer_rope[1] == SHAPE_NO_ROPE);
    set_null("sliding_window");
    expect_bad("sliding_window: missing");
    set_int("sliding_window", 64);
    set_flag("use_qk_norm", 1);
    expect_bad("use_qk_norm: unsupported in cohere2 models");
}

/* A GGUF model of llama's keys of sizes and matrices, and the norms of `layer_norms`. */
static void start_gguf(const char *arch, const struct line *layer_norms, int n_norms)
{
    static const struct line lines[] = {
        {"attn_q.weight", Q, DIM},      {"attn_k.weight", KV, DIM},    {"attn_v.weight", KV, DIM},
        {"attn_output.weight", DIM, Q}, {"ffn_gate.weight", FFN, DIM}, {"ffn_up.weight", FFN, DIM},
        {"ffn_down.weight", DIM, FFN}};
    static const struct {
        const char *key;
        int value;
    } sizes[] = {{"block_count", N_LAYERS},
                 {"embedding_length", DIM},
                 {"feed_forward_length", FFN},
                 {"attention.head_count", HEADS},
                 {"attention.head_count_kv", KV_HEADS},
                 {"context_length", 8192}};
    char key[80];
    start(SOURCE_GGUF);
    set_str("general.architecture", arch);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, sizes[i].key);
        set_int(key, sizes[i].value);
    }
    add_layers("blk.", lines, 7);
    add_layers("blk.", layer_norms, n_norms);
    add("token_embd.weight", 2, VOCAB, DIM);
    add("output_norm.weight", 1, DIM, 0);
}

static void test_gguf(void **state)
{
    static const struct line around[] = {{"attn_norm.weight", DIM, 0},
                                         {"ffn_norm.weight", DIM, 0},
                                         {"post_attention_norm.weight", DIM, 0},
                                         {"post_ffw_norm.weight", DIM, 0}};
    (void)state;
    start_gguf("cohere2", around, 1);
    expect_bad("cohere2.logit_scale: missing");
    set_float("cohere2.logit_scale", 0.25);
    expect_bad("cohere2.attention.sliding_window: missing");
    set_int("cohere2.attention.sliding_window", 100);
    expect_good();
    assert_true(model.tied && model.paired_rows && model.shape.layer_window[1] == 100);
    start_gguf("gemma2", around, 4); // says nothing of a window
    expect_good();
    assert_true(model.shape.layer_window[0] == 4096 && model.shape.layer_window[1] == 0);
    start_gguf("mistral3", around, 2);
    set_float("mistral3.attention.temperature_scale", 0.1);
    expect_bad("original_max_position_embeddings: missing");
    set_int("mistral3.rope.scaling.original_context_length", 1024);
    expect_good();
    assert_true(model.shape.query_period == 1024 && model.paired_rows);
}

static void test_ministral3(void **state)
{
    (void)state;
    start_layers("ministral3", norms, 2);
    set_int("max_position_embeddings", 262144);
    expect_good(); // nothing said of RoPE: the class's own numbers
    assert_true(model.shape.query_beta == 0.1f && model.shape.query_period == 16384);
    assert_true(model.shape.ropes[0].scale == 1 && shape_window(&model.shape) == 0);
    const float slow = model.shape.ropes[0].inv_freq[31]; // stretched to 16 times the context
    assert_true(fabs((double)slow * 16 * pow(1e6, 62 / 64.0) - 1) < 1e-5);
    set_str("rope_parameters", ""); // there is one, whose members follow
    set_str("rope_parameters.rope_type", "default");
    expect_bad("rope_parameters: llama_4_scaling_beta: missing");
    set_float("rope_parameters.llama_4_scaling_beta", 0.5);
    expect_bad("rope_parameters: original_max_position_embeddings: missing");
    set_int("rope_parameters.original_max_position_embeddings", 0);
    expect_bad("rope_parameters.original_max_position_embeddings");
    set_int("rope_parameters.original_max_position_embeddings", 50);
    expect_good();
    assert_true(model.shape.query_beta == 0.5f && model.shape.query_period == 50);
    set_float("rope_parameters.llama_4_scaling_beta", -0.5);
    expect_bad("rope_parameters.llama_4_scaling_beta: -0.5 is out of range");
    set_float("rope_parameters.llama_4_scaling_beta", 0);
    expect_good();
    assert_int_equal(model.shape.query_period, 0);
    start(SOURCE_HF);
    set_str("model_type", "mistral3");
    set_str("text_config.model_type", "mistral5");
    expect_bad("text_config.model_type: unsupported: mistral5");
    set_str("text_config.model_type", "mistral");
    set_float("text_config.logit_scale", 2);
    expect_bad("text_config.logit_scale: unsupported in mistral3 models");
}

static void apertus(float *alphas)
{
    static const struct line own[] = {{"attention_layernorm.weight", DIM, 0},
                                      {"feedforward_layernorm.weight", DIM, 0},
                                      {"self_attn.q_norm.weight", HEAD_DIM, 0},
                                      {"self_attn.k_norm.weight", HEAD_DIM, 0}};
    static const char *const names[] = {"alpha_p", "alpha_n", "beta", "eps"};
    char name[80];
    start_hf("apertus");
    set_str("hidden_act", "xielu");
    add_layers("model.layers.", attention, 4);
    add_layers("model.layers.", mlp, 2);
    add_layers("model.layers.", own, 4);
    for (int i = 0; i < 4 * N_LAYERS; i++) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.act_fn.%s", i / 4, names[i % 4]);
        struct source_tensor *t = add(name, 1, 1, 0);
        t->dtype = DTYPE_F32;
        t->n_bytes = 4;
    }
    fake.numbers = alphas;
    source.tensors = fake.tensors;
    source.n_tensors = fake.n_tensors;
}

static void test_apertus(void **state)
{
    float alphas[] = {0, 1, 0.5f, -1e-6f, -30, 30, 0.5f, -1e-6f};
    (void)state;
    apertus(alphas);
    expect_good();
    assert_true(fabsf(model.shape.layer_alpha[0][0] - 0.6931472f) < 1e-6f);
    assert_true(fabsf(model.shape.layer_alpha[0][1] - 1.8132617f) < 1e-6f);
    assert_true(model.shape.layer_alpha[1][0] > 9e-14f && model.shape.layer_alpha[1][1] == 30.5f);
    alphas[6] = 0.25f;
    expect_bad("unsupported: beta 0.25, eps -1e-06 in layer 1");
    alphas[6] = 0.5f;
    alphas[5] = NAN;
    expect_bad("alpha_n of layer 1: missing or out of range");
    alphas[5] = 0;
    tensor("model.layers.1.mlp.act_fn.alpha_p")->n_bytes = 8;
    expect_bad("model.layers.1.mlp.act_fn.alpha_p: expected one number");
    drop("model.layers.1.mlp.act_fn.alpha_p");
    expect_bad("alpha_p of layer 1: missing or out of range");
    start_layers("llama", norms, 2); // other families have no such numbers
    set_str("hidden_act", "xielu");
    expect_bad("act: out of range");
}

static void test_hunyuan_dense(void **state)
{
    static const struct line qk[] = {{"self_attn.query_layernorm.weight", HEAD_DIM, 0},
                                     {"self_attn.key_layernorm.weight", HEAD_DIM, 0}};
    (void)state;
    start_layers("hunyuan_v1_dense", norms, 2);
    expect_bad("model.layers.0.self_attn.query_layernorm.weight: missing");
    add_layers("model.layers.", qk, 2);
    set_flag("use_qk_norm", 1);
    set_int("num_experts", 1);
    set_str("rope_scaling.type", "dynamic");
    expect_good();
    const float plain = model.shape.ropes[0].inv_freq[1];
    assert_true(model.shape.qk_norm == QK_NORM_TURNED && !model.tied);
    set_float("rope_scaling.alpha", 1000); // theta grows by 1000^(64 / 62)
    expect_good();
    assert_true(fabsf(model.shape.ropes[0].inv_freq[1] / plain - 0.80025f) < 1e-4f);
    set_str("rope_scaling.type", "default"); // for which alpha is nothing
    expect_good();
    assert_true(model.shape.ropes[0].inv_freq[1] == plain);
    set_str("rope_scaling.type", "dynamic");
    for (int i = 0; i < 3; i++) {
        set_float("rope_scaling.alpha", (double[]){-1, NAN, INFINITY}[i]);
        expect_bad("rope_scaling.alpha: ");
    }
    set_float("rope_scaling.alpha", 2);
    set_float("rope_scaling.partial_rotary_factor", 2.0 / HEAD_DIM);
    expect_bad("rope_scaling: alpha: a head of 2 numbers is too small for it");
    unset("rope_scaling.partial_rotary_factor");
    set_flag("use_cla", 1);
    expect_bad("use_cla: unsupported in hunyuan_dense models");
    start_layers("llama", norms, 2); // whose class does not know alpha
    set_str("rope_scaling.type", "dynamic");
    set_float("rope_scaling.alpha", 1000);
    expect_good();
    assert_true(model.shape.ropes[0].inv_freq[1] == plain);
}

/* What a pack may say of these. */
static void test_bounds(void **state)
{
    float alphas[] = {0, 1, 0.5f, 0, 0, 1, 0.5f, 0};
    (void)state;
    apertus(alphas);
    expect_good();
    struct shape s = model.shape;
    assert_null(shape_check(&s));
    s.layer_alpha[1][0] = -1;
    assert_string_equal(shape_check(&s), "layer_alpha");
    s.act = ACT_SILU;
    assert_null(shape_check(&s));
    s.bare_norm = 1; // of RMS norms
    assert_string_equal(shape_check(&s), "bare_norm");
    s.bare_norm = 0;
    s.qk_norm = QK_NORM_TURNED + 1;
    assert_string_equal(shape_check(&s), "qk_norm");
    s.qk_norm = QK_NORM_TURNED;
    assert_null(shape_check(&s));
    s.query_beta = 0.1f; // of no period
    assert_string_equal(shape_check(&s), "query_period");
    s.query_beta = -1;
    assert_string_equal(shape_check(&s), "query_beta");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seed_oss), cmocka_unit_test(test_olmo3),
        cmocka_unit_test(test_exaone4),  cmocka_unit_test(test_cohere),
        cmocka_unit_test(test_gguf),     cmocka_unit_test(test_ministral3),
        cmocka_unit_test(test_apertus),  cmocka_unit_test(test_hunyuan_dense),
        cmocka_unit_test(test_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
