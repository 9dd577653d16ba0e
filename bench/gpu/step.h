/* bench/gpu/step.h - a job on a card that is not here: the ops of a decode step and of the prompts
 * that bench/gpu/model.h prices.
 *
 * Owns: which ops a step is made of, as engine/line/layer_decode.c launches them. Refuses: plans
 * (policy/) and what overlaps but the link beside the card. */
#ifndef BENCH_GPU_STEP_H
#define BENCH_GPU_STEP_H

#include "bench/gpu/model.h"
#include "policy/machine.h"

/* What the seconds of a step are spent on. SPENT_COPIES: tables that go to the device by the copy
 * engine, on the stream of the ops. */
enum spent { SPENT_MATMUL, SPENT_DECODE, SPENT_ATTENTION, SPENT_ROWS, SPENT_HEAD, SPENT_COPIES,
             N_SPENT };

struct card_job {
    const char *name;
    const char *config; // configs/NAME.cfg
    const char *card;
    const char *kv; // "full" or "h2o"
    double kv_share; // of prompt + new that a row keeps
    double published; // output tokens/s that others measured on an A100; 0: none
    enum dtype stored; // of the weights
    int rows, batches, prompt, new;
    int64_t device_memory; // that weights which stay may take; 0: all of them stay, and all KV
};

struct modelled {
    double s[N_SPENT]; // of one decode step of all batches
    double link_s;     // of what crosses the link in it
    double prompt_s;   // of the pass of prompts, the link beside it
    double weight_bytes, flops;
    int commands; // kernels and copies of a decode step
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

/* The rates that plans price a device by, of a layer of `shape` in bf16: its matmuls for a tile of
 * 1,024 tokens and for 64 rows, 64 rows that attend over 1,024 slots each, a prompt of 1,024
 * tokens, and an op that has next to no work. */
void step_rates(struct machine *to, const struct shape *shape, const struct gpu_card *card);

void step_price(struct modelled *to, const struct card_job *job, const struct shape *shape,
                const struct gpu_card *card);

#endif
