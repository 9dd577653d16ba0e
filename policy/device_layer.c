/* policy/device_layer.c - see device_layer.h. */
#include "policy/device_layer.h"

#include "policy/rates.h"

#include <math.h>

double device_matmul_s(const struct machine *m, double bytes, double flops, double tokens, int tile)
{
    return max_d(rate(ceil(tokens / tile) * bytes, m->device_read.value),
                 rate(tokens * flops, m->device_flops.value));
}

/* Ops that the engine queues per tile of tokens in a layer (engine/line/layer_decode.c): two norms,
 * Q K V, attention, output, both halves of the MLP, tables; plus those that only some shapes have.
 * Experts add a router, its choice and a sum; an input of the layer two matrices, a gate, a norm
 * and a sum. */
static int layer_ops(const struct shape *s)
{
    const int norms = s->qk_norm != QK_NORM_NONE, rope = s->position == POSITION_ROPE;
    return 8 + 2 * norms + 2 * rope + shape_act_apart(s) + (s->n_experts > 0 ? 3 : 0) +
           (s->expert_dim > 0 ? 3 : 0) + (s->layer_input > 0 ? 5 : 0);
}

double device_launches_s(const struct setting *set)
{
    return set->machine->launch_s.value * layer_ops(set->shape);
}

/* Bytes per token that ops other than matmuls read and write: two norms, one of q and k, rope,
 * gates. Each expert of a token reads a row in bf16 and writes one in f32; the rows are summed. */
static double row_bytes(const struct shape *s)
{
    const double q_k = ((double)s->n_heads + shape_kv_heads(s, 0)) * shape_head_dim(s, 0);
    const double used = shape_mlps_used(s), experts = s->n_experts > 0 ? used : 0;
    const int turned = (s->qk_norm != QK_NORM_NONE) + (s->position == POSITION_ROPE);
    return 4 * (4.0 * s->dim + 2 * turned * q_k +
                (2 * shape_act_apart(s) + s->gated) * used * s->ffn_dim +
                4 * experts * ((double)shape_expert_dim(s) + s->ffn_dim));
}

/* Only experts that a tile's tokens choose are read. Their matmuls are timed apart from the layer's
 * others: time limited by bytes is not hidden by time limited by FLOPs. */
struct device_layer device_layer_s(const struct setting *set, double tokens, int tile)
{
    const struct shape *s = set->shape;
    const struct machine *m = set->machine;
    const double mlp = (s->gated ? 3.0 : 2.0) * s->ffn_dim * shape_expert_dim(s);
    const double qkv = (double)shape_before_numbers(s, 0), out = (double)shape_after_numbers(s, 0);
    const double mlps = shape_mlps(s) * mlp, used = shape_mlps_used(s) * mlp;
    const double met = 1 - pow(1 - used / mlps, min_d(tokens, tile));
    const double tiles = (double)set->weights->tile_bytes[1];
    const double bytes = tiles > 0 ? tiles : (double)set->weights->layer_bytes[1];
    const double number = bytes / (qkv + out + mlps);
    const double other_s = device_launches_s(set) * ceil(tokens / tile) +
                           rate(tokens * row_bytes(s), m->device_read.value);
    return (struct device_layer){
        .before = device_matmul_s(m, number * qkv, 2 * qkv, tokens, tile) + other_s / 2,
        .after = device_matmul_s(m, number * out, 2 * out, tokens, tile) +
                 device_matmul_s(m, number * mlps * met, 2 * used, tokens, tile) + other_s / 2};
}
