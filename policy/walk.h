/* policy/walk.h - the walk of the line: which step comes when, and what happens around it.
 *
 * Owns: the order of steps, and the order of fetches, computing and retiring. The engine does what
 * walk_next() says; predictions play the same events (policy/pass.c, policy/moves.c). Refuses:
 * bytes and seconds.
 *
 * Usually a layer is one part and the line is a plain zig-zag: all batches of a layer, then the
 * next layer, then the next pass. With two parts (attention on another device than the matmuls)
 * part 0 of batch b + 1 comes before part 1 of batch b, in decoder layers only. */
#ifndef POLICY_WALK_H
#define POLICY_WALK_H

#include <stdint.h>

struct plan;

struct order {
    int layers;  // line layers: embedding, decoder layers, slices of the head
    int decoder; // of these, decoder layers (line layers 1 .. decoder)
    int parts;   // parts of a decoder layer: 1 or 2
    int batches;
};

enum step_kind { STEP_EMBED, STEP_DECODE, STEP_SLICE };

struct step {
    int64_t n; // place on the line, from 0
    int64_t pass;
    int layer, part, batch;
    enum step_kind kind;
    int whole; // 1: the last part of its layer, so that the layer of this batch is done
};

/* Step n >= 0, and the step after s. */
struct step step_at(const struct order *order, int64_t n);
void step_next(const struct order *order, struct step *s);
/* The step of part 0 of the layer and batch of a step that is part 1: at most ORDER_PARTS_APART
 * before it. */
#define ORDER_PARTS_APART 3
int64_t order_part0(const struct order *order, struct step s);
/* S: steps of one pass. */
int64_t order_pass_steps(const struct order *order);
/* D: fewest steps from a write of a batch's hidden states to their next read. */
int64_t order_hidden_distance(const struct order *order);

/* Iteration n of the walk is: RETIRE steps until at most a window of steps is queued; PASS_END or
 * GO_ON; fetch what the steps ahead need; COMPUTE step n. The iterations before the first step only
 * fetch. */
enum walk_event {
    WALK_RETIRE,        // the step is waited for; what it held goes home or is free
    WALK_PASS_END,      // the iteration of the first step of a pass, but for step 0
    WALK_GO_ON,         // any other iteration
    WALK_FETCH_WEIGHTS, // of the step's layer, for all batches
    WALK_FETCH_KV,      // of the step's layer and batch
    WALK_FETCH_HIDDEN,  // of the step's batch
    WALK_COMPUTE        // the step is queued
};

struct walk {
    struct order order;
    int window, ahead_weights, ahead_state, ahead_hidden; // the plan's
    int64_t n;                                            // iteration
    struct step retire, weights, kv, hidden, compute;     // the next step of each event
    enum walk_event next;                                 // to look at
};

/* Of a plan's line from step `from` on: the steps before are neither fetched nor retired. */
void walk_begin(struct walk *w, const struct plan *plan, int64_t from);
/* The next event, and its step; of PASS_END and GO_ON the step that is computed next. */
enum walk_event walk_next(struct walk *w, struct step *s);
/* Where the walk is left: 1 with the next step that was computed and is not retired, or 0. */
int walk_left(struct walk *w, struct step *s);

#endif
