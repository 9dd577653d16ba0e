/* engine/api/budget_layers.h - --kv-budget-layers: how layers share the KV budget.
 *
 * Owns: the syntax of the flag. Refuses: applying the shares (policy/kv_kinds.h). */
#ifndef ENGINE_API_BUDGET_LAYERS_H
#define ENGINE_API_BUDGET_LAYERS_H

#include "kernels/base/base.h"

/* Fills share[n_layers], one per decoder layer; their mean may be any number. `text` is `even`;
 * `pyramid` or `pyramid:BETA` (kv_pyramid); or the path of a file: one number per layer, or the
 * output of `bench attention --csv`, whose slots_95 is averaged over heads, so that layers with
 * spread attention get more. ERR_USAGE: the sentence names the file and the line. */
enum err budget_layers_read(const char *text, int n_layers, double *share);

#endif
