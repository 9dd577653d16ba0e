/* offload/disk_probe.c - see disk_probe.h.
 *
 * Owns and refuses what disk_probe.h says.
 * A newcomer would miss: the blocks hold pseudo-random numbers, because some drives and file
 * systems compress, and a scratch file is read only where it was written, because holes cost
 * nothing. The buffers are as the run's are, huge pages: into pages of 4 KiB, which make every io
 * hundreds of segments, a virtual disk of 2.9 GB/s reads 1.2. */
#include "offload/disk_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/device.h"

#define BUFFER_LEAST ((int64_t)4 << 20) // two huge pages: from there on device_cpu takes them

enum err disk_probe_open_scratch(struct disk_probe *d, const char *dir, int64_t cap_bytes)
{
    *d = (struct disk_probe){.fd = -1, .cap_bytes = cap_bytes};
    int n = snprintf(d->name, sizeof d->name, "%s/.sluice-probe-XXXXXX", dir);
    if (n >= (int)sizeof d->name)
        return fail(ERR_IO, "%.100s...: probe: path is too long", dir);
    d->fd = mkostemp(d->name, O_CLOEXEC);
    if (d->fd < 0) {
        int saved = errno;
        return fail(ERR_IO, "%s: probe: cannot write there: %s (--offload-dir)", dir,
                    strerror(saved));
    }
    unlink(d->name); // whatever stops the process, nothing stays behind
    return OK;
}

enum err disk_probe_open_file(struct disk_probe *d, const char *path)
{
    *d = (struct disk_probe){.fd = -1};
    snprintf(d->name, sizeof d->name, "%s", path);
    d->fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (d->fd < 0 || fstat(d->fd, &st) != 0) {
        int saved = errno;
        disk_probe_close(d);
        return fail(ERR_INPUT, "%s: probe: %s", path, strerror(saved));
    }
    d->file_bytes = st.st_size;
    return OK;
}

void disk_probe_close(struct disk_probe *d)
{
    if (d->fd >= 0)
        close(d->fd);
    d->fd = -1;
}

/* The ios of one measurement and where the next one goes. */
struct disk_stream {
    const struct disk_load *load;
    struct ring *ring;
    int file;
    uint8_t *buffers; // [depth][block_bytes]
    struct ring_io ios[DISK_PROBE_DEPTH_MAX];
    int64_t n_blocks; // that the file holds (reads) or may grow to (writes)
    int64_t next;     // block
    int64_t done_bytes;
    int64_t end_ns; // no new io after this
};

/* Issues one more io unless time or the file is over. */
static enum err stream_next(struct disk_stream *s, struct ring_io *io)
{
    const struct disk_load *load = s->load;
    if ((load->write && s->next == s->n_blocks) || (s->next > 0 && clock_ns() >= s->end_ns))
        return OK;
    io->file = s->file;
    io->write = load->write;
    io->offset = s->next % s->n_blocks * load->block_bytes;
    io->n_bytes = load->block_bytes;
    s->next++;
    return ring_submit(s->ring, io);
}

/* Keeps `depth` ios in flight until the end; the first error wins, but all come home. */
static enum err stream_run(struct disk_stream *s)
{
    enum err err = OK;
    char text[256] = "";
    for (int i = 0; i < s->load->depth && err == OK; i++) {
        s->ios[i].buf = s->buffers + i * s->load->block_bytes;
        err = stream_next(s, &s->ios[i]);
    }
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
    int flags = d->cap_bytes > 0 ? O_RDWR : O_RDONLY;
    return ring_file_add(s->ring, d->name, d->fd, flags, &s->file);
}

enum err disk_probe_rate(struct disk_probe *d, const struct disk_load *load, double *bytes_per_s)
{
    CHECK(load->depth >= 1 && load->depth <= DISK_PROBE_DEPTH_MAX && load->block_bytes % 4096 == 0);
    struct disk_stream s = {.load = load};
    s.n_blocks = (load->write ? d->cap_bytes : d->file_bytes) / load->block_bytes;
    if (s.n_blocks < 1)
        return fail(ERR_USAGE, "%s: probe: holds less than one block of %lld bytes", d->name,
                    (long long)load->block_bytes);
    struct device *cpu = device_cpu();
    int64_t bytes = max_i64(load->block_bytes * load->depth, BUFFER_LEAST);
    void *buffers;
    TRY(cpu->api->alloc(cpu, bytes, &buffers));
    s.buffers = buffers;
    fill(s.buffers, bytes);
    enum err err = stream_open(&s, d, bytes);
    if (err == OK) {
        int64_t start_ns = clock_ns();
        s.end_ns = start_ns + (int64_t)(load->seconds_max * 1e9);
        err = stream_run(&s);
        double seconds = (double)max_i64(clock_ns() - start_ns, 1) * 1e-9;
        *bytes_per_s = (double)s.done_bytes / seconds;
        d->direct = ring_file_align_bytes(s.ring, s.file) > 1;
    }
    ring_close(s.ring);
    if (err != ERR_IO) // a lost read may still land there (see ring_reap)
        cpu->api->release(cpu, buffers, bytes);
    if (err == OK && load->write)
        d->file_bytes = max_i64(d->file_bytes, s.next * load->block_bytes);
    return err;
}
