/* engine/api/left.h - predicts the seconds left in a run, updated between passes.
 *
 * Owns: when to predict again and from which rows. Refuses: the arithmetic (policy/eta.h), and
 * words. Use: left_begin before the first pass of each plan, left_pass after every pass,
 * left_seconds at any time in between. */
#ifndef ENGINE_API_LEFT_H
#define ENGINE_API_LEFT_H

#include "engine/api/run.h"
#include "policy/eta.h"

struct left {
    struct eta eta;
    struct plan_costs costs; // costs of the run, without the factor of earlier runs
    int64_t looked_ns;       // time of the last prediction
    double look_s;           // seconds that this prediction needed
};

/* Call when the line is open under r->decision.plan. again: 1 if not the run's first plan. */
void left_begin(struct left *l, struct run *r, int again);
/* Call after each pass, with its measured and predicted seconds. Uses r->search. */
void left_pass(struct left *l, struct run *r, double measured_s, double predicted_s);
/* Seconds to the end of the run; negative: unknown. */
double left_seconds(const struct left *l, const struct engine *e);
/* Sets work->stops from the rows of this run so far. */
void left_learn(const struct run *r, struct work *work);
/* The live rows that a simulation of the rest of the run starts with; ctx: the engine's batches. */
int left_live_row(void *batches, int batch, int seat, struct live_row *row);

#endif
