/* offload/disk_probe.h - how fast one file can be read and written, through the same ring as the
 * run.
 *
 * Owns: the file it measures with and the buffers. Refuses: judging the figures (probe, bench,
 * report). One thread: the caller's. */
#ifndef OFFLOAD_DISK_PROBE_H
#define OFFLOAD_DISK_PROBE_H

#include "offload/ring.h"
#include "policy/machine.h"

#define DISK_PROBE_DEPTH_MAX 64

struct disk_probe {
    char name[512];     // for messages
    int fd;             // owned; -1: closed
    int64_t file_bytes; // that can be read; a scratch file: written so far
    int64_t cap_bytes;  // of a scratch file
    int direct;         // 1: the last measurement bypassed the page cache
};

/* One measurement. */
struct disk_load {
    enum ring_kind io;
    int write;           // 1: writes (scratch files only), from the start of the file
    int64_t block_bytes; // multiple of 4096
    int depth;           // in flight, 1..DISK_PROBE_DEPTH_MAX
    double seconds_max;  // stops issuing after this long; a write also stops at the end of the file
    int wrap;            // 1: it does not, it goes on from the start
    int mixed;        // 1: writes the second half of the file and reads the first, which has been
                      // written, as many bytes of either; `write` is 1
    int until_steady; // 1: stops as soon as its rate is steady, too, see disk_series_steady
};

#define DISK_SERIES_MAX  1024
#define DISK_SERIES_S    0.05 // of one window
#define DISK_BURST_RATIO 1.25 // a burst is so much faster than what follows

/* How one measurement went: windows of about DISK_SERIES_S. */
struct disk_series {
    int n;
    double bytes_per_s[DISK_SERIES_MAX];
    double seconds[DISK_SERIES_MAX];
};

/* What a series says: the rate that lasts and, where it began faster, the burst. */
struct disk_rates {
    struct rate lasting, burst; // burst.value 0: none
    double burst_bytes;
};

/* A scratch file in dir, unlinked at once, that writes may grow to cap_bytes. ERR_IO. */
enum err disk_probe_open_scratch(struct disk_probe *d, const char *dir, int64_t cap_bytes);
/* An existing file, read only. ERR_INPUT. */
enum err disk_probe_open_file(struct disk_probe *d, const char *path);
/* Sequential, wrapping around at the end of what can be read. *bytes_per_s > 0. Takes
 * block_bytes x depth of memory while it runs, at least 4 MiB. ERR_IO, ERR_FIT; ERR_USAGE: a read
 * where nothing was written, a file shorter than a block. */
enum err disk_probe_rate(struct disk_probe *d, const struct disk_load *load, double *bytes_per_s);
/* The same, and how it went (at least one window). */
enum err disk_probe_series(struct disk_probe *d, const struct disk_load *load,
                           struct disk_series *series);
void disk_probe_close(struct disk_probe *d); // accepts a closed one

/* A burst is the windows before the first that is no longer DISK_BURST_RATIO times as fast as the
 * last third's median, one of the two behind it neither; shorter than three windows it is noise.
 * What lasts is the rest, and never the first quarter, in which drives wake up. */
void disk_series_rates(const struct disk_series *series, struct disk_rates *rates);
/* 1: after five seconds or more the last third goes as fast as the third before, to 3 %. */
int disk_series_steady(const struct disk_series *series);

#endif
