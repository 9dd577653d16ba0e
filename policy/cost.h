/* policy/cost.h - how long a plan takes: seconds of each lane, of a pass, of the whole job.
 *
 * Owns: a quick answer for the search, and one that plays the job. Refuses: bytes of memory
 * (plan_check). */
#ifndef POLICY_COST_H
#define POLICY_COST_H

#include "policy/pass.h"

struct plan_time {
    double read_s, write_s, compute_s; // per pass; beside a device compute_s queues ops
    double h2d_s, d2h_s, gpu_s;        // only with a device that has its own memory
    double pass_s;                     // wall time
    double passes;
    double job_s, first_s;      // all passes; the first of them, which fetches what stays resident
    double bytes[N_WORK_LANES]; // of the job
    double requeued;            // rows sent back to the queue because pages ran out
    struct rate pace;           // factor that job_s, first_s and pass_s include
    const char *bound;          // name of the slowest lane
};

/* Bytes of `memory` for every function here, a multiple of 8. */
int64_t plan_cost_bytes(const struct plan *plan);
/* Plays the job; of a long job only every second, third ... row. 0; -1: a row can never enter. */
int plan_cost(const struct setting *set, const struct plan *plan, void *memory,
              struct plan_time *t);
/* A job between two passes: as in struct simulation. */
struct under_way {
    int (*live)(void *ctx, int batch, int seat, struct live_row *row);
    void *ctx;
};
/* The rest of that job. set->work has the waiting rows. What stays in memory is already there. */
int plan_cost_left(const struct setting *set, const struct plan *plan, void *memory,
                   const struct under_way *now, struct plan_time *t);
/* Passes that plan_cost (quick: plan_cost_quick) plays for t's job: its own cost. */
double plan_cost_passes(const struct plan *plan, const struct work *work, int quick,
                        const struct plan_time *t);
/* As plan_cost, but compares the lanes of each pass and plays no steps. */
int plan_cost_quick(const struct setting *set, const struct plan *plan, void *memory,
                    struct plan_time *t);
/* An estimate from the means of the rows, to choose which plans are worth playing. */
void plan_estimate(const struct setting *set, const struct plan *plan, void *memory,
                   struct plan_time *t);

#endif
