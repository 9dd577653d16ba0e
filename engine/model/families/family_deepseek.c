/* engine/model/families/family_deepseek.c - deepseek_v3 (also Kimi K2), glm4_moe_lite
 * (GLM-4.7-Flash), deepseek_v2 and mistral4: llama with latent attention, experts, a shared one,
 * and first layers without. The first two have DeepSeek's router, the others a softmax; queries of
 * mistral4 grow with their position. GGUF files of the others are "deepseek2", read as deepseek_v3;
 * of those that Mistral's own files became, queries grow, too.
 *
 * Owns: their tensor names. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"
#include "engine/model/families/rope.h"

#include <stdio.h>
#include <string.h>

#define LAYER                                                                                      \
    HF_EMBED, HF_FINAL_NORM, HF_INPUT_NORM, HF_SECOND_NORM, HF_LATENT, HF_O, HF_DENSE_MLP,         \
        HF_ROUTER, HF_CHOICE_BIAS, HF_SHARED_EXPERTS
#define OLD_HEAD [ROLE_HEAD] = "language_model.lm_head.weight" // of files with a vision tower

/* With one matrix of queries, or two. */
#define NAMES(head, experts)                                                                       \
    {                                                                                              \
        {"layers.", {LAYER, head, HF_LATENT_Q, experts}},                                          \
        {                                                                                          \
            "layers.",                                                                             \
            {                                                                                      \
                LAYER, head, HF_LATENT_Q_A, experts                                                \
            }                                                                                      \
        }                                                                                          \
    }
static const struct family_names names[2][2] = {NAMES(HF_HEAD, HF_EXPERTS),
                                                NAMES(OLD_HEAD, HF_EXPERTS)};
static const struct family_names names_all[2][2] = {NAMES(HF_HEAD, HF_ALL_EXPERTS),
                                                    NAMES(OLD_HEAD, HF_ALL_EXPERTS)};

/* Of old files, and of those that hold the matrices of heads apart. */
#define LAYER_GGUF                                                                                 \
    GGUF_ENDS, GGUF_NORMS, GGUF_LATENT, GGUF_DENSE_MLP, GGUF_ROUTER, GGUF_CHOICE_BIAS,             \
        GGUF_SHARED, GGUF_ALL_EXPERTS
static const struct family_names names_gguf[2][2] = {
    {{"blk.", {LAYER_GGUF, GGUF_LATENT_KV_B, GGUF_LATENT_Q}},
     {"blk.", {LAYER_GGUF, GGUF_LATENT_KV_B, GGUF_LATENT_Q_A}}},
    {{"blk.", {LAYER_GGUF, GGUF_LATENT_B, GGUF_LATENT_Q}},
     {"blk.", {LAYER_GGUF, GGUF_LATENT_B, GGUF_LATENT_Q_A}}}};

static enum err read(struct family_model *m, const struct source *s, const char *name,
                     struct family_dialect *d)
{
    const int gguf = s->kind == SOURCE_GGUF;
    const int old_head = source_find(s, names[1][0].roles[ROLE_HEAD]) != NULL;
    int64_t rank = 0;
    char key[60] = "q_lora_rank";
    int two = 0;
    if (gguf)
        snprintf(key, sizeof key, "%s.attention.q_lora_rank", name);
    TRY(source_int(s, key, 0, SHAPE_DIM_MAX, &rank, &two));
    two = two && rank > 0;
    d->hf = &names[old_head][two];
    d->hf_experts = &names_all[old_head][two];
    d->gguf = d->gguf_experts = &names_gguf[source_find(s, "blk.0.attn_k_b.weight") != NULL][two];
    d->experts_key = "n_routed_experts";
    d->expert_ffn_key = "moe_intermediate_size";
    d->shared_count_key = "n_shared_experts";
    d->latent = 1;
    m->shape.gated = 1;
    return family_read_dialect(m, s, name, d);
}

/* GGUF's "deepseek2": each family but mistral4. What it says of the router tells which; files that
 * do not say how experts are scored have a bias where they are scored by logistics. */
static enum err read_deepseek2(struct family_model *m, const struct source *s, const char *name)
{
    struct family_dialect d = {
        .first_dense_key = "first_k_dense_replace", .router = ROUTER_KEYS, .route_all = 1};
    char key[60];
    int found = 0;
    for (int i = 0; i < SHAPE_LAYERS_MAX; i++) {
        snprintf(key, sizeof key, "blk.%d.exp_probs_b.bias", i);
        d.router |= source_find(s, key) ? ROUTER_BIAS : 0;
    }
    int64_t gating = d.router & ROUTER_BIAS ? 2 : 1;
    TRY(source_int(s, "deepseek2.expert_gating_func", 1, 2, &gating, &found));
    d.router |= gating == 2 ? ROUTER_LOGISTIC : 0;
    TRY(read(m, s, name, &d));
    m->shape.group_best = gating == 1 && m->shape.n_groups > 0; // deepseek_v2
    return family_growth(s, name, &m->shape, 0);
}

enum err family_deepseek_v3_read(struct family_model *m, const struct source *s, const char *name)
{
    struct family_dialect d = {.first_dense_key = "first_k_dense_replace",
                               .route_alone = 1,
                               .router = ROUTER_LOGISTIC | ROUTER_BIAS | ROUTER_KEYS,
                               .tied = 0};
    if (s->kind == SOURCE_GGUF)
        return read_deepseek2(m, s, name);
    m->shape.n_groups = 8;
    m->shape.n_groups_used = 4;
    m->shape.route_scale = 2.5f;
    return read(m, s, name, &d);
}

enum err family_glm4_moe_lite_read(struct family_model *m, const struct source *s, const char *name)
{
    struct family_dialect d = {.mlp_types = 1,
                               .route_alone = 1,
                               .router = ROUTER_LOGISTIC | ROUTER_BIAS | ROUTER_KEYS,
                               .tied = 0};
    m->shape.norm_eps = 1e-5f;
    m->shape.route_scale = 1.8f;
    return read(m, s, name, &d);
}

/* Note: transformers ignores norm_topk_prob here, and groups unless topk_method names them. */
enum err family_deepseek_v2_read(struct family_model *m, const struct source *s, const char *name)
{
    struct family_dialect d = {
        .first_dense_key = "first_k_dense_replace", .router = ROUTER_KEYS, .tied = 0};
    char method[32] = "greedy";
    TRY(family_str(s, name, "topk_method", method, sizeof method));
    const int greedy = strcmp(method, "greedy") == 0;
    if (!greedy && strcmp(method, "group_limited_greedy") != 0)
        return family_fail(s, name, "topk_method", "unsupported: %s", method);
    TRY(read(m, s, name, &d));
    m->shape.route_alone = 0;
    if (greedy)
        m->shape.n_groups = m->shape.n_groups_used = 0;
    m->shape.group_best = m->shape.n_groups > 0;
    return OK;
}

#define MISTRAL4_ORIGINAL 8192
#define MISTRAL4_BETA     0.1f // of each published model; llama.cpp's converter leaves it out

enum err family_mistral4_text(struct family_model *m, const struct source *s, const char *name,
                              const char *const prefixes[2])
{
    static const struct rope usual = {.kind = ROPE_YARN,
                                      .theta = 1e4,
                                      .partial = 1,
                                      .factor = 128,
                                      .original = MISTRAL4_ORIGINAL,
                                      .beta_fast = 32,
                                      .beta_slow = 1,
                                      .mscale = 1,
                                      .mscale_all_dim = 1,
                                      .truncate = 1};
    struct family_dialect d = {.first_dense_key = "first_k_dense_replace",
                               .route_alone = 1,
                               .route_all = 1,
                               .router = ROUTER_KEYS,
                               .rope = &usual,
                               .tied = 0,
                               .prefixes = {prefixes[0], prefixes[1]}};
    m->shape.query_beta = MISTRAL4_BETA;
    TRY(read(m, s, name, &d));
    return family_growth(s, name, &m->shape, MISTRAL4_ORIGINAL);
}

enum err family_mistral4_read(struct family_model *m, const struct source *s, const char *name)
{
    static const char *const prefixes[2] = {"model.", ""};
    return family_mistral4_text(m, s, name, prefixes);
}
