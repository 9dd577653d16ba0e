/* offload/probe.h - measures this machine, once, into a machine file (flat `key = value`).
 *
 * Owns: the measurements and the file's format. Refuses: to use them (policy does). Whatever memory
 * a measurement takes is mapped for it and unmapped after it. */
#ifndef OFFLOAD_PROBE_H
#define OFFLOAD_PROBE_H

#include "kernels/device.h"
#include "offload/ring.h"
#include "policy/plan.h"

struct probe_config {
    const struct ops *ops; // borrowed: instruction set, compute format, threads
    const char *dir;       // where offloaded bytes go; its disk is measured with a scratch file
    enum ring_kind io;
    int full;              // 1: minutes of measuring, many block sizes; 0: about two seconds
    int verbose;           // 1: a line per measurement on stderr
    int64_t memory_bytes;  // most that it takes at once, given back on return; 0: 64 MiB
    struct device *device; // borrowed; NULL, or one whose memory is RAM: there is no other
    int64_t device_bytes;  // of its memory, as memory_bytes; 0: what is free
};

/* Measures. ERR_IO when the directory cannot be written. */
enum err probe_run(struct machine *m, const struct probe_config *c);
/* From the cache file of this machine (keyed by CPU, threads, instruction set, compute format, the
 * directory's disk, the device and its matmuls) when there is one less than 30 days old, else
 * measures and writes it. *measured: 1 when it had to. */
enum err probe_cached(struct machine *m, const struct probe_config *c, const char *cache_dir,
                      int *measured);
/* RAM reads by all threads of the pool over a fresh buffer for at least `seconds`: the bytes per
 * second that one turn in ten reaches.
 */
enum err probe_ram(struct pool *pool, int64_t buffer_bytes, double seconds, double *bytes_per_s);

/* A matmul over copies of one weight, so that it comes from RAM as on the line. */
struct probe_matmul {
    enum dtype dtype;
    int m, n, k;
    int64_t weight_bytes; // of all copies; at least one is made
    double seconds;       // at least; and at least one turn over the copies
};
/* The rate that one call in ten reaches. *copy_bytes (may be NULL): of one copy. ERR_FIT: no
 * memory; ERR_USAGE: the format cannot hold k. */
enum err probe_matmul(const struct ops *ops, const struct probe_matmul *p, double *flops,
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
