/* offload/disk_probe.c - see disk_probe.h.
 *
 * Note: blocks hold pseudo-random numbers, because some drives and file systems compress; a scratch
 * file is read only where it was written, because reading holes costs nothing. Buffers have huge
 * pages, like those of a run: with pages of 4 KiB every io has hundreds of segments, and a virtual
 * disk of 2.9 GB/s reads 1.2. The same disk reads 3.0 GB/s into 2 MiB and 2.35 into 32 MiB or more,
 * because the bytes then leave the CPU's cache: see buffer_bytes. */
#include "offload/disk_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/device.h"

#define BUFFER_LEAST ((int64_t)4 << 20) // two huge pages: from this size on device_cpu uses them

enum err disk_probe_open_scratch(struct disk_probe *d, const char *dirs, int64_t cap_bytes)
{
    *d = (struct disk_probe){.cap_bytes = cap_bytes};
    snprintf(d->name, sizeof d->name, "%s", dirs);
    return scratch_open(&d->scratch, dirs);
}

enum err disk_probe_open_file(struct disk_probe *d, const char *path)
{
    struct stat st;
    *d = (struct disk_probe){0};
    snprintf(d->name, sizeof d->name, "%s", path);
    if (stat(path, &st) != 0)
        return fail(ERR_INPUT, "%s: probe: %s", path, strerror(errno));
    d->file_bytes = st.st_size;
    return OK;
}

void disk_probe_close(struct disk_probe *d)
{
    scratch_close(&d->scratch);
}

/* The ios of one measurement and where the next one goes. */
struct disk_stream {
    const struct disk_load *load;
    struct ring *ring;
    int file;
    uint8_t *buffers; // [depth][per_io][block_bytes]: each io uses its own in turn
    int64_t per_io;
    struct ring_io ios[DISK_PROBE_DEPTH_MAX];
    int64_t n_blocks; // in the file (reads), or up to its size limit (writes)
    int64_t next;     // index of the next block; mixed: even numbers read, odd ones write
    int64_t done_bytes;
    int64_t end_ns;      // no new io after this
    int64_t window_ns;   // when the window began
    int64_t window_from; // done_bytes at that time
    struct disk_series *series;
};

#define LEAST_BLOCKS 2 // moved by every measurement: a mixed load needs a read and a write

/* Issues one more io, unless time is up or the file is at its end. */
static enum err stream_next(struct disk_stream *s, struct ring_io *io)
{
    const struct disk_load *load = s->load;
    int ends = load->write && !load->wrap && !load->mixed;
    if ((ends && s->next == s->n_blocks) || (s->next >= LEAST_BLOCKS && clock_ns() >= s->end_ns))
        return OK;
    int64_t block = s->next % s->n_blocks;
    io->file = s->file;
    io->write = load->write;
    if (load->mixed) {
        int64_t half = s->n_blocks / 2;
        io->write = s->next & 1;
        block = s->next / 2 % half + (io->write ? half : 0);
    }
    io->offset = block * load->block_bytes;
    io->n_bytes = load->block_bytes;
    const int64_t own = (io - s->ios) * s->per_io + s->next / load->depth % s->per_io;
    io->buf = s->buffers + own * load->block_bytes;
    s->next++;
    return ring_submit(s->ring, io);
}

/* Ends a window that is DISK_SERIES_S old, and the measurement once the series is steady. */
static void stream_window(struct disk_stream *s)
{
    int64_t now_ns = clock_ns(), took_ns = now_ns - s->window_ns;
    if (s->series->n == DISK_SERIES_MAX || (double)took_ns < DISK_SERIES_S * 1e9)
        return;
    s->series->seconds[s->series->n] = (double)took_ns * 1e-9;
    s->series->bytes_per_s[s->series->n++] =
        (double)(s->done_bytes - s->window_from) / ((double)took_ns * 1e-9);
    s->window_ns = now_ns;
    s->window_from = s->done_bytes;
    if (s->load->until_steady && disk_series_steady(s->series))
        s->end_ns = now_ns;
}

/* Keeps `depth` ios in flight until the end; returns the first error once all have completed. */
static enum err stream_run(struct disk_stream *s)
{
    enum err err = OK;
    char text[256] = "";
    for (int i = 0; i < s->load->depth && err == OK; i++)
        err = stream_next(s, &s->ios[i]);
    while (ring_in_flight(s->ring) > 0) {
        struct ring_io *done[DISK_PROBE_DEPTH_MAX];
        int n = ring_reap(s->ring, done, DISK_PROBE_DEPTH_MAX, RING_WAIT);
        for (int i = 0; i < n; i++) {
            if (done[i]->err != OK && err == OK) {
                err = done[i]->err;
                snprintf(text, sizeof text, "%s", done[i]->err_text);
            }
            s->done_bytes += done[i]->err == OK ? done[i]->n_bytes : 0;
            if (err == OK)
                err = stream_next(s, done[i]);
        }
        if (clock_ns() < s->end_ns) // later the ring drains
            stream_window(s);
    }
    return err != OK && text[0] ? fail(err, "%s", text) : err;
}

static void fill(uint8_t *bytes, int64_t n_bytes)
{
    uint64_t *words = (uint64_t *)(void *)bytes;
    for (int64_t i = 0; i < n_bytes / 8; i++)
        words[i] = mix64((uint64_t)i);
}

static enum err stream_open(struct disk_stream *s, const struct disk_probe *d, int64_t buffer_bytes)
{
    struct ring_buffer buffer = {.base = s->buffers, .n_bytes = buffer_bytes};
    struct ring_config config = {
        .kind = s->load->io, .depth = s->load->depth, .buffers = &buffer, .n_buffers = 1};
    TRY(ring_open(&s->ring, &config));
    if (d->scratch.n > 0)
        return scratch_add(&d->scratch, s->ring, d->name, &s->file);
    return ring_file_add(s->ring, d->name, -1, O_RDONLY, &s->file);
}

/* *mean: bytes per second from the first io to the last. */
static enum err measure(struct disk_probe *d, const struct disk_load *load,
                        struct disk_series *series, double *mean)
{
    CHECK(load->depth >= 1 && load->depth <= DISK_PROBE_DEPTH_MAX && load->block_bytes % 4096 == 0);
    struct disk_stream s = {.load = load, .series = series};
    s.n_blocks = (load->write && !load->mixed ? d->cap_bytes : d->file_bytes) / load->block_bytes;
    if (s.n_blocks < (load->mixed ? 2 : 1))
        return fail(ERR_USAGE, "%s: probe: smaller than one block of %lld bytes", d->name,
                    (long long)load->block_bytes);
    struct device *cpu = device_cpu();
    int64_t bytes = max_i64(load->block_bytes * load->depth, BUFFER_LEAST);
    bytes = max_i64(bytes, load->buffer_bytes / load->block_bytes * load->block_bytes);
    void *buffers;
    TRY(cpu->api->alloc(cpu, bytes, &buffers));
    s.buffers = buffers;
    s.per_io = bytes / load->block_bytes / load->depth;
    fill(s.buffers, bytes);
    enum err err = stream_open(&s, d, bytes);
    if (err == OK) {
        int64_t start_ns = clock_ns();
        s.window_ns = start_ns;
        s.end_ns = start_ns + (int64_t)(load->seconds_max * 1e9);
        err = stream_run(&s);
        double seconds = (double)max_i64(clock_ns() - start_ns, 1) * 1e-9;
        *mean = (double)s.done_bytes / seconds;
        d->direct = ring_file_align_bytes(s.ring, s.file) > 1;
    }
    ring_close(s.ring);
    if (err != ERR_IO) // a lost read may still write to the buffers (see ring_reap)
        cpu->api->release(cpu, buffers, bytes);
    if (err == OK && load->write && !load->mixed)
        d->file_bytes = max_i64(d->file_bytes, min_i64(s.next, s.n_blocks) * load->block_bytes);
    return err;
}

enum err disk_probe_series(struct disk_probe *d, const struct disk_load *load,
                           struct disk_series *series)
{
    double mean;
    series->n = 0;
    TRY(measure(d, load, series, &mean));
    if (series->n == 0) // shorter than one window
        series->bytes_per_s[series->n++] = mean;
    return OK;
}

enum err disk_probe_rate(struct disk_probe *d, const struct disk_load *load, double *bytes_per_s)
{
    struct disk_series series = {0};
    return measure(d, load, &series, bytes_per_s);
}

/* ---- series ---- */

/* The median rate of windows [from, to), at least one. */
static struct rate rate_of(const struct disk_series *s, int from, int to)
{
    double samples[DISK_SERIES_MAX];
    memcpy(samples, s->bytes_per_s + from, (size_t)(to - from) * sizeof *samples);
    return rate_of_samples(samples, to - from);
}

void disk_series_rates(const struct disk_series *s, struct disk_rates *rates)
{
    *rates = (struct disk_rates){0};
    int burst = 0, third = (s->n + 2) / 3;
    double slow = DISK_BURST_RATIO * rate_of(s, s->n - third, s->n).value;
    while (burst + 3 <= s->n &&
           (s->bytes_per_s[burst] > slow || rate_of(s, burst, burst + 3).value > slow))
        burst++;
    if (burst >= 3) {
        rates->burst = rate_of(s, 0, burst);
        for (int i = 0; i < burst; i++)
            rates->burst_bytes += s->bytes_per_s[i] * s->seconds[i];
    }
    rates->lasting = rate_of(s, burst >= 3 && burst > s->n / 4 ? burst : s->n / 4, s->n);
}

int disk_series_steady(const struct disk_series *s)
{
    int third = s->n / 3;
    double took_s = 0;
    for (int i = 0; i < s->n; i++)
        took_s += s->seconds[i];
    if (third == 0 || took_s < 5)
        return 0;
    double before = rate_of(s, s->n - 2 * third, s->n - third).value;
    double last = rate_of(s, s->n - third, s->n).value;
    return fabs(last - before) <= 0.03 * before;
}
