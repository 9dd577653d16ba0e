/* tests/family_states_test.c - metadata of qwen3_next and qwen3_5: which layers have a state, its
 * sizes, where its rows are in fused tensors; the same in GGUF files. */
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

enum { K_HEADS = 2, V_HEADS = 4, K_DIM = 16, V_DIM = 32, TAPS = 4 };
#define Q    (2 * HEADS * HEAD_DIM) // with its gate
#define KV   (KV_HEADS * HEAD_DIM)
#define KEYS (K_HEADS * K_DIM)
#define V    (V_HEADS * V_DIM)

static void add_one(const char *layer, const char *name, int64_t n, int64_t k)
{
    char full[160];
    snprintf(full, sizeof full, "model.layers.%s.%s", layer, name);
    add(full, k > 0 ? 2 : 1, n, k);
}

/* Layer 0 has a state, layer 1 attends. */
static void start_text(void)
{
    static const struct line both[] = {{"input_layernorm.weight", DIM, 0},
                                       {"post_attention_layernorm.weight", DIM, 0},
                                       {"mlp.gate_proj.weight", FFN, DIM},
                                       {"mlp.up_proj.weight", FFN, DIM},
                                       {"mlp.down_proj.weight", DIM, FFN}};
    start_hf("qwen3_5_text");
    add_layers("model.layers.", both, 5);
    add_one("1", "self_attn.q_proj.weight", Q, DIM);
    add_one("1", "self_attn.k_proj.weight", KV, DIM);
    add_one("1", "self_attn.v_proj.weight", KV, DIM);
    add_one("1", "self_attn.o_proj.weight", DIM, HEADS * HEAD_DIM);
    add_one("1", "self_attn.q_norm.weight", HEAD_DIM, 0);
    add_one("1", "self_attn.k_norm.weight", HEAD_DIM, 0);
    add_one("0", "linear_attn.in_proj_qkv.weight", 2 * KEYS + V, DIM);
    add_one("0", "linear_attn.in_proj_z.weight", V, DIM);
    add_one("0", "linear_attn.in_proj_b.weight", V_HEADS, DIM);
    add_one("0", "linear_attn.in_proj_a.weight", V_HEADS, DIM);
    add_one("0", "linear_attn.conv1d.weight", (2 * KEYS + V) * TAPS, 0);
    add_one("0", "linear_attn.A_log", V_HEADS, 0);
    add_one("0", "linear_attn.dt_bias", V_HEADS, 0);
    add_one("0", "linear_attn.norm.weight", V_DIM, 0);
    add_one("0", "linear_attn.out_proj.weight", DIM, V);
    set_int("head_dim", HEAD_DIM);
    set_int("full_attention_interval", 2);
    set_int("linear_num_key_heads", K_HEADS);
    set_int("linear_num_value_heads", V_HEADS);
    set_int("linear_key_head_dim", K_DIM);
    set_int("linear_value_head_dim", V_DIM);
    set_int("linear_conv_kernel_dim", TAPS);
}

static void test_states(void **state)
{
    (void)state;
    start_text();
    expect_good();
    const struct shape *s = &model.shape;
    assert_true(s->state == STATE_DELTA && s->layer_state[0] && !s->layer_state[1]);
    assert_true(s->query_gate && s->rope_dim == HEAD_DIM / 4 && s->state_taps == TAPS);
    assert_int_equal(shape_state_qkv(s), 2 * KEYS + V);
    assert_int_equal(shape_state_bytes(s), (V * K_DIM + (TAPS - 1) * (2 * KEYS + V)) * 4);
    assert_int_equal(family_source_row(&model, ROLE_STATE_V, 1), 2 * KEYS + 1);
    assert_int_equal(family_source_row(&model, ROLE_Q, HEAD_DIM), 2 * HEAD_DIM);
    assert_int_equal(family_source_row(&model, ROLE_Q_GATE, HEAD_DIM + 1), 3 * HEAD_DIM + 1);
    assert_true((model.logs & ROLE_BIT(ROLE_STATE_A)) &&
                !(model.plus_one & ROLE_BIT(ROLE_STATE_NORM_W)));
    fake.types[0] = "full_attention";
    fake.types[1] = "linear_attention";
    fake.n_types = 2;
    expect_bad("layers.0.self_attn.q_proj.weight: missing");
    fake.types[0] = "mamba";
    expect_bad("layer_types: unsupported: mamba in layer 0");
    fake.types[0] = "linear_attention";
    expect_bad("layer_types: unsupported: layers are of one kind");
    fake.n_types = 1;
    expect_bad("layer_types: has 1 entries, expected 2");
}

static void expect_bad_size(const char *key, int value, const char *what)
{
    start_text();
    set_int(key, value);
    expect_bad(what);
}

static void test_odd_sizes(void **state)
{
    (void)state;
    expect_bad_size("linear_key_head_dim", 24,
                    "linear_key_head_dim: unsupported: 24 is not a multiple");
    expect_bad_size("linear_value_head_dim", 512, "linear_value_head_dim: unsupported: 512 is not");
    expect_bad_size("linear_num_key_heads", 3, "linear_num_value_heads: 4 is not a multiple of");
    expect_bad_size("linear_num_value_heads", 100000, "linear_num_value_heads: 100000 heads of");
    expect_bad_size("linear_conv_kernel_dim", 9, "linear_conv_kernel_dim: out of range");
    expect_bad_size("linear_conv_kernel_dim", 1, "state_taps: out of range");
    expect_bad_size("full_attention_interval", 1, "full_attention_interval: unsupported: layers");
    expect_bad_size("full_attention_interval", 9, "full_attention_interval: unsupported: layers");
    expect_bad_size("linear_value_head_dim", 48, "in_proj_qkv.weight: expected [");
    start_text();
    set_flag("attention_bias", 1);
    expect_bad("attention_bias: unsupported in qwen3_5 models");
}

static void start_gguf(const char *arch)
{
    static const struct line both[] = {{"attn_norm.weight", DIM, 0},
                                       {"post_attention_norm.weight", DIM, 0},
                                       {"ffn_gate.weight", FFN, DIM},
                                       {"ffn_up.weight", FFN, DIM},
                                       {"ffn_down.weight", DIM, FFN}};
    static const struct line attention[] = {
        {"attn_q.weight", Q, DIM},  {"attn_output.weight", DIM, HEADS * HEAD_DIM},
        {"attn_k.weight", KV, DIM}, {"attn_q_norm.weight", HEAD_DIM, 0},
        {"attn_v.weight", KV, DIM}, {"attn_k_norm.weight", HEAD_DIM, 0}};
    static const struct line states[] = {{"attn_qkv.weight", 2 * KEYS + V, DIM},
                                         {"attn_gate.weight", V, DIM},
                                         {"ssm_beta.weight", V_HEADS, DIM},
                                         {"ssm_alpha.weight", V_HEADS, DIM},
                                         {"ssm_conv1d.weight", 2 * KEYS + V, TAPS},
                                         {"ssm_a", V_HEADS, 0},
                                         {"ssm_dt.bias", V_HEADS, 0},
                                         {"ssm_norm.weight", V_DIM, 0},
                                         {"ssm_out.weight", DIM, V}};
    static const struct {
        const char *key;
        int value;
    } sizes[] = {{"block_count", N_LAYERS},
                 {"embedding_length", DIM},
                 {"feed_forward_length", FFN},
                 {"attention.head_count", HEADS},
                 {"attention.head_count_kv", KV_HEADS},
                 {"attention.key_length", HEAD_DIM},
                 {"rope.dimension_count", HEAD_DIM / 4},
                 {"context_length", 4096},
                 {"full_attention_interval", 2},
                 {"ssm.conv_kernel", TAPS},
                 {"ssm.state_size", K_DIM},
                 {"ssm.group_count", K_HEADS},
                 {"ssm.time_step_rank", V_HEADS},
                 {"ssm.inner_size", V}};
    char name[160];
    start(SOURCE_GGUF);
    set_str("general.architecture", arch);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(name, sizeof name, "%s.%s", arch, sizes[i].key);
        set_int(name, sizes[i].value);
    }
    add_layers("blk.", both, 5);
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        snprintf(name, sizeof name, "blk.0.%s", states[i].name);
        add(name, states[i].k ? 2 : 1, states[i].n, states[i].k);
    }
    for (size_t i = 0; i < sizeof attention / sizeof *attention; i++) {
        snprintf(name, sizeof name, "blk.1.%s", attention[i].name);
        add(name, attention[i].k ? 2 : 1, attention[i].n, attention[i].k);
    }
    add("token_embd.weight", 2, VOCAB, DIM);
    add("output_norm.weight", 1, DIM, 0);
}

/* llama.cpp's order of heads; layers behind the last one predict further tokens. */
static void test_gguf(void **state)
{
    (void)state;
    start_gguf("qwen35");
    expect_good();
    const struct shape *s = &model.shape;
    assert_true(s->state_tiled && s->state_k_heads == K_HEADS && s->state_v_dim == V_DIM);
    assert_true(s->layer_state[0] && !s->layer_state[1] && s->query_gate && model.tied);
    assert_true(model.logs == 0 && model.plus_one == 0);
    assert_ptr_equal(family_tensor(&model, &source, ROLE_STATE_BETA, 0),
                     tensor("blk.0.ssm_beta.weight"));
    assert_ptr_equal(family_tensor(&model, &source, ROLE_STATE_DT, 0),
                     tensor("blk.0.ssm_alpha.weight"));
    assert_int_equal(family_source_row(&model, ROLE_STATE_V, 1), 2 * KEYS + 1);
    assert_int_equal(family_source_row(&model, ROLE_STATE_BETA, 1), 1);
    set_int("qwen35.block_count", N_LAYERS + 1);
    expect_bad("blk.2.attn_norm.weight: missing");
    set_int("qwen35.nextn_predict_layers", 1);
    expect_good();
    assert_int_equal(s->n_layers, N_LAYERS);
    set_int("qwen35.full_attention_interval", 1); // flags count, of all layers of the file
    fake.ints_key = "qwen35.attention.recurrent_layers";
    fake.n_ints = N_LAYERS + 1;
    fake.ints[0] = 1;
    expect_good();
    assert_true(s->layer_state[0] && !s->layer_state[1]);
    fake.ints[1] = 1;
    expect_bad("qwen35.attention.recurrent_layers: unsupported: layers are of one kind");
    fake.ints[1] = 2;
    expect_bad("qwen35.attention.recurrent_layers: out of range");
    fake.n_ints = 1;
    expect_bad("qwen35.attention.recurrent_layers: has 1 entries, expected 2");
    set_int("qwen35.nextn_predict_layers", N_LAYERS + 1);
    expect_bad("qwen35.nextn_predict_layers: out of range");
}

static void expect_bad_gguf(const char *key, int value, const char *what)
{
    start_gguf("qwen35");
    if (value > 0)
        set_int(key, value);
    else
        unset(key);
    expect_bad(what);
}

/* Of a pack: heads are in one of two orders, and Mamba-2's in one. */
static void test_odd_order(void **state)
{
    (void)state;
    start_gguf("qwen35");
    expect_good();
    struct shape s = model.shape;
    s.state_tiled = 2;
    assert_string_equal(shape_check(&s), "state_tiled");
    s.state_tiled = 1;
    s.state = STATE_MAMBA;
    assert_string_equal(shape_check(&s), "state_tiled");
    s.state_tiled = 0;
    assert_null(shape_check(&s));
}

/* No default stands in for what a GGUF file does not say. */
static void test_odd_gguf(void **state)
{
    (void)state;
    expect_bad_gguf("qwen35.ssm.group_count", 0, "qwen35.ssm.group_count: missing");
    expect_bad_gguf("qwen35.ssm.conv_kernel", 0, "qwen35.ssm.conv_kernel: missing");
    expect_bad_gguf("qwen35.ssm.group_count", 3, "time_step_rank: 4 is not a multiple of");
    expect_bad_gguf("qwen35.ssm.group_count", 1, "attn_qkv.weight: expected [160, 512], the file");
    expect_bad_gguf("qwen35.ssm.time_step_rank", 2, "ssm_beta.weight: expected [2, 512], the file");
    expect_bad_gguf("qwen35.full_attention_interval", 1, "full_attention_interval: unsupported");
    expect_bad_gguf("qwen35.expert_count", 4, "qwen35.expert_count: unsupported in qwen3_5 models");
    start_gguf("qwen3next"); // has beta and the time step in one tensor, and experts
    expect_bad("qwen3next.expert_count: missing");
    start_gguf("qwen35moe");
    expect_bad("qwen35moe.expert_count: missing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states),    cmocka_unit_test(test_odd_sizes),
        cmocka_unit_test(test_gguf),      cmocka_unit_test(test_odd_gguf),
        cmocka_unit_test(test_odd_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
