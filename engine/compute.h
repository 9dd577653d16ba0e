/* engine/compute.h - from flags to the ops of this CPU: instruction set, compute format, threads;
 * for commands that compute without a model (probe, bench ops). */
#ifndef ENGINE_COMPUTE_H
#define ENGINE_COMPUTE_H

#include "engine/config.h"
#include "kernels/ops.h"
#include "offload/machine.h"
#include "offload/ring.h"

struct compute_setup {
    struct machine_info info;
    struct ops ops; // ops.pool is owned here
    enum ring_kind io;
};

/* Reads --isa, --compute, --io and --threads, looks at the machine and starts the threads. dir (may
 * be NULL): whose disk info tells about. ERR_USAGE. Close it also after an error. */
enum err compute_open(struct compute_setup *s, const struct config *c, const char *dir);
void compute_close(struct compute_setup *s);

#endif
