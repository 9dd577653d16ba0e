/* policy/kv_kinds.c - see kv_kinds.h. */
#include "policy/kv_kinds.h"

#include <string.h>

/* The window, heads and share of one layer. */
struct asked {
    int layer, window, wide;
    double share;
};

/* Sort order: no window first, then the longer window, then the greater share. */
static int holds_more(const struct asked *a, const struct asked *b)
{
    if ((a->window == 0) != (b->window == 0))
        return a->window == 0;
    if (a->window != b->window)
        return a->window > b->window;
    return a->share > b->share;
}

static int is_like(const struct asked *a, const struct asked *b)
{
    return a->window == b->window && a->share == b->share && a->wide == b->wide;
}

/* The first of all[0..i] that is like all[i]. */
static int first_like(const struct asked *all, int i)
{
    int first = 0;
    while (!is_like(&all[first], &all[i]))
        first++;
    return first;
}

static int count_kinds(const struct asked *all, int n)
{
    int kinds = 0;
    for (int i = 0; i < n; i++)
        kinds += first_like(all, i) == i;
    return kinds;
}

/* How many sizes of heads there are. */
static int count_sizes(const struct asked *all, int n)
{
    int wide = 0;
    for (int i = 0; i < n; i++)
        wide += all[i].wide;
    return 1 + (wide > 0 && wide < n);
}

/* Replaces the first n of `all` by equal steps, each with the mean of its shares. */
static void step_shares(struct asked *all, int n, int steps)
{
    for (int step = 0; step < steps; step++) {
        const int first = step * n / steps, end = (step + 1) * n / steps;
        double sum = 0;
        for (int i = first; i < end; i++)
            sum += all[i].share;
        for (int i = first; i < end; i++)
            all[i].share = sum / (end - first);
    }
}

/* Makes the layers with a state one more kind. */
static void add_states(struct kv_kinds *kinds, const uint8_t *has_state, int state, int n_layers)
{
    for (int layer = 0; layer < n_layers; layer++)
        if (has_state && has_state[layer]) {
            kinds->layer[layer] = (uint8_t)kinds->n;
            kinds->of[kinds->n] = (struct kv_kind){.share = 1, .state = state};
        }
    kinds->n += kinds->of[kinds->n].state > 0;
}

int kv_kinds_make(struct kv_kinds *kinds, const int32_t *layer_window, const uint8_t *layer_wide,
                  const double *layer_share, const uint8_t *has_state, int state, int n_layers)
{
    struct asked all[SHAPE_LAYERS_MAX];
    int n = 0, without = 0;
    double sum = 0;
    memset(kinds, 0, sizeof *kinds);
    for (int layer = 0; layer < n_layers; layer++) {
        struct asked a = {.layer = layer,
                          .window = layer_window[layer],
                          .wide = layer_wide && layer_wide[layer],
                          .share = 1};
        if (has_state && has_state[layer])
            continue;
        if (a.window == 0) {
            a.share = layer_share ? layer_share[layer] : 1;
            without++;
            sum += a.share;
        }
        int at = n++;
        for (; at > 0 && holds_more(&a, &all[at - 1]); at--)
            all[at] = all[at - 1];
        all[at] = a;
    }
    for (int i = 0; i < without; i++)
        all[i].share *= without / sum;
    const int windows = count_kinds(all + without, n - without);
    const int steps = KV_KINDS_SLOTS - windows, sizes = count_sizes(all, without);
    if (steps < (without > 0 ? sizes : 0))
        return -1;
    if (count_kinds(all, without) > steps)
        step_shares(all, without, steps / sizes);
    for (int i = 0; i < n; i++) {
        const int first = first_like(all, i);
        if (first == i)
            kinds->of[kinds->n++] = (struct kv_kind){
                .window = all[i].window, .share = all[i].share, .wide = all[i].wide};
        kinds->layer[all[i].layer] =
            first == i ? (uint8_t)(kinds->n - 1) : kinds->layer[all[first].layer];
    }
    add_states(kinds, has_state, state, n_layers);
    return 0;
}

void kv_pyramid(double *layer_share, int n_layers, double beta)
{
    const double least = 1 / beta, most = 2 - least;
    for (int layer = 0; layer < n_layers; layer++)
        layer_share[layer] = n_layers > 1 ? most - layer * (most - least) / (n_layers - 1) : 1;
}
