/* policy/kv_kinds.h - groups layers by what they keep of a row: KV by attention window, share of
 * the budget and size of heads, or a state of fixed size.
 *
 * Owns: which layers are alike. Refuses: how many slots a row holds in them (policy/evict.h).
 * For every row at any time, kind KV_MOST holds at least as many slots as any other kind, so rows
 * are admitted and get pages by KV_MOST. */
#ifndef POLICY_KV_KINDS_H
#define POLICY_KV_KINDS_H

#include <stdint.h>

#include "policy/shape.h"

#define KV_KINDS_SLOTS 8
#define KV_KINDS_MAX   (KV_KINDS_SLOTS + 1) // the last one for states
#define KV_MOST        0

struct kv_kind {
    int window;   // tokens that a query sees, itself included; 0: no window
    double share; // part of the budget beyond protected slots, relative to the mean layer; 1 with a
                  // window
    int state;    // page slots of a row's state, whole pages, from its first token on; 0: KV
    int wide;     // 1: heads are those of layer_wide[] (struct shape), so pages are of another size
};

struct kv_kinds {
    int n;
    struct kv_kind of[KV_KINDS_MAX];
    uint8_t layer[SHAPE_LAYERS_MAX]; // kind of each layer
};

/* Groups layers with these windows and heads (struct shape; layer_wide NULL: all alike) and shares
 * ([n_layers], > 0; NULL: all alike).
 * Layers with has_state (NULL: none; never all) are the last kind, which gets `state` slots. Shares
 * are scaled to a mean of 1 over the layers without a window. If there are more different shares
 * than kinds are left, they become equal steps, each with the mean of its layers. Returns 0; -1:
 * the windows alone need too many kinds. */
int kv_kinds_make(struct kv_kinds *kinds, const int32_t *layer_window, const uint8_t *layer_wide,
                  const double *layer_share, const uint8_t *has_state, int state, int n_layers);

/* How many kinds, the first ones, hold KV. */
static inline int kv_kinds_of_slots(const struct kv_kinds *kinds)
{
    return kinds->n - (kinds->of[kinds->n - 1].state > 0);
}

/* 1: shares differ. */
static inline int kv_kinds_uneven(const struct kv_kinds *kinds)
{
    return kinds->of[KV_MOST].share > 1;
}

/* Shares that fall linearly from the first layer to the last, which gets 1 / beta of the mean (beta
 * >= 1; PyramidKV, Cai et al. 2024, arXiv 2406.02069, with beta 20). */
void kv_pyramid(double *layer_share, int n_layers, double beta);

#endif
