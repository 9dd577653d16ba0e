/* offload/tier.c - see tier.h: the table of tiers. */
#include "offload/tier.h"

#define TIER_ROW(kind, name) [TIER_##kind] = {tier_##name##_open, tier_##name##_close},
static const struct {
    enum err (*open)(struct tier *t, const struct tier_config *config);
    void (*close)(struct tier *t);
} rows[N_TIERS] = {TIERS(TIER_ROW)};
#undef TIER_ROW

enum err tier_open(struct tier *t, enum tier_kind kind, const struct tier_config *config)
{
    *t = (struct tier){.kind = kind, .device = config->device};
    if (config->n_bytes == 0)
        return OK;
    t->n_bytes = round_up(config->n_bytes, 4096);
    enum err e = rows[kind].open(t, config);
    if (e != OK)
        *t = (struct tier){.kind = kind};
    return e;
}

enum err tier_pin(struct tier *t, int64_t n_read)
{
    const struct device_api *api = t->device->api;
    const int64_t whole = min_i64(round_up(n_read, 4096), t->n_bytes);
    t->pinned = 1;
    if (whole > 0)
        TRY(api->pin(t->device, t->base, whole));
    if (whole == t->n_bytes)
        return OK;
    return api->pin_some(t->device, t->base + whole, t->n_bytes - whole);
}

void tier_close(struct tier *t)
{
    if (t->pinned)
        t->device->api->unpin(t->device, t->base, t->n_bytes);
    if (t->n_bytes > 0)
        rows[t->kind].close(t);
    *t = (struct tier){.kind = t->kind};
}
