/* offload/disk_probe.h - how fast one file can be read and written, through the same ring as the
 * run.
 *
 * Owns: the file it measures with and the buffers. Refuses: judging the figures (probe, bench,
 * report). One thread: the caller's. */
#ifndef OFFLOAD_DISK_PROBE_H
#define OFFLOAD_DISK_PROBE_H

#include "offload/ring.h"

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
};

/* A scratch file in dir, unlinked at once, that writes may grow to cap_bytes. ERR_IO. */
enum err disk_probe_open_scratch(struct disk_probe *d, const char *dir, int64_t cap_bytes);
/* An existing file, read only. ERR_INPUT. */
enum err disk_probe_open_file(struct disk_probe *d, const char *path);
/* Sequential, wrapping around at the end of what can be read. *bytes_per_s > 0. Takes
 * block_bytes x depth of memory while it runs, at least 4 MiB. ERR_IO, ERR_FIT; ERR_USAGE: a read
 * where nothing was written, a file shorter than a block. */
enum err disk_probe_rate(struct disk_probe *d, const struct disk_load *load, double *bytes_per_s);
void disk_probe_close(struct disk_probe *d); // accepts a closed one

#endif
