/* engine/line/attend.h - decode attention on the CPU while a device computes the rest.
 *
 * Owns: the thread, the CPU's workspace, and the buffers between the two parts of a layer for two
 * batches: while the device computes one batch, the CPU attends over the rows of the other.
 * Refuses: matmuls, and the schedule (engine/line/stage.c posts a batch after its part 0 and waits
 * before its part 1). Jobs run in the order of posting; at most ATTEND_JOBS jobs are posted and not
 * yet waited for. */
#ifndef ENGINE_LINE_ATTEND_H
#define ENGINE_LINE_ATTEND_H

#include <pthread.h>

#include "engine/line/layer.h"
#include "kernels/base/trace.h"

#define ATTEND_JOBS 2

struct attend_job {
    int64_t step; // step of part 0
    int layer;    // line layer
    const struct batch *batch;
    struct layer_kv kv;
    enum err err; // device error found before the CPU began
    char text[256];
};

struct attender {
    struct layer_work work; // on the CPU
    struct tables tables;
    struct exchange exchange[ATTEND_JOBS];
    const uint64_t *dirty[ATTEND_JOBS]; // rows.dirty of a job, in its tables
    struct event *ready[ATTEND_JOBS];   // owned: signalled when part 0's output is in RAM
    struct cross cross;
    struct stream *cpu;  // owned
    struct trace *trace; // borrowed
    struct attend_job jobs[ATTEND_JOBS];
    int64_t n_posted, n_done, n_waited; // the first two under the lock
    int stop, started;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

/* Carves the CPU's workspace and the buffers. like: the device's workspace, already placed. The
 * thread uses like->ops.pool. */
void attender_place(struct attender *a, struct carve *c, const struct layer_work *like);
/* Call after attender_place(). stream: of the device's ops. ERR_FIT, ERR_DEVICE. */
enum err attender_open(struct attender *a, struct stream *stream, struct trace *trace);
/* attender_stop() waits for the running job. Close the device's stream between the two calls: its
 * queue may still wait for events of the attender. Both accept a zeroed attender. */
void attender_stop(struct attender *a);
void attender_close(struct attender *a);
/* Buffers for part 0 of the next job. */
const struct exchange *attender_exchange(const struct attender *a);
/* Call once part 0 is queued: the CPU attends as soon as part 0 is done. `job` is copied. */
void attender_post(struct attender *a, const struct attend_job *job);
/* Waits for the oldest job. Returns its exchange buffers and the bitmap of the pages it wrote; both
 * are valid until the job after the next is posted. ERR_DEVICE: the device was lost. */
enum err attender_wait(struct attender *a, const struct exchange **x, const uint64_t **dirty);

#endif
