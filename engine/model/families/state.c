/* engine/model/families/state.c - keys and tensors of layers with a row state that families share.
 */
#include "engine/model/families/family.h"

#include <stdio.h>

#define FIELD(f) offsetof(struct shape, f)

/* The keys are for messages. */
static enum err check_sizes(const struct source *s, const char *name, const struct shape *shape,
                            const char *const keys[5])
{
    const int dims[] = {shape->state_k_dim, shape->state_v_dim};
    for (int i = 0; i < 2; i++)
        if (dims[i] % 16 != 0 || dims[i] < 16 || dims[i] > SHAPE_STATE_MAX)
            return family_fail(s, name, keys[STATE_KEY_K_DIM + i],
                               "unsupported: %d is not a multiple of 16 up to %d", dims[i],
                               SHAPE_STATE_MAX);
    if (shape->state_v_heads % shape->state_k_heads != 0)
        return family_fail(s, name, keys[STATE_KEY_V_HEADS], "%d is not a multiple of %s, %d",
                           shape->state_v_heads, keys[STATE_KEY_K_HEADS], shape->state_k_heads);
    if ((int64_t)shape->state_v_heads * shape->state_v_dim +
            2 * (int64_t)shape->state_k_heads * shape->state_k_dim >
        SHAPE_DIM_MAX)
        return family_fail(s, name, keys[STATE_KEY_V_HEADS], "%d heads of %d numbers are too large",
                           shape->state_v_heads, shape->state_v_dim);
    return OK;
}

static enum err read_sizes(const struct source *s, const char *name, struct shape *shape,
                           const char *const keys[5], enum family_key need)
{
    const struct family_int ints[5] = {
        {keys[STATE_KEY_K_HEADS], SHAPE_DIM_MAX, need, FIELD(state_k_heads)},
        {keys[STATE_KEY_V_HEADS], SHAPE_DIM_MAX, need, FIELD(state_v_heads)},
        {keys[STATE_KEY_K_DIM], SHAPE_DIM_MAX, need, FIELD(state_k_dim)},
        {keys[STATE_KEY_V_DIM], SHAPE_DIM_MAX, need, FIELD(state_v_dim)},
        {keys[STATE_KEY_TAPS], SHAPE_TAPS_MAX, need, FIELD(state_taps)}};
    return family_ints(s, name, ints, 5, shape);
}

enum err state_sizes(const struct source *s, struct shape *shape, const char *const keys[5])
{
    TRY(read_sizes(s, "", shape, keys, KEY_OPTIONAL));
    return check_sizes(s, "", shape, keys);
}

enum err state_sizes_gguf(const struct source *s, const char *name, struct shape *shape)
{
    static const char *const keys[5] = {".ssm.group_count", ".ssm.time_step_rank",
                                        ".ssm.state_size", ".ssm.inner_size", ".ssm.conv_kernel"};
    shape->state_k_heads = shape->state_v_heads = shape->state_k_dim = shape->state_v_dim = 0;
    shape->state_taps = 0;
    TRY(read_sizes(s, name, shape, keys, KEY_REQUIRED));
    if (shape->state_v_dim % shape->state_v_heads != 0) // so far of all heads
        return family_fail(s, name, keys[STATE_KEY_V_DIM], "%d is not a multiple of %d heads",
                           shape->state_v_dim, shape->state_v_heads);
    shape->state_v_dim /= shape->state_v_heads;
    return check_sizes(s, name, shape, keys);
}

enum err state_layers(const struct source *s, const char *key, const char *with,
                      const char *without, struct shape *shape, int *found)
{
    const char *types[SHAPE_LAYERS_MAX];
    int64_t n = 0;
    TRY(source_str_list(s, key, types, SHAPE_LAYERS_MAX, &n, found));
    if (!*found)
        return OK;
    if (n != shape->n_layers)
        return family_fail(s, "", key, "has %lld entries, expected %d", (long long)n,
                           shape->n_layers);
    for (int i = 0; i < n; i++) {
        shape->layer_state[i] = (uint8_t)family_has_word(with, types[i]);
        if (!shape->layer_state[i] && !family_has_word(without, types[i]))
            return family_fail(s, "", key, "unsupported: %s in layer %d", types[i], i);
    }
    return OK;
}

enum err state_layers_gguf(const struct source *s, const char *name, struct shape *shape)
{
    int64_t heads[FAMILY_LIST_MAX];
    char key[100];
    snprintf(key, sizeof key, "%s.attention.head_count_kv", name);
    TRY(family_int_list(s, "", key, shape->n_layers, 0, heads));
    for (int i = 0; i < shape->n_layers; i++) {
        shape->layer_state[i] = heads[i] == 0;
        if (heads[i] != 0 && shape->n_kv_heads != 0 && heads[i] != shape->n_kv_heads)
            return family_fail(s, "", key, "unsupported: %lld and %d heads", (long long)heads[i],
                               shape->n_kv_heads);
        if (heads[i] != 0)
            shape->n_kv_heads = (int)heads[i];
    }
    return state_layers_end(s, key, shape);
}

enum err state_layers_end(const struct source *s, const char *key, const struct shape *shape)
{
    const int n = shape_states(shape);
    return n > 0 && n < shape->n_layers
               ? OK
               : family_fail(s, "", key, "unsupported: layers are of one kind");
}

void state_cut_mamba(struct family_model *m, int logs)
{
    const struct shape *s = &m->shape;
    const int64_t v = shape_state_v(s), k = shape_state_k(s), heads = s->state_v_heads;
    const int64_t all = 2 * v + 2 * k + heads;
    m->cut[ROLE_STATE_Z] = (struct family_cut){all, 0, v, v};
    m->cut[ROLE_STATE_V] = (struct family_cut){all, v, v, v};
    m->cut[ROLE_STATE_K] = (struct family_cut){all, 2 * v, k, k};
    m->cut[ROLE_STATE_Q] = (struct family_cut){all, 2 * v + k, k, k};
    m->cut[ROLE_STATE_DT] = (struct family_cut){all, 2 * v + 2 * k, heads, heads};
    m->logs = logs ? ROLE_BIT(ROLE_STATE_A) : 0;
}
