/* engine/api/compute.h - from flags to the ops of this CPU: instruction set, compute format,
 * threads. Every command uses this file, so `probe` and `bench ops` measure what `run` uses. */
#ifndef ENGINE_API_COMPUTE_H
#define ENGINE_API_COMPUTE_H

#include "engine/api/config.h"
#include "kernels/device.h"
#include "offload/machine.h"
#include "offload/ring.h"

struct compute_setup {
    struct machine_info info;
    struct ops ops; // ops.pool is owned by this struct
    enum ring_kind io;
    int n_threads; // in ops.pool
};

/* Reads --isa, --compute and --io; starts nothing. ERR_USAGE. */
enum err compute_read(struct compute_setup *s, const struct config *c);
/* After compute_read: reads the machine and starts --threads. info describes the disk of the folder
 * `dir` (may be NULL). ERR_USAGE. Call compute_close also after an error. */
enum err compute_start(struct compute_setup *s, const struct config *c, const char *dir);
/* compute_read, then compute_start. */
enum err compute_open(struct compute_setup *s, const struct config *c, const char *dir);
void compute_close(struct compute_setup *s);

/* Memory of a device that a run may allocate: free memory less a margin for the driver; 0 if the
 * device's memory is RAM. ERR_DEVICE. */
enum err compute_device_room(struct device *d, int64_t *n_bytes);

#endif
