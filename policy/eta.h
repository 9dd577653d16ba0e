/* policy/eta.h - how many seconds a run still takes.
 *
 * Owns: the arithmetic of the time that is left. Refuses: clocks, and the job: the caller says what
 * each pass took, what was predicted for that pass, and what is predicted for the rest.
 *
 * Two numbers make an estimate. The first is the predicted time of what is left: policy/cost.h
 * plays the remaining passes from the rows as they are, so the long passes of prompts and the short
 * passes of the end each count as what they are. The second is how much longer passes took of late
 * than was predicted for the same passes. The estimate is their product. */
#ifndef POLICY_ETA_H
#define POLICY_ETA_H

struct eta {
    double left_s; // predicted from the last pass boundary to the end; negative: not known
    double next_s; // of these, the next pass
    double elapsed_s;
    double measured_s, predicted_s; // sums over the recent passes; their quotient is the factor
};

/* Before the first pass. times: how much longer earlier runs took than predicted (1: none known);
 * the new run follows it until about a twentieth of its own time is measured. */
void eta_begin(struct eta *e, double job_s, double first_s, double times);
/* A pass is over that took measured_s; predicted_s was predicted for the rows that it had. */
void eta_pass(struct eta *e, double measured_s, double predicted_s);
/* What is left was predicted anew at this pass boundary. */
void eta_left(struct eta *e, double left_s, double next_s);
/* Seconds to the end when `share` (0..1) of the pass under way is done; negative: not known. */
double eta_seconds(const struct eta *e, double share);

#endif
