/* bench/gpu/step.h - the ops of a decode step and of the prompts, for a job on a card that is not
 * in this machine, priced by bench/gpu/model.h.
 *
 * Owns: which ops a step has, as launched by engine/line/layer_decode.c. Refuses: plans (policy/),
 * and overlap except of the link with the card. */
#ifndef BENCH_GPU_STEP_H
#define BENCH_GPU_STEP_H

#include "bench/gpu/model.h"
#include "policy/machine.h"

/* Parts of a step. SPENT_COPIES: tables copied to the device by the copy engine, on the stream of
 * the ops. */
enum spent { SPENT_MATMUL, SPENT_DECODE, SPENT_ATTENTION, SPENT_ROWS, SPENT_HEAD, SPENT_COPIES,
             N_SPENT };

struct card_job {
    const char *name;
    const char *config; // configs/NAME.cfg
    const char *card;
    const char *kv; // "full" or "h2o"
    double kv_share; // share of prompt + new that a row keeps
    double published; // published output tokens/s on an A100; 0: none
    enum dtype stored; // of the weights
    int rows, batches, prompt, new;
    int64_t device_memory; // for resident weights; 0: all weights and all KV are resident
};

struct modelled {
    double s[N_SPENT]; // per decode step of all batches
    double link_s;     // of the link per step
    double prompt_s;   // of the pass of prompts, with the link in parallel
    double weight_bytes, flops;
    int commands; // kernels and copies per decode step
};

static inline double step_card_s(const struct modelled *s)
{
    double sum = 0;
    for (int i = 0; i < N_SPENT; i++)
        sum += s->s[i];
    return sum;
}
static inline double step_s(const struct modelled *s)
{
    const double card = step_card_s(s);
    return card > s->link_s ? card : s->link_s;
}

/* The rates that plans use to price a device, of a layer of `shape` in bf16: its matmuls for a tile
 * of 1,024 tokens and for 64 rows, attention of 64 rows over 1,024 slots each, a prompt of 1,024
 * tokens, and an op with almost no work. */
void step_rates(struct machine *to, const struct shape *shape, const struct gpu_card *card);

void step_price(struct modelled *to, const struct card_job *job, const struct shape *shape,
                const struct gpu_card *card);

#endif
