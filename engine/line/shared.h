/* engine/line/shared.h - the memory file in which the workers of --devices share weights in RAM.
 *
 * Owns: the head of the file: which layers the file has, and which of them are ready; who fills a
 * layer. Refuses: where a layer is in the file (home.c) and what its bytes are.
 *
 * The file is decided once, before any process but the first has planned, and never changes: so
 * each process knows its share of the file before it takes memory. A layer is filled by the process
 * that holds the lock of the layer's byte of the file. The kernel drops the locks of a process that
 * dies, and then another process fills the layer. A process that needs a layer while another one
 * fills it does not wait: it reads the layer from the disk for one pass. A read that a dead process
 * had in flight may still arrive, with the same bytes that the next process reads and verifies. */
#ifndef ENGINE_LINE_SHARED_H
#define ENGINE_LINE_SHARED_H

#include "kernels/base/base.h"
#include "policy/plan.h"

/* A new memory file, closed on exec; -1: the system has none. */
int shared_make(void);
/* 1: it is decided what the file has. */
int shared_decided(int fd);
/* Decides: the file gets shared->n_bytes for the layers in RAM of shared's plans; 0: nothing is
 * shared. Call once for a file. ERR_FIT. */
enum err shared_decide(int fd, const struct plan_shared *shared);
/* What the file has for each of `workers` processes; if it is not decided, any plan may use it. */
void shared_read(int fd, int workers, struct plan_shared *shared);

enum shared_turn {
    SHARED_BUSY,  // another process fills the layer now
    SHARED_READY, // the layer's bytes are there, and no process writes them again
    SHARED_MINE   // the caller fills it, and calls shared_end()
};
/* `base`: the file's mapping. */
enum shared_turn shared_begin(void *base, int fd, int layer);
/* right = 1: the layer is filled with verified bytes; 0: the next one who asks fills it. */
void shared_end(void *base, int fd, int layer, int right);

#endif
