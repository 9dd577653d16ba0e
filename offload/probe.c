/* offload/probe.c - see probe.h: the disk, RAM and matmuls of this machine, measured.
 *
 * Owns: what is measured, for how long, and the cache of results. Refuses: the file's text
 * (machine_file.c) and one disk measurement (disk_probe.c).
 * A newcomer would miss: a short probe takes the better of two depths, a full one measures the best
 * cell of its grid once more for ten seconds, because one drive's first second can be much slower.
 */
#include "offload/probe.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "offload/disk_probe.h"
#include "offload/machine.h"
#include "offload/machine_file.h"

#define MIB              (1 << 20)
#define MEMORY_BYTES     (64 * (int64_t)MIB)
#define SCRATCH_BYTES    (256 * (int64_t)MIB)
#define SCRATCH_FULL     (4096 * (int64_t)MIB)
#define SCRATCH_LEAST    (8 * (int64_t)MIB)
#define DEPTH_FULL_BYTES (32 * (int64_t)MIB) // most in flight
#define SAMPLES_MAX      4096
#define STEP_OPS         11 // ops of a decoder layer: matmuls, norms, rope, attention
#define CACHE_AGE_S      (30 * 24 * 3600)

static void *map_bytes(int64_t n_bytes)
{
    void *p =
        mmap(NULL, (size_t)n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static int double_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What the machine gives when it is left alone, nine tenths up: the figures stay in the cache for a
 * month, and a neighbour that was busy for these two seconds should not. */
static double settled(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, double_compare);
    return values[n * 9 / 10];
}

static int has_device(const struct probe_config *c)
{
    return c->device && !c->device->api->unified;
}

static void say(const struct probe_config *c, const char *what, double value, const char *unit)
{
    if (c->verbose)
        log_line(LOG_INFO, "probe: %-28s %10.2f %s", what, value, unit);
}

/* ---- RAM ---- */

typedef uint64_t line_t __attribute__((vector_size(64), may_alias)); // a cache line

struct ram_scan {
    const line_t *lines;
    int64_t n_lines;
    line_t *sums; // [n_threads], so that the reads are not optimised away
};

/* Two sums that live in registers: one in memory would wait for its own stores. */
static void ram_scan_part(void *ctx, int thread, int n_threads)
{
    const struct ram_scan *scan = ctx;
    int64_t first, last;
    pool_split(scan->n_lines / 2, thread, n_threads, &first, &last);
    line_t even = {0}, odd = {0};
    for (int64_t i = first; i < last; i++) {
        even += scan->lines[2 * i];
        odd += scan->lines[2 * i + 1];
    }
    scan->sums[thread] = even + odd;
}

/* Every thread touches its own part first: pages come from its NUMA node. */
static void ram_fill_part(void *ctx, int thread, int n_threads)
{
    const struct ram_scan *scan = ctx;
    int64_t first, last;
    pool_split(scan->n_lines / 2, thread, n_threads, &first, &last);
    memset((void *)(uintptr_t)(scan->lines + 2 * first), 1, (size_t)(last - first) * 128);
}

enum err probe_ram(struct pool *pool, int64_t buffer_bytes, double seconds, double *bytes_per_s)
{
    int64_t bytes = max_i64(buffer_bytes / 128, 1) * 128;
    line_t *sums = aligned_alloc(64, (size_t)pool_threads(pool) * 64);
    void *map = sums ? map_bytes(bytes) : NULL;
    if (!map) {
        free(sums);
        return fail(ERR_FIT, "memory: %lld bytes to measure RAM", (long long)bytes);
    }
    struct ram_scan scan = {.lines = map, .n_lines = bytes / 64, .sums = sums};
    pool_run(pool, ram_fill_part, &scan);
    pool_run(pool, ram_scan_part, &scan);
    double rates[SAMPLES_MAX];
    int n = 0;
    int64_t start_ns = clock_ns(), before_ns = start_ns;
    do {
        pool_run(pool, ram_scan_part, &scan);
        int64_t now_ns = clock_ns();
        rates[n++] = (double)bytes / ((double)max_i64(now_ns - before_ns, 1) * 1e-9);
        before_ns = now_ns;
    } while (n < SAMPLES_MAX && (double)(before_ns - start_ns) < seconds * 1e9);
    *bytes_per_s = settled(rates, n);
    munmap(map, (size_t)bytes);
    free(sums);
    return OK;
}

/* ---- matmul ---- */

/* One mapping: copies of the weight, x, y, scratch; every part starts on a page. */
struct matmul_memory {
    uint8_t *base;
    int64_t n_bytes, copy_bytes;
    int n_copies;
    float *x, *y;
    void *scratch;
};

static enum err matmul_memory_open(struct matmul_memory *mem, const struct ops *ops,
                                   const struct probe_matmul *p)
{
    if (p->m < 1 || p->n < 1 || dtype_row_bytes(p->dtype, p->k) < 0)
        return fail(ERR_USAGE, "matmul [%d, %d, %d]: %s cannot hold it", p->m, p->n, p->k,
                    dtype_info(p->dtype)->name);
    mem->copy_bytes = round_up(dtype_panels_bytes(p->dtype, p->n, p->k), 4096);
    mem->n_copies = (int)max_i64(p->weight_bytes / mem->copy_bytes, 1);
    int64_t x_bytes = round_up((int64_t)p->m * p->k * 4, 4096);
    int64_t y_bytes = round_up((int64_t)p->m * p->n * 4, 4096);
    int64_t scratch_bytes =
        round_up(max_i64(matmul_scratch_bytes(ops, p->m, p->n, p->k), 64), 4096);
    mem->n_bytes = mem->n_copies * mem->copy_bytes + x_bytes + y_bytes + scratch_bytes;
    mem->base = map_bytes(mem->n_bytes);
    if (!mem->base)
        return fail(ERR_FIT, "memory: %lld bytes to measure matmuls", (long long)mem->n_bytes);
    uint8_t *at = mem->base + mem->n_copies * mem->copy_bytes;
    mem->x = (float *)(void *)at;
    mem->y = (float *)(void *)(at + x_bytes);
    mem->scratch = at + x_bytes + y_bytes;
    return OK;
}

/* A real panel of small numbers in every place, whatever the format. */
static enum err matmul_memory_fill(struct matmul_memory *mem, const struct probe_matmul *p)
{
    int64_t row_bytes = dtype_row_bytes(p->dtype, p->k),
            panel_bytes = dtype_panel_bytes(p->dtype, p->k);
    uint8_t *row = malloc((size_t)round_up(row_bytes, 64));
    if (!row)
        return fail(ERR_FIT, "memory: %lld bytes to measure matmuls", (long long)row_bytes);
    /* Bytes 0x30 to 0x3b are small normal numbers as f32, f16 and bf16, and good as scales and
     * quants. */
    for (int64_t i = 0; i < row_bytes; i++)
        row[i] = (uint8_t)(0x30 + mix64((uint64_t)i) % 12);
    const void *rows[PANEL_ROWS];
    for (int i = 0; i < PANEL_ROWS; i++)
        rows[i] = row;
    panel_pack(p->dtype, rows, p->k, mem->base);
    for (int64_t at = panel_bytes; at + panel_bytes <= mem->copy_bytes; at += panel_bytes)
        memcpy(mem->base + at, mem->base, (size_t)panel_bytes);
    for (int i = 1; i < mem->n_copies; i++)
        memcpy(mem->base + i * mem->copy_bytes, mem->base, (size_t)mem->copy_bytes);
    for (int64_t i = 0; i < (int64_t)p->m * p->k; i++)
        mem->x[i] = (float)(mix64((uint64_t)i) % 1024) * 0x1p-10f;
    free(row);
    return OK;
}

static double matmul_measure(const struct ops *ops, const struct probe_matmul *p,
                             const struct matmul_memory *mem)
{
    struct matmul_args args = {
        .x = mem->x,
        .m = p->m,
        .x_stride = p->k,
        .parts = {{.w = {p->dtype, p->n, p->k, mem->base}, .y = mem->y, .y_stride = p->n}},
        .n_parts = 1,
        .scratch = mem->scratch};
    ops_run_matmul(ops, &args); // pages of y and scratch, clock of the CPU
    double flops = 2.0 * p->m * p->n * p->k, rates[SAMPLES_MAX];
    int n = 0;
    int64_t start_ns = clock_ns(), before_ns = start_ns;
    do {
        args.parts[0].w.panels = mem->base + (n + 1) % mem->n_copies * mem->copy_bytes;
        ops_run_matmul(ops, &args);
        int64_t now_ns = clock_ns();
        rates[n++] = flops / ((double)max_i64(now_ns - before_ns, 1) * 1e-9);
        before_ns = now_ns;
    } while (n < SAMPLES_MAX &&
             (n < min_i64(mem->n_copies, 8) || (double)(before_ns - start_ns) < p->seconds * 1e9));
    return settled(rates, n);
}

enum err probe_matmul(const struct ops *ops, const struct probe_matmul *p, double *flops,
                      int64_t *copy_bytes)
{
    struct matmul_memory mem = {0};
    TRY(matmul_memory_open(&mem, ops, p));
    enum err err = matmul_memory_fill(&mem, p);
    if (err == OK)
        *flops = matmul_measure(ops, p, &mem);
    if (copy_bytes)
        *copy_bytes = mem.copy_bytes;
    munmap(mem.base, (size_t)mem.n_bytes);
    return err;
}

/* What a step costs beside its bytes and FLOPs: its ops on one row of almost nothing. */
static enum err measure_step(struct machine *m, const struct probe_config *c)
{
    struct probe_matmul tiny = {.dtype = DTYPE_BF16, .m = 1, .n = 64, .k = 64, .seconds = 0.03};
    double flops;
    TRY(probe_matmul(c->ops, &tiny, &flops, NULL));
    m->step_s = STEP_OPS * 2.0 * 64 * 64 / flops;
    say(c, "overhead of a step", m->step_s * 1e6, "us");
    return OK;
}

static enum err measure_matmul(struct machine *m, const struct probe_config *c,
                               int64_t memory_bytes)
{
    struct probe_matmul p = {.dtype = c->ops->compute == COMPUTE_INT8 ? DTYPE_Q8 : DTYPE_BF16,
                             .m = 64,
                             .n = 2048,
                             .k = 1024,
                             .seconds = 0.3};
    p.weight_bytes = min_i64(memory_bytes / 2, 32 * (int64_t)MIB);
    TRY(probe_matmul(c->ops, &p, &m->matmul_flops, NULL));
    say(c, c->ops->compute == COMPUTE_INT8 ? "matmul int8 m=64" : "matmul bf16 m=64",
        m->matmul_flops * 1e-9, "GFLOP/s");
    if (!c->full)
        return OK;
    static const enum dtype formats[] = {DTYPE_BF16, DTYPE_F32, DTYPE_Q8, DTYPE_Q4};
    static const int rows[] = {1, 8, 64, 256};
    static const int dims[][2] = {{576, 576}, {1536, 576}, {2048, 2048}, {8192, 2048}};
    for (int f = 0; f < 4; f++)
        for (int d = 0; d < 4; d++)
            for (int r = 0; r < 4; r++) {
                struct probe_matmul q = {.dtype = formats[f],
                                         .m = rows[r],
                                         .n = dims[d][0],
                                         .k = dims[d][1],
                                         .weight_bytes = p.weight_bytes,
                                         .seconds = 0.5};
                double flops;
                TRY(probe_matmul(c->ops, &q, &flops, NULL));
                char what[64];
                snprintf(what, sizeof what, "matmul %s [%d, %d, %d]", dtype_info(q.dtype)->name,
                         q.m, q.n, q.k);
                say(c, what, flops * 1e-9, "GFLOP/s");
                if (q.dtype == DTYPE_BF16 && q.m == 64 && q.k == 2048 && flops > m->matmul_flops)
                    m->matmul_flops = flops;
            }
    return OK;
}

/* ---- disk ---- */

static enum err measure_load(struct disk_probe *d, const struct probe_config *c,
                             const struct disk_load *load, double *best,
                             struct disk_load *best_load)
{
    double rate;
    TRY(disk_probe_rate(d, load, &rate));
    char what[64];
    snprintf(what, sizeof what, "disk %s %lld KiB x %d", load->write ? "write" : "read",
             (long long)load->block_bytes >> 10, load->depth);
    say(c, what, rate * 1e-9, "GB/s");
    if (rate > *best) {
        *best = rate;
        if (best_load)
            *best_load = *load;
    }
    return OK;
}

static enum err measure_disk_short(struct machine *m, const struct probe_config *c,
                                   struct disk_probe *d)
{
    static const int depths[] = {4, 8};
    struct disk_load load = {
        .io = c->io, .write = 1, .block_bytes = MIB, .depth = 4, .seconds_max = 0.5};
    TRY(measure_load(d, c, &load, &m->nvme_write, NULL));
    load.write = 0;
    load.seconds_max = 0.35;
    for (int i = 0; i < 2; i++) {
        load.depth = depths[i];
        TRY(measure_load(d, c, &load, &m->nvme_read, NULL));
    }
    return OK;
}

static enum err measure_disk_full(struct machine *m, const struct probe_config *c,
                                  struct disk_probe *d)
{
    static const int depths[] = {1, 2, 4, 8, 16, 32};
    struct disk_load load = {.io = c->io}, best_load = {0};
    for (int write = 1; write >= 0; write--) {
        double best = 0;
        for (int64_t block = MIB / 4; block <= 4 * MIB; block *= 2)
            for (int i = 0; i < 6; i++) {
                load = (struct disk_load){.io = c->io,
                                          .write = write,
                                          .block_bytes = block,
                                          .depth = depths[i],
                                          .seconds_max = 2};
                if (block * depths[i] <= DEPTH_FULL_BYTES)
                    TRY(measure_load(d, c, &load, &best, &best_load));
            }
        best_load.seconds_max = 10;
        TRY(measure_load(d, c, &best_load, write ? &m->nvme_write : &m->nvme_read, NULL));
    }
    return OK;
}

static enum err measure_disk(struct machine *m, const struct probe_config *c)
{
    struct statvfs fs;
    if (statvfs(c->dir, &fs) != 0)
        return fail(ERR_IO, "%s: probe: %s", c->dir, strerror(errno));
    int64_t free_bytes = (int64_t)fs.f_bavail * (int64_t)fs.f_frsize;
    int64_t bytes = min_i64(c->full ? SCRATCH_FULL : SCRATCH_BYTES, free_bytes / 4 / MIB * MIB);
    if (bytes < SCRATCH_LEAST)
        return fail(ERR_IO, "%s: probe: %lld bytes free, needs %lld (--offload-dir)", c->dir,
                    (long long)free_bytes, (long long)(4 * SCRATCH_LEAST));
    struct disk_probe d;
    TRY(disk_probe_open_scratch(&d, c->dir, bytes));
    enum err err = c->full ? measure_disk_full(m, c, &d) : measure_disk_short(m, c, &d);
    if (err == OK && !d.direct)
        log_line(LOG_WARN, "probe: %s: no O_DIRECT there, the figures are the page cache's",
                 c->dir);
    disk_probe_close(&d);
    return err;
}

enum err probe_run(struct machine *m, const struct probe_config *c)
{
    int64_t memory_bytes = c->memory_bytes > 0 ? c->memory_bytes : MEMORY_BYTES;
    *m = (struct machine){.threads = pool_threads(c->ops->pool)};
    TRY(measure_disk(m, c));
    TRY(probe_ram(c->ops->pool, memory_bytes, c->full ? 3 : 0.2, &m->ram_read));
    say(c, "RAM read", m->ram_read * 1e-9, "GB/s");
    TRY(measure_matmul(m, c, memory_bytes));
    TRY(measure_step(m, c));
    return has_device(c) ? probe_device(m, c) : OK;
}

/* ---- cache ---- */

static enum err cache_path(const struct probe_config *c, const struct machine_info *info,
                           const char *cache_dir, char *path, int cap)
{
    struct stat st;
    if (stat(c->dir, &st) != 0)
        return fail(ERR_IO, "%s: probe: %s", c->dir, strerror(errno));
    char key[512];
    struct device_info device = {0};
    if (has_device(c))
        TRY(c->device->api->info(c->device, &device));
    int n = snprintf(key, sizeof key, "1 %s %d %s %d %llx %d%s%s%s", info->cpu_name,
                     pool_threads(c->ops->pool), isa_name(c->ops->isa), (int)c->ops->compute,
                     (unsigned long long)st.st_dev, (int)c->io, *device.model ? " " : "",
                     device.model, c->ops->matmul == MATMUL_CUBLASLT ? " cublaslt" : "");
    n = snprintf(path, (size_t)cap, "%s/probe-%016llx.cfg", cache_dir,
                 (unsigned long long)hash_bytes(key, n, 0));
    return n < cap ? OK : fail(ERR_USAGE, "%.100s...: path is too long", cache_dir);
}

/* The last line holds the checksum of all before it: a cut file would still parse. */
#define CHECK_FORMAT "# check = %08x\n"
#define CHECK_BYTES  19

/* 1 when the cache has figures that can be trusted. */
static int cache_read(struct machine *m, const char *path, int with_device)
{
    struct stat st;
    static char text[MACHINE_FILE_BYTES_MAX];
    int64_t n_bytes;
    time_t now = time(NULL);
    if (stat(path, &st) != 0 || st.st_mtime > now || now - st.st_mtime > CACHE_AGE_S ||
        machine_text_load(path, text, &n_bytes) != OK || n_bytes < CHECK_BYTES)
        return 0;
    char check[CHECK_BYTES + 1];
    snprintf(check, sizeof check, CHECK_FORMAT, crc32c(0, text, n_bytes - CHECK_BYTES));
    if (memcmp(check, text + n_bytes - CHECK_BYTES, CHECK_BYTES) != 0)
        return 0;
    struct machine read;
    if (machine_text_parse(&read, text, n_bytes, path) != OK || read.nvme_read <= 0 ||
        read.matmul_flops <= 0 || read.ram_read <= 0 ||
        (with_device && machine_device_check(&read, path) != OK))
        return 0;
    *m = read;
    return 1;
}

/* A cache that cannot be written costs two seconds next time, no more. */
static void cache_write(const struct machine *m, const char *path, const char *cpu_name)
{
    char text[4096], comment[300], date[32];
    time_t now = time(NULL);
    struct tm tm;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    snprintf(comment, sizeof comment, "cpu: %s\ndate: %s", cpu_name, date);
    int n = machine_text_format(m, comment, text, (int)sizeof text - CHECK_BYTES - 1);
    if (n < 0)
        return;
    n += snprintf(text + n, sizeof text - (size_t)n, CHECK_FORMAT, crc32c(0, text, n));
    if (machine_text_save(path, text, n) != OK)
        log_line(LOG_WARN, "probe: not kept: %s", err_text());
}

enum err probe_cached(struct machine *m, const struct probe_config *c, const char *cache_dir,
                      int *measured)
{
    struct machine_info info;
    char path[4200];
    *measured = 0;
    TRY(machine_read(&info, NULL));
    TRY(cache_path(c, &info, cache_dir, path, sizeof path));
    if (!c->full && cache_read(m, path, has_device(c)))
        return OK;
    *measured = 1;
    TRY(probe_run(m, c));
    cache_write(m, path, info.cpu_name);
    return OK;
}
