/* engine/api/replan.h - changes the plan of a run when memory runs short or is free again.
 *
 * Owns: watching memory, choosing the next plan, predicted and measured seconds of each pass.
 * Refuses: changing what determines the output bytes (formats, policy, compute, where rows attend).
 * Changes what a flag fixed only if nothing else fits.
 *
 * To change its plan a run ends its pass, frees all its memory and starts again in the same
 * process, as if resumed after a stop: its rows return to the queue with their tokens, which are
 * prefilled again. So all parts of a plan may change at once, with the same output bytes, as for a
 * resumed run. */
#ifndef ENGINE_API_REPLAN_H
#define ENGINE_API_REPLAN_H

#include "engine/api/run.h"

struct replan; // opaque

/* Call when the plan of the run is decided. Uses the memory of the plan search (r->search). With
 * --replan off the run is watched but keeps its plan. *w is NULL when rows are dumped (--kv-dump,
 * --kv-trace). ERR_FIT, ERR_USAGE (SLUICE_REPLAN). */
enum err replan_open(struct replan **w, struct run *r);
/* Starts to watch a line under r->decision.plan; sets the `leave` and `loads` fields of config. */
enum err replan_watch(struct replan *w, struct engine_config *config);
/* Call when the line is open, before its first step. Accepts NULL. */
void replan_begin(struct replan *w);
/* Call after the line was left: r->decision gets the plan and bytes of the next plan. */
void replan_take(struct replan *w);
/* times: measured / predicted seconds of all passes, without the factor of earlier runs. Returns 0
 * if this run is no guide for later ones: short, plan changed, or cores used by other processes. */
int replan_pace(const struct replan *w, double *times);
/* Seconds to the end of the run; negative: unknown. */
double replan_left_s(const struct replan *w);
/* The number of plan changes, and the text of the first ones and the last; NULL: no more. */
int replan_count(const struct replan *w);
const char *replan_text(const struct replan *w, int i);
/* Accepts NULL. */
void replan_close(struct replan *w);

#endif
