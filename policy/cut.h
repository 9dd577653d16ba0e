/* policy/cut.h - cuts the layers of a model over the stages of a pipeline.
 *
 * Pure: seconds in, layer numbers out. Refuses: what a layer costs on a machine
 * (engine/api/pipeline.c). */
#ifndef POLICY_CUT_H
#define POLICY_CUT_H

#include "policy/shape.h"

#define CUT_STAGES_MAX 64

/* Cuts `layers` layers into `stages` runs of consecutive layers, at least one layer each, so that
 * the costliest stage costs least; of such cuts, one whose early stages have few layers.
 *   cost    [stages][layers], >= 0: layer by layer on the machine of each stage
 *   first   [stages + 1]: stage s gets the layers first[s] .. first[s + 1] - 1
 * Needs 1 <= stages <= layers, stages <= CUT_STAGES_MAX, layers <= SHAPE_LAYERS_MAX. Returns the
 * cost of the costliest stage. */
double cut_layers(const double *cost, int stages, int layers, int *first);

#endif
