/* kernels/base/trace.h - what each lane did and when: a ring of events per lane, and totals.
 *
 * Owns: the rings. Refuses: allocation after trace_open. One thread writes a lane (cpu: the walker,
 * nvme-*: the mover), so no lock is needed; rings are read only after the run. */
#ifndef KERNELS_BASE_TRACE_H
#define KERNELS_BASE_TRACE_H

#include "kernels/base/base.h"

struct trace_event {
    const char *name; // static string
    int64_t start_ns, end_ns;
    int64_t step, bytes; // step: number of the line's step, -1: none
    int layer, batch;    // -1: none
    int64_t pass;        // set by trace_add() and trace_note()
};

struct lane_total {
    int64_t busy_ns, bytes, events;
};

struct trace {
    struct trace_event *events[N_LANES]; // owned; [capacity], NULL when only totals are kept
    int64_t n_events[N_LANES];           // events so far; the ring keeps the last `capacity`
    int64_t capacity;
    int64_t pass_steps; // steps per pass; pass = first_pass + step / pass_steps. 0: all events are
                        // in first_pass
    int64_t first_pass; // pass of step 0
    struct lane_total totals[N_LANES];
    /* Meters, readable during the run. moved_bytes: lanes of a mover only. */
    _Atomic int64_t moved_bytes[N_LANES], busy_ns[N_LANES];
};

const char *lane_name(enum lane lane); // "nvme-read", ...
/* capacity: events per lane; 0 keeps totals only. ERR_FIT: no memory. */
enum err trace_open(struct trace *t, int64_t capacity);
void trace_add(struct trace *t, enum lane lane, struct trace_event event);
/* Adds the event alone: the caller adds its time and bytes to totals and meters. */
void trace_note(struct trace *t, enum lane lane, struct trace_event event);
/* Writes Chrome trace JSON (for Perfetto). Errors as whole_open() and whole_end(). */
enum err trace_write(const struct trace *t, const char *path);
void trace_close(struct trace *t);

#endif
