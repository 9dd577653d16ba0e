/* engine/model/families/family_nemotron_h.c - nemotron_h (Nemotron-H, Nemotron 3): Mamba-2 in most
 * layers, attention without RoPE, MLPs and experts without gate, DeepSeek's router.
 *
 * Owns: the pattern of layers, tensor names. Note: a layer of the file is Mamba-2, attention, an
 * MLP or experts. One of the latter two is here the MLP of the layer before; Mamba-2 or attention
 * that none follows is a layer without MLP. */
#include "engine/model/families/family.h"
#include "engine/model/families/family_names.h"

#include <stdio.h>
#include <string.h>

#define LAYER                                                                                      \
    HF_HEAD, HF_MAMBA("mixer"),                                                                    \
        [ROLE_EMBED] = "embeddings.weight", [ROLE_FINAL_NORM_W] = "norm_f.weight",                 \
        [ROLE_NORM1_W] = "norm.weight", [ROLE_NORM2_W] = "norm.weight",                            \
        [ROLE_Q] = "mixer.q_proj.weight", [ROLE_K] = "mixer.k_proj.weight",                        \
        [ROLE_V] = "mixer.v_proj.weight", [ROLE_O] = "mixer.o_proj.weight"

static const struct family_names names = {
    "layers.", {LAYER, [ROLE_UP] = "mixer.up_proj.weight", [ROLE_DOWN] = "mixer.down_proj.weight"}};
static const struct family_names names_moe = {
    "layers.",
    {LAYER, [ROLE_DENSE_UP] = "mixer.up_proj.weight", [ROLE_DENSE_DOWN] = "mixer.down_proj.weight",
     [ROLE_ROUTER] = "mixer.gate.weight", [ROLE_CHOICE_B] = "mixer.gate.e_score_correction_bias",
     [ROLE_UP] = "mixer.experts.%d.up_proj.weight",
     [ROLE_DOWN] = "mixer.experts.%d.down_proj.weight",
     [ROLE_SHARED_UP] = "mixer.shared_experts.up_proj.weight",
     [ROLE_SHARED_DOWN] = "mixer.shared_experts.down_proj.weight",
     [ROLE_EXPERT_IN] = "mixer.fc1_latent_proj.weight",
     [ROLE_EXPERT_OUT] = "mixer.fc2_latent_proj.weight"}};

#define GGUF_LAYER                                                                                 \
    GGUF_ENDS, GGUF_QKV, GGUF_O,                                                                   \
        GGUF_MAMBA, [ROLE_NORM1_W] = "attn_norm.weight", [ROLE_NORM2_W] = "attn_norm.weight"
static const struct family_names names_gguf = {"blk.", {GGUF_LAYER, GGUF_MLP}};
static const struct family_names names_gguf_moe = {
    "blk.",
    {GGUF_LAYER, GGUF_ROUTER, GGUF_CHOICE_BIAS, GGUF_ALL_EXPERTS, GGUF_SHARED,
     [ROLE_EXPERT_IN] = "ffn_latent_down.weight", [ROLE_EXPERT_OUT] = "ffn_latent_up.weight"}};

#define BLOCKS_MAX FAMILY_LIST_MAX

/* The file's layers, as family_nemotron_h_layers() takes them. */
struct blocks {
    char key[100]; // that lists them
    char kinds[BLOCKS_MAX + 1];
};

/* A number per layer of a GGUF file, 0 in some; *most: what the others are. */
static enum err read_list(const struct source *s, const char *name, const char *key, int64_t n,
                          int64_t numbers[BLOCKS_MAX], int *most)
{
    TRY(family_int_list(s, name, key, (int)n, 0, numbers));
    for (int64_t i = 0; i < n; i++) {
        if (numbers[i] != 0 && *most != 0 && numbers[i] != *most)
            return family_fail(s, name, key, "unsupported: %lld and %d", (long long)numbers[i],
                               *most);
        if (numbers[i] != 0)
            *most = (int)numbers[i];
    }
    return OK;
}

/* Attention has KV heads, an MLP or experts have a width, Mamba-2 has neither. Layers that predict
 * further tokens (MTP) are the last ones. */
static enum err read_blocks_gguf(const struct source *s, const char *name, struct shape *shape,
                                 struct blocks *b)
{
    int64_t heads[BLOCKS_MAX], widths[BLOCKS_MAX], n = 0, mtp = 0, experts = 0;
    int found = 0;
    char key[100];
    snprintf(b->key, sizeof b->key, "%s.attention.head_count_kv", name);
    snprintf(key, sizeof key, "%s.block_count", name);
    TRY(source_int(s, key, 1, BLOCKS_MAX, &n, &found));
    if (!found)
        return family_fail(s, name, ".block_count", "missing");
    snprintf(key, sizeof key, "%s.nextn_predict_layers", name);
    TRY(source_int(s, key, 0, n - 1, &mtp, &found));
    snprintf(key, sizeof key, "%s.expert_count", name);
    TRY(source_int(s, key, 0, SHAPE_EXPERTS_MAX, &experts, &found));
    TRY(read_list(s, name, ".attention.head_count_kv", n, heads, &shape->n_kv_heads));
    TRY(read_list(s, name, ".feed_forward_length", n, widths, &shape->ffn_dim));
    for (int64_t i = 0; i < n - mtp; i++)
        b->kinds[i] = heads[i] != 0 && widths[i] != 0 ? '?'
                      : heads[i] != 0                 ? '*'
                      : widths[i] == 0                ? 'M'
                      : experts > 0                   ? 'E'
                                                      : '-';
    return OK;
}

static enum err read_blocks(const struct source *s, struct blocks *b)
{
    static const struct {
        const char *words;
        char kind;
    } names_of[] = {{"mamba linear_attention", 'M'},
                    {"attention full_attention", '*'},
                    {"mlp", '-'},
                    {"moe", 'E'}};
    const char *types[BLOCKS_MAX];
    int64_t n = 0;
    int found = 0;
    snprintf(b->key, sizeof b->key, "layers_block_type");
    TRY(source_str_list(s, b->key, types, BLOCKS_MAX, &n, &found));
    for (int64_t i = 0; i < n; i++) {
        b->kinds[i] = '?';
        for (size_t k = 0; k < sizeof names_of / sizeof *names_of; k++)
            if (family_has_word(names_of[k].words, types[i]))
                b->kinds[i] = names_of[k].kind;
    }
    if (!found) {
        snprintf(b->key, sizeof b->key, "hybrid_override_pattern");
        TRY(family_str(s, "", b->key, b->kinds, sizeof b->kinds));
    }
    return b->kinds[0] ? OK : family_fail(s, "", b->key, "missing");
}

int family_nemotron_h_layers(struct shape *s, const char *kinds, int16_t (*file)[2])
{
    int n = 0;
    for (int i = 0; kinds[i]; i++, n++) {
        const char next = kinds[i + 1];
        const int has_mlp = next == '-' || next == 'E';
        if ((kinds[i] != 'M' && kinds[i] != '*') || n == SHAPE_LAYERS_MAX)
            return -1 - i;
        file[n][0] = (int16_t)i;
        file[n][1] = (int16_t)(i + has_mlp);
        s->layer_state[n] = kinds[i] == 'M';
        s->layer_bare[n] = !has_mlp;
        s->layer_dense[n] = next == '-' && strchr(kinds, 'E');
        s->layer_rope[n] = SHAPE_NO_ROPE;
        i += has_mlp;
    }
    return n;
}

void family_nemotron_h_shape(struct shape *s)
{
    s->state = STATE_MAMBA;
    s->act = ACT_RELU2;
    s->state_k_heads = s->state_k_heads > 0 ? s->state_k_heads : 8;
    s->state_v_heads = s->state_v_heads > 0 ? s->state_v_heads : 128;
    s->state_k_dim = s->state_k_dim > 0 ? s->state_k_dim : 128;
    s->state_v_dim = s->state_v_dim > 0 ? s->state_v_dim : 64;
    s->state_taps = s->state_taps > 0 ? s->state_taps : 4;
}

/* Sizes of states, and of MLPs in files that say it once. */
static enum err read_sizes(const struct source *s, struct shape *shape)
{
    static const char *const keys[5] = {"n_groups", "mamba_num_heads", "ssm_state_size",
                                        "mamba_head_dim", "conv_kernel"};
    int64_t width = 21504;
    int found = 0;
    TRY(source_int(s, "intermediate_size", 1, SHAPE_DIM_MAX, &width, &found));
    shape->head_dim = 128;
    shape->ffn_dim = (int)width;
    family_nemotron_h_shape(shape);
    return state_sizes(s, shape, keys);
}

static enum err read_sizes_gguf(const struct source *s, const char *name, struct shape *shape)
{
    TRY(state_sizes_gguf(s, name, shape));
    family_nemotron_h_shape(shape);
    return OK;
}

enum err family_nemotron_h_read(struct family_model *m, const struct source *s, const char *name)
{
    struct shape *shape = &m->shape;
    struct blocks blocks = {0};
    int n = 0, bias = 1;
    const int gguf = s->kind == SOURCE_GGUF;
    const struct family_int narrow = {gguf ? ".moe_latent_size" : "moe_latent_size", SHAPE_DIM_MAX,
                                      KEY_OPTIONAL, offsetof(struct shape, expert_dim)};
    TRY(gguf ? read_blocks_gguf(s, name, shape, &blocks) : read_blocks(s, &blocks));
    n = family_nemotron_h_layers(shape, blocks.kinds, m->file_layer);
    if (n < 0)
        return family_fail(s, "", blocks.key,
                           "unsupported: layer %d is no attention or Mamba-2, or one too many",
                           -1 - n);
    m->n_file_layers = (int)strlen(blocks.kinds);
    const int moe = strchr(blocks.kinds, 'E') != NULL, dense = strchr(blocks.kinds, '-') != NULL;
    shape->n_layers = n;
    TRY(state_layers_end(s, blocks.key, shape));
    TRY(family_flag(s, "", "use_conv_bias", &bias));
    TRY(gguf ? read_sizes_gguf(s, name, shape) : read_sizes(s, shape));
    shape->norm_eps = 1e-5f;
    const int width = shape->ffn_dim;
    if (moe)
        TRY(family_ints(s, name, &narrow, 1, shape));
    /* Nothing turns: a GGUF file's rope.dimension_count is that of other models. */
    TRY(family_read_dialect(
        m, s, name,
        &(struct family_dialect){.hf = moe ? &names_moe : &names,
                                 .gguf = moe ? &names_gguf_moe : &names_gguf,
                                 .gguf_experts = moe ? &names_gguf_moe : NULL,
                                 .own_keys = ".block_count .feed_forward_length "
                                             ".attention.head_count_kv .rope.dimension_count",
                                 .experts_key = moe ? "n_routed_experts" : NULL,
                                 .expert_ffn_key = "moe_intermediate_size",
                                 .shared_ffn_key = "moe_shared_expert_intermediate_size",
                                 .route_alone = 1,
                                 .router = ROUTER_LOGISTIC | ROUTER_BIAS | ROUTER_KEYS,
                                 .act_key = "mlp_hidden_act",
                                 .act = "relu2",
                                 .eps_key = "layer_norm_epsilon",
                                 .n_layers = n,
                                 .prefixes = {"backbone.", "model."}}));
    shape->dense_dim = moe && dense ? width : 0;
    if (shape->expert_dim > shape->dim || shape->expert_dim % FAMILY_EXPERT_ROWS != 0)
        return family_fail(s, name, narrow.key,
                           "unsupported: %d (supported: multiples of %d up to %d)",
                           shape->expert_dim, FAMILY_EXPERT_ROWS, shape->dim);
    if (!gguf)
        m->roles = family_roles(shape, bias ? ROLE_BIT(ROLE_STATE_CONV_B) : 0);
    state_cut_mamba(m, !gguf);
    return OK;
}
