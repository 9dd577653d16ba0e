/* engine/api/compute.h - from flags to the ops of this CPU: instruction set, compute format,
 * threads; the same for every command, so that `probe` and `bench ops` measure what `run` uses. */
#ifndef ENGINE_API_COMPUTE_H
#define ENGINE_API_COMPUTE_H

#include "engine/api/config.h"
#include "kernels/device.h"
#include "offload/machine.h"
#include "offload/ring.h"

struct compute_setup {
    struct machine_info info;
    struct ops ops; // ops.pool is owned here
    enum ring_kind io;
    int n_threads; // of the pool
};

/* Reads --isa, --compute and --io; nothing is started. ERR_USAGE. */
enum err compute_read(struct compute_setup *s, const struct config *c);
/* After compute_read: looks at the machine and starts --threads. dir (may be NULL): whose disk info
 * tells about. ERR_USAGE. Close it also after an error. */
enum err compute_start(struct compute_setup *s, const struct config *c, const char *dir);
/* Both. */
enum err compute_open(struct compute_setup *s, const struct config *c, const char *dir);
void compute_close(struct compute_setup *s);

/* Memory of a device that a run may take: what is free, less a margin for its driver's own; 0 of a
 * device whose memory is RAM. ERR_DEVICE. */
enum err compute_device_room(struct device *d, int64_t *n_bytes);

#endif
