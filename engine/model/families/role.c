/* engine/model/families/role.c - see role.h. Owns: the one table of roles. */
#include "engine/model/families/role.h"

static const struct role_info {
    const char *name;
    enum role_place place;
    enum role_kind kind;
} roles[N_ROLES] = {
    [ROLE_EMBED] = {"embed", ROLE_IN_EMBEDDING, ROLE_IS_ROWS},
    [ROLE_POS] = {"position", ROLE_IN_EMBEDDING, ROLE_IS_ROWS},
    [ROLE_PROJ_IN] = {"proj_in", ROLE_IN_EMBEDDING, ROLE_IS_PANELS},
    [ROLE_NORM1_W] = {"norm1", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_NORM1_B] = {"norm1_bias", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_Q] = {"q", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_Q_B] = {"q_bias", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_K] = {"k", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_K_B] = {"k_bias", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_V] = {"v", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_V_B] = {"v_bias", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_O] = {"o", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_O_B] = {"o_bias", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_NORM2_W] = {"norm2", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_NORM2_B] = {"norm2_bias", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_GATE] = {"gate", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_GATE_B] = {"gate_bias", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_UP] = {"up", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_UP_B] = {"up_bias", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_DOWN] = {"down", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_DOWN_B] = {"down_bias", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_FINAL_NORM_W] = {"final_norm", ROLE_IN_SLICE, ROLE_IS_VECTOR},
    [ROLE_FINAL_NORM_B] = {"final_norm_bias", ROLE_IN_SLICE, ROLE_IS_VECTOR},
    [ROLE_PROJ_OUT] = {"proj_out", ROLE_IN_SLICE, ROLE_IS_PANELS},
    [ROLE_HEAD] = {"head", ROLE_IN_SLICE, ROLE_IS_PANELS},
    [ROLE_POST1_W] = {"post_norm1", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_POST2_W] = {"post_norm2", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_Q_NORM_W] = {"q_norm", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_K_NORM_W] = {"k_norm", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_SINKS] = {"sinks", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_ROUTER] = {"router", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_ROUTER_B] = {"router_bias", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_DENSE_GATE] = {"dense_gate", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_DENSE_UP] = {"dense_up", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_DENSE_DOWN] = {"dense_down", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_SHARED_GATE] = {"shared_gate", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_SHARED_UP] = {"shared_up", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_SHARED_DOWN] = {"shared_down", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_SHARE] = {"share", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_CHOICE_B] = {"choice_bias", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_Q_GATE] = {"q_gate", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_STATE_Q] = {"state_q", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_STATE_K] = {"state_k", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_STATE_V] = {"state_v", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_STATE_Z] = {"state_z", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_STATE_BETA] = {"state_beta", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_STATE_DT] = {"state_dt", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_STATE_CONV] = {"state_conv", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_STATE_A] = {"state_a", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_STATE_DT_B] = {"state_dt_bias", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_STATE_NORM_W] = {"state_norm", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_STATE_O] = {"state_o", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_Q_A] = {"q_a", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_LATENT_K] = {"latent_k", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_LATENT_V] = {"latent_v", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_STATE_CONV_B] = {"state_conv_bias", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_STATE_SKIP] = {"state_skip", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_ROUTE_SCALE] = {"route_scale", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_ROUTER_NORM_W] = {"router_norm", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_EXPERT_NORM_W] = {"expert_norm", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_EXPERT_POST_W] = {"expert_post_norm", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_SHARED_POST_W] = {"shared_post_norm", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_INPUTS_EMBED] = {"inputs_embed", ROLE_IN_EMBEDDING, ROLE_IS_ROWS},
    [ROLE_INPUTS_PROJ] = {"inputs_proj", ROLE_IN_EMBEDDING, ROLE_IS_PANELS},
    [ROLE_INPUTS_NORM_W] = {"inputs_norm", ROLE_IN_EMBEDDING, ROLE_IS_VECTOR},
    [ROLE_INPUT_GATE] = {"input_gate", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_INPUT_OUT] = {"input_out", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_INPUT_POST_W] = {"input_post_norm", ROLE_IN_DECODER, ROLE_IS_VECTOR},
    [ROLE_HEAD_B] = {"head_bias", ROLE_IN_SLICE, ROLE_IS_VECTOR},
    [ROLE_EXPERT_IN] = {"expert_in", ROLE_IN_DECODER, ROLE_IS_PANELS},
    [ROLE_EXPERT_OUT] = {"expert_out", ROLE_IN_DECODER, ROLE_IS_PANELS},
};

/* What a layer with a state has in the place of attention: of every kind of state, of all but a
 * convolution alone, and of one kind. */
#define STATE_ALWAYS                                                                               \
    (ROLE_BIT(ROLE_STATE_K) | ROLE_BIT(ROLE_STATE_V) | ROLE_BIT(ROLE_STATE_Z) |                    \
     ROLE_BIT(ROLE_STATE_CONV) | ROLE_BIT(ROLE_STATE_O))
#define STATE_RECURS                                                                               \
    (ROLE_BIT(ROLE_STATE_Q) | ROLE_BIT(ROLE_STATE_DT) | ROLE_BIT(ROLE_STATE_A) |                   \
     ROLE_BIT(ROLE_STATE_DT_B) | ROLE_BIT(ROLE_STATE_NORM_W))
#define STATE_ROLES                                                                                \
    (STATE_ALWAYS | STATE_RECURS | ROLE_BIT(ROLE_STATE_BETA) | ROLE_BIT(ROLE_STATE_CONV_B) |       \
     ROLE_BIT(ROLE_STATE_SKIP))
/* What an MLP has, and what layers with experts have beside it. */
#define MLP_ROLES                                                                                  \
    (ROLE_BIT(ROLE_GATE) | ROLE_BIT(ROLE_GATE_B) | ROLE_BIT(ROLE_UP) | ROLE_BIT(ROLE_UP_B) |       \
     ROLE_BIT(ROLE_DOWN) | ROLE_BIT(ROLE_DOWN_B))
#define DENSE_ROLES                                                                                \
    (ROLE_BIT(ROLE_DENSE_GATE) | ROLE_BIT(ROLE_DENSE_UP) | ROLE_BIT(ROLE_DENSE_DOWN))
#define BESIDE_ROLES                                                                               \
    (ROLE_BIT(ROLE_ROUTER) | ROLE_BIT(ROLE_ROUTER_B) | ROLE_BIT(ROLE_SHARED_GATE) |                \
     ROLE_BIT(ROLE_SHARED_UP) | ROLE_BIT(ROLE_SHARED_DOWN) | ROLE_BIT(ROLE_SHARE) |                \
     ROLE_BIT(ROLE_CHOICE_B) | ROLE_BIT(ROLE_ROUTE_SCALE) | ROLE_BIT(ROLE_ROUTER_NORM_W) |         \
     ROLE_BIT(ROLE_EXPERT_NORM_W) | ROLE_BIT(ROLE_EXPERT_POST_W) | ROLE_BIT(ROLE_SHARED_POST_W) |  \
     ROLE_BIT(ROLE_EXPERT_IN) | ROLE_BIT(ROLE_EXPERT_OUT))

const char *role_name(enum tensor_role role)
{
    CHECK(role < N_ROLES);
    return roles[role].name;
}

enum role_kind role_kind(enum tensor_role role)
{
    CHECK(role < N_ROLES);
    return roles[role].kind;
}

enum role_place role_place(enum tensor_role role)
{
    CHECK(role < N_ROLES);
    return roles[role].place;
}

static enum role_need need_if(int cond)
{
    return cond ? ROLE_REQUIRED : ROLE_ABSENT;
}

static enum role_need state_need(const struct shape *s, enum tensor_role role)
{
    if (role == ROLE_STATE_BETA)
        return need_if(s->state == STATE_DELTA);
    if (role == ROLE_STATE_SKIP)
        return need_if(s->state == STATE_MAMBA);
    if (role == ROLE_STATE_CONV_B || (role == ROLE_STATE_NORM_W && s->beside_scale > 0))
        return s->state == STATE_MAMBA ? ROLE_OPTIONAL : ROLE_ABSENT;
    if (STATE_RECURS & ROLE_BIT(role))
        return need_if(s->state == STATE_DELTA || s->state == STATE_MAMBA);
    return need_if(s->state != STATE_NONE);
}

/* Of models with experts; of other roles, ROLE_REQUIRED. */
static enum role_need expert_need(const struct shape *s, enum tensor_role role)
{
    switch (role) {
    case ROLE_ROUTER:
        return need_if(s->n_experts > 0);
    case ROLE_DENSE_GATE:
    case ROLE_DENSE_UP:
    case ROLE_DENSE_DOWN:
        return need_if(s->dense_dim > 0 && (s->gated || role != ROLE_DENSE_GATE));
    case ROLE_SHARED_GATE:
    case ROLE_SHARED_UP:
    case ROLE_SHARED_DOWN:
        return need_if(s->shared_dim > 0 && (s->gated || role != ROLE_SHARED_GATE));
    case ROLE_EXPERT_IN:
    case ROLE_EXPERT_OUT:
        return need_if(s->expert_dim > 0);
    case ROLE_SHARE:
        return need_if(s->shared_gate);
    case ROLE_CHOICE_B:
        return need_if(s->route_bias);
    case ROLE_ROUTE_SCALE:
        return need_if(s->route_scales);
    case ROLE_ROUTER_NORM_W:
    case ROLE_EXPERT_NORM_W:
    case ROLE_EXPERT_POST_W:
    case ROLE_SHARED_POST_W:
        return need_if(s->expert_norms);
    case ROLE_ROUTER_B:
        return s->n_experts > 0 ? ROLE_OPTIONAL : ROLE_ABSENT;
    default:
        return ROLE_REQUIRED;
    }
}

enum role_need role_need(const struct shape *s, enum tensor_role role)
{
    const int norms = s->norm_place != NORM_OF_BRANCH;
    const int norm2 = norms && s->branches != BRANCHES_SHARE_NORM;
    const int posts = s->norm_place == NORM_OF_BRANCH || s->norm_place == NORM_AROUND;
    switch (role) {
    case ROLE_POS:
        return need_if(s->position == POSITION_LEARNED);
    case ROLE_PROJ_IN:
    case ROLE_PROJ_OUT:
        return need_if(s->embed_dim != s->dim);
    case ROLE_NORM1_W:
        return need_if(norms);
    case ROLE_NORM2_W:
        return need_if(norm2);
    case ROLE_NORM1_B:
        return need_if(norms && s->norm == NORM_LAYER && !s->bare_norm);
    case ROLE_NORM2_B:
        return need_if(norm2 && s->norm == NORM_LAYER && !s->bare_norm);
    case ROLE_POST1_W:
    case ROLE_POST2_W:
        return need_if(posts);
    case ROLE_Q_NORM_W:
        return need_if(s->qk_norm != QK_NORM_NONE || s->latent_query > 0);
    case ROLE_K_NORM_W:
        return need_if(s->qk_norm != QK_NORM_NONE || s->latent_key > 0);
    case ROLE_V:
        return need_if(s->latent_key == 0);
    case ROLE_Q_B:
    case ROLE_K_B:
    case ROLE_V_B:
        return s->latent_key == 0 ? ROLE_OPTIONAL : ROLE_ABSENT;
    case ROLE_Q_A:
        return need_if(s->latent_query > 0);
    case ROLE_LATENT_K:
    case ROLE_LATENT_V:
        return need_if(s->latent_key > 0);
    case ROLE_SINKS:
        return need_if(s->sinks);
    case ROLE_FINAL_NORM_W:
        return need_if(s->final_norm);
    case ROLE_FINAL_NORM_B:
        return need_if(s->final_norm && s->norm == NORM_LAYER && !s->bare_norm);
    case ROLE_GATE:
        return need_if(s->gated);
    case ROLE_Q_GATE:
        return need_if(s->query_gate);
    case ROLE_INPUTS_EMBED:
    case ROLE_INPUTS_PROJ:
    case ROLE_INPUTS_NORM_W:
    case ROLE_INPUT_GATE:
    case ROLE_INPUT_OUT:
    case ROLE_INPUT_POST_W:
        return need_if(s->layer_input > 0);
    case ROLE_GATE_B:
        return s->gated ? ROLE_OPTIONAL : ROLE_ABSENT;
    case ROLE_O_B:
    case ROLE_UP_B:
    case ROLE_DOWN_B:
    case ROLE_HEAD_B:
        return ROLE_OPTIONAL;
    default:
        return STATE_ROLES & ROLE_BIT(role) ? state_need(s, role) : expert_need(s, role);
    }
}

int role_is_heads(enum tensor_role role)
{
    return role == ROLE_LATENT_K || role == ROLE_LATENT_V;
}

int role_is_experts(const struct shape *s, enum tensor_role role)
{
    return s->n_experts > 0 && (MLP_ROLES & ROLE_BIT(role)) != 0;
}

int role_is_state(enum tensor_role role)
{
    return (STATE_ROLES & ROLE_BIT(role)) != 0;
}

int role_is_mlp(enum tensor_role role)
{
    const role_set norm = ROLE_BIT(ROLE_NORM2_W) | ROLE_BIT(ROLE_NORM2_B) | ROLE_BIT(ROLE_POST2_W);
    return ((MLP_ROLES | DENSE_ROLES | BESIDE_ROLES | norm) & ROLE_BIT(role)) != 0;
}

int role_is_kv(enum tensor_role role)
{
    const role_set kv = ROLE_BIT(ROLE_K) | ROLE_BIT(ROLE_K_B) | ROLE_BIT(ROLE_V) |
                        ROLE_BIT(ROLE_V_B) | ROLE_BIT(ROLE_K_NORM_W);
    return (kv & ROLE_BIT(role)) != 0;
}

int role_in_layer(const struct shape *s, enum tensor_role role, int layer)
{
    const role_set attention = ROLE_BIT(ROLE_Q) | ROLE_BIT(ROLE_Q_B) | ROLE_BIT(ROLE_O) |
                               ROLE_BIT(ROLE_O_B) | ROLE_BIT(ROLE_Q_NORM_W) | ROLE_BIT(ROLE_SINKS) |
                               ROLE_BIT(ROLE_Q_GATE);
    if (STATE_ROLES & ROLE_BIT(role))
        return s->layer_state[layer];
    if (role_is_kv(role))
        return !s->layer_state[layer] && !shape_borrows_kv(s, layer) &&
               (shape_has_values(s, layer) || (role != ROLE_V && role != ROLE_V_B));
    if (attention & ROLE_BIT(role))
        return !s->layer_state[layer];
    if (role_is_mlp(role) && s->layer_bare[layer]) // others may be in no layer
        return 0;
    if (DENSE_ROLES & ROLE_BIT(role))
        return !shape_has_experts(s, layer);
    if ((BESIDE_ROLES & ROLE_BIT(role)) || role_is_experts(s, role))
        return shape_has_experts(s, layer);
    return 1;
}

int role_is_choice(enum tensor_role role)
{
    return role == ROLE_ROUTER || role == ROLE_SHARE;
}

struct role_size {
    int n, k;
};

static struct role_size state_dims(const struct shape *s, enum tensor_role role)
{
    const int mamba = s->state == STATE_MAMBA;
    const struct role_size dims[N_ROLES] = {
        [ROLE_STATE_Q] = {shape_state_k(s), s->dim},
        [ROLE_STATE_K] = {s->state == STATE_CONV ? shape_state_v(s) : shape_state_k(s), s->dim},
        [ROLE_STATE_V] = {shape_state_v(s), s->dim},
        [ROLE_STATE_Z] = {shape_state_v(s), s->dim},
        [ROLE_STATE_BETA] = {s->state_v_heads, s->dim},
        [ROLE_STATE_DT] = {s->state_v_heads, s->dim},
        [ROLE_STATE_CONV] = {shape_state_qkv(s) * s->state_taps, 1},
        [ROLE_STATE_A] = {s->state_v_heads, 1},
        [ROLE_STATE_DT_B] = {s->state_v_heads, 1},
        [ROLE_STATE_NORM_W] = {mamba ? shape_state_v(s) : s->state_v_dim, 1},
        [ROLE_STATE_CONV_B] = {shape_state_qkv(s), 1},
        [ROLE_STATE_SKIP] = {s->state_v_heads, 1},
        [ROLE_STATE_O] = {s->dim, shape_state_v(s)},
    };
    return dims[role];
}

void role_dims(const struct shape *s, enum tensor_role role, int layer, int *n, int *k)
{
    const int of = role_place(role) == ROLE_IN_DECODER ? layer : 0, head = shape_head_dim(s, of);
    const int q_dim = s->n_heads * shape_query_dim(s, of), kv_dim = shape_kv_heads(s, of) * head;
    const int latent = s->head_dim - s->rope_dim, is_latent = s->latent_key > 0;
    const int one = s->qk_norm == QK_NORM_HEAD || s->qk_norm == QK_NORM_TURNED; // for all heads
    const int inner = shape_ffn_dim(s, of);
    const int wide = shape_expert_dim(s);
    const int ffn = shape_mlps(s) * inner, out = shape_mlps(s) * wide;
    const int inputs = (int)shape_part(s, PART_INPUTS);
    const struct role_size dims[N_ROLES] = {
        // of others: a vector of dim numbers
        [ROLE_EMBED] = {s->vocab, s->embed_dim},
        [ROLE_POS] = {s->context + s->position_offset, s->dim},
        [ROLE_PROJ_IN] = {s->dim, s->embed_dim},
        [ROLE_Q] = {q_dim, s->latent_query > 0 ? s->latent_query : s->dim},
        [ROLE_Q_B] = {q_dim, 1},
        [ROLE_K] = {kv_dim, s->dim},
        [ROLE_K_B] = {kv_dim, 1},
        [ROLE_V] = {kv_dim, s->dim},
        [ROLE_V_B] = {kv_dim, 1},
        [ROLE_O] = {s->dim, s->n_heads * shape_output_dim(s, of)},
        [ROLE_GATE] = {ffn, wide},
        [ROLE_GATE_B] = {ffn, 1},
        [ROLE_UP] = {ffn, wide},
        [ROLE_UP_B] = {ffn, 1},
        [ROLE_DOWN] = {out, inner},
        [ROLE_DOWN_B] = {out, 1},
        [ROLE_PROJ_OUT] = {s->embed_dim, s->dim},
        [ROLE_HEAD] = {s->vocab, s->embed_dim},
        [ROLE_Q_NORM_W] = {is_latent ? s->latent_query
                           : one     ? head
                                     : q_dim,
                           1},
        [ROLE_K_NORM_W] = {is_latent ? latent
                           : one     ? head
                                     : kv_dim,
                           1},
        [ROLE_SINKS] = {s->n_heads, 1},
        [ROLE_ROUTER] = {s->n_experts, s->dim},
        [ROLE_ROUTER_B] = {s->n_experts, 1},
        [ROLE_DENSE_GATE] = {s->dense_dim, s->dim},
        [ROLE_DENSE_UP] = {s->dense_dim, s->dim},
        [ROLE_DENSE_DOWN] = {s->dim, s->dense_dim},
        [ROLE_SHARED_GATE] = {s->shared_dim, s->dim},
        [ROLE_SHARED_UP] = {s->shared_dim, s->dim},
        [ROLE_SHARED_DOWN] = {s->dim, s->shared_dim},
        [ROLE_SHARE] = {1, s->dim},
        [ROLE_CHOICE_B] = {s->n_experts, 1},
        [ROLE_Q_GATE] = {q_dim, s->dim},
        [ROLE_Q_A] = {s->latent_query, s->dim},
        [ROLE_LATENT_K] = {s->n_heads * latent, s->latent_key},
        [ROLE_LATENT_V] = {s->n_heads * s->latent_value, latent},
        [ROLE_ROUTE_SCALE] = {s->n_experts, 1},
        [ROLE_INPUTS_EMBED] = {s->vocab, inputs},
        [ROLE_INPUTS_PROJ] = {inputs, s->dim},
        [ROLE_INPUTS_NORM_W] = {s->layer_input, 1},
        [ROLE_INPUT_GATE] = {s->layer_input, s->dim},
        [ROLE_INPUT_OUT] = {s->dim, s->layer_input},
        [ROLE_HEAD_B] = {s->vocab, 1},
        [ROLE_EXPERT_IN] = {s->expert_dim, s->dim},
        [ROLE_EXPERT_OUT] = {s->dim, s->expert_dim},
    };
    CHECK(role < N_ROLES);
    const struct role_size own = STATE_ROLES & ROLE_BIT(role) ? state_dims(s, role) : dims[role];
    *n = own.k > 0 ? own.n : s->dim;
    *k = own.k > 0 ? own.k : 1;
}

int64_t role_bytes(enum tensor_role role, enum dtype t, int n, int k)
{
    int64_t row_bytes = dtype_row_bytes(t, k);
    if (row_bytes < 0)
        return -1;
    switch (role_kind(role)) {
    case ROLE_IS_ROWS:
        return row_bytes * n;
    case ROLE_IS_PANELS:
        return dtype_panels_bytes(t, n, k);
    case ROLE_IS_VECTOR:
        return (int64_t)sizeof(float) * n;
    }
    return -1;
}
