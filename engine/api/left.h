/* engine/api/left.h - the seconds that a run still takes, kept up to date between its passes.
 *
 * Owns: when what is left is predicted anew, and from which rows. Refuses: the arithmetic
 * (policy/eta.h), and words. Use: left_begin before the first pass of each plan, left_pass after
 * every pass, left_seconds at any time in between. */
#ifndef ENGINE_API_LEFT_H
#define ENGINE_API_LEFT_H

#include "engine/api/run.h"
#include "policy/eta.h"

struct left {
    struct eta eta;
    struct plan_costs costs; // the run's, without the factor of earlier runs
    int64_t looked_ns;       // when what is left was predicted last
    double look_s;           // seconds that this prediction took
};

/* The line is open under r->decision.plan. again: 1 when the run had another plan before. */
void left_begin(struct left *l, struct run *r, int again);
/* A pass took measured_s; predicted_s was predicted for its rows. Uses r->search. */
void left_pass(struct left *l, struct run *r, double measured_s, double predicted_s);
/* Seconds to the end of the run; negative: not known. */
double left_seconds(const struct left *l, const struct engine *e);
/* The chance that a row stops after a token, as rows of this run did so far. An eighth that few
 * rows came to counts as the mean of all. */
void left_stops(const struct run *r, double stops[WORK_EIGHTHS]);
/* The rows that a simulation of what is left begins with; ctx: the engine's batches. */
int left_live_row(void *batches, int batch, int seat, struct live_row *row);

#endif
