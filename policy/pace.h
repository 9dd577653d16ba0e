/* policy/pace.h - measured over predicted time of earlier runs, by class of plan.
 *
 * Owns: the class of a plan, the runs kept per class, the factor that follows. Refuses: the
 * decision whether a run counts (engine/api/replan.h); files (offload/pace_file.h).
 *
 * Each run stores one number: measured seconds of its passes / seconds predicted for them without
 * any factor. cost.c multiplies the predicted seconds of a plan (job, pass) by the factor of its
 * class, never the seconds of a lane: a read that is slow because the CPU is busy says nothing
 * about the disk. */
#ifndef POLICY_PACE_H
#define POLICY_PACE_H

#include "policy/plan.h"

#define PACE_RUNS  5   // newest runs kept per class
#define PACE_ALL   64  // runs kept per model
#define PACE_LIMIT 3.0 // greatest factor, and inverse of the least

struct pace_run {
    int class;
    double times; // measured seconds over predicted seconds
};
struct pace_runs {
    int n;
    struct pace_run runs[PACE_ALL]; // oldest first
};
/* Adds a run; its class keeps the PACE_RUNS newest. */
void pace_add(struct pace_runs *s, const struct pace_run *run);

/* What all plans of one command share: formats, and the power of two of the RAM budget, because the
 * CPU is probed in as much memory. weights < 32, kv_format < 8, compute < 4. */
int pace_setup(int weights, int kv_format, int compute, int64_t ram);
/* A number made of the setup and of the tiers that hold weights, KV and hidden states. */
int pace_class(const struct plan *p, int setup);

/* The factors of all known classes. */
struct pace {
    int setup; // of the plans to price
    int n;
    struct {
        int class;
        struct rate times; // of its runs: median, spread, number
    } known[PACE_ALL];
    double others; // geometric mean of these, for an unknown class
};
void pace_make(struct pace *pace, const struct pace_runs *s);
int pace_runs_known(const struct pace *pace); // over all classes
/* The factor of a plan; pace NULL: 1. An unknown class gets the geometric mean of the known ones,
 * with n 0: with 1 it could look better than a known class only because it never ran. If one class
 * is known, plans keep the order that they have without factors. */
struct rate pace_of(const struct pace *pace, const struct plan *p);

#endif
