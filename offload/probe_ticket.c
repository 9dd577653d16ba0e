/* offload/probe_ticket.c - of probe.h: transfers as runs have them: few in flight, through the
 * mover, with a thread that waits for each, and beside ops.
 *
 * Owns: a mover on the scratch file. Refuses: the rates at full depth (probe_disk.c).
 * Note: the mover writes the first MiBs of the file, too, because it reads nothing without
 * checksums. */
#include "offload/probe_impl.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "kernels/base/thread.h"
#include "offload/disk_probe.h"
#include "offload/mover.h"

#define PIECES         64 // of the file, at most
#define BUFFERS        4  // pieces in memory, all in flight at once
#define BUFFERS_BYTES  (BUFFERS * (int64_t)PIECE_BYTES)
#define READERS        2 // tickets in turn
#define ROWS           64
#define ROW_BYTES      4096
#define DEPTH_S        0.15
#define TICKETS_S      0.15
#define ROUNDS         5
#define ROUND_S        0.04
#define TICKET_LEAST_S 1e-6 // two threads wake up: no ticket takes less
#define SAMPLES_MAX    2000
#define WEIGHTS_BYTES  (32 * PROBE_MIB)
#define MATMUL_DIM     2048
#define MATMUL_LEAST   256
#define MATMUL_ROWS    16

struct ticket_bed {
    struct mover *mover;
    struct trace trace;
    uint8_t *buffers; // [BUFFERS][PIECE_BYTES]: piece i of the file is equal to buffer i % BUFFERS
    uint32_t crcs[PIECES], row_crcs[ROWS];
    int n_pieces, next;
};

static struct ticket ticket_of(struct segment *segments, int n, int write)
{
    return (struct ticket){
        .write = write, .segments = segments, .n_segments = n, .name = "probe", .layer = -1};
}

static enum err carry(struct ticket_bed *b, struct ticket *t)
{
    mover_submit(b->mover, t);
    return mover_wait(b->mover, t);
}

/* The next piece of the file, into its buffer. */
static struct segment next_piece(struct ticket_bed *b)
{
    int i = b->next++ % b->n_pieces;
    return (struct segment){.offset = (int64_t)i * PIECE_BYTES,
                            .n_bytes = PIECE_BYTES,
                            .buf = b->buffers + (int64_t)(i % BUFFERS) * PIECE_BYTES,
                            .crc = &b->crcs[i]};
}

/* A block of the next piece, as segment i of a ticket; ROWS numbers in turn have a block each. */
static struct segment next_row(struct ticket_bed *b, int i, int number)
{
    struct segment row = next_piece(b);
    int64_t at = (int64_t)number * 97 % (PIECE_BYTES / ROW_BYTES) * ROW_BYTES;
    row.offset += at;
    row.buf = (uint8_t *)row.buf + at;
    row.n_bytes = ROW_BYTES;
    b->row_crcs[i] = crc32c(0, row.buf, ROW_BYTES);
    row.crc = &b->row_crcs[i];
    return row;
}

static enum err bed_fill(struct ticket_bed *b)
{
    struct segment pieces[PIECES];
    uint64_t *words = (uint64_t *)(void *)b->buffers;
    for (int64_t i = 0; i < BUFFERS_BYTES / 8; i++)
        words[i] = mix64((uint64_t)i);
    for (int i = 0; i < b->n_pieces; i++)
        pieces[i] = next_piece(b);
    struct ticket t = ticket_of(pieces, b->n_pieces, 1);
    return carry(b, &t);
}

static enum err bed_open(struct ticket_bed *b, const struct probe_config *c,
                         const struct disk_probe *d)
{
    void *buffers;
    *b = (struct ticket_bed){.n_pieces = (int)min_i64(d->cap_bytes / PIECE_BYTES, PIECES) /
                                         BUFFERS * BUFFERS};
    CHECK(b->n_pieces > 0);
    TRY(device_cpu()->api->alloc(device_cpu(), BUFFERS_BYTES, &buffers));
    b->buffers = buffers;
    TRY(trace_open(&b->trace, 0));
    const struct mover_config config = {.kind = c->io,
                                        .depth = IO_DEPTH,
                                        .places = {{.path = d->name, .scratch = &d->scratch}},
                                        .n_places = 1,
                                        .base = buffers,
                                        .n_bytes = BUFFERS_BYTES,
                                        .trace = &b->trace};
    TRY(mover_open(&b->mover, &config));
    return bed_fill(b);
}

static void bed_close(struct ticket_bed *b)
{
    mover_close(b->mover);
    trace_close(&b->trace);
    if (b->buffers)
        device_cpu()->api->release(device_cpu(), b->buffers, BUFFERS_BYTES);
}

/* ---- one after the other ---- */

/* ticket_s: a ticket of one block less the ring's own time, that is the mover's share. */
static enum err measure_ticket(struct machine *m, const struct probe_config *c,
                               struct disk_probe *d, struct ticket_bed *b)
{
    double samples[SAMPLES_MAX], seconds = probe_seconds(c, TICKETS_S) / 2, blocks_per_s;
    struct disk_load load = {
        .io = c->io, .block_bytes = ROW_BYTES, .depth = 1, .seconds_max = seconds};
    TRY(disk_probe_rate(d, &load, &blocks_per_s));
    double alone_s = ROW_BYTES / blocks_per_s;
    int64_t end_ns = clock_ns() + (int64_t)(seconds * 1e9);
    int n = 0;
    do {
        struct segment row = next_row(b, 0, n);
        struct ticket t = ticket_of(&row, 1, 0);
        int64_t start_ns = clock_ns();
        TRY(carry(b, &t));
        samples[n++] = (double)(clock_ns() - start_ns) * 1e-9;
    } while (n < SAMPLES_MAX && clock_ns() < end_ns);
    m->ticket_s = rate_of_samples(samples, n);
    m->ticket_s.value = fmax(m->ticket_s.value - alone_s, TICKET_LEAST_S);
    probe_say(c, RATE_ticket_s, &m->ticket_s);
    return OK;
}

/* gather_s: the time of one scattered row in a ticket of ROWS rows. */
static enum err measure_gather(struct machine *m, const struct probe_config *c,
                               struct ticket_bed *b)
{
    double samples[SAMPLES_MAX], ticket_s = m->ticket_s.value;
    int64_t end_ns = clock_ns() + (int64_t)(probe_seconds(c, TICKETS_S) * 1e9);
    int n = 0;
    do {
        struct segment rows[ROWS];
        for (int i = 0; i < ROWS; i++)
            rows[i] = next_row(b, i, n * ROWS + i);
        struct ticket t = ticket_of(rows, ROWS, 0);
        int64_t start_ns = clock_ns();
        TRY(carry(b, &t));
        double s = (double)(clock_ns() - start_ns) * 1e-9;
        samples[n++] = fmax(s - ticket_s, s / 2) / ROWS;
    } while (n < SAMPLES_MAX && clock_ns() < end_ns);
    m->gather_s = rate_of_samples(samples, n);
    probe_say(c, RATE_gather_s, &m->gather_s);
    return OK;
}

/* ---- beside ops ---- */

/* A thread that keeps BUFFERS pieces in flight. */
struct reader {
    struct ticket_bed *bed;
    struct segment pieces[READERS][BUFFERS / READERS];
    struct ticket tickets[READERS];
    pthread_t thread;
    atomic_int stop;
    _Atomic int64_t bytes;
    atomic_int err; // enum err
};

static void reader_submit(struct reader *r, int i)
{
    for (int k = 0; k < BUFFERS / READERS; k++)
        r->pieces[i][k] = next_piece(r->bed);
    r->tickets[i] = ticket_of(r->pieces[i], BUFFERS / READERS, 0);
    mover_submit(r->bed->mover, &r->tickets[i]);
}

static void *reader_main(void *arg)
{
    struct reader *r = arg;
    thread_short_slice(); // or the queue drains before it runs
    for (int i = 0; i < READERS; i++)
        reader_submit(r, i);
    for (int i = 0; !atomic_load(&r->err) && !atomic_load(&r->stop); i = (i + 1) % READERS) {
        atomic_store(&r->err, (int)mover_wait(r->bed->mover, &r->tickets[i]));
        atomic_fetch_add(&r->bytes, (int64_t)PIECE_BYTES * (BUFFERS / READERS));
        reader_submit(r, i);
    }
    for (int i = 0; i < READERS; i++) {
        enum err err = mover_wait(r->bed->mover, &r->tickets[i]);
        if (err != OK)
            atomic_store(&r->err, (int)err);
    }
    return NULL;
}

/* A matmul of few rows over weights in RAM. */
static enum err compute_open(struct matmul_bed *b, const struct probe_config *c)
{
    struct probe_matmul p = {
        .dtype = DTYPE_BF16, .m = MATMUL_ROWS, .n = MATMUL_DIM, .k = MATMUL_DIM};
    *b = (struct matmul_bed){.ops = c->ops,
                             .panels_bytes = min_i64(probe_ram_bytes(c) / 4, WEIGHTS_BYTES)};
    while (p.k > MATMUL_LEAST &&
           (dtype_panels_bytes(p.dtype, p.n, p.k) * 4 > b->panels_bytes ||
            (c->memory_bytes > 0 && // the mover's buffers use part of the memory
             probe_bed_bytes(*b, &p) > c->memory_bytes - BUFFERS_BYTES)))
        p.n = p.k /= 2;
    TRY(probe_bed_open(b, c, &p));
    probe_bed_shape(b, &p);
    return probe_fill_panels(p.dtype, p.k, b->panels, b->panels_bytes);
}

/* Matmuls per second, over `seconds`. */
static double compute_rate(struct matmul_bed *b, double seconds)
{
    int64_t start_ns = clock_ns(), end_ns = start_ns + (int64_t)(seconds * 1e9), now_ns;
    int n = 0;
    do {
        probe_bed_turn(b, n++);
        now_ns = clock_ns();
    } while (now_ns < end_ns);
    return n / ((double)(now_ns - start_ns) * 1e-9);
}

static void sleep_s(double seconds)
{
    const struct timespec t = {.tv_sec = (time_t)seconds,
                               .tv_nsec = (long)((seconds - floor(seconds)) * 1e9)};
    nanosleep(&t, NULL);
}

/* Reads for `seconds`, beside matmuls unless ops is NULL. Sets the rates of both. */
static enum err read_for(struct ticket_bed *b, struct matmul_bed *ops, double seconds,
                         double *bytes_per_s, double *matmuls_per_s)
{
    struct reader r = {.bed = b};
    TRY(thread_need(&r.thread, reader_main, &r, "probe", "reader"));
    while (atomic_load(&r.bytes) == 0 && !atomic_load(&r.err))
        sleep_s(1e-4); // until the queue of the disk is full
    int64_t from = atomic_load(&r.bytes), moved = 0, start_ns = clock_ns();
    if (ops)
        *matmuls_per_s = compute_rate(ops, seconds);
    else
        sleep_s(seconds);
    while ((moved = atomic_load(&r.bytes) - from) == 0 && !atomic_load(&r.err))
        sleep_s(1e-4);
    *bytes_per_s = (double)moved / ((double)max_i64(clock_ns() - start_ns, 1) * 1e-9);
    atomic_store(&r.stop, 1);
    pthread_join(r.thread, NULL);
    enum err err = (enum err)atomic_load(&r.err);
    return err == OK ? OK : fail(err, "probe: reads beside matmuls failed");
}

/* Measures the three in turn, so that other load affects all of them alike. */
static enum err measure_rounds(struct machine *m, const struct probe_config *c,
                               struct ticket_bed *b, struct matmul_bed *ops)
{
    double read[ROUNDS], matmul[ROUNDS], seconds = probe_seconds(c, ROUND_S);
    compute_rate(ops, 0); // warms up pages and clocks
    for (int i = 0; i < ROUNDS; i++) {
        double reads_alone, reads_beside, alone = compute_rate(ops, seconds), beside = 0;
        TRY(read_for(b, ops, seconds, &reads_beside, &beside));
        TRY(read_for(b, NULL, seconds, &reads_alone, NULL));
        read[i] = reads_beside / reads_alone;
        matmul[i] = beside / alone;
    }
    m->read_beside = rate_of_samples(read, ROUNDS);
    m->matmul_beside = rate_of_samples(matmul, ROUNDS);
    probe_say(c, RATE_read_beside, &m->read_beside);
    probe_say(c, RATE_matmul_beside, &m->matmul_beside);
    return OK;
}

static enum err measure_beside(struct machine *m, const struct probe_config *c,
                               struct ticket_bed *b)
{
    struct matmul_bed ops = {0};
    enum err err = compute_open(&ops, c);
    if (err == OK)
        err = measure_rounds(m, c, b, &ops);
    arena_close(&ops.arena);
    return err;
}

/* ---- few pieces in flight ---- */

static enum err measure_depths(struct machine *m, const struct probe_config *c,
                               struct disk_probe *d)
{
    for (int i = 0; i < 3; i++) {
        struct disk_load load = {.io = c->io,
                                 .block_bytes = PIECE_BYTES,
                                 .depth = 1 << i,
                                 .buffer_bytes = probe_buffer_bytes(c),
                                 .seconds_max = probe_seconds(c, DEPTH_S)};
        struct disk_series series;
        struct disk_rates rates;
        enum machine_rate id = (enum machine_rate)(RATE_nvme_read_d1 + i);
        TRY(disk_probe_series(d, &load, &series));
        disk_series_rates(&series, &rates);
        m->rates[id] = rates.lasting;
        probe_say(c, id, &m->rates[id]);
    }
    return OK;
}

enum err probe_tickets(struct machine *m, const struct probe_config *c, struct disk_probe *d)
{
    struct ticket_bed b;
    TRY(measure_depths(m, c, d));
    enum err err = bed_open(&b, c, d);
    if (err == OK)
        err = measure_ticket(m, c, d, &b);
    if (err == OK)
        err = measure_gather(m, c, &b);
    if (err == OK)
        err = measure_beside(m, c, &b);
    bed_close(&b);
    return err;
}
