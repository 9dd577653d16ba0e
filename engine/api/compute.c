/* engine/api/compute.c - see compute.h. Owns: the checks of --isa, --compute, --io and --threads.
 * Refuses: budgets and models. */
#include "engine/api/compute.h"

#include <string.h>

#define DEVICE_MARGIN ((int64_t)64 << 20)

enum err compute_read(struct compute_setup *s, const struct config *c)
{
    enum isa best = isa_best();
    memset(s, 0, sizeof *s);
    s->ops.isa = strcmp(c->isa, "auto") == 0 ? best : isa_by_name(c->isa);
    if (s->ops.isa == N_ISAS || s->ops.isa < ISA_PORTABLE)
        return fail_choice("isa", c->isa, "auto|amx|avx512|avx512f|avx2|portable");
    if (s->ops.isa > best)
        return fail(ERR_USAGE, "--isa %s: this CPU does not have it (it has %s)", c->isa,
                    isa_name(best));
    s->ops.compute = compute_by_name(c->compute);
    if (s->ops.compute == N_COMPUTES)
        return fail_choice("compute", c->compute, "bf16|f32|int8");
    s->io = (enum ring_kind)c->io;
    return OK;
}

enum err compute_start(struct compute_setup *s, const struct config *c, const char *dir)
{
    TRY(machine_read(&s->info, dir));
    int n = (int)min_i64(max_i64(c->threads, 0), MACHINE_CORES_MAX);
    /* Bind to cores only on several NUMA nodes; on one the mover would share a bound core. */
    int bind = n == 0 && s->info.n_numa_nodes > 1 && s->info.n_cores >= s->info.n_threads;
    s->n_threads = n ? n : (int)max_i64(1, s->info.n_threads / max_i64(c->share_cores, 1));
    return pool_open(&s->ops.pool, s->n_threads, bind ? s->info.core_cpus : NULL);
}

enum err compute_open(struct compute_setup *s, const struct config *c, const char *dir)
{
    TRY(compute_read(s, c));
    return compute_start(s, c, dir);
}

enum err compute_device_room(struct device *d, int64_t *n_bytes)
{
    struct device_info info;
    *n_bytes = 0;
    if (d->api->unified)
        return OK;
    TRY(d->api->info(d, &info));
    *n_bytes = max_i64(info.free_bytes - max_i64(info.memory_bytes / 32, DEVICE_MARGIN), 0);
    return OK;
}

void compute_close(struct compute_setup *s)
{
    pool_close(s->ops.pool);
    s->ops.pool = NULL;
}
