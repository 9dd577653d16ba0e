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
/* The lanes that made the time of a run, in all of it: those that were busy for half of it, of
 * those that move bytes the busiest lane only (others had few pieces in flight). 0: it says
 * nothing. */
void correct_shown(const struct lane_seconds foreseen[2], const struct lane_seconds measured[2],
                   double slower[N_PLAN_LANES]);
/* Seconds of a fixed amount of each lane's work, by the rates as they were probed. */
void correct_reference(const struct machine *m, const struct model_rates *rates,
                       double seconds[N_PLAN_LANES]);

/* What runs of one model showed, kept from run to run beside the probe: each as many times as long
 * as the probe of its day foretold, and what that one said. */
#define SHOWN_RUNS 15
struct shown {
    int n; // the newest is the last
    struct shown_run {
        double slower[N_PLAN_LANES], reference[N_PLAN_LANES];
    } runs[SHOWN_RUNS];
};
/* Of a run that was slower than foreseen by rates that had been corrected by `lanes`. */
struct shown_run shown_of(const double slower[N_PLAN_LANES], const struct rate lanes[N_PLAN_LANES],
                          const double reference[N_PLAN_LANES]);
void shown_add(struct shown *s, const struct shown_run *run);
/* How many times as long as by `reference`, the probe of today, each lane will take: the median of
 * the runs that say something and of the probe itself, which has one voice; spread is the median
 * distance from it, n the number of runs. Without any value is 1. */
void shown_lanes(const struct shown *s, const double reference[N_PLAN_LANES],
                 struct rate lanes[N_PLAN_LANES]);

/* Rates as the lanes showed them. device: 1 where ops run on a device, and lane cpu is attention's
 * and queuing's. */
void correct_rates(struct machine *m, struct plan_costs *costs, int device,
                   const double slower[N_PLAN_LANES]);

#endif
