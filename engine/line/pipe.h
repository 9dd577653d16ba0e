/* engine/line/pipe.h - the line cut over the ranks of a pipeline: what a rank takes from the one
 * before it and passes on.
 *
 * Every rank has a part of the decoder layers and the same job, rows and batches; each decides on
 * its own which rows enter a pass and which tokens they take, and all decide alike, because the
 * decisions are a function of the rows and of the tokens sampled so far. So only numbers travel:
 *
 *     hidden    rank r to r + 1: the hidden states of one batch in a pass, behind the last layer
 *               of rank r
 *     results   the last rank to all others: what the head found for the positions of that batch
 *
 * Owns: these messages and their buffers. A batch is sampled on every rank at one place of the
 * line: where its group begins its next pass. Rows whose data on a disk was unreadable travel with
 * both messages, so that every rank computes them again.
 *
 * Note: rank 0 alone has files; placement on a rank changes no byte, and neither does the number of
 * ranks. */
#ifndef ENGINE_LINE_PIPE_H
#define ENGINE_LINE_PIPE_H

#include "engine/line/batch.h"
#include "kernels/device.h"
#include "offload/peers.h"

struct pipe {
    struct peers *peers;     // borrowed; NULL: there is no pipeline
    const atomic_int *stop;  // borrowed: ends waiting; or NULL
    struct batches *batches; // borrowed
    int dim;
    /* Buffers of messages, used in turn, and one of results for each batch. */
    struct slab in, out, results;
    struct parcel *arriving, *leaving; // [in.n], [out.n]
    struct parcel *answers;            // [batches][ranks - 1] of the last rank, else [batches]
    uint8_t *awaited;                  // [batches] 1: passed on, results not taken yet
    int64_t n_in, n_free, n_posted;    // messages so far: taken; no longer used; expected
    int64_t n_out, n_sent;             // made; sent
    int64_t waited_ns;                 // for messages of other ranks
    int64_t in_bytes, in_tokens;       // hidden states received
};

/* Carves the buffers, for a plan with groups. */
void pipe_place(struct pipe *p, struct carve *c);
/* Begins to expect messages. */
void pipe_open(struct pipe *p, struct peers *peers, const atomic_int *stop, struct batches *b,
               int dim);

static inline int pipe_is_first(const struct pipe *p)
{
    return !p->peers || peers_rank(p->peers) == 0;
}
static inline int pipe_is_last(const struct pipe *p)
{
    return !p->peers || peers_rank(p->peers) == peers_n(p->peers) - 1;
}

/* Where a group begins a pass: takes the results of its batches' last pass, and samples. */
enum err pipe_sample(struct pipe *p, int64_t pass);
/* Waits for the batch's hidden states: *x [n_tokens, dim] until pipe_used(). ERR_CORRUPT: they are
 * not of this batch and pass. */
enum err pipe_take(struct pipe *p, struct batch *t, const float **x);
/* The oldest message that was taken is not used any more; nothing if none was. */
void pipe_used(struct pipe *p);
/* The buffer that the batch's hidden states are to be copied to, and sends it once they are there;
 * in order. ERR_STOPPED, ERR_IO: while a buffer is waited for. */
enum err pipe_pass(struct pipe *p, const struct batch *t, float **x);
enum err pipe_send(struct pipe *p, const struct batch *t);
/* The last rank, behind the head: sends the batch's results. */
enum err pipe_answer(struct pipe *p, const struct batch *t);
/* After the last step: waits until what was sent has arrived, takes what is left. */
enum err pipe_end(struct pipe *p);

#endif
