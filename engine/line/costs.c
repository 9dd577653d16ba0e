/* engine/line/costs.c - sizes of the model and of the engine's own tables, as input of the plan. */
#include "engine/line/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of a layer when decoded to tiles; 0 when the layer is already stored as tiles. */
static int64_t tile_bytes(const struct model_layer *l, struct device *device, enum compute compute)
{
    struct model_layer tiles;
    model_layer_tiles(l, device, compute, &tiles);
    for (int role = 0; role < N_ROLES; role++)
        if (tiles.tensors[role].n > 0 && (tiles.tensors[role].dtype != l->tensors[role].dtype ||
                                          tiles.tensors[role].layout != WEIGHT_PANELS))
            return tiles.n_bytes;
    return 0;
}

/* Expert bytes that a pass may leave unread: see plan_experts_share(). */
static void experts_info(const struct model *model, struct weights_info *w)
{
    const struct shape *s = &model->shape;
    double matrices = 0, n_bytes = 0;
    w->n_experts = s->n_experts;
    w->n_experts_used = s->n_experts_used;
    for (int layer = 1; layer <= s->n_layers && s->n_experts > 0; layer++) {
        const struct model_layer *l = &model->layers[layer];
        w->expert_bytes[layer] = home_experts_bytes(l);
        for (int role = 0; role < N_ROLES; role++) {
            const struct model_tensor *t = &l->tensors[role];
            if (t->n == 0 || role_kind(role) != ROLE_IS_PANELS || !role_is_experts(s, role))
                continue;
            matrices += s->n_experts;
            n_bytes += (double)role_bytes(role, t->dtype, t->n, t->k);
        }
    }
    w->expert_overlap = n_bytes > 0 ? 1 + PIECE_BYTES * matrices / n_bytes : 1;
}

/* Weights that one token uses in the MLPs of a layer, router included. */
static int64_t mlp_numbers(const struct shape *s, int layer)
{
    const int64_t matrices = s->gated ? 3 : 2;
    if (s->layer_bare[layer])
        return 0;
    if (!shape_has_experts(s, layer))
        return matrices * s->dim * (s->n_experts > 0 ? s->dense_dim : shape_ffn_dim(s, layer));
    return s->dim * (matrices * (int64_t)s->shared_dim + s->n_experts + s->shared_gate +
                     2 * (int64_t)s->expert_dim) +
           matrices * s->n_experts_used * s->ffn_dim * shape_expert_dim(s);
}

void engine_weights_info(const struct model *model, struct device *device, enum compute compute,
                         struct weights_info *w)
{
    const struct shape *s = &model->shape;
    memset(w, 0, sizeof *w);
    w->n_layers = model->n_layers;
    w->n_decoder = s->n_layers;
    w->n_params = model->n_params;
    w->made_here = model->on_demand;
    for (int layer = 0; layer < model->n_layers; layer++)
        w->layer_bytes[layer] = model->layers[layer].n_bytes;
    experts_info(model, w);
    for (int layer = 0; layer < model->n_layers; layer++) {
        const struct model_layer *l = &model->layers[layer];
        w->must_decode |= model_must_decode(l, device, compute);
        if (layer > 0 || model_must_decode(l, device, compute))
            w->tile_bytes[layer] = tile_bytes(l, device, compute);
    }
    w->flops_per_token =
        2 * ((int64_t)s->vocab * s->embed_dim + shape_part(s, PART_INPUTS) * s->dim);
    const int64_t state = s->dim * (shape_state_qkv(s) + 2 * (int64_t)shape_state_v(s)) +
                          4 * (int64_t)shape_state_v(s) * s->state_k_dim;
    for (int layer = 0; layer < s->n_layers; layer++) {
        const int64_t attention = shape_before_numbers(s, layer) + shape_after_numbers(s, layer);
        w->flops_per_token +=
            2 * ((s->layer_state[layer] ? state : attention) + mlp_numbers(s, layer));
    }
    w->embed_row_bytes = model->layers[0].n_bytes > 0 ? model_record_bytes(&model->layers[0]) : 0;
    w->embed_rest_bytes = model->layers[0].n_bytes - gather_rest_offset(model);
}

/* Formats may differ between layers: returns the layer whose size is nearest to the mean. If a
 * model has layers of several kinds, only the more frequent ones count. */
static const struct model_layer *mean_layer(const struct model *model)
{
    const struct shape *s = &model->shape;
    const struct model_layer *best = NULL;
    int64_t sum = 0, mean;
    const int n = s->n_layers, states = 2 * shape_states(s) >= n;
    int with = 0;
    for (int i = 0; i < n; i++) {
        sum += model->layers[1 + i].n_bytes;
        with += shape_has_experts(s, i);
    }
    mean = sum / n;
    for (int i = 0; i < n; i++) {
        const struct model_layer *l = &model->layers[1 + i];
        if (shape_has_experts(s, i) == (2 * with >= n) && s->layer_state[i] == states &&
            (!best || llabs(l->n_bytes - mean) < llabs(best->n_bytes - mean)))
            best = l;
    }
    return best;
}

static struct probe_tensor matrix_of(const struct model_tensor *t, enum compute compute, int joins)
{
    return (struct probe_tensor){.stored = t->dtype,
                                 .tile = model_tile_dtype(compute, t->dtype),
                                 .n = t->n,
                                 .k = t->k,
                                 .joins = joins};
}

/* Activations of one token between the matrices of a layer's MLPs. */
static int numbers_of_mlps(const struct shape *s, const struct model_layer *l)
{
    if (model_has(l, ROLE_DENSE_UP))
        return s->dense_dim;
    return l->tensors[ROLE_UP].n / shape_mlps(s) * shape_mlps_used(s) + s->shared_dim;
}

void engine_model_ops(const struct model *model, enum compute compute, enum kv_format kv_format,
                      const struct evict *evict, struct probe_model *p)
{
    static const struct {
        enum tensor_role role;
        int joins; // 1: same op as the call before, as in layer_decode.c
    } calls[] = {
        {ROLE_STATE_Q, 0},     {ROLE_STATE_K, 1},    {ROLE_STATE_V, 1},     {ROLE_STATE_Z, 0},
        {ROLE_STATE_O, 0},     {ROLE_Q_A, 0},        {ROLE_Q, 0},           {ROLE_K, 1},
        {ROLE_V, 1},           {ROLE_LATENT_K, 0},   {ROLE_LATENT_V, 0},    {ROLE_O, 0},
        {ROLE_GATE, 0},        {ROLE_UP, 1},         {ROLE_DOWN, 0},        {ROLE_DENSE_GATE, 0},
        {ROLE_DENSE_UP, 1},    {ROLE_DENSE_DOWN, 0}, {ROLE_SHARED_GATE, 0}, {ROLE_SHARED_UP, 1},
        {ROLE_SHARED_DOWN, 0}, {ROLE_INPUT_GATE, 0}, {ROLE_INPUT_OUT, 0},   {ROLE_EXPERT_IN, 0},
        {ROLE_EXPERT_OUT, 0}};
    const struct model_layer *l = mean_layer(model);
    const struct model_tensor *head = &model->layers[model->shape.n_layers + 1].tensors[ROLE_HEAD];
    const struct shape *s = &model->shape;
    const int at = (int)(l - model->layers) - 1;
    *p = (struct probe_model){
        .head = matrix_of(head, compute, 0),
        .beside = {.dim = s->dim,
                   .n_heads = s->n_heads,
                   .n_kv_heads = shape_kv_heads(s, at),
                   .head_dim = shape_head_dim(s, at),
                   .ffn_dim = numbers_of_mlps(s, l),
                   .rope_dim = s->position == POSITION_ROPE ? shape_rope_dim(s, at) : 0,
                   .gated = s->gated,
                   .keys_only = s->latent_key > 0,
                   .kv_format = kv_format,
                   .evict = *evict}};
    p->head.n = (int)min_i64(head->n, HEAD_TILE);
    for (int i = 0; i < (int)(sizeof calls / sizeof *calls); i++) {
        if (!model_has(l, calls[i].role))
            continue;
        CHECK(p->n_layer < PROBE_TENSORS);
        struct probe_tensor *t = &p->layer[p->n_layer++];
        const struct model_tensor *own = &l->tensors[calls[i].role];
        *t = matrix_of(own, compute, calls[i].joins && l->tensors[calls[i - 1].role].k == own->k);
        if (role_is_experts(s, calls[i].role)) {
            t->experts = s->n_experts;
            t->used = s->n_experts_used;
        }
    }
}

int64_t engine_ring_layout(const struct shape *s, int wide, enum kv_format format,
                           struct kv_layout *ring)
{
    model_kv_layout(s, wide, KV_Q8, ring);
    return format == KV_MIXED ? KV_RING_PAGES * ring->page_bytes : 0;
}

void engine_prompt_layout(const struct shape *s, int wide, enum compute compute,
                          struct kv_layout *prompt)
{
    kv_layout_init(prompt, compute == COMPUTE_F32 ? KV_F32 : KV_BF16, shape_kv_heads_of(s, wide),
                   shape_head_dim_of(s, wide));
}

/* Full pages of a layer that one token overwrites. Heads that choose victims independently hit
 * different pages; the page that is being filled stays near the compute. */
static double pages_written(int heads, int64_t slots_max, const struct evict *evict)
{
    double slots = (double)max_i64(slots_max, 1);
    double pages = ceil(slots / PAGE_SLOTS), full = floor(slots / PAGE_SLOTS);
    int alike = evict->scope == EVICT_SCOPE_LAYER || !evict_policy_scores(evict->policy);
    double written = pages * (1 - pow(1 - 1 / pages, alike ? 1 : heads));
    return written * full * PAGE_SLOTS / slots;
}

struct cross_bytes engine_cross_bytes(struct device *device, enum compute compute,
                                      enum kv_format kv_format, const struct evict *evict)
{
    struct cross_bytes bytes = {4, 4};
    if (compute != COMPUTE_F32 && kv_format == KV_BF16 && evict->positions != EVICT_POSITIONS_SLOT)
        bytes.in = 2;
    if (compute == COMPUTE_BF16 && !device->api->reads(device, compute, DTYPE_BF16).as_f16)
        bytes.out = 2;
    return bytes;
}

void engine_costs(const struct model *model, struct device *device, const struct ops *ops,
                  enum kv_format kv_format, const struct work *work, const struct evict *evict,
                  struct plan_costs *costs)
{
    const struct shape *s = &model->shape;
    costs->measure = engine_measure;
    costs->tile_bytes = layer_tile_bytes;
    costs->kv_ring_bytes = costs->prompt_page_bytes = 0;
    for (int kind = KV_MOST; kind < evict_kinds(evict); kind++) {
        const int wide = evict_kind(evict, kind).wide;
        struct kv_layout kv, prompt, ring;
        model_kv_layout(s, wide, kv_page_format(kv_format), &kv);
        engine_prompt_layout(s, wide, ops->compute, &prompt);
        if (kind == KV_MOST)
            costs->kv_page_bytes = kv.page_bytes;
        costs->kind_page_bytes[kind] = kv.page_bytes == costs->kv_page_bytes ? 0 : kv.page_bytes;
        costs->prompt_page_bytes = max_i64(costs->prompt_page_bytes, prompt.page_bytes);
        costs->kv_ring_bytes =
            max_i64(costs->kv_ring_bytes, engine_ring_layout(s, wide, kv_format, &ring));
        int64_t slots = kind == KV_MOST ? work->slots_max : work->slots_kind[kind];
        costs->kv_pages_written[kind] =
            evict_in_turn(evict, kind) ? 0 : pages_written(kv.n_kv_heads, slots, evict);
    }
    costs->cross = engine_cross_bytes(device, ops->compute, kv_format, evict);
    const struct device_scratch *scratch = device->api->scratch;
    const int64_t slots_cap = round_up(max_i64(work->slots_max, 1), PAGE_SLOTS);
    for (int i = 0; i < PLAN_TILES; i++) {
        const int tile = PLAN_TILE_TOKENS << i;
        costs->scratch_bytes[i] =
            layer_scratch_bytes(scratch, ops, model, tile, work->prompt_max, slots_cap, evict);
        costs->route_bytes[i] =
            s->n_experts > 0 ? route_bytes(tile, s->n_experts, s->n_experts_used) : 0;
    }
    costs->attend_row_bytes = layer_rows_bytes(scratch, ops, model, 1, slots_cap, evict);
    costs->attend_rows_bytes =
        layer_rows_bytes(scratch, ops, model, PLAN_BATCH_MAX, slots_cap, evict);
    costs->attend_bytes =
        layer_rows_bytes(device_cpu()->api->scratch, ops, model, 1, slots_cap, evict);
}
