/* tests/family_latent_test.c - model files with latent attention, good and bad, in memory. */
#include "engine/model/families/family.h"
#include "engine/model/model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail // ours, from base.h

#include "tests/family_fake.h"

enum { LATENT = 96, TURNED = 16, KEY = 48, VALUE = 64, QUERY = 40, EXPERTS = 4 };

/* queries 0: made of x itself. */
static void latent(const char *type, int queries)
{
    const int q = HEADS * (KEY + TURNED);
    const struct line lines[] = {{"input_layernorm.weight", DIM, 0},
                                 {"self_attn.kv_a_proj_with_mqa.weight", LATENT + TURNED, DIM},
                                 {"self_attn.kv_a_layernorm.weight", LATENT, 0},
                                 {"self_attn.kv_b_proj.weight", HEADS * (KEY + VALUE), LATENT},
                                 {"self_attn.o_proj.weight", DIM, HEADS * VALUE},
                                 {"post_attention_layernorm.weight", DIM, 0},
                                 {"mlp.gate.weight", EXPERTS, DIM},
                                 {"mlp.gate.e_score_correction_bias", EXPERTS, 0},
                                 {"mlp.shared_experts.gate_proj.weight", 96, DIM},
                                 {"mlp.shared_experts.up_proj.weight", 96, DIM},
                                 {"mlp.shared_experts.down_proj.weight", DIM, 96},
                                 {"self_attn.q_a_proj.weight", QUERY, DIM},
                                 {"self_attn.q_a_layernorm.weight", QUERY, 0},
                                 {"self_attn.q_b_proj.weight", q, QUERY}};
    start_hf(type);
    set_int("num_key_value_heads", HEADS);
    set_int("num_experts_per_tok", 2);
    set_int("n_routed_experts", EXPERTS);
    set_int("moe_intermediate_size", 96);
    set_int("n_shared_experts", 1);
    set_int("n_group", 1);
    set_int("topk_group", 1);
    set_int("first_k_dense_replace", 0);
    set_int("kv_lora_rank", LATENT);
    set_int("qk_rope_head_dim", TURNED);
    set_int("qk_nope_head_dim", KEY);
    set_int("v_head_dim", VALUE);
    if (queries)
        set_int("q_lora_rank", QUERY);
    add_layers("model.layers.", lines, queries ? 14 : 11);
    if (!queries)
        add_layers("model.layers.", (struct line[]){{"self_attn.q_proj.weight", q, DIM}}, 1);
    for (int e = 0; e < EXPERTS; e++)
        for (int i = 0; i < 3; i++) {
            char name[100];
            snprintf(name, sizeof name, "mlp.experts.%d.%s_proj.weight", e,
                     (const char *[]){"gate", "up", "down"}[i]);
            add_layers("model.layers.", (struct line[]){{name, i < 2 ? 96 : DIM, i < 2 ? DIM : 96}},
                       1);
        }
}

/* What is rotated comes first, its halves apart. */
static void test_rows(void **state)
{
    (void)state;
    const struct shape *s = &model.shape;
    const int head = KEY + TURNED;
    for (int queries = 0; queries < 2; queries++) {
        latent("deepseek_v3", queries);
        expect_good();
        assert_true(s->n_kv_heads == 1 && s->head_dim == LATENT + TURNED && s->rope_dim == TURNED &&
                    s->latent_key == KEY && s->latent_value == VALUE &&
                    s->latent_query == queries * QUERY && s->n_groups == 0);
        assert_true(fabsf(s->attn_scale - 1 / sqrtf(head)) < 1e-7f);
        assert_true(shape_kv_numbers(s, 0) == LATENT + TURNED);
        struct kv_layout pages;
        model_kv_layout(s, 0, KV_BF16, &pages);
        assert_true(pages.v_offset == 0 && pages.head_dim == LATENT + TURNED);
        assert_false(model.roles & ROLE_BIT(ROLE_V));
        assert_int_equal(family_source_row(&model, ROLE_Q, head), head + KEY);
        assert_int_equal(family_source_row(&model, ROLE_Q, head + 1), head + KEY + 2);
        assert_int_equal(family_source_row(&model, ROLE_Q, head + TURNED / 2), head + KEY + 1);
        assert_int_equal(family_source_row(&model, ROLE_Q, 2 * head - 1), head + KEY - 1);
        assert_int_equal(family_source_row(&model, ROLE_K, 3), LATENT + 6);
        assert_int_equal(family_source_row(&model, ROLE_K, TURNED + 5), 5);
        assert_int_equal(family_source_row(&model, ROLE_LATENT_V, VALUE + 1),
                         KEY + VALUE + KEY + 1);
        assert_int_equal(family_source_row(&model, ROLE_LATENT_K, LATENT + 1), LATENT + 1);
        assert_true(family_cuts_inputs(&model, ROLE_LATENT_K) &&
                    !family_cuts_inputs(&model, ROLE_LATENT_V));
        set_flag("rope_interleave", 0);
        expect_good();
        assert_int_equal(family_source_row(&model, ROLE_Q, head + 1), head + KEY + 1);
    }
    set_str("rope_scaling.type", "yarn"); // both q and k grow by 1.0 + 0.1 ln 4
    set_float("rope_scaling.factor", 4);
    set_float("rope_scaling.original_max_position_embeddings", 64);
    set_float("rope_scaling.mscale", 1);
    set_float("rope_scaling.mscale_all_dim", 1);
    expect_good();
    const float grown = 1 + 0.1f * logf(4);
    assert_true(fabsf(s->attn_scale - grown * grown / sqrtf(head)) < 1e-6f);
    assert_true(s->ropes[0].scale == 1);
}

/* A GGUF file of an architecture; gate above up in one tensor of experts. */
static void latent_gguf(const char *arch)
{
    static const struct {
        const char *key;
        int value;
    } ints[] = {{"block_count", N_LAYERS},
                {"embedding_length", DIM},
                {"feed_forward_length", FFN},
                {"context_length", 4096},
                {"attention.head_count", HEADS},
                {"attention.head_count_kv", 1},
                {"attention.key_length", LATENT + TURNED},
                {"attention.value_length", LATENT},
                {"attention.key_length_mla", KEY + TURNED},
                {"attention.value_length_mla", VALUE},
                {"attention.kv_lora_rank", LATENT},
                {"rope.dimension_count", TURNED},
                {"expert_count", EXPERTS},
                {"expert_used_count", 2},
                {"expert_shared_count", 1},
                {"expert_feed_forward_length", 96}};
    static const struct line lines[] = {{"attn_norm.weight", DIM, 0},
                                        {"attn_q.weight", HEADS * (KEY + TURNED), DIM},
                                        {"attn_kv_a_mqa.weight", LATENT + TURNED, DIM},
                                        {"attn_kv_a_norm.weight", LATENT, 0},
                                        {"attn_k_b.weight", HEADS * LATENT, KEY},
                                        {"attn_v_b.weight", HEADS * VALUE, LATENT},
                                        {"attn_output.weight", DIM, HEADS * VALUE},
                                        {"ffn_norm.weight", DIM, 0},
                                        {"ffn_gate_inp.weight", EXPERTS, DIM},
                                        {"ffn_gate_shexp.weight", 96, DIM},
                                        {"ffn_up_shexp.weight", 96, DIM},
                                        {"ffn_down_shexp.weight", DIM, 96},
                                        {"ffn_gate_up_exps.weight", EXPERTS * 192, DIM},
                                        {"ffn_down_exps.weight", EXPERTS * DIM, 96}};
    char key[100];
    start(SOURCE_GGUF);
    set_str("general.architecture", arch);
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, ints[i].key);
        set_int(key, ints[i].value);
    }
    add("token_embd.weight", 2, VOCAB, DIM);
    add("output_norm.weight", 1, DIM, 0);
    add_layers("blk.", lines, sizeof lines / sizeof *lines);
}

/* Queries of mistral4 grow whether the file says so or not, those of deepseek2 if it says so. */
static void test_growth_in_gguf(void **state)
{
    (void)state;
    const struct shape *s = &model.shape;
    latent_gguf("mistral4");
    expect_bad("original_max_position_embeddings: missing");
    set_int("mistral4.rope.scaling.original_context_length", 64);
    expect_good();
    assert_true(s->query_beta == 0.1f && s->query_period == 64 && s->route_alone == 0);
    assert_int_equal(family_source_row(&model, ROLE_UP, 97), 192 + 96 + 1);
    set_float("mistral4.attention.temperature_scale", 0);
    expect_good();
    assert_true(s->query_beta == 0 && s->query_period == 0);
    latent_gguf("deepseek2");
    set_int("deepseek2.rope.scaling.original_context_length", 64);
    expect_good();
    assert_true(s->query_beta == 0 && s->query_period == 0);
    set_float("deepseek2.attention.temperature_scale", 0.5);
    set_int("deepseek2.attention.temperature_length", 32);
    expect_good();
    assert_true(s->query_beta == 0.5f && s->query_period == 32);
    set_int("deepseek2.attention.temperature_length", 0);
    expect_bad("deepseek2.attention.temperature_length");
    latent_gguf("deepseek2");
    set_float("deepseek2.attention.temperature_scale", -1);
    expect_bad("deepseek2.attention.temperature_scale: -1 is out of range");
}

/* Of gate and up a file has one tensor, or two. */
static void test_experts_in_gguf(void **state)
{
    (void)state;
    latent_gguf("deepseek2");
    tensor("blk.1.ffn_gate_up_exps.weight")->dims[0] /= 2;
    expect_bad("blk.1.ffn_gate_up_exps.weight: expected [768, 512]");
    latent_gguf("deepseek2");
    drop("blk.1.ffn_gate_up_exps.weight");
    expect_bad("blk.1.ffn_gate_up_exps.weight: missing");
    drop("blk.0.ffn_gate_up_exps.weight");
    expect_bad("blk.0.ffn_gate_exps.weight: missing");
    latent_gguf("deepseek2");
    add("blk.0.ffn_up_exps.weight", 2, EXPERTS * 96, DIM);
    source.tensors = fake.tensors;
    source.n_tensors = fake.n_tensors;
    expect_bad("blk.0.ffn_up_exps.weight: unsupported");
}

static void test_layers_by_name(void **state)
{
    (void)state;
    static const char *const types[] = {"sparse", "dense", "other"};
    latent("glm4_moe_lite", 1);
    fake.n_types = N_LAYERS;
    fake.types[0] = fake.types[1] = types[0];
    expect_good();
    assert_true(!model.shape.layer_dense[0] && model.shape.route_scale == 1.8f);
    fake.types[1] = types[2];
    expect_bad("mlp_layer_types: unsupported: other in layer 1");
    fake.types[0] = fake.types[1] = types[1];
    expect_bad("mlp_layer_types: unsupported: no layer has experts");
    fake.n_types = 1;
    expect_bad("mlp_layer_types: has 1 entries, expected 2");
    fake.n_types = 0; // the first layer has none: its MLP is missing
    expect_bad("mlp.gate_proj.weight: missing");
}

static void test_bad_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        double value;
        const char *says;
    } bad[] = {{"kv_lora_rank", 0, "kv_lora_rank"},
               {"kv_lora_rank", -32, "kv_lora_rank"},
               {"kv_lora_rank", 80, "kv_lora_rank: unsupported: 80 is not a multiple of 32"},
               {"kv_lora_rank", 576, "are too large"},
               {"kv_lora_rank", 64, "expected [80, 512]"},
               {"q_lora_rank", -1, "q_lora_rank"},
               {"q_lora_rank", 1 << 20, "q_lora_rank"},
               {"q_lora_rank", 41, "q_b_proj.weight: expected [512, 41]"},
               {"qk_nope_head_dim", 0, "qk_nope_head_dim"},
               {"qk_nope_head_dim", 1 << 17, "latent_key"},
               {"qk_nope_head_dim", 47, "q_b_proj.weight: expected [504, 40]"},
               {"qk_rope_head_dim", 15, "qk_rope_head_dim: 15 is odd"},
               {"qk_rope_head_dim", 1000, "qk_rope_head_dim"},
               {"v_head_dim", 48, "v_head_dim: unsupported: 48 is not a multiple of 32"},
               {"v_head_dim", 1 << 17, "latent_value"},
               {"v_head_dim", 32, "o_proj.weight: expected [512, 256]"},
               {"num_key_value_heads", 2, "num_key_value_heads: unsupported: 2"}};
    static const char *const needed[] = {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
                                         "v_head_dim"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        latent("deepseek_v3", 1);
        set_int(bad[i].key, bad[i].value);
        expect_bad(bad[i].says);
    }
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        latent("mistral4", 1);
        unset(needed[i]);
        expect_bad(needed[i]);
    }
}

static void test_bad_files(void **state)
{
    (void)state;
    latent("deepseek_v3", 1);
    tensor("model.layers.1.self_attn.kv_b_proj.weight")->dims[0]--;
    expect_bad("model.layers.1.self_attn.kv_b_proj.weight: expected [896, 96]");
    latent("deepseek_v3", 1);
    tensor("model.layers.1.self_attn.kv_b_proj.weight")->dtype = DTYPE_Q8_0;
    tensor("model.layers.1.self_attn.kv_b_proj.weight")->n_bytes =
        dtype_row_bytes(DTYPE_Q8_0, 96) * 896;
    expect_bad("kv_b_proj.weight: matrices stored by columns cannot be q8_0");
    latent("deepseek_v3", 1);
    drop("model.layers.0.self_attn.kv_a_layernorm.weight");
    expect_bad("model.layers.0.self_attn.kv_a_layernorm.weight: missing");
    latent("deepseek_v2", 0);
    set_str("topk_method", "noaux_tc");
    expect_bad("topk_method: unsupported: noaux_tc");
    start_hf("llama");
    set_int("kv_lora_rank", 64);
    expect_bad("kv_lora_rank: unsupported in llama models");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_growth_in_gguf),
        cmocka_unit_test(test_experts_in_gguf),
        cmocka_unit_test(test_layers_by_name),
        cmocka_unit_test(test_bad_sizes),
        cmocka_unit_test(test_bad_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
