/* offload/probe.h - measures this machine, once, into a machine file (flat `key = value`).
 *
 * Owns: the measurements and the file's format. Refuses: to use them (policy does). */
#ifndef OFFLOAD_PROBE_H
#define OFFLOAD_PROBE_H

#include "kernels/ops.h"
#include "offload/ring.h"
#include "policy/plan.h"

struct probe_config {
    const struct ops *ops;  // borrowed: instruction set, compute format, threads
    const char *dir;        // where offloaded bytes go; its disk is measured with a scratch file
    enum ring_kind io;
    int full;               // 1: minutes of measuring, many block sizes; 0: about two seconds
    int verbose;            // 1: a line per measurement on stderr
};

/* Measures. ERR_IO when the directory cannot be written. */
enum err probe_run(struct machine *m, const struct probe_config *c);
/* From the cache file of this machine (keyed by CPU, threads, instruction set, compute format and the
 * directory's device) when there is one less than 30 days old, else measures and writes it.
 * *measured: 1 when it had to. */
enum err probe_cached(struct machine *m, const struct probe_config *c, const char *cache_dir,
                      int *measured);
/* Machine files: unknown keys and numbers out of range are ERR_INPUT naming file and line. */
enum err machine_file_read(struct machine *m, const char *path);
enum err machine_file_write(const struct machine *m, const char *path, const char *comment);

#endif
