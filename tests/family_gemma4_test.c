/* tests/family_gemma4_test.c - metadata of gemma4: which layers have wider heads, values made of
 * keys, experts beside the MLP, and what is refused. */
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

enum { WIDE = 128, WIDE_KV = 1, EXPERTS = 4, INNER = 96 };
#define Q      (HEADS * HEAD_DIM)
#define KV     (KV_HEADS * HEAD_DIM)
#define WIDE_Q (HEADS * WIDE)
#define ROPES  "rope_parameters.full_attention."

static const float scalars[] = {0.5f, 0.25f};

static void add_one(const char *layer, const char *name, int64_t n, int64_t k)
{
    char full[160];
    snprintf(full, sizeof full, "model.layers.%s.%s", layer, name);
    struct source_tensor *t = add(full, k > 0 ? 2 : 1, n, k);
    if (strcmp(name, "layer_scalar") == 0) {
        t->dtype = DTYPE_F32;
        t->n_bytes = 4;
    }
}

static void set_ropes(const char *type)
{
    set_float("rope_parameters", 0);
    set_str(ROPES "rope_type", type);
    set_float(ROPES "rope_theta", 1e6);
    set_float(ROPES "partial_rotary_factor", 0.25);
    set_str("rope_parameters.sliding_attention.rope_type", "default");
    set_float("rope_parameters.sliding_attention.rope_theta", 1e4);
}

/* Layer 0 has a window, layer 1 has wide heads. */
static void start_text(void)
{
    static const struct line both[] = {{"input_layernorm.weight", DIM, 0},
                                       {"post_attention_layernorm.weight", DIM, 0},
                                       {"pre_feedforward_layernorm.weight", DIM, 0},
                                       {"post_feedforward_layernorm.weight", DIM, 0},
                                       {"mlp.gate_proj.weight", FFN, DIM},
                                       {"mlp.up_proj.weight", FFN, DIM},
                                       {"mlp.down_proj.weight", DIM, FFN}};
    start_hf("gemma4_text");
    add_layers("model.layers.", both, 7);
    add_one("0", "self_attn.q_proj.weight", Q, DIM);
    add_one("0", "self_attn.k_proj.weight", KV, DIM);
    add_one("0", "self_attn.v_proj.weight", KV, DIM);
    add_one("0", "self_attn.o_proj.weight", DIM, Q);
    add_one("0", "self_attn.q_norm.weight", HEAD_DIM, 0);
    add_one("0", "self_attn.k_norm.weight", HEAD_DIM, 0);
    add_one("0", "layer_scalar", 1, 0);
    add_one("1", "self_attn.q_proj.weight", WIDE_Q, DIM);
    add_one("1", "self_attn.k_proj.weight", WIDE_KV * WIDE, DIM);
    add_one("1", "self_attn.o_proj.weight", DIM, WIDE_Q);
    add_one("1", "self_attn.q_norm.weight", WIDE, 0);
    add_one("1", "self_attn.k_norm.weight", WIDE, 0);
    add_one("1", "layer_scalar", 1, 0);
    fake.numbers = scalars;
    set_int("hidden_size_per_layer_input", 0);
    set_int("head_dim", HEAD_DIM);
    set_int("global_head_dim", WIDE);
    set_int("num_global_key_value_heads", WIDE_KV);
    set_flag("attention_k_eq_v", 1);
    set_int("sliding_window", 100);
    set_float("final_logit_softcapping", 30);
    set_ropes("proportional");
    fake.types[0] = "sliding_attention";
    fake.types[1] = "full_attention";
    fake.n_types = 2;
}

static void start_experts(void)
{
    static const struct line more[] = {{"router.proj.weight", EXPERTS, DIM},
                                       {"router.scale", DIM, 0},
                                       {"router.per_expert_scale", EXPERTS, 0},
                                       {"experts.gate_up_proj", EXPERTS * 2 * INNER, DIM},
                                       {"experts.down_proj", EXPERTS * DIM, INNER},
                                       {"pre_feedforward_layernorm_2.weight", DIM, 0},
                                       {"post_feedforward_layernorm_1.weight", DIM, 0},
                                       {"post_feedforward_layernorm_2.weight", DIM, 0}};
    start_text();
    add_layers("model.layers.", more, 8);
    set_flag("enable_moe_block", 1);
    set_int("num_experts", EXPERTS);
    set_int("top_k_experts", 2);
    set_int("moe_intermediate_size", INNER);
}

static void test_wide(void **state)
{
    (void)state;
    start_text();
    expect_good();
    const struct shape *s = &model.shape;
    assert_true(!s->layer_wide[0] && s->layer_wide[1] && s->layer_window[0] == 100);
    assert_true(s->layer_rope[0] == 1 && s->layer_rope[1] == 0);
    assert_true(s->wide_head_dim == WIDE && s->wide_kv_heads == WIDE_KV && s->tied_kv);
    assert_true(s->value_norm && s->attn_scale == 1 && s->logit_softcap == 30);
    assert_true(s->layer_scale[0] == 0.5f && s->layer_scale[1] == 0.25f);
    assert_true(s->embed_scale == sqrtf(DIM) && s->rope_dim == HEAD_DIM);
    assert_int_equal(shape_kv_numbers(s, 0), 2 * KV);
    assert_int_equal(shape_kv_numbers(s, 1), 2 * WIDE_KV * WIDE);
    assert_int_equal(model.plus_one, 0); // norms are stored as they are
    /* A quarter of a wide head turns, by the whole head's frequencies. */
    for (int i = 0; i < WIDE / 2; i++) {
        const float want = i < WIDE / 8 ? 1 / powf(1e6f, (float)(2 * i) / WIDE) : 0;
        assert_true(s->ropes[0].inv_freq[i] == want);
    }
    assert_true(s->ropes[1].inv_freq[1] == 1 / powf(1e4f, 2.0f / HEAD_DIM));
    fake.types[1] = "sliding_attention"; // of the last layer: not heeded
    expect_good();
    assert_true(s->layer_wide[1] && s->layer_window[1] == 0);
    fake.n_types = 0;
    expect_good();
    assert_true(!s->layer_wide[0] && s->layer_wide[1]);
}

/* A window that masks nothing is dropped, but its layer's heads stay as they are. */
static void test_long_window(void **state)
{
    (void)state;
    start_text();
    set_int("sliding_window", 4096);
    expect_good();
    assert_true(model.shape.layer_window[0] == 0 && !model.shape.layer_wide[0]);
}

/* With matrices of values the number of KV heads is the same in all layers. */
static void test_values(void **state)
{
    (void)state;
    start_text();
    add_one("1", "self_attn.v_proj.weight", KV_HEADS * WIDE, DIM);
    source.tensors = fake.tensors;
    source.n_tensors = fake.n_tensors;
    expect_bad("layers.1.self_attn.v_proj.weight: unsupported: gemma4 models have no such");
    source.n_tensors = 0;
    set_flag("attention_k_eq_v", 0);
    expect_bad("layers.1.self_attn.k_proj.weight: expected [256, 512]");
    drop("model.layers.1.self_attn.k_proj.weight");
    add_one("1", "self_attn.k_proj.weight", KV_HEADS * WIDE, DIM);
    expect_good();
    assert_true(model.shape.wide_kv_heads == KV_HEADS && !model.shape.tied_kv);
}

static void test_experts(void **state)
{
    (void)state;
    start_experts();
    expect_good();
    const struct shape *s = &model.shape;
    assert_true(s->n_experts == EXPERTS && s->n_experts_used == 2 && s->ffn_dim == INNER);
    assert_true(s->shared_dim == FFN && !s->shared_gate && s->expert_norms && s->route_scales);
    assert_true(s->route_alone && !s->route_bias && model.router_factor == 1 / sqrtf(DIM));
    assert_int_equal(family_source_row(&model, ROLE_UP, 1), INNER + 1);
    drop("model.layers.1.router.per_expert_scale");
    expect_bad("layers.1.router.per_expert_scale: missing");
    start_experts();
    drop("model.layers.0.post_feedforward_layernorm_1.weight");
    expect_bad("layers.0.post_feedforward_layernorm_1.weight: missing");
}

static void expect_bad_int(const char *key, int number, const char *what)
{
    start_experts();
    set_int(key, number);
    expect_bad(what);
}

static void expect_bad_without(const char *key, const char *what)
{
    start_experts();
    unset(key);
    expect_bad(what);
}

static void test_missing(void **state)
{
    (void)state;
    expect_bad_without("num_experts", "num_experts: missing");
    expect_bad_without("top_k_experts", "top_k_experts: missing");
    expect_bad_without("moe_intermediate_size", "moe_intermediate_size: missing");
    expect_bad_without("hidden_size_per_layer_input", "hidden_size_per_layer_input: unsupported");
    expect_bad_without(ROPES "rope_type", ROPES "rope_type: missing");
    start_text();
    drop("model.layers.1.layer_scalar");
    expect_bad("tensor model.layers.1.layer_scalar: missing");
    start_text();
    tensor("model.layers.0.layer_scalar")->n_bytes = 8;
    expect_bad("tensor model.layers.0.layer_scalar: expected one number");
    start_text();
    fake.numbers = (const float[]){0.5f, -1};
    expect_bad("tensor model.layers.1.layer_scalar: missing or out of range");
}

static void test_refused(void **state)
{
    (void)state;
    expect_bad_int("num_kv_shared_layers", 1, "num_kv_shared_layers: unsupported in gemma4");
    expect_bad_int("hidden_size_per_layer_input", 256,
                   "hidden_size_per_layer_input: unsupported: embeddings per layer");
    expect_bad_int("global_head_dim", 127, "global_head_dim: 127 is odd");
    expect_bad_int("global_head_dim", 1024, "global_head_dim: out of range");
    expect_bad_int("num_global_key_value_heads", 3, "num_global_key_value_heads: num_attention");
    expect_bad_int("num_attention_heads", 2048, "global_head_dim: 2048 heads of 128 numbers");
    expect_bad_int("sliding_window", 0, "sliding_window: out of range");
    expect_bad_int("top_k_experts", 5, "top_k_experts: 5 exceeds the 4 experts");
    expect_bad_int("moe_intermediate_size", 64, "experts.gate_up_proj: expected [");
    start_text();
    set_flag("use_double_wide_mlp", 1);
    expect_bad("use_double_wide_mlp: unsupported in gemma4");
    start_text();
    set_str("use_bidirectional_attention", "all");
    expect_bad("use_bidirectional_attention: unsupported: all");
    set_str("use_bidirectional_attention", "vision");
    expect_good();
    start_text();
    set_ropes("default");
    expect_bad(ROPES "rope_type: unsupported: default");
    start_text();
    set_str("rope_parameters.sliding_attention.rope_type", "linear");
    expect_bad("rope_parameters.sliding_attention: unsupported rope_type: linear");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wide),    cmocka_unit_test(test_long_window),
        cmocka_unit_test(test_values),  cmocka_unit_test(test_experts),
        cmocka_unit_test(test_missing), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
