/* offload/mover.c - see mover.h.
 *
 * Owns: the thread, the queue of tickets, the table of pieces in flight. The one fact a newcomer
 * would miss: every field of a ticket below "written by the mover" is read and written under the
 * mutex only, so the walker never sees half a state; the ring itself is touched by the mover's
 * thread alone. */
#include "offload/mover.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/thread.h"

#define SEEN_UNIT   4096 // extents, and so their pieces, begin at multiples of this
#define MOVER_LANES (LANE_D2H + 1)

struct piece {
    struct ring_io io; // of a device place: its bytes all the same, and err when it is done
    struct ticket *ticket;
    struct mover *mover;
    int64_t index; // of MOVER_PIECE within segment 0, for its CRC
    uint8_t *to;   // where the n_bytes go that io.buf holds; the same unless they are encoded
    int64_t n_bytes;
    uint8_t *staging;   // borrowed: [MOVER_PIECE], or NULL
    int verify;         // the CRC of this piece is due
    int reread;         // it was wrong once
    struct piece *next; // in free_pieces, or in landed
};

struct mover {
    struct ring *ring;   // owned; the mover's thread only
    struct trace *trace; // borrowed
    pthread_t thread;
    pthread_mutex_t lock; // guards the fields below and the private part of tickets
    pthread_cond_t done;
    struct ticket *queue;  // QUEUED with pieces still to submit, by due, then by seq
    uint64_t seq;          // tickets ever submitted
    uint64_t verify_phase; // decides which pieces are checked again after their first read
    int stop;
    struct piece *pieces; // owned; [depth]
    struct piece *free_pieces;
    int depth;
    struct codec *codec;       // owned; NULL without stored pieces
    int n_flying[MOVER_LANES]; // pieces in flight
    int64_t flying_since_ns[MOVER_LANES];
    uint8_t *seen[MOVER_PLACES_MAX]; // owned; bit per SEEN_UNIT of the file: the piece that starts
                                     // there was verified once
    int64_t seen_pieces[MOVER_PLACES_MAX];
    const char *paths[MOVER_PLACES_MAX];    // borrowed: for messages
    int file[MOVER_PLACES_MAX];             // the ring's index, or -1: device memory
    uint8_t *device_base[MOVER_PLACES_MAX]; // borrowed
    struct stream *streams[2];              // owned; device to RAM, RAM to device
    pthread_mutex_t landed_lock;            // guards `landed` alone: a device's thread takes it
    struct piece *landed;                   // copies that are done
};

/* CRCs are checked at the first read of a piece in this run, then once in 16. */
static int verify_due(struct mover *m, int place, int64_t offset)
{
    int64_t at = offset / SEEN_UNIT;
    if (at >= m->seen_pieces[place])
        return 1;
    uint8_t bit = (uint8_t)(1u << (at & 7));
    if (!(m->seen[place][at >> 3] & bit)) {
        m->seen[place][at >> 3] |= bit;
        return 1;
    }
    return mix64(m->verify_phase++) % 16 == 0;
}

static void ticket_finish(struct mover *m, struct ticket *t)
{
    t->state = TICKET_DONE;
    pthread_cond_broadcast(&m->done);
}

static int ticket_ready(const struct ticket *t)
{
    const struct ticket *a = t->after;
    return !a || a->state != TICKET_QUEUED || a->seq != t->after_seq;
}

/* The first ticket of the queue that may start. */
static struct ticket **queue_pick(struct mover *m)
{
    struct ticket **at = &m->queue;
    while (*at && !ticket_ready(*at))
        at = &(*at)->next;
    return at;
}

static enum lane lane_of(const struct mover *m, const struct ticket *t)
{
    if (m->file[t->place] < 0)
        return t->write ? LANE_H2D : LANE_D2H;
    return t->write ? LANE_NVME_WRITE : LANE_NVME_READ;
}

static void lane_count(struct mover *m, enum lane lane, int change, int64_t bytes)
{
    int64_t now = clock_ns();
    if (m->n_flying[lane] == 0 && change > 0)
        m->flying_since_ns[lane] = now;
    m->n_flying[lane] += change;
    struct lane_total *total = &m->trace->totals[lane];
    total->bytes += bytes;
    atomic_fetch_add_explicit(&m->trace->moved_bytes[lane], bytes, memory_order_relaxed);
    if (m->n_flying[lane] == 0)
        total->busy_ns += now - m->flying_since_ns[lane];
}

/* Where a ticket's next piece comes from, and whether into its place or, encoded, into staging. */
static void piece_aim(struct piece *p, const struct ticket *t)
{
    const struct segment *s = &t->segments[t->next_segment];
    int64_t at = t->next_byte;
    p->n_bytes = min_i64(MOVER_PIECE, s->n_bytes - at);
    p->to = (uint8_t *)s->buf + at;
    p->io.offset = s->offset + at;
    p->io.n_bytes = p->n_bytes;
    p->io.buf = p->to;
    if (!t->stored)
        return;
    const struct codec_piece *stored = &t->stored[at / MOVER_PIECE];
    CHECK(stored->stored_bytes > 0 && stored->stored_bytes <= p->n_bytes && p->staging);
    p->io.offset = stored->offset;
    p->io.n_bytes = stored->stored_bytes;
    if (stored->stored_bytes < p->n_bytes)
        p->io.buf = p->staging;
}

/* Cuts the next piece off a ticket into p; the ticket leaves the queue with its last piece. */
static void piece_cut(struct mover *m, struct ticket **at, struct piece *p)
{
    struct ticket *t = *at;
    const struct segment *s = &t->segments[t->next_segment];
    p->ticket = t;
    p->index = t->next_byte / MOVER_PIECE;
    p->reread = 0;
    p->io = (struct ring_io){.file = m->file[t->place], .write = t->write, .user = p};
    piece_aim(p, t);
    p->verify =
        t->crc && !t->write && t->next_segment == 0 && verify_due(m, t->place, p->io.offset);
    if (t->in_flight++ == 0 && t->start_ns == 0)
        t->start_ns = clock_ns();
    t->next_byte += p->n_bytes;
    if (t->next_byte == s->n_bytes) {
        t->next_byte = 0;
        t->next_segment++;
    }
    if (t->next_segment == t->n_segments)
        *at = t->next;
}

static void ticket_fail(struct ticket *t, enum err e, const char *text)
{
    if (t->err == OK) {
        t->err = e;
        size_t n = strlen(text);
        n = n < sizeof t->err_text ? n : sizeof t->err_text - 1;
        memcpy(t->err_text, text, n);
        t->err_text[n] = 0;
    }
}

static void ticket_trace(struct mover *m, struct ticket *t)
{
    enum lane lane = lane_of(m, t);
    struct trace *trace = m->trace;
    struct lane_total total = trace->totals[lane];
    trace_add(trace, lane,
              (struct trace_event){.name = t->name ? t->name : "io",
                                   .start_ns = t->start_ns,
                                   .end_ns = clock_ns(),
                                   .step = t->due,
                                   .bytes = t->n_bytes,
                                   .layer = t->layer,
                                   .batch = t->batch});
    trace->totals[lane].busy_ns = total.busy_ns; // lanes count union time and bytes by piece
    trace->totals[lane].bytes = total.bytes;
}

/* Brings what was read into its place, and checks it there when that is due. */
static int piece_is_right(struct mover *m, const struct piece *p)
{
    if (p->io.buf != p->to &&
        codec_decompress(m->codec, p->io.buf, p->io.n_bytes, p->to, p->n_bytes) != 0)
        return 0;
    return !p->verify || crc32c(0, p->to, p->n_bytes) == p->ticket->crc[p->index];
}

static void piece_wrong(struct mover *m, const struct piece *p)
{
    struct ticket *t = p->ticket;
    fail(ERR_CORRUPT, "%s: layer %d, bytes %lld..%lld: checksum is wrong (%s)",
         t->stored ? m->paths[t->place]
         : t->name ? t->name
                   : "file",
         t->layer, (long long)p->io.offset, (long long)(p->io.offset + p->io.n_bytes),
         t->stored ? "delete the file: it is made again" : "pack it again");
    ticket_fail(t, ERR_CORRUPT, err_text());
}

/* One completed io. Returns 1 when the piece went out again (a checksum's second chance). */
static int piece_complete(struct mover *m, struct piece *p)
{
    struct ticket *t = p->ticket;
    if (p->io.err != OK) {
        ticket_fail(t, p->io.err, p->io.err_text);
    } else if (!piece_is_right(m, p)) {
        if (p->reread) {
            piece_wrong(m, p);
            return 0;
        }
        p->reread = 1;
        struct ring_io io = p->io;
        p->io = (struct ring_io){
            .file = io.file, .offset = io.offset, .n_bytes = io.n_bytes, .buf = io.buf, .user = p};
        if (ring_submit(m->ring, &p->io) == OK)
            return 1;
        ticket_fail(t, ERR_IO, err_text());
    }
    return 0;
}

static void piece_retire(struct mover *m, struct piece *p)
{
    struct ticket *t = p->ticket;
    lane_count(m, lane_of(m, t), -1, p->io.err == OK ? p->io.n_bytes : 0);
    p->next = m->free_pieces;
    m->free_pieces = p;
    t->in_flight--;
    if (t->in_flight == 0 && t->next_segment == t->n_segments) {
        ticket_trace(m, t);
        ticket_finish(m, t);
    }
}

/* A copy is done: on a thread of the device, or within piece_copy. */
static void piece_landed(void *ctx, enum err err)
{
    struct piece *p = ctx;
    struct mover *m = p->mover;
    p->io.err = err;
    if (err != OK)
        snprintf(p->io.err_text, sizeof p->io.err_text, "device: a copy failed");
    pthread_mutex_lock(&m->landed_lock);
    p->next = m->landed;
    m->landed = p;
    pthread_mutex_unlock(&m->landed_lock);
    ring_wake(m->ring);
}

static void piece_copy(struct mover *m, struct piece *p)
{
    struct stream *s = m->streams[p->io.write];
    uint8_t *there = m->device_base[p->ticket->place] + p->io.offset;
    const struct device_api *api = s->device->api;
    api->copy(s, p->io.write ? there : p->io.buf, p->io.write ? p->io.buf : there, p->io.n_bytes);
    api->notify(s, piece_landed, p);
}

/* Submits what fits; called and returns with the lock held. */
static void submit_pieces(struct mover *m)
{
    while (m->free_pieces) {
        struct ticket **at = queue_pick(m);
        if (!*at)
            return;
        struct piece *p = m->free_pieces;
        m->free_pieces = p->next;
        piece_cut(m, at, p);
        lane_count(m, lane_of(m, p->ticket), 1, 0);
        if (p->io.file < 0) {
            piece_copy(m, p);
            continue;
        }
        enum err e = ring_submit(m->ring, &p->io);
        if (e != OK) {
            CHECK(e != ERR_BUSY); // there are as many pieces as the ring is deep
            ticket_fail(p->ticket, e, err_text());
            p->io.err = e;
            piece_retire(m, p);
        }
    }
}

/* Retires the copies that are done; the lock is held. */
static void retire_landed(struct mover *m)
{
    pthread_mutex_lock(&m->landed_lock);
    struct piece *p = m->landed;
    m->landed = NULL;
    pthread_mutex_unlock(&m->landed_lock);
    while (p) {
        struct piece *next = p->next;
        if (p->io.err != OK)
            ticket_fail(p->ticket, p->io.err, p->io.err_text);
        piece_retire(m, p);
        p = next;
    }
}

static void *mover_main(void *arg)
{
    struct mover *m = arg;
    struct ring_io *done[64];
    pthread_mutex_lock(&m->lock);
    for (;;) {
        retire_landed(m);
        submit_pieces(m);
        int flying = 0;
        for (int lane = 0; lane < MOVER_LANES; lane++)
            flying += m->n_flying[lane];
        if (m->stop && flying == 0)
            break;
        pthread_mutex_unlock(&m->lock);
        int n = ring_reap(m->ring, done, 64, RING_IDLE);
        pthread_mutex_lock(&m->lock);
        for (int i = 0; i < n; i++) {
            struct piece *p = done[i]->user;
            pthread_mutex_unlock(&m->lock); // a CRC takes a while; the piece is ours alone
            int again = piece_complete(m, p);
            pthread_mutex_lock(&m->lock);
            if (!again)
                piece_retire(m, p);
            submit_pieces(m); // the disk must not wait for the others of this reap
        }
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

static enum err add_places(struct mover *m, const struct mover_config *config)
{
    for (int i = 0; i < config->n_places; i++) {
        const struct mover_place *f = &config->places[i];
        m->file[i] = -1;
        m->device_base[i] = f->base;
        m->paths[i] = f->path;
        if (f->base || !f->path)
            continue;
        TRY(ring_file_add(m->ring, f->path, f->fd, f->fd >= 0 ? O_RDWR : O_RDONLY, &m->file[i]));
        m->seen_pieces[i] = f->fd >= 0 ? 0 : f->n_bytes / SEEN_UNIT + 1;
        m->seen[i] = calloc((size_t)(m->seen_pieces[i] / 8 + 1), 1);
        if (!m->seen[i])
            return fail(ERR_FIT, "memory: mover tables");
    }
    for (int i = 0; i < 2 && config->device; i++)
        TRY(config->device->api->stream_open(config->device, &m->streams[i]));
    return OK;
}

static enum err mover_start(struct mover *m, const struct mover_config *config)
{
    struct ring_buffer buffer = {config->base, config->n_bytes};
    struct ring_config ring = {.kind = config->kind,
                               .depth = config->depth,
                               .buffers = &buffer,
                               .n_buffers = config->base ? 1 : 0,
                               .faults = config->fault};
    TRY(ring_open(&m->ring, &ring));
    TRY(add_places(m, config));
    m->depth = ring_depth(m->ring);
    m->pieces = calloc((size_t)m->depth, sizeof *m->pieces);
    if (!m->pieces)
        return fail(ERR_FIT, "memory: mover tables");
    if (config->staging)
        TRY(codec_open(&m->codec, 0));
    for (int i = 0; i < m->depth; i++) {
        m->pieces[i].mover = m;
        if (config->staging)
            m->pieces[i].staging = (uint8_t *)config->staging + (int64_t)i * MOVER_PIECE;
        m->pieces[i].next = m->free_pieces;
        m->free_pieces = &m->pieces[i];
    }
    int code = thread_start(&m->thread, mover_main, m);
    if (code)
        return fail(ERR_FIT,
                    "mover: cannot start its thread: %s (raise ulimit -u or the cgroup's pids.max)",
                    strerror(code));
    return OK;
}

static void mover_free(struct mover *m)
{
    for (int i = 0; i < 2; i++)
        if (m->streams[i])
            m->streams[i]->device->api->stream_close(m->streams[i]);
    ring_close(m->ring);
    for (int i = 0; i < MOVER_PLACES_MAX; i++)
        free(m->seen[i]);
    free(m->pieces);
    codec_close(m->codec);
    pthread_mutex_destroy(&m->landed_lock);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->done);
    free(m);
}

enum err mover_open(struct mover **out, const struct mover_config *config)
{
    *out = NULL;
    struct mover *m = calloc(1, sizeof *m);
    if (!m)
        return fail(ERR_FIT, "memory: mover");
    pthread_mutex_init(&m->lock, NULL);
    pthread_mutex_init(&m->landed_lock, NULL);
    pthread_cond_init(&m->done, NULL);
    m->trace = config->trace;
    enum err e = mover_start(m, config);
    if (e != OK) {
        mover_free(m);
        return e;
    }
    *out = m;
    return OK;
}

void mover_submit(struct mover *m, struct ticket *t)
{
    pthread_mutex_lock(&m->lock);
    CHECK(t->state == TICKET_IDLE);
    t->seq = ++m->seq;
    t->after_seq = t->after ? t->after->seq : 0;
    t->err = OK;
    t->next_segment = t->in_flight = 0;
    t->next_byte = t->n_bytes = t->start_ns = 0;
    CHECK(!t->stored || (!t->write && t->n_segments == 1));
    for (int i = 0; i < t->n_segments; i++) {
        CHECK(t->segments[i].n_bytes > 0);
        t->n_bytes += t->segments[i].n_bytes;
    }
    for (int64_t i = 0; t->stored && i < ceil_div(t->segments[0].n_bytes, MOVER_PIECE); i++)
        t->n_bytes += t->stored[i].stored_bytes -
                      min_i64(MOVER_PIECE, t->segments[0].n_bytes - i * MOVER_PIECE);
    t->state = t->n_segments > 0 ? TICKET_QUEUED : TICKET_DONE;
    if (t->state == TICKET_QUEUED) {
        struct ticket **at = &m->queue;
        while (*at && (*at)->due <= t->due)
            at = &(*at)->next;
        t->next = *at;
        *at = t;
    }
    pthread_mutex_unlock(&m->lock);
    ring_wake(m->ring);
}

int mover_done(struct mover *m, const struct ticket *t)
{
    pthread_mutex_lock(&m->lock);
    int done = t->state != TICKET_QUEUED;
    pthread_mutex_unlock(&m->lock);
    return done;
}

enum err mover_wait(struct mover *m, struct ticket *t)
{
    pthread_mutex_lock(&m->lock);
    while (t->state == TICKET_QUEUED)
        pthread_cond_wait(&m->done, &m->lock);
    enum err e = t->state == TICKET_DONE ? t->err : OK;
    t->state = TICKET_IDLE;
    t->err = OK;
    pthread_mutex_unlock(&m->lock);
    return e == OK ? OK : fail(e, "%s", t->err_text);
}

void mover_close(struct mover *m)
{
    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    m->stop = 1;
    m->queue = NULL;
    pthread_mutex_unlock(&m->lock);
    ring_wake(m->ring);
    pthread_join(m->thread, NULL);
    mover_free(m);
}
