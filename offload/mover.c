/* offload/mover.c - see mover.h.
 *
 * Owns: the thread, the queue of tickets, the table of pieces in flight. Note: fields of a ticket
 * that are "written by the mover" are accessed under the mutex only; the ring is used by the
 * mover's thread only. */
#include "offload/mover.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/thread.h"

#define MOVER_LANES (LANE_D2H + 1)
/* Limits of copies in flight between RAM and the device, per direction: KV pages are small and each
 * copy wakes two threads, so many fly at once; a few pieces of weights fill the link. */
#define COPIES     64
#define COPY_BYTES ((int64_t)64 << 20)
/* Smaller pieces are checked sooner than another thread wakes up. */
#define CHECK_LEAST (64 << 10)

/* One step of a piece. A piece between a file and the device takes both, one after the other. */
enum hop { HOP_FILE, HOP_COPY };

/* Each kind has its own pieces, so that copies in one direction never hold up the other. */
enum kind { KIND_FILE, KIND_TO_DEVICE, KIND_FROM_DEVICE, N_KINDS };

/* One transfer in flight: a part of one segment, or several whole adjacent segments. */
struct piece {
    struct ring_io io; // a copy uses only `err`, once it is done
    enum hop hop;
    struct ticket *ticket;
    struct mover *mover;
    int first, n;       // segments [first, first + n) of the ticket
    int64_t from;       // offset in the first segment, if the piece is a part of it
    int64_t n_bytes;    // bytes in memory; io.n_bytes of an encoded piece are fewer
    uint8_t *ram;       // decoded bytes in RAM; io.buf, unless the piece is encoded
    int64_t moved;      // bytes of this hop, rereads included
    uint8_t *staging;   // borrowed: [PIECE_BYTES], or NULL
    uint8_t *bounce;    // borrowed: [PIECE_BYTES], or NULL
    int again;          // the segment that is being read a second time; -1: none yet
    int n_wrong;        // of a read: segments with wrong bytes; -1: not checked
    struct piece *next; // in a list of free pieces, in `landed` or in `unchecked`
};

/* A thread that checks pieces. */
struct checker {
    struct mover *mover;
    pthread_t thread;
    struct codec *codec; // owned; NULL without stored pieces
};

struct mover {
    struct ring *ring;   // owned; the mover's thread only
    struct trace *trace; // borrowed
    pthread_t thread;
    pthread_mutex_t lock; // guards the fields below and the private part of tickets
    pthread_cond_t done;
    struct ticket *queue; // QUEUED with pieces still to submit, by due, then by seq
    uint64_t seq;         // tickets ever submitted
    int stop;
    struct piece *pieces;               // owned; [depth + 2 COPIES]
    struct piece *free_pieces[N_KINDS]; // lists: as many as the ring is deep for files, COPIES for
                                        // each direction of copies
    int64_t kind_bytes[N_KINDS];        // bytes in flight; not counted for files
    int depth;
    struct codec *codec;       // owned; NULL without stored pieces
    int n_flying[MOVER_LANES]; // pieces in flight
    int64_t flying_since_ns[MOVER_LANES];
    struct mover_place places[MOVER_PLACES_MAX]; // what they point to is borrowed
    int file[MOVER_PLACES_MAX];                  // the ring's index; -1: RAM
    struct stream *streams[2];                   // owned; RAM to device, device to RAM
    pthread_mutex_t landed_lock; // guards these lists: checkers and a device's thread lock it, too
    struct piece *landed;        // copies that are done, and pieces that are checked
    struct piece *unchecked, **unchecked_end; // first in, first out
    int checks_end;                           // 1: checkers end
    pthread_cond_t has_unchecked;
    struct checker checkers[MOVER_CHECKERS];
    int n_checkers;
    _Atomic int failed; // enum err of mover_failed(); set after failed_text
    char failed_text[256];
    _Atomic int64_t repaired, bad; // see struct mover_repairs
};

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

static enum kind kind_of(const struct mover *m, const struct ticket *t)
{
    if (m->file[t->place] >= 0)
        return KIND_FILE;
    return t->write ? KIND_FROM_DEVICE : KIND_TO_DEVICE;
}

static int kind_has_room(const struct mover *m, enum kind kind)
{
    return m->free_pieces[kind] != NULL && m->kind_bytes[kind] < COPY_BYTES;
}

static int ticket_may_start(const struct mover *m, const struct ticket *t)
{
    return kind_has_room(m, kind_of(m, t)) && ticket_ready(t);
}

/* The first ticket of the queue that may start. */
static struct ticket **queue_pick(struct mover *m)
{
    struct ticket **at = &m->queue;
    while (*at && !ticket_may_start(m, *at))
        at = &(*at)->next;
    return at;
}

static enum lane lane_of(const struct ticket *t, enum hop hop)
{
    if (hop == HOP_COPY)
        return t->write ? LANE_D2H : LANE_H2D;
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
    int64_t flying_ns = now - m->flying_since_ns[lane];
    if (m->n_flying[lane] == 0)
        total->busy_ns += flying_ns;
    atomic_store_explicit(&m->trace->busy_ns[lane],
                          total->busy_ns + (m->n_flying[lane] > 0 ? flying_ns : 0),
                          memory_order_relaxed);
}

/* Whole segments from `first` on that are adjacent in the file and in memory, `most` bytes in all.
 */
static int run_of_segments(const struct ticket *t, int first, int64_t most, int64_t *n_bytes)
{
    const struct segment *s = &t->segments[first];
    int n = 0;
    *n_bytes = 0;
    while (first + n < t->n_segments && *n_bytes + s[n].n_bytes <= most &&
           s[n].offset == s[0].offset + *n_bytes &&
           s[n].buf == (void *)((uint8_t *)s[0].buf + *n_bytes))
        *n_bytes += s[n++].n_bytes;
    return n;
}

/* Sets source and destination of a piece. An encoded piece is read into staging. */
static void piece_aim(struct piece *p)
{
    const struct ticket *t = p->ticket;
    const struct segment *s = &t->segments[p->first];
    const struct mover *m = p->mover;
    p->hop = m->file[t->place] < 0 || (t->on_device && t->write) ? HOP_COPY : HOP_FILE;
    if (m->file[t->place] < 0)
        p->ram = (uint8_t *)m->places[t->place].base + s->offset + p->from;
    else
        p->ram = t->on_device ? p->bounce : (uint8_t *)s->buf + p->from;
    p->io = (struct ring_io){.file = m->file[t->place],
                             .write = t->write,
                             .offset = s->offset + p->from,
                             .n_bytes = p->n_bytes,
                             .buf = p->ram,
                             .user = p};
    if (!t->stored)
        return;
    const struct codec_piece *stored = &t->stored[p->from / PIECE_BYTES];
    CHECK(stored->stored_bytes > 0 && stored->stored_bytes <= p->n_bytes && p->staging);
    p->io.offset = stored->offset;
    p->io.n_bytes = stored->stored_bytes;
    if (stored->stored_bytes < p->n_bytes)
        p->io.buf = p->staging;
}

/* Cuts the next piece off a ticket into p; the ticket leaves the queue with its last piece. */
static void piece_cut(struct ticket **at, struct piece *p)
{
    struct ticket *t = *at;
    const struct segment *s = &t->segments[t->next_segment];
    int64_t most = kind_of(p->mover, t) == KIND_FILE ? PIECE_BYTES : MOVER_COPY_PIECE;
    p->ticket = t;
    p->first = t->next_segment;
    p->from = t->next_byte;
    p->moved = 0;
    p->again = p->n_wrong = -1;
    p->n = p->from == 0 ? run_of_segments(t, p->first, most, &p->n_bytes) : 0;
    if (p->n > 0) {
        t->next_segment += p->n;
    } else {
        p->n = 1;
        p->n_bytes = min_i64(most, s->n_bytes - p->from);
        t->next_byte += p->n_bytes;
        if (t->next_byte == s->n_bytes) {
            t->next_byte = 0;
            t->next_segment++;
        }
    }
    piece_aim(p);
    if (t->in_flight++ == 0 && t->start_ns == 0)
        t->start_ns = clock_ns();
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
    enum lane lane = lane_of(t, kind_of(m, t) == KIND_FILE ? HOP_FILE : HOP_COPY);
    trace_note(m->trace, lane, // lane totals are counted by piece
               (struct trace_event){.name = t->name ? t->name : "io",
                                    .start_ns = t->start_ns,
                                    .end_ns = clock_ns(),
                                    .step = t->due,
                                    .bytes = t->n_bytes,
                                    .layer = t->layer,
                                    .batch = t->batch});
}

/* Decodes an encoded piece from staging. 0: the bytes cannot be a stored piece. */
static int piece_decode(struct codec *codec, const struct piece *p)
{
    if (!p->staging || p->io.buf != p->staging)
        return 1;
    return codec_decompress(codec, p->io.buf, p->io.n_bytes, p->ram, p->n_bytes) == 0;
}

/* ---- the check of stored bytes ---- */

/* The piece's bytes of segment i in RAM. */
static uint8_t *unit_at(const struct piece *p, int i)
{
    const struct segment *s = p->ticket->segments;
    return p->ram + ((uint8_t *)s[i].buf - (uint8_t *)s[p->first].buf);
}

/* CRC32C of the piece's bytes of segment i. */
static uint32_t unit_crc(const struct piece *p, int i)
{
    const struct segment *s = &p->ticket->segments[i];
    if (s->crc_bytes > 0)
        return crc32c(s->seed, unit_at(p, i) + s->crc_from, s->crc_bytes);
    return crc32c(s->seed, unit_at(p, i), p->n > 1 ? s->n_bytes : p->n_bytes);
}

static int unit_is_right(const struct piece *p, int i)
{
    const struct segment *s = &p->ticket->segments[i];
    return !s->crc || unit_crc(p, i) == s->crc[p->from / PIECE_BYTES];
}

static void crcs_fill(const struct piece *p)
{
    for (int i = p->first; i < p->first + p->n; i++) {
        const struct segment *s = &p->ticket->segments[i];
        if (s->crc)
            s->crc[p->from / PIECE_BYTES] = unit_crc(p, i);
    }
}

/* Records the first error for which the run must end: see mover_failed(). */
static void mover_fail(struct mover *m, enum err e, const char *text)
{
    if (atomic_load(&m->failed) != OK)
        return;
    snprintf(m->failed_text, sizeof m->failed_text, "%s", text);
    atomic_store(&m->failed, (int)e);
}

/* Segment i failed: with the ring's error, or because its bytes were wrong in two reads. */
static void unit_fail(struct mover *m, struct piece *p, int i)
{
    struct ticket *t = p->ticket;
    enum err e = p->io.err;
    if (e == OK) {
        const struct mover_place *place = &m->places[t->place];
        e = fail(ERR_CORRUPT,
                 "%s: bytes %lld..%lld (%s of layer %d): checksum mismatch in two reads%s%s%s",
                 place->path, (long long)p->io.offset, (long long)(p->io.offset + p->io.n_bytes),
                 t->name ? t->name : "bytes", t->layer, place->hint ? " (" : "",
                 place->hint ? place->hint : "", place->hint ? ")" : "");
    } else {
        fail(e, "%s", p->io.err_text);
    }
    t->segments[i].err = e;
    ticket_fail(t, e, err_text());
    atomic_fetch_add(&m->bad, 1);
    if (t->write || e == ERR_DEVICE || ring_lost(m->ring))
        mover_fail(m, e, err_text());
}

/* Reads segment i of the piece again, alone. Returns 0 if the ring refuses. */
static int unit_read_again(struct mover *m, struct piece *p, int i)
{
    p->again = i;
    if (p->n > 1) {
        const struct segment *s = &p->ticket->segments[i];
        p->io.offset = s->offset;
        p->io.n_bytes = s->n_bytes;
        p->io.buf = unit_at(p, i);
    }
    if (ring_submit(m->ring, &p->io) == OK)
        return 1;
    p->io.err = ERR_IO;
    snprintf(p->io.err_text, sizeof p->io.err_text, "%s", err_text());
    return 0;
}

/* Reads the next wrong segment (ERR_BUSY) of a piece again. Returns 0 if none is left. */
static int units_again(struct mover *m, struct piece *p, int from)
{
    for (int i = from; i < p->first + p->n; i++) {
        if (p->n > 1 && p->ticket->segments[i].err != ERR_BUSY)
            continue;
        if (unit_read_again(m, p, i))
            return 1;
        unit_fail(m, p, i);
    }
    return 0;
}

/* A second read has completed. */
static int unit_complete(struct mover *m, struct piece *p)
{
    int i = p->again;
    int right = p->io.err == OK && piece_decode(m->codec, p) && unit_is_right(p, i);
    if (right) {
        if (p->n > 1)
            p->ticket->segments[i].err = OK;
        atomic_fetch_add(&m->repaired, 1);
    } else {
        unit_fail(m, p, i);
    }
    return units_again(m, p, i + 1);
}

/* Decodes and checks a piece that was read: the number of its wrong segments, which are marked by
 * ERR_BUSY if there are several. */
static int piece_check(struct codec *codec, struct piece *p)
{
    const int decoded = p->io.err == OK && piece_decode(codec, p);
    int n_wrong = 0;
    for (int i = p->first; i < p->first + p->n; i++) {
        const int wrong = !decoded || !unit_is_right(p, i);
        if (wrong && p->n > 1)
            p->ticket->segments[i].err = ERR_BUSY;
        n_wrong += wrong;
    }
    return n_wrong;
}

/* An io has completed. Returns 1 if the piece is in flight again: after a wrong checksum it is read
 * a second time, and after a read error its segments are read one by one, so that one bad sector
 * costs only its own segment. */
static int piece_complete(struct mover *m, struct piece *p)
{
    if (p->io.err == OK)
        p->moved += p->io.n_bytes;
    if (p->again >= 0)
        return unit_complete(m, p);
    if (p->io.write || (p->io.err != OK && (p->n == 1 || ring_lost(m->ring)))) {
        for (int i = p->first; p->io.err != OK && i < p->first + p->n; i++)
            unit_fail(m, p, i);
        return 0;
    }
    const int n_wrong = p->n_wrong >= 0 ? p->n_wrong : piece_check(m->codec, p);
    return n_wrong > 0 && units_again(m, p, p->first);
}

/* Frees the piece and, after the last piece, finishes the ticket. The lock is held. */
static void piece_retire(struct mover *m, struct piece *p)
{
    struct ticket *t = p->ticket;
    enum kind kind = kind_of(m, t);
    lane_count(m, lane_of(t, p->hop), -1, p->moved);
    m->kind_bytes[kind] -= kind == KIND_FILE ? 0 : p->n_bytes;
    p->next = m->free_pieces[kind];
    m->free_pieces[kind] = p;
    t->in_flight--;
    if (t->in_flight == 0 && t->next_segment == t->n_segments) {
        ticket_trace(m, t);
        ticket_finish(m, t);
    }
}

/* A copy is done; called by a thread of the device, or within piece_copy(). */
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
    const struct ticket *t = p->ticket;
    struct stream *s = m->streams[t->write];
    uint8_t *there = (uint8_t *)t->segments[p->first].buf + p->from;
    const struct device_api *api = s->device->api;
    api->copy(s, t->write ? p->ram : there, t->write ? there : p->ram, p->n_bytes);
    api->notify(s, piece_landed, p);
}

/* Starts a hop of a piece, which only the mover's thread uses. 0: the ring refuses, and the
 * segments have failed. */
static int piece_launch(struct mover *m, struct piece *p)
{
    if (p->hop == HOP_COPY) {
        piece_copy(m, p);
        return 1;
    }
    if (p->io.write)
        crcs_fill(p);
    enum err e = ring_submit(m->ring, &p->io);
    CHECK(e != ERR_BUSY); // there are as many pieces as the ring is deep
    if (e == OK)
        return 1;
    p->io.err = e;
    snprintf(p->io.err_text, sizeof p->io.err_text, "%s", err_text());
    for (int i = p->first; i < p->first + p->n; i++)
        unit_fail(m, p, i);
    return 0;
}

/* Starts pieces while there is room. The lock is held on entry and on return. */
static void submit_pieces(struct mover *m)
{
    for (;;) {
        struct ticket **at = queue_pick(m);
        if (!*at)
            return;
        enum kind kind = kind_of(m, *at);
        struct piece *p = m->free_pieces[kind];
        m->free_pieces[kind] = p->next;
        piece_cut(at, p);
        m->kind_bytes[kind] += kind == KIND_FILE ? 0 : p->n_bytes;
        lane_count(m, lane_of(p->ticket, p->hop), 1, 0);
        pthread_mutex_unlock(&m->lock); // checksums of writes take a while
        int flies = piece_launch(m, p);
        pthread_mutex_lock(&m->lock);
        if (!flies)
            piece_retire(m, p);
    }
}

/* Starts the second hop of a piece, on the other side of its bounce buffer. 0: there is none, or
 * the ring refuses. */
static int piece_hop(struct mover *m, struct piece *p)
{
    const struct ticket *t = p->ticket;
    int reads = p->hop == HOP_FILE && t->on_device && !t->write;
    int writes = p->hop == HOP_COPY && kind_of(m, t) == KIND_FILE && t->write && p->io.err == OK;
    if (!reads && !writes)
        return 0;
    pthread_mutex_lock(&m->lock);
    lane_count(m, lane_of(t, p->hop), -1, p->moved);
    p->hop = reads ? HOP_COPY : HOP_FILE;
    p->moved = 0;
    lane_count(m, lane_of(t, p->hop), 1, 0);
    pthread_mutex_unlock(&m->lock);
    return piece_launch(m, p);
}

/* An io or a copy is done. The lock is held on entry and on return. */
static void piece_done(struct mover *m, struct piece *p)
{
    pthread_mutex_unlock(&m->lock); // a CRC takes a while; only this thread uses the piece
    int again = 0;
    if (p->hop == HOP_FILE) {
        again = piece_complete(m, p);
    } else {
        p->moved = p->io.err == OK ? p->n_bytes : 0;
        for (int i = p->first; p->io.err != OK && i < p->first + p->n; i++)
            unit_fail(m, p, i);
    }
    if (!again)
        again = piece_hop(m, p);
    pthread_mutex_lock(&m->lock);
    if (!again)
        piece_retire(m, p);
}

/* Continues with the copies that are done. The lock is held. */
static void take_landed(struct mover *m)
{
    pthread_mutex_lock(&m->landed_lock);
    struct piece *p = m->landed;
    m->landed = NULL;
    pthread_mutex_unlock(&m->landed_lock);
    while (p) {
        struct piece *next = p->next;
        piece_done(m, p);
        p = next;
    }
}

static void *checker_main(void *arg)
{
    struct checker *c = arg;
    struct mover *m = c->mover;
    thread_short_slice();
    pthread_mutex_lock(&m->landed_lock);
    for (;;) {
        while (!m->unchecked && !m->checks_end)
            pthread_cond_wait(&m->has_unchecked, &m->landed_lock);
        struct piece *p = m->unchecked;
        if (!p)
            break;
        m->unchecked = p->next;
        if (!m->unchecked)
            m->unchecked_end = &m->unchecked;
        pthread_mutex_unlock(&m->landed_lock);
        p->n_wrong = piece_check(c->codec, p);
        pthread_mutex_lock(&m->landed_lock);
        p->next = m->landed;
        m->landed = p;
        ring_wake(m->ring);
    }
    pthread_mutex_unlock(&m->landed_lock);
    return NULL;
}

/* Gives a piece to the checkers. 0: it is not for them. */
static int piece_give(struct mover *m, struct piece *p)
{
    if (m->n_checkers == 0 || p->hop != HOP_FILE || p->io.write || p->io.err != OK ||
        p->again >= 0 || p->n_bytes < CHECK_LEAST)
        return 0;
    p->next = NULL;
    pthread_mutex_lock(&m->landed_lock);
    *m->unchecked_end = p;
    m->unchecked_end = &p->next;
    pthread_cond_signal(&m->has_unchecked);
    pthread_mutex_unlock(&m->landed_lock);
    return 1;
}

static enum err checkers_start(struct mover *m, const struct mover_config *config)
{
    CHECK(config->n_checkers >= 0 && config->n_checkers <= MOVER_CHECKERS);
    for (int i = 0; i < config->n_checkers; i++) {
        struct checker *c = &m->checkers[i];
        c->mover = m;
        if (config->staging)
            TRY(codec_open(&c->codec, 0));
        enum err e = thread_need(&c->thread, checker_main, c, "mover", "thread");
        if (e != OK) {
            codec_close(c->codec);
            return e;
        }
        m->n_checkers++;
    }
    return OK;
}

static void checkers_stop(struct mover *m)
{
    pthread_mutex_lock(&m->landed_lock);
    m->checks_end = 1;
    pthread_cond_broadcast(&m->has_unchecked);
    pthread_mutex_unlock(&m->landed_lock);
    for (int i = 0; i < m->n_checkers; i++) {
        pthread_join(m->checkers[i].thread, NULL);
        codec_close(m->checkers[i].codec);
    }
}

static void *mover_main(void *arg)
{
    struct mover *m = arg;
    struct ring_io *done[64];
    thread_short_slice();
    pthread_mutex_lock(&m->lock);
    for (;;) {
        take_landed(m);
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
            if (!piece_give(m, done[i]->user))
                piece_done(m, done[i]->user);
            submit_pieces(m); // keeps the disk busy while the rest is handled
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
        m->places[i] = *f;
        if (f->base || !f->path)
            continue;
        if (f->scratch)
            TRY(scratch_add(f->scratch, m->ring, f->path, &m->file[i]));
        else
            TRY(ring_file_add(m->ring, f->path, -1, O_RDONLY, &m->file[i]));
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
                               .n_buffers = config->base ? 1 : 0};
    TRY(ring_open(&m->ring, &ring));
    TRY(add_places(m, config));
    m->depth = ring_depth(m->ring);
    m->pieces = calloc((size_t)m->depth + 2 * COPIES, sizeof *m->pieces);
    if (!m->pieces)
        return fail(ERR_FIT, "no memory for the tables of the mover");
    if (config->staging)
        TRY(codec_open(&m->codec, 0));
    for (int i = 0; i < m->depth + 2 * COPIES; i++) {
        struct piece *p = &m->pieces[i];
        enum kind kind = i < m->depth            ? KIND_FILE
                         : i < m->depth + COPIES ? KIND_TO_DEVICE
                                                 : KIND_FROM_DEVICE;
        p->mover = m;
        if (config->staging && kind == KIND_FILE)
            p->staging = (uint8_t *)config->staging + (int64_t)i * PIECE_BYTES;
        if (config->bounce && kind == KIND_FILE)
            p->bounce = (uint8_t *)config->bounce + (int64_t)i * PIECE_BYTES;
        p->next = m->free_pieces[kind];
        m->free_pieces[kind] = p;
    }
    TRY(checkers_start(m, config));
    return thread_need(&m->thread, mover_main, m, "mover", "thread");
}

static void mover_free(struct mover *m)
{
    checkers_stop(m);
    for (int i = 0; i < 2; i++)
        if (m->streams[i])
            m->streams[i]->device->api->stream_close(m->streams[i]);
    ring_close(m->ring);
    free(m->pieces);
    codec_close(m->codec);
    pthread_mutex_destroy(&m->landed_lock);
    pthread_cond_destroy(&m->has_unchecked);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->done);
    free(m);
}

enum err mover_open(struct mover **out, const struct mover_config *config)
{
    *out = NULL;
    struct mover *m = calloc(1, sizeof *m);
    if (!m)
        return fail(ERR_FIT, "no memory for the mover");
    pthread_mutex_init(&m->lock, NULL);
    pthread_mutex_init(&m->landed_lock, NULL);
    pthread_cond_init(&m->has_unchecked, NULL);
    m->unchecked_end = &m->unchecked;
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
    CHECK(!t->on_device || m->streams[0]);
    CHECK(t->on_device || m->file[t->place] >= 0);
    for (int i = 0; i < t->n_segments; i++) {
        struct segment *s = &t->segments[i];
        CHECK(s->n_bytes > 0 && (s->crc_bytes == 0 || s->n_bytes <= PIECE_BYTES));
        CHECK(s->crc || t->write || m->file[t->place] < 0); // all reads of files are checked
        s->err = OK;
        t->n_bytes += s->n_bytes;
    }
    for (int64_t i = 0; t->stored && i < ceil_div(t->segments[0].n_bytes, PIECE_BYTES); i++)
        t->n_bytes += t->stored[i].stored_bytes -
                      min_i64(PIECE_BYTES, t->segments[0].n_bytes - i * PIECE_BYTES);
    t->state = t->n_segments > 0 ? TICKET_QUEUED : TICKET_DONE;
    int starts = 0;
    if (t->state == TICKET_QUEUED) {
        struct ticket **at = &m->queue;
        while (*at && (*at)->due <= t->due)
            at = &(*at)->next;
        t->next = *at;
        *at = t;
        starts = ticket_may_start(m, t);
    }
    pthread_mutex_unlock(&m->lock);
    if (starts) // else a piece in flight must end first, and its end wakes the mover
        ring_wake(m->ring);
}

const char *mover_io_name(const struct mover *m)
{
    return ring_name(m->ring);
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

enum err mover_failed(struct mover *m)
{
    enum err e = (enum err)atomic_load(&m->failed);
    return e == OK ? OK : fail(e, "%s", m->failed_text);
}

void mover_repairs(struct mover *m, struct mover_repairs *repairs)
{
    *repairs = (struct mover_repairs){atomic_load(&m->repaired), atomic_load(&m->bad)};
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
