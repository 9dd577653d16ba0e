/* offload/peers.h - messages between the ranks of a pipeline, over MPI.
 *
 * Owns: the MPI library of the run (sluice-mpi.so, opened when a pipeline is wanted, so that the
 * program needs no MPI), and a thread that moves messages while the walker computes. Refuses: what
 * messages mean, and the memory that they are in.
 *
 * Messages from one rank to another with one tag arrive in the order in which they were sent. MPI
 * ends all ranks when one of them dies (every MPI of today does by default); a rank that fails by
 * itself ends the others with its exit code. So there is no rank to be repaired: the same command
 * resumes. */
#ifndef OFFLOAD_PEERS_H
#define OFFLOAD_PEERS_H

#include <stdatomic.h>
#include <stdint.h>

#include "kernels/base/base.h"

#define PEERS_MAX 64 // ranks

enum peers_tag { PEERS_SETUP, PEERS_HIDDEN, PEERS_RESULTS };

/* A message under way. Its owner keeps it, and the buffer, until peers_wait(). */
struct parcel {
    void *request;       // MPI's
    int64_t n_bytes;     // received
    int busy;            // 1: under way
    enum err err;        // once it is not
    struct parcel *next; // in the list of the thread
};

struct peers; // opaque

/* Starts MPI. ERR_USAGE: no launcher started this process, or only one rank; ERR_DEVICE: no
 * sluice-mpi.so, or it does not fit. */
enum err peers_open(struct peers **p);
/* failed 0: waits for all ranks to come here. Else ends all ranks with this exit code. */
void peers_close(struct peers *p, int failed);
int peers_rank(const struct peers *p);
int peers_n(const struct peers *p);

/* buf: on the host. A message longer than `cap` is ERR_INTERNAL. */
void peers_send(struct peers *p, int to, enum peers_tag tag, const void *buf, int64_t n,
                struct parcel *parcel);
void peers_receive(struct peers *p, int from, enum peers_tag tag, void *buf, int64_t cap,
                   struct parcel *parcel);
/* Waits for a message; for one that is not under way it returns at once. ERR_STOPPED: `stop` was
 * set (NULL: none); the message is still under way. */
enum err peers_wait(struct peers *p, struct parcel *parcel, const atomic_int *stop);
/* Takes back a receive that is under way. */
void peers_cancel(struct peers *p, struct parcel *parcel);

/* Of setup: rank 0's `n` bytes at buf reach all others. */
enum err peers_tell(struct peers *p, void *buf, int64_t n);
/* Each rank's `n` bytes reach rank 0: all [n_ranks][n] there; elsewhere unused. */
enum err peers_gather(struct peers *p, const void *mine, int64_t n, void *all);

/* ---- what sluice-mpi.so has ---- */

#define PEERS_VERSION 1
#define PEERS_ENTRY   "sluice_mpi"

/* Returns of all: 0, or MPI's error, with a text in `why`. */
struct peers_library {
    int version;
    const char *name; // of the MPI
    int (*start)(int *rank, int *n);
    int (*send)(const void *buf, int64_t n, int to, int tag, void **request);
    int (*receive)(void *buf, int64_t cap, int from, int tag, void **request);
    int (*test)(void **request, int *done, int64_t *n_bytes);
    int (*cancel)(void **request); // of a receive
    int (*end)(void);
    void (*abort)(int code);
    char why[256];
};
typedef struct peers_library *(*peers_entry_fn)(void);

#endif
