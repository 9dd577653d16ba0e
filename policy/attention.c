/* policy/attention.c - see attention.h. */
#include "policy/attention.h"

#include "policy/rates.h"

/* Where positions are ranks: bytes that rotating a slot's keys writes and reads, beyond those of
 * attention. Measured rates of rows include them. */
static double turned_bytes(const struct setting *set)
{
    const struct shape *s = set->shape;
    if (set->evict->positions != EVICT_POSITIONS_SLOT)
        return 0;
    return 2.0 * 4 * s->n_kv_heads * s->head_dim;
}

double attention_cpu_s(const struct setting *set, const struct load *l, int kind)
{
    const struct kv_load *kv = &l->kv[kind];
    const struct shape *s = set->shape;
    const struct model_rates *rates = &set->costs->rates;
    double slot = (double)set->costs->kv_page_bytes / PAGE_SLOTS;
    double flops = 4.0 * s->n_heads * s->head_dim * (double)kv->prompt_pairs;
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
           rate((double)kv->slots * turned_bytes(set), set->machine->ram_read.value) + prompts_s;
}

double attention_device_s(const struct setting *set, const struct kv_load *kv)
{
    const struct machine *m = set->machine;
    double slot = (double)set->costs->kv_page_bytes / PAGE_SLOTS, slots = (double)kv->slots;
    double pair_flops = 4.0 * set->shape->n_heads * set->shape->head_dim;
    return rate(slots * slot, machine_device_attend_read(m)) +
           rate(slots * turned_bytes(set), m->device_read.value) +
           rate(pair_flops * (double)kv->prompt_pairs, machine_device_attend_flops(m));
}
