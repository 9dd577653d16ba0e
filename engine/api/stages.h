/* engine/api/stages.h - predicts a job under --pipeline (engine/api/pipeline.h) on several
 * machines.
 *
 * Machine i of the list is stage i, with consecutive decoder layers; the first also embeds, the
 * last has the head. All stages have the same rows in the same batches, in groups of batches: a
 * stage sweeps its layers for one group while the other stages sweep theirs for others. A pass here
 * is one sweep of all groups. Hidden states cross each link as f32 [dim] a token.
 *
 * Owns: the cut, the batches that fit all stages, the time of the job. Refuses: the plan of a stage
 * (run_choose), best cuts (policy/cut.h). Not counted: waits for groups whose prompts are longer
 * than those of others, latency of the network. */
#ifndef ENGINE_API_STAGES_H
#define ENGINE_API_STAGES_H

#include "engine/api/machines.h"

struct stage {
    const struct machine_kind *kind; // borrowed
    int from, to;                    // decoder layers from .. to - 1, counted from 0
    struct plan plan;
    struct plan_bytes bytes;
    struct plan_time time; // of a pass: busy so long
    double hop_s;    // in a pass, the link to the next stage is busy so long; the last stage: 0
    double streamed; // bytes of weights read in a pass
};

struct stages {
    char why[512]; // why there is none; "": there is one
    struct stage stages[MACHINES_MAX];
    int n, groups;
    double pass_s;  // from a pass to the next: the slowest stage or link, or a group's whole way
    double job_s;   // with filling and draining
    double fill_s;  // of these, filling and draining
    int bound;      // the slowest stage; of a link, the stage that sends; -1: a group's whole way
    int bound_link; // 1: a link
};

/* Finds the fastest pipeline over all machines for the job of r, which machines_plan() has planned.
 * Several seconds. ERR_FIT: no memory; that there is no pipeline is no error: see why. */
enum err stages_plan(struct stages *p, const struct machines *m, const struct run *r);

#endif
