/* offload/probe.h - measures this machine into a machine file (flat `key = value`).
 *
 * Owns: the measurements and the file's format. Refuses: using the rates (policy). Memory for a
 * measurement is mapped for it and unmapped after it. A rate is a median; its spread is the median
 * distance from it, which grows when other programs interfere. */
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
    int64_t memory_bytes; // most bytes in use at once; 0: no limit
    int64_t beside_bytes; // of the same budget, in use elsewhere: for the hint of ERR_FIT
    const struct machine_info *info; // borrowed: of this machine; NULL: unknown
    struct device *device;           // borrowed; NULL, or one whose memory is RAM: none is measured
    int64_t device_bytes;            // limit of device memory in bytes; 0: what is free
    double share; // fraction of the usual time and of the bytes to measure with, for tests; 0: all
    /* For tests: the share of `threads` x the time since *from in which threads waited for cores
     * that other processes had. NULL: the kernel's count, which is ignored if share is set. */
    double (*waited)(const struct cpu_wait *from, int threads);
    double spread_most; // spread / value of a rate above which it is measured again; 0: 0.15
};

/* Measures. ERR_IO when the directory cannot be written. */
enum err probe_run(struct machine *m, const struct probe_config *c);
/* 1: ram_read and the rates of matmuls and attention are measured from RAM, because memory_bytes
 * allows four times the last-level caches. */
int probe_reaches_ram(const struct probe_config *c);

/* Reads the rates from cache files of this machine that are less than 30 days old; measures and
 * writes what they lack. Each part has its own file, named after everything that its rates depend
 * on: the disk (device number, back end, CPU name, threads), the CPU (name, threads, instruction
 * set, compute format, memory for measuring), the device (CPU name, model, compute format, matmul
 * library, memory for measuring). If a rate that a plan divides by has a wide spread, its part is
 * measured once more when the file is an hour old. Rates measured while other processes had the
 * cores are kept for two minutes. *measured: 1 if anything was measured. */
enum err probe_cached(struct machine *m, const struct probe_config *c, const char *cache_dir,
                      int *measured);

/* Rate of RAM reads by all threads of the pool over a fresh buffer, for at least `seconds`. */
enum err probe_ram(struct pool *pool, int64_t buffer_bytes, double seconds, struct rate *rate);

/* A matmul over copies of one weight, so that the weight is read from RAM, not from caches. */
struct probe_matmul {
    enum dtype dtype;
    int m, n, k;
    int64_t weight_bytes; // of all copies; at least one is made
    double seconds;       // at least; and at least one call per copy, up to 8 calls
};
/* *flops: per second. *copy_bytes (may be NULL): of one copy. ERR_FIT: no memory; ERR_USAGE: the
 * format cannot store rows of k. */
enum err probe_matmul(const struct ops *ops, const struct probe_matmul *p, struct rate *flops,
                      int64_t *copy_bytes);

/* The rates of a device with its own memory, and step_s: the time to queue a step there. ERR_FIT:
 * no memory; ERR_DEVICE. */
enum err probe_device(struct machine *m, const struct probe_config *c);

/* ERR_INPUT names file and line of unknown keys and of numbers out of range, and the key of a
 * missing rate or thread count. Rates of a device may be missing. */
enum err machine_file_read(struct machine *m, const char *path);
/* ERR_INPUT names the first rate of a device that is missing. */
enum err machine_device_check(const struct machine *m, const char *path);
/* comment may have several lines; NULL: none. The file appears complete, by rename. ERR_IO. */
enum err machine_file_write(const struct machine *m, const char *path, const char *comment);

#endif
