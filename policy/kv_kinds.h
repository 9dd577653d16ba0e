/* policy/kv_kinds.h - layers by what their KV holds: their window, their share of the budget.
 *
 * Owns: which layers are alike. Refuses: what a row holds in them (policy/evict.h).
 * Note: kind KV_MOST holds at least what any other does, of every row at every
 * time, so rows are admitted and take pages by it. */
#ifndef POLICY_KV_KINDS_H
#define POLICY_KV_KINDS_H

#include <stdint.h>

#include "policy/shape.h"

#define KV_KINDS_MAX 8
#define KV_MOST      0

struct kv_kind {
    int window; // tokens that a query sees, itself included; 0: all
    double
        share; // of what the mean layer has of the budget beside protected slots; 1 under windows
};

struct kv_kinds {
    int n;
    struct kv_kind of[KV_KINDS_MAX];
    uint8_t layer[SHAPE_LAYERS_MAX]; // kind of each
};

/* Kinds of layers with these windows (struct shape) and shares ([n_layers], > 0; NULL: all alike).
 * Shares are scaled to a mean of 1 over the layers that have no window; more different ones than
 * there may be kinds become as many steps, each the mean of its layers. Returns 0, -1 when windows
 * alone are of more kinds. */
int kv_kinds_make(struct kv_kinds *kinds, const int32_t *layer_window, const double *layer_share,
                  int n_layers);

/* 1: shares differ. */
static inline int kv_kinds_uneven(const struct kv_kinds *kinds)
{
    return kinds->of[KV_MOST].share > 1;
}

/* Shares that fall evenly from the first layer to the last, whose is 1 / beta of the mean (beta >=
 * 1; PyramidKV, Cai et al. 2024, arXiv 2406.02069, there beta is 20). */
void kv_pyramid(double *layer_share, int n_layers, double beta);

#endif
