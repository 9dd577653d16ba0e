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

enum { WIDE = 128, WIDE_KV = 1, EXPERTS = 4, INNER = 96, INPUT = 32 };
#define Q      (HEADS * HEAD_DIM)
#define KV     (KV_HEADS * HEAD_DIM)
#define WIDE_Q (HEADS * WIDE)
#define ROPES  "rope_parameters.full_attention."

static const float scalars[] = {0.5f, 0.25f};

static void add_at(const char *start, const char *layer, const char *name, int64_t n, int64_t k)
{
    char full[160];
    snprintf(full, sizeof full, "%s%s.%s", start, layer, name);
    struct source_tensor *t = add(full, k > 0 ? 2 : 1, n, k);
    if (strncmp(name, "layer_", 6) == 0) { // a number
        t->dtype = DTYPE_F32;
        t->n_bytes = 4;
    }
}

static void add_one(const char *layer, const char *name, int64_t n, int64_t k)
{
    add_at("model.layers.", layer, name, n, k);
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
    assert_true(s->route_alone && !s->route_bias);
    assert_true(model.factor[ROLE_ROUTER_NORM_W] == 1 / sqrtf(DIM));
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
    expect_bad_int("num_kv_shared_layers", 1, "num_kv_shared_layers: unsupported in models with");
    expect_bad_int("global_head_dim", 127, "global_head_dim: 127 is odd");
    expect_bad_int("global_head_dim", 1024, "global_head_dim: out of range");
    expect_bad_int("num_global_key_value_heads", 3, "num_global_key_value_heads: 8 heads are not");
    expect_bad_int("num_attention_heads", 2048, "global_head_dim: 2048 heads of 128 numbers");
    expect_bad_int("sliding_window", 0, "sliding_window: out of range");
    expect_bad_int("top_k_experts", 5, "top_k_experts: 5 exceeds the 4 experts");
    expect_bad_int("moe_intermediate_size", 64, "experts.gate_up_proj: expected [");
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

#define G "gemma4."
static void add_gguf(const char *layer, const char *name, int64_t n, int64_t k)
{
    add_at("blk.", layer, name, n, k);
}

/* As start_text(), as a GGUF file. */
static void start_gguf(void)
{
    static const struct line both[] = {
        {"attn_norm.weight", DIM, 0},  {"post_attention_norm.weight", DIM, 0},
        {"ffn_norm.weight", DIM, 0},   {"post_ffw_norm.weight", DIM, 0},
        {"ffn_gate.weight", FFN, DIM}, {"ffn_up.weight", FFN, DIM},
        {"ffn_down.weight", DIM, FFN}};
    static const struct {
        const char *key;
        int value;
    } sizes[] = {{G "block_count", N_LAYERS},
                 {G "context_length", 4096},
                 {G "embedding_length", DIM},
                 {G "feed_forward_length", FFN},
                 {G "attention.head_count", HEADS},
                 {G "attention.key_length", WIDE},
                 {G "attention.value_length", WIDE},
                 {G "attention.key_length_swa", HEAD_DIM},
                 {G "attention.value_length_swa", HEAD_DIM},
                 {G "rope.dimension_count", WIDE},
                 {G "rope.dimension_count_swa", HEAD_DIM},
                 {G "attention.sliding_window", 100},
                 {G "attention.shared_kv_layers", 0},
                 {G "embedding_length_per_layer_input", 0}};
    static float divisors[WIDE / 2];
    start(SOURCE_GGUF);
    set_str("general.architecture", "gemma4");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        set_int(sizes[i].key, sizes[i].value);
    set_float(G "rope.freq_base", 1e6);
    set_float(G "rope.freq_base_swa", 1e4);
    set_float(G "final_logit_softcapping", 30);
    fake.ints_key = G "attention.sliding_window_pattern";
    fake.ints[0] = 1;
    fake.more_key = G "attention.head_count_kv";
    fake.more_ints[0] = KV_HEADS;
    fake.more_ints[1] = WIDE_KV;
    fake.n_ints = fake.n_more_ints = N_LAYERS;
    add("token_embd.weight", 2, VOCAB, DIM);
    add("output_norm.weight", 1, DIM, 0);
    add_layers("blk.", both, 7);
    add_gguf("0", "attn_q.weight", Q, DIM);
    add_gguf("0", "attn_k.weight", KV, DIM);
    add_gguf("0", "attn_v.weight", KV, DIM);
    add_gguf("0", "attn_output.weight", DIM, Q);
    add_gguf("0", "attn_q_norm.weight", HEAD_DIM, 0);
    add_gguf("0", "attn_k_norm.weight", HEAD_DIM, 0);
    add_gguf("0", "layer_output_scale.weight", 1, 0);
    add_gguf("1", "attn_q.weight", WIDE_Q, DIM);
    add_gguf("1", "attn_k.weight", WIDE_KV * WIDE, DIM);
    add_gguf("1", "attn_output.weight", DIM, WIDE_Q);
    add_gguf("1", "attn_q_norm.weight", WIDE, 0);
    add_gguf("1", "attn_k_norm.weight", WIDE, 0);
    add_gguf("1", "layer_output_scale.weight", 1, 0);
    struct source_tensor *t = add("rope_freqs.weight", 1, WIDE / 2, 0);
    t->dtype = DTYPE_F32;
    t->n_bytes = (int64_t)sizeof divisors;
    for (int i = 0; i < WIDE / 2; i++)
        divisors[i] = i < WIDE / 8 ? 1 : 1e30f;
    fake.rope_freqs = divisors;
    fake.numbers = scalars;
}

static void test_gguf(void **state)
{
    (void)state;
    start_text();
    expect_good();
    const struct shape hf = model.shape, *s = &model.shape;
    start_gguf();
    expect_good();
    assert_true(!s->layer_wide[0] && s->layer_wide[1] && s->layer_window[0] == 100);
    assert_true(s->head_dim == HEAD_DIM && s->wide_head_dim == WIDE && s->rope_dim == HEAD_DIM);
    assert_true(s->n_kv_heads == KV_HEADS && s->wide_kv_heads == WIDE_KV && s->tied_kv);
    assert_true(s->layer_scale[0] == 0.5f && s->logit_softcap == 30 && !model.paired_rows);
    assert_memory_equal(s->ropes, hf.ropes, sizeof hf.ropes);
    add_gguf("1", "attn_v.weight", WIDE_KV * WIDE, DIM); // of its own
    expect_good();
    assert_true(!s->tied_kv && shape_has_values(s, 1));
    start_gguf();
    fake.n_more_ints = 1; // one number for all layers
    tensor("blk.1.attn_k.weight")->dims[0] = KV_HEADS * WIDE;
    tensor("blk.1.attn_k.weight")->n_bytes = 2 * KV_HEADS * WIDE * DIM;
    expect_good();
    assert_int_equal(s->wide_kv_heads, KV_HEADS);
}

static void start_gguf_experts(void)
{
    static const struct line more[] = {
        {"ffn_gate_inp.weight", EXPERTS, DIM}, {"ffn_gate_inp.scale", DIM, 0},
        {"ffn_down_exps.scale", EXPERTS, 0},   {"ffn_down_exps.weight", EXPERTS * DIM, INNER},
        {"pre_ffw_norm_2.weight", DIM, 0},     {"post_ffw_norm_1.weight", DIM, 0},
        {"post_ffw_norm_2.weight", DIM, 0}};
    start_gguf();
    add_layers("blk.", more, 7);
    set_int(G "expert_count", EXPERTS);
    set_int(G "expert_used_count", 2);
    set_int(G "expert_feed_forward_length", INNER);
}

/* In files of NVFP4 the router's scales are factors of the matrices. */
static void test_gguf_nvfp4_experts(void **state)
{
    static const struct line fused[] = {{"ffn_gate_up_exps.weight", EXPERTS * 2 * 64, DIM}};
    (void)state;
    for (int scaled = 0; scaled < 2; scaled++) {
        start_gguf_experts();
        set_int(G "expert_feed_forward_length", 64);
        add_layers("blk.", fused, 1);
        for (int i = 0; i < N_LAYERS; i++) {
            char name[60];
            snprintf(name, sizeof name, "blk.%d.ffn_down_exps.weight", i);
            struct source_tensor *t = tensor(name);
            t->dims[1] = 64;
            t->dtype = scaled ? DTYPE_BF16 : DTYPE_NV4_64;
            t->n_bytes = dtype_row_bytes(t->dtype, 64) * EXPERTS * DIM;
        }
        expect_good();
        assert_int_equal(model.shape.route_scales, scaled);
    }
}

/* Gate and up in one tensor, or in two. */
static void test_gguf_experts(void **state)
{
    static const struct line fused[] = {{"ffn_gate_up_exps.weight", EXPERTS * 2 * INNER, DIM}};
    static const struct line apart[] = {{"ffn_gate_exps.weight", EXPERTS * INNER, DIM},
                                        {"ffn_up_exps.weight", EXPERTS * INNER, DIM}};
    (void)state;
    start_gguf_experts();
    add_layers("blk.", fused, 1);
    expect_good();
    const struct shape *s = &model.shape;
    assert_true(s->n_experts == EXPERTS && s->n_experts_used == 2 && s->ffn_dim == INNER);
    assert_true(s->shared_dim == FFN && s->expert_norms && s->route_scales && s->route_alone);
    assert_int_equal(family_source_row(&model, ROLE_UP, 1), INNER + 1);
    assert_true(model.factor[ROLE_ROUTER_NORM_W] == 1 / sqrtf(DIM));
    drop("blk.1.ffn_gate_up_exps.weight");
    expect_bad("blk.1.ffn_gate_up_exps.weight: missing");
    start_gguf_experts();
    add_layers("blk.", apart, 2);
    expect_good();
    assert_int_equal(family_source_row(&model, ROLE_UP, 1), 1);
    drop("blk.0.ffn_down_exps.scale");
    expect_bad("blk.0.ffn_down_exps.scale: missing");
}

static void expect_bad_gguf(const char *key, int number, const char *what)
{
    start_gguf();
    set_int(key, number);
    expect_bad(what);
}

static void test_gguf_refused(void **state)
{
    (void)state;
    expect_bad_gguf(G "attention.shared_kv_layers", 1,
                    G "attention.shared_kv_layers: no earlier layer is of the kind of layer 1");
    expect_bad_gguf(G "embedding_length_per_layer_input", 256,
                    "per_layer_token_embd.weight: missing");
    expect_bad_gguf(G "feed_forward_length", 0, G "feed_forward_length: unsupported: 0 in layer 0");
    expect_bad_gguf(G "attention.key_length", WIDE + 1, G "attention.key_length: 129 is odd");
    expect_bad_gguf(G "attention.key_length", 1024, G "attention.key_length: out of range");
    expect_bad_gguf(G "attention.value_length", 64, G "attention.value_length: unsupported: 64");
    expect_bad_gguf(G "attention.value_length_swa", 32,
                    G "attention.value_length_swa: unsupported");
    expect_bad_gguf(G "rope.dimension_count", 64, G "rope.dimension_count: unsupported: 64, not");
    expect_bad_gguf(G "rope.dimension_count_swa", 65, G "rope.dimension_count: 65 is odd or above");
    expect_bad_gguf(G "attention.sliding_window", 0, G "attention.sliding_window: out of range");
    expect_bad_gguf(G "block_count", 3, G "attention.sliding_window_pattern: has 2 entries");
    start_gguf();
    unset(G "attention.sliding_window");
    expect_bad(G "attention.sliding_window: missing");
    start_gguf();
    unset(G "block_count");
    expect_bad(G "block_count: missing");
    start_gguf();
    fake.ints[1] = 1;
    expect_bad(G "attention.sliding_window_pattern: unsupported: the last layer has a window");
    start_gguf();
    fake.n_ints = 1; // no period
    expect_bad(G "attention.sliding_window_pattern: has 1 entries, expected 2");
    start_gguf();
    fake.more_ints[0] = 0;
    expect_bad(G "attention.head_count_kv: unsupported: 0 in layer 0");
    start_gguf();
    fake.more_ints[1] = 3;
    expect_bad(G "attention.head_count_kv: 8 heads are not a multiple of 3");
    start_gguf();
    fake.ints[0] = 0; // another layer without a window, with other KV heads
    expect_bad(G "attention.head_count_kv: unsupported: 1 in layer 1");
    fake.more_ints[0] = WIDE_KV;
    expect_bad("attn_v.weight: in 1 of 2 layers without a window");
    start_gguf();
    drop("rope_freqs.weight");
    expect_bad("rope_freqs.weight: missing");
    start_gguf();
    tensor("rope_freqs.weight")->dims[0] = HEAD_DIM / 2; // those of the other heads
    expect_bad("rope_freqs.weight: expected [64] f32");
    start_gguf();
    drop("blk.1.layer_output_scale.weight");
    expect_bad("blk.1.layer_output_scale.weight: missing");
    start_gguf();
    add_gguf("0", "inp_gate.weight", 256, DIM);
    source.tensors = fake.tensors;
    source.n_tensors = fake.n_tensors;
    expect_bad("blk.0.inp_gate.weight: unsupported: gemma4 models have no such tensor");
}

/* Both layers are wide; layer 1 uses the keys of layer 0, and has an MLP twice as wide. Names are
 * those of a GGUF file (1), or of safetensors. */
static void lend(int gguf, const char *start)
{
    static const char *const names[][2] = {
        {"self_attn.q_proj.weight", "attn_q.weight"},
        {"self_attn.k_proj.weight", "attn_k.weight"},
        {"self_attn.v_proj.weight", "attn_v.weight"},
        {"self_attn.o_proj.weight", "attn_output.weight"},
        {"self_attn.q_norm.weight", "attn_q_norm.weight"},
        {"self_attn.k_norm.weight", "attn_k_norm.weight"},
        {"mlp.gate_proj.weight", "ffn_gate.weight"},
        {"mlp.up_proj.weight", "ffn_up.weight"},
        {"mlp.down_proj.weight", "ffn_down.weight"},
        {"per_layer_input_gate.weight", "inp_gate.weight"},
        {"per_layer_projection.weight", "proj.weight"},
        {"post_per_layer_input_norm.weight", "post_norm.weight"}};
    static const int dims[][2] = {{WIDE_Q, DIM},
                                  {WIDE_KV * WIDE, DIM},
                                  {0},
                                  {DIM, WIDE_Q},
                                  {WIDE, 0},
                                  {WIDE, 0},
                                  {2 * FFN, DIM},
                                  {2 * FFN, DIM},
                                  {DIM, 2 * FFN},
                                  {INPUT, DIM},
                                  {DIM, INPUT},
                                  {DIM, 0}};
    for (int i = 0; i < 12; i++)
        for (int layer = 0; layer < N_LAYERS; layer++) {
            const char *digit = layer ? "1" : "0", *name = names[i][gguf];
            const int kv = i == 1 || i == 2 || i == 5, mlp = i >= 6 && i < 9;
            char full[100];
            snprintf(full, sizeof full, "%s%s.%s", start, digit, name);
            if (source_find(&source, full) && !(mlp && layer == 0))
                drop(full);
            if (i != 2 && !(kv && layer == 1) && !(mlp && layer == 0))
                add_at(start, digit, name, dims[i][0], dims[i][1]);
        }
}

static void start_lent(void)
{
    start_text();
    lend(0, "model.layers.");
    add("model.embed_tokens_per_layer.weight", 2, VOCAB, N_LAYERS * INPUT);
    add("model.per_layer_model_projection.weight", 2, N_LAYERS * INPUT, DIM);
    add("model.per_layer_projection_norm.weight", 1, INPUT, 0);
    set_int("hidden_size_per_layer_input", INPUT);
    set_int("vocab_size_per_layer_input", VOCAB);
    set_int("num_kv_shared_layers", 1);
    set_flag("use_double_wide_mlp", 1);
    fake.types[0] = "full_attention";
}

static void expect_lent(void)
{
    const struct shape *s = &model.shape;
    expect_good();
    assert_true(s->kv_own_layers == 1 && s->late_ffn_dim == 2 * FFN && s->layer_input == INPUT);
    assert_true(shape_lends_kv(s, 0) && !shape_borrows_kv(s, 0) && shape_borrows_kv(s, 1));
    assert_true(role_in_layer(s, ROLE_K, 0) && !role_in_layer(s, ROLE_K, 1));
    assert_int_equal(shape_part(s, PART_INPUTS), N_LAYERS * INPUT);
    assert_int_equal(shape_part(s, PART_K), 0); // no layer has a window
    assert_int_equal(shape_before_part(s, N_PARTS), DIM + N_LAYERS * INPUT + 2 * WIDE_KV * WIDE);
}

static void test_lent(void **state)
{
    (void)state;
    start_lent();
    expect_lent();
    add_one("1", "self_attn.k_proj.weight", 1, 1); // as transformers, of no use
    add_one("1", "self_attn.v_proj.weight", 1, 1);
    source.tensors = fake.tensors;
    source.n_tensors = fake.n_tensors;
    expect_lent();
    add_one("1", "self_attn.more.weight", 1, 1);
    source.n_tensors = fake.n_tensors;
    expect_bad("layers.1.self_attn.more.weight: unsupported");
    start_text();
    set_null("hidden_size_per_layer_input");
    expect_good();
    assert_int_equal(model.shape.layer_input, 0);
}

static void expect_bad_lent(const char *key, int number, const char *what)
{
    start_lent();
    set_int(key, number);
    expect_bad(what);
}

static void test_lent_refused(void **state)
{
    (void)state;
    expect_bad_lent("num_kv_shared_layers", 2, "num_kv_shared_layers: out of range");
    expect_bad_lent("num_kv_shared_layers", -1, "num_kv_shared_layers: out of range");
    expect_bad_lent("vocab_size_per_layer_input", VOCAB - 1,
                    "vocab_size_per_layer_input: unsupported: 999, not 1000");
    expect_bad_lent("hidden_size_per_layer_input", 2 * INPUT,
                    "embed_tokens_per_layer.weight: expected [1000, 128]");
    expect_bad_lent("hidden_size_per_layer_input", SHAPE_DIM_MAX, "layer_input: out of range");
    expect_bad_lent("intermediate_size", SHAPE_DIM_MAX, "intermediate_size: out of range");
    start_lent();
    unset("hidden_size_per_layer_input"); // means 256
    expect_bad("embed_tokens_per_layer.weight: expected [1000, 512]");
    start_lent();
    set_flag("use_double_wide_mlp", 0);
    expect_bad("layers.1.mlp.gate_proj.weight: expected [640, 512]");
    start_lent();
    fake.types[0] = "sliding_attention";
    expect_bad("num_kv_shared_layers: no earlier layer is of the kind of layer 1");
    start_lent();
    drop("model.per_layer_projection_norm.weight");
    expect_bad("per_layer_projection_norm.weight: missing");
    start_lent();
    drop("model.layers.1.per_layer_projection.weight");
    expect_bad("layers.1.per_layer_projection.weight: missing");
    start_lent();
    drop("model.layers.0.self_attn.k_proj.weight");
    expect_bad("layers.0.self_attn.k_proj.weight: missing");
}

static void test_gguf_lent(void **state)
{
    (void)state;
    start_gguf();
    lend(1, "blk.");
    add("per_layer_token_embd.weight", 2, VOCAB, N_LAYERS * INPUT);
    add("per_layer_model_proj.weight", 2, N_LAYERS * INPUT, DIM);
    add("per_layer_proj_norm.weight", 1, INPUT, 0);
    set_int(G "embedding_length_per_layer_input", INPUT);
    set_int(G "attention.shared_kv_layers", 1);
    unset(G "feed_forward_length");
    set_int(G "attention.head_count_kv", WIDE_KV);
    fake.ints[0] = 0;
    fake.more_key = G "feed_forward_length";
    fake.more_ints[0] = FFN;
    fake.more_ints[1] = 2 * FFN;
    expect_lent();
    fake.more_ints[0] = 2 * FFN;
    expect_bad("blk.0.ffn_gate.weight: expected [1280, 512]");
    set_int(G "attention.shared_kv_layers", 0);
    fake.more_ints[0] = FFN;
    expect_bad(G "feed_forward_length: unsupported: 1280 in layer 1");
    fake.n_more_ints = 3;
    expect_bad(G "feed_forward_length: has 3 entries, expected 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wide),
        cmocka_unit_test(test_long_window),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_gguf_experts),
        cmocka_unit_test(test_gguf_nvfp4_experts),
        cmocka_unit_test(test_gguf_refused),
        cmocka_unit_test(test_lent),
        cmocka_unit_test(test_lent_refused),
        cmocka_unit_test(test_gguf_lent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
