/* policy/device_layer.h - how long a layer takes on a device, without its attention.
 *
 * Owns: seconds of matmuls, of experts, of the ops between them. Refuses: attention
 * (policy/attention.h), copies over the link (policy/pass.h). */
#ifndef POLICY_DEVICE_LAYER_H
#define POLICY_DEVICE_LAYER_H

#include "policy/pass.h"

/* Seconds of a decoder layer for some tokens, in tiles: `before` and `after` attention. */
struct device_layer {
    double before, after;
};
struct device_layer device_layer_s(const struct setting *set, double tokens, int tile);
/* Matmuls over `bytes` of weights with `flops` per token, `tile` tokens at once. */
double device_matmul_s(const struct machine *m, double bytes, double flops, double tokens,
                       int tile);
/* Launches of a layer's ops for one tile. */
double device_launches_s(const struct setting *set);

#endif
