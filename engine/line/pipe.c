/* engine/line/pipe.c - see pipe.h. */
#include "engine/line/pipe.h"

#include <string.h>

/* A message: this, then the rows that are lost (a bit each), then numbers. */
struct head {
    int64_t pass;
    int32_t batch, n; // tokens, or positions
    int32_t n_rows;
    uint32_t crc; // CRC32C of all behind this struct
};

#define HEAD_BYTES round_up((int64_t)sizeof(struct head), CARVE_ALIGN)

static int64_t lost_bytes(int n_rows)
{
    return round_up(ceil_div(n_rows, 8), CARVE_ALIGN);
}

void pipe_place(struct pipe *p, struct carve *c)
{
    const struct plan *plan = c->plan;
    const int64_t front = HEAD_BYTES + lost_bytes(plan->batch), n = plan->window + 2;
    const int64_t token = c->set->shape->dim * (int64_t)sizeof(float);
    const int64_t candidates = c->set->work->filters ? plan->batch * (int64_t)HEAD_SAMPLE_MAX : 0;
    if (plan->groups <= 1)
        return;
    p->in = CARVE_BLOCKS(c, hidden_frames, ARENA_PINNED, n, front + plan->step_tokens * token);
    p->out = CARVE_BLOCKS(c, hidden_frames, ARENA_PINNED, n, front + plan->step_tokens * token);
    p->results = CARVE_SLAB(c, head, ARENA_HOST, plan->batches,
                            front + plan->head_positions * (int64_t)sizeof(struct head_result) +
                                candidates * (int64_t)sizeof(struct head_candidate));
    CARVE(c, head, ARENA_HOST, p->arriving, n);
    CARVE(c, head, ARENA_HOST, p->leaving, n);
    CARVE(c, head, ARENA_HOST, p->answers, plan->batches * (int64_t)PEERS_MAX);
    CARVE(c, head, ARENA_HOST, p->awaited, plan->batches);
}

/* Expects messages into all buffers that are free. */
static void post(struct pipe *p)
{
    const int from = peers_rank(p->peers) - 1;
    while (from >= 0 && p->n_posted < p->n_free + p->in.n) {
        const int64_t k = p->n_posted++ % p->in.n;
        peers_receive(p->peers, from, PEERS_HIDDEN, slab_at(&p->in, k), p->in.n_bytes,
                      &p->arriving[k]);
    }
}

void pipe_open(struct pipe *p, struct peers *peers, const atomic_int *stop, struct batches *b,
               int dim)
{
    p->peers = peers;
    p->stop = stop;
    p->batches = b;
    p->dim = dim;
    if (!peers)
        return;
    memset(p->arriving, 0, (size_t)p->in.n * sizeof *p->arriving);
    memset(p->leaving, 0, (size_t)p->out.n * sizeof *p->leaving);
    memset(p->answers, 0, (size_t)b->plan->batches * PEERS_MAX * sizeof *p->answers);
    memset(p->awaited, 0, (size_t)b->plan->batches);
    post(p);
}

/* ---- the front of a message ---- */

static void write_front(uint8_t *to, const struct batch *t, int n)
{
    const struct head h = {.pass = t->pass, .batch = t->index, .n = n, .n_rows = t->n_rows};
    memset(to, 0, (size_t)(HEAD_BYTES + lost_bytes(t->n_rows)));
    memcpy(to, &h, sizeof h);
    for (int r = 0; r < t->n_rows; r++)
        if (t->rows[r].request && t->rows[r].lost)
            to[HEAD_BYTES + r / 8] |= (uint8_t)(1 << (r % 8));
}

static void seal(uint8_t *message, int64_t n_bytes)
{
    struct head h;
    memcpy(&h, message, sizeof h);
    h.crc = crc32c(0, message + HEAD_BYTES, n_bytes - HEAD_BYTES);
    memcpy(message, &h, sizeof h);
}

/* Checks a message of a batch and marks its lost rows. */
static enum err read_front(const struct pipe *p, const uint8_t *message, int64_t n_bytes,
                           struct batch *t, int n, int64_t numbers)
{
    struct head h;
    memcpy(&h, message, sizeof h);
    if (n_bytes != HEAD_BYTES + lost_bytes(t->n_rows) + numbers || h.pass != t->pass ||
        h.batch != t->index || h.n != n || h.n_rows != t->n_rows)
        return fail(
            ERR_CORRUPT,
            "--pipeline: rank %d was told of batch %d, pass %lld, %d numbers and is at batch "
            "%d, pass %lld, %d (a bug: ranks must decide alike)",
            peers_rank(p->peers), h.batch, (long long)h.pass, h.n, t->index, (long long)t->pass, n);
    if (h.crc != crc32c(0, message + HEAD_BYTES, n_bytes - HEAD_BYTES))
        return fail(ERR_CORRUPT, "--pipeline: a message of batch %d arrived with other bytes",
                    t->index);
    for (int r = 0; r < t->n_rows; r++)
        if (t->rows[r].request && message[HEAD_BYTES + r / 8] >> (r % 8) & 1)
            t->rows[r].lost = 1;
    return OK;
}

/* Waits for a message, and counts the time. */
static enum err wait_for(struct pipe *p, struct parcel *parcel)
{
    const int64_t start_ns = clock_ns();
    enum err err = peers_wait(p->peers, parcel, p->stop);
    p->waited_ns += clock_ns() - start_ns;
    return err;
}

/* ---- hidden states ---- */

enum err pipe_take(struct pipe *p, struct batch *t, const float **x)
{
    const int64_t k = p->n_in++ % p->in.n;
    const uint8_t *message = slab_at(&p->in, k);
    TRY(wait_for(p, &p->arriving[k]));
    p->in_bytes += p->arriving[k].n_bytes;
    p->in_tokens += t->n_tokens;
    TRY(read_front(p, message, p->arriving[k].n_bytes, t, t->n_tokens,
                   (int64_t)t->n_tokens * p->dim * 4));
    *x = (const float *)(const void *)(message + HEAD_BYTES + lost_bytes(t->n_rows));
    return OK;
}

void pipe_used(struct pipe *p)
{
    p->n_free += p->n_free < p->n_in;
    post(p);
}

enum err pipe_pass(struct pipe *p, const struct batch *t, float **x)
{
    const int64_t k = p->n_out++ % p->out.n;
    TRY(peers_wait(p->peers, &p->leaving[k], p->stop));
    uint8_t *message = slab_at(&p->out, k);
    *x = (float *)(void *)(message + HEAD_BYTES + lost_bytes(t->n_rows));
    return OK;
}

enum err pipe_send(struct pipe *p, const struct batch *t)
{
    const int64_t k = p->n_sent++ % p->out.n;
    uint8_t *message = slab_at(&p->out, k);
    const int64_t n = HEAD_BYTES + lost_bytes(t->n_rows) + (int64_t)t->n_tokens * p->dim * 4;
    write_front(message, t, t->n_tokens);
    seal(message, n);
    peers_send(p->peers, peers_rank(p->peers) + 1, PEERS_HIDDEN, message, n, &p->leaving[k]);
    p->awaited[t->index] = 1;
    return OK;
}

/* ---- results ---- */

static struct parcel *answer_of(const struct pipe *p, const struct batch *t, int to)
{
    return &p->answers[(int64_t)t->index * PEERS_MAX + to];
}

/* Copies the candidates of sampled positions to a message or from it. */
static void move_candidates(const struct batches *b, const struct batch *t, uint8_t *message,
                            int in)
{
    struct head_candidate *all = b->heads[0].candidates;
    const size_t n = HEAD_SAMPLE_MAX * sizeof *all;
    for (int i = 0; i < t->n_positions && all; i++) {
        if (!(t->requests[i].want & HEAD_FILTER))
            continue;
        struct head_candidate *own = all + (int64_t)t->requests[i].place * HEAD_SAMPLE_MAX;
        memcpy(in ? (void *)own : message, in ? message : (const void *)own, n);
        message += n;
    }
}

/* Bytes of a message's numbers. */
static int64_t answer_bytes(const struct batches *b, const struct batch *t)
{
    int64_t filtered = 0;
    for (int i = 0; i < t->n_positions && b->heads[0].candidates; i++)
        filtered += (t->requests[i].want & HEAD_FILTER) != 0;
    return t->n_positions * (int64_t)sizeof *t->results +
           filtered * HEAD_SAMPLE_MAX * (int64_t)sizeof(struct head_candidate);
}

enum err pipe_answer(struct pipe *p, const struct batch *t)
{
    uint8_t *message = slab_at(&p->results, t->index);
    const int64_t front = HEAD_BYTES + lost_bytes(t->n_rows),
                  results = t->n_positions * (int64_t)sizeof *t->results,
                  n = front + answer_bytes(p->batches, t);
    const int ranks = peers_n(p->peers);
    for (int to = 0; to < ranks - 1; to++) // of this batch's pass before
        TRY(peers_wait(p->peers, answer_of(p, t, to), p->stop));
    write_front(message, t, t->n_positions);
    memcpy(message + front, t->results, (size_t)results);
    move_candidates(p->batches, t, message + front + results, 0);
    seal(message, n);
    for (int to = 0; to < ranks - 1; to++)
        peers_send(p->peers, to, PEERS_RESULTS, message, n, answer_of(p, t, to));
    p->awaited[t->index] = 1;
    return OK;
}

/* Takes the results of a batch from the last rank. */
static enum err take_answer(struct pipe *p, struct batch *t)
{
    uint8_t *message = slab_at(&p->results, t->index);
    struct parcel *parcel = answer_of(p, t, 0);
    const int64_t front = HEAD_BYTES + lost_bytes(t->n_rows),
                  results = t->n_positions * (int64_t)sizeof *t->results;
    peers_receive(p->peers, peers_n(p->peers) - 1, PEERS_RESULTS, message, p->results.n_bytes,
                  parcel);
    TRY(wait_for(p, parcel));
    TRY(read_front(p, message, parcel->n_bytes, t, t->n_positions, answer_bytes(p->batches, t)));
    memcpy(t->results, message + front, (size_t)results);
    move_candidates(p->batches, t, message + front + results, 1);
    return OK;
}

enum err pipe_sample(struct pipe *p, int64_t pass)
{
    const struct order order = plan_order(p->batches->plan);
    const int first = order_first(&order, pass);
    for (int i = first; i < first + order.batches; i++) {
        if (!p->awaited[i])
            continue;
        p->awaited[i] = 0;
        if (!pipe_is_last(p))
            TRY(take_answer(p, &p->batches->batch[i]));
        TRY(batch_sample(p->batches, i));
    }
    return OK;
}

/* The batch whose results come next; NULL: none is awaited. */
static struct batch *next_answer(const struct pipe *p)
{
    struct batch *next = NULL;
    for (int i = 0; i < p->batches->plan->batches; i++) {
        struct batch *t = &p->batches->batch[i];
        if (p->awaited[i] && (!next || t->pass < next->pass))
            next = t;
    }
    return next;
}

enum err pipe_end(struct pipe *p)
{
    if (!p->peers)
        return OK;
    for (int64_t k = p->n_in; k < p->n_posted; k++)
        peers_cancel(p->peers, &p->arriving[k % p->in.n]);
    for (int64_t k = 0; k < p->out.n; k++)
        TRY(peers_wait(p->peers, &p->leaving[k], p->stop));
    for (struct batch *t; !pipe_is_last(p) && (t = next_answer(p));) {
        p->awaited[t->index] = 0;
        TRY(take_answer(p, t));
    }
    for (int64_t k = 0; k < (int64_t)p->batches->plan->batches * PEERS_MAX; k++)
        TRY(peers_wait(p->peers, &p->answers[k], p->stop));
    return OK;
}
