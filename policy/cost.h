/* policy/cost.h - what a plan costs in time: seconds of each lane, of a pass, of the whole job.
 *
 * Owns: the two answers, a quick one for the search and one that plays the job. Refuses: bytes of
 * memory (plan_check). */
#ifndef POLICY_COST_H
#define POLICY_COST_H

#include "policy/pass.h"

/* lane: of a mean pass. */
struct plan_time {
    double read_s, write_s, compute_s; // per pass; beside a device compute_s is what queuing takes
    double h2d_s, d2h_s, gpu_s;        // of a device with memory of its own
    double pass_s;                     // its wall time
    double passes;
    double job_s, first_s;      // all passes; of these the first, which loads what stays
    double bytes[N_WORK_LANES]; // of the job
    double requeued;            // rows sent back for want of pages
    struct rate pace;           // factor that job_s, first_s and pass_s have in them
    const char *bound;          // name of the slowest lane
};

/* Bytes of `memory` for both, 8-aligned. */
int64_t plan_cost_bytes(const struct plan *plan);
/* Plays the job, of a long one every second, third ... row. 0; -1: a row can never enter. */
int plan_cost(const struct setting *set, const struct plan *plan, void *memory,
              struct plan_time *t);
/* A job between two passes, as struct simulation has it. */
struct under_way {
    int (*live)(void *ctx, int batch, int seat, struct live_row *row);
    void *ctx;
};
/* What is left of it: set->work has the waiting rows. The next pass is not the first one: what
 * stays in memory is there. */
int plan_cost_left(const struct setting *set, const struct plan *plan, void *memory,
                   const struct under_way *now, struct plan_time *t);
/* Passes that it looks at, of all: what it costs itself. */
double plan_cost_passes(const struct plan *plan, const struct work *work, int quick,
                        const struct plan_time *t);
/* The same, but that the lanes of a pass are compared instead of its steps played. */
int plan_cost_quick(const struct setting *set, const struct plan *plan, void *memory,
                    struct plan_time *t);
/* From the means of the rows: which of two plans is worth playing. */
void plan_estimate(const struct setting *set, const struct plan *plan, void *memory,
                   struct plan_time *t);

#endif
