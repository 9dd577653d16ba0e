/* policy/attention.c - see attention.h. */
#include "policy/attention.h"

#include "policy/rates.h"

/* A state is updated in f32 without reuse of what is read: this much slower than matmuls. A guess
 * until it is measured per machine; the bytes of decode, which are exact, are the larger part. */
#define STATE_SLOWER 8

/* Where positions are ranks: bytes that rotating a slot's keys writes and reads, beyond those of
 * attention. Measured rates of rows include them. */
static double turned_bytes(const struct setting *set, int kind)
{
    const struct shape *s = set->shape;
    const int wide = evict_kind(set->evict, kind).wide;
    if (set->evict->positions != EVICT_POSITIONS_SLOT)
        return 0;
    return 2.0 * 4 * shape_kv_heads_of(s, wide) * shape_head_dim_of(s, wide);
}

/* FLOPs of a pair of query and key. */
static double pair_flops(const struct setting *set, int kind)
{
    return 4.0 * set->shape->n_heads *
           shape_head_dim_of(set->shape, evict_kind(set->evict, kind).wide);
}

/* Layers with a state: all of it is read and written once a span, and updated by each token. */
static double state_s(const struct setting *set, const struct load *l, int kind, double bytes_rate,
                      double flops_rate)
{
    const struct kv_load *kv = &l->kv[kind];
    const double pages = (double)(kv->pages_read + kv->pages_filled + kv->pages_over);
    const double tokens = (double)(l->prompt_tokens + l->forced_tokens);
    const double flops = 8.0 * shape_state_v(set->shape) * set->shape->state_k_dim;
    return max_d(rate(pages * (double)plan_page_bytes(set->costs, kind), bytes_rate),
                 rate(tokens * flops, flops_rate));
}

static int is_state(const struct setting *set, int kind)
{
    return evict_kind(set->evict, kind).state > 0;
}

double attention_cpu_s(const struct setting *set, const struct load *l, int kind)
{
    const struct kv_load *kv = &l->kv[kind];
    if (is_state(set, kind))
        return state_s(set, l, kind, set->machine->ram_read.value,
                       set->machine->matmul_flops.value / STATE_SLOWER);
    const struct model_rates *rates = &set->costs->rates;
    double slot = (double)plan_page_bytes(set->costs, kind) / PAGE_SLOTS;
    double flops = pair_flops(set, kind) * (double)kv->prompt_pairs;
    double read =
        set->costs->attend_rate > 0 ? set->costs->attend_rate : set->machine->ram_read.value;
    double flops_rate = set->machine->prompt_flops.value > 0 ? set->machine->prompt_flops.value
                                                             : set->machine->matmul_flops.value;
    double prompts_s =
        model_prompts_s(rates, l->prompts, (double)l->prompt_tokens, (double)kv->prompt_pairs);
    if (rates->pair_s <= 0)
        prompts_s = rate(flops, flops_rate);
    if (rates->rows_s[0] > 0)
        return model_attend_s(rates, (double)l->forced_tokens, (double)kv->slots) + prompts_s;
    return rate((double)kv->slots * slot, read) +
           rate((double)kv->slots * turned_bytes(set, kind), set->machine->ram_read.value) +
           prompts_s;
}

double attention_device_s(const struct setting *set, const struct load *l, int kind)
{
    const struct kv_load *kv = &l->kv[kind];
    if (is_state(set, kind))
        return state_s(set, l, kind, set->machine->device_read.value,
                       set->machine->device_flops.value / STATE_SLOWER);
    const struct machine *m = set->machine;
    double slot = (double)plan_page_bytes(set->costs, kind) / PAGE_SLOTS, slots = (double)kv->slots;
    return rate(slots * slot, machine_device_attend_read(m)) +
           rate(slots * turned_bytes(set, kind), m->device_read.value) +
           rate(pair_flops(set, kind) * (double)kv->prompt_pairs, machine_device_attend_flops(m));
}
