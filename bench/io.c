/* bench/io.c - `bench io`: block size x depth x back end, reads and writes, on the disk of
 * --offload-dir (default: the current folder).
 *
 * Owns: the grid. Refuses: measuring (offload/disk_probe.c). Note: writes come first, because reads
 * use the written blocks. */
#include "bench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "offload/disk_probe.h"

#define MIB          (1 << 20)
#define FILE_BYTES   (2048 * (int64_t)MIB)
#define FLIGHT_BYTES (64 * (int64_t)MIB) // most bytes in flight
#define CELL_SECONDS 0.5

static enum err measure_cell(struct bench_table *t, struct disk_probe *d,
                             const struct disk_load *load, int runs)
{
    double rates[BENCH_RUNS_MAX];
    for (int i = 0; i < runs; i++)
        TRY(disk_probe_rate(d, load, &rates[i]));
    double rate = bench_median(rates, runs);
    return bench_row(t, json_pack("{ss ss sI si sf sf sf}", "backend",
                                  load->io == RING_URING ? "uring" : "threads", "op",
                                  load->write ? "write" : "read", "block_kib",
                                  (json_int_t)(load->block_bytes >> 10), "depth", load->depth,
                                  "gb_s", rate * 1e-9, "gb_s_min", rates[0] * 1e-9, "gb_s_max",
                                  rates[runs - 1] * 1e-9)); // sorted by the median
}

static enum err measure_grid(struct bench_table *t, struct disk_probe *d, enum ring_kind io,
                             int runs)
{
    static const int kib[] = {256, 512, 1024, 2048, 4096}, depths[] = {1, 2, 4, 8, 16, 32};
    for (int write = 1; write >= 0; write--)
        for (int b = 0; b < 5; b++)
            for (int i = 0; i < 6; i++) {
                struct disk_load load = {.io = io,
                                         .write = write,
                                         .block_bytes = (int64_t)kib[b] << 10,
                                         .depth = depths[i],
                                         .seconds_max = CELL_SECONDS};
                if (load.block_bytes * load.depth <= FLIGHT_BYTES)
                    TRY(measure_cell(t, d, &load, runs));
            }
    return OK;
}

enum err bench_io(const struct config *c)
{
    const char *dir = c->offload_dir ? c->offload_dir : ".";
    struct scratch_room free;
    TRY(scratch_check(dir));
    TRY(scratch_room(dir, &free));
    int64_t room = free.free_bytes / 4 / MIB * MIB;
    if (room < 64 * (int64_t)MIB)
        return fail(ERR_IO, "%s: bench io: needs 256 MiB of free space (--offload-dir)", dir);
    struct disk_probe d;
    struct bench_table t;
    TRY(disk_probe_open_scratch(&d, dir, min_i64(FILE_BYTES, room)));
    bench_table_open(&t, c);
    enum err err = OK;
    if (c->io != RING_THREADS)
        err = measure_grid(&t, &d, RING_URING, bench_runs(c));
    if (err == OK && c->io != RING_URING)
        err = measure_grid(&t, &d, RING_THREADS, bench_runs(c));
    if (err == OK && !d.direct)
        log_line(LOG_WARN,
                 "bench io: %s: no direct I/O here, the rates are those of the page cache", dir);
    disk_probe_close(&d);
    enum err closed = bench_table_close(&t);
    return err != OK ? err : closed;
}
