/* policy/order.c - see order.h. Pure arithmetic: no state, no loop over steps. */
#include "policy/order.h"

int64_t order_pass_steps(const struct order *order)
{
    int64_t single = order->layers - order->decoder;
    return (int64_t)order->batches * (single + (int64_t)order->decoder * order->parts);
}

/* Step i of a two-part layer: (0,0) (0,1)(1,0) (0,2)(1,1) ... (1,B-1). */
static void two_part_at(int i, int batches, struct step *s)
{
    if (i == 0 || i == 2 * batches - 1) {
        s->part = i == 0 ? 0 : 1;
        s->batch = i == 0 ? 0 : batches - 1;
        return;
    }
    s->part = i % 2 == 1 ? 0 : 1;
    s->batch = i % 2 == 1 ? (i + 1) / 2 : i / 2 - 1;
}

struct step order_at(const struct order *order, int64_t n)
{
    if (n < 0)
        return (struct step){.n = n, .pass = -1};
    int64_t pass_steps = order_pass_steps(order);
    struct step s = {.n = n, .pass = n / pass_steps};
    int64_t i = n % pass_steps;
    int64_t decoder_first = order->batches; // the embedding stands before the decoder layers
    int64_t layer_steps = (int64_t)order->batches * order->parts;
    int64_t decoder_last = decoder_first + layer_steps * order->decoder;
    if (i < decoder_first) {
        s.batch = (int)i;
    } else if (i < decoder_last) {
        s.layer = 1 + (int)((i - decoder_first) / layer_steps);
        int in_layer = (int)((i - decoder_first) % layer_steps);
        if (order->parts == 2)
            two_part_at(in_layer, order->batches, &s);
        else
            s.batch = in_layer;
    } else {
        s.layer = 1 + order->decoder + (int)((i - decoder_last) / order->batches);
        s.batch = (int)((i - decoder_last) % order->batches);
    }
    return s;
}

int64_t order_part0(const struct order *order, struct step s)
{
    int last = s.batch == order->batches - 1;
    return s.n - (order->batches == 1 ? 1 : last || s.batch == 0 ? 2 : 3);
}

int64_t order_hidden_distance(const struct order *order)
{
    if (order->parts == 1)
        return order->batches;
    /* Part 0 of batch b is followed by part 1 of the same batch 2 steps later (1 with one batch),
     * and part 1 of batch 0 stands at 2, part 0 of the next layer's batch 0 at 2B: the first is
     * nearer. */
    return order->batches == 1 ? 1 : 2;
}
