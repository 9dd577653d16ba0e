/* engine/api/machines.h - predicts a job on several machines that machine files describe.
 *
 * Two ways. *Data parallel*: all run the same command over one --work-dir and take rows as they
 * work. *Pipeline*: each has some of the layers, and every row goes through all machines.
 *
 * Owns: the list of machines, the plan of the whole job on each, the shares of the rows. Refuses:
 * the pipeline's cut and its time (stages.h), and running either way. */
#ifndef ENGINE_API_MACHINES_H
#define ENGINE_API_MACHINES_H

#include "engine/api/run.h"
#include "policy/cut.h"

#define MACHINES_MAX CUT_STAGES_MAX

/* Machines of one file, and a run that plans for them. */
struct machine_kind {
    char path[512];
    int count;
    struct config config; // the user's, with --machine PATH
    /* The whole job, planned on one such machine. A copy of the user's run that shares its session;
     * `weights` and `search` are its own. */
    struct run run;
    char why[320]; // why the whole job does not fit there; "": it does
};

/* The machines of --machines, in the user's order. */
struct machines {
    struct machine_kind *kinds; // owned: [n_kinds], one for each file of the list
    int n_kinds, n;             // n: machines
};

/* Reads "a.cfg,b.cfg*3". ERR_USAGE: not such a list, or more than MACHINES_MAX machines. On error
 * there is nothing to close. */
enum err machines_open(struct machines *m, const char *list);
void machines_close(struct machines *m);
/* The kind of machine i, from 0. */
const struct machine_kind *machines_kind(const struct machines *m, int i);
/* Plans the whole job of r (plan_work) on every kind. ERR_INPUT: a machine file; but a job that
 * does not fit a machine is no error: see why. */
enum err machines_plan(struct machines *m, const struct run *r);

/* Copies a run for another decision: shares its session, owns nothing yet, and never leaves rows
 * out. run_forget() frees what it owned since. */
void run_copy(struct run *to, const struct run *from, const struct config *c);
void run_forget(struct run *r);

/* What one machine of a kind does when all share the rows. */
struct share {
    double rows;           // of the job; their sum is that of the job, rounding left out
    struct plan_time time; // of these rows
};
/* Finds the shares with which all machines end at the same time; fills [n_kinds]. All kinds must
 * fit (why). Returns the seconds of the job; ERR_FIT: no memory. */
enum err machines_share(const struct machines *m, struct share *shares, double *job_s);

#endif
