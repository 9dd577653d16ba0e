/* offload/tier_device.c - device memory as a tier: the device allocates it. */
#include "offload/tier.h"

enum err tier_device_open(struct tier *t, const struct tier_config *config)
{
    void *p;
    TRY(config->device->api->alloc(config->device, t->n_bytes, &p));
    t->base = p;
    return OK;
}

void tier_device_close(struct tier *t)
{
    t->device->api->release(t->device, t->base, t->n_bytes);
}
