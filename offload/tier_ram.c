/* offload/tier_ram.c - RAM as a tier.
 *
 * The fact a newcomer would miss: this one mapping is what the kernel's ring registers and what the
 * device pins, so that a disk and a device reach the same pages without a copy in between. */
#include "offload/machine.h"
#include "offload/tier.h"

enum err tier_ram_open(struct tier *t, const struct tier_config *config)
{
    struct device *cpu = device_cpu();
    void *p;
    TRY(cpu->api->alloc(cpu, t->n_bytes, &p));
    if (config->node >= 0)
        machine_memory_bind(p, t->n_bytes, config->node);
    enum err e = config->device->api->pin(config->device, p, t->n_bytes);
    if (e != OK) {
        cpu->api->release(cpu, p, t->n_bytes);
        return e;
    }
    t->base = p;
    return OK;
}

void tier_ram_close(struct tier *t)
{
    t->device->api->unpin(t->device, t->base, t->n_bytes);
    device_cpu()->api->release(device_cpu(), t->base, t->n_bytes);
}
