/* policy/walk.h - the walk of the line: the order of steps, and what happens around each.
 *
 * Owns: the order of steps, and of fetching, computing and retiring. The engine follows
 * walk_next(); predictions play the same events (policy/pass.c, policy/moves.c). Refuses: bytes and
 * seconds.
 *
 * Usually a layer is one part and the line is a zig-zag: all batches of a layer, then the next
 * layer, then the next pass. With two parts (attention and matmuls on different devices), part 0 of
 * batch b + 1 comes before part 1 of batch b, in decoder layers only. In a pipeline the batches are
 * in groups, and a pass takes one group, so that each rank has a group of its own to work on. */
#ifndef POLICY_WALK_H
#define POLICY_WALK_H

#include <stdint.h>

struct plan;

struct order {
    int layers;  // line layers: embedding, decoder layers, slices of the head
    int decoder; // of these, decoder layers (line layers 1 .. decoder)
    int parts;   // parts of a decoder layer: 1 or 2
    int batches; // of a pass
    int groups;  // 0, 1: every pass takes all batches; else pass p takes group p % groups
};

enum step_kind { STEP_EMBED, STEP_DECODE, STEP_SLICE };

struct step {
    int64_t n; // number on the line, from 0
    int64_t pass;
    int layer, part, batch;
    enum step_kind kind;
    int whole; // 1: the last part of its layer for this batch
};

/* Step n >= 0; the step after s. */
struct step step_at(const struct order *order, int64_t n);
void step_next(const struct order *order, struct step *s);
/* The number of the part 0 step of the layer and batch of s, a part 1 step: at most
 * ORDER_PARTS_APART earlier. */
#define ORDER_PARTS_APART 3
int64_t order_part0(const struct order *order, struct step s);
/* The first batch of a pass; the others follow it. */
static inline int order_first(const struct order *order, int64_t pass)
{
    return order->groups > 1 ? (int)(pass % order->groups) * order->batches : 0;
}
/* S: steps of one pass. */
int64_t order_pass_steps(const struct order *order);
/* D: fewest steps from a write of a batch's hidden states to their next read. */
int64_t order_hidden_distance(const struct order *order);

/* Iteration n of the walk: RETIRE steps until at most a window of steps is queued; PASS_END or
 * GO_ON; fetch for the steps ahead; COMPUTE step n. Iterations before the first step only fetch. */
enum walk_event {
    WALK_RETIRE,        // wait for the step; its data moves home or is freed
    WALK_PASS_END,      // at the first step of a pass, except step 0
    WALK_GO_ON,         // at any other step
    WALK_FETCH_WEIGHTS, // weights of the step's layer, for all batches
    WALK_FETCH_KV,      // KV of the step's layer and batch
    WALK_FETCH_HIDDEN,  // hidden states of the step's batch
    WALK_COMPUTE        // queue the step
};

struct walk {
    const struct plan *plan; // borrowed
    struct order order;
    int64_t n;                                        // iteration
    struct step retire, weights, kv, hidden, compute; // the next step of each event
    int64_t framed;       // steps between n and `weights`, both excluded, that need a frame
    enum walk_event next; // the next event to try
};

/* Starts a plan's line at step `from`: earlier steps are neither fetched nor retired. */
void walk_begin(struct walk *w, const struct plan *plan, int64_t from);
/* The next event and its step; for PASS_END and GO_ON the step that is computed next. */
enum walk_event walk_next(struct walk *w, struct step *s);
/* To end the walk: 1 with the next computed step that is not retired, or 0. */
int walk_left(struct walk *w, struct step *s);

#endif
