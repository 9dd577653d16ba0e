/* engine/job/claims.h - the folder of --work-dir: how workers share the rows of one job.
 *
 * A worker is a process that runs the job; any number of them, on any machines that see the folder,
 * may join, leave or die at any time. The rows of the input are cut into chunks of consecutive
 * rows, and a chunk belongs to one worker at a time. The folder has
 *
 *     job.json           the job's identity, made by the first worker
 *     prompt_cap         the longest prompt of the job, made by the first worker that planned
 *     out                the name of OUT without its folder
 *     NAME.worker        who NAME is and what it does; rewritten every few seconds (its *beat*)
 *     NAME.journal       durable rows and tokens of NAME (engine/job/journal.h)
 *     NAME.partial       the lines of its rows
 *     claims/000042      a hard link to NAME.worker: chunk 42 is NAME's
 *     claims/000042.1    chunk 42 is another worker's, who took it over; the highest number counts
 *
 * Owns: the folder, the chunks, the beat (a thread), and the judgement who is dead. Refuses: the
 * contents of rows, journals and job.json; OUT.
 *
 * Note: link(2) fails if the name exists, on every file system with hard links, NFS included, and
 * files in claims/ are never renamed or removed while the job lasts. So each chunk has one owner
 * without locks. Nothing depends on clocks of different machines: a worker is dead when its beat
 * has not changed for CLAIMS_BEATS_LOST beats, by the clock of the process that watches. A wrong
 * judgement costs time, never bytes: a row gives the same line wherever and however often it is
 * computed. */
#ifndef ENGINE_JOB_CLAIMS_H
#define ENGINE_JOB_CLAIMS_H

#include <stdatomic.h>

#include "kernels/base/base.h"

#define CLAIMS_BEAT_S     5.0
#define CLAIMS_BEATS_LOST 6     // a worker without a beat for this many is dead
#define CLAIMS_CHUNKS     16384 // at most, whatever the number of rows
#define CLAIMS_WORKERS    60000 // at most in the life of a job
#define CLAIMS_NAME_BYTES 128
#define CLAIMS_PATH_BYTES 4400

/* Names in the folder; CLAIMS_WORKER is an ending. */
#define CLAIMS_JOB    "job.json"
#define CLAIMS_CAP    "prompt_cap"
#define CLAIMS_OUT    "out"
#define CLAIMS_DIR    "claims"
#define CLAIMS_WORKER ".worker"

enum worker_state {
    WORKER_JOINED,  // owns no unfinished chunk
    WORKER_WORKING, // may own unfinished chunks
    WORKER_LEFT,    // ended before its chunks were done
    N_WORKER_STATES
};
const char *worker_state_name(enum worker_state state);
/* Of the text of a NAME.worker. */
enum worker_state worker_state_of(const char *beat);
int64_t worker_rows_of(const char *beat);

struct claims; // opaque

/* Makes the folder if it is missing, and this worker's file. beat_s 0: CLAIMS_BEAT_S. ERR_USAGE: no
 * such folder can be made; ERR_IO: also a file system without hard links; ERR_FIT. */
enum err claims_open(struct claims **c, const char *dir, double beat_s);
/* Ends the beat. A worker that owns no chunk removes its files. Accepts NULL. */
void claims_close(struct claims *c);

/* The worker that was process `pid` of this machine has died: lets others take over its chunks at
 * once, not when its beat is missed. */
void claims_bury(const char *dir, int64_t pid);

const char *claims_name(const struct claims *c);
const char *claims_dir(const struct claims *c);
/* DIR/NAME.SUFFIX of worker w (0: this one), or DIR/SUFFIX with w < 0. */
void claims_path(const struct claims *c, int w, const char *suffix, char path[CLAIMS_PATH_BYTES]);

/* Makes DIR/FILE with these bytes, unless it is there. Appears complete. ERR_IO. */
enum err claims_once(const struct claims *c, const char *file, const char *bytes, int64_t n);

/* Number of chunks of a job. */
int64_t claims_cut(int64_t n_rows);
/* Cuts the rows into chunks; call once they are known. ERR_FIT. */
enum err claims_rows(struct claims *c, int64_t n_rows);
int64_t claims_chunks(const struct claims *c);
int64_t claims_chunk_of(const struct claims *c, int64_t row);
/* Rows [*from, *to) of a chunk. */
void claims_range(const struct claims *c, int64_t chunk, int64_t *from, int64_t *to);

/* Reads which workers exist, their beats, and who owns which chunk. ERR_IO, ERR_FIT. */
enum err claims_look(struct claims *c);
int claims_workers(const struct claims *c); // as of the last look; number 0 is this process
/* Number of the chunk's worker as of the last look; -1: the chunk is free. Chunk claims_chunks()
 * stands for OUT: its owner makes OUT from all parts. */
int claims_owner(const struct claims *c, int64_t chunk);
/* How often the chunk was taken over, as of the last look. */
int claims_turn(const struct claims *c, int64_t chunk);
/* 1: the worker has left, or its beat has not changed for so long that it is dead. */
int claims_gone(const struct claims *c, int w);

/* Claims a free chunk: the one behind this worker's last, or the middle of the longest run of free
 * chunks. *chunk -1: no chunk is free. ERR_IO. */
enum err claims_next(struct claims *c, int64_t *chunk);
/* Takes over a chunk from its owner. *mine 0: another worker was faster. ERR_IO. */
enum err claims_take_over(struct claims *c, int64_t chunk, int *mine);

/* What the beat says from now on: at once, or with the next beat. */
void claims_state(struct claims *c, enum worker_state state);
void claims_count(struct claims *c, int64_t n_rows); // more rows that are durable
/* Rows that this worker has made durable. */
int64_t claims_counted(struct claims *c);
/* Looks so far. */
int64_t claims_looks(const struct claims *c);
/* The chunks of workers that are gone have been looked at: claims_wait() does not return for them
 * again. */
void claims_settled(struct claims *c);
/* Waits until this worker has something to do: the folder has a free chunk, a worker is gone
 * that may have left chunks, OUT is to be made (*make_out 1: by this worker), or the job has ended
 * and its folder is gone. ERR_STOPPED: *interrupted, or the time limit (0: none). */
enum err claims_wait(struct claims *c, const atomic_int *interrupted, double limit_s,
                     int *make_out);
/* OUT is complete: removes the files of all workers, and the folder if it is empty then. */
enum err claims_remove(struct claims *c);

#endif
