/* offload/tier_ram.c - RAM as a tier.
 *
 * Note: the ring registers and the device pins the same mapping, so that disk and device reach the
 * same pages without a copy. tier_pin() comes after the pages are populated, because pinning would
 * populate them on one thread. */
#include "kernels/base/arena.h"
#include "offload/machine.h"
#include "offload/tier.h"

enum err tier_ram_open(struct tier *t, const struct tier_config *config)
{
    struct device *cpu = device_cpu();
    void *p;
    if (config->shared_fd > 0) {
        TRY(ram_share(config->shared_fd, t->n_bytes, &p));
        t->base = p;
        return OK;
    }
    TRY(cpu->api->alloc(cpu, t->n_bytes, &p));
    if (config->node >= 0)
        machine_memory_bind(p, t->n_bytes, config->node);
    t->base = p;
    return OK;
}

void tier_ram_close(struct tier *t)
{
    device_cpu()->api->release(device_cpu(), t->base, t->n_bytes);
}
