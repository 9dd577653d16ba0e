/* offload/tier_ram.c - RAM as a tier.
 *
 * Note: one mapping is what the kernel's ring registers and what the
 * device pins (tier_pin, once it is brought in: pinning would do that on one thread), so that a
 * disk and a device reach the same pages without a copy in between. */
#include "offload/machine.h"
#include "offload/tier.h"

enum err tier_ram_open(struct tier *t, const struct tier_config *config)
{
    struct device *cpu = device_cpu();
    void *p;
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
