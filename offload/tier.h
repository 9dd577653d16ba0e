/* offload/tier.h - the places where bytes can live: device memory, RAM, NVMe.
 *
 * Owns: the space that a run takes of each tier, in one piece. Refuses: cutting it up (arenas and
 * extents do) and moving bytes between tiers (mover). To add a tier: tier_x.c and a line of TIERS.
 */
#ifndef OFFLOAD_TIER_H
#define OFFLOAD_TIER_H

#include "kernels/device.h"
#include "policy/plan.h"

struct tier_config {
    struct device *device; // borrowed; computes on TIER_DEVICE, copies from and to TIER_RAM
    const char *dir;       // TIER_NVME: where its file stands
    int node;              // TIER_RAM: NUMA node to lie on; -1: any
    int64_t n_bytes;
};

/* The space of one tier. A zeroed one is closed and holds nothing. */
struct tier {
    enum tier_kind kind;
    struct device *device; // borrowed
    uint8_t *base;         // owned; 4 KiB aligned; NULL on TIER_NVME
    int fd;                // owned on TIER_NVME: a file without a name, open for both directions
    int64_t n_bytes;       // 0: closed
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

/* Takes config->n_bytes of a tier; 0 takes nothing. ERR_FIT (memory), ERR_IO (disk), ERR_DEVICE. */
enum err tier_open(struct tier *t, enum tier_kind kind, const struct tier_config *config);
/* Makes RAM that was brought in one that the device copies from and to; its ops may read the first
 * n_read bytes. Undone by tier_close(). ERR_DEVICE, ERR_FIT. */
enum err tier_pin(struct tier *t, int64_t n_read);
void tier_close(struct tier *t);

#endif
