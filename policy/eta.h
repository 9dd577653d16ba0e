/* policy/eta.h - how many seconds a run still takes.
 *
 * Owns: the arithmetic of the remaining time. Refuses: clocks, and the job: the caller reports what
 * each pass took, what was predicted for it, and what is predicted for the rest.
 *
 * The estimate is a product of two numbers. The first is the predicted time of the rest:
 * policy/cost.h plays the remaining passes from the rows as they are, so the long passes of prompts
 * and the short ones at the end each count with their own length. The second is measured over
 * predicted time of recent passes. */
#ifndef POLICY_ETA_H
#define POLICY_ETA_H

struct eta {
    double left_s; // predicted from the last pass boundary to the end; negative: unknown
    double next_s; // the next pass, part of left_s
    double elapsed_s;
    double measured_s, predicted_s; // sums over recent passes; the factor is their quotient
};

/* Starts before the first pass. times: measured over predicted time of earlier runs (1: unknown);
 * it counts until about a twentieth of this run's time is measured. */
void eta_begin(struct eta *e, double job_s, double first_s, double times);
/* Reports a finished pass: its measured time, and the time predicted for its rows. */
void eta_pass(struct eta *e, double measured_s, double predicted_s);
/* Reports a new prediction of the rest at this pass boundary. */
void eta_left(struct eta *e, double left_s, double next_s);
/* Seconds to the end when `share` (0..1) of the current pass is done; negative: unknown. */
double eta_seconds(const struct eta *e, double share);

#endif
