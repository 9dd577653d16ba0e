/* policy/pace.h - how long runs took by what was predicted for them, by class of plan.
 *
 * Owns: the class of a plan, the runs that are kept of each class, the factor that follows.
 * Refuses: to judge whether a run may teach anything (engine/api/replan.h); files
 * (offload/pace_file.h).
 *
 * One number of each run is stored: the measured seconds of its passes over the seconds that were
 * predicted for the same passes without any factor. When the number is used: cost.c multiplies the
 * predicted seconds of a plan (job, pass) by the factor of its class, and never the seconds of a
 * lane: a read that is slow because the CPU was busy says nothing of the disk. */
#ifndef POLICY_PACE_H
#define POLICY_PACE_H

#include "policy/plan.h"

#define PACE_RUNS  5   // kept of a class: the newest
#define PACE_ALL   64  // kept of a model
#define PACE_LIMIT 3.0 // a factor is at most this, and at least one over this

struct pace_run {
    int class;
    double times; // measured seconds over predicted seconds
};
struct pace_runs {
    int n;
    struct pace_run runs[PACE_ALL]; // the newest is the last
};
/* The class `run` keeps its PACE_RUNS newest runs. */
void pace_add(struct pace_runs *s, const struct pace_run *run);

/* What plans of one command have in common: formats, and the power of two of the RAM that they may
 * take, since the CPU is probed in as much memory. weights < 32, kv_format < 8, compute < 4. */
int pace_setup(int weights, int kv_format, int compute, int64_t ram);
/* The setup and the tiers that hold some weights, KV and hidden states. */
int pace_class(const struct plan *p, int setup);

/* The factors of all classes that are known. */
struct pace {
    int setup; // of the plans that are priced
    int n;
    struct {
        int class;
        struct rate times; // median of its runs, their spread and number
    } known[PACE_ALL];
    double others; // the mean of those, for a class that no run was of
};
void pace_make(struct pace *pace, const struct pace_runs *s);
int pace_runs_known(const struct pace *pace); // of all classes
/* The factor of a plan. NULL: 1. A class that is not known has the (geometric) mean of those that
 * are: with 1 it would look better than a known class for no other reason than that nobody ran it,
 * and a model of which one class is known keeps the order that its plans have without any factor.
 * n is then 0. */
struct rate pace_of(const struct pace *pace, const struct plan *p);

#endif
