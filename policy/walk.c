/* policy/walk.c - see walk.h. */
#include "policy/walk.h"

#include "kernels/base/num.h"
#include "policy/plan.h"

int64_t order_pass_steps(const struct order *order)
{
    int64_t single = order->layers - order->decoder;
    return (int64_t)order->batches * (single + (int64_t)order->decoder * order->parts);
}

static int parts_of(const struct order *order, int layer)
{
    return layer >= 1 && layer <= order->decoder ? order->parts : 1;
}

/* Sets s to the first step of layer s->layer. */
static void begin_layer(const struct order *order, struct step *s)
{
    s->part = 0;
    s->batch = order_first(order, s->pass);
    s->kind = s->layer == 0 ? STEP_EMBED : s->layer <= order->decoder ? STEP_DECODE : STEP_SLICE;
    s->whole = parts_of(order, s->layer) == 1;
}

/* Order in a layer of two parts: (0,0) (0,1)(1,0) (0,2)(1,1) ... (1,B-1). 0: the layer ends. */
static int next_of_two(const struct order *order, struct step *s)
{
    const int first = order_first(order, s->pass), last = order->batches - 1,
              batch = s->batch - first;
    if (s->part == 1 && batch == last)
        return 0;
    if (s->part == 0 && batch == 0)
        s->batch = first + (last > 0);
    else
        s->batch = first + (s->part == 0 ? batch - 1 : batch + 1 + (batch + 1 < last));
    s->part = s->part == 0 ? batch > 0 || last == 0 : batch + 1 == last;
    s->whole = s->part;
    return 1;
}

void step_next(const struct order *order, struct step *s)
{
    s->n++;
    if (parts_of(order, s->layer) == 2) {
        if (next_of_two(order, s))
            return;
    } else if (++s->batch < order_first(order, s->pass) + order->batches) {
        return;
    }
    if (++s->layer == order->layers) {
        s->layer = 0;
        s->pass++;
    }
    begin_layer(order, s);
}

struct step step_at(const struct order *order, int64_t n)
{
    int64_t steps = order_pass_steps(order);
    struct step s = {.pass = n / steps};
    s.n = s.pass * steps;
    for (;;) { // layer by layer, then step by step
        int64_t of_layer = (int64_t)order->batches * parts_of(order, s.layer);
        if (n - s.n < of_layer)
            break;
        s.n += of_layer;
        s.layer++;
    }
    begin_layer(order, &s);
    while (s.n < n)
        step_next(order, &s);
    return s;
}

int64_t order_part0(const struct order *order, struct step s)
{
    int batch = s.batch - order_first(order, s.pass), last = batch == order->batches - 1;
    return s.n - (order->batches == 1 ? 1 : last || batch == 0 ? 2 : 3);
}

int64_t order_hidden_distance(const struct order *order)
{
    if (order->parts == 1)
        return order->batches;
    /* Part 1 of batch b comes 2 steps after part 0 (1 step with one batch). From part 1 of batch 0
     * (step 2 of the layer) to part 0 of the next layer (step 2B) is never shorter. */
    return order->batches == 1 ? 1 : 2;
}

void walk_begin(struct walk *w, const struct plan *plan, int64_t from)
{
    *w = (struct walk){.plan = plan, .order = plan_order(plan)};
    w->compute = w->retire = w->weights = w->kv = w->hidden = step_at(&w->order, from);
    w->n = from - max_i64(plan->ahead_state, plan->ahead_hidden);
}

/* Returns 1 and advances the cursor if its step is at most `at`. */
static int reach(const struct walk *w, int64_t at, struct step *cursor, struct step *s)
{
    if (cursor->n > at)
        return 0;
    *s = *cursor;
    step_next(&w->order, cursor);
    return 1;
}

/* The newest step that must be retired before iteration n: all but a full window. A batch that
 * begins a pass also needs the tokens that its last slice sampled, which in a pipeline is several
 * passes ago. */
static int64_t newest(const struct walk *w)
{
    int begins = w->compute.n == w->n && w->compute.kind == STEP_EMBED && w->order.groups <= 1;
    return w->n - (begins ? min_i64(w->plan->window, w->order.batches) : w->plan->window);
}

static int begins_layer(const struct walk *w, const struct step *s)
{
    return s->batch == order_first(&w->order, s->pass) && s->part == 0;
}

static int ends_pass(const struct walk *w)
{
    const struct step *s = &w->compute;
    return s->n == w->n && s->n > 0 && s->kind == STEP_EMBED && begins_layer(w, s);
}

/* Returns 1 and advances the cursor if weights may be fetched for its step: the step is computed
 * now, or at most ahead_weights framed steps come up to it. The fetch for the next pass follows the
 * retirement of the layer's last step in this one, or it would find these weights and skip them. */
static int reach_weights(struct walk *w, struct step *s)
{
    const struct step *next = &w->weights;
    const int framed = plan_layer_framed(w->plan, next->layer) && next->n > w->n;
    const int64_t own = (int64_t)w->order.batches * parts_of(&w->order, next->layer);
    if (framed && w->framed >= w->plan->ahead_weights)
        return 0;
    if (next->n > w->n && begins_layer(w, next) &&
        next->n - order_pass_steps(&w->order) + own > w->retire.n)
        return 0;
    w->framed += framed;
    *s = w->weights;
    step_next(&w->order, &w->weights);
    return 1;
}

/* Ends iteration n; the step that is computed next is no longer ahead. */
static void go_on(struct walk *w)
{
    w->n++;
    if (w->compute.n == w->n && w->weights.n > w->n)
        w->framed -= plan_layer_framed(w->plan, w->compute.layer);
}

enum walk_event walk_next(struct walk *w, struct step *s)
{
    for (;;)
        switch (w->next) {
        case WALK_RETIRE:
            if (reach(w, newest(w), &w->retire, s))
                return WALK_RETIRE;
            w->next = WALK_FETCH_WEIGHTS;
            *s = w->compute;
            return ends_pass(w) ? WALK_PASS_END : WALK_GO_ON;
        case WALK_FETCH_WEIGHTS:
            while (reach_weights(w, s))
                if (begins_layer(w, s))
                    return WALK_FETCH_WEIGHTS;
            w->next = WALK_FETCH_KV;
            break;
        case WALK_FETCH_KV:
            w->next = WALK_FETCH_HIDDEN;
            if (reach(w, w->n + w->plan->ahead_state, &w->kv, s) && s->kind == STEP_DECODE &&
                s->part == 0)
                return WALK_FETCH_KV;
            break;
        case WALK_FETCH_HIDDEN:
            w->next = WALK_COMPUTE;
            if (reach(w, w->n + w->plan->ahead_hidden, &w->hidden, s) && s->kind != STEP_EMBED)
                return WALK_FETCH_HIDDEN;
            break;
        default:
            w->next = WALK_RETIRE;
            const int computes = reach(w, w->n, &w->compute, s);
            go_on(w);
            if (computes)
                return WALK_COMPUTE;
            break;
        }
}

int walk_left(struct walk *w, struct step *s)
{
    return reach(w, w->compute.n - 1, &w->retire, s);
}
