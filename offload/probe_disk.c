/* offload/probe_disk.c - of probe.h: the disk, read and written as runs do.
 *
 * Owns: the scratch file. Refuses: one measurement (disk_probe.c).
 * Note: the sustained rate shows only after a burst, so the long measurements come first. */
#include "offload/probe_impl.h"

#include <stdio.h>
#include <string.h>

#include "offload/disk_probe.h"
#include "offload/mover.h"

#define SCRATCH_BYTES (1024 * PROBE_MIB)
#define SCRATCH_FULL  (4096 * PROBE_MIB)
#define SCRATCH_LEAST (8 * PROBE_MIB)
#define ONE_WAY_S     1.0
#define MIXED_S       0.5
#define FULL_S        30.0

static enum err measure(struct disk_probe *d, const struct probe_config *c, struct disk_load load,
                        struct disk_rates *rates)
{
    struct disk_series series;
    load.io = c->io;
    load.block_bytes = PIECE_BYTES;
    load.depth = IO_DEPTH;
    load.buffer_bytes = probe_buffer_bytes(c);
    load.until_steady = c->full;
    load.seconds_max = c->full ? FULL_S : probe_seconds(c, load.mixed ? MIXED_S : ONE_WAY_S);
    TRY(disk_probe_series(d, &load, &series));
    disk_series_rates(&series, rates);
    return OK;
}

/* Stores the sustained rate of one direction and, if there was one, the burst before it. */
static void keep(struct machine *m, const struct probe_config *c, enum machine_rate lasting,
                 enum machine_rate burst, const struct disk_rates *rates)
{
    m->rates[lasting] = rates->lasting;
    probe_say(c, lasting, &rates->lasting);
    if (rates->burst.value <= 0)
        return;
    m->rates[burst] = rates->burst;
    m->rates[burst + 1] = (struct rate){.value = rates->burst_bytes, .n = 1}; // .._burst_bytes
    probe_say(c, burst, &m->rates[burst]);
    probe_say(c, (enum machine_rate)(burst + 1), &m->rates[burst + 1]);
}

static enum err measure_ways(struct machine *m, const struct probe_config *c, struct disk_probe *d)
{
    struct disk_rates rates;
    TRY(measure(d, c, (struct disk_load){.write = 1, .wrap = 1}, &rates));
    keep(m, c, RATE_nvme_write, RATE_nvme_write_burst, &rates);
    TRY(measure(d, c, (struct disk_load){.write = 0}, &rates));
    keep(m, c, RATE_nvme_read, RATE_nvme_read_burst, &rates);
    TRY(measure(d, c, (struct disk_load){.write = 1, .mixed = 1}, &rates));
    m->nvme_mixed = rates.lasting;
    probe_say(c, RATE_nvme_mixed, &m->nvme_mixed);
    return OK;
}

enum err probe_disk(struct machine *m, const struct probe_config *c)
{
    struct scratch_room room;
    TRY(scratch_room(c->dir, &room));
    int64_t bytes = min_i64(c->full ? SCRATCH_FULL : SCRATCH_BYTES,
                            room.free_bytes / 4 / PROBE_MIB * PROBE_MIB);
    if (bytes < SCRATCH_LEAST)
        return fail(ERR_IO, "%s: probe: %lld bytes free, needs %lld (--offload-dir)", c->dir,
                    (long long)room.free_bytes, (long long)(4 * SCRATCH_LEAST));
    struct disk_probe d;
    TRY(disk_probe_open_scratch(&d, c->dir, bytes));
    enum err err = measure_ways(m, c, &d);
    if (err == OK)
        err = probe_tickets(m, c, &d);
    if (err == OK && !d.direct)
        log_line(LOG_WARN, "probe: %s: no direct I/O here, the rates are those of the page cache",
                 c->dir);
    disk_probe_close(&d);
    return err;
}
