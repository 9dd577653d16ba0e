/* offload/tier_nvme.c - files as a tier, for what the run itself writes. */
#include "offload/tier.h"

enum err tier_nvme_open(struct tier *t, const struct tier_config *config)
{
    TRY(scratch_open(&t->scratch, config->dir));
    enum err e = scratch_reserve(&t->scratch, config->dir, t->n_bytes);
    if (e != OK)
        scratch_close(&t->scratch);
    return e;
}

void tier_nvme_close(struct tier *t)
{
    scratch_close(&t->scratch);
}
