/* engine/line/attend.h - attention of forced spans on the CPU beside a device: its own thread, a
 * stream like any other.
 *
 * Owns: the thread, the CPU's workspace, and what goes between a layer's two parts, for two
 * batches: while the device works on one, the CPU attends over the rows of the other. Refuses:
 * matmuls, and to know when (engine/line/stage.c posts a batch behind its part 0 and waits before
 * its part 1). Jobs are done in the order in which they were posted; at most two are not yet waited
 * for. */
#ifndef ENGINE_LINE_ATTEND_H
#define ENGINE_LINE_ATTEND_H

#include <pthread.h>

#include "engine/line/layer.h"
#include "kernels/base/trace.h"

#define ATTEND_JOBS 2

struct attend_job {
    int64_t step; // of its part 0
    int layer;    // of the line
    const struct batch *batch;
    struct layer_kv kv;
    enum err err; // of the device, before the CPU began
    char text[256];
};

struct attender {
    struct layer_work work; // of the CPU
    struct tables tables;
    struct exchange exchange[ATTEND_JOBS];
    const uint64_t *dirty[ATTEND_JOBS]; // rows.dirty of a job, in its tables
    struct event *ready[ATTEND_JOBS];   // owned: what part 0 left is in RAM
    struct cross cross;
    struct stream *cpu; // owned
    struct trace *trace;              // borrowed
    struct attend_job jobs[ATTEND_JOBS];
    int64_t n_posted, n_done, n_waited; // n_done: under the lock, as what is posted
    int stop, started;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

/* like: the device's workspace, placed; its ops' pool becomes this thread's, its stream stays the
 * device's. ERR_FIT, ERR_DEVICE. */
enum err attender_open(struct attender *a, const struct layer_work *like, struct cross_bytes bytes,
                       struct trace *trace);
/* Waits for the job at hand. Between the two, the device's stream is closed: it may still come to
 * this one's events. Both accept a zeroed attender. */
void attender_stop(struct attender *a);
void attender_close(struct attender *a);
/* Where part 0 of the next job puts its numbers. */
const struct exchange *attender_exchange(const struct attender *a);
/* Part 0 is queued: attends as soon as it is done. `job` is copied. */
void attender_post(struct attender *a, const struct attend_job *job);
/* Waits for the oldest job: its numbers, and which pages it wrote. Both stay until the job after
 * the next is posted. ERR_DEVICE: the device was lost. */
enum err attender_wait(struct attender *a, const struct exchange **x, const uint64_t **dirty);

#endif
