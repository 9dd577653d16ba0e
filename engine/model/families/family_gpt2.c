/* engine/model/families/family_gpt2.c - gpt2: learned positions, LayerNorm, biases, GELU by tanh.
 *
 * Owns: gpt2's keys and tensor names. Note: matrices are [inputs, outputs] in safetensors,
 * transposed in GGUF files. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

#define CONTEXT_MAX (1 << 27)
#define FIELD(f)    offsetof(struct shape, f)

static const struct family_names names_hf = {
    "h.",
    {
        [ROLE_EMBED] = "wte.weight",         [ROLE_POS] = "wpe.weight",
        [ROLE_NORM1_W] = "ln_1.weight",      [ROLE_NORM1_B] = "ln_1.bias",
        [ROLE_Q] = "attn.c_attn.weight",     [ROLE_Q_B] = "attn.c_attn.bias",
        [ROLE_K] = "attn.c_attn.weight",     [ROLE_K_B] = "attn.c_attn.bias",
        [ROLE_V] = "attn.c_attn.weight",     [ROLE_V_B] = "attn.c_attn.bias",
        [ROLE_O] = "attn.c_proj.weight",     [ROLE_O_B] = "attn.c_proj.bias",
        [ROLE_NORM2_W] = "ln_2.weight",      [ROLE_NORM2_B] = "ln_2.bias",
        [ROLE_UP] = "mlp.c_fc.weight",       [ROLE_UP_B] = "mlp.c_fc.bias",
        [ROLE_DOWN] = "mlp.c_proj.weight",   [ROLE_DOWN_B] = "mlp.c_proj.bias",
        [ROLE_FINAL_NORM_W] = "ln_f.weight", [ROLE_FINAL_NORM_B] = "ln_f.bias",
        [ROLE_HEAD] = "lm_head.weight",
    }};
static const struct family_names names_gguf = {"blk.",
                                               {GGUF_ENDS, GGUF_NORMS, GGUF_NORM_BIASES,
                                                GGUF_FUSED_QKV, GGUF_O,
                                                GGUF_MLP, [ROLE_POS] = "position_embd.weight"}};

static const struct family_int ints_hf[] = {
    {"n_layer", SHAPE_LAYERS_MAX, KEY_REQUIRED, FIELD(n_layers)},
    {"n_embd", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(dim)},
    {"n_inner", SHAPE_DIM_MAX, KEY_OPTIONAL, FIELD(ffn_dim)},
    {"n_head", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(n_heads)},
    {"vocab_size", SHAPE_VOCAB_MAX, KEY_REQUIRED, FIELD(vocab)},
    {"n_positions", CONTEXT_MAX, KEY_REQUIRED, FIELD(context)},
};
static const struct family_int ints_gguf[] = {
    {".block_count", SHAPE_LAYERS_MAX, KEY_REQUIRED, FIELD(n_layers)},
    {".embedding_length", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(dim)},
    {".feed_forward_length", SHAPE_DIM_MAX, KEY_OPTIONAL, FIELD(ffn_dim)},
    {".attention.head_count", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(n_heads)},
    {".vocab_size", SHAPE_VOCAB_MAX, KEY_OPTIONAL, FIELD(vocab)},
    {".context_length", CONTEXT_MAX, KEY_REQUIRED, FIELD(context)},
};

static enum err read_act(const struct source *s, struct shape *shape)
{
    char act[32] = "gelu_new";
    TRY(family_str(s, "", "activation_function", act, sizeof act));
    return family_act(s, "", "activation_function", act, &shape->act);
}

enum err family_gpt2_read(struct family_model *m, const struct source *s, const char *name)
{
    static const char *const prefixes[] = {"transformer.", ""};
    const role_set biases = ROLE_BIT(ROLE_Q_B) | ROLE_BIT(ROLE_K_B) | ROLE_BIT(ROLE_V_B) |
                            ROLE_BIT(ROLE_O_B) | ROLE_BIT(ROLE_UP_B) | ROLE_BIT(ROLE_DOWN_B);
    const int gguf = s->kind == SOURCE_GGUF;
    struct shape *shape = &m->shape;
    double eps = 1e-5;
    int tied = 1;
    TRY(family_ints(s, name, gguf ? ints_gguf : ints_hf, sizeof ints_hf / sizeof *ints_hf, shape));
    TRY(family_heads(s, name, shape, gguf ? ".embedding_length" : "n_embd",
                     gguf ? ".attention.head_count" : "n_head", "n_head", "n_embd"));
    TRY(family_float(s, name, gguf ? ".attention.layer_norm_epsilon" : "layer_norm_epsilon", 0, 0.1,
                     &eps));
    TRY(read_act(s, shape));
    TRY(family_flag(s, name, "tie_word_embeddings", &tied));
    shape->ffn_dim = shape->ffn_dim ? shape->ffn_dim : 4 * shape->dim;
    shape->norm = NORM_LAYER;
    shape->norm_eps = (float)eps;
    shape->final_norm = 1;
    shape->position = POSITION_LEARNED;
    shape->embed_dim = shape->dim;
    m->names = gguf ? &names_gguf : &names_hf;
    TRY(family_prefix(m, s, gguf ? prefixes + 1 : prefixes, gguf ? 1 : 2));
    if (shape->vocab == 0)
        shape->vocab = (int)min_i64(family_tensor(m, s, ROLE_EMBED, 0)->dims[0], INT32_MAX);
    family_cut_qkv(m);
    m->roles = family_roles(shape, biases);
    if (!gguf)
        m->transposed = ROLE_BIT(ROLE_Q) | ROLE_BIT(ROLE_K) | ROLE_BIT(ROLE_V) | ROLE_BIT(ROLE_O) |
                        ROLE_BIT(ROLE_UP) | ROLE_BIT(ROLE_DOWN);
    family_tie(m, s, gguf ? -1 : tied);
    return OK;
}
