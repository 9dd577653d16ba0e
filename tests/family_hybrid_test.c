/* tests/family_hybrid_test.c - metadata of lfm2, granitemoehybrid, nemotron_h and falcon_h1: which
 * layers have a state, its sizes, the pattern of nemotron_h, factors of falcon_h1, rows of fused
 * tensors. */
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

enum { GROUPS = 2, HEADS_V = 8, STATE = 32, HEAD_V = 16, TAPS = 4, V = HEADS_V * HEAD_V };
#define KEYS (GROUPS * STATE)

static void add_to(const char *layer, const struct line *lines, int n)
{
    char full[160];
    for (int i = 0; i < n; i++) {
        snprintf(full, sizeof full, "%s.%s", layer, lines[i].name);
        add(full, lines[i].k ? 2 : 1, lines[i].n, lines[i].k);
    }
}

static void add_mamba(const char *layer)
{
    static const struct line lines[] = {{"in_proj.weight", 2 * V + 2 * KEYS + HEADS_V, DIM},
                                        {"conv1d.weight", (V + 2 * KEYS) * TAPS, 0},
                                        {"conv1d.bias", V + 2 * KEYS, 0},
                                        {"A_log", HEADS_V, 0},
                                        {"D", HEADS_V, 0},
                                        {"dt_bias", HEADS_V, 0},
                                        {"norm.weight", V, 0},
                                        {"out_proj.weight", DIM, V}};
    add_to(layer, lines, 8);
}

/* Blocks: Mamba-2, its MLP, attention without one. */
static void start_nemotron(void)
{
    static const struct line attention[] = {{"q_proj.weight", HEADS * HEAD_DIM, DIM},
                                            {"k_proj.weight", KV_HEADS * HEAD_DIM, DIM},
                                            {"v_proj.weight", KV_HEADS * HEAD_DIM, DIM},
                                            {"o_proj.weight", DIM, HEADS * HEAD_DIM}};
    static const struct line mlp[] = {{"up_proj.weight", FFN, DIM}, {"down_proj.weight", DIM, FFN}};
    start_hf("nemotron_h");
    set_str("hybrid_override_pattern", "M-*");
    set_int("num_hidden_layers", 3);
    set_int("head_dim", HEAD_DIM);
    set_int("n_groups", GROUPS);
    set_int("mamba_num_heads", HEADS_V);
    set_int("mamba_head_dim", HEAD_V);
    set_int("ssm_state_size", STATE);
    add("backbone.embeddings.weight", 2, VOCAB, DIM);
    add("backbone.norm_f.weight", 1, DIM, 0);
    add("backbone.layers.0.norm.weight", 1, DIM, 0);
    add("backbone.layers.1.norm.weight", 1, DIM, 0);
    add("backbone.layers.2.norm.weight", 1, DIM, 0);
    add_mamba("backbone.layers.0.mixer");
    add_to("backbone.layers.1.mixer", mlp, 2);
    add_to("backbone.layers.2.mixer", attention, 4);
}

static void test_nemotron(void **state)
{
    (void)state;
    start_nemotron();
    expect_good();
    const struct shape *s = &model.shape;
    assert_true(s->n_layers == 2 && s->state == STATE_MAMBA && !s->gated && s->act == ACT_RELU2);
    assert_true(s->layer_state[0] && !s->layer_bare[0] && !s->layer_state[1] && s->layer_bare[1]);
    assert_true(s->layer_rope[0] == SHAPE_NO_ROPE && s->layer_rope[1] == SHAPE_NO_ROPE);
    assert_int_equal(shape_state_bytes(s), (V * STATE + (TAPS - 1) * (2 * KEYS + V)) * 4);
    assert_int_equal(family_source_row(&model, ROLE_STATE_Z, 1), 1);
    assert_int_equal(family_source_row(&model, ROLE_STATE_V, 1), V + 1);
    assert_int_equal(family_source_row(&model, ROLE_STATE_K, 1), 2 * V + 1);
    assert_int_equal(family_source_row(&model, ROLE_STATE_Q, 1), 2 * V + KEYS + 1);
    assert_int_equal(family_source_row(&model, ROLE_STATE_DT, 1), 2 * V + 2 * KEYS + 1);
    assert_ptr_equal(family_tensor(&model, &source, ROLE_DOWN, 0),
                     tensor("backbone.layers.1.mixer.down_proj.weight"));
    assert_ptr_equal(family_tensor(&model, &source, ROLE_O, 1),
                     tensor("backbone.layers.2.mixer.o_proj.weight"));
    drop("backbone.layers.2.mixer.o_proj.weight");
    expect_bad("backbone.layers.2.mixer.o_proj.weight: missing");
}

static void expect_bad_pattern(const char *pattern, const char *what)
{
    start_nemotron();
    set_str("hybrid_override_pattern", pattern);
    expect_bad(what);
}

static void test_patterns(void **state)
{
    (void)state;
    expect_bad_pattern("-M*", "hybrid_override_pattern: unsupported: layer 0");
    expect_bad_pattern("M--*", "hybrid_override_pattern: unsupported: layer 2");
    expect_bad_pattern("M-x", "hybrid_override_pattern: unsupported: layer 2");
    expect_bad_pattern("MM-", "hybrid_override_pattern: unsupported: layers are of one kind");
    expect_bad_pattern("", "hybrid_override_pattern: missing");
    expect_bad_pattern("M-*E", "n_routed_experts: missing");
    start_nemotron();
    struct family_unused unused;
    set_int("moe_latent_size", 64); // no matter: there are no experts
    add("mtp.layers.0.eh_proj.weight", 2, DIM, 2 * DIM);
    source.tensors = fake.tensors;
    source.n_tensors = fake.n_tensors;
    expect_good();
    family_unused(&model, &source, &unused);
    assert_int_equal(model.shape.expert_dim, 0);
    assert_true(family_has_word(unused.parts, "mtp"));
    start_nemotron();
    add("backbone.layers.1.mixer.gate_proj.weight", 2, FFN, DIM);
    source.tensors = fake.tensors;
    source.n_tensors = fake.n_tensors;
    expect_bad("backbone.layers.1.mixer.gate_proj.weight: unsupported");
    start_nemotron();
    set_int("ssm_state_size", 24);
    expect_bad("ssm_state_size: unsupported: 24 is not a multiple of 16");
    start_nemotron();
    set_int("n_groups", 3);
    expect_bad("mamba_num_heads: 8 is not a multiple of n_groups, 3");
}

static void start_conv(void)
{
    static const struct line both[] = {{"operator_norm.weight", DIM, 0},
                                       {"ffn_norm.weight", DIM, 0},
                                       {"feed_forward.w1.weight", FFN, DIM},
                                       {"feed_forward.w3.weight", FFN, DIM},
                                       {"feed_forward.w2.weight", DIM, FFN}};
    static const struct line attention[] = {
        {"q_proj.weight", HEADS * HEAD_DIM, DIM},    {"k_proj.weight", KV_HEADS * HEAD_DIM, DIM},
        {"v_proj.weight", KV_HEADS * HEAD_DIM, DIM}, {"out_proj.weight", DIM, HEADS * HEAD_DIM},
        {"q_layernorm.weight", HEAD_DIM, 0},         {"k_layernorm.weight", HEAD_DIM, 0}};
    static const struct line conv[] = {{"in_proj.weight", 3 * DIM, DIM},
                                       {"conv.weight", 3 * DIM, 0},
                                       {"out_proj.weight", DIM, DIM}};
    start_hf("lfm2");
    add("model.embedding_norm.weight", 1, DIM, 0);
    add_layers("model.layers.", both, 5);
    add_to("model.layers.0.conv", conv, 3);
    add_to("model.layers.1.self_attn", attention, 6);
    fake.types[0] = "conv";
    fake.types[1] = "full_attention";
    fake.n_types = 2;
    set_flag("block_auto_adjust_ff_dim", 0);
}

static void test_conv(void **state)
{
    (void)state;
    start_conv();
    expect_good();
    const struct shape *s = &model.shape;
    assert_true(s->state == STATE_CONV && s->layer_state[0] && !s->layer_state[1]);
    assert_int_equal(shape_state_bytes(s), 2 * DIM * 4);
    assert_int_equal(family_source_row(&model, ROLE_STATE_K, 1), 1);
    assert_int_equal(family_source_row(&model, ROLE_STATE_Z, 1), DIM + 1);
    assert_int_equal(family_source_row(&model, ROLE_STATE_V, 1), 2 * DIM + 1);
    set_flag("block_auto_adjust_ff_dim", 1);
    set_int("block_ff_dim", 3 * FFN / 2 - 1); // two thirds are 639, 256 divides 768
    expect_bad("feed_forward.w1.weight: expected [768, 512], the file has [640, 512]");
    set_int("block_multiple_of", 64);
    expect_good();
    set_float("block_ffn_dim_multiplier", 900);
    expect_bad("block_ffn_dim_multiplier: makes an MLP of 575104 numbers");
    start_conv();
    set_flag("conv_bias", 1);
    expect_bad("conv_bias: unsupported in lfm2 models");
    start_conv();
    set_int("conv_L_cache", 9);
    expect_bad("conv_L_cache: out of range");
    start_conv();
    fake.types[0] = "full_attention";
    expect_bad("layer_types: unsupported: layers are of one kind");
}

static void test_granite(void **state)
{
    static const struct line both[] = {{"input_layernorm.weight", DIM, 0},
                                       {"post_attention_layernorm.weight", DIM, 0},
                                       {"shared_mlp.input_linear.weight", 2 * FFN, DIM},
                                       {"shared_mlp.output_linear.weight", DIM, FFN}};
    static const struct line attention[] = {{"q_proj.weight", HEADS * HEAD_DIM, DIM},
                                            {"k_proj.weight", KV_HEADS * HEAD_DIM, DIM},
                                            {"v_proj.weight", KV_HEADS * HEAD_DIM, DIM},
                                            {"o_proj.weight", DIM, HEADS * HEAD_DIM}};
    (void)state;
    start_hf("granitemoehybrid");
    add_layers("model.layers.", both, 4);
    add_mamba("model.layers.0.mamba");
    add_to("model.layers.1.self_attn", attention, 4);
    fake.types[0] = "mamba";
    fake.types[1] = "attention";
    fake.n_types = 2;
    set_int("num_local_experts", 0);
    set_int("shared_intermediate_size", FFN);
    set_int("mamba_n_groups", GROUPS);
    set_int("mamba_n_heads", HEADS_V);
    set_int("mamba_d_head", HEAD_V);
    set_int("mamba_d_state", STATE);
    expect_good();
    const struct shape *s = &model.shape;
    assert_true(s->state == STATE_MAMBA && s->ffn_dim == FFN && s->n_experts == 0);
    assert_true(s->layer_rope[1] == SHAPE_NO_ROPE && s->layer_state[0]);
    assert_int_equal(family_source_row(&model, ROLE_UP, 1), FFN + 1);
    set_str("position_embedding_type", "rope");
    expect_good();
    assert_int_equal(s->layer_rope[1], 0);
    set_flag("mamba_proj_bias", 1);
    expect_bad("mamba_proj_bias: unsupported in granitehybrid models");
    unset("mamba_proj_bias");
    unset("mamba_d_head");
    expect_bad("mamba_d_head: unsupported: 0 is not a multiple of 16");
}

static void heads_by_layer(int64_t first, int64_t second)
{
    fake.ints_key = "granitehybrid.attention.head_count_kv";
    fake.ints[0] = first;
    fake.ints[1] = second;
    fake.n_ints = 2;
}

/* What GGUF files of both have: sizes, Mamba-2 in one layer, attention in another. */
static void start_gguf(const char *name, const char *with_state, const char *with_attention)
{
    static const struct line mamba[] = {{"ssm_in.weight", 2 * V + 2 * KEYS + HEADS_V, DIM},
                                        {"ssm_conv1d.weight", V + 2 * KEYS, TAPS},
                                        {"ssm_conv1d.bias", V + 2 * KEYS, 0},
                                        {"ssm_a", HEADS_V, 1},
                                        {"ssm_d", HEADS_V, 1},
                                        {"ssm_dt.bias", HEADS_V, 0},
                                        {"ssm_norm.weight", GROUPS, V / GROUPS},
                                        {"ssm_out.weight", DIM, V}};
    static const struct line attention[] = {{"attn_q.weight", HEADS * HEAD_DIM, DIM},
                                            {"attn_k.weight", KV_HEADS * HEAD_DIM, DIM},
                                            {"attn_v.weight", KV_HEADS * HEAD_DIM, DIM},
                                            {"attn_output.weight", DIM, HEADS * HEAD_DIM}};
    static const struct {
        const char *key;
        int value;
    } sizes[] = {{"embedding_length", DIM},       {"attention.head_count", HEADS},
                 {"context_length", 4096},        {"ssm.conv_kernel", TAPS},
                 {"ssm.state_size", STATE},       {"ssm.group_count", GROUPS},
                 {"ssm.time_step_rank", HEADS_V}, {"ssm.inner_size", V}};
    char key[100];
    start(SOURCE_GGUF);
    set_str("general.architecture", name);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(key, sizeof key, "%s.%s", name, sizes[i].key);
        set_int(key, sizes[i].value);
    }
    add_to(with_state, mamba, 8);
    add_to(with_attention, attention, 4);
    add("token_embd.weight", 2, VOCAB, DIM);
    add("output_norm.weight", 1, DIM, 0);
}

static void start_granite_gguf(void)
{
    static const struct line both[] = {{"attn_norm.weight", DIM, 0},
                                       {"ffn_norm.weight", DIM, 0},
                                       {"ffn_gate.weight", FFN, DIM},
                                       {"ffn_up.weight", FFN, DIM},
                                       {"ffn_down.weight", DIM, FFN}};
    start_gguf("granitehybrid", "blk.0", "blk.1");
    set_int("granitehybrid.block_count", N_LAYERS);
    set_int("granitehybrid.feed_forward_length", 64);
    set_int("granitehybrid.expert_shared_feed_forward_length", FFN);
    set_flag("granitehybrid.rope.scaling.finetuned", 0);
    add_layers("blk.", both, 5);
}

/* A layer without KV heads has a state; vectors of heads are matrices of one column. */
static void test_granite_gguf(void **state)
{
    (void)state;
    start_granite_gguf();
    expect_bad("granitehybrid.attention.head_count_kv: has 0 entries, expected 2");
    heads_by_layer(0, KV_HEADS);
    expect_good();
    const struct shape *s = &model.shape;
    assert_true(s->state == STATE_MAMBA && s->ffn_dim == FFN && s->n_kv_heads == KV_HEADS);
    assert_true(s->layer_state[0] && !s->layer_state[1] && s->layer_rope[1] == SHAPE_NO_ROPE);
    assert_int_equal(shape_state_bytes(s), (V * STATE + (TAPS - 1) * (2 * KEYS + V)) * 4);
    assert_true(model.logs == 0 && model.paired_rows);
    assert_true((model.roles & ROLE_BIT(ROLE_STATE_CONV_B)) != 0);
    assert_int_equal(family_source_row(&model, ROLE_STATE_DT, 1), 2 * V + 2 * KEYS + 1);
    add("blk.1.attn_q.bias", 1, HEADS * HEAD_DIM, 0); // found where it may be first
    source.tensors = fake.tensors;
    source.n_tensors = fake.n_tensors;
    expect_good();
    assert_true((model.roles & ROLE_BIT(ROLE_Q_B)) != 0);
    set_int("granitehybrid.ssm.inner_size", V + 1);
    expect_bad("granitehybrid.ssm.inner_size: 129 is not a multiple of 8 heads");
    set_int("granitehybrid.ssm.inner_size", V / 2);
    expect_bad("granitehybrid.ssm.inner_size: unsupported: 8 is not a multiple of 16");
    set_int("granitehybrid.ssm.inner_size", V);
    set_int("granitehybrid.ssm.conv_kernel", 3);
    expect_bad("blk.0.ssm_conv1d.weight: expected [768], the file has [256, 4]");
    set_int("granitehybrid.ssm.conv_kernel", TAPS);
    unset("granitehybrid.ssm.group_count");
    expect_bad("granitehybrid.ssm.group_count: missing");
    set_int("granitehybrid.ssm.group_count", GROUPS);
    heads_by_layer(0, 0);
    expect_bad("granitehybrid.attention.head_count_kv: unsupported: layers are of one kind");
    heads_by_layer(1, KV_HEADS);
    expect_bad("granitehybrid.attention.head_count_kv: unsupported: 2 and 1 heads");
}

/* Lists of the file's layers: KV heads, and widths of MLPs. */
static void blocks(const char *name, const int64_t *heads, const int64_t *widths, int n)
{
    static char keys[2][100];
    char key[100];
    snprintf(keys[0], sizeof keys[0], "%s.attention.head_count_kv", name);
    snprintf(keys[1], sizeof keys[1], "%s.feed_forward_length", name);
    snprintf(key, sizeof key, "%s.block_count", name);
    set_int(key, n);
    fake.ints_key = keys[0];
    fake.more_key = keys[1];
    fake.n_ints = fake.n_more_ints = n;
    memcpy(fake.ints, heads, (size_t)n * sizeof *heads);
    memcpy(fake.more_ints, widths, (size_t)n * sizeof *widths);
}

/* Mamba-2, its MLP or experts, attention without one, and the layer behind the last one. */
static const int64_t of_kv[4] = {0, 0, KV_HEADS, KV_HEADS}, of_mlp[4] = {0, FFN, 0, FFN};

static void start_nemotron_gguf(const char *name)
{
    start_gguf(name, "blk.0", "blk.2");
    blocks(name, of_kv, of_mlp, 3);
    add("blk.0.attn_norm.weight", 1, DIM, 0);
    add("blk.1.attn_norm.weight", 1, DIM, 0);
    add("blk.2.attn_norm.weight", 1, DIM, 0);
    add("output.weight", 2, VOCAB, DIM);
}

#define DENSE "nemotron_h."
static void test_nemotron_gguf(void **state)
{
    (void)state;
    start_nemotron_gguf("nemotron_h");
    add("blk.1.ffn_up.weight", 2, FFN, DIM);
    add("blk.1.ffn_down.weight", 2, DIM, FFN);
    set_int(DENSE "rope.dimension_count", HEAD_DIM / 2 + 1); // no matter: nothing turns
    set_float(DENSE "attention.layer_norm_epsilon", 2e-4);
    expect_good();
    const struct shape *s = &model.shape;
    assert_true(s->norm_eps == 2e-4f);
    assert_true(s->n_layers == 2 && s->state == STATE_MAMBA && !s->gated && s->act == ACT_RELU2);
    assert_true(s->layer_state[0] && !s->layer_bare[0] && !s->layer_state[1] && s->layer_bare[1]);
    assert_true(s->n_kv_heads == KV_HEADS && s->ffn_dim == FFN && s->state_taps == TAPS);
    assert_true(s->layer_rope[1] == SHAPE_NO_ROPE && model.logs == 0 && model.paired_rows);
    assert_int_equal(family_source_row(&model, ROLE_Q, 1), 2);
    assert_int_equal(family_source_row(&model, ROLE_Q, HEAD_DIM / 2), 1);
    assert_ptr_equal(family_tensor(&model, &source, ROLE_NORM2_W, 0),
                     tensor("blk.1.attn_norm.weight"));
    blocks("nemotron_h", of_kv, of_mlp, 4); // the last one predicts further tokens
    set_int(DENSE "nextn_predict_layers", 1);
    expect_good();
    assert_true(s->n_layers == 2 && model.n_file_layers == 3);
    set_int(DENSE "nextn_predict_layers", 4);
    expect_bad(DENSE "nextn_predict_layers: out of range");
    set_int(DENSE "nextn_predict_layers", 0);
    expect_bad(DENSE "attention.head_count_kv: unsupported: layer 3 is no attention");
    blocks("nemotron_h", of_kv, of_mlp, 3);
    fake.n_more_ints = 2;
    expect_bad(DENSE "feed_forward_length: has 2 entries, expected 3");
    blocks("nemotron_h", of_kv, (const int64_t[]){FFN + 1, FFN, 0}, 3);
    expect_bad(DENSE "feed_forward_length: unsupported: 640 and 641");
    blocks("nemotron_h", (const int64_t[]){0, 0, -1}, of_mlp, 3);
    expect_bad(DENSE "attention.head_count_kv: out of range");
    blocks("nemotron_h", (const int64_t[]){0, 0, 0}, of_mlp, 3);
    expect_bad(DENSE "attention.head_count_kv: unsupported: layers are of one kind");
    set_int(DENSE "block_count", 1e6);
    expect_bad(DENSE "block_count: out of range");
}

#define MOE "nemotron_h_moe."
enum { EXPERTS = 4, INNER = 96, NARROW = 64 };

/* Experts of `wide` numbers; matrices between these and others, if they are not 0. */
static void start_nemotron_experts_gguf(int wide)
{
    const int dim = wide > 0 ? wide : DIM;
    const struct line experts[] = {
        {"ffn_gate_inp.weight", EXPERTS, DIM},      {"exp_probs_b.bias", EXPERTS, 0},
        {"ffn_up_exps.weight", EXPERTS * FFN, dim}, {"ffn_down_exps.weight", EXPERTS * dim, FFN},
        {"ffn_up_shexp.weight", INNER, DIM},        {"ffn_down_shexp.weight", DIM, INNER},
        {"ffn_latent_down.weight", dim, DIM},       {"ffn_latent_up.weight", DIM, dim}};
    start_nemotron_gguf("nemotron_h_moe");
    add_to("blk.1", experts, wide > 0 ? 8 : 6);
    set_int(MOE "expert_count", EXPERTS);
    set_int(MOE "expert_used_count", 2);
    set_int(MOE "expert_feed_forward_length", FFN);
    set_int(MOE "expert_shared_feed_forward_length", INNER);
    set_int(MOE "expert_shared_count", 1);
    set_int(MOE "expert_group_count", 1);
    set_flag(MOE "expert_weights_norm", 1);
    set_float(MOE "expert_weights_scale", 2.5);
}

static void test_nemotron_experts_gguf(void **state)
{
    (void)state;
    start_nemotron_experts_gguf(0);
    expect_good();
    const struct shape *s = &model.shape;
    assert_true(s->n_experts == EXPERTS && s->n_experts_used == 2 && s->ffn_dim == FFN);
    assert_true(s->shared_dim == INNER && s->route_logistic && s->route_bias);
    assert_true(s->route_scale == 2.5f && s->route_alone && s->dense_dim == 0);
    set_int(MOE "expert_gating_func", 1);
    expect_bad(MOE "expert_gating_func: 1 is unsupported in nemotron_h models");
    unset(MOE "expert_gating_func");
    set_int(MOE "expert_count", 0);
    expect_bad("blk.1.ffn_up.weight: missing");
}

static void start_falcon(void)
{
    static const struct line both[] = {{"input_layernorm.weight", DIM, 0},
                                       {"pre_ff_layernorm.weight", DIM, 0},
                                       {"feed_forward.gate_proj.weight", FFN, DIM},
                                       {"feed_forward.up_proj.weight", FFN, DIM},
                                       {"feed_forward.down_proj.weight", DIM, FFN},
                                       {"self_attn.q_proj.weight", HEADS * HEAD_DIM, DIM},
                                       {"self_attn.k_proj.weight", KV_HEADS * HEAD_DIM, DIM},
                                       {"self_attn.v_proj.weight", KV_HEADS * HEAD_DIM, DIM},
                                       {"self_attn.o_proj.weight", DIM, HEADS * HEAD_DIM}};
    start_hf("falcon_h1");
    add("model.final_layernorm.weight", 1, DIM, 0);
    add_layers("model.layers.", both, 9);
    add_mamba("model.layers.0.mamba");
    add_mamba("model.layers.1.mamba");
    set_int("mamba_n_groups", GROUPS);
    set_int("mamba_n_heads", HEADS_V);
    set_int("mamba_d_head", HEAD_V);
    set_int("mamba_d_state", STATE);
    set_int("mamba_d_ssm", V);
    set_flag("mamba_rms_norm", 1);
    set_flag("mamba_norm_before_gate", 0);
}

/* A layer of the file is two: a state without MLP, then attention with one. */
static void test_falcon(void **state)
{
    (void)state;
    start_falcon();
    expect_good();
    const struct shape *s = &model.shape;
    assert_true(s->n_layers == 2 * N_LAYERS && s->state == STATE_MAMBA && s->gated);
    assert_true(s->layer_state[2] && s->layer_bare[2] && !s->layer_state[3] && !s->layer_bare[3]);
    assert_true(s->layer_rope[2] == SHAPE_NO_ROPE && s->layer_rope[3] == 0);
    assert_int_equal(shape_before_part(s, N_PARTS), 2 * DIM);
    assert_ptr_equal(family_tensor(&model, &source, ROLE_STATE_O, 2),
                     tensor("model.layers.1.mamba.out_proj.weight"));
    assert_ptr_equal(family_tensor(&model, &source, ROLE_DOWN, 3),
                     tensor("model.layers.1.feed_forward.down_proj.weight"));
    assert_true((model.roles & ROLE_BIT(ROLE_STATE_NORM_W)) != 0);
    set_flag("mamba_norm_before_gate", 1);
    expect_bad("mamba_norm_before_gate: true is unsupported with mamba_rms_norm");
    set_flag("mamba_rms_norm", 0);
    source.tensors = fake.tensors;
    source.n_tensors = fake.n_tensors;
    expect_bad("model.layers.0.mamba.norm.weight: unsupported: falcon_h1 models have no such");
    drop("model.layers.0.mamba.norm.weight");
    expect_good();
    set_int("mamba_d_ssm", V + 1);
    expect_bad("mamba_d_ssm: 129, but 8 heads of 16 numbers");
    unset("mamba_d_ssm");
    set_str("hidden_act", "relu");
    expect_bad("hidden_act: unsupported: relu is not silu");
    unset("hidden_act");
    unset("mamba_d_head");
    expect_bad("mamba_d_head: unsupported: 0 is not a multiple of 16");
    start_falcon();
    add("model.layers.1.self_attn.o_proj.bias", 1, DIM, 0);
    add("model.layers.0.self_attn.o_proj.bias", 1, DIM, 0);
    source.tensors = fake.tensors;
    source.n_tensors = fake.n_tensors;
    expect_bad("model.layers.0.self_attn.o_proj.bias: unsupported");
    start_falcon();
    set_int("num_hidden_layers", SHAPE_LAYERS_MAX / 2 + 1);
    expect_bad("num_hidden_layers: out of range");
}

/* Where factors on matrices' outputs go. */
static void test_falcon_factors(void **state)
{
    static const char *const keys[] = {"embedding_multiplier",     "lm_head_multiplier",
                                       "key_multiplier",           "attention_in_multiplier",
                                       "attention_out_multiplier", "ssm_in_multiplier",
                                       "ssm_out_multiplier"};
    (void)state;
    start_falcon();
    for (int i = 0; i < 7; i++)
        set_float(keys[i], 1 << i);
    fake.floats_key = "ssm_multipliers";
    for (int i = 0; i < 5; i++)
        fake.floats[i] = 3 + i;
    fake.n_floats = 5;
    expect_good();
    const struct shape *s = &model.shape;
    const float z = 32 * 3, attn = 8 / z; // ssm_in and z's factor; what attention's input lacks
    assert_true(s->embed_scale == 1 && s->logit_scale == 2 && s->beside_scale == 64);
    assert_true(model.factor[ROLE_NORM1_W] == z && model.factor[ROLE_NORM2_W] == 1);
    assert_true(fabsf(s->attn_scale / (4 * attn * attn / sqrtf(HEAD_DIM)) - 1) < 1e-6f);
    assert_true(fabsf(s->branch_scale / (16 * attn) - 1) < 1e-6f && s->mlp_scale == 1);
    assert_true(model.factor[ROLE_STATE_V] == 4.0f / 3 && model.factor[ROLE_STATE_K] == 5.0f / 3);
    assert_true(model.factor[ROLE_STATE_Q] == 2 && s->state_dt_scale == 7.0f / 3);
    fake.n_floats = 4;
    expect_bad("ssm_multipliers: has 4 entries, expected 5");
    fake.floats_key = "mlp_multipliers";
    fake.n_floats = 2;
    expect_good();
    assert_true(model.factor[ROLE_NORM2_W] == 3 && s->mlp_scale == 4.0f / 3);
    fake.floats[1] = -1;
    expect_bad("mlp_multipliers: -1 is out of range");
    fake.floats[1] = NAN;
    expect_bad("mlp_multipliers: nan is out of range");
    fake.floats[1] = 1;
    set_float("key_multiplier", 0);
    expect_bad("key_multiplier: 0 is out of range");
}

/* Of pairs: which layers there are, and their factors. */
static void test_pairs(void **state)
{
    (void)state;
    start_falcon();
    expect_good();
    struct shape s = model.shape;
    assert_null(shape_check(&s));
    s.layer_bare[3] = 1;
    assert_string_equal(shape_check(&s), "beside_scale");
    s = model.shape;
    s.layer_state[1] = s.layer_bare[1] = 1;
    assert_string_equal(shape_check(&s), "beside_scale");
    s = model.shape;
    s.n_layers = 3;
    assert_string_equal(shape_check(&s), "beside_scale");
    s = model.shape;
    s.beside_scale = -1;
    assert_string_equal(shape_check(&s), "beside_scale");
    s = model.shape;
    s.state_dt_scale = INFINITY;
    assert_string_equal(shape_check(&s), "state_dt_scale");
    s = model.shape;
    s.mlp_scale = 0;
    assert_string_equal(shape_check(&s), "mlp_scale");
}

static void test_falcon_gguf(void **state)
{
    static const struct line both[] = {{"attn_norm.weight", DIM, 0},
                                       {"ffn_norm", DIM, 0}, // without a suffix
                                       {"ffn_gate.weight", FFN, DIM},
                                       {"ffn_up.weight", FFN, DIM},
                                       {"ffn_down.weight", DIM, FFN}};
    (void)state;
    start_gguf("falcon-h1", "blk.0", "blk.0");
    add_to("blk.0", both, 5);
    set_int("falcon-h1.block_count", 1);
    set_int("falcon-h1.feed_forward_length", FFN);
    set_int("falcon-h1.attention.head_count_kv", KV_HEADS);
    expect_good();
    const struct shape *s = &model.shape;
    assert_true(s->n_layers == 2 && s->layer_state[0] && s->n_kv_heads == KV_HEADS);
    assert_true(s->beside_scale == 1 && s->state_dt_scale == 0 && model.factor[ROLE_NORM1_W] == 0);
    assert_true(model.logs == 0 && !model.paired_rows && model.tied);
    assert_true((model.roles & ROLE_BIT(ROLE_STATE_NORM_W)) != 0);
    drop("blk.0.ssm_norm.weight");
    expect_good();
    assert_true((model.roles & ROLE_BIT(ROLE_STATE_NORM_W)) == 0);
    set_int("falcon-h1.block_count", 2);
    expect_bad("blk.1.attn_norm.weight: missing");
    unset("falcon-h1.block_count");
    expect_bad("falcon-h1.block_count: missing");
}

/* Experts of Nemotron-3 Super read fewer numbers than the router and the shared expert. */
static void test_nemotron_narrow_experts(void **state)
{
    static const struct {
        double size;
        const char *says;
    } bad[] = {{48, MOE "moe_latent_size: unsupported: 48 (supported: multiples of 32 up to 512)"},
               {DIM + 32, MOE "moe_latent_size: unsupported: 544"},
               {0, MOE "moe_latent_size: out of range"},
               {-32, MOE "moe_latent_size: out of range"},
               {1 << 20, MOE "moe_latent_size: out of range"},
               {96, "blk.1.ffn_up_exps.weight: expected [2560, 96], the file has [2560, 64]"}};
    (void)state;
    start_nemotron_experts_gguf(NARROW);
    source.tensors = fake.tensors;
    source.n_tensors = fake.n_tensors;
    expect_bad("blk.1.ffn_up_exps.weight: expected [2560, 512]"); // the key is missing
    set_int(MOE "moe_latent_size", NARROW);
    expect_good();
    assert_true(model.shape.expert_dim == NARROW && shape_expert_dim(&model.shape) == NARROW);
    drop("blk.1.ffn_latent_up.weight");
    expect_bad("blk.1.ffn_latent_up.weight: missing");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        start_nemotron_experts_gguf(NARROW);
        set_int(MOE "moe_latent_size", bad[i].size);
        expect_bad(bad[i].says);
    }
    start_nemotron_experts_gguf(DIM);
    source.tensors = fake.tensors;
    source.n_tensors = fake.n_tensors;
    expect_bad("blk.1.ffn_latent_down.weight: unsupported: nemotron_h models have no such tensor");
    set_int(MOE "moe_latent_size", DIM);
    expect_good();
    struct shape s = model.shape;
    s.expert_dim = DIM + 32;
    assert_string_equal(shape_check(&s), "expert_dim");
    s.expert_dim = 48;
    assert_string_equal(shape_check(&s), "expert_dim");
    s.expert_dim = 64;
    assert_null(shape_check(&s));
    s.branch_scale = 0.5f; // the experts' sum must be added to x
    assert_string_equal(shape_check(&s), "expert_dim");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nemotron),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_conv),
        cmocka_unit_test(test_granite),
        cmocka_unit_test(test_granite_gguf),
        cmocka_unit_test(test_nemotron_gguf),
        cmocka_unit_test(test_nemotron_experts_gguf),
        cmocka_unit_test(test_falcon),
        cmocka_unit_test(test_falcon_factors),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_falcon_gguf),
        cmocka_unit_test(test_nemotron_narrow_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
