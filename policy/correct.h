/* policy/correct.h - what a run tells of the rates that its plan was made with.
 *
 * Owns: lanes as foreseen and as measured over some passes, how much slower each was, rates
 * corrected by that, what a change of plan costs. Refuses: what a run leaves to later ones
 * (policy/pace.h); to touch what the probe measured: the caller corrects a copy. */
#ifndef POLICY_CORRECT_H
#define POLICY_CORRECT_H

#include "policy/pass.h"

/* Since the run began. */
struct lane_seconds {
    double s[N_WORK_LANES]; // busy
    double wall_s;
};

/* How many times as long each lane took as foreseen, between two moments. A lane that was busy for
 * less than a third of the time, both measured and foreseen, takes what it took before: its busy
 * seconds are mostly those of others that it waited for. */
void correct_lanes(const struct lane_seconds foreseen[2], const struct lane_seconds measured[2],
                   double slower[N_WORK_LANES]);

/* What is weighed when a run may change its plan. Seconds that were played were played by the same
 * rates, the corrected ones. */
struct change {
    double passes_left, pass_s; // of the plan that is under way: pass_s as measured of late
    double stay_s, go_s;        // played: what is left under this plan, all of it under the other
    double open_s; // measured: memory, files and threads of a plan, before its first step
};
/* Seconds that are left of a run that stays: measured passes alone, not what the plan says of
 * itself. */
double change_stay_s(const struct change *c);
/* Seconds until the end under the other plan, all that the change costs included. Where this plan
 * takes longer than it was played, so does the other; it is never taken to be faster than played,
 * because its first pass, which reads rows in again, is like none that was measured. */
double change_go_s(const struct change *c);

/* Rates as the lanes showed them. device: 1 where ops run on a device, and lane cpu is attention's
 * and queuing's. */
void correct_rates(struct machine *m, struct plan_costs *costs, int device,
                   const double slower[N_WORK_LANES]);

#endif
