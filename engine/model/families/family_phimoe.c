/* engine/model/families/family_phimoe.c - phimoe: mixtral with LayerNorms, biases of attention and
 * head, longrope, and a router that picks two experts, each weighed among those near it.
 *
 * Owns: phimoe's tensor names, and its factors of cosines and sines. Note: GGUF files say neither
 * how near experts are, for which the published models' number stands, nor both factors. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

#include <stdio.h>
#include <string.h>

#define JITTER 0.01 // of the published models

#define LAYER                                                                                      \
    HF_EMBED, HF_HEAD, [ROLE_HEAD_B] = "lm_head.bias",                                             \
                       HF_FINAL_NORM, [ROLE_FINAL_NORM_B] = "norm.bias", HF_INPUT_NORM,            \
                       HF_SECOND_NORM, [ROLE_NORM1_B] = "input_layernorm.bias",                    \
                       [ROLE_NORM2_B] = "post_attention_layernorm.bias", HF_ATTENTION

static const struct family_names names = {"layers.",
                                          {LAYER, [ROLE_ROUTER] = "block_sparse_moe.gate.weight",
                                           [ROLE_GATE] = "block_sparse_moe.experts.%d.w1.weight",
                                           [ROLE_UP] = "block_sparse_moe.experts.%d.w3.weight",
                                           [ROLE_DOWN] = "block_sparse_moe.experts.%d.w2.weight"}};
static const struct family_names names_all = {
    "layers.", {LAYER, [ROLE_ROUTER] = "mlp.router.weight", HF_ALL_EXPERTS}};
static const struct family_names names_gguf = {"blk.",
                                               {GGUF_ENDS, [ROLE_HEAD_B] = "output.bias",
                                                GGUF_NORMS, GGUF_NORM_BIASES, GGUF_QKV, GGUF_O,
                                                GGUF_ROUTER, GGUF_ALL_EXPERTS}};

/* Cosines and sines of the short and the long table have factors of their own, in place of the one
 * that longrope derives. */
static enum err read_scales(const struct source *s, struct shape *shape)
{
    static const char *const objects[] = {"rope_scaling", "rope_parameters"};
    static const char *const which[SHAPE_ROPES] = {"short_mscale", "long_mscale"};
    char key[100], type[32] = "default";
    double scale[SHAPE_ROPES] = {0};
    for (int i = 0; i < 2; i++) {
        snprintf(key, sizeof key, "%s.type", objects[i]);
        TRY(family_str(s, "", key, type, sizeof type));
        snprintf(key, sizeof key, "%s.rope_type", objects[i]);
        TRY(family_str(s, "", key, type, sizeof type));
        for (int t = 0; t < SHAPE_ROPES; t++) {
            snprintf(key, sizeof key, "%s.%s", objects[i], which[t]);
            TRY(family_float(s, "", key, 1e-6, 1e6, &scale[t]));
        }
    }
    for (int t = 0; t < SHAPE_ROPES && strcmp(type, "default") != 0; t++) {
        if (scale[t] == 0)
            return family_fail(s, "", "rope_scaling", "%s: missing", which[t]);
        shape->ropes[t].scale = (float)scale[t];
    }
    return OK;
}

enum err family_phimoe_read(struct family_model *m, const struct source *s, const char *name)
{
    const int gguf = s->kind == SOURCE_GGUF;
    double jitter = JITTER;
    int head_bias = 0;
    if (!gguf) {
        TRY(family_float(s, "", "router_jitter_noise", 1e-6, 1, &jitter));
        TRY(family_flag(s, "", "lm_head_bias", &head_bias));
    }
    m->shape.gated = 1;
    m->shape.norm = NORM_LAYER;
    m->shape.norm_eps = 1e-5f;
    m->shape.route_near = (float)(2 * jitter);
    m->shape.n_experts_used = 2;
    TRY(family_read_dialect(
        m, s, name,
        &(struct family_dialect){.hf = &names,
                                 .gguf = &names_gguf,
                                 .hf_experts = &names_all,
                                 .gguf_experts = &names_gguf,
                                 .experts_key = "num_local_experts",
                                 .route_all = 1,
                                 .theta = 1e6,
                                 .biases = head_bias ? ROLE_BIT(ROLE_HEAD_B) : 0,
                                 .tied = gguf ? -1 : 0,
                                 .unpaired = 1,
                                 .windows = WINDOWS_HAVE}));
    if (m->shape.n_experts_used != 2) // whatever the key says, the class picks two
        return family_fail(s, name, gguf ? ".expert_used_count" : "num_experts_per_tok",
                           "unsupported: %d, expected 2", m->shape.n_experts_used);
    return gguf ? OK : read_scales(s, &m->shape);
}
