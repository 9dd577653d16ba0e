/* offload/probe.h - measures this machine, once, into a machine file (flat `key = value`).
 *
 * Owns: the measurements and the file's format. Refuses: to use them (policy does). Whatever memory
 * a measurement takes is mapped for it and unmapped after it. A rate is a median, its spread the
 * median distance from it: what another program did meanwhile shows there. */
#ifndef OFFLOAD_PROBE_H
#define OFFLOAD_PROBE_H

#include "kernels/device.h"
#include "offload/cpu_wait.h"
#include "offload/machine.h"
#include "offload/ring.h"
#include "policy/machine.h"

struct probe_config {
    const struct ops *ops; // borrowed: instruction set, compute format, threads
    const char *dir;       // where offloaded bytes go; its disk is measured with a scratch file
    enum ring_kind io;
    int full;             // 1: minutes of measuring; 0: about five seconds
    int verbose;          // 1: a line per measurement on stderr
    int64_t memory_bytes; // most that it takes at once, given back on return; 0: what it wants
    int64_t beside_bytes; // of the same budget, taken by others meanwhile: for the hint of ERR_FIT
    const struct machine_info *info; // borrowed: of this machine; NULL: unknown
    struct device *device; // borrowed; NULL, or one whose memory is RAM: there is no other
    int64_t device_bytes;  // of its memory, as memory_bytes; 0: what is free
    double time_share;     // of the usual time, for tests; 0: all of it
    /* For tests: the share of `threads` x the time since *from in which threads waited for cores
     * that others had. NULL: as the kernel counts it; not judged where time_share is set. */
    double (*waited)(const struct cpu_wait *from, int threads);
    double spread_most;    // of a rate, by its value: beyond, it is measured again; 0: 0.15
};

/* Measures. ERR_IO when the directory cannot be written. */
enum err probe_run(struct machine *m, const struct probe_config *c);
/* 1 when ram_read and the rates of matmuls and attention come out of RAM: the memory that it may
 * take holds four times the last-level caches. */
int probe_reaches_ram(const struct probe_config *c);

/* From the cache files of this machine that are less than 30 days old; what they lack is measured
 * and written. Each part has a file of its own, named after all that its rates depend on: the disk
 * (which one, and how it is read), the CPU (its name, threads, instruction set, compute format, the
 * memory that measuring may take), the device and whose matmuls run there. A part with a rate that
 * a plan divides by, and whose samples were far apart, is measured once more when it is an hour
 * old. What was measured while other processes had the cores is measured once more, and is not
 * written when they had them again. *measured: 1 when something had to be. */
enum err probe_cached(struct machine *m, const struct probe_config *c, const char *cache_dir,
                      int *measured);

/* RAM reads by all threads of the pool over a fresh buffer for at least `seconds`. */
enum err probe_ram(struct pool *pool, int64_t buffer_bytes, double seconds, struct rate *rate);

/* A matmul over copies of one weight, so that it comes from RAM as on the line. */
struct probe_matmul {
    enum dtype dtype;
    int m, n, k;
    int64_t weight_bytes; // of all copies; at least one is made
    double seconds;       // at least; and at least one turn over the copies
};
/* FLOPs per second. *copy_bytes (may be NULL): of one copy. ERR_FIT: no memory; ERR_USAGE: the
 * format cannot hold k. */
enum err probe_matmul(const struct ops *ops, const struct probe_matmul *p, struct rate *flops,
                      int64_t *copy_bytes);

/* The rates of a device with memory of its own, and step_s as it takes to queue a step there.
 * ERR_FIT: no memory; ERR_DEVICE. */
enum err probe_device(struct machine *m, const struct probe_config *c);

/* Machine files: unknown keys and numbers out of range are ERR_INPUT naming file and line; so are
 * files that lack a rate or the threads, by name. Of a device they may say nothing. */
enum err machine_file_read(struct machine *m, const char *path);
/* ERR_INPUT when a rate of a device is missing, by name. */
enum err machine_device_check(const struct machine *m, const char *path);
/* comment may have several lines; NULL: none. The file appears complete, by rename. ERR_IO. */
enum err machine_file_write(const struct machine *m, const char *path, const char *comment);

#endif
