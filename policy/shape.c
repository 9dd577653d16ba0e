/* policy/shape.c - see shape.h. Owns: the bounds of every field. */
#include "policy/shape.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define CONTEXT_MAX (1 << 27)
#define OFFSET_MAX  1024 // position_offset

static int in_range(int v, int min, int max)
{
    return v >= min && v <= max;
}

static int is_factor(float f)
{
    return isfinite(f) && f > 0 && f < 1e6f;
}

/* Checks the fields from which others are computed. */
static const char *check_sizes(const struct shape *s)
{
    if (!memchr(s->family, 0, sizeof s->family))
        return "family";
    if (!in_range(s->n_layers, 1, SHAPE_LAYERS_MAX))
        return "n_layers";
    if (!in_range(s->dim, 1, SHAPE_DIM_MAX))
        return "dim";
    if (!in_range(s->embed_dim, 1, SHAPE_DIM_MAX))
        return "embed_dim";
    if (!in_range(s->ffn_dim, 1, SHAPE_DIM_MAX))
        return "ffn_dim";
    if (!in_range(s->vocab, 1, SHAPE_VOCAB_MAX))
        return "vocab";
    if (!in_range(s->context, 1, CONTEXT_MAX))
        return "context";
    if (!in_range(s->n_heads, 1, SHAPE_DIM_MAX))
        return "n_heads";
    if (!in_range(s->n_kv_heads, 1, s->n_heads) || s->n_heads % s->n_kv_heads != 0)
        return "n_kv_heads";
    if (!in_range(s->head_dim, 1, SHAPE_HEAD_MAX) ||
        (int64_t)s->n_heads * s->head_dim > SHAPE_DIM_MAX)
        return "head_dim";
    return NULL;
}

/* Layers whose heads are of other sizes. All their numbers are rotated, by the first table. */
static const char *check_wide(const struct shape *s)
{
    const int wide = s->wide_head_dim > 0;
    if (!in_range(s->wide_head_dim, 0, wide ? 2 * SHAPE_ROPE_MAX : 0) ||
        s->wide_head_dim % 2 != 0 || (int64_t)s->n_heads * s->wide_head_dim > SHAPE_DIM_MAX ||
        (wide && (s->latent_key > 0 || s->state != STATE_NONE || s->position != POSITION_ROPE ||
                  s->rope_long > 0 || s->qk_norm > QK_NORM_HEAD)))
        return "wide_head_dim";
    if (!in_range(s->wide_kv_heads, wide, wide ? s->n_heads : 0) ||
        (wide && s->n_heads % s->wide_kv_heads != 0))
        return "wide_kv_heads";
    if (wide && s->attn_scale == 0)
        return "attn_scale";
    if (!in_range(s->value_norm, 0, s->latent_key == 0))
        return "value_norm";
    if (!in_range(s->tied_kv, 0, wide && s->value_norm))
        return "tied_kv";
    for (int i = 0; i < s->n_layers; i++)
        if (s->layer_wide[i] > wide)
            return "layer_wide";
        else if (wide && s->layer_rope[i] != !s->layer_wide[i])
            return "layer_rope";
    return NULL;
}

/* Layers that use the keys and values of others, and inputs of layers. */
static const char *check_lent(const struct shape *s)
{
    const int lent = s->kv_own_layers > 0;
    if (!in_range(s->kv_own_layers, 0, s->wide_head_dim > 0 ? s->n_layers - 1 : 0))
        return "kv_own_layers";
    for (int i = s->kv_own_layers; lent && i < s->n_layers; i++)
        if (shape_part(s, s->layer_wide[i] ? PART_WIDE_K : PART_K) == 0)
            return "kv_own_layers";
    if (!in_range(s->late_ffn_dim, lent, lent ? SHAPE_DIM_MAX : 0) || (lent && s->n_experts > 0))
        return "late_ffn_dim";
    return in_range(s->layer_input, 0, SHAPE_DIM_MAX / s->n_layers) &&
                   (s->layer_input == 0 ||
                    (s->gated && s->norm_place == NORM_AROUND && s->branches == BRANCHES_SERIAL &&
                     s->embed_dim == s->dim && s->position == POSITION_ROPE))
               ? NULL
               : "layer_input";
}

/* A head's own matrices must be whole panels. */
static const char *check_latent(const struct shape *s)
{
    const int64_t most = s->n_heads > 0 ? SHAPE_DIM_MAX / s->n_heads : 0;
    if (s->latent_key == 0 && s->latent_value == 0)
        return s->latent_query == 0 ? NULL : "latent_query";
    if (!in_range(s->latent_key, 1, (int)most) || s->n_kv_heads != 1 ||
        s->qk_norm != QK_NORM_NONE || s->position != POSITION_ROPE || s->rope_dim >= s->head_dim ||
        s->attn_scale == 0 || (s->head_dim - s->rope_dim) % 32 != 0 ||
        s->rope_dim + s->latent_key > most)
        return "latent_key";
    if (!in_range(s->latent_value, 32, (int)most) || s->latent_value % 32 != 0)
        return "latent_value";
    return in_range(s->latent_query, 0, SHAPE_DIM_MAX) ? NULL : "latent_query";
}

/* A group has two experts or more, and the groups of a token have all that it uses. */
static const char *check_groups(const struct shape *s)
{
    if (!is_factor(s->route_scale))
        return "route_scale";
    if (!in_range(s->group_best, 0, s->n_groups > 0))
        return "group_best";
    if (s->n_groups == 0)
        return s->n_groups_used == 0 ? NULL : "n_groups_used";
    if (!in_range(s->n_groups, 2, SHAPE_GROUPS_MAX) || s->n_experts % s->n_groups != 0 ||
        s->n_experts < 2 * s->n_groups)
        return "n_groups";
    return in_range(s->n_groups_used, 1, s->n_groups) &&
                   s->n_groups_used * (s->n_experts / s->n_groups) >= s->n_experts_used
               ? NULL
               : "n_groups_used";
}

/* An expert's rows must be whole panels, so that an expert can be multiplied alone. */
static const char *check_experts(const struct shape *s)
{
    if (s->n_experts == 0)
        return s->n_experts_used != 0 || s->route_alone != 0 || s->route_logistic != 0 ||
                       s->route_bias != 0 || s->route_near != 0 || s->route_scales != 0 ||
                       s->n_groups != 0 || s->n_groups_used != 0 || s->group_best != 0
                   ? "n_experts"
                   : NULL;
    if (!in_range(s->n_experts, 2, SHAPE_EXPERTS_MAX) || s->branches != BRANCHES_SERIAL ||
        s->dim % 32 != 0 || s->ffn_dim % 32 != 0 ||
        (int64_t)s->n_experts * (s->dim > s->ffn_dim ? s->dim : s->ffn_dim) > SHAPE_OUTPUTS_MAX)
        return "n_experts";
    if (!in_range(s->n_experts_used, 1,
                  s->n_experts < SHAPE_EXPERTS_USED_MAX ? s->n_experts : SHAPE_EXPERTS_USED_MAX))
        return "n_experts_used";
    if (!in_range(s->route_alone, 0, 1))
        return "route_alone";
    if (!in_range(s->route_logistic, 0, 1))
        return "route_logistic";
    if (!in_range(s->route_scales, 0, 1))
        return "route_scales";
    if (!(s->route_near >= 0 && s->route_near <= 2) ||
        (s->route_near > 0 &&
         (s->route_alone || s->route_logistic || s->route_bias || s->n_groups > 0)))
        return "route_near";
    return in_range(s->route_bias, 0, 1) ? check_groups(s) : "route_bias";
}

/* Layers without experts, and the shared expert. */
static const char *check_beside(const struct shape *s)
{
    int dense = 0, with = 0;
    for (int i = 0; i < s->n_layers; i++) {
        if (s->layer_dense[i] > (s->n_experts > 0))
            return "layer_dense";
        dense += s->layer_dense[i];
        with += shape_has_experts(s, i);
    }
    if (with == 0 && s->n_experts > 0)
        return "layer_dense";
    if (!in_range(s->dense_dim, dense > 0, dense > 0 ? SHAPE_DIM_MAX : 0))
        return "dense_dim";
    if (!in_range(s->shared_dim, 0, s->n_experts > 0 ? SHAPE_DIM_MAX : 0))
        return "shared_dim";
    if (!in_range(s->expert_norms, 0,
                  s->shared_dim > 0 && !s->shared_gate && s->norm_place == NORM_AROUND))
        return "expert_norms";
    if (!in_range(s->expert_dim, 0, s->n_experts > 0 ? s->dim : 0) || s->expert_dim % 32 != 0 ||
        (s->expert_dim > 0 && (s->norm_place != NORM_BEFORE || s->branch_scale != 1 ||
                               s->mlp_scale != 1 || s->shared_gate || s->expert_norms)))
        return "expert_dim";
    return in_range(s->shared_gate, 0, s->shared_dim > 0) ? NULL : "shared_gate";
}

static const char *check_ropes(const struct shape *s)
{
    int rope = s->position == POSITION_ROPE;
    if (!in_range(s->rope_dim, rope ? 2 : 0, rope ? s->head_dim : 0) || s->rope_dim % 2 != 0 ||
        s->rope_dim > 2 * SHAPE_ROPE_MAX)
        return "rope_dim";
    if (!in_range(s->rope_long, 0, rope ? CONTEXT_MAX : 0))
        return "rope_long";
    if (s->query_beta != 0 && (!is_factor(s->query_beta) || !rope))
        return "query_beta";
    if (!in_range(s->query_period, s->query_beta > 0, s->query_beta > 0 ? CONTEXT_MAX : 0))
        return "query_period";
    for (int i = 0; i < s->n_layers; i++)
        if (s->layer_rope[i] > SHAPE_NO_ROPE)
            return "layer_rope";
    for (int r = 0; rope && r < shape_ropes(s); r++) {
        if (!is_factor(s->ropes[r].scale))
            return "rope_scale";
        for (int i = 0; i < shape_rope_width(s, r) / 2; i++)
            if (!isfinite(s->ropes[r].inv_freq[i]) || s->ropes[r].inv_freq[i] < 0)
                return "rope_inv_freq";
    }
    return NULL;
}

static int is_state_dim(int n)
{
    return in_range(n, 16, SHAPE_STATE_MAX) && n % 16 == 0;
}

static const char *check_state(const struct shape *s)
{
    for (int i = 0; i < s->n_layers; i++)
        if (s->layer_state[i] > (s->state != STATE_NONE))
            return "layer_state";
    if (!in_range(s->query_gate, 0, 1))
        return "query_gate";
    if (s->state == STATE_NONE)
        return s->state_k_heads || s->state_v_heads || s->state_k_dim || s->state_v_dim ||
                       s->state_taps || s->state_tiled
                   ? "state"
                   : NULL;
    const int n = shape_states(s);
    if (!in_range(s->state, STATE_DELTA, STATE_CONV) || n == 0 || n == s->n_layers ||
        s->branches != BRANCHES_SERIAL || s->norm_place != NORM_BEFORE)
        return "state";
    if (!in_range(s->state_tiled, 0, s->state == STATE_DELTA)) // Mamba-2 norms groups of heads
        return "state_tiled";
    if (!is_state_dim(s->state_v_dim))
        return "state_v_dim";
    if (!in_range(s->state_v_heads, 1, SHAPE_DIM_MAX / s->state_v_dim))
        return "state_v_heads";
    if (!in_range(s->state_taps, 2, SHAPE_TAPS_MAX))
        return "state_taps";
    if (s->state == STATE_CONV)
        return s->state_k_heads || s->state_k_dim ? "state_k_heads" : NULL;
    if (!is_state_dim(s->state_k_dim))
        return "state_k_dim";
    if (!in_range(s->state_k_heads, 1, s->state_v_heads) ||
        s->state_v_heads % s->state_k_heads != 0 || shape_state_qkv(s) > SHAPE_DIM_MAX)
        return "state_k_heads";
    return NULL;
}

/* Factors on outputs of MLPs and states, and pairs of layers that read the same x. */
static const char *check_pairs(const struct shape *s)
{
    if (!is_factor(s->mlp_scale))
        return "mlp_scale";
    if (s->state_dt_scale != 0 && (!is_factor(s->state_dt_scale) || s->state != STATE_MAMBA))
        return "state_dt_scale";
    if (s->beside_scale == 0)
        return NULL;
    int pairs = is_factor(s->beside_scale) && s->n_layers % 2 == 0;
    for (int i = 0; i < s->n_layers; i++)
        pairs &= s->layer_state[i] == (i % 2 == 0) && s->layer_bare[i] == s->layer_state[i];
    return pairs ? NULL : "beside_scale";
}

/* Layers without MLP. */
static const char *check_bare(const struct shape *s)
{
    int bare = 0;
    for (int i = 0; i < s->n_layers; i++) {
        if (s->layer_bare[i] > (s->norm_place == NORM_BEFORE && s->branches == BRANCHES_SERIAL &&
                                !s->layer_dense[i]))
            return "layer_bare";
        bare += s->layer_bare[i];
    }
    return bare < s->n_layers ? NULL : "layer_bare";
}

int shape_states(const struct shape *s)
{
    int n = 0;
    for (int i = 0; i < s->n_layers; i++)
        n += s->layer_state[i];
    return n;
}

int shape_first_layer(const struct shape *s, int experts)
{
    for (int i = 0; i < s->n_layers; i++)
        if (shape_has_experts(s, i) == experts)
            return i;
    return -1;
}

int shape_lends_kv(const struct shape *s, int layer)
{
    int last = layer < s->kv_own_layers;
    for (int i = layer + 1; i < s->kv_own_layers; i++)
        last &= s->layer_wide[i] != s->layer_wide[layer];
    return last;
}

/* 1: layers of this kind lend keys and values. */
static int lends_kind(const struct shape *s, int wide)
{
    for (int i = 0; i < s->kv_own_layers; i++)
        if (s->layer_wide[i] == wide)
            return 1;
    return 0;
}

int64_t shape_part(const struct shape *s, enum hidden_part part)
{
    const int wide = part >= PART_WIDE_K;
    if (part == PART_STATE)
        return s->dim;
    if (part == PART_INPUTS)
        return (int64_t)s->n_layers * s->layer_input;
    if (part == PART_BESIDE)
        return s->beside_scale > 0 ? s->dim : 0;
    return lends_kind(s, wide) * (int64_t)shape_kv_heads_of(s, wide) * shape_head_dim_of(s, wide);
}

int64_t shape_before_part(const struct shape *s, enum hidden_part part)
{
    int64_t n = 0;
    for (int i = 0; i < (int)part; i++)
        n += shape_part(s, (enum hidden_part)i);
    return n;
}

int64_t shape_mlp_numbers(const struct shape *s)
{
    int64_t most = (int64_t)shape_mlps_used(s) * s->ffn_dim;
    most = s->dense_dim > most ? s->dense_dim : most;
    most = s->late_ffn_dim > most ? s->late_ffn_dim : most;
    most = shape_part(s, PART_INPUTS) > most ? shape_part(s, PART_INPUTS) : most;
    return s->shared_dim > most ? s->shared_dim : most;
}

int shape_head_most(const struct shape *s)
{
    int most = 0;
    for (int i = 0; i < s->n_layers; i++)
        most = shape_head_dim(s, i) > most ? shape_head_dim(s, i) : most;
    return most;
}

int shape_kv_heads_most(const struct shape *s)
{
    int most = 0;
    for (int i = 0; i < s->n_layers; i++)
        most = shape_kv_heads(s, i) > most ? shape_kv_heads(s, i) : most;
    return most;
}

int64_t shape_kv_numbers_most(const struct shape *s)
{
    int64_t most = 0;
    for (int i = 0; i < s->n_layers; i++)
        most = shape_kv_numbers(s, i) > most ? shape_kv_numbers(s, i) : most;
    return most;
}

int64_t shape_before_numbers(const struct shape *s, int layer)
{
    const int64_t q = (int64_t)s->n_heads * shape_query_dim(s, layer);
    const int64_t gate = s->query_gate ? q * s->dim : 0;
    const int64_t in = s->latent_query > 0 ? s->latent_query : s->dim;
    const int64_t kv = shape_borrows_kv(s, layer) ? 0 : shape_kv_numbers(s, layer) * s->dim;
    int64_t n = q * in + gate + (shape_has_values(s, layer) || s->latent_key > 0 ? kv : kv / 2);
    n += (int64_t)s->latent_query * s->dim;
    return n + (int64_t)s->n_heads * s->latent_key * (s->head_dim - s->rope_dim);
}

int64_t shape_after_numbers(const struct shape *s, int layer)
{
    const int64_t heads = (int64_t)s->n_heads * shape_output_dim(s, layer);
    const int64_t n = (heads + 2 * (int64_t)s->layer_input) * s->dim;
    return n + (int64_t)s->n_heads * s->latent_value * (s->head_dim - s->rope_dim);
}

float shape_attn_scale(const struct shape *s)
{
    return s->attn_scale > 0 ? s->attn_scale : (float)(1.0 / sqrt((double)s->head_dim));
}

int shape_window(const struct shape *s)
{
    int least = 0;
    for (int i = 0; i < s->n_layers; i++)
        if (s->layer_window[i] > 0 && (least == 0 || s->layer_window[i] < least))
            least = s->layer_window[i];
    return least;
}

int shape_ropes(const struct shape *s)
{
    int n = s->rope_long > 0;
    for (int i = 0; i < s->n_layers; i++)
        n |= s->layer_rope[i] == 1;
    return 1 + n;
}

const char *shape_check(const struct shape *s)
{
    const char *bad = check_sizes(s);
    if (bad)
        return bad;
    if (!in_range(s->norm, NORM_RMS, NORM_LAYER))
        return "norm";
    if (!in_range(s->bare_norm, 0, s->norm == NORM_LAYER))
        return "bare_norm";
    if (!in_range(s->norm_place, NORM_BEFORE, NORM_AROUND))
        return "norm_place";
    if (!in_range(s->final_norm, 0, 1))
        return "final_norm";
    if (!(s->norm_eps >= 0 && s->norm_eps < 1))
        return "norm_eps";
    if (!in_range(s->act, ACT_RELU, ACT_XIELU) || (s->act == ACT_XIELU && s->gated))
        return "act";
    for (int i = 0; i < 2 * s->n_layers && s->act == ACT_XIELU; i++)
        if (!is_factor(s->layer_alpha[i / 2][i % 2]))
            return "layer_alpha";
    if (s->act_limit != 0 && (!is_factor(s->act_limit) || !s->gated))
        return "act_limit";
    if (!in_range(s->gated, 0, 1))
        return "gated";
    if (!in_range(s->qk_norm, QK_NORM_NONE, QK_NORM_TURNED))
        return "qk_norm";
    if (!in_range(s->branches, BRANCHES_SERIAL, BRANCHES_SHARE_NORM) ||
        (s->branches != BRANCHES_SERIAL &&
         (s->norm_place != NORM_BEFORE || s->branch_scale != 1 || s->mlp_scale != 1)))
        return "branches";
    if (!is_factor(s->embed_scale))
        return "embed_scale";
    if (!is_factor(s->branch_scale))
        return "branch_scale";
    if (s->attn_scale != 0 && !is_factor(s->attn_scale))
        return "attn_scale";
    if (!is_factor(s->logit_scale))
        return "logit_scale";
    if (s->attn_softcap != 0 && !is_factor(s->attn_softcap))
        return "attn_softcap";
    if (s->logit_softcap != 0 && !is_factor(s->logit_softcap))
        return "logit_softcap";
    if (!in_range(s->sinks, 0, 1))
        return "sinks";
    if (!in_range(s->position, POSITION_ROPE, POSITION_LEARNED))
        return "position";
    if (!in_range(s->position_offset, 0, OFFSET_MAX))
        return "position_offset";
    for (int i = 0; i < s->n_layers; i++)
        if (s->layer_window[i] != 0 && !in_range(s->layer_window[i], 2, CONTEXT_MAX))
            return "layer_window";
        else if (s->layer_scale[i] != 0 &&
                 (!is_factor(s->layer_scale[i]) || s->branches != BRANCHES_SERIAL))
            return "layer_scale";
    bad = check_state(s);
    if (!bad)
        bad = check_bare(s);
    if (!bad)
        bad = check_pairs(s);
    if (!bad)
        bad = check_experts(s);
    if (!bad)
        bad = check_latent(s);
    if (!bad)
        bad = check_wide(s);
    if (!bad)
        bad = check_lent(s);
    if (!bad)
        bad = check_beside(s);
    return bad ? bad : check_ropes(s);
}
