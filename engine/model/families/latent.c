/* engine/model/families/latent.c - latent attention (MLA) in model files, for family_llama.c.
 *
 * Owns: its keys, and where rows of its matrices are. The pack has a key's rotated numbers before
 * its latent, and of each head the two matrices that attention is wrapped in
 * (engine/line/layer_latent.c). */
#include "engine/model/families/family.h"
#include "engine/model/families/rope.h"

#include <math.h>

#define FIELD(f) offsetof(struct shape, f)

/* A multiple of 32: heads' matrices must be whole panels. */
static enum err check_panels(const struct source *s, const char *name, const char *key, int n)
{
    return n % 32 == 0 ? OK
                       : family_fail(s, name, key, "unsupported: %d is not a multiple of 32", n);
}

enum err latent_sizes(const struct source *s, const char *name, struct shape *shape)
{
    static const struct family_int keys[] = {
        {"kv_lora_rank", SHAPE_HEAD_MAX, KEY_REQUIRED, FIELD(head_dim)},
        {"q_lora_rank", SHAPE_DIM_MAX, KEY_OPTIONAL, FIELD(latent_query)},
        {"qk_nope_head_dim", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(latent_key)},
        {"qk_rope_head_dim", 2 * SHAPE_ROPE_MAX, KEY_REQUIRED, FIELD(rope_dim)},
        {"v_head_dim", SHAPE_DIM_MAX, KEY_REQUIRED, FIELD(latent_value)}};
    if (shape->n_kv_heads != 0 && shape->n_kv_heads != shape->n_heads)
        return family_fail(s, name, "num_key_value_heads",
                           "unsupported: %d, but latent attention has all %d heads",
                           shape->n_kv_heads, shape->n_heads);
    shape->head_dim = 0; // of config.json: another size
    TRY(family_ints(s, name, keys, sizeof keys / sizeof *keys, shape));
    TRY(check_panels(s, name, "kv_lora_rank", shape->head_dim));
    TRY(check_panels(s, name, "v_head_dim", shape->latent_value));
    if (shape->rope_dim % 2 != 0)
        return family_fail(s, name, "qk_rope_head_dim", "%d is odd: heads are rotated in pairs",
                           shape->rope_dim);
    shape->head_dim += shape->rope_dim;
    shape->n_kv_heads = 1;
    return OK;
}

enum err latent_order(struct family_model *m, const struct source *s, const struct rope *rope)
{
    struct shape *shape = &m->shape;
    const int64_t key = shape->latent_key, both = key + shape->latent_value;
    const int64_t rows = shape->n_heads * both;
    double scale = 1 / sqrt((double)shape_query_dim(shape));
    int paired = 1;
    if (rope->kind != ROPE_PLAIN && rope->factor > 1) { // of YaRN, for both q and k
        const double grown = rope->mscale_all_dim * 0.1 * log(rope->factor) + 1;
        scale *= grown * grown;
    }
    shape->attn_scale = (float)scale;
    TRY(family_flag(s, "", "rope_interleave", &paired));
    m->paired_rows = paired;
    m->cut[ROLE_LATENT_K] = (struct family_cut){rows, 0, key, both};
    m->cut[ROLE_LATENT_V] = (struct family_cut){rows, key, shape->latent_value, both};
    m->transposed |= ROLE_BIT(ROLE_LATENT_K);
    return OK;
}
