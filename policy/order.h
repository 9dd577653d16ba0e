/* policy/order.h - the line: step n is (pass, layer, part, batch) by arithmetic on n alone.
 *
 * Usually a layer is one part and the line is the plain zig-zag: all batches of a layer, then the
 * next layer, then the next pass. With two parts (attention on another device than the matmuls)
 * part 0 of batch b + 1 stands before part 1 of batch b, in decoder layers only. */
#ifndef POLICY_ORDER_H
#define POLICY_ORDER_H

#include <stdint.h>

struct order {
    int layers;  // line layers: embedding, decoder layers, slices of the head
    int decoder; // of these, decoder layers (line layers 1 .. decoder)
    int parts;   // parts of a decoder layer: 1 or 2
    int batches;
};

struct step {
    int64_t n;    // place on the line
    int64_t pass; // -1: off the line (n < 0)
    int layer, part, batch;
};

struct step order_at(const struct order *order, int64_t n);
/* The step of part 0 of the layer and batch of a step that is part 1: at most ORDER_PARTS_APART
 * before it. */
#define ORDER_PARTS_APART 3
int64_t order_part0(const struct order *order, struct step s);
/* S: steps of one pass. */
int64_t order_pass_steps(const struct order *order);
/* D: fewest steps from a write of a batch's hidden states to their next read. */
int64_t order_hidden_distance(const struct order *order);

#endif
