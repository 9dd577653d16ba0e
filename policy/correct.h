/* policy/correct.h - what a run tells of the rates that its plan was made with.
 *
 * Owns: lanes as foreseen and as measured over some passes, how much slower each was, rates
 * corrected by that. Refuses: to decide what follows (engine/app/replan.h); to touch what the probe
 * measured: whoever corrects has a copy. */
#ifndef POLICY_CORRECT_H
#define POLICY_CORRECT_H

#include "policy/pass.h"

/* Since the run began. */
struct lane_seconds {
    double s[N_PLAN_LANES]; // busy
    double wall_s;
};

/* How many times as long each lane took as foreseen, between two moments; a lane that said little,
 * busy for less than a twentieth of the time either way, takes what it took before. */
void correct_lanes(const struct lane_seconds foreseen[2], const struct lane_seconds measured[2],
                   double slower[N_PLAN_LANES]);
/* The lane that differs most of those that took more than a fifth longer, or shorter, than by the
 * rates corrected by `known`, and bear on the time of a pass: busy for a good part of it, or so
 * foretold. -1: none. */
int correct_due(const struct lane_seconds measured[2], const double slower[N_PLAN_LANES],
                const double known[N_PLAN_LANES]);
/* Rates as the lanes showed them. device: 1 where ops run on a device, and lane cpu is attention's
 * and queuing's. */
void correct_rates(struct machine *m, struct plan_costs *costs, int device,
                   const double slower[N_PLAN_LANES]);

#endif
