/* engine/model/families/family_opt.c - opt: learned positions, LayerNorm, biases, ReLU.
 *
 * Owns: opt's keys in config.json, its tensor names, and names for GGUF. Refuses by name:
 * activations other than relu and gelu, norms without weights. Note: position p is row p + 2 of the
 * position embedding; only opt-350m has norms after the residual sums, no final norm, and an
 * embedding narrower than the model.
 *
 * GGUF: no published tool defines an architecture "opt"; sluice reads the natural extension of
 * other families. Keys: opt.{block_count, embedding_length, feed_forward_length,
 * attention.head_count, context_length} and, optional, opt.{vocab_size,
 * attention.layer_norm_epsilon, norm_after (bool), activation (string)}. Tensors: names_gguf; rows
 * of q and k in Hugging Face's order. */
#include "engine/model/families/family.h"

#include <string.h>

#define CONTEXT_MAX     (1 << 27)
#define POSITION_OFFSET 2
#define FIELD(f)        offsetof(struct shape, f)

static const struct family_names names_hf = {
    "layers.",
    {
        [ROLE_EMBED] = "embed_tokens.weight",
        [ROLE_POS] = "embed_positions.weight",
        [ROLE_PROJ_IN] = "project_in.weight",
        [ROLE_NORM1_W] = "self_attn_layer_norm.weight",
        [ROLE_NORM1_B] = "self_attn_layer_norm.bias",
        [ROLE_Q] = "self_attn.q_proj.weight",
        [ROLE_Q_B] = "self_attn.q_proj.bias",
        [ROLE_K] = "self_attn.k_proj.weight",
        [ROLE_K_B] = "self_attn.k_proj.bias",
        [ROLE_V] = "self_attn.v_proj.weight",
        [ROLE_V_B] = "self_attn.v_proj.bias",
        [ROLE_O] = "self_attn.out_proj.weight",
        [ROLE_O_B] = "self_attn.out_proj.bias",
        [ROLE_NORM2_W] = "final_layer_norm.weight",
        [ROLE_NORM2_B] = "final_layer_norm.bias",
        [ROLE_UP] = "fc1.weight",
        [ROLE_UP_B] = "fc1.bias",
        [ROLE_DOWN] = "fc2.weight",
        [ROLE_DOWN_B] = "fc2.bias",
        [ROLE_FINAL_NORM_W] = "final_layer_norm.weight",
        [ROLE_FINAL_NORM_B] = "final_layer_norm.bias",
        [ROLE_PROJ_OUT] = "project_out.weight",
        [ROLE_HEAD] = "lm_head.weight",
    },
};

static const struct family_names names_gguf = {
    "blk.",
    {
        [ROLE_EMBED] = "token_embd.weight",
        [ROLE_POS] = "position_embd.weight",
        [ROLE_PROJ_IN] = "project_in.weight",
        [ROLE_NORM1_W] = "attn_norm.weight",
        [ROLE_NORM1_B] = "attn_norm.bias",
        [ROLE_Q] = "attn_q.weight",
        [ROLE_Q_B] = "attn_q.bias",
        [ROLE_K] = "attn_k.weight",
        [ROLE_K_B] = "attn_k.bias",
        [ROLE_V] = "attn_v.weight",
        [ROLE_V_B] = "attn_v.bias",
        [ROLE_O] = "attn_output.weight",
        [ROLE_O_B] = "attn_output.bias",
        [ROLE_NORM2_W] = "ffn_norm.weight",
        [ROLE_NORM2_B] = "ffn_norm.bias",
        [ROLE_UP] = "ffn_up.weight",
        [ROLE_UP_B] = "ffn_up.bias",
        [ROLE_DOWN] = "ffn_down.weight",
        [ROLE_DOWN_B] = "ffn_down.bias",
        [ROLE_FINAL_NORM_W] = "output_norm.weight",
        [ROLE_FINAL_NORM_B] = "output_norm.bias",
        [ROLE_PROJ_OUT] = "project_out.weight",
        [ROLE_HEAD] = "output.weight",
    },
};

static const struct family_int ints_hf[] = {
    {"num_hidden_layers", SHAPE_LAYERS_MAX, KEY_REQUIRED, FIELD(n_layers)},
    {"hidden_size", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(dim)},
    {"ffn_dim", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(ffn_dim)},
    {"num_attention_heads", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(n_heads)},
    {"vocab_size", SHAPE_VOCAB_MAX, KEY_REQUIRED, FIELD(vocab)},
    {"max_position_embeddings", CONTEXT_MAX, KEY_REQUIRED, FIELD(context)},
    {"word_embed_proj_dim", SHAPE_DIM_MAX, KEY_OPTIONAL, FIELD(embed_dim)},
};

static const struct family_int ints_gguf[] = {
    {".block_count", SHAPE_LAYERS_MAX, KEY_REQUIRED, FIELD(n_layers)},
    {".embedding_length", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(dim)},
    {".feed_forward_length", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(ffn_dim)},
    {".attention.head_count", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(n_heads)},
    {".vocab_size", SHAPE_VOCAB_MAX, KEY_OPTIONAL, FIELD(vocab)},
    {".context_length", CONTEXT_MAX, KEY_REQUIRED, FIELD(context)},
};

static enum err set_act(struct shape *shape, const struct source *s, const char *key,
                        const char *act)
{
    return family_act(s, "opt", key, act, &shape->act);
}

static enum err read_hf(struct family_model *m, const struct source *s)
{
    static const char *const prefixes[] = {"model.decoder.", "decoder."};
    const role_set biases = ROLE_BIT(ROLE_Q_B) | ROLE_BIT(ROLE_K_B) | ROLE_BIT(ROLE_V_B) |
                            ROLE_BIT(ROLE_O_B) | ROLE_BIT(ROLE_UP_B) | ROLE_BIT(ROLE_DOWN_B);
    struct shape *shape = &m->shape;
    char act[32] = "relu";
    int before = 1, no_final = 0, bias = 1, affine = 1, tied = 1;
    TRY(family_ints(s, "", ints_hf, sizeof ints_hf / sizeof *ints_hf, shape));
    TRY(family_heads(s, "", shape, "hidden_size", "num_attention_heads", "num_attention_heads",
                     "hidden_size"));
    TRY(family_str(s, "", "activation_function", act, sizeof act));
    TRY(set_act(shape, s, "activation_function", act));
    TRY(family_flag(s, "", "do_layer_norm_before", &before));
    TRY(family_flag(s, "", "_remove_final_layer_norm", &no_final));
    TRY(family_flag(s, "", "enable_bias", &bias));
    TRY(family_flag(s, "", "layer_norm_elementwise_affine", &affine));
    TRY(family_flag(s, "", "tie_word_embeddings", &tied));
    if (!affine)
        return family_fail(s, "", "layer_norm_elementwise_affine", "unsupported: false");
    if (shape->embed_dim == 0)
        shape->embed_dim = shape->dim;
    shape->norm_place = before ? NORM_BEFORE : NORM_AFTER_SUM;
    shape->final_norm = before && !no_final;
    m->names = &names_hf;
    TRY(family_prefix(m, s, prefixes, 2));
    m->roles = family_roles(shape, bias ? biases : 0);
    family_tie(m, s, tied);
    return OK;
}

static enum err read_gguf(struct family_model *m, const struct source *s)
{
    static const char *const prefixes[] = {""};
    struct shape *shape = &m->shape;
    char act[32] = "relu";
    double eps = shape->norm_eps;
    TRY(family_ints(s, "opt", ints_gguf, sizeof ints_gguf / sizeof *ints_gguf, shape));
    TRY(family_heads(s, "opt", shape, ".embedding_length", ".attention.head_count",
                     ".attention.head_count", ".embedding_length"));
    TRY(family_str(s, "opt", ".activation", act, sizeof act));
    TRY(set_act(shape, s, ".activation", act));
    int after = 0;
    TRY(family_flag(s, "opt", ".norm_after", &after));
    shape->norm_place = after ? NORM_AFTER_SUM : NORM_BEFORE;
    TRY(family_float(s, "opt", ".attention.layer_norm_epsilon", 0, 0.1, &eps));
    shape->norm_eps = (float)eps;
    m->names = &names_gguf;
    TRY(family_prefix(m, s, prefixes, 1));
    const struct source_tensor *embed = family_tensor(m, s, ROLE_EMBED, 0);
    if (shape->vocab == 0) // family_read checks the range of both
        shape->vocab = (int)min_i64(embed->dims[0], INT32_MAX);
    shape->embed_dim = embed->n_dims == 2 ? (int)min_i64(embed->dims[1], INT32_MAX) : 0;
    shape->final_norm = source_find(s, names_gguf.roles[ROLE_FINAL_NORM_W]) != NULL;
    family_roles_by_presence(m, s);
    family_tie(m, s, -1);
    return OK;
}

enum err family_opt_read(struct family_model *m, const struct source *s, const char *name)
{
    (void)name;
    m->shape.norm = NORM_LAYER;
    m->shape.norm_eps = 1e-5f;
    m->shape.position = POSITION_LEARNED;
    m->shape.position_offset = POSITION_OFFSET;
    return s->kind == SOURCE_GGUF ? read_gguf(m, s) : read_hf(m, s);
}
