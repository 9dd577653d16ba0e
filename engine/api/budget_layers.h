/* engine/api/budget_layers.h - --kv-budget-layers: how layers share the KV budget.
 *
 * Owns: what the flag may say. Refuses: what is done with the shares (policy/kv_kinds.h). */
#ifndef ENGINE_API_BUDGET_LAYERS_H
#define ENGINE_API_BUDGET_LAYERS_H

#include "kernels/base/base.h"

/* The shares of decoder layers, share [n_layers], of any mean: `even`; `pyramid` or `pyramid:BETA`
 * (kv_pyramid); the path of a file with a number for each, or of what `bench attention --csv`
 * wrote: there the mean over heads of slots_95, so that layers whose attention is spread get more.
 * ERR_USAGE: the sentence names the file and the line. */
enum err budget_layers_read(const char *text, int n_layers, double *share);

#endif
