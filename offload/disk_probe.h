/* offload/disk_probe.h - read and write rates of one file, measured through the ring that runs use.
 *
 * Owns: the file and the buffers. Refuses: judging the rates (probe, bench, report). One thread:
 * the caller's. */
#ifndef OFFLOAD_DISK_PROBE_H
#define OFFLOAD_DISK_PROBE_H

#include "offload/scratch.h"
#include "policy/machine.h"

#define DISK_PROBE_DEPTH_MAX 64

struct disk_probe {
    char name[512];         // for messages
    struct scratch scratch; // owned; n = 0: the file `name`, only read
    int64_t file_bytes;     // readable bytes; of scratch: bytes written so far
    int64_t cap_bytes;      // size limit of scratch; 0: a file that is only read
    int direct;             // 1: the last measurement bypassed the page cache
};

/* One measurement. */
struct disk_load {
    enum ring_kind io;
    int write;            // 1: writes (scratch only), from the start of the file
    int64_t block_bytes;  // multiple of 4096
    int depth;            // ios in flight, 1..DISK_PROBE_DEPTH_MAX
    int64_t buffer_bytes; // memory that the ios use in turn; 0: the least
    double seconds_max; // stops issuing after this long; a write also stops at the end of the file
    int wrap;           // 1: a write starts again at the beginning of the file instead
    int mixed;        // 1: reads the first half of the file, which has been written, and writes the
                      // second, equal bytes of each; `write` is 1
    int until_steady; // 1: also stops when disk_series_steady()
};

#define DISK_SERIES_MAX  1024
#define DISK_SERIES_S    0.05 // seconds of one window
#define DISK_BURST_RATIO 1.25 // a burst is at least this much faster than the rate after it

/* The rates of one measurement, in windows of about DISK_SERIES_S. */
struct disk_series {
    int n;
    double bytes_per_s[DISK_SERIES_MAX];
    double seconds[DISK_SERIES_MAX];
};

/* The sustained rate of a series and, if the series began faster, the burst. */
struct disk_rates {
    struct rate lasting, burst; // burst.value 0: none
    double burst_bytes;
};

/* A scratch file, or one in each of several folders (scratch.h); writes may grow them to cap_bytes
 * in all. ERR_IO. */
enum err disk_probe_open_scratch(struct disk_probe *d, const char *dirs, int64_t cap_bytes);
/* An existing file, read only. ERR_INPUT. */
enum err disk_probe_open_file(struct disk_probe *d, const char *path);
/* Sequential, wrapping around at the end of the readable bytes. *bytes_per_s > 0. Uses buffer_bytes
 * of memory while it runs, at least block_bytes x depth and 4 MiB. ERR_IO, ERR_FIT; ERR_USAGE:
 * nothing to read yet, a file shorter than a block. */
enum err disk_probe_rate(struct disk_probe *d, const struct disk_load *load, double *bytes_per_s);
/* The same; fills `series` (at least one window). */
enum err disk_probe_series(struct disk_probe *d, const struct disk_load *load,
                           struct disk_series *series);
void disk_probe_close(struct disk_probe *d); // accepts a closed one

/* The burst ends at the first window below DISK_BURST_RATIO times the last third's median, if one
 * of the next two is, too; fewer than three windows are noise. The sustained rate is that of the
 * rest, without the first quarter, in which drives wake up. */
void disk_series_rates(const struct disk_series *series, struct disk_rates *rates);
/* 1: at least 5 s have passed, and the medians of the last two thirds differ by at most 3 %. */
int disk_series_steady(const struct disk_series *series);

#endif
