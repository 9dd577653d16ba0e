/* kernels/base/trace.h - what each lane did and when: a fixed ring of events per lane, and running
 * totals.
 *
 * Owns: the rings. Refuses: allocation after trace_open. A lane is written by one thread only (cpu
 * by the walker, nvme-* by the mover), so no lock is needed; reading waits until the run is over.
 */
#ifndef KERNELS_BASE_TRACE_H
#define KERNELS_BASE_TRACE_H

#include "kernels/base/base.h"

struct trace_event {
    const char *name; // static string
    int64_t start_ns, end_ns;
    int64_t step, bytes; // step of the line that it is for; -1: none
    int layer, batch;    // -1: none
    int64_t pass;        // trace_add() fills it in
};

struct lane_total {
    int64_t busy_ns, bytes, events;
};

struct trace {
    struct trace_event *events[N_LANES]; // owned; [capacity], NULL when only totals are kept
    int64_t n_events[N_LANES];           // ever recorded; the ring holds the last `capacity`
    int64_t capacity;
    int64_t pass_steps; // steps of a pass: what makes a pass of an event's step; 0: all are pass 0
    int64_t first_pass; // the pass of step 0
    struct lane_total totals[N_LANES];
    /* The meters: may be read while the run goes on. moved_bytes: of the lanes of a mover. */
    _Atomic int64_t moved_bytes[N_LANES], busy_ns[N_LANES];
};

const char *lane_name(enum lane lane); // "nvme-read", ...
/* capacity events per lane; 0 keeps totals only. */
enum err trace_open(struct trace *t, int64_t capacity);
void trace_add(struct trace *t, enum lane lane, struct trace_event event);
/* The event alone: time and bytes of its lane are counted by the caller, into totals and meters. */
void trace_note(struct trace *t, enum lane lane, struct trace_event event);
/* Chrome trace JSON (loads in Perfetto). ERR_IO with the path. */
enum err trace_write(const struct trace *t, const char *path);
void trace_close(struct trace *t);

#endif
