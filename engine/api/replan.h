/* engine/api/replan.h - a run that goes on under another plan, because memory runs short or is free
 * again.
 *
 * Owns: the watch over memory, the choice of the next plan, the predicted beside the measured
 * seconds of each pass. Refuses: to change what fixes the bytes (formats, policy, compute, where
 * rows attend) or what a flag fixed, as long as anything else fits.
 *
 * A run that changes its plan ends its pass, gives all its memory back and begins anew inside the
 * same process, as one that was interrupted: its rows go back to the queue with their tokens and
 * are read in once more. So everything of a plan may change at once, and the bytes are those of an
 * undisturbed run because those of a resumed run are. */
#ifndef ENGINE_API_REPLAN_H
#define ENGINE_API_REPLAN_H

#include "engine/api/run.h"

struct replan; // opaque

/* For a run whose plan stands. Memory of the search is the plan's own (r->search). A run that was
 * asked to keep its plan is watched all the same. NULL: rows are dumped. ERR_FIT, ERR_USAGE
 * (SLUICE_REPLAN). */
enum err replan_open(struct replan **w, struct run *r);
/* Begins to watch a line under r->decision.plan; fills in what config says of leaving. */
enum err replan_watch(struct replan *w, struct engine_config *config);
/* The line is open, its first step is next. Accepts NULL. */
void replan_begin(struct replan *w);
/* The line was left: r->decision.plan and r->decision.bytes become those of the next plan. */
void replan_take(struct replan *w);
/* Measured over predicted seconds of the passes of this run, without any factor of earlier runs. 0:
 * the run says nothing of later ones: it was short, changed its plan, or other processes had the
 * cores that its threads wanted. */
int replan_pace(const struct replan *w, double *times);
/* Seconds that the run still takes; negative: not known. */
double replan_left_s(const struct replan *w);
/* How often it was taken, and the lines that told so: the first ones and the last; NULL: no more.
 */
int replan_count(const struct replan *w);
const char *replan_text(const struct replan *w, int i);
/* Accepts NULL. */
void replan_close(struct replan *w);

#endif
