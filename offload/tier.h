/* offload/tier.h - the tiers that hold bytes: device memory, RAM, NVMe.
 *
 * Owns: the space of a run on each tier, as one range. Refuses: dividing it (arenas and extents
 * do), moving bytes between tiers (mover). To add a tier: tier_x.c and a line of TIERS. */
#ifndef OFFLOAD_TIER_H
#define OFFLOAD_TIER_H

#include "kernels/device.h"
#include "offload/scratch.h"
#include "policy/plan.h"

struct tier_config {
    struct device *device; // borrowed; computes on TIER_DEVICE, copies from and to TIER_RAM
    const char *dir;       // TIER_NVME: the folders of its files (scratch.h)
    int node;              // TIER_RAM: NUMA node; -1: any
    int shared_fd;         // TIER_RAM: a memory file of several processes; 0: memory of its own
    int64_t n_bytes;
};

/* The space of one tier. A zeroed one is closed and holds nothing. */
struct tier {
    enum tier_kind kind;
    struct device *device;  // borrowed
    uint8_t *base;          // owned; 4 KiB aligned; NULL on TIER_NVME
    struct scratch scratch; // TIER_NVME
    int64_t n_bytes;        // 0: closed
    int pinned;
};

/* THE list: X(KIND, name) in the order of enum tier_kind. Each has tier_name_open(), _close(). */
#define TIERS(X)                                                                                   \
    X(DEVICE, device)                                                                              \
    X(RAM, ram)                                                                                    \
    X(NVME, nvme)

#define TIER_DECLARE(kind, name)                                                                   \
    enum err tier_##name##_open(struct tier *t, const struct tier_config *config);                 \
    void tier_##name##_close(struct tier *t);
TIERS(TIER_DECLARE)
#undef TIER_DECLARE

/* Allocates config->n_bytes of a tier; 0: nothing. ERR_FIT (memory), ERR_IO (disk), ERR_DEVICE. */
enum err tier_open(struct tier *t, enum tier_kind kind, const struct tier_config *config);
/* Pins populated RAM, so that the device can copy from and to it; device ops may read its first
 * n_read bytes. tier_close() unpins. ERR_DEVICE, ERR_FIT. */
enum err tier_pin(struct tier *t, int64_t n_read);
void tier_close(struct tier *t);

#endif
