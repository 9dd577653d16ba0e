/* engine/model/families/latent.c - latent attention (MLA) in model files, for family_llama.c.
 *
 * Owns: its keys, and where rows of its matrices are. The pack has a key's rotated numbers before
 * its latent, and of each head the two matrices that attention is wrapped in
 * (engine/line/layer_latent.c). */
#include "engine/model/families/family.h"
#include "engine/model/families/rope.h"

#include <math.h>
#include <string.h>

#define FIELD(f) offsetof(struct shape, f)

/* A multiple of 32: heads' matrices must be whole panels. */
static enum err check_panels(const struct source *s, const char *name, const char *key, int n)
{
    return n % 32 == 0 ? OK
                       : family_fail(s, name, key, "unsupported: %d is not a multiple of 32", n);
}

/* The shape's heads, from the sizes that were read: head_dim is that of the latent so far. */
static enum err set_heads(const struct source *s, const char *name, struct shape *shape)
{
    const int gguf = s->kind == SOURCE_GGUF;
    TRY(check_panels(s, name, gguf ? ".attention.kv_lora_rank" : "kv_lora_rank", shape->head_dim));
    TRY(check_panels(s, name, gguf ? ".attention.value_length_mla" : "v_head_dim",
                     shape->latent_value));
    if (shape->rope_dim % 2 != 0)
        return family_fail(s, name, gguf ? ".rope.dimension_count" : "qk_rope_head_dim",
                           "%d is odd: heads are rotated in pairs", shape->rope_dim);
    shape->head_dim += shape->rope_dim;
    shape->n_kv_heads = 1;
    return OK;
}

/* GGUF files give whole heads; files with one matrix kv_b per layer are older and have no key with
 * "mla". */
static enum err sizes_gguf(const struct source *s, const char *name, struct shape *shape)
{
    static const struct family_int old[] = {
        {".attention.key_length", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(latent_key)},
        {".attention.value_length", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(latent_value)}};
    static const struct family_int keys[] = {
        {".attention.key_length_mla", SHAPE_DIM_MAX, KEY_OPTIONAL, FIELD(latent_key)},
        {".attention.value_length_mla", SHAPE_DIM_MAX, KEY_OPTIONAL, FIELD(latent_value)},
        {".attention.q_lora_rank", SHAPE_DIM_MAX, KEY_OPTIONAL, FIELD(latent_query)},
        {".attention.kv_lora_rank", SHAPE_HEAD_MAX, KEY_REQUIRED, FIELD(head_dim)},
        {".rope.dimension_count", 2 * SHAPE_ROPE_MAX, KEY_REQUIRED, FIELD(rope_dim)}};
    shape->head_dim = 0; // of .attention.key_length
    TRY(family_ints(s, name, old, 2, shape));
    TRY(family_ints(s, name, keys, sizeof keys / sizeof *keys, shape));
    if (shape->latent_key <= shape->rope_dim)
        return family_fail(s, name, ".attention.key_length_mla",
                           "%d is no more than the %d that "
                           "are rotated",
                           shape->latent_key, shape->rope_dim);
    shape->latent_key -= shape->rope_dim;
    return set_heads(s, name, shape);
}

enum err latent_sizes(const struct source *s, const char *name, struct shape *shape)
{
    static const struct family_int keys[] = {
        {"kv_lora_rank", SHAPE_HEAD_MAX, KEY_REQUIRED, FIELD(head_dim)},
        {"q_lora_rank", SHAPE_DIM_MAX, KEY_OPTIONAL, FIELD(latent_query)},
        {"qk_nope_head_dim", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(latent_key)},
        {"qk_rope_head_dim", 2 * SHAPE_ROPE_MAX, KEY_REQUIRED, FIELD(rope_dim)},
        {"v_head_dim", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(latent_value)}};
    if (s->kind == SOURCE_GGUF)
        return sizes_gguf(s, name, shape);
    if (shape->n_kv_heads != 0 && shape->n_kv_heads != shape->n_heads)
        return family_fail(s, name, "num_key_value_heads",
                           "unsupported: %d, but latent attention has all %d heads",
                           shape->n_kv_heads, shape->n_heads);
    shape->head_dim = 0; // of config.json: another size
    TRY(family_ints(s, name, keys, sizeof keys / sizeof *keys, shape));
    return set_heads(s, name, shape);
}

/* GGUF's factor is of the stretch's logarithm, a tenth of config.json's; cosines do not grow. */
void latent_rope_gguf(struct rope *rope)
{
    rope->mscale_all_dim *= 10;
    rope->attention_factor = 1;
}

enum err latent_order(struct family_model *m, const struct source *s, const struct rope *rope)
{
    struct shape *shape = &m->shape;
    const int64_t key = shape->latent_key, both = key + shape->latent_value;
    const int64_t rows = shape->n_heads * both;
    double scale = 1 / sqrt((double)shape_query_dim(shape, 0));
    int paired = 1;
    if (rope->kind != ROPE_PLAIN && rope->factor > 1) { // of YaRN, for both q and k
        const double grown = rope->mscale_all_dim * 0.1 * log(rope->factor) + 1;
        scale *= grown * grown;
    }
    shape->attn_scale = (float)scale;
    if (s->kind == SOURCE_HF)
        TRY(family_flag(s, "", "rope_interleave", &paired));
    m->paired_rows = paired;
    if (strcmp(m->names->roles[ROLE_LATENT_K], m->names->roles[ROLE_LATENT_V]) != 0)
        return OK; // apart, and each as in a pack
    m->cut[ROLE_LATENT_K] = (struct family_cut){rows, 0, key, both};
    m->cut[ROLE_LATENT_V] = (struct family_cut){rows, key, shape->latent_value, both};
    m->transposed |= ROLE_BIT(ROLE_LATENT_K);
    return OK;
}
