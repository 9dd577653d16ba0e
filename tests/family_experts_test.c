/* tests/family_experts_test.c - model files whose layers have experts, good and bad, in memory. */
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

#define EXPERTS 5
#define USED    2

static void sizes(const char *type)
{
    start_hf(type);
    set_int("num_experts_per_tok", USED);
}

static const struct line attention[] = {{"input_layernorm.weight", DIM, 0},
                                        {"self_attn.q_proj.weight", HEADS *HEAD_DIM, DIM},
                                        {"self_attn.k_proj.weight", KV_HEADS *HEAD_DIM, DIM},
                                        {"self_attn.v_proj.weight", KV_HEADS *HEAD_DIM, DIM},
                                        {"self_attn.o_proj.weight", DIM, HEADS *HEAD_DIM},
                                        {"post_attention_layernorm.weight", DIM, 0}};

/* Experts apart, as published. */
static void mixtral(void)
{
    sizes("mixtral");
    set_int("num_local_experts", EXPERTS);
    add_layers("model.layers.", attention, 6);
    add_layers("model.layers.", (struct line[]){{"block_sparse_moe.gate.weight", EXPERTS, DIM}}, 1);
    for (int e = 0; e < EXPERTS; e++) {
        char names[3][60];
        for (int i = 0; i < 3; i++)
            snprintf(names[i], sizeof names[i], "block_sparse_moe.experts.%d.w%d.weight", e, i + 1);
        const struct line lines[] = {
            {names[0], FFN, DIM}, {names[1], DIM, FFN}, {names[2], FFN, DIM}};
        add_layers("model.layers.", lines, 3);
    }
}

/* All in one tensor. */
static void add_stack(const char *name, int64_t a, int64_t b, int64_t c)
{
    for (int i = 0; i < N_LAYERS; i++) {
        char full[100];
        snprintf(full, sizeof full, "model.layers.%d.%s", i, name);
        struct source_tensor *t = add(full, 3, a, b);
        t->dims[2] = c;
        t->n_bytes = 2 * a * b * (c ? c : 1);
        t->n_dims = c ? 3 : 2;
    }
}

static void qwen3_moe(void)
{
    sizes("qwen3_moe");
    set_int("num_experts", EXPERTS);
    set_int("moe_intermediate_size", 96);
    add_layers("model.layers.", attention, 6);
    add_layers("model.layers.",
               (struct line[]){{"self_attn.q_norm.weight", HEAD_DIM, 0},
                               {"self_attn.k_norm.weight", HEAD_DIM, 0},
                               {"mlp.gate.weight", EXPERTS, DIM}},
               3);
    add_stack("mlp.experts.gate_up_proj", EXPERTS, 192, DIM);
    add_stack("mlp.experts.down_proj", EXPERTS, DIM, 96);
}

static void test_experts_apart(void **state)
{
    (void)state;
    int n, k;
    mixtral();
    expect_good();
    assert_true(model.shape.n_experts == EXPERTS && model.shape.n_experts_used == USED &&
                model.shape.route_alone == 1 && model.shape.ffn_dim == FFN);
    role_dims(&model.shape, ROLE_DOWN, 0, &n, &k);
    assert_true(n == EXPERTS * DIM && k == FFN);
    assert_int_equal(family_parts(&model, ROLE_UP), EXPERTS);
    assert_string_equal(family_part(&model, &source, ROLE_UP, 1, 3)->name,
                        "model.layers.1.block_sparse_moe.experts.3.w3.weight");
    tensor("model.layers.1.block_sparse_moe.experts.3.w3.weight")->dims[0] = FFN - 32;
    expect_bad("model.layers.1.block_sparse_moe.experts.3.w3.weight: expected [640, 512]");
    mixtral();
    tensor("model.layers.1.block_sparse_moe.experts.4.w1.weight")->dtype = DTYPE_F16;
    expect_bad("model.layers.1.block_sparse_moe.experts.4.w1.weight: f16, but the first expert's");
    mixtral();
    drop("model.layers.0.block_sparse_moe.experts.2.w2.weight");
    expect_bad("model.layers.0.block_sparse_moe.experts.2.w2.weight: missing");
    mixtral();
    set_int("num_local_experts", EXPERTS - 1);
    expect_bad("model.layers.0.block_sparse_moe.gate.weight: expected [4, 512]");
    tensor("model.layers.0.block_sparse_moe.gate.weight")->dims[0]--;
    tensor("model.layers.1.block_sparse_moe.gate.weight")->dims[0]--;
    tensor("model.layers.0.block_sparse_moe.gate.weight")->n_bytes -= 2 * DIM;
    tensor("model.layers.1.block_sparse_moe.gate.weight")->n_bytes -= 2 * DIM;
    source.tensors = fake.tensors;
    source.n_tensors = fake.n_tensors;
    expect_bad("model.layers.0.block_sparse_moe.experts.4.w1.weight: unsupported: mixtral models");
}

static void test_experts_in_one(void **state)
{
    (void)state;
    qwen3_moe();
    expect_good();
    assert_true(model.shape.n_experts == EXPERTS && model.shape.route_alone == 0 &&
                model.shape.ffn_dim == 96);
    assert_int_equal(family_source_row(&model, ROLE_GATE, 96 * 2 + 5), 192 * 2 + 5);
    assert_int_equal(family_source_row(&model, ROLE_UP, 96 * 2 + 5), 192 * 2 + 96 + 5);
    assert_int_equal(family_source_row(&model, ROLE_DOWN, DIM * 3 + 7), DIM * 3 + 7);
    set_flag("norm_topk_prob", 1);
    expect_good();
    assert_int_equal(model.shape.route_alone, 1);
    unset("num_experts"); // as transformers 5 says it
    set_int("num_local_experts", EXPERTS);
    expect_good();
    tensor("model.layers.1.mlp.experts.gate_up_proj")->dims[0] = EXPERTS + 1;
    expect_bad("model.layers.1.mlp.experts.gate_up_proj: expected [960, 512], the file has [6, ");
    tensor("model.layers.1.mlp.experts.gate_up_proj")->dims[0] = 3; // as many rows, of fewer
    tensor("model.layers.1.mlp.experts.gate_up_proj")->dims[1] = 320;
    expect_bad("model.layers.1.mlp.experts.gate_up_proj: expected [960, 512], the file has [3, ");
}

static void test_bad_counts(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        double value;
        const char *says;
    } bad[] = {{"num_experts", 0, "num_experts"},
               {"num_experts", 1, "exceeds the 1 experts"},
               {"num_experts", 1025, "num_experts"},
               {"num_experts", 1e9, "num_experts"},
               {"num_experts_per_tok", 0, "num_experts_per_tok"},
               {"num_experts_per_tok", EXPERTS + 1, "num_experts_per_tok: 6 exceeds the 5"},
               {"num_experts_per_tok", 65, "num_experts_per_tok"},
               {"moe_intermediate_size", 0, "moe_intermediate_size"},
               {"moe_intermediate_size", 95, "gate_up_proj: expected [950, 512]"},
               {"decoder_sparse_step", 0, "decoder_sparse_step"},
               {"decoder_sparse_step", -1, "decoder_sparse_step"},
               {"decoder_sparse_step", 3, "decoder_sparse_step: unsupported: no layer has experts"},
               {"shared_expert_intermediate_size", 64, "shared_expert_intermediate_size"},
               {"n_shared_experts", 1, "n_shared_experts"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qwen3_moe();
        set_int(bad[i].key, bad[i].value);
        expect_bad(bad[i].says);
    }
    qwen3_moe();
    unset("num_experts_per_tok");
    expect_bad("num_experts_per_tok: missing");
    qwen3_moe();
    unset("num_experts");
    expect_bad("num_experts: missing");
    mixtral();
    set_int("num_local_experts", 1 << 20);
    expect_bad("num_local_experts");
}

/* Layer 0 with one MLP [640], layer 1 with experts of 96. */
static void two_kinds(const char *type)
{
    qwen3_moe();
    set_str("model_type", type);
    drop("model.layers.0.mlp.gate.weight");
    drop("model.layers.0.mlp.experts.gate_up_proj");
    drop("model.layers.0.mlp.experts.down_proj");
    add("model.layers.0.mlp.gate_proj.weight", 2, FFN, DIM);
    add("model.layers.0.mlp.up_proj.weight", 2, FFN, DIM);
    add("model.layers.0.mlp.down_proj.weight", 2, DIM, FFN);
    fake.n_ints = 1;
}

static void test_two_kinds(void **state)
{
    (void)state;
    int n, k;
    two_kinds("qwen3_moe");
    expect_good();
    assert_true(model.shape.layer_dense[0] == 1 && model.shape.layer_dense[1] == 0);
    assert_true(model.shape.dense_dim == FFN && model.shape.ffn_dim == 96);
    role_dims(&model.shape, ROLE_DENSE_DOWN, 0, &n, &k);
    assert_true(n == DIM && k == FFN);
    assert_true(role_in_layer(&model.shape, ROLE_DENSE_UP, 0) &&
                !role_in_layer(&model.shape, ROLE_DENSE_UP, 1) &&
                !role_in_layer(&model.shape, ROLE_ROUTER, 0) &&
                role_in_layer(&model.shape, ROLE_Q, 0) && role_in_layer(&model.shape, ROLE_Q, 1));
    fake.n_ints = 0; // the same by its step
    set_int("decoder_sparse_step", 2);
    expect_good();
    assert_true(model.shape.layer_dense[0] == 1 && model.shape.layer_dense[1] == 0);
    assert_int_equal(family_source_row(&model, ROLE_UP, 96 * 2 + 5), 192 * 2 + 96 + 5);
    tensor("model.layers.0.mlp.up_proj.weight")->dims[0] = 96;
    expect_bad("model.layers.0.mlp.up_proj.weight: expected [640, 512]");
    tensor("model.layers.0.mlp.up_proj.weight")->dims[0] = FFN;
    set_int("decoder_sparse_step", 1);
    expect_bad("model.layers.0.mlp.experts.0.gate_proj.weight: missing");
}

/* Lists that are wrong, and tensors that a layer of the other kind has. */
static void test_bad_kinds(void **state)
{
    (void)state;
    static const int64_t wrong[] = {-1, N_LAYERS, 1LL << 40};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        two_kinds("qwen3_moe");
        fake.ints[0] = wrong[i];
        expect_bad("mlp_only_layers: out of range");
    }
    two_kinds("qwen3_moe");
    fake.ints[0] = 1;
    expect_bad("model.layers.0.mlp.experts.0.gate_proj.weight: missing");
    fake.ints[1] = 0;
    fake.n_ints = 2;
    expect_bad("mlp_only_layers: unsupported: no layer has experts");
    fake.ints[0] = 0; // twice the same
    expect_good();
    for (int layer = 0; layer < 2; layer++) {
        char name[100];
        two_kinds("qwen3_moe");
        snprintf(name, sizeof name, "model.layers.%d.mlp.%s.weight", layer,
                 layer ? "down_proj" : "gate");
        add(name, 2, 16, DIM);
        source.tensors = fake.tensors;
        source.n_tensors = fake.n_tensors;
        expect_bad("qwen3_moe models have no such tensor");
    }
}

static void qwen2_moe(void)
{
    two_kinds("qwen2_moe");
    set_int("shared_expert_intermediate_size", 200);
    for (int i = 0; i < N_LAYERS; i++) {
        char name[100];
        for (int v = 0; v < 3; v++) {
            snprintf(name, sizeof name, "model.layers.%d.self_attn.%c_proj.bias", i, "qkv"[v]);
            add(name, 1, (v ? KV_HEADS : HEADS) * HEAD_DIM, 0);
        }
    }
    add("model.layers.1.mlp.shared_expert.gate_proj.weight", 2, 200, DIM);
    add("model.layers.1.mlp.shared_expert.up_proj.weight", 2, 200, DIM);
    add("model.layers.1.mlp.shared_expert.down_proj.weight", 2, DIM, 200);
    add("model.layers.1.mlp.shared_expert_gate.weight", 2, 1, DIM);
}

static void test_shared_expert(void **state)
{
    (void)state;
    static const char *const types[] = {"full_attention", "sliding_attention"};
    struct source_tensor *share;
    qwen2_moe();
    expect_good();
    assert_true(model.shape.shared_dim == 200 && model.shape.shared_gate == 1 &&
                model.shape.route_alone == 0 && (model.roles & ROLE_BIT(ROLE_K_B)));
    share = tensor("model.layers.1.mlp.shared_expert_gate.weight");
    share->n_dims = 1; // as GGUF has it
    share->dims[0] = DIM;
    expect_good();
    share->dims[0] = DIM - 1;
    expect_bad("shared_expert_gate.weight: expected [1, 512], the file has [511]");
    share->dims[0] = share->n_dims = 2;
    share->dims[1] = DIM;
    expect_bad("shared_expert_gate.weight: expected [1, 512], the file has [2, 512]");
    for (int i = 0; i < 3; i++) {
        qwen2_moe();
        set_int("shared_expert_intermediate_size", (double[]){0, SHAPE_DIM_MAX + 1, 199}[i]);
        expect_bad(i < 2 ? "shared_expert_intermediate_size"
                         : "model.layers.1.mlp.shared_expert.gate_proj.weight: expected [199");
    }
    qwen2_moe();
    unset("shared_expert_intermediate_size");
    expect_bad("shared_expert_intermediate_size: missing");
    qwen2_moe();
    set_flag("qkv_bias", 0);
    expect_good();
    assert_false(model.roles & ROLE_BIT(ROLE_K_B));
    set_flag("use_sliding_window", 1); // even layers, the first ones
    set_int("sliding_window", 64);
    expect_good();
    assert_true(model.shape.layer_window[0] == 64 && model.shape.layer_window[1] == 0);
    set_int("max_window_layers", 0);
    expect_good();
    assert_int_equal(model.shape.layer_window[0], 0);
    memcpy(fake.types, types, sizeof types);
    fake.n_types = N_LAYERS;
    expect_good();
    assert_true(model.shape.layer_window[0] == 0 && model.shape.layer_window[1] == 64);
}

/* All experts in one tensor under one name or another; the one of all tokens alike. */
static void test_granite_moe(void **state)
{
    (void)state;
    static const char *const stems[][3] = {
        {"block_sparse_moe.router.layer.weight", "block_sparse_moe.input_linear.weight",
         "block_sparse_moe.output_linear.weight"},
        {"block_sparse_moe.router.weight", "block_sparse_moe.experts.gate_up_proj",
         "block_sparse_moe.experts.down_proj"}};
    for (int own = 0; own < 2; own++) {
        sizes(own ? "granitemoeshared" : "granitemoe");
        set_int("num_local_experts", EXPERTS);
        set_int("shared_intermediate_size", own ? 200 : 0);
        set_float("residual_multiplier", 0.5);
        add_layers("model.layers.", attention, 6);
        add_layers("model.layers.", (struct line[]){{stems[own][0], EXPERTS, DIM}}, 1);
        add_stack(stems[own][1], EXPERTS, 2 * FFN, DIM);
        add_stack(stems[own][2], EXPERTS, DIM, FFN);
        if (own)
            add_layers("model.layers.",
                       (struct line[]){{"shared_mlp.input_linear.weight", 400, DIM},
                                       {"shared_mlp.output_linear.weight", DIM, 200}},
                       2);
        expect_good();
        assert_true(model.shape.shared_dim == (own ? 200 : 0) && model.shape.shared_gate == 0 &&
                    model.shape.route_alone == 1 && model.shape.branch_scale == 0.5f);
        assert_int_equal(family_source_row(&model, ROLE_UP, FFN * 2 + 5), 2 * FFN * 2 + FFN + 5);
        set_int("shared_intermediate_size", own ? 0 : 200);
        if (own) {
            source.tensors = fake.tensors;
            source.n_tensors = fake.n_tensors;
        }
        expect_bad(own ? "shared_mlp.input_linear.weight: unsupported: granitemoe models"
                       : "shared_mlp.input_linear.weight: missing");
        set_int("shared_intermediate_size", -1);
        expect_bad("shared_intermediate_size");
    }
}

/* A GGUF file of a family of experts that does not say how many, or none. */
static void test_no_count(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen3moe", "gpt-oss", "qwen2moe"};
    static const char *const keys[] = {"block_count", "embedding_length", "feed_forward_length",
                                       "attention.head_count", "context_length"};
    for (int i = 0; i < 6; i++) {
        char key[80];
        start(SOURCE_GGUF);
        set_str("general.architecture", names[i / 2]);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            snprintf(key, sizeof key, "%s.%s", names[i / 2], keys[k]);
            set_int(key, 2);
        }
        snprintf(key, sizeof key, "%s.expert_count", names[i / 2]);
        if (i % 2)
            set_int(key, 0);
        expect_bad(".expert_count: missing");
    }
}

/* Rows of gate and up take turns; in bf16 matrices stand as [inputs, outputs], in MXFP4 not. */
static void test_gpt_oss(void **state)
{
    (void)state;
    for (int mxfp4 = 0; mxfp4 < 2; mxfp4++) {
        sizes("gpt_oss");
        set_int("num_local_experts", EXPERTS);
        set_int("sliding_window", 128);
        add_layers("model.layers.", attention, 6);
        add_layers("model.layers.",
                   (struct line[]){{"self_attn.q_proj.bias", HEADS * HEAD_DIM, 0},
                                   {"self_attn.k_proj.bias", KV_HEADS * HEAD_DIM, 0},
                                   {"self_attn.v_proj.bias", KV_HEADS * HEAD_DIM, 0},
                                   {"self_attn.o_proj.bias", DIM, 0},
                                   {"self_attn.sinks", HEADS, 0},
                                   {"mlp.router.weight", EXPERTS, DIM},
                                   {"mlp.router.bias", EXPERTS, 0}},
                   7);
        add_stack("mlp.experts.gate_up_proj", EXPERTS, mxfp4 ? 2 * FFN : DIM,
                  mxfp4 ? DIM : 2 * FFN);
        add_stack("mlp.experts.down_proj", EXPERTS, mxfp4 ? DIM : FFN, mxfp4 ? FFN : DIM);
        add_stack("mlp.experts.gate_up_proj_bias", EXPERTS, 2 * FFN, 0);
        add_stack("mlp.experts.down_proj_bias", EXPERTS, DIM, 0);
        for (int i = 0; i < fake.n_tensors && mxfp4; i++)
            if (fake.tensors[i].n_dims == 3) {
                struct source_tensor *t = &fake.tensors[i];
                t->dtype = DTYPE_MXFP4;
                t->n_bytes = dtype_row_bytes(DTYPE_MXFP4, t->dims[2]) * t->dims[0] * t->dims[1];
            }
        expect_good();
        struct family_model narrow = model;
        int n, k;
        narrow.file_ffn = FFN - 16; // an expert's last rows in the pack are zeros
        family_file_dims(&narrow, ROLE_UP_B, 0, &n, &k);
        assert_true(n == EXPERTS * (FFN - 16) && k == 1);
        family_file_dims(&narrow, ROLE_DOWN, 0, &n, &k);
        assert_true(n == EXPERTS * DIM && k == FFN - 16);
        family_file_dims(&narrow, ROLE_DOWN_B, 0, &n, &k);
        assert_true(n == EXPERTS * DIM && k == 1);
        assert_int_equal(family_file_row(&narrow, ROLE_UP_B, FFN - 16), -1);
        assert_int_equal(family_file_row(&narrow, ROLE_DOWN_B, FFN - 16), FFN - 16);
        assert_int_equal((model.transposed & ROLE_BIT(ROLE_DOWN)) != 0, !mxfp4);
        assert_int_equal(family_source_row(&model, ROLE_GATE, FFN + 3), 2 * FFN + 6);
        assert_int_equal(family_source_row(&model, ROLE_UP_B, FFN + 3), 2 * FFN + 7);
        assert_true(model.shape.sinks && model.shape.act == ACT_GELU_QUICK &&
                    model.shape.act_limit == 7 && model.shape.layer_window[0] == 128 &&
                    model.shape.layer_window[1] == 0);
        set_float("swiglu_limit", -1);
        expect_bad("swiglu_limit");
        set_float("swiglu_limit", 7);
        struct source_tensor *down = tensor("model.layers.1.mlp.experts.down_proj");
        down->dims[0] *= down->dims[1]; // one matrix: as good, but where columns are read
        down->dims[1] = down->dims[2];
        down->n_dims = 2;
        if (mxfp4)
            expect_good();
        else
            expect_bad("down_proj: expected one matrix per expert, the file has [3200, 512]");
    }
}

/* glm4_moe: the first layer has no experts. */
static void glm4_moe(void)
{
    sizes("glm4_moe");
    set_int("n_routed_experts", 8);
    set_int("moe_intermediate_size", 96);
    set_int("first_k_dense_replace", 1);
    set_int("n_shared_experts", 2);
    add_layers("model.layers.", attention, 6);
    const struct line dense[] = {{"mlp.gate_proj.weight", FFN, DIM},
                                 {"mlp.up_proj.weight", FFN, DIM},
                                 {"mlp.down_proj.weight", DIM, FFN}};
    const struct line sparse[] = {{"mlp.gate.weight", 8, DIM},
                                  {"mlp.gate.e_score_correction_bias", 8, 0},
                                  {"mlp.shared_experts.gate_proj.weight", 192, DIM},
                                  {"mlp.shared_experts.up_proj.weight", 192, DIM},
                                  {"mlp.shared_experts.down_proj.weight", DIM, 192}};
    char name[100];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "model.layers.0.%s", dense[i].name);
        add(name, 2, dense[i].n, dense[i].k);
    }
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "model.layers.1.%s", sparse[i].name);
        add(name, sparse[i].k ? 2 : 1, sparse[i].n, sparse[i].k);
    }
    for (int e = 0; e < 8; e++)
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "model.layers.1.mlp.experts.%d.%s_proj.weight", e,
                     (const char *[]){"gate", "up", "down"}[i]);
            add(name, 2, i < 2 ? 96 : DIM, i < 2 ? DIM : 96);
        }
}

/* Keys of DeepSeek's router, and layers at the end that predict further tokens. */
static void test_routers(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        double value;
        const char *says;
    } bad[] = {{"n_group", 3, "n_groups"},
               {"n_group", 8, "n_groups"},
               {"num_experts_per_tok", 5, "n_groups_used"},
               {"topk_group", 5, "n_groups_used"},
               {"topk_group", -1, "topk_group"},
               {"n_group", 1000, "n_group"},
               {"first_k_dense_replace", 2, "first_k_dense"},
               {"first_k_dense_replace", -1, "first_k_dense"},
               {"n_shared_experts", 1 << 30, "n_shared_experts"}};
    glm4_moe();
    expect_good();
    const struct shape *s = &model.shape;
    assert_true(s->route_logistic && s->route_bias && s->route_alone && s->n_groups == 0 &&
                s->route_scale == 1 && s->shared_dim == 192 && !s->shared_gate &&
                s->dense_dim == FFN && s->layer_dense[0] && !s->layer_dense[1] &&
                s->ffn_dim == 96 && s->rope_dim == s->head_dim / 2);
    set_int("n_group", 4);
    set_int("topk_group", 1);
    set_float("routed_scaling_factor", 2.5);
    set_flag("norm_topk_prob", 0);
    expect_good();
    assert_true(s->n_groups == 4 && s->n_groups_used == 1 && s->route_scale == 2.5f &&
                !s->route_alone);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        glm4_moe();
        set_int("n_group", 4);
        set_int("topk_group", 2);
        set_int(bad[i].key, bad[i].value);
        expect_bad(bad[i].says);
    }
    glm4_moe();
    set_float("routed_scaling_factor", NAN);
    expect_bad("routed_scaling_factor");
    glm4_moe();
    drop("model.layers.1.mlp.gate.e_score_correction_bias");
    expect_bad("e_score_correction_bias: missing");
    glm4_moe();
    add("model.layers.2.eh_proj.weight", 2, DIM, 2 * DIM);
    source.tensors = fake.tensors;
    source.n_tensors = fake.n_tensors;
    expect_good();
    struct family_unused unused;
    family_unused(&model, &source, &unused);
    assert_true(unused.n_tensors == 1 && strcmp(unused.parts, "mtp") == 0);
    mixtral();
    set_int("n_group", 2);
    expect_bad("n_group: unsupported in mixtral models");
}

static void hunyuan_moe(void)
{
    start_hf("hunyuan_v1_moe");
    set_int("num_experts", EXPERTS);
    fake.ints_key = "moe_topk";
    fake.n_ints = 2;
    fake.ints[0] = fake.ints[1] = USED;
    add_layers("model.layers.", attention, 6);
    add_layers("model.layers.",
               (struct line[]){{"self_attn.query_layernorm.weight", HEAD_DIM, 0},
                               {"self_attn.key_layernorm.weight", HEAD_DIM, 0},
                               {"mlp.gate.wg.weight", EXPERTS, DIM},
                               {"mlp.shared_mlp.gate_proj.weight", FFN, DIM},
                               {"mlp.shared_mlp.up_proj.weight", FFN, DIM},
                               {"mlp.shared_mlp.down_proj.weight", DIM, FFN}},
               6);
    add_stack("mlp.experts.gate_up_proj", EXPERTS, 2 * FFN, DIM);
    add_stack("mlp.experts.down_proj", EXPERTS, DIM, FFN);
}

/* Counts may be lists of one number a layer. */
static void test_hunyuan_moe(void **state)
{
    const struct shape *s = &model.shape;
    (void)state;
    hunyuan_moe();
    expect_good();
    assert_true(s->n_experts == EXPERTS && s->n_experts_used == USED && s->shared_dim == FFN);
    assert_true(s->route_alone && !s->shared_gate && s->qk_norm == QK_NORM_TURNED);
    fake.ints[1] = USED + 1;
    expect_bad("moe_topk: unsupported: 3 in layer 1, but 2 in layer 0");
    fake.ints[1] = SHAPE_EXPERTS_USED_MAX + 1;
    expect_bad("moe_topk: out of range");
    fake.ints[0] = fake.ints[1] = EXPERTS + 1;
    expect_bad("6 exceeds the 5 experts");
    fake.n_ints = 0;
    expect_bad("moe_topk: missing");
    set_int("moe_topk", USED);
    unset("num_experts");
    fake.ints_key = "num_experts";
    fake.n_ints = 2;
    fake.ints[0] = EXPERTS;
    fake.ints[1] = EXPERTS - 1;
    expect_bad("num_experts: unsupported: 4 in layer 1, but 5 in layer 0");
    fake.ints[1] = EXPERTS;
    expect_good();
    set_int("n_group", 0); // no key of its class
    set_int("routed_scaling_factor", 0);
    expect_good();
    set_flag("group_limited_greedy", 1);
    expect_bad("group_limited_greedy: unsupported in hunyuan_moe models");
    unset("group_limited_greedy");
    tensor("model.layers.1.mlp.shared_mlp.up_proj.weight")->dims[0] = 2 * FFN; // of two experts
    expect_bad("shared_mlp.up_proj.weight: expected [640, 512]");
}

static void phimoe(void)
{
    sizes("phimoe");
    set_int("num_local_experts", EXPERTS);
    add_layers("model.layers.", attention, 6);
    add_layers("model.layers.",
               (struct line[]){{"input_layernorm.bias", DIM, 0},
                               {"post_attention_layernorm.bias", DIM, 0},
                               {"mlp.router.weight", EXPERTS, DIM}},
               3);
    add("model.norm.bias", 1, DIM, 0);
    add_stack("mlp.experts.gate_up_proj", EXPERTS, 2 * FFN, DIM);
    add_stack("mlp.experts.down_proj", EXPERTS, DIM, FFN);
}

/* A router that weighs among near experts, a bias of the head, factors of both tables of angles. */
static void test_phimoe(void **state)
{
    const struct shape *s = &model.shape;
    (void)state;
    phimoe();
    expect_good();
    assert_true(s->norm == NORM_LAYER && s->route_near == 0.02f && s->ropes[1].scale == 1);
    assert_true(!(model.roles & ROLE_BIT(ROLE_HEAD_B)));
    set_flag("lm_head_bias", 1);
    expect_bad("lm_head.bias: missing");
    add("lm_head.bias", 1, VOCAB - 1, 0);
    expect_bad("lm_head.bias: expected [1000], the file has [999]");
    drop("lm_head.bias");
    add("lm_head.bias", 1, VOCAB, 0);
    set_float("router_jitter_noise", 0.25);
    expect_good();
    assert_true(s->route_near == 0.5f && (model.roles & ROLE_BIT(ROLE_HEAD_B)));
    for (int i = 0; i < 4; i++) {
        set_float("router_jitter_noise", (double[]){0, -1, 1.5, NAN}[i]);
        expect_bad("router_jitter_noise: ");
    }
    unset("router_jitter_noise");
    set_int("num_experts_per_tok", 3);
    expect_bad("num_experts_per_tok: unsupported: 3, expected 2");
    set_int("num_experts_per_tok", 2);
    set_str("rope_scaling.type", "linear");
    set_float("rope_scaling.factor", 4);
    expect_bad("rope_scaling: short_mscale: missing");
    set_float("rope_scaling.short_mscale", 1.25);
    expect_bad("rope_scaling: long_mscale: missing");
    set_float("rope_scaling.long_mscale", 1.5);
    expect_good();
    assert_true(s->ropes[0].scale == 1.25f && s->ropes[1].scale == 1.5f);
    set_float("rope_scaling.long_mscale", INFINITY);
    expect_bad("rope_scaling.long_mscale: ");
    set_float("rope_scaling.long_mscale", 1.5);
    expect_good();
    struct shape of = *s; // what a pack may say
    of.route_near = -1;
    assert_string_equal(shape_check(&of), "route_near");
    of.route_near = NAN;
    assert_string_equal(shape_check(&of), "route_near");
    of.route_near = 0.02f;
    of.route_alone = 1;
    assert_string_equal(shape_check(&of), "route_near");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts_apart), cmocka_unit_test(test_experts_in_one),
        cmocka_unit_test(test_bad_counts),    cmocka_unit_test(test_no_count),
        cmocka_unit_test(test_gpt_oss),       cmocka_unit_test(test_two_kinds),
        cmocka_unit_test(test_granite_moe),   cmocka_unit_test(test_bad_kinds),
        cmocka_unit_test(test_shared_expert), cmocka_unit_test(test_routers),
        cmocka_unit_test(test_hunyuan_moe),   cmocka_unit_test(test_phimoe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
